"""Train linear classifiers out of core, with a certificate: the only loop over readings.

    minimise  P(w) = ½ ‖w‖² + Σ C_k max(0, 1 − y_k·w)²                 (LIBLINEAR -s 1)
    maximise  D(α) = Σ α_k − ½ ‖Σ α_k y_k‖² − Σ α_k²/(4 C_k),   α_k ≥ 0

with y_k = l_k (x_k, ρ). Dual coordinate ascent for the L2-regularised squared-hinge SVM (Hsieh et
al., ICML 2008) on an integer grid α = c/b, with a working set and block minimisation (Yu et al.,
KDD 2010; Chang and Roth, KDD 2011) and a Newton finish; at ε = 1, without negative steps, it is the
Margitron. P ≥ D for any w and any c ≥ 0: one scan of the data at fixed weights, which also sums
w = Σ c_k y_k afresh, proves how far from the optimum they are.

The rows are here (``one_part``) or in many parts, in other processes (``many_parts``). What a
learner does with a reading is in ``reading``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from streamtron.core.config import Settings
from streamtron.core.events import Listener, Problem, ReadingDone, SolveStarted, StageDone
from streamtron.solver.checkpoint import NOT_BEGUN, Resumed, State
from streamtron.solver.learner import Learner, discard_weights
from streamtron.solver.reading import begin_reading, continue_training, finish_reading
from streamtron.solver.subproblem import Solve


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
    def tell_begin(self, reading: int, learners: Sequence[Learner]) -> None:
        """Tell that a reading begins."""

    def observe(self) -> None:
        """Read all rows beforehand, if the settings need that."""
        return

    def restore(self, resumed: Resumed) -> None:
        """Hold the rows again that the learners of a resumed run held."""
        return

    def expects_learners(self, reading: int) -> bool:
        """Whether learners come to be in this reading."""
        return False

    def placeholders(self, reading: int) -> Sequence[Learner]:
        """Learners that read for classes that have not been met."""
        return ()

    def end(self) -> None:
        """Hand over the state of the run, if it was trained and all its learners have finished."""
        if (
            self.checkpointer
            and self.trained
            and all(learner.finished for learner in self.everyone)
        ):
            self.checkpointer.end(partial(self.state, self.reading, NOT_BEGUN))

    @property
    def unfinished(self) -> list[Learner]:
        """The learners that have not finished."""
        return [learner for learner in self.learners if learner.finished is None]

    @property
    def everyone(self) -> Sequence[Learner]:
        """All learners of the run."""
        return self._group.everyone if self._group else self.learners

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


def _reopen(learner: Learner) -> Solve:
    """Continue after an end that today's settings would not have made."""
    learner.progress.finish(None)
    if learner.valid:
        yield from continue_training(learner)
    else:
        discard_weights(learner)


def tell_done(reading: int, rows: int, learner: Learner, listen: Listener) -> None:
    """Tell what a learner has done in a reading, and which stages have ended."""
    progress, problem = learner.progress, problem_of(learner)
    stages, updates, mini_epochs = progress.done_since(learner.running.updates)
    listen(
        ReadingDone(
            reading, ", ".join(stage.name for stage in stages), progress.mode, updates, mini_epochs,
            learner.rows_held, None if learner.frozen is None else learner.certificate,
            learner.upper_bound, rows, learner.settings.tolerance, progress.finished,
            problem,
        )
    )  # fmt: skip
    for stage in stages:
        if stage.stop_reason:
            listen(StageDone(stage.name, stage.stop_reason, problem))


def problem_of(learner: Learner) -> Problem:
    """Return the problem of a learner, as events name it."""
    settings = learner.settings
    price = 0.5 / settings.delta2 if settings.delta2 else None
    return Problem(price, settings.rho, learner.targets.positive)
