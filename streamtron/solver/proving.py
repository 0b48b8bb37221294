"""Certificates from scans at fixed weights, and the repair of drift."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import ScanSums
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner
from streamtron.solver.scan import Frozen
from streamtron.solver.state import Average, Regime
from streamtron.solver.weights import restart

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
