"""Every printed bound holds in exact arithmetic, whatever the scales of the data."""

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from streamtron import StreamtronClassifier
from streamtron.core import theory
from streamtron.core.certificate import dual_of
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import make_rows
from streamtron.model.linear_model import LinearModel
from streamtron.runs.certify import certify
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import run
from streamtron.solver.alphas import MOST_ROWS, Alphas
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets
from tests.helpers.exact import DIGITS, Problem, checked, draw, false_claims, fitted, optimum
from tests.helpers.examples import examples, slow_but
from tests.helpers.svm_text import svm_lines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


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


@pytest.mark.parametrize(
    "setting",
    [
        {"delta": 1e-11},
        {"delta": 1e10},
        {"C": 1e21},
        {"C": 1e-21},
        {"C": math.inf},
        {"rho": 1e160},
        {"rho": 1e-160},
        {"C": math.nan},
        {"class_weight": {"1": 1e300}},
    ],
)
def test_a_setting_with_which_sums_would_overflow_is_refused(setting):
    [name] = setting
    with pytest.raises(SettingsError, match=name.replace("_", "-") + r".* is .*: expected .*1e"):
        Settings(**setting)


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
