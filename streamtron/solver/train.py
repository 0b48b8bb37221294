"""Train linear classifiers out of core, with a certificate: the only loop over readings.

    minimise  P(w) = ½ ‖w‖² + Σ C_k max(0, 1 − y_k·w)²                 (LIBLINEAR -s 1)
    maximise  D(α) = Σ α_k − ½ ‖Σ α_k y_k‖² − Σ α_k²/(4 C_k),   α_k ≥ 0

with y_k = l_k (x_k, ρ). Dual coordinate ascent for the L2-regularised squared-hinge SVM (Hsieh et
al., ICML 2008) on an integer grid α = c/b, with a working set and block minimisation (Yu et al.,
KDD 2010; Chang and Roth, KDD 2011) and a Newton finish; at ε = 1, without negative steps, it is the
Margitron. P ≥ D for any w and any c ≥ 0: one scan of the data at fixed weights, which also sums
w = Σ c_k y_k afresh, proves how far from the optimum they are.

The rows are here (``OnePart``) or in many parts, in other processes (``many_parts``). What a
learner does with a reading is in ``reading``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import NamedTuple, Protocol

from streamtron.core.config import Settings
from streamtron.core.events import ChunkDone, Listener, ReadingStarted, SolveStarted, ignore
from streamtron.core.rows import Block, Chunk, ChunkSource
from streamtron.core.threads import ONE_THREAD, Threads
from streamtron.solver import order
from streamtron.solver.checkpoint import NOT_BEGUN, Resumed, State
from streamtron.solver.held_loss import drive
from streamtron.solver.learner import Learner, discard_weights
from streamtron.solver.one_vs_rest import Classes
from streamtron.solver.reading import (
    begin_reading,
    continue_training,
    finish_reading,
    show_chunk,
    solve_blocks,
    tell_done,
)
from streamtron.solver.subproblem import Solve
from streamtron.solver.working_set import release_rows


def train(data: Data, resumed: Resumed | None = None) -> None:
    """Read the data until each learner's certificate meets the tolerance, or another limit ends its
    run: each learner gets what it would get by itself. Where memory has no room for all of them,
    the first reading ends everything. ``resumed`` : where a run is resumed."""
    data.trained = resumed is None or bool(resumed.reopened)
    if resumed is None:
        data.observe()
    else:
        data.reading = resumed.reading
        data.restore(resumed)
        data.solve(resumed.reopened, _reopen, resumed.reading, resumed.chunks)
    while data.unfinished or data.expects_learners(data.reading):
        reading, learners = data.reading, data.unfinished
        within = resumed is not None and resumed.chunks != NOT_BEGUN
        if within:  # a learner that was reopened waits for the next reading
            learners = [learner for learner in learners if learner.progress.reading == reading]
        data.tell_begin(reading, learners)
        if not within:
            for learner in (*learners, *data.placeholders(reading)):
                begin_reading(learner, reading)
            data.offer_checkpoint(reading, 0)
        chunks, rows = data.read(reading, learners, resumed)
        if data.crowded:
            return
        data.before_solves(reading, chunks)
        data.listen(SolveStarted(reading, rows))
        waiting = [learner for learner in learners if not learner.progress.concluded]
        data.solve(waiting, finish_reading, reading, chunks)
        for learner in learners:
            tell_done(reading, rows, learner, data.listen)
        data.reading, data.trained, resumed = reading + 1, True, None
    data.end()


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


class Data(ABC):
    """The rows, wherever they are, and the ``learners`` that train on them, which are changed in
    place; all have the order and the seed of ``settings``. ``group`` : of which the learners are a
    part, if groups are trained one after another."""

    def __init__(
        self,
        learners: list[Learner],
        settings: Settings,
        listen: Listener,
        checkpointer: Checkpointer | None,
        group: Group | None = None,
    ) -> None:
        self.learners, self.settings, self.listen = learners, settings, listen
        self.checkpointer, self._group = checkpointer, group
        self.reading, self.trained = 0, False
        self.crowded = False  # whether memory has no room for all learners

    @abstractmethod
    def read(
        self, reading: int, learners: list[Learner], resumed: Resumed | None
    ) -> tuple[int, int]:
        """Have learners take all rows, and solve those that memory holds wherever it is full.
        Learners of classes that are met are appended. Returns the chunks and rows taken."""

    @abstractmethod
    def solve(
        self,
        learners: Sequence[Learner],
        begin: Callable[[Learner], Solve],
        reading: int,
        chunks: int,
    ) -> None:
        """Run a solve of every learner; checkpoints are offered between solves."""

    @abstractmethod
    def expects_learners(self, reading: int) -> bool:
        """Whether learners come to be in this reading."""

    def observe(self) -> None:
        """Read all rows beforehand, if the settings need that."""
        return

    def restore(self, resumed: Resumed) -> None:
        """Hold the rows again that the learners of a resumed run held."""
        return

    def placeholders(self, reading: int) -> Sequence[Learner]:
        """Learners that read for classes that have not been met."""
        return ()

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks of the data, where they are known."""
        return ()

    @property
    def unfinished(self) -> list[Learner]:
        """The learners that have not finished."""
        return [learner for learner in self.learners if learner.finished is None]

    @property
    def everyone(self) -> Sequence[Learner]:
        """All learners of the run."""
        return self._group.everyone if self._group else self.learners

    def tell_begin(self, reading: int, learners: Sequence[Learner]) -> None:
        """Tell what a reading is for, how much there is to read, and how many wait for it."""
        purpose = " and ".join(sorted({learner.mode for learner in learners})) or "train"
        rows = sum(block.rows for block in self.blocks) or None
        nonzeros = sum(block.nonzeros for block in self.blocks) or None
        left = sum(learner.finished is None for learner in self.everyone)
        expected = int(not self.settings.one_vs_rest)  # where parts have not begun
        self.listen(ReadingStarted(reading, purpose, rows, nonzeros, left or expected))

    def state(self, reading: int, chunks: int) -> State:
        """Return the state of the run after so many chunks of a reading."""
        span = self._group.span if self._group else None
        return State.of(reading, chunks, self.everyone, self.placeholders(reading), group=span)

    def before_solves(self, reading: int, chunks: int) -> None:
        """Offer a checkpoint after the last chunk of a reading."""
        if self.checkpointer:
            self.checkpointer.before_solves(partial(self.state, reading, chunks))

    def offer_checkpoint(self, reading: int, chunks: int) -> None:
        """Offer a checkpoint."""
        if self.checkpointer:
            self.checkpointer.checkpoint(partial(self.state, reading, chunks))

    def end(self) -> None:
        """Hand over the state of the run, if it was trained and all its learners have finished."""
        ended = self.trained and all(learner.finished for learner in self.everyone)
        if self.checkpointer and ended:
            self.checkpointer.end(partial(self.state, self.reading, NOT_BEGUN))


class Resources(NamedTuple):
    """What this process has for learners: threads, and memory.

    ``has_room`` : whether memory has room for so many of them once they see a chunk; it is asked in
    the first reading, which ends where it has not.
    """

    threads: Threads = ONE_THREAD
    has_room: Callable[[int, Chunk], bool] = lambda *_: True


ENOUGH = Resources()
"""One thread, and memory for whatever is asked."""


class OnePart(Data):
    """The rows of a source that this process reads. Every chunk is shown to every learner that has
    not finished, and the solves of the rows in memory are spread over threads.

    ``new_classes`` : makes a learner for every class whose first row is read; None = all learners
    are given.
    """

    def __init__(
        self,
        source: ChunkSource,
        learners: Sequence[Learner],
        settings: Settings,
        listen: Listener = ignore,
        resources: Resources = ENOUGH,
        *,
        new_classes: Classes | None = None,
        checkpointer: Checkpointer | None = None,
        group: Group | None = None,
    ) -> None:
        super().__init__(list(learners), settings, listen, checkpointer, group)
        self._source, self._new_classes, self._resources = source, new_classes, resources
        self._threads = resources.threads

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks of the data, once they have been read."""
        return self._source.blocks

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
        phase = "waiting" if reading else "preparing"
        with closing(self._chunks(reading, resumed)) as chunks:
            while True:
                with learners[0].progress.phase(phase) if learners else nullcontext():
                    number, chunk = next(chunks, (number, None))
                if chunk is None:
                    break
                if reading == 0:
                    waiting = self._new_classes.waiting if self._new_classes else 0
                    crowd = len(learners) + waiting + len(placeholders)
                    self.crowded = not self._resources.has_room(crowd, chunk)
                    if self.crowded:  # asked before new learners take the chunk
                        break
                    added = self._new_classes.new_learners() if self._new_classes else []
                    self.learners += added
                    learners += added
                takes = show_chunk(chunk, [*learners, *placeholders])
                self._threads.work(solve_blocks, takes)
                rows += len(chunk)
                nonzeros += chunk.nonzeros
                self.listen(ChunkDone(reading, rows, nonzeros))
                self.offer_checkpoint(reading, number)
                del chunk, takes  # kept while the next is awaited, it would be one more in memory
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

    def solve(
        self,
        learners: Sequence[Learner],
        begin: Callable[[Learner], Solve],
        reading: int,
        chunks: int,
    ) -> None:
        """Run a solve of every learner; checkpoints are offered between solves."""
        left = sorted(learners, key=_ease)
        while left:
            begun: list[Learner] = []

            def run(learner: Learner, begun: list[Learner] = begun) -> None:
                if not (begun and self._due()):
                    begun.append(learner)
                    drive(begin(learner))

            self._threads.work(run, left)
            left = [learner for learner in left if learner not in begun]
            if left:
                self.offer_checkpoint(reading, chunks)

    def _due(self) -> bool:
        return self.checkpointer is not None and self.checkpointer.checkpoint_due()


def _ease(learner: Learner) -> tuple[float, int]:
    """Sort key: solves that take long first, so that no thread works alone at the end."""
    return learner.settings.delta2, -learner.running.updates


def _reopen(learner: Learner) -> Solve:
    """Continue after an end that today's settings would not have made."""
    learner.progress.finish(None)
    if learner.valid:
        yield from continue_training(learner)
    else:
        discard_weights(learner)
