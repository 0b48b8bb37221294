"""Fits of many classes at the command line: each is what a fit of it against the rest finds."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from streamtron.core.text import MANY
from streamtron.model.linear_model import LinearModel
from tests.helpers.processes import here, succeeded

NAMES = ("apple", "fig", "kiwi", "pear", "plum")
LABELS = random.Random(1).choices(NAMES, k=500)
"""Of every row."""


def printed(place: Path, *words: object) -> str:
    """What a command prints that ends well."""
    return succeeded(here(place, *words)).stdout


def write_rows(path: Path, labels: list[str]) -> None:
    """A row a label, of columns that have something to do with it."""
    rng, lines = random.Random(0), []
    for label in labels:
        hints = {1 + NAMES.index(name) for name in label.split(",") if name and rng.random() < 0.8}
        columns = sorted(hints | set(rng.sample(range(1, 40), 6)))
        lines.append(" ".join([label, *(f"{column}:1" for column in columns)]) + "\n")
    path.write_text("".join(lines))


def table(text: str) -> list[list[str]]:
    """The table of classes in a summary: its cells, without the column of words behind them."""
    lines = text.split("\nclass ")[1].split("\n\n")[0].splitlines()
    return [line.split()[:5] for line in lines[1:] if not line.startswith("…")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of five classes, the model of them and its report; what the fit said."""
    directory = tmp_path_factory.mktemp("many")
    write_rows(directory / "rows.svm", LABELS)
    words = ("fit", "rows.svm", "--multiclass", "--model", "m", "--report", "r.json")
    (directory / "said").write_text(printed(directory, *words))
    return directory


def test_the_summary_has_a_line_a_class_and_says_that_all_are_certified(place):
    learners = json.loads((place / "r.json").read_text())["learners"]
    said = (place / "said").read_text()
    cells = [(row[0], row[4]) for row in table(said)]
    assert cells == [(learner["label"], str(learner["full_epochs"])) for learner in learners]
    assert re.search(r"\neach of the 5 classes is within .* training objective, proven\n", said)


def test_evaluate_prints_micro_and_macro_means_and_a_line_a_class(place, tmp_path):
    words = (place, "evaluate", "m", "rows.svm")
    outcome, lines = json.loads(printed(*words, "--json")), printed(*words).splitlines()
    assert outcome["accuracy"] > 0.5
    shown = [line.split()[2] for line in lines if line.startswith("macro F1")]
    assert shown == [f"{outcome['macro_f1']:.4g}"]
    assert "other classes" not in "".join(lines)
    start = next(n for n, line in enumerate(lines) if line.startswith("class"))
    cells = [line.split() for line in lines[start + 1 : start + 6]]
    for line, name, learner in zip(cells, NAMES, outcome["classes"], strict=True):
        assert line[0] == name
        assert int(line[1]) == learner["support"] == LABELS.count(name)
        scores = [learner[metric] for metric in ("precision", "recall", "f1", "roc_auc")]
        assert line[2:] == [f"{score:.4f}" for score in scores]
    unranked = json.loads(printed(*words, "--json", "--no-ranking"))
    assert unranked["macro_roc_auc"] is None
    assert outcome["macro_roc_auc"] > 0.5
    assert unranked["macro_f1"] == outcome["macro_f1"]
    (tmp_path / "rows").write_text("fig 1:1\nquince 1:1\nmelon 2:1\n")
    counted = printed(place, "evaluate", "m", tmp_path / "rows").splitlines()
    assert [line.split()[-1] for line in counted if "of other classes" in line] == ["2"]


def test_inspect_shows_a_line_a_class_with_its_heaviest_column_and_bounds(place, tmp_path):
    model = LinearModel.load(place / "m")
    model.but(certificate=None, offsets=None).save(tmp_path / "bare")
    bare = printed(tmp_path, "inspect", "bare").splitlines()
    assert "no certificate: use streamtron certify" in bare
    assert len([line for line in bare if line.split()[1:4] == ["-", "-", "-"]]) == 5
    facts = json.loads(printed(place, "inspect", "m", "--json"))
    assert (facts["kind"], facts["classification"]) == ("model", "multiclass")
    said = printed(place, "inspect", "m")
    for k, words in enumerate(table(said)):
        learner = facts["learners"][k]
        assert learner["label"] == words[0] == NAMES[k]
        assert learner["certificate"] == model.certificate["learners"][k]
        heaviest = int(np.abs(model.weights[k]).argmax())
        entry = learner["largest_weights"][0]
        assert (entry["column"], entry["weight"]) == (heaviest + 1, model.weights[k, heaviest])
        assert words[4] == str(heaviest + 1)
    assert "the one whose decision is highest" in said


def test_the_sentence_of_a_fit_that_stops_early_names_the_classes(tmp_path):
    rng = random.Random(2)
    sets = [",".join(name for name in NAMES if rng.random() < 0.3) for _ in range(500)]
    write_rows(tmp_path / "rows.svm", sets)
    words = ("--multilabel", "--active-set", "4kB", "--max-epochs", 1, "--C", 30)
    code, out, err = here(tmp_path, "fit", "rows.svm", "--model", "m", *words)
    assert code == 4
    assert "\nNOT certified: 5 of 5 classes; the largest gap is " in out
    named = re.match(r"5 of 5 classes \((.*)\) stopped before the tolerance was certified: ", err)
    assert named
    gaps = {row[0]: float(row[3]) for row in table(out)}
    assert named[1].split(", ") == sorted(gaps, key=lambda name: -gaps[name])


def test_of_more_classes_than_a_screen_holds_the_worst_are_listed_and_the_rest_summed_up(tmp_path):
    rng = random.Random(3)
    lines = [f"{k % 50} {k % 50 + 1}:1 {rng.randint(60, 90)}:2\n" for k in range(500)]
    (tmp_path / "rows.svm").write_text("".join(lines))
    words = ("fit", "rows.svm", "--multiclass", "--model", "m", "--report", "r.json")
    said = printed(tmp_path, *words)
    gaps = {
        f"{learner['label']:g}": learner["certificate"]["relative_duality_gap"]
        for learner in json.loads((tmp_path / "r.json").read_text())["learners"]
    }
    listed = [row[0] for row in table(said)]
    assert listed == sorted(listed, key=int)
    assert len(listed) == MANY
    unlisted = [gap for name, gap in gaps.items() if name not in listed]
    assert max(unlisted) <= min(gaps[name] for name in listed)
    assert f"\n… and 30 more, 30 certified, gaps up to {max(unlisted):.3g}\n" in said
