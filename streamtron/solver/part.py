"""One part of the data, and the steps that ``train_parts`` maps over all parts.

A part holds its rows, in memory as far as its share of the active set goes and on disk in its
cache, and their dual variables. Between two scans its state is a function of the last scan alone,
so that it can be rebuilt anywhere. Every step returns a NamedTuple whose fields are summed over
parts (see ``core.executor.plus``): vectors of a number a column, a few scalars, short lists.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import ScanSums
from streamtron.core.errors import DataError
from streamtron.core.rows import Chunk, ChunkSource, Label
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.solver import order, passes
from streamtron.solver.block_scan import counts_of_slacks
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner
from streamtron.solver.scan import Frozen
from streamtron.solver.state import Extent, Regime
from streamtron.solver.subproblem import run_mini_epochs
from streamtron.solver.targets import Targets, costs
from streamtron.solver.train import begin_reading, finish_reading, take_chunk
from streamtron.solver.working_set import NONZERO_BYTES, ROW_BYTES

Vector = NDArray[np.float64]

FORMAT_VERSION = 1

START_GAP = 1e-3
"""The least gap to which a part solves its own rows in the local start: they are other rows than
all, so that a better solution of them brings no fewer rounds."""

FILLED = 0.95
"""The part of the budget that a random share of the rows is to fill, nearly always less than all.
"""


class Part:
    """A part: its ``source`` and its ``learner``, which numbers rows from 0 in the part.

    ``path`` : where its state is saved, with the number of the last scan added; None = nowhere.
    ``scans`` : how many scans its state has seen; 0 after the local start, −1 before.
    """

    def __init__(self, source: ChunkSource, learner: Learner, path: str | None = None) -> None:
        self.source, self.learner, self.path = source, learner, path
        self.scans, self.width = -1, 0
        self.share = 1.0  # of the rows that matter, the part that the next scan holds
        self.margins = self.slopes = self.factors = np.zeros(0)
        self._last: Scanned | None = None

    def start(self) -> None:
        """Train on the part's rows alone: one reading and the solution of the rows in memory."""
        learner, source = self.learner, self.source
        if self.scans >= 0:
            return
        begin_reading(learner, 0)
        for chunk in source.chunks():
            take_chunk(learner, chunk, order.visiting_order(learner.settings, 0, chunk))
        if learner.progress.reports:  # else no row counts
            run_mini_epochs(finish_reading(learner))
        self.scans = 0

    def agree(self, labels: Sequence[Label], width: int) -> None:
        """Take the order of the labels of all parts, and room for so many columns."""
        learner = self.learner
        before, self.width = learner.targets.positive or next(iter(self.source.labels), None), width
        learner.targets.positive = labels[0]
        if before not in (None, labels[0]):
            learner.active.negate()
            learner.running.w *= -1.0
            learner.running.scalars[kernels.BIAS] *= -1.0

    def close(self) -> None:
        """End the readings of the source, if it has any."""
        if isinstance(self.source, AbstractContextManager):
            self.source.__exit__(None, None, None)

    def save(self) -> None:
        """Save the state, and remove the one before the last."""
        if self.path is None:
            return
        learner = self.learner
        content = {
            "part_version": FORMAT_VERSION,
            "b": learner.progress.b,
            "positive": learner.targets.positive,
            "width": self.width,
            "share": self.share,
            "regime": learner.regime,
        }
        gaps, counts = learner.counts.gaps()
        held = np.diff(learner.active.numbers, prepend=0).astype(np.uint32)
        if learner.regime == Regime.ALL_ROWS:
            held = held[:0]
        arrays = {"gaps": gaps, "counts": counts, "held": held}
        write_sealed(saved_at(self.path, self.scans), content, arrays)
        with suppress(FileNotFoundError):
            os.unlink(saved_at(self.path, self.scans - 2))

    def restore(self, scans: int) -> None:
        """Restore the state after so many scans: read what was saved, and the rows held."""
        assert self.path is not None
        path, learner = saved_at(self.path, scans), self.learner
        content, arrays = read_sealed(path, "part of a run")
        if content.get("part_version") != FORMAT_VERSION:
            raise DataError(f"{path}: not a part of version {FORMAT_VERSION}. Fit again.")
        learner.counts = Counts.of_gaps(arrays["gaps"], arrays["counts"])
        learner.targets.positive, self.width = content["positive"], content["width"]
        self.share, self.scans = content["share"], scans
        every = content["regime"] == Regime.ALL_ROWS
        held = np.cumsum(arrays["held"], dtype=np.int64)
        for chunk in self.source.chunks():
            targets = learner.targets(chunk)
            if every:
                learner.active.share(learner.pool, chunk.rows, targets)
            else:
                chosen = np.flatnonzero(np.isin(targets.numbers, held, assume_unique=True))
                learner.active.add(chunk.rows, chosen, targets)
        learner.regime = Regime(content["regime"])
        learner.progress.reading, learner.progress.b = max(scans, 1), content["b"]
        self.margins = np.zeros(len(learner.active))

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

    def scan(self, number: int, v: Vector, b: float, theta: float | None) -> Scanned:
        """The sums of scan ``number`` at b v; a scan made already is not made again."""
        if self._last is not None and self.scans == number:
            return self._last
        learner = self.learner
        learner.progress.reading = number
        if theta is None:
            self.set_counts(v, b)
        else:
            self.take_unit(theta, b)
        frozen = Frozen(b * v[:-1], b * float(v[-1]), 1.0 / b, b)
        selection = _Selection(learner, number, self.share)
        for chunk in self.source.chunks():
            targets = learner.targets(chunk)
            counts = learner.counts.take_ranges(chunk.ranges)
            marks = frozen.scan(chunk.rows, targets, counts, learner.settings.rho)
            selection.take(chunk, targets, marks)
        if not selection.fits:
            learner.regime = Regime.BLOCKS
            self.share = min(1.0, FILLED * learner.active.budget / selection.size)
        self.scans = number
        self._last = Scanned(frozen.scan_sums, [learner.regime], [len(learner.active)])
        self.save()
        return self._last


class _Selection:
    """Holds anew, in the order of the data, the rows that matter: those held before, while all of
    them fit, and those that a scan marks. Where they do not fit, a random ``share`` of them."""

    def __init__(self, learner: Learner, number: int, share: float) -> None:
        self.learner, self.number, self.share = learner, number, share
        self.size = 0
        """bytes of all rows that matter"""
        self.fits = share == 1.0
        self.full = False
        none = np.zeros(0, dtype=np.int64)
        self.held = learner.active.numbers.copy() if self.fits else none
        if not learner.complete:
            learner.active.clear()

    def take(self, chunk: Chunk, targets: Targets, marks: NDArray[np.uint8]) -> None:
        """Hold rows of a chunk."""
        if self.learner.complete:
            return
        first, last = chunk.ranges[0]
        marks[self.held[slice(*np.searchsorted(self.held, (first, last)))] - first] = 1
        chosen = np.flatnonzero(marks)
        self.size += int(NONZERO_BYTES * np.diff(chunk.rows.indptr)[chosen].sum())
        self.size += ROW_BYTES * len(chosen)
        if self.share < 1.0:
            seed, numbers = self.learner.settings.seed, targets.numbers[chosen]
            chosen = chosen[order.drawn(seed, self.number, numbers, self.share)]
        if not self.full:
            self.full = self.learner.active.add(chunk.rows, chosen, targets) < len(chosen)
            self.fits &= not self.full


class Started(NamedTuple):
    """What is known of the parts after their local starts, one entry each."""

    labels: list[list[Label]]
    extents: list[Extent]
    widths: list[int]
    regimes: list[Regime]


class Described(NamedTuple):
    """What the caller wanted to know of each source."""

    facts: list[Any]


class Joined(NamedTuple):
    """The dual point of the parts' own counts, at a unit of dual: Σ α y (augmented), Σ α and
    Σ Δ² α²."""

    weights: Vector
    steps: float
    extension: float


class Looked(NamedTuple):
    """What rows in memory add at v: their part of ∇P and of P, of the diagonal of H, of H on the
    head (lower triangle), Σ q_i over the rows with a slack; the largest α."""

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


class Counted(NamedTuple):
    """The rows of each part that have a count, numbered from 0 in it, and their counts; and the
    number of its rows."""

    counts: list[tuple[NDArray[np.int64], NDArray[np.int32]]]
    rows: list[int]


class Scanned(NamedTuple):
    """The sums of a scan at fixed weights; each part's regime after it and its rows in memory."""

    sums: ScanSums
    regimes: list[Regime]
    held: list[int]


def start(part: Part) -> Started:
    """Make a part's local start."""
    part.start()
    learner, source = part.learner, part.source
    return Started([list(source.labels)], [learner.extent], [source.width], [learner.regime])


def describe(part: Part, facts: Callable[[Any], Any]) -> Described:
    """Return ``facts`` of the part's source."""
    return Described([facts(part.source)])


def join(part: Part, labels: Sequence[Label], width: int) -> Joined:
    """Agree on labels and columns; return the part's own dual point."""
    part.agree(labels, width)
    learner, running = part.learner, part.learner.running
    unit = 1.0 / learner.progress.b if learner.progress.b else 0.0
    weights, own = np.zeros(width + 1), running.augmented(unit)
    columns = min(width, len(own) - 1)  # a learner has room for more than occur
    weights[:columns], weights[-1] = own[:columns], own[-1]
    part.margins = np.zeros(len(learner.active))
    part.save()
    return Joined(weights, running.steps * unit, running.extension * unit**2)


def look(part: Part, v: Vector, head: NDArray[np.int64]) -> Looked:
    """Look at the rows in memory at v; ``head`` : columns on which H is wanted."""
    active, rho, cost = part.learner.active, part.learner.settings.rho, part.cost
    part.margins = part.margins_of(v)
    alpha = 2.0 * cost * np.maximum(0.0, 1.0 - part.margins)
    part.factors = np.where(part.margins < 1.0, 2.0 * cost, 0.0)
    diagonal, gram = np.zeros(len(v)), np.zeros((len(head), len(head)))
    passes.add(kernels.gram_diagonal, active.rows, part.factors, rho, diagonal)
    if len(head):
        places = np.full(len(v), -1)
        places[head] = np.arange(len(head))
        passes.gram_block(active.rows, part.factors, rho, places, gram)
    lengths = active.squares + (rho**2 + active.delta2)
    return Looked(
        part.sum_of(-alpha), 0.5 * float(kernels.dot(alpha * active.delta2, alpha)), diagonal,
        gram, float(kernels.dot(lengths, (alpha > 0.0).astype(np.float64))),
        [float(alpha.max(initial=0.0))],
    )  # fmt: skip


def product(part: Part, v: Vector) -> Product:
    """Multiply by the Hessian of the rows in memory at the v that was last looked at."""
    active, image = part.learner.active, np.zeros(len(v))
    rho = part.learner.settings.rho
    passes.add(kernels.gram_product, active.rows, part.factors, rho, v, image)
    return Product(image)


def line(part: Part, direction: Vector | None, thetas: Vector) -> Line:
    """Evaluate the loss of the rows in memory at the last v plus θ times a direction; None = the
    same as before."""
    if direction is not None:
        part.slopes = part.margins_of(direction)
    losses, cost = np.empty((len(thetas), 3)), part.cost
    for theta, found in zip(thetas, losses, strict=True):
        kernels.loss_along(part.margins, part.slopes, cost, float(theta), found)
    return Line(losses)


def sum_held(part: Part, b: float) -> Product:
    """Sum the dual point of the rows in memory: Σ α l (x, ρ)."""
    counts = part.learner.counts.take(part.learner.active.numbers)
    return Product(part.sum_of(counts / b))


def scan(part: Part, number: int, v: Vector, b: float, theta: float | None) -> Scanned:
    """Scan all rows at b v, and hold the rows that matter.

    Before, the counts of the rows held are made of the slacks of v, which solves them; or, with
    ``theta``, all counts are θ times those of the local starts, in units of b.
    """
    return part.scan(number, v, b, theta)


def take_counts(part: Part) -> Counted:
    """Return the counts of all rows, as ``Counts.gaps`` has them, and how many rows there are."""
    return Counted([part.learner.counts.entries()], [sum(one.rows for one in part.source.blocks)])


def saved_at(path: str, scans: int) -> str:
    """Return the file of a part's state after so many scans."""
    return f"{path}.scan-{scans:04d}"
