"""From a problem to its learners: two classes are one, more are one a class; all that fit in
memory learn side by side on the same readings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streamtron.core import kernels
from streamtron.core.certificate import Certificate
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError
from streamtron.core.events import Listener, ignore
from streamtron.core.rows import Chunk, ChunkSource, Label
from streamtron.data import ShardSource
from streamtron.runs.memory import memory_needed
from streamtron.solver import stages
from streamtron.solver.checkpoint import NOT_BEGUN, RestoredLearner, Resumed, State
from streamtron.solver.duals import Counts
from streamtron.solver.earlier_data import EarlierData
from streamtron.solver.learner import Learner
from streamtron.solver.one_vs_rest import Classes, Families
from streamtron.solver.train import Checkpointer, Group, train
from streamtron.solver.working_set import Pool

ClassWeights = Mapping[Label, float]


class Crowded(MachineError):
    """Not all learners fit in memory side by side; ``fit`` of them do."""

    def __init__(self, learners: int, fit: int) -> None:
        super().__init__(
            f"{learners} learners do not fit in memory side by side, {fit} would. Give a larger "
            "--memory."
        )
        self.fit = fit


def learn(
    source: ShardSource,
    candidates: Sequence[Settings],
    machine: Machine,
    listen: Listener = ignore,
    *,
    checkpointer: Checkpointer | None = None,
    state: State | None = None,
) -> list[list[Learner]]:
    """Finished learners of every candidate: one for two classes; with ``multiclass`` or
    ``multilabel`` one a label, in the order of ``source.labels``.

    Learners that do not all fit in memory run in groups, each with readings of its own; what they
    find is the same.

    Parameters
    ----------
    candidates : settings that differ in nothing that decides reading, order and seed.
    checkpointer, state : see ``solver.train.train``; with a state the run is taken up there.
    """
    weights = class_weights_of(source, candidates)
    task = _Task(source, candidates, weights, machine, listen, Pool())
    if state is not None and state.at_once:
        return task.in_groups(state.at_once, checkpointer, state)
    try:
        if several(candidates[0]):
            return task.by_class(checkpointer, state)
        return task.of_two_classes(checkpointer, state)
    except Crowded as crowded:
        at_once = crowded.fit
    return task.in_groups(at_once, checkpointer, None)


def several(settings: Settings) -> bool:
    """Whether there is a learner for every label."""
    return settings.multiclass or settings.multilabel


@dataclass(frozen=True, slots=True)
class _Task:
    """Candidates, with the class weights of each, and what they learn from."""

    source: ShardSource
    candidates: Sequence[Settings]
    weights: Sequence[ClassWeights | None]
    machine: Machine
    listen: Listener
    pool: Pool

    def of_two_classes(
        self, checkpointer: Checkpointer | None, state: State | None
    ) -> list[list[Learner]]:
        learners = [
            Learner(settings, self.source.labels, own, pool=self.pool)
            for settings, own in self._each()
        ]
        resumed = None
        if state is not None:
            fresh = iter(learners)
            held = state.learners(lambda _: next(fresh), "learners")
            resumed = _resumed(state, learners, held)
        self._train(learners, None, checkpointer, resumed)
        return [[learner] for learner in learners]

    def by_class(
        self, checkpointer: Checkpointer | None, state: State | None
    ) -> list[list[Learner]]:
        own = [
            Classes(settings, self.source.labels, weights, self.pool)
            for settings, weights in self._each()
        ]
        families, resumed = Families(own), None
        held = [] if state is None else families.restore(state)
        there = [learner for classes in own for learner in classes.learners]
        if state is not None:
            resumed = _resumed(state, there, held)
        self._train(there, families, checkpointer, resumed)
        return [classes.learners for classes in own]

    def _each(self) -> Iterator[tuple[Settings, ClassWeights | None]]:
        return zip(self.candidates, self.weights, strict=True)

    def _train(
        self,
        learners: Sequence[Learner],
        new_classes: Families | None,
        checkpointer: Checkpointer | None,
        resumed: Resumed | None,
    ) -> None:
        room = Room(self.candidates[0], self.machine, self.pool)
        if resumed is not None:
            room.shared &= any(held.learner.holding_all for held in resumed.held)
        train(
            self.source, learners, self.candidates[0], self.listen,
            new_classes=new_classes, threads=self.machine.thread_count,
            checkpointer=checkpointer, resumed=resumed, room=room, abreast=room.abreast,
        )  # fmt: skip

    def in_groups(
        self, at_once: int, checkpointer: Checkpointer | None, state: State | None
    ) -> list[list[Learner]]:
        """One group after another; each learner gives its rows back when its group is done."""
        source = self.source
        labels: Sequence[Label | None] = [None]
        if several(self.candidates[0]):
            if source.rows is None and state is None:
                for _ in source.chunks():  # until every label is known
                    pass
            labels = list(source.labels)
        found = [
            [_one(settings, source, own, label) for label in labels]
            for settings, own in self._each()
        ]
        every = [learner for own in found for learner in own]
        groups = _Groups(every, at_once, checkpointer, state)
        groups.train(source, self.candidates[0], self.machine, self.listen)
        return found


def finished_learners(
    state: State, settings: Settings, labels: Sequence[Label], weights: ClassWeights | None
) -> list[Learner]:
    """The learners of a run that has ended, holding no rows; ``labels`` as the state's codes have
    them.

    Raises
    ------
    KeyError, TypeError, ValueError : the state is none.
    """
    pool = Pool()
    family = Classes(settings, labels, weights, pool)

    def one(_: Label | None) -> Learner:
        return Learner(settings, labels, weights, pool=pool)

    held = state.learners(family.make if several(settings) else one, "learners")
    return [each.learner for each in held]


def _resumed(state: State, learners: Sequence[Learner], held: Sequence[RestoredLearner]) -> Resumed:
    return Resumed(state.reading, state.chunks, held, [one for one in learners if one.reopen()])


def _alone(_: Sequence[Learner]) -> bool:
    """No learner in company where memory is short."""
    return False


class _Groups:
    """Learners trained one group after another; each gives its rows back when its group is done.

    Parameters
    ----------
    learners, at_once : all, and how many a group is of.
    checkpointer, state : see ``solver.train.train``; with a state, which is of all of them, those
        that have finished are not trained again.
    """

    def __init__(
        self,
        learners: Sequence[Learner],
        at_once: int,
        checkpointer: Checkpointer | None = None,
        state: State | None = None,
    ) -> None:
        self.learners, self.at_once, self.checkpointer, self.state = (
            learners,
            at_once,
            checkpointer,
            state,
        )
        fresh = iter(learners)
        self.held = [] if state is None else state.learners(lambda _: next(fresh), "learners")

    def train(
        self, source: ChunkSource, settings: Settings, machine: Machine, listen: Listener = ignore
    ) -> None:
        """Train them all."""
        together = Group(self.learners, self.at_once)
        for start in range(0, len(self.learners), self.at_once):
            group, pool = self.learners[start : start + self.at_once], Pool()
            for learner in group:
                learner.pool = pool
            train(
                source, group, settings, listen, threads=machine.thread_count,
                checkpointer=self.checkpointer, resumed=self._resumed(start), group=together,
                abreast=_alone,
            )  # fmt: skip
            for learner in group:
                learner.release_rows()
                learner.pool = Pool()

    def _resumed(self, start: int) -> Resumed | None:
        """Where a group is taken up; None = it begins."""
        held = self.held[start : start + self.at_once]
        if self.state is None or not any(one.learner.begun for one in held):
            return None
        learners = [one.learner for one in held]
        if any(learner.finished is None for learner in learners):
            return _resumed(self.state, learners, held)
        following = 1 + max(learner.reading for learner in learners)
        return _resumed(replace(self.state, reading=following, chunks=NOT_BEGUN), learners, held)


def train_together(
    source: ChunkSource,
    make: Callable[[], list[Learner]],
    settings: Settings,
    machine: Machine,
) -> list[Learner]:
    """Learners whose classes are known, trained side by side or, if they do not all fit in memory,
    in groups; ``make`` makes them anew."""
    learners, pool = make(), Pool()
    for learner in learners:
        learner.pool = pool
    try:
        room = Room(settings, machine, pool)
        train(
            source, learners, settings, threads=machine.thread_count, room=room,
            abreast=room.abreast,
        )  # fmt: skip
    except Crowded as crowded:
        learners = make()
        _Groups(learners, crowded.fit).train(source, settings, machine)
    return learners


def _one(
    settings: Settings, source: ShardSource, weights: ClassWeights | None, label: Label | None
) -> Learner:
    if label is not None and weights is not None:
        weights = {label: weights.get(label, 1.0)}
    return Learner(settings, source.labels, weights, label)


class Room:
    """Whether learners fit in memory side by side, told chunk by chunk of the first reading, while
    the data's width and the rows that all of them hold become known."""

    def __init__(self, settings: Settings, machine: Machine, pool: Pool) -> None:
        self.settings, self.machine, self.pool = settings, machine, pool
        self.columns = self.rows = 0
        self.shared = stages.plan(settings)[-1].ascent

    def __call__(self, learners: int, chunk: Chunk) -> None:
        """Before learners take a chunk.

        Raises
        ------
        Crowded : they do not fit, if it goes on like this.
        """
        self.columns = max(self.columns, chunk.width)
        [(_, self.rows)] = chunk.ranges
        if self.shared:
            self.shared = self.pool.offer(
                chunk.rows, chunk.numbers, chunk.squares, self.settings.active_set
            )
        if learners > 1 and self._need(learners) > self.machine.memory_limit:
            fit = next((n for n in range(learners - 1, 1, -1) if self._fits(n)), 1)
            raise Crowded(learners, fit)

    def abreast(self, learners: Sequence[Learner]) -> bool:
        """Whether each thread may look at rows for BATCH_WIDTH of them, and solve as many, at a
        time."""
        held = max(learner.active.nbytes for learner in learners)
        needs = memory_needed(
            replace(self.settings, active_set=held),
            rows=max(learner.rows_met for learner in learners),
            columns=max(len(learner.dual.w) for learner in learners), learners=len(learners),
            threads=self.machine.thread_count, shared=self.shared, abreast=kernels.BATCH_WIDTH,
        )  # fmt: skip
        return sum(need.size for need in needs) <= self.machine.memory_limit

    def _fits(self, learners: int) -> bool:
        return self._need(learners) <= self.machine.memory_limit

    def _need(self, learners: int) -> int:
        needs = memory_needed(
            self.settings, rows=self.rows, columns=self.columns, learners=learners,
            threads=self.machine.thread_count, shared=self.shared,
        )  # fmt: skip
        return sum(need.size for need in needs)


def class_weights(source: ShardSource, settings: Settings) -> ClassWeights | None:
    """``class_weights_of`` one candidate."""
    return class_weights_of(source, [settings])[0]


def class_weights_of(
    source: ShardSource, candidates: Sequence[Settings]
) -> list[ClassWeights | None]:
    """The weight of every label, for every candidate: as given, or n / (classes · n_label), counted
    by row weights, which needs a first reading."""
    balanced = None
    found: list[ClassWeights | None] = []
    for settings in candidates:
        if settings.class_weight == "balanced":
            balanced = balanced or _balanced(source)
            found.append(balanced)
        else:
            found.append(given_class_weights(settings) or None)
    return found


def given_class_weights(settings: Settings) -> dict[Label, float]:
    """The weights that the settings give labels by name."""
    if not isinstance(settings.class_weight, Mapping):
        return {}
    return {_as_label(text): weight for text, weight in settings.class_weight.items()}


def _balanced(source: ShardSource) -> ClassWeights:
    total = np.zeros(0)
    rows = 0.0
    for chunk in source.chunks():
        weights = np.ones(len(chunk)) if chunk.weights is None else chunk.weights
        rows += float(weights.sum())
        found = np.zeros(len(source.labels))
        found[: len(total)] = total
        if chunk.code_offsets is not None:
            weights = np.repeat(weights, np.diff(chunk.code_offsets))
        np.add.at(found, chunk.codes, weights)
        total = found
    return {
        label: float(rows / (len(total) * weight)) if weight > 0.0 else 1.0
        for label, weight in zip(source.labels, total, strict=True)
    }


def _as_label(text: Label) -> Label:
    if isinstance(text, str):
        try:
            return float(text)
        except ValueError:
            return text
    return text


# --- what the scikit-learn face keeps of a learner ---


class Found(NamedTuple):
    """What a learner found, without the rows it held."""

    past: EarlierData
    certificate: Certificate
    counts: Counts
    full_epochs: int
    stop_reason: str

    @classmethod
    def of(cls, learner: Learner, columns: slice, sign: float = 1.0) -> Found:
        """From a finished learner; ``columns`` and ``sign`` as in ``EarlierData.of``."""
        assert learner.certificate is not None
        assert learner.finished is not None
        past = EarlierData.of(learner, columns, sign)
        stop_reason = learner.finished
        return cls(past, learner.certificate, learner.counts, learner.full_epochs, stop_reason)


def problems(
    labels: Sequence[Label], weights: ClassWeights | None
) -> list[tuple[Label, ClassWeights | None]]:
    """(positive label, class weights) of every learner: one for two labels, else one a label, in
    which all others are the rest, of weight 1."""
    if len(labels) == 2:
        return [(labels[1], weights)]
    return [(label, weights and {label: weights.get(label, 1.0)}) for label in labels]
