"""Vectors by their nonzeros: the same to the bit, and refused where they are none."""

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron.core.config import Settings
from streamtron.solver.checkpoint import bytes_held, densify, sparsify
from streamtron.solver.learner import Learner
from streamtron.solver.partial_fit import EarlierData
from streamtron.solver.scan import Frozen
from streamtron.solver.vectors import SparseVector, cut, dense
from tests.helpers.learners import COLUMNS, source_of
from tests.helpers.sources import train


def few(length: int, seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(length) < 0.1, rng.normal(size=length), 0.0)


def learner_of(w: NDArray[np.float64], best: NDArray[np.float64]) -> Learner:
    """A learner after a scan: one vector is running weights and sum, one the best and scanned."""
    learner = Learner(Settings())
    learner.frozen = Frozen(best, 0.5, 1.0, 0.0)
    learner.running.w = learner.frozen.scan_sums.fresh = w
    learner.best.w = best
    return learner


def test_a_learner_made_sparse_and_dense_again_has_the_same_vectors_held_as_often():
    w, best = few(1000), 2.0 * few(1000)
    learner = learner_of(w, best)
    learner.best.candidate = few(1001, seed=1)
    whole = bytes_held(learner)
    sparsify(learner)
    running, frozen = learner.running.w, learner.frozen
    assert isinstance(running, SparseVector)
    assert isinstance(learner.best.w, SparseVector)
    assert running.columns is learner.best.w.columns, "equal columns are held once"
    assert bytes_held(learner) < whole - 15_000
    assert np.array_equal(learner.best.weights, best), "weights are told in either form"
    densify(learner)
    assert learner.running.w is frozen.scan_sums.fresh
    assert learner.best.w is frozen.w
    assert (learner.running.w.tobytes(), learner.best.w.tobytes()) == (w.tobytes(), best.tobytes())
    assert np.array_equal(learner.best.candidate, few(1001, seed=1))


def test_a_vector_of_many_nonzeros_stays_whole():
    w = np.random.default_rng(0).normal(size=50)
    learner = learner_of(w, w)
    sparsify(learner)
    assert learner.running.w is w
    assert learner.best.w is w


def test_earlier_data_is_the_same_from_a_learner_of_a_group_that_has_ended():
    source = source_of()
    learners = [Learner(Settings(), source.labels) for _ in range(2)]
    for learner in learners:
        train(source, [learner], learner.settings)
        learner.widen(10 * COLUMNS)  # few are not 0
        learner.frozen.scan_sums.widen(10 * COLUMNS)
    sparsify(learners[1])
    assert isinstance(learners[1].running.w, SparseVector)
    one, other = (EarlierData.of(learner, slice(0, COLUMNS)) for learner in learners)
    for name in ("fresh", "sums", "b"):
        ours, theirs = (np.array(getattr(past.scan_sums, name)) for past in (one, other))
        assert ours.tobytes() == theirs.tobytes()
    assert one.average.tobytes() == other.average.tobytes()


@pytest.mark.parametrize("length", [0, 1, 3, 5, 7, 9])
def test_a_cut_vector_has_the_first_numbers(length):
    w = np.array([0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 3.0])
    for vector in (w, SparseVector.of(w)):
        assert dense(cut(vector, length)).tolist() == w[:length].tolist()


def test_the_weights_that_are_not_0_are_those_of_the_columns_asked_for():
    learner = Learner(Settings())
    learner.best.scale = 0.5
    w = np.array([4.0, 0.0, 2.0, 0.0, 8.0])
    for vector in (w, SparseVector.of(w)):
        learner.best.w = vector
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
