"""Models and matrices, the metrics of decisions, and the messages of what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike

from streamtron.core.errors import DataError
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Evaluation, Scores


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


def evaluate(
    signs: ArrayLike, decisions: ArrayLike, weights: ArrayLike | None = None
) -> Evaluation:
    """The metrics of two classes, of all rows at once; ``signs`` > 0 is the larger class."""
    scores = Scores()
    of_rows = None if weights is None else np.asarray(weights, np.float64)
    scores.add(np.asarray(signs) > 0, np.asarray(decisions, np.float64), of_rows)
    return scores.evaluation()
