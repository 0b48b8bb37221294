"""Few columns: rows outside memory are one quadratic. What it costs: ``runs/test_cost.py``."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import streamtron
from streamtron.core.config import Settings
from tests.helpers.sources import (
    ListData,
    csr,
    random_rows,
    trained,
)
from tests.helpers.svm_text import svm_lines

COLUMNS = 20


@pytest.mark.parametrize("C", [0.01, 1.0, 1e4])
def test_ridge_with_a_tenth_of_the_rows_in_memory_takes_two_readings(C, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9000, 5)).astype(np.float32).astype(np.float64)
    t = X @ rng.normal(size=5) + rng.normal(size=9000) + 20.0
    (tmp_path / "rows.svm").write_text("".join(svm_lines(X, t)))
    how: dict[str, Any] = {"loss": "squared_error", "C": C, "tol": 1e-6, "active_set": 60_000}
    model = streamtron.fit(tmp_path / "rows.svm", **how, model=tmp_path / "m")
    assert len(model.certificate["history"]) <= 2
    ridge = Ridge(alpha=1.0 / C, solver="cholesky").fit(X, t)
    assert model.weights == pytest.approx(ridge.coef_, rel=1e-5)
    assert model.bias == pytest.approx(ridge.intercept_, rel=1e-5)
    assert streamtron.certify(tmp_path / "m").certificate.relative_duality_gap <= 1e-6


@pytest.mark.parametrize(
    "how",
    [
        {"C": 50.0, "tol": 1e-9},
        {"active_set": 8000, "tol": 1e-9},
        {"active_set": 8000, "tol": 1e-6, "loss": "log_loss"},
        {"active_set": 12_000, "tol": 1e-6, "loss": "log_loss", "penalty": "l1"},
        {"tol": 1e-6, "loss": "log_loss", "penalty": "l1"},
    ],
    ids=str,
)
def test_columns_of_a_row_may_lie_in_any_order_as_ranks_leave_them(how):
    plain, labels = random_rows(8, 300, COLUMNS)
    mixed = [[row[k] for k in np.random.default_rng(1).permutation(len(row))] for row in plain]
    found = [
        trained(ListData(csr(rows), labels, block_rows=32), Settings.from_dict(how))
        for rows in (plain, mixed)
    ]
    assert [learner.finished for learner in found] == ["certified"] * 2
    readings = [learner.progress.readings for learner in found]
    assert abs(readings[0] - readings[1]) <= 1
    primals = [learner.certificate.primal for learner in found]
    assert primals[0] == pytest.approx(primals[1], rel=how["tol"])
