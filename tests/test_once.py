"""Changes of a run that are made once: by the command line, by a batch, and whatever is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron import changes, cli, once
from streamtron.batch import load_batch
from streamtron.cluster import connect
from streamtron.commands.batch import command_line
from streamtron.errors import DataError
from streamtron.jobs import Fate, on_workers, one_by_one, run_batch
from tests.processes import Process
from tests.runs import write_corpus
from tests.test_batch import in_process

ROWS = 3000

BATCH = """
[[job]]
name = "fit"
command = "fit"
shards = ["data/0.svm"]
model = "m"

[[job]]
name = "add"
command = "update"
run = "m"
shards = "data/1.svm"
report = "add.json"
after = "fit"

[[job]]
name = "take"
command = "forget"
run = "m"
shards = "0.svm"
after = "add"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with three shards in ``data``."""
    write_corpus(tmp_path / "made", rows=ROWS, columns=60, noise=0.1)
    (tmp_path / "data").mkdir()
    for number, shard in enumerate(sorted((tmp_path / "made").iterdir())):
        shard.rename(tmp_path / "data" / f"{number}.svm")
    return tmp_path


@pytest.fixture
def fitted(place: Path) -> Path:
    """The same, and ``m``, fitted on the first shard."""
    streamtron.fit(place / "data" / "0.svm", model=place / "m")
    return place


def shards_of(place: Path) -> list[str]:
    """The shards that the run has, by name."""
    manifest = json.loads((place / "m.run" / "manifest.json").read_text())
    return [shard["name"] for shard in manifest["shards"]]


def update(place: Path, name: str, *more: str) -> int:
    shard, run = place / "data" / "1.svm", place / "m"
    return cli._run(["update", str(run), str(shard), "--once", name, *more])


# --- one change ----------------------------------------------------------------------------------


def test_a_change_that_was_made_is_not_made_again_and_ends_with_the_same_code(
    fitted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert update(fitted, "monday", "--tol", "1e-13", "--max-epochs", "1") == 4
    model = (fitted / "m").read_bytes()
    capfd.readouterr()
    assert update(fitted, "monday") == 4
    assert "has had the change monday before" in capfd.readouterr().out
    assert (fitted / "m").read_bytes() == model
    assert once.made(fitted / "m.run", "tuesday") is None


def test_a_change_that_was_refused_has_not_been_made(fitted: Path) -> None:
    bad = fitted / "data" / "bad.svm"
    bad.write_text("1 1:x\n")
    words = ["update", str(fitted / "m"), str(bad), "--once", "monday"]
    assert cli._run(words) == DataError.exit_code
    assert once.made(fitted / "m.run", "monday") is None
    bad.write_text("1 1:1\n")
    assert cli._run(words) == 0
    assert shards_of(fitted) == ["0.svm", "bad.svm"]


def test_a_run_that_is_fitted_anew_has_had_no_change(fitted: Path) -> None:
    assert update(fitted, "monday") == 0
    assert once.made(fitted / "m.run", "monday") == 0
    words = ["fit", str(fitted / "data" / "0.svm"), "--model", str(fitted / "m"), "--overwrite"]
    assert cli._run(words) == 0
    assert once.made(fitted / "m.run", "monday") is None
    assert update(fitted, "monday") == 0
    assert shards_of(fitted) == ["0.svm", "1.svm"]


def test_other_changes_in_between_do_not_undo_that_one_was_made(fitted: Path) -> None:
    assert update(fitted, "monday") == 0
    streamtron.update(fitted / "m", fitted / "data" / "2.svm")
    assert once.made(fitted / "m.run", "monday") == 0


def test_a_damaged_ledger_is_a_sentence(fitted: Path) -> None:
    for content in ("{", "[]", '{"made": 1, "begun": null}', '{"made": {}, "begun": 3}'):
        (fitted / "m.run" / "once.json").write_text(content)
        with pytest.raises(DataError, match="not a run's ledger"):
            once.made(fitted / "m.run", "monday")


KILLED = """
import os, signal, sys
from streamtron import changes, cli, once
where, words = sys.argv[1], sys.argv[2:]

def killed_at(module, name, after):
    real = getattr(module, name)
    def now(*given, **more):
        if after:
            real(*given, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(module, name, now)

name, after = {
    "before it counts": ("finish", False), "before it is put in place": ("settle", False),
    "before it is noted": ("end", False), "when it is noted": ("end", True),
}[where]
if name == "settle":
    real = os.replace
    def renamed(a, b):
        real(a, b)
        if str(b).endswith("changed"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.replace = renamed
else:
    killed_at(once if name == "end" else changes, name, after)
sys.exit(cli._run(words))
"""

MOMENTS = {
    "before it counts": False,
    "before it is put in place": True,
    "before it is noted": True,
    "when it is noted": True,
}
"""When a change is killed → whether it has been made."""


def killed(place: Path, when: str, *words: str) -> None:
    done = Process(KILLED, when, *words, cwd=place).end()
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("tol", ["0.01", "1e-13"])
def test_a_change_that_is_killed_is_made_once_in_the_end(
    fitted: Path, when: str, tol: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run, report = str(fitted / "m"), fitted / "report.json"
    words = ["update", run, str(fitted / "data" / "1.svm"), "--once", "monday"]
    words += ["--tol", tol, "--max-epochs", "1", "--report", str(report)]
    killed(fitted, when, *words)
    assert (once.made(run + ".run", "monday") is not None) == MOMENTS[when]
    model = (fitted / "m").read_bytes()
    assert cli._run(words) == (0 if tol == "0.01" else 4)
    assert ("has had the change" in capfd.readouterr().out) == MOMENTS[when]
    assert ((fitted / "m").read_bytes() == model) == MOMENTS[when]
    assert shards_of(fitted) == ["0.svm", "1.svm"]
    assert json.loads(report.read_text())["rows"] == 2 * ROWS // 3
    assert not (fitted / "m.run" / changes.UNDER_WAY).exists()


# --- batches -------------------------------------------------------------------------------------


def _started(place: Path, text: str = BATCH, runner: Any = in_process, **how: Any) -> list[str]:
    """The jobs that one call of a batch starts, in this process unless it matters; all are done
    when it ends."""
    started: list[str] = []

    def listen(fate: Fate) -> None:
        if fate.state == "running":
            started.append(fate.name)

    (place / "night.toml").write_text(text)
    fates = run_batch(
        load_batch(place / "night.toml", partial(command_line, cli.streamtron.commands)),
        runner,
        listen=listen,
        **how,
    )
    assert {fate.name: (fate.state, fate.sentence) for fate in fates} == {
        fate.name: ("done", "") for fate in fates
    }
    return started


def test_jobs_that_change_a_run_in_place_are_done_once(place: Path) -> None:
    assert _started(place) == ["fit", "add", "take"]
    assert shards_of(place) == ["1.svm"]
    assert _started(place) == []


def test_a_change_is_made_again_on_a_run_that_somebody_has_fitted_anew(place: Path) -> None:
    _started(place)
    words = ["fit", str(place / "data" / "0.svm"), "--model", str(place / "m"), "--overwrite"]
    assert cli._run(words) == 0
    assert _started(place) == ["add", "take"]
    assert shards_of(place) == ["1.svm"]


def test_a_batch_that_is_to_run_again_makes_every_change_again(place: Path) -> None:
    _started(place)
    assert _started(place, again=True) == ["fit", "add", "take"]
    assert shards_of(place) == ["1.svm"]
    assert _started(place) == []


def test_settings_that_changed_before_a_change_make_it_again(place: Path) -> None:
    _started(place)
    other = BATCH.replace('model = "m"\n', 'model = "m"\nC = 2.0\n', 1)
    assert _started(place, other) == ["fit", "add", "take"]
    assert shards_of(place) == ["1.svm"]


def test_a_change_without_a_name_in_the_status_file_is_not_taken_for_done(place: Path) -> None:
    _started(place)
    status = place / "night.status.json"
    content = json.loads(status.read_text())
    for fate in content["jobs"]:
        fate["once"] = None
    status.write_text(json.dumps(content))
    [batch] = [load_batch(place / "night.toml", partial(command_line, cli.streamtron.commands))]
    fates = run_batch(batch, one_by_one, listen=lambda _: None)
    assert [(fate.name, fate.state) for fate in fates] == [
        ("fit", "done"), ("add", "failed"), ("take", "skipped"),
    ]  # fmt: skip
    assert "0.svm" in fates[1].sentence or "1.svm: the run has it already" in fates[1].sentence


KILLED_BATCH = """
import os, signal, sys
from streamtron import cli, jobs
job, when = sys.argv[1:3]

real = jobs._Board.tell
def tell(board, name, what):
    if name == job and when == "has ended" and what != "running":
        os.kill(os.getpid(), signal.SIGKILL)
    real(board, name, what)
    if name == job and when == "has begun" and what == "running":
        os.kill(os.getpid(), signal.SIGKILL)
jobs._Board.tell = tell
sys.exit(cli._run(["batch", "night.toml", *sys.argv[3:]]))
"""


@pytest.mark.parametrize(
    ("job", "when"),
    [
        ("add", "has begun"),
        ("take", "has ended"),
        pytest.param("add", "has ended", marks=pytest.mark.slow),
        pytest.param("take", "has begun", marks=pytest.mark.slow),
        pytest.param("fit", "has begun", marks=pytest.mark.slow),
        pytest.param("fit", "has ended", marks=pytest.mark.slow),
    ],
)
def test_a_batch_killed_before_it_knew_what_became_of_a_change_finishes_when_called_again(
    place: Path, job: str, when: str
) -> None:
    (place / "night.toml").write_text(BATCH)
    done = Process(KILLED_BATCH, job, when, cwd=place).end()
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = ["fit", "add", "take"]
    assert _started(place) == names[names.index(job) :]
    assert shards_of(place) == ["1.svm"]
    assert _started(place) == []


def test_a_batch_on_workers_that_is_killed_after_a_change_finishes_when_called_again(
    place: Path,
) -> None:
    (place / "night.toml").write_text(BATCH)
    done = Process(KILLED_BATCH, "add", "has ended", "--workers", "1", cwd=place).end()
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert once_names(place) == ["add"]
    with connect(1) as workers:
        assert _started(place, runner=on_workers(workers)) == []  # it is not told who begins
    assert shards_of(place) == ["1.svm"]


def once_names(place: Path) -> list[str]:
    """The jobs whose change the run has had."""
    ledger = json.loads((place / "m.run" / "once.json").read_text())
    return [name.rsplit("-", 1)[0] for name in ledger["made"]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_batch_killed_at_any_moment_finishes_when_called_again_with_every_change_made_once(
    place: Path, seed: int
) -> None:
    (place / "night.toml").write_text(BATCH)
    command = [sys.executable, "-m", "streamtron.cli", "batch", "night.toml"]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(seed % 6):
        process.stdout.readline()
    _sometime(seed)
    process.kill()
    process.stdout.close()
    process.wait()
    _started(place, runner=one_by_one)
    assert shards_of(place) == ["1.svm"]
    assert _started(place) == []


def _sometime(seed: int) -> None:
    """A while: the moment of the kill is what varies, nothing is waited for."""
    import random
    import threading

    threading.Event().wait(random.Random(seed).uniform(0.0, 2.0))
