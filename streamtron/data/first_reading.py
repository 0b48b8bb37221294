"""The first reading: shards, or their cache files, to blocks in data order.

The reader's batches are cut where chunks end, which is at the shard's end at the latest, and those
into blocks; labels get their codes, and the cache is written on the way. Without a cache every
reading is one of these.

Where bad shards are left out, a shard is verified whole before its first row is delivered: it goes
into its cache file first and is delivered from there, or, without a cache, it is read twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from streamtron.core.errors import DataError, MachineError
from streamtron.core.files import CACHE_REMEDY, check_room
from streamtron.core.rows import COLUMN_MAX, Block, Chunk, Label, are_targets
from streamtron.core.text import format_size
from streamtron.data.blocks import chunk_cutter, cut_blocks, make_block, make_chunk
from streamtron.data.cache.directory import Cache
from streamtron.data.cache.flat_file import CachedShard, CacheSlot, Contents, Entry, FlatWriter
from streamtron.data.discover import FORMATS, ShardFile
from streamtron.data.labels import LabelTable, ShardLabels, too_few
from streamtron.data.manifest import (
    Manifest,
    ShardRecord,
    changed,
    check_duplicate,
    check_unchanged,
    no_rows,
)
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import RowBatch, ShardReader, row_of, slice_batch
from streamtron.data.storage import is_uri

_log = logging.getLogger("streamtron")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be read and what is refused.

    Parameters
    ----------
    cache_dir : directory of the flat copy that later readings use; None = no cache, and then the
        rows can only be read in their order.
    classes : the only labels there may be, and their codes in this order; None = as they come.
    met : labels that were met before, by their codes.
    fingerprints : of shards that a run has read, by their names; other bytes are refused.
    most_labels : one label more is refused, of more than two if they are numbers; None = any.
    least_labels : the first complete reading is refused, at its end, if the rows of a weight above
        0 have fewer labels.
    most_columns : a column of this number or above is refused.
    allow_duplicate, allow_empty : accept two shards with the same bytes, or no row in any shard.
    on_bad_shard : ``"skip"`` leaves out a shard that its reader refuses, as a whole, and lists it
        in ``skipped``; ``"error"`` ends the reading. Only the first complete reading skips shards.
    """

    shards: tuple[ShardFile, ...]
    reading: ReaderConfig
    open_reader: Callable[[ShardFile, ReaderConfig], ShardReader]
    cache_dir: str | None
    classes: Sequence[Label] | None = None
    met: tuple[Label, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    most_labels: int | None = 2
    least_labels: int = 0
    most_columns: int = COLUMN_MAX + 1
    allow_duplicate: bool = False
    allow_empty: bool = False
    on_bad_shard: Literal["error", "skip"] = "error"


class Skipped(NamedTuple):
    """A shard that was left out, and the sentence with which its reader refused it."""

    name: str
    reason: str


class DatasetInfo(NamedTuple):
    """What a complete reading knows: ``lowest`` is the smallest column number, ``slots[b]`` block b
    in the cache if there is one; ``unseen_labels`` occur in no row of a weight above 0."""

    manifest: Manifest
    labels: list[Label]
    width: int
    blocks: tuple[Block, ...]
    lowest: int | None
    slots: list[CacheSlot]
    skipped: tuple[Skipped, ...]
    unseen_labels: tuple[Label, ...]

    @property
    def seen(self) -> dict[str, str]:
        """Names and fingerprints of the shards, of those left out ""."""
        return self.manifest.fingerprints | {shard.name: "" for shard in self.skipped}


class ChunkEvent(NamedTuple):
    """A chunk, and what was known when it had been read: the thread that reads ahead is elsewhere
    by then. ``bytes`` fetched and ``nonzeros`` read, delivered or not, are those so far."""

    chunk: Chunk | None
    bytes: int
    nonzeros: int
    labels: tuple[Label, ...] = ()
    width: int = 0
    info: DatasetInfo | None = None


def first_reading(plan: Plan, known: Manifest | None) -> Generator[ChunkEvent]:
    """Yield the chunks of all shards, and at last an event with what is known of the
    data: the same as an earlier reading found (``known``), if there was one."""
    return _FirstReading(plan, known).events()


class _FirstReading:
    def __init__(self, plan: Plan, known: Manifest | None) -> None:
        self._plan, self._known = plan, known
        self._cache = None if plan.cache_dir is None else Cache(plan.cache_dir, plan.reading)
        self._has_room = self._cache is None  # on the disk, for the cache
        self._table = LabelTable(plan.most_labels, plan.classes, plan.met)
        self._met: set[int] = set()  # codes of labels that rows of a weight above 0 have
        self._blocks: list[Block] = []
        self._slots: list[CacheSlot] = []
        self._records: list[ShardRecord] = []
        self._skipped: list[Skipped] = []
        self._notes: set[str] = set()
        self._first: dict[str, ShardFile] = {}  # fingerprint → the first shard that has it
        self._lowest: int | None = None
        self._width = 0
        self._bytes = 0  # fetched of the shards that have been read
        self._nonzeros = 0

    def events(self) -> Generator[ChunkEvent]:
        for shard in self._plan.shards:
            yield from self._read_shard(shard)
        labels = _met(self._plan, self._table.labels)
        unseen = tuple(label for code, label in enumerate(labels) if code not in self._met)
        info = DatasetInfo(
            Manifest(tuple(self._records)),
            list(self._table.labels),
            self._width,
            tuple(self._blocks),
            self._lowest,
            self._slots,
            tuple(self._skipped),
            unseen,
        )
        yield self._event(None, self._bytes, _accepted(info, self._plan))

    def _read_shard(self, shard: ShardFile) -> Iterator[ChunkEvent]:
        check_unchanged(shard)
        cached = self._cache.find(shard) if self._cache else None
        if cached:
            cached = self._repairable(cached, shard)
        # what was whole once is refused, and not left out, if it is not whole any more
        elif self._plan.on_bad_shard == "skip" and not self._known:
            try:
                cached = self.verify(shard)
            except DataError as error:
                check_unchanged(shard)  # a shard that is being rewritten is not a bad one
                _log.warning("%s The shard is left out.", error)
                self._skipped.append(Skipped(shard.name, str(error)))
                return
        reader = cached or self._plan.open_reader(shard, self._plan.reading)
        labels, first_block = ShardLabels(self._table), len(self._blocks)
        with nullcontext() if cached else self._writer() as writer:
            for number, part in enumerate(self._parts(reader, labels)):
                blocks = cut_blocks(part, number)
                if writer:
                    writer.write(blocks)
                fetched = self._bytes + _fetched_by(reader)
                yield self._event(self._chunk(part, blocks, labels), fetched)
            check_unchanged(shard)
            self._admit(shard, reader.fingerprint(), self._blocks[first_block:])
            self._bytes += cached.contents.bytes if cached else _fetched(shard)
            if writer:
                cached = self._finish(writer, shard, reader, labels)
        if cached:
            numbers = range(len(self._blocks) - first_block)
            self._slots += [CacheSlot(cached, number, labels.to_source) for number in numbers]

    def verify(self, shard: ShardFile) -> CachedShard | None:
        """Read a whole shard before any of its rows is delivered, into its cache file if any."""
        reader = self._plan.open_reader(shard, self._plan.reading)
        labels = ShardLabels(LabelTable())
        with self._writer() as writer:
            try:
                for number, part in enumerate(self._parts(reader, labels)):
                    if writer:
                        writer.write(cut_blocks(part, number))
                    else:
                        self._nonzeros += part.nonzeros
            except DataError:
                self._bytes += _fetched_by(reader)
                raise
            check_unchanged(shard)
            self._bytes += _fetched(shard)
            return self._finish(writer, shard, reader, labels) if writer else None

    def _writer(self) -> AbstractContextManager[FlatWriter | None]:
        return FlatWriter(self._cache.directory) if self._cache else nullcontext()

    def _finish(
        self, writer: FlatWriter, shard: ShardFile, reader: ShardReader, labels: ShardLabels
    ) -> CachedShard:
        assert self._cache is not None
        cached = self._cache.finish(writer, shard, reader.fingerprint(), labels.labels)
        return self._repairable(cached, shard)

    def _repairable(self, cached: CachedShard, shard: ShardFile) -> CachedShard:
        """Let a damaged cache file be rebuilt from its shard."""
        cached.remake = partial(_rebuilt, self._plan, shard, cached.fingerprint())
        return cached

    def _check_room(self, batch: RowBatch, fetched: int) -> None:
        """Refuse a cache that will not fit, by a first batch and the bytes fetched for it."""
        cache, where = self._cache, self._plan.cache_dir
        if cache and where and fetched:
            unread = sum(shard.size for shard in self._plan.shards if not cache.knows(shard))
            needed = unread * Entry.of(batch).bytes / fetched
            what = f"{where}: the cache of the {format_size(unread)} still to be read needs about"
            check_room(where, needed, what, CACHE_REMEDY)
        self._has_room = True

    def _parts(self, reader: ShardReader, labels: ShardLabels) -> Iterator[RowBatch]:
        parts: list[RowBatch] = []
        cutter = chunk_cutter()
        for batch in reader.batches():
            if not self._has_room and not isinstance(reader, CachedShard):
                self._check_room(batch, _fetched_by(reader))
            for start, stop, ends in cutter.cuts(batch.indptr):
                parts.append(labels.recoded(slice_batch(batch, start, stop)))
                self._refuse_wide(parts[-1])
                if ends:
                    yield make_block(parts)
                    parts = []
        if parts:
            yield make_block(parts)
        for note in sorted(getattr(reader, "notes", ())):
            if self._known is None and note not in self._notes:
                self._notes.add(note)
                _log.warning("%s", note)

    def _refuse_wide(self, part: RowBatch) -> None:
        if part.width > self._plan.most_columns:
            at = int(np.argmax(part.indices >= self._plan.most_columns))
            column = int(part.indices[at])
            raise MachineError(
                f"{part.place(row_of(part.indptr, at))}: column {column}. Weights up to there "
                f"would take {format_size(8 * (column + 1))} (8 bytes a column), and there "
                f"is room for {self._plan.most_columns} columns. Raise --memory, or renumber or "
                "hash the columns."
            )

    def _chunk(self, part: RowBatch, blocks: Sequence[RowBatch], labels: ShardLabels) -> Chunk:
        ranges = ((self._rows, self._rows + part.rows),)
        chunk = make_chunk(part.coded(labels.to_source), ranges)
        for block in blocks:
            self._blocks.append(Block(self._rows, block.rows, block.nonzeros))
        self._nonzeros += part.nonzeros
        self._width = max(self._width, part.width)
        if part.nonzeros:
            lowest = int(part.indices.min())
            self._lowest = lowest if self._lowest is None else min(lowest, self._lowest)
        self._met.update(_codes_that_count(chunk))
        return chunk

    @property
    def _rows(self) -> int:
        return self._blocks[-1].first_row + self._blocks[-1].rows if self._blocks else 0

    def _event(self, chunk: Chunk | None, read: int, info: DatasetInfo | None = None) -> ChunkEvent:
        return ChunkEvent(chunk, read, self._nonzeros, (*self._table.labels,), self._width, info)

    def _admit(self, shard: ShardFile, fingerprint: str, blocks: Sequence[Block]) -> None:
        """Record a shard that has been read; refuse one read before, or changed since."""
        rows = sum(block.rows for block in blocks)
        nonzeros = sum(block.nonzeros for block in blocks)
        record = ShardRecord(
            shard.name,
            shard.path,
            shard.format,
            shard.size,
            shard.mtime_ns,
            fingerprint,
            rows,
            nonzeros,
            self._rows - rows,
        )
        if rows:
            first = self._first.setdefault(fingerprint, shard)
            check_duplicate(first, shard, self._plan.allow_duplicate)
        if self._known and self._known.shards[len(self._records)] != record:
            raise changed(shard, "its contents differ from the first reading's")
        self._records.append(record)


def _accepted(info: DatasetInfo, plan: Plan) -> DatasetInfo:
    """Return what is known; refuse no shard, no row, few labels, or other bytes than a run's."""
    if info.skipped and not info.manifest.shards and not plan.allow_empty:
        raise DataError(
            f"{info.skipped[0].reason} It is the first of {len(info.skipped)} shard(s), none of "
            "which can be read."
        )
    rows = info.manifest.rows
    if not rows and not plan.allow_empty:
        raise no_rows(plan.shards, plan.reading.share)
    for name, fingerprint in info.seen.items():
        if plan.fingerprints.get(name, fingerprint) != fingerprint:
            usual = f"{name}: as large and as old as the shard of the run, its bytes are others."
            reason = dict(info.skipped).get(name, usual)
            raise DataError(f"{reason} Put it back as it was, forget it whole, or fit anew.")
    labels = _met(plan, info.labels)
    counting = [label for label in labels if label not in info.unseen_labels]
    if len(counting) < plan.least_labels:
        raise too_few(counting, labels, rows)
    return info


def _met(plan: Plan, labels: Iterable[Label]) -> list[Label]:
    """Return labels that were met; one that stands for all of them where they are numbers."""
    return ["a number"] if plan.reading.numbers else list(labels)


def _codes_that_count(chunk: Chunk) -> list[int]:
    """Return the codes of the labels of rows that have a weight above 0; 0 is that of numbers."""
    codes = chunk.codes
    if chunk.weights is not None:
        counts = chunk.weights > 0.0
        if chunk.code_offsets is not None:
            counts = np.repeat(counts, np.diff(chunk.code_offsets))
        codes = codes[counts]
    if are_targets(codes):
        return [0] if np.isfinite(codes).any() else []
    met: list[int] = np.flatnonzero(np.bincount(codes[codes >= 0])).tolist()
    return met


def _fetched_by(reader: ShardReader) -> int:
    """Count the bytes that a reader has taken of its file so far; not every reader tells."""
    return int(getattr(reader, "bytes_read", 0))


def _fetched(shard: ShardFile) -> int:
    """Count the bytes read of a shard: local tables are read again for their fingerprints."""
    return shard.size * (1 if FORMATS[shard.format].is_text or is_uri(shard.path) else 2)


def _rebuilt(plan: Plan, shard: ShardFile, fingerprint: str) -> Contents:
    """Rebuild a shard's cache file from the same bytes."""
    check_unchanged(shard)
    if plan.open_reader(shard, plan.reading).fingerprint() != fingerprint:
        raise changed(shard, "its contents differ from what the cache was made of")
    shard_file = _FirstReading(plan, None).verify(shard)
    assert shard_file is not None
    return shard_file.contents


def _place(manifest: Manifest, _row: int) -> str:
    """Name the shards of a part of the data, in one of which a row is."""
    names = [shard.name for shard in manifest.shards]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def joined_info(plan: Plan, parts: Sequence[DatasetInfo]) -> DatasetInfo:
    """Join what is known of consecutive shards; refuse what a reading of them all would."""
    records, files = list[ShardRecord](), {shard.name: shard for shard in plan.shards}
    first: dict[str, ShardFile] = {}
    for info in parts:
        first_row = records[-1].first_row + records[-1].rows if records else 0
        for record in info.manifest.shards:
            if record.rows:
                earlier = first.setdefault(record.fingerprint, files[record.name])
                check_duplicate(earlier, files[record.name], plan.allow_duplicate)
            records.append(replace(record, first_row=first_row + record.first_row))
    table = LabelTable(plan.most_labels, plan.classes)
    for info in parts:
        for label in info.labels:
            table.code(label, partial(_place, info.manifest), 0)
    counting = {x for info in parts for x in {*_met(plan, info.labels)} - {*info.unseen_labels}}
    lowest = min((info.lowest for info in parts if info.lowest is not None), default=None)
    skipped = tuple(shard for info in parts for shard in info.skipped)
    unseen = tuple(label for label in _met(plan, table.labels) if label not in counting)
    manifest, width = Manifest(tuple(records)), max(info.width for info in parts)
    joined = DatasetInfo(manifest, table.labels, width, (), lowest, [], skipped, unseen)
    return _accepted(joined, plan)
