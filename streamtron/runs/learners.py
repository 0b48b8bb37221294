"""Train the learners of a problem: one for two classes, else one a class against the rest.

Learners that fit in memory together train on the same readings, others in groups, one group after
another. What a learner finds is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from streamtron.core import kernels
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError
from streamtron.core.events import Listener, ignore
from streamtron.core.rows import Chunk, ChunkSource, Label
from streamtron.data import ShardSource
from streamtron.runs.memory import memory_needed
from streamtron.solver import stages
from streamtron.solver.checkpoint import NOT_BEGUN, RestoredLearner, Resumed, State
from streamtron.solver.in_memory import release_rows
from streamtron.solver.learner import Learner
from streamtron.solver.one_vs_rest import CandidateClasses, Classes
from streamtron.solver.schedule import Checkpointer, Group, train
from streamtron.solver.state import Regime
from streamtron.solver.stopping import reopen
from streamtron.solver.working_set import Pool

ClassWeights = Mapping[Label, float]
Source = TypeVar("Source", bound=ChunkSource)


class LearnersExceedMemory(MachineError):
    """Only ``fit`` of the learners fit in memory together."""

    def __init__(self, learners: int, fit: int) -> None:
        super().__init__(
            f"{learners} learners do not fit in memory together, {fit} would. Give a larger "
            "--memory."
        )
        self.fit = fit


def train_candidates(
    training: Training[ShardSource],
    candidates: Sequence[Settings],
    state: State | None = None,
) -> list[list[Learner]]:
    """Train candidates that agree in reading, order and seed on the same readings, from ``state``
    on if there is one. Return the finished learners of each: one for two classes, else one a label,
    in the order of the source's ``labels``."""
    source = training.source
    weights = class_weights_of(source, candidates)
    at_once = 0 if state is None else state.at_once
    if not at_once:
        try:
            return _train_as_labels_appear(training, candidates, weights, state)
        except LearnersExceedMemory as error:
            at_once, state = error.fit, None
    labels: Sequence[Label | None] = [None]
    if candidates[0].one_vs_rest:
        if source.rows is None and state is None:
            read_to_end(source)  # now every label is known
        labels = list(source.labels)
    found = [
        [_learner(settings, source.labels, own, None, label) for label in labels]
        for settings, own in zip(candidates, weights, strict=True)
    ]
    training.in_groups([learner for own in found for learner in own], at_once, state)
    return found


def train_learners(
    source: ChunkSource,
    make: Callable[[], list[Learner]],
    settings: Settings,
    machine: Machine,
) -> list[Learner]:
    """Train learners whose classes are known; ``make`` returns them new each time."""
    learners, pool, training = make(), Pool(), Training(source, settings, machine)
    for learner in learners:
        learner.pool = pool
    try:
        training.together(learners)
    except LearnersExceedMemory as error:
        learners = make()
        training.in_groups(learners, error.fit)
    return learners


def _train_as_labels_appear(
    training: Training[ShardSource],
    candidates: Sequence[Settings],
    weights: Sequence[ClassWeights | None],
    state: State | None,
) -> list[list[Learner]]:
    """Train all together; a class gets its learners when its first row is read."""
    pool, classes, labels = Pool(), None, training.source.labels
    both = list(zip(candidates, weights, strict=True))
    if candidates[0].one_vs_rest:
        classes = CandidateClasses([Classes(one, labels, own, pool) for one, own in both])
        restored = [] if state is None else classes.restore(state)
        learners = [learner for one in classes.candidates for learner in one.learners]
    else:
        learners = [_learner(one, labels, own, pool, None) for one, own in both]
        restored = _restored(state, learners)
    resumed = None if state is None else _resumed(state, learners, restored)
    training.together(learners, pool, new_classes=classes, resumed=resumed)
    if classes is not None:
        return [one.learners for one in classes.candidates]
    return [[learner] for learner in learners]


@dataclass(frozen=True, slots=True)
class Training(Generic[Source]):
    """Trains learners on the same readings of a source, together or in groups."""

    source: Source
    settings: Settings
    machine: Machine
    listen: Listener = ignore
    checkpointer: Checkpointer | None = None

    def together(self, learners: Sequence[Learner], pool: Pool | None = None, **how: Any) -> None:
        """Train learners, which share ``pool`` (None = the pool of the first), together; raise
        LearnersExceedMemory in the first reading if they do not fit. ``how`` : of ``train``."""
        pool = learners[0].pool if pool is None else pool
        guard = MemoryGuard(self.settings, self.machine, pool)
        if (resumed := how.get("resumed")) is not None:
            guard.shared &= any(one.learner.regime == Regime.ALL_ROWS for one in resumed.held)
        self._train(learners, room=guard, can_batch=guard.can_batch, **how)

    def in_groups(
        self, learners: Sequence[Learner], at_once: int, state: State | None = None
    ) -> None:
        """Train ``at_once`` learners at a time; a group's rows are released when it is done.
        ``state`` is of all learners; those that have finished are not trained again."""
        restored = _restored(state, learners)
        for start in range(0, len(learners), at_once):
            group, pool = learners[start : start + at_once], Pool()
            for learner in group:
                learner.pool = pool
            resumed = _resumed_group(state, restored[start : start + at_once])
            everyone = Group(learners, at_once)
            self._train(group, resumed=resumed, group=everyone, can_batch=lambda _: False)
            for learner in group:
                release_rows(learner)
                learner.pool = Pool()

    def _train(self, learners: Sequence[Learner], **how: Any) -> None:
        train(
            self.source, learners, self.settings, self.listen, threads=self.machine.thread_count,
            checkpointer=self.checkpointer, **how,
        )  # fmt: skip


def read_to_end(source: ChunkSource) -> None:
    """Read all rows, so that their number, width and labels are known."""
    for _ in source.chunks():
        pass


def restore_finished(
    state: State, settings: Settings, labels: Sequence[Label], weights: ClassWeights | None
) -> list[Learner]:
    """Restore the learners of a finished run, which hold no rows; ``labels`` in the order of the
    state's label codes."""
    make = partial(_learner, settings, labels, weights, Pool())
    return [each.learner for each in state.learners(make, "learners")]


def _restored(state: State | None, learners: Sequence[Learner]) -> list[RestoredLearner]:
    new = iter(learners)
    return [] if state is None else state.learners(lambda _: next(new), "learners")


def _resumed(
    state: State, learners: Sequence[Learner], restored: Sequence[RestoredLearner]
) -> Resumed:
    reopened = [learner for learner in learners if reopen(learner)]
    return Resumed(state.reading, state.chunks, restored, reopened)


def _resumed_group(state: State | None, restored: Sequence[RestoredLearner]) -> Resumed | None:
    """Return where a group resumes; None if it has not begun."""
    learners = [one.learner for one in restored]
    if state is None or not any(one.progress.readings or one.extent.rows for one in learners):
        return None
    if all(learner.progress.finished is not None for learner in learners):
        following = 1 + max(learner.progress.reading for learner in learners)
        state = replace(state, reading=following, chunks=NOT_BEGUN)
    return _resumed(state, learners, restored)


def _learner(
    settings: Settings,
    labels: Sequence[Label],
    weights: ClassWeights | None,
    pool: Pool | None,
    label: Label | None,
) -> Learner:
    """Return the learner of a class against the rest, of weight 1; of two classes if None."""
    if label is not None and weights is not None:
        weights = {label: weights.get(label, 1.0)}
    return Learner(settings, labels, weights, label, pool)


class MemoryGuard:
    """Check in the first reading, chunk by chunk, that the learners fit in memory together."""

    def __init__(self, settings: Settings, machine: Machine, pool: Pool) -> None:
        self.settings, self.machine, self.pool = settings, machine, pool
        self.columns = self.rows = 0
        self.shared = stages.plan(settings)[-1].ascent

    def __call__(self, learners: int, chunk: Chunk) -> None:
        """Raise LearnersExceedMemory if ``learners`` learners do not fit once they see a chunk."""
        self.columns = max(self.columns, chunk.width)
        [(_, self.rows)] = chunk.ranges
        if self.shared:
            self.shared = self.pool.offer(
                chunk.rows, chunk.numbers, chunk.squares, self.settings.active_set_bytes
            )
        extent = self.rows, self.columns, self.settings.active_set_bytes
        fit = next((n for n in range(learners, 1, -1) if self._fits(n, *extent)), 1)
        if fit < learners:
            raise LearnersExceedMemory(learners, fit)

    def can_batch(self, learners: Sequence[Learner]) -> bool:
        """Return whether each thread may scan and solve BATCH_WIDTH learners at a time."""
        return self._fits(
            len(learners), max(learner.extent.rows for learner in learners),
            max(len(learner.running.w) for learner in learners),
            active_set=max(learner.active.nbytes for learner in learners),
            batch_width=kernels.BATCH_WIDTH,
        )  # fmt: skip

    def _fits(
        self, learners: int, rows: int, columns: int, active_set: int, batch_width: int = 1
    ) -> bool:
        needs = memory_needed(
            replace(self.settings, active_set=active_set), rows=rows, columns=columns,
            learners=learners, threads=self.machine.thread_count, shared=self.shared,
            batch_width=batch_width,
        )  # fmt: skip
        return sum(need.size for need in needs) <= self.machine.memory_limit


def class_weights_of(
    source: ShardSource, candidates: Sequence[Settings]
) -> list[ClassWeights | None]:
    """Return the weight of every label, for every candidate; ``"balanced"`` takes a reading."""
    of_all = None
    if any(settings.class_weight == "balanced" for settings in candidates):
        of_all = balanced([weigh_labels(source)])
    return [
        of_all if settings.class_weight == "balanced" else given_class_weights(settings) or None
        for settings in candidates
    ]


def given_class_weights(settings: Settings) -> dict[Label, float]:
    """Return the weights that the settings give to labels by name, which may be a number's text."""
    given: dict[Label, float] = {}
    if isinstance(settings.class_weight, Mapping):
        for text, weight in settings.class_weight.items():
            label: Label = text
            with suppress(ValueError):
                label = float(text)
            given[label] = weight
    return given


def weigh_labels(source: ChunkSource) -> tuple[float, dict[Label, float]]:
    """Return the sum of the weights of all rows, and of those of every label; a reading."""
    total, rows = np.zeros(0), 0.0
    for chunk in source.chunks():
        weights = np.ones(len(chunk)) if chunk.weights is None else chunk.weights
        rows += float(weights.sum())
        total = np.append(total, np.zeros(len(source.labels) - len(total)))
        if chunk.code_offsets is not None:
            weights = np.repeat(weights, np.diff(chunk.code_offsets))
        np.add.at(total, chunk.codes, weights)
    return rows, dict(zip(source.labels, total.tolist(), strict=True))


def balanced(found: Iterable[tuple[float, Mapping[Label, float]]]) -> ClassWeights:
    """Return n / (classes · n_label), rows counted by their weights, from what ``weigh_labels``
    found in the parts of the data."""
    rows, labels = 0.0, dict[Label, float]()
    for own, weights in found:
        rows += own
        for label, weight in weights.items():
            labels[label] = labels.get(label, 0.0) + weight
    return {
        label: rows / (len(labels) * weight) if weight > 0.0 else 1.0
        for label, weight in labels.items()
    }


def one_vs_rest_learners(
    settings: Settings, labels: Sequence[Label], weights: ClassWeights | None
) -> list[Learner]:
    """Make the learners of known labels: one for two labels, else one a label."""
    if len(labels) == 2:
        return [Learner(settings, labels, weights, labels[1])]
    return [_learner(settings, labels, weights, None, label) for label in labels]
