"""Many classes over many columns train in the memory that is given, and find the same."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from scipy import sparse

import streamtron
from streamtron import LinearModel, Machine, Settings
from streamtron.core.errors import MachineError, SettingsError
from streamtron.runs.finished_run import FinishedRun, locate
from streamtron.runs.inspect import describe_shards
from streamtron.runs.learners import Training
from streamtron.solver.checkpoint import bytes_held
from streamtron.solver.learner import Learner
from streamtron.solver.vectors import SparseVector
from tests.helpers.learners import source_of

CLASSES, COLUMNS, MEMORY = 48, 300_000, 440_000_000

FIT = """
import sys
import streamtron
from streamtron.core.config import Machine
from streamtron.core.limits import peak_memory
place, memory = sys.argv[1], int(sys.argv[2])
machine = Machine(memory=memory, threads=2)
first = [f"{place}/0.svm", f"{place}/1.svm"]
model = f"{place}/{sys.argv[3]}"
streamtron.fit(first, model=model, multiclass=True, tol=0.05, active_set=10**6, machine=machine)
"""
CHANGE = """\
streamtron.update(model, f"{place}/2.svm", machine=machine)
streamtron.forget(model, "0.svm", machine=machine)
"""
SAY = "print(peak_memory())"


def write(path: Path, rows: int, seed: int) -> None:
    """Rows of all classes: some of the columns of their class, and others."""
    own = np.random.default_rng(0).integers(1, COLUMNS, (CLASSES, 12))
    rng = np.random.default_rng(seed)
    lines = []
    for row in range(rows):
        label = row % CLASSES
        columns = [rng.choice(own[label], 5, replace=False), rng.integers(1, COLUMNS, 12)]
        drawn = np.unique(np.concatenate([*columns, [COLUMNS]]))
        lines.append(f"c{label} " + " ".join(f"{j}:1" for j in drawn.tolist()) + "\n")
    path.write_text("".join(lines))


@pytest.mark.parametrize("steps", [FIT, pytest.param(FIT + CHANGE, marks=pytest.mark.slow)])
def test_little_memory_is_kept_to_by_many_classes_which_find_the_same(tmp_path, steps):
    """Trained together, they take half as much again."""
    for number, rows in enumerate((240, 320, 80)):
        write(tmp_path / f"{number}.svm", rows, number)
    peaks = []
    for name, memory in ("tight", MEMORY), ("loose", 20 * MEMORY):
        command = [sys.executable, "-c", steps + SAY, str(tmp_path), str(memory), name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[0] <= 1.05 * MEMORY
    assert peaks[1] > 1.5 * MEMORY
    for name in ("", ".run/witness"):
        assert (tmp_path / f"tight{name}").read_bytes() == (tmp_path / f"loose{name}").read_bytes()
    model = streamtron.load(tmp_path / "tight")
    assert model.certificate["relative_duality_gap"] <= 0.05
    assert len(model.classes) == CLASSES
    few, together = (
        streamtron.certify(tmp_path / "tight", machine=Machine(memory=memory, threads=2))
        for memory in (MEMORY, 20 * MEMORY)
    )
    assert few.readings > together.readings == 1.0
    of_few = [(label, replace(proof, readings=1.0)) for label, proof in few.classes]
    assert of_few == list(together.classes)


def test_the_plan_says_how_many_classes_train_at_a_time(tmp_path):
    write(tmp_path / "0.svm", 2 * CLASSES, 0)
    settings = Settings(multiclass=True, active_set=10**6)
    plan = describe_shards([str(tmp_path / "0.svm")], settings, Machine(memory=MEMORY))["plan"]
    assert plan["learners"] == CLASSES
    assert 1 < plan["learners_at_once"] < CLASSES
    assert sum(plan["items"].values()) == plan["total"] <= MEMORY
    most = Machine(memory=20 * MEMORY)
    plan = describe_shards([str(tmp_path / "0.svm")], settings, most)["plan"]
    assert plan["learners_at_once"] == CLASSES


def test_a_finished_run_is_restored_by_its_nonzeros(tmp_path):
    write(tmp_path / "0.svm", 40, 0)
    model = streamtron.fit(tmp_path / "0.svm", model=tmp_path / "m", multiclass=True)
    with FinishedRun.to_change(locate(tmp_path / "m")) as ended:
        learners = ended.learners()
    for learner in learners:
        assert isinstance(learner.best.w, SparseVector)
        assert isinstance(learner.running.w, SparseVector)
        assert learner.frozen.scan_sums.fresh is learner.running.w, "one vector, held twice"
    bins = sum(one.frozen.scan_sums.bins.nbytes for one in learners if one.frozen)
    counts = sum(learner.counts.nbytes for learner in learners)
    assert sum(map(bytes_held, learners)) - bins - counts <= 24 * model.sparse_weights.nnz + 1_000


def test_learners_that_leave_no_room_for_another_are_refused_with_the_sum():
    source = source_of((1.0, 2.0, 3.0))
    learners = [Learner(Settings(), source.labels, positive=label) for label in source.labels]
    learners[0].running.w = np.ones(10**6)
    training = Training(source, Settings(active_set=10**6), Machine(memory=137_000_000, threads=1))
    with pytest.raises(MachineError, match=r"learners that are not in training 8\.\d MB"):
        training.in_groups(learners[::-1])


def wide_model(classes: int, columns: int, seed: int) -> LinearModel:
    """A model of which one weight in 1,000 is not 0."""
    weights = sparse.random_array(
        (classes, columns), density=1e-3, format="csr", rng=np.random.default_rng(seed)
    )
    names = [f"c{number:03d}" for number in range(classes)]
    return LinearModel(weights, np.zeros(classes), names, {"rho": 1.0}, None, {"index_base": 1})


def test_wide_models_of_many_classes_are_compared_without_all_of_their_weights():
    first, second = wide_model(100, 50_000, 0), wide_model(100, 50_000, 1)
    tracemalloc.start()
    found = streamtron.diff(first, second)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 100 * 50_000 / 4
    assert len(found["directions"]) == 100
    a, b = first.weights[3], second.weights[3]
    told = found["directions"][3]
    assert told["distance"] == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(a))
    heaviest = int(np.argmax(np.abs(a - b)))
    assert told["features"][0] == {"column": 1 + heaviest, "weights": [a[heaviest], b[heaviest]]}


def test_a_wide_model_of_many_classes_is_a_linear_svc_with_sparse_weights(tmp_path):
    model = wide_model(50, 20_000, 0)
    tracemalloc.start()
    streamtron.export(model, tmp_path / "m.skops", "sklearn")
    with pytest.raises(SettingsError, match="less than 2 GiB"):
        streamtron.export(wide_model(200, 2_000_000, 0), tmp_path / "m.onnx", "onnx")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 200 * 2_000_000 / 20
    types = skops.io.get_untrusted_types(file=tmp_path / "m.skops")
    assert types == ["scipy.sparse._csr.csr_matrix"]
    theirs = skops.io.load(tmp_path / "m.skops", trusted=types)
    assert sparse.issparse(theirs.coef_)
    rows = sparse.random_array((40, 20_000), density=0.01, format="csr", rng=0)
    assert theirs.predict(rows).tolist() == model.predict(rows).tolist()


CLASSES_OF_SHARDS = {
    "names": {"a.csv": "label,f0,f1\na,1,2\nb,2,1\na,3,4\n", "b.csv": "label,f0,f1\nc,1,5\n"},
    "numbers": {"a.svm": "1 1:1\n2 2:1\n1 1:3 2:4\n", "b.svm": "7 1:1 2:5\n"},
}
"""Shards of which the second has the third class."""


@pytest.mark.parametrize("kind", CLASSES_OF_SHARDS)
@pytest.mark.parametrize("parts", [None, 2])
def test_a_third_class_starts_one_against_the_rest_without_being_asked(kind, parts, tmp_path):
    for name, text in CLASSES_OF_SHARDS[kind].items():
        (tmp_path / name).write_text(text)
    shards, readings = [tmp_path / name for name in CLASSES_OF_SHARDS[kind]], []
    how: Any = {"parts": parts, "machine": Machine(checkpoint_every=0.0)}
    for path, names in ("without", {}), ("with", {"multiclass": True}):
        streamtron.fit(shards, model=tmp_path / path, **how, **names)
        report = json.loads((tmp_path / f"{path}.run" / "report.json").read_text())
        readings.append(report["readings"])
        assert [*map(type, report["learners"])] == [dict] * 3
    assert (tmp_path / "without").read_bytes() == (tmp_path / "with").read_bytes()
    assert readings[0] > readings[1] or parts  # the reading for two classes counts
    assert len([*(tmp_path / "without.run" / "cache").glob("*.cache")]) == len(shards)
    more = streamtron.fit(shards, model=tmp_path / "without", resume=True, tol=1e-9)
    assert len(more.classes) == 3
