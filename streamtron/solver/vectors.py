"""Vectors by their nonzeros: of learners that are not in training, and in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from streamtron.solver.learner import Learner


LONGEST = (1 << 32) + 1
"""Numbers of a vector: one a column, and the bias."""

PARTS = "{}.columns", "{}.values"
"""The arrays to which ``take_apart`` takes a vector."""

_PLACES = (
    ("running", "w"), ("best", "w"), ("best", "candidate"), ("best.average", "total"),
    ("frozen", "w"), ("frozen", "running"), ("frozen.scan_sums", "fresh"),
    ("frozen.scan_sums", "low"), ("outside", "v"),
)  # fmt: skip
"""Where a learner holds vectors of one number a column; frozen and outside may be None."""

IN_FIELDS = frozenset(name for _, name in _PLACES)
"""The names of these fields, in a checkpoint."""

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


def sparsify(learner: Learner) -> None:
    """Hold the vectors of a learner that is not in training by their nonzeros, where that takes
    fewer bytes. Vectors of the same columns share these."""
    columns: NDArray[np.uint32] | None = None
    done: dict[int, Vector | SparseVector] = {}  # one vector stays one
    for holder, name in _vectors(learner):
        vector = getattr(holder, name)
        if isinstance(vector, np.ndarray):
            found = done[id(vector)] if id(vector) in done else smaller(vector, columns)
            done[id(vector)] = found
            setattr(holder, name, found)
            if isinstance(found, SparseVector):
                columns = found.columns


def densify(learner: Learner) -> None:
    """Hold the vectors of a learner whole, as training needs them."""
    done: dict[int, Vector] = {}
    for holder, name in _vectors(learner):
        vector = getattr(holder, name)
        if isinstance(vector, SparseVector):
            if id(vector) not in done:
                done[id(vector)] = vector.dense()
            setattr(holder, name, done[id(vector)])


def bytes_held(learner: Learner) -> int:
    """Return how many bytes of vectors and counts a learner holds."""
    arrays: dict[int, NDArray[Any]] = {}
    for holder, name in _vectors(learner):
        vector = getattr(holder, name)
        if isinstance(vector, SparseVector):
            arrays |= {id(one): one for one in (vector.columns, vector.values)}
        elif vector is not None:
            arrays[id(vector)] = vector
    if learner.frozen is not None:
        arrays[-1] = learner.frozen.scan_sums.bins
    return sum(array.nbytes for array in arrays.values()) + learner.counts.nbytes


def _vectors(learner: Learner) -> Iterator[tuple[Any, str]]:
    """Yield where a learner holds vectors of one number a column: the object and the field."""
    for path, name in _PLACES:
        first, *_ = path.split(".")
        if getattr(learner, first) is not None:
            yield attrgetter(path)(learner), name


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
