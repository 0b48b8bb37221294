"""What a certificate says about the optimum's decisions: which labels it shares, its accuracy.

With f(x) = w·x + ρ w_bias and ‖w − w*‖ ≤ √(2(P − D)), the radius, |f(x) − f*(x)| ≤ ‖(x, ρ)‖ ·
radius.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamtron.core import theory
from streamtron.core.errors import SettingsError
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import UNIT_ROUNDOFF, Floats
from streamtron.model.scoring import chosen_classes


class AccuracyBounds:
    """Bounds of the optimum's accuracy on rows of two classes.

    Where |f(x)| exceeds ‖(x, ρ)‖ · radius, the optimum and the model decide alike; on any other row
    the optimum may be right or wrong. The radius is infinite where nothing is proven.

    >>> bounds = AccuracyBounds(radius=0.5, rho=0.0)
    >>> bounds.add([1, 1, -1, -1], [0.9, 0.2, 0.7, -0.4], np.ones(4), np.ones(4))
    >>> bounds.accuracy  # right, unknown, wrong, unknown
    (0.25, 0.75)
    """

    def __init__(self, radius: float, rho: float) -> None:
        self._radius = min(radius, 1e150)  # above any decision, and finite times any length
        self._rho = rho
        self._least = self._most = self._weight = 0.0
        self._rows, self._exact = 0, True

    @classmethod
    def of(cls, model: LinearModel) -> Self:
        """Return the bounds for a model of two classes that has a certificate."""
        return cls(float(decision_radii(model)[0]), model.settings["rho"])

    def add(
        self, signs: ArrayLike, decisions: ArrayLike, weights: ArrayLike, lengths: ArrayLike
    ) -> None:
        """Add rows: the truth ±1, the model's f(x), the weight ≥ 0 and ‖x‖ of each."""
        sign, decision, weight = map(np.asarray, (signs, decisions, weights))
        self._rows += len(weight)
        self._exact = self._exact and bool((weight == np.floor(weight)).all())
        slack = sign * self._radius * np.hypot(np.asarray(lengths), self._rho)
        self._least += float(weight[(decision - slack > 0) == (sign > 0)].sum())
        self._most += float(weight[(decision + slack > 0) == (sign > 0)].sum())
        self._weight += float(weight.sum())

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Bounds in [0, 1] on all rows so far; None if their weight is 0."""
        if not self._weight:
            return None
        # sums of whole numbers below 2⁵³ are exact, those of other weights are off by u a row
        exact = self._exact and self._weight < 2.0**53
        rounding = 0 if exact else Fraction(1.01 * (2 * self._rows + 2) * UNIT_ROUNDOFF)
        least, most, all_ = map(Fraction, (self._least, self._most, self._weight))
        return at_least(least / all_ * (1 - rounding)), min(
            at_most(most / all_ * (1 + rounding)), 1.0
        )


def at_least(value: Fraction) -> float:
    """Return the largest float64 that is at most the value."""
    nearest = float(value)
    return nearest if nearest <= value else math.nextafter(nearest, -math.inf)


def at_most(value: Fraction) -> float:
    """Return the smallest float64 that is at least the value."""
    return -at_least(-value)


def decision_radii(model: LinearModel) -> Floats:
    """Return the radius √(2(P − D)) of each direction of a model that has a certificate.

    It contains the rounding of decisions: each is off by at most (columns + 8) u ‖(x, ρ)‖
    ‖(w, w_bias)‖, u = 2⁻⁵³ (Higham, 2002, eq. 3.5).
    """
    radii, rho = [], model.settings["rho"]
    if model.settings.get("intercept") == "free":
        raise SettingsError(
            "nothing bounds how far a bias that is not penalised is from the optimum's, so that no "
            "label is certain. Fit the model with --intercept penalised."
        )
    rounding = 1.01 * (model.columns + 8) * UNIT_ROUNDOFF
    for direction in model.directions():
        proven = direction.certificate or {}
        radius = theory.decision_radius(*map(proven.get, ("primal_objective", "dual_objective")))
        bias = direction.bias / rho if rho else 0.0
        length = math.hypot(float(np.linalg.norm(direction.nonzero.data)), bias)
        radii.append(radius * (1.0 + rounding) + rounding * length)
    return np.array(radii)


def certain(model: LinearModel, decisions: Floats, lengths: Floats) -> NDArray[np.bool_]:
    """Return which rows, shape (rows,), the optimum labels as the model does.

    |f(x) − f*(x)| ≤ ‖(x, ρ)‖ · radius for each direction, f* of the best possible model of the same
    rows and settings. Of a multilabel model that holds for every class of the row.

    Parameters
    ----------
    model : one with a certificate; without, a SettingsError.
    decisions : shape (rows,) or (rows, K).
    lengths : ‖x‖, shape (rows,).
    """
    certificates = model.certificate.get("learners", [model.certificate])
    gaps = [certificate.get("relative_duality_gap") for certificate in certificates]
    if "rho" not in model.settings or None in gaps:
        raise SettingsError(
            "the model has no certificate, so no label is certain. Give a model that streamtron "
            "fitted."
        )
    radii = np.minimum(decision_radii(model), 1e150)  # above any decision, finite times any length
    slack = np.hypot(lengths, model.settings["rho"])[:, None] * radii
    decisions = decisions.reshape(slack.shape)
    if model.kind != "multiclass":
        return np.asarray((np.abs(decisions) > slack).all(axis=1))
    chosen = chosen_classes(model, decisions)
    least = np.where(chosen, decisions - slack, -np.inf).max(axis=1)
    return np.asarray(least > np.where(chosen, -np.inf, decisions + slack).max(axis=1))
