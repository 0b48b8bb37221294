"""From shards, settings and a state to a new state: what fit, resume, update and forget do.

They differ in where learners start: new, from a state, or from a state whose rows have changed.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError
from streamtron.core.events import Listener, WorkDone, ignore
from streamtron.core.executor import Parts, PartsLost, Scans, Work
from streamtron.core.files import check_room, scratch_directory
from streamtron.core.kinds import Range, checked
from streamtron.core.rows import Label
from streamtron.core.threads import open_threads
from streamtron.data import Dataset, Expected, ReaderConfig, ShardFile
from streamtron.data.labels import MOST_NUMBERS
from streamtron.data.sample import transformer_digest
from streamtron.runs.inputs import open_dataset
from streamtron.runs.learners import (
    TimeIsUp,
    all_proven,
    make_learners,
    number_of_learners,
    train_in_groups,
    train_in_time,
)
from streamtron.runs.memory import fits_in_memory, plan_memory, size_of
from streamtron.runs.parts import OpenParts, open_here, plan_parts, take_saved_alphas, write_states
from streamtron.runs.report import Outcome, build_outcome
from streamtron.runs.store import Absent, SavedState, Store
from streamtron.solver.alphas import Alphas, Pieces
from streamtron.solver.checkpoint import Resumed, State
from streamtron.solver.learner import Learner, leave_alphas
from streamtron.solver.many_parts import ManyParts
from streamtron.solver.stopping import reopen

MOST_LOSSES = 4
"""How often in a row, without a reading between, parts may be lost: then it is they that end
their workers, most likely by their memory."""

STATE_ROW, STATE_COLUMN = 8, 36
"""Bytes of a state, at most, for every learner: of a row its dual variable, of a column its
weight in four vectors."""


class Call(NamedTuple):
    """How a command was called, which changes no result: the ``machine``, the listener, where parts
    are opened, when it ``began``, and ``until`` when it may train (``time.perf_counter``)."""

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
    """Prepared data, and the settings of the learners to train on them, as the data decided them.

    ``candidates`` : settings that read alike; several in a sweep. ``at_once`` : learners that fit
    in memory together. ``preparing`` : seconds of it. ``readings``, ``bytes_read`` : made beside
    the data's own. ``store`` : where the run saves every state, if it has one. ``state`` : the last
    one of a run that is resumed, after ``earlier`` seconds. ``last`` : the state at the end.
    ``facts`` : further entries of the report.
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
        """Seconds since the run began, without interruptions."""
        return self.earlier + self.call.seconds

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

    def train(self) -> list[list[Learner]]:
        """Train new learners, or those of the state, and return the finished ones by candidate."""
        groups = [make_learners(self.data, settings) for settings in self.candidates]
        learners = [*chain.from_iterable(groups)]
        if self.state is not None:
            new = iter(learners)
            learners = self.state.learners(lambda _: next(new))
        if self.settings.parts is None:
            self.train_here(learners)
        elif self.store is not None:
            learners = self.train_on_parts(learners, self.store.parts)
        else:
            with scratch_directory("streamtron-") as directory:
                learners = self.train_on_parts(learners, directory)
                for learner in learners:
                    leave_alphas(learner, Alphas.of(learner.alphas.nonzero()))
        size = len(groups[0])
        return [learners[k : k + size] for k in range(0, len(learners), size)]

    def hold_rows(self) -> None:
        """Read all rows into memory, if they fit there."""
        if fits_in_memory(self.settings, size_of(self.data, self.settings)):
            with open_threads(self.call.machine.thread_count):
                self.data.load()

    def train_here(
        self, learners: Sequence[Learner], begin: Callable[[Sequence[Learner]], None] | None = None
    ) -> None:
        """Train learners in this process. ``begin`` : begins a change of a run's rows with the
        learners of each group; None = all rows are read into memory at once, if they fit."""
        machine, listen = self.call.machine, self.call.listen
        if begin is None:
            self.hold_rows()
        how: Any = {"at_once": self.at_once, "state": self.state, "begin": begin}
        train_in_groups(self.data, learners, self.settings, machine, listen, self, **how)

    def train_on_parts(
        self,
        learners: list[Learner],
        directory: str | os.PathLike[str],
        staying: Sequence[Pieces] | None = None,
    ) -> list[Learner]:
        """Train learners on the parts of the settings, which keep their states in a directory.
        Return them with the α of all rows, or copies that went on in their place: if parts are
        lost, training begins again with the last state. ``staying`` : the α of each learner of a
        changed run, by the numbers of the data's rows."""
        call, data, work, losses = self.call, self.data, Work(), 0
        open_parts = call.open_parts or partial(open_here, threads=call.machine.thread_count)
        os.makedirs(directory, exist_ok=True)
        plans = plan_parts(data, self.settings, call.machine, directory)
        scans: Scans = None
        resumed: Resumed | None = None
        if staying is not None:
            write_states(plans, data, learners, staying)
            scans = _readings_of(learners)
        elif self.state is not None:
            resumed = Resumed(self.state.reading, [k for k in learners if reopen(k)])
            scans = _readings_of(learners)
        start = learners, scans, resumed
        while True:
            learners, scans, resumed = copy.deepcopy(start) if call.open_parts else start
            trainer = None
            try:
                with open_parts(plans, scans) as parts:
                    parts.work, parts.tell = work, partial(_tell_round, call.listen, parts)
                    trainer = ManyParts(parts, learners, call.listen, self)
                    train_in_time(trainer, resumed)
                break
            except PartsLost as error:
                losses += 1
                if trainer is not None and trainer.kept:
                    start, losses = (trainer.kept, _readings_of(trainer.kept), None), 1
                if losses > MOST_LOSSES:
                    raise MachineError(
                        f"workers were lost {losses} times in a row, likely by their memory. Give "
                        "them more: fewer --workers, a larger --memory; or a smaller --active-set."
                    ) from error
        take_saved_alphas(directory, self.settings, learners)
        size, readings = trainer.parts_size, max(learner.progress.readings for learner in learners)
        # rows that memory holds are read once, which is a part of preparing them
        read = readings * (size.nonzeros - size.nonzeros_held)
        read += max(0, size.nonzeros_held - data.nonzeros_read)
        data.nonzeros_read += read
        data.bytes_read += data.bytes * read // max(data.nonzeros, 1)
        self.facts = {"parts": len(plans), **work.report()}
        return learners

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
        *state: Any,
    ) -> None:
        """End a run so, or change it, with its new ``state``: see ``Store.end``."""
        digest = transformer_digest(self.settings, self.data.reading)
        rows = outcome.manifest, outcome.deletions, absent
        store.end(model, outcome.model, self.settings, digest, *rows, outcome.report, *state)


def _check_room(store: Store, data: Dataset, settings: Settings, learners: int) -> None:
    """Raise a MachineError if the disk of a run has no room for two states: the next one is written
    before the last one goes."""
    size = learners * (len(data.labels) if settings.softmax else 1)
    size *= STATE_ROW * data.rows + STATE_COLUMN * data.columns
    what = f"{store.path}: its states, of {data.rows:,} rows and {data.columns:,} columns, need"
    needed = max(0, 2 * size - store.state_bytes)
    check_room(os.fspath(store.path), needed, what, "Or begin the run elsewhere: --run-dir.")


def _tell_round(listen: Listener, parts: Parts, step: str, rounds: int) -> None:
    done = f"round {rounds}: {step.replace('_', ' ')}"
    listen(WorkDone(done, estimated_gap=parts.gap_estimate))


def _readings_of(learners: Sequence[Learner]) -> list[int]:
    return [learner.progress.reading for learner in learners]


@contextmanager
def prepared(
    call: Call,
    store: Store | None,
    shards: Sequence[ShardFile],
    reading: ReaderConfig,
    candidates: Sequence[Settings],
    cache: str,
    decide: Callable[[Settings, Dataset], Settings],
    classes: Sequence[Label] | None,
    seen: Mapping[str, str],
) -> Iterator[Fitting]:
    """Prepare shards in the directory ``cache`` and plan the memory of a fit, and the disk for the
    states of its run, if it has one.

    ``decide`` : completes settings by the data. ``classes`` : the only labels there may be, None =
    those of the shards. ``seen`` : the fingerprints, by name, of shards that the run has read."""
    first = candidates[0]
    expected = Expected(
        most_labels=None if first.many_labels else MOST_NUMBERS,
        classes=classes,
        least_labels=0 if classes is not None else 2 - (first.multilabel or first.regression),
        fingerprints=dict(seen),
        allow_duplicate=first.allow_duplicate,
    )
    how: Any = {"listen": call.listen, "executor": getattr(call.open_parts, "executor", None)}
    with open_dataset(shards, reading, call.machine, cache, expected=expected, **how) as data:
        candidates = [decide(settings, data) for settings in candidates]
        first = candidates[0]
        learners = len(candidates) * number_of_learners(first, len(data.labels))
        plan = plan_memory(first, call.machine, size_of(data, first), learners)
        plan.check(first)
        candidates = [settings.but(active_set=plan.active_set) for settings in candidates]
        if store is not None:
            _check_room(store, data, first, learners)
        yield Fitting(call, data, candidates, plan.at_once, call.seconds)
