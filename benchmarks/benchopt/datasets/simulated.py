"""The simulated data of benchopt's benchmark_logreg_l2, by their definition."""

import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Normal values, and the side of a random plane as labels: separable."""

    name = "Simulated"
    parameters = {"n_samples, n_features": [(200, 500), (1000, 10), (100_000, 400)]}

    def get_data(self):
        """Draw rows and labels."""
        rng = np.random.RandomState(42)
        beta = rng.randn(self.n_features)
        X = rng.randn(self.n_samples, self.n_features)
        return {"X": X, "y": np.sign(X @ beta)}
