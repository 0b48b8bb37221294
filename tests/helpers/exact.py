"""The optimum of tiny problems in 250-digit arithmetic, and what a certificate claims held to it.

Nothing of the package is used but its public faces.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron import StreamtronClassifier
from streamtron.core.errors import StreamtronError
from streamtron.core.theory import decision_radius

DIGITS = Context(prec=250, Emin=-99999, Emax=99999)

ONE, NOTHING = Decimal(1), Decimal(0)

SOLVED = Decimal(10) ** -100
"""The relative duality gap at which the optimum counts as found."""

Vector = list[Decimal]


@dataclass(frozen=True)
class Problem:
    """½‖v‖² + Σ C_k max(0, 1 − l_k (x_k, ρ)·v)², v = (w, w_bias), and how it is to be solved.

    ``X``: float32 values, dense. ``weights`` multiply ``C``.
    """

    X: NDArray[np.float32]
    y: NDArray[Any]
    weights: NDArray[np.float64]
    C: float
    rho: float
    tol: float
    epochs: int

    @property
    def objective(self) -> Objective:
        """Of the rows that weigh something."""
        counting = self.weights != 0.0
        patterns = [
            [Decimal(sign) * Decimal(value) for value in (*row, self.rho)]
            for row, sign in zip(self.X[counting].tolist(), self.y[counting].tolist(), strict=True)
        ]
        costs = [Decimal(self.C) * Decimal(weight) for weight in self.weights[counting].tolist()]
        return Objective(patterns, costs)


@dataclass(frozen=True)
class Optimum:
    """v*, and a bracket of P* tight to ``SOLVED``."""

    v: Vector
    dual: Decimal
    primal: Decimal


@dataclass(frozen=True)
class Objective:
    """P(v) = ‖v‖²/2 + Σ C_k max(0, 1 − y_k·v)². ``patterns`` are y_k."""

    patterns: Sequence[Vector]
    costs: Vector

    def slacks(self, v: Vector) -> Vector:
        return [max(ONE - dot(y, v), NOTHING) for y in self.patterns]

    def primal(self, v: Vector) -> Decimal:
        return dot(v, v) / 2 + dot(self.costs, [s * s for s in self.slacks(v)])

    def least(self) -> Vector:
        """The v of least P, by Newton's method from 0, which ends after finitely many steps."""
        v = [NOTHING] * len(self.patterns[0])
        for _ in range(300):
            there = self.lower(v)
            if not self.primal(there) < self.primal(v) * (1 - SOLVED):
                return v
            v = there
        raise ArithmeticError("Newton's method did not end")

    def lower(self, v: Vector) -> Vector:
        """A Newton step from v with an exact line search: P is a quadratic between bends."""
        d, right = len(v), [-a for a in v]
        matrix = [[ONE if i == j else NOTHING for j in range(d)] for i in range(d)]
        for y, c, slack in zip(self.patterns, self.costs, self.slacks(v), strict=True):
            for i in range(d if slack else 0):
                right[i] += 2 * c * slack * y[i]
                for j in range(d):
                    matrix[i][j] += 2 * c * y[i] * y[j]
        step = solved(matrix, right)
        length = self._length(v, step)
        return [a + length * b for a, b in zip(v, step, strict=True)]

    def _length(self, v: Vector, step: Vector) -> Decimal:
        room = [ONE - dot(y, v) for y in self.patterns]
        slopes = [dot(y, step) for y in self.patterns]

        def slope_at(theta: Decimal) -> Decimal:
            rows = zip(self.costs, room, slopes, strict=True)
            lost = (-2 * c * max(r - theta * s, NOTHING) * s for c, r, s in rows)
            return dot(step, v) + theta * dot(step, step) + sum(lost, NOTHING)

        borders = sorted({r / s for r, s in zip(room, slopes, strict=True) if s and r / s > 0})
        low = NOTHING
        for high in [*borders, None]:
            piece = (low + 3 if high is None else high) - low
            begin, end = low + piece / 3, low + 2 * piece / 3
            first, last = slope_at(begin), slope_at(end)
            root = begin - first * (end - begin) / (last - first) if last != first else begin
            if high is None or 2 * last >= first:  # the slope at high is not below 0
                return max(root, low)
            low = high
        return low


def dot(u: Sequence[Decimal], v: Sequence[Decimal]) -> Decimal:
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


def optimum(problem: Problem) -> Optimum:
    """Solve by Newton's method with an exact line search."""
    with localcontext(DIGITS):
        exact = problem.objective
        v = exact.least()
        primal, dual = exact.primal(v), _dual(exact, v)
        assert primal - dual <= SOLVED * primal
        return Optimum(v, dual, primal)


def _dual(exact: Objective, v: Vector) -> Decimal:
    """max over θ of D(θ α), α_k = −C_k φ'."""
    alphas = [2 * c * slack for c, slack in zip(exact.costs, exact.slacks(v), strict=True)]
    a = [dot(alphas, column) for column in zip(*exact.patterns, strict=True)]
    pairs = zip(alphas, exact.costs, strict=True)
    square = dot(a, a) + sum((alpha * alpha / (2 * c) for alpha, c in pairs), NOTHING)
    total = sum(alphas, NOTHING)
    return total * total / (2 * square) if square else NOTHING


def false_claims(
    problem: Problem, certificate: Mapping[str, Any], v: Sequence[float | Decimal], radius: float
) -> list[str]:
    """The claims of a certificate of the weights v = (w, w_bias) that do not hold.

    ``radius`` : ‖v − v*‖ at most, as claimed.
    """
    best = optimum(problem)
    with localcontext(DIGITS):
        weights = [Decimal(value) for value in v]
        own = problem.objective.primal(weights)
        exact = {
            name: Decimal(value or 0.0)
            for name, value in certificate.items()
            if isinstance(value, int | float | None)
        }
        lower, upper = max(exact["primal_margin"], Decimal(0)), exact["upper_bound"]
        away = [a - b for a, b in zip(weights, best.v, strict=True)]
        # v* itself is known to √(2 (P − D)) of this arithmetic
        unsure = max(2 * (best.primal - best.dual), Decimal(0)).sqrt()
        far = np.isfinite(radius) and dot(away, away).sqrt() - unsure > Decimal(radius)
        gap = (own - best.primal) / own if own else Decimal(0)
        claims = {
            "the lower bound is above the best margin": 2 * best.dual * lower**2 > 1,
            "the upper bound is below the best margin": (
                certificate["upper_bound"] is not None and 2 * best.primal * upper**2 < 1
            ),
            "the primal margin is above that of the weights": 2 * own * lower**2 > 1,
            "the primal objective is below that of the weights": (
                certificate["primal_objective"] is not None and exact["primal_objective"] < own
            ),
            "the dual objective is above the least primal": exact["dual_objective"] > best.primal,
            "the gap is smaller than the true one": gap > exact["relative_duality_gap"],
            "the optimum is farther than the radius": far or radius == 0.0,
        }
        return [claim for claim, is_false in claims.items() if is_false]


def draw(seed: int) -> Problem:
    """A problem: 2 to 7 rows, 1 to 3 columns, scales and C from 10⁻¹² to 10¹², and weights of which
    none is refused with that C."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 8)), int(rng.integers(1, 4))
    kind = rng.integers(5)
    X = rng.normal(size=(n, d))
    y = np.where(rng.random(n) < 0.5, 1, -1)
    y[:2] = 1, -1
    if kind == 1:  # separable, far from the origin
        X = y[:, None] * rng.normal(2.0, 0.3, (n, d))
    elif kind == 2:  # small integers, with ties
        X = rng.integers(-3, 4, (n, d)).astype(float)
    X *= 10.0 ** rng.uniform(-12, 12) if rng.random() < 0.5 else 1.0
    if rng.random() < 0.3:
        X *= 10.0 ** rng.uniform(-6, 6, (n, 1))
    if rng.random() < 0.3:
        X *= 10.0 ** rng.uniform(-6, 6, d)
    X[rng.random((n, d)) < 0.2] = 0.0
    if rng.random() < 0.2:
        X[0] = 0.0
    weights = np.ones(n)
    if rng.random() < 0.5:
        weights = 10.0 ** rng.uniform(-8, 8, n)
    elif rng.random() < 0.3:
        weights = rng.integers(0, 4, n).astype(float)
        weights[:2] = 1.0
    if rng.random() < 0.3:  # duplicates
        many = rng.integers(0, n, n + 3)
        X, y, weights = (np.concatenate((all_, all_[many])) for all_ in (X, y, weights))
    rho = float(rng.choice([0.0, 1.0, 10.0 ** rng.uniform(-6, 6)]))
    C = 10.0 ** rng.uniform(-12, 12) if rng.random() < 0.7 else 1.0
    tol = float(rng.choice([0.0, 1e-9, 1e-4, 0.01, 0.3]))
    return Problem(X.astype(np.float32), y, weights, C, rho, tol, int(rng.integers(2, 9)))


def fitted(problem: Problem) -> tuple[dict[str, Any], list[float], float]:
    """The certificate, v and radius that streamtron gives."""
    rho, how = problem.rho, {"C": problem.C, "tol": problem.tol, "max_iter": problem.epochs}
    model = StreamtronClassifier(fit_intercept=rho > 0.0, intercept_scaling=rho or 1.0, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(problem.X.astype(np.float64), problem.y, problem.weights)
    proven = model.certificate_
    radius = decision_radius(proven["primal_objective"], proven["dual_objective"])
    bias = float(model.intercept_[0]) / rho if rho else 0.0
    return proven, [*model.coef_[0].tolist(), bias], radius


def checked(problem: Problem) -> tuple[list[str], float]:
    """Fit, and hold to the optimum: the false claims, and the gap claimed. An error is one, too."""
    try:
        certificate, v, radius = fitted(problem)
    except (ArithmeticError, StreamtronError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"], 1.0
    return false_claims(problem, certificate, v, radius), certificate["relative_duality_gap"]
