"""The algorithm as one page: one scan of the data, shown to every unfinished learner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from operator import methodcaller
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamtron.chunk import Chunk, ChunkSource
from streamtron.config import Settings
from streamtron.events import ChunkDone, Listener, ReadingDone, ReadingStarted, StageDone, ignore
from streamtron.training import order
from streamtron.training.learner import Learner, square_lengths


class Births(Protocol):
    """Who sees to it that every class gets a learner when its first row comes."""

    waiting: Sequence[Learner]
    """learners of classes that are still to come: all rows so far are the rest to them"""

    def born(self) -> Sequence[Learner]:
        """Learners of the labels met since the last call, as if they had been there all along."""
        ...


Work = Callable[[Callable[[Learner], None], Iterable[Learner]], None]


def train(
    source: ChunkSource,
    learners: Sequence[Learner],
    settings: Settings,
    listen: Listener = ignore,
    *,
    births: Births | None = None,
    threads: int = 1,
) -> None:
    """Read the data until every learner is finished.

    A reading either trains a learner, rows being visited as they pass, or scans for it: weights
    frozen, which certifies them and collects the rows that the mini-epochs afterwards visit in
    memory. Which of the two, and when to stop, each learner decides for itself at the end of a
    reading; the order of the rows is a function of (seed, reading) alone. So what a learner finds
    does not depend on its company.

    Parameters
    ----------
    source : the data.
    learners : changed in place; all share ``settings``' order and seed.
    births : where classes are met as they come; the learners born join those given.
    threads : that learners are spread over; the kernels run without Python's lock.
    """
    if settings.faithful:
        for chunk in source.chunks():
            for learner in learners:
                learner.measure(chunk)
    unfinished = [learner for learner in learners if learner.finished is None]
    reading = 0
    with _workers(threads) as work:
        while unfinished or (births and reading == 0):
            newborn = births if reading == 0 else None
            read(source, unfinished, settings, listen, reading, newborn, work)
            unfinished = [learner for learner in unfinished if learner.finished is None]
            reading += 1


def read(
    source: ChunkSource,
    learners: list[Learner],
    settings: Settings,
    listen: Listener,
    reading: int,
    births: Births | None,
    work: Work,
) -> None:
    """One reading, shown to every learner; ``learners`` grows by those born on the way."""
    _tell_start(source, reading, learners, listen)
    told = [_State.of(learner) for learner in learners]
    waiting = births.waiting if births else ()
    for learner in (*learners, *waiting):
        learner.begin_reading(reading)
    rows = nonzeros = 0
    for chunk in source.chunks(_groups(source, settings, reading)):
        if births:
            learners += births.born()
        show = _Show(chunk, _positions(chunk, settings, reading), reading == 0)
        work(show, (*learners, *waiting))
        rows += len(chunk)
        nonzeros += chunk.nonzeros
        listen(ChunkDone(reading, rows, nonzeros))
    certified = [learner.frozen is not None for learner in learners]
    told += [_State.newborn()] * (len(learners) - len(told))
    work(methodcaller("finish_reading"), learners)
    for learner, before, proven in zip(learners, told, certified, strict=True):
        _tell_end(reading, learner, before, proven, listen)


class _Show:
    """A chunk, as every learner takes it; what they all compute alike is computed once."""

    def __init__(self, chunk: Chunk, positions: NDArray[np.int64], new: bool) -> None:
        self.chunk, self.positions = chunk, positions
        self.squares = square_lengths(chunk) if new else None

    def __call__(self, learner: Learner) -> None:
        learner.take(self.chunk, self.positions, self.squares)


@contextmanager
def _workers(threads: int) -> Iterator[Work]:
    """A map over learners: on threads, if there are several of both."""
    if threads < 2:
        yield _one_by_one
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="streamtron-learner") as pool:

        def work(task: Callable[[Learner], None], learners: Iterable[Learner]) -> None:
            learners = list(learners)
            if len(learners) < 2:
                _one_by_one(task, learners)
            else:
                list(pool.map(task, learners))

        yield work


def _one_by_one(task: Callable[[Learner], None], learners: Iterable[Learner]) -> None:
    for learner in learners:
        task(learner)


def _groups(source: ChunkSource, settings: Settings, reading: int) -> list[Sequence[int]] | None:
    """Blocks read together; None: as they come (there is no random access to text)."""
    if not settings.random or reading == 0:
        return None
    return order.block_groups(settings.seed, reading, len(source.blocks))


def _positions(chunk: Chunk, settings: Settings, reading: int) -> NDArray[np.int64]:
    """The order of visits within a chunk."""
    if not settings.random:
        return order.file_order(len(chunk))
    return order.row_order(settings.seed, reading, chunk.ranges[0][0], len(chunk))


@dataclass(frozen=True, slots=True)
class _State:
    """What a learner had done before a reading."""

    mode: str
    stage_number: int
    updates: int
    mini_epochs: int

    @classmethod
    def of(cls, learner: Learner) -> _State:
        return cls(learner.mode, learner.stage_number, learner.dual.updates, learner.mini_epochs)

    @classmethod
    def newborn(cls) -> _State:
        """Of a learner that is not born yet."""
        return cls("train", -1, 0, 0)


def _tell_start(
    source: ChunkSource, reading: int, learners: Sequence[Learner], listen: Listener
) -> None:
    purpose = " and ".join(sorted({learner.mode for learner in learners})) or "train"
    rows = sum(block.rows for block in source.blocks) or None
    nonzeros = sum(block.nonzeros for block in source.blocks) or None
    listen(ReadingStarted(reading, purpose, rows, nonzeros))


def _tell_end(
    reading: int, learner: Learner, before: _State, certified: bool, listen: Listener
) -> None:
    first = max(before.stage_number, 0)
    worked_in = learner.plan[first : learner.stage_number + 1]
    listen(
        ReadingDone(
            reading,
            ", ".join(stage.name for stage in worked_in),
            before.mode,
            learner.dual.updates - before.updates,
            learner.mini_epochs - before.mini_epochs,
            len(learner.active),
            learner.certificate if certified else None,
            learner.dual.upper_bound,
        )
    )
    for report in learner.reports[first:]:
        if report.why:
            listen(StageDone(str(report.epsilon), report.why))
