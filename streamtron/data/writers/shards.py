"""Write row batches as new shards, Parquet or libsvm text, all of them or none.

Rows keep their order. Shards are cut every ``rows_per_shard`` rows and row groups every 16,384
rows or 2²⁰ nonzeros, wherever the source was cut, so equal rows give equal files. What is held in
memory is one row group (or one longer row).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import Label
from streamtron.data.blocks import RowCutter
from streamtron.data.disk import flush, writing_to
from streamtron.data.formats.text_labels import is_text_name
from streamtron.data.row_batch import RowBatch, fitting_rows, offsets_of, row_of, slice_batch
from streamtron.data.writers.new_shards import REMEDY, new_shards

Format = Literal["libsvm", "parquet"]
LabelType = type[float] | type[str] | type[bool]

ROWS_PER_SHARD = 1 << 17
GROUP_ROWS = 1 << 14
GROUP_NONZEROS = 1 << 20
NO_LIMIT = 1 << 62

ENDINGS: dict[Format, str] = {"libsvm": "svm", "parquet": "parquet"}


class Written(NamedTuple):
    """What came out: one shard's or a whole conversion's rows, nonzeros and bytes."""

    rows: int
    nonzeros: int
    bytes: int

    def plus(self, other: Written) -> Written:
        """Both together."""
        return Written(*map(sum, zip(self, other, strict=True)))


class ShardStyle(NamedTuple):
    """How shards are written; the same for all shards of a conversion.

    Parameters
    ----------
    index_base : the number of the first column in the batches.
    text_base : the number of the first column in libsvm text; Parquet is always 0-based.
    label_type : ``float``, ``str`` or ``bool``; libsvm text takes strings only with ``names``.
    weights : write row weights: column ``weight`` in Parquet, ``label:weight`` in text.
    multilabel : rows have any number of labels: a list in Parquet, ``1,5,7`` in text.
    names : strings are written as labels in text, which is then to be read as multiclass or
        multilabel.
    """

    index_base: Literal[0, 1] = 0
    text_base: Literal[0, 1] = 1
    label_type: LabelType = float
    weights: bool = False
    multilabel: bool = False
    names: bool = False


def convert(
    batches: Iterable[RowBatch],
    destination: str,
    *,
    to: Format,
    index_base: Literal[0, 1],
    text_base: Literal[0, 1] = 1,
    weights: bool = False,
    names: bool = False,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
) -> Written:
    """Write ``destination/part-00000.parquet``, … (or ``.svm``) from the batches of any readers.

    The shards appear together when the last one is safely on disk; if anything fails, the directory
    stays as it was. Parquet gets columns ``indices`` list<uint32>, ``values`` list<float32>,
    ``label`` and ``weight``, with page checksums, zstd. Text gets the shortest decimals that read
    back as the same float32.

    Parameters
    ----------
    batches : of all shards, in order.
    to : ``"libsvm"`` or ``"parquet"``.
    index_base : the number of the first column in the batches; a column below it is refused.
    text_base : the number of the first column in the text written.
    weights : write row weights; a batch without any has weight 1. If False, weights are refused.
    names : text may have strings as labels; it must then be read as multiclass or multilabel.
    overwrite : replace ``part-*`` files of an earlier conversion; a directory with other files is
        refused.

    Raises
    ------
    SettingsError : the destination holds something, or ``rows_per_shard`` is below 1.
    DataError : no rows, strings as labels for text, labels of two types, a column below the base;
        in text weights of rows with several labels, or a row with neither a label nor a nonzero.
    MachineError : the disk is full or not writable.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> row = RowBatch(np.array([0, 2]), np.array([3, 9], np.uint32),
    ...             np.array([1, 0.1], np.float32), np.array([0], np.int32),
    ...             [-1.0], None, "line {}".format)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     convert([row], directory, to="libsvm", index_base=0)
    Written(rows=1, nonzeros=2, bytes=14)
    """
    check_rows_per_shard(rows_per_shard)
    rest = iter(batches)
    held = _up_to_a_label(rest)
    if not held:
        raise DataError(f"{destination}: no rows to write. Give shards that have rows.")
    labels = labels_of(held)
    style = ShardStyle(index_base, text_base, labels.type or float, weights, labels.several, names)
    with new_shards(destination, ENDINGS[to], overwrite) as shard_path:
        return write_shards(chain(held, rest), shard_path, to, style, rows_per_shard)


def write_shards(
    batches: Iterable[RowBatch], path_of: Callable[[int], str], to: Format, style: ShardStyle,
    rows_per_shard: int,
) -> Written:  # fmt: skip
    """Write consecutive shards of ``rows_per_shard`` rows; ``path_of`` gives the path of a number.

    A shard appears under its path when it is complete, so two workers may write the same one.
    """
    total = Written(0, 0, 0)
    for number, numbered in groupby(_numbered(batches, rows_per_shard), key=itemgetter(0)):
        path = path_of(number)
        temporary = f"{path}.{secrets.token_hex(4)}"
        try:
            written = write_shard(temporary, (batch for _, batch in numbered), to, style)
            with writing_to(path, REMEDY):
                os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        total = total.plus(written)
    return total


def check_rows_per_shard(rows: int) -> None:
    """Refuse a number of rows that no shard can have, with a SettingsError."""
    if rows < 1:
        raise SettingsError(f"rows per shard {rows}. A shard needs at least 1 row.")


class Labels(NamedTuple):
    """What the labels of a conversion are, by its first rows."""

    type: LabelType | None
    """of the first label; None without one"""
    several: bool
    """whether a row may have any number of them"""


def labels_of(batches: Sequence[RowBatch]) -> Labels:
    """Tell the type of labels by the first of these batches that has any."""
    first = next((batch.classes[0] for batch in batches if batch.classes), None)
    return Labels(None if first is None else _type_of(first), batches[0].code_offsets is not None)


def _up_to_a_label(batches: Iterator[RowBatch]) -> list[RowBatch]:
    """Take the first batches that have rows, up to one with a label."""
    held = []
    for batch in batches:
        if batch.rows:
            held.append(batch)
        if batch.classes:
            break
    return held


# One shard -------------------------------------------------------------------------------------


def write_shard(path: str, batches: Iterable[RowBatch], to: Format, style: ShardStyle) -> Written:
    """Write one shard, a row group at a time, and flush it to the disk."""
    rows = nonzeros = 0
    with writing_to(path, REMEDY), open(path, "wb") as file:
        with _group_writer(file, to, style) as write:
            for group in _groups(batches, style):
                write(group)
                rows, nonzeros = rows + group.rows, nonzeros + len(group.indices)
        return Written(rows, nonzeros, flush(file))


@contextmanager
def _group_writer(
    file: BinaryIO, to: Format, style: ShardStyle
) -> Iterator[Callable[[RowBatch], None]]:
    if to == "libsvm":
        yield lambda group: file.writelines((_text(group, style), b"\n"))
        return
    with pq.ParquetWriter(
        file, _schema(style), compression="zstd", write_page_checksum=True
    ) as writer:
        yield lambda group: writer.write_table(_table(group, style), row_group_size=GROUP_ROWS)


def _schema(style: ShardStyle) -> pa.Schema:
    labels = {float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    label = labels[style.label_type]
    fields = {
        "indices": pa.list_(pa.uint32()),
        "values": pa.list_(pa.float32()),
        "label": pa.list_(label) if style.multilabel else label,
    }
    return pa.schema(fields | ({"weight": pa.float64()} if style.weights else {}))


def _table(batch: RowBatch, style: ShardStyle) -> pa.Table:
    schema = _schema(style)
    indptr = pa.array(batch.indptr, pa.int32())
    label_type = schema.field("label").type
    classes = pa.array(batch.classes, label_type.value_type if style.multilabel else label_type)
    labels = classes.take(pa.array(batch.codes, mask=batch.codes < 0))
    if style.multilabel:
        labels = pa.ListArray.from_arrays(pa.array(batch.code_offsets, pa.int32()), labels)
    columns = [
        pa.ListArray.from_arrays(indptr, pa.array(_based(batch, style.index_base, 0))),
        pa.ListArray.from_arrays(indptr, pa.array(_values(batch))),
        labels,
    ]
    if style.weights:
        columns.append(pa.array(_weights(batch)))
    return pa.Table.from_arrays(columns, schema=schema)


def _text(batch: RowBatch, style: ShardStyle) -> pa.Buffer:
    """The rows as lines of libsvm text, by Arrow's string kernels: no Python loop over rows."""
    _check_text(batch, style)
    heads = pa.array(map(_label_text, batch.classes), pa.large_string()).take(pa.array(batch.codes))
    if batch.code_offsets is not None:
        # A row without a label begins with a blank, as scikit-learn writes it.
        heads = pc.binary_join(_large_lists(batch.code_offsets, heads), _string(","))
    if style.weights:
        heads = _join(":", heads, _decimal(_weights(batch)))
    columns = _decimal(_based(batch, style.index_base, style.text_base))
    nonzeros = _join(":", columns, _value_text(_values(batch)))
    # A row without nonzeros is its label alone, without a blank behind it: a null is left out.
    empty = np.append(np.diff(batch.indptr) == 0, False)
    rows = pa.LargeListArray.from_arrays(pa.array(batch.indptr, mask=empty), nonzeros)
    lines = _join(" ", heads, pc.binary_join(rows, _string(" ")))
    all_lines = pa.LargeListArray.from_arrays(pa.array([0, len(lines)]), lines)
    return pc.binary_join(all_lines, _string("\n")).cast(pa.large_binary())[0].as_buffer()


def _join(separator: str, *columns: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*columns, _string(separator), null_handling="skip")


def _string(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _decimal(numbers: NDArray[Any]) -> pa.Array:
    return pa.array(numbers).cast(pa.large_string())


def _value_text(values: NDArray[np.float32]) -> pa.Array:
    """Return the shortest decimals that read back as the same float32, also by way of float64.

    Two kinds need the digits of the exact number: one in some 10⁸ floats, as 7.038531e-26, whose
    shortest decimal is rounded twice by readers that go through float64; and integers beyond 2²⁴,
    whose shortest decimal is another integer, which float32 does not hold.
    """
    texts = _decimal(values)
    read_back = texts.cast(pa.float64()).to_numpy().astype(np.float32)
    short = (read_back == values) & (np.abs(values) <= 2**24)
    if short.all():
        return texts
    return pc.if_else(pa.array(short), texts, _decimal(values.astype(np.float64)))


def _large_lists(offsets: NDArray[np.int64], items: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array(offsets), items)


def _label_text(label: Label) -> str:
    if isinstance(label, str):
        return label
    number = float(label)
    return str(int(number)) if number.is_integer() else repr(number)


def _check_text(batch: RowBatch, style: ShardStyle) -> None:
    """What libsvm text has no words for is refused."""
    if batch.code_offsets is None:
        wrong, what = batch.codes < 0, "no label, and libsvm text needs one in every row"
    else:
        wrong = (np.diff(batch.code_offsets) == 0) & (np.diff(batch.indptr) == 0)
        what = "neither a label nor a nonzero, and in libsvm text that is no row"
    if wrong.any():
        raise DataError(f"{batch.place(int(np.argmax(wrong)))}: {what}. Convert to Parquet.")
    if style.multilabel and style.weights:
        raise DataError(
            f"{batch.place(0)}: a row weight, and libsvm text has none beside several labels. "
            "Convert to Parquet."
        )
    for code, label in enumerate(batch.classes):
        if isinstance(label, str) and not (style.names and is_text_name(label)):
            wanted = "names without blanks, commas and colons" if style.names else "numbers"
            raise DataError(
                f"{_place_of(batch, code)}: label {label!r} is a string, and libsvm text has "
                f"{wanted} as labels. Convert to Parquet."
            )


def _place_of(batch: RowBatch, code: int) -> str:
    """Return the place of the first row that has a label."""
    return batch.place(row_of(batch.code_offsets, int(np.argmax(batch.codes == code))))


def _based(batch: RowBatch, base: int, new_base: int) -> NDArray[np.uint32]:
    """Column numbers counted from ``new_base`` instead of ``base``."""
    if base > new_base:
        return batch.indices - np.uint32(1)
    return batch.indices + np.uint32(new_base - base)


def _values(batch: RowBatch) -> NDArray[np.float32]:
    return np.ones(len(batch.indices), np.float32) if batch.values is None else batch.values


def _weights(batch: RowBatch) -> NDArray[np.float64]:
    return np.ones(batch.rows) if batch.weights is None else batch.weights


# Cutting rows anew ------------------------------------------------------------------------------


def _numbered(batches: Iterable[RowBatch], rows_per_shard: int) -> Iterator[tuple[int, RowBatch]]:
    """Cut batches where shards end; each comes with its shard's number."""
    cutter, shard = RowCutter(rows_per_shard, NO_LIMIT), 0
    for batch in batches:
        for start, stop, ends in cutter.cuts(batch.indptr):
            yield shard, slice_batch(batch, start, stop)
            shard += ends


def _groups(batches: Iterable[RowBatch], style: ShardStyle) -> Iterator[RowBatch]:
    """Join and cut batches to row groups: GROUP_ROWS rows, or as GROUP_NONZEROS allow."""
    held: list[RowBatch] = []
    rows = nonzeros = 0
    for batch in batches:
        _check(batch, style)
        start = 0
        while start < batch.rows:
            stop = start + fitting_rows(batch, start, GROUP_NONZEROS - nonzeros, alone=not rows)
            stop = min(stop, start + GROUP_ROWS - rows)
            if stop > start:
                held.append(slice_batch(batch, start, stop))
                rows += stop - start
                nonzeros += len(held[-1].indices)
            if stop < batch.rows:
                yield _merged(held)
                held, rows, nonzeros = [], 0, 0
            start = stop
    if held:
        yield _merged(held)


def _check(batch: RowBatch, style: ShardStyle) -> None:
    """What cannot be written in this style, or beside the rows before, is refused."""
    for code, label in enumerate(batch.classes):
        if _type_of(label) is not style.label_type:
            raise DataError(
                f"{_place_of(batch, code)}: label {label!r} where the rows before have labels of "
                f"type {style.label_type.__name__}. One data set has one type of label."
            )
    if batch.weights is not None and not style.weights:
        raise DataError(
            f"{batch.place(0)}: row weights that would be lost. Ask for weights to be written, "
            "or read the rows without them."
        )
    if style.index_base == 1 and len(batch.indices) and batch.indices.min() == 0:
        row = row_of(batch.indptr, int(np.argmin(batch.indices)))
        raise DataError(
            f"{batch.place(row)}: column 0 in a file declared 1-based. Use --index-base 0."
        )


def _type_of(label: Label) -> LabelType:
    return bool if isinstance(label, bool) else str if isinstance(label, str) else float


def _merged(batches: list[RowBatch]) -> RowBatch:
    """Several batches as one."""
    starts = np.cumsum([0] + [len(batch.indices) for batch in batches])
    indptr = [batch.indptr[:-1] + start for batch, start in zip(batches, starts, strict=False)]
    classes: dict[Label, int] = {}
    code_offsets = [p.code_offsets for p in batches if p.code_offsets is not None]
    weighted = any(batch.weights is not None for batch in batches)
    return RowBatch(
        np.concatenate([*indptr, starts[-1:]]),
        np.concatenate([batch.indices for batch in batches]),
        np.concatenate([_values(batch) for batch in batches]),
        np.concatenate([_recode(batch, classes) for batch in batches]),
        list(classes),
        np.concatenate([_weights(batch) for batch in batches]) if weighted else None,
        partial(_place_among, batches),
        offsets_of(np.concatenate([np.diff(own) for own in code_offsets]))
        if code_offsets
        else None,
    )


def _recode(batch: RowBatch, classes: dict[Label, int]) -> NDArray[np.int32]:
    """Return the batch's codes as positions in ``classes``, to which new labels are added."""
    table = [classes.setdefault(label, len(classes)) for label in batch.classes]
    return np.array([*table, -1], dtype=np.int32)[batch.codes]  # code -1 finds the last entry


def _place_among(batches: list[RowBatch], row: int) -> str:
    for batch in batches:
        if row < batch.rows:
            return batch.place(row)
        row -= batch.rows
    raise IndexError(row)
