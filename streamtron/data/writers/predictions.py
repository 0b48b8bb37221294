"""Write predictions as lines of text: between tabs, or as a CSV table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.rows import Label
from streamtron.core.text import cells_of, down, label_text, up

PREDICTED = (
    "label", "labels", "decision", "decisions", "prediction", "probability", "probabilities",
    "certain", "at_least", "at_most",
)  # fmt: skip
"""Names of the columns of predictions."""

_ONE_OF = {"labels": "label", "decisions": "decision", "probabilities": "probability"}


class PredictedRows(NamedTuple):
    """Predictions of consecutive rows: columns ``kept`` of their table, as Arrow arrays by name;
    ``labels``, of a multilabel model a tuple each, of regression None; ``columns`` : decisions and
    what else there is of each row, or of each class of it, by name."""

    kept: Mapping[str, Any]
    labels: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]]


class TextForm(NamedTuple):
    """How predictions are written: what separates fields, whether a first line names them, and the
    significant digits of numbers; None = as many as it takes to read the same float64."""

    delimiter: str = "\t"
    header: bool = False
    digits: int | None = None


def text_predictions(
    predictions: Iterable[PredictedRows], classes: Sequence[Label], form: TextForm
) -> Iterator[bytes]:
    """Yield a line for every row: the columns kept, its label, then the other columns.

    Fields that hold a delimiter, a quote or an end of line are quoted as the csv module does.
    """
    for number, rows in enumerate(predictions):
        if number == 0 and form.header:
            names = [*_names(rows, classes)]
            if clash := [name for name in rows.kept if names.count(name) > 1]:
                raise SettingsError(
                    f"{clash[0]!r} cannot be kept: the output has that name already. Keep other "
                    "columns of tables."
                )
            yield f"{_line(names, form.delimiter)}\n".encode()
        yield _lines(rows, form)


def _names(rows: PredictedRows, classes: Sequence[Label]) -> Iterator[str]:
    """Yield the names of all fields; ``decision NAME`` is of that class."""
    yield from rows.kept
    if rows.labels is not None:
        yield "labels" if isinstance(rows.labels.tolist()[0], tuple) else "label"
    for name, column in rows.columns.items():
        if column.ndim == 1:
            yield name
        else:
            singular = _ONE_OF.get(name, name)
            of = range(1, column.shape[1] + 1) if "labels" in rows.columns else classes
            yield from (f"{singular} {label_text(label)}" for label in of)


def _lines(rows: PredictedRows, form: TextForm) -> bytes:
    fields = [[_field(cell, form) for cell in cells_of(array)] for array in rows.kept.values()]
    if rows.labels is not None:
        labels = rows.labels.tolist()
        texts = {label: _label(label, form) for label in set(labels)}
        fields.append([texts[label] for label in labels])
    for name, column in rows.columns.items():
        text, values = _text_of(name, column.dtype.kind, form), column.reshape(len(column), -1)
        fields.append([form.delimiter.join(map(text, row)) for row in values.tolist()])
    lines = (form.delimiter.join(line) + "\n" for line in zip(*fields, strict=True))
    return "".join(lines).encode()


def _text_of(name: str, kind: str, form: TextForm) -> Callable[[Any], str]:
    """Return how the values of a column become text: bounds are rounded outwards."""
    if kind != "f":
        return partial(_label, form=form) if kind == "O" else "{:d}".format
    if form.digits is None:
        return repr
    outwards = {"at_least": down, "at_most": up}.get(name)
    return partial(outwards, digits=form.digits) if outwards else f"{{:.{form.digits}g}}".format


def _label(label: Label | tuple[Label, ...], form: TextForm) -> str:
    """Return a label as a field of a line, or the labels of a row between commas."""
    if isinstance(label, tuple):
        return _field(_line(map(label_text, label), ","), form)
    return _field(label_text(label), form)


def _field(value: object, form: TextForm) -> str:
    """Return a value as a field of a line, nothing for None."""
    text = "" if value is None else str(value)
    return _line((text, ""), form.delimiter).removesuffix(form.delimiter)


def _line(fields: Iterable[str], delimiter: str) -> str:
    """Return fields as a line, without its end, that the csv module reads back."""
    text = io.StringIO()
    end = "\r\n"  # fields that hold either are quoted
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerow(fields)
    return text.getvalue().removesuffix(end)
