"""Metrics against scikit-learn's, exact in memory, and brackets beyond it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from streamtron.cli.evaluate import metric_lines
from streamtron.core.errors import DataError, SettingsError
from streamtron.model.metrics import Evaluation, Scores
from tests.helpers.models import evaluate

EXACT = {"rel": 0, "abs": 1e-12}


def scored(signs, decisions, weights=None, *, chunk=37, **limit) -> Evaluation:
    scores = Scores(**limit)
    for at in range(0, len(signs), chunk):
        part = slice(at, at + chunk)
        scores.add(signs[part] > 0, decisions[part], None if weights is None else weights[part])
    return scores.evaluation()


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


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grid", [None, 8, 1])
@pytest.mark.parametrize("chunk", [37, 2_000])
def test_every_metric_equals_sklearns_with_ties_and_weights(weighted, grid, chunk):
    signs, decisions, weights = some_rows(2_000, grid=grid)
    weights = weights if weighted else None
    theirs = of_sklearn(signs, decisions, weights)
    found = scored(signs, decisions, weights, chunk=chunk).to_dict()
    assert {name: found[name] for name in theirs} == pytest.approx(theirs, **EXACT)
    assert found["rows"] == 2_000, "those of weight 0, too"
    assert not [name for name in found if name.endswith("bracket")]


few = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0])
row = st.tuples(st.sampled_from([-1, 1]), few | st.floats(-1e3, 1e3), st.floats(0.1, 10))


@given(st.lists(row, min_size=1, max_size=60), st.integers(1, 8), st.integers(1, 9))
def test_a_bracket_contains_the_exact_ranking_for_any_rows_limit_and_chunks(rows, limit, chunk):
    signs, decisions, weights = map(np.array, zip(*rows, strict=True))
    exact = evaluate(signs, decisions, weights).to_dict()
    found = scored(signs, decisions, weights, chunk=chunk, limit_rows=limit).to_dict()
    assert [name for name in exact if exact[name] is None] == [k for k in found if found[k] is None]
    held = len(set(decisions.tolist())) <= limit
    for name in exact:
        low, high = found.get(f"{name}_bracket", (found[name], found[name]))
        if exact[name] is None:
            continue
        assert low - 1e-12 <= exact[name] <= high + 1e-12
        if f"{name}_bracket" in found:
            assert 0.0 <= low <= found[name] <= high <= 1.0
            assert not held


@pytest.mark.parametrize("order", ["as drawn", "rising", "falling"])
def test_a_bracket_is_narrow_and_depends_on_no_order_of_the_rows(order):
    signs, decisions, _ = some_rows(20_000, seed=3)
    wanted = scored(signs, decisions, limit_rows=1_000).to_dict()
    by = {"as drawn": slice(None), "rising": np.argsort(decisions)}
    rows = by.get(order, np.argsort(-decisions))
    found = scored(signs[rows], decisions[rows], limit_rows=1_000, chunk=777).to_dict()
    assert found == wanted
    theirs = of_sklearn(signs, decisions)
    for name in ("roc_auc", "average_precision"):
        low, high = found[f"{name}_bracket"]
        assert low < theirs[name] < high < low + 0.01
        assert found[name] == pytest.approx(theirs[name], abs=1e-4)


def test_the_ends_of_a_bracket_are_the_worst_and_the_best_order_of_joined_rows():
    # 1.0 … 1.9 are one decision where two are held: one negative row between two positive ones
    decisions = np.array([-1.0, 1.2, 1.5, 1.9])
    found = scored(np.array([-1, 1, -1, 1]), decisions, limit_rows=2)
    assert found.roc_auc_bracket == pytest.approx([2 / 4, 4 / 4], **EXACT)
    assert found.roc_auc == pytest.approx(3 / 4, **EXACT)
    low, high = found.average_precision_bracket
    assert low <= (1 + 2 / 3) / 2 <= high


def test_the_command_line_prints_a_bracket_as_one_and_no_value():
    signs, decisions, _ = some_rows(500)
    found = scored(signs, decisions, limit_rows=100).to_dict()
    text = "\n".join(metric_lines(found, ()))
    shown = re.search(r"average precision +between (\S+) and (\S+)", text)
    bracket = found["average_precision_bracket"]
    assert float(shown[1]) <= bracket[0] < bracket[1] <= float(shown[2])
    many = Scores(("ant", "bee", "cow"), limit_rows=100)
    many.add(np.stack([signs > 0] * 3, axis=1), np.stack([decisions] * 3, axis=1))
    assert f" ~{found['roc_auc']:.4f}" in "\n".join(metric_lines(many.evaluation().to_dict(), ()))


def test_more_rows_may_follow_an_evaluation():
    signs, decisions, weights = some_rows(400, grid=16)
    scores = Scores(limit_rows=200)
    for at in range(0, 400, 100):
        part = slice(0, at + 100)
        scores.add(signs[at : at + 100] > 0, decisions[at : at + 100], weights[at : at + 100])
        theirs = of_sklearn(signs[part], decisions[part], weights[part])
        found = scores.evaluation().to_dict()
        assert {name: found[name] for name in theirs} == pytest.approx(theirs, **EXACT)


@pytest.mark.parametrize("limit", [1, 100])
def test_with_one_class_the_auc_is_none_and_nothing_warns(limit):
    decisions = np.array([0.5, -0.5, 0.25])
    only_positive = scored(np.ones(3), decisions, limit_rows=limit)
    only_negative = scored(-np.ones(3), decisions, limit_rows=limit)
    assert (only_positive.roc_auc, only_positive.average_precision) == (None, 1.0)
    assert (only_negative.roc_auc, only_negative.average_precision) == (None, None)
    assert (only_negative.recall, only_negative.precision) == (None, 0.0)


def test_what_is_undefined_is_null_in_json_and_never_nan():
    for found in (evaluate([], []), evaluate([-1], [-1.0]), evaluate([1], [1.0], [0.0])):
        text = json.dumps(found.to_dict(), allow_nan=False)
        assert json.loads(text)["roc_auc"] is None
    assert evaluate([], []).accuracy is None


@pytest.mark.parametrize("limit", [1, 100])
def test_decisions_at_the_ends_of_the_floats_are_ranked_without_overflow(limit):
    signs, decisions = np.array([1, 1, -1, -1]), np.array([1.7e308, -1.7e308, 1.7e308, -1.7e308])
    assert scored(signs, decisions, limit_rows=limit).roc_auc == 0.5
    scores = Scores(limit_rows=limit)
    scores.add(signs > 0, decisions)
    assert np.isfinite(scores.records()).all()


@pytest.mark.parametrize(
    ("rows", "kind", "sentence"),
    [
        (([1, 0], [0.0, np.nan]), DataError, "row 4: decision nan. It must be finite"),
        (([1], [np.inf]), DataError, "row 3: decision inf"),
        (([1, 1], [1.0]), ValueError, "cannot reshape"),
    ],
)
def test_rows_that_cannot_be_judged_are_refused_by_number(rows, kind, sentence):
    scores = Scores()
    scores.add(np.array([True, False, True]), np.array([1.0, 2.0, 3.0]))
    truth, *numbers = map(np.array, rows)
    with pytest.raises(kind) as caught:
        scores.add(truth == 1, *numbers)
    assert sentence in str(caught.value)


def test_a_limit_below_one_is_refused():
    with pytest.raises(SettingsError, match="limit_rows: 0"):
        Scores(limit_rows=0)
