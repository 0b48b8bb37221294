"""One part of the data, and the steps that ``many_parts`` maps over all parts.

A part holds its rows, in memory as far as its share of the active set goes and on disk in its
cache, and their dual variables. Its state is saved after every reading, so that it can be rebuilt
anywhere. Every step returns a tuple that is summed over parts (see ``core.executor.plus``); those
on the rows in memory are in ``held_loss`` and ``part_problem``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Settings
from streamtron.core.executor import changes_part
from streamtron.core.rows import ChunkSource, Label
from streamtron.solver import few_columns, order
from streamtron.solver.checkpoint import NOT_BEGUN, RestoredLearner, Resumed
from streamtron.solver.duals import saved_at
from streamtron.solver.held_loss import drive
from streamtron.solver.learner import Learner
from streamtron.solver.one_vs_rest import Classes
from streamtron.solver.part_problem import LocalStart, PartProblem, ReadingPlan, ReadingSums
from streamtron.solver.reading import begin_reading, finish_reading, show_chunk, solve_blocks
from streamtron.solver.row_store import Pool
from streamtron.solver.stages import Regime
from streamtron.solver.weights import DualPoint

START_GAP = 0.03
"""The least gap to which a part solves its own rows in the local start: they are other rows than
all, so that a better solution of them takes longer and brings hardly fewer rounds
(``benchmarks/parts.py``)."""


class Fullness(NamedTuple):
    """Of each problem that reads, in how many parts memory is full; and how many parts have rows to
    take yet."""

    full: NDArray[np.int64]
    parts: int


class PartSource(ChunkSource, Protocol):
    """Chunks, and what they were read of: a part that is opened again refuses anything else."""

    @property
    def seen(self) -> Mapping[str, str]:
        """Return names and fingerprints of what was read."""

    def expect(self, fingerprints: Mapping[str, str]) -> None:
        """Refuse what was not that, in the first reading."""


class Part:
    """A part: its ``source``, and the problem of every learner on its rows.

    ``class_weights`` : see ``TargetRule``. ``path`` : where states are saved, see ``saved_at``;
    None = nowhere.
    """

    def __init__(
        self,
        source: PartSource,
        settings: Settings,
        class_weights: Mapping[Label, float] | None = None,
        path: str | None = None,
    ) -> None:
        self.source, self.settings, self.path = source, settings, path
        self.class_weights, self.pool = class_weights, Pool()
        self.problems: list[PartProblem] = []
        self._classes: Classes | None = None
        self._reading = 0
        self._numbers: list[int] = []  # of the problems that read
        self._chunks: Iterator[list[int]] = iter(())
        self._waits = self._ended = True  # for the next chunk; the last one

    @changes_part
    def start(self, center: float) -> tuple[()]:
        """Train on the part's rows alone: one reading and the solution of the rows in memory.
        ``center`` : is taken off labels that are numbers."""
        labels, settings = self.source.labels, self.settings
        if settings.one_vs_rest:
            self._classes = Classes([(settings, self.class_weights)], labels, self.pool)
            learners = self._classes.placeholders[:]
        else:
            learners = [Learner(settings, labels, self.class_weights, None, self.pool)]
            self.problems = [PartProblem(learners[0])]
        learners[0].fix_center(center)
        begin_reading(learners[0], 0)
        for chunk in self.source.chunks():
            learners += self._classes.new_learners() if self._classes else []
            for take in show_chunk(chunk, learners):
                solve_blocks(take)
        for learner in learners:
            if learner.progress.reports:  # else no row counts
                drive(finish_reading(learner))
        return ()

    def describe(self, facts: Callable[[Any], Any]) -> list[Any]:
        """Return facts of the part's source."""
        return [facts(self.source)]

    @changes_part
    def join(self, labels: Sequence[Label | None], columns: int) -> tuple[LocalStart, ...]:
        """Agree on the order of the labels of all parts, and on the columns; return each problem's
        own dual point."""
        if self._classes is not None:
            learners = [self._classes.learner_of(label) for label in labels if label is not None]
            self.problems = [PartProblem(learner) for learner in learners]
            self._classes = None
        positives = labels[: len(self.problems)]  # the first is +1
        starts = tuple(
            problem.agree(label, columns)
            for problem, label in zip(self.problems, positives, strict=True)
        )
        self._save(range(len(self.problems)))
        return starts

    @changes_part
    def take_units(
        self, units: Mapping[int, tuple[float, float]], columns: int
    ) -> tuple[DualPoint, ...]:
        """Take units of the counts of some problems, see ``PartProblem.take_unit``; return the dual
        points that the counts make."""
        points = [self.problems[number].take_unit(*unit, columns) for number, unit in units.items()]
        self._save(units)
        return tuple(points)

    @changes_part
    def scan(self, number: int, plans: Sequence[ReadingPlan]) -> tuple[ReadingSums, ...]:
        """Scan all rows at fixed weights, and hold the rows that matter."""
        self._begin_reading(number, plans)
        while self.read_on(next_chunk=True).parts:
            pass
        return self.end_reading()

    @changes_part
    def read(self, number: int, plans: Sequence[ReadingPlan]) -> Fullness:
        """Begin a reading that visits rows; see ``read_on``."""
        self._begin_reading(number, plans)
        return self.read_on(next_chunk=True)

    @changes_part
    def read_on(self, next_chunk: bool) -> Fullness:
        """Have the problems take the rest of a chunk, or, where all parts have taken one, the next,
        each until its memory is full."""
        flags = np.zeros(len(self._numbers), dtype=np.int64)
        if not self._waits or next_chunk:
            full = next(self._chunks, None)
            self._ended, self._waits = full is None, not full
            flags[full or []] = 1
        return Fullness(flags, int(not self._ended))

    def end_reading(self) -> tuple[ReadingSums, ...]:
        """Save the states after a reading, and return its sums."""
        self._save(self._numbers)
        return tuple(self.problems[number].end_reading() for number in self._numbers)

    @changes_part
    def take_back(self, numbers: Sequence[int]) -> tuple[()]:
        """Take back the visits of problems that have finished; see ``PartProblem.take_back``."""
        for number in numbers:
            self.problems[number].take_back()
        self._save(numbers)
        return ()

    def close(self) -> None:
        """End the readings of the source, if it has any."""
        if isinstance(self.source, AbstractContextManager):
            self.source.__exit__(None, None, None)

    def restore(self, readings: Sequence[int]) -> None:
        """Restore every problem as it was after a reading: read what was saved, and the rows held,
        if there are any, in their order."""
        held: list[RestoredLearner] = []
        for number, reading in enumerate(readings):
            learner = Learner(self.settings, self.source.labels, pool=self.pool)
            self.problems.append(PartProblem(learner))
            rows, seen = self.problems[number].restore(self._saved_at(number, reading), reading)
            self.source.expect(seen)
            if len(rows) or learner.regime == Regime.ALL_ROWS:
                held.append(RestoredLearner(learner, rows, knows_columns=False))
        if held:
            Resumed(NOT_BEGUN, NOT_BEGUN, held).restore_rows(self.source, self.settings)
        for problem in self.problems:
            problem.renew()
        self._reading = max(readings)

    def _saved_at(self, number: int, reading: int) -> str:
        assert self.path is not None
        return saved_at(self.path, number if self.settings.one_vs_rest else None, reading)

    def _save(self, numbers: Iterable[int]) -> None:
        """Save the states of problems, and remove those before the last."""
        if self.path is None:
            return
        rows = sum(block.rows for block in self.source.blocks)
        for number in numbers:
            place = self._saved_at(number, self._reading)
            self.problems[number].save(place, rows, self.source.seen)
            with suppress(FileNotFoundError):
                os.unlink(self._saved_at(number, self._reading - 2))

    def _begin_reading(self, number: int, plans: Sequence[ReadingPlan]) -> None:
        self._reading, self._numbers = number, [plan.problem for plan in plans]
        problems = [self.problems[plan.problem] for plan in plans]
        for problem, plan in zip(problems, plans, strict=True):
            problem.begin_reading(number, plan)
            if problem.learner.regime == Regime.FEW_COLUMNS:
                few_columns.begin(problem.learner)
        self._waits, self._ended = True, False
        self._chunks = self._take(problems)

    def _take(self, problems: Sequence[PartProblem]) -> Iterator[list[int]]:
        """Have problems take all chunks; yields the places of those whose memory is full, and none
        at the end of a chunk."""
        learners = [problem.learner for problem in problems]
        groups = None
        if self.source.blocks:
            groups = order.reading_order(self.settings, self._reading, self.source)
        for chunk in self.source.chunks(groups):
            for problem in problems:
                problem.observe(chunk)
            taking = {k: take() for k, (_, take) in enumerate(show_chunk(chunk, learners))}
            while taking:
                taking = {k: rows for k, rows in taking.items() if next(rows, ENDED) is None}
                yield [*taking]


ENDED = object()
