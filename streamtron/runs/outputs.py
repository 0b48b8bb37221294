"""Check, before anything is read, that outputs replace neither an input nor each other."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping

from streamtron.core.errors import SettingsError
from streamtron.core.files import is_stream
from streamtron.data import find_shards

StrPath = str | os.PathLike[str]


def check_outputs(
    files: Mapping[str, StrPath | None],
    inputs: Iterable[StrPath],
    *,
    directories: Mapping[str, StrPath | None] | None = None,
    cache: StrPath | None = None,
) -> None:
    """Raise a SettingsError if outputs would replace an input or each other.

    Files are compared by device and inode, which resolves links. Inputs in an object store are
    never written to, and are not checked.

    Parameters
    ----------
    files : name → path, as in ``{"report": "r.json"}``; None = not written. Pipes and devices may
        be given twice, but not for the model.
    inputs : files, directories and globs that are read.
    directories : where files of fixed names are written, such as the run directory; no input and
        no other output may be there.
    cache : the cache directory, which must not be one of the files.

    Raises
    ------
    SettingsError : an output would replace an input or another output.
    DataError, MachineError : what ``find_shards`` refuses.

    Examples
    --------
    >>> check_outputs({"model": "m", "report": "./m"}, [])
    Traceback (most recent call last):
    ...
    streamtron.core.errors.SettingsError: report ./m: the model is written there \
too. Name another file.
    """
    given = {name: os.fspath(path) for name, path in files.items() if path is not None}
    owned = {
        os.path.realpath(path): name
        for name, path in (directories or {}).items()
        if path is not None
    }
    if "model" in given and is_stream(given["model"]):
        raise SettingsError(
            f"model {given['model']}: a pipe or a device, and a model is a file with its run "
            "beside it. Name a file."
        )
    given = {name: path for name, path in given.items() if not is_stream(path)}
    _refuse_shared(given, owned, cache)
    _refuse_inputs(given, owned, inputs)


def _refuse_shared(
    files: Mapping[str, str], directories: Mapping[str, str], cache: StrPath | None
) -> None:
    """Raise a SettingsError if two outputs are the same file."""
    writers = {_identity(directory): name for directory, name in directories.items()}
    if cache is not None:
        writers[_identity(cache)] = "cache"
    for name, path in files.items():
        if (other := writers.setdefault(_identity(path), name)) != name:
            raise SettingsError(
                f"{name} {path}: the {other} is written there too. Name another file."
            )
        inside = directories.get(os.path.dirname(os.path.realpath(path)))
        if inside is not None:
            raise SettingsError(
                f"{name} {path}: lies in the {inside}, which has files of its own. Name another "
                "place."
            )


def _refuse_inputs(
    files: Mapping[str, str], directories: Mapping[str, str], inputs: Iterable[StrPath]
) -> None:
    """Raise a SettingsError if an output would replace an input."""
    there = {_identity(path): name for name, path in files.items() if os.path.exists(path)}
    if not there and not any(map(os.path.isdir, directories)):
        return  # all outputs are new
    for read in _local_files(inputs):
        if (name := there.get(_identity(read))) is not None:
            raise SettingsError(
                f"{name} {files[name]}: this is the input {read}, which would be replaced. Name "
                "another file."
            )
        real = os.path.dirname(os.path.realpath(read))
        if (name := directories.get(real)) is not None:
            raise SettingsError(
                f"{name} {real}: holds the input {read}, which could be replaced. Name another "
                "directory."
            )


def _identity(path: StrPath) -> tuple[int, int] | str:
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
