"""Turn lists and maps into features: scikit-learn's DictVectorizer, entry by entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import DataError
from streamtron.data.formats import layouts
from streamtron.data.formats.category_column import Categories, CategoryColumn
from streamtron.data.formats.layouts import Spot, first, float32
from streamtron.data.formats.recipe_column import REFUSED, Cells, Column, counted, dense_cells
from streamtron.data.row_batch import Offsets


@dataclass(frozen=True)
class ListColumn(CategoryColumn):
    """A list of names or whole numbers, each of which counts 1; or a map from them to values, or a
    list of such pairs. A feature for each name, ``tags=red``; values of a name are added up.

    Parameters are those of ``CategoryColumn``.
    """

    KIND = "list"
    TYPES = "lists of names, of whole numbers or of pairs, or maps to numbers"

    @staticmethod
    def _fits(type_: pa.DataType) -> bool:
        is_empty = layouts.is_list(type_) and pa.types.is_null(type_.value_type)
        return is_empty or layouts.layout_of(type_) not in (None, "columns", "dense")

    def _decoded(self, array: pa.Array) -> pa.Array:
        return layouts.decoded(array)

    def _items(
        self, array: pa.Array, spot: Spot
    ) -> tuple[Offsets, pa.DictionaryArray, NDArray[np.float32]]:
        if pa.types.is_map(array.type) or pa.types.is_struct(array.type.value_type):
            indptr, keys, numbers = layouts.pairs_of(array, self.name, spot)
            values = float32(indptr, numbers.to_numpy(zero_copy_only=False), spot, self.name)
        else:
            indptr, keys = layouts.items_of(array, self.name, spot)
            values = np.ones(len(keys), np.float32)
        keys = keys.cast(pa.string()) if pa.types.is_null(keys.type) else keys
        return indptr, super()._decoded(keys), values

    def _cells(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Cells:
        indptr, names, values = self._items(array, spot)
        codes = self.codes(names.dictionary.to_pylist())[names.indices.to_numpy()]
        rows, known = np.repeat(np.arange(len(array)), np.diff(indptr)), codes >= 0
        unseen = np.bincount(rows[~known], minlength=len(array)) > 0
        nulls = np.flatnonzero(missing & (self.null == "column"))
        columns = np.append(codes[known], np.full(len(nulls), self.width - 1))
        places = np.append(rows[known], nulls), columns
        numbers = np.append(values[known], np.ones(len(nulls))).astype(float)
        cells = sparse.csr_array((numbers, places), (len(array), self.width))  # adds them up
        cells.data = float32(cells.indptr, cells.data, spot, self.name)
        cells.eliminate_zeros()
        return Cells(cells, unseen if unseen.any() else None)

    def _tally(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Categories:
        return super()._tally(self._items(array, spot)[1], missing, spot)


@dataclass(frozen=True)
class VectorColumn(Column):
    """A list of numbers, as long in every row: a feature for each of its places, ``embedding=0``.

    Parameters
    ----------
    null : ``"0"``, no feature; ``"column"``, one of its own.
    """

    length: int | None = counted()

    KIND = "vector"
    TYPES = "lists of numbers, as long in every row"
    NULLS = (REFUSED, "0", "column")

    def _check(self) -> None:
        if self.length is not None and self.length < 0:
            self.refuse("a length below 0")

    @staticmethod
    def _fits(type_: pa.DataType) -> bool:
        item = type_.value_type if layouts.is_list(type_) else None
        return item is not None and bool(layouts.is_number(item) or pa.types.is_null(item))

    def _wanted(self) -> bool:
        return self.length is None

    def _names(self) -> Iterable[str]:
        return [f"{self.name}={place}" for place in range(self.length or 0)]

    def _vectors(
        self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot
    ) -> NDArray[np.float32]:
        """Return the lists that are not missing, as rows; refuse one of another length."""
        indptr, items = layouts.items_of(array, self.name, spot)
        lengths, length = np.diff(indptr), self.length
        if length is None:
            length = int(lengths[~missing][0]) if not missing.all() else 0
        if (odd := (lengths != length) & ~missing).any():
            what = f"{lengths[first(odd)]} numbers in column {self.name!r}, and in other rows "
            spot.refuse(first(odd), f"{what}{length}. All lists of a vector need one length.")
        numbers = float32(indptr, items.to_numpy(zero_copy_only=False), spot, self.name)
        return numbers.reshape(int((~missing).sum()), length)

    def _cells(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Cells:
        vectors = self._vectors(array, missing, spot)
        values = np.zeros((len(array), self.width), np.float32)
        values[~missing, : vectors.shape[1]] = vectors
        if self.null == "column":
            values[missing, -1] = 1.0
        return Cells(dense_cells(np.arange(self.width), values, self.width))

    def _tally(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Categories:
        rows, length = self._vectors(array, missing, spot).shape
        return Categories(Counter({str(length): rows} if rows else {}))

    def fitted(self, tally: Categories) -> Self:
        """Return the column with the length of its lists."""
        lengths = [*map(int, tally.counts)]
        if len(lengths) > 1:
            few, most = min(lengths), max(lengths)
            raise DataError(
                f"column {self.name!r} has lists of {few} and of {most} numbers. All lists of a "
                "vector need one length."
            )
        return replace(self, length=max(lengths, default=0))
