"""The store of a run: ``run.sqlite`` and one file of arrays a state, in ``MODEL.run``.

``run.sqlite`` has one table of facts, JSON by name, and is replaced as a whole. A state is JSON and
named arrays, made by ``solver.checkpoint``. Its file is written and synced; then the facts name it,
and the file before it is removed. A change of a run (its shards, settings, state and model) is one
replacement, too. So a crash leaves the last state whole.

A run may come from a stranger. Schema, types and names are checked before anything is used, no name
leads out of the directory, and no trigger, view, journal or log is obeyed.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, FileDamaged, MachineError
from streamtron.core.files import (
    locked,
    parse_json,
    reading_from,
    regular,
    remove_half_written,
    write_atomically,
)
from streamtron.core.rows import Label
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.data import Dataset, Manifest, ShardFile, remove_abandoned
from streamtron.data.deletions import Deletions
from streamtron.data.manifest import MOST

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel
    from streamtron.solver.checkpoint import State

DATABASE, CACHE, PARTS = "run.sqlite", "cache", "parts-{:06d}"
"""In a run directory: the database, the prepared data, and the states of several parts."""

_STATE, _MODEL = "state-{:06d}", "model-{:06d}"
_OURS = re.compile(r"(?:state|model|parts)-(\d{6,12})")

_PIECE = 1 << 20
"""Bytes of a model that are copied at a time."""

_APPLICATION, _VERSION = 0x73747274, 4
_STATE_VERSION = 16

_SCHEMA = "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"

_NO_FACT = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""Raised where JSON, or the content of a state, is not as a run writes it."""

Fact = TypeVar("Fact")


def is_run(path: str | os.PathLike[str]) -> bool:
    """Tell whether a directory is that of a run, ended or not."""
    return os.path.isfile(os.path.join(path, DATABASE))


class SavedState(NamedTuple):
    """The solver's state, with the nonzeros and bytes that were read until then, and the seconds
    that it took. ``numbers`` : see ``Dataset``; ``seen`` : the fingerprints of the shards."""

    state: State
    labels: list[Label]
    numbers: NDArray[np.uint32]
    nonzeros_read: int
    bytes_read: int
    seconds: float
    seen: Mapping[str, str]

    @classmethod
    def of(cls, state: State, data: Dataset, seconds: float) -> SavedState:
        """Return a state of learners on data."""
        read = data.nonzeros_read, data.bytes_read
        seen = data.manifest.fingerprints
        return cls(state, list(data.labels), data.numbers, *read, seconds, seen)


class Absent(NamedTuple):
    """A shard that the run does not have any more: its fingerprint and bytes, and those of its rows
    that were forgotten, None = all."""

    fingerprint: str
    bytes: int
    rows: NDArray[np.int64] | None


def _a(kind: type[Fact]) -> Callable[[Any], Fact]:
    def read(value: Any) -> Fact:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r:.60}")
        return value

    return read


def _maybe(kind: type[Fact]) -> Callable[[Any], Fact | None]:
    return lambda value: None if value is None else _a(kind)(value)


def _named(kind: str) -> Callable[[Any], str | None]:
    """Names of our files alone, so that none leads out of the directory."""

    def read(value: Any) -> str | None:
        if value is not None and not (_OURS.fullmatch(value) and value.startswith(kind)):
            raise ValueError(f"{value!r:.60} is the name of no {kind}")
        return None if value is None else str(value)

    return read


def _given(value: Any) -> list[tuple[str, int]]:
    return [(str(name), int(size)) for name, size in value]


def _forgotten(value: Any) -> list[Deletions]:
    text = _a(str)
    return [Deletions(text(path), text(of), _rising(rows)) for path, of, rows in value]


def _absent(value: Any) -> list[Absent]:
    return [
        Absent(_a(str)(of), _a(int)(size), None if rows is None else _rising(rows))
        for of, size, rows in value
    ]


def _rising(rows: Any) -> NDArray[np.int64]:
    numbers = np.array(rows, dtype=np.int64)
    if (np.diff(numbers, prepend=-1) <= 0).any():
        raise ValueError("forgotten rows that do not rise")
    return numbers


class _Fact(Generic[Fact]):
    """A fact of a store, read from its JSON, null if there is none, by a function that raises one
    of ``_NO_FACT`` where it is not as a run writes it."""

    def __init__(self, name: str, read: Callable[[Any], Fact]) -> None:
        self._name, self._read = name, read

    def __get__(self, store: Store, _: type[Store]) -> Fact:
        try:
            return self._read(parse_json(store.facts.get(self._name, "null")))
        except _NO_FACT as error:
            raise store.damaged(f"its {self._name}: {error}") from error


class Store:
    """A run directory, to be read or, if it is locked, to be changed. ``path`` : the directory.
    ``facts`` : name → JSON, none if there is no run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts = self._read() if os.path.lexists(path / DATABASE) else {}

    @property
    def exists(self) -> bool:
        """Whether there is a run."""
        return bool(self.facts)

    settings = _Fact("settings", _a(dict))
    """The settings, as plain values."""

    transformer = _Fact("transformer", _maybe(str))
    """The digest of the transformer of columns, if there is one."""

    report = _Fact("report", _maybe(dict))
    """The report; None until the run has ended."""

    given = _Fact("given", _given)
    """Name and bytes of the shards that the run was given, in order."""

    forgotten = _Fact("forgotten", _forgotten)
    """The rows that were forgotten of the run's shards which still hold them."""

    absent = _Fact("absent", _absent)
    """What was forgotten of shards that the run does not have."""

    state_file = _Fact("state", _named("state"))
    """The name of the file of the last state, damaged or not, if there is one."""

    _shards = _Fact("shards", _a(list))
    _parts = _Fact("parts", _named("parts"))
    _model = _Fact("model", _named("model"))

    @property
    def manifest(self) -> Manifest:
        """The shards that the run reads."""
        shards = {"shards": self._shards}
        return Manifest.from_dict(shards, os.fspath(self.path / DATABASE), os.fspath(self.path))

    @property
    def parts(self) -> Path:
        """The directory of the states of the parts, if the data are cut into several."""
        return self.path / (self._parts or "")

    @property
    def pending(self) -> bool:
        """Whether a change was committed, and its model is not in its place yet."""
        return self._model is not None

    @property
    def state_bytes(self) -> int:
        """The bytes of the last state; 0 if there is none."""
        path = self.path / (self.state_file or "")
        return os.path.getsize(path) if path.is_file() else 0

    def state(self) -> SavedState | None:
        """Read the last state, if there is one; FileDamaged if it is not as it was written."""
        file = self.state_file
        return None if file is None else _read_state(self.path / file)

    def _read(self) -> dict[str, str]:
        """Read all facts; the database is opened in memory, so that no file beside it counts."""
        path = self.path / DATABASE
        with reading_from(path), open(path, "rb", opener=regular) as file:
            content = file.read()
        try:
            with closing(sqlite3.connect(":memory:")) as database:
                database.deserialize(content or b"nothing")
                for pragma in ("trusted_schema=OFF", "cell_size_check=ON"):
                    database.execute(f"PRAGMA {pragma}")
                [(application,)] = database.execute("PRAGMA application_id")
                [(version,)] = database.execute("PRAGMA user_version")
                known = database.execute("SELECT sql FROM sqlite_schema ORDER BY rowid").fetchall()
                if application != _APPLICATION or version != _VERSION:
                    raise self.damaged(f"version {version}, expected {_VERSION}")
                if known != [(_SCHEMA,), (None,)]:  # the second is its primary key
                    raise self.damaged("other tables than a run has")
                return dict(database.execute("SELECT name, value FROM facts"))
        except sqlite3.Error as error:
            raise self.damaged(str(error)) from error

    def damaged(self, reason: str) -> FileDamaged:
        """Make the error where the database is not as a run writes it."""
        return FileDamaged(
            f"{self.path / DATABASE}: not the record of a run ({reason:.200}). Copy it again from "
            "where it was written, or start over with --overwrite."
        )

    # writing

    def begin(
        self, settings: Settings, transformer: str | None, shards: Sequence[ShardFile]
    ) -> None:
        """Begin a run; another one is removed."""
        self._commit(
            anew=True,
            settings=settings.to_dict(),
            transformer=transformer,
            given=[(shard.name, shard.size) for shard in shards],
            shards=[],
            forgotten=[],
            absent=[],
            parts=PARTS.format(0),
        )
        self.clean()

    def go_on(self, settings: Settings) -> None:
        """Go on with the run, with settings that may differ; see ``fit``."""
        self._commit(settings=settings.to_dict())

    def save(self, saved: SavedState) -> None:
        """Save a state in place of the one before, which also stays if a MachineError comes."""
        replaced = self.state_file
        try:
            self._commit(**self._written(saved))
        except (MachineError, OSError) as error:
            raise MachineError(
                f"{error} Put that right; --resume continues from the state before, if there is "
                "one."
            ) from error
        if replaced is not None:
            (self.path / replaced).unlink(missing_ok=True)

    def end(
        self,
        path: str | os.PathLike[str],
        model: LinearModel,
        settings: Settings,
        transformer: str | None,
        manifest: Manifest,
        forgotten: Sequence[Deletions],
        absent: Sequence[Absent],
        report: Mapping[str, Any],
        state: SavedState | None = None,
        parts: Path | None = None,
    ) -> None:
        """End the run, or change it: commit its new facts with its model, which is then put in
        its place, ``path``.

        ``state`` : None = the last one that was saved. ``parts`` : directory of the parts' states,
        None = as it is.
        """
        name = _MODEL.format(self._next())
        model.save(self.path / name)
        gone = [
            (k.fingerprint, k.bytes, None if k.rows is None else k.rows.tolist()) for k in absent
        ]
        facts: dict[str, Any] = {
            "settings": settings.to_dict(),
            "transformer": transformer,
            "given": [(shard.name, shard.bytes) for shard in manifest.shards],
            "shards": manifest.to_dict(os.fspath(self.path))["shards"],
            "forgotten": [(left.path, left.fingerprint, left.rows.tolist()) for left in forgotten],
            "absent": gone,
            "report": report,
            "model": name,
        }
        facts |= {} if parts is None else {"parts": parts.name}
        facts |= {} if state is None else self._written(state)
        self._commit(**facts)
        self.complete(path)

    def complete(self, path: str | os.PathLike[str] | None) -> None:
        """Put the model of a committed change in its place, None = it is to have none. May be
        interrupted and repeated."""
        name = self._model
        if name is not None and path is not None:
            remove_half_written(path)  # by a process that has died
            with (
                reading_from(self.path / name),
                open(self.path / name, "rb", opener=regular) as file,
            ):
                write_atomically(path, iter(partial(file.read, _PIECE), b""))
            self._commit(model=None)
        self.clean()

    def new_parts(self) -> Path:
        """Return a new directory for the states of parts; it counts once ``end`` names it."""
        path = self.path / PARTS.format(self._next())
        path.mkdir()
        return path

    def remove(self) -> None:
        """Remove the run, except its prepared data."""
        (self.path / DATABASE).unlink(missing_ok=True)
        self.facts = {}
        self.clean()

    def clean(self) -> None:
        """Remove files that killed processes left half-written, and states that no longer count."""
        named = {self.state_file, self._model, self._parts}
        for path in self.path.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in named:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for directory in (self.path, self.path / CACHE, *self.path.glob("parts-*")):
            for file in directory.glob(".streamtron-*"):
                file.unlink(missing_ok=True)
        if (self.path / CACHE).is_dir():
            remove_abandoned(os.fspath(self.path / CACHE))

    def _commit(self, *, anew: bool = False, **facts: Any) -> None:
        """Replace facts, all at once; ``anew`` : those of another run go."""
        new = {name: json.dumps(value, allow_nan=False) for name, value in facts.items()}
        known = new if anew else self.facts | new
        with closing(sqlite3.connect(":memory:")) as database:
            version = f"PRAGMA application_id={_APPLICATION}; PRAGMA user_version={_VERSION}"
            database.executescript(f"{version}; {_SCHEMA};")
            with database:
                database.executemany("INSERT INTO facts VALUES (?, ?)", sorted(known.items()))
            content = database.serialize()
        write_atomically(self.path / DATABASE, [content])
        self.facts = known

    def _next(self) -> int:
        """Return the number of the next state."""
        file = self.state_file
        return 1 if file is None else 1 + int(file.partition("-")[2])

    def _written(self, saved: SavedState) -> dict[str, Any]:
        """Write the file of a state; return the facts that name it."""
        name = _STATE.format(self._next())
        content = saved._asdict() | {
            "state_version": _STATE_VERSION,
            "reading": saved.state.reading,
            "state": saved.state.content,
        }
        del content["numbers"]
        write_sealed(self.path / name, content, {**saved.state.arrays, _NUMBERS: saved.numbers})
        return {"state": name}


@contextmanager
def changing(
    path: str | os.PathLike[str], model: str | os.PathLike[str] | None, *, anew: bool = False
) -> Iterator[Store]:
    """Open a run directory to change it, locked until the context ends or the process dies.

    A change that was committed is completed first. InUseError: another process has locked it.
    ``model`` : path of the run's model; None = it has none. ``anew`` : the run is to be begun anew:
    no change is completed, and a damaged store is removed.
    """
    directory = Path(path)
    with locked(directory):
        try:
            store = Store(directory)
            store.complete(None if anew else model)
        except FileDamaged:
            if not anew:
                raise
            (directory / DATABASE).unlink()
            store = Store(directory)
            store.clean()
        yield store


def there(path: str | os.PathLike[str]) -> Path:
    """Return a run directory; a DataError if there is no run."""
    if not is_run(path):
        raise DataError(f"{path}: there is no run. Give a MODEL that streamtron fit wrote.")
    return Path(path)


def reading(path: str | os.PathLike[str]) -> Store:
    """Open a run directory to read it; nothing is written. A DataError if there is no run."""
    return Store(there(path))


_NUMBERS = "numbers"
"""The array of a state that has the columns' numbers."""


def _read_state(path: Path) -> SavedState:
    from streamtron.solver.checkpoint import State  # loads the solver

    content, arrays = read_sealed(path, "state of a run")
    if (version := content.get("state_version")) != _STATE_VERSION:
        raise DataError(
            f"{path}: state version {version}, this streamtron reads {_STATE_VERSION}. Use the "
            "streamtron that wrote it, or start over with --overwrite."
        )
    try:
        numbers = arrays.pop(_NUMBERS)
        if numbers.dtype != np.uint32 or numbers.ndim != 1:
            raise ValueError("no columns")
        state = State(int(content["reading"]), content["state"], arrays)
        parts, labels = state.content["learners"], content["labels"]
        named = [*labels, *(part["positive"] for part in parts if part["positive"] is not None)]
        if not all(isinstance(x, str) or math.isfinite(x) for x in named):
            raise ValueError("labels of another kind")
        if labels and not parts:
            raise ValueError("no learners")
        _ = state.group  # raises, if it is none
        read = int(content["nonzeros_read"]), int(content["bytes_read"])
        if not all(0 <= number < MOST for number in read):
            raise ValueError("more than was read")
        seen, seconds = dict(content["seen"]), float(content["seconds"])
        return SavedState(state, list(labels), numbers, *read, seconds, seen)
    except _NO_FACT as error:
        raise FileDamaged(
            f"{path}: intact, but not a state ({error}). Start over with --overwrite."
        ) from error
