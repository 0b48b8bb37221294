"""Newton's method on the rows in memory of all parts: as maps and sums, a round each.

A solve is a generator: it yields the step that it wants made on its learner's rows in all parts,
and is sent the sum. Steps of different learners go in one round, so that what a round costs beside
its work, some milliseconds on workers, is paid once. What a learner finds does not depend on the
others.

A Newton step is a round for P and ∇P where it leads, and, where columns are few, for the Hessian
there: its direction then needs no round. Else one for every product with the Hessian comes before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.executor import Parts, Wanted
from streamtron.core.penalty import Penalty
from streamtron.core.rows import Vector
from streamtron.solver import few_columns, newton, proximal_newton
from streamtron.solver.few_columns import SPARSE
from streamtron.solver.held_loss import GapEstimate, LossTerms, PartLoss, Rounds
from streamtron.solver.hessian import (
    HEAD,
    PAIR_NUMBERS,
    PAIRS,
    Head,
    KeptProducts,
    Outside,
    even_lengths,
    mirror,
    solved_directly,
)
from streamtron.solver.learner import Learner, Memory, take_solution
from streamtron.solver.newton import Objective, Point
from streamtron.solver.part import BlockSums, PartProblem
from streamtron.solver.proximal_newton import (
    Direction,
    Optimum,
    Penalised,
    descend,
    diagonal_of,
    slope_along,
    slopes_of,
)
from streamtron.solver.stopping import worthwhile_gap
from streamtron.solver.subproblem import RELAXATION
from streamtron.solver.weights import DualPoint

THETAS = np.array([0.0, 0.0625, 0.125, 0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6, 2.0, 4.0, 8.0])
"""Where a line search asks for the slope of P, all in one round; a full Newton step is θ = 1
(``benchmarks/parts.py``)."""

SAFETY = 0.8
"""The last step is solved to this part of the ‖∇P‖ that may be left: some rows change sides
(``benchmarks/parts.py``)."""

ACCEPTED = 0.1
"""A step θ d is taken if P falls by this part of −∇P·θd, for which a full one needs the θ of least
P to be 5/9; else that θ is looked for (``benchmarks/parts.py``)."""

EXACTER = 1.0, 0.1
"""To these parts of the worthwhile gap a block is solved: the second, where the first lowers D."""

FULLY, PARTLY = (RELAXATION, 1.0), (0.5, 0.25, 0.0)
"""How far α goes to the solution of a block: the first of these that does not lower D."""

NUMBERS = 1 << 27
"""What the solves that go together may keep: 1 GB."""


def in_lockstep(parts: Parts, solves: Mapping[int, Rounds[None]], columns: int) -> None:
    """Run solves to their ends, named by the number of their learner in the parts: as many at once
    as may keep products, or the Hessian and its factor, over these columns."""
    kept = max(min(2 * PAIRS * columns, PAIR_NUMBERS), 2 * min(columns, HEAD) ** 2)
    at_once = max(1, NUMBERS // kept)
    waiting, gaps = iter(solves), dict[int, float]()
    steps: dict[int, Wanted] = {}
    sums: dict[int, Any] = dict.fromkeys(islice(waiting, at_once))
    while sums:
        for number, total in sums.items():
            steps.pop(number, None)
            try:
                step = solves[number].send(total)
                while isinstance(step, GapEstimate):
                    gaps[number] = step.gap
                    parts.gap_estimate = max(gaps.values())
                    step = next(solves[number])
                steps[number] = step
            except StopIteration:
                pass
        if begun := list(islice(waiting, at_once - len(steps))):
            sums = dict.fromkeys(begun)
        elif steps:
            sums = dict(zip(steps, parts.each(list(steps.items())), strict=True))
        else:
            sums = {}


class JointObjective(Objective[LossTerms]):
    """P of the rows in memory of all parts, and an approximate inverse of its Hessian: exact where
    columns are few; else exact on the heaviest columns (see ``_heaviest``) and diagonal elsewhere,
    corrected by the products that earlier steps have made."""

    def __init__(
        self,
        center: Vector,
        learner: Learner,
        outside: Outside | None = None,
        constant: float = 0.0,
        *,
        direct: bool = True,
    ) -> None:
        super().__init__(center, learner.loss.zone, outside, constant)
        columns = len(center)
        self._few = direct and columns <= HEAD
        self._columns = np.arange(columns if self._few else 0)  # of the head at the next look
        self._head = Head(self._columns)
        self._diagonal = np.zeros(columns, dtype=np.float32)
        self._products = KeptProducts(columns)

    def approach(self, v: Vector, zone: float) -> Rounds[None]:
        """See ``Objective``."""
        self._products = KeptProducts(len(self._center))
        yield PartLoss.approach, (v, zone)

    def smoothing(self, here: Point[LossTerms]) -> tuple[float, float]:
        """See ``Objective``."""
        return here.known.smoothing

    def begin(self, v: Vector, precision: float, *, proven: bool) -> Rounds[Point[LossTerms]]:
        """See ``Objective``."""
        here = yield from self.look(v)
        return (yield from newton.minimise(self, here, precision, proven=proven))

    def look(self, v: Vector, steps: int = 0) -> Rounds[Point[LossTerms]]:
        """Return P and ∇P at v, and take H there."""
        terms: LossTerms = yield PartLoss.look, (v, self._columns)
        self._diagonal, self._head = terms.diagonal, Head(self._columns)
        gram = np.zeros((len(self._head), len(self._head)))
        gram[np.tril_indices(len(gram))] = terms.head
        if self._outside is not None:
            self._diagonal = self._diagonal + np.diagonal(self._outside.gram)
            gram += self._outside.gram[np.ix_(self._columns, self._columns)]
        if len(self._head) and not self._head.factorise(gram):
            self._few, self._columns = False, self._head.columns
        return self.at(v, terms.loss, terms.gradient, steps, terms)

    def step(
        self, here: Point[LossTerms], enough: float, accuracy: float
    ) -> Rounds[Point[LossTerms] | None]:
        """Return where a Newton step leads: as it is if P falls enough, else to the least P along
        it, if P falls at all."""
        direction = yield from self._direction(here.gradient, enough)
        slope, square = kernels.dot(here.gradient, direction), self.curvature_along(direction)
        linear, theta, thetas = kernels.dot(here.smooth, direction), 1.0, THETAS
        for _ in range(newton.LINE_STEPS):
            there = yield from self.look(here.v + theta * direction, here.steps + 1)
            lower = ACCEPTED * theta * slope + newton.FLAT * here.primal
            if there.primal <= here.primal + lower:
                break
            terms = yield PartLoss.line, (direction, thetas - theta)
            theta, thetas = root(terms, linear, square, thetas)
        return there

    def _direction(self, gradient: Vector, enough: float) -> Rounds[Vector]:
        """Return the d that solves H d = −∇P; where columns are many, and if no row changes sides,
        well enough for ``enough`` of ‖∇P‖² to be left. What it learns of H, the products and which
        columns are the heaviest, serves the next look."""
        if self._few:
            return self._solve(-gradient)
        accuracy = min(max(newton.EXACT, SAFETY * math.sqrt(enough)), newton.ROUGH)
        products: list[tuple[Vector, Vector]] = []

        def multiply(v: Vector) -> Rounds[Vector]:
            image: Vector = v + (yield PartLoss.product, (v,))
            if self._outside is not None:
                image += self._outside.product(v)
            products.append((v, image))
            return image

        direction = yield from newton.conjugate_gradients(
            multiply, partial(self._products.correct, self._solve), gradient, accuracy
        )
        for pair in products:
            self._products.add(*pair)
        self._columns = _heaviest(self._diagonal)
        return direction

    def _solve(self, residual: Vector) -> Vector:
        """Return about H⁻¹ r, without the products."""
        return self._head.solve(1.0 + self._diagonal.astype(np.float64), residual)


class JointPenalised(Penalised[LossTerms]):
    """R and the loss of the rows in memory of all parts: a step is a round for P, its gradient and
    H on the weights that might move before; and one for H on those that may move, where others do.
    With more than SPARSE weights, those farthest from their optimum move."""

    _head = np.zeros(0, dtype=np.int64)  # the columns on which the next look takes H

    def begin(self, v: Vector) -> Rounds[Optimum[LossTerms]]:
        """See ``Penalised``."""
        return self._look(v, 0)

    def _look(self, v: Vector, steps: int) -> Rounds[Optimum[LossTerms]]:
        terms: LossTerms = yield PartLoss.look, (v, self._head)
        primal, pull = self.penalty.value(v) + terms.loss, -terms.gradient
        gap = self.judge(primal, terms.loss + float(kernels.dot(pull, v)), pull)
        return Optimum[LossTerms](v, primal, gap, pull, steps, terms)

    def step(self, here: Optimum[LossTerms]) -> Rounds[Direction[LossTerms]]:
        """See ``Penalised``."""
        v, lasso, terms = here.v, self.penalty.lasso, here.known
        gradient, moving = slopes_of(v, here.pull, self.penalty)
        if len(moving) > SPARSE:
            beyond = np.abs(gradient + lasso * np.sign(v)) - lasso * (v == 0.0)
            beyond[-1] = math.inf
            moving = np.sort(moving[np.argpartition(-beyond[moving], SPARSE)[:SPARSE]])
        if not np.isin(moving, self._head).all():
            self._head = moving
            terms = yield PartLoss.look, (v, moving)
        head = self._head
        hessian = np.zeros((len(head), len(head)))
        hessian[np.tril_indices(len(head))] = terms.head
        mirror(hessian)
        np.einsum("ii->i", hessian)[:] += diagonal_of(self.penalty, len(v))[head]
        step, order = np.zeros(len(v)), np.searchsorted(head, moving)
        step[head] = descend(hessian, order, lasso, v[head], gradient[head], here.steps)
        self._head = moving

        def go(theta: float) -> Rounds[Optimum[LossTerms]]:
            return self._look(v + theta * step, here.steps + 1)

        return slope_along(step, v, gradient, lasso), go


def _heaviest(diagonal: NDArray[np.float32]) -> NDArray[np.int64]:
    """The √(2n) columns of the largest H_jj, rising: the triangle of H on them has as many numbers
    as a vector."""
    size = min(math.isqrt(2 * len(diagonal)), HEAD)
    return np.sort(np.argsort(-diagonal, kind="stable")[:size])


def root(terms: Vector, linear: float, square: float, thetas: Vector) -> tuple[float, Vector]:
    """Return about the θ of the least P, and where to look closer; ``terms`` : see
    ``PartLoss.line``. The rest of P has the slope ``linear`` + θ ``square``."""
    first, second = linear + thetas * square + terms[:, 0], square + terms[:, 1]
    high = max(int(np.argmax(first >= 0.0)), 1) if first[-1] >= 0.0 else len(first) - 1
    ends = slice(high - 1, high + 1)
    low, high = thetas[ends]
    roots = np.clip(thetas[ends] - first[ends] / second[ends], low, high)
    return float(0.5 * (roots[0] + roots[1])), np.linspace(low, high, len(thetas))


def solve_jointly(learner: Learner) -> Rounds[None]:
    """Solve the rows in memory of all parts: all that matter; or a block, the dual variables of all
    other rows fixed."""
    if learner.memory == Memory.FEW_COLUMNS:
        yield from few_columns.finish(learner, _minimise_jointly)
        return
    if learner.in_buffers:
        yield from _solve_block(learner)
        return
    solution: Point[LossTerms] | Optimum[LossTerms]
    precision, v = worthwhile_gap(learner), _start(learner)
    if ratio := learner.settings.ratio:
        penalised = JointPenalised(Penalty.of(ratio), learner.best.zeros)
        solution = yield from proximal_newton.minimise(penalised, v, precision)
    else:
        if learner.progress.reading == 0 and learner.loss.quadratic:
            terms = yield PartLoss.line, (v, THETAS)
            v = root(terms, 0.0, kernels.square_sum(v), THETAS)[0] * v
        solution = yield from JointObjective(np.zeros(len(v)), learner).solve(v, precision)
    take_solution(learner, solution.v, newton_steps=solution.steps)


def _minimise_jointly(
    learner: Learner, outside: Outside, precision: float
) -> Rounds[tuple[Vector, int]]:
    """Minimise P of the rows in memory of all parts and of the quadratic of all others."""
    objective = JointObjective(np.zeros(len(outside.v)), learner, outside)
    solution = yield from objective.solve(outside.v, precision)
    return solution.v, solution.steps


def _start(learner: Learner) -> Vector:
    """The weights from which to solve: those that were scanned, if there are any."""
    best, frozen, running = learner.best, learner.frozen, learner.running
    if best.candidate is not None:
        return best.candidate
    if frozen is not None and frozen.w.any():
        return frozen.augmented
    return running.augmented


def _solve_block(learner: Learner) -> Rounds[None]:
    """Solve the rows in memory, and move their α there; if D would fall, solve them better
    first."""
    running = learner.running
    block: BlockSums = yield PartProblem.begin_block, (learner.augmentation,)
    running.take(start := running.dual_point.plus(block.moved))
    remainder, v, steps = start.plus(block.held, -1), running.augmented, 0
    lengths = even_lengths(block.rows, block.nonzeros)
    direct = solved_directly(lengths, len(v))  # else products of a few rows cost less
    objective = JointObjective(remainder.v, learner, constant=remainder.objective, direct=direct)
    for part in EXACTER:
        solution = yield from objective.solve(v, part * worthwhile_gap(learner))
        v, steps = solution.v, steps + solution.steps
        if (yield from _move(learner, start, v, FULLY)):
            break
    else:
        yield from _move(learner, start, v, PARTLY)
    take_solution(learner, v, newton_steps=steps)


def _move(learner: Learner, start: DualPoint, v: Vector, factors: Sequence[float]) -> Rounds[bool]:
    """Move the α of the rows in memory to those of v, the first of the factors times as far
    with which D is not below that of ``start``; whether there is one."""
    running, dual = learner.running, start.objective
    for factor in factors:
        change: DualPoint = yield PartProblem.move, (v, factor)
        running.take(start.plus(change))
        if running.objective >= dual:
            return True
    return False
