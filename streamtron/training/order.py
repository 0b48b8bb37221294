"""Which chunk, which row, when: a pure function of (seed, reading), nothing to store.

Bias, stated: later readings interleave GROUP blocks drawn at random from the whole data, rows
permuted within the group. On files sorted by label or day a group mixes GROUP distant places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron import kernels

GROUP = 8
"""Blocks interleaved at a time in all readings but the first."""

_BLOCKS, _ROWS, _ACTIVE, _DRAWN = 0, 1, 2, 3


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def _permutation(rows: int, *key: int) -> NDArray[np.int64]:
    order = np.empty(rows, dtype=np.int64)
    kernels.shuffle(xxhash.xxh3_64_intdigest(" ".join(map(str, key)).encode()), order)
    return order


def block_groups(seed: int, reading: int, blocks: int) -> list[Sequence[int]]:
    """The blocks of a later reading, in groups of ``GROUP`` that are read and visited together; of
    two at least, so that one is read while the other is visited.

    Examples
    --------
    >>> groups = block_groups(seed=0, reading=1, blocks=20)
    >>> sorted(b for group in groups for b in group) == list(range(20)), len(groups)
    (True, 3)
    """
    shuffled = _generator(seed, reading, _BLOCKS).permutation(blocks).tolist()
    size = max(1, min(GROUP, (blocks + 1) // 2))
    return [shuffled[start : start + size] for start in range(0, blocks, size)]


def row_order(seed: int, reading: int, first_row: int, rows: int) -> NDArray[np.int64]:
    """Positions of a chunk's rows in the order of visits; ``first_row`` tells chunks apart."""
    return _permutation(rows, seed, reading, _ROWS, first_row)


def active_order(seed: int, reading: int, mini_epoch: int, rows: int) -> NDArray[np.int64]:
    """Positions of the active set's rows in the order of visits of one mini-epoch."""
    return _permutation(rows, seed, reading, _ACTIVE, mini_epoch)


def drawn_order(
    seed: int, reading: int, draw: int, weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Positions in the order in which they are drawn, one after another without replacement, each
    with a chance in proportion to its weight > 0 (Efraimidis and Spirakis, Information Processing
    Letters 97, 2006: they rise by E/weight, E exponential)."""
    waits = _generator(seed, reading, _DRAWN, draw).standard_exponential(len(weights))
    return np.argsort(waits / weights, kind="stable")


def file_order(rows: int) -> NDArray[np.int64]:
    """Rows as they come: the paper's order."""
    return np.arange(rows, dtype=np.int64)
