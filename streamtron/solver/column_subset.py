"""The rows in memory on the columns that matter to them, where there are many others.

The vectors of a solve are then as long as these columns. Sums over columns run from the first to
the last, and a column that is left out would add 0: no bit changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from streamtron.core.rows import Rows, make_rows
from streamtron.solver.row_store import ActiveSet, HeldRows, NarrowRows
from streamtron.solver.subproblem import Vector
from streamtron.solver.weights import WeightState

FEW = 4
"""Nonzeros a column, below which columns are left out: a solve has a dozen vectors, and the rows'
column numbers are copied once (``benchmarks/wide.py``). Learners that batches serve have more."""

AT_A_TIME = 1 << 22
"""Nonzeros whose columns are numbered anew at a time: numpy copies them at 8 bytes."""


class Narrowed:
    """``held`` and ``running`` as a solve is to take them: on the columns that occur, or where the
    running weights or those of ``also`` are not 0; or, where that does not pay, as they are."""

    def __init__(self, active: ActiveSet, running: WeightState, also: Vector | None = None) -> None:
        self.held: HeldRows = active
        self.running = self._whole = running
        self._columns: NDArray[np.int64] | None = None
        width = len(running.w)
        if FEW * width <= active.nonzeros:
            return
        rows, kept = active.rows, running.w != 0.0
        for some in _stretches(rows):
            kept[rows.indices[some]] = True
        if also is not None:
            np.logical_or(kept, also, out=kept)
        self._columns = columns = np.flatnonzero(kept)
        numbers = np.zeros(width, dtype=np.uint32)
        numbers[columns] = np.arange(len(columns), dtype=np.uint32)
        indices = np.empty(len(rows.indices), dtype=np.uint32)
        for some in _stretches(rows):
            indices[some] = numbers[rows.indices[some]]
        self.held = NarrowRows(
            make_rows(rows.indptr, indices, rows.values),
            active.signs, active.delta2, active.squares,
        )  # fmt: skip
        self.running = running.on(columns)

    def narrow(self, w: Vector) -> Vector:
        """Return w on these columns."""
        return w if self._columns is None else w[self._columns]

    def settle(self) -> None:
        """Take the running weights over from the solve."""
        if self._columns is not None:
            self._whole.w[self._columns] = self.running.w

    def widen(self, v: Vector | None) -> Vector | None:
        """Return an augmented vector of the solve on all columns."""
        if v is None or self._columns is None:
            return v
        wide = np.zeros(len(self._whole.w) + 1)
        wide[self._columns], wide[-1] = v[:-1], v[-1]
        return wide


def _stretches(rows: Rows) -> Iterator[slice]:
    for start in range(0, len(rows.indices), AT_A_TIME):
        yield slice(start, start + AT_A_TIME)
