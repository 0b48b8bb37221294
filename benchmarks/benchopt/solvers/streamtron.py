"""streamtron as a solver of benchopt's benchmark_logreg_l2: copy this file to its ``solvers/``."""

import warnings

import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

from streamtron import StreamtronClassifier


class Solver(BaseSolver):
    """The tolerance is the relative duality gap that each run proves: no run stops by luck."""

    name = "streamtron"
    sampling_strategy = "tolerance"
    stopping_criterion = SufficientProgressCriterion(strategy="tolerance", patience=6)
    references = [
        "C. Panagiotakopoulos and P. Tsampouka, The Margitron, IEEE Transactions on Neural "
        "Networks 22 (2011)."
    ]

    def skip(self, X, y, lmbd, fit_intercept=False):
        """Refuse what is another problem."""
        return bool(lmbd <= 0.0), "without a penalty there is no certificate"

    def set_objective(self, X, y, lmbd, fit_intercept=False):
        """Take the problem; C = 1/λ, and the intercept is not penalised."""
        self.X, self.y, self.intercept = X, y, fit_intercept
        bias = {"intercept": "free"} if fit_intercept else {"fit_intercept": False}
        self.model = StreamtronClassifier(C=1.0 / lmbd, loss="log_loss", max_iter=1000, **bias)

    @staticmethod
    def get_next(tol):
        """Return the tolerance of the run after that of ``tol``: a tenth."""
        return min(tol, 1.0) / 10.0

    def warm_up(self):
        """Compile the kernels, or load them from their cache."""
        self.run_once(0.1)

    def run(self, tol):
        """Fit to a gap of ``tol``, from nothing."""
        self.model.tol = min(tol, 0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that rounding ends the run before the gap is proven
            self.model.fit(self.X, self.y)

    def get_result(self):
        """Return β, and the intercept behind it."""
        beta = self.model.coef_.ravel()
        return {"beta": np.append(beta, self.model.intercept_) if self.intercept else beta}
