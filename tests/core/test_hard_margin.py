"""Δ = 0: the hard margin, by the paper's procedure."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

import streamtron
from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.solver.learner import Learner
from tests.helpers.oracle import Oracle, Row, gamma_d
from tests.helpers.sources import ListData, csr, dense, random_rows, trained
from tests.helpers.svm_text import svm_lines

COLUMNS = 6
ROWS = 120


def separable(seed: int, room: float, n: int = ROWS) -> tuple[list[Row], list[int]]:
    """Random rows with one more column, ±room by label, so that γ_d ≥ room."""
    rows, labels = random_rows(seed, n, COLUMNS)
    return [[*row, (COLUMNS, room * l)] for row, l in zip(rows, labels, strict=True)], labels


def fitted(rows: Sequence[Row], labels: Sequence[int], **chosen: Any) -> Learner:
    source = ListData(csr(rows), labels, block_rows=32)
    return trained(source, Settings(delta=0, **chosen), positive=1)


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("room", [0.25, 2.0])
@pytest.mark.parametrize(
    ("chosen", "ending"),
    [
        ({"stage": "1,0.1", "tol": 0.3}, "certified"),
        ({"stage": "1,0.1", "tol": 0.3, "active_set": 2_000}, "certified"),
        ({"faithful": True}, "converged"),
    ],
    ids=["stages", "stages, few rows held", "faithful"],
)
def test_the_best_margin_of_separable_rows_is_bracketed(chosen, ending, room, rho):
    """The lower bound is γ'_d of the weights as they are, recomputed in plain lists."""
    rows, labels = separable(0, room)
    learner = fitted(rows, labels, rho=rho, **chosen)
    found = learner.certificate
    assert learner.finished == ending
    assert found.relative_duality_gap <= 0.3
    low, high = gamma_d(rows, labels, [0.0] * len(rows), rho)
    assert found.primal_margin <= high * (1 + 1e-9)
    assert found.upper_bound >= low * (1 - 1e-9)
    w, bias = learner.best.w.tolist(), learner.best.bias
    oracle = Oracle(rows, labels, [0.0] * len(rows), rho, width=len(w))
    norm = math.sqrt(math.fsum([*(x * x for x in w), bias * bias]))
    least = min(oracle.margins(w, bias))
    assert least / norm == pytest.approx(found.primal_margin, rel=1e-9)
    assert least == pytest.approx(1.0, rel=1e-9)


def test_of_inseparable_rows_no_margin_is_proven():
    rows, labels = random_rows(0, ROWS, COLUMNS)
    learner = fitted([row or [(0, 1.0)] for row in rows], labels, stage="1", max_epochs=5)
    assert learner.finished == "epoch limit"
    assert learner.certificate.relative_duality_gap == 1.0
    assert learner.certificate.to_dict()["primal_margin"] is None
    assert learner.certificate.upper_bound >= 0.0


@pytest.mark.parametrize("stage", ["auto", "ascent"])
def test_a_hard_margin_is_refused_outside_the_procedure_of_the_paper(stage):
    with pytest.raises(SettingsError, match="delta 0, the hard margin, is for the paper's"):
        Settings(delta=0, stage=stage)


def test_a_hard_margin_is_proven_again_by_its_dual_variables_alone(tmp_path):
    rows, labels = separable(0, 2.0)
    shard, model = tmp_path / "rows.svm", tmp_path / "m"
    shard.write_text("".join(svm_lines(dense(rows, COLUMNS + 1), labels)))
    fitted = streamtron.fit(shard, delta=0, stage="1,0.1", tol=0.3, model=model)
    proof = streamtron.certify(model).certificate
    assert proof.relative_duality_gap == fitted.certificate["relative_duality_gap"] <= 0.3
    with pytest.raises(SettingsError, match="is proven by its dual variables"):
        streamtron.certify(model, shard)
