"""What is written replaces nothing that is read, and nothing that was not a file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import streamtron
from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.core.files import write_atomically
from streamtron.runs.convert import convert
from streamtron.runs.outputs import check_outputs
from streamtron.runs.predict import write_predictions
from tests.helpers.processes import here, one_sentence

ROWS = "1 1:1\n-1 1:-1\n1 1:2\n-1 2:1\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with shards in ``data`` and a model ``m`` of them."""
    (tmp_path / "data").mkdir()
    for name in ("a.svm", "b.svm"):
        (tmp_path / "data" / name).write_text(ROWS.replace("2:1", f"2:{ord(name[0])}"))
    for link in ("link", "table.csv", "plot.png"):
        (tmp_path / link).symlink_to("data/a.svm")
    os.link(tmp_path / "data" / "b.svm", tmp_path / "duplicate")
    (tmp_path / "settings.toml").write_text("tol = 0.1\n")
    streamtron.fit(tmp_path / "data", model=tmp_path / "m")
    return tmp_path


def _content(place: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path.name != "lock"
    }


# --- what is read stays --------------------------------------------------------------------------

FIT, SWEEP = "fit data --model n ", "sweep data --valid data/b.svm --C 1 "


@pytest.mark.parametrize(
    "words",
    [
        "fit data --model data/a.svm",
        FIT + "--report data/a.svm",
        FIT + "--witness data/b.svm",
        FIT + "--report link",
        FIT + "--report duplicate",
        FIT + "--report data/../n",
        FIT + "--report r --witness ./r",
        FIT + "--report settings.toml --config settings.toml",
        FIT + "--run-dir data",
        FIT + "--run-dir n",
        FIT + "--cache-dir n",
        "fit data --model m --overwrite --report m.run/witness",
        "fit data/*.svm --model n --report data/a.svm",
        SWEEP + "--table table.csv",
        SWEEP + "--plot plot.png",
        SWEEP + "--model data/b.svm",
        SWEEP + "--model n.csv --table n.csv",
        SWEEP + "--report data/a.svm",
        SWEEP + "--table t.csv --witness t.csv",
        "predict m data -o data/a.svm",
        "predict m data -o m",
        "predict m data -o link",
        "update m duplicate --report data/a.svm",
        "update m duplicate --report duplicate",
        "update m duplicate --report m",
        "update m duplicate --report m.run/run.json",
        "forget m a.svm --report m",
        "forget m a.svm --report data/b.svm",
        "forget m --rows settings.toml --report settings.toml",
    ],
)
def test_an_output_that_would_replace_an_input_or_another_output_is_refused_before_anything_is_read(
    words: str, place: Path
) -> None:
    before = _content(place)
    one_sentence(here(place, *words.split()), 2, "Name another")
    assert _content(place) == before


def test_a_conversion_over_its_own_source_is_refused(place: Path) -> None:
    convert(place / "data", place / "text", to="libsvm")
    before = _content(place)
    words = ["convert", "text", "text", "--format", "libsvm", "--overwrite"]
    one_sentence(here(place, *words), 2, "destination", "Name another directory")
    assert _content(place) == before


def test_python_refuses_as_the_command_line_does(place: Path) -> None:
    before = _content(place)
    model = streamtron.load(place / "m")
    for write in (
        lambda: streamtron.fit(place / "data", model=place / "data" / "a.svm"),
        lambda: streamtron.sweep(place / "data", C=[1.0], model=place / "data" / "a.svm"),
        lambda: write_predictions(model, place / "data", place / "link"),
        lambda: streamtron.update(place / "m", place / "duplicate", report=place / "m"),
    ):
        with pytest.raises(SettingsError, match="Name another"):
            write()
    assert _content(place) == before


def test_existing_outputs_that_are_no_input_are_replaced(place: Path) -> None:
    (place / "r.json").write_text("old")
    words = "fit data --model m --overwrite --report r.json --witness w --cache-dir m.run/cache"
    assert here(place, *words.split()).returncode == 0
    assert (place / "r.json").read_text() != "old"
    assert here(place, *words.split()).returncode == 0


def test_what_is_in_a_store_is_never_an_output_and_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "r").touch()
    check_outputs({"report": tmp_path / "r"}, ["s3://nowhere/at/all"])


# --- what is no file stays what it is ------------------------------------------------------------


def test_a_model_is_never_a_device(place: Path) -> None:
    for words in ("fit data --model /dev/null", SWEEP + "--model /dev/null"):
        one_sentence(here(place, *words.split()), 2, "/dev/null", "Name a file")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert not os.path.exists("/dev/null.run")


def test_a_report_and_a_witness_may_go_to_a_device_which_stays_one(place: Path) -> None:
    words = "fit data --model n --report /dev/null --witness /dev/null"
    done = here(place, *words.split())
    assert done.returncode == 0, done.stderr
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_predictions_into_a_named_pipe_reach_who_reads_it(place: Path) -> None:
    os.mkfifo(place / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((place / "pipe").read_text()))
    reader.start()
    assert here(place, "predict", "m", "data", "-o", "pipe").returncode == 0
    reader.join()
    assert stat.S_ISFIFO(os.stat(place / "pipe").st_mode)
    assert here(place, "predict", "m", "data", "-o", "-").stdout == read[0]


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_dev_stdout_is_written_to_behind_what_is_there(place: Path, kind: str) -> None:
    code = "import sys; from streamtron.cli.main import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", code, "predict", "m", "data", "-o", "/dev/stdout"]
    expected = here(place, "predict", "m", "data", "-o", "-").stdout
    if kind == "pipe":
        assert subprocess.run(words, cwd=place, capture_output=True, text=True).stdout == expected
        return
    (place / "out").write_text("before\n")
    inode = (place / "out").stat().st_ino
    with open(place / "out", "a") as out:
        subprocess.run(words, cwd=place, stdout=out, check=True)
    assert (place / "out").read_text() == "before\n" + expected
    assert (place / "out").stat().st_ino == inode


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_a_file_that_is_replaced_keeps_its_permissions(mode: int, place: Path) -> None:
    words = "fit data --model m --overwrite --report r --witness w"
    for name in ("m", "r", "w"):
        (place / name).touch()
        (place / name).chmod(mode)
    assert here(place, *words.split()).returncode == 0
    assert {stat.S_IMODE((place / name).stat().st_mode) for name in ("m", "r", "w")} == {mode}


def test_a_new_file_is_never_less_private_than_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").touch(mode=0o600)
    modes: list[int] = []

    def noted(descriptor: int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))

    monkeypatch.setattr(os, "fchmod", noted)
    write_atomically(tmp_path / "m", [b"secret"])
    assert modes == [0o600]


def test_the_settings_vocabulary_is_an_input_too(place: Path) -> None:
    (place / "words").write_text("1\n2\n")
    settings = Settings(vocabulary=str(place / "words"))
    with pytest.raises(SettingsError, match=r"the input .*words"):
        streamtron.fit(place / "data", model=place / "words", settings=settings)
