"""The objective of benchopt's benchmark_logreg_l2, by its definition."""

import numpy as np
from benchopt import BaseObjective


class Objective(BaseObjective):
    """Σ log(1 + exp(−y x·β)) + ½ λ ‖β‖²; no intercept."""

    name = "L2 Logistic Regression"
    min_benchopt_version = "1.5"
    parameters = {"lmbd": [1.0, 0.01]}

    def set_data(self, X, y):
        """Take rows, and labels ±1."""
        self.X, self.y = X, y

    def get_objective(self):
        """Return what solvers are given."""
        return {"X": self.X, "y": self.y, "lmbd": self.lmbd}

    def get_one_result(self):
        """Return the result of a solver that has done nothing."""
        return {"beta": np.zeros(self.X.shape[1])}

    def evaluate_result(self, beta):
        """Return the objective at β."""
        loss = np.logaddexp(0.0, -self.y * (self.X @ beta)).sum()
        return {"value": loss + 0.5 * self.lmbd * float(beta @ beta)}
