"""Read files by path or URI: local files, and objects in stores.

A URI is ``scheme://root/key?options``: ``s3``, ``gs``, ``hdfs`` and ``abfs`` are opened by
``pyarrow.fs``, ``file`` is a local path, other schemes go to fsspec if it is installed. Endpoint
and credentials come from the environment variables of the store's own tools or, without secrets,
from the options of ``pyarrow.fs`` (``?endpoint_override=…&scheme=http&region=…``). A key is written
as in any URI: ``%20`` is a space. Retries are the library's own.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from io import FileIO
from typing import NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import xxhash
from pyarrow import fs

from streamtron.core.errors import DataError, MachineError, StreamtronError
from streamtron.core.files import reading_from
from streamtron.data.prefetch import raise_if_cancelled

READ_BYTES = 1 << 20
RANGE_BYTES = 1 << 22
"""Bytes asked of a store in one request: an answer takes some 30 ms, however short it is."""
REQUESTS = 4
"""Requests under way at once: one connection rarely gives what the network can."""
GOOGLE_PATIENCE = 30
"""Seconds that a request to Google's store is retried. Arrow's default is 15 minutes, also where no
token can be had; ``retry_limit_seconds`` in a URI sets another limit."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)([^?]*)(\?.*)?", re.DOTALL)
_SECRET = re.compile(r"[?&]([^=&]*(?:secret|password|token|key|sig)[^=&]*)=", re.IGNORECASE)
_GOOGLE = ("gs", "gcs")
_BUCKETS = ("s3", *_GOOGLE)
_ARROW = (*_BUCKETS, "hdfs", "viewfs", "abfs", "abfss")


class Stamp(NamedTuple):
    """Size and time of the last change of a file, which tell whether it was replaced.

    Stores give times in whole seconds, or sometimes finer and sometimes not: theirs are cut to
    seconds. Changes within a second are told apart by the tag.
    """

    size: int
    mtime_ns: int
    tag: str = ""
    """ETag in S3, and the version where it keeps several; "" elsewhere and where it is unknown"""

    def may_be(self, other: Stamp) -> bool:
        """Tell whether both can be of the same bytes: all that is known of both is equal.

        Examples
        --------
        >>> [Stamp(5, 1, "a").may_be(other) for other in (Stamp(5, 1), Stamp(5, 1, "b"))]
        [True, False]
        """
        tags = {self.tag, other.tag} - {""}
        return self[:2] == other[:2] and len(tags) <= 1


class StoreError(MachineError):
    """A store, or the network on the way to it, refuses; its contents are not known."""


class Place(NamedTuple):
    """A file or directory of a store; ``key`` is unescaped, without slashes at its ends."""

    root: str
    """scheme and authority as written: ``s3://bucket``"""
    key: str
    options: str
    """``?endpoint_override=…``, or nothing"""
    filesystem: fs.FileSystem
    base: str
    """path of the root in the file system: ``bucket``"""

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


# Names -------------------------------------------------------------------------------------------


def is_uri(path: str) -> bool:
    """Tell whether a path is in a store; ``file://`` is a local path.

    Examples
    --------
    >>> [is_uri(path) for path in ("s3://bucket/a.svm", "data/a.svm", "file:///data/a.svm")]
    [True, False, False]
    """
    found = _URI.match(path)
    return found is not None and found[1].lower() != "file"


def local_path(path: str) -> str:
    """Return the path for the operating system: ``file://`` removed, ``~`` expanded.

    Examples
    --------
    >>> local_path("file:///data/a%20b.svm"), local_path("data/part-?.svm")
    ('/data/a b.svm', 'data/part-?.svm')
    """
    found = _URI.match(path)
    if found is None:
        return os.path.expanduser(path)
    if found[2] not in ("", "localhost") or found[4]:
        raise DataError(f"{path}: not a file of this machine. Write file:///directory/name.")
    return unquote(found[3])


def file_name(path: str) -> str:
    """Return the last part of a path or of a URI's key, which tells format and compression.

    Examples
    --------
    >>> file_name("s3://bucket/train/a%20b.svm.gz?region=eu-west-1"), file_name("train/a?b.svm")
    ('a b.svm.gz', 'a?b.svm')
    """
    found = _URI.match(path) if is_uri(path) else None
    return os.path.basename(unquote(found[3]) if found else path)


def place(uri: str) -> Place:
    """Parse a URI and connect to its file system."""
    found = _URI.match(uri)
    assert found is not None, uri
    root, options = f"{found[1].lower()}://{found[2]}", found[4] or ""
    _refuse_secrets(root, options)
    if root.endswith("//") and root.startswith(_BUCKETS):
        raise DataError(f"{uri}: no bucket. Write {root}bucket/key.")
    with store_errors(uri):
        try:
            filesystem, base = _connected(root, options)
        except ImportError as error:
            raise MachineError(
                f"{uri}: {_reason(error)}. Install what fsspec needs for {root.partition(':')[0]}, "
                "or copy the shards to a local disk."
            ) from error
        except ValueError as error:
            raise DataError(
                f"{uri}: {_reason(error)}. Wanted is a URI of {', '.join(('file', *_ARROW))} or of "
                "a scheme that fsspec knows."
            ) from error
    return Place(root, unquote(found[3]).strip("/"), options, filesystem, base)


def _refuse_secrets(root: str, options: str) -> None:
    """Refuse a URI with a secret: URIs are written to manifests and messages."""
    scheme, _, authority = root.partition("://")
    user, at, where = authority.rpartition("@")
    named = _SECRET.search(options)
    if (at and ":" in user) or named:
        raise DataError(
            f"{scheme}://{where}: a secret in the URI{f' ({named[1]})' if named else ''}. Give "
            "it in the environment (AWS_SECRET_ACCESS_KEY and the like), where no file keeps it."
        )


@lru_cache
def _connected(root: str, options: str) -> tuple[fs.FileSystem, str]:
    """Connect to the file system of a root; return it with its path of the root."""
    scheme = root.partition("://")[0]
    if scheme in _GOOGLE and "retry_limit_seconds=" not in options:
        options += f"{'&' if options else '?'}retry_limit_seconds={GOOGLE_PATIENCE}"
    if scheme in _ARROW:
        filesystem, base = fs.FileSystem.from_uri(root + options)
        return filesystem, base.rstrip("/")
    import fsspec

    filesystem, base = fsspec.url_to_fs(root)
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), base.rstrip("/")


# What is there -----------------------------------------------------------------------------------


def stamp(path: str, name: str | None = None) -> Stamp:
    """Return size and time of a file; ``name`` is what messages call a local file."""
    if is_uri(path):
        there = place(path)
        if there.filesystem.type_name == "s3":
            return _tagged_stamp(there)
        with store_errors(path):
            info = there.filesystem.get_file_info(there.path)
        if info.type != fs.FileType.File:
            raise MachineError(f"{path}: cannot be read (it is not there). Check the URI.")
        return stamp_of(there, info)
    with reading_from(name or path):
        status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a file. Shards are read several times; copy it to a file.")
    return Stamp(status.st_size, status.st_mtime_ns)


def stamp_of(there: Place, info: fs.FileInfo) -> Stamp:
    """Return the stamp of a listed file; S3 is asked again, since a listing has no tags."""
    if there.filesystem.type_name == "s3":
        return _tagged_stamp(there)
    seconds = info.mtime_ns // 10**9 if info.mtime_ns else _changed_at(there, info.path)
    return Stamp(int(info.size), seconds * 10**9)


def _tagged_stamp(there: Place) -> Stamp:
    """Return size, time and tag of an object, in one request."""
    with store_errors(there.uri), there.filesystem.open_input_file(there.path) as file:
        told = {name: value.decode() for name, value in file.metadata().items()}
        seconds = int(datetime.fromisoformat(told["Last-Modified"]).timestamp())
        tag = " ".join(told[name] for name in ("ETag", "VersionId") if name in told)
        return Stamp(int(file.size()), seconds * 10**9, tag)


def _changed_at(there: Place, path: str) -> int:
    """Ask fsspec for the second of a file's last change."""
    with store_errors(there.uri):
        try:
            return int(there.filesystem.handler.fs.modified(path).timestamp())
        except (AttributeError, NotImplementedError) as error:
            raise MachineError(
                f"{there.uri}: this store does not tell when a file was changed, so that no cache "
                "could be trusted. Copy the shards to a local disk."
            ) from error


def file_info(there: Place) -> fs.FileInfo:
    """Tell whether a key is a file, a directory (other keys begin with it) or absent."""
    with store_errors(there.uri):
        info = there.filesystem.get_file_info(there.path)
        if info.type != fs.FileType.NotFound or not there.root.startswith(_BUCKETS):
            return info
        bucket = there.filesystem.get_file_info(there.base)
    if bucket.type == fs.FileType.NotFound:
        raise MachineError(
            f"{there.uri}: there is no such bucket. Check its name and the endpoint."
        )
    return info


def files_below(directory: Place) -> Iterator[tuple[str, fs.FileInfo]]:
    """List all files below a directory with their relative paths, in no order."""
    selector = fs.FileSelector(directory.path, recursive=True, allow_not_found=True)
    with store_errors(directory.uri):
        infos = directory.filesystem.get_file_info(selector)
    above = len(directory.path.rstrip("/")) + 1
    for info in infos:
        if info.type == fs.FileType.File:
            yield info.path[above:], info


# Bytes -------------------------------------------------------------------------------------------


def blocks(path: str, name: str, size: int = READ_BYTES) -> Iterator[bytes]:
    """Read a file from its start, at most ``size`` bytes at a time.

    ``name`` is what messages call a local file; a URI is named in full.
    """
    for block in _stored_blocks(path, size) if is_uri(path) else _local_blocks(path, name, size):
        raise_if_cancelled()
        yield block


def read_into(path: str, name: str, space: Callable[[], memoryview]) -> Iterator[memoryview]:
    """Read a local file from its start into the buffers that ``space`` returns; yield the part of
    each that was filled."""
    with reading_from(name), FileIO(path) as file:
        while count := file.readinto(buffer := space()):
            raise_if_cancelled()
            yield buffer[:count]


def fingerprint(path: str, name: str) -> str:
    """Compute xxh3-128 of a file's bytes, 32 hex digits; this reads the file."""
    digest = xxhash.xxh3_128()
    for block in blocks(path, name):
        digest.update(block)
    return digest.hexdigest()


def open_arrow(path: str) -> pa.NativeFile:
    """Open a file for random access.

    Errors of a store, now or while the file is read, are a MachineError with the URI; a local file
    raises OSError.
    """
    if not is_uri(path):
        return pa.OSFile(path)
    return pa.PythonFile(_Guarded(path), mode="r")


class _Guarded:
    """A store's file that raises MachineError: the Parquet library would turn the store's own error
    into one about a damaged file."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        there = place(uri)
        with store_errors(uri):
            self._file = there.filesystem.open_input_file(there.path)

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def close(self) -> None:
        self._file.close()

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, to: int, whence: int = 0) -> int:
        return int(self._file.seek(to, whence))

    def read(self, count: int) -> bytes:
        with store_errors(self._uri):
            return bytes(self._file.read(count))


def _local_blocks(path: str, name: str, size: int) -> Iterator[bytes]:
    with reading_from(name), FileIO(path) as file:
        while block := file.read(size):
            yield block


def _stored_blocks(uri: str, size: int) -> Iterator[bytes]:
    there = place(uri)
    if there.root.startswith(_GOOGLE):
        yield from _streamed(there, uri, size)
        return
    with store_errors(uri):
        file = there.filesystem.open_input_file(there.path)
    with file:
        for part in _ranges(file, uri):
            for start in range(0, len(part), size):
                yield part[start : start + size]


def _streamed(there: Place, uri: str, size: int) -> Iterator[bytes]:
    """Read a file by one request. Google's files for random access hold Python's lock until their
    first byte arrives: while the store does not answer, no thread runs and no signal is handled."""
    with store_errors(uri):
        left = there.filesystem.get_file_info(there.path).size or 0
        file = there.filesystem.open_input_stream(there.path, compression=None)
    with file:
        while left > 0:
            with store_errors(uri):
                part = file.read(size)
            if not part:
                raise MachineError(f"{uri}: cannot be read (it ends early). Run again.")
            left -= len(part)
            yield part


def _ranges(file: pa.NativeFile, uri: str) -> Iterator[bytes]:
    """Read a file in parts of RANGE_BYTES, in order, REQUESTS of them at once."""
    with store_errors(uri):
        size = file.size()
    starts = range(0, size, RANGE_BYTES)
    with ThreadPoolExecutor(REQUESTS, "streamtron-store") as pool:
        coming = deque(pool.submit(file.read_at, RANGE_BYTES, at) for at in starts[:REQUESTS])
        for number, start in enumerate(starts, REQUESTS):
            with store_errors(uri):
                part = coming.popleft().result()
            if len(part) != min(RANGE_BYTES, size - start):
                raise MachineError(f"{uri}: cannot be read (it ends early). Run again.")
            coming.extend(
                pool.submit(file.read_at, RANGE_BYTES, at) for at in starts[number : number + 1]
            )
            yield part


# Errors ------------------------------------------------------------------------------------------

_CREDENTIALS = "Check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and their rights."
_AWS = {
    "ACCESS_DENIED": ("access is denied", _CREDENTIALS),
    "INVALID_ACCESS_KEY_ID": ("the access key is not known", _CREDENTIALS),
    "INVALID_CLIENT_TOKEN_ID": ("the session token is not known", _CREDENTIALS),
    "SIGNATURE_DOES_NOT_MATCH": ("the secret key is wrong", _CREDENTIALS),
    "NO_SUCH_BUCKET": ("there is no such bucket", "Check its name and the endpoint."),
    "NETWORK_CONNECTION": (
        "the server does not answer",
        "Check the network and the endpoint (AWS_ENDPOINT_URL), and run again.",
    ),
}
_HADOOP = re.compile(r"libjvm|libhdfs")
_NO_HADOOP = (
    "Java or Hadoop's native client is not there",
    "Install both and set JAVA_HOME, HADOOP_HOME and CLASSPATH (hadoop classpath --glob), or copy "
    "the shards to a local disk.",
)
_GCLOUD = {
    "UNAVAILABLE": (
        "the server does not answer",
        "Check the network and the endpoint, and run again.",
    ),
}
_ANYTHING = "Check the URI, the network and the credentials."
_ERROR = re.compile(r"AWS Error (\w+)|google::cloud::Status\((\w+)")


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turn any exception of a store's library into a StoreError with the URI."""
    try:
        yield
    except StreamtronError:
        raise
    except Exception as error:  # a library behind fsspec may raise anything
        reason, remedy = _explained(error)
        raise StoreError(f"{uri}: cannot be read ({reason}). {remedy}") from error


def _explained(error: Exception) -> tuple[str, str]:
    """Say what is wrong, and what to do."""
    if _HADOOP.search(str(error)):
        return _NO_HADOOP
    found = _ERROR.search(str(error))
    aws, gcloud = found.groups(default="") if found else ("", "")
    return _AWS.get(aws) or _GCLOUD.get(gcloud) or (_reason(error), _ANYTHING)


def _reason(error: Exception) -> str:
    """Return the first line of a library's message, shortened."""
    if isinstance(error, FileNotFoundError):
        return "it is not there"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = " ".join(lines[0].split()).rstrip(".")
    return line if len(line) <= 200 else f"{line[:200]}…"
