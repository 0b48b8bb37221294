"""Training: certified answers, and what must not matter."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from streamtron.core.config import Settings
from streamtron.core.events import Event, Problem, ReadingDone
from streamtron.solver.changes import begin_change
from streamtron.solver.reading import problem_of
from streamtron.solver.train import Group
from tests.helpers import learners
from tests.helpers.learners import drawn_data
from tests.helpers.oracle import Row
from tests.helpers.runs import begins
from tests.helpers.sources import ListData, csr, dense, learner_of, random_rows, train, trained

COLUMNS = 6


def data_of(seed: int, n: int = 300, **options: Any) -> ListData:
    return drawn_data(seed, n, COLUMNS, **{"block_rows": 32, **options})


PLANS = {
    "default": Settings(tol=1e-4),
    "margitron": Settings(stage="1,0.1", tol=0.05),
    "small active set": Settings(active_set=1_500, tol=1e-4, max_epochs=10),
}

plans = pytest.mark.parametrize("settings", PLANS.values(), ids=PLANS)


@plans
def test_empty_columns_between_the_others_change_nothing(settings):
    rows, labels = random_rows(4, 200, COLUMNS)
    spread: list[Row] = [[(7 * column + 3, value) for column, value in row] for row in rows]
    plain = trained(ListData(csr(rows), labels, block_rows=32), settings)
    wide = trained(ListData(csr(spread), labels, block_rows=32), settings)
    assert wide.alphas.dense(200).tolist() == plain.alphas.dense(200).tolist()
    columns = [7 * column + 3 for column in range(COLUMNS)]
    assert wide.best.w[columns].tolist() == plain.best.w[:COLUMNS].tolist()
    assert np.delete(wide.best.w, columns).tolist() == [0.0] * (len(wide.best.w) - COLUMNS)
    assert wide.best.bias == plain.best.bias


@plans
def test_swapping_the_labels_gives_exactly_the_opposite_weights(settings):
    plus = trained(data_of(5), settings, positive=1)
    minus = trained(data_of(5), settings, positive=-1)
    assert (-minus.best.w).tolist() == plus.best.w.tolist()
    assert -minus.best.bias == plus.best.bias
    assert minus.alphas.dense(300).tolist() == plus.alphas.dense(300).tolist()


MANY_COLUMNS = partial(drawn_data, 1, 600, 2000, 0.004, block_rows=32)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        *((partial(data_of, 1), settings) for settings in PLANS.values()),
        (MANY_COLUMNS, Settings(C=50.0, active_set=6_000, tol=1e-9, max_epochs=12)),
    ],
    ids=[*PLANS, "blocks"],
)
def test_every_reading_is_told_with_all_its_rows_and_never_a_worse_bound(make, settings):
    events: list[Event] = []
    source = make()
    learner = trained(source, settings, listen=events.append)
    readings = [event for event in events if isinstance(event, ReadingDone)]
    begun = [event for event in events if begins(event)]
    nonzeros = sum(block.nonzeros for block in source.blocks)
    assert {event.total for event in begun} == {nonzeros}
    assert source.nonzeros_read == (0 if source.hold else len(readings) * nonzeros)
    assert sum(event.mini_epochs for event in readings) == learner.progress.mini_epochs
    assert readings[-1].certificate == learner.certificate
    primals = [event.certificate.primal for event in readings if event.certificate is not None]
    assert primals == sorted(primals, reverse=True)
    history = learner.progress.history
    assert [row.proven for row in history] == [event.certificate is not None for event in readings]
    first, *_ = history
    assert not first.proven
    if make is MANY_COLUMNS:
        assert len(primals) > 5
        assert first.lower is first.gap is None


def test_a_reading_of_a_group_tells_how_many_of_all_problems_wait():
    settings, data, events = Settings(active_set=1_500, tol=0.1), data_of(1), list[Event]()
    everyone = [learner_of(data, settings) for _ in range(3)]
    for first, stop in ((0, 1), (1, 3)):
        group = Group(everyone, (first, stop))
        train(data, everyone[first:stop], settings, events.append, group=group)
    left = [event.problems for event in events if begins(event)]
    assert left == sorted(left, reverse=True)
    assert (left[0], left[-1]) == (3, 2)


def test_events_name_the_price_that_was_given_and_a_rho_of_0_without_an_intercept():
    learner = learner_of(data_of(0), Settings(C=123.456, intercept="none"))
    assert problem_of(learner) == Problem(123.456, 0.0)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.8, 0.95, 1.0])
def test_after_every_reading_the_running_weights_are_those_that_the_dual_variables_make(share):
    """Whatever part of the rows has room in memory: a certificate would tell of later repairs."""
    rows, labels = random_rows(3, 300, COLUMNS)
    X = dense(rows, COLUMNS) * np.array(labels)[:, None]
    source = data_of(3)
    settings = Settings(C=20.0, tol=1e-5, max_epochs=8, active_set=int(share * source.nbytes))
    learner = learner_of(source, settings, positive=1)
    errors = []

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone):
            alpha = learner.alphas.dense(len(X)).astype(np.float64)
            w = learner.running.w[:COLUMNS] - alpha @ X
            errors.append(np.abs(w).max() / ((alpha @ np.abs(X)).max() or 1.0))

    train(source, [learner], settings, listen)
    assert len(errors) == learner.progress.readings > 1
    assert max(errors) < 1e-12


def test_rows_in_memory_are_held_once_for_all_learners_and_never_read():
    source = drawn_data(4, 600, 300, 0.04, block_rows=150)
    pupils = [learner_of(source, Settings(C=C)) for C in (0.05, 1.0, 8.0)]
    train(source, pupils, Settings())
    assert source.nonzeros_read == 0
    for learner in pupils:
        assert np.shares_memory(learner.active.rows.values, source.rows.values)


def test_rows_in_memory_are_scanned_as_they_lie_so_that_none_is_copied(monkeypatch):
    source, orders = drawn_data(4, 600, 300, 0.04, block_rows=150, hold=True), list[Any]()
    deliver = source.chunks
    monkeypatch.setattr(source, "chunks", lambda order=None: orders.append(order) or deliver(order))
    trained(source, Settings())
    assert orders == [None] * max(len(orders), 1)


def test_a_scan_of_worse_weights_than_the_best_is_not_continued_for_new_rows():
    """It would prove those, and they would take the place of the best."""
    source = drawn_data(1, 300, 40, block_rows=32)
    how = {"C": 50.0, "loss": "log_loss", "tol": 1e-9, "max_epochs": 4}
    learner = trained(source, Settings(active_set=int(0.05 * source.nbytes), **how))
    assert learner.frozen is not None
    assert learner.frozen.certificate().primal > learner.certificate.primal
    begin_change(learner, only_more=True)
    assert learner.frozen is None


@learners.plans
@pytest.mark.parametrize("weights", [None, {"a": 3.0, "c": 0.5}])
def test_the_learner_of_a_class_learns_beside_those_of_others_what_it_learns_alone(plan, weights):
    labels, settings = learners.some_classes(), Settings.from_dict({"C": 2.0, **plan})

    def learner(source: ListData, name: str) -> Any:
        chosen = None if weights is None else {name: weights.get(name, 1.0)}
        return learner_of(source, settings, class_weights=chosen, positive=name)

    source = learners.data_of(labels)
    pupils = [learner(source, name) for name in source.labels]
    train(source, pupils, settings, threads=2)
    for together in pupils:
        source = learners.data_of(labels)
        alone = learner(source, together.targets.positive)
        train(source, [alone], settings)
        assert learners.bits(together) == learners.bits(alone)
