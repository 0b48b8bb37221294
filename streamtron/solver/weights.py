"""The running weights a = Σ c_k y_k, and how a visited row changes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class Rule:
    """How a visited row changes a: by a step of dual coordinate ascent at the resolution b."""

    b: float
    rho: float
    loss: Loss = SQUARED_HINGE

    def scale(self, running: WeightState) -> float:
        """Return the scale of the running weights: t/‖a‖², or 1/b if the loss is not quadratic."""
        return running.scale if self.loss.quadratic else 1.0 / (self.b or 1.0)


class DualPoint(NamedTuple):
    """The sums over rows of a dual point: a = Σ c_k l_k (x_k, ρ), augmented; Σ Δ_k² c_k²;
    t = Σ |c_k|; and what the gains −Σ C_k φ*(−c_k/(b C_k)) of a loss that is not quadratic are
    above t/b. Or the difference of two."""

    a: NDArray[np.float64]
    extension: float
    steps: int
    excess: float = 0.0

    def plus(self, change: DualPoint, sign: int = 1) -> DualPoint:
        """Return the sum, or with −1 the difference."""
        return DualPoint(
            self.a + sign * change.a,
            self.extension + sign * change.extension,
            self.steps + sign * change.steps,
            self.excess + sign * change.excess,
        )

    def objective_at(self, b: float) -> float:
        """D = t/b − ‖a‖²/(2b²) + the excess: the dual at the scale 1/b."""
        sq_norm = kernels.square_sum(self.a) + self.extension
        return self.steps / b - 0.5 * sq_norm / b / b + self.excess  # b² might underflow


class WeightState:
    """The running weights: ``w`` and the bias weight, with ‖a‖², Σ Δ_k² c_k² and t = Σ |c_k|.

    ``scalars`` and ``tallies`` are laid out as the kernels take them."""

    def __init__(self, columns: int) -> None:
        self.w = np.zeros(columns)
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
        """‖a‖ / t: an estimate, for updates round; None if t or ‖a‖ is 0."""
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
    parts = kernels.square_sum(running.w) + running.bias**2 + running.extension
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
    how = rule.rho, rule.b, rule.loss.sharp, scale, targets.t
    visit_by(kernels.visit, running, rows, positions, targets, how, counts, moved)


def visit_by(
    kernel: kernels.Kernel,
    running: WeightState,
    rows: Rows,
    positions: NDArray[np.int64],
    targets: Targets,
    how: Sequence[Any],
    counts: NDArray[np.int32],
    moved: NDArray[np.uint8],
) -> None:
    """Visit rows by a kernel, see ``visit``; ``how`` : its arguments between those of the rows and
    those that change."""
    state = targets.squares, counts, running.w, running.scalars, running.tallies, moved
    for some in passes.visits(rows, positions):
        kernel(rows, some, targets.signs, targets.delta2, *how, *state)
