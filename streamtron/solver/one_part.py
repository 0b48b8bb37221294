"""Train many learners on the same readings of rows that one process reads, with threads.

Every chunk is shown to every learner that has not finished, and the solves of the rows in memory
are spread over threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from streamtron.core.config import Settings
from streamtron.core.events import ChunkDone, Listener, ReadingStarted, ignore
from streamtron.core.rows import Chunk, ChunkSource
from streamtron.core.threads import Threads, open_threads
from streamtron.solver import batched, order
from streamtron.solver.batched import PendingSolve, Vector
from streamtron.solver.checkpoint import NOT_BEGUN, Resumed
from streamtron.solver.learner import Learner
from streamtron.solver.one_vs_rest import CandidateClasses
from streamtron.solver.reading import take_and_solve
from streamtron.solver.subproblem import Solve
from streamtron.solver.train import Checkpointer, Data, Group, train
from streamtron.solver.working_set import release_rows


def train_here(
    source: ChunkSource,
    learners: Sequence[Learner],
    settings: Settings,
    listen: Listener = ignore,
    *,
    threads: int = 1,
    resumed: Resumed | None = None,
    **options: Any,
) -> None:
    """Train learners on one source, see ``train``. ``resumed`` : its learners are those given, and
    the placeholders. ``options`` : further parameters of ``OnePart``."""
    with open_threads(threads) as opened:
        data = OnePart(source, list(learners), settings, listen, opened, **options)
        train(data, resumed)
        data.end()


class OnePart(Data):
    """The rows of a source that this process reads.

    ``new_classes`` : makes a learner for every class whose first row is read; None = all learners
    are given. ``has_room`` : whether memory has room for so many learners once they see a chunk; it
    is asked in the first reading, which ends where it has not. ``can_batch`` : whether memory
    allows several learners a thread to read rows together, which is faster.
    """

    def __init__(
        self,
        source: ChunkSource,
        learners: list[Learner],
        settings: Settings,
        listen: Listener,
        threads: Threads,
        *,
        new_classes: CandidateClasses | None = None,
        has_room: Callable[[int, Chunk], bool] | None = None,
        checkpointer: Checkpointer | None = None,
        group: Group | None = None,
        can_batch: Callable[[Sequence[Learner]], bool] = lambda _: True,
    ) -> None:
        super().__init__(learners, settings, listen, checkpointer, group)
        self._source, self._threads, self._new_classes = source, threads, new_classes
        self._has_room, self._can_batch, self._rooms = has_room, can_batch, batched.Rooms()

    def observe(self) -> None:
        """Read all rows beforehand where the procedure is the paper's, which fixes b from them."""
        for chunk in self._source.chunks() if self.settings.faithful else ():
            for learner in self.learners:
                learner.observe(chunk, learner.targets_of(chunk))

    def restore(self, resumed: Resumed) -> None:
        """Hold the rows again that the learners of a resumed run held, unless it is resumed within
        the first reading, which begins anew, or all have ended."""
        if resumed.first:
            return
        if self.unfinished or resumed.reopened:
            resumed.restore_rows(self._source, self.settings)
        else:
            for learner in self.learners:
                release_rows(learner)  # they are not read again

    def expects_learners(self, reading: int) -> bool:
        """Whether learners come to be in this reading."""
        return self._new_classes is not None and reading == 0

    def placeholders(self, reading: int) -> Sequence[Learner]:
        """Learners that read for classes that have not been met."""
        return self._new_classes.placeholders if self._new_classes and reading == 0 else ()

    def read(
        self, reading: int, learners: list[Learner], resumed: Resumed | None
    ) -> tuple[int, int]:
        """Have learners take all chunks, and those of classes met on the way."""
        placeholders = self.placeholders(reading)
        number = 0 if resumed is None or resumed.chunks == NOT_BEGUN else resumed.chunks
        rows = nonzeros = 0
        with closing(self._chunks(reading, resumed)) as chunks:
            for number, chunk in chunks:
                if reading == 0:
                    waiting = self._new_classes.waiting if self._new_classes else 0
                    if self._has_room:  # asked before new learners take the chunk
                        crowd = len(learners) + waiting + len(placeholders)
                        self.crowded = not self._has_room(crowd, chunk)
                    if self.crowded:
                        break
                    added = self._new_classes.new_learners() if self._new_classes else []
                    self.learners += added
                    learners += added
                taking = (*learners, *placeholders)
                visits = any(learner.mode == "train" for learner in taking)
                positions = order.visiting_order(self.settings, reading, chunk) if visits else None
                dots = self._dots(chunk, taking)
                take = partial(take_and_solve, chunk=chunk, positions=positions, dots=dots)
                self._threads.work(take, taking)
                rows += len(chunk)
                nonzeros += chunk.nonzeros
                self.listen(ChunkDone(reading, rows, nonzeros))
                self.offer_checkpoint(reading, number)
                del chunk, take  # kept while the next is awaited, it would be one more in memory
        return number, rows

    def _chunks(
        self, reading: int, resumed: Resumed | None
    ) -> Generator[tuple[int, Chunk], None, None]:
        """The chunks of a reading that have not been taken yet, numbered from 1."""
        done = resumed.chunks if resumed else 0
        groups = order.reading_order(self.settings, reading, self._source)
        number = 0 if groups is None else max(done, 0)
        for chunk in self._source.chunks(None if groups is None else groups[number:]):
            number += 1
            if number > done:
                yield number, chunk
            elif resumed:  # of the first reading, which begins anew
                resumed.restore(chunk)
            del chunk  # so that it is gone when the next is asked for

    def _dots(self, chunk: Chunk, learners: Sequence[Learner]) -> Mapping[Learner, Vector]:
        """Return x_k·w of the learners that scan a chunk, where it pays to sum them together."""
        scanning = [learner for learner in learners if learner.frozen is not None]
        if len(scanning) < batched.LEAST or not self._can_batch(self.learners):
            return {}
        return batched.dots(chunk, scanning, self._threads, self._rooms)

    def solve(
        self,
        learners: Sequence[Learner],
        begin: Callable[[Learner], Solve],
        reading: int,
        chunks: int,
    ) -> None:
        """Run a solve of every learner; checkpoints are offered between solves."""
        learners = sorted(learners, key=_ease)
        while learners := self._solve_until_checkpoint(learners, begin):
            self.offer_checkpoint(reading, chunks)

    def _solve_until_checkpoint(
        self, learners: Sequence[Learner], begin: Callable[[Learner], Solve]
    ) -> list[Learner]:
        """Run solves until all are done or a checkpoint is due; returns those not begun."""
        solves = left = [PendingSolve(learner, begin) for learner in learners]

        def run(batch: Sequence[PendingSolve]) -> None:
            if batch[0].begun or not self._due() or not any(solve.begun for solve in solves):
                self._run(batch)

        while left:
            self._threads.work(run, self._batches(left))
            due = self._due()
            left = [solve for solve in solves if not solve.ended and (solve.begun or not due)]
        return [solve.learner for solve in solves if not solve.begun]

    def _run(self, batch: Sequence[PendingSolve]) -> None:
        """Run a batch of solves until too few are left to share a pass."""
        least = min(len(batch), batched.LEAST)
        while len(busy := [solve for solve in batch if not solve.ended]) >= least:
            batched.step(busy, self._rooms)

    def _batches(self, solves: Sequence[PendingSolve]) -> list[list[PendingSolve]]:
        """Batches of solves over the same rows; else each by itself."""
        many = len(solves) >= batched.LEAST * self._threads.number
        same_rows = len({solve.learner.active.place for solve in solves}) == 1
        if many and same_rows and self._can_batch(self.learners):
            return batched.batches_of(solves, self._threads.number)
        return [[solve] for solve in solves]

    def _due(self) -> bool:
        return self.checkpointer is not None and self.checkpointer.checkpoint_due()

    def tell_begin(self, reading: int, learners: Sequence[Learner]) -> None:
        """Tell what a reading is for, how much there is to read, and how many wait for it."""
        purpose = " and ".join(sorted({learner.mode for learner in learners})) or "train"
        rows = sum(block.rows for block in self._source.blocks) or None
        nonzeros = sum(block.nonzeros for block in self._source.blocks) or None
        left = sum(learner.finished is None for learner in self.everyone)
        self.listen(ReadingStarted(reading, purpose, rows, nonzeros, left))


def _ease(learner: Learner) -> tuple[float, int]:
    """Sort key: solves that take long first, so that no thread works alone at the end, and those of
    about the same rows side by side."""
    return learner.settings.delta2, -learner.running.updates
