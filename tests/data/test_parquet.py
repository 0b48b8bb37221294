"""The Parquet reader: what it accepts, how it names what it refuses, what damage it notices."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamtron.core.errors import DataError
from streamtron.data.formats import tables
from streamtron.data.formats.columns import Columns
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.formats.table_rows import make_batch
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import RowBatch
from tests.helpers.shard_rows import rows_of

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write columns as a Parquet file; gives its path."""

    def write(columns: dict[str, Any] | pa.Table, **options: Any) -> str:
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        path = str(tmp_path / "rows.parquet")
        pq.write_table(table, path, write_page_checksum=True, **options)
        return path

    return write


def read(path: str, **reading: Any) -> list[RowBatch]:
    return list(ParquetReader(path, "rows.parquet", ReaderConfig(**reading)).batches())


def refusal(path: str, **reading: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **reading)
    return str(caught.value)


def sample(**changed: Any) -> dict[str, Any]:
    """Two good rows, some columns replaced; None takes one away."""
    columns: dict[str, Any] = {
        "indices": pa.array([[0, 3], [1]], pa.list_(pa.int32())),
        "values": pa.array([[0.5, 2.0], [1.0]], pa.list_(pa.float32())),
        "label": [1, -1],
    }
    return {name: column for name, column in (columns | changed).items() if column is not None}


# What is accepted ------------------------------------------------------------------------------

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTEGERS += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]


def test_numbers_of_every_type_arrive_as_uint32_and_float32(write: Write) -> None:
    for item in (*INTEGERS, *FLOATS):
        numbers = pa.array(np.array([3, 127, 1])).cast(item)
        lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), numbers)
        keys = lists if item in INTEGERS else sample()["indices"]
        [batch] = read(write(sample(indices=keys, values=lists)))
        assert batch.values is not None
        assert (batch.indices.dtype, batch.values.dtype) == (np.uint32, np.float32)
        assert batch.values.tolist() == [3, 127, 1]
        assert batch.indices.tolist() == ([3, 127, 1] if item in INTEGERS else [0, 3, 1])


@pytest.mark.parametrize("list_type", [pa.list_, pa.large_list, lambda item: pa.list_(item, 2)])
def test_lists_large_lists_and_fixed_size_lists_hold_the_same_rows(
    write: Write, list_type: Any
) -> None:
    indices = pa.array([[0, 3], [1, 2], [4, 9]], list_type(pa.int64()))
    values = pa.array([[1, 2], [3, 4], [5, 6]], list_type(pa.float64()))
    path = write({"indices": indices, "values": values, "y": [1, 2, 3]})
    assert pq.read_schema(path).field("indices").type == indices.type
    assert rows_of(read(path)) == [
        (1.0, [0, 3], [1.0, 2.0], 1.0),
        (2.0, [1, 2], [3.0, 4.0], 1.0),
        (3.0, [4, 9], [5.0, 6.0], 1.0),
    ]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (pa.array([3, -1, 3], pa.int8()), [3.0, -1.0, 3.0]),
        (pa.array([0.5, -0.0, 0.0], pa.float32()), [0.5, 0.0, 0.0]),
        (pa.array([True, False, True]), [True, False, True]),
        (pa.array(["spam", "ham", ""]), ["spam", "ham", ""]),
        (pa.array(["spam", "ham", "spam"], pa.large_string()), ["spam", "ham", "spam"]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["b", "a", "b"]),
        (pa.array([7, 5, 7]).dictionary_encode(), [7.0, 5.0, 7.0]),
    ],
    ids=["int8", "float32", "bool", "string", "large_string", "dictionary", "dictionary of int64"],
)
def test_labels_keep_their_kind_and_codes_follow_the_order_of_appearance(
    write: Write, labels: pa.Array, wanted: list[Any]
) -> None:
    [batch] = read(write({"indices": pa.array([[0], [1], [2]]), "y": labels}))
    assert [batch.classes[code] for code in batch.codes] == wanted
    assert [type(label) for label in batch.classes] == [type(wanted[0])] * len(batch.classes)
    assert batch.classes == list(dict.fromkeys(wanted))


def test_a_file_without_values_has_all_values_1_and_says_so_by_none(write: Write) -> None:
    [batch] = read(write(sample(values=None)))
    assert batch.values is None


def test_unsorted_columns_are_sorted_with_their_values_and_rows_without_nonzeros_are_kept(
    write: Write,
) -> None:
    path = write(
        {
            "indices": pa.array([[], [9, 2, 5], [], [3, 1], []], pa.list_(pa.int64())),
            "values": pa.array([[], [9, 2, 5], [], [3, 1], []], pa.list_(pa.float64())),
            "label": [1, 2, 3, 4, 5],
        }
    )
    assert [(label, columns, values) for label, columns, values, _ in rows_of(read(path))] == [
        (1.0, [], []),
        (2.0, [2, 5, 9], [2.0, 5.0, 9.0]),
        (3.0, [], []),
        (4.0, [1, 3], [1.0, 3.0]),
        (5.0, [], []),
    ]


def test_a_weight_is_read_only_when_it_is_named(write: Write) -> None:
    path = write(sample(weight=pa.array([3, 0], pa.int16())))
    assert read(path)[0].weights is None
    [batch] = read(path, weight_column="weight")
    assert batch.weights is not None
    assert batch.weights.dtype == np.float64
    assert batch.weights.tolist() == [3.0, 0.0]


def test_named_columns_are_taken_dots_in_names_included_and_others_are_never_decoded(
    write: Write,
) -> None:
    table = {
        "my.rows": pa.array([[5], [6]]),
        "my": pa.array([[0.25], [0.75]]),
        "label.x": ["a", "b"],
        "indices": pa.array([[None], [None]], pa.list_(pa.int64())),
        "struct": pa.array([{"label": 1}, {"label": 2}]),
    }
    path = write(table)
    named = {"features": ("my.rows",), "values_column": "my", "label_column": "label.x"}
    assert rows_of(read(path, **named)) == [("a", [5], [0.25], 1.0), ("b", [6], [0.75], 1.0)]


def test_with_optional_labels_a_missing_column_and_a_null_both_give_code_minus_1(
    write: Write,
) -> None:
    path = write(sample(label=pa.array([None, "a"])))
    assert [row[0] for row in rows_of(read(path, labels="optional"))] == [None, "a"]
    path = write(sample(label=pa.array([None, 7])))
    assert [row[0] for row in rows_of(read(path, labels="optional"))] == [None, 7.0]
    [batch] = read(write(sample(label=None)), labels="optional", label_column="y")
    assert batch.codes.tolist() == [-1, -1]
    assert batch.classes == []


def test_the_largest_column_number_and_integers_up_to_2_to_the_24_pass(write: Write) -> None:
    path = write(
        {"indices": [[2**32 - 2]], "values": [[-(2**24)]], "y": [0]},
    )
    assert rows_of(read(path)) == [(0.0, [2**32 - 2], [-(2.0**24)], 1.0)]


def test_columns_come_as_numbered_whatever_the_base(write: Write) -> None:
    path = write(sample(indices=pa.array([[1, 3], [2]])))
    for base in ("auto", 0, 1):
        assert read(path, index_base=base)[0].indices.tolist() == [1, 3, 2]


# Batches ----------------------------------------------------------------------------------------


def test_a_row_is_named_by_its_row_group_and_its_place_in_it(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BATCH_ROWS", 3)
    path = write({"indices": [[k] for k in range(20)], "y": list(range(20))}, row_group_size=8)
    places = [batch.place(i) for batch in read(path) for i in range(len(batch.codes))]
    assert places == [f"rows.parquet, row group {k // 8}, row {k % 8}" for k in range(20)]
    indices = [[k] for k in range(20)]
    indices[13] = [-4]
    assert refusal(write({"indices": indices, "y": list(range(20))}, row_group_size=8)) == (
        "rows.parquet, row group 1, row 5: column -4. Column numbers run from 0 to 4294967294."
    )


def test_one_giant_row_group_is_read_in_bounded_memory(write: Write) -> None:
    rows, length = 40_000, 100
    offsets = pa.array(np.arange(0, rows * length + 1, length, dtype=np.int32))
    numbers = np.tile(np.arange(length, dtype=np.uint32), rows)
    indices = pa.ListArray.from_arrays(offsets, pa.array(numbers))
    values = pa.ListArray.from_arrays(
        offsets, pa.array(np.random.default_rng(0).random(len(numbers)))
    )
    path = write({"indices": indices, "values": values, "y": np.zeros(rows)}, row_group_size=rows)
    decoded = indices.nbytes + values.nbytes
    del indices, values, numbers
    before = pa.total_allocated_bytes()
    peak = 0
    tracemalloc.start()
    for _ in ParquetReader(path, "rows", ReaderConfig()).batches():
        peak = max(peak, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert peak < decoded * 0.6


# What is refused, and in which words -------------------------------------------------------------

FILL, CHANGE = "Fill it in or remove the row.", "Remove it or fill it in."
INTEGERS_FIT = (
    "is an integer beyond 2²⁴ that float32 cannot hold. Rescale its column, or make identifiers "
    "columns of their own."
)
NUMBERS_FIT = "in column 'label'. Numbers as labels are finite, integers below 2**53."
RUN = "Column numbers run from 0 to 4294967294."


@pytest.mark.parametrize(
    ("changed", "row", "sentence"),
    [
        ({"indices": pa.array([[1], None])}, 1, f"null in column 'indices'. {FILL}"),
        ({"values": pa.array([[1.0, 2.0], None])}, 1, f"null in column 'values'. {FILL}"),
        ({"indices": pa.array([[1, 2], [None]])}, 1,
         f"a null in the list of column 'indices'. {CHANGE}"),
        ({"values": pa.array([[1.0, None], [2.0]])}, 0,
         f"a null in the list of column 'values'. {CHANGE}"),
        ({"label": pa.array([1, None])}, 1, f"null in column 'label'. {FILL}"),
        ({"indices": pa.array([[0, 3, 4], [1]])}, 0,
         "3 features in 'indices' and 2 values in 'values'. A row needs as many of one as of the "
         "other."),
        ({"indices": pa.array([[0, 3], [-1]])}, 1, f"column -1. {RUN}"),
        ({"indices": pa.array([[0, 3], [2**32 - 1]])}, 1, f"column 4294967295. {RUN}"),
        ({"indices": pa.array([[0, 3], [2**64 - 1]], pa.list_(pa.uint64()))}, 1,
         f"column 18446744073709551615. {RUN}"),
        ({"indices": pa.array([[3, 3], [1]])}, 0,
         "column 3 occurs twice. Add the values up or remove one."),
        ({"values": pa.array([[0.5, 2.0], [float("nan")]])}, 1,
         "value nan. Values must be finite; remove it or the row."),
        ({"values": pa.array([[0.5, -np.inf], [1]], pa.list_(pa.float32()))}, 0,
         "value -inf. Values must be finite; remove it or the row."),
        ({"values": pa.array([[0.5, 1e39], [1.0]])}, 0,
         "value 1e+39 overflows float32. Rescale the column."),
        ({"values": pa.array([[1, 2**24 + 1], [1]])}, 0, f"value 16777217 {INTEGERS_FIT}"),
        ({"values": pa.array([[1, -(2**63)], [1 - 2**63]])}, 1,
         f"value -9223372036854775807 {INTEGERS_FIT}"),
        ({"values": pa.array([[1, 2**63], [2**63 + 1]], pa.list_(pa.uint64()))}, 1,
         f"value 9223372036854775809 {INTEGERS_FIT}"),
        ({"label": [1.0, float("nan")]}, 1, f"label nan {NUMBERS_FIT}"),
        ({"label": [2**53 + 1, 1]}, 0, f"label 9007199254740993 {NUMBERS_FIT}"),
        *(
            ({"w": [1.0, weight]}, 1, f"weight {weight}. Weights are at least 0 and at most 1e30.")
            for weight in (-1.0, float("nan"), float("inf"))
        ),
        ({"w": [None, 1.0]}, 0, f"null in column 'w'. {FILL}"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_in_a_sentence_that_names_it(
    write: Write, changed: dict[str, Any], row: int, sentence: str
) -> None:
    place = f"rows.parquet, row group 0, row {row}: "
    weight = "w" if "w" in changed else None
    assert refusal(write(sample(**changed)), weight_column=weight) == place + sentence


def test_a_null_that_hides_in_a_dictionary_is_refused() -> None:
    labels = pa.DictionaryArray.from_arrays([0, 1], ["a", None])
    pairs = pa.StructArray.from_arrays([labels, pa.array([1.0, 2.0])], ["index", "value"])
    batch = pa.record_batch(
        {"i": [[1], [2]], "p": pa.ListArray.from_arrays([0, 1, 2], pairs), "y": labels}
    )
    assert labels.null_count == 0
    for columns, place in (
        (Columns("y", "lists", ("i",)), "null in column 'y'"),
        (Columns(None, "pairs of names", ("p",)), "a null in the list of column 'p'"),
    ):
        with pytest.raises(DataError, match=f"f, row group 4, row 31: {place}"):
            make_batch(batch, columns, Spot("f", "row group 4", 30), ReaderConfig())


def test_what_pyarrow_cannot_read_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    polars.DataFrame({"f0": [1, 2]}, schema={"f0": polars.Int128}).write_parquet(path)
    assert refusal(str(path)).startswith("rows.parquet: holds what pyarrow cannot read (Integers")


def test_a_repeated_column_is_found_behind_other_rows_that_merely_need_sorting(
    write: Write,
) -> None:
    path = write({"indices": [[], [5, 1], [7, 2, 7], []], "y": [1, 2, 3, 4]})
    assert refusal(path).startswith("rows.parquet, row group 0, row 2: column 7 occurs twice.")


def test_column_0_in_a_file_declared_1_based_is_refused(write: Write) -> None:
    indices = [[1]] * 17 + [[0]]
    assert refusal(write({"indices": indices, "y": [1] * 18}), index_base=1) == (
        "rows.parquet, row group 0, row 17: column 0 in a file declared 1-based. "
        "Use --index-base 0."
    )


@pytest.mark.parametrize(
    ("changed", "reading", "sentence"),
    [
        ({"label": None, "row": [1, 2]}, {},
         "no column for the labels, looked for 'label', 'labels', 'y', 'target', 'class'. Name it "
         "with --label NAME (columns there: indices list<element: int32>, values list<element: "
         "float>, row int64)."),
        ({"y": [1, 2]}, {},
         "'label' and 'y' could all be the labels. Say which with --label NAME, a name that occurs "
         "once (columns there: "),
        ({"indices": None, "index": [0, 1]}, {},  # pandas' own index is no list
         "no column for the features, looked for lists, maps or vectors called 'features', "
         "'indices', 'index', 'columns', 'feature_indices', 'features_indices', 'tokens', 'words', "
         "'terms', 'embedding', 'embeddings' and for numbers called 'f0', 'f1', … Name it with "
         "--features NAME, or columns of numbers with --features NAME,NAME,… or --features \"*\" "
         "(columns there: values list<element: float>, label int64, index int64). Columns of any "
         "kinds become features by --columns 'values:vector' --columns 'index:number', documents "
         "by --text NAME; streamtron inspect rows.parquet says what each is good for."),
        *(
            ({"values": None, name: column}, {},
             "features in the lists 'indices', and no list of numbers of a usual name for their "
             "values. Name it with --values NAME, or say --values \"\" if all are 1 (columns ")
            for name, column in (("tfidf", pa.array([[0.5, 1.0], [2.0]])), ("values", [0.5, 1.0]))
        ),
        ({}, {"weight_column": "w"},
         "no column for the row weights, looked for 'w'. Name it with --weight NAME (columns "),
        ({}, {"label_column": "values"},
         "column 'values' of type list<element: float> holds several labels a row. Use "
         "--multilabel, or name a column of single ones with --label NAME (columns there: "),
    ],
    ids=["no label", "two labels", "no indices", "unusual", "values no list", "no weight", "type"],
)  # fmt: skip
def test_a_column_that_is_absent_ambiguous_or_of_a_wrong_type_is_refused_with_those_there(
    write: Write, changed: dict[str, Any], reading: dict[str, Any], sentence: str
) -> None:
    assert refusal(write(sample(**changed)), **reading).startswith(f"rows.parquet: {sentence}")


def test_a_name_that_occurs_twice_in_the_file_is_refused_even_when_named(write: Write) -> None:
    columns = [pa.array([[0], [1]]), pa.array([1, 2]), pa.array([3, 4])]
    path = write(pa.Table.from_arrays(columns, ["indices", "y", "y"]))
    assert "2 columns 'y' could all be the labels" in refusal(path, label_column="y")


# Damage ----------------------------------------------------------------------------------------


def test_what_is_no_parquet_file_or_a_part_of_one_is_refused_by_name(
    write: Write, tmp_path: Path
) -> None:
    whole = Path(write(sample())).read_bytes()
    path = tmp_path / "bad.parquet"
    for content in (b"", b"1 1:1\n", whole[:-1], whole[: len(whole) // 2], whole[20:]):
        path.write_bytes(content)
        sentence = refusal(str(path))
        assert sentence.startswith("rows.parquet: not a Parquet file, or a damaged one (")
        assert sentence.endswith("). Write or fetch it again.")


@pytest.mark.parametrize(
    ("compression", "page"), [("none", "1.0"), ("snappy", "2.0"), ("zstd", "1.0")]
)
def test_one_flipped_bit_in_a_data_page_is_detected(
    write: Write, compression: str, page: str
) -> None:
    random = np.random.default_rng(0)
    path = write(
        {
            "indices": [sorted(random.choice(1000, 20, replace=False)) for _ in range(300)],
            "values": [random.random(20).astype(np.float32) for _ in range(300)],
            "y": random.integers(0, 2, 300),
        },
        compression=compression,
        data_page_version=page,
    )
    good = Path(path).read_bytes()
    column = pq.read_metadata(path).row_group(0).column(1)
    end = (
        column.data_page_offset
        + column.total_compressed_size
        - (column.data_page_offset - (column.dictionary_page_offset or column.data_page_offset))
    )
    read(path)  # good as written
    for position in random.integers(end - 2000, end, 40):  # the body of the values' last page
        bad = bytearray(good)
        bad[position] ^= 1 << int(random.integers(8))
        Path(path).write_bytes(bad)
        assert "damaged" in refusal(path)


def test_a_flipped_bit_anywhere_is_either_refused_or_changes_nothing(write: Write) -> None:
    path = write(sample(), compression="zstd")
    good, rows = Path(path).read_bytes(), rows_of(read(path))
    for position in range(0, len(good), 3):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        Path(path).write_bytes(bad)
        try:
            assert rows_of(read(path)) == rows
        except DataError:
            continue


def test_a_footer_whose_row_counts_contradict_each_other_is_refused(write: Write) -> None:
    path = write(sample())
    good = Path(path).read_bytes()
    contradictions = 0
    for position in range(len(good) - 8 - int.from_bytes(good[-8:-4], "little"), len(good) - 8):
        bad = bytearray(good)
        bad[position] ^= 4
        Path(path).write_bytes(bad)
        try:
            metadata = pq.read_metadata(path)
            rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        except (pa.ArrowException, OSError):
            continue
        if sum(rows) != metadata.num_rows:
            contradictions += 1
            assert "damaged" in refusal(path)
    assert contradictions > 0
