"""Prepare shards: decode, check and write each once, side by side, as files that training reads.

A shard's file depends on nothing but its bytes, on how it is read and on which rows are left out.
So files are made on threads or on workers, shards are added and dropped without touching the
others, and a shard that was prepared before is not opened.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
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
from streamtron.data.cache import Cache
from streamtron.data.discover import ShardFile
from streamtron.data.flat_file import CachedShard, Contents
from streamtron.data.labels import LabelTable
from streamtron.data.manifest import changed, check_unchanged
from streamtron.data.prefetch import PATIENCE, raise_if_cancelled, start, work_for
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import FileReader, RowBatch
from streamtron.data.shard_rows import rows_of

_log = logging.getLogger("streamtron")

POLL = 0.1
"""Seconds between two reports of how far preparing is."""

THREAD_NAME = "streamtron-prepare"


@dataclass(slots=True)
class Progress:
    """How far preparing is: bytes of shards, rows and nonzeros decoded so far, by all threads;
    ``closed`` : nobody waits for them any more."""

    bytes: int = 0
    rows: int = 0
    nonzeros: int = 0
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fetched: int, rows: int, nonzeros: int) -> None:
        """Count what a thread has decoded; end the thread where nobody waits for it any more."""
        raise_if_cancelled()
        with self.lock:
            self.bytes += fetched
            self.rows += rows
            self.nonzeros += nonzeros


class PrepareTask(NamedTuple):
    """A shard to prepare in a directory; the rest is the same for all.

    ``most_labels`` : see ``LabelTable``. ``unread`` : bytes of all shards that are to be prepared,
    for which there must be room; 0 where another task asks for it. ``skip`` : return what its
    reader refuses.
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


def prepare_shard(task: PrepareTask, progress: Progress | None = None) -> Iterator[Prepared]:
    """Prepare a shard, and yield it. DataError: its reader refuses it; it changes while it is
    read."""
    check_unchanged(task.shard)
    try:
        yield _made(task, _opened(task), progress or Progress())
    except DataError as error:
        if not task.skip:
            raise
        check_unchanged(task.shard)  # a shard that is being rewritten is not a bad one
        yield Prepared(task.shard, "", None, reason=str(error))


def _opened(task: PrepareTask) -> FileReader:
    return readers.open_reader(task.shard, task.reading, task.threads, task.directory)


def _made(task: PrepareTask, reader: FileReader, progress: Progress) -> Prepared:
    shard, cache = task.shard, Cache(task.directory, task.reading)
    table, facts = LabelTable(task.most_labels), ShardFacts()
    done, unread = 0, task.unread
    with cache.writer() as writer:
        for number, rows in enumerate(rows_of(reader, table)):
            fetched = reader.bytes_read
            if unread and fetched > done > 0:  # a first batch has been written
                _check_room(task, writer.bytes / done)
                unread = 0
            writer.write(cut_blocks(rows, number))
            facts.add(rows)
            progress.add(fetched - done, rows.rows, rows.nonzeros)
            done = fetched
        if unread and shard.size:
            _check_room(task, writer.bytes / shard.size)
        fingerprint = reader.fingerprint()
        check_unchanged(shard)
        progress.add(shard.size - done, 0, 0)
        # without the name of the shard, which may have another one when the file is opened
        places = [place.removeprefix(f"{shard.name}, ") for place in table.places]
        file = cache.finish(writer, shard, fingerprint, table.labels, places, facts.to_dict())
    read = shard.bytes_to_read, file.contents.nonzeros
    return Prepared(shard, file.path, file.contents, *read, notes=tuple(sorted(reader.notes)))


def _check_room(task: PrepareTask, ratio: float) -> None:
    """Refuse what will not fit on the disk, by the bytes written for a byte read."""
    unread = format_size(task.unread)
    what = f"{task.directory}: the cache of the {unread} still to be read needs about"
    check_room(task.directory, task.unread * ratio, what, CACHE_REMEDY)


def _remade(task: PrepareTask, fingerprint: str) -> Contents:
    """Make a prepared file again from the same bytes."""
    check_unchanged(task.shard)
    reader = _opened(task)
    if reader.fingerprint() != fingerprint:
        raise changed(task.shard, "its contents differ from what the cache was made of")
    contents = _made(task, reader, Progress()).contents
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
        sums = np.bincount(codes[met], weights[met]).astype(np.float64)  # of none, integers
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


def prepare(
    shards: Sequence[ShardFile],
    reading: ReaderConfig,
    how: Preparing,
    most_labels: int | None = None,
) -> list[Prepared]:
    """Prepare the shards that are not prepared yet, side by side, and return all in their order.
    DataError: a shard that its reader refuses, unless it is to be skipped."""
    cache, skip = Cache(how.directory, reading), how.on_bad_shard == "skip"
    known = [cache.find(shard) for shard in shards]
    new = [shard for shard, file in zip(shards, known, strict=True) if file is None]
    unread = sum(shard.size for shard in new)
    at_once = max(1, min(how.threads, len(new)))
    if reading.transformer is not None and how.executor is None:
        at_once = 1  # processes share the work on each
    # a label too many among shards is no reason to skip one of them
    most, threads = None if skip else most_labels, max(1, how.threads // at_once)
    tasks = [
        PrepareTask(shard, reading, cache.directory, threads, most, 0 if number else unread, skip)
        for number, shard in enumerate(new)
    ]
    try:
        if how.executor is not None:
            made = [*how.executor(prepare_shard, tasks)]
        else:
            made = _on_threads(tasks, how, at_once)
    finally:
        cache.drop_outdated()
    for prepared in made:
        for note in prepared.notes:
            _log.warning("%s", note)
        if prepared.contents is None:
            _log.warning("%s The shard is left out.", prepared.reason)
    following = iter(made)
    return [
        next(following) if file is None else Prepared(shard, file.path, file.contents)
        for shard, file in zip(shards, known, strict=True)
    ]


def _on_threads(tasks: Sequence[PrepareTask], how: Preparing, number: int) -> list[Prepared]:
    """Prepare shards on so many threads, while this one tells how far they are."""
    done = Progress()
    coming: list[Future[Prepared]] = [Future() for _ in tasks]
    queue = deque(zip(tasks, coming, strict=True))

    def work() -> None:
        work_for(done)
        while not done.closed:
            try:
                task, future = queue.popleft()
            except IndexError:
                return
            try:
                [prepared] = prepare_shard(task, done)
                future.set_result(prepared)
            except BaseException as error:
                future.set_exception(error)
                return  # nothing is begun after an error; what came before it is under way

    # daemons: the end of the program does not wait for a store that hangs
    named = partial(threading.Thread, target=work, name=THREAD_NAME, daemon=True)
    threads = [named() for _ in range(number)]
    try:
        for thread in threads:
            start(thread)
        made = []
        for future in coming:
            while not future.done():
                wait([future], POLL)
                how.tell(done)
            made.append(future.result())
        how.tell(done)
        return made
    finally:
        done.closed = True
        until = time.monotonic() + PATIENCE
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
