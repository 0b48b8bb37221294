"""What the reader of every format owes. A new format subclasses ``ReaderTests``."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from streamtron.core.errors import MachineError, StreamtronError
from streamtron.data.discover import FORMATS
from streamtron.data.formats.arrow import ArrowReader
from streamtron.data.formats.libsvm import LibsvmReader
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.formats.text_tables import CsvReader, JsonLinesReader
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import FileReader
from tests.helpers.layouts import write_table

Row = tuple[float, Mapping[int, float]]
"""The label of a row, and {column: value}."""


class ReaderTests(ABC):
    """What the reader of a format owes; see ``RowBatch`` and ``FileReader``."""

    ROWS: ClassVar[Sequence[Row]] = [
        (1.0, {1: 0.5, 4: -2.0}),
        (-1.0, {2: 1.0}),
        (1.0, {}),
        (1.0, {1: 0.25, 2: 3.5, 9: 7.0}),
    ] * 100
    """Rows in columns from 1 on, of which one is empty; their values are float32."""

    @abstractmethod
    def write(self, path: Path, rows: Sequence[Row]) -> None:
        """Write rows in the format."""

    @abstractmethod
    def open(self, path: Path, threads: int) -> FileReader:
        """Open a file, whose name in messages is that of the path."""

    def rows(self, path: Path, threads: int = 1) -> list[Row]:
        """Return the rows that the reader delivers, whose arrays are as ``RowBatch`` has them."""
        rows: list[Row] = []
        for batch in self.open(path, threads).batches():
            ones = np.ones(batch.nonzeros, np.float32)
            cells = ones if batch.values is None else batch.values
            arrays = batch.indptr, batch.indices, cells, batch.codes
            assert [array.dtype.str[1:] for array in arrays] == ["i8", "u4", "f4", "i4"]
            assert all(batch.place(i).startswith(path.name) for i in range(batch.rows))
            for i, (start, stop) in enumerate(zip(batch.indptr, batch.indptr[1:], strict=False)):
                columns = batch.indices[start:stop].tolist()
                assert columns == sorted(set(columns)), "columns rise strictly within a row"
                pairs = zip(columns, cells[start:stop].tolist(), strict=True)
                rows.append((float(batch.classes[batch.codes[i]]), dict(pairs)))
        return rows

    def test_rows_come_in_the_order_of_the_file(self, tmp_path: Path) -> None:
        """With one thread and with two."""
        self.write(tmp_path / "rows", self.ROWS)
        assert self.rows(tmp_path / "rows") == self.rows(tmp_path / "rows", 2) == self.ROWS

    def test_a_file_without_rows_gives_no_batch_or_is_refused(self, tmp_path: Path) -> None:
        """Where it does not say what its columns are."""
        self.write(tmp_path / "rows", [])
        assert not self._rows_unless_refused(tmp_path / "rows")

    def test_the_fingerprint_is_that_of_the_content(self, tmp_path: Path) -> None:
        """After a reading as before one, and another one of other rows."""
        for name, rows in (("a", self.ROWS), ("b", self.ROWS), ("c", self.ROWS[1:])):
            self.write(tmp_path / name, rows)
        readers = [self.open(tmp_path / name, 1) for name in "abc"]
        _ = list(readers[0].batches())
        a, b, c = (reader.fingerprint() for reader in readers)
        assert a == b != c

    def test_a_file_that_was_cut_off_is_refused_or_gives_rows(self, tmp_path: Path) -> None:
        """Its first rows; a refusal is one of streamtron's errors, and names the file."""
        self.write(tmp_path / "rows", self.ROWS)
        complete, content = self.rows(tmp_path / "rows"), (tmp_path / "rows").read_bytes()
        for size in range(0, len(content), len(content) // 20 + 1):
            (tmp_path / "cut").write_bytes(content[:size])
            rows = self._rows_unless_refused(tmp_path / "cut")
            assert rows[:-1] == complete[: len(rows)][:-1]  # the last may have lost pairs

    def _rows_unless_refused(self, path: Path) -> list[Row]:
        try:
            return self.rows(path)
        except StreamtronError as error:
            refusal = str(error)
        assert path.name in refusal
        return []


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


HERE = [TestLibsvm, TestParquet, TestArrow, TestCsv, TestJsonLines]


def test_every_format_but_that_of_names_is_here():
    assert len(HERE) == len(FORMATS) - 1  # Vowpal Wabbit's text


@pytest.mark.parametrize("kind", HERE)
def test_a_reader_knows_its_bytes_and_says_that_they_are_gone(kind, tmp_path):
    tests, path = kind(), tmp_path / "rows"
    tests.write(path, tests.ROWS)
    fresh, used = tests.open(path, 1), tests.open(path, 1)
    digest = xxhash.xxh3_128_hexdigest(path.read_bytes())
    assert fresh.fingerprint() == digest
    counts = [sum(batch.rows for batch in used.batches()) for _ in range(2)]
    assert counts == [len(tests.ROWS)] * 2
    path.unlink()
    if not isinstance(used, ParquetReader | ArrowReader):
        assert used.fingerprint() == digest, "text is hashed while it is read"
    gone = tests.open(path, 1)
    for action in (gone.fingerprint, lambda: list(gone.batches())):
        with pytest.raises(MachineError, match=r"^rows: cannot be read \(No such file"):
            action()
