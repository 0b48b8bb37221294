"""Bound the accuracy of the optimum on any rows, by the certificate of a model."""

from __future__ import annotations

import math
import sys
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from streamtron.core import theory
from streamtron.model.linear_model import LinearModel

UNIT_ROUNDOFF = 0.5 * sys.float_info.epsilon

FAR = 1e150
"""Replaces an infinite radius: larger than any decision, and finite times any length."""


class AccuracyBounds:
    """Bounds of the optimum's accuracy on rows of two classes.

    With f(x) = w·x + ρ w_bias and ‖w − w*‖ ≤ √(2(P − D)) = radius, |f(x) − f*(x)| ≤ ‖(x, ρ)‖ ·
    radius. Where |f(x)| exceeds that, the optimum and the model decide alike; on any other row the
    optimum may be right or wrong.

    Parameters
    ----------
    radius : ≥ 0, infinite where nothing is proven; see ``theory.decision_radius``.
    rho : ρ ≥ 0, the augmentation.

    Examples
    --------
    >>> bounds = AccuracyBounds(radius=0.5, rho=0.0)
    >>> bounds.add([1, 1, -1, -1], [0.9, 0.2, 0.7, -0.4], np.ones(4), np.ones(4))
    >>> bounds.accuracy  # right, unknown, wrong, unknown
    (0.25, 0.75)
    """

    def __init__(self, radius: float, rho: float) -> None:
        self._radius = min(radius, FAR)
        self._rho = rho
        self._least = self._most = self._weight = 0.0
        self._rows, self._exact = 0, True

    @classmethod
    def of(cls, model: LinearModel) -> Self:
        """Return the bounds for a model of two classes that has a certificate.

        The radius contains the rounding of decisions: each is off by at most (columns + 8) u
        ‖(x, ρ)‖ ‖(w, w_bias)‖, u = 2⁻⁵³ (Higham, 2002, eq. 3.5).
        """
        certificate, rho = model.certificate or {}, model.settings["rho"]
        radius = theory.decision_radius(certificate["primal_margin"], certificate["upper_bound"])
        bias = model.bias / rho if rho else 0.0
        length = math.hypot(float(np.linalg.norm(model.weights)), bias)
        rounding = 1.01 * (model.columns + 8) * UNIT_ROUNDOFF
        return cls(radius * (1.0 + rounding) + rounding * length, rho)

    def add(
        self, signs: ArrayLike, decisions: ArrayLike, weights: ArrayLike, lengths: ArrayLike
    ) -> None:
        """Add the rows of a chunk.

        Parameters
        ----------
        signs : shape (rows,), ±1, the truth.
        decisions : shape (rows,), the model's f(x); above 0 is +1.
        weights : shape (rows,), ≥ 0.
        lengths : shape (rows,), ‖x‖.
        """
        sign, decision, weight = (np.asarray(one) for one in (signs, decisions, weights))
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
        # sums of whole numbers are exact, those of other weights are off by u a row
        rounding = 0.0 if self._exact else 1.01 * (2 * self._rows + 2) * UNIT_ROUNDOFF
        least, most = self._least / self._weight, self._most / self._weight
        return least * (1.0 - rounding), min(most * (1.0 + rounding), 1.0)
