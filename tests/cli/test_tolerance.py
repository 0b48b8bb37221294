"""The exit code says whether the tolerance was certified, whatever the fit ended for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from streamtron import StreamtronClassifier
from tests.helpers.processes import Run

CONVERGES = ("--stage", "1", "--seed", "0")
"""To a gap of several per cent, at which nothing is left to update."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that no line separates."""
    directory = tmp_path_factory.mktemp("tolerance")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    y = np.where(X[:, 0] + rng.standard_normal(200) > 0, 1, -1)
    lines = (f"{l} " + " ".join(f"{j}:{x:.4f}" for j, x in enumerate(row, 1))
             for l, row in zip(y, X, strict=True))  # fmt: skip
    (directory / "rows.svm").write_text("\n".join(lines) + "\n")
    return directory


def test_a_fit_that_converges_above_its_tolerance_exits_with_4_and_says_what_would_help(
    run: Run, place: Path
) -> None:
    words = ("fit", "rows.svm", *CONVERGES, "--report", "report")
    done = run(*words, "--model", "tight", "--tol", "1e-4")
    told = json.loads((place / "report").read_text())
    assert told["stop_reason"] == "converged"
    assert told["certificate"]["relative_duality_gap"] > 1e-4
    assert done.returncode == 4
    assert "NOT certified: the gap is" in done.stdout
    assert "converged before the tolerance was certified" in done.stderr
    assert "--stage auto, which ends with ascent, or a --tol looser than 0.0001" in done.stderr
    assert "--max-epochs" not in done.stderr
    assert run("inspect", "tight").returncode == 0


@pytest.mark.parametrize("asked", [("--tol", "0"), ("--faithful",), ("--tol", "0.9")])
def test_a_fit_that_is_asked_for_convergence_or_less_exits_with_0(
    run: Run, place: Path, asked: tuple[str, ...]
) -> None:
    name = "".join(asked)
    done = run("fit", "rows.svm", *CONVERGES, *asked, "--model", name)
    assert done.returncode == 0, done.stderr
    assert "NOT certified" not in done.stdout


def test_the_best_of_a_sweep_that_converges_above_its_tolerance_is_not_certified(
    run: Run, place: Path
) -> None:
    words = ("sweep", "rows.svm", "--valid", "rows.svm", "--C", "1,2", *CONVERGES)
    assert run(*words, "--tol", "1e-4").returncode == 4
    assert run(*words, "--tol", "0").returncode == 0


def test_an_estimator_that_converges_above_its_tolerance_warns(place: Path) -> None:
    model = StreamtronClassifier(tol=1e-4)
    with pytest.warns(ConvergenceWarning, match="a fit that converged proved a relative duality"):
        model.fit_shards(place / "rows.svm", stage="1")
