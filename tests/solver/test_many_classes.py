"""Models of many classes at the command line: predict, evaluate, inspect, certify."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
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
    found: dict[str, Any] = json.loads(run(*words, "--json"))
    return found


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
    proven = joint_certificate([each["certificate"] for each in proof["learners"]])
    settings = {"C": 1.0, "rho": 1.0}
    reading = {"index_base": 1, "features": [f"f{j}" for j in range(COLUMNS)], "layout": "columns"}
    model = LinearModel(theirs.weights, theirs.bias, CLASSES, settings, proven, reading)
    model.save(place / "ours")
    return place / "ours"


def rows_of(place: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(place / "rows.npz") as arrays:
        return arrays["X"], arrays["y"]


def test_predict_writes_the_labels_and_decisions_that_liblinear_gives(
    place: Path, tmp_path: Path
) -> None:
    X, _ = rows_of(place)
    run("predict", place / "liblinear", place / "rows.svm", "-o", tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    theirs = liblinearutil.load_model(str(place / "liblinear"))
    labels, _, values = liblinearutil.predict([], sparse.csr_matrix(X, dtype=float), theirs, "-q")
    order = np.argsort(theirs.get_labels())
    assert found["label"] == labels
    assert np.array(found["decisions"]) == pytest.approx(np.array(values)[:, order], abs=1e-12)


def test_evaluate_prints_micro_and_macro_means_and_a_line_a_class(place: Path) -> None:
    X, y = rows_of(place)
    predicted = load_any(place / "liblinear").predict(X)
    found = read("evaluate", place / "liblinear", place / "rows.svm")
    assert found["micro_f1"] == pytest.approx(metrics.f1_score(y, predicted, average="micro"))
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(y, predicted, average="macro"))
    table = run("evaluate", place / "liblinear", place / "rows.svm").splitlines()
    assert f"macro F1           {found['macro_f1']:>13.7g}" in table
    start = table.index(next(line for line in table if line.startswith("class")))
    shown = [line.split() for line in table[start + 1 :]]
    assert [words[0] for words in shown] == ["-3", "2", "5", "11"]
    for words, label, each in zip(shown, CLASSES, found["classes"], strict=True):
        assert int(words[1]) == each["support"] == np.count_nonzero(y == label)
        assert words[2:] == [f"{each[n]:.4f}" for n in ("precision", "recall", "f1", "roc_auc")]


def test_evaluate_without_ranking_has_no_auc_and_the_same_f1(place: Path) -> None:
    ranked = read("evaluate", place / "liblinear", place / "rows.svm")
    found = read("evaluate", place / "liblinear", place / "rows.svm", "--no-ranking")
    assert found["macro_roc_auc"] is None
    assert ranked["macro_roc_auc"] > 0.5
    assert found["macro_f1"] == ranked["macro_f1"]


def test_evaluate_says_how_many_rows_have_other_labels(place: Path, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("2 1:1\n7 1:1\n8 2:1\n")
    out = run("evaluate", place / "liblinear", tmp_path / "rows").splitlines()
    assert f"of other classes   {2:>13}" in out
    known = run("evaluate", place / "liblinear", place / "rows.svm")
    assert "other classes" not in known


def test_certify_shows_the_bounds_of_every_class_on_the_same_readings(place: Path) -> None:
    words = ("certify", place / "liblinear", place / "rows.svm", "--C", 1)
    found = read(*words)
    assert found["readings"] <= 5
    table = run(*words).splitlines()
    shown = [line.split() for line in table[-4:]]
    assert [line[0] for line in shown] == ["-3", "2", "5", "11"]
    gaps = [each["certificate"]["relative_duality_gap"] for each in found["learners"]]
    for line, each in zip(shown, found["learners"], strict=True):
        bounds = each["certificate"]
        assert line[1:3] == [down(bounds["primal_margin"], 6), up(bounds["upper_bound"], 6)]
        assert float(line[1]) < float(line[2])
    assert found["certificate"]["relative_duality_gap"] == max(gaps) < 0.01


def test_inspect_shows_a_line_a_class_with_its_certificate_and_heaviest_columns(
    certified: Path,
) -> None:
    model = load_any(certified)
    facts = read("inspect", certified)
    assert (facts["kind"], facts["classification"]) == ("model", "multiclass")
    table = run("inspect", certified).splitlines()
    start = table.index(next(line for line in table if line.startswith("class ")))
    for k, line in enumerate(table[start + 1 : start + 5]):
        learner, proven = facts["learners"][k], model.certificate["learners"][k]  # type: ignore[index]
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
    largest = max(each["relative_duality_gap"] for each in model.certificate["learners"])  # type: ignore[index]
    assert f"largest gap        {up(largest):>13}" in table


def test_inspect_of_a_foreign_model_of_many_classes_says_that_nothing_is_proven(
    place: Path,
) -> None:
    table = run("inspect", place / "liblinear").splitlines()
    assert "no certificate: use streamtron certify" in table
    assert len([line for line in table if line.split()[1:4] == ["-", "-", "-"]]) == 4


def test_on_real_topics_liblinears_model_is_evaluated_as_sklearn_does_and_certified(
    shared_data: Path, tmp_path: Path
) -> None:
    topics = ("CCAT", "ECAT", "GCAT", "MCAT")
    texts = lzma.decompress((shared_data / "rcv1_27613.ccat.xz").read_bytes()).decode()
    codes = lzma.decompress((shared_data / "rcv1_27613.topics.xz").read_bytes()).decode()
    lines = []
    for row, names in zip(texts.splitlines(), codes.splitlines(), strict=True):
        [*main] = [k for k, topic in enumerate(topics, 1) if topic in names.split("\t")[1].split()]
        if len(main) == 1:
            lines.append(f"{main[0]} {row.split(' ', 1)[1]}\n")
    (tmp_path / "rows.svm").write_text("".join(lines[::4]))
    y, X = liblinearutil.svm_read_problem(str(tmp_path / "rows.svm"), return_scipy=True)
    theirs = liblinearutil.train(y, X, "-s 1 -c 1 -B 1 -e 0.01 -q")
    liblinearutil.save_model(str(tmp_path / "model"), theirs)
    predicted, _, _ = liblinearutil.predict([], X, theirs, "-q")
    found = read("evaluate", tmp_path / "model", tmp_path / "rows.svm")
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, predicted), abs=1e-4)
    for mean in ("micro", "macro"):
        expected = metrics.f1_score(y, predicted, average=mean)
        assert found[f"{mean}_f1"] == pytest.approx(expected, abs=1e-4)
    proof = read("certify", tmp_path / "model", tmp_path / "rows.svm", "--C", 1)
    assert proof["readings"] <= 5
    assert len(proof["learners"]) == 4
    assert 0 < proof["certificate"]["relative_duality_gap"] < 0.01
