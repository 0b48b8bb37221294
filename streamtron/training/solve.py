"""The rows in memory, solved: visits while they pay, Newton's method where they crawl.

A solve goes on in steps, each a kernel call or little more, and what it is between two of them lies
in its attributes: it can be left there, written to a checkpoint and taken up to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamtron import kernels
from streamtron.training import newton, passes
from streamtron.training.active_set import ActiveSet
from streamtron.training.dual import Dual, Rule
from streamtron.training.order import Turn
from streamtron.training.solution import Others, Solution, extension_of

LIVE_VISITS = (4, 8, 16, 32)
"""Visits of the rows that moved or have a count, to one of all rows in memory: in the first round,
the second, … and the last for all rounds after. Parts have the first number always."""

PASSING = 2.0
"""From the second round on a gap that is estimated at so many targets is measured: the loss seen in
passing is of weights that have moved on since. In the first, it is not yet of all that matters."""

UNSOLVED = 4.0
"""Where weights are known already, a gap that is estimated at so many targets is not measured."""

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
Turns = Callable[[], Turn]
Phase = Callable[[], "Phase"] | None
"""What a solver does next; None = it is done."""


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
    active, counts : the rows held, and c_k (changed in place) of each.
    dual : a (changed in place).
    rule : how rows are visited; its b is the resolution.
    turns : whose turn it is: of the next mini-epoch, each time it is asked.
    alone : whether every row with a count is held (v₀ = 0).
    best : weights known already, augmented, at scale 1.
    exact : whether Newton's method is to prove the gap by itself, not counting on visits.
    softness : a Δ² > 0 that is every row's instead of its own.
    """

    GIVEN = ("active", "dual", "turns", "delta2", "cost")

    def __init__(
        self,
        active: ActiveSet,
        counts: NDArray[np.int32],
        dual: Dual,
        rule: Rule,
        turns: Turns,
        *,
        alone: bool,
        best: Vector | None = None,
        exact: bool = False,
        softness: float | None = None,
    ) -> None:
        self.counts, self.rule, self.exact, self.softness = counts, rule, exact, softness
        self.newton: newton.Newton | None = None
        self.attach(active, dual, turns)
        self.others = None if alone else Others(active, self.delta2, counts, dual, rule.rho)
        self.found = Solution(rule.b)
        self.total = np.zeros(len(dual.w) + 1)
        self.summed = 0
        self.visits = 0
        self.visited = 0.0  # in mini-epochs over all rows held
        if softness is not None:
            self._sum_afresh()  # the carried ‖a‖ is of another Δ
        if best is not None:
            self._try(best)

    def attach(self, active: ActiveSet, dual: Dual, turns: Turns) -> None:
        """Go on with the same rows, read again, and the same a."""
        self.active, self.dual, self.turns = active, dual, turns
        own = self.softness is None
        self.delta2 = active.delta2 if own else np.full(len(active), self.softness)
        self.cost = np.zeros(len(active))
        np.divide(0.5, self.delta2, out=self.cost, where=active.signs != 0)
        if self.newton is not None:
            self.newton.attach(active.rows, active.signs, self.cost)

    def solve(self, target: float, mini_epochs: int) -> Solution:
        """Until the rows' own gap is at most ``target``, or ``mini_epochs`` are spent."""
        self.begin(target, mini_epochs)
        while self.step():
            pass
        return self.found

    def begin(self, target: float, mini_epochs: int) -> None:
        """Get ready for ``step`` to ``solve``."""
        self.target, self.mini_epochs = target, mini_epochs
        self.rule_before, self.counts_before = self.rule, self.counts.copy()
        self.objective_before = self.dual.objective_at(self.rule.b)
        self.gaps = [1.0]
        self.rounds = self.rounds_before = 0 if self.found.v is None else 1  # the live are known
        self.erred = np.zeros(len(self.active), dtype=np.uint8)
        self.live: NDArray[np.int64] | None = None
        self.turn: Turn | None = None
        self.promised = False
        self.waiting: list[NDArray[np.int64]] = []
        self.phase = self._first.__name__

    def step(self) -> bool:
        """Go on to the next place where it can be left; whether there is more to do. ``found`` has
        all of it when there is not."""
        following: Phase = getattr(self, self.phase)()
        self.phase = following.__name__ if following else ""
        return following is not None

    # --- phases, each of which says which is next ---

    def _first(self) -> Phase:
        if self._few_columns() and self.dual.steps:
            self._try(self.dual.augmented(self.dual.scale))
            return self._begin_newton()
        return self._begin_round

    def _begin_newton(self) -> Phase:
        """Newton's method from the best weights: first until P is good enough, which visits then
        make up for in D; then until D is too."""
        proven = self.exact or self._few_columns() or self.found.newton > 0
        self._minimise(0.9 * self.target, proven=proven)
        return self._go_newton

    def _minimise(self, precision: float, *, proven: bool) -> None:
        active = self.active
        assert self.found.v is not None
        self.newton = newton.Newton(
            active.rows, active.signs, self.cost, self.rule.rho, self.found.v, self._center(),
            precision, proven=proven,
        )  # fmt: skip

    def _go_newton(self) -> Phase:
        assert self.newton is not None
        if self.newton.step():
            return self._go_newton
        self._take_newton(self.newton)
        self.newton = None
        if not self.visits:
            self._measure()
        self.gaps = [1.0]
        return self._begin_round

    def _begin_round(self) -> Phase:
        """A round is one mini-epoch over all rows, and some over the live ones."""
        if self.found.gap <= self.target or self.visited + 1.0 > self.mini_epochs:
            return self._end
        self.visited_before, self.updates_before = self.visited, self.dual.updates
        schedule = LIVE_VISITS if self.others is None else LIVE_VISITS[:1]
        self.live_visits = schedule[min(self.rounds, len(schedule) - 1)]
        self.erred[:] = 0
        self.live, self.promised = None, False
        return self._begin_mini_epoch()

    def _begin_mini_epoch(self) -> Phase:
        self.turn = self.turns()
        return self._visit

    @property
    def about_to_visit(self) -> bool:
        """Whether the next step begins a mini-epoch: of the rows ``live`` (None = all), in the
        order of ``turn``."""
        return self.phase == self._visit.__name__ and not self.waiting

    def has_visited(self) -> None:
        """That mini-epoch has been made, in company."""
        self.phase = self._visited.__name__

    def _visit(self) -> Phase:
        """A kernel call's worth of a mini-epoch."""
        active, turn = self.active, self.turn
        assert turn is not None
        if not self.waiting:
            order = turn.all(len(active)) if self.live is None else turn.some(self.live)
            self.waiting = passes.visits(active.rows, order)
        self.dual.visit_some(
            self.rule, active.rows, self.waiting.pop(0), active.signs, self.delta2, active.squares,
            self.counts, self.erred,
        )  # fmt: skip
        return self._visit if self.waiting else self._visited

    def _visited(self) -> Phase:
        self.visits += 1
        self.visited += 1.0 if self.live is None else len(self.live) / len(self.active)
        self.found.mini_epochs = math.ceil(self.visited)
        self._remember()
        return self._after_mini_epoch()

    def _after_mini_epoch(self) -> Phase:
        if self.live is None:
            self.live = np.flatnonzero((self.erred != 0) | (self.counts > 0))
            self.moved = self.dual.updates > self.updates_before
            if self.summed >= self.visits // 2:
                self._forget_average()  # it is of the later half of all visits
        elif self.others is None and self._looks_solved(self._promise() * self.target):
            self.promised = True
            return self._end_round
        else:
            self.live_visits -= 1
        share = len(self.live) / len(self.active)
        if not self.live_visits or self.visited + share > self.mini_epochs:
            return self._end_round
        self.dual.forget_loss()
        return self._begin_mini_epoch()

    def _end_round(self) -> Phase:
        """Measure the gap, unless that is no use yet, and say how to go on."""
        found, target = self.found, self.target
        if not self.summed:
            self._remember()
        self.rounds += 1
        if self.rounds == self.rounds_before + 1 and self.moved and self._looks_unsolved():
            self.gaps.append(1.0 - self.dual.objective / self.dual.estimated_primal())
            return self._begin_round
        self._try_last_and_average()
        if found.gap <= target:
            return self._end
        if not self.moved and not self._last_round():
            if not self._refine(self._finer(target)):
                return self._end
        elif self._hopeless(self.gaps, self.visited - self.visited_before):
            return self._begin_newton()
        self.gaps.append(found.gap)
        return self._begin_round

    def _end(self) -> Phase:
        found = self.found
        if found.newton and self.dual.objective_at(self.rule.b) < self.objective_before:
            self.rule, found.b = self.rule_before, self.rule_before.b
            self._take(self.counts_before)  # too few mini-epochs to make Newton's counts pay
        if self.others is not None or found.v is None:
            return self._close
        if self.active.nonzeros <= SMALL:
            self._try(self._polished(found.v), newton.FLAT)
        elif self.target <= EXACT:
            self._minimise(EXACT**2, proven=True)
            return self._polish
        return self._close

    def _polish(self) -> Phase:
        """Where all that float64 has is asked for: Newton's method to where nothing moves."""
        assert self.newton is not None
        if self.newton.step():
            return self._polish
        self._try(self.newton.v, newton.FLAT)
        self.newton = None
        return self._close

    def _polished(self, best: Vector) -> Vector:
        """The same at once, where it is to be had for little, on the columns that occur."""
        rows, columns = newton.narrowed(self.active.rows)
        there = np.append(columns, len(best) - 1)
        v = np.zeros(len(best))
        v[there], _ = newton.minimise(
            rows, self.active.signs, self.cost, self.rule.rho, best[there], np.zeros(len(there)),
            EXACT**2, proven=True,
        )  # fmt: skip
        return v

    def _close(self) -> Phase:
        if math.isfinite(self.found.primal):
            self._measure()
        self.found.a = self.dual.augmented(1.0 / self.rule.b)
        if self.others is not None:
            self._overshoot()
        return None

    # --- what phases do ---

    def _few_columns(self) -> bool:
        """Whether Newton's method is cheaper than any visit: it needs a few passes a column."""
        columns = int(np.count_nonzero(self.dual.w))
        return FEW_COLUMNS * columns <= len(self.active) and self.others is None

    def _try_last_and_average(self) -> None:
        """The average costs one more look at all rows, so it is tried where the last a is not
        good enough."""
        self._try(self.dual.augmented(1.0 / self.rule.b))
        self._measure()
        if self.found.gap > self.target:
            self._try(self.total / self.summed)
            self._measure()

    def _measure(self) -> None:
        best = self.dual.objective
        if self.others is not None:
            best = self.dual.objective_at(self.rule.b)
        self.found.gap = 1.0 - best / self.found.primal if self.found.primal > 0.0 else 1.0

    def _overshoot(self) -> None:
        """A part solved exactly while others stand still is followed by their moving on: counts
        go RELAXATION times as far as they went (successive over-relaxation), if D still rises."""
        before, solved = self.counts_before, self.counts.copy()
        moved = before + np.floor(RELAXATION * (solved.astype(np.float64) - before) + 0.5)
        self._take(np.clip(moved, 0, kernels.COUNT_MAX).astype(np.int32))
        if self.dual.objective_at(self.rule.b) < self.objective_before:
            self._take(solved)

    def _take(self, counts: NDArray[np.int32]) -> None:
        self.counts[:] = counts
        self._sum_afresh()

    def _hopeless(self, gaps: list[float], spent: float) -> bool:
        """Whether visits alone will not do: too slow, or too few mini-epochs are left."""
        if self.found.newton > 1:
            return False
        if self._last_round():
            return True
        if len(gaps) < 2 or self.promised:
            return False
        missing = spent * _rounds_missing(gaps[-1], self.found.gap, self.target)
        return missing > PATIENCE * (self.mini_epochs - self.visited)

    def _looks_solved(self, target: float) -> bool:
        """Whether the loss seen in passing promises so small a gap: an estimate."""
        return self.dual.objective >= (1.0 - target) * self.dual.estimated_primal()

    def _promise(self) -> float:
        """The gap seen in passing, in targets, that ends a round."""
        return 1.0 if self.rounds == self.rounds_before else PASSING

    def _looks_unsolved(self) -> bool:
        """Whether it is no use yet to ask all rows for the true P: the first round's estimate
        knows too little of the rows that are not live, so it is rather too small."""
        if self.others is not None or self._last_round():
            return False
        return not self._looks_solved((1.0 if self.found.v is None else UNSOLVED) * self.target)

    def _remember(self) -> None:
        self.dual.add_to(self.total, 1.0 / self.rule.b)
        self.summed += 1

    def _forget_average(self) -> None:
        self.total[:] = 0.0
        self.summed = 0

    def _try(self, v: Vector, rounding: float = 0.0) -> None:
        """Keep v if its P at the best of a few scales is the least so far, but for ``rounding``."""
        active = self.active
        margins = passes.margins(active.rows, active.signs, self.rule.rho, v)
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

    def _take_newton(self, newton: newton.Newton) -> None:
        """Counts from the slacks of its weights: c_k = b slack_k / Δ_k²."""
        self.found.newton += 1
        self._try(newton.v)
        dual = 2.0 * self.cost * np.maximum(0.0, 1.0 - newton.margins)
        if self.others is None:
            self._choose_resolution(dual)
        self.counts[:] = np.minimum(np.floor(self.rule.b * dual + 0.5), kernels.COUNT_MAX)
        self._sum_afresh()

    def _choose_resolution(self, dual: Vector) -> None:
        """b for counts b α, rounded: fine enough that rounding costs under a tenth of the target
        (‖Σ δ_k y_k‖² is about Σ q_k / 12), coarse enough that no count passes LARGEST_COUNT."""
        squares = self.active.squares + (self.rule.rho**2 + self.delta2)
        error = float(kernels.dot(squares, (dual > 0.0).astype(np.float64))) / 24.0
        b = max(self.rule.b, math.sqrt(10.0 * error / (self.target * self.found.primal)))
        largest = float(dual.max(initial=0.0))
        if b * largest > LARGEST_COUNT:
            b = LARGEST_COUNT / largest
        if b != self.rule.b:
            self.rule = replace(self.rule, b=b)
            self.found.b = b
            self._forget_average()  # it was of another b

    def _sum_afresh(self) -> None:
        """a and t from the counts."""
        others, held = self.others, np.zeros(len(self.total))
        factors = self.counts.astype(np.float64) * self.active.signs
        passes.combine(self.active.rows, factors, self.rule.rho, held)
        extension = extension_of(self.delta2, self.counts)
        steps = int(self.counts.sum(dtype=np.int64))
        if others is not None:
            held += others.a
            extension += others.extension
            steps += others.steps
        self.dual.settle(held[:-1].copy(), float(held[-1]), extension, steps)

    def _last_round(self) -> bool:
        return self.visited + 2.0 > self.mini_epochs

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


PHASES = frozenset(
    phase.__name__
    for phase in (
        Solver._first, Solver._go_newton, Solver._begin_round, Solver._visit, Solver._visited,
        Solver._end_round, Solver._end, Solver._polish, Solver._close,
    )
)  # fmt: skip
"""The names of all phases that a step can begin with."""


def _rounds_missing(before: float, gap: float, target: float) -> float:
    """Rounds to the target at the rate of the last one."""
    rate = math.log(before / gap)
    return math.log(gap / target) / rate if rate > 0.0 else math.inf
