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
    """The learners of problems that are read together, one a label each, made while the first
    reading runs.

    Before the first row of a class all rows are negative to it: one placeholder of each problem
    trains for all classes not met yet, and the learner of a new class begins as its copy. So every
    class learns what it would have learned had it been known from the start, without a reading for
    labels.

    ``problems`` : settings, and the weight of a class in the rows of that class; the rest has the
    weight 1 (as in LIBLINEAR). Other parameters as of ``Learner``.
    """

    def __init__(
        self,
        problems: Sequence[tuple[Settings, Mapping[Label, float] | None]],
        labels: Sequence[Label],
        pool: Pool,
    ) -> None:
        self.labels, self._problems, self._pool = labels, problems, pool
        self.learners: list[list[Learner]] = [[] for _ in problems]
        self.placeholders = [self._make(number, None) for number in range(len(problems))]

    def restore(self, state: State) -> list[RestoredLearner]:
        """Restore the learners and placeholders of a run; the classes are to be new. Of every class
        the first learner is the first problem's, for so they were made."""
        met: Counter[Label | None] = Counter()

        def make(label: Label | None) -> Learner:
            number, learner = met[label], self._make(met[label], label)
            met[label] += 1
            if label is None:
                self.placeholders[number] = learner
            else:
                self.learners[number].append(learner)
            return learner

        return [*state.learners(make, "learners"), *state.learners(make, "placeholders")]

    @property
    def waiting(self) -> int:
        """How many learners the labels met since the last call of ``new_learners`` get."""
        return sum(len(self.labels) - len(learners) for learners in self.learners)

    def new_learners(self) -> list[Learner]:
        """Make the learners of the labels met since the last call, problem by problem."""
        return [
            self.learner_of(label, number)
            for number, learners in enumerate(self.learners)
            for label in self.labels[len(learners) :]
        ]

    def learner_of(self, label: Label, number: int = 0) -> Learner:
        """Return a problem's learner of a class; made if none of its rows has been read."""
        for learner in self.learners[number]:
            if learner.targets.positive == label:
                return learner
        learner = _copied(self.placeholders[number], label, self._weights(number, label))
        self.learners[number].append(learner)
        return learner

    def _make(self, number: int, label: Label | None) -> Learner:
        """Make a problem's learner of a class; None: its placeholder."""
        positive, weights = NO_LABEL if label is None else label, self._weights(number, label)
        return Learner(self._problems[number][0], self.labels, weights, positive, self._pool)

    def _weights(self, number: int, label: Label | None) -> Mapping[Label, float] | None:
        weights = self._problems[number][1]
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
