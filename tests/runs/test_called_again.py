"""Batches of changes of a run that are called again, whatever was killed; single changes are in
test_stories."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamtron.cli import main
from streamtron.cli.batch import command_line
from streamtron.cluster import jobs
from streamtron.cluster.batch import load_batch
from streamtron.cluster.connect import connect
from streamtron.cluster.jobs import JobStatus, run_batch
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


def shards_of(place: Path) -> list[str]:
    """The shards that the run has, by name."""
    manifest = json.loads((place / "m.run" / "manifest.json").read_text())
    return [shard["name"] for shard in manifest["shards"]]


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
