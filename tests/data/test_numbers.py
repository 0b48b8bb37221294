"""Numbers as labels: read exactly in every format, kept by cache, shards and filters, refused by
place where they are none."""

from __future__ import annotations

import decimal
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from streamtron import convert, generate
from streamtron.core.config import REGRESSION, Machine, Settings
from streamtron.core.errors import DataError
from streamtron.core.feature_names import Hashing
from streamtron.data import MemorySource, ReaderConfig, open_shards
from streamtron.data.deletions import Deletions
from streamtron.data.formats.given import standing
from streamtron.data.labels import Targets
from streamtron.runs.inputs import reading_from_settings
from streamtron.runs.inspect import inspect

PLAIN = ReaderConfig(numbers=True)
PRICE = ReaderConfig(numbers=True, label_column="price")
WORDS = ReaderConfig(numbers=True, names=Hashing(8), weight_column="importance")
FINE = [0.1, -3e-05, 0.0, 1e300, 5e-324, 12345678.123456789, -7.0]
"""Numbers that only a correctly rounded double has."""


def targets(path: Path, reading: ReaderConfig = PLAIN, **options: Any) -> list[float]:
    """The targets of the first reading; those of a second one, from the cache, are the same."""
    with open_shards([str(path)], reading, cache_dir=str(path.parent / "_c"), **options) as source:
        first, second = ([chunk.codes.tobytes() for chunk in source.chunks()] for _ in range(2))
        assert first == second
        assert source.labels == []
        return np.frombuffer(b"".join(first)).tolist()


def as_text(path: Path, numbers: list[float]) -> ReaderConfig:
    path.write_text("".join(f"{number!r} 1:1\n" for number in numbers))
    return PLAIN


def as_vw(path: Path, numbers: list[float]) -> ReaderConfig:
    path.write_text("".join(f"{number!r} 2 |a x:1\n" for number in numbers))
    return WORDS


def as_csv(path: Path, numbers: list[float]) -> ReaderConfig:
    path.write_text("f0,price\n" + "".join(f"1,{number!r}\n" for number in numbers))
    return PRICE


def as_json(path: Path, numbers: list[float]) -> ReaderConfig:
    path.write_text("".join(json.dumps({"f0": 1, "price": x}) + "\n" for x in numbers))
    return PRICE


def table(path: Path, labels: pa.Array) -> ReaderConfig:
    pq.write_table(pa.table({"f0": [1.0] * len(labels), "price": labels}), path)
    return PRICE


def as_parquet(path: Path, numbers: list[float]) -> ReaderConfig:
    return table(path, pa.array(numbers))


FORMATS = {"svm": as_text, "vw": as_vw, "csv": as_csv, "jsonl": as_json, "parquet": as_parquet}


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_gives_the_doubles_themselves_also_from_the_cache(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"x.{ending}"
    assert targets(path, FORMATS[ending](path, FINE)) == FINE


def test_text_is_rounded_as_python_rounds_it(tmp_path: Path) -> None:
    draw = random.Random(0)
    words = [repr(draw.gauss(0, 1) * 10 ** draw.uniform(-8, 8)) for _ in range(3000)]
    words += [f"0.{'0' * draw.randint(0, 9)}{draw.randint(1, 10**18)}" for _ in range(1000)]
    words += [f"{draw.randint(1, 10**9)}{draw.randint(0, 10**9):09}e-{k % 40}" for k in range(1000)]
    for _ in range(1000):  # near a tie
        number = draw.randint(2**52, 2**53) * 0.5 ** draw.randint(1, 40)
        middle = decimal.Decimal(number) + decimal.Decimal(float(np.spacing(number))) / 2
        words.append(format(decimal.Context(draw.choice([17, 18, 60])).plus(middle), "f"))
    path = tmp_path / "x.svm"
    path.write_text("".join(f"{word} 1:1\n" for word in words))
    assert targets(path) == [float(word) for word in words]


@pytest.mark.parametrize(
    "type_", [pa.int8(), pa.uint16(), pa.int64(), pa.float16(), pa.float32(), pa.decimal128(38, 4)]
)
def test_a_column_of_any_number_type_gives_numbers(tmp_path: Path, type_: pa.DataType) -> None:
    numbers = [3.0, 1.0, 2.0]
    path = tmp_path / "x.parquet"
    labels = pa.array([decimal.Decimal(3), 1, 2] if "decimal" in str(type_) else [3, 1, 2], type_)
    assert targets(path, table(path, labels)) == numbers
    assert targets(path, table(path, labels.dictionary_encode())) == numbers


def test_decimals_become_the_nearest_double(tmp_path: Path) -> None:
    words = ["19.99", "0.01", "-1234567890123.4567", "0.3"]
    path = tmp_path / "x.parquet"
    reading = table(path, pa.array([decimal.Decimal(word) for word in words]))
    assert targets(path, reading) == [float(word) for word in words]


@pytest.mark.parametrize(
    ("ending", "write", "sentence"),
    [
        *(
            ("svm", lambda path, word=word: path.write_text(f"1 1:1\n{word} 1:1\n") and PLAIN,
             f"line 2: label {word} is no finite decimal number. A loss of regression takes")
            for word in ("spam", "nan", "inf", "-1e999")
        ),
        ("svm", lambda path: path.write_text("1 1:1\n9007199254740993 1:1\n") and PLAIN,
         "line 2: label 9007199254740993 is an integer beyond 2⁵³ that float64 cannot hold."),
        ("vw", lambda path: path.write_text("1 |a x\n9007199254740993 |a x\n") and WORDS,
         "line 2: label 9007199254740993 is an integer beyond 2⁵³"),
        ("csv", lambda path: path.write_text("f0,price\n1,2.5\n1,cheap\n") and PRICE,
         "line 3: label cheap in column 'price' of type string. A loss of regression takes finite"),
        ("csv", lambda path: path.write_text("f0,price\n1,2.5\n1,inf\n") and PRICE,
         "line 3: label inf in column 'price'"),
        ("csv", lambda path: path.write_text("f0,price\n1,2.5\n1,\n") and PRICE,
         "line 3: null in column 'price'"),
        ("jsonl", lambda path: path.write_text('{"f0":1,"price":1}\n{"f0":1,"price":"x"}\n')
         and PRICE, "line 2: not a file of JSON lines .*number to string"),
        *(
            ("parquet", lambda path, labels=labels: table(path, pa.array(labels)),
             f"row group 0, row 1: {words}")
            for labels, words in [
                ([1.0, float("nan")], "label nan in column 'price'"),
                ([1.0, float("-inf")], "label -inf in column 'price'"),
                ([1.0, None], "null in column 'price'"),
                ([1, 2**53 + 1], "label 9007199254740993 in column 'price'"),
                (["1", "b"], "label b in column 'price' of type string"),
            ]
        ),
        ("parquet", lambda path: table(path, pa.array([True, False])),
         "row 0: label True in column 'price' of type bool"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused_by_its_place(
    tmp_path: Path, ending: str, write: Callable[[Path], ReaderConfig], sentence: str
) -> None:
    path = tmp_path / f"x.{ending}"
    with pytest.raises(DataError, match=sentence):
        targets(path, write(path))


def test_numbers_need_a_row_of_weight_above_0_and_may_all_be_equal(tmp_path: Path) -> None:
    path, reading = tmp_path / "x.svm", ReaderConfig(numbers=True, weights_in_label=True)
    path.write_text("2.5:1 1:1\n2.5:0 1:1\n")
    assert targets(path, reading, least_labels=1) == [2.5, 2.5]
    path.write_text("1.5:0 1:1\n2.5:0 1:1\n")
    with pytest.raises(DataError, match="none of the 2 rows has a label and a weight above 0"):
        targets(path, reading, least_labels=1)


def test_a_row_without_a_number_has_nan_where_labels_are_optional(tmp_path: Path) -> None:
    (tmp_path / "x.svm").write_text("1:1\n2.5 1:1\n")
    optional = ReaderConfig(numbers=True, labels="optional")
    np.testing.assert_equal(targets(tmp_path / "x.svm", optional), [np.nan, 2.5])
    pq.write_table(pa.table({"f0": [1.0, 2.0]}), tmp_path / "y.parquet")
    np.testing.assert_equal(targets(tmp_path / "y.parquet", optional), [np.nan, np.nan])


def test_the_contract_of_a_model_says_that_labels_are_numbers() -> None:
    assert ReaderConfig.from_contract(PLAIN.contract()).numbers
    assert "numbers" not in ReaderConfig().contract()
    assert all(reading_from_settings(Settings(loss=loss)).numbers for loss in REGRESSION)
    assert not reading_from_settings(Settings()).numbers


@pytest.mark.parametrize("to", ["parquet", "libsvm"])
@pytest.mark.parametrize("loss", ["squared_hinge", "squared_error"])
def test_converted_shards_hold_the_same_numbers(tmp_path: Path, to: Any, loss: str) -> None:
    as_text(tmp_path / "x.svm", FINE)
    convert(tmp_path / "x.svm", tmp_path / to, to=to, settings=Settings(loss=loss))
    assert targets(tmp_path / to) == FINE


def test_rows_deleted_or_held_out_take_their_numbers_with_them(tmp_path: Path) -> None:
    path, numbers = tmp_path / "x.svm", [float(k) / 8 for k in range(40)]
    as_text(path, numbers)
    parts = [
        targets(path, ReaderConfig(numbers=True, share=share)) for share in ((0, 0.3), (0.3, 1))
    ]
    assert sorted(parts[0] + parts[1]) == numbers
    assert min(map(len, parts)) > 5
    with open_shards([str(path)], PLAIN, cache_dir=None) as source:
        [(_, fingerprint)] = source.fingerprints()
        source.exclude([Deletions(str(path), fingerprint, np.arange(0, 40, 2))])
        assert [x for chunk in source.chunks() for x in chunk.codes] == numbers[1::2]


def test_arrays_in_memory_hold_targets() -> None:
    source = MemorySource(np.eye(3), np.array([0.5, -1.0, 2.5]), [])
    assert [chunk.codes.tolist() for chunk in source.chunks()] == [[0.5, -1.0, 2.5]]


@pytest.mark.parametrize("kind", ["text", "dense"])
def test_generated_numbers_go_with_the_rows_of_the_classes(tmp_path: Path, kind: str) -> None:
    columns = 2000 if kind == "text" else 20
    read = {}
    for target in ("class", "number"):
        place = tmp_path / target
        generate(str(place), rows=5000, columns=columns, seed=2, shards=2, kind=kind, target=target)
        reading = ReaderConfig(numbers=target == "number")
        with open_shards([str(place)], reading, cache_dir=None) as source:
            chunks = list(source.chunks())
        rows = [(chunk.rows.values, chunk.rows.indices, chunk.rows.indptr) for chunk in chunks]
        blocks = [sparse.csr_array(row, (len(row[2]) - 1, columns + 1)) for row in rows]
        read[target] = sparse.vstack(blocks), np.concatenate([chunk.codes for chunk in chunks])
    (features, _), (same, numbers) = read["class"], read["number"]
    assert (features != same).nnz == 0
    usual = np.abs(numbers - np.median(numbers)) < 5  # outliers are drawn by chance
    assert 0.9 < numbers[usual].std() < 1.4
    rows, numbers = same[usual], numbers[usual] - numbers[usual].mean()
    weights = sparse.linalg.lsqr(rows, numbers, damp=0.1)[0]
    left = (numbers - rows @ weights).std()
    assert left < 0.6


def test_inspect_describes_numbers_and_says_that_many_labels_are_a_quantity(tmp_path: Path) -> None:
    path, numbers = tmp_path / "x.csv", [0.5 * k for k in range(1, 201)]
    as_csv(path, numbers)
    looked = [
        inspect([str(path)], Settings(label="price", loss=loss), Machine())
        for loss in ("squared_hinge", "squared_error")
    ]
    assert "--loss squared_error" in looked[0]["remark"]
    assert looked[0]["table"][1]["reason"] == looked[0]["remark"]
    assert looked[1]["labels"] == {}
    assert looked[1]["targets"] == pytest.approx(
        {"mean": np.mean(numbers), "deviation": np.std(numbers), "least": 0.5, "largest": 100.0}
    )
    halves = Targets().plus(np.array(numbers[:7])).plus(np.array(numbers[7:]))
    assert halves.described() == pytest.approx(looked[1]["targets"])


@pytest.mark.parametrize("fixed", [True, False])
def test_lists_of_numbers_are_dense_rows_without_their_zeros(tmp_path: Path, fixed: bool) -> None:
    values = np.array([[1, 0, 2], [3, 4, 5]], np.float32)
    column = pa.array(values.tolist(), pa.list_(pa.float32(), 3 if fixed else -1))
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"embedding": column, "y": [0.5, 1.5]}), path)
    with open_shards([str(path)], PLAIN, cache_dir=None) as source:
        [chunk] = source.chunks()
    assert chunk.rows.indptr.tolist() == [0, 2, 5]
    assert chunk.rows.indices.tolist() == [0, 2, 0, 1, 2]
    assert chunk.rows.values.tolist() == [1, 2, 3, 4, 5]
    ragged = pa.array([[1.0, 2.0], [1.0]])
    pq.write_table(pa.table({"embedding": ragged, "y": [0.5, 1.5]}), path)
    with pytest.raises(DataError, match=r"row 1: 1 numbers in column 'embedding', and .* before 2"):
        targets(path)


def test_a_memory_map_is_read_a_batch_at_a_time(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    given = np.load(tmp_path / "x.npy", mmap_mode="r")
    numbers = np.array([0.5, 1.5, 2.5, -1.0])
    with (
        pytest.MonkeyPatch.context() as patch,
        standing(given, numbers) as path,
    ):
        patch.setattr("streamtron.data.formats.given.BATCH_VALUES", 6)
        with open_shards([path], PLAIN, cache_dir=None) as source:
            [chunk] = source.chunks()
    assert chunk.codes.tolist() == numbers.tolist()
    assert chunk.rows.values.tolist() == list(range(1, 12))
