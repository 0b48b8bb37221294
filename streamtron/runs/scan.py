"""Scan shards at fixed weights, a task a shard: the same sums to the last bit on any executor.

A block ends with its shard, so a task's blocks are those of the whole data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streamtron.core.certificate import Certificate, zero_columns
from streamtron.core.errors import DataError
from streamtron.core.events import ChunkDone, Listener, ReadingDone, ReadingStarted, SolveStarted
from streamtron.core.executor import Executor
from streamtron.core.rows import Label, freeze
from streamtron.data import (
    ReaderConfig,
    ShardFile,
    ShardRecord,
    ShardSource,
    check_duplicate,
    no_rows,
    resolve_reading,
)
from streamtron.runs.inputs import open_one
from streamtron.solver.duals import Counts, split
from streamtron.solver.learner import Learner
from streamtron.solver.reading import begin_reading, problem_of
from streamtron.solver.scan import BlockScan, Numbered, ScanRequest, scan_blocks
from streamtron.solver.working_set import NEAR, keep_violators, room


class Scans:
    """Read the same shards several times, each time at fixed weights.

    ``cache_dir`` : of the flat copies, where a worker sees it; None = no copies. ``rows`` : of
    every shard; None = the first reading counts them, and no row has a count in it. ``reading`` :
    number of the current one, from 0. ``listen`` : is told how far it is.
    """

    def __init__(
        self,
        source: ShardSource,
        executor: Executor,
        cache_dir: str | None,
        threads: int | None,
        allow_duplicate: bool,
        listen: Listener,
    ) -> None:
        self.source, self._executor, self.listen = source, executor, listen
        self._cache_dir = None if cache_dir is None else os.path.abspath(cache_dir)
        self._threads, self._allow_duplicate = threads, allow_duplicate
        self.rows: Sequence[int] | None = None
        self.reading, self._readings = -1, 0
        self._read = 0, 0  # rows and nonzeros of the current reading

    @property
    def readings(self) -> float:
        """Readings so far, those of the source included."""
        return self.source.readings + self._readings

    def read(
        self, requests: Sequence[ScanRequest], learners: Sequence[Learner], *, hold: bool
    ) -> Generator[BlockScan, None, None]:
        """Read once and yield the scan of every block; see ``scan_blocks``. ``hold`` : with the
        violators that the learners have room for. No rows, a duplicate shard or one that changed
        are a DataError."""
        shards, records, nonzeros = self.source.shards, list[ShardRecord](), 0
        reading = resolve_reading(shards[0], self.source.reading)
        tasks = (  # made in turn, so that no row is sent in vain
            task._replace(rooms=tuple(map(room, learners))) if hold else task
            for task in scan_tasks(shards, self.rows, [learner.counts for learner in learners])
        )
        arguments = requests, reading, self.source.labels, self._cache_dir, self._threads
        self.begin("scan", len(requests))
        for block in self._executor(scan_shard, tasks, *arguments):
            if isinstance(block, ShardRecord):
                records.append(block)
                self._check(records)
            else:
                nonzeros += block.nonzeros
                self.passed(block.rows, block.nonzeros)
                freeze(*block.held)  # a worker's copy is not
                yield block
        self.rows = [record.rows for record in records]
        if not any(self.rows):
            raise no_rows(shards)
        self._readings += nonzeros > 0

    def begin(self, purpose: str, problems: int) -> None:
        """Tell that another reading begins."""
        rows, nonzeros = (None, None) if self.reading < 0 else self._read
        self.reading, self._read = self.reading + 1, (0, 0)
        self.listen(ReadingStarted(self.reading, purpose, rows, nonzeros, problems))

    def end(self) -> None:
        """Tell that all rows of a reading have passed."""
        self.listen(SolveStarted(self.reading, self._read[0]))

    def done(
        self, learner: Learner, proven: Certificate, mode: str = "scan", mini_epochs: int = 0
    ) -> None:
        """Tell what is proven of a learner's weights after a reading."""
        done = ReadingDone(
            self.reading,
            learner.progress.stage.name,
            mode,
            0,
            mini_epochs,
            len(learner.active),
            proven,
            learner.upper_bound,
            None if self.rows is None else sum(self.rows),
            problem=problem_of(learner),
        )
        self.listen(done)

    def passed(self, rows: int, nonzeros: int) -> None:
        """Tell that so many more rows of a reading have passed."""
        self._read = self._read[0] + rows, self._read[1] + nonzeros
        self.listen(ChunkDone(self.reading, *self._read))

    def fingerprints(self) -> list[tuple[str, str]]:
        """Return (name, fingerprint) of every shard, from its bytes."""
        source = self.source
        return list(self._executor(fingerprint, source.shards, source.reading, source.labels))

    def _check(self, records: Sequence[ShardRecord]) -> None:
        """Check the rows of the last record; in the first reading whether its shard is new."""
        last, shards = records[-1], self.source.shards
        number = len(records) - 1
        if self.rows is None:
            fingerprints = [record.fingerprint for record in records]
            if last.rows and (first := fingerprints.index(last.fingerprint)) < number:
                check_duplicate(shards[first], shards[number], self._allow_duplicate)
        elif last.rows != self.rows[number]:
            compared = "more" if last.rows > self.rows[number] else "fewer"
            raise DataError(
                f"{last.name}: it holds {last.rows} rows, {compared} than the {self.rows[number]} "
                "that are known of it. Give the shards as the witness has them, or as they were "
                "when the command began."
            )


def scan_request(learner: Learner) -> ScanRequest:
    """Return the scan that a learner's frozen weights ask for."""
    frozen = learner.frozen
    assert frozen is not None
    rho, sums = learner.augmentation, frozen.scan_sums
    return ScanRequest(
        learner.targets,
        frozen.w,
        frozen.bias,
        rho,
        sums.scale,
        frozen.threshold,
        sums.b,
        loss=learner.loss,
        free=sums.free,
        ratio=sums.ratio,
    )


def add_blocks(blocks: Generator[BlockScan, None, None], learners: Sequence[Learner]) -> None:
    """Add the blocks' sums to the learners, in the order of the blocks."""
    first_row = 0
    with closing(blocks):
        for block in blocks:
            for number, learner in enumerate(learners):
                _add_block(learner, block, number, first_row)
            first_row += block.rows


def _add_block(learner: Learner, block: BlockScan, number: int, first_row: int) -> None:
    """Add the sums of the learner's request, and keep its violators as far as they fit."""
    frozen, sums = learner.frozen, block.seen[number]
    assert frozen is not None
    if block.width > len(frozen.w):
        frozen.widen(block.width)
    frozen.scan_sums.add(sums.sums)
    learner.extent.observe(sums.sq_radius, sums.least_delta2)
    if sums.made is not None:
        learner.counts.put(first_row + sums.made.numbers, sums.made.counts)
    if (violators := sums.violators) is not None:
        at = np.searchsorted(block.positions, violators.positions)
        targets = replace(violators.targets, numbers=first_row + violators.positions)
        keep_violators(learner, block.held, at, targets, violators.rows)


def scan_weights(
    scans: Scans,
    learners: Sequence[Learner],
    scales: Sequence[float],
    *,
    from_slacks: bool = False,
    first: bool = False,
) -> list[Certificate]:
    """Certify the learners' weights by one reading: with the dual of their counts, or of those
    that are made of the slacks, of which the learners then hold the rows that they have room for.
    ``first`` : R is still unknown. A DataError if no row has a weight above 0."""
    for learner, scale in zip(learners, scales, strict=True):
        begin_reading(learner, 0, scale)
    requests = []
    for learner, scale in zip(learners, scales, strict=True):
        # of the hinge rows without a slack matter, too: at the kink
        near = NEAR / scale if from_slacks and learner.loss.zone else -math.inf
        request = scan_request(learner)
        requests.append(request._replace(threshold=near, first=first, from_slacks=from_slacks))
    add_blocks(scans.read(requests, learners, hold=from_slacks), learners)
    certificates = []
    for learner in learners:
        assert learner.frozen is not None
        proof = learner.frozen.certificate(hard=learner.settings.hard)
        zeros = zero_columns(learner.frozen.scan_sums, proof.primal, proof.dual)
        proof = replace(proof, zero_columns=int(np.count_nonzero(zeros)))
        if not proof.rows_scanned:
            raise DataError(
                f"none of the {sum(scans.rows or ()):,} rows has a weight above 0, and there is "
                "nothing to certify. Check the weights."
            )
        certificates.append(proof)
        scans.done(learner, proof)
    return certificates


class ScanTask(NamedTuple):
    """One shard to scan, and for each request the counts of its rows, numbered from 0 in the shard,
    and the room for violators."""

    shard: ShardFile
    counts: tuple[Numbered, ...]
    rooms: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Label on the dashboard."""
        return self.shard.name


def scan_tasks(
    shards: Sequence[ShardFile], rows: Sequence[int] | None, counts: Sequence[Counts]
) -> Iterator[ScanTask]:
    """Yield the tasks that scan all shards, in order, each with the counts of its shard alone;
    ``rows`` of each shard, or None if no row has a count."""
    known = rows or [0] * len(shards)
    pieces = [split(entries.nonzero(), known) for entries in counts]
    for shard, *pieces_of in zip(shards, *pieces, strict=True):
        yield ScanTask(shard, tuple(Numbered(*entries.entries()) for entries in pieces_of))


def scan_shard(
    task: ScanTask,
    requests: Sequence[ScanRequest],
    reading: ReaderConfig,
    classes: Sequence[Label],
    cache_dir: str | None = None,
    threads: int | None = None,
) -> Iterator[BlockScan | ShardRecord]:
    """Scan the blocks of a shard, then yield its record."""
    counts = [Counts() for _ in task.counts]
    for counts_of_rows, numbered in zip(counts, task.counts, strict=True):
        counts_of_rows.put(*numbered)
    with open_one(task.shard, reading, classes, cache_dir, threads) as source:
        try:
            yield from scan_blocks(source.chunks(), requests, counts, task.rooms)
        except DataError as error:
            if task.name in str(error):
                raise
            raise DataError(f"{task.name}: {error}") from error
        assert source.manifest is not None
        yield from source.manifest.shards


def fingerprint(
    shard: ShardFile, reading: ReaderConfig, classes: Sequence[Label]
) -> Iterator[tuple[str, str]]:
    """Yield (name, fingerprint) of a shard, from its bytes."""
    with open_one(shard, reading, classes) as source:
        yield from source.fingerprints()
