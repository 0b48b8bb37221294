"""scikit-learn's solvers, as benchopt's benchmark_logreg_l2 runs them."""

import warnings

from benchopt import BaseSolver
from sklearn.linear_model import LogisticRegression


class Solver(BaseSolver):
    """More and more iterations."""

    name = "sklearn"
    sampling_strategy = "iteration"
    parameters = {"solver": ["liblinear", "newton-cg", "newton-cholesky", "lbfgs", "saga"]}
    parameter_template = "{solver}"

    def set_objective(self, X, y, lmbd):
        """Take the problem; the iterations end a run, not the tolerance."""
        self.X, self.y = X, y
        self.model = LogisticRegression(
            solver=self.solver, C=1.0 / lmbd, fit_intercept=False, tol=1e-15
        )

    def run(self, n_iter):
        """Fit in so many iterations, one at least."""
        self.model.max_iter = max(n_iter, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model.fit(self.X, self.y)

    def get_result(self):
        """Return β."""
        return {"beta": self.model.coef_.ravel()}
