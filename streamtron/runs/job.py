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
from streamtron.core.events import Listener, ignore
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
from streamtron.runs.parts import OpenParts, PartsTraining, executor_of, train_new
from streamtron.runs.report import Outcome, build_outcome
from streamtron.runs.store import Absent, SavedState, Store
from streamtron.solver.alphas import Alphas
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner, leave_alphas

STATE_ROW, STATE_COLUMN = 8, 36
"""Bytes of a state, at most, for every learner: of a row its dual variable, of a column its
weight in four vectors."""


class Call(NamedTuple):
    """How a command was called, but for what it computes: the ``machine``, who listens, where parts
    are trained on, when it ``began``, and ``until`` when it is to train (``time.perf_counter``)."""

    machine: Machine
    listen: Listener
    open_parts: OpenParts | None
    began: float
    until: float

    @classmethod
    def begin(
        cls,
        machine: Machine | None = None,
        listen: Listener = ignore,
        open_parts: OpenParts | None = None,
        time_limit: str | float | None = None,
    ) -> Call:
        """Begin now; ``time_limit`` : seconds, or text such as 40m; None = as long as it takes."""
        began, limit = time.perf_counter(), math.inf
        if time_limit is not None:
            limit = float(checked(time_limit, "time-limit", "duration", Range(0.0)))
        return cls(machine or Machine(), listen, open_parts, began, began + limit)

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.began


@dataclass
class Fitting:
    """Learners that are to be trained on data, which are prepared, with settings as the data have
    decided them.

    ``candidates`` : settings that read alike; several in a sweep. ``at_once`` : learners that fit
    in memory together. ``preparing`` : seconds of it. ``readings``, ``bytes_read`` : read beside
    the data. ``store`` : where its run saves every state, if it does; ``state`` : the last one of
    a run that is resumed, which took ``earlier`` seconds; ``last`` : that at the end. ``facts`` :
    that the report has beside.
    """

    call: Call
    data: Dataset
    candidates: list[Settings]
    at_once: int
    preparing: float
    readings: float = 0.0
    bytes_read: int = 0
    store: Store | None = None
    state: State | None = None
    earlier: float = 0.0
    last: SavedState | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """The settings of the only candidate."""
        return self.candidates[0]

    @property
    def seconds(self) -> float:
        """Seconds since the run began, but for those in which it was interrupted."""
        return self.earlier + self.call.seconds

    def check_room(self, store: Store) -> None:
        """Raise a MachineError if the disk of a run has no room for two states: the next one is
        written before the last one goes."""
        data = self.data
        learners = len(self.candidates) * number_of_learners(self.settings, len(data.labels))
        size = learners * (STATE_ROW * data.rows + STATE_COLUMN * data.columns)
        what = f"{store.path}: its states, of {data.rows:,} rows and {data.columns:,} columns, need"
        needed = max(0, 2 * size - store.state_bytes)
        check_room(os.fspath(store.path), needed, what, "Or begin the run elsewhere: --run-dir.")

    def save(self, state: Callable[[], State]) -> None:
        """Save the state after a reading in the run's store; TimeIsUp: it is the last one."""
        if self.store is not None:
            self.store.save(self._saved(state))
        if self.call.until <= time.perf_counter() and all_proven(state()):
            raise TimeIsUp

    def end(self, state: Callable[[], State]) -> None:
        """Take the state in which all learners have finished, and save it in the run's store."""
        self.last = self._saved(state)
        if self.store is not None:
            self.store.save(self.last)

    def _saved(self, state: Callable[[], State]) -> SavedState:
        return SavedState.of(state(), self.data, self.seconds)

    def training(self) -> Training:
        """Return what trains learners on the data, and saves their states here."""
        machine, listen = self.call.machine, self.call.listen
        return Training(self.data, self.settings, machine, listen, self, self.at_once)

    def parts(self, directory: str | os.PathLike[str]) -> PartsTraining:
        """Return the same on parts, which save their states in a directory."""
        os.makedirs(directory, exist_ok=True)
        return PartsTraining(self.training(), self.data, os.fspath(directory), self.call.open_parts)

    def train(self) -> list[list[Learner]]:
        """Train new learners, or those of the state, and return the finished ones by candidate."""
        store = self.store
        if store is not None:
            self.check_room(store)
        if self.settings.parts is None:
            if fits_in_memory(self.settings, size_of(self.data)):
                with open_threads(self.call.machine.thread_count):
                    self.data.load()
            return train_candidates(self.training(), self.candidates, self.state)
        kept: Any = scratch_directory("streamtron-") if store is None else nullcontext(store.parts)
        with kept as directory:
            parts = self.parts(directory)
            learners, self.facts = train_new(parts, self.state)
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

    def commit(
        self,
        store: Store,
        model: str | os.PathLike[str],
        outcome: Outcome,
        absent: Sequence[Absent],
        **changed: Any,
    ) -> None:
        """End a run so, or change it: see ``Store.end``."""
        store.end(
            model,
            outcome.model.to_bytes(),
            settings=self.settings,
            transformer=transformer_digest(self.settings, self.data.reading),
            manifest=outcome.manifest,
            forgotten=outcome.deletions,
            absent=absent,
            report=outcome.report,
            **changed,
        )


@contextmanager
def prepared(
    call: Call,
    shards: Sequence[ShardFile],
    reading: ReaderConfig,
    expected: Expected,
    candidates: Sequence[Settings],
    cache: str,
    decide: Callable[[Settings, Dataset], Settings],
) -> Iterator[Fitting]:
    """Prepare shards in the directory ``cache`` and plan the memory of a fit; ``decide`` :
    completes settings by the data."""
    how: Any = {"listen": call.listen, "executor": executor_of(call.open_parts)}
    with open_dataset(
        shards, reading, candidates[0], call.machine, cache, expected=expected, **how
    ) as data:
        candidates = [decide(settings, data) for settings in candidates]
        learners = len(candidates) * number_of_learners(candidates[0], len(data.labels))
        plan = plan_memory(candidates[0], call.machine, size_of(data), learners)
        plan.check(candidates[0])
        candidates = [settings.but(active_set=plan.active_set) for settings in candidates]
        yield Fitting(call, data, candidates, plan.at_once, call.seconds)
