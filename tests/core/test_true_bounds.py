"""Every printed bound holds in exact arithmetic, whatever the scales of the data: those of tiny
problems, whose optimum is found in 250 digits, and of single scans."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron import StreamtronClassifier
from streamtron.core import theory
from streamtron.core.certificate import dual_of
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, StreamtronError
from streamtron.core.rows import make_rows
from streamtron.model.linear_model import LinearModel
from streamtron.runs.certify import certify
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import run
from streamtron.solver.alphas import MOST_ROWS, Alphas
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets
from tests.helpers.examples import examples, slow_but
from tests.helpers.svm_text import svm_lines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

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
    radius = theory.decision_radius(proven["primal_objective"], proven["dual_objective"])
    bias = float(model.intercept_[0]) / rho if rho else 0.0
    return proven, [*model.coef_[0].tolist(), bias], radius


def checked(problem: Problem) -> tuple[list[str], float]:
    """Fit, and hold to the optimum: the false claims, and the gap claimed. An error is one, too."""
    try:
        certificate, v, radius = fitted(problem)
    except (ArithmeticError, StreamtronError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"], 1.0
    return false_claims(problem, certificate, v, radius), certificate["relative_duality_gap"]


SEEDS = [
    *range(examples(600)),
    5985,
    18253,
    24185,
    72353,  # counts of 0 that nothing but a far finer b would move
    37717,
    72532,  # a whose norm rounding has left nothing of, as a stage begins
    43867,  # conjugate gradients with nothing left to go along
]


@pytest.mark.parametrize(
    "seeds", [SEEDS, pytest.param(range(1_000, 21_000), marks=pytest.mark.slow)]
)
def test_no_claim_of_a_certificate_is_false_on_hundreds_of_problems_with_ugly_scales(seeds):
    """Some leave nothing but rounding."""
    found = {seed: checked(draw(seed)) for seed in seeds}
    assert {seed: claims for seed, (claims, _) in found.items() if claims} == {}
    within = sum(gap <= 0.01 for _, gap in found.values())
    assert within >= 0.8 * len(found)  # bounds that say nothing would hold as well


def model_of(w: list[float], bias: float, **chosen: Any) -> LinearModel:
    """Weights of anybody, the columns numbered from 0."""
    settings = Settings(index_base=0, **chosen)
    reading = {"index_base": 0, "weights_in_label": settings.weights_in_label}
    return LinearModel(np.array(w), bias, (-1.0, 1.0), settings.to_dict(), None, reading)


@pytest.mark.parametrize("first", slow_but(range(0, 90, 30), 0))
def test_no_claim_of_certify_is_false_for_weights_of_anybody_without_a_witness(first, tmp_path):
    checked_models = 0
    for seed in range(first, first + 30):
        problem = replace(draw(seed), tol=0.01)
        rng = np.random.default_rng(seed)
        v = [float(x) * 10.0 ** rng.uniform(-3, 3) for x in optimum(problem).v]
        v = [x * (1 + 0.1 * e) for x, e in zip(v, rng.normal(size=len(v)), strict=True)]
        if not 1e-90 < math.hypot(*v) < 1e90:
            continue
        how = {"weights_in_label": bool((problem.weights != 1).any()), "allow_duplicate": True}
        model = model_of(v[:-1], v[-1] * problem.rho, C=problem.C, rho=problem.rho, **how)
        signs = problem.y.tolist()
        if how["weights_in_label"]:
            signs = [f"{l}:{x!r}" for l, x in zip(signs, problem.weights.tolist(), strict=True)]
        (tmp_path / "rows.svm").write_text("".join(svm_lines(problem.X, signs, 0)))
        proof = certify(model, tmp_path / "rows.svm")
        with localcontext(DIGITS):
            weights = [*map(Decimal, v)]
            if problem.rho:
                weights[-1] = Decimal(model.bias) / Decimal(problem.rho)
        claims = false_claims(problem, proof.certificate.to_dict(), weights, proof.decision_radius)
        assert claims == [], seed
        checked_models += 1
    assert checked_models >= 20


def test_no_more_is_claimed_than_is_true_of_the_largest_values_there_are():
    X = np.array([[3e38], [-3e38]], np.float32)
    largest = Problem(X, np.array([1, -1]), np.ones(2), 1.0, 0.0, 0.01, 9)
    assert false_claims(largest, *fitted(largest)) == []


@pytest.mark.parametrize("seed", range(2))
def test_the_dual_of_rows_with_100_000_columns_is_that_of_the_sum_and_hardly_less(seed):
    rng = np.random.default_rng(seed)
    X, C = rng.normal(size=(20, 100_000)).astype(np.float32), 1.0
    alphas = (rng.random(20) * 1e-5).astype(np.float32)
    frozen = Frozen(np.zeros(100_000), 0.0)
    rows = make_rows(np.arange(0, X.size + 1, 100_000), np.tile(np.arange(100_000), 20), X.ravel())
    squares = (X.astype(float) ** 2).sum(axis=1)
    targets = Targets(np.arange(20), np.ones(20, np.int8), np.full(20, C), squares)
    frozen.scan(rows, targets, alphas, 0.0)
    dual, rounding = dual_of(frozen.scan_sums)
    long = alphas.astype(np.longdouble)  # 64 bits: exact enough
    v = (long[:, None] * X).sum(axis=0)
    exact = long.sum() - (long * long).sum() / (4 * C) - (v * v).sum() / 2
    assert exact * (1 - 1e-13) <= dual <= exact
    assert rounding <= 1e-13 * dual


def test_a_class_weight_that_is_too_large_is_not_told_as_that_of_a_row(tmp_path):
    (tmp_path / "a.svm").write_text("-1 1:1\n1 1:2\n")
    with pytest.raises(
        DataError, match=r"the weight of the class of row 2 is 1e\+15, which times C"
    ):
        run(tmp_path / "a.svm", Settings(C=1e15, class_weight={"1": 1e15}), machine=Machine())


@pytest.mark.parametrize("weight", [1e31, 1e308, 1e-320, 1e-41])
def test_a_weight_beyond_what_sums_can_hold_is_refused_by_its_place(weight, tmp_path):
    good, bad = tmp_path / "good.svm", tmp_path / "bad.svm"
    good.write_text("1:1 0:1\n-1:2 0:-1\n")
    bad.write_text(f"1:1 0:1\n-1:{weight!r} 0:-1\n")
    settings = Settings(C=2.0, weights_in_label=True, index_base=0)
    if weight < 1:
        with pytest.raises(DataError, match=r"the weight of row 2 is .*expected 1e-20 to 1e\+20"):
            run(bad, settings, machine=Machine())
        return
    model, refusal = run(good, settings, machine=Machine()).model, "weight 1e.*at most 1e30"
    with pytest.raises(DataError, match=f"bad.svm, line 2: {refusal}"):
        run(bad, settings, machine=Machine())
    with pytest.raises(DataError, match=f"bad.svm, line 2: {refusal}"):
        evaluate(model, bad)
    with pytest.raises(DataError, match=r"sample_weight: a weight above 1e\+30"):
        StreamtronClassifier().fit([[1.0], [-1.0]], [1, -1], sample_weight=[1.0, weight])


@pytest.mark.parametrize("size", [1e125, 1e154, 1e308, 1e-125, 1e-320])
def test_coefficients_without_finite_margins_are_refused_by_certify(size, tmp_path):
    shard = tmp_path / "rows.svm"
    shard.write_text("1 0:1\n-1 0:-1\n")
    model = model_of([size], 0.0, rho=0.0)
    with pytest.raises(DataError, match=r"have the length .*: expected 1e-100 to 1e\+100"):
        certify(model, shard)


@pytest.mark.parametrize("last", [MOST_ROWS + 1, 2**40])
def test_rows_beyond_what_their_numbers_can_count_are_refused(last):
    alphas = Alphas()
    with pytest.raises(DataError, match=r"at most 4,294,967,295 rows"):
        alphas.put(np.array([last - 1]), np.float32([0.5]))
    with pytest.raises(DataError, match=rf"row {last} of the data"):
        alphas.take_ranges([(last - 10, last)])


def test_the_bound_of_P_holds_where_a_row_lies_at_the_edge_of_what_has_a_slack():
    rng, C, ones, none = np.random.default_rng(0), 1e20, np.ones(1), np.zeros(1, np.float32)
    for _ in range(300):
        x = float(np.float32(10.0 ** rng.uniform(-3, 3)))
        w = (1.0 + int(rng.integers(-6, 7)) * 2.0**-53) / x
        frozen = Frozen(np.array([w]), 0.0)
        targets = Targets(np.arange(1), ones.astype(np.int8), C * ones, x * x * ones)
        frozen.scan(make_rows(np.array([0, 1]), np.array([0]), np.array([x])), targets, none, 0.0)
        bound, slack = Fraction(frozen.certificate().primal), 1 - Fraction(w) * Fraction(x)
        exact = Fraction(w) ** 2 / 2 + Fraction(C) * max(Fraction(0), slack) ** 2
        room = Fraction(C) * Fraction(64, 2**53) ** 2
        assert exact <= bound <= exact * Fraction(1 + 1e-14) + room


@pytest.mark.parametrize("ulps", [0, 1, 2, 5, 100, 10**6, 10**12])
def test_the_radius_is_no_smaller_than_that_of_the_very_bounds_that_it_is_given(ulps):
    for P in 10.0 ** np.random.default_rng(ulps).uniform(-24, 24, 50):
        D = float(P * (1.0 - ulps * 2.0**-53))
        exact = 2 * (Fraction(float(P)) - Fraction(D))
        assert Fraction(theory.decision_radius(float(P), D)) ** 2 >= exact
