"""Scan the rows of a data set at fixed weights: the same sums to the last bit wherever that is.

Rows in memory are scanned there, others by a task a shard. A block ends with its shard, so the
blocks of the tasks are those of the whole data; they are summed each by itself, and added in their
order.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streamtron.core.certificate import Certificate, zero_columns
from streamtron.core.config import Settings
from streamtron.core.errors import DataError
from streamtron.core.events import Listener, ReadingDone, WorkDone
from streamtron.core.executor import Executor
from streamtron.core.files import scratch_directory
from streamtron.core.rows import Facts, Label, freeze
from streamtron.core.threads import opened_threads
from streamtron.data import Dataset, Expected, Preparing, ReaderConfig, ShardFile
from streamtron.data.flat_file import Columns
from streamtron.solver.alphas import Alphas, split
from streamtron.solver.learner import Learner
from streamtron.solver.reading import (
    begin_reading,
    finish_reading,
    problem_of,
    start_from_slacks,
)
from streamtron.solver.scan import BlockScan, Numbered, ScanRequest, scan_blocks
from streamtron.solver.train import OnePart
from streamtron.solver.working_set import NEAR, hold_all, keep_violators, room

SEARCH_TOLERANCE = 1e-4
"""Gap at which the search for a larger dual objective ends early."""


@dataclass
class Scans:
    """Readings that certify the weights of learners: scans, by an executor where the rows are not
    in memory, and those of ``search``. ``listen`` : is told how far they are. ``reading`` : the
    number of the next one."""

    data: Dataset
    executor: Executor
    listen: Listener
    reading: int = 0

    def certify(
        self, learners: Sequence[Learner], *, from_slacks: bool = False
    ) -> list[Certificate]:
        """Certify the learners' weights by one reading: with the dual of their α, or of those that
        are made of the slacks; of rows that are not in memory the learners then hold those
        that matter, as far as they have room. A DataError if no row has a weight above 0."""
        for learner in learners:
            begin_reading(learner, 0)
        with closing(self._blocks(learners, from_slacks)) as blocks:
            _add_blocks(blocks, learners)
        certificates = [self._certificate(learner) for learner in learners]
        for learner, proof in zip(learners, certificates, strict=True):
            self._tell(learner, proof)
        self.reading += 1
        return certificates

    def search(
        self, learners: Sequence[Learner], settings: Settings, readings: int
    ) -> list[Certificate]:
        """Certify the learners' weights by a first reading, and where that leaves a gap, search for
        a larger dual objective: train from there, in at most ``readings`` more.

        Any α prove one. The first are made of the slopes of the loss at the weights: of a smooth
        loss they prove optimal weights, of the hinge little. ``settings`` : order and seed.
        """
        certificates = self.certify(learners, from_slacks=True)
        gaps = [proof.relative_duality_gap for proof in certificates]
        searching = [k for k, gap in enumerate(gaps) if gap > SEARCH_TOLERANCE]
        if not searching or self.reading > readings:
            return certificates
        self.listen(WorkDone("solving", self.reading - 1))
        trained = [learners[k] for k in searching]
        hold_all(trained, self.data)
        for learner in trained:
            start_from_slacks(learner)
        trainer = OnePart(self.data, trained, settings, self.listen, opened_threads())
        while trainer.unfinished and self.reading <= readings:
            training, number = trainer.unfinished, self.reading
            trainer.tell_begin(number, training)
            for learner in training:
                begin_reading(learner, number)
            trainer.read(number, training)
            trainer.tell(number, "solving")
            trainer.solve(training, finish_reading)
            for k in (k for k in searching if learners[k] in training):
                if (bound := learners[k].certificate) is not None and bound.dual:
                    certificates[k] = _with_bound(certificates[k], bound)
                self._tell(learners[k], certificates[k])
            self.reading += 1
        return certificates

    def _blocks(
        self, learners: Sequence[Learner], from_slacks: bool
    ) -> Generator[BlockScan, None, None]:
        """Read once and yield the scan of every block."""
        data, requests = self.data, [_request(learner, from_slacks) for learner in learners]
        begin = WorkDone("scan", self.reading, total=data.nonzeros, problems=len(requests))
        self.listen(begin)
        if data.held is not None:
            alphas = [learner.alphas for learner in learners]
            blocks: Iterator[BlockScan] = scan_blocks(data.chunks(), requests, alphas)
        else:
            tasks = _tasks(data, learners, hold=from_slacks)
            where = data.reading, os.path.abspath(data.directory)
            known = data.labels, data.numbers, data.facts
            blocks = self.executor(scan_shard, tasks, requests, *where, *known)
        rows = nonzeros = 0
        for block in blocks:
            rows, nonzeros = rows + block.rows, nonzeros + block.nonzeros
            data.nonzeros_read += block.nonzeros * (data.held is None)
            self.listen(replace(begin, done=nonzeros, rows=rows))
            freeze(*block.held[:3])  # a worker's copy is not
            yield block

    def _certificate(self, learner: Learner) -> Certificate:
        assert learner.frozen is not None
        proof = learner.frozen.certificate()
        if not proof.rows_scanned:
            raise DataError(
                f"none of the {self.data.rows:,} rows has a weight above 0, and there is nothing "
                "to certify. Check the weights."
            )
        zeros = zero_columns(learner.frozen.scan_sums, proof.primal, proof.dual)
        return replace(proof, zero_columns=int(np.count_nonzero(zeros)))

    def _tell(self, learner: Learner, proof: Certificate) -> None:
        """Tell what is proven of a learner's weights after a reading."""
        progress = learner.progress
        _, _, mini_epochs = progress.done_since(learner.running.updates)
        self.listen(
            ReadingDone(
                self.reading,
                progress.reports[-1].name,
                "train" if progress.visits else "scan",
                0,
                mini_epochs,
                learner.rows_held,
                proof,
                learner.upper_bound,
                self.data.rows,
                problem=problem_of(learner),
            )
        )


def _with_bound(proof: Certificate, bound: Certificate) -> Certificate:
    """Return a certificate with the larger D of the two and its rounding, and with as many columns
    as either has proven to weigh 0."""
    proof = replace(proof, zero_columns=max(proof.zero_columns, bound.zero_columns))
    if bound.dual <= proof.dual:
        return proof
    return replace(proof, dual=bound.dual, rounding_bound=bound.rounding_bound)


def _request(learner: Learner, from_slacks: bool) -> ScanRequest:
    """Return the scan that a learner's frozen weights ask for."""
    frozen = learner.frozen
    assert frozen is not None
    sums = frozen.scan_sums
    return ScanRequest(
        learner.targets,
        frozen.w,
        frozen.bias,
        learner.augmentation,
        # of the hinge rows without a slack matter, too: at the kink
        NEAR if from_slacks and learner.loss.zone else -math.inf,
        from_slacks,
        learner.loss,
        sums.free,
        sums.ratio,
    )


def _add_blocks(blocks: Iterator[BlockScan], learners: Sequence[Learner]) -> None:
    """Add the blocks' sums to the learners, in the order of the blocks, and keep violators as far
    as they fit."""
    first_row = 0
    for block in blocks:
        for learner, sums in zip(learners, block.seen, strict=True):
            assert learner.frozen is not None
            learner.frozen.scan_sums.add(sums.sums)
            if sums.made is not None:
                learner.alphas.put(first_row + sums.made.numbers, sums.made.alphas)
            if (violators := sums.violators) is not None:
                at = np.searchsorted(block.positions, violators.positions)
                targets = replace(violators.targets, numbers=first_row + violators.positions)
                keep_violators(learner, block.held, at, targets, violators.rows)
        first_row += block.rows


class ScanTask(NamedTuple):
    """One shard to scan, and for each request the α of its rows, numbered from 0 in the shard,
    and the room for violators, None = none are wanted."""

    shard: ShardFile
    alphas: tuple[Numbered, ...]
    rooms: tuple[int, ...] | None

    @property
    def name(self) -> str:
        """Label on the dashboard."""
        return self.shard.name


def _tasks(data: Dataset, learners: Sequence[Learner], *, hold: bool) -> Iterator[ScanTask]:
    """Yield the tasks that scan all shards, in order: each with the α of its shard alone, and made
    in its turn, so that no row is sent in vain."""
    rows = [shard.rows for shard in data.manifest.shards]
    pieces = [split(learner.alphas.nonzero(), rows) for learner in learners]
    for shard, *of_shard in zip(data.shards, *pieces, strict=True):
        rooms = tuple(map(room, learners)) if hold else None
        yield ScanTask(shard, tuple(Numbered(*alphas.entries()) for alphas in of_shard), rooms)


def scan_shard(
    task: ScanTask,
    requests: Sequence[ScanRequest],
    reading: ReaderConfig,
    directory: str,
    labels: Sequence[Label],
    numbers: Columns,
    facts: Facts,
) -> Iterator[BlockScan]:
    """Scan the blocks of a shard, in the labels and ranks of all; it is prepared anew by a worker
    that does not see the directory of the prepared files."""
    alphas = [Alphas.of(iter([numbered])) for numbered in task.alphas]
    with ExitStack() as stack:
        if not os.path.isdir(directory):
            directory = stack.enter_context(scratch_directory("streamtron-"))
        expected = Expected(classes=labels, allow_duplicate=True, allow_empty=True)
        shard = Dataset.prepare([task.shard], reading, Preparing(directory), expected, numbers)
        shard.facts = facts
        try:
            chunks = stack.enter_context(shard).chunks()
            yield from scan_blocks(chunks, requests, alphas, task.rooms)
        except DataError as error:
            if task.name in str(error):
                raise
            raise DataError(f"{task.name}: {error}") from error
