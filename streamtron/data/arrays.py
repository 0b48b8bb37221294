"""Read rows in memory as a ChunkSource, with the blocks and chunks of one shard of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.rows import Block, Chunk, Label, freeze, make_rows
from streamtron.data.blocks import all_ones, block_cutter, squares_of
from streamtron.data.row_batch import offsets_of

MOST_COLUMNS = 2**32 - 1


class MemorySource:
    """A ``ChunkSource`` over arrays that scikit-learn has validated.

    Parameters
    ----------
    X : shape (rows, columns), at least one row, finite in float32: an array, of which zeros are
        left out, or a scipy CSR matrix in canonical format, whose stored zeros are kept.
    codes : shape (rows,): of each row the place of its label among the ``labels``.
    labels : the classes.
    weights : shape (rows,): row weights, finite and ≥ 0; None = all 1.

    Attributes
    ----------
    labels : the classes.
    width : 1 + the largest column number that a row holds (not the shape's, if that is larger).
    blocks : the blocks of the data.
    nonzeros_read : nonzeros delivered so far.

    Raises
    ------
    DataError : a column number that is negative or too large.

    Examples
    --------
    >>> source = MemorySource(np.array([[0, 2.5], [1, 0]]), np.array([0, 1]), ["spam", "ham"])
    >>> [chunk] = source.chunks()
    >>> chunk.rows.indices.tolist(), chunk.codes.tolist(), source.labels
    ([1, 0], [0, 1], ['spam', 'ham'])
    """

    index_base = 0
    """The number of the first column."""
    bytes_read = 0
    """Bytes fetched from disk: none."""

    def __init__(
        self,
        X: Any,
        codes: NDArray[np.integer],
        labels: Sequence[Label],
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self._indptr, self._indices, self._values = _csr(X)
        self.labels, self._codes = list(labels), codes.astype(np.int32)
        self._weights = None if weights is None else weights.copy()
        self.width = int(self._indices.max()) + 1 if len(self._indices) else 0
        freeze(self._indices, self._values, self._codes)
        self.blocks = tuple(
            Block(start, stop - start, int(self._indptr[stop] - self._indptr[start]))
            for start, stop, _ in block_cutter().cuts(self._indptr)
        )
        self._squares = np.concatenate([self._squares_of(block) for block in self.blocks])
        self.nonzeros_read = 0

    @property
    def rows(self) -> int:
        """Rows in the data."""
        return len(self._indptr) - 1

    @property
    def nonzeros(self) -> int:
        """Stored values in the data."""
        return len(self._indices)

    @property
    def readings(self) -> float:
        """Nonzeros delivered ÷ nonzeros in the data; 0 if there are none."""
        return self.nonzeros_read / self.nonzeros if self.nonzeros else 0.0

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        """Deliver the data once: in data order, a block at a time; or one chunk for each group of
        block numbers in ``order``, their rows concatenated."""
        for group in order if order is not None else ((k,) for k in range(len(self.blocks))):
            chunk = self._chunk([self.blocks[number] for number in group])
            self.nonzeros_read += chunk.nonzeros
            yield chunk

    def _chunk(self, blocks: Sequence[Block]) -> Chunk:
        ranges = tuple((block.first_row, block.first_row + block.rows) for block in blocks)
        spans = [(int(self._indptr[a]), int(self._indptr[b])) for a, b in ranges]
        lengths = [np.diff(self._indptr[a : b + 1]) for a, b in ranges]
        indptr = offsets_of(np.concatenate(lengths))
        rows = make_rows(indptr, _cut(self._indices, spans), _cut(self._values, spans))
        codes, squares = _cut(self._codes, ranges), _cut(self._squares, ranges)
        weights = None if self._weights is None else _cut(self._weights, ranges)
        if weights is not None and all_ones(weights):
            weights = None
        freeze(codes, squares, *(() if weights is None else (weights,)))
        return Chunk(rows, codes, ranges, squares, weights=weights)

    def _squares_of(self, block: Block) -> NDArray[np.float64]:
        indptr = self._indptr[block.first_row : block.first_row + block.rows + 1]
        return squares_of(indptr, self._indices, self._values)

    def close(self) -> None:
        """Nothing to do."""

    def __enter__(self) -> MemorySource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut(array: NDArray[Any], spans: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """Concatenate parts of an array; a single one is a view."""
    parts = [array[start:stop] for start, stop in spans]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _csr(X: Any) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
    """Row ends, columns and values, all copied."""
    from scipy import sparse

    matrix = X if sparse.issparse(X) else sparse.csr_array(X)
    if matrix.nnz and not 0 <= matrix.indices.min() <= matrix.indices.max() < MOST_COLUMNS:
        raise DataError(
            f"X: columns from {matrix.indices.min()} to {matrix.indices.max()}. Wanted are 0 to "
            f"{MOST_COLUMNS - 1}."
        )
    return (
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.uint32),
        matrix.data.astype(np.float32),
    )
