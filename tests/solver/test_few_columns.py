"""Few columns: all rows outside memory are one quadratic, and few readings are left."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import streamtron
from streamtron.core.config import Settings
from streamtron.core.losses import SQUARED_HINGE, expansion
from streamtron.solver import few_columns
from streamtron.solver.learner import Memory
from streamtron.solver.targets import Targets
from tests.helpers.sources import (
    ListData,
    csr,
    dense,
    random_rows,
    trained,
)
from tests.helpers.svm_text import svm_lines

COLUMNS = 20


class Sample:
    """Rows as streamtron and as numpy have them, with costs and signs."""

    def __init__(self, seed: int, number: int) -> None:
        plain, labels = random_rows(seed, number, COLUMNS)
        self.rows = csr(plain)
        self.signs = np.array(labels, dtype=np.int8)
        self.patterns = self.signs[:, None] * np.c_[dense(plain, COLUMNS), np.ones(number)]
        self.cost = np.random.default_rng(seed).choice([0.0, 0.5, 3.0], size=number)

    def slice(self, start: int, stop: int) -> tuple[Any, ...]:
        rows = self.rows._replace(indptr=self.rows.indptr[start : stop + 1])
        inside = expansion(SQUARED_HINGE, np.zeros(stop - start))
        return rows, self.signs[start:stop], self.cost[start:stop], 1.0, inside


def test_the_nearest_rows_to_the_margin_are_held_however_rows_are_cut_into_chunks():
    sample, found = Sample(4, 300), []
    settings = Settings(C=2.0, active_set=3000, max_epochs=1)
    source = ListData(sample.rows, sample.signs.tolist())
    [chunk] = source.chunks()
    for cut in (300, 41, 7):
        learner = trained(source, settings)
        learner.memory, learner.progress.finished = Memory.FEW_COLUMNS, None
        learner.active.clear()
        few_columns.begin(learner)
        targets = learner.targets(chunk)
        for start in range(0, 300, cut):
            rows = sample.slice(start, min(300, start + cut))[0]
            stretch = slice(start, start + cut)
            names = ("numbers", "signs", "costs", "squares")
            some = Targets(*(getattr(targets, name)[stretch] for name in names))
            few_columns.take_rows(learner, rows, some)
        outside = learner.outside
        sums = outside.gram.tobytes(), outside.linear.tobytes(), outside.constant
        found.append((*sums, outside.reach, learner.active.numbers.tolist()))
        assert 0 < learner.active.nbytes <= 3000
    assert found[0] == found[1] == found[2]
    far, held = np.abs(1.0 - sample.patterns @ outside.v), np.zeros(300, bool)
    held[learner.active.numbers] = True
    assert 10 < held.sum() < 40
    assert far[held].max() <= outside.reach
    assert far[~held].min() >= outside.reach - 1e-12


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
