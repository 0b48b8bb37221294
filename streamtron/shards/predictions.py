"""Predictions as Parquet, streamed: the bytes of one file, part by part."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamtron.spread import regrouped

GROUP_ROWS = 1 << 16
"""Rows of a row group, however the predictions came."""


def parquet_parts(
    predictions: Iterable[tuple[NDArray[Any], NDArray[np.float64]]],
) -> Iterator[bytes]:
    """The bytes of a Parquet file with columns ``label`` and ``decision``, with page checksums.

    Parameters
    ----------
    predictions : (labels, decisions) of consecutive rows, at least one pair; labels float64, bool
        or strings, of the same kind in every pair.

    Examples
    --------
    >>> parts = parquet_parts([(np.array([1.0, -1.0]), np.array([0.5, -2.0]))])
    >>> pq.read_table(io.BytesIO(b"".join(parts))).to_pydict()
    {'label': [1.0, -1.0], 'decision': [0.5, -2.0]}
    """
    pipe = _Pipe()
    writer: pq.ParquetWriter | None = None
    for labels, decisions in regrouped(predictions, GROUP_ROWS):
        table = pa.table({"label": labels, "decision": decisions})
        if writer is None:
            writer = pq.ParquetWriter(
                pipe, table.schema, compression="zstd", write_page_checksum=True
            )
        writer.write_table(table)
        yield pipe.take()
    if writer is not None:
        writer.close()
        yield pipe.take()


class _Pipe(io.RawIOBase):
    """A file to write to whose bytes are taken away now and then; Arrow counts its place itself."""

    def __init__(self) -> None:
        self._held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._held += data
        return len(memoryview(data))

    def take(self) -> bytes:
        """What was written since the last time."""
        part = bytes(self._held)
        self._held.clear()
        return part
