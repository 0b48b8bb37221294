"""Shards as a ChunkSource: the first reading, later readings, and what is known in between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.limits import available_processors
from streamtron.core.rows import Block, Chunk, Label
from streamtron.data.cache.flat_file import GroupReader
from streamtron.data.deletions import Deletions, Without
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
from streamtron.data.prefetch import ahead, apart
from streamtron.data.row_batch import Reading, ShardReader

if TYPE_CHECKING:
    from streamtron.data.formats.tables import TableReader

MOST_COLUMNS = 2**32 - 1


def open_shards(
    paths: Sequence[str],
    reading: Reading | None = None,
    *,
    cache_dir: str | None,
    classes: Sequence[Label] | None = None,
    most_labels: int | None = 2,
    least_labels: int = 0,
    most_columns: int = MOST_COLUMNS,
    allow_duplicate: bool = False,
    threads: int | None = None,
    on_bad_shard: Literal["error", "skip"] = "error",
) -> ShardSource:
    """A source of the rows in files, directories and patterns; nothing is read yet.

    Parameters
    ----------
    paths : see ``find_shards``.
    reading : how they are to be read.
    cache_dir : where the flat copy goes that later readings use; None = no cache, and then the
        rows can only be read in their order.
    classes : the only labels there may be, and their codes in this order; None = as they come.
    most_labels : one label more is refused; None = any number.
    least_labels : the first complete reading is refused, at its end, if the rows of a weight above
        0 have fewer labels.
    most_columns : a column of this number or beyond is refused.
    allow_duplicate : take two shards with the same bytes as they are.
    threads : that parse text and read the cache, ≥ 1; None = all processors that this process may
        use. They change nothing but the time it takes.
    on_bad_shard : ``"skip"`` leaves a shard that its reader refuses out as a whole, from its first
        row on, and lists it in ``skipped``; ``"error"`` ends the reading. Only the first complete
        reading leaves shards out.

    Raises
    ------
    DataError : see ``find_shards``; what readings raise is told by ``ShardSource.chunks``.

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
    return ShardSource(
        find_shards(paths),
        reading or Reading(),
        cache_dir=cache_dir,
        classes=classes,
        most_labels=most_labels,
        least_labels=least_labels,
        most_columns=most_columns,
        allow_duplicate=allow_duplicate,
        threads=threads,
        on_bad_shard=on_bad_shard,
    )


def open_reader(
    shard: ShardFile, reading: Reading, threads: int = 1, scratch: str | None = None
) -> ShardReader:
    """The reader for a shard's format, of the rows that have no deletion.

    Parameters
    ----------
    threads : see ``LibsvmReader``.
    scratch : see ``TableReader``.
    """
    reader: ShardReader
    if shard.format == "libsvm":
        from streamtron.data.formats.libsvm import LibsvmReader

        reader = LibsvmReader(shard.path, shard.name, reading, threads=threads)
    else:
        reader = table_reader(shard, reading, scratch)
    return reader if shard.without is None else Without(reader, shard.without, shard.name)


def settled(shard: ShardFile, reading: Reading) -> Reading:
    """The reading with everything settled that the first shard's columns tell; see ``Reading``.

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
        from streamtron.data.formats.columns import settle

        return settle(apart(table_reader(shard, reading).schema), reading, shard.name)
    if reading.features or reading.hash_bits is not None or reading.vocabulary is not None:
        raise SettingsError(
            f"{shard.name}: libsvm text has column numbers and no names. Leave --features, "
            "--hash-bits and --vocabulary out."
        )
    return reading


def table_reader(shard: ShardFile, reading: Reading, scratch: str | None = None) -> TableReader:
    """The reader of all rows of a table, Parquet or Arrow."""
    # a format's library is loaded only where the format is read
    if shard.format == "arrow":
        from streamtron.data.formats.arrow import ArrowReader

        return ArrowReader(shard.path, shard.name, reading, scratch)
    from streamtron.data.formats.parquet import ParquetReader

    return ParquetReader(shard.path, shard.name, reading, scratch)


_open_reader = open_reader  # the name of a parameter below


class ShardSource:
    """A ``ChunkSource`` over shards; see ``open_shards``. A context manager.

    Chunks come from a thread that reads ahead. What the source says of itself is always as of the
    last chunk delivered, so it does not depend on timing. Chunks may be kept; a consumer that does
    not keep them reads with a handful of buffers. ``allow_empty``: no rows at all are no error.
    ``skipped``: shards that a reading before this source left out.
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
        self._labels: list[Label] = list(classes or ())
        self._width = 0
        self._settled = open_reader is not None  # it settles for itself what its shards are
        self._whole: DatasetInfo | None = None
        self._nonzeros_read = 0
        self._bytes_read = 0
        self._idle: list[GroupReader] = []
        self._running: WeakSet[Generator[Chunk, None, None]] = WeakSet()

    @property
    def shards(self) -> tuple[ShardFile, ...]:
        """The files, in their order; from the first complete reading on without those skipped."""
        return self._plan.shards

    @property
    def reading(self) -> Reading:
        """How the shards are read; the first call of ``chunks`` settles what they tell by
        themselves."""
        return self._plan.reading

    @property
    def labels(self) -> list[Label]:
        """The classes met so far, in order of appearance (behind those given as ``classes``):
        one list that grows."""
        return self._labels

    @property
    def width(self) -> int:
        """1 + the largest column number met so far, as the files number columns."""
        return self._width

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of the data; empty until the first complete reading."""
        return self._whole.blocks if self._whole else ()

    @property
    def manifest(self) -> Manifest | None:
        """What the shards are; None until the first complete reading."""
        return self._whole.manifest if self._whole else None

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The shards that were left out, with the reason: before, and by the first complete
        reading. The manifest, and all that is said of the data, does without them.
        """
        return (*self._skipped, *(self._whole.skipped if self._whole else ()))

    @property
    def unmet(self) -> list[Label]:
        """Labels that no row of a weight above 0 has; none until the first complete reading."""
        met = self._whole.labels if self._whole else self._labels
        return [label for label in self._labels if label not in met]

    @property
    def cached_at(self) -> set[str]:
        """The cache's files that later readings take rows from."""
        return {pick.shard.path for pick in self._whole.picks} if self._whole else set()

    @property
    def rows(self) -> int | None:
        """Rows in the data; None until the first complete reading."""
        return self._whole.manifest.rows if self._whole else None

    @property
    def nonzeros(self) -> int | None:
        """Stored values in the data; None until the first complete reading."""
        return self._whole.manifest.nonzeros if self._whole else None

    @property
    def nonzeros_read(self) -> int:
        """Nonzeros delivered so far, and those read a first time to prove their shard whole."""
        return self._nonzeros_read

    @property
    def bytes_read(self) -> int:
        """Bytes fetched from disk for what was delivered so far, from shards and cache.

        A shard counts as its rows are delivered; a local table twice in the end, for its
        fingerprint is a reading of its own.
        """
        return self._bytes_read

    @property
    def readings(self) -> float:
        """Nonzeros delivered ÷ nonzeros in the data; 0 while the latter are unknown or none."""
        return self._nonzeros_read / self.nonzeros if self.nonzeros else 0.0

    @property
    def index_base(self) -> int | None:
        """The number of the first column, 0 or 1; None until it is settled.

        As the reading says; ``"auto"`` is settled by the first complete reading: 1 for text in
        which column 0 never occurred, else 0.
        """
        if self._plan.reading.index_base != "auto":
            return self._plan.reading.index_base
        if self.shards[0].format != "libsvm":
            return 0
        if self._whole is None:
            return None
        return 0 if self._whole.lowest == 0 else 1

    def fingerprints(self) -> list[tuple[str, str]]:
        """(name, fingerprint) of every shard; before the first complete reading this reads their
        bytes, without counting them.

        Raises
        ------
        MachineError : a file cannot be read.
        """
        if self.manifest is not None:
            return [(shard.name, shard.fingerprint) for shard in self.manifest.shards]
        open_reader, reading = self._plan.open_reader, self._plan.reading
        return [(s.name, apart(open_reader(s, reading).fingerprint)) for s in self.shards]

    def restore(self, labels: Sequence[Label], nonzeros_read: int, bytes_read: int) -> None:
        """Go on counting where an interrupted run had come to, whose codes were those of
        ``labels``, also where other rows come first by now; before the first reading."""
        self._labels[:] = labels
        self._plan = self._plan._replace(met=tuple(labels))
        self._nonzeros_read, self._bytes_read = nonzeros_read, bytes_read

    def exclude(self, deletions: Iterable[Deletions]) -> None:
        """Leave rows out of the shards of these paths; before the first reading. If some are of
        other paths, shards were moved or renamed, and are known by their bytes, which are read.

        Raises
        ------
        MachineError : a file cannot be read.
        """
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
        """Name a row of the whole data: shard, and row in it, both from 0 (after one reading).

        Examples: ``"part-3.svm, row 12 of the shard"``.
        """
        if self._whole is None:
            return f"row {row}"
        shards = self._whole.manifest.shards
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
        FileDamaged : a cache file is not as it was written, although it was made afresh.
        MachineError : a file cannot be read or is gone, no room for the cache, a column beyond
            ``most_columns``; ``order`` without a cache.
        ValueError : ``order`` before the first complete reading.
        """
        if order is not None and self._cache_dir is None:
            raise MachineError(
                "Rows in another order than the files' need a cache, and there is none. Name a "
                "place for it with --cache-dir, or use --order sequential."
            )
        if order is not None and self._whole is None:
            raise ValueError("An order of blocks before the first complete reading.")
        self._settle()
        if self._whole is None or self._cache_dir is None:
            deliveries = FirstReading(self._plan, self._cache_dir, self.manifest).deliveries
        else:
            groups = order if order is not None else ((k,) for k in range(len(self.blocks)))
            deliveries = partial(_cached, self._whole, groups, self._idle, self.shards)
        running = self._deliver(deliveries)
        self._running.add(running)
        return running

    def _settle(self) -> None:
        if not self._settled:
            self._plan = self._plan._replace(reading=_settled_by_first(self._plan))
        self._settled = True

    def _deliver(
        self, deliveries: Callable[[], Iterator[ChunkEvent]]
    ) -> Generator[Chunk, None, None]:
        with closing(ahead(deliveries, depth=1)) as arriving:
            for delivery in arriving:
                self._bytes_read += delivery.bytes
                self._nonzeros_read += delivery.proven
                if self._whole is None:
                    self._labels += delivery.labels[len(self._labels) :]
                    self._width = max(self._width, delivery.width)
                    self._know(delivery.whole)
                if delivery.chunk is not None:
                    self._nonzeros_read += delivery.chunk.nonzeros
                    yield delivery.chunk
                del delivery  # it would keep its chunk's buffer from the next but one

    def _know(self, whole: DatasetInfo | None) -> None:
        self._whole = whole
        if whole is not None and whole.skipped:
            left_out = {shard.name for shard in whole.skipped}
            read = tuple(shard for shard in self.shards if shard.name not in left_out)
            self._plan = self._plan._replace(shards=read)

    def close(self) -> None:
        """Stop every reading that is under way; no thread and no temporary file is left."""
        for running in list(self._running):
            running.close()

    def __enter__(self) -> ShardSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _settled_by_first(plan: Plan) -> Reading:
    """The reading as the first shard settles it, or the first that can be read."""
    refused: DataError | None = None
    for shard in plan.shards if plan.skip_bad else plan.shards[:1]:
        try:
            return settled(shard, plan.reading)
        except DataError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _cached(
    whole: DatasetInfo,
    groups: Iterable[Sequence[int]],
    idle: list[GroupReader],
    shards: Iterable[ShardFile],
) -> Iterator[ChunkEvent]:
    """Groups of blocks from the cache; ``idle`` keeps readers, with their buffers, for the next.

    The cache would do without the shards, but counts belong to rows that are there.
    """
    check_all_unchanged(shards)
    with ExitStack() as stack:
        reader = idle.pop() if idle else GroupReader()
        stack.callback(idle.append, reader)
        stack.enter_context(reader.files)
        for group in groups:
            picks = [whole.picks[number] for number in group]
            ranges = tuple(
                (block.first_row, block.first_row + block.rows)
                for block in (whole.blocks[number] for number in group)
            )
            # The chunk gets no name here: a name would keep its buffer from being used again.
            yield ChunkEvent(reader.chunk(picks, ranges), sum(pick.entry.bytes for pick in picks))
