"""Metrics against scikit-learn's, of all rows in memory, and of bins beyond them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn import metrics

import streamtron
from streamtron.cli.evaluate import metric_lines
from streamtron.core.errors import DataError
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Evaluation, Scores
from tests.helpers.models import refused
from tests.helpers.svm_text import svm_lines, write_shards

EXACT = {"rel": 0, "abs": 1e-12}
NAMES = ("ant", "bee", "cow", "doe", "elk")
RANKS = ("roc_auc", "average_precision")


def scored(signs, decisions, weights=None, *, chunk=37, classes=(), **how) -> Evaluation:
    """The metrics of rows that come in chunks; ``how`` : limits, and what else a chunk has."""
    limits = {name: how.pop(name) for name in ("held", "ranking") if name in how}
    scores = Scores(classes, **limits)
    for at in range(0, len(signs), chunk):
        part = slice(at, at + chunk)
        cut = {name: rows[part] for name, rows in how.items()}
        scores.add(
            signs[part] > 0, decisions[part], None if weights is None else weights[part], **cut
        )
        if at == 0:
            scores.evaluation()  # more rows may follow one
    return scores.evaluation()


def of_sklearn(signs, decisions, weights=None) -> dict[str, float]:
    names = ("accuracy", "precision", "recall", "f1")
    given = {name: np.where(decisions > 0, 1, -1) for name in names}
    given |= dict.fromkeys(RANKS, decisions)
    return {
        name: getattr(metrics, f"{name}_score")(signs, rows, sample_weight=weights)
        for name, rows in given.items()
    }


def some_rows(rows, *, seed=0, grid=None):
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1, 1], rows, p=[0.7, 0.3]).astype(np.int8)
    decisions = rng.normal(size=rows) + 0.8 * signs
    if grid is not None:
        decisions = np.round(decisions * grid) / grid
    return signs, decisions, rng.exponential(size=rows) * (rng.random(rows) > 0.1)


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
    assert "binned" not in found


@pytest.mark.parametrize("weighted", [False, True])
def test_bins_rank_nearly_as_all_decisions_do_in_any_order_and_are_told(weighted):
    signs, decisions, weights = some_rows(200_000, seed=3)
    weights = weights if weighted else np.ones(len(signs))
    theirs = of_sklearn(signs, decisions, weights)
    found = scored(signs, decisions, weights, held=70_000, chunk=7_777).to_dict()
    assert found["binned"]
    assert "those of bins" in "\n".join(metric_lines(found, ()))
    for name in theirs:
        close = {"abs": 1e-4} if name in RANKS else EXACT
        assert found[name] == pytest.approx(theirs[name], **close)
    falling = np.argsort(-decisions)
    again = scored(signs[falling], decisions[falling], weights[falling], held=70_000, chunk=7_777)
    assert again.to_dict() == pytest.approx(found)


@pytest.mark.parametrize("wrong", [False, True])
def test_no_share_is_above_1_however_weights_round(wrong):
    weights = np.random.default_rng(1).random((300, 65))
    truth = np.eye(3, dtype=bool)[np.arange(65) % 3]
    for of_rows in weights:
        scores = Scores((1.0, 2.0, 3.0), ranking=False)
        scores.add(truth, np.zeros(truth.shape), of_rows, chosen=truth ^ wrong)
        found = scores.evaluation()
        shares = sorted([found.accuracy, found.hamming_loss])
        assert shares == pytest.approx([0.0, 1.0])
        assert shares[1] <= 1.0


@pytest.mark.parametrize("held", [1, 100])
@pytest.mark.parametrize(
    ("signs", "weight", "wanted"),
    [
        ([1, 1, 1], 1.0, (None, 1.0, 2 / 3, 1.0)),
        ([-1, -1, -1], 1.0, (None, None, None, 0.0)),
        ([1, 1, -1], 0.0, (None,) * 4),
        ([], 1.0, (None,) * 4),
    ],
)
def test_what_is_undefined_is_null_in_json_and_never_nan(signs, weight, wanted, held):
    decisions, weights = np.array([0.5, -0.5, 0.25])[: len(signs)], np.full(len(signs), weight)
    found = scored(np.array(signs), decisions, weights, held=held)
    figures = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    names = ("roc_auc", "average_precision", "recall", "precision")
    assert tuple(figures[name] for name in names) == wanted
    assert (figures["accuracy"] is None) == (weight == 0.0 or not signs)


@pytest.mark.parametrize("held", [1, 100])
def test_decisions_at_the_ends_of_the_floats_are_ranked_without_overflow(held):
    signs, decisions = np.array([1, 1, -1, -1]), np.array([1.7e308, -1.7e308, 1.7e308, -1.7e308])
    assert scored(signs, decisions, held=held).roc_auc == 0.5
    scores = Scores(held=held)
    scores.add(signs > 0, decisions)
    assert np.isfinite(scores.ranked()[1]).all()


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
    assert sentence in refused(lambda: scores.add(truth == 1, *numbers), kind)


def rows_of_many(*, multilabel, seed=0):
    """Truth (rows, 5), decisions, choice and weights; no row has or is given ``elk``."""
    rng = np.random.default_rng(seed)
    decisions = np.round(rng.normal(size=(700, 5)) * 4) / 4  # with ties
    decisions[:, 4] = -9.0
    noise = decisions + rng.normal(size=(700, 5))
    if multilabel:
        truth, chosen = noise > 0.8, decisions > 0
    else:
        truth = noise.argmax(axis=1)[:, None] == np.arange(5)
        chosen = decisions.argmax(axis=1)[:, None] == np.arange(5)
    truth[:, 4] = False
    return truth, decisions, chosen, rng.exponential(size=700) * (rng.random(700) > 0.1)


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize(("weighted", "held"), [(False, 10_000), (True, 10_000), (True, 20)])
def test_metrics_of_classes_and_their_means_are_sklearns_ranks_of_bins_near_them(
    multilabel, weighted, held
):
    truth, decisions, chosen, weights = rows_of_many(multilabel=multilabel)
    weights = weights if weighted else None
    how = {"classes": NAMES, "chosen": chosen}
    found = scored(truth, decisions, weights, held=held, **how).to_dict()
    json.dumps(found, allow_nan=False)
    given = {"sample_weight": weights, "zero_division": 0.0}
    names = ("precision", "recall", "f1", "support")
    for average in (None, "micro", "macro"):
        theirs = metrics.precision_recall_fscore_support(truth, chosen, average=average, **given)
        if average is None:
            assert tuple(own["label"] for own in found["classes"]) == NAMES
            ours = [[own[name] or 0.0 for own in found["classes"]] for name in names]
        else:
            ours, theirs = [found[f"{average}_{name}"] for name in names[:3]], theirs[:3]
        assert np.array(ours) == pytest.approx(np.array(theirs), **EXACT)
    for name, score_of in (
        ("accuracy", metrics.accuracy_score),
        ("hamming_loss", metrics.hamming_loss),
    ):
        assert found[name] == pytest.approx(score_of(truth, chosen, sample_weight=weights), **EXACT)
    elk = found["classes"][4]  # has no rows: 0 in the means, but of the AUC, which leaves it out
    assert [elk[name] for name in ("precision", "recall", "f1", "roc_auc")] == [None] * 4
    assert ("binned" in found) == (held == 20)
    close = EXACT if held == 10_000 else {"abs": 0.01}
    for name in RANKS:
        score_of = getattr(metrics, f"{name}_score")
        theirs = [score_of(truth[:, k], decisions[:, k], sample_weight=weights) for k in range(4)]
        assert [own[name] for own in found["classes"][:4]] == pytest.approx(theirs, **close)
        assert found[f"macro_{name}"] == pytest.approx(np.mean(theirs), **close)
    unranked = scored(truth, decisions, weights, ranking=False, **how).to_dict()
    assert (unranked["macro_roc_auc"], unranked["classes"][0]["average_precision"]) == (None, None)
    assert unranked["macro_f1"] == found["macro_f1"]


def random_model(classes, **more) -> tuple[LinearModel, np.ndarray]:
    rng = np.random.default_rng(1)
    weights, X = rng.normal(size=(len(classes), 6)), rng.normal(size=(300, 6)).astype(np.float32)
    bias, reading = rng.normal(size=len(classes)), {"index_base": 0, **more}
    return LinearModel(weights, bias, classes, {}, None, reading), X


def test_rows_of_label_sets_are_judged_whatever_the_order_of_their_labels(tmp_path):
    model, X = random_model(("a", "b", "c"), multilabel=True)
    decisions, rng = model.decision_function(X), np.random.default_rng(2)
    truth, chosen = decisions + rng.normal(size=(300, 3)) > 0, decisions > 0
    sets = [",".join(np.array(["a", "b", "c"])[row][::-1]) for row in truth]
    assert "" in sets
    strange = int((truth == chosen).all(axis=1).argmax())  # else right
    sets[strange] += ",zoo" if sets[strange] else "zoo"
    found = streamtron.evaluate(model, write_shards(tmp_path, svm_lines(X, sets, 0), 1))
    f1 = metrics.f1_score(truth, chosen, average="micro")
    assert found.micro_f1 == pytest.approx(f1, **EXACT)
    right = (truth == chosen).all(axis=1)
    right[strange] = False
    assert found.accuracy == pytest.approx(right.mean(), **EXACT)
    assert (found.rows, found.rows_of_other_classes) == (300, 1)


def test_rows_of_one_label_each_are_judged_by_the_highest_decision(tmp_path):
    model, X = random_model((1.0, 2.0, 5.0))
    y = np.random.default_rng(3).choice([5, 9, 1, 2], 300)
    predicted = model.predict(X)
    y[:150] = predicted[:150]
    found = streamtron.evaluate(model, write_shards(tmp_path, svm_lines(X, y, 0), 1))
    expected = metrics.f1_score(y, predicted, average="macro", labels=[1.0, 2.0, 5.0])
    assert found.macro_f1 == pytest.approx(expected, **EXACT)
    assert found.accuracy == pytest.approx(metrics.accuracy_score(y, predicted), **EXACT)
    assert found.rows_of_other_classes == np.count_nonzero(y == 9) > 0


def test_rows_of_which_not_one_has_a_class_of_the_model_are_refused_with_both_lists(tmp_path):
    model, X = random_model(("1", "2", "3"))
    for labels, shown in ((["x", "y", "z"], "'x'"), ([1, 2, 3], "1.0")):
        shards = write_shards(tmp_path, svm_lines(X, labels * 100, 0), 1)
        words = f"no row has a class of the model: .*{shown}.*the classes '1', '2', '3'"
        with pytest.raises(DataError, match=words):
            streamtron.evaluate(model, shards)
    model, X = random_model((0.0, 1.0, 2.0))  # which Python says that booleans equal
    rows = {"indices": [[*range(6)]] * 300, "values": X.tolist(), "label": [True, False] * 150}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="no row has a class"):
        streamtron.evaluate(model, tmp_path / "rows.parquet")
