"""A second-order step on rows in memory: where visits crawl, Newton's method walks.

Minimises ½‖v − v₀‖² + Σ C_i max(0, 1 − l_i (x_i, ρ)·v)² over augmented v = (w, w_bias), by
Newton's method with preconditioned conjugate gradients and an exact line search. All
sums run in kernels, one after the other: no BLAS, the same bits on every machine.
``benchmarks/second_order.py`` shows what the constants do to products Hv and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows
from streamtron.solver import passes
from streamtron.solver.outside import Outside
from streamtron.solver.preconditioner import Preconditioner

DESCENT = 1e-4
"""Where a Newton step would need many products Hv, P of a block is lowered by nonlinear conjugate
gradients first, which need one a step: to this precision, from where rows rarely change sides of
the margin (``benchmarks/certified.py --active-set 10% --C 50``)."""

INSIDE = 0.25
"""The part of the rows that are to be inside the margin for a descent, whose steps pass over all
of them, while a product Hv passes over these alone: of blocks it is a half or more, of all rows of
text at C = 50 a twentieth. A descent takes a third to a half as many passes."""

SPAN = 20
"""So many steps of the descent are to lower P by more than ``precision`` · P: fewer end it while P
is far above its least (``second_order.py``)."""

DESCENT_STEPS = 2000
"""Steps of a descent at most; 60 to 250 are usual."""

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
    """The v that minimises P over these rows, their margins l_i (x_i, ρ)·v, and how many steps that
    took, of a descent or of Newton's method.

    With α_i = 2 C_i max(0, 1 − m_i) as the dual point, P − D = ½‖∇P‖² exactly. It stops when that
    is at most precision · P, or nothing falls any more, P or ∇P; unless ``proven``, already when a
    step lowers P by no more than that. ``cost`` : C_i, 0 where left out. ``center`` : v₀, what rows
    that are not held add to v. ``outside`` : the loss of rows that are not held.
    """
    v = start.copy()
    margins = passes.margins(rows, signs, rho, v)
    accuracy, worthwhile = (EXACT, FLAT) if proven else (ROUGH, precision)
    hessian = Preconditioner(rows, rho, len(v) - 1, outside)
    hessian.update(np.where(margins < 1.0, 2.0 * cost, 0.0))
    descended = 0
    if not hessian.exact and np.count_nonzero(margins < 1.0) >= INSIDE * len(margins):
        reached = max(precision, DESCENT)
        descended = _descend(rows, signs, cost, rho, v, margins, center, reached, hessian)
        if precision >= DESCENT and not proven:
            return v, margins, descended
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
        if steps or descended:
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
    return v, margins, descended + steps


def _descend(
    rows: Rows,
    signs: NDArray[np.int8],
    cost: Vector,
    rho: float,
    v: Vector,
    margins: Vector,
    center: Vector,
    precision: float,
    hessian: Preconditioner,
) -> int:
    """Lower P by nonlinear conjugate gradients (Polak and Ribière, 1969; no negative β), H⁻¹ of
    the start, with an exact line search, until P − D is at most precision · P or nothing falls as
    fast. ``v`` and ``margins`` change in place. Returns how many steps that took."""
    primals: list[float] = []
    direction = before = np.zeros(len(v))
    product = math.inf
    for steps in range(DESCENT_STEPS):
        primal, gradient = _primal_and_gradient(rows, signs, cost, rho, v - center, margins)
        primals.append(primal)
        slow = len(primals) > SPAN and primals[-1 - SPAN] - primal <= precision * primal
        if slow or 0.5 * kernels.square_sum(gradient) <= precision * primal:
            return steps
        image = hessian.solve(gradient)
        product_before, product = product, float(kernels.dot(gradient, image))
        if not 0.0 < product < math.inf:
            return steps
        beta = max(0.0, (product - float(kernels.dot(before, image))) / product_before)
        direction = beta * direction - image
        if float(kernels.dot(direction, gradient)) >= 0.0:
            direction = -image
        slopes = passes.margins(rows, signs, rho, direction)
        linear, square = kernels.dot(v - center, direction), kernels.square_sum(direction)
        theta = _line_search(linear, square, margins, slopes, cost)
        if theta <= 0.0:
            return steps
        v += theta * direction
        margins += theta * slopes
        before = gradient
    return DESCENT_STEPS


def _primal_and_gradient(
    rows: Rows, signs: NDArray[np.int8], cost: Vector, rho: float, away: Vector, margins: Vector
) -> tuple[float, Vector]:
    """P and ∇P at the v that is ``away`` from v₀ and has these margins."""
    slacks = np.maximum(0.0, 1.0 - margins)
    gradient = np.zeros(len(away))
    passes.add(kernels.combine, rows, -2.0 * cost * slacks * signs, rho, gradient)
    gradient += away
    return 0.5 * kernels.square_sum(away) + kernels.dot(cost * slacks, slacks), gradient


def solve_direction(hessian: Preconditioner, gradient: Vector, accuracy: float) -> Vector:
    """The d that solves H d = −∇P to ``accuracy`` ‖∇P‖."""
    solve, image = conjugate_gradients(hessian.solve, gradient, accuracy), None
    while True:
        try:
            image = hessian.product(solve.send(image))
        except StopIteration as ended:
            return cast(Vector, ended.value)


def conjugate_gradients(
    precondition: Callable[[Vector], Vector], gradient: Vector, accuracy: float
) -> Generator[Vector, Any, Vector]:
    """The d that solves H d = −∇P to ``accuracy`` ‖∇P‖, by preconditioned conjugate gradients: it
    yields v and is sent H v. ``precondition`` : returns about H⁻¹ r."""
    found, residual = np.zeros(len(gradient)), -gradient
    search = precondition(residual)
    product = float(kernels.dot(residual, search))
    enough = float(accuracy**2 * kernels.square_sum(gradient))
    for _ in range(CONJUGATE_STEPS):
        image = yield search
        along = float(kernels.dot(search, image))
        if not (product > 0.0 and 0.0 < along < np.inf):
            break  # rounding is all that is left, or squares under- or overflow
        length = product / along
        found += length * search
        residual -= length * image
        if kernels.square_sum(residual) <= enough:
            break
        scaled = precondition(residual)
        before, product = product, float(kernels.dot(residual, scaled))
        search = scaled + (product / before) * search
    return found


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
