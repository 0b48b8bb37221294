"""One learner's problem on the rows of a part, and the steps that change its dual variables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamtron.core.errors import DataError
from streamtron.core.scan_sums import ScanSums
from streamtron.solver.alphas import Alphas, read_state, write_state
from streamtron.solver.held_loss import PartLoss, Vector
from streamtron.solver.hessian import NO_QUADRATIC, Outside, QuadraticSums
from streamtron.solver.learner import Learner, Memory, augment, freeze
from streamtron.solver.progress import BestWeights
from streamtron.solver.targets import relaxed, to_alphas
from streamtron.solver.weights import DualPoint, WeightState


class ReadingPlan(NamedTuple):
    """What a reading does for a problem, by its number: it certifies the weights ``w``, ``bias``
    (None: no weights); ρ is the feature of the bias.
    ``start`` : the dual point of all parts from which rows are visited; None = none are visited."""

    problem: int
    memory: Memory
    w: Vector | None
    bias: float
    rho: float
    start: DualPoint | None


class ReadingSums(NamedTuple):
    """The sums of a scan at fixed weights, if there was one; the rows in memory after it; each
    part's memory; where columns are few, the quadratic of the rows outside memory; and the best
    weights of each part, augmented, where each has trained on its rows alone."""

    sums: tuple[ScanSums, ...]
    held: int
    memories: list[Memory]
    quadratic: QuadraticSums
    weights: tuple[Vector, ...] = ()


class HeldSums(NamedTuple):
    """The dual point of the rows in memory; how many they are, and their nonzeros."""

    dual: DualPoint
    rows: int
    nonzeros: int


class Settlement(NamedTuple):
    """What becomes of the α of a problem at the end of a reading. ``v`` : weights that solve the
    rows held, if these are all that matter, whose α are theirs from now on. ``take_back`` : whether
    what visits have changed is taken back."""

    problem: int
    v: Vector | None
    take_back: bool


class PartProblem(PartLoss):
    """One learner's problem on the rows of a part, which it numbers from 0."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.loss, learner.active, learner.augmentation)
        self.learner = learner
        self._certified: Alphas | None = None  # those before a reading that visits rows
        self._base: DualPoint | None = None  # that of all parts from which rows are visited
        self._before = np.zeros(0, dtype=np.float32)  # the α of the rows held before a solve

    def end_start(self) -> ReadingSums:
        """Return what the part's rows alone have led to."""
        learner = self.learner
        v = learner.best.candidate
        if v is None:
            v = np.zeros(learner.columns + 1)
        learner.best = BestWeights(np.zeros(learner.columns))
        return self.end_reading()._replace(weights=(v,))

    def begin_reading(self, number: int, plan: ReadingPlan) -> None:
        """Prepare a reading; see ``ReadingPlan``."""
        learner, self.rho, self._certified = self.learner, plan.rho, None
        learner.progress.reading = number
        augment(learner, plan.rho)
        learner.visits, learner.running = plan.start is not None, WeightState(learner.columns)
        learner.frozen = None if plan.w is None else freeze(learner, plan.w, plan.bias)
        if plan.start is not None:
            self._certified = Alphas.of(learner.alphas.nonzero())
            self.start_visits(plan.start)
        if plan.memory != Memory.ALL_ROWS:
            learner.memory = plan.memory
            learner.active.clear()

    def end_reading(self) -> ReadingSums:
        """Return the sums of a reading, and what is held now."""
        learner, frozen = self.learner, self.learner.frozen
        learner.frozen, learner.running, self._base = None, WeightState(learner.columns), None
        self.renew()
        sums = () if frozen is None else (frozen.scan_sums,)
        return ReadingSums(sums, len(learner.active), [learner.memory], self._sum_rest())

    def settle(self, settlement: Settlement) -> None:
        """End a reading, whose solves are done; see ``Settlement``."""
        learner, (_, v, take_back) = self.learner, settlement
        if take_back and self._certified is not None:
            learner.alphas = self._certified
        if v is not None:
            alpha = self.alpha(self.margins_of(v))
            learner.alphas.put(learner.active.numbers, to_alphas(alpha, self.domain))
        self._certified = None

    def save(self, path: str, rows: int) -> None:
        """Save the state after a reading; ``rows`` : of the part."""
        learner = self.learner
        write_state(
            path,
            learner.alphas,
            rows=rows,
            center=learner.targets.center,
            rho=learner.augmentation,
            shuffles=learner.shuffles,
        )

    def restore(self, path: str, reading: int, rows: int) -> None:
        """Restore the state after a reading."""
        learner = self.learner
        content, arrays = read_state(path)
        if content["rows"] != rows:
            raise DataError(
                f"{path}: the state of a part of {content['rows']} rows, and its shards have "
                f"{rows}. Give the shards as they were, or fit again with --overwrite."
            )
        learner.alphas = Alphas.of_gaps(arrays["gaps"], arrays["alphas"])
        learner.targets.center = content["center"]
        augment(learner, content["rho"])
        learner.shuffles = content["shuffles"]
        learner.progress.reading = reading

    def renew(self) -> None:
        """Take the rows, signs and α that are held now."""
        learner = self.learner
        self.held, self.loss, self.rho = learner.active, learner.loss, learner.augmentation
        super().renew()
        self.take_shares(learner.alphas.take(learner.active.numbers))

    def _sum_rest(self) -> QuadraticSums:
        """Take out the quadratic of the rows outside memory."""
        learner, outside = self.learner, self.learner.outside
        learner.outside = None
        if learner.memory != Memory.FEW_COLUMNS:
            return NO_QUADRATIC
        return (outside or Outside(np.zeros(learner.columns + 1), 0.0)).sums

    def sum_held(self) -> HeldSums:
        """Sum what the rows in memory are, which are to be solved."""
        self.renew()
        learner = self.learner
        self._before = learner.alphas.take(learner.active.numbers)
        dual = self.dual_point(self._before, learner.columns)
        return HeldSums(dual, len(learner.active), learner.active.nonzeros)

    def move(self, v: Vector, relaxation: float) -> DualPoint:
        """Move the α of the rows in memory from where they were before the solve to those of v,
        ``relaxation`` times as far; return what that changes."""
        learner, start, domain = self.learner, self._before, self.domain
        solution = to_alphas(self.alpha(self.margins_of(v)), domain)
        moved = relaxed(start, solution, relaxation, domain)
        learner.alphas.put(learner.active.numbers, moved)
        columns = learner.columns
        return self.dual_point(moved, columns).plus(self.dual_point(start, columns), -1)

    def start_visits(self, base: DualPoint) -> tuple[()]:
        """Take the dual point of all parts, from which rows are visited."""
        self._base, self.learner.running = base, WeightState(0)
        self.learner.running.take(base)
        return ()

    def moved(self) -> DualPoint:
        """Return what visits have changed of the dual point."""
        assert self._base is not None
        return self.learner.running.dual_point.plus(self._base, -1)
