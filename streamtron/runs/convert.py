"""Shards of any format into libsvm text or Parquet, whatever the readers understand."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate, groupby
from typing import Literal, NamedTuple

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import Executor
from streamtron.data import (
    Reading,
    ShardFile,
    find_shards,
    no_rows,
    open_reader,
    open_shards,
    settled,
)
from streamtron.data.first_reading import check_unchanged
from streamtron.data.prefetch import ahead
from streamtron.data.row_batch import RowBatch, cut_piece
from streamtron.data.writers.new_shards import new_shards
from streamtron.data.writers.shards import (
    ENDINGS,
    ROWS_PER_SHARD,
    Format,
    Labels,
    ShardStyle,
    Written,
    check_rows_per_shard,
    labels_of,
    write_shards,
)
from streamtron.data.writers.shards import convert as convert_pieces
from streamtron.runs.evaluate import Paths
from streamtron.runs.fit import as_paths, reading_of
from streamtron.runs.outputs import check_outputs


def convert(
    shards: Paths,
    destination: str | os.PathLike[str],
    *,
    to: Format,
    settings: Settings | None = None,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
    executor: Executor | None = None,
) -> Written:
    """Write shards anew in the other format, or in the same one cut otherwise.

    Text numbers columns as its source did, or from 1 where that was no text; Parquet always from
    0. Rows keep their order, labels and weights; names of features become numbers. With the
    setting ``multilabel`` labels are lists in Parquet and ``1,5,7`` in text, where a label may be
    a name (also with ``multiclass``). All shards appear together at the end.

    Parameters
    ----------
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    destination : a new or empty directory.
    to : ``"libsvm"`` or ``"parquet"``.
    settings : how the shards are read: ``index_base``, ``weights_in_label``, ``label``, ….
    rows_per_shard : at least 1.
    overwrite : replace the shards of an earlier conversion.
    executor : workers that see shards and destination; they read the shards once to count the rows
        and once more to write the same files as one process, which reads them once.

    Raises
    ------
    SettingsError, DataError, MachineError

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = pathlib.Path(root, "a.svm").write_text("1 1:1\\n-1 2:1\\n")
    ...     convert(pathlib.Path(root, "a.svm"), pathlib.Path(root, "out"), to="parquet").rows
    2
    """
    settings = settings or Settings()
    check_rows_per_shard(rows_per_shard)
    paths = as_paths(shards)
    check_outputs({}, paths, directories={"destination": destination})
    found = find_shards(paths)
    reading = settled(found[0], reading_of(settings))
    weights = settings.weight is not None or settings.weights_in_label
    if weights and settings.multilabel and to == "libsvm":
        raise SettingsError(
            "libsvm text has no row weights beside several labels: convert to Parquet, or leave "
            "the weight out."
        )
    names = settings.multiclass or settings.multilabel
    target = Target(os.fspath(destination), to, weights, names, rows_per_shard, overwrite)
    if executor is not None:
        return _convert_on_workers(executor, found, reading, target)
    base = _base(paths, reading, to)
    return convert_pieces(
        _pieces(found, replace(reading, index_base=base)),
        target.directory,
        to=to,
        index_base=base,
        text_base=base if found[0].format == "libsvm" else 1,
        weights=weights,
        names=names,
        rows_per_shard=rows_per_shard,
        overwrite=overwrite,
    )


def _pieces(shards: Iterable[ShardFile], reading: Reading) -> Iterator[RowBatch]:
    for shard in shards:
        yield from ahead(open_reader(shard, reading).pieces)
        check_unchanged(shard)


def _base(paths: list[str], reading: Reading, to: Format) -> Literal[0, 1]:
    """The number of the first column; ``auto`` takes a reading, but where no number changes."""
    with open_shards(paths, reading, cache_dir=None, most_labels=None,
                     allow_duplicate=True) as source:  # fmt: skip
        if source.index_base is None and to == "libsvm":
            return 0
        if source.index_base is None:
            for _ in source.chunks():
                pass
        return 1 if source.index_base == 1 else 0


# On workers --------------------------------------------------------------------------------------


class Target(NamedTuple):
    """Where the new shards go, and what they shall be like."""

    directory: str
    to: Format
    weights: bool
    names: bool
    """whether text may have strings as labels"""
    rows_per_shard: int
    overwrite: bool


class Survey(NamedTuple):
    """What has to be known of a shard before its rows can be written by several workers."""

    rows: int
    has_column_0: bool
    labels: Labels


class RowRange(NamedTuple):
    """Consecutive new shards that one worker writes, and where their rows are."""

    name: str
    """of the shard in which they begin"""
    shards: Sequence[ShardFile]
    skip: int
    """rows of the first of these shards that belong to others"""
    rows: int
    paths: Sequence[str]
    rows_per_shard: int


def _convert_on_workers(
    executor: Executor, shards: Sequence[ShardFile], reading: Reading, target: Target
) -> Written:
    surveys = list(executor(survey, shards, reading))
    rows = [known.rows for known in surveys]
    if not sum(rows):
        raise no_rows(shards)
    base = _surveyed_base(surveys, shards, reading, target.to)
    labels = [known.labels for known in surveys if known.rows]
    style = ShardStyle(
        base,
        base if shards[0].format == "libsvm" else 1,
        next((each.type for each in labels if each.type), float),
        target.weights,
        labels[0].several,
        target.names,
    )
    reading = replace(reading, index_base=base)
    with new_shards(target.directory, ENDINGS[target.to], target.overwrite) as shard_path:
        paths = [shard_path(number) for number in range(-(-sum(rows) // target.rows_per_shard))]
        works = _stretches(shards, rows, paths, target.rows_per_shard)
        written = reduce(Written.plus, executor(write_range, works, reading, target.to, style))
        if written.rows != sum(rows):
            raise DataError(
                f"{shards[0].name} and the shards after it held {sum(rows):,} rows when they were "
                f"counted, {written.rows:,} when they were written. Shards must stay as they are "
                "until the conversion has ended; convert again."
            )
    return written


def survey(shard: ShardFile, reading: Reading) -> Iterator[Survey]:
    """Read a shard for its ``Survey``."""
    rows, has_column_0, labels = 0, False, Labels(None, False)
    for piece in open_reader(shard, reading).pieces():
        if labels.type is None and piece.rows:
            labels = labels_of([piece])
        rows += piece.rows
        has_column_0 |= bool((piece.indices == 0).any())
    check_unchanged(shard)
    yield Survey(rows, has_column_0, labels)


def write_range(
    stretch: RowRange, reading: Reading, to: Format, style: ShardStyle
) -> Iterator[Written]:
    """Write the shards of a stretch."""
    pieces = _some_rows(_pieces(stretch.shards, reading), stretch.skip, stretch.rows)
    written = write_shards(pieces, stretch.paths.__getitem__, to, style, stretch.rows_per_shard)
    check_unchanged(stretch.shards[-1])  # of which only the first rows may have been wanted
    yield written


def _some_rows(pieces: Iterator[RowBatch], skip: int, rows: int) -> Iterator[RowBatch]:
    for piece in pieces:
        start = min(skip, piece.rows)
        stop = min(piece.rows, start + rows)
        skip, rows = skip - start, rows - (stop - start)
        if stop > start:
            yield cut_piece(piece, start, stop)
        if not rows:
            return


def _surveyed_base(
    surveys: Sequence[Survey], shards: Sequence[ShardFile], reading: Reading, to: Format
) -> Literal[0, 1]:
    """What ``_base`` says, from surveys."""
    if reading.index_base != "auto":
        return reading.index_base
    kept = shards[0].format != "libsvm" or to == "libsvm"
    return 0 if kept or any(known.has_column_0 for known in surveys) else 1


def _stretches(
    shards: Sequence[ShardFile], rows: Sequence[int], paths: Sequence[str], rows_per_shard: int
) -> list[RowRange]:
    """The new shards that begin in one old shard are one worker's: it reads on into those behind
    for the last of them, so little is read twice."""
    firsts = list(accumulate(rows, initial=0))
    end = firsts.pop()
    numbers = range(len(paths))
    works = []
    for at, some in groupby(numbers, lambda n: bisect_right(firsts, n * rows_per_shard) - 1):
        mine = list(some)
        first, stop = mine[0] * rows_per_shard, min((mine[-1] + 1) * rows_per_shard, end)
        until = bisect_right(firsts, stop - 1)
        works.append(
            RowRange(
                shards[at].name, shards[at:until], first - firsts[at], stop - first,
                [paths[number] for number in mine], rows_per_shard,
            )
        )  # fmt: skip
    return works
