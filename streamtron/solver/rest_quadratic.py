"""All rows outside memory as one quadratic, where columns are few."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows, make_rows
from streamtron.solver import passes
from streamtron.solver.passes import Vector


class QuadraticSums(NamedTuple):
    """G, g and c of an ``Outside`` on all columns, and Σ q_k of the rows inside the margin."""

    gram: Vector
    linear: Vector
    constant: float
    squares: float


NO_QUADRATIC = QuadraticSums(np.zeros((0, 0)), np.zeros(0), 0.0, 0.0)


class Outside:
    """Σ C_k (1 − l_k (x_k, ρ)·v)² = ½ uᵀ G u − g·u + c over rows that are not in memory; u are the
    weights of the columns met so far, and the bias."""

    def __init__(self, v: Vector, known: float) -> None:
        self.v = v  # augmented weights at scale 1, at which rows are judged
        self.known = known  # the P proven before
        self.columns = np.zeros(0, dtype=np.int64)  # those met, rising
        self.gram = np.zeros((1, 1))  # G; its upper triangle as of the last ``mirror``
        self.linear = np.zeros(1)
        self.constant = 0.0
        self.reach = math.inf  # a row is held only if |1 − y·v| is at most this
        self.squares = 0.0  # Σ q_k of all rows inside the margin

    @property
    def there(self) -> NDArray[np.int64]:
        """The places of u in v."""
        return np.append(self.columns, len(self.v) - 1)

    def widen(self, columns: int) -> None:
        """Make room for so many columns in v."""
        self.v = np.concatenate((self.v[:-1], np.zeros(columns + 1 - len(self.v)), self.v[-1:]))

    def meet(self, rows: Rows, most: float = math.inf) -> bool:
        """Make room for the columns of rows in G and g, unless u had more than ``most`` weights
        then, of which G is a square; whether there is room."""
        new = np.zeros(len(self.v), dtype=bool)
        new[rows.indices[rows.indptr[0] : rows.indptr[-1]]] = True
        new[self.columns] = False
        found = np.flatnonzero(new)
        if len(self.linear) + len(found) > most:
            return False
        if len(found):
            at = np.searchsorted(self.columns, found)
            self.columns = np.insert(self.columns, at, found)
            self.linear = np.insert(self.linear, at, 0.0)
            self.gram = np.insert(np.insert(self.gram, at, 0.0, axis=0), at, 0.0, axis=1)
        return True

    def narrowed(self, rows: Rows) -> Rows:
        """Number the columns of rows by their places in u."""
        places = np.zeros(len(self.v), dtype=np.uint32)
        places[self.columns] = np.arange(len(self.columns))
        first, last = rows.indptr[0], rows.indptr[-1]
        indices, values = rows.indices[first:last], rows.values[first:last]
        return make_rows(rows.indptr - first, places[indices], values)

    def add(self, rows: Rows, signs: NDArray[np.int8], cost: Vector, rho: float) -> None:
        """Add rows whose columns have been met, each with its C_k; 0 leaves one out."""
        places = np.full(len(self.v), -1)
        places[self.there] = np.arange(len(self.linear))
        passes.gram_block(rows, 2.0 * cost, rho, places, self.gram)
        linear = np.zeros(len(self.v))
        linear[self.there] = self.linear
        passes.add(kernels.combine, rows, 2.0 * cost * signs, rho, linear)
        self.linear = linear[self.there]
        self.constant += float(kernels.dot(cost, np.ones(len(cost))))

    def sums(self, columns: int) -> QuadraticSums:
        """Return G, g and the rest as numbers of so many columns, to be summed over parts."""
        gram, linear = np.zeros((columns + 1, columns + 1)), np.zeros(columns + 1)
        there = np.append(self.columns, columns)
        gram[np.ix_(there, there)], linear[there] = self.gram, self.linear
        return QuadraticSums(gram, linear, self.constant, self.squares)

    def take(self, sums: QuadraticSums) -> None:
        """Take the sums of all parts."""
        self.columns = np.arange(len(sums.linear) - 1)
        self.gram, self.linear = sums.gram, sums.linear
        self.constant, self.squares = sums.constant, sums.squares

    def mirror(self) -> None:
        """Make G symmetric: sums over rows go to the lower triangle alone."""
        for k, row in enumerate(self.gram):
            row[k + 1 :] = self.gram[k + 1 :, k]

    def product(self, u: Vector) -> Vector:
        """Return G u."""
        return np.array([kernels.dot(row, u) for row in self.gram])

    def value_and_gradient(self, u: Vector) -> tuple[float, Vector]:
        """Return the loss of these rows, and its gradient."""
        image = self.product(u)
        value = 0.5 * kernels.dot(image, u) - kernels.dot(self.linear, u) + self.constant
        return float(value), image - self.linear
