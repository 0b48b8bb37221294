"""The layouts of features in tables: the same rows in all of them, what they refuse, how found; and
the shards behind the first."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.feature_names import Hashing, Vocabulary
from streamtron.data import find_shards, open_reader
from streamtron.data.formats import tables
from streamtron.data.formats.columns import find_columns, resolve_layout
from streamtron.data.formats.layouts import Columns, Spot
from streamtron.data.formats.table_rows import make_batch
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import RowBatch
from streamtron.data.transform import Transformer
from streamtron.runs.change import update
from streamtron.runs.convert import convert
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import fit
from streamtron.runs.inputs import reading_from_model
from streamtron.runs.predict import predict, write_predictions
from tests.helpers.examples import examples
from tests.helpers.layouts import LAYOUTS, NAMES, PAIR, WIDTH, Row, named, one, write_table
from tests.helpers.models import make_model, refused
from tests.helpers.shard_rows import chunks_in, data_of, rows_of

values = st.floats(-100, 100, width=32).filter(lambda value: value != 0)
rows_with_values = st.lists(
    st.dictionaries(st.integers(0, WIDTH - 1), values, max_size=WIDTH), min_size=1, max_size=12
)


def read(
    directory: Path, columns: dict[str, Any], reading: ReaderConfig, name: str = "rows.parquet"
) -> list[RowBatch]:
    [shard] = find_shards([str(write_table(directory / name, columns, 5))])
    return list(open_reader(shard, reading).batches())


def rows_in(*given: Any) -> list[Any]:
    """Columns and values of all rows."""
    return [row[1:3] for row in rows_of(read(*given))]


@pytest.mark.parametrize("layout", LAYOUTS)
@patch.object(tables, "BATCH_ROWS", 2)  # less than a record batch has: they are cut
@settings(deadline=None, max_examples=examples(50))
@given(rows=rows_with_values)
def test_the_same_rows_in_any_layout_give_the_same_bits(layout, rows, tmp_path_factory):
    directory = tmp_path_factory.mktemp("layout")
    labels = {"extra": [[None]] * len(rows), "y": list(range(len(rows))), "name": ["x"] * len(rows)}
    columns = LAYOUTS[layout](rows)
    reading = ReaderConfig(
        names=Vocabulary(NAMES) if named(columns) else None,
        features=tuple(columns) if layout.startswith("columns") else None,
    )
    wanted = [
        (float(k), sorted(row), [row[j] for j in sorted(row)], 1.0) for k, row in enumerate(rows)
    ]
    for name in ("rows.parquet", "rows.arrow"):
        batches = read(directory, labels | columns, reading, name)
        assert rows_of(batches) == wanted
        for batch in batches:
            assert (batch.indptr.dtype, batch.indices.dtype) == (np.int64, np.uint32)
            assert batch.values.dtype == np.float32


@settings(deadline=None, max_examples=examples(100))
@given(rows=rows_with_values, bits=st.integers(1, 4))
def test_hashed_names_are_scikit_learns_columns_and_add_up(rows, bits, tmp_path_factory):
    from sklearn.utils import murmurhash3_32

    directory = tmp_path_factory.mktemp("hash")
    reading = ReaderConfig(labels="optional", names=Hashing(bits))
    wanted = []
    for row in rows:
        sums = {}
        for j, value in row.items():
            column = murmurhash3_32(NAMES[j], positive=True) % 2**bits
            sums.setdefault(column, []).append(value)
        added = {column: np.float32(sum(sorted(sums[column]))) for column in sorted(sums)}
        wanted.append((list(added), list(added.values())))
    for layout in ("map of names", "lists of names"):
        assert rows_in(directory, LAYOUTS[layout](rows), reading) == wanted


def test_the_order_in_which_a_row_names_its_features_does_not_change_a_sum(tmp_path):
    met = [name for name in map(str, range(99)) if Hashing(1).columns([name])[0] == 0]
    pairs = list(zip(met, [1e30, 1.0, -1e30], strict=False))
    bags = pa.array([list(bag) for bag in permutations(pairs)], pa.map_(pa.string(), pa.float64()))
    rows = rows_in(tmp_path, one(bags), ReaderConfig(labels="optional", names=Hashing(1)))
    assert [columns for columns, _ in rows] == [[0]] * 6
    assert len({value for _, [value] in rows}) == 1


@pytest.mark.parametrize(
    ("columns", "reading", "wanted"),
    [
        (
            {"tokens": pa.array([["b", "a", "b", "b"], [], ["a"]])},
            {"names": Vocabulary(("a", "b"))},
            [([0, 1], [1.0, 3.0]), ([], []), ([0], [1.0])],
        ),
        (
            {
                "bag": pa.array(
                    [[("b", 0.5), ("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.float32())
                )
            },
            {"names": Vocabulary(("a", "b")), "features": ("bag",)},
            [([0, 1], [1.0, 2.5])],
        ),
        (
            {
                "a": pa.array([1, 0, -3], pa.int64()),
                "b": pa.array([True, False, True]),
                "c": pa.array([0.0, -0.0, 0.1], pa.float16()),
            },
            {"features": ("c", "a", "b")},
            [([1, 2], [1.0, 1.0]), ([], []), ([0, 1, 2], [float(np.float16(0.1)), -3.0, 1.0])],
        ),
    ],
)
def test_values_of_a_name_are_added_up_and_zeros_in_columns_left_out(
    tmp_path, columns, reading, wanted
):
    assert rows_in(tmp_path, columns, ReaderConfig(labels="optional", **reading)) == wanted


def test_numbers_of_every_type_arrive_as_uint32_and_float32(tmp_path):
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    integers += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    for item in (*integers, pa.float16(), pa.float32(), pa.float64()):
        lists = pa.array([[3, 127], [1]], pa.list_(pa.float32())).cast(pa.list_(item))
        keys = lists if item in integers else pa.array([[3, 127], [1]])
        columns = {"indices": keys, "values": lists}
        [batch] = read(tmp_path, columns, ReaderConfig(labels="optional"))
        assert (batch.indices.dtype, batch.values.dtype) == (np.uint32, np.float32)
        assert batch.values.tolist() == batch.indices.tolist() == [3, 127, 1]


NUMBER, TEXT, MAP = pa.float64(), pa.string(), pa.map_(pa.int32(), pa.float32())
NUMBERS, NAMED_LIST, INTEGERS = pa.list_(NUMBER), pa.list_(TEXT), pa.list_(pa.int32())
TERMS = pa.struct({"term": TEXT, "weight": NUMBER})
STRANGE = pa.struct({"a": pa.int8(), "b": NUMBER})


@pytest.mark.parametrize(
    ("schema", "features", "wanted"),
    [
        ({"f2": NUMBER, "f10": pa.bool_(), "id": NUMBER}, None, "columns: f2 f10 id"),
        ({"price": NUMBER, "id": NUMBER, "name": TEXT}, ("id", "price"), "columns: id price"),
        ({"x0": NUMBER, "features": pa.list_(NUMBER, 7)}, None, "dense: features"),
        ({"bag": MAP, "indices": NUMBERS}, ("bag",), "map: bag"),
        ({"words": pa.list_(pa.dictionary(pa.int8(), TEXT))}, None, "lists of names: words"),
        ({"features": pa.list_(TERMS)}, None, "pairs of names: features"),
    ],
)
def test_the_layout_is_told_by_names_and_types(schema, features, wanted):
    reading = ReaderConfig(features=features, names=Hashing(3) if "names" in wanted else None)
    columns = find_columns(pa.schema(schema | {"y": NUMBER}), reading, "f")
    assert f"{columns.layout}: {' '.join(columns.features)}" == wanted


OF_W = Transformer(b"", (("w", "number"),))
WEIGHED, TWICE = {"a": NUMBER, "w": NUMBER}, [("f0", NUMBER), ("y", NUMBER), ("f0", NUMBER)]
LISTED = {"indices": INTEGERS, "label": NUMBER}
INDEXED = {"values": NUMBERS, "index": pa.int64()}  # pandas' own index is no list
OPTIONAL = {"labels": "optional"}
BY = "--features NAME (columns there: values list<item: double>, index int64). Columns of any kinds"


@pytest.mark.parametrize(
    ("schema", "reading", "sentence"),
    [
        ({"f0": NUMBER, "name": TEXT}, {}, "no column for the features, looked for a list"),
        ({"f0": NUMBER, "scores": MAP}, {}, "no column for the features, looked for a list or a"),
        ({"features": pa.list_(STRANGE)}, {}, "no column for the features"),
        ({"features": pa.list_(pa.bool_())}, {}, "no column for the features"),
        (INDEXED, {}, f"'embeddings', or columns that are all numbers. Name it with {BY}"),
        (
            INDEXED,
            {},
            "any kinds become features by --columns auto, documents by --text NAME",
        ),
        ({f"c{k}": NUMBER for k in range(999)} | {"n": TEXT}, {}, "c39 double, … 960 more)."),
        ({"features": MAP, "tokens": NAMED_LIST}, {}, "'features' and 'tokens' could all be the"),
        ({"a": NUMBER}, {"features": ("b*",)}, "no column for the features, looked for 'b*'."),
        ({"a": NUMBER}, {"features": ("a", "a")}, "'a' is named twice among the features."),
        (WEIGHED, {"features": ("a", "w"), "label_column": "w"}, "both the label and a feature"),
        (WEIGHED, {"transformer": OF_W, "weight_column": "w"}, "both the weight and a feature"),
        (WEIGHED, {"weight_column": "x"}, "no column for the row weights, looked for 'x'. Name it"),
        ({"a": NUMBER, "bag": MAP}, {"features": ("a", "bag")}, "features are columns of numbers"),
        ({"a": pa.date32()}, {"features": ("a",)}, "of type date32[day] cannot be the features"),
        ({"tokens": NAMED_LIST}, {}, "give --hash-bits N."),
        ({"features": MAP}, {"names": Hashing(8)}, "no place for --hash-bits."),
        ({"features": NUMBERS}, {"index_base": 1}, "no place for --index-base 1"),
        ({"features": MAP, "v": NUMBERS}, {"values_column": "v"}, "no place for --values."),
        (TWICE, {}, "2 columns 'f0' could all be the features"),
        (TWICE, {"features": ("f0",)}, "2 columns 'f0' could all be the features"),
        (TWICE, {"label_column": "f0"}, "2 columns 'f0' could all be the labels"),
        ({"indices": INTEGERS}, {"labels": "required"}, "Name it with --label NAME"),
        (LISTED | {"y": NUMBER}, {}, "'label' and 'y' could all be the labels. Say which with"),
        (LISTED | {"tfidf": NUMBERS}, {}, "Name the list of them with --values NAME, or say"),
        (LISTED | {"values": NUMBER}, {}, "Name the list of them with --values NAME, or say"),
        (LISTED | {"values": NUMBERS}, {"label_column": "values"}, "with --multilabel also lists"),
        (LISTED | {"label": NAMED_LIST}, {"label_column": "label"}, "with --multilabel also lists"),
        (LISTED | {"label": NAMED_LIST}, {"labels": "required"}, "with --multilabel also lists"),
    ],
)
def test_columns_that_are_absent_ambiguous_or_unsuited_are_refused(schema, reading, sentence):
    config = ReaderConfig(**OPTIONAL | reading)
    message = refused(lambda: find_columns(pa.schema(schema), config, "f"), StreamtronError)
    assert message.startswith("f: ")
    assert sentence in message


def numbers(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, NUMBER)


TWO = numbers("f0", "f1", "target")


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (
            LISTED,
            LISTED | {"values": NUMBERS},
            "'values' may hold the values of the features in 'indices'. Name",
        ),
        (LISTED, LISTED | {"weights_of_words": NUMBERS}, "'weights_of_words' may hold"),
        (LISTED, LISTED | {"tokens": INTEGERS}, "'tokens' would be features too"),
        (LISTED, LISTED | {"indices": MAP}, "the features are lists of column numbers in 1st."),
        (TWO, TWO | numbers(*map("f{}".format, range(2, 30))), "'f5', 'f6', … 23 more would be"),
        (TWO, TWO | numbers("age"), "'age' would be features too, and 1st has none of that name."),
        (TWO, TWO | numbers("y"), "'y' would be features too"),  # a usual name, once settled
        (TWO, numbers("f1", "target"), "looked for 'f0'"),
    ],
)
def test_a_later_shard_without_the_same_columns_is_refused_and_nothing_dropped(
    first, second, sentence
):
    settled = resolve_layout(pa.schema(first), ReaderConfig(), "1st")
    assert settled.label_column in ("label", "target")
    message = refused(lambda: find_columns(pa.schema(second), settled, "2nd"))
    assert message.startswith("2nd: ")
    assert sentence in message


FILL, IN_LIST = "Fill it in or remove the row", "a null in the list of column "
RUN = "Column numbers run from 0 to 4294967294."
INTEGERS_FIT = "is an integer beyond 2²⁴ that float32 cannot hold. Rescale its column, or make"
LABELS_FIT = "in column 'label'. Numbers as labels are finite, integers below 2**53."
WEIGHTS_FIT = "Weights are at least 0 and at most 1e30."
LONG_LISTS = pa.list_(pa.uint64())
NAN, INFINITY = float("nan"), float("inf")


def maps(*rows: Any, key: Any = None) -> dict[str, Any]:
    return one(pa.array(rows, pa.map_(key or pa.int32(), pa.float64())))


def lists(**changed: Any) -> dict[str, Any]:
    """Two good rows, some columns replaced; None takes one away."""
    columns = {
        "indices": pa.array([[0, 3], [1]], pa.list_(pa.int32())),
        "values": pa.array([[0.5, 2.0], [1.0]], pa.list_(pa.float32())),
        "label": [1, -1],
    }
    return {name: column for name, column in (columns | changed).items() if column is not None}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (lists(indices=pa.array([[1], None])), f"1: null in column 'indices'. {FILL}."),
        (lists(values=pa.array([[1.0, 2.0], None])), f"1: null in column 'values'. {FILL}."),
        (lists(label=pa.array([1, None])), f"1: null in column 'label'. {FILL}, or leave"),
        (lists(w=[None, 1.0]), f"0: null in column 'w'. {FILL}."),
        (maps([(1, 1.0)], None), f"1: null in column 'features'. {FILL}."),
        ({"f0": [1.0, 2.0], "f1": [1.0, None]}, f"1: null in column 'f1'. {FILL}, or say what"),
        (lists(indices=pa.array([[1, 2], [None]])), f"1: {IN_LIST}'indices'. Remove it or fill"),
        (lists(values=pa.array([[1.0, None], [2.0]])), f"0: {IN_LIST}'values'."),
        (maps([(1, 1.0)], [(2, 1.0), (3, None)]), f"1: {IN_LIST}'features'."),
        (one(pa.array([[(1, 1.0)], [(2, 1.0), None]], pa.list_(PAIR))), f"1: {IN_LIST}'features'."),
        (one(pa.array([[(1, 1.0)], [(None, 1.0)]], pa.list_(PAIR))), f"1: {IN_LIST}'features'."),
        (one(pa.array([["a"], ["a", None]])), f"1: {IN_LIST}'features'."),
        (lists(indices=pa.array([[0, 3, 4], [1]])), "0: 3 features in 'indices' and 2 values in"),
        (one(pa.array([[1.0, 2.0], [1.0]])), "1: 1 numbers in column 'features', and in the rows"),
        (lists(indices=pa.array([[0, 3], [-1]])), f"1: column -1. {RUN}"),
        (lists(indices=pa.array([[0, 3], [2**32 - 1]])), f"1: column 4294967295. {RUN}"),
        (lists(indices=pa.array([[3, 3], [1]])), "0: column 3 occurs twice. Add the values up or"),
        (lists(indices=pa.array([[5, 1], [7, 2, 7]]), values=None), "1: column 7 occurs twice."),
        (maps([("n", 3e38)], [(name, 3e38) for name in "abc"], key=TEXT), "1: value "),
        (lists(values=pa.array([[0.5, 2.0], [NAN]])), "1: value nan. Values must be finite;"),
        (lists(values=pa.array([[0.5, -INFINITY], [1]], NUMBERS)), "0: value -inf. Values must be"),
        (lists(values=pa.array([[0.5, 1e39], [1.0]])), "0: value 1e+39 overflows float32. Rescale"),
        ({"f0": [1.0, 2.0], "f1": [1.0, NAN]}, "1: value nan in column 'f1'. Values must"),
        ({"f0": [1, 2], "f1": [1, 2**24 + 1]}, "1: value 16777217 in column 'f1' is an integer"),
        (lists(values=pa.array([[1, 2**24 + 1], [1]])), f"0: value 16777217 {INTEGERS_FIT}"),
        (lists(values=pa.array([[1, -(2**63)], [1 - 2**63]])), "1: value -9223372036854775807"),
        (lists(values=pa.array([[1, 2**63], [2**63 + 1]], LONG_LISTS)), "1: value 92233720368547"),
        (lists(label=[1.0, NAN]), f"1: label nan {LABELS_FIT}"),
        (lists(label=[2**53 + 1, 1]), f"0: label 9007199254740993 {LABELS_FIT}"),
        (lists(w=[1.0, -1.0]), f"1: weight -1.0. {WEIGHTS_FIT}"),
        (lists(w=[1.0, NAN]), f"1: weight nan. {WEIGHTS_FIT}"),
        (lists(w=[1.0, INFINITY]), f"1: weight inf. {WEIGHTS_FIT}"),
    ],
)
def test_a_bad_row_is_refused_by_its_place(tmp_path, columns, sentence):
    reading = ReaderConfig(
        labels="required" if "label" in columns else "optional",
        weight_column="w" if "w" in columns else None,
        names=Hashing(1) if named(columns) else None,
    )
    message = refused(lambda: read(tmp_path, columns, reading))
    assert message.startswith(f"rows.parquet, row group 0, row {sentence}")


def test_a_null_that_hides_in_a_dictionary_is_refused():
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


def test_a_name_beyond_the_vocabulary_weighs_0_and_is_counted_but_refused_in_fit(tmp_path):
    path = tmp_path / "a.parquet"
    where = {"layout": "lists of names", "features": ["tokens"], "label": "y", "index_base": 0}
    model = make_model([-1.0, 1.0], 0.0, vocabulary=["ham", "spam"], **where)
    strange = [["spam", "new", "newer"], ["new", "ham"]] * 4
    pq.write_table(pa.table({"tokens": strange, "y": [1, -1] * 4}), path)
    [found] = predict(model, path)
    assert found.decisions.tolist() == [1.0, -1.0] * 4
    assert found.out_of_range == 12
    assert write_predictions(model, path, tmp_path / "out").out_of_range == 12
    assert evaluate(model, path).accuracy == 1
    with pytest.raises(DataError, match="'new' is not in the vocabulary of 2 names"):
        chunks_in(path, reading=reading_from_model(model))


def test_vocabularies_of_the_same_names_share_a_cache_and_of_others_do_not():
    reading = ReaderConfig(names=Vocabulary(("a", "b")))
    settled = [replace(reading, layout="map of names", settled_by=name) for name in "ab"]
    assert settled[0].key() == settled[1].key()
    assert reading.key() == ReaderConfig(names=Vocabulary(("a", "b"))).key()
    assert reading.key() != ReaderConfig(names=Vocabulary(("b", "a"))).key()
    assert reading.key() != ReaderConfig().key()
    for other in (
        {"unknown_features": "out_of_range"},
        {"features": ("a",)},
        {"values_column": ""},
        {"names": Hashing(5)},
        {"multilabel": True},
        {"weights_in_label": True},
    ):
        assert reading.key() != replace(reading, **other).key()
    assert replace(reading, names=Hashing(5)).key() != replace(reading, names=Hashing(6)).key()
    assert len(str(reading.key()["vocabulary"])) == 32, "a digest, for vocabularies may be large"


def test_text_with_a_hash_or_named_columns_is_refused(tmp_path):
    path = tmp_path / "a.svm"
    path.write_text("1 1:1\n-1 2:1\n")
    named = [{name: "f"} for name in ("features", "label", "weight", "values", "text")]
    for names in ({"hash_bits": 3}, {"columns": ["f:number"]}, {"columns": "auto"}, *named):
        with pytest.raises(SettingsError, match=r"a\.svm: libsvm text has column numbers"):
            fit(path, **names)


def test_features_are_names_between_commas_or_a_list_of_them():
    assert Settings(features="a, b").features == ("a", "b")
    assert Settings.from_dict({"features": ["a,b", "c"]}).features == ("a,b", "c")
    assert Settings(features=("a",)).to_dict()["features"] == ["a"]


AGE, HEIGHT, WEIGHT = range(3)
BUY, NOW, SEE, YOU = Hashing(20).columns(["buy", "now", "see", "you"]).tolist()
SPARK: dict[str, tuple[Any, list[tuple[float | str, Row]]]] = {
    "maps": (
        Vocabulary(("age", "height", "weight")),
        [
            (1.0, {AGE: 0.5, HEIGHT: -2.0}),
            (0.0, {WEIGHT: 3.0}),
            (1.0, {}),
            (0.0, {AGE: 0.1, HEIGHT: 1.0, WEIGHT: 1.5}),
        ],
    ),
    "words": (
        Hashing(20),
        [("spam", {BUY: 1.0, NOW: 2.0}), ("ham", {SEE: 1.0, YOU: 1.0}), ("ham", {})],
    ),
}


@pytest.mark.parametrize("form", ["", "-legacy"])  # the latter with writeLegacyFormat
@pytest.mark.parametrize("kind", SPARK)
def test_maps_and_lists_of_spark_are_the_rows_that_it_was_given(kind, form):
    names, rows = SPARK[kind]
    path = Path(__file__).parents[1] / "files" / f"spark-{kind}{form}.parquet"
    batches = open_reader(find_shards([str(path)])[0], ReaderConfig(names=names)).batches()
    for (label, columns, values, _), (wanted, row) in zip(rows_of(batches), rows, strict=True):
        assert label == wanted
        assert dict(zip(columns, values, strict=True)) == {c: np.float32(x) for c, x in row.items()}


Table = dict[str, Any]

LABELS = [1, -1, 1, -1]
LISTS: Table = {"indices": [[0], [1], [0, 2], [1, 2]], "label": LABELS}
VALUES = [[2.0], [3.0], [4.0, 5.0], [6.0, 7.0]]
COLUMNS: Table = {"f0": [1.0, 0.0, 2.0, 0.0], "f1": [0.0, 1.0, 0.0, 3.0], "label": LABELS}


def test_shards_with_values_are_no_rows_of_ones_unless_all_are_said_to_be_1(tmp_path):
    ones = write_table(tmp_path / "ones.parquet", LISTS)
    new = write_table(tmp_path / "new.parquet", LISTS | {"values": VALUES})
    model = fit(ones)
    for score in (lambda: list(predict(model, new)), lambda: evaluate(model, new)):
        with pytest.raises(DataError, match=r"^new\.parquet: 'values' may hold .* in the model"):
            score()
    assert sum(len(s.decisions) for s in predict(fit(ones, values=""), new)) == 4
    chunks = chunks_in(ones, new, reading=ReaderConfig(values_column=""))
    assert [set(chunk.rows.values.tolist()) for chunk in chunks] == [{1.0}, {1.0}]


def test_columns_that_were_not_asked_for_are_no_features_in_any_shard_and_else_refused(tmp_path):
    first = write_table(tmp_path / "0.parquet", COLUMNS)
    extra = {"f2": [9.0] * 4, "g0": [1.0] * 4, "f3": list("abcd")}
    second, cache = write_table(tmp_path / "1.parquet", COLUMNS | extra), tmp_path / "cache"
    reading = ReaderConfig(features=("f0", "f1"))
    with data_of([first, second], cache, reading, allow_duplicate=True) as data:
        assert [(len(chunk), chunk.width) for chunk in data.chunks()] == [(4, 2)] * 2
    fit(first, model=tmp_path / "m")
    for change in (
        lambda: data_of([first, second], cache),  # prepared is no way around
        lambda: chunks_in(first, second),
        lambda: convert([first, second], tmp_path / "out", to="libsvm"),
        lambda: update(tmp_path / "m", second),
    ):
        assert "'f2', 'g0' would be features too" in refused(change)


def test_columns_that_the_model_does_not_know_weigh_0_in_prediction(tmp_path):
    known = COLUMNS | {"w": [1.0, 1.0, 2.0, 2.0]}
    more = {"age": [0.0, 7.0, None, 9.0], "huge": [2**24 + 1, 0, 0, 0], "new": [True] * 4}
    unlabelled = {name: known[name] for name in ("f0", "f1")} | {"w": [None] * 3 + [-1.0]}
    old = write_table(tmp_path / "old.parquet", known)
    new = write_table(tmp_path / "new.parquet", unlabelled | more)
    for features in (None, "f0,f1"):
        model = fit(old, features=features, weight="w")
        [before], [after] = predict(model, old), predict(model, new)
        assert after.decisions.tolist() == before.decisions.tolist()
    assert evaluate(model, write_table(tmp_path / "b.parquet", known | more)).rows == 4
