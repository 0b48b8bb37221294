"""Memory that is used again as soon as nobody holds an array in it."""

from __future__ import annotations

import sys
import threading

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 1 << 25
"""Bytes asked for at once, for several buffers: memory that nothing was written to costs nothing,
and that of a large array comes in large pages, which are soon there."""

_ALIGNED = 64


class Buffers:
    """Buffers for the rows of chunks: fresh memory takes longer to get, page by page, than rows do
    to be read into it.

    A buffer is used again only when no array in it is alive any more, so what is in it may be kept
    as long as one likes; for who keeps nothing a handful of buffers does. For one thread.

    Examples
    --------
    >>> buffers = Buffers()
    >>> kept = buffers.take(800)[:10]
    >>> [len(buffers) for _ in range(3) if len(buffers.take(800)) >= 800]
    [2, 2, 2]
    """

    def __init__(self) -> None:
        self._buffers: list[NDArray[np.uint8]] = []
        self._left = memoryview(b"")

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self, size: int) -> NDArray[np.uint8]:
        """A buffer of ``size`` bytes or more that nobody holds any more, or a new one in the place
        of those too small."""
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


class _Here(threading.local):
    def __init__(self) -> None:
        self.buffers = Buffers()


_here = _Here()


def spare(size: int) -> NDArray[np.uint8]:
    """A buffer of this thread's, which are gone with the thread; see ``Buffers.take``."""
    return _here.buffers.take(size)
