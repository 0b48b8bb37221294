"""Runs in processes of their own, to be killed, and small corpora for them."""

import json
import os
import pickle
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamtron
from streamtron.cli.main import main
from streamtron.core.errors import StreamtronError
from streamtron.core.events import Event, WorkDone
from streamtron.data import Manifest
from streamtron.data.deletions import Deletions
from streamtron.runs import store, witness
from streamtron.runs.certify import ScanTask, scan_part
from tests.helpers.processes import COMMAND, Ended, Process


def write_corpus(
    directory: Path, rows: int = 18000, columns: int = 300, classes: int = 2, noise: float = 0.0
) -> None:
    """Three shards of libsvm text, five nonzeros a row."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(1 if classes == 2 else classes, columns))
    chosen = np.sort(np.argsort(rng.random((rows, columns)), axis=1)[:, :5], axis=1)
    values = np.round(rng.normal(size=(rows, 5)), 3)
    scores = (truth[:, chosen] * values).sum(axis=2)
    if classes == 2:
        kept = np.abs(scores[0]) > (0.0 if noise else 0.3)
        labels = np.where((scores[0] > 0.0) ^ (rng.random(rows) < noise), 1, -1)
    else:
        kept = np.ones(rows, dtype=bool)
        there = np.minimum(classes, 2 + np.arange(rows) * classes // rows)
        scores[np.arange(classes)[:, None] >= there] = -np.inf
        labels = scores.argmax(axis=0)
    lines = [
        f"{labels[k]} " + " ".join(f"{1 + chosen[k, i]}:{values[k, i]}" for i in range(5))
        for k in np.flatnonzero(kept)
    ]
    directory.mkdir()
    for number, part in enumerate(np.array_split(np.array(lines), 3)):
        (directory / f"part-{number}.svm").write_text("\n".join(part) + "\n")


def report_of(run: str | os.PathLike[str]) -> dict[str, Any]:
    """The report that the store of a run has."""
    opened = store.reading(run)
    report = opened.report
    assert report is not None
    return report


def put_fact(run: str | os.PathLike[str], name: str, value: Any) -> None:
    """Put JSON into the store of a run, as a stranger would."""
    with closing(sqlite3.connect(Path(run, store.DATABASE))) as database, database:
        row = json.dumps(value), name
        database.execute("UPDATE facts SET value = ? WHERE name = ?", row)


def manifest_of(run: str | os.PathLike[str]) -> Manifest:
    """The manifest that the store of a run has."""
    opened = store.reading(run)
    return opened.manifest


def forgotten_of(run: str | os.PathLike[str]) -> dict[str, Deletions]:
    """The forgotten rows that the store of a run has, by the paths of their shards."""
    opened = store.reading(run)
    return {rows.path: rows for rows in opened.forgotten}


def state_file(run: str | os.PathLike[str]) -> Path:
    """The file of arrays of the last state of a run."""
    opened = store.reading(run)
    name = opened.state_file
    assert name is not None
    return Path(run, name)


def witness_of(run: str | os.PathLike[str], path: Path | None = None) -> Path:
    """The witness of a run, written to ``path``, or beside its directory."""
    path = path or Path(f"{run}.witness")
    opened = store.reading(run)
    witness.export(opened, path)
    return path


def kept(place: Path, model: str) -> tuple[bytes, bytes]:
    """The bytes of model and witness."""
    path = witness_of(place / f"{model}.run")
    written = path.read_bytes()
    path.unlink()
    return (place / model).read_bytes(), written


def begins(event: Event) -> bool:
    """Whether a reading begins."""
    known = isinstance(event, WorkDone) and event.reading is not None
    return known and not event.done and event.step != "solving"


def stopping(kind: type | Callable[[Event], bool], number: int) -> Callable[[Event], None]:
    """A listener that interrupts its run at the event of a kind that has this number, from 1 on."""
    seen = count(1)

    def listen(event: Event) -> None:
        is_one = isinstance(event, kind) if isinstance(kind, type) else kind(event)
        if is_one and next(seen) == number:
            raise InterruptedError

    return listen


Moment = Callable[[Path, int], bool]
"""(run directory, process) → whether now is the time; asked again and again."""


def at_state(number: int) -> Moment:
    """When so many states have been seen."""
    met: set[str | None] = set()

    def now(directory: Path, process: int) -> bool:
        with suppress(StreamtronError):
            met.update(filter(None, [store.reading(directory).state_file]))
        return len(met) >= number

    return now


def reached(place: Path, model: str, process: Process, moment: Moment) -> bool:
    """Wait for a moment; False if the process has ended before."""
    while process.poll() is None:
        with suppress(FileNotFoundError):  # not yet, or between two names
            if moment(place / f"{model}.run", process.pid):
                return True
    return False


def killed(
    place: Path, words: Sequence[str], model: str, moment: Moment, number: int = signal.SIGKILL
) -> Ended:
    """A command that gets a signal at a moment, unless it ended before."""
    process = Process(COMMAND, *words, cwd=place)
    if reached(place, model, process, moment):
        process.send_signal(number)
    return process.end()


KILL_AT_A_CALL = """
import json, os, signal, sys, streamtron
from streamtron.runs.finished_run import locate
from streamtron.runs.store import changing
left = int(sys.argv[1])
def one(call):
    def counted(*a, **k):
        global left
        left -= 1
        if left < 0: os.kill(os.getpid(), signal.SIGKILL)
        return call(*a, **k)
    return counted
for name in ("replace", "fsync", "mkdir", "unlink", "rmdir"):
    setattr(os, name, one(getattr(os, name)))
if sys.argv[2] == "recover":
    place = locate(sys.argv[3])
    with changing(place.directory, place.model):
        pass
else:
    words = json.loads(sys.argv[4])
    getattr(streamtron, sys.argv[2])(words.pop("first", sys.argv[3]), **words)
os.write(1, str(int(sys.argv[1]) - left).encode())
"""
"""Ends itself before a system call that changes the disk; else it prints how many there were."""


def killed_at_call(number: int, change: str, model: Path, words: object = None) -> tuple[int, str]:
    """A change of a run, ``fit``, ``update``, ``forget`` or ``recover``, killed before a system
    call that changes the disk: its exit code, and how many calls there were if it was not killed.

    ``words`` : its arguments; ``first`` stands before the others, in place of the model."""
    arguments = (number, change, model, json.dumps(words))
    ended = Process(KILL_AT_A_CALL, *arguments, cwd=model.parent).end()
    return ended.returncode, ended.stdout


WAS_KILLED = -signal.SIGKILL


def content(directory: Path, model: Path) -> dict[str, bytes]:
    """Every file of a run but its cache and its lock, and the model."""
    files = [p for p in directory.rglob("*") if p.is_file() and "cache" not in p.parts[-2:]]
    return {p.name: p.read_bytes() for p in (*files, model) if p.name != "lock"}


def state(place: Path) -> dict[str, Any]:
    """What a run is, but for what tells how long it took and what it read."""
    model, written = kept(place, "m")
    opened = store.reading(place / "m.run")
    known = opened.settings, opened.given, opened.manifest, opened.pending
    forgotten = [(rows.path, rows.fingerprint, rows.digest) for rows in opened.forgotten]
    return {"model": model, "witness": written, "known": known, "forgotten": forgotten}


def dies_amid_a_scan(task: ScanTask, *shared: Any) -> Iterator[Any]:
    """``scan_part``, and the worker is killed before it returns what it has found: once, and not
    that of the first shard. ``shared`` has a path at its end that then exists."""
    *shared_then, mark = shared
    for scan in scan_part(task, *shared_then):
        if not task.name.startswith(("0000", "part-0")) and not os.path.exists(mark):
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield scan


def fit(shards: list[Path], model: Path, **settings: Any) -> dict[str, Any]:
    wanted = streamtron.Settings.from_dict({"C": 5.0, "index_base": 0, **settings})
    return streamtron.run(shards, wanted, model=model, machine=streamtron.Machine()).report


def gap(report: dict[str, Any]) -> float:
    return float(report["certificate"]["relative_duality_gap"])


def code(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(str(ended.value.code))


def pickled(function: Callable[..., Any], items: Any, *shared: Any) -> Iterator[Any]:
    """An executor that hands everything over as to another process, and the results back."""
    for item in items:
        handed, own, others = pickle.loads(pickle.dumps((function, item, shared)))
        yield from pickle.loads(pickle.dumps(list(handed(own, *others))))
