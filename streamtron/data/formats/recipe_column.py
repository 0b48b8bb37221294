"""What the columns of a recipe share: a name, what a null is, the names of the features, and how
they are counted.

A new kind of column is a class derived from ``Column`` and a row of ``recipe_words.KINDS``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import SettingsError
from streamtron.core.feature_names import murmur_hash
from streamtron.data.formats.layouts import Spot, decoded, first, plain
from streamtron.data.row_batch import offsets_of

REFUSED = "refuse"

_TYPES = pa.string(), pa.float64(), pa.list_(pa.string()), pa.list_(pa.float64())


class Cells(NamedTuple):
    """The features of a column: float32, shape (rows, width), without zeros, columns rising; and in
    which rows is something that was not there when it was counted, None = in none."""

    rows: sparse.csr_array
    unseen: NDArray[np.bool_] | None = None


def counted(default: Any = None) -> Any:
    """Return a field that ``fitted`` fills in, and that no option names."""
    return field(default=default, metadata={"counted": True})


@dataclass(frozen=True)
class Column(ABC):
    """How one column of a table becomes features.

    Parameters
    ----------
    name : of the column.
    null : what is done with a null: one of ``NULLS``; ``"column"`` is a feature of its own, the
        last one.
    """

    name: str
    null: str = REFUSED

    KIND: ClassVar[str]
    TYPES: ClassVar[str]
    """the types that it may have, in words"""
    NULLS: ClassVar[tuple[str, ...]]
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {}
    """field → its values"""

    def __post_init__(self) -> None:
        if not self.name:
            self.refuse("a column without a name")
        for name, values in {"null": self.NULLS, **self.CHOICES}.items():
            given = getattr(self, name)
            if wrong := {*(given if isinstance(given, tuple) else (given,))} - {*values}:
                self.refuse(f"{name}={min(map(str, wrong)):.40}: expected {', '.join(values)}")
        self._check()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out, on the way to workers, what they compute themselves."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def refuse(self, what: str) -> NoReturn:
        """Raise a SettingsError about this column."""
        raise SettingsError(f"columns: '{self.name:.60}:{self.KIND}': {what}.")

    def fits(self, type_: pa.DataType) -> bool:
        """Tell whether a column of this type can be of this kind."""
        return self._fits(plain(type_))

    def takes(self, type_: pa.DataType) -> bool:
        """Tell whether a column of this type can be read: it fits, or has nothing but nulls."""
        return pa.types.is_null(type_) or self.fits(type_)

    @property
    def is_fitted(self) -> bool:
        """Whether nothing is to be counted before rows are made."""
        return not self._wanted()

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the features, once it is fitted, without those that are hashed."""
        return (*self._names(), *([f"{self.name}=null"] if self.null == "column" else []))

    @property
    def hashes(self) -> int:
        """The number of features that are hashed; they come first."""
        bits = getattr(self, "hash_bits", None)
        return 0 if bits is None else 1 << bits

    @property
    def width(self) -> int:
        """The number of features, once it is fitted."""
        return self.hashes + len(self.features)

    def cells(self, array: pa.Array, spot: Spot) -> Cells:
        """Return the features of some rows; refuse at its place what has none."""
        return self._cells(*self._present(array, spot), spot)

    def tally(self, array: pa.Array, spot: Spot) -> Any:
        """Count what must be known of some rows; ``plus`` adds it to that of earlier ones."""
        return self._tally(*self._present(array, spot), spot)

    @abstractmethod
    def fitted(self, tally: Any) -> Self:
        """Return the column with what was counted of all rows."""

    def _present(self, array: pa.Array, spot: Spot) -> tuple[pa.Array, NDArray[np.bool_]]:
        """Return the values, and where they are missing, as is NaN; refuse nulls without a way."""
        if pa.types.is_null(array.type):  # all are missing
            array = pa.nulls(len(array), next(filter(self.fits, _TYPES)))
        array = self._decoded(array)
        missing = np.zeros(len(array), bool)
        if array.null_count or pa.types.is_floating(array.type):
            missing = np.asarray(array.is_null(nan_is_null=True))
        if self.null == REFUSED and missing.any():
            ways = " or ".join(f"null={way}" for way in self.NULLS if way != REFUSED)
            spec = f"{self.name}:{self.KIND},null={self.NULLS[-1]}"
            what = f"null in column {self.name!r}. Say what a null is: {ways}"
            later = "a model that is fitted refuses it: fill it in, or fit again"
            spot.refuse(first(missing), f"{what}, as in fit --columns '{spec}'; {later}.")
        return array, missing

    def _decoded(self, array: pa.Array) -> pa.Array:
        return decoded(array)

    @abstractmethod
    def _check(self) -> None:
        """Refuse fields that contradict each other."""

    @staticmethod
    @abstractmethod
    def _fits(type_: pa.DataType) -> bool: ...

    @abstractmethod
    def _wanted(self) -> bool:
        """Tell whether something is to be counted."""

    @abstractmethod
    def _names(self) -> Iterable[str]:
        """Return the names of the features that are not hashed, without that of a null."""

    @abstractmethod
    def _cells(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Cells: ...

    @abstractmethod
    def _tally(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Any: ...


def dense_cells(columns: NDArray[np.integer], values: NDArray[Any], width: int) -> sparse.csr_array:
    """Return rows of as many cells each, shape (rows, cells), whose columns rise."""
    values = values.astype(np.float32, copy=False)
    stored = values != 0
    within = np.broadcast_to(columns, values.shape)[stored].astype(np.int32)
    indptr = offsets_of(stored.sum(axis=1))
    return sparse.csr_array((values[stored], within, indptr), shape=(len(values), width))


def one_hot(codes: NDArray[np.integer], width: int) -> sparse.csr_array:
    """Return rows with a 1 in the column of their code, or nothing where it is below 0."""
    return dense_cells(codes[:, None], (codes >= 0)[:, None], width)


def hashed(
    names: Iterable[str], bits: int, alternate_sign: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the columns and the signs of names, as scikit-learn's FeatureHasher has them."""
    hashes = murmur_hash(names).view(np.int32).astype(np.int64)
    signs = np.where(alternate_sign & (hashes < 0), -1.0, 1.0)
    return np.abs(hashes) & ((1 << bits) - 1), signs
