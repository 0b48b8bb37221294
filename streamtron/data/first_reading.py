"""The first reading: shards, or their cache files, to blocks in data order.

The reader's batches are cut where blocks end, which is at the shard's end at the latest; labels get
their codes, and the cache is written on the way. Without a cache every reading is one of these.

Where bad shards are left out, a shard is verified whole before its first row is delivered: it goes
into its cache file first and is delivered from there, or, without a cache, it is read twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np

from streamtron.core.errors import DataError, MachineError
from streamtron.core.rows import Block, Chunk, Label
from streamtron.data.blocks import (
    LabelTable,
    Segment,
    ShardLabels,
    block_cutter,
    cut,
    join,
    make_chunk,
)
from streamtron.data.cache.directory import Cache
from streamtron.data.cache.flat_file import CachedShard, CacheSlot, Contents
from streamtron.data.discover import ShardFile
from streamtron.data.disk import shown_bytes
from streamtron.data.manifest import Manifest, ShardRecord
from streamtron.data.prefetch import in_order, raise_if_cancelled
from streamtron.data.row_batch import Reading, RowBatch, ShardReader, row_of
from streamtron.data.storage import REQUESTS, StoreError, is_uri, stamp

_log = logging.getLogger("streamtron")


class Plan(NamedTuple):
    """What is to be read and what is refused; see ``open_shards``."""

    shards: tuple[ShardFile, ...]
    reading: Reading
    classes: tuple[Label, ...] | None
    most_labels: int | None
    most_columns: int
    allow_duplicate: bool
    allow_empty: bool
    skip_bad: bool
    open_reader: Callable[[ShardFile, Reading], ShardReader]
    met: tuple[Label, ...] = ()
    """labels that were met before, by their codes"""
    least_labels: int = 0
    """labels that rows of a weight above 0 must have"""


class Skipped(NamedTuple):
    """A shard that was left out, and the sentence with which its reader refused it."""

    name: str
    reason: str


class DatasetInfo(NamedTuple):
    """What a complete reading knows.

    ``lowest`` is the smallest column number; ``slots[b]`` is block b in the cache, if there is one;
    ``skipped`` are the shards that could not be read; ``unseen_labels`` occur in no row of a weight
    above 0.
    """

    manifest: Manifest
    blocks: tuple[Block, ...]
    lowest: int | None
    slots: list[CacheSlot]
    skipped: tuple[Skipped, ...]
    unseen_labels: tuple[Label, ...]

    @property
    def cache_paths(self) -> set[str]:
        """The cache's files that later readings use."""
        return {slot.shard.path for slot in self.slots}


class ChunkEvent(NamedTuple):
    """What a reading hands over: a chunk, and what was known when its last row had been met.

    Knowledge travels with the chunk because the thread that reads ahead is elsewhere by then.
    ``bytes`` were fetched from disk since the event before, and ``verified`` nonzeros read without
    being delivered.
    """

    chunk: Chunk | None
    bytes: int
    verified: int = 0
    labels: tuple[Label, ...] = ()
    width: int = 0
    info: DatasetInfo | None = None


class FirstReading:
    """One complete reading of the shards in data order; ``events`` runs it, once.

    Parameters
    ----------
    plan : what to read.
    cache_dir : where to find cache files, and to write those that are missing; None = no cache.
    known : what an earlier reading found, which this one must find again.
    """

    def __init__(self, plan: Plan, cache_dir: str | None, known: Manifest | None) -> None:
        self._plan = plan
        self._cache_dir = cache_dir
        self._known = known
        self._table = LabelTable(plan.most_labels, plan.classes, plan.met)
        self._blocks: list[Block] = []
        self._slots: list[CacheSlot] = []
        self._width = 0
        self._lowest: int | None = None
        self._records: list[ShardRecord] = []
        self._first: dict[str, ShardFile] = {}  # fingerprint → the first shard that has it
        self._met: set[int] = set()  # codes of labels that rows of a weight above 0 have
        self._rows = 0
        self._bytes = 0  # fetched since the last event
        self._counted = 0  # fetched of the shard under way
        self._cache: Cache | None = None
        self._uncached: dict[str, int] = {}  # path → bytes of the shards still to be cached
        self._skipped: list[Skipped] = []
        self._verified = 0  # nonzeros read since the last event without being delivered

    def events(self) -> Iterator[ChunkEvent]:
        """Yield the blocks as chunks, and at last an event with what is known of the data."""
        if self._cache_dir is not None:
            self._cache = Cache(self._cache_dir, self._plan.reading)
            unknown = [s for s in self._plan.shards if not self._cache.knows(s)]
            self._uncached = {shard.path: shard.size for shard in unknown}
        try:
            for shard in self._plan.shards:
                yield from self._read_shard(shard)
        finally:
            if self._cache:
                self._cache.save()  # what is complete serves the next run, whatever happened
        yield self._deliver(None, self._all_known())

    def _read_shard(self, shard: ShardFile) -> Iterator[ChunkEvent]:
        check_unchanged(shard)
        cache = self._cache
        cached = cache.find(shard) if cache else None
        # what was whole once is refused, and not left out, if it is not whole any more
        if not cached and self._plan.skip_bad and not self._known:
            try:
                cached = self._verify(shard)
            except _Unreadable as error:
                return self._leave_out(shard, str(error))
        if cached:
            cached = self._repairable(cached, shard)
        reader = cached or self._plan.open_reader(shard, self._plan.reading)
        labels = ShardLabels(self._table)
        before = len(self._blocks)
        with ExitStack() as stack:
            writer = stack.enter_context(cache.writer()) if cache and not cached else None
            for segment in self._segments(reader, labels):
                self._meet_columns(segment)
                if writer:
                    writer.write(segment)
                yield self._block(segment, labels)
            check_unchanged(shard)
            self._admit(shard, reader.fingerprint(), self._blocks[before:])
            self._count(cached.contents.bytes if cached else _fetched(shard))
            if cache and writer:
                cached = cache.finish(writer, shard, reader.fingerprint(), labels.labels)
                self._note_cached(shard, cached)
        self._counted = 0
        if cached:
            repairable, blocks = self._repairable(cached, shard), len(self._blocks) - before
            self._slots += [
                CacheSlot(repairable, number, labels.to_source) for number in range(blocks)
            ]

    def _verify(self, shard: ShardFile) -> CachedShard | None:
        """Read a whole shard before any of its rows is delivered, into its cache file if any."""
        cache = self._cache
        reader = self._plan.open_reader(shard, self._plan.reading)
        labels = ShardLabels(LabelTable())
        with ExitStack() as stack:
            writer = stack.enter_context(cache.writer()) if cache else None
            try:
                for segment in self._segments(reader, labels):
                    if writer:
                        writer.write(segment)
                    else:
                        self._verified += segment.nonzeros
            except DataError as error:
                check_unchanged(shard)  # a shard that is being rewritten is not a bad one
                raise _Unreadable(str(error)) from error
            check_unchanged(shard)
            self._count(_fetched(shard))
            self._counted = 0
            if not cache or not writer:
                return None
            cached = cache.finish(writer, shard, reader.fingerprint(), labels.labels)
        self._note_cached(shard, cached)
        return cached

    def _repairable(self, cached: CachedShard, shard: ShardFile) -> CachedShard:
        """Let a damaged cache file be rebuilt from its shard."""
        assert self._cache_dir is not None
        known = cached.fingerprint()
        cached.remake = partial(_rebuilt, self._plan, self._cache_dir, shard, known)
        return cached

    def _note_cached(self, shard: ShardFile, cached: CachedShard) -> None:
        """Check that the shards still to be cached will fit."""
        self._uncached.pop(shard.path, None)
        self._check_rest(cached.contents.bytes, shard.size)

    def _leave_out(self, shard: ShardFile, reason: str) -> None:
        _log.warning("%s The shard is left out.", reason)
        self._skipped.append(Skipped(shard.name, reason))
        self._uncached.pop(shard.path, None)
        self._counted = 0

    def _segments(self, reader: ShardReader, labels: ShardLabels) -> Iterator[Segment]:
        """Yield a shard's blocks."""
        parts: list[Segment] = []
        cutter = block_cutter()
        for number, batch in enumerate(reader.batches()):
            fetched = getattr(reader, "bytes_read", 0)  # not every reader tells
            self._count(fetched)
            if number == 0 and not isinstance(reader, CachedShard):
                self._check_first_batch(batch, fetched)
            lookup = labels.lookup(batch)
            for start, stop, ends in cutter.cuts(batch.indptr):
                parts.append(cut(batch, start, stop, labels.codes(batch, start, stop, lookup)))
                self._refuse_wide(parts[-1], batch, start)
                if ends:
                    yield join(parts)
                    parts = []
        if parts:
            yield join(parts)

    def _refuse_wide(self, segment: Segment, batch: RowBatch, first: int) -> None:
        """Refuse columns there is no room for; ``first`` is the part's first row in the batch."""
        if segment.width > self._plan.most_columns:
            at = int(np.argmax(segment.indices >= self._plan.most_columns))
            row = first + row_of(segment.indptr, at)
            raise MachineError(
                f"{batch.place(row)}: column {segment.indices[at]}. Weights up to there would take "
                f"{shown_bytes(8 * (int(segment.indices[at]) + 1))} (8 bytes a column), and there "
                f"is room for {self._plan.most_columns} columns. Raise --memory, or renumber or "
                "hash the columns."
            )

    def _meet_columns(self, segment: Segment) -> None:
        self._width = max(self._width, segment.width)
        if segment.lowest is not None:
            known = segment.lowest if self._lowest is None else self._lowest
            self._lowest = min(segment.lowest, known)

    def _count(self, fetched: int) -> None:
        """Count the bytes fetched so far of the shard under way."""
        self._bytes += max(fetched - self._counted, 0)
        self._counted = max(fetched, self._counted)

    def _block(self, segment: Segment, labels: ShardLabels) -> ChunkEvent:
        chunk = make_chunk(segment, labels.to_source, self._rows)
        self._blocks.append(Block(self._rows, segment.rows, segment.nonzeros))
        self._rows += segment.rows
        self._met.update(_codes_that_count(chunk))
        return self._deliver(chunk)

    def _deliver(self, chunk: Chunk | None, info: DatasetInfo | None = None) -> ChunkEvent:
        fetched, self._bytes = self._bytes, 0
        verified, self._verified = self._verified, 0
        return ChunkEvent(chunk, fetched, verified, tuple(self._table.labels), self._width, info)

    def _all_known(self) -> DatasetInfo:
        if self._skipped and not self._records:
            raise DataError(
                f"{self._skipped[0].reason} It is the first of {len(self._skipped)} shard(s), none "
                "of which can be read."
            )
        if not self._blocks and not self._plan.allow_empty:
            raise no_rows(self._plan.shards)
        labels = self._table.labels
        if len(self._met) < self._plan.least_labels:
            raise _too_few([labels[code] for code in self._met], labels, self._rows)
        unseen = tuple(label for code, label in enumerate(labels) if code not in self._met)
        manifest = Manifest(tuple(self._records))
        skipped = tuple(self._skipped)
        return DatasetInfo(
            manifest, tuple(self._blocks), self._lowest, self._slots, skipped, unseen
        )

    def _admit(self, shard: ShardFile, fingerprint: str, blocks: Sequence[Block]) -> None:
        """Record a shard that has been read; refuse one read before, or changed since."""
        rows, nonzeros = sum(one.rows for one in blocks), sum(one.nonzeros for one in blocks)
        record = ShardRecord(
            shard.name, shard.path, shard.format, shard.size, shard.mtime_ns,
            fingerprint, rows, nonzeros, self._rows - rows,
        )  # fmt: skip
        first = self._first.setdefault(fingerprint, shard) if rows else shard
        check_duplicate(first, shard, self._plan.allow_duplicate)
        if self._known and self._known.shards[len(self._records)] != record:
            raise _changed(shard, "its contents differ from the first reading's")
        self._records.append(record)

    def _check_first_batch(self, batch: RowBatch, fetched: int) -> None:
        """Check the room for the cache by a first batch and the bytes of the shard read for it."""
        item = 4 if batch.values is None else 8
        labels = batch.rows if batch.code_offsets is None else batch.rows + len(batch.codes)
        squares = 0 if batch.values is None else 8 * batch.rows
        self._check_rest(4 * (batch.rows + labels) + squares + item * len(batch.indices), fetched)

    def _check_rest(self, cache_bytes: int, source_bytes: int) -> None:
        """Refuse to go on if the shards still to be cached will not fit, at this ratio."""
        rest = sum(self._uncached.values())
        if self._cache and rest and source_bytes:
            what = f"the cache of the {shown_bytes(rest)} still to be read needs about"
            self._cache.check_room(rest * cache_bytes / source_bytes, what)


def _codes_that_count(chunk: Chunk) -> list[int]:
    """Return the codes of the labels of rows that have a weight above 0."""
    codes = chunk.codes
    if chunk.weights is not None:
        counts = chunk.weights > 0.0
        if chunk.code_offsets is not None:
            counts = np.repeat(counts, np.diff(chunk.code_offsets))
        codes = codes[counts]
    met: list[int] = np.flatnonzero(np.bincount(codes[codes >= 0])).tolist()
    return met


def _too_few(counting: Collection[Label], labels: Sequence[Label], rows: int) -> DataError:
    """Make the error where rows of a weight above 0 have too few labels."""
    if not labels:
        return DataError(
            f"none of the {rows} rows has a label: wanted one at least. Check --label."
        )
    if not counting:
        return DataError(
            f"none of the {rows} rows has a label and a weight above 0. Check the weights."
        )
    which = f"all {rows} rows" if len(labels) == 1 else "all rows of a weight above 0"
    check = "--label" if len(labels) == 1 else "the weights"
    return DataError(
        f"{which} have the label {next(iter(counting))}: wanted two labels. Check {check}, or add "
        "shards that hold the other one."
    )


def check_duplicate(other: ShardFile, shard: ShardFile, allow_duplicate: bool) -> None:
    """Refuse a shard with the same bytes as another one before it."""
    if other.name != shard.name and not allow_duplicate:
        raise DataError(
            f"{shard.name}: the same bytes as {other.name}. Remove one, or count its rows twice "
            "with --allow-duplicate."
        )
    if _left_out(other) != _left_out(shard):
        raise DataError(
            f"{shard.name}: the same bytes as {other.name}, but other rows of them were "
            "forgotten. Leave it out, or write it without those rows."
        )


def no_rows(shards: Sequence[ShardFile]) -> DataError:
    """Make the error where no shard has a row."""
    return DataError(
        f"{shards[0].name}: no rows, in {len(shards)} shard(s). Name shards with rows in them."
    )


def _fetched(shard: ShardFile) -> int:
    """Count the bytes read of a shard: a local table is read again for its fingerprint."""
    return shard.size * (1 if shard.format == "libsvm" or is_uri(shard.path) else 2)


def _left_out(shard: ShardFile) -> str | None:
    return shard.without.digest if shard.without else None


class _Unreadable(DataError):
    """A shard's own reader refuses it."""


def _rebuilt(plan: Plan, cache_dir: str, shard: ShardFile, fingerprint: str) -> Contents:
    """Rebuild a shard's cache file from the same bytes."""
    reading = FirstReading(plan, cache_dir, None)
    reading._cache = Cache(cache_dir, plan.reading)
    check_unchanged(shard)
    now = plan.open_reader(shard, plan.reading).fingerprint()
    if now != fingerprint:
        raise _changed(shard, "its contents differ from what the cache was made of")
    made = reading._verify(shard)
    assert made is not None
    return made.contents


def check_all_unchanged(shards: Iterable[ShardFile]) -> None:
    """Refuse to go on if a shard was changed; a store that does not answer is only warned of."""
    shards = list(shards)
    threads = REQUESTS if any(is_uri(shard.path) for shard in shards) else 1
    try:
        for _ in in_order(check_unchanged, shards, threads):
            raise_if_cancelled()
    except StoreError as error:
        _log.warning("%s The reading goes on from the cache.", error)


def check_unchanged(shard: ShardFile) -> None:
    """Refuse to go on if this shard is not as it was found."""
    now = stamp(shard.path, shard.name)
    if not now.may_be(shard.stamp):
        how = f"{shard.size} bytes when the run began, {now.size} now"
        raise _changed(shard, "written anew" if now.size == shard.size else how)


def _changed(shard: ShardFile, how: str) -> DataError:
    return DataError(
        f"{shard.name}: changed while the run was going ({how}). Shards must stay as they are "
        "until the run has ended; run again."
    )
