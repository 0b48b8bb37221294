"""The running weights v = Σ α_k l_k (x_k, ρ), and how a visited row changes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.losses import Loss
from streamtron.core.rows import Rows, Vector
from streamtron.core.scan_sums import ScanSums
from streamtron.solver import passes
from streamtron.solver.targets import Targets


class DualPoint(NamedTuple):
    """The sums over rows of a dual point: v = Σ α_k l_k (x_k, ρ), augmented, and its ``gains``
    −Σ C_k φ*(−α_k/C_k). Or the difference of two."""

    v: Vector
    gains: float

    def plus(self, change: DualPoint, sign: int = 1) -> DualPoint:
        """Return the sum, or with −1 the difference."""
        return DualPoint(self.v + sign * change.v, self.gains + sign * change.gains)

    @property
    def objective(self) -> float:
        """D = the gains − ½ ‖v‖²."""
        return self.gains - 0.5 * kernels.square_sum(self.v)


class WeightState:
    """The running weights: ``w`` and the bias weight, with ‖v‖² and the gains of the dual point.

    ``scalars`` is laid out as the kernels take it. ``updates`` : of dual variables, so far."""

    def __init__(self, columns: int) -> None:
        self.w = np.zeros(columns)
        self.scalars = np.zeros(4)
        self.updates = 0

    @property
    def bias(self) -> float:
        """The bias weight, Σ α_k l_k ρ."""
        return float(self.scalars[kernels.BIAS])

    @property
    def sq_norm(self) -> float:
        """‖v‖²."""
        return float(self.scalars[kernels.SQ_NORM])

    @property
    def gains(self) -> float:
        """−Σ C_k φ*(−α_k/C_k)."""
        return float(self.scalars[kernels.GAINS])

    @property
    def objective(self) -> float:
        """D: an estimate, for updates round."""
        return self.gains - 0.5 * self.sq_norm

    @property
    def augmented(self) -> Vector:
        """(w, w_bias), shape (columns + 1,)."""
        return np.append(self.w, self.bias)

    @property
    def dual_point(self) -> DualPoint:
        """The sums that the dual variables make."""
        return DualPoint(self.augmented, self.gains)

    def restart(self) -> None:
        """Set v to 0."""
        self.w[:] = 0.0
        self.scalars[:] = 0.0

    def take(self, point: DualPoint) -> None:
        """Set v to the sums of a dual point."""
        self.settle(point.v[:-1].copy(), float(point.v[-1]), point.gains)

    def settle(self, w: Vector, bias: float, gains: float) -> None:
        """Set v to sums made afresh from the dual variables."""
        self.w = w
        self.scalars[kernels.BIAS] = bias
        self.scalars[kernels.SQ_NORM] = kernels.square_sum(w) + bias * bias
        self.scalars[kernels.GAINS] = gains

    def settle_scanned(self, sums: ScanSums) -> None:
        """Set v to what a scan has summed from the dual variables."""
        sums.fold()
        self.settle(sums.fresh, sums.dual_bias, sums.gains)


def visit(
    running: WeightState,
    loss: Loss,
    rho: float,
    rows: Rows,
    positions: NDArray[np.int64],
    targets: Targets,
    alphas: NDArray[np.float32],
    moved: NDArray[np.uint8],
) -> None:
    """Visit rows in the order of ``positions`` by dual coordinate ascent: the running weights and
    ``alphas`` (of ``rows``) change in place, and ``moved`` becomes 1 where they do."""
    if loss.softmax:
        number = alphas.shape[1]
        weights, room = running.augmented.reshape(-1, number), np.empty((3, number))
        of_rows = targets.t, targets.costs, targets.squares, rho, alphas
        for some in passes.visits(rows, positions, number):
            running.updates += kernels.visit_softmax(
                rows, some, *of_rows, weights, room, running.scalars, moved
            )
        v = weights.ravel()
        running.w[:], running.scalars[kernels.BIAS] = v[:-1], v[-1]
        return
    given = targets.signs, targets.costs, rho, loss.sharp, targets.t, targets.squares
    for some in passes.visits(rows, positions):
        state = alphas, running.w, running.scalars, moved
        running.updates += kernels.visit(rows, some, *given, *state)
