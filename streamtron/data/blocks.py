"""Join a shard's rows to blocks, whatever batches its reader delivers, and make blocks chunks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core import rows as chunk
from streamtron.core.rows import Chunk, Rows, freeze, make_rows
from streamtron.data.row_batch import RowBatch, offsets_of, take_rows

_AT_ONCE = 1 << 25
"""Bytes allocated at once, for several buffers: a large array comes in large pages."""
_ALIGNED = 64


class Buffers:
    """Reuse buffers for the rows of chunks: fresh memory takes longer to get than rows to be read.

    A buffer is reused only when no array in it is alive. For one thread.
    """

    def __init__(self) -> None:
        self._buffers: list[NDArray[np.uint8]] = []
        self._left = memoryview(b"")  # allocated and not yet given out

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return a free buffer of ``size`` bytes at least, or a new one in place of small ones."""
        free = [k for k in range(len(self._buffers)) if sys.getrefcount(self._buffers[k]) <= 2]
        for k in free:
            if len(self._buffers[k]) >= size:
                return self._buffers[k]
        size = (size + size // 8) // _ALIGNED * _ALIGNED + _ALIGNED
        if size > len(self._left):
            self._left = np.empty(max(size, _AT_ONCE), np.uint8).data
        buffer, self._left = self._left[:size], self._left[size:]
        self._buffers = [b for k, b in enumerate(self._buffers) if k not in free]
        # what is made of it refers to this buffer, not to the whole
        self._buffers.append(np.frombuffer(buffer, np.uint8))
        return self._buffers[-1]


class _ThreadBuffers(Buffers, threading.local):
    """Buffers for every thread its own."""


spare = _ThreadBuffers().take


def make_block(parts: Sequence[RowBatch]) -> RowBatch:
    """Join consecutive rows of a shard whose codes point into one table, and compute ‖x_k‖²; values
    and weights that are all 1 are left out. What is large lies in a spare buffer of this thread."""
    values = _or_ones([part.values for part in parts], [part.nonzeros for part in parts])
    indices = _in_spare([part.indices for part in parts])
    block = join_rows(parts, indices, None if values is None else _in_spare(values))
    return block._replace(squares=squares_of(block.indptr, block.indices, block.values))


def join_rows(
    parts: Sequence[RowBatch],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    *,
    by_row: bool = False,
) -> RowBatch:
    """Join rows whose columns and values are joined already, and whose places have no names."""
    weights = _or_ones([part.weights for part in parts], [part.rows for part in parts])
    offsets = [part.code_offsets for part in parts if part.code_offsets is not None]
    squares = [part.squares for part in parts if part.squares is not None]
    return RowBatch(
        _join_offsets([part.indptr for part in parts]),
        indices,
        values,
        np.concatenate([part.codes for part in parts]),
        parts[0].classes,
        None if weights is None else np.concatenate(weights),
        str,
        _join_offsets(offsets) if offsets else None,
        np.concatenate(squares) if len(squares) == len(parts) else None,
        by_row,
    )


def _or_ones(
    arrays: Sequence[NDArray[Any] | None], lengths: Sequence[int]
) -> list[NDArray[Any]] | None:
    """Return the arrays, with ones for those that are left out; None if all are ones."""
    stored = [array for array in arrays if array is not None and not all_ones(array)]
    if not stored:
        return None
    ones_of = partial(np.ones, dtype=stored[0].dtype)
    return [ones_of(n) if a is None else a for a, n in zip(arrays, lengths, strict=True)]


def _in_spare(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    size = sum(array.nbytes for array in arrays)
    joined: NDArray[Any] = spare(size)[:size].view(arrays[0].dtype)
    return np.concatenate(arrays, out=joined)


def _join_offsets(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return offsets_of(np.concatenate([np.diff(offsets) for offsets in parts]))


def squares_of(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    first: int = -1,
) -> NDArray[np.float64]:
    """Compute ‖x_k‖² of ``Rows``; ``values`` None = all are 1."""
    if values is None:
        return np.diff(indptr).astype(np.float64)
    squares = np.empty(len(indptr) - 1)
    kernels.squared_norms(make_rows(indptr, indices, values, first), squares)
    return squares


def all_ones(array: NDArray[np.floating]) -> bool:
    """Tell whether all are 1."""
    return bool((array[:64] == 1).all() and (array == 1).all())


def make_chunk(batch: RowBatch, ranges: tuple[tuple[int, int], ...]) -> Chunk:
    """Make rows with known ‖x_k‖² a chunk; ``ranges`` are their numbers in the whole data."""
    values, by_row = batch.values, batch.by_row or batch.values is None
    if values is None:
        values = np.ones(batch.rows, np.float32)
    rows = make_rows(batch.indptr, batch.indices, values, 0 if by_row else -1)
    assert batch.squares is not None
    optional = (batch.code_offsets, batch.weights)
    freeze(batch.codes, batch.squares, *(array for array in optional if array is not None))
    return Chunk(rows, batch.codes, ranges, batch.squares, batch.code_offsets, batch.weights)


def chunk_of(rows: RowBatch, ranges: tuple[tuple[int, int], ...]) -> Chunk:
    """Return the rows of some ranges as a chunk, as views where they are one range."""
    parts = [take_rows(rows, slice(*part)) for part in ranges]
    if len(parts) == 1:
        return make_chunk(parts[0], ranges)
    values = None
    if rows.values is not None:
        values = np.concatenate([part.values for part in parts if part.values is not None])
    indices = np.concatenate([part.indices for part in parts])
    return make_chunk(join_rows(parts, indices, values, by_row=rows.by_row), ranges)


def one_a_row(indptr: NDArray[np.int64], values: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return the value of each row, where those of a row are equal; else None. Of an empty row 1.

    >>> one_a_row(np.array([0, 2, 2, 3]), np.array([3.0, 3.0, 5.0], np.float32)).tolist()
    [3.0, 1.0, 5.0]
    """
    lengths = np.diff(indptr)
    if len(values) and values[0] != values[indptr[np.flatnonzero(lengths)[0] + 1] - 1]:
        return None
    firsts, some = np.ones(len(lengths), np.float32), lengths > 0
    firsts[some] = values[indptr[:-1][some]]
    bits = values.view(np.uint32)  # -0 is another value than 0
    return firsts if np.array_equal(np.repeat(firsts.view(np.uint32), lengths), bits) else None


class RowCutter:
    """Cut consecutive rows after so many rows, or after the row that fills so many nonzeros.

    Examples
    --------
    >>> cutter = RowCutter(4096, 1 << 20)
    >>> [list(cutter.cuts(np.zeros(3001, np.int64))) for _ in range(2)]
    [[(0, 3000, False)], [(0, 1096, True), (1096, 3000, False)]]
    """

    def __init__(self, rows: int, nonzeros: int) -> None:
        self._most_rows, self._most_nonzeros = rows, nonzeros
        self._rows = self._nonzeros = 0  # of the open group

    def cuts(self, indptr: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """Cut the next rows at the ends of groups: (start, stop, whether a group ends)."""
        start, rows = 0, len(indptr) - 1
        while start < rows:
            full = int(indptr[start]) + self._most_nonzeros - self._nonzeros
            by_nonzeros = int(np.searchsorted(indptr, full))
            stop = min(by_nonzeros, start + self._most_rows - self._rows, rows)
            yield start, stop, self.fill(stop - start, int(indptr[stop] - indptr[start]))
            start = stop

    def fill(self, rows: int, nonzeros: int) -> bool:
        """Add rows to the open group; return whether it ends with them."""
        self._rows += rows
        self._nonzeros += nonzeros
        ends = self._rows >= self._most_rows or self._nonzeros >= self._most_nonzeros
        if ends:
            self._rows = self._nonzeros = 0
        return ends


def chunk_cutter() -> RowCutter:
    """Cut a shard into chunks of 4,096 rows or 2²⁰ nonzeros, in which it is read in its order."""
    return RowCutter(chunk.BLOCK_ROWS, chunk.BLOCK_NONZEROS)


BLOCKS_OF_A_CHUNK, LEAST_ROWS, AS_MANY = 32, 128, 4
"""Blocks of each of a shard's first AS_MANY chunks, if they have LEAST_ROWS rows each; half as many
of each of the next AS_MANY, a quarter of the 2 · AS_MANY after them, and so on: few blocks of a
long shard are short."""


def block_borders(rows: int, number: int) -> list[int]:
    """Return where the blocks of a shard's chunk begin, and where the last one ends: the units that
    a later reading mixes. Those of a short shard are short, so that many fit in little memory.
    ``number`` : of the chunk in its shard.

    >>> [len(block_borders(4096, number)) - 1 for number in (0, 3, 4, 8, 16, 1000)]
    [32, 32, 16, 8, 4, 1]
    >>> block_borders(200, 0)
    [0, 100, 200]
    """
    most = BLOCKS_OF_A_CHUNK >> (number // AS_MANY).bit_length()
    blocks = max(1, min(most, -(-rows // LEAST_ROWS)))
    return [rows * k // blocks for k in range(blocks + 1)]


def cut_blocks(part: RowBatch, number: int) -> list[RowBatch]:
    """Cut the rows of a shard's chunk into its blocks, as views."""
    borders = block_borders(part.rows, number)
    return [take_rows(part, slice(*block)) for block in pairwise(borders)]


def has_one_value_a_row(rows: Rows) -> bool:
    """Tell whether the nonzeros of each row are equal."""
    return rows.by_row or one_a_row(rows.indptr - rows.indptr[0], rows.spread()) is not None
