"""What the reader of every format owes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from streamtron.core.errors import MachineError
from streamtron.data.discover import FORMATS
from streamtron.data.formats.arrow import ArrowReader
from streamtron.data.formats.libsvm import LibsvmReader
from streamtron.data.formats.npz import NpzReader
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.formats.text_tables import CsvReader, JsonLinesReader
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import FileReader
from streamtron.testing import ReaderTests, Row
from tests.helpers.layouts import write_table


class TestLibsvm(ReaderTests):
    def write(self, path: Path, rows: Sequence[Row]) -> None:
        lines = (f"{y} {' '.join(f'{c}:{x}' for c, x in row.items())}\n" for y, row in rows)
        path.write_text("".join(lines))

    def open(self, path: Path, threads: int) -> FileReader:
        reader = LibsvmReader(str(path), path.name, ReaderConfig(), None, threads)
        reader.BATCH_BYTES = 1024
        return reader


def lists(rows: Sequence[Row]) -> pa.Table:
    """Rows as lists of columns and of values."""
    return pa.table(
        {
            "label": pa.array([y for y, _ in rows], pa.float64()),
            "indices": pa.array([list(row) for _, row in rows], pa.list_(pa.int64())),
            "values": pa.array([list(row.values()) for _, row in rows], pa.list_(pa.float64())),
        }
    )


class TestParquet(ReaderTests):
    def write(self, path: Path, rows: Sequence[Row]) -> None:
        write_table(path.with_suffix(".parquet"), lists(rows), 70).rename(path)

    def open(self, path: Path, threads: int) -> FileReader:
        return ParquetReader(str(path), path.name, ReaderConfig(), None, threads)


class TestArrow(ReaderTests):
    def write(self, path: Path, rows: Sequence[Row]) -> None:
        write_table(path, lists(rows), 70)

    def open(self, path: Path, threads: int) -> FileReader:
        return ArrowReader(str(path), path.name, ReaderConfig(), None, threads)


class TestCsv(ReaderTests):
    def write(self, path: Path, rows: Sequence[Row]) -> None:
        lines = [["label", *(f"f{c}" for c in range(10))]]
        lines += [[str(y), *(str(row.get(c, 0)) for c in range(10))] for y, row in rows]
        path.write_text("".join(",".join(line) + "\n" for line in lines))

    def open(self, path: Path, threads: int) -> FileReader:
        return CsvReader(str(path), path.name, ReaderConfig(), None, threads)


class TestJsonLines(ReaderTests):
    def write(self, path: Path, rows: Sequence[Row]) -> None:
        objects = [{"label": y, "indices": [*row], "values": [*row.values()]} for y, row in rows]
        write_table(path.with_suffix(".jsonl"), objects).rename(path)

    def open(self, path: Path, threads: int) -> FileReader:
        reading = ReaderConfig(label_column="label", features=("indices",), values_column="values")
        return JsonLinesReader(str(path), path.name, reading, None, threads)


class TestNpz(ReaderTests):
    def write(self, path: Path, rows: Sequence[Row]) -> None:
        offsets = np.cumsum([0, *(len(row) for _, row in rows)])
        data = np.array([value for _, row in rows for value in row.values()])
        columns = np.array([column for _, row in rows for column in row], np.int32)
        shape, matrix = (len(rows), 10), {"data": data, "indices": columns, "indptr": offsets}
        with path.open("wb") as file:
            np.savez_compressed(file, format="csr", shape=shape, **matrix, y=[y for y, _ in rows])

    def open(self, path: Path, threads: int) -> FileReader:
        names = {"features": ("indices",), "values_column": "values", "label_column": "y"}
        reading = ReaderConfig(layout="lists", **names)
        return NpzReader(str(path), path.name, reading, None, threads)


HERE = [TestLibsvm, TestParquet, TestArrow, TestCsv, TestJsonLines, TestNpz]


def test_every_format_but_those_of_names_is_here():
    assert len(HERE) == len(FORMATS) - 2  # Vowpal Wabbit's text and AnnData


@pytest.mark.parametrize("kind", HERE)
def test_a_reader_knows_its_bytes_and_says_that_they_are_gone(kind, tmp_path):
    tests, path = kind(), tmp_path / "rows"
    tests.write(path, tests.ROWS)
    fresh, begun, used = (tests.open(path, 1) for _ in range(3))
    digest = xxhash.xxh3_128_hexdigest(path.read_bytes())
    next(begun.batches())
    assert fresh.fingerprint() == begun.fingerprint() == digest
    counts = [sum(batch.rows for batch in used.batches()) for _ in range(2)]
    assert counts == [len(tests.ROWS)] * 2
    path.unlink()
    if not isinstance(used, ParquetReader | ArrowReader | NpzReader):
        assert used.fingerprint() == digest, "text is hashed while it is read"
    gone = tests.open(path, 1)
    for action in (gone.fingerprint, lambda: list(gone.batches())):
        with pytest.raises(MachineError, match=r"^rows: cannot be read \(No such file"):
            action()
