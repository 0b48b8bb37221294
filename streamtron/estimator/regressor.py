"""StreamtronRegressor: a scikit-learn estimator of numbers with a certificate."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.linear_model._base import LinearModel  # as all of them
from sklearn.metrics import d2_tweedie_score
from sklearn.utils import Tags

from streamtron.core.config import LOG_LINK
from streamtron.estimator.base import StreamtronEstimator
from streamtron.estimator.parameters import settings_of
from streamtron.estimator.rows import MatrixRows, checked_matrix, row_weights


class StreamtronRegressor(RegressorMixin, LinearModel, StreamtronEstimator):  # type: ignore[misc]
    """Linear regression with a proven duality gap; it replaces ``Ridge``, ``LinearSVR``,
    ``PoissonRegressor``, and ``HuberRegressor`` with a fixed scale.

    Minimises ½‖w‖² + Σ C_k φ(w·x_k + bias − t_k), a sum and not a mean; C_k is C times the row's
    weight. By ``loss``, φ(r) is

    * ``squared_error`` : ½ r², the problem of ``Ridge(alpha=1/C)``;
    * ``huber`` : ½ r² where |r| ≤ ε, else ε |r| − ½ ε², that of ``HuberRegressor(alpha=1/C)`` at
      its scale 1;
    * ``epsilon_insensitive``, ``squared_epsilon_insensitive`` : max(0, |r| − ε), or its square,
      those of ``LinearSVR``, whose intercept is penalised;
    * ``poisson`` : of z = w·x_k + bias and t_k ≥ 0, e^z − t_k z + t_k ln t_k − t_k, the problem of
      ``PoissonRegressor(alpha=1/(C · Σ weights))``: e^z is predicted, and ``score`` is D². Of rates
      t_k = count/exposure the exposure is ``sample_weight``.

    X is rounded to float32 for training, y is not: subtract an offset from a column of large
    numbers that differ by little, such as timestamps.

    Parameters
    ----------
    epsilon : ε; None = 1.35 for ``huber``, 0.1 for the insensitive losses.
    C, loss and all others : as in ``StreamtronClassifier``; ``intercept`` is ``"free"``.

    Attributes
    ----------
    coef_, intercept_ : float64 of shape (columns,), and a float.
    certificate_ and all others : as in ``StreamtronClassifier``.

    Examples
    --------
    >>> model = StreamtronRegressor(C=1e6).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> model.predict([[3.0]]).round(3)
    array([7.])
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        loss: str = "squared_error",
        epsilon: float | None = None,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        intercept: str = "free",
        penalty: str = "l2",
        l1_ratio: float | None = None,
        tol: float = 0.001,
        max_iter: int = 100,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.C = C
        self.loss = loss
        self.epsilon = epsilon
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.intercept = intercept
        self.penalty = penalty
        self.l1_ratio = l1_ratio
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows in memory until the gap is proven to be at most ``tol``.

        y : shape (rows,): finite numbers; for several numbers a row fit one model a column. All
        else is as in ``StreamtronClassifier.fit``.
        """
        settings = settings_of(self)
        X, y = checked_matrix(self, X, y, reset=True)
        rows = MatrixRows(X, y, np.empty(0), row_weights(sample_weight, X))
        return self._fit_memory(rows, settings)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return w·x + bias of every row, of ``poisson`` e^(w·x + bias), shape (rows,)."""
        decisions: NDArray[np.float64] = super().predict(X)
        return np.exp(decisions) if self.loss in LOG_LINK else decisions

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return R² of the predictions, of ``poisson`` D², its share of the deviance."""
        if self.loss not in LOG_LINK:
            return float(super().score(X, y, sample_weight))
        means = np.maximum(self.predict(X), np.finfo(np.float64).tiny)
        return float(d2_tweedie_score(y, means, sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.loss in LOG_LINK
        return tags

    def _set_weights(self, weights: NDArray[np.float64], bias: NDArray[np.float64]) -> None:
        self.coef_, self.intercept_ = weights[0], float(bias[0])
