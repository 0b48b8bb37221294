"""The command line as its users meet it: real processes, their sentences and exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from streamtron import StreamtronClassifier
from streamtron.cli import options
from streamtron.cli.fit import fit
from streamtron.cli.main import streamtron
from streamtron.core import signals as interruption
from streamtron.core.config import SETTINGS, Settings
from streamtron.data.writers.corpus import generate
from tests.helpers.examples import slow_but
from tests.helpers.processes import Ended, one_sentence, succeeded
from tests.helpers.svm_text import svm_lines

STREAMTRON = Path(sys.executable).parent / "streamtron"
ROWS = 1500


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with shards to fit (train), to measure (held-out) and to label (new)."""
    directory = tmp_path_factory.mktemp("place")
    for name, rows, first in (("train", ROWS, 0), ("held-out", 300, ROWS), ("new", 20, 9999)):
        generate(str(directory / name), rows=rows, columns=500, seed=1, shards=2, first_row=first)
    return directory


@pytest.fixture(scope="module")
def model(place, run):
    """A model fitted on ``train``."""
    succeeded(run("fit", "train", "--model", "model", "--report", "report.json", "--witness", "w"))
    return place / "model"


def test_every_setting_is_an_option_of_fit_whose_help_ends_with_its_default():
    assert list(SETTINGS) == [field.name for field in fields(Settings)]
    given = {parameter.name: parameter for parameter in fit.params}
    assert {*SETTINGS} - {*options.OPTIONS} == {"held_out"}
    for field in map(SETTINGS.get, options.OPTIONS):
        option = given[field.name]
        assert isinstance(option, click.Option)
        assert options.option_name(field.name) in option.opts
        assert option.help
        if isinstance(field.default, str | int | float) and not isinstance(field.default, bool):
            assert option.help.endswith(f"[{field.default}]")
    assert (given["active_set"].help or "").endswith("[1 GB, or what --memory leaves].")


def test_options_become_settings_of_the_right_kinds():
    words = "train --model m --C 2 --stage 1,0.1 --b 5,0.25 --active-set 2MB --index-base 1 "
    words += "--class-weight 1=2,-1=0.5 --faithful"
    with fit.make_context("fit", words.split(), **streamtron.context_settings) as context:
        given, _ = options.split(context.params)
    assert given == {
        "C": 2.0,
        "stage": "1,0.1",
        "b": (5.0, 0.25),
        "active_set": 2_000_000,
        "class_weight": {"1": 2.0, "-1": 0.5},
        "index_base": 1,
        "faithful": True,
    }


@pytest.fixture(scope="module")
def wrong(place, model):
    """The same directory with files that are not as they should be."""
    head = "solver_type L2R_L2LOSS_SVC\nnr_class 2\nlabel 1 -1\nnr_feature 1\nbias -1\nw\n1\n"
    for name, text in {
        "seven.svm": "1 1:1\n7 1:1\n",
        "weights.txt": "0.5\n" * 500,
        "liblinear": head,
        "crammer": head.replace("L2R_L2LOSS_SVC", "MCSVM_CS").replace("w\n1", "w\n1 0"),
        "lasso": head.replace("L2R", "L1R").replace("bias -1\nw", "bias 1\nw\n1"),
    }.items():
        (place / name).write_text(text)
    content = bytearray(model.read_bytes())
    (place / "lonely").write_bytes(content)
    content[len(content) // 2] ^= 1
    (place / "turned").write_bytes(content)
    return place


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        ("fit", 2, "SHARDS"),
        ("fti", 2, "No such command 'fti'. Did you mean 'fit'? See streamtron --help.\n"),
        ("fit train", 2, "--model"),
        ("fit train --model x --tol 2", 2, "tol is 2.0"),
        ("fit train --model x --tol much", 2, "much"),
        ("fit train --model x --C 1 --delta 1", 2, "C and delta"),
        ("fit train --model x --b 1,x", 2, "'--b': '1,x': expected numbers"),
        ("fit train --model x --class-weight 1", 2, "'--class-weight': '1': expected"),
        ("fit train --model x --active-set 3XB", 2, "3XB"),
        ("fit train --model x --stage 3", 2, "stage '3'"),
        ("fit train --model x --nonesuch", 2, "--nonesuch"),
        ("fit train --model x --columns nonesuch.toml", 2, "nonesuch.toml"),
        ("fit train --model x --report nowhere/file", 5, "nowhere"),
        ("fit train --model x --witness nowhere/file", 5, "nowhere"),
        ("fit train --model nowhere/x", 5, "nowhere"),
        ("fit train --model x --memory 100MB", 5, "interpreter and libraries 236.0 MB, "),
        ("fit train --model x --memory 100MB", 5, "the limit is 100.0 MB. Give a larger --memory."),
        ("evaluate train/part-00000.svm held-out", 3, "part-00000.svm"),
        ("evaluate nonesuch held-out", 5, "nonesuch"),
        ("evaluate turned held-out", 3, "checksum"),
        ("certify crammer train --C 1", 2, "(Crammer and Singer) is not certified"),
        ("certify lasso train --C 1", 2, "with a bias (-B) is not certified"),
        ("evaluate model seven.svm", 3, "seven.svm, line 2: "),
        ("certify lonely", 3, "as in MODEL SHARDS"),
        ("certify liblinear train", 2, "--C"),
        ("certify weights.txt train --C 1", 2, "--index-base"),
        ("certify weights.txt train --C 1 --index-base 1", 2, "--rho"),
        ("inspect model --plan", 2, "--plan is for shards"),
        ("cache nonesuch --clear", 5, "nonesuch: there is none. Name a model"),
    ],
)
def test_a_refusal_is_one_sentence_with_its_reason_and_an_exit_code(words, code, part, run, wrong):
    one_sentence(run(*words.split()), code, part)
    assert not (wrong / "x").exists()


def test_a_traceback_is_shown_with_v_alone_and_of_a_defect_alone(run, tmp_path, monkeypatch):
    (tmp_path / "bad").write_text("1 1:nan\n")
    words = ("inspect", tmp_path / "bad")
    one_sentence(run(*words, "-v"), 3, "line 1")
    monkeypatch.setattr("streamtron.runs.inspect.inspect", lambda *_: 1 / 0)
    one_sentence(run(*words), 1, "internal error (ZeroDivisionError: ", "report the traceback")
    assert "Traceback" in run(*words, "-v").stderr


@pytest.fixture
def unwritable():
    """Files that nothing can be written to: of a full disk, and of a pipe that nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    with open("/dev/full", "w") as full, open(writes, "w") as unread:
        yield {"/dev/full": full, "closed pipe": unread}


@pytest.mark.parametrize(
    ("out", "ended"), [("/dev/full", (5, "No space left on device.\n")), ("closed pipe", (141, ""))]
)
def test_predictions_onto_a_full_disk_or_into_a_closed_pipe_end(out, ended, unwritable, model):
    words = [STREAMTRON, "predict", model, model.parent / "held-out", "-o", "-"]
    done = subprocess.run(words, stdout=unwritable[out], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == ended


def test_predict_says_that_stdout_is_closed(model):
    words = ["sh", "-c", 'exec "$@" >&-', "sh", STREAMTRON, "predict", model, "new", "-o", "-"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=model.parent)
    one_sentence(Ended(done.returncode, done.stdout, done.stderr), 5, "stdout is closed")


PIPE = subprocess.PIPE
STREAMS: dict[str, tuple[Any, Any, int]] = {
    "out closed": (None, PIPE, 5),
    "err closed": (PIPE, None, 0),
    "both closed": (None, None, 5),
    "out unread": ("closed pipe", PIPE, 141),
    "err unread": (PIPE, "closed pipe", 0),
    "out full": ("/dev/full", PIPE, 5),
    "err full": (PIPE, "/dev/full", 0),
    "both full": ("/dev/full", "/dev/full", 5),
}
"""What stdout and stderr are, None = the descriptor is closed; and the exit code."""


@pytest.mark.parametrize("streams", slow_but(STREAMS, "both closed", "both full"))
def test_a_fit_that_cannot_print_writes_its_model(streams, unwritable, model, tmp_path):
    out, err, code = STREAMS[streams]
    shell = f'exec "$@" {">&-" if out is None else ""} {"2>&-" if err is None else ""}'
    words = ["fit", model.parent / "train", "--model", tmp_path / "m", "--report", tmp_path / "r"]
    done = subprocess.run(
        ["sh", "-c", shell, "sh", STREAMTRON, *words, "-v"],
        text=True,
        stdout=unwritable.get(out, out),
        stderr=unwritable.get(err, err),
    )
    assert done.returncode == code
    assert (tmp_path / "m").read_bytes() == model.read_bytes()
    assert json.loads((tmp_path / "r").read_text())["stop_reason"] == "certified"
    if out == PIPE:
        assert "proven" in done.stdout
    if err == PIPE:
        assert "Traceback" not in done.stderr
        assert ("stdout: No space left on device." in done.stderr) == (out == "/dev/full")
        assert ("stdout is closed" in done.stderr) == (out is None)


def test_an_exit_code_says_what_happened_though_its_sentence_cannot_be_written(tmp_path):
    command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", STREAMTRON, "fit", "nonesuch"]
    assert subprocess.run([*command, "--model", "n"], cwd=tmp_path).returncode == 3


def test_a_fit_that_stops_before_its_tolerance_exits_with_4_and_says_what_would_help(run, place):
    done = run(
        "fit", "train", "--model", "early", "--max-epochs", 1, "--stage", "1", "--mini-epochs", 0
    )
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert float(re.search(r"relative duality gap is ([\d.]+)", done.stderr)[1]) > 0.01
    for option in ("--max-epochs", "--stage auto", "--active-set", "--tol"):
        assert option in done.stderr
    assert "NOT certified" in done.stdout
    assert (place / "early").is_file()
    words = ("--max-epochs", 1, "--mini-epochs", 0, "--tol", 1e-9)
    ascent = run("fit", "train", "--model", "early2", *words)
    assert ascent.returncode == 4
    assert "--stage" not in ascent.stderr, "it has ended with what would be told"


CONVERGES = ("--stage", "1", "--seed", "0")
"""To a gap of several per cent, at which nothing is left to update."""


@pytest.fixture(scope="module")
def overlap(place):
    """Rows that no line separates."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    y = np.where(X[:, 0] + rng.standard_normal(200) > 0, 1, -1)
    (place / "overlap.svm").write_text("".join(svm_lines(X.round(4), y)))
    return place


def test_a_fit_that_converges_above_its_tolerance_exits_with_4_and_says_what_helps(run, overlap):
    """Unless it was asked for convergence, or for less."""
    words = ("fit", "overlap.svm", *CONVERGES, "--report", "overlap.json")
    done = run(*words, "--model", "tight", "--tol", "1e-4")
    told = json.loads((overlap / "overlap.json").read_text())
    assert told["stop_reason"] == "converged"
    assert told["certificate"]["relative_duality_gap"] > 1e-4
    assert done.returncode == 4
    assert "NOT certified: the gap is" in done.stdout
    assert "converged before the tolerance was certified" in done.stderr
    assert "--stage auto, or a --tol looser than 0.0001" in done.stderr
    assert "--max-epochs" not in done.stderr
    succeeded(run("inspect", "tight"))
    for asked in (("--tol", "0"), ("--faithful",), ("--tol", "0.9")):
        assert "NOT certified" not in succeeded(run(*words, *asked, "--model", asked[-1])).stdout


def test_a_sweep_s_best_and_an_estimator_that_converge_above_their_tolerance_say_so(run, overlap):
    words = ("sweep", "overlap.svm", "--valid", "overlap.svm", "--C", "1,2", *CONVERGES)
    assert run(*words, "--tol", "1e-4").returncode == 4
    assert run(*words, "--tol", "0").returncode == 0
    with pytest.warns(ConvergenceWarning, match="a fit that converged proved a relative duality"):
        StreamtronClassifier(tol=1e-4).fit_shards(overlap / "overlap.svm", stage="1")


def test_inspect_tells_a_model_a_witness_a_run_and_shards_apart(run, model):
    kinds = {"model": "model", "w": "witness", "model.run": "run", "train": "shards"}
    for path, kind in kinds.items():
        assert json.loads(run("inspect", path, "--json").stdout)["kind"] == kind
        lines = succeeded(run("inspect", path)).stdout.splitlines()
        if path != "model":
            continue  # which leaves out the settings that are not there
        assert [line.split()[1] for line in lines if line.split()[:1] == ["rho"]] == ["1.0"]
        assert not [line for line in lines if line.endswith((" -", " None"))]


def test_cache_names_its_size_and_fits_and_clears_touch_their_own_files_only(run, place):
    run("fit", "train", "--model", "cached")
    cache = place / "cached.run" / "cache"
    theirs = {"mine.txt", "important.tmp", "k.cache", ".k.streamtron-cache"}
    for name in theirs:
        (cache / name).write_text("mine")
    run("fit", "train", "--model", "cached", "--overwrite")
    assert cache.name in run("cache", "cached").stdout
    assert "made free" in run("cache", "cached.run", "--clear").stdout
    assert {file.name for file in cache.iterdir()} == theirs
    assert "0 B in 0 files" in run("cache", cache).stdout


class Dying:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def outlive() -> None:
    Dying()
    time.sleep(5.0)  # which the signal cuts short: a limit, so that the test cannot hang


def test_a_signal_that_arrives_where_python_drops_what_is_raised_is_raised_again(capfd):
    with interruption.signals(), pytest.raises(interruption.Signalled):
        outlive()
    assert capfd.readouterr().err == ""


def test_a_second_signal_right_behind_the_first_does_not_disturb_the_tidying(monkeypatch):
    monkeypatch.setattr(interruption, "CLEARING", 1e6)
    with interruption.signals():
        with pytest.raises(interruption.Signalled):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setattr(interruption, "CLEARING", 0.0)
    monkeypatch.setattr(interruption, "REPEATED", 0.0)
    with interruption.signals():
        for _ in range(2):
            with pytest.raises(interruption.Signalled):
                os.kill(os.getpid(), signal.SIGTERM)
