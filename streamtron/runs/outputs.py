"""Check, before anything is read, that outputs replace neither an input nor each other."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from streamtron.core.errors import MachineError, SettingsError, StreamtronError
from streamtron.core.files import absolute, as_path, is_stream
from streamtron.data import Manifest, find_shards
from streamtron.data.discover import NAMES
from streamtron.data.storage import is_uri, local_path
from streamtron.runs.directory import PARTS, RUN_SUFFIX, is_run, run_directory
from streamtron.runs.transaction import CACHE, COMMITTED, STAGED

StrPath = str | os.PathLike[str]
_Identity = tuple[int, int] | str


def check_outputs(
    files: Mapping[str, StrPath | None],
    inputs: Iterable[StrPath | None],
    *,
    runs: Iterable[StrPath] = (),
    directories: Mapping[str, StrPath | None] | None = None,
    cache: StrPath | None = None,
) -> dict[str, str | None]:
    """Raise a SettingsError if outputs would replace an input or each other, or lie in a run
    directory; return them as absolute paths, for a listener may change the working directory.

    Files are compared by device and inode, which resolves links. Pipes and devices may be given
    twice, but not for the model. ``inputs`` : all that is read; beside shards also the names of
    their columns. ``runs`` : models or run directories that are read, with the shards of the run.
    ``directories`` are those where files of fixed names are written, such as the run directory; no
    input and no other output may be there.

    Examples
    --------
    >>> check_outputs({"model": "m", "report": "./m"}, [])
    Traceback (most recent call last):
    ...
    streamtron.core.errors.SettingsError: report ./m: the model is written there \
too. Name another file.
    """
    given = {name: as_path(path) for name, path in files.items() if path is not None}
    places = {name: path for name, path in (directories or {}).items() if path is not None}
    whole = {name: None if path is None else absolute(path) for name, path in files.items()}
    for name, path in places.items():
        if os.path.exists(absolute(path)) and not os.path.isdir(path):
            raise MachineError(
                f"{path}: a file, where the {name} would be. Move it away, or name another place."
            )
    if "model" in given and is_stream(given["model"]):
        raise SettingsError(
            f"model {given['model']}: a pipe or a device, and a model is a file with its run "
            "beside it. Name a file."
        )
    given = {name: path for name, path in given.items() if not is_stream(path)}
    owned = {_identity(path): name for name, path in places.items()}
    _refuse_shared(given, owned, cache)
    there = {_identity(path): name for name, path in given.items() if os.path.exists(path)}
    if there or any(map(os.path.isdir, places.values())):  # otherwise all outputs are new
        read = [os.fspath(path) for path in inputs if path is not None]
        for path in _local_files([*read, *(path for run in runs for path in _inputs_of(run))]):
            _refuse_input(path, given, there, owned)
    return whole


def _refuse_shared(
    files: Mapping[str, str], directories: Mapping[_Identity, str], cache: StrPath | None
) -> None:
    writers = dict(directories)
    if cache is not None:
        writers[_identity(cache)] = "cache"
    for name, path in files.items():
        if (other := writers.setdefault(_identity(path), name)) != name:
            raise SettingsError(
                f"{name} {path}: the {other} is written there too. Name another file."
            )
        inside = [os.path.dirname(os.path.realpath(path))]
        if os.path.basename(inside[0]) in (CACHE, PARTS, STAGED, COMMITTED):
            inside.append(os.path.dirname(inside[0]))
        for directory in inside:
            run = "run directory" if is_run(directory) else None
            if owner := directories.get(_identity(directory), run):
                raise SettingsError(
                    f"{name} {path}: lies in the {owner}, which has files of its own. Name another "
                    "place."
                )


def _refuse_input(
    path: str,
    files: Mapping[str, str],
    there: Mapping[_Identity, str],
    directories: Mapping[_Identity, str],
) -> None:
    if (name := there.get(_identity(path))) is not None:
        raise SettingsError(
            f"{name} {files[name]}: this is the input {path}, which would be replaced. Name "
            "another file."
        )
    directory = os.path.dirname(os.path.realpath(path))
    if (name := directories.get(_identity(directory))) is not None:
        raise SettingsError(
            f"{name} {directory}: holds the input {path}, which could be replaced. Name another "
            "directory."
        )


def _identity(path: StrPath) -> _Identity:
    """Return device and inode of a file, or the real path of a missing one."""
    try:
        found = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _inputs_of(run: StrPath) -> Iterator[str]:
    """Yield the model and the shards of a run, named by its model or its directory."""
    named = os.fspath(run).rstrip("/")
    directory = named if os.path.isdir(named) else run_directory(named)
    yield directory.removesuffix(RUN_SUFFIX)
    with suppress(StreamtronError):  # what reads the run says what is wrong with it
        manifest = Manifest.load(os.path.join(directory, "manifest.json"))
        yield from (shard.path for shard in manifest.shards)


def _local_files(paths: Iterable[str]) -> Iterator[str]:
    """Yield the local files of paths, and the names of columns beside them; those that are missing
    or unreadable are left to the reader."""
    places = set[str]()
    for path in [local_path(path) for path in paths if not is_uri(path)]:
        files = [path] if os.path.isfile(path) else []
        if os.path.isdir(path) or glob.has_magic(path):
            places.add(path)
            with suppress(StreamtronError):
                files = [shard.path for shard in find_shards([path])]
        places |= {os.path.dirname(file) for file in files}
        yield from files
    yield from filter(os.path.isfile, (os.path.join(place, NAMES) for place in places))
