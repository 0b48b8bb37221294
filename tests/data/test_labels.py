"""Labels of rows: several a row, none, names; in text, tables, memory, cache, targets, commands."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from streamtron.cli import main
from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import Chunk, Label, make_rows
from streamtron.data import ReaderConfig, RowBatch, cache_files, open_shards
from streamtron.data.formats.arrow import ArrowReader
from streamtron.data.formats.libsvm import LibsvmReader
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.row_batch import slice_batch
from streamtron.runs.convert import convert
from streamtron.runs.inputs import reading_from_settings
from streamtron.solver.targets import TargetRule
from tests.helpers import shard_rows
from tests.helpers.shard_rows import small_blocks
from tests.helpers.sources import RowsInMemory

SEVERAL = ReaderConfig(multilabel=True)
NAMED = ReaderConfig(multiclass=True)

Row = tuple[list[Label], dict[int, float]]
"""labels as written, {column: value}"""


def rows_of(batch: RowBatch) -> list[Row]:
    """A batch as plain rows."""
    return [
        (label if isinstance(label, list) else [label], dict(zip(columns, values, strict=True)))
        for label, columns, values, _ in shard_rows.rows_of([batch])
    ]


def read_text(
    directory: Path, text: str | bytes, reading: ReaderConfig = SEVERAL, batch_bytes: int = 1 << 20
) -> list[RowBatch]:
    path = directory / "x.svm"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(LibsvmReader(str(path), "x.svm", reading, batch_bytes=batch_bytes).batches())


def text_rows(*given: Any, **more: Any) -> list[Row]:
    return [row for batch in read_text(*given, **more) for row in rows_of(batch)]


# --- tables ---

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


def table(labels: pa.Array, column: str = "labels") -> pa.Table:
    rows = len(labels)
    return pa.table(
        {"indices": [[k] for k in range(rows)], "values": [[0.5]] * rows, column: labels}
    )


def read_parquet(directory: Path, column: pa.Array, **reading: Any) -> list[RowBatch]:
    path = directory / "x.parquet"
    pq.write_table(table(column), path)
    given = ReaderConfig(**{"multilabel": True, **reading})
    return list(ParquetReader(str(path), "x.parquet", given).batches())


def read_arrow(directory: Path, column: pa.Array, **reading: Any) -> list[RowBatch]:
    path = directory / "x.arrow"
    whole = table(column)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
        writer.write_table(whole)
    given = ReaderConfig(**{"multilabel": True, **reading})
    with patch("streamtron.data.formats.tables.BATCH_ROWS", 2):
        return list(ArrowReader(str(path), "x.arrow", given).batches())


BOTH = pytest.mark.parametrize("read", [read_parquet, read_arrow])


@BOTH
@pytest.mark.parametrize(("type_", "write", "label"), TYPES, ids=[str(t[0]) for t in TYPES])
def test_lists_of_labels_of_every_type_are_read_alike(
    tmp_path: Path, read: Any, type_: pa.DataType, write: Any, label: Any
) -> None:
    labels = pa.array([[write(item) for item in row] for row in LISTS], type_)
    found = [row for batch in read(tmp_path, labels) for row in rows_of(batch)]
    assert [own for own, _ in found] == [[label(item) for item in row] for row in LISTS]
    assert [type(item) for own, _ in found for item in own] == [label] * 4


@BOTH
def test_lists_of_booleans_and_lists_of_one_length_are_read(tmp_path: Path, read: Any) -> None:
    labels = pa.array([[True, False], [False, True], [True, False]], pa.list_(pa.bool_(), 2))
    found = [own for batch in read(tmp_path, labels) for own, _ in rows_of(batch)]
    assert found == [[True, False], [False, True], [True, False]]


@BOTH
def test_lists_that_are_all_empty_are_rows_without_a_label(tmp_path: Path, read: Any) -> None:
    for type_ in (None, pa.list_(pa.null()), pa.list_(pa.string())):
        found = read(tmp_path, pa.array([[], [], []], type_))
        assert [own for batch in found for own, _ in rows_of(batch)] == [[], [], []]
        assert all(batch.classes == [] for batch in found)


@BOTH
def test_a_column_without_lists_has_one_label_a_row(tmp_path: Path, read: Any) -> None:
    found = read(tmp_path, pa.array(["a", "b", "a"]))
    assert all(batch.code_offsets is not None for batch in found)
    assert [own for batch in found for own, _ in rows_of(batch)] == [["a"], ["b"], ["a"]]


@BOTH
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
def test_a_bad_row_of_labels_is_refused_with_its_place(
    tmp_path: Path, read: Any, labels: pa.Array, sentence: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, labels)
    assert sentence in str(caught.value)


@BOTH
@pytest.mark.parametrize("labels", [pa.array([["a"], None, ["b"]]), pa.array(["a", None, "b"])])
def test_a_null_is_no_label_where_labels_are_optional(
    tmp_path: Path, read: Any, labels: pa.Array
) -> None:
    found = read(tmp_path, labels, labels="optional")
    assert [own for batch in found for own, _ in rows_of(batch)] == [["a"], [], ["b"]]


@BOTH
def test_a_table_without_labels_is_read_where_they_are_optional(tmp_path: Path, read: Any) -> None:
    found = read(tmp_path, pa.array([1, 2, 3]), labels="optional")
    assert sum(len(batch.codes) for batch in found) == 3
    path = tmp_path / "bare.parquet"
    pq.write_table(table(pa.array([[1]] * 3)).drop_columns("labels"), path)
    reading = ReaderConfig(multilabel=True, labels="optional")
    [batch] = ParquetReader(str(path), "bare.parquet", reading).batches()
    assert rows_of(batch) == [([], {k: 0.5}) for k in range(3)]


@BOTH
@pytest.mark.parametrize("reading", [{}, {"label_column": "labels", "labels": "optional"}])
def test_lists_of_labels_are_refused_where_nothing_says_that_a_row_has_several(
    tmp_path: Path, read: Any, reading: dict[str, Any]
) -> None:
    with pytest.raises(DataError, match=r"column 'labels' of type list<.*> holds several labels a "
                       r"row\. Use --multilabel, or name a column"):  # fmt: skip
        read(tmp_path, pa.array(LISTS), multilabel=False, **reading)


def test_a_column_of_single_labels_goes_before_one_of_lists_unless_a_row_has_several(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table(pa.array([[1], [2]])).append_column("y", pa.array([3, 4])), path)
    [batch] = ParquetReader(str(path), "x.parquet", ReaderConfig()).batches()
    assert batch.classes == [3.0, 4.0]
    with pytest.raises(DataError, match=r"'labels' and 'y' could all be the labels"):
        list(ParquetReader(str(path), "x.parquet", SEVERAL).batches())


def test_a_list_of_labels_is_not_taken_for_values(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table(pa.array([[1.0], [2.0, 3.0]])).drop_columns("values"), path)
    [batch] = ParquetReader(str(path), "x.parquet", SEVERAL).batches()
    assert batch.values is None
    assert batch.classes == [1.0, 2.0, 3.0]


# --- the same chunks from everywhere ---


def as_text(rows: Sequence[Row]) -> str:
    return "".join(
        f"{','.join(map(str, own))} {' '.join(f'{c}:{v}' for c, v in sorted(row.items()))}\n"
        for own, row in rows
    )


def test_a_chunk_holds_the_very_labels_of_its_rows(tmp_path: Path) -> None:
    rows: list[Row] = [([["a", "b", "c"][j] for j in range(k % 4)], {k: 1.5}) for k in range(12)]
    (tmp_path / "0.svm").write_text(as_text(rows[:7]))
    (tmp_path / "1.svm").write_text(as_text(rows[7:]))
    cache = str(tmp_path / "_cache")
    with (
        small_blocks(),
        open_shards([str(tmp_path)], SEVERAL, cache_dir=cache, most_labels=None) as source,
    ):
        chunks = [*source.chunks(), *source.chunks([[2], [1]])]
    assert [len(chunk) for chunk in chunks] == [5, 2, 5, 5, 2]
    for chunk in chunks:
        found = shard_rows.labels_of(chunk.codes, chunk.code_offsets, source.labels)
        assert found == [own for own, _ in rows[slice(*chunk.ranges[0])]]
        assert chunk.code_offsets is not None
        assert not chunk.code_offsets.flags.writeable
        assert not chunk.codes.flags.writeable


@pytest.mark.parametrize(
    ("label", "sentence"),
    [("c", "a third label 'c' after 'a' and 'b'"), ("7", "the number 7.0 as label, where the")],
)
def test_a_label_too_many_or_of_another_kind_is_refused_with_its_row(
    tmp_path: Path, label: str, sentence: str
) -> None:
    (tmp_path / "a.svm").write_text(f"a,b 1:1\n 2:1\nb,{label} 3:1\n")
    with open_shards([str(tmp_path)], SEVERAL, cache_dir=None) as source, pytest.raises(
        DataError, match=rf"^a\.svm, line 3: {sentence}"
    ):  # fmt: skip
        list(source.chunks())


def test_a_cut_batch_has_the_labels_of_its_rows(tmp_path: Path) -> None:
    [batch] = read_text(tmp_path, "a,b 1:1\n 2:1\nc 3:1\nb,c,a 4:1\n")
    for start, stop in itertools.combinations(range(5), 2):
        assert rows_of(slice_batch(batch, start, stop)) == rows_of(batch)[start:stop]


# --- the cache ---


def test_a_cache_file_takes_four_bytes_a_row_and_four_a_label_more(tmp_path: Path) -> None:
    from streamtron.data.cache.flat_file import read_contents

    sizes = {}
    for reading, text in (
        (SEVERAL, "1,2 1:1\n 2:1\n2,1,3 3:1\n"),
        (NAMED, "1 1:1\n1 2:1\n2 3:1\n"),
    ):
        (tmp_path / "a.svm").write_text(text)
        cache = tmp_path / f"_{reading.multilabel}"
        with open_shards(
            [str(tmp_path)], reading, cache_dir=str(cache), most_labels=None
        ) as source:
            list(source.chunks())
        [file] = [path for path in cache_files(str(cache)) if path.endswith(".cache")]
        sizes[reading.multilabel] = read_contents(file).bytes
    assert sizes == {False: 3 * 8 + 3 * 4, True: 3 * 8 + 5 * 4 + 3 * 4}


# --- targets ---


@pytest.mark.parametrize(
    ("labels", "row_weights", "class_weights", "positive", "signs", "delta2"),
    [
        ([["a"], ["a", "b"], []], [0.0, 0.5, 1.0], {"a": 4.0}, "a", [0, 1, -1], [2.0, 1.0, 2.0]),
        ([["a"], [], ["b"]], None, {"z": 3.0}, "z", [-1, -1, -1], [2.0] * 3),
        ([[], [], []], None, {"z": 3.0}, "z", [-1, -1, -1], [2.0] * 3),
        ([[], ["b", "a"], ["a"]], None, {"b": 2.0, "a": 8.0}, None, [-1, 1, -1], [2.0, 1.0, 2.0]),
    ],
    ids=["weight 0 is left out", "label not met", "no label at all", "the first label met"],
)
def test_signs_and_prices_follow_labels_and_weights(
    labels: list[list[Label]], row_weights: Any, class_weights: Any, positive: Any,
    signs: list[int], delta2: list[float],
) -> None:  # fmt: skip
    source = RowsInMemory(np.eye(3), labels, row_weights, multilabel=True)
    [chunk] = source.chunks()
    found = TargetRule(2.0, source.labels, class_weights, positive)(chunk)
    assert (found.signs.tolist(), found.delta2.tolist()) == (signs, delta2)


def test_a_row_is_negative_where_no_label_was_met_and_none_is_named() -> None:
    empty = make_rows(np.zeros(2, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.float32))
    chunk = Chunk(empty, np.zeros(0, np.int32), ((0, 1),), np.zeros(1), np.zeros(2, np.int64))
    assert TargetRule(2.0, [], {"b": 2.0}, None)(chunk).signs.tolist() == [-1]


# --- settings, contract, commands ---


@pytest.mark.parametrize("other", ["multiclass", "weights_in_label"])
def test_settings_that_contradict_several_labels_are_refused(other: str) -> None:
    with pytest.raises(SettingsError, match="multilabel"):
        Settings(multilabel=True, **{other: True})


def test_the_contract_of_a_model_says_how_many_labels_its_rows_have() -> None:
    for setting in ("multilabel", "multiclass"):
        reading = reading_from_settings(Settings(**{setting: True}))
        assert getattr(reading, setting)
        assert ReaderConfig.from_contract(json.loads(json.dumps(reading.contract()))) == reading
    assert ReaderConfig.from_contract({}) == ReaderConfig()


CONVERTED: list[Row] = [
    (["C11", "CCAT"], {1: 0.5, 3: 1.0}), ([], {2: 1.0}), (["größer"], {}), (["CCAT"], {1: 2.0}),
]  # fmt: skip


@pytest.mark.parametrize("names", [True, False])
def test_shards_converted_there_and_back_hold_the_same_rows(tmp_path: Path, names: bool) -> None:
    rows = CONVERTED if names else [([float(len(x)) for x in own], row) for own, row in CONVERTED]
    (tmp_path / "a.svm").write_text(as_text(rows))
    given = Settings(multilabel=True, index_base=1)
    convert(tmp_path / "a.svm", tmp_path / "p", to="parquet", settings=given)
    label = pq.read_schema(tmp_path / "p" / "part-00000.parquet").field("label").type
    assert label == pa.list_(pa.string() if names else pa.float64())
    convert(tmp_path / "p", tmp_path / "t", to="libsvm", settings=Settings(multilabel=True))
    text = (tmp_path / "t" / "part-00000.svm").read_bytes()
    assert text_rows(tmp_path, text) == rows


def test_single_names_are_converted_to_text_that_is_read_as_multiclass(tmp_path: Path) -> None:
    pq.write_table(table(pa.array(["C11", "CCAT"])), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"label 'C11' is a string, and libsvm text has numbers"):
        convert(tmp_path / "a.parquet", tmp_path / "t", to="libsvm")
    given = Settings(multiclass=True)
    convert(tmp_path / "a.parquet", tmp_path / "t", to="libsvm", settings=given)
    text = (tmp_path / "t" / "part-00000.svm").read_bytes()
    assert text_rows(tmp_path, text, NAMED) == [(["C11"], {1: 0.5}), (["CCAT"], {2: 0.5})]


@pytest.mark.parametrize(
    ("labels", "indices", "sentence"),
    [
        ([["a"], ["two words"]], [[1], [2]], "row 1: label 'two words' is a string"),
        ([["a"], ["b,c"]], [[1], [2]], "row 1: label 'b,c' is a string"),
        ([["a"], ["17"]], [[1], [2]], "row 1: label '17' is a string"),
        ([["a"], []], [[1], []], "row 1: neither a label nor a nonzero"),
    ],
)
def test_what_text_cannot_say_is_not_converted_to_it(
    tmp_path: Path, labels: Any, indices: Any, sentence: str
) -> None:
    columns = {"labels": pa.array(labels), "indices": pa.array(indices, pa.list_(pa.int64()))}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(DataError) as caught:
        convert(tmp_path / "a.parquet", tmp_path / "t", to="libsvm",
                settings=Settings(multilabel=True))  # fmt: skip
    assert sentence in str(caught.value)
    assert str(caught.value).endswith("Convert to Parquet.")


def test_weights_beside_several_labels_are_converted_to_parquet_and_not_to_text(
    tmp_path: Path,
) -> None:
    whole = table(pa.array([["a"], []])).append_column("w", pa.array([0.5, 2.0]))
    pq.write_table(whole, tmp_path / "a.parquet")
    given = Settings(multilabel=True, weight="w")
    with pytest.raises(SettingsError, match="libsvm text has no row weights beside several"):
        convert(tmp_path / "a.parquet", tmp_path / "t", to="libsvm", settings=given)
    convert(tmp_path / "a.parquet", tmp_path / "p", to="parquet", settings=given)
    assert pq.read_table(tmp_path / "p" / "part-00000.parquet")["weight"].to_pylist() == [0.5, 2.0]


def test_the_type_of_labels_is_told_by_the_first_row_that_has_one(tmp_path: Path) -> None:
    text = " 1:1\n" * 250_000 + "news 2:1\n"  # more than one batch
    (tmp_path / "a.svm").write_text(text)
    written = convert(
        tmp_path / "a.svm", tmp_path / "p", to="parquet", settings=Settings(multilabel=True)
    )
    assert written.rows == 250_001
    labels = pq.read_table(tmp_path / "p")["label"].to_pylist()
    assert labels == [[]] * 250_000 + [["news"]]


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main.streamtron, [*map(str, arguments)])


def test_inspect_counts_the_rows_of_every_label_and_those_without(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("".join(f"t{k},all 1:1\n" for k in range(30)) + "t0\n 2:1\n")
    with small_blocks():
        result = run("inspect", tmp_path / "a.svm", "--multilabel", "--json")
        shown = run("inspect", tmp_path / "a.svm", "--multilabel").stdout
    facts = json.loads(result.stdout)
    assert facts["labels"] == {"t0": 2, "all": 30, **{f"t{k}": 1 for k in range(1, 30)}}
    assert facts["unlabelled_rows"] == 1
    assert shown.index("label all") < shown.index("label t0") < shown.index("… and 11 more")


def test_a_slice_of_a_batch_is_a_view(tmp_path: Path) -> None:
    batch = read_text(tmp_path, "1 1:1\n2,3,4 2:1\n")[0]
    assert np.shares_memory(slice_batch(batch, 1, 2).codes, batch.codes)
