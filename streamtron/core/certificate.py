"""Bounds on the least objective P* from a scan at fixed weights, and their gap.

P(v) = ½‖v‖² + Σ C_k φ(m_k) ≥ P* ≥ D(α) = −½‖Σ α_k l_k (x_k, ρ)‖² − Σ C_k φ*(−α_k/C_k) for any
weights v and any α = c/b in the domain of φ*, counts c ≥ 0 being integers.

For the squared hinge, P* = 1/(2 γ_d²) with γ_d the maximum directional margin: with a = Σ c_k y_k
and t = Σ c_k

* γ_d ≤ ‖a‖ / t, for a / t is a convex combination of the patterns y_k;
* γ_d ≥ min_k y_k·a / ‖a‖;
* γ_d ≥ 1 / √(2 P(s w)) for any weights w and any scale s > 0.

Every bound holds in exact arithmetic and is widened by a term-by-term bound on its rounding.
u = 2⁻⁵³ is the unit roundoff.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.errors import DataError, InternalError
from streamtron.core.kernels import UNIT_ROUNDOFF

FEW = 16.0 * UNIT_ROUNDOFF
"""Bound on the relative rounding of a formula of a dozen operations, including the four by which
Δ_k² is computed from C and the row's weights. P(s w) uses 13 to 15 of the 16, so that there is
hardly room for one more; of the exact scans in the tests none is false at 4, and some at 2."""

NOTHING = 1e-250
"""An objective up to here is 0 but for the 2⁻¹⁰⁰⁰ Σ C_k that keep rounding from being nothing:
labels of ``targets.LEAST`` and float32 values make a larger P*."""

LONGEST = 1e100
"""Largest ‖w‖, and inverse of the smallest: products with float32 values, and their squares times
any allowed C_k, are finite and not 0."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The proven bounds P ≥ P* ≥ D over the rows of one scan, and for the squared hinge the margins
    that they mean: 1/√(2 P) ≤ γ_d ≤ 1/√(2 D).

    InternalError: a lower bound exceeds an upper bound. Both include their rounding, so one of them
    is wrong.

    >>> found = Certificate(0.7, primal=1.0, dual=0.64, rows_scanned=100, scale=1.0)
    >>> round(found.relative_duality_gap, 9), round(found.primal_margin, 9)
    (0.36, 0.707106781)
    """

    directional_margin: float
    """at most min y_k·a / ‖a‖ of the scanned weights; may be negative, and is −∞ (None in files)
    where a = 0 has no direction"""
    primal: float
    """at least P of the model's weights; ∞ where none is proven: at Δ = 0, without a margin"""
    dual: float
    """at most D, so at most P*; 0 without counts"""
    rows_scanned: int
    """rows that the bounds cover (without rows of weight 0)"""
    scale: float
    """s, near the one at which P(s w) is least: the model's weights are s times the scanned ones"""
    drift: float | None = None
    """‖w − Σ c_k l_k x_k‖ / ‖Σ c_k l_k x_k‖ of the running w; None without it or counts"""
    rounding_bound: float = 0.0
    """what was added to ‖a‖ / t for its rounding, or taken from D of other losses"""
    has_margins: bool = True
    """whether the loss is the squared hinge"""
    zero_columns: int = 0
    """columns of the rows that are proven to weigh 0 at the optimum of a penalty with a 1-norm"""

    def __post_init__(self) -> None:
        upper = math.inf if self.upper_bound is None else self.upper_bound
        if not (self.dual <= self.primal and self.directional_margin <= upper):
            what, lower = "objective", self.dual
            if self.has_margins:
                what, lower = "margin", max(self.primal_margin, self.directional_margin)
            raise InternalError(
                f"the lower bound {lower!r} on the best {what} is above the upper bound "
                f"{upper if self.has_margins else self.primal!r}, more than rounding can do. No "
                "certificate was made. Run again: if it says so again, this is a defect; if not, "
                "have this machine's memory tested."
            )

    @property
    def relative_duality_gap(self) -> float:
        """Return 1 − D/P, as wide as that of the margins, rounding included; 1 if nothing is
        proven; 0 where P is at most NOTHING, as of numbers that are all alike, for P* ≥ 0."""
        if 0.0 < self.primal <= NOTHING:
            return 0.0
        return min(1.0 - self.dual / self.primal + 5.0 * FEW, 1.0) if self.primal else 1.0

    @property
    def primal_margin(self) -> float:
        """Bound γ_d from below by 1/√(2 P); the directional margin where no P is proven; −∞ for
        other losses."""
        if self.primal == math.inf or not self.has_margins:
            return self.directional_margin
        return (1.0 - FEW) / math.sqrt(2.0 * self.primal)

    @property
    def upper_bound(self) -> float | None:
        """Bound γ_d from above by 1/√(2 D); None without counts, and for other losses."""
        return (1.0 + FEW) / math.sqrt(2.0 * self.dual) if self.dual and self.has_margins else None

    def to_dict(self) -> dict[str, float | int | None]:
        """Return plain numbers for reports and the model file."""
        directional, margin = self.directional_margin, self.primal_margin
        return {
            "directional_margin": None if directional == -math.inf else directional,
            "primal_margin": None if margin == -math.inf else margin,
            "upper_bound": self.upper_bound,
            "rows_scanned": self.rows_scanned,
            "scale": self.scale,
            "drift": self.drift,
            "rounding_bound": self.rounding_bound,
            "relative_duality_gap": self.relative_duality_gap,
            "primal_objective": None if self.primal == math.inf else self.primal,
            "dual_objective": self.dual or None,
            **({"zero_columns": self.zero_columns} if self.zero_columns else {}),
        }


def length_of(w: Vector, bias: float) -> float:
    """Return ‖w‖; DataError if ‖(w, w_bias)‖ is neither 0 nor from 1 / LONGEST to LONGEST."""
    length = math.sqrt(kernels.square_sum(w))
    both = math.hypot(length, bias)
    if 1.0 / LONGEST <= both <= LONGEST or not (both or w.any()):
        return length
    raise DataError(
        f"the weights have the length {both:.3g}: wanted {1.0 / LONGEST:g} to {LONGEST:g}, so that "
        "no margin over- or underflows. Multiply weights and bias that are to be certified by a "
        "power of ten: the certificate is of their direction. In a fit the values spread over too "
        "many powers of ten: scale the columns, or the rows, to like sizes."
    )
