"""Write results: predictions as lines of text between tabs, as a CSV table or as Parquet, which are
streamed, and other tables as Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamtron.core.rows import Label
from streamtron.core.text import label_text

GROUP_ROWS = 1 << 16
"""Rows of a row group of predictions at least, but for the last one."""

_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_ONE_OF = {"labels": "label", "decisions": "decision", "probabilities": "probability"}

Predictions = Mapping[str, NDArray[Any]]
"""Predictions of consecutive rows by name: ``label``, or ``labels``, a tuple of each row or shape
(rows, k), decisions and what else there is of each row, or of each class of it."""


class TextForm(NamedTuple):
    """How predictions are written: what separates fields, and whether a first line names them."""

    delimiter: str = "\t"
    header: bool = False


def text_predictions(
    predictions: Iterable[Predictions], classes: Sequence[Label], form: TextForm
) -> Iterator[bytes]:
    """Yield a line for every row: its label, then the other columns.

    Fields that hold a delimiter, a quote or an end of line are quoted as the csv module does.
    """
    for number, rows in enumerate(predictions):
        if number == 0 and form.header:
            yield f"{_line(names_of(rows, classes), form.delimiter)}\n".encode()
        lines = map(form.delimiter.join, zip(*_fields(rows, form), strict=True))
        yield "".join(f"{line}\n" for line in lines).encode()


def names_of(rows: Predictions, classes: Sequence[Label]) -> Iterator[str]:
    """Yield the names of all fields; ``decision NAME`` is of that class, and ``decision 1`` the
    highest where only some are written."""
    for name, column in rows.items():
        if column.ndim == 1:
            yield name
        else:
            labels, singular = rows.get("labels"), _ONE_OF.get(name, name)
            are_highest = labels is not None and labels.ndim == 2
            of = range(1, column.shape[1] + 1) if are_highest else classes
            yield from (f"{singular} {label_text(label)}" for label in of)


def _fields(rows: Predictions, form: TextForm) -> Iterator[Iterable[str]]:
    """Yield the text of fields, of all rows; numbers need no quotes, and are joined at once."""
    for name, column in rows.items():
        cells = column.reshape(len(column), -1)
        if name.startswith("label"):
            for labels in cells.T.tolist():
                texts = {label: _field(_label(label), form) for label in set(labels)}
                yield map(texts.__getitem__, labels)
        else:
            text = repr if column.dtype.kind == "f" else "{:d}".format  # all digits
            yield [form.delimiter.join(map(text, values)) for values in cells.tolist()]


def _label(label: Label | tuple[Label, ...]) -> str:
    """Return the text of a label, or the labels of a row between commas."""
    return _line(map(label_text, label), ",") if isinstance(label, tuple) else label_text(label)


def _field(text: str, form: TextForm) -> str:
    """Return a text as a field of a line."""
    return _line((text, ""), form.delimiter).removesuffix(form.delimiter)


def _line(fields: Iterable[str], delimiter: str) -> str:
    """Return fields as a line, without its end, that the csv module reads back."""
    text = io.StringIO()
    end = "\r\n"  # fields that hold either are quoted
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerow(fields)
    return text.getvalue().removesuffix(end)


def parquet_table(columns: Mapping[str, type], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a Parquet file with these columns, None as null, with page checksums.

    ``columns`` maps names to int, float, str or bool, in their order; a row has a value or None for
    every one of them.
    """
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    table = pa.table({name: [row[name] for row in rows] for name in columns}, schema=schema)
    return b"".join(_parquet([table]))


def parquet_predictions(
    predictions: Iterable[Predictions], classes: Sequence[Label]
) -> Iterator[bytes]:
    """Return the bytes of a Parquet file of predictions, piece by piece, with page checksums.

    The columns are those of a CSV table of them. Several labels a row are a list.
    """
    kind = pa.array(classes).type

    def column(values: NDArray[Any]) -> pa.Array:
        if values.dtype != object:
            return pa.array(values)
        several = isinstance(values[0], tuple)
        return pa.array(values.tolist(), pa.list_(kind) if several else kind)

    def table(rows: Predictions) -> pa.Table:
        columns = (field for values in rows.values() for field in values.reshape(len(values), -1).T)
        return pa.table([*map(column, columns)], [*names_of(rows, classes)])

    return _parquet(_row_groups(map(table, predictions)))


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join tables until they fill a row group."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(map(len, held)) >= GROUP_ROWS:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _parquet(groups: Iterable[pa.Table]) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file, a row group at a time."""
    file = io.BytesIO()
    writer: pq.ParquetWriter | None = None
    for group in groups:
        writer = writer or pq.ParquetWriter(
            file, group.schema, compression="zstd", write_page_checksum=True
        )
        writer.write_table(group)
        yield file.getvalue()
        file.seek(0)
        file.truncate()
    if writer is not None:
        writer.close()
        yield file.getvalue()
