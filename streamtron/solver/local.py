"""One learner's problem on the rows of a part, and the steps of Newton's method on it.

Every step returns a NamedTuple whose fields are summed over the parts (see ``core.executor.plus``):
vectors of a number a column, a few scalars, short lists.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels, losses
from streamtron.core.certificate import ScanSums
from streamtron.core.executor import changes_part, looks_at_part
from streamtron.core.rows import Label
from streamtron.solver import few_columns, passes
from streamtron.solver.duals import Counts, SavedArrays, read_state, write_state
from streamtron.solver.learner import Learner
from streamtron.solver.rest_quadratic import NO_QUADRATIC, Outside, QuadraticSums
from streamtron.solver.scan import Frozen, counts_of_slacks
from streamtron.solver.stages import ASCENT, Regime
from streamtron.solver.targets import Extent, Targets, costs
from streamtron.solver.weights import WeightState

Vector = NDArray[np.float64]

LARGEST = 1e30
"""What is sent of the diagonal of H is at most this: its sum over the parts fits float32."""


SHORTEST = 0.05
"""The least θ of ``precondition``: a guard, for the trace is estimated, and may come out too large
where a part has hardly more rows than columns."""


class Moved(NamedTuple):
    """A change of the dual point, or a part of it: of a (augmented), of Σ Δ² c², and of Σ c."""

    a: Vector
    extension: float
    steps: int


NOTHING = Moved(np.zeros(1), 0.0, 0)


class LocalProblem:
    """One learner's problem on the rows of a part, and what Newton's method keeps of those in
    memory. ``learner`` : numbers rows from 0 in the part."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.width = learner, 0
        self.few = False  # whether this reading makes rows far from the margin one quadratic
        self.new = False  # whether this reading observes the rows
        self.shuffled = False  # whether the last reading took blocks in another order
        self.kept = np.zeros(0, dtype=np.int64)  # rows that this reading keeps, whatever it finds
        self.certified: SavedArrays | None = None  # the counts before a reading that visits rows
        self.base = NOTHING  # the dual point of all parts from which rows are visited
        self.margins = self.slopes = self.factors = np.zeros(0)

    def agree(self, positive: Label, width: int) -> None:
        """Take the positive label of all parts, and room for so many columns."""
        targets = self.learner.targets
        before, self.width = targets.positive, width
        if before is None:
            before = next(iter(targets.labels), None)
        targets.positive = positive
        if before not in (None, positive):
            np.negative(self.learner.active.signs, out=self.learner.active.signs)
            self.learner.running.w *= -1.0
            self.learner.running.scalars[kernels.BIAS] *= -1.0
            if self.learner.best.candidate is not None:
                self.learner.best.candidate *= -1.0
            if self.learner.outside is not None:
                self.learner.outside.linear *= -1.0
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

    def sum_of_counts(self, counts: Vector) -> Moved:
        """The dual point that counts of the rows held make."""
        extension = float(kernels.dot(self.learner.active.delta2 * counts, counts))
        return Moved(self.sum_of(counts), extension, int(counts.sum()))

    @property
    def mass(self) -> float:
        """Σ f_i of the rows held, at the v that was last looked at."""
        return float(kernels.dot(self.factors, np.ones(len(self.factors))))

    def gram(self, columns: NDArray[np.int64]) -> Vector:
        """Σ f_i (x_i, ρ)(x_i, ρ)ᵀ on some columns, at the v that was last looked at; its lower
        triangle."""
        found = np.zeros((len(columns), len(columns)))
        if len(columns):
            places = np.full(self.width + 1, -1)
            places[columns] = np.arange(len(columns))
            rows, rho = self.learner.active.rows, self.learner.settings.rho
            passes.gram_block(rows, self.factors, rho, places, found)
        return found

    def set_counts(self, v: Vector, b: float) -> None:
        """Set the counts of the rows held to b times the slacks of v over Δ²."""
        active, counts = self.learner.active, self.learner.counts
        targets = Targets(active.numbers, active.signs, active.delta2, active.squares)
        counts.put(
            active.numbers, counts_of_slacks(self.learner.loss, self.margins_of(v), 1.0, targets, b)
        )

    def take_unit(self, b: float, theta: float) -> Moved:
        """Multiply the counts of the local start by a whole number, so that in units of b they are
        about θ of what they were; return the dual point that they make."""
        learner, running = self.learner, self.learner.running
        own = learner.progress.b
        factor = running.rescale(learner.counts.largest(), round(theta * b / own) if own else 1)
        learner.counts.scale(factor)
        learner.progress.b, learner.running = b, WeightState()
        a = as_wide(running.augmented(1.0), self.width)
        return Moved(a, running.extension, running.steps)

    def begin_reading(self, number: int, to_read: ToRead) -> None:
        """Prepare a reading; see ``ToRead``."""
        learner, b = self.learner, to_read.b
        learner.progress.reading, learner.progress.b = number, b
        self.few = to_read.few
        self.new, visits = not learner.extent.rows, to_read.start is not None
        scanned = to_read.few and not learner.complete  # counts are made as rows are scanned
        if not (visits or scanned or learner.regime == Regime.BLOCKS):
            self.set_counts(to_read.scale * np.append(to_read.w, to_read.bias), b)
        learner.frozen = Frozen(to_read.w, to_read.bias, to_read.scale, b)
        learner.frozen.beside_training = visits
        learner.mode, learner.running = "scan", WeightState()
        self.certified = learner.counts.gaps() if visits else None
        whole = learner.regime != Regime.BLOCKS
        self.kept = np.sort(learner.active.numbers) if whole else learner.active.numbers[:0]
        if to_read.start is not None:
            learner.mode = "train"
            start_visits(self, *to_read.start)
        if not learner.complete:
            learner.regime = Regime.FEW_COLUMNS if to_read.few else Regime.WORKING_SET
            learner.active.clear()
        if learner.regime == Regime.FEW_COLUMNS:
            few_columns.begin(learner)

    def end_reading(self) -> Scanned:
        """Return the sums of a reading, and what is held now."""
        learner, frozen = self.learner, self.learner.frozen
        assert frozen is not None
        learner.frozen, learner.running, self.base = None, WeightState(), NOTHING
        self.margins = np.zeros(len(learner.active))
        held, scan_sums, rest = len(learner.active), frozen.scan_sums, NO_QUADRATIC
        if self.few:
            rest = sum_rest(self, len(frozen.w))
        return Scanned(scan_sums, held, [learner.regime], [learner.extent], rest)

    def save(self, path: str, rows: int) -> None:
        """Save the state after a reading; ``rows`` : of the part."""
        learner, held = self.learner, self.learner.active.numbers
        if learner.regime == Regime.ALL_ROWS:
            held = held[:0]
        weights = learner.targets.class_weights
        write_state(
            path, learner.counts, self.certified, held,
            b=learner.progress.b, positive=learner.targets.positive, width=self.width,
            shuffled=self.shuffled, shuffles=learner.shuffles, regime=learner.regime, rows=rows,
            class_weights=None if weights is None else [*weights.items()],
        )  # fmt: skip

    def take_back(self) -> None:
        """Take back what the visits of the last reading have changed in the counts: the learner has
        finished, with a certificate of the counts before. A run that is resumed may ask again."""
        if self.certified is not None:
            self.learner.counts, self.certified = Counts.of_gaps(*self.certified), None

    def restore(self, path: str, reading: int) -> NDArray[np.int64]:
        """Restore the state after a reading; return the rows held, which are to be read."""
        learner = self.learner
        content, arrays = read_state(path)
        learner.counts = Counts.of_gaps(arrays["gaps"], arrays["counts"])
        learner.targets.positive, self.width = content["positive"], content["width"]
        weights = content["class_weights"]
        learner.targets.class_weights = None if weights is None else dict(weights)
        self.shuffled, learner.regime = content["shuffled"], Regime(content["regime"])
        if "certified.gaps" in arrays:
            self.certified = arrays["certified.gaps"], arrays["certified.counts"]
        learner.shuffles = content["shuffles"]
        learner.progress.reading, learner.progress.b = max(reading, 1), content["b"]
        learner.progress.plan, learner.progress.stage_number = (ASCENT,), 0
        every_row = learner.regime == Regime.ALL_ROWS
        return np.arange(content["rows"]) if every_row else arrays["held"]


def as_wide(v: Vector, width: int) -> Vector:
    """Return augmented weights of so many columns; a learner has room for more than occur."""
    wide, columns = np.zeros(width + 1), min(width, len(v) - 1)
    wide[:columns], wide[-1] = v[:columns], v[-1]
    return wide


class ToRead(NamedTuple):
    """What a reading does for a problem, by its number: it certifies the weights ``w``, ``bias``
    around a ``scale``; b is the unit of the counts. ``few`` : rows far from the margin become one
    quadratic. ``start`` : the dual point of all parts from
    which rows are visited. None = none are visited; then the weights solve the rows held, if these
    are all that matter, and their counts are made of the slacks first.
    """

    problem: int
    w: Vector
    bias: float
    scale: float
    b: float
    few: bool
    start: Moved | None


class Scanned(NamedTuple):
    """The sums of a scan at fixed weights, as wide as its rows; the rows in memory after it; each
    part's regime, and what is known of all its rows; and where columns are few, the quadratic of
    the rows outside memory."""

    sums: ScanSums
    held: int
    regimes: list[Regime]
    extents: list[Extent]
    rest: QuadraticSums


class Looked(NamedTuple):
    """What rows in memory add at v: their part of ∇P and of P, of the diagonal of H (which
    preconditions, so that float32 will do), of H on the head (lower triangle, row by row), Σ f_i;
    Σ q_i over the rows with a slack; the largest α."""

    gradient: Vector
    loss: float
    diagonal: NDArray[np.float32]
    head: Vector
    mass: float
    lengths: float
    largest: list[float]


class Product(NamedTuple):
    """What rows in memory add to H p."""

    image: Vector


class Line(NamedTuple):
    """The loss of the rows in memory along a direction: (φ, φ', φ'') at every θ."""

    losses: Vector


@looks_at_part
def look(local: LocalProblem, v: Vector, head: NDArray[np.int64]) -> Looked:
    """Look at the rows in memory at v; ``head`` : columns on which H is wanted."""
    active, rho, cost = local.learner.active, local.learner.settings.rho, local.cost
    local.width = len(v) - 1
    local.margins = local.margins_of(v)
    loss = local.learner.loss
    alpha = cost * losses.slopes(loss, local.margins)
    local.factors = cost * losses.curvatures(loss, local.margins)
    diagonal = np.zeros(len(v))
    passes.add(kernels.gram_diagonal, active.rows, local.factors, rho, diagonal)
    lengths = active.squares + (rho**2 + active.delta2)
    return Looked(
        local.sum_of(-alpha), float(kernels.dot(cost, losses.values(loss, local.margins))),
        np.minimum(diagonal, LARGEST).astype(np.float32),
        local.gram(head)[np.tril_indices(len(head))], local.mass,
        float(kernels.dot(lengths, (alpha > 0.0).astype(np.float64))),
        [float(alpha.max(initial=0.0))],
    )  # fmt: skip


def precondition(
    local: LocalProblem, residual: Vector, diagonal: NDArray[np.float32], mass: float
) -> Product:
    """Return θ s (I + G/s + E)⁻¹ r, where G is the Hessian of the part's rows at the v that was
    last looked at, s their share of the ``mass`` of all parts, and E ≥ 0 is diagonal and lifts what
    is less than the ``diagonal`` of the Hessian of all: in columns that hardly occur here. Summed
    over parts that are alike, that is nearly H⁻¹ r.

    θ = 1 − tr(G/s (I + G/s + E)⁻¹)/n, n the rows with a slack, because the mean of inverses of few
    rows is too large by as much (Dereziński et al., NeurIPS 2020). One vector of random signs
    estimates the trace (Hutchinson, 1990).
    """
    share = local.mass / mass
    if share == 0.0:
        return Product(np.zeros(len(residual)))
    matrix, least = local.gram(np.arange(len(residual))), 1.0 + diagonal.astype(np.float64)
    matrix /= share
    on_diagonal = np.einsum("ii->i", matrix)
    lifted = np.maximum(1.0, least - on_diagonal)
    on_diagonal += lifted
    found, probe = share * residual, np.sqrt(lifted) * _signs(len(residual))
    if not kernels.factorise(matrix, np.empty(len(matrix))):
        return Product(found / least)  # squares under- or overflow
    kernels.solve_factorised(matrix, found)
    solved = probe.copy()
    kernels.solve_factorised(matrix, solved)
    trace = len(probe) - float(kernels.dot(probe, solved))
    return Product(max(1.0 - trace / np.count_nonzero(local.factors), SHORTEST) * found)


def _signs(number: int) -> Vector:
    """Return ±1, as random as the highest bits of multiples of the golden ratio."""
    multiples = np.arange(number, dtype=np.uint64) * kernels.SPLITMIX64[0]
    return np.where(multiples >> np.uint64(63), 1.0, -1.0)


def product(local: LocalProblem, v: Vector) -> Product:
    """Multiply by the Hessian of the rows in memory at the v that was last looked at."""
    active, image = local.learner.active, np.zeros(len(v))
    rho = local.learner.settings.rho
    passes.add(kernels.gram_product, active.rows, local.factors, rho, v, image)
    return Product(image)


@looks_at_part
def line(local: LocalProblem, direction: Vector | None, thetas: Vector) -> Line:
    """Evaluate the loss of the rows in memory at the last v plus θ times a direction; None = the
    same as before."""
    if direction is not None:
        local.slopes = local.margins_of(direction)
    losses, cost = np.empty((len(thetas), 3)), local.cost
    for theta, found in zip(thetas, losses, strict=True):
        kernels.loss_along(
            local.learner.loss.code, local.margins, local.slopes, cost, float(theta), found
        )
    return Line(losses)


@changes_part
def sum_rest(local: LocalProblem, columns: int) -> QuadraticSums:
    """Sum the quadratic of the rows outside memory after the local start."""
    outside = local.learner.outside or Outside(np.zeros(columns + 1), 0.0)
    local.learner.outside = None
    return outside.sums(columns)


def sum_held(local: LocalProblem, width: int) -> Moved:
    """Sum the dual point of the rows in memory."""
    local.width = width
    counts = local.learner.counts.take(local.learner.active.numbers)
    return local.sum_of_counts(counts.astype(np.float64))


@changes_part
def move(local: LocalProblem, v: Vector, b: float, relaxation: float) -> Moved:
    """Move the counts of the rows in memory from where they are to b times the slacks of v over Δ²,
    ``relaxation`` times as far; return what that changes."""
    active, counts = local.learner.active, local.learner.counts
    targets = Targets(active.numbers, active.signs, active.delta2, active.squares)
    before = counts.take(active.numbers).astype(np.float64)
    solved = counts_of_slacks(local.learner.loss, local.margins_of(v), 1.0, targets, b)
    after = before + np.floor(relaxation * (solved - before) + 0.5)
    after = np.clip(after, 0.0, float(kernels.COUNT_MAX))
    counts.put(active.numbers, after.astype(np.int32))
    old, new = local.sum_of_counts(before), local.sum_of_counts(after)
    return Moved(new.a - old.a, new.extension - old.extension, new.steps - old.steps)


@changes_part
def start_visits(local: LocalProblem, a: Vector, extension: float, steps: int) -> Moved:
    """Take the dual point of all parts, from which rows are visited."""
    local.base = Moved(a, extension, steps)
    local.learner.running = WeightState()
    local.learner.running.settle(a[:-1].copy(), float(a[-1]), extension, steps)
    return Moved(np.zeros(0), 0.0, 0)


def moved(local: LocalProblem) -> Moved:
    """Return what visits have changed of the dual point."""
    running, base = local.learner.running, local.base
    a = running.augmented(1.0)
    a[: len(base.a) - 1] -= base.a[:-1]
    a[-1] -= base.a[-1]
    return Moved(a, running.extension - base.extension, running.steps - base.steps)
