"""Metrics against scikit-learn's, in memory and from spooled runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.model.metrics import Evaluation, ScoreSpool
from tests.helpers.rows_judged import evaluate

EXACT = {"rel": 0, "abs": 1e-12}


def spooled(signs, decisions, weights=None, *, limit, chunk, directory=None) -> Evaluation:
    with ScoreSpool(limit_rows=limit, directory=directory) as spool:
        for at in range(0, len(signs), chunk):
            part = slice(at, at + chunk)
            spool.add(signs[part] > 0, decisions[part], None if weights is None else weights[part])
        return spool.evaluation()


def of_sklearn(signs, decisions, weights=None) -> dict[str, float]:
    predicted = np.where(decisions > 0, 1, -1)
    sums = {"sample_weight": weights}
    return {
        "accuracy": metrics.accuracy_score(signs, predicted, **sums),
        "precision": metrics.precision_score(signs, predicted, **sums),
        "recall": metrics.recall_score(signs, predicted, **sums),
        "f1": metrics.f1_score(signs, predicted, **sums),
        "roc_auc": metrics.roc_auc_score(signs, decisions, **sums),
        "average_precision": metrics.average_precision_score(signs, decisions, **sums),
    }


def some_rows(rows, *, seed=0, grid=None):
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1, 1], rows, p=[0.7, 0.3]).astype(np.int8)
    decisions = rng.normal(size=rows) + 0.8 * signs
    if grid is not None:
        decisions = np.round(decisions * grid) / grid
    weights = rng.exponential(size=rows) * (rng.random(rows) > 0.1)
    return signs, decisions, weights


def assert_same(ours: Evaluation, theirs: dict[str, float]) -> None:
    found = ours.to_dict()
    assert {name: found[name] for name in theirs} == pytest.approx(theirs, **EXACT)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grid", [None, 8, 1])
@pytest.mark.parametrize("limit", [10_000, 500, 7, 1])
def test_every_metric_equals_sklearns_with_ties_and_weights_in_memory_and_from_runs(
    weighted, grid, limit
):
    signs, decisions, weights = some_rows(2_000, grid=grid)
    weights = weights if weighted else None
    ours = spooled(signs, decisions, weights, limit=limit, chunk=37)
    assert_same(ours, of_sklearn(signs, decisions, weights))


few = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0])
row = st.tuples(st.sampled_from([-1, 1]), few | st.floats(-1e3, 1e3), st.floats(0.1, 10))


@given(st.lists(row, min_size=1, max_size=60), st.integers(1, 8), st.integers(1, 9))
def test_spooled_runs_give_what_memory_gives_for_any_rows_limit_and_chunks(rows, limit, chunk):
    signs, decisions, weights = map(np.array, zip(*rows, strict=True))
    whole = evaluate(signs, decisions, weights).to_dict()
    cut = spooled(signs, decisions, weights, limit=limit, chunk=chunk).to_dict()
    assert [name for name in whole if whole[name] is None] == [k for k in cut if cut[k] is None]
    for name in whole:
        assert whole[name] is None or cut[name] == pytest.approx(whole[name], rel=1e-12, abs=1e-12)


def test_a_tiny_limit_goes_to_disk_and_leaves_sklearns_ranking_unused(monkeypatch):
    def unused(*_):
        raise AssertionError("in memory")

    signs, decisions, weights = some_rows(300, grid=4)
    theirs = of_sklearn(signs, decisions, weights)
    monkeypatch.setattr("sklearn.metrics.roc_auc_score", unused)
    assert_same(spooled(signs, decisions, weights, limit=20, chunk=20), theirs)


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_runs_that_do_not_overlap_are_merged_in_order(order):
    signs, decisions, weights = some_rows(1_000, seed=3)
    by = np.argsort(decisions if order == "rising" else -decisions)
    rows = signs[by], decisions[by], weights[by]
    assert_same(spooled(*rows, limit=50, chunk=51), of_sklearn(*rows))


def test_more_rows_may_follow_an_evaluation_of_spooled_ones():
    signs, decisions, weights = some_rows(400, grid=16)
    with ScoreSpool(limit_rows=30) as spool:
        for at in range(0, 400, 100):
            part = slice(0, at + 100)
            spool.add(signs[at : at + 100] > 0, decisions[at : at + 100], weights[at : at + 100])
            theirs = of_sklearn(signs[part], decisions[part], weights[part])
            assert_same(spool.evaluation(), theirs)


def test_runs_written_after_an_evaluation_do_not_overwrite_older_ones():
    decisions = np.arange(40.0)  # rising, so the evaluation reads the first run last
    signs = np.where(decisions % 3 == 0, 1, -1)
    with ScoreSpool(limit_rows=9) as spool:
        for at in range(0, 30, 10):
            spool.add(signs[at : at + 10] > 0, decisions[at : at + 10])
        assert_same(spool.evaluation(), of_sklearn(signs[:30], decisions[:30]))
        spool.add(signs[30:] > 0, decisions[30:])
        assert_same(spool.evaluation(), of_sklearn(signs, decisions))


def test_an_auc_worked_by_hand_counts_ties_half():
    # pairs (positive, negative): 2 > 1, 2 > 0, 1 = 1, 1 > 0, and 3.5 of 4 is .875
    assert evaluate([1, 1, -1, -1], [2, 1, 1, 0]).roc_auc == pytest.approx(0.875, **EXACT)
    assert spooled(
        np.array([1, 1, -1, -1]), np.array([2, 1, 1, 0]), limit=1, chunk=1
    ).roc_auc == pytest.approx(0.875, **EXACT)


@pytest.mark.parametrize("limit", [1, 100])
def test_with_one_class_the_auc_is_none_and_nothing_warns(limit):
    decisions = np.array([0.5, -0.5, 0.25])
    only_positive = spooled(np.ones(3), decisions, limit=limit, chunk=1)
    only_negative = spooled(-np.ones(3), decisions, limit=limit, chunk=1)
    assert (only_positive.roc_auc, only_positive.average_precision) == (None, 1.0)
    assert (only_negative.roc_auc, only_negative.average_precision) == (None, None)
    assert (only_negative.recall, only_negative.precision) == (None, 0.0)


def test_what_is_undefined_is_null_in_json_and_never_nan():
    for found in (evaluate([], []), evaluate([-1], [-1.0]), evaluate([1], [1.0], [0.0])):
        text = json.dumps(found.to_dict(), allow_nan=False)
        assert json.loads(text)["roc_auc"] is None
    assert evaluate([], []).accuracy is None


def test_a_row_of_weight_zero_is_counted_but_changes_no_metric():
    signs, decisions = [1, -1, 1, -1], [2.0, 1.0, 0.5, -1.0]
    plain = evaluate(signs, decisions).to_dict()
    extended = evaluate([*signs, -1], [*decisions, 9.0], [1, 1, 1, 1, 0]).to_dict()
    assert extended.pop("rows") == 5
    assert plain.pop("rows") == 4
    assert extended == plain


def test_a_row_of_weight_zero_with_the_highest_decision_is_left_out_of_spooled_runs():
    rows = [np.array(each) for each in ([-1, 1, -1], [9.0, 2.0, 1.0], [0.0, 1.0, 1.0])]
    assert spooled(*rows, limit=1, chunk=3).roc_auc == 1.0
    assert spooled(*rows, limit=1, chunk=3).average_precision == 1.0


def test_a_decision_of_zero_is_not_predicted_positive():
    found = evaluate([1, -1], [0.0, -0.0])
    assert (found.true_positives, found.false_negatives, found.true_negatives) == (0, 1, 1)


def test_decisions_at_the_ends_of_the_floats_are_merged_without_overflow():
    signs, decisions = np.array([1, 1, -1, -1]), np.array([1.7e308, -1.7e308, 1.7e308, -1.7e308])
    assert spooled(signs, decisions, limit=1, chunk=1).roc_auc == 0.5


def test_spooled_rows_are_in_no_named_file_and_the_directory_is_empty_afterwards(tmp_path):
    signs, decisions, weights = some_rows(500)
    with ScoreSpool(limit_rows=10, directory=tmp_path) as spool:
        spool.add(signs > 0, decisions, weights)
        assert spool.evaluation().rows == 500
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    spool = ScoreSpool(limit_rows=1, directory=tmp_path / "absent")
    with pytest.raises(MachineError, match=r"absent: sorted decisions cannot be kept"):
        spool.add(np.array([True, False]), np.array([0.0, 1.0]))


@pytest.mark.parametrize(
    ("rows", "kind", "sentence"),
    [
        (([1, 0], [0.0, np.nan]), DataError, "row 4: decision nan. It must be finite"),
        (([1], [np.inf]), DataError, "row 3: decision inf"),
        (([1, 1], [1.0]), ValueError, "cannot reshape"),
    ],
)
def test_rows_that_cannot_be_judged_are_refused_by_number(rows, kind, sentence):
    with ScoreSpool() as spool:
        spool.add(np.array([True, False, True]), np.array([1.0, 2.0, 3.0]))
        truth, *numbers = map(np.array, rows)
        with pytest.raises(kind) as caught:
            spool.add(truth == 1, *numbers)
    assert sentence in str(caught.value)


def test_a_limit_below_one_is_refused():
    with pytest.raises(SettingsError, match="limit_rows: 0"):
        ScoreSpool(limit_rows=0)


def test_evaluation_is_imported_without_sklearn():
    code = "import sys, streamtron.model.metrics; sys.exit('sklearn' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0
