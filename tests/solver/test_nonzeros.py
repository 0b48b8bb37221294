"""Vectors by their nonzeros: the same to the bit, and refused where they are none."""

import numpy as np
import pytest

from streamtron.core.config import Settings
from streamtron.solver.vectors import SparseVector, dense, smaller
from tests.helpers.sources import learner_of, rows_in_memory


def test_a_vector_is_the_same_by_its_nonzeros_and_of_many_stays_whole():
    rng = np.random.default_rng(0)
    few = np.where(rng.random(1000) < 0.1, rng.normal(size=1000), 0.0)
    vector = smaller(few)
    assert isinstance(vector, SparseVector)
    assert dense(vector).tobytes() == few.tobytes()
    many = rng.normal(size=50)
    assert smaller(many) is many


def test_the_weights_that_are_not_0_are_those_of_the_columns_asked_for():
    learner = learner_of(rows_in_memory(np.eye(5), [1, 1, 1, 2, 2]), Settings())
    learner.best.w = np.array([2.0, 0.0, 1.0, 0.0, 4.0])
    columns, values = learner.best.nonzero(1, 3)
    assert (columns.tolist(), values.tolist()) == ([1], [1.0])
    columns, values = learner.best.nonzero(0, 9)
    assert (columns.tolist(), values.tolist()) == ([0, 2, 4], [2.0, 1.0, 4.0])


@pytest.mark.parametrize(
    ("columns", "values", "length"),
    [
        ([1, 1], [1.0, 2.0], 5),
        ([2, 1], [1.0, 2.0], 5),
        ([5], [1.0], 5),
        ([1], [1.0, 2.0], 5),
        ([], [], -1),
        ([1], [1.0], 1 << 40),
    ],
    ids=["twice", "falling", "beyond", "of other length", "less than none", "too long"],
)
def test_what_is_no_vector_is_refused(columns, values, length):
    with pytest.raises(ValueError, match="columns"):
        SparseVector(np.array(columns, np.uint32), np.array(values), length)
    with pytest.raises(ValueError, match="kind"):
        SparseVector(np.array([1]), np.array([1.0]), 5)
