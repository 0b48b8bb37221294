"""Sweeps of many classes: candidates and classes are learners of one scan."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import streamtron
from streamtron.cluster.client import Workers
from streamtron.cluster.sweep import sweep_executor
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError
from streamtron.core.events import Event, ReadingStarted
from streamtron.core.text import METRICS, METRICS_OF_MANY
from streamtron.runs.fit import run as fit_alone
from streamtron.runs.memory import memory_needed
from streamtron.sweeps.grid import candidates_of
from streamtron.sweeps.sweep import Sweep, run_sweep
from streamtron.sweeps.trial import BOUNDS, COLUMNS
from tests.helpers.processes import Ended, here

NAMES = ("ant", "bee", "cow", "dog")
WIDTH = 30
LASTING = ("seconds", "worker", "started", "finished")
KINDS = ("multiclass", "multilabel")

Rows = list[dict[str, Any]]


def write_shard(path: Path, rows: int, chance: random.Random, several: bool) -> None:
    """Rows of columns that have something to do with their labels."""
    lines = []
    for _ in range(rows):
        own = [name for name in NAMES if chance.random() < 0.3] if several else []
        own = own if several else [chance.choice(NAMES)]
        there = {1 + NAMES.index(name) for name in own if chance.random() < 0.7}
        columns = sorted(there | set(chance.sample(range(1, WIDTH + 1), 5)))
        lines.append(" ".join([",".join(own), *(f"{column}:1" for column in columns)]) + "\n")
    path.write_text("".join(lines))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards to fit on (train, three of them) and to measure on (held-out), of either kind."""
    directory = tmp_path_factory.mktemp("many")
    chance = random.Random(1)
    for kind in KINDS:
        for name, rows, shards in (("train", 250, 3), ("held-out", 300, 1)):
            (directory / kind / name).mkdir(parents=True)
            for number in range(shards):
                shard = directory / kind / name / f"{number}.svm"
                write_shard(shard, rows, chance, kind == "multilabel")
    return directory


@pytest.fixture(scope="module")
def run(place: Path) -> Callable[..., Ended]:
    """Run ``streamtron …`` in a directory of that place, within this process."""

    return lambda kind, *words: here(place / kind, *words)


Run = Callable[..., Ended]


def candidates(kind: str, **more: Any) -> list[Settings]:
    """Six of them."""
    settings = Settings.from_dict({kind: True, **more})
    return candidates_of(settings, {"C": (0.01, 0.3, 30.0), "rho": (0.0, 1.0)})


def swept(place: Path, kind: str, *, valid: bool = True, **how: Any) -> Sweep:
    how = {"machine": Machine(), "metric": "macro_f1", **how}
    return run_sweep(
        how.pop("train", place / kind / "train"), how.pop("candidates", candidates(kind)),
        valid=place / kind / "held-out" if valid else None, **how,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(place: Path) -> dict[str, Sweep]:
    """A sweep of either kind in one process, without a model."""
    return {kind: swept(place, kind) for kind in KINDS}


def lasting(rows: Rows) -> Rows:
    """The rows without what is about machine and time."""
    return [{name: row[name] for name in row if name not in LASTING} for row in rows]


# --- the best, and the table ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{}, {"halving": True}, {"valid": False, "folds": 3}], ids=str)
def test_the_best_is_byte_for_byte_the_model_and_witness_of_all_classes_that_fit_writes(
    place: Path, tmp_path: Path, kind: str, how: dict[str, Any]
) -> None:
    found = swept(place, kind, model=tmp_path / "best", **how)
    fit_alone(
        place / kind / "train", found.best.settings, model=tmp_path / "fit", machine=Machine()
    )
    for name in ("", ".run/witness", ".run/manifest.json"):
        assert Path(f"{tmp_path}/best{name}").read_bytes() == (
            Path(f"{tmp_path}/fit{name}").read_bytes()
        )
    assert streamtron.load(tmp_path / "best").classes == NAMES


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_has_what_evaluate_finds_and_the_certificate_of_the_worst_class(
    place: Path, alone: dict[str, Sweep], kind: str
) -> None:
    for row in alone[kind].rows()[1:5:3]:
        model = streamtron.fit(place / kind / "train", C=row["C"], rho=row["rho"], **{kind: True})
        measured = streamtron.evaluate(model, place / kind / "held-out").to_dict()
        assert {name: row[name] for name in METRICS_OF_MANY} == {
            name: measured[name] for name in METRICS_OF_MANY
        }
        assert model.certificate is not None
        proven = dict(zip(model.classes, model.certificate["learners"], strict=True))
        gaps = {name: own["relative_duality_gap"] for name, own in proven.items()}
        assert row["relative_duality_gap"] == max(gaps.values()) == gaps[row["class"]]
        assert {name: row[name] for name in BOUNDS} == {
            name: proven[row["class"]][name] for name in BOUNDS
        }
    assert len({row["class"] for row in alone[kind].rows()}) > 1, "not always the same class"


def test_the_table_has_the_metrics_of_many_classes_and_none_that_only_two_have(
    place: Path, run: Run
) -> None:
    words = ("--multiclass", "--valid", "held-out", "--C", "1,10", "--table", "t.parquet")
    assert run("multiclass", "sweep", "train", *words).returncode == 0
    [best, other] = pq.read_table(place / "multiclass" / "t.parquet").to_pylist()
    only_two = {*METRICS} - {*METRICS_OF_MANY}
    assert list(best) == [name for name in COLUMNS if name not in only_two]
    assert best["class"] in NAMES
    assert best["best"] != other["best"]


@pytest.mark.parametrize("metric", METRICS_OF_MANY)
def test_the_best_has_the_highest_metric_of_many_classes_whichever_is_asked_for(
    place: Path, metric: str
) -> None:
    two = candidates("multilabel", tol=0.3)[2::3]
    found = swept(place, "multilabel", metric=metric, candidates=two)
    values = [trial.metrics[metric] or 0.0 for trial in found.trials]
    assert len(set(values)) == 2
    assert found.best.metrics[metric] == max(values)


def test_candidates_together_and_in_groups_have_the_rows_that_they_have_alone(
    place: Path, tmp_path: Path
) -> None:
    shards = sorted((place / "multiclass" / "train").iterdir())
    train = tmp_path / "train.svm"  # one block: all is known when it is told that not all fit
    train.write_text("".join(shard.read_text() for shard in shards))
    rows = swept(place, "multiclass", train=train).rows()
    for number in (0, 5):
        one = [candidates("multiclass")[number]]
        found = swept(place, "multiclass", train=train, candidates=one)
        [row] = lasting(found.rows())
        assert {**row, "candidate": number, "best": rows[number]["best"]} == lasting(rows)[number]
    settings = candidates("multiclass")[0]
    needs = memory_needed(settings, rows=750, columns=WIDTH + 1, learners=7, threads=2)
    tight = Machine(memory=sum(need.size for need in needs), threads=2)
    told: list[Event] = []
    grouped = swept(place, "multiclass", train=train, machine=tight, listen=told.append)
    assert lasting(grouped.rows()) == lasting(rows)
    begun = sum(isinstance(event, ReadingStarted) and event.reading == 0 for event in told)
    assert begun == 1 + -(-6 * len(NAMES) // 7), "the first attempt found out that all do not fit"


def test_folds_average_the_metrics_of_many_classes_and_keep_the_widest_gap(place: Path) -> None:
    shards = sorted((place / "multiclass" / "train").iterdir())
    settings = candidates("multiclass")[:2]
    folds = swept(place, "multiclass", valid=False, folds=3, candidates=settings).trials
    parts = [
        run_sweep(
            [path for path in shards if path != held], settings, valid=held, metric="macro_f1",
            machine=Machine(),
        ).trials
        for held in shards
    ]  # fmt: skip
    for number, trial in enumerate(folds):
        own = [part[number] for part in parts]
        for name in METRICS_OF_MANY:
            assert trial.metrics[name] == sum(part.metrics[name] or 0.0 for part in own) / 3
        widest = max(own, key=lambda part: part.gap)
        assert (trial.gap, trial.certificate["class"]) == (widest.gap, widest.certificate["class"])


# --- workers -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_find_the_table_and_the_model_of_many_classes_that_one_process_finds(
    place: Path, tmp_path: Path, alone: dict[str, Sweep], workers: Workers
) -> None:
    where = {"executor": sweep_executor(workers), "tasks": 2}
    for kind in KINDS:
        found = swept(place, kind, model=tmp_path / kind, **where)
        assert lasting(found.rows()) == lasting(alone[kind].rows())
        best, fit = alone[kind].best.settings, tmp_path / f"{kind} fit"
        fit_alone(place / kind / "train", best, model=fit, machine=Machine())
        assert (tmp_path / kind).read_bytes() == fit.read_bytes()


# --- what is said --------------------------------------------------------------------------------


@pytest.fixture
def said(run: Run) -> list[str]:
    """What a sweep of many classes prints."""
    words = ("--multilabel", "--valid", "held-out", "--C", "0.01,1", "--metric", "macro_roc_auc")
    done = run("multilabel", "sweep", "train", *words, "--model", "m", "--overwrite")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_stdout_says_whose_gap_it_is_and_shows_all_classes_of_the_best(said: list[str]) -> None:
    assert said[0].split()[:4] == ["C", "rho", "macro", "ROC"]
    assert "macro avg. prec." in said[0]
    assert len({len(line.split("certified")[0]) for line in said[1:3]}) == 1
    assert said[3] == "A gap is that of the class with the widest one."
    classes = [line.split()[0] for line in said if line.split(" ")[0] in NAMES]
    assert classes == list(NAMES)
    assert any(line.startswith("certified: the gaps of all 4 classes") for line in said)


def test_the_plot_of_many_classes_names_the_metric_and_the_largest_gap(
    place: Path, run: Run
) -> None:
    words = ("--multiclass", "--valid", "held-out", "--C", "0.1,1", "--metric", "macro_f1")
    assert run("multiclass", "sweep", "train", *words, "--plot", "p.svg").returncode == 0
    drawn = (place / "multiclass" / "p.svg").read_text()
    assert "macro F1" in drawn
    assert ", largest gap" in drawn


def test_the_sentence_of_a_best_that_stopped_early_speaks_of_the_largest_gap(run: Run) -> None:
    words = ("--multiclass", "--valid", "held-out", "--C", "30", "--max-epochs", 1)
    tight = ("--active-set", "4kB", "--tol", 1e-9)
    done = run("multiclass", "sweep", "train", *words, *tight)
    assert done.returncode == 4
    assert "the largest relative duality gap is" in done.stderr


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--multiclass --metric f1", "metric 'f1': of many classes, wanted one of accuracy, micro"),
        ("--metric macro_f1", "metric 'macro_f1': of two classes, wanted one of accuracy, prec"),
    ],
)
def test_a_metric_that_is_not_defined_for_so_many_classes_is_refused_in_a_sentence(
    run: Run, words: str, part: str
) -> None:
    done = run("multiclass", "sweep", "train", "--valid", "held-out", *words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert part in done.stderr


def test_many_classes_of_which_there_are_two_are_refused_and_two_classes_are_not(
    tmp_path: Path, run: Run
) -> None:
    shard = tmp_path / "two.svm"
    shard.write_text("ant 1:1\nbee 2:1\n" * 20)
    done = run("multiclass", "sweep", shard, "--valid", shard, "--multiclass")
    assert done.returncode == 3
    assert "two labels, ant and bee" in done.stderr
    assert run("multiclass", "sweep", shard, "--valid", shard, "--multilabel").returncode == 0


def test_validation_rows_of_classes_that_are_not_fitted_are_never_right(
    place: Path, tmp_path: Path
) -> None:
    settings = candidates("multiclass")[2:3]
    train, held = (place / "multiclass" / name for name in ("train", "held-out"))
    [known] = run_sweep(train, settings, valid=held, machine=Machine()).trials
    strange = tmp_path / "strange.svm"
    strange.write_text("eel 1:1\n" * 300)
    [diluted] = run_sweep(train, settings, valid=[held, strange], machine=Machine()).trials
    assert known.metrics["accuracy"] is not None
    assert diluted.metrics["accuracy"] == known.metrics["accuracy"] / 2
    assert diluted.metrics["macro_recall"] == known.metrics["macro_recall"]
    with pytest.raises(DataError, match="no row has a class of the model"):
        run_sweep(train, settings, valid=strange, machine=Machine())


def test_a_fold_without_a_class_that_weights_name_says_which_fold(tmp_path: Path) -> None:
    for number, label in enumerate(("ant", "bee", "cow")):
        (tmp_path / f"{number}.svm").write_text(f"{label} {number + 1}:1\ndog 4:1\nelk 5:1\n" * 5)
    settings = [Settings(multiclass=True, class_weight={"bee": 2.0})]
    with pytest.raises(streamtron.errors.SettingsError, match=r"^fold 2 of 3: .*label 'bee'"):
        run_sweep(tmp_path, settings, folds=3, machine=Machine())


def test_a_report_of_the_best_has_a_learner_a_class(place: Path, run: Run) -> None:
    words = ("--multiclass", "--valid", "held-out", "--C", "1", "--report", "r.json")
    assert run("multiclass", "sweep", "train", *words).returncode == 0
    report = json.loads((place / "multiclass" / "r.json").read_text())
    assert [each["label"] for each in report["learners"]] == list(NAMES)
