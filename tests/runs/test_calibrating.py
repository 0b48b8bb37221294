"""Probabilities of decisions: scikit-learn's formulas, on shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import dump_svmlight_file, make_classification
from sklearn.frozen import FrozenEstimator

import streamtron
from streamtron.core.errors import DataError, FileDamaged, SettingsError
from streamtron.core.sealed import write_sealed
from streamtron.model.calibration import METHODS, fit_isotonic, fit_sigmoid, probabilities
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Scores
from tests.helpers.models import make_model, refused
from tests.helpers.processes import Run

CLASSES = {"two": 2, "many": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with rows to fit, to calibrate on, and to predict, of two and of four classes."""
    directory = tmp_path_factory.mktemp("place")
    for name, classes in CLASSES.items():
        X, y = make_classification(900, 12, n_informative=6, n_classes=classes, random_state=1)
        for part, rows in (
            ("train", slice(400)),
            ("held", slice(400, 800)),
            ("new", slice(800, 900)),
        ):
            path = directory / f"{name}-{part}.svm"
            dump_svmlight_file(X[rows].astype(np.float32), y[rows], str(path), zero_based=False)
    return directory


def _rows(place: Path, name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    lines = [line.split() for line in (place / f"{name}-{part}.svm").read_text().splitlines()]
    X = np.array([[float(word.split(":")[1]) for word in words[1:]] for words in lines])
    return X.astype(np.float32), np.array([float(words[0]) for words in lines])


def _fit(place: Path, name: str) -> LinearModel:
    return streamtron.fit(place / f"{name}-train.svm", multiclass=name == "many", tol=1e-6)


# --- scikit-learn's probabilities ----------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CLASSES)
def test_the_probabilities_are_those_of_scikit_learns_calibrated_classifier(
    place: Path, name: str, method: Any
) -> None:
    X, y = _rows(place, name, "train")
    ours = streamtron.StreamtronClassifier(tol=1e-6).fit(X, y)
    theirs = CalibratedClassifierCV(FrozenEstimator(ours), method=method)
    theirs.fit(*_rows(place, name, "held"))
    model = streamtron.calibrate(_fit(place, name), place / f"{name}-held.svm", method=method)
    new, _ = _rows(place, name, "new")
    found = model.predict_proba(new)
    assert found == pytest.approx(theirs.predict_proba(new), rel=0, abs=1e-6)
    assert found.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    if method == "sigmoid":
        assert len(np.unique(found)) > len(new)


def _records(
    decisions: np.ndarray, positive: np.ndarray, weights: np.ndarray, limit: int = 1 << 20
) -> np.ndarray:
    scores = Scores(limit_rows=limit)
    for part in np.array_split(np.arange(len(decisions)), 7):
        scores.add(positive[part], decisions[part], weights[part])
    return scores.records()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_the_sigmoid_has_the_least_log_loss_of_platts_targets(scale: float) -> None:
    rng = np.random.default_rng(0)
    decisions = rng.normal(size=500) * scale
    positive = rng.random(500) < 1 / (1 + np.exp(-3 * decisions / scale + 1))
    weights = rng.exponential(size=500)
    found = fit_sigmoid(_records(decisions, positive, weights))
    p = 1 / (1 + np.exp(found["a"] * decisions + found["b"]))
    n = [weights[~positive].sum(), weights[positive].sum()]
    targets = np.where(positive, (n[1] + 1) / (n[1] + 2), 1 / (n[0] + 2))
    assert (weights * (p - targets)).sum() == pytest.approx(0.0, abs=1e-6)
    assert (weights * (p - targets) * decisions / scale).sum() == pytest.approx(0.0, abs=1e-6)
    assert found["a"] < 0


def test_decisions_beyond_memory_calibrate_as_their_neighbours_do() -> None:
    rng = np.random.default_rng(0)
    decisions = rng.normal(size=50_000)
    positive = rng.random(50_000) < 1 / (1 + np.exp(-3 * decisions))
    for fit_direction in (fit_sigmoid, fit_isotonic):
        exact, joined = (
            fit_direction(_records(decisions, positive, np.ones(50_000), limit))
            for limit in (1 << 20, 5_000)
        )
        places = np.linspace(-2, 2, 101)
        method = "sigmoid" if fit_direction is fit_sigmoid else "isotonic"
        shares = [
            probabilities({"method": method, "directions": [found]}, places, sum_to_one=False)
            for found in (exact, joined)
        ]
        assert exact != joined
        assert shares[0] == pytest.approx(shares[1], abs=0.005)


def test_equal_decisions_get_the_share_of_their_positives() -> None:
    ones = np.ones(6)
    records = _records(0.0 * ones, np.arange(6) < 3, ones)
    sigmoid, isotonic = fit_sigmoid(records), fit_isotonic(records)
    assert (sigmoid["a"], sigmoid["b"]) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert isotonic == {"decisions": [0.0], "probabilities": [0.5]}


def test_probabilities_that_are_all_zero_become_uniform() -> None:
    step = {"decisions": [0.0, 1.0], "probabilities": [0.0, 1.0]}
    calibration = {"method": "isotonic", "directions": [step] * 3}
    decisions = np.array([[-1.0, -2.0, -3.0], [1.0, 1.0, -1.0]])
    found = probabilities(calibration, decisions, sum_to_one=True)
    assert found == pytest.approx(np.array([[1 / 3] * 3, [0.5, 0.5, 0.0]]))


def test_row_weights_count_and_rows_of_weight_0_do_not(tmp_path: Path) -> None:
    model = make_model((1.0,), 0.0, weights_in_label=True)
    (tmp_path / "a.svm").write_text("1:2 1:1\n-1:1 1:-1\n-1:0 1:9\n")
    (tmp_path / "b.svm").write_text("1:1 1:1\n1:1 1:1\n-1:1 1:-1\n")
    first, second = (streamtron.calibrate(model, tmp_path / name) for name in ("a.svm", "b.svm"))
    assert (first.calibration["rows"], second.calibration["rows"]) == (2, 3)
    own, other = (each.calibration["directions"][0] for each in (first, second))
    assert own == pytest.approx(other, abs=1e-9)


# --- the model's file ----------------------------------------------------------------------------


def test_a_model_keeps_its_calibration_and_one_without_keeps_its_bytes(tmp_path: Path) -> None:
    plain = make_model()
    sigmoid = {"method": "sigmoid", "rows": 9, "directions": [{"a": -2.0, "b": 0.5}]}
    calibrated = plain.but(calibration=sigmoid)
    calibrated.save(tmp_path / "m")
    again = LinearModel.load(tmp_path / "m")
    assert again == calibrated
    assert again.calibration == sigmoid
    assert again != plain
    assert b"calibration" not in plain.to_bytes()


BAD = {
    "another method": {"method": "magic", "directions": [{"a": 1.0, "b": 0.0}]},
    "too few": {"method": "sigmoid", "directions": []},
    "no list": {"method": "sigmoid", "directions": 3},
    "no numbers": {"method": "sigmoid", "directions": [{"a": "x", "b": 0.0}]},
    "lengths": {"method": "isotonic", "directions": [{"decisions": [0.0], "probabilities": []}]},
    "falling": {
        "method": "isotonic", "directions": [{"decisions": [1.0, 0.0], "probabilities": [0, 1]}],
    },
    "twice": {"method": "isotonic", "directions": [{"decisions": [1, 1], "probabilities": [0, 1]}]},
    "sinking": {
        "method": "isotonic", "directions": [{"decisions": [0.0, 1.0], "probabilities": [1, 0]}],
    },
    "above 1": {"method": "isotonic", "directions": [{"decisions": [1.0], "probabilities": [2]}]},
    "ragged": {"method": "isotonic", "directions": [{"decisions": [[1], 2], "probabilities": [0]}]},
}  # fmt: skip


@pytest.mark.parametrize("calibration", BAD.values(), ids=BAD)
def test_a_calibration_that_cannot_be_one_is_refused(tmp_path: Path, calibration: Any) -> None:
    model = make_model()
    assert "calibration" in refused(lambda: model.but(calibration=calibration), SettingsError)
    content, tensors = model._parts()
    write_sealed(tmp_path / "m", {**content, "calibration": calibration}, tensors)
    refused(lambda: LinearModel.load(tmp_path / "m"), FileDamaged)


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_fit_calibrates_and_predict_writes_the_probabilities(
    run: Run, place: Path, name: str
) -> None:
    many = ["--multiclass"] if name == "many" else []
    done = run("fit", f"{name}-train.svm", "--model", f"{name}.model", "--tol", "1e-6", *many,
               "--calibrate", f"{name}-held.svm")  # fmt: skip
    assert done.returncode == 0, done.stderr
    model = streamtron.load(place / f"{name}.model")
    assert model == streamtron.calibrate(_fit(place, name), place / f"{name}-held.svm")
    wanted = model.predict_proba(_rows(place, name, "new")[0])
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
        assert table.column_names == ["label", "decisions", "probabilities"]
        assert table["probabilities"].to_pylist() == wanted.tolist()
    done = run("calibrate", f"{name}.model", f"{name}-train.svm", f"{name}-held.svm")
    assert f"was fitted on rows of {name}-train.svm, " in done.stderr


def test_the_estimator_has_a_companion_with_predict_proba(place: Path) -> None:
    X, y = _rows(place, "two", "train")
    calibrated = CalibratedClassifierCV(streamtron.StreamtronClassifier(), cv=3).fit(X, y)
    assert calibrated.score(*_rows(place, "two", "new")) > 0.7


def test_shards_to_calibrate_on_that_are_missing_stop_the_fit_before_it_begins(
    run: Run, place: Path
) -> None:
    done = run("fit", "two-train.svm", "--model", "early", "--calibrate", "nowhere.svm")
    assert done.returncode != 0
    assert "nowhere.svm" in done.stderr
    assert not (place / "early").exists()


def test_rows_without_a_class_of_the_model_cannot_calibrate_it(place: Path) -> None:
    (place / "others.svm").write_text("7 1:1\n8 2:1\n")
    model = _fit(place, "many")
    message = refused(lambda: streamtron.calibrate(model, place / "others.svm"), DataError)
    assert "no row has a class of the model" in message


def test_rows_of_one_class_only_cannot_calibrate_and_the_fitted_model_stays(
    run: Run, place: Path
) -> None:
    (place / "one.svm").write_text("1 1:1\n1 2:1\n")
    done = run("fit", "two-train.svm", "--model", "stays", "--calibrate", "one.svm")
    assert done.returncode == DataError.exit_code
    assert "rows of both classes" in done.stderr
    assert "training objective, proven" in done.stdout
    assert streamtron.load(place / "stays").calibration is None
