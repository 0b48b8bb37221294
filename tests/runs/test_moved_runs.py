"""A run directory that came from another user, was moved, copied or cut off: what only reads writes
nothing, what writes changes nothing but this run and its model, and ``inspect`` tells what is next.
"""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron import generate
from streamtron.core.errors import DataError
from streamtron.core.files import LOCK, locked
from streamtron.runs.store import DATABASE, is_run
from tests.helpers.processes import COMMAND, Process, here, one_sentence, succeeded
from tests.helpers.runs import at_state, fit, killed, reached, state_file, write_corpus

PRECIOUS = b"of another user\n"

JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""With which a journal of SQLite begins, and ends if it names another file."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``data`` with four shards of 100 rows, and the run ``m`` of the first three."""
    place = tmp_path_factory.mktemp("run") / "place"
    generate(str(place / "data"), rows=400, columns=100, seed=3, shards=4)
    fit(sorted((place / "data").glob("*.svm"))[:3], place / "m")
    return place


@pytest.fixture
def place(generated: Path, tmp_path: Path) -> Path:
    """The same, moved from where it was fitted; beside it lies the file ``precious``."""
    (tmp_path / "precious").write_bytes(PRECIOUS)
    return Path(shutil.copytree(generated, tmp_path / "place", copy_function=shutil.copy2))


def last_shard(place: Path) -> Path:
    return max((place / "data").glob("*.svm"))


def everything(place: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a directory, with the time of its last change."""
    files = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file()}
    return {name: (path.stat().st_mtime_ns, path.read_bytes()) for name, path in files.items()}


def leave_change(place: Path) -> None:
    """A change that is committed, and whose model is not in its place yet."""
    shutil.copy2(place / "m", place / "m.run" / "model-000099")
    with closing(sqlite3.connect(place / "m.run" / DATABASE)) as database, database:
        database.execute("REPLACE INTO facts VALUES ('model', '\"model-000099\"')")


READERS = ["certify m", "certify m.run", "inspect m.run", "inspect m", "cache m"]


@pytest.mark.parametrize("words", READERS)
def test_what_only_reads_a_run_writes_nothing_even_if_a_change_is_left_in_it(words, place):
    whole = shutil.copytree(place / "m.run", place / "whole", copy_function=shutil.copy2)
    leave_change(place)
    (place / "m.run" / ".streamtron-half-written").touch()
    before = everything(place)
    done = here(place, *words.split())
    assert "Traceback" not in done.stderr
    assert everything(place) == before
    if words.startswith("certify"):
        assert done.returncode == DataError.exit_code
        assert "a change of the run was interrupted" in done.stderr
        shutil.rmtree(place / "m.run")
        whole.rename(place / "m.run")
        (place / "m.run" / "lock").unlink()
        before = everything(place)
        succeeded(here(place, *words.split()))
        assert everything(place) == before


def test_a_journal_beside_the_record_is_not_obeyed_and_what_it_names_stays(place, tmp_path):
    """SQLite would remove a file that such a journal names, if it names no journal itself."""
    name = bytes(tmp_path / "precious")
    end = len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + JOURNAL
    (place / "m.run" / f"{DATABASE}-journal").write_bytes(JOURNAL + bytes(600) + name + end)
    for words in ("inspect m.run", "certify m", f"update m {last_shard(place)}"):
        succeeded(here(place, *words.split()))
    assert (tmp_path / "precious").read_bytes() == PRECIOUS


@pytest.mark.parametrize(
    "name", ["lock", "run.sqlite", "run.sqlite-journal", "state-000009", "cache/sources.json"]
)
@pytest.mark.parametrize("change", ["update", "fit"])
def test_a_link_out_of_a_run_is_refused_by_what_writes_through_it(change, name, place, tmp_path):
    path = place / "m.run" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "precious")
    words = ["--model", "m", "--overwrite"] if change == "fit" else []
    done = here(place, change, *([] if words else ["m"]), last_shard(place), *words)
    assert done.returncode == DataError.exit_code
    assert "a symbolic link, and writing here" in done.stderr
    assert (tmp_path / "precious").read_bytes() == PRECIOUS


def test_of_a_run_named_by_its_directory_the_summary_names_its_model_and_errors_say_why(place):
    shard = last_shard(place)
    assert "\nmodel              m\n" in here(place, "update", "m.run", shard).stdout
    assert "of a run give MODEL, not MODEL.run." in here(place, "evaluate", "m.run", shard).stderr
    for words, told in (((), ""), (("--C", "2"), "C is 2.0, the run has 1.0."), (("--C", "1"), "")):
        done = here(place, "fit", shard, "--model", "n", "--resume", *words)
        assert (done.returncode, told in done.stderr) == (2 if told else 0, True)
    (place / "m.run" / "lock").unlink()
    (place / "m.run" / "lock").mkdir()
    assert "m.run: cannot be written (Is a" in here(place, "forget", "m.run", shard).stderr


def test_a_model_that_is_a_link_elsewhere_is_changed_only_where_the_run_is_named(place, tmp_path):
    (place / "m").rename(tmp_path / "theirs")
    (place / "m").symlink_to(tmp_path / "theirs")
    before = (tmp_path / "theirs").read_bytes()
    with pytest.raises(DataError, match=r"m: a symbolic link to .*/theirs, .* by --run-dir"):
        streamtron.update(place / "m", last_shard(place))
    assert (tmp_path / "theirs").read_bytes() == before
    words = ("update", tmp_path / "theirs", last_shard(place), "--run-dir", "m.run")
    succeeded(here(place, *words))
    assert (tmp_path / "theirs").read_bytes() != before


def test_a_run_directory_of_another_name_is_changed_and_proven_where_its_model_is_named(place):
    proof = streamtron.certify(place / "m")
    (place / "m.run").rename(place / "elsewhere")
    for command in (partial(streamtron.update, shards=last_shard(place)), streamtron.certify):
        with pytest.raises(DataError, match=r"elsewhere: neither MODEL nor MODEL.run. Name the"):
            command(place / "elsewhere")
    for model in (place / "m", streamtron.load(place / "m")):
        assert streamtron.certify(model, run=place / "elsewhere") == proof
    assert here(place, "certify", "m", "--run-dir", "elsewhere").returncode == 0
    assert "or the run directory, --run-dir" in here(place, "certify", "m").stderr
    assert "m.run/cache: there is no cache. If it is elsewhere" in here(place, "cache", "m").stdout
    machine = streamtron.Machine(run_dir=str(place / "elsewhere"))
    updated = streamtron.update(place / "m", last_shard(place), machine=machine)
    assert updated.report["rows"] == 400
    assert streamtron.load(place / "m").certificate == updated.model.certificate


WORDS = ("fit", "data", "--model", "m", "--C", "20", "--tol", "1e-9")
OFTEN = (*WORDS, "--active-set", "100kB")


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Another directory, with three shards in ``data``."""
    write_corpus(tmp_path / "data", rows=6000, noise=0.1)
    return tmp_path


def inspected(desk: Path, *words: str) -> dict[str, Any]:
    """What ``inspect --json`` tells of the run, named by its directory or by its model."""
    names = words or ("m.run", "m")
    named = [succeeded(here(desk, "inspect", name, "--json")) for name in names]
    facts: dict[str, Any] = json.loads(named[0].stdout)
    assert {json.loads(done.stdout)["state"] for done in named} == {facts["state"]}
    return facts


def test_of_a_run_that_is_going_on_it_tells_the_process_and_nobody_else_goes_on_with_it(desk):
    process = Process(COMMAND, *OFTEN, cwd=desk)
    assert reached(desk, "m", process, at_state(2))
    process.stop()
    before = everything(desk)
    facts = inspected(desk)
    told = here(desk, "inspect", "m").stdout
    assert everything(desk) == before
    other = here(desk, *OFTEN, "--resume")
    assert other.returncode == 6
    assert f"in use by process {process.pid} on {socket.gethostname()}. Wait" in other.stderr
    process.kill()
    process.end()
    assert (facts["state"], facts["settings"]["C"]) == ("running", 20.0)
    assert f"process {process.pid} on" in facts["process"]
    assert facts["progress"]["nonzeros_read"] > 0
    assert facts["progress"]["finished"] is False
    assert [shard["name"] for shard in facts["shards"]] == [f"part-{k}.svm" for k in range(3)]
    assert re.search(rf"state +running\nprocess +process {process.pid} on ", told)
    assert "wait for it" in told


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_of_a_run_that_was_killed_or_stopped_it_tells_how_to_go_on_which_then_works(number, desk):
    ended = killed(desk, OFTEN, "m", at_state(2), number)
    assert ended.returncode == (-number if number == signal.SIGKILL else 128 + number), ended.stderr
    if number != signal.SIGKILL:
        said = f"stopped by {signal.Signals(number).name}; nothing half-written is left. "
        assert ended.stderr.splitlines()[-1] == said + "Go on from m.run with --resume."
        names = [path.name for path in (desk / "m.run").rglob("*")]
        assert not [n for n in names if n.startswith(".streamtron-") or n.endswith(".tmp")]
    facts = inspected(desk)
    assert (facts["state"], facts["process"]) == ("stopped", None)
    assert "--resume goes on from the last state" in facts["next"]
    assert facts["progress"]["reading"] >= 1
    assert facts["bytes"] == sum(path.stat().st_size for path in (desk / "data").iterdir())
    assert here(desk, *WORDS, "--resume").returncode in (0, 4)
    facts = inspected(desk, "m.run")
    assert (facts["state"], facts["rows"]) == ("ended", 6000)
    assert facts["progress"]["finished"] is True
    assert "certify m.run" in facts["next"]


def test_of_a_run_without_a_state_it_tells_that_it_is_still_to_begin(desk):
    ended = killed(desk, WORDS, "m", lambda directory, _: is_run(directory))
    assert ended.returncode == -signal.SIGKILL
    facts = inspected(desk)
    assert (facts["state"], facts["progress"]) == ("begun", None)
    assert facts["settings"]["tol"] == 1e-9
    assert "--resume starts it" in facts["next"]


def test_of_a_run_whose_shards_are_still_prepared_or_were_it_tells_that_it_has_not_begun(desk):
    assert here(desk, *WORDS[:4]).returncode == 0
    for path in (state_file(desk / "m.run"), desk / "m.run" / DATABASE, desk / "m"):
        path.unlink()
    for name in ("m", "m.run"):
        stopped = here(desk, "inspect", name)
        one_sentence(stopped, 3, "m.run: a run that has not begun", "was stopped. Call the same")
    with locked(desk / "m.run"):
        one_sentence(here(desk, "inspect", "m"), 3, f"process {os.getpid()} on", "prepares its")
    (desk / "m.run" / LOCK).unlink()
    one_sentence(here(desk, "inspect", "m"), 3, "m.run: a run that has not begun")
    assert here(desk, *WORDS[:4]).returncode == 0


def test_of_a_run_whose_change_was_cut_off_or_state_spoilt_it_tells_what_to_do(desk, caplog):
    assert here(desk, *WORDS[:4]).returncode == 0
    leave_change(desk)
    path = state_file(desk / "m.run")
    path.write_bytes(path.read_bytes()[:-1])
    before = everything(desk)
    facts = inspected(desk, "m.run")
    assert (facts["state"], facts["progress"]["finished"]) == ("change interrupted", None)
    assert "call the update or forget that was interrupted again" in facts["next"]
    assert "its checksum does not match" in caplog.text
    assert everything(desk) == before
