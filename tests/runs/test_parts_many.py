"""Many classes, and weighted ones, from several parts of the data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamtron
from streamtron import Machine, generate
from streamtron.core.events import Event, ReadingDone
from streamtron.runs.report import Outcome
from tests.helpers.svm_text import svm_lines, write_shards
from tests.runs.test_parts import forgetful, no_bit_changes
from tests.runs.test_parts import trained as trained_on

ROWS, SHARDS, COLUMNS = 1500, 6, 240
CLASSES = (1.0, 3.0, 4.0, 7.0)

ALL, WORKING_SET, BLOCKS = 10**9, 200_000, 60_000
"""Active sets that hold all rows, those that matter to each class, and some of these."""

some_regimes = pytest.mark.parametrize(
    "active_set", [ALL, WORKING_SET, pytest.param(BLOCKS, marks=pytest.mark.slow)]
)


def rows_of(classes: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Noisy rows; the last class occurs in the last shard alone, the first one not in it."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(ROWS, COLUMNS)) * (rng.random((ROWS, COLUMNS)) < 18 / COLUMNS)
    X[:, 0] += 0.1
    scores = X @ rng.normal(size=(COLUMNS, len(classes))) + 2.0 * rng.normal(size=(ROWS, 1))
    last = np.arange(ROWS) >= ROWS - ROWS // SHARDS
    scores[~last, -1] = scores[last, 0] = -np.inf
    return np.round(X, 2).astype(np.float32), scores


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of four classes (one), and of each class against the rest."""
    directory = tmp_path_factory.mktemp("many")
    X, scores = rows_of(CLASSES)
    best = np.array(CLASSES)[scores.argmax(axis=1)]
    labels = {"one": [f"{label:g}" for label in best]}
    for label in CLASSES:
        labels[f"{label:g}"] = [str(1 if one == label else -1) for one in best]
    for name, own in labels.items():
        write_shards(directory / name, svm_lines(X, own), SHARDS)
    return directory


def trained(place: Path, name: str = "one", model: Path | None = None, **how: Any) -> Outcome:
    """``trained`` of the shards in a folder, on four parts."""
    many = {"multiclass": True} if name == "one" else {}
    return trained_on([place / name], model, **{"parts": 4} | many | how)


@some_regimes
def test_each_class_has_the_weights_of_its_own_fit(place, active_set):
    few = {"active_set": active_set, "tol": 0.02 if active_set == BLOCKS else 1e-3}
    found = trained(place, **few)
    assert found.stop_reason == "certified"
    assert found.model.classes == CLASSES
    rounds = 0
    for number, label in enumerate(CLASSES):
        alone = trained(place, f"{label:g}", **few)
        assert (found.model.weights[number] == alone.model.weights).all(), label
        assert found.report["learners"][number]["certificate"] == alone.report["certificate"]
        rounds += alone.report["rounds"]
    assert found.report["rounds"] < 0.6 * rounds


@some_regimes
def test_threads_lost_parts_and_a_client_that_died_change_no_class(place, active_set, tmp_path):
    few = {"active_set": active_set, "tol": 0.02, "max_epochs": 4, "class_weight": "balanced"}
    alone = no_bit_changes(
        partial(trained, place, "one", **few), tmp_path,
        lambda rounds: {1, 4, rounds - 2} if active_set == ALL else {rounds // 2},
        [1] if active_set == ALL else [2],
    )  # fmt: skip
    ends = {len(learner["history"]) for learner in alone.report["learners"]}
    assert active_set != WORKING_SET or len(ends) > 1


def test_classes_that_have_finished_go_on_to_a_smaller_tolerance(place, tmp_path):
    train = partial(trained, place, model=tmp_path / "m", active_set=WORKING_SET)
    first, again = train(tol=0.1), train(tol=0.1, resume=True)
    assert again.model.to_bytes() == first.model.to_bytes()
    more = train(tol=1e-5, resume=True)
    for learner in more.report["learners"]:
        assert learner["certificate"]["relative_duality_gap"] <= 1e-5


def test_weights_of_rows_count_in_balanced_weights(tmp_path):
    shards = {"a": "1:2 1:1\n-1:1 1:-1\n", "b": "-1:3 1:-2 2:1\n-1:0 1:1\n1:1 2:2\n"}
    for name, text in shards.items():
        (tmp_path / f"{name}.svm").write_text(text)
    parts = {"parts": 2, "weights_in_label": True}
    found = trained(tmp_path, "", class_weight="balanced", **parts)
    named = trained(tmp_path, "", class_weight={"1": 7 / 6, "-1": 7 / 8}, **parts)
    assert (found.model.weights == named.model.weights).all()
    assert found.report["readings"] == 1.0 + named.report["readings"]


def test_a_reading_is_told_with_what_an_estimate_of_the_end_needs(place):
    told: list[ReadingDone] = []

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone):
            told.append(event)

    trained(place, listen=listen)
    labels = [event.problem.label for event in told]
    assert sorted(labels[:4], key=str) == [*CLASSES]
    assert labels[:4] == labels[4:]
    assert {(event.rows, event.active_rows, event.tol) for event in told} == {(ROWS, ROWS, 1e-3)}
    ends = [(event.reading, event.stop_reason) for event in told]
    assert ends == [(0, None)] * 4 + [(1, "certified")] * 4


@pytest.mark.slow
def test_parts_lost_where_columns_are_many_change_no_bit(tmp_path):
    generate(str(tmp_path / "wide"), rows=300, columns=3000, seed=2, shards=5)
    train = partial(trained, tmp_path, "wide", parts=5, C=20.0)
    alone = no_bit_changes(train, tmp_path, lambda rounds: {*range(rounds - 8, rounds - 3)})
    steps = alone.report["steps"]
    assert steps["product"]["rounds"] > steps["look"]["rounds"] > 3


def test_parts_lost_before_they_agree_on_the_label_0_change_no_bit(tmp_path):
    for number in range(5):
        rows = [f"{(k + (number == 2)) % 2} {1 + k % 3}:{k - 4}" for k in range(9)]
        (tmp_path / f"{number}.svm").write_text("\n".join(rows) + "\n")
    same = {"parts": 5, "allow_duplicate": True}
    wanted = trained(tmp_path, "", **same).model.to_bytes()
    found = trained(tmp_path, "", open_parts=partial(forgetful, at=2), **same)
    assert found.model.to_bytes() == wanted


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
