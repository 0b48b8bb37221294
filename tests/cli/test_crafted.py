"""Every command on models and run directories that a stranger made: sealed by the rule, with one
value that is not what it should be."""

import faulthandler
import json
import resource
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.runs.store import DATABASE
from tests.helpers.processes import Process, here
from tests.helpers.runs import state_file

NUMBERS = (-1, 0, 10**400, 1e308, -1e308, 5e-324)
VALUES: tuple[Any, ...] = (None, True, *NUMBERS, "x", "", [], [["x"]], {}, {"a": [1]}, "gone")
"""What takes the place of every value; the last one stands for no value at all."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "m"),
    "inspect run": ("inspect", "m.run"),
    "predict": ("predict", "m", "a.svm", "-o", "out", "--certain"),
    "evaluate": ("evaluate", "m", "a.svm"),
    "explain": ("explain", "m"),
    "sklearn": ("export", "m", "--format", "sklearn", "-o", "out"),
    "json": ("export", "m", "--format", "json", "-o", "out"),
    "liblinear": ("export", "m", "--format", "liblinear", "-o", "out"),
    "onnx": ("export", "m", "--format", "onnx", "-o", "out"),
    "report": ("report", "m", "-o", "page.html"),
    "certify": ("certify", "m"),
    "certify shards": ("certify", "m", "a.svm"),
    "update": ("update", "m", "b.svm"),
    "forget": ("forget", "m", "b.svm"),
    "resume": ("fit", "a.svm", "--model", "m", "--resume"),
}

SECONDS = 60
"""A command may take, of which the longest takes two."""

MEMORY = 4 << 30
"""Bytes of address space that the commands may have, beside what importing everything took."""

Path_ = tuple[str | int, ...]


def places(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Every place in JSON; of a list, the first entry."""
    if at:
        yield at
    items: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value[:1])
    for key, inner in items:
        yield from places(inner, (*at, key))


def put(content: Any, at: Path_, value: Any) -> Any:
    """The same JSON with another value at a place."""
    changed = json.loads(json.dumps(content))
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    if value == "gone":
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return changed


@pytest.fixture(scope="module", params=["two", "many"])
def trained(request, tmp_path_factory):
    """A directory with shards, a finished run of two classes or of three, and a copy of its
    model."""
    root, classes = tmp_path_factory.mktemp("trained"), {"two": 2, "many": 3}[request.param]
    for name, rows in (("a", 30), ("b", 6)):
        lines = (f"{k % classes} {k % classes + 1}:1 {k % 5 + 4}:.5\n" for k in range(rows))
        (root / f"{name}.svm").write_text("".join(lines))
    streamtron.fit(root / "a.svm", model=root / "m", multiclass=classes == 3)
    shutil.copy(root / "m", root / "good")
    return root


def crafted(root: Path, to: Path, file: str, at: Path_, value: Any) -> Path:
    """A copy of the directory in which one value of one file differs."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(root, to)
    path = to / file
    if file in FACTS:
        with closing(sqlite3.connect(path.parent / DATABASE)) as database, database:
            name = FACTS[file]
            [(text,)] = database.execute("SELECT value FROM facts WHERE name = ?", (name,))
            row = json.dumps(put(json.loads(text), at, value)), name
            database.execute("UPDATE facts SET value = ? WHERE name = ?", row)
    else:
        path = state_file(path.parent) if file == "m.run/state" else path
        content, tensors = read_sealed(path)
        write_sealed(path, put(content, at, value), tensors)
    return to


FACTS = {f"m.run/{name}": name for name in ("report", "settings", "shards", "given")}
"""JSON of the store → its name there."""


def contents(root: Path) -> dict[str, Any]:
    """The JSON of the model and its run."""
    found = {"m": read_sealed(root / "m")[0]}
    found["m.run/state"] = read_sealed(state_file(root / "m.run"))[0]
    with closing(sqlite3.connect(root / "m.run" / DATABASE)) as database:
        for file, name in FACTS.items():
            [(text,)] = database.execute("SELECT value FROM facts WHERE name = ?", (name,))
            found[file] = json.loads(text)
    return found


def ends_in_a_sentence(directory: Path, *words: str) -> str:
    """ "" if the command ends as it should; else what it did."""
    done = here(directory, *words)
    good = done.returncode in (0, 2, 3, 4, 5) and "Traceback" not in done.stderr
    return "" if good and len(done.stderr) < 5000 else f"{done.returncode} {done.stderr[-300:]}"


COST: dict[str, tuple[str, ...]] = {
    "m": tuple(name for name in COMMANDS if name not in ("inspect run", "forget", "resume")),
    "m.run/report": ("report", "inspect run"),
    "m.run/settings": ("inspect run", "update", "forget", "resume"),
    "m.run/shards": ("inspect run", "report", "certify", "update", "forget"),
    "m.run/given": ("inspect run", "resume"),
    "m.run/state": ("inspect run", "certify", "update", "resume"),
}
"""File → commands that read it."""


def cases(root: Path) -> Iterator[tuple[str, Path_, Any, str]]:
    """Every file, place, value and command."""
    for file, content in contents(root).items():
        for number, at in enumerate(places(content)):
            for turn, value in enumerate(VALUES):
                commands = COST[file]
                yield file, at, value, commands[(number + turn) % len(commands)]


def run_all(root: Path, scratch: Path) -> None:
    """Run the cases of a file, in a process of their own with bounded memory: say each, and how it
    failed. One that takes too long ends the process."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    for line in (scratch / "cases").read_text().splitlines():
        file, at, value, command = json.loads(line)
        try:
            place = crafted(root, scratch / "crafted", file, at, value)
        except ValueError:
            continue  # JSON of ours has no such number
        print(f"{file} {at} = {str(value)[:20]!r}, {command}", end="", flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        wrong = ends_in_a_sentence(place, *COMMANDS[command])
        faulthandler.cancel_dump_traceback_later()
        print(f" FAILED: {wrong!r}" if wrong else "", flush=True)
    print("done")


def check(root: Path, scratch: Path, chosen: Iterable[tuple[str, Path_, Any, str]]) -> int:
    """Run the commands; the number of them, all of which end in a sentence or do their work."""
    scratch.mkdir()
    (scratch / "cases").write_text("".join(f"{json.dumps(case)}\n" for case in chosen))
    code = f"from tests.cli.test_crafted import *; run_all(Path({str(root)!r}), Path.cwd())"
    ended = Process(code, cwd=scratch).end(7200.0)
    *said, last = ended.stdout.splitlines() or [""]
    failures = [line for line in said if " FAILED: " in line]
    assert not failures, f"{len(failures)} of {len(said)}:\n" + "\n".join(failures)
    assert last == "done", f"{last}: exit code {ended.returncode}\n{ended.stderr[-3000:]}"
    return len(said)


@pytest.mark.parametrize("number", [60, pytest.param(None, marks=pytest.mark.slow)])
def test_every_command_on_crafted_models_and_runs_ends_in_a_sentence(trained, tmp_path, number):
    """Some of them, or all."""
    every = list(cases(trained))
    step = len(every) // number if number else 1
    assert check(trained, tmp_path / "cases", every[::step]) > (30 if number else 1000)


def test_what_once_led_to_an_error_that_should_not_happen(trained, tmp_path):
    cases: list[tuple[str, Path_, Any, str]] = [
        ("m.run/report", ("certificate",), {"upper_bound": "x"}, "report"),
        ("m", ("certificate", "primal_margin"), "x", "predict"),
        ("m", ("settings", "C"), "x", "sklearn"),
        ("m.run/settings", ("multiclass",), "x", "update"),
        ("m.run/settings", ("multiclass",), True, "update"),
        ("m.run/settings", ("multiclass",), False, "update"),
        ("m.run/shards", (0, "format"), "x", "report"),
        ("m.run/state", ("state", "learners", 0, "positive"), [], "resume"),
        ("m", ("settings", "loss"), [], "onnx"),
        ("m.run/state", ("labels", 0), 10**400, "resume"),
        ("m.run/state", ("state", "learners", 0), "gone", "resume"),
        ("m.run/shards", (0, "bytes"), 10**400, "update"),
        ("m.run/state", ("state", "learners", 0, "center"), 1e308, "update"),
        ("m.run/state", ("state", "learners", 0, "scan", "bias"), 0.0, "update"),
        *[("m", ("settings", "rho"), value, "predict") for value in (None, "x", 10**400, 1e308)],
    ]
    assert check(trained, tmp_path / "cases", cases) == len(cases)
