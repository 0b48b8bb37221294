"""The bytes of cache files: read to where they are wanted, hashed on the way."""

from __future__ import annotations

import os
from collections import OrderedDict

import xxhash

from streamtron.core.errors import FileDamaged
from streamtron.core.sealed import reading_from

_STEP = 1 << 20  # read and hashed at once: what was just read is still in the processor's cache


class OpenFiles:
    """Descriptors of the files last read from, at most ``most`` at a time; a context manager."""

    def __init__(self, most: int = 64) -> None:
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._most = most

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def forget(self, path: str) -> None:
        """Close a file, in whose place there is another one now."""
        os.close(self._descriptors.pop(path))

    def descriptor(self, path: str) -> int:
        """The file's descriptor, open for reading."""
        if path not in self._descriptors:
            with reading_from(path):
                self._descriptors[path] = os.open(path, os.O_RDONLY)
            if len(self._descriptors) > self._most:
                os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors.move_to_end(path)
        return self._descriptors[path]


def fill(
    descriptor: int, path: str, offset: int, target: memoryview, digest: xxhash.xxh3_64
) -> None:
    """Read bytes from ``offset`` on until ``target`` is full, and give them to ``digest``.

    Raises
    ------
    FileDamaged : the file ends before.
    MachineError : it cannot be read.
    """
    done = 0
    while done < len(target):
        step = target[done : done + _STEP]
        with reading_from(path):
            count = os.preadv(descriptor, [step], offset + done)
        if not count:
            raise damaged(path, "it is cut off")
        digest.update(step[:count])
        done += count


def read_bytes(descriptor: int, path: str, offset: int, count: int) -> bytes:
    """So many bytes from ``offset`` on. Raises what ``fill`` raises."""
    data = bytearray(count)
    fill(descriptor, path, offset, memoryview(data), xxhash.xxh3_64())
    return bytes(data)


def damaged(path: str, what: str) -> FileDamaged:
    """The error about a cache file that is not as it was written."""
    return FileDamaged(
        f"{path}, {what}. This cache file is damaged: remove it and run again, "
        "and it is made afresh; have an eye on that disk."
    )
