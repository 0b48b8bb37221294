"""The sums over rows of a scan at fixed weights; what they prove is told by ``certificate``."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.losses import SQUARED_HINGE, Loss
from streamtron.core.rows import Rows

Vector = NDArray[np.float64]


class BlockSums(NamedTuple):
    """What some consecutive rows add to the sums of a scan: to ``sums`` and ``totals``; to
    Σ α_k l_k x_k the ``values`` at ``columns``, each named once; and to Σ C_k x_kj², where r > 0,
    the ``squares`` at ``occurring`` columns."""

    sums: Vector
    totals: NDArray[np.int64]
    columns: NDArray[np.uint32]
    values: Vector
    occurring: NDArray[np.int64]
    squares: Vector


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
        self.sums = no_sums()
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

    def take_block(self, rows: Rows, alphas: NDArray[np.float32]) -> BlockSums:
        """Take out what these rows, and no others, have added since the sums were empty."""
        most = int(np.diff(rows.indptr)[alphas != 0.0].sum())
        columns, values = np.empty(most, np.uint32), np.empty(most)
        number = kernels.drain(rows, alphas, self.fresh, self.low, columns, values)
        sums, totals = self.sums, self.totals
        self.sums, self.totals = no_sums(), np.zeros(kernels.TOTALS, dtype=np.int64)
        known = np.zeros(0) if self.sq_columns is None else self.sq_columns
        occurring = np.flatnonzero(known)  # few where a block has few rows
        squares, known[occurring] = known[occurring], 0.0
        return BlockSums(sums, totals, columns[:number], values[:number], occurring, squares)

    def add(self, block: BlockSums) -> None:
        """Add the sums of some rows; their columns must exist."""
        self._add_sums(block.sums, block.totals)
        self.unfold()
        self.fresh[block.columns], off = _two_sum(self.fresh[block.columns], block.values)
        self.low[block.columns] += off
        if self.sq_columns is not None:
            self.sq_columns[block.occurring] += block.squares

    def __add__(self, other: ScanSums) -> ScanSums:
        """Return the sums over the rows of both, scanned at the same weights.

        The bounds on rounding hold for any tree of such additions of n terms: each addition leaves
        its exact rounding error in ``low``, or in the place after the sum. These errors have at
        most the sum n u Σ|term|, and adding them up rounds each at most 2 n times.
        """
        total = copy.deepcopy(self)
        total.unfold()
        total.fresh, off = _two_sum(total.fresh, other.fresh)
        total.low += off if len(other.low) < len(off) else other.low + off
        if total.sq_columns is not None:
            squares = other.sq_columns
            total.sq_columns = None if squares is None else total.sq_columns + squares
        total._add_sums(other.sums, other.totals)
        return total

    def _add_sums(self, block: Vector, totals: NDArray[np.int64]) -> None:
        sums = self.sums
        sums[kernels.LEAST] = min(sums[kernels.LEAST], block[kernels.LEAST])
        plain = slice(kernels.LENGTHS, kernels.DUAL_BIAS)
        sums[plain] += block[plain]
        _add_compensated(sums[kernels.DUAL_BIAS :], block[kernels.DUAL_BIAS :])
        self.totals += totals

    def center(self, bias: float) -> float:
        """Return what ``kernels.scan`` takes off t_k: the bias ρ ``bias`` that is scanned, where it
        is not penalised and t_k are numbers; else 0."""
        return self.free * bias if self.loss.numbers else 0.0

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


def no_sums() -> Vector:
    """Return a scan's ``sums`` before its first row."""
    return np.append(math.inf, np.zeros(kernels.SUMS - 1))


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
