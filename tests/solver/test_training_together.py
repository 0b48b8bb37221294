"""A learner finds the same whatever is trained with it: other learners, threads, or when its class
came."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from streamtron.core.config import Settings
from streamtron.core.rows import Chunk
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner
from streamtron.solver.one_vs_rest import Classes
from streamtron.solver.row_store import Pool
from tests.helpers.examples import slow_but
from tests.helpers.learners import (
    PLANS,
    GrowingSource,
    bits,
    classes_that_come_late,
    drawn_source,
    plans,
    source_of,
)
from tests.helpers.sources import ListSource, train, trained


def rows_of_many_columns(
    rows: int = 600, columns: int = 300, density: float = 0.04
) -> Callable[[], ListSource]:
    """Rows whose columns are so many that they are visited before Newton's method."""
    return partial(drawn_source, 4, rows, columns, density, block_rows=150)


def by_themselves(
    candidates: Sequence[Settings], make: Callable[[], ListSource]
) -> list[tuple[object, ...]]:
    """What each candidate learns from a source of its own."""
    pairs = zip([make() for _ in candidates], candidates, strict=True)
    return [bits(trained(source, settings), len(source.codes)) for source, settings in pairs]


def together(
    candidates: Sequence[Settings],
    make: Callable[[], ListSource],
    *,
    pooled: bool = True,
    **options: Any,
) -> list[tuple[object, ...]]:
    """What candidates learn from one source; with ``pooled`` they hold rows once for all."""
    source, pool = make(), Pool()
    learners = [
        Learner(settings, source.labels, pool=pool if pooled else None) for settings in candidates
    ]
    train(source, learners, candidates[0], **options)
    return [bits(learner, len(source.codes)) for learner in learners]


@pytest.mark.parametrize(
    "plan", [*PLANS.values(), {"stage": "1,0.1,ascent", "tol": 1e-3}], ids=[*PLANS, "stages"]
)
@pytest.mark.parametrize("threads", slow_but([1, 4], 4))
def test_candidates_trained_together_learn_what_they_learn_alone(plan, threads):
    candidates = [Settings.from_dict({"C": C, "rho": rho, **plan}) for C, rho in ((0.1, 0), (5, 1))]
    assert together(candidates, source_of, threads=threads) == by_themselves(candidates, source_of)


MANY = [
    Settings(C=C, rho=rho, tol=tol)
    for C in (0.05, 0.3, 1.0, 8.0)
    for rho in (0, 1)
    for tol in (0.02, 1e-4)
]
"""Done after different numbers of mini-epochs."""

WIDE = rows_of_many_columns()

TOGETHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one thread": ({}, {}),
    "two threads": ({}, {"threads": 2}),
    "they hold rows of their own": ({"active_set": 20_000, "max_epochs": 2}, {}),
    "rows are not held once for all": ({}, {"pooled": False}),
}


@pytest.mark.parametrize(("changes", "options"), TOGETHER.values(), ids=TOGETHER)
def test_many_learners_of_the_same_rows_learn_what_they_learn_alone(changes, options):
    candidates = [replace(settings, **changes) for settings in MANY]
    found = together(candidates, WIDE, **options)
    assert found == by_themselves(candidates, WIDE)
    assert len(set(found)) >= len(MANY) // 2


def test_learners_trained_together_may_pause_between_any_two_solves():
    checkpoints: Counter[tuple[int, int]] = Counter()

    class Hasty:
        def checkpoint(self, state: Callable[[], State]) -> None:
            checkpoints[state().reading, state().chunks] += 1

        def checkpoint_due(self) -> bool:
            return True

        before_solves = end = checkpoint

    assert together(MANY, WIDE, checkpointer=Hasty()) == by_themselves(MANY, WIDE)
    assert max(checkpoints.values()) >= len(MANY), "after the last chunk, and between solves"


@plans
@pytest.mark.parametrize(
    "weights", [pytest.param(None, marks=pytest.mark.slow), {"a": 3.0, "c": 0.5}]
)
def test_a_class_born_late_learns_what_it_would_have_learned_from_the_first_row_on(plan, weights):
    labels = classes_that_come_late()
    settings = Settings.from_dict({"C": 2.0, **plan})
    source = GrowingSource(source_of(labels).rows, labels, block_rows=16)
    classes = Classes([(settings, weights)], source.labels, Pool())
    train(source, [], settings, new_classes=classes, threads=2)
    assert [learner.targets.positive for learner in classes.learners[0]] == ["b", "a", "d", "c"]
    for learner in classes.learners[0]:
        name = learner.targets.positive
        chosen = None if weights is None else {name: weights.get(name, 1.0)}
        known = trained(source_of(labels), settings, class_weights=chosen, positive=name)
        assert bits(learner) == bits(known)


def test_memory_is_asked_for_new_classes_before_their_learners_are_made():
    labels = classes_that_come_late()
    source, settings = GrowingSource(source_of(labels).rows, labels, block_rows=16), Settings()
    classes, questions = Classes([(settings, None)], source.labels, Pool()), []

    def has_room(learners: int, chunk: Chunk) -> bool:
        questions.append((learners, len(classes.learners[0])))
        return True

    train(source, [], settings, new_classes=classes, has_room=has_room)
    assert questions[0][1] == 0
    for (learners, existing), (_, later) in pairwise(questions):
        assert learners == later + 1, "all classes met so far, and the placeholder"
        assert existing <= later
    assert questions[-1][0] == 5
