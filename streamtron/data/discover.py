"""Find shards by paths, directories and patterns, in their order."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from streamtron.core.errors import DataError
from streamtron.core.files import reading_from
from streamtron.data import storage
from streamtron.data.deletions import Deletions
from streamtron.data.formats.text_stream import PACKED
from streamtron.data.prefetch import run_in_thread
from streamtron.data.storage import Stamp

Format = Literal["libsvm", "parquet", "arrow", "csv", "jsonl", "vw", "h5ad", "npz"]


class FileFormat(NamedTuple):
    """A format of shards: what messages call it, the suffixes of its files, the module in
    ``formats`` that is loaded where a file is read, its reader, and whether it is text, which is
    read once as a stream and may be compressed."""

    words: str
    suffixes: tuple[str, ...]
    module: str
    reader: str
    is_text: bool = False


FORMATS: dict[Format, FileFormat] = {
    "parquet": FileFormat("Parquet", (".parquet", ".pq"), "parquet", "ParquetReader"),
    "arrow": FileFormat("Arrow", (".arrow", ".arrows", ".feather", ".ipc"), "arrow", "ArrowReader"),
    "csv": FileFormat("CSV", (".csv", ".tsv"), "text_tables", "CsvReader", is_text=True),
    "jsonl": FileFormat(
        "JSON lines", (".jsonl", ".ndjson", ".json"), "text_tables", "JsonLinesReader", is_text=True
    ),
    "vw": FileFormat(
        "Vowpal Wabbit's text", (".vw",), "vowpal_wabbit", "VowpalWabbitReader", is_text=True
    ),
    "h5ad": FileFormat("AnnData", (".h5ad",), "anndata", "AnnDataReader"),
    "npz": FileFormat("a matrix of scipy", (".npz",), "npz", "NpzReader"),
    "libsvm": FileFormat("libsvm text", (), "libsvm", "LibsvmReader", is_text=True),
}
"""Every format that is read. libsvm text has any suffix that no other format claims."""

ROWS_GIVEN = "the rows given"
"""What messages call rows in memory, which a function was given: the name of the Arrow file that
stands for them (``formats.given``)."""


class ShardFile(NamedTuple):
    """One file of the data, as it was when it was found, and the rows that are left out of it.

    ``path`` is absolute, or a URI; ``name`` is what messages call it: the path relative to the
    root it was found under, or the whole path where two roots give the same.
    """

    path: str
    name: str
    format: Format
    size: int
    mtime_ns: int
    without: Deletions | None = None

    @property
    def stamp(self) -> Stamp:
        """What it was when it was found."""
        return Stamp(self.size, self.mtime_ns)

    @property
    def bytes_to_read(self) -> int:
        """Bytes read to know all of it: local tables are read again for their fingerprints."""
        is_hashed_at_once = FORMATS[self.format].is_text or storage.is_uri(self.path)
        return self.size if is_hashed_at_once else 2 * self.size


def find_shards(paths: Sequence[str]) -> list[ShardFile]:
    """Return the shards that files, directories (recursively) and glob patterns stand for.

    Each may be a local path or a URI of an object store (see ``storage``), where a directory is a
    prefix that ends at a slash, and in patterns ``?`` is not a wildcard but begins the options.
    Roots come in the order given; under each, shards are ordered by the bytes of their path
    relative to it. Below a directory or a pattern, names that begin with ``_`` or ``.`` are
    ignored.

    Raises
    ------
    DataError : nothing is there, a file of another format, mixed formats in a directory, libsvm
        text beside tables, a file given twice.
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
    named = []
    for path in paths:
        below = _under(os.fspath(path))
        _refuse_mixed([shard for _, shard in below], lambda *_: True)
        named += below
    if not named:
        raise DataError("No shards: no path was given. Name files, directories or patterns.")
    met: dict[str, str] = {}
    for name, shard in named:
        real = shard.path if storage.is_uri(shard.path) else os.path.realpath(shard.path)
        if real in met:
            raise DataError(f"{name}: the same file as {met[real]}, given twice. Name it once.")
        met[real] = name
    times = Counter(shard.name for _, shard in named)
    shards = [s if times[s.name] == 1 else s._replace(name=s.path) for _, s in named]
    _refuse_mixed(shards, lambda first, second: "libsvm" in (first, second))
    return shards


def _refuse_mixed(shards: Sequence[ShardFile], clash: Callable[[Format, Format], bool]) -> None:
    """Refuse a format beside another: any in one directory; and libsvm text, which may count
    columns from 0 or from 1, beside tables, however they are named."""
    first = shards[0] if shards else None
    for shard in shards:
        if first and shard.format != first.format and clash(shard.format, first.format):
            raise DataError(
                f"{first.name} is {FORMATS[first.format].words} and {shard.name} is "
                f"{FORMATS[shard.format].words}. One format for all: use streamtron convert for "
                "one of them."
            )


def _under(root: str) -> list[tuple[str, ShardFile]]:
    """Return the files that a root stands for, in order, each with its path as messages have it."""
    if storage.is_uri(root):
        named = run_in_thread(lambda: [(shard.path, shard) for shard in _in_store(root)])
    else:
        named = [(p, _shard(p, name, storage.stamp(p))) for p, name in _on_disk(root)]
    if not named:
        raise DataError(
            f"{root}: no shards there. Looked for files whose names do not begin with _ or . "
            f"({', '.join(format_.words for format_ in FORMATS.values())})."
        )
    return named


def _shard(path: str, name: str, stamp: Stamp) -> ShardFile:
    location = path if storage.is_uri(path) else os.path.abspath(path)
    return ShardFile(location, name, format_of(path), *stamp)


def format_of(path: str) -> Format:
    """Tell a file's format by its name.

    Text has no suffix of its own: it is any name that no other format claims, with or without .gz,
    .bz2, .xz, .zst.

    Examples
    --------
    >>> [format_of(name) for name in ("a9a.t", "train-0007.svm.zst", "x.csv.gz")]
    ['libsvm', 'libsvm', 'csv']
    """
    name = PurePosixPath(storage.file_name(path).lower())
    if name.name == ROWS_GIVEN:
        return "arrow"
    plain = name.with_suffix("") if name.suffix in PACKED else name
    for format_, known in FORMATS.items():
        if (plain if known.is_text else name).suffix in known.suffixes:
            return format_
    return "libsvm"


def _on_disk(path: str) -> list[tuple[str, str]]:
    """Return files and their names: one, all below a directory, or those that match a pattern."""
    root = storage.local_path(path)
    if os.path.isdir(root):
        base, matches = root, [root]
    elif os.path.lexists(root):
        return [(root, os.path.basename(root))]
    elif glob.has_magic(root):
        base, matches = _before_magic(root) or ".", glob.glob(root, recursive=True)
    else:
        raise DataError(f"{root}: no such file or directory. Check the path.")
    files = {f for match in matches for f in (_walk(match) if os.path.isdir(match) else [match])}

    names = _in_order(os.path.relpath(file, base) for file in files)
    return [(os.path.normpath(os.path.join(base, name)), name) for name in names]


def _before_magic(pattern: str) -> str:
    """Return the directories of a pattern that are named outright."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern


def _walk(directory: str) -> Iterator[str]:
    """Yield files below a directory, links followed, each real directory once."""
    met = set()
    for parent, directories, names in os.walk(directory, onerror=_raise, followlinks=True):
        if os.path.realpath(parent) in met:
            directories.clear()  # a link that leads in a circle
            continue
        met.add(os.path.realpath(parent))
        directories[:] = [name for name in directories if not _hidden(name)]
        yield from (os.path.join(parent, name) for name in names if not _hidden(name))


def _raise(error: OSError) -> None:
    with reading_from(error.filename):
        raise error


def _hidden(name: str) -> bool:
    parts = name.split(os.sep)
    return any(part.startswith(("_", ".")) and part not in (".", "..") for part in parts)


def _in_store(uri: str) -> list[ShardFile]:
    """Return a key, all keys below a prefix, or those that match a pattern."""
    place, pattern = storage.place(uri), list[str]()
    files = storage.files_at(place)
    if files is None:
        if not glob.has_magic(place.key):
            raise DataError(f"{uri}: no such file or directory. Check the URI.")
        base = _before_magic(place.key)
        pattern = place.key[len(base) :].strip("/").split("/")
        place = place._replace(key=base)
        files = storage.files_at(place) or {}
    if "" in files:
        return [_shard(place.uri, os.path.basename(place.key), files[""])]
    names = _in_order(name for name in files if _matches(name.split("/"), pattern))
    return [_shard(place.below(name).uri, name, files[name]) for name in names]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether a path, or a directory above it, is what a pattern with ``**`` stands for."""
    if not pattern:
        return True
    elif pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _in_order(names: Iterable[str]) -> list[str]:
    """Return the relative paths that are not hidden, in the order of their bytes."""
    return sorted((name for name in names if not _hidden(name)), key=os.fsencode)
