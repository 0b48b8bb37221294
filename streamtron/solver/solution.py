"""What is known of rows in memory while they are solved, and of those beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.solver import passes
from streamtron.solver.weights import WeightState
from streamtron.solver.working_set import ActiveSet

Vector = NDArray[np.float64]


@dataclass(slots=True)
class Solution:
    """What is known of the rows in memory after solving.

    ``v``: the best weights found, augmented, at scale 1; ``primal``: P(v) over these rows; ``gap``:
    1 − D / P(v), before counts overshoot; ``a``: a / b as solved, augmented; ``b`` as
    refined; ``mini_epochs`` spent; ``newton`` times called.
    """

    b: float
    a: Vector | None = None
    v: Vector | None = None
    primal: float = math.inf
    gap: float = 1.0
    mini_epochs: int = 0
    newton: int = 0


class Average:
    """The mean of augmented vectors that may grow wider: where rows are solved in parts, the best
    weights are the average of what the parts left."""

    def __init__(self) -> None:
        self.total = np.zeros(0)
        self.number = 0

    def add(self, v: Vector) -> Vector:
        """Take one more; returns the mean so far."""
        missing = np.zeros(len(v) - len(self.total))
        self.total = np.concatenate((self.total[:-1], missing, self.total[-1:])) + v
        self.number += 1
        return self.total / self.number


class RestOfDual:
    """The part of a that belongs to rows which are not in memory: fixed while those are solved."""

    def __init__(
        self,
        active: ActiveSet,
        delta2: Vector,
        counts: NDArray[np.int32],
        dual: WeightState,
        rho: float,
    ) -> None:
        held = np.zeros(len(dual.w) + 1)
        passes.combine(active.rows, counts.astype(np.float64) * active.signs, rho, held)
        self.a = dual.augmented(1.0) - held
        self.extension = float(dual.scalars[kernels.EXTENSION]) - extension_of(delta2, counts)
        self.steps = dual.steps - int(counts.sum(dtype=np.int64))

    def objective_at(self, b: float) -> float:
        """Their t/b − ‖a‖²/(2b²), with the sign of the shared part turned: what makes the held
        rows' primal comparable with the whole dual."""
        square = float(kernels.square_sum(self.a)) + self.extension
        return self.steps / b - 0.5 * square / b**2


def extension_of(delta2: Vector, counts: NDArray[np.int32]) -> float:
    """Σ Δ_k² c_k²."""
    return float(kernels.dot(delta2 * counts, counts.astype(np.float64)))
