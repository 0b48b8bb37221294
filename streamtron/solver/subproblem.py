"""The rows held in memory as a problem of their own, the dual variables of all other rows fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.losses import Loss
from streamtron.core.rows import Vector
from streamtron.solver.held_loss import HeldLoss
from streamtron.solver.newton import HeldObjective
from streamtron.solver.order import Turn
from streamtron.solver.row_store import HeldRows
from streamtron.solver.softmax import HeldClasses
from streamtron.solver.weights import DualPoint, WeightState, visit

RELAXATION = 1.25
"""How many times as far as to its solution the α of a block go: above 1, as the other blocks
will follow, and below 2, as in successive over-relaxation."""

Turns = Callable[[], Turn]
"""The turn of the next mini-epoch, each time it is asked."""

Solve = Generator[Any, Any, None]
"""A solve of rows in memory. Where parts hold the rows it yields the steps that it wants made in
all of them, one after the other (see ``joint``)."""


@dataclass(slots=True)
class Solution:
    """What is known of the rows in memory after a solve."""

    v: Vector | None = None
    """the best weights found, augmented"""
    primal: float = math.inf
    """P(v) over these rows"""
    gap: float = 1.0
    """1 − D/P(v) before over-relaxation"""
    mini_epochs: int = 0
    newton: int = 0
    """calls of Newton's method"""


class Subproblem:
    """min over v of ½‖v − v₀‖² + Σ C_i φ(m_i(v)), the sum over the rows held; v₀ is what
    all other rows add to v. ``alphas`` and ``running`` are changed in place. ``newton_steps``,
    ``visited`` : steps of Newton's method so far, and nonzeros of the rows visited.

    ``whole`` : whether every row with an α is in memory. ``remainder`` : the dual point of all
    other rows; v₀ is its v.
    """

    def __init__(
        self,
        active: HeldRows,
        alphas: NDArray[np.float32],
        running: WeightState,
        loss: Loss,
        rho: float,
        turns: Turns,
        *,
        whole: bool,
    ) -> None:
        self.active, self.alphas, self.running = active, alphas, running
        self.moved = np.zeros(len(active), dtype=np.uint8)
        self.newton_steps = self.visited = 0
        self.loss, self._turns = HeldLoss(loss, active, rho), turns
        if loss.softmax:
            self.loss = HeldClasses(loss, active, rho, alphas.shape[1])
        self.targets = active.targets
        self.whole, self._lost = whole, 0.0
        self.remainder = DualPoint(np.zeros(len(running.w) + 1), 0.0)
        if not whole:
            self.remainder = running.dual_point.plus(self._sums(), -1)

    @property
    def live(self) -> NDArray[np.bool_]:
        """Which rows have moved, or have an α; of softmax, where all have one, which have moved."""
        moved: NDArray[np.bool_] = self.moved != 0
        return moved if self.loss.classes > 1 else moved | (self.alphas != 0)

    @property
    def estimated_primal(self) -> float:
        """½ ‖v‖² + the loss of rows visited since that was set to 0; of softmax D + what all rows
        added to P − D when all were visited last: no bound, for v moved."""
        if self.loss.classes > 1:
            return self.objective + self._lost
        return 0.5 * self.running.sq_norm + float(self.running.scalars[kernels.LOSS])

    @property
    def objective(self) -> float:
        """D: an estimate, for updates round."""
        return self.running.objective

    @property
    def lengths(self) -> tuple[NDArray[np.int64], int]:
        """The nonzeros of each row, its bias counted, and how many columns occur."""
        lengths = np.diff(self.active.rows.indptr) + 1
        return lengths, 1 + int(np.count_nonzero(self.running.w))

    def mini_epoch(self, live: NDArray[np.int64] | None = None) -> int:
        """Visit the rows at positions ``live``, or all, once; return how many they are."""
        turn, lost = self._turns(), self.running.scalars[kernels.LOSS]
        order = turn.all(len(self.active)) if live is None else turn.some(live)
        visit(
            self.running,
            self.loss.loss,
            self.loss.rho,
            self.active.rows,
            order,
            self.targets,
            self.alphas,
            self.moved,
        )
        if live is None:
            self._lost = float(self.running.scalars[kernels.LOSS] - lost)
            self.visited += self.active.nonzeros
        else:
            self.visited += int(np.diff(self.active.rows.indptr)[live].sum())
        return len(order)

    def primal(self, v: Vector, margins: Vector) -> float:
        """P(v); ``margins`` : z_i at v."""
        square = kernels.square_sum(v - self.remainder.v)
        return 0.5 * square + self.loss.sharp_value(margins) + self.remainder.objective

    def minimise(
        self, start: Vector, precision: float, *, proven: bool = True
    ) -> tuple[Vector, Vector]:
        """The best v and its α by Newton's method, see ``HeldObjective``."""
        loss = self.loss
        loss.take_shares(self.alphas)
        best = HeldObjective(loss, self.remainder.v).minimise(start, precision, proven=proven)
        self.newton_steps += best.steps
        return best.v, loss.alpha(best.known)

    def take_alpha(self, alpha: Vector) -> None:
        """Take these α, rounded, and v of them."""
        self.set_alphas(self.loss.rounded(alpha))

    def set_alphas(self, alphas: NDArray[np.float32]) -> None:
        """Take these α, and v of them."""
        self.alphas[:] = alphas
        self.running.take(self._sums().plus(self.remainder))

    def _sums(self) -> DualPoint:
        return self.loss.dual_point(self.alphas, len(self.running.w))
