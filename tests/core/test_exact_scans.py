"""The bounds of a scan against exact arithmetic, for weights, counts and scales of any kind."""

import math
import operator
from dataclasses import replace
from fractions import Fraction
from itertools import cycle, pairwise
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

from streamtron.core import kernels
from streamtron.core.certificate import certificate_of, primal_of
from streamtron.core.errors import InternalError
from streamtron.core.executor import sum_over_tree
from streamtron.core.losses import HINGE, LOG_LOSS, SQUARED_HINGE, Loss
from streamtron.core.rows import Chunk, make_rows
from streamtron.core.scan_sums import ScanSums
from streamtron.data.blocks import squares_of
from streamtron.solver.duals import Counts
from streamtron.solver.scan import ScanRequest, counts_of_slacks, scan_blocks
from streamtron.solver.targets import Targets, round_counts
from tests.helpers import losses
from tests.helpers.exact import solution
from tests.helpers.examples import examples

SCANS = examples(3_000)

COUNTS = ([0, 1], [0, 3, 2**31 - 1], [1, 2, 5, 1000], [2**31 - 1])


class Drawn(NamedTuple):
    """Rows, fixed weights and counts; ``price``: Δ² of each row."""

    X: NDArray[np.float32]
    signs: NDArray[np.int8]
    price: NDArray[np.float64]
    counts: NDArray[np.int32]
    rho: float
    w: NDArray[np.float64]
    bias: float
    scale: float
    loss: Loss = SQUARED_HINGE
    b: float = 1.0
    ratio: float = 0.0


def draw(seed: int) -> Drawn:
    """Small sets made to cancel: near copies, opposite labels, weights near a separating one."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-6, 6)
    if rng.random() < 0.4:  # near copies
        X[1:] = X[0] * (1 + rng.choice([0.0, 6e-8, 1e-6], (n - 1, d)))
    if rng.random() < 0.3:
        X *= 10.0 ** rng.uniform(-8, 8, (n, 1) if rng.random() < 0.5 else d)
    signs = rng.choice(np.array([-1, 1], np.int8), n)
    price = np.full(n, 10.0 ** rng.uniform(-8, 8))
    if rng.random() < 0.5:
        price /= 10.0 ** rng.uniform(-8, 8, n)
    counts = rng.choice(COUNTS[int(rng.integers(4))], n).astype(np.int32)
    rho = float(rng.choice([0.0, 1.0, 10.0 ** rng.uniform(-4, 4)]))
    X = X.astype(np.float32)
    w = rng.normal(size=d) * 10.0 ** rng.uniform(-10, 10)
    bias = float(rng.normal()) if rho else 0.0
    if rng.random() < 0.6:  # the weights of the counts
        w = (counts * signs.astype(float)) @ X.astype(float)
        bias = float(counts @ signs.astype(float)) * rho
    margin = np.abs(signs * (X.astype(float) @ w + rho * bias)).max(initial=0.0)
    near = 1.0 / margin if margin > 0 else 1.0
    scale = near * 10.0 ** rng.uniform(-3, 3) if rng.random() < 0.7 else 10.0 ** rng.uniform(-9, 9)
    return Drawn(X, signs, price, counts, rho, w, bias, float(scale))


def sums_of(drawn: Drawn, seed: int) -> ScanSums:
    """The sums of a scan in blocks, whose sums are added one by one or in a tree."""
    rng, n = np.random.default_rng(seed), len(drawn.signs)
    cuts = sorted({0, n, *rng.integers(0, n + 1, 3).tolist()})
    chunks = []
    for first, stop in pairwise(cuts):
        part = csr_array(drawn.X[first:stop])
        rows = make_rows(part.indptr, part.indices, part.data)
        codes = np.zeros(stop - first, np.int32)
        chunks.append(Chunk(rows, codes, ((first, stop),), squares_of(*rows)))

    def targets(chunk: Chunk) -> Targets:
        numbers = chunk.numbers
        return Targets(numbers, drawn.signs[numbers], drawn.price[numbers], chunk.squares)

    counts, support, b, loss = Counts(), np.flatnonzero(drawn.counts), drawn.b, drawn.loss
    counts.put(support, drawn.counts[support])
    at = drawn.w, drawn.bias, drawn.rho, drawn.scale
    request = ScanRequest(targets, *at, b=b, loss=loss, ratio=drawn.ratio)
    blocks = [b.seen[0].sums for b in scan_blocks((c for c in chunks), [request], [counts])]
    leaves = [
        ScanSums(drawn.scale, len(drawn.w), loss, b, ratio=drawn.ratio)
        for _ in blocks[: 1 if rng.random() < 0.5 else None]
    ]
    for leaf, part in zip(cycle(leaves), blocks, strict=False):
        leaf.add(part)
    return sum_over_tree(operator.add, leaves)


Fractions = list[Fraction]


def exact_sums(drawn: Drawn, scale: float) -> tuple[Fractions, Fractions, Fractions]:
    """v, the weights times ``scale``, augmented; the margins there; and Σ c_k l_k (x_k, ρ)."""
    rows = [[*map(Fraction, row), Fraction(drawn.rho)] for row in drawn.X.tolist()]
    v = [Fraction(scale) * Fraction(x) for x in (*drawn.w.tolist(), drawn.bias)]
    pairs = zip(drawn.signs.tolist(), rows, strict=True)
    margins = [l * sum(map(operator.mul, row, v)) for l, row in pairs]
    signed = (drawn.counts.astype(np.int64) * drawn.signs).tolist()
    sums = [sum(map(operator.mul, signed, column)) for column in zip(*rows, strict=True)]
    return v, margins, sums


def square(vector: Fractions) -> Fraction:
    return sum((x * x for x in vector), Fraction(0))


def fraction(number: Fraction) -> mpmath.mpf:
    return mpmath.mpf(number.numerator) / number.denominator


def draw_priced(loss: Loss, seed: int) -> tuple[Drawn, Fractions]:
    """Rows with C_k of any size, of which Δ_k² is rounded as fits do it; weights far from, near or
    at the optimum; counts of slopes, or any that b C_k allows, or one above. And C_k, exactly. Of
    the squared hinge those of ``draw``."""
    drawn, rng = draw(seed), np.random.default_rng([seed, 1])
    if loss is SQUARED_HINGE:
        return drawn, [1 / (2 * Fraction(price)) for price in drawn.price.tolist()]
    n, C = len(drawn.signs), float(10.0 ** rng.uniform(-8, 8))
    weights = 10.0 ** rng.uniform(-6, 6, n) if rng.random() < 0.5 else np.ones(n)
    of_class = np.where(drawn.signs > 0, rng.uniform(0.1, 10.0), 1.0)
    price = 1.0 / (2.0 * C) / (weights * of_class)
    cost = [Fraction(C) * Fraction(a) * Fraction(b) for a, b in zip(weights, of_class, strict=True)]
    v = rng.normal(size=drawn.X.shape[1] + 1) * 10.0 ** rng.uniform(-10, 10)
    alpha = rng.choice([0.0, 1.0, rng.random()], n) * 0.5 / price
    if (near := rng.choice([None, 0.0, 1e-12, 1e-4, 0.1])) is not None:
        patterns = drawn.signs[:, None] * np.c_[drawn.X.astype(float), np.full(n, drawn.rho)]
        best, alpha = solution(loss.name, patterns.tolist(), cost)
        v = best * (1.0 + near * v / np.abs(v).max())
    if not drawn.rho:
        v[-1] = 0.0
    b = float(10.0 ** rng.uniform(0, 10) / (alpha.max() or 1.0))
    scale = 1.0 / b if rng.random() < 0.5 else 10.0 ** rng.uniform(-9, 9)
    w, bias = v[:-1] / scale, float(v[-1] / scale)
    targets = Targets(np.arange(n), drawn.signs, price, np.zeros(n))
    counts, kind = round_counts(alpha, b, 0.5 / price), rng.integers(4)
    if kind == 0:
        margins = drawn.signs * (drawn.X.astype(float) @ w + drawn.rho * bias)
        counts = counts_of_slacks(replace(loss, zone=0.3), scale * margins, targets, b)
    elif kind == 1:  # as near to b C as whole numbers are, some a little above
        above = np.floor(b * (0.5 / price)) + rng.choice([0, 1], n)
        counts = np.where(counts > 0, np.minimum(above, 2**31 - 1), 0).astype(np.int32)
    given = {"price": price, "counts": counts, "w": w, "bias": bias, "scale": scale}
    return drawn._replace(loss=loss, b=b, **given), cost


def draw_penalised(loss: Loss, seed: int) -> tuple[Drawn, Fractions]:
    """The same, and any r; half of the time with weights whose slopes make the counts, and r near
    the largest |v_j|, where (|v_j| − r)₊ cancels."""
    rng = np.random.default_rng([seed, 2])
    drawn, cost = draw_priced(loss, seed)
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
        X = drawn.X * np.float32(ratio / largest * rng.choice([1.0, 1.0 + 1e-7, 1.5]))
        if np.isfinite(X).all() and X.any():
            drawn = drawn._replace(X=X)
    return drawn._replace(ratio=ratio), cost


def exact_primal(drawn: Drawn, cost: Fractions, v: Fractions, margins: Fractions) -> mpmath.mpf:
    """P of the weights v with these margins."""
    ratio, name = Fraction(drawn.ratio), drawn.loss.name
    penalties = ratio * sum(map(abs, v[:-1])) + ((1 - ratio) * square(v[:-1]) + v[-1] ** 2) / 2
    lost = (
        fraction(c) * losses.loss_at(name, fraction(m))[0]
        for c, m in zip(cost, margins, strict=True)
    )
    return fraction(penalties) + mpmath.fsum(lost)


def exact_dual(drawn: Drawn, cost: Fractions, sums: Fractions, claimed: float) -> mpmath.mpf:
    """D of s α, α = c/b: s = 1; of the squared hinge that of the largest D; and with a 1-norm the
    most for 0 ≤ s ≤ 1, or as much as is ``claimed``. ``sums``: Σ c_k l_k (x_k, ρ)."""
    alpha = [c / Fraction(drawn.b) for c in drawn.counts.tolist()]
    *a, bias = (x / Fraction(drawn.b) for x in sums)
    ratio, quadratic = Fraction(drawn.ratio), drawn.loss.quadratic
    if not quadratic and any(x > c for x, c in zip(alpha, cost, strict=True)):
        return mpmath.mpf(0)

    def dual(s: mpmath.mpf) -> mpmath.mpf:
        earned = (
            fraction(c) * losses.gain_of(drawn.loss.name, s * fraction(x / c))
            for x, c in zip(alpha, cost, strict=True)
        )
        lost = (s * fraction(bias)) ** 2 / 2
        if ratio < 1:
            beyond = (max(s * fraction(abs(x)) - fraction(ratio), 0) for x in a)
            lost += mpmath.fsum(x * x for x in beyond) / fraction(2 * (1 - ratio))
        return mpmath.fsum(earned) - lost

    if not ratio:
        lengths = square([*a, bias]) + sum(
            x * x / (2 * c) for x, c in zip(alpha, cost, strict=True)
        )
        return max(dual(fraction(sum(alpha) / lengths) if quadratic and lengths else 1), 0)
    low, high, most = mpmath.mpf(0), mpmath.mpf(1), dual(1) if ratio < 1 else 0
    if (largest := max(map(abs, a), default=0)) > ratio:
        high = fraction(ratio) / fraction(largest)
    most = max(most, dual(high))
    for _ in range(80 if claimed > most else 0):
        third = (high - low) / 3
        if dual(low + third) < dual(high - third):
            low += third
        else:
            high -= third
    return max(most, dual(high), 0)


def said(drawn: Drawn, cost: Fractions, seed: int) -> tuple[list[str], float, float]:
    """Scan a drawn set, and hold what that proves to exact arithmetic: what is said of P and D that
    does not hold; and how far each of them is from the exact one."""
    try:
        sums = sums_of(drawn, seed)
        proof = certificate_of(sums, drawn.w, drawn.bias)
    except InternalError:
        return ["a lower bound above the upper one"], 0.0, 0.0
    v, margins, a = exact_sums(drawn, proof.scale)
    primal = exact_primal(drawn, cost, v, margins)
    dual = exact_dual(drawn, cost, a, proof.dual)
    claims = {
        "P is below that of the weights": proof.primal < primal,
        "D is above that of the counts": proof.dual > dual,
        "D is below that of no counts": proof.dual < 0.0,
    }
    if sums.sq_columns is not None:
        squares = (0.5 / drawn.price) @ drawn.X.astype(float) ** 2
        off = abs(sums.sq_columns - squares) > 1e-12 * squares
        claims["Σ C_k x_kj² is not that of the columns"] = bool(off.any())
    if proof.has_margins:
        margin = mpmath.mpf(max(proof.primal_margin, 0.0))
        upper = mpmath.mpf(proof.upper_bound or math.inf)
        claims["the primal margin is above that of the weights"] = 2 * primal * margin**2 > 1
        claims["the upper bound is below ‖a‖/t"] = dual > 0 and 2 * dual * upper**2 < 1
    false = [claim for claim, is_false in claims.items() if is_false]
    return false, float(proof.primal / primal - 1), float(1 - proof.dual / dual) if dual else 0.0


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("drawer", "loss", "number", "off"),
    [
        (draw_priced, SQUARED_HINGE, SCANS, math.inf),
        (draw_priced, LOG_LOSS, SCANS // 15, 1e-13),
        (draw_priced, HINGE, SCANS // 15, 1e-13),
        (draw_penalised, SQUARED_HINGE, 300, math.inf),
        (draw_penalised, LOG_LOSS, 60, math.inf),
    ],
)
def test_no_bound_of_scans_made_to_cancel_is_false_in_fractions(drawer, loss, number, off, many):
    """And where no scale is chosen for them they are ``off`` by no more than they need be."""
    with mpmath.workdps(80):
        seeds = range(SCANS, SCANS + 10_000) if many else range(number)
        found = {seed: said(*drawer(loss, seed), seed) for seed in seeds}
    assert {seed: false for seed, (false, *_) in found.items() if false} == {}
    assert np.median([away[1:] for away in found.values()], axis=0).max() <= off


@pytest.mark.parametrize("loss", [LOG_LOSS, HINGE], ids=lambda loss: loss.name)
@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_losses_that_are_no_finite_number_prove_no_objective(loss, lost):
    sums = ScanSums(1.0, 1, loss)
    sums.sums[kernels.LOSSES] = lost
    assert primal_of(sums, 1.0) == (math.inf, 1.0)
