"""The bounds of a scan against exact arithmetic, for weights and dual variables of any kind."""

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
from streamtron.core.certificate import certificate_of, dual_weights_off
from streamtron.core.errors import InternalError
from streamtron.core.executor import sum_over_tree
from streamtron.core.losses import LOSSES, Loss
from streamtron.core.rows import Rows, make_rows
from streamtron.core.scan_sums import ScanSums
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets, to_alphas
from tests.helpers import losses
from tests.helpers.examples import examples

Vector = NDArray[np.float64]
Fractions = list[Fraction]

SCANS = examples(1_500)

SHRUNK = 1 - Fraction(16, 2**53)
"""α a rounding above C stand for α that are all less by this factor."""


class Drawn(NamedTuple):
    """Rows, weights that are fixed, and dual variables. ``cost``: C_k exactly, none of a hard
    margin; ``labels``: ±1 or numbers, of which ``origin`` has been taken off; ``ratio``: r."""

    loss: Loss
    X: NDArray[np.float32]
    labels: Vector
    origin: float
    cost: Fractions
    costs: Vector
    alphas: NDArray[np.float32]
    rho: float
    free: bool
    ratio: float
    w: Vector
    bias: float

    @property
    def rows(self) -> Rows:
        return make_rows(
            *(getattr(csr_array(self.X), name) for name in ("indptr", "indices", "data"))
        )

    @property
    def targets(self) -> Targets:
        n, numbers = len(self.labels), self.loss.numbers
        signs = np.ones(n) if numbers else self.labels
        t = self.labels - self.origin if numbers else np.zeros(0)
        squares = np.square(self.X.astype(float)).sum(axis=1)
        return Targets(np.arange(n), signs.astype(np.int8), self.costs, squares, t, self.origin)

    @property
    def signs(self) -> list[int]:
        return [int(l) for l in self.targets.signs]


def size(rng: np.random.Generator, powers: float) -> float:
    return float(10.0 ** rng.uniform(-powers, powers))


def draw_rows(rng: np.random.Generator, reach: float) -> NDArray[np.float32]:
    """Small sets made to cancel: near copies, of any size."""
    n, d = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d)) * size(rng, 6 * reach)
    if rng.random() < 0.4:
        X[1:] = X[0] * (1 + rng.choice([0.0, 6e-8, 1e-6], (n - 1, d)))
    if rng.random() < 0.2 * reach:
        X *= 10.0 ** rng.uniform(-8, 8, (n, 1) if rng.random() < 0.5 else d)
    return X.astype(np.float32)


def draw(loss: Loss, seed: int) -> Drawn:
    """Rows with a C_k of any size, rounded as fits do it; α that are 0, C, in between, a rounding
    above, or near the optimum; weights that are those of α, nearly, or any."""
    rng = np.random.default_rng(seed)
    reach = float(rng.choice([0.1, 1.0]))
    X = draw_rows(rng, reach)
    n, numbers = len(X), loss.numbers
    labels = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    origin, intercept = 0.0, rng.choice(["penalised", "free", "none"])
    free, rho = bool(intercept == "free"), float(rng.choice([1.0, size(rng, 3)]))
    if numbers:
        labels = size(rng, 3) * (rng.normal(size=n) + 1e9 * (rng.random(n) < 0.1))
        origin = float(rng.choice([0.0, 1e9 * rng.random()])) if free and loss.residual else 0.0
    if loss.log_link:
        labels = np.abs(labels) * (rng.random(n) < 0.8)
    rho *= {"penalised": 1.0, "free": 4096.0, "none": 0.0}[intercept]

    C = size(rng, 8 * reach)
    weights = 10.0 ** rng.uniform(-6 * reach, 6 * reach, n) if rng.random() < 0.5 else np.ones(n)
    of_class = np.where(labels > 0.0, rng.uniform(0.1, 10.0), 1.0)
    costs = C * (weights * of_class)
    cost = [Fraction(C) * Fraction(a) * Fraction(b) for a, b in zip(weights, of_class, strict=True)]

    most, C_k = (loss.epsilon if loss.code == kernels.HUBER else 1.0), costs
    most, end = (labels, labels * C_k) if loss.log_link else (most, C_k)
    share = rng.choice([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], rng.random(2)][rng.integers(4)], n)
    signs = rng.choice([-1.0, 1.0], n) if numbers else 1.0
    alphas = to_alphas(share * most * C_k * signs, (-end, end))
    ratio = float(rng.choice([0.0, 0.0, 1.0, rng.random()]))
    w, bias = rng.normal(size=X.shape[1]) * size(rng, 10 * reach), float(rng.normal())
    drawn = Drawn(
        loss, X, labels, origin, cost, costs, alphas, rho, free, ratio, w, bias * (rho > 0.0)
    )
    if rng.random() < 0.5:
        drawn = ascended(drawn, int(rng.integers(1, 100)))
    if rng.random() < 0.2 and math.isfinite(loss.most):  # as near to the most as float32 has it
        near = (most * C_k * np.sign(drawn.alphas)).astype(np.float32)
        drawn = drawn._replace(alphas=near)
    if free and rng.random() < 0.3:
        drawn = drawn._replace(alphas=in_pairs(drawn))
    if ratio and rng.random() < 0.6:
        drawn = rescaled(drawn, float(rng.choice([1.0, 1.0 + 1e-7, 1.5])))
    if rng.random() < 0.7:
        drawn = at_the_weights_of_alphas(drawn, float(rng.choice([0.0, 1e-15, 1e-7, 0.1])), rng)
    if origin and rng.random() < 0.7:  # the bias takes back what has been taken off the labels
        drawn = drawn._replace(bias=-origin / rho)
    if loss.log_link and rng.random() < 0.8:  # margins of which e^z is finite
        margins = np.abs(drawn.X.astype(float) @ drawn.w) + rho * abs(drawn.bias)
        factor = min(1.0, float(rng.uniform(0.0, 40.0)) / (float(margins.max()) or 1.0))
        drawn = drawn._replace(w=factor * drawn.w, bias=factor * drawn.bias)
    return drawn


def ascended(drawn: Drawn, passes: int) -> Drawn:
    """The same at the α of visits."""
    targets, alphas = drawn.targets, drawn.alphas.copy()
    n, scalars = len(alphas), np.zeros(4)
    order = np.tile(np.arange(n), passes)
    given = targets.signs, targets.costs, drawn.rho, drawn.loss.phi, targets.t, targets.squares
    signed = alphas * targets.signs.astype(float)
    w, scalars[kernels.BIAS] = signed @ drawn.X.astype(float), signed.sum() * drawn.rho
    kernels.visit(drawn.rows, order, *given, alphas, w, scalars, np.zeros(n, np.uint8))
    return drawn._replace(alphas=alphas)


def in_pairs(drawn: Drawn) -> NDArray[np.float32]:
    """α of which one is what the next takes back, so that Σ α_k l_k is 0."""
    found, signs = np.abs(drawn.alphas), np.array(drawn.signs)
    first, second = found[:-1:2], found[1::2]
    least = np.minimum(first, second)
    found[:-1:2], found[1::2], found[2 * len(least) :] = least, least, 0.0
    if drawn.loss.numbers:
        found[1::2] *= -1.0
    else:
        found[: 2 * len(least)] *= np.repeat(signs[: 2 * len(least) : 2] != signs[1::2], 2)
    return found


def rescaled(drawn: Drawn, times: float) -> Drawn:
    """The same with rows of such a size that max |v_j| is about r, or some times as much."""
    v = (drawn.alphas * drawn.targets.signs.astype(float)) @ drawn.X.astype(float)
    factor = times * drawn.ratio / (float(np.abs(v).max()) or 1.0)
    with np.errstate(over="ignore"):
        X = drawn.X * np.float32(factor)
    return drawn._replace(X=X) if np.isfinite(X).all() and X.any() else drawn


def at_the_weights_of_alphas(drawn: Drawn, off: float, rng: np.random.Generator) -> Drawn:
    """The same at weights that are those of α but for about ``off`` of themselves."""
    signed = drawn.alphas * drawn.targets.signs.astype(float)
    w = signed @ drawn.X.astype(float) * (1.0 + off * rng.normal(size=drawn.X.shape[1]))
    return drawn._replace(w=w, bias=float(signed.sum()) * drawn.rho)


def draw_hard(loss: Loss, seed: int) -> Drawn:
    """Rows of a hard margin, at weights whose least margin is near 1."""
    drawn, rng = draw(loss, seed), np.random.default_rng([seed, 1])
    drawn = drawn._replace(free=False, ratio=0.0, costs=np.full(len(drawn.labels), np.inf))
    margins = drawn.labels * (drawn.X.astype(float) @ drawn.w + drawn.rho * drawn.bias)
    factor = (1.0 + rng.integers(-40, 80) * 2.0**-53) / (margins.min() or 1.0)
    return drawn._replace(cost=[], w=factor * drawn.w, bias=factor * drawn.bias)


def sums_of(drawn: Drawn, seed: int) -> ScanSums:
    """The sums of a scan in blocks, whose sums are added one by one or in a tree."""
    rng, n, targets = np.random.default_rng(seed), len(drawn.labels), drawn.targets
    given = drawn.loss, drawn.rho if drawn.free else 0.0, drawn.ratio
    frozen, blocks = Frozen(drawn.w, drawn.bias, *given), []
    for first, last in pairwise(sorted({0, n, *rng.integers(0, n + 1, 3).tolist()})):
        part = slice(first, last)
        rows, alphas = drawn._replace(X=drawn.X[part]).rows, drawn.alphas[part]
        frozen.scan(rows, targets.take(part), alphas, drawn.rho)
        blocks.append(frozen.scan_sums)
        frozen.scan_sums = frozen.scan_sums.emptied()
    leaves = [ScanSums(len(drawn.w), *given) for _ in blocks[: 1 if rng.random() < 0.5 else None]]
    for leaf, block in zip(cycle(leaves), blocks, strict=False):
        leaf.add(block)
    return sum_over_tree(operator.add, leaves)


def number(exact: Fraction) -> mpmath.mpf:
    return mpmath.mpf(exact.numerator) / exact.denominator


def square(vector: Fractions) -> Fraction:
    return sum((x * x for x in vector), Fraction(0))


class Exact:
    """P and D of a drawn set."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn, self.ratio = drawn, Fraction(drawn.ratio)
        self.X = [[Fraction(value) for value in row] for row in drawn.X.tolist()]
        self.labels = [*map(Fraction, drawn.labels.tolist())]

    def primal(self) -> mpmath.mpf:
        """P of the weights; ∞ where a hard margin is below 1."""
        drawn, free = self.drawn, self.drawn.free
        w, bias = [*map(Fraction, drawn.w.tolist())], Fraction(drawn.bias)
        scores = [
            sum(map(operator.mul, x, w), Fraction(0)) + Fraction(drawn.rho) * bias for x in self.X
        ]
        pairs = zip(scores, self.labels, strict=True)
        origin = Fraction(drawn.origin)
        numbers = drawn.loss.numbers
        margins = [(z, l - origin) if numbers else (l * z, Fraction(0)) for z, l in pairs]
        penalty = self.ratio * sum(map(abs, w)) + (1 - self.ratio) * square(w) / 2
        penalty += 0 if free else bias * bias / 2
        if not drawn.cost:
            return number(penalty) if min(margins)[0] >= 1 else mpmath.inf
        epsilon = number(Fraction(drawn.loss.epsilon))
        lost = (
            number(c) * losses.loss_at(drawn.loss.name, number(z), epsilon, number(t))
            for c, (z, t) in zip(drawn.cost, margins, strict=True)
        )
        return number(penalty) + mpmath.fsum(lost)

    def signed(self, shrunk: Fraction) -> Fractions:
        """α_k l_k; where the bias is free, those of one sign less by one part until their sum is
        0."""
        pairs = zip(self.drawn.alphas.tolist(), self.drawn.signs, strict=True)
        beta = [shrunk * Fraction(alpha) * l for alpha, l in pairs]
        if self.drawn.free and (unbalanced := sum(beta)):
            larger = sum(b for b in beta if b * unbalanced > 0)
            beta = [b * (1 - unbalanced / larger) if b * unbalanced > 0 else b for b in beta]
        return beta

    def dual(self, claimed: float) -> mpmath.mpf:
        """The largest D of the dual points that a certificate is of; with a 1-norm of their
        multiples, too, or as much as is ``claimed``."""
        return max(self._dual(self.signed(by), claimed) for by in (Fraction(1), SHRUNK))

    def _dual(self, beta: Fractions, claimed: float) -> mpmath.mpf:
        drawn, loss = self.drawn, self.drawn.loss
        v = [sum(map(operator.mul, beta, column)) for column in zip(*self.X, strict=True)]
        bias = 0 if drawn.free else Fraction(drawn.rho) * sum(beta)
        alphas = [b * l for b, l in zip(beta, drawn.signs, strict=True)]
        epsilon = number(Fraction(loss.epsilon))
        t = [number(l) if loss.numbers else 0 for l in self.labels]

        def at(s: mpmath.mpf) -> mpmath.mpf:
            lost = number(bias * bias) * s * s / 2
            beyond = (max(s * number(abs(x)) - number(self.ratio), 0) for x in v)
            squares = mpmath.fsum(x * x for x in beyond)
            if squares and self.ratio == 1:
                return -mpmath.inf
            lost += squares / number(2 * (1 - self.ratio)) if squares else 0
            if not drawn.cost:
                return s * number(sum(alphas)) - lost
            earned = (
                number(c) * losses.gain_of(loss.name, s * number(alpha / c), label, epsilon)
                for alpha, c, label in zip(alphas, drawn.cost, t, strict=True)
            )
            return mpmath.fsum(earned) - lost

        most, (low, high) = at(mpmath.mpf(1)), (mpmath.mpf(0), mpmath.mpf(1))
        if not self.ratio:
            return most
        if (largest := max(map(abs, v))) > self.ratio:
            high = number(self.ratio) / number(largest) * (1 - mpmath.mpf(10) ** -60)
        most = max(most, at(high))
        for _ in range(80 if claimed > most else 0):
            third = (high - low) / 3
            if at(low + third) < at(high - third):
                low += third
            else:
                high -= third
        return max(most, at(high))

    def least_of_ridge(self) -> mpmath.mpf:
        """P* of squares, where the bias is free."""
        Z = mpmath.matrix([[number(x) for x in (*row, Fraction(1))] for row in self.X])
        t = mpmath.matrix([number(l) for l in self.labels])
        C = mpmath.diag([number(c) for c in self.drawn.cost])
        penalty = mpmath.diag([1] * (Z.cols - 1) + [0])
        v = mpmath.lu_solve(Z.T * C * Z + penalty, Z.T * C * t)
        residuals = Z * v - t
        return ((v.T * penalty * v)[0] + (residuals.T * C * residuals)[0]) / 2

    def off(self, fresh: Vector, bias: float) -> mpmath.mpf:
        """How far the computed v is from that of α, or of α a little shrunk."""
        found = [*map(Fraction, fresh.tolist()), Fraction(bias)]
        most = Fraction(0)
        for by in (Fraction(1), SHRUNK):
            beta = self.signed(by)
            columns = [*zip(*self.X, strict=True), [Fraction(self.drawn.rho)] * len(beta)]
            v = [sum(map(operator.mul, beta, column)) for column in columns]
            most = max(most, square([a - b for a, b in zip(found, v, strict=True)]))
        return mpmath.sqrt(number(most))


def said(drawn: Drawn, seed: int) -> tuple[list[str], float, float]:
    """Scan a drawn set, and hold what that proves to exact arithmetic: what is said of P and D that
    does not hold; and how far each of them is from the exact one."""
    try:
        sums = sums_of(drawn, seed)
        proof = certificate_of(sums, drawn.w, drawn.bias)
    except InternalError:
        return ["a lower bound above the upper one"], 0.0, 0.0
    exact = Exact(drawn)
    primal, dual = exact.primal(), max(exact.dual(proof.dual), mpmath.mpf(0))
    ridge = drawn.free and drawn.loss.name == "squared_error" and not drawn.ratio
    claims = {
        "P is below that of the weights": proof.primal < primal,
        "D is above that of the dual variables": proof.dual > dual
        and not (ridge and proof.dual <= exact.least_of_ridge()),
        "D is below 0": proof.dual < 0.0,
        "the computed v is farther off": dual_weights_off(sums)
        < exact.off(sums.fresh, sums.dual_bias),
    }
    if sums.sq_columns is not None:
        squares = drawn.costs @ drawn.X.astype(float) ** 2
        off = abs(sums.sq_columns - squares) > 1e-12 * squares
        claims["Σ C_k x_kj² is not that of the columns"] = bool(off.any())
    if proof.has_margins:
        margin = mpmath.mpf(max(proof.primal_margin, 0.0))
        upper = mpmath.mpf(proof.upper_bound or math.inf)
        claims["the primal margin is above that of P"] = (
            primal < mpmath.inf and 2 * primal * margin**2 > 1
        )
        claims["the upper bound is below that of D"] = bool(dual) and 2 * dual * upper**2 < 1
    false = [claim for claim, is_false in claims.items() if is_false]
    above = float(proof.primal / primal - 1) if 0 < primal < mpmath.inf else 0.0
    return false, above, float(1 - proof.dual / dual) if dual else 0.0


EVERY_LOSS = {
    name: replace(loss, epsilon=0.25 * (name in losses.REGRESSION[1:]))
    for name, loss in LOSSES.items()
}


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("drawer", "loss"),
    [*((draw, loss) for loss in EVERY_LOSS), (draw_hard, "squared_hinge")],
    ids=[*EVERY_LOSS, "hard margin"],
)
def test_no_bound_of_scans_made_to_cancel_is_false_in_fractions(drawer, loss, many):
    """And where nothing is to be balanced or scaled they are off by no more than they need be."""
    seeds = range(SCANS, SCANS + 10_000) if many else range(SCANS)
    drawn = {seed: drawer(EVERY_LOSS[loss], seed) for seed in seeds}
    with mpmath.workdps(80):
        found = {seed: said(one, seed) for seed, one in drawn.items()}
    assert {seed: false for seed, (false, *_) in found.items() if false} == {}
    plain = [found[seed][1:] for seed, one in drawn.items() if not (one.free or one.ratio)]
    assert np.median(plain, axis=0).max() <= 1e-13
    assert sum(away < 0.5 for _, _, away in found.values()) > 0.3 * len(found)


@pytest.mark.parametrize("loss", EVERY_LOSS)
@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_losses_that_are_no_finite_number_prove_no_objective(loss, lost):
    sums = ScanSums(1, EVERY_LOSS[loss])
    sums.sums[kernels.LOSSES] = lost
    assert certificate_of(sums, np.ones(1), 0.0).primal == math.inf


@pytest.mark.parametrize("seed", range(40))
def test_what_taking_a_large_mean_off_labels_rounds_earns_nothing(seed):
    """Two labels far below the mean of all, which a bias gives back."""
    rng = np.random.default_rng(seed)
    labels, origin = rng.random(2), float(1e9 * rng.random())
    alphas = np.float32([0.125, -0.125]) * np.sign(labels[0] - labels[1]).astype(np.float32)
    loss, rows, ones = EVERY_LOSS["huber"], np.full((2, 1), 1e-3, np.float32), np.ones(2)
    given = 4096.0, True, 0.0, np.zeros(1), -origin / 4096.0
    drawn = Drawn(loss, rows, labels, origin, [Fraction(1)] * 2, ones, alphas, *given)
    with mpmath.workdps(80):
        false, *away = said(drawn, seed)
    assert false == []
    assert max(away) < 1e-3
