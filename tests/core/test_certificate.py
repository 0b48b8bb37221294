"""Certificates: what their sums prove, held against exact arithmetic."""

import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamtron import Settings
from streamtron.core import kernels
from streamtron.core.certificate import Certificate, dual_weights_off
from streamtron.core.errors import InternalError
from streamtron.core.executor import sum_over_tree
from streamtron.core.losses import HINGE
from streamtron.core.rows import Facts
from streamtron.core.scan_sums import ScanSums
from streamtron.solver.learner import Learner, augment
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets
from tests.helpers.kernel_cases import prove
from tests.helpers.optimum import of_margins
from tests.helpers.sources import csr

COLUMNS = 5


@pytest.mark.parametrize("margins", [(1.0 + 1e-14, 1.0), (1.1, 0.9), (math.nan, 1.0)])
def test_a_lower_bound_above_the_upper_one_is_an_error_and_never_a_gap(margins):
    with pytest.raises(InternalError, match="above the upper bound"):
        of_margins(*margins)
    assert InternalError.exit_code == 1


@pytest.mark.parametrize("found", [Certificate(2.0, 0.0, 10), Certificate(math.inf, 0.5, 10)])
def test_without_an_upper_bound_or_a_positive_margin_nothing_is_proven(found):
    assert found.relative_duality_gap == 1.0


@prove
@given(
    st.lists(st.integers(-8, 8), min_size=COLUMNS, max_size=COLUMNS).filter(any),
    st.integers(0, COLUMNS + 2),
)
def test_weights_of_any_width_weigh_nothing_in_the_columns_that_they_lack(fresh, width):
    scan_sums = ScanSums(COLUMNS)
    scan_sums.fresh[:] = fresh
    w = np.array([*fresh, 1.0, 1.0][:width]) + 0.5
    off = np.zeros(COLUMNS + 2)
    off[:width] = w
    off[:COLUMNS] -= fresh
    expected = math.sqrt(math.fsum(off**2) / math.fsum(scan_sums.fresh**2))
    assert scan_sums.distance(w) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rows", [200_000, 2**31])
def test_the_allowance_for_rounding_counts_the_rows_of_long_sums_and_is_no_larger(rows):
    """Of rows of one column with the dual variable 1."""
    u, scan_sums = kernels.UNIT_ROUNDOFF, ScanSums(1)
    scan_sums.fresh[:] = scan_sums.sums[kernels.LENGTHS] = rows
    scan_sums.totals[kernels.SUPPORT] = rows
    allowed = (20.0 + 4.0 * rows**2 * u) * u * rows
    assert allowed <= dual_weights_off(scan_sums) <= 1.02 * allowed


@prove
@given(st.floats(1e-20, 1e20), st.floats(0.0, 1.0))
def test_margins_say_no_more_than_the_objectives_that_they_are_made_of(primal, share):
    found = Certificate(primal, share * primal, 1)
    assert 2 * Fraction(primal) * Fraction(found.primal_margin) ** 2 <= 1
    if found.upper_bound is not None and found.upper_bound < math.inf:
        assert 2 * Fraction(found.dual) * Fraction(found.upper_bound) ** 2 >= 1


@prove
@given(
    st.lists(st.lists(st.tuples(st.integers(-60, 60), st.integers(-3, 3)), max_size=6), min_size=1)
)
@example([[(60, -1)], [(60, 1), (0, 1)]])
@example([[(60, 1), (0, 1)], [(60, -1)]])
def test_sums_of_parts_added_over_a_tree_lose_no_more_than_their_bound(parts):
    """Terms of very different sizes that cancel, in Σ α l x and in what α earn."""
    sums, exact, magnitude, terms = [], Fraction(0), Fraction(0), 0
    for part in parts:
        own = ScanSums(1)
        for exponent, factor in part:
            value = factor * 2.0**exponent
            term = ScanSums(1)
            term.fresh[0] = term.sums[kernels.EARNED] = value
            own += term
            exact += Fraction(value)
            magnitude += abs(Fraction(value))
            terms += 1
        sums.append(own)
    total = sum_over_tree(operator.add, sums)
    u, earned = Fraction(1, 2**53), total.sums[kernels.EARNED :]
    allowed = u * abs(exact) + 4 * terms**2 * u**2 * magnitude
    for pair in ((total.fresh[0], total.low[0]), earned[:2]):
        assert abs(sum(Fraction(float(value)) for value in pair) - exact) <= allowed


def plus(one: Any, other: Any) -> Any:
    return f"({one}{other})"


@given(st.integers(1, 70), st.integers(0, 6))
def test_a_sum_over_the_tree_does_not_depend_on_who_adds_aligned_parts(parts, height):
    letters = [chr(0x100 + number) for number in range(parts)]
    groups = [letters[start : start + 2**height] for start in range(0, parts, 2**height)]
    of_groups = sum_over_tree(plus, [sum_over_tree(plus, group) for group in groups])
    assert of_groups == sum_over_tree(plus, letters)
    assert of_groups.replace("(", "").replace(")", "") == "".join(letters)


@given(st.floats(1e-6, 1e6), st.floats(0.0, 1.0))
@example(1.0, 1.0)
def test_the_gap_is_that_of_the_objectives_printed_beside_it_or_a_little_more(upper, share):
    proof = of_margins(share * upper, upper).to_dict()
    if (primal := proof["primal_objective"]) is not None and np.isfinite(primal):
        gap = 1 - Fraction(proof["dual_objective"]) / Fraction(primal)
        assert gap <= Fraction(proof["relative_duality_gap"]) <= gap + Fraction(1e-14)
        assert proof["relative_duality_gap"] > 0.0, "for rounding may hide one"


@pytest.mark.parametrize("rho", [1.0, 4096.0])
def test_the_feature_of_the_bias_does_not_matter_to_what_is_proven(rho):
    """Of a dual point that is off by a part of 10⁻⁶."""
    rows, alphas = csr([[(0, 1.0)], [(0, -1.0)]]), np.float32([0.25, 0.25 * (1.0 - 1e-6)])
    targets = Targets(np.arange(2), np.int8([1, -1]), np.full(2, 0.5), np.ones(2))
    frozen = Frozen(np.array([0.5]), 0.0, HINGE, rho)
    frozen.scan(rows, targets, alphas, rho)
    assert frozen.certificate().dual == pytest.approx(0.375, rel=1e-5)


def test_another_feature_changes_neither_the_best_weights_nor_the_dual_variables():
    at = 4096.0
    learner = Learner(Settings(C=1.0, intercept="free"), 2, Facts(2, 2.0, 1.0, 1.0, 1.0, ()))
    running, best = learner.running, learner.best
    running.settle(np.ones(2), 3.0 * at, 5.0)  # Σ α_k l_k = 3
    best.bias, best.candidate = 0.5 / at, np.array([1.0, 2.0, 0.25 / at])
    augment(learner, 4.0)
    assert (running.bias, 4.0 * best.bias, 4.0 * best.candidate[-1]) == (12.0, 0.5, 0.25)
