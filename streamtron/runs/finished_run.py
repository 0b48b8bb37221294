"""Finished runs: find one by its model or its directory, its shards, and its model to edit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.files import absolute, as_path, locked
from streamtron.data import Manifest, ShardFile, ShardRecord
from streamtron.data.storage import fingerprint
from streamtron.model.linear_model import LinearModel
from streamtron.runs.store import Store, is_run, reading

RUN_SUFFIX = ".run"


def run_directory(model: str | os.PathLike[str]) -> str:
    """Return where a run keeps its store and its prepared data: ``MODEL.run``."""
    return as_path(model) + RUN_SUFFIX


class RunLocation(NamedTuple):
    """The directory of a run, and the path of its model."""

    directory: Path
    model: str


def locate(
    run: str | os.PathLike[str], run_dir: str | os.PathLike[str] | None = None
) -> RunLocation:
    """Find a run by its model, ``MODEL``, or by its directory, ``MODEL.run`` or ``run_dir``.

    The model's path is not read from the run directory, which may be a copy of another one; a model
    that is a link into another directory is refused.
    """
    path = absolute(run, "models").rstrip("/")
    if run_dir is not None:
        return RunLocation(Path(absolute(run_dir)), path)
    model = model_of(path)
    target = os.path.realpath(model)
    home = os.path.realpath(os.path.dirname(model) or ".")
    if os.path.islink(model) and os.path.dirname(target) != home:
        raise DataError(
            f"{model}: a symbolic link to {target}, and the run would change the file there. Name "
            "the model itself, and its run directory by --run-dir."
        )
    return RunLocation(Path(run_directory(model)), model)


def model_of(path: str) -> str:
    """Return the path of a run's model, given that or the run's directory."""
    path = path.rstrip("/")
    model = path.removesuffix(RUN_SUFFIX) if os.path.isdir(path) else path
    if os.path.isdir(model):
        raise DataError(
            f"{path}: neither MODEL nor MODEL{RUN_SUFFIX}. Name the model; give a run directory of "
            "another name by --run-dir."
        )
    return model


@contextmanager
def editing_model(path: str) -> Iterator[LinearModel]:
    """Read a model to write another in its place; its run, if it has one beside it, is locked until
    the context ends. DataError: a change of the run is not complete; MachineError: another process
    changes it."""
    directory = Path(run_directory(path))
    with locked(directory) if directory.is_dir() else nullcontext():
        if is_run(directory):
            check_complete(Store(directory))
        yield LinearModel.load(path)


def check_complete(store: Store) -> None:
    """Raise a DataError if the model of a committed change is not in its place yet."""
    if store.pending:
        raise DataError(
            f"{store.path}: a change of the run was interrupted after it was committed. Call the "
            "same streamtron update or forget again to complete it."
        )


def ended(directory: str | os.PathLike[str]) -> Store:
    """Open a run that has ended, to read it; a DataError if there is none, or if a change of it was
    interrupted."""
    store = reading(directory)
    check_complete(store)
    if store.report is None:
        raise DataError(f"{directory}: the run has not ended. End it with fit --resume.")
    return store


def run_of(
    model: str | os.PathLike[str] | LinearModel, run: str | os.PathLike[str] | None = None
) -> tuple[str | LinearModel, Store]:
    """Return the model of a run and its store, given its model, or its directory if that is
    ``MODEL.run``; ``run`` : its directory. A DataError if there is no such run."""
    if not isinstance(model, LinearModel):
        model = model_of(absolute(model, "models"))
        run = run or run_directory(model)
    if run is None:
        raise SettingsError(
            "a model in memory does not say its shards. Give them, its run, or the path of a model "
            "with its run beside it."
        )
    if not is_run(directory := absolute(run)):
        raise DataError(
            f"no shards are given, and there is no run in {directory}. Name the shards, as in "
            "MODEL SHARDS, or the run directory, --run-dir."
        )
    return model, ended(directory)


def recorded_shards(directory: str | os.PathLike[str]) -> Sequence[ShardRecord]:
    """Return the shards of a run; none where there is no run that can be read."""
    with suppress(StreamtronError):
        return reading(directory).manifest.shards
    return ()


def read_shards(store: Store) -> tuple[Manifest, list[ShardFile]]:
    """Return the manifest of a run, with the current times of shards that were copied or touched,
    and its shards, without the rows that were forgotten."""
    forgotten = {rows.fingerprint: rows for rows in store.forgotten}
    records, files = list[ShardRecord](), list[ShardFile]()
    for shard in store.manifest.shards:
        if "://" not in shard.path and os.path.isfile(shard.path):
            stat = os.stat(shard.path)
            touched = stat.st_size == shard.bytes and stat.st_mtime_ns != shard.mtime_ns
            if touched and fingerprint(shard.path, shard.name) == shard.fingerprint:
                shard = replace(shard, mtime_ns=stat.st_mtime_ns)
        rows = forgotten.get(shard.fingerprint)
        rows = rows and replace(rows, path=shard.path)
        place = shard.path, shard.name, shard.format, shard.bytes, shard.mtime_ns
        records.append(shard)
        files.append(ShardFile(*place, rows))  # type: ignore[arg-type]
    return Manifest(tuple(records)), files


def check_shards_exist(shards: Iterable[ShardFile | ShardRecord]) -> None:
    """Raise a DataError if a local file is missing; object stores are not asked."""
    for shard in shards:
        if "://" not in shard.path and not os.path.exists(shard.path):
            raise DataError(
                f"{shard.name}: gone from {shard.path}. Put it back as it was, or take its rows "
                "out of the run with streamtron forget."
            )


def check_as_read(shards: Iterable[ShardFile], run: str) -> None:
    """Raise a DataError if a local file is missing, or has another size or time than when the run
    read it."""
    shards = list(shards)
    check_shards_exist(shards)
    for shard in shards:
        stat = None if "://" in shard.path else os.stat(shard.path)
        if stat and (stat.st_size, stat.st_mtime_ns) != (shard.size, shard.mtime_ns):
            raise DataError(
                f"{shard.name}: changed since {run} was made of it ({shard.size} bytes then, "
                f"{stat.st_size} now, or touched). Put it back as it was; or take it out with "
                f"streamtron forget {run} {shard.name}, and add it as it is now with streamtron "
                "update."
            )
