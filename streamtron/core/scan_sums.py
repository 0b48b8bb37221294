"""The sums over rows of a scan at fixed weights, and what they prove.

Every bound holds in exact arithmetic and is widened by a term-by-term bound on its rounding.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels, penalty
from streamtron.core.certificate import FEW, Certificate
from streamtron.core.kernels import UNIT_ROUNDOFF
from streamtron.core.losses import SQUARED_HINGE, Loss, reach
from streamtron.core.rows import Rows

Vector = NDArray[np.float64]

AT_A_TIME = 1 << 20
"""Columns of which it is looked at a time whether they weigh 0."""


class BlockSums(NamedTuple):
    """What some consecutive rows add to the sums of a scan: to ``bins`` at ``places``, shape
    (len(places), BIN_SUMS); to ``sums`` and ``totals``; to Σ c_k l_k x_k the ``values`` at
    ``columns``, each named once; and to Σ C_k x_kj², where r > 0, the ``squares`` at ``occurring``
    columns."""

    places: NDArray[np.int64]
    bins: Vector
    sums: Vector
    totals: NDArray[np.int64]
    columns: NDArray[np.uint32]
    values: Vector
    occurring: NDArray[np.int64]
    squares: Vector


class ScanSums:
    """Accumulate the sums of one scan at fixed weights, from which a Certificate is computed.

    All sums are compensated: a sum of n terms is off by u of itself, and by 4 n² u² of the sum of
    their magnitudes (Ogita, Rump and Oishi, 2005, Proposition 4.5; 4 for sums that are added up).
    ``scale`` is s₀ > 0, around which P(s w) is bounded most tightly (t / ‖a‖²), or at which it is
    where ``loss`` is not quadratic; α = c / ``b``. ``free`` is ρ of a bias that is not penalised,
    see ``Settings.augmentation``; else 0. ``ratio`` is r of ``core.penalty``. ``fresh`` and ``low``
    are Σ c_k l_k x_k, and the rounding errors of its additions until ``fold`` adds them.
    ``sq_columns`` : Σ C_k x_kj² of each column where r > 0; else None.
    """

    sq_columns: Vector | None = None

    def __init__(
        self,
        scale: float,
        width: int,
        loss: Loss = SQUARED_HINGE,
        b: float = 1.0,
        free: float = 0.0,
        ratio: float = 0.0,
    ) -> None:
        self.scale, self.loss, self.b, self.free, self.ratio = scale, loss, b, free, ratio
        self.bins = no_bins()
        self.fresh, self.low = np.zeros(width), np.zeros(width)
        if ratio:
            self.sq_columns = np.zeros(width)
        self.sums = no_sums()
        self.totals = np.zeros(4, dtype=np.int64)

    def widen(self, width: int) -> None:
        """Add columns that were met while scanning."""
        before, self.fresh, self.low = (self.fresh, self.low), np.zeros(width), np.zeros(width)
        for wide, narrow in zip((self.fresh, self.low), before, strict=True):
            wide[: len(narrow)] = narrow
        if self.sq_columns is not None:
            self.sq_columns = np.append(self.sq_columns, np.zeros(width - len(self.sq_columns)))

    def fold(self) -> None:
        """Complete the sum Σ c_k l_k x_k in ``fresh``."""
        if len(self.low):
            self.fresh += self.low
            self.low = np.zeros(0)

    def unfold(self) -> None:
        """Allow more rows to be added."""
        if len(self.low) != len(self.fresh):
            self.low = np.zeros(len(self.fresh))

    def take_block(self, rows: Rows, counts: NDArray[np.int32]) -> BlockSums:
        """Take out what these rows, and no others, have added since the sums were empty."""
        most = int(np.diff(rows.indptr)[counts != 0].sum())
        columns, values = np.empty(most, np.uint32), np.empty(most)
        found = kernels.drain(rows, counts, self.fresh, self.low, columns, values)
        bins = self.bins.reshape(-1, kernels.BIN_SUMS)
        places = np.flatnonzero(bins.any(axis=1))  # few where a block has few rows
        filled, sums, totals = bins[places], self.sums, self.totals
        bins[places] = 0.0
        self.sums, self.totals = no_sums(), np.zeros(4, dtype=np.int64)
        known = np.zeros(0) if self.sq_columns is None else self.sq_columns
        occurring = np.flatnonzero(known)
        squares, known[occurring] = known[occurring], 0.0
        return BlockSums(
            places, filled, sums, totals, columns[:found], values[:found], occurring, squares
        )

    def add(self, block: BlockSums) -> None:
        """Add the sums of some rows; their columns must exist."""
        bins = self.bins.reshape(-1, kernels.BIN_SUMS)
        own = bins[block.places]
        _add_compensated(own.reshape(-1), block.bins.reshape(-1))
        bins[block.places] = own
        self._add_sums(block.sums, block.totals)
        self.unfold()
        before = self.fresh[block.columns]
        self.fresh[block.columns], off = _two_sum(before, block.values)
        self.low[block.columns] += off
        if self.sq_columns is not None:
            self.sq_columns[block.occurring] += block.squares

    def __add__(self, other: ScanSums) -> ScanSums:
        """Return the sums over the rows of both, scanned at the same weights with the same s₀; one
        of them may have met more columns.

        The bounds on rounding hold for any tree of such additions of n terms: each addition leaves
        its exact rounding error in ``low``, or in the place after the sum. These errors have at
        most the sum n u Σ|term|, and adding them up rounds each at most 2 n times.
        """
        total, width = copy.deepcopy(self), max(len(self.fresh), len(other.fresh))
        if len(other.fresh) < width:
            other = copy.deepcopy(other)
            other.widen(width)
        if len(total.fresh) < width:
            total.widen(width)
        total.unfold()
        total.fresh, off = _two_sum(total.fresh, other.fresh)
        total.low += off if len(other.low) < len(off) else other.low + off
        if total.sq_columns is not None:
            more = other.sq_columns
            total.sq_columns = None if more is None else total.sq_columns + more
        _add_compensated(total.bins, other.bins)
        total._add_sums(other.sums, other.totals)
        return total

    def _add_sums(self, more: Vector, totals: NDArray[np.int64]) -> None:
        sums = self.sums
        sums[kernels.LEAST] = min(sums[kernels.LEAST], more[kernels.LEAST])
        sums[kernels.LENGTHS] += more[kernels.LENGTHS]
        _add_compensated(sums[kernels.SQ_EXTENSION :], more[kernels.SQ_EXTENSION :])
        self.totals += totals

    def center(self, bias: float) -> float:
        """Return what ``kernels.scan`` takes off t_k: the bias s₀ ρ ``bias`` that is scanned, where
        it is not penalised and t_k are numbers; else 0."""
        return self.scale * self.free * bias if self.loss.numbers else 0.0

    @property
    def steps(self) -> int:
        """Return t = Σ |c_k| over the scanned rows."""
        return int(self.totals[kernels.STEPS_SCANNED])

    @property
    def violators(self) -> int:
        """Return the number of rows with y_k·a ≤ threshold."""
        return int(self.totals[kernels.VIOLATORS])

    @property
    def fresh_bias(self) -> float:
        """Return Σ c_k l_k ρ."""
        return _compensated(self.sums, kernels.FRESH_BIAS)

    @property
    def sq_norm(self) -> float:
        """Return ‖a‖² from the counts: ‖Σ c_k l_k x_k‖² + (Σ c_k l_k ρ)² + Σ Δ_k² c_k²; without
        the second where the bias is not penalised."""
        self.fold()
        shared = kernels.compensated_square_sum(self.fresh)
        return shared + (0.0 if self.free else self.fresh_bias**2) + self.sq_extension

    @property
    def sq_extension(self) -> float:
        """Return Σ Δ_k² c_k²."""
        return _compensated(self.sums, kernels.SQ_EXTENSION)

    @property
    def excess(self) -> float:
        """Return Σ G − t/b, see ``dual``; 0 if the loss is quadratic."""
        if self.loss.quadratic:
            return 0.0
        return _compensated(self.sums, kernels.GAINS) - self.steps / self.b

    def upper_bound(self) -> tuple[float | None, float]:
        """Return ‖a‖ / t widened by a bound on its rounding, and that bound; (None, 0) if t = 0.

        Each coordinate of a is a compensated sum of products, rounded at most four times: the error
        of a has at most the length (4 + 4 n² u) u Σ c_k ‖y_k‖, n the rows with a count. The rest,
        to the quotient, is off by at most FEW ‖a‖, and ‖a‖ ≤ Σ c_k ‖y_k‖.
        """
        if self.steps == 0:
            return None, 0.0
        n = float(self.totals[kernels.SUPPORT])
        norm = math.sqrt(self.sq_norm)
        roundings = 4.0 + 4.0 * n * n * UNIT_ROUNDOFF + FEW / UNIT_ROUNDOFF
        longest = 1.01 * float(self.sums[kernels.LENGTHS])  # itself summed with roundings
        rounding = roundings * UNIT_ROUNDOFF * longest / self.steps
        return norm / self.steps + rounding, rounding

    def dual(self, primal: float = math.inf) -> tuple[float, float]:
        """Return a lower bound of D, and the allowance for its rounding; 0 without counts.

        Squared hinge: D = t²/(2 ‖a‖²), that of the counts at its best scale; ‖a‖ / t was widened by
        the allowance. Others: D = Σ G − ½ ‖a‖²/b² at the scale 1/b, G as ``kernels.scan`` bounds
        it; ‖a‖ is off by no more than in ``upper_bound``. Where the bias is not penalised D is less
        by |Σ c_k l_k bias*|/b, bias* less the ``center`` of t_k: both are 0 at the optimum.
        ``primal`` : at least P*.
        """
        upper, rounding = self.upper_bound()
        if upper is None:
            return 0.0, 0.0
        if self.ratio:
            return self._dual_of_penalty(primal)[:2]
        price = self._price(primal)
        if self.loss.quadratic:
            part = max(1.0 - price / self.steps, 0.0)
            return 0.5 * part / upper * part / upper * (1.0 - FEW), rounding
        n, gains = float(self.totals[kernels.SUPPORT]), _compensated(self.sums, kernels.GAINS)
        if not gains > 0.0:
            return 0.0, 0.0  # −∞: some α is above C
        longest = upper * self.steps / self.b
        allowance = self._gain_terms(gains) * (FEW + 4.0 * (n * UNIT_ROUNDOFF) ** 2)
        allowance += longest * longest * FEW
        exact = 0.5 * self.sq_norm / self.b / self.b
        square = 0.5 * longest * longest * (1.0 + FEW)
        lost = price / self.b * (1.0 + FEW)
        if lost:
            lost = min(lost, self._price_of_ridge(primal, gains - allowance - square))
        return max(gains - allowance - square - lost, 0.0), allowance + square - exact

    def _price(self, primal: float) -> float:
        return self._unbalanced * self._largest_bias(primal) if self.free else 0.0

    def _dual_of_penalty(self, primal: float) -> tuple[float, float, float, float]:
        """Return what ``dual`` does where the penalty has a 1-norm, see ``core.penalty``: the
        better of v and, what L1 needs, s v with s max |v_j| ≤ r; the factor, and the length of
        what v is off by at most, as in ``upper_bound``, and so its largest coordinate, and the
        vector (|v_j| − r)₊."""
        ratio, b, n = self.ratio, self.b, float(self.totals[kernels.SUPPORT])
        earned, lost = _compensated(self.sums, kernels.GAINS), 0.0
        if self.loss.quadratic:
            earned, lost = self.steps / b, 0.5 * self.sq_extension / b / b
        if not earned > lost:
            return 0.0, 0.0, 1.0, 0.0  # also −∞: some α is above C
        gains = earned - lost
        allowance = self._gain_terms(earned + lost) * (FEW + 4.0 * (n * UNIT_ROUNDOFF) ** 2)
        roundings = 4.0 + 4.0 * n * n * UNIT_ROUNDOFF + FEW / UNIT_ROUNDOFF
        off = roundings * UNIT_ROUNDOFF * 1.01 * float(self.sums[kernels.LENGTHS]) / b
        self.fold()
        sums = penalty.soft_sums(self.fresh, 1.0 / b, ratio)
        points = [(min(1.0, ratio * (1.0 - FEW) / (sums.largest + off or 1.0)), 0.0)]
        if ratio < 1.0:
            points.append((1.0, 0.5 * (math.sqrt(sums.squares) + off) ** 2 / (1.0 - ratio)))
        gains -= allowance + self._price(primal) / b * (1.0 + FEW)
        bias, best = 0.0 if self.free else abs(self.fresh_bias) / b + off, (0.0, 0.0, 1.0, off)
        for scale, square in points:
            dual = scale * gains - (square + 0.5 * (scale * bias) ** 2) * (1.0 + FEW)
            best = max(best, (dual - FEW * abs(dual), allowance, scale, off))
        return best

    def zero_columns(self, primal: float, dual: float) -> NDArray[np.bool_]:
        """Mark the columns of the rows that weigh 0 at the optimum, see ``core.penalty``.
        ``primal`` : at least P*; ``dual`` : that of v; where it is 0 it is not."""
        zero = np.zeros(len(self.fresh), dtype=bool)
        if self.sq_columns is None or not dual > 0.0:
            return zero
        _, _, scale, off = self._dual_of_penalty(primal)
        n = float(self.totals[kernels.ROWS])
        radius = penalty.radius(self.loss.steepest, primal - dual) * (1.0 + FEW)
        roundings = FEW + 2.0 * n * UNIT_ROUNDOFF
        with np.errstate(all="ignore"):  # what is no number is not below r
            for first in range(0, len(self.fresh), AT_A_TIME):
                part = slice(first, first + AT_A_TIME)
                squares = self.sq_columns[part]
                lengths = np.sqrt(squares * (1.0 + roundings) + n * kernels.UNDERFLOW)
                most = scale * (np.abs(self.fresh[part]) / self.b + off) + radius * lengths
                zero[part] = (squares > 0.0) & (most * (1.0 + FEW) < self.ratio)
        return zero

    def _gain_terms(self, gains: float) -> float:
        """Return what the terms of the gains add up to; where labels are numbers they are of both
        signs."""
        return 1.01 * _compensated(self.sums, kernels.MAGNITUDES) if self.loss.numbers else gains

    def dual_weights(self) -> tuple[float, float]:
        """Return the factor of Σ c_k l_k (x_k, ρ) in v = Σ α_k l_k (x_k, ρ), α being the point of
        ``dual``, and a bound on the length of what v is off by; ∞ where that is not small.

        Squared hinge: the factor is t/‖a‖². D at a factor off by ε of itself is less by ε² D, which
        the allowance of ``dual`` holds as long as it is small.
        """
        upper, rounding = self.upper_bound()
        if upper is None or self.free or self.ratio or not rounding <= 0.01 * upper:
            return 0.0, math.inf
        factor = self.steps / self.sq_norm if self.loss.quadratic else 1.0 / self.b
        return factor, rounding * self.steps * factor

    @property
    def _unbalanced(self) -> float:
        """Return |Σ c_k l_k| at most, where the bias is not penalised."""
        return abs(self.fresh_bias) / self.free + FEW * self.steps

    def _price_of_ridge(self, primal: float, dual: float) -> float:
        """Return what the price of a bias that is not penalised is at most where the loss is
        SQUARED_ERROR; else ∞. ``dual`` : D without it; ``primal`` : P(w, bias), and t_k are less
        the same bias.

        With ℓ = ΣC ‖x‖/ΣC, P rises by ½ μ (bias − bias*)² at least, μ = 1/(1/ΣC + ℓ²): that is
        (ΣC)²/(u·M u) for M = C⁻¹ + XXᵀ, u = C1, and min over w of the Hessian is 1·M⁻¹1. So with
        s = |Σ α l| and e = P − P* it is s √(2e/μ) at most, and e ≤ P − D + s √(2e/μ).
        """
        cost = _compensated(self.sums, kernels.COSTS + 2)
        if self.loss.code != kernels.SQUARED_ERROR or not (cost > 0.0 and primal < math.inf):
            return math.inf
        length = _compensated(self.sums, kernels.NORMS + 2) / cost
        root = math.sqrt(2.0 * (1.0 / cost + length * length)) * (1.0 + FEW)
        s = self._unbalanced / self.b
        half = 0.5 * s * root
        most = half + math.sqrt(half * half + max(primal - dual, 0.0) + FEW * primal)
        return s * root * most * (1.0 + FEW + 8.0 * int(self.totals[kernels.ROWS]) * UNIT_ROUNDOFF)

    def _largest_bias(self, primal: float) -> float:
        """Bound |bias*| where the bias is not penalised, from ``primal`` ≥ P*.

        φ is convex and falls: over a class Σ C φ(m) ≥ ΣC φ(m̄), m̄ the mean margin, so that
        φ(m̄) ≤ P*/ΣC bounds −m̄, and |bias*| ≤ −m̄ + ‖w*‖ Σ C ‖x‖/ΣC of one class or the other,
        with R(w*) ≤ P*, see ``penalty.longest``. Where t_k are numbers φ rises on both sides of 0,
        and the bound is of |bias* − center|, larger by Σ C |t − center|/ΣC.
        """
        bias, n = 0.0, float(self.totals[kernels.ROWS])
        for side in (2,) if self.loss.numbers else (0, 2):
            cost = _compensated(self.sums, kernels.COSTS + side)
            if not (cost > 0.0 and primal < math.inf):
                return math.inf
            length = _compensated(self.sums, kernels.NORMS + side) / cost
            farthest = reach(self.loss, primal / cost) + length * penalty.longest(
                self.ratio, primal
            )
            if self.loss.numbers:
                farthest += _compensated(self.sums, kernels.NORMS) / cost
            bias = max(bias, farthest)
        return bias * (1.0 + FEW + 4.0 * n * UNIT_ROUNDOFF)

    def distance(self, w: Vector) -> float:
        """Return ‖w − Σ c_k l_k x_k‖ / ‖Σ c_k l_k x_k‖ of any width; 0 without counts."""
        self.fold()
        length = math.sqrt(kernels.square_sum(self.fresh))
        both = min(len(w), len(self.fresh))
        off = float(kernels.square_distance(w[:both], self.fresh[:both]))
        off += kernels.square_sum(w[both:]) + kernels.square_sum(self.fresh[both:])
        return math.sqrt(off) / length if length else 0.0

    def primal(self, sq_weights: float, lasso: float = 0.0) -> tuple[float, float]:
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
        if not self.loss.quadratic:
            return self._primal_at_scale(sq_weights, lasso), self.scale
        sums = np.empty((kernels.BINS, 3))
        scale, n = self.scale, float(self.totals[kernels.ROWS])
        kernels.sum_bins(self.bins, np.zeros(kernels.BIN_SUMS), sums)
        # where the next bin has no row, the sums stay as they are: that is one range of scales
        filled = self.bins.reshape(kernels.BINS, -1)[1:, kernels.SQ_MARGINS] != 0.0
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
            rounding = (FEW + 4.0 * (n * UNIT_ROUNDOFF) ** 2) * terms
            primal = (0.5 * s * s * sq_weights + s * lasso + loss + rounding) * (1.0 + FEW)
        primal = np.where(np.isfinite(primal) & np.isfinite(s), primal, np.inf)
        at = int(np.argmin(primal))
        if not primal[at] < np.inf:
            return math.inf, scale
        matters = curvature.any() or lasso  # as of weights that are all 0 it does not
        return float(primal[at]), float(s[at]) if matters else scale

    def _primal_at_scale(self, sq_weights: float, lasso: float) -> float:
        n, losses = float(self.totals[kernels.ROWS]), _compensated(self.sums, kernels.LOSSES)
        rounding = FEW + 4.0 * (n * UNIT_ROUNDOFF) ** 2
        primal = 0.5 * self.scale * self.scale * sq_weights + losses * (1.0 + rounding)
        primal += self.scale * lasso
        primal *= 1.0 + FEW
        return primal if primal < math.inf else math.inf  # no number is none proven

    def certificate(
        self,
        w: Vector,
        bias: float,
        *,
        hard: bool,
        running: Vector | None = None,
    ) -> Certificate:
        """Return the certificate of the scanned weights.

        ``hard``: Δ = 0 for every row. ``running``: the running weights of training, if other
        weights were scanned.
        """
        self.fold()
        sq_weights, lasso = self._sizes(w, bias)
        margins = self.loss.quadratic and not self.free and not self.ratio
        directional = self._directional(sq_weights) if margins else -math.inf
        if hard:
            least = float(self.sums[kernels.LEAST])
            scale = 1.0 / least if least > 0.0 else self.scale
            primal = 0.5 / directional / directional * (1.0 + FEW) if least > 0.0 else math.inf
        else:
            primal, scale = self.primal(sq_weights, lasso)
        dual, rounding = self.dual(primal)
        drift = self.distance(w if running is None else running)
        rows = int(self.totals[kernels.ROWS])
        zeros = int(np.count_nonzero(self.zero_columns(primal, dual)))
        return Certificate(directional, primal, dual, rows, scale, drift, rounding, margins, zeros)

    def _sizes(self, w: Vector, bias: float) -> tuple[float, float]:
        """Return ``sq_weights`` and ``lasso`` of ``primal``."""
        squares, sq_bias = kernels.compensated_square_sum(w), 0.0 if self.free else bias * bias
        if not self.ratio:
            return squares + sq_bias, 0.0
        lasso = self.ratio * penalty.soft_sums(w, 1.0, 0.0).excess
        return ((1.0 - self.ratio) * squares + sq_bias) * (1.0 + FEW), lasso * (1.0 + FEW)

    def _directional(self, sq_weights: float) -> float:
        """Bound min y_k·a / ‖a‖ from below, for the scanned weights and the counts."""
        norm, least = math.sqrt(sq_weights + self.sq_extension), float(self.sums[kernels.LEAST])
        if not 0.0 < norm < math.inf:
            return -math.inf
        return least / (norm * (1.0 + FEW)) if least > 0.0 else least / norm * (1.0 + FEW)


def no_sums() -> Vector:
    """Return a scan's ``sums`` before its first row."""
    return np.append(math.inf, np.zeros(kernels.SUMS - 1))


def no_bins() -> Vector:
    """Return a scan's ``bins`` before its first row."""
    return np.zeros(kernels.BINS * kernels.BIN_SUMS)


@np.errstate(invalid="ignore")  # −∞ − −∞ where counts are above b C
def _two_sum(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """Return a + b and its exact rounding error (Knuth, 1969); no number where a sum is −∞."""
    total = a + b
    with np.errstate(invalid="ignore"):
        grown = total - a
        return total, (a - (total - grown)) + (b - grown)


def _add_compensated(total: Vector, part: Vector) -> None:
    """Add part to total in place; the place after each sum holds its rounding error."""
    total[::2], off = _two_sum(total[::2], part[::2])
    total[1::2] += part[1::2] + off


def _compensated(sums: Vector, place: int) -> float:
    return float(sums[place] + sums[place + 1])
