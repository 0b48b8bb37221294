"""What a frozen scan proves: bounds on the maximum directional margin γ_d, and their gap.

With a = Σ c_k y_k and t = Σ c_k (DESIGN of the certificate):

* γ_d ≤ ‖a‖ / t, for a / t is a convex combination of the patterns;
* γ_d ≥ γ'_d = min_k y_k·a / ‖a‖;
* γ_d ≥ 1 / √(2 P(s)) for any scale s > 0, where P is LIBLINEAR's objective
  P(s) = ½ s² (‖w‖² + w_bias²) + Σ C_k max(0, 1 − s m_k)².
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron import kernels

UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proven bounds on γ_d over the rows that one frozen scan saw.

    Parameters
    ----------
    directional_margin : γ'_d = min y_k·a / ‖a‖ of the scanned weights (may be negative).
    primal_margin : 1 / √(2 min_s P(s)) ≤ γ_d, of the model's weights; γ'_d where Δ = 0.
    upper_bound : ‖a‖ / t ≥ γ_d, widened by ``rounding_bound``; None without counts.
    relative_duality_gap : 1 − (primal margin / upper bound)² = (P − D) / P, in [0, 1].
    rows_scanned : rows the bounds speak of (rows of weight 0 left out).
    scale : the s at which P is least: the model's weights are s · w.
    drift : ‖w − Σ c_k l_k x_k‖ / ‖Σ c_k l_k x_k‖ of the w that training carried, the sums made
        afresh; None where nothing was carried, or there are no counts.
    rounding_bound : what has been added to ‖a‖ / t so that no rounding can make it too small.

    Examples
    --------
    >>> Certificate(.7, .8, 1., 100, 1.).relative_duality_gap
    0.3599999999999999
    """

    directional_margin: float
    primal_margin: float
    upper_bound: float | None
    rows_scanned: int
    scale: float
    drift: float | None = None
    rounding_bound: float = 0.0

    @property
    def relative_duality_gap(self) -> float:
        """1 − (primal margin / upper bound)²; 0 where rounding puts the lower above the upper."""
        if self.upper_bound is None or self.primal_margin <= 0.0:
            return 1.0
        ratio = self.primal_margin / self.upper_bound
        return min(max(1.0 - ratio * ratio, 0.0), 1.0)

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain numbers, for reports and the model file."""
        return {**asdict(self), "relative_duality_gap": self.relative_duality_gap}


class Part(NamedTuple):
    """What some consecutive rows add to the sums of a scan.

    Parameters
    ----------
    bins, sums, totals : as ``Evidence`` has them, of these rows alone.
    columns, values : uint32 and float64: the columns where Σ c_k l_k x_k of these rows is not 0,
        each once, and the sum there.
    """

    bins: NDArray[np.float64]
    sums: NDArray[np.float64]
    totals: NDArray[np.int64]
    columns: NDArray[np.uint32]
    values: NDArray[np.float64]


class Evidence:
    """The sums of one frozen scan; a Certificate comes out once every row was seen.

    Parameters
    ----------
    scale : s₀ > 0, the scale around which P(s) is known best (t / ‖a‖²).
    width : columns so far; ``fresh`` grows with them.
    """

    def __init__(self, scale: float, width: int) -> None:
        self.scale = scale
        self.bins = np.zeros((3, kernels.BINS))
        self.fresh = np.zeros(width)
        self.sums = no_sums()
        self.totals = np.zeros(4, dtype=np.int64)

    def widen(self, width: int) -> None:
        """Make room for columns met while scanning."""
        self.fresh = np.concatenate((self.fresh, np.zeros(width - len(self.fresh))))

    def add(self, part: Part) -> None:
        """Add what some rows have summed by themselves; there must be room for their columns."""
        least = min(self.sums[kernels.LEAST], part.sums[kernels.LEAST])
        self.bins += part.bins
        self.sums += part.sums
        self.sums[kernels.LEAST] = least
        self.totals += part.totals
        self.fresh[part.columns] += part.values

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
        return float(self.sums[kernels.FRESH_BIAS])

    @property
    def sq_norm(self) -> float:
        """‖a‖² from the counts: ‖Σ c_k l_k x_k‖² + (Σ c_k l_k ρ)² + Σ Δ_k² c_k²."""
        shared = float(kernels.square_sum(self.fresh))
        return shared + self.fresh_bias**2 + self.sq_extension

    @property
    def sq_extension(self) -> float:
        """Σ Δ_k² c_k²."""
        return float(self.sums[kernels.SQ_EXTENSION])

    def upper_bound(self) -> tuple[float | None, float]:
        """(‖a‖ / t widened by a bound on all its rounding, that bound); (None, 0) if t = 0.

        Each coordinate of a is a sum of at most n (rows with c_k > 0) exact products, so its error
        is at most n u Σ c_k |y_kj|; hence ‖error‖ ≤ n u Σ c_k ‖y_k‖. The norm sums columns + n
        squares: a relative error of (columns + n + 8) u at most.
        """
        if self.steps == 0:
            return None, 0.0
        n = int(self.totals[kernels.SUPPORT])
        norm = math.sqrt(self.sq_norm)
        summing = 1.001 * n * UNIT_ROUNDOFF * float(self.sums[kernels.LENGTHS])
        columns = int(np.count_nonzero(self.fresh))
        squaring = (columns + n + 8) * UNIT_ROUNDOFF * norm
        rounding = (summing + squaring) / self.steps
        return norm / self.steps + rounding, rounding

    def distance(self, w: NDArray[np.float64]) -> float:
        """‖w − Σ c_k l_k x_k‖ / ‖Σ c_k l_k x_k‖, of weights for any number of columns; 0 without
        counts."""
        length = math.sqrt(kernels.square_sum(self.fresh))
        both = min(len(w), len(self.fresh))
        off = kernels.square_distance(w[:both], self.fresh[:both])
        off += kernels.square_sum(w[both:]) + kernels.square_sum(self.fresh[both:])
        return math.sqrt(off) / length if length else 0.0

    def primal(self, sq_weights: float) -> tuple[float, float]:
        """(min_s P(s), that s), never below the true P there; see ``least_primal``."""
        return least_primal(self.bins, self.scale, sq_weights)

    def certificate(
        self,
        w: NDArray[np.float64],
        bias: float,
        *,
        hard: bool,
        counted: bool = True,
        carried: NDArray[np.float64] | None = None,
    ) -> tuple[Certificate, float]:
        """The certificate of the scanned weights, and P at its scale (inf for the hard margin).

        ``hard``: Δ = 0 for every row. ``counted``: there are counts. ``carried``: Σ c_k l_k x_k
        as training carried it, where it is not the w that was scanned.
        """
        sq_weights = kernels.square_sum(w) + bias * bias
        norm = math.sqrt(sq_weights + self.sq_extension)
        least = float(self.sums[kernels.LEAST])
        directional = least / norm if norm > 0.0 else 0.0
        upper, rounding = self.upper_bound() if counted else (None, 0.0)
        if hard:
            primal, scale = math.inf, 1.0 / least if least > 0.0 else self.scale
            margin = directional
        else:
            primal, scale = self.primal(sq_weights)
            margin = 1.0 / math.sqrt(2.0 * primal) if primal > 0.0 else math.inf
        drift = self.distance(w if carried is None else carried) if counted else None
        rows = int(self.totals[kernels.ROWS])
        return Certificate(directional, margin, upper, rows, scale, drift, rounding), primal


def no_sums() -> NDArray[np.float64]:
    """A scan's ``sums`` before its first row."""
    return np.array([math.inf, 0.0, 0.0, 0.0])


def least_primal(bins: NDArray[np.float64], scale: float, sq_weights: float) -> tuple[float, float]:
    """min over s of P(s) = ½ s² ‖w‖² + Σ C_k max(0, 1 − s m_k)² from a scan's bins.

    Between the scales s₀ / (j h) and s₀ / ((j+1) h), h = BIN_WIDTH, the bins 0 … j are taken as
    wholly inside the loss. That is exact but for bin j, whose rows have a slack below h there and
    can only add: the value returned is an upper bound of the true P(s), so a proof stays a proof.

    Parameters
    ----------
    bins : float64, shape (3, BINS): sums of C z², C z m, C m² with z = 1 − s₀ m.
    scale : s₀ > 0.
    sq_weights : ‖w‖² + w_bias² ≥ 0.

    Returns
    -------
    (P, s).
    """
    zz, zm, mm = np.cumsum(bins, axis=1)
    edges = scale / (kernels.BIN_WIDTH * np.arange(1, kernels.BINS + 1))
    low, high = edges, np.concatenate(([np.inf], edges[:-1]))
    curvature = sq_weights + 2.0 * mm
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(curvature > 0.0, (2.0 * zm + 2.0 * scale * mm) / curvature, low)
    s = np.clip(best, low, high)
    shift = s - scale
    loss = np.maximum(zz - 2.0 * shift * zm + shift * shift * mm, 0.0)
    primal = 0.5 * s * s * sq_weights + loss
    at = int(np.argmin(primal))
    return float(primal[at]), float(s[at])
