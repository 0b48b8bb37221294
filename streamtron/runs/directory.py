"""The run directory: record, checkpoints and locks of a run, so that it can be resumed."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import signals
from streamtron.core.config import Settings
from streamtron.core.errors import (
    DataError,
    FileDamaged,
    MachineError,
    SettingsError,
    StreamtronError,
)
from streamtron.core.files import LOCK, as_path, locked, parse_json, reading_from, write_atomically
from streamtron.core.rows import Label
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.data import Dataset, Manifest, ShardFile, deletions, remove_abandoned
from streamtron.data.deletions import Deletions
from streamtron.runs import transaction
from streamtron.solver.vectors import SparseVector, smaller

if TYPE_CHECKING:
    from streamtron.solver.checkpoint import State

_log = logging.getLogger(__name__)

RECORD_VERSION = 3
CHECKPOINT_VERSION = 11

MAY_CHANGE = ("tol", "max_epochs")
"""Settings that may differ when a run is resumed."""

RUN_SUFFIX = ".run"
CHECKPOINT, BEFORE = "checkpoint", "checkpoint.before"
PARTS = "parts"
"""Directory of the states of the parts, if the data is cut into several."""

NUMBERS = "numbers"
"""The array of a checkpoint that has the number of each column, by rank."""

COLUMNS, VALUES = "{}.columns", "{}.values"
"""The arrays of a checkpoint to which ``take_apart`` takes a vector."""

Stamps = Sequence[tuple[str, int, int]]
"""(name, bytes, time of the last change in ns) of every shard, in order."""


def run_directory(model: str | os.PathLike[str]) -> str:
    """Return where a run keeps its witness, manifest and cache: ``MODEL.run``."""
    return as_path(model) + RUN_SUFFIX


def is_run(path: str | os.PathLike[str]) -> bool:
    """Tell whether a directory is that of a run, ended or not."""
    names = ["run.json", *(["manifest.json"] if os.fspath(path).endswith(RUN_SUFFIX) else [])]
    return any(os.path.isfile(os.path.join(path, name)) for name in names)


def manifest_of(run: str | os.PathLike[str]) -> Manifest | None:
    """Return the manifest in a run directory; None until the run has ended."""
    path = os.path.join(run, "manifest.json")
    return Manifest.load(path) if os.path.isfile(path) else None


def stamps_of(shards: Iterable[ShardFile]) -> Stamps:
    """Return the stamps of shards."""
    return [(shard.name, shard.size, shard.mtime_ns) for shard in shards]


class Checkpoint(NamedTuple):
    """The solver's state, and what had been read, in so many seconds; ``seen`` as of a source."""

    state: State
    labels: list[Label]
    numbers: NDArray[np.uint32]
    """of the columns, by rank: see ``Dataset``"""
    nonzeros_read: int
    bytes_read: int
    seconds: float
    seen: Mapping[str, str]

    @classmethod
    def of(cls, state: State, data: Dataset, seconds: float) -> Checkpoint:
        """Return the checkpoint of a state, and of what has been read of its data."""
        read = data.nonzeros_read, data.bytes_read
        return cls(state, list(data.labels), data.numbers, *read, seconds, data.seen)


class Record(NamedTuple):
    """Content of ``run.json``; the settings are plain values, ``transformer`` is the
    ``transformer_digest``."""

    settings: dict[str, Any]
    stamps: list[tuple[str, int, int]]
    transformer: str | None


@dataclass
class Run:
    """A locked run directory; see ``open_run``. ``record`` : of the run that is resumed."""

    path: Path
    stamps: Stamps
    record: Record | None
    started: bool = False

    @property
    def saved(self) -> bool:
        """Whether there is a state, damaged or not."""
        return any((self.path / name).exists() for name in (CHECKPOINT, BEFORE))

    @property
    def deletions(self) -> list[Deletions]:
        """The rows that a run that is resumed has forgotten: they stay out."""
        return [] if self.record is None else [*deletions.load(self.path).values()]

    @property
    def seen(self) -> dict[str, str]:
        """Names and fingerprints of the shards of a run that is resumed, as far as it read them."""
        if self.record is None:
            return {}
        manifest, checkpoint = manifest_of(self.path), self.load()
        known = {} if manifest is None else manifest.fingerprints
        return known | ({} if checkpoint is None else dict(checkpoint.seen))

    @property
    def labels(self) -> list[Label]:
        """The labels of a run that is resumed, by their codes in its state; none if it has none."""
        checkpoint = None if self.record is None else self.load()
        return [] if checkpoint is None else checkpoint.labels

    def begin(self, settings: Settings, transformer: str | None) -> None:
        """Begin, or go on with, a run of these settings and transformer; what was there of another
        is removed. SettingsError, DataError: a resumed run has others, except for MAY_CHANGE."""
        if self.record is not None:
            _check_same(self.path, self.record, settings, transformer)
        else:
            self.forget()
        write_record(self.path, settings, self.stamps, transformer)
        self.started = True

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; the previous one is kept beside it, also if a MachineError comes."""
        state = checkpoint.state
        arrays, sparse = take_apart(state.arrays)
        content = checkpoint._asdict() | {
            "checkpoint_version": CHECKPOINT_VERSION,
            "reading": state.reading,
            "state": state.content,
            "sparse": sparse,
        }
        del content["numbers"]
        arrays[NUMBERS] = checkpoint.numbers
        try:
            with suppress(FileNotFoundError):
                os.replace(self.path / CHECKPOINT, self.path / BEFORE)
            write_sealed(self.path / CHECKPOINT, content, arrays)
        except (MachineError, OSError) as error:
            raise MachineError(
                f"{error} Put that right; --resume continues from the previous checkpoint, if "
                "there is one."
            ) from error

    def load(self) -> Checkpoint | None:
        """Read the last intact checkpoint; remove damaged ones, which never replace another."""
        checkpoint, damaged = last_checkpoint(self.path)
        for path in damaged:
            path.unlink()
        return checkpoint

    def forget(self) -> None:
        """Remove the files of an earlier run, except the cache."""
        names = ("witness", "manifest.json", "report.json", "run.json", "deletions")
        for name in (CHECKPOINT, BEFORE, *names):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / PARTS, ignore_errors=True)


@contextmanager
def open_run(
    path: str | os.PathLike[str],
    model: str | os.PathLike[str] | None,
    shards: Sequence[ShardFile],
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> Iterator[Run]:
    """Open a run directory to begin or resume a run, locked until the context ends or the process
    dies; ``Run.begin`` says with which settings.

    A resumed run must have the same shards. Without ``resume`` and ``overwrite`` an existing run is
    a SettingsError. ``model`` : path of the run's model; None = it has none, and is never updated.
    """
    directory, stamps = Path(path), stamps_of(shards)
    with reading_from(path):
        directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        remove_temporary(directory)
        if model is not None:
            transaction.recover(directory, model)
        exists = (directory / "run.json").exists()
        if not (resume or overwrite):
            refuse_existing(path)
        if overwrite and (directory / deletions.NAME).exists():
            _log.warning(
                "%s: rows that were forgotten are read again where their shards still hold them.",
                path,
            )
        run = Run(directory, stamps, read_record(directory) if exists and resume else None)
        if run.record is not None:
            _check_same_shards(directory, run.record, stamps)
        try:
            yield run
        except (StreamtronError, signals.Signalled) as error:
            if isinstance(error, signals.Signalled) and run.saved:
                error.run = os.fspath(path)
            elif run.started and run.record is None and not run.saved:
                run.forget()  # nothing to resume
            if not run.saved and not exists:
                (directory / LOCK).unlink(missing_ok=True)
            raise


def remove_temporary(path: Path) -> None:
    """Remove files that a killed process left half-written."""
    for directory in (path, path / PARTS, path / transaction.CACHE):
        for file in directory.glob(".streamtron-*"):
            file.unlink(missing_ok=True)
    if (path / transaction.CACHE).is_dir():
        remove_abandoned(os.fspath(path / transaction.CACHE))


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Raise a SettingsError if there is a run at ``path``."""
    if (Path(path) / "run.json").exists():
        raise SettingsError(
            f"{path}: a run is there already. Continue it with --resume, start over with "
            "--overwrite, or give another --model or --run-dir."
        )


class CheckpointWriter:
    """A ``solver.train.Checkpointer`` that saves the state after every reading, and ``at_end``;
    ``make`` makes a checkpoint of a state."""

    def __init__(
        self, run: Run, make: Callable[[State], Checkpoint], *, at_end: bool = True
    ) -> None:
        self._run, self._make, self._at_end = run, make, at_end

    def save(self, state: Callable[[], State]) -> None:
        """Save the state after a reading."""
        self._run.save(self._make(state()))

    def end(self, state: Callable[[], State]) -> None:
        """Save the final state, from which the run can be continued or updated."""
        if self._at_end:
            self.save(state)


def write_record(path: Path, settings: Settings, stamps: Stamps, transformer: str | None) -> None:
    """Write ``run.json``."""
    record = {
        "transformer": transformer,
        "run_version": RECORD_VERSION,
        "settings": settings.to_dict(),
        "shards": [list(stamp) for stamp in stamps],
    }
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    write_atomically(path / "run.json", [text.encode()])


def read_record(path: Path) -> Record:
    """Read ``run.json``; raise a DataError if it is not a record of this version."""
    where = path / "run.json"
    try:
        with reading_from(where):
            record = parse_json(where.read_bytes())
        if record["run_version"] != RECORD_VERSION:
            raise ValueError(f"version {record['run_version']}, expected {RECORD_VERSION}")
        stamps = [(str(name), int(size), int(time)) for name, size, time in record["shards"]]
        return Record(dict(record["settings"]), stamps, record.get("transformer"))
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise DataError(
            f"{where}: not the record of a run ({error}). Start over with --overwrite."
        ) from error


def _check_same(path: Path, record: Record, settings: Settings, transformer: str | None) -> None:
    """Refuse settings or a transformer other than the run's."""
    recorded = record.settings
    current = json.loads(json.dumps(settings.to_dict()))
    names = {*recorded, *current} - set(MAY_CHANGE)
    if changed := [name for name in names if recorded.get(name) != current.get(name)]:
        name, *further_names = sorted(changed, key=lambda name: (current.get(name) is None, name))
        further = f" (and {', '.join(further_names)})" if further_names else ""
        raise SettingsError(
            f"{path}: {name} is {current.get(name)}, the run has {recorded.get(name)}{further}. A "
            f"resumed run keeps its settings, except for {' and '.join(MAY_CHANGE)}; start over "
            "with --overwrite."
        )
    if record.transformer != transformer:
        what = f"{path}: the columns of the run are of other names, or were counted in other rows."
        raise DataError(f"{what} Put its vocabulary or model back, or start over with --overwrite.")


def _check_same_shards(path: Path, record: Record, stamps: Stamps) -> None:
    """Refuse shards other than the run's."""
    ours, theirs = [name for name, *_ in record.stamps], [name for name, *_ in stamps]
    if ours != theirs:
        gone, new = sorted({*ours} - {*theirs}), sorted({*theirs} - {*ours})
        what = f"{gone[0]} is missing" if gone else f"{new[0] if new else 'the order'} is new"
        raise DataError(
            f"{path}: the run has other shards ({what}). Give the same ones, start over with "
            "--overwrite, or add shards with streamtron update."
        )
    for old, stamp in zip(record.stamps, stamps, strict=True):
        if old != tuple(stamp):
            raise DataError(
                f"{old[0]}: changed since the run began ({old[1]} bytes then, {stamp[1]} now, or "
                "touched). Put it back as it was, or start over with --overwrite."
            )


def last_checkpoint(directory: Path) -> tuple[Checkpoint | None, list[Path]]:
    """Read the last intact checkpoint of a run; log and return damaged ones."""
    damaged: list[Path] = []
    for name in (CHECKPOINT, BEFORE):
        path = directory / name
        try:
            if path.exists():
                return _checkpoint(path), damaged
        except FileDamaged as error:
            _log.warning("%s The previous checkpoint is used, if there is one.", error)
            damaged.append(path)
    return None, damaged


def _checkpoint(path: Path) -> Checkpoint:
    from streamtron.solver.checkpoint import State  # loads the solver

    content, arrays = read_sealed(path, "checkpoint")
    version = content.get("checkpoint_version")
    if version != CHECKPOINT_VERSION:
        raise DataError(
            f"{path}: checkpoint version {version}, this streamtron reads {CHECKPOINT_VERSION}. "
            "Use the streamtron that wrote it, or start over with --overwrite."
        )
    try:
        numbers = arrays.pop(NUMBERS)
        if numbers.dtype != np.uint32 or numbers.ndim != 1:
            raise ValueError("no columns")
        vectors = put_together(arrays, content["sparse"])
        state = State(int(content["reading"]), content["state"], vectors)
        parts, labels = state.content["learners"], content["labels"]
        named = [*labels, *(part["positive"] for part in parts if part["positive"] is not None)]
        if not all(isinstance(x, str) or math.isfinite(x) for x in named):
            raise ValueError("labels of another kind")
        if labels and not parts:
            raise ValueError("no learners")
        _ = state.group  # raises, if it is none
        read = int(content["nonzeros_read"]), int(content["bytes_read"])
        seen, seconds = dict(content.get("seen", {})), float(content["seconds"])
        return Checkpoint(state, list(labels), numbers, *read, seconds, seen)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise FileDamaged(f"{path}: intact, but not a checkpoint ({error}).") from error


def take_apart(
    arrays: Mapping[str, NDArray[Any] | SparseVector],
) -> tuple[dict[str, NDArray[Any]], dict[str, tuple[str, int]]]:
    """Take float64 vectors apart where that takes fewer bytes: into the columns that are not 0, as
    uint32, and their values. Vectors of the same columns share these. Returns the arrays, and of
    each vector taken apart the name of its columns and its length.

    Examples
    --------
    >>> arrays, sparse = take_apart({"w": np.array([0.0, 0.0, 0.5]), "v": np.ones(2)})
    >>> {name: array.tolist() for name, array in arrays.items()}, sparse
    ({'w.values': [0.5], 'w.columns': [2], 'v': [1.0, 1.0]}, {'w': ('w.columns', 3)})
    >>> put_together(arrays, sparse)["w"].dense().tolist()
    [0.0, 0.0, 0.5]
    """
    parts: dict[str, NDArray[Any]] = {}
    sparse: dict[str, tuple[str, int]] = {}
    columns, name_of_columns = np.zeros(0, np.uint32), ""
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype == np.float64:
            array = smaller(array)
        if not isinstance(array, SparseVector):
            parts[name] = array
            continue
        parts[VALUES.format(name)] = array.values
        if not (name_of_columns and np.array_equal(array.columns, columns)):
            columns, name_of_columns = array.columns, COLUMNS.format(name)
            parts[name_of_columns] = columns
        sparse[name] = name_of_columns, len(array)
    return parts, sparse


def put_together(
    arrays: dict[str, NDArray[Any]], sparse: Mapping[str, Sequence[Any]]
) -> dict[str, NDArray[Any] | SparseVector]:
    """Put vectors together again, see ``take_apart``; LookupError or ValueError: they are none."""
    parts = {columns for columns, _ in sparse.values()} | {VALUES.format(n) for n in sparse}
    vectors: dict[str, NDArray[Any] | SparseVector]
    vectors = {name: array for name, array in arrays.items() if name not in parts}
    for name, (columns, length) in sparse.items():
        vectors[name] = SparseVector(arrays[columns], arrays[VALUES.format(name)], int(length))
    return vectors
