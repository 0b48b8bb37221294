"""The rows in memory, solved: bounds hold the optimum. What that costs: ``runs/test_cost.py``."""

import math

import numpy as np
import pytest

from streamtron.core.config import Settings
from streamtron.solver import ascent
from tests.helpers.learners import drawn_data
from tests.helpers.optimum import holds, least_primal
from tests.helpers.sources import (
    ListData,
    csr,
    dense,
    random_rows,
    read_libsvm,
    trained,
)

COLUMNS = 6


@pytest.mark.parametrize(("part", "most"), [(1.0, 2), (0.5, 9), (0.1, 20), (0.02, 100)])
@pytest.mark.parametrize("sort", [False, True], ids=["mixed", "sorted by label"])
@pytest.mark.parametrize("C", [0.1, 5.0])
def test_bounds_bracket_the_optimum_whatever_part_of_the_rows_fits_in_memory(part, most, sort, C):
    rows, labels = random_rows(11, 1200, COLUMNS)
    if sort:
        by_label = sorted(range(len(rows)), key=lambda k: labels[k])
        rows, labels = [rows[k] for k in by_label], [labels[k] for k in by_label]
    source = ListData(csr(rows), labels, block_rows=128)
    budget = int(part * source.nbytes)
    learner = trained(source, Settings(C=C, tol=1e-3, active_set=budget))
    assert learner.finished == "certified"
    assert learner.certificate.relative_duality_gap <= 1e-3
    primal = least_primal(dense(rows, COLUMNS), np.array(labels), C)
    assert holds({"certificate": learner.certificate.to_dict()}, primal)
    assert learner.active.nbytes <= budget
    assert source.nonzeros_read <= most * len(source.rows.indices)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ccat_in_tenths_is_certified_in_ten_readings_whatever_the_seed(seed, shared_data):
    rows, labels = read_libsvm(shared_data / "rcv1_27613.ccat.xz")
    source = ListData(rows, labels)
    learner = trained(source, Settings(C=50.0, active_set=source.nbytes // 10, seed=seed))
    assert learner.finished == "certified"
    assert source.nonzeros_read <= 10 * len(rows.indices)


@pytest.mark.slow
@pytest.mark.parametrize(("C", "seeds", "most"), [(0.5, 8, 6.5), (50.0, 8, 36.0)])
def test_ccat_in_memory_takes_two_readings_and_few_visits(C, seeds, most, shared_data):
    rows, labels = read_libsvm(shared_data / "rcv1_27613.ccat.xz")
    visited = 0  # at C = 50 one seed needs 18 visits and another 48
    for seed in range(seeds):
        learner = trained(ListData(rows, labels), Settings(C=C, seed=seed))
        assert (learner.finished, learner.progress.readings) == ("certified", 2)
        visited += learner.progress.visited
    assert visited <= most * seeds * len(rows.indices)


@pytest.mark.parametrize("C", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_tolerance_of_0_ends_converged_with_a_gap_of_rounding_size(seed, C):
    learner = trained(drawn_data(seed, 300, block_rows=64), Settings(C=C, tol=0))
    assert learner.finished == "converged"
    assert learner.certificate.relative_duality_gap <= 1e-6


def test_a_gap_that_does_not_fall_wants_visits_without_end():
    assert ascent.of_visits(0.2, 0.2, 0.05, 5.0) == math.inf


@pytest.mark.parametrize(("loss", "most"), [("squared_hinge", 14.0), ("log_loss", 26.0)])
def test_full_rows_of_many_columns_are_newtons_after_two_rounds_that_leave_no_fewer_inside(
    loss, most
):
    """Visits crawl there: a third round would make them 30 and more."""
    rows, labels = random_rows(0, 4000, 300, 1.0)
    data = ListData(csr(rows), np.where(np.arange(4000) % 3, labels, 1).tolist())
    learner = trained(data, Settings(loss=loss))
    assert learner.progress.history[0].newton_steps
    assert learner.progress.visited <= most * data.nonzeros


def test_visits_go_on_while_they_leave_fewer_rows_inside_the_margin(monkeypatch):
    """For that makes Newton's method cost less, however slow the first rounds are."""
    monkeypatch.setattr(ascent, "of_visits", lambda *_: math.inf)
    data = drawn_data(0, 500, 300, 0.05)
    assert trained(data, Settings(C=10.0)).progress.visited > 20 * data.nonzeros
