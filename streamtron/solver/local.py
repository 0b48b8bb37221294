"""One learner's problem on the rows of a part, and the steps of Newton's method on it.

Every step returns a NamedTuple whose fields are summed over the parts (see ``core.executor.plus``):
vectors of a number a column, a few scalars, short lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Label
from streamtron.solver import passes
from streamtron.solver.block_scan import counts_of_slacks
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner
from streamtron.solver.saved_counts import read_state, write_state
from streamtron.solver.state import Regime
from streamtron.solver.targets import Targets, costs

if TYPE_CHECKING:
    from streamtron.solver.part import Part

Vector = NDArray[np.float64]


class LocalProblem:
    """One learner's problem on the rows of a part, and what Newton's method keeps of those in
    memory. ``learner`` : numbers rows from 0 in the part."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.width = learner, 0
        self.share = 1.0  # of the rows that matter, the part that the next scan holds
        self.margins = self.slopes = self.factors = np.zeros(0)

    def agree(self, positive: Label, width: int) -> None:
        """Take the positive label of all parts, and room for so many columns."""
        targets = self.learner.targets
        before, self.width = targets.positive, width
        if before is None:
            before = next(iter(targets.labels), None)
        targets.positive = positive
        if before not in (None, positive):
            self.learner.active.negate()
            self.learner.running.w *= -1.0
            self.learner.running.scalars[kernels.BIAS] *= -1.0
        self.margins = np.zeros(len(self.learner.active))

    @property
    def cost(self) -> Vector:
        """C_i = 1/(2 Δ_i²) of the rows held; 0 where a row is left out."""
        active = self.learner.active
        return costs(active.signs, active.delta2)

    def margins_of(self, v: Vector) -> Vector:
        """l_i (x_i, ρ)·v of the rows held."""
        active = self.learner.active
        return passes.margins(active.rows, active.signs, self.learner.settings.rho, v)

    def sum_of(self, factors: Vector) -> Vector:
        """Σ f_i l_i (x_i, ρ) of the rows held, augmented."""
        active, total = self.learner.active, np.zeros(self.width + 1)
        rho = self.learner.settings.rho
        passes.add(kernels.combine, active.rows, factors * active.signs, rho, total)
        return total

    def take_unit(self, theta: float, b: float) -> None:
        """Take b as the unit of the counts of the local start, times θ."""
        numbers, counts = self.learner.counts.entries()
        counts = np.floor(theta * b / self.learner.progress.b * counts + 0.5)
        within = np.minimum(counts, float(kernels.COUNT_MAX)).astype(np.int32)
        self.learner.counts.put(numbers, within)

    def set_counts(self, v: Vector, b: float) -> None:
        """Set the counts of the rows held to b times the slacks of v over Δ²."""
        active, counts = self.learner.active, self.learner.counts
        targets = Targets(active.numbers, active.signs, active.delta2, active.squares)
        counts.put(active.numbers, counts_of_slacks(self.margins_of(v), 1.0, targets, b))

    def save(self, path: str, rows: int) -> None:
        """Save the state between two scans; ``rows`` : of the part."""
        learner, held = self.learner, self.learner.active.numbers
        weights = learner.targets.class_weights
        write_state(
            path, learner.counts, held[:0] if learner.regime == Regime.ALL_ROWS else held,
            b=learner.progress.b, positive=learner.targets.positive, width=self.width,
            share=self.share, regime=learner.regime, rows=rows,
            class_weights=None if weights is None else [*weights.items()],
        )  # fmt: skip

    def restore(self, path: str, scans: int) -> NDArray[np.int64]:
        """Restore the state after so many scans; return the rows held, which are to be read."""
        learner = self.learner
        content, arrays = read_state(path)
        learner.counts = Counts.of_gaps(arrays["gaps"], arrays["counts"])
        learner.targets.positive, self.width = content["positive"], content["width"]
        weights = content["class_weights"]
        learner.targets.class_weights = None if weights is None else dict(weights)
        self.share, learner.regime = content["share"], Regime(content["regime"])
        learner.progress.reading, learner.progress.b = max(scans, 1), content["b"]
        return np.cumsum(arrays["held"], dtype=np.int64)


class Looked(NamedTuple):
    """What rows in memory add at v: their part of ∇P and of P, of the diagonal of H, of H on the
    head (lower triangle, row by row), Σ q_i over the rows with a slack; the largest α."""

    gradient: Vector
    loss: float
    diagonal: Vector
    head: Vector
    lengths: float
    largest: list[float]


class Product(NamedTuple):
    """What rows in memory add to H p."""

    image: Vector


class Line(NamedTuple):
    """The loss of the rows in memory along a direction: (φ, φ', φ'') at every θ."""

    losses: Vector


class Each:
    """The step that makes, in each part, the steps wanted by several problems; a round of them has
    their name if they are alike, else ``mixed``."""

    def __init__(self, wanted: Iterable[tuple[Callable[..., Any], Any]]) -> None:
        names = {step.__name__ for step, _ in wanted}
        self.__name__ = names.pop() if len(names) == 1 else "mixed"

    def __call__(
        self, part: Part, wanted: Sequence[tuple[int, tuple[Callable[..., Any], Sequence[Any]]]]
    ) -> tuple[Any, ...]:
        return tuple(step(part.problems[number], *own) for number, (step, own) in wanted)


def look(local: LocalProblem, v: Vector, head: NDArray[np.int64]) -> Looked:
    """Look at the rows in memory at v; ``head`` : columns on which H is wanted."""
    active, rho, cost = local.learner.active, local.learner.settings.rho, local.cost
    local.width = len(v) - 1
    local.margins = local.margins_of(v)
    alpha = 2.0 * cost * np.maximum(0.0, 1.0 - local.margins)
    local.factors = np.where(local.margins < 1.0, 2.0 * cost, 0.0)
    diagonal, gram = np.zeros(len(v)), np.zeros((len(head), len(head)))
    passes.add(kernels.gram_diagonal, active.rows, local.factors, rho, diagonal)
    if len(head):
        places = np.full(len(v), -1)
        places[head] = np.arange(len(head))
        passes.gram_block(active.rows, local.factors, rho, places, gram)
    lengths = active.squares + (rho**2 + active.delta2)
    return Looked(
        local.sum_of(-alpha), 0.5 * float(kernels.dot(alpha * active.delta2, alpha)), diagonal,
        gram[np.tril_indices(len(head))],
        float(kernels.dot(lengths, (alpha > 0.0).astype(np.float64))),
        [float(alpha.max(initial=0.0))],
    )  # fmt: skip


def product(local: LocalProblem, v: Vector) -> Product:
    """Multiply by the Hessian of the rows in memory at the v that was last looked at."""
    active, image = local.learner.active, np.zeros(len(v))
    rho = local.learner.settings.rho
    passes.add(kernels.gram_product, active.rows, local.factors, rho, v, image)
    return Product(image)


def line(local: LocalProblem, direction: Vector | None, thetas: Vector) -> Line:
    """Evaluate the loss of the rows in memory at the last v plus θ times a direction; None = the
    same as before."""
    if direction is not None:
        local.slopes = local.margins_of(direction)
    losses, cost = np.empty((len(thetas), 3)), local.cost
    for theta, found in zip(thetas, losses, strict=True):
        kernels.loss_along(local.margins, local.slopes, cost, float(theta), found)
    return Line(losses)


def sum_held(local: LocalProblem, width: int, b: float) -> Product:
    """Sum the dual point of the rows in memory: Σ α l (x, ρ)."""
    local.width = width
    counts = local.learner.counts.take(local.learner.active.numbers)
    return Product(local.sum_of(counts / b))
