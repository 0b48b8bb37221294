"""Write predictions as lines of text: between tabs, or as a CSV table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from streamtron.core.rows import Label
from streamtron.core.text import down, label_text, up

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
            yield f"{_line(_names(rows, classes), form.delimiter)}\n".encode()
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
    quoted = partial(_quoted, delimiter=form.delimiter)
    label_field = partial(_label_field, delimiter=form.delimiter)
    fields: list[Iterable[str]] = [
        map(quoted, map(_cell, array.to_pylist())) for array in rows.kept.values()
    ]
    if rows.labels is not None:
        labels = rows.labels.tolist()
        texts = {label: label_field(label) for label in set(labels)}
        fields.append(map(texts.__getitem__, labels))
    for name, column in rows.columns.items():
        text = _rounding(name, form.digits) if column.dtype.kind == "f" else _flag
        text = label_field if column.dtype == object else text
        values = column.reshape(len(column), -1).tolist()
        fields.append([form.delimiter.join(map(text, row)) for row in values])
    lines = (form.delimiter.join(line) + "\n" for line in zip(*fields, strict=True))
    return "".join(lines).encode()


def _rounding(name: str, digits: int | None) -> Callable[[float], str]:
    """Return how the numbers of a column become text: bounds are rounded outwards."""
    if digits is None:
        return repr
    outwards = {"at_least": down, "at_most": up}.get(name)
    return partial(outwards, digits=digits) if outwards else f"{{:.{digits}g}}".format


def _flag(value: bool) -> str:
    return str(int(value))


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _label(label: Label | tuple[Label, ...]) -> str:
    """Return a label as text, or the labels of a row between commas."""
    return _line(map(label_text, label), ",") if isinstance(label, tuple) else label_text(label)


def _label_field(label: Label | tuple[Label, ...], delimiter: str) -> str:
    return _quoted(_label(label), delimiter)


def _quoted(text: str, delimiter: str) -> str:
    """Return a text as a field of a line."""
    return _line((text, ""), delimiter).removesuffix(delimiter)


def _line(fields: Iterable[str], delimiter: str) -> str:
    """Return fields as a line, without its end, that the csv module reads back."""
    text = io.StringIO()
    end = "\r\n"  # fields that hold either are quoted
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerow(fields)
    return text.getvalue().removesuffix(end)
