"""What is written replaces nothing that is read, and nothing that was not a file; and where a disk
is full (a file system of a few pages, or files that may not grow) what was there stays."""

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import streamtron
from streamtron import Machine, Settings, generate
from streamtron.core.files import write_atomically
from tests.helpers.processes import here, one_sentence, succeeded
from tests.helpers.runs import state_file, witness_of
from tests.helpers.small_disks import PAGE, fill, mounted

ROWS = "1 1:1\n-1 1:-1\n1 1:2\n-1 2:1\n"


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    """The same to change, and other names of its shards."""
    place = shutil.copytree(whole, tmp_path / "place")
    for link in ("link", "table.csv"):
        (place / link).symlink_to("data/a.svm")
    os.link(place / "data" / "b.svm", place / "duplicate")
    return place


def _content(place: Path) -> dict[str, bytes]:
    files = (path for path in place.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): path.read_bytes() for path in files}


SWEEP = "sweep data --valid data/b.svm --C 1 "
TWICE = [
    "fit data --model n --report data/../n",
    "fit data --model n --report r --witness ./r",
    "fit data --model n --run-dir data",
    "fit data --model n --run-dir n",
    "fit data --model n --cache-dir n",
    "fit link --model n --report data/a.svm",
    SWEEP + "--table table.csv",
    SWEEP + "--model n.csv --table n.csv",
    "update m duplicate --report duplicate",
    "predict m d*a -o data/a.svm",
    "convert data -o data --overwrite",
    "convert data/a.svm -o data --overwrite",
]


@pytest.mark.parametrize("words", TWICE)
def test_an_output_that_would_replace_an_input_or_another_output_is_refused(words, place):
    before = _content(place)
    one_sentence(here(place, *words.split()), 2, "Name another")
    assert _content(place) == before


def test_what_only_lies_beside_inputs_may_be_replaced(place):
    words = "fit data --model data/_m --report data/_r --cache-dir data/_cache --overwrite"
    (place / "data" / "_r").write_text("the one before")
    succeeded(here(place, *words.split()))
    assert (place / "data" / "_r").read_text() != "the one before"


OF_ALL = ("--model", "--report", "--witness", "--log")
WRITES = {
    "fit": ("fit data --model n {}", OF_ALL),
    "sweep": ("sweep data --valid held --C 1 --model n {}", (*OF_ALL, "--table")),
    "update": ("update m more {}", ("--report", "--log")),
    "forget": ("forget m a.svm {}", ("--report", "--log")),
    "certify": ("certify m {}", ("--log",)),
    "certify shards": ("certify m data --witness w {}", ("--log",)),
    "predict": ("predict m held {}", ("-o",)),
    "export": ("export m --format json {}", ("-o",)),
    "report": ("report m --valid held {}", ("-o",)),
}
"""Command → its words, and the options that name its outputs."""

EVERY, OF_A_RUN = dict.fromkeys(WRITES, ""), dict.fromkeys([*WRITES][2:], "")
SCHEDULER = ("fit", "sweep", "update", "forget", "certify", "predict", "report")

READS: dict[str, dict[str, str]] = {
    "data/a.svm": EVERY,
    "m": OF_A_RUN,
    "m.run/run.sqlite": EVERY,
    "m.run/new": EVERY,
    "held": {"fit": "--valid held", "sweep": "", "predict": "", "report": ""},
    "words": dict.fromkeys(("fit", "sweep"), "--transformer words"),
    "scheduler.json": dict.fromkeys(SCHEDULER, "--scheduler scheduler.json"),
    "rows.csv": {"forget": "--rows rows.csv"},
    "w": {"certify shards": ""},
    "more": {"update": ""},
}
"""What is read, or kept by a run that is read → the commands that do, and the words for it."""

TABLE = [
    (f"{WRITES[reader][0]} {more}", output, name)
    for name, readers in READS.items()
    for reader, more in readers.items()
    for output in WRITES[reader][1]
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all that a command may read. Nothing in it may change."""
    place = tmp_path_factory.mktemp("whole")
    (place / "data").mkdir()
    (place / "data" / "a.svm").write_text(ROWS)
    (place / "data" / "b.svm").write_text(ROWS.replace("2:1", "2:3"))
    for name in ("held", "more"):
        (place / name).write_text(ROWS.replace("2:1", f"2:{len(name) + 5}"))
    for name, text in (
        ("words", "1\n2\n"),
        ("rows.csv", "shard,row\na.svm,0\n"),
        ("scheduler.json", "{}"),
    ):
        (place / name).write_text(text)
    streamtron.fit(place / "data", model=place / "m")
    witness_of(place / "m.run", place / "w")
    return place


@pytest.mark.parametrize(("words", "output", "name"), TABLE)
def test_no_command_writes_over_what_it_reads_or_a_run(words, output, name, whole, tmp_path):
    path = tmp_path / {"--table": "link.csv"}.get(output, "link.png")  # whose real path counts
    path.symlink_to(whole / name)
    before = _content(whole)
    one_sentence(here(whole, *words.format(f"{output} {path}").split()), 2, "Name another")
    assert _content(whole) == before


def test_a_file_where_the_run_directory_would_be_is_said_to_be_there(tmp_path):
    (tmp_path / "a.svm").write_text(ROWS)
    assert here(tmp_path, "fit", "a.svm", "--model", "x.run").returncode == 0
    before = _content(tmp_path)
    for words in ("fit a.svm --model x", "sweep a.svm --valid a.svm --C 1 --model x"):
        ended = here(tmp_path, *words.split())
        one_sentence(ended, 5, "x.run: a file, where the run directory would be. Move it away")
    assert _content(tmp_path) == before


def test_a_model_replaces_an_empty_file_or_a_model_but_no_file_of_another_kind(place):
    for name, text in (("empty", ""), ("notes.txt", "milk, bread\n")):
        (place / name).write_text(text)
    assert here(place, "fit", "data", "--model", "empty").returncode == 0
    assert here(place, "fit", "data", "--model", "empty", "--overwrite").returncode == 0
    for overwrite in ([], ["--overwrite"]):
        done = here(place, "fit", "data", "--model", "notes.txt", *overwrite)
        one_sentence(done, 2, "notes.txt: a file that is not a model. Name another --model")
    assert (place / "notes.txt").read_text() == "milk, bread\n"
    assert not (place / "notes.txt.run").exists()


def test_a_model_is_never_a_device_but_a_report_and_a_witness_may_be(place):
    for words in ("fit data --model /dev/null", SWEEP + "--model /dev/null"):
        one_sentence(here(place, *words.split()), 2, "/dev/null", "Name a file")
    assert not os.path.exists("/dev/null.run")
    words = "fit data --model n --report /dev/null --witness /dev/null"
    succeeded(here(place, *words.split()))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_predictions_into_a_named_pipe_reach_who_reads_it(place):
    os.mkfifo(place / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((place / "pipe").read_text()))
    reader.start()
    assert here(place, "predict", "m", "data", "-o", "pipe").returncode == 0
    reader.join()
    assert stat.S_ISFIFO(os.stat(place / "pipe").st_mode)
    assert here(place, "predict", "m", "data", "-o", "-").stdout == read[0]


def test_dev_stdout_is_written_to_behind_what_is_there(place):
    words = [sys.executable, "-m", "streamtron", "predict", "m", "data", "-o", "/dev/stdout"]
    expected = here(place, "predict", "m", "data", "-o", "-").stdout
    assert subprocess.run(words, cwd=place, capture_output=True, text=True).stdout == expected
    (place / "out").write_text("before\n")
    inode = (place / "out").stat().st_ino
    with open(place / "out", "a") as out:
        subprocess.run(words, cwd=place, stdout=out, check=True)
    assert (place / "out").read_text() == "before\n" + expected
    assert (place / "out").stat().st_ino == inode


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_a_file_that_is_replaced_keeps_its_permissions(mode, place):
    words = "fit data --model m --overwrite --report r --witness w --cache-dir m.run/cache"
    before = (place / "w").stat().st_ino
    for name in ("m", "r", "w"):
        (place / name).touch()
        (place / name).chmod(mode)
    succeeded(here(place, *words.split()))
    assert (place / "w").stat().st_ino != before
    assert {stat.S_IMODE((place / name).stat().st_mode) for name in ("m", "r", "w")} == {mode}
    modes: list[int] = []  # of the new file, when it gets that of the old one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fchmod", lambda file, _: modes.append(os.fstat(file).st_mode))
        write_atomically(place / "m", [b"secret"])
    assert [stat.S_IMODE(found) for found in modes] == [0o600]


IN_A_STORE = [
    *("evaluate {} data", "predict {} data -o p", "export {} --format json -o p", "explain {}"),
    *("certify {}", "certify {} data", "update {} data", "forget {} a.svm", "report {} -o p"),
    *(f"fit data --model n --{name} {{}}" for name in ("model", "report", "log", "cache-dir")),
]


@pytest.mark.parametrize("words", IN_A_STORE)
def test_a_model_or_an_output_in_a_store_is_refused_by_one_sentence(words, place):
    before = _content(place)
    ended = here(place, *words.format("s3://bucket/m").split())
    one_sentence(ended, 2, "s3://bucket/m: ", "s are local files. Name a local one, and copy it.")
    assert _content(place) == before


def test_a_listener_that_changes_the_directory_moves_no_output(place, monkeypatch):
    (place / "elsewhere").mkdir()

    def listen(_: object) -> None:
        os.chdir(place / "elsewhere")

    monkeypatch.chdir(place)
    fit = partial(streamtron.run, "data", Settings())
    for write in (
        lambda: fit(model="n", report="r", witness="w", listen=listen),
        lambda: streamtron.fit("data", model="o", machine=Machine(run_dir="p"), listen=listen),
        lambda: streamtron.update("m", "duplicate", report="u", listen=listen),
        lambda: streamtron.forget("m", "a.svm", report="f", listen=listen),
        lambda: streamtron.sweep("data", C=[1.0], model="s", report="t", listen=listen),
    ):
        os.chdir(place)
        write()
    assert list((place / "elsewhere").iterdir()) == []
    for name in ("n", "n.run", "r", "w", "o", "p", "u", "f", "s", "s.run", "t"):
        assert (place / name).exists(), name


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Make small file systems: ``disk("name", size=…)`` in bytes, ``files=…`` at most."""
    with ExitStack() as stack:

        def make(name: str, size: int, files: int = 1000) -> Path:
            limits = f"size={size},nr_inodes={files + 1}"
            return stack.enter_context(mounted(tmp_path / name, limits))

        yield make


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, a model fitted on them, and its cache."""
    directory = tmp_path_factory.mktemp("full")
    generate(str(directory / "train"), rows=1500, columns=500, seed=1, shards=2)
    succeeded(here(directory, "fit", "train", "--model", "wanted"))
    return directory


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*")}


def rows_and_columns(path: Path) -> bytes:
    """What a prepared file has before its footer, which has the file's name."""
    return path.read_bytes().partition(b'{"version"')[0]


@pytest.mark.parametrize("files", [0, 1], ids=["none", "one"])
def test_a_cache_disk_without_room_is_refused_and_what_is_whole_stays(ready, disk, tmp_path, files):
    small = disk("small", size=1 << 26, files=files)
    done = here(ready, "fit", "train", "--model", tmp_path / "m", "--cache-dir", small)
    one_sentence(done, 5, "(No space left on device)", "Name another place with --cache-dir")
    whole = {rows_and_columns(path) for path in ready.glob("wanted.run/cache/*.cache")}
    found = {path.name: rows_and_columns(path) for path in small.glob("*.cache")}
    assert {*found.values()} <= whole
    assert len(found) <= files
    assert names(small) == {*found}
    assert not (tmp_path / "m").exists()


def test_a_disk_without_room_for_the_model_keeps_the_old_and_no_new_witness(ready, disk, tmp_path):
    small = disk("small", size=1 << 20)
    words = ("fit", "train", "--model", small / "m", "--run-dir", tmp_path / "run")
    assert here(ready, *words).returncode == 0
    old = (small / "m").read_bytes()
    fill(small / "ballast", leave=0)
    finer = (*words, "--tol", "0.0001")
    for again in ("--resume", "--overwrite"):
        done = here(ready, *finer, again)
        one_sentence(done, 5, "m: the disk is full (No space left on device)")
        assert (small / "m").read_bytes() == old
        assert names(small) == {"m", "ballast"}
        told = here(ready, "inspect", tmp_path / "run").stdout
        assert "change interrupted" in told
    (small / "ballast").unlink()
    assert here(ready, *finer, "--resume").returncode == 0
    assert state_file(tmp_path / "run").exists()
    assert here(ready, *finer[:2], "--tol", "0.0001", "--model", tmp_path / "m").returncode == 0
    assert (small / "m").read_bytes() == (tmp_path / "m").read_bytes() != old


def test_a_disk_without_room_for_the_run_keeps_the_model_that_is_there(ready, disk):
    small = disk("small", size=1 << 20)
    words = "fit", "train", "--cache-dir", ready / "wanted.run" / "cache", "--model", small / "m"
    assert here(ready, *words).returncode == 0
    old = (small / "m").read_bytes()
    shutil.rmtree(small / "m.run")
    fill(small / "ballast", leave=0)
    one_sentence(here(ready, *words), 5, "are free. Make room")
    assert (small / "m").read_bytes() == old
    left = {path.name for path in small.rglob("*") if path.stat().st_size}
    assert left <= {"m", "m.run", "ballast"}


LARGE = [
    "fit train --model {tmp}/m --report {small}/out",
    "fit train --model {tmp}/m --witness {small}/out",
    *(f"predict wanted train -o {{small}}/out{suffix}" for suffix in ("", ".parquet")),
    *(f"convert train -o {{small}}/to --format {name}" for name in ("libsvm", "parquet")),
]


@pytest.mark.parametrize("words", LARGE)
def test_a_disk_without_room_for_an_output_keeps_the_one_before(words, ready, disk, tmp_path):
    small = disk("small", size=3 * PAGE)
    (small / "out").write_text("the one before")
    fill(small / "ballast", leave=0 if "--report" in words else PAGE)
    done = here(ready, *words.format(tmp=tmp_path, small=small).split())
    one_sentence(done, 5, "No space left on device")
    assert {path.name for path in small.rglob("*") if path.is_file()} == {"out", "ballast"}
    assert (small / "out").read_text() == "the one before"
    if "--model" in words:
        assert (tmp_path / "m").read_bytes() == (ready / "wanted").read_bytes()
