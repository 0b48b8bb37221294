"""The optimum of tiny problems in 250-digit arithmetic, and what a certificate claims held to it.

Nothing of the package is used but its public faces.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron import StreamtronClassifier, StreamtronRegressor
from streamtron.core.errors import StreamtronError
from streamtron.core.theory import decision_radius

DIGITS = Context(prec=250, Emin=-99999, Emax=99999)

ONE, NOTHING = Decimal(1), Decimal(0)

SOLVED = Decimal(10) ** -100
"""The relative duality gap at which the optimum counts as found."""

Vector = list[Decimal]


@dataclass(frozen=True)
class Problem:
    """½‖v‖² + Σ C_k max(0, 1 − l_k (x_k, ρ)·v)², v = (w, w_bias), and how it is to be solved; or
    that of another loss, of numbers.

    ``X``: float32 values, dense. ``weights`` multiply ``C``. ``free``: the bias costs nothing.
    """

    X: NDArray[np.float32]
    y: NDArray[Any]
    weights: NDArray[np.float64]
    C: float
    rho: float
    tol: float
    epochs: int
    loss: str = "squared_hinge"
    epsilon: float = 0.0
    free: bool = False

    @property
    def objective(self) -> Objective:
        """Of the rows that weigh something: x_k are l_k (x_k, ρ); of numbers (x_k, ρ)."""
        numbers, counting = self.loss != "squared_hinge", self.weights != 0.0
        signs, t = self.y[counting].tolist(), [ONE] * int(counting.sum())
        if numbers:
            signs, t = t, [*map(Decimal, signs)]
        patterns = [
            [Decimal(sign) * Decimal(value) for value in (*row, self.rho)]
            for row, sign in zip(self.X[counting].tolist(), signs, strict=True)
        ]
        costs = [Decimal(self.C) * Decimal(weight) for weight in self.weights[counting].tolist()]
        penalties = [ONE] * self.X.shape[1] + [NOTHING if self.free else ONE]
        return Objective(patterns, t, costs, penalties, self.loss, Decimal(self.epsilon))


@dataclass(frozen=True)
class Optimum:
    """v*, and a bracket of P*, of the squared hinge tight to ``SOLVED``."""

    v: Vector
    dual: Decimal
    primal: Decimal


@dataclass(frozen=True)
class Objective:
    """P(v) = Σ p_j v_j²/2 + Σ C_k φ(x_k·v − t_k). ``penalties`` are p_j."""

    X: Sequence[Vector]
    t: Vector
    costs: Vector
    penalties: Vector
    loss: str
    epsilon: Decimal

    def phi(self, r: Decimal) -> tuple[Decimal, Decimal, Decimal]:
        """φ, φ' and φ''; the squared hinge of a margin is that of 1 below it."""
        size, sign, epsilon = abs(r), ONE if r > 0 else -ONE, self.epsilon
        if self.loss == "squared_error" or (self.loss == "huber" and size <= epsilon):
            return r * r / 2, r, ONE
        if self.loss == "huber":
            return epsilon * size - epsilon * epsilon / 2, sign * epsilon, NOTHING
        sign, slack = (-ONE, -r) if self.loss == "squared_hinge" else (sign, size - epsilon)
        if slack <= 0:
            return NOTHING, NOTHING, NOTHING
        if self.loss.startswith("squared"):
            return slack * slack, 2 * sign * slack, 2 * ONE
        return slack, sign, NOTHING

    def residuals(self, v: Vector) -> Vector:
        return [dot(x, v) - t for x, t in zip(self.X, self.t, strict=True)]

    def primal(self, v: Vector) -> Decimal:
        penalty = dot([p * a for p, a in zip(self.penalties, v, strict=True)], v) / 2
        return penalty + dot(self.costs, [self.phi(r)[0] for r in self.residuals(v)])

    def least(self, v: Vector) -> Vector:
        """The v of least P, by Newton's method from v, which ends after finitely many steps."""
        for _ in range(300):
            there = self.lower(v)
            if not self.primal(there) < self.primal(v) * (1 - SOLVED):
                return v
            v = there
        raise ArithmeticError("Newton's method did not end")

    def lower(self, v: Vector) -> Vector:
        """A Newton step from v with an exact line search: P is a quadratic between bends."""
        step = self._step(v, [self.phi(r) for r in self.residuals(v)])
        length = self._length(v, step)
        return [a + length * b for a, b in zip(v, step, strict=True)]

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

        pairs = product(zip(residuals, slopes, strict=True), [self.epsilon, -self.epsilon, NOTHING])
        borders = sorted({(b - r) / s for (r, s), b in pairs if s and (b - r) / s > 0})
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


def optimum(problem: Problem, start: Sequence[float | Decimal] = ()) -> Optimum:
    """Solve by Newton's method with an exact line search; from 0, or of numbers from ``start``."""
    with localcontext(DIGITS):
        exact = problem.objective
        classes = exact.loss == "squared_hinge"
        v = exact.least([NOTHING] * len(exact.X[0]) if classes else [*map(Decimal, start)])
        primal = exact.primal(v)
        dual = _dual(exact, v) if classes else primal
        assert primal - dual <= SOLVED * primal
        return Optimum(v, dual, primal)


def _dual(exact: Objective, v: Vector) -> Decimal:
    """max over θ of D(θ α), α_k = −C_k φ'."""
    alphas = [-c * exact.phi(r)[1] for c, r in zip(exact.costs, exact.residuals(v), strict=True)]
    a = [dot(alphas, column) for column in zip(*exact.X, strict=True)]
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
    best = optimum(problem, v)
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


def scale_of(rng: np.random.Generator) -> float:
    """1, a few orders of magnitude, or as many as there are."""
    reach = rng.choice([0.1, 3.0, 8.0])
    return float(10.0 ** rng.uniform(-reach, reach))


def draw_numbers(loss: str, seed: int) -> Problem:
    """A problem whose labels are numbers."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 14)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d)) * scale_of(rng) * 10.0 ** rng.uniform(-1, 1, d)
    X = X.astype(np.float32)
    X[rng.random((n, d)) < 0.3] = 0
    size = scale_of(rng)
    t = size * (rng.normal(size=n) + rng.choice([0.0, 1.0, 1e6]) * rng.normal())
    weights = np.where(rng.random(n) < 0.2, 0.0, 10.0 ** rng.uniform(-2, 2, n))
    weights[0] = 1.0
    intercept = str(rng.choice(["free", "penalised", "none"]))
    epsilon, C = float(size * 10.0 ** rng.uniform(-2, 1)), scale_of(rng)
    tol, epochs = float(rng.choice([0.3, 1e-2, 1e-6])), int(rng.choice([1, 2, 5]))
    rho, free = float(intercept != "none"), intercept == "free"
    return Problem(X, t, weights, C, rho, tol, epochs, loss, epsilon, free)


def fitted(problem: Problem) -> tuple[dict[str, Any], list[float], float]:
    """The certificate, v and radius that streamtron gives; none where labels are numbers."""
    rho, how = problem.rho, {"C": problem.C, "tol": problem.tol, "max_iter": problem.epochs}
    numbers, radius = problem.loss != "squared_hinge", math.inf
    if numbers:
        epsilon = None if problem.loss == "squared_error" else problem.epsilon
        intercept = "free" if problem.free else "penalised" if rho else "none"
        model = StreamtronRegressor(loss=problem.loss, epsilon=epsilon, intercept=intercept, **how)
    else:
        model = StreamtronClassifier(fit_intercept=rho > 0.0, intercept_scaling=rho or 1.0, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(problem.X.astype(np.float64), problem.y, problem.weights)
    proven = model.certificate_
    if not numbers:
        radius = decision_radius(proven["primal_objective"], proven["dual_objective"])
    bias = float(np.ravel(model.intercept_)[0]) / rho if rho else 0.0
    return proven, [*np.ravel(model.coef_).tolist(), bias], radius


def checked(problem: Problem) -> tuple[list[str], float]:
    """Fit, and hold to the optimum: the false claims, and the gap claimed. A fit to classes that
    ends in an error is false, too; one to numbers is of values that no sum can hold."""
    try:
        certificate, v, radius = fitted(problem)
    except (ArithmeticError, StreamtronError, ValueError) as error:
        refused = isinstance(error, StreamtronError) and problem.loss != "squared_hinge"
        return [] if refused else [f"{type(error).__name__}: {error}"], 1.0
    return false_claims(problem, certificate, v, radius), certificate["relative_duality_gap"]
