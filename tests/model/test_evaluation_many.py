"""Metrics of many classes against scikit-learn's, exact and in brackets."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics

from streamtron.core.errors import DataError
from streamtron.core.rows import Chunk, make_rows
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Scores
from streamtron.runs.evaluate import score, summarise, with_known_classes
from tests.helpers.sources import ListSource

EXACT = {"rel": 0, "abs": 1e-12}
NAMES = ("ant", "bee", "cow", "doe", "elk")
ROWS = 700


def evaluated(model, source):
    [found] = summarise([model], with_known_classes(model, score([model], source)))
    return found


def some_rows(*, multilabel, seed=0):
    """Truth (rows, 5), decisions, choice and weights; no row has or is given ``elk``."""
    rng = np.random.default_rng(seed)
    decisions = np.round(rng.normal(size=(ROWS, 5)) * 4) / 4  # with ties
    decisions[:, 4] = -9.0
    noise = decisions + rng.normal(size=(ROWS, 5))
    if multilabel:
        truth, chosen = noise > 0.8, decisions > 0
    else:
        truth = noise.argmax(axis=1)[:, None] == np.arange(5)
        chosen = decisions.argmax(axis=1)[:, None] == np.arange(5)
    truth[:, 4] = False
    weights = rng.exponential(size=ROWS) * (rng.random(ROWS) > 0.1)
    return truth, decisions, chosen, weights


def scored(truth, decisions, chosen, weights=None, others=None, *, chunk=37, **limits):
    scores = Scores(NAMES, **limits)
    for at in range(0, len(truth), chunk):
        part = slice(at, at + chunk)
        scores.add(
            truth[part], decisions[part], None if weights is None else weights[part],
            chosen=chosen[part], others=None if others is None else others[part],
        )  # fmt: skip
    return scores.evaluation()


def of_sklearn(truth, chosen, weights, average) -> list:
    return list(
        metrics.precision_recall_fscore_support(
            truth, chosen, average=average, sample_weight=weights, zero_division=0.0
        )
    )


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_each_class_their_means_and_those_of_rows_are_sklearns(multilabel, weighted):
    truth, decisions, chosen, weights = some_rows(multilabel=multilabel)
    weights = weights if weighted else None
    found = scored(truth, decisions, chosen, weights)
    theirs = of_sklearn(truth, chosen, weights, None)
    for k, ours in enumerate(found.classes):
        names = ("precision", "recall", "f1", "support")
        assert ours["label"] == NAMES[k]
        expected = [each[k] for each in theirs]
        assert [ours[name] or 0.0 for name in names] == pytest.approx(expected, rel=1e-13)
    for mean in ("micro", "macro"):
        expected = of_sklearn(truth, chosen, weights, mean)[:3]
        ours = [getattr(found, f"{mean}_{name}") for name in ("precision", "recall", "f1")]
        assert ours == pytest.approx(expected, **EXACT)
    accuracy = metrics.accuracy_score(truth, chosen, sample_weight=weights)
    hamming = metrics.hamming_loss(truth, chosen, sample_weight=weights)
    assert found.accuracy == pytest.approx(accuracy, **EXACT)
    assert found.hamming_loss == pytest.approx(hamming, **EXACT)
    assert 0.1 < found.accuracy < 0.9
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("limit", [10_000, 20, 4])
def test_rankings_of_classes_and_their_means_are_sklearns_or_brackets_of_them(multilabel, limit):
    truth, decisions, chosen, weights = some_rows(multilabel=multilabel)
    found = scored(truth, decisions, chosen, weights, limit_rows=limit)
    assert ("macro_roc_auc_bracket" in found.to_dict()) == (limit < 10_000)
    scores = {
        "roc_auc": metrics.roc_auc_score,
        "average_precision": metrics.average_precision_score,
    }
    for name, score_of in scores.items():
        theirs = [score_of(truth[:, k], decisions[:, k], sample_weight=weights) for k in range(4)]
        for figures, figure, wanted in (
            *zip(found.classes[:4], [name] * 4, theirs, strict=True),
            (found.to_dict(), f"macro_{name}", np.mean(theirs)),
        ):
            value = figures[figure]
            low, high = figures.get(f"{figure}_bracket", (value, value))
            assert low - 1e-12 <= wanted <= high + 1e-12


def test_a_class_without_rows_is_left_out_of_the_mean_auc_and_counts_0_in_macro_f1():
    truth, decisions, chosen, _ = some_rows(multilabel=True)
    found = scored(truth, decisions, chosen)
    elk = found.classes[4]
    assert [elk[name] for name in ("precision", "recall", "f1", "roc_auc")] == [None] * 4
    known = found.classes[:4]
    assert found.macro_f1 == pytest.approx(sum(each["f1"] for each in known) / 5, **EXACT)
    assert found.macro_roc_auc == pytest.approx(sum(each["roc_auc"] for each in known) / 4, **EXACT)


def test_without_ranking_no_decision_is_kept_and_the_counts_are_the_same():
    rows = some_rows(multilabel=True)
    found, ranked = scored(*rows, ranking=False), scored(*rows)
    assert (found.macro_roc_auc, found.classes[0]["average_precision"]) == (None, None)
    assert ranked.macro_roc_auc is not None
    assert (found.micro_f1, found.macro_f1) == (ranked.micro_f1, ranked.macro_f1)


def test_rows_of_other_classes_are_counted_and_never_right():
    truth, decisions, chosen, weights = some_rows(multilabel=True)
    others = np.arange(ROWS) % 3 == 0
    found = scored(truth, decisions, chosen, weights, others)
    wide = [
        np.column_stack([each, column])
        for each, column in ((truth, others), (chosen, False * others))
    ]
    accuracy = metrics.accuracy_score(*wide, sample_weight=weights)
    assert found.rows_of_other_classes == np.count_nonzero(others)
    assert found.accuracy == pytest.approx(accuracy, **EXACT)
    assert found.accuracy < scored(truth, decisions, chosen, weights).accuracy


# --- from chunks ---------------------------------------------------------------------------------


class LabelSets(ListSource):
    """A source whose rows have any number of labels each, in the chunks' own numbering."""

    def __init__(self, rows, sets, block_rows) -> None:
        super().__init__(rows, [0.0] * len(sets), block_rows=block_rows)
        self.labels = list(dict.fromkeys(label for labels in sets for label in labels))
        self.sets = sets

    def _chunk(self, blocks) -> Chunk:
        chunk = super()._chunk(blocks)
        sets = [labels for a, z in chunk.ranges for labels in self.sets[a:z]]
        codes = [self.labels.index(label) for labels in sets for label in labels]
        offsets = np.cumsum([0, *map(len, sets)])
        return replace(chunk, codes=np.array(codes, np.int32), code_offsets=offsets)


def random_model(classes, **more) -> tuple[LinearModel, np.ndarray]:
    rng = np.random.default_rng(1)
    weights, X = rng.normal(size=(len(classes), 6)), rng.normal(size=(300, 6)).astype(np.float32)
    bias, reading = rng.normal(size=len(classes)), {"index_base": 0, **more}
    return LinearModel(weights, bias, classes, {}, None, reading), X


def as_rows(X):
    columns = np.tile(np.arange(X.shape[1]), len(X))
    return make_rows(np.arange(0, X.size + 1, X.shape[1]), columns, X.ravel())


def test_a_multilabel_source_is_judged_by_label_sets_whatever_their_order():
    model, X = random_model(("a", "b", "c"), multilabel=True)
    rng = np.random.default_rng(2)
    truth = (model.decision_function(X) + rng.normal(size=(300, 3))) > 0
    sets = [tuple(np.array(["a", "b", "c"])[row][::-1].tolist()) for row in truth]
    sets[7] = (*sets[7], "zoo")
    found = evaluated(model, LabelSets(as_rows(X), sets, block_rows=64))
    chosen = model.decision_function(X) > 0
    assert found.micro_f1 == pytest.approx(
        metrics.f1_score(truth, chosen, average="micro"), **EXACT
    )
    assert found.macro_roc_auc == pytest.approx(
        metrics.roc_auc_score(truth, model.decision_function(X), average="macro"), **EXACT
    )
    right = (truth == chosen).all(axis=1)
    right[7] = False
    assert found.accuracy == pytest.approx(right.mean(), **EXACT)
    assert (found.rows, found.rows_of_other_classes) == (300, 1)
    assert min(map(len, sets)) == 0


@pytest.mark.parametrize("block_rows", [300, 11])
def test_a_multiclass_source_is_judged_by_the_highest_decision(block_rows):
    model, X = random_model((1.0, 2.0, 5.0))
    y = np.random.default_rng(3).choice([5.0, 9.0, 1.0, 2.0], 300)
    y[:150] = model.predict(X)[:150]
    found = evaluated(model, ListSource(as_rows(X), y.tolist(), block_rows=block_rows))
    predicted = model.predict(X)
    known = {"labels": [1.0, 2.0, 5.0]}
    for mean in ("micro", "macro"):
        expected = metrics.f1_score(y, predicted, average=mean, **known)
        assert getattr(found, f"{mean}_f1") == pytest.approx(expected, **EXACT)
    assert found.accuracy == pytest.approx(metrics.accuracy_score(y, predicted), **EXACT)
    assert found.rows_of_other_classes == np.count_nonzero(y == 9.0) > 0


@pytest.mark.parametrize("labels", [["x", "y", "z"], [1.0, 2.0, 3.0]])
def test_rows_of_which_not_one_has_a_class_of_the_model_are_refused_with_both_lists(labels):
    model, X = random_model(("1", "2", "3"))
    source = ListSource(as_rows(X), labels * 100)
    with pytest.raises(DataError, match="no row has a class of the model") as caught:
        evaluated(model, source)
    assert repr(labels[0]) in str(caught.value)
    assert "the classes '1', '2', '3'" in str(caught.value)


def test_booleans_are_not_taken_for_the_numbers_that_python_says_they_equal():
    model, X = random_model((0.0, 1.0, 2.0))
    with pytest.raises(DataError, match="no row has a class"):
        evaluated(model, ListSource(as_rows(X), [True, False] * 150))
