"""Sweeps of many classes: candidates and classes are learners of one scan."""

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import streamtron
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError
from streamtron.core.events import Event
from streamtron.core.text import (
    METRICS,
    METRICS_OF_COUNTS,
    METRICS_OF_MANY,
    METRICS_OF_PROBABILITIES,
)
from streamtron.runs.fit import run as fit_alone
from streamtron.runs.memory import DataSize, memory_needed
from streamtron.sweeps.sweep import Sweep
from streamtron.sweeps.trial import BOUNDS, COLUMNS
from tests.helpers.processes import here, one_sentence
from tests.helpers.runs import begins
from tests.helpers.sweep_rows import NAMES, WIDTH, lasting, run_files, write_shard

KINDS = ("multiclass", "multilabel")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Shards to fit on (train, three of them) and to measure on (held-out), of either kind."""
    directory = tmp_path_factory.mktemp("many")
    chance = random.Random(1)
    draw = {
        "multiclass": lambda: [chance.choice(NAMES)],
        "multilabel": lambda: [name for name in NAMES if chance.random() < 0.3],
    }
    for kind in KINDS:
        for name, rows, shards in (("train", 250, 3), ("held-out", 300, 1)):
            for number in range(shards):
                labels = (draw[kind]() for _ in range(rows))
                write_shard(directory / kind / name / f"{number}.svm", labels, chance)
    return directory


@pytest.fixture(scope="module")
def run(place):
    """Run ``streamtron …`` in a directory of that place, within this process."""
    return lambda kind, *words: here(place / kind, *words)


GRID = {"C": (0.01, 0.3, 30.0), "rho": (0.0, 1.0)}


def swept(place: Path, kind: str, *, valid: bool = True, **how: Any) -> Sweep:
    """A sweep over six candidates, unless there are others."""
    how = {"metric": "macro_f1", kind: True, **GRID, **how}
    shards = how.pop("train", place / kind / "train")
    return streamtron.sweep(shards, valid=place / kind / "held-out" if valid else None, **how)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{}, {"valid": False, "folds": 3}], ids=str)
def test_the_best_is_byte_for_byte_what_fit_writes_of_all_classes(place, tmp_path, kind, how):
    found = swept(place, kind, model=tmp_path / "best", **how)
    fit_alone(
        place / kind / "train", found.best.settings, model=tmp_path / "fit", machine=Machine()
    )
    assert run_files(tmp_path / "best") == run_files(tmp_path / "fit")
    assert streamtron.load(tmp_path / "best").classes == NAMES
    caches = ({p.name for p in tmp_path.glob(f"{name}.run/cache/*")} for name in ("best", "fit"))
    assert next(caches) == next(caches), "those of the folds are gone"


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_what_evaluate_finds_and_the_certificate_of_the_worst_class(place, kind):
    rows = swept(place, kind).rows()
    for row in rows[1:5:3]:
        model = streamtron.fit(
            place / kind / "train", C=row["C"], rho=row["rho"], tol=row["tol"], **{kind: True}
        )
        measured = streamtron.evaluate(model, place / kind / "held-out").to_dict()
        assert measured.items() >= {name: row[name] for name in METRICS_OF_MANY}.items()
        proven = dict(zip(model.classes, model.certificate["learners"], strict=True))
        gaps = {name: own["relative_duality_gap"] for name, own in proven.items()}
        assert row["relative_duality_gap"] == max(gaps.values()) == gaps[row["class"]]
        assert proven[row["class"]].items() >= {name: row[name] for name in BOUNDS}.items()
    assert len({row["class"] for row in rows}) > 1, "not always the same class"


def test_the_table_has_the_metrics_of_many_classes_and_none_that_only_two_have(place, run, caplog):
    words = ("--valid", "held-out", "--C", "1,10", "--table", "t.parquet")  # names need no flag
    assert run("multiclass", "sweep", "train", *words).returncode == 0
    assert "More than two classes" in caplog.text
    [best, other] = pq.read_table(place / "multiclass" / "t.parquet").to_pylist()
    of_others = {*METRICS, *METRICS_OF_COUNTS, *METRICS_OF_PROBABILITIES} - {*METRICS_OF_MANY}
    of_others |= {"l1_ratio", "nonzero_weights"}
    assert list(best) == [name for name in COLUMNS if name not in of_others]
    assert best["class"] in NAMES
    assert best["best"] != other["best"]


def test_candidates_together_and_in_groups_have_the_rows_that_they_have_alone(place, tmp_path):
    shards = sorted((place / "multiclass" / "train").iterdir())
    train = tmp_path / "train.svm"
    train.write_text("".join(shard.read_text() for shard in shards))
    rows = swept(place, "multiclass", train=train).rows()
    for number in (0, 5):
        one = {name: rows[number][name] for name in GRID}
        [row] = lasting(swept(place, "multiclass", train=train, **one), "candidate", "best")
        assert [row] == lasting([rows[number]], "candidate", "best")
    settings = Settings(C=0.01, rho=0.0, multiclass=True)
    nonzeros = train.read_text().count(":")
    size = DataSize(750, WIDTH, nonzeros, by_row=True)
    learners = 6 * len(NAMES)
    needs = memory_needed(settings, size, learners=7, threads=2, of=learners)
    tight = Machine(memory=sum(needs.values()), threads=2)
    told: list[Event] = []
    grouped = swept(place, "multiclass", train=train, machine=tight, listen=told.append)
    assert lasting(grouped) == lasting(rows)
    begun = sum(begins(event) and event.reading == 0 for event in told)
    assert begun == -(-learners // 7)


@pytest.mark.parametrize(
    ("shards", "words", "code", "part"),
    [
        ("train held-out", "--multiclass --metric f1", 2, "metric 'f1': of many classes, expected"),
        ("two.svm two.svm", "--metric macro_f1", 2, "metric 'macro_f1': of two classes, expected"),
        ("two.svm two.svm", "--multiclass", 3, "two labels, ant and bee"),
        ("two.svm two.svm", "--multilabel", 0, ""),
    ],
)
def test_metrics_and_classes_that_do_not_fit_are_refused(place, run, shards, words, code, part):
    (place / "multiclass" / "two.svm").write_text("ant 1:1\nbee 2:1\n" * 20)
    train, valid = shards.split()
    done = run("multiclass", "sweep", train, "--valid", valid, *words.split())
    if code:
        one_sentence(done, code, part)
    assert done.returncode == code


def test_validation_rows_of_classes_that_are_not_fitted_are_never_right(place, tmp_path):
    one: Any = {"C": 0.3, "rho": 0.0, "multiclass": True}
    train, held = (place / "multiclass" / name for name in ("train", "held-out"))
    [known] = streamtron.sweep(train, valid=held, **one).trials
    strange = tmp_path / "strange.svm"
    strange.write_text("eel 1:1\n" * 300)
    [diluted] = streamtron.sweep(train, valid=[held, strange], **one).trials
    assert diluted.metrics["accuracy"] == known.metrics["accuracy"] / 2
    assert diluted.metrics["macro_recall"] == known.metrics["macro_recall"]
    with pytest.raises(DataError, match="no row has a class of the model"):
        streamtron.sweep(train, valid=strange, **one)


def test_a_fold_without_a_class_that_weights_name_says_which_fold(tmp_path):
    for number, label in enumerate(("ant", "bee", "cow")):
        (tmp_path / f"{number}.svm").write_text(f"{label} {number + 1}:1\ndog 4:1\nelk 5:1\n" * 5)
    with pytest.raises(streamtron.errors.SettingsError, match=r"^fold 2 of 3: .*label 'bee'"):
        streamtron.sweep(tmp_path, multiclass=True, class_weight={"bee": 2.0}, folds=3)
