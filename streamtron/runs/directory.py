"""The run directory: what a run needs to be taken up again, whatever ended it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from streamtron.core import signals
from streamtron.core.config import Settings
from streamtron.core.errors import (
    DataError,
    FileDamaged,
    MachineError,
    SettingsError,
    StreamtronError,
)
from streamtron.core.locks import LOCK, locked
from streamtron.core.rows import Label
from streamtron.core.sealed import read_sealed, reading_from, write_atomically, write_sealed
from streamtron.runs import transaction
from streamtron.solver.checkpoint import State

_log = logging.getLogger(__name__)

RECORD_VERSION = 3
CHECKPOINT_VERSION = 4
"""Of what a checkpoint means, too: a reading goes on in the order in which it began, and before
version 4 later readings had other blocks, or other groups, and a solve could be half done."""

MAY_CHANGE = ("tol", "max_epochs")
"""Settings that a run which is taken up may have otherwise than before."""

WORTH_KEEPING = 10.0
"""Seconds of reading that are saved before a solve begins, however rare checkpoints are to be."""

CHECKPOINT, BEFORE = "checkpoint", "checkpoint.before"

Stamps = Sequence[tuple[str, int, int]]
"""(name, bytes, time of the last change in ns) of every shard, in order."""


class Checkpoint(NamedTuple):
    """A state, the labels met when it was taken, and what the run had read and taken by then."""

    state: State
    labels: list[Label]
    nonzeros_read: int
    bytes_read: int
    seconds: float


class Record(NamedTuple):
    """What a run is of.

    Parameters
    ----------
    settings : plain values.
    stamps : of its shards, in order.
    """

    settings: dict[str, Any]
    stamps: list[tuple[str, int, int]]


class Run:
    """A run directory that is locked; see ``open_run``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint, whole or not."""
        return any((self.path / name).exists() for name in (CHECKPOINT, BEFORE))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; the one before is kept until this one is whole, and beside it.

        Raises
        ------
        MachineError : it cannot be written; the one before stands.
        """
        state = checkpoint.state
        content = {
            "checkpoint_version": CHECKPOINT_VERSION,
            "reading": state.reading,
            "chunks": state.chunks,
            "state": state.content,
            "labels": checkpoint.labels,
            "nonzeros_read": checkpoint.nonzeros_read,
            "bytes_read": checkpoint.bytes_read,
            "seconds": checkpoint.seconds,
        }
        try:
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path / CHECKPOINT, self.path / BEFORE)
            write_sealed(self.path / CHECKPOINT, content, state.arrays)
        except (MachineError, OSError) as error:
            raise MachineError(
                f"{error} Put that right; --resume goes on from the checkpoint before, if there is "
                "one."
            ) from error

    def load(self) -> Checkpoint | None:
        """The last whole checkpoint; None if there is none. One that is damaged is removed with a
        warning: it must not take the place of the one before it."""
        found, damaged = last_checkpoint(self.path)
        for path in damaged:
            path.unlink()
        return found

    def forget(self) -> None:
        """Remove what an earlier run left, but for the cache, which fits whoever reads the same."""
        for name in (CHECKPOINT, BEFORE, "witness", "manifest.json", "run.json", "deletions"):
            (self.path / name).unlink(missing_ok=True)


@contextmanager
def open_run(
    path: str | os.PathLike[str],
    settings: Settings,
    stamps: Stamps,
    model: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> Iterator[Run]:
    """The run directory, made or taken up, locked until the context ends or the process dies.

    Parameters
    ----------
    settings, stamps : the run's settings and shards, which must be those of a run that is taken
        up, but for ``MAY_CHANGE``.
    model : where the run's model is; None = there is none, and nobody changes the run.
    cache : where its flat files are, if not in the run directory.
    resume : go on with the run that is there, if any.
    overwrite : begin anew whatever is there.

    Raises
    ------
    SettingsError : a run is there, and neither was said; other settings than the run's.
    DataError : other shards than the run's; a directory that is not a run's.
    MachineError : another process has it; it cannot be written.
    """
    run = Run(Path(path))
    with reading_from(path):
        run.path.mkdir(parents=True, exist_ok=True)
    with locked(run.path):
        for left in run.path.glob(".streamtron-*"):
            left.unlink(missing_ok=True)  # half-written by a process that was killed
        if model is not None:
            transaction.recover(run.path, model, cache)
        there = (run.path / "run.json").exists()
        if not (resume or overwrite):
            refuse_existing(path)
        if there and resume:
            _check_same(run.path, settings, stamps)
        else:
            run.forget()
        write_record(run.path, settings, stamps)
        try:
            yield run
        except (StreamtronError, signals.Signalled) as error:
            if not run.begun:
                run.forget()  # there is nothing to go on with
                (run.path / LOCK).unlink(missing_ok=True)
            elif isinstance(error, signals.Signalled):
                error.run = os.fspath(path)
            raise


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Raise the SettingsError that a run is there already, if one is."""
    if (Path(path) / "run.json").exists():
        raise SettingsError(
            f"{path}: a run is there already. Go on with it by --resume, begin anew by "
            "--overwrite, or give another --model or --run-dir."
        )


class Saver:
    """Saves a run at borders: every so often, at its end, and where a signal stops it.

    Parameters
    ----------
    run : where to.
    every : seconds between checkpoints.
    checkpoint : makes one of a state.
    at_end : whether the end is saved, too; else it is with whoever waits for it.
    """

    def __init__(
        self,
        run: Run,
        every: float,
        checkpoint: Callable[[State], Checkpoint],
        *,
        at_end: bool = True,
    ) -> None:
        self.run, self.every, self.checkpoint, self.at_end = run, every, checkpoint, at_end
        self._saved, self._took = time.monotonic(), 0.0

    def border(self, state: Callable[[], State]) -> None:
        """See ``solver.train.Checkpointer``."""
        stopped = signals.at_border()
        if stopped or self._since() >= self.every:
            self._save(state)
        if stopped:
            raise stopped

    def before_solves(self, state: Callable[[], State]) -> None:
        """See ``solver.train.Checkpointer``: a solve is lost where the process is killed amid it,
        but not what was read before."""
        if self._since() >= WORTH_KEEPING:
            self._save(state)

    def due(self) -> bool:
        """See ``solver.train.Checkpointer``: after a signal no solve begins. A solve can be far
        shorter than it takes to save, which gets half of the time between solves at most."""
        return signals.waits() or self._since() >= max(self.every, self._took)

    def end(self, state: Callable[[], State]) -> None:
        """See ``solver.train.Checkpointer``: what the run came to can be taken further, or added
        to."""
        stopped = signals.at_border()
        if self.at_end:
            self._save(state)
        if stopped:
            raise stopped

    def _since(self) -> float:
        """Seconds since the last checkpoint."""
        return time.monotonic() - self._saved

    def _save(self, state: Callable[[], State]) -> None:
        began = time.monotonic()
        self.run.save(self.checkpoint(state()))
        self._saved = time.monotonic()
        self._took = self._saved - began


def write_record(path: Path, settings: Settings, stamps: Stamps) -> None:
    """Write what the run is of, ``run.json``; see ``Record``."""
    record = {
        "run_version": RECORD_VERSION,
        "settings": settings.to_dict(),
        "shards": [list(stamp) for stamp in stamps],
    }
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    write_atomically(path / "run.json", [text.encode()])


def read_record(path: Path) -> Record:
    """What a run is of.

    Raises
    ------
    DataError : there is none that this streamtron can read.
    """
    where = path / "run.json"
    try:
        with reading_from(where):
            record = json.loads(where.read_bytes())
        if record["run_version"] != RECORD_VERSION:
            raise ValueError(f"version {record['run_version']}, wanted {RECORD_VERSION}")
        stamps = [(str(name), int(size), int(time)) for name, size, time in record["shards"]]
        return Record(dict(record["settings"]), stamps)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(
            f"{where}: not the record of a run ({error}). Begin anew with --overwrite."
        ) from error


def _check_same(path: Path, settings: Settings, stamps: Stamps) -> None:
    """Refuse other settings and shards than the run's."""
    before, known = read_record(path)
    now = json.loads(json.dumps(settings.to_dict()))
    _check_settings(path, before, now)
    if [name for name, *_ in known] != [name for name, *_ in stamps]:
        ours, theirs = {name for name, *_ in known}, {name for name, *_ in stamps}
        gone, new = sorted(ours - theirs), sorted(theirs - ours)
        what = f"{gone[0]} is missing" if gone else f"{new[0] if new else 'the order'} is new"
        raise DataError(
            f"{path}: the run is of other shards ({what}). Give the same ones, begin anew with "
            "--overwrite, or add shards with streamtron update."
        )
    for old, found in zip(known, stamps, strict=True):
        if old != tuple(found):
            raise DataError(
                f"{old[0]}: changed since the run began ({old[1]} bytes then, {found[1]} now, or "
                "touched). Put it back as it was, or begin anew with --overwrite."
            )


def _check_settings(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = sorted(
        name
        for name in {*before, *now}
        if name not in MAY_CHANGE and before.get(name) != now.get(name)
    )
    if changed:
        name = changed[0]
        more = f" (and {', '.join(changed[1:])})" if changed[1:] else ""
        raise SettingsError(
            f"{path}: {name} is {now.get(name)}, the run has {before.get(name)}{more}. A run that "
            f"is taken up keeps its settings, but for {' and '.join(MAY_CHANGE)}; begin anew with "
            "--overwrite."
        )


def last_checkpoint(directory: Path) -> tuple[Checkpoint | None, list[Path]]:
    """The last whole checkpoint of a run, if there is one; and those that are damaged, of which a
    warning tells."""
    damaged: list[Path] = []
    for name in (CHECKPOINT, BEFORE):
        path = directory / name
        try:
            if path.exists():
                return _checkpoint(path), damaged
        except FileDamaged as error:
            _log.warning("%s The checkpoint before it is used, if there is one.", error)
            damaged.append(path)
    return None, damaged


def _checkpoint(path: Path) -> Checkpoint:
    content, arrays = read_sealed(path, "checkpoint")
    version = content.get("checkpoint_version")
    if version != CHECKPOINT_VERSION:
        raise DataError(
            f"{path}: checkpoint version {version}, this streamtron reads {CHECKPOINT_VERSION}. "
            "Use the streamtron that wrote it, or begin anew with --overwrite."
        )
    try:
        state = State(int(content["reading"]), int(content["chunks"]), content["state"], arrays)
        return Checkpoint(
            state,
            list(content["labels"]),
            int(content["nonzeros_read"]),
            int(content["bytes_read"]),
            float(content["seconds"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileDamaged(
            f"{path}: sealed, but what it holds is no checkpoint ({error})."
        ) from error
