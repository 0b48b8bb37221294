"""Read small files, write atomically, lock directories, create scratch directories.

An OSError becomes a `MachineError` that names the file, so that callers need not translate it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from streamtron.core.errors import DataError, MachineError, SettingsError, StreamtronError

_log = logging.getLogger(__name__)

# --- reading ---

SMALL = 1 << 20
"""Largest file, in bytes, that is written by hand: settings, jobs, the address of a scheduler."""


@contextmanager
def reading_from(path: str | os.PathLike[str]) -> Iterator[None]:
    """Translate an OSError or MemoryError of the enclosed read into a MachineError."""
    try:
        yield
    except OSError as error:
        raise MachineError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except MemoryError as error:
        raise MachineError(f"{path}: does not fit in memory. Give the right file.") from error


def regular(path: str, flags: int) -> int:
    """Open a file for ``open(..., opener=regular)``; refuse a pipe, on which a read could block.

    Raises
    ------
    DataError : a pipe, a socket or a device.

    Examples
    --------
    >>> open("/dev/null", opener=regular)
    Traceback (most recent call last):
    ...
    streamtron.core.errors.DataError: /dev/null: not a file but a pipe or a device. \
Copy it to a file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # ``open`` itself refuses a directory
        os.close(descriptor)
        raise DataError(f"{path}: not a file but a pipe or a device. Copy it to a file.")
    return descriptor


def at_most(size: int) -> Callable[[str, int], int]:
    """Return an opener like ``regular`` that also refuses a file of more than ``size`` bytes."""

    def opener(path: str, flags: int) -> int:
        descriptor = regular(path, flags)
        found = os.fstat(descriptor).st_size
        if found <= size:
            return descriptor
        os.close(descriptor)
        raise DataError(
            f"{path}: {found:,} bytes, where {size:,} are the most that is read. Check that it is "
            "the right file."
        )

    return opener


KEY_PARTS = 16
"""Most parts of a dotted TOML key; the settings need two."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?m)^[ \t]*\[*[ \t]*(?:{_PART}[ \t]*\.[ \t]*){{{KEY_PARTS}}}{_PART}")


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Read the tables of a TOML file.

    Parameters
    ----------
    what : what the file should hold, for messages: ``"settings"``.

    Raises
    ------
    SettingsError : it cannot be read, is not TOML, is nested a hundred deep, or has a number of
        thousands of digits.
    """
    refused = f"{path}: cannot be read as TOML {what}"
    try:
        with open(path, "rb", opener=at_most(SMALL)) as file:
            text = file.read().decode()
        if _LONG_KEY.search(text):  # the parser's memory grows with the square of a key's parts
            raise SettingsError(f"{refused}: a key of more than {KEY_PARTS} parts. Shorten it.")
        return tomllib.loads(text)
    except StreamtronError as error:
        raise SettingsError(str(error)) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{refused}: {error}.") from error
    except ValueError as error:  # Python's limit of the digits of an integer
        raise SettingsError(f"{refused}: a number of thousands of digits. Shorten it.") from error
    except RecursionError as error:
        raise SettingsError(f"{refused}: nested too deep. Flatten it.") from error


# --- atomic writes ---


def write_atomically(path: str | os.PathLike[str], parts: Iterable[bytes | memoryview]) -> None:
    """Write a file completely or not at all: write a new file, sync it, rename it over ``path``.

    A symbolic link is followed, and a replaced file keeps its permissions. A pipe or a device is
    not replaced: the parts are appended to it.

    Raises
    ------
    MachineError : the write failed; an existing file is unchanged.
    """
    try:
        if is_stream(path):
            with open(path, "ab") as stream:
                stream.writelines(parts)
        else:
            _replace(Path(os.path.realpath(path)), parts)
    except OSError as error:
        raise MachineError(f"{path}: cannot be written ({error.strerror or error}).") from error


def _replace(target: Path, parts: Iterable[bytes | memoryview]) -> None:
    new = target.with_name(f"{_temporary(target)}{secrets.token_hex(8)}")
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    try:
        # never readable by more users than the file that it replaces
        private = None if mode is None else partial(os.open, mode=0o600)
        with open(new, "xb", opener=private) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, target)
    finally:
        new.unlink(missing_ok=True)
    sync_directory(target.parent)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is a pipe, a device or an open file (``/dev/stdout``), never replaced.

    Examples
    --------
    >>> is_stream("/dev/null"), is_stream("/dev/stdout"), is_stream("nonesuch")
    (True, True, False)
    """
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    if real.startswith("/proc/") or (
        os.path.islink(real) and os.readlink(real).startswith("/proc/")
    ):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def remove_half_written(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files of killed calls of ``write_atomically(path)``.

    No other process may be writing ``path``.
    """
    target = Path(os.path.realpath(path))
    for left in target.parent.glob(f"{_temporary(target)}*"):
        left.unlink(missing_ok=True)


def _temporary(target: Path) -> str:
    """Return the prefix of a target's temporary files; each target has its own."""
    return f".streamtron-{xxhash.xxh3_64_hexdigest(os.fsencode(target.name))}-"


def sync_directory(directory: Path) -> None:
    """Flush the names in a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- locks of directories ---

LOCK = "lock"

LOCK_ATTEMPTS, LOCK_WAIT = 10, 0.02
"""Attempts to lock a directory, and seconds between them: a reader's look takes less."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory for writing with ``flock``, which ends with the process.

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
        with suppress(OSError):  # only for messages: a full disk is reported by what needs it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def shared(directory: Path) -> Iterator[None]:
    """Lock a directory for reading; other readers may do the same, and nothing is written.

    Raises
    ------
    MachineError : another process is writing there.
    """
    with reading_from(directory):
        try:
            descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:  # a copy without the lock file
            descriptor = None
    try:
        if descriptor is not None:
            _lock(descriptor, fcntl.LOCK_SH, directory)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def lock_holder(directory: Path) -> str | None:
    """Name the process that is writing in a directory; None if there is none.

    Raises
    ------
    MachineError : the lock cannot be read.
    """
    try:
        with shared(directory):
            return None
    except _InUseError as error:
        return error.holder


class _InUseError(MachineError):
    """Another process uses the directory."""

    def __init__(self, directory: Path, holder: str) -> None:
        super().__init__(f"{directory}: in use by {holder}. Wait for it, or stop it.")
        self.holder = holder


def _lock_soon(descriptor: int, directory: Path) -> None:
    """Take the write lock; retry while a reader has it for a moment."""
    for _ in range(LOCK_ATTEMPTS):
        with suppress(_InUseError):
            return _lock(descriptor, fcntl.LOCK_EX, directory)
        time.sleep(LOCK_WAIT)
    return _lock(descriptor, fcntl.LOCK_EX, directory)


def _lock(descriptor: int, kind: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino != (directory / LOCK).stat().st_ino:
            raise BlockingIOError  # another run has just removed the file
    except OSError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        raise _InUseError(directory, holder or "another process") from error


def _refuse_links(directory: Path) -> None:
    """Refuse a directory with a symbolic link in it: it may come from an untrusted source."""
    for here, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(here, name)
            if os.path.islink(path):
                raise DataError(
                    f"{path}: a symbolic link, and what is written here would change what it leads "
                    "to. Put the file or directory itself there; a cache elsewhere is named by "
                    "--cache-dir."
                )


# --- scratch directories ---

_IN_USE = ".in-use"
"""The locked file of a scratch directory. A cache inside locks the directory for itself."""


@contextmanager
def scratch_directory(prefix: str, where: str | None = None) -> Iterator[str]:
    """Create a directory that is removed with all its contents when the context ends.

    Another process, such as a cancelled task, may still be writing: it then finds no directory of
    that name. Directories that killed processes of this machine left in ``where`` are removed
    first. The lock of a file inside tells them from those in use.

    Parameters
    ----------
    prefix : the beginning of its name.
    where : the parent directory; None = the system's directory of temporary files.

    Examples
    --------
    >>> with scratch_directory("example-") as directory:
    ...     os.mkdir(os.path.join(directory, "within"))
    >>> os.path.exists(directory)
    False
    """
    where = tempfile.gettempdir() if where is None else where
    prefix = f"{prefix}{socket.gethostname()}-"  # a lock may hold on this machine alone
    _remove_abandoned(prefix, where)
    new = tempfile.mkdtemp(prefix="new-", dir=where)
    with _scratch_lock(new):
        directory = os.path.join(where, prefix + os.path.basename(new).removeprefix("new-"))
        os.rename(new, directory)  # under this name it always has its lock
        try:
            yield directory
        finally:
            _remove_scratch(directory)


def _remove_abandoned(prefix: str, where: str) -> None:
    """Remove the scratch directories of processes that have ended."""
    with suppress(OSError):  # tidying must not fail the run
        for name in os.listdir(where):
            if name.startswith(prefix):
                left = os.path.join(where, name)
                with suppress(OSError), _scratch_lock(left) as is_ours:
                    if is_ours:
                        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _scratch_lock(directory: str) -> Iterator[bool]:
    """Lock a scratch directory if it is free; yield whether it is locked and owned by this user."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(os.path.join(directory, _IN_USE), flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except OSError:  # in use, or the file system has no locks
            is_locked = False
        yield is_locked and os.fstat(descriptor).st_uid == os.getuid()
    finally:
        os.close(descriptor)


def _remove_scratch(directory: str) -> None:
    """Rename a directory, so that no more files appear in it, and remove it."""
    gone = f"{directory}-gone"
    with suppress(FileNotFoundError):
        os.rename(directory, gone)
    shutil.rmtree(gone, ignore_errors=True)
    if os.path.exists(gone):  # not worth losing the run's result
        _log.warning("%s: cannot be removed. Remove it by hand.", gone)
