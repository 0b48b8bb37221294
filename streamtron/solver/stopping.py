"""What a scan proves, when a run ends, and to which gap rows in memory are solved."""

from __future__ import annotations

import math

from streamtron.core.config import epoch_limit
from streamtron.solver.learner import Learner, choose_visits, end_stage

ROUNDING_GAP = 1e-12
"""A relative duality gap 1 − D/P that counts as 0; no smaller one is asked of the rows in memory.
``benchmarks/rounding.py`` prints by how far rounding widens the bounds."""

MARGIN_OF_TOLERANCE = 0.95
"""All rows in memory are solved to this part of the tolerance: rounding then does not lift the
certified gap above it."""

SOLVED = 0.003
"""A buffer is solved to no less than this part of the last certified gap (``certified.py``)."""

SOLVED_OF_NUMBERS = 0.03
"""The same where labels are numbers: there more rows of a buffer matter."""

STALLED = (1e-6, 0.9)
"""Below a gap of 1e-6, a scan that leaves more than 0.9 of the gap before it has met rounding:
otherwise it leaves about a quarter (``benchmarks/certified.py --active-set 10%``)."""


def conclude(learner: Learner) -> None:
    """End the run if the certificate just made allows it."""
    settings, best, gap = learner.settings, learner.best, learner.gap
    small, falling = STALLED
    # what rounding leaves of the mean of labels that are numbers: where all are alike, P* is 0
    residual, facts = ROUNDING_GAP * learner.targets.center, learner.facts
    least = 0.5 * facts.rows * residual**2 * settings.price
    if learner.loss.log_link:
        least = ROUNDING_GAP * facts.total * settings.price
    assert best.certificate is not None
    if settings.tolerance > 0.0 and gap <= settings.tolerance:
        end_stage(learner, "certified", "the certificate meets the tolerance")
    elif gap <= ROUNDING_GAP or (gap < small and gap > falling * best.gap_before):
        end_stage(learner, "converged", "the gap is at the level of rounding")
    elif best.certificate.primal <= least:
        end_stage(learner, "converged", "the loss that is left is rounding")


PROMISED = 0.5
"""The part of the tolerance below which an expected gap is scanned for, without training beside."""


def promises_tolerance(learner: Learner) -> bool:
    """Whether the gap is expected to meet the tolerance: the reading that was certified last has
    been followed by another, which is expected to lower the gap by as much as the one before it."""
    gap, gap_before = learner.gap, learner.best.gap_before
    if learner.settings.parts is not None or not 0.0 < gap_before < math.inf:
        return False  # parts train beside every scan
    return gap * gap / gap_before <= PROMISED * learner.settings.tolerance


def stop_at_limit(learner: Learner) -> None:
    """End the run at the epoch limit, after one more reading if this one proved nothing."""
    if learner.frozen is None:
        choose_visits(learner, False)
    else:
        end_stage(learner, "epoch limit", f"the limit of {learner.settings.max_epochs} full epochs")


def reopen(learner: Learner) -> bool:
    """Whether a finished learner has more to do by its settings now: smaller tol, more epochs."""
    progress, settings = learner.progress, learner.settings
    if progress.finished is None or learner.certificate is None:
        return False
    reached = learner.gap <= settings.tolerance
    if progress.finished == "epoch limit" and reached and settings.tolerance > 0.0:
        progress.finish("certified")
    if progress.finished == "epoch limit":
        return progress.full_epochs < epoch_limit(settings)
    return progress.finished == "certified" and not reached


def worthwhile_gap(learner: Learner) -> float:
    """The relative duality gap to which the rows in memory are worth solving: nearly the tolerance
    if they are all rows; half of it, or a tenth of the last certified gap (a hundredth if the loss
    is not quadratic), if all others have α = 0; a twentieth of it, or SOLVED times the last gap,
    if they are a buffer."""
    if learner.complete:
        return max(MARGIN_OF_TOLERANCE * learner.settings.tolerance, ROUNDING_GAP)
    target = max(0.5 * learner.settings.tolerance, ROUNDING_GAP)
    if learner.in_buffers:
        solved = SOLVED_OF_NUMBERS if learner.loss.numbers else SOLVED
        return max(0.1 * target, solved * learner.gap)
    return max(target, (0.1 if learner.has_margins else 0.01) * learner.gap)
