"""Directories for a while, which go at the end whoever still writes there; what a killed process
has left goes when the next one begins."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_IN_USE = ".in-use"
"""The file that is locked: not the directory, which a cache in it locks for itself."""

_log = logging.getLogger(__name__)


@contextmanager
def scratch_directory(prefix: str, where: str | None = None) -> Iterator[str]:
    """A new directory, removed with all it holds when the context ends.

    Another process may still be writing then: a task that a lost worker goes on with, or one that
    was cancelled and ends with its next chunk. It finds no directory of that name any more.

    Directories that killed processes of this machine have left in the same place are removed first:
    who uses one holds the lock of a file in it, which dies with the process.

    Parameters
    ----------
    prefix : how its name begins.
    where : in which directory; None = where the system has temporary files.

    Examples
    --------
    >>> with scratch_directory("example-") as directory:
    ...     os.mkdir(os.path.join(directory, "within"))
    >>> os.path.exists(directory)
    False
    """
    where = tempfile.gettempdir() if where is None else where
    prefix = f"{prefix}{socket.gethostname()}-"  # a lock may hold for this machine alone
    _remove_left(prefix, where)
    new = tempfile.mkdtemp(prefix="new-", dir=where)
    with _locked(new):
        directory = os.path.join(where, prefix + os.path.basename(new).removeprefix("new-"))
        os.rename(new, directory)  # under this name it is never seen without its lock
        try:
            yield directory
        finally:
            _remove(directory)


def _remove_left(prefix: str, where: str) -> None:
    """Remove the directories whose users are dead."""
    with suppress(OSError):  # it is no part of the work, and may be somebody else's
        for name in os.listdir(where):
            if name.startswith(prefix):
                left = os.path.join(where, name)
                with suppress(OSError), _locked(left) as is_ours:
                    if is_ours:
                        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(directory: str) -> Iterator[bool]:
    """Lock a directory, if nobody has; whether it is locked now, and this user's."""
    how = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(os.path.join(directory, _IN_USE), how, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except OSError:  # in use, or of a file system that has no such locks
            locked = False
        yield locked and os.fstat(descriptor).st_uid == os.getuid()
    finally:
        os.close(descriptor)


def _remove(directory: str) -> None:
    """Rename it first, or files that come while it is emptied would keep it there."""
    gone = f"{directory}-gone"
    with suppress(FileNotFoundError):
        os.rename(directory, gone)
    shutil.rmtree(gone, ignore_errors=True)
    if os.path.exists(gone):  # no reason to lose what the run has found
        _log.warning("%s: cannot be removed. Remove it by hand.", gone)
