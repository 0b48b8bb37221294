"""Numbers as labels: exact from every format, kept by cache, shards and filters, refused by place
where they are none."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamtron import convert
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError
from streamtron.core.feature_names import Hashing
from streamtron.data import (
    MemoryData,
    ReaderConfig,
    ShardRows,
    excluding,
    find_shards,
    fingerprints,
)
from streamtron.data.deletions import Deletions
from streamtron.data.formats.given import standing
from streamtron.data.writers.tables import TextForm, text_predictions
from streamtron.runs.inspect import inspect
from tests.helpers.layouts import write_table
from tests.helpers.shard_rows import chunks_in, data_of, rows_in

PLAIN = ReaderConfig(numbers=True)
READINGS = {
    "svm": PLAIN,
    "vw": ReaderConfig(numbers=True, names=Hashing(8), weight_column="importance"),
}
ROW = {
    "svm": "{} 1:1\n",
    "vw": "{} 2 |a x:1\n",
    "csv": "1,{}\n",
    "jsonl": '{{"f0": 1, "price": {}}}\n',
}
FINE = [0.1, -3e-05, 0.0, 1e300, 5e-324, 12345678.123456789, -7.0]
"""Numbers that only a correctly rounded double has."""


def targets(path: Path, reading: ReaderConfig | None = None, **expected: Any) -> list[float]:
    """The targets as they are prepared; those that are found prepared, or not, are the same."""
    price = ReaderConfig(numbers=True, label_column="price")
    reading = reading or READINGS.get(path.suffix[1:], price)
    found = [[chunk.codes.tobytes() for chunk in chunks_in(path, reading=reading)]]
    for _ in range(2):
        with data_of(path, path.parent / "_c", reading, **expected) as data:
            found.append([chunk.codes.tobytes() for chunk in data.chunks()])
            assert data.labels == []
    assert found[0] == found[1] == found[2]
    return np.frombuffer(b"".join(found[0])).tolist()


def written(path: Path, labels: Sequence[Any] | pa.Array) -> Path:
    """Write rows with these labels, in text as they stand here."""
    if path.suffix == ".parquet":
        return write_table(path, {"f0": [1.0] * len(labels), "price": labels})
    head, row = "f0,price\n" * (path.suffix == ".csv"), ROW[path.suffix[1:]]
    path.write_text(head + "".join(map(row.format, labels)))
    return path


@pytest.mark.parametrize("ending", [*ROW, "parquet"])
def test_every_format_gives_the_doubles_themselves_also_prepared(tmp_path, ending):
    assert targets(written(tmp_path / f"x.{ending}", FINE)) == FINE


def test_a_column_of_any_number_type_gives_the_nearest_doubles(tmp_path):
    types = (pa.int8(), pa.uint16(), pa.int64(), pa.float16(), pa.float32())
    for labels in (
        *(pa.array([3, 1, 2], type_) for type_ in types),
        pa.array([Decimal("19.99"), Decimal("0.01"), Decimal("-1234567890123.4567")]),
        pa.array([1.5, 2.5, 1.5]).dictionary_encode(),
    ):
        nearest = [float(number) for number in labels.to_pylist()]
        assert targets(written(tmp_path / "x.parquet", labels)) == nearest


@pytest.mark.parametrize(
    ("ending", "labels", "sentence"),
    [
        *(
            ("svm", [1, word], f"line 2: label {word} is no finite decimal number. A loss of regr")
            for word in ("spam", "nan", "inf", "-1e999")
        ),
        *(
            (kind, [1, 2**53 + 1], "line 2: label 9007199254740993 is an integer beyond 2⁵³ that")
            for kind in ("svm", "vw")
        ),
        ("csv", [2.5, "cheap"], "row 2: label cheap in column 'price' of type string. A loss of"),
        ("csv", [2.5, "inf"], "row 2: label inf in column 'price'"),
        ("jsonl", [2.5, '"x"'], "row 2: not a file of JSON lines .*number to string"),
        ("parquet", [1.0, None], "row group 0, row 1: null in column 'price'"),
        ("parquet", ["1", "b"], "row 1: label b in column 'price' of type string"),
        ("parquet", [True, False], "row 0: label True in column 'price' of type bool"),
    ],
)
def test_what_is_no_number_is_refused_by_its_place(tmp_path, ending, labels, sentence):
    with pytest.raises(DataError, match=sentence):
        targets(written(tmp_path / f"x.{ending}", labels))


def test_numbers_need_a_row_of_weight_above_0_and_may_all_be_equal(tmp_path):
    path, reading = tmp_path / "x.svm", ReaderConfig(numbers=True, weights_in_label=True)
    assert targets(written(path, ["2.5:1", "2.5:0"]), reading, least_labels=1) == [2.5, 2.5]
    with pytest.raises(DataError, match="none of the 2 rows has a label and a weight above 0"):
        targets(written(path, ["1.5:0", "2.5:0"]), reading, least_labels=1)


def test_a_row_without_a_number_has_nan_where_labels_are_optional(tmp_path):
    optional = ReaderConfig(numbers=True, labels="optional")
    np.testing.assert_equal(
        targets(written(tmp_path / "x.svm", ["", "2.5"]), optional), [np.nan, 2.5]
    )
    table = written(tmp_path / "x.parquet", [1.5, 2.5])  # price is no usual name of a label
    np.testing.assert_equal(targets(table, optional), [np.nan, np.nan])


@pytest.mark.parametrize("to", ["parquet", "libsvm"])
@pytest.mark.parametrize("loss", ["squared_hinge", "squared_error"])
def test_converted_shards_hold_the_same_numbers(tmp_path, to, loss):
    convert(written(tmp_path / "x.svm", FINE), tmp_path / to, to=to, settings=Settings(loss=loss))
    assert targets(tmp_path / to, PLAIN) == FINE


def test_rows_deleted_or_held_out_take_their_numbers_with_them(tmp_path):
    numbers = [float(k) / 8 for k in range(40)]
    path = written(tmp_path / "x.svm", numbers)
    shares = [ReaderConfig(numbers=True, share=share) for share in ((0.0, 0.3), (0.3, 1.0))]
    parts = [targets(path, reading) for reading in shares]
    assert sorted(parts[0] + parts[1]) == numbers
    files = find_shards([str(path)])
    [(_, fingerprint)] = fingerprints(files, PLAIN)
    [file] = excluding(files, [Deletions(str(path), fingerprint, np.arange(0, 40, 2))], PLAIN)
    with ShardRows(file, PLAIN) as shard:
        assert [x for chunk in shard.chunks() for x in chunk.codes] == numbers[1::2]


def test_inspect_describes_numbers_and_says_that_many_labels_are_some(tmp_path):
    numbers = [0.5 * k for k in range(1, 5001)]
    path = written(tmp_path / "x.csv", numbers)
    as_classes, as_numbers = (
        inspect([str(path)], Settings(label="price", loss=loss), Machine())
        for loss in ("squared_hinge", "squared_error")
    )
    assert "--loss squared_error" in as_classes["remark"]
    assert as_classes["table"][1]["reason"] == as_classes["remark"]
    assert as_numbers["labels"] == {}
    assert as_numbers["targets"] == pytest.approx(
        {"mean": np.mean(numbers), "deviation": np.std(numbers), "least": 0.5, "largest": 2500.0}
    )


@pytest.mark.parametrize("length", [3, -1])
def test_lists_of_numbers_are_dense_rows_without_their_zeros(tmp_path, length):
    column = pa.array([[1, 0, 2], [3, 4, 5]], pa.list_(pa.float32(), length))
    path = write_table(tmp_path / "x.parquet", {"embedding": column, "y": [0.5, 1.5]})
    [chunk] = chunks_in(path, reading=PLAIN)
    columns, values = [0, 2, 0, 1, 2], [1, 2, 3, 4, 5]
    assert [array.tolist() for array in chunk.rows[:3]] == [[0, 2, 5], columns, values]
    for rows, place in ((2, "row group 0, row 1"), (1, "row group 1, row 0")):
        write_table(path, {"embedding": [[1.0, 2.0], [1.0]], "y": [0.5, 1.5]}, rows)
        with pytest.raises(DataError, match=f"{place}: 1 numbers in column 'embedding', .* 2"):
            targets(path, PLAIN)


def test_rows_in_memory_and_in_a_memory_map_hold_targets(tmp_path, monkeypatch):
    monkeypatch.setattr("streamtron.data.formats.given.BATCH_VALUES", 6)
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    given, numbers = np.load(tmp_path / "x.npy", mmap_mode="r"), np.array([0.5, 1.5, 2.5, -1.0])
    [held] = MemoryData(given, numbers, []).chunks()
    with standing(given, numbers) as path:
        [chunk] = chunks_in(path, reading=PLAIN)
    assert held.codes.tolist() == chunk.codes.tolist() == numbers.tolist()
    assert held.rows.values.tolist() == chunk.rows.values.tolist() == list(range(1, 12))


@pytest.mark.parametrize("columns", [(0, 1, 2), (5, 7, 9), (2**32 - 4, 2**32 - 3, 2**32 - 2)])
def test_columns_that_every_row_has_are_left_out_where_rows_are_prepared(tmp_path, columns):
    row = " ".join(f"{column}:{value}" for column, value in zip(columns, (1, 2, 3), strict=True))
    (tmp_path / "x.svm").write_text(f"1.5 {row}\n" * 100)
    with data_of(tmp_path, tmp_path / "_c", PLAIN) as data:
        columns_once = 3 * 2
        assert data.bytes == 100 * (8 + 8 + 3 * 4) + columns_once, "squares, numbers, values"
        features = dict(zip(columns, (1.0, 2.0, 3.0), strict=True))
        assert rows_in(data, data.chunks()) == [(1.5, 1.0, features)] * 100


def test_bounds_of_predictions_are_written_rounded_outwards():
    columns = {"prediction": 0.1239, "at_least": 0.1239, "at_most": 0.1231}
    rows = {name: np.array([x]) for name, x in columns.items()}
    assert b"".join(text_predictions([rows], [], TextForm(digits=3))) == b"0.124\t0.123\t0.124\n"
