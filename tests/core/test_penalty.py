"""Penalties with a 1-norm: columns that a scan proves to weigh 0, and the kernels."""

import math
from fractions import Fraction

import numpy as np
import pytest

from streamtron.core import kernels
from streamtron.core.certificate import zero_columns
from streamtron.core.losses import LOG_LOSS, SQUARED_ERROR, SQUARED_HINGE, Loss, domain
from streamtron.core.penalty import Penalty
from streamtron.solver.proximal_newton import by_column
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets, to_alphas
from tests.helpers.sources import csr, dense, random_rows


def scan_column(loss: Loss, seed: int) -> tuple[bool, bool]:
    """Scan one column at w = 0 and a bias that is the best, at a dual point as far from the
    solution as the column's own direction leads: there the rule is tight. Whether that proves that
    it weighs 0, and whether it does: just if |v*| ≤ r for the dual solution v*, which is near r."""
    rng = np.random.default_rng([seed, 3])
    n, ratio = int(rng.integers(2, 9)), float(rng.choice([1.0, 0.5, rng.random()]))
    C = 10.0 ** rng.uniform(-4, 4) * np.exp2(rng.integers(-8, 8, n) * (rng.random() < 0.5))
    signs = rng.choice(np.array([-1, 1], np.int8), n)
    free = rng.random() < 0.3
    has_bias = free or (loss is not LOG_LOSS and rng.random() < 0.3)
    rho = float(rng.choice([0.5, 4.0])) if has_bias else 0.0
    t = np.round(rng.normal(size=n), 3) if loss.numbers else np.zeros(0)
    signs = np.ones(n, np.int8) if loss.numbers else signs
    costs, given = [*map(Fraction, C.tolist())], (t if loss.numbers else signs)
    signed, steep = list(map(Fraction, given.tolist())), Fraction(loss.steepest)
    mean = Fraction(0)  # of the slope, Σ C L (signed − mean) is that of the best bias
    if rho:
        pull = sum(map(Fraction.__mul__, costs, signed))
        mean = pull / (sum(costs) + (0 if free else 1 / (steep * Fraction(rho) ** 2)))
    # the logistic loss at the bias of free ones is C/2 (l − mean), too
    slope = Fraction(1, 2) if loss is LOG_LOSS else steep
    best = [c * slope * (x - mean) for c, x in zip(costs, signed, strict=True)]
    X = rng.normal(size=n) * 10.0 ** rng.uniform(-3, 3) + rng.choice([0.0, 3.0])
    size = abs(float(np.array(best, float) @ X)) or 1.0
    X = (X * (ratio / size * (1.0 + rng.choice([0.0, 1e-7, -1e-7, -1e-3, -0.3])))).astype(
        np.float32
    )
    at_zero = sum(map(Fraction.__mul__, best, map(Fraction, X.tolist())), Fraction(0))
    along = C * (X.astype(float) - (C @ X / C.sum() if free else 0.0))
    toward = float(rng.choice([-1, 1])) * 10.0 ** rng.uniform(-6, -0.3) * ratio / (along @ X or 1.0)
    alpha = np.array(best, float) * signs + toward * along * signs
    alphas = to_alphas(alpha, domain(loss, C, t))
    odds = math.atanh(float(mean)) * 2.0 if loss is LOG_LOSS and abs(mean) < 1 else float(mean)
    scan = Frozen(np.zeros(1), odds / (rho or 1.0), loss, rho * free, ratio)
    targets = Targets(np.arange(n), signs, C, X.astype(float) ** 2, t)
    scan.scan(csr([[(0, x)] for x in X]), targets, alphas, rho)
    proof = scan.certificate()
    zeros = zero_columns(scan.scan_sums, proof.primal, proof.dual)
    return bool(zeros.any()), abs(at_zero) <= Fraction(ratio)


@pytest.mark.parametrize(
    "loss", [SQUARED_HINGE, LOG_LOSS, SQUARED_ERROR], ids=lambda loss: loss.name
)
@pytest.mark.parametrize(
    "seeds", [range(600), pytest.param(range(600, 10_600), marks=pytest.mark.slow)]
)
def test_no_column_that_is_proven_to_weigh_0_weighs_more_in_exact_arithmetic(loss, seeds):
    columns = {seed: scan_column(loss, seed) for seed in seeds}
    assert [seed for seed, (proven, is_true) in columns.items() if proven > is_true] == []
    assert sum(proven for proven, _ in columns.values()) > 30


def sweep_of_python(
    Z: list[list[float]],
    order: list[int],
    factors: list[float],
    lasso: float,
    ridge: float,
    gradient: list[float],
    diagonal: list[float],
    v: list[float],
    step: list[float],
    images: list[float],
) -> float:
    """``kernels.descend`` on dense rows, ρ behind each."""
    gained, last = 0.0, len(v) - 1
    for j in order:
        column = [row[j] for row in Z]
        slope = gradient[j] + step[j]
        if j < last:
            slope += (ridge - 1.0) * step[j]
        for x, f, image in zip(column, factors, images, strict=True):
            slope += x * (f * image) if x else 0.0
        threshold = 0.0 if j == last else lasso / diagonal[j]
        before = v[j] + step[j]
        best = before - slope / diagonal[j]
        after = max(best - threshold, 0.0) + min(best + threshold, 0.0)
        change = after - before
        gained += diagonal[j] * (change * change)
        if change:
            step[j] = after - v[j]
            for i, x in enumerate(column):
                images[i] += x * change
    return gained


@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_a_sweep_over_columns_has_the_bits_of_plain_python(ratio):
    rng, (rows, _) = np.random.default_rng(0), random_rows(3, 40, 9)
    Z, columns = np.c_[dense(rows, 9), np.full(40, 0.7)], by_column(csr(rows), 9)
    factors, v = rng.random(40), rng.normal(size=10) * (rng.random(10) < 0.5)
    gradient, diagonal = rng.normal(size=10), factors @ Z**2 + 1.0
    step, images, order = np.zeros(10), np.zeros(40), rng.permutation(10)
    plain = [array.tolist() for array in (gradient, diagonal, v, step, images)]
    for _ in range(3):
        arguments = factors, 0.7, ratio, 1.0 - ratio, gradient, diagonal, v
        gained = kernels.descend(columns, order, *arguments, step, images)
        given = Z.tolist(), order.tolist(), factors.tolist(), ratio, 1.0 - ratio
        assert gained == sweep_of_python(*given, *plain)
        assert [step.tolist(), images.tolist()] == plain[3:]
    assert (v + step == 0.0).any()
    hessian = (Z.T * factors) @ Z + np.diag(np.append(np.full(9, 1.0 - ratio), 1.0))
    arguments = factors, 0.7, ratio, 1.0 - ratio, gradient, np.diag(hessian).copy(), v
    direct, slopes, step, images = np.zeros(10), gradient.copy(), np.zeros(10), np.zeros(40)
    for _ in range(3):
        kernels.descend_directly(hessian, order, ratio, v, direct, slopes)
        kernels.descend(columns, order, *arguments, step, images)
    np.testing.assert_allclose(direct, step, rtol=1e-9, atol=1e-12)


def test_a_sum_just_beyond_the_1_norm_is_scaled_where_there_is_next_to_no_ridge():
    ratio, v = 1.0 - 2.0**-30, 1.25
    assert Penalty.of(ratio).dual(10.0, np.array([v, 0.0])) == pytest.approx(10.0 / v, rel=1e-8)
    assert Penalty.of(1.0).dual(10.0, np.array([0.25, 0.0])) == 10.0, "never above what α earns"
    targets = Targets(np.arange(1), np.array([1], np.int8), np.ones(1), np.zeros(1))
    frozen = Frozen(np.ones(1), 0.0, ratio=ratio)
    frozen.scan(csr([[(0, v)]]), targets, np.ones(1, np.float32), 0.0)  # C = 1
    assert frozen.certificate().dual == pytest.approx(0.75 / v, rel=1e-6)
