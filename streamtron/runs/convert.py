"""Convert shards of any readable format into libsvm text or Parquet."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, chain, groupby
from typing import Literal, NamedTuple, Unpack

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.core.executor import Executor, serial, sum_over_tree
from streamtron.core.kinds import whole
from streamtron.core.limits import available_processors
from streamtron.core.names import ReadingNames, checks_keywords
from streamtron.core.rows import Label
from streamtron.core.sealed import canonical
from streamtron.data import (
    ReaderConfig,
    ShardFile,
    find_shards,
    no_rows,
    open_reader,
    resolve_reading,
)
from streamtron.data.column_names import add_up, names_of, write_names
from streamtron.data.discover import NAMES
from streamtron.data.formats.recipe import Recipe
from streamtron.data.manifest import check_unchanged
from streamtron.data.prefetch import prefetch
from streamtron.data.profile import with_guesses
from streamtron.data.recipes import count_columns, with_counts
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
from streamtron.runs.inputs import (
    Paths,
    as_paths,
    check_outputs,
    reading_from_settings,
    settings_from,
)


@checks_keywords(ReadingNames)
def convert(
    shards: Paths,
    destination: str | os.PathLike[str],
    *,
    to: Format = "parquet",
    settings: Settings | None = None,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
    keep_names: bool = False,
    executor: Executor = serial,
    **names: Unpack[ReadingNames],
) -> Written:
    """Convert shards into another format or size, or columns of any kinds into rows.

    Text numbers columns as its source did, or from 1 where that was not text; Parquet always from
    0. Rows keep their order, labels and weights; names of features become numbers. With
    ``multilabel`` labels are lists in Parquet and ``1,5,7`` in text; there and with ``multiclass``
    a label may be a name. New shards appear together at the end; those made of ``columns`` or
    ``text`` name the recipe, so that models read the columns. Shards are read once; before that,
    all are read to count rows for workers, what a recipe must know, and where only the whole tells
    how rows are written: with ``multilabel``, and from libsvm text to Parquet without an index
    base.

    Parameters
    ----------
    shards : files, directories or globs, in any format that is read.
    destination : a new or empty directory.
    to : ``"libsvm"`` or ``"parquet"``.
    settings : how the shards are read, or by name: ``columns``, ``label``, ``multiclass``, …
    rows_per_shard : at least 1.
    overwrite : replace the shards of an earlier conversion.
    keep_names : read once more and write the names of the columns, words too, where ``explain`` and
        ``report`` find them; of many the 2¹⁹ that occur most often.
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
    settings = settings_from(settings, names)
    paths = as_paths(shards)
    settings = with_guesses(settings, paths)
    _check(settings, to, rows_per_shard)
    check_outputs({}, [*paths, settings.vocabulary], directories={"destination": destination})
    files = find_shards(paths)
    if keep_names and files[0].format == "libsvm":
        raise SettingsError(
            f"{files[0].name}: libsvm text has column numbers, and no names to be kept. Leave "
            "--keep-names out."
        )
    reading = resolve_reading(files[0], reading_from_settings(settings))
    threads = available_processors() if executor is serial else 1
    with new_shards(os.fspath(destination), to, overwrite) as path_of:
        if reading.recipe is not None and not reading.recipe.is_fitted:
            reading = with_counts(reading, executor(count_columns, files, reading, threads))
        if executor is serial and _first_rows_tell(files, reading, to):
            surveys = _survey_first_rows(files, reading)
            ranges = [RowRange(files[0].name, files, 0, sys.maxsize, path_of, rows_per_shard)]
        else:
            surveys = [*executor(survey, files, reading, threads)]
            ranges = _row_ranges(files, surveys, path_of, rows_per_shard)
        base = _base(surveys, files, reading, to)
        shift = -base if to == "parquet" else 0 if files[0].format == "libsvm" else 1 - base
        style = _style(surveys, to, shift, settings, reading.recipe)
        based = replace(reading, index_base=base)
        if keep_names:
            counts = add_up(executor(names_of, files, based, threads))
            write_names(path_of(NAMES), counts, based, shift)
        return sum_over_tree(Written.plus, executor(write_range, ranges, based, style, threads))


def _check(settings: Settings, to: Format, rows_per_shard: int) -> None:
    whole(rows_per_shard, "rows-per-shard", least=1)
    has_weights = settings.weight is not None or settings.weights_in_label
    if has_weights and settings.multilabel and to == "libsvm":
        raise SettingsError(
            "libsvm text has no row weights beside several labels: convert to Parquet, or leave "
            "the weight out."
        )
    if (settings.columns or settings.text) and to == "libsvm":
        raise SettingsError(
            "libsvm text has no place for the recipe of the columns, without which no model could "
            "read them: convert to Parquet."
        )


class Survey(NamedTuple):
    """What must be known of every shard before any row is written."""

    rows: int
    has_column_0: bool
    multilabel: bool
    label: Label | None
    """the first one"""


def survey(
    shard: ShardFile, reading: ReaderConfig, threads: int = 1, whole: bool = True
) -> Iterator[Survey]:
    """Read a shard, or its first rows, for its ``Survey``; of the columns of a recipe nothing."""
    rows, has_column_0, multilabel, label = 0, False, False, None
    if reading.layout == "recipe" and reading.recipe is not None:
        reading = replace(reading, recipe=replace(reading.recipe, columns=()))
    with closing(prefetch(open_reader(shard, reading, threads).batches)) as batches:
        for batch in batches:
            rows += batch.rows
            has_column_0 |= bool((batch.indices == 0).any())
            multilabel |= batch.code_offsets is not None
            label = batch.classes[0] if label is None and batch.classes else label
            if not whole:
                break
    check_unchanged(shard)
    yield Survey(rows, has_column_0, multilabel, label)


def _first_rows_tell(shards: Sequence[ShardFile], reading: ReaderConfig, to: Format) -> bool:
    """Tell whether all shards are written as the first rows are: a row may have no label, and
    columns of libsvm text may be numbered from 0 or 1."""
    numbered = to == "parquet" and shards[0].format == "libsvm" and reading.index_base == "auto"
    return not (numbered or reading.multilabel)


def _survey_first_rows(shards: Sequence[ShardFile], reading: ReaderConfig) -> list[Survey]:
    """Return surveys of the first rows, and of the shards before them, which have none."""
    surveys: list[Survey] = []
    for shard in shards:
        surveys += survey(shard, reading, whole=False)
        if surveys[-1].rows:
            break
    return surveys


def _base(
    surveys: Sequence[Survey], shards: Sequence[ShardFile], reading: ReaderConfig, to: Format
) -> Literal[0, 1]:
    """Return the number of the first column; refuse shards without rows."""
    if not any(known.rows for known in surveys):
        raise no_rows(shards)
    if reading.index_base != "auto":
        return reading.index_base
    is_kept = shards[0].format != "libsvm" or to == "libsvm"  # whatever the numbers begin with
    return 0 if is_kept or any(known.has_column_0 for known in surveys) else 1


def _style(
    surveys: Sequence[Survey],
    to: Format,
    shift: int,
    settings: Settings,
    recipe: Recipe | None,
) -> ShardStyle:
    labels = [known.label for known in surveys if known.label is not None]
    return ShardStyle(
        to,
        shift,
        label_type(labels[0]) if labels else float,
        settings.weight is not None or settings.weights_in_label,
        any(known.multilabel for known in surveys),
        settings.one_vs_rest,
        None if recipe is None else canonical(recipe.to_dict()),
    )


class RowRange(NamedTuple):
    """Consecutive new shards that one task writes, and the old shards of their rows.

    ``name`` is that of the first old shard, whose first ``skip`` rows belong to other ranges.
    """

    name: str
    shards: Sequence[ShardFile]
    skip: int
    rows: int
    path_of: Callable[[int], str]
    rows_per_shard: int


def _row_ranges(
    shards: Sequence[ShardFile],
    surveys: Sequence[Survey],
    path_of: Callable[[int], str],
    rows_per_shard: int,
) -> list[RowRange]:
    """Put the new shards that begin in one old shard into one range: little is read twice."""
    firsts = list(accumulate((known.rows for known in surveys), initial=0))
    end = firsts.pop()
    ranges = []
    for at, numbers in groupby(
        range(-(-end // rows_per_shard)), lambda n: bisect_right(firsts, n * rows_per_shard) - 1
    ):
        new_numbers = list(numbers)
        first = new_numbers[0] * rows_per_shard
        stop = min((new_numbers[-1] + 1) * rows_per_shard, end)
        old = shards[at : bisect_right(firsts, stop - 1)]
        new = [path_of(number) for number in new_numbers].__getitem__
        ranges.append(
            RowRange(old[0].name, old, first - firsts[at], stop - first, new, rows_per_shard)
        )
    return ranges


def write_range(
    part: RowRange, reading: ReaderConfig, style: ShardStyle, threads: int = 1
) -> Iterator[Written]:
    """Write the new shards of a row range."""
    readers = [open_reader(shard, reading, threads) for shard in part.shards]
    batches = chain.from_iterable(prefetch(reader.batches) for reader in readers)
    rows = _some_rows(batches, part.skip, part.rows)
    written = write_shards(rows, part.path_of, style, part.rows_per_shard)
    for shard, reader in zip(part.shards, readers, strict=True):
        check_unchanged(shard)
        reader.warn()
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
