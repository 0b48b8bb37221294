"""Write to disks: errors that say what to do, room for what is to come, files that are safe."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from streamtron.core.config import format_size
from streamtron.core.errors import MachineError

CACHE_REMEDY = (
    "Name another place with --cache-dir, or fit without a cache: --order sequential and no "
    "--cache-dir."
)


@contextmanager
def writing_to(path: str, remedy: str, what: str = "cannot be written") -> Iterator[None]:
    """Turn an OSError into a MachineError with the path, the reason and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what, remedy = "the disk is full", f"Make room. {remedy}"
        raise MachineError(f"{path}: {what} ({error.strerror or error}). {remedy}") from error


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
