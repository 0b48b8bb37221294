"""Bounds on the maximum directional margin γ_d that a scan at fixed weights proves; their gap.

With a = Σ c_k y_k, t = Σ c_k and the objective P(v) = ½‖v‖² + Σ C_k max(0, 1 − m_k)², whose least
value is P* = 1/(2 γ_d²):

* γ_d ≤ ‖a‖ / t, for a / t is a convex combination of the patterns y_k;
* γ_d ≥ min_k y_k·a / ‖a‖;
* γ_d ≥ 1 / √(2 P(s w)) for any weights w and any scale s > 0.

Every bound holds in exact arithmetic: what rounding may have done to it is bounded, term by term,
and the bound is widened by that. u = 2⁻⁵³ is the unit roundoff.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.errors import DataError, InternalError
from streamtron.core.kernels import UNIT_ROUNDOFF

FEW = 16.0 * UNIT_ROUNDOFF
"""More than a formula of a dozen operations rounds off, as a part of its terms' magnitudes. Δ_k²
is among the terms: it comes from C and the row's weights by four operations."""

LONGEST = 1e100
"""‖w‖ at most, and its inverse at least: products with float32 values, and their squares times any
C_k that is allowed, are finite and not 0."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proven bounds on γ_d over the rows that one scan saw.

    Parameters
    ----------
    directional_margin : at most min y_k·a / ‖a‖ of the scanned weights (may be negative).
    primal_margin : at most 1 / √(2 P) ≤ γ_d of the model's weights, the scanned ones times
        ``scale``; the directional margin where Δ = 0.
    upper_bound : at least ‖a‖ / t ≥ γ_d; None without counts.
    rows_scanned : rows the bounds speak of (rows of weight 0 left out).
    scale : s, near the one at which P(s w) is least.
    drift : ‖w − Σ c_k l_k x_k‖ / ‖Σ c_k l_k x_k‖ of the w that training carried, the sums made
        afresh; None where nothing was carried, or there are no counts.
    rounding_bound : what has been added to ‖a‖ / t so that no rounding can make it too small.

    Raises
    ------
    InternalError : a lower bound exceeds the upper bound. Both contain their rounding, so one of
        them is wrong.

    Examples
    --------
    >>> round(Certificate(.7, .8, 1., 100, 1.).relative_duality_gap, 9)
    0.36
    """

    directional_margin: float
    primal_margin: float
    upper_bound: float | None
    rows_scanned: int
    scale: float
    drift: float | None = None
    rounding_bound: float = 0.0

    def __post_init__(self) -> None:
        upper = math.inf if self.upper_bound is None else self.upper_bound
        for lower in (self.directional_margin, self.primal_margin):
            if not lower <= upper:
                raise InternalError(
                    f"the lower bound {lower!r} on the best margin is above the upper bound "
                    f"{upper!r}, more than rounding can do. No certificate was made. Run again: if "
                    "it says so again, this is a defect; if not, have this machine's memory tested."
                )

    @property
    def relative_duality_gap(self) -> float:
        """1 − (primal margin / upper bound)², its rounding added; 1 where nothing is proven."""
        if self.upper_bound is None or self.primal_margin <= 0.0:
            return 1.0
        ratio = self.primal_margin / self.upper_bound
        return min(1.0 - ratio * ratio + FEW, 1.0)

    @property
    def primal_objective(self) -> float | None:
        """At least P of the model's weights: 1 / (2 primal margin²); None where nothing is."""
        margin = self.primal_margin
        return 0.5 / margin / margin * (1.0 + FEW) if margin > 0.0 else None

    @property
    def dual_objective(self) -> float | None:
        """At most P*: 1 / (2 upper bound²); None without an upper bound."""
        upper = self.upper_bound
        return 0.5 / upper / upper * (1.0 - FEW) if upper else None

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain numbers, for reports and the model file."""
        return {
            **asdict(self),
            "relative_duality_gap": self.relative_duality_gap,
            "primal_objective": self.primal_objective,
            "dual_objective": self.dual_objective,
        }


class Part(NamedTuple):
    """What some consecutive rows add to the sums of a scan.

    Parameters
    ----------
    places, bins : int64 and float64, shape (len(places), BIN_SUMS): the bins that these rows fill,
        and what they add there.
    sums, totals : as ``ScanSums`` has them, of these rows alone.
    columns, values : uint32 and float64: the columns where Σ c_k l_k x_k of these rows is not 0,
        each once, and the sum there.
    """

    places: NDArray[np.int64]
    bins: Vector
    sums: Vector
    totals: NDArray[np.int64]
    columns: NDArray[np.uint32]
    values: Vector


class ScanSums:
    """The sums of one scan at fixed weights; a Certificate comes out once every row was seen.

    All sums are compensated: a sum of n terms is off by u of itself, and by 4 n² u² of the sum of
    their magnitudes (Ogita, Rump and Oishi, 2005, Proposition 4.5; 4 for sums that are added up).

    Parameters
    ----------
    scale : s₀ > 0, the scale around which P(s w) is known best (t / ‖a‖²).
    width : columns so far; ``fresh`` grows with them.

    Attributes
    ----------
    fresh, low : Σ c_k l_k x_k, and what its additions rounded off until ``fold`` adds that to it.
    """

    def __init__(self, scale: float, width: int) -> None:
        self.scale = scale
        self.bins = no_bins()
        self.fresh, self.low = np.zeros(width), np.zeros(width)
        self.sums = no_sums()
        self.totals = np.zeros(4, dtype=np.int64)

    def widen(self, width: int) -> None:
        """Make room for columns met while scanning."""
        more = np.zeros(width - len(self.fresh))
        self.fresh = np.concatenate((self.fresh, more))
        self.low = np.concatenate((self.low, more))

    def fold(self) -> None:
        """End the sum of Σ c_k l_k x_k: ``fresh`` is all of it."""
        if len(self.low):
            self.fresh += self.low
            self.low = np.zeros(0)

    def unfold(self) -> None:
        """Get ready to add more rows."""
        if len(self.low) != len(self.fresh):
            self.low = np.zeros(len(self.fresh))

    def add(self, part: Part) -> None:
        """Add what some rows have summed by themselves; there must be room for their columns."""
        least = min(self.sums[kernels.LEAST], part.sums[kernels.LEAST])
        lengths = self.sums[kernels.LENGTHS] + part.sums[kernels.LENGTHS]
        bins = self.bins.reshape(-1, kernels.BIN_SUMS)
        own = bins[part.places]
        _add_compensated(own.reshape(-1), part.bins.reshape(-1))
        bins[part.places] = own
        first = kernels.SQ_EXTENSION
        _add_compensated(self.sums[first:], part.sums[first:])
        self.sums[kernels.LEAST], self.sums[kernels.LENGTHS] = least, lengths
        self.totals += part.totals
        self.unfold()
        before = self.fresh[part.columns]
        self.fresh[part.columns], off = _two_sum(before, part.values)
        self.low[part.columns] += off

    @property
    def steps(self) -> int:
        """t = Σ c_k over the scanned rows."""
        return int(self.totals[kernels.STEPS_SEEN])

    @property
    def rows_called(self) -> int:
        """Rows found with y_k·a ≤ threshold."""
        return int(self.totals[kernels.CALLED])

    @property
    def fresh_bias(self) -> float:
        """Σ c_k l_k ρ."""
        return _compensated(self.sums, kernels.FRESH_BIAS)

    @property
    def sq_norm(self) -> float:
        """‖a‖² from the counts: ‖Σ c_k l_k x_k‖² + (Σ c_k l_k ρ)² + Σ Δ_k² c_k²."""
        self.fold()
        shared = kernels.sure_square_sum(self.fresh)
        return shared + self.fresh_bias**2 + self.sq_extension

    @property
    def sq_extension(self) -> float:
        """Σ Δ_k² c_k²."""
        return _compensated(self.sums, kernels.SQ_EXTENSION)

    def upper_bound(self) -> tuple[float | None, float]:
        """(‖a‖ / t widened by a bound on all its rounding, that bound); (None, 0) if t = 0.

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

    def distance(self, w: Vector) -> float:
        """‖w − Σ c_k l_k x_k‖ / ‖Σ c_k l_k x_k‖, of weights for any number of columns; 0 without
        counts."""
        self.fold()
        length = math.sqrt(kernels.square_sum(self.fresh))
        both = min(len(w), len(self.fresh))
        off = kernels.square_distance(w[:both], self.fresh[:both])
        off += kernels.square_sum(w[both:]) + kernels.square_sum(self.fresh[both:])
        return math.sqrt(off) / length if length else 0.0

    def primal(self, sq_weights: float) -> tuple[float, float]:
        """A bound on P at some scale, and that scale; see ``least_primal``."""
        return least_primal(self.bins, self.scale, sq_weights, int(self.totals[kernels.ROWS]))

    def certificate(
        self,
        w: Vector,
        bias: float,
        *,
        hard: bool,
        counted: bool = True,
        carried: Vector | None = None,
    ) -> tuple[Certificate, float]:
        """The certificate of the scanned weights, and P at its scale (inf for the hard margin).

        ``hard``: Δ = 0 for every row. ``counted``: there are counts. ``carried``: Σ c_k l_k x_k
        as training carried it, where it is not the w that was scanned.

        Raises
        ------
        InternalError : see ``Certificate``.
        """
        self.fold()
        sq_weights = kernels.sure_square_sum(w) + bias * bias
        directional = self._directional(sq_weights)
        upper, rounding = self.upper_bound() if counted else (None, 0.0)
        if hard:
            least = float(self.sums[kernels.LEAST])
            primal, scale = math.inf, 1.0 / least if least > 0.0 else self.scale
            margin = directional
        else:
            primal, scale = self.primal(sq_weights)
            margin = (1.0 - FEW) / math.sqrt(2.0 * primal)
        drift = self.distance(w if carried is None else carried) if counted else None
        rows = int(self.totals[kernels.ROWS])
        return Certificate(directional, margin, upper, rows, scale, drift, rounding), primal

    def _directional(self, sq_weights: float) -> float:
        """At most min y_k·a / ‖a‖, a being the scanned weights and the counts."""
        norm, least = math.sqrt(sq_weights + self.sq_extension), float(self.sums[kernels.LEAST])
        if not 0.0 < norm < math.inf:
            return 0.0
        return least / (norm * (1.0 + FEW)) if least > 0.0 else least / norm * (1.0 + FEW)


def length_of(w: Vector, bias: float) -> float:
    """‖w‖, by which a scan bounds the rounding of margins.

    Raises
    ------
    DataError : ‖(w, w_bias)‖ is neither 0 nor between 1 / LONGEST and LONGEST.
    """
    length = math.sqrt(kernels.square_sum(w))
    both = math.hypot(length, bias)
    if 1.0 / LONGEST <= both <= LONGEST or not (both or w.any()):
        return length
    raise DataError(
        f"the weights have the length {both:.3g}: wanted {1.0 / LONGEST:g} to {LONGEST:g}, so that "
        "no margin over- or underflows. Multiply weights and bias by a power of ten: the "
        "certificate is of their direction."
    )


def no_sums() -> Vector:
    """A scan's ``sums`` before its first row."""
    return np.array([math.inf, 0.0, 0.0, 0.0, 0.0, 0.0])


def no_bins() -> Vector:
    """A scan's ``bins`` before its first row."""
    return np.zeros(kernels.BINS * kernels.BIN_SUMS)


def _two_sum(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """a + b, and exactly what its rounding took off (Knuth)."""
    total = a + b
    grown = total - a
    return total, (a - (total - grown)) + (b - grown)


def _add_compensated(total: Vector, part: Vector) -> None:
    """total ← total + part in place; even places are sums, the next ones what they rounded off."""
    total[::2], off = _two_sum(total[::2], part[::2])
    total[1::2] += part[1::2] + off


def _compensated(sums: Vector, place: int) -> float:
    return float(sums[place] + sums[place + 1])


def least_primal(bins: Vector, scale: float, sq_weights: float, rows: int) -> tuple[float, float]:
    """A scale s at which P(s w) = ½ s² ‖w‖² + Σ C_k max(0, 1 − s m_k)² is about least, and a bound
    that P is not above there; see ``kernels.scan`` for the bins, which bound each m_k from below.

    Between the scales s₀ / (j h) and s₀ / ((j+1) h), h = BIN_WIDTH, the rows of bins 0 … j are all
    that can have a slack. With δ = s − s₀ theirs add up to at most

        Σ C (z − δ m)² = Σ C z² − 2 δ Σ C z m + δ² Σ C m².

    A row of bin j may have no slack: then it is below h, and counted. The sums round, and their
    differences cancel: this is off by at most (16 + 4 n² u) u (√Σ C z² + |δ| √Σ C m²)², which is
    part of what is minimised, so that no scale is chosen for its noise.

    Parameters
    ----------
    bins : float64, shape (BINS · BIN_SUMS,).
    scale : s₀ > 0.
    sq_weights : ‖w‖² + w_bias² ≥ 0, off by at most 4 u of itself.
    rows : n, how many are in the bins at most.

    Returns
    -------
    (bound of P, s); (∞, s₀) where a sum is no finite number.
    """
    sums = np.empty((kernels.BINS, 3))
    kernels.sum_bins(bins, np.zeros(kernels.BIN_SUMS), sums)
    zz, zm, mm = sums.T
    edges = scale / (kernels.BIN_WIDTH * np.arange(1, kernels.BINS + 1))
    low, high = edges * (1.0 + FEW), np.concatenate(([np.inf], edges[:-1]))
    curvature = sq_weights + 2.0 * mm
    with np.errstate(all="ignore"):
        best = np.where(curvature > 0.0, (2.0 * zm + 2.0 * scale * mm) / curvature, low)
        s = np.maximum(np.minimum(best, high), low)
        shift = s - scale
        loss = np.maximum(zz - 2.0 * shift * zm + shift * shift * mm, 0.0)
        terms = (np.sqrt(zz) + np.abs(shift) * np.sqrt(mm)) ** 2
        rounding = (FEW + 4.0 * (float(rows) * UNIT_ROUNDOFF) ** 2) * terms
        primal = (0.5 * s * s * sq_weights + loss + rounding) * (1.0 + FEW)
    primal = np.where(np.isfinite(primal) & np.isfinite(s), primal, np.inf)
    at = int(np.argmin(primal))
    if not primal[at] < np.inf:
        return math.inf, scale
    return float(primal[at]), float(s[at])
