"""The algorithm as one page: one scan of the data, shown to every unfinished learner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.events import (
    ChunkDone,
    Listener,
    ReadingDone,
    ReadingStarted,
    StageDone,
    ignore,
)
from streamtron.core.rows import Chunk, ChunkSource
from streamtron.solver import batched, order
from streamtron.solver.batched import Running
from streamtron.solver.checkpoint import NOT_BEGUN, Resumed, State
from streamtron.solver.learner import Learner, Solve
from streamtron.solver.threads import Threads, open_threads


class NewClasses(Protocol):
    """Who sees to it that every class gets a learner when its first row comes."""

    @property
    def waiting(self) -> Sequence[Learner]:
        """Learners of classes that are still to come: all rows so far are the rest to them."""
        ...

    def born(self) -> Sequence[Learner]:
        """Learners of the labels met since the last call, as if they had been there all along."""
        ...


class Checkpointer(Protocol):
    """Who keeps what a run has come to, so that it can be taken up again."""

    def border(self, state: Callable[[], State]) -> None:
        """Between two chunks, two readings, or two solves of rows in memory: the run can be taken
        up from here."""
        ...

    def before_solves(self, state: Callable[[], State]) -> None:
        """A border behind the last chunk of a reading: the next one may be a long solve away."""
        ...

    def due(self) -> bool:
        """Whether no further solve is to begin before the next border: asked on any thread."""
        ...

    def end(self, state: Callable[[], State]) -> None:
        """All learners have finished."""
        ...


class Group(NamedTuple):
    """Those who learn now are a group of ``at_once`` or fewer of ``everyone``."""

    everyone: Sequence[Learner]
    at_once: int


Abreast = Callable[[Sequence[Learner]], bool]


def train(
    source: ChunkSource,
    learners: Sequence[Learner],
    settings: Settings,
    listen: Listener = ignore,
    *,
    new_classes: NewClasses | None = None,
    threads: int = 1,
    room: Callable[[int, Chunk], None] | None = None,
    checkpointer: Checkpointer | None = None,
    resumed: Resumed | None = None,
    group: Group | None = None,
    abreast: Abreast | None = None,
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
    new_classes : where classes are met as they come; the learners born join those given.
    threads : that learners are spread over; the kernels run without Python's lock.
    room : told of every chunk of the first reading, with the number of learners that are going to
        take it; may raise.
    checkpointer : who is told of every border at which the run can be taken up again.
    resumed : where a run is taken up; its learners are those given and those that wait.
    group : where more learn, one group after another; a state is of all of them.
    abreast : whether there is memory for these learners to look at rows in company, several a
        thread, which is faster; None = there is.
    """
    with open_threads(threads) as opened:
        loop = _Loop(
            source,
            list(learners),
            settings,
            listen,
            new_classes,
            opened,
            room,
            checkpointer,
            group,
            abreast,
        )
        loop.run(resumed)


@dataclass(slots=True)
class _Loop:
    source: ChunkSource
    learners: list[Learner]
    settings: Settings
    listen: Listener
    new_classes: NewClasses | None
    threads: Threads
    room: Callable[[int, Chunk], None] | None
    checkpointer: Checkpointer | None
    group: Group | None
    abreast: Abreast | None

    def run(self, resumed: Resumed | None) -> None:
        if resumed is None and self.settings.faithful:
            for chunk in self.source.chunks():
                for learner in self.learners:
                    learner.measure(chunk)
        reading = 0 if resumed is None else resumed.reading
        left = resumed is None or bool(self._unfinished() or resumed.reopened)
        if resumed and not resumed.first and left:
            self._hold_again(resumed)
            self._solve(resumed.reopened, _go_on, reading, resumed.chunks)
        elif resumed and not resumed.first:
            for learner in self.learners:
                learner.release_rows()  # they are not read again, and the end says so
        while self._unfinished() or (self.new_classes and reading == 0):
            self._read(reading, resumed)
            reading, resumed = reading + 1, None
        everyone = self.group.everyone if self.group else self.learners
        if self.checkpointer and left and all(learner.finished for learner in everyone):
            self.checkpointer.end(partial(self._state, reading, NOT_BEGUN))

    def _read(self, reading: int, resumed: Resumed | None) -> None:
        """One reading, shown to every learner, those included that are born on the way."""
        learners = self._unfinished()
        new_classes = self.new_classes if reading == 0 else None
        waiting = new_classes.waiting if new_classes else ()
        number = 0
        if resumed and resumed.chunks != NOT_BEGUN:
            number = resumed.chunks
            learners = [one for one in learners if one.reading == reading]  # others wait for a new
        _tell_start(self.source, reading, learners, self.listen)
        told = [_State.of(learner) for learner in learners]
        if resumed is None or resumed.chunks == NOT_BEGUN:
            for learner in (*learners, *waiting):
                learner.begin_reading(reading)
            self._border(reading, 0)
        rows = nonzeros = 0
        for number, chunk in self._passing(reading, resumed):
            if new_classes:
                newborn = new_classes.born()
                self.learners += newborn
                learners += newborn
            if self.room and reading == 0:
                self.room(len(learners) + len(waiting), chunk)
            shown = *learners, *waiting
            visited = any(learner.mode == "train" for learner in shown)
            positions = positions_in(chunk, self.settings, reading) if visited else None
            show = partial(_show, chunk, positions, self._dots(chunk, shown))
            self.threads.work(show, shown)
            rows += len(chunk)
            nonzeros += chunk.nonzeros
            self.listen(ChunkDone(reading, rows, nonzeros))
            self._border(reading, number)
            del chunk, show  # held while the next is waited for, it would be one more in memory
        told += [_State.newborn()] * (len(learners) - len(told))
        if self.checkpointer:
            self.checkpointer.before_solves(partial(self._state, reading, number))
        unfinished = [learner for learner in learners if not learner.concluded]
        unfinished.sort(key=_lightness)
        self._solve(unfinished, _finish, reading, number)
        for learner, before in zip(learners, told, strict=True):
            _tell_end(reading, learner, before, self.listen)

    def _solve(
        self,
        learners: Sequence[Learner],
        begin: Callable[[Learner], Solve],
        reading: int,
        chunks: int,
    ) -> None:
        """Begin and run a solve of every learner, with a border wherever one is due between two."""
        while learners := self._solve_some(learners, begin):
            self._border(reading, chunks)

    def _solve_some(
        self, learners: Sequence[Learner], begin: Callable[[Learner], Solve]
    ) -> list[Learner]:
        """Begin and run solves, those of a team in company, until all are done or a border is due;
        the learners whose solves have not begun."""
        solves = [Running(learner, begin) for learner in learners]
        teams = self._teams(solves)
        at_once = len(teams) <= self.threads.number

        def run(team: Sequence[Running]) -> list[list[Running]]:
            if not team[0].begun and self._due() and any(one.begun for one in solves):
                return []
            left = self._run(team)
            return left if at_once or self.threads.idle else []  # they may be a team again

        self.threads.work(run, teams)
        self.threads.work(self._run, self._teams([one for one in solves if one.epoch is not None]))
        return [one.learner for one in solves if not one.begun]

    def _run(self, team: Sequence[Running]) -> list[list[Running]]:
        """Run solves in company, to their end; returns those that are to go on elsewhere: what is
        left of a team when it is no company any more, and the first of one where a thread has
        nothing to do."""
        least = min(len(team), batched.LEAST)
        while busy := [one for one in team if not one.ended]:
            if len(busy) < least:
                return [[one] for one in busy]
            if len(busy) > 1 and self.threads.idle:
                return [busy[:1], *batched.while_it_pays(busy[1:])]
            batched.step(busy)
        return []

    def _teams(self, solves: Sequence[Running]) -> list[list[Running]]:
        """Which solves run in company: as many as lie side by side, or each alone."""
        many = len(solves) >= batched.LEAST * self.threads.number
        shared = len({one.learner.active.place for one in solves}) == 1
        if many and shared and self._may_be_abreast():
            return batched.teams(solves, self.threads.number)
        return [[one] for one in solves]

    def _dots(
        self, chunk: Chunk, learners: Iterable[Learner]
    ) -> Mapping[Learner, NDArray[np.float64]]:
        """What those who scan have in common to sum, summed in company."""
        scanning = [learner for learner in learners if learner.frozen is not None]
        if len(scanning) < batched.LEAST or not self._may_be_abreast():
            return {}
        return batched.dots(chunk, scanning, self.threads)

    def _may_be_abreast(self) -> bool:
        return self.abreast is None or self.abreast(self.learners)

    def _due(self) -> bool:
        return self.checkpointer is not None and self.checkpointer.due()

    def _passing(self, reading: int, resumed: Resumed | None) -> Iterator[tuple[int, Chunk]]:
        """The chunks of a reading that are still to be digested, numbered from 1."""
        done = resumed.chunks if resumed else 0
        groups = _groups(self.source, self.settings, reading)
        number = 0 if groups is None else max(done, 0)
        for chunk in self.source.chunks(None if groups is None else groups[number:]):
            number += 1
            if number > done:
                yield number, chunk
            elif resumed:  # of the first reading, which begins anew
                resumed.take_again(chunk)
            del chunk  # so that it is gone when the next is asked for

    def _hold_again(self, resumed: Resumed) -> None:
        """Read the rows that were held: all in the data's order, some in that of their reading."""
        for chunk in self.source.chunks():
            for held in resumed.held:
                held.take(chunk)
        for reading in {held.learner.reading for held in resumed.incomplete}:
            missing = [held for held in resumed.incomplete if held.learner.reading == reading]
            groups = _groups(self.source, self.settings, reading) or []
            if reading == resumed.reading:
                groups = groups[: resumed.chunks]
            for chunk in self.source.chunks(groups):
                for held in missing:
                    held.take(chunk)

    def _unfinished(self) -> list[Learner]:
        return [learner for learner in self.learners if learner.finished is None]

    def _state(self, reading: int, chunks: int) -> State:
        waiting = self.new_classes.waiting if self.new_classes and reading == 0 else ()
        everyone, at_once = self.group or (self.learners, 0)
        return State.of(reading, chunks, everyone, waiting, at_once=at_once)

    def _border(self, reading: int, chunks: int) -> None:
        if self.checkpointer:
            self.checkpointer.border(partial(self._state, reading, chunks))


def _show(
    chunk: Chunk,
    positions: NDArray[np.int64] | None,
    dots: Mapping[Learner, NDArray[np.float64]],
    learner: Learner,
) -> None:
    """Have a learner take a chunk."""
    learner.take(chunk, positions, dots.get(learner, kernels.NOT_SUMMED))


def _finish(learner: Learner) -> Solve:
    return learner.finish_reading()


def _go_on(learner: Learner) -> Solve:
    return learner.go_on()


def _lightness(learner: Learner) -> tuple[float, int]:
    """Those that take long to solve go first, so that no thread works on alone at the end; and who
    takes as long visits about the same rows."""
    return learner.settings.delta2, -learner.dual.updates


def _groups(source: ChunkSource, settings: Settings, reading: int) -> list[Sequence[int]] | None:
    """Blocks read together; None: as they come (there is no random access to text)."""
    if not settings.random or reading == 0:
        return None
    return order.block_groups(settings.seed, reading, len(source.blocks))


def positions_in(chunk: Chunk, settings: Settings, reading: int) -> NDArray[np.int64]:
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


def _tell_end(reading: int, learner: Learner, before: _State, listen: Listener) -> None:
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
            None if learner.frozen is None else learner.certificate,
            learner.dual.upper_bound,
        )
    )
    for report in learner.reports[first:]:
        if report.why:
            listen(StageDone(str(report.epsilon), report.why))
