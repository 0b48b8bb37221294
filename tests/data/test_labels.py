"""Labels of rows: several a row, none, names, numbers; in text, tables, memory, cache, commands."""

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.feature_names import Hashing
from streamtron.core.rows import Label
from streamtron.data import (
    MemoryData,
    ReaderConfig,
    RowBatch,
)
from streamtron.data.flat_file import read_prepared
from streamtron.data.formats import tables
from streamtron.data.formats.arrow import ArrowReader
from streamtron.data.formats.given import standing
from streamtron.data.formats.parquet import ParquetReader
from streamtron.runs.convert import convert
from streamtron.runs.inspect import inspect
from tests.helpers import shard_rows
from tests.helpers.layouts import write_table
from tests.helpers.libsvm_rows import batches
from tests.helpers.models import refused
from tests.helpers.processes import here
from tests.helpers.shard_rows import chunks_in, data_of, rows_in, small_blocks

SEVERAL = ReaderConfig(multilabel=True)

Row = tuple[list[Label], dict[int, float]]
"""labels as written, {column: value}"""


def rows_of(batch: RowBatch) -> list[Row]:
    """A batch as plain rows."""
    return [
        (label if isinstance(label, list) else [label], dict(zip(columns, values, strict=True)))
        for label, columns, values, _ in shard_rows.rows_of([batch])
    ]


LISTS: list[list[Any]] = [[7, 1, 5], [], [5]]
TYPES: list[tuple[pa.DataType, Callable[[Any], Any], Callable[[Any], Label]]] = [
    (pa.list_(pa.int8()), int, float),
    (pa.large_list(pa.uint64()), int, float),
    (pa.list_(pa.float32()), float, float),
    (pa.list_(pa.string()), str, str),
    (pa.large_list(pa.large_string()), str, str),
    (pa.list_(pa.dictionary(pa.int32(), pa.string())), str, str),
    (pa.list_(pa.dictionary(pa.int8(), pa.int64())), int, float),
]


def table(labels, column="labels"):
    rows = len(labels)
    return pa.table(
        {"indices": [[k] for k in range(rows)], "values": [[0.5]] * rows, column: labels}
    )


@pytest.fixture(params=["parquet", "arrow"])
def read(request, tmp_path, monkeypatch):
    """Write a table, or one of such a column of labels, and read its labels."""
    monkeypatch.setattr(tables, "BATCH_ROWS", 2)
    kind = {"parquet": ParquetReader, "arrow": ArrowReader}[request.param]

    def read(labels, /, **reading):
        given = labels if isinstance(labels, pa.Table) else table(labels)
        path = write_table(tmp_path / f"x.{request.param}", given)
        config = ReaderConfig(**{"multilabel": True, **reading})
        parts = list(kind(str(path), path.name, config).batches())
        assert not config.multilabel or all(part.code_offsets is not None for part in parts)
        return [own for part in parts for own, _ in rows_of(part)]

    return read


@pytest.mark.parametrize(("type_", "write", "label"), TYPES, ids=[str(t[0]) for t in TYPES])
def test_lists_of_labels_of_every_type_are_read_alike(read, type_, write, label):
    found = read(pa.array([[write(item) for item in row] for row in LISTS], type_))
    assert found == [[label(item) for item in row] for row in LISTS]
    assert [type(item) for own in found for item in own] == [label] * 4


def test_lists_of_booleans_empty_lists_and_single_labels_are_read(read):
    booleans = [[True, False], [False, True], [True, False]]
    assert read(pa.array(booleans, pa.list_(pa.bool_(), 2))) == booleans
    for type_ in (None, pa.list_(pa.null()), pa.list_(pa.string())):
        assert read(pa.array([[], [], []], type_)) == [[], [], []]
    assert read(pa.array(["a", "b", "a"])) == [["a"], ["b"], ["a"]]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (pa.array([["a"], None]), "row 1: null in column 'labels'"),
        (pa.array(["a", None]), "row 1: null in column 'labels'"),
        (pa.array([[], ["a", None]]), "row 1: a null in the list of column 'labels'"),
        (pa.array([[], ["a", "b", "a"]]), "row 1: label 'a' occurs twice. Write each label once."),
        (pa.array([[0.0], [1.0, 0.0, -0.0]]), "row 1: label 0.0 occurs twice"),
        (pa.array([[], [1.0, np.nan]]), "row 1: label nan in column 'labels'. Numbers as"),
        (pa.array([[3, 2**53]]), "row 0: label 9007199254740992 in column 'labels'. Numbers"),
    ],
)
def test_a_bad_row_of_labels_is_refused_with_its_place(read, labels, sentence):
    assert sentence in refused(lambda: read(labels))


def test_a_null_or_no_column_is_no_label_where_labels_are_optional(read):
    for labels in ([["a"], None, ["b"]], ["a", None, "b"]):
        assert read(pa.array(labels), labels="optional") == [["a"], [], ["b"]]
    bare = table(pa.array([[1]] * 3)).drop_columns("labels")
    assert read(bare, labels="optional") == [[], [], []]


def test_a_column_of_single_labels_goes_before_one_of_lists_unless_a_row_has_several(read):
    two = table(pa.array([[1], [2]])).append_column("y", pa.array([3, 4]))
    assert read(two, multilabel=False) == [[3.0], [4.0]]
    assert "'labels' and 'y' could all be the labels" in refused(lambda: read(two))
    plain = table(pa.array([[1.0], [2.0, 3.0]])).drop_columns("values")
    assert read(plain) == [[1.0], [2.0, 3.0]], "they are not taken for values"


def as_text(rows: Sequence[Row]) -> str:
    return "".join(
        f"{','.join(map(str, own))} {' '.join(f'{c}:{v}' for c, v in sorted(row.items()))}\n"
        for own, row in rows
    )


def test_a_chunk_holds_the_very_labels_of_its_rows_which_take_a_byte_each_where_prepared(tmp_path):
    rows = [([["b", "c", "a"][j] for j in range(k % 4)], {k: 1}) for k in range(12)]
    (tmp_path / "0.svm").write_text(as_text(rows[:7]))
    (tmp_path / "1.svm").write_text(as_text(rows[7:]))
    with small_blocks(), data_of(tmp_path, tmp_path / "_cache", SEVERAL) as source:
        chunks = [*source.chunks(), *source.chunks([[2], [1]])]
    sizes = [read_prepared(str(file)).bytes for file in (tmp_path / "_cache").glob("*.cache")]
    assert sum(sizes) == 12 * 4 + 18 + 12 * 2, "the numbers, codes and columns of rows of ones"
    assert [len(chunk) for chunk in chunks] == [5, 2, 5, 5, 2]
    for chunk in chunks:
        found = shard_rows.labels_of(chunk.codes, chunk.code_offsets, source.labels)
        assert found == [own for own, _ in rows[slice(*chunk.ranges[0])]]
        assert not chunk.code_offsets.flags.writeable
        assert not chunk.codes.flags.writeable


CONVERTED: list[Row] = [
    (["C11", "CCAT"], {1: 0.5, 3: 1.0}),
    ([], {2: 1.0}),
    (["größer"], {}),
    (["CCAT"], {1: 2.0}),
]
NUMBERED: list[Row] = [([float(len(name)) for name in own], row) for own, row in CONVERTED]


@pytest.mark.parametrize(
    ("rows", "setting", "type_"),
    [
        (CONVERTED, "multilabel", pa.list_(pa.string())),
        (NUMBERED, "multilabel", pa.list_(pa.float64())),
        ([(["C11"], {1: 0.5}), (["CCAT"], {2: 0.5})], "multiclass", pa.string()),
    ],
)
def test_shards_converted_there_and_back_hold_the_same_rows(tmp_path, rows, setting, type_):
    (tmp_path / "a.svm").write_text(as_text(rows))
    given = Settings(**{setting: True}, index_base=1)
    convert(tmp_path / "a.svm", tmp_path / "p", to="parquet", settings=given)
    assert pq.read_schema(tmp_path / "p" / "part-00000.parquet").field("label").type == type_
    convert(tmp_path / "p", tmp_path / "t", to="libsvm", settings=Settings(**{setting: True}))
    text = (tmp_path / "t" / "part-00000.svm").read_bytes()
    [batch] = batches(text, ReaderConfig(**{setting: True}))
    assert rows_of(batch) == rows


@pytest.mark.parametrize(
    ("labels", "indices", "sentence"),
    [
        *(
            ([["a"], [name]], [[1], [2]], f"row 1: label '{name}' is a string")
            for name in ("two words", "b,c", "17")
        ),
        ([["a"], []], [[1], []], "row 1: neither a label nor a nonzero"),
    ],
)
def test_what_text_cannot_say_is_not_converted_to_it(tmp_path, labels, indices, sentence):
    columns = {"labels": pa.array(labels), "indices": pa.array(indices, pa.list_(pa.int64()))}
    path, given = write_table(tmp_path / "a.parquet", columns), Settings(multilabel=True)
    message = refused(lambda: convert(path, tmp_path / "t", to="libsvm", settings=given))
    assert sentence in message
    assert message.endswith("Convert to Parquet.")


def test_weights_beside_several_labels_are_converted_to_parquet_and_not_to_text(tmp_path):
    whole = table(pa.array([["a"], []])).append_column("w", pa.array([0.5, 2.0]))
    pq.write_table(whole, tmp_path / "a.parquet")
    given = Settings(multilabel=True, weight="w")
    with pytest.raises(SettingsError, match="libsvm text has no row weights beside several"):
        convert(tmp_path / "a.parquet", tmp_path / "t", to="libsvm", settings=given)
    convert(tmp_path / "a.parquet", tmp_path / "p", to="parquet", settings=given)
    assert pq.read_table(tmp_path / "p" / "part-00000.parquet")["weight"].to_pylist() == [0.5, 2.0]


def test_the_type_of_labels_is_told_by_the_first_row_that_has_one(tmp_path):
    rows = 250_000  # more than one batch
    (tmp_path / "a.svm").write_text(" 1:1\n" * rows + "news 2:1\n")
    convert(tmp_path / "a.svm", tmp_path / "p", to="parquet", settings=Settings(multilabel=True))
    assert pq.read_table(tmp_path / "p")["label"].to_pylist() == [[]] * rows + [["news"]]


def test_inspect_counts_the_rows_of_every_label_and_those_without(tmp_path):
    (tmp_path / "a.svm").write_text("".join(f"t{k},all 1:1\n" for k in range(30)) + "t0\n 2:1\n")
    with small_blocks():
        facts = json.loads(here(tmp_path, "inspect", "a.svm", "--multilabel", "--json").stdout)
        shown = here(tmp_path, "inspect", "a.svm", "--multilabel").stdout
    assert facts["labels"] == {"t0": 2, "all": 30, **{f"t{k}": 1 for k in range(1, 30)}}
    assert facts["unlabelled_rows"] == 1
    assert shown.index("label all") < shown.index("label t0") < shown.index("… and 11 more")


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


def test_lists_as_vectors_are_as_long_in_every_batch(tmp_path):
    table = {"embedding": [[1.0, 2.0], [1.0]], "y": [0.5, 1.5]}
    path = write_table(tmp_path / "x.parquet", table, 1)
    with pytest.raises(DataError, match="row group 1, row 0: 1 numbers in column 'embedding'"):
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
