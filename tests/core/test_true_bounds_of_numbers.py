"""Bounds of fits to numbers, held to exact arithmetic at all scales."""

from __future__ import annotations

import warnings
from decimal import Context, Decimal, localcontext
from itertools import product

import numpy as np
import pytest

from streamtron import StreamtronRegressor
from streamtron.core.errors import StreamtronError
from tests.helpers.examples import examples

DIGITS = Context(prec=120, Emin=-99999, Emax=99999)
ONE, NOTHING = Decimal(1), Decimal(0)
TINY = Decimal(10) ** -100

Vector = list[Decimal]

LOSSES = ("squared_error", "huber", "squared_epsilon_insensitive", "epsilon_insensitive")


class Numbers:
    """Σ p_j v_j²/2 + Σ C_k φ(x_k·v − t_k), exactly. ``penalties`` are p_j."""

    def __init__(
        self,
        X: list[Vector],
        t: Vector,
        costs: Vector,
        loss: str,
        epsilon: float,
        penalties: Vector,
    ) -> None:
        self.X, self.t, self.costs, self.loss = X, t, costs, loss
        self.epsilon, self.penalties = Decimal(epsilon), penalties

    def phi(self, r: Decimal) -> tuple[Decimal, Decimal, Decimal]:
        """φ, φ' and φ''."""
        size, sign, epsilon = abs(r), ONE if r > 0 else -ONE, self.epsilon
        if self.loss == "squared_error" or (self.loss == "huber" and size <= epsilon):
            return r * r / 2, r, ONE
        if self.loss == "huber":
            return epsilon * size - epsilon * epsilon / 2, sign * epsilon, NOTHING
        slack = size - epsilon
        if slack <= 0:
            return NOTHING, NOTHING, NOTHING
        if self.loss == "epsilon_insensitive":
            return slack, sign, NOTHING
        return slack * slack, 2 * sign * slack, 2 * ONE

    def residuals(self, v: Vector) -> Vector:
        return [dot(x, v) - t for x, t in zip(self.X, self.t, strict=True)]

    def primal(self, v: Vector) -> Decimal:
        penalty = dot([p * a for p, a in zip(self.penalties, v, strict=True)], v) / 2
        return penalty + dot(self.costs, [self.phi(r)[0] for r in self.residuals(v)])

    def lower(self, v: Vector) -> Vector:
        """Newton's method from v, with an exact line search: P is a quadratic between bends."""
        for _ in range(200):
            terms = [self.phi(r) for r in self.residuals(v)]
            step = self._step(v, terms)
            there = [a + self._length(v, step) * b for a, b in zip(v, step, strict=True)]
            if not self.primal(there) < self.primal(v) * (1 - TINY):
                break
            v = there
        return v

    def _step(self, v: Vector, terms: list[tuple[Decimal, Decimal, Decimal]]) -> Vector:
        d = len(v)
        gradient = [p * a for p, a in zip(self.penalties, v, strict=True)]
        matrix = [[self.penalties[i] if i == j else NOTHING for j in range(d)] for i in range(d)]
        for x, c, (_, slope, bend) in zip(self.X, self.costs, terms, strict=True):
            for i in range(d):
                gradient[i] += c * slope * x[i]
            for i, j in product(range(d), repeat=2):
                matrix[i][j] += c * bend * x[i] * x[j]
        return solved(matrix, [-g for g in gradient])

    def _length(self, v: Vector, step: Vector) -> Decimal:
        residuals, slopes = self.residuals(v), [dot(x, step) for x in self.X]
        penalised = [p * a for p, a in zip(self.penalties, step, strict=True)]

        def slope_at(theta: Decimal) -> Decimal:
            there = [a + theta * b for a, b in zip(v, step, strict=True)]
            rows = zip(self.costs, residuals, slopes, strict=True)
            return dot(penalised, there) + sum(
                (c * self.phi(r + theta * s)[1] * s for c, r, s in rows), NOTHING
            )

        bends = [] if self.loss == "squared_error" else [self.epsilon, -self.epsilon]
        pairs = product(zip(residuals, slopes, strict=True), bends)
        borders = sorted((b - r) / s for (r, s), b in pairs if s and (b - r) / s > 0)
        low = NOTHING
        for high in [*borders, 2 * max(borders, default=ONE) + 1]:
            if slope_at(high) >= 0:
                begin, end = low + (high - low) / 3, high - (high - low) / 3
                first, last = slope_at(begin), slope_at(end)
                root = begin - first * (end - begin) / (last - first) if last != first else end
                return min(max(root, low), high)
            low = high
        return low


def dot(u: Vector, v: Vector) -> Decimal:
    return sum((a * b for a, b in zip(u, v, strict=True)), NOTHING)


def solved(matrix: list[Vector], right: Vector) -> Vector:
    """The solution of equations; the right side where they have none."""
    d, table = len(right), [[*row, b] for row, b in zip(matrix, right, strict=True)]
    for i in range(d):
        pivot = max(range(i, d), key=lambda row: abs(table[row][i]))
        table[i], table[pivot] = table[pivot], table[i]
        if not table[i][i]:
            return right
        for row in range(i + 1, d):
            factor = table[row][i] / table[i][i]
            table[row] = [a - factor * b for a, b in zip(table[row], table[i], strict=True)]
    v = [NOTHING] * d
    for i in reversed(range(d)):
        v[i] = (table[i][d] - dot(table[i][i + 1 : d], v[i + 1 :])) / table[i][i]
    return v


def scale(rng: np.random.Generator) -> float:
    """1, a few orders of magnitude, or as many as there are."""
    reach = rng.choice([0.1, 3.0, 8.0])
    return float(10.0 ** rng.uniform(-reach, reach))


def false_claims(loss: str, seed: int) -> list[str]:
    """What is claimed of a random fit, and false."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 14)), int(rng.integers(1, 4))
    X = (rng.normal(size=(n, d)) * scale(rng) * 10.0 ** rng.uniform(-1, 1, d)).astype(np.float32)
    X[rng.random((n, d)) < 0.3] = 0
    size = scale(rng)
    t = size * (rng.normal(size=n) + rng.choice([0.0, 1.0, 1e6]) * rng.normal())
    weights = np.where(rng.random(n) < 0.2, 0.0, 10.0 ** rng.uniform(-2, 2, n))
    weights[0] = 1.0
    intercept = str(rng.choice(["free", "penalised", "none"]))
    epsilon = float(size * 10.0 ** rng.uniform(-2, 1))
    model = StreamtronRegressor(
        C=scale(rng), loss=loss, epsilon=None if loss == "squared_error" else epsilon,
        tol=float(rng.choice([0.3, 1e-2, 1e-6])), intercept=intercept,
        max_iter=int(rng.choice([1, 2, 5])),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X, t, sample_weight=weights)
        except StreamtronError:
            return []  # of values that no sum can hold
    proven, counting = model.certificate_, weights > 0
    with localcontext(DIGITS):
        has_bias = intercept != "none"
        rows = [[*map(Decimal, row), *[ONE] * has_bias] for row in X[counting].tolist()]
        penalties = [ONE] * d + [NOTHING if intercept == "free" else ONE] * has_bias
        costs = [Decimal(model.C) * Decimal(weight) for weight in weights[counting].tolist()]
        exact = Numbers(
            rows, [*map(Decimal, t[counting].tolist())], costs, loss, epsilon, penalties
        )
        v = [*map(Decimal, np.ravel(model.coef_).tolist()), *[Decimal(model.intercept_)] * has_bias]
        primal, best = exact.primal(v), exact.primal(exact.lower(v))
        claims = {
            "P is below that of the weights": Decimal(proven["primal_objective"]) < primal,
            "D is above the least P": Decimal(proven["dual_objective"] or 0.0) > best,
        }
        return [claim for claim, is_false in claims.items() if is_false]


@pytest.mark.parametrize("loss", LOSSES)
def test_no_objective_of_a_fit_to_numbers_is_false_whatever_the_scales(loss: str) -> None:
    found = {seed: claims for seed in range(examples(15)) if (claims := false_claims(loss, seed))}
    assert not found
