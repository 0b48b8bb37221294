"""Read shards as a ChunkSource: the first reading, and later ones from the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakSet

from streamtron.core.errors import DataError, MachineError
from streamtron.core.limits import available_processors
from streamtron.core.rows import Block, Chunk, Label, ranges_of
from streamtron.data import readers
from streamtron.data.blocks import chunk_cutter
from streamtron.data.cache.flat_file import GroupReader
from streamtron.data.deletions import Deletions
from streamtron.data.discover import ShardFile, find_shards
from streamtron.data.first_reading import (
    ChunkEvent,
    DatasetInfo,
    Plan,
    Skipped,
    first_reading,
    joined_info,
)
from streamtron.data.manifest import Manifest, check_all_unchanged
from streamtron.data.prefetch import PATIENCE, prefetch, run_in_thread
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import ShardReader
from streamtron.data.storage import is_uri

SHORT_BYTES = 1 << 20
"""A single file of so many bytes is read without a thread of its own, which takes longer."""


def open_shards(
    paths: Sequence[str],
    reading: ReaderConfig | None = None,
    *,
    cache_dir: str | None,
    **options: Any,
) -> ShardSource:
    """Open the shards in files, directories and patterns (see ``find_shards``) as a source; nothing
    is read yet. ``cache_dir``, ``options``: see ``ShardSource``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = pathlib.Path(root, "a.svm").write_text("1 1:0.5\\n-1 3:1\\n")
    ...     with open_shards([root], cache_dir=None) as source:
    ...         [chunk] = source.chunks()
    >>> chunk.codes.tolist(), source.labels, source.width, source.blocks
    ([0, 1], [1.0, -1.0], 4, (Block(first_row=0, rows=2, nonzeros=2),))
    """
    shards = find_shards(paths)
    return ShardSource(shards, reading or ReaderConfig(), cache_dir=cache_dir, **options)


class SourceFacts(NamedTuple):
    """What a process knows of shards that it has read."""

    nonzeros_read: int
    bytes_read: int
    info: DatasetInfo
    """without places in the cache, and numbered from 0"""


def facts_of(source: ShardSource) -> SourceFacts:
    """Return what a source knows after a complete reading; it can be pickled."""
    assert source.info is not None
    info = source.info._replace(slots=[], blocks=())
    return SourceFacts(source.nonzeros_read, source.bytes_read, info)


class ShardSource(AbstractContextManager["ShardSource"]):
    """Read shards as a ``ChunkSource``; a context manager.

    A thread reads ahead. The attributes are as of the last chunk delivered, and do not depend on
    timing. Chunks may be kept; where they are not, a few buffers are used again and again.

    Parameters
    ----------
    shards, reading, cache_dir, options : what is read and what is refused, see ``Plan``.
    threads : that parse text, ≥ 1; None = all processors that this process may use.
    open_reader : opens a shard; None = by its format.
    skipped : shards that were skipped before.
    keep_buffers : whether buffers are kept from one reading to the next.
    counted : bytes of a reading before, which counted what a recipe must know; 0 = there was none.

    Attributes
    ----------
    info : what a complete reading found; None until the first one. ``manifest``, ``blocks``,
        ``rows`` and ``nonzeros`` are those of it: None, or no block, until then.
    most_labels : how many labels there may be, see ``Plan``.
    labels : the classes met so far, in order of appearance, after ``classes``; the list grows.
    width : 1 + the largest column number met so far, as the files number columns.
    nonzeros_read : nonzeros delivered so far, and those read before to verify their shard.
    bytes_read : bytes fetched from disk for what was delivered, from shards and cache. A local
        table counts twice, since its fingerprint is a reading of its own.
    """

    def __init__(
        self,
        shards: Sequence[ShardFile],
        reading: ReaderConfig,
        *,
        cache_dir: str | None,
        threads: int | None = None,
        open_reader: Callable[[ShardFile, ReaderConfig], ShardReader] | None = None,
        skipped: Iterable[Skipped] = (),
        keep_buffers: bool = True,
        counted: int = 0,
        **options: Any,
    ) -> None:
        self._resolved = open_reader is not None  # it knows the layout of its shards
        if open_reader is None:
            threads = threads or available_processors()
            open_reader = partial(readers.open_reader, threads=threads, scratch=cache_dir)
        self._plan = Plan(tuple(shards), reading, open_reader, cache_dir, **options)
        names = {shard.name for shard in shards}
        self._skipped = tuple(shard for shard in skipped if shard.name not in names)
        self.most_labels = self._plan.most_labels
        self.info: DatasetInfo | None = None
        self.manifest: Manifest | None = None
        self.blocks: tuple[Block, ...] = ()
        self.rows: int | None = None
        self.nonzeros: int | None = None
        self.labels: list[Label] = list(self._plan.classes or ())
        self.counted = counted
        self.width = self.nonzeros_read = self.bytes_read = 0
        self._idle: list[GroupReader] = []
        self._keep_buffers = keep_buffers
        self._closed = False
        self._running: WeakSet[Generator[Chunk, None, None]] = WeakSet()

    @property
    def shards(self) -> tuple[ShardFile, ...]:
        """The files, in their order; from the first complete reading on without those skipped."""
        if self.info is None or not self.info.skipped:
            return self._plan.shards
        left_out = {shard.name for shard in self.info.skipped}
        return tuple(shard for shard in self._plan.shards if shard.name not in left_out)

    @property
    def reading(self) -> ReaderConfig:
        """How the shards are read; the first call of ``chunks`` completes it."""
        return self._plan.reading

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The shards that were left out, with the reason; the manifest is without them."""
        return (*self._skipped, *(self.info.skipped if self.info else ()))

    @property
    def readings(self) -> float:
        """Nonzeros delivered ÷ nonzeros in the data, 0 while the latter are unknown or none; and 1
        if a recipe was counted before."""
        read = self.nonzeros_read / self.nonzeros if self.nonzeros else 0.0
        return read + bool(self.counted)

    @property
    def index_base(self) -> int | None:
        """The number of the first column, 0 or 1; None until it is known.

        ``"auto"`` becomes 1 for text in which column 0 does not occur in the first complete
        reading, else 0.
        """
        if self._plan.reading.index_base != "auto":
            return self._plan.reading.index_base
        if self.shards[0].format != "libsvm":
            return 0
        if self.info is None:
            return None
        return 0 if self.info.lowest == 0 else 1

    def fingerprints(self) -> list[tuple[str, str]]:
        """Return (name, fingerprint) of every shard; before the first complete reading this reads
        their bytes, without counting them."""
        if self.manifest is not None:
            return [(shard.name, shard.fingerprint) for shard in self.manifest.shards]
        open_reader, reading = self._plan.open_reader, self._plan.reading
        return [(s.name, run_in_thread(open_reader(s, reading).fingerprint)) for s in self.shards]

    def restore(self, labels: Sequence[Label], nonzeros_read: int, bytes_read: int) -> None:
        """Restore labels of an interrupted run, and add its counters, before the first reading."""
        self.labels[:] = labels
        self._plan = replace(self._plan, met=tuple(labels))
        self.nonzeros_read += nonzeros_read
        self.bytes_read += bytes_read

    def expect(self, fingerprints: Mapping[str, str]) -> None:
        """Refuse shards of these names whose bytes are others, at the end of the first reading."""
        self._plan = replace(self._plan, fingerprints={**self.seen, **fingerprints})

    @property
    def seen(self) -> Mapping[str, str]:
        """Names and fingerprints of the shards that were read, of those left out ""; before the
        first complete reading of those that are expected."""
        return self.info.seen if self.info else self._plan.fingerprints

    def resolve(self) -> ReaderConfig:
        """Complete the reading by the columns of the first shard, and return it."""
        if not self._resolved:
            self._plan = replace(self._plan, reading=_resolve_by_first(self._plan))
            self._resolved = True
        return self.reading

    def meet(self, facts: Sequence[SourceFacts]) -> int:
        """Take labels and width from others that have read this source's shards, consecutive ones
        each, and return the width. Raises as the first reading of all would for labels, duplicates,
        or no rows at all."""
        self._join(facts)
        return self.width

    def take(self, facts: Sequence[SourceFacts]) -> None:
        """Take what others know, see ``meet``: as if the shards had been read here, but that they
        are not in this source's cache."""
        self.nonzeros_read += sum(fact.nonzeros_read for fact in facts)
        self.bytes_read += sum(fact.bytes_read for fact in facts)
        self._learn(self._join(facts))

    def _join(self, facts: Sequence[SourceFacts]) -> DatasetInfo:
        info = joined_info(self._plan, [fact.info for fact in facts])
        self.labels[:], self.width = info.labels, info.width
        return info

    def exclude(self, deletions: Iterable[Deletions]) -> None:
        """Exclude rows of the shards of these paths; before the first reading. If shards were moved
        or renamed, all are read to find them by their fingerprints."""
        deleted = tuple(deletions)
        known = {deletion.path: deletion for deletion in deleted}
        shards = self._plan.shards
        if not known.keys() <= {shard.path for shard in shards}:
            by_bytes = {deletion.fingerprint: deletion for deletion in deleted}
            for shard, (_, fingerprint) in zip(shards, self.fingerprints(), strict=True):
                if fingerprint in by_bytes and shard.path not in known:
                    known[shard.path] = replace(by_bytes[fingerprint], path=shard.path)
        excluded = tuple(shard._replace(without=known.get(shard.path)) for shard in shards)
        self._plan = replace(self._plan, shards=excluded)

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        """Deliver the data once: in data order, a block at a time; or, after the first reading,
        one chunk for each group of block numbers in ``order``, their rows concatenated.

        The first reading (every reading, without a cache) reads the shards and writes the cache;
        shards that the cache holds already are not opened.

        DataError is raised for what readers and ``Plan`` refuse, MachineError for a file that
        cannot be read, no room for the cache, too many columns, or ``order`` without a cache.
        """
        if order is not None and self._plan.cache_dir is None:
            raise MachineError(
                "Rows in another order than the files' need a cache, and there is none. Name a "
                "place for it with --cache-dir."
            )
        if order is not None and self.info is None:
            raise ValueError("An order of blocks before the first complete reading.")
        self.resolve()
        if self.info is None or self._plan.cache_dir is None:
            events = partial(first_reading, replace(self._plan, shards=self.shards), self.manifest)
        else:
            groups = order if order is not None else _in_data_order(self.info)
            events = partial(self._cached, self.info, groups)
        running = self._deliver(events)
        self._running.add(running)
        return running

    @property
    def _is_short(self) -> bool:
        """Whether a reading is over before there is anything to read ahead."""
        if self.info is not None and self._plan.cache_dir is not None:
            return len(self.blocks) == 1
        sizes = [0 if is_uri(shard.path) else shard.size for shard in self.shards]
        return len(sizes) == 1 and 0 < sizes[0] <= SHORT_BYTES

    def _deliver(self, events: Callable[[], Generator[ChunkEvent]]) -> Generator[Chunk, None, None]:
        nonzeros, fetched = self.nonzeros_read, self.bytes_read
        with closing(events() if self._is_short else prefetch(events, depth=1)) as arriving:
            for event in arriving:
                if self._closed:
                    raise ValueError("The source is closed.")
                self.nonzeros_read = nonzeros + event.nonzeros
                self.bytes_read = fetched + event.bytes
                if self.info is None:
                    self.labels += event.labels[len(self.labels) :]
                    self.width = max(self.width, event.width)
                    self._learn(event.info)
                if event.chunk is not None:
                    yield event.chunk
                del event  # it would keep its chunk's buffer from the next but one

    def _learn(self, info: DatasetInfo | None) -> None:
        if info is not None:
            self.info, self.manifest, self.blocks = info, info.manifest, info.blocks
            self.rows, self.nonzeros = info.manifest.rows, info.manifest.nonzeros

    def _cached(self, info: DatasetInfo, groups: Iterable[Sequence[int]]) -> Generator[ChunkEvent]:
        """Read groups of blocks from the cache; the shards, to which duals belong, must exist."""
        check_all_unchanged(self.shards)
        reader = self._idle.pop() if self._idle else GroupReader()
        fetched = nonzeros = 0
        try:
            for group in groups:
                slots = [info.slots[number] for number in group]
                blocks = [info.blocks[number] for number in group]
                fetched += sum(slot.entry.bytes for slot in slots)
                nonzeros += sum(block.nonzeros for block in blocks)
                # The chunk gets no name here: a name would keep its buffer from being used again.
                yield ChunkEvent(reader.chunk(slots, ranges_of(blocks)), fetched, nonzeros)
        finally:
            if self._keep_buffers:
                self._idle.append(reader)

    def close(self) -> None:
        """Stop all readings, their threads included, and remove temporary files."""
        self._closed = True
        for running in list(self._running):
            patience = time.monotonic() + PATIENCE
            while time.monotonic() < patience:
                try:
                    running.close()
                    break
                except ValueError:  # another thread is in it, and ends it with its next chunk
                    time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.close()


def _in_data_order(info: DatasetInfo) -> Iterator[list[int]]:
    """Yield the numbers of the blocks of each chunk of the first reading."""
    cutter, group = chunk_cutter(), list[int]()
    for number, (slot, following) in enumerate(pairwise([*info.slots, None])):
        assert slot is not None
        group.append(number)
        full = cutter.fill(slot.entry.rows, slot.entry.nonzeros)
        if full or following is None or following.shard is not slot.shard:
            yield group
            cutter, group = chunk_cutter(), []


def _resolve_by_first(plan: Plan) -> ReaderConfig:
    """Complete the reading by the first shard, or by the first that can be read."""
    refused: DataError | None = None
    for shard in plan.shards if plan.on_bad_shard == "skip" else plan.shards[:1]:
        try:
            return readers.resolve_reading(shard, plan.reading)
        except DataError as error:
            refused = refused or error
    assert refused is not None
    raise refused
