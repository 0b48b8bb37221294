"""Keep the names of columns, and find them: words of documents, names of features that are hashed
or have a place in a vocabulary, columns of tables.

The file ``_names.parquet`` beside shards has a row for each name, with its ``column`` as the shards
number it, its ``sign``, -1 where values of the name are stored negated, and how often it occurs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamtron.core.errors import DataError
from streamtron.core.feature_names import Vocabulary
from streamtron.core.files import reading_from, regular
from streamtron.core.sealed import canonical
from streamtron.data.discover import NAMES, ShardFile
from streamtron.data.disk import writing_to
from streamtron.data.formats.columns import recipe_in
from streamtron.data.formats.layouts import LAYOUTS, Columns, Spot, decoded
from streamtron.data.formats.text_recipe import RECIPE_KEY, TextRecipe, is_string
from streamtron.data.prefetch import prefetch
from streamtron.data.row_batch import Reading
from streamtron.data.source import table_reader

MOST = 1 << 19
"""Names that are kept, those that occur most often: while they are counted, up to three times as
many are in memory. Of more the rarest are dropped as they come, and ``count`` is what was seen
since."""

SHOWN = 3
"""Names of one column that are shown."""

SCHEMA = pa.schema(
    {"column": pa.uint32(), "name": pa.large_string(), "sign": pa.int8(), "count": pa.int64()}
)

Counts = tuple[dict[str, int], dict[str, int]]
"""How often names of features, or words, occur, and names of columns beside documents."""

Occurrences = tuple[bool, Sequence[str], Sequence[int]]
"""Whether these names are of columns beside documents, the names, and how often each occurs."""


def names_of(shard: ShardFile, reading: Reading, threads: int = 1) -> Iterator[Counts]:
    """Read a shard for the names of its columns, and how often each occurs."""
    reader = table_reader(shard, reading, threads=threads)
    counts: Counts = ({}, {})
    with closing(prefetch(lambda: reader.mapped(_names_in))) as parts:
        for beside, names, numbers in chain.from_iterable(parts):
            _add(counts[beside], zip(names, numbers, strict=True))
    yield _most(counts[0]), _most(counts[1])


def add_up(shards: Iterable[Counts]) -> Counts:
    """Return the names of all shards that occur most often."""
    total: Counts = ({}, {})
    for counts in shards:
        for own, more in zip(total, counts, strict=True):
            _add(own, more.items())
    return _most(total[0]), _most(total[1])


def write_names(path: str, counts: Counts, reading: Reading, shift: int) -> None:
    """Write the names of columns that are numbered by ``reading`` and raised by ``shift``."""
    names, recipe = [*counts[0], *counts[1]], reading.text
    signs, schema = np.ones(len(names)), SCHEMA
    if recipe is not None:
        columns, signs = recipe.hashed(names)
        columns[len(counts[0]) :] += 1 << recipe.hash_bits
        schema = schema.with_metadata({RECIPE_KEY: _plain(recipe)})
    else:
        columns = (reading.names or Vocabulary(reading.features or ())).columns(names) + shift
    numbers = [*counts[0].values(), *counts[1].values()]
    arrays = (columns, names, signs, numbers)
    table = pa.table(
        [pa.array(one, kind) for one, kind in zip(arrays, schema.types, strict=True)], schema=schema
    )
    with writing_to(path, "Choose another directory."):
        pq.write_table(_ranked(table), path, compression="zstd", write_page_checksum=True)


class ColumnNames:
    """The names of columns, from directories that ``convert`` wrote with names, or their files.

    Raises
    ------
    DataError : nothing there, or something else.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        tables = list(map(_load, paths))
        self.recipes = [recipe_in(table.schema, NAMES) for table in tables]
        """by which documents became rows, of each path"""
        joined = pa.concat_tables([table.replace_schema_metadata() for table in tables])
        self._table = _ranked(joined)
        self._columns = self._table["column"].to_numpy()

    def fit(self, recipe: TextRecipe | None) -> bool:
        """Tell whether the columns are numbered as by a model's recipe of documents."""
        wanted = recipe and (recipe.hash_bits, bool(recipe.columns))
        return all((one and (one.hash_bits, bool(one.columns))) == wanted for one in self.recipes)

    def get(self, column: int) -> str | None:
        """Return the names of a column that occur most often, with (-) before one whose values are
        negated; None where none is known."""
        start, stop = np.searchsorted(self._columns, [column, column + 1])
        rows = self._table.slice(start, stop - start).to_pylist()
        found = [f"{'(-)' if row['sign'] < 0 else ''}{row['name']}" for row in rows]
        return " | ".join(list(dict.fromkeys(found))[:SHOWN]) or None


def _load(path: str) -> pa.Table:
    file = os.path.join(path, NAMES) if os.path.isdir(path) else path
    with reading_from(file), open(file, "rb", opener=regular) as opened:
        try:
            table = pq.read_table(opened, page_checksum_verification=True, partitioning=None)
        except pa.ArrowException as error:
            raise DataError(f"{file}: not the names that convert keeps ({error}).") from error
    if not table.schema.equals(SCHEMA):
        raise DataError(f"{file}: not the names that convert keeps. Name the directory with them.")
    return table


def _ranked(table: pa.Table) -> pa.Table:
    by = [("column", "ascending"), ("count", "descending"), ("name", "ascending")]
    return table.sort_by(by)


def _names_in(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> list[Occurrences]:
    """Return the names in some rows."""
    if columns.recipe is not None:
        words = columns.recipe.words(batch.column(columns.recipe.text))
        beside = [_beside(name, batch.column(name)) for name in columns.recipe.columns]
        return [_occurrences(words), *beside]
    if columns.layout == "columns":
        return [(False, columns.features, [len(batch)] * len(columns.features))]
    if not columns.have_names:
        raise DataError(
            f"{spot.name}: features that are numbered, and have no names to be kept. Convert what "
            "they were made of."
        )
    return [_occurrences(LAYOUTS[columns.layout.split()[0]](batch, columns, spot).columns)]


def _beside(name: str, array: pa.Array) -> Occurrences:
    """Count the names of a column beside documents: its own, or one for each string in it."""
    array = decoded(array)
    if not is_string(array.type):
        return True, [name], [len(array)]
    _, strings, counts = _occurrences(array)
    return True, [f"{name}={value}" for value in strings], counts


def _occurrences(names: pa.Array) -> Occurrences:
    strings, counts = names.value_counts().flatten()
    return False, strings.to_pylist(), counts.to_pylist()


def _add(counts: dict[str, int], more: Iterable[tuple[str, int]]) -> None:
    for name, count in more:
        counts[name] = counts.get(name, 0) + count
    if len(counts) > 2 * MOST:
        kept = _most(counts)
        counts.clear()
        counts.update(kept)


def _most(counts: dict[str, int]) -> dict[str, int]:
    """Return the names that occur most often, the first of equals first."""
    return dict(sorted(counts.items(), key=itemgetter(1), reverse=True)[:MOST])


def _plain(recipe: TextRecipe) -> str:
    return canonical(recipe.to_dict() | {"documents": 0, "frequencies": None})
