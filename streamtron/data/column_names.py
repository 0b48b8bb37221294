"""Keep the names of columns, and find them: names of features that are hashed or have a place in a
vocabulary, and columns of tables.

The file ``_names.parquet`` beside shards has a row for each name, with its ``column`` as the shards
number it, and how often it occurs.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial
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
from streamtron.data.formats.layouts import LAYOUTS, Columns, Spot
from streamtron.data.prefetch import prefetch
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.readers import table_reader

MOST = 1 << 19
"""Names that are kept, those that occur most often: while they are counted, up to three times as
many are in memory. Of more the rarest are dropped as they come, and ``count`` is what was seen
since."""

NAMES_SHARE = 16
"""Part of the memory that the characters of all names may have."""

SHOWN = 3
"""Names of one column that are shown."""

SCHEMA = pa.schema({"column": pa.uint32(), "name": pa.large_string(), "count": pa.int64()})

_NUMBERING = b"streamtron.numbering"
"""The key, among the schema's metadata, of what gave each name its column, as JSON."""

Counts = Counter[str]
"""A name → how often it occurs."""


def names_of(shards: Iterable[ShardFile], reading: ReaderConfig, threads: int = 1) -> Counts:
    """Read shards for the names of their columns that occur most often, and how often each does."""
    total: Counts = Counter()
    for shard in shards:
        reader = table_reader(shard, reading, threads)
        with closing(prefetch(partial(reader.mapped, _names_in))) as parts:
            for counts in parts:
                total.update(counts)
                if len(total) > 2 * MOST:
                    total = Counter(dict(total.most_common(MOST)))
    return Counter(dict(total.most_common(MOST)))


def write_names(path: str, counts: Counts, reading: ReaderConfig, shift: int) -> None:
    """Write the names of columns that are numbered by ``reading`` and raised by ``shift``."""
    names, numbering = [*counts], _numbering(reading, int(reading.index_base) + shift)
    schema = SCHEMA.with_metadata({_NUMBERING: canonical(numbering)})
    columns = (reading.names or Vocabulary(reading.features or ())).columns(names) + shift
    given = zip((columns, names, [*counts.values()]), schema.types, strict=True)
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
            for name in expected:
                if (its := numbering.get(name)) != (ours := expected.get(name)):
                    return f"{name} is {its!r:.60}, the model has {ours!r:.60}"
        return ""

    def get(self, column: int) -> str | None:
        """Return the names of a column that occur most often; None where none is known."""
        start, stop = np.searchsorted(self._columns, [column, column + 1])
        names = self._table["name"].slice(start, stop - start).to_pylist()
        return " | ".join(list(dict.fromkeys(names))[:SHOWN]) or None


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
        if any(array.null_count for array in table):
            raise ValueError("a value that is missing")
        if not isinstance(json.loads(table.schema.metadata[_NUMBERING]), dict):
            raise ValueError("nothing about how columns are numbered")
    except (pa.ArrowException, TypeError, LookupError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file}: not the names that convert keeps ({error}). Name the directory with them."
        ) from error
    return table


def _numbering(reading: ReaderConfig, first: int) -> dict[str, Any]:
    """Return what decides which name has which column, as plain values: the hash or the vocabulary,
    and the number of the first column; of a model of numbers the latter alone."""
    numbering: dict[str, Any] = {"index_base": first}
    if isinstance(reading.names, Hashing):
        numbering |= {"hash_bits": reading.names.bits, "hash_seed": reading.names.seed}
    elif reading.names is not None or reading.layout == "columns":
        numbering["vocabulary"] = (reading.names or Vocabulary(reading.features or ())).digest
    return numbering


def _ranked(table: pa.Table) -> pa.Table:
    return table.sort_by([("column", "ascending"), ("count", "descending"), ("name", "ascending")])


def _names_in(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Counts:
    if columns.layout == "columns":
        return Counter({name: len(batch) for name in columns.features})
    if not columns.have_names:
        raise DataError(
            f"{spot.name}: features that are numbered, and have no names to be kept. Convert what "
            "they were made of."
        )
    names = LAYOUTS[columns.layout].read(batch, columns, spot).columns
    strings, counts = names.value_counts().flatten()
    return Counter(dict(zip(strings.to_pylist(), counts.to_pylist(), strict=True)))
