"""Rows of arrays in memory, with the blocks and chunks of one shard of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.rows import COLUMN_MAX, NO_FACTS, Block, Chunk, Held, Label, ranges_of
from streamtron.data.blocks import (
    all_ones,
    block_borders,
    chunk_cutter,
    chunk_of,
    make_chunk,
    one_a_row,
    squares_of,
)
from streamtron.data.dataset import ranked
from streamtron.data.formats.layouts import stored
from streamtron.data.prepare import facts_of
from streamtron.data.row_batch import RowBatch, take_rows


def canonical(matrix: Any) -> Any:
    """Return a CSR matrix, or a copy, whose columns rise in each row and are named once. What scipy
    remembers of that is not asked: it does not hold any more where arrays were replaced."""
    anew = type(matrix)((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    if not anew.has_canonical_format:
        anew = anew.copy()
        anew.sum_duplicates()
    return anew


class MemoryData:
    """Rows of arrays that scikit-learn has validated; see ``core.rows.Data``.

    Parameters
    ----------
    X : shape (rows, columns), at least one row, finite in float32: an array, of which zeros are
        left out, or a scipy CSR matrix in canonical format, whose stored zeros are kept.
    codes : shape (rows,): of each row the place of its label among the ``labels``, an integer; or
        its target, float64.
    labels : the classes; none where there are targets.
    weights : shape (rows,): row weights, finite and ≥ 0; None = all 1.

    Attributes
    ----------
    held : the rows in memory; set to None, they are delivered as from a disk.

    Examples
    --------
    >>> data = MemoryData(np.array([[0, 2.5], [1, 0]]), np.array([0, 1]), ["spam", "ham"])
    >>> [chunk] = data.chunks()
    >>> chunk.rows.indices.tolist(), chunk.codes.tolist(), data.columns, data.numbers.tolist()
    ([1, 0], [0, 1], 2, [0, 1])
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
        self.numbers, indices = ranked(indices)
        own_weights = None if weights is None or all_ones(weights) else weights.copy()
        own_codes = codes.astype(np.float64 if codes.dtype.kind == "f" else np.int32)
        squares, firsts = squares_of(indptr, indices, values), one_a_row(indptr, values)
        self._batch = RowBatch(
            indptr,
            indices,
            values if firsts is None else firsts,
            own_codes,
            [*labels],
            own_weights,
            str,
            squares=squares,
            by_row=firsts is not None,
        )
        self.labels = self._batch.classes
        self.rows, self.nonzeros = self._batch.rows, self._batch.nonzeros
        self.columns, self.nonzeros_read = len(self.numbers), 0

        def block(start: int, stop: int) -> Block:
            return Block(start, stop - start, int(indptr[stop] - indptr[start]))

        self._chunks = [block(start, stop) for start, stop, _ in chunk_cutter().cuts(indptr)]
        facts = NO_FACTS._replace(label_weights=(0.0,) * len(labels))
        for chunk in self._chunks:  # summed as those of a shard
            rows = slice(chunk.first_row, chunk.first_row + chunk.rows)
            facts = facts.plus(facts_of(take_rows(self._batch, rows)))
        self.facts = facts._replace(by_row=self._batch.by_row)
        borders = [
            chunk.first_row + border
            for number, chunk in enumerate(self._chunks)
            for border in block_borders(chunk.rows, number)[:-1]
        ]
        self.blocks = tuple(block(*pair) for pair in pairwise([*borders, self.rows]))
        everything = make_chunk(self._batch, ((0, self.rows),))
        self.held: Held | None = Held(everything.rows, everything.squares)

    @property
    def readings(self) -> float:
        """Nonzeros delivered ÷ nonzeros in the data; 0 if there are none."""
        return self.nonzeros_read / self.nonzeros if self.nonzeros else 0.0

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        """Deliver the data once; see ``core.rows.Data``."""
        for group in order if order is not None else ((k,) for k in range(len(self._chunks))):
            ranges = ranges_of((self._chunks if order is None else self.blocks)[k] for k in group)
            chunk = chunk_of(self._batch, ranges)
            self.nonzeros_read += 0 if self.held else chunk.nonzeros
            yield chunk


def _csr_of(X: Any) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
    """Return copies of the arrays of X in CSR; of an array without its zeros."""
    from scipy import sparse

    if not sparse.issparse(X):
        indptr, columns, values, _ = stored(X)
        return indptr, columns, values.astype(np.float32)
    if X.nnz:
        least, most = X.indices.min(), X.indices.max()
        if not 0 <= least <= most <= COLUMN_MAX:
            raise DataError(f"X: columns from {least} to {most}: expected 0 to {COLUMN_MAX}.")
    return X.indptr.astype(np.int64), X.indices.astype(np.uint32), X.data.astype(np.float32)
