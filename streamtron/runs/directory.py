"""The run directory: record, checkpoints and locks of a run, so that it can be resumed."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
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
from streamtron.data import Manifest, ShardFile, ShardSource, remove_abandoned
from streamtron.runs import transaction
from streamtron.solver.vectors import SparseVector, smaller

if TYPE_CHECKING:
    from streamtron.solver.checkpoint import State

_log = logging.getLogger(__name__)

RECORD_VERSION = 3
CHECKPOINT_VERSION = 10
"""Raised as well when the order of a reading changes, in which an older checkpoint is amid."""

MAY_CHANGE = ("tol", "max_epochs")
"""Settings that may differ when a run is resumed."""

WORTH_KEEPING = 30.0
"""Seconds of work, and tenfold those of the last one, after which a checkpoint precedes a solve."""

RUN_SUFFIX = ".run"
CHECKPOINT, BEFORE = "checkpoint", "checkpoint.before"
PARTS = "parts"
"""Directory of the states of the parts, if the data is cut into several."""

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
    nonzeros_read: int
    bytes_read: int
    seconds: float
    seen: Mapping[str, str]

    @classmethod
    def of(cls, state: State, source: ShardSource, seconds: float) -> Checkpoint:
        """Return the checkpoint of a state, and of what its source has read."""
        read = source.nonzeros_read, source.bytes_read
        return cls(state, list(source.labels), *read, seconds, source.seen)


class Record(NamedTuple):
    """Content of ``run.json``; the settings are plain values, the recipe its ``recipe_digest``."""

    settings: dict[str, Any]
    stamps: list[tuple[str, int, int]]
    recipe: str | None


@dataclass
class Run:
    """A locked run directory; see ``open_run``."""

    path: Path

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint, damaged or not."""
        return any((self.path / name).exists() for name in (CHECKPOINT, BEFORE))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; the previous one is kept beside it, also if a MachineError comes."""
        state = checkpoint.state
        arrays, sparse = take_apart(state.arrays)
        content = checkpoint._asdict() | {
            "checkpoint_version": CHECKPOINT_VERSION,
            "reading": state.reading,
            "chunks": state.chunks,
            "state": state.content,
            "sparse": sparse,
        }
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
    settings: Settings,
    stamps: Stamps,
    model: str | os.PathLike[str] | None = None,
    *,
    recipe: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Iterator[Run]:
    """Create or resume a run directory, locked until the context ends or the process dies.

    A resumed run must have the same settings, stamps and recipe, except for ``MAY_CHANGE``. Without
    ``resume`` and ``overwrite`` an existing run is a SettingsError. ``model`` : path of the run's
    model; None = it has none, and is never updated.
    """
    run = Run(Path(path))
    with reading_from(path):
        run.path.mkdir(parents=True, exist_ok=True)
    with locked(run.path):
        remove_temporary(run.path)
        if model is not None:
            transaction.recover(run.path, model)
        exists = (run.path / "run.json").exists()
        if not (resume or overwrite):
            refuse_existing(path)
        if exists and resume:
            _check_same(run.path, settings, stamps, recipe)
        else:
            run.forget()
        write_record(run.path, settings, stamps, recipe)
        try:
            yield run
        except (StreamtronError, signals.Signalled) as error:
            if isinstance(error, signals.Signalled) and (run.begun or settings.parts is not None):
                error.run = os.fspath(path)
                error.at_checkpoint |= not run.begun  # the record alone says how many parts
            elif not run.begun or (isinstance(error, SettingsError) and not exists):
                run.forget()  # nothing to resume, or nothing that these settings could end
                (run.path / LOCK).unlink(missing_ok=True)
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
    """A ``solver.train.Checkpointer`` that writes every so many seconds, before a signal stops
    the run, and ``at_end``; ``make`` makes a checkpoint of a state."""

    def __init__(
        self, run: Run, every: float, make: Callable[[State], Checkpoint], *, at_end: bool = True
    ) -> None:
        self.run, self.every, self.make, self.at_end = run, every, make, at_end
        self._saved, self._took = time.monotonic(), 0.0

    def checkpoint(self, state: Callable[[], State]) -> None:
        """Save if the interval is over or a signal came, which is then raised."""
        stopped = signals.pending_stop()
        if stopped or self._since() >= self.every:
            self._save(state)
        if stopped:
            raise stopped

    def before_solves(self, state: Callable[[], State]) -> None:
        """Save what was read: a process killed amid a solve loses the solve alone."""
        if self._since() >= max(WORTH_KEEPING, 10.0 * self._took):
            self._save(state)

    def checkpoint_due(self) -> bool:
        """Return whether to save before the next solve: at most half of the time is for saving."""
        return signals.is_pending() or self._since() >= max(self.every, self._took)

    def end(self, state: Callable[[], State]) -> None:
        """Save the final state, from which the run can be continued or updated."""
        stopped = signals.pending_stop()
        if self.at_end:
            self._save(state)
        if stopped:
            raise stopped

    def _since(self) -> float:
        return time.monotonic() - self._saved

    def _save(self, state: Callable[[], State]) -> None:
        began = time.monotonic()
        self.run.save(self.make(state()))
        self._saved = time.monotonic()
        self._took = self._saved - began


def write_record(path: Path, settings: Settings, stamps: Stamps, recipe: str | None) -> None:
    """Write ``run.json``."""
    record = {
        "recipe": recipe,
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
            raise ValueError(f"version {record['run_version']}, wanted {RECORD_VERSION}")
        stamps = [(str(name), int(size), int(time)) for name, size, time in record["shards"]]
        return Record(dict(record["settings"]), stamps, record.get("recipe"))
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise DataError(
            f"{where}: not the record of a run ({error}). Start over with --overwrite."
        ) from error


def _check_same(path: Path, settings: Settings, stamps: Stamps, recipe: str | None) -> None:
    """Refuse settings, shards or a recipe other than the run's."""
    recorded, known, counted = read_record(path)
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
    ours, theirs = [name for name, *_ in known], [name for name, *_ in stamps]
    if ours != theirs:
        gone, new = sorted({*ours} - {*theirs}), sorted({*theirs} - {*ours})
        what = f"{gone[0]} is missing" if gone else f"{new[0] if new else 'the order'} is new"
        raise DataError(
            f"{path}: the run has other shards ({what}). Give the same ones, start over with "
            "--overwrite, or add shards with streamtron update."
        )
    for old, stamp in zip(known, stamps, strict=True):
        if old != tuple(stamp):
            raise DataError(
                f"{old[0]}: changed since the run began ({old[1]} bytes then, {stamp[1]} now, or "
                "touched). Put it back as it was, or start over with --overwrite."
            )
    if counted != recipe:
        what = f"{path}: the columns of the run are of other names, or were counted in other rows."
        raise DataError(f"{what} Put its vocabulary or model back, or start over with --overwrite.")


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
        where = int(content["reading"]), int(content["chunks"])
        state = State(*where, content["state"], put_together(arrays, content["sparse"]))
        parts, labels = state.content["learners"], content["labels"]
        named = [*labels, *(part["positive"] for part in parts if part["positive"] is not None)]
        if not all(isinstance(x, str) or math.isfinite(x) for x in named):
            raise ValueError("labels of another kind")
        if labels and not parts:
            raise ValueError("no learners")
        _ = state.group  # raises, if it is none
        read = int(content["nonzeros_read"]), int(content["bytes_read"])
        seen, seconds = dict(content.get("seen", {})), float(content["seconds"])
        return Checkpoint(state, list(labels), *read, seconds, seen)
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
