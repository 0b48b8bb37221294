"""What every reader gives, pieces of a shard as the file has them; and how it is to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.rows import Label
from streamtron.data.formats.feature_names import Vocabulary
from streamtron.data.labels import cut_codes

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
    strangers : a name that is not in the vocabulary, or a column of numbers that is none of the
        features although it matches what was asked for, is ``"refused"``, or gets a column
        ``"beyond"`` all those that are: prediction counts it, and it weighs 0.

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
    strangers: Literal["refused", "beyond"] = "refused"

    def contract(self) -> dict[str, Any]:
        """What a model keeps of it, as plain JSON values."""
        plain = {ours: getattr(self, theirs) for ours, theirs in _CONTRACT.items()}
        for name in ("features", "asked", "pair"):
            plain[name] = None if plain[name] is None else list(plain[name])
        plain["vocabulary"] = None if self.vocabulary is None else list(self.vocabulary.names)
        return plain

    @classmethod
    def from_contract(cls, contract: Mapping[str, Any]) -> Reading:
        """The reading that a contract stands for; what it does not speak of is the default.

        Raises
        ------
        DataError : a value that no contract of ours has.
        """
        for ours, is_right in _RIGHT.items():
            if ours in contract and not is_right(contract[ours]):
                found = f"{ours} = {contract[ours]!r:.60}"
                raise DataError(f"the model's reader contract has {found}. Fit again.")
        given = {theirs: contract[ours] for ours, theirs in _CONTRACT.items() if ours in contract}
        makers = dict.fromkeys(("features", "asked", "pair"), tuple) | {"vocabulary": _vocabulary}
        for name, make in makers.items():
            if given.get(name) is not None:
                given[name] = make(given[name])
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
        """Plain values that are equal where the same file gives the same pieces."""
        vocabulary = None if self.vocabulary is None else self.vocabulary.digest
        shift = {"table_shift": self.table_shift} if self.table_shift else {}
        return self.contract() | shift | {
            "labels": self.labels, "weights": self.weights, "strangers": self.strangers,
            "vocabulary": vocabulary,
        }  # fmt: skip


_CONTRACT = {
    "index_base": "index_base",
    "weights_in_label": "weights_in_label",
    "multiclass": "multiclass",
    "multilabel": "multilabel",
    "label": "label_column",
    "weight": "weight_column",
    "layout": "layout",
    "features": "features",
    "values": "values_column",
    "asked": "asked",
    "pair": "pair",
    "hash_bits": "hash_bits",
    "hash_seed": "hash_seed",
    "vocabulary": "vocabulary",
}
"""Name in the contract (and of the setting, where there is one) → field."""


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(x, str) for x in value))


_RIGHT: dict[str, Callable[[Any], bool]] = {
    "index_base": lambda value: type(value) in (int, str) and value in ("auto", 0, 1),
    "weights_in_label": lambda value: isinstance(value, bool),
    "label": _is_text,
    "weight": _is_text,
    "layout": lambda value: value is None or value in get_args(Layout),
    "features": _are_names,
    "values": _is_text,
    "asked": _are_names,
    "pair": _are_names,
    "hash_bits": lambda value: value is None or (type(value) is int and 1 <= value <= 31),
    "hash_seed": lambda value: type(value) is int and 0 <= value < 2**32,
    "vocabulary": _are_names,
}
"""Name in the contract → whether a value can be meant: a model may come from anywhere."""


def _vocabulary(names: list[str]) -> Vocabulary:
    return Vocabulary(tuple(names))


class RowBatch(NamedTuple):
    """Some consecutive rows of one shard, checked: columns rise strictly within a row, values are
    finite, weights are finite and ≥ 0. Cut anywhere the reader likes.

    ``codes`` point into ``classes`` (this piece's own table, in order of appearance), -1 = no
    label. Where a row may have several, row i has ``codes[code_offsets[i]:code_offsets[i+1]]``, all
    different, none of them -1; elsewhere ``code_offsets`` is None. ``values`` is None where all are
    1, ``squares`` where ‖x_k‖² is not known yet. ``place(i)`` names row i of the piece for a
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
        """Rows in the piece."""
        return len(self.indptr) - 1


def cut_piece(piece: RowBatch, start: int, stop: int) -> RowBatch:
    """Rows ``start`` … ``stop - 1`` of a piece, as views; its class table is kept whole.

    Examples
    --------
    >>> piece = RowBatch(np.array([0, 1, 3]), np.array([5, 2, 4], np.uint32), None,
    ...               np.array([0, 0], np.int32), [1.0], None, "row {}".format)
    >>> last = cut_piece(piece, 1, 2)
    >>> last.indptr.tolist(), last.indices.tolist(), last.place(0)
    ([0, 2], [2, 4], 'row 1')
    """
    first, last = int(piece.indptr[start]), int(piece.indptr[stop])
    place = piece.place
    codes, code_offsets = cut_codes(piece.codes, piece.code_offsets, start, stop)
    return RowBatch(
        piece.indptr[start : stop + 1] - first,
        piece.indices[first:last],
        None if piece.values is None else piece.values[first:last],
        codes,
        piece.classes,
        None if piece.weights is None else piece.weights[start:stop],
        lambda i: place(start + i),
        code_offsets,
    )


class ShardReader(Protocol):
    """One shard. ``pieces()`` reads it from its start, any number of times."""

    def pieces(self) -> Iterator[RowBatch]:
        """The shard's rows in file order. Raises DataError (contents), MachineError (reading)."""
        ...

    def fingerprint(self) -> str:
        """xxh3-128 of the file's bytes, 32 hex digits; free once ``pieces()`` has streamed them."""
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
