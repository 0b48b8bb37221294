"""Newton's method on rows in memory: it finds what scipy and LIBLINEAR find, and proves its gap."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.losses import HINGE, SQUARED_HINGE, solved
from streamtron.core.penalty import Penalty
from streamtron.core.rows import Rows
from streamtron.solver import newton
from streamtron.solver.held_loss import PartLoss
from streamtron.solver.proximal_newton import HeldPenalised
from tests.helpers.kernel_cases import Case, cases, factors_of, frozen, numbers, prove
from tests.helpers.learners import held_loss
from tests.helpers.sources import csr, random_rows

COLUMNS = 6

Vector = NDArray[np.float64]


Problem = tuple[Rows, NDArray[np.int8], Vector, float]
"""Rows, their signs and costs, and ρ."""


def problem(seed: int) -> Problem:
    """150 random rows, of which a fifth is left out; the others are of unlike cost."""
    plain, labels = random_rows(seed, 150, COLUMNS)
    signs = np.array(labels, dtype=np.int8)
    cost = np.random.default_rng(seed).choice([0.5, 5.0, 35.0], size=150)
    signs[::5], cost[::5] = 0, 0.0
    return csr(plain), signs, cost, 0.5


def test_weights_that_are_0_for_good_are_so_from_the_start():
    loss, zeros = held_loss(*problem(1)), np.array([1, 4])
    how = Penalty.of(0.5), np.zeros(COLUMNS + 1), zeros
    for precision in (1.0, 1e-6):
        best = HeldPenalised(loss, *how).minimise(np.ones(COLUMNS + 1), precision)
        assert not best.v[zeros].any()


def test_the_loss_along_a_line_is_that_of_every_row_where_blocks_are_full():
    rows = csr([[(0, 1.0)]] * (2 * kernels.BLOCK))
    zero, one = np.zeros(2 * kernels.BLOCK), np.ones(2 * kernels.BLOCK)
    loss = held_loss(rows, one.astype(np.int8), one, 1.0)
    assert loss.along(zero, one, 0.0)[0] == loss.value(zero) == 2 * kernels.BLOCK


def test_a_part_sends_a_diagonal_whose_sum_over_parts_is_finite_however_large_values_are():
    held = held_loss(csr([[(0, 1e25)]]), np.ones(1, np.int8), np.ones(1), 1.0).held
    terms = PartLoss(SQUARED_HINGE, held, 1.0).look(np.zeros(2), np.arange(0))
    assert np.isfinite(terms.diagonal + terms.diagonal).all()


def plain_product(case: Case, k: int, v: list[float]) -> float:
    """(x, ρ)·v, the nonzeros added in row order."""
    total = 0.0
    for column, value in case.rows[k]:
        total += value * v[column]
    return total + case.rho * v[-1]


vectors = st.lists(numbers, min_size=COLUMNS + 1, max_size=COLUMNS + 1)
unstarted = cases(started=False)


@prove
@given(unstarted, vectors)
def test_margins_equal_their_plain_oracle_bit_for_bit(case, v):
    found, signs = np.full(len(case.rows), np.nan), frozen(case.signs, np.int8)
    kernels.margins(csr(case.rows), signs, case.rho, frozen(v, np.float64), found)
    assert found.tolist() == [sign * plain_product(case, k, v) for k, sign in enumerate(case.signs)]


@pytest.mark.parametrize("name", ["combine", "gram_product", "gram_diagonal"])
@prove
@given(unstarted, vectors, vectors)
def test_sums_over_rows_equal_their_plain_oracles_bit_for_bit(name, case, v, before):
    total, plain = np.array(before), list(before)
    for k, factor in enumerate(factors_of(case)):
        weight = factor * plain_product(case, k, v) if name == "gram_product" else factor
        for column, value in [*case.rows[k], (COLUMNS, case.rho)]:
            plain[column] += weight * (value * value if name == "gram_diagonal" else value)
    rows, factors = csr(case.rows), frozen(factors_of(case), np.float64)
    direction = [frozen(v, np.float64)] if name == "gram_product" else []
    getattr(kernels, name)(rows, factors, case.rho, *direction, total)
    assert total.tolist() == plain


triples = st.lists(st.tuples(numbers, numbers, st.floats(0.0, 1e9)), max_size=30)


@prove
@given(triples, st.floats(0.0, 100.0))
@example([(0.0, 1.0, 3.0)], 1.0)
def test_the_loss_along_a_line_equals_its_plain_oracle_bit_for_bit(rows, theta):
    between = kernels.BLOCK - len(rows) // 2  # so that the rows are of two blocks
    padded = [(0.0, 0.0, 0.0)] * between + rows
    columns = [frozen([row[n] for row in padded], np.float64) for n in range(3)]
    found = np.zeros((2, 3))
    kernels.loss_along(kernels.Phi(kernels.SQUARED_HINGE), np.zeros(0), *columns, theta, found)
    for block, sums in enumerate(found.tolist()):
        value = first = second = 0.0
        for margin, slope, cost in padded[kernels.BLOCK * block : kernels.BLOCK * (block + 1)]:
            m = margin + theta * slope
            slack = max(1.0 - m, 0.0)
            value += cost * (slack * slack)
            first -= cost * (2.0 * slack * slope)
            second += cost * ((2.0 if m < 1.0 else 0.0) * (slope * slope))
        assert sums == [value, first, second]


@pytest.mark.parametrize("zone", [0.3, 3.0, 30.0])
def test_whatever_its_zone_a_smooth_loss_around_the_optimum_has_the_optimum_of_the_hinge(zone):
    rows, signs, cost, rho = problem(5)
    held, center = held_loss(rows, signs, cost, rho, solved(HINGE)), np.linspace(-2.0, 2.0, 7)
    v = newton.HeldObjective(held, center).minimise(np.zeros(COLUMNS + 1), 1e-11).v
    held.approach(v, zone)
    there = held.margins_of(v)
    gradient = held.sum_of(-held.alpha(there), COLUMNS)
    assert np.abs(gradient + v - center).max() <= 1e-4 * np.abs(v).max()
    above, left = held.smoothing(there)
    loss = cost @ np.maximum(0.0, 1.0 - there)
    assert above == pytest.approx(loss - held.value(there), rel=1e-9)
    assert left <= 1e-8 * loss
    step = np.full(len(v), 1e-6)
    slope = (held.value(held.margins_of(v + step)) - held.value(held.margins_of(v - step))) / 2e-6
    assert slope == pytest.approx(gradient.sum(), rel=1e-5)
    line = held.along(there, held.margins_of(step), 1.0)
    assert line[0] == pytest.approx(held.value(held.margins_of(v + step)), rel=1e-12)
