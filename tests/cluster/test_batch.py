"""Batch jobs: what a file may say, what runs and what does not, and what survives a kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron.cli import main
from streamtron.cli.batch import command_line
from streamtron.cluster import jobs
from streamtron.cluster.batch import Batch, Job, load_batch, state_of
from streamtron.cluster.jobs import Ended, JobStatus, exit_code, run_batch
from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.data.writers.corpus import generate
from tests.helpers.examples import slow_but
from tests.helpers.models import refused
from tests.helpers.processes import COMMAND, Process, here, until


def text_of(name: str, command: str, **values: Any) -> str:
    """A job in TOML, which takes the values of JSON."""
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    return f'[[job]]\nname = "{name}"\ncommand = "{command}"\n{"".join(lines)}'


MAKE = text_of("make", "generate", directory="train", rows=400, columns=200, shards=2)
HOLD = text_of("hold", "generate", directory="held-out", rows=100, columns=200, skip=400)
TABLE = text_of(
    "table", "convert", after="hold", shards="held-out", destination="table", format="parquet"
)
TRAIN = text_of("train", "fit", after=["make", "table"], shards=["train"], model="model", C=0.5)
SCORE = text_of(
    "score", "predict", after="train", model="model", shards=["held-out"], output="new.tsv"
)


def _load(directory: Path, text: str) -> Batch:
    path = directory / "night.toml"
    path.write_text(text)
    return load_batch(path, partial(command_line, main.streamtron.commands))


def in_process(batch: Batch, job: Job, _: object = None) -> Ended:
    """Execute a job without a process, for what is not about them: the real command, fast."""
    code, _, said = here(Path(batch.path).parent, *job.words)
    return Ended(job.name, code, said.strip().rpartition("\n")[2] if code else "")


def _run(directory: Path, text: str, **how: Any) -> dict[str, JobStatus]:
    """Every job's status after one call; ``execute`` takes the place of a job's process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "execute", how.pop("execute", jobs.execute))
        how = {"tell": lambda _: None, **how}
        statuses = run_batch(_load(directory, text), **how)
    return {status.name: status for status in statuses}


def _started(directory: Path, text: str, **how: Any) -> list[str]:
    """The jobs that one call starts."""
    started: list[str] = []

    def note(status: JobStatus) -> None:
        if status.state == "running":
            started.append(status.name)

    _run(directory, text, tell=note, **{"execute": in_process, **how})
    return started


def _states(directory: Path) -> dict[str, str]:
    content = json.loads((directory / "night.status.json").read_text())
    return {status["name"]: status["state"] for status in content["jobs"]}


# --- what a file may say -------------------------------------------------------------------------


FIT = "[[job]]\nname='a'\ncommand='fit'\nshards='a'\nmodel='m'\n"
OTHER = FIT.replace("'a'", "'b'")


def test_jobs_come_behind_those_they_need_and_else_as_in_the_file(tmp_path):
    jobs = _load(tmp_path, SCORE + MAKE + HOLD + TABLE + TRAIN).jobs
    assert [job.name for job in jobs] == ["make", "hold", "table", "train", "score"]
    assert jobs[3].words == ("fit", "--C=0.5", "--model=model", "--", "train")
    assert jobs[3].outputs == (str(tmp_path / "model"),)


def test_values_are_written_as_on_the_command_line(tmp_path):
    fit = FIT + "b = [5, 0.1]\nstage = '1,0.1'\nclass_weight = {1 = 2, -1 = 0.5}\n"
    fit += "faithful = true\nallow_duplicate = false\nactive_set = '10MB'\n"
    sweep = "[[job]]\nname='s'\ncommand='sweep'\nshards='a'\ntable='t.csv'\nvalid = ['b', 'c']\n"
    sweep += "loss = 'huber'\nepsilon = 0.5\n"
    first, second = _load(tmp_path, fit + sweep).jobs
    assert {
        "--b=5,0.1",
        "--stage=1,0.1",
        "--class-weight=1=2,-1=0.5",
        "--faithful",
        "--no-allow-duplicate",
        "--active-set=10MB",
    } <= set(first.words)
    assert {"--valid=b", "--valid=c"} <= set(second.words)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[job]\n", "cannot be read as TOML"),
        ("[job]\nname='a'", "wanted [[job]] tables"),
        ("", "wanted [[job]] tables"),
        (FIT + "[settings]\nC=1\n", "wanted [[job]] tables"),
        (FIT + FIT, "job 'a': the name of an earlier job too"),
        (FIT.replace("name='a'", "name='../a'"), "job number 1: its name is '../a'"),
        (FIT.replace("name='a'\n", ""), "its name is None"),
        (FIT.replace("'fit'", "'cache'"), "command is cache, wanted one of fit"),
        (FIT + "Cc = 1\n", "job 'a': fit has no Cc; it knows C, "),
        (FIT + "C = -1\n", "job 'a': C is -1.0: wanted 1e-30 to 1e30"),
        (FIT + "C = 'x'\n", "'x': wanted a number"),
        (FIT + "faithful = 1\n", "faithful is 1: wanted true or false"),
        (FIT + "C = 1\ndelta = 1\n", "two names of one thing"),
        (FIT + "json = true\n", "fit has no json"),
        (FIT.replace("model='m'\n", ""), "job 'a': Missing option '--model'"),
        (FIT + "after = 'b'\n", "job 'a': after names 'b', which is no job"),
        (FIT + "after = 3\n", "after is 3, wanted names of jobs"),
        (FIT + "after = 'a'\n", "jobs that wait for each other: a after a"),
        (
            FIT + "after = 'b'\n" + OTHER.replace("'m'", "'n'") + "after='a'\n",
            "wait for each other",
        ),
        (FIT + OTHER.replace("'m'", "'./m'"), "m is what 'a' writes too"),
        (FIT + "report = 'night.toml'\n", "night.toml is what 'the batch' writes too"),
        (
            FIT + "report = 'night.status.json'\n",
            "night.status.json is what 'the batch' writes too",
        ),
        (FIT.replace("'fit'", "['fit']"), "command is ['fit'], wanted one of fit"),
        (FIT.replace("shards='a'", "shards='-'"), "job 'a': - is standard input or output"),
        (FIT.replace("model='m'", "model='-'"), "job 'a': - is standard input or output"),
        (FIT + "accept_uncertified = 4\n", "accept_uncertified is 4, wanted true or false"),
        (FIT + "config = 'none.toml'\n", "none.toml: cannot be read as TOML settings"),
    ],
)
def test_a_file_is_refused_before_anything_runs(tmp_path, text, sentence):
    message = refused(lambda: _load(tmp_path, text), SettingsError)
    assert sentence in message
    assert message.startswith(str(tmp_path / "night.toml"))


def test_a_job_has_changed_where_its_columns_its_vocabulary_or_its_names_have(tmp_path):
    for name, content in {
        "c.toml": "columns = ['x:number']\n",
        "words": "a\nb\n",
        "names.csv": "a\n",
        "s.toml": "columns = 'c.toml'\n",
        "v.toml": "vocabulary = 'words'\n",
    }.items():
        (tmp_path / name).write_text(content)
    text = "".join(
        (
            text_of("a", "fit", shards="a", model="a.model", columns="c.toml"),
            text_of("b", "fit", shards="a", model="b.model", config="s.toml"),
            text_of("c", "sweep", shards="a", config="v.toml"),
            text_of("d", "certify", model="a", shards="a", vocabulary="words"),
            text_of("e", "report", run="a", output="a.html", names=["names.csv"]),
        )
    )

    def seen() -> dict[str, tuple[str, str]]:
        return {job.name: (job.digest, state_of(job.inputs)) for job in _load(tmp_path, text).jobs}

    for name, line, changed in (
        ("c.toml", "label = 'y'\n", "ab"),
        ("words", "c\n", "cd"),
        ("names.csv", "b\n", "e"),
    ):
        before = seen()
        (tmp_path / name).write_text((tmp_path / name).read_text() + line)
        assert "".join(job for job, state in seen().items() if state != before[job]) == changed


# --- what runs -----------------------------------------------------------------------------------


def test_a_whole_batch_runs_without_importing_what_lies_beside_it_and_not_again(tmp_path, capfd):
    for name in ("click", "numpy", "streamtron", "socket"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\n")
    (tmp_path / "night.toml").write_text(HOLD + TABLE)
    command = ["batch", str(tmp_path / "night.toml")]
    assert main._run(command) == 0
    said = capfd.readouterr().out.splitlines()
    assert said[:2] == ["hold (generate): running", "hold (generate): done"]
    assert said[-1].endswith("night.toml: 2 of 2 jobs done")
    assert not (tmp_path / "imported").exists()
    assert (tmp_path / "table" / "part-00000.parquet").exists()
    assert "100 rows" in (tmp_path / "night.logs" / "table.out").read_text()
    before = (tmp_path / "night.status.json").read_bytes()
    assert main._run(command) == 0
    assert capfd.readouterr().out.splitlines() == said[-1:]
    assert (tmp_path / "night.status.json").read_bytes() == before


def test_a_job_that_fails_is_named_and_those_behind_it_are_skipped(tmp_path, capfd):
    (tmp_path / "held-out").mkdir()
    (tmp_path / "held-out" / "a.svm").write_text("1 1:x\n")
    text = TABLE.replace('after = "hold"\n', "")
    text += text_of("last", "inspect", paths="table", after="table")
    (tmp_path / "night.toml").write_text(text)
    assert main._run(["batch", str(tmp_path / "night.toml")]) == DataError.exit_code
    out, err = capfd.readouterr()
    assert "table (convert): failed: a.svm, line 1" in out
    assert "0 of 2 jobs done; failed: table; skipped: last" in err
    assert _states(tmp_path) == {"table": "failed", "last": "skipped"}
    (tmp_path / "held-out" / "a.svm").write_text("1 1:1\n")
    assert _started(tmp_path, text) == ["table", "last"]


def test_a_job_runs_again_if_its_settings_its_outputs_or_a_job_before_it_changed(tmp_path):
    text = (MAKE + HOLD + TABLE).replace("[[job]]", "[[job]]\noverwrite = true")
    assert _started(tmp_path, text) == ["make", "hold", "table"]
    assert _started(tmp_path, text) == []
    assert _started(tmp_path, text.replace("rows = 400", "rows = 401")) == ["make"]
    text = text.replace("skip = 400", "skip = 401")
    assert _started(tmp_path, text) == ["make", "hold", "table"]
    shutil.rmtree(tmp_path / "table")
    assert _started(tmp_path, text) == ["table"]
    assert _started(tmp_path, text, again=True) == ["make", "hold", "table"]


def test_a_fit_or_a_sweep_runs_again_over_what_it_has_left(tmp_path):
    sweep = {"shards": "train", "folds": 2, "C": "0.1,1", "table": "table.csv", "model": "best"}
    text = MAKE + TRAIN.replace(', "table"', "") + text_of("sweep", "sweep", after="make", **sweep)
    assert _started(tmp_path, text) == ["make", "train", "sweep"]
    assert _started(tmp_path, text) == []
    assert _started(tmp_path, text.replace("C = 0.5", "C = 0.6")) == ["train"]
    assert _started(tmp_path, text.replace("0.1,1", "0.2,1")) == ["train", "sweep"]
    assert set(_states(tmp_path).values()) == {"done"}


def test_jobs_behind_one_that_runs_again_are_not_done_even_if_a_kill_comes_between(tmp_path):
    text = (HOLD + TABLE).replace("[[job]]", "[[job]]\noverwrite = true")
    assert _started(tmp_path, text) == ["hold", "table"]
    shutil.rmtree(tmp_path / "held-out")

    def killed(batch: Batch, job: Job, *rest: Any) -> Ended:
        if job.name == "table":
            raise KeyboardInterrupt
        return in_process(batch, job, *rest)

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, text, execute=killed)
    assert _states(tmp_path) == {"hold": "done", "table": "stopped"}
    assert _started(tmp_path, text) == ["table"]


def test_a_batch_that_runs_is_not_run_by_another_process(tmp_path):
    def meanwhile(batch: Batch, job: Job, _: object) -> Ended:
        with pytest.raises(MachineError, match=r"night\.logs: in use by process \d+"):
            _run(tmp_path, MAKE)
        return Ended(job.name, 0, "")

    _run(tmp_path, MAKE, execute=meanwhile)


def test_a_status_file_that_is_none_is_refused_in_a_sentence(tmp_path):
    for content in ("{", "[]", '{"jobs": [{"name": "a"}]}', '{"jobs": [1]}'):
        (tmp_path / "night.status.json").write_text(content)
        with pytest.raises(DataError, match="not a batch's status"):
            _run(tmp_path, MAKE)


@pytest.mark.parametrize(("accept", "last"), [(True, "done"), (False, "skipped")])
def test_jobs_behind_a_fit_that_stopped_early_run_only_if_that_is_accepted(tmp_path, accept, last):
    generate(str(tmp_path / "train"), rows=400, columns=200, seed=0)
    how = {"stage": "1", "max_epochs": 1, "accept_uncertified": accept}
    text = text_of("a", "fit", shards="train", model="m", **how)
    text += text_of("see", "inspect", paths="m", after="a")
    statuses = _run(tmp_path, text, execute=in_process)
    assert statuses["a"].exit_code == 4
    assert "the tolerance was certified" in statuses["a"].sentence
    assert statuses["see"].state == last
    ended = [JobStatus("a", "fit", "", "failed", -9)]
    assert exit_code(ended) == MachineError.exit_code, "a signal is the machine's failure"


# --- what has changed since ----------------------------------------------------------------------

NIGHT = (
    text_of("train", "fit", model="model", shards="data", config="settings.toml")
    + text_of(
        "score",
        "predict",
        after="train",
        model="model",
        shards=["new/*.svm", "late.svm"],
        output="new.tsv",
    )
    + text_of("see", "inspect", paths="new")
)


@pytest.fixture
def night(tmp_path):
    """A directory in which all jobs of NIGHT are done."""
    for place in ("data/a.svm", "data/b.svm", "new/0.svm", "late.svm"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(
            f"1 1:1\n-1 1:-1\n1 1:2\n-1 2:{len(place) + ord(place[-5])}\n"
        )
    (tmp_path / "settings.toml").write_text("tol = 0.1\n")
    assert _started(tmp_path, NIGHT) == ["train", "see", "score"]
    assert _started(tmp_path, NIGHT) == []
    return tmp_path


def _add(place: Path, name: str) -> None:
    (place / name).write_text("1 1:3\n")


def _touch(place: Path, name: str) -> None:
    status = (place / name).stat()
    os.utime(place / name, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


HAPPENED: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "added": (lambda place: _add(place, "new/1.svm"), ["see", "score"]),
    "touched": (lambda place: _touch(place, "new/0.svm"), ["see", "score"]),
    "written anew": (lambda place: _add(place, "late.svm"), ["score"]),
    "renamed": (lambda p: (p / "data/a.svm").rename(p / "data/c.svm"), ["train", "score"]),
    "settings": (lambda p: (p / "settings.toml").write_text("C = 2.0"), ["train", "score"]),
    "ignored": (lambda place: _add(place, "new/_ignored"), []),
    "elsewhere": (lambda place: _add(place, "new.svm"), []),
}
"""What has happened to files, and the jobs that run again."""


@pytest.mark.parametrize("what", HAPPENED)
def test_a_job_and_those_behind_it_run_again_if_what_it_reads_has_changed(night, what):
    change, jobs = HAPPENED[what]
    change(night)
    assert _started(night, NIGHT) == jobs
    assert set(_states(night).values()) == {"done"}
    assert _started(night, NIGHT) == []


def test_a_proof_of_a_run_is_made_again_where_its_shards_or_its_witness_have_changed(night):
    streamtron.fit(str(night / "data" / "a.svm"), model=night / "m")
    proof = text_of("prove", "certify", model="m.run")
    for change in (
        lambda: None,
        lambda: _touch(night, "data/a.svm"),
        lambda: streamtron.update(night / "m", night / "data" / "b.svm"),
    ):
        change()
        assert _started(night, proof) == ["prove"]
        assert _started(night, proof) == []


def test_a_shard_that_comes_while_a_job_runs_makes_it_run_again(night):
    _add(night, "late.svm")

    def meanwhile(batch: Batch, job: Job, _: object) -> Ended:
        _add(night, "new/1.svm")
        return Ended(job.name, 0, "")

    assert _run(night, NIGHT, execute=meanwhile)["score"].state == "done"
    assert _started(night, NIGHT) == ["see", "score"]


@pytest.mark.parametrize("state", ["stopped", "running"])  # the latter if the batch was killed
def test_a_fit_that_was_cut_off_begins_anew_where_its_shards_have_changed(night, state):
    words: list[str] = []

    def cut_off(batch: Batch, job: Job, *_: Any) -> Ended:
        words[:] = job.words
        raise KeyboardInterrupt

    status = night / "night.status.json"
    for option in ("--resume", "--overwrite"):
        with pytest.raises(KeyboardInterrupt):
            _run(night, NIGHT, execute=cut_off, again=True)
        status.write_text(status.read_text().replace('"stopped"', f'"{state}"'))
        if option == "--overwrite":
            _add(night, "data/d.svm")
        with pytest.raises(KeyboardInterrupt):
            _run(night, NIGHT, execute=cut_off)
        assert option in words


# --- what is killed ------------------------------------------------------------------------------

LONG = text_of("long", "generate", directory="long", rows=30000000, after="make")


@pytest.fixture
def under_way(tmp_path):
    """A batch whose second job, which takes minutes, has begun to write."""
    assert _started(tmp_path, MAKE) == ["make"]
    (tmp_path / "night.toml").write_text(MAKE + LONG)
    process = Process(COMMAND, "batch", "night.toml", cwd=tmp_path)
    until(lambda: any((tmp_path / "long").glob(".part*")))
    yield process
    process.kill()


@pytest.mark.parametrize("number", slow_but([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_a_signal_ends_the_running_job_and_the_status_says_so(under_way, tmp_path, number):
    under_way.send_signal(number)
    ended = under_way.end()
    assert (ended.returncode, number.name in ended.stderr) == (128 + number, True)
    assert "long (generate): running" in ended.stdout
    assert _states(tmp_path) == {"make": "done", "long": "stopped"}
    assert not (tmp_path / "long").exists()


def test_a_killed_batch_leaves_no_job_behind_and_finishes_when_called_again(under_way, tmp_path):
    under_way.kill()
    assert under_way.end().returncode == -signal.SIGKILL
    assert _states(tmp_path) == {"make": "done", "long": "running"}
    until(lambda: not (tmp_path / "long").exists())  # the job has seen that it is alone
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()}
    assert _started(tmp_path, MAKE + LONG.replace("30000000", "30")) == ["long"]
    assert _states(tmp_path) == {"make": "done", "long": "done"}
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()} == made


@pytest.mark.parametrize(
    ("deaf", "number"),
    [
        ("", signal.SIGTERM),
        pytest.param(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); ",
            signal.SIGKILL,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_job_whose_parent_has_died_ends_though_it_may_not_obey_sigterm(deaf, number):
    child = f"import signal; from streamtron.cluster.jobs import follow_parent; {deaf}"
    child += "follow_parent()\nwhile True: signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE)
    process.stdin.close()
    assert process.wait() == -number


FIRST, SECOND = "part-00000.svm", "part-00001.svm"
CHANGES = (
    text_of("fit", "fit", shards=[f"data/{FIRST}"], model="m")
    + text_of("add", "update", run="m", shards=f"data/{SECOND}", report="add.json", after="fit")
    + text_of("take", "forget", run="m", shards=FIRST, after="add")
)
OTHER_C = CHANGES.replace('model = "m"\n', 'model = "m"\nC = 2.0\n', 1)


def test_jobs_that_change_a_run_are_done_once_unless_settings_change_or_a_kill_came(tmp_path):
    generate(str(tmp_path / "data"), rows=2000, columns=80, seed=0, shards=2)
    status = tmp_path / "night.status.json"
    for expected, text, how in (
        (["fit", "add", "take"], CHANGES, {}),
        (["fit", "add", "take"], CHANGES, {"again": True}),
        (["fit", "add", "take"], OTHER_C, {}),
        (["add", "take"], OTHER_C, {}),
    ):
        assert _started(tmp_path, text, **how) == expected
        assert {*_states(tmp_path).values()} == {"done"}
        assert _started(tmp_path, text) == []
        manifest = json.loads((tmp_path / "m.run" / "manifest.json").read_text())
        assert [shard["name"] for shard in manifest["shards"]] == [SECOND]
        content = json.loads(status.read_text())  # as if killed before it knew how ``add`` ended
        content["jobs"][1]["state"] = "running"
        status.write_text(json.dumps(content))


@pytest.mark.slow
def test_a_batch_on_workers_ends_as_one_by_one_and_cancelled_jobs_end(tmp_path, workers, guest):
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    text = MAKE + LONG.replace("30000000", "-1")
    text += text_of("last", "inspect", paths="long", after="long")
    here = _run(one, text, execute=in_process)
    there = _run(many, text, workers=workers)
    assert [status.state for status in there.values()] == ["done", "failed", "skipped"]
    for name, status in here.items():
        for part in ("state", "exit_code", "sentence"):
            assert getattr(there[name], part) == getattr(status, part)
    shard = Path("train") / "part-00000.svm"
    assert (many / shard).read_bytes() == (one / shard).read_bytes()

    def stop_when_one_is_done(status: JobStatus) -> None:
        if status.state == "done":
            raise KeyboardInterrupt

    text = LONG.replace('after = "make"\n', "") + MAKE.replace("train", "t2")
    with pytest.raises(KeyboardInterrupt):
        _run(many, text, workers=guest, tell=stop_when_one_is_done)
    assert _states(many) == {"long": "stopped", "make": "done"}
    until(lambda: not [*(many / "long").glob("*")])  # may not have begun
