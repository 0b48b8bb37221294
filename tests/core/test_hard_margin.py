"""Δ = 0: the hard margin, certified where there is one, and said so where there is none."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtron.cli import main
from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.model.linear_model import LinearModel
from streamtron.runs.outcome import NOT_CERTIFIED
from streamtron.solver import reading
from streamtron.solver.ascent import solve_hard
from streamtron.solver.learner import Learner
from streamtron.solver.stopping import NO_MARGIN
from streamtron.solver.weights import WeightState
from tests.helpers.oracle import Oracle, Row, gamma_d
from tests.helpers.sources import ListSource, csr, random_rows, train, trained

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


def brackets(
    learner: Learner, rows: Sequence[Row], labels: Sequence[int], rho: float, tol: float
) -> None:
    """Certified within tol, the best margin between its bounds, and the lower one is γ'_d of the
    weights as they are, recomputed in plain lists."""
    found = learner.certificate
    assert learner.progress.finished == "certified"
    assert found is not None
    assert found.upper_bound is not None
    assert found.relative_duality_gap <= tol
    low, high = gamma_d(rows, labels, [0.0] * len(rows), rho)
    assert found.primal_margin <= high * (1 + 1e-9)
    assert found.upper_bound >= low * (1 - 1e-9)
    w, bias = learner.best.weights.tolist(), learner.best.bias
    oracle = Oracle(rows, labels, [0.0] * len(rows), rho, width=len(w))
    norm = math.sqrt(math.fsum([*(x * x for x in w), bias * bias]))
    least = min(oracle.margins(w, bias))
    assert least / norm == pytest.approx(found.primal_margin, rel=1e-9)
    assert least == pytest.approx(1.0, rel=1e-9)


# --- separable ---


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("room", [0.3, 2.0])
@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("seed", range(2))
def test_separable_rows_are_certified_and_the_best_margin_is_bracketed(
    seed: int, tol: float, room: float, rho: float
) -> None:
    rows, labels = separable(seed, room)
    source = ListSource(csr(rows), labels, block_rows=32)
    learner = trained(source, Settings(delta=0, rho=rho, tol=tol), positive=1)
    brackets(learner, rows, labels, rho, tol)
    assert tol < 0.01 or source.nonzeros_read <= 4 * len(source.rows.indices)


@pytest.mark.parametrize("active_set", [0, 600, 2_000, 5_000])
@pytest.mark.parametrize("seed", range(2))
def test_a_small_active_set_certifies_the_hard_margin_or_says_that_it_stopped(
    seed: int, active_set: int
) -> None:
    rows, labels = separable(seed, 0.5)
    source = ListSource(csr(rows), labels, block_rows=32)
    chosen = Settings(delta=0, tol=0.02, active_set=active_set, max_epochs=40)
    learner = trained(source, chosen, positive=1)
    brackets(learner, rows, labels, 1.0, 0.02)


def test_rows_of_weight_0_are_left_out_and_other_weights_do_not_matter() -> None:
    """With Δ = 0 a slack has no price, so that no weight can change it."""
    rows, labels = separable(1, 0.5)
    contradicting: list[Row] = [*rows, *rows[:20]]
    turned = [*labels, *(-l for l in labels[:20])]
    weights = [1.0 + k % 3 for k in range(ROWS)] + [0.0] * 20
    source = ListSource(csr(contradicting), turned, weights, block_rows=32)
    learner = trained(source, Settings(delta=0, tol=0.01), positive=1)
    brackets(learner, rows, labels, 1.0, 0.01)
    assert learner.counts.dense(ROWS + 20)[ROWS:].tolist() == [0] * 20
    plain = trained(
        ListSource(csr(rows), labels, block_rows=32), Settings(delta=0, tol=0.01), positive=1
    )
    assert learner.certificate is not None
    assert plain.certificate is not None
    assert learner.certificate.primal_margin <= (plain.certificate.upper_bound or 0.0)
    assert plain.certificate.primal_margin <= (learner.certificate.upper_bound or 0.0)


def test_one_long_row_does_not_take_the_margin_from_separable_rows() -> None:
    rows, labels = separable(1, 0.3)
    rows[7] = [(COLUMNS, 1e4 * labels[7])]  # R = 10⁴: 10⁻⁴ of it is above the best margin
    assert 0.29 < gamma_d(rows, labels, [0.0] * ROWS, 1.0)[0] < NO_MARGIN * radius(rows, 1.0)
    source = ListSource(csr(rows), labels, block_rows=32)
    chosen = Settings(delta=0, tol=0.02, active_set=600, max_epochs=40)
    assert trained(source, chosen, positive=1).finished != "no margin"


def test_the_small_extension_of_rows_in_memory_is_gone_when_they_are_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extensions = []

    def noted(active: Any, counts: Any, running: WeightState, *others: Any) -> Any:
        found = yield from solve_hard(active, counts, running, *others)
        extensions.append(running.extension)
        return found

    monkeypatch.setattr(reading, "solve_hard", noted)
    rows, labels = separable(0, 0.5)
    source = ListSource(csr(rows), labels)
    chosen = Settings(delta=0, tol=1e-3)
    learner = Learner(chosen, source.labels)
    train(source, [learner], chosen)
    assert learner.progress.finished == "certified"
    assert set(extensions) == {0.0}


def test_a_best_margin_of_a_thousandth_of_R_is_certified_too() -> None:
    rows, labels = separable(1, 0.05)
    rows[7] = [(COLUMNS, 1e3 * labels[7])]
    source = ListSource(csr(rows), labels, block_rows=32)
    learner = trained(source, Settings(delta=0, tol=0.02, max_epochs=40), positive=1)
    assert learner.running.tallies[kernels.CLIPPED] == 0
    brackets(learner, rows, labels, 1.0, 0.02)
    assert learner.certificate is not None
    assert (learner.certificate.upper_bound or 1.0) < NO_MARGIN * radius(rows, 1.0)


# --- no margin ---


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("active_set", [10**9, 1_000])
@pytest.mark.parametrize("seed", range(3))
def test_inseparable_rows_end_the_run_as_such_with_next_to_no_room_for_a_margin(
    seed: int, active_set: int, rho: float
) -> None:
    rows, labels = random_rows(seed, ROWS, COLUMNS)
    rows = [row or [(0, 1.0)] for row in rows]
    source = ListSource(csr(rows), labels, block_rows=32)
    learner = trained(source, Settings(delta=0, rho=rho, active_set=active_set))
    found = learner.certificate
    assert learner.progress.finished == "no margin"
    assert found is not None
    assert found.upper_bound is not None
    assert found.directional_margin <= 0
    assert 0 <= found.upper_bound <= NO_MARGIN * radius(rows, rho)
    assert learner.progress.reports[-1].stop_reason is not None
    assert learner.progress.reports[-1].stop_reason.startswith("no margin above")


# --- as its users meet it ---


def write(path: Path, rows: Sequence[Row], labels: Sequence[int]) -> Path:
    """As libsvm text."""
    lines = [
        " ".join([str(label), *(f"{column + 1}:{value!r}" for column, value in row)])
        for row, label in zip(rows, labels, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("room", [2.0, None], ids=["separable", "inseparable"])
def test_the_command_line_certifies_separable_rows_or_says_how_sure_it_is_and_to_give_C(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], room: float | None
) -> None:
    rows, labels = random_rows(0, ROWS, COLUMNS) if room is None else separable(0, room)
    shard, model = write(tmp_path / "rows.svm", rows, labels), tmp_path / "model"
    words = ["fit", str(shard), "--delta", "0", "--model", str(model)]
    words += ["--report", str(tmp_path / "report")]
    code, told = main._run(words), capsys.readouterr()
    report = json.loads((tmp_path / "report").read_text())
    assert np.isfinite(LinearModel.load(model).weights).all()
    if room is not None:
        low, high = gamma_d(rows, labels, [0.0] * ROWS, 1.0)
        assert (code, report["stop_reason"], told.err) == (0, "certified", "")
        assert report["certificate"]["primal_margin"] <= high * (1 + 1e-9)
        assert report["certificate"]["upper_bound"] >= low * (1 - 1e-9)
        assert "proven" in told.out
        return
    assert (code, report["stop_reason"]) == (NOT_CERTIFIED, "no margin") == (4, "no margin")
    assert report["certificate"]["relative_duality_gap"] == 1.0
    assert told.err.count("\n") == 1
    assert "--C" in told.err
    part = re.search(r"(\d[\d.e-]*) of R", told.err)
    assert part is not None
    assert 0 <= float(part[1]) <= NO_MARGIN
    assert "NOT certified: no margin above" in told.out
