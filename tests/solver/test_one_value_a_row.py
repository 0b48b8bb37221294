"""Rows whose nonzeros have one value each take half the memory, and give the same bits."""

import numpy as np
import pytest

from streamtron.core.config import Settings
from streamtron.core.rows import Rows, make_rows, row_bytes
from streamtron.solver.row_store import ActiveSet
from streamtron.solver.targets import Targets
from tests.helpers.learners import bits
from tests.helpers.sources import ListData, trained

ROWS, LENGTH, COLUMNS = 200, 5, 40


def rows_of_one_value() -> tuple[Rows, list[int]]:
    """Rows of as many nonzeros each, and noisy linear labels."""
    rng = np.random.default_rng(4)
    columns = np.array([np.sort(rng.choice(COLUMNS, LENGTH, replace=False)) for _ in range(ROWS)])
    values = rng.choice([0.4, 1.0, 3.0], ROWS).astype(np.float32)
    scores = values * rng.normal(size=COLUMNS)[columns].sum(axis=1) + rng.normal(size=ROWS)
    indptr = np.arange(0, LENGTH * ROWS + 1, LENGTH)
    return make_rows(indptr, columns.ravel(), values, 0), [1 if s > 0 else -1 for s in scores]


def spread(rows: Rows) -> Rows:
    return make_rows(rows.indptr, rows.indices, rows.spread())


CASES = [
    (loss, held, how)
    for loss in ("squared_hinge", "log_loss", "hinge", "squared_error")
    for held in (ROWS, 30)
    for how in ({}, {"C": 50.0, "tol": 1e-6}, {"penalty": "l1", "C": 5.0})
    if loss != "hinge" or "penalty" not in how
]


@pytest.mark.parametrize(("loss", "held", "how"), CASES)
def test_training_is_the_same_to_the_bit(loss, held, how):
    rows, labels = rows_of_one_value()
    learners = []
    for these in (rows, spread(rows)):
        room = row_bytes(held * LENGTH, held, by_row=these.by_row)
        settings = Settings(loss=loss, active_set=room, max_epochs=8, **how)
        numbers = {"numbers": True} if settings.regression else {}
        data = ListData(these, labels, block_rows=16, **numbers)
        learners.append(trained(data, settings))
    assert bits(learners[0], ROWS) == bits(learners[1], ROWS)


def test_memory_holds_them_in_half_the_bytes_wherever_they_are_cut_and_moved():
    rows, _ = rows_of_one_value()
    zeros = np.zeros(ROWS)
    targets = Targets(np.arange(ROWS), np.ones(ROWS, np.int8), zeros, zeros)
    chosen = np.array([3, 4, 5, 90, 17, 18])
    some, plain = ActiveSet(row_bytes(6 * LENGTH, 6, by_row=True)), ActiveSet(10**6)
    for active, these in ((some, rows.part(2, ROWS)), (plain, spread(rows).part(2, ROWS))):
        for positions in (chosen[:3], chosen[3:], chosen):
            active.add(these, positions, targets.take(positions))
    assert (len(some), some.nbytes) == (6, some.budget)
    assert sum(some.sizes) == some.nbytes
    for kept in (np.arange(6), np.array([0, 2, 5]), np.array([1])):
        some.retain(kept)
        plain.retain(kept)
        assert some.rows.spread().tobytes() == plain.rows.spread().tobytes()
        assert some.rows.indices.tobytes() == plain.rows.indices.tobytes()
        assert len(some.rows.values) == len(kept)
