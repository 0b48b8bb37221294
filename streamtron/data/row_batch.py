"""Define what readers give, batches of rows, and the settings of reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.rows import Label
from streamtron.data.formats.feature_names import Vocabulary

IndexBase = Literal["auto", 0, 1]


Layout = Literal[
    "lists", "lists of names", "pairs", "pairs of names", "map", "map of names", "vector", "columns"
]
"""How a row's features lie in a table, Parquet or Arrow.

``lists``, a list of column numbers or names and one of values beside it; ``pairs``, a list of
structs with a column and a value; ``map``, a map from columns to values; ``vector``, Spark's
``VectorUDT``; ``columns``, every feature a column of numbers of its own.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """How shards are to be read: one decision for the data set, kept in the model.

    Parameters
    ----------
    index_base : the number of the first column. ``"auto"`` takes text columns as numbered and
        settles on 1 after the first reading if column 0 never occurred; elsewhere it is 0.
    labels : ``"required"``, or ``"optional"`` (prediction: a row may come without one).
    weights_in_label : text only, a label is written ``label:weight``, and is a number.
    multiclass : labels in text may be names.
    multilabel : a row has any number of labels: ``1,5,7`` in text, numbers or names; in tables a
        list, or one. Not with ``weights_in_label``.
    label_column, weight_column : names in tables; None = found by the usual names.
    features : names of the columns that hold the features, or patterns (``f*``, ``*``) for columns
        of numbers; None = found by the usual names.
    values_column : where the features are a list, the name of the list of their values; None =
        found by the usual names, ``""`` = there is none and all values are 1.
    weights : ``"ignored"`` (prediction) leaves the column of weights alone, and a shard may come
        without it.
    layout : None = told by the types of the first shard's columns. Once it is settled, all names
        are the names that were found, and every shard must have this layout.
    asked : once the layout is settled, what ``features`` was before: a later shard that has other
        columns of such names is not of the same features.
    pair : once the layout is settled, the names of a pair's two fields where their order told
        which is the column and which the value; None where their names did.
    settled_by : whose layout it is, for messages.
    hash_bits, hash_seed : features that have names are hashed, see ``Hashing``.
    vocabulary : features that have names have their columns from here.
    of_text : whether the columns are those of a model that was made from text. Tables count columns
        from 0 whatever the text did, and are numbered as it was.
    unknown_features : a name that is not in the vocabulary, or a column of numbers that matches
        what was asked for and is not among the features, is ``"refused"``, or gets a column number
        that is ``"out_of_range"``: prediction counts it, and it weighs 0.

    Examples
    --------
    >>> reading = Reading(index_base=0, layout="map", features=("bag",), label_column="spam")
    >>> Reading.from_contract(reading.contract()) == reading
    True
    """

    index_base: IndexBase = "auto"
    labels: Literal["required", "optional"] = "required"
    weights_in_label: bool = False
    multiclass: bool = False
    multilabel: bool = False
    label_column: str | None = None
    weight_column: str | None = None
    features: tuple[str, ...] | None = None
    values_column: str | None = None
    weights: Literal["read", "ignored"] = "read"
    layout: Layout | None = None
    asked: tuple[str, ...] | None = None
    pair: tuple[str, ...] | None = None
    settled_by: str = field(default="", compare=False)
    hash_bits: int | None = None
    hash_seed: int = 0
    vocabulary: Vocabulary | None = None
    of_text: bool = False
    unknown_features: Literal["refused", "out_of_range"] = "refused"

    def contract(self) -> dict[str, Any]:
        """Return what a model keeps of it, as plain JSON values."""
        plain = {name: getattr(self, field_) for name, (field_, _) in _CONTRACT.items()}
        for name in ("features", "asked", "pair"):
            plain[name] = None if plain[name] is None else list(plain[name])
        plain["vocabulary"] = None if self.vocabulary is None else list(self.vocabulary.names)
        return plain

    @classmethod
    def from_contract(cls, contract: Mapping[str, Any]) -> Reading:
        """Make the reading of a contract; what is absent there has its default."""
        given: dict[str, Any] = {}
        for name, (field_, is_valid) in _CONTRACT.items():
            if name not in contract:
                continue
            value = contract[name]
            if not is_valid(value):
                found = f"{name} = {value!r:.60}"
                raise DataError(f"the model's reader contract has {found}. Fit again.")
            given[field_] = tuple(value) if isinstance(value, list) else value
        if given.get("vocabulary") is not None:
            given["vocabulary"] = Vocabulary(given["vocabulary"])
        given.setdefault("asked", given.get("features"))
        return cls(**given, settled_by="the model")

    @property
    def table_base(self) -> int:
        """The number of the first column in tables."""
        return 1 if self.index_base == 1 and not self.of_text else 0

    @property
    def table_shift(self) -> int:
        """What the column numbers of tables are raised by."""
        return 1 if self.of_text and self.index_base == 1 else 0

    def key(self) -> dict[str, Any]:
        """Return plain values that are equal where the same file gives the same batches."""
        key = self.contract() | {"labels": self.labels, "weights": self.weights}
        key["unknown_features"] = self.unknown_features
        key["vocabulary"] = None if self.vocabulary is None else self.vocabulary.digest
        return key | ({"table_shift": self.table_shift} if self.table_shift else {})


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(x, str) for x in value))


_CONTRACT: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "index_base": ("index_base", lambda x: type(x) in (int, str) and x in ("auto", 0, 1)),
    "weights_in_label": ("weights_in_label", _is_bool),
    "multiclass": ("multiclass", _is_bool),
    "multilabel": ("multilabel", _is_bool),
    "label": ("label_column", _is_text),
    "weight": ("weight_column", _is_text),
    "layout": ("layout", lambda x: x is None or x in get_args(Layout)),
    "features": ("features", _are_names),
    "values": ("values_column", _is_text),
    "asked": ("asked", _are_names),
    "pair": ("pair", _are_names),
    "hash_bits": ("hash_bits", lambda x: x is None or (type(x) is int and 1 <= x <= 31)),
    "hash_seed": ("hash_seed", lambda x: type(x) is int and 0 <= x < 2**32),
    "vocabulary": ("vocabulary", _are_names),
}
"""Name in the contract (and of the setting, where there is one) → field, and whether a value is
valid: a model may come from anywhere."""


# Rows -------------------------------------------------------------------------------------------

Offsets = NDArray[np.int64]
"""Of rows that may have several labels: row i has ``codes[offsets[i]:offsets[i + 1]]``. None where
every row has one, ``codes[i]``."""


class RowBatch(NamedTuple):
    """Some consecutive rows of one shard, checked: columns rise strictly within a row, values are
    finite, weights are finite and ≥ 0. Cut anywhere the reader likes.

    ``codes`` point into ``classes`` (this batch's own table, in order of appearance), -1 = no
    label. Where a row may have several, row i has ``codes[code_offsets[i]:code_offsets[i+1]]``, all
    different, none of them -1; elsewhere ``code_offsets`` is None. ``values`` is None where all are
    1, ``squares`` where ‖x_k‖² is not known yet. ``place(i)`` names row i of the batch for a
    message: ``"part-0007.svm, line 1204"`` or ``"part-0007.parquet, row group 3, row 17"``.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32] | None
    codes: NDArray[np.int32]
    classes: list[Label]
    weights: NDArray[np.float64] | None
    place: Callable[[int], str]
    code_offsets: NDArray[np.int64] | None = None
    squares: NDArray[np.float64] | None = None

    @property
    def rows(self) -> int:
        """Rows in the batch."""
        return len(self.indptr) - 1


def fitting_rows(batch: RowBatch, start: int, nonzeros: int, *, alone: bool) -> int:
    """Count the rows from ``start`` on that so many nonzeros hold; a row that is ``alone`` always
    fits."""
    end = int(batch.indptr[start]) + nonzeros
    fitting = int(np.searchsorted(batch.indptr, end, side="right")) - 1 - start
    return max(min(fitting, batch.rows - start), alone)


def slice_batch(batch: RowBatch, start: int, stop: int) -> RowBatch:
    """Return rows ``start`` … ``stop - 1`` of a batch, as views; its class table is kept whole."""
    first, last, place = int(batch.indptr[start]), int(batch.indptr[stop]), batch.place
    codes, code_offsets = cut_codes(batch.codes, batch.code_offsets, start, stop)
    return batch._replace(
        indptr=batch.indptr[start : stop + 1] - first,
        indices=batch.indices[first:last],
        values=None if batch.values is None else batch.values[first:last],
        codes=codes,
        weights=None if batch.weights is None else batch.weights[start:stop],
        place=lambda i: place(start + i),
        code_offsets=code_offsets,
        squares=None if batch.squares is None else batch.squares[start:stop],
    )


class ShardReader(Protocol):
    """One shard. ``batches()`` reads it from its start, any number of times."""

    def batches(self) -> Iterator[RowBatch]:
        """The shard's rows in file order. Raises DataError (contents), MachineError (reading)."""
        ...

    def fingerprint(self) -> str:
        """xxh3-128 of the file's bytes, 32 hex digits; free after ``batches()``."""
        ...


def beyond_float32(integers: NDArray[Any]) -> NDArray[np.bool_]:
    """Which integers float32 cannot hold: more than 24 bits from their first 1 to their last.

    Examples
    --------
    >>> beyond_float32(np.array([2**24, 2**24 + 1, 2**24 + 2, -(2**63)])).tolist()
    [False, True, False, False]
    """
    size = integers if integers.dtype.kind == "u" else np.abs(integers.astype(np.int64))
    size = size.astype(np.uint64)  # also right for -2⁶³, whose absolute value wraps onto itself
    last_one = size & (~size + np.uint64(1))
    return (size >> np.uint64(24) >= last_one) & (size > 0)


def offsets_of(lengths: NDArray[np.integer]) -> Offsets:
    """Compute offsets from 0 of rows of these lengths; int64, shape (rows + 1,)."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def cut_codes(
    codes: NDArray[np.int32], offsets: Offsets | None, start: int, stop: int
) -> tuple[NDArray[np.int32], Offsets | None]:
    """Return the codes of rows ``start`` … ``stop - 1`` as a view, and their offsets from 0."""
    if offsets is None:
        return codes[start:stop], None
    first, last = int(offsets[start]), int(offsets[stop])
    return codes[first:last], offsets[start : stop + 1] - first


def row_of(offsets: Offsets | None, at: int) -> int:
    """Return the row of a nonzero, by ``indptr``, or of a code, by its offsets."""
    return at if offsets is None else int(np.searchsorted(offsets, at, side="right")) - 1


def repeated(codes: NDArray[np.int32], offsets: Offsets | None) -> tuple[int, int] | None:
    """Return the first row that has a label twice, and that label's code; None where no row has.

    Examples
    --------
    >>> repeated(np.array([1, 0, 1, 1]), np.array([0, 2, 4])), repeated(np.array([1, 1]), None)
    ((1, 1), None)
    """
    if offsets is None or (lengths := np.diff(offsets)).max(initial=0) <= 1:
        return None
    rows = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    keys = np.sort(rows << 32 | codes)
    again = keys[1:][keys[1:] == keys[:-1]]
    return (int(again[0]) >> 32, int(again[0]) & 0xFFFFFFFF) if len(again) else None
