"""Newton's method on rows in memory, of one part or of many: where visits crawl, it walks.

Minimises P(v) = ½‖v − v₀‖² + Σ C_i φ(l_i (x_i, ρ)·v) over augmented v = (w, w_bias), with
preconditioned conjugate gradients and a line search. P is an ``Objective``: of the rows that this
process holds (``held_loss``), or of those of many parts (``joint_loss``). All sums run in kernels,
one after the other: no BLAS, the same bits on every machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.executor import Wanted

STEPS = 100
"""Newton steps of one call at most; ten are usual."""

CONJUGATE_STEPS = 200
"""Conjugate gradient steps at most within one Newton step."""

EXACT, ROUGH = 0.1, 0.35
"""The part of ‖∇P‖ to which a Newton step's equations are solved: where the last digits count,
and where rows change sides of the margin long before (``benchmarks/second_order.py``)."""

FLAT = 1e-14
"""A step that lowers P by no more than this part of it has lowered it by rounding."""

FALLS = 0.25
"""A step that leaves at most this part of the least ‖∇P‖² so far has lowered that."""

LINE_STEPS = 60
"""Evaluations at most in a line search; each costs a few operations a row, or a round."""

Vector = NDArray[np.float64]
Result = TypeVar("Result")


class GapEstimate(NamedTuple):
    """What a solve yields beside steps: (P − D)/P of the rows in memory, which proves nothing."""

    gap: float


Rounds = Generator[Wanted | GapEstimate, Any, Result]
"""What yields the steps that it wants made in all parts, and returns a result; see ``lockstep``."""


@dataclass(slots=True)
class Point:
    """Weights, augmented; P and ∇P there; and how many steps led there."""

    v: Vector
    primal: float
    gradient: Vector
    steps: int

    @property
    def excess(self) -> float:
        """P − D = ½‖∇P‖², with α_i = −C_i φ'(m_i) as the dual point."""
        return 0.5 * kernels.square_sum(self.gradient)

    @property
    def gap(self) -> float:
        """(P − D)/P; 1 at most, for D of α = 0 is 0."""
        return min(self.excess / self.primal, 1.0) if self.primal else 0.0


P = TypeVar("P", bound=Point)


class Objective(ABC, Generic[P]):
    """P of the rows in memory, wherever they are."""

    @abstractmethod
    def step(self, here: P, enough: float, accuracy: float) -> Rounds[P | None]:
        """Return where a Newton step leads; None: P does not fall. A step is good enough that
        leaves ``enough`` of P − D; ``accuracy`` : to which its equations are solved."""


def minimise(
    objective: Objective[P], here: P, precision: float, *, proven: bool = True
) -> Rounds[P]:
    """Minimise P from here on, until P − D = ½‖∇P‖² is at most precision · P, or nothing falls any
    more, P or ∇P; unless ``proven``, already when a step lowers P by no more than that. Yields a
    ``GapEstimate`` wherever a step leads."""
    accuracy, worthwhile = (EXACT, FLAT) if proven else (ROUGH, precision)
    least_excess = np.inf
    yield GapEstimate(here.gap)
    while here.excess > precision * here.primal and here.steps < STEPS:
        enough = precision * here.primal / here.excess
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
) -> Rounds[Vector]:
    """Return the d that solves H d = −∇P to ``accuracy`` ‖∇P‖, by preconditioned conjugate
    gradients. ``multiply`` : returns H v. ``precondition`` : returns about H⁻¹ r."""
    found, residual = np.zeros(len(gradient)), -gradient
    search = precondition(residual)
    product = float(kernels.dot(residual, search))
    enough = float(accuracy**2 * kernels.square_sum(gradient))
    for _ in range(CONJUGATE_STEPS):
        image = yield from multiply(search)
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
