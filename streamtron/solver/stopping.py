"""When a stage or a run ends, what a stage begins with, and what a scan proves."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import ScanSums
from streamtron.core.text import up
from streamtron.solver import stages
from streamtron.solver.duals import Counts
from streamtron.solver.history import CONVERGED, StageReport
from streamtron.solver.learner import Average, Learner
from streamtron.solver.scan import Frozen
from streamtron.solver.stages import Regime
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


LARGE_DRIFT = 1e-9
"""Drift of the running weights, as a part of ‖Σ c_k y_k‖, above which they are replaced and a
message is logged. Where nothing cancels, rounding stays far below (see ``drift_by_rounding``)."""

_log = logging.getLogger(__name__)


def freeze(learner: Learner, scale: float | None, *, beside_training: bool) -> Frozen:
    """Fix the best weights known for a scan: the candidate of the last solve, or the running ones.
    ``scale`` : see ``ScanRequest``; None = t/‖a‖². ``beside_training`` : see ``Frozen``."""
    best, running, b = learner.best, learner.running, learner.progress.b
    candidate, best.candidate, best.average = best.candidate, None, Average()
    fixed = running.w.copy() if beside_training else running.w
    if candidate is None:
        scale = scale or running.scale
        frozen = Frozen(fixed, running.bias, scale, learner.threshold)
    else:
        candidate *= b
        w, bias = candidate[:-1], float(candidate[-1])
        frozen = Frozen(w, bias, 1.0 / b, learner.threshold, fixed)
        if len(w) < len(fixed):
            frozen.widen(len(fixed))
    frozen.beside_training = beside_training
    return frozen


def certify(learner: Learner, frozen: Frozen) -> None:
    """Certify a complete scan; keep the weights of the least primal; repair the running ones."""
    now = frozen.certificate(hard=learner.settings.hard)
    best, known = learner.best, learner.best.certificate
    if known is None or now.primal <= known.primal:
        best.w, best.scale, best.bias = frozen.w, now.scale, now.scale * frozen.bias
        best.certificate = now
    else:
        best.certificate = replace(now, primal=known.primal, scale=known.scale)
    drift = now.drift or 0.0
    drifted = drift > LARGE_DRIFT and not learner.unsummed
    learner.unsummed = False
    if drifted:
        _log_drift(learner, drift, frozen.scan_sums)
    seen, running = frozen.scan_sums, learner.running
    if not frozen.beside_training:
        running.settle_scanned(seen)
    elif drifted:
        # the counts have changed since the reading began, but the error is still the same
        before = frozen.w if frozen.running is None else frozen.running
        w = running.w + (seen.fresh - before)
        running.settle(w, running.bias, running.extension, running.steps)
    frozen.running = None  # its drift has been measured


def _log_drift(learner: Learner, drift: float, seen: ScanSums) -> None:
    """Log a drift that is repaired: as a warning if rounding does not explain it, for then memory
    or disk may have changed the weights."""
    best = learner.best
    explained = drift <= drift_by_rounding(learner.running.updates, seen, _longest(learner))
    larger, best.drift_repaired = drift > best.drift_repaired, max(best.drift_repaired, drift)
    _log.log(
        logging.WARNING if larger and not explained else logging.INFO,
        "the running weights of reading %d had drifted by %.1g of their length from those "
        "that the counts make, %s. They are made afresh from the counts.",
        learner.progress.reading + 1,
        drift,
        "by rounding" if explained else "more than rounding explains: check memory and disk",
    )


def _longest(learner: Learner) -> float:
    """The most, about, that a row has added to ‖a‖: R times b/Δ², the count at a slack of 1."""
    extent = learner.extent
    count = learner.progress.b / extent.least_delta2
    return math.sqrt(extent.sq_radius) * min(count or math.inf, float(kernels.COUNT_MAX))


def drift_by_rounding(updates: int, seen: ScanSums, longest: float = 0.0) -> float:
    """Bound the drift, as a part of ‖w‖, that the rounding of N updates explains: each rounds the
    coordinates of its row by at most u = 2⁻⁵³ of their value, which Σ c_k |y_kj| bounds, so that
    they move w by at most N u (Σ c_k ‖y_k‖ + ``longest``), the latter for a row whose count has
    fallen since. Where values differ by orders of magnitude, that may be all of w."""
    length = math.sqrt(kernels.square_sum(seen.fresh))
    lengths = float(seen.sums[kernels.LENGTHS]) + longest
    return updates * kernels.UNIT_ROUNDOFF * lengths / length if length else math.inf


def discard_weights(learner: Learner) -> None:
    """Discard the running and the best weights: the next reading sums them from the counts."""
    _log.warning(
        "the running weights are not those of any counts: memory or disk has changed "
        "them. They are made afresh from the counts."
    )
    sum_afresh(learner)
    best = learner.best
    best.discard()
    best.gap_before, best.drift_repaired = math.inf, 1.0
    learner.mode = "scan"


def sum_afresh(learner: Learner) -> None:
    """Set the running weights to 0 until the next reading has summed them from the counts."""
    restart(learner.running)
    learner.unsummed = True


def set_weights(
    learner: Learner, w: NDArray[np.float64], bias: float, counts: Counts | None = None
) -> None:
    """Set the running weights (columns as the shards number them) and the bias weight, and counts
    if there are any, which need not make these weights; the next reading scans them."""
    learner.running.w = w
    learner.running.scalars[kernels.BIAS] = bias
    learner.mode, learner.unsummed = "scan", True
    if learner.regime == Regime.ALL_ROWS:
        learner.regime = Regime.WORKING_SET
    if counts is not None:
        learner.counts = counts
