"""The order of blocks and rows: a function of (seed, reading), so that nothing is stored.

A reading interleaves blocks drawn at random from the whole data, in groups that are read and
visited together with their rows permuted: other rows share memory in each reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.rows import BLOCK_NONZEROS, BLOCK_ROWS, Block, Chunk

GROUP = 8
"""A group has about the rows or nonzeros of this many of the largest blocks at most: more mix a
sorted file better and take more memory (``benchmarks/reading.py``)."""

WINDOW, RUN = 1 << 15, 128
"""Rows that are visited in a random order of their own: this many fit in the processor's cache, and
visits are 1.5 times faster than in a random order of all rows. They come from distant places, in
runs of RUN rows, other ones in each mini-epoch: as many mini-epochs are needed then
(``benchmarks/out_of_core.py``)."""

_BLOCKS, _ROWS, _ACTIVE, _DRAWN = 0, 1, 2, 3


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def _permutation(rows: int, *key: int) -> NDArray[np.int64]:
    order = np.empty(rows, dtype=np.int64)
    kernels.shuffle(_start(*key), order)
    return order


def _start(*key: int) -> int:
    """The state from which numbers are drawn."""
    return xxhash.xxh3_64_intdigest(" ".join(map(str, key)).encode())


def block_groups(seed: int, reading: int, blocks: Sequence[Block]) -> list[list[int]]:
    """The numbers of the blocks of a reading, in groups that are read and visited together:
    as few as ``GROUP`` allows, all of about as many rows. But three at least, for one is read while
    another is visited, if that leaves two blocks to mix in each."""
    number = len(blocks)
    if number <= 1:
        return [[0]][:number]  # to make a generator takes longer than to read a short block
    shuffled = _generator(seed, reading, _BLOCKS).permutation(number)
    rows = np.cumsum(np.array([block.rows for block in blocks], dtype=np.int64)[shuffled])
    nonzeros = sum(block.nonzeros for block in blocks)
    by_size = -(-int(rows[-1]) // (GROUP * BLOCK_ROWS)), -(-nonzeros // (GROUP * BLOCK_NONZEROS))
    groups = max(*by_size, min(3, number // 2), min(2, number))
    inner = 1 + np.searchsorted(rows, rows[-1] * np.arange(1, groups) // groups)
    borders = sorted({0, *inner.tolist(), number})
    return [shuffled[start:stop].tolist() for start, stop in pairwise(borders)]


def visiting_order(settings: Settings, reading: int, chunk: Chunk) -> NDArray[np.int64]:
    """Positions of a chunk's rows in the order of visits."""
    return _permutation(len(chunk), settings.seed, reading, _ROWS, chunk.ranges[0][0])


@dataclass(frozen=True, slots=True)
class Turn:
    """The number of a mini-epoch over rows in memory. Its order is a function of this number."""

    seed: int
    reading: int
    mini_epoch: int

    def all(self, rows: int) -> NDArray[np.int64]:
        """Return the positions of rows in the order of visits: a permutation; of more than WINDOW
        rows one of runs of RUN rows, which is permuted again within windows."""
        key = self.seed, self.reading, _ACTIVE, self.mini_epoch
        if rows <= WINDOW:
            return _permutation(rows, *key)
        runs = _permutation(-(-rows // RUN), *key)
        positions = (RUN * runs[:, np.newaxis] + np.arange(RUN)).ravel()
        positions = positions[positions < rows]
        for first in range(0, rows, WINDOW):
            window = positions[first : first + WINDOW]
            window[:] = window[_permutation(len(window), *key, first)]
        return positions

    def some(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions ``chosen`` in the order of visits."""
        return chosen[self.all(len(chosen))]

    def drawn(self, weights: NDArray[np.float64]) -> NDArray[np.int64]:
        """Positions in the order in which they are drawn, one after another without replacement,
        each with a chance in proportion to its weight > 0 (Efraimidis and Spirakis, Information
        Processing Letters 97, 2006: they rise by E/weight, E exponential)."""
        generator = _generator(self.seed, self.reading, _DRAWN, self.mini_epoch)
        return np.argsort(generator.standard_exponential(len(weights)) / weights, kind="stable")
