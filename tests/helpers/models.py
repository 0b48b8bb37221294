"""Models and matrices, and the messages of what is refused."""

import numpy as np
import pytest

from streamtron.core.errors import DataError
from streamtron.model.linear_model import LinearModel


def make_model(weights=(1.5, -2.0, 0.1), bias=0.25, classes=(-1.0, 1.0), **more) -> LinearModel:
    settings = more.pop("settings", {"C": 0.1, "seed": 0, "stages": [1.0, 0.1]})
    certificate = more.pop("certificate", {"upper_bound": 1 / 3, "rows_scanned": 7})
    reading = {"index_base": 1, "names": ["é", "b\n"], **more}
    return LinearModel(np.array(weights), bias, classes, settings, certificate, reading)


def refused(action, kind=DataError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def random_matrix(rows=50, columns=20, seed=0):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.3)
    dense[[0, 7, rows - 1]] = 0
    return dense.astype(np.float32), rng.normal(size=columns)
