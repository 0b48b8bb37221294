"""A second-order step on rows in memory: where visits crawl, Newton's method walks.

Minimises ½‖v − v₀‖² + Σ C_i max(0, 1 − l_i (x_i, ρ)·v)² over augmented v = (w, w_bias), by
Newton's method with diagonally preconditioned conjugate gradients and an exact line search. All
sums run in kernels, one after the other: no BLAS, the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamtron import kernels
from streamtron.chunk import Rows, make_rows
from streamtron.training import passes

STEPS = 100
"""Newton steps at most; ten are usual."""

CONJUGATE_STEPS = 200
"""Conjugate gradient steps at most within one Newton step."""

EXACT, ROUGH = 0.1, 0.35
"""The part of ‖∇P‖ to which a Newton step's equations are solved: where the last digits count,
and where rows change sides of the margin long before."""

FLAT = 1e-14
"""A step that lowers P by no more than this part of it has lowered it by rounding."""

FALLS = 0.25
"""A step that leaves at most this part of the least ‖∇P‖² so far has lowered that."""

LINE_STEPS = 60
"""Evaluations at most in a line search; each costs a few operations a row."""

Vector = NDArray[np.float64]


def minimise(
    rows: Rows,
    signs: NDArray[np.int8],
    cost: Vector,
    rho: float,
    start: Vector,
    center: Vector,
    precision: float,
    *,
    proven: bool,
) -> tuple[Vector, Vector]:
    """The v that minimises P over these rows, and their margins l_i (x_i, ρ)·v: all steps of
    ``Newton``, whose parameters these are.

    Returns
    -------
    float64, shape of ``start``; float64, shape (rows,).
    """
    newton = Newton(rows, signs, cost, rho, start, center, precision, proven=proven)
    while newton.step():
        pass
    return newton.v, newton.margins


class Newton:
    """Newton's method, which can be left and taken up between any two of its steps.

    With α_i = 2 C_i max(0, 1 − m_i) as the dual point, P − D = ½‖∇P‖² exactly. It stops when that
    is at most precision · P, or nothing falls any more, P or ∇P; unless ``proven``, already when a
    step lowers P by no more than that. ``v`` is where it is, ``margins`` what the rows' margins
    are there.

    Parameters
    ----------
    rows, signs : the rows held, l_i (0 = left out).
    cost : float64, shape (rows,): C_i, 0 where left out.
    rho : ρ.
    start : float64, shape (columns + 1,): where to begin; the last is the bias weight.
    center : v₀, shape of ``start``: what rows that are not held add to v; 0 if there are none.
    precision : > 0, relative to P.
    """

    GIVEN = ("rows", "signs", "cost")

    def __init__(
        self,
        rows: Rows,
        signs: NDArray[np.int8],
        cost: Vector,
        rho: float,
        start: Vector,
        center: Vector,
        precision: float,
        *,
        proven: bool,
    ) -> None:
        self.rows, self.signs, self.cost = rows, signs, cost
        self.rho, self.center, self.precision, self.proven = rho, center, precision, proven
        self.v = start.copy()
        self.margins = passes.margins(rows, signs, rho, self.v)
        self.primal_before = self.least_excess = np.inf
        self.steps = 0
        self.direction: Direction | None = None

    def attach(self, rows: Rows, signs: NDArray[np.int8], cost: Vector) -> None:
        """Go on with the same rows, read again."""
        self.rows, self.signs, self.cost = rows, signs, cost
        if self.direction is not None:
            self.direction.attach(rows, self._curvature())

    def step(self) -> bool:
        """Look where downhill is, or take a conjugate gradient step, the last of which is followed
        by a step of v; whether there is more to do."""
        if self.direction is None:
            return self._look()
        return self.direction.step() or self._walk(self.direction.found)

    def _look(self) -> bool:
        """Begin to look for a direction, unless v is good enough."""
        if self.steps == STEPS:
            return False
        self.steps += 1
        slacks = np.maximum(0.0, 1.0 - self.margins)
        gradient = np.zeros(len(self.v))
        passes.combine(self.rows, -2.0 * self.cost * slacks * self.signs, self.rho, gradient)
        away = self.v - self.center
        gradient += away
        primal = 0.5 * kernels.square_sum(away) + kernels.dot(self.cost * slacks, slacks)
        excess = 0.5 * kernels.square_sum(gradient)
        if excess <= self.precision * primal:
            return False
        worthwhile = FLAT if self.proven else self.precision
        flat = self.primal_before - primal <= worthwhile * primal
        if flat and not (self.proven and excess <= FALLS * self.least_excess):
            return (
                False  # where P is flat to rounding v is known to half its digits: ∇P still falls
            )
        self.primal_before, self.least_excess = primal, min(excess, self.least_excess)
        accuracy = EXACT if self.proven else ROUGH
        self.direction = Direction(self.rows, self._curvature(), self.rho, gradient, accuracy)
        return True

    def _walk(self, direction: Vector) -> bool:
        """Go in the direction found as far as P falls; whether it falls at all."""
        self.direction = None
        slopes = passes.margins(self.rows, self.signs, self.rho, direction)
        theta = _line_search(self.v - self.center, direction, self.margins, slopes, self.cost)
        if theta <= 0.0:
            return False
        self.v += theta * direction
        self.margins += theta * slopes
        return True

    def _curvature(self) -> Vector:
        return np.where(self.margins < 1.0, 2.0 * self.cost, 0.0)


class Direction:
    """Solves (I + Σ 2C x xᵀ) d = −∇P to ``accuracy`` ‖∇P‖ by preconditioned conjugate gradients:
    ``found`` is d so far."""

    GIVEN = ("rows", "curvature")

    def __init__(
        self, rows: Rows, curvature: Vector, rho: float, gradient: Vector, accuracy: float
    ) -> None:
        self.rows, self.curvature, self.rho = rows, curvature, rho
        self.diagonal = np.ones(len(gradient))
        passes.gram_diagonal(rows, curvature, rho, self.diagonal)
        self.found = np.zeros(len(gradient))
        self.residual = -gradient
        self.search = self.residual / self.diagonal
        self.image = self.search.copy()
        self.product = float(kernels.dot(self.residual, self.search))
        self.enough = float(accuracy**2 * kernels.square_sum(gradient))
        self.steps = 0
        self.calls = 0  # of the kernel, in this step

    def attach(self, rows: Rows, curvature: Vector) -> None:
        """Go on with the same rows, read again."""
        self.rows, self.curvature = rows, curvature

    def step(self) -> bool:
        """One kernel call, the last of which ends a conjugate gradient step; whether there is more
        to do."""
        spans = passes.spans(self.rows)
        span = spans[self.calls]
        kernels.gram_product(
            passes.part(self.rows, span), self.curvature[span], self.rho, self.search, self.image
        )
        self.calls += 1
        return self.calls < len(spans) or self._conclude()

    def _conclude(self) -> bool:
        self.calls = 0
        self.steps += 1
        length = self.product / kernels.dot(self.search, self.image)
        self.found += length * self.search
        self.residual -= length * self.image
        small = kernels.square_sum(self.residual) <= self.enough
        if small or self.steps == CONJUGATE_STEPS:
            return False
        scaled = self.residual / self.diagonal
        before, self.product = self.product, float(kernels.dot(self.residual, scaled))
        self.search = scaled + (self.product / before) * self.search
        self.image = self.search.copy()
        return True


def narrowed(rows: Rows) -> tuple[Rows, NDArray[np.uint32]]:
    """The same rows with the columns that occur numbered from 0, and those columns.

    Examples
    --------
    >>> wide = make_rows(np.array([0, 1, 3]), np.array([7, 0, 7]), np.array([1.0, 2.0, 3.0]))
    >>> narrow, columns = narrowed(wide)
    >>> narrow.indices.tolist(), columns.tolist()
    ([1, 0, 1], [0, 7])
    """
    columns, indices = np.unique(rows.indices, return_inverse=True)
    return make_rows(rows.indptr, indices.astype(np.uint32), rows.values), columns


def best_scale(v: Vector, margins: Vector, cost: Vector) -> float:
    """The θ > 0 that minimises ½ θ² ‖v‖² + Σ C_i max(0, 1 − θ m_i)²."""
    nothing = np.zeros(len(v))
    theta = _line_search(nothing, v, np.zeros(len(margins)), margins, cost)
    return theta if theta > 0.0 else 1.0


def _line_search(
    v: Vector, direction: Vector, margins: Vector, slopes: Vector, cost: Vector
) -> float:
    """The θ that minimises P(v + θ d): a convex piecewise quadratic, by Newton within a bracket."""
    linear, square = kernels.dot(v, direction), kernels.square_sum(direction)
    found = np.empty(3)
    kernels.loss_along(margins, slopes, cost, 0.0, found)
    downhill = linear + found[1]
    if downhill >= 0.0:
        return 0.0
    low, high, theta = 0.0, np.inf, 1.0
    for _ in range(LINE_STEPS):
        kernels.loss_along(margins, slopes, cost, theta, found)
        first = linear + theta * square + found[1]
        second = square + found[2]
        if abs(first) <= 1e-9 * -downhill:
            break
        low, high = (theta, high) if first < 0.0 else (low, theta)
        step = theta - first / second if second > 0.0 else np.inf
        if low < step < high:
            theta = step
        else:
            theta = 0.5 * (low + high) if np.isfinite(high) else 2.0 * theta
    return theta
