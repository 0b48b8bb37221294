"""When a stage or a run ends, and what a stage begins with."""

from __future__ import annotations

import math

from streamtron.core.text import up
from streamtron.solver import stages
from streamtron.solver.learner import Learner
from streamtron.solver.report import CONVERGED, StageReport
from streamtron.solver.scan import Frozen
from streamtron.solver.state import Regime
from streamtron.solver.weights import restart

ROUNDING_GAP = 1e-12
"""A relative duality gap 1 − D/P that counts as 0; no smaller one is asked of the rows in memory.
``benchmarks/rounding.py`` prints by how far rounding widens the bounds."""

MARGIN_OF_TOLERANCE = 0.95
"""All rows in memory are solved to this part of the tolerance: rounding and the scan's other scale
then do not lift the certified gap above it."""

SOLVED = 0.003
"""A block is solved to no less than this part of the last certified gap: 0.01 takes a reading more,
0.001 half as many products again (``benchmarks/certified.py --active-set 10%``)."""

STALLED = (1e-6, 0.9)
"""Below a gap of 1e-6, a scan that leaves more than 0.9 of the gap before it has met rounding:
otherwise it leaves about a quarter (``benchmarks/certified.py --active-set 10%``)."""

NO_MARGIN = 1e-4
"""Hard margin: a run ends once ‖a‖/t ≥ γ_d is below this part of the mean length of y_k. The rows
may still be separable by a smaller margin. No benchmark chose it: where rows are not separable
‖a‖/t falls like 1/t for ever."""


def begin_stage(learner: Learner) -> None:
    """Fix b of the next stage from what is known; begin at a = 0, or ascent from the current a."""
    progress, running = learner.progress, learner.running
    progress.stage_number += 1
    stage, upper = progress.stage, running.upper_bound
    if learner.settings.faithful and progress.reports:
        upper = progress.reports[-1].bounds["paper_upper_bound"]
    extent = learner.extent
    progress.b = stages.choose_b(
        stage, learner.settings, extent.sq_radius, upper, extent.least_delta2
    )
    if stage.ascent and running.steps:
        factor = round(progress.b * running.scale)
        learner.counts.scale(running.rescale(learner.counts.largest(), factor))
        progress.from_zero = False
    elif running.steps:
        restart(running)
        learner.counts.clear()
        progress.from_zero = True
    report = StageReport.begin(stage, learner.settings, progress.b, running.updates)
    progress.reports.append(report)


def end_stage(learner: Learner, finished: str | None, stop_reason: str) -> None:
    """Close the report of the current stage; ``finished`` : why the run ends with it."""
    progress = learner.progress
    progress.finished = finished
    if finished:
        learner.outside = None
    radius, now = math.sqrt(learner.extent.sq_radius), learner.best.certificate
    progress.reports[-1].end(
        stop_reason, learner.running, now, radius, from_zero=progress.from_zero
    )


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


def conclude(learner: Learner, frozen: Frozen) -> None:
    """End the run or the stage if the certificate just made allows it."""
    progress, settings, best = learner.progress, learner.settings, learner.best
    assert best.certificate is not None
    gap = best.certificate.relative_duality_gap
    small, falling = STALLED
    if settings.tolerance > 0.0 and gap <= settings.tolerance:
        end_stage(learner, "certified", "the certificate meets the tolerance")
    elif not progress.stage.ascent:
        # a stage that begins at the epoch limit would end the run with counts of 0
        spent = progress.full_epochs >= settings.epoch_limit
        if not frozen.has_violators and (progress.last_stage or not spent):
            next_stage(learner, CONVERGED)
    elif settings.hard and _has_no_margin(learner):
        reason = f"no margin above {up(best.certificate.upper_bound, 3)} exists"
        end_stage(learner, "no margin", reason)
    elif gap <= ROUNDING_GAP or (gap < small and gap > falling * best.gap_before):
        end_stage(learner, "converged", "the gap is at the level of rounding")
    best.gap_before = gap


def stop_at_limit(learner: Learner, frozen: Frozen | None) -> None:
    """End the run at the epoch limit, after one more reading if this one proved nothing."""
    if frozen is None:
        learner.mode = "scan"
    else:
        limit = learner.settings.max_epochs
        end_stage(learner, "epoch limit", f"the limit of {limit} full epochs")


def reopen(learner: Learner) -> bool:
    """Whether a finished learner has more to do by its settings now: smaller tol, more epochs."""
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


def _has_no_margin(learner: Learner) -> bool:
    """Hard margin: whether the upper bound is below NO_MARGIN of the rows' mean length."""
    now = learner.best.certificate
    if now is None or now.upper_bound is None or now.directional_margin > 0.0:
        return False
    return now.upper_bound <= NO_MARGIN * learner.extent.lengths / learner.extent.rows


def worthwhile_gap(learner: Learner) -> float:
    """The relative duality gap to which the rows in memory are worth solving: nearly the tolerance
    if they are all rows; half of it, or a tenth of the last certified gap, if all others have no
    count; a twentieth of it, or SOLVED times the last gap, if they are a block."""
    if learner.regime == Regime.ALL_ROWS:
        return max(MARGIN_OF_TOLERANCE * learner.settings.tolerance, ROUNDING_GAP)
    wanted = max(0.5 * learner.settings.tolerance, ROUNDING_GAP)
    left = 1.0 if learner.certificate is None else learner.certificate.relative_duality_gap
    if learner.regime == Regime.BLOCKS:
        return max(0.1 * wanted, SOLVED * left)
    return max(wanted, 0.1 * left)
