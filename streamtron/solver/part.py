"""One part of the data, and the steps that ``many_parts`` maps over all parts.

A part holds its rows, in memory as far as its share of the active set goes and on disk in its
cache, and their dual variables. Its state is saved after every reading, so that it can be rebuilt
anywhere. Every step returns a tuple that is summed over parts (see ``core.executor.plus``); those
of Newton's method are in ``local``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.executor import changes_part
from streamtron.core.rows import Chunk, ChunkSource, Label
from streamtron.solver import batched, order
from streamtron.solver.batched import Threads
from streamtron.solver.checkpoint import RestoredLearner
from streamtron.solver.duals import saved_at
from streamtron.solver.learner import Learner
from streamtron.solver.local import LocalProblem, Moved, Scanned, ToRead, Vector, as_wide
from streamtron.solver.one_vs_rest import Classes
from streamtron.solver.progress import BestWeights
from streamtron.solver.reading import begin_reading, finish_reading, take_and_solve, take_chunk
from streamtron.solver.row_store import Pool
from streamtron.solver.stages import ASCENT, Regime
from streamtron.solver.subproblem import run_mini_epochs
from streamtron.solver.targets import Extent

START_GAP = 0.03
"""The least gap to which a part solves its own rows in the local start: they are other rows than
all, so that a better solution of them takes longer and brings hardly fewer rounds
(``benchmarks/parts.py``)."""

ALONE = Threads(1, None)
"""A part is read by one thread; others read other parts."""


class Part:
    """A part: its ``source``, and the problem of every learner on its rows.

    ``class_weights`` : see ``TargetRule``. ``path`` : where states are saved, see ``saved_at``;
    None = nowhere.
    """

    def __init__(
        self,
        source: ChunkSource,
        settings: Settings,
        class_weights: Mapping[Label, float] | None = None,
        path: str | None = None,
    ) -> None:
        self.source, self.settings, self.path = source, settings, path
        self.class_weights, self.pool = class_weights, Pool()
        self.problems: list[LocalProblem] = []
        self._classes: Classes | None = None
        self._reading = 0
        self._read: list[int] = []
        self._taking: Iterator[list[int]] = iter(())
        self._waits = self._ended = True  # for the next chunk; the last one

    def start(self) -> None:
        """Train on the part's rows alone: one reading and the solution of the rows in memory."""
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
                take_and_solve(learner, chunk, positions)
        for learner in learners:
            if learner.progress.reports:  # else no row counts
                run_mini_epochs(finish_reading(learner))

    def join(self, labels: Sequence[Label], width: int) -> tuple[Joined, ...]:
        """Take the order of the labels of all parts, and room for so many columns; return each
        problem's own dual point."""
        if self._classes is not None:
            self.problems = [LocalProblem(self._classes.learner_of(label)) for label in labels]
            self._classes = None
        for problem, label in zip(self.problems, labels, strict=False):  # the first is +1
            problem.agree(label, width)
        self.save(range(len(self.problems)))
        return tuple(map(_joined, self.problems))

    def take_units(self, units: Mapping[int, tuple[float, float]]) -> tuple[Moved, ...]:
        """Take units of the counts of some problems, see ``LocalProblem.take_unit``."""
        taken = tuple(self.problems[number].take_unit(*unit) for number, unit in units.items())
        self.save(units)
        return taken

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
            self.problems[number].save(saved_at(self.path, which, self._reading), rows)
            with suppress(FileNotFoundError):
                os.unlink(saved_at(self.path, which, self._reading - 2))

    def restore(self, readings: Sequence[int]) -> None:
        """Restore every problem as it was after a reading: read what was saved, and the rows held,
        if there are any, in their order."""
        assert self.path is not None
        orders: dict[int, list[RestoredLearner]] = {}  # by the reading in which they held the rows
        for number, reading in enumerate(readings):
            learner = Learner(self.settings, self.source.labels, pool=self.pool)
            problem = LocalProblem(learner)
            self.problems.append(problem)
            which = number if self.settings.one_vs_rest else None
            held = problem.restore(saved_at(self.path, which, reading), reading)
            if len(held) or learner.regime == Regime.ALL_ROWS:
                restored = RestoredLearner(learner, held, knows_columns=False)
                came = reading if problem.shuffled and learner.regime != Regime.ALL_ROWS else 0
                orders.setdefault(came, []).append(restored)
        if any(orders) and not self.source.blocks:
            for _ in self.source.chunks():  # the order is one of blocks, which are not known yet
                pass
        for came, restored_learners in orders.items():
            groups = order.reading_order(self.settings, came, self.source)
            for chunk in self.source.chunks(groups):
                for restored in restored_learners:
                    restored.take(chunk)
        for problem in self.problems:
            problem.margins = np.zeros(len(problem.learner.active))
        self._reading = max(readings)

    def begin_reading(self, number: int, wanted: Sequence[ToRead]) -> None:
        """Prepare a reading of several problems."""
        for to_read in wanted:
            self.problems[to_read.problem].begin_reading(number, to_read)
        self._reading, self._read = number, [to_read.problem for to_read in wanted]
        self._waits, self._ended = True, False
        self._taking = self._take([self.problems[problem] for problem in self._read])

    def read_on(self, *, next_chunk: bool) -> ReadOn:
        """Have the problems take the rest of a chunk, or the next one, each until its memory is
        full."""
        flags = np.zeros(len(self._read), dtype=np.int64)
        if not self._waits or next_chunk:
            full = next(self._taking, None)
            self._ended, self._waits = full is None, not full
            flags[full or []] = 1
        return ReadOn(flags, int(not self._ended))

    def _take(self, problems: Sequence[LocalProblem]) -> Iterator[list[int]]:
        """Have problems take all chunks; yields the places of those whose memory is full, and none
        at the end of a chunk."""
        visited = any(problem.learner.mode == "train" for problem in problems)
        learners = [problem.learner for problem in problems]
        groups = None
        if self.source.blocks:
            groups = order.reading_order(self.settings, self._reading, self.source)
        for problem in problems:
            problem.shuffled = groups is not None
        for chunk in self.source.chunks(groups):
            dots = batched.dots(chunk, learners, ALONE) if len(learners) >= batched.LEAST else {}
            positions = None
            if visited:
                positions = order.visiting_order(self.settings, self._reading, chunk)
            taking = {
                place: _take_chunk(problem, chunk, positions, dots.get(problem.learner))
                for place, problem in enumerate(problems)
            }
            while taking:
                ended = [place for place, rest in taking.items() if next(rest, ENDED) is ENDED]
                for place in ended:
                    del taking[place]
                yield [*taking]

    def end_reading(self) -> tuple[Scanned, ...]:
        """Save the states after a reading, and return its sums."""
        self.save(self._read)
        return tuple(self.problems[number].end_reading() for number in self._read)

    def take_back(self, numbers: Sequence[int]) -> None:
        """Take back the visits of problems that have finished; see ``LocalProblem.take_back``."""
        for number in numbers:
            self.problems[number].take_back()
        self.save(numbers)


ENDED = object()


def _take_chunk(
    problem: LocalProblem,
    chunk: Chunk,
    positions: NDArray[np.int64] | None,
    dots: Vector | None,
) -> Iterator[None]:
    """Have a problem take a chunk, see ``take_chunk``; observe rows and columns of a run that was
    changed."""
    learner = problem.learner
    frozen = learner.frozen
    assert frozen is not None
    if problem.new:
        learner.extent.columns = max(learner.extent.columns, chunk.width)
        learner.extent.add(learner.targets(chunk), learner.settings)
    if chunk.width > len(frozen.w):
        frozen.widen(chunk.width)
    yield from take_chunk(
        learner, chunk, positions, kernels.NO_DOTS if dots is None else dots,
        _places(problem.kept, chunk),
    )  # fmt: skip


def _places(held: NDArray[np.int64], chunk: Chunk) -> NDArray[np.int64]:
    """Return the positions in a chunk of the rows held, whose numbers rise."""
    places, first = [held[:0]], 0
    for start, stop in chunk.ranges:
        here = held[slice(*np.searchsorted(held, (start, stop)))]
        places.append(here - start + first)
        first += stop - start
    return np.concatenate(places)


class Started(NamedTuple):
    """What is known of the parts after their local starts, one entry each."""

    labels: list[list[Label]]
    widths: list[int]


class Described(NamedTuple):
    """What the caller wanted to know of each source."""

    facts: list[Any]


class Joined(NamedTuple):
    """The best weights of each part, augmented, summed; the dual point of the parts' own counts:
    Σ α y (augmented), Σ α and Σ Δ² α²; the rows in memory; and each part's b, largest count, extent
    and regime."""

    weights: Vector
    dual: Vector
    steps: float
    extension: float
    held: int
    units: list[float]
    largest: list[int]
    extents: list[Extent]
    regimes: list[Regime]


class ReadOn(NamedTuple):
    """Of each problem that reads, in how many parts memory is full; and how many parts have rows to
    take yet."""

    full: NDArray[np.int64]
    parts: int


@changes_part
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


@changes_part
def join(part: Part, labels: Sequence[Label], width: int) -> tuple[Joined, ...]:
    """Agree on labels and columns; return each problem's own dual point."""
    return part.join(labels, width)


def _joined(problem: LocalProblem) -> Joined:
    """Return the dual point of a problem's own counts; its best weights are not needed any more."""
    learner, width, running = problem.learner, problem.width, problem.learner.running
    unit = 1.0 / learner.progress.b if learner.progress.b else 0.0
    dual = running.augmented(unit)
    best = dual if learner.best.candidate is None else learner.best.candidate
    learner.best = BestWeights()
    learner.progress.plan, learner.progress.stage_number = (ASCENT,), 0
    return Joined(
        as_wide(best, width), as_wide(dual, width), running.steps * unit,
        running.extension * unit**2, len(learner.active), [learner.progress.b],
        [learner.counts.largest()], [learner.extent], [learner.regime],
    )  # fmt: skip


@changes_part
def take_units(part: Part, units: Mapping[int, tuple[float, float]]) -> tuple[Moved, ...]:
    """Take units of the counts of some problems; return the dual points that the counts make."""
    return part.take_units(units)


@changes_part
def scan(part: Part, number: int, wanted: Sequence[ToRead]) -> tuple[Scanned, ...]:
    """Scan all rows at fixed weights, and hold the rows that matter."""
    part.begin_reading(number, wanted)
    while part.read_on(next_chunk=True).parts:
        pass
    return part.end_reading()


@changes_part
def read(part: Part, number: int, wanted: Sequence[ToRead]) -> ReadOn:
    """Begin a reading that visits rows; see ``Part.read_on``."""
    part.begin_reading(number, wanted)
    return part.read_on(next_chunk=True)


@changes_part
def read_on(part: Part, next_chunk: bool) -> ReadOn:
    """Go on with a chunk; or, where all parts have taken one, with the next."""
    return part.read_on(next_chunk=next_chunk)


def end_reading(part: Part) -> tuple[Scanned, ...]:
    """End a reading."""
    return part.end_reading()


@changes_part
def take_back(part: Part, numbers: Sequence[int]) -> Described:
    """Take back the visits of problems that have finished."""
    part.take_back(numbers)
    return Described([])
