"""From paths to shards in their order."""

from __future__ import annotations

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, NoReturn

from streamtron.errors import DataError, MachineError

Format = Literal["libsvm", "parquet"]

PARQUET_ENDINGS = (".parquet", ".pq")


class ShardFile(NamedTuple):
    """One file of the data, as it was when it was found.

    ``path`` is absolute; ``name`` is what messages call it: the path relative to the root it was
    found under, or the whole path where two roots give the same.
    """

    path: str
    name: str
    format: Format
    size: int
    """bytes"""
    mtime_ns: int


def find_shards(paths: Sequence[str]) -> list[ShardFile]:
    """The shards that files, directories (recursively) and glob patterns stand for.

    Roots come in the order given; under each, shards are ordered by the bytes of their path
    relative to it. Below a directory or a pattern, names that begin with ``_`` or ``.`` are
    ignored.

    Raises
    ------
    DataError : nothing is there, a file of another format, mixed formats, a file given twice.
    MachineError : a directory cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("b.svm", "a.svm", "_SUCCESS"):
    ...         _ = pathlib.Path(root, name).write_text("1 1:1\\n")
    ...     [shard.name for shard in find_shards([root])]
    ['a.svm', 'b.svm']
    """
    found = [pair for path in paths for pair in _under(os.path.expanduser(os.fspath(path)))]
    if not found:
        raise DataError("No shards: no path was given. Name files, directories or patterns.")
    times = Counter(name for _, name in found)
    shards = [_shard(path, name if times[name] == 1 else path) for path, name in found]
    _refuse_twice(shards)
    _refuse_mixed(shards)
    return shards


def _under(root: str) -> list[tuple[str, str]]:
    """(path, relative name) of every file that a root stands for, in order."""
    if os.path.isdir(root):
        return _sorted(root, set(_walk(root)))
    if os.path.lexists(root):
        return [(root, os.path.basename(root))]
    if not glob.has_magic(root):
        raise DataError(f"{root}: no such file or directory. Check the path.")
    base = _before_magic(root)
    files = {file for match in glob.glob(root, recursive=True) for file in _files(match)}
    return _sorted(base, {file for file in files if not _hidden(os.path.relpath(file, base))})


def _before_magic(pattern: str) -> str:
    """The directories of a pattern that are named outright."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern or "."


def _files(path: str) -> Iterator[str]:
    if os.path.isdir(path):
        yield from _walk(path)
    else:
        yield path


def _walk(directory: str) -> Iterator[str]:
    """Files below a directory, links followed, each real directory once."""
    met = set()
    for here, directories, names in os.walk(directory, onerror=_unreadable, followlinks=True):
        if os.path.realpath(here) in met:
            directories.clear()  # a link that leads in a circle
            continue
        met.add(os.path.realpath(here))
        directories[:] = [name for name in directories if not _hidden(name)]
        yield from (os.path.join(here, name) for name in names if not _hidden(name))


def _unreadable(error: OSError) -> NoReturn:
    raise MachineError(f"{error.filename}: cannot be read ({error.strerror}).") from error


def _hidden(name: str) -> bool:
    parts = name.split(os.sep)
    return any(part.startswith(("_", ".")) and part not in (".", "..") for part in parts)


def _sorted(base: str, files: set[str]) -> list[tuple[str, str]]:
    if not files:
        raise DataError(
            f"{base}: no shards there. Looked for files whose names do not begin with _ or . "
            "(libsvm text or Parquet)."
        )
    named = [(file, os.path.relpath(file, base)) for file in files]
    return sorted(named, key=lambda pair: os.fsencode(pair[1]))


def _shard(path: str, name: str) -> ShardFile:
    try:
        status = os.stat(path)
    except OSError as error:
        raise MachineError(f"{path}: cannot be read ({error.strerror}).") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a file. Shards are read several times; copy it to a file.")
    return ShardFile(os.path.abspath(path), name, _format(path), status.st_size, status.st_mtime_ns)


def _format(path: str) -> Format:
    from streamtron.shards.libsvm import is_libsvm_name  # brings numba and its second of loading

    name = os.path.basename(path)
    if name.lower().endswith(PARQUET_ENDINGS):
        return "parquet"
    if is_libsvm_name(name):
        return "libsvm"
    raise DataError(
        f"{path}: neither Parquet ({', '.join(PARQUET_ENDINGS)}) nor a name for libsvm text. "
        "Rename it, move it away, or have it ignored by a name that begins with _."
    )


def _refuse_twice(shards: Sequence[ShardFile]) -> None:
    met: dict[str, str] = {}
    for shard in shards:
        real = os.path.realpath(shard.path)
        if real in met:
            raise DataError(
                f"{shard.path}: the same file as {met[real]}, given twice. Name it once."
            )
        met[real] = shard.path


def _refuse_mixed(shards: Sequence[ShardFile]) -> None:
    first = shards[0]
    other = next((shard for shard in shards if shard.format != first.format), None)
    if other is not None:
        raise DataError(
            f"{first.name} is {_WORDS[first.format]} and {other.name} is {_WORDS[other.format]}. "
            "One format for all: use streamtron convert for one of them."
        )


_WORDS = {"libsvm": "libsvm text", "parquet": "Parquet"}
