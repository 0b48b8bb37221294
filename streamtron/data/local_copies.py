"""A table to be read throughout, wherever it lies: from a store it is fetched once, into a copy."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import RawIOBase

import pyarrow as pa
import xxhash

from streamtron.core.errors import MachineError
from streamtron.data.storage import blocks, is_uri, stamp


@contextmanager
def open_whole(
    path: str, name: str, scratch: str | None
) -> Iterator[tuple[pa.NativeFile, str | None]]:
    """A file of which everything will be read, for random access; and its fingerprint, if known.

    What lies in a store is fetched once, in large parts, into a file without a name that is gone
    with the context, and hashed on the way.

    Parameters
    ----------
    name : what messages call a local file; a URI is named in full.
    scratch : the directory for that file; None = the system's for temporary files.

    Raises
    ------
    MachineError : what lies in a store cannot be read, or there is no room for it.
    OSError : a local file cannot be opened.
    """
    if not is_uri(path):
        with pa.OSFile(path) as file:
            yield file, None
        return
    scratch = scratch or tempfile.gettempdir()
    with ExitStack() as stack:
        with _copying(path, scratch):
            _check_room(path, scratch)
            copy = stack.enter_context(tempfile.TemporaryFile(dir=scratch, buffering=0))
        digest = xxhash.xxh3_128()
        for block in blocks(path, name):
            digest.update(block)
            with _copying(path, scratch):
                _write_all(copy, block)
        yield stack.enter_context(pa.PythonFile(copy, mode="r")), digest.hexdigest()


def _check_room(uri: str, directory: str) -> None:
    needed, free = stamp(uri).size, shutil.disk_usage(directory).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed / 1e6:.1f} MB are needed, {free / 1e6:.1f} MB free")


def _write_all(file: RawIOBase, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]


@contextmanager
def _copying(uri: str, directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{uri}: no copy of it can be kept in {directory} ({error.strerror}). Make room, or "
            "name another place with --cache-dir."
        ) from error
