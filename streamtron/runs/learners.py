"""Train the learners of a problem: one for two classes or softmax, else one a class against the
rest.

Learners that fit in memory together train on the same readings, others in groups, one group after
another, which are decided before training. What a learner finds is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Machine, Settings, label_weights
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.core.limits import return_memory
from streamtron.core.rows import NO_FACTS, Data, Facts, Label
from streamtron.core.text import label_meant, label_text, short
from streamtron.core.threads import open_threads
from streamtron.solver.checkpoint import Resumed, State
from streamtron.solver.learner import Learner, end_stage, release_rows
from streamtron.solver.paper import Margitron
from streamtron.solver.stopping import reopen
from streamtron.solver.train import Checkpointer, Group, OnePart, Trainer, train

if TYPE_CHECKING:
    from streamtron.runs.store import SavedState

ClassWeights = Mapping[Label, float]


def make_learners(data: Data, settings: Settings) -> list[Learner]:
    """Make the learners of a problem: one for two classes, numbers or softmax, else one for each of
    the data's ``labels``, in their order."""
    weights = class_weights(settings, data)
    columns = vector_length(settings, data.columns, len(data.labels))
    labels: Sequence[Label | None] = data.labels if settings.one_vs_rest else [None]
    return [
        Learner(settings, columns, data.facts, data.labels, against_rest(weights, label), label)
        for label in labels
    ]


def vector_length(settings: Settings, columns: int, classes: int) -> int:
    """Return how many weights a learner has, its bias not counted; see ``solver.softmax``."""
    return classes * (columns + 1) - 1 if settings.softmax else columns


def number_of_learners(settings: Settings, classes: int) -> int:
    """Return how many learners ``make_learners`` makes for this number of classes."""
    return classes if settings.one_vs_rest else 1


def against_rest(weights: ClassWeights | None, label: Label | None) -> ClassWeights | None:
    """Return the weights of a class and of the rest, which is 1; of two classes, None, as given."""
    return weights and ({label: weights.get(label, 1.0)} if label is not None else weights)


def check_class_weights(settings: Settings, labels: Sequence[Label]) -> None:
    """Raise a SettingsError for class weights of a label that the data do not have."""
    names = [name for name in label_weights(settings) if isinstance(name, str)]
    if unknown := [name for name in names if not {name, label_meant(name)} & {*labels}]:
        has = " and ".join(label_text(label, quote=True) for label in labels[:10])
        raise SettingsError(
            f"class-weight names the label {short(unknown[0])}, the data has {has}. Name those."
        )


def class_weights(settings: Settings, data: Data) -> ClassWeights | None:
    """Return the weight of every label; None where all are 1."""
    if settings.class_weight == "balanced":
        return balanced(data.labels, data.facts)
    return label_weights(settings) or None


def balanced(labels: Sequence[Label], facts: Facts) -> ClassWeights:
    """Return n / (classes · n_label), rows counted by their weights."""
    of_labels = zip(labels, facts.label_weights, strict=True)
    return {
        label: facts.weight / (len(labels) * weight) if weight > 0.0 else 1.0
        for label, weight in of_labels
    }


TIME_LIMIT = "the time limit"
"""Why a stage has ended."""


class TimeIsUp(Exception):
    """The time of a training is up, after a reading; a ``Checkpointer`` raises it."""


def all_proven(state: State) -> bool:
    """Return whether something is proven of every learner that trains."""
    span = state.group or (0, len(state.content["learners"]))
    learners = state.content["learners"][slice(*span)]
    return all(learner["best"]["certificate"] is not None for learner in learners)


def train_in_time(trainer: Trainer, resumed: Resumed | None) -> None:
    """Train until all learners have finished, or the time is up."""
    try:
        train(trainer, resumed)
    except TimeIsUp:
        for learner in trainer.unfinished:
            end_stage(learner, "epoch limit", TIME_LIMIT)
        trainer.end(trained=True)


def train_in_groups(
    data: Data,
    learners: Sequence[Learner],
    settings: Settings,
    machine: Machine,
    listen: Listener = ignore,
    checkpointer: Checkpointer | None = None,
    *,
    at_once: int = 0,
    state: State | None = None,
    begin: Callable[[Sequence[Learner]], None] | None = None,
) -> None:
    """Train learners to their ends on readings that they share, in groups of ``at_once``, 0 = all
    together. ``state`` : they are as it has them, and go on from there. ``begin`` : is called with
    the learners of each group before it trains."""
    size, begun = at_once or len(learners), None if state is None else state.group
    start = 0 if begun is None else begun[0]
    while start < len(learners):
        stop = min(start + size, len(learners))
        if begun is not None and start == begun[0]:
            stop = begun[1]
        group = learners[start:stop]
        resumed = None
        if state is not None and begun in (None, (start, stop)):
            resumed = Resumed(state.reading, [k for k in group if reopen(k)])
        span = None if len(group) == len(learners) else Group(learners, (start, stop))
        with open_threads(machine.thread_count) as threads:
            if resumed is None and begin is not None:
                begin(group)
            kind = Margitron if settings.paper else OnePart
            trainer = kind(data, group, settings, listen, threads, checkpointer, span)
            train_in_time(trainer, resumed)
        if span is not None:
            for learner in group:
                release_rows(learner)
            return_memory()
        start = stop


def restored(
    saved: SavedState, settings: Settings, facts: Facts = NO_FACTS, of: ClassWeights | None = None
) -> list[Learner]:
    """Restore the learners of a state, in the ranks in which they were saved; ``of`` : the weights
    of the labels."""

    def make(label: Label | None) -> Learner:
        its_weights = against_rest(of, label)
        return Learner(settings, saved.state.columns, facts, saved.labels, its_weights, label)

    return saved.state.learners(make)


def codes_in_order(labels: Sequence[Label]) -> list[int]:
    """Return the codes of labels in the order of the model's classes.

    >>> codes_in_order(["b", "c", "a"])
    [2, 0, 1]
    """
    return sorted(range(len(labels)), key=labels.__getitem__)


def weights_of(
    learners: Sequence[Learner], labels: Sequence[Label]
) -> list[tuple[Learner, NDArray[np.float64], float]]:
    """Return the best weights and bias of every direction of a model, and the learner of them."""
    if learners[0].outputs == 1:
        return [(learner, learner.best.w, learner.best.bias) for learner in learners]
    [learner] = learners
    by_class = np.ascontiguousarray(learner.best.augmented.reshape(-1, learner.outputs).T)
    in_order = by_class[codes_in_order(labels)]
    return [(learner, v[:-1], float(v[-1])) for v in in_order]


def in_order(learners: Sequence[Learner], labels: list[Label], settings: Settings) -> list[Learner]:
    """Return the learners in the order of the model's classes, of softmax its only one; ``labels``
    in the order of codes."""
    if not settings.one_vs_rest:
        return list(learners)
    if len(learners) != len(labels):
        raise DataError(
            f"the run has {len(labels)} classes and weights of {len(learners)}: its state is "
            "not as it was written. Begin anew with --overwrite."
        )
    by_label = dict(zip(labels, learners, strict=True))
    classes = sorted(labels)
    if len(classes) == 2 and not settings.multilabel:
        classes = classes[1:]  # the two learners differ in their sign only
    return [by_label[label] for label in classes]
