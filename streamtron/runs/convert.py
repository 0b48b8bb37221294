"""Convert shards of any readable format into libsvm text or Parquet."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from streamtron.core.config import READING, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.kinds import whole
from streamtron.core.limits import available_processors
from streamtron.core.names import check_names
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
from streamtron.data.manifest import check_unchanged
from streamtron.data.prefetch import prefetch
from streamtron.data.profile import with_guesses
from streamtron.data.recipes import count_columns, with_counts
from streamtron.data.row_batch import RowBatch
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


def convert(
    shards: Paths,
    destination: str | os.PathLike[str],
    *,
    to: Format = "parquet",
    settings: Settings | None = None,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
    keep_names: bool = False,
    **names: Any,
) -> Written:
    """Convert shards into another format or size, or columns of any kinds into rows.

    Text numbers columns as its source did, or from 1 where that was not text; Parquet always from
    0. Rows keep their order, labels and weights; names of features become numbers. With
    ``multilabel`` labels are lists in Parquet and ``1,5,7`` in text; there and with ``multiclass``
    a label may be a name. New shards appear together at the end; those made of ``columns`` or
    ``text`` name the recipe, so that models read the columns. Shards are read once, and once more
    for what a recipe must know, for ``keep_names``, and from libsvm text to Parquet without an
    index base.

    Parameters
    ----------
    shards : files, directories or globs, in any format that is read.
    destination : a new or empty directory.
    to : ``"libsvm"`` or ``"parquet"``.
    settings : how the shards are read, or by name: ``columns``, ``label``, ``multiclass``, …
    rows_per_shard : at least 1.
    overwrite : replace the shards of an earlier conversion.
    keep_names : write the names of the columns, words too, where ``explain`` and ``report`` find
        them; of many the 2¹⁹ that occur most often.

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
    check_names(names, READING)
    settings, paths = settings_from(settings, names), as_paths(shards)
    settings = with_guesses(settings, paths)
    _check(settings, to, rows_per_shard)
    check_outputs({}, [*paths, settings.vocabulary], directories={"destination": destination})
    files = find_shards(paths)
    of_text = files[0].format == "libsvm"
    if keep_names and of_text:
        raise SettingsError(
            f"{files[0].name}: libsvm text has column numbers and no names. Leave --keep-names out."
        )
    reading = resolve_reading(files[0], reading_from_settings(settings))
    threads = available_processors()
    with new_shards(os.fspath(destination), to, overwrite) as path_of:
        if reading.recipe is not None and not reading.recipe.is_fitted:
            counts = chain.from_iterable(count_columns(file, reading, threads) for file in files)
            reading = with_counts(reading, counts)
        if reading.index_base == "auto":
            is_kept = not of_text or to == "libsvm"  # whatever the numbers begin with
            reading = replace(reading, index_base=0 if is_kept else _base(files, reading))
        base = int(reading.index_base)
        shift = -base if to == "parquet" else 0 if of_text else 1 - base
        if keep_names:
            named = chain.from_iterable(names_of(file, reading, threads) for file in files)
            write_names(path_of(NAMES), add_up(named), reading, shift)
        with closing(_read(files, reading, threads)) as batches:
            # up to the first label: a row may have none
            first = []
            for batch in batches:
                first.append(batch)
                if batch.classes:
                    break
            if not any(batch.rows for batch in first):
                raise no_rows(files)
            labels = first[-1].classes
            style = ShardStyle(
                to,
                shift,
                label_type(labels[0]) if labels else float,
                settings.weight is not None or settings.weights_in_label,
                any(batch.code_offsets is not None for batch in first),
                settings.one_vs_rest,
                None if reading.recipe is None else canonical(reading.recipe.to_dict()),
            )
            return write_shards(chain(first, batches), path_of, style, rows_per_shard)


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


def _base(files: Sequence[ShardFile], reading: ReaderConfig) -> Literal[0, 1]:
    """Read libsvm text for the number of its first column."""
    with closing(_read(files, reading, available_processors())) as batches:
        return 0 if any((batch.indices == 0).any() for batch in batches) else 1


def _read(
    files: Sequence[ShardFile], reading: ReaderConfig, threads: int
) -> Generator[RowBatch, None, None]:
    """Read the rows of all shards, which must not change meanwhile."""
    for file in files:
        reader = open_reader(file, reading, threads)
        with closing(prefetch(reader.batches)) as batches:
            yield from batches
        check_unchanged(file)
        if reading.index_base != "auto":  # else they are read again
            reader.warn()
