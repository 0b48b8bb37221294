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
from streamtron.core.feature_names import Hashing, Vocabulary, load_vocabulary
from streamtron.data import find_shards, open_reader, open_shards
from streamtron.data.formats import tables
from streamtron.data.formats.columns import find_columns, resolve_layout
from streamtron.data.formats.recipe import Recipe
from streamtron.data.reader_config import ReaderConfig, Settled
from streamtron.data.row_batch import RowBatch
from streamtron.runs.convert import convert
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import fit
from streamtron.runs.inputs import reading_from_model
from streamtron.runs.predict import predict, write_predictions
from streamtron.runs.update import update
from tests.helpers.examples import examples
from tests.helpers.layouts import LAYOUTS, NAMES, PAIR, WIDTH, Row, named, one, write_table
from tests.helpers.models import refused
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


def refusal(directory: Path, columns: dict[str, Any], **reading: Any) -> str:
    config = ReaderConfig(labels="optional", **reading)
    return refused(lambda: read(directory, columns, config), StreamtronError)


def rows_in(*given: Any) -> list[Any]:
    """Columns and values of all rows."""
    return [row[1:3] for row in rows_of(read(*given))]


# The same rows -----------------------------------------------------------------------------------


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
@given(rows=rows_with_values, bits=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_hashed_names_are_scikit_learns_columns_and_add_up(rows, bits, seed, tmp_path_factory):
    from sklearn.utils import murmurhash3_32

    directory = tmp_path_factory.mktemp("hash")
    reading = ReaderConfig(labels="optional", names=Hashing(bits, seed))
    wanted = []
    for row in rows:
        sums = {}
        for j, value in row.items():
            column = murmurhash3_32(NAMES[j], seed=seed, positive=True) % 2**bits
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
                "a": pa.array([1, 0, -3], pa.int64()),
                "b": pa.array([True, False, True]),
                "c": pa.array([0.0, -0.0, 0.1], pa.float16()),
            },
            {"features": ("c", "a", "b")},
            [([1, 2], [1.0, 1.0]), ([], []), ([0, 1, 2], [float(np.float16(0.1)), -3.0, 1.0])],
        ),
    ],
)
def test_names_in_a_list_are_counted_and_zeros_in_columns_left_out(
    tmp_path, columns, reading, wanted
):
    assert rows_in(tmp_path, columns, ReaderConfig(labels="optional", **reading)) == wanted


# How they are found ------------------------------------------------------------------------------

NUMBER, TEXT, MAP = pa.float64(), pa.string(), pa.map_(pa.int32(), pa.float32())
TERMS = pa.struct({"term": TEXT, "weight": NUMBER})
STRANGE = pa.struct({"a": pa.int8(), "b": NUMBER})
OF_W = Recipe.of("w:number")
WEIGHED, TWICE = {"a": NUMBER, "w": NUMBER}, [("f0", NUMBER), ("y", NUMBER), ("f0", NUMBER)]


@pytest.mark.parametrize(
    ("schema", "features", "wanted"),
    [
        ({"f2": NUMBER, "f10": pa.bool_(), "id": NUMBER}, None, "columns: f2 f10 id"),
        ({"price": NUMBER, "id": NUMBER, "name": TEXT}, ("id", "price"), "columns: id price"),
        ({"x0": NUMBER, "features": pa.list_(NUMBER, 7)}, None, "dense: features"),
        ({"bag": MAP, "indices": pa.list_(NUMBER)}, ("bag",), "map: bag"),
        ({"words": pa.list_(pa.dictionary(pa.int8(), TEXT))}, None, "lists of names: words"),
        ({"features": pa.list_(TERMS)}, None, "pairs of names: features"),
    ],
)
def test_the_layout_is_told_by_names_and_types(schema, features, wanted):
    reading = ReaderConfig(features=features, names=Hashing(3) if "names" in wanted else None)
    columns = find_columns(pa.schema(schema | {"y": NUMBER}), reading, "f")
    assert f"{columns.layout}: {' '.join(columns.features)}" == wanted


@pytest.mark.parametrize(
    ("schema", "reading", "sentence"),
    [
        ({"f0": NUMBER, "name": pa.string()}, {}, "no column for the features, looked for a list"),
        ({"f0": NUMBER, "scores": MAP}, {}, "no column for the features, looked for a list or a"),
        ({"features": pa.list_(STRANGE)}, {}, "no column for the features"),
        ({"features": MAP, "tokens": pa.list_(pa.string())}, {}, "'features' and 'tokens' could"),
        ({"features": pa.list_(pa.bool_())}, {}, "no column for the features"),
        ({"a": NUMBER}, {"features": ("b*",)}, "no column for the features, looked for 'b*'."),
        ({"a": NUMBER}, {"features": ("a", "a")}, "'a' is named twice among the features."),
        (WEIGHED, {"features": ("a", "w"), "label_column": "w"}, "both the label and a feature"),
        (WEIGHED, {"recipe": OF_W, "weight_column": "w"}, "both the weight and a feature"),
        ({"a": NUMBER, "bag": MAP}, {"features": ("a", "bag")}, "of 2 columns of features 'bag'"),
        ({"a": pa.date32()}, {"features": ("a",)}, "of type date32[day] cannot be the features"),
        ({"tokens": pa.list_(pa.string())}, {}, "give --hash-bits N or --vocabulary FILE"),
        ({"features": MAP}, {"names": Hashing(8)}, "need neither --hash-bits nor --vocabulary"),
        ({"features": pa.list_(NUMBER)}, {"index_base": 1}, "Give --index-base 0"),
        ({"features": MAP, "v": pa.list_(NUMBER)}, {"values_column": "v"}, "hold their values"),
        (TWICE, {}, "2 columns 'f0' could all be the features"),
        (TWICE, {"features": ("f0",)}, "2 columns 'f0' could all be the features"),
        (TWICE, {"label_column": "f0"}, "2 columns 'f0' could all be the labels"),
    ],
)
def test_features_that_are_ambiguous_absent_or_unsuited_are_refused(schema, reading, sentence):
    config = ReaderConfig(labels="optional", **reading)
    message = refused(lambda: find_columns(pa.schema(schema), config, "f"), StreamtronError)
    assert message.startswith("f: ")
    assert sentence in message


def test_of_a_wide_table_a_message_names_the_first_columns():
    schema = pa.schema({f"c{k}": NUMBER for k in range(999)} | {"name": pa.string()})
    with pytest.raises(DataError, match=r"c39 double, … 960 more\)\."):
        find_columns(schema, ReaderConfig(labels="optional"), "f")


def test_once_settled_usual_names_are_names_and_nothing_else():
    schema = pa.schema({"a": NUMBER, "b": NUMBER, "target": NUMBER})
    settled = resolve_layout(schema, ReaderConfig(), "first")
    assert (settled.features, settled.label_column) == (("a", "b"), "target")
    other = pa.schema({"b": NUMBER, "y": NUMBER, "target": NUMBER})
    with pytest.raises(DataError, match=r"'y' would be features too, and first has none"):
        find_columns(other, settled, "second")
    other = pa.schema({"b": NUMBER, "target": NUMBER})
    with pytest.raises(DataError, match=r"looked for 'a'"):
        find_columns(other, settled, "second")


# What is refused in rows -------------------------------------------------------------------------

GROUP = "rows.parquet, row group 0, row "


def maps(*rows: Any, key: Any = None) -> dict[str, Any]:
    return one(pa.array(rows, pa.map_(key or pa.int32(), pa.float64())))


FILL = "Fill it in or remove the row"
IN_LIST = "1: a null in the list of column 'features'. Remove it or fill it in."


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (maps([(1, 1.0)], None), f"1: null in column 'features'. {FILL}."),
        (maps([(1, 1.0)], [(2, 1.0), (3, None)]), IN_LIST),
        (one(pa.array([[(1, 1.0)], [(2, 1.0), None]], pa.list_(PAIR))), IN_LIST),
        (one(pa.array([[(1, 1.0)], [(None, 1.0)]], pa.list_(PAIR))), IN_LIST),
        ({"f0": [1.0, 2.0], "f1": [1.0, None]}, "1: null in column 'f1'."),
        ({"f0": [1.0, 2.0], "f1": [1.0, float("nan")]}, "1: value nan in column 'f1'. Values"),
        ({"f0": [1, 2], "f1": [1, 2**24 + 1]}, "1: value 16777217 in column 'f1' is an integer"),
    ],
)
def test_a_bad_row_of_any_layout_is_refused_by_its_place(tmp_path, columns, sentence):
    assert refusal(tmp_path, columns).startswith(GROUP + sentence)


@pytest.mark.parametrize(
    ("columns", "names", "sentence"),
    [
        (maps([("a", 1.0)], [("b", 1.0), ("b", 3.0)], key=TEXT), Hashing(1), "1: 'b' occurs"),
        (one(pa.array([["a"], ["c"]])), Vocabulary(("a", "b")), "1: 'c' is not in the vocabulary"),
        (one(pa.array([["a"], ["a", None]])), Hashing(4), IN_LIST),
        (maps([("n", 3e38)], [(name, 3e38) for name in "abc"], key=TEXT), Hashing(1), "1: value"),
    ],
)
def test_a_bad_name_is_refused_by_the_place_of_its_row(tmp_path, columns, names, sentence):
    assert refusal(tmp_path, columns, names=names).startswith(GROUP + sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"a\nb\na\n", ", line 3: 'a' is in line 1 too. A name has one column; remove one of them"),
        (b"a\n\nb\n", ", line 2: no name. Remove the line"),
        (b"", ": no names. A vocabulary has one name a line"),
        (b"a\n\xff\n", ": not UTF-8 (invalid start byte at byte 2). A vocabulary is text, one"),
    ],
)
def test_a_bad_vocabulary_is_refused_by_its_line(tmp_path, text, sentence):
    path = tmp_path / "v.txt"
    path.write_bytes(text)
    assert refused(lambda: load_vocabulary(str(path))).startswith(f"{path}{sentence}")


def test_a_vocabulary_is_lines_of_either_ending_with_the_last_one_closed_or_not(tmp_path):
    path = tmp_path / "v.txt"
    for text in ("a\nb c\n", "a\r\nb c\r\n", "\ufeffa\nb c"):
        path.write_bytes(text.encode())
        assert load_vocabulary(str(path)).names == ("a", "b c")


# A data set and its model ------------------------------------------------------------------------


def test_a_name_beyond_the_vocabulary_weighs_0_and_is_counted_but_refused_in_fit(tmp_path):
    path, names = tmp_path / "a.parquet", tmp_path / "names.txt"
    names.write_text("ham\nspam\n")
    pq.write_table(pa.table({"tokens": [["spam"], ["ham"]] * 4, "y": [1, -1] * 4}), path)
    model = fit(path, vocabulary=str(names))
    [before] = predict(model, path)
    strange = [["spam", "new", "newer"], ["new", "ham"]] * 4
    pq.write_table(pa.table({"tokens": strange, "y": [1, -1] * 4}), path)
    [after] = predict(model, path)
    assert after.decisions.tolist() == before.decisions.tolist()
    assert (before.out_of_range, after.out_of_range) == (0, 12)
    assert write_predictions(model, path, tmp_path / "out").out_of_range == 12
    assert evaluate(model, path).accuracy == 1
    with pytest.raises(DataError, match="'new' is not in the vocabulary of 2 names"):
        fit(path, vocabulary=str(names))
    with pytest.raises(DataError, match="'new' is not in the vocabulary of 2 names"):
        list(open_shards([str(path)], reading_from_model(model)).chunks())


def test_vocabularies_of_the_same_names_share_a_cache_and_of_others_do_not():
    reading = ReaderConfig(names=Vocabulary(("a", "b")))
    settled = [replace(reading, settled=Settled("map of names", by=name)) for name in "ab"]
    assert settled[0].key() == settled[1].key()
    assert reading.key() == ReaderConfig(names=Vocabulary(("a", "b"))).key()
    assert reading.key() != ReaderConfig(names=Vocabulary(("b", "a"))).key()
    assert reading.key() != ReaderConfig().key()
    for other in (
        {"unknown_features": "out_of_range"},
        {"features": ("a",)},
        {"values_column": ""},
        {"names": Hashing(5)},
        {"names": Hashing(5, 3)},
        {"multilabel": True},
        {"weights_in_label": True},
    ):
        assert reading.key() != replace(reading, **other).key()
    assert replace(reading, names=Hashing(5)).key() != replace(reading, names=Hashing(5, 3)).key()
    assert len(str(reading.key()["vocabulary"])) == 32, "a digest, for vocabularies may be large"


def test_text_with_a_hash_or_named_columns_is_refused(tmp_path):
    path = tmp_path / "a.svm"
    path.write_text("1 1:1\n-1 2:1\n")
    named = [{name: "f"} for name in ("features", "label", "weight", "values", "text")]
    for names in ({"hash_bits": 3}, {"columns": ["f:number"]}, *named):
        with pytest.raises(SettingsError, match=r"a\.svm: libsvm text has column numbers"):
            fit(path, **names)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"hash_bits": 0}, "hash-bits is 0: expected 1 to 31."),
        ({"hash_bits": 32}, "hash-bits is 32: expected 1 to 31."),
        ({"hash_seed": -1}, "hash-seed is -1: expected 0 to 4,294,967,295."),
        ({"features": "a,,b"}, "features is 'a,,b': expected names of columns."),
        ({"hash_bits": 3, "vocabulary": "v"}, "hash-bits and vocabulary: give one"),
        ({"multilabel": True, "multiclass": True}, "multi"),
        ({"multilabel": True, "weights_in_label": True}, "weights-in-label with multilabel"),
    ],
)
def test_settings_of_names_out_of_range_are_refused(names, sentence):
    assert refused(lambda: Settings(**names), SettingsError).startswith(sentence)


def test_features_are_names_between_commas_or_a_list_of_them():
    assert Settings(features="a, b").features == ("a", "b")
    assert Settings.from_dict({"features": ["a,b", "c"]}).features == ("a,b", "c")
    assert Settings(features=("a",)).to_dict()["features"] == ["a"]


# Parquet that Spark itself wrote: tests/files/write_with_spark.py says how ----------------------

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


# Shards behind the first: what it has no place for is refused, never dropped ---------------------

Table = dict[str, Any]

LABELS = [1, -1, 1, -1]
LISTS: Table = {"indices": [[0], [1], [0, 2], [1, 2]], "label": LABELS}
VALUES = [[2.0], [3.0], [4.0, 5.0], [6.0, 7.0]]
COLUMNS: Table = {"f0": [1.0, 0.0, 2.0, 0.0], "f1": [0.0, 1.0, 0.0, 3.0], "label": LABELS}


def refusal_of_later(directory: Path, first: Table, second: Table, **reading: Any) -> str:
    """The sentence on the second of two shards; the first one alone is read."""
    tables = enumerate((first, second))
    paths = [write_table(directory / f"{k}.parquet", table) for k, table in tables]
    config = ReaderConfig(**reading)
    assert sum(map(len, chunks_in(paths[0], reading=config))) == 4
    sentence = refused(lambda: chunks_in(*paths, reading=config))
    assert sentence.startswith("1.parquet: ")
    assert "0.parquet" in sentence
    return sentence


def nines(*names: str) -> Table:
    return {name: [9.0] * 4 for name in names}


@pytest.mark.parametrize(
    ("first", "features", "more", "words"),
    [
        (LISTS, None, {"values": VALUES}, "'values' may hold the values of the features, and"),
        (LISTS, None, {"weights_of_words": VALUES}, "'weights_of_words' may hold"),
        (LISTS, None, {"tokens": LISTS["indices"]}, "'tokens' would be features too"),
        (COLUMNS, None, nines(*map("f{}".format, range(2, 30))), "'f5', 'f6', … 23 more would be"),
        (COLUMNS, None, nines("f2"), "'f2' would be features too, and 0.parquet has none of"),
        (COLUMNS, None, nines("age"), "name those to read with --features NAME,NAME,…"),
    ],
)
def test_a_column_that_the_first_shard_lacks_is_not_dropped(first, features, more, words, tmp_path):
    assert words in refusal_of_later(tmp_path, first, first | more, features=features)


def test_a_shard_of_another_layout_is_refused_naming_both(tmp_path):
    first, second = (
        write_table(tmp_path / name, LAYOUTS[layout]([{0: 1.0}, {1: 2.0}] * 2) | {"label": LABELS})
        for name, layout in (("0.parquet", "map"), ("1.parquet", "lists"))
    )
    for read, place in (
        (lambda: chunks_in(first, second), "0.parquet"),
        (lambda: list(predict(fit(first), second)), "the model"),
    ):
        assert refused(read).startswith(
            "1.parquet: 'features' of type list<element: uint8> holds lists of column numbers, and "
            f"the features are maps from column numbers to values in {place}. All shards need "
        )


def test_shards_with_values_are_no_rows_of_ones_unless_all_are_said_to_be_1(tmp_path):
    ones = write_table(tmp_path / "ones.parquet", LISTS)
    new = write_table(tmp_path / "new.parquet", LISTS | {"values": VALUES})
    model = fit(ones)
    for score in (lambda: list(predict(model, new)), lambda: evaluate(model, new)):
        with pytest.raises(DataError, match=r"^new\.parquet: 'values' may hold .* the model, wher"):
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
