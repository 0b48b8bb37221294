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

Sums of local solutions alone (CoCoA+, Ma et al., ICML 2015) need far more rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.errors import DataError
from streamtron.core.events import Listener, ReadingStarted, ignore
from streamtron.core.executor import Each, Parts, Wanted
from streamtron.core.rows import Label
from streamtron.solver import local, part, rounds
from streamtron.solver.checkpoint import NOT_BEGUN, Resumed
from streamtron.solver.learner import Learner, begin_stage
from streamtron.solver.local import Moved, Scanned, ToRead
from streamtron.solver.part import Joined, Started
from streamtron.solver.reading import Solve, solve_block
from streamtron.solver.rest_quadratic import Outside
from streamtron.solver.rounds import in_lockstep, shift
from streamtron.solver.stages import ASCENT, Regime
from streamtron.solver.subproblem import LARGEST_COUNT
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
    takes the labels of all parts.
    """

    def __init__(
        self,
        parts: Parts,
        learners: list[Learner],
        settings: Settings,
        labels: list[Label],
        listen: Listener = ignore,
        checkpointer: Checkpointer | None = None,
    ) -> None:
        super().__init__(learners, settings, listen, checkpointer)
        self._parts, self._labels = parts, labels
        self._readings = [learner.progress.reading for learner in learners]
        self.reading = 1 + max(self._readings, default=-1)

    def expects_learners(self, reading: int) -> bool:
        """Whether learners come to be in this reading."""
        return not self.learners

    def tell_begin(self, reading: int, learners: Sequence[Learner]) -> None:
        """Tell what a reading is for, and how many learners wait for it."""
        purpose = " and ".join(sorted({learner.mode for learner in learners})) or "train"
        number = len(learners) or int(not self.settings.one_vs_rest)
        self.listen(ReadingStarted(reading, purpose, None, None, number))

    def read(
        self, reading: int, learners: list[Learner], resumed: Resumed | None
    ) -> tuple[int, int]:
        """Have learners take all rows in all parts, or begin with the local starts of the parts."""
        if resumed is None or resumed.chunks == NOT_BEGUN:
            if self.learners:
                self._read(reading, {self.learners.index(one): one for one in learners})
            else:
                self._start()
                learners += self.learners
            self._parts.saved(self._readings)
        self._parts.gap_estimate = None
        return TAKEN, learners[0].extent.rows

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
        if learners:
            self._solve({self.learners.index(one): one for one in learners}, begin)
        visited = [one for one in learners if one.finished and one.mode == "train"]
        if visited:  # their certificate is of the counts before the visits
            for learner in visited:
                assert learner.frozen is not None
                learner.running.settle_scanned(learner.frozen.scan_sums)
            self._parts(part.take_back, [self.learners.index(one) for one in visited])
            self._parts.saved(self._readings)

    def _solve(self, learners: Mapping[int, Learner], begin: Callable[[Learner], Solve]) -> None:
        columns = max(len(learner.running.w) + 1 for learner in learners.values())
        solves = {number: begin(learner) for number, learner in learners.items()}
        in_lockstep(self._parts, solves, rounds.at_once(columns))

    def _start(self) -> None:
        """Have each part train on its rows alone, and take the sums of the weights: of one learner
        for two classes, else of one a label. DataError: there are not two labels."""
        parts, many = self._parts, self.settings.one_vs_rest
        begun = parts(part.start)
        self._labels[:] = _labels(begun, self.settings)
        joined = parts(part.join, self._labels, max(begun.widths))
        units = {}
        for number, sums in enumerate(joined):
            positive = self._labels[number] if many else None
            learner = Learner(self.settings, self._labels, None, positive)
            self.learners.append(learner)
            unit = _take_start(learner, sums)
            if unit is not None:
                units[number] = unit
        if units:
            for number, moved in zip(units, parts(part.take_units, units), strict=True):
                shift(self.learners[number].running, moved)
        few = {k: one for k, one in enumerate(self.learners) if one.outside is not None}
        rests = self._each({k: (local.sum_rest, (len(one.running.w),)) for k, one in few.items()})
        for learner, rest in zip(few.values(), rests, strict=True):
            assert learner.outside is not None
            learner.outside.take(rest)
        self._readings = [0] * len(self.learners)

    def _read(self, number: int, learners: Mapping[int, Learner]) -> None:
        """Read all rows: scan them, or visit them and solve those held where memory is full."""
        parts, wanted = self._parts, [*map(_to_read, learners, learners.values())]
        visiting = {one.problem: learners[one.problem] for one in wanted if one.start is not None}
        if visiting:
            going_on = parts(part.read, number, wanted)
            while going_on.parts:
                full = [one.problem for one, k in zip(wanted, going_on.full, strict=True) if k]
                if full:
                    self._solve_blocks({k: visiting[k] for k in full})
                going_on = parts(part.read_on, not full)
            self._take_moves(visiting)
            sums = parts(part.end_reading)
        else:
            sums = parts(part.scan, number, wanted)
        for learner, scanned in zip(learners.values(), sums, strict=True):
            _take_sums(learner, scanned)
        for k in learners:
            self._readings[k] = number

    def _solve_blocks(self, learners: Mapping[int, Learner]) -> None:
        """Solve the rows held of learners whose memory is full somewhere, and let the visits go on
        from there."""
        self._take_moves(learners)
        for learner in learners.values():
            learner.regime = Regime.BLOCKS
        self._solve(learners, solve_block)
        self._each({k: (local.start_visits, dual_point(one)) for k, one in learners.items()})

    def _take_moves(self, learners: Mapping[int, Learner]) -> None:
        """Add to the running weights what the visits have changed."""
        moves = self._each(dict.fromkeys(learners, (local.moved, ())))
        for learner, moved in zip(learners.values(), moves, strict=True):
            shift(learner.running, moved)

    def _each(self, wanted: Mapping[int, Wanted]) -> Sequence[Any]:
        """Make a round of these steps, if there are any."""
        if not wanted:
            return ()
        return self._parts(Each(wanted.items()), list(wanted.items()))


def dual_point(learner: Learner) -> Moved:
    """Return the running dual point of a learner."""
    running = learner.running
    return Moved(running.augmented(1.0), running.extension, running.steps)


def _to_read(number: int, learner: Learner) -> ToRead:
    """Return what a reading does for a learner, which has begun it."""
    frozen, visits = learner.frozen, learner.mode == "train"
    assert frozen is not None
    return ToRead(
        number, frozen.w, frozen.bias, frozen.scan_sums.scale, learner.progress.b,
        few=learner.regime == Regime.FEW_COLUMNS,
        start=dual_point(learner) if visits else None,
    )  # fmt: skip


def _take_sums(learner: Learner, scanned: Scanned) -> None:
    """Take the sums of a reading."""
    frozen = learner.frozen
    assert frozen is not None
    scanned.sums.fold()
    if not learner.extent.rows:
        _observe(learner, scanned.extents)
    if (columns := len(scanned.sums.fresh)) > len(frozen.w):  # of rows that no scan had met
        frozen.widen(columns)
        learner.running.widen(columns)
    frozen.scan_sums, learner.elsewhere = scanned.sums, scanned.held
    if not frozen.beside_training:
        frozen.running = scanned.sums.fresh
    learner.regime = _worst([learner.regime, *scanned.regimes])
    if learner.outside is not None:
        learner.outside.take(scanned.rest)


def _take_start(learner: Learner, joined: Joined) -> tuple[float, float] | None:
    """Take the sums of the local starts. Where memory does not hold all rows that have a count, the
    sum of the dual points is the one to begin with: return a unit b for its counts, and θ, its best
    scale."""
    learner.elsewhere = joined.held
    learner.progress.plan = (ASCENT,)
    _observe(learner, joined.extents)
    learner.regime = _worst(joined.regimes)
    begin_stage(learner)
    learner.running.widen(len(joined.dual) - 1)
    learner.best.candidate = joined.weights / len(joined.regimes)
    if learner.regime == Regime.FEW_COLUMNS:
        learner.outside = Outside(learner.best.candidate, math.inf)
    if learner.regime != Regime.BLOCKS:
        return None
    theta = joined.steps / (kernels.square_sum(joined.dual) + joined.extension)
    of_one = max((c / b for c, b in zip(joined.largest, joined.units, strict=True) if b), default=0)
    b = FINER * max(joined.units) / theta
    b = max(min(b, LARGEST_COUNT / (theta * of_one)), max(joined.units)) if of_one else b
    learner.progress.b = learner.progress.reports[-1].b = b
    return b, theta


def _observe(learner: Learner, extents: Sequence[Extent]) -> None:
    """Take what is known of the rows of all parts."""
    for extent in extents:
        learner.extent.observe(extent.sq_radius, extent.least_delta2)
        learner.extent.rows += extent.rows
        learner.extent.columns = max(learner.extent.columns, extent.columns)


def _labels(begun: Started, settings: Settings) -> list[Label]:
    """The labels of all parts, in the order of the parts and of their appearance."""
    labels = list(dict.fromkeys(label for own in begun.labels for label in own))
    least = 1 if settings.multilabel else 2
    if len(labels) < least or (len(labels) > 2 and not settings.one_vs_rest):
        found = f"{len(labels)} labels, {', '.join(map(str, labels[:10]))}" if labels else "no rows"
        raise DataError(
            f"the shards have {found}: wanted rows of two labels. Check --label, or give "
            "--multiclass for more of them."
        )
    return labels


def _worst(regimes: Sequence[Regime]) -> Regime:
    """The regime of the part whose memory holds least."""
    order = [Regime.ALL_ROWS, Regime.WORKING_SET, Regime.FEW_COLUMNS, Regime.BLOCKS]
    return max(regimes, key=order.index)
