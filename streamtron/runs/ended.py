"""Runs that have ended: where they are, and what they left, to be changed or to be looked at."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from streamtron.core.config import Settings
from streamtron.core.errors import DataError
from streamtron.core.locks import locked, shared
from streamtron.runs import transaction
from streamtron.runs.directory import Checkpoint, Record, Run, last_checkpoint, read_record
from streamtron.solver.checkpoint import State

ENDING = ".run"
"""What a run directory is called behind the name of its model."""


class Place(NamedTuple):
    """Where a run is: its directory, and its model."""

    directory: Path
    model: str


def locate(named: str | os.PathLike[str], run_dir: str | os.PathLike[str] | None = None) -> Place:
    """The run that is named by its model, ``MODEL``, or by its directory, ``MODEL.run``.

    No file tells which model is a run's: a run that was copied, or that came from somebody else,
    would name a file of others.

    Parameters
    ----------
    run_dir : the directory, where it is not ``MODEL.run``.

    Raises
    ------
    DataError : a directory of another name; a model that is a link to another directory.
    """
    path = os.fspath(named).rstrip("/")
    if run_dir is not None:
        return Place(Path(run_dir), path)
    model = path.removesuffix(ENDING) if os.path.isdir(path) else path
    if os.path.isdir(model):
        raise DataError(
            f"{path}: not MODEL nor MODEL{ENDING}. Name the model; a run directory of another name "
            "is named beside it, by --run-dir."
        )
    there = os.path.dirname(os.path.realpath(model))
    if os.path.islink(model) and there != os.path.realpath(os.path.dirname(model) or "."):
        raise DataError(
            f"{model}: a symbolic link to {there}, and the run would change what it leads to. Name "
            "the model itself, and its run directory by --run-dir."
        )
    return Place(Path(model + ENDING), model)


class Ended(NamedTuple):
    """A run that has ended, with all it left.

    Parameters
    ----------
    path : its directory.
    record : what it is of.
    settings : the record's.
    checkpoint : of its end.
    """

    path: Path
    record: Record
    settings: Settings
    checkpoint: Checkpoint


@contextmanager
def open_ended(place: Place, cache: str | os.PathLike[str] | None = None) -> Iterator[Ended]:
    """A run that has ended, to be changed: locked until the context ends or the process dies.

    Parameters
    ----------
    place : see ``locate``.
    cache : where its flat files are, if not in the run directory.

    Raises
    ------
    DataError : no run, or one that has not ended.
    MachineError : another process has it; it cannot be read.
    """
    directory = place.directory
    _check_there(directory)
    with locked(directory):
        for left in directory.glob(".streamtron-*"):
            left.unlink(missing_ok=True)  # half-written by a process that was killed
        transaction.recover(directory, place.model, cache)
        transaction.drop(directory)
        record = read_record(directory)
        yield _ended(directory, record, Run(directory).load())


@contextmanager
def look_at_ended(path: str | os.PathLike[str]) -> Iterator[Ended]:
    """The same to be looked at: nothing is written, and nobody changes it meanwhile.

    Raises
    ------
    DataError, MachineError : as ``open_ended``; a change of it was cut off.
    """
    directory = Path(path)
    _check_there(directory)
    with shared(directory):
        check_settled(directory)
        record = read_record(directory)
        yield _ended(directory, record, last_checkpoint(directory)[0])


def check_settled(path: str | os.PathLike[str]) -> None:
    """Refuse to read a run of which a change that counts is not in place yet.

    Raises
    ------
    DataError
    """
    if transaction.pending(Path(path)):
        raise DataError(
            f"{path}: a change of the run was cut off before all of it was in place. Call the "
            "streamtron update or forget that was cut off again, which ends it."
        )


def _check_there(directory: Path) -> None:
    if not directory.is_dir():
        raise DataError(f"{directory}: there is no run. Give a MODEL that streamtron fit wrote.")


def _ended(directory: Path, record: Record, checkpoint: Checkpoint | None) -> Ended:
    written = (directory / "manifest.json").exists()
    if checkpoint is None or not written or not _all_finished(checkpoint.state):
        raise DataError(
            f"{directory}: the run has not ended. End it with streamtron fit --resume, or fit anew."
        )
    return Ended(directory, record, Settings.from_dict(record.settings), checkpoint)


def _all_finished(state: State) -> bool:
    """Whether no learner goes on; of what is no state, those tell who make learners of it."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return all(
            dict(one["fields"]["dict"])["finished"] is not None for one in state.content["learners"]
        )
    return True
