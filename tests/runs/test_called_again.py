"""Changes of a run that are called again: by hand, by a batch, and whatever was killed."""

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
from streamtron.cli import main
from streamtron.cli.batch import command_line
from streamtron.cluster import jobs
from streamtron.cluster.batch import load_batch
from streamtron.cluster.connect import connect
from streamtron.cluster.jobs import JobStatus, run_batch
from streamtron.runs import transaction
from tests.helpers.examples import slow_but
from tests.helpers.jobs import in_process
from tests.helpers.processes import Process
from tests.helpers.runs import write_corpus

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


# --- one change ----------------------------------------------------------------------------------


def test_an_update_that_was_refused_is_made_by_the_same_call_once_the_shard_is_right(
    fitted: Path,
) -> None:
    bad = fitted / "data" / "bad.svm"
    bad.write_text("1 1:x\n")
    words = ["update", str(fitted / "m"), str(bad)]
    assert main._run(words) == 3
    streamtron.update(fitted / "m", fitted / "data" / "2.svm")  # another change in between
    bad.write_text("1 1:1\n")
    assert main._run(words) == 0
    assert shards_of(fitted) == ["0.svm", "2.svm", "bad.svm"]


KILLED = """
import os, signal, sys
from streamtron.cli import main
from streamtron.runs import transaction
where, words = sys.argv[1], sys.argv[2:]

def killed_at(module, name, when):
    real = getattr(module, name)
    def now(*given, **more):
        if when == "before": os.kill(os.getpid(), signal.SIGKILL)
        real(*given, **more)
        if when == "after" or when(*given): os.kill(os.getpid(), signal.SIGKILL)
    setattr(module, name, now)

if where == "before it counts":
    killed_at(transaction, "commit", "before")
elif where == "before it is put in place":
    killed_at(os, "replace", lambda a, b: str(b).endswith("changed"))
else:
    killed_at(transaction, "commit", "after")
sys.exit(main._run(words))
"""

MOMENTS = {
    "before it counts": False,
    "before it is put in place": True,
    "before it has ended": True,
}
"""When a change is killed → whether it counts."""


def killed(place: Path, when: str, *words: str) -> None:
    done = Process(KILLED, when, *words, cwd=place).end()
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize(("active_set", "code"), [(10**9, 0), (60_000, 4)])
@pytest.mark.parametrize(
    "between", slow_but([False, True], True), ids=["at once", "after another change"]
)
def test_an_update_that_is_killed_is_made_once_in_the_end(
    place: Path, between: bool, active_set: int, code: int, when: str,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    streamtron.fit(place / "data" / "0.svm", model=place / "m", active_set=active_set)
    run, report = str(place / "m"), place / "report.json"
    words = ["update", run, str(place / "data" / "1.svm"), "--report", str(report)]
    words += ["--max-epochs", "1", "--tol", "0.01" if code == 0 else "1e-12"]
    killed(place, when, *words)
    names = ["0.svm", "1.svm"]
    if between:
        streamtron.update(place / "m", place / "data" / "2.svm")
        names.insert(2 if MOMENTS[when] else 1, "2.svm")
    assert main._run(words) == code
    assert ("in the run already" in capfd.readouterr().out) == MOMENTS[when]
    assert shards_of(place) == names
    assert json.loads(report.read_text())["rows"] == len(names) * ROWS // 3
    assert not (place / "m.run" / transaction.STAGED).exists()


@pytest.mark.parametrize("when", MOMENTS)
def test_rows_that_a_killed_forget_was_to_take_are_gone_in_the_end(fitted: Path, when: str) -> None:
    streamtron.update(fitted / "m", fitted / "data" / "1.svm")
    words = ["forget", str(fitted / "m"), "0.svm"]
    killed(fitted, when, *words)
    streamtron.update(fitted / "m", fitted / "data" / "2.svm")  # another change in between
    assert main._run(words) == 0
    assert shards_of(fitted) == ["1.svm", "2.svm"]


# --- batches -------------------------------------------------------------------------------------


def _started(place: Path, text: str = BATCH, execute: Any = in_process, **how: Any) -> list[str]:
    """The jobs that one call of a batch starts, in this process unless it matters; all are done
    when it ends."""
    started: list[str] = []

    def note(status: JobStatus) -> None:
        if status.state == "running":
            started.append(status.name)

    (place / "night.toml").write_text(text)
    batch = load_batch(place / "night.toml", partial(command_line, main.streamtron.commands))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "execute", execute)
        statuses = run_batch(batch, tell=note, **how)
    assert {status.name: (status.state, status.sentence) for status in statuses} == {
        status.name: ("done", "") for status in statuses
    }
    return started


def test_jobs_that_change_a_run_in_place_are_done_once(place: Path) -> None:
    assert _started(place) == ["fit", "add", "take"]
    assert shards_of(place) == ["1.svm"]
    assert _started(place) == []


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


KILLED_BATCH = """
import os, signal, sys
from streamtron.cli import main
from streamtron.cluster import jobs
job, when = sys.argv[1:3]

real = jobs._write_status
def write(path, statuses):
    [state] = [status.state for status in statuses if status.name == job]
    if when == "has ended" and state == "done":
        os.kill(os.getpid(), signal.SIGKILL)
    real(path, statuses)
    if when == "has begun" and state == "running":
        os.kill(os.getpid(), signal.SIGKILL)
jobs._write_status = write
sys.exit(main._run(["batch", "night.toml", *sys.argv[3:]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "when"),
    [
        ("add", "has begun"),
        pytest.param("take", "has ended", marks=pytest.mark.slow),
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


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_batch_on_workers_that_is_killed_after_a_change_finishes_when_called_again(
    place: Path,
) -> None:
    (place / "night.toml").write_text(BATCH)
    done = Process(KILLED_BATCH, "add", "has ended", "--workers", "1", cwd=place).end()
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert shards_of(place) == ["0.svm", "1.svm"]
    with connect(1) as workers:
        assert _started(place, workers=workers) == ["add", "take"]
    assert shards_of(place) == ["1.svm"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_batch_killed_at_any_moment_finishes_when_called_again_with_every_change_made_once(
    place: Path, seed: int
) -> None:
    (place / "night.toml").write_text(BATCH)
    command = [sys.executable, "-m", "streamtron", "batch", "night.toml"]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(seed % 6):
        process.stdout.readline()
    _sometime(seed)
    process.kill()
    process.stdout.close()
    process.wait()
    _started(place, execute=jobs.execute)
    assert shards_of(place) == ["1.svm"]
    assert _started(place) == []


def _sometime(seed: int) -> None:
    """A while: the moment of the kill is what varies, nothing is waited for."""
    import random
    import threading

    threading.Event().wait(random.Random(seed).uniform(0.0, 2.0))
