"""StreamtronRegressor: scikit-learn's conventions, and the optima of its own regressors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.linear_model import Ridge
from sklearn.multioutput import MultiOutputRegressor
from sklearn.svm import LinearSVR

from streamtron import StreamtronClassifier, StreamtronRegressor
from streamtron.core.config import REGRESSION, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.model.linear_model import LinearModel

LOSSES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "squared_error": ("free", lambda r: 0.5 * r**2),
    "huber": ("free", lambda r: np.where(abs(r) <= 1.35, r**2 / 2, 1.35 * abs(r) - 1.35**2 / 2)),
    "epsilon_insensitive": ("penalised", lambda r: np.maximum(0.0, abs(r) - 0.1)),
    "squared_epsilon_insensitive": ("penalised", lambda r: np.maximum(0.0, abs(r) - 0.1) ** 2),
}
"""Loss → the intercept that scikit-learn has with it, and φ."""

Floats = NDArray[np.float64]


def _rows(n: int = 300, columns: int = 8) -> tuple[Floats, Floats, Floats]:
    """Rows that float32 holds, numbers with outliers, and weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, columns)).astype(np.float32).astype(np.float64)
    y = X @ rng.normal(size=columns) + 5.0 + rng.standard_t(2, size=n)
    return X, y, rng.choice([0.0, 0.5, 3.0], n)


@pytest.mark.parametrize("loss", REGRESSION)
@pytest.mark.parametrize("C", [0.01, 1.0, 30.0])
def test_the_optimum_is_that_of_ridge_linear_svr_and_huber_of_a_fixed_scale(loss, C):
    X, y, weights = _rows()
    intercept, phi = LOSSES[loss]

    def objective(w: Floats) -> float:
        penalty = w @ w - (intercept == "free") * w[-1] ** 2
        return float(0.5 * penalty + C * np.sum(weights * phi(X @ w[:-1] + w[-1] - y)))

    if loss == "squared_error":
        theirs = Ridge(alpha=1 / C, solver="cholesky").fit(X, y, weights)
    elif loss == "huber":
        tight = {"options": {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 10**4}}
        theirs = minimize(objective, np.zeros(9), method="L-BFGS-B", **tight).x
    else:
        theirs = LinearSVR(C=C, loss=loss, epsilon=0.1, tol=1e-10, max_iter=10**6)
        theirs.fit(X, y, weights)
    ours = StreamtronRegressor(loss=loss, C=C, intercept=intercept, tol=1e-6).fit(X, y, weights)
    mine, rival = (
        model if isinstance(model, np.ndarray) else np.append(model.coef_, model.intercept_)
        for model in (ours, theirs)
    )
    assert ours.certificate_["relative_duality_gap"] <= 1e-6
    assert ours.certificate_["dual_objective"] <= objective(rival)
    assert objective(mine) <= objective(rival) * (1 + 1.1e-6)
    assert ours.predict(X) == pytest.approx(X @ rival[:-1] + rival[-1], abs=0.02)


def test_several_numbers_a_row_are_refused_with_how_to_predict_them():
    X, y, _ = _rows()
    both = np.column_stack([y, -y])
    with pytest.raises(DataError, match=r"shape \(300, 2\).*one number a row.*MultiOutput"):
        StreamtronRegressor().fit(X, both)
    predicted = MultiOutputRegressor(StreamtronRegressor()).fit(X, both).predict(X)
    assert np.array_equal(predicted[:, 0], StreamtronRegressor().fit(X, y).predict(X))


@pytest.mark.parametrize(("y", "sentence"), [
    ([1.0, None, 3.0], "row 1 has nan"),
    (np.array([1.0, 2.0, np.inf], object), "row 2 has inf"),
    ([1, 2, 2**53 + 1], "row 2 has 9007199254740992.0. Wanted are finite numbers"),
    ([1.0, 2.0, 1e200], r"row 3 has the label 1e\+200: wanted 0, or 1e-50 to 1e\+50 in size"),
])  # fmt: skip
def test_numbers_that_are_none_or_do_not_fit_are_refused_by_row(y, sentence):
    with pytest.raises(DataError, match=sentence):
        StreamtronRegressor().fit([[0.0], [1.0], [2.0]], y)


@pytest.mark.parametrize("loss", REGRESSION)
def test_a_warm_start_at_another_c_meets_the_tolerance_and_no_intercept_is_none(loss):
    X, y, _ = _rows()
    model = StreamtronRegressor(loss=loss, warm_start=True, tol=1e-4).fit(X, y)
    model.set_params(C=0.1, fit_intercept=False).fit(X, y)
    assert model.intercept_ == 0.0
    assert model.certificate_["relative_duality_gap"] <= 1e-4


@pytest.mark.filterwarnings("ignore:max_iter=5")
def test_the_proven_objective_is_that_of_the_intercept_though_moments_could_not_prove_it():
    X = 1e6 * np.array([[6.0, -9.0, 9.0], [-238.0, 44.0, -140.0]])
    t = np.array([-2200.0, 1400.0])
    fitted = StreamtronRegressor(loss="squared_error", C=1e7, tol=0.3, max_iter=5).fit(X, t)
    residuals = X @ fitted.coef_ + fitted.intercept_ - t
    primal = 0.5 * (fitted.coef_ @ fitted.coef_ + 1e7 * residuals @ residuals)
    assert primal <= fitted.certificate_["primal_objective"]


def test_the_parameters_of_scikit_learn_s_regressors_are_accepted_and_change_nothing():
    keywords = {"solver": "cholesky", "copy_X": True, "positive": False, "dual": "auto",
                "penalty": "l2", "shuffle": True, "early_stopping": False}  # fmt: skip
    theirs = StreamtronRegressor(**keywords).get_params()
    assert theirs == StreamtronRegressor().get_params()
    ours = Settings(loss="squared_error")
    assert (theirs["intercept"], theirs["tol"]) == (ours.intercept, ours.tol)


def test_a_model_of_numbers_becomes_a_regressor_and_no_classifier():
    model = LinearModel([1.0], 2.0, (), {"loss": "huber", "C": 3.0}, None, {"index_base": 0})
    assert StreamtronRegressor.from_model(model).predict([[5.0]]).tolist() == [7.0]
    assert StreamtronRegressor.from_model(model).C == 3.0
    with pytest.raises(SettingsError, match="a regression model, and StreamtronClassifier is for"):
        StreamtronClassifier.from_model(model)
