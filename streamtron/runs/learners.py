"""Train the learners of a problem: one for two classes, else one a class against the rest.

Learners that fit in memory together train on the same readings, others in groups, one group after
another. What a learner finds is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from streamtron.core.config import Machine, Settings, label_weights
from streamtron.core.events import Listener, ignore
from streamtron.core.limits import return_memory
from streamtron.core.rows import Chunk, ChunkSource, Label
from streamtron.core.threads import open_threads
from streamtron.data import ShardSource
from streamtron.runs.memory import (
    WEIGHT_BYTES,
    DataSize,
    Need,
    check_memory,
    memory_needed,
    most_that_fit,
    rows_are_shared,
)
from streamtron.solver import stages
from streamtron.solver.checkpoint import (
    NOT_BEGUN,
    RestoredLearner,
    Resumed,
    State,
    bytes_held,
    densify,
    sparsify,
)
from streamtron.solver.learner import Learner, hold_in
from streamtron.solver.one_vs_rest import Classes
from streamtron.solver.row_store import Pool
from streamtron.solver.stages import Regime
from streamtron.solver.stopping import reopen
from streamtron.solver.train import Checkpointer, Group, OnePart, Resources, train
from streamtron.solver.working_set import release_rows

ClassWeights = Mapping[Label, float]
Source = TypeVar("Source", bound=ChunkSource)


def train_candidates(
    training: Training[ShardSource], candidates: Sequence[Settings], state: State | None = None
) -> list[list[Learner]]:
    """Train candidates that agree in reading, order and seed on the same readings, from ``state``
    on if there is one. Return the finished learners of each: one for two classes, else one a label,
    in the order of the source's ``labels``.

    A class gets its learners when its first row is read. Only where memory turns out to be too
    small for all is the first reading made again, for one group after another.
    """
    source, pool, at_once = training.source, Pool(), None
    problems = list(zip(candidates, class_weights_of(source, candidates), strict=True))
    many = candidates[0].one_vs_rest
    if state is None or state.group is None:
        classes = None
        if many:
            classes = Classes(problems, source.labels, pool)
            restored = [] if state is None else classes.restore(state)
            learners = list(chain(*classes.learners))
        else:
            learners = [Learner(k, source.labels, w, None, pool) for k, w in problems]
            restored = _restored(state, learners)
        resumed = None if state is None else _resumed(state, learners, restored)
        with training.opened(learners, pool, resumed, classes) as (data, guard):
            train(data, resumed)
        if (at_once := guard.at_once) is None:
            return [[learner] for learner in learners] if classes is None else classes.learners
        state = None
    if many and source.rows is None and state is None:
        read_to_end(source)  # now every label is known
    labels = list(source.labels) if many else [None]
    groups = [[_learner(k, source.labels, w, label) for label in labels] for k, w in problems]
    training.in_groups(list(chain(*groups)), at_once, state)
    return groups


def train_learners(
    source: ChunkSource,
    make: Callable[[], list[Learner]],
    settings: Settings,
    machine: Machine,
    listen: Listener = ignore,
) -> list[Learner]:
    """Train learners whose classes are known; ``make`` returns them new each time."""
    training, learners = Training(source, settings, machine, listen), make()
    with training.opened(learners, Pool()) as (data, guard):
        train(data)
    if guard.at_once is not None:
        learners = make()
        training.in_groups(learners, guard.at_once)
    return learners


class Known(NamedTuple):
    """What is known of a run's data before it is read, and the nonzero weights of its model, which
    is in memory."""

    rows: int
    nonzeros: int
    weights: int


UNKNOWN = Known(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Training(Generic[Source]):
    """Trains learners on the same readings of a source, of which so much is ``known``, together or
    in groups."""

    source: Source
    settings: Settings
    machine: Machine
    listen: Listener = ignore
    checkpointer: Checkpointer | None = None
    known: Known = UNKNOWN

    @contextmanager
    def opened(
        self,
        learners: Sequence[Learner],
        pool: Pool,
        resumed: Resumed | None = None,
        classes: Classes | None = None,
        group: Group | None = None,
    ) -> Iterator[tuple[OnePart, MemoryGuard]]:
        """Open the rows to learners that are to share ``pool`` and their readings. Unless they are
        a ``group``, the guard tells after training how many memory has room for, if not for all:
        they are of no use then. ``classes`` : makes more of them, see ``OnePart``."""
        guard = MemoryGuard(self.settings, self.machine, pool)
        if resumed is not None:
            guard.shared &= any(held.learner.regime == Regime.ALL_ROWS for held in resumed.held)
        for learner in learners:
            hold_in(learner, pool)
        with open_threads(self.machine.thread_count) as threads:
            resources = Resources(threads, guard) if group is None else Resources(threads)
            data = OnePart(
                self.source,
                learners,
                self.settings,
                self.listen,
                resources,
                new_classes=classes,
                checkpointer=self.checkpointer,
                group=group,
            )
            yield data, guard

    def in_groups(
        self,
        learners: Sequence[Learner],
        at_once: int | None = None,
        state: State | None = None,
        begin: Callable[[Sequence[Learner]], None] = lambda _: None,
    ) -> None:
        """Train learners one group after another, of ``at_once`` at most, or fewer where memory
        does not take them. What a group held is released when it is done, and its vectors are held
        by their nonzeros. MachineError: not even one has room beside the others.

        ``state`` is of all learners; those that have finished are not trained again. ``begin`` : is
        called with the learners of each group before it trains.
        """
        restored = _restored(state, learners)
        begun = None if state is None else state.group
        borders = [*(begun or ()), len(learners)]
        start = 0
        while start < len(learners):
            stop = min(border for border in borders if border > start)
            if begun is None or start != begun[0]:  # else they fitted when they began
                size = self._group_size(learners, start)
                stop = min(stop, start + (size if at_once is None else min(size, at_once)))
            group = learners[start:stop]
            resumed = _resumed_group(state, restored[start:stop])
            span = Group(learners, (start, stop))
            with self.opened(group, Pool(), resumed, group=span) as (data, _):
                begin(group)
                train(data, resumed)
            for learner in group:
                release_rows(learner)
                hold_in(learner, Pool())
                sparsify(learner)
            return_memory()
            start = stop

    def on(self, learners: Sequence[Learner], begin: Callable[[Sequence[Learner]], None]) -> None:
        """Train the learners of a finished run on, together if they fit in memory, else in groups.
        ``begin`` : see ``in_groups``."""
        for learner in learners:
            learner.progress.finish(None)  # also of those whose group has not begun
        if self._group_size(learners, 0) < len(learners):
            self.in_groups(learners, begin=begin)
        else:
            begin(learners)
            with self.opened(learners, learners[0].pool) as (data, _):
                train(data)

    def _group_size(self, learners: Sequence[Learner], start: int) -> int:
        blocks, machine, known = self.source.blocks, self.machine, self.known
        rows = max(sum(block.rows for block in blocks), known.rows)
        nonzeros = max(sum(block.nonzeros for block in blocks), known.nonzeros)
        columns = max(self.source.width, *(learner.extent.columns for learner in learners))
        rows_shared = rows_are_shared(self.settings, rows, nonzeros)
        held = [*map(bytes_held, learners)]

        def needed(number: int) -> list[Need]:
            idle = sum(held) - sum(held[start : start + number])
            return [
                *memory_needed(
                    self.settings,
                    DataSize(rows, columns, nonzeros or None),
                    learners=number,
                    threads=machine.thread_count,
                    shared=rows_shared,
                ),
                Need("learners that are not in training", idle),
                Need("model before the change", WEIGHT_BYTES * known.weights),
            ]

        size = most_that_fit(machine.memory_limit, len(learners) - start, needed)
        if not size and nonzeros and len(learners) > 1:  # one alone was let in by its columns
            check_memory(needed(1), machine)
        return max(1, size)


def read_to_end(source: ChunkSource) -> None:
    """Read all rows, so that their number, width and labels are known."""
    for _ in source.chunks():
        pass


def restore_finished(
    state: State, settings: Settings, labels: Sequence[Label], weights: ClassWeights | None
) -> list[Learner]:
    """Restore the learners of a finished run, which hold no rows, and vectors by their nonzeros
    (see ``densify``); ``labels`` in the order of the state's label codes."""
    make = partial(_learner, settings, labels, weights)
    return [restored.learner for restored in state.learners(make, "learners")]


def _restored(state: State | None, learners: Sequence[Learner]) -> list[RestoredLearner]:
    new = iter(learners)
    return [] if state is None else state.learners(lambda _: next(new), "learners")


def _resumed(
    state: State, learners: Sequence[Learner], restored: Sequence[RestoredLearner]
) -> Resumed:
    reopened = [learner for learner in learners if reopen(learner)]
    for learner in (*(held.learner for held in restored), *reopened):
        if learner.finished is None or learner in reopened:
            densify(learner)
    return Resumed(state.reading, state.chunks, restored, reopened)


def _resumed_group(state: State | None, restored: Sequence[RestoredLearner]) -> Resumed | None:
    """Return where a group resumes; None if it has not begun."""
    learners = [held.learner for held in restored]
    if state is None or not any(
        learner.progress.readings or learner.extent.rows for learner in learners
    ):
        return None
    if all(learner.progress.finished is not None for learner in learners):
        following = 1 + max(learner.progress.reading for learner in learners)
        state = replace(state, reading=following, chunks=NOT_BEGUN)
    return _resumed(state, learners, restored)


def _learner(
    settings: Settings, labels: Sequence[Label], weights: ClassWeights | None, label: Label | None
) -> Learner:
    """Return the learner of a class against the rest; of two classes if None."""
    return Learner(settings, labels, against_rest(weights, label), label)


def against_rest(weights: ClassWeights | None, label: Label | None) -> ClassWeights | None:
    """Return the weights of a class and of the rest, which is 1; of two classes, None, as given."""
    return weights and ({label: weights.get(label, 1.0)} if label is not None else weights)


class MemoryGuard:
    """Tell in the first reading, chunk by chunk, whether the learners fit in memory together.
    ``at_once`` : how many do, where all do not; else None."""

    def __init__(self, settings: Settings, machine: Machine, pool: Pool) -> None:
        self.settings, self.machine, self.pool = settings, machine, pool
        self.columns = self.rows = 0
        self.shared = stages.plan(settings)[-1].ascent
        self.at_once: int | None = None

    def __call__(self, learners: int, chunk: Chunk) -> bool:
        """Return whether ``learners`` learners fit once they see a chunk; one always does."""
        self.columns = max(self.columns, chunk.width)
        [(_, self.rows)] = chunk.ranges
        if self.shared:
            self.shared = self.pool.offer(
                chunk.rows, chunk.numbers, chunk.squares, self.settings.active_set_bytes
            )
        size = DataSize(self.rows, self.columns)
        limit = self.machine.memory_limit
        fit = most_that_fit(limit, learners, lambda n: self._needed(size, n))
        self.at_once = max(1, fit) if max(1, fit) < learners else None
        return self.at_once is None

    def _needed(self, size: DataSize, learners: int) -> list[Need]:
        return memory_needed(
            self.settings,
            size,
            learners=learners,
            shared=self.shared,
            threads=self.machine.thread_count,
        )


def class_weights_of(
    source: ShardSource, candidates: Sequence[Settings]
) -> list[ClassWeights | None]:
    """Return the weight of every label, for every candidate; ``"balanced"`` takes a reading."""
    of_all = None
    if any(settings.class_weight == "balanced" for settings in candidates):
        of_all = balanced([weigh_labels(source)])
    return [
        of_all if settings.class_weight == "balanced" else label_weights(settings) or None
        for settings in candidates
    ]


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


def balanced(weighed: Iterable[tuple[float, Mapping[Label, float]]]) -> ClassWeights:
    """Return n / (classes · n_label), rows counted by their weights, from what ``weigh_labels``
    found in the parts of the data."""
    rows, labels = 0.0, dict[Label, float]()
    for rows_of_part, weights in weighed:
        rows += rows_of_part
        for label, weight in weights.items():
            labels[label] = labels.get(label, 0.0) + weight
    return {
        label: rows / (len(labels) * weight) if weight > 0.0 else 1.0
        for label, weight in labels.items()
    }


def one_vs_rest_learners(
    settings: Settings, labels: Sequence[Label], weights: ClassWeights | None
) -> list[Learner]:
    """Make the learners of known labels: one for two labels or for numbers, else one a label."""
    if settings.regression or len(labels) == 2:
        return [Learner(settings, labels, weights, labels[1] if labels else None)]
    return [_learner(settings, labels, weights, label) for label in labels]
