"""Bounds of fits to numbers, held to exact arithmetic at all scales."""

from __future__ import annotations

import warnings
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest

from streamtron import StreamtronRegressor
from streamtron.core.errors import StreamtronError
from tests.helpers.exact import NOTHING, ONE, Objective, Vector
from tests.helpers.examples import examples

DIGITS = Context(prec=120, Emin=-99999, Emax=99999)
TINY = Decimal(10) ** -100

LOSSES = ("squared_error", "huber", "squared_epsilon_insensitive", "epsilon_insensitive")


def least(exact: Objective, v: Vector) -> Decimal:
    """The least of P, by Newton's method from v."""
    for _ in range(200):
        there = exact.lower(v)
        if not exact.primal(there) < exact.primal(v) * (1 - TINY):
            break
        v = there
    return exact.primal(v)


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
        numbers = [*map(Decimal, t[counting].tolist())]
        exact = Objective(rows, numbers, costs, penalties, loss, Decimal(epsilon))
        v = [*map(Decimal, np.ravel(model.coef_).tolist()), *[Decimal(model.intercept_)] * has_bias]
        primal, best = exact.primal(v), least(exact, v)
        claims = {
            "P is below that of the weights": Decimal(proven["primal_objective"]) < primal,
            "D is above the least P": Decimal(proven["dual_objective"] or 0.0) > best,
        }
        return [claim for claim, is_false in claims.items() if is_false]


@pytest.mark.parametrize("loss", LOSSES)
def test_no_objective_of_a_fit_to_numbers_is_false_whatever_the_scales(loss: str) -> None:
    found = {seed: claims for seed in range(examples(15)) if (claims := false_claims(loss, seed))}
    assert not found
