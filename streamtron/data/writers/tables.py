"""Write results as Parquet: a table in memory, or predictions, which are streamed."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamtron.core.rows import Label
from streamtron.data.writers.predictions import Predictions, names_of

GROUP_ROWS = 1 << 16
"""Rows of a row group of predictions at least, but for the last one."""

_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def parquet_table(columns: Mapping[str, type], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a Parquet file with these columns, None as null, with page checksums.

    ``columns`` maps names to int, float, str or bool, in their order; a row has a value or None for
    every one of them.
    """
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    table = pa.table({name: [row[name] for row in rows] for name in columns}, schema=schema)
    return b"".join(_parquet([table]))


def parquet_predictions(
    predictions: Iterable[Predictions], classes: Sequence[Label]
) -> Iterator[bytes]:
    """Return the bytes of a Parquet file of predictions, piece by piece, with page checksums.

    The columns are those of a CSV table of them. Several labels a row are a list.
    """
    kind = pa.array(classes).type

    def column(values: NDArray[Any]) -> pa.Array:
        if values.dtype != object:
            return pa.array(values)
        several = isinstance(values[0], tuple)
        return pa.array(values.tolist(), pa.list_(kind) if several else kind)

    def table(rows: Predictions) -> pa.Table:
        columns = (field for values in rows.values() for field in values.reshape(len(values), -1).T)
        return pa.table([*map(column, columns)], [*names_of(rows, classes)])

    return _parquet(_row_groups(map(table, predictions)))


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join tables until they fill a row group."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(map(len, held)) >= GROUP_ROWS:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _parquet(groups: Iterable[pa.Table]) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file, a row group at a time."""
    file = io.BytesIO()
    writer: pq.ParquetWriter | None = None
    for group in groups:
        writer = writer or pq.ParquetWriter(
            file, group.schema, compression="zstd", write_page_checksum=True
        )
        writer.write_table(group)
        yield file.getvalue()
        file.seek(0)
        file.truncate()
    if writer is not None:
        writer.close()
        yield file.getvalue()
