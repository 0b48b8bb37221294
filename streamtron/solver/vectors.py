"""Vectors by their nonzeros, as idle learners and files hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = (1 << 32) + 1
"""Numbers of a vector: one a column, and the bias."""

PARTS = "{}.columns", "{}.values"
"""The arrays to which ``take_apart`` takes a vector."""

Vector = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


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
        own = np.flatnonzero(vector).astype(np.uint32)
        if columns is not None and np.array_equal(own, columns):
            own = columns
        return cls(own, vector[own], len(vector))

    def __len__(self) -> int:
        return self.length

    def dense(self) -> Vector:
        """Return all numbers, shape (length,)."""
        found = np.zeros(self.length)
        found[self.columns] = self.values
        return found


def smaller(vector: Vector, columns: NDArray[np.uint32] | None = None) -> Vector | SparseVector:
    """Return a vector by its nonzeros (see ``SparseVector.of``) where that takes fewer bytes."""
    if 3 * np.count_nonzero(vector) >= 2 * len(vector):
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


def is_vector(found: Any, length: int) -> bool:
    """Return whether something is a vector of so many numbers."""
    if isinstance(found, SparseVector):
        return len(found) == length
    return bool(found.dtype == np.float64 and found.shape == (length,))


def take_apart(
    arrays: Mapping[str, NDArray[Any] | SparseVector],
) -> tuple[Arrays, dict[str, tuple[str, int]]]:
    """Take float64 vectors apart where that takes fewer bytes: into the columns that are not 0, as
    uint32, and their values. Vectors of the same columns share these. Returns the arrays, and of
    each vector taken apart the name of its columns and its length.

    Examples
    --------
    >>> found, sparse = take_apart({"w": np.array([0.0, 0.0, 0.5]), "v": np.ones(2)})
    >>> {name: array.tolist() for name, array in found.items()}, sparse
    ({'w.values': [0.5], 'w.columns': [2], 'v': [1.0, 1.0]}, {'w': ('w.columns', 3)})
    >>> {name: dense(array).tolist() for name, array in put_together(found, sparse).items()}
    {'v': [1.0, 1.0], 'w': [0.0, 0.0, 0.5]}
    """
    found: Arrays = {}
    sparse: dict[str, tuple[str, int]] = {}
    before, shared = np.zeros(0, np.uint32), ""
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype == np.float64:
            array = smaller(array)
        if not isinstance(array, SparseVector):
            found[name] = array
            continue
        columns, values = PARTS[0].format(name), PARTS[1].format(name)
        found[values] = array.values
        if not (shared and np.array_equal(array.columns, before)):
            found[columns], before, shared = array.columns, array.columns, columns
        sparse[name] = shared, len(array)
    return found, sparse


def put_together(
    arrays: Arrays, sparse: Mapping[str, Sequence[Any]]
) -> dict[str, NDArray[Any] | SparseVector]:
    """Put vectors together again, see ``take_apart``; LookupError or ValueError: they are none."""
    parts = {columns for columns, _ in sparse.values()} | {PARTS[1].format(n) for n in sparse}
    found: dict[str, NDArray[Any] | SparseVector]
    found = {name: array for name, array in arrays.items() if name not in parts}
    for name, (columns, length) in sparse.items():
        found[name] = SparseVector(arrays[columns], arrays[PARTS[1].format(name)], int(length))
    return found
