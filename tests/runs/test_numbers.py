"""Models of numbers on disk: predicted, measured, reported, swept, explained, certified."""

import csv
import itertools
import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from liblinear import liblinearutil
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score, root_mean_squared_error

import streamtron
from streamtron import Settings, StreamtronRegressor
from streamtron.core.config import REGRESSION
from streamtron.core.errors import DataError, SettingsError
from tests.helpers.processes import here
from tests.helpers.svm_text import svm_lines, write_shards

Floats = NDArray[np.float64]

ROWS = {"train": 600, "held-out": 200}


def _rows(name: str) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(ROWS[name])
    X = rng.normal(size=(ROWS[name], 5)).astype(np.float32).astype(np.float64)
    return X, np.round(X @ [3.0, -2.0, 0.0, 1.0, 0.5] + 20.0 + rng.normal(size=len(X)), 3)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards, and a model of each loss whose intercept is penalised."""
    directory = tmp_path_factory.mktemp("numbers")
    for name in ROWS:
        (directory / f"{name}.svm").write_text("".join(svm_lines(*_rows(name))))
    for loss in REGRESSION:
        how = {"intercept": "penalised", "tol": 1e-5, "model": directory / loss}
        streamtron.fit(directory / "train.svm", loss=loss, **how)
    return directory


@pytest.mark.parametrize("loss", REGRESSION)
def test_shards_and_memory_have_the_same_optimum_and_evaluate_says_how_good_it_is(place, loss):
    model = streamtron.load(place / loss)
    ours = StreamtronRegressor(loss=loss, intercept="penalised", tol=1e-5)
    for fitted in (ours.fit(*_rows("train")), ours.fit_shards(place / "train.svm")):
        assert fitted.coef_ == pytest.approx(model.weights, rel=1e-2, abs=1e-2)
    X, t = _rows("held-out")
    predicted = model.predict(X)
    measured = streamtron.evaluate(model, place / "held-out.svm", worst=2)
    assert measured.r2 == pytest.approx(r2_score(t, predicted), rel=1e-6)
    assert measured.rmse == pytest.approx(root_mean_squared_error(t, predicted), rel=1e-6)
    order = np.argsort(-np.abs(t - predicted))
    assert [(row["shard"], row["row"]) for row in measured.worst] == [
        ("held-out.svm", row) for row in order[:2].tolist()
    ]
    done = here(place, "evaluate", loss, "held-out.svm", "--worst", "1")
    assert "R²" in done.stdout
    assert ("mean Poisson deviance" in done.stdout) == (loss == "poisson")
    assert "standard deviation" in done.stdout
    assert f"held-out.svm, row {order[0]}: label " in done.stdout


@pytest.mark.parametrize("loss", REGRESSION)
def test_one_number_a_row_is_written_between_bounds_of_what_the_optimum_predicts(place, loss):
    X, _ = _rows("held-out")
    model = streamtron.load(place / loss)
    here(place, "predict", loss, "held-out.svm", "-o", "out.txt")
    assert np.loadtxt(place / "out.txt") == pytest.approx(model.predict(X), rel=1e-12)
    for name in ("out.csv", "out.parquet"):
        here(place, "predict", loss, "held-out.svm", "-o", name, "--certain")
    with (place / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["prediction", "at_least", "at_most"]
    assert pq.read_table(place / "out.parquet").column_names == list(rows[0])
    how: dict[str, Any] = {"loss": loss, "intercept": "penalised", "tol": 1e-9}
    best = streamtron.fit(place / "train.svm", **how).predict(X)
    for row, prediction in zip(rows, best.tolist(), strict=True):
        assert float(row["at_least"]) - 1e-3 <= prediction <= float(row["at_most"]) + 1e-3
        assert float(row["at_most"]) - float(row["at_least"]) < 1.0


def test_what_is_said_of_labels_is_refused_of_numbers(place):
    with pytest.raises(SettingsError, match="predicts numbers"):
        streamtron.calibrate(streamtron.load(place / "huber"), place / "train.svm")


def test_a_sweep_goes_by_r2_or_by_the_least_error(place):
    how: dict[str, Any] = {"valid": place / "held-out.svm", "C": [1e-6, 1e-4, 1.0]}
    for metric in (None, "rmse", "mae"):
        found = streamtron.sweep(place / "train.svm", loss="squared_error", metric=metric, **how)
        assert found.metric == metric or found.metric == "r2"
        assert (found.best.settings.C, found.best.settings.intercept) == (1.0, "free")
    of_counts = streamtron.sweep(place / "train.svm", loss="poisson", **how)
    assert (of_counts.metric, of_counts.best.settings.C) == ("d2", 1.0)
    least = streamtron.sweep(place / "train.svm", loss="poisson", metric="deviance", **how).best
    assert least.settings == of_counts.best.settings
    for extra, sentence in (
        ({"loss": "huber", "metric": "f1"}, "of numbers, expected one of r2, rmse, mae"),
        ({"loss": "huber,hinge"}, "losses of numbers beside losses of classes"),
        ({"loss": "huber", "settings": Settings()}, "the settings have the loss squared_hinge"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            streamtron.sweep(place / "train.svm", **how, **extra)
    words = "sweep train.svm --valid held-out.svm --loss huber --C 0.01,1 --metric rmse"
    done = here(place, *words.split())
    assert done.returncode == 0, done.stderr
    assert "RMSE" in done.stdout


def test_models_of_other_programs_are_certified_for_their_loss(place):
    X, t = _rows("train")
    for solver, loss in ((12, "squared_epsilon_insensitive"), (13, "epsilon_insensitive")):
        theirs = liblinearutil.train(
            t, sparse.csr_matrix(X), f"-s {solver} -c 0.5 -B 1 -p 0.2 -e 1e-6 -q"
        )
        liblinearutil.save_model(str(place / "theirs"), theirs)
        proof = streamtron.certify(place / "theirs", place / "train.svm", C=0.5, epsilon=0.2)
        assert proof.certificate.relative_duality_gap < 1e-3, loss
    done = here(place, "certify", "theirs", "train.svm", "--loss", "log_loss", "--C", "0.5")
    assert done.returncode == 2
    assert "a regression model has no loss log_loss" in done.stderr
    ridge = Ridge(alpha=2.0).fit(X, t)
    np.save(place / "ridge.npy", np.append(ridge.coef_, ridge.intercept_))
    words = "certify ridge.npy train.svm --loss squared_error --C 0.5 --index-base 1 --bias-last"
    done = here(place, *words.split(), "--json")
    assert json.loads(done.stdout)["certificate"]["relative_duality_gap"] < 1e-6


@pytest.mark.parametrize(
    ("intercept", "loss"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] * (pair == ("free", "epsilon_insensitive")))
        for pair in itertools.product(["free", "penalised"], REGRESSION)
    ],
)
def test_little_memory_parts_and_changes_come_to_the_same_optimum(tmp_path, place, intercept, loss):
    """Each within the bounds that are proven of the others."""
    both = [place / f"{name}.svm" for name in ROWS]
    how: dict[str, Any] = {"loss": loss, "intercept": intercept, "tol": 1e-3}
    best = streamtron.fit(both, **{**how, "tol": 1e-8}).certificate
    proven = [
        streamtron.fit(both, **how, active_set=8_000).certificate,
        streamtron.fit(both, **how, parts=2).certificate,
        streamtron.fit(both, **how, parts=2, active_set=16_000).certificate,
    ]
    model = tmp_path / "model"
    streamtron.fit(both[:1], **how, model=model)
    proven.append(streamtron.update(model, both[1:]).model.certificate)
    proven.append(streamtron.certify(model, both).certificate.to_dict())
    for certificate in proven:
        assert certificate["relative_duality_gap"] <= 1e-3
        assert certificate["dual_objective"] <= best["primal_objective"]
        assert certificate["primal_objective"] >= best["dual_objective"]
    left = streamtron.forget(model, both[0].name).model.certificate
    alone = streamtron.fit(both[1:], **how).certificate
    assert left["relative_duality_gap"] <= 1e-3
    assert left["dual_objective"] <= alone["primal_objective"]
    assert left["primal_objective"] >= alone["dual_objective"]


def test_a_tenth_of_wide_rows_in_memory_comes_to_the_optimum_in_few_readings(tmp_path):
    streamtron.generate(str(tmp_path / "wide"), rows=1000, columns=2000, seed=1)
    how: dict[str, Any] = {"tol": 1e-3, "active_set": 62_881, "max_epochs": 12}
    model = streamtron.fit(tmp_path / "wide", loss="huber", C=0.5, **how)
    assert model.certificate["relative_duality_gap"] <= 1e-3


def test_a_row_that_is_added_to_ridge_leaves_the_bias_that_was_proven(tmp_path):
    rng = np.random.default_rng(0)
    X, t = np.round(rng.normal(size=(41, 3)), 2), np.round(rng.normal(50.0, 80.0, 41), 2)
    first, second = write_shards(tmp_path, svm_lines(X, t), [40])
    streamtron.fit(first, model=tmp_path / "m", loss="squared_error", index_base=1)
    model = streamtron.update(tmp_path / "m", second).model
    off = X.astype(np.float32) @ model.weights + model.bias - t
    primal = 0.5 * (model.weights @ model.weights + off @ off)
    assert primal == pytest.approx(model.certificate["primal_objective"], rel=1e-8)


def test_labels_too_small_for_a_true_relative_gap_are_refused_by_row():
    rows = np.random.default_rng(0).normal(size=(12, 3))
    labels = rows @ [1.0, 2.0, 3.0] + 0.5
    fit = partial(StreamtronRegressor(intercept="free").fit, rows)
    assert fit(1e-10 * labels).certificate_["relative_duality_gap"] < 1e-2
    labels[3] = 1e-140
    with pytest.raises(DataError, match=r"^row 4 has the label 1e-140"):
        fit(labels)
    fit(labels, sample_weight=np.where(labels == 1e-140, 0.0, 1.0))  # which leaves that row out


@pytest.mark.parametrize("loss", REGRESSION)
@pytest.mark.parametrize("label", [5.0, 0.1])
def test_labels_that_are_all_alike_are_not_read_again_to_prove_a_gap_of_nothing(loss, label):
    rows = np.random.default_rng(0).normal(size=(6, 3))
    model = StreamtronRegressor(loss=loss, intercept="free", tol=1e-3)
    with warnings.catch_warnings(action="ignore"):
        model.fit(rows, np.full(6, label))
    assert model.n_iter_ <= 3
    assert model.predict(rows) == pytest.approx(label)
