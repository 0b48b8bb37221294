"""Bounds on the least objective P* from a scan at fixed weights, and their gap.

P(v) = ½‖v‖² + Σ C_k φ(m_k) ≥ P* ≥ D(α) = −½‖Σ α_k l_k (x_k, ρ)‖² − Σ C_k φ*(−α_k/C_k) for any
weights v and any α = c/b in the domain of φ*, counts c ≥ 0 being integers.

For the squared hinge, P* = 1/(2 γ_d²) with γ_d the maximum directional margin: with a = Σ c_k y_k
and t = Σ c_k

* γ_d ≤ ‖a‖ / t, for a / t is a convex combination of the patterns y_k;
* γ_d ≥ min_k y_k·a / ‖a‖;
* γ_d ≥ 1 / √(2 P(s w)) for any weights w and any scale s > 0.

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
from streamtron.core.scan_sums import ScanSums

FEW = 16.0 * UNIT_ROUNDOFF
"""Bound on the relative rounding of a formula of a dozen operations, including the four by which
Δ_k² is computed from C and the row's weights. P(s w) uses 13 to 15 of the 16, so that there is
hardly room for one more; of the exact scans in the tests none is false at 4, and some at 2."""

NOTHING = 1e-250
"""An objective up to here is 0 but for the 2⁻¹⁰⁰⁰ Σ C_k that keep rounding from being nothing:
labels of ``targets.LEAST`` and float32 values make a larger P*."""

AT_A_TIME = 1 << 20
"""Columns of which it is looked at a time whether they weigh 0."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The proven bounds P ≥ P* ≥ D over the rows of one scan, and for the squared hinge the margins
    that they mean: 1/√(2 P) ≤ γ_d ≤ 1/√(2 D).

    InternalError: a lower bound exceeds an upper bound. Both include their rounding, so one of them
    is wrong.

    >>> proof = Certificate(0.7, primal=1.0, dual=0.64, rows_scanned=100, scale=1.0)
    >>> round(proof.relative_duality_gap, 9), round(proof.primal_margin, 9)
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
    rounding_bound: float = 0.0
    """what was added to ‖a‖ / t for its rounding, or taken from D of other losses"""
    has_margins: bool = True
    """whether the loss is the squared hinge"""
    as_scanned: float = math.inf
    """at least P at the scale of the scan; of hard margins ``primal``"""
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
    has_margins = scan.loss.quadratic and not scan.free and not scan.ratio
    directional = _directional(scan, sq_weights) if has_margins else -math.inf
    if scan.totals[kernels.ROWS] and not scan.sum_at(kernels.COSTS):
        least = float(scan.sums[kernels.LEAST])
        scale = 1.0 / least if least > 0.0 else scan.scale
        primal = 0.5 / directional / directional * (1.0 + FEW) if least > 0.0 else math.inf
        given = primal
    else:
        primal, scale = primal_of(scan, sq_weights, lasso)
        given = _primal_at_scale(scan, sq_weights, lasso)
    dual, rounding = dual_of(scan, primal, abs(bias) * scan.free * scale)
    rows = int(scan.totals[kernels.ROWS])
    return Certificate(directional, primal, dual, rows, scale, rounding, has_margins, given)


def _sizes(scan: ScanSums, w: Vector, bias: float) -> tuple[float, float]:
    """Return ``sq_weights`` and ``lasso`` of ``primal_of``."""
    squares, sq_bias = kernels.compensated_square_sum(w), 0.0 if scan.free else bias * bias
    if not scan.ratio:
        return squares + sq_bias, 0.0
    lasso = scan.ratio * penalty.soft_sums(w, 1.0, 0.0).excess
    return ((1.0 - scan.ratio) * squares + sq_bias) * (1.0 + FEW), lasso * (1.0 + FEW)


def _directional(scan: ScanSums, sq_weights: float) -> float:
    """Bound min y_k·a / ‖a‖ from below, for the scanned weights and the counts."""
    norm, least = math.sqrt(sq_weights + scan.sq_extension), float(scan.sums[kernels.LEAST])
    if not 0.0 < norm < math.inf:
        return -math.inf
    return least / (norm * (1.0 + FEW)) if least > 0.0 else least / norm * (1.0 + FEW)


def primal_of(scan: ScanSums, sq_weights: float, lasso: float = 0.0) -> tuple[float, float]:
    """Return an upper bound on P(s w) at a nearly optimal scale s, and s.

    P(s w) = ½ s² ‖w‖² + Σ C_k max(0, 1 − s m_k)²; the bins of ``kernels.scan`` bound each m_k
    from below. Between the scales s₀ / (j h) and s₀ / ((j+1) h), h = BIN_WIDTH, only rows of
    bins 0 … j can have a slack. With δ = s − s₀ their losses add up to at most

        Σ C (z − δ m)² = Σ C z² − 2 δ Σ C z m + δ² Σ C m².

    A row of bin j may have no slack: its term is then at most C h². Rounding and cancellation
    of the sums add at most (16 + 4 n² u) u (√Σ C z² + |δ| √Σ C m²)². This is part of what is
    minimised, so that no scale is chosen for its noise. ``sq_weights`` is ‖w‖² + w_bias², off
    by at most 4 u of itself; ``lasso`` is r ‖w‖₁, of which s times as much is added, and then
    the ‖w‖² above counts 1 − r times. Returns (∞, s₀) where a sum is no finite number. Of a
    loss that is not quadratic P is known at s₀ alone.
    """
    if not scan.loss.quadratic:
        return _primal_at_scale(scan, sq_weights, lasso), scan.scale
    sums, scale = np.empty((kernels.BINS, 3)), scan.scale
    kernels.sum_bins(scan.bins, np.zeros(kernels.BIN_SUMS), sums)
    # where the next bin has no row, the sums stay as they are: that is one range of scales
    filled = scan.bins.reshape(kernels.BINS, -1)[1:, kernels.SQ_MARGINS] != 0.0
    last = np.flatnonzero(np.append(filled, True))
    zz, zm, mm = sums[last].T
    edges = scale / (kernels.BIN_WIDTH * (last + 1))
    low, high = edges * (1.0 + FEW), np.concatenate(([np.inf], edges[:-1]))
    curvature = sq_weights + 2.0 * mm
    with np.errstate(all="ignore"):
        best = np.where(curvature > 0.0, (2.0 * zm + 2.0 * scale * mm - lasso) / curvature, low)
        s = np.maximum(np.minimum(best, high), low)
        shift = s - scale
        loss = np.maximum(zz - 2.0 * shift * zm + shift * shift * mm, 0.0)
        terms = (np.sqrt(zz) + np.abs(shift) * np.sqrt(mm)) ** 2
        rounding = _rounding_of_sums(scan, kernels.ROWS) * terms
        primal = (0.5 * s * s * sq_weights + s * lasso + loss + rounding) * (1.0 + FEW)
    primal = np.where(np.isfinite(primal) & np.isfinite(s), primal, np.inf)
    at = int(np.argmin(primal))
    if not primal[at] < np.inf:
        return math.inf, scale
    matters = curvature.any() or lasso  # as of weights that are all 0 it does not
    return float(primal[at]), float(s[at]) if matters else scale


def _primal_at_scale(scan: ScanSums, sq_weights: float, lasso: float) -> float:
    losses = scan.losses * (1.0 + _rounding_of_sums(scan, kernels.ROWS))
    primal = 0.5 * scan.scale * scan.scale * sq_weights + losses + scan.scale * lasso
    primal *= 1.0 + FEW
    return primal if primal < math.inf else math.inf  # no number is none proven


def upper_bound_of(scan: ScanSums) -> tuple[float | None, float]:
    """Return ‖a‖ / t widened by a bound on its rounding, and that bound; (None, 0) if t = 0."""
    if scan.steps == 0:
        return None, 0.0
    longest = 1.01 * float(scan.sums[kernels.LENGTHS])  # itself summed with roundings
    rounding = _rounding_of_a(scan) * longest / scan.steps
    return math.sqrt(scan.sq_norm) / scan.steps + rounding, rounding


def _rounding_of_a(scan: ScanSums) -> float:
    """Return the part of Σ c_k ‖y_k‖ by which a, and ‖a‖ to the quotient ‖a‖/t, are off at most.

    Each coordinate of a is a compensated sum of products, rounded at most four times: the error of
    a has at most the length (4 + 4 n² u) u Σ c_k ‖y_k‖, n the rows with a count. The rest is off by
    at most FEW ‖a‖, and ‖a‖ ≤ Σ c_k ‖y_k‖.
    """
    n = float(scan.totals[kernels.SUPPORT])
    return (4.0 + 4.0 * n * n * UNIT_ROUNDOFF + FEW / UNIT_ROUNDOFF) * UNIT_ROUNDOFF


def _rounding_of_sums(scan: ScanSums, counted: int) -> float:
    """Return the part of the sum of their magnitudes by which compensated sums are off at most;
    ``counted`` : the place in ``totals`` of how many terms they have."""
    n = float(scan.totals[counted])
    return FEW + 4.0 * (n * UNIT_ROUNDOFF) ** 2


def dual_of(
    scan: ScanSums, primal: float = math.inf, bias: float = math.inf
) -> tuple[float, float]:
    """Return a lower bound of D, and the allowance for its rounding; 0 without counts.

    Squared hinge: D = t²/(2 ‖a‖²), that of the counts at its best scale; ‖a‖ / t was widened by
    the allowance. Others: D = Σ G − ½ ‖a‖²/b² at the scale 1/b, G as ``kernels.scan`` bounds
    it; ‖a‖ is off by no more than in ``upper_bound_of``. Where the bias is not penalised D is that
    of a dual point nearby, see ``_price``, which needs some weights: ``primal`` is at least P
    there, ``bias`` their |bias|, which is what ``center`` takes off t_k.
    """
    upper, rounding = upper_bound_of(scan)
    if upper is None:
        return 0.0, 0.0
    if scan.ratio:
        return _dual_of_penalty(scan)[:2]
    if scan.loss.quadratic:
        dual, factor = 0.5 / upper / upper * (1.0 - FEW), 1.0 / (upper * upper * scan.steps)
        return max(dual - _price(scan, factor, dual, primal, bias), 0.0), rounding
    gains = scan.sum_at(kernels.GAINS)
    if not gains > 0.0:
        return 0.0, 0.0  # −∞: some α is above C
    longest = upper * scan.steps / scan.b
    allowance = _gain_terms(scan, gains) * _rounding_of_sums(scan, kernels.SUPPORT)
    allowance += longest * longest * FEW
    exact = 0.5 * scan.sq_norm / scan.b / scan.b
    square = 0.5 * longest * longest * (1.0 + FEW)
    dual = gains - allowance - square
    dual = max(dual - _price(scan, 1.0 / scan.b, dual, primal, bias), 0.0)
    return dual, allowance + square - exact


def _dual_of_penalty(scan: ScanSums) -> tuple[float, float, float, float]:
    """Return what ``dual_of`` does where the penalty has a 1-norm, see ``core.penalty``: the
    better of v and, what L1 needs, s v with s max |v_j| ≤ r; the factor, and the length of
    what v is off by at most, as in ``upper_bound_of``, and so its largest coordinate, and the
    vector (|v_j| − r)₊."""
    ratio, b, earned, lost = scan.ratio, scan.b, scan.sum_at(kernels.GAINS), 0.0
    if scan.loss.quadratic:
        earned, lost = scan.steps / b, 0.5 * scan.sq_extension / b / b
    if not earned > lost:
        return 0.0, 0.0, 1.0, 0.0  # also −∞: some α is above C
    gains, terms = earned - lost, _gain_terms(scan, earned + lost)
    allowance = terms * _rounding_of_sums(scan, kernels.SUPPORT)
    taken, moved = _balance(scan, 1.0 / b)
    off = _rounding_of_a(scan) * 1.01 * float(scan.sums[kernels.LENGTHS]) / b + moved
    scan.fold()
    sums = penalty.soft_sums(scan.fresh, 1.0 / b, ratio)
    points = [(min(1.0, ratio * (1.0 - FEW) / (sums.largest + off or 1.0)), 0.0)]
    if ratio < 1.0:
        points.append((1.0, 0.5 * (math.sqrt(sums.squares) + off) ** 2 / (1.0 - ratio)))
    gains -= allowance + taken * (terms + allowance)
    bias, best = 0.0 if scan.free else abs(scan.fresh_bias) / b + off, (0.0, 0.0, 1.0, off)
    for scale, square in points:
        dual = scale * gains - (square + 0.5 * (scale * bias) ** 2) * (1.0 + FEW)
        best = max(best, (dual - FEW * abs(dual), allowance, scale, off))
    return best


def _gain_terms(scan: ScanSums, gains: float) -> float:
    """Return what the terms of the gains add up to; where labels are numbers they are of both
    signs."""
    return 1.01 * scan.sum_at(kernels.MAGNITUDES) if scan.loss.numbers else gains


def _unbalanced(scan: ScanSums) -> float:
    """Return |Σ c_k l_k| at most, where the bias is not penalised."""
    return abs(scan.fresh_bias) / scan.free + FEW * scan.steps


def _balance(scan: ScanSums, factor: float) -> tuple[float, float]:
    """Return the part δ by which all α_k of one sign of α_k l_k are to be less for Σ α_k l_k = 0,
    if the bias is not penalised, and how far v = Σ α_k l_k x_k moves then; α = ``factor`` · c."""
    unbalanced = _unbalanced(scan) if scan.free else 0.0
    part = 2.0 * unbalanced / (scan.steps + unbalanced) * (1.0 + FEW)
    return part, part * 1.01 * float(scan.sums[kernels.LENGTHS]) * factor


def _price(scan: ScanSums, factor: float, dual: float, primal: float, bias: float) -> float:
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
    if scan.loss.code == kernels.SQUARED_ERROR:
        return _price_of_ridge(scan, primal, dual)
    part, moved = _balance(scan, factor)
    bias *= FEW if scan.loss.numbers else 1.0
    along = _unbalanced(scan) * factor * bias
    apart = math.sqrt(2.0 * max(primal - dual + along, 0.0))
    return (along + part * primal + moved * (apart + 0.5 * moved)) * (1.0 + FEW) ** 2


def _price_of_ridge(scan: ScanSums, primal: float, dual: float) -> float:
    """Return ``_price`` where the loss is SQUARED_ERROR: what |Σ α l bias*| is at most, t_k being
    less the bias that is scanned.

    With ℓ = ΣC ‖x‖/ΣC, P rises by ½ μ (bias − bias*)² at least, μ = 1/(1/ΣC + ℓ²): that is
    (ΣC)²/(u·M u) for M = C⁻¹ + XXᵀ, u = C1, and min over w of the Hessian is 1·M⁻¹1. So with
    s = |Σ α l| and e = P − P* it is s √(2e/μ) at most, and e ≤ P − D + s √(2e/μ).
    """
    if not (cost := scan.sum_at(kernels.COSTS)) > 0.0:
        return math.inf
    length = scan.sum_at(kernels.NORMS) / cost
    root = math.sqrt(2.0 * (1.0 / cost + length * length)) * (1.0 + FEW)
    s, n = _unbalanced(scan) / scan.b, int(scan.totals[kernels.ROWS])
    half = 0.5 * s * root
    most = half + math.sqrt(half * half + max(primal - dual, 0.0) + FEW * primal)
    return s * root * most * (1.0 + FEW + 8.0 * n * UNIT_ROUNDOFF)


def dual_weights(scan: ScanSums) -> tuple[float, float]:
    """Return the factor of Σ c_k l_k (x_k, ρ) in v = Σ α_k l_k (x_k, ρ), α being the point of
    ``dual_of``, and a bound on the length of what v is off by; ∞ where that is not small.

    Squared hinge: the factor is t/‖a‖². D at a factor off by ε of itself is less by ε² D, which
    the allowance of ``dual_of`` holds as long as it is small.
    """
    upper, rounding = upper_bound_of(scan)
    if upper is None or scan.free or scan.ratio or not rounding <= 0.01 * upper:
        return 0.0, math.inf
    factor = scan.steps / scan.sq_norm if scan.loss.quadratic else 1.0 / scan.b
    return factor, rounding * scan.steps * factor


def zero_columns(scan: ScanSums, primal: float, dual: float) -> NDArray[np.bool_]:
    """Mark the columns of the rows that weigh 0 at the optimum, see ``core.penalty``.
    ``primal`` : at least P*; ``dual`` : that of v; where it is 0 it is not."""
    marks = np.zeros(len(scan.fresh), dtype=bool)
    if scan.sq_columns is None or not dual > 0.0:
        return marks
    _, _, scale, off = _dual_of_penalty(scan)
    n = float(scan.totals[kernels.ROWS])
    radius = penalty.radius(scan.loss.steepest, primal - dual) * (1.0 + FEW)
    roundings = FEW + 2.0 * n * UNIT_ROUNDOFF
    with np.errstate(all="ignore"):  # what is no number is not below r
        for first in range(0, len(scan.fresh), AT_A_TIME):
            part = slice(first, first + AT_A_TIME)
            squares = scan.sq_columns[part]
            lengths = np.sqrt(squares * (1.0 + roundings) + n * kernels.UNDERFLOW)
            most = scale * (np.abs(scan.fresh[part]) / scan.b + off) + radius * lengths
            marks[part] = (squares > 0.0) & (most * (1.0 + FEW) < scan.ratio)
    return marks
