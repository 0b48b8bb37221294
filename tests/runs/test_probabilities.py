"""Probabilities of decisions: scikit-learn's formulas, on shards; and labels that are certain: no
further training can change them."""

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn import metrics
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer

import streamtron
from streamtron import LinearModel
from streamtron.core.errors import DataError, FileDamaged, SettingsError
from streamtron.core.files import locked
from streamtron.core.sealed import write_sealed
from streamtron.core.theory import decision_radius
from streamtron.model.calibration import METHODS, fit_direction, probabilities, probabilities_of
from streamtron.model.certainty import (
    OptimumBounds,
    ball_of,
    certain,
    middle,
)
from streamtron.model.metrics import ProbabilityScores, binned
from tests.helpers.models import make_model, refused
from tests.helpers.processes import one_sentence, succeeded
from tests.helpers.sources import csr
from tests.helpers.svm_text import svm_lines

KINDS: Any = {"two": {}, "many": {"multiclass": True}, "labels": {"multilabel": True}}
LABELS = ((0,), (1, 2), (0, 2), ())
"""The labels of a row of each class of four, where a row has several."""
PARTS = {"train": slice(400), "held": slice(400, 800), "new": slice(800, 900)}


@cache
def _drawn(classes: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(900, 12, n_informative=6, n_classes=classes, random_state=1)
    return X.astype(np.float32), y


def _rows(kind: str, part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    X, y = (array[PARTS[part]] for array in _drawn(2 if kind == "two" else 4))
    return X, MultiLabelBinarizer().fit_transform([LABELS[k] for k in y]) if kind == "labels" else y


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with rows of every kind of classes: to fit, to calibrate on, and to predict; and
    those of which some labels are certain and others are not."""
    directory = tmp_path_factory.mktemp("place")
    for kind, part in itertools.product(KINDS, PARTS):
        X, labels = _rows("many" if kind == "labels" else kind, part)
        if kind == "labels":
            labels = [",".join(map(str, LABELS[k])) for k in labels]
        (directory / f"{kind}-{part}.svm").write_text("".join(svm_lines(X, labels)))
    how: Any = {"n_informative": 5, "n_redundant": 0, "class_sep": 0.5, "random_state": 2}
    for name, classes in (("two", 2), ("multiclass", 4), ("multilabel", 4)):
        X, labels = make_classification(700, 10, n_classes=classes, **how)
        if name == "multilabel":
            labels = np.array(["0", "1", "0,1", ""])[labels]
        (directory / f"{name}.svm").write_text("".join(svm_lines(X, labels)))
    return directory


def _fit(place: Path, kind: str, loss: Any = "log_loss", tol: float = 1e-11, **more: Any) -> Any:
    return streamtron.fit(place / f"{kind}-train.svm", loss=loss, tol=tol, **KINDS[kind], **more)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["two", "many"])
def test_the_probabilities_are_those_of_scikit_learns_calibrated_classifier(place, name, method):
    X, y = _rows(name, "train")
    ours = streamtron.StreamtronClassifier(tol=1e-6).fit(X, y)
    theirs = CalibratedClassifierCV(FrozenEstimator(ours), method=method)
    theirs.fit(*_rows(name, "held"))
    model = streamtron.calibrate(
        _fit(place, name, "squared_hinge", 1e-6), place / f"{name}-held.svm", method=method
    )
    new, _ = _rows(name, "new")
    found = model.predict_proba(new)
    assert found == pytest.approx(theirs.predict_proba(new), rel=0, abs=1e-6)
    assert found.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    if method == "sigmoid":
        assert len(np.unique(found)) > len(new)


@pytest.mark.parametrize(
    ("scale", "offset"), [(1e-3, 0), (1.0, 0), (1e5, 0), (1e-6, -1), (1e-7, 3)]
)
def test_the_sigmoid_has_the_least_log_loss_of_platts_targets(scale, offset):
    rng = np.random.default_rng(0)
    decisions = rng.normal(size=500) * scale
    positive = rng.random(500) < 1 / (1 + np.exp(-3 * decisions / scale + 1))
    weights = rng.exponential(size=500)
    found = fit_direction("sigmoid", positive, decisions + offset, weights)
    p = 1 / (1 + np.exp(found["a"] * (decisions + offset) + found["b"]))
    n = [weights[~positive].sum(), weights[positive].sum()]
    targets = np.where(positive, (n[1] + 1) / (n[1] + 2), 1 / (n[0] + 2))
    assert (weights * (p - targets)).sum() == pytest.approx(0.0, abs=1e-6)
    assert (weights * (p - targets) * decisions / scale).sum() == pytest.approx(0.0, abs=1e-6)
    assert found["a"] < 0


def test_bins_calibrate_as_the_decisions_in_them_do():
    rng = np.random.default_rng(0)
    decisions, weights = rng.normal(size=50_000), np.ones(50_000)
    rows = rng.random(50_000) < 1 / (1 + np.exp(-3 * decisions)), decisions, weights
    places = np.linspace(-2, 2, 101)
    for method in METHODS:
        exact, joined = (
            {"method": method, "directions": [fit_direction(method, *given)]}
            for given in (rows, binned(*rows))
        )
        shares = [probabilities(c, places, sum_to_one=False) for c in (exact, joined)]
        assert exact != joined
        assert shares[0] == pytest.approx(shares[1], abs=0.005)


@pytest.mark.parametrize("decision", [0.0, 0.1])
def test_equal_decisions_get_the_share_of_their_positives(decision):
    rows = np.arange(6) < 3, np.full(6, decision), np.full(6, 0.7)
    sigmoid, isotonic = (fit_direction(method, *rows) for method in METHODS)
    assert (sigmoid["a"], sigmoid["b"]) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert isotonic["decisions"] == [decision]
    assert isotonic["probabilities"] == pytest.approx([0.5], rel=1e-15)


def test_probabilities_that_are_all_zero_become_uniform():
    step = {"decisions": [0.0, 1.0], "probabilities": [0.0, 1.0]}
    calibration = {"method": "isotonic", "directions": [step] * 3}
    decisions = np.array([[-1.0, -2.0, -3.0], [1.0, 1.0, -1.0]])
    found = probabilities(calibration, decisions, sum_to_one=True)
    assert found == pytest.approx(np.array([[1 / 3] * 3, [0.5, 0.5, 0.0]]))


def test_row_weights_count_and_rows_of_weight_0_do_not(tmp_path):
    model, found = make_model((1.0,), 0.0, weights_in_label=True), []
    for text in ("1:2 1:1\n-1:1 1:-1\n-1:0 1:9\n", "1:1 1:1\n1:1 1:1\n-1:1 1:-1\n"):
        (tmp_path / "a.svm").write_text(text)
        found.append(streamtron.calibrate(model, tmp_path / "a.svm").calibration)
    assert [calibration["rows"] for calibration in found] == [2, 3]
    weighted, repeated = (calibration["directions"][0] for calibration in found)
    assert weighted == pytest.approx(repeated, abs=1e-9)
    (tmp_path / "a.svm").write_text("1:0 1:1\n-1:0 1:-1\n")
    with pytest.raises(DataError, match=r"need rows of a weight above 0, and there are none"):
        streamtron.calibrate(model, tmp_path / "a.svm")


BAD = {
    "another method": {"method": "magic", "directions": [{"a": 1.0, "b": 0.0}]},
    "too few": {"method": "sigmoid", "directions": []},
    "no list": {"method": "sigmoid", "directions": 3},
    "no numbers": {"method": "sigmoid", "directions": [{"a": "x", "b": 0.0}]},
    "too large": {"method": "sigmoid", "directions": [{"a": 10**400, "b": 0.0}]},
    "lengths": {"method": "isotonic", "directions": [{"decisions": [0.0], "probabilities": []}]},
    "falling": {
        "method": "isotonic",
        "directions": [{"decisions": [1.0, 0.0], "probabilities": [0, 1]}],
    },
    "twice": {"method": "isotonic", "directions": [{"decisions": [1, 1], "probabilities": [0, 1]}]},
    "sinking": {
        "method": "isotonic",
        "directions": [{"decisions": [0.0, 1.0], "probabilities": [1, 0]}],
    },
    "above 1": {"method": "isotonic", "directions": [{"decisions": [1.0], "probabilities": [2]}]},
    "ragged": {"method": "isotonic", "directions": [{"decisions": [[1], 2], "probabilities": [0]}]},
}


@pytest.mark.parametrize("calibration", BAD.values(), ids=BAD)
def test_a_calibration_that_cannot_be_one_is_refused(tmp_path, calibration):
    model = make_model()
    assert b"calibration" not in model.to_bytes(), "one without keeps its bytes"
    assert "calibration" in refused(lambda: model.but(calibration=calibration), SettingsError)
    content, tensors = model._parts()
    write_sealed(tmp_path / "m", {**content, "calibration": calibration}, tensors)
    refused(lambda: LinearModel.load(tmp_path / "m"), FileDamaged)


@pytest.mark.parametrize("name", ["two", "many"])
def test_calibrate_gives_and_predict_writes_the_probabilities(run, place, name):
    many = ["--multiclass"] if name == "many" else []
    succeeded(run(*f"fit {name}-train.svm --model {name}.model --tol 1e-6".split(), *many))
    succeeded(run("calibrate", f"{name}.model", f"{name}-held.svm"))
    model = streamtron.load(place / f"{name}.model")
    assert model == streamtron.calibrate(
        _fit(place, name, "squared_hinge", 1e-6), place / f"{name}-held.svm"
    )
    wanted = model.predict_proba(_rows(name, "new")[0])
    for output in ("out.txt", "out.parquet"):
        words = ("predict", f"{name}.model", f"{name}-new.svm", "--proba", "-o", output)
        assert run(*words).returncode == 0
    lines = [line.split("\t") for line in (place / "out.txt").read_text().splitlines()]
    table = pq.read_table(place / "out.parquet")
    if name == "two":
        assert [float(line[2]) for line in lines] == wanted[:, 1].tolist()
        assert table.column_names == ["label", "decision", "probability"]
        assert table["probability"].to_pylist() == wanted[:, 1].tolist()
    else:
        assert [[*map(float, line[5:])] for line in lines] == wanted.tolist()
        names = [f"probability {name:g}" for name in model.classes]
        assert table.column_names[-4:] == names
        assert [table[name].to_pylist() for name in names] == wanted.T.tolist()
    done = run("calibrate", f"{name}.model", f"{name}-train.svm", f"{name}-held.svm")
    assert f"was fitted on rows of {name}-train.svm, " in done.stderr


def test_a_model_whose_run_another_process_changes_is_not_calibrated(run, place):
    run("fit", "two-train.svm", "--model", "busy", "--overwrite")
    before = (place / "busy").read_bytes()
    with locked(place / "busy.run"):
        done = run("calibrate", "busy", "two-held.svm")
    assert done.returncode == 6
    assert "busy.run: in use by" in done.stderr
    assert (place / "busy").read_bytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_probabilities_of_log_loss_are_those_of_scikit_learns_logistic_regression(place, kind):
    X, y = _rows(kind)
    theirs = LogisticRegression(solver="liblinear", tol=1e-10, max_iter=1000)
    if kind != "two":
        theirs = OneVsRestClassifier(theirs)
    model, wanted = _fit(place, kind), theirs.fit(X, y).predict_proba(X)
    assert model.predict_proba(X) == pytest.approx(wanted, rel=0, abs=1e-5)
    [scores] = streamtron.predict(model, place / f"{kind}-train.svm", proba=True)
    shares = wanted[:, 1] if kind == "two" else wanted
    assert scores.probabilities == pytest.approx(shares, rel=0, abs=1e-5)


def test_a_calibration_comes_before_the_probabilities_of_the_loss(place):
    model = _fit(place, "two")
    calibration = {"method": "sigmoid", "directions": [{"a": -2.0, "b": 0.5}]}
    decisions = np.array([-1.0, 0.0, 3.0])
    found = probabilities_of(model.but(calibration=calibration), decisions)
    assert found == pytest.approx(1.0 / (1.0 + np.exp(-2.0 * decisions + 0.5)), rel=1e-15)
    assert probabilities_of(model, decisions) == pytest.approx(1.0 / (1.0 + np.exp(-decisions)))


def test_other_losses_have_no_probabilities_and_the_message_says_which_has():
    for settings in ({"loss": "hinge"}, {"loss": "squared_hinge"}, {}):
        model = make_model(settings=settings)
        message = refused(lambda model=model: model.predict_proba(np.eye(3)), SettingsError)
        assert "not calibrated" in message
        assert "--loss log_loss" in message
    numbers = make_model(classes=(), settings={"loss": "huber"}, certificate=None)
    message = refused(lambda: numbers.predict_proba(np.eye(3)), SettingsError)
    assert message == "the model predicts numbers, which have no probabilities."


@pytest.mark.parametrize("kind", KINDS)
def test_log_loss_brier_score_and_reliability_are_scikit_learns(place, kind):
    X, y = _rows(kind)
    model = _fit(place, kind, tol=0.01)
    found, p = streamtron.evaluate(model, place / f"{kind}-train.svm"), model.predict_proba(X)
    truth = (y[:, None] == np.unique(y) if kind != "labels" else y).astype(bool)
    if kind == "labels":
        losses = [metrics.log_loss(t, s) for t, s in zip(truth.T, p.T, strict=True)]
        squares = [metrics.brier_score_loss(t, s) for t, s in zip(truth.T, p.T, strict=True)]
    else:
        losses, squares = metrics.log_loss(y, p), metrics.brier_score_loss(y, p)
    assert found.log_loss == pytest.approx(np.mean(losses), rel=1e-12)
    assert found.brier_score == pytest.approx(np.mean(squares), rel=1e-12)
    pairs = (truth[:, 1], p[:, 1]) if kind == "two" else (truth.ravel(), p.ravel())
    tenths, curve = found.reliability, calibration_curve(*pairs, n_bins=10)
    for name, values in zip(("share", "probability"), curve, strict=True):
        assert [tenth[name] for tenth in tenths] == pytest.approx(values)
    assert sum(tenth["weight"] for tenth in tenths) == len(pairs[0])


def test_row_weights_count_in_any_cut_and_a_strange_class_has_the_probability_0():
    rng = np.random.default_rng(0)
    p, weights = rng.dirichlet(np.ones(3), 200), rng.exponential(size=200)
    p[0] = 1.0, 0.0, 0.0
    y = rng.integers(0, 4, 200)  # 3 is none of the model's
    y[0] = 1
    scores = ProbabilityScores(sum_to_one=True)
    for part in np.array_split(np.arange(200), 7):
        truth = y[part, None] == np.arange(3)
        scores.add(truth, p[part], weights[part], ~truth.any(axis=1))
    found, wide = scores.metrics(), np.column_stack([p, np.zeros(200)])
    assert found["log_loss"] == pytest.approx(metrics.log_loss(y, wide, sample_weight=weights))
    brier = metrics.brier_score_loss(y, wide, sample_weight=weights)
    assert found["brier_score"] == pytest.approx(brier)
    positive = sum(tenth["weight"] * tenth["share"] for tenth in found["reliability"])
    assert positive == pytest.approx(weights[y < 3].sum())


LOOSE = {
    ("two", "squared_hinge"): 1e-2,
    ("multiclass", "squared_hinge"): 1e-2,
    ("multilabel", "squared_hinge"): 1e-2,
    ("two", "log_loss"): 1e-3,
    ("multiclass", "log_loss"): 1e-5,
    ("two", "hinge"): 1e-3,
}
"""Kind and loss → a tolerance at which some labels are certain and others are not."""

SOME_ROWS = {"squared_hinge": {"active_set": 20_000}}
"""All rows in memory are solved beyond any tolerance."""


def _fit_of(place: Path, kind: str, tol: float, **more: Any) -> LinearModel:
    named = {} if kind == "two" else {kind: True}
    return streamtron.fit(place / f"{kind}.svm", tol=tol, C=0.1, max_epochs=500, **named, **more)


@pytest.mark.parametrize(("kind", "loss"), LOOSE)
def test_the_optimum_gives_certain_rows_their_label_and_all_values_within_bounds(place, kind, loss):
    shard, proba = place / f"{kind}.svm", loss == "log_loss"
    best_gap = 1e-11 if loss == "squared_hinge" else 1e-9
    loose = _fit_of(place, kind, LOOSE[kind, loss], loss=loss, **SOME_ROWS.get(loss, {}))
    optimum = _fit_of(place, kind, best_gap, loss=loss)
    [found] = streamtron.predict(loose, shard, certain=True, proba=proba)
    [best] = streamtron.predict(optimum, shard, proba=proba)
    same = np.array([a == b for a, b in zip(found.labels, best.labels, strict=True)])
    assert same[found.certain].all()
    assert 0.05 < found.certain.mean() < 1.0
    wanted = best.probabilities if proba else best.decisions
    least, most = found.bounds
    slack = 1e-4 * (most - least)  # what the other fit is off by, too
    assert (least - slack <= wanted).all()
    assert (wanted <= most + slack).all()
    assert not ((least + 0.4 * (most - least) <= wanted) & (wanted <= most)).all()  # tight
    if kind == "two":  # the ball around the optimum is half as large as that around the weights
        proven, central = loose.certificate, middle(loose)
        larger = decision_radius(proven["primal_objective"], proven["dual_objective"])
        off = np.append(central.weights - optimum.weights, central.bias - optimum.bias)
        radius = proven["ball"]["radius"]
        assert np.linalg.norm(off) <= radius <= (0.6 if loss != "hinge" else 0.708) * larger


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_label_of_a_calibrated_model_is_its_most_probable_class(place, kind, method, run):
    raw, held, (X, _) = _fit(place, kind, "hinge", 1e-3), f"{kind}-held.svm", _rows(kind, "new")
    model = streamtron.calibrate(raw, place / held, method=method)
    p = model.predict_proba(X)
    if kind == "labels":
        labels = [tuple(np.array(model.classes)[row]) for row in p > 0.5]
    else:
        labels = np.array(model.classes)[p.argmax(axis=1)].tolist()
    differ = [a != b for a, b in zip(labels, raw.predict(X), strict=True)]
    assert any(differ), "the decision would say another"
    assert model.predict(X).tolist() == labels
    [scores] = streamtron.predict(model, place / f"{kind}-new.svm")
    assert scores.labels.tolist() == labels
    if kind == "many":
        assert model.predict_top(X, 1)[0][:, 0].tolist() == labels
    counted = streamtron.evaluate(model, place / f"{kind}-new.svm")
    if kind != "labels":
        right = np.mean(_rows(kind, "new")[1] == np.array(labels))
        wrong = sum(pair["weight"] for pair in counted.confusions)
        assert counted.accuracy == pytest.approx(right) == 1.0 - wrong / counted.rows


def test_the_radius_holds_what_rounding_the_offsets_loses():
    w, v = np.array([1.0, 1.0, 1.0]), np.array([1.0 + 1e-3, 1.0 + 1e-3 / 3, 1.0 + 1e-12 / 3])
    proven = {"primal_objective": 1.0 + np.linalg.norm(w - v) ** 2 / 2, "dual_objective": 1.0}
    offsets, ball = ball_of((w, 0.0), (v, 0.0), 0.0, 0.0, proven)
    off = np.linalg.norm(w + ball["unit"] * offsets.astype(float) - (w + v) / 2)
    half = np.linalg.norm(w - v) / 2
    assert half + off <= ball["radius"] <= half + 1.01 * off + 1e-9
    assert off > 0.0
    proven["primal_objective"] += 0.005
    _, beyond = ball_of((w, 0.0), (v, 0.0), 0.1, 0.01, proven)
    assert beyond["radius"] >= half + 0.05 + 0.01


def test_offsets_that_do_not_belong_to_a_model_are_refused(place):
    model = _fit_of(place, "two", 1e-3)
    for offsets, certificate, part in (
        (model.offsets[1:], model.certificate, "another number"),
        (np.full_like(model.offsets, np.inf), model.certificate, "must be finite"),
        (model.offsets, {**model.certificate, "ball": None}, "no ball"),
    ):
        with pytest.raises(SettingsError, match=part):
            model.but(offsets=offsets, certificate=certificate)


def test_nothing_is_certain_where_nothing_is_proven_or_two_classes_are_equal():
    unproven = {"primal_objective": 1.0, "dual_objective": None, "relative_duality_gap": 1.0}
    model = make_model((1.0,), 0.0, settings={"rho": 0.0}, certificate=unproven)
    bounds = OptimumBounds(model).decisions(csr([((1, 1e9),), ()]), np.array([1e18, 0.0]))
    assert not certain(model, *bounds).any()
    ties = np.array([[1.0, 1.0, -9.0]])
    three = make_model(np.eye(3), np.zeros(3), ("a", "b", "c"), certificate=None)
    assert not certain(three, ties, ties).any()


def test_predict_writes_what_is_certain_and_counts_it(run, place):
    _fit_of(place, "two", 1e-2, model=place / "loose", active_set=20_000)
    for output in ("out.txt", "out.parquet"):
        done = succeeded(run("predict", "loose", "two.svm", "--certain", "-o", output))
    lines = [line.split("\t") for line in (place / "out.txt").read_text().splitlines()]
    table = pq.read_table(place / "out.parquet")
    assert table.column_names == ["label", "decision", "certain", "at_least", "at_most"]
    assert [line[2] == "1" for line in lines] == table["certain"].to_pylist()
    assert [float(line[1]) for line in lines] == table["decision"].to_pylist()
    assert {line[2] for line in lines} == {"0", "1"}
    assert done.stderr == f"700 rows, {sum(line[2] == '1' for line in lines)} certain\n"


def test_certain_labels_and_probabilities_that_a_model_does_not_have_are_refused(run, place):
    make_model(certificate=None).save(place / "bare")
    _fit_of(place, "two", 1e-3, model=place / "raw")
    streamtron.calibrate(place / "raw", place / "two.svm").save(place / "sure")
    for model, words, part in (
        ("bare", [], "no certificate"),
        ("raw", ["--proba"], "not calibrated"),
        ("sure", [], "--certain of a calibrated model"),
    ):
        done = run("predict", model, "two.svm", "--certain", *words, "-o", "none.tsv")
        one_sentence(done, 2, part)
        assert not (place / "none.tsv").exists()
