"""Train linear models, with a certificate: the only loop over readings.

    minimise  P(w) = ½ ‖w‖² + Σ C_k max(0, 1 − y_k·w)²                 (LIBLINEAR -s 1)
    maximise  D(α) = Σ α_k − ½ ‖Σ α_k y_k‖² − Σ α_k²/(4 C_k),   α_k ≥ 0

with y_k = l_k (x_k, ρ). Dual coordinate ascent for the L2-regularised squared-hinge SVM (Hsieh et
al., ICML 2008) with a working set and block minimisation (Yu et al., KDD 2010; Chang and Roth, KDD
2011) and a Newton finish. P ≥ D for any w and any α ≥ 0: one scan of the data at fixed weights,
which also sums v = Σ α_k y_k afresh, proves how far from the optimum they are.

The rows are here (``OnePart``) or in many parts, in other processes (``many_parts``). Where memory
holds all of them they are solved first, and each reading scans them. What a learner does with a
reading is in ``reading``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from streamtron.core.config import Settings
from streamtron.core.events import Listener, WorkDone, ignore
from streamtron.core.rows import Chunk, Data, size_of
from streamtron.core.signals import is_pending, pending_stop
from streamtron.core.threads import ONE_THREAD, Threads
from streamtron.solver.checkpoint import Resumed, State
from streamtron.solver.held_loss import drive
from streamtron.solver.learner import Learner, scan_anew
from streamtron.solver.reading import (
    begin_reading,
    chunks_in_order,
    continue_training,
    finish_reading,
    show_chunk,
    solve_blocks,
    solve_in_memory,
    tell_done,
)
from streamtron.solver.subproblem import Solve
from streamtron.solver.working_set import choose_memory, hold_all


def train(trainer: Trainer, resumed: Resumed | None = None) -> None:
    """Read the data until each learner's certificate meets the tolerance, or another limit ends its
    run: each learner gets what it would get by itself. ``resumed`` : where a run is resumed."""
    trained = resumed is None or bool(resumed.reopened)
    if resumed is not None:
        trainer.reading = resumed.reading
    reopened = () if resumed is None else resumed.reopened
    if trainer.unfinished or reopened:
        trainer.begin([*trainer.unfinished, *reopened])
    trainer.solve(reopened, _reopen)
    while trainer.unfinished:
        reading, learners = trainer.reading, trainer.unfinished
        trainer.tell_begin(reading, learners)
        for learner in learners:
            trainer.begin_reading(learner, reading)
        rows = trainer.read(reading, learners)
        trainer.tell(step="solving")
        trainer.solve(learners, trainer.finish_reading)
        trainer.end_reading(learners)
        for learner in learners:
            tell_done(reading, rows, learner, trainer.listen)
        trainer.reading, trained = reading + 1, True
        trainer.save()
    trainer.end(trained)


def obey_stop() -> None:
    """Raise a signal that waits: the reading is given up, and the last state stays."""
    if (stop := pending_stop()) is not None:
        raise stop


class Checkpointer(Protocol):
    """Saves the state of a run, from which it can be resumed."""

    def save(self, state: Callable[[], State]) -> None:
        """Save the state after a reading, if some learner has not finished."""

    def end(self, state: Callable[[], State]) -> None:
        """Take the state in which all learners have finished."""


class Group(NamedTuple):
    """The learners trained now: ``span`` has the first of ``everyone``, and the one after the
    last."""

    everyone: Sequence[Learner]
    span: tuple[int, int]


class Trainer(ABC):
    """The rows, wherever they are, and the ``learners`` that train on them, which are changed in
    place; all have the order and the seed of ``settings``. ``group`` : the group that the learners
    are, if groups are trained one after another."""

    def __init__(
        self,
        learners: Sequence[Learner],
        settings: Settings,
        listen: Listener,
        checkpointer: Checkpointer | None,
        group: Group | None = None,
    ) -> None:
        self.learners, self.settings, self.listen = list(learners), settings, listen
        self._checkpointer, self._group, self.reading = checkpointer, group, 0
        self._begun = WorkDone("train")  # how the reading began
        self.solve_held: Callable[[Learner], Solve] = solve_in_memory

    @abstractmethod
    def begin(self, learners: Sequence[Learner]) -> None:
        """Choose what memory holds for learners that are to be trained."""

    @abstractmethod
    def read(self, reading: int, learners: Sequence[Learner]) -> int:
        """Have learners take all rows, and solve those that memory holds wherever it is full.
        Returns the rows taken."""

    @abstractmethod
    def solve(self, learners: Sequence[Learner], begin: Callable[[Learner], Solve]) -> None:
        """Run a solve of every learner."""

    def begin_reading(self, learner: Learner, reading: int) -> None:
        """Prepare a learner for a reading."""
        begin_reading(learner, reading)

    def finish_reading(self, learner: Learner) -> Solve:
        """Certify what a learner has scanned, and solve its rows in memory."""
        yield from finish_reading(learner, self.solve_held)

    def end_reading(self, learners: Sequence[Learner]) -> None:
        """End a reading, whose solves are done."""
        return

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Rows and nonzeros of the data."""

    @property
    def unfinished(self) -> list[Learner]:
        """The learners that have not finished."""
        return [learner for learner in self.learners if learner.finished is None]

    @property
    def _everyone(self) -> Sequence[Learner]:
        """All learners of the run."""
        return self._group.everyone if self._group else self.learners

    def tell_begin(self, reading: int, learners: Sequence[Learner]) -> None:
        """Tell what a reading is for, how much there is to read, and how many wait for it."""
        purposes = {"train" if learner.visits else "scan" for learner in learners}
        left = sum(learner.finished is None for learner in self._everyone)
        purpose, total = " and ".join(sorted(purposes)), self.size[1]
        self._begun = WorkDone(purpose, reading, total=total, problems=left)
        self.listen(self._begun)

    def tell(self, **done: Any) -> None:
        """Tell how far the reading is, by fields of ``WorkDone``."""
        self.listen(replace(self._begun, **done))

    def _state(self) -> State:
        span = self._group.span if self._group else None
        return State.of(self.reading, self._everyone, group=span)

    def save(self) -> None:
        """Save the state after a reading, unless all learners have finished."""
        if self._checkpointer and any(learner.finished is None for learner in self._everyone):
            self._checkpointer.save(self._state)

    def end(self, trained: bool) -> None:
        """Hand over the state of the run, if it was trained and all its learners have finished: no
        group trains any more."""
        if self._checkpointer and trained and all(learner.finished for learner in self._everyone):
            self._checkpointer.end(partial(State.of, self.reading, self._everyone))


class OnePart(Trainer):
    """Rows that this process reads. Every chunk is shown to every learner that has not finished,
    and the solves of the rows in memory are spread over threads."""

    def __init__(
        self,
        data: Data,
        learners: Sequence[Learner],
        settings: Settings,
        listen: Listener = ignore,
        threads: Threads = ONE_THREAD,
        checkpointer: Checkpointer | None = None,
        group: Group | None = None,
    ) -> None:
        super().__init__(learners, settings, listen, checkpointer, group)
        self._data, self._threads = data, threads

    @property
    def size(self) -> tuple[int, int]:
        """Rows and nonzeros of the data."""
        return size_of(self._data.blocks)

    def begin(self, learners: Sequence[Learner]) -> None:
        """Have learners hold all rows, if memory has them; else choose what it is to hold."""
        hold_all(learners, self._data)
        for learner in learners if self._data.held is None else ():
            if learner.complete or not learner.progress.readings:
                choose_memory(learner, *self.size)

    def read(self, reading: int, learners: Sequence[Learner]) -> int:
        """Have learners take all chunks; those that hold all rows solve them before any scan."""
        takers = [learner for learner in learners if not learner.complete or learner.frozen]
        if not takers:
            return self.size[0]
        rows = nonzeros = 0
        with closing(self._chunks(reading, takers)) as chunks:
            while True:
                with takers[0].progress.phase("waiting"):
                    chunk = next(chunks, None)
                if chunk is None:
                    return rows
                self._take(chunk, takers)
                rows, nonzeros = rows + len(chunk), nonzeros + chunk.nonzeros
                self.tell(done=nonzeros, rows=rows)
                obey_stop()
                del chunk  # kept while the next is awaited, it would be one more in memory

    def _take(self, chunk: Chunk, learners: Sequence[Learner]) -> None:
        self._threads.work(solve_blocks, show_chunk(chunk, learners))

    def _chunks(self, reading: int, learners: Sequence[Learner]) -> Generator[Chunk, None, None]:
        return chunks_in_order(self._data, reading, learners)

    def solve(self, learners: Sequence[Learner], begin: Callable[[Learner], Solve]) -> None:
        """Run a solve of every learner; none is begun while a signal waits."""

        def run(learner: Learner) -> None:
            if not is_pending():
                drive(begin(learner))

        self._threads.work(run, sorted(learners, key=_ease))
        obey_stop()


def _ease(learner: Learner) -> tuple[float, int]:
    """Sort key: solves that take long first, so that no thread works alone at the end."""
    return -learner.settings.price, -learner.running.updates


def _reopen(learner: Learner) -> Solve:
    """Continue after an end that today's settings would not have made."""
    learner.progress.finish(None)
    if learner.complete and len(learner.active):
        yield from continue_training(learner, solve_in_memory)
    else:
        scan_anew(learner)
