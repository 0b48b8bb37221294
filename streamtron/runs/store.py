"""The store of a run: ``run.sqlite`` and one file of arrays a state, in ``MODEL.run``.

A state is JSON and named arrays, made by ``solver.checkpoint``. Its file is written and synced;
then a transaction names it, and the file before it is removed. A change of a run (its shards,
settings, state and model) is one transaction, too. So a crash leaves the last state whole.

A run may come from a stranger. Header, schema, types and names are checked before anything is used,
no name leads out of the directory, and no trigger, view or second journal is obeyed.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

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
    sync_directory,
    write_atomically,
    writing_to,
)
from streamtron.core.rows import Label
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.data import Dataset, Manifest, ShardFile, remove_abandoned
from streamtron.data.deletions import Deletions
from streamtron.solver.vectors import SparseVector, smaller

if TYPE_CHECKING:
    from streamtron.solver.checkpoint import State

DATABASE, CACHE, PARTS = "run.sqlite", "cache", "parts-{:06d}"
"""In a run directory: the database, the prepared data, and the states of several parts."""

_STATE, _MODEL = "state-{:06d}", "model-{:06d}"
_OURS = re.compile(r"(?:state|model|parts)-\d{6,12}")

_APPLICATION, _VERSION = 0x73747274, 2
_STATE_VERSION = 12

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE shards (number INTEGER PRIMARY KEY, stamp TEXT NOT NULL, record TEXT) STRICT;
CREATE TABLE forgotten (number INTEGER PRIMARY KEY, shard TEXT NOT NULL, rows BLOB) STRICT;
CREATE TABLE history (number INTEGER PRIMARY KEY, reading INTEGER NOT NULL, seconds REAL NOT NULL,
    nonzeros_read INTEGER NOT NULL, bytes_read INTEGER NOT NULL, file TEXT) STRICT;
"""
"""``facts``: JSON by name. ``shards``: name, bytes and time of every shard that was given, and its
record, if it was not skipped. ``forgotten``: of a shard of the run path and fingerprint, of another
one fingerprint and bytes, and its rows that were forgotten, int64, NULL = all. ``history``: of
every state what had been read; the last one has its file."""

_FROM_SECOND_JOURNAL = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
"""A journal that ends so names another file, which SQLite might remove. Ours name none."""

_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_TOOBIG")

Stamps = Sequence[tuple[str, int, int]]
"""(name, bytes, time of the last change in ns) of every shard, in order."""


def is_run(path: str | os.PathLike[str]) -> bool:
    """Tell whether a directory is that of a run, ended or not."""
    return os.path.isfile(os.path.join(path, DATABASE))


def no_run(path: str | os.PathLike[str]) -> DataError:
    """Make the error where a directory holds no run."""
    return DataError(f"{path}: there is no run. Give a MODEL that streamtron fit wrote.")


def stamps_of(shards: Sequence[ShardFile]) -> Stamps:
    """Return the stamps of shards."""
    return [(shard.name, shard.size, shard.mtime_ns) for shard in shards]


class SavedState(NamedTuple):
    """The solver's state, and what had been read, in so many seconds; ``seen`` as of a source.

    ``numbers`` : of the columns, by rank, see ``Dataset``.
    """

    state: State
    labels: list[Label]
    numbers: NDArray[np.uint32]
    nonzeros_read: int
    bytes_read: int
    seconds: float
    seen: Mapping[str, str]

    @classmethod
    def of(cls, state: State, data: Dataset, seconds: float) -> SavedState:
        """Return a state with what has been read of its data."""
        read = data.nonzeros_read, data.bytes_read
        return cls(state, list(data.labels), data.numbers, *read, seconds, data.seen)


class Absent(NamedTuple):
    """A shard that the run does not have any more: its fingerprint and bytes, and those of its rows
    that were forgotten, None = all."""

    fingerprint: str
    bytes: int
    rows: NDArray[np.int64] | None


class Ended(NamedTuple):
    """What a run is once it has ended, beside its state: see ``Store.end``."""

    settings: Settings
    transformer: str | None
    shards: Sequence[ShardFile]
    manifest: Manifest
    forgotten: Sequence[Deletions]
    absent: Sequence[Absent]
    report: Mapping[str, Any]


class Store:
    """A run directory that is open, to be read or, if it is locked, to be changed. ``path`` : the
    directory. ``exists`` : whether there is a run in it."""

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path, self._write = path, write
        self._database: sqlite3.Connection | None = None
        if os.path.lexists(path / DATABASE):
            self._database = self._opened()

    @property
    def exists(self) -> bool:
        """Whether there is a run."""
        return self._database is not None

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()
            self._database = None

    # reading

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, as plain values."""
        return dict(self._fact("settings", dict))

    @property
    def transformer(self) -> str | None:
        """The digest of the transformer of columns, if there is one."""
        transformer: str | None = self._fact("transformer", str | None)
        return transformer

    @property
    def report(self) -> dict[str, Any] | None:
        """The report; None until the run has ended."""
        report: dict[str, Any] | None = self._fact("report", dict | None)
        return report

    @property
    def parts(self) -> Path:
        """The directory of the states of the parts, if the data are cut into several."""
        return self.path / self._name(self._fact("parts", str), "parts")

    @property
    def pending(self) -> bool:
        """Whether a change was committed, and its model is not in its place yet."""
        return self._fact("model", str | None) is not None

    @property
    def stamps(self) -> Stamps:
        """The stamps of the shards that the run was given."""
        rows = self._rows("SELECT stamp FROM shards ORDER BY number")
        return [self._checked(_stamp, stamp) for (stamp,) in rows]

    @property
    def manifest(self) -> Manifest:
        """The shards that the run reads."""
        query = "SELECT record FROM shards WHERE record IS NOT NULL ORDER BY number"
        records = [self._checked(parse_json, record) for (record,) in self._rows(query)]
        return Manifest.from_dict({"shards": records}, self._where, os.fspath(self.path))

    @property
    def forgotten(self) -> list[Deletions]:
        """The rows that were forgotten of the run's shards which still hold them."""
        return [known for known in self._forgotten() if isinstance(known, Deletions)]

    @property
    def absent(self) -> list[Absent]:
        """What was forgotten of shards that the run does not have."""
        return [known for known in self._forgotten() if isinstance(known, Absent)]

    def _forgotten(self) -> list[Deletions | Absent]:
        query = "SELECT shard, rows FROM forgotten ORDER BY number"
        return [self._checked(_read_forgotten, *row) for row in self._rows(query)]

    @property
    def history(self) -> list[tuple[int, float, int, int]]:
        """Of every saved state: the reading, and seconds, nonzeros and bytes read until then."""
        query = "SELECT reading, seconds, nonzeros_read, bytes_read FROM history ORDER BY number"
        history: list[tuple[int, float, int, int]] = self._checked(
            lambda: [(int(a), float(b), int(c), int(d)) for a, b, c, d in self._rows(query)]
        )
        return history

    @property
    def has_state(self) -> bool:
        """Whether there is a state, damaged or not."""
        return self.exists and self._state_file() is not None

    @property
    def state_bytes(self) -> int:
        """The bytes of the last state; 0 if there is none."""
        file = self._state_file() if self.exists else None
        return 0 if file is None else os.path.getsize(self.path / file)

    def state(self) -> SavedState | None:
        """Read the last state, if there is one; FileDamaged if it is not as it was written."""
        file = self._state_file()
        return None if file is None else _read_state(self.path / file)

    @property
    def _where(self) -> str:
        return os.fspath(self.path / DATABASE)

    def _state_file(self) -> str | None:
        rows = self._rows("SELECT file FROM history ORDER BY number DESC LIMIT 1")
        return None if not rows or rows[0][0] is None else self._name(rows[0][0], "state")

    def _name(self, value: Any, kind: str) -> str:
        name = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if not _OURS.fullmatch(name) or not name.startswith(kind):
            raise self._damaged(f"{name!r:.60} is the name of no {kind}")
        return name

    def _fact(self, name: str, kind: Any) -> Any:
        rows = self._rows("SELECT value FROM facts WHERE name = ?", name)
        value = self._checked(parse_json, rows[0][0]) if rows else None
        if not isinstance(value, kind):
            raise self._damaged(f"its {name} is {value!r:.60}")
        return value

    def _rows(self, query: str, *values: Any) -> list[Any]:
        if self._database is None:
            raise no_run(self.path)
        with self._translated():
            return self._database.execute(query, values).fetchall()

    def _checked(self, read: Callable[..., Any], *values: Any) -> Any:
        try:
            return read(*values)
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> FileDamaged:
        return FileDamaged(
            f"{self._where}: not the record of a run ({reason:.200}). Copy it again from where it "
            "was written, or start over with --overwrite."
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate the errors of SQLite: the file is damaged, or the machine fails."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
            if not isinstance(error, sqlite3.OperationalError) or name.startswith(_DAMAGED):
                raise self._damaged(str(error)) from error
            full = name.startswith("SQLITE_FULL")
            remedy = "Make room." if full else "Check the path and its rights."
            raise MachineError(f"{self._where}: cannot be used ({error}). {remedy}") from error

    def _opened(self) -> sqlite3.Connection:
        """Open the database that is there, after its header has been checked."""
        path = self.path / DATABASE
        with reading_from(path), open(path, "rb", opener=regular) as file:
            header, size = file.read(100), os.fstat(file.fileno()).st_size
        self._check_journal()
        application, version = (int.from_bytes(header[k : k + 4], "big") for k in (68, 60))
        if header[:16] != b"SQLite format 3\0" or application != _APPLICATION:
            raise self._damaged("another kind of file")
        if version != _VERSION:
            raise self._damaged(f"version {version}, expected {_VERSION}")
        if header[18:20] != b"\1\1":  # a log that is written ahead would be files of its own
            raise self._damaged("it keeps a log beside it")
        database = self._connected("rw" if self._write else "ro")
        try:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(size, 1 << 20), 10**9))
            with self._translated():
                known = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema")
                if {*known} != _expected_schema():
                    raise self._damaged("other tables than a run has")
        except BaseException:
            database.close()
            raise
        if self._write:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10**9)
        return database

    def _check_journal(self) -> None:
        """Refuse a journal that is none, or that names another file."""
        with suppress(FileNotFoundError):
            journal = self.path / f"{DATABASE}-journal"
            if not stat.S_ISREG(os.lstat(journal).st_mode):
                raise self._damaged("its journal is no file")
            with reading_from(journal), open(journal, "rb", opener=regular) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 8))
                if file.read(8) == _FROM_SECOND_JOURNAL:
                    raise self._damaged("its journal names another file")

    def _connected(self, mode: str, name: str = DATABASE) -> sqlite3.Connection:
        where = f"file:{quote(os.fsencode(os.path.abspath(self.path / name)))}?mode={mode}"
        with self._translated():
            database = sqlite3.connect(
                where, uri=True, isolation_level=None, check_same_thread=False
            )
            database.text_factory = bytes
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "synchronous=FULL"):
                database.execute(f"PRAGMA {pragma}")
            database.execute("PRAGMA secure_delete=ON")  # of forgotten rows nothing stays
        return database

    # writing

    def begin(
        self, settings: Settings, transformer: str | None, shards: Sequence[ShardFile]
    ) -> None:
        """Begin a run, in a database that gets its name once it is whole; what was there of another
        one is removed."""
        new = self.path / ".streamtron-new"
        self.close()
        try:
            self._database = self._connected("rwc", new.name)
            facts = f"PRAGMA application_id={_APPLICATION}; PRAGMA user_version={_VERSION};"
            with self._translated():
                self._database.executescript(f"BEGIN; {facts} {_SCHEMA} COMMIT;")
            with self._transaction() as write:
                self._write_facts(
                    settings=settings.to_dict(), transformer=transformer, parts=PARTS.format(0)
                )
                for stamp in stamps_of(shards):
                    write("INSERT INTO shards (stamp) VALUES (?)", json.dumps(stamp))
            self.close()
            with writing_to(os.fspath(self.path), "Check its rights."):
                os.replace(new, self.path / DATABASE)
                sync_directory(self.path)
        finally:
            self.close()
            for left in self.path.glob(f"{new.name}*"):
                left.unlink()
        self._database = self._opened()
        self.clean()

    def go_on(self, settings: Settings) -> None:
        """Go on with the run, with settings that may differ; see ``fit``."""
        with self._transaction():
            self._write_facts(settings=settings.to_dict())

    def save(self, saved: SavedState) -> None:
        """Save a state in place of the one before, which also stays if a MachineError comes."""
        replaced = self._state_file()
        try:
            number = self._next()
            _write_state(self.path / _STATE.format(number), saved)
            with self._transaction():
                self._name_state(number, saved)
        except (MachineError, OSError) as error:
            raise MachineError(
                f"{error} Put that right; --resume continues from the state before, if there is "
                "one."
            ) from error
        if replaced is not None:
            (self.path / replaced).unlink(missing_ok=True)

    def end(
        self,
        ended: Ended,
        model: str | os.PathLike[str],
        content: bytes,
        state: SavedState | None = None,
        parts: Path | None = None,
    ) -> None:
        """End the run, or change it: commit what it is from now on, with the content of its model,
        which is then put in its place.

        ``state`` : None = the last one that was saved. ``parts`` : directory of the parts' states,
        None = as it is.
        """
        number = self._next()
        write_atomically(self.path / _MODEL.format(number), [content])
        if state is not None:
            _write_state(self.path / _STATE.format(number), state)
        shards = ended.manifest.to_dict(os.fspath(self.path))["shards"]
        records = {record["path"]: record for record in shards}
        with self._transaction() as write:
            write("DELETE FROM shards")
            for shard, stamp in zip(ended.shards, stamps_of(ended.shards), strict=True):
                record = json.dumps(records[shard.path]) if shard.path in records else None
                values = json.dumps(stamp), record
                write("INSERT INTO shards (stamp, record) VALUES (?, ?)", *values)
            write("DELETE FROM forgotten")
            for shard_and_rows in _written_forgotten(ended):
                write("INSERT INTO forgotten (shard, rows) VALUES (?, ?)", *shard_and_rows)
            self._write_facts(
                settings=ended.settings.to_dict(),
                transformer=ended.transformer,
                report=ended.report,
                model=_MODEL.format(number),
            )
            if parts is not None:
                self._write_facts(parts=parts.name)
            if state is not None:
                write("DELETE FROM history")
                self._name_state(number, state)
        self.complete(model)

    def complete(self, model: str | os.PathLike[str]) -> None:
        """Put the model of a committed change in its place. May be interrupted and repeated."""
        name = self._fact("model", str | None)
        if name is not None:
            with reading_from(path := self.path / self._name(name, "model")):
                content = path.read_bytes()
            remove_half_written(model)  # by a process that has died
            write_atomically(model, [content])
            with self._transaction() as write:
                write("DELETE FROM facts WHERE name = 'model'")
        self.clean()

    def new_parts(self) -> Path:
        """Return a new directory for the states of parts; it counts once ``end`` names it."""
        path = self.path / PARTS.format(self._next())
        path.mkdir()
        return path

    def remove(self) -> None:
        """Remove the run, except its prepared data."""
        self.close()
        _remove_database(self.path)
        self.clean()

    def clean(self) -> None:
        """Remove what killed processes left half-written, and states that no longer count."""
        named = set[str | None]()
        if self.exists:
            named = {self._state_file(), self.parts.name, self._fact("model", str | None)}
        for path in self.path.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in named:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for directory in (self.path, self.path / CACHE, *self.path.glob("parts-*")):
            for file in directory.glob(".streamtron-*"):
                file.unlink(missing_ok=True)
        if (self.path / CACHE).is_dir():
            remove_abandoned(os.fspath(self.path / CACHE))

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., object]]:
        database = self._database
        assert database is not None
        with self._translated():
            database.execute("BEGIN IMMEDIATE")
            try:
                yield lambda query, *values: database.execute(query, values)
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def _write_facts(self, **facts: Any) -> None:
        assert self._database is not None
        for name, value in facts.items():
            row = name, json.dumps(value, allow_nan=False)
            self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", row)

    def _next(self) -> int:
        [(number,)] = self._rows("SELECT coalesce(max(number), 0) + 1 FROM history")
        return int(number)

    def _name_state(self, number: int, saved: SavedState) -> None:
        assert self._database is not None
        self._database.execute("UPDATE history SET file = NULL")
        read = saved.seconds, saved.nonzeros_read, saved.bytes_read
        row = number, saved.state.reading, *read, _STATE.format(number)
        self._database.execute("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?)", row)


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
            store = _completed(directory, None if anew else model)
        except FileDamaged:
            if not anew:
                raise
            _remove_database(directory)
            store = _completed(directory, None)
        with closing(store):
            yield store


def _completed(directory: Path, model: str | os.PathLike[str] | None) -> Store:
    store = Store(directory, write=True)
    try:
        if store.exists and model is not None:
            store.complete(model)
        else:
            store.clean()
    except BaseException:
        store.close()
        raise
    return store


def _remove_database(directory: Path) -> None:
    for name in (DATABASE, f"{DATABASE}-journal"):
        (directory / name).unlink(missing_ok=True)


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[Store]:
    """Open a run directory to read it; nothing is written. A DataError if there is no run."""
    with closing(Store(Path(path), write=False)) as store:
        if not store.exists:
            raise no_run(path)
        yield store


def manifest_of(run: str | os.PathLike[str]) -> Manifest | None:
    """Return the manifest in a run directory; None until the run has ended."""
    if not is_run(run):
        return None
    with reading(run) as store:
        return None if store.report is None else store.manifest


def _expected_schema() -> set[Any]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.text_factory = bytes
        database.executescript(_SCHEMA)
        return {*database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema")}


def _stamp(text: bytes) -> tuple[str, int, int]:
    name, size, time = parse_json(text)
    return str(name), int(size), int(time)


def _written_forgotten(ended: Ended) -> Iterator[tuple[str, bytes | None]]:
    for rows in ended.forgotten:
        named = {"path": rows.path, "fingerprint": rows.fingerprint}
        yield json.dumps(named), _row_numbers(rows.rows)
    for shard in ended.absent:
        known = {"fingerprint": shard.fingerprint, "bytes": shard.bytes}
        yield json.dumps(known), None if shard.rows is None else _row_numbers(shard.rows)


def _row_numbers(rows: NDArray[np.int64]) -> bytes:
    return rows.astype("<i8").tobytes()


def _read_forgotten(text: bytes, rows: bytes | None) -> Deletions | Absent:
    shard, numbers = parse_json(text), None
    fingerprint = shard["fingerprint"]
    if rows is not None:
        numbers = np.frombuffer(rows, "<i8").astype(np.int64)
        if (np.diff(numbers, prepend=-1) <= 0).any():
            raise ValueError("forgotten rows that do not rise")
    match shard, fingerprint, numbers:
        case {"path": str(path)}, str(), np.ndarray():
            return Deletions(path, fingerprint, numbers)
        case {"bytes": int(size)}, str(), _:
            return Absent(fingerprint, size, numbers)
    raise ValueError("a shard without a path and a fingerprint")


_NUMBERS, _COLUMNS, _VALUES = "numbers", "{}.columns", "{}.values"
"""Arrays of a state: the columns' numbers, and those to which ``take_apart`` takes a vector."""


def _write_state(path: Path, saved: SavedState) -> None:
    state = saved.state
    arrays, sparse = take_apart(state.arrays)
    content = saved._asdict() | {
        "state_version": _STATE_VERSION,
        "reading": state.reading,
        "state": state.content,
        "sparse": sparse,
    }
    del content["numbers"]
    write_sealed(path, content, {**arrays, _NUMBERS: saved.numbers})


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
        state = State(
            int(content["reading"]), content["state"], put_together(arrays, content["sparse"])
        )
        parts, labels = state.content["learners"], content["labels"]
        named = [*labels, *(part["positive"] for part in parts if part["positive"] is not None)]
        if not all(isinstance(x, str) or math.isfinite(x) for x in named):
            raise ValueError("labels of another kind")
        if labels and not parts:
            raise ValueError("no learners")
        _ = state.group  # raises, if it is none
        read = int(content["nonzeros_read"]), int(content["bytes_read"])
        seen, seconds = dict(content["seen"]), float(content["seconds"])
        return SavedState(state, list(labels), numbers, *read, seconds, seen)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise FileDamaged(
            f"{path}: intact, but not a state ({error}). Start over with --overwrite."
        ) from error


def take_apart(
    arrays: Mapping[str, NDArray[Any] | SparseVector],
) -> tuple[dict[str, NDArray[Any]], dict[str, tuple[str, int]]]:
    """Take float64 vectors apart where that takes fewer bytes: into the columns that are not 0, as
    uint32, and their values. Vectors of the same columns share these. Returns the arrays, and of
    each vector taken apart the name of its columns and its length.
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
        parts[_VALUES.format(name)] = array.values
        if not (name_of_columns and np.array_equal(array.columns, columns)):
            columns, name_of_columns = array.columns, _COLUMNS.format(name)
            parts[name_of_columns] = columns
        sparse[name] = name_of_columns, len(array)
    return parts, sparse


def put_together(
    arrays: dict[str, NDArray[Any]], sparse: Mapping[str, Sequence[Any]]
) -> dict[str, NDArray[Any] | SparseVector]:
    """Put vectors together again, see ``take_apart``; LookupError or ValueError: they are none."""
    parts = {columns for columns, _ in sparse.values()} | {_VALUES.format(n) for n in sparse}
    vectors: dict[str, NDArray[Any] | SparseVector]
    vectors = {name: array for name, array in arrays.items() if name not in parts}
    for name, (columns, length) in sparse.items():
        vectors[name] = SparseVector(arrays[columns], arrays[_VALUES.format(name)], int(length))
    return vectors
