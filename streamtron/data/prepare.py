"""Prepare shards: decode, check and write each once, side by side, as files that training reads.

A shard's file depends on nothing but its bytes, on how it is read and on which rows are left out.
So files are made on threads or on workers, shards are added and dropped without touching the
others, and a shard that was prepared before is not opened.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from streamtron.core.errors import DataError
from streamtron.core.executor import Executor
from streamtron.core.files import CACHE_REMEDY, check_room
from streamtron.core.rows import are_targets
from streamtron.core.text import format_size
from streamtron.data import readers
from streamtron.data.blocks import cut_blocks
from streamtron.data.cache.directory import Cache
from streamtron.data.cache.flat_file import CachedShard, Contents
from streamtron.data.discover import ShardFile
from streamtron.data.labels import LabelTable, ShardLabels
from streamtron.data.manifest import changed, check_unchanged
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import RowBatch, ShardReader
from streamtron.data.source import bytes_of, rows_of

_log = logging.getLogger("streamtron")

POLL = 0.1
"""Seconds between two reports of how far preparing is."""

OpenReader = Callable[[ShardFile, ReaderConfig], ShardReader]


@dataclass(slots=True)
class Progress:
    """How far preparing is: bytes of shards, rows and nonzeros decoded so far, by all threads."""

    bytes: int = 0
    rows: int = 0
    nonzeros: int = 0
    cancelled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fetched: int, rows: int, nonzeros: int) -> None:
        """Count what a thread has decoded; end the thread where nobody waits for it any more."""
        if self.cancelled:
            raise _Cancelled
        with self.lock:
            self.bytes += fetched
            self.rows += rows
            self.nonzeros += nonzeros


class _Cancelled(BaseException):
    """Preparing was given up."""


class PrepareTask(NamedTuple):
    """A shard to prepare in a directory; the rest is the same for all.

    ``most_labels`` : see ``LabelTable``. ``unread`` : bytes of all shards that are to be prepared,
    for which there must be room. ``skip`` : return what its reader refuses.
    """

    shard: ShardFile
    reading: ReaderConfig
    directory: str
    threads: int
    most_labels: int | None
    unread: int
    skip: bool

    @property
    def name(self) -> str:
        """Label on the dashboard."""
        return self.shard.name


class Prepared(NamedTuple):
    """A shard, its prepared file, and the bytes and nonzeros that were read to make it, 0 where it
    was there; or why it is left out. ``notes`` : what is odd about it."""

    shard: ShardFile
    path: str
    contents: Contents | None
    bytes: int = 0
    nonzeros: int = 0
    reason: str = ""
    notes: tuple[str, ...] = ()

    def opened(self, reading: ReaderConfig, directory: str) -> CachedShard:
        """Open the prepared file, which is made again where it is damaged."""
        assert self.contents is not None
        file = CachedShard(self.path, self.shard.name, self.contents)
        task = PrepareTask(self.shard, reading, directory, 1, None, 0, skip=False)
        file.remake = partial(_remade, task, file.fingerprint())
        return file


def prepare_shard(
    task: PrepareTask, progress: Progress | None = None, open_reader: OpenReader | None = None
) -> Iterator[Prepared]:
    """Prepare a shard unless that was done before, and yield it. DataError: its reader refuses it;
    it changes while it is read."""
    shard, directory = task.shard, task.directory
    cache = Cache(directory, task.reading)
    check_unchanged(shard)
    known = cache.find(shard)
    if known is not None:
        yield Prepared(shard, known.path, known.contents)
        return
    try:
        yield _made(task, cache, progress or Progress(), open_reader or _opener(task))
    except DataError as error:
        if not task.skip:
            raise
        check_unchanged(shard)  # a shard that is being rewritten is not a bad one
        yield Prepared(shard, "", None, reason=str(error))


def _opener(task: PrepareTask) -> OpenReader:
    return partial(readers.open_reader, threads=task.threads, scratch=task.directory)


def _made(task: PrepareTask, cache: Cache, progress: Progress, open_reader: OpenReader) -> Prepared:
    shard = task.shard
    reader = open_reader(shard, task.reading)
    labels, facts = ShardLabels(LabelTable(task.most_labels)), ShardFacts()
    done = 0
    with cache.writer() as writer:
        for number, rows in enumerate(rows_of(reader, labels)):
            fetched = int(getattr(reader, "bytes_read", 0))
            writer.write(cut_blocks(rows, number))
            facts.add(rows)
            if not number and fetched and task.unread:
                _check_room(task, writer.bytes / fetched)
            progress.add(fetched - done, rows.rows, rows.nonzeros)
            done = fetched
        check_unchanged(shard)
        progress.add(shard.size - done, 0, 0)
        file = cache.finish(
            writer, shard, reader.fingerprint(), labels.labels, labels.places, facts.to_dict()
        )
    notes = tuple(sorted(getattr(reader, "notes", ())))
    read = bytes_of(shard), file.contents.nonzeros
    return Prepared(shard, file.path, file.contents, *read, notes=notes)


def _check_room(task: PrepareTask, ratio: float) -> None:
    """Refuse what will not fit on the disk, by the bytes written for a byte read."""
    unread = format_size(task.unread)
    what = f"{task.directory}: the cache of the {unread} still to be read needs about"
    check_room(task.directory, task.unread * ratio, what, CACHE_REMEDY)


def _remade(task: PrepareTask, fingerprint: str) -> Contents:
    """Make a prepared file again from the same bytes."""
    check_unchanged(task.shard)
    open_reader = _opener(task)
    if open_reader(task.shard, task.reading).fingerprint() != fingerprint:
        raise changed(task.shard, "its contents differ from what the cache was made of")
    cache = Cache(task.directory, task.reading)
    contents = _made(task, cache, Progress(), open_reader).contents
    assert contents is not None
    return contents


class ShardFacts:
    """What is known of a shard's rows of a weight above 0; see ``core.rows.Facts``."""

    def __init__(self) -> None:
        self.rows, self.weight, self.total = 0, 0.0, 0.0
        self.weights = self.targets = (np.inf, -np.inf)
        self.sq_norm = 0.0
        self.labels = np.zeros(0)

    def add(self, rows: RowBatch) -> None:
        """Add rows with the shard's codes."""
        weights = np.ones(rows.rows) if rows.weights is None else rows.weights
        counts = weights > 0.0
        if not counts.any():
            return
        assert rows.squares is not None
        self.rows += int(np.count_nonzero(counts))
        self.weight += float(weights.sum())
        self.weights = _extended(self.weights, weights[counts])
        self.sq_norm = max(self.sq_norm, float(rows.squares[counts].max()))
        codes = rows.codes
        if are_targets(codes):
            self.targets = _extended(self.targets, codes[counts])
            self.total += float(codes[counts].sum())
            return
        if rows.code_offsets is not None:
            weights = np.repeat(weights, np.diff(rows.code_offsets))
        met = codes >= 0
        sums = np.bincount(codes[met], weights[met])
        sums[: len(self.labels)] += self.labels[: len(sums)]
        self.labels = np.append(sums, self.labels[len(sums) :])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the footer has them."""
        return {
            "rows": self.rows,
            "weight": self.weight,
            "weights": [*self.weights] if self.rows else [0.0, 0.0],
            "sq_norm": self.sq_norm,
            "labels": self.labels.tolist(),
            "targets": [*self.targets] if np.isfinite(self.targets[0]) else [0.0, 0.0],
            "total": self.total,
        }


def _extended(known: tuple[float, float], values: Any) -> tuple[float, float]:
    return min(known[0], float(values.min())), max(known[1], float(values.max()))


class Preparing(NamedTuple):
    """How shards are prepared: in which ``directory``, by how many ``threads``, or by an
    ``executor`` whose workers see the directory. ``tell`` is called with how far it is."""

    directory: str
    threads: int = 1
    executor: Executor | None = None
    tell: Callable[[Progress], object] = lambda _: None
    on_bad_shard: Literal["error", "skip"] = "error"
    open_reader: OpenReader | None = None


def prepare(
    shards: Sequence[ShardFile],
    reading: ReaderConfig,
    how: Preparing,
    most_labels: int | None = None,
) -> list[Prepared]:
    """Prepare shards, side by side, and return them in their order. DataError: a shard that its
    reader refuses, unless it is to be skipped."""
    cache = Cache(how.directory, reading)
    unread = sum(shard.size for shard in shards if not cache.knows(shard))
    at_once = min(how.threads, len(shards))
    task = PrepareTask(
        shards[0],
        reading,
        cache.directory,
        max(1, how.threads // max(at_once, 1)),
        most_labels,
        unread,
        how.on_bad_shard == "skip",
    )
    tasks = [task._replace(shard=shard) for shard in shards]
    if how.executor is not None:
        made = [*how.executor(prepare_shard, tasks)]
    else:
        made = _on_threads(tasks, how, at_once)
    for prepared in made:
        for note in prepared.notes:
            _log.warning("%s", note)
        if prepared.contents is None:
            _log.warning("%s The shard is left out.", prepared.reason)
    return made


def _on_threads(tasks: Sequence[PrepareTask], how: Preparing, threads: int) -> list[Prepared]:
    """Prepare shards on so many threads, while this one tells how far they are."""
    progress, made = Progress(), list[Prepared]()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="streamtron-prepare")
    waiting: list[Future[Prepared]] = []

    def run(task: PrepareTask) -> Prepared:
        [prepared] = prepare_shard(task, progress, how.open_reader)
        return prepared

    try:
        waiting = [pool.submit(run, task) for task in tasks]
        for future in waiting:
            while not future.done():
                wait([future], POLL)
                how.tell(progress)
            made.append(future.result())
        how.tell(progress)
        return made
    finally:
        progress.cancelled = True
        for future in waiting:
            future.cancel()
        with suppress(BaseException):
            pool.shutdown(wait=False, cancel_futures=True)
