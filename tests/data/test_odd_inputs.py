"""Odd input that used to end in a traceback, a hang or a model of nothing: each is refused in one
sentence, which says what to do."""

import os
import time

import numpy as np
import pyarrow as pa
import pytest

import streamtron
from streamtron.core.errors import DataError, SettingsError
from streamtron.runs.convert import convert
from streamtron.runs.fit import fit
from tests.helpers.layouts import write_table
from tests.helpers.models import make_model
from tests.helpers.processes import Ended, here, one_sentence, succeeded

ROWS = "1 1:0.5 2:1\n-1 1:0.25\n"

_sink = pa.BufferOutputStream()
with pa.ipc.new_stream(_sink, (_table := pa.table({"f0": [1, 2.5], "y": [1, -1]})).schema) as _file:
    _file.write_table(_table)
STREAM = _sink.getvalue().to_pybytes()


NO_NEWLINE = "the last line ends without a newline, and was read as it is. If the file was cut off,"
READ: dict[str, tuple[str | bytes, str]] = {
    "no-newline.svm": (f"{ROWS}1 1:0.5 5376:0.2", NO_NEWLINE),
    "no-newline.csv": ("y,f0\n1,137\n-1,13", NO_NEWLINE),
    "no-newline.vw": ("1 |f a\n-1 |f b:13", NO_NEWLINE),
    "no-newline.jsonl": ('{"y":1,"f0":1}\n{"y":-1,"f0":2}', ""),
    "no-mark.arrows": (STREAM[:-8], "the stream ends without the mark of its end, and was read"),
    "whole.arrows": (STREAM, ""),
    "columns-out-of-order.svm": ("1 2:1 1:1\n-1 1:1\n", ""),
    "byte-order-mark.csv": ("\ufeffy,f0\n1,2\n2,1\n", ""),
}
"""What is read nevertheless, and with which warning."""


def test_a_stream_behind_the_end_of_another_is_refused(tmp_path):
    (tmp_path / "joined.arrows").write_bytes(STREAM * 2)
    behind = rf"^joined\.arrows.*{len(STREAM)} bytes behind the end of its stream, as of"
    with pytest.raises(DataError, match=behind):
        fit(tmp_path / "joined.arrows")


@pytest.mark.parametrize("name", READ)
def test_an_odd_file_is_read_and_what_may_be_wrong_is_said(name, tmp_path, caplog):
    content, message = READ[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    hashing = {"hash_bits": 5} if name.endswith("vw") else {}
    fit(tmp_path / name, **hashing)
    convert(tmp_path / name, tmp_path / "converted", **hashing)
    assert [message in record for record in caplog.messages] == [True] * 2 * bool(message)


@pytest.mark.parametrize("certificate", [{}, {"upper_bound": 1.0}])
def test_inspect_says_of_a_certificate_without_its_bounds_that_there_is_none(tmp_path, certificate):
    of_three = {**certificate, "learners": [certificate] * 3}
    three = make_model(np.ones((3, 2)), np.zeros(3), tuple("abc"), certificate=of_three)
    for model in (make_model(certificate=certificate), three):
        model.save(tmp_path / "m")
        done = succeeded(here(tmp_path, "inspect", "m"))
        assert "no certificate: use streamtron certify" in done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with rows in text, and the run of a model."""
    place = tmp_path_factory.mktemp("odd")
    (place / "rows.svm").write_text("1 1:1\n-1 2:1\n")
    assert here(place, "fit", "rows.svm", "--model", "done").returncode == 0
    os.mkfifo(place / "pipe")
    (place / "directory").mkdir()
    with open(place / "endless", "wb") as file:
        file.truncate(1 << 40)
    return place


NAMING_A_FILE = {
    "jobs": ("batch",),
    "a scheduler file": ("evaluate", "done", "rows.svm", "--scheduler"),
    "a list of rows": ("forget", "done", "--rows"),
}
"""Commands that read a file that is written by hand."""

NO_SUCH_FILE = {
    "pipe": "not a file but a pipe",
    "/dev/zero": "not a file but a pipe or a device",
    "directory": "irectory",
    "endless": "1,099,511,627,776 bytes, where",
}


@pytest.mark.parametrize("file", NO_SUCH_FILE)
@pytest.mark.parametrize("what", NAMING_A_FILE)
def test_what_is_no_file_or_has_no_end_is_refused_and_not_waited_for(place, what, file):
    done = here(place, *NAMING_A_FILE[what], file)
    assert done.returncode in (2, 3, 5)
    one_sentence(done, done.returncode, file, NO_SUCH_FILE[file])


NO_TOML = {
    "lists nested a thousand deep": "x = " + "[" * 1000 + "]" * 1000,
    "lists nested without an end": "x = " + "[" * 100_000,
    "tables nested a thousand deep": "x = " + "{a=" * 1000 + "1" + "}" * 1000,
    "a number of 5,000 digits": "seed = " + "9" * 5000,
    "not text": "\x00\x01",
    "a key of many names": ".".join("a" * 30_000) + " = 1",
    "a deep table of many keys": f"[{'.'.join('a' * 400)}]\n"
    + "".join(map("k{} = 1\n".format, range(13_000))),
}


def short_sentence(done: Ended, code: int, *parts: str) -> None:
    one_sentence(done, code, *parts)
    assert len(done.stderr) < 300


@pytest.mark.parametrize("content", NO_TOML)
def test_toml_that_no_person_writes_is_refused_in_a_short_sentence_within_seconds(place, content):
    (place / "odd.toml").write_text(NO_TOML[content])
    for words in ("batch odd.toml", "fit rows.svm --model m --columns odd.toml"):
        began = time.process_time()
        short_sentence(here(place, *words.split()), 2, "odd.toml")
        assert time.process_time() - began < 10


@pytest.mark.parametrize("dated", [-1, 2**62], ids=["just before 1970", "2116"])
def test_a_shard_may_be_dated_before_1970_and_in_the_future(tmp_path, dated):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    (tmp_path / "b.svm").write_text("1 1:2\n")
    write_table(tmp_path / "c.parquet", {"label": [1, -1], "f0": [1.0, 0.0], "f1": [0.0, 1.0]})
    for name in ("a.svm", "b.svm", "c.parquet"):
        os.utime(tmp_path / name, ns=(dated, dated))
    for words in (
        "fit a.svm --model m",
        "update m b.svm",
        "certify m",
        "fit c.parquet --model n",
    ):
        done = here(tmp_path, *words.split())
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("digits", [5000, 30])
@pytest.mark.parametrize(
    "words",
    [
        "generate g --rows",
        "fit rows.svm --model m --memory",
        "sweep rows.svm --folds",
        "convert rows.svm -o c --rows-per-shard",
    ],
)
def test_a_number_of_too_many_digits_is_refused_in_a_short_sentence(place, words, digits):
    short_sentence(here(place, *words.split(), "9" * digits), 2, "9999")


@pytest.mark.parametrize("setting", ["C", "rho", "max_epochs", "active_set", "seed", "hash_bits"])
def test_a_setting_beyond_64_bits_is_refused(setting):
    with pytest.raises(SettingsError, match=rf"^{setting.replace('_', '-')} is .*beyond 2⁶³"):
        streamtron.Settings(**{setting: 10**4000})
