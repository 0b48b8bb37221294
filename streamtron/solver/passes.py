"""Passes over the rows held, shared by threads, and cut into kernel calls that are short: a signal
waits for one at most.

Neither changes a bit. What is computed of each row by itself is written to its own place. Sums over
rows are sums over blocks, which are added in their order: the rows alone tell how many.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows, Vector, make_rows
from streamtron.core.threads import opened_threads

NONZEROS_A_CALL = 1 << 25
"""Nonzeros of one kernel call, in ``spans``: well under a second (``benchmarks/reading.py``), so
that Ctrl-C is obeyed."""

MULTIPLICATIONS = 16
"""Of a head's Gram matrix for each nonzero of its rows, about; see ``hessian.head_size``."""

GATHERED = 0.25
"""The part of the nonzeros that rows may have to be copied side by side: a product Hv over them
then takes a half to a quarter of the time (``benchmarks/second_order.py``)."""

SHORT = 1 << 13
"""Nonzeros at least of rows that are copied side by side: a pass over fewer takes less time."""

SHARED = 1 << 18
"""Nonzeros that a thread is to have, at least, about a millisecond of them: to wake one takes a
tenth of that."""

GRAM = 4
"""What a nonzero of a head's Gram matrix costs beside one of a product, about."""

BLOCKS, SUMMED = 16, 16
"""Blocks of a sum at most; and for each one more, nonzeros for a number of the sum: to add a block
up costs a thread alone a twentieth then (``benchmarks/cores.py``)."""

SAMPLED = 509
"""Nonzeros to one whose column is taken into account where columns are cut."""


def spans(rows: Rows, share: int = 1, threads: int = 1) -> list[slice]:
    """Stretches of rows with about NONZEROS_A_CALL / share nonzeros each, or fewer, so that all
    threads have some; one at least.

    >>> rows = Rows(np.array([0, 2, 3]), np.zeros(3, np.uint32), np.zeros(3, np.float32))
    >>> spans(rows)
    [slice(0, 2, None)]
    """
    number, first, last = len(rows.indptr) - 1, int(rows.indptr[0]), int(rows.indptr[-1])
    nonzeros = max(1, NONZEROS_A_CALL // share)
    if threads > 1:
        nonzeros = min(nonzeros, max(SHARED, -(-(last - first) // threads)))
    if nonzeros >= last - first:
        return [slice(0, number)]
    inner = np.unique(np.searchsorted(rows.indptr, np.arange(first + nonzeros, last, nonzeros)))
    borders = [0, *inner[inner < number].tolist(), number]
    return [slice(a, z) for a, z in itertools.pairwise(borders)]


def parts(
    rows: Rows, *arrays: NDArray[Any], share: int = 1, threads: int = 1
) -> Iterator[tuple[Any, ...]]:
    """The stretches of rows, not copied, with their parts of arrays that have one value a row."""
    cuts = spans(rows, share, threads)
    if len(cuts) == 1:
        yield rows, *arrays
        return
    for span in cuts:
        part = rows.part(span.start, span.stop)
        yield part, *(array[span] for array in arrays)


def columns(rows: Rows, most: int) -> list[tuple[int, int]]:
    """Return all columns in ``most`` stretches of about as many nonzeros: the first of each, and
    the one after its last.

    >>> columns(make_rows(np.array([0, 2, 4]), np.array([0, 9, 0, 7]), np.ones(4)), 1)
    [(0, 4294967296)]
    """
    start, stop = rows.indptr[[0, -1]] if most > 1 else (0, 0)
    some = np.sort(rows.indices[start:stop:SAMPLED])
    cuts = some[[len(some) * k // most for k in range(1, most)]]
    return [*itertools.pairwise([0, *cuts.tolist(), 1 << 32])]


def visits(rows: Rows, positions: NDArray[np.int64], share: int = 1) -> list[NDArray[np.int64]]:
    """The visits of a mini-epoch, one array for each kernel call; ``share`` : see ``spans``."""
    calls = 1 + share * int(rows.indptr[-1] - rows.indptr[0]) // NONZEROS_A_CALL
    return [positions] if calls == 1 else np.array_split(positions, calls)


def margins(rows: Rows, signs: NDArray[np.int8], rho: float, v: Vector) -> Vector:
    """l_i (x_i, ρ)·v of every row, shape (rows,)."""
    products, threads = np.empty(len(signs)), opened_threads()
    threads.work(
        lambda part: kernels.margins(part[0], part[1], rho, v, part[2]),
        [*parts(rows, signs, products, threads=threads.number)],
    )
    return products


def add(
    kernel: kernels.Kernel, rows: Rows, factors: Vector, *arguments: Any, share: int = 1
) -> None:
    """Call a kernel that sums over rows, each times its factor, into its last argument in place."""
    for some, their_factors in parts(rows, factors, share=share):
        kernel(some, their_factors, *arguments)


def occurring(rows: Rows) -> int:
    """Return how many columns occur, for ``BlockSums`` of them; 0 for few rows, which are one
    block."""
    start, stop = int(rows.indptr[0]), int(rows.indptr[-1])
    if stop - start < 2 * SHARED:
        return 0
    numbers = np.zeros(1 + int(rows.indices[start:stop].max()), dtype=np.int64)
    kernels.count_columns(rows, numbers)
    return int(np.count_nonzero(numbers))


class BlockSums:
    """Sums over rows, each times its factor, as sums over 1, 2, 4, … blocks with as many nonzeros,
    each of rows whose factor is not 0. Columns that do not occur change nothing.

    ``size`` : numbers of a sum, in columns that occur. ``cost`` : what a nonzero costs beside one
    of a product with a vector. ``share`` : see ``spans``.
    """

    def __init__(
        self, rows: Rows, factors: Vector, size: int, cost: int = 1, share: int = 1
    ) -> None:
        self._rows, self._factors, self._cost, self._share = rows, factors, cost, share
        self._borders = [0, len(factors)]
        nonzeros = cost * int(rows.indptr[-1] - rows.indptr[0])
        if nonzeros >= max(2 * SHARED, SUMMED * size):
            self._cut(size)

    def _cut(self, size: int) -> None:
        lengths = np.cumsum(np.diff(self._rows.indptr) * (self._factors != 0.0))
        nonzeros = int(lengths[-1])
        within = self._cost * nonzeros // (SUMMED * size), int(GATHERED * nonzeros) // size
        most = max(1, min(BLOCKS, 1 + min(within), self._cost * nonzeros // SHARED))
        blocks = 1 << (most.bit_length() - 1)
        inner = np.searchsorted(lengths, np.arange(1, blocks) * (nonzeros // blocks))
        self._borders[1:1] = inner.tolist()

    def add(self, kernel: kernels.Kernel, *arguments: Any) -> None:
        """Call the kernel, which sums into its last argument in place."""
        if len(self._borders) == 2:
            add(kernel, self._rows, self._factors, *arguments, share=self._share)
            return
        *leading, total = arguments
        threads, blocks = opened_threads(), range(len(self._borders) - 1)
        single = threads.number == 1
        rooms = [np.zeros_like(total) for _ in blocks[1 : 2 if single else None]]

        def add_block(number: int) -> None:
            start, stop = self._borders[number : number + 2]
            block = self._rows.part(start, stop)
            room = rooms[0 if single else number - 1] if number else total
            add(kernel, block, self._factors[start:stop], *leading, room, share=self._share)
            if number and single:
                np.add(total, room, out=total)
                room.fill(0.0)

        threads.work(add_block, blocks)
        for room in () if single else rooms:
            np.add(total, room, out=total)


def gathered(rows: Rows, factors: Vector) -> tuple[Rows, Vector]:
    """The rows whose factor is not 0 side by side, and their factors: sums over them add the same
    numbers in the same order. Rows as they are, where most would be copied, or few are held.

    >>> rows = make_rows(np.arange(0, 9 * SHORT, SHORT), np.zeros(8 * SHORT), np.ones(8 * SHORT))
    >>> some, factors = gathered(rows, np.array([0.0, 0.0, 2.0, *5 * [0.0]]))
    >>> len(some.values) // SHORT, factors.tolist()
    (1, [2.0])
    """
    if rows.indptr[-1] - rows.indptr[0] < SHORT:
        return rows, factors
    chosen = np.flatnonzero(factors != 0.0)
    indptr = np.zeros(len(chosen) + 1, dtype=np.int64)
    np.cumsum(np.diff(rows.indptr)[chosen], out=indptr[1:])
    nonzeros = int(indptr[-1])
    if nonzeros > GATHERED * (rows.indptr[-1] - rows.indptr[0]):
        return rows, factors
    indices = np.empty(nonzeros, np.uint32)
    values = np.empty(len(chosen) if rows.by_row else nonzeros, np.float32)
    borders = np.linspace(0, len(chosen), 2 + nonzeros // NONZEROS_A_CALL).astype(np.int64)
    for start, stop in itertools.pairwise(borders.tolist()):
        place, some = slice(indptr[start], indptr[stop]), slice(start, stop)
        their_values = values[some if rows.by_row else place]
        kernels.copy_rows(
            rows, chosen[some], indptr[start : stop + 1], indices[place], their_values
        )
    return make_rows(indptr, indices, values, 0 if rows.by_row else -1), factors[chosen]


def add_gram(
    rows: Rows, factors: Vector, rho: float, places: NDArray[np.int64], gram: Vector
) -> None:
    """Σ f_i z_i z_iᵀ is added to the lower triangle of ``gram`` in place; see the kernel."""
    sums = BlockSums(rows, factors, gram.size, GRAM, MULTIPLICATIONS)
    sums.add(kernels.gram_block, rho, places, gram)
