"""Write row batches as new shards, Parquet or libsvm text, all of them or none.

Rows keep their order. Shards are cut every ``rows_per_shard`` rows and row groups every 16,384
rows or 2²⁰ nonzeros, wherever the source was cut, so equal rows give equal files. What is held in
memory is one row group (or one longer row).
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamtron.core import files
from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.files import writing_to
from streamtron.core.rows import Label, are_targets, without_label
from streamtron.core.text import label_text
from streamtron.data.blocks import RowCutter, join
from streamtron.data.discover import NAMES, UNFINISHED
from streamtron.data.formats.recipe import RECIPE_KEY
from streamtron.data.formats.text_labels import is_text_name
from streamtron.data.labels import LabelTable, ShardLabels
from streamtron.data.row_batch import RowBatch, row_of, slice_batch

Format = Literal["libsvm", "parquet"]
LabelType = type[float] | type[str] | type[bool]

ROWS_PER_SHARD = 1 << 17
GROUP_ROWS = 1 << 14
GROUP_NONZEROS = 1 << 20

REMEDY = "Choose another directory."
LOCK = ".lock"
"""The file by which a directory is locked while shards are written there; readers ignore it."""

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

    ``shift`` is what the column numbers of the batches are raised by, -1, 0 or 1. ``weights`` are
    written as a column of Parquet, as ``label:weight`` in text. With ``multilabel`` rows have any
    number of labels: a list in Parquet, ``1,5,7`` in text. With ``names`` text takes strings as
    labels; it is then to be read as multiclass or multilabel. Parquet also names the ``recipe`` by
    which columns became rows, as JSON.
    """

    to: Format
    shift: int = 0
    label_type: LabelType = float
    weights: bool = False
    multilabel: bool = False
    names: bool = False
    recipe: str | None = None


@contextmanager
def new_shards(
    destination: str, to: Format, overwrite: bool
) -> Iterator[Callable[[int | str], str]]:
    """Add shards to a directory, together, when the ``with`` block ends without an error.

    Yields the function from a shard's number, or ``NAMES``, to the path to write it at: a hidden
    file, which readers ignore. At the end the files are renamed to ``part-00000.parquet`` (or
    ``.svm``), …, and those of an earlier conversion are removed if ``overwrite``, or if that was
    killed meanwhile. While some are renamed and some are not, the file ``UNFINISHED`` stands beside
    them, and readers refuse the directory. It is locked: a second writer gets a MachineError.
    """
    directory, token = Path(files.as_path(destination)), secrets.token_hex(4)
    hidden: dict[Path, Path] = {}

    def shard_path(number: int | str) -> str:
        name = number if isinstance(number, str) else f"part-{number:05d}.{ENDINGS[to]}"
        final = directory / name
        partial_file = directory / f".{final.name}.{token}.partial"
        hidden[partial_file] = final
        return os.path.abspath(partial_file)  # workers have another directory

    with files.nothing_empty(directory):
        with writing_to(destination, REMEDY):
            directory.mkdir(parents=True, exist_ok=True)
        with files.alone_in(directory, LOCK):
            try:
                with writing_to(destination, REMEDY):
                    old = _old_shards(directory, overwrite or (directory / UNFINISHED).exists())
                yield shard_path
                with writing_to(destination, REMEDY):
                    _put_in_place(directory, hidden, old)
            finally:
                for path in (*_left_behind(directory, token), directory / LOCK):
                    path.unlink(missing_ok=True)


def _put_in_place(directory: Path, hidden: Mapping[Path, Path], old: Iterable[Path]) -> None:
    """Give the hidden files their names and remove the old ones; refuse shards that were put there
    meanwhile, where locks do not hold."""
    if new := set(_shards_in(directory)) - set(old):
        raise MachineError(
            f"{directory}: {min(new).name} was put there meanwhile. Nothing else may write there; "
            "write again to another directory."
        )
    mark = directory / UNFINISHED
    mark.touch()
    files.sync_directory(directory)
    for path in set(old) - set(hidden.values()):
        path.unlink(missing_ok=True)
    for path, final in hidden.items():
        path.replace(final)
    files.sync_directory(directory)
    mark.unlink()
    files.sync_directory(directory)


def _left_behind(directory: Path, writer: str = "") -> list[Path]:
    """Hidden files of a writer that is under way, or of any that was killed."""
    hidden = rf"\.(part-|{NAMES}).*{writer}\.partial"
    return [path for path in directory.iterdir() if re.match(hidden, path.name)]


def _shards_in(directory: Path) -> list[Path]:
    """Return the shards of a conversion, and the names of their columns."""
    ours = rf"part-\d+\.(svm|parquet)|{NAMES}"
    return sorted(path for path in directory.iterdir() if re.fullmatch(ours, path.name))


def _old_shards(directory: Path, overwrite: bool) -> list[Path]:
    old, left = _shards_in(directory), _left_behind(directory)
    holds = f"{directory}: not empty, holds"
    known = {*old, *left, directory / UNFINISHED, directory / LOCK}
    if foreign := set(directory.iterdir()) - known:
        raise SettingsError(f"{holds} {min(foreign).name!r}. Give a new or an empty directory.")
    shards = [path for path in old if path.name != NAMES]
    if shards and not overwrite:
        raise SettingsError(
            f"{holds} {len(shards)} shards from {shards[0].name!r} on. Give a new directory, or "
            "say that they may be overwritten."
        )
    for path in left:  # a killed conversion's
        path.unlink()
    return old


def write_shards(
    batches: Iterable[RowBatch],
    path_of: Callable[[int], str],
    style: ShardStyle,
    rows_per_shard: int,
) -> Written:
    """Write consecutive shards of ``rows_per_shard`` rows; ``path_of`` gives the path of a number.

    A shard appears under its path when it is complete, so two workers may write the same one.
    """
    total = Written(0, 0, 0)
    for number, numbered in groupby(_numbered(batches, rows_per_shard), key=itemgetter(0)):
        path = path_of(number)
        temporary = f"{path}.{secrets.token_hex(4)}"
        try:
            written = _write_shard(temporary, (batch for _, batch in numbered), style)
            with writing_to(path, REMEDY):
                os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        total = total.plus(written)
    return total


def _numbered(batches: Iterable[RowBatch], rows_per_shard: int) -> Iterator[tuple[int, RowBatch]]:
    """Cut batches where shards end; each comes with its shard's number."""
    cutter, shard = RowCutter(rows_per_shard, nonzeros=1 << 62), 0
    for batch in batches:
        for start, stop, ends in cutter.cuts(batch.indptr):
            yield shard, slice_batch(batch, start, stop)
            shard += ends


def _write_shard(path: str, batches: Iterable[RowBatch], style: ShardStyle) -> Written:
    """Write one shard, a row group at a time, and flush it to the disk."""
    rows = nonzeros = 0
    with writing_to(path, REMEDY), open(path, "wb") as file:
        with _group_writer(file, style) as write:
            for group in _groups(batches, style):
                write(group)
                rows, nonzeros = rows + group.rows, nonzeros + group.nonzeros
        return Written(rows, nonzeros, files.flush(file))


def _groups(batches: Iterable[RowBatch], style: ShardStyle) -> Iterator[RowBatch]:
    """Join and cut batches to row groups, each with its own table of labels."""
    cutter = RowCutter(GROUP_ROWS, GROUP_NONZEROS)
    parts, labels = [], ShardLabels(LabelTable())
    for batch in batches:
        _check(batch, style)
        for start, stop, ends in cutter.cuts(batch.indptr):
            parts.append(labels.recoded(slice_batch(batch, start, stop)))
            if ends:
                yield join(parts)
                parts, labels = [], ShardLabels(LabelTable())
    if parts:
        yield join(parts)


def _check(batch: RowBatch, style: ShardStyle) -> None:
    """Refuse what cannot be written in this style, or beside the rows before."""
    for code, label in enumerate(batch.classes):
        if problem := _problem(label, style):
            row = row_of(batch.code_offsets, int(np.argmax(batch.codes == code)))
            raise DataError(f"{batch.place(row)}: label {label!r} {problem}")
    if (batch.code_offsets is not None) != style.multilabel:
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


def _problem(label: Label, style: ShardStyle) -> str | None:
    """Say why a label cannot be written."""
    if label_type(label) is not style.label_type:
        return (
            f"where the rows before have labels of type {style.label_type.__name__}. One data set "
            "has one type of label."
        )
    if style.to == "parquet" or not isinstance(label, str):
        return None
    if style.names and is_text_name(label):
        return None
    kinds = "names without blanks, commas and colons" if style.names else "numbers"
    return f"is a string, and libsvm text has {kinds} as labels. Convert to Parquet."


def label_type(label: Label) -> LabelType:
    """Return ``float``, ``str`` or ``bool``."""
    return bool if isinstance(label, bool) else str if isinstance(label, str) else float


@contextmanager
def _group_writer(file: BinaryIO, style: ShardStyle) -> Iterator[Callable[[RowBatch], None]]:
    if style.to == "libsvm":
        yield lambda group: file.writelines((_text(group, style), b"\n"))
        return
    schema = _schema(style)
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        yield lambda group: writer.write_table(_table(group, schema, style))


def _schema(style: ShardStyle) -> pa.Schema:
    label = {float: pa.float64(), str: pa.string(), bool: pa.bool_()}[style.label_type]
    fields = {"indices": pa.list_(pa.uint32()), "values": pa.list_(pa.float32())}
    fields["label"] = pa.list_(label) if style.multilabel else label
    schema = pa.schema(fields | ({"weight": pa.float64()} if style.weights else {}))
    return schema if style.recipe is None else schema.with_metadata({RECIPE_KEY: style.recipe})


def _table(batch: RowBatch, schema: pa.Schema, style: ShardStyle) -> pa.Table:
    indptr, kind = pa.array(batch.indptr, pa.int32()), schema.field("label").type
    if are_targets(batch.codes):
        labels = pa.array(batch.codes, from_pandas=True)
    else:
        classes = pa.array(batch.classes, kind.value_type if style.multilabel else kind)
        labels = classes.take(pa.array(batch.codes, mask=without_label(batch.codes)))
    if style.multilabel:
        labels = pa.ListArray.from_arrays(pa.array(batch.code_offsets, pa.int32()), labels)
    columns = [
        pa.ListArray.from_arrays(indptr, pa.array(_columns(batch, style))),
        pa.ListArray.from_arrays(indptr, pa.array(_values(batch))),
        labels,
        *([pa.array(_weights(batch))] if style.weights else []),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _text(batch: RowBatch, style: ShardStyle) -> pa.Buffer:
    """The rows as lines of libsvm text, by Arrow's string kernels: no Python loop over rows."""
    if are_targets(batch.codes):
        heads = _decimal(batch.codes)
    else:
        names = [label_text(c if isinstance(c, str) else float(c)) for c in batch.classes]
        heads = pa.array(names, pa.large_string()).take(pa.array(batch.codes))
    if batch.code_offsets is not None:
        # A row without a label begins with a blank, as scikit-learn writes it.
        lists = pa.LargeListArray.from_arrays(pa.array(batch.code_offsets), heads)
        heads = pc.binary_join(lists, _string(","))
    if style.weights:
        heads = _join(":", heads, _decimal(_weights(batch)))
    nonzeros = _join(":", _decimal(_columns(batch, style)), _value_text(_values(batch)))
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


def _columns(batch: RowBatch, style: ShardStyle) -> NDArray[np.uint32]:
    """The column numbers as they are written; -1 is added modulo 2³²."""
    return batch.indices + np.uint32(style.shift % 2**32)


def _values(batch: RowBatch) -> NDArray[np.float32]:
    return np.ones(len(batch.indices), np.float32) if batch.values is None else batch.values


def _weights(batch: RowBatch) -> NDArray[np.float64]:
    return np.ones(batch.rows) if batch.weights is None else batch.weights
