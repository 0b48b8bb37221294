"""Find shards by paths, directories and patterns, in their order."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from streamtron.core.errors import DataError
from streamtron.core.files import reading_from
from streamtron.data import storage
from streamtron.data.deletions import Deletions
from streamtron.data.prefetch import in_order, run_in_thread
from streamtron.data.storage import Stamp
from streamtron.data.table_logs import (
    LOG_DIRECTORIES,
    above,
    refuse_logged,
    refuse_unfinished,
    sign_on_disk,
    signs_among,
)

Format = Literal["libsvm", "parquet", "arrow"]

PARQUET_ENDINGS = (".parquet", ".pq")
ARROW_ENDINGS = (".arrow", ".arrows", ".feather", ".ipc")


class ShardFile(NamedTuple):
    """One file of the data, as it was when it was found.

    ``path`` is absolute, or a URI; ``name`` is what messages call it: the path relative to the
    root it was found under, or the whole path where two roots give the same.
    """

    path: str
    name: str
    format: Format
    size: int
    """bytes"""
    mtime_ns: int
    without: Deletions | None = None
    """rows that are left out of it"""
    tag: str = ""
    """see ``Stamp``"""

    @property
    def stamp(self) -> Stamp:
        """What it was when it was found."""
        return Stamp(self.size, self.mtime_ns, self.tag)


class _Found(NamedTuple):
    path: str
    name: str
    """relative to the root it was found under"""
    stamp: Stamp


def find_shards(paths: Sequence[str]) -> list[ShardFile]:
    """Return the shards that files, directories (recursively) and glob patterns stand for.

    Each may be a local path or a URI of an object store (see ``storage``), where a directory is a
    prefix that ends at a slash, and in patterns ``?`` is not a wildcard but begins the options.
    Roots come in the order given; under each, shards are ordered by the bytes of their path
    relative to it. Below a directory or a pattern, names that begin with ``_`` or ``.`` are
    ignored, but a directory that they make something else than a set of shards is refused.

    Raises
    ------
    DataError : nothing is there, a file of another format, mixed formats, a file given twice, a
        directory of a table that has a log (see ``logged``) or of shards not all in place.
    MachineError : a directory cannot be read, or a store not asked.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("b.svm", "a.svm", "_SUCCESS"):
    ...         _ = pathlib.Path(root, name).write_text("1 1:1\\n")
    ...     [shard.name for shard in find_shards([root])]
    ['a.svm', 'b.svm']
    """
    found = [file for path in paths for file in _under(os.fspath(path))]
    if not found:
        raise DataError("No shards: no path was given. Name files, directories or patterns.")
    times = Counter(file.name for file in found)
    shards = [_shard(file, file.name if times[file.name] == 1 else file.path) for file in found]
    _refuse_twice(shards)
    _refuse_mixed(shards)
    return shards


def _under(root: str) -> list[_Found]:
    """Return the files that a root stands for, in order."""
    if storage.is_uri(root):
        return run_in_thread(lambda: _in_store(root))
    return [_Found(path, name, storage.stamp(path)) for path, name in _on_disk(root)]


# On disk -----------------------------------------------------------------------------------------


def _on_disk(path: str) -> list[tuple[str, str]]:
    root = storage.local_path(path)
    if os.path.isdir(root):
        return _named(root, set(_walk(root)))
    if os.path.lexists(root):
        refuse_unfinished(root)
        return [(root, os.path.basename(root))]
    if not glob.has_magic(root):
        raise DataError(f"{root}: no such file or directory. Check the path.")
    base = _before_magic(root)
    files = {file for match in glob.glob(root, recursive=True) for file in _files(match)}
    return _named(base, {file for file in files if not _hidden(os.path.relpath(file, base))})


def _before_magic(pattern: str) -> str:
    """Return the directories of a pattern that are named outright."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern or "."


def _files(path: str) -> Iterator[str]:
    if os.path.isdir(path):
        yield from _walk(path)
    else:
        yield path


def _walk(directory: str) -> Iterator[str]:
    """Yield files below a directory, links followed, each real directory once."""
    met = set()
    for here, directories, names in os.walk(directory, onerror=_raise, followlinks=True):
        if os.path.realpath(here) in met:
            directories.clear()  # a link that leads in a circle
            continue
        met.add(os.path.realpath(here))
        directories[:] = [name for name in directories if not _hidden(name)]
        yield from (os.path.join(here, name) for name in names if not _hidden(name))


def _raise(error: OSError) -> None:
    with reading_from(error.filename):
        raise error


def _hidden(name: str) -> bool:
    parts = name.split(os.sep)
    return any(part.startswith(("_", ".")) and part not in (".", "..") for part in parts)


def _named(base: str, files: Iterable[str]) -> list[tuple[str, str]]:
    named = [(file, os.path.relpath(file, base)) for file in files]
    whole = os.path.abspath(base)
    refuse_logged((os.path.join(whole, name) for _, name in named), whole, sign_on_disk)
    _refuse_none(base, named)
    return sorted(named, key=lambda pair: os.fsencode(pair[1]))


# In an object store ------------------------------------------------------------------------------


def _in_store(uri: str) -> list[_Found]:
    """Return a key, all keys below a prefix, or those that match a pattern."""
    place = storage.place(uri)
    info = storage.file_info(place)
    if info.is_file:
        stamp = storage.stamp_of(place, info)
        return [_Found(place.uri, os.path.basename(place.key), stamp)]
    base, pattern = place.key, ""
    if info.type.name == "NotFound":
        if not glob.has_magic(place.key):
            raise DataError(f"{uri}: no such file or directory. Check the URI.")
        base = _before_magic(place.key).removeprefix(".")
        pattern = place.key[len(base) :].strip("/")
    directory = place._replace(key=base)
    below = dict(storage.files_below(directory))
    wanted = pattern.split("/") if pattern else []
    names = [n for n in below if not _hidden(n) and _matches(n.split("/"), wanted)]
    _refuse_logged_keys(directory, names, below)
    _refuse_none(uri, names)
    names.sort(key=os.fsencode)
    keys = [directory.below(name) for name in names]
    told = [(key, below[name]) for key, name in zip(keys, names, strict=True)]
    stamps = in_order(lambda one: storage.stamp_of(*one), told, storage.REQUESTS)
    return list(map(_Found, (key.uri for key in keys), names, stamps))


def _refuse_logged_keys(
    directory: storage.Place, found: Iterable[str], below: Iterable[str]
) -> None:
    """Call ``refuse_logged`` for keys; signs above the directory are asked for."""
    signs = {directory.below(at).key.strip("/"): s for at, s in signs_among(below).items()}
    for key in above(directory.key):
        there = directory._replace(key=key)
        logs = [
            f"{log}/{name}"
            for log in LOG_DIRECTORIES
            for name, _ in storage.files_below(there.below(log))
        ]
        signs[key] = signs_among(logs).get("", "")
    keys = [directory.below(name).key for name in found]
    refuse_logged(keys, directory.key, signs.get, lambda key: directory._replace(key=key).uri)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether a path, or a directory above it, is what a pattern with ``**`` stands for.

    Examples
    --------
    >>> [_matches(path.split("/"), ["**", "*.svm"]) for path in ("a.svm", "b/c/a.svm", "b/a.md")]
    [True, True, False]
    >>> _matches(["day-1", "b", "a.svm"], ["day-*"])
    True
    """
    if not pattern:
        return True
    elif pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


# Any of them -------------------------------------------------------------------------------------


def _refuse_none(where: str, found: Sequence[object]) -> None:
    if not found:
        raise DataError(
            f"{where}: no shards there. Looked for files whose names do not begin with _ or . "
            "(libsvm text, Parquet or Arrow)."
        )


def _shard(file: _Found, name: str) -> ShardFile:
    path = file.path if storage.is_uri(file.path) else os.path.abspath(file.path)
    size, mtime_ns, tag = file.stamp
    return ShardFile(path, name, _format(path), size, mtime_ns, tag=tag)


def _format(path: str) -> Format:
    from streamtron.data.formats.libsvm import (
        is_libsvm_name,  # brings numba and its second of loading
    )

    name = storage.file_name(path)
    if name.lower().endswith(PARQUET_ENDINGS):
        return "parquet"
    if name.lower().endswith(ARROW_ENDINGS):
        return "arrow"
    if is_libsvm_name(name):
        return "libsvm"
    raise DataError(
        f"{path}: neither Parquet ({', '.join(PARQUET_ENDINGS)}) nor Arrow "
        f"({', '.join(ARROW_ENDINGS)}) nor a name for libsvm text. "
        "Rename it, move it away, or have it ignored by a name that begins with _."
    )


def _refuse_twice(shards: Sequence[ShardFile]) -> None:
    met: dict[str, str] = {}
    for shard in shards:
        real = shard.path if storage.is_uri(shard.path) else os.path.realpath(shard.path)
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


_WORDS = {"libsvm": "libsvm text", "parquet": "Parquet", "arrow": "Arrow"}
