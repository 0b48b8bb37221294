"""SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), by which rows are ordered and drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SPLITMIX64 = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)))
"""Its step and factors."""


def draw(start: int, numbers: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return the numbers that it draws at the states ``start`` + number · step, modulo 2⁶⁴.

    >>> [hex(number) for number in draw(0, np.array([1, 2])).tolist()]
    ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
    """
    step, first, second = SPLITMIX64
    bits = np.uint64(start) + numbers.astype(np.uint64) * step
    for shift, factor in ((30, first), (27, second)):
        bits ^= bits >> np.uint64(shift)
        bits *= factor
    bits ^= bits >> np.uint64(31)
    return bits
