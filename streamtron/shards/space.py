"""Memory for the rows of blocks, many from one allocation."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 1 << 24
"""Bytes asked for at once; what is never touched is never given."""

_ALIGNED = 64


class _Left(threading.local):
    """What this thread has asked for and not handed out; gone with the thread."""

    space = np.empty(0, np.uint8)


_left = _Left()


def fresh(count: int, dtype: type[np.generic]) -> NDArray[Any]:
    """An array of ``count`` items, uninitialized, aligned, to be kept as long as one likes.

    A system gives memory page by page as it is touched, which takes longer than reading a block
    into it; unless so much is asked for at once that large pages do (numpy asks for them from 4 MiB
    on). It is free again when nothing is kept that came from the same ``AT_ONCE``.

    Examples
    --------
    >>> [fresh(count, np.float32).shape for count in (3, 10**7)]
    [(3,), (10000000,)]
    """
    size = count * np.dtype(dtype).itemsize
    if 2 * size > AT_ONCE:
        return np.empty(count, dtype)
    if size > len(_left.space):
        _left.space = np.empty(AT_ONCE, np.uint8)
    array = _left.space[:size].view(dtype)
    _left.space = _left.space[-(-size // _ALIGNED) * _ALIGNED :]
    return array
