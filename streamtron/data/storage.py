"""Read files by path or URI: local files, and objects in stores.

A URI is ``scheme://root/key?options``. ``file`` is a local path; ``pyarrow.fs`` opens ``s3``,
``abfs`` and ``hdfs``, and fsspec the rest. Endpoint and credentials come from the environment
variables of the store's own tools or, without secrets, from the options of ``pyarrow.fs``
(``?endpoint_override=…&scheme=http&region=…``). A key is written as in any URI: ``%20`` is a space.
Retries are the library's own.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import FileIO
from textwrap import shorten
from typing import NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import xxhash
from pyarrow import fs

from streamtron.core.errors import DataError, MachineError, StreamtronError
from streamtron.core.files import reading_from
from streamtron.data.prefetch import in_order, raise_if_cancelled

READ_BYTES = 1 << 20
RANGE_BYTES = 1 << 22
"""Bytes asked of a store in one request: an answer takes some 30 ms, however short it is."""
REQUESTS = 4
"""Requests under way at once: one connection rarely gives what the network can."""
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)([^?]*)(\?.*)?", re.DOTALL)
_SECRET = re.compile(r"[?&]([^=&]*(?:secret|password|token|key|sig)[^=&]*)=", re.IGNORECASE)
_BY_PYARROW = ("s3", "abfs", "abfss", "hdfs", "viewfs")


class Stamp(NamedTuple):
    """Size and time of the last change of a file, which tell whether it was replaced. Times of
    stores are cut to seconds, since a store may tell fractions only sometimes."""

    size: int
    mtime_ns: int


class StoreError(MachineError):
    """A store, or the network on the way to it, refuses."""


class Place(NamedTuple):
    """A file or directory of a store.

    ``root`` is scheme and authority as written (``s3://bucket``), ``key`` unescaped and without
    slashes at its ends, ``options`` are ``?endpoint_override=…`` or nothing, ``base`` is the path
    of the root in the file system (``bucket``).
    """

    root: str
    key: str
    options: str
    filesystem: fs.FileSystem
    base: str

    @property
    def path(self) -> str:
        """The path in the file system."""
        return f"{self.base}/{self.key}" if self.key else self.base or "/"

    @property
    def uri(self) -> str:
        """The URI, as manifests have it."""
        return f"{self.root}{'/' if self.key else ''}{quote(self.key, safe='/*[]')}{self.options}"

    def below(self, name: str) -> Place:
        """Return the entry of this name in this directory."""
        return self._replace(key=f"{self.key}/{name}" if self.key else name)


def is_uri(path: str) -> bool:
    """Tell whether a path is in a store; ``file://`` is a local path."""
    match = _URI.match(path)
    return match is not None and match[1].lower() != "file"


def local_path(path: str) -> str:
    """Return the path for the operating system: ``file://`` removed, ``~`` expanded."""
    match = _URI.match(path)
    if match is None:
        return os.path.expanduser(path)
    if match[2] not in ("", "localhost") or match[4]:
        raise DataError(f"{path}: not a file of this machine. Write file:///directory/name.")
    return unquote(match[3])


def file_name(path: str) -> str:
    """Return the last part of a path or of a URI's key, which tells format and compression."""
    match = _URI.match(path) if is_uri(path) else None
    return os.path.basename(unquote(match[3]) if match else path)


def place(uri: str) -> Place:
    """Parse a URI and connect to its file system."""
    match = _URI.match(uri)
    assert match is not None, uri
    root, options = f"{match[1].lower()}://{match[2]}", match[4] or ""
    user, at, where = match[2].rpartition("@")
    named = _SECRET.search(options)
    if (at and ":" in user) or named:  # URIs are written to manifests and messages
        raise DataError(
            f"{match[1]}://{where}: a secret in the URI{f' ({named[1]})' if named else ''}. Give "
            "it in the environment (AWS_SECRET_ACCESS_KEY and the like), where no file keeps it."
        )
    with store_errors(uri):
        try:
            filesystem, base = _connected(root, options)
        except ValueError as error:  # pyarrow's and fsspec's
            known = "Expected a URI of file, s3, gs, hdfs, abfs or a scheme that fsspec knows"
            raise DataError(f"{uri}: {_reason(error)}. {known}.") from error
    return Place(root, unquote(match[3]).strip("/"), options, filesystem, base)


@lru_cache
def _connected(root: str, options: str) -> tuple[fs.FileSystem, str]:
    """Connect to the file system of a root; return it with its path of the root."""
    scheme, _, authority = root.partition("://")
    if scheme in _BY_PYARROW:
        if not authority:
            raise ValueError("no bucket")
        filesystem, base = fs.FileSystem.from_uri(root + options)
    else:
        import fsspec

        opened, base = fsspec.url_to_fs(root)
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(opened))
    return filesystem, base.rstrip("/")


def stamp(path: str, name: str | None = None) -> Stamp:
    """Return size and time of a file; ``name`` is what messages call a local file."""
    if is_uri(path):
        target = place(path)
        if (there := (files_at(target) or {}).get("")) is None:
            with store_errors(target.uri):
                raise FileNotFoundError
        return there
    with reading_from(name or path):
        status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        reason = "not a file. Shards are read several times; copy it to a file."
        raise DataError(f"{name or path}: {reason}")
    return Stamp(status.st_size, status.st_mtime_ns)


def files_at(target: Place) -> dict[str, Stamp] | None:
    """Return the stamps of the files at a key, by their paths relative to it: of a key that is a
    file "", of a directory (other keys begin with it) those of all below; None: it is absent."""
    start, files = len(target.path.rstrip("/")) + 1, dict[str, fs.FileInfo]()
    with store_errors(target.uri):
        info = target.filesystem.get_file_info(target.path)
        if info.type == fs.FileType.NotFound:
            return None
        if info.is_file:
            files[""] = info
        else:
            below = fs.FileSelector(target.path, recursive=True, allow_not_found=True)
            infos = target.filesystem.get_file_info(below)
            files |= {info.path[start:]: info for info in infos if info.is_file}
    return {
        name: Stamp(int(info.size), (info.mtime_ns or 0) // 10**9 * 10**9)
        for name, info in files.items()
    }


def blocks(path: str, name: str, size: int = READ_BYTES) -> Iterator[bytes]:
    """Read a file from its start, at most ``size`` bytes at a time; ``name``: see ``stamp``."""
    for block in _stored(place(path), size) if is_uri(path) else _local(path, name, size):
        raise_if_cancelled()
        yield block


def _local(path: str, name: str, size: int) -> Iterator[bytes]:
    with reading_from(name), FileIO(path) as file:
        while block := file.read(size):
            yield block


def fingerprint(path: str, name: str) -> str:
    """Compute xxh3-128 of a file's bytes, 32 hex digits; this reads the file."""
    digest = xxhash.xxh3_128()
    for block in blocks(path, name):
        digest.update(block)
    return digest.hexdigest()


def open_arrow(path: str) -> pa.NativeFile:
    """Open a file for random access. Errors of a store, now or while the file is read, are a
    StoreError; a local file raises OSError."""
    if not is_uri(path):
        return pa.OSFile(os.fsencode(path))
    target = place(path)
    with store_errors(path):
        return pa.PythonFile(_Guarded(target.filesystem.open_input_file(target.path), path), "r")


class _Guarded:
    """A store's file that raises StoreError: else Parquet's library calls the file damaged."""

    def __init__(self, file: pa.NativeFile, uri: str) -> None:
        self._uri = uri
        self._file = file
        self.close, self.tell, self.seek = file.close, file.tell, file.seek

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def read(self, count: int) -> bytes:
        with store_errors(self._uri):
            return bytes(self._file.read(count))


def _stored(target: Place, size: int) -> Iterator[bytes]:
    """Read a store's file in parts of RANGE_BYTES, in order, REQUESTS of them at once."""
    with store_errors(target.uri):
        file = target.filesystem.open_input_file(target.path)
        length = file.size()

    def part(start: int) -> bytes:
        with store_errors(target.uri):
            data: bytes = file.read_at(min(RANGE_BYTES, length - start), start)
        return data

    with file:
        for data in in_order(part, range(0, length, RANGE_BYTES), REQUESTS):
            yield from (data[start : start + size] for start in range(0, len(data), size))


_KNOWN = (
    (
        "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH",
        "access is denied",
        "Check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and their rights.",
    ),
    (
        "NETWORK_CONNECTION|UNAVAILABLE",
        "the server does not answer",
        "Check the network and the endpoint, and run again.",
    ),
)
"""A pattern of a library's message, what is wrong, what to do."""


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turn any exception of a store's library into a StoreError with the URI."""
    try:
        yield
    except StreamtronError:
        raise
    except Exception as error:  # a library behind fsspec may raise anything
        known = (sentences for pattern, *sentences in _KNOWN if re.search(pattern, str(error)))
        unknown = (_reason(error), "Check the URI, the network and the credentials.")
        reason, remedy = next(known, unknown)
        raise StoreError(f"{uri}: cannot be read ({reason}). {remedy}") from error


def _reason(error: Exception) -> str:
    """Return the first line of a library's message, shortened."""
    if isinstance(error, FileNotFoundError):
        return "it is not there"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shorten(lines[0], 200, placeholder="…").rstrip(".")
