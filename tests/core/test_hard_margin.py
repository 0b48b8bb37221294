"""Δ = 0: the hard margin, certified where there is one, and said so where there is none."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.model.linear_model import LinearModel
from streamtron.runs.report import NOT_CERTIFIED
from streamtron.solver import reading
from streamtron.solver.ascent import solve_hard
from streamtron.solver.learner import Learner
from streamtron.solver.stopping import NO_MARGIN
from streamtron.solver.weights import WeightState
from tests.helpers.oracle import Oracle, Row, gamma_d
from tests.helpers.processes import here
from tests.helpers.sources import ListSource, csr, dense, random_rows, trained
from tests.helpers.svm_text import svm_lines

COLUMNS = 6
ROWS = 120


def separable(seed: int, room: float, n: int = ROWS) -> tuple[list[Row], list[int]]:
    """Random rows with one more column, ±room by label, so that γ_d ≥ room."""
    rows, labels = random_rows(seed, n, COLUMNS)
    room = float(np.float32(room))
    return [[*row, (COLUMNS, room * l)] for row, l in zip(rows, labels, strict=True)], labels


def radius(rows: Sequence[Row], rho: float) -> float:
    """R."""
    return math.sqrt(max(math.fsum(v * v for _, v in row) for row in rows) + rho * rho)


def fitted(rows: Sequence[Row], labels: Sequence[int], **chosen: Any) -> Learner:
    source = ListSource(csr(rows), labels, block_rows=32)
    return trained(source, Settings(delta=0, **chosen), positive=1)


def brackets(rows: Sequence[Row], labels: Sequence[int], **chosen: Any) -> Learner:
    """What is fitted is certified within tol, the best margin between its bounds, and the lower one
    is γ'_d of the weights as they are, recomputed in plain lists."""
    learner = fitted(rows, labels, **chosen)
    found, rho = learner.certificate, learner.settings.rho
    assert learner.progress.finished == "certified"
    assert found.relative_duality_gap <= learner.settings.tol
    low, high = gamma_d(rows, labels, [0.0] * len(rows), rho)
    assert found.primal_margin <= high * (1 + 1e-9)
    assert found.upper_bound >= low * (1 - 1e-9)
    w, bias = learner.best.weights.tolist(), learner.best.bias
    oracle = Oracle(rows, labels, [0.0] * len(rows), rho, width=len(w))
    norm = math.sqrt(math.fsum([*(x * x for x in w), bias * bias]))
    least = min(oracle.margins(w, bias))
    assert least / norm == pytest.approx(found.primal_margin, rel=1e-9)
    assert least == pytest.approx(1.0, rel=1e-9)
    return learner


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("room", [0.3, 2.0])
@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("seed", range(2))
def test_separable_rows_are_certified_and_the_best_margin_is_bracketed(seed, tol, room, rho):
    learner = brackets(*separable(seed, room), rho=rho, tol=tol)
    assert tol < 0.01 or learner.progress.readings <= 4


@pytest.mark.parametrize("active_set", [0, 600, 2_000, 5_000])
@pytest.mark.parametrize("seed", range(2))
def test_a_small_active_set_certifies_the_hard_margin(seed, active_set):
    brackets(*separable(seed, 0.5), tol=0.02, active_set=active_set, max_epochs=40)


def test_the_small_extension_of_rows_in_memory_is_gone_when_they_are_solved(monkeypatch):
    extensions = []

    def noted(active: Any, counts: Any, running: WeightState, *others: Any) -> Any:
        solution = yield from solve_hard(active, counts, running, *others)
        extensions.append(running.extension)
        return solution

    monkeypatch.setattr(reading, "solve_hard", noted)
    assert fitted(*separable(0, 0.5), tol=1e-3).finished == "certified"
    assert set(extensions) == {0.0}


def test_a_best_margin_of_a_thousandth_of_R_is_certified_too():
    rows, labels = separable(1, 0.05)
    rows[7] = [(COLUMNS, 1e3 * labels[7])]
    learner = brackets(rows, labels, tol=0.02, max_epochs=40)
    assert learner.running.tallies[kernels.CLIPPED] == 0
    assert (learner.certificate.upper_bound or 1.0) < NO_MARGIN * radius(rows, 1.0)


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("active_set", [10**9, 1_000])
@pytest.mark.parametrize("seed", range(3))
def test_inseparable_rows_end_the_run_with_next_to_no_room_for_a_margin(seed, active_set, rho):
    rows, labels = random_rows(seed, ROWS, COLUMNS)
    rows = [row or [(0, 1.0)] for row in rows]
    learner = fitted(rows, labels, rho=rho, active_set=active_set)
    found = learner.certificate
    assert learner.progress.finished == "no margin"
    assert found.directional_margin <= 0
    assert 0 <= found.upper_bound <= NO_MARGIN * radius(rows, rho)
    assert learner.progress.reports[-1].stop_reason is not None
    assert learner.progress.reports[-1].stop_reason.startswith("no margin above")


def test_the_command_line_says_how_sure_it_is_that_there_is_no_margin(tmp_path):
    rows, labels = random_rows(0, ROWS, COLUMNS)
    (tmp_path / "rows.svm").write_text("".join(svm_lines(dense(rows, COLUMNS), labels)))
    words = ("fit", "rows.svm", "--delta", "0", "--model", "model", "--report", "report")
    code, out, err = here(tmp_path, *words)
    report = json.loads((tmp_path / "report").read_text())
    assert np.isfinite(LinearModel.load(tmp_path / "model").weights).all()
    assert (code, report["stop_reason"]) == (NOT_CERTIFIED, "no margin") == (4, "no margin")
    assert report["certificate"]["relative_duality_gap"] == 1.0
    assert err.count("\n") == 1
    assert "--C" in err
    assert 0 <= float(re.search(r"(\d[\d.e-]*) of R", err)[1]) <= NO_MARGIN
    assert "NOT certified: no margin above" in out
