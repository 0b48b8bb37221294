"""The rows held in memory as a problem of their own, the dual variables of all other rows fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels, losses
from streamtron.core.rows import make_rows
from streamtron.solver import passes
from streamtron.solver.newton import HeldLoss, best_scale
from streamtron.solver.order import Turn
from streamtron.solver.row_store import HeldRows
from streamtron.solver.targets import costs
from streamtron.solver.weights import Rule, WeightState, visit

LARGEST_COUNT = float(1 << 29)
"""Counts that Newton's method makes stay below this: visits then have room to 2³¹."""

Turns = Callable[[], Turn]
"""The turn of the next mini-epoch, each time it is asked."""

T = TypeVar("T")
Vector = NDArray[np.float64]


@dataclass(slots=True)
class Solution:
    """What is known of the rows in memory after a solve."""

    b: float
    """the resolution, which a solve may have refined"""
    a: Vector | None = None
    """the running weights over b, augmented"""
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


class Subproblem:
    """min over v of ½‖v − v₀‖² + Σ C_i φ(m_i(v)), the sum over the rows held; v₀ is what
    all other rows add to a, over b. ``counts`` and ``running`` are changed in place.

    ``whole`` : whether every row with a count is in memory (v₀ = 0). ``softness`` : a Δ² > 0 that
    is every row's instead of its own.
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
        softness: float | None = None,
    ) -> None:
        self.active, self.counts, self.running, self.rule = active, counts, running, rule
        self.moved = np.zeros(len(active), dtype=np.uint8)
        self.newton_steps = 0
        self._turns = turns
        self.delta2 = active.delta2 if softness is None else np.full(len(active), softness)
        self.rest = None if whole else self._sum_of_rest()
        if softness is not None:
            self.sum_afresh()  # the running ‖a‖ is of another Δ

    @cached_property
    def cost(self) -> Vector:
        """C_i = 1/(2 Δ_i²), shape (rows,); 0 where a row is left out."""
        return costs(self.active.signs, self.delta2)

    @property
    def center(self) -> Vector:
        """v₀, shape (columns + 1,)."""
        if self.rest is None:
            return np.zeros(len(self.running.w) + 1)
        return self.rest.augmented(1.0) / self.rule.b

    @property
    def weights(self) -> Vector:
        """a / b, augmented, shape (columns + 1,)."""
        return self.running.augmented(1.0 / self.rule.b)

    @property
    def objective(self) -> float:
        """D: at its best scale, or at 1/b where rows outside memory have a count."""
        return self.running.objective if self.rest is None else self.objective_at_b

    @property
    def objective_at_b(self) -> float:
        """D at the scale 1/b."""
        return self.running.objective_at(self.rule.b)

    def mini_epoch(self, live: NDArray[np.int64] | None = None) -> MiniEpoch:
        """The next mini-epoch, over the rows at positions ``live``, or over all."""
        return MiniEpoch(self, self._turns(), live)

    def primal(self, v: Vector) -> tuple[float, float]:
        """P(θ v) and θ: the best scale, or 1 where rows outside memory have a count."""
        active = self.active
        margins = passes.margins(active.rows, active.signs, self.rule.rho, v)
        theta = 1.0 if self.rest is not None else best_scale(self.rule.loss, v, margins, self.cost)
        primal = 0.5 * kernels.square_sum(theta * v - self.center)
        primal += kernels.dot(self.cost, losses.values(self.rule.loss, theta * margins))
        if self.rest is not None:
            primal += self.rest.objective_at(self.rule.b)
        return primal, theta

    def minimise(self, start: Vector, precision: float, *, proven: bool) -> tuple[Vector, Vector]:
        """The best v and its margins by Newton's method; see ``HeldLoss``."""
        active = self.active
        loss = HeldLoss(
            self.rule.loss, active.rows, active.signs, self.cost, self.rule.rho, self.center
        )
        best = loss.minimise(start, precision, proven=proven)
        self.newton_steps += best.steps
        return best.v, best.margins

    def minimise_narrowed(self, start: Vector, precision: float) -> Vector:
        """The best v where all rows with a count are held, on the columns that occur: fast where
        few do."""
        held = self.active.rows
        columns, indices = np.unique(held.indices, return_inverse=True)
        rows = make_rows(held.indptr, indices.astype(np.uint32), held.values)
        there = np.append(columns, len(start) - 1)
        v = np.zeros(len(start))
        center = np.zeros(len(there))
        loss = HeldLoss(self.rule.loss, rows, self.active.signs, self.cost, self.rule.rho, center)
        best = loss.minimise(start[there], precision, proven=True)
        v[there] = best.v
        self.newton_steps += best.steps
        return v

    def round_dual(self, alpha: Vector) -> None:
        """Counts b α_i, rounded."""
        counts = np.minimum(np.floor(self.rule.b * alpha + 0.5), kernels.COUNT_MAX)
        self.set_counts(counts.astype(np.int32))

    def set_counts(self, counts: NDArray[np.int32]) -> None:
        """Take these counts, and a of them."""
        self.counts[:] = counts
        self.sum_afresh()

    def sum_afresh(self) -> None:
        """a and t from the counts."""
        held, extension, steps = self._sum_of_held()
        if self.rest is not None:
            held += self.rest.augmented(1.0)
            extension += self.rest.extension
            steps += self.rest.steps
        self.running.settle(held[:-1].copy(), float(held[-1]), extension, steps)

    def _sum_of_held(self) -> tuple[Vector, float, int]:
        """Σ c_k l_k (x_k, ρ) (augmented), Σ Δ_k² c_k² and Σ c_k of the rows held."""
        held, counts = np.zeros(len(self.running.w) + 1), self.counts.astype(np.float64)
        factors = counts * self.active.signs
        passes.add(kernels.combine, self.active.rows, factors, self.rule.rho, held)
        extension = float(kernels.dot(self.delta2 * self.counts, counts))
        return held, extension, int(self.counts.sum(dtype=np.int64))

    def _sum_of_rest(self) -> WeightState:
        """What rows outside memory add to a: fixed while those in memory are solved."""
        running, rest = self.running, WeightState()
        held, extension, steps = self._sum_of_held()
        others = running.augmented(1.0) - held
        rest.settle(
            others[:-1], float(others[-1]), running.extension - extension, running.steps - steps
        )
        return rest

    def choose_resolution(self, alpha: Vector, error: float) -> bool:
        """Choose b for counts b α, rounded: fine enough that rounding costs D under a tenth of
        ``error`` (‖Σ δ_k y_k‖² is about Σ q_k / 12), coarse enough that no count passes
        LARGEST_COUNT. Whether it is another b than before."""
        squares = self.active.squares + (self.rule.rho**2 + self.delta2)
        rounding = float(kernels.dot(squares, (alpha > 0.0).astype(np.float64))) / 24.0
        b = finer_resolution(self.rule.b, rounding, error, float(alpha.max(initial=0.0)))
        changed = b != self.rule.b
        self.rule = replace(self.rule, b=b)
        return changed

    def refine(self, factor: int) -> bool:
        """Counts, a and b times a whole number, nothing lost; whether that could be done."""
        if self.rest is not None:
            return False
        if not self.counts.any():
            self.sum_afresh()  # a finer b would only magnify what rounding has left of a
            if self.rule.b >= float(np.max(self.active.squares + self.delta2)) + self.rule.rho**2:
                return False
        factor = self.running.rescale(int(self.counts.max(initial=0)), factor)
        self.counts *= np.int32(factor)
        self.rule = replace(self.rule, b=self.rule.b * factor)
        return factor > 1


def finer_resolution(b: float, rounding: float, error: float, largest: float) -> float:
    """At least b, where ``rounding`` over its square is a tenth of ``error``; but counts b α, of
    which α ≤ ``largest``, are at most LARGEST_COUNT.

    >>> finer_resolution(5.0, 10.0, 1.0, 0.5), finer_resolution(5.0, 10.0, 1.0, 1e9)
    (10.0, 0.536870912)
    """
    b = max(b, math.sqrt(10.0 * rounding / error))
    return LARGEST_COUNT / largest if b * largest > LARGEST_COUNT else b


@dataclass(frozen=True, slots=True)
class MiniEpoch:
    """A mini-epoch that is to be made over the rows at positions ``live``; None = all held."""

    problem: Subproblem
    turn: Turn
    live: NDArray[np.int64] | None

    @property
    def rows(self) -> int:
        """How many rows it visits."""
        return len(self.problem.active if self.live is None else self.live)

    def make(self) -> None:
        """Visit them."""
        problem, active = self.problem, self.problem.active
        order = self.turn.all(len(active)) if self.live is None else self.turn.some(self.live)
        visit(
            problem.running, problem.rule, active.rows, order, active.signs, problem.delta2,
            active.squares, problem.counts, problem.moved,
        )  # fmt: skip


def run_mini_epochs(solve: Generator[MiniEpoch, None, T]) -> T:
    """Run a solve by itself; returns what it returns."""
    result: list[T] = []

    def returned() -> Generator[MiniEpoch, None, None]:
        result.append((yield from solve))

    for epoch in returned():
        epoch.make()
    return result[0]
