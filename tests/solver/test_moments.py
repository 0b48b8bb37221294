"""Ridge with few columns is proven by the one reading that sums the moments of its rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

import streamtron
from streamtron import StreamtronRegressor
from streamtron.core.config import Machine
from streamtron.core.events import Event, ReadingDone
from tests.helpers.svm_text import svm_lines

Floats = NDArray[np.float64]


def _rows(seed: int, rows: int = 400, columns: int = 3) -> tuple[Floats, Floats]:
    """Values whose columns differ by orders of magnitude, and numbers far from 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-3, 4, columns) + rng.normal()
    X = X.astype(np.float32).astype(np.float64)
    t = X @ rng.normal(size=columns) + rng.normal(size=rows) * 10.0 ** rng.integers(-6, 2)
    return X, t + 10.0 ** rng.integers(-2, 5)


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
    assert np.array_equal(forgotten.model.weights, streamtron.fit(first, **how).weights)


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
