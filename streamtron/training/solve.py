"""The rows in memory, solved: visits while they pay, Newton's method where they crawl."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamtron import kernels
from streamtron.training import newton
from streamtron.training.active_set import ActiveSet
from streamtron.training.dual import Dual, Rule

LIVE_VISITS = (4, 8, 16, 32)
"""Visits of the rows that moved or have a count, to one of all rows in memory: in the first round,
the second, … and the last for all rounds after. Parts have the first number always."""

PATIENCE = 0.45
"""The part of the mini-epochs left that visits may still want, at the rate of the last round,
before Newton takes over: it needs visits after it, and costs many itself."""

EXACT = 1e-12
"""A gap this small asks for the optimum to rounding."""

SMALL = 1 << 12
"""So few nonzeros are finished to rounding whatever the target: that takes some milliseconds."""

FEW_COLUMNS = 16
"""With this many rows a column, Newton's method comes before any visit."""

RELAXATION = 1.25
"""How far counts of rows solved in parts go beyond their part's solution."""

LARGEST_COUNT = float(1 << 29)
"""Counts that Newton's method makes stay below this: visits then have room to 2³¹."""

REFINEMENT = (10, 1000)
"""Counts, a and b are scaled by at least and at most this where the resolution is the limit."""

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


class Others:
    """The part of a that belongs to rows which are not in memory: fixed while those are solved."""

    def __init__(
        self,
        active: ActiveSet,
        delta2: Vector,
        counts: NDArray[np.int32],
        dual: Dual,
        rho: float,
    ) -> None:
        held = np.zeros(len(dual.w) + 1)
        kernels.combine(active.rows, counts.astype(np.float64) * active.signs, rho, held)
        self.a = dual.augmented(1.0) - held
        self.extension = float(dual.scalars[kernels.EXTENSION]) - _extension(delta2, counts)
        self.steps = dual.steps - int(counts.sum(dtype=np.int64))

    def objective_at(self, b: float) -> float:
        """Their t/b − ‖a‖²/(2b²), with the sign of the shared part turned: what makes the held
        rows' primal comparable with the whole dual."""
        square = float(kernels.square_sum(self.a)) + self.extension
        return self.steps / b - 0.5 * square / b**2


def _extension(delta2: Vector, counts: NDArray[np.int32]) -> float:
    return float(kernels.dot(delta2 * counts, counts.astype(np.float64)))


class Solver:
    """Minimises P over the rows of an active set, what other rows add to a being fixed.

    The problem: ½‖v − v₀‖² + Σ C_i max(0, 1 − m_i(v))² with v₀ the other rows' part of a, over b.

    Rounds of one mini-epoch over all rows and LIVE_VISITS over those that moved or have a count,
    which are often few: mini-epochs are counted by what they visit.
    The primal candidates are the last a and the average of a over the later mini-epochs, the one
    better where visits go fast, the other where they crawl; the dual is a itself. No clock decides
    anything.

    Parameters
    ----------
    active, delta2, counts : the rows held, Δ_k² > 0 and c_k (changed in place) of each.
    dual : a (changed in place).
    rule : how rows are visited; its b is the resolution.
    shuffle : n → the order of visits of the next mini-epoch over n rows.
    alone : whether every row with a count is held (v₀ = 0).
    best : weights known already, augmented, at scale 1.
    exact : whether Newton's method is to prove the gap by itself, not counting on visits.
    """

    def __init__(
        self,
        active: ActiveSet,
        delta2: Vector,
        counts: NDArray[np.int32],
        dual: Dual,
        rule: Rule,
        shuffle: Callable[[int], NDArray[np.int64]],
        *,
        alone: bool,
        best: Vector | None = None,
        exact: bool = False,
    ) -> None:
        self.active, self.delta2, self.counts = active, delta2, counts
        self.dual, self.rule = dual, rule
        self.shuffle, self.exact = shuffle, exact
        self.cost = np.zeros(len(active))
        np.divide(0.5, delta2, out=self.cost, where=active.signs != 0)
        self.others = None if alone else Others(active, delta2, counts, dual, rule.rho)
        self.found = Solution(rule.b)
        self.total = np.zeros(len(dual.w) + 1)
        self.summed = 0
        self.visits = 0
        self.visited = 0.0  # in mini-epochs over all rows held
        if not np.may_share_memory(delta2, active.delta2):
            self._sum_afresh()  # the carried ‖a‖ is of another Δ
        if best is not None:
            self._try(best)

    def solve(self, target: float, mini_epochs: int) -> Solution:
        """Until the rows' own gap is at most ``target``, or ``mini_epochs`` are spent."""
        found, dual = self.found, self.dual
        rule = self.rule
        start = (dual.objective_at(rule.b), self.counts.copy())
        gaps = [1.0]
        if self._few_columns() and dual.steps:
            self._try(dual.augmented(dual.scale))
            self._newton(target)
            self._measure()
        schedule = LIVE_VISITS if self.others is None else LIVE_VISITS[:1]
        rounds = 0
        while found.gap > target and self.visited + 1.0 <= mini_epochs:
            before = self.visited
            moved = self._round(schedule[min(rounds, len(schedule) - 1)], mini_epochs, target)
            rounds += 1
            if rounds == 1 and moved and self._looks_unsolved(target, mini_epochs):
                gaps.append(1.0 - dual.objective / dual.estimated_primal())
                continue
            self._try_last_and_average(target)
            if found.gap <= target:
                break
            if not moved and not self._last_round(mini_epochs):
                if not self._refine(self._finer(target)):
                    break
            elif self._hopeless(gaps, self.visited - before, target, mini_epochs):
                self._newton(target)
                gaps = [1.0]
                continue
            gaps.append(found.gap)
        if found.newton and dual.objective_at(self.rule.b) < start[0]:
            self.rule, found.b = rule, rule.b
            self._take(start[1])  # too few mini-epochs to make Newton's counts pay
        wanted = target <= EXACT or self.active.nonzeros <= SMALL
        if wanted and self.others is None and found.v is not None:
            self._polish(found.v)
        if math.isfinite(found.primal):
            self._measure()
        found.a = dual.augmented(1.0 / self.rule.b)
        if self.others is not None:
            self._overshoot(*start)
        return found

    def _polish(self, best: Vector) -> None:
        """Where all that float64 has is asked for, or is to be had for little: Newton's method to
        where nothing moves, on the columns that occur."""
        rows, columns = newton.narrowed(self.active.rows)
        there = np.append(columns, len(best) - 1)
        v = np.zeros(len(best))
        v[there], _ = newton.minimise(
            rows, self.active.signs, self.cost, self.rule.rho, best[there], np.zeros(len(there)),
            EXACT**2, proven=True,
        )  # fmt: skip
        self._try(v, newton.FLAT)

    def _few_columns(self) -> bool:
        """Whether Newton's method is cheaper than any visit: it needs a few passes a column."""
        columns = int(np.count_nonzero(self.dual.w))
        return FEW_COLUMNS * columns <= len(self.active) and self.others is None

    def _try_last_and_average(self, target: float) -> None:
        """The average costs one more look at all rows, so it is tried where the last a is not
        good enough."""
        self._try(self.dual.augmented(1.0 / self.rule.b))
        self._measure()
        if self.found.gap > target:
            self._try(self.total / self.summed)
            self._measure()

    def _measure(self) -> None:
        best = self.dual.objective
        if self.others is not None:
            best = self.dual.objective_at(self.rule.b)
        self.found.gap = 1.0 - best / self.found.primal if self.found.primal > 0.0 else 1.0

    def _overshoot(self, objective: float, before: NDArray[np.int32]) -> None:
        """A part solved exactly while others stand still is followed by their moving on: counts
        go RELAXATION times as far as they went (successive over-relaxation), if D still rises."""
        solved = self.counts.copy()
        moved = before + np.floor(RELAXATION * (solved.astype(np.float64) - before) + 0.5)
        self._take(np.clip(moved, 0, kernels.COUNT_MAX).astype(np.int32))
        if self.dual.objective_at(self.rule.b) < objective:
            self._take(solved)

    def _take(self, counts: NDArray[np.int32]) -> None:
        self.counts[:] = counts
        self._sum_afresh()

    def _hopeless(self, gaps: list[float], spent: float, target: float, mini_epochs: int) -> bool:
        """Whether visits alone will not do: too slow, or too few mini-epochs are left."""
        if self.found.newton > 1:
            return False
        if self._last_round(mini_epochs):
            return True
        if len(gaps) < 2:
            return False
        missing = spent * _rounds_missing(gaps[-1], self.found.gap, target)
        return missing > PATIENCE * (mini_epochs - self.visited)

    def _round(self, visits: int, mini_epochs: int, target: float) -> bool:
        """One mini-epoch over all rows, some over the live ones; whether anything moved."""
        erred = np.zeros(len(self.active), dtype=np.uint8)
        before = self.dual.updates
        self._mini_epoch(self.shuffle(len(self.active)), erred)
        moved = self.dual.updates > before
        live = np.flatnonzero((erred != 0) | (self.counts > 0))
        if self.summed >= self.visits // 2:
            self.total[:] = 0.0  # the average is of the later half of all visits
            self.summed = 0
        share = len(live) / len(self.active)
        for _ in range(visits):
            if self.visited + share > mini_epochs:
                break
            self.dual.forget_loss()
            self._mini_epoch(live[self.shuffle(len(live))], erred)
            if self.others is None and self._looks_solved(target):
                break
        if not self.summed:
            self._remember()
        return moved

    def _looks_solved(self, target: float) -> bool:
        """Whether the loss seen in passing promises that the round may end: an estimate."""
        return self.dual.objective >= (1.0 - target) * self.dual.estimated_primal()

    def _looks_unsolved(self, target: float, mini_epochs: int) -> bool:
        """Whether it is no use yet to ask all rows for the true P: the first round's estimate
        knows too little of the rows that are not live, so it is rather too small."""
        if self.found.v is not None or self.others is not None or self._last_round(mini_epochs):
            return False
        return not self._looks_solved(target)

    def _mini_epoch(self, positions: NDArray[np.int64], erred: NDArray[np.uint8]) -> None:
        active = self.active
        self.dual.visit(
            self.rule, active.rows, positions, active.signs, self.delta2, self.counts, erred
        )
        self.visits += 1
        self.visited += len(positions) / len(active)
        self.found.mini_epochs = math.ceil(self.visited)
        self._remember()

    def _remember(self) -> None:
        self.total += self.dual.augmented(1.0 / self.rule.b)
        self.summed += 1

    def _try(self, v: Vector, rounding: float = 0.0) -> None:
        """Keep v if its P at the best of a few scales is the least so far, but for ``rounding``."""
        active = self.active
        margins = np.empty(len(active))
        kernels.margins(active.rows, active.signs, self.rule.rho, v, margins)
        theta = 1.0
        if self.others is None:
            theta = newton.best_scale(v, margins, self.cost)
        slacks = np.maximum(0.0, 1.0 - theta * margins)
        primal = 0.5 * kernels.square_sum(theta * v - self._center())
        primal += kernels.dot(self.cost * slacks, slacks)
        if self.others is not None:
            primal += self.others.objective_at(self.rule.b)
        if primal < (1.0 + rounding) * self.found.primal:
            self.found.primal, self.found.v = primal, theta * v

    def _center(self) -> Vector:
        """v₀."""
        if self.others is None:
            return np.zeros(len(self.total))
        return self.others.a / self.rule.b

    def _newton(self, target: float) -> None:
        """Newton's method from the best weights; counts from its slacks: c_k = b slack_k / Δ_k².
        First until P is good enough, which visits then make up for in D; then until D is too."""
        active, rho = self.active, self.rule.rho
        assert self.found.v is not None
        v, margins = newton.minimise(
            active.rows,
            active.signs,
            self.cost,
            rho,
            self.found.v,
            self._center(),
            0.9 * target,
            proven=self.exact or self._few_columns() or self.found.newton > 0,
        )
        self.found.newton += 1
        self._try(v)
        dual = 2.0 * self.cost * np.maximum(0.0, 1.0 - margins)
        if self.others is None:
            self._choose_resolution(dual, target)
        self.counts[:] = np.minimum(np.floor(self.rule.b * dual + 0.5), kernels.COUNT_MAX)
        self._sum_afresh()

    def _choose_resolution(self, dual: Vector, target: float) -> None:
        """b for counts b α, rounded: fine enough that rounding costs under a tenth of the target
        (‖Σ δ_k y_k‖² is about Σ q_k / 12), coarse enough that no count passes LARGEST_COUNT."""
        squares = np.empty(len(dual))
        kernels.squared_norms(self.active.rows, squares)
        squares += self.rule.rho**2 + self.delta2
        error = float(kernels.dot(squares, (dual > 0.0).astype(np.float64))) / 24.0
        b = max(self.rule.b, math.sqrt(10.0 * error / (target * self.found.primal)))
        largest = float(dual.max(initial=0.0))
        if b * largest > LARGEST_COUNT:
            b = LARGEST_COUNT / largest
        if b != self.rule.b:
            self.rule = replace(self.rule, b=b)
            self.found.b = b
            self.total[:] = 0.0  # the average was of another b
            self.summed = 0

    def _sum_afresh(self) -> None:
        """a and t from the counts."""
        others, held = self.others, np.zeros(len(self.total))
        factors = self.counts.astype(np.float64) * self.active.signs
        kernels.combine(self.active.rows, factors, self.rule.rho, held)
        extension = _extension(self.delta2, self.counts)
        steps = int(self.counts.sum(dtype=np.int64))
        if others is not None:
            held += others.a
            extension += others.extension
            steps += others.steps
        self.dual.settle(held[:-1].copy(), float(held[-1]), extension, steps)

    def _last_round(self, mini_epochs: int) -> bool:
        return self.visited + 2.0 > mini_epochs

    def _finer(self, target: float) -> int:
        """How much finer the resolution must be for the target: the gap falls with 1/b²."""
        wanted = math.sqrt(max(self.found.gap, 0.0) / target)
        return round(min(max(wanted, REFINEMENT[0]), REFINEMENT[1]))

    def _refine(self, factor: int) -> bool:
        """A finer resolution: counts, a and b times a whole number, nothing lost. Only where the
        counts of all rows are at hand."""
        if self.others is not None:
            return False
        factor = self.dual.rescale(int(self.counts.max(initial=0)), factor)
        self.counts *= np.int32(factor)
        self.rule = replace(self.rule, b=self.rule.b * factor)
        self.found.b = self.rule.b
        return factor > 1


def _rounds_missing(before: float, gap: float, target: float) -> float:
    """Rounds to the target at the rate of the last one."""
    rate = math.log(before / gap)
    return math.log(gap / target) / rate if rate > 0.0 else math.inf
