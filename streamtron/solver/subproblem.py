"""The rows held in memory as a problem of their own, the dual variables of all other rows fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels, losses
from streamtron.solver.held_loss import HeldLoss
from streamtron.solver.newton import HeldObjective, best_scale
from streamtron.solver.order import Turn
from streamtron.solver.row_store import HeldRows
from streamtron.solver.stages import finer_resolution
from streamtron.solver.targets import round_counts
from streamtron.solver.weights import DualPoint, Rule, WeightState, visit

RELAXATION = 1.25
"""How many times as far as to its solution the counts of a block go: above 1, as the other blocks
will follow, and below 2, as in successive over-relaxation."""

Turns = Callable[[], Turn]
"""The turn of the next mini-epoch, each time it is asked."""

T = TypeVar("T")

Solve = Generator[Any, Any, None]
"""A solve of rows in memory. Where parts hold the rows it yields the steps that it wants made in
all of them, one after the other (see ``joint``)."""

Vector = NDArray[np.float64]


@dataclass(slots=True)
class Solution:
    """What is known of the rows in memory after a solve."""

    b: float
    """the resolution, which a solve may have refined"""
    v: Vector | None = None
    """the best weights found, augmented, at scale 1"""
    primal: float = math.inf
    """P(v) over these rows"""
    gap: float = 1.0
    """1 − D/P(v) before over-relaxation"""
    mini_epochs: int = 0
    newton: int = 0
    """calls of Newton's method"""
    newton_steps: int = 0
    visited: int = 0
    """nonzeros of the rows visited"""


class Subproblem:
    """min over v of ½‖v − v₀‖² + Σ C_i φ(m_i(v)), the sum over the rows held; v₀ is what
    all other rows add to a, over b. ``counts`` and ``running`` are changed in place.

    ``whole`` : whether every row with a count is in memory (v₀ = 0).
    """

    def __init__(
        self,
        active: HeldRows,
        counts: NDArray[np.int32],
        running: WeightState,
        rule: Rule,
        turns: Turns,
        *,
        whole: bool,
    ) -> None:
        self.active, self.counts, self.running, self.rule = active, counts, running, rule
        self.moved = np.zeros(len(active), dtype=np.uint8)
        self.newton_steps = self.visited = 0
        self.loss, self._turns = HeldLoss(rule.loss, active, rule.rho), turns
        self.targets = active.targets
        self.remainder: DualPoint | None = None  # of the rows outside memory
        if not whole:
            self.remainder = running.dual_point.plus(self._sums(), -1)

    @property
    def center(self) -> Vector:
        """v₀, shape (columns + 1,)."""
        if self.remainder is None:
            return np.zeros(len(self.running.w) + 1)
        return self.remainder.a / self.rule.b

    @property
    def weights(self) -> Vector:
        """a / b, augmented, shape (columns + 1,)."""
        return self.running.augmented(1.0 / self.rule.b)

    @property
    def objective(self) -> float:
        """D: at its best scale, t² / (2 ‖a‖²), or at 1/b where rows outside memory have a count, or
        the loss is not quadratic. An estimate: updates round."""
        at_best = self.remainder is None and self.loss.loss.quadratic
        return 0.5 * self.running.steps * self.running.scale if at_best else self.objective_at_b

    @property
    def objective_at_b(self) -> float:
        """D at the scale 1/b."""
        return self.running.objective_at(self.rule.b)

    def mini_epoch(self, live: NDArray[np.int64] | None = None) -> int:
        """Visit the rows at positions ``live``, or all, once; return how many they are."""
        turn = self._turns()
        order = turn.all(len(self.active)) if live is None else turn.some(live)
        visit(
            self.running,
            self.rule,
            self.active.rows,
            order,
            self.targets,
            self.counts,
            self.moved,
        )
        if live is None:
            self.visited += self.active.nonzeros
        else:
            self.visited += int(np.diff(self.active.rows.indptr)[live].sum())
        return len(order)

    def primal(self, v: Vector, margins: Vector) -> tuple[float, float]:
        """P(θ v) and θ: the best scale, or 1 where rows outside memory have a count. ``margins`` :
        m_i at v."""
        loss = replace(self.loss.loss, zone=0.0)
        at_best = self.remainder is None and self.loss.loss.quadratic
        theta = best_scale(self.loss, v, margins) if at_best else 1.0
        off = theta * v if self.remainder is None else theta * v - self.center
        primal = 0.5 * kernels.square_sum(off)
        primal += float(kernels.dot(self.loss.cost, losses.values(loss, theta * margins)))
        if self.remainder is not None:
            primal += self.remainder.objective_at(self.rule.b)
        return primal, theta

    def minimise(
        self, start: Vector, precision: float, *, proven: bool = True
    ) -> tuple[Vector, Vector]:
        """The best v and its α by Newton's method, see ``HeldObjective``."""
        loss = self.loss
        loss.take_shares(self.counts, self.rule.b)
        best = HeldObjective(loss, self.center).minimise(start, precision, proven=proven)
        self.newton_steps += best.steps
        return best.v, loss.alpha(best.known)

    def round_dual(self, alpha: Vector) -> None:
        """Counts b α_i, rounded."""
        balanced = self.loss.loss.numbers
        self.set_counts(round_counts(alpha, self.rule.b, self.loss.most, balanced=balanced))

    def set_counts(self, counts: NDArray[np.int32]) -> None:
        """Take these counts, and a of them."""
        self.counts[:] = counts
        self.sum_afresh()

    def sum_afresh(self) -> None:
        """a and t from the counts."""
        sums = self._sums()
        self.running.take(sums if self.remainder is None else sums.plus(self.remainder))

    def _sums(self) -> DualPoint:
        return self.loss.dual_point(self.counts, len(self.running.w), self.rule.b)

    def choose_resolution(self, alpha: Vector, error: float) -> bool:
        """Choose b for counts b α, rounded: see ``finer_resolution``. Whether it is another b than
        before."""
        largest, quadratic = float(np.abs(alpha).max(initial=0.0)), self.loss.loss.quadratic
        lengths = self.loss.sq_lengths(alpha) if quadratic else 0.0
        b = finer_resolution(self.rule.b, lengths, error, largest, quadratic=quadratic)
        changed = b != self.rule.b
        self.rule = replace(self.rule, b=b)
        return changed

    def refine(self, factor: int) -> bool:
        """Counts, a and b times a whole number, nothing lost; whether that could be done."""
        if self.remainder is not None or not self.loss.loss.quadratic:
            return False
        if not self.counts.any():
            self.sum_afresh()  # a finer b would only magnify what rounding has left of a
            squares = self.targets.squares + self.targets.delta2
            if self.rule.b >= float(np.max(squares)) + self.rule.rho**2:
                return False
        factor = self.running.rescale(int(self.counts.max(initial=0)), factor)
        self.counts *= np.int32(factor)
        self.rule = replace(self.rule, b=self.rule.b * factor)
        return factor > 1
