"""Write predictions as Parquet, streamed: the bytes of one file, part by part."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamtron.core.rows import Label

GROUP_ROWS = 1 << 16
"""Rows of a row group at least, but for the last one."""


def parquet_parts(
    predictions: Iterable[tuple[NDArray[Any], NDArray[np.float64]]],
    classes: Sequence[Label],
    *,
    multilabel: bool = False,
) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file of predictions, with page checksums.

    Columns are ``label`` and ``decision``; where decisions are of many classes ``decisions``, a
    list in the order of the classes, and where a row has many labels ``labels``, a list.

    Parameters
    ----------
    predictions : (labels, decisions) of consecutive rows, at least one pair; decisions of shape
        (rows,) or (rows, K); labels from ``classes``, or ``multilabel`` tuples of them.
    classes : all labels there may be, of one kind.

    Examples
    --------
    >>> parts = parquet_parts([(np.array([1.0, -1.0]), np.array([0.5, -2.0]))], [-1.0, 1.0])
    >>> pq.read_table(io.BytesIO(b"".join(parts))).to_pydict()
    {'label': [1.0, -1.0], 'decision': [0.5, -2.0]}
    """
    pipe = _Pipe()
    writer: pq.ParquetWriter | None = None
    kind = pa.array(classes).type
    for labels, decisions in _row_groups(predictions):
        columns = _decisions(decisions)
        if multilabel:
            columns = {"labels": pa.array(labels.tolist(), pa.list_(kind)), **columns}
        else:
            columns = {"label": pa.array(labels, kind), **columns}
        table = pa.table(columns)
        if writer is None:
            writer = pq.ParquetWriter(
                pipe, table.schema, compression="zstd", write_page_checksum=True
            )
        writer.write_table(table)
        yield pipe.take()
    if writer is not None:
        writer.close()
        yield pipe.take()


def _row_groups(
    predictions: Iterable[tuple[NDArray[Any], NDArray[np.float64]]],
) -> Iterator[tuple[NDArray[Any], NDArray[np.float64]]]:
    """Predictions joined until they fill a row group."""
    held: list[tuple[NDArray[Any], NDArray[np.float64]]] = []
    rows = 0
    for labels, decisions in predictions:
        held.append((labels, decisions))
        rows += len(labels)
        if rows >= GROUP_ROWS:
            yield _joined(held)
            held, rows = [], 0
    if held:
        yield _joined(held)


def _joined(
    parts: Sequence[tuple[NDArray[Any], NDArray[np.float64]]],
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    labels, decisions = zip(*parts, strict=True)
    return np.concatenate(labels), np.concatenate(decisions)


def _decisions(decisions: NDArray[np.float64]) -> dict[str, Any]:
    if decisions.ndim == 1:
        return {"decision": pa.array(decisions)}
    ends = np.arange(0, decisions.size + 1, decisions.shape[1], dtype=np.int32)
    return {"decisions": pa.ListArray.from_arrays(ends, decisions.ravel())}


class _Pipe(io.RawIOBase):
    """A file whose written bytes are taken from time to time."""

    def __init__(self) -> None:
        self._held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._held += data
        return len(memoryview(data))

    def take(self) -> bytes:
        """Take what was written since the last time."""
        part = bytes(self._held)
        self._held.clear()
        return part
