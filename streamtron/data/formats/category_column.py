"""Turn categories into features: scikit-learn's OneHotEncoder, entry by entry."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.data.formats.layouts import Spot, is_string
from streamtron.data.formats.recipe_column import REFUSED, Cells, Column, counted, hashed, one_hot

MOST = 1 << 20
"""Categories of a column that are counted."""


BOOLEANS = {word: word.lower() for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
"""How text has a boolean → the category that it is."""


class Categories(NamedTuple):
    """How often each category occurs, and whether some are of CSV, where a boolean is a word."""

    counts: Counter[str]
    of_csv: bool = False

    def plus(self, other: Categories) -> Categories:
        """Both together; the first one is changed."""
        self.counts.update(other.counts)
        return Categories(self.counts, self.of_csv or other.of_csv)


@dataclass(frozen=True)
class CategoryColumn(Column):
    """Strings, booleans or whole numbers, one-hot: a feature for each that occurred when they were
    counted, in order, or for each hash.

    Parameters
    ----------
    hash_bits : hash ``name=value`` into 2^hash_bits features; None = by name.
    min_count : those that occur less often share one feature.
    null : ``"0"``, no feature; ``"column"``, one of its own.
    """

    hash_bits: int | None = None
    min_count: int = 1
    categories: tuple[str, ...] | None = counted()
    rare: tuple[str, ...] = counted(())

    KIND = "category"
    TYPES = "strings, booleans or whole numbers"
    NULLS = (REFUSED, "0", "column")

    def _check(self) -> None:
        if self.hash_bits is not None and not 1 <= self.hash_bits <= 30:
            self.refuse(f"hash_bits={self.hash_bits}: expected 1 to 30")
        if self.min_count < 1 or (self.min_count > 1 and self.hash_bits is not None):
            self.refuse(f"min_count={self.min_count}: expected 1 or more, and not with hash_bits")

    @staticmethod
    def _fits(type_: pa.DataType) -> bool:
        types = pa.types
        return is_string(type_) or types.is_boolean(type_) or types.is_integer(type_)

    def _wanted(self) -> bool:
        return self.hash_bits is None and self.categories is None

    def _names(self) -> Iterable[str]:
        known = (*(self.categories or ()), *(["(rare)"] if self.rare else []))
        return [f"{self.name}={value}" for value in known]

    @cached_property
    def _places(self) -> dict[str, int]:
        known = self.categories or ()
        return {value: k for k, value in enumerate(known)} | dict.fromkeys(self.rare, len(known))

    def _decoded(self, array: pa.Array) -> pa.Array:
        """Return the array as a dictionary of strings without nulls."""
        if not pa.types.is_dictionary(array.type) or array.dictionary.null_count:
            array = super()._decoded(array).dictionary_encode()
        strings = array.dictionary.cast(pa.large_string())
        return pa.DictionaryArray.from_arrays(array.indices.cast(pa.int64()), strings)

    def _cells(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Cells:
        values = list(map(self.as_counted, array.dictionary.to_pylist()))
        places = np.append(self.codes(values), self.width - 1 if self.null == "column" else -1)
        codes = places[array.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
        unseen = (codes < 0) & ~missing
        return Cells(one_hot(codes, self.width), unseen if unseen.any() else None)

    @cached_property
    def _booleans(self) -> dict[str, str]:
        """How a boolean may be written → as it was counted, each in one way and nothing else."""
        names = {BOOLEANS[name]: name for name in self._places if name in BOOLEANS}
        if len(names) < len(self._places):
            return {}
        return {way: names[word] for way, word in BOOLEANS.items() if word in names}

    @cached_property
    def _are_whole(self) -> bool:
        return bool(self._places) and all(map(is_whole, self._places))

    def as_counted(self, value: str) -> str:
        """Return a category as it was written when categories were counted: one of true and false
        may be ``True``, and one of whole numbers ``7.0``, as pandas has 7 beside a null."""
        if value in self._places:
            return value
        if self._are_whole and value.endswith(".0"):
            return value.removesuffix(".0")
        return self._booleans.get(value, value)

    def codes(self, values: Iterable[str]) -> NDArray[np.int64]:
        """Return the feature of each category, below 0 if it was not counted."""
        if self.hash_bits is None:
            return np.array([self._places.get(value, -1) for value in values], np.int64)
        return hashed([f"{self.name}={value}" for value in values], self.hash_bits, False)[0]

    def _tally(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Categories:
        values, codes = array.dictionary.to_pylist(), array.indices.drop_null().to_numpy()
        times = zip(values, np.bincount(codes, minlength=len(values)).tolist(), strict=True)
        return Categories(Counter({value: count for value, count in times if count}))

    def fitted(self, tally: Categories) -> Self:
        """Return the column with its categories."""
        if len(tally.counts) > MOST:
            raise DataError(
                f"column {self.name!r} has more than {MOST:,} categories. Is it an identifier? "
                f"Leave it out, or hash it: '{self.name}:{self.KIND},hash_bits=20'."
            )
        counts = tally.counts
        if tally.of_csv and counts.keys() <= BOOLEANS.keys():
            counts = Counter()
            for word, count in tally.counts.items():
                counts[BOOLEANS[word]] += count
        known = sorted(counts, key=int if all(map(is_whole, counts)) else str)
        often = [value for value in known if counts[value] >= self.min_count]
        rare = [value for value in known if counts[value] < self.min_count]
        return replace(self, categories=tuple(often), rare=tuple(rare))


def is_whole(text: str) -> bool:
    """Tell whether a text is a whole number as Arrow writes it, and Python reads it."""
    digits = text.removeprefix("-")
    if len(digits) > sys.int_info.default_max_str_digits:
        return False
    return digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
