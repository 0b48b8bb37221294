"""Passes over the rows held, cut into kernel calls that are short: a signal waits for one at most.

A cut changes no bit: every kernel goes from row to row and adds in place.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows

NONZEROS_A_CALL = 1 << 25
"""Nonzeros one kernel call may visit: well under a second, so that Ctrl-C is obeyed."""

Vector = NDArray[np.float64]


def spans(rows: Rows) -> list[slice]:
    """Stretches of rows with about NONZEROS_A_CALL nonzeros each; one at least.

    Examples
    --------
    >>> rows = Rows(np.array([0, 2, 3]), np.zeros(3, np.uint32), np.zeros(3, np.float32))
    >>> spans(rows)
    [slice(0, 2, None)]
    """
    number, first, last = len(rows.indptr) - 1, int(rows.indptr[0]), int(rows.indptr[-1])
    if last - first <= NONZEROS_A_CALL:
        return [slice(0, number)]
    wanted = np.arange(first + NONZEROS_A_CALL, last, NONZEROS_A_CALL)
    inner = np.unique(np.searchsorted(rows.indptr, wanted))
    borders = [0, *inner[inner < number].tolist(), number]
    return [slice(a, z) for a, z in itertools.pairwise(borders)]


def part(rows: Rows, span: slice) -> Rows:
    """A stretch of rows, not copied."""
    return rows._replace(indptr=rows.indptr[span.start : span.stop + 1])


def visits(rows: Rows, positions: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The visits of a mini-epoch, one array for each kernel call."""
    calls = 1 + int(rows.indptr[-1] - rows.indptr[0]) // NONZEROS_A_CALL
    return [positions] if calls == 1 else np.array_split(positions, calls)


def margins(rows: Rows, signs: NDArray[np.int8], rho: float, v: Vector) -> Vector:
    """l_i (x_i, ρ)·v of every row, shape (rows,)."""
    found = np.empty(len(signs))
    for span in spans(rows):
        kernels.margins(part(rows, span), signs[span], rho, v, found[span])
    return found


def combine(rows: Rows, factors: Vector, rho: float, total: Vector) -> None:
    """Σ f_i (x_i, ρ) is added to ``total`` in place."""
    for span in spans(rows):
        kernels.combine(part(rows, span), factors[span], rho, total)


def gram_diagonal(rows: Rows, factors: Vector, rho: float, total: Vector) -> None:
    """Σ f_i (x_i², ρ²), element by element, is added to ``total`` in place."""
    for span in spans(rows):
        kernels.gram_diagonal(part(rows, span), factors[span], rho, total)


def gram_product(rows: Rows, factors: Vector, rho: float, v: Vector, total: Vector) -> None:
    """Σ f_i (x_i, ρ) ((x_i, ρ)·v) is added to ``total`` in place."""
    for span in spans(rows):
        kernels.gram_product(part(rows, span), factors[span], rho, v, total)
