"""Vectors of one number a column, by their nonzeros: as files of states have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST = (1 << 32) + 1
"""Numbers of a vector: one a column, and the bias."""

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
    def of(cls, vector: Vector) -> SparseVector:
        """Return a vector by its nonzeros."""
        columns = np.flatnonzero(vector != 0.0).astype(np.uint32)
        return cls(columns, vector[columns], len(vector))

    def __len__(self) -> int:
        return self.length

    def dense(self) -> Vector:
        """Return all numbers, shape (length,)."""
        vector = np.zeros(self.length)
        vector[self.columns] = self.values
        return vector


def smaller(vector: Vector) -> Vector | SparseVector:
    """Return a vector by its nonzeros where that takes fewer bytes."""
    if 3 * np.count_nonzero(vector != 0.0) >= 2 * len(vector):
        return vector
    return SparseVector.of(vector)


def dense(vector: Vector | SparseVector) -> Vector:
    """Return all numbers of a vector."""
    return vector.dense() if isinstance(vector, SparseVector) else vector
