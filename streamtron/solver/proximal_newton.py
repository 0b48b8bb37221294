"""The proximal Newton method: minimise P where the penalty has a 1-norm, in memory.

    P(v) = R(v) − t·v + Σ C_i φ(m_i(v)),   R of ``core.penalty``

Each step minimises R and the quadratic expansion of the loss by coordinate descent on the columns
that may move, whose weight is not 0 or whose gradient is beyond the 1-norm's, and goes as far
towards that minimum as P falls (newGLMNET: Yuan, Ho and Lin, JMLR 13, 2012). Where columns are few
the descent is on H itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.penalty import Penalty
from streamtron.core.rows import Rows, Vector, make_rows
from streamtron.solver import passes
from streamtron.solver.held_loss import GapEstimate, HeldLoss, K, Rounds, drive
from streamtron.solver.hessian import Outside, mirror, multiply, solved_directly

STEPS, SWEEPS, HALVINGS = 200, 100, 40
"""Newton steps of a solve, sweeps of a step and halvings of its length at most; on text 4 to 25,
10 to 80 and none or one are usual."""

SOLVED = (0.1, 1e-3)
"""The first step's coordinate descent ends with a sweep that gains this part of what its first one
did, that of each later step with a tenth of that part, down to the second number: far from the
optimum the expansion is worth no more, and near it less than 10⁻³ saves no steps (CCAT)."""

BEFORE_JUMP = 5
"""Sweeps before a jump, see ``_jump``; weights that are to be 0 are 0 then, and few others are."""

JUMP, LIFTED = 300, 1e-9
"""A jump may take this many multiplications per weight and column, where a sweep takes one; the
diagonal of H, which may be singular, is lifted by this part of it there. On Adult at C = 5 a jump
takes the place of hundreds of sweeps."""

ENOUGH = 0.01
"""P is to fall by this part of what its expansion would fall by at the slope of the start."""

RIDGE = 1e-12
"""Is added to the diagonal of H: with the L1 penalty a column may have none."""

FLAT = 1e-15
"""A step that lowers P by no more than this part of it has lowered it by rounding."""


@dataclass(slots=True)
class Optimum(Generic[K]):
    """Augmented weights; P there, of all rows as far as it is known, and (P − D)/P; −∇ of all but
    R; the steps that led there; and what is known of the rows, as in a ``newton.Point``."""

    v: Vector
    primal: float
    gap: float
    pull: Vector
    steps: int
    known: K


Direction = tuple[float, Callable[[float], Rounds[Optimum[K]]]]
"""The slope of P along a step, at most; and the function that goes θ times as far."""


class Penalised(ABC, Generic[K]):
    """P of rows in memory, wherever they are. ``zeros`` : places of weights that are 0 for good."""

    def __init__(self, penalty: Penalty, zeros: NDArray[np.int64]) -> None:
        self.penalty, self.zeros = penalty, zeros

    @abstractmethod
    def begin(self, v: Vector) -> Rounds[Optimum[K]]:
        """Return the point v."""

    @abstractmethod
    def step(self, here: Optimum[K]) -> Rounds[Direction[K]]:
        """Return the step to about the least of R and the expansion of the rest."""

    def judged(self, there: Optimum[K]) -> Optimum[K]:
        """Return a point with the gap and the pull there, if a look tells P alone."""
        return there

    def judge(self, primal: float, earned: float, pull: Vector) -> float:
        """Return (P − D)/P where the dual variables earn so much; their sum is the ``pull``, set to
        0 where weights are 0 for good: nothing is to be said of them, nor paid for them."""
        pull[self.zeros] = 0.0
        return 1.0 - self.penalty.dual(earned, pull) / primal if primal > 0.0 else 0.0


def minimise(objective: Penalised[K], v: Vector, precision: float) -> Rounds[Optimum[K]]:
    """Return the point of least P, from v on: (P − D)/P is at most ``precision`` there, or P falls
    no more. Yields a ``GapEstimate`` wherever a step leads."""
    v[objective.zeros] = 0.0
    here = objective.judged((yield from objective.begin(v)))
    while True:
        yield GapEstimate(here.gap)
        if here.gap <= precision or here.steps >= STEPS:
            return here
        slope, go = yield from objective.step(here)
        theta = 1.0
        for _ in range(HALVINGS):
            there = yield from go(theta)
            if there.primal <= here.primal + ENOUGH * theta * slope:
                break
            theta *= 0.5
        if not there.primal < here.primal * (1.0 - FLAT):
            return here
        here = objective.judged(there)


class HeldPenalised(Penalised[Vector]):
    """P of rows that this process holds. ``tilt`` : t; ``gains`` : −Σ C_k φ*(−α_k/C_k) of all other
    rows. ``outside`` : or the loss of all other rows."""

    def __init__(
        self,
        loss: HeldLoss,
        penalty: Penalty,
        tilt: Vector,
        zeros: NDArray[np.int64],
        gains: float = 0.0,
        outside: Outside | None = None,
    ) -> None:
        super().__init__(penalty, zeros)
        self._loss, self._tilt, self._gains, self._outside = loss, tilt, gains, outside
        lengths = np.diff(loss.held.rows.indptr) + 1
        direct = outside is not None or solved_directly(lengths, len(tilt))
        self._columns = None if direct else by_column(loss.held.rows, len(tilt) - 1)

    def minimise(self, v: Vector, precision: float) -> Optimum[Vector]:
        """Return the point of least P, see ``minimise``."""
        return drive(minimise(self, v, precision))

    def begin(self, v: Vector) -> Rounds[Optimum[Vector]]:
        """See ``Penalised``."""
        return self._look(v, self._loss.margins_of(v), 0)
        yield

    def _look(self, v: Vector, margins: Vector, steps: int) -> Optimum[Vector]:
        """Return the point v, which has these margins, with P alone: a line search needs no more,
        and a pull is a pass over the rows."""
        primal = self.penalty.value(v) - float(kernels.dot(self._tilt, v))
        if self._outside is not None:
            primal += self._outside.value_and_gradient(v)[0]
        primal += self._loss.value(margins) + self._gains
        return Optimum(v, primal, math.inf, np.zeros(0), steps, margins)

    def judged(self, there: Optimum[Vector]) -> Optimum[Vector]:
        """See ``Penalised``. The dual variables are α_i = −C_i φ'(z_i), and their gains
        C_i φ(z_i) + α_i z_i."""
        v, loss = there.v, self._loss
        alpha = loss.alpha(there.known)
        earned = loss.value(there.known) + float(kernels.dot(alpha, there.known))
        pull, earned = self._tilt + loss.sum_of(alpha, len(v) - 1), earned + self._gains
        if self._outside is not None:
            lost, gradient = self._outside.value_and_gradient(v)
            pull, earned = pull - gradient, earned + lost - float(kernels.dot(gradient, v))
        return replace(there, gap=self.judge(there.primal, earned, pull), pull=pull)

    def step(self, here: Optimum[Vector]) -> Rounds[Direction[Vector]]:
        """See ``Penalised``."""
        v, (lasso, ridge), loss = here.v, self.penalty, self._loss
        gradient, order = slopes_of(v, here.pull, self.penalty)
        factors, diagonal = loss.curvatures(here.known), diagonal_of(self.penalty, len(v))
        if self._columns is None:
            hessian = self._hessian(factors, diagonal)
            step = descend(hessian, order, lasso, v, gradient, here.steps)
            images = loss.margins_of(step)
        else:
            step, images = np.zeros(len(v)), np.zeros(len(factors))
            passes.add(kernels.gram_diagonal, loss.held.rows, factors, loss.rho, diagonal)
            sweep = partial(
                kernels.descend,
                self._columns,
                order,
                factors,
                loss.rho,
                lasso,
                ridge,
                gradient,
                diagonal,
                v,
                step,
                images,
            )
            _repeat(sweep, here.steps)
            images *= loss.held.targets.signs

        def go(theta: float) -> Rounds[Optimum[Vector]]:
            return self._look(v + theta * step, here.known + theta * images, here.steps + 1)
            yield

        return slope_along(step, v, gradient, lasso), go
        yield

    def _hessian(self, factors: Vector, diagonal: Vector) -> NDArray[np.float64]:
        """Return H of all columns, to whose own diagonal the given one is added."""
        rows, hessian = self._loss.held.rows, np.zeros((len(diagonal), len(diagonal)))
        passes.add_gram(rows, factors, self._loss.rho, np.arange(len(diagonal)), hessian)
        mirror(hessian)
        np.einsum("ii->i", hessian)[:] += diagonal
        if self._outside is not None:
            hessian += self._outside.gram
        return hessian


def slopes_of(v: Vector, pull: Vector, penalty: Penalty) -> tuple[Vector, NDArray[np.int64]]:
    """Return the gradient of P without its 1-norm, ``pull`` being −∇ of all but R, and the places
    of the weights that may move, rising: the bias is the last."""
    gradient = penalty.ridge * v - pull
    gradient[-1] = v[-1] - pull[-1]
    may_move = (v != 0.0) | (np.abs(gradient) > penalty.lasso)
    may_move[-1] = True
    return gradient, np.flatnonzero(may_move)


def diagonal_of(penalty: Penalty, length: int) -> Vector:
    """Return what R adds to the diagonal of H, for ``length`` weights with the bias."""
    diagonal = np.full(length, penalty.ridge + RIDGE)
    diagonal[-1] = 1.0
    return diagonal


def slope_along(step: Vector, v: Vector, gradient: Vector, lasso: float) -> float:
    """Return the slope of P along a step, at most: P falls along it if that is below 0."""
    longer = float((np.abs(v + step) - np.abs(v))[:-1].sum())
    return float(kernels.dot(gradient, step)) + lasso * longer


def descend(
    hessian: Vector, order: NDArray[np.int64], lasso: float, v: Vector, gradient: Vector, steps: int
) -> Vector:
    """Return the step to about the least of R and the expansion with this H, by descent on the
    weights at the places ``order``; see ``SOLVED``."""
    step, slopes = np.zeros(len(v)), gradient.copy()
    known = hessian, order, lasso, v, step, slopes
    _repeat(partial(kernels.descend_directly, *known), steps, partial(_jump, *known))
    return step


def _repeat(
    sweep: Callable[[], float], steps: int, jump: Callable[[], float] | None = None
) -> None:
    """Repeat sweeps, and jumps, until one gains little beside the first; see ``SOLVED``."""
    enough = sweep() * max(SOLVED[0] ** (steps + 1), SOLVED[1])
    for number in range(1, SWEEPS):
        gained = sweep()
        if jump is not None and (gained <= enough or number % BEFORE_JUMP == 0):
            gained = max(gained, jump())
        if gained <= enough:
            break


def _jump(
    hessian: Vector, order: NDArray[np.int64], lasso: float, v: Vector, step: Vector, slopes: Vector
) -> float:
    """Go on to the least of the expansion on the weights that are not 0. Weights that meet 0 on the
    way stay there; see ``kernels.descend_directly``. Returns about twice what that gains.
    """
    gained, theta, last = 0.0, 0.0, len(v) - 1
    chosen = order[((v + step)[order] != 0.0) | (order == last)]
    while theta < 1.0 and len(chosen) ** 2 <= JUMP * len(v):
        weights, factor = (v + step)[chosen], hessian[np.ix_(chosen, chosen)]
        np.einsum("ii->i", factor)[:] *= 1.0 + LIFTED
        downwards = -slopes[chosen] - lasso * np.where(chosen == last, 0.0, np.sign(weights))
        change, lengths = downwards.copy(), np.ones(len(chosen))
        if not kernels.factorise(factor, np.empty(len(change))):
            break
        kernels.solve_factorised(factor, change)
        crossing = (weights * (weights + change) < 0.0) & (chosen != last)
        lengths[crossing] = -weights[crossing] / change[crossing]
        theta, move = float(lengths.min()), np.zeros(len(v))
        stays = lengths > theta if theta < 1.0 else lengths > 0.0
        move[chosen] = np.where(stays, theta * change, -weights)
        step += move
        slopes += multiply(hessian, move)
        gained += theta * (2.0 - theta) * float(kernels.dot(downwards, change))
        chosen = chosen[stays]
    return gained


def by_column(rows: Rows, columns: int) -> Rows:
    """Return the nonzeros of rows column by column, as rows of the transposed matrix.

    >>> rows = make_rows(np.array([0, 2, 3]), np.array([0, 2, 2]), np.array([4.0, 5.0, 6.0]))
    >>> [array.tolist() for array in by_column(rows, 3)[:3]]
    [[0, 1, 1, 3], [0, 0, 1], [4.0, 5.0, 6.0]]
    """
    numbers = np.zeros(columns + 1, dtype=np.int64)
    kernels.count_columns(rows, numbers[1:])
    indptr = np.cumsum(numbers)
    indices, values = np.empty(indptr[-1], np.uint32), np.empty(indptr[-1], np.float32)
    kernels.transpose(rows, indptr[:-1].copy(), indices, values)
    return make_rows(indptr, indices, values)
