"""The order of blocks and rows: a function of (seed, reading), so that nothing is stored.

Later readings interleave GROUP blocks drawn at random from the whole data, with their rows
permuted. In files sorted by label or day a group mixes GROUP distant places.
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
from streamtron.core.rows import Chunk, ChunkSource

GROUP = 8
"""Blocks interleaved at a time in all readings but the first. More mix a sorted file better and
take more memory."""

_BLOCKS, _ROWS, _ACTIVE, _DRAWN, _SOME = 0, 1, 2, 3, 4


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def _permutation(rows: int, *key: int) -> NDArray[np.int64]:
    order = np.empty(rows, dtype=np.int64)
    kernels.shuffle(_start(*key), order)
    return order


def _start(*key: int) -> int:
    """The state from which numbers are drawn."""
    return xxhash.xxh3_64_intdigest(" ".join(map(str, key)).encode())


def block_groups(seed: int, reading: int, blocks: int) -> list[Sequence[int]]:
    """The blocks of a later reading, in groups that are read and visited together: as few of at
    most ``GROUP`` as there can be, all of about a size. But three at least, for one is read while
    another is visited, if that leaves two blocks to mix in each.

    Examples
    --------
    >>> groups = block_groups(seed=0, reading=1, blocks=20)
    >>> sorted(b for group in groups for b in group) == list(range(20)), len(groups)
    (True, 3)
    """
    shuffled = _generator(seed, reading, _BLOCKS).permutation(blocks).tolist()
    groups = max(-(-blocks // GROUP), min(3, blocks // 2), min(2, blocks))
    borders = np.rint(np.linspace(0, blocks, groups + 1)).astype(np.int64).tolist()
    return [shuffled[start:stop] for start, stop in pairwise(borders)]


def reading_order(
    settings: Settings, reading: int, source: ChunkSource
) -> list[Sequence[int]] | None:
    """Groups of blocks in the order of a reading; None: as they come (the first reading, for text
    has no random access, and ``--order sequential``)."""
    if not settings.random or reading == 0:
        return None
    return block_groups(settings.seed, reading, len(source.blocks))


def visiting_order(settings: Settings, reading: int, chunk: Chunk) -> NDArray[np.int64]:
    """Positions of a chunk's rows in the order of visits."""
    if not settings.random:
        return file_order(len(chunk))
    return row_order(settings.seed, reading, chunk.ranges[0][0], len(chunk))


def row_order(seed: int, reading: int, first_row: int, rows: int) -> NDArray[np.int64]:
    """Positions of a chunk's rows in the order of visits; ``first_row`` identifies the chunk."""
    return _permutation(rows, seed, reading, _ROWS, first_row)


@dataclass(frozen=True, slots=True)
class Turn:
    """The number of a mini-epoch over rows in memory, of which its order is a function. Learners at
    the same turn visit rows in the same order, whichever rows each one visits: they can be batched.

    Parameters
    ----------
    seed, reading, mini_epoch : of which the orders are a function.
    random : False = as the rows lie.
    """

    seed: int
    reading: int
    mini_epoch: int
    random: bool = True

    @property
    def when(self) -> tuple[int, int]:
        """Later turns are greater."""
        return self.reading, self.mini_epoch

    def all(self, rows: int) -> NDArray[np.int64]:
        """The positions of so many rows, in the order of visits."""
        if not self.random:
            return file_order(rows)
        return _permutation(rows, self.seed, self.reading, _ACTIVE, self.mini_epoch)

    def some(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions ``chosen`` (rising) in the order of visits; two of them come in the same
        order whichever others are chosen.

        Examples
        --------
        >>> turn, few, more = Turn(0, 1, 2), np.array([3, 8, 9]), np.arange(2, 12)
        >>> [i for i in turn.some(more).tolist() if i in few] == turn.some(few).tolist()
        True
        """
        if not self.random:
            return chosen
        order = np.empty(len(chosen), dtype=np.int64)
        room = np.empty((2, len(chosen)), dtype=np.uint64)
        places = np.zeros((2, kernels.DIGITS), dtype=np.int64)
        start = _start(self.seed, self.reading, _SOME, self.mini_epoch)
        kernels.scatter(start, chosen, room, places, order)
        return order


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
