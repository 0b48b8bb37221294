"""The penalty of the weights: R(w) = r ‖w‖₁ + ½ (1 − r) ‖w‖² + ½ w_bias², r the ``l1_ratio``.

r = 0 is the L2 penalty, r = 1 the L1 penalty, between them is the elastic net (Zou and Hastie, J.
R. Statist. Soc. B 67, 2005; r as scikit-learn has it). The bias is never in the 1-norm. Where the
sum of a dual point is v = Σ α_k l_k (x_k, ρ),

    D(α) = −Σ C_k φ*(−α_k/C_k) − R*(v),   R*(v) = Σ_j (|v_j| − r)₊² / (2 (1 − r)) + ½ v_bias².

At r = 1 R* is ∞ unless all |v_j| ≤ 1: there s α with s = min(1, r/max |v_j|) is a dual point, and
earns at least s times as much as α, for −φ* is concave and 0 at 0; near r = 1 it is often better.

Where φ'' ≤ L, −C φ*(−α/C) is strongly concave: D(α) ≤ P* − Σ (α_k − α*_k)²/(2 L C_k) at any dual
point α, and with Cauchy and Schwarz |v*_j − v_j| ≤ √(2 L (P − D(α))) √(Σ C_k x_kj²). Where that
proves |v*_j| < r, w*_j is 0 (Ndiaye, Fercoq, Gramfort and Salmon, JMLR 18, 2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from streamtron.core import kernels
from streamtron.core.rows import Vector


def ratio_of(settings: Mapping[str, Any]) -> float:
    """Return r of a model with these settings; 0 where they name no penalty.

    >>> ratio_of({}), ratio_of({"penalty": "l1"})
    (0.0, 1.0)
    """
    if settings.get("penalty") == "elasticnet":
        return float(settings["l1_ratio"])
    return 1.0 if settings.get("penalty") == "l1" else 0.0


class SoftSums(NamedTuple):
    """Of a vector: Σ (|v_j| − r)₊ and Σ (|v_j| − r)₊², off by at most 5 u of themselves and of what
    v_j and r are off by, and max |v_j|."""

    excess: float
    squares: float
    largest: float


def soft_sums(vector: Vector, ratio: float) -> SoftSums:
    """Sum what a vector is above the threshold ``ratio``.

    >>> soft_sums(np.array([-3.0, 0.25, 1.0]), 0.5)
    SoftSums(excess=3.0, squares=6.5, largest=3.0)
    """
    sums = np.zeros(5)
    kernels.soft_sums(vector, ratio, sums)
    return SoftSums(float(sums[0] + sums[1]), float(sums[2] + sums[3]), float(sums[4]))


class Penalty(NamedTuple):
    """R as ``lasso`` ‖w‖₁ + ½ ``ridge`` ‖w‖² + ½ w_bias²: r and 1 − r, or where a proximal term
    stands beside the L1 penalty, 1 and its factor."""

    lasso: float
    ridge: float

    @classmethod
    def of(cls, ratio: float) -> Penalty:
        """Return R of r."""
        return cls(ratio, 1.0 - ratio)

    def value(self, v: Vector) -> float:
        """Return R of augmented weights.

        >>> Penalty.of(0.5).value(np.array([2.0, -2.0, 1.0]))
        4.5
        """
        w, bias = v[:-1], float(v[-1])
        lasso = self.lasso * float(np.abs(w).sum())
        return lasso + 0.5 * self.ridge * kernels.square_sum(w) + 0.5 * bias * bias

    def dual(self, gains: float, v: Vector) -> float:
        """Return D, that of α or s α, but for its rounding: ``gains`` is −Σ C_k φ*(−α_k/C_k), and
        ``v`` the sum of the dual point, augmented.

        >>> [Penalty.of(r).dual(10.0, np.array([2.0, 0.25, 1.0])) for r in (0.5, 1.0)]
        [7.25, 4.875]
        """
        sums, bias = soft_sums(v[:-1], self.lasso), float(v[-1])
        scale = 1.0 / max(sums.largest / self.lasso, 1.0)
        scaled = scale * gains - 0.5 * (scale * bias) ** 2
        if self.ridge == 0.0:
            return scaled
        return max(scaled, gains - 0.5 * sums.squares / self.ridge - 0.5 * bias * bias)

    def weights(self, v: Vector) -> Vector:
        """Return the augmented weights that belong to the sum ``v`` of a dual point at the optimum,
        soft(v_j, r)/(1 − r); the ridge is above 0.

        >>> Penalty.of(0.5).weights(np.array([2.0, -0.25, 1.0]))
        array([ 3., -0.,  1.])
        """
        soft = np.copysign(np.maximum(np.abs(v) - self.lasso, 0.0), v) / self.ridge
        soft[-1] = v[-1]
        return soft
