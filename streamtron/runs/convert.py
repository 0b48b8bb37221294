"""Convert shards of any readable format into libsvm text or Parquet."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, groupby
from typing import Literal, NamedTuple

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.core.executor import Executor, serial, sum_over_tree
from streamtron.core.rows import Label
from streamtron.data import (
    Reading,
    ShardFile,
    find_shards,
    no_rows,
    open_reader,
    resolve_reading,
)
from streamtron.data.first_reading import check_unchanged
from streamtron.data.prefetch import prefetch
from streamtron.data.row_batch import RowBatch, slice_batch
from streamtron.data.writers.shards import (
    ROWS_PER_SHARD,
    Format,
    ShardStyle,
    Written,
    label_type,
    new_shards,
    write_shards,
)
from streamtron.runs.inputs import Paths, as_paths, reading_from_settings
from streamtron.runs.outputs import check_outputs


def convert(
    shards: Paths,
    destination: str | os.PathLike[str],
    *,
    to: Format,
    settings: Settings | None = None,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
    executor: Executor = serial,
) -> Written:
    """Convert shards into another format, or into shards of another size.

    Text numbers columns as its source did, or from 1 where that was not text; Parquet always from
    0. Rows keep their order, labels and weights; names of features become numbers. With
    ``multilabel`` labels are lists in Parquet and ``1,5,7`` in text; there and with ``multiclass``
    a label may be a name. The shards are read twice, to count their rows and to write them. All
    new shards appear together at the end.

    Parameters
    ----------
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    destination : a new or empty directory.
    to : ``"libsvm"`` or ``"parquet"``.
    settings : how the shards are read: ``index_base``, ``weights_in_label``, ``label``, ….
    rows_per_shard : at least 1.
    overwrite : replace the shards of an earlier conversion.
    executor : here, or workers that see shards and destination; they write the same files.

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
    paths = as_paths(shards)
    _check(settings, to, rows_per_shard)
    check_outputs({}, paths, directories={"destination": destination})
    found = find_shards(paths)
    reading = resolve_reading(found[0], reading_from_settings(settings))
    with new_shards(os.fspath(destination), to, overwrite) as shard_path:
        surveys = list(executor(survey, found, reading))
        base = _base(surveys, found, reading, to)
        shift = -base if to == "parquet" else 0 if found[0].format == "libsvm" else 1 - base
        style = _style(surveys, to, shift, settings)
        ranges = _row_ranges(found, [known.rows for known in surveys], shard_path, rows_per_shard)
        based = replace(reading, index_base=base)
        return sum_over_tree(Written.plus, executor(write_range, ranges, based, style))


def _check(settings: Settings, to: Format, rows_per_shard: int) -> None:
    if rows_per_shard < 1:
        raise SettingsError(f"rows per shard {rows_per_shard}. A shard needs at least 1 row.")
    has_weights = settings.weight is not None or settings.weights_in_label
    if has_weights and settings.multilabel and to == "libsvm":
        raise SettingsError(
            "libsvm text has no row weights beside several labels: convert to Parquet, or leave "
            "the weight out."
        )


class Survey(NamedTuple):
    """What must be known of every shard before any row is written."""

    rows: int
    has_column_0: bool
    multilabel: bool
    label: Label | None
    """the first one"""


def survey(shard: ShardFile, reading: Reading) -> Iterator[Survey]:
    """Read a shard for its ``Survey``."""
    rows, has_column_0, multilabel, label = 0, False, False, None
    for batch in open_reader(shard, reading).batches():
        rows += batch.rows
        has_column_0 |= bool((batch.indices == 0).any())
        multilabel |= batch.code_offsets is not None
        label = batch.classes[0] if label is None and batch.classes else label
    check_unchanged(shard)
    yield Survey(rows, has_column_0, multilabel, label)


def _base(
    surveys: Sequence[Survey], shards: Sequence[ShardFile], reading: Reading, to: Format
) -> Literal[0, 1]:
    """Return the number of the first column; refuse shards without rows."""
    if not any(known.rows for known in surveys):
        raise no_rows(shards)
    if reading.index_base != "auto":
        return reading.index_base
    kept = shards[0].format != "libsvm" or to == "libsvm"  # whatever the numbers begin with
    return 0 if kept or any(known.has_column_0 for known in surveys) else 1


def _style(surveys: Sequence[Survey], to: Format, shift: int, settings: Settings) -> ShardStyle:
    labels = [known.label for known in surveys if known.label is not None]
    return ShardStyle(
        to,
        shift,
        label_type(labels[0]) if labels else float,
        settings.weight is not None or settings.weights_in_label,
        any(known.multilabel for known in surveys),
        settings.multiclass or settings.multilabel,
    )


class RowRange(NamedTuple):
    """Consecutive new shards that one task writes, and the old shards of their rows.

    ``name`` is that of the first old shard, whose first ``skip`` rows belong to other ranges.
    """

    name: str
    shards: Sequence[ShardFile]
    skip: int
    rows: int
    paths: Sequence[str]
    rows_per_shard: int


def _row_ranges(
    shards: Sequence[ShardFile], rows: Sequence[int], path_of: Callable[[int], str],
    rows_per_shard: int,
) -> list[RowRange]:  # fmt: skip
    """Put the new shards that begin in one old shard into one range: little is read twice."""
    firsts = list(accumulate(rows, initial=0))
    end = firsts.pop()
    ranges = []
    for at, numbers in groupby(
        range(-(-end // rows_per_shard)), lambda n: bisect_right(firsts, n * rows_per_shard) - 1
    ):
        own = list(numbers)
        first, stop = own[0] * rows_per_shard, min((own[-1] + 1) * rows_per_shard, end)
        old = shards[at : bisect_right(firsts, stop - 1)]
        new = [path_of(number) for number in own]
        ranges.append(
            RowRange(old[0].name, old, first - firsts[at], stop - first, new, rows_per_shard)
        )
    return ranges


def write_range(part: RowRange, reading: Reading, style: ShardStyle) -> Iterator[Written]:
    """Write the new shards of a row range."""
    batches = chain.from_iterable(
        prefetch(open_reader(shard, reading).batches) for shard in part.shards
    )
    rows = _some_rows(batches, part.skip, part.rows)
    written = write_shards(rows, part.paths.__getitem__, style, part.rows_per_shard)
    for shard in part.shards:
        check_unchanged(shard)
    yield written


def _some_rows(batches: Iterable[RowBatch], skip: int, rows: int) -> Iterator[RowBatch]:
    for batch in batches:
        start = min(skip, batch.rows)
        stop = min(batch.rows, start + rows)
        skip, rows = skip - start, rows - (stop - start)
        if stop > start:
            yield slice_batch(batch, start, stop)
        if not rows:
            return
