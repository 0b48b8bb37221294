"""Passes over the rows held, cut into kernel calls that are short: a signal waits for one at most.

A cut changes no bit: every kernel goes from row to row and adds in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows, make_rows

NONZEROS_A_CALL = 1 << 25
"""Nonzeros of one kernel call, in ``spans``: well under a second (``benchmarks/reading.py``), so
that Ctrl-C is obeyed."""

MULTIPLICATIONS = 16
"""Of a head's Gram matrix for each nonzero of its rows, about; see ``preconditioner.head_size``."""

GATHERED = 0.25
"""The part of the nonzeros that rows may have to be copied side by side: a product Hv over them
then takes a half to a quarter of the time (``benchmarks/second_order.py``)."""

Vector = NDArray[np.float64]


def spans(rows: Rows, share: int = 1) -> list[slice]:
    """Stretches of rows with about NONZEROS_A_CALL / share nonzeros each; one at least.

    >>> rows = Rows(np.array([0, 2, 3]), np.zeros(3, np.uint32), np.zeros(3, np.float32))
    >>> spans(rows)
    [slice(0, 2, None)]
    """
    number, first, last = len(rows.indptr) - 1, int(rows.indptr[0]), int(rows.indptr[-1])
    nonzeros = max(1, NONZEROS_A_CALL // share)
    wanted = np.arange(first + nonzeros, last, nonzeros)
    inner = np.unique(np.searchsorted(rows.indptr, wanted))
    borders = [0, *inner[inner < number].tolist(), number]
    return [slice(a, z) for a, z in itertools.pairwise(borders)]


def parts(rows: Rows, *arrays: NDArray[Any], share: int = 1) -> Iterator[tuple[Any, ...]]:
    """The stretches of rows, not copied, with their parts of arrays that have one value a row."""
    for span in spans(rows, share):
        part = rows._replace(indptr=rows.indptr[span.start : span.stop + 1])
        yield part, *(array[span] for array in arrays)


def visits(rows: Rows, positions: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The visits of a mini-epoch, one array for each kernel call."""
    calls = 1 + int(rows.indptr[-1] - rows.indptr[0]) // NONZEROS_A_CALL
    return [positions] if calls == 1 else np.array_split(positions, calls)


def margins(rows: Rows, signs: NDArray[np.int8], rho: float, v: Vector) -> Vector:
    """l_i (x_i, ρ)·v of every row, shape (rows,)."""
    found = np.empty(len(signs))
    for some, own, into in parts(rows, signs, found):
        kernels.margins(some, own, rho, v, into)
    return found


def add(kernel: kernels.Kernel, rows: Rows, factors: Vector, *arguments: Any) -> None:
    """Call a kernel that sums over rows, each times its factor, into its last argument in place."""
    for some, own in parts(rows, factors):
        kernel(some, own, *arguments)


def gathered(rows: Rows, factors: Vector) -> tuple[Rows, Vector]:
    """The rows whose factor is not 0 side by side, and their factors: sums over them add the same
    numbers in the same order. Rows as they are, where most would be copied.

    >>> rows = make_rows(np.array([0, 3, 6, 7]), np.zeros(7), np.arange(7))
    >>> some, factors = gathered(rows, np.array([0.0, 0.0, 2.0]))
    >>> some.values.tolist(), factors.tolist()
    ([6.0], [2.0])
    """
    chosen = np.flatnonzero(factors)
    indptr = np.zeros(len(chosen) + 1, dtype=np.int64)
    np.cumsum(np.diff(rows.indptr)[chosen], out=indptr[1:])
    nonzeros = int(indptr[-1])
    if nonzeros > GATHERED * (rows.indptr[-1] - rows.indptr[0]):
        return rows, factors
    indices, values = np.empty(nonzeros, np.uint32), np.empty(nonzeros, np.float32)
    borders = np.linspace(0, len(chosen), 2 + nonzeros // NONZEROS_A_CALL).astype(np.int64)
    for start, stop in itertools.pairwise(borders.tolist()):
        place = slice(indptr[start], indptr[stop])
        kernels.copy_rows(
            rows, chosen[start:stop], indptr[start : stop + 1], indices[place], values[place]
        )
    return make_rows(indptr, indices, values), factors[chosen]


def gram_block(
    rows: Rows, factors: Vector, rho: float, places: NDArray[np.int64], gram: Vector
) -> None:
    """Σ f_i z_i z_iᵀ is added to the lower triangle of ``gram`` in place; see the kernel."""
    held, values = np.empty(len(gram), np.int64), np.empty(len(gram))
    for some, own in parts(rows, factors, share=MULTIPLICATIONS):
        kernels.gram_block(some, own, rho, places, held, values, gram)
