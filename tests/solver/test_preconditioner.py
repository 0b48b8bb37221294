"""The preconditioner: exact on its head, cheap, and the same bits as a plain computation."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows
from streamtron.solver import hessian as preconditioner
from streamtron.solver.hessian import (
    PAIRS,
    KeptProducts,
    Preconditioner,
)
from streamtron.solver.newton import HeldObjective
from tests.helpers.kernel_cases import COLUMNS, Row, cases, factors_of, frozen, numbers, prove
from tests.helpers.learners import held_loss
from tests.helpers.sources import csr, dense, random_rows

Matrix = NDArray[np.float64]


def hessian(rows: list[Any], columns: int, factors: Matrix, rho: float) -> Matrix:
    """I + Σ f_i (x_i, ρ)(x_i, ρ)ᵀ."""
    patterns = np.hstack([dense(rows, columns), np.full((len(rows), 1), rho)])
    return np.eye(columns + 1) + (patterns * factors[:, None]).T @ patterns


def some_factors(seed: int, rows: int) -> Matrix:
    """Three quarters of them 100, the others 0."""
    return np.where(np.random.default_rng(seed).random(rows) < 0.75, 100.0, 0.0)


@pytest.mark.parametrize(("rho", "head"), [(0.0, 21), (1.0, 21), (1.0, 5)])
def test_it_is_the_inverse_on_its_head_and_of_the_diagonal_elsewhere(rho, head, monkeypatch):
    """Also after updates by the rows that changed."""
    monkeypatch.setattr(preconditioner, "HEAD", head)
    rows, _ = random_rows(0, 300, 20)
    inverse, residual = Preconditioner(csr(rows), rho, 20), np.random.default_rng(1).normal(size=21)
    for seed in range(4 if head == 21 else 1):
        factors = some_factors(seed, 300)
        inverse.update(factors)
        while head < 21 and not inverse.renew():
            inverse.solve(residual)
        full = hessian(rows, 20, factors, rho)
        chosen = np.sort(np.argsort(-np.diag(full), kind="stable")[:head])
        wanted = residual / np.diag(full)
        wanted[chosen] = np.linalg.solve(full[np.ix_(chosen, chosen)], residual[chosen])
        assert inverse.solve(residual) == pytest.approx(wanted, rel=1e-8 if seed else 1e-9)


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each sum of a head."""
    numbers, original = list[int](), kernels.gram_block

    def counted(rows: Rows, factors: Matrix, *others: Any) -> None:
        numbers.append(int(np.count_nonzero(factors)))
        original(rows, factors, *others)

    monkeypatch.setattr(kernels, "gram_block", counted)
    return numbers


def test_an_update_sums_only_the_rows_whose_factor_changed(summed):
    rows, _ = random_rows(0, 300, 20)
    inverse, factors = Preconditioner(csr(rows), 1.0, 20), np.full(300, 2.0)
    for changed in (0, 7, 0):
        factors = factors.copy()
        factors[:changed] = 0.0
        inverse.update(factors)
    assert summed == [300, 7]


def test_a_head_of_some_columns_is_summed_once_products_have_cost_as_much(summed, monkeypatch):
    """What few products solve needs none; half of the rows cost half of the products."""
    monkeypatch.setattr(preconditioner, "HEAD", 100)
    rng, factors = np.random.default_rng(0), np.ones(500)
    rows = csr([list(enumerate(row)) for row in rng.normal(size=(500, 120)).tolist()])
    inverse, products = Preconditioner(rows, 1.0, 120), [0, 0]
    for number, changed in enumerate((500, 250)):
        factors = np.where(np.arange(500) < changed, 2.0 * factors, factors)
        inverse.update(factors)
        while not inverse.renew():
            inverse.solve(np.ones(121))
            products[number] += 1
    assert summed == [500, 250]
    assert 0.9 * preconditioner.PRODUCTS < products[0] <= preconditioner.PRODUCTS
    assert products[1] == pytest.approx(0.5 * products[0], abs=1.0)


@pytest.mark.parametrize("value", [1e-30, 3e38])
def test_squares_that_leave_the_range_of_floats_end_in_finite_weights(value):
    rows = [[(0, value), (1, 1.0)], [(0, -value)], [(1, 2.0)]] * 5
    cost = np.full(15, 1e250)
    signs = np.array([1, -1, 1] * 5, dtype=np.int8)
    loss = held_loss(csr(rows), signs, cost, 1.0)
    assert np.isfinite(HeldObjective(loss, np.zeros(3)).minimise(np.zeros(3), 1e-3).v).all()


def check_gram(rows: list[Row], factors: list[float], rho: float, chosen: set[int]) -> None:
    """Hold the kernel to its plain oracle, bit for bit."""
    head = sorted(chosen)
    places = [head.index(j) if j in chosen else -1 for j in range(COLUMNS + 1)]
    plain = [[1.0] * len(head) for _ in head]
    for row, factor in zip(rows, factors, strict=True):
        own = [(places[j], x) for j, x in [*row, (COLUMNS, rho)] if places[j] >= 0]
        for n, (at, x) in enumerate(own):
            for below, value in own[: n + 1] if factor else []:
                plain[at][below] += factor * x * value
    gram, where = np.ones((len(head), len(head))), frozen(places, np.int64)
    kernels.gram_block(csr(rows), frozen(factors, np.float64), rho, where, gram)
    assert gram.tolist() == plain


@prove
@given(cases(started=False), st.sets(st.integers(0, COLUMNS)))
def test_the_gram_matrix_equals_its_plain_oracle_bit_for_bit(case, chosen):
    check_gram(case.rows, factors_of(case), case.rho, chosen)


@pytest.mark.parametrize("seed", range(20))
def test_the_gram_matrix_of_dense_rows_equals_it_too_wherever_their_columns_change(seed):
    rng, rows = np.random.default_rng(seed), []
    for first, last, step in [(0, 3, 1), (1, 4, 1), (0, COLUMNS, 1), (0, COLUMNS, 2), (0, 3, 1)]:
        columns = range(first, last, step)
        for _ in range(rng.integers(1, 11)):
            rows.append([(j, float(np.float32(rng.normal()))) for j in columns])
    factors = np.where(rng.random(len(rows)) < 0.1, 0.0, rng.random(len(rows))).tolist()
    check_gram(rows, factors, float(rng.random()), {*range(COLUMNS)})


@pytest.mark.parametrize("dense", [False, True])
def test_the_gram_matrix_is_the_same_in_whatever_order_the_columns_of_a_row_lie(dense):
    rng = np.random.default_rng(3)
    rows, _ = random_rows(3, 200, COLUMNS, density=1.0 if dense else 0.5)
    mixed = [[row[k] for k in rng.permutation(len(row))] for row in rows]
    factors, places = rng.random(200), np.arange(COLUMNS + 1)
    found = []
    for some in (rows, mixed):
        gram = np.zeros((COLUMNS + 1, COLUMNS + 1))
        kernels.gram_block(csr(some), factors, 0.7, places, gram)
        found.append(gram)
    assert found[1] == pytest.approx(found[0], rel=1e-13)
    assert not np.triu(found[1], 1).any()
    patterns = np.c_[np.array([[dict(row).get(j, 0.0) for j in range(COLUMNS)] for row in rows])]
    patterns = np.c_[patterns, np.full(200, 0.7)]
    assert found[1] == pytest.approx(np.tril((patterns.T * factors) @ patterns), rel=1e-9)


def plain_factor(matrix: list[list[float]]) -> list[list[float]] | None:
    """L below and Lᵀ above the diagonal; None if a pivot is not positive and finite."""
    size = len(matrix)
    for k in range(size):
        if not 0.0 < matrix[k][k] < math.inf:
            return None
        matrix[k][k] = math.sqrt(matrix[k][k])
        for i in range(k + 1, size):
            matrix[i][k] = matrix[k][i] = matrix[i][k] / matrix[k][k]
        for i in range(k + 1, size):
            for j in range(k + 1, i + 1):
                matrix[i][j] -= matrix[i][k] * matrix[j][k]
    return matrix


def plain_solution(factor: list[list[float]], x: list[float]) -> list[float]:
    for k in range(len(x)):
        x[k] /= factor[k][k]
        for i in range(k + 1, len(x)):
            x[i] -= x[k] * factor[i][k]
    for k in reversed(range(len(x))):
        x[k] /= factor[k][k]
        for i in range(k):
            x[i] -= x[k] * factor[k][i]
    return x


@prove
@given(st.integers(0, 7), st.data())
def test_factor_and_solution_equal_their_plain_oracles_bit_for_bit(size, data):
    row = st.lists(numbers, min_size=size, max_size=size)
    root = np.array(data.draw(st.lists(row, min_size=9, max_size=9))).reshape(9, size)
    gram = root.T @ root + np.eye(size) * data.draw(st.sampled_from([0.0, 1.0, -1e3]))
    plain, factor = plain_factor(np.tril(gram).tolist()), np.tril(gram)
    assert kernels.factorise(factor, np.empty(size)) == (plain is not None)
    if plain is not None:
        assert factor.tolist() == plain
        x = np.array(data.draw(row))
        wanted = plain_solution(plain, x.tolist())
        kernels.solve_factorised(factor, x)
        assert x.tolist() == wanted


@pytest.mark.parametrize("pivot", [-1.0, 0.0, math.inf, math.nan])
def test_a_matrix_whose_pivots_are_not_positive_and_finite_has_no_factor(pivot):
    assert not kernels.factorise(np.diag([1.0, pivot, 1.0]), np.empty(3))


def test_the_earliest_product_makes_room_and_a_useless_one_is_not_kept():
    kept = KeptProducts(3)
    kept.add(np.array([1.0, 0.0, 0.0]), np.array([4.0, 0.0, 0.0]))
    kept.add(np.zeros(3), np.zeros(3))
    kept.add(np.ones(3), np.full(3, np.inf))
    assert kept.correct(np.copy, np.array([4.0, 2.0, 2.0])).tolist() == [1.0, 2.0, 2.0]
    for _ in range(PAIRS):
        kept.add(np.array([0.0, 1.0, 0.0]), np.array([0.0, 2.0, 0.0]))
    assert kept.correct(np.copy, np.array([4.0, 2.0, 2.0])).tolist() == [4.0, 1.0, 2.0]
