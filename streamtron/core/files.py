"""Read small files, write atomically, keep room on disks, lock directories, make scratch ones.

An OSError becomes a `MachineError` that names the file, so that callers need not translate it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from streamtron.core.errors import (
    DataError,
    InUseError,
    MachineError,
    SettingsError,
    StreamtronError,
)
from streamtron.core.limits import out_of_memory
from streamtron.core.text import format_size, short

_log = logging.getLogger(__name__)

SMALL, MOST_DOTS = 1 << 17, 500
"""Bytes of a file that is written by hand (settings, jobs, the address of a scheduler), and dots in
a line of it, at most: dotted keys of TOML take quadratic time."""

CACHE_REMEDY = "Name another place with --cache-dir."


def absolute(path: str | os.PathLike[str], what: str = "outputs") -> str:
    """Return a local path from the root on; refuse a URI, of which pathlib may have cut a slash."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text := as_path(path)):
        raise SettingsError(f"{text}: {what} are local files. Name a local one, and copy it.")
    return os.path.join(os.getcwd(), text)


@contextmanager
def reading_from(path: str | os.PathLike[str]) -> Iterator[None]:
    """Translate an OSError or MemoryError of the enclosed read into a MachineError."""
    as_path(path)
    try:
        yield
    except OSError as error:
        remedy = "Check the path and its rights."
        if error.errno == errno.EISDIR:
            remedy = "Name a file; of a run give MODEL, not MODEL.run."
        raise MachineError(
            f"{path}: cannot be read ({error.strerror or error}). {remedy}"
        ) from error
    except MemoryError as error:
        advice = f"{out_of_memory()}, or check that it is the right file."
        raise MachineError(f"{path}: cannot be read, {advice}") from error


def at_most(size: float) -> Callable[[str, int], int]:
    """Return an opener for ``open`` that refuses files of more bytes, pipes and devices."""

    def opener(path: str, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if not _is_on_disk(status.st_mode):
            refusal = "not a file but a pipe or a device. Copy it to a file."
        elif status.st_size > size:
            refusal = (
                f"{status.st_size:,} bytes, where {size:,} are the most that is read. Check that "
                "it is the right file."
            )
        else:
            return descriptor
        os.close(descriptor)
        raise DataError(f"{path}: {refusal}")

    return opener


regular = at_most(math.inf)
"""Opener that refuses pipes and devices."""


def _is_on_disk(mode: int) -> bool:
    """Tell whether a mode is that of a file or a directory, which ``open`` itself refuses."""
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def as_path(path: str | os.PathLike[str]) -> str:
    """Return a path as text; a SettingsError for bytes, and for what no file can be called."""
    with suppress(UnicodeEncodeError, TypeError):
        if b"\0" not in os.fsencode(path) and isinstance(text := os.fspath(path), str):
            return text
    raise SettingsError(f"{short(path)} is no name of a file: expected text without NUL.")


def parse_json(text: str | bytes, loads: Callable[..., Any] = json.loads) -> Any:
    """Parse JSON, or what ``loads`` reads; whatever is wrong with the text is a ValueError."""
    try:
        return loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Read the tables of a TOML file that should hold ``what``; a SettingsError if it cannot be."""
    import tomllib

    try:
        with open(as_path(path), "rb", opener=at_most(SMALL)) as file:
            text = file.read()
        if any(line.count(b".") > MOST_DOTS for line in text.splitlines()):
            raise ValueError(f"more than {MOST_DOTS} dots in a line, so perhaps as deep a key")
        return dict(parse_json(text.decode(), tomllib.loads))
    except StreamtronError as error:
        raise SettingsError(str(error)) from error
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML {what}: {error}.") from error


def write_atomically(path: str | os.PathLike[str], parts: Iterable[bytes | memoryview]) -> None:
    """Write a file completely or not at all: write a new file, sync it, rename it over ``path``.

    A symbolic link is followed, and a replaced file keeps its permissions. A pipe or a device is
    not replaced: the parts are appended to it. After a MachineError an existing file is unchanged.
    """
    path = absolute(path)
    target = Path(os.path.realpath(path))
    new = target.with_name(f"{_temporary(target)}{os.urandom(8).hex()}")
    with writing_to(os.fspath(path)):
        if is_stream(path):
            with open(path, "ab") as stream:
                stream.writelines(parts)
            return
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        try:
            # never readable by more users than the file that it replaces
            private = None if mode is None else partial(os.open, mode=0o600)
            with open(new, "xb", opener=private) as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                file.writelines(parts)
                flush(file)
            os.replace(new, target)
        finally:
            new.unlink(missing_ok=True)
        sync_directory(target.parent)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is a pipe, a device or an open file (``/dev/stdout``), never replaced."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    target = os.readlink(real) if os.path.islink(real) else real
    if real.startswith("/proc/") or target.startswith("/proc/"):
        return True
    with suppress(OSError):
        return not _is_on_disk(os.stat(path).st_mode)
    return False


def remove_half_written(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files of killed calls of ``write_atomically(path)``; none may run."""
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


@contextmanager
def nothing_empty(*directories: str | os.PathLike[str] | None) -> Iterator[None]:
    """Remove the directories that were not there before, the last one first, if they are empty in
    the end."""
    new = [path for path in directories if path is not None and not os.path.lexists(path)]
    try:
        yield
    finally:
        for directory in reversed(new):
            with suppress(OSError):  # it is not empty, or was not made
                os.rmdir(directory)


@contextmanager
def writing_to(path: str, remedy: str = "", what: str = "cannot be written") -> Iterator[None]:
    """Turn an OSError into a MachineError with the path, the reason and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what, remedy = "the disk is full", f"Make room. {remedy}"
        sentences = f"{path}: {what} ({error.strerror or error}). {remedy}".rstrip()
        raise MachineError(sentences) from error


def check_room(directory: str, needed: float, what: str, remedy: str) -> None:
    """Refuse to go on if the disk has less than ``needed`` bytes free."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise MachineError(
            f"{what} {format_size(needed)}, and {format_size(free)} are free. Make room. {remedy}"
        )


def flush(file: BinaryIO) -> int:
    """Force a file to the disk; return its size in bytes."""
    file.flush()
    os.fsync(file.fileno())
    return file.tell()


LOCK = "lock"

LOCK_TRIES, LOCK_WAIT = 10, 0.02
"""Tries to lock a directory, and seconds between them: a reader's look takes less."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory for writing with ``flock``, which ends with the process.

    A symbolic link in it, which may come from an untrusted source, is a DataError; another process
    that uses it a MachineError.
    """
    for path in directory.rglob("*"):
        if path.is_symlink():
            raise DataError(
                f"{path}: a symbolic link, and writing here would change what it leads to. "
                "Put the file or directory itself there; a cache elsewhere is named by --cache-dir."
            )
    with _locked(directory, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT) as descriptor:
        with suppress(OSError):  # only for messages: a full disk is reported by what needs it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield


def shared(directory: Path) -> AbstractContextManager[object]:
    """Lock a directory for reading; a MachineError if another process is writing there."""
    if not os.path.lexists(directory / LOCK):  # a copy without the lock file
        return nullcontext()
    return _locked(directory, fcntl.LOCK_SH, os.O_RDONLY | os.O_NONBLOCK)


def lock_holder(directory: Path) -> str | None:
    """Name the process that is writing in a directory; None if there is none."""
    try:
        with shared(directory):
            return None
    except InUseError as error:
        return error.holder


@contextmanager
def _locked(directory: Path, kind: int, flags: int) -> Iterator[int]:
    """Open and lock the file of a directory; retry, for a reader holds it only for a moment."""
    where, writes = str(directory), flags & os.O_RDWR
    with writing_to(where, "Check its rights.") if writes else reading_from(where):
        descriptor = os.open(directory / LOCK, flags | os.O_NOFOLLOW, 0o644)
    try:
        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_ino == (directory / LOCK).stat().st_ino:
                    break
                raise BlockingIOError  # another run has just removed the file
            except OSError as error:
                if not tries_left:
                    holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                    raise InUseError(directory, holder or "another process") from error
            time.sleep(LOCK_WAIT)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def scratch_directory(prefix: str, where: str | None = None) -> Iterator[str]:
    """Create a directory that is removed with all its contents when the context ends.

    Its name begins with ``prefix``; it is made in ``where`` or the system's temporary directory,
    and locked against ``remove_scratch``.
    """
    where = tempfile.gettempdir() if where is None else where
    with writing_to(where, "Name another place."):
        directory, descriptor = _locked_scratch(prefix, where)
    try:
        yield directory
    finally:
        gone = f"{directory}-gone"  # where a cancelled task writes no more files
        with suppress(FileNotFoundError):
            os.rename(directory, gone)
        shutil.rmtree(gone, ignore_errors=True)
        os.close(descriptor)
        if os.path.exists(gone):  # not worth losing the run's result
            _log.warning("%s: cannot be removed. Remove it by hand.", gone)


def _locked_scratch(prefix: str, where: str) -> tuple[str, int]:
    """Create a directory; return it with the descriptor that locks it."""
    while True:
        directory = tempfile.mkdtemp(prefix=prefix, dir=where)
        with suppress(FileNotFoundError):
            descriptor = os.open(directory, os.O_RDONLY)
            with suppress(OSError):  # not on every disk, and there none is taken for abandoned
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.exists(directory):
                return directory, descriptor
            os.close(descriptor)  # it was taken for abandoned before it was locked


def remove_scratch(prefix: str, where: str) -> None:
    """Remove the scratch directories that killed processes left in ``where``."""
    for path in Path(where).iterdir():
        if not path.name.startswith(prefix):
            continue
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(descriptor)
