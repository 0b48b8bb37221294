"""What every reader gives: pieces of a shard, as the file has them; and how a file is to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamtron.chunk import Label

IndexBase = Literal["auto", 0, 1]


@dataclass(frozen=True, slots=True)
class Reading:
    """How shards are to be read: one decision for the data set, kept in the model.

    Parameters
    ----------
    index_base : the number of the first column. ``"auto"`` takes text columns as numbered and
        settles on 1 after the first reading if column 0 never occurred; Parquet is 0-based.
    labels : ``"required"``, or ``"optional"`` (prediction: a row may come without one).
    weights_in_label : text only, a label is written ``label:weight``.
    label_column, weight_column, indices_column, values_column : names in Parquet; None = found by
        the usual names.
    """

    index_base: IndexBase = "auto"
    labels: Literal["required", "optional"] = "required"
    weights_in_label: bool = False
    label_column: str | None = None
    weight_column: str | None = None
    indices_column: str | None = None
    values_column: str | None = None


class Piece(NamedTuple):
    """Some consecutive rows of one shard, checked: columns rise strictly within a row, values are
    finite, weights are finite and ≥ 0. Cut anywhere the reader likes.

    ``codes`` point into ``classes`` (this piece's own table, in order of appearance), -1 = no label.
    ``values`` is None where all are 1. ``place(i)`` names row i of the piece for a message:
    ``"part-0007.svm, line 1204"`` or ``"part-0007.parquet, row group 3, row 17"``.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32] | None
    codes: NDArray[np.int32]
    classes: list[Label]
    weights: NDArray[np.float64] | None
    place: Callable[[int], str]


class ShardReader(Protocol):
    """One shard. ``pieces()`` reads it from its start, any number of times."""

    def pieces(self) -> Iterator[Piece]:
        """The shard's rows in file order. Raises DataError (contents), MachineError (reading)."""
        ...

    def fingerprint(self) -> str:
        """xxh3-128 of the file's bytes, 32 hex digits; free once ``pieces()`` has streamed them."""
        ...
