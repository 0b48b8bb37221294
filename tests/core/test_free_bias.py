"""What a scan proves of the optimum where the bias is not penalised: Σ α_k l_k = 0 there."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from streamtron import Settings
from streamtron.core.losses import HINGE, LOSSES, SQUARED_ERROR, Loss, gains, slopes, solved, values
from streamtron.core.rows import Facts, make_rows
from streamtron.solver.learner import Learner, augment
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets, round_counts
from tests.helpers.losses import EPSILON, REGRESSION

Vector = NDArray[np.float64]
B = 2.0**24


class Rows(NamedTuple):
    """A few rows of two columns, and what is wanted of them: signs or numbers; r of the penalty."""

    loss: Loss
    X: NDArray[np.float32]
    y: Vector
    C: float
    r: float = 0.0

    def margins(self, v: Vector) -> Vector:
        scores = self.X @ v[:2] + v[2]
        return scores - self.y if self.loss.numbers else self.y * scores

    def optimum(self, loss: Loss, near: Vector, held_back: float = 0.0) -> tuple[Vector, float]:
        """The weights of least P, to which a bias adds ½ ``held_back`` times its square, and P."""

        def primal(v: Vector) -> float:
            penalty = self.r * np.abs(v[:2]).sum() + 0.5 * (1.0 - self.r) * v[:2] @ v[:2]
            lost = self.C * values(loss, self.margins(v)).sum()
            return float(penalty + 0.5 * held_back * v[2] ** 2 + lost)

        options = {"xatol": 1e-9, "fatol": 1e-13, "maxfev": 4000}
        for _ in range(3):
            near = minimize(primal, near, method="Nelder-Mead", options=options).x
        return near, primal(near)

    def proven(self, v: Vector, counts: NDArray[np.int32], rho: float, scale: float) -> float:
        """D that a scan of the weights v proves, and its α is ``counts``/B."""
        n, numbers = len(self.y), self.loss.numbers
        signs, t = (np.ones(n), self.y) if numbers else (self.y, np.zeros(0))
        squares, prices = np.square(self.X.astype(float)).sum(axis=1), np.full(n, 0.5 / self.C)
        frozen = Frozen(
            v[:2] / scale, v[2] / rho / scale, scale, -np.inf, self.loss, B, rho, self.r
        )
        rows = make_rows(np.arange(0, 2 * n + 1, 2), np.tile([0, 1], n), self.X.ravel())
        targets = Targets(np.arange(n), signs.astype(np.int8), prices, squares, t)
        frozen.scan(rows, targets, counts, rho)
        return frozen.certificate().dual

    def balanced(self, counts: NDArray[np.int32]) -> float:
        """D of these α, those of one sign of α l less by one part until their sum is 0."""
        numbers = self.loss.numbers
        beta = counts / B * (1.0 if numbers else self.y)
        if self.loss.quadratic:
            a, extension = beta @ self.X, 0.5 / self.C * beta @ beta
            beta *= np.abs(beta).sum() / (a @ a + extension or 1.0)
        larger = np.sign(beta) == np.sign(beta.sum())
        beta[larger] *= 1.0 - abs(beta.sum()) / (np.abs(beta[larger]).sum() or 1.0)
        v, p = beta @ self.X, beta * (1.0 if numbers else self.y)
        earned = gains(self.loss, p / self.C, self.y[: numbers * len(p)])
        return float(self.C * earned.sum() - 0.5 * v @ v)


def drawn(loss: Loss, rng: np.random.Generator) -> Rows:
    """Rows that are sometimes far from the origin, and sometimes all at it."""
    n = int(rng.integers(2, 9))
    X = rng.normal(size=(n, 2)) * 10.0 ** rng.uniform(-1, 1) + rng.choice([0.0, 10.0])
    X = (X + 1e6 * ((u := rng.random()) < 0.1)).astype(np.float32) * np.float32(u < 0.9)
    signs = np.where(np.arange(n) == 0, -1.0, rng.choice([-1.0, 1.0, 1.0], n))
    y = np.round(rng.normal(size=n) + 3.0, 3) if loss.numbers else signs
    return Rows(loss, X, y, 10.0 ** rng.uniform(-2, 0.5), rng.choice([0.0, 0.0, 0.5, 1.0]))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (30, 60))])
def test_an_unbalanced_dual_point_is_said_to_be_worth_no_more_than_one_that_is_not(name, first):
    """Of weights and counts at the optimum, at that of a bias that is penalised, and anywhere."""
    loss = replace(LOSSES[name], epsilon=EPSILON) if name in REGRESSION[1:] else LOSSES[name]
    smooth, worth_having = replace(solved(loss), zone=0.05 * (solved(loss).zone > 0.0)), 0
    for seed in range(first, first + 30):
        rng = np.random.default_rng([seed, 5])
        rows = drawn(loss, rng)
        C, n = rows.C, len(rows.y)
        near, _ = rows.optimum(smooth, np.array([0.0, 0.0, rows.y.mean()]))
        best, least = rows.optimum(loss, near)
        for k in range(6):
            v = rows.optimum(smooth, near, 10.0 ** rng.uniform(-2, 2))[0] if k == 0 else near
            v = v + rng.normal(size=3) * 10.0 ** rng.uniform(-6, 0) * (k > 1)
            alpha = C * slopes(smooth, rows.margins(v)) * rng.random(n) ** (k > 2)
            counts = round_counts(alpha, B, loss.most * np.full(n, C), balanced=loss.numbers)
            v = [v, best, best + rng.normal(size=3), np.zeros(3)][int(rng.integers(4))]
            dual = rows.proven(v, counts, rng.choice([0.5, 4.0, 4096.0]), 16.0 ** (n - 4))
            assert dual <= least * (1.0 + 1e-12) + 1e-12, seed
            worth_having += dual > 0.5 * least
            if not rows.r and loss.code != SQUARED_ERROR.code:
                assert dual <= max(rows.balanced(counts) * (1.0 + 1e-12) + 1e-12, 0.0), seed
    assert worth_having > 20


def test_weights_with_a_small_objective_far_from_those_of_the_dual_point_prove_no_more():
    """P of these weights alone, and how unbalanced the dual point is, would."""
    rows = Rows(HINGE, np.float32([[1, 0], [10, 0]]), np.array([1.0, -1.0]), 0.04)
    counts = np.array([0.04 * B, 0.0396 * B], np.int32)
    dual = rows.proven(np.array([-0.1, 0.0, 0.0]), counts, 4.0, 1.0)
    assert 0.9 * rows.balanced(counts) < dual <= rows.balanced(counts)


def test_another_feature_changes_neither_the_best_weights_nor_the_counts():
    at = 4096.0
    learner = Learner(Settings(C=1.0, intercept="free"), 2, Facts(2, 2.0, 1.0, 1.0, 1.0, ()))
    running, best = learner.running, learner.best
    running.settle(np.ones(2), 3.0 * at, 0.0, 5)  # Σ c_k l_k = 3
    best.bias, best.candidate = 0.5 / at, np.array([1.0, 2.0, 0.25 / at])
    augment(learner, 4.0)
    assert (running.bias, 4.0 * best.bias, 4.0 * best.candidate[-1]) == (12.0, 0.5, 0.25)
