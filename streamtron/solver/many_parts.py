"""Train linear classifiers on rows that lie in many parts, maybe in other processes.

The problem is that of ``train``, or one such problem a class. Every step below is a function mapped
over the parts and a sum over a fixed binary tree of them: the result depends on the parts, and not
on the threads, processes or machines that hold them.

1. Each part trains on its own rows alone. Any sum of counts ≥ 0 is a dual point.
2. Newton's method on the rows in memory of all parts together: a round for P and ∇P, and one in
   which each part solves with its own Hessian, or, where columns are many, one for every product
   with the Hessian of all. A vector of a number a column goes to each part and comes back; those of
   all classes that are not done yet go together.
3. Counts from the slacks, and one scan of all rows from disk at fixed weights. It certifies, and
   finds the rows that matter next. Repeat from 2 until the gap is at most ``tol``.

Where the memories of all parts together do not hold the rows that matter, a reading visits rows, in
every part from the same weights, until memory is full; then the rows held are solved as in 2, the
dual variables of all others fixed, most of them are dropped, and the reading goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.events import Listener
from streamtron.core.executor import Each, Parts, Wanted
from streamtron.core.rows import ChunkSource, Label
from streamtron.solver.checkpoint import NOT_BEGUN, Resumed
from streamtron.solver.hessian import Outside
from streamtron.solver.joint import in_lockstep
from streamtron.solver.learner import (
    Learner,
    begin_quadratic,
    begin_stage,
    end_quadratic,
    enter,
    hold_elsewhere,
)
from streamtron.solver.part import Part
from streamtron.solver.part_problem import LocalStart, PartProblem, ReadingPlan, ReadingSums
from streamtron.solver.reading import solve_block
from streamtron.solver.stages import LARGEST_COUNT, Regime
from streamtron.solver.subproblem import Solve
from streamtron.solver.targets import Extent
from streamtron.solver.train import Checkpointer, Data

TAKEN = 1
"""The number of chunks taken when a reading is complete: parts do not count them."""

FINER = 16
"""The counts of the local starts are multiplied by at least this: so whole factors change the share
of each part in the dual point by 1/32 at most."""


class ManyParts(Data):
    """The rows of many parts.

    ``learners`` : none, to begin: one is added for two classes, else one a label. They hold no rows
    and no counts: their weights, certificates and progress are those of all parts. ``labels`` :
    those of all parts once they have been read: then ``meet`` is called, which refuses parts that
    do not go together and returns the width of all. ``ended`` : is called when training has ended.
    """

    def __init__(
        self,
        parts: Parts,
        learners: list[Learner],
        settings: Settings,
        labels: list[Label],
        listen: Listener,
        checkpointer: Checkpointer | None,
        meet: Callable[[], int],
        ended: Callable[[], object],
    ) -> None:
        super().__init__(learners, settings, listen, checkpointer)
        self._parts, self._labels, self._meet, self._ended = parts, labels, meet, ended
        self._readings = [learner.progress.reading for learner in learners]
        self.reading = 1 + max(self._readings, default=-1)

    def expects_learners(self, reading: int) -> bool:
        """Whether learners come to be in this reading."""
        return not self.learners

    def read(
        self, reading: int, learners: list[Learner], resumed: Resumed | None
    ) -> tuple[int, int]:
        """Have learners take all rows in all parts, or begin with the local starts of the parts."""
        if resumed is None or resumed.chunks == NOT_BEGUN:
            if self.learners:
                self._read(reading, self._numbered(learners))
            else:
                self._start()
                learners += self.learners
            self._parts.saved(self._readings)
        self._parts.gap_estimate = None
        return TAKEN, learners[0].extent.rows

    def end(self) -> None:
        """Tell that training has ended, and hand over the state of the run."""
        self._ended()
        super().end()

    def before_solves(self, reading: int, chunks: int) -> None:
        """Save a checkpoint, for parts keep the states of the last two readings alone."""
        if self.checkpointer:
            self.checkpointer.checkpoint(partial(self.state, reading, chunks))

    def offer_checkpoint(self, reading: int, chunks: int) -> None:
        """Offer none: within a reading parts save no state."""

    def solve(
        self,
        learners: Sequence[Learner],
        begin: Callable[[Learner], Solve],
        reading: int,
        chunks: int,
    ) -> None:
        """Run a solve of every learner, in lockstep."""
        numbered = self._numbered(learners)
        solves = {number: begin(learner) for number, learner in numbered.items()}
        in_lockstep(self._parts, solves, _longest(learners))
        visited = [learner for learner in learners if learner.finished and learner.mode == "train"]
        if visited:  # their certificate is of the counts before the visits
            for learner in visited:
                assert learner.frozen is not None
                learner.running.settle_scanned(learner.frozen.scan_sums)
            self._parts(Part.take_back, [*self._numbered(visited)])
            self._parts.saved(self._readings)

    def _numbered(self, learners: Sequence[Learner]) -> dict[int, Learner]:
        return {self.learners.index(learner): learner for learner in learners}

    def _start(self) -> None:
        """Have each part train on its rows alone, and take the sums of the weights: of one learner
        for two classes, else of one a label. DataError: the parts do not go together."""
        parts, settings, units, center = self._parts, self.settings, {}, 0.0
        if settings.regression and settings.free:
            center = float(np.mean(parts(Part.describe, first_mean)))
        parts(Part.start, center)
        width = self._meet()
        labels = [None] if settings.regression else self._labels
        for number, start in enumerate(parts(Part.join, labels, width)):
            positive = self._labels[number] if settings.one_vs_rest else None
            self.learners.append(Learner(settings, self._labels, None, positive))
            unit = _take_start(self.learners[number], start)
            if unit is not None:
                units[number] = unit
        if units:
            points = parts(Part.take_units, units, width)
            for number, point in zip(units, points, strict=True):
                self.learners[number].running.take(point)
        few = [learner for learner in self.learners if learner.outside is not None]
        steps = [(PartProblem.sum_rest, (len(learner.running.w),)) for learner in few]
        for learner, sums in zip(few, self._each(self._numbered(few), steps), strict=True):
            assert learner.outside is not None
            learner.outside.take(sums)
        self._readings = [0] * len(self.learners)

    def _read(self, number: int, learners: Mapping[int, Learner]) -> None:
        """Read all rows: scan them, or visit them and solve those held where memory is full."""
        parts, plans = self._parts, [*map(_plan, learners, learners.values())]
        visiting = {plan.problem: learners[plan.problem] for plan in plans if plan.start}
        if visiting:
            fullness = parts(Part.read, number, plans)
            while fullness.parts:
                full = [plan.problem for plan, k in zip(plans, fullness.full, strict=True) if k]
                if full:
                    self._solve_blocks({k: visiting[k] for k in full})
                fullness = parts(Part.read_on, not full)
            self._take_moves(visiting)
            sums = parts(Part.end_reading)
        else:
            sums = parts(Part.scan, number, plans)
        for learner, reading_sums in zip(learners.values(), sums, strict=True):
            _take_sums(learner, reading_sums)
        for k in learners:
            self._readings[k] = number

    def _solve_blocks(self, learners: Mapping[int, Learner]) -> None:
        """Solve the rows held of learners whose memory is full somewhere, and let the visits go on
        from there."""
        self._take_moves(learners)
        for learner in learners.values():
            enter(learner, Regime.BLOCKS)
        solves = {number: solve_block(learner) for number, learner in learners.items()}
        in_lockstep(self._parts, solves, _longest(learners.values()))
        steps = [
            (PartProblem.start_visits, (learner.running.dual_point,))
            for learner in learners.values()
        ]
        self._each(learners, steps)

    def _take_moves(self, learners: Mapping[int, Learner]) -> None:
        steps: list[Wanted] = [(PartProblem.moved, ())] * len(learners)
        for learner, change in zip(learners.values(), self._each(learners, steps), strict=True):
            learner.running.take(learner.running.dual_point.plus(change))

    def _each(self, numbers: Iterable[int], steps: Sequence[Wanted]) -> Sequence[Any]:
        """Make a round of steps of so many problems, if there are any."""
        wanted = [*zip(numbers, steps, strict=True)]
        return self._parts(Each(wanted), wanted) if wanted else ()


def first_mean(source: ChunkSource) -> float:
    """Return the mean of the labels, which are numbers, of the first rows; 0 without rows."""
    return next((float(chunk.codes.mean()) for chunk in source.chunks()), 0.0)


def _longest(learners: Iterable[Learner]) -> int:
    return 1 + max((len(learner.running.w) for learner in learners), default=0)


def _plan(number: int, learner: Learner) -> ReadingPlan:
    """Return what a reading does for a learner, which has begun it."""
    frozen = learner.frozen
    assert frozen is not None
    return ReadingPlan(
        number,
        frozen.w,
        frozen.bias,
        frozen.scan_sums.scale,
        learner.progress.b,
        learner.augmentation,
        few=learner.regime == Regime.FEW_COLUMNS,
        start=learner.running.dual_point if learner.mode == "train" else None,
    )


def _take_sums(learner: Learner, reading_sums: ReadingSums) -> None:
    frozen, scan_sums = learner.frozen, reading_sums.sums
    assert frozen is not None
    scan_sums.fold()
    if not learner.extent.rows:
        _observe(learner, reading_sums.extents)
    if (columns := len(scan_sums.fresh)) > len(frozen.w):  # of rows that no scan had met
        frozen.widen(columns)
        learner.running.widen(columns)
    frozen.scan_sums = scan_sums
    hold_elsewhere(learner, reading_sums.held)
    enter(learner, _worst([learner.regime, *reading_sums.regimes]))
    if learner.outside is not None and learner.regime == Regime.BLOCKS:
        end_quadratic(learner)  # a part has met other columns
    elif learner.outside is not None:
        learner.outside.take(reading_sums.quadratic)


def _take_start(learner: Learner, start: LocalStart) -> tuple[float, float] | None:
    """Take the sums of the local starts. Where memory does not hold all rows that have a count, the
    sum of the dual points is the one to begin with: return a unit b for its counts, and θ, its best
    scale; of a loss that is not quadratic begin with none."""
    hold_elsewhere(learner, start.held)
    learner.progress.plan_ascent()
    _observe(learner, start.extents)
    enter(learner, _worst(start.regimes))
    if learner.regime.needs_blocks(learner.loss):
        enter(learner, Regime.BLOCKS)
    start.dual[-1] *= learner.augmentation / (learner.settings.augmentation or 1.0)
    begin_stage(learner)
    learner.running.widen(len(start.dual) - 1)
    mean = start.weights / len(start.regimes)
    learner.best.propose(mean)
    if learner.regime == Regime.FEW_COLUMNS:
        begin_quadratic(learner, Outside(mean, math.inf))
    if learner.regime != Regime.BLOCKS:
        return None
    if not learner.loss.quadratic:
        return learner.progress.b, 0.0
    theta = start.steps / (kernels.square_sum(start.dual) + start.extension)
    units = zip(start.largest, start.units, strict=True)
    largest = max((count / b for count, b in units if b), default=0)
    b = FINER * max(start.units) / theta
    if largest:
        b = max(min(b, LARGEST_COUNT / (theta * largest)), max(start.units))
    learner.progress.refine(b)
    return b, theta


def _observe(learner: Learner, extents: Sequence[Extent]) -> None:
    for extent in extents:
        learner.extent.join(extent)


def _worst(regimes: Sequence[Regime]) -> Regime:
    """The regime of the part whose memory holds least."""
    order = [Regime.ALL_ROWS, Regime.WORKING_SET, Regime.FEW_COLUMNS, Regime.BLOCKS]
    return max(regimes, key=order.index)
