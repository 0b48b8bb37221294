"""A second-order step on rows in memory: where visits crawl, Newton's method walks.

Minimises ½‖v − v₀‖² + Σ C_i max(0, 1 − l_i (x_i, ρ)·v)² over augmented v = (w, w_bias), by
Newton's method with preconditioned conjugate gradients and an exact line search. All
sums run in kernels, one after the other: no BLAS, the same bits on every machine.
``benchmarks/second_order.py`` shows what the constants do to products Hv and seconds.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows, make_rows
from streamtron.solver import passes
from streamtron.solver.outside import Outside
from streamtron.solver.preconditioner import Preconditioner

STEPS = 100
"""Newton steps of one call at most; ten are usual."""

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
    outside: Outside | None = None,
) -> tuple[Vector, Vector, int]:
    """The v that minimises P over these rows, their margins l_i (x_i, ρ)·v, and how many Newton
    steps that took.

    With α_i = 2 C_i max(0, 1 − m_i) as the dual point, P − D = ½‖∇P‖² exactly. It stops when that
    is at most precision · P, or nothing falls any more, P or ∇P; unless ``proven``, already when a
    step lowers P by no more than that. ``cost`` : C_i, 0 where left out. ``center`` : v₀, what rows
    that are not held add to v. ``outside`` : the loss of rows that are not held.
    """
    v = start.copy()
    margins = passes.margins(rows, signs, rho, v)
    accuracy, worthwhile = (EXACT, FLAT) if proven else (ROUGH, precision)
    hessian = Preconditioner(rows, rho, len(v) - 1, outside)
    primal_before, least_excess, steps = np.inf, np.inf, 0
    while steps < STEPS:
        primal, gradient = _primal_and_gradient(rows, signs, cost, rho, v - center, margins)
        smooth = v - center  # the gradient of what is the same quadratic everywhere
        if outside is not None:
            loss, slope = outside.value_and_gradient(v)
            primal, gradient, smooth = primal + loss, gradient + slope, smooth + slope
        excess = 0.5 * kernels.square_sum(gradient)
        if excess <= precision * primal:
            break
        flat = primal_before - primal <= worthwhile * primal
        if flat and not (proven and excess <= FALLS * least_excess):
            break  # where P is flat to rounding v is known to half its digits: ∇P still falls
        primal_before, least_excess = primal, min(excess, least_excess)
        hessian.update(np.where(margins < 1.0, 2.0 * cost, 0.0))
        direction = solve_direction(hessian, gradient, accuracy)
        slopes = passes.margins(rows, signs, rho, direction)
        square = kernels.square_sum(direction)
        if outside is not None:
            square += kernels.dot(direction, outside.product(direction))
        theta = _line_search(kernels.dot(smooth, direction), square, margins, slopes, cost)
        if theta <= 0.0:
            break
        v += theta * direction
        margins += theta * slopes
        steps += 1
    return v, margins, steps


def _primal_and_gradient(
    rows: Rows, signs: NDArray[np.int8], cost: Vector, rho: float, away: Vector, margins: Vector
) -> tuple[float, Vector]:
    """P and ∇P at the v that is ``away`` from v₀ and has these margins."""
    slacks = np.maximum(0.0, 1.0 - margins)
    gradient = np.zeros(len(away))
    passes.add(kernels.combine, rows, -2.0 * cost * slacks * signs, rho, gradient)
    gradient += away
    return 0.5 * kernels.square_sum(away) + kernels.dot(cost * slacks, slacks), gradient


class Hessian(Protocol):
    """H, and an approximate inverse of it."""

    def product(self, v: Vector) -> Vector:
        """Return H v."""
        ...

    def solve(self, residual: Vector) -> Vector:
        """Return about H⁻¹ r."""
        ...


def solve_direction(hessian: Hessian, gradient: Vector, accuracy: float) -> Vector:
    """The d that solves H d = −∇P to ``accuracy`` ‖∇P‖, by preconditioned conjugate gradients."""
    found, residual = np.zeros(len(gradient)), -gradient
    search = hessian.solve(residual)
    product = float(kernels.dot(residual, search))
    enough = float(accuracy**2 * kernels.square_sum(gradient))
    for _ in range(CONJUGATE_STEPS):
        image = hessian.product(search)
        along = float(kernels.dot(search, image))
        if not (product > 0.0 and 0.0 < along < np.inf):
            break  # rounding is all that is left, or squares under- or overflow
        length = product / along
        found += length * search
        residual -= length * image
        if kernels.square_sum(residual) <= enough:
            break
        scaled = hessian.solve(residual)
        before, product = product, float(kernels.dot(residual, scaled))
        search = scaled + (product / before) * search
    return found


def narrowed(rows: Rows) -> tuple[Rows, NDArray[np.uint32]]:
    """The same rows with the columns that occur numbered from 0, and those columns.

    >>> wide = make_rows(np.array([0, 1, 3]), np.array([7, 0, 7]), np.array([1.0, 2.0, 3.0]))
    >>> narrow, columns = narrowed(wide)
    >>> narrow.indices.tolist(), columns.tolist()
    ([1, 0, 1], [0, 7])
    """
    columns, indices = np.unique(rows.indices, return_inverse=True)
    return make_rows(rows.indptr, indices.astype(np.uint32), rows.values), columns


def best_scale(v: Vector, margins: Vector, cost: Vector) -> float:
    """The θ > 0 that minimises ½ θ² ‖v‖² + Σ C_i max(0, 1 − θ m_i)²."""
    theta = _line_search(0.0, kernels.square_sum(v), np.zeros(len(margins)), margins, cost)
    return theta if theta > 0.0 else 1.0


def _line_search(
    linear: float, square: float, margins: Vector, slopes: Vector, cost: Vector
) -> float:
    """The θ that minimises θ ``linear`` + ½ θ² ``square`` + Σ C_i max(0, 1 − m_i − θ d_i)²: a
    convex piecewise quadratic, by Newton within a bracket."""
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
