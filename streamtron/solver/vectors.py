"""Vectors on some of many columns: by their nonzeros, as idle learners and files hold them, or on
the columns that occur in some rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.rows import Rows, make_rows

LONGEST = (1 << 32) + 1
"""Numbers of a vector: one a column, and the bias."""

AT_A_TIME = 1 << 22
"""Nonzeros whose columns are numbered anew at a time: numpy copies them at 8 bytes."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SparseVector:
    """A vector of ``length`` numbers, by the ``values`` at its ``columns``, uint32 and rising; all
    others are 0. ValueError: it is none.

    Examples
    --------
    >>> vector = SparseVector.of(np.array([0.0, 0.0, 0.5]))
    >>> vector.columns.tolist(), vector.values.tolist(), len(vector), vector.dense().tolist()
    ([2], [0.5], 3, [0.0, 0.0, 0.5])
    """

    columns: NDArray[np.uint32]
    values: Vector
    length: int

    def __post_init__(self) -> None:
        columns, values = self.columns, self.values
        right = columns.dtype == np.uint32 and values.dtype == np.float64
        if not (right and columns.shape == values.shape == (len(values),)):
            raise ValueError("columns and values of another kind or length")
        if (columns[1:] <= columns[:-1]).any():
            raise ValueError("columns that do not rise")
        last = int(columns[-1]) if len(columns) else -1
        if not last < self.length <= LONGEST:
            raise ValueError("columns that are not there")

    @classmethod
    def of(cls, vector: Vector, columns: NDArray[np.uint32] | None = None) -> SparseVector:
        """Return a vector by its nonzeros; ``columns`` : an array to share, if it has just them."""
        nonzero = np.flatnonzero(vector != 0.0).astype(np.uint32)
        if columns is None or not np.array_equal(nonzero, columns):
            columns = nonzero
        return cls(columns, vector[columns], len(vector))

    def __len__(self) -> int:
        return self.length

    def dense(self) -> Vector:
        """Return all numbers, shape (length,)."""
        vector = np.zeros(self.length)
        vector[self.columns] = self.values
        return vector


def smaller(vector: Vector, columns: NDArray[np.uint32] | None = None) -> Vector | SparseVector:
    """Return a vector by its nonzeros (see ``SparseVector.of``) where that takes fewer bytes."""
    if 3 * np.count_nonzero(vector != 0.0) >= 2 * len(vector):
        return vector
    return SparseVector.of(vector, columns)


def dense(vector: Vector | SparseVector) -> Vector:
    """Return all numbers of a vector."""
    return vector.dense() if isinstance(vector, SparseVector) else vector


def cut(vector: Vector | SparseVector, length: int) -> Vector | SparseVector:
    """Return the first numbers of a vector, in arrays of its own."""
    if isinstance(vector, SparseVector):
        stop = int(np.searchsorted(vector.columns, length))
        columns, values = vector.columns[:stop].copy(), vector.values[:stop].copy()
        return SparseVector(columns, values, min(length, len(vector)))
    return vector[:length].copy()


def resized(v: Vector, columns: int) -> Vector:
    """Return a copy of an augmented vector with so many columns, 0 where it has none: the bias
    stays the last number."""
    wide, common = np.zeros(columns + 1), min(columns, len(v) - 1)
    wide[:common], wide[-1] = v[:common], v[-1]
    return wide


def is_vector(vector: Any, length: int) -> bool:
    """Return whether something is a vector of so many numbers."""
    if isinstance(vector, SparseVector):
        return len(vector) == length
    return bool(vector.dtype == np.float64 and vector.shape == (length,))


class ColumnSubset:
    """The ``columns`` (rising) of ``width`` ones, numbered anew in their order.

    Sums over columns run from the first to the last, and one that is left out would add 0: a solve
    on those that occur finds the same bits.
    """

    def __init__(self, columns: NDArray[np.int64], width: int) -> None:
        self.columns, self.width = columns, width

    @property
    def places(self) -> NDArray[np.int64]:
        """The places of these columns, and of the bias, in an augmented vector of all."""
        return np.append(self.columns, self.width)

    def find(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places among these of those that are in ``columns``."""
        return np.flatnonzero(np.isin(self.columns, columns))

    def widen(self, v: Vector) -> Vector:
        """Return an augmented vector on these columns as one on all, 0 elsewhere."""
        wide = np.zeros(self.width + 1)
        wide[self.places] = v
        return wide

    def renumber(self, rows: Rows) -> Rows:
        """Return rows with these columns' new numbers, without any others that they have."""
        numbers = np.full(self.width, len(self.columns), dtype=np.uint32)
        numbers[self.columns] = np.arange(len(self.columns), dtype=np.uint32)
        first, last = rows.indptr[0], rows.indptr[-1]
        indices, values = np.empty(last - first, dtype=np.uint32), rows.values[first:last]
        for start in range(0, len(indices), AT_A_TIME):
            stretch = slice(start, start + AT_A_TIME)
            indices[stretch] = numbers[rows.indices[first:last][stretch]]
        inside, indptr = indices < len(self.columns), rows.indptr - first
        if not inside.all():
            indptr = np.append(0, np.cumsum(inside))[indptr]
            indices, values = indices[inside], values[inside]
        return make_rows(indptr, indices, values)


def mark_columns(rows: Rows, marks: NDArray[np.bool_]) -> None:
    """Set the marks of columns that occur in rows, in place."""
    if marks.all():  # as they often are of dense rows
        return
    for start in range(int(rows.indptr[0]), int(rows.indptr[-1]), AT_A_TIME):
        marks[rows.indices[start : min(start + AT_A_TIME, int(rows.indptr[-1]))]] = True
