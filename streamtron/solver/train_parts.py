"""Train a linear classifier on many parts of the data, with a certificate: the algorithm.

The problem is that of ``train``, or one such problem a class. The rows lie in parts, and every step
below is a function mapped over the parts and a sum over a fixed binary tree of them: the result
depends on the parts, and not on the threads, processes or machines that hold them.

1. Each part trains on its own rows alone, by ``train``. Any sum of counts ≥ 0 is a dual point.
2. Newton's method on the rows in memory of all parts together: a round for P and ∇P, and one in
   which each part solves with its own Hessian, or, where columns are many, one for every product
   with the Hessian of all. A vector of a number a column goes to each part and comes back; those of
   all classes that are not done yet go together.
3. Counts from the slacks, and one scan of all rows from disk at fixed weights. It certifies, and
   finds the rows that matter next. Repeat from 2 until the gap is at most ``tol``.

Sums of local solutions alone (CoCoA+, Ma et al., ICML 2015) need far more rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.errors import DataError
from streamtron.core.events import Listener, ReadingDone, ReadingStarted, SolveStarted, ignore
from streamtron.core.executor import Parts, PartsLost
from streamtron.core.rows import Label
from streamtron.solver import joint_newton, local, part, stages
from streamtron.solver.in_memory import worthwhile_gap
from streamtron.solver.learner import Learner
from streamtron.solver.lockstep import Rounds, in_lockstep
from streamtron.solver.part import Joined, Scanned, Started, ToScan
from streamtron.solver.proving import certify
from streamtron.solver.report import StageReport
from streamtron.solver.scan import Frozen
from streamtron.solver.schedule import problem_of, tell_ended
from streamtron.solver.stages import Stage
from streamtron.solver.state import Extent, Regime, Vector
from streamtron.solver.stopping import conclude, stop_at_limit
from streamtron.solver.subproblem import finer_resolution


def train_parts(
    settings: Settings,
    learners: list[Learner],
    parts: Parts,
    listen: Listener = ignore,
    checkpoint: Callable[[], None] = lambda: None,
) -> None:
    """Train on all parts until the certificates meet the tolerance, or another limit ends the run.

    Parameters
    ----------
    learners : none, to begin: one is added for two classes, else one a label. They hold no rows and
        no counts: their weights, certificates and progress are those of all parts. Those that have
        made scans before continue after the last; those whose mode is "scan", with a scan of their
        candidates, for which the parts have counts and hold no rows.
    checkpoint : called after every scan; ``learners`` and what the parts have saved is all that is
        needed to continue.
    """
    training = _Training(settings, learners, parts, listen)
    if not learners:
        training.begin()
    now = training.unfinished
    while now:
        training.solve(now)
        now = training.unfinished
        if now:
            training.scan(now)
            checkpoint()


@dataclass(slots=True)
class _Training:
    """Learners that train on the same parts; see ``train_parts``."""

    settings: Settings
    learners: list[Learner]
    parts: Parts
    listen: Listener
    thetas: dict[int, float] = field(default_factory=dict)
    """best scales of those whose sum of the parts' counts is the dual point to begin with: where
    memory does not hold all rows that have one"""

    @property
    def unfinished(self) -> list[int]:
        """The numbers of the learners that have not finished."""
        return [number for number, learner in enumerate(self.learners) if not learner.finished]

    @property
    def reading(self) -> int:
        """The number of the last reading."""
        return max(learner.progress.reading for learner in self.learners)

    def begin(self) -> None:
        """Have each part train on its rows alone, and take the sums of the weights: of one learner
        for two classes, else of one a label. DataError: there are not two labels."""
        many, parts = self.settings.one_vs_rest, self.parts
        self.listen(ReadingStarted(0, "train", None, None, 0 if many else 1))
        while True:
            with suppress(PartsLost):
                begun = parts(part.start)
                labels = _labels(begun, self.settings)
                joined = parts(part.join, labels, max(begun.widths))
                parts.scans = [0] * len(joined)
                break
        for number, own in enumerate(joined):
            learner = Learner(self.settings, labels, None, labels[number] if many else None)
            self.learners.append(learner)
            theta = _take_start(learner, own)
            if theta is not None:
                self.thetas[number] = theta

    def solve(self, now: Sequence[int]) -> None:
        """End a reading of these learners: solve the rows in memory of those that have not
        finished, where the next scan is to certify the solution."""
        learners, parts, reading = self.learners, self.parts, self.reading
        solves, columns, gaps = {}, 1, dict[int, float]()

        def estimated(k: int, gap: float) -> None:
            gaps[k] = gap
            parts.gap_estimate = max(gaps.values())

        for k in self.unfinished:
            if k not in self.thetas and learners[k].mode != "scan":
                solves[k] = solve(learners[k], partial(estimated, k))
                columns = max(columns, len(_candidate(learners[k])))
        if solves:
            self.listen(SolveStarted(reading, learners[0].extent.rows))
        in_lockstep(parts, solves, joint_newton.at_once(columns))
        for k in now:
            if learners[k].mode != "scan":
                tell(reading, learners[k], self.listen)

    def scan(self, now: Sequence[int]) -> None:
        """Certify the weights of these learners by one reading of all rows, and end those for which
        that suffices."""
        learners, parts, number = self.learners, self.parts, 1 + self.reading
        self.listen(ReadingStarted(number, "scan", None, None, len(now)))
        thetas, self.thetas = self.thetas, {}
        wanted = [
            ToScan(k, _candidate(learners[k]), learners[k].progress.b, thetas.get(k)) for k in now
        ]
        scanned = parts.until_found(part.scan, number, wanted)
        for one, own in zip(wanted, scanned, strict=True):
            _take_scan(learners[one.problem], number, one, own)
        parts.scans = [learner.progress.reading for learner in learners]
        parts.gap_estimate = None


def _take_start(learner: Learner, joined: Joined) -> float | None:
    """Take the sum of the local starts, and return its best scale if it is the dual point to begin
    with."""
    _observe(learner, joined.extents)
    learner.regime = _worst(joined.regimes)
    _begin_ascent(learner)
    theta, candidate = None, joined.weights / len(joined.regimes)
    if learner.regime == Regime.BLOCKS:
        theta = joined.steps / (kernels.square_sum(joined.dual) + joined.extension)
        candidate = theta * joined.dual
    learner.best.candidate = candidate
    learner.progress.record(None, None, joined.held)
    return theta


def solve(learner: Learner, estimated: Callable[[float], None]) -> Rounds[None]:
    """Solve the rows in memory of all parts by Newton's method, the dual variables of all other
    rows fixed; and choose the resolution b of the counts that the next scan makes of the slacks.
    ``estimated`` : see ``joint_newton.minimise``."""
    v, progress = _candidate(learner), learner.progress
    precision, blocks = worthwhile_gap(learner), learner.regime == Regime.BLOCKS
    if progress.reading == 0:
        v = (yield from joint_newton.best_scale(v)) * v
    center = np.zeros(len(v))
    if blocks:
        held = (yield local.sum_held, (len(v) - 1, progress.b)).image
        center = learner.running.augmented(1.0 / progress.b) - held
    alike = learner.regime in (Regime.ALL_ROWS, Regime.WORKING_SET)
    found = yield from joint_newton.minimise(v, center, precision, estimated, alike=alike)
    learner.best.candidate = found.v
    progress.reports[-1].newton_steps += found.steps
    if not blocks:
        error, rounding = precision * found.primal, found.seen.lengths / 24.0
        b = finer_resolution(progress.b, rounding, error, max(found.seen.largest))
        progress.b = progress.reports[-1].b = b


def _take_scan(learner: Learner, number: int, scanned: ToScan, found: Scanned) -> None:
    """Certify a scan, and end the run if that suffices."""
    progress, v, b = learner.progress, scanned.v, scanned.b
    progress.reading, learner.mode = number, "train"
    found.sums.fold()
    if not learner.extent.rows:
        _observe(learner, found.extents)
    more = np.zeros(len(found.sums.fresh) + 1 - len(v))  # columns of rows that no scan had met
    v = learner.best.candidate = np.concatenate((v[:-1], more, v[-1:]))
    frozen = Frozen(b * v[:-1], b * float(v[-1]), 1.0 / b, b, running=found.sums.fresh)
    frozen.scan_sums = found.sums
    learner.regime = _worst(found.regimes)
    progress.readings += 1
    certify(learner, frozen)
    conclude(learner, frozen)
    progress.record(learner.certificate, None, found.held)
    if not v.any():  # rows were forgotten: go on from what the counts of the others make
        learner.best.candidate = learner.running.augmented(learner.running.scale)
    if not learner.finished and progress.full_epochs >= learner.settings.epoch_limit:
        stop_at_limit(learner, frozen)
    learner.frozen = frozen if learner.finished else None
    if not learner.finished:
        progress.count_full_epoch()


def _observe(learner: Learner, extents: Sequence[Extent]) -> None:
    """Take what is known of the rows of all parts."""
    for extent in extents:
        learner.extent.observe(extent.sq_radius, extent.least_delta2)
        learner.extent.rows += extent.rows


def _candidate(learner: Learner) -> Vector:
    """The weights, augmented, that the next scan is to certify, or the next solve begins with."""
    assert learner.best.candidate is not None
    return learner.best.candidate


def tell(reading: int, learner: Learner, listen: Listener) -> None:
    """Tell what a reading, and the solve after it, have done."""
    progress, problem = learner.progress, problem_of(learner)
    listen(
        ReadingDone(
            reading, progress.stage.name, "scan" if reading else "train", 0, 0,
            progress.history[-1].active_rows, learner.certificate, learner.running.upper_bound,
            learner.extent.rows, learner.settings.tolerance, progress.finished, problem,
        )
    )  # fmt: skip
    if progress.finished:
        tell_ended(progress.reports[-1:], problem, listen)


def _begin_ascent(learner: Learner) -> None:
    """Fix a first b, and open the report of the one stage."""
    progress, extent = learner.progress, learner.extent
    progress.plan, progress.stage_number = (Stage(1.0, ascent=True),), 0
    progress.b = stages.choose_b(
        progress.stage, learner.settings, extent.sq_radius, None, extent.least_delta2
    )
    progress.reports.append(StageReport.begin(progress.stage, learner.settings, progress.b, 0))
    progress.count_full_epoch()
    progress.readings = 1


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


def _worst(regimes: list[Regime]) -> Regime:
    """The regime of the part whose memory holds least."""
    return max(regimes, key=list(Regime).index)
