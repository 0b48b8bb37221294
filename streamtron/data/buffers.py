"""Reuse memory as soon as no array in it is alive."""

from __future__ import annotations

import sys
import threading

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 1 << 25
"""Bytes allocated at once, for several buffers: a large array comes in large pages."""

_ALIGNED = 64


class Buffers:
    """Reuse buffers for the rows of chunks: fresh memory takes longer to get than rows to be read.

    A buffer is reused only when no array in it is alive. For one thread.
    """

    def __init__(self) -> None:
        self._buffers: list[NDArray[np.uint8]] = []
        self._left = memoryview(b"")

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return a free buffer of at least ``size`` bytes, or a new one in the place of free ones
        that are too small."""
        free = [k for k in range(len(self._buffers)) if sys.getrefcount(self._buffers[k]) <= 2]
        for k in free:
            if len(self._buffers[k]) >= size:
                return self._buffers[k]
        self._buffers = [b for k, b in enumerate(self._buffers) if k not in free]
        self._buffers.append(self._new(size + size // 8))
        return self._buffers[-1]

    def _new(self, size: int) -> NDArray[np.uint8]:
        size = max(_ALIGNED, -(-size // _ALIGNED) * _ALIGNED)
        if size > len(self._left):
            self._left = np.empty(max(size, _AT_ONCE), np.uint8).data
        buffer, self._left = self._left[:size], self._left[size:]
        return np.frombuffer(buffer, np.uint8)  # what is made of it refers to it, not to the whole


_here = threading.local()


def spare(size: int) -> NDArray[np.uint8]:
    """Take a buffer of this thread; see ``Buffers.take``."""
    if not hasattr(_here, "buffers"):
        _here.buffers = Buffers()
    buffer: NDArray[np.uint8] = _here.buffers.take(size)
    return buffer
