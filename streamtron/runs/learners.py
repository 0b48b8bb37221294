"""Train the learners of a problem: one for two classes, else one a class against the rest.

Learners that fit in memory together train on the same readings, others in groups, one group after
another. What a learner finds is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from streamtron.solver.in_memory import release_rows
from streamtron.solver.learner import Learner
from streamtron.solver.one_vs_rest import CandidateClasses, Classes
from streamtron.solver.schedule import Checkpointer, Group, train
from streamtron.solver.state import Regime
from streamtron.solver.stopping import reopen
from streamtron.solver.working_set import Pool

ClassWeights = Mapping[Label, float]


def is_one_vs_rest(settings: Settings) -> bool:
    """Return whether there is a learner for every label."""
    return settings.multiclass or settings.multilabel


class LearnersExceedMemory(MachineError):
    """Not all learners fit in memory together; ``fit`` of them do."""

    def __init__(self, learners: int, fit: int) -> None:
        super().__init__(
            f"{learners} learners do not fit in memory together, {fit} would. Give a larger "
            "--memory."
        )
        self.fit = fit


def train_candidates(
    source: ShardSource,
    candidates: Sequence[Settings],
    machine: Machine,
    listen: Listener = ignore,
    *,
    checkpointer: Checkpointer | None = None,
    state: State | None = None,
) -> list[list[Learner]]:
    """Train every candidate on the same readings.

    Parameters
    ----------
    candidates : settings that agree in all that decides reading, order and seed.
    checkpointer, state : see ``solver.schedule.train``; training resumes from ``state``.

    Returns
    -------
    Of every candidate its finished learners: one for two classes, else one a label, in the order
    of ``source.labels``.
    """
    weights = class_weights_of(source, candidates)
    at_once = 0 if state is None else state.at_once
    if not at_once:
        try:
            return _train_as_labels_appear(
                source, candidates, weights, machine, listen, checkpointer, state
            )
        except LearnersExceedMemory as error:
            at_once, state = error.fit, None
    labels: Sequence[Label | None] = [None]
    if is_one_vs_rest(candidates[0]):
        if source.rows is None and state is None:
            read_to_end(source)  # now every label is known
        labels = list(source.labels)
    found = [
        [_learner(settings, source, own, label) for label in labels]
        for settings, own in zip(candidates, weights, strict=True)
    ]
    learners = [learner for own in found for learner in own]
    train_in_groups(source, learners, at_once, candidates[0], machine, listen, checkpointer, state)
    return found


def train_learners(
    source: ChunkSource,
    make: Callable[[], list[Learner]],
    settings: Settings,
    machine: Machine,
) -> list[Learner]:
    """Train learners whose classes are known; ``make`` returns them new each time."""
    learners, pool = make(), Pool()
    for learner in learners:
        learner.pool = pool
    try:
        train_together(source, learners, settings, machine)
    except LearnersExceedMemory as error:
        learners = make()
        train_in_groups(source, learners, error.fit, settings, machine)
    return learners


def _train_as_labels_appear(
    source: ShardSource,
    candidates: Sequence[Settings],
    weights: Sequence[ClassWeights | None],
    machine: Machine,
    listen: Listener,
    checkpointer: Checkpointer | None,
    state: State | None,
) -> list[list[Learner]]:
    """Train all together; a class gets its learners when its first row is read."""
    pool, classes, learners = Pool(), None, []
    restored: list[RestoredLearner] = []
    if is_one_vs_rest(candidates[0]):
        own = [
            Classes(settings, source.labels, weight, pool)
            for settings, weight in zip(candidates, weights, strict=True)
        ]
        classes = CandidateClasses(own)
        restored = [] if state is None else classes.restore(state)
        learners = [learner for one in own for learner in one.learners]
    else:
        learners = [
            Learner(settings, source.labels, weight, pool=pool)
            for settings, weight in zip(candidates, weights, strict=True)
        ]
        restored = _restored(state, learners)
    train_together(
        source, learners, candidates[0], machine, listen, pool=pool, new_classes=classes,
        checkpointer=checkpointer,
        resumed=None if state is None else _resumed(state, learners, restored),
    )  # fmt: skip
    if classes is not None:
        return [one.learners for one in classes.candidates]
    return [[learner] for learner in learners]


def train_together(
    source: ChunkSource,
    learners: Sequence[Learner],
    settings: Settings,
    machine: Machine,
    listen: Listener = ignore,
    *,
    pool: Pool | None = None,
    new_classes: CandidateClasses | None = None,
    checkpointer: Checkpointer | None = None,
    resumed: Resumed | None = None,
) -> None:
    """Train learners on the same readings.

    Parameters
    ----------
    learners : changed in place; they share ``pool`` (None = the pool of the first).
    new_classes, checkpointer, resumed : see ``solver.schedule.train``.

    Raises
    ------
    LearnersExceedMemory : they do not fit; seen in the first reading.
    """
    guard = MemoryGuard(settings, machine, learners[0].pool if pool is None else pool)
    if resumed is not None:
        guard.shared &= any(one.learner.regime == Regime.ALL_ROWS for one in resumed.held)
    train(
        source, learners, settings, listen, new_classes=new_classes, threads=machine.thread_count,
        checkpointer=checkpointer, resumed=resumed, room=guard, can_batch=guard.can_batch,
    )  # fmt: skip


def train_in_groups(
    source: ChunkSource,
    learners: Sequence[Learner],
    at_once: int,
    settings: Settings,
    machine: Machine,
    listen: Listener = ignore,
    checkpointer: Checkpointer | None = None,
    state: State | None = None,
) -> None:
    """Train ``at_once`` learners at a time; a group's rows are released when it is done.

    Parameters
    ----------
    checkpointer, state : see ``solver.schedule.train``; a state is of all learners, and those that
        have finished are not trained again.
    """
    restored = _restored(state, learners)
    for start in range(0, len(learners), at_once):
        group, pool = learners[start : start + at_once], Pool()
        for learner in group:
            learner.pool = pool
        resumed = _resumed_group(state, restored[start : start + at_once])
        train(
            source, group, settings, listen, threads=machine.thread_count,
            checkpointer=checkpointer, resumed=resumed, group=Group(learners, at_once),
            can_batch=lambda _: False,
        )  # fmt: skip
        for learner in group:
            release_rows(learner)
            learner.pool = Pool()


def read_to_end(source: ChunkSource) -> None:
    """Read all rows, so that their number, width and labels are known."""
    for _ in source.chunks():
        pass


def restore_finished(
    state: State, settings: Settings, labels: Sequence[Label], weights: ClassWeights | None
) -> list[Learner]:
    """Restore the learners of a finished run, which hold no rows.

    Parameters
    ----------
    labels : in the order of the state's label codes.

    Raises
    ------
    KeyError, TypeError, ValueError : ``state`` is not the state of a run.
    """
    pool = Pool()
    classes = Classes(settings, labels, weights, pool)

    def two_classes(_: Label | None) -> Learner:
        return Learner(settings, labels, weights, pool=pool)

    make = classes.make if is_one_vs_rest(settings) else two_classes
    return [each.learner for each in state.learners(make, "learners")]


def _restored(state: State | None, learners: Sequence[Learner]) -> list[RestoredLearner]:
    """Put a state into new learners, in their order."""
    new = iter(learners)
    return [] if state is None else state.learners(lambda _: next(new), "learners")


def _resumed(
    state: State, learners: Sequence[Learner], restored: Sequence[RestoredLearner]
) -> Resumed:
    reopened = [learner for learner in learners if reopen(learner)]
    return Resumed(state.reading, state.chunks, restored, reopened)


def _begun(learner: Learner) -> bool:
    """Return whether the learner has read a row."""
    return learner.progress.readings > 0 or learner.extent.rows > 0


def _resumed_group(state: State | None, restored: Sequence[RestoredLearner]) -> Resumed | None:
    """Return where a group resumes; None if it has not begun."""
    learners = [one.learner for one in restored]
    if state is None or not any(_begun(learner) for learner in learners):
        return None
    if all(learner.progress.finished is not None for learner in learners):
        following = 1 + max(learner.progress.reading for learner in learners)
        state = replace(state, reading=following, chunks=NOT_BEGUN)
    return _resumed(state, learners, restored)


def _learner(
    settings: Settings, source: ShardSource, weights: ClassWeights | None, label: Label | None
) -> Learner:
    if label is not None and weights is not None:
        weights = {label: weights.get(label, 1.0)}
    return Learner(settings, source.labels, weights, label)


class MemoryGuard:
    """Check in the first reading, chunk by chunk, that the learners fit in memory together."""

    def __init__(self, settings: Settings, machine: Machine, pool: Pool) -> None:
        self.settings, self.machine, self.pool = settings, machine, pool
        self.columns = self.rows = 0
        self.shared = stages.plan(settings)[-1].ascent

    def __call__(self, learners: int, chunk: Chunk) -> None:
        """Check the memory before ``learners`` learners see a chunk.

        Raises
        ------
        LearnersExceedMemory
        """
        self.columns = max(self.columns, chunk.width)
        [(_, self.rows)] = chunk.ranges
        if self.shared:
            self.shared = self.pool.offer(
                chunk.rows, chunk.numbers, chunk.squares, self.settings.active_set
            )
        if learners > 1 and not self._fits(learners):
            fit = next((n for n in range(learners - 1, 1, -1) if self._fits(n)), 1)
            raise LearnersExceedMemory(learners, fit)

    def can_batch(self, learners: Sequence[Learner]) -> bool:
        """Return whether each thread may scan and solve BATCH_WIDTH learners at a time."""
        held = max(learner.active.nbytes for learner in learners)
        needs = memory_needed(
            replace(self.settings, active_set=held),
            rows=max(learner.extent.rows for learner in learners),
            columns=max(len(learner.running.w) for learner in learners), learners=len(learners),
            threads=self.machine.thread_count, shared=self.shared, batch_width=kernels.BATCH_WIDTH,
        )  # fmt: skip
        return sum(need.size for need in needs) <= self.machine.memory_limit

    def _fits(self, learners: int) -> bool:
        needs = memory_needed(
            self.settings, rows=self.rows, columns=self.columns, learners=learners,
            threads=self.machine.thread_count, shared=self.shared,
        )  # fmt: skip
        return sum(need.size for need in needs) <= self.machine.memory_limit


def class_weights_of(
    source: ShardSource, candidates: Sequence[Settings]
) -> list[ClassWeights | None]:
    """Return the weight of every label, for every candidate.

    ``"balanced"`` weights n / (classes · n_label), rows counted by their weights, take a reading.
    """
    balanced = None
    if any(settings.class_weight == "balanced" for settings in candidates):
        balanced = _balanced(source)
    return [
        balanced if settings.class_weight == "balanced" else given_class_weights(settings) or None
        for settings in candidates
    ]


def given_class_weights(settings: Settings) -> dict[Label, float]:
    """Return the weights that the settings give to labels by name."""
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


# --- for the scikit-learn estimator --------------------------------------------------------------


class FittedLearner(NamedTuple):
    """What the estimator keeps of a finished learner: all but its rows."""

    past: EarlierData
    certificate: Certificate
    counts: Counts
    full_epochs: int
    stop_reason: str

    @classmethod
    def of(cls, learner: Learner, columns: slice, sign: float = 1.0) -> FittedLearner:
        """Summarise a finished learner; ``columns`` and ``sign`` as in ``EarlierData.of``."""
        assert learner.certificate is not None
        assert learner.progress.finished is not None
        past = EarlierData.of(learner, columns, sign)
        return cls(
            past,
            learner.certificate,
            learner.counts,
            learner.progress.full_epochs,
            learner.progress.finished,
        )


def one_vs_rest_problems(
    labels: Sequence[Label], weights: ClassWeights | None
) -> list[tuple[Label, ClassWeights | None]]:
    """Return (positive label, class weights) of every learner: one for two labels, else one a
    label, where all other labels are the rest, of weight 1."""
    if len(labels) == 2:
        return [(labels[1], weights)]
    return [(label, weights and {label: weights.get(label, 1.0)}) for label in labels]
