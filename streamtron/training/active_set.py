"""The rows that mini-epochs visit, copied into memory within a byte budget."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamtron import kernels
from streamtron.chunk import Rows, freeze

NONZERO_BYTES = 8
ROW_BYTES = 24


class ActiveSet:
    """Rows kept in memory with their row numbers, signs and Δ_k², in the order they came.

    Parameters
    ----------
    budget : bytes; a nonzero counts 8, a row 24.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._indptr = np.zeros(1, dtype=np.int64)
        self._indices = np.zeros(0, dtype=np.uint32)
        self._values = np.zeros(0, dtype=np.float32)
        self._numbers = np.zeros(0, dtype=np.int64)
        self._signs = np.zeros(0, dtype=np.int8)
        self._delta2 = np.zeros(0)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def nonzeros(self) -> int:
        """Stored values held."""
        return int(self._indptr[self._rows])

    @property
    def nbytes(self) -> int:
        """What the rows held count against the budget."""
        return NONZERO_BYTES * self.nonzeros + ROW_BYTES * self._rows

    @property
    def sizes(self) -> NDArray[np.int64]:
        """What each row held counts against the budget, shape (rows,)."""
        return NONZERO_BYTES * np.diff(self.rows.indptr) + ROW_BYTES

    def clear(self) -> None:
        """Forget all rows; the memory is kept for the next ones."""
        self._rows = 0

    def add(
        self,
        rows: Rows,
        chosen: NDArray[np.int64],
        numbers: NDArray[np.int64],
        signs: NDArray[np.int8],
        delta2: NDArray[np.float64],
    ) -> int:
        """Copy the rows at positions ``chosen``, as many of the first as fit; returns how many.

        ``numbers``, ``signs``, ``delta2`` are those of all of ``rows``.
        """
        lengths = rows.indptr[chosen + 1] - rows.indptr[chosen]
        total = self.nbytes + np.cumsum(NONZERO_BYTES * lengths + ROW_BYTES)
        fits = int(np.searchsorted(total, self.budget, side="right"))
        chosen, start = chosen[:fits], self._rows
        nonzeros, stop = int(lengths[:fits].sum()), start + fits
        first = self.nonzeros
        self._reserve(stop, first + nonzeros)
        kernels.copy_rows(
            rows,
            chosen,
            self._indptr[start : stop + 1],
            self._indices[first : first + nonzeros],
            self._values[first : first + nonzeros],
        )
        self._numbers[start:stop] = numbers[chosen]
        self._signs[start:stop] = signs[chosen]
        self._delta2[start:stop] = delta2[chosen]
        self._rows = stop
        return fits

    def retain(self, chosen: NDArray[np.int64]) -> None:
        """Hold only the rows at positions ``chosen`` (rising), moved to the front in place."""
        kernels.copy_rows(self.rows, chosen, self._indptr.copy(), self._indices, self._values)
        lengths = (self._indptr[1:] - self._indptr[:-1])[chosen]
        kept = len(chosen)
        np.cumsum(lengths, out=self._indptr[1 : kept + 1])
        for array in (self._numbers, self._signs, self._delta2):
            array[:kept] = array[chosen]
        self._rows = kept

    def keep(self, chosen: NDArray[np.int64], budget: float) -> None:
        """Hold only the first of the rows at positions ``chosen`` (in any order) that fit in
        ``budget`` bytes together."""
        fits = np.searchsorted(np.cumsum(self.sizes[chosen]), budget, side="right")
        self.retain(np.sort(chosen[:fits]))

    @property
    def rows(self) -> Rows:
        """The rows held, frozen."""
        rows = Rows(
            self._indptr[: self._rows + 1],
            self._indices[: self.nonzeros],
            self._values[: self.nonzeros],
        )
        freeze(*rows)
        return rows

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Row numbers in the whole data."""
        return self._numbers[: self._rows]

    @property
    def signs(self) -> NDArray[np.int8]:
        """l_k."""
        return self._signs[: self._rows]

    @property
    def delta2(self) -> NDArray[np.float64]:
        """Δ_k²."""
        return self._delta2[: self._rows]

    def _reserve(self, rows: int, nonzeros: int) -> None:
        if rows > len(self._numbers):
            room = max(rows, 2 * len(self._numbers))
            self._indptr = _grown(self._indptr, room + 1)
            self._numbers = _grown(self._numbers, room)
            self._signs = _grown(self._signs, room)
            self._delta2 = _grown(self._delta2, room)
        if nonzeros > len(self._indices):
            room = max(nonzeros, 2 * len(self._indices))
            room = max(nonzeros, min(room, self.budget // NONZERO_BYTES))
            self._indices = _grown(self._indices, room)
            self._values = _grown(self._values, room)


def _grown(array: NDArray, size: int) -> NDArray:  # type: ignore[type-arg]
    """The array with room for ``size`` elements: a large one is remapped, not copied."""
    array.resize(size, refcheck=False)
    return array
