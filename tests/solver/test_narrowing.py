"""Rows of many columns are solved on those that matter, to the same bits."""

import numpy as np
import pytest

from streamtron.core.config import Settings
from streamtron.solver import few_columns, subproblem
from streamtron.solver.progress import BestWeights
from streamtron.solver.row_store import ActiveSet
from streamtron.solver.subproblem import Narrowed
from streamtron.solver.weights import WeightState
from tests.helpers.learners import bits
from tests.helpers.sources import ListSource, csr, random_rows, trained
from tests.solver.test_active_set import fill

ROWS, COLUMNS, WIDE = 240, 30, 40_000
SPREAD = np.sort(np.random.default_rng(1).choice(WIDE, COLUMNS, replace=False)).tolist()

PLANS = {
    "all rows": {"C": 50.0, "tol": 1e-9},
    "blocks": {"active_set": 2500, "C": 5.0, "max_epochs": 6},
    "stages": {"stage": "1,0.1,ascent", "tol": 1e-4},
    "more readings": {"active_set": 9000, "C": 50.0, "tol": 1e-9},
}


def spread_out() -> ListSource:
    """Rows of few columns, which lie far apart."""
    rows, labels = random_rows(3, ROWS, COLUMNS)
    wide = [[(SPREAD[j], value) for j, value in row] for row in rows]
    return ListSource(csr(wide), labels, block_rows=16)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_solve_on_the_columns_that_matter_finds_the_bits_of_one_on_all(plan, monkeypatch):
    lengths = []

    class Told(Narrowed):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)
            lengths.append(len(self.running.w))

    monkeypatch.setattr("streamtron.solver.reading.Narrowed", Told)
    monkeypatch.setattr(few_columns, "worthwhile", lambda *_: False)  # as if there were many
    narrow = trained(spread_out(), Settings.from_dict(plan))
    assert lengths
    assert max(lengths) <= COLUMNS, "a solve was of all columns"
    lengths.clear()
    monkeypatch.setattr(subproblem, "FEW", 0)
    whole = trained(spread_out(), Settings.from_dict(plan))
    assert max(lengths) > COLUMNS
    assert bits(narrow, ROWS) == bits(whole, ROWS)
    assert narrow.best.weights.any()


def test_columns_that_occur_or_have_a_weight_are_kept_in_their_order():
    active, running, also = ActiveSet(10**6), WeightState(), np.zeros(1000)
    fill(active, [[(7, 1.0), (900, 2.0)], [(3, 4.0)], [(900, 8.0)]], [0, 1, 2], 0)
    running.widen(1000)
    running.w[5], also[999] = 0.5, 0.25
    narrowed = Narrowed(active, running, also)
    assert narrowed.held.rows.indices.tolist() == [2, 3, 0, 3]
    assert narrowed.running.w.tolist() == [0.0, 0.5, 0.0, 0.0, 0.0]
    best = BestWeights(also, scale=2.0, bias=3.0)
    assert narrowed.narrow(best).tolist() == [0.0, 0.0, 0.0, 0.0, 0.5, 3.0]
    assert narrowed.held.targets.squares.tolist() == [5.0, 16.0, 64.0]


@pytest.mark.parametrize("active_set", [10**6, 2500], ids=["all rows", "blocks"])
def test_weights_are_as_many_as_columns_once_all_rows_have_been_read(active_set):
    rows = [[(0, 1.0 if k % 2 else -1.0), (10 * k + 1, 1.0)] for k in range(200)]
    source = ListSource(csr(rows), [k % 2 for k in range(200)], block_rows=16)
    learner = trained(source, Settings(active_set=active_set))
    assert len(learner.running.w) == len(learner.best.weights) == 1992
