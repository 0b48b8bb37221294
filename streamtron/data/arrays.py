"""Read rows in memory as a ChunkSource, with the blocks and chunks of one shard of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.rows import COLUMN_MAX, Block, Chunk, Label, ranges_of
from streamtron.data.blocks import (
    all_ones,
    block_borders,
    chunk_cutter,
    make_block,
    make_chunk,
    squares_of,
)
from streamtron.data.row_batch import RowBatch, offsets_of, slice_batch


def canonical(matrix: Any) -> Any:
    """Return a CSR matrix, or a copy, whose columns rise in each row and are named once. What scipy
    remembers of that is not asked: it does not hold any more where arrays were replaced."""
    anew = type(matrix)((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    if not anew.has_canonical_format:
        anew = anew.copy()
        anew.sum_duplicates()
    return anew


class MemorySource:
    """A ``ChunkSource`` over arrays that scikit-learn has validated.

    Parameters
    ----------
    X : shape (rows, columns), at least one row, finite in float32: an array, of which zeros are
        left out, or a scipy CSR matrix in canonical format, whose stored zeros are kept.
    codes : shape (rows,): of each row the place of its label among the ``labels``, an integer; or
        its target, float64.
    labels : the classes; none where there are targets.
    weights : shape (rows,): row weights, finite and ≥ 0; None = all 1.

    Examples
    --------
    >>> source = MemorySource(np.array([[0, 2.5], [1, 0]]), np.array([0, 1]), ["spam", "ham"])
    >>> [chunk] = source.chunks()
    >>> chunk.rows.indices.tolist(), chunk.codes.tolist(), source.labels
    ([1, 0], [0, 1], ['spam', 'ham'])
    """

    index_base = bytes_read = 0

    def __init__(
        self,
        X: Any,
        codes: NDArray[np.integer] | NDArray[np.float64],
        labels: Sequence[Label],
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        indptr, indices, values = _csr_of(X)
        own_weights = None if weights is None else weights.copy()
        own_codes = codes.astype(np.float64 if codes.dtype.kind == "f" else np.int32)
        self._batch = RowBatch(
            indptr,
            indices,
            values,
            own_codes,
            list(labels),
            own_weights,
            str,
            squares=squares_of(indptr, indices, values),
        )
        self.labels = self._batch.classes
        self.rows, self.nonzeros = self._batch.rows, self._batch.nonzeros
        self.width = self._batch.width  # not the shape's, which may be larger

        def block(start: int, stop: int) -> Block:
            return Block(start, stop - start, int(indptr[stop] - indptr[start]))

        self._chunks = [block(start, stop) for start, stop, _ in chunk_cutter().cuts(indptr)]
        borders = [
            chunk.first_row + border
            for number, chunk in enumerate(self._chunks)
            for border in block_borders(chunk.rows, number)[:-1]
        ]
        self.blocks = tuple(block(*pair) for pair in pairwise([*borders, self.rows]))
        self.nonzeros_read = 0

    @property
    def readings(self) -> float:
        """Nonzeros delivered ÷ nonzeros in the data; 0 if there are none."""
        return self.nonzeros_read / self.nonzeros if self.nonzeros else 0.0

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        """Deliver the data once: in data order, a block at a time; or one chunk for each group of
        block numbers in ``order``, their rows concatenated."""
        for group in order if order is not None else ((k,) for k in range(len(self._chunks))):
            ranges = ranges_of((self._chunks if order is None else self.blocks)[k] for k in group)
            rows = make_block([slice_batch(self._batch, start, stop) for start, stop in ranges])
            if rows.weights is not None and all_ones(rows.weights):
                rows = rows._replace(weights=None)
            self.nonzeros_read += rows.nonzeros
            yield make_chunk(rows, ranges)


def _csr_of(X: Any) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
    """Return copies of the arrays of X in CSR; of an array without its zeros."""
    from scipy import sparse

    if not sparse.issparse(X):
        indptr = offsets_of(np.count_nonzero(X, axis=1))
        columns = np.broadcast_to(np.arange(X.shape[1], dtype=np.uint32), X.shape)
        if indptr[-1] == X.size:
            return indptr, columns.ravel(), X.astype(np.float32).ravel()
        present = X != 0
        return indptr, columns[present], X[present].astype(np.float32, copy=False)
    if X.nnz:
        least, most = X.indices.min(), X.indices.max()
        if not 0 <= least <= most <= COLUMN_MAX:
            raise DataError(f"X: columns from {least} to {most}. Wanted are 0 to {COLUMN_MAX}.")
    return X.indptr.astype(np.int64), X.indices.astype(np.uint32), X.data.astype(np.float32)
