"""Read the bytes of cache files and hash them."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from streamtron.core.errors import FileDamaged
from streamtron.core.files import reading_from

_STEP = 1 << 20  # read and hashed at once: what was just read is still in the processor's cache


def fill(path: str, offset: int, targets: Iterable[memoryview]) -> int:
    """Read a file from ``offset`` on into all targets; return xxh3-64 of these bytes."""
    digest = xxhash.xxh3_64()
    with reading_from(path), open(path, "rb", buffering=0) as file:
        file.seek(offset)
        for target in targets:
            done = 0
            while done < len(target):
                step = target[done : done + _STEP]
                count = file.readinto(step)
                if not count:
                    raise damaged(path, "it is cut off")
                digest.update(step[:count])
                done += count
    return digest.intdigest()


def read_bytes(path: str, offset: int, count: int) -> bytes:
    """Read so many bytes from ``offset`` on."""
    data = bytearray(count)
    fill(path, offset, [memoryview(data)])
    return bytes(data)


def damaged(path: str, what: str) -> FileDamaged:
    """Make the error about a damaged cache file."""
    return FileDamaged(
        f"{path}, {what}. This cache file is damaged: remove it and run again, "
        "and it is rebuilt. Check that disk."
    )
