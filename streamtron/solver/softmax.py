"""Softmax, or multinomial logistic regression: one problem of the weights of all classes.

    minimise  P(W) = ½ ‖W‖² + Σ C_k (ln Σ_j exp z_kj − z_ky),   z_kj = (x_k, ρ)·w_j

over the K augmented vectors w_j = (w_j, b_j), y the class of row k. As the columns of a matrix, of
shape (columns + 1, K), they are the augmented weights of one ``Learner``, so that b_K is its bias:
a nonzero of a row meets the weights of all classes side by side. Dual variables:
``kernels.softmax``. Rows in memory are visited, see ``kernels.visit_softmax``, and where that
crawls solved by Newton's method, whose Hessian along S adds
Σ C_k (p_k ⊙ s_k − p_k (p_k·s_k)) ⊗ (x_k, ρ), s_k the margins of S. Arrays of all classes have the
shape (K, rows); threads have some classes each, or some rows, so that no sum depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.losses import Loss
from streamtron.core.rows import Rows
from streamtron.core.scan_sums import ScanSums
from streamtron.core.threads import opened_threads
from streamtron.solver import passes
from streamtron.solver.held_loss import HeldLoss
from streamtron.solver.hessian import Hessian, Outside, Preconditioner
from streamtron.solver.row_store import HeldRows
from streamtron.solver.targets import Table, Targets, sums_of_others, to_table
from streamtron.solver.weights import DualPoint

MARGINS = 1 << 18
"""Of a kernel call of softmax: some milliseconds."""

Vector = NDArray[np.float64]


def each_class(number: int, work: Callable[[int], None]) -> None:
    """Do the work of every class, on threads."""
    opened_threads().work(work, range(number))


def add_classes(kernel: kernels.Kernel, rows: Rows, factors: Vector, *arguments: Any) -> None:
    """Call a kernel that sums over rows, each times its ``factors`` of the classes, shape
    (rows, K); threads have some classes each."""
    number, threads = factors.shape[1], opened_threads()
    borders = [number * k // threads.number for k in range(threads.number + 1)]

    def add(some: tuple[int, int]) -> None:
        first, stop = some
        passes.add(kernel, rows, factors, first, stop, *arguments, share=stop - first)

    threads.work(add, [some for some in pairwise(borders) if some[0] < some[1]])


def class_margins(rows: Rows, rho: float, v: Vector, number: int) -> Vector:
    """Return z_kj of all classes. ``v`` : the augmented weights of all."""
    weights, threads = v.reshape(-1, number), opened_threads()
    margins = np.empty((number, len(rows.indptr) - 1))

    def find(span: slice) -> None:
        room = np.empty(number)
        kernels.class_margins(rows, rho, weights, span.start, span.stop, room, margins)

    threads.work(find, passes.spans(rows, number, threads.number))
    return margins


def softmax(targets: Targets, margins: Vector) -> tuple[Vector, Vector]:
    """Return C_k p_kj of all classes, and C_k φ, shape (rows,)."""
    shares, losses, threads = np.empty_like(margins), np.empty(margins.shape[1]), opened_threads()

    def look(span: slice) -> None:
        given = targets.t, targets.costs, margins, span.start, span.stop
        kernels.softmax(*given, shares, losses)

    starts, rows = range(0, len(losses), step := max(1, MARGINS // len(margins))), len(losses)
    threads.work(look, [slice(start, min(start + step, rows)) for start in starts])
    return shares, losses


def of_others(shares: Vector, targets: Targets) -> Vector:
    """Return C_k p_kj with 0 in place of the row's class."""
    alphas = shares.copy()
    alphas[targets.t.astype(np.int64), np.arange(shares.shape[1])] = 0.0
    return alphas


def signed(others: Vector, targets: Targets) -> Vector:
    """Return the factors of (x_k, ρ) in v of α: of another class −α, of the row's the sum of the
    others."""
    factors = -others
    factors[targets.t.astype(np.int64), np.arange(others.shape[1])] = sum(others)
    return factors


def table_of_slacks(rows: Rows, targets: Targets, rho: float, v: Vector, number: int) -> Table:
    """Return the α that belong to weights: C_k p_kj, rounded."""
    shares, _ = softmax(targets, class_margins(rows, rho, v, number))
    return to_table(of_others(shares, targets), targets.costs)


def scan_classes(
    sums: ScanSums, v: Vector, rows: Rows, targets: Targets, table: Table, rho: float
) -> NDArray[np.uint8]:
    """Add rows to the sums of a scan at augmented weights; return which of them matter: all."""
    number, counts = table.shape[1], targets.signs != 0
    margins, of_own = class_margins(rows, rho, v, number), sums_of_others(table)
    weights, biases = v.reshape(-1, number)[:-1], v[-number:]
    lengths = np.append(np.sqrt(np.square(weights).sum(axis=0)), rho * np.abs(biases))
    factors = -table.astype(np.float64)
    factors[np.arange(len(of_own)), targets.t.astype(np.int64)] = of_own
    factors[~counts] = 0.0
    fresh, low = (sums_[: weights.size].reshape(-1, number) for sums_ in (sums.fresh, sums.low))

    add_classes(kernels.add_class_duals, rows, factors, fresh, low)
    given = rows, targets.signs, targets.costs, targets.squares, targets.t, table, of_own
    at = rho, margins, lengths, sums.fresh, sums.low
    kernels.scan_softmax(*given, *at, sums.sums, sums.totals)
    return np.where(counts, np.uint8(1), np.uint8(0))


class HeldClasses(HeldLoss):
    """The loss of rows in memory; margins, α and curvatures are those of all classes."""

    def __init__(self, loss: Loss, held: HeldRows, rho: float, number: int) -> None:
        super().__init__(loss, held, rho)
        self.classes = number

    def margins_of(self, v: Vector) -> Vector:
        """Return z_kj."""
        return class_margins(self.held.rows, self.rho, v, self.classes)

    def sum_of(self, factors: Vector, columns: int) -> Vector:
        """Return Σ f_kj (x_k, ρ) of all classes, augmented."""
        total = np.zeros((columns + 1) // self.classes * self.classes)
        by_class, by_row = total.reshape(-1, self.classes), np.ascontiguousarray(factors.T)
        add_classes(kernels.combine_classes, self.held.rows, by_row, self.rho, by_class)
        return total

    def value(self, margins: Vector) -> float:
        """Return the loss at these margins."""
        _, losses = softmax(self.held.targets, margins)
        return float(kernels.dot(losses, np.ones(len(losses))))

    def alpha(self, margins: Vector) -> Vector:
        """Return the factors of the dual point that belongs to these margins, see ``signed``."""
        shares, _ = softmax(self.held.targets, margins)
        return signed(of_others(shares, self.held.targets), self.held.targets)

    def curvatures(self, margins: Vector) -> Vector:
        """Return C_k p_kj, which make the Hessian."""
        return softmax(self.held.targets, margins)[0]

    def along(self, margins: Vector, slopes: Vector, theta: float) -> Vector:
        """Return (f, f', f'') of f(θ) at the margins z + θ d."""
        targets, here = self.held.targets, margins + theta * slopes
        shares, losses = softmax(targets, here)
        of_row = slopes[targets.t.astype(np.int64), np.arange(len(losses))]
        mean = sum(p * d for p, d in zip(shares, slopes, strict=True))
        square = sum(p * d * d for p, d in zip(shares, slopes, strict=True))
        ones, spread = np.ones(len(losses)), square - _over(mean * mean, self.cost)
        terms = losses, mean - self.cost * of_row, np.maximum(spread, 0.0)
        return np.array([float(kernels.dot(term, ones)) for term in terms])

    def hessian(self, columns: int, outside: Outside | None = None) -> Hessian:
        """Return the Hessian of P."""
        return ClassHessian(self, columns)

    def rounded(self, alpha: Vector) -> Table:
        """Return α as they are kept, of the factors of a dual point."""
        return to_table(of_others(-alpha, self.held.targets), self.cost)

    def relaxed(self, before: Table, solved: Table, factor: float) -> Table:
        """See ``HeldLoss``."""
        way = before + factor * (solved.astype(np.float64) - before)
        return to_table(np.maximum(way, 0.0).T, self.cost)

    def dual_point(self, alphas: Table, columns: int) -> DualPoint:
        """Return the sums that α of these rows, shape (rows, K), make."""
        factors = signed(np.ascontiguousarray(alphas.T, np.float64), self.held.targets)
        gains, targets = np.empty(len(alphas)), self.held.targets
        kernels.softmax_gains(targets.t, self.cost, alphas, sums_of_others(alphas), gains)
        earned = float(kernels.dot(gains, np.ones(len(gains))))
        return DualPoint(self.sum_of(factors, columns), earned)


class ClassHessian:
    """H of P on rows in memory, preconditioned by its blocks of each class by itself."""

    exact = False

    def __init__(self, held: HeldClasses, columns: int) -> None:
        self._held, self._shares = held, np.zeros(0)
        rows, width = held.held.rows, (columns + 1) // held.classes
        number = held.classes
        self._classes = [
            Preconditioner(rows, held.rho, width - 1, classes=number) for _ in range(number)
        ]

    def update(self, shares: Vector) -> None:
        """Take H at other weights. ``shares`` : C_k p_kj there."""
        self._shares, cost = shares, self._held.cost

        def take(j: int) -> None:
            self._classes[j].update(shares[j] - _over(shares[j] * shares[j], cost))

        each_class(len(shares), take)

    def renew(self) -> bool:
        """Make the inverse of classes better where that pays by now; whether any has been."""
        renewed = np.zeros(len(self._classes), np.bool_)

        def take(j: int) -> None:
            renewed[j] = self._classes[j].renew()

        each_class(len(renewed), take)
        return bool(renewed.any())

    def product(self, v: Vector) -> Vector:
        """Return H v."""
        slopes, shares = self._held.margins_of(v), self._shares
        mean = _over(sum(p * d for p, d in zip(shares, slopes, strict=True)), self._held.cost)
        return v + self._held.sum_of(shares * (slopes - mean), len(v) - 1)

    def solve(self, residual: Vector) -> Vector:
        """Return about H⁻¹ r."""
        by_class = np.ascontiguousarray(residual.reshape(-1, len(self._classes)).T)
        pairs = zip(self._classes, by_class, strict=True)
        return np.stack([of_class.solve(r) for of_class, r in pairs], axis=1).ravel()


def _over(terms: Vector, cost: Vector) -> Vector:
    """Return terms / C_k; 0 where C_k is, as of rows left out."""
    return np.divide(terms, cost, out=np.zeros(len(cost)), where=cost > 0.0)
