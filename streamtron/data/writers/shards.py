"""Pieces to new shards, Parquet or libsvm text, all of them or none.

Rows keep their order. Shards are cut every ``rows_per_shard`` rows and row groups every 16,384
rows or 2²⁰ nonzeros, wherever the source was cut, so equal rows give equal files. What is held in
memory is one row group (or one longer row).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import Label
from streamtron.data.formats.text_labels import is_text_name
from streamtron.data.labels import offsets_of, row_of_code
from streamtron.data.row_batch import RowBatch, cut_piece
from streamtron.data.writers.new_shards import disk_sentence, flush, new_shards

Format = Literal["libsvm", "parquet"]
LabelType = type[float] | type[str] | type[bool]

ROWS_PER_SHARD = 1 << 17
GROUP_ROWS = 1 << 14
GROUP_NONZEROS = 1 << 20

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
    index_base : the number of the first column in the pieces.
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
    pieces: Iterable[RowBatch],
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
    """Write ``destination/part-00000.parquet``, … (or ``.svm``) from the pieces of any readers.

    The shards appear together when the last one is safely on disk; until then, and for ever if
    anything fails, the directory is as it was. If the process is ended while they get their names,
    readers refuse the directory until it is written again. Parquet gets columns ``indices``
    list<uint32>, ``values`` list<float32> (also where all are 1: it then costs next to nothing),
    ``label`` and ``weight``, with page checksums, zstd. Text gets the shortest decimals that read
    back as the same float32.

    Parameters
    ----------
    pieces : what the readers of all shards give, in order.
    to : ``"libsvm"`` or ``"parquet"``.
    index_base : the number of the first column in the pieces; a column below it is refused.
    text_base : the number of the first column in the text written.
    weights : whether rows have weights; a piece without any has weight 1. Pieces that have weights
        are refused where this is False, so none is lost.
    names : whether text may have strings as labels; it must then be read as multiclass, or as
        multilabel.
    overwrite : replace ``part-*`` files of an earlier conversion; other files are never touched,
        and a directory that holds any is refused.

    Raises
    ------
    SettingsError : the destination holds something, or ``rows_per_shard`` is below 1.
    DataError : no rows, strings as labels for text, labels of two types, a column below the base;
        what text has no words for: weights of rows with several labels, a row with neither a label
        nor a nonzero.
    MachineError : the disk is full or not writable.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> row = RowBatch(np.array([0, 2]), np.array([3, 9], np.uint32),
    ...             np.array([1, 0.1], np.float32), np.array([0], np.int32),
    ...             [-1.0], None, "line {}".format)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     written = convert([row], directory, to="libsvm", index_base=0)
    ...     pathlib.Path(directory, "part-00000.svm").read_text()
    '-1 4:1 10:0.1\\n'
    >>> written
    Written(rows=1, nonzeros=2, bytes=14)
    """
    check_rows_per_shard(rows_per_shard)
    rest = iter(pieces)
    held = _up_to_a_label(rest)
    if not held:
        raise DataError(f"{destination}: no rows to write. Give shards that have rows.")
    labels = labels_of(held)
    style = ShardStyle(index_base, text_base, labels.type or float, weights, labels.several, names)
    with new_shards(destination, ENDINGS[to], overwrite) as shard_path:
        return write_shards(chain(held, rest), shard_path, to, style, rows_per_shard)


def write_shards(
    pieces: Iterable[RowBatch], path_of: Callable[[int], str], to: Format, style: ShardStyle,
    rows_per_shard: int,
) -> Written:  # fmt: skip
    """Consecutive shards, cut every ``rows_per_shard`` rows; ``path_of`` their number, from 0.

    A shard appears under its path whole: somebody else who writes the same one, a worker that was
    given up for dead, is not in the way.

    Raises
    ------
    DataError, MachineError : as ``convert``.
    """
    write = write_parquet_shard if to == "parquet" else write_libsvm_shard
    total = Written(0, 0, 0)
    for number, numbered in groupby(_numbered(pieces, rows_per_shard), key=itemgetter(0)):
        path = path_of(number)
        attempt = f"{path}.{secrets.token_hex(4)}"
        try:
            written = write(attempt, (piece for _, piece in numbered), style)
            with disk_sentence(path):
                os.replace(attempt, path)
        finally:
            Path(attempt).unlink(missing_ok=True)
        total = total.plus(written)
    return total


def check_rows_per_shard(rows: int) -> None:
    """Refuse a number of rows that no shard can have, with a SettingsError."""
    if rows < 1:
        raise SettingsError(f"rows per shard {rows}. A shard needs at least 1 row.")


class Labels(NamedTuple):
    """What the labels of a conversion are; its first rows decide for all others."""

    type: LabelType | None
    """of the first label; None without one"""
    several: bool
    """whether a row may have any number of them"""


def labels_of(pieces: Sequence[RowBatch]) -> Labels:
    """What pieces that have rows say of the labels of all, the first that has any."""
    first = next((piece.classes[0] for piece in pieces if piece.classes), None)
    return Labels(None if first is None else _type_of(first), pieces[0].code_offsets is not None)


def _up_to_a_label(pieces: Iterator[RowBatch]) -> list[RowBatch]:
    """The first pieces that have rows, up to one with a label, which tells the labels' type."""
    held = []
    for piece in pieces:
        if piece.rows:
            held.append(piece)
        if piece.classes:
            break
    return held


# One shard -------------------------------------------------------------------------------------


def write_parquet_shard(path: str, pieces: Iterable[RowBatch], style: ShardStyle) -> Written:
    """One Parquet shard, a row group at a time, flushed to the disk.

    Raises
    ------
    DataError, MachineError : as ``convert``.
    """
    rows = nonzeros = 0
    with disk_sentence(path), open(path, "wb") as file:
        with pq.ParquetWriter(
            file, _schema(style), compression="zstd", write_page_checksum=True
        ) as writer:
            for group in _groups(pieces, style):
                writer.write_table(_table(group, style), row_group_size=GROUP_ROWS)
                rows, nonzeros = rows + group.rows, nonzeros + len(group.indices)
        return Written(rows, nonzeros, flush(file))


def write_libsvm_shard(path: str, pieces: Iterable[RowBatch], style: ShardStyle) -> Written:
    """One shard of libsvm text, a row group at a time, flushed to the disk.

    Raises
    ------
    DataError, MachineError : as ``convert``; a string as label.
    """
    rows = nonzeros = 0
    with disk_sentence(path), open(path, "wb") as file:
        for group in _groups(pieces, style):
            file.write(_text(group, style))
            file.write(b"\n")
            rows, nonzeros = rows + group.rows, nonzeros + len(group.indices)
        return Written(rows, nonzeros, flush(file))


def _schema(style: ShardStyle) -> pa.Schema:
    labels = {float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    label = labels[style.label_type]
    fields = {
        "indices": pa.list_(pa.uint32()),
        "values": pa.list_(pa.float32()),
        "label": pa.list_(label) if style.multilabel else label,
    }
    return pa.schema(fields | ({"weight": pa.float64()} if style.weights else {}))


def _table(piece: RowBatch, style: ShardStyle) -> pa.Table:
    schema = _schema(style)
    indptr = pa.array(piece.indptr, pa.int32())
    label_type = schema.field("label").type
    classes = pa.array(piece.classes, label_type.value_type if style.multilabel else label_type)
    labels = classes.take(pa.array(piece.codes, mask=piece.codes < 0))
    if style.multilabel:
        labels = pa.ListArray.from_arrays(pa.array(piece.code_offsets, pa.int32()), labels)
    columns = [
        pa.ListArray.from_arrays(indptr, pa.array(_based(piece, style.index_base, 0))),
        pa.ListArray.from_arrays(indptr, pa.array(_values(piece))),
        labels,
    ]
    if style.weights:
        columns.append(pa.array(_weights(piece)))
    return pa.Table.from_arrays(columns, schema=schema)


def _text(piece: RowBatch, style: ShardStyle) -> pa.Buffer:
    """The rows as lines of libsvm text, by Arrow's string kernels: no Python loop over rows."""
    _check_text(piece, style)
    heads = pa.array(map(_label_text, piece.classes), pa.large_string()).take(pa.array(piece.codes))
    if piece.code_offsets is not None:
        # A row without a label begins with a blank, as scikit-learn writes it.
        heads = pc.binary_join(_large_lists(piece.code_offsets, heads), _string(","))
    if style.weights:
        heads = _join(":", heads, _decimal(_weights(piece)))
    columns = _decimal(_based(piece, style.index_base, style.text_base))
    nonzeros = _join(":", columns, _value_text(_values(piece)))
    # A row without nonzeros is its label alone, without a blank behind it: a null is left out.
    empty = np.append(np.diff(piece.indptr) == 0, False)
    rows = pa.LargeListArray.from_arrays(pa.array(piece.indptr, mask=empty), nonzeros)
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
    """The shortest decimals that read back as the same float32, also by way of float64.

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


def _check_text(piece: RowBatch, style: ShardStyle) -> None:
    """What libsvm text has no words for is refused."""
    if piece.code_offsets is None:
        wrong, what = piece.codes < 0, "no label, and libsvm text needs one in every row"
    else:
        wrong = (np.diff(piece.code_offsets) == 0) & (np.diff(piece.indptr) == 0)
        what = "neither a label nor a nonzero, and in libsvm text that is no row"
    if wrong.any():
        raise DataError(f"{piece.place(int(np.argmax(wrong)))}: {what}. Convert to Parquet.")
    if style.multilabel and style.weights:
        raise DataError(
            f"{piece.place(0)}: a row weight, and libsvm text has none beside several labels. "
            "Convert to Parquet."
        )
    for code, label in enumerate(piece.classes):
        if isinstance(label, str) and not (style.names and is_text_name(label)):
            wanted = "names without blanks, commas and colons" if style.names else "numbers"
            raise DataError(
                f"{_place_of(piece, code)}: label {label!r} is a string, and libsvm text has "
                f"{wanted} as labels. Convert to Parquet."
            )


def _place_of(piece: RowBatch, code: int) -> str:
    """The place of the first row that has a label."""
    return piece.place(row_of_code(piece.code_offsets, int(np.argmax(piece.codes == code))))


def _based(piece: RowBatch, base: int, new_base: int) -> NDArray[np.uint32]:
    """Column numbers counted from ``new_base`` instead of ``base``."""
    if base > new_base:
        return piece.indices - np.uint32(1)
    return piece.indices + np.uint32(new_base - base)


def _values(piece: RowBatch) -> NDArray[np.float32]:
    return np.ones(len(piece.indices), np.float32) if piece.values is None else piece.values


def _weights(piece: RowBatch) -> NDArray[np.float64]:
    return np.ones(piece.rows) if piece.weights is None else piece.weights


# Cutting rows anew ------------------------------------------------------------------------------


def _numbered(pieces: Iterable[RowBatch], rows_per_shard: int) -> Iterator[tuple[int, RowBatch]]:
    """Pieces cut at the shards' borders, each with its shard's number."""
    row = 0
    for piece in pieces:
        start, rows = 0, piece.rows
        while start < rows:
            shard, used = divmod(row, rows_per_shard)
            stop = min(rows, start + rows_per_shard - used)
            yield shard, cut_piece(piece, start, stop)
            row += stop - start
            start = stop


def _groups(pieces: Iterable[RowBatch], style: ShardStyle) -> Iterator[RowBatch]:
    """The same rows in pieces of GROUP_ROWS rows, fewer where GROUP_NONZEROS are reached."""
    held: list[RowBatch] = []
    rows = nonzeros = 0
    for piece in pieces:
        _check(piece, style)
        start = 0
        while start < piece.rows:
            stop = _fill(piece, start, rows, nonzeros)
            if stop > start:
                held.append(cut_piece(piece, start, stop))
                rows += stop - start
                nonzeros += len(held[-1].indices)
            if stop < piece.rows:
                yield _merged(held)
                held, rows, nonzeros = [], 0, 0
            start = stop
    if held:
        yield _merged(held)


def _fill(piece: RowBatch, start: int, rows: int, nonzeros: int) -> int:
    """Where to cut the piece to fill a group of which some is held; a lone row always fits."""
    end = int(piece.indptr[start]) + GROUP_NONZEROS - nonzeros
    by_nonzeros = int(np.searchsorted(piece.indptr, end, side="right")) - 1
    stop = min(by_nonzeros, start + GROUP_ROWS - rows, piece.rows)
    return max(stop, start + (rows == 0))


def _check(piece: RowBatch, style: ShardStyle) -> None:
    """What cannot be written in this style, or beside the rows before, is refused."""
    for code, label in enumerate(piece.classes):
        if _type_of(label) is not style.label_type:
            raise DataError(
                f"{_place_of(piece, code)}: label {label!r} where the rows before have labels of "
                f"type {style.label_type.__name__}. One data set has one type of label."
            )
    if piece.weights is not None and not style.weights:
        raise DataError(
            f"{piece.place(0)}: row weights that would be lost. Ask for weights to be written, "
            "or read the rows without them."
        )
    if style.index_base == 1 and len(piece.indices) and piece.indices.min() == 0:
        row = int(np.searchsorted(piece.indptr, np.argmin(piece.indices), side="right")) - 1
        raise DataError(
            f"{piece.place(row)}: column 0 in a file declared 1-based. Use --index-base 0."
        )


def _type_of(label: Label) -> LabelType:
    return bool if isinstance(label, bool) else str if isinstance(label, str) else float


def _merged(pieces: list[RowBatch]) -> RowBatch:
    """Several pieces as one."""
    starts = np.cumsum([0] + [len(piece.indices) for piece in pieces])
    indptr = [piece.indptr[:-1] + start for piece, start in zip(pieces, starts, strict=False)]
    classes: dict[Label, int] = {}
    code_offsets = [p.code_offsets for p in pieces if p.code_offsets is not None]
    weighted = any(piece.weights is not None for piece in pieces)
    return RowBatch(
        np.concatenate([*indptr, starts[-1:]]),
        np.concatenate([piece.indices for piece in pieces]),
        np.concatenate([_values(piece) for piece in pieces]),
        np.concatenate([_recode(piece, classes) for piece in pieces]),
        list(classes),
        np.concatenate([_weights(piece) for piece in pieces]) if weighted else None,
        partial(_place_among, pieces),
        offsets_of(np.concatenate([np.diff(own) for own in code_offsets]))
        if code_offsets
        else None,
    )


def _recode(piece: RowBatch, classes: dict[Label, int]) -> NDArray[np.int32]:
    """The piece's codes as positions in ``classes``, which takes up what is new."""
    table = [classes.setdefault(label, len(classes)) for label in piece.classes]
    return np.array([*table, -1], dtype=np.int32)[piece.codes]  # code -1 finds the last entry


def _place_among(pieces: list[RowBatch], row: int) -> str:
    for piece in pieces:
        if row < piece.rows:
            return piece.place(row)
        row -= piece.rows
    raise IndexError(row)
