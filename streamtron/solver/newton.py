"""Newton's method: where visits crawl, it walks.

Minimises P(v) = ½‖v − v₀‖² + Σ C_i φ(l_i (x_i, ρ)·v) over augmented v = (w, w_bias), the sum over
rows in memory, with preconditioned conjugate gradients and a line search. P is an ``Objective``: of
the rows that this process holds (``HeldObjective``), or of those of many parts
(``joint.JointObjective``). All sums run in kernels, one after the other: no BLAS, the same bits on
every machine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from streamtron.core import kernels
from streamtron.core.rows import Vector
from streamtron.solver.held_loss import GapEstimate, HeldLoss, K, Rounds, drive
from streamtron.solver.hessian import Outside

STEPS = 100
"""Newton steps of one call at most; ten are usual."""

CONJUGATE_STEPS = 200
"""Conjugate gradient steps at most within one Newton step."""

EXACT, ROUGH = 0.1, 0.35
"""The part of ‖∇P‖ to which a Newton step's equations are solved: where the last digits count,
and where rows change sides of the margin long before (``benchmarks/second_order.py``)."""

FLAT = 1e-14
"""A step that lowers P by no more than this part of it has lowered it by rounding."""

NARROWED, LEAST_ZONE = 0.6, 1e-14
"""A zone is narrowed to this part of it, and not below the last one, where rounding decides."""

ROUGHLY = 0.01
"""A smooth loss is minimised to this part of the gap of the hinge."""

FALLS = 0.25
"""A step that leaves at most this part of the least ‖∇P‖² so far has lowered that."""

LINE_STEPS = 60
"""Evaluations at most in a line search; each costs a few operations a row, or a round."""

SLOW = (10, 0.25)
"""After this many evaluations the bracket is halved where the last step left more than this part
of the slope, as steps down an exponential do: each leaves 1/e."""


@dataclass(slots=True)
class Point(Generic[K]):
    """Weights, augmented; P and ∇P there; the gradient of the part of P that is quadratic; how many
    steps led there; and what is known of the rows there: their margins, or the sums that parts have
    made."""

    v: Vector
    primal: float
    gradient: Vector
    smooth: Vector
    steps: int
    known: K

    @property
    def excess(self) -> float:
        """P − D = ½‖∇P‖², with α_i = −C_i φ'(m_i) as the dual point."""
        return 0.5 * kernels.square_sum(self.gradient)

    @property
    def gap(self) -> float:
        """(P − D)/P; 1 at most, for D of α = 0 is 0."""
        return min(self.excess / self.primal, 1.0) if self.primal else 0.0


class Objective(ABC, Generic[K]):
    """P of rows in memory, wherever they are.

    ``center`` : v₀, what rows that are not held add to v. ``zone`` : η of the smooth loss that
    stands for the hinge; 0 for others. ``outside`` : the loss of rows that are not held.
    ``constant`` : is added to P, as D of rows that are not held.
    """

    def __init__(
        self, center: Vector, zone: float, outside: Outside | None = None, constant: float = 0.0
    ) -> None:
        self._center, self._zone = center, zone
        self._outside, self._constant = outside, constant

    @abstractmethod
    def approach(self, v: Vector, zone: float) -> Rounds[None]:
        """Take a smooth loss nearer to the hinge; see ``HeldLoss.approach``."""

    @abstractmethod
    def smoothing(self, here: Point[K]) -> tuple[float, float]:
        """Return what P, and P − D, of the loss itself are above those of the smooth one."""

    @abstractmethod
    def begin(self, v: Vector, precision: float, *, proven: bool) -> Rounds[Point[K]]:
        """Return the point of least P of the smooth loss, from v on; see ``minimise``."""

    @abstractmethod
    def step(self, here: Point[K], enough: float, accuracy: float) -> Rounds[Point[K] | None]:
        """Return where a Newton step leads; None: P does not fall. A step is good enough that
        leaves ``enough`` of P − D; ``accuracy`` : to which its equations are solved."""

    def solve(self, v: Vector, precision: float, *, proven: bool = True) -> Rounds[Point[K]]:
        """Return the point of least P, from v on, see ``minimise``; of the hinge that of smooth
        losses in its place, each around the dual point to which the one before led, until P − D of
        the hinge itself is at most precision · P (the method of multipliers)."""
        steps, gap = 0, 1.0
        while True:
            enough = max(precision, ROUGHLY * gap) if self._zone else precision
            here = yield from self.begin(v, enough, proven=proven)
            steps += here.steps
            above, left = self.smoothing(here)
            primal, left = max(here.primal + above, 0.0), left + here.excess
            if left <= max(precision, FLAT) * primal or self._zone <= LEAST_ZONE:
                return replace(here, steps=steps)
            gap = min(left / primal, gap) if primal else gap
            v, self._zone = here.v, NARROWED * self._zone
            yield from self.approach(v, self._zone)

    def at(self, v: Vector, loss: float, gradient: Vector, steps: int, known: K) -> Point[K]:
        """Return the point v, where the rows held have this loss and its gradient."""
        smooth = v - self._center
        primal = 0.5 * kernels.square_sum(smooth) + loss + self._constant
        gradient = gradient + smooth
        if self._outside is not None:
            value, slope = self._outside.value_and_gradient(v)
            primal, gradient, smooth = primal + value, gradient + slope, smooth + slope
        return Point(v, primal, gradient, smooth, steps, known)

    def curvature_along(self, direction: Vector) -> float:
        """Return d·H d of the part of P that is quadratic."""
        square = kernels.square_sum(direction)
        if self._outside is not None:
            square += kernels.dot(direction, self._outside.product(direction))
        return float(square)


def minimise(
    objective: Objective[K], here: Point[K], precision: float, *, proven: bool = True
) -> Rounds[Point[K]]:
    """Minimise P from here on, until P − D = ½‖∇P‖² is at most precision · P, or nothing falls any
    more, P or ∇P; unless ``proven``, already when a step lowers P by no more than that. Yields a
    ``GapEstimate`` wherever a step leads."""
    accuracy, worthwhile = (EXACT, FLAT) if proven else (ROUGH, precision)
    least_excess = np.inf
    yield GapEstimate(here.gap)
    while here.excess > precision * max(here.primal, 0.0) and here.steps < STEPS:
        enough = precision * max(here.primal, 0.0) / here.excess
        there = yield from objective.step(here, enough, accuracy)
        if there is None:
            break
        least_excess = min(here.excess, least_excess)
        flat = not here.primal - there.primal > worthwhile * there.primal
        # where P is flat to rounding v is known to half its digits: ∇P still falls
        if flat and not (proven and there.excess <= FALLS * least_excess):
            return there if there.primal <= (1.0 + FLAT) * here.primal else here
        here = there
        yield GapEstimate(here.gap)
    return here


def conjugate_gradients(
    multiply: Callable[[Vector], Rounds[Vector]],
    precondition: Callable[[Vector], Vector],
    gradient: Vector,
    accuracy: float,
    renew: Callable[[], bool] = bool,
) -> Rounds[Vector]:
    """Return the d that solves H d = −∇P to ``accuracy`` ‖∇P‖, by preconditioned conjugate
    gradients. ``multiply`` : returns H v. ``precondition`` : returns about H⁻¹ r. ``renew`` : says
    whether ``precondition`` is another one from now on, which begins them anew."""
    direction, residual = np.zeros(len(gradient)), -gradient
    search = precondition(residual)
    product = float(kernels.dot(residual, search))
    enough = float(accuracy**2 * kernels.square_sum(gradient))
    for _ in range(CONJUGATE_STEPS):
        image = yield from multiply(search)
        along = float(kernels.dot(search, image))
        if not (product > 0.0 and 0.0 < along < np.inf):
            break  # rounding is all that is left, or squares under- or overflow
        length = product / along
        direction += length * search
        residual -= length * image
        if kernels.square_sum(residual) <= enough:
            break
        begun = 0.0 if renew() else 1.0 / product
        scaled = precondition(residual)
        product = float(kernels.dot(residual, scaled))
        search = scaled + (product * begun) * search
    return direction


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


class HeldObjective(Objective[Vector]):
    """P of rows that this process holds. A line search passes over them once: its margins are then
    known at every θ."""

    def __init__(self, held: HeldLoss, center: Vector, outside: Outside | None = None) -> None:
        super().__init__(center, held.loss.zone, outside)
        self._held = held
        self._hessian = held.hessian(len(center) - 1, outside)
        self._stale = False  # whether the Hessian is that of another point

    def approach(self, v: Vector, zone: float) -> Rounds[None]:
        """See ``Objective``."""
        self._held.approach(v, zone)
        return
        yield

    def smoothing(self, here: Point[Vector]) -> tuple[float, float]:
        """See ``Objective``."""
        return self._held.smoothing(here.known)

    def minimise(self, start: Vector, precision: float, *, proven: bool = True) -> Point[Vector]:
        """Return the point of least P, see ``solve``; estimates of the gap are dropped."""
        return drive(self.solve(start, precision, proven=proven))

    def begin(self, v: Vector, precision: float, *, proven: bool) -> Rounds[Point[Vector]]:
        """See ``Objective``. Where many rows are inside the margin, and not all columns are in the
        preconditioner's head, a descent comes first."""
        here, descended = self._look(v, self._held.margins_of(v), 0), 0
        self._hessian.update(self._held.curvatures(here.known))
        inside = np.count_nonzero(here.known < 1.0) if self._held.loss.quadratic else 0
        if not self._hessian.exact and inside >= INSIDE * len(here.known):
            here = self._descend(here, max(precision, DESCENT))
            if precision >= DESCENT and not proven:
                return here
            descended, here, self._stale = here.steps, replace(here, steps=0), here.steps > 0
        best = yield from minimise(self, here, precision, proven=proven)
        return replace(best, steps=descended + best.steps)

    def step(
        self, here: Point[Vector], enough: float, accuracy: float
    ) -> Rounds[Point[Vector] | None]:
        """Return where a Newton step with an exact line search leads."""
        if self._stale:
            self._hessian.update(self._held.curvatures(here.known))
        self._stale = True
        direction = yield from conjugate_gradients(
            self._product, self._hessian.solve, here.gradient, accuracy, self._hessian.renew
        )
        return self._along(here, direction)

    def _product(self, v: Vector) -> Rounds[Vector]:
        return self._hessian.product(v)
        yield

    def _look(self, v: Vector, margins: Vector, steps: int) -> Point[Vector]:
        """Return the point v, which has these margins."""
        gradient = self._held.sum_of(-self._held.alpha(margins), len(v) - 1)
        return self.at(v, self._held.value(margins), gradient, steps, margins)

    def _along(self, here: Point[Vector], direction: Vector) -> Point[Vector] | None:
        """Return the least P along a direction; None: it does not fall."""
        slopes, square = self._held.margins_of(direction), self.curvature_along(direction)
        linear = kernels.dot(here.smooth, direction)
        theta = line_search(self._held, linear, square, here.known, slopes)
        if theta <= 0.0:
            return None
        return self._look(here.v + theta * direction, here.known + theta * slopes, here.steps + 1)

    def _descend(self, here: Point[Vector], precision: float) -> Point[Vector]:
        """Lower P by nonlinear conjugate gradients (Polak and Ribière, 1969; no negative β), H⁻¹ of
        the start, with an exact line search, until P − D is at most precision · P or nothing falls
        as fast."""
        primals: list[float] = []
        direction = last_gradient = np.zeros(len(here.v))
        product = math.inf
        while here.steps < DESCENT_STEPS:
            primals.append(here.primal)
            enough = precision * here.primal
            slow = len(primals) > SPAN and primals[-1 - SPAN] - here.primal <= enough
            if slow or here.excess <= enough:
                break
            last_product = math.inf if self._hessian.renew() else product
            image = self._hessian.solve(here.gradient)
            product = float(kernels.dot(here.gradient, image))
            if not 0.0 < product < math.inf:
                break
            change = product - float(kernels.dot(last_gradient, image))
            direction = max(0.0, change / last_product) * direction - image
            if float(kernels.dot(direction, here.gradient)) >= 0.0:
                direction = -image
            last_gradient, there = here.gradient, self._along(here, direction)
            if there is None:
                break
            here = there
        return here


def line_search(
    held: HeldLoss, linear: float, square: float, margins: Vector, slopes: Vector
) -> float:
    """Return the θ that minimises θ ``linear`` + ½ θ² ``square`` + Σ C_i φ(m_i + θ d_i), which is
    convex, by Newton within a bracket. It evaluates one θ at a time; ``joint.root`` gets the
    slopes at many, for there each evaluation costs a round."""
    downhill = linear + held.along(margins, slopes, 0.0)[1]
    if downhill >= 0.0:
        return 0.0
    low, high, theta, last = 0.0, np.inf, 1.0, np.inf
    for number in range(LINE_STEPS):
        _, slope, curvature = held.along(margins, slopes, theta)
        first, second = linear + theta * square + slope, square + curvature
        if abs(first) <= 1e-9 * -downhill:
            break
        low, high = (theta, high) if first < 0.0 else (low, theta)
        step = theta - first / second if second > 0.0 else np.inf
        slow = number >= SLOW[0] and abs(first) > SLOW[1] * last and np.isfinite(high)
        if low < step < high and not slow:
            theta = step
        else:
            theta = 0.5 * (low + high) if np.isfinite(high) else 2.0 * theta
        last = abs(first)
    return theta
