"""Scan shards at fixed weights, in this process or by workers: the same sums to the last bit.

A worker's task is a shard, and a block ends with its shard.
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
    check_duplicate,
    no_rows,
    resolve_reading,
)
from streamtron.runs.learners import read_to_end
from streamtron.solver.block_scan import (
    BlockScan,
    Numbered,
    PartialSums,
    ScanRequest,
    Violators,
    scan_blocks,
)
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner
from streamtron.solver.targets import Targets
from streamtron.solver.warm_start import keep_violators


class Scans:
    """Read the same shards several times, each time at fixed weights.

    Parameters
    ----------
    executor : workers that read them; None = this process.
    rows : of every shard. If None and the shards were never read, workers read them once more to
        count the rows, which is not among the ``readings``.
    cache_dir : directory of the flat copies, for workers that see it; None = no copies.
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
        self._source, self._executor, self._rows = source, executor, rows
        self._cache_dir = None if cache_dir is None else os.path.abspath(cache_dir)
        self._allow_duplicate = allow_duplicate
        self._by_workers = 0

    @property
    def readings(self) -> float:
        """Readings so far, by this process and by workers."""
        return self._source.readings + self._by_workers

    def read(
        self,
        requests: Sequence[ScanRequest],
        counts: Sequence[Counts],
        rooms: Callable[[], Sequence[int]] | None = None,
        pass_by: Callable[[Chunk], None] | None = None,
    ) -> Generator[BlockScan, None, None]:
        """Read once and yield the scan of every block.

        Parameters
        ----------
        requests, counts : see ``scan_blocks``.
        rooms : bytes of violators that still fit, for every request; None = none are wanted.
        pass_by : called with every chunk before it is scanned; this process then reads.

        Raises
        ------
        DataError : no rows; a duplicate shard, or one that changed; see also ``scan_blocks``.
        MachineError
        """
        if self._executor is None or pass_by is not None:
            chunks = self._source.chunks()
            if pass_by is not None:
                chunks = _shown(chunks, pass_by)
            yield from scan_blocks(chunks, requests, counts, rooms and rooms())
            return
        shards, reading, nonzeros = self._source.shards, self._source.reading, 0
        rows = self._rows_of_shards(self._executor)
        if not any(rows):
            raise no_rows(shards)
        tasks = scan_tasks(shards, rows, counts)
        shared = requests, resolve_reading(shards[0], reading), self._source.labels, self._cache_dir
        for block in self._executor(scan_shard, _with_room(tasks, rooms), *shared):
            nonzeros += block.nonzeros
            freeze(*block.held)  # read-only, as the worker had them
            yield block
        self._by_workers += nonzeros > 0

    def fingerprints(self) -> list[tuple[str, str]]:
        """Return (name, fingerprint) of every shard, from its bytes."""
        source = self._source
        if self._executor is None:
            return source.fingerprints()
        return list(self._executor(fingerprint, source.shards, source.reading, source.labels))

    def _rows_of_shards(self, executor: Executor) -> Sequence[int]:
        if self._rows is None and self._source.manifest is not None:
            self._rows = [record.rows for record in self._source.manifest.shards]
        if self._rows is None:
            self._rows = self._count_rows(executor)
        return self._rows

    def _count_rows(self, executor: Executor) -> list[int]:
        shards, rows = self._source.shards, []
        first: dict[str, ShardFile] = {}  # fingerprint → the first shard that has it
        reading = resolve_reading(shards[0], self._source.reading)
        found = executor(survey, shards, reading, self._source.labels, self._cache_dir)
        for shard, record in zip(shards, found, strict=True):
            if record.rows:
                same = first.setdefault(record.fingerprint, shard)
                check_duplicate(same, shard, self._allow_duplicate)
            rows.append(record.rows)
        return rows


def _shown(
    chunks: Generator[Chunk, None, None], pass_by: Callable[[Chunk], None]
) -> Generator[Chunk, None, None]:
    with closing(chunks):
        for chunk in chunks:
            pass_by(chunk)
            yield chunk


# --- sums for learners ---------------------------------------------------------------------------


def scan_request(learner: Learner) -> ScanRequest:
    """Return the scan that a learner's frozen weights ask for."""
    frozen = learner.frozen
    assert frozen is not None
    rho, scale = learner.settings.rho, frozen.scan_sums.scale
    return ScanRequest(learner.targets, frozen.w, frozen.bias, rho, scale, frozen.threshold)


def add_blocks(blocks: Generator[BlockScan, None, None], learners: Sequence[Learner]) -> None:
    """Add the blocks' sums to the learners, in the order of the blocks."""
    with closing(blocks):
        for block in blocks:
            for learner, sums in zip(learners, block.seen, strict=True):
                _add_sums(learner, block, sums)


def _add_sums(learner: Learner, block: BlockScan, sums: PartialSums) -> None:
    frozen = learner.frozen
    assert frozen is not None
    if block.width > len(frozen.w):
        frozen.widen(block.width)
    frozen.scan_sums.add(sums.part)
    learner.extent.observe(sums.sq_radius, sums.least_delta2)
    if sums.made is not None:
        learner.counts.put(*sums.made)
    if sums.violators is not None:
        _hold(learner, block, sums.violators)


def _hold(learner: Learner, block: BlockScan, called: Violators) -> None:
    """Put a block's violators into the learner's working set, as long as they fit."""
    at = np.searchsorted(block.numbers, called.numbers)
    signs, delta2 = np.zeros(len(block.numbers), np.int8), np.zeros(len(block.numbers))
    signs[at], delta2[at] = called.signs, called.delta2
    targets = Targets(block.numbers, signs, delta2, block.squares)
    keep_violators(learner, block.held, at, targets, called.rows)


# --- on workers ----------------------------------------------------------------------------------


class ScanTask(NamedTuple):
    """One shard to scan.

    Parameters
    ----------
    rows : number of its rows.
    first_row : number of its first row in the whole data.
    counts : for each request, the counts of these rows.
    rooms : see ``scan_blocks``.
    """

    shard: ShardFile
    rows: int
    first_row: int
    counts: tuple[Numbered, ...]
    rooms: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Label on the dashboard."""
        return self.shard.name


def scan_tasks(
    shards: Sequence[ShardFile], rows: Sequence[int], counts: Sequence[Counts]
) -> list[ScanTask]:
    """Return the tasks that scan all shards, in order.

    Parameters
    ----------
    rows : of every shard.
    counts : c_k of every row, for each request.
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
    """Yield each task with the room left at that time, so that no row is sent in vain."""
    for task in tasks:
        yield task if rooms is None else task._replace(rooms=tuple(rooms()))


def scan_shard(
    task: ScanTask,
    requests: Sequence[ScanRequest],
    reading: Reading,
    classes: Sequence[Label],
    cache_dir: str | None = None,
) -> Iterator[BlockScan]:
    """Scan the blocks of a shard.

    Raises
    ------
    DataError : another number of rows than the task's; see also ``scan_blocks``.
    MachineError : it cannot be read.
    """
    counts = [Counts() for _ in task.counts]
    for own, given in zip(counts, task.counts, strict=True):
        own.put(*given)
    yield from scan_blocks(_chunks(task, reading, classes, cache_dir), requests, counts, task.rooms)


def _chunks(
    task: ScanTask, reading: Reading, classes: Sequence[Label], cache_dir: str | None
) -> Generator[Chunk, None, None]:
    """Yield the chunks of the shard, numbered as in the whole data."""
    last, begin = 0, task.first_row
    with open_one(task.shard, reading, classes, cache_dir) as source:
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


def open_one(
    shard: ShardFile,
    reading: Reading,
    classes: Sequence[Label],
    cache_dir: str | None = None,
) -> ShardSource:
    """Open one shard by itself, which may be empty or a duplicate."""
    return ShardSource(
        [shard], reading, cache_dir=cache_here(cache_dir), classes=classes, allow_duplicate=True,
        allow_empty=True,
    )  # fmt: skip


def cache_here(directory: str | None) -> str | None:
    """Return the directory of the flat copies if this machine sees it, else None."""
    return directory if directory is not None and os.path.isdir(directory) else None


def survey(
    shard: ShardFile, reading: Reading, classes: Sequence[Label], cache_dir: str | None
) -> Iterator[ShardRecord]:
    """Read a shard for its record, and write a flat copy for later readings.

    Raises
    ------
    DataError, MachineError
    """
    with open_one(shard, reading, classes, cache_dir) as source:
        read_to_end(source)
        assert source.manifest is not None
        yield from source.manifest.shards


def fingerprint(
    shard: ShardFile, reading: Reading, classes: Sequence[Label]
) -> Iterator[tuple[str, str]]:
    """Yield (name, fingerprint) of a shard, from its bytes."""
    with open_one(shard, reading, classes) as source:
        yield from source.fingerprints()
