"""Shards of any format into libsvm text or Parquet, whatever the readers understand."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from streamtron.config import Settings
from streamtron.errors import SettingsError
from streamtron.fitting import as_paths, reading_of
from streamtron.scoring import Paths
from streamtron.shards import Reading, ShardFile, find_shards, open_shards
from streamtron.shards.convert import ROWS_PER_SHARD, Format, Written
from streamtron.shards.convert import convert as write_shards
from streamtron.shards.piece import Piece
from streamtron.shards.prefetch import ahead
from streamtron.shards.source import open_reader, settled


def convert(
    shards: Paths,
    destination: str | os.PathLike[str],
    *,
    to: Format,
    settings: Settings | None = None,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
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
    found = find_shards(paths)
    reading = settled(found[0], reading_of(settings))
    base = _base(paths, reading, to)
    reading = replace(reading, index_base=base)
    weighted = settings.weight is not None or settings.weights_in_label
    if weighted and settings.multilabel and to == "libsvm":
        raise SettingsError(
            "libsvm text has no row weights beside several labels: convert to Parquet, or leave "
            "the weight out."
        )
    return write_shards(
        _pieces(found, reading),
        os.fspath(destination),
        to=to,
        index_base=base,
        text_base=base if found[0].format == "libsvm" else 1,
        weights=weighted,
        names=settings.multiclass or settings.multilabel,
        rows_per_shard=rows_per_shard,
        overwrite=overwrite,
    )


def _pieces(shards: Iterable[ShardFile], reading: Reading) -> Iterator[Piece]:
    for shard in shards:
        yield from ahead(open_reader(shard, reading).pieces)


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
