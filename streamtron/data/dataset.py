"""A data set of prepared shards, of which everything is known before any row is visited.

Columns are numbered by rank: those that occur, the most frequent first, so that most nonzeros lie
in few cache lines. A shard's file has numbers of its own, and a table from these to ranks, made
when the data set is opened, turns them into ranks as blocks are read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.errors import DataError
from streamtron.core.rows import NO_FACTS, Block, Chunk, Facts, Held, Label, freeze, ranges_of
from streamtron.core.threads import opened_threads
from streamtron.data.blocks import chunk_cutter, chunk_of, join_rows, make_chunk
from streamtron.data.discover import ShardFile
from streamtron.data.flat_file import (
    ColumnNumbers,
    Columns,
    GroupReader,
    Slot,
    Table,
    writing_cache,
)
from streamtron.data.labels import LabelTable, too_few
from streamtron.data.manifest import (
    Manifest,
    ShardRecord,
    check_all_unchanged,
    check_duplicate,
    no_rows,
)
from streamtron.data.prefetch import prefetch
from streamtron.data.prepare import Prepared, Preparing, prepare
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.readers import resolve_reading
from streamtron.data.row_batch import RowBatch

AS_NUMBERED = 1 << 12
"""So few columns keep the order of their numbers: their weights are in the cache anyway, and dense
rows stay dense."""

IN_MEMORY = 1 << 22
"""Ranks of so many columns of shards, together, are in memory; more are in a file without a name,
of which the system keeps in memory what has room."""


@dataclass(frozen=True)
class Expected:
    """What a data set must be.

    ``most_labels`` : see ``LabelTable``. ``classes`` : the only labels there may be, by their
    codes. ``least_labels`` : the rows of a weight above 0 have as many, at least.
    ``fingerprints`` : of shards, by their names, "" of those left out. ``allow_duplicate``,
    ``allow_empty`` : accept two shards of the same bytes, or no row.
    """

    most_labels: int | None = None
    classes: Sequence[Label] | None = None
    least_labels: int = 0
    fingerprints: dict[str, str] = field(default_factory=dict)
    allow_duplicate: bool = False
    allow_empty: bool = False


class Dataset(AbstractContextManager["Dataset"]):
    """Rows of prepared shards, as the solver reads them; see ``core.rows.Data``.

    Attributes
    ----------
    shards, manifest : the files that are read, and the record.
    reading, directory : how they were read, and where their prepared files are.
    rows, nonzeros, bytes : of the prepared files; ``columns`` : how many occur.
    labels, facts, blocks : what is known of the rows.
    numbers : uint32, shape (columns,): the number that the files give the column of each rank.
    width : 1 + the largest of these; ``index_base`` : the number of the first column, 0 or 1.
    nonzeros_read, bytes_read : delivered from disk so far, preparing included.
    """

    def __init__(
        self,
        prepared: Sequence[Prepared],
        reading: ReaderConfig,
        directory: str,
        expected: Expected | None = None,
        numbers: Columns | None = None,
    ) -> None:
        self._expected = expected or Expected()
        self.reading, self.directory = reading, directory
        self._prepared = prepared
        self.shards = tuple(made.shard for made in prepared)
        self._files = [made.file for made in prepared]
        self.nonzeros_read = sum(made.nonzeros for made in prepared)
        self.bytes_read = sum(made.bytes for made in prepared)
        records, blocks, first_row = list[ShardRecord](), list[Block](), 0
        for shard, file in zip(self.shards, self._files, strict=True):
            size = file.rows, file.nonzeros, first_row
            records.append(ShardRecord.of(shard, file.fingerprint, *size))
            for entry in file.entries:
                blocks.append(Block(first_row, entry.rows, entry.nonzeros))
                first_row += entry.rows
        self.manifest, self.blocks = Manifest(tuple(records)), tuple(blocks)
        self.rows, self.nonzeros = self.manifest.rows, self.manifest.nonzeros
        self.bytes = sum(file.bytes for file in self._files)
        self._check_shards()
        codes = self._read_labels()
        self.facts = self._facts_of(codes)
        self._check_labels()
        self.numbers, ranks = self._rank_columns(numbers)
        self.columns = len(self.numbers)
        self.width = int(self.numbers.max()) + 1 if self.columns else 0
        self._slots = [
            Slot(file, number, table, places)
            for file, table, places in zip(self._files, codes, ranks, strict=True)
            for number in range(len(file.entries))
        ]
        self.held: Held | None = None
        self._batch: RowBatch | None = None
        self._idle: list[GroupReader] = []
        self._running: WeakSet[Generator[Chunk, None, None]] = WeakSet()
        self._closed = False

    @classmethod
    def prepare(
        cls,
        shards: Sequence[ShardFile],
        reading: ReaderConfig,
        how: Preparing,
        expected: Expected | None = None,
        numbers: Columns | None = None,
    ) -> Self:
        """Prepare the shards that are not prepared yet, and open them all; see ``prepare``."""
        reading = resolve_reading(shards[0], reading)
        most = None if expected is None or expected.classes else expected.most_labels
        made = prepare(shards, reading, how, most)
        return cls(made, reading, how.directory, expected, numbers)

    @property
    def index_base(self) -> int:
        """Return the number of the first column: of text 1 if column 0 never occurs, else 0, unless
        the reading names it."""
        if self.reading.index_base != "auto":
            return self.reading.index_base
        return int(self.shards[0].format == "libsvm" and not (self.numbers == 0).any())

    @property
    def readings(self) -> float:
        """Return the nonzeros delivered ÷ those of the data; 0 if there are none."""
        return self.nonzeros_read / self.nonzeros if self.nonzeros else 0.0

    def places_of(self, numbers: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the rank of each column number; -1 where it does not occur."""
        places = ColumnNumbers(self.numbers).number(numbers.astype(np.uint32)).astype(np.int64)
        return np.where(places < self.columns, places, -1)

    def part(self, first: int, stop: int) -> Dataset:
        """Return the data set of some of the shards, with the labels, facts and ranks of all, whose
        rows are numbered from 0; nothing has been read of it."""
        made = [shard._replace(nonzeros=0, bytes=0) for shard in self._prepared[first:stop]]
        expected = Expected(classes=self.labels, allow_duplicate=True, allow_empty=True)
        part = Dataset(made, self.reading, self.directory, expected, self.numbers)
        part.facts = self.facts
        return part

    def load(self) -> None:
        """Read all rows into memory, on the threads that are open, from where ``chunks`` then
        delivers them. Of shards that were prepared just now that is a part of preparing, and no
        other reading."""
        if self.held is not None:
            return
        entries = [slot.entry for slot in self._slots]
        starts = [*accumulate((entry.nonzeros for entry in entries), initial=0)]
        by_row = self.facts.by_row
        firsts = [*accumulate((entry.held_values(by_row) for entry in entries), initial=0)]
        indices, values = np.empty(starts[-1], np.uint32), np.empty(firsts[-1], np.float32)
        parts: list[RowBatch | None] = [None] * len(entries)
        check_all_unchanged(self.shards)

        def read(group: list[int]) -> None:
            first, stop = group[0], group[-1] + 1
            into = indices[starts[first] :], values[firsts[first] :]
            parts[first:stop] = GroupReader(by_row=by_row).read(self._slots[first:stop], *into)

        opened_threads().work(read, [*self._in_data_order()])
        rows = [part for part in parts if part is not None]
        self._batch = join_rows(rows, indices, values, by_row=by_row) if rows else _no_rows()
        for made, file in zip(self._prepared, self._files, strict=True):
            if not made.bytes:
                self._count(file.nonzeros, file.bytes)
        chunk = make_chunk(self._batch, ((0, self.rows),))
        self.held = Held(chunk.rows, chunk.squares)

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        """Deliver the data once, see ``core.rows.Data``; a thread reads ahead where it is on disk.

        DataError is raised for a shard that has changed, MachineError for a file that cannot be
        read, FileDamaged for a prepared file that cannot be made again.
        """
        running = self._from_memory(order) if self._batch is not None else self._from_disk(order)
        self._running.add(running)
        return running

    def _from_memory(self, order: Iterable[Sequence[int]] | None) -> Generator[Chunk, None, None]:
        assert self._batch is not None
        for group in self._in_data_order() if order is None else order:
            yield chunk_of(self._batch, ranges_of(self.blocks[number] for number in group))

    def _from_disk(self, order: Iterable[Sequence[int]] | None) -> Generator[Chunk, None, None]:
        groups = self._in_data_order() if order is None else iter([*order])

        def read() -> Generator[tuple[Chunk, int]]:
            check_all_unchanged(self.shards)
            by_row = self.facts.by_row
            reader = self._idle.pop() if self._idle else GroupReader(by_row=by_row)
            try:
                for group in groups:
                    slots = [self._slots[number] for number in group]
                    size = sum(slot.entry.bytes for slot in slots)
                    ranges = ranges_of(self.blocks[number] for number in group)
                    yield reader.chunk(slots, ranges), size
            finally:
                self._idle.append(reader)

        ahead = read() if len(self.blocks) == 1 else prefetch(read, depth=1)
        with closing(ahead) as arriving:
            for chunk, size in arriving:
                if self._closed:
                    raise ValueError("The data set is closed.")
                self._count(chunk.nonzeros, size)
                yield chunk
                del chunk  # it would keep its buffer from the next but one

    def _count(self, nonzeros: int, fetched: int) -> None:
        self.nonzeros_read += nonzeros
        self.bytes_read += fetched

    def _in_data_order(self) -> Iterator[list[int]]:
        """Yield the numbers of the blocks of each chunk, in the order of the data."""
        cutter, group = chunk_cutter(), list[int]()
        for number, (slot, following) in enumerate(pairwise([*self._slots, None])):
            assert slot is not None
            group.append(number)
            full = cutter.fill(slot.entry.rows, slot.entry.nonzeros)
            if full or following is None or following.file is not slot.file:
                yield group
                cutter, group = chunk_cutter(), []

    def close(self) -> None:
        """Stop all readings, their threads included."""
        self._closed = True
        for reading in list(self._running):
            with suppress(ValueError):  # another thread is in it, and ends with its next chunk
                reading.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_shards(self) -> None:
        """Refuse duplicates, shards that are not those expected, and no rows at all."""
        first: dict[str, ShardFile] = {}
        expected = self._expected.fingerprints
        for shard, record in zip(self.shards, self.manifest.shards, strict=True):
            if record.rows:
                earlier = first.setdefault(record.fingerprint, shard)
                check_duplicate(earlier, shard, self._expected.allow_duplicate)
            if expected.get(record.name, record.fingerprint) != record.fingerprint:
                raise DataError(
                    f"{shard.name}: changed since the run began: its contents differ from the "
                    "first reading's. Put it back as it was, or start over with --overwrite."
                )
        if not self.rows and not self._expected.allow_empty:
            raise no_rows(self.shards, self.reading.share)

    def _read_labels(self) -> list[NDArray[np.int32]]:
        """Number the labels of all shards, and return the code of each by its code in the file."""
        table = LabelTable(self._expected.most_labels, self._expected.classes)
        codes = []
        for shard, file in zip(self.shards, self._files, strict=True):
            shard_codes = [
                table.code(label, partial("{}, {}".format, shard.name, place))
                for label, place in zip(file.labels, file.places, strict=True)
            ]
            codes.append(np.array([-1, *shard_codes], np.int32))
        self.labels: list[Label] = table.labels
        return codes

    def _facts_of(self, codes: Sequence[NDArray[np.int32]]) -> Facts:
        """Join what is known of the shards, in their order."""
        facts = NO_FACTS._replace(label_weights=(0.0,) * len(self.labels))
        for file, shard_codes in zip(self._files, codes, strict=True):
            weights, known = np.zeros(len(self.labels)), file.facts
            weights[shard_codes[1 : 1 + len(known.label_weights)]] = known.label_weights
            facts = facts.plus(known._replace(label_weights=(*weights.tolist(),)))
        by_row = all(entry.by_row for file in self._files for entry in file.entries)
        return facts._replace(by_row=by_row)

    def _rank_columns(self, known: Columns | None) -> tuple[Columns, list[Columns]]:
        """Return the columns that occur in some file, by rank, and the rank of each column of each
        file. ``known`` : the columns by rank, if they are; DataError: a file has others."""
        sizes = [file.columns for file in self._files]
        numbers = ColumnNumbers(known, max(sizes, default=1))
        room, ranks = _room(sum(sizes), self.directory), list[Columns]()
        for shard, file, stop in zip(self.shards, self._files, accumulate(sizes), strict=True):
            ranks.append(room[stop - file.columns : stop])
            ranks[-1][:] = numbers.add(file.table())
            if known is not None and ranks[-1].max(initial=0) >= len(known) and file.columns:
                raise DataError(
                    f"{shard.name}: it has columns that the data set has not. Shards must stay as "
                    "they are until the run has ended; run again."
                )
        if known is None:
            known, places = _by_rank(numbers.table)
            for of_file in ranks:
                of_file[:] = places[of_file]
        freeze(*ranks)
        return known, ranks

    @property
    def unseen_labels(self) -> tuple[Label, ...]:
        """Return the labels that no row of a weight above 0 has; where labels are numbers, one that
        stands for all, if there is no such row."""
        if self.reading.numbers:
            return () if self.facts.rows else ("a number",)
        weights = zip(self.labels, self.facts.label_weights, strict=True)
        return tuple(label for label, weight in weights if not weight > 0.0)

    def _check_labels(self) -> None:
        unseen, labels = self.unseen_labels, list(self.labels)
        if self.reading.numbers:
            labels = ["a number"] if self.rows else []
        counting = [label for label in labels if label not in unseen]
        if len(counting) < self._expected.least_labels:
            raise too_few(counting, labels, self.rows)


def _by_rank(table: Table) -> tuple[Columns, Columns]:
    """Return the columns of a table, the most frequent first; of few, in the order of their
    numbers, in which are those that occur as often, too; and the rank of each."""
    order = np.argsort(table.columns)
    if len(order) > AS_NUMBERED:
        order = order[np.argsort(-table.counts[order], kind="stable")]
    columns, ranks = table.columns[order], np.empty(len(order), np.uint32)
    ranks[order] = np.arange(len(order), dtype=np.uint32)
    freeze(columns, ranks)
    return columns, ranks


def ranked(indices: Columns) -> tuple[Columns, Columns]:
    """Return the columns that occur, by rank, and the rank of each of ``indices``.

    >>> [columns.tolist() for columns in ranked(np.array([7, 2, 7], np.uint32))]
    [[2, 7], [1, 0, 1]]
    """
    numbers = ColumnNumbers()
    places = numbers.number(indices)
    columns, ranks = _by_rank(numbers.table)
    kernels.renumber(places, ranks, places)
    return columns, places


def _room(size: int, directory: str) -> Columns:
    """Return an array for so many numbers: in memory, or in a file of the directory."""
    if size <= IN_MEMORY:
        return np.empty(size, np.uint32)
    with writing_cache(directory), tempfile.TemporaryFile(dir=directory) as unnamed:
        # a disk that is full is found here, and not by a signal when a page is written
        os.posix_fallocate(unnamed.fileno(), 0, 4 * size)
        return np.asarray(np.memmap(unnamed, np.uint32, "r+", shape=(size,)))


def _no_rows() -> RowBatch:
    codes, columns = np.zeros(0, np.int32), np.zeros(0, np.uint32)
    values, squares = np.zeros(0, np.float32), np.zeros(0)
    return RowBatch(np.zeros(1, np.int64), columns, values, codes, [], None, str, None, squares)
