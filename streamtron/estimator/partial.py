"""What ``partial_fit`` compares with earlier calls, and what it proves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamtron.core.certificate import Certificate, upper_bound_of
from streamtron.core.config import Settings
from streamtron.core.rows import Label
from streamtron.solver.learner import Learner
from streamtron.solver.partial_fit import EarlierData


def problem_of(
    learners: Sequence[Learner], settings: Settings, labels: Sequence[Label]
) -> dict[str, Any]:
    """Return by scikit-learn's names what makes the extended rows; a class weighs 1 if unnamed."""
    weights: dict[Label, float] = {}
    for learner in learners:
        weights |= learner.targets.class_weights or {}
    return {
        "loss": settings.loss, "epsilon": settings.epsilon, "intercept": settings.intercept,
        "C": 0.5 / settings.delta2, "intercept_scaling": settings.rho, "penalty": settings.penalty,
        "class_weight": [float(weights.get(label, 1.0)) for label in labels],
    }  # fmt: skip


def certificate_of_past(past: EarlierData) -> dict[str, Any]:
    """Return a certificate of D alone, and of the upper bound where there are margins."""
    sums, (upper, rounding) = past.scan_sums, upper_bound_of(past.scan_sums)
    return {
        **dict.fromkeys(Certificate(0.0, 1.0, 0.0, 0, 1.0).to_dict()),
        "upper_bound": upper if sums.loss.quadratic and not sums.free else None,
        "dual_objective": past.dual or None,
        "rounding_bound": rounding,
        "rows_scanned": past.rows,
        "covers": f"this holds for all {past.rows} rows given so far; nothing is proven of the "
        "weights, for the earlier ones were not there to be scanned at them",
    }
