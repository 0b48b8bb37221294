"""Outputs must replace no input and not each other: the check before anything is read."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping

from streamtron.core.errors import SettingsError
from streamtron.core.sealed import is_stream
from streamtron.data import find_shards

StrPath = str | os.PathLike[str]


def check_outputs(
    files: Mapping[str, StrPath | None],
    inputs: Iterable[StrPath],
    *,
    directories: Mapping[str, StrPath | None] | None = None,
    cache: StrPath | None = None,
) -> None:
    """Refuse outputs that would replace an input, or each other.

    Files are compared by device and inode, so symbolic and hard links are seen through. Inputs in
    an object store are never written to, and not looked at.

    Parameters
    ----------
    files : what is written to which path, as in ``{"report": "r.json"}``; None = it is not. Pipes
        and devices may be given twice, but not for the model, which has its run beside it.
    inputs : files, directories and globs that are read.
    directories : those in which files of fixed names are written, such as the run directory: no
        input may lie there and no other output.
    cache : the cache directory, which may hold anything, but must not be one of the files.

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
    """Raise the SettingsError that two outputs are at one place, if they are."""
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
    """Raise the SettingsError that an input would be replaced, if one would be."""
    there = {_identity(path): name for name, path in files.items() if os.path.exists(path)}
    if not there and not any(map(os.path.isdir, directories)):
        return  # nothing is replaced by what is new
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
    """What two paths have in common if they are one file; of what is not there, its real path."""
    try:
        found = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _local_files(paths: Iterable[StrPath]) -> Iterator[str]:
    """The files that paths stand for; what is not there is for its reader to refuse."""
    for path in [os.fspath(path) for path in paths]:
        if "://" in path:
            continue
        if os.path.isfile(path):
            yield path
        elif os.path.isdir(path) or glob.has_magic(path):
            yield from (shard.path for shard in find_shards([path]))
