"""One two-class problem in training: its state, and every change of it.

No other module assigns a field of a ``Learner``, of its ``Progress`` or of its ``BestWeights``."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.core.losses import PENALISED, Loss, loss_of, solved
from streamtron.core.penalty import Penalty
from streamtron.core.rows import Chunk, Label
from streamtron.solver import order, stages
from streamtron.solver.duals import Counts
from streamtron.solver.hessian import Expansion, Outside
from streamtron.solver.progress import BestWeights, Progress
from streamtron.solver.row_store import ActiveSet, Pool
from streamtron.solver.scan import Frozen
from streamtron.solver.stages import Regime, Stage
from streamtron.solver.targets import Extent, TargetRule, Targets
from streamtron.solver.weights import Rule, WeightState, consistent, resized, restart

Vector = NDArray[np.float64]

_log = logging.getLogger(__name__)


Mode = Literal["train", "scan"]

IN_BLOCKS = (4.0, 1.0)
"""ρ of a bias that is not penalised, where rows are solved in blocks, beside that of one that is;
the second where labels are numbers, off which their mean is taken."""


class Learner:
    """The state of one two-class problem.

    ``labels``, ``class_weights``, ``positive`` : see ``TargetRule``. ``pool`` : where all rows are
    held while they fit, shared by learners that read together; None = its own.
    """

    def __init__(
        self,
        settings: Settings,
        labels: Sequence[Label] = (),
        class_weights: Mapping[Label, float] | None = None,
        positive: Label | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.settings = settings
        self.targets = TargetRule(settings.delta2, labels, class_weights, positive)
        self.pool = Pool() if pool is None else pool
        self.active = ActiveSet(settings.active_set_bytes)
        self.running = WeightState()  # a = Σ c_k y_k
        self.counts = Counts()  # the integer dual variables c_k
        self.extent = Extent()
        self.best = BestWeights()
        self.progress = Progress(stages.plan(settings))
        self.augmentation = settings.augmentation  # the constant feature of the bias
        all_rows = self.progress.plan[-1].ascent
        self.regime = Regime.ALL_ROWS if all_rows else Regime.WORKING_SET
        self.frozen: Frozen | None = None  # the scan that the current reading makes
        self.outside: Outside | None = None  # rows of the current reading, where columns are few
        self.expansion: Expansion | None = None  # of the quadratic that the candidate solves
        self.mode: Mode = "train"  # what the current reading, or the next one, does
        self.shuffles = 0  # orders drawn so far
        self.unsummed = False  # whether a may differ from the sum that the counts make
        self.elsewhere: int | None = None  # rows that many parts hold; None = they are held here

    @property
    def finished(self) -> str | None:
        """Why training has ended; None while it goes on."""
        return self.progress.finished

    @property
    def certificate(self) -> Certificate | None:
        """What is proven of the best weights; None before the first scan."""
        return self.best.certificate

    @property
    def weights(self) -> NDArray[np.float64]:
        """The best weights so far, float64, shape (columns,), at the scale that minimises P."""
        return self.best.weights

    @property
    def stage(self) -> Stage:
        """The current stage."""
        return self.progress.stage

    @property
    def loss(self) -> Loss:
        """The loss; in place of the hinge one that is smooth."""
        if self.settings.ratio and self.settings.loss == PENALISED.name:
            return PENALISED
        return solved(loss_of(self.settings))

    @property
    def primal_weights(self) -> Vector:
        """The augmented weights of the running a where the penalty has a 1-norm; the best ones if
        it is nothing else, for a does not tell w then."""
        if self.settings.ratio < 1.0:
            return Penalty.of(self.settings.ratio).weights(self.running.augmented(self.scale))
        return resized(self.best.augmented, len(self.running.w))

    @property
    def free(self) -> float:
        """ρ of a bias that is not penalised; 0 where there is none."""
        return self.augmentation if self.settings.free else 0.0

    @property
    def scale(self) -> float:
        """The scale of the running weights; see ``Rule``."""
        return self.rule.scale(self.running)

    @property
    def upper_bound(self) -> float | None:
        """The running weights' ‖a‖/t, an estimate; None if the loss is not the squared hinge."""
        return self.running.upper_bound if self.loss.quadratic else None

    @property
    def rule(self) -> Rule:
        """The update rule of the current stage."""
        settings, stage = self.settings, self.stage
        by_length = settings.variant == "length"
        return Rule(
            self.progress.b,
            stage.epsilon,
            by_length,
            stage.ascent,
            self.augmentation,
            self.loss,
        )

    @property
    def threshold(self) -> float:
        """The threshold on y_k·a now: b t^(1−ε), b ‖a‖^(1−ε), or b."""
        running, exponent = self.running, 1.0 - self.stage.epsilon
        if running.steps == 0 and not self.stage.ascent:
            return 0.0
        if exponent == 0.0:
            return self.progress.b
        by_steps = self.settings.variant == "steps"
        size = running.steps if by_steps else math.sqrt(running.sq_norm)
        return float(self.progress.b * size**exponent)

    @property
    def complete(self) -> bool:
        """Whether memory holds every row of the data."""
        return self.regime == Regime.ALL_ROWS and self.progress.reading > 0

    @property
    def rows_held(self) -> int:
        """How many rows are in memory, here or in the parts."""
        return len(self.active) if self.elsewhere is None else self.elsewhere

    @property
    def valid(self) -> bool:
        """Whether the numbers kept from reading to reading are consistent and finite; of several
        parts, the counts are theirs."""
        alike = self.elsewhere is not None or self.running.steps == self.counts.total()
        return alike and consistent(self.running) and self.best.finite

    def widen(self, columns: int) -> None:
        """Make room for so many columns, and half as many again: growing often costs time."""
        width = len(self.running.w)
        if columns > width:
            columns = max(columns, width + width // 2)
            self.running.widen(columns)
            if self.frozen is not None:
                self.frozen.widen(columns)
            self._resize_quadratics(columns)

    def drop_spare_columns(self) -> None:
        """Drop the columns beyond those observed, if none has a weight."""
        w, columns = self.running.w, self.extent.columns
        if self.frozen is None and not w[columns:].any():
            self.running.w = w[:columns]
            self.best.cut_candidate(columns)
            self._resize_quadratics(columns)

    def _resize_quadratics(self, columns: int) -> None:
        for quadratic in (self.outside, self.expansion):
            if quadratic is not None:
                quadratic.v = resized(quadratic.v, columns)

    def observe(self, chunk: Chunk, targets: Targets) -> None:
        """Make room for the columns of rows not read before, and update R²."""
        self.widen(chunk.width)
        self.extent.add(targets, self.settings, chunk.width)

    def fix_center(self, center: float) -> None:
        """Take ``center`` off labels that are numbers, unless something is taken off already."""
        if self.extent.center is None:
            self.extent.center = center
        self.targets.center = self.extent.center

    def targets_of(self, chunk: Chunk) -> Targets:
        """Return the targets of a chunk; of the first one of labels that are numbers, where the
        bias is free to move, the mean is taken off all."""
        moves = self.settings.regression and self.settings.free and len(chunk)
        first = moves and self.extent.center is None
        self.fix_center(float(chunk.codes.mean()) if first else 0.0)
        return self.targets(chunk)

    def next_turn(self) -> order.Turn:
        """The turn of the next mini-epoch."""
        self.shuffles += 1
        settings = self.settings
        return order.Turn(settings.seed, self.progress.reading, self.shuffles, settings.random)

    def draw(self, weights: NDArray[np.float64]) -> NDArray[np.int64]:
        """Positions drawn with chances in proportion to ``weights``; by falling weight where the
        order is not random."""
        if not self.settings.random:
            return np.argsort(-weights, kind="stable")
        self.shuffles += 1
        return order.drawn_order(self.settings.seed, self.progress.reading, self.shuffles, weights)

    def copy_for(self, positive: Label, weights: Mapping[Label, float] | None) -> Learner:
        """A learner of another class that has read the same rows, all of them negative so far."""
        constant = (self.settings, self.pool, self.targets.labels, self.progress.plan)
        memo = {id(part): part for part in constant} | {id(self.active): self.active.copy()}
        learner = copy.deepcopy(self, memo)
        learner.targets.positive, learner.targets.class_weights = positive, weights
        return learner


def begin_stage(learner: Learner) -> None:
    """Fix b of the next stage from what is known; begin at a = 0, or ascent from the current a."""
    progress, running, extent = learner.progress, learner.running, learner.extent
    upper = running.upper_bound
    if learner.settings.faithful and progress.reports:
        upper = progress.reports[-1].bounds["paper_upper_bound"]
    progress.stage_number += 1
    stage = progress.stage
    least = extent.least_delta2
    if not (learner.loss.quadratic or learner.loss.numbers):
        least = min(least, learner.targets.least_delta2)
    b = stages.choose_b(stage, learner.settings, extent.sq_radius, upper, least)
    if progress.b and not learner.loss.quadratic:
        b = progress.b  # the counts are of this one
    if running.steps:
        progress.from_zero = not stage.ascent
        if not stage.ascent:
            restart(running)
            learner.counts.clear()
        elif learner.loss.quadratic:
            factor = running.rescale(learner.counts.largest(), round(b * running.scale))
            learner.counts.scale(factor)
    progress.begin_stage(b, learner.settings, running.updates)


def choose_resolution_again(learner: Learner) -> None:
    """Begin at counts of 0 with a smaller b where rows that came later weigh so much more than the
    first that their counts, up to b C, would be cut; not where a scan has certified the counts,
    whose b may be finer than C allows."""
    progress, settings, extent = learner.progress, learner.settings, learner.extent
    if learner.loss.quadratic or learner.frozen is not None:
        return
    least = extent.least_delta2
    if progress.b <= kernels.COUNT_MAX * 2.0 * least:
        return
    restart(learner.running)
    learner.counts.clear()
    progress.refine(stages.choose_b(progress.stage, settings, extent.sq_radius, None, least))


def end_stage(learner: Learner, finished: str | None, stop_reason: str) -> None:
    """Close the report of the current stage; ``finished`` : why the run ends with it."""
    progress = learner.progress
    progress.finished = finished
    if finished:
        learner.outside = learner.best.marks = None
    progress.reports[-1].end(
        stop_reason, learner.running, learner.certificate, math.sqrt(learner.extent.sq_radius),
        from_zero=progress.from_zero,
    )  # fmt: skip


def next_stage(learner: Learner, stop_reason: str) -> None:
    """End the current stage and begin the next one; after the last one the run has converged."""
    last = learner.progress.last_stage
    end_stage(learner, "converged" if last else None, stop_reason)
    if not last:
        begin_stage(learner)


def leave_brief_stage(learner: Learner) -> None:
    """Begin the next stage of the automatic plan, if the current one lasts one reading only."""
    progress = learner.progress
    if progress.stage.brief:
        reason = stages.reason_to_leave(progress.plan, progress.stage_number, learner.settings)
        next_stage(learner, reason)


def begin_reading(learner: Learner, reading: int, scale: float | None = None) -> None:
    """Prepare a reading: it visits rows as they pass ("train"), or scans them at fixed weights
    ("scan"). Where the working set does not fit, both: rows are visited, and the weights of the
    reading before are certified. ``scale`` : around which a scan looks for the least P."""
    learner.progress.begin_reading(reading, learner.mode)
    learner.frozen = None
    beside = learner.regime == Regime.BLOCKS and learner.mode == "train" and learner.stage.ascent
    if learner.regime == Regime.BLOCKS:
        learner.regime = Regime.WORKING_SET
    if not learner.complete:
        learner.active.clear()
    if learner.mode == "scan" or beside:
        learner.frozen = freeze(learner, scale, beside_training=beside)
    elif reading > 0:  # it certifies a reading in which no row is updated
        learner.frozen = freeze(learner, None, beside_training=False)


def freeze(learner: Learner, scale: float | None, *, beside_training: bool) -> Frozen:
    """Fix the best weights known for a scan: the candidate of the last solve, or the running ones.
    ``scale`` : see ``ScanRequest``; None = t/‖a‖². ``beside_training`` : see ``Frozen``."""
    running, b = learner.running, learner.progress.b
    candidate = learner.best.take_candidate()
    fixed = running.w.copy() if beside_training else running.w
    loss = loss_of(learner.settings)
    free, ratio = learner.free, learner.settings.ratio
    if candidate is None and ratio and not learner.unsummed:
        candidate = learner.primal_weights
    if candidate is None:
        scale = scale or learner.scale
        frozen = Frozen(fixed, running.bias, scale, learner.threshold, loss, b, free, ratio)
    else:
        candidate *= b
        candidate[learner.best.zeros] = 0.0
        w, bias = candidate[:-1], float(candidate[-1])
        frozen = Frozen(w, bias, 1.0 / b, learner.threshold, loss, b, free, ratio)
        frozen.running = fixed
        if len(w) < len(fixed):
            frozen.widen(len(fixed))
    frozen.beside_training = beside_training
    return frozen


def leave_scan(learner: Learner) -> None:
    """Give a scan up: the weights are about to change, so that it proves nothing."""
    learner.frozen = None


def take_scan(learner: Learner, frozen: Frozen, *, drifted: bool) -> None:
    """Set the running weights to what a complete scan has summed from the counts. Where the counts
    have changed since, correct the running weights by their error then, if they had ``drifted``."""
    running, scan_sums = learner.running, frozen.scan_sums
    learner.unsummed = False
    if not frozen.beside_training:
        running.settle_scanned(scan_sums)
    elif drifted:
        scanned = frozen.w if frozen.running is None else frozen.running
        w = running.w + (scan_sums.fresh - scanned)
        running.settle(w, running.bias, running.extension, running.steps)
    frozen.running = None  # its drift has been measured


def take_solution(
    learner: Learner,
    b: float,
    candidate: Vector | None,
    *,
    newton_steps: int,
    primal: float = math.inf,
) -> None:
    """Take what a solve has found: its resolution b, and the augmented weights that the next scan
    certifies; of blocks, their average. ``primal`` : of the weights, over the rows in memory."""
    progress, best = learner.progress, learner.best
    progress.refine(b)
    progress.count_newton_steps(newton_steps)
    known = learner.regime == Regime.ALL_ROWS and learner.loss.quadratic
    progress.primal = primal if known else math.inf
    if learner.regime != Regime.BLOCKS:
        best.candidate = candidate
    elif candidate is not None:
        best.candidate = best.average.add(candidate)


def take_proof(learner: Learner, frozen: Frozen, proof: Certificate) -> None:
    """Take weights that are proven without dual variables of the rows; these are 0."""
    learner.frozen = frozen
    learner.best.take(frozen.w, frozen.bias, proof)
    learner.running.w = np.zeros(len(learner.running.w))  # the array may be that of the best
    restart(learner.running)
    learner.counts.clear()
    learner.unsummed = False
    learner.progress.count_newton_steps(1)


def begin_quadratic(learner: Learner, outside: Outside) -> None:
    """Begin the quadratic of rows outside memory. In a scan their counts are about to change."""
    learner.outside = outside
    learner.unsummed |= learner.frozen is not None


def end_quadratic(learner: Learner, expansion: Expansion | None = None) -> None:
    """Give up the quadratic of rows outside memory; ``expansion`` : where that was expanded whose
    solution the next scan certifies."""
    learner.outside, learner.expansion = None, expansion


def hold_elsewhere(learner: Learner, rows: int) -> None:
    """Note how many rows many parts hold in memory for the learner."""
    learner.elsewhere = rows


def hold_in(learner: Learner, pool: Pool) -> None:
    """Hold all rows, while they fit, in a pool."""
    learner.pool = pool


def choose_mode(learner: Learner, mode: Mode) -> None:
    """Choose what the next reading does."""
    learner.mode = mode


def enter(learner: Learner, regime: Regime) -> None:
    """Note what memory holds from now on."""
    learner.regime, loss = regime, learner.loss
    blocks = regime == Regime.BLOCKS or (regime == Regime.WORKING_SET and not loss.sparse)
    known = learner.progress.reading or learner.frozen or learner.outside or loss.zone
    if blocks and learner.free and learner.settings.parts is None and not known:
        _take_augmentation(learner, learner.settings.rho * IN_BLOCKS[loss.numbers])


def _take_augmentation(learner: Learner, rho: float) -> None:
    """Take another feature of the bias: where rows are solved in blocks, a large one ties
    Σ α_k l_k of each block, and of each visit, to 0, and hardly any moves."""
    running, factor = learner.running, rho / learner.augmentation
    if factor != 1.0:
        learner.augmentation = rho
        running.settle(running.w, running.bias * factor, running.extension, running.steps)


def begin_again(learner: Learner, *, keep_scan: bool) -> None:
    """Forget the proof, the reports and the rows in memory of a finished learner, whose rows change
    or whose weights are not those of its counts. ``keep_scan`` : the last scan is continued."""
    best = learner.best
    best.forget_proof()
    best.take_candidate()
    best.drift_repaired = 0.0
    learner.progress.begin_again(learner.settings, learner.running.updates)
    learner.expansion = None
    learner.unsummed |= learner.settings.class_weight == "balanced"  # which may cut counts
    if not keep_scan:
        learner.frozen = None
    scan_next(learner)
    if not learner.valid:
        discard_weights(learner)
    learner.elsewhere = None


def set_resolution(learner: Learner, b: float) -> None:
    """Take the b of counts that are known, or are to be made of slacks."""
    learner.progress.b = b


def scan_next(learner: Learner) -> None:
    """Drop the rows in memory; the next reading scans, and holds all rows if they fit. Where parts
    have few columns it makes one quadratic of the others, for they cannot tell in time."""
    learner.active.clear()
    learner.mode = "scan"
    if learner.settings.parts is None or learner.regime != Regime.FEW_COLUMNS:
        learner.regime = Regime.ALL_ROWS if learner.stage.ascent else Regime.WORKING_SET
    if learner.frozen is None:
        learner.extent = Extent()


def train_next(learner: Learner) -> None:
    """Forget what is known of the rows; the next reading trains."""
    learner.mode, learner.frozen, learner.extent = "train", None, Extent()


def replace_counts(learner: Learner, counts: Counts) -> None:
    """Replace the counts; the next reading sums a afresh from them."""
    learner.counts = counts
    _sum_afresh(learner)


def leave_counts(learner: Learner, counts: Counts) -> None:
    """Leave the counts to parts, or to their files."""
    learner.counts = counts


def set_weights(learner: Learner, w: Vector, bias: float, counts: Counts | None = None) -> None:
    """Set the running weights (columns as the shards number them) and the bias weight, and counts
    if there are any, which need not make these weights; the next reading scans them."""
    learner.running.w = w
    learner.running.scalars[kernels.BIAS] = bias
    learner.mode, learner.unsummed = "scan", True
    if learner.regime == Regime.ALL_ROWS:
        learner.regime = Regime.WORKING_SET
    if counts is not None:
        learner.counts = counts


def discard_weights(learner: Learner) -> None:
    """Discard the running and the best weights: the next reading sums them from the counts."""
    _log.warning(
        "the running weights are not those of any counts: memory or disk has changed "
        "them. They are made afresh from the counts."
    )
    _sum_afresh(learner)
    learner.best.discard()
    learner.best.drift_repaired = 1.0
    learner.mode = "scan"


def _sum_afresh(learner: Learner) -> None:
    restart(learner.running)
    learner.unsummed = True
