"""Where shards lie: local files, and objects in stores named by URIs, behind the same few doors.

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
from streamtron.data.prefetch import raise_if_cancelled

READ_BYTES = 1 << 20
RANGE_BYTES = 1 << 22
"""Bytes asked of a store in one request: an answer takes some 30 ms, however short it is."""
REQUESTS = 4
"""Requests under way at once: one connection rarely gives what the network can."""
GOOGLE_PATIENCE = 30
"""Seconds that a request to Google's store is tried again. Arrow would do so for 15 minutes, where
there is nobody to ask for a token, say; ``retry_limit_seconds`` in a URI says otherwise."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)([^?]*)(\?.*)?", re.DOTALL)
_SECRET = re.compile(r"[?&]([^=&]*(?:secret|password|token|key|sig)[^=&]*)=", re.IGNORECASE)
_GOOGLE = ("gs", "gcs")
_BUCKETS = ("s3", *_GOOGLE)
_ARROW = (*_BUCKETS, "hdfs", "viewfs", "abfs", "abfss")


class Stamp(NamedTuple):
    """What tells a file from one that has taken its place: bytes, and the time of its last change.

    Stores tell times in whole seconds, or sometimes finer and sometimes not: theirs are cut. What
    is written within a second is told apart by the tag.
    """

    size: int
    mtime_ns: int
    tag: str = ""
    """what S3 calls these very bytes (ETag, and the version where it keeps several); "" elsewhere,
    and where it is not known"""

    def may_be(self, other: Stamp) -> bool:
        """Whether both can be of the same bytes: all that is known of both is equal.

        Examples
        --------
        >>> [Stamp(5, 1, "a").may_be(other) for other in (Stamp(5, 1), Stamp(5, 1, "b"))]
        [True, False]
        """
        tags = {self.tag, other.tag} - {""}
        return self[:2] == other[:2] and len(tags) <= 1


class StoreError(MachineError):
    """A store, or the way to it, refuses: nothing is known of what is in it."""


class Place(NamedTuple):
    """Something in a store: ``key`` is unescaped, without slashes at its ends."""

    root: str
    """scheme and authority as written: ``s3://bucket``"""
    key: str
    options: str
    """``?endpoint_override=…``, or nothing"""
    filesystem: fs.FileSystem
    base: str
    """what the file system calls the root: ``bucket``"""

    @property
    def path(self) -> str:
        """What the file system calls it."""
        return f"{self.base}/{self.key}" if self.key else self.base or "/"

    @property
    def uri(self) -> str:
        """The URI, which names it for ever after."""
        return f"{self.root}{'/' if self.key else ''}{quote(self.key, safe='/*[]')}{self.options}"

    def below(self, name: str) -> Place:
        """What has this name in this directory."""
        return self._replace(key=f"{self.key}/{name}" if self.key else name)


# Names -------------------------------------------------------------------------------------------


def is_uri(path: str) -> bool:
    """Whether a path is in a store and not on a local disk; ``file://`` is no store.

    Examples
    --------
    >>> [is_uri(path) for path in ("s3://bucket/a.svm", "data/a.svm", "file:///data/a.svm")]
    [True, False, False]
    """
    found = _URI.match(path)
    return found is not None and found[1].lower() != "file"


def local_path(path: str) -> str:
    """A local path as the operating system takes it: ``file://`` undone, ``~`` expanded.

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
    """The last part of a path or of a URI's key, which tells the format and the compression.

    Examples
    --------
    >>> file_name("s3://bucket/train/a%20b.svm.gz?region=eu-west-1"), file_name("train/a?b.svm")
    ('a b.svm.gz', 'a?b.svm')
    """
    found = _URI.match(path) if is_uri(path) else None
    return os.path.basename(unquote(found[3]) if found else path)


def place(uri: str) -> Place:
    """What a URI names, with the file system that opens it.

    Raises
    ------
    DataError : the URI is not one that the store's library takes, or holds a secret.
    MachineError : the library is not there, or cannot reach the store.
    """
    found = _URI.match(uri)
    assert found is not None, uri
    root, options = f"{found[1].lower()}://{found[2]}", found[4] or ""
    _refuse_secrets(root, options)
    if root.endswith("//") and root.startswith(_BUCKETS):
        raise DataError(f"{uri}: no bucket. Write {root}bucket/key.")
    with sentences(uri):
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
    """URIs stand in manifests and messages: a secret in one would be everywhere."""
    scheme, _, authority = root.partition("://")
    who, at, where = authority.rpartition("@")
    named = _SECRET.search(options)
    if (at and ":" in who) or named:
        raise DataError(
            f"{scheme}://{where}: a secret in the URI{f' ({named[1]})' if named else ''}. Give "
            "it in the environment (AWS_SECRET_ACCESS_KEY and the like), where no file keeps it."
        )


@lru_cache
def _connected(root: str, options: str) -> tuple[fs.FileSystem, str]:
    """The file system of a root, and what it calls the root; one for all files of a store."""
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
    """Size and time of a file.

    Parameters
    ----------
    name : what messages call a local file; a URI is named in full.

    Raises
    ------
    DataError : a pipe, a device, a directory.
    MachineError : it is not there or cannot be read.
    """
    if is_uri(path):
        there = place(path)
        if there.filesystem.type_name == "s3":
            return _tagged_stamp(there)
        with sentences(path):
            info = there.filesystem.get_file_info(there.path)
        if info.type != fs.FileType.File:
            raise MachineError(f"{path}: cannot be read (it is not there). Check the URI.")
        return stamp_of(there, info)
    try:
        status = os.stat(path)
    except OSError as error:
        raise MachineError(f"{name or path}: cannot be read ({error.strerror}).") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a file. Shards are read several times; copy it to a file.")
    return Stamp(status.st_size, status.st_mtime_ns)


def stamp_of(there: Place, info: fs.FileInfo) -> Stamp:
    """The stamp of a file that a store has told of; S3 is asked again, for a listing has no tags.

    Raises
    ------
    MachineError : the store cannot be asked, or does not tell when a file was changed.
    """
    if there.filesystem.type_name == "s3":
        return _tagged_stamp(there)
    seconds = info.mtime_ns // 10**9 if info.mtime_ns else _changed_at(there, info.path)
    return Stamp(int(info.size), seconds * 10**9)


def _tagged_stamp(there: Place) -> Stamp:
    """Size, time and tag of an object, by the one request with which it is opened."""
    with sentences(there.uri), there.filesystem.open_input_file(there.path) as file:
        told = {name: value.decode() for name, value in file.metadata().items()}
        seconds = int(datetime.fromisoformat(told["Last-Modified"]).timestamp())
        tag = " ".join(told[name] for name in ("ETag", "VersionId") if name in told)
        return Stamp(int(file.size()), seconds * 10**9, tag)


def _changed_at(there: Place, path: str) -> int:
    """The second of a file's last change where only fsspec may know it."""
    with sentences(there.uri):
        try:
            return int(there.filesystem.handler.fs.modified(path).timestamp())
        except (AttributeError, NotImplementedError) as error:
            raise MachineError(
                f"{there.uri}: this store does not tell when a file was changed, so that no cache "
                "could be trusted. Copy the shards to a local disk."
            ) from error


def look(there: Place) -> fs.FileInfo:
    """What a key is: a file, a directory (keys go on behind it) or nothing.

    Raises
    ------
    MachineError : the store cannot be asked, or there is no such bucket.
    """
    with sentences(there.uri):
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
    """Every file below a directory with its path relative to it, in no order.

    Raises
    ------
    MachineError : the store cannot be asked.
    """
    selector = fs.FileSelector(directory.path, recursive=True, allow_not_found=True)
    with sentences(directory.uri):
        infos = directory.filesystem.get_file_info(selector)
    above = len(directory.path.rstrip("/")) + 1
    for info in infos:
        if info.type == fs.FileType.File:
            yield info.path[above:], info


# Bytes -------------------------------------------------------------------------------------------


def blocks(path: str, name: str, size: int = READ_BYTES) -> Iterator[bytes]:
    """A file's bytes from its start, at most ``size`` at a time.

    Parameters
    ----------
    name : what messages call a local file; a URI is named in full.

    Raises
    ------
    MachineError : the file cannot be read.
    """
    for block in _stored_blocks(path, size) if is_uri(path) else _local_blocks(path, name, size):
        raise_if_cancelled()
        yield block


def read_into(path: str, name: str, space: Callable[[], memoryview]) -> Iterator[memoryview]:
    """A local file's bytes from its start, each time as many as fit where ``space`` says then; what
    is yielded is the part of it that was filled.

    Raises
    ------
    MachineError : the file cannot be read.
    """
    with _opened(path, name) as file:
        while count := file.readinto(place := space()):
            raise_if_cancelled()
            yield place[:count]


def fingerprint(path: str, name: str) -> str:
    """xxh3-128 of a file's bytes, 32 hex digits; one reading.

    Raises
    ------
    MachineError : the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    for block in blocks(path, name):
        digest.update(block)
    return digest.hexdigest()


def open_arrow(path: str) -> pa.NativeFile:
    """A file for random access; whoever opens it closes it.

    What goes wrong in a store, now or while the file is read, is a MachineError that names the
    URI; a local file raises the operating system's OSError.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"PAR1"), file.flush()
    ...     with open_arrow(file.name) as opened:
    ...         opened.size(), opened.read(3)
    (4, b'PAR')
    """
    if not is_uri(path):
        return pa.OSFile(path)
    return pa.PythonFile(_Guarded(path), mode="r")


class _Guarded:
    """A store's file whose errors are our sentences: the Parquet library passes them on as they
    are, where it would call the store's own a damaged file."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        there = place(uri)
        with sentences(uri):
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
        with sentences(self._uri):
            return bytes(self._file.read(count))


def _local_blocks(path: str, name: str, size: int) -> Iterator[bytes]:
    with _opened(path, name) as file:
        while block := file.read(size):
            yield block


@contextmanager
def _opened(path: str, name: str) -> Iterator[FileIO]:
    try:
        with FileIO(path) as file:
            yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise MachineError(
            f"{name}: cannot be read ({reason}). Check the path, its permissions and the disk."
        ) from error


def _stored_blocks(uri: str, size: int) -> Iterator[bytes]:
    there = place(uri)
    if there.root.startswith(_GOOGLE):
        yield from _streamed(there, uri, size)
        return
    with sentences(uri):
        file = there.filesystem.open_input_file(there.path)
    with file:
        for part in _ranges(file, uri):
            for start in range(0, len(part), size):
                yield part[start : start + size]


def _streamed(there: Place, uri: str, size: int) -> Iterator[bytes]:
    """The file in order, in answer to one request. Google's files for random access hold Python's
    lock until their first byte is there: no thread could go on, nor any signal be obeyed, while a
    store does not answer."""
    with sentences(uri):
        left = there.filesystem.get_file_info(there.path).size or 0
        file = there.filesystem.open_input_stream(there.path, compression=None)
    with file:
        while left > 0:
            with sentences(uri):
                part = file.read(size)
            if not part:
                raise MachineError(f"{uri}: cannot be read (it ends early). Run again.")
            left -= len(part)
            yield part


def _ranges(file: pa.NativeFile, uri: str) -> Iterator[bytes]:
    """The file in parts of RANGE_BYTES, in order, while the next ones are on their way."""
    with sentences(uri):
        size = file.size()
    starts = range(0, size, RANGE_BYTES)
    with ThreadPoolExecutor(REQUESTS, "streamtron-store") as pool:
        coming = deque(pool.submit(file.read_at, RANGE_BYTES, at) for at in starts[:REQUESTS])
        for number, start in enumerate(starts, REQUESTS):
            with sentences(uri):
                part = coming.popleft().result()
            if len(part) != min(RANGE_BYTES, size - start):
                raise MachineError(f"{uri}: cannot be read (it ends early). Run again.")
            coming.extend(
                pool.submit(file.read_at, RANGE_BYTES, at) for at in starts[number : number + 1]
            )
            yield part


# Sentences ---------------------------------------------------------------------------------------

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
def sentences(uri: str) -> Iterator[None]:
    """Around what a store's library does: whatever it raises becomes one sentence with the URI."""
    try:
        yield
    except StreamtronError:
        raise
    except Exception as error:  # a library behind fsspec may raise anything
        reason, remedy = _explained(error)
        raise StoreError(f"{uri}: cannot be read ({reason}). {remedy}") from error


def _explained(error: Exception) -> tuple[str, str]:
    """What is wrong, and what to do."""
    if _HADOOP.search(str(error)):
        return _NO_HADOOP
    found = _ERROR.search(str(error))
    aws, gcloud = found.groups(default="") if found else ("", "")
    return _AWS.get(aws) or _GCLOUD.get(gcloud) or (_reason(error), _ANYTHING)


def _reason(error: Exception) -> str:
    """The first line of a library's message, which may be a page."""
    if isinstance(error, FileNotFoundError):
        return "it is not there"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = " ".join(lines[0].split()).rstrip(".")
    return line if len(line) <= 200 else f"{line[:200]}…"
