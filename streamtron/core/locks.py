"""Who may use a directory: one process that writes, or any that read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamtron.core.errors import DataError, MachineError
from streamtron.core.sealed import reading_from

LOCK = "lock"

LOOK, LOOKS = 0.02, 10
"""Seconds between attempts to lock, and how many of them may fail: a look takes less."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """An flock, which dies with its process; who has it is told in the file, for messages only.

    Raises
    ------
    DataError : a symbolic link in the directory, through which files elsewhere would be changed.
    MachineError : another process uses the directory; it cannot be written.
    """
    _refuse_links(directory)
    path = directory / LOCK
    with reading_from(directory):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        _lock_soon(descriptor, directory)
        with contextlib.suppress(OSError):  # a full disk is told of by what needs it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def shared(directory: Path) -> Iterator[None]:
    """The same for a process that only reads: nothing is written, and others may read, too.

    Raises
    ------
    MachineError : a process writes there.
    """
    with reading_from(directory):
        try:
            descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:  # a copy without it
            descriptor = None
    try:
        if descriptor is not None:
            _lock(descriptor, fcntl.LOCK_SH, directory)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def holder(directory: Path) -> str | None:
    """Who writes in the directory just now, in words; None if nobody does.

    Raises
    ------
    MachineError : its lock cannot be read.
    """
    try:
        with shared(directory):
            return None
    except _InUseError as error:
        return error.holder


class _InUseError(MachineError):
    """Another process uses the directory."""

    def __init__(self, directory: Path, who: str) -> None:
        super().__init__(f"{directory}: in use by {who}. Wait for it, or stop it.")
        self.holder = who


def _lock_soon(descriptor: int, directory: Path) -> None:
    """Take the lock, if need be after those who have it for a moment to look at the directory."""
    for _ in range(LOOKS):
        with contextlib.suppress(_InUseError):
            return _lock(descriptor, fcntl.LOCK_EX, directory)
        time.sleep(LOOK)
    return _lock(descriptor, fcntl.LOCK_EX, directory)


def _lock(descriptor: int, how: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino != (directory / LOCK).stat().st_ino:
            raise BlockingIOError  # removed by a run that was refused just now
    except OSError as error:
        who = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        raise _InUseError(directory, who or "another process") from error


def _refuse_links(directory: Path) -> None:
    """Refuse a directory in which a name leads elsewhere: it may have come from anybody."""
    for here, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(here, name)
            if os.path.islink(path):
                raise DataError(
                    f"{path}: a symbolic link, and what is written here would change what it leads "
                    "to. Put the file or directory itself there; a cache elsewhere is named by "
                    "--cache-dir."
                )
