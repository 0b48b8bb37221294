"""The running weights a = Σ c_k y_k, and how a visited row changes them; and vectors of a number a
column by their nonzeros, as idle learners and files hold them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.losses import SQUARED_HINGE, Loss
from streamtron.core.rows import Rows
from streamtron.core.scan_sums import ScanSums
from streamtron.solver import passes
from streamtron.solver.targets import Targets

LARGEST_SCALED = 1 << 28
"""The largest count after a change of resolution: ascent then has room to 2³¹ − 1."""


LONGEST = (1 << 32) + 1
"""Numbers of a vector: one a column, and the bias."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SparseVector:
    """A vector of ``length`` numbers, by the ``values`` at its ``columns``, uint32 and rising; all
    others are 0. ValueError: it is none.

    Examples
    --------
    >>> vector = SparseVector.of(np.array([0.0, 0.0, 0.5]))
    >>> vector.columns.tolist(), vector.values.tolist(), len(vector), vector.dense().tolist()
    ([2], [0.5], 3, [0.0, 0.0, 0.5])
    """

    columns: NDArray[np.uint32]
    values: Vector
    length: int

    def __post_init__(self) -> None:
        columns, values = self.columns, self.values
        right = columns.dtype == np.uint32 and values.dtype == np.float64
        if not (right and columns.shape == values.shape == (len(values),)):
            raise ValueError("columns and values of another kind or length")
        if (columns[1:] <= columns[:-1]).any():
            raise ValueError("columns that do not rise")
        last = int(columns[-1]) if len(columns) else -1
        if not last < self.length <= LONGEST:
            raise ValueError("columns that are not there")

    @classmethod
    def of(cls, vector: Vector, columns: NDArray[np.uint32] | None = None) -> SparseVector:
        """Return a vector by its nonzeros; ``columns`` : an array to share, if it has just them."""
        nonzero = np.flatnonzero(vector != 0.0).astype(np.uint32)
        if columns is None or not np.array_equal(nonzero, columns):
            columns = nonzero
        return cls(columns, vector[columns], len(vector))

    def __len__(self) -> int:
        return self.length

    def dense(self) -> Vector:
        """Return all numbers, shape (length,)."""
        vector = np.zeros(self.length)
        vector[self.columns] = self.values
        return vector


def smaller(vector: Vector, columns: NDArray[np.uint32] | None = None) -> Vector | SparseVector:
    """Return a vector by its nonzeros (see ``SparseVector.of``) where that takes fewer bytes."""
    if 3 * np.count_nonzero(vector != 0.0) >= 2 * len(vector):
        return vector
    return SparseVector.of(vector, columns)


def dense(vector: Vector | SparseVector) -> Vector:
    """Return all numbers of a vector."""
    return vector.dense() if isinstance(vector, SparseVector) else vector


def cut(vector: Vector | SparseVector, length: int) -> Vector | SparseVector:
    """Return the first numbers of a vector, in arrays of its own."""
    if isinstance(vector, SparseVector):
        stop = int(np.searchsorted(vector.columns, length))
        columns, values = vector.columns[:stop].copy(), vector.values[:stop].copy()
        return SparseVector(columns, values, min(length, len(vector)))
    return vector[:length].copy()


def resized(v: Vector, columns: int) -> Vector:
    """Return a copy of an augmented vector with so many columns, 0 where it has none: the bias
    stays the last number."""
    wide, common = np.zeros(columns + 1), min(columns, len(v) - 1)
    wide[:common], wide[-1] = v[:common], v[-1]
    return wide


def is_vector(vector: Any, length: int) -> bool:
    """Return whether something is a vector of so many numbers."""
    if isinstance(vector, SparseVector):
        return len(vector) == length
    return bool(vector.dtype == np.float64 and vector.shape == (length,))


@dataclass(frozen=True, slots=True)
class Rule:
    """How a visited row changes a: by a step of dual coordinate ascent at the resolution b
    (``ascent``), or by y_k if y_k·a ≤ b t^(1−ε), or b ‖a‖^(1−ε) (``by_length``)."""

    b: float
    epsilon: float
    by_length: bool
    ascent: bool
    rho: float
    loss: Loss = SQUARED_HINGE

    def scale(self, running: WeightState) -> float:
        """Return the scale of the running weights: t/‖a‖², or 1/b if the loss is not quadratic."""
        return running.scale if self.loss.quadratic else 1.0 / self.b


class DualPoint(NamedTuple):
    """The sums over rows of a dual point: a = Σ c_k l_k (x_k, ρ), augmented; Σ Δ_k² c_k²;
    t = Σ |c_k|; and what the gains −Σ C_k φ*(−c_k/(b C_k)) of a loss that is not quadratic are
    above t/b. Or the difference of two."""

    a: NDArray[np.float64]
    extension: float
    steps: int
    excess: float = 0.0

    def plus(self, change: DualPoint, sign: int = 1) -> DualPoint:
        """Return the sum, or with −1 the difference, as wide as the wider one."""
        columns = max(len(self.a), len(change.a)) - 1
        return DualPoint(
            resized(self.a, columns) + sign * resized(change.a, columns),
            self.extension + sign * change.extension, self.steps + sign * change.steps,
            self.excess + sign * change.excess,
        )  # fmt: skip

    def objective_at(self, b: float) -> float:
        """D = t/b − ‖a‖²/(2b²) + the excess: the dual at the scale 1/b."""
        sq_norm = kernels.square_sum(self.a) + self.extension
        return self.steps / b - 0.5 * sq_norm / b / b + self.excess  # b² might underflow


NO_COUNTS = DualPoint(np.zeros(1), 0.0, 0)
"""The dual point of counts that are all 0."""


class WeightState:
    """The running weights: ``w`` and the bias weight, with ‖a‖², Σ Δ_k² c_k² and t = Σ |c_k|.

    ``scalars`` and ``tallies`` are laid out as the kernels take them."""

    def __init__(self) -> None:
        self.w = np.zeros(0)
        self.scalars = np.zeros(5)
        self.tallies = np.zeros(3, dtype=np.int64)

    @property
    def bias(self) -> float:
        """w_bias = Σ c_k l_k ρ."""
        return float(self.scalars[kernels.BIAS])

    @property
    def sq_norm(self) -> float:
        """‖a‖²."""
        return float(self.scalars[kernels.SQ_NORM])

    @property
    def extension(self) -> float:
        """Σ Δ_k² c_k²."""
        return float(self.scalars[kernels.EXTENSION])

    @property
    def steps(self) -> int:
        """t = Σ c_k."""
        return int(self.tallies[kernels.STEPS])

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return int(self.tallies[kernels.UPDATES])

    @property
    def scale(self) -> float:
        """s₀ = t / ‖a‖², at which margins near b come to 1."""
        return self.steps / self.sq_norm if self.sq_norm > 0.0 else 1.0

    @property
    def upper_bound(self) -> float | None:
        """‖a‖ / t: an estimate, for a drifts by rounding; None if t or ‖a‖ is 0."""
        return math.sqrt(self.sq_norm) / self.steps if self.steps and self.sq_norm > 0.0 else None

    def objective_at(self, b: float) -> float:
        """D = t/b − ‖a‖²/(2b²) + the excess: the dual at the scale 1/b."""
        excess = float(self.scalars[kernels.EXCESS])
        return self.steps / b - 0.5 * self.sq_norm / b / b + excess  # b² might underflow

    def augmented(self, scale: float) -> NDArray[np.float64]:
        """scale · (w, w_bias), shape (columns + 1,)."""
        vector = np.empty(len(self.w) + 1)
        np.multiply(self.w, scale, out=vector[:-1])
        vector[-1] = self.bias * scale
        return vector

    @property
    def dual_point(self) -> DualPoint:
        """The sums that the counts make."""
        excess = float(self.scalars[kernels.EXCESS])
        return DualPoint(self.augmented(1.0), self.extension, self.steps, excess)

    def take(self, point: DualPoint) -> None:
        """Set a to the sums of a dual point."""
        self.settle(point.a[:-1].copy(), float(point.a[-1]), point.extension, point.steps)
        self.scalars[kernels.EXCESS] = point.excess

    def widen(self, columns: int) -> None:
        """Make room for more columns, whose memory costs nothing before it is written to."""
        narrow, self.w = self.w, np.zeros(columns)
        self.w[: len(narrow)] = narrow

    def settle(self, w: NDArray[np.float64], bias: float, extension: float, steps: int) -> None:
        """Set a to sums made afresh from the counts."""
        self.w = w
        self.scalars[kernels.BIAS] = bias
        self.scalars[kernels.EXTENSION] = extension
        self.scalars[kernels.SQ_NORM] = kernels.square_sum(w) + bias * bias + extension
        self.tallies[kernels.STEPS] = steps

    def settle_scanned(self, sums: ScanSums) -> None:
        """Set a to what a scan has summed from the counts."""
        sums.fold()
        self.settle(sums.fresh, sums.fresh_bias, sums.sq_extension, sums.steps)
        self.scalars[kernels.EXCESS] = sums.excess

    def rescale(self, largest: int, factor: int) -> int:
        """Multiply a by a whole factor ≥ 1, less if the largest count would pass LARGEST_SCALED;
        returns the factor, by which the caller multiplies the counts."""
        factor = max(1, min(factor, LARGEST_SCALED // max(largest, 1)))
        self.w *= factor
        self.scalars *= (factor, float(factor) ** 2, 1.0, float(factor) ** 2, 1.0)
        self.tallies[kernels.STEPS] *= factor
        return factor


def restart(running: WeightState) -> None:
    """Set a and t to 0."""
    running.w[:] = 0.0
    running.scalars[:] = 0.0
    running.tallies[kernels.STEPS] = 0


def consistent(running: WeightState) -> bool:
    """Whether ‖a‖² agrees with the parts of a within half of it: rounding alone stays far below."""
    parts = kernels.square_sum(dense(running.w)) + running.bias**2 + running.extension
    off = abs(parts - running.sq_norm)
    return math.isfinite(off) and off <= 0.5 * max(parts, running.sq_norm)


def visit(
    running: WeightState,
    rule: Rule,
    rows: Rows,
    positions: NDArray[np.int64],
    targets: Targets,
    counts: NDArray[np.int32],
    moved: NDArray[np.uint8],
) -> None:
    """Visit rows in the order of ``positions`` by the rule: the running weights and ``counts`` (of
    ``rows``) change in place, and ``moved`` becomes 1 where they do."""
    scale = rule.scale(running)  # one for all kernel calls, so that cutting them changes no bit
    state = (targets.squares, counts, running.w, running.scalars, running.tallies, moved)
    for some in passes.visits(rows, positions):
        kernels.visit(
            rows, some, targets.signs, targets.delta2, rule.rho, rule.b, rule.epsilon,
            rule.by_length, rule.ascent, rule.loss.sharp, scale, targets.t, *state,
        )  # fmt: skip
