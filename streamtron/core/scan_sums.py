"""The sums over rows of a scan at fixed weights; ``certificate`` says what they prove."""

from __future__ import annotations

import copy
import math

import numpy as np

from streamtron.core import kernels
from streamtron.core.losses import SQUARED_HINGE, Loss
from streamtron.core.rows import Vector


class ScanSums:
    """Accumulate the sums of one scan at fixed weights, from which a Certificate is computed.

    Sums from which bounds are made are compensated: one of n terms is off by u of itself, and by
    4 n² u² of the sum of their magnitudes (Ogita, Rump and Oishi, 2005, Proposition 4.5; 4 for sums
    that are added up).
    ``free`` is ρ of a bias that is not penalised, see ``Settings.augmentation``; else 0. ``ratio``
    is r of ``core.penalty``. ``fresh`` and ``low`` are Σ α_k l_k x_k, and the rounding errors of
    its additions until ``fold`` adds them. ``sq_columns`` : Σ C_k x_kj² of each column where r > 0;
    else None.
    """

    sq_columns: Vector | None = None

    def __init__(
        self, width: int, loss: Loss = SQUARED_HINGE, free: float = 0.0, ratio: float = 0.0
    ) -> None:
        self.loss, self.free, self.ratio = loss, free, ratio
        self.fresh, self.low = np.zeros(width), np.zeros(width)
        if ratio:
            self.sq_columns = np.zeros(width)
        self.sums = np.append(math.inf, np.zeros(kernels.SUMS - 1))
        self.totals = np.zeros(kernels.TOTALS, dtype=np.int64)

    def fold(self) -> None:
        """Complete the sum Σ α_k l_k x_k in ``fresh``."""
        if len(self.low):
            self.fresh += self.low
            self.low = np.zeros(0)

    def unfold(self) -> None:
        """Allow more rows to be added."""
        if len(self.low) != len(self.fresh):
            self.low = np.zeros(len(self.fresh))

    def emptied(self) -> ScanSums:
        """Return the sums of no rows, of a scan of the same weights."""
        return ScanSums(len(self.fresh), self.loss, self.free, self.ratio)

    def add(self, other: ScanSums) -> None:
        """Add the sums over other rows, scanned at the same weights.

        The bounds on rounding hold for any tree of such additions of n terms: each addition leaves
        its exact rounding error in ``low``, or in the place after the sum. These errors have at
        most the sum n u Σ|term|, and adding them up rounds each at most 2 n times.
        """
        self.unfold()
        self.fresh, off = _two_sum(self.fresh, other.fresh)
        self.low += off if len(other.low) < len(off) else other.low + off
        if self.sq_columns is not None and other.sq_columns is not None:
            self.sq_columns += other.sq_columns
        sums = self.sums
        sums[kernels.LEAST] = min(sums[kernels.LEAST], other.sums[kernels.LEAST])
        plain = slice(kernels.LENGTHS, kernels.DUAL_BIAS)
        sums[plain] += other.sums[plain]
        _add_compensated(sums[kernels.DUAL_BIAS :], other.sums[kernels.DUAL_BIAS :])
        self.totals += other.totals

    def __add__(self, other: ScanSums) -> ScanSums:
        """Return the sums over the rows of both, see ``add``."""
        total = copy.deepcopy(self)
        total.add(other)
        return total

    def center(self, bias: float) -> float:
        """Return what ``kernels.scan`` takes off t_k: the bias ρ ``bias`` that is scanned, where it
        is not penalised and φ is of z − t; else 0."""
        return self.free * bias if self.loss.residual else 0.0

    @property
    def dual_bias(self) -> float:
        """Return Σ α_k l_k ρ."""
        return self.sum_at(kernels.DUAL_BIAS)

    @property
    def sq_norm(self) -> float:
        """Return ‖v‖² from the dual variables: ‖Σ α_k l_k x_k‖² + (Σ α_k l_k ρ)²; without the
        second where the bias is not penalised."""
        self.fold()
        sq_weights = kernels.compensated_square_sum(self.fresh)
        return sq_weights + (0.0 if self.free else self.dual_bias**2)

    @property
    def gains(self) -> float:
        """Return −Σ C_k φ*(−α_k/C_k), at most."""
        return self.sum_at(kernels.EARNED)

    def sum_at(self, place: int) -> float:
        """Return the compensated sum at a place of ``sums``."""
        assert place >= kernels.DUAL_BIAS
        return float(self.sums[place] + self.sums[place + 1])

    def distance(self, w: Vector) -> float:
        """Return ‖w − v‖ / ‖v‖, v = Σ α_k l_k x_k, of any width; 0 where v is 0."""
        self.fold()
        length = math.sqrt(kernels.square_sum(self.fresh))
        common = min(len(w), len(self.fresh))
        off = float(kernels.square_distance(w[:common], self.fresh[:common]))
        off += kernels.square_sum(w[common:]) + kernels.square_sum(self.fresh[common:])
        return math.sqrt(off) / length if length else 0.0


@np.errstate(invalid="ignore")  # −∞ − −∞ where α is beyond its most
def _two_sum(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """Return a + b and its exact rounding error (Knuth, 1969); no number where a sum is −∞."""
    total = a + b
    grown = total - a
    return total, (a - (total - grown)) + (b - grown)


def _add_compensated(total: Vector, part: Vector) -> None:
    """Add part to total in place; the place after each sum holds its rounding error."""
    total[::2], off = _two_sum(total[::2], part[::2])
    total[1::2] += part[1::2] + off
