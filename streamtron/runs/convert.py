"""Convert shards of any readable format into libsvm text or Parquet."""

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
    resolve_reading,
)
from streamtron.data.first_reading import check_unchanged
from streamtron.data.prefetch import prefetch
from streamtron.data.row_batch import RowBatch, slice_batch
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
from streamtron.data.writers.shards import convert as convert_batches
from streamtron.runs.inputs import Paths, as_paths, reading_from_settings
from streamtron.runs.learners import read_to_end
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
    """Convert shards into another format, or into shards of another size.

    Text numbers columns as its source did, or from 1 where that was not text; Parquet always from
    0. Rows keep their order, labels and weights; names of features become numbers. With
    ``multilabel`` labels are lists in Parquet and ``1,5,7`` in text; there and with ``multiclass``
    a label may be a name. All shards appear together at the end.

    Parameters
    ----------
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    destination : a new or empty directory.
    to : ``"libsvm"`` or ``"parquet"``.
    settings : how the shards are read: ``index_base``, ``weights_in_label``, ``label``, ….
    rows_per_shard : at least 1.
    overwrite : replace the shards of an earlier conversion.
    executor : workers that see shards and destination. They read the shards twice, to count the
        rows and to write them; one process reads them once and writes the same files.

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
    reading = resolve_reading(found[0], reading_from_settings(settings))
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
    return convert_batches(
        _batches(found, replace(reading, index_base=base)),
        target.directory,
        to=to,
        index_base=base,
        text_base=base if found[0].format == "libsvm" else 1,
        weights=weights,
        names=names,
        rows_per_shard=rows_per_shard,
        overwrite=overwrite,
    )


def _batches(shards: Iterable[ShardFile], reading: Reading) -> Iterator[RowBatch]:
    for shard in shards:
        yield from prefetch(open_reader(shard, reading).batches)
        check_unchanged(shard)


def _base(paths: list[str], reading: Reading, to: Format) -> Literal[0, 1]:
    """Return the number of the first column; ``auto`` takes a reading, if numbers change."""
    with open_shards(paths, reading, cache_dir=None, most_labels=None,
                     allow_duplicate=True) as source:  # fmt: skip
        if source.index_base is None and to == "libsvm":
            return 0
        if source.index_base is None:
            read_to_end(source)
        return 1 if source.index_base == 1 else 0


# On workers --------------------------------------------------------------------------------------


class Target(NamedTuple):
    """Where the new shards are written, and how."""

    directory: str
    to: Format
    weights: bool
    names: bool
    """whether text may have strings as labels"""
    rows_per_shard: int
    overwrite: bool


class Survey(NamedTuple):
    """What several workers must know of a shard before they write its rows."""

    rows: int
    has_column_0: bool
    labels: Labels


class RowRange(NamedTuple):
    """Consecutive new shards that one worker writes, and the old shards of their rows."""

    name: str
    """of the first old shard"""
    shards: Sequence[ShardFile]
    skip: int
    """first rows of the first old shard, which belong to other workers"""
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
        ranges = _row_ranges(shards, rows, paths, target.rows_per_shard)
        written = reduce(Written.plus, executor(write_range, ranges, reading, target.to, style))
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
    for batch in open_reader(shard, reading).batches():
        if labels.type is None and batch.rows:
            labels = labels_of([batch])
        rows += batch.rows
        has_column_0 |= bool((batch.indices == 0).any())
    check_unchanged(shard)
    yield Survey(rows, has_column_0, labels)


def write_range(
    rows: RowRange, reading: Reading, to: Format, style: ShardStyle
) -> Iterator[Written]:
    """Write the new shards of a row range."""
    batches = _some_rows(_batches(rows.shards, reading), rows.skip, rows.rows)
    written = write_shards(batches, rows.paths.__getitem__, to, style, rows.rows_per_shard)
    check_unchanged(rows.shards[-1])  # perhaps only its first rows were read
    yield written


def _some_rows(batches: Iterator[RowBatch], skip: int, rows: int) -> Iterator[RowBatch]:
    for batch in batches:
        start = min(skip, batch.rows)
        stop = min(batch.rows, start + rows)
        skip, rows = skip - start, rows - (stop - start)
        if stop > start:
            yield slice_batch(batch, start, stop)
        if not rows:
            return


def _surveyed_base(
    surveys: Sequence[Survey], shards: Sequence[ShardFile], reading: Reading, to: Format
) -> Literal[0, 1]:
    """Return the number of the first column, as ``_base``, from surveys."""
    if reading.index_base != "auto":
        return reading.index_base
    kept = shards[0].format != "libsvm" or to == "libsvm"
    return 0 if kept or any(known.has_column_0 for known in surveys) else 1


def _row_ranges(
    shards: Sequence[ShardFile], rows: Sequence[int], paths: Sequence[str], rows_per_shard: int
) -> list[RowRange]:
    """Give the new shards that begin in one old shard to one worker: little is read twice."""
    firsts = list(accumulate(rows, initial=0))
    end = firsts.pop()
    numbers = range(len(paths))
    ranges = []
    for at, some in groupby(numbers, lambda n: bisect_right(firsts, n * rows_per_shard) - 1):
        mine = list(some)
        first, stop = mine[0] * rows_per_shard, min((mine[-1] + 1) * rows_per_shard, end)
        until = bisect_right(firsts, stop - 1)
        ranges.append(
            RowRange(
                shards[at].name, shards[at:until], first - firsts[at], stop - first,
                [paths[number] for number in mine], rows_per_shard,
            )
        )  # fmt: skip
    return ranges
