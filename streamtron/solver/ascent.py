"""The rows in memory, solved: dual coordinate ascent while it pays, then Newton's method.

What visits and Newton's method would cost is counted before either is begun, in mini-epochs: visits
of every nonzero held. Counts alone enter, and what a nonzero of each kernel costs beside that of a
visit: no clock, so that a model is the same on every machine. ``benchmarks/certified.py`` shows
what the constants do to the time of a fit, with ``--active-set`` also those of blocks.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Vector
from streamtron.solver import newton
from streamtron.solver.hessian import head_size, multiplications, solved_directly
from streamtron.solver.subproblem import RELAXATION, Solution, Subproblem

PASS, SUM, MULTIPLICATION = 0.25, 1.0, 0.25
"""What beside a visit's nonzero costs one of a pass over all rows in their order, of a sum over the
rows inside the margin, and a multiplication of the head's matrices
(``benchmarks/second_order.py`` prints all three: from set to set they differ by a factor of 2)."""

STEPS, DIRECT_STEPS = 24, 4
"""Steps that are counted on, each with a pass over all rows and a sum over those inside the margin:
of a descent, or as many as all products of Newton's method cost; with H of all columns, which is
exact, each with three sums (``benchmarks/certified.py``)."""

AFTER = 8.0
"""Mini-epochs that visits make after Newton's method, which is exact in P first, until D is too: 5
to 19 on RCV1 and text at C = 50. A descent lowers P − D as far by itself."""


OF_CLASSES = 400.0
"""The mini-epochs that Newton's method costs of softmax, which no head preconditions."""


def of_visits(gap_before: float, gap: float, target: float, spent: float) -> float:
    """The mini-epochs that visits would still cost, at the rate of the last round, of ``spent``
    mini-epochs, which took the gap from ``gap_before``.

    >>> round(of_visits(0.4, 0.2, 0.05, 5.0), 6)
    10.0
    """
    if not target < gap < gap_before:
        return math.inf if gap > target else 0.0
    return spent * math.log(gap / target) / math.log(gap_before / gap)


def of_newton(lengths: NDArray[np.int64], occurring: int, inside: NDArray[np.bool_]) -> float:
    """The mini-epochs that Newton's method would cost.

    ``lengths`` : nonzeros of each row held, its bias counted. ``occurring`` : columns. ``inside`` :
    the rows inside the margin; of softmax, of shape (rows, K), all.

    >>> lengths, inside = np.full(10_000, 70), np.arange(10_000) < 500
    >>> [round(of_newton(lengths, columns, inside)) for columns in (30, 30_000)]
    [2, 16]
    """
    if inside.ndim > 1:
        return OF_CLASSES
    within = lengths[inside]
    nonzeros, size = float(lengths.sum()), head_size(within, occurring)
    share = float(within.sum()) / nonzeros
    head = MULTIPLICATION * multiplications(within, size) / nonzeros
    if size == occurring:
        return head + DIRECT_STEPS * (PASS + 3.0 * SUM * share)
    descent = len(within) >= newton.INSIDE * len(lengths)
    return head + STEPS * (PASS + SUM * share) + (0.0 if descent else AFTER)


FASTER = 2.0
"""Rounds after the first two over all rows may go this many times as fast."""

LIVE_VISITS = (4, 8, 16, 32)
"""Mini-epochs over the live rows (moved, or with an α) to one over all: in round 1, 2, 3, and
later; of a block always 4. More of them are cheap, fewer find violators sooner."""

PASSING = 2.0
"""From the second round on a gap is measured once it is estimated at this many targets: the loss
seen in passing is of weights that have moved on since."""

UNSOLVED = 4.0
"""Where weights are known already, a gap estimated at this many targets is not measured."""

EXACT = 1e-12
"""A target this small asks for the optimum to rounding."""

SMALL = 1 << 12
"""So few nonzeros are finished to rounding whatever the target: that takes some milliseconds."""


def solve(
    problem: Subproblem,
    target: float,
    mini_epochs: int,
    *,
    best: Vector | None = None,
    exact: bool = False,
    newton_only: bool = False,
) -> Solution:
    """Minimise P over the rows held until their own gap is at most ``target``, or ``mini_epochs``
    are spent.

    Mini-epochs are counted by what they visit. The primal candidates are the last v and the average
    of v over the later mini-epochs, the one better where visits go fast, the other where they
    crawl; the dual is v itself. ``best`` : weights known already, augmented.
    ``exact`` : Newton's method is to prove the gap by itself, not counting on visits.
    ``newton_only`` : so, and it comes before any visit.
    """
    alphas, objective = problem.alphas.copy(), problem.objective
    exact |= newton_only
    if problem.whole and not (alphas.any() or newton_only):
        problem.mini_epoch()
    ascent = _Ascent(problem, target, mini_epochs, exact=exact, known=best is not None)
    ascent.newton_first = newton_only or (ascent.direct and bool(problem.alphas.any()))
    if best is not None:
        ascent.consider(best)
    ascent.run()
    if ascent.solution.newton and problem.objective < objective:
        problem.set_alphas(alphas)  # too few mini-epochs to make Newton's α pay
    ascent.finish()
    if not problem.whole:
        _over_relax(problem, alphas, objective)
    return ascent.solution


PAYS = 0.3
"""Another pass over a buffer pays as long as the dual that a visited nonzero gains is at least this
part of what the first visits of fresh rows gain, for a nonzero visited or read."""


def visit_while_it_pays(problem: Subproblem, fresh: float) -> tuple[int, bool]:
    """Visit the rows of a buffer again as long as that pays, and costs less than Newton's method
    would; return the passes made, and whether they have ended for the latter reason. ``fresh`` :
    the dual that first visits have gained, for a nonzero visited or read; 0 = these do."""
    size, number, most = (*problem.lengths, problem.alphas != 0), 0, 1.0
    while number < most:
        number += 1
        objective = problem.objective
        problem.mini_epoch()
        gain = (problem.objective - objective) / max(problem.active.nonzeros, 1)
        fresh = fresh or 0.5 * gain
        if gain <= PAYS * fresh:
            return number, False
        if number == 1:  # most buffers are done with one pass, and need no count of what more costs
            most = math.floor(of_newton(*size))
    return number, True


class _Ascent:
    """Rounds of visits with Newton's method between them, and what they have found so far.
    ``known`` : whether weights are known already, and so the live rows."""

    def __init__(
        self, problem: Subproblem, target: float, mini_epochs: int, *, exact: bool, known: bool
    ) -> None:
        self.problem, self.target = problem, target
        self.mini_epochs, self.exact = mini_epochs, exact
        self.solution = Solution()
        self.gaps = [1.0]  # at the end of each round since Newton's method
        self.rounds = int(known)
        single = problem.loss.classes == 1
        self.direct = problem.whole and single and solved_directly(*problem.lengths)
        self.newton_first = False
        self.visits = 0
        self.visited = 0.0  # in mini-epochs over all rows held
        self.moved = self.promised = self.refined = False
        self.inside = len(problem.active)  # rows with an α after the last round
        self.narrows = True  # whether it has left fewer, or such as are left alone
        self.seen = EXACT  # the gap that the last pass has seen, in this round
        self.total = np.zeros(len(problem.running.w) + 1)  # of v after later mini-epochs
        self.summed = 0

    def run(self) -> None:
        """Until the gap is met, nothing moves any more, or mini-epochs are spent."""
        solution, running = self.solution, self.problem.running
        if self.newton_first:
            self.consider(running.augmented)
            self.consider(np.zeros(len(self.total)))
            self._step_by_newton()
        first = True
        while solution.gap > self.target and self.visited + 1.0 <= self.mini_epochs:
            spent = self._round(promise=1.0 if first else PASSING)
            guess = self.moved and not self.promised and self._looks_unsolved()
            if guess and (first or self.problem.loss.classes > 1):
                gap = self._gap(self.problem.estimated_primal)
            else:
                self._consider_last_and_average()
                gap = solution.gap
                if gap <= self.target:
                    return
            stuck = not self.moved and not self._last_round()
            if stuck and solution.newton:
                return
            if stuck or self._hopeless(gap, spent):
                self._step_by_newton()
            else:
                self.gaps.append(gap)
            first = False

    def finish(self) -> None:
        """Polish the weights where that is wanted, or to be had for little; take stock."""
        problem, solution = self.problem, self.solution
        if problem.whole and solution.v is not None and not self.refined:
            if problem.active.nonzeros <= SMALL:
                v, alpha = problem.minimise(solution.v, EXACT**2)
                self.consider(v, newton.FLAT)
                if problem.loss.loss.zone:  # whose α the weights do not tell
                    problem.take_alpha(alpha)
            elif self.target <= EXACT and problem.loss.loss.quadratic:
                v, _ = problem.minimise(solution.v, EXACT**2)
                self.consider(v, newton.FLAT)
        if math.isfinite(solution.primal):
            self._measure()
        solution.mini_epochs = math.ceil(self.visited)

    def consider(self, v: Vector, rounding: float = 0.0) -> None:
        """Keep v if its P is the least so far, up to ``rounding``."""
        primal = self.problem.primal(v, self.problem.loss.margins_of(v))
        if primal < (1.0 + rounding) * self.solution.primal:
            self.solution.primal, self.solution.v = primal, v

    def _round(self, promise: float) -> float:
        """One mini-epoch over all rows, and some over the live ones, until these look solved: their
        estimated gap is ``promise`` targets. Returns what they visited, in mini-epochs."""
        problem, running = self.problem, self.problem.running
        visited, updates = self.visited, running.updates
        schedule = LIVE_VISITS if problem.whole else LIVE_VISITS[:1]
        left = schedule[min(self.rounds, len(schedule) - 1)]
        self.rounds += 1
        problem.moved[:] = 0
        self._mini_epoch(None)
        live = np.flatnonzero(problem.live)
        self.moved, self.promised, self.seen = running.updates > updates, False, EXACT
        if self.summed >= self.visits // 2:
            self._forget_average()  # it is of the later half of all visits
        while left and self.visited + len(live) / len(problem.active) <= self.mini_epochs:
            running.scalars[kernels.LOSS] = 0.0
            self._mini_epoch(live)
            live = np.flatnonzero(problem.live)
            if problem.whole and self._ends_solved(promise * self.target):
                self.promised = True
                break
            left -= 1
        inside, quiet = int(np.count_nonzero(problem.alphas)), problem.loss.classes > 1
        self.narrows, self.inside = quiet or inside < self.inside, inside
        if not self.summed:
            self._remember()
        return self.visited - visited

    def _mini_epoch(self, live: NDArray[np.int64] | None) -> None:
        self.visited += self.problem.mini_epoch(live) / len(self.problem.active)
        self.visits += 1
        self._remember()

    def _remember(self) -> None:
        running = self.problem.running
        kernels.add_scaled(running.w, 1.0, self.total)
        self.total[-1] += running.bias
        self.summed += 1

    def _forget_average(self) -> None:
        self.total[:] = 0.0
        self.summed = 0

    def _last_round(self) -> bool:
        return self.visited + 2.0 > self.mini_epochs

    def _consider_last_and_average(self) -> None:
        """The average costs another look at all rows: only where the last v is not good enough."""
        self.consider(self.problem.running.augmented)
        self._measure()
        if self.solution.gap > self.target:
            self.consider(self.total / self.summed)
            self._measure()

    def _measure(self) -> None:
        self.solution.gap = self._gap(self.solution.primal)

    def _gap(self, primal: float) -> float:
        return 1.0 - self.problem.objective / primal if primal > 0.0 else 1.0

    def _looks_solved(self, target: float) -> bool:
        """Whether the loss seen in passing promises so small a gap."""
        return self.problem.objective >= (1.0 - target) * self.problem.estimated_primal

    def _ends_solved(self, target: float) -> bool:
        """Whether so small a gap is promised at the end of a pass, at the rate of the last two:
        rows were seen half a pass before it, on average."""
        primal = self.problem.estimated_primal
        gap = max(1.0 - self.problem.objective / primal, 0.0) if primal > 0.0 else 0.0
        shrinks = math.sqrt(min(1.0, gap / self.seen))
        self.seen = max(gap, EXACT)
        return gap * shrinks <= target

    def _looks_unsolved(self) -> bool:
        """Whether it is no use yet to ask all rows for the true P: the first round's estimate
        knows too little of the rows that are not live, so it is rather too small."""
        if not self.problem.whole or self._last_round():
            return False
        return not self._looks_solved((1.0 if self.solution.v is None else UNSOLVED) * self.target)

    def _hopeless(self, gap: float, spent: float) -> bool:
        """Whether visits alone will not do: at the rate of the last round they would cost more than
        Newton's method, or too few of them are left."""
        if self.solution.newton > 1 or self.problem.loss.loss.zone:
            return False  # a hinge is Newton's only where H is solved directly
        if self._last_round():
            return True
        rounds = len(self.gaps)
        if self.promised or rounds < (3 if self.problem.whole and self.narrows else 2):
            return False  # fewer rows inside the margin make Newton's method cost less
        faster = FASTER if self.problem.whole and rounds < 3 else 1.0
        cost = of_visits(self.gaps[-1], gap, self.target, spent) / faster
        left = self.mini_epochs - self.visited
        return cost > min(left, of_newton(*self.problem.lengths, self.problem.alphas != 0))

    def _step_by_newton(self) -> None:
        """Newton's method from the best weights: first until P is good enough, which visits then
        make up for in D; then until D is too. α comes from the slacks."""
        problem, solution = self.problem, self.solution
        if solution.v is None:
            self.consider(problem.running.augmented)
            assert solution.v is not None
        small = problem.whole and problem.active.nonzeros <= SMALL
        self.refined = small and not problem.loss.loss.zone  # that of a hinge is smoothed anew
        proven = self.refined or self.exact or self.direct or solution.newton > 0
        precision = EXACT**2 if self.refined else 0.9 * self.target
        v, alpha = problem.minimise(solution.v, precision, proven=proven)
        solution.newton += 1
        self.consider(v)
        problem.take_alpha(alpha)
        self._measure()
        self.gaps = [1.0]


def _over_relax(problem: Subproblem, alphas_before: NDArray[np.float32], objective: float) -> None:
    """Move α RELAXATION times as far from ``alphas_before`` as the solve did, if D does not fall
    below ``objective``: the later blocks move on in the same direction."""
    solved = problem.alphas.copy()
    problem.set_alphas(problem.loss.relaxed(alphas_before, solved, RELAXATION))
    if problem.objective < objective:
        problem.set_alphas(solved)
