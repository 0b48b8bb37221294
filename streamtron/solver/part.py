"""One part of the data, and the steps that ``train_parts`` maps over all parts.

A part holds its rows, in memory as far as its share of the active set goes and on disk in its
cache, and their dual variables. Between two scans its state is a function of the last scan alone,
so that it can be rebuilt anywhere. Every step returns a tuple that is summed over parts (see
``core.executor.plus``); those of Newton's method are in ``local``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import ScanSums
from streamtron.core.config import Settings
from streamtron.core.rows import Chunk, ChunkSource, Label
from streamtron.solver import batched, order
from streamtron.solver.learner import Learner
from streamtron.solver.local import LocalProblem, Vector
from streamtron.solver.one_vs_rest import Classes
from streamtron.solver.saved_counts import saved_at
from streamtron.solver.scan import Frozen
from streamtron.solver.state import BestWeights, Extent, Regime
from streamtron.solver.subproblem import run_mini_epochs
from streamtron.solver.threads import Threads
from streamtron.solver.train import begin_reading, finish_reading, take_chunk
from streamtron.solver.weights import WeightState
from streamtron.solver.working_set import NONZERO_BYTES, ROW_BYTES, Pool

START_GAP = 0.03
"""The least gap to which a part solves its own rows in the local start: they are other rows than
all, so that a better solution of them takes longer and brings hardly fewer rounds
(``benchmarks/parts.py``)."""

FILLED = 0.95
"""The part of the budget that a random share of the rows is to fill, nearly always less than all.
"""

ALONE = Threads(1, None)
"""A part is scanned by one thread; others scan other parts."""


class Part:
    """A part: its ``source``, and the problem of every learner on its rows.

    ``class_weights`` : see ``TargetRule``. ``path`` : where states are saved, see ``saved_at``;
    None = nowhere. ``scans`` : how many there have been; 0 after the local start, −1 before.
    """

    def __init__(
        self,
        source: ChunkSource,
        settings: Settings,
        class_weights: Mapping[Label, float] | None = None,
        path: str | None = None,
    ) -> None:
        self.source, self.settings, self.path, self.scans = source, settings, path, -1
        self.class_weights, self.pool = class_weights, Pool()
        self.problems: list[LocalProblem] = []
        self._classes: Classes | None = None
        self._last: tuple[Scanned, ...] = ()
        self._joined: tuple[Joined, ...] = ()

    def start(self) -> None:
        """Train on the part's rows alone: one reading and the solution of the rows in memory."""
        if self.scans >= 0:
            return
        labels, classes = self.source.labels, None
        if self.settings.one_vs_rest:
            classes = Classes(self.settings, labels, self.class_weights, self.pool)
            learners = [classes.placeholder]
        else:
            learners = [Learner(self.settings, labels, self.class_weights, None, self.pool)]
            self.problems = [LocalProblem(learners[0])]
        self._classes = classes
        begin_reading(learners[0], 0)
        for chunk in self.source.chunks():
            positions = order.visiting_order(self.settings, 0, chunk)
            if classes is not None:
                learners += classes.new_learners()
            for learner in learners:
                take_chunk(learner, chunk, positions)
        for learner in learners:
            if learner.progress.reports:  # else no row counts
                run_mini_epochs(finish_reading(learner))
        self.scans = 0

    def join(self, labels: Sequence[Label], width: int) -> tuple[Joined, ...]:
        """Take the order of the labels of all parts, and room for so many columns; return each
        problem's own dual point, whose weights nothing else needs."""
        if not self._joined:
            if self._classes is not None:
                self.problems = [LocalProblem(self._classes.learner_of(label)) for label in labels]
                self._classes = None
            for problem, label in zip(self.problems, labels, strict=False):  # the first is +1
                problem.agree(label, width)
            self.save(range(len(self.problems)))
            self._joined = tuple(map(_joined, self.problems))
            for problem in self.problems:
                problem.learner.running, problem.learner.best = WeightState(), BestWeights()
        return self._joined

    def close(self) -> None:
        """End the readings of the source, if it has any."""
        if isinstance(self.source, AbstractContextManager):
            self.source.__exit__(None, None, None)

    def save(self, numbers: Iterable[int]) -> None:
        """Save the states of problems, and remove those before the last."""
        if self.path is None:
            return
        for number in numbers:
            which, rows = number if self.settings.one_vs_rest else None, rows_of(self.source)
            self.problems[number].save(saved_at(self.path, which, self.scans), rows)
            with suppress(FileNotFoundError):
                os.unlink(saved_at(self.path, which, self.scans - 2))

    def restore(self, scans: Sequence[int]) -> None:
        """Restore every problem as it was after so many scans: read what was saved, and the rows
        held, if there are any."""
        assert self.path is not None
        missing = []
        for number, own in enumerate(scans):
            learner = Learner(self.settings, self.source.labels, pool=self.pool)
            self.problems.append(LocalProblem(learner))
            which = number if self.settings.one_vs_rest else None
            missing.append(self.problems[-1].restore(saved_at(self.path, which, own), own))
        some = any(len(held) for held in missing)
        every = any(each.learner.regime == Regime.ALL_ROWS for each in self.problems)
        for chunk in self.source.chunks() if some or every else ():
            for problem, held in zip(self.problems, missing, strict=True):
                learner = problem.learner
                targets = learner.targets(chunk)
                if learner.regime == Regime.ALL_ROWS:
                    learner.active.share(learner.pool, chunk.rows, targets)
                else:
                    learner.active.add(chunk.rows, _places(held, chunk), targets)
        for problem in self.problems:
            problem.margins = np.zeros(len(problem.learner.active))
        self.scans = max(scans)

    def scan(self, number: int, wanted: Sequence[ToScan]) -> tuple[Scanned, ...]:
        """The sums of scan ``number`` of several problems; one made already is not made again."""
        if self._last and self.scans == number:
            return self._last
        self._joined = ()
        scans = [_Scan(self.problems[one.problem], number, one) for one in wanted]
        learners = [scan.learner for scan in scans]
        for chunk in self.source.chunks():
            dots = batched.dots(chunk, learners, ALONE) if len(learners) >= batched.LEAST else {}
            for scan in scans:
                scan.take(chunk, dots.get(scan.learner, kernels.NO_DOTS))
        self.scans, self._last = number, tuple(scan.finish() for scan in scans)
        self.save(one.problem for one in wanted)
        return self._last


def _places(held: NDArray[np.int64], chunk: Chunk) -> NDArray[np.int64]:
    """Positions in a chunk, which has consecutive rows, of those held, numbered in the part."""
    first, last = chunk.ranges[0]
    return held[slice(*np.searchsorted(held, (first, last)))] - first


class _Scan:
    """A learner's scan at fixed weights. It holds anew, in the order of the data, the rows that
    matter: those held before, while all of them fit, and those that the scan marks. Where they do
    not fit, a random share of them."""

    def __init__(self, problem: LocalProblem, number: int, wanted: ToScan) -> None:
        self.problem, self.learner, self.number = problem, problem.learner, number
        learner, v, b = self.learner, wanted.v, wanted.b
        learner.progress.reading = number
        if wanted.theta is None:
            problem.set_counts(v, b)
        else:
            problem.take_unit(wanted.theta, b)
        self.new = not learner.extent.rows
        self.frozen = learner.frozen = Frozen(b * v[:-1], b * float(v[-1]), 1.0 / b, b)
        self.size = 0
        """bytes of all rows that matter"""
        self.fits = problem.share == 1.0
        self.full = False
        none = np.zeros(0, dtype=np.int64)
        self.held = learner.active.numbers.copy() if self.fits else none
        if not learner.complete:
            learner.active.clear()

    def take(self, chunk: Chunk, dots: Vector) -> None:
        """Scan the rows of a chunk, and hold some of them; ``dots`` : see ``Frozen.scan``."""
        learner = self.learner
        targets, counts = learner.targets(chunk), learner.counts.take_ranges(chunk.ranges)
        if self.new:
            learner.extent.add(targets, learner.settings)
        if chunk.width > len(self.frozen.w):  # of rows that no scan has met
            self.frozen.widen(chunk.width)
        marks = self.frozen.scan(chunk.rows, targets, counts, learner.settings.rho, dots)
        if learner.complete:
            return
        marks[_places(self.held, chunk)] = 1
        chosen = np.flatnonzero(marks)
        self.size += int(NONZERO_BYTES * np.diff(chunk.rows.indptr)[chosen].sum())
        self.size += ROW_BYTES * len(chosen)
        share, seed = self.problem.share, learner.settings.seed
        if share < 1.0:
            chosen = chosen[order.drawn(seed, self.number, targets.numbers[chosen], share)]
        if not self.full:
            self.full = learner.active.add(chunk.rows, chosen, targets) < len(chosen)
            self.fits &= not self.full

    def finish(self) -> Scanned:
        """The sums, and what is held now."""
        learner = self.learner
        learner.frozen = None
        if not self.fits:
            learner.regime = Regime.BLOCKS
            self.problem.share = min(1.0, FILLED * learner.active.budget / self.size)
        held = len(learner.active)
        return Scanned(self.frozen.scan_sums, held, [learner.regime], [learner.extent])


class ToScan(NamedTuple):
    """What a scan is to certify: of a problem, by its number, b v.

    Before, the counts of the rows held are made of the slacks of v, which solves them; or, with
    ``theta``, all counts are θ times those of the local starts, in units of b.
    """

    problem: int
    v: Vector
    b: float
    theta: float | None


class Started(NamedTuple):
    """What is known of the parts after their local starts, one entry each."""

    labels: list[list[Label]]
    widths: list[int]


class Described(NamedTuple):
    """What the caller wanted to know of each source."""

    facts: list[Any]


class Joined(NamedTuple):
    """The best weights of each part, augmented, summed; the dual point of the parts' own counts:
    Σ α y (augmented), Σ α and Σ Δ² α²; the rows in memory; and each part's extent and regime."""

    weights: Vector
    dual: Vector
    steps: float
    extension: float
    held: int
    extents: list[Extent]
    regimes: list[Regime]


class Scanned(NamedTuple):
    """The sums of a scan at fixed weights, as wide as its rows; the rows in memory after it; each
    part's regime, and what is known of all its rows."""

    sums: ScanSums
    held: int
    regimes: list[Regime]
    extents: list[Extent]


def start(part: Part) -> Started:
    """Make a part's local start."""
    part.start()
    return Started([list(part.source.labels)], [part.source.width])


def describe(part: Part, facts: Callable[[Any], Any]) -> Described:
    """Return ``facts`` of the part's source."""
    return Described([facts(part.source)])


def rows_of(source: ChunkSource) -> int:
    """Return how many rows a source has that was read."""
    return sum(block.rows for block in source.blocks)


def join(part: Part, labels: Sequence[Label], width: int) -> tuple[Joined, ...]:
    """Agree on labels and columns; return each problem's own dual point."""
    return part.join(labels, width)


def _joined(problem: LocalProblem) -> Joined:
    learner, width = problem.learner, problem.width
    running = learner.running
    unit = 1.0 / learner.progress.b if learner.progress.b else 0.0
    dual = running.augmented(unit)
    best = dual if learner.best.candidate is None else learner.best.candidate
    return Joined(
        _as_wide(best, width), _as_wide(dual, width), running.steps * unit,
        running.extension * unit**2, len(learner.active), [learner.extent], [learner.regime],
    )  # fmt: skip


def _as_wide(v: Vector, width: int) -> Vector:
    """Augmented weights of so many columns; a learner has room for more than occur."""
    found, columns = np.zeros(width + 1), min(width, len(v) - 1)
    found[:columns], found[-1] = v[:columns], v[-1]
    return found


def scan(part: Part, number: int, wanted: Sequence[ToScan]) -> tuple[Scanned, ...]:
    """Scan all rows at fixed weights, and hold the rows that matter."""
    return part.scan(number, wanted)
