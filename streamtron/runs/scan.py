"""Readings at frozen weights, here or by many workers: the same sums to the last bit.

Workers have a task a shard, and blocks end with their shard.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from streamtron.core.errors import DataError
from streamtron.core.executor import Executor
from streamtron.core.rows import Chunk, Label, freeze
from streamtron.data import (
    Reading,
    ShardFile,
    ShardRecord,
    ShardSource,
    check_twin,
    no_rows,
    settled,
)
from streamtron.solver.block_scan import BlockScan, Numbered, ScanRequest, scan_blocks
from streamtron.solver.duals import Counts


class Scans:
    """Readings of the same shards, one after the other, each at frozen weights.

    Parameters
    ----------
    source : the shards.
    executor : workers that read them; None = this process does.
    rows : of every shard, if they are known. If not, and nobody has read the shards yet, workers
        read them once more to count the rows, which ``readings`` does not tell.
    cache_dir : where workers that see the directory keep a flat copy of the shards; None = nowhere.
    allow_duplicate : whether two shards may have the same bytes.
    """

    def __init__(
        self,
        source: ShardSource,
        executor: Executor | None = None,
        *,
        rows: Sequence[int] | None = None,
        cache_dir: str | None = None,
        allow_duplicate: bool = False,
    ) -> None:
        self._source, self._spread, self._rows = source, executor, rows
        self._cache_dir = None if cache_dir is None else os.path.abspath(cache_dir)
        self._allow_duplicate = allow_duplicate
        self._elsewhere = 0

    @property
    def readings(self) -> float:
        """How many there have been, here and elsewhere."""
        return self._source.readings + self._elsewhere

    def read(
        self,
        views: Sequence[ScanRequest],
        counts: Sequence[Counts],
        rooms: Callable[[], Sequence[int]] | None = None,
        pass_by: Callable[[Chunk], None] | None = None,
    ) -> Generator[BlockScan, None, None]:
        """One reading, block by block.

        Parameters
        ----------
        views, counts : as ``scan_blocks`` takes them.
        rooms : the bytes of called rows that each view still has room for; None = it wants none.
        pass_by : is shown every chunk before it is scanned: then this process reads.

        Raises
        ------
        DataError : no rows; a shard that is another's twin, or has other rows than before; and
            what reading and ``scan_blocks`` refuse.
        MachineError
        """
        if self._spread is None or pass_by is not None:
            chunks = self._source.chunks()
            if pass_by is not None:
                chunks = _shown(chunks, pass_by)
            yield from scan_blocks(chunks, views, counts, rooms and rooms())
            return
        shards, reading, nonzeros = self._source.shards, self._source.reading, 0
        rows = self._rows_of_shards(self._spread)
        if not any(rows):
            raise no_rows(shards)
        tasks = scan_tasks(shards, rows, counts)
        shared = views, settled(shards[0], reading), self._source.labels, self._cache_dir
        for block in self._spread(scan_shard, _with_room(tasks, rooms), *shared):
            nonzeros += block.nonzeros
            freeze(*block.held)  # as they were before they travelled
            yield block
        self._elsewhere += nonzeros > 0

    def fingerprints(self) -> list[tuple[str, str]]:
        """(name, fingerprint) of every shard, from its bytes."""
        source = self._source
        if self._spread is None:
            return source.fingerprints()
        return list(self._spread(fingerprint, source.shards, source.reading, source.labels))

    def _rows_of_shards(self, executor: Executor) -> Sequence[int]:
        if self._rows is None and self._source.manifest is not None:
            self._rows = [record.rows for record in self._source.manifest.shards]
        if self._rows is None:
            self._rows = self._counted(executor)
        return self._rows

    def _counted(self, executor: Executor) -> list[int]:
        shards, rows = self._source.shards, []
        first: dict[str, ShardFile] = {}  # fingerprint → the first shard that has it
        reading = settled(shards[0], self._source.reading)
        found = executor(survey, shards, reading, self._source.labels, self._cache_dir)
        for shard, record in zip(shards, found, strict=True):
            if record.rows:
                twin = first.setdefault(record.fingerprint, shard)
                check_twin(twin, shard, self._allow_duplicate)
            rows.append(record.rows)
        return rows


def _shown(
    chunks: Generator[Chunk, None, None], pass_by: Callable[[Chunk], None]
) -> Generator[Chunk, None, None]:
    with closing(chunks):
        for chunk in chunks:
            pass_by(chunk)
            yield chunk


# --- on workers ----------------------------------------------------------------------------------


class ScanTask(NamedTuple):
    """One shard to scan.

    Parameters
    ----------
    shard, rows : it has so many.
    first_row : the number of its first row in the whole data.
    counts : of each view, the counts of its rows.
    rooms : as ``scan_blocks`` takes them.
    """

    shard: ShardFile
    rows: int
    first_row: int
    counts: tuple[Numbered, ...]
    rooms: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """What the dashboard calls it."""
        return self.shard.name


def scan_tasks(
    shards: Sequence[ShardFile], rows: Sequence[int], counts: Sequence[Counts]
) -> list[ScanTask]:
    """The tasks that scan all rows once, in the order of the rows.

    Parameters
    ----------
    rows : of every shard.
    counts : c_k of every row, for each of the views.
    """
    entries = [Numbered(*own.entries()) for own in counts]
    return [
        ScanTask(shard, own, first, tuple(_between(each, first, first + own) for each in entries))
        for shard, own, first in zip(shards, rows, accumulate(rows, initial=0), strict=False)
    ]


def _between(counts: Numbered, start: int, stop: int) -> Numbered:
    own = slice(*np.searchsorted(counts.numbers, (start, stop)))
    return Numbered(counts.numbers[own], counts.counts[own])


def _with_room(
    tasks: Sequence[ScanTask], rooms: Callable[[], Sequence[int]] | None
) -> Iterator[ScanTask]:
    """The tasks, each with the room that there is when it is asked for: rows for which there is
    none any more need not travel."""
    for task in tasks:
        yield task if rooms is None else task._replace(rooms=tuple(rooms()))


def scan_shard(
    task: ScanTask,
    views: Sequence[ScanRequest],
    reading: Reading,
    classes: Sequence[Label],
    cache_dir: str | None = None,
) -> Iterator[BlockScan]:
    """The blocks of a shard.

    Raises
    ------
    DataError : the shard has more rows or fewer than it is said to have; what its reader and
        ``scan_blocks`` refuse.
    MachineError : it cannot be read.
    """
    counts = [Counts() for _ in task.counts]
    for own, given in zip(counts, task.counts, strict=True):
        own.put(*given)
    yield from scan_blocks(_chunks(task, reading, classes, cache_dir), views, counts, task.rooms)


def _chunks(
    task: ScanTask, reading: Reading, classes: Sequence[Label], cache_dir: str | None
) -> Generator[Chunk, None, None]:
    """The rows of the shard, numbered as in the whole data."""
    last, begin = 0, task.first_row
    with alone(task.shard, reading, classes, cache_dir) as source:
        for chunk in source.chunks():
            [(first, last)] = chunk.ranges
            if last > task.rows:
                break
            yield replace(chunk, ranges=((begin + first, begin + last),))
    if last != task.rows:
        raise DataError(
            f"{task.shard.name}: it holds {'more' if last > task.rows else 'fewer'} rows than the "
            f"{task.rows} that are known of it. Give the shards as the witness has them, or as "
            "they were when the command began."
        )


def alone(
    shard: ShardFile,
    reading: Reading,
    classes: Sequence[Label],
    cache_dir: str | None = None,
) -> ShardSource:
    """One shard by itself, which may have no row and may be there twice."""
    return ShardSource(
        [shard], reading, cache_dir=cache_here(cache_dir), classes=classes, allow_duplicate=True,
        allow_empty=True,
    )  # fmt: skip


def cache_here(directory: str | None) -> str | None:
    """The client's directory for the flat copies, on a machine that sees it; else None."""
    return directory if directory is not None and os.path.isdir(directory) else None


def survey(
    shard: ShardFile, reading: Reading, classes: Sequence[Label], cache_dir: str | None
) -> Iterator[ShardRecord]:
    """Read a shard for its rows and its fingerprint, and leave a flat copy for later readings.

    Raises
    ------
    DataError, MachineError : what its reader refuses.
    """
    with alone(shard, reading, classes, cache_dir) as source:
        for _ in source.chunks():
            pass
        assert source.manifest is not None
        yield from source.manifest.shards


def fingerprint(
    shard: ShardFile, reading: Reading, classes: Sequence[Label]
) -> Iterator[tuple[str, str]]:
    """(name, fingerprint) of a shard, from its bytes.

    Raises
    ------
    MachineError : it cannot be read.
    """
    with alone(shard, reading, classes) as source:
        yield from source.fingerprints()
