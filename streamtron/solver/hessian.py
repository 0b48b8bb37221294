"""H, the Hessian of P, where columns are few or heavy: that of all rows outside memory, as one
quadratic; that of rows in memory on its heaviest columns, to precondition conjugate gradients; and
what products with an earlier H tell."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows, Vector
from streamtron.solver import passes
from streamtron.solver.row_store import ColumnSubset

HEAD = 1000
"""Columns at most in the head, whose two matrices then take 16 MB (``second_order.py``)."""

PRODUCTS = 24
"""A head may cost as much as this many products Hv: without one, Newton's method makes 60 to 750
(``benchmarks/second_order.py``)."""

DIRECT = 64
"""As many if all columns are in the head: a Newton step then needs no products, a head that leaves
some columns out still needs dozens (``benchmarks/certified.py``, dense rows of 200 columns)."""

NONZERO = 2
"""Multiplications of a head's matrices that take as long as a nonzero of a product Hv: they run
along rows of a matrix, a product jumps (``benchmarks/second_order.py``)."""

PAIRS, PAIR_NUMBERS = 32, 1 << 25
"""Products kept at most, and how many numbers they may have together: 256 MB."""


class QuadraticSums(NamedTuple):
    """G, g and c of an ``Outside``."""

    gram: Vector
    linear: Vector
    constant: float


@dataclass(slots=True)
class Expansion:
    """Where the last quadratic was expanded: at augmented weights ``v``, without the rows that were
    held, which have these numbers."""

    v: Vector
    held: NDArray[np.int64]


def mirror(gram: Vector) -> None:
    """Make a matrix symmetric: sums over rows go to the lower triangle alone."""
    for k, row in enumerate(gram):
        row[k + 1 :] = gram[k + 1 :, k]


def multiply(gram: Vector, v: Vector) -> Vector:
    """Return G v, each number by a sum of its own."""
    return np.array([kernels.dot(row, v) for row in gram])


class Outside:
    """Σ C_k φ(l_k (x_k, ρ)·v) ≈ ½ uᵀ G u − g·u + c over rows that are not in memory, by the
    expansion of φ at the margins where they were added; u are the weights of some columns, and the
    bias.

    ``v`` : augmented weights, at which rows are judged. ``known`` : the P proven before.
    ``chosen`` : the only columns whose weights may differ from 0, rising; None = all.
    """

    def __init__(self, v: Vector, known: float, chosen: NDArray[np.int64] | None = None) -> None:
        self.v, self.known = v, known
        self.fixed = chosen is not None
        self.columns = np.arange(len(v) - 1) if chosen is None else chosen
        size = len(self.columns) + 1
        self.gram = np.zeros((size, size))  # G; its upper triangle as of the last ``mirror``
        self.linear = np.zeros(size)
        self.constant = 0.0
        self.reach = math.inf  # a row is held only if its margin is at most so far from the bend

    @property
    def subset(self) -> ColumnSubset:
        """The columns of u among those of v."""
        return ColumnSubset(self.columns, len(self.v) - 1)

    def add(
        self,
        rows: Rows,
        signs: NDArray[np.int8],
        cost: Vector,
        rho: float,
        terms: tuple[Vector, Vector, Vector],
    ) -> None:
        """Add rows, each with its C_k (0 leaves one out) and its ``losses.expansion``."""
        curvature, slope, constant = terms
        u, places = self.subset.places, np.full(len(self.v), -1)
        places[u] = np.arange(len(self.linear))
        passes.add_gram(rows, cost * curvature, rho, places, self.gram)
        linear = self.subset.widen(self.linear)
        passes.add(kernels.combine, rows, cost * slope * signs, rho, linear)
        self.linear = linear[u]
        self.constant += float(kernels.dot(cost * constant, np.ones(len(cost))))

    @property
    def sums(self) -> QuadraticSums:
        """Return G, g and c, to be summed over parts."""
        return QuadraticSums(self.gram, self.linear, self.constant)

    def take(self, sums: QuadraticSums, v: Vector | None = None) -> None:
        """Take the sums of all parts; ``v`` : and the weights at which rows are judged."""
        self.v = self.v if v is None else v.copy()
        self.gram, self.linear, self.constant = sums

    def product(self, u: Vector) -> Vector:
        """Return G u."""
        return multiply(self.gram, u)

    def value_and_gradient(self, u: Vector) -> tuple[float, Vector]:
        """Return the loss of these rows, and its gradient."""
        image = self.product(u)
        value = 0.5 * kernels.dot(image, u) - kernels.dot(self.linear, u) + self.constant
        return float(value), image - self.linear


class Head:
    """H on some ``columns`` (rising), factorised (Cholesky): exact there, while its diagonal has to
    do elsewhere."""

    def __init__(self, columns: NDArray[np.int64]) -> None:
        self.columns = columns
        self._factor = np.zeros((0, 0))

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def factorised(self) -> bool:
        """Whether it has columns, and their matrix is known."""
        return len(self._factor) > 0

    def factorise(self, gram: Vector) -> bool:
        """Factorise I plus a matrix on the columns; only its lower triangle is read. Where squares
        under- or overflow, drop the columns and return False."""
        self._factor = gram.copy()
        np.einsum("ii->i", self._factor)[:] += 1.0
        if kernels.factorise(self._factor, np.empty(len(self._factor))):
            return True
        self.columns, self._factor = self.columns[:0], self._factor[:0, :0]
        return False

    def solve(self, diagonal: Vector, residual: Vector) -> Vector:
        """Return r over the ``diagonal``, but on the columns what the matrix makes of r."""
        image = residual / diagonal
        if self.factorised:
            solution = residual[self.columns]
            kernels.solve_factorised(self._factor, solution)
            image[self.columns] = solution
        return image


class Hessian(Protocol):
    """H of P on rows in memory, and about its inverse; see ``Preconditioner``."""

    @property
    def exact(self) -> bool:
        """Whether the inverse is exact but for rounding."""

    def update(self, factors: Vector) -> None:
        """Take H of other curvatures, see ``HeldLoss.curvatures``."""

    def renew(self) -> bool:
        """Make the inverse better if that pays by now; whether it has been."""

    def product(self, v: Vector) -> Vector:
        """Return H v."""

    def solve(self, residual: Vector) -> Vector:
        """Return about H⁻¹ r."""


class Preconditioner:
    """An approximate inverse of H = I + Σ f_i (x_i, ρ)(x_i, ρ)ᵀ, for changing f_i ≥ 0; plus the
    Hessian of rows ``outside``, whose columns are then all in the head.

    The head is a set of ``head_of(classes)`` columns or fewer, those with the largest H_jj where it
    is chosen. Where all columns that occur are in it, the inverse is exact but for rounding.
    Otherwise the head is summed, and later updated by the rows whose f_i has changed, once the
    products made without have cost as much: rows that a few products solve never pay for it. Once
    all have cost as much as a head of all columns, that takes its place. Costs are in
    multiplications. Sums run in kernels, in one order.
    """

    def __init__(
        self,
        rows: Rows,
        rho: float,
        columns: int,
        outside: Outside | None = None,
        classes: int = 1,
    ) -> None:
        self._rows, self._rho, self._outside, self._most = rows, rho, outside, head_of(classes)
        self._lengths = np.diff(rows.indptr) + 1
        self._factors = np.zeros(len(self._lengths))
        self._summed = self._factors  # f of the head
        self._inside: passes.BlockSums  # over the rows with f_i > 0
        self._product_cost = 0.0  # multiplications of one product
        self._spent = self._made = 0.0  # by products: since the head was summed; by all
        self._cost = math.inf  # of summing the head of the f_i by now; ∞: nothing has changed
        self._direct = False  # whether the head was chosen to be exact
        self._later, self._later_cost = 0, 0.0  # columns of the head that takes its place; 0 = none
        self._diagonal = np.ones(columns + 1)
        self._head: Head | None = None
        self._places = np.full(columns + 1, -1)
        self._gram = np.zeros((0, 0))

    @property
    def exact(self) -> bool:
        """Whether all columns that occur are in the head."""
        size = 0 if self._head is None else len(self._head)
        return size == np.count_nonzero(self._diagonal > 1.0)

    def update(self, factors: Vector) -> None:
        """Take H of these f_i, shape (rows,)."""
        self._inside = passes.BlockSums(*passes.gathered(self._rows, factors), len(self._diagonal))
        self._diagonal[:] = 1.0
        self._inside.add(kernels.gram_diagonal, self._rho, self._diagonal)
        if self._outside is not None:
            self._diagonal += np.diagonal(self._outside.gram)
        self._factors, inside = factors, self._lengths[factors > 0.0]
        self._product_cost = NONZERO * float(inside.sum())
        if self._head is None:
            self._choose_head(inside)
        self._later_cost = multiplications(inside, self._later)
        self._count_changes()
        self.renew()

    def renew(self) -> bool:
        """Sum the head of the f_i by now, if it was to be exact, or products have cost as much."""
        if self._later and self._made >= self._later_cost:
            self._take_head(self._later)
            self._count_changes()
        if math.isinf(self._cost) or (self._spent < self._cost and not self._direct):
            return False
        assert self._head is not None
        change = self._factors - self._summed
        passes.add_gram(self._rows, change, self._rho, self._places, self._gram)
        self._summed, self._spent, self._cost = self._factors, 0.0, math.inf
        self._head.factorise(self._gram)
        return True

    def _count_changes(self) -> None:
        changed, size = self._lengths[self._factors != self._summed], len(self._head or ())
        self._cost = multiplications(changed, size) if len(changed) and size else math.inf

    def product(self, v: Vector) -> Vector:
        """Return H v, shape (columns + 1,)."""
        image = v.copy()
        self._inside.add(kernels.gram_product, self._rho, v, image)
        return image if self._outside is None else image + self._outside.product(v)

    def solve(self, residual: Vector) -> Vector:
        """Return about H⁻¹ r, shape (columns + 1,)."""
        assert self._head is not None
        self._spent, self._made = self._spent + self._product_cost, self._made + self._product_cost
        return self._head.solve(self._diagonal, residual)

    def _choose_head(self, inside: NDArray[np.int64]) -> None:
        """Choose a head of as many columns as it is worth before any product is made. ``inside`` :
        lengths of the rows with f_i > 0."""
        occurring = int(np.count_nonzero(self._diagonal > 1.0))
        size = occurring
        if self._outside is None:
            size = head_size(inside, occurring)
        size = min(size, self._most)
        self._take_head(size)
        self._later = occurring if size < occurring <= self._most else 0

    def _take_head(self, size: int) -> None:
        """Take the heaviest columns for the head, none of them summed yet."""
        columns = np.sort(np.argsort(-self._diagonal, kind="stable")[:size])
        self._head, self._later = Head(columns), 0
        self._direct = self.exact
        self._places[:] = -1
        self._places[columns] = np.arange(size)
        self._summed, self._gram = np.zeros(len(self._lengths)), np.zeros((size, size))
        if self._outside is not None:
            self._gram = self._outside.gram[np.ix_(columns, columns)]


def head_of(classes: int) -> int:
    """Return how many columns the head of each class may have, so that the matrices of all classes
    take no more than those of one.

    >>> head_of(1), head_of(50)
    (1000, 141)
    """
    return math.isqrt(HEAD * HEAD // classes)


def head_size(lengths: NDArray[np.int64], occurring: int) -> int:
    """Return how many columns a head may have, at most those ``occurring``.

    Summing and factorising H on them may cost as much as PRODUCTS products Hv, or DIRECT where they
    are all. ``lengths`` : n_i, the nonzeros of each row and its bias.

    Examples
    --------
    >>> head_size(np.full(10_000, 15), 124), head_size(np.full(1_000, 15), 20_000)
    (124, 153)
    >>> head_size(np.full(9_000, 20_000), 30_000) == HEAD
    True
    """
    product, sizes = NONZERO * float(lengths.sum()), range(min(occurring, HEAD) + 1)
    if occurring <= HEAD and multiplications(lengths, occurring) <= DIRECT * product:
        return occurring
    worth = PRODUCTS * product
    return bisect_right(sizes, worth, key=lambda size: multiplications(lengths, size)) - 1


def solved_directly(lengths: NDArray[np.int64], occurring: int) -> bool:
    """Whether a Newton step can afford H of all columns that occur, for rows of so many nonzeros.

    >>> solved_directly(np.full(10_000, 15), 124), solved_directly(np.full(10_000, 15), 1000)
    (True, False)
    """
    return head_size(lengths, occurring) == occurring


ENOUGH = 1 << 20
"""Costs are counted from at most this many rows: with more, a head costs no more per row."""


def even_lengths(rows: int, nonzeros: int) -> NDArray[np.int64]:
    """Return the lengths of rows, with the bias, that all have about as many nonzeros."""
    return np.full(min(rows, ENOUGH), nonzeros // max(rows, 1) + 1)


def multiplications(lengths: NDArray[np.int64], size: int) -> float:
    """Return Σ min(h, n_i)²/2 + h³/6, the multiplications that a head of h columns takes."""
    pairs = np.minimum(lengths, size).astype(np.float64)
    return 0.5 * kernels.square_sum(pairs) + size**3 / 6.0


class KeptProducts:
    """Products with the H of earlier Newton steps, which precondition later ones: few rows change
    sides from step to step.

    Pairs (p, H p) correct an approximate inverse so that it maps the last H p to p, by the two
    loops of L-BFGS (Morales and Nocedal, SIAM J. Optim. 2000, section 2). On text they save a
    third of all products.
    """

    def __init__(self, columns: int) -> None:
        most = min(PAIRS, PAIR_NUMBERS // (2 * columns))
        self._pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=most)

    def add(self, v: Vector, image: Vector) -> None:
        """Keep a product H v; the earliest one makes room."""
        along = float(kernels.dot(v, image))
        if 0.0 < along < np.inf:
            self._pairs.append((v, image, along))

    def correct(self, solve: Callable[[Vector], Vector], residual: Vector) -> Vector:
        """Return about H⁻¹ r, where ``solve`` does without the products."""
        residual, lengths = residual.copy(), []
        for v, image, along in reversed(self._pairs):
            lengths.append(float(kernels.dot(v, residual)) / along)
            kernels.add_scaled(image, -lengths[-1], residual)
        solution = solve(residual)
        for v, image, along in self._pairs:
            length = lengths.pop() - float(kernels.dot(image, solution)) / along
            kernels.add_scaled(v, length, solution)
        return solution
