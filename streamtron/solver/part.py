"""One part of the data, and the steps that ``many_parts`` maps over all parts.

A part holds its rows, in memory as far as its share of the active set goes and on disk, and their
dual variables. Its state is saved at the end of every reading, so that it can be rebuilt anywhere.
Every step returns a tuple that is summed over parts (see ``core.executor.plus``); those on the rows
in memory are in ``held_loss`` and ``part_problem``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.rows import Data, size_of
from streamtron.solver import few_columns
from streamtron.solver.alphas import saved_at
from streamtron.solver.learner import Learner, Memory, enter
from streamtron.solver.part_problem import PartProblem, ReadingPlan, ReadingSums, Settlement
from streamtron.solver.reading import begin_reading, chunks_in_order, show_chunk, solve_in_memory
from streamtron.solver.train import OnePart
from streamtron.solver.working_set import hold_all

START_GAP = 0.03
"""The least gap to which a part solves its own rows in the local start: they are other rows than
all, so that a better solution of them takes longer and brings hardly fewer rounds
(``benchmarks/parts.py``)."""


class PartSize(NamedTuple):
    """Numbers of parts, and of those ``held`` whose rows are all in memory; of rows and nonzeros,
    and of those of the held parts."""

    parts: int
    held: int
    rows: int
    nonzeros: int
    nonzeros_held: int


class Fullness(NamedTuple):
    """Of each problem that reads, in how many parts memory is full; and how many parts have rows to
    take yet."""

    full: NDArray[np.int64]
    parts: int


class Part:
    """A part: its ``data``, in the columns of all, and the problem of every learner on its rows.

    ``learners`` : new ones, made as for all rows. ``path`` : where states are saved, see
    ``saved_at``; None = nowhere.
    """

    def __init__(self, data: Data, learners: Sequence[Learner], path: str | None = None) -> None:
        self.data, self.path = data, path
        self.problems = [PartProblem(learner) for learner in learners]
        self._settings = learners[0].settings
        self._reading = 0
        self._numbers: list[int] = []  # of the problems that read
        self._chunks: Iterator[list[int]] = iter(())
        self._waits = self._ended = True  # for the next chunk; the last one

    def describe(self) -> PartSize:
        """Return how large the part is."""
        (rows, nonzeros), held = size_of(self.data.blocks), self.data.held is not None
        return PartSize(1, int(held), rows, nonzeros, held * nonzeros)

    def start(self, memory: Memory) -> tuple[ReadingSums, ...]:
        """Train on the part's rows alone: solve them in memory, or read them once and solve those
        near the margin with one quadratic of the others."""
        learners = [problem.learner for problem in self.problems]
        if memory == Memory.ALL_ROWS:
            hold_all(learners, self.data)
        for learner in learners:
            enter(learner, memory)
            begin_reading(learner, 0)
        trainer = OnePart(self.data, learners, self._settings)
        trainer.read(0, learners)
        trainer.solve(learners, solve_in_memory)
        self._numbers = [*range(len(self.problems))]
        return tuple(problem.end_start() for problem in self.problems)

    def scan(self, number: int, plans: Sequence[ReadingPlan]) -> tuple[ReadingSums, ...]:
        """Scan all rows at fixed weights, and hold the rows that matter."""
        self._begin_reading(number, plans)
        while self.read_on(next_chunk=True).parts:
            pass
        return self.end_reading()

    def read(self, number: int, plans: Sequence[ReadingPlan]) -> Fullness:
        """Begin a reading that visits rows; see ``read_on``."""
        self._begin_reading(number, plans)
        return self.read_on(next_chunk=True)

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
        """Return the sums of a reading."""
        return tuple(self.problems[number].end_reading() for number in self._numbers)

    def settle(self, settlements: Sequence[Settlement]) -> tuple[()]:
        """End a reading, whose solves are done: settle the α of problems, save their states
        and remove those before the last."""
        rows, _ = size_of(self.data.blocks)
        for settlement in settlements:
            self.problems[settlement.problem].settle(settlement)
            if self.path is not None:
                place = self._saved_at(settlement.problem, self._reading)
                self.problems[settlement.problem].save(place, rows)
                with suppress(FileNotFoundError):
                    os.unlink(self._saved_at(settlement.problem, self._reading - 2))
        return ()

    def close(self) -> None:
        """End the readings of the data, if it has any."""
        if isinstance(self.data, AbstractContextManager):
            self.data.__exit__(None, None, None)

    def restore(self, readings: Sequence[int]) -> None:
        """Restore every problem as it was after a reading."""
        rows, _ = size_of(self.data.blocks)
        for number, reading in enumerate(readings):
            self.problems[number].restore(self._saved_at(number, reading), reading, rows)

    def _saved_at(self, number: int, reading: int) -> str:
        assert self.path is not None
        return saved_at(self.path, number if self._settings.one_vs_rest else None, reading)

    def _begin_reading(self, number: int, plans: Sequence[ReadingPlan]) -> None:
        self._reading, self._numbers = number, [plan.problem for plan in plans]
        problems = [self.problems[plan.problem] for plan in plans]
        for problem, plan in zip(problems, plans, strict=True):
            if plan.memory == Memory.ALL_ROWS and not problem.learner.complete:
                hold_all([problem.learner], self.data)
            problem.begin_reading(number, plan)
            if plan.memory == Memory.FEW_COLUMNS:
                few_columns.begin(problem.learner)
        self._waits, self._ended = True, False
        self._chunks = self._take([problem.learner for problem in problems])

    def _take(self, learners: Sequence[Learner]) -> Iterator[list[int]]:
        """Have learners take all chunks; yields the places of those whose memory is full, and none
        at the end of a chunk."""
        for chunk in chunks_in_order(self.data, self._reading, learners):
            taking = {k: take() for k, (_, take) in enumerate(show_chunk(chunk, learners))}
            while taking:
                taking = {k: rows for k, rows in taking.items() if next(rows, ENDED) is None}
                yield [*taking]


ENDED = object()
