"""The labels of rows as codes: one a row, or several.

Where a row has several labels, row i has ``codes[offsets[i]:offsets[i + 1]]``; elsewhere offsets
are None and it has ``codes[i]``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]


def offsets_of(lengths: NDArray[np.integer]) -> Offsets:
    """Offsets from 0 of rows of these lengths; int64, shape (rows + 1,).

    Examples
    --------
    >>> offsets_of(np.array([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def cut_codes(
    codes: NDArray[np.int32], offsets: Offsets | None, start: int, stop: int
) -> tuple[NDArray[np.int32], Offsets | None]:
    """The codes of rows ``start`` … ``stop - 1`` as a view, and their offsets from 0.

    Examples
    --------
    >>> codes, offsets = cut_codes(np.array([4, 5, 6]), np.array([0, 2, 2, 3]), 1, 3)
    >>> codes.tolist(), offsets.tolist()
    ([6], [0, 0, 1])
    """
    if offsets is None:
        return codes[start:stop], None
    first, last = int(offsets[start]), int(offsets[stop])
    return codes[first:last], offsets[start : stop + 1] - first


def row_of_code(offsets: Offsets | None, at: int) -> int:
    """The row that the code at a position belongs to.

    Examples
    --------
    >>> row_of_code(None, 2), row_of_code(np.array([0, 2, 2, 3]), 2)
    (2, 2)
    """
    return at if offsets is None else int(np.searchsorted(offsets, at, side="right")) - 1


def repeated(codes: NDArray[np.int32], offsets: Offsets | None) -> tuple[int, int] | None:
    """The first row that has a label twice, and that label's code; None where no row has.

    Examples
    --------
    >>> repeated(np.array([1, 0, 1, 1]), np.array([0, 2, 4])), repeated(np.array([1, 1]), None)
    ((1, 1), None)
    """
    if offsets is None or (lengths := np.diff(offsets)).max(initial=0) <= 1:
        return None
    rows = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    keys = np.sort(rows << 32 | codes)
    again = keys[1:][keys[1:] == keys[:-1]]
    return (int(again[0]) >> 32, int(again[0]) & 0xFFFFFFFF) if len(again) else None
