"""A learner finds the same whatever is trained with it: other learners, or threads."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from streamtron.core.config import Settings
from tests.helpers.examples import slow_but
from tests.helpers.learners import PLANS, bits, data_of, drawn_data, plans, some_classes
from tests.helpers.sources import ListData, learner_of, train, trained


def rows_of_many_columns(
    rows: int = 600, columns: int = 300, density: float = 0.04
) -> Callable[[], ListData]:
    """Rows whose columns are so many that they are visited before Newton's method."""
    return partial(drawn_data, 4, rows, columns, density, block_rows=150)


def by_themselves(
    candidates: Sequence[Settings], make: Callable[[], ListData]
) -> list[tuple[object, ...]]:
    """What each candidate learns from a source of its own."""
    pairs = zip([make() for _ in candidates], candidates, strict=True)
    return [bits(trained(source, settings), len(source.codes)) for source, settings in pairs]


def together(
    candidates: Sequence[Settings], make: Callable[[], ListData], **options: Any
) -> list[tuple[object, ...]]:
    """What candidates learn from one source."""
    source = make()
    learners = [learner_of(source, settings) for settings in candidates]
    train(source, learners, candidates[0], **options)
    return [bits(learner, len(source.codes)) for learner in learners]


@pytest.mark.parametrize(
    "plan", [*PLANS.values(), {"stage": "1,0.1", "tol": 0.02}], ids=[*PLANS, "stages"]
)
@pytest.mark.parametrize("threads", slow_but([1, 4], 4))
def test_candidates_trained_together_learn_what_they_learn_alone(plan, threads):
    candidates = [Settings.from_dict({"C": C, "rho": rho, **plan}) for C, rho in ((0.1, 0), (5, 1))]
    assert together(candidates, data_of, threads=threads) == by_themselves(candidates, data_of)


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
}


@pytest.mark.parametrize(("changes", "options"), TOGETHER.values(), ids=TOGETHER)
def test_many_learners_of_the_same_rows_learn_what_they_learn_alone(changes, options):
    candidates = [replace(settings, **changes) for settings in MANY]
    found = together(candidates, WIDE, **options)
    assert found == by_themselves(candidates, WIDE)
    assert len(set(found)) >= len(MANY) // 2


def test_rows_in_memory_are_held_once_for_all_learners_and_never_read():
    source = WIDE()
    learners = [learner_of(source, settings) for settings in MANY[:3]]
    train(source, learners, MANY[0])
    assert source.nonzeros_read == 0
    for learner in learners:
        assert np.shares_memory(learner.active.rows.values, source.rows.values)


@plans
@pytest.mark.parametrize("weights", [None, {"a": 3.0, "c": 0.5}])
def test_the_learner_of_a_class_learns_beside_those_of_others_what_it_learns_alone(plan, weights):
    labels, settings = some_classes(), Settings.from_dict({"C": 2.0, **plan})

    def learner(source: ListData, name: str) -> Any:
        chosen = None if weights is None else {name: weights.get(name, 1.0)}
        return learner_of(source, settings, class_weights=chosen, positive=name)

    source = data_of(labels)
    learners = [learner(source, name) for name in source.labels]
    train(source, learners, settings, threads=2)
    for together in learners:
        source = data_of(labels)
        alone = learner(source, together.targets.positive)
        train(source, [alone], settings)
        assert bits(together) == bits(alone)
