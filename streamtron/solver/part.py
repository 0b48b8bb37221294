"""One part of the data, and the steps that ``many_parts`` maps over all parts.

A part holds its rows, in memory as far as its share of the active set goes and on disk, and their
dual variables. Its state is saved at the end of every reading, so that it can be rebuilt anywhere.
Every step returns a tuple that is summed over parts (see ``core.executor.plus``); those of Newton's
method on the rows in memory are in ``held_loss``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.rows import Data, Vector, size_of
from streamtron.core.scan_sums import ScanSums
from streamtron.solver import few_columns
from streamtron.solver.alphas import Alphas, read_state, saved_at, write_state
from streamtron.solver.held_loss import PartLoss
from streamtron.solver.hessian import QuadraticSums
from streamtron.solver.learner import (
    Learner,
    Memory,
    augment,
    choose_visits,
    enter,
    freeze,
    start_reading,
)
from streamtron.solver.progress import BestWeights
from streamtron.solver.reading import begin_reading, chunks_in_order, show_chunk, solve_in_memory
from streamtron.solver.targets import relaxed
from streamtron.solver.train import OnePart
from streamtron.solver.weights import DualPoint, WeightState
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


class ReadingPlan(NamedTuple):
    """What a reading does for a problem, by its number: it certifies the augmented weights ``v``
    (None: no weights); ρ is the feature of the bias.
    ``start`` : the dual point of all parts from which rows are visited; None = none are visited.
    ``from_slacks`` : whether the α to certify are made of the slacks."""

    problem: int
    memory: Memory
    v: Vector | None
    rho: float
    start: DualPoint | None
    from_slacks: bool = False


class ReadingSums(NamedTuple):
    """The sums of a scan at fixed weights, if there was one; what visits have changed of the dual
    point since the last solve, if there were any; the rows in memory; each part's memory; where
    columns are few, the quadratic of the rows outside memory; and the best weights of each part,
    augmented, where each has trained on its rows alone."""

    sums: tuple[ScanSums, ...]
    moved: tuple[DualPoint, ...]
    held: int
    memories: list[Memory]
    quadratic: tuple[QuadraticSums, ...]
    weights: tuple[Vector, ...] = ()


class BlockSums(NamedTuple):
    """What visits have changed of the dual point since the last solve; the dual point of the rows
    in memory, how many they are, and their nonzeros."""

    moved: DualPoint
    held: DualPoint
    rows: int
    nonzeros: int


class Settlement(NamedTuple):
    """What becomes of the α of a problem at the end of a reading. ``v`` : weights that solve the
    rows held, if these are all that matter, whose α are theirs from now on. ``take_back`` : whether
    what visits have changed is taken back."""

    problem: int
    v: Vector | None
    take_back: bool


class PartProblem(PartLoss):
    """One learner's problem on the rows of a part, which it numbers from 0."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.loss, learner.active, learner.augmentation)
        self.learner = learner
        self._certified: Alphas | None = None  # those before a reading that visits rows
        self._base = learner.running.dual_point  # that of all parts from which rows are visited
        self._before = np.zeros(0, dtype=np.float32)  # the α of the rows held before a solve

    def end_start(self) -> ReadingSums:
        """Return what the part's rows alone have led to."""
        learner = self.learner
        v = learner.best.candidate
        if v is None:
            v = np.zeros(learner.columns + 1)
        learner.best = BestWeights(np.zeros(learner.columns))
        return self.end_reading()._replace(weights=(v,))

    def begin_reading(self, number: int, plan: ReadingPlan) -> None:
        """Prepare a reading; see ``ReadingPlan``."""
        learner, v, self._certified = self.learner, plan.v, None
        augment(learner, plan.rho)
        learner.memory, learner.running = plan.memory, WeightState(learner.columns)
        choose_visits(learner, plan.start is not None)
        frozen = None if v is None else freeze(learner, v[:-1], float(v[-1]))
        if frozen is not None:
            frozen.from_slacks = plan.from_slacks
        start_reading(learner, number, frozen)
        if plan.memory == Memory.FEW_COLUMNS:
            few_columns.begin(learner)
        if plan.start is not None:
            self._certified = Alphas.of(learner.alphas.nonzero())
            self.start_visits(plan.start)

    def end_reading(self) -> ReadingSums:
        """Return the sums of a reading, and what is held now."""
        learner, frozen = self.learner, self.learner.frozen
        moved = (self._moved(),) if learner.visits else ()
        sums = () if frozen is None else (frozen.scan_sums,)
        quadratic = () if learner.outside is None else (learner.outside.sums,)
        learner.frozen, learner.outside = None, None
        learner.running = WeightState(learner.columns)
        self._base = learner.running.dual_point
        self.renew()
        return ReadingSums(sums, moved, len(learner.active), [learner.memory], quadratic)

    def settle(self, settlement: Settlement) -> None:
        """End a reading, whose solves are done; see ``Settlement``."""
        learner, (_, v, take_back) = self.learner, settlement
        if take_back and self._certified is not None:
            learner.alphas = self._certified
        if v is not None:
            learner.alphas.put(learner.active.numbers, self._alphas_at(v))
        self._certified = None

    def save(self, path: str, rows: int) -> None:
        """Save the state after a reading; ``rows`` : of the part."""
        learner = self.learner
        write_state(
            path,
            learner.alphas,
            rows=rows,
            center=learner.targets.center,
            rho=learner.augmentation,
            shuffles=learner.shuffles,
        )

    def restore(self, path: str, reading: int, rows: int) -> None:
        """Restore the state after a reading."""
        learner = self.learner
        content, arrays = read_state(path)
        if content["rows"] != rows:
            raise DataError(
                f"{path}: the state of a part of {content['rows']} rows, and its shards have "
                f"{rows}. Give the shards as they were, or fit again with --overwrite."
            )
        learner.alphas = Alphas.of_gaps(arrays["gaps"], arrays["alphas"])
        learner.targets.center = content["center"]
        augment(learner, content["rho"])
        learner.shuffles = content["shuffles"]
        learner.progress.reading = reading

    def renew(self) -> None:
        """Take the rows, signs and α that are held now."""
        learner = self.learner
        self.held, self.loss, self.rho = learner.active, learner.loss, learner.augmentation
        super().renew()
        self.take_shares(learner.alphas.take(learner.active.numbers))

    def begin_block(self, rho: float) -> BlockSums:
        """Sum what visits have led to, and the rows in memory, which are to be solved; the feature
        of the bias is ρ from now on."""
        learner = self.learner
        augment(learner, rho)
        self.renew()
        self._before = learner.alphas.take(learner.active.numbers)
        held = self.dual_point(self._before, learner.columns)
        return BlockSums(self._moved(), held, len(learner.active), learner.active.nonzeros)

    def move(self, v: Vector, relaxation: float) -> DualPoint:
        """Move the α of the rows in memory from where they were before the solve to those of v,
        ``relaxation`` times as far; return what that changes."""
        learner, start = self.learner, self._before
        moved = relaxed(start, self._alphas_at(v), relaxation, self.domain)
        learner.alphas.put(learner.active.numbers, moved)
        columns = learner.columns
        return self.dual_point(moved, columns).plus(self.dual_point(start, columns), -1)

    def _alphas_at(self, v: Vector) -> NDArray[np.float32]:
        return self.rounded(self.alpha(self.margins_of(v)))

    def start_visits(self, base: DualPoint) -> None:
        """Take the dual point of all parts, from which rows are visited."""
        self._base, self.learner.running = base, WeightState(0)
        self.learner.running.take(base)

    def _moved(self) -> DualPoint:
        return self.learner.running.dual_point.plus(self._base, -1)


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

    def read_on(self, next_chunk: bool, starts: Sequence[tuple[int, DualPoint]] = ()) -> Fullness:
        """Have the problems take the rest of a chunk, or, where all parts have taken one, the next,
        each until its memory is full. ``starts`` : the dual points from which some go on."""
        for number, start in starts:
            self.problems[number].start_visits(start)
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
