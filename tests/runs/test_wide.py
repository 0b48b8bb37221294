"""Columns that never occur cost little memory, and nothing on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streamtron import LinearModel, Machine, Settings, run
from streamtron.runs.directory import CHECKPOINT, Checkpoint, Run, put_together, take_apart
from streamtron.runs.inspect import describe_shards
from streamtron.solver.checkpoint import State
from streamtron.solver.vectors import dense

ROWS, COLUMNS, NONZEROS = 400, 4_000_000, 30

FIT = """
import sys
from streamtron.core.config import Machine, Settings
from streamtron.core.limits import peak_memory
from streamtron.runs.fit import run
run(sys.argv[1], Settings(C=50.0, tol=1e-6), model=sys.argv[2], machine=Machine(threads=1))
print(peak_memory())
"""


def corpus(path: Path, columns: int, seed: int = 0, rows: int = ROWS) -> Path:
    """Rows whose columns are drawn from all, the first few in most rows."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        rare = rng.integers(10, columns, NONZEROS)
        drawn = np.unique(np.concatenate([1 + rng.choice(9, 4), rare, [columns]]))
        values = rng.normal(size=len(drawn)).astype(np.float32)
        label = 1 if values[0] + 0.3 * rng.normal() > 0 else -1
        pairs = zip(drawn.tolist(), values.tolist(), strict=True)
        lines.append(f"{label} " + " ".join(f"{j}:{value!r}" for j, value in pairs) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of many columns, and a model of them with its run."""
    directory = tmp_path_factory.mktemp("wide")
    corpus(directory / "rows.svm", COLUMNS)
    settings = Settings(C=50.0, tol=1e-6)
    run(directory / "rows.svm", settings, model=directory / "m", machine=Machine(threads=1))
    return directory


def test_a_column_costs_at_most_40_bytes_at_the_peak_of_a_fit(tmp_path):
    peaks = []
    for columns in (4_000, COLUMNS):
        rows = corpus(tmp_path / f"{columns}.svm", columns)
        command = [sys.executable, "-c", FIT, str(rows), str(tmp_path / f"{columns}.st")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] <= 40 * COLUMNS


def test_the_plan_is_40_bytes_a_column_where_few_of_them_occur(place):
    told = describe_shards([str(place / "rows.svm")], Settings(), Machine())
    assert told["columns"] == COLUMNS
    assert told["plan"]["items"]["weights (40 bytes a column)"] == 40 * COLUMNS
    assert told["plan"]["items"]["active set"] == 8 * told["nonzeros"] + 24 * ROWS


def test_model_and_checkpoint_hold_the_columns_that_are_not_0(place):
    model = LinearModel.load(place / "m")
    kept = model.sparse_weights.nnz
    assert (model.columns, kept == np.count_nonzero(model.weights)) == (COLUMNS, True)
    assert kept > ROWS
    assert os.path.getsize(place / "m") <= 14 * kept + 4_000
    rows = 8 * ROWS + 16 * 400  # counts, and the bins that they fill
    assert os.path.getsize(place / "m.run" / CHECKPOINT) <= 24 * kept + rows + 20_000


def test_vectors_taken_apart_are_put_together_to_the_bit():
    rng = np.random.default_rng(0)
    w = np.where(rng.random(50) < 0.2, rng.normal(size=50), 0.0)
    other = w.copy()
    other[np.flatnonzero(w)[0]] = 0.0
    arrays = {
        "0": w, "1": 2.0 * w, "2": other, "3": rng.normal(size=9), "4": np.zeros(7),
        "5": np.zeros(0), "6": np.zeros(5, np.int64), "7": np.zeros((2, 3)),
    }  # fmt: skip
    parts, sparse = take_apart(arrays)
    assert sparse["0"][0] == sparse["1"][0] != sparse["2"][0], "equal columns are written once"
    assert parts.keys() >= {"3", "6", "7"}
    assert "0" not in parts
    again = put_together(parts, {name: list(told) for name, told in sparse.items()})
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        found = dense(again[name])
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)


@pytest.mark.parametrize(
    "told", [["w.columns", -1], ["w.columns", 3], ["x", 9], ["w.columns", 1 << 60], 3, ["w"]]
)
def test_a_checkpoint_whose_vectors_cannot_be_put_together_is_none(tmp_path, told, monkeypatch):
    state = State(0, 1, {"learners": [], "placeholders": [], "group": None}, {"w": np.eye(9)[4]})
    monkeypatch.setattr(
        "streamtron.runs.directory.take_apart", lambda arrays: (take_apart(arrays)[0], {"w": told})
    )
    Run(tmp_path).save(Checkpoint(state, [], 0, 0, 0.0, {}))
    assert Run(tmp_path).load() is None
