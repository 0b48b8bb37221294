"""One model in training: weights, counts, active set, and the stage it is in."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Certificate, ScanSums
from streamtron.core.config import Settings, format_size
from streamtron.core.errors import SettingsError
from streamtron.core.rows import Chunk, Label, Rows
from streamtron.solver import order, passes, stages
from streamtron.solver.duals import Counts
from streamtron.solver.report import StageReport
from streamtron.solver.scan import Frozen
from streamtron.solver.solution import Average, Solution
from streamtron.solver.solve import solve, solve_hard, visit_until_still
from streamtron.solver.subproblem import MiniEpoch, Subproblem, run_alone
from streamtron.solver.targets import TargetRule, Targets
from streamtron.solver.weights import Rule, WeightState
from streamtron.solver.working_set import ActiveSet, Pool

NEAR = 1.25
"""Rows below this many thresholds are worth holding."""

HELD = 0.95
"""The part of the tolerance to which rows are solved that are all there are: the scan finds then
what they say."""

KEPT = 0.5
"""The part of a full active set's budget that rows may stay in once they have been solved."""

NO_MARGIN = 1e-4
"""Δ = 0: a run ends where the best margin is proven to be below this part of the rows' mean length;
they may still be separable by a smaller one."""

LARGE_DRIFT = 1e-9
"""Carried weights that are off from Σ c_k y_k by more than this part of their length are made
afresh; where nothing cancels, rounding moves them by far less."""

SOLVED = 1e-12
"""No gap smaller than this is asked of rows in memory."""

_log = logging.getLogger(__name__)

NOTHING = 1e-9
"""Of a weight from which rows are subtracted, what is this small a part of theirs is rounding."""

Mode = Literal["train", "scan"]

Solve = Generator[MiniEpoch, None, None]
"""Training on the rows held: whoever runs it makes the mini-epochs that it wants."""


class Learner:
    """The Margitron on one two-class problem, fed chunk by chunk.

    A reading either *trains* (rows are visited as they pass) or *scans* (weights frozen: certifies,
    and collects the rows that the mini-epochs visit). The first reading trains and holds every row
    for which there is room. If all that matter fit, they are solved in memory and the later
    readings scan; if not, all readings train, in parts that fit, and the weights of the reading
    before are watched, frozen, on the way: that certifies too.

    Parameters
    ----------
    settings : what to solve and how.
    labels, class_weights, positive : see ``TargetRule``.
    pool : where rows are held as long as all are, so that learners in company hold them once;
        None = its own.
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
        self.plan = stages.plan(settings)
        self.stage_number = -1
        self.b = 0.0
        self.reports: list[StageReport] = []
        self.finished: str | None = None

        self.dual = WeightState()
        self.counts = Counts()
        self.active = ActiveSet(settings.active_set)
        self.pool = Pool() if pool is None else pool
        self.sq_radius = 0.0
        self.least_delta2 = math.inf
        self.rows_met = 0
        self.lengths = 0.0

        self.reading = 0
        self.readings = 0
        self.concluded = False
        self.mode: Mode = "train"
        self.full_epochs = 0
        self.mini_epochs = 0
        self.frozen: Frozen | None = None
        self.holding_all = self.plan[-1].ascent
        self.overflowed = False
        self.cold = True

        self.certificate: Certificate | None = None
        self.drift_repaired = 0.0
        self.weights: NDArray[np.float64] = self.dual.w
        self.bias = 0.0
        self._candidate: NDArray[np.float64] | None = None
        self._parts = Average()
        self._shuffles = 0
        self._gap_before = math.inf
        self._watching = False
        self._weights_set = False

    # --- what it is ---

    @property
    def stage(self) -> stages.Stage:
        """The stage it is in."""
        return self.plan[max(self.stage_number, 0)]

    @property
    def rule(self) -> Rule:
        """When a visited row moves a, at this stage."""
        by_length = self.settings.variant == "length"
        return Rule(self.b, self.stage.epsilon, by_length, self.stage.ascent, self.settings.rho)

    @property
    def complete(self) -> bool:
        """Whether the active set holds every row there is."""
        return self.holding_all and self.reading > 0

    @property
    def begun(self) -> bool:
        """Whether it has seen a row."""
        return self.readings > 0 or self.rows_met > 0

    @property
    def sound(self) -> bool:
        """Whether it can go on from a and its weights: no number in them is absurd."""
        best = kernels.square_sum(self.weights) + self.bias * self.bias
        return self.dual.sound and self.dual.steps == self.counts.total() and math.isfinite(best)

    @property
    def carries(self) -> bool:
        """Whether a is Σ c_k y_k over all rows, but for drift."""
        return not self._weights_set

    def twin(self, positive: Label) -> Learner:
        """A learner of another class that has met the same rows, all of them the rest so far."""
        rows = self.active.twin()
        as_they_are = {id(one): one for one in (self.settings, self.pool, self.targets.labels)}
        twin = copy.deepcopy(self, as_they_are | {id(self.active): rows})
        twin.targets.positive = positive
        return twin

    # --- starting from weights ---

    def set_weights(
        self, w: NDArray[np.float64], bias: float, counts: Counts | None = None
    ) -> None:
        """Take weights (numbered as the shards number columns) and a bias weight as they are,
        and counts if there are any; the next reading is a scan of them."""
        self.dual.w = w
        self.dual.scalars[kernels.BIAS] = bias
        self.mode = "scan"
        self.holding_all = False
        self._weights_set = True  # so they need not be those that the counts make
        if counts is not None:
            self.counts = counts

    def observe(self, sq_radius: float, least_delta2: float) -> None:
        """Rows have been looked at elsewhere, of this R² and this least Δ_k²."""
        self.sq_radius = max(self.sq_radius, sq_radius)
        self.least_delta2 = min(self.least_delta2, least_delta2)

    def begin_search(self) -> None:
        """All rows have been looked at elsewhere: their columns and R are known, and so is b."""
        assert self.frozen is not None
        self.dual.widen(len(self.frozen.w))
        self._begin_stage()

    @property
    def room(self) -> int:
        """Bytes of rows that can still be held; none once one has found no room."""
        return 0 if self.overflowed else self.active.budget - self.active.nbytes

    def hold(self, rows: Rows, chosen: NDArray[np.int64], targets: Targets, called: int) -> None:
        """Hold rows that a scan elsewhere has called, those at positions ``chosen`` first of
        ``called``, up to one that finds no room; ``targets`` are those of all of ``rows``."""
        if self.overflowed:
            return
        held = self.active.add(rows, chosen, targets)
        self.overflowed = held < called

    def seed(self) -> None:
        """A scan elsewhere has made counts of the slacks, and the rows are held that have one: a
        is what the counts make, and is trained on these rows."""
        assert self.frozen is not None
        seen, dual = self.frozen.scan_sums, self.dual
        seen.fold()
        dual.settle(seen.fresh, seen.fresh_bias, seen.sq_extension, seen.steps)
        if dual.steps:
            self.b = 1.0 / dual.scale  # where D of these counts is largest
        run_alone(self._solve())

    # --- more rows, or fewer ---

    def begin_change(self, *, only_more: bool = False) -> None:
        """Rows are going to be added or taken away after an end: nothing is proven any more, and
        none are held. ``only_more``: none are going to be taken away, nor weighed anew, so that
        what the last scan saw of these still holds."""
        if not (only_more and self._scan_stands()):
            self.frozen = None
        self.finished = self.certificate = self._candidate = None
        self._watching = False
        self.full_epochs = self.readings = self.mini_epochs = 0
        self.drift_repaired = 0.0
        self.reports = [StageReport.begin(self.stage, self.settings, self.b, self.dual.updates)]
        self.holding_all = self.stage.ascent
        self.overflowed = self.cold = False
        self.mode = "scan"
        self._gap_before, self._parts = math.inf, Average()
        self.active.clear()
        if self.frozen is None:
            self._unmeet()
        if not self.sound:
            self._give_up_weights()

    def take_away(self, part: NDArray[np.float64], extension: float, steps: int) -> None:
        """Subtract rows that are gone from a: their Σ c_k l_k (x_k, ρ) (augmented), Σ Δ_k² c_k² and
        Σ c_k. What rounding leaves of a column that only they had is nothing."""
        dual = self.dual
        w, bias = dual.w - part[:-1], dual.bias - float(part[-1])
        w[np.abs(w) <= NOTHING * np.abs(part[:-1])] = 0.0
        rest = float(dual.scalars[kernels.EXTENSION]) - extension
        dual.settle(w, bias, max(rest, 0.0), dual.steps - steps)

    def narrow(self, columns: int) -> None:
        """Leave nothing of columns from this number on, at an end: no row has them any more."""
        cut: dict[int, NDArray[np.float64]] = {}  # arrays that were one stay one

        def narrowed(w: NDArray[np.float64]) -> NDArray[np.float64]:
            return cut.setdefault(id(w), w[:columns].copy())

        self.dual.w, self.weights = narrowed(self.dual.w), narrowed(self.weights)
        frozen = self.frozen
        if frozen is not None:
            frozen.w, frozen.scan_sums.fresh = narrowed(frozen.w), narrowed(frozen.scan_sums.fresh)
            frozen.carried = None if frozen.carried is None else narrowed(frozen.carried)
        if self._candidate is not None:
            self._candidate = _narrow_augmented(self._candidate, columns)
        self._parts.total = _narrow_augmented(self._parts.total, columns)

    def sum_afresh(self) -> None:
        """After ``begin_change``: a is 0 until the next reading has summed it from the counts."""
        self.dual.restart()
        self._weights_set = True

    def _give_up_weights(self) -> None:
        """Neither a nor the best weights are of use: the next reading makes a from the counts."""
        _log.warning(
            "the weights that the run carried are not those of any counts: what kept them has "
            "spoilt them. They are made afresh from the counts."
        )
        self.sum_afresh()
        self.weights, self.bias = np.zeros(len(self.weights)), 0.0
        self.certificate, self.mode, self._gap_before = None, "scan", math.inf
        self.drift_repaired = 1.0

    def add(self, chunk: Chunk, positions: NDArray[np.int64]) -> None:
        """Visit rows that are new, between ``begin_change`` and ``end_adding``, and hold those that
        moved a; the part of a that belongs to all others is fixed while these are solved."""
        self.mode, self.overflowed, self.holding_all = "train", True, False
        targets = self.targets(chunk)
        self._meet(chunk, targets)
        if self.stage_number < 0:
            self._begin_stage()
        self._train(chunk, positions, targets)

    def end_adding(self) -> None:
        """Solve the new rows held. The next reading scans the weights that were best before, for a
        has run ahead of what the other rows' counts allow, and holds all rows if they fit."""
        run_alone(self._solve())
        self.active.clear()
        self.mode, self.overflowed, self.holding_all = "scan", False, self.stage.ascent
        self._candidate, self._parts = np.append(self.weights, self.bias), Average()
        if self.frozen is None:
            self._unmeet()

    def prove(self, chunk: Chunk) -> None:
        """After ``end_adding``, where a scan of the others stands: go on with it over rows that are
        new. ``end_proving`` after all chunks."""
        assert self.frozen is not None
        targets = self.targets(chunk)
        counts = self.counts.take_ranges(chunk.ranges)
        self.frozen.scan(chunk.rows, targets, counts, self.settings.rho)

    def end_proving(self) -> None:
        """Conclude from the scan of the others and that of the new rows, which is one of all rows:
        the weights that were best before are good enough for all of them, or the next reading
        trains."""
        frozen = self.frozen
        assert frozen is not None
        frozen.carried = self.dual.w
        self._candidate = None
        self._certify(frozen)
        self._conclude(frozen)
        if self.finished:
            self.release_rows()
            return
        self.mode, self.frozen = "train", None
        self._unmeet()

    def _scan_stands(self) -> bool:
        """Whether the last scan was of the best weights, and of the counts as they are now. Then it
        is made ready to be gone on with: it shares no array with a."""
        frozen, dual = self.frozen, self.dual
        if frozen is None or self.certificate is None or not self.stage.ascent:
            return False
        seen = frozen.scan_sums
        now, _ = frozen.certificate(hard=self.settings.hard)
        if (now.primal_margin, now.scale) != (
            self.certificate.primal_margin,
            self.certificate.scale,
        ):
            return False
        if seen.steps != dual.steps or not np.array_equal(seen.fresh, dual.w):
            return False
        frozen.w, seen.fresh = frozen.w.copy(), seen.fresh.copy()
        return True

    def _unmeet(self) -> None:
        """All rows are going to be met again."""
        self.sq_radius, self.least_delta2 = 0.0, math.inf
        self.rows_met, self.lengths = 0, 0.0

    # --- one reading ---

    def begin_reading(self, reading: int, scale: float | None = None) -> None:
        """Get ready for a reading: the rows held will be those of this one, unless all are.

        ``scale``: around which a scan looks for the least primal; None = as training left it.
        """
        self.reading = reading
        self.concluded = False
        if not self.complete:
            self.active.clear()
        watching = self.overflowed and self.mode == "train" and self.stage.ascent
        self.overflowed = False
        self.frozen = None
        if self.mode == "scan" or watching:
            self.frozen = self._freeze_best(scale)
        elif reading > 0:
            self.frozen = Frozen(self.dual.w, self.dual.bias, self.dual.scale, self._threshold())
        self._watching = watching

    def take(
        self,
        chunk: Chunk,
        positions: NDArray[np.int64] | None,
        dots: NDArray[np.float64] = kernels.NOT_SUMMED,
    ) -> None:
        """Digest one chunk of the reading, its rows visited in the order of ``positions`` (None
        where all only scan). ``dots``: see ``Frozen.scan``."""
        targets = self.targets(chunk)
        if self.reading == 0:
            self._meet(chunk, targets)
            if self.stage_number < 0 and self.sq_radius > 0.0:
                self._begin_stage()
        frozen = self.frozen
        if frozen is not None:
            counts = self.counts.take_ranges(chunk.ranges)
            called = frozen.scan(chunk.rows, targets, counts, self.settings.rho, dots)
            calm = self.mode == "scan" or not (self._watching or frozen.anybody_called)
            if calm:
                shared = self.holding_all and self._share(chunk.rows, targets)
                if not shared and not self.settings.faithful:
                    self._hold(chunk.rows, np.flatnonzero(called), targets)
                return
            if not self._watching:
                self.frozen = None  # a row will move a: what was seen so far proves nothing
        assert positions is not None
        self._train(chunk, positions, targets)

    def finish_reading(self) -> Solve:
        """Conclude from the reading what it proved, and decide what the next reading is for.
        Returns the training on the rows held that comes before it, which is still to be run."""
        frozen = self.frozen
        self.readings += 1
        self.concluded = True
        if self.mode == "train":
            self._count_epoch()
        if frozen is not None:
            self._certify(frozen)
            self._conclude(frozen)
            if self.finished:
                return _nothing()
        return self._train_on(frozen)

    def reopen(self) -> bool:
        """Whether it had ended, but would not have by the settings that it has now, or not like
        this; then ``go_on`` takes it further."""
        if self.finished is None or self.certificate is None:
            return False
        if not self.sound:
            return True
        reached = self.certificate.relative_duality_gap <= self.settings.tolerance
        if self.finished == "epoch limit" and reached and self.settings.tolerance > 0.0:
            self.finished = "certified"
        if self.finished == "epoch limit":
            return self.full_epochs < self.settings.epoch_limit
        return self.finished == "certified" and not reached

    def go_on(self) -> Solve:
        """Take up training after an end that other settings (a smaller tolerance, more epochs)
        would not have made. Returns the training on the rows held, which is still to be run. Where
        the weights are spoilt, readings of all rows follow."""
        self.finished = None
        if not self.sound:
            self._give_up_weights()
            return _nothing()
        return self._train_on(self.frozen)

    def _train_on(self, frozen: Frozen | None) -> Solve:
        """What follows a reading that did not end the run."""
        if self.full_epochs >= self.settings.epoch_limit:
            self._stop_at_limit(frozen)
            return _nothing()
        if self.mode == "scan":
            self._count_epoch()
        if self.stage.brief:
            self._next_stage(stages.why_next(self.plan, self.stage_number, self.settings))
        self.mode = "train" if self.settings.faithful or self.overflowed else "scan"
        return self._solve()

    def _count_epoch(self) -> None:
        self.full_epochs += 1
        self.reports[-1].full_epochs += 1

    def _conclude(self, frozen: Frozen) -> None:
        """Whether the certificate just made ends the run or the stage."""
        assert self.certificate is not None
        gap, tolerance = self.certificate.relative_duality_gap, self.settings.tolerance
        if tolerance > 0.0 and gap <= tolerance:
            self._end_stage("the certificate meets the tolerance")
            self.finished = "certified"
        elif not self.stage.ascent:
            # a stage that begins at the limit would end the run with its counts, which are none
            spent = self.full_epochs >= self.settings.epoch_limit
            if not frozen.anybody_called and (self._last_stage or not spent):
                self._next_stage("a full reading found no row to update")
        elif self.settings.hard and self._has_no_margin():
            assert self.certificate.upper_bound is not None
            self._end_stage(f"no margin above {self.certificate.upper_bound:.3g} exists")
            self.finished = "no margin"
        elif gap <= SOLVED or (gap < 1e-6 and gap > 0.9 * self._gap_before):
            self._end_stage("the gap is at the level of rounding")
            self.finished = "converged"
        self._gap_before = gap

    def _has_no_margin(self) -> bool:
        """Δ = 0: whether the upper bound leaves next to no room for a margin above 0."""
        now = self.certificate
        if now is None or now.upper_bound is None or now.directional_margin > 0.0:
            return False
        return now.upper_bound <= NO_MARGIN * self.lengths / self.rows_met

    def _stop_at_limit(self, frozen: Frozen | None) -> None:
        if frozen is None:
            self.mode = "scan"  # one more reading, so that the run ends with a certificate
            return
        self._end_stage(f"the limit of {self.settings.max_epochs} full epochs")
        self.finished = "epoch limit"

    # --- stages ---

    @property
    def _last_stage(self) -> bool:
        return self.stage_number + 1 == len(self.plan)

    def _begin_stage(self) -> None:
        """Fix b of the stage from what is known; begin at a = 0, or ascent from where we are."""
        self.stage_number += 1
        stage, upper = self.stage, self.dual.upper_bound
        if self.settings.faithful and self.reports:
            upper = self.reports[-1].paper_upper_bound
        self.b = stages.choose_b(stage, self.settings, self.sq_radius, upper, self.least_delta2)
        if stage.ascent and self.dual.steps:
            factor = round(self.b * self.dual.scale)
            self.counts.scale(self.dual.rescale(self.counts.largest(), factor))
            self.cold = False
        elif self.dual.steps:
            self.dual.restart()
            self.counts.clear()
            self.cold = True
        self.reports.append(StageReport.begin(stage, self.settings, self.b, self.dual.updates))

    def _end_stage(self, why: str) -> None:
        self.reports[-1].end(
            why,
            self.dual.updates,
            self.certificate,
            radius=math.sqrt(self.sq_radius),
            steps=self.dual.steps if self.cold else None,
            length=math.sqrt(self.dual.sq_norm),
            converged=why.startswith("a full reading"),
        )

    def _next_stage(self, why: str) -> None:
        self._end_stage(why)
        if self._last_stage:
            self.finished = "converged"
        else:
            self._begin_stage()

    # --- rows as they pass ---

    def measure(self, chunk: Chunk) -> None:
        """A first reading for R, where the procedure wants b fixed from all rows."""
        self._meet(chunk, self.targets(chunk))

    def _meet(self, chunk: Chunk, targets: Targets) -> None:
        """Rows not seen before: room for their columns, and R."""
        columns = chunk.width
        if columns > len(self.dual.w):
            columns = _room(columns, len(self.dual.w))
            self.dual.widen(columns)
            if self.frozen is not None:
                self.frozen.widen(columns)
        lengths = targets.sq_lengths(self.settings.rho)
        if not len(lengths):
            return
        hard, present = self.settings.hard, targets.delta2[targets.present]
        self.observe(float(lengths.max()), math.inf if hard else float(present.min()))
        self.rows_met += len(lengths)
        if hard:
            self.lengths += math.fsum(np.sqrt(lengths))

    def _threshold(self) -> float:
        exponent = 1.0 - self.stage.epsilon
        if self.dual.steps == 0 and not self.stage.ascent:
            return 0.0
        if exponent == 0.0:
            return self.b
        by = self.dual.steps if self.settings.variant == "steps" else math.sqrt(self.dual.sq_norm)
        return float(self.b * by**exponent)

    def _train(self, chunk: Chunk, positions: NDArray[np.int64], targets: Targets) -> None:
        counts = self.counts.take_ranges(chunk.ranges)
        erred = np.zeros(len(counts), dtype=np.uint8)
        self.dual.visit(
            self.rule, chunk.rows, positions, targets.signs, targets.delta2, targets.squares,
            counts, erred,
        )  # fmt: skip
        self.counts.put_ranges(chunk.ranges, counts)
        if self.holding_all and self._share(chunk.rows, targets):
            return
        wanted = erred != 0
        if not self.settings.faithful:
            wanted |= counts > 0
        self._hold(chunk.rows, np.flatnonzero(wanted), targets)

    def _share(self, rows: Rows, targets: Targets) -> bool:
        """Hold all rows of a chunk if there is room; from the first that finds none on, only those
        that matter are held."""
        if self.complete:
            return True
        if self.active.share(self.pool, rows, targets):
            return True
        self.holding_all = False
        self._drop_idle_rows()
        return False

    def _hold(self, rows: Rows, chosen: NDArray[np.int64], targets: Targets) -> None:
        """Copy rows to the active set. Where it is full, while training: it is solved at once
        and most of it leaves; while scanning: the next reading will have to train."""
        while len(chosen) and not self.complete:
            chosen = chosen[self.active.add(rows, chosen, targets) :]
            if len(chosen) and not self._make_room():
                return

    def _make_room(self) -> bool:
        """Solve the rows held, so that most of them can leave; whether that is of use."""
        if self.settings.faithful:
            raise SettingsError(
                f"the active set is over its budget of {format_size(self.active.budget)}, and "
                "--faithful keeps every misclassified row. Give a larger --active-set."
            )
        self.overflowed = True
        if self.mode == "scan" or not len(self.active):
            return False
        if self.stage.brief:
            self._next_stage(stages.why_next(self.plan, self.stage_number, self.settings))
        run_alone(self._solve())
        self._keep_some()
        return True

    def _keep_some(self) -> None:
        """Of the rows just solved, some stay to be solved once more with those to come: drawn by
        counts to the byte, up to KEPT of the budget. Parts that share no rows need twice the
        readings, for each is solved as if the others stood still."""
        active, before = self.active, len(self.active)
        counts = self.counts.take(active.numbers)
        live = np.flatnonzero(counts)
        drawn = self._drawn_order(counts[live] / active.sizes[live])
        active.keep(live[drawn], KEPT * active.budget)
        if len(active) == before:
            active.clear()  # the next row finds no room beside these

    def _drop_idle_rows(self) -> None:
        """From now on only rows with a count, or near or below the threshold, are held."""
        active = self.active
        if not len(active):
            return
        augmented = self.dual.augmented(1.0)
        found = passes.margins(active.rows, active.signs, self.settings.rho, augmented)
        counts = self.counts.take(active.numbers)
        found += active.delta2 * counts
        active.retain(np.flatnonzero((counts > 0) | (found <= NEAR * self._threshold())))

    # --- rows in memory ---

    def release_rows(self) -> None:
        """Hold no rows any more, once it has finished. Should it be taken further all the same, its
        next reading holds those that matter."""
        self.active.clear()
        self.holding_all = False

    def _solve(self) -> Solve:
        """Solve the rows held, or give them up to N_ep mini-epochs, as the stage has it."""
        if not len(self.active):
            return
        counts = self.counts.take(self.active.numbers)
        of_rows = self.active, counts, self.dual, self.rule, self._next_turn
        mini_epochs, hard = self.settings.mini_epochs, self.settings.hard
        if not self.stage.ascent or (hard and self.overflowed):
            problem = Subproblem(*of_rows, alone=True)
            spent = yield from visit_until_still(problem, mini_epochs)
            self._end_training(counts, spent)
            return
        gap = self._worthwhile_gap()
        if hard:
            gamma = self.dual.upper_bound or math.sqrt(self.sq_radius)
            found = yield from solve_hard(*of_rows, gap, mini_epochs, 0.1 * gap * gamma * gamma)
        else:
            alone = not self.overflowed
            best = np.append(self.weights, self.bias) if alone and self.certificate else None
            problem = Subproblem(*of_rows, alone=alone)
            found = yield from solve(problem, gap, mini_epochs, best=best)
        self._end_training(counts, found.mini_epochs)
        self._take_solution(found)

    def _end_training(self, counts: NDArray[np.int32], mini_epochs: int) -> None:
        """Take the counts of the rows held, which so many mini-epochs have changed."""
        self.counts.put(self.active.numbers, counts)
        self.mini_epochs += mini_epochs
        self.reports[-1].mini_epochs += mini_epochs

    def _take_solution(self, found: Solution) -> None:
        """Take what is known of the rows held since they have been solved."""
        self.b = self.reports[-1].b = found.b
        if not self.overflowed:
            self._candidate = found.v
        elif found.a is not None:
            self._candidate = self._parts.add(found.a)

    def _worthwhile_gap(self) -> float:
        """The gap to which rows in memory are worth solving: nearly the tolerance if they are all
        there are; half of it, or a tenth of what the last scan left, if others have no count; less
        if they are a part of those with counts."""
        if self.holding_all:
            return max(HELD * self.settings.tolerance, SOLVED)
        wanted = max(0.5 * self.settings.tolerance, SOLVED)
        if self.overflowed:
            return 0.1 * wanted
        left = 1.0 if self.certificate is None else self.certificate.relative_duality_gap
        return max(wanted, 0.1 * left)

    def _next_turn(self) -> order.Turn:
        self._shuffles += 1
        settings = self.settings
        return order.Turn(settings.seed, self.reading, self._shuffles, settings.random)

    def _drawn_order(self, weights: NDArray[np.float64]) -> NDArray[np.int64]:
        if not self.settings.random:
            return np.argsort(-weights, kind="stable")
        self._shuffles += 1
        return order.drawn_order(self.settings.seed, self.reading, self._shuffles, weights)

    # --- certificates ---

    def _freeze_best(self, scale: float | None) -> Frozen:
        """The best weights known, at rest: the candidate of the rows in memory, or a itself."""
        best, self._candidate, self._parts = self._candidate, None, Average()
        if best is None:
            w = self.dual.w.copy() if self.mode == "train" else self.dual.w
            scale = scale or self.dual.scale
            return Frozen(w, self.dual.bias, scale, self._threshold())
        w = np.zeros(len(self.dual.w))
        w[: len(best) - 1] = self.b * best[:-1]
        carried = self.dual.w.copy() if self.mode == "train" else self.dual.w
        return Frozen(w, self.b * float(best[-1]), 1.0 / self.b, self._threshold(), carried)

    def _tell_drift(self, drift: float, seen: ScanSums) -> None:
        """Tell of a drift that is repaired: as a warning if rounding does not explain it, for then
        memory or disk may have spoilt the weights, and that is worth looking after."""
        self.drift_repaired = max(self.drift_repaired, drift)
        explained = drift <= drift_by_rounding(self.dual.updates, seen)
        _log.log(
            logging.INFO if explained else logging.WARNING,
            "the weights carried into reading %d had drifted by %.1g of their length from those "
            "that the counts make, %s. They are made afresh from the counts.",
            self.reading + 1,
            drift,
            "by rounding" if explained else "more than rounding explains: check memory and disk",
        )

    def _certify(self, frozen: Frozen) -> None:
        """Take the certificate; keep the weights of the least primal; drop a's drift where a
        stood still, and where it is large."""
        now, _ = frozen.certificate(hard=self.settings.hard)
        best = self.certificate
        if best is None or now.primal_margin >= best.primal_margin:
            self.weights, self.bias = now.scale * frozen.w, now.scale * frozen.bias
            self.certificate = now
        else:
            self.certificate = replace(now, primal_margin=best.primal_margin, scale=best.scale)
        seen = frozen.scan_sums
        drift = now.drift or 0.0
        drifted = drift > LARGE_DRIFT and not self._weights_set
        self._weights_set = False
        if drifted:
            self._tell_drift(drift, seen)
        if not self._watching:
            self.dual.settle(seen.fresh, seen.fresh_bias, seen.sq_extension, seen.steps)
        elif drifted:
            # the counts have moved on since the reading began, the error is still the same
            carried = frozen.w if frozen.carried is None else frozen.carried
            dual = self.dual
            off = seen.fresh - carried
            dual.settle(dual.w + off, dual.bias, float(dual.scalars[kernels.EXTENSION]), dual.steps)


def drift_by_rounding(updates: int, seen: ScanSums) -> float:
    """The part of their length by which updates can move the carried weights from Σ c_k y_k.

    An update rounds each coordinate of its row by u = 2⁻⁵³ of what it is by then, which
    Σ c_k |y_kj| bounds: N updates move w by N u Σ c_k ‖y_k‖ at most, where the counts were never
    much larger than they are now. In tables whose columns differ by orders of magnitude Σ c_k ‖y_k‖
    is thousands of times ‖w‖, and rounding alone is above LARGE_DRIFT.
    """
    length = math.sqrt(kernels.square_sum(seen.fresh))
    lengths = float(seen.sums[kernels.LENGTHS])
    return updates * kernels.UNIT_ROUNDOFF * lengths / length if length else math.inf


def _narrow_augmented(v: NDArray[np.float64], columns: int) -> NDArray[np.float64]:
    return np.append(v[:-1][:columns], v[-1:])


def _nothing() -> Solve:
    """A solve of no rows."""
    yield from ()


def _room(needed: int, there: int) -> int:
    """Grow by half at least, so that growing costs little."""
    return max(needed, there + there // 2)
