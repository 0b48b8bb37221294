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
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamtron.core.executor import Executor
from streamtron.core.files import CACHE_REMEDY, check_room
from streamtron.core.limits import return_memory
from streamtron.core.rows import NO_FACTS, Facts, are_targets
from streamtron.core.text import format_size
from streamtron.data import readers
from streamtron.data.blocks import cut_blocks
from streamtron.data.cache import Cache, drop_earlier, names_of
from streamtron.data.discover import ShardFile
from streamtron.data.flat_file import FlatWriter, PreparedFile
from streamtron.data.labels import LabelTable
from streamtron.data.manifest import check_unchanged
from streamtron.data.prefetch import PATIENCE, raise_if_cancelled, start, work_for
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import RowBatch
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
    for which there must be room; 0 where another task asks for it.
    """

    shard: ShardFile
    reading: ReaderConfig
    directory: str
    threads: int
    most_labels: int | None
    unread: int

    @property
    def name(self) -> str:
        """Label on the dashboard."""
        return self.shard.name


class Prepared(NamedTuple):
    """A shard, its prepared file, and the bytes and nonzeros that were read to make it, 0 where it
    was there. ``notes`` : what is odd about it."""

    shard: ShardFile
    file: PreparedFile
    bytes: int = 0
    nonzeros: int = 0
    notes: tuple[str, ...] = ()


def prepare_shard(task: PrepareTask, progress: Progress | None = None) -> Iterator[Prepared]:
    """Prepare a shard, and yield it. DataError: its reader refuses it; it changes while it is
    read."""
    shard, table, facts = task.shard, LabelTable(task.most_labels), NO_FACTS
    check_unchanged(shard)
    progress = progress or Progress()
    reader = readers.open_reader(shard, task.reading, task.threads, task.directory)
    done, unread = 0, task.unread
    with FlatWriter(task.directory) as writer:
        for number, rows in enumerate(rows_of(reader, table)):
            fetched = reader.bytes_read
            if unread and fetched > done > 0:  # a first batch has been written
                _check_room(task, writer.bytes / done)
                unread = 0
            writer.write(cut_blocks(rows, number))
            facts = facts.plus(facts_of(rows))
            progress.add(fetched - done, rows.rows, rows.nonzeros)
            done = fetched
        if unread and shard.size:
            _check_room(task, writer.bytes / shard.size)
        names = names_of(task.directory, task.reading, shard, reader.fingerprint())
        check_unchanged(shard)
        progress.add(shard.size - done, 0, 0)
        # without the name of the shard, which may have another one when the file is opened
        places = [place.removeprefix(f"{shard.name}, ") for place in table.places]
        file = writer.finish(names.path(task.directory), table.labels, places, facts)
    notes = tuple(sorted(reader.notes))
    yield Prepared(shard, file, shard.bytes_to_read, file.nonzeros, notes=notes)


def _check_room(task: PrepareTask, ratio: float) -> None:
    """Refuse what will not fit on the disk, by the bytes written for a byte read."""
    unread = format_size(task.unread)
    what = f"{task.directory}: the cache of the {unread} still to be read needs about"
    check_room(task.directory, task.unread * ratio, what, CACHE_REMEDY)


def facts_of(rows: RowBatch) -> Facts:
    """Return what is known of rows with the codes of a shard, or of all data."""
    weights = np.ones(rows.rows) if rows.weights is None else rows.weights
    counts, codes, numbers = weights > 0.0, rows.codes, np.zeros(1)
    if not counts.any():
        return NO_FACTS
    assert rows.squares is not None
    label_weights: tuple[float, ...] = ()
    if are_targets(codes):
        numbers = codes[counts]
    else:
        lengths = 1 if rows.code_offsets is None else np.diff(rows.code_offsets)
        met, of_codes = codes >= 0, np.repeat(weights, lengths)
        label_weights = (*np.bincount(codes[met], of_codes[met]).astype(np.float64).tolist(),)
    return Facts(
        int(np.count_nonzero(counts)),
        float(weights.sum()),
        float(weights[counts].min()),
        float(weights.max()),
        float(rows.squares[counts].max()),
        label_weights,
        float(numbers.sum()),
        float(numbers.min()),
        float(numbers.max()),
    )


class Preparing(NamedTuple):
    """How shards are prepared: in which ``directory``, by how many ``threads``, or by an
    ``executor`` whose workers see the directory. ``tell`` is called with how far it is."""

    directory: str
    threads: int = 1
    executor: Executor | None = None
    tell: Callable[[Progress], object] = lambda _: None


def prepare(
    shards: Sequence[ShardFile],
    reading: ReaderConfig,
    how: Preparing,
    most_labels: int | None = None,
) -> list[Prepared]:
    """Prepare the shards that are not prepared yet, side by side, and return all in their order.
    DataError: a shard that its reader refuses."""
    cache = Cache(how.directory, reading)
    there = {shard: Prepared(shard, file) for shard in shards if (file := cache.find(shard))}
    new = [shard for shard in shards if shard not in there]
    unread, at_once = sum(shard.size for shard in new), max(1, min(how.threads, len(new)))
    if reading.transformer is not None and how.executor is None:
        at_once = 1  # processes share the work on each
    threads = max(1, how.threads // at_once)
    tasks = [
        PrepareTask(shard, reading, cache.directory, threads, most_labels, 0 if number else unread)
        for number, shard in enumerate(new)
    ]
    if how.executor is not None:
        made = [*how.executor(prepare_shard, tasks)]
    else:
        made = _on_threads(tasks, how, at_once)
    for prepared in made:
        for note in prepared.notes:
            _log.warning("%s", note)
    there |= zip(new, made, strict=True)
    if new:
        drop_earlier(cache.directory, [shard.file.path for shard in there.values()])
        pa.default_memory_pool().release_unused()  # pyarrow keeps what it has decoded into
        return_memory()
    return [there[shard] for shard in shards]


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
