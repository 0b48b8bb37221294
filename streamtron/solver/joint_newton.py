"""Newton's method on the rows in memory of all parts together: ``newton`` as maps and sums.

A step is a round for P, ∇P and the preconditioner, a round for every product with the Hessian, and
a round for the line search; see ``lockstep`` for who makes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.solver import local, newton
from streamtron.solver.local import Looked
from streamtron.solver.lockstep import Rounds
from streamtron.solver.newton import Vector
from streamtron.solver.preconditioner import HEAD, PAIR_NUMBERS, PAIRS, KeptProducts

THETAS = np.array([0.0, 0.0625, 0.125, 0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6, 2.0, 4.0, 8.0])
"""Where a line search evaluates P, all in one round; a full Newton step is θ = 1."""

SAFETY = 0.8
"""The last step is solved to this part of the ‖∇P‖ that may be left: some rows change sides."""

NUMBERS = 1 << 27
"""What the solves that go together may keep: 1 GB."""

SMALLEST_THETA = 2.0**-40
"""No shorter step is looked for."""


@dataclass(slots=True)
class Found:
    """The weights found, augmented; what the parts saw there; and how many steps that took."""

    v: Vector
    seen: Looked
    primal: float
    steps: int


def minimise(v: Vector, center: Vector, precision: float) -> Rounds[Found]:
    """Minimise ½‖v − v₀‖² + Σ C_i max(0, 1 − m_i)² over the rows held, until P − D = ½‖∇P‖² is at
    most precision · P, or nothing falls any more, P or ∇P; see ``newton.minimise``."""
    hessian = JointHessian(len(v))
    primal_before, least_excess, steps = np.inf, np.inf, 0
    while True:
        seen = yield from hessian.look(v)
        away = v - center
        gradient = seen.gradient + away
        primal = 0.5 * kernels.square_sum(away) + seen.loss
        excess = 0.5 * kernels.square_sum(gradient)
        flat = primal_before - primal <= newton.FLAT * primal
        still = flat and not excess <= newton.FALLS * least_excess
        if excess <= precision * primal or still or steps == newton.STEPS:
            return Found(v, seen, primal, steps)
        direction = yield from hessian.direction(gradient, precision * primal / excess)
        theta = yield from search(away, direction)
        if theta <= 0.0:
            return Found(v, seen, primal, steps)
        primal_before, least_excess = primal, min(excess, least_excess)
        v = v + theta * direction
        steps += 1


def at_once(columns: int) -> int:
    """Return how many solves over so many columns may go together: each keeps products, or the
    Hessian and its factor."""
    kept = max(min(2 * PAIRS * columns, PAIR_NUMBERS), 2 * min(columns, HEAD) ** 2)
    return max(1, NUMBERS // kept)


class JointHessian:
    """H = I + Σ f_i (x_i, ρ)(x_i, ρ)ᵀ over the rows in memory of all parts, and its approximate
    inverse: exact where the columns are few, else exact on the heaviest ones (see ``_head_of``) and
    diagonal elsewhere; and corrected by the products of the steps before."""

    def __init__(self, columns: int) -> None:
        self._direct = columns <= HEAD
        self._head = np.arange(columns if self._direct else 0)
        self._diagonal, self._factor = np.ones(columns), np.zeros((0, 0))
        self._kept = KeptProducts(columns)

    def look(self, v: Vector) -> Rounds[Looked]:
        """Look at v, and take H there."""
        seen: Looked = yield local.look, (v, self._head)
        self._diagonal, self._factor = 1.0 + seen.diagonal, np.eye(len(self._head))
        self._factor[np.tril_indices(len(self._head))] += seen.head
        if not kernels.factorise(self._factor, np.empty(len(self._factor))):
            self._direct, self._head = False, self._head[:0]  # squares under- or overflow
            self._factor = self._factor[:0, :0]
        return seen

    def direction(self, gradient: Vector, enough: float) -> Rounds[Vector]:
        """Return the d that solves H d = −∇P, nearly: if no row changes sides, well enough for
        ``enough`` of ‖∇P‖² to be left. What it learns of H, the products and which columns are the
        heaviest, serves the next look."""
        if self._direct:
            return self.solve(-gradient)
        accuracy = min(max(newton.EXACT, SAFETY * math.sqrt(enough)), newton.ROUGH)
        solve, image = newton.conjugate_gradients(self.solve, gradient, accuracy), None
        made: list[tuple[Vector, Vector]] = []
        while True:
            try:
                v = solve.send(image)
            except StopIteration as ended:
                for pair in made:
                    self._kept.add(*pair)
                self._head = _head_of(self._diagonal)
                return cast(Vector, ended.value)
            image = v + (yield local.product, (v,)).image
            made.append((v, image))

    def solve(self, residual: Vector) -> Vector:
        """Return about H⁻¹ r."""
        return self._kept.correct(self._solve_head, residual)

    def _solve_head(self, residual: Vector) -> Vector:
        found = residual / self._diagonal
        used = len(self._factor)
        if used:
            head = residual[self._head]
            kernels.solve_factorised(self._factor, head)
            found[self._head] = head
        return found


def _head_of(diagonal: Vector) -> NDArray[np.int64]:
    """The √(2n) columns of the largest H_jj, rising: the triangle of H on them has as many numbers
    as a vector."""
    size = min(math.isqrt(2 * len(diagonal)), HEAD)
    return np.sort(np.argsort(-diagonal, kind="stable")[:size])


def best_scale(v: Vector) -> Rounds[float]:
    """Return about the θ > 0 that minimises ½ θ² ‖v‖² + Σ C_i max(0, 1 − θ m_i)² over the rows
    held, before anything was looked at; see ``part.join``."""
    return (yield from search(np.zeros(len(v)), v)) or 1.0


def search(away: Vector, direction: Vector) -> Rounds[float]:
    """Return a θ near the least P(v + θ d), for the v that was looked at last and lies ``away``
    from v₀; 0 if P does not fall."""
    linear, square = kernels.dot(away, direction), kernels.square_sum(direction)
    given: Vector | None = direction
    scale = 1.0
    while SMALLEST_THETA <= scale <= 1.0 / SMALLEST_THETA:
        thetas = scale * THETAS
        _, first, second = (yield local.line, (given, thetas)).losses.T
        first, second = linear + thetas * square + first, square + second
        if first[0] >= 0.0:
            return 0.0
        given, rising = None, int(np.argmax(first >= 0.0))
        if rising > 1:
            return _root(thetas[rising - 1 :], first[rising - 1 :], second[rising - 1 :])
        scale *= float(THETAS[-1] if rising == 0 else THETAS[1])
    return 0.0


def _root(thetas: Vector, first: Vector, second: Vector) -> float:
    """Where P' is 0 between the first two θ, as Newton steps from both ends see it."""
    low, high = float(thetas[0]), float(thetas[1])
    from_low = low - float(first[0]) / float(second[0])
    from_high = high - float(first[1]) / float(second[1])
    return 0.5 * (min(max(from_low, low), high) + min(max(from_high, low), high))
