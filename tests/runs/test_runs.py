"""A run directory: taken up at any of its states to the bytes of the run that nothing
interrupted, refused, damaged, in use, on a full disk."""

import fcntl
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamtron
from streamtron import Machine, Settings
from streamtron.core.errors import DataError, FileDamaged, MachineError, SettingsError
from streamtron.core.events import Event, ReadingDone
from streamtron.core.files import LOCK, locked
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.runs import store
from streamtron.runs.fit import run as fit
from streamtron.runs.memory import plan_memory
from streamtron.runs.report import Outcome
from streamtron.runs.store import DATABASE
from tests.helpers.processes import Process, here, one_sentence
from tests.helpers.runs import (
    gap,
    kept,
    reached,
    state_file,
    stopping,
    write_corpus,
)
from tests.helpers.small_disks import PAGE, fill, mounted
from tests.helpers.svm_text import svm_lines, write_shards

SETTINGS = Settings(C=20.0, active_set=100_000)
WORDS = ("fit", "two", "--C", 20, "--active-set", "100000B")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and the model that nothing interrupted."""
    directory = tmp_path_factory.mktemp("runs")
    write_corpus(directory / "two", rows=9000, noise=0.1)
    fitted(directory, "wanted", report=directory / "wanted.json")
    return directory


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    """The same to break."""
    return shutil.copytree(whole, tmp_path / "place")


@pytest.fixture(scope="module")
def cut_off(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and a run that stopped in its third reading."""
    directory = shutil.copytree(whole, tmp_path_factory.mktemp("stopped") / "place")
    with pytest.raises(InterruptedError):
        fitted(directory, "model", listen=stopping(ReadingDone, 3))
    return directory


@pytest.fixture
def stopped(cut_off: Path, tmp_path: Path) -> Path:
    """The same to break."""
    return shutil.copytree(cut_off, tmp_path / "place")


STATEMENTS = {
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON facts BEGIN DELETE FROM facts; END",
    "a view": "CREATE VIEW v AS SELECT 1",
    "a table more": "CREATE TABLE more (a)",
    "a view in place of a table": "DROP TABLE facts; CREATE VIEW facts AS SELECT 1 name, 1 value",
    "settings that are none": "UPDATE facts SET value = '[]' WHERE name = 'settings'",
    "settings that are no JSON": "UPDATE facts SET value = '{' WHERE name = 'settings'",
    "no settings": "DELETE FROM facts WHERE name = 'settings'",
    "a shard that is none": "UPDATE facts SET value = '[1]' WHERE name = 'given'",
    "an endless size": """UPDATE facts SET value = '[["p", 1e999]]' WHERE name = 'given'""",
    "a state elsewhere": """UPDATE facts SET value = '"../precious"' WHERE name = 'state'""",
    "parts elsewhere": """UPDATE facts SET value = '"../.."' WHERE name = 'parts'""",
    "a model elsewhere": """REPLACE INTO facts VALUES ('model', '"../precious"')""",
    "nested deep": "UPDATE facts SET value = '" + "[" * 100_000 + "' WHERE name = 'settings'",
}
"""What a stranger may have done to a store."""


def fitted(place: Path, model: str, settings: Settings = SETTINGS, **more: Any) -> Outcome:
    machine = Machine(**more.pop("machine", {}))
    return fit(place / "two", settings, model=place / model, machine=machine, **more)


def as_wanted(place: Path) -> bool:
    return kept(place, "model") == kept(place, "wanted")


def test_the_report_of_a_run_taken_up_counts_what_was_read_before(stopped):
    report = fitted(stopped, "model", resume=True).report
    wanted = json.loads((stopped / "wanted.json").read_text())
    same = ("readings", "bytes_read")  # prepared files are found where the run was copied to
    assert [report[name] for name in same] == [wanted[name] for name in same]
    same = ("rows", "columns", "nonzeros", "full_epochs", "stop_reason", "certificate", "settings")
    assert [report[name] for name in same] == [wanted[name] for name in same]
    stages, theirs = report["stages"], wanted["stages"]
    assert report["seconds"] > max(stage["seconds"] for stage in stages)
    seconds = [row["seconds"] for row in report["history"]]
    assert [*seconds, report["seconds"]] == sorted([*seconds, report["seconds"]])
    of_bits = [[{**row, "seconds": 0} for row in r["history"]] for r in (report, wanted)]
    assert of_bits[0] == of_bits[1]
    assert [{**s, "seconds": 0} for s in stages] == [{**s, "seconds": 0} for s in theirs]
    assert report["newton_steps"] == sum(stage["newton_steps"] for stage in stages) > 0
    assert report["stop_reason"] == "certified"


def test_a_run_that_is_there_or_has_other_settings_is_refused_and_overwrite_begins_anew(stopped):
    with pytest.raises(SettingsError, match=r"model\.run: a run is there already.*--overwrite"):
        fitted(stopped, "model")
    match = r"C is 21\.0, the run has 20\.0 \(and rho, seed\).*except for tol and max_epochs"
    with pytest.raises(SettingsError, match=match):
        fitted(stopped, "model", SETTINGS.but(C=21.0, rho=2.0, seed=5), resume=True)
    other = SETTINGS.but(C=1.0)
    fitted(stopped, "model", other, overwrite=True)
    fitted(stopped, "other", other)
    assert kept(stopped, "model") == kept(stopped, "other")


def test_other_shards_are_refused_by_name_and_touched_ones_are_not(stopped):
    shard = stopped / "two" / "part-1.svm"
    before, more = shard.read_text(), stopped / "two" / "part-3.svm"
    for change, sentence in (
        (
            lambda: shard.write_text(before + "1 1:1\n"),
            r"1\.svm: changed since .* --overwrite",
        ),
        (shard.unlink, r"the run has other shards \(part-1\.svm is missing\)"),
        (
            lambda: [path.write_text(before) for path in (shard, more)],
            r"the run has other shards \(part-3\.svm is new\)",
        ),
    ):
        change()
        with pytest.raises(DataError, match=sentence):
            fitted(stopped, "model", resume=True)
        assert state_file(stopped / "model.run").exists()
    more.unlink()
    fitted(stopped, "model", resume=True)
    assert as_wanted(stopped)


def test_a_store_that_is_none_is_refused_in_a_sentence_and_replaced_where_that_is_asked(stopped):
    path = stopped / "model.run" / DATABASE
    sound = path.read_bytes()
    ahead = sound[:18] + b"\2\2" + sound[20:]
    newer = sound[:60] + (99).to_bytes(4, "big") + sound[64:]
    for content in (b"", b"{}", b"SQLite format 3\0", sound[:100], sound[:-4096], ahead, newer):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"run\.sqlite: not the record of a run .*--overwrite"):
            fitted(stopped, "model", resume=True)
    fitted(stopped, "model", overwrite=True)
    assert as_wanted(stopped)


@pytest.mark.parametrize("what", STATEMENTS)
def test_a_store_with_another_schema_or_value_is_refused_in_a_sentence(stopped, what):
    with closing(sqlite3.connect(stopped / "model.run" / DATABASE)) as database, database:
        database.executescript(STATEMENTS[what])
    with pytest.raises(DataError, match=r"(not the record of a run|other shards|not a manifest)"):
        fitted(stopped, "model", resume=True)


def test_a_run_that_is_not_there_begins_where_it_was_to_be_resumed_and_says_so(stopped, caplog):
    shutil.rmtree(stopped / "model.run")
    fitted(stopped, "model", resume=True)
    assert "no state of a reading there; the run starts over" in caplog.text
    assert as_wanted(stopped)


def test_a_state_of_another_version_is_refused(stopped):
    path = state_file(stopped / "model.run")
    content, arrays = read_sealed(path, "state of a run")
    write_sealed(path, {**content, "state_version": 99}, arrays)
    with pytest.raises(DataError, match="version 99, this streamtron reads"):
        fitted(stopped, "model", resume=True)
    assert path.exists()


def _no_number(record: str, name: str) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    def forge(fields: dict[str, Any], arrays: dict[str, Any]) -> None:
        place = fields[record][name]["array"]
        arrays[place] = np.full_like(arrays[place], np.nan)

    return forge


FORGED: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "a field is missing": lambda fields, arrays: fields.pop("scan"),
    "an unknown field": lambda fields, arrays: fields["best"].update(other=1),
    "phases of no name": lambda fields, arrays: fields["progress"].update(phases={}),
    "a stage of no numbers": lambda fields, arrays: fields["progress"]["reports"][0].update(
        full_epochs=[]
    ),
    "no stage": lambda fields, arrays: fields["progress"].update(reports=[]),
    "best weights without a bias": lambda fields, arrays: fields["best"].update(bias=[]),
    "counts that are no numbers": lambda fields, arrays: fields["progress"].update(visited="x"),
    "an end of another name": lambda fields, arrays: fields["progress"].update(finished="x"),
    "an unknown array": lambda fields, arrays: fields["best"].update(w={"array": "x"}),
    "short weights": lambda fields, arrays: arrays.update(dict.fromkeys(arrays, np.zeros(1))),
    "no array": lambda fields, arrays: fields["running"].update(w=3),
    "bounds that exclude each other": lambda fields, arrays: fields["best"].update(
        certificate={**fields["best"]["certificate"], "dual": 1e300}
    ),
    "a bound beyond any": lambda fields, arrays: fields["best"].update(
        certificate={**fields["best"]["certificate"], "dual": -1e308}
    ),
    "a bias feature beyond any": lambda fields, arrays: fields["own"].update(augmentation=-1e308),
    "a stage without ε": lambda fields, arrays: fields["progress"]["reports"][0].update(
        paper={"a": 1}
    ),
    "narrower data": lambda fields, arrays: arrays.update(
        {name: array[:9] for name, array in arrays.items() if array.dtype == np.float64}
    ),
    "no number in the running weights": _no_number("running", "w"),
    "no number in the sums": _no_number("running", "scalars"),
    "no number in the best weights": _no_number("best", "w"),
}
"""Ways to spoil the packed fields of a learner, and its arrays."""


@pytest.mark.parametrize("how", FORGED)
def test_a_sealed_state_that_is_no_state_of_a_run_is_refused_in_a_sentence(stopped, how):
    path = state_file(stopped / "model.run")
    content, arrays = read_sealed(path, "state of a run")
    numbers = arrays.pop("numbers")
    FORGED[how](content["state"]["learners"][0], arrays)
    write_sealed(path, content, {**arrays, "numbers": numbers})
    with pytest.raises(FileDamaged, match=r"no state of a run .*--overwrite"):
        fitted(stopped, "model", resume=True)


@pytest.mark.parametrize(
    "words",
    [
        "fit bad",
        "fit bad --run-dir r",
        "fit bad/b.svm",
        "fit bad/c.svm --cache-dir c --run-dir r",
        "sweep bad/b.svm --valid bad/b.svm --C 1",
        "sweep bad/b.svm --valid bad/b.svm --C 1 --cache-dir c",
        "convert bad/b.svm -o m",
        "generate m --rows 10 --columns 3",
    ],
)
def test_what_fails_leaves_no_empty_directory(words, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.svm").write_text("1 1:1\n-1 1:-1\n")
    (tmp_path / "bad" / "b.svm").write_text("3 1:1\n1 1:\n")
    model = ["--model", "m"] if words.startswith(("fit", "sweep")) else []
    ended = here(tmp_path, *words.split(), *model)
    assert ended.returncode in (2, 3, 5), ended
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]
    if words.startswith("fit bad/b.svm"):  # what was there stays
        for name in ("m.run", "c"):
            (tmp_path / name).mkdir()
        assert here(tmp_path, *words.split(), *model, "--cache-dir", "c").returncode == 3
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "c", "m.run"]


def test_a_run_whose_settings_cannot_end_it_is_not_in_the_way_of_the_next_one(place):
    words = ["fit", "two", "--model", "model"]
    one_sentence(here(place, *words, "--class-weight", "7=2"), 2, "names the label '7'")
    assert here(place, *words).returncode == 0


@pytest.mark.parametrize("there_now", [False, True], ids=["no file", "another file"])
def test_a_lock_whose_file_is_removed_just_before_locks_nothing(there_now, tmp_path, monkeypatch):
    """Another process may have made and locked the file that is there now."""
    real = fcntl.flock

    def removed_before(descriptor: int, operation: int) -> None:
        (tmp_path / LOCK).unlink()
        if there_now:
            (tmp_path / LOCK).touch()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with pytest.raises(MachineError, match="in use by another process"), locked(tmp_path):
        pytest.fail("two processes could have the run")
    assert (tmp_path / LOCK).exists() == there_now


ENDLESS = """
import sys
from pathlib import Path
from streamtron.cli.main import main
from streamtron.core import kernels
from streamtron.solver import subproblem
owner, name = eval(sys.argv.pop(1)), sys.argv.pop(1)
call = getattr(owner, name)
def again_and_again(*arguments):
    Path("begun").touch()
    while True:
        call(*arguments)
setattr(owner, name, again_and_again)
main()
"""
"""A command in which a solve never ends: one of its calls is made again and again."""


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("call", "settings", "number"),
    [
        pytest.param(
            "subproblem.Subproblem mini_epoch", "--active-set 100000B", "SIGTERM", marks=slow
        ),
        ("kernels combine", "", "SIGINT"),
        pytest.param("kernels gram_product", "--multiclass", "SIGTERM", marks=slow),
        ("subproblem.Subproblem mini_epoch", "--active-set 100000B", "SIGKILL"),
    ],
    ids=["visits", "conjugate gradients", "two threads", "killed"],
)
def test_a_signal_amid_a_solve_is_taken_up_to_the_same_model(tmp_path, call, settings, number):
    is_second_order = "gram" in call or "combine" in call
    columns = 100 if is_second_order else 1500  # Newton's method comes first where they are few
    classes = 9 if "--multiclass" in settings else 2
    write_corpus(tmp_path / "set", rows=3000, columns=columns, classes=classes)
    words = f"fit set {settings} --threads 2 --model".split()
    process = Process(ENDLESS, *call.split(), *words, "model", cwd=tmp_path)
    assert reached(tmp_path, "model", process, lambda *_: (tmp_path / "begun").exists())
    process.send_signal(signal.Signals[number])
    ended = process.end()
    if number != "SIGKILL":
        assert ended.returncode == 128 + signal.Signals[number], ended.stderr
        assert ended.stderr == f"stopped by {number}; nothing half-written is left.\n"
    assert here(tmp_path, *words, "model", "--resume").returncode == 0
    assert here(tmp_path, *words, "whole").returncode == 0
    assert kept(tmp_path, "model") == kept(tmp_path, "whole")


def test_a_disk_that_fills_up_keeps_a_state_and_room_lets_the_run_end(place, tmp_path):
    with mounted(tmp_path / "small", f"size={1 << 22}") as small:
        machine = {"run_dir": str(small), "cache_dir": str(place / "wanted.run" / "cache")}

        def listen(event: Event) -> None:
            if [*small.glob("state-*2")] and not (small / "ballast").exists():
                fill(small / "ballast", leave=PAGE)

        with pytest.raises(MachineError, match=r"No space left on device.*--resume continues"):
            fitted(place, "model", machine=machine, listen=listen)
        opened = store.reading(small)
        assert opened.state() is not None
        assert not list(small.glob(".streamtron-*"))
        with pytest.raises(MachineError, match=r"its states, .* need .* are free\. Make room"):
            fitted(place, "model", machine=machine, resume=True)
        (small / "ballast").unlink()
        fitted(place, "model", machine=machine, resume=True)
        assert (place / "model").read_bytes() == (place / "wanted").read_bytes()


def test_a_disk_without_room_for_the_states_is_told_with_figures_before_training(place, tmp_path):
    words = (*WORDS, "--model", "model", "--run-dir", tmp_path / "small", "--log", "log")
    words += ("--cache-dir", place / "wanted.run" / "cache")
    with mounted(tmp_path / "small", f"size={1 << 17}") as small:
        sentence = "states, of 9,000 rows and 300 columns, need 165.6 kB, and"
        one_sentence(here(place, *words), 5, sentence, "kB are free. Make room")
        assert '"step": "train"' not in (place / "log").read_text()
        assert [path.name for path in small.iterdir()] == []


SHARDS, ROWS = 8, 60

PLANS: dict[str, dict[str, Any]] = {
    "all rows held": {"C": 50.0, "tol": 1e-3},
    "to rounding": {"tol": 0.0, "max_epochs": 3},
    "some rows held": {"C": 20.0, "active_set": 20_000, "tol": 1e-3},
    "few rows held": {"C": 20.0, "active_set": 6_000, "max_epochs": 5},
    "no row held": {"C": 20.0, "active_set": 0, "max_epochs": 2},
    "wide": {"C": 50.0, "active_set": 8_000, "max_epochs": 3},
    "margitron": {"stage": "1,0.1", "tol": 0.0, "max_epochs": 4, "mini_epochs": 5},
    "hard margin": {"delta": 0.0, "stage": "1,0.1", "active_set": 6_000, "max_epochs": 4},
    "many classes": {"multiclass": True, "C": 0.3, "active_set": 25_000, "tol": 0.05},
    "many classes, few rows held": {"multiclass": True, "active_set": 6_000, "max_epochs": 3},
    "classes, one after the other": {"multiclass": True, "tol": 0.1},
    "several labels": {"multilabel": True, "active_set": 10_000, "max_epochs": 3},
    "free bias": {"loss": "log_loss", "intercept": "free", "active_set": 6_000, "max_epochs": 5},
    "logistic": {"C": 5.0, "loss": "log_loss", "active_set": 20_000, "tol": 1e-3},
    "hinge": {"loss": "hinge", "active_set": 20_000, "tol": 1e-2},
    "softmax": {"loss": "softmax", "multiclass": True, "active_set": 20_000, "tol": 1e-3},
    "softmax, few rows held": {"loss": "softmax", "multiclass": True, "active_set": 6_000},
    "ridge": {"loss": "squared_error", "C": 5.0, "active_set": 20_000, "tol": 1e-3},
    "elastic net": {"penalty": "elasticnet", "l1_ratio": 0.3, "tol": 1e-3},
    "lasso, few rows held": {"penalty": "l1", "C": 0.2, "active_set": 8_000, "tol": 1e-3},
    "wide lasso": {"penalty": "l1", "active_set": 9_000, "max_epochs": 2},
    "parts": {"C": 5.0, "parts": 3, "active_set": 20_000, "max_epochs": 6},
    "parts, logistic": {"loss": "log_loss", "parts": 3, "active_set": 8_000, "max_epochs": 6},
    "parts, hinge": {"loss": "hinge", "parts": 3, "active_set": 20_000, "max_epochs": 3},
}


def write(directory: Path, settings: dict[str, Any], columns: int) -> list[Path]:
    """Shards of noisy rows, separable ones for the hard margin; nine columns come late, and of four
    classes the last."""
    rng = np.random.default_rng(0)
    rows = np.round(rng.normal(size=(SHARDS * ROWS, columns)), 3)
    rows[rng.random(rows.shape) > 10 / columns] = 0.0
    rows[:ROWS, -9:] = 0.0
    scores = rows @ rng.normal(size=(columns, 4))
    labels = np.sign(scores[:, 0] + (0.0 if "delta" in settings else rng.normal(size=len(rows))))
    if settings.keys() & {"multiclass", "multilabel"}:
        since = np.array([0, ROWS // 2, 3 * ROWS, 7 * ROWS])
        scores[np.arange(len(rows))[:, None] < since] = -np.inf
        labels = scores.argmax(axis=1)
    return write_shards(directory, svm_lines(rows, labels), SHARDS)


@pytest.mark.parametrize("plan", PLANS)
def test_from_every_state_a_run_is_taken_up_to_the_same_bytes(plan, tmp_path, monkeypatch):
    settings = Settings.from_dict(PLANS[plan])
    if "one after" in plan:
        monkeypatch.setattr("streamtron.runs.job.plan_memory", _one_at_a_time)
    shards, run = write(tmp_path, PLANS[plan], 600 if "wide" in plan else 50), tmp_path / "m.run"
    saved: dict[str, Path] = {}  # with the states of the parts

    def listen(event: Event) -> None:
        for path in run.glob("state-*"):
            if path.name not in saved:
                copy = tmp_path / "saved" / path.name
                saved[path.name] = shutil.copytree(run, copy, ignore=lambda *_: ["cache", "lock"])

    def take_up(state: str, settings: Settings) -> Outcome:
        for path in run.iterdir():
            if path.name not in ("cache", "lock"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(saved[state], run, dirs_exist_ok=True)
        (tmp_path / "m").unlink()
        return streamtron.run(shards, settings, model=tmp_path / "m", resume=True)

    streamtron.run(shards, settings, model=tmp_path / "m", listen=listen)
    whole, states = kept(tmp_path, "m"), [*saved]
    assert states
    for state in states:
        take_up(state, settings)
        assert kept(tmp_path, "m") == whole, states.index(state)
    if settings.hard or plan in ("margitron", "wide lasso"):
        return
    finer = settings.but(tol=settings.tol / 10, max_epochs=200)
    ended = streamtron.run(shards, finer, model=tmp_path / "m", resume=True)
    for outcome in (ended, take_up(states[len(states) // 2], finer)):
        for learner in outcome.report.get("learners", [outcome.report]):
            assert learner["certificate"]["rows_scanned"] == SHARDS * ROWS
            gap = learner["certificate"]["relative_duality_gap"]
            crawls = plan == "no row held" and outcome is ended  # its first readings are not redone
            assert gap <= (0.01 if crawls else finer.tol) or not settings.tol


LIMITED: dict[str, dict[str, Any]] = {
    "few rows held": {"C": 20.0, "active_set": 6_000},
    "classes, one after the other": {"multiclass": True, "active_set": 6_000},
    "parts": {"C": 20.0, "parts": 3, "active_set": 8_000},
    "the paper's stages": {"stage": "1,0.1", "mini_epochs": 5},
    "lasso": {"penalty": "l1", "C": 0.2, "active_set": 8_000},
}


@pytest.mark.parametrize("plan", LIMITED)
def test_when_time_is_up_a_run_ends_with_what_is_proven_and_can_be_resumed(
    plan, tmp_path, monkeypatch
):
    settings = Settings.from_dict({"tol": 1e-7, **LIMITED[plan]})
    shards = write(tmp_path, LIMITED[plan], 50)
    if "one after" in plan:
        monkeypatch.setattr("streamtron.runs.job.plan_memory", _one_at_a_time)
    limited = streamtron.run(shards, settings, model=tmp_path / "m", time_limit=0)
    report = limited.report
    assert (limited.stop_reason, limited.exit_code) == ("time limit", 4)
    for learner in report.get("learners", [report]):
        assert learner["stop_reason"] == "time limit"
        assert 1e-7 < learner["certificate"]["relative_duality_gap"] <= 1.0
        assert learner["certificate"]["rows_scanned"] == SHARDS * ROWS
    assert streamtron.certify(tmp_path / "m").certificate.rows_scanned == SHARDS * ROWS
    finer = settings.but(tol=1e-3)
    ended = streamtron.run(shards, finer, model=tmp_path / "m", resume=True, time_limit="1h")
    assert "time limit" not in ended.stop_reason
    assert gap(ended.report) < gap(report)
    if not settings.paper:
        assert ended.exit_code == 0


def _one_at_a_time(*known: Any) -> Any:
    return plan_memory(*known)._replace(at_once=1)


def test_an_update_whose_time_is_up_is_a_change_that_the_next_one_goes_on_from(tmp_path):
    shards = write(tmp_path, {}, 50)
    settings = Settings(C=20.0, active_set=6_000)
    streamtron.run(shards[:5], settings, model=tmp_path / "m")
    words = ("update", "m", *shards[5:7], "--tol", "1e-6", "--time-limit", "0s", "--report", "r")
    ended = here(tmp_path, *words)
    assert (ended.returncode, "--time-limit" in ended.stderr) == (4, True)
    report = json.loads((tmp_path / "r").read_text())
    assert (report["stop_reason"], report["rows"]) == ("time limit", 7 * ROWS)
    updated = streamtron.update(tmp_path / "m", shards[7])
    assert (updated.exit_code, updated.report["rows"]) == (0, 8 * ROWS)
    one_sentence(here(tmp_path, *words[:-4], "--time-limit", "soon"), 2, "s, m or h, as in 5m")


def tampered(shard: Path) -> None:
    """Other bytes under the same size and time."""
    status, content = shard.stat(), shard.read_text()
    shard.write_text(content.replace("1 1:1 2", "0 1:1 2"))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_run_whose_shard_was_replaced_at_the_same_time_does_not_go_on(parts, ended, tmp_path):
    """Nor does a part that is opened again on another machine, which sees other bytes. Of a hinge
    an old sum of its losses would have made the dual bound a false one."""
    rows = "".join(f"{k % 3 > 0:d} 1:1 {2 + (k * k) % 7}:1\n" for k in range(300))
    for name in "ab":
        (tmp_path / f"{name}.svm").write_text(f"1 9:{ord(name)}\n" + rows)
    how: dict[str, Any] = {"loss": "hinge", "parts": parts, "tol": 0.0, "active_set": 9000}
    how["model"] = tmp_path / "m"

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone) and event.reading == 2 and not ended:
            raise KeyboardInterrupt

    with nullcontext() if ended else pytest.raises(KeyboardInterrupt):
        streamtron.fit(tmp_path / "*.svm", **how, max_epochs=3, listen=listen)
    shutil.rmtree(tmp_path / "m.run" / "cache")
    tampered(tmp_path / "b.svm")
    with pytest.raises(DataError, match=r"^b\.svm: changed since the run began.* --overwrite"):
        streamtron.fit(tmp_path / "*.svm", **how, max_epochs=9, resume=True)
    if ended and parts == 1:
        (tmp_path / "new").write_text("1 1:1\n0 2:1\n" * 200)
        with pytest.raises(DataError, match="its contents differ"):
            streamtron.update(tmp_path / "m", tmp_path / "new")
