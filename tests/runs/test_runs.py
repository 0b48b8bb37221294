"""A run directory: taken up, refused, damaged, in use, on a full disk."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamtron.core import signals as interruption
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, FileDamaged, MachineError, SettingsError
from streamtron.core.events import ChunkDone, Event
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.runs import directory as runs
from streamtron.runs.directory import (
    BEFORE,
    CHECKPOINT,
    CHECKPOINT_VERSION,
    Checkpoint,
    Run,
    open_run,
    put_together,
)
from streamtron.runs.fit import run as fit
from streamtron.runs.outcome import Outcome
from streamtron.solver import train as training
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner
from streamtron.solver.reading import Solve
from streamtron.solver.weights import dense
from tests.helpers.processes import COMMAND, Process, command, here, one_sentence, until
from tests.helpers.runs import WAS_KILLED, at_checkpoint, kept, killed, reached, write_corpus
from tests.helpers.small_disks import PAGE, fill, mounted

SETTINGS = Settings(C=20.0, active_set=100_000)
WORDS = ("fit", "two", "--C", 20, "--active-set", "100000B")


class Stopped(Exception):
    """The process ends here, as far as the run knows."""


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
    """The same, and a run that stopped in its third reading, with two checkpoints."""
    directory = shutil.copytree(whole, tmp_path_factory.mktemp("stopped") / "place")
    stop_after(directory, 7)
    return directory


@pytest.fixture
def stopped(cut_off: Path, tmp_path: Path) -> Path:
    """The same to break."""
    return shutil.copytree(cut_off, tmp_path / "place")


def fitted(place: Path, model: str, settings: Settings = SETTINGS, **more: Any) -> Outcome:
    machine = Machine(**{"checkpoint_every": 0.0, **more.pop("machine", {})})
    return fit(place / "two", settings, model=place / model, machine=machine, **more)


def stop_after(place: Path, chunks: int, **more: Any) -> None:
    """Begin the run ``model`` and stop it behind so many chunks."""
    left = chunks

    def listen(event: Event) -> None:
        nonlocal left
        left -= isinstance(event, ChunkDone)
        if left < 0:
            raise Stopped

    with pytest.raises(Stopped):
        fitted(place, "model", listen=listen, **more)


def as_wanted(place: Path) -> bool:
    return kept(place, "model") == kept(place, "wanted")


def flip(path: Path, at: int) -> None:
    """One bit of the byte there."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << at % 8
    path.write_bytes(data)


# --- taken up ------------------------------------------------------------------------------------


def test_resume_where_nothing_is_begins_and_says_so(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fitted(place, "model", resume=True)
    assert "no checkpoint there; the run starts over" in caplog.text
    assert as_wanted(place)


@pytest.mark.parametrize("what", ["removed", "flipped"])
def test_a_run_is_taken_up_whatever_became_of_its_cache(
    place: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    stop_after(place, 7)
    cache = place / "model.run" / "cache"
    if what == "removed":
        shutil.rmtree(cache)
    else:
        path = min(cache.glob("*.cache"))
        flip(path, path.stat().st_size // 2)
    fitted(place, "model", resume=True)
    assert as_wanted(place)
    assert ("checksum" in caplog.text) == (what == "flipped")


def test_the_report_of_a_run_taken_up_counts_what_was_read_before_and_again(stopped: Path) -> None:
    report = fitted(stopped, "model", resume=True).report
    wanted = json.loads((stopped / "wanted.json").read_text())
    again = report["readings"] - wanted["readings"]
    assert 1.0 <= again < 3.0  # the rows held, and those of the reading so far
    assert report["bytes_read"] > wanted["bytes_read"]
    for name in (
        "rows",
        "columns",
        "nonzeros",
        "full_epochs",
        "stop_reason",
        "certificate",
        "settings",
    ):
        assert report[name] == wanted[name]
    assert [{**one, "seconds": 0} for one in report["stages"]] == [
        {**one, "seconds": 0} for one in wanted["stages"]
    ]
    assert report["seconds"] > max(stage["seconds"] for stage in report["stages"])


def test_the_report_says_what_each_stage_did_newton_steps_included(place: Path) -> None:
    exact = Settings(C=20.0, tol=1e-9)
    report = fitted(place, "exact", exact, report=place / "exact.json").report
    assert json.loads((place / "exact.json").read_text()) == report
    for stage in report["stages"]:
        assert {
            "epsilon", "variant", "b", "b_relative", "full_epochs", "mini_epochs", "newton_steps",
            "updates", "directional_margin", "upper_bound", "paper_upper_bound", "f_est", "seconds",
            "stop_reason",
        } <= set(stage)  # fmt: skip
    assert report["newton_steps"] == sum(stage["newton_steps"] for stage in report["stages"]) > 0
    certificate = report["certificate"]
    assert certificate["primal_objective"] >= certificate["dual_objective"] > 0.0
    assert report["stop_reason"] == "certified"


# --- refused -------------------------------------------------------------------------------------


def test_a_run_that_is_there_is_refused_and_overwrite_begins_anew(stopped: Path) -> None:
    with pytest.raises(SettingsError, match=r"model\.run: a run is there already.*--overwrite"):
        fitted(stopped, "model")
    other = SETTINGS.but(C=1.0)
    fitted(stopped, "model", other, overwrite=True)
    fitted(stopped, "other", other)
    assert kept(stopped, "model") == kept(stopped, "other")


def test_other_settings_are_refused_by_name(stopped: Path) -> None:
    match = r"C is 21\.0, the run has 20\.0 \(and rho, seed\).*except for tol and max_epochs"
    with pytest.raises(SettingsError, match=match):
        fitted(stopped, "model", SETTINGS.but(C=21.0, rho=2.0, seed=5), resume=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("remove", r"the run has other shards \(part-1\.svm is missing\)"),
        ("add", r"the run has other shards \(part-3\.svm is new\)"),
        ("grow", r"part-1\.svm: changed since the run began \(\d+ bytes then, \d+ now"),
        ("touch", r"part-1\.svm: changed since the run began.*or touched\)"),
    ],
)
def test_other_shards_are_refused_by_name(stopped: Path, change: str, sentence: str) -> None:
    shard = stopped / "two" / "part-1.svm"
    if change == "remove":
        shard.unlink()
    elif change == "add":
        shutil.copy(shard, stopped / "two" / "part-3.svm")
    elif change == "grow":
        shard.write_text(shard.read_text() + "1 1:1\n")
    else:
        os.utime(shard, ns=(0, 0))
    with pytest.raises(DataError, match=sentence):
        fitted(stopped, "model", resume=True)
    assert (stopped / "model.run" / CHECKPOINT).exists()


def test_a_record_that_is_none_is_refused_in_a_sentence(stopped: Path) -> None:
    for text in ("", "[]", "{}", "null", "[" * 100_000, '{"run_version": 99}'):
        (stopped / "model.run" / "run.json").write_text(text)
        with pytest.raises(DataError, match=r"run\.json: not the record of a run .*--overwrite"):
            fitted(stopped, "model", resume=True)
    fitted(stopped, "model", overwrite=True)
    assert as_wanted(stopped)


def test_a_file_in_the_directory_s_place_is_refused_in_a_sentence(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(MachineError, match="file"):
        fitted(place, "model", machine={"run_dir": str(place / "file")})


def test_a_run_taken_up_where_nothing_is_left_to_do_can_be_taken_further_as_if_it_had_not_been(
    place: Path,
) -> None:
    held = Settings(C=20.0, tol=0.1)
    for model in ("model", "at once"):
        first = fitted(place, model, held)
    assert fitted(place, "model", held, resume=True).exit_code == 0
    for model in ("model", "at once"):
        further = fitted(place, model, held.but(tol=1e-7), resume=True)
        assert further.exit_code == 0
    assert kept(place, "model") == kept(place, "at once")
    gaps = [one.report["certificate"]["relative_duality_gap"] for one in (first, further)]
    assert gaps[1] <= 1e-7 < gaps[0]


# --- damaged -------------------------------------------------------------------------------------


def test_a_checkpoint_with_one_flipped_bit_or_that_is_none_lets_the_one_before_be_used(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = stopped / "model.run"
    path, sound = directory / CHECKPOINT, (directory / CHECKPOINT).read_bytes()
    newest = Run(directory).load()
    path.unlink()
    before = Run(directory).load()
    assert newest.state.reading == 3
    assert newest.state.content != before.state.content
    header = 8 + int.from_bytes(sound[:8], "little")
    places = [*range(16), *range(16, header, 197), *range(header, len(sound), len(sound) // 60)]
    none = [b"", b"{}", b"PK\x03\x04" * 9, b"\xff" * 7 + b"\x7f{}", (1 << 60).to_bytes(8, "little")]
    for at in [*places, *none]:
        path.write_bytes(sound if isinstance(at, int) else at)
        if isinstance(at, int):
            flip(path, at)
        caplog.clear()
        found = Run(directory).load()
        assert found is not None, at
        assert found.state.content == before.state.content, at
        assert f"{path}: " in caplog.text
        assert not path.exists(), "it would take the place of the sound one"


def test_a_run_both_of_whose_checkpoints_are_damaged_starts_over_and_says_so(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (CHECKPOINT, BEFORE):
        flip(stopped / "model.run" / name, 4000)
    fitted(stopped, "model", resume=True)
    assert caplog.text.count("damaged: its checksum does not match") == 2
    assert "the run starts over" in caplog.text
    assert as_wanted(stopped)


def test_a_checkpoint_of_another_version_is_refused(stopped: Path) -> None:
    path = stopped / "model.run" / CHECKPOINT
    content, arrays = read_sealed(path, "checkpoint")
    write_sealed(path, {**content, "checkpoint_version": 99}, arrays)
    with pytest.raises(DataError, match=f"version 99, this streamtron reads {CHECKPOINT_VERSION}"):
        fitted(stopped, "model", resume=True)
    assert path.exists()


def object_of(fields: list[Any]) -> dict[str, Any]:
    """The first of the fields that is an object."""
    return next(value for _, value in fields if isinstance(value, dict) and "class" in value)


def forged() -> Iterator[tuple[str, Any]]:
    """Ways to spoil the packed fields of a learner, and its arrays."""
    yield "a field is missing", lambda fields, arrays: fields.pop(3)
    yield ("an unknown class", lambda fields, arrays: object_of(fields).update({"class": "Popen"}))
    yield "an unknown array", lambda fields, arrays: fields.append(["weights", {"array": "x"}])
    yield "short weights", lambda fields, arrays: arrays.update(dict.fromkeys(arrays, np.zeros(1)))
    yield "no numbers", lambda fields, arrays: fields.__setitem__(slice(None), [[1, 2]])
    yield (
        "narrower data",
        lambda fields, arrays: arrays.update(
            {name: array[:9] for name, array in arrays.items() if array.dtype == np.float64}
        ),
    )


def whole_vectors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a checkpoint holds, its vectors with all their zeros."""
    content, arrays = read_sealed(path, "checkpoint")
    whole = put_together(arrays, content["sparse"])
    return {**content, "sparse": {}}, {name: dense(array) for name, array in whole.items()}


@pytest.mark.parametrize(("how", "spoil"), list(forged()), ids=[how for how, _ in forged()])
def test_a_sealed_checkpoint_that_is_no_state_of_a_run_is_refused_in_a_sentence(
    stopped: Path, how: str, spoil: Any
) -> None:
    path = stopped / "model.run" / CHECKPOINT
    content, arrays = whole_vectors(path)
    fields = content["state"]["learners"][0]["fields"]["dict"]
    spoil(fields, arrays)
    write_sealed(path, content, arrays)
    with pytest.raises(FileDamaged, match=r"no state of a run .*--overwrite"):
        fitted(stopped, "model", resume=True)


# --- nothing for nothing -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "fit bad --order sequential",
        "fit bad --order sequential --run-dir r",
        "fit bad --memory 1MB --cache-dir c",
        "fit bad --parts 3 --cache-dir c",
        "fit bad --parts 3 --order sequential",
        "fit bad/b.svm",
        "fit bad/c.svm --cache-dir c --run-dir r",
        "sweep bad/b.svm --valid bad/b.svm --C 1",
        "sweep bad/b.svm --valid bad/b.svm --C 1 --cache-dir c",
        "convert bad/b.svm m",
        "generate m --rows 10 --columns 3",
    ],
)
def test_what_fails_leaves_no_empty_directory(words: str, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.svm").write_text("1 1:1\n-1 1:-1\n")
    (tmp_path / "bad" / "b.svm").write_text("3 1:1\n1 1:\n")
    model = ["--model", "m"] if words.startswith(("fit", "sweep")) else []
    ended = here(tmp_path, *words.split(), *model)
    assert ended.returncode in (2, 3, 5), ended
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_an_empty_directory_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "b.svm").write_text("1 1:\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "m.run").mkdir()
    ended = here(tmp_path, "fit", "b.svm", "--model", "m", "--cache-dir", "c")
    assert ended.returncode == 3, ended
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.svm", "c", "m.run"]


def test_a_run_whose_settings_cannot_end_it_is_not_in_the_way_of_the_next_one(place: Path) -> None:
    words = ["fit", "two", "--model", "model"]
    one_sentence(here(place, *words, "--class-weight", "7=2"), 2, "names the label '7'")
    assert here(place, *words).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_on_parts_that_stopped_before_its_first_scan_is_taken_up_on_as_many(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = ["fit", "parts", "--model", "model"]
    (tmp_path / "parts").mkdir()
    for rows in (5000, 6000):
        write_corpus(tmp_path / "parts" / str(rows), rows=rows, noise=0.1)
    assert command(tmp_path, *words[:3], "wanted", "--parts", "2").returncode == 0
    process = Process(COMMAND, *words, "--parts", "2", cwd=tmp_path)
    until(lambda: process.poll() is not None or (tmp_path / "model.run" / "parts").exists())
    process.send_signal(number)
    ended = process.end()
    assert ended.returncode in (143, WAS_KILLED), ended
    if number == signal.SIGTERM:
        assert "Go on from model.run with --resume." in ended.stderr
    assert command(tmp_path, *words, "--resume").returncode == 0
    assert (tmp_path / "model").read_bytes() == (tmp_path / "wanted").read_bytes()


# --- in use --------------------------------------------------------------------------------------


def test_a_run_in_use_is_refused_with_process_and_host_until_that_process_is_gone(
    place: Path,
) -> None:
    words = (*WORDS, "--model", "model", "--tol", "1e-9", "--checkpoint-every", "0s")
    process = Process(COMMAND, *words, cwd=place)
    assert reached(place, "model", process, at_checkpoint(1))
    process.stop()
    other = command(place, *words, "--resume")
    assert other.returncode == 5
    assert f"in use by process {process.pid} on {socket.gethostname()}. Wait" in other.stderr
    process.kill()
    assert process.end().returncode == WAS_KILLED
    settings = SETTINGS.but(tol=1e-9)
    with open_run(
        place / "model.run", settings, stamps(place), place / "model", resume=True
    ) as one:
        assert one.load() is not None


@pytest.mark.parametrize("there_now", [False, True], ids=["no file", "another file"])
def test_a_lock_whose_file_is_removed_just_before_it_is_taken_locks_nothing_and_is_refused(
    there_now: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have made and locked the file that is there now."""
    real = fcntl.flock

    def removed_before(descriptor: int, operation: int) -> None:
        (tmp_path / runs.LOCK).unlink()
        if there_now:
            (tmp_path / runs.LOCK).touch()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with pytest.raises(MachineError, match="in use by another process"), runs.locked(tmp_path):
        pytest.fail("two processes could have the run")
    assert (tmp_path / runs.LOCK).exists() == there_now


def stamps(place: Path) -> list[tuple[str, int, int]]:
    record = json.loads((place / "model.run" / "run.json").read_text())
    return [tuple(stamp) for stamp in record["shards"]]


# --- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_a_sentence_and_it_is_taken_up_to_the_same_model(
    place: Path, number: signal.Signals
) -> None:
    words = [*map(str, WORDS), "--model", "model", "--checkpoint-every", "0s"]
    (place / "model").write_text("the model before")
    ended = killed(place, words, "model", at_checkpoint(2), number)
    assert ended.returncode == 128 + number, ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        f"stopped by {signal.Signals(number).name}; nothing half-written is left. "
        "Go on from model.run with --resume."
    )
    assert ended.stdout == ""
    assert (place / "model").read_text() == "the model before"
    assert not list((place / "model.run").rglob(".streamtron-*"))
    assert not list((place / "model.run").rglob("*.tmp"))
    done = command(place, *words, "--resume")
    assert done.returncode == 0, done.stderr
    assert as_wanted(place)


@pytest.mark.parametrize(("chunks", "border"), [(2, (0, 2)), (5, (1, 2))])
def test_a_signal_waits_for_the_border_and_writes_a_checkpoint_there(
    place: Path, chunks: int, border: tuple[int, int]
) -> None:
    left = chunks

    def listen(event: Event) -> None:
        nonlocal left
        left -= isinstance(event, ChunkDone)
        if left == 0:
            left = -1
            os.kill(os.getpid(), signal.SIGTERM)

    with interruption.signals(), pytest.raises(interruption.Signalled) as stop:
        fitted(place, "model", machine={"checkpoint_every": 1e9}, listen=listen)
    assert stop.value.run == str(place / "model.run")
    found = Run(place / "model.run").load()
    assert (found.state.reading, found.state.chunks) == border
    assert not (place / "model.run" / BEFORE).exists()
    fitted(place, "model", resume=True)
    assert as_wanted(place)


class SlowDisk(Run):
    """Every checkpoint takes some seconds of a clock that only it and its test move."""

    now, saved, takes = 0.0, 0, 2.0

    def save(self, checkpoint: Any) -> None:
        self.now += self.takes
        self.saved += 1


@pytest.mark.parametrize(("every", "least", "most"), [(0.0, 20, 25), (10.0, 5, 5), (1e9, 0, 0)])
def test_checkpoints_between_solves_take_no_more_time_than_solves_and_come_no_oftener_than_asked(
    every: float, least: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(tmp_path)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: disk.now))
    saver = runs.CheckpointWriter(disk, every, lambda state: Checkpoint(state, [], 0, 0, 0.0, {}))
    state = State(0, 0, {}, {})
    for _ in range(100):  # solves of half a second
        disk.now += 0.5
        if saver.checkpoint_due():
            saver.checkpoint(lambda: state)
    assert least <= disk.saved <= most


def test_what_took_long_to_read_is_saved_before_a_solve_however_rare_checkpoints_are_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(tmp_path)
    disk.takes = 5.0
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: disk.now))
    saver = runs.CheckpointWriter(disk, 1e9, lambda state: Checkpoint(state, [], 0, 0, 0.0, {}))
    saved = []
    for seconds in (29.0, 0.9, 0.2, 49.0, 1.1):  # of reading before each solve
        disk.now += seconds
        saver.checkpoint(lambda: State(0, 0, {}, {}))
        saver.before_solves(lambda: State(0, 0, {}, {}))
        saved.append(disk.saved)
    assert saved == [0, 0, 1, 1, 2]


def test_a_run_killed_in_its_first_solve_does_not_start_over_if_its_reading_took_long(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runs, "WORTH_KEEPING", 0.0)

    def interrupted(learner: Learner) -> Solve:
        raise Stopped

    with monkeypatch.context() as solving:
        solving.setattr(training, "finish_reading", interrupted)
        with pytest.raises(Stopped):
            fitted(place, "model", machine={"checkpoint_every": 1e9})
    found = Run(place / "model.run").load()
    assert found.state.reading == 0
    assert found.state.chunks > 1
    fitted(place, "model", resume=True)
    assert "starts over" not in caplog.text
    assert as_wanted(place)


ENDLESS = """
import sys
from pathlib import Path
from streamtron.cli.main import main
from streamtron.core import kernels
from streamtron.solver import batched, subproblem
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


@pytest.mark.parametrize(
    ("call", "settings", "number"),
    [
        pytest.param(
            "subproblem.MiniEpoch make", ("--active-set", "100000B"), signal.SIGTERM,
            marks=pytest.mark.slow,
        ),
        ("kernels combine", (), signal.SIGINT),
        pytest.param(
            "kernels gram_product", ("--multiclass",), signal.SIGTERM, marks=pytest.mark.slow
        ),
        ("kernels visit_ascent_batch", ("--multiclass", "--C", "0.1"), signal.SIGINT),
        ("subproblem.MiniEpoch make", ("--active-set", "100000B"), signal.SIGKILL),
    ],
    ids=["visits", "conjugate gradients", "two threads", "visits of many", "killed"],
)  # fmt: skip
def test_a_signal_amid_a_solve_leaves_it_and_the_last_checkpoint_is_taken_up_to_the_same_model(
    tmp_path: Path, call: str, settings: tuple[str, ...], number: signal.Signals
) -> None:
    is_second_order = "gram" in call or "combine" in call
    columns = 100 if is_second_order else 1500  # Newton's method comes first where they are few
    classes = 9 if "--multiclass" in settings else 2
    write_corpus(tmp_path / "set", rows=3000, columns=columns, classes=classes)
    words = ["fit", "set", *settings, "--threads", "2", "--checkpoint-every", "0s", "--model"]
    process = Process(ENDLESS, *call.split(), *words, "model", cwd=tmp_path)
    assert reached(tmp_path, "model", process, lambda *_: (tmp_path / "begun").exists())
    checkpoint = tmp_path / "model.run" / CHECKPOINT
    before = checkpoint.read_bytes()
    process.send_signal(number)
    ended = process.end()
    assert checkpoint.read_bytes() == before
    if number != signal.SIGKILL:
        assert ended.returncode == 128 + number, ended.stderr
        assert ended.stderr.splitlines()[-1] == (
            f"stopped by {number.name}; nothing half-written is left, and the last checkpoint is "
            "kept. Go on from model.run with --resume."
        )
    assert command(tmp_path, *words, "model", "--resume").returncode == 0
    assert command(tmp_path, *words, "whole").returncode == 0
    assert kept(tmp_path, "model") == kept(tmp_path, "whole")


# --- full disks ----------------------------------------------------------------------------------


def test_a_disk_that_fills_up_keeps_the_checkpoint_before_and_room_lets_the_run_end(
    place: Path, tmp_path: Path
) -> None:
    with mounted(tmp_path / "small", f"size={1 << 22}") as small:
        machine = {"run_dir": str(small), "cache_dir": str(place / "wanted.run" / "cache")}

        def listen(event: Event) -> None:
            if (small / BEFORE).exists() and not (small / "ballast").exists():
                fill(small / "ballast", leave=PAGE)

        with pytest.raises(MachineError, match=r"No space left on device.*--resume continues"):
            fitted(place, "model", machine=machine, listen=listen)
        assert Run(small).load() is not None
        assert not list(small.glob(".streamtron-*"))
        with pytest.raises(MachineError, match="No space left on device"):
            fitted(place, "model", machine=machine, resume=True)
        (small / "ballast").unlink()
        fitted(place, "model", machine=machine, resume=True)
        assert (place / "model").read_bytes() == (place / "wanted").read_bytes()


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
