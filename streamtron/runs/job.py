"""From shards, settings and a state to a new state: what fit, resume, update and forget do.

They differ in where learners start: new, from a state, or from a state whose rows have changed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamtron.core.config import Machine, Settings
from streamtron.core.events import Listener
from streamtron.core.files import check_room, scratch_directory
from streamtron.core.kinds import Range, checked
from streamtron.core.threads import open_threads
from streamtron.data import Dataset, Expected, ReaderConfig, ShardFile
from streamtron.data.sample import transformer_digest
from streamtron.runs.inputs import open_dataset
from streamtron.runs.learners import (
    TimeIsUp,
    Training,
    all_proven,
    number_of_learners,
    train_candidates,
)
from streamtron.runs.memory import fits_in_memory, plan_memory, size_of
from streamtron.runs.parts import OpenParts, PartsTraining, executor_of, plan_new, train_on
from streamtron.runs.report import Outcome, build_outcome
from streamtron.runs.store import Absent, Ended, SavedState, Store
from streamtron.solver.alphas import Alphas
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner, leave_alphas

STATE_ROW, STATE_COLUMN = 8, 36
"""Bytes of a state, at most, for every learner: of a row its dual variable, of a column its
weight in four vectors."""


class Clock(NamedTuple):
    """When a run began, and when its training is to end, on the clock of ``time.perf_counter``."""

    began: float
    until: float

    @classmethod
    def start(cls, time_limit: str | float | None = None) -> Clock:
        """Begin now; ``time_limit`` : seconds, or text such as 40m; None = as long as it takes."""
        began = time.perf_counter()
        if time_limit is None:
            return cls(began, math.inf)
        return cls(began, began + float(checked(time_limit, "time-limit", "duration", Range(0.0))))

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.began

    @property
    def is_up(self) -> bool:
        """Whether training is to end."""
        return time.perf_counter() >= self.until


class Job(NamedTuple):
    """What is to be trained on what.

    ``shards`` : those wanted, without the rows that are forgotten. ``reading``, ``expected`` : how
    they are read, and what they must be. ``candidates`` : settings that read alike; several in a
    sweep. ``cache`` : directory of the prepared data. ``clock`` : when it began, and is to end.
    """

    shards: Sequence[ShardFile]
    reading: ReaderConfig
    expected: Expected
    candidates: Sequence[Settings]
    machine: Machine
    listen: Listener
    cache: str
    open_parts: OpenParts | None
    clock: Clock


@dataclass
class Fitting:
    """A job whose data are prepared, with its settings as the data have decided them.

    ``at_once`` : learners that fit in memory together. ``preparing`` : seconds of it. ``readings``,
    ``bytes_read`` : read beside the data. ``store`` : of its run, if it has one, ``state`` the last
    one of a run that is resumed, which took ``earlier`` seconds. ``facts`` : that the report has
    beside.
    """

    job: Job
    data: Dataset
    candidates: list[Settings]
    at_once: int
    preparing: float
    readings: float = 0.0
    bytes_read: int = 0
    store: Store | None = None
    state: State | None = None
    earlier: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """The settings of the only candidate."""
        return self.candidates[0]

    @property
    def seconds(self) -> float:
        """Seconds since the run began, but for those in which it was interrupted."""
        return self.earlier + self.job.clock.seconds

    def check_room(self, store: Store) -> None:
        """Raise a MachineError if the disk of a run has no room for two states: the next one is
        written before the last one goes."""
        data = self.data
        learners = len(self.candidates) * number_of_learners(self.settings, len(data.labels))
        size = learners * (STATE_ROW * data.rows + STATE_COLUMN * data.columns)
        what = f"{store.path}: its states, of {data.rows:,} rows and {data.columns:,} columns, need"
        needed = max(0, 2 * size - store.state_bytes)
        check_room(os.fspath(store.path), needed, what, "Or begin the run elsewhere: --run-dir.")

    def training(self, saver: Saver) -> Training:
        """Return what trains learners on the data."""
        job = self.job
        return Training(self.data, self.settings, job.machine, job.listen, saver, self.at_once)

    def parts(self, saver: Saver, directory: str | os.PathLike[str]) -> PartsTraining:
        """Return the same on parts, which save their states in a directory."""
        os.makedirs(directory, exist_ok=True)
        training = self.training(saver)
        return PartsTraining(training, self.data, os.fspath(directory), self.job.open_parts)

    def train(self) -> list[list[Learner]]:
        """Train new learners, or those of the state, and return the finished ones by candidate."""
        store = self.store
        if store is not None:
            self.check_room(store)
        saver = Saver(self, None if store is None else store.save)
        if self.settings.parts is None:
            if fits_in_memory(self.settings, size_of(self.data)):
                with open_threads(self.job.machine.thread_count):
                    self.data.load()
            return train_candidates(self.training(saver), self.candidates, self.state)
        kept: Any = scratch_directory("streamtron-") if store is None else nullcontext(store.parts)
        with kept as directory:
            parts = self.parts(saver, directory)
            learners, self.facts = train_on(parts, plan_new(parts, self.state))
            if store is None:
                for learner in learners:
                    leave_alphas(learner, Alphas.of(learner.alphas.nonzero()))
        return [learners]

    def outcome(self, learners: Sequence[Learner], settings: Settings | None = None) -> Outcome:
        """Return the outcome of the finished learners of a candidate, by default the only one."""
        data = self.data
        read = {
            "readings": data.readings + self.readings,
            "seconds": self.seconds,
            "bytes_read": data.bytes_read + self.bytes_read,
        }
        known = settings or self.settings
        outcome = build_outcome(data, learners, known, read, preparing=self.preparing)
        outcome.report.update(self.facts)
        return outcome

    def ended(
        self, outcome: Outcome, shards: Sequence[ShardFile], absent: Sequence[Absent]
    ) -> Ended:
        """Return what the run is once it has ended so; ``shards`` : that it was given; ``absent`` :
        what was forgotten of others."""
        transformer = transformer_digest(self.settings, self.data.reading)
        forgotten, report = (outcome.deletions, absent), dict(outcome.report)
        return Ended(self.settings, transformer, shards, outcome.manifest, *forgotten, report)


@contextmanager
def prepared(job: Job, decide: Callable[[Settings, Dataset], Settings]) -> Iterator[Fitting]:
    """Prepare the shards of a job and plan its memory; ``decide`` : completes settings by data."""
    first, executor = job.candidates[0], executor_of(job.open_parts)
    where: Any = {"expected": job.expected, "listen": job.listen, "executor": executor}
    with open_dataset(job.shards, job.reading, first, job.machine, job.cache, **where) as data:
        candidates = [decide(settings, data) for settings in job.candidates]
        learners = len(candidates) * number_of_learners(candidates[0], len(data.labels))
        plan = plan_memory(candidates[0], job.machine, size_of(data), learners)
        candidates = [settings.but(active_set=plan.active_set) for settings in candidates]
        yield Fitting(job, data, candidates, plan.at_once, job.clock.seconds)


class Saver:
    """A ``solver.train.Checkpointer`` that saves the states of a fitting after every reading and at
    the end, and looks at the clock. ``write`` : saves a state; None = a change is made as a whole.
    ``last`` : the state at the end."""

    def __init__(
        self, fitting: Fitting, write: Callable[[SavedState], object] | None = None
    ) -> None:
        self._fitting, self._write = fitting, write
        self.last: SavedState | None = None

    def save(self, state: Callable[[], State]) -> None:
        """Save the state after a reading; TimeIsUp: it is the last one."""
        if self._write is not None:
            self._write(self._made(state))
        if self._fitting.job.clock.is_up and all_proven(state()):
            raise TimeIsUp

    def end(self, state: Callable[[], State]) -> None:
        """Save the state in which all learners have finished."""
        self.last = self._made(state)
        if self._write is not None:
            self._write(self.last)

    def _made(self, state: Callable[[], State]) -> SavedState:
        return SavedState.of(state(), self._fitting.data, self._fitting.seconds)
