"""Bounds on the least objective P* from a scan at fixed weights, and their gap.

P(w) = ½‖w‖² + Σ C_k φ(m_k) ≥ P* ≥ D(α) = −½‖v‖² − Σ C_k φ*(−α_k/C_k), v = Σ α_k l_k (x_k, ρ), for
any weights w and any α in the domain of φ*.

For the squared hinge, P* = 1/(2 γ_d²) with γ_d the maximum directional margin: 1/√(2 P) and
1/√(2 D) bound it.

Every bound holds in exact arithmetic and is widened by a term-by-term bound on its rounding:
u = 2⁻⁵³ is the unit roundoff. The functions take the sums of a scan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels, penalty
from streamtron.core.errors import InternalError
from streamtron.core.kernels import UNIT_ROUNDOFF
from streamtron.core.rows import Vector
from streamtron.core.scan_sums import ScanSums

FEW = 16.0 * UNIT_ROUNDOFF
"""Bound on the relative rounding of a formula of a dozen operations, including the four by which
Δ_k² is computed from C and the row's weights. Of the exact scans in the tests none is false at 4,
and some at 2."""

NOTHING = 1e-250
"""An objective up to here is 0 except for the 2⁻¹⁰⁰⁰ Σ C_k that keep rounding from being nothing:
labels of ``targets.LEAST`` and float32 values make a larger P*."""

LONGER = 1.01
"""More than rounding can make of a sum of positive terms that is not compensated: n u."""

AT_A_TIME = 1 << 20
"""Columns that are tested at a time for weighing 0."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The proven bounds P ≥ P* ≥ D over the rows of one scan, and for the squared hinge the margins
    that follow: 1/√(2 P) ≤ γ_d ≤ 1/√(2 D).

    InternalError: a lower bound exceeds an upper bound. Both include their rounding, so one of them
    is wrong.

    >>> proof = Certificate(primal=1.0, dual=0.64, rows_scanned=100)
    >>> round(proof.relative_duality_gap, 9), round(proof.primal_margin, 9)
    (0.36, 0.707106781)
    """

    primal: float
    """at least P of the weights; ∞ where none is proven: at Δ = 0, with a margin below 1"""
    dual: float
    """at most D, so at most P*; 0 without dual variables"""
    rows_scanned: int
    """rows that the bounds cover (without rows of weight 0)"""
    rounding_bound: float = 0.0
    """what was taken from D for its rounding"""
    has_margins: bool = True
    """whether the loss is the squared hinge"""
    zero_columns: int = 0
    """columns of the rows that are proven to weigh 0 at the optimum of a penalty with a 1-norm"""

    def __post_init__(self) -> None:
        if not self.dual <= self.primal:
            raise InternalError(
                f"the lower bound {self.dual!r} on the best objective is above the upper bound "
                f"{self.primal!r}, more than rounding can do. No "
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
        """Bound γ_d from below by 1/√(2 P); −∞ where no P is proven, and for other losses."""
        if self.primal == math.inf or not self.has_margins:
            return -math.inf
        return (1.0 - FEW) / math.sqrt(2.0 * self.primal)

    @property
    def upper_bound(self) -> float | None:
        """Bound γ_d from above by 1/√(2 D); None without dual variables, and for other losses."""
        return (1.0 + FEW) / math.sqrt(2.0 * self.dual) if self.dual and self.has_margins else None

    def to_dict(self) -> dict[str, float | int | None]:
        """Return plain numbers for reports and the model file."""
        margin = self.primal_margin
        return {
            "primal_margin": None if margin == -math.inf else margin,
            "upper_bound": self.upper_bound,
            "rows_scanned": self.rows_scanned,
            "rounding_bound": self.rounding_bound,
            "relative_duality_gap": self.relative_duality_gap,
            "primal_objective": None if self.primal == math.inf else self.primal,
            "dual_objective": self.dual or None,
            **({"zero_columns": self.zero_columns} if self.zero_columns else {}),
        }


def certificate_of(scan: ScanSums, w: Vector, bias: float) -> Certificate:
    """Return the certificate of scanned weights, without ``zero_columns``. Where no row has a C the
    margins are hard: Δ = 0."""
    scan.fold()
    sq_weights, lasso = _sizes(scan, w, bias)
    squared_hinge = scan.loss.code == kernels.SQUARED_HINGE
    has_margins = squared_hinge and not scan.free and not scan.ratio
    primal, rows = _primal(scan, sq_weights, lasso), int(scan.totals[kernels.ROWS])
    if scan.sums[kernels.COSTS] == math.inf and scan.sums[kernels.LEAST] < 1.0:
        primal = math.inf
    dual, rounding = dual_of(scan, primal, abs(bias) * scan.free)
    return Certificate(primal, dual, rows, rounding, has_margins)


def _sizes(scan: ScanSums, w: Vector, bias: float) -> tuple[float, float]:
    """Return the ``sq_weights`` and ``lasso`` of ``_primal``: ‖w‖² with that of a bias that is
    penalised, off by at most 4 u of itself, and r ‖w‖₁, beside which the ‖w‖² counts 1 − r times.
    """
    squares, sq_bias = kernels.compensated_square_sum(w), 0.0 if scan.free else bias * bias
    if not scan.ratio:
        return squares + sq_bias, 0.0
    lasso = scan.ratio * penalty.soft_sums(w, 0.0).excess
    return ((1.0 - scan.ratio) * squares + sq_bias) * (1.0 + FEW), lasso * (1.0 + FEW)


def _primal(scan: ScanSums, sq_weights: float, lasso: float) -> float:
    """Return an upper bound on P of the scanned weights; ∞ where a sum is no finite number."""
    losses = scan.sum_at(kernels.LOSSES) * (1.0 + _rounding_of_sums(scan, kernels.ROWS))
    primal = (0.5 * sq_weights + losses + lasso) * (1.0 + FEW)
    return primal if primal < math.inf else math.inf  # no number is none proven


def _off(scan: ScanSums) -> float:
    """Return the length of what the computed v is off by at most, that of α or of (1 − 16 u) α, see
    ``kernels._gain``.

    Each coordinate of v is a compensated sum of products, rounded at most four times: the error of
    v has at most the length (4 + 4 n² u) u Σ |α_k| ‖(x_k, ρ)‖, n the rows with an α. The rest is
    at most FEW ‖v‖, and ‖v‖ ≤ Σ |α_k| ‖(x_k, ρ)‖.
    """
    part = 4.0 * UNIT_ROUNDOFF + _rounding_of_sums(scan, kernels.SUPPORT)
    of_bias = 0.0 if scan.free else _at_most(scan, kernels.SIZES)
    return part * (_at_most(scan, kernels.LENGTHS) + of_bias)


def _at_most(scan: ScanSums, place: int) -> float:
    """Return a bound on a sum of positive terms that is not compensated: LENGTHS, Σ |α_k| ‖x_k‖;
    SIZES, Σ |α_k| ρ; MAGNITUDES, Σ |gain|; NORMS, Σ C_k ‖x_k‖."""
    return LONGER * float(scan.sums[place])


def _rounding_of_sums(scan: ScanSums, counted: int) -> float:
    """Return the part of the sum of their magnitudes by which compensated sums are off at most;
    ``counted`` : the place in ``totals`` of how many terms they have."""
    n = float(scan.totals[counted])
    return FEW + 4.0 * (n * UNIT_ROUNDOFF) ** 2


def dual_of(
    scan: ScanSums, primal: float = math.inf, bias: float = math.inf
) -> tuple[float, float]:
    """Return a lower bound of D, and the allowance for its rounding; 0 where that is below 0.

    D = Σ G − ½ ‖v‖², G as ``kernels.scan`` bounds it; ‖v‖ is off by ``_off``. Where the bias is not
    penalised D is that of a dual point nearby, see ``_price``, which needs some weights: ``primal``
    is at least P there, ``bias`` their |bias|, which is what ``center`` takes off t_k.
    """
    if scan.ratio:
        return _dual_of_penalty(scan)[:2]
    gains = scan.gains
    if not gains > 0.0:
        return 0.0, 0.0  # also −∞: some α is beyond its most
    longest = math.sqrt(scan.sq_norm) + _off(scan)
    allowance = _at_most(scan, kernels.MAGNITUDES) * _rounding_of_sums(scan, kernels.SUPPORT)
    allowance += longest * longest * FEW
    exact = 0.5 * scan.sq_norm
    square = 0.5 * longest * longest * (1.0 + FEW)
    dual = gains - allowance - square
    dual = max(dual - _price(scan, dual, primal, bias), 0.0)
    return dual, allowance + square - exact


def _dual_of_penalty(scan: ScanSums) -> tuple[float, float, float, float]:
    """Return what ``dual_of`` does where the penalty has a 1-norm, see ``core.penalty``: the
    better of v and, what L1 needs, s v with s max |v_j| ≤ r; the factor s, and the length of what v
    is off by at most, and so its largest coordinate, and the vector (|v_j| − r)₊."""
    ratio, gains = scan.ratio, scan.gains
    if not gains > 0.0:
        return 0.0, 0.0, 1.0, 0.0  # also −∞: some α is beyond its most
    terms = _at_most(scan, kernels.MAGNITUDES)
    allowance = terms * _rounding_of_sums(scan, kernels.SUPPORT)
    taken, moved = _balance(scan)
    off = _off(scan) + moved
    scan.fold()
    sums = penalty.soft_sums(scan.fresh, ratio)
    points = [(min(1.0, ratio * (1.0 - FEW) / (sums.largest + off or 1.0)), 0.0)]
    if ratio < 1.0:
        points.append((1.0, 0.5 * (math.sqrt(sums.squares) + off) ** 2 / (1.0 - ratio)))
    gains -= allowance + taken * (terms + allowance)
    bias, best = 0.0 if scan.free else abs(scan.dual_bias) + off, (0.0, 0.0, 1.0, off)
    for scale, square in points:
        dual = scale * gains - (square + 0.5 * (scale * bias) ** 2) * (1.0 + FEW)
        best = max(best, (dual - FEW * abs(dual), allowance, scale, off))
    return best


def _unbalanced(scan: ScanSums) -> float:
    """Return |Σ α_k l_k| at most, where the bias is not penalised."""
    rounding = _rounding_of_sums(scan, kernels.SUPPORT) * _at_most(scan, kernels.SIZES)
    return (abs(scan.dual_bias) + rounding) / scan.free


def _balance(scan: ScanSums) -> tuple[float, float]:
    """Return the part δ by which all α_k of one sign of α_k l_k are to be less for Σ α_k l_k = 0,
    if the bias is not penalised, and how far v = Σ α_k l_k x_k moves then."""
    unbalanced = _unbalanced(scan) if scan.free else 0.0
    if not unbalanced:
        return 0.0, 0.0
    sizes = float(scan.sums[kernels.SIZES]) / scan.free / LONGER
    part = 2.0 * unbalanced / (sizes + unbalanced) * (1.0 + FEW)
    return part, part * _at_most(scan, kernels.LENGTHS)


def _price(scan: ScanSums, dual: float, primal: float, bias: float) -> float:
    """Return what D(α) is above D(α') at most, α' being α with a part δ less, see ``_balance``: D
    without a penalty of the bias is that of α' alone. ``dual`` : at most D(α).

    G is concave and 0 at 0. At any weights w and bias b with the margins m Fenchel and Young have
    G(α_k) − α_k m_k ≤ C_k φ(m_k), and so ½‖w − v‖² ≤ P − D(α) + s |b| with s = |Σ α_k l_k|. As v
    moves by at most d, D(α') ≥ D(α) − s |b| − δ P − d √(2 (P − D(α) + s |b|)) − ½ d².
    """
    if not scan.free:
        return 0.0
    if not primal + bias < math.inf:
        return math.inf
    bias *= FEW if scan.loss.residual else 1.0
    if scan.loss.code == kernels.SQUARED_ERROR:
        return _price_of_ridge(scan, primal, dual, bias)
    part, moved = _balance(scan)
    along = _unbalanced(scan) * bias
    apart = math.sqrt(2.0 * max(primal - dual + along, 0.0))
    return (along + part * primal + moved * (apart + 0.5 * moved)) * (1.0 + FEW) ** 2


def _price_of_ridge(scan: ScanSums, primal: float, dual: float, bias: float) -> float:
    """Return ``_price`` where the loss is SQUARED_ERROR: what |Σ α l bias*| is at most, t_k being
    less the bias that is scanned, up to ``bias``.

    With ℓ = ΣC ‖x‖/ΣC, P rises by ½ μ (bias − bias*)² at least, μ = 1/(1/ΣC + ℓ²): that is
    (ΣC)²/(u·M u) for M = C⁻¹ + XXᵀ, u = C1, and min over w of the Hessian is 1·M⁻¹1. So with
    s = |Σ α l| and e = P − P* it is s √(2e/μ) at most, and e ≤ P − D + s √(2e/μ).
    """
    if not (cost := float(scan.sums[kernels.COSTS])) > 0.0:
        return math.inf
    length = _at_most(scan, kernels.NORMS) / cost
    root = LONGER * math.sqrt(2.0 * (1.0 / cost + length * length))
    s = _unbalanced(scan)
    half = 0.5 * s * root
    most = half + math.sqrt(half * half + max(primal - dual, 0.0) + FEW * primal)
    return s * (root * most + bias) * (1.0 + FEW)


def dual_weights_off(scan: ScanSums) -> float:
    """Return a bound on the length of what the computed v = Σ α_k l_k (x_k, ρ) is off by; ∞ where
    that is not small, or v is not the optimum's estimate."""
    off, length = _off(scan), math.sqrt(scan.sq_norm)
    if not length or scan.free or scan.ratio or not off <= 0.01 * length:
        return math.inf
    return off


def zero_columns(scan: ScanSums, primal: float, dual: float) -> NDArray[np.bool_]:
    """Mark the columns of the rows that weigh 0 at the optimum, see ``core.penalty``.
    ``primal`` : at least P*; ``dual`` : that of v; where it is 0 it is not."""
    marks = np.zeros(len(scan.fresh), dtype=bool)
    if scan.sq_columns is None or not dual > 0.0:
        return marks
    _, _, scale, off = _dual_of_penalty(scan)
    n = float(scan.totals[kernels.ROWS])
    # √(2 L (P − D)), how far a dual point is from the optimum: √(Σ (α_k − α*_k)²/C_k)
    radius = math.sqrt(2.0 * scan.loss.steepest * max(primal - dual, 0.0)) * (1.0 + FEW)
    roundings = FEW + 2.0 * n * UNIT_ROUNDOFF
    with np.errstate(all="ignore"):  # what is no number is not below r
        for first in range(0, len(scan.fresh), AT_A_TIME):
            part = slice(first, first + AT_A_TIME)
            squares = scan.sq_columns[part]
            lengths = np.sqrt(squares * (1.0 + roundings) + n * kernels.UNDERFLOW)
            most = scale * (np.abs(scan.fresh[part]) + off) + radius * lengths
            marks[part] = (squares > 0.0) & (most * (1.0 + FEW) < scan.ratio)
    return marks
