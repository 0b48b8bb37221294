"""Ridge with few columns is proven by the one reading that sums the moments of its rows."""

import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge

import streamtron
from streamtron import StreamtronRegressor
from streamtron.core.config import Machine
from streamtron.core.events import Event, ReadingDone
from tests.helpers.examples import examples
from tests.helpers.svm_text import svm_lines

Floats = NDArray[np.float64]


def _rows(seed: int, rows: int = 400, columns: int = 3) -> tuple[Floats, Floats]:
    """Values whose columns differ by orders of magnitude, and numbers far from 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-3, 4, columns) + rng.normal()
    X = X.astype(np.float32).astype(np.float64)
    t = X @ rng.normal(size=columns) + rng.normal(size=rows) * 10.0 ** rng.integers(-6, 2)
    return X, t + 10.0 ** rng.integers(-2, 5)


class Exact:
    """½ Σ p_j v_j² + Σ C_k (z_k·v − t_k)²/2 in rational numbers, z_k = (x_k, ρ)."""

    def __init__(self, X: Floats, t: Floats, costs: Floats, rho: float, free: bool) -> None:
        self.z = [[*map(Fraction, row), Fraction(rho)] for row in X.tolist()]
        self.t, self.costs = [*map(Fraction, t.tolist())], [*map(Fraction, costs.tolist())]
        self.p = [Fraction(1)] * X.shape[1] + [Fraction(0 if free else 1)]

    def primal(self, v: list[Fraction]) -> Fraction:
        rows = zip(self.z, self.t, self.costs, strict=True)
        squares = (c * (sum(map(Fraction.__mul__, z, v)) - t) ** 2 for z, t, c in rows)
        return (sum(p * a * a for p, a in zip(self.p, v, strict=True)) + sum(squares)) / 2

    def optimum(self) -> list[Fraction]:
        size = range(len(self.p))
        rows = [*zip(self.z, self.t, self.costs, strict=True)]
        table = [
            [sum((c * z[i] * z[j] for z, _, c in rows), self.p[i] * (i == j)) for j in size]
            + [sum(c * z[i] * t for z, t, c in rows)]
            for i in size
        ]
        for i in size:
            table[i] = [a / table[i][i] for a in table[i]]
            for k in size:
                factor = table[k][i] if k != i else Fraction(0)
                table[k] = [a - factor * b for a, b in zip(table[k], table[i], strict=True)]
        return [row[-1] for row in table]


@pytest.mark.parametrize("tol", [0.5, 1e-6])
@pytest.mark.parametrize("intercept", ["free", "penalised"])
@pytest.mark.parametrize("seed", range(examples(25)))
def test_both_bounds_hold_in_exact_arithmetic_after_a_reading_and_after_two(seed, intercept, tol):
    """The second sums what the weights of the first leave, which may be 10⁻¹⁰ of the numbers."""
    X, t = _rows(seed)
    weights = np.random.default_rng(seed).integers(0, 4, len(t)) * 0.3
    C, rho, how = 10.0 ** (seed % 5 - 2), 3.0, {"intercept": intercept, "tol": tol, "max_iter": 2}
    model = StreamtronRegressor(C=C, intercept_scaling=rho, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        proof = model.fit(X, t, sample_weight=weights).certificate_
    assert len(proof["history"]) <= (1 if tol == 0.5 else 2)
    exact = Exact(X, t, C * weights, rho, free=intercept == "free")
    v = [*map(Fraction, model.coef_.tolist()), Fraction(model.intercept_) / Fraction(rho)]
    least = exact.primal(exact.optimum())
    assert least <= exact.primal(v) <= Fraction(proof["primal_objective"])
    assert Fraction(proof["dual_objective"] or 0.0) <= least
    assert proof["rows_scanned"] == np.count_nonzero(weights)


def test_residuals_that_rounding_hides_are_summed_in_a_second_reading():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4)).astype(np.float32).astype(np.float64)
    t = X @ [1e6, -1e6, 1e6, 1e6] + rng.normal(size=3000)
    model = StreamtronRegressor(C=1e9, fit_intercept=False, tol=1e-3).fit(X, t)
    gaps = [reading["gap"] for reading in model.certificate_["history"]]
    assert len(gaps) == 2
    assert gaps[1] <= 1e-3 < gaps[0]
    ridge = Ridge(alpha=1e-9, fit_intercept=False, solver="cholesky").fit(X, t)
    assert model.coef_ == pytest.approx(ridge.coef_, rel=1e-9)


def _write(path: Path, X: Floats, t: Floats) -> str:
    path.write_text("".join(svm_lines(X, t)))
    return str(path)


def test_values_of_c_share_a_reading_and_are_each_the_model_of_a_fit_alone(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9000, 5)).astype(np.float32).astype(np.float64)
    t = X @ rng.normal(size=5) + rng.normal(size=9000) + 20.0
    train, valid = (_write(tmp_path / f"{k}.svm", X[k::2], t[k::2]) for k in range(2))
    prices = np.logspace(-3, 3, 20).tolist()
    how: dict[str, Any] = {"loss": "squared_error", "tol": 1e-4}
    sweep = streamtron.sweep(train, valid=valid, C=prices, **how, machine=Machine(threads=2))
    assert {trial.costs.readings for trial in sweep.trials} == {1.0}
    for trial in sweep.trials[::6]:
        alone = streamtron.fit(train, C=trial.settings.C, **how).certificate
        for name in ("primal_objective", "dual_objective"):
            assert trial.certificate[name] == alone[name]


def test_a_changed_run_reads_all_rows_once_and_is_the_fit_of_its_rows(tmp_path):
    first, second = (_write(tmp_path / f"{k}.svm", *_rows(3 + k)) for k in range(2))
    model, how = tmp_path / "model", {"loss": "squared_error", "tol": 1e-3}
    streamtron.fit(first, **how, model=model)
    afresh = streamtron.fit([first, second], **how).certificate
    updated = streamtron.update(model, second)
    assert updated.report["readings"] <= 1.5  # the new rows are read by themselves first
    assert updated.model.certificate["dual_objective"] == afresh["dual_objective"]
    proof = streamtron.certify(model).certificate  # though the run has no counts
    assert proof.relative_duality_gap <= 1e-3
    assert proof.dual <= afresh["primal_objective"]
    forgotten = streamtron.forget(model, second)
    assert forgotten.report["readings"] == 1.0
    alone = streamtron.fit(first, **how)
    assert np.array_equal(forgotten.model.weights, alone.weights)


def test_columns_that_turn_out_to_be_many_are_trained_as_others_are(tmp_path):
    rng = np.random.default_rng(0)
    few = "".join(f"{rng.normal()!r} {j}:1\n" for j in rng.integers(1, 30, 4096).tolist())
    many = "".join(f"{rng.normal()!r} {j}:1\n" for j in range(1, 1500))
    (tmp_path / "a.svm").write_text(few)
    (tmp_path / "b.svm").write_text(many)
    events: list[Event] = []
    model = streamtron.fit(tmp_path / "*.svm", loss="squared_error", tol=1e-3, listen=events.append)
    assert 1 < sum(isinstance(event, ReadingDone) for event in events) <= 4
    assert model.certificate["relative_duality_gap"] <= 1e-3
