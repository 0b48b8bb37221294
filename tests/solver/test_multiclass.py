"""Fits of many classes at the command line: each is what a fit of it against the rest finds."""

import json
import random
import re
from pathlib import Path

import numpy as np

from streamtron.core.config import Settings
from streamtron.core.rows import NO_FACTS
from streamtron.core.text import MANY, up
from streamtron.solver.learner import Learner, renumber
from tests.helpers.processes import here, succeeded

NAMES = ("apple", "fig", "kiwi", "pear", "plum")


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
    assert f"\n… and 30 more, 30 certified, gaps up to {up(max(unlisted), 3)}\n" in said


def test_the_columns_of_every_class_of_softmax_are_numbered_anew_and_its_biases_stay():
    settings, classes, before = Settings(loss="softmax"), 3, 2
    learner = Learner(settings, classes * (before + 1) - 1, NO_FACTS, [0.0, 1.0, 2.0])
    learner.running.settle(np.arange(1.0, 9.0), 9.0, 0.0)
    renumber(learner, np.array([2, -1]), 3)
    weights = learner.running.augmented.reshape(-1, classes)
    assert weights.tolist() == [[0, 0, 0], [0, 0, 0], [1, 2, 3], [7, 8, 9]]
