"""Find the columns of labels, features and weights in a table, by names and types.

The schema of the first shard decides for all shards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple, NoReturn, cast

import pyarrow as pa

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.text import some
from streamtron.data.formats.layouts import (
    KEY_NAMES,
    LAYOUTS,
    VALUE_NAMES,
    Columns,
    layout_of,
    plain,
)
from streamtron.data.formats.recipe import Recipe, recipe_in
from streamtron.data.formats.recipe_words import likely_spec
from streamtron.data.formats.roles import ROLES, Role, fits, may_be_values
from streamtron.data.reader_config import Layout, ReaderConfig, Settled

MANY = 40
"""Columns of a table that a message names."""

_NUMBERED = re.compile(r"((?:f|x|feat|feature|col|column)[_.]?)(\d+)", re.IGNORECASE)


def resolve_layout(schema: pa.Schema, reading: ReaderConfig, name: str) -> ReaderConfig:
    """Return the reading with the layout and column names of this schema."""
    columns = find_columns(schema, reading, name)
    unused = unused_in(schema, columns, reading)
    if columns.recipe is not None:
        settled = Settled(columns.layout, by=name, unused=unused)
        return replace(reading, settled=settled, recipe=columns.recipe)
    pair = ordered_pair(schema, columns)
    none = reading.values_column if columns.layout.startswith("lists") else ""
    return replace(
        reading,
        label_column=reading.label_column or columns.label,
        features=columns.features,
        values_column=none if columns.values is None else columns.values,
        settled=Settled(columns.layout, reading.features, pair, name, unused),
        recipe=recipe_in(schema, name),
    )


def ordered_pair(schema: pa.Schema, columns: Columns) -> tuple[str, ...] | None:
    """Return the names of a pair's fields where nothing but their order tells which is which."""
    if not columns.layout.startswith("pairs"):
        return None
    names = [field.name for field in schema.field(columns.features[0]).type.value_type]
    lower = [name.lower() for name in names]
    distinct = [sum(name in usual for name in lower) == 1 for usual in (KEY_NAMES, VALUE_NAMES)]
    return None if all(distinct) else tuple(names)


def unused_in(
    schema: pa.Schema, columns: Columns, reading: ReaderConfig
) -> tuple[tuple[str, str], ...]:
    """Return name and type of the columns of a table that are read for nothing."""
    weight = columns.recipe.weight if columns.recipe else None
    used = {*columns.all, reading.weight_column, weight} - {*columns.unknown}
    unused = (field for field in schema if field.name not in used)
    return tuple((field.name, str(plain(field.type)).removeprefix("large_")) for field in unused)


def find_columns(schema: pa.Schema, reading: ReaderConfig, name: str) -> Columns:
    """Return the columns to read, as settled or named by ``reading`` or found by their usual names.

    Features are found as one column of a usual name that is a list, a map or a vector; or else as
    all columns of numbers called f0, f1, … (also x, feat, feature, col, column), in the order of
    their numbers. Refused are columns that are absent, ambiguous, twice in the file, or of a wrong
    type, another layout than the settled one, and columns that would be lost, since the shard that
    settled the columns has none like them.
    """
    return _Table(schema, reading, name).columns()


class _Table(NamedTuple):
    """The columns of one shard, and how they are to be read."""

    schema: pa.Schema
    reading: ReaderConfig
    name: str

    def columns(self) -> Columns:
        """Find and check all columns to read."""
        reading, recipe = self.reading, self.reading.recipe
        if recipe is not None:  # whose columns the table holds, or else rows that it made
            may_be_rows = reading.layout not in (None, "recipe")
            absent = {*recipe.names}.isdisjoint(self.schema.names)
            if not may_be_rows or not (absent or recipe_in(self.schema, self.name)):
                return self._by_recipe(recipe)
        self._check_recipe()
        label = self._find("label", reading.label_column, needed=reading.labels == "required")
        weight = None if reading.weights == "ignored" else reading.weight_column
        if weight is not None:
            self._find("weight", weight)
        taken = {label, reading.weight_column}
        features = self._features(taken)
        self._check_apart(features, label, weight)
        layout = self._layout(features)
        columns = Columns(label, layout, features, None, weight, self._unknown(taken), lengths=[])
        self._check_pair(columns)
        if layout.startswith("lists"):
            columns = columns._replace(values=self._values(columns))
        self._check_settings(columns)
        return columns

    def _by_recipe(self, recipe: Recipe) -> Columns:
        reading = self.reading
        label = self._find("label", recipe.label, needed=reading.labels == "required")
        weight = None
        if reading.weight_column is not None and reading.weights == "read":
            weight = self._find("weight", recipe.weight or reading.weight_column)
        if reading.settled is None:
            recipe = recipe.settled(self.schema, self.name, (label, reading.weight_column))
            self._check_apart(recipe.names, label, weight)
        for column in recipe.columns:
            if (times := self.schema.names.count(column.name)) != 1:
                known = "the model reads" if reading.settled else "--columns or --text names"
                raise DataError(
                    f"{self.name}: {times} columns {column.name!r}, which {known}. Wanted is one, "
                    f"called exactly so ({self._there()})."
                )
            if not column.takes(type_ := self.schema.field(column.name).type):
                raise DataError(
                    f"{self.name}: column {column.name!r} of type {type_} cannot be a "
                    f"{column.KIND}: wanted {column.TYPES}. Write the column alike in all shards, "
                    "or name another kind when you fit."
                )
        counts = reading.unknown_features == "out_of_range"
        names, new = tuple(recipe.names), None if counts else Counter[str]()
        return Columns(label, "recipe", names, None, weight, (), recipe, new)

    def _check_apart(self, features: Sequence[str], label: str | None, weight: str | None) -> None:
        """Refuse a label, or a row weight, that is a feature as well, unless a model has it so."""
        for role, column in (("label", label), ("weight", weight)):
            if column in features and self.reading.settled is None:
                raise SettingsError(
                    f"{self.name}: {column!r} is both the {role} and a feature. Leave it out of "
                    f"the features, or name another column by --{role}."
                )

    def _check_recipe(self) -> None:
        """Refuse what is neither columns of a recipe nor rows, and rows that another one made."""
        recipe, features = self.reading.recipe, self.reading.features or ()
        if recipe is not None and not {*recipe.names, *features} & set(self.schema.names):
            raise DataError(
                f"{self.name}: neither the columns of the recipe, {some(recipe.names)}, nor rows "
                f"made of them. Name the columns so ({self._there()})."
            )
        stored = recipe_in(self.schema, self.name)
        if recipe is not None and stored != recipe:
            another = "made of columns by another recipe than"
            origin = another if stored else "without a recipe of columns, unlike"
            raise DataError(
                f"{self.name}: {origin} "
                f"{self.reading.settled.by if self.reading.settled else 'the first shard'}. Give "
                "the columns, which are turned into rows by the recipe wanted."
            )

    def _find(self, role: Role, named: str | None, needed: bool = True) -> str | None:
        """Return the column of a role; None where there is none, and none is needed."""
        usual = ROLES[role].names if named is None else (named,)
        named_so = [field for field in self.schema if field.name in usual]
        # A usual name counts only on a column of the right shape: pandas' own "index" is no list.
        fitting = [field for field in named_so if fits(role, field.type, self.reading.multilabel)]
        columns = [field.name for field in (fitting if named is None else named_so)]
        if len(columns) > 1:
            self._refuse_several(role, columns)
        for field in () if fitting else named_so:
            several_labels = role == "label" and fits(role, field.type, several=True)
            if named is not None or (needed and several_labels):
                self._refuse_type(role, field, several_labels)
        if not columns and needed:
            raise DataError(
                f"{self.name}: no column for the {ROLES[role].words}, looked for "
                f"{', '.join(map(repr, usual))}. Name it with --{role} NAME ({self._there()})."
            )
        return columns[0] if columns else None

    def _features(self, taken: set[str | None]) -> tuple[str, ...]:
        """Return the columns of the features: one, or in the layout ``columns`` one a feature."""
        asked, layout = self.reading.features, self.reading.settled
        features = list(asked or ())
        if asked is None:
            features = self._lists() or self._numbered(taken)
        elif not layout:
            features = self._expanded(asked, taken)
        occurrences = Counter(self.schema.names)
        for column, times in Counter(features).items():
            if occurrences[column] != 1:
                self._find("features", column)  # which refuses it
            if times > 1:
                reason = f"{column!r} is named twice among the features. Name it once."
                raise SettingsError(f"{self.name}: {reason}")
        return tuple(features)

    def _lists(self) -> list[str]:
        """Return the list, map or vector of a usual name, if any; of a later shard all of them."""
        usual = [field for field in self.schema if field.name in ROLES["features"].names]
        columns = [field.name for field in usual if layout_of(field.type) not in (None, "columns")]
        if len(columns) > 1 and not self.reading.settled:
            self._refuse_several("features", columns)
        return columns

    def _numbers(self, taken: set[str | None]) -> list[str]:
        free = [field for field in self.schema if field.name not in taken]
        return [field.name for field in free if layout_of(field.type) == "columns"]

    def _numbered(self, taken: set[str | None]) -> list[str]:
        """Return the columns that share a usual word and differ in a number, ordered by it."""
        by_word: dict[str, list[tuple[int, str]]] = {}
        for column in self._numbers(taken):
            if match := _NUMBERED.fullmatch(column):
                by_word.setdefault(match[1], []).append((int(match[2]), column))
        if len(by_word) > 1:
            self._refuse_several("features", [numbered[0][1] for numbered in by_word.values()])
        if not by_word:
            advice = self._advice([field for field in self.schema if field.name not in taken])
            raise DataError(
                f"{self.name}: no column for the features, looked for lists, maps or vectors "
                f"called {', '.join(map(repr, ROLES['features'].names))} and for numbers called "
                "'f0', 'f1', … Name it with --features NAME, or columns of numbers with --features "
                f'NAME,NAME,… or --features "*" ({self._there()}).{advice}'
            )
        [columns] = by_word.values()
        return [column for _, column in sorted(columns)]

    def _advice(self, fields: Sequence[pa.Field]) -> str:
        """Say how columns of any kinds become features, by those that are there."""
        specs = [spec for field in fields if (spec := likely_spec(field.name, field.type))][:3]
        if not specs:
            return ""
        options = " ".join(f"--columns '{spec}'" for spec in specs)
        return (
            f" Columns of any kinds become features by {options}, documents by --text NAME; "
            f"streamtron inspect {self.name} says what each is good for."
        )

    def _expanded(self, asked: Iterable[str], taken: set[str | None]) -> list[str]:
        """Expand patterns to columns of numbers, in the file's order; names stay as they are."""
        names, numbers = set(self.schema.names), self._numbers(taken)
        columns: list[str] = []
        for pattern in asked:
            matching = [] if pattern in names else [n for n in numbers if fnmatchcase(n, pattern)]
            columns += matching or [pattern]
        return columns

    def _unknown(self, taken: set[str | None]) -> tuple[str, ...]:
        """Find columns that match what was asked for and are no features; refuse or count them."""
        layout, features = self.reading.settled, self.reading.features
        if layout is None or features is None:
            return ()
        if layout.asked is not None:
            candidates = self._expanded(layout.asked, taken)
        elif layout.layout == "columns":
            word = _word(features[0])
            candidates = [column for column in self._numbers(taken) if _word(column) == word]
        else:
            candidates = self._lists()
        known = {*features, *taken}
        present = set(self.schema.names)
        unknown = tuple(c for c in dict.fromkeys(candidates) if c not in known and c in present)
        if self.reading.unknown_features == "out_of_range":
            return unknown if layout.layout == "columns" else ()
        if unknown:
            raise DataError(
                f"{self.name}: {some(unknown)} would be features too, and {layout.by} has none of "
                "that name. All shards need the same columns: add them there, remove them here, or "
                "name those to read with --features NAME,NAME,…"
            )
        return ()

    def _layout(self, features: Sequence[str]) -> Layout:
        settled = self.reading.settled
        for column in features:
            field = self.schema.field(column)
            layout = layout_of(field.type)
            if layout is None:
                self._refuse_type("features", field)
            if settled is not None and layout != settled.layout:
                raise DataError(
                    f"{self.name}: {column!r} of type {field.type} holds "
                    f"{LAYOUTS[layout].words}, and the features are "
                    f"{LAYOUTS[settled.layout].words} in {settled.by}. All shards need one layout: "
                    "use streamtron convert for those that differ."
                )
            if len(features) > 1 and layout != "columns":
                raise DataError(
                    f"{self.name}: of {len(features)} columns of features {column!r} is of type "
                    f"{field.type}. Name one list, map or vector, or columns of numbers."
                )
        return cast(Layout, layout_of(self.schema.field(features[0]).type))

    def _check_pair(self, columns: Columns) -> None:
        """Refuse pairs that only their order tells apart, in another one than the settled."""
        pair, layout = ordered_pair(self.schema, columns), self.reading.settled
        if layout is not None and pair not in (None, layout.pair):
            expected = "told by their names" if layout.pair is None else some(layout.pair)
            raise DataError(
                f"{self.name}: the pairs in {columns.features[0]!r} are of {some(pair)}, in "
                f"{layout.by} they are {expected}. All shards need the same names in one order: "
                "call the fields index and value, or use streamtron convert."
            )

    def _values(self, columns: Columns) -> str | None:
        """Return the column of the values that belong to a list; None where all are 1."""
        named, layout = self.reading.values_column, self.reading.settled
        if named == "":
            return None
        without = layout is not None and named is None
        column = None if without else self._find("values", named, needed=named is not None)
        may_be = [f.name for f in self.schema if f.name != columns.label and may_be_values(f)]
        if layout is not None and without and may_be:
            raise DataError(
                f"{self.name}: {some(may_be)} may hold the values of the features, and there is "
                f"no such column in {layout.by}, where all values are 1. Add the values there, "
                'remove the column here, or say --values "" in the fit if all are 1.'
            )
        if column is None and may_be:
            # To take all values as 1 while they stand in a column not understood would be silent.
            raise DataError(
                f"{self.name}: features in the lists {columns.features[0]!r}, and no list of "
                "numbers of a usual name for their values. Name it with --values NAME, or say "
                f'--values "" if all are 1 ({self._there()}).'
            )
        return column

    def _check_settings(self, columns: Columns) -> None:
        reading, layout = self.reading, columns.layout
        where = f"{self.name}: the features in {columns.features[0]!r} are {LAYOUTS[layout].words}"
        if columns.have_names and reading.names is None:
            needed = "Names need columns: give --hash-bits N or --vocabulary FILE."
            raise SettingsError(f"{where}. {needed}")
        if reading.names is not None and not columns.have_names:
            raise SettingsError(
                f"{where}, which need neither --hash-bits nor --vocabulary. Leave them out, or "
                "name other features with --features NAME."
            )
        if reading.values_column and not layout.startswith("lists"):
            raise SettingsError(f"{where}, which hold their values. Leave --values out.")
        if reading.table_base == 1 and layout not in ("lists", "pairs", "map"):
            raise SettingsError(f"{where}, whose first column is 0. Give --index-base 0.")

    def _refuse_several(self, role: Role, columns: Sequence[str]) -> NoReturn:
        listed = " and ".join(map(repr, columns))
        if len({*columns}) == 1:
            listed = f"{len(columns)} columns {columns[0]!r}"
        raise DataError(
            f"{self.name}: {listed} could all be the {ROLES[role].words}. Say which "
            f"with --{role} NAME, a name that occurs once ({self._there()})."
        )

    def _refuse_type(self, role: Role, field: pa.Field, several_labels: bool = False) -> NoReturn:
        which = f"{self.name}: column {field.name!r} of type {field.type}"
        if several_labels:
            raise DataError(
                f"{which} holds several labels a row. Use --multilabel, or name a column of single "
                f"ones with --label NAME ({self._there()})."
            )
        advice = self._advice([field]) if role == "features" else ""
        raise DataError(
            f"{which} cannot be the {', which are '.join(ROLES[role][:2])}. Name another one "
            f"with --{role} NAME ({self._there()}).{advice}"
        )

    def _there(self) -> str:
        shown = [f"{field.name} {field.type}" for field in list(self.schema)[:MANY]]
        remainder = f", … {len(self.schema) - MANY} more" if len(self.schema) > MANY else ""
        return f"columns there: {', '.join(shown)}{remainder}"


def _word(column: str) -> str | None:
    """Return the part of a numbered column's name before its number, or None."""
    match = _NUMBERED.fullmatch(column)
    return match[1] if match else None
