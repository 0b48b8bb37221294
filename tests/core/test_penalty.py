"""Penalties with a 1-norm: what a scan proves against exact arithmetic, and the kernels."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from streamtron import Settings
from streamtron.core import certificate, kernels, scan_sums
from streamtron.core.errors import InternalError, SettingsError
from streamtron.core.kernels import UNIT_ROUNDOFF
from streamtron.core.losses import LOG_LOSS, SQUARED_HINGE, Loss
from streamtron.core.penalty import Penalty
from streamtron.solver.proximal_newton import by_column
from streamtron.solver.scan import counts_of_slacks
from streamtron.solver.targets import Targets
from tests.core.test_exact_scans import Drawn, draw, draw_priced, fraction, sums_of
from tests.helpers import losses
from tests.helpers.sources import csr, random_rows

SCANS = 300

BOTH = pytest.mark.parametrize("loss", [SQUARED_HINGE, LOG_LOSS], ids=lambda loss: loss.name)


def draw_penalised(loss: Loss, seed: int) -> Drawn:
    """Rows of ``draw`` and ``draw_priced``, and any r; half of the time with weights whose slopes
    make the counts, and r near the largest |v_j|, where (|v_j| − r)₊ cancels."""
    rng = np.random.default_rng([seed, 2])
    drawn = draw_priced(loss, seed)[0] if loss is LOG_LOSS else draw(seed)
    ratio = float(rng.choice([1.0, 0.5, rng.random(), 1.0 - 2.0**-30, 1e-9]))
    if rng.random() < 0.5:
        n, b = len(drawn.signs), float(10.0 ** rng.uniform(0, 9))
        margins = drawn.signs * (drawn.X.astype(float) @ drawn.w + drawn.rho * drawn.bias)
        targets = Targets(np.arange(n), drawn.signs, drawn.price, np.zeros(n))
        counts = counts_of_slacks(loss, drawn.scale * margins, targets, b)
        drawn = drawn._replace(counts=counts, b=b)
    elif loss is SQUARED_HINGE:
        drawn = drawn._replace(b=float(10.0 ** rng.uniform(0, 12)))
    v = (drawn.counts / drawn.b * drawn.signs) @ drawn.X.astype(float)
    if (largest := float(np.abs(v).max())) and rng.random() < 0.6:  # rows rescaled to be near r
        factor = np.float32(ratio / largest * rng.choice([1.0, 1.0 + 1e-7, 1.5]))
        X = drawn.X * factor
        if np.isfinite(X).all() and X.any():
            drawn = drawn._replace(X=X)
    return drawn._replace(loss=loss, ratio=ratio)


def exact_bounds(drawn: Drawn, scale: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """P of the weights times ``scale``; and the most that D proves of s α, 0 ≤ s ≤ 1."""
    ratio, name = Fraction(drawn.ratio), drawn.loss.name
    rows = [[*map(Fraction, row), Fraction(drawn.rho)] for row in drawn.X.tolist()]
    v = [Fraction(scale) * Fraction(x) for x in (*drawn.w.tolist(), drawn.bias)]
    signs, cost = drawn.signs.tolist(), [1 / (2 * Fraction(p)) for p in drawn.price.tolist()]
    alpha = [c / Fraction(drawn.b) for c in drawn.counts.tolist()]
    penalties = ratio * sum(map(abs, v[:-1])) + v[-1] ** 2 / 2
    penalties += (1 - ratio) * sum(x * x for x in v[:-1]) / 2
    primal = fraction(penalties)
    for l, row, c in zip(signs, rows, cost, strict=True):
        margin = l * sum(map(Fraction.__mul__, row, v))
        slack = max(1 - margin, Fraction(0))
        lost = losses.loss_at(name, fraction(margin))[0] if name == "log_loss" else None
        primal += fraction(c * slack * slack) if lost is None else fraction(c) * lost
    signed = [x * l for x, l in zip(alpha, signs, strict=True)]
    *a, bias = (sum(map(Fraction.__mul__, signed, column)) for column in zip(*rows, strict=True))
    if name == "log_loss" and any(x > c for x, c in zip(alpha, cost, strict=True)):
        return primal, mpmath.mpf(0)

    def dual(s: mpmath.mpf) -> mpmath.mpf:
        gains = -((s * fraction(bias)) ** 2) / 2
        if ratio < 1:
            beyond = (max(s * fraction(abs(x)) - fraction(ratio), 0) for x in a)
            gains -= mpmath.fsum(x * x for x in beyond) / fraction(2 * (1 - ratio))
        for x, c in zip(alpha, cost, strict=True):
            share, price = s * fraction(x), fraction(c)
            if name == "log_loss":
                gains += price * losses.gain_of(name, share / price)
            else:
                gains += share - share * share / (4 * price)
        return gains

    low, high = mpmath.mpf(0), mpmath.mpf(1)
    if ratio == 1 and max(map(abs, a), default=0) > 1:
        high = 1 / fraction(max(map(abs, a)))
    ends = dual(high)
    for _ in range(80 if ratio == 1 else 0):
        third = (high - low) / 3
        if dual(low + third) < dual(high - third):
            low += third
        else:
            high -= third
    return primal, max(ends, dual(high), mpmath.mpf(0))


def false_claims(loss: Loss, seeds: range) -> dict[int, str]:
    """What scans say of P and D that does not hold, by seed."""
    false = {}
    with mpmath.workdps(80):
        for seed in seeds:
            drawn = draw_penalised(loss, seed)
            try:
                proof = sums_of(drawn, seed).certificate(drawn.w, drawn.bias, hard=False)
            except InternalError:
                false[seed] = "a lower bound above the upper one"
                continue
            primal, dual = exact_bounds(drawn, proof.scale)
            if proof.primal < primal:
                false[seed] = "P is below that of the weights"
            if proof.dual > dual:
                false[seed] = "D is above that of the counts"
    return false


@BOTH
def test_no_bound_of_hundreds_of_scans_is_false_in_exact_arithmetic(loss: Loss) -> None:
    assert false_claims(loss, range(SCANS)) == {}


@pytest.mark.slow
@BOTH
def test_no_bound_of_ten_thousand_scans_is_false_in_exact_arithmetic(loss: Loss) -> None:
    assert false_claims(loss, range(SCANS, SCANS + 10_000)) == {}


def test_that_test_notices_if_rounding_is_not_allowed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (certificate, scan_sums):
        monkeypatch.setattr(module, "FEW", -UNIT_ROUNDOFF)
    assert false_claims(SQUARED_HINGE, range(SCANS // 3))


def sweep_of_python(
    X: list[list[float]], order: list[int], factors: list[float], rho: float, lasso: float,
    ridge: float, gradient: list[float], diagonal: list[float], v: list[float],
    step: list[float], images: list[float],
) -> float:  # fmt: skip
    """``kernels.descend`` on dense rows."""
    gained, last = 0.0, len(v) - 1
    for j in order:
        column = [rho] * len(X) if j == last else [row[j] for row in X]
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
def test_a_sweep_over_columns_has_the_bits_of_plain_python(ratio: float) -> None:
    rng = np.random.default_rng(0)
    plain, _ = random_rows(3, 40, 9)
    rows = csr(plain)
    X = [[0.0] * 9 for _ in range(40)]
    for i in range(40):
        for j in range(rows.indptr[i], rows.indptr[i + 1]):
            X[i][rows.indices[j]] = float(rows.values[j])
    factors, v = rng.random(40), rng.normal(size=10) * (rng.random(10) < 0.5)
    gradient = rng.normal(size=10)
    diagonal = factors @ np.c_[np.array(X), np.full(40, 0.7)] ** 2 + 1.0
    step, images, order = np.zeros(10), np.zeros(40), rng.permutation(10)
    arguments = factors, 0.7, ratio, 1.0 - ratio, gradient, diagonal, v
    plain_step, plain_images = step.tolist(), images.tolist()
    for _ in range(3):
        gained = kernels.descend(by_column(rows, 9), order, *arguments, step, images)
        lists = [a if isinstance(a, float) else a.tolist() for a in arguments]
        assert gained == sweep_of_python(X, order.tolist(), *lists, plain_step, plain_images)
        assert (step.tolist(), images.tolist()) == (plain_step, plain_images)
    assert (v + step == 0.0).any()
    Z, ridge = np.c_[np.array(X), np.full(40, 0.7)], np.append(np.full(9, 1.0 - ratio), 1.0)
    hessian = (Z.T * factors) @ Z + np.diag(ridge)
    direct, slopes = np.zeros(10), gradient.copy()
    for _ in range(3):
        kernels.descend_directly(hessian, order, ratio, v, direct, slopes)
    step, images = np.zeros(10), np.zeros(40)
    arguments = (*arguments[:5], np.diag(hessian).copy(), v)
    for _ in range(3):
        kernels.descend(by_column(rows, 9), order, *arguments, step, images)
    np.testing.assert_allclose(direct, step, rtol=1e-9, atol=1e-12)


def test_the_penalty_and_its_conjugate_meet_at_the_weights_of_a_dual_point() -> None:
    v = np.array([3.0, -0.2, -1.5, 0.4])
    for ratio in (0.1, 0.5, 0.9):
        penalty = Penalty.of(ratio)
        w = penalty.weights(v)
        assert penalty.value(w) == pytest.approx(w @ v + penalty.dual(0.0, v), rel=1e-14)
        assert w[1] == 0.0 or ratio < 0.2


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ({"loss": "hinge"}, "smooth"),
        ({"delta": 0.0}, "give --C|--C, or"),
        ({"faithful": True}, "-"),
    ],
)
def test_a_penalty_that_no_solver_has_is_refused(names: dict, wanted: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(SettingsError, match=wanted):
        Settings(penalty="l1", **names)


def test_nothing_is_proven_where_the_dual_point_is_no_number() -> None:
    sums = scan_sums.ScanSums(1.0, 1, LOG_LOSS, ratio=1.0)
    sums.totals[kernels.STEPS_SCANNED], sums.sums[kernels.GAINS] = 1, -math.inf
    assert sums.dual()[0] == 0.0
