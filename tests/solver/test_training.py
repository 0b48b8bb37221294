"""Training: certified answers, and what must not matter."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from streamtron.core.config import Settings
from streamtron.core.events import Event, Problem, ReadingDone
from streamtron.solver.reading import problem_of
from tests.helpers.learners import drawn_data
from tests.helpers.oracle import Oracle, Row, gamma_d, primal_value
from tests.helpers.runs import begins
from tests.helpers.sources import ListData, csr, dense, learner_of, random_rows, train, trained

COLUMNS = 6


def data_of(seed: int, n: int = 300, **options: Any) -> ListData:
    return drawn_data(seed, n, COLUMNS, **{"block_rows": 32, **options})


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("C", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_default_plan_certifies_what_weights_and_dual_variables_prove_anew(seed, C, rho):
    rows, labels = random_rows(seed, 120, COLUMNS)
    source = ListData(csr(rows), labels, block_rows=32)
    learner = trained(source, Settings(C=C, rho=rho, tol=1e-3), positive=1)
    certificate, d2 = learner.certificate, [1 / (2 * C)] * 120
    assert learner.finished == "certified"
    assert certificate.relative_duality_gap <= 1e-3
    w, bias = learner.best.w.tolist(), learner.best.bias
    oracle = Oracle(rows, labels, d2, rho, width=len(w))
    square = math.fsum([*(x * x for x in w), bias * bias])
    primal = primal_value(1.0, square, oracle.margins(w, bias), d2)
    assert 1 / math.sqrt(2 * primal) >= certificate.primal_margin * (1 - 1e-9)
    alpha = learner.alphas.dense(120).astype(float)
    v = alpha * np.array(labels) @ np.hstack([dense(rows, COLUMNS), np.full((120, 1), rho)])
    dual = alpha.sum() - 0.5 * (v @ v + alpha**2 @ np.array(d2))
    assert dual * (1 - 1e-9) <= certificate.dual <= dual * (1 + 1e-12)
    low, high = gamma_d(rows, labels, d2, rho)
    assert certificate.primal_margin <= high * (1 + 1e-9)
    assert certificate.upper_bound >= low * (1 - 1e-9)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_gap_that_closes_slowly_is_not_taken_for_one_that_rounding_leaves(seed):
    learner = trained(data_of(seed), Settings(active_set=0, max_epochs=120, tol=1e-3))
    assert learner.certificate.relative_duality_gap < 5e-3
    assert learner.finished in ("certified", "epoch limit")
    assert learner.progress.full_epochs == 120 or learner.finished == "certified"


def test_a_gap_that_still_falls_does_not_end_a_run_however_small_it_is():
    learner = trained(MANY_COLUMNS(), Settings(C=1.0, active_set=20_000, tol=1e-10, max_epochs=60))
    *_, before, last = [reading.gap for reading in learner.progress.history]
    assert learner.finished == "converged"
    assert 0.9 * before < last < 1e-6


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
    first, *_ = learner.progress.history
    assert not first.proven
    if make is MANY_COLUMNS:
        assert len(primals) > 5
        assert first.lower is first.gap is None


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
