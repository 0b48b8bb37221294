"""Newton's method on rows in memory: it finds what scipy and LIBLINEAR find, and proves its gap."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.losses import HINGE, LOG_LOSS, SQUARED_HINGE, solved
from streamtron.core.penalty import Penalty
from streamtron.core.rows import Rows
from streamtron.solver import newton
from streamtron.solver.held_loss import HeldLoss, PartLoss
from streamtron.solver.proximal_newton import HeldPenalised
from tests.helpers.kernel_cases import Case, cases, factors_of, frozen, numbers, prove
from tests.helpers.learners import held_loss, minimise
from tests.helpers.sources import csr, dense, random_rows

COLUMNS = 6

Vector = NDArray[np.float64]


class Problem(NamedTuple):
    """½‖v − v₀‖² + Σ C_i max(0, 1 − m_i)² over some rows, and the patterns y_i as a matrix."""

    rows: Rows
    signs: NDArray[np.int8]
    cost: Vector
    rho: float
    center: Vector
    patterns: Vector

    @property
    def loss(self) -> HeldLoss:
        return held_loss(self.rows, self.signs, self.cost, self.rho)

    def primal(self, v: Vector) -> float:
        slacks = np.maximum(0.0, 1.0 - self.patterns @ v)
        return float(0.5 * ((v - self.center) ** 2).sum() + (self.cost * slacks**2).sum())

    def gradient(self, v: Vector) -> Vector:
        slacks = np.maximum(0.0, 1.0 - self.patterns @ v)
        return v - self.center - self.patterns.T @ (2.0 * self.cost * slacks)

    def solved(
        self, precision: float = 1e-12, *, proven: bool = True, start: Vector | None = None
    ) -> tuple[Vector, Vector]:
        first = np.zeros(len(self.center)) if start is None else start
        v, margins, steps = minimise(
            self.rows, self.signs, self.cost, self.rho, first, self.center, precision, proven=proven
        )
        assert 0 <= steps <= newton.STEPS
        return v, margins


def problem(
    seed: int, C: float = 1.0, rho: float = 1.0, *, centered: bool = False, uneven: bool = False
) -> Problem:
    """150 random rows; ``uneven``: a fifth of them left out, the others of unlike cost."""
    plain, labels = random_rows(seed, 150, COLUMNS)
    rng = np.random.default_rng(seed)
    signs, cost = np.array(labels, dtype=np.int8), np.full(150, C)
    if uneven:
        cost *= rng.choice([0.1, 1.0, 7.0], size=150)
        signs[::5] = 0
        cost[::5] = 0.0
    center = rng.normal(size=COLUMNS + 1) if centered else np.zeros(COLUMNS + 1)
    patterns = signs[:, None] * np.hstack([dense(plain, COLUMNS), np.full((150, 1), rho)])
    return Problem(csr(plain), signs, cost, rho, center, patterns)


PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "C 100": {"C": 100.0},
    "C 0.001, no bias": {"C": 1e-3, "rho": 0.0},
    "center": {"rho": 0.1, "centered": True},
    "uneven rows": {"uneven": True},
    "center, uneven rows": {"C": 50.0, "rho": 10.0, "centered": True, "uneven": True},
}

problems = pytest.mark.parametrize(
    "chosen",
    [problem(seed, **options) for seed, options in enumerate(PROBLEMS.values())],
    ids=PROBLEMS,
)


def test_weights_that_are_0_for_good_are_so_from_the_start():
    chosen, zeros = problem(1), np.array([1, 4])
    how = Penalty.of(0.5), np.zeros(COLUMNS + 1), zeros
    for precision in (1.0, 1e-6):
        best = HeldPenalised(chosen.loss, *how).minimise(np.ones(COLUMNS + 1), precision)
        assert not best.v[zeros].any()


def test_the_loss_along_a_line_is_that_of_every_row_where_blocks_are_full():
    rows = csr([[(0, 1.0)]] * (2 * kernels.BLOCK))
    zero, one = np.zeros(2 * kernels.BLOCK), np.ones(2 * kernels.BLOCK)
    loss = held_loss(rows, one.astype(np.int8), one, 1.0)
    assert loss.along(zero, one, 0.0)[0] == loss.value(zero) == 2 * kernels.BLOCK


@pytest.mark.parametrize("C", [1.0, 100.0])
def test_with_a_1_norm_too_the_optimum_is_found_from_far_away(C):
    chosen = problem(2, C)
    loss = held_loss(chosen.rows, chosen.signs, chosen.cost, chosen.rho, LOG_LOSS)
    penalised = HeldPenalised(loss, Penalty.of(0.5), np.zeros(COLUMNS + 1), np.arange(0))
    assert penalised.minimise(np.full(COLUMNS + 1, 30.0), 1e-9).gap <= 1e-9


def test_a_part_sends_a_diagonal_whose_sum_over_parts_is_finite_however_large_values_are():
    held = held_loss(csr([[(0, 1e25)]]), np.ones(1, np.int8), np.ones(1), 1.0).held
    terms = PartLoss(SQUARED_HINGE, held, 1.0).look(np.zeros(2), np.arange(0))
    assert np.isfinite(terms.diagonal + terms.diagonal).all()


@problems
@pytest.mark.parametrize("begin", [0.0, 3.0])
def test_no_step_ever_raises_the_objective(chosen, begin, monkeypatch):
    start = begin * np.random.default_rng(1).normal(size=COLUMNS + 1)
    given, values = (start.copy(), chosen.center.copy()), [chosen.primal(start)]
    for steps in range(1, 12):
        monkeypatch.setattr(newton, "STEPS", steps)
        values.append(chosen.primal(chosen.solved(start=start)[0]))
    for before, after in itertools.pairwise(values):
        assert after <= before * (1 + 1e-14)
    assert values[-1] < values[0]
    assert all(map(np.array_equal, given, (start, chosen.center))), "neither is changed"


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
    chosen = problem(5, C=5.0, rho=0.5, centered=True, uneven=True)
    held = held_loss(chosen.rows, chosen.signs, chosen.cost, chosen.rho, solved(HINGE))
    v = newton.HeldObjective(held, chosen.center).minimise(np.zeros(COLUMNS + 1), 1e-11).v
    held.approach(v, zone)
    there = held.margins_of(v)
    gradient = held.sum_of(-held.alpha(there), COLUMNS)
    assert np.abs(gradient + v - chosen.center).max() <= 1e-4 * np.abs(v).max()
    above, left = held.smoothing(there)
    loss = chosen.cost @ np.maximum(0.0, 1.0 - there)
    assert above == pytest.approx(loss - held.value(there), rel=1e-9)
    assert left <= 1e-8 * loss
    step = np.full(len(v), 1e-6)
    slope = (held.value(held.margins_of(v + step)) - held.value(held.margins_of(v - step))) / 2e-6
    assert slope == pytest.approx(gradient.sum(), rel=1e-5)
    line = held.along(there, held.margins_of(step), 1.0)
    assert line[0] == pytest.approx(held.value(held.margins_of(v + step)), rel=1e-12)
