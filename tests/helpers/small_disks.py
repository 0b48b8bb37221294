"""File systems in memory that are soon full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = 4096


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A file system in memory with its own limits, or a skip where we may not make one."""
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a small file system: mount says {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def fill(path: Path, leave: int) -> None:
    """Take all of a disk but so many bytes."""
    free = os.statvfs(path.parent)
    path.write_bytes(bytes(free.f_bavail * free.f_frsize - leave))
