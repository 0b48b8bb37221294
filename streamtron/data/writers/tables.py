"""Write results as Parquet: a table in memory, or predictions, which are streamed."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamtron.core.rows import Label

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
    predictions: Iterable[tuple[NDArray[Any], NDArray[np.float64]]],
    classes: Sequence[Label],
    *,
    multilabel: bool = False,
) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file of predictions, with page checksums.

    Columns are ``label`` and ``decision``; where decisions are of many classes ``decisions``, a
    list in the order of the classes, and where a row has many labels ``labels``, a list.

    A pair of ``predictions`` is the labels and the decisions of consecutive rows; decisions have
    the shape (rows,) or (rows, K), labels come from ``classes``, or are ``multilabel`` tuples.
    """
    kind = pa.array(classes).type

    def table(labels: NDArray[Any], decisions: NDArray[np.float64]) -> pa.Table:
        first = pa.array(labels.tolist(), pa.list_(kind)) if multilabel else pa.array(labels, kind)
        columns = {"labels" if multilabel else "label": first}
        if decisions.ndim == 1:
            return pa.table({**columns, "decision": decisions})
        ends = np.arange(0, decisions.size + 1, decisions.shape[1], dtype=np.int32)
        lists = pa.ListArray.from_arrays(ends, decisions.ravel())
        return pa.table({**columns, "decisions": lists})

    return _parquet(_row_groups(table(*pair) for pair in predictions))


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
