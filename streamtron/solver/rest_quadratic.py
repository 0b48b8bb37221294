"""All rows outside memory as one quadratic, where columns are few."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows
from streamtron.solver import passes
from streamtron.solver.passes import Vector
from streamtron.solver.vectors import ColumnSubset, mark_columns


class QuadraticSums(NamedTuple):
    """G, g and c of an ``Outside`` on all columns, and Σ q_k of the rows with a curvature."""

    gram: Vector
    linear: Vector
    constant: float
    squares: float


NO_QUADRATIC = QuadraticSums(np.zeros((0, 0)), np.zeros(0), 0.0, 0.0)


@dataclass(slots=True)
class Expansion:
    """Where the last quadratic was expanded: at augmented weights ``v``, but for the rows that were
    held, of these numbers."""

    v: Vector
    held: NDArray[np.int64]


def mirror(gram: Vector) -> None:
    """Make a matrix symmetric: sums over rows go to the lower triangle alone."""
    for k, row in enumerate(gram):
        row[k + 1 :] = gram[k + 1 :, k]


class Outside:
    """Σ C_k φ(l_k (x_k, ρ)·v) ≈ ½ uᵀ G u − g·u + c over rows that are not in memory, by the
    expansion of φ at the margins where they were added; u are the weights of the columns met so
    far, and the bias.

    ``v`` : augmented weights at scale 1, at which rows are judged. ``known`` : the P proven before.
    ``chosen`` : the only columns whose weights may differ from 0, rising; None = those met.
    """

    fixed = False  # whether columns are chosen; an earlier checkpoint does not say

    def __init__(self, v: Vector, known: float, chosen: NDArray[np.int64] | None = None) -> None:
        self.v, self.known = v, known
        if chosen is not None:
            self.fixed = True
        self.columns = np.zeros(0, dtype=np.int64) if chosen is None else chosen
        size = len(self.columns) + 1
        self.gram = np.zeros((size, size))  # G; its upper triangle as of the last ``mirror``
        self.linear = np.zeros(size)
        self.constant = 0.0
        self.reach = math.inf  # a row is held only if its margin is at most so far from the bend
        self.squares = 0.0  # Σ q_k of all rows with a curvature

    @property
    def subset(self) -> ColumnSubset:
        """The columns of u among those of v."""
        return ColumnSubset(self.columns, len(self.v) - 1)

    def meet(self, rows: Rows, most: float = math.inf) -> bool:
        """Make room for the columns of rows in G and g, unless u had more than ``most`` weights
        then, of which G is a square; whether there is room."""
        if self.fixed:
            return True
        marks = np.zeros(len(self.v) - 1, dtype=bool)
        marks[self.columns] = True
        mark_columns(rows, marks)
        marks[self.columns] = False
        columns = np.flatnonzero(marks)
        if len(self.linear) + len(columns) > most:
            return False
        if len(columns):
            at = np.searchsorted(self.columns, columns)
            self.columns = np.insert(self.columns, at, columns)
            self.linear = np.insert(self.linear, at, 0.0)
            self.gram = np.insert(np.insert(self.gram, at, 0.0, axis=0), at, 0.0, axis=1)
        return True

    def add(
        self, rows: Rows, signs: NDArray[np.int8], cost: Vector, rho: float,
        terms: tuple[Vector, Vector, Vector],
    ) -> None:  # fmt: skip
        """Add rows whose columns have been met, each with its C_k (0 leaves one out) and its
        ``losses.expansion``."""
        curvature, slope, constant = terms
        u, places = self.subset.places, np.full(len(self.v), -1)
        places[u] = np.arange(len(self.linear))
        passes.add_gram(rows, cost * curvature, rho, places, self.gram)
        linear = self.subset.widen(self.linear)
        passes.add(kernels.combine, rows, cost * slope * signs, rho, linear)
        self.linear = linear[u]
        self.constant += float(kernels.dot(cost * constant, np.ones(len(cost))))

    def sums(self, columns: int) -> QuadraticSums:
        """Return G, g and the others as numbers of so many columns, to be summed over parts."""
        subset, gram = ColumnSubset(self.columns, columns), np.zeros((columns + 1, columns + 1))
        gram[np.ix_(subset.places, subset.places)] = self.gram
        return QuadraticSums(gram, subset.widen(self.linear), self.constant, self.squares)

    def take(self, sums: QuadraticSums) -> None:
        """Take the sums of all parts."""
        self.columns = np.arange(len(sums.linear) - 1)
        self.gram, self.linear, self.constant, self.squares = sums

    def product(self, u: Vector) -> Vector:
        """Return G u."""
        return np.array([kernels.dot(row, u) for row in self.gram])

    def value_and_gradient(self, u: Vector) -> tuple[float, Vector]:
        """Return the loss of these rows, and its gradient."""
        image = self.product(u)
        value = 0.5 * kernels.dot(image, u) - kernels.dot(self.linear, u) + self.constant
        return float(value), image - self.linear
