"""Number labels in their order of appearance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from streamtron.core.errors import DataError
from streamtron.core.rows import Label, are_targets
from streamtron.data.row_batch import RowBatch, row_of

MOST_NUMBERS = 100
"""Numbers that are taken as classes, at most, where nobody said that they are."""


class LabelTable:
    """The labels of some rows in order of appearance; all of one kind, at most ``most``, names any
    number if that is above 2. Or only those of ``classes``, in that order.
    """

    def __init__(self, most: int | None = None, classes: Sequence[Label] | None = None) -> None:
        self.labels: list[Label] = list(classes or ())
        self._codes = {label: code for code, label in enumerate(self.labels)}
        self._most, self._closed = most, classes is not None
        self.places = list[str]()
        """Where each label was met first that was not given."""

    def recoded(self, batch: RowBatch) -> RowBatch:
        """Return rows with the codes of this table, which gets their labels; or with their
        targets."""
        if are_targets(batch.codes):
            return batch
        codes, count = batch.codes, len(batch.codes)
        first = np.full(len(batch.classes) + 1, count)
        first[codes[::-1]] = np.arange(count)[::-1]  # of the same code the last one stays
        table = np.full(len(first), -1, np.int32)
        for code in np.flatnonzero(first[:-1] < count).tolist():  # rising: as labels appear
            row = row_of(batch.code_offsets, int(first[code]))
            table[code] = self.code(batch.classes[code], partial(batch.place, row))
        return batch._replace(codes=table[codes], classes=self.labels)

    def code(self, label: Label, place: Callable[[], str]) -> int:
        """Return the code of a label, which may be new; ``place`` is for messages."""
        kind = _kind(label)
        if self.labels and kind != _kind(self.labels[0]):
            raise DataError(
                f"{place()}: the {kind} {label!r} as label, where the labels before are "
                f"{_kind(self.labels[0])}s ({_listed(self.labels)}). Write all labels alike."
            )
        if label not in self._codes:
            if self._closed:
                raise DataError(
                    f"{place()}: label {label!r}. Known are {_listed(self.labels)}; remove the row "
                    "or correct its label, or fit anew on all shards if it is a class of its own."
                )
            if self._most is not None:
                self._check_another(label, place(), self._most)
            self._codes[label] = len(self.labels)
            self.labels.append(label)
            self.places.append(place())
        return self._codes[label]

    def _check_another(self, label: Label, where: str, most: int) -> None:
        """Refuse a label that is one too many."""
        count, is_name = len(self.labels), isinstance(label, str)
        is_whole = is_name or all(float(x).is_integer() for x in (*self.labels, label))
        if count < 2 or (is_whole and (is_name or count < most) and most != 2):
            return
        remedy = "Use --multiclass, or remove the row." if is_name else _NUMBERS
        which = "a third label" if count == 2 else f"label number {count + 1},"
        raise DataError(f"{where}: {which} {label!r} after {_listed(self.labels)}. {remedy}")


_NUMBERS = (
    "Use --multiclass if the numbers are classes, or --loss squared_error if they are to be "
    "predicted as numbers."
)

QUANTITY = "numbers rather than classes, which --loss squared_error predicts"


def are_quantity(labels: Collection[Any]) -> bool:
    """Tell whether labels are numbers, and too many for classes, or more than two and not whole."""
    if len(labels) <= 2 or any(isinstance(label, str) for label in labels):
        return False
    return len(labels) > MOST_NUMBERS or not all(float(x).is_integer() for x in labels)


def _kind(label: Label) -> str:
    if isinstance(label, bool):
        return "boolean"
    return "string" if isinstance(label, str) else "number"


def _listed(labels: Sequence[Label], most: int = 5) -> str:
    shown = [repr(label) for label in labels[:most]]
    if len(labels) > most:
        return ", ".join(shown) + ", …"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def too_few(counting: Collection[Label], labels: Sequence[Label], rows: int) -> DataError:
    """Make the error where rows of a weight above 0 have too few labels."""
    nothing = f"none of the {rows} rows has a label"
    if not labels:
        return DataError(f"{nothing}: expected one at least. Check --label.")
    if not counting:
        return DataError(f"{nothing} and a weight above 0. Check the weights.")
    which = f"all {rows} rows" if len(labels) == 1 else "all rows of a weight above 0"
    check = "--label" if len(labels) == 1 else "the weights"
    return DataError(
        f"{which} have the label {next(iter(counting))}: expected two labels. Check {check}, or "
        "add shards that hold the other one."
    )
