"""The elastic net, L1 and the bias: the optimum that other solvers find is between the bounds, in
memory and out of it, and after every change of the rows."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize

import streamtron
from streamtron import Settings, StreamtronClassifier
from streamtron.core.errors import SettingsError
from streamtron.core.losses import LOSSES, slopes, values
from streamtron.runs.report import Outcome
from streamtron.solver import joint
from streamtron.solver.progress import BestWeights
from tests.helpers.svm_text import svm_lines, write_shards
from tests.helpers.user_rows import list_rows

SHARDS, ROWS, COLUMNS = 4, 100, 60

losses = pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
problems = pytest.mark.parametrize(
    ("loss", "ratio"), [("squared_hinge", 0.3), ("log_loss", 0.9), ("squared_hinge", 1.0)]
)

Matrix = NDArray[np.float64]


def drawn(seed: int) -> tuple[Matrix, Matrix]:
    """Sparse rows of two classes that overlap, told apart by a few columns; and their signs."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(SHARDS * ROWS, COLUMNS)), 3).astype(np.float32).astype(float)
    X[rng.random(X.shape) > 0.2] = 0.0
    scores = X[:, :9] @ rng.normal(size=9) + 0.3 * rng.normal(size=len(X))
    return X, np.where(scores > 0.2, 1.0, -1.0)


def wide(seed: int) -> tuple[Matrix, Matrix]:
    """Rows as of text, of more columns than a matrix may have rows."""
    rng = np.random.default_rng(seed)
    X = np.zeros((SHARDS * 2 * ROWS, 1200))
    for row in X:
        row[(1200.0 ** rng.random(12)).astype(int)] = 0.3
    X = X.astype(np.float32).astype(float)
    scores = X[:, :90] @ rng.normal(size=90) + 0.1 * rng.normal(size=len(X))
    return X, np.where(scores > 0.1, 1.0, -1.0)


class Optimum(NamedTuple):
    """The least P, and how many weights are 0 there."""

    primal: float
    zeros: int


def least(
    X: Matrix, costs: Matrix, signs: Matrix, loss: str, ratio: float, intercept: str = "penalised"
) -> Optimum:
    """The optimum of rows, ρ = 1, with w as the difference of two vectors ≥ 0, by L-BFGS-B."""
    free = intercept == "free"
    n = X.shape[1]

    def objective(z: Matrix) -> tuple[float, Matrix]:
        w, bias = z[:n] - z[n:-1], z[-1]
        m = signs * (X @ w + bias)
        pull = -costs * slopes(LOSSES[loss], m) * signs
        ridge = (1.0 - ratio) * w + X.T @ pull
        gradient = np.concatenate((ridge + ratio, ratio - ridge, [pull.sum() + bias * (not free)]))
        penalties = ratio * z[:-1].sum() + 0.5 * (1.0 - ratio) * w @ w + 0.5 * bias**2 * (not free)
        return penalties + costs @ values(LOSSES[loss], m), gradient

    bounds = [(0.0, None)] * (2 * n) + [(0.0, 0.0) if intercept == "none" else (None, None)]
    options = {"maxiter": 50_000, "maxfun": 500_000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 50}
    start = np.zeros(2 * n + 1)
    best = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    w = np.abs(best.x[:n] - best.x[n:-1])
    return Optimum(float(best.fun), int(np.count_nonzero(w <= 1e-5 * w.max())))


def write(place: Path, X: Matrix, labels: Any) -> list[str]:
    """Shards of rows in their order."""
    return [str(path) for path in write_shards(place, svm_lines(X, labels), len(X) // ROWS)]


def fitted(
    place: Path, shards: list[str], loss: str, ratio: float, model: str = "m", **names: Any
) -> Outcome:
    settings = Settings(loss=loss, index_base=1, **penalty_of(ratio), **names)
    return streamtron.run(shards, settings, model=place / model)


def penalty_of(ratio: float) -> dict[str, Any]:
    names = {0.0: {"penalty": "l2"}, 1.0: {"penalty": "l1"}}
    return names.get(ratio, {"penalty": "elasticnet", "l1_ratio": ratio})


def check_bounds(certificate: Any, optimum: Optimum, tol: float) -> None:
    """The optimum is between bounds that are as near each other as was asked for, and as many
    weights are 0 there as are proven to be."""
    assert certificate["relative_duality_gap"] <= tol
    assert certificate["dual_objective"] <= optimum.primal * (1.0 + 1e-9)
    assert certificate["primal_objective"] >= optimum.primal * (1.0 - 1e-9)
    assert certificate.get("zero_columns", 0) <= optimum.zeros


@problems
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"tol": 1e-6},
        {"intercept": "free"},
        {"intercept": "none", "tol": 1e-6},
        {"intercept": "free", "active_set": 20_000},
        {"active_set": 8_000, "C": 0.2},
        {"class_weight": {"1": 3.0, "-1": 0.5}},
    ],
    ids=lambda how: " ".join(f"{name} {value}" for name, value in how.items()) or "in memory",
)
def test_the_optimum_is_between_the_bounds(loss, ratio, how, tmp_path):
    X, signs = drawn(1)
    how = {"tol": 1e-3, **how}
    outcome = fitted(tmp_path, write(tmp_path, X, signs), loss, ratio, **how)
    costs = np.full(len(X), how.get("C", 1.0))
    if "class_weight" in how:
        costs *= np.where(signs > 0, 3.0, 0.5)
    optimum = least(X, costs, signs, loss, ratio, how.get("intercept", "penalised"))
    check_bounds(outcome.report["certificate"], optimum, how["tol"])
    if how["tol"] == 1e-6:
        assert outcome.report["certificate"].get("zero_columns", 0) >= 0.9 * optimum.zeros
    assert 0 < outcome.model.sparse_weights.nnz == outcome.report["nonzero_weights"] < COLUMNS


@pytest.mark.parametrize(
    ("loss", "ratio"), [("squared_hinge", 0.99), ("log_loss", 1.0), ("log_loss", 1.0 - 1e-9)]
)
def test_many_columns_and_a_tenth_of_the_rows_in_memory_take_few_readings(loss, ratio, tmp_path):
    X, signs = wide(1)
    outcome = fitted(tmp_path, write(tmp_path, X, signs), loss, ratio, tol=1e-3, active_set=9_000)
    check_bounds(outcome.report["certificate"], least(X, np.ones(len(X)), signs, loss, ratio), 1e-3)
    assert outcome.report["readings"] <= 6


@problems
@pytest.mark.parametrize("how", [{}, {"active_set": 8_000}, {"parts": 3}], ids=str)
def test_a_column_taken_for_0_is_not_moved_but_counted(loss, ratio, how, tmp_path, monkeypatch):
    X, signs = drawn(12)
    costs, out = np.ones(len(X)), np.array([2, 5])
    monkeypatch.setattr(BestWeights, "zeros", property(lambda _: out))
    shards = write(tmp_path, X, signs)
    outcome = fitted(tmp_path, shards, loss, ratio, tol=1e-6, max_epochs=4, **how)
    assert not outcome.model.weights[out].any()
    certificate, optimum = outcome.report["certificate"], least(X, costs, signs, loss, ratio)
    without = least(np.delete(X, out, axis=1), costs, signs, loss, ratio)
    assert without.primal > 1.01 * optimum.primal
    assert certificate["primal_objective"] == pytest.approx(without.primal, rel=1e-3)
    assert (certificate["dual_objective"] or 0.0) <= optimum.primal


@problems
@pytest.mark.parametrize("C", [0.1, 3.0])
def test_parts_find_the_optimum_of_all_rows(loss, ratio, C, tmp_path, monkeypatch):
    X, signs = drawn(10)
    shards, how = write(tmp_path, X, signs), {"tol": 1e-5, "parts": 3, "C": C}
    found = fitted(tmp_path, shards[:3], loss, ratio, **how)
    costs = np.full(len(X), C)
    costs[3 * ROWS :] = 0.0
    optimum = least(X, costs, signs, loss, ratio)
    check_bounds(found.report["certificate"], optimum, 1e-5)
    assert found.report["readings"] == 1.0
    assert found.report["rounds"] <= 25
    if C < 1.0:  # a larger C takes thousands of rounds
        with monkeypatch.context() as patch:
            patch.setattr(joint, "SPARSE", 9)  # columns that a step may move
            few = fitted(tmp_path, shards[:3], loss, ratio, "few", **how)
        check_bounds(few.report["certificate"], optimum, 1e-5)
    costs[:] = C
    updated = streamtron.update(tmp_path / "m", shards[3:])
    check_bounds(updated.report["certificate"], least(X, costs, signs, loss, ratio), 1e-5)


@problems
def test_rows_that_come_and_go_leave_the_optimum_of_the_others(loss, ratio, tmp_path):
    X, signs = drawn(3)
    X[: 3 * ROWS, 50] *= 0.01
    X[3 * ROWS :, 50] = signs[3 * ROWS :]  # a column that is proven to weigh 0 without these
    shards, model = write(tmp_path, X, signs), str(tmp_path / "m")
    outcome = fitted(tmp_path, shards[:3], loss, ratio, tol=1e-6, C=0.1)
    assert outcome.report["certificate"]["zero_columns"]
    assert not outcome.model.weights[50]
    updated = streamtron.update(model, shards[3:])
    costs = np.full(len(X), 0.1)
    check_bounds(updated.report["certificate"], least(X, costs, signs, loss, ratio), 1e-6)
    assert updated.model.weights[50]
    forgotten = streamtron.forget(model, rows=list_rows(tmp_path / "gone", {"0.svm": [*range(39)]}))
    costs[:39] = 0.0
    check_bounds(forgotten.report["certificate"], least(X, costs, signs, loss, ratio), 1e-6)


def test_a_scan_that_new_rows_continue_has_columns_numbered_as_they_are_with_these(tmp_path):
    X, signs = drawn(3)
    X[:390, 3] = 0.0
    old, new = map(str, write_shards(tmp_path, svm_lines(X, signs), [390]))
    fitted(tmp_path, [old], "squared_hinge", 1.0, tol=1e-4)
    proven = streamtron.update(str(tmp_path / "m"), new).report["certificate"]
    check_bounds(proven, least(X, np.ones(len(X)), signs, "squared_hinge", 1.0), 1e-4)
    assert proven["zero_columns"]


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_a_run_can_change_again_when_the_last_columns_are_forgotten(ratio, tmp_path):
    X, signs = drawn(3)
    X[: 3 * ROWS, -5:] = 0.0
    shards, model = write(tmp_path, X, signs), str(tmp_path / "m")
    fitted(tmp_path, shards, "log_loss", ratio, tol=1e-3, active_set=8_000)
    assert streamtron.forget(model, shards[3]).model.columns == COLUMNS - 5
    updated = streamtron.update(model, shards[3], again=True)
    optimum = least(X, np.ones(len(X)), signs, "log_loss", ratio)
    check_bounds(updated.report["certificate"], optimum, 1e-3)


@problems
def test_a_model_is_proven_again_by_its_witness_and_without_it(loss, ratio, tmp_path):
    X, signs = drawn(5)
    shards, model = write(tmp_path, X, signs), str(tmp_path / "m")
    outcome = fitted(tmp_path, shards, loss, ratio, tol=1e-4, C=0.05)
    optimum = least(X, np.full(len(X), 0.05), signs, loss, ratio)
    proven = streamtron.certify(model).certificate
    check_bounds(proven.to_dict(), optimum, 1e-4)
    primal = outcome.report["certificate"]["primal_objective"]
    assert proven.primal == pytest.approx(primal, rel=1e-12)
    assert proven.zero_columns > 0
    searched = streamtron.certify(model, shards).certificate
    check_bounds(searched.to_dict(), optimum, 1e-3)
    assert searched.zero_columns > 0
    if ratio == 1.0:
        none = fitted(tmp_path, shards, loss, ratio, "none", C=1e-6).model
        assert not none.weights.any()
        proven = streamtron.certify(tmp_path / "none").certificate
        assert proven.relative_duality_gap == none.certificate["relative_duality_gap"] < 1e-4


@pytest.mark.parametrize("ratio", [0.5, 0.99])
def test_decisions_of_the_optimum_of_an_elastic_net_are_within_their_bounds(ratio, tmp_path):
    X, signs = drawn(9)
    shards = write(tmp_path, X, signs)
    rough, exact = (
        fitted(tmp_path, shards, "log_loss", ratio, f"m{tol}", tol=tol).model
        for tol in (0.01, 1e-9)
    )
    [part] = streamtron.predict(rough, shards[0], certain=True)
    least, most = part.bounds
    best = exact.decision_function(X[:ROWS])
    assert ((least <= best + 1e-6) & (best <= most + 1e-6)).all()
    assert (most - least).max() < 30.0 * np.abs(best).max()


def test_what_a_penalty_cannot_do_is_refused_in_a_sentence(tmp_path):
    X, signs = drawn(7)
    shards = write(tmp_path, X, signs)
    with pytest.raises(SettingsError, match=r"parts keep every row that matters .* --parts 1"):
        fitted(tmp_path, shards, "log_loss", 1.0, parts=2, active_set=8_000)
    model = fitted(tmp_path, shards, "log_loss", 1.0).model
    free = fitted(tmp_path, shards, "log_loss", 0.0, "free", intercept="free").model
    assert streamtron.certify(free, shards).decision_radius == np.inf
    for unsure, sentence in ((model, "no label is certain"), (free, "--intercept penalised")):
        with pytest.raises(SettingsError, match=sentence):
            list(streamtron.predict(unsure, shards[0], certain=True))
    with pytest.raises(SettingsError, match="l1_ratio is for --penalty elasticnet"):
        StreamtronClassifier(l1_ratio=0.3).fit(X, signs)
    with pytest.raises(SettingsError, match="partial_fit"):
        StreamtronClassifier(penalty="l1").partial_fit(X, signs, classes=[-1.0, 1.0])


def off_centre(seed: int, shift: float = 0.0) -> tuple[Matrix, Matrix]:
    """Rows far from the origin by a shift, of two classes that overlap, and their signs."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(SHARDS * ROWS, 12)) + shift, 3).astype(np.float32).astype(float)
    return X, np.where(X @ rng.normal(size=12) + 2.0 * rng.normal(size=len(X)) > 1.0, 1.0, -1.0)


@losses
@pytest.mark.parametrize("C", [0.5, 50.0])
@pytest.mark.parametrize(
    "how",
    [{}, {"parts": 3}, {"active_set": 8_000}, {"class_weight": {"1": 1.0}}],
    ids=["one part", "three parts", "a part of the rows in memory", "class weights"],
)
def test_the_optimum_with_a_free_bias_is_between_the_bounds(loss, C, how, tmp_path):
    X, signs = off_centre(0, shift=1.0)
    names = {"C": C, "intercept": "free", "tol": 1e-5, **how}
    proven = fitted(tmp_path, write(tmp_path, X, signs), loss, 0.0, **names).report["certificate"]
    check_bounds(proven, least(X, np.full(len(X), C), signs, loss, 0.0, "free"), 1e-5)
    assert proven["upper_bound"] is None  # margins are of a bias that is penalised


def test_parts_go_on_with_the_center_that_they_had_where_new_numbers_have_another_mean(tmp_path):
    X, _ = off_centre(2)
    y = np.round(X[:, 0] + np.where(np.arange(len(X)) < 2 * ROWS, 100.0, 150.0), 3)
    shards, how = write(tmp_path, X, y), {"intercept": "free", "tol": 1e-6, "parts": 2}
    whole = fitted(tmp_path, shards, "squared_error", 0.0, "whole", **how)
    fitted(tmp_path, shards[:2], "squared_error", 0.0, **how)
    updated = streamtron.update(str(tmp_path / "m"), shards[2:])
    assert updated.report["certificate"]["relative_duality_gap"] <= 1e-6
    assert updated.model.bias == pytest.approx(whole.model.bias, rel=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_free_bias_is_certified_where_rows_are_solved_in_blocks(loss, tmp_path):
    """A twentieth of the rows is held; the bias is far from 0."""
    random = np.random.default_rng(5)
    X = sparse.random(800, 1_200, 0.025, rng=random, dtype=np.float32).toarray()
    score = X @ random.normal(size=1_200) + 2.0
    targets = score + random.normal(size=800)
    y = targets if LOSSES[loss].numbers else np.where(targets > 1.0, 1.0, -1.0)
    if loss == "poisson":
        y = np.maximum(y, 0.0)
    shards, names = write(tmp_path, X, y), {"intercept": "free", "tol": 0.05}
    proven, known = (
        fitted(tmp_path, shards, loss, 0.0, f"m{len(few)}", **names, **few).report["certificate"]
        for few in ({"active_set": 12_000, "max_epochs": 20}, {})
    )
    assert proven["relative_duality_gap"] <= 0.05
    assert proven["dual_objective"] <= known["primal_objective"]
    assert proven["primal_objective"] >= known["dual_objective"]
