"""Counts and rates by Poisson's loss: the problem of scikit-learn's ``PoissonRegressor``."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import PoissonRegressor

import streamtron
from streamtron import StreamtronRegressor
from streamtron.core.errors import DataError
from streamtron.core.losses import POISSON, domain, gains, slopes, slopes_expanded
from streamtron.solver.targets import to_alphas
from tests.helpers.processes import here, one_sentence
from tests.helpers.svm_text import svm_lines, write_shards

Floats = NDArray[np.float64]


def _rows(n: int = 600, columns: int = 5, mean: float = 1.0) -> tuple[Floats, Floats]:
    """Rows that float32 holds, of the length 1 or so, and counts of this mean at the middle."""
    rng = np.random.default_rng(n)
    X = np.round(rng.normal(size=(n, columns)) / columns**0.5, 3)
    X = X.astype(np.float32).astype(np.float64)
    z = X @ np.linspace(-1.4, 1.4, columns) + np.log(mean)
    return X, rng.poisson(np.exp(z)).astype(float)


def _theirs(X: Floats, t: Floats, weights: Floats, C: float, **how: Any) -> PoissonRegressor:
    alpha = 1.0 / (C * weights.sum())
    with warnings.catch_warnings(action="ignore"):  # that no step lowers P any more
        model = PoissonRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-12, **how)
        return model.fit(X, t, weights)


@pytest.mark.parametrize("C", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("mean", [0.05, 1.0, 500.0])
def test_the_optimum_is_that_of_poisson_regressor(C, fit_intercept, mean):
    X, t = _rows(mean=mean)
    how: dict[str, Any] = {"fit_intercept": fit_intercept}
    ours = StreamtronRegressor(loss="poisson", C=C, tol=1e-7, **how).fit(X, t)
    theirs = _theirs(X, t, np.ones(len(t)), C, **how)
    assert ours.certificate_["relative_duality_gap"] <= 1e-6
    assert ours.coef_ == pytest.approx(theirs.coef_, abs=1e-6)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-6)
    assert ours.predict(X) == pytest.approx(theirs.predict(X), rel=1e-5)
    assert ours.score(X, t) == pytest.approx(theirs.score(X, t), abs=1e-9)


def test_a_rate_with_its_exposure_as_weight_is_a_count():
    X, _ = _rows(2000)
    rng = np.random.default_rng(1)
    exposure = rng.uniform(0.01, 1.0, len(X))
    counts = rng.poisson(exposure * np.exp(0.3 * X[:, 0] - 1.0))
    ours = StreamtronRegressor(loss="poisson", tol=1e-7).fit(X, counts / exposure, exposure)
    theirs = _theirs(X, counts / exposure, exposure, 1.0)
    assert ours.coef_ == pytest.approx(theirs.coef_, abs=1e-6)
    assert (exposure * ours.predict(X)).sum() == pytest.approx(counts.sum(), rel=1e-5)


@pytest.mark.parametrize("intercept", ["penalised", "none"])
def test_labels_that_are_all_0_have_an_optimum_where_the_bias_is_not_free(intercept):
    X, _ = _rows(100)
    how: dict[str, Any] = {"loss": "poisson", "tol": 1e-8}
    ours = StreamtronRegressor(intercept=intercept, **how)
    ours.set_params(fit_intercept=intercept != "none").fit(X, np.zeros(100))
    assert ours.certificate_["relative_duality_gap"] <= 1e-8
    w, b = ours.coef_, ours.intercept_
    means = np.exp(X @ w + b)
    assert w == pytest.approx(-X.T @ means, abs=1e-6)  # the gradient is 0
    assert b == pytest.approx(-means.sum() * (intercept != "none"), abs=1e-6)
    with pytest.raises(DataError, match="all labels are 0, and no bias"):
        StreamtronRegressor(**how).fit(X, np.zeros(100))


@pytest.mark.parametrize("size", [1e2, 1e5, 1e20])
def test_rows_of_which_a_step_of_newtons_method_overflows_are_fitted(size):
    X, t = _rows(300, mean=30.0)
    X = (X * size).astype(np.float32).astype(np.float64)
    ours = StreamtronRegressor(loss="poisson", fit_intercept=False, tol=1e-3)
    with warnings.catch_warnings(action="ignore"):  # float32 α of such rows may prove no more
        ours.fit(X, t)
    loss = np.exp(X @ ours.coef_) - t * (X @ ours.coef_)
    theirs = _theirs(X / size, t, np.ones(300), 1e8, fit_intercept=False).coef_ / size
    best = np.exp(X @ theirs) - t * (X @ theirs)
    assert loss.sum() == pytest.approx(best.sum(), rel=1e-3)


def test_a_count_of_millions_among_nothing_is_fitted_as_well_as_counts_to_a_thousand():
    X, _ = _rows(400)
    rng = np.random.default_rng(0)
    for t in (1e6 * (rng.random(400) < 0.01), rng.integers(0, 1001, 400).astype(float)):
        ours = StreamtronRegressor(loss="poisson", C=0.01, tol=1e-7).fit(X, t)
        theirs = _theirs(X, t, np.ones(400), 0.01)
        assert ours.coef_ == pytest.approx(theirs.coef_, abs=1e-6)


def test_a_dual_variable_is_no_more_than_its_label_where_the_mean_is_next_to_nothing():
    t, margins = np.array([0.1, 0.1, 0.0]), np.array([-800.0, 0.0, 800.0])
    assert float(np.float32(0.1)) > 0.1
    alpha, of_rows = slopes(POISSON, margins, t), domain(POISSON, np.ones(3), t)
    most, middle, least = to_alphas(alpha, of_rows).tolist()
    assert (most < 0.1, most) == (True, pytest.approx(0.1))
    assert (middle, least) == (pytest.approx(-0.9), pytest.approx(-1e15))
    found = gains(POISSON, np.array([most, 0.1, 0.1000001]), np.full(3, 0.1))
    assert np.isfinite(found).tolist() == [True, True, False]
    assert slopes_expanded(POISSON, np.zeros(1), np.full(1, -9.0), t[:1]).tolist() == [0.1]


def test_weights_far_off_prove_nothing_and_predict_no_number(tmp_path: Path):
    X, t = _rows(50)
    [shard] = write_shards(tmp_path, svm_lines(X, t), [])
    np.save(tmp_path / "w.npy", [1e5, 0.0, 0.0, 0.0, 0.0, 0.0])
    how: dict[str, Any] = {"index_base": 1, "bias_last": True, "loss": "poisson"}
    model = streamtron.load(tmp_path / "w.npy", **how)
    assert streamtron.certify(model, shard, C=1.0).certificate.primal == np.inf
    with pytest.raises(DataError, match="decision inf"):
        streamtron.evaluate(model, shard)


def test_a_label_below_0_is_refused_by_its_row_wherever_it_is_met(tmp_path: Path):
    X, t = _rows(50)
    good, bad = write_shards(tmp_path, svm_lines(X, np.append(t[:-1], -1.0)), [40])
    with pytest.raises(DataError, match=r"^row 50 has the label -1, and the loss poisson"):
        StreamtronRegressor(loss="poisson").fit(X, np.append(t[:-1], -1.0))
    streamtron.fit(good, model=tmp_path / "m", loss="poisson", index_base=1)
    done = here(tmp_path, "update", "m", bad.name)
    one_sentence(done, 3, "row 50 has the label -1, and the loss poisson is of counts or rates")
    done = here(tmp_path, "evaluate", "m", bad.name)
    one_sentence(done, 3, "row 9 has the label -1, and the model predicts counts or rates")


@pytest.mark.parametrize(
    ("columns", "extra"),
    [(5, {}), (5, {"parts": 2}), (300, {}), (300, {"parts": 2}), (5, {"penalty": "elasticnet"})],
)
def test_a_tenth_of_the_rows_in_memory_comes_to_the_optimum(tmp_path: Path, columns, extra):
    X, t = _rows(3000, columns, mean=3.0)
    shards = write_shards(tmp_path, svm_lines(X, t), [1500])
    how: dict[str, Any] = {"loss": "poisson", "index_base": 1, **extra}
    best = streamtron.fit(shards, **{**how, "tol": 1e-7, "parts": None}).certificate
    held = 300 * (8 * columns + 24)
    found = streamtron.fit(shards, **how, tol=1e-3, active_set=held, max_epochs=30).certificate
    assert found["relative_duality_gap"] <= 1e-3
    assert found["dual_objective"] <= best["primal_objective"]
    assert found["primal_objective"] >= best["dual_objective"]
