"""Read shards as a ChunkSource: the first reading, and later ones from the cache."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.limits import available_processors
from streamtron.core.rows import Block, Chunk, Label
from streamtron.data.cache.flat_file import GroupReader
from streamtron.data.deletions import DeletionFilter, Deletions
from streamtron.data.discover import ShardFile, find_shards
from streamtron.data.first_reading import (
    ChunkEvent,
    DatasetInfo,
    FirstReading,
    Plan,
    Skipped,
    check_all_unchanged,
)
from streamtron.data.manifest import Manifest
from streamtron.data.prefetch import prefetch, run_in_thread
from streamtron.data.row_batch import Reading, ShardReader

if TYPE_CHECKING:
    from streamtron.data.formats.tables import TableReader

MOST_COLUMNS = 2**32 - 1


def open_shards(
    paths: Sequence[str], reading: Reading | None = None, *, cache_dir: str | None, **options: Any
) -> ShardSource:
    """Open the shards in files, directories and patterns as a source; nothing is read yet.

    Parameters
    ----------
    paths : see ``find_shards``.
    reading : how they are read.
    cache_dir, options : see ``ShardSource``.

    Raises
    ------
    DataError : see ``find_shards``; ``ShardSource.chunks`` lists the errors of readings.

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
    return ShardSource(find_shards(paths), reading or Reading(), cache_dir=cache_dir, **options)


def open_reader(
    shard: ShardFile, reading: Reading, threads: int = 1, scratch: str | None = None
) -> ShardReader:
    """Open a shard with the reader of its format, without the rows that have deletions.

    ``threads``: see ``LibsvmReader``; ``scratch``: see ``TableReader``.
    """
    reader: ShardReader
    if shard.format == "libsvm":
        from streamtron.data.formats.libsvm import LibsvmReader

        reader = LibsvmReader(shard.path, shard.name, reading, threads=threads)
    else:
        reader = table_reader(shard, reading, scratch)
    return reader if shard.without is None else DeletionFilter(reader, shard.without, shard.name)


def resolve_reading(shard: ShardFile, reading: Reading) -> Reading:
    """Complete a reading by the columns of the first shard; see ``Reading``.

    Raises
    ------
    DataError, SettingsError : the columns do not suit the reading; the file is damaged.
    MachineError : the file cannot be read.
    """
    if reading.layout is not None and shard.format == "libsvm":
        raise DataError(
            f"{shard.name}: libsvm text, and {reading.settled_by} has the columns of tables. Text "
            "may count its own from 0 or from 1: convert it with streamtron convert --format "
            "parquet --index-base 0 (or 1)."
        )
    if reading.layout is not None:
        return reading
    if shard.format != "libsvm":
        from streamtron.data.formats.columns import resolve_layout

        return resolve_layout(
            run_in_thread(table_reader(shard, reading).schema), reading, shard.name
        )
    if reading.features or reading.hash_bits is not None or reading.vocabulary is not None:
        raise SettingsError(
            f"{shard.name}: libsvm text has column numbers and no names. Leave --features, "
            "--hash-bits and --vocabulary out."
        )
    return reading


def table_reader(shard: ShardFile, reading: Reading, scratch: str | None = None) -> TableReader:
    """Open a table, Parquet or Arrow, with all its rows."""
    # a format's library is loaded only where the format is read
    if shard.format == "arrow":
        from streamtron.data.formats.arrow import ArrowReader

        return ArrowReader(shard.path, shard.name, reading, scratch)
    from streamtron.data.formats.parquet import ParquetReader

    return ParquetReader(shard.path, shard.name, reading, scratch)


_open_reader = open_reader  # the name of a parameter below


class ShardSource:
    """Read shards as a ``ChunkSource``; a context manager.

    A thread reads ahead. The attributes are always as of the last chunk delivered, so they do not
    depend on timing. Chunks may be kept; without kept chunks a few buffers are used again and
    again.

    Parameters
    ----------
    shards : the files, in their order.
    reading : how they are read.
    cache_dir : directory of the flat copy that later readings use; None = no cache, and then the
        rows can only be read in their order.
    classes : the only labels there may be, and their codes in this order; None = as they come.
    most_labels : one label more is refused; None = any number.
    least_labels : the first complete reading is refused, at its end, if the rows of a weight above
        0 have fewer labels.
    most_columns : a column of this number or above is refused.
    allow_duplicate : accept two shards with the same bytes.
    allow_empty : accept shards without any row.
    threads : that parse text and read the cache, ≥ 1; None = all processors that this process may
        use. They change nothing but the time.
    on_bad_shard : ``"skip"`` leaves out a shard that its reader refuses, as a whole, and lists it
        in ``skipped``; ``"error"`` ends the reading. Only the first complete reading skips shards.
    open_reader : opens a shard; None = by its format.
    skipped : shards that were skipped before.

    Attributes
    ----------
    info : what a complete reading found; None until the first one.
    labels : the classes met so far, in order of appearance, after ``classes``; the list grows.
    width : 1 + the largest column number met so far, as the files number columns.
    nonzeros_read : nonzeros delivered so far, and those read before to verify their shard.
    bytes_read : bytes fetched from disk for what was delivered, from shards and cache. A local
        table counts twice, since its fingerprint is a reading of its own.
    """

    def __init__(
        self,
        shards: Sequence[ShardFile],
        reading: Reading,
        *,
        cache_dir: str | None,
        classes: Sequence[Label] | None = None,
        most_labels: int | None = 2,
        least_labels: int = 0,
        most_columns: int = MOST_COLUMNS,
        allow_duplicate: bool = False,
        allow_empty: bool = False,
        threads: int | None = None,
        on_bad_shard: Literal["error", "skip"] = "error",
        open_reader: Callable[[ShardFile, Reading], ShardReader] | None = None,
        skipped: Iterable[Skipped] = (),
    ) -> None:
        self._threads = threads or available_processors()
        self._plan = Plan(
            tuple(shards),
            reading,
            None if classes is None else tuple(classes),
            most_labels,
            most_columns,
            allow_duplicate,
            allow_empty,
            on_bad_shard == "skip",
            open_reader or partial(_open_reader, threads=self._threads, scratch=cache_dir),
            least_labels=least_labels,
        )
        names = {shard.name for shard in shards}
        self._skipped = tuple(shard for shard in skipped if shard.name not in names)
        self._cache_dir = cache_dir
        self.labels: list[Label] = list(classes or ())
        self.width = self.nonzeros_read = self.bytes_read = 0
        self._resolved = open_reader is not None  # it knows the layout of its shards
        self.info: DatasetInfo | None = None
        self._idle: list[GroupReader] = []
        self._running: WeakSet[Generator[Chunk, None, None]] = WeakSet()

    @property
    def shards(self) -> tuple[ShardFile, ...]:
        """The files, in their order; from the first complete reading on without those skipped."""
        return self._plan.shards

    @property
    def reading(self) -> Reading:
        """How the shards are read; the first call of ``chunks`` completes it."""
        return self._plan.reading

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of the data; empty until the first complete reading."""
        return self.info.blocks if self.info else ()

    @property
    def manifest(self) -> Manifest | None:
        """What the shards are; None until the first complete reading."""
        return self.info.manifest if self.info else None

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The shards that were left out, with the reason; the manifest is without them."""
        return (*self._skipped, *(self.info.skipped if self.info else ()))

    @property
    def rows(self) -> int | None:
        """Rows in the data; None until the first complete reading."""
        return self.info.manifest.rows if self.info else None

    @property
    def nonzeros(self) -> int | None:
        """Stored values in the data; None until the first complete reading."""
        return self.info.manifest.nonzeros if self.info else None

    @property
    def readings(self) -> float:
        """Nonzeros delivered ÷ nonzeros in the data; 0 while the latter are unknown or none."""
        return self.nonzeros_read / self.nonzeros if self.nonzeros else 0.0

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
        """Restore labels, in the order of their codes, and counters of an interrupted run; before
        the first reading."""
        self.labels[:] = labels
        self._plan = self._plan._replace(met=tuple(labels))
        self.nonzeros_read, self.bytes_read = nonzeros_read, bytes_read

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
        self._plan = self._plan._replace(shards=excluded)

    def place(self, row: int) -> str:
        """Name a row of the whole data, from 0: ``"part-3.svm, row 12 of the shard"``."""
        if self.info is None:
            return f"row {row}"
        shards = self.info.manifest.shards
        shard = shards[bisect_right([shard.first_row for shard in shards], row) - 1]
        return f"{shard.name}, row {row - shard.first_row} of the shard"

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        """Deliver the data once: in data order, a block at a time; or, after the first reading,
        one chunk for each group of block numbers in ``order``, their rows concatenated.

        The first reading (every reading, without a cache) reads the shards and writes the cache;
        shards that the cache holds already are taken from there and not opened.

        Raises
        ------
        DataError : what the readers refuse; a label too many or of another kind; a shard that
            changed, or is there twice; no rows at all.
        FileDamaged : a cache file is not as it was written, although it was rebuilt.
        MachineError : a file cannot be read or is gone, no room for the cache, a column beyond
            ``most_columns``; ``order`` without a cache.
        ValueError : ``order`` before the first complete reading.
        """
        if order is not None and self._cache_dir is None:
            raise MachineError(
                "Rows in another order than the files' need a cache, and there is none. Name a "
                "place for it with --cache-dir, or use --order sequential."
            )
        if order is not None and self.info is None:
            raise ValueError("An order of blocks before the first complete reading.")
        self._resolve()
        if self.info is None or self._cache_dir is None:
            events = FirstReading(self._plan, self._cache_dir, self.manifest).events
        else:
            groups = order if order is not None else ((k,) for k in range(len(self.blocks)))
            events = partial(_cached, self.info, groups, self._idle, self.shards)
        running = self._deliver(events)
        self._running.add(running)
        return running

    def _resolve(self) -> None:
        if not self._resolved:
            self._plan = self._plan._replace(reading=_resolve_by_first(self._plan))
        self._resolved = True

    def _deliver(self, events: Callable[[], Iterator[ChunkEvent]]) -> Generator[Chunk, None, None]:
        with closing(prefetch(events, depth=1)) as arriving:
            for event in arriving:
                self.bytes_read += event.bytes
                self.nonzeros_read += event.verified
                if self.info is None:
                    self.labels += event.labels[len(self.labels) :]
                    self.width = max(self.width, event.width)
                    self._know(event.info)
                if event.chunk is not None:
                    self.nonzeros_read += event.chunk.nonzeros
                    yield event.chunk
                del event  # it would keep its chunk's buffer from the next but one

    def _know(self, info: DatasetInfo | None) -> None:
        self.info = info
        if info is not None and info.skipped:
            left_out = {shard.name for shard in info.skipped}
            read = tuple(shard for shard in self.shards if shard.name not in left_out)
            self._plan = self._plan._replace(shards=read)

    def close(self) -> None:
        """Stop all readings, their threads included, and remove temporary files."""
        for running in list(self._running):
            running.close()

    def __enter__(self) -> ShardSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _resolve_by_first(plan: Plan) -> Reading:
    """Complete the reading by the first shard, or by the first that can be read."""
    refused: DataError | None = None
    for shard in plan.shards if plan.skip_bad else plan.shards[:1]:
        try:
            return resolve_reading(shard, plan.reading)
        except DataError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _cached(
    info: DatasetInfo,
    groups: Iterable[Sequence[int]],
    idle: list[GroupReader],
    shards: Iterable[ShardFile],
) -> Iterator[ChunkEvent]:
    """Read groups of blocks from the cache; ``idle`` keeps readers with their buffers.

    The shards must be there although they are not read: counts belong to their rows.
    """
    check_all_unchanged(shards)
    with ExitStack() as stack:
        reader = idle.pop() if idle else GroupReader()
        stack.callback(idle.append, reader)
        for group in groups:
            slots = [info.slots[number] for number in group]
            ranges = tuple(
                (block.first_row, block.first_row + block.rows)
                for block in (info.blocks[number] for number in group)
            )
            # The chunk gets no name here: a name would keep its buffer from being used again.
            yield ChunkEvent(reader.chunk(slots, ranges), sum(slot.entry.bytes for slot in slots))
