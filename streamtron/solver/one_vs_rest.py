"""One learner a class, against the rest: made when the first row of its class is read."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from streamtron.core.config import Settings
from streamtron.core.rows import Label
from streamtron.solver.checkpoint import RestoredLearner, State
from streamtron.solver.learner import Learner
from streamtron.solver.row_store import Pool

NO_LABEL = cast(Label, object())
"""The positive class of a placeholder: it equals no label."""


class Classes:
    """The learners of one problem, one a label, made while the first reading runs.

    Before the first row of a class all rows are negative to it: one placeholder trains for all
    classes not met yet, and the learner of a new class begins as its copy. So every class learns
    what it would have learned had it been known from the start, without a reading for labels.

    Parameters as of ``Learner``; a class weight is of the rows of that class, the rest has the
    weight 1 (as in LIBLINEAR).
    """

    def __init__(
        self,
        settings: Settings,
        labels: Sequence[Label],
        class_weights: Mapping[Label, float] | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.labels, self.class_weights = labels, class_weights
        self.learners: list[Learner] = []
        self.settings, self.pool = settings, pool
        self.placeholder = self.make(None)

    def make(self, label: Label | None) -> Learner:
        """Make the learner of a class; None: a placeholder."""
        positive = NO_LABEL if label is None else label
        return Learner(self.settings, self.labels, self._own(label), positive, self.pool)

    def make_again(self, label: Label | None) -> Learner:
        """Make a learner, or the placeholder, of a run that is resumed, in the classes' order."""
        learner = self.make(label)
        if label is None:
            self.placeholder = learner
        else:
            self.learners.append(learner)
        return learner

    def new_learners(self) -> list[Learner]:
        """Make a learner for every label met since the last call, in the labels' order."""
        return [self.learner_of(label) for label in self.labels[len(self.learners) :]]

    def learner_of(self, label: Label) -> Learner:
        """Return the learner of a class; made if none of its rows has been read."""
        for learner in self.learners:
            if learner.targets.positive == label:
                return learner
        learner = _copied(self.placeholder, label, self._own(label))
        self.learners.append(learner)
        return learner

    def _own(self, label: Label | None) -> Mapping[Label, float] | None:
        weights = self.class_weights
        return None if weights is None or label is None else {label: weights.get(label, 1.0)}


def _copied(placeholder: Learner, label: Label, weights: Mapping[Label, float] | None) -> Learner:
    """The learner of a class that has read the same rows, all of them negative so far."""
    targets, active = placeholder.targets, placeholder.active
    constant = (placeholder.settings, placeholder.pool, targets.labels, placeholder.progress.plan)
    memo = {id(part): part for part in constant} | {
        id(active): active.copy(),
        id(targets): replace(targets, positive=label, class_weights=weights),
    }
    return copy.deepcopy(placeholder, memo)


class CandidateClasses:
    """The classes of several candidates, read together."""

    def __init__(self, candidates: Sequence[Classes]) -> None:
        self.candidates = candidates

    def restore(self, state: State) -> list[RestoredLearner]:
        """Restore the learners and placeholders of a run; the classes are to be new. Of every class
        the first learner is the first candidate's, for so they were made."""
        met: Counter[Label | None] = Counter()

        def make(label: Label | None) -> Learner:
            classes = self.candidates[met[label]]
            met[label] += 1
            return classes.make_again(label)

        return [*state.learners(make, "learners"), *state.learners(make, "placeholders")]

    @property
    def learners(self) -> list[list[Learner]]:
        """The learners of every candidate, one a class."""
        return [classes.learners for classes in self.candidates]

    @property
    def placeholders(self) -> list[Learner]:
        """The placeholder of every candidate."""
        return [classes.placeholder for classes in self.candidates]

    @property
    def waiting(self) -> int:
        """How many learners the labels met since the last call of ``new_learners`` get."""
        return sum(len(classes.labels) - len(classes.learners) for classes in self.candidates)

    def new_learners(self) -> list[Learner]:
        """Make the learners of the labels met since the last call, of every candidate."""
        return [learner for classes in self.candidates for learner in classes.new_learners()]
