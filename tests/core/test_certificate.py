"""What a frozen scan proves, held against exact arithmetic and against γ_d of small sets."""

import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from streamtron.core import kernels
from streamtron.core.certificate import (
    Certificate,
    certificate_of,
    dual_of,
    primal_of,
    upper_bound_of,
)
from streamtron.core.errors import InternalError
from streamtron.core.executor import sum_over_tree
from streamtron.core.scan_sums import ScanSums
from streamtron.data.blocks import squares_of
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets
from tests.helpers.kernel_cases import prove
from tests.helpers.optimum import of_margins
from tests.helpers.oracle import Oracle, best_scale, primal_value
from tests.helpers.sources import csr, random_rows

COLUMNS = 5


@pytest.mark.parametrize("margins", [(0.5, 1.0 + 1e-15), (1.1, 0.9), (0.5, math.nan)])
def test_a_lower_bound_above_the_upper_one_is_an_error_and_never_a_gap(margins):
    with pytest.raises(InternalError, match="above the upper bound"):
        of_margins(*margins, 1.0)
    assert InternalError.exit_code == 1


@pytest.mark.parametrize(
    "found", [Certificate(0.5, 2.0, 0.0, 10, 1.0), Certificate(-1.0, math.inf, 0.5, 10, 1.0)]
)
def test_without_an_upper_bound_or_a_positive_margin_nothing_is_proven(found):
    assert found.relative_duality_gap == 1.0


@prove
@given(
    st.lists(st.integers(-8, 8), min_size=COLUMNS, max_size=COLUMNS).filter(any),
    st.integers(0, COLUMNS + 2),
)
def test_weights_of_any_width_weigh_nothing_in_the_columns_that_they_lack(fresh, width):
    scan_sums = ScanSums(1.0, COLUMNS)
    scan_sums.fresh[:] = fresh
    w = np.array([*fresh, 1.0, 1.0][:width]) + 0.5
    off = np.zeros(COLUMNS + 2)
    off[:width] = w
    off[:COLUMNS] -= fresh
    wanted = math.sqrt(math.fsum(off**2) / math.fsum(scan_sums.fresh**2))
    assert scan_sums.distance(w) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factor", [0.5, 0.8, 1.0, 1.3, 2.0])
def test_least_primal_is_exact_at_the_best_scale_and_nearly_so_at_half_or_twice_it(seed, factor):
    rows, labels = random_rows(seed, 400, COLUMNS)
    signs, ones = np.array(labels, np.int8), np.ones(400)
    w = np.random.default_rng(seed).normal(size=COLUMNS)
    margins = Oracle(rows, labels, ones.tolist(), 1.0).margins(w.tolist(), 0.1)
    objective = math.fsum([*w**2, 0.1 * 0.1]), margins, ones.tolist()
    best = best_scale(*objective)
    least = primal_value(best, *objective)
    frozen = Frozen(w, 0.1, factor * best, 0.0)
    targets = Targets(np.arange(400), signs, ones, squares_of(*csr(rows)))
    frozen.scan(csr(rows), targets, np.zeros(400, np.int32), 1.0)
    primal, _ = primal_of(frozen.scan_sums, objective[0])
    assert least * (1 - 1e-12) <= primal <= least * (1 + (1e-12 if factor == 1.0 else 1e-5))


def of_numbers(norm: float, lengths: float, rows: int) -> ScanSums:
    """Sums over rows of one column with a count of 1, whose Σ c_k l_k x_k is ``norm``."""
    scan_sums = ScanSums(1.0, 1)
    scan_sums.fresh[:], scan_sums.sums[kernels.LENGTHS] = norm, lengths
    scan_sums.totals[[kernels.STEPS_SCANNED, kernels.SUPPORT]] = rows
    return scan_sums


@prove
@given(st.floats(1e-3, 1e3))
def test_the_dual_is_never_above_what_the_upper_bound_says(norm):
    scan_sums = of_numbers(norm, norm, 1)
    upper, dual = upper_bound_of(scan_sums)[0], dual_of(scan_sums)[0]
    assert 2 * Fraction(dual) * Fraction(upper) ** 2 <= 1


@pytest.mark.parametrize("rows", [200_000, 2**31])
def test_the_allowance_for_rounding_counts_the_rows_of_long_sums_and_is_no_larger(rows):
    u = kernels.UNIT_ROUNDOFF
    _, rounding = upper_bound_of(of_numbers(1.0, float(rows), rows))
    assert 0.0 <= rounding / (4.0 + 4.0 * rows**2 * u) / u - 1.0 <= 5.0


@prove
@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), st.floats(1e-3, 1e3), st.booleans())
def test_the_directional_margin_is_rounded_down(w, least, negative):
    assume(any(abs(value) > 1e-3 for value in w))
    scan_sums = ScanSums(1.0, 3)
    scan_sums.sums[kernels.LEAST] = -least if negative else least
    bound = certificate_of(scan_sums, np.array(w), 0.0).directional_margin
    square = Fraction(bound) ** 2 * sum(Fraction(value) ** 2 for value in w)
    assert square >= Fraction(least) ** 2 if negative else square <= Fraction(least) ** 2


@prove
@given(
    st.lists(st.lists(st.tuples(st.integers(-60, 60), st.integers(-3, 3)), max_size=6), min_size=1)
)
@example([[(60, -1)], [(60, 1), (0, 1)]])
@example([[(60, 1), (0, 1)], [(60, -1)]])
def test_sums_of_parts_added_over_a_tree_lose_no_more_than_their_bound(parts):
    """Terms of very different sizes that cancel, in Σ c l x, in Σ Δ² c² and in the bins."""
    sums, exact, magnitude, terms = [], Fraction(0), Fraction(0), 0
    for part in parts:
        own = ScanSums(1.0, 1)
        for exponent, factor in part:
            value = factor * 2.0**exponent
            term = ScanSums(1.0, 1)
            term.fresh[0] = term.bins[0] = term.sums[kernels.SQ_EXTENSION] = value
            own += term
            exact += Fraction(value)
            magnitude += abs(Fraction(value))
            terms += 1
        sums.append(own)
    total = sum_over_tree(operator.add, sums)
    u, extension = Fraction(1, 2**53), total.sums[kernels.SQ_EXTENSION :]
    allowed = u * abs(exact) + 4 * terms**2 * u**2 * magnitude
    for pair in ((total.fresh[0], total.low[0]), extension[:2], total.bins[:2]):
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
    proof = of_margins(0.0, share * upper, upper).to_dict()
    if (primal := proof["primal_objective"]) is not None and np.isfinite(primal):
        gap = 1 - Fraction(proof["dual_objective"]) / Fraction(primal)
        assert gap <= Fraction(proof["relative_duality_gap"]) <= gap + Fraction(1e-14)
        assert proof["relative_duality_gap"] > 0.0, "for rounding may hide one"


def test_weights_of_0_have_no_directional_margin_where_the_best_may_be_negative():
    rows = csr([[(0, 1.0)], [(0, 1.0)]])  # rows 1 and −1 of opposite labels: γ = −1
    targets = Targets(np.arange(2), np.array([1, -1], np.int8), np.zeros(2), np.ones(2))
    scan = Frozen(np.zeros(1), 0.0, 1.0, 0.0)
    scan.scan(rows, targets, np.zeros(2, np.int32), 0.0)
    found = scan.certificate()
    assert found.directional_margin == found.primal_margin == -np.inf
    plain = found.to_dict()
    assert plain["directional_margin"] is plain["primal_margin"] is None
    assert plain["relative_duality_gap"] == 1.0
