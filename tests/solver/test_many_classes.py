"""Models of many classes at the command line: predict, evaluate, inspect, certify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from liblinear import liblinearutil
from scipy import sparse
from sklearn import metrics

from streamtron.core.text import down, up
from streamtron.model.display import joint_certificate
from streamtron.model.import_model import load_any
from streamtron.model.linear_model import LinearModel
from tests.helpers.processes import here

ROWS, COLUMNS = 400, 8
CLASSES = (-3.0, 2.0, 5.0, 11.0)


def run(*words: object) -> str:
    """What a command prints; it must end well and say nothing wrong."""
    done = here(Path(), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(*words: object) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(*words, "--json"))
    return content


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of four noisy classes, and LIBLINEAR's model of them."""
    directory = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(ROWS, COLUMNS)), 3).astype(np.float32)
    noisy = X @ rng.normal(size=(COLUMNS, 4)) + rng.normal(size=(ROWS, 4))
    y = np.array(CLASSES)[noisy.argmax(axis=1)]
    lines = (
        " ".join([f"{label:g}", *(f"{j + 1}:{value!r}" for j, value in enumerate(row.tolist()))])
        for label, row in zip(y, X, strict=True)
    )
    (directory / "rows.svm").write_text("\n".join(lines) + "\n")
    np.savez(directory / "rows.npz", X=X, y=y)
    theirs = liblinearutil.train(y, sparse.csr_matrix(X, dtype=float), "-s 1 -B 1 -e 0.3 -q")
    liblinearutil.save_model(str(directory / "liblinear"), theirs)
    return directory


@pytest.fixture(scope="module")
def certified(place: Path) -> Path:
    """The same weights as a model of ours, with the certificate that certify gives."""
    theirs = load_any(place / "liblinear")
    proof = read("certify", place / "liblinear", place / "rows.svm", "--C", 1)
    proven = joint_certificate([learner["certificate"] for learner in proof["learners"]])
    settings = {"C": 1.0, "rho": 1.0}
    reading = {"index_base": 1, "features": [f"f{j}" for j in range(COLUMNS)], "layout": "columns"}
    model = LinearModel(theirs.weights, theirs.bias, CLASSES, settings, proven, reading)
    model.save(place / "ours")
    return place / "ours"


def rows_of(place: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(place / "rows.npz") as arrays:
        return arrays["X"], arrays["y"]


def test_evaluate_prints_micro_and_macro_means_and_a_line_a_class(
    place: Path, tmp_path: Path
) -> None:
    X, y = rows_of(place)
    words = ("evaluate", place / "liblinear", place / "rows.svm")
    predicted, outcome = load_any(place / "liblinear").predict(X), read(*words)
    for mean in ("micro", "macro"):
        expected = metrics.f1_score(y, predicted, average=mean)
        assert outcome[f"{mean}_f1"] == pytest.approx(expected)
    table = run(*words).splitlines()
    shown = [line.split()[2] for line in table if line.startswith("macro F1")]
    assert shown == [f"{outcome['macro_f1']:.4g}"]
    assert not any("other classes" in line for line in table)
    start = table.index(next(line for line in table if line.startswith("class")))
    cells = [line.split() for line in table[start + 1 : start + 5]]
    assert [line[0] for line in cells] == ["-3", "2", "5", "11"]
    for line, label, learner in zip(cells, CLASSES, outcome["classes"], strict=True):
        assert int(line[1]) == learner["support"] == np.count_nonzero(y == label)
        scores = [learner[name] for name in ("precision", "recall", "f1", "roc_auc")]
        assert line[2:] == [f"{score:.4f}" for score in scores]
    unranked = read(*words, "--no-ranking")
    assert unranked["macro_roc_auc"] is None
    assert outcome["macro_roc_auc"] > 0.5
    assert unranked["macro_f1"] == outcome["macro_f1"]
    (tmp_path / "rows").write_text("2 1:1\n7 1:1\n8 2:1\n")
    counted = run("evaluate", place / "liblinear", tmp_path / "rows").splitlines()
    lines = [line.split() for line in counted if "other" in line]
    assert lines == [["of", "other", "classes", "2"]]


def test_inspect_shows_a_line_a_class_with_its_heaviest_columns_and_certificate_if_there_is_one(
    certified: Path, place: Path
) -> None:
    foreign = run("inspect", place / "liblinear").splitlines()
    assert "no certificate: use streamtron certify" in foreign
    assert len([line for line in foreign if line.split()[1:4] == ["-", "-", "-"]]) == 4
    model = load_any(certified)
    facts = read("inspect", certified)
    assert (facts["kind"], facts["classification"]) == ("model", "multiclass")
    table = run("inspect", certified).splitlines()
    start = table.index(next(line for line in table if line.startswith("class ")))
    for k, line in enumerate(table[start + 1 : start + 5]):
        learner, proven = facts["learners"][k], model.certificate["learners"][k]
        assert learner["label"] == CLASSES[k]
        assert learner["certificate"] == proven
        heaviest = int(np.abs(model.weights[k]).argmax())
        entry = learner["largest_weights"][0]
        assert entry["weight"] == model.weights[k, heaviest]
        assert (entry["column"], entry["name"]) == (heaviest + 1, f"f{heaviest}")
        words = line.split()
        assert words[0] == f"{CLASSES[k]:g}"
        assert words[1] == down(proven["primal_margin"], 6)
        assert words[4] == f"f{heaviest}"
    assert any("the one whose decision is highest" in line for line in table)
    largest = max(learner["relative_duality_gap"] for learner in model.certificate["learners"])
    assert f"largest gap        {up(largest):>13}" in table
