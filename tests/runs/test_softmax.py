"""Softmax in whole runs: the problem of scikit-learn's LogisticRegression for more than two
classes."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import streamtron
from streamtron import Machine, Settings, StreamtronClassifier
from streamtron.core.errors import SettingsError
from tests.helpers.optimum import holds, least_primal
from tests.helpers.runs import kept
from tests.helpers.svm_text import svm_lines, write_shards

SETTINGS = Settings(loss="softmax", multiclass=True, index_base=0)


def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return (X / 16.0).astype(np.float32), y


def documents(rows: int = 1_500, columns: int = 400, classes: int = 5) -> tuple:
    """Sparse rows of unit length, whose classes prefer columns of their own."""
    rng = np.random.default_rng(0)
    y, X = rng.integers(0, classes, rows), np.zeros((rows, columns), np.float32)
    for row, label in zip(X, y, strict=True):
        own = (rng.random(30) < 0.3) * (1 + label)
        chosen = (columns ** rng.random(30)).astype(int) % (columns // 8) * 8 + own
        row[chosen] = rng.uniform(0.5, 2.0, 30)
        row /= np.sqrt(np.square(row).sum())
    flipped = rng.random(rows) < 0.05
    y[flipped] = rng.integers(0, classes, flipped.sum())
    return X, y


@pytest.mark.parametrize(("solver", "rho"), [("newton-cg", 0.0), ("lbfgs", 2.0)])
def test_the_weights_are_those_of_scikit_learn_to_a_millionth(solver, rho):
    X, y = digits()
    names = {"loss": "softmax", "C": 0.1, "tol": 0.0, "rho": rho}
    model = streamtron.fit(X, y.astype(float), **names)
    augmented = np.column_stack([X.astype(float), np.full(len(X), rho)])
    exact = {"tol": 1e-10, "max_iter": 100_000, "fit_intercept": False}
    rival = LogisticRegression(C=0.1, solver=solver, **exact)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        rival.fit(augmented, y)
    np.testing.assert_allclose(model.weights, rival.coef_[:, :-1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.bias, rho * rival.coef_[:, -1], rtol=0, atol=1e-6)
    expected = rival.predict_proba(augmented)
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=0, atol=1e-6)
    assert model.certificate["relative_duality_gap"] <= 1e-11
    np.testing.assert_array_equal(model.predict(X), rival.predict(augmented))


@pytest.mark.parametrize("weights", [None, "balanced", {"0": 0.1, "3": 20.0}])
def test_with_a_tenth_of_the_rows_in_memory_the_optimum_is_proven_on_any_threads(weights, tmp_path):
    X, y = documents()
    shards = write_shards(tmp_path, svm_lines(X, y, 0), 4)
    settings = SETTINGS.but(active_set=len(X) * (30 * 8 + 24) // 10, class_weight=weights)
    for name, threads in (("one", 1), ("two", 2)):
        outcome = streamtron.run(
            shards, settings, model=tmp_path / name, machine=Machine(threads=threads)
        )
    assert kept(tmp_path, "one") == kept(tmp_path, "two")
    by_number = weights
    if isinstance(weights, dict):
        by_number = {int(label): weight for label, weight in weights.items()}
    assert holds(outcome.report, least_primal(X, y, class_weight=by_number, loss="softmax"))
    assert outcome.stop_reason == "certified"
    assert 2 < outcome.report["readings"] <= 8


def test_a_fit_ends_as_well_where_its_data_begin_with_a_part_of_the_classes(tmp_path):
    X, y = documents()
    order = np.argsort(-y, kind="stable")
    shards = write_shards(tmp_path, svm_lines(X[order], y[order], 0), 3)
    model = streamtron.fit(shards, settings=SETTINGS.but(tol=1e-8))
    plain = streamtron.fit(X, y.astype(float), loss="softmax", tol=1e-8)
    np.testing.assert_allclose(model.weights, plain.weights, atol=1e-3)
    assert model.classes == (0.0, 1.0, 2.0, 3.0, 4.0)
    X = X[:, : model.columns]
    assert (model.predict(X) == plain.predict(X)).mean() > 0.999


def test_a_model_is_certified_from_its_run_from_its_weights_and_with_a_witness(tmp_path):
    X, y = digits()
    shards = write_shards(tmp_path, svm_lines(X, y, 0), 3)
    outcome = streamtron.run(
        shards, SETTINGS, model=tmp_path / "m", witness=tmp_path / "witness", report=tmp_path / "r"
    )
    told = outcome.report["certificate"]
    for proof in (
        streamtron.certify(tmp_path / "m"),
        streamtron.certify(tmp_path / "m", shards[::-1], witness=tmp_path / "witness"),
    ):
        assert proof.certificate.primal == pytest.approx(told["primal_objective"], rel=1e-12)
        assert proof.certificate.dual == pytest.approx(told["dual_objective"], rel=1e-12)
        assert proof.classes == ()
    proof = streamtron.certify(tmp_path / "m", shards)
    assert proof.certificate.primal == pytest.approx(told["primal_objective"], rel=1e-12)
    assert proof.certificate.relative_duality_gap <= 1e-3
    elsewhere = streamtron.certify(tmp_path / "m", shards, C=2.0)
    assert elsewhere.certificate.relative_duality_gap > 0.01
    assert holds(elsewhere.to_dict(), least_primal(X, y, 2.0, loss="softmax"))


def test_probabilities_are_the_softmax_of_decisions_wherever_they_are_asked_for(tmp_path):
    X, y = digits()
    shards = write_shards(tmp_path, svm_lines(X, y, 0), 1)
    model = streamtron.fit(shards, settings=SETTINGS, model=tmp_path / "m")
    expected = softmax(model.decision_function(X), axis=1)
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-12)
    np.testing.assert_allclose(model.to_sklearn().predict_proba(X), expected, rtol=1e-12)
    measured = streamtron.evaluate(tmp_path / "m", shards).to_dict()
    chosen = expected[np.arange(len(y)), y]
    assert measured["log_loss"] == pytest.approx(-np.log(chosen).mean())
    fitted = StreamtronClassifier(loss="softmax").fit(X, y)
    np.testing.assert_allclose(fitted.predict_proba(X), expected, atol=0.02)


def test_an_estimator_learns_in_parts_and_goes_on_from_shards(tmp_path):
    X, y = digits()
    rows = np.random.default_rng(0).permutation(len(y))
    in_parts = StreamtronClassifier(loss="softmax")
    for part in np.array_split(rows, 4):
        in_parts.partial_fit(X[part], y[part], classes=range(10))
    least = least_primal(X, y, loss="softmax")
    assert 0.3 * least < in_parts.certificate_["dual_objective"] <= least
    assert in_parts.score(X, y) > 0.94
    whole = StreamtronClassifier(loss="softmax").fit(X, y)
    assert holds({"certificate": whole.certificate_}, least)
    shards = write_shards(tmp_path, svm_lines(X, y, 0)[::-1], 2)
    ours = StreamtronClassifier(loss="softmax")
    ours.fit_shards(shards, classes=range(10), index_base=0)
    assert ours.score(X, y) > 0.97
    ours.partial_fit(X, y)
    twice = least_primal(np.vstack([X, X]), np.tile(y, 2), loss="softmax")
    assert 0.9 * twice < ours.certificate_["dual_objective"] <= twice


def test_two_classes_are_those_of_the_logistic_loss(tmp_path):
    X, y = digits()
    X, y = X[y < 2], y[y < 2]
    shards = write_shards(tmp_path, svm_lines(X, y, 0), 1)
    model = streamtron.fit(shards, settings=SETTINGS.but(multiclass=False))
    assert model == streamtron.fit(shards, loss="log_loss", index_base=0)
    logistic = StreamtronClassifier(loss="log_loss").fit(X, y)
    ours = StreamtronClassifier(loss="softmax").fit(X, y)
    assert (ours.predict_proba(X) == logistic.predict_proba(X)).all()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"penalty": "l1"}, "penalty l1 with the loss softmax"),
        ({"penalty": "elasticnet"}, "penalty elasticnet with the loss softmax"),
        ({"intercept": "free"}, "intercept free with the loss softmax"),
        ({"multilabel": True}, "multilabel with the loss softmax"),
        ({"parts": 2}, "parts with the loss softmax"),
        ({"stage": "1,0.1"}, "stage is for the squared hinge, and the loss is softmax"),
    ],
)
def test_what_softmax_has_not_is_refused_in_a_sentence(names, sentence):
    with pytest.raises(SettingsError, match=sentence):
        Settings.from_dict({"loss": "softmax", **names})


def test_a_model_says_what_cannot_be_done_with_it(tmp_path: Path):
    X, y = digits()
    shards = write_shards(tmp_path, svm_lines(X, y, 0), 1)
    model = streamtron.fit(shards, settings=SETTINGS, model=tmp_path / "m")
    with pytest.raises(SettingsError, match="softmax, which LIBLINEAR does not have"):
        streamtron.export(model, tmp_path / "liblinear", "liblinear")
    with pytest.raises(SettingsError, match="of all classes together, and of no decision"):
        list(streamtron.predict(tmp_path / "m", shards, certain=True))
    two = streamtron.fit(X[y < 2], y[y < 2].astype(float))
    with pytest.raises(SettingsError, match="two classes model has no loss softmax"):
        streamtron.certify(two, shards, loss="softmax")


def test_long_rows_are_solved_by_visits_alone(tmp_path):
    """Of cells ‖x‖² is in the thousands: what an α is off by moves the margins by that much."""
    rng = np.random.default_rng(0)
    X = np.log1p(rng.poisson(rng.lognormal(0.0, 1.5, (4, 300))[rng.integers(0, 4, 400)])) * 10.0
    y = np.where(rng.random(400) < 0.1, rng.integers(0, 4, 400), X[:, :4].argmax(axis=1))
    paths = write_shards(tmp_path / "cells", svm_lines(np.round(X, 2), y), 2)
    how = SETTINGS.but(tol=1e-6, active_set=100_000, max_epochs=40)
    report = streamtron.run(paths, how).report
    assert report["stop_reason"] == "certified"
    assert not any(reading["newton_steps"] for reading in report["history"])
