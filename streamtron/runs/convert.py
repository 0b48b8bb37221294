"""Convert shards of any readable format into libsvm text or Parquet."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from streamtron.core.config import READING, Settings, check_names
from streamtron.core.errors import SettingsError
from streamtron.core.kinds import whole
from streamtron.core.limits import available_processors
from streamtron.data import (
    ReaderConfig,
    ShardFile,
    find_shards,
    no_rows,
    open_reader,
    resolve_reading,
)
from streamtron.data.manifest import check_unchanged
from streamtron.data.prefetch import prefetch
from streamtron.data.row_batch import RowBatch
from streamtron.data.sample import has_transformer
from streamtron.data.writers import shards as writer
from streamtron.runs import inputs


def convert(
    shards: inputs.Paths,
    destination: str | os.PathLike[str],
    *,
    to: writer.Format = "parquet",
    settings: Settings | None = None,
    rows_per_shard: int = writer.ROWS_PER_SHARD,
    overwrite: bool = False,
    **names: Any,
) -> writer.Written:
    """Convert shards into another format or size.

    Text numbers columns as its source did, or from 1 where that was not text; Parquet always from
    0. Rows keep their order, labels and weights; names of features become numbers. With
    ``multilabel`` labels are lists in Parquet and ``1,5,7`` in text; there and with ``multiclass``
    a label may be a name. New shards appear together at the end. Shards are read once, and twice
    from libsvm text to Parquet without an index base.

    Parameters
    ----------
    shards : files, directories or globs, in any format that is read.
    destination : a new or empty directory.
    to : ``"libsvm"`` or ``"parquet"``.
    settings : how the shards are read, or by name: ``label``, ``features``, ``multiclass``, …
    rows_per_shard : at least 1.
    overwrite : replace the shards of an earlier conversion.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = pathlib.Path(root, "a.svm").write_text("1 1:1\\n-1 2:1\\n")
    ...     convert(pathlib.Path(root, "a.svm"), pathlib.Path(root, "out"), to="parquet").rows
    2
    """
    check_names(names, READING)
    paths, settings = inputs.as_paths(shards), inputs.settings_from(settings, names)
    threads = available_processors()
    if has_transformer(settings):
        raise SettingsError(
            "convert writes rows as they are read, and fit turns columns into features: leave "
            "columns, text and transformer out."
        )
    weights, to_text = settings.weight is not None or settings.weights_in_label, to == "libsvm"
    whole(rows_per_shard, "rows-per-shard", least=1)
    if to_text and weights and settings.multilabel:
        raise SettingsError(
            "libsvm text has no row weights beside several labels: convert to Parquet, or leave "
            "the weight out."
        )
    inputs.check_outputs({}, paths, directories={"destination": destination})
    files = find_shards(paths)
    of_text = files[0].format == "libsvm"
    reading = resolve_reading(files[0], inputs.reading_from_settings(settings))
    with writer.new_shards(destination, overwrite) as place:
        if reading.index_base == "auto":
            is_kept = to_text or not of_text  # whatever the numbers begin with
            from_0 = is_kept or any((b.indices == 0).any() for b in _read(files, reading, threads))
            reading = replace(reading, index_base=0 if from_0 else 1)
        base = int(reading.index_base)
        shift = -base if not to_text else 0 if of_text else 1 - base
        style = writer.ShardStyle(to, shift, weights, settings.many_labels)
        with closing(_read(files, reading, threads)) as batches:
            written = writer.write_shards(batches, place, style, rows_per_shard)
        if not written.rows:
            raise no_rows(files)
        return written


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
