"""Check, before anything is read, that outputs replace neither an input nor each other."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping

from streamtron.core.errors import SettingsError
from streamtron.core.files import is_stream
from streamtron.data import find_shards

StrPath = str | os.PathLike[str]
_Identity = tuple[int, int] | str


def check_outputs(
    files: Mapping[str, StrPath | None],
    inputs: Iterable[StrPath],
    *,
    directories: Mapping[str, StrPath | None] | None = None,
    cache: StrPath | None = None,
) -> None:
    """Raise a SettingsError if outputs would replace an input or each other.

    Files are compared by device and inode, which resolves links. Pipes and devices may be given
    twice, but not for the model. ``directories`` are those where files of fixed names are written,
    such as the run directory; no input and no other output may be there.

    Examples
    --------
    >>> check_outputs({"model": "m", "report": "./m"}, [])
    Traceback (most recent call last):
    ...
    streamtron.core.errors.SettingsError: report ./m: the model is written there \
too. Name another file.
    """
    given = {name: os.fspath(path) for name, path in files.items() if path is not None}
    if "model" in given and is_stream(given["model"]):
        raise SettingsError(
            f"model {given['model']}: a pipe or a device, and a model is a file with its run "
            "beside it. Name a file."
        )
    given = {name: path for name, path in given.items() if not is_stream(path)}
    own = (directories or {}).items()
    owned = {os.path.realpath(path): name for name, path in own if path is not None}
    _refuse_shared(given, owned, cache)
    there = {_identity(path): name for name, path in given.items() if os.path.exists(path)}
    if there or any(map(os.path.isdir, owned)):  # otherwise all outputs are new
        for path in _local_files(inputs):
            _refuse_input(path, given, there, owned)


def _refuse_shared(
    files: Mapping[str, str], directories: Mapping[str, str], cache: StrPath | None
) -> None:
    writers = {_identity(directory): name for directory, name in directories.items()}
    if cache is not None:
        writers[_identity(cache)] = "cache"
    for name, path in files.items():
        if (other := writers.setdefault(_identity(path), name)) != name:
            raise SettingsError(
                f"{name} {path}: the {other} is written there too. Name another file."
            )
        if inside := directories.get(os.path.dirname(os.path.realpath(path))):
            raise SettingsError(
                f"{name} {path}: lies in the {inside}, which has files of its own. Name another "
                "place."
            )


def _refuse_input(
    path: str,
    files: Mapping[str, str],
    there: Mapping[_Identity, str],
    directories: Mapping[str, str],
) -> None:
    if (name := there.get(_identity(path))) is not None:
        raise SettingsError(
            f"{name} {files[name]}: this is the input {path}, which would be replaced. Name "
            "another file."
        )
    directory = os.path.dirname(os.path.realpath(path))
    if (name := directories.get(directory)) is not None:
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


def _local_files(paths: Iterable[StrPath]) -> Iterator[str]:
    """Yield the local files of paths; missing ones are left to the reader."""
    for path in [os.fspath(path) for path in paths]:
        if "://" in path:
            continue
        if os.path.isfile(path):
            yield path
        elif os.path.isdir(path) or glob.has_magic(path):
            yield from (shard.path for shard in find_shards([path]))
