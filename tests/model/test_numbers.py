"""Models of numbers: their metrics, their files, and the programs that predict as they do."""

import json
from typing import Any

import numpy as np
import onnxruntime
import pytest
import skops.io
from liblinear import liblinearutil
from scipy import sparse
from sklearn.linear_model import HuberRegressor, PoissonRegressor, Ridge
from sklearn.metrics import (
    d2_tweedie_score,
    mean_absolute_error,
    mean_poisson_deviance,
    r2_score,
    root_mean_squared_error,
)
from sklearn.svm import LinearSVR

import streamtron
from streamtron.core.config import REGRESSION
from streamtron.core.errors import DataError, SettingsError
from streamtron.model.export import FORMATS, export
from streamtron.model.linear_model import LinearModel
from streamtron.model.residuals import Residuals
from tests.helpers.models import make_model, random_matrix, refused

SKLEARN: dict[str, dict[str, Any]] = {
    "squared_error": {"alpha": 10.0},
    "huber": {"alpha": 10.0, "epsilon": 1.35},
    "epsilon_insensitive": {"C": 0.1, "epsilon": 0.1, "loss": "epsilon_insensitive"},
    "squared_epsilon_insensitive": {"C": 0.1, "epsilon": 0.5},
    "poisson": {"alpha": 10.0},
}
RIVALS = {"squared_error": Ridge, "huber": HuberRegressor, "poisson": PoissonRegressor}


def _model(loss: str = "squared_error", **settings: Any) -> tuple[LinearModel, np.ndarray]:
    dense, weights = random_matrix()
    settings = {"loss": loss, "C": 0.1, "rho": 1.0, **settings}
    return make_model(weights, 2.5, (), settings=settings, certificate=None), dense


def _measured(targets: Any, predictions: Any, weights: Any, cut: int = 7, **how: Any) -> Residuals:
    residuals = Residuals(**how)
    for start in range(0, len(targets), cut):
        rows = (x[start : start + cut] for x in (targets, predictions, weights))
        residuals.add(*rows, "a.svm", start)
    return residuals


def test_the_metrics_are_scikit_learn_s_of_rows_of_a_weight_and_the_worst_come_first():
    rng = np.random.default_rng(0)
    targets, weights = 1e8 + rng.normal(size=500), rng.choice([0.0, 0.5, 2.0], 500)
    predictions = targets + rng.normal(size=500)
    metrics = _measured(targets, predictions, weights, worst=3).metrics()
    scores = {"r2": r2_score, "rmse": root_mean_squared_error, "mae": mean_absolute_error}
    wanted = {name: s(targets, predictions, sample_weight=weights) for name, s in scores.items()}
    assert {name: metrics[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)
    spread = np.average((targets - targets.mean()) ** 2, weights=weights) ** 0.5
    assert metrics["target_deviation"] == pytest.approx(spread, rel=1e-2)
    order = np.argsort(-np.abs(targets - predictions))[:3]
    assert [row["row"] for row in metrics["worst"]] == order.tolist()
    assert metrics["worst"][0]["residual"] == (targets - predictions)[order[0]]
    assert _measured(targets[:1], targets[:1], np.ones(1)).metrics()["r2"] is None
    assert _measured(targets, targets, 0.0 * weights).metrics()["rmse"] is None


def test_counts_have_the_deviance_of_scikit_learn_too_and_none_is_below_0():
    rng = np.random.default_rng(0)
    means, weights = rng.uniform(0.1, 9.0, 500), rng.choice([0.0, 0.5, 2.0], 500)
    counts = rng.poisson(means).astype(float)
    metrics = _measured(counts, means, weights, deviance=True).metrics()
    assert list(metrics)[2:5] == ["d2", "deviance", "r2"]
    wanted = d2_tweedie_score(counts, means, sample_weight=weights, power=1)
    assert metrics["d2"] == pytest.approx(wanted, rel=1e-12)
    wanted = mean_poisson_deviance(counts, means, sample_weight=weights)
    assert metrics["deviance"] == pytest.approx(wanted, rel=1e-12)
    ones = np.ones(2)
    assert _measured(0.0 * ones, 0.0 * ones, ones, deviance=True).metrics()["d2"] is None
    assert _measured(ones, ones, 0.0 * ones, deviance=True).metrics()["deviance"] is None
    with pytest.raises(DataError, match=r"a\.svm: row 1 has the label -2"):
        _measured(np.array([1.0, -2.0]), ones, ones, deviance=True)


@pytest.mark.parametrize("held", [1 << 20, 15_000])
def test_tenths_and_bars_are_of_all_rows_or_of_every_fourth_of_too_many(held):
    targets = np.random.default_rng(1).normal(size=40_000)
    residuals = _measured(targets, 0.5 * targets, np.ones(40_000), cut=4097, held=held)
    metrics = residuals.metrics()
    rows = targets[:: metrics.get("every", 1)]
    assert len(rows) == (40_000 if held > 40_000 else 10_000)
    assert metrics["mae"] == pytest.approx(0.5 * np.abs(rows).mean(), rel=1e-12)
    tenths = metrics["calibration"]
    assert [tenth["weight"] for tenth in tenths] == pytest.approx([4000] * 10)
    for tenth in tenths:
        assert tenth["target"] == pytest.approx(2 * tenth["prediction"], rel=1e-9)
    edges, counts = residuals.histogram()
    inside = np.histogram(np.clip(0.5 * rows, edges[0], edges[-1]), edges)[0]
    assert np.array_equal(counts * len(rows), inside * 40_000)


@pytest.mark.parametrize("loss", REGRESSION)
def test_every_program_predicts_the_numbers_that_we_predict(tmp_path, loss):
    extra = {"epsilon": 0.5} if loss == "squared_epsilon_insensitive" else {}
    model, dense = _model(loss, **extra)
    wanted = model.predict(dense)
    model.save(tmp_path / "model")
    assert LinearModel.load(tmp_path / "model") == model
    assert "kind regression" in repr(model)
    close = {"rel": 1e-12 * model.log_link, "abs": 1e-12}
    for format_ in FORMATS[1:]:
        export(model, tmp_path / format_, format_)
    if model.log_link:
        with pytest.raises(SettingsError, match="the loss poisson, which LIBLINEAR does not have"):
            export(model, tmp_path / "liblinear", "liblinear")
        assert wanted == pytest.approx(np.exp(model.decision_function(dense)), rel=1e-15)
    else:
        liblinear_predicts(model, dense, wanted, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "onnx", providers=["CPUExecutionProvider"])
    [of_onnx] = session.run(["prediction"], {"X": dense.astype(np.float32)})
    assert (of_onnx.dtype, of_onnx.tolist()) == (np.float64, pytest.approx(wanted, **close))
    theirs = skops.io.load(tmp_path / "sklearn")
    assert type(theirs) is RIVALS.get(loss, LinearSVR)
    assert {name: getattr(theirs, name) for name in SKLEARN[loss]} == SKLEARN[loss]
    assert theirs.predict(dense) == pytest.approx(wanted, **close)
    [direction] = json.loads((tmp_path / "json").read_text())["directions"]
    assert (direction["positive"], direction["bias"]) == (None, 2.5)


def liblinear_predicts(model, dense, wanted, path):
    """Whether LIBLINEAR predicts what is wanted by the model that is written for it."""
    export(model, path / "liblinear", "liblinear")
    export(model.but(settings={**model.settings, "penalty": "l1"}), path / "l1", "liblinear")
    assert (path / "l1").read_bytes() == (path / "liblinear").read_bytes()
    liblinear = liblinearutil.load_model(str(path / "liblinear"))
    assert liblinear.is_regression_model()
    _, _, values = liblinearutil.predict([], sparse.csr_matrix(dense), liblinear, "-q")
    assert np.ravel(values) == pytest.approx(wanted, rel=0, abs=1e-12)


@pytest.mark.parametrize("solver", [11, 12, 13])
@pytest.mark.parametrize("bias", [-1, 2])
def test_a_liblinear_model_of_numbers_is_read_with_its_loss(tmp_path, solver, bias):
    dense, weights = random_matrix()
    rows = sparse.csr_matrix(dense)
    theirs = liblinearutil.train(dense @ weights + 1.0, rows, f"-s {solver} -B {bias} -q")
    liblinearutil.save_model(str(tmp_path / "m"), theirs)
    loss = ("" if solver == 13 else "squared_") + "epsilon_insensitive"
    ours = streamtron.load(tmp_path / "m", loss=loss)
    _, _, values = liblinearutil.predict([], rows, theirs, "-q")
    assert ours.predict(dense) == pytest.approx(np.ravel(values), rel=0, abs=1e-12)
    assert ours.settings["loss"] == loss
    assert (ours.kind, ours.classes, ours.settings["intercept"]) == ("regression", (), "penalised")


def test_coefficients_and_weights_of_numbers_need_their_loss_and_no_classes(tmp_path):
    np.save(tmp_path / "w.npy", [1.0, -2.0, 0.5])
    model = streamtron.load(tmp_path / "w.npy", index_base=0, bias_last=True, loss="huber")
    assert model.predict(np.eye(2)).tolist() == [1.5, -1.5]
    huber = {"settings": {"loss": "huber"}}
    for action, sentence in (
        (
            lambda: streamtron.load(tmp_path / "w.npy", index_base=0, loss="hinge"),
            "expected one of",
        ),
        (lambda: make_model([1.0], 0.0, (0.0, 1.0), **huber), "a regression has no classes"),
        (lambda: make_model(np.eye(3), np.zeros(3), (), **huber), "a regression has no classes"),
        (lambda: model.predict_proba(np.eye(2)), "no probabilities"),
    ):
        assert sentence in refused(action, SettingsError)
