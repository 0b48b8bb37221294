"""The rows that mini-epochs visit: copied into memory within a byte budget, or all of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows, freeze, make_rows, row_bytes
from streamtron.solver.targets import Targets

GROWTH = 8
"""What room for nonzeros is multiplied by, within the budget: memory costs nothing before it is
written to, and that of a large array comes in large pages (``benchmarks/certified.py``)."""

AT_A_TIME = 1 << 22
"""Nonzeros whose columns are numbered anew at a time: numpy copies them at 8 bytes."""


class RowStore:
    """Rows with their numbers in the whole data and ‖x_k‖², in the order they came."""

    def __init__(self) -> None:
        self._indptr = np.zeros(1, dtype=np.int64)
        self._indices = np.zeros(0, dtype=np.uint32)
        self._values = np.zeros(0, dtype=np.float32)
        self._numbers = np.zeros(0, dtype=np.int64)
        self._squares = np.zeros(0)
        self._rows, self._by_row = 0, False

    @classmethod
    def of(cls, rows: Rows, numbers: NDArray[np.int64], squares: NDArray[np.float64]) -> RowStore:
        """Return a store of these very arrays."""
        store = cls()
        store._indptr, store._indices, values, _ = rows
        store._values = values[rows.first :] if rows.by_row else values
        store._by_row, store._numbers = rows.by_row, numbers
        store._squares, store._rows = squares, len(numbers)
        return store

    def __len__(self) -> int:
        return self._rows

    @property
    def nonzeros(self) -> int:
        """Stored values held."""
        return int(self._indptr[self._rows])

    @property
    def nbytes(self) -> int:
        """What the rows held count against a budget."""
        return int(row_bytes(self.nonzeros, self._rows, by_row=self._by_row))

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Row numbers in the whole data."""
        return self._numbers[: self._rows]

    @property
    def squares(self) -> NDArray[np.float64]:
        """‖x_k‖² of the rows held."""
        return self._squares[: self._rows]

    def first(self, rows: int) -> Rows:
        """The first of the rows held, frozen."""
        nonzeros = self._indptr[rows]
        values = self._values[: rows if self._by_row else nonzeros]
        arrays = self._indptr[: rows + 1], self._indices[:nonzeros], values
        freeze(*arrays)
        return Rows(*arrays, 0 if self._by_row else -1)

    def clear(self) -> None:
        """Forget all rows; the memory is kept for the next ones."""
        self._rows = 0

    def add(
        self,
        rows: Rows,
        chosen: NDArray[np.int64],
        numbers: NDArray[np.int64],
        squares: NDArray[np.float64],
        budget: int,
    ) -> int:
        """Copy the rows at positions ``chosen``, as many of the first as fit; returns how many.
        ``numbers`` and ``squares`` are those of ``chosen``."""
        if not self._rows:
            self._by_row = rows.by_row
        lengths = rows.indptr[chosen + 1] - rows.indptr[chosen]
        fits = fitting(rows.sizes(lengths), budget - self.nbytes)
        chosen, start, first = chosen[:fits], self._rows, self.nonzeros
        stop, last = start + fits, first + int(lengths[:fits].sum())
        self._reserve(stop, last, budget)
        indices = self._indices[first:last]
        values = self._values[start:stop] if self._by_row else self._values[first:last]
        if fits and (np.diff(chosen[:fits]) == 1).all():
            part = rows.part(int(chosen[0]), int(chosen[-1]) + 1)
            indices[:] = rows.indices[part.indptr[0] : part.indptr[-1]]
            values[:] = part.values[part.first :][:fits] if self._by_row else part.spread()
            np.cumsum(lengths[:fits], out=self._indptr[start + 1 : stop + 1])
            self._indptr[start + 1 : stop + 1] += first
        else:
            kernels.copy_rows(rows, chosen, self._indptr[start : stop + 1], indices, values)
        self._numbers[start:stop] = numbers[:fits]
        self._squares[start:stop] = squares[:fits]
        self._rows = stop
        return fits

    def retain(self, chosen: NDArray[np.int64]) -> None:
        """Hold only the rows at positions ``chosen`` (rising), moved to the front in place."""
        rows, size = self.first(self._rows), len(chosen)
        lengths = np.diff(rows.indptr)[chosen]
        kernels.copy_rows(rows, chosen, self._indptr.copy(), self._indices, self._values)
        np.cumsum(lengths, out=self._indptr[1 : size + 1])
        self._numbers[:size] = self._numbers[chosen]
        self._squares[:size] = self._squares[chosen]
        self._rows = size

    def _reserve(self, rows: int, nonzeros: int, budget: int) -> None:
        if rows > len(self._numbers):
            room = max(rows, 2 * len(self._numbers))
            self._indptr = _grown(self._indptr, self._rows + 1, room + 1)
            self._numbers = _grown(self._numbers, self._rows, room)
            self._squares = _grown(self._squares, self._rows, room)
            if self._by_row:
                self._values = _grown(self._values, self._rows, room)
        if nonzeros > len(self._indices):
            most = budget // int(row_bytes(1, 0, by_row=self._by_row))
            room = max(nonzeros, min(GROWTH * nonzeros, most))
            self._indices = _grown(self._indices, self.nonzeros, room)
            if not self._by_row:
                self._values = _grown(self._values, self.nonzeros, room)


class ActiveSet:
    """Rows kept in memory with their targets, in the order they came. ``budget`` : bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._store = RowStore()
        self._signs = np.zeros(0, dtype=np.int8)
        self._costs = np.zeros(0)
        self._t = np.zeros(0)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def nonzeros(self) -> int:
        """Stored values held."""
        return self._store.nonzeros

    @property
    def nbytes(self) -> int:
        """What the rows held count against the budget."""
        return self._store.nbytes

    @property
    def sizes(self) -> NDArray[np.int64]:
        """What each row held counts against the budget, shape (rows,)."""
        rows = self.rows
        sizes: NDArray[np.int64] = rows.sizes(np.diff(rows.indptr))
        return sizes

    @property
    def rows(self) -> Rows:
        """The rows held, frozen."""
        return self._store.first(self._rows)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Row numbers in the whole data."""
        return self._store.numbers[: self._rows]

    @property
    def targets(self) -> Targets:
        """Those of the rows held, in the arrays of the set."""
        rows, squares = self._rows, self._store.squares[: self._rows]
        return Targets(
            self.numbers, self._signs[:rows], self._costs[:rows], squares, self._t[:rows]
        )

    @classmethod
    def of(cls, rows: Rows, targets: Targets) -> ActiveSet:
        """Return a set of rows that others hold too: no more are added, and none are dropped."""
        active = cls(0)
        active._store = RowStore.of(rows, targets.numbers, targets.squares)
        active._signs, active._costs, active._t = targets.signs, targets.costs, targets.t
        active._rows = len(targets.signs)
        return active

    def clear(self) -> None:
        """Forget all rows; the memory is kept for the next ones."""
        self._store.clear()
        self._rows = 0

    def add(self, rows: Rows, chosen: NDArray[np.int64], targets: Targets) -> int:
        """Copy the rows at positions ``chosen``, as many of the first as fit; returns how many.
        ``targets`` are those of ``chosen``."""
        fits = self._store.add(rows, chosen, targets.numbers, targets.squares, self.budget)
        self._append(targets.take(slice(fits)))
        return fits

    def retain(self, chosen: NDArray[np.int64]) -> None:
        """Hold only the rows at positions ``chosen`` (rising)."""
        size = len(chosen)
        self._store.retain(chosen)
        for array in (self._signs, self._costs, self._t):
            array[:size] = array[chosen] if len(array) else array
        self._rows = size

    def _append(self, targets: Targets) -> None:
        self._signs = _appended(self._signs, self._rows, targets.signs)
        self._costs = _appended(self._costs, self._rows, targets.costs)
        self._t = _appended(self._t, self._rows if len(targets.t) else 0, targets.t)
        self._rows += len(targets.signs)


class ColumnSubset:
    """The ``columns`` (rising) of ``width`` ones, numbered anew in their order."""

    def __init__(self, columns: NDArray[np.int64], width: int) -> None:
        self.columns, self.width = columns, width

    @property
    def places(self) -> NDArray[np.int64]:
        """The places of these columns, and of the bias, in an augmented vector of all."""
        return np.append(self.columns, self.width)

    def find(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places among these of those that are in ``columns``."""
        return np.flatnonzero(np.isin(self.columns, columns))

    def widen(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an augmented vector on these columns as one on all, 0 elsewhere."""
        wide = np.zeros(self.width + 1)
        wide[self.places] = v
        return wide

    def renumber(self, rows: Rows) -> Rows:
        """Return rows with these columns' new numbers, without any others that they have."""
        numbers = np.full(self.width, len(self.columns), dtype=np.uint32)
        numbers[self.columns] = np.arange(len(self.columns), dtype=np.uint32)
        first, last = rows.indptr[0], rows.indptr[-1]
        indices, values = np.empty(last - first, dtype=np.uint32), rows.values
        if not rows.by_row:
            values = values[first:last]
        for start in range(0, len(indices), AT_A_TIME):
            stretch = slice(start, start + AT_A_TIME)
            indices[stretch] = numbers[rows.indices[first:last][stretch]]
        inside, indptr = indices < len(self.columns), rows.indptr - first
        if not inside.all():
            indptr = np.append(0, np.cumsum(inside))[indptr]
            indices, values = indices[inside], values if rows.by_row else values[inside]
        return make_rows(indptr, indices, values, rows.first)


@dataclass(frozen=True, slots=True)
class NarrowRows:
    """Rows in memory on some columns, numbered anew; see ``ActiveSet``."""

    rows: Rows
    targets: Targets

    @classmethod
    def of(cls, held: HeldRows, subset: ColumnSubset) -> NarrowRows:
        """Return the same rows on some columns."""
        return cls(subset.renumber(held.rows), held.targets)

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


def _appended(array: NDArray, used: int, values: NDArray) -> NDArray:  # type: ignore[type-arg]
    """The first ``used`` elements and these values, in place if there is room."""
    stop = used + len(values)
    if stop > len(array):
        array = _grown(array, used, max(stop, 2 * len(array)))
    array[used:stop] = values
    return array


def _grown(array: NDArray, used: int, room: int) -> NDArray:  # type: ignore[type-arg]
    """The first ``used`` elements in an array with ``room`` for more."""
    grown = np.empty(room, dtype=array.dtype)
    grown[:used] = array[:used]
    return grown
