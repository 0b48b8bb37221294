"""Newton's method on the rows in memory of all parts: as maps and sums, a round each.

A solve is a generator: it yields the step that it wants made on its learner's rows in all parts,
and is sent the sum. Steps of different learners go in one round, so that what a round costs beside
its work, some milliseconds on workers, is paid once. What a learner finds does not depend on the
others.

A Newton step is a round for P and ∇P where it leads, and before it those that find its direction:
where columns are few, one in which every part solves with its own Hessian; else one for every
product with the Hessian of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.executor import Each, Parts, Wanted
from streamtron.solver import local, newton
from streamtron.solver.ascent import RELAXATION
from streamtron.solver.few_columns import SHARE
from streamtron.solver.learner import Learner
from streamtron.solver.local import Looked, Moved
from streamtron.solver.newton import GapEstimate, Objective, Point, Rounds, Vector
from streamtron.solver.preconditioner import (
    HEAD,
    PAIR_NUMBERS,
    PAIRS,
    KeptProducts,
    solve_with_head,
)
from streamtron.solver.rest_quadratic import Outside
from streamtron.solver.stages import Regime
from streamtron.solver.stopping import ROUNDING_GAP, worthwhile_gap
from streamtron.solver.subproblem import finer_resolution
from streamtron.solver.weights import WeightState


def in_lockstep(parts: Parts, solves: Mapping[int, Rounds[None]], at_once: int) -> None:
    """Run solves to their ends, so many at once. They are named by the number of their learner in
    the parts."""
    waiting, gaps = iter(solves), dict[int, float]()
    wanted: dict[int, Wanted] = {}
    sums: dict[int, Any] = dict.fromkeys(islice(waiting, at_once))
    while sums:
        for number, total in sums.items():
            wanted.pop(number, None)
            try:
                step = solves[number].send(total)
                while isinstance(step, GapEstimate):
                    gaps[number] = step.gap
                    parts.gap_estimate = max(gaps.values())
                    step = next(solves[number])
                wanted[number] = step
            except StopIteration:
                pass
        if begun := list(islice(waiting, at_once - len(wanted))):
            sums = dict.fromkeys(begun)
        elif wanted:
            totals = parts(Each(wanted.items()), list(wanted.items()))
            sums = dict(zip(wanted, totals, strict=True))
        else:
            sums = {}


THETAS = np.array([0.0, 0.0625, 0.125, 0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6, 2.0, 4.0, 8.0])
"""Where a line search evaluates P, all in one round; a full Newton step is θ = 1
(``benchmarks/parts.py``)."""

SAFETY = 0.8
"""The last step is solved to this part of the ‖∇P‖ that may be left: some rows change sides
(``benchmarks/parts.py``)."""

ACCEPTED = 0.1
"""A step d is taken as it is if P falls by this part of −∇P·d, for which the θ of least P has to be
5/9; else that θ is looked for, in two rounds more. A search in every step takes three to ten rounds
more on text (``benchmarks/parts.py``)."""

ALIKE = 0.1
"""Parts are alike while two steps by their own Hessians leave at most this part of ‖∇P‖²: of Adult
a hundredth or less, and of Adult sorted by label a half (``benchmarks/parts.py --sorted``)."""

NUMBERS = 1 << 27
"""What the solves that go together may keep: 1 GB."""


@dataclass(slots=True)
class JointPoint(Point):
    """A point, what parts saw there, and the gradient of what is the same quadratic everywhere."""

    seen: Looked
    smooth: Vector


def at_once(columns: int) -> int:
    """Return how many solves over so many columns may go together: each keeps products, or the
    Hessian and its factor."""
    kept = max(min(2 * PAIRS * columns, PAIR_NUMBERS), 2 * min(columns, HEAD) ** 2)
    return max(1, NUMBERS // kept)


class JointLoss(Objective[JointPoint]):
    """½‖v − v₀‖² + Σ C_i φ(m_i(v)) over the rows in memory of all parts; an approximate
    inverse of its H = I + Σ f_i (x_i, ρ)(x_i, ρ)ᵀ, corrected by what steps before tell of H.

    Where columns are few, the inverse is the mean of the parts' own (GIANT: Wang et al., NeurIPS
    2018), or, once that has served badly, because the parts are not alike, exact. Else it is exact
    on the heaviest columns (see ``_head_of``) and diagonal elsewhere.

    ``center`` : v₀. ``rest`` : the loss of rows that are not held. ``alike`` : whether the parts
    hold so many rows that those of one may tell of all. ``constant`` : is added to P, as D of the
    rows that are not held.
    """

    def __init__(
        self, center: Vector, *, alike: bool, constant: float = 0.0, rest: Outside | None = None
    ) -> None:
        columns = len(center)
        self._center, self._constant, self._rest = center, constant, rest
        self._few = columns <= HEAD
        self._head = np.arange(columns if self._few and not alike else 0)
        self._diagonal, self._mass = np.zeros(columns, dtype=np.float32), 0.0
        self._factor = np.zeros((0, 0))
        self._kept, self._excess = KeptProducts(columns), math.inf

    def minimise(self, v: Vector, precision: float) -> Rounds[JointPoint]:
        """Return the point of least P, see ``newton.minimise``."""
        return (yield from newton.minimise(self, (yield from self.look(v)), precision))

    def look(self, v: Vector, steps: int = 0) -> Rounds[JointPoint]:
        """Return P and ∇P at v, and take H there."""
        seen: Looked = yield local.look, (v, self._head)
        self._diagonal, self._mass = seen.diagonal, seen.mass
        self._factor = np.eye(len(self._head))
        self._factor[np.tril_indices(len(self._head))] += seen.head
        if self._rest is not None and len(self._head):
            self._factor += self._rest.gram
        if not kernels.factorise(self._factor, np.empty(len(self._factor))):
            self._few, self._head = False, self._head[:0]  # squares under- or overflow
            self._factor = self._factor[:0, :0]
        away = v - self._center
        primal = 0.5 * kernels.square_sum(away) + seen.loss + self._constant
        if self._rest is not None:
            loss, slope = self._rest.value_and_gradient(v)
            primal, away = primal + loss, away + slope
        return JointPoint(v, primal, seen.gradient + away, steps, seen, away)

    def step(self, here: JointPoint, enough: float, accuracy: float) -> Rounds[JointPoint | None]:
        """Return where a Newton step leads: as it is if P falls enough, else to the least P along
        it, if P falls at all."""
        direction = yield from self._direction(here.gradient, enough)
        there = yield from self.look(here.v + direction, here.steps + 1)
        lower = ACCEPTED * kernels.dot(here.gradient, direction) + newton.FLAT * here.primal
        if not there.primal <= here.primal + lower:
            square = kernels.square_sum(direction)
            if self._rest is not None:
                square += kernels.dot(direction, self._rest.product(direction))
            theta = yield from search(here.smooth, direction, square, looked_at=1.0)
            if theta > 0.0:
                there = yield from self.look(here.v + theta * direction, there.steps)
        self._learn(here, there)
        return there

    def _direction(self, gradient: Vector, enough: float) -> Rounds[Vector]:
        """Return the d that solves H d = −∇P, nearly. Where columns are many, and if no row changes
        sides, well enough for ``enough`` of ‖∇P‖² to be left; what it learns of H, the products and
        which columns are the heaviest, serves the next look."""
        if self._few:
            return (yield from self._direction_of_few(gradient))
        accuracy = min(max(newton.EXACT, SAFETY * math.sqrt(enough)), newton.ROUGH)
        made: list[tuple[Vector, Vector]] = []

        def product(v: Vector) -> Rounds[Vector]:
            made.append((v, v + (yield local.product, (v,)).image))
            return made[-1][1]

        direction = yield from newton.conjugate_gradients(product, self._solve, gradient, accuracy)
        for pair in made:
            self._kept.add(*pair)
        self._head = _head_of(self._diagonal)
        return direction

    def _direction_of_few(self, gradient: Vector) -> Rounds[Vector]:
        if len(self._factor) or not self._mass:
            return self._solve_head(-gradient)
        rest, lengths = self._kept.reduce(-gradient)
        found = (yield local.precondition, (rest, self._diagonal, self._mass)).image
        return self._kept.complete(found, lengths)

    def _learn(self, here: JointPoint, there: JointPoint) -> None:
        """Take what a step has changed, where columns are few. If that and the step before have
        left much of ‖∇P‖², the parts are not alike: the next look takes H itself."""
        if self._few:
            self._kept.add(there.v - here.v, there.gradient - here.gradient)
            if not there.excess <= ALIKE * self._excess:
                self._head = np.arange(len(self._diagonal))
            self._excess = here.excess

    def _solve(self, residual: Vector) -> Vector:
        """Return about H⁻¹ r."""
        return self._kept.correct(self._solve_head, residual)

    def _solve_head(self, residual: Vector) -> Vector:
        diagonal = 1.0 + self._diagonal.astype(np.float64)
        return solve_with_head(diagonal, self._head, self._factor, residual)


def _head_of(diagonal: NDArray[np.float32]) -> NDArray[np.int64]:
    """The √(2n) columns of the largest H_jj, rising: the triangle of H on them has as many numbers
    as a vector."""
    size = min(math.isqrt(2 * len(diagonal)), HEAD)
    return np.sort(np.argsort(-diagonal, kind="stable")[:size])


def best_scale(v: Vector) -> Rounds[float]:
    """Return about the θ > 0 that minimises ½ θ² ‖v‖² + Σ C_i φ(θ m_i) over the rows
    held, before anything was looked at; see ``part.join``."""
    return (yield from search(np.zeros(len(v)), v, kernels.square_sum(v))) or 1.0


def search(
    smooth: Vector, direction: Vector, square: float, looked_at: float = 0.0
) -> Rounds[float]:
    """Return a θ near the least P(v + θ d); 0 if P does not fall. What is the same quadratic
    everywhere has the gradient ``smooth`` at v, and changes by θ smooth·d + ½ θ² ``square``.
    ``looked_at`` : the θ where the parts have looked last.

    P' bends wherever a row changes sides of the margin. So its root is told from the ends of a
    bracket only where all of the bracket is proven low: no P in it is above the higher end, and
    that is lower than at 0 by half, at least, of what a tangent leaves P to fall.
    """
    linear = kernels.dot(smooth, direction)
    given: Vector | None = direction
    thetas, begin = THETAS, math.inf
    for _ in range(newton.LINE_STEPS):
        primal, first, second = (yield local.line, (given, thetas - looked_at)).losses.T
        primal = primal + thetas * (linear + 0.5 * thetas * square)
        first, second = linear + thetas * square + first, square + second
        if given is not None:
            given, begin = None, float(primal[0])
            if first[0] >= 0.0:
                return 0.0
        if not first[-1] >= 0.0:
            thetas = thetas[-1] * THETAS
            continue
        high = int(np.argmax(first >= 0.0))
        ends = slice(high - 1, high + 1)
        low, high = thetas[ends]
        least = primal[ends][0] + first[ends][0] * (high - low)
        if begin - primal[ends].max() >= 0.5 * (begin - least):
            return _root(thetas[ends], first[ends], second[ends])
        thetas = np.linspace(low, high, len(THETAS))
    return 0.0


def _root(thetas: Vector, first: Vector, second: Vector) -> float:
    """Where P' is 0 between the first two θ, as Newton steps from both ends see it."""
    low, high = float(thetas[0]), float(thetas[1])
    from_low = low - float(first[0]) / float(second[0])
    from_high = high - float(first[1]) / float(second[1])
    return 0.5 * (min(max(from_low, low), high) + min(max(from_high, low), high))


def solve_jointly(learner: Learner) -> Rounds[None]:
    """Solve the rows in memory of all parts: all that matter, and choose the resolution b of the
    counts that the next scan makes of the slacks; or a block, the dual variables of all other rows
    fixed."""
    if learner.regime == Regime.BLOCKS:
        yield from _solve_block(learner)
        return
    progress, precision, v = learner.progress, worthwhile_gap(learner), _start(learner)
    if progress.reading == 0:
        v = (yield from best_scale(v)) * v
    alike = learner.regime in (Regime.ALL_ROWS, Regime.WORKING_SET)
    loss = JointLoss(np.zeros(len(v)), alike=alike)
    solved = yield from loss.minimise(v, precision)
    learner.best.candidate = solved.v
    progress.reports[-1].newton_steps += solved.steps
    error, rounding = precision * solved.primal, solved.seen.lengths / 24.0
    b = finer_resolution(progress.b, rounding, error, max(solved.seen.largest))
    progress.b = progress.reports[-1].b = b


def solve_with_rest(learner: Learner) -> Rounds[None]:
    """Minimise P of the rows in memory of all parts and of the quadratic of the others; rows are
    judged there from now on."""
    outside = learner.outside
    assert outside is not None
    outside.mirror()
    precision = SHARE * max(learner.settings.tolerance, ROUNDING_GAP)
    loss = JointLoss(np.zeros(len(outside.v)), alike=False, rest=outside)
    solved = yield from loss.minimise(outside.v, precision)
    outside.v = solved.v
    learner.progress.reports[-1].newton_steps += solved.steps


def _start(learner: Learner) -> Vector:
    """The weights from which to solve, at scale 1: those that were scanned, if there are any."""
    best, frozen, running = learner.best, learner.frozen, learner.running
    if best.candidate is not None:
        return best.candidate
    if frozen is not None and frozen.w.any():
        return frozen.scan_sums.scale * np.append(frozen.w, frozen.bias)
    return running.augmented(running.scale)


def _solve_block(learner: Learner) -> Rounds[None]:
    """Solve the rows in memory, and move the counts RELAXATION times as far as to the solution, or
    just as far if D would fall."""
    progress, running, b = learner.progress, learner.running, learner.progress.b
    held: Moved = yield local.sum_held, (len(running.w),)
    rest = WeightState()
    shift(rest, Moved(running.augmented(1.0), running.extension, running.steps))
    shift(rest, Moved(-held.a, -held.extension, -held.steps))
    loss = JointLoss(rest.augmented(1.0 / b), alike=False, constant=rest.objective_at(b))
    solved = yield from loss.minimise(running.augmented(1.0 / b), worthwhile_gap(learner))
    progress.reports[-1].newton_steps += solved.steps
    objective = running.objective_at(b)
    for relaxation in (RELAXATION, 1.0):
        shift(running, (yield local.move, (solved.v, b, relaxation)))
        if running.objective_at(b) >= objective:
            break
    learner.best.candidate = learner.best.average.add(solved.v)


def shift(running: WeightState, moved: Moved) -> None:
    """Add a change of the dual point to the running weights."""
    w = np.zeros(max(len(running.w), len(moved.a) - 1))
    w[: len(running.w)] = running.w
    w[: len(moved.a) - 1] += moved.a[:-1]
    running.settle(
        w, running.bias + float(moved.a[-1]), running.extension + moved.extension,
        running.steps + moved.steps,
    )  # fmt: skip
