"""StreamtronRegressor: scikit-learn's conventions, and the optima of its own regressors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.linear_model import Ridge
from sklearn.multioutput import MultiOutputRegressor
from sklearn.svm import LinearSVR
from sklearn.utils.estimator_checks import check_estimator

from streamtron import StreamtronClassifier, StreamtronRegressor
from streamtron.core.config import REGRESSION, Settings
from streamtron.core.errors import DataError, SettingsError

LOSSES: dict[str, Callable[[Any, float], Any]] = {
    "squared_error": lambda r, _: 0.5 * r**2,
    "huber": lambda r, e: np.where(abs(r) <= e, 0.5 * r**2, e * abs(r) - 0.5 * e**2),
    "epsilon_insensitive": lambda r, e: np.maximum(0.0, abs(r) - e),
    "squared_epsilon_insensitive": lambda r, e: np.maximum(0.0, abs(r) - e) ** 2,
}

Floats = NDArray[np.float64]


def _rows(n: int = 300, columns: int = 8, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Rows that float32 holds, numbers with outliers, and weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns)).astype(np.float32).astype(np.float64)
    y = X @ rng.normal(size=columns) + 5.0 + rng.standard_t(2, size=n)
    return X, y, rng.choice([0.0, 0.5, 3.0], n)


def _objective(
    loss: str, X: Floats, y: Floats, weights: Floats, C: float, penalised: float
) -> Callable[[Floats], float]:
    epsilon = {"huber": 1.35}.get(loss, 0.1)

    def objective(w: Floats) -> float:
        residuals = X @ w[:-1] + w[-1] - y
        losses = C * np.sum(weights * LOSSES[loss](residuals, epsilon))
        return float(0.5 * (w[:-1] @ w[:-1] + penalised * w[-1] ** 2) + losses)

    return objective


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", REGRESSION)
def test_scikit_learn_checks_pass_with_no_exemption(loss: str) -> None:
    results = check_estimator(StreamtronRegressor(loss=loss), on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 50
    assert {result["status"] for result in results} <= {"passed", "skipped"}


def _rival(loss: str, C: float, intercept: str, data: tuple[Floats, Floats, Floats]) -> Floats:
    """The weights and the bias of another solver of the same problem."""
    X, y, weights = data
    if loss == "squared_error" and intercept == "free":
        fitted = Ridge(alpha=1 / C, solver="cholesky").fit(X, y, weights)
    elif loss in ("squared_error", "huber") or intercept == "free":
        objective = _objective(loss, *data, C, float(intercept == "penalised"))
        how = {"method": "Powell", "options": {"maxiter": 10**5, "xtol": 1e-10, "ftol": 1e-14}}
        start = minimize(objective, np.zeros(X.shape[1] + 1), method="L-BFGS-B").x
        return np.asarray(minimize(objective, start, **how).x)
    else:
        fitted = LinearSVR(C=C, loss=loss, epsilon=0.1, tol=1e-10, max_iter=10**6)
        fitted.fit(X, y, weights)
    return np.append(fitted.coef_, fitted.intercept_)


@pytest.mark.parametrize("loss", REGRESSION)
@pytest.mark.parametrize("intercept", ["free", "penalised"])
@pytest.mark.parametrize("C", [0.01, 1.0, 30.0])
def test_the_objective_is_scikit_learn_s_and_the_gap_to_its_least_is_as_proven(
    loss: str, intercept: str, C: float
) -> None:
    data = _rows()
    ours = StreamtronRegressor(loss=loss, C=C, intercept=intercept, tol=1e-6)
    ours.fit(*data[:2], sample_weight=data[2])
    objective = _objective(loss, *data, C, float(intercept == "penalised"))
    mine = objective(np.append(ours.coef_, ours.intercept_))
    least = objective(_rival(loss, C, intercept, data))
    gap = ours.certificate_["relative_duality_gap"]
    assert gap <= 1e-6
    assert mine <= least * (1 + 1.1e-6)
    assert ours.certificate_["dual_objective"] <= least
    if loss == "squared_error" and intercept == "free":
        exact = Ridge(alpha=1 / C).fit(*data[:2], data[2])
        assert ours.predict(data[0]) == pytest.approx(exact.predict(data[0]), abs=1e-3)
        assert ours.score(*data[:2]) == pytest.approx(exact.score(*data[:2]), abs=1e-5)


@pytest.mark.parametrize("kind", [pandas.DataFrame, polars.DataFrame])
def test_a_data_frame_s_names_are_kept_and_the_weights_are_those_of_its_matrix(kind: Any) -> None:
    X, y, _ = _rows(columns=3)
    framed = StreamtronRegressor().fit(kind({name: X[:, k] for k, name in enumerate("abc")}), y)
    assert framed.feature_names_in_.tolist() == ["a", "b", "c"]
    assert np.array_equal(framed.coef_, StreamtronRegressor().fit(X, y).coef_)


def test_several_numbers_a_row_are_refused_with_how_to_predict_them() -> None:
    X, y, _ = _rows()
    both = np.column_stack([y, -y])
    with pytest.raises(DataError, match=r"shape \(300, 2\).*one number a row.*MultiOutput"):
        StreamtronRegressor().fit(X, both)
    predicted = MultiOutputRegressor(StreamtronRegressor()).fit(X, both).predict(X)
    assert np.array_equal(predicted[:, 0], StreamtronRegressor().fit(X, y).predict(X))


@pytest.mark.parametrize("loss", REGRESSION)
def test_a_warm_start_at_another_c_meets_the_tolerance_and_no_intercept_is_none(loss: str) -> None:
    X, y, _ = _rows()
    model = StreamtronRegressor(loss=loss, warm_start=True, tol=1e-4).fit(X, y)
    model.set_params(C=0.1, fit_intercept=False).fit(X, y)
    assert model.intercept_ == 0.0
    assert model.certificate_["relative_duality_gap"] <= 1e-4
    cold = StreamtronRegressor(loss=loss, C=0.1, fit_intercept=False, tol=1e-4).fit(X, y)
    assert model.predict(X) == pytest.approx(cold.predict(X), abs=0.2)


def test_the_parameters_have_the_defaults_of_the_settings() -> None:
    ours = Settings(loss="squared_error")
    theirs = StreamtronRegressor().get_params()
    assert (theirs["intercept"], theirs["tol"]) == (ours.intercept, ours.tol)
    assert theirs["max_iter"] == ours.max_epochs


@pytest.mark.parametrize(
    "keywords",
    [{"solver": "cholesky", "copy_X": True, "positive": False}, {"dual": "auto"},
     {"penalty": "l2", "shuffle": True, "early_stopping": False, "l1_ratio": 0}],
    ids=str,
)  # fmt: skip
def test_the_parameters_of_scikit_learn_s_regressors_are_accepted_and_change_nothing(
    keywords: dict[str, Any],
) -> None:
    assert StreamtronRegressor(**keywords).get_params() == StreamtronRegressor().get_params()


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"alpha": 1.0}, r"C=1/alpha for the alpha of Ridge .* C=1/\(alpha \* rows\)"),
        ({"positive": True}, "weights may be negative"),
        ({"learning_rate": "optimal"}, "no step size"),
        ({"penalty": "l1"}, "weights are penalised by"),
        ({"loss": "hinge"}, "loss is 'hinge': StreamtronRegressor has the losses of numbers"),
        ({"epsilon": 0.5}, "has no epsilon"),
    ],
    ids=str,
)
def test_a_keyword_of_another_problem_is_refused_with_what_to_do(
    keywords: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence):
        StreamtronRegressor(**keywords).fit(*_rows()[:2])


def test_a_classifier_refuses_a_loss_of_numbers() -> None:
    X, y, _ = _rows()
    with pytest.raises(SettingsError, match="loss is 'huber': StreamtronRegressor"):
        StreamtronClassifier(loss="huber").fit(X, y > 5.0)
