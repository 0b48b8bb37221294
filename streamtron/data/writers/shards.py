"""Write rows as new shards, Parquet or libsvm text, all of them or none.

Shards end after ``rows_per_shard`` rows, row groups after 16,384 rows or 2²⁰ nonzeros, wherever the
source was cut, so equal rows give equal files. One row group (or one longer row) is in memory.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamtron.core import files
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import are_targets, without_label
from streamtron.core.text import label_text
from streamtron.data.blocks import RowCutter
from streamtron.data.formats.text_labels import is_text_name
from streamtron.data.labels import LabelTable
from streamtron.data.row_batch import Offsets, RowBatch, offsets_of

Format = Literal["libsvm", "parquet"]

ROWS_PER_SHARD, GROUP_ROWS, GROUP_NONZEROS = 1 << 17, 1 << 14, 1 << 20
REMEDY = "Choose another directory."
ENDINGS: dict[Format, str] = {"libsvm": "svm", "parquet": "parquet"}
_TYPES = {float: pa.float64(), str: pa.string(), bool: pa.bool_()}


class Written(NamedTuple):
    """Rows, nonzeros and bytes that were written."""

    rows: int
    nonzeros: int
    bytes: int


class ShardStyle(NamedTuple):
    """How shards are written.

    Column numbers are raised by ``shift``, -1, 0 or 1. ``weights`` are a column of Parquet,
    ``label:weight`` in text. With ``names`` text takes strings as labels, to be read as multiclass
    or multilabel.
    """

    to: Format
    shift: int = 0
    weights: bool = False
    names: bool = False


@contextmanager
def new_shards(destination: str | os.PathLike[str], overwrite: bool) -> Iterator[str]:
    """Give a new directory that takes the place of ``destination`` when the ``with`` block ends
    without an error; until then it is hidden beside it.

    Raises
    ------
    SettingsError : something is there that may not be replaced: all but an empty directory and, if
        ``overwrite``, the shards of an earlier conversion.
    """
    target = Path(os.path.realpath(files.absolute(destination)))
    with files.writing_to(str(destination), REMEDY):
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_place(target, overwrite)
        files.remove_scratch(hidden := f".{target.name}.streamtron-", str(target.parent))
    with files.scratch_directory(hidden, str(target.parent)) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        yield str(new)
        with files.writing_to(str(destination), REMEDY):
            files.sync_directory(new)
            _check_place(target, overwrite)
            if target.exists():
                shutil.copymode(target, new)
                target.replace(Path(scratch, "old"))
            new.replace(target)
            files.sync_directory(target.parent)


def _check_place(target: Path, overwrite: bool) -> None:
    """Refuse a place that cannot be taken, or that holds anything else than shards of ours."""
    if not target.exists():
        return
    if target.is_mount() or Path.cwd().is_relative_to(target):
        raise SettingsError(
            f"{target}: a mounted disk or the working directory, which cannot be replaced. Name a "
            "new directory in it."
        )
    names = sorted(path.name for path in target.iterdir())
    shards = [name for name in names if re.fullmatch(r"part-\d+\.(svm|parquet)", name)]
    holds = f"{target}: not empty, holds"
    if foreign := sorted({*names} - {*shards}):
        raise SettingsError(f"{holds} {foreign[0]!r}. Give a new or an empty directory.")
    if shards and not overwrite:
        raise SettingsError(
            f"{holds} {len(shards)} shards from {shards[0]!r} on. Give a new directory, or say "
            "that they may be overwritten."
        )


def write_shards(
    batches: Iterable[RowBatch], directory: str, style: ShardStyle, rows_per_shard: int
) -> Written:
    """Write ``part-00000.parquet`` (or ``.svm``), …, of ``rows_per_shard`` rows each. The first row
    that has a label tells the type of all labels."""
    batches, first = _with_labels_alike(batches, style), list[RowBatch]()
    for batch in batches:
        first.append(batch)
        if batch.classes or are_targets(batch.codes):
            break
    schema = _schema(first, style)
    tables = ((batch.indptr, _table(batch, style, schema)) for batch in chain(first, batches))
    rows = nonzeros = size = 0
    for number, shard in groupby(_row_groups(tables, rows_per_shard), key=itemgetter(0)):
        path = os.path.join(directory, f"part-{number:05d}.{ENDINGS[style.to]}")
        with files.writing_to(path, REMEDY), open(path, "xb") as file:
            with _writer(file, style, schema) as write:
                for _, group in shard:
                    write(group)
                    rows += len(group)
                    nonzeros += len(group["indices"].chunk(0).flatten())
            size += files.flush(file)
    return Written(rows, nonzeros, size)


def _with_labels_alike(batches: Iterable[RowBatch], style: ShardStyle) -> Iterator[RowBatch]:
    """Yield rows with one table of labels; refuse labels of two kinds, and what text cannot say."""
    table = LabelTable()
    kinds = "names without blanks, commas and colons" if style.names else "numbers"
    for given in batches:
        known = len(table.labels)
        batch = table.recoded(given)
        for label, place in zip(table.labels[known:], table.places[known:], strict=True):
            fits = style.to == "parquet" or not isinstance(label, str)
            if not fits and not (style.names and is_text_name(str(label))):
                raise DataError(
                    f"{place}: label {label!r} is a string, and libsvm text has {kinds} as labels. "
                    "Convert to Parquet."
                )
        yield batch


def _row_groups(
    tables: Iterable[tuple[Offsets, pa.Table]], rows_per_shard: int
) -> Iterator[tuple[int, pa.Table]]:
    """Cut rows into row groups, each with the number of its shard."""
    parts, number = list[pa.Table](), 0
    shards, groups = RowCutter(rows_per_shard, 1 << 62), RowCutter(GROUP_ROWS, GROUP_NONZEROS)
    for indptr, table in tables:
        for first, last, ends_shard in shards.cuts(indptr):
            for start, stop, ends in groups.cuts(indptr[first : last + 1]):
                parts.append(table.slice(first + start, stop - start))
                if ends or (ends_shard and first + stop == last):
                    yield number, pa.concat_tables(parts).combine_chunks()
                    parts = []
            if ends_shard:
                number, groups = number + 1, RowCutter(GROUP_ROWS, GROUP_NONZEROS)
    if parts:
        yield number, pa.concat_tables(parts).combine_chunks()


@contextmanager
def _writer(
    file: BinaryIO, style: ShardStyle, schema: pa.Schema
) -> Iterator[Callable[[pa.Table], object]]:
    if style.to == "libsvm":
        yield lambda group: file.writelines((_text(group), b"\n"))
        return
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        yield writer.write_table


def _schema(first: Sequence[RowBatch], style: ShardStyle) -> pa.Schema:
    """Return the columns of shards of which these are the first rows."""
    kind = type(next((label for batch in first for label in batch.classes), 0.0))
    label = pa.large_string() if style.to == "libsvm" else _TYPES[kind]
    multilabel = any(batch.code_offsets is not None for batch in first)
    fields = {"indices": pa.list_(pa.uint32()), "values": pa.list_(pa.float32())}
    fields["label"] = pa.list_(label) if multilabel else label
    return pa.schema(fields | ({"weight": pa.float64()} if style.weights else {}))


def _table(batch: RowBatch, style: ShardStyle, schema: pa.Schema) -> pa.Table:
    """Return rows as a table; labels are strings where they become text."""
    type_ = schema.field("label").type
    _check(batch, style, pa.types.is_list(type_))
    if are_targets(batch.codes):
        labels = pa.array(batch.codes, from_pandas=True).cast(type_)
    else:
        classes: list[Any] = batch.classes
        if style.to == "libsvm":
            classes = [c if isinstance(c, str) else label_text(float(c)) for c in classes]
        codes = pa.array(batch.codes, mask=without_label(batch.codes))
        item = type_.value_type if pa.types.is_list(type_) else type_
        labels = pa.array(classes, item).take(codes)
    if batch.code_offsets is not None:
        labels = pa.ListArray.from_arrays(pa.array(batch.code_offsets, pa.int32()), labels)
    columns = batch.indices + np.uint32(style.shift % 2**32)  # -1 is added modulo 2³²
    values = np.ones(batch.nonzeros, np.float32) if batch.values is None else batch.values
    offsets = pa.array(batch.indptr, pa.int32())
    lists = [pa.ListArray.from_arrays(offsets, pa.array(array)) for array in (columns, values)]
    weights = np.ones(batch.rows) if batch.weights is None else batch.weights
    return pa.table([*lists, labels, pa.array(weights)][: len(schema)], schema=schema)


def _check(batch: RowBatch, style: ShardStyle, multilabel: bool) -> None:
    """Refuse what cannot be written in this style, or beside the rows before."""
    if (batch.code_offsets is not None) != multilabel:
        raise DataError(f"{batch.place(0)}: lists of labels in some shards and not in others.")
    if batch.weights is not None and not style.weights:
        raise DataError(
            f"{batch.place(0)}: row weights that would be lost. Ask for weights to be written, "
            "or read the rows without them."
        )
    if style.to == "parquet":
        return
    if batch.code_offsets is None:
        wrong = without_label(batch.codes)
        what = "no label, and libsvm text needs one in every row"
    else:
        wrong = (np.diff(batch.code_offsets) == 0) & (np.diff(batch.indptr) == 0)
        what = "neither a label nor a nonzero, and in libsvm text that is no row"
    if wrong.any():
        raise DataError(f"{batch.place(int(np.argmax(wrong)))}: {what}. Convert to Parquet.")


def _text(group: pa.Table) -> pa.Buffer:
    """Return rows as lines of libsvm text, by Arrow's string kernels."""
    indices, values, heads, *weights = (column.chunk(0) for column in group.columns)
    if pa.types.is_list(heads.type):
        heads = pc.binary_join(heads, _string(","))  # of no label: a blank begins the row
    heads = _join(":", heads, *map(_decimal, weights))
    pairs = _join(":", _decimal(indices.flatten()), _value_text(values.flatten()))
    lengths = pc.list_value_length(indices).to_numpy()
    # A row without nonzeros is its label alone, without a blank behind it: a null is left out.
    offsets = pa.array(offsets_of(lengths), mask=np.append(lengths == 0, False))
    rows = pc.binary_join(pa.LargeListArray.from_arrays(offsets, pairs), _string(" "))
    lines = _join(" ", heads, rows)
    joined = pa.LargeListArray.from_arrays(pa.array([0, len(lines)], pa.int64()), lines)
    return pc.binary_join(joined, _string("\n")).cast(pa.large_binary())[0].as_buffer()


def _join(separator: str, *columns: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*columns, _string(separator), null_handling="skip")


def _string(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _decimal(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.large_string())


def _value_text(values: pa.Array) -> pa.Array:
    """Return the shortest decimals that read back as the same float32, also by way of float64.

    Two kinds need the digits of the exact number: one in some 10⁸ floats, as 7.038531e-26, whose
    shortest decimal is rounded twice by readers that go through float64; and integers beyond 2²⁴,
    whose shortest decimal is another integer, which float32 does not hold.
    """
    texts, exact = _decimal(values), values.cast(pa.float64())
    read_back = texts.cast(pa.float64()).to_numpy().astype(np.float32)
    short = (read_back == values.to_numpy()) & (np.abs(values.to_numpy()) <= 2**24)
    return texts if short.all() else pc.if_else(pa.array(short), texts, _decimal(exact))
