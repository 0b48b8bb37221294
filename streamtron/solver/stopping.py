"""When a stage or a run ends, and what a stage begins with."""

from __future__ import annotations

import math

from streamtron.solver import stages
from streamtron.solver.learner import Learner
from streamtron.solver.report import StageReport
from streamtron.solver.scan import Frozen

ROUNDING_GAP = 1e-12
"""A relative duality gap that counts as 0; no smaller one is asked of the rows in memory."""

STALLED = (1e-6, 0.9)
"""Below a gap of 1e-6, a scan that leaves more than 0.9 of the gap before it has met rounding."""

NO_MARGIN = 1e-4
"""Hard margin: a run ends once ‖a‖/t ≥ γ_d is below this part of the mean length of y_k. The rows
may still be separable by a smaller margin."""


def begin_stage(learner: Learner) -> None:
    """Fix b of the next stage from what is known; begin at a = 0, or ascent from the current a."""
    progress, running = learner.progress, learner.running
    progress.stage_number += 1
    stage, upper = progress.stage, running.upper_bound
    if learner.settings.faithful and progress.reports:
        upper = progress.reports[-1].paper_upper_bound
    extent = learner.extent
    progress.b = stages.choose_b(
        stage, learner.settings, extent.sq_radius, upper, extent.least_delta2
    )
    if stage.ascent and running.steps:
        factor = round(progress.b * running.scale)
        learner.counts.scale(running.rescale(learner.counts.largest(), factor))
        progress.from_zero = False
    elif running.steps:
        running.restart()
        learner.counts.clear()
        progress.from_zero = True
    report = StageReport.begin(stage, learner.settings, progress.b, running.updates)
    progress.reports.append(report)


def end_stage(learner: Learner, stop_reason: str) -> None:
    """Close the report of the current stage."""
    progress, running = learner.progress, learner.running
    progress.reports[-1].end(
        stop_reason,
        running.updates,
        learner.best.certificate,
        radius=math.sqrt(learner.extent.sq_radius),
        steps=running.steps if progress.from_zero else None,
        length=math.sqrt(running.sq_norm),
        converged=stop_reason.startswith("a full reading"),
    )


def next_stage(learner: Learner, stop_reason: str) -> None:
    """End the current stage and begin the next one; after the last one the run has converged."""
    end_stage(learner, stop_reason)
    if learner.progress.last_stage:
        learner.progress.finished = "converged"
    else:
        begin_stage(learner)


def leave_brief_stage(learner: Learner) -> None:
    """Begin the next stage of the automatic plan, if the current one lasts one reading only."""
    progress = learner.progress
    if progress.stage.brief:
        reason = stages.reason_to_leave(progress.plan, progress.stage_number, learner.settings)
        next_stage(learner, reason)


def conclude(learner: Learner, frozen: Frozen) -> None:
    """End the run or the stage if the certificate just made allows it."""
    progress, settings, best = learner.progress, learner.settings, learner.best
    assert best.certificate is not None
    gap = best.certificate.relative_duality_gap
    small, falling = STALLED
    if settings.tolerance > 0.0 and gap <= settings.tolerance:
        _finish(learner, "certified", "the certificate meets the tolerance")
    elif not progress.stage.ascent:
        # a stage that begins at the epoch limit would end the run with counts of 0
        spent = progress.full_epochs >= settings.epoch_limit
        if not frozen.has_violators and (progress.last_stage or not spent):
            next_stage(learner, "a full reading found no row to update")
    elif settings.hard and _has_no_margin(learner):
        _finish(learner, "no margin", f"no margin above {best.certificate.upper_bound:.3g} exists")
    elif gap <= ROUNDING_GAP or (gap < small and gap > falling * best.gap_before):
        _finish(learner, "converged", "the gap is at the level of rounding")
    best.gap_before = gap


def stop_at_limit(learner: Learner, frozen: Frozen | None) -> None:
    """End the run at the epoch limit, after one more reading if this one proved nothing."""
    if frozen is None:
        learner.mode = "scan"
    else:
        limit = learner.settings.max_epochs
        _finish(learner, "epoch limit", f"the limit of {limit} full epochs")


# --- after an end ---


def reopen(learner: Learner) -> bool:
    """Whether a finished learner has more to do by the settings that it has now: a smaller
    tolerance, more epochs."""
    progress, settings, certificate = learner.progress, learner.settings, learner.certificate
    if progress.finished is None or certificate is None:
        return False
    if not learner.valid:
        return True
    reached = certificate.relative_duality_gap <= settings.tolerance
    if progress.finished == "epoch limit" and reached and settings.tolerance > 0.0:
        progress.finished = "certified"
    if progress.finished == "epoch limit":
        return progress.full_epochs < settings.epoch_limit
    return progress.finished == "certified" and not reached


def _finish(learner: Learner, finished: str, stop_reason: str) -> None:
    end_stage(learner, stop_reason)
    learner.progress.finished = finished


def _has_no_margin(learner: Learner) -> bool:
    """Hard margin: whether the upper bound is below NO_MARGIN of the rows' mean length."""
    now = learner.best.certificate
    if now is None or now.upper_bound is None or now.directional_margin > 0.0:
        return False
    return now.upper_bound <= NO_MARGIN * learner.extent.lengths / learner.extent.rows
