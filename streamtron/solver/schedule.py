"""Train many learners on the same readings, with threads and checkpoints.

What one learner does is in ``train``; here every chunk is shown to every learner that has not
finished, and the solves of the rows in memory are spread over threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.events import (
    ChunkDone,
    Listener,
    Problem,
    ReadingDone,
    ReadingStarted,
    SolveStarted,
    StageDone,
    ignore,
)
from streamtron.core.rows import Chunk, ChunkSource
from streamtron.solver import batched, order
from streamtron.solver.batched import PendingSolve
from streamtron.solver.checkpoint import NOT_BEGUN, Resumed, State
from streamtron.solver.in_memory import Solve, release_rows
from streamtron.solver.learner import Learner
from streamtron.solver.one_vs_rest import CandidateClasses
from streamtron.solver.proving import discard_weights
from streamtron.solver.report import StageReport
from streamtron.solver.threads import Threads, open_threads
from streamtron.solver.train import begin_reading, continue_training, finish_reading, take_chunk


class Checkpointer(Protocol):
    """Saves the state of a run, from which it can be resumed."""

    def checkpoint(self, state: Callable[[], State]) -> None:
        """Offer a checkpoint: between chunks, readings, or solves of rows in memory."""

    def before_solves(self, state: Callable[[], State]) -> None:
        """Offer a checkpoint after the last chunk of a reading: a long solve may follow."""

    def checkpoint_due(self) -> bool:
        """Whether no solve is to begin before the next checkpoint: asked on any thread."""

    def end(self, state: Callable[[], State]) -> None:
        """Take the state in which all learners have finished."""


class Group(NamedTuple):
    """The learners trained now: ``span`` has the first of ``everyone``, and the one behind the last
    of them."""

    everyone: Sequence[Learner]
    span: tuple[int, int]


def train(
    source: ChunkSource,
    learners: Sequence[Learner],
    settings: Settings,
    listen: Listener = ignore,
    *,
    threads: int = 1,
    resumed: Resumed | None = None,
    **how: Any,
) -> None:
    """Read the data until each learner's certificate meets the tolerance, or another limit ends its
    run: each finds what it would find by itself.

    ``learners`` are changed in place; all have the order and the seed of ``settings``. ``resumed``
    : where a run is resumed; its learners are those given, and the placeholders. ``how`` : further
    fields of ``Schedule``.
    """
    with open_threads(threads) as opened:
        Schedule(source, list(learners), settings, listen, opened, **how).run(resumed)


@dataclass(slots=True)
class Schedule:
    """The readings of learners that train together."""

    source: ChunkSource
    learners: list[Learner]
    settings: Settings
    listen: Listener
    threads: Threads
    new_classes: CandidateClasses | None = None
    """makes a learner for every class whose first row is read; None = all are given"""
    room: Callable[[int, Chunk], None] | None = None
    """called with the number of learners and every chunk of the first reading; may raise"""
    checkpointer: Checkpointer | None = None
    group: Group | None = None
    """of which these learners are a part, if groups are trained one after another"""
    can_batch: Callable[[Sequence[Learner]], bool] = lambda _: True
    """whether memory allows several learners a thread to read rows together, which is faster"""

    def run(self, resumed: Resumed | None) -> None:
        """Read until all have finished, from where the run is resumed."""
        reading, unended = 0, True
        if resumed is None:
            for chunk in self.source.chunks() if self.settings.faithful else ():
                for learner in self.learners:  # the paper fixes b from all rows
                    learner.observe(chunk, learner.targets(chunk))
        else:
            reading, unended = resumed.reading, bool(self._unfinished() or resumed.reopened)
            if not resumed.first and unended:
                resumed.restore_rows(self.source, self.settings)
                self._solve(resumed.reopened, _reopen, resumed.reading, resumed.chunks)
            elif not resumed.first:
                for learner in self.learners:
                    release_rows(learner)  # they are not read again
        while self._unfinished() or (self.new_classes and reading == 0):
            self._read(reading, resumed)
            reading, resumed = reading + 1, None
        everyone = self.group.everyone if self.group else self.learners
        if self.checkpointer and unended and all(learner.finished for learner in everyone):
            self.checkpointer.end(partial(self._state, reading, NOT_BEGUN))

    def _read(self, reading: int, resumed: Resumed | None) -> None:
        """Show one reading to every learner, and to those of classes met on the way."""
        learners = self._unfinished()
        new_classes = self.new_classes if reading == 0 else None
        placeholders = new_classes.placeholders if new_classes else ()
        number = 0
        if resumed and resumed.chunks != NOT_BEGUN:
            number = resumed.chunks  # a learner that was reopened waits for the next reading
            learners = [one for one in learners if one.progress.reading == reading]
        self._report_start(reading, learners)
        before = [so_far(learner) for learner in learners]
        if resumed is None or resumed.chunks == NOT_BEGUN:
            for learner in (*learners, *placeholders):
                begin_reading(learner, reading)
            self._offer_checkpoint(reading, 0)
        rows = nonzeros = 0
        for number, chunk in self._chunks(reading, resumed):
            if self.room and reading == 0:  # before new learners take it
                waiting = new_classes.waiting if new_classes else 0
                self.room(len(learners) + waiting + len(placeholders), chunk)
            if new_classes:
                added = new_classes.new_learners()
                self.learners += added
                learners += added
            self._show(chunk, reading, (*learners, *placeholders))
            rows += len(chunk)
            nonzeros += chunk.nonzeros
            self.listen(ChunkDone(reading, rows, nonzeros))
            self._offer_checkpoint(reading, number)
            del chunk  # kept while the next one is awaited, it would be one more in memory
        before += [("train", -1, 0, 0)] * (len(learners) - len(before))
        if self.checkpointer:
            self.checkpointer.before_solves(partial(self._state, reading, number))
        self.listen(SolveStarted(reading, rows))
        unfinished = [learner for learner in learners if not learner.progress.concluded]
        unfinished.sort(key=_ease)
        self._solve(unfinished, finish_reading, reading, number)
        for learner, own in zip(learners, before, strict=True):
            tell_done(reading, rows, learner, own, self.listen)

    def _chunks(self, reading: int, resumed: Resumed | None) -> Iterator[tuple[int, Chunk]]:
        """The chunks of a reading that have not been taken yet, numbered from 1."""
        done = resumed.chunks if resumed else 0
        groups = order.reading_order(self.settings, reading, self.source)
        number = 0 if groups is None else max(done, 0)
        for chunk in self.source.chunks(None if groups is None else groups[number:]):
            number += 1
            if number > done:
                yield number, chunk
            elif resumed:  # of the first reading, which begins anew
                resumed.restore(chunk)
            del chunk  # so that it is gone when the next is asked for

    def _show(self, chunk: Chunk, reading: int, learners: Sequence[Learner]) -> None:
        """Have learners take a chunk, in threads; what scans have in common is summed once."""
        visited = any(learner.mode == "train" for learner in learners)
        positions = order.visiting_order(self.settings, reading, chunk) if visited else None
        scanning = [learner for learner in learners if learner.frozen is not None]
        together = len(scanning) >= batched.LEAST and self.can_batch(self.learners)
        dots = batched.dots(chunk, scanning, self.threads) if together else {}

        def take(learner: Learner) -> None:
            take_chunk(learner, chunk, positions, dots.get(learner, kernels.NO_DOTS))

        self.threads.work(take, learners)

    def _solve(
        self,
        learners: Sequence[Learner],
        begin: Callable[[Learner], Solve],
        reading: int,
        chunks: int,
    ) -> None:
        """Run a solve of every learner; checkpoints are offered between solves."""
        while learners := self._solve_until_checkpoint(learners, begin):
            self._offer_checkpoint(reading, chunks)

    def _solve_until_checkpoint(
        self, learners: Sequence[Learner], begin: Callable[[Learner], Solve]
    ) -> list[Learner]:
        """Run solves until all are done or a checkpoint is due; returns those not begun."""
        solves = left = [PendingSolve(learner, begin) for learner in learners]

        def run(batch: Sequence[PendingSolve]) -> None:
            if batch[0].begun or not self._due() or not any(one.begun for one in solves):
                self._run(batch)

        while left:
            self.threads.work(run, self._batches(left))
            due = self._due()
            left = [one for one in solves if not one.ended and (one.begun or not due)]
        return [one.learner for one in solves if not one.begun]

    def _run(self, batch: Sequence[PendingSolve]) -> None:
        """Run a batch of solves until too few are left to share a pass."""
        least = min(len(batch), batched.LEAST)
        while len(busy := [one for one in batch if not one.ended]) >= least:
            batched.step(busy)

    def _batches(self, solves: Sequence[PendingSolve]) -> list[list[PendingSolve]]:
        """Batches of solves over the same rows; else each by itself."""
        many = len(solves) >= batched.LEAST * self.threads.number
        shared = len({one.learner.active.place for one in solves}) == 1
        if many and shared and self.can_batch(self.learners):
            return batched.batches_of(solves, self.threads.number)
        return [[one] for one in solves]

    def _due(self) -> bool:
        return self.checkpointer is not None and self.checkpointer.checkpoint_due()

    def _unfinished(self) -> list[Learner]:
        return [learner for learner in self.learners if learner.finished is None]

    def _state(self, reading: int, chunks: int) -> State:
        first = self.new_classes is not None and reading == 0
        placeholders = self.new_classes.placeholders if self.new_classes and first else ()
        everyone, span = self.group or (self.learners, None)
        return State.of(reading, chunks, everyone, placeholders, group=span)

    def _report_start(self, reading: int, learners: Sequence[Learner]) -> None:
        purpose = " and ".join(sorted({learner.mode for learner in learners})) or "train"
        rows = sum(block.rows for block in self.source.blocks) or None
        nonzeros = sum(block.nonzeros for block in self.source.blocks) or None
        everyone = self.group.everyone if self.group else self.learners
        left = sum(learner.finished is None for learner in everyone)
        self.listen(ReadingStarted(reading, purpose, rows, nonzeros, left))

    def _offer_checkpoint(self, reading: int, chunks: int) -> None:
        if self.checkpointer:
            self.checkpointer.checkpoint(partial(self._state, reading, chunks))


def _reopen(learner: Learner) -> Solve:
    """Continue after an end that today's settings would not have made."""
    learner.progress.finished = None
    if learner.valid:
        yield from continue_training(learner)
    else:
        discard_weights(learner)


def _ease(learner: Learner) -> tuple[float, int]:
    """Sort key: solves that take long first, so that no thread works alone at the end, and those of
    about the same rows side by side."""
    return learner.settings.delta2, -learner.running.updates


_Before = tuple[str, int, int, int]
"""What a learner had done before a reading: its mode, stage, updates and mini-epochs."""


def so_far(learner: Learner) -> _Before:
    """Return what a learner has done until now, for ``tell_done``."""
    progress = learner.progress
    return learner.mode, progress.stage_number, learner.running.updates, progress.mini_epochs


def tell_done(reading: int, rows: int, learner: Learner, before: _Before, listen: Listener) -> None:
    """Tell what a learner has done in a reading; ``before`` : what it ``so_far`` had done."""
    progress, (mode, stage_number, updates, mini_epochs) = learner.progress, before
    first, problem = max(stage_number, 0), problem_of(learner)
    listen(
        ReadingDone(
            reading,
            ", ".join(stage.name for stage in progress.plan[first : progress.stage_number + 1]),
            mode,
            learner.running.updates - updates,
            progress.mini_epochs - mini_epochs,
            len(learner.active),
            None if learner.frozen is None else learner.certificate,
            learner.running.upper_bound,
            rows,
            learner.settings.tolerance,
            progress.finished,
            problem,
        )
    )
    tell_ended(progress.reports[first:], problem, listen)


def tell_ended(reports: Sequence[StageReport], problem: Problem, listen: Listener) -> None:
    """Tell which of these stages have ended, and why."""
    for report in reports:
        if report.stop_reason:
            name = report.epsilon if isinstance(report.epsilon, str) else f"{report.epsilon:g}"
            listen(StageDone(name, report.stop_reason, problem))


def problem_of(learner: Learner) -> Problem:
    """Return the problem of a learner, as events name it."""
    settings = learner.settings
    price = 0.5 / settings.delta2 if settings.delta2 else None
    return Problem(price, settings.rho, learner.targets.positive)
