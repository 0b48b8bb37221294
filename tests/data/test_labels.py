"""Labels of rows: several a row, none, names; in text, tables, memory, cache, targets, commands."""

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamtron.core.config import REGRESSION, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.rows import Label
from streamtron.data import ReaderConfig, RowBatch
from streamtron.data.flat_file import read_prepared
from streamtron.data.formats import tables
from streamtron.data.formats.arrow import ArrowReader
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.row_batch import take_rows
from streamtron.runs.convert import convert
from streamtron.runs.inputs import reading_from_settings
from streamtron.solver.targets import TargetRule
from tests.helpers import shard_rows
from tests.helpers.layouts import write_table
from tests.helpers.libsvm_rows import batches
from tests.helpers.models import refused
from tests.helpers.processes import here
from tests.helpers.shard_rows import data_of, small_blocks
from tests.helpers.sources import rows_in_memory

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


def test_a_cut_batch_is_a_view_with_the_labels_of_its_rows(tmp_path):
    [batch] = batches("a,b 1:1\n 2:1\nc 3:1\nb,c,a 4:1\n", SEVERAL)
    for start, stop in itertools.combinations(range(5), 2):
        cut = take_rows(batch, slice(start, stop))
        assert rows_of(cut) == rows_of(batch)[start:stop]
        assert not len(cut.codes) or np.shares_memory(cut.codes, batch.codes)


@pytest.mark.parametrize(
    ("labels", "row_weights", "class_weights", "positive", "signs", "costs"),
    [
        ([["a"], ["a", "b"], []], [0.0, 0.5, 1.0], {"a": 4.0}, "a", [0, 1, -1], [0.0, 0.5, 0.25]),
        ([["a"], [], ["b"]], None, {"z": 3.0}, "z", [-1, -1, -1], [0.25] * 3),
        ([[], [], []], None, {"z": 3.0}, "z", [-1, -1, -1], [0.25] * 3),
        ([[], [], []], None, {"b": 2.0}, None, [-1, -1, -1], [0.25] * 3),
        ([[], ["b", "a"], ["a"]], None, {"b": 2.0, "a": 8.0}, None, [-1, 1, -1], [0.25, 0.5, 0.25]),
    ],
    ids=["weight 0 is left out", "label not met", "no label", "none named", "the first label met"],
)
def test_signs_and_prices_follow_labels(labels, row_weights, class_weights, positive, signs, costs):
    source = rows_in_memory(np.eye(3), labels, row_weights, multilabel=True)
    [chunk] = source.chunks()
    found = TargetRule(0.25, source.labels, class_weights, positive)(chunk)
    assert (found.signs.tolist(), found.costs.tolist()) == (signs, costs)


@pytest.mark.parametrize(
    ("setting", "settings"),
    [
        ("multilabel", {"multilabel": True}),
        ("multiclass", {"multiclass": True}),
        *(("numbers", {"loss": loss}) for loss in REGRESSION),
    ],
)
def test_the_contract_of_a_model_says_what_the_labels_of_its_rows_are(setting, settings):
    reading, plain = (reading_from_settings(Settings(**how)) for how in (settings, {}))
    assert (getattr(reading, setting), getattr(plain, setting)) == (True, False)
    assert ReaderConfig.from_contract(json.loads(json.dumps(reading.contract()))) == reading
    assert ReaderConfig.from_contract({}) == ReaderConfig()


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
