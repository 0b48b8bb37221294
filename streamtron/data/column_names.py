"""Keep the names of columns, and find them: words of documents, names of features that are hashed
or have a place in a vocabulary, columns of tables. A recipe knows those that it does not hash.

The file ``_names.parquet`` beside shards has a row for each name, with its ``column`` as the shards
number it, its ``sign``, -1 where values of the name are stored negated, and how often it occurs.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamtron.core.errors import DataError
from streamtron.core.feature_names import Hashing, Vocabulary
from streamtron.core.files import reading_from, regular, writing_to
from streamtron.core.limits import available_memory
from streamtron.core.sealed import canonical
from streamtron.data.discover import NAMES, ShardFile
from streamtron.data.formats.category_column import CategoryColumn
from streamtron.data.formats.layouts import LAYOUTS, Columns, Spot
from streamtron.data.formats.recipe_column import hashed
from streamtron.data.formats.recipe_words import spec_of
from streamtron.data.formats.tables import TableReader
from streamtron.data.formats.text_column import TextColumn
from streamtron.data.prefetch import prefetch
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.readers import open_reader

MOST = 1 << 19
"""Names that are kept, those that occur most often: while they are counted, up to three times as
many are in memory. Of more the rarest are dropped as they come, and ``count`` is what was seen
since."""

NAMES_SHARE = 16
"""Part of the memory that the characters of all names may have."""

SHOWN = 3
"""Names of one column that are shown."""

SCHEMA = pa.schema(
    {"column": pa.uint32(), "name": pa.large_string(), "sign": pa.int8(), "count": pa.int64()}
)

_NUMBERING = b"streamtron.numbering"
"""The key, among the schema's metadata, of what gave each name its column, as JSON."""

Counts = Counter[tuple[int, str]]
"""The place of a column of a recipe, 0 without one, and a name → how often it occurs."""


def names_of(shard: ShardFile, reading: ReaderConfig, threads: int = 1) -> Iterator[Counts]:
    """Read a shard for the names of its columns, and how often each occurs."""
    reader = open_reader(shard, reading, threads)
    assert isinstance(reader, TableReader)  # text has no names
    with closing(prefetch(lambda: reader.mapped(_names_in))) as parts:
        yield add_up(parts)


def add_up(parts: Iterable[Counts]) -> Counts:
    """Return the names of all parts that occur most often, the first of equals first."""
    total: Counts = Counter()
    for counts in parts:
        total.update(counts)
        if len(total) > 2 * MOST:
            total = Counter(dict(total.most_common(MOST)))
    return Counter(dict(total.most_common(MOST)))


def write_names(path: str, counts: Counts, reading: ReaderConfig, shift: int) -> None:
    """Write the names of columns that are numbered by ``reading`` and raised by ``shift``."""
    names, recipe = [name for _, name in counts], reading.recipe
    signs, numbering = np.ones(len(names)), _numbering(reading, int(reading.index_base) + shift)
    schema = SCHEMA.with_metadata({_NUMBERING: canonical(numbering)})
    if recipe is not None:
        columns, places = np.zeros(len(names), np.int64), np.array([k for k, _ in counts])
        for k, column in enumerate(recipe.columns):
            here, signed = np.flatnonzero(places == k), getattr(column, "alternate_sign", False)
            if (bits := getattr(column, "hash_bits", None)) is not None:
                columns[here], signs[here] = hashed([names[at] for at in here], bits, signed)
                columns[here] += recipe.starts[k]
    else:
        columns = (reading.names or Vocabulary(reading.features or ())).columns(names) + shift
    given = zip((columns, names, signs, [*counts.values()]), schema.types, strict=True)
    table = pa.table([pa.array(array, kind) for array, kind in given], schema=schema)
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
        self._numberings = [json.loads(table.schema.metadata[_NUMBERING]) for table in tables]
        joined = pa.concat_tables([table.replace_schema_metadata() for table in tables])
        self._table = _ranked(joined)
        self._columns = self._table["column"].to_numpy()

    def difference(self, reading: ReaderConfig) -> str:
        """Say what numbers a model's columns otherwise; "" where all is alike. A model of rows that
        are numbers does not know whether they were hashed."""
        expected = _numbering(reading, int(reading.index_base))
        for numbering in self._numberings:
            for name in ("recipe", *expected):
                if (its := numbering.get(name)) != (ours := expected.get(name)):
                    return f"{name} is {its!r:.60}, the model has {ours!r:.60}"
        return ""

    def get(self, column: int, value: float = 0.0) -> tuple[str, int] | None:
        """Return the names of a column that occur most often, and the sign with which values of the
        first are stored, which is that of ``value`` if one has it; ``opposite:`` is before names
        that are stored with the other sign. None where no name is known."""
        start, stop = np.searchsorted(self._columns, [column, column + 1])
        rows = self._table.slice(start, stop - start).to_pylist()
        if not rows:
            return None
        rows.sort(key=lambda row: row["sign"] * value < 0)
        sign = rows[0]["sign"]
        names = [f"{'' if row['sign'] == sign else 'opposite: '}{row['name']}" for row in rows]
        return " | ".join(list(dict.fromkeys(names))[:SHOWN]), sign


def _load(path: str) -> pa.Table:
    file = os.path.join(path, NAMES) if os.path.isdir(path) else path
    try:
        how: Any = {"page_checksum_verification": True, "read_dictionary": ["name"]}
        with (
            reading_from(file),
            open(file, "rb", opener=regular) as stream,
            pq.ParquetFile(stream, **how) as opened,
        ):
            if (rows := opened.metadata.num_rows) > 2 * MOST:
                raise ValueError(f"{rows:,} rows, and at most {2 * MOST:,} are kept")
            table = opened.read()
        names = table["name"].chunks  # equal ones take memory once, as yet
        sizes = (pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)) for chunk in names)
        if sum(size.as_py() or 0 for size in sizes) > available_memory() // NAMES_SHARE:
            raise ValueError("names that are longer than memory allows")
        table = table.cast(SCHEMA.with_metadata(table.schema.metadata))
        table.validate(full=True)
        signs = {*table["sign"].unique().to_pylist()}
        if any(array.null_count for array in table) or signs - {1, -1}:
            raise ValueError("a value that is missing, or a sign that is not 1 or -1")
        if not isinstance(json.loads(table.schema.metadata[_NUMBERING]), dict):
            raise ValueError("nothing about how columns are numbered")
    except (pa.ArrowException, TypeError, LookupError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file}: not the names that convert keeps ({error}). Name the directory with them."
        ) from error
    return table


def _numbering(reading: ReaderConfig, first: int) -> dict[str, Any]:
    """Return what decides which name has which column, as plain values: the recipe, the hash or
    the vocabulary, and the number of the first column; of a model of numbers the latter alone."""
    numbering: dict[str, Any] = {"index_base": first}
    if reading.recipe is not None:
        plain: Any = {"norm": "l2", "binary": False, "tfidf": False, "sublinear_tf": False}
        numbering["recipe"] = [
            spec_of(replace(column, **plain) if isinstance(column, TextColumn) else column)
            for column in reading.recipe.columns
        ]
    elif isinstance(reading.names, Hashing):
        numbering |= {"hash_bits": reading.names.bits, "hash_seed": reading.names.seed}
    elif reading.names is not None or reading.layout == "columns":
        numbering["vocabulary"] = (reading.names or Vocabulary(reading.features or ())).digest
    return numbering


def _ranked(table: pa.Table) -> pa.Table:
    return table.sort_by([("column", "ascending"), ("count", "descending"), ("name", "ascending")])


def _names_in(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Counts:
    if columns.recipe is not None:
        counts: Counts = Counter()
        for k, column in enumerate(columns.recipe.columns):
            array = batch.column(column.name)
            if isinstance(column, TextColumn) and column.hashes:
                counts.update(_occurrences(k, column.words(array, spot)))
            elif isinstance(column, CategoryColumn) and column.hashes:
                tally = column.tally(array, spot).counts
                counts.update({(k, f"{column.name}={value}"): n for value, n in tally.items()})
        return counts
    if columns.layout == "columns":
        return Counter({(0, name): len(batch) for name in columns.features})
    if not columns.have_names:
        raise DataError(
            f"{spot.name}: features that are numbered, and have no names to be kept. Convert what "
            "they were made of."
        )
    return _occurrences(0, LAYOUTS[columns.layout].read(batch, columns, spot).columns)


def _occurrences(k: int, names: pa.Array) -> Counts:
    strings, counts = names.value_counts().flatten()
    pairs = zip(strings.to_pylist(), counts.to_pylist(), strict=True)
    return Counter({(k, name): count for name, count in pairs})
