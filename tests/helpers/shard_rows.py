"""Shards of JSON rows with a reader of their own, and everything a batch or a chunk holds."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from streamtron.core.rows import Chunk, Label
from streamtron.data import (
    Dataset,
    Expected,
    FileReader,
    MemoryData,
    Preparing,
    ReaderConfig,
    RowBatch,
    ShardFile,
    ShardRows,
    find_shards,
    readers,
)
from streamtron.data.blocks import squares_of
from streamtron.data.labels import LabelTable
from streamtron.data.row_batch import offsets_of

Row = tuple[Any, float, dict[int, float]]
"""label, several or a target; weight; {column: value}"""

PLAIN = ReaderConfig()


class ListReader(FileReader):
    """A reader of a JSON file: the sizes of its batches, and rows."""

    opened: list[str] = []  # noqa: RUF012 - shared on purpose

    def resolve(self) -> ReaderConfig:
        return self.reading

    def _batches_of_all(self) -> Iterator[RowBatch]:
        self.opened.append(self.name)
        content = json.loads(Path(self.path).read_text())
        first = 0
        for size in content["sizes"]:
            yield make_batch(content["rows"][first : first + size], self.name, first, self.reading)
            first += size


def make_batch(
    rows: Sequence[Any], name: str, first: int, reading: ReaderConfig = PLAIN
) -> RowBatch:
    sets = [label if reading.multilabel else [label] for label, _, _ in rows]
    labels = [(type(label), label) for own in sets for label in own]  # for True == 1.0
    classes = list(dict.fromkeys(pair for pair in labels if pair[1] is not None))
    codes = np.array([-1 if x[1] is None else classes.index(x) for x in labels], np.int32)
    if reading.numbers:
        codes, classes = np.array([label for label, _, _ in rows], np.float64), []
    weights = np.array([weight for _, weight, _ in rows], np.float64)
    pairs = [(int(c), v) for _, _, row in rows for c, v in sorted(row.items(), key=_by_column)]
    values = np.array([value for _, value in pairs], np.float32)
    return RowBatch(
        np.cumsum([0, *(len(row) for _, _, row in rows)]).astype(np.int64),
        np.array([column for column, _ in pairs], np.uint32),
        None if (values == 1).all() else values,
        codes,
        [label for _, label in classes],
        None if (weights == 1).all() else weights,
        lambda i: f"{name}, line {first + i + 1}",
        offsets_of(np.array([len(own) for own in sets])) if reading.multilabel else None,
    )


def _by_column(pair: tuple[str, float]) -> int:
    return int(pair[0])


def write_shard(path: Path, rows: Sequence[Row], sizes: Sequence[int] | None = None) -> Path:
    """``sizes`` are the rows of each batch; they are part of the file and so of its fingerprint."""
    sizes = [len(rows)] if sizes is None else sizes
    path.write_text(json.dumps({"sizes": sizes, "rows": rows}))
    return path


def lists_are_read(reader: type[FileReader] = ListReader) -> AbstractContextManager[Any]:
    """Shards that ``write_shard`` has written are read by such a reader, others as always."""
    real = readers.open_reader

    def open_reader(shard: ShardFile, reading: ReaderConfig, *given: Any) -> FileReader:
        is_list = Path(shard.path).read_bytes().startswith(b'{"sizes"')
        if is_list:
            return reader(shard.path, shard.name, reading, without=shard.without)
        return real(shard, reading, *given)

    return patch("streamtron.data.readers.open_reader", open_reader)


def data_of(
    shards: Path | Sequence[Path],
    cache: Path,
    reading: ReaderConfig = PLAIN,
    how: dict[str, Any] | None = None,
    **expected: Any,
) -> Dataset:
    """The data set of some shards, prepared in a directory; ``how`` : see ``Preparing``."""
    paths = [shards] if isinstance(shards, Path) else shards
    files = find_shards([str(path) for path in paths])
    return Dataset.prepare(
        files, reading, Preparing(str(cache), **(how or {})), Expected(**expected)
    )


def chunks_in(
    *paths: Path | str, reading: ReaderConfig = PLAIN, table: LabelTable | None = None
) -> list[Chunk]:
    """All chunks of shards, as they are read to be scored; rows count from 0 in each shard."""
    files, table = find_shards([*map(str, paths)]), table or LabelTable(2)
    reading, chunks = readers.resolve_reading(files[0], reading), list[Chunk]()
    for file in files:
        with ShardRows(file, reading, table) as shard:
            chunks += shard.chunks()
    return chunks


@contextmanager
def small_blocks(rows: int = 5, nonzeros: int = 12) -> Iterator[None]:
    with (
        patch("streamtron.core.rows.BLOCK_ROWS", rows),
        patch("streamtron.core.rows.BLOCK_NONZEROS", nonzeros),
    ):
        yield


def bits(chunk: Chunk) -> tuple[Any, ...]:
    """Everything a chunk is, so that == means bit for bit; its squares are those of its rows."""
    indptr, indices, *_ = chunk.rows
    assert chunk.squares.tobytes() == squares_of(indptr, indices, chunk.rows.spread()).tobytes()
    assert not chunk.squares.flags.writeable
    arrays = [indptr, indices, chunk.rows.spread(), chunk.codes]
    if chunk.code_offsets is not None:
        arrays.append(chunk.code_offsets)
    weights = np.ones(len(chunk)) if chunk.weights is None else chunk.weights
    return (*((a.dtype.str, a.tobytes()) for a in arrays), weights.tobytes(), chunk.ranges)


TEXT = b"1 1:0.5 3:1\n-1 2:2\n"


def chunks_of(source: Dataset | MemoryData) -> list[object]:
    return [bits(chunk) for chunk in source.chunks()]


def rows_in(data: Dataset | MemoryData, chunks: Iterable[Chunk]) -> list[Row]:
    """Chunks as plain rows, in the numbers of the files."""
    return [
        (label, weight, {int(data.numbers[c]): v for c, v in zip(columns, values, strict=True)})
        for chunk in chunks
        for label, columns, values, weight in rows_of(
            [
                RowBatch(
                    *chunk.rows[:2],
                    chunk.rows.spread(),
                    chunk.codes,
                    [*data.labels],
                    chunk.weights,
                    str,
                    chunk.code_offsets,
                )
            ]
        )
    ]


def labels_of(codes: Any, offsets: Any, classes: Sequence[Label]) -> list[Any]:
    """The label of every row, None without one; where rows may have several, a list of them; or
    its target."""
    if codes.dtype == np.float64:
        return [float(target) for target in codes]
    labels = [None if code < 0 else classes[code] for code in codes]
    if offsets is None:
        return labels
    assert offsets[-1] == len(labels)
    assert None not in labels
    return [labels[start:stop] for start, stop in pairwise(offsets)]


def rows_of(batches: Iterable[RowBatch]) -> list[tuple[Any, list[int], list[float], float]]:
    """Plain (label or labels, columns, values, weight) of every row."""
    rows = []
    for batch in batches:
        labels = labels_of(batch.codes, batch.code_offsets, batch.classes)
        for i, label in enumerate(labels):
            span = slice(*batch.indptr[i : i + 2])
            columns = batch.indices[span].tolist()
            values = [1.0] * len(columns) if batch.values is None else batch.values[span].tolist()
            weight = 1.0 if batch.weights is None else float(batch.weights[i])
            rows.append((label, columns, values, weight))
    return rows
