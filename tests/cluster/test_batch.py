"""Batch jobs: what a file may say, what runs and what does not, and what survives a kill."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamtron.cli import main
from streamtron.cli.batch import load_jobs
from streamtron.cluster import batch as batches
from streamtron.cluster.batch import Job, Status, run_batch
from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.data.writers.corpus import generate
from tests.helpers.models import refused
from tests.helpers.processes import COMMAND, Process, here, until


def job(name: str, command: str, **more: Any) -> str:
    """A job in TOML, which takes the values of JSON."""
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in more.items()]
    return f'[[job]]\nname = "{name}"\ncommand = {json.dumps(command)}\n{"".join(lines)}'


MAKE = job("make", "generate train --rows 400 --columns 200 --shards 2 --overwrite")
HOLD = job("hold", "generate held-out --rows 100 --columns 200 --skip 400 --overwrite", after=[])
TABLE = job("table", "convert held-out -o table --overwrite")
TRAIN = job("train", "fit train --model model --C 0.5", after=["make"])
SCORE = job("score", "predict model held-out/*.svm -o new.tsv", after=["train", "hold"])
ALL = MAKE + HOLD + TABLE + TRAIN + SCORE
LONG = job("long", "generate long --rows 30000000")
SHORT = LONG.replace("30000000", "9 --columns 80")


def load(directory: Path, text: str) -> list[Job]:
    (directory / "night.toml").write_text(text)
    return load_jobs(str(directory / "night.toml"), main.streamtron)


def in_process(job: Job, words: list[str]) -> tuple[int | None, str]:
    """Execute a job without a process, for tests that are not about them."""
    code, _, said = here(Path(job.logs).parent, *words)
    return code, said.strip().rpartition("\n")[2] if code else ""


def run(directory: Path, text: str, execute: Any = in_process, **how: Any) -> list[Status]:
    """Every job's status after one call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "execute", execute)
        return list(run_batch(load(directory, text), **how))


def started(directory: Path, text: str, **how: Any) -> list[str]:
    """The jobs that one call starts."""
    names: list[str] = []

    def noting(job: Job, words: list[str]) -> tuple[int | None, str]:
        names.append(job.name)
        return in_process(job, words)

    run(directory, text, noting, **how)
    return names


def states(directory: Path) -> dict[str, str]:
    files = sorted((directory / "night.logs").glob("*.json"))
    return {path.stem: json.loads(path.read_text())["state"] for path in files}


def test_a_job_comes_after_those_it_names_and_by_default_after_all_above_it(tmp_path):
    assert {one.name: one.after for one in load(tmp_path, ALL)} == {
        "make": [],
        "hold": [],
        "table": ["make", "hold"],
        "train": ["make"],
        "score": ["train", "hold"],
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[job]\n", "cannot be read as TOML"),
        ("", "expected [[job]] tables"),
        (MAKE + "[settings]\nC=1\n", "expected [[job]] tables"),
        (MAKE + MAKE, "number 2: 'make': expected a new name"),
        (job("../a", "fit a --model m"), "'../a': expected a new name"),
        (job("a", "fit a --model m", shards="a"), "expected name, command and no other key"),
        (job("a", "batch a.toml"), "expected a command of streamtron, found 'batch a.toml'"),
        (job("a", "fit 'a"), "No closing quotation"),
        (job("a", "fit a --Cc 1 --model m"), "No such option"),
        (job("a", "fit a"), "Missing option '--model'"),
        (job("a", "fit a --model m", after=["b"]), "after names 'b', which is no job above it"),
        (job("a", "fit a --model m", after=3), "after is 3, expected a list"),
    ],
)
def test_a_file_is_refused_before_anything_runs(tmp_path, text, sentence):
    message = refused(lambda: load(tmp_path, text), SettingsError)
    assert sentence in message
    assert message.startswith(str(tmp_path / "night.toml"))


def test_a_batch_runs_once_imports_nothing_that_lies_beside_it_and_shows_status(tmp_path, capfd):
    for name in ("click", "numpy", "streamtron", "socket"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\n")
    (tmp_path / "night.toml").write_text(HOLD + TABLE)
    command = ["batch", str(tmp_path / "night.toml")]
    assert main._run([*command, "--status"]) == 0
    assert "hold (generate): waiting\ntable (convert): waiting\n" in capfd.readouterr().out
    assert main._run(command) == 0
    said = capfd.readouterr().out
    assert said.startswith("hold (generate): done\ntable (convert): done\n")
    assert said.endswith("night.toml: 2 of 2 jobs done\n")
    assert not (tmp_path / "imported").exists()
    assert "100 rows" in (tmp_path / "night.logs" / "table.out").read_text()
    assert main._run(command) == main._run([*command, "--status"]) == 0
    assert capfd.readouterr().out == 2 * said


def test_a_job_that_fails_gives_the_exit_code_and_those_after_it_are_skipped(tmp_path, capfd):
    (tmp_path / "held-out").mkdir()
    (tmp_path / "held-out" / "a.svm").write_text("1 1:x\n")
    text = TABLE + job("last", "inspect table")
    (tmp_path / "night.toml").write_text(text)
    for more in ([], ["--status"]):
        code = main._run(["batch", str(tmp_path / "night.toml"), *more])
        assert code == DataError.exit_code
        out, err = capfd.readouterr()
        assert "table (convert): failed: a.svm, line 1" in out
        assert "last (inspect): skipped" in out
        assert "0 of 2 jobs done" in err
    (tmp_path / "held-out" / "a.svm").write_text("1 1:1\n")
    assert started(tmp_path, text) == ["table", "last"]


def test_a_job_and_those_after_it_run_again_if_its_command_changed_and_all_if_asked_to(tmp_path):
    assert started(tmp_path, ALL) == ["make", "hold", "table", "train", "score"]
    assert started(tmp_path, ALL) == []
    other = ALL.replace("--C 0.5", "--C 0.6")
    assert started(tmp_path, other) == ["train", "score"]
    assert started(tmp_path, other) == []
    assert len(started(tmp_path, other, again=True)) == 5
    assert set(states(tmp_path).values()) == {"done"}


def test_a_fit_that_was_cut_off_resumes_and_begins_anew_where_its_command_has_changed(tmp_path):
    generate(str(tmp_path / "train"), rows=40, columns=80, seed=0)
    given: list[list[str]] = []

    def cut_off(job: Job, words: list[str]) -> tuple[int | None, str]:
        with pytest.raises(MachineError, match=r"night\.logs: in use by process \d+"):
            run(tmp_path, train)
        given.append(words)
        raise KeyboardInterrupt

    train = TRAIN.replace('after = ["make"]\n', "")
    for text in (train, train, train.replace("--C 0.5", "--C 0.6")):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, text, cut_off)
        assert states(tmp_path) == {"train": "stopped"}
    ends = [{"--resume", "--overwrite"} & {*words} for words in given]
    assert ends == [set(), {"--resume"}, {"--overwrite"}]


def test_jobs_that_change_a_run_are_done_once(tmp_path):
    generate(str(tmp_path / "data"), rows=2000, columns=80, seed=0, shards=2)
    text = job("fit", "fit data/part-00000.svm --model m")
    text += job("add", "update m data/part-00001.svm") + job("take", "forget m part-00000.svm")
    assert started(tmp_path, text) == ["fit", "add", "take"]
    assert started(tmp_path, text) == []
    assert started(tmp_path, text, again=True) == ["fit", "add", "take"]


@pytest.mark.parametrize(("accept", "last"), [(True, "done"), (False, "skipped")])
def test_jobs_after_a_fit_that_stopped_early_run_only_if_that_is_accepted(tmp_path, accept, last):
    generate(str(tmp_path / "train"), rows=400, columns=200, seed=0)
    how = "fit train --model m --stage 1 --max-epochs 1"
    text = job("a", how, accept_uncertified=accept) + job("see", "inspect m")
    fitted, seen = run(tmp_path, text)
    assert fitted.exit_code == 4
    assert "the tolerance was certified" in fitted.sentence
    assert seen.state == last


@pytest.fixture
def under_way(tmp_path) -> Iterator[Process]:
    """A batch whose second job, which takes minutes, has begun to write."""
    assert started(tmp_path, MAKE) == ["make"]
    (tmp_path / "night.toml").write_text(MAKE + LONG)
    process = Process(COMMAND, "batch", "night.toml", cwd=tmp_path)
    until(lambda: any(tmp_path.glob(".long.streamtron-*/new/part*")))
    yield process
    process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_batch_that_is_ended_leaves_no_job_behind_and_finishes_when_called_again(
    under_way, tmp_path, number
):
    under_way.send_signal(number)
    assert under_way.end().returncode == (143 if number == signal.SIGTERM else -number)
    state = "stopped" if number == signal.SIGTERM else "running"
    assert states(tmp_path) == {"make": "done", "long": state}
    until(lambda: not any(tmp_path.glob(".long.streamtron-*")))  # the job has seen that it is alone
    assert started(tmp_path, MAKE + SHORT) == ["long"]
    assert states(tmp_path) == {"make": "done", "long": "done"}


def test_a_batch_on_workers_ends_as_one_by_one_and_cancelled_jobs_end(tmp_path, workers, guest):
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    refused = LONG.replace("30000000", "9 --columns 9")
    text = MAKE + refused + job("last", "inspect long")
    alone, together = run(one, text), list(run_batch(load(many, text), workers))
    assert [status.state for status in together] == ["done", "failed", "skipped"]
    assert [status[:5] for status in together] == [status[:5] for status in alone]
    shard = Path("train") / "part-00000.svm"
    assert (many / shard).read_bytes() == (one / shard).read_bytes()
    statuses = run_batch(load(many, MAKE + LONG), guest, again=True)
    assert next(statuses).state == "done"
    until(lambda: states(many)["long"] == "running")
    statuses.close()
    until(lambda: states(many)["long"] == "stopped")
    assert not [*(many / "long").glob("*")]
