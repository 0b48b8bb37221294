"""What a user sees of a model of each loss: bounds, probabilities and what they are worth."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.datasets import dump_svmlight_file, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer

import streamtron
from streamtron.core.errors import SettingsError
from streamtron.model.calibration import ProbabilityScores, probabilities_of
from streamtron.model.linear_model import LinearModel
from tests.helpers.models import make_model, refused
from tests.helpers.processes import Run

KINDS: dict[str, dict[str, bool]] = {
    "two": {},
    "many": {"multiclass": True},
    "labels": {"multilabel": True},
}
LABELS = ((0,), (1, 2), (0, 2), ())
"""The labels of a row of each class of four, where a row has several."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with rows of every kind of classes."""
    directory = tmp_path_factory.mktemp("place")
    for name, classes in (("two", 2), ("many", 4)):
        X, y = make_classification(400, 10, n_informative=6, n_classes=classes, random_state=3)
        dump_svmlight_file(
            X.astype(np.float32), y, str(directory / f"{name}.svm"), zero_based=False
        )
        np.savez(directory / name, X=X.astype(np.float32), y=y)
    lines = [line.partition(" ") for line in (directory / "many.svm").read_text().splitlines()]
    several = [(",".join(map(str, LABELS[int(label)])), rest) for label, _, rest in lines]
    (directory / "labels.svm").write_text("".join(f"{' '.join(row)}\n" for row in several))
    return directory


def _rows(place: Path, kind: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(place / f"{'two' if kind == 'two' else 'many'}.npz") as arrays:
        X, y = arrays["X"], arrays["y"]
    return X, MultiLabelBinarizer().fit_transform([LABELS[k] for k in y]) if kind == "labels" else y


def _fit(place: Path, kind: str, loss: Any = "log_loss", **more: Any) -> LinearModel:
    return streamtron.fit(place / f"{kind}.svm", loss=loss, **{"tol": 1e-11, **KINDS[kind], **more})


# --- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["two", "many"])
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_objectives_and_gap_are_shown_and_no_margin_where_the_loss_has_none(
    run: Run, place: Path, loss: str, kind: str
) -> None:
    many = ["--multiclass"] if kind == "many" else []
    shown = [
        run("fit", f"{kind}.svm", "--loss", loss, *many, "--model", "model", "--overwrite",
            "--report", "report.json", "--log", "log.jsonl", "-v"),
        run("inspect", "model"),
        run("report", "model", "-o", "page.html", "--valid", f"{kind}.svm"),
    ]  # fmt: skip
    assert [done.returncode for done in shown] == [0, 0, 0]
    page = re.sub(r"<(svg|style|script).*?</\1>", "", (place / "page.html").read_text(), flags=re.S)
    told = json.loads((place / "report.json").read_text())
    assert told["settings"]["loss"] == loss
    for text in (shown[0].stdout, shown[1].stdout, page):
        assert not re.search(r"(lower|upper) bound|soft margin|slack|\b(inf|nan|None)\b", text)
        assert "primal" in text
        assert "dual" in text
    assert f"<b>{loss}</b><span>loss</span>" in page
    assert ("Reliability" in page) == (loss == "log_loss")
    line = [row.split() for row in shown[0].stderr.splitlines() if " scan " in row][-1]
    assert line[7] == "-"  # the margin
    assert float(line[8]) <= 0.01
    events = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "reading_done"][-1]
    assert last["proven_lower_bound"] is last["proven_upper_bound"] is None
    assert 0.0 < last["proven_dual_objective"] <= last["proven_primal_objective"]
    for learner in told.get("learners", [told]):
        proven = learner["certificate"]
        margins = ("primal_margin", "directional_margin", "upper_bound")
        assert [proven[name] for name in margins] == [None] * 3
        assert 0.0 < proven["dual_objective"] <= proven["primal_objective"]


def test_the_plot_of_a_certificate_without_margins_has_the_gap_alone(place: Path) -> None:
    model = _fit(place, "two", "hinge", tol=0.01)
    top, bottom = model.plot_certificate()
    assert not top.get_visible()
    last = model.certificate["history"][-1]
    assert bottom.lines[0].get_xydata()[-1].tolist() == [last["reading"], last["gap"]]
    X, y = _rows(place, "two")
    assert len(model.plot_margins(X, y).lines) == 2
    assert len(_fit(place, "two").plot_margins(X, y).lines) == 1  # no loss ends at a margin


# --- probabilities -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_probabilities_of_log_loss_are_those_of_scikit_learns_logistic_regression(
    place: Path, kind: str
) -> None:
    X, y = _rows(place, kind)
    theirs = LogisticRegression(solver="liblinear", tol=1e-10, max_iter=1000)
    if kind != "two":
        theirs = OneVsRestClassifier(theirs)
    model, wanted = _fit(place, kind), theirs.fit(X, y).predict_proba(X)
    assert model.predict_proba(X) == pytest.approx(wanted, rel=0, abs=1e-5)
    [scores] = streamtron.predict(model, place / f"{kind}.svm", proba=True)
    shares = wanted[:, 1] if kind == "two" else wanted
    assert scores.probabilities == pytest.approx(shares, rel=0, abs=1e-5)


def test_a_calibration_comes_before_the_probabilities_of_the_loss(place: Path) -> None:
    model = _fit(place, "two")
    calibration = {"method": "sigmoid", "directions": [{"a": -2.0, "b": 0.5}]}
    decisions = np.array([-1.0, 0.0, 3.0])
    found = probabilities_of(model.but(calibration=calibration), decisions)
    assert found == pytest.approx(1.0 / (1.0 + np.exp(-2.0 * decisions + 0.5)), rel=1e-15)
    assert probabilities_of(model, decisions) == pytest.approx(1.0 / (1.0 + np.exp(-decisions)))


def test_other_losses_have_no_probabilities_and_the_message_says_which_has() -> None:
    for settings in ({"loss": "hinge"}, {"loss": "squared_hinge"}, {}):
        model = make_model(settings=settings)
        message = refused(lambda model=model: model.predict_proba(np.eye(3)), SettingsError)
        assert "not calibrated" in message
        assert "--loss log_loss" in message


# --- what they are worth -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_log_loss_brier_score_and_reliability_are_scikit_learns(place: Path, kind: str) -> None:
    X, y = _rows(place, kind)
    model = _fit(place, kind, tol=0.01)
    found, p = streamtron.evaluate(model, place / f"{kind}.svm"), model.predict_proba(X)
    truth = (y[:, None] == np.unique(y) if kind != "labels" else y).astype(bool)
    if kind == "labels":
        losses = [metrics.log_loss(t, s) for t, s in zip(truth.T, p.T, strict=True)]
        squares = [metrics.brier_score_loss(t, s) for t, s in zip(truth.T, p.T, strict=True)]
    else:
        losses, squares = metrics.log_loss(y, p), metrics.brier_score_loss(y, p)
    assert found.log_loss == pytest.approx(np.mean(losses), rel=1e-12)
    assert found.brier_score == pytest.approx(np.mean(squares), rel=1e-12)
    pairs = (truth[:, 1], p[:, 1]) if kind == "two" else (truth.ravel(), p.ravel())
    share, mean = calibration_curve(*pairs, n_bins=10)
    assert [tenth["share"] for tenth in found.reliability] == pytest.approx(share)
    assert [tenth["probability"] for tenth in found.reliability] == pytest.approx(mean)
    assert sum(tenth["weight"] for tenth in found.reliability) == len(pairs[0])


def test_row_weights_count_in_any_cut_and_a_strange_class_has_the_probability_0() -> None:
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


def test_evaluate_prints_what_probabilities_are_worth_where_there_are_any(
    run: Run, place: Path
) -> None:
    _fit(place, "many", tol=0.01, model=place / "plain")
    told = json.loads(run("evaluate", "plain", "many.svm", "--json").stdout)
    text = run("evaluate", "plain", "many.svm").stdout
    for words, name in (("log loss", "log_loss"), ("Brier score", "brier_score")):
        assert re.search(rf"^{words} +{told[name]:.4g}$", text, re.M)
    assert sum(tenth["weight"] for tenth in told["reliability"]) == 4 * told["weight"]
    _fit(place, "many", "hinge", tol=0.01, model=place / "hinge")
    assert "log loss" not in run("evaluate", "hinge", "many.svm").stdout
