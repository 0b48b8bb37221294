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

from streamtron.core.errors import StreamtronError

DIGITS = Context(prec=250, Emin=-99999, Emax=99999)

SOLVED = Decimal(10) ** -100
"""The relative duality gap at which the optimum counts as found."""

Vector = list[Decimal]


@dataclass(frozen=True)
class Problem:
    """½‖v‖² + Σ C_k max(0, 1 − l_k (x_k, ρ)·v)², v = (w, w_bias), and how it is to be solved.

    ``X``: float32 values, dense. ``weights`` multiply ``C``.
    """

    X: NDArray[np.float32]
    y: NDArray[np.int64]
    weights: NDArray[np.float64]
    C: float
    rho: float
    tol: float
    epochs: int

    @property
    def patterns(self) -> list[Vector]:
        """l_k (x_k, ρ) of the rows that weigh something."""
        rows = zip(self.X.tolist(), self.y.tolist(), self.weights.tolist(), strict=True)
        return [
            [Decimal(sign) * Decimal(value) for value in (*row, self.rho)]
            for row, sign, weight in rows
            if weight
        ]

    @property
    def costs(self) -> Vector:
        """C_k of the same rows."""
        return [Decimal(self.C) * Decimal(weight) for weight in self.weights.tolist() if weight]


@dataclass(frozen=True)
class Optimum:
    """v*, and a bracket of P* that is tight to ``SOLVED``."""

    v: Vector
    dual: Decimal
    primal: Decimal


def optimum(problem: Problem) -> Optimum:
    """Solve by Newton's method with an exact line search, which ends after finitely many steps."""
    with localcontext(DIGITS):
        patterns, costs = problem.patterns, problem.costs
        v = [Decimal(0)] * len(patterns[0])
        for _ in range(300):
            slacks = _slacks(patterns, v)
            primal, dual = _primal(costs, slacks, v), _dual(patterns, costs, slacks)
            if primal - dual <= SOLVED * primal:
                return Optimum(v, dual, primal)
            target = _newton_point(patterns, costs, slacks)
            v = _line_search(patterns, costs, v, target)
        raise ArithmeticError("Newton's method did not end")


def primal(problem: Problem, v: Sequence[Decimal]) -> Decimal:
    """P(v)."""
    with localcontext(DIGITS):
        return _primal(problem.costs, _slacks(problem.patterns, v), v)


def _dot(u: Sequence[Decimal], v: Sequence[Decimal]) -> Decimal:
    return sum((a * b for a, b in zip(u, v, strict=True)), Decimal(0))


def _slacks(patterns: Sequence[Vector], v: Sequence[Decimal]) -> Vector:
    return [max(Decimal(0), 1 - _dot(pattern, v)) for pattern in patterns]


def _primal(costs: Vector, slacks: Vector, v: Sequence[Decimal]) -> Decimal:
    return _dot(v, v) / 2 + sum((c * z * z for c, z in zip(costs, slacks, strict=True)), Decimal(0))


def _dual(patterns: Sequence[Vector], costs: Vector, slacks: Vector) -> Decimal:
    """max over θ of D(θ α), α_k = 2 C_k z_k."""
    alphas = [2 * c * z for c, z in zip(costs, slacks, strict=True)]
    a = [_dot(alphas, column) for column in zip(*patterns, strict=True)]
    total = sum(alphas, Decimal(0))
    square = _dot(a, a) + sum(
        (alpha * alpha / (2 * c) for alpha, c in zip(alphas, costs, strict=True)), Decimal(0)
    )
    return total * total / (2 * square) if square else Decimal(0)


def _newton_point(patterns: Sequence[Vector], costs: Vector, slacks: Vector) -> Vector:
    """The least of the quadratic whose rows with a slack are the present ones."""
    d = len(patterns[0])
    matrix = [[Decimal(i == j) for j in range(d)] + [Decimal(0)] for i in range(d)]
    for pattern, cost, slack in zip(patterns, costs, slacks, strict=True):
        if slack > 0:
            for i in range(d):
                for j in range(d):
                    matrix[i][j] += 2 * cost * pattern[i] * pattern[j]
                matrix[i][d] += 2 * cost * pattern[i]
    for i in range(d):
        pivot = max(range(i, d), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for row in range(i + 1, d):
            factor = matrix[row][i] / matrix[i][i]
            if factor:
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[i], strict=True)]
    v = [Decimal(0)] * d
    for i in reversed(range(d)):
        known = _dot(matrix[i][i + 1 : d], v[i + 1 :])
        v[i] = (matrix[i][d] - known) / matrix[i][i]
    return v


def _line_search(patterns: Sequence[Vector], costs: Vector, v: Vector, target: Vector) -> Vector:
    """The least of P on the ray from v through ``target``: P' is linear between breakpoints."""
    step = [b - a for a, b in zip(v, target, strict=True)]
    margins = [_dot(pattern, v) for pattern in patterns]
    slopes = [_dot(pattern, step) for pattern in patterns]
    borders = sorted(
        (1 - m) / s for m, s in zip(margins, slopes, strict=True) if s and (1 - m) / s > 0
    )
    low = Decimal(0)
    for high in [*borders, None]:
        middle = (low + high) / 2 if high is not None else low + 1
        linear, square = _dot(v, step), _dot(step, step)
        for m, s, c in zip(margins, slopes, costs, strict=True):
            if m + middle * s < 1:
                linear -= 2 * c * s * (1 - m)
                square += 2 * c * s * s
        if not square:
            break
        theta = -linear / square
        if high is None or theta <= high:
            return [a + max(theta, low) * b for a, b in zip(v, step, strict=True)]
        low = high
    return target


# --- what is claimed ------------------------------------------------------------------------------


def false_claims(
    problem: Problem,
    certificate: Mapping[str, Any],
    v: Sequence[float | Decimal],
    radius: float,
) -> list[str]:
    """The claims of a certificate of the weights v = (w, w_bias) that do not hold.

    ``radius`` : ‖v − v*‖ at most, as claimed.
    """
    best = optimum(problem)
    with localcontext(DIGITS):
        weights = [Decimal(value) for value in v]
        own = primal(problem, weights)
        exact = {name: Decimal(value or 0.0) for name, value in certificate.items()
                 if isinstance(value, int | float | None)}  # fmt: skip
        directional = max(exact["directional_margin"], Decimal(0))
        lower, upper = max(exact["primal_margin"], Decimal(0)), exact["upper_bound"]
        away = [a - b for a, b in zip(weights, best.v, strict=True)]
        # v* itself is known to √(2 (P − D)) of this arithmetic
        unsure = max(2 * (best.primal - best.dual), Decimal(0)).sqrt()
        far = np.isfinite(radius) and _dot(away, away).sqrt() - unsure > Decimal(radius)
        gap = (own - best.primal) / own if own else Decimal(0)
        claims = {
            "the lower bound is above the best margin": 2 * best.dual * lower**2 > 1,
            "the directional margin is above the best margin": 2 * best.dual * directional**2 > 1,
            "the upper bound is below the best margin": (
                certificate["upper_bound"] is not None and 2 * best.primal * upper**2 < 1
            ),
            "the primal margin is above that of the weights": 2 * own * lower**2 > 1,
            "the primal objective is below that of the weights": (
                certificate["primal_objective"] is not None and exact["primal_objective"] < own
            ),
            "the dual objective is above the least primal": exact["dual_objective"] > best.primal,
            "the gap is smaller than the true one": gap > exact["relative_duality_gap"],
            "the optimum is farther than the radius": far,
        }
        return [claim for claim, is_false in claims.items() if is_false]


# --- problems with ugly scales -------------------------------------------------------------------


def draw(seed: int) -> Problem:
    """A problem: 2 to 7 rows, 1 to 3 columns, scales, weights and C from 10⁻¹² to 10¹²."""
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
        weights = 10.0 ** rng.uniform(-12, 12, n)
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
    from streamtron import StreamtronClassifier
    from streamtron.core.theory import decision_radius

    model = StreamtronClassifier(
        C=problem.C, tol=problem.tol, max_iter=problem.epochs, fit_intercept=problem.rho > 0.0,
        intercept_scaling=problem.rho or 1.0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(problem.X.astype(np.float64), problem.y, problem.weights)
    found = model.certificate_
    bias = float(model.intercept_[0]) / problem.rho if problem.rho else 0.0
    radius = decision_radius(found["primal_objective"], found["dual_objective"])
    return found, [*model.coef_[0].tolist(), bias], radius


def checked(seed: int) -> tuple[list[str], float]:
    """Draw, fit and hold to the optimum: the false claims, and the gap claimed. A fit that ends in
    an error is false, too."""
    problem = draw(seed)
    try:
        certificate, v, radius = fitted(problem)
    except (ArithmeticError, StreamtronError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"], 1.0
    return false_claims(problem, certificate, v, radius), certificate["relative_duality_gap"]
