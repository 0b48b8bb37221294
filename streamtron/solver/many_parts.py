"""Train linear models on rows that lie in many parts, maybe in other processes.

The problem is that of ``train``, or one such problem a class. Every step below is a function mapped
over the parts and a sum over a fixed binary tree of them: the result depends on the parts, and not
on the threads, processes or machines that hold them.

1. Where memory holds all rows, or columns are few, each part trains on its own rows alone; the mean
   of their weights is where step 2 begins.
2. Newton's method on the rows in memory of all parts together: a round for P and ∇P, and one in
   which each part solves with its own Hessian, or, where columns are many, one for every product
   with the Hessian of all. A vector of a number a column goes to each part and comes back; those of
   all classes that are not done yet go together.
3. α from the slacks, and one scan of all rows at fixed weights. It certifies, and finds the
   rows that matter next. Repeat from 2 until the gap is at most ``tol``.

Where the memories of all parts together do not hold the rows that matter, a reading visits rows, in
every part from the same weights, until memory is full; then the rows held are solved as in 2, the
dual variables of all others fixed, most of them are dropped, and the reading goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

from streamtron.core.events import Listener, ignore
from streamtron.core.executor import Parts
from streamtron.solver.joint import in_lockstep, solve_jointly
from streamtron.solver.learner import Learner, Memory, enter, hold_elsewhere
from streamtron.solver.part import Part, PartSize, ReadingPlan, ReadingSums, Settlement
from streamtron.solver.subproblem import Solve
from streamtron.solver.train import Checkpointer, Trainer, obey_stop
from streamtron.solver.weights import DualPoint
from streamtron.solver.working_set import choose_memory


class ManyParts(Trainer):
    """The rows of many parts.

    ``learners`` : hold no rows and no α: their weights, certificates and progress are those of
    all parts. They are new, or the parts are as they were after the learners' last readings.
    """

    def __init__(
        self,
        parts: Parts,
        learners: Sequence[Learner],
        listen: Listener = ignore,
        checkpointer: Checkpointer | None = None,
    ) -> None:
        super().__init__(learners, learners[0].settings, listen, checkpointer)
        self._parts, self.parts_size = parts, PartSize(0, 0, 0, 0, 0)
        self.solve_held = solve_jointly
        self.kept: list[Learner] | None = None  # as they were after the last reading
        last = max(learner.progress.reading for learner in learners)
        self.reading = 0 if _is_new(learners[0]) else 1 + last

    @property
    def size(self) -> tuple[int, int]:
        """Rows and nonzeros of the data."""
        return self.parts_size.rows, self.parts_size.nonzeros

    def begin(self, learners: Sequence[Learner]) -> None:
        """Have the parts hold all their rows, if all have them in memory; else choose what they are
        to hold."""
        size = self.parts_size = self._parts(Part.describe)
        for learner in learners:
            hold_elsewhere(learner, 0)
            if size.held == size.parts:
                enter(learner, Memory.ALL_ROWS)
            elif learner.complete or not learner.progress.readings:
                choose_memory(learner, *self.size)

    def read(self, reading: int, learners: Sequence[Learner]) -> int:
        """Have learners take all rows in all parts, or begin with the local starts of the parts."""
        memory = learners[0].memory
        if _is_new(learners[0]) and memory in (Memory.ALL_ROWS, Memory.FEW_COLUMNS):
            sums = self._parts(Part.start, memory)
        else:
            sums = self._read(reading, self._numbered(learners))
        for learner, reading_sums in zip(learners, sums, strict=True):
            _take_sums(learner, reading_sums, self.parts_size.parts)
        self._parts.gap_estimate = None
        obey_stop()
        return self.parts_size.rows

    def end_reading(self, learners: Sequence[Learner]) -> None:
        """Have the parts settle and save their α; a certificate is of those before visits."""
        numbered, settlements = self._numbered(learners), []
        for number, learner in numbered.items():
            take_back = learner.finished is not None and learner.visits
            v = None
            if learner.finished is None and learner.memory in (Memory.ALL_ROWS, Memory.WORKING_SET):
                v = learner.best.candidate
            settlements.append(Settlement(number, v, take_back))
        self._parts(Part.settle, settlements)

    def solve(self, learners: Sequence[Learner], begin: Callable[[Learner], Solve]) -> None:
        """Run a solve of every learner, in lockstep."""
        solves = {number: begin(learner) for number, learner in self._numbered(learners).items()}
        in_lockstep(self._parts, solves, self.learners[0].columns + 1)
        obey_stop()

    def save(self) -> None:
        """See ``Trainer``; learners are kept as they are, if the parts may be lost."""
        super().save()
        if self._parts.may_be_lost:
            self.kept = copy.deepcopy(self.learners)

    def _numbered(self, learners: Sequence[Learner]) -> dict[int, Learner]:
        return {self.learners.index(learner): learner for learner in learners}

    def _read(self, number: int, learners: Mapping[int, Learner]) -> tuple[ReadingSums, ...]:
        """Read all rows: scan them, or visit them and solve those held where memory is full."""
        parts, plans = self._parts, [*map(_plan, learners, learners.values())]
        visiting = {plan.problem: learners[plan.problem] for plan in plans if plan.start}
        if not visiting:
            return parts(Part.scan, number, plans)
        fullness = parts(Part.read, number, plans)
        while fullness.parts:
            obey_stop()
            full = [plan.problem for plan, k in zip(plans, fullness.full, strict=True) if k]
            starts = self._solve_blocks({k: visiting[k] for k in full})
            fullness = parts(Part.read_on, not full, starts)
        return parts(Part.end_reading)

    def _solve_blocks(self, learners: Mapping[int, Learner]) -> list[tuple[int, DualPoint]]:
        """Solve the rows held of learners whose memory is full somewhere; return the dual points
        from which their visits go on."""
        for learner in learners.values():
            enter(learner, Memory.BUFFERS)
        solves = {number: solve_jointly(learner) for number, learner in learners.items()}
        in_lockstep(self._parts, solves, self.learners[0].columns + 1)
        return [(number, learner.running.dual_point) for number, learner in learners.items()]


def _is_new(learner: Learner) -> bool:
    """Tell whether a learner has not read, nor has anything to scan."""
    return not learner.progress.readings and learner.visits


def _plan(number: int, learner: Learner) -> ReadingPlan:
    """Return what a reading does for a learner, which has begun it."""
    v = None if learner.frozen is None else learner.frozen.augmented
    start = learner.running.dual_point if learner.visits else None
    return ReadingPlan(number, learner.memory, v, learner.augmentation, start)


def _take_sums(learner: Learner, reading_sums: ReadingSums, parts: int) -> None:
    """Take what a reading of the parts has summed, and what they hold."""
    hold_elsewhere(learner, reading_sums.held)
    for change in reading_sums.moved:
        learner.running.take(learner.running.dual_point.plus(change))
    for scan_sums in reading_sums.sums:
        frozen = learner.frozen
        assert frozen is not None
        frozen.scan_sums = scan_sums
    if Memory.BUFFERS in reading_sums.memories:
        enter(learner, Memory.BUFFERS)
    start = None
    for total in reading_sums.weights:
        start = total / parts
        learner.best.propose(start)
    if learner.outside is not None:
        [quadratic] = reading_sums.quadratic
        learner.outside.take(quadratic, start)
