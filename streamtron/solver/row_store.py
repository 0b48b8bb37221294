"""The rows that mini-epochs visit: copied into memory within a byte budget, or all of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows, freeze, make_rows, row_bytes
from streamtron.solver.targets import Targets, grown

GROWTH = 8
"""What room for nonzeros is multiplied by, within the budget: memory costs nothing before it is
written to, and that of a large array comes in large pages (``benchmarks/certified.py``)."""


class ActiveSet:
    """Rows kept in memory with their targets, in the order they came. ``budget`` : bytes."""

    def __init__(self, budget: int) -> None:
        self.budget, self._rows = budget, 0
        indices, values = np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.float32)
        self._held = Rows(np.zeros(1, dtype=np.int64), indices, values)
        self._targets = Targets.none()

    @classmethod
    def of(cls, rows: Rows, targets: Targets) -> ActiveSet:
        """Return a set of rows that others hold too: no more are added, and none are dropped."""
        active = cls(0)
        active._held, active._targets, active._rows = rows, targets, len(targets.signs)
        return active

    def __len__(self) -> int:
        return self._rows

    @property
    def nonzeros(self) -> int:
        """Stored values held."""
        return int(self._held.indptr[self._rows])

    @property
    def nbytes(self) -> int:
        """What the rows held count against the budget."""
        return int(row_bytes(self.nonzeros, self._rows, by_row=self._held.by_row))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """What each row held counts against the budget, shape (rows,)."""
        sizes: NDArray[np.int64] = self._held.sizes(np.diff(self._held.indptr[: self._rows + 1]))
        return sizes

    @property
    def rows(self) -> Rows:
        """The rows held, frozen."""
        indptr, indices, values, first = self._held
        nonzeros = self.nonzeros
        values = values[: self._rows if self._held.by_row else nonzeros]
        arrays = indptr[: self._rows + 1], indices[:nonzeros], values
        freeze(*arrays)
        return Rows(*arrays, first)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Row numbers in the whole data."""
        return self._targets.numbers[: self._rows]

    @property
    def targets(self) -> Targets:
        """Those of the rows held, in the arrays of the set."""
        return self._targets.take(slice(self._rows))

    def clear(self) -> None:
        """Forget all rows; the memory is kept for the next ones."""
        self._rows = 0

    def add(self, rows: Rows, chosen: NDArray[np.int64], targets: Targets) -> int:
        """Copy the rows at positions ``chosen``, as many of the first as fit; returns how many.
        ``targets`` are those of ``chosen``."""
        if not self._rows:
            self._held = self._held._replace(first=0 if rows.by_row else -1)
        lengths = rows.indptr[chosen + 1] - rows.indptr[chosen]
        fits = fitting(rows.sizes(lengths), self.budget - self.nbytes)
        chosen, start, first = chosen[:fits], self._rows, self.nonzeros
        stop, last = start + fits, first + int(lengths[:fits].sum())
        self._reserve(stop, last)
        held = self._held
        indices = held.indices[first:last]
        values = held.values[start:stop] if held.by_row else held.values[first:last]
        if fits and (np.diff(chosen) == 1).all():
            part = rows.part(int(chosen[0]), int(chosen[-1]) + 1)
            indices[:] = rows.indices[part.indptr[0] : part.indptr[-1]]
            values[:] = part.values[part.first :][:fits] if held.by_row else part.spread()
            held.indptr[start + 1 : stop + 1] = first + np.cumsum(lengths[:fits])
        else:
            kernels.copy_rows(rows, chosen, held.indptr[start : stop + 1], indices, values)
        self._targets = self._targets.with_more(start, targets.take(slice(fits)))
        self._rows = stop
        return fits

    def retain(self, chosen: NDArray[np.int64]) -> None:
        """Hold only the rows at positions ``chosen`` (rising), moved to the front in place."""
        rows, held, size = self.rows, self._held, len(chosen)
        lengths = np.diff(rows.indptr)[chosen]
        kernels.copy_rows(rows, chosen, held.indptr.copy(), held.indices, held.values)
        np.cumsum(lengths, out=held.indptr[1 : size + 1])
        self._targets = Targets.none().with_more(0, self._targets.take(chosen))
        self._rows = size

    def _reserve(self, rows: int, nonzeros: int) -> None:
        """Have room for more rows and nonzeros."""
        indptr, indices, values, first = self._held
        if rows >= len(indptr):
            room = max(rows, 2 * (len(indptr) - 1))
            indptr = grown(indptr, self._rows + 1, room + 1)
            values = grown(values, self._rows, room) if self._held.by_row else values
        if nonzeros > len(indices):
            most = self.budget // int(row_bytes(1, 0, by_row=self._held.by_row))
            room = max(nonzeros, min(GROWTH * nonzeros, most))
            indices = grown(indices, self.nonzeros, room)
            values = values if self._held.by_row else grown(values, self.nonzeros, room)
        self._held = Rows(indptr, indices, values, first)


class ColumnSubset:
    """The ``columns`` (rising) of ``width`` ones, numbered anew in their order."""

    def __init__(self, columns: NDArray[np.int64], width: int) -> None:
        self.columns, self.width = columns, width

    @property
    def places(self) -> NDArray[np.int64]:
        """The places of these columns, and of the bias, in an augmented vector of all."""
        return np.append(self.columns, self.width)

    def find(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of these columns that are in ``columns``."""
        return np.flatnonzero(np.isin(self.columns, columns))

    def widen(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an augmented vector on these columns as one on all, 0 elsewhere."""
        wide = np.zeros(self.width + 1)
        wide[self.places] = v
        return wide

    def narrow(self, held: HeldRows) -> NarrowRows:
        """Return rows in memory with these columns' new numbers, without any others."""
        rows, numbers = held.rows, np.full(self.width, len(self.columns), dtype=np.uint32)
        numbers[self.columns] = np.arange(len(self.columns), dtype=np.uint32)
        indptr, values, indices = rows.indptr, rows.values, np.empty_like(rows.indices)
        kernels.renumber(rows.indices, numbers, indices)
        inside = indices < len(self.columns)
        if not inside.all():
            indptr = np.append(0, np.cumsum(inside))[indptr]
            indices, values = indices[inside], values if rows.by_row else values[inside]
        return NarrowRows(make_rows(indptr, indices, values, rows.first), held.targets)


@dataclass(frozen=True, slots=True)
class NarrowRows:
    """Rows in memory on some columns, numbered anew; see ``ActiveSet``."""

    rows: Rows
    targets: Targets

    def __len__(self) -> int:
        return len(self.targets.signs)

    @property
    def nonzeros(self) -> int:
        """Stored values held."""
        return len(self.rows.indices)


HeldRows = ActiveSet | NarrowRows
"""Rows that a solve visits."""


def fitting(sizes: NDArray[np.int64], budget: float) -> int:
    """Return how many of the first sizes fit in a budget."""
    return int(np.searchsorted(np.cumsum(sizes), budget, side="right"))
