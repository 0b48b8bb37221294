"""Open a single shard with the reader of its format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.text import reason_of
from streamtron.data.deletions import Deletions
from streamtron.data.discover import FORMATS, ROWS_GIVEN, ShardFile
from streamtron.data.formats.layouts import decoded
from streamtron.data.manifest import check_unchanged
from streamtron.data.prefetch import run_in_thread
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import FileReader

if TYPE_CHECKING:
    from streamtron.data.formats.tables import TableReader


def open_reader(
    shard: ShardFile, reading: ReaderConfig, threads: int = 1, scratch: str | None = None
) -> FileReader:
    """Open a shard with the reader of its format."""
    format_ = FORMATS[shard.format]
    given = shard.name == ROWS_GIVEN
    module = import_module(f"streamtron.data.formats.{'given' if given else format_.module}")
    reader: FileReader = getattr(module, "GivenReader" if given else format_.reader)(
        shard.path, shard.name, reading, scratch, threads, shard.without
    )
    return reader


def table_reader(
    shard: ShardFile,
    reading: ReaderConfig,
    threads: int = 1,
    refusal: str = "has column numbers and no names. Leave --columns, --text and --transformer out",
) -> TableReader:
    """Open a shard that is a table; a SettingsError for text without names of columns."""
    from streamtron.data.formats.tables import TableReader

    reader = open_reader(shard, reading, threads)
    if not isinstance(reader, TableReader):
        raise SettingsError(f"{shard.name}: {shard.format} text {refusal}.")
    return reader


def resolve_reading(shard: ShardFile, reading: ReaderConfig) -> ReaderConfig:
    """Complete a reading by the columns of the first shard; refuse what does not suit it."""
    return open_reader(shard, reading).resolve()


def fingerprints(shards: Iterable[ShardFile], reading: ReaderConfig) -> list[tuple[str, str]]:
    """Return name and fingerprint of shards, whose bytes are read."""
    return [
        (shard.name, run_in_thread(open_reader(shard, reading).fingerprint)) for shard in shards
    ]


def excluding(
    shards: Sequence[ShardFile], deletions: Iterable[Deletions], reading: ReaderConfig
) -> list[ShardFile]:
    """Return shards without the rows that are deleted from them, by their paths. If some were moved
    or renamed, all are found by their fingerprints."""
    deleted = tuple(deletions)
    known = {deletion.path: deletion for deletion in deleted}
    if not known.keys() <= {shard.path for shard in shards}:
        by_bytes = {deletion.fingerprint: deletion for deletion in deleted}
        for shard, (_, fingerprint) in zip(shards, fingerprints(shards, reading), strict=True):
            if fingerprint in by_bytes and shard.path not in known:
                known[shard.path] = replace(by_bytes[fingerprint], path=shard.path)
    return [shard._replace(without=known.get(shard.path)) for shard in shards]


def first_rows(batches: Iterable[pa.RecordBatch], most: float) -> Iterator[pa.RecordBatch]:
    """Yield batches until there are so many rows, the last one cut."""
    for batch in batches:
        rows = batch.slice(0, int(min(most, len(batch))))
        yield rows
        if (most := most - len(rows)) <= 0:
            return


def rows_with(
    shard: ShardFile, column: str, values: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the rows of a table, rising, whose column equals one of the values;
    which of the values that is, the first; and for each value the first that is equal to it.

    Only that column is read, whether or not the run reads it. The values are text, and are turned
    into what it holds; a null equals nothing. A shard that is not as it was read is refused.
    """
    check_unchanged(shard)
    places, equal_to = [np.zeros(0, np.int64)], np.arange(len(values))
    refusal = f"has no column {column!r} to look in. Name the rows with --rows FILE"
    for batch in table_reader(shard, ReaderConfig(), refusal=refusal).rows([column]):
        cells = decoded(batch.column(0))
        try:
            typed = pa.array(values, pa.string()).cast(cells.type)
            places.append(pc.fill_null(pc.index_in(cells, value_set=typed), -1).to_numpy())
            equal_to = pc.index_in(typed, value_set=typed).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = reason_of(error)
            raise SettingsError(
                f"{shard.name}: column {column!r} holds {cells.type}, and --value is none "
                f"({reason}). Give a value as the column has it, or name the rows with --rows FILE."
            ) from error
    check_unchanged(shard)
    place = np.concatenate(places)
    rows = np.flatnonzero(place >= 0)
    return rows, place[rows], equal_to
