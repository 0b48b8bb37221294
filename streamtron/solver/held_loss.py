"""The loss of rows in memory: its sums, the steps of Newton's method that a part makes on it, and
the solves that ask for these steps.

A step returns a NamedTuple whose fields are summed over the parts (see ``core.executor.plus``):
vectors of a number a column, a few scalars, short lists.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels, losses
from streamtron.core.executor import Wanted
from streamtron.core.losses import Domain, Loss
from streamtron.core.rows import Vector
from streamtron.core.threads import opened_threads
from streamtron.solver import passes
from streamtron.solver.hessian import Hessian, Outside, Preconditioner
from streamtron.solver.row_store import HeldRows
from streamtron.solver.targets import relaxed, to_alphas
from streamtron.solver.weights import DualPoint

LARGEST = 1e30
"""What is sent of the diagonal of H is at most this: its sum over the parts fits float32."""


Result = TypeVar("Result")
Work = TypeVar("Work")
K = TypeVar("K")


class GapEstimate(NamedTuple):
    """What a solve yields beside steps: (P − D)/P of the rows in memory, which proves nothing."""

    gap: float


Rounds = Generator[Wanted | GapEstimate, Any, Result]
"""What yields the steps that it wants made in all parts, and returns a result; see ``joint``."""


def drive(solve: Generator[Any, Any, Result]) -> Result:
    """Run a solve of rows that this process holds to its end; return its result. The estimates that
    it yields are dropped."""
    while True:
        try:
            next(solve)
        except StopIteration as end:
            result: Result = end.value
            return result


class LossTerms(NamedTuple):
    """What rows in memory add at v: their part of ∇P and of P, of the diagonal of H (which
    preconditions, so that float32 will do), of H on the head (lower triangle, row by row); see
    ``HeldLoss.smoothing``."""

    gradient: Vector
    loss: float
    diagonal: NDArray[np.float32]
    head: Vector
    smoothing: tuple[float, float]


class HeldLoss:
    """Σ C_i φ(t_i, z_i) over rows in memory, with z_i = l_i (x_i, ρ)·v, the *margins*.

    ``shares`` : p_i = α_i/C_i of known dual variables, around which a smooth loss stands for the
    hinge: max over a of a (1 − z) − ½ η (a − p)² for 0 ≤ a ≤ 1, which is, but for ½ η p², the loss
    with a zone η at z − η p (Rockafellar, Math. Oper. Res. 1, 1976); and likewise for the
    ε-insensitive loss.
    """

    classes = 1
    """of softmax, whose margins and α are those of all"""

    def __init__(self, loss: Loss, held: HeldRows, rho: float) -> None:
        self.loss, self.held, self.rho = loss, held, rho
        self.shares = np.zeros(len(held) if loss.zone else 0)

    @property
    def cost(self) -> Vector:
        """C_i, shape (rows,); 0 where a row is left out."""
        return self.held.targets.costs

    @property
    def t(self) -> Vector:
        """t_i, shape (rows,); of classes none."""
        return self.held.targets.t

    @cached_property
    def _occurring(self) -> int:
        return passes.occurring(self.held.rows)

    def _sums(self, factors: Vector) -> passes.BlockSums:
        return passes.BlockSums(self.held.rows, factors, self._occurring)

    def margins_of(self, v: Vector) -> Vector:
        """Return z_i, shape (rows,); of a direction, their change along it."""
        return passes.margins(self.held.rows, self.held.targets.signs, self.rho, v)

    def sum_of(self, factors: Vector, columns: int) -> Vector:
        """Return Σ f_i l_i (x_i, ρ), shape (columns + 1,)."""
        total = np.zeros(columns + 1)
        self._sums(factors * self.held.targets.signs).add(kernels.combine, self.rho, total)
        return total

    def value(self, margins: Vector) -> float:
        """Return the loss at the v of these margins."""
        return float(
            kernels.dot(self.cost, losses.values(self.loss, self._places(margins), self.t))
        )

    def sharp_value(self, margins: Vector) -> float:
        """Return the loss of the objective, without a zone, at the v of these margins."""
        if not self.loss.zone:
            return self.value(margins)
        sharp = replace(self.loss, zone=0.0)
        return float(kernels.dot(self.cost, losses.values(sharp, margins, self.t)))

    def _places(self, margins: Vector) -> Vector:
        """Return where the loss is to be looked up; see ``shares``."""
        return margins - self.loss.zone * self.shares if self.loss.zone else margins

    def alpha(self, margins: Vector) -> Vector:
        """Return α_i = −C_i φ'(m_i): the dual point that belongs to the v of these margins, the
        gradient there being −``sum_of`` it."""
        return self.cost * losses.slopes(self.loss, self._places(margins), self.t)

    @property
    def domain(self) -> Domain:
        """Return the least and the most that α_i may be, shape (rows,)."""
        return losses.domain(self.loss, self.cost, self.t)

    def curvatures(self, margins: Vector) -> Vector:
        """Return f_i = C_i φ''(z_i): H = I + Σ f_i (x_i, ρ)(x_i, ρ)ᵀ."""
        return self.cost * losses.curvatures(self.loss, self._places(margins), self.t)

    def hessian(self, columns: int, outside: Outside | None = None) -> Hessian:
        """Return the Hessian of P, of the rows held and those ``outside``."""
        return Preconditioner(self.held.rows, self.rho, columns, outside)

    def rounded(self, alpha: Vector) -> NDArray[np.float32]:
        """Return α as they are kept."""
        return to_alphas(alpha, self.domain)

    def relaxed(
        self, before: NDArray[np.float32], solved: NDArray[np.float32], factor: float
    ) -> NDArray[np.float32]:
        """Return α moved ``factor`` times as far as to a solution, within their domain."""
        return relaxed(before, solved, factor, self.domain)

    def smoothing(self, margins: Vector) -> tuple[float, float]:
        """Return what P of the hinge is above that of the smooth loss in its place; and what its
        P − D is above ½‖∇P‖² of the latter: Σ C_i (1 − z_i)₊ − α_i (1 − z_i), or with
        |z_i − t_i| − ε and |α_i| in place of 1 − z_i and α_i. Else 0 and 0."""
        if not self.loss.zone:
            return 0.0, 0.0
        alpha, loss = self.alpha(margins), self.sharp_value(margins)
        if self.loss.numbers:
            earned = float(kernels.dot(alpha, self.t - margins))
            earned -= self.loss.epsilon * float(kernels.dot(np.abs(alpha), np.ones(len(alpha))))
        else:
            earned = float(kernels.dot(alpha, 1.0 - margins))
        return loss - self.value(margins), max(loss - earned, 0.0)

    def take_shares(self, alphas: NDArray[np.float32]) -> None:
        """Have the smooth loss stand for the hinge around these α."""
        if self.loss.zone:
            self.shares = np.zeros(len(self.held))
            np.divide(alphas, self.cost, out=self.shares, where=self.cost > 0.0)

    def approach(self, v: Vector, zone: float) -> tuple[()]:
        """Take a smooth loss nearer to the hinge: around the dual point that belongs to v."""
        self.shares = losses.slopes(self.loss, self._places(self.margins_of(v)), self.t)
        self.loss = replace(self.loss, zone=zone)
        return ()

    def along(self, margins: Vector, slopes: Vector, theta: float) -> Vector:
        """Return (f, f', f'') of f(θ) = Σ C_i φ(t_i, z_i + θ d_i)."""
        places, threads = self._places(margins), opened_threads()
        sums = np.zeros((-(-len(places) // kernels.BLOCK), 3))

        def add_blocks(blocks: slice) -> None:
            span = slice(kernels.BLOCK * blocks.start, kernels.BLOCK * blocks.stop)
            columns = self.t[span], places[span], slopes[span], self.cost[span]
            kernels.loss_along(self.loss.phi, *columns, theta, sums[blocks])

        least = losses.rows_to_share(self.loss) // kernels.BLOCK
        threads.work(add_blocks, threads.slices(len(sums), least))
        return sum(sums, np.zeros(3))

    def dual_point(self, alphas: NDArray[np.float32], columns: int) -> DualPoint:
        """Return the sums that α of these rows make."""
        cost, alpha = self.cost, alphas.astype(np.float64)
        p = np.divide(alpha, cost, out=np.zeros(len(cost)), where=cost > 0.0)
        gains = losses.gains(self.loss, p, self.t)
        return DualPoint(self.sum_of(alpha, columns), float(kernels.dot(cost, gains)))


class PartLoss(HeldLoss):
    """The loss of the rows that a part holds, and the steps of Newton's method on it.

    ``margins``, ``factors`` : z_i and f_i = C_i φ''(z_i) at the v that was last looked at.
    """

    def __init__(self, loss: Loss, held: HeldRows, rho: float) -> None:
        super().__init__(loss, held, rho)
        self.margins = self.factors = np.zeros(0)

    def renew(self) -> None:
        """Take the rows and signs that ``held`` has now; the margins of v = 0 are theirs."""
        for name in ("_occurring", "_hessian"):
            self.__dict__.pop(name, None)
        self.margins = np.zeros(len(self.held))

    def look(self, v: Vector, head: NDArray[np.int64]) -> LossTerms:
        """Look at the rows at v; ``head`` : columns on which H is wanted."""
        self.margins = self.margins_of(v)
        self.factors = self.curvatures(self.margins)
        alpha, diagonal = self.alpha(self.margins), np.zeros(len(v))
        self._hessian = self._sums(self.factors)
        self._hessian.add(kernels.gram_diagonal, self.rho, diagonal)
        return LossTerms(
            self.sum_of(-alpha, len(v) - 1),
            self.value(self.margins),
            np.minimum(diagonal, LARGEST).astype(np.float32),
            self._gram(head, len(v))[np.tril_indices(len(head))],
            self.smoothing(self.margins),
        )

    def product(self, v: Vector) -> Vector:
        """Return the rows' part of H v, H at the v that was last looked at."""
        image = np.zeros(len(v))
        self._hessian.add(kernels.gram_product, self.rho, v, image)
        return image

    def line(self, direction: Vector, thetas: Vector) -> Vector:
        """Return (f', f'') of the loss at the last v plus each θ times a direction."""
        known = self.margins, self.margins_of(direction)
        return np.array([self.along(*known, float(theta))[1:] for theta in thetas])

    def _gram(self, head: NDArray[np.int64], length: int) -> Vector:
        """Return Σ f_i (x_i, ρ)(x_i, ρ)ᵀ on some columns, in the lower triangle."""
        gram = np.zeros((len(head), len(head)))
        if len(head):
            places = np.full(length, -1)
            places[head] = np.arange(len(head))
            passes.add_gram(self.held.rows, self.factors, self.rho, places, gram)
        return gram
