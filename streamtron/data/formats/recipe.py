"""Say how the columns of a table become features."""

from __future__ import annotations

import logging
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.files import parse_json
from streamtron.core.text import some
from streamtron.data.formats.category_column import CategoryColumn
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.list_column import ListColumn
from streamtron.data.formats.recipe_column import Column
from streamtron.data.formats.recipe_words import column_from, column_of, given_fields, spec_of
from streamtron.data.formats.text_column import TextColumn
from streamtron.data.formats.words import strings_of

_log = logging.getLogger(__name__)

_NO_RECIPE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, zlib.error)

RECIPE_KEY = b"streamtron.recipe"
"""The key of a recipe, as JSON, among the metadata of a table's schema."""


@dataclass(frozen=True)
class Recipe:
    """How the columns of a table become features.

    Each column has the features behind those of the columns before it.

    Parameters
    ----------
    columns : in their order; ``Recipe.of`` makes them of words.
    label, weight : the columns of labels and row weights; None = the usual name, no weights.

    Examples
    --------
    >>> recipe = Recipe.of("body:text,hash_bits=10,norm=none", "links:number")
    >>> recipe.specs
    ('body:text,norm=none,hash_bits=10', 'links:number')
    >>> rows = recipe.rows({"body": ["cheap pills", "cheap, cheap"], "links": [0, 7]})
    >>> rows.shape, rows.indices.tolist(), rows.data.tolist()
    ((2, 1025), [57, 955, 955, 1024], [1.0, 1.0, 2.0, 7.0])
    """

    columns: tuple[Column, ...]
    label: str | None = None
    weight: str | None = None

    def __post_init__(self) -> None:
        names = self.names
        if twice := {name for name in names if names.count(name) > 1}:
            raise SettingsError(f"columns: {min(twice)!r:.60} twice. Name each column once.")

    @classmethod
    def of(cls, *specs: str) -> Recipe:
        """Make a recipe of words; see ``specs``. SettingsError: they are none."""
        return cls(tuple(map(column_of, specs)))

    @property
    def names(self) -> list[str]:
        """The names of the columns, in their order."""
        return [column.name for column in self.columns]

    @property
    def specs(self) -> tuple[str, ...]:
        """The columns in words, without what was counted."""
        return tuple(map(spec_of, self.columns))

    @property
    def is_fitted(self) -> bool:
        """Whether nothing is to be counted before rows are made."""
        return all(column.is_fitted for column in self.columns)

    @cached_property
    def starts(self) -> list[int]:
        """The first feature of each column, and behind them how many there are."""
        return list(accumulate((column.width for column in self.columns), initial=0))

    @property
    def width(self) -> int:
        """The number of features."""
        return self.starts[-1]

    def name_of(
        self, feature: int, *, several: bool | None = None, hashes: bool = False
    ) -> str | None:
        """Return the name of a feature: ``city=Paris``; a word, after the name of its column where
        there are ``several``, by default where this recipe has; None where it is hashed, unless
        ``hashes`` are called by their number, or there is none."""
        at = int(np.searchsorted(self.starts, feature, side="right")) - 1
        if not 0 <= at < len(self.columns):
            return None
        column = self.columns[at]
        place = feature - self.starts[at] - column.hashes
        if place < 0:
            place += column.hashes
            hashed = f"{column.name}:{column.KIND}, hash {place:,} of {column.hashes:,}"
            return hashed if hashes else None
        several = len(self.columns) > 1 if several is None else several
        is_word = isinstance(column, TextColumn) and several
        return column.features[place] if not is_word else f"{column.name}:{column.features[place]}"

    @property
    def summary(self) -> list[str]:
        """The columns, each with the number of its features where that is not 1."""
        lines = []
        for column in self.columns:
            notes = [f"{column.width:,} features"] if column.width != 1 else []
            notes += ["rarer words left out"] if getattr(column, "left_out", False) else []
            lines.append(f"{column.name} ({', '.join(notes)})" if notes else column.name)
        return lines

    def settled(self, schema: pa.Schema, name: str, taken: Iterable[str | None]) -> Recipe:
        """Return the recipe with patterns as the columns that match, but those ``taken``."""
        present, used = set(schema.names), {*self.names, *taken}
        columns: list[Column] = []
        for column in self.columns:
            if column.name in present or not re.search(r"[*?[]", column.name):
                columns.append(column)
                continue
            matching = [
                replace(column, name=field.name)
                for field in schema
                if fnmatchcase(field.name, column.name)
                and field.name not in used
                and column.fits(field.type)
            ]
            if not matching:
                raise DataError(f"{name}: no column of {column.TYPES} is called {column.name!r}.")
            used |= {match.name for match in matching}
            columns += matching
        return replace(self, columns=tuple(columns))

    def rows_of(
        self, table: pa.RecordBatch, spot: Spot, new: Counter[str] | None
    ) -> sparse.csr_array:
        """Return the rows of a table, float32, without zeros, columns rising. ``new`` : counts the
        rows with what was not counted, as a category may be, by column, and leaves that out; None =
        in the column k it has the feature width + k, which no model has."""
        cells = [column.cells(table.column(column.name), spot) for column in self.columns]
        blocks = [made.rows for made in cells]
        marked = {k: made.unseen for k, made in enumerate(cells) if made.unseen is not None}
        if new is not None:
            new.update({self.columns[k].name: int(rows.sum()) for k, rows in marked.items()})
        elif marked:
            marks = np.zeros((len(table), len(cells)), np.float32)
            for k, rows in marked.items():
                marks[:, k] = rows
            blocks.append(sparse.csr_array(marks))
        if len(blocks) == 1:
            return blocks[0]
        return sparse.hstack(blocks, format="csr", dtype=np.float32)

    def rows(self, given: Mapping[str, Any]) -> sparse.csr_array:
        """Return the rows of columns, each by its name as a sequence; others are ignored.
        A warning names a column in which no category is known. DataError: a value that is missing
        or of another kind."""
        arrays, new = [], Counter[str]()
        for column in self.columns:
            try:
                array = _array_of(given[column.name], isinstance(column, ListColumn))
            except (KeyError, TypeError, ValueError, OverflowError, pa.ArrowException) as error:
                raise DataError(
                    f"X: {column.name!r} ({error}). Wanted are {column.TYPES} by that name."
                ) from error
            if not column.takes(array.type):
                raise DataError(f"X: {column.name!r} is {array.type}. Wanted are {column.TYPES}.")
            arrays.append(array)
        batch = pa.RecordBatch.from_arrays(arrays, self.names)
        rows = self.rows_of(batch, Spot("X", "", 0), new)
        for column in self.columns:
            present = len(batch) - batch.column(column.name).null_count
            if type(column) is CategoryColumn and new[column.name] == present > 0:
                known = some(column.categories or column.rare, most=2)
                what = "none of the categories that the model knows"
                _log.warning("X: %r holds %s (%s), and weighs 0.", column.name, what, known)
        return rows

    def tallies(self, table: pa.RecordBatch, spot: Spot) -> list[Any]:
        """Count, in some rows, what must be known of each column that is not fitted."""
        return [
            None if column.is_fitted else column.tally(table.column(column.name), spot)
            for column in self.columns
        ]

    def fitted(self, tallies: Sequence[Any]) -> Recipe:
        """Return the recipe with what was counted in all rows."""
        pairs = zip(self.columns, tallies, strict=True)
        columns = (column if tally is None else column.fitted(tally) for column, tally in pairs)
        return replace(self, columns=tuple(columns))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values: what is not a default."""
        columns = [{"kind": column.KIND, **given_fields(column)} for column in self.columns]
        return {"columns": columns, "label": self.label, "weight": self.weight}

    @classmethod
    def from_dict(cls, values: Any) -> Recipe:
        """Make a recipe of JSON values, which may come from anywhere; a DataError if it is none."""
        try:
            given = dict(values)
            if not isinstance(entries := given.pop("columns"), list):
                raise TypeError(f"{entries!r:.40}")
            columns = [column_from(dict(entry)) for entry in entries]
            places = {name: given.pop(name) for name in ("label", "weight")}
            if given or not {type(name) for name in places.values()} <= {str, type(None)}:
                raise ValueError(f"{next(iter(given), 'label')!r}")
            if not columns or not all(column.is_fitted for column in columns):
                raise ValueError("no columns, or some that are not counted")
            for column in columns:
                _ = column.idf if isinstance(column, TextColumn) and column.tfidf else None
            return cls(tuple(columns), **places)
        except _NO_RECIPE as error:
            raise DataError(
                f"the recipe of the columns is damaged ({error}). Fit, or convert, again."
            ) from error


def recipe_in(schema: pa.Schema, name: str) -> Recipe | None:
    """Return the recipe by which columns became the rows of a table, if it names one."""
    packed = (schema.metadata or {}).get(RECIPE_KEY)
    if packed is None:
        return None
    try:
        return Recipe.from_dict(parse_json(packed))
    except ValueError as error:  # a DataError is one
        raise DataError(f"{name}: its recipe is damaged ({error}). Convert anew.") from error


def _array_of(values: Any, are_lists: bool) -> pa.Array:
    """Return a sequence, or a column of a data frame, as an Arrow array; dictionaries as maps."""
    if are_lists and any(isinstance(value, dict) for value in values):
        maps = [[(str(k), x) for k, x in row.items()] if row else row for row in values]
        return pa.array(maps, pa.map_(pa.string(), pa.float64()))
    if hasattr(values, "to_arrow"):
        values = values.to_arrow()
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, list) and set(map(type, values)) == {str}:
        return strings_of(values)  # pyarrow's own way loads pandas, where it is installed
    return values if isinstance(values, pa.Array) else pa.array(values, from_pandas=True)
