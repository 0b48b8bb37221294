"""a = Σ c_k y_k as training carries it: the part all rows share, its norm, and t."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows
from streamtron.solver import passes

LARGEST_SCALED = 1 << 28
"""Counts are not scaled beyond this, so that training has room to 2³¹."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a visited row moves a: threshold b t^(1−ε) or b ‖a‖^(1−ε), or unlearning at b."""

    b: float
    epsilon: float
    by_length: bool
    ascent: bool
    rho: float


class WeightState:
    """a without the extension (``w`` and the bias weight), ‖a‖², Σ Δ_k² c_k², t; counts are kept
    by whoever holds the rows."""

    def __init__(self) -> None:
        self.w = np.zeros(0)
        self.scalars = np.zeros(4)
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
    def steps(self) -> int:
        """t = Σ c_k."""
        return int(self.tallies[kernels.STEPS])

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return int(self.tallies[kernels.UPDATES])

    @property
    def clipped(self) -> int:
        """Steps that were cut because a count would have passed 2³¹ − 1."""
        return int(self.tallies[kernels.CLIPPED])

    @property
    def scale(self) -> float:
        """s₀ = t / ‖a‖², at which margins near b come to 1."""
        return self.steps / self.sq_norm if self.sq_norm > 0.0 else 1.0

    @property
    def upper_bound(self) -> float | None:
        """‖a‖ / t: an estimate, since a drifts by rounding; None if that has left nothing of it."""
        return math.sqrt(self.sq_norm) / self.steps if self.steps and self.sq_norm > 0.0 else None

    @property
    def objective(self) -> float:
        """D = t² / (2 ‖a‖²) ≤ P*: the dual at the best scale (an estimate, as above)."""
        return 0.5 * self.steps * self.scale

    @property
    def sound(self) -> bool:
        """Whether ‖a‖² is about that of a's parts: rounding alone never parts them so far."""
        parts = kernels.square_sum(self.w) + self.bias * self.bias
        parts += float(self.scalars[kernels.EXTENSION])
        off = abs(parts - self.sq_norm)
        return math.isfinite(off) and off <= 0.5 * max(parts, self.sq_norm)

    def objective_at(self, b: float) -> float:
        """t/b − ‖a‖²/(2b²): the dual at the scale 1/b."""
        return self.steps / b - 0.5 * self.sq_norm / b**2

    def estimated_primal(self) -> float:
        """½ s₀² ‖w‖² + the loss of rows visited since ``forget_loss``: no bound, as a moved."""
        weights = float(self.scalars[kernels.SQ_NORM] - self.scalars[kernels.EXTENSION])
        return 0.5 * self.scale**2 * weights + float(self.scalars[kernels.LOSS])

    def forget_loss(self) -> None:
        """Begin a new estimate."""
        self.scalars[kernels.LOSS] = 0.0

    def augmented(self, scale: float) -> NDArray[np.float64]:
        """scale · (w, w_bias), shape (columns + 1,)."""
        found = np.empty(len(self.w) + 1)
        np.multiply(self.w, scale, out=found[:-1])
        found[-1] = self.bias * scale
        return found

    def add_to(self, total: NDArray[np.float64], scale: float) -> None:
        """The same is added to ``total`` in place."""
        kernels.add_scaled(scale, self.w, total[:-1])
        total[-1] += scale * self.bias

    def widen(self, columns: int) -> None:
        """Make room for columns met while reading."""
        self.w = np.concatenate((self.w, np.zeros(columns - len(self.w))))

    def restart(self) -> None:
        """a = 0, t = 0."""
        self.w[:] = 0.0
        self.scalars[:] = 0.0
        self.tallies[kernels.STEPS] = 0

    def settle(self, w: NDArray[np.float64], bias: float, extension: float, steps: int) -> None:
        """Take a as summed afresh."""
        self.w = w
        self.scalars[kernels.BIAS] = bias
        self.scalars[kernels.EXTENSION] = extension
        self.scalars[kernels.SQ_NORM] = kernels.square_sum(w) + bias * bias + extension
        self.tallies[kernels.STEPS] = steps

    def rescale(self, largest: int, factor: int) -> int:
        """Multiply a by a whole factor ≥ 1, so far as the largest count stays small enough;
        returns the factor taken, by which the caller multiplies the counts."""
        factor = max(1, min(factor, LARGEST_SCALED // max(largest, 1)))
        self.w *= factor
        self.scalars *= (factor, float(factor) ** 2, 1.0, float(factor) ** 2)
        self.tallies[kernels.STEPS] *= factor
        return factor

    def visit(
        self,
        rule: Rule,
        rows: Rows,
        positions: NDArray[np.int64],
        signs: NDArray[np.int8],
        delta2: NDArray[np.float64],
        squares: NDArray[np.float64],
        counts: NDArray[np.int32],
        erred: NDArray[np.uint8],
    ) -> None:
        """Visit rows in the order of ``positions`` by the rule; a and ``counts`` (of ``rows``)
        change in place, ``erred`` becomes 1 where a row moved a. ``squares`` are ‖x_k‖²."""
        scale = self.scale  # one for all visits, so that cutting them changes no bit
        state = (squares, counts, self.w, self.scalars, self.tallies, erred)
        for some in passes.visits(rows, positions):
            if rule.ascent:
                kernels.visit_unlearn(rows, some, signs, delta2, rule.rho, rule.b, scale, *state)
            else:
                kernels.visit(
                    rows, some, signs, delta2, rule.rho, rule.b, rule.epsilon, rule.by_length,
                    scale, *state,
                )  # fmt: skip
