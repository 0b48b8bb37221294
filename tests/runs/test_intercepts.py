"""A bias that is penalised, one that is not, and none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

import streamtron
from streamtron import Settings
from streamtron.core.errors import SettingsError
from streamtron.core.losses import LOSSES, SQUARED_ERROR
from streamtron.core.rows import make_rows
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets
from tests.helpers.svm_text import svm_lines, write_shards
from tests.runs.test_penalties import least

ROWS, COLUMNS = 400, 12


def drawn(seed: int, shift: float = 0.0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows far from the origin by a shift, of two classes that overlap, and their signs."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(ROWS, COLUMNS)) + shift, 3).astype(np.float32).astype(float)
    signs = np.where(X @ rng.normal(size=COLUMNS) + 2.0 * rng.normal(size=ROWS) > 1.0, 1.0, -1.0)
    return X, signs


def optimum(X: NDArray[np.float64], signs: NDArray[np.float64], C: float, loss: str) -> float:
    """The least ½ ‖w‖² + C Σ φ(l (w·x + b))."""
    return least(X, np.full(len(X), C), signs, loss, 0.0, free=True).primal


def fitted(place: Path, X: Any, signs: Any, **names: Any) -> streamtron.Outcome:
    shards = write_shards(place, svm_lines(X, signs), 3)
    return streamtron.run(shards, Settings(**names), model=place / "m")


@pytest.mark.parametrize("loss", ["log_loss", "squared_hinge"])
@pytest.mark.parametrize("C", [0.5, 50.0])
@pytest.mark.parametrize(
    "how",
    [{}, {"parts": 3}, {"active_set": 8_000}, {"class_weight": {"1": 1.0}}],
    ids=["one part", "three parts", "a part of the rows in memory", "class weights"],
)
def test_the_optimum_with_a_free_bias_is_between_the_bounds(loss, C, how, tmp_path):
    X, signs = drawn(0, shift=1.0)
    outcome = fitted(tmp_path, X, signs, loss=loss, C=C, intercept="free", tol=1e-5, **how)
    proven, least = outcome.report["certificate"], optimum(X, signs, C, loss)
    assert outcome.stop_reason == "certified"
    assert proven["dual_objective"] <= least * (1 + 1e-9)
    assert least <= proven["primal_objective"] * (1 + 1e-12)
    assert proven["upper_bound"] is None  # margins are of a bias that is penalised


def test_a_free_bias_moves_with_the_labels_and_a_penalised_one_is_held_back(tmp_path):
    X, signs = drawn(1)
    signs[:] = np.where(np.arange(ROWS) % 10 == 0, -1.0, 1.0)
    how = {"loss": "log_loss", "C": 0.01, "tol": 1e-6}
    free, held_back, none = (
        fitted(tmp_path / intercept, X, signs, intercept=intercept, **how).model.bias
        for intercept in ("free", "penalised", "none")
    )
    assert free == pytest.approx(np.log(9.0), rel=0.02)
    assert 0.0 < held_back < 0.9 * free
    assert none == 0.0


def test_no_bound_is_claimed_where_the_free_bias_may_be_as_large_as_rho_allows(tmp_path):
    """Rows 10⁶ from the origin, where float32 leaves 1/16 of a unit: the bias is about 10⁶."""
    X, signs = drawn(2)
    X = np.round(16.0 * X) / 16.0
    outcome = fitted(tmp_path, X + 1e6, signs, loss="log_loss", intercept="free", max_epochs=3)
    proven, least = outcome.report["certificate"], optimum(X, signs, 1.0, "log_loss")
    assert (proven["dual_objective"] or 0.0) <= least


@pytest.mark.parametrize("loss", ["squared_error", "huber", "log_loss", "squared_hinge"])
def test_a_free_bias_is_certified_where_rows_are_solved_in_blocks(loss, tmp_path):
    """A twentieth of the rows is held; the bias is far from 0."""
    random = np.random.default_rng(5)
    X = sparse.random(800, 1_200, 0.025, rng=random, dtype=np.float32).toarray()
    score = X @ random.normal(size=1_200) + 2.0
    targets = score + random.normal(size=800)
    y = targets if LOSSES[loss].numbers else np.where(targets > 1.0, 1.0, -1.0)
    names = {"loss": loss, "intercept": "free", "C": 1.0, "tol": 0.05}
    few = {"active_set": 12_000, "max_epochs": 14}
    proven = fitted(tmp_path, X, y, **few, **names).report["certificate"]
    known = fitted(tmp_path / "all", X, y, **names).report["certificate"]
    assert proven["relative_duality_gap"] <= 0.05
    assert proven["dual_objective"] <= known["primal_objective"]
    assert proven["primal_objective"] >= known["dual_objective"]


def test_ridge_with_a_free_bias_pays_no_less_than_unbalanced_duals_cost():
    """Of any weights and any counts, near the optimum and far from it."""
    below = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        n, C, b, rho = 8, float(10.0 ** random.uniform(-2, 2)), 1e6, 2.0
        X = random.normal(size=(n, 2)).astype(np.float32) * 10.0 ** random.uniform(-1, 1)
        t = np.round(random.normal(size=n) + 3.0, 3)
        A = np.column_stack([X.astype(float), np.ones(n)])
        ridge = A.T @ A * C + np.diag([1.0, 1.0, 0.0])
        best = np.linalg.solve(ridge, C * A.T @ t)
        least = 0.5 * best[:2] @ best[:2] + 0.5 * C * np.sum((A @ best - t) ** 2)
        off = random.normal(size=3) * 10.0 ** random.uniform(-6, 0)
        v, alpha = best + off, C * (t - A @ best) + random.normal(size=n) * np.abs(off[0])
        rows = make_rows(np.arange(0, 2 * n + 1, 2), np.tile([0, 1], n), X.ravel())
        squares, ones = np.square(X.astype(float)).sum(axis=1), np.ones(n, np.int8)
        targets = Targets(np.arange(n), ones, np.full(n, 0.5 / C), squares, t)
        frozen = Frozen(v[:2], v[2] / rho, 1.0, -np.inf, SQUARED_ERROR, b, rho)
        frozen.scan(rows, targets, np.round(b * alpha).astype(np.int32), rho)
        proven = frozen.certificate(hard=False)
        assert (proven.dual or 0.0) <= least * (1 + 1e-12) + 1e-12, seed
        below += (proven.dual or 0.0) > 0.5 * least
    assert below > 100  # it is a bound worth having


@pytest.mark.parametrize("names", [{"rho": 0.0}, {"delta": 0.0}, {"faithful": True}])
def test_a_free_bias_is_refused_where_nothing_could_bound_it(names):
    with pytest.raises(SettingsError, match="intercept free"):
        Settings(intercept="free", **names)


def test_no_label_is_certain_where_nothing_bounds_the_bias(tmp_path):
    X, signs = drawn(3)
    outcome = fitted(tmp_path, X, signs, intercept="free")
    shards = tmp_path / "*.svm"
    proof = streamtron.certify(tmp_path / "m", shards)
    assert proof.decision_radius == np.inf
    assert proof.certificate.relative_duality_gap <= 0.01
    with pytest.raises(SettingsError, match="--intercept penalised"):
        list(streamtron.predict(outcome.model, shards, certain=True))
