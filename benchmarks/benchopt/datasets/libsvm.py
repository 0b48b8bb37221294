"""A file of libsvm text, as benchopt's benchmark_logreg_l2 has them from the LIBSVM site."""

import numpy as np
from benchopt import BaseDataset
from sklearn.datasets import load_svmlight_file


class Dataset(BaseDataset):
    """``-d "libsvm[path=/data/rcv1.svm]"``."""

    name = "libsvm"
    parameters = {"path": ["rows.svm"]}

    def get_data(self):
        """Read rows and labels; the larger label is +1."""
        X, y = load_svmlight_file(self.path)
        for name in ("indices", "indptr"):  # liblinear takes no others
            setattr(X, name, getattr(X, name).astype(np.int32))
        return {"X": X, "y": np.where(y == y.max(), 1.0, -1.0)}
