"""The layouts of features in tables: the same rows in all of them, what they refuse, how found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.feature_names import Hashing, Vocabulary, load_vocabulary
from streamtron.data import open_shards
from streamtron.data.formats.columns import find_columns, resolve_layout
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.formats.recipe import Recipe
from streamtron.data.formats.table_rows import make_batch
from streamtron.data.reader_config import ReaderConfig, Settled
from streamtron.data.row_batch import RowBatch
from streamtron.model.linear_model import LinearModel
from streamtron.runs.convert import convert
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import fit
from streamtron.runs.inputs import reading_from_model
from streamtron.runs.predict import predict, write_predictions
from tests.helpers.examples import examples, slow_but
from tests.helpers.layouts import (
    LAYOUTS,
    NAMES,
    PAIR,
    VECTOR,
    WIDTH,
    Row,
    dense,
    named,
    one,
    sparse,
    write_table,
)
from tests.helpers.models import refused
from tests.helpers.shard_rows import chunks_in, rows_of

FAST = (
    "lists", "large list of pairs", "map of names", "lists of names, dictionary-encoded",
    "sparse and dense vectors", "columns of numbers",
)  # fmt: skip
"""Of every kind of layout one."""

values = st.floats(-100, 100, width=32).filter(lambda value: value != 0)
rows_with_values = st.lists(
    st.dictionaries(st.integers(0, WIDTH - 1), values, max_size=WIDTH), min_size=1, max_size=12
)


def read(directory: Path, columns: dict[str, Any], reading: ReaderConfig) -> list[RowBatch]:
    path = write_table(directory / "rows.parquet", columns, 5)
    return list(ParquetReader(str(path), "rows.parquet", reading).batches())


def refusal(directory: Path, columns: dict[str, Any], **reading: Any) -> str:
    config = ReaderConfig(labels="optional", **reading)
    return refused(lambda: read(directory, columns, config), StreamtronError)


def rows_in(*given: Any) -> list[Any]:
    """Columns and values of all rows."""
    return [row[1:3] for row in rows_of(read(*given))]


# The same rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", slow_but(LAYOUTS, *FAST))
@settings(deadline=None, max_examples=examples(100))
@given(rows=rows_with_values)
def test_the_same_rows_in_any_layout_give_the_same_bits(layout, rows, tmp_path_factory):
    directory = tmp_path_factory.mktemp("layout")
    labels = {"extra": [[None]] * len(rows), "y": list(range(len(rows))), "name": ["x"] * len(rows)}
    columns = LAYOUTS[layout](rows)
    reading = ReaderConfig(names=Vocabulary(NAMES) if named(columns) else None)
    batches = read(directory, labels | columns, reading)
    wanted = [
        (float(k), sorted(row), [row[j] for j in sorted(row)], 1.0) for k, row in enumerate(rows)
    ]
    assert rows_of(batches) == wanted
    for batch in batches:
        assert (batch.indptr.dtype, batch.indices.dtype) == (np.int64, np.uint32)
        assert batch.values.dtype == np.float32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slice_of_a_longer_batch_gives_its_own_rows(layout):
    rows = [{5: 1.0}, {}, {0: 2.0, 3: 3.0}, {1: 4.0}, {0: 5.0, 5: 6.0}]
    columns = LAYOUTS[layout](rows)
    names = Vocabulary(NAMES) if named(columns) else None
    reading = ReaderConfig(labels="optional", names=names)
    part = pa.record_batch(columns).slice(1, 3)
    batch = make_batch(part, find_columns(part.schema, reading, "f"), Spot("f", "", 0), reading)
    wanted = [([], []), ([0, 3], [2.0, 3.0]), ([1], [4.0])]
    assert [row[1:3] for row in rows_of([batch])] == wanted


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


def test_a_list_of_names_counts_how_often_each_occurs(tmp_path):
    tokens = pa.array([["b", "a", "b", "b"], [], ["a"]])
    reading = ReaderConfig(labels="optional", names=Vocabulary(("a", "b")))
    wanted = [([0, 1], [1.0, 3.0]), ([], []), ([0], [1.0])]
    assert rows_in(tmp_path, {"tokens": tokens}, reading) == wanted


def test_columns_of_numbers_take_integers_booleans_and_floats_and_store_no_zeros(tmp_path):
    columns = {
        "a": pa.array([1, 0, -3], pa.int64()), "b": pa.array([True, False, True]),
        "c": pa.array([0.0, -0.0, 0.1], pa.float16()),
    }  # fmt: skip
    reading = ReaderConfig(labels="optional", features=("c", "a", "b"))
    wanted = [([1, 2], [1.0, 1.0]), ([], []), ([0, 1, 2], [float(np.float16(0.1)), -3.0, 1.0])]
    assert rows_in(tmp_path, columns, reading) == wanted


# How they are found ------------------------------------------------------------------------------

NUMBER, MAP = pa.float64(), pa.map_(pa.int32(), pa.float32())


@pytest.mark.parametrize(
    ("schema", "features", "wanted"),
    [
        ({"f2": NUMBER, "y": NUMBER, "f10": NUMBER, "id": NUMBER, "f1": NUMBER}, None,
         ("columns", ("f1", "f2", "f10"))),
        ({"y": NUMBER, "price": NUMBER, "id": NUMBER, "name": pa.string()}, ("*",),
         ("columns", ("price", "id"))),
        ({"b1": NUMBER, "y": NUMBER, "a": NUMBER, "b0": NUMBER}, ("a", "b*"),
         ("columns", ("a", "b1", "b0"))),
        ({"a*": NUMBER, "ab": NUMBER, "y": NUMBER}, ("a*",), ("columns", ("a*",))),
        ({"features": NUMBER, "f0": NUMBER, "y": NUMBER}, None, ("columns", ("f0",))),
        ({"x0": NUMBER, "features": VECTOR, "y": NUMBER}, None, ("vector", ("features",))),
        ({"bag": MAP, "indices": pa.list_(NUMBER), "y": NUMBER}, ("bag",), ("map", ("bag",))),
        ({"words": pa.list_(pa.dictionary(pa.int8(), pa.string())), "y": NUMBER}, None,
         ("lists of names", ("words",))),
        ({"features": pa.list_(pa.struct({"term": pa.string(), "tfidf": NUMBER})), "y": NUMBER},
         None, ("pairs of names", ("features",))),
    ],
)  # fmt: skip
def test_the_layout_is_told_by_names_and_types(schema, features, wanted):
    bits = 3 if "names" in wanted[0] else None
    reading = ReaderConfig(features=features, names=Hashing(bits) if bits else None)
    columns = find_columns(pa.schema(schema), reading, "f")
    assert (columns.layout, columns.features) == wanted


@pytest.mark.parametrize(
    ("schema", "reading", "sentence"),
    [
        ({"f0": NUMBER, "x0": NUMBER}, {},
         "'f0' and 'x0' could all be the features. Say which with --features NAME"),
        ({"features": MAP, "tokens": pa.list_(pa.string())}, {},
         "'features' and 'tokens' could all be the features."),
        ({"features": pa.list_(pa.bool_())}, {}, "no column for the features"),
        ({"a": NUMBER}, {"features": ("b*",)}, "no column for the features, looked for 'b*'."),
        ({"a": NUMBER}, {"features": ("a", "?")}, "'a' is named twice among the features."),
        ({"a": NUMBER, "w": NUMBER}, {"features": ("a", "w"), "label_column": "w"},
         "'w' is both the label and a feature. Leave it out of the features, or name another"),
        ({"a": NUMBER, "w": NUMBER}, {"recipe": Recipe.of("w:number"), "weight_column": "w"},
         "'w' is both the weight and a feature."),
        ({"a": NUMBER, "bag": MAP}, {"features": ("a", "bag")},
         "of 2 columns of features 'bag' is of type map<int32, float>. Name one list, map"),
        ({"a": pa.date32()}, {"features": ("a",)},
         "column 'a' of type date32[day] cannot be the features, which are lists of column"),
        ({"tokens": pa.list_(pa.string())}, {}, "the features in 'tokens' are lists of names. "
         "Names need columns: give --hash-bits N or --vocabulary FILE."),
        ({"features": MAP}, {"names": Hashing(8)}, "the features in 'features' are maps from "
         "column numbers to values, which need neither --hash-bits nor --vocabulary."),
        ({"features": VECTOR}, {"index_base": 1}, "the features in 'features' are Spark vectors, "
         "whose first column is 0. Give --index-base 0."),
        ({"features": MAP, "v": pa.list_(NUMBER)}, {"values_column": "v"}, "the features in "
         "'features' are maps from column numbers to values, which hold their values. Leave --val"),
        *(
            ([("f0", NUMBER), ("f1", NUMBER), ("f0", NUMBER)], {"features": features},
             "2 columns 'f0' could all be the features")
            for features in (None, ("f0",), ("f*",))
        ),
        ([("f0", NUMBER), ("y", NUMBER), ("y", NUMBER)], {"label_column": "y"},
         "2 columns 'y' could all be the labels"),
    ],
)  # fmt: skip
def test_features_that_are_ambiguous_absent_or_unsuited_are_refused(schema, reading, sentence):
    config = ReaderConfig(labels="optional", **reading)
    message = refused(lambda: find_columns(pa.schema(schema), config, "f"), StreamtronError)
    assert message.startswith(f"f: {sentence}")


def test_of_a_wide_table_a_message_names_the_first_columns():
    schema = pa.schema({f"c{k}": NUMBER for k in range(1000)})
    with pytest.raises(DataError, match=r"c39 double, … 960 more\)\."):
        find_columns(schema, ReaderConfig(labels="optional"), "f")


def test_once_settled_patterns_and_usual_names_are_names_and_nothing_else():
    schema = pa.schema({"a*": NUMBER, "b": NUMBER, "target": NUMBER})
    settled = resolve_layout(schema, ReaderConfig(features=("*",)), "first")
    assert (settled.features, settled.label_column) == (("a*", "b"), "target")
    other = pa.schema({"ab": NUMBER, "b": NUMBER, "y": NUMBER, "target": NUMBER})
    with pytest.raises(DataError, match=r"looked for 'a\*'"):
        find_columns(other, settled, "second")


# What is refused in rows -------------------------------------------------------------------------

GROUP = "rows.parquet, row group 0, row "


def maps(*rows: Any, key: Any = None) -> dict[str, Any]:
    return one(pa.array(rows, pa.map_(key or pa.int32(), pa.float64())))


def vectors(*rows: Any) -> dict[str, Any]:
    return one(pa.array(rows, VECTOR))


FILL = "Fill it in or remove the row"
IN_LIST = "1: a null in the list of column 'features'. Remove it or fill it in."
AS_MANY = "in column 'features'. A sparse one has as many of both, a dense one has no indices."


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (maps([(1, 1.0)], None), f"1: null in column 'features'. {FILL}."),
        (maps([(1, 1.0)], [(2, 1.0), (3, None)]), IN_LIST),
        (one(pa.array([[(1, 1.0)], [(2, 1.0), None]], pa.list_(PAIR))), IN_LIST),
        (one(pa.array([[(1, 1.0)], [(None, 1.0)]], pa.list_(PAIR))), IN_LIST),
        (vectors(sparse({1: 1.0}), None), f"1: null in column 'features'. {FILL}."),
        (vectors(sparse({1: 1.0}), sparse({1: 1.0}) | {"type": None}),
         f"1: null in column 'features.type'. {FILL}."),
        (vectors(sparse({1: 1.0}), sparse({5: 1.0}, size=5)),
         "1: column 5 in a sparse vector of size 5 in 'features'. Indices run from 0 to size - 1."),
        (vectors(dense({1: 1.0}), sparse({1: 1.0}) | {"type": 2}),
         "1: a vector of type 2 in column 'features'. 0 is sparse and 1 dense."),
        (vectors(sparse({}), dense({}), sparse({1: 1.0, 2: 2.0}) | {"values": [1.0]}),
         f"2: a sparse vector of 1 values and 2 indices {AS_MANY}"),
        (vectors(dense({1: 1.0}) | {"indices": [1]}),
         f"0: a dense vector of 6 values and 1 indices {AS_MANY}"),
        ({"f0": [1.0, 2.0], "f1": [1.0, None]},
         f"1: null in column 'f1'. {FILL}, or say what it is: --columns 'f1:number,null=mean'."),
        ({"f0": [1.0, 2.0], "f1": [1.0, float("nan")]},
         "1: value nan in column 'f1'. Values must be finite; remove it or the row."),
        ({"f0": [1, 2], "f1": [1, 2**24 + 1]},
         "1: value 16777217 in column 'f1' is an integer beyond 2²⁴ that float32 cannot hold. "
         "Rescale its column, or make identifiers columns of their own."),
    ],
)  # fmt: skip
def test_a_bad_row_of_any_layout_is_refused_by_its_place(tmp_path, columns, sentence):
    assert refusal(tmp_path, columns) == GROUP + sentence


@pytest.mark.parametrize(
    ("columns", "names", "sentence"),
    [
        (maps([("a", 1.0)], [("b", 1.0), ("a", 2.0), ("b", 3.0)], key=pa.string()), Hashing(1),
         "1: 'b' occurs twice. Add the values up or remove one."),
        (one(pa.array([["a"], ["a", "c", "c"]])), Vocabulary(("a", "b")),
         "1: 'c' is not in the vocabulary of 2 names. Add it at the vocabulary's end, remove it, "
         "or use --hash-bits."),
        (one(pa.array([["a"], ["a", None]])), Hashing(4), IN_LIST),
        (maps(*([(f"n{k}", 3e38)] for k in range(3)), [("a", 3e38), ("b", 3e38), ("c", 3e38)],
              key=pa.string()), Hashing(1), "3: value"),
    ],
)  # fmt: skip
def test_a_bad_name_is_refused_by_the_place_of_its_row(tmp_path, columns, names, sentence):
    assert refusal(tmp_path, columns, names=names).startswith(GROUP + sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"a\nb\na\n", ", line 3: 'a' is in line 1 too. A name has one column; remove one of them"),
        (b"a\n\nb\n", ", line 2: no name. Remove the line"),
        (b"", ": no names. A vocabulary has one name a line"),
        (b"a\n\xff\n", ": not UTF-8 (invalid start byte at byte 2). A vocabulary is text, one name"
         " a line; convert it"),
    ],
)  # fmt: skip
def test_a_bad_vocabulary_is_refused_by_its_line(tmp_path, text, sentence):
    path = tmp_path / "v.txt"
    path.write_bytes(text)
    assert refused(lambda: load_vocabulary(str(path))) == f"{path}{sentence}."


def test_a_vocabulary_is_lines_of_either_ending_with_the_last_one_closed_or_not(tmp_path):
    path = tmp_path / "v.txt"
    for text in ("a\nb c\n", "a\r\nb c\r\n", "\ufeffa\nb c"):
        path.write_bytes(text.encode())
        assert load_vocabulary(str(path)).names == ("a", "b c")


# A data set and its model ------------------------------------------------------------------------


def corpus(directory: Path, layout: str, shards: int = 2) -> list[Path]:
    """Rows of two separable classes in shards of a layout."""
    directory.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    paths = []
    for shard in range(shards):
        labels = [1 - 2 * (k % 2) for k in range(20)]
        rows = [
            {0: float(l), 1 + k % 5: float(random.integers(1, 9))} for k, l in enumerate(labels)
        ]
        paths.append(directory / f"part-{shard}.parquet")
        pq.write_table(pa.table({"label": labels} | LAYOUTS[layout](rows)), paths[-1])
    return paths


def settings_for(layout: str, directory: Path) -> dict[str, Any]:
    if "names" not in layout:
        return {}
    (directory / "names.txt").write_text("\n".join(NAMES))
    return {"vocabulary": str(directory / "names.txt")}


@pytest.mark.parametrize("layout", slow_but(LAYOUTS, *FAST))
def test_the_same_rows_in_any_layout_give_the_same_weights_and_predictions(layout, tmp_path):
    plain = fit(corpus(tmp_path / "plain", "lists"), C=1.0)
    shards = corpus(tmp_path / "shards", layout)
    fit(shards, model=tmp_path / "model", C=1.0, **settings_for(layout, tmp_path))
    model = LinearModel.load(tmp_path / "model")
    assert model.weights.tobytes() == plain.weights.tobytes()
    assert model.certificate == plain.certificate
    ours, theirs = (
        np.concatenate([scores.decisions for scores in predict(*given)])
        for given in ((model, shards), (plain, tmp_path / "plain"))
    )
    assert ours.tobytes() == theirs.tobytes()
    assert evaluate(model, shards).accuracy == evaluate(plain, tmp_path / "plain").accuracy
    assert str(tmp_path) not in (tmp_path / "model").read_bytes().decode("latin-1")


def test_the_models_contract_names_layout_columns_and_names(tmp_path):
    shards = corpus(tmp_path / "shards", "map of names")
    model = fit(shards, **settings_for("map of names", tmp_path))
    assert {name: value for name, value in model.reading.items() if value is not None} == {
        "columns": 6, "index_base": 0, "weights_in_label": False, "multiclass": False,
        "multilabel": False, "label": "label",
        "layout": "map of names", "features": ["features"], "values": "", "hash_seed": 0,
        "vocabulary": list(NAMES),
    }  # fmt: skip
    reading = reading_from_model(model)
    assert reading.contract() == {k: v for k, v in model.reading.items() if k != "columns"}


def test_a_model_reads_the_columns_it_was_fitted_on_though_others_have_usual_names(tmp_path):
    rows = [{0: 1.0}, {0: -1.0}] * 4
    bags = LAYOUTS["map"](rows)["features"]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"bag": bags, "spam": [1, -1] * 4}), path)
    model = fit(path, features=("bag",), label="spam")
    decoys = LAYOUTS["lists"](rows[1:] + rows[:1]) | {"label": [-1, 1] * 4}
    pq.write_table(pa.table(decoys | {"bag": bags, "spam": [1, -1] * 4}), path)
    assert evaluate(model, path).accuracy == 1
    pq.write_table(pa.table(decoys), path)
    with pytest.raises(DataError, match="looked for 'bag'"):
        list(predict(model, path))


def test_hash_bits_and_seed_are_the_models(tmp_path):
    path = tmp_path / "a.parquet"
    tokens = [["spam", "pills"], ["ham", "eggs"]] * 4
    pq.write_table(pa.table({"tokens": tokens, "y": [1, -1] * 4}), path)
    model = fit(path, hash_bits=10, hash_seed=7)
    assert set(np.flatnonzero(model.weights)) == set(
        Hashing(10, 7).columns(["spam", "pills", "ham", "eggs"]).tolist()
    )
    assert evaluate(model, path).accuracy == 1
    assert fit(path, hash_bits=10, hash_seed=8).weights.tolist() != model.weights.tolist()


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
        list(open_shards([str(path)], reading_from_model(model), cache_dir=None).chunks())


def test_a_shard_of_another_layout_is_refused_naming_both(tmp_path):
    model = fit(corpus(tmp_path / "data", "map", 2))
    vectors = corpus(tmp_path / "b", "sparse vectors")
    shutil.copy(vectors[1], tmp_path / "data" / "part-1.parquet")
    for read, place in (
        (lambda: chunks_in(tmp_path / "data"), "part-0.parquet"),
        (lambda: list(predict(model, vectors[1:])), "the model"),
    ):
        assert refused(read).startswith(
            "part-1.parquet: 'features' of type struct<type: int8, size: int32, indices: "
            "list<element: int32>, values: list<element: double>> holds Spark vectors, and the "
            f"features are maps from column numbers to values in {place}. All shards need "
        )


def test_columns_named_alike_in_another_order_of_the_file_are_the_same_features(tmp_path):
    rows = [{0: 1.0, 2: 0.5}, {1: -1.0}] * 3
    columns = LAYOUTS["columns of numbers"](rows) | {"y": pa.array([1, -1] * 3)}
    paths = [
        write_table(tmp_path / "a.parquet", columns),
        write_table(tmp_path / "b.parquet", dict(reversed(columns.items()))),
    ]
    first, second = chunks_in(*paths, allow_duplicate=True)
    for mine, other in zip(first.rows, second.rows, strict=True):
        assert mine.tolist() == other.tolist()


def test_vocabularies_of_the_same_names_share_a_cache_and_of_others_do_not():
    reading = ReaderConfig(names=Vocabulary(("a", "b")))
    settled = [replace(reading, settled=Settled("map of names", by=name)) for name in "ab"]
    assert settled[0].key() == settled[1].key()
    assert reading.key() == ReaderConfig(names=Vocabulary(("a", "b"))).key()
    assert reading.key() != ReaderConfig(names=Vocabulary(("b", "a"))).key()
    assert reading.key() != ReaderConfig().key()
    for other in ({"unknown_features": "out_of_range"}, {"features": ("a",)}, {"values_column": ""},
                  {"names": Hashing(5)}, {"names": Hashing(5, 3)}):  # fmt: skip
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


def test_converted_shards_are_the_same_rows_by_number(tmp_path):
    shards = corpus(tmp_path / "shards", "map of names")
    reading = Settings(**settings_for("map of names", tmp_path))
    for to in ("parquet", "libsvm"):
        convert(shards, tmp_path / to, to=to, settings=reading)
    plain = fit(corpus(tmp_path / "plain", "lists"))
    assert fit(tmp_path / "parquet").weights.tolist() == plain.weights.tolist()
    assert fit(tmp_path / "libsvm").weights.tolist() == plain.weights.tolist()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"hash_bits": 0}, "hash-bits is 0: wanted 1 to 31."),
        ({"hash_bits": 32}, "hash-bits is 32: wanted 1 to 31."),
        ({"hash_seed": -1}, "hash-seed is -1: wanted 0 to 2³²-1."),
        ({"features": "a,,b"}, "features is ('a', '', 'b'): wanted names of columns."),
        ({"hash_bits": 3, "vocabulary": "v"}, "hash-bits and vocabulary both give names their"),
    ],
)
def test_settings_of_names_out_of_range_are_refused(names, sentence):
    assert refused(lambda: Settings(**names), SettingsError).startswith(sentence)


def test_features_are_names_between_commas_or_a_list_of_them():
    assert Settings(features="a, b").features == ("a", "b")
    assert Settings.from_dict({"features": ["a,b", "c"]}).features == ("a,b", "c")
    assert Settings(features=("a",)).to_dict()["features"] == ["a"]


# Parquet that Spark itself wrote: tests/files/write_with_spark.py says how ----------------------

DATA = Path(__file__).parents[1] / "files"

AGE, HEIGHT, WEIGHT = range(3)
BUY, NOW, SEE, YOU = Hashing(20).columns(["buy", "now", "see", "you"]).tolist()
SPARK: dict[str, tuple[Any, list[tuple[float | str, Row]]]] = {
    "vectors": (None, [
        (1.0, {0: 0.5, 3: -2.0, 6: 1.25}), (0.0, {1: 1.5, 4: -0.1, 6: 3.0}), (1.0, {}),
        (0.0, {2: 1e-3}), (1.0, dict.fromkeys(range(7), 1.0)), (0.0, {}),
    ]),
    "maps": (Vocabulary(("age", "height", "weight")), [
        (1.0, {AGE: 0.5, HEIGHT: -2.0}), (0.0, {WEIGHT: 3.0}), (1.0, {}),
        (0.0, {AGE: 0.1, HEIGHT: 1.0, WEIGHT: 1.5}),
    ]),
    "words": (Hashing(20), [
        ("spam", {BUY: 1.0, NOW: 2.0}), ("ham", {SEE: 1.0, YOU: 1.0}), ("ham", {}),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("form", ["", "-legacy"])  # the latter with writeLegacyFormat
@pytest.mark.parametrize("kind", SPARK)
def test_vectors_maps_and_lists_of_spark_are_the_rows_that_it_was_given(kind, form):
    names, rows = SPARK[kind]
    path = DATA / f"spark-{kind}{form}.parquet"
    batches = list(ParquetReader(str(path), path.name, ReaderConfig(names=names)).batches())
    for (label, columns, values, _), (wanted, row) in zip(rows_of(batches), rows, strict=True):
        assert label == wanted
        assert dict(zip(columns, values, strict=True)) == {c: np.float32(x) for c, x in row.items()}


def test_a_fit_on_a_directory_of_spark_gives_the_model_of_the_rows_in_text(tmp_path):
    directory, text = tmp_path / "table", tmp_path / "rows.svm"
    directory.mkdir()
    (directory / "_SUCCESS").touch()
    (directory / ".part-00000.snappy.parquet.crc").write_bytes(b"crc")
    shutil.copy(DATA / "spark-vectors.parquet", directory / "part-00000.snappy.parquet")
    text.write_text("".join(
        f"{label:g} {' '.join(f'{c}:{x!r}' for c, x in row.items())}\n"
        for label, row in SPARK["vectors"][1]
    ))  # fmt: skip
    ours, theirs = fit(str(directory)), fit(str(text), index_base=0)
    assert ours.weights.tobytes() == theirs.weights.tobytes()
    assert ours.bias == theirs.bias
    assert np.count_nonzero(ours.weights) > 0
