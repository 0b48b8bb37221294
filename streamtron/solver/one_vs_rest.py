"""One learner a class, against the rest: born when the first row of its class comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from streamtron.core.config import Settings
from streamtron.core.rows import Label
from streamtron.solver.checkpoint import RestoredLearner, State
from streamtron.solver.learner import Learner
from streamtron.solver.working_set import Pool

NOBODY = cast(Label, object())
"""The positive class of a learner whose class has not come yet: it is no label's equal."""


class Classes:
    """The learners of one problem with a class for every label that is met.

    Before its first row comes, a class has nothing but rest: all classes still to come are one
    learner, and each begins as its twin. So every class learns what it would have learned had it
    been known from the start, and the data need not be read for its labels first.

    Parameters
    ----------
    settings : what to solve and how.
    labels : the source's labels by code, growing while the first reading runs.
    class_weights : weight of a label, 1 where it is not named; a class's own rows bear its weight,
        the rest bears 1 (as in LIBLINEAR).
    pool : where rows are held, see ``Learner``.
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
        self._waiting = self.make(None)

    @property
    def waiting(self) -> Learner:
        """The learner of all classes that are still to come."""
        return self._waiting

    def make(self, label: Label | None) -> Learner:
        """A new learner of a class; None: of those that have not come."""
        positive = NOBODY if label is None else label
        return Learner(self.settings, self.labels, self._own(label), positive, self.pool)

    def make_again(self, label: Label | None) -> Learner:
        """A new learner in the place of the one that a class had when a run was interrupted; of
        classes in the order of their coming."""
        learner = self.make(label)
        if label is None:
            self._waiting = learner
        else:
            self.learners.append(learner)
        return learner

    def born(self) -> list[Learner]:
        """A learner for every label met since the last call, in the labels' order."""
        newborn = []
        for label in self.labels[len(self.learners) :]:
            learner = self._waiting.twin(label)
            learner.targets.class_weights = self._own(label)
            newborn.append(learner)
        self.learners += newborn
        return newborn

    def _own(self, label: Label | None) -> Mapping[Label, float] | None:
        if self.class_weights is None or label is None:
            return None
        return {label: self.class_weights.get(label, 1.0)}


class Families:
    """The classes of several candidates, read together.

    Examples
    --------
    >>> labels: list[Label] = []
    >>> families = Families([Classes(Settings(C=1), labels), Classes(Settings(C=2), labels)])
    >>> labels += ["a", "b"]
    >>> [learner.settings.C for learner in families.born()]
    [1.0, 1.0, 2.0, 2.0]
    """

    def __init__(self, families: Sequence[Classes]) -> None:
        self.families = families

    def restore(self, state: State) -> list[RestoredLearner]:
        """Go on with the learners that there were when a run was interrupted, those that wait
        included; the classes are to be new. Whose a learner is its place says: of every class the
        first is the first candidate's, for so they are born.

        Raises
        ------
        FileDamaged : the state is none, or one of more candidates.
        """
        met: Counter[Label | None] = Counter()

        def make(label: Label | None) -> Learner:
            family = self.families[met[label]]
            met[label] += 1
            return family.make_again(label)

        return [*state.learners(make, "learners"), *state.learners(make, "waiting")]

    @property
    def waiting(self) -> list[Learner]:
        """One a candidate."""
        return [family.waiting for family in self.families]

    def born(self) -> list[Learner]:
        """The learners born in every candidate since the last call."""
        return [learner for family in self.families for learner in family.born()]
