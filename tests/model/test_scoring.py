"""Rows in memory: by position in matrices, by name in frames, records and tokens, or refused."""

from importlib import import_module
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import streamtron
from streamtron.model.scoring import labels_of, rows_of
from tests.helpers.models import make_model, refused

FRAME = {"age": [1.0, 0.0, 2.0], "size": [0.0, 3.0, 1.0], "pay": [5.0, 0.0, 1 / 3]}
RECORDS = [dict(zip(FRAME, row, strict=True)) for row in zip(*FRAME.values(), strict=True)]
MATRIX = np.array([*FRAME.values()]).T
TABLE = {"layout": "columns", "features": ["age", "size", "pay"], "label": "y", "weight": "w"}
WORDS = {"layout": "map of names", "features": ["bag"], "vocabulary": [*FRAME]}
HASHED = {"layout": "lists of names", "features": ["words"], "hash_bits": 10}


def frame(kind: str, columns: dict[str, Any]) -> Any:
    """A data frame of the library ``kind``."""
    if kind == "pyarrow":
        return pa.table(columns)
    if kind == "record batch":
        return pa.record_batch(columns)
    if kind == "lazy":
        return polars.LazyFrame(columns)
    return import_module(kind).DataFrame(columns)


KINDS = ["pyarrow", "record batch", "pandas", "polars", "lazy"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reading", [TABLE, WORDS])
def test_the_columns_of_a_frame_are_found_by_their_names_in_any_order(kind, reading):
    model = make_model(**reading)
    assert model.feature_names == ("age", "size", "pay")
    expected = model.decision_function(MATRIX)
    for names in (["age", "size", "pay"], ["pay", "age", "size"]):
        X = frame(kind, {name: FRAME[name] for name in names})
        assert model.decision_function(X).tolist() == expected.tolist()
        assert model.predict(X).tolist() == labels_of(model, expected).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_with_other_columns_is_refused_but_may_hold_labels_and_weights(kind):
    model = make_model(**TABLE)
    with_both = frame(kind, {"y": ["a", "b", "a"], **FRAME, "w": [1, 1, 1]})
    assert model.decision_function(with_both).tolist() == model.decision_function(MATRIX).tolist()
    less = {name: FRAME[name] for name in ("age", "size")}
    assert "X: no column 'pay'" in refused(lambda: model.predict(frame(kind, less)))
    more = refused(lambda: model.predict(frame(kind, {**FRAME, "height": [1, 2, 3]})))
    assert "X: unknown columns 'height'. Give those of model.feature_names" in more
    text = frame(kind, {**FRAME, "age": ["1", "2", "3"]})
    assert "column 'age' holds" in refused(lambda: model.predict(text))
    if kind in ("pyarrow", "pandas"):  # others have no name twice
        names = ["age", "pay", "size", "pay"]
        twice = pa.table([[1.0]] * 4, names=names)
        twice = pandas.DataFrame(np.eye(4), columns=names) if kind == "pandas" else twice
        assert "X: two columns of one name" in refused(lambda: model.predict(twice))


def test_a_frame_may_hold_names_that_never_occurred_and_have_no_weight():
    model = make_model(layout="columns", features=["age", "size", "pay", "always 0"])
    expected = model.decision_function(MATRIX).tolist()
    assert model.decision_function(pa.table(FRAME | {"always 0": [7.0, 0, 1]})).tolist() == expected
    assert "no column 'always 0'" in refused(lambda: model.decision_function(pa.table(FRAME)))


def test_whole_numbers_and_booleans_are_numbers_and_nulls_are_refused():
    model = make_model(**TABLE)
    X = pa.table({"age": pa.array([1, 0], pa.int8()), "size": [True, False], "pay": [0.5, 2.5]})
    expected = model.decision_function(np.array([[1, 1, 0.5], [0, 0, 2.5]]))
    assert model.decision_function(X).tolist() == expected.tolist()
    for odd in (None, float("nan"), float("inf")):
        with_odd = pa.table({**FRAME, "pay": [1.0, odd, 2.0]})
        assert "nan or inf" in refused(lambda X=with_odd: model.predict(X))


def test_a_model_without_names_takes_matrices_and_no_named_columns():
    named, plain = make_model(**TABLE), make_model()
    assert plain.feature_names == ()
    for X in (MATRIX, MATRIX.tolist(), sparse.csr_array(MATRIX), sparse.csc_matrix(MATRIX)):
        assert named.decision_function(X).tolist() == plain.decision_function(X).tolist()
    numbered = pandas.DataFrame(MATRIX)
    assert plain.decision_function(numbered).tolist() == plain.decision_function(MATRIX).tolist()
    assert "unknown columns 0, 1, 2" in refused(lambda: named.predict(numbered))
    sentence = refused(lambda: plain.predict(pa.table(FRAME)))
    assert "named columns, and the model's features have no names" in sentence


def test_records_of_a_table_have_every_feature_in_any_order():
    model = make_model(**TABLE)
    expected = model.decision_function(MATRIX).tolist()
    turned = [dict(reversed(record.items())) | {"y": "a label"} for record in RECORDS]
    for X in (RECORDS, turned, np.array(RECORDS, dtype=object)):
        assert model.decision_function(X).tolist() == expected
    short = [*RECORDS, {"age": 1.0}]
    assert "X: no column 'size', 'pay'" in refused(lambda: model.predict(short))
    for odd in ("1", None, float("nan"), [1]):
        wrong = [{**RECORDS[0], "pay": odd}]
        assert refused(lambda X=wrong: model.predict(X))
    assert "give records" in refused(lambda: model.predict([["age", "pay"]])).lower()


def test_a_vocabulary_takes_records_and_tokens_and_unknown_names_weigh_nothing():
    model = make_model(**WORDS)  # weights 1.5, −2, 0.1 and bias 0.25
    assert model.decision_function(
        [["age"], ["pay", "age", "pay"], ["unheard of"], [], ("size",)]
    ).tolist() == pytest.approx([1.75, 1.95, 0.25, 0.25, -1.75])
    assert model.decision_function(
        [{"age": 2.0, "unheard of": 9.0}, {}, {"size": True}]
    ).tolist() == [3.25, 0.25, -1.75]
    assert model.decision_function([[]]).tolist() == [0.25]
    assert rows_of(model, [["unheard of"], ["pay"]]).indices.tolist() == [2]
    assert model.decision_function(pa.array([["age"], []])).tolist() == [1.75, 0.25]


BAGS = pa.map_(pa.string(), pa.float64())


@pytest.mark.parametrize("names", [{"hash_bits": 3}, {"hash_bits": 12}])
def test_records_and_tokens_are_decided_as_predict_decides_the_same_rows_in_shards(tmp_path, names):
    rng = np.random.default_rng(0)
    words = [f"w{k}" for k in range(30)]
    tokens = [rng.choice(words, rng.integers(0, 6)).tolist() for _ in range(60)]
    # eighths, so that float32 holds them and their sums
    bags = [{w: float(rng.integers(1, 40)) / 8 for w in row} for row in tokens]
    labels = [int(len(row) > 2) for row in tokens]
    for column, rows, type_ in (
        ("words", tokens, pa.list_(pa.string())),
        ("features", [[*bag.items()] for bag in bags], BAGS),
    ):
        path = tmp_path / f"{column}.parquet"
        pq.write_table(pa.table({column: pa.array(rows, type_), "label": labels}), path)
        model = streamtron.fit(path, **names)
        [scores] = streamtron.predict(model, path)
        ours = model.decision_function(tokens if column == "words" else bags)
        assert ours.tolist() == scores.decisions.tolist()


MAIL = {
    "body": ["Cheap pills, cheap!", "Notes of the café", "", "cheap notes", "PILLS"] * 8,
    "size": [3, 0, 8, 1, 2] * 8,
    "lang": ["en", "fr", "en", "de", "en"] * 8,
    "label": [1, 0, 0, 1, 1] * 8,
}


@pytest.mark.parametrize("columns", [None, ("size:number", "lang:category")])
def test_documents_are_decided_as_predict_decides_them_in_files_or_refused(tmp_path, columns):
    path = tmp_path / "mail.parquet"
    pq.write_table(pa.table(MAIL), path)
    model = streamtron.fit(path, text="body", columns=columns)
    [scores] = streamtron.predict(model, path)
    records = [dict(zip(MAIL, row, strict=True)) for row in zip(*MAIL.values(), strict=True)]
    kinds = [pa.table(MAIL), polars.LazyFrame(MAIL), records]
    if columns is None:
        kinds.append(MAIL["body"])
    else:
        assert "X: no column 'size', 'lang'" in refused(lambda: model.predict(MAIL["body"]))
        row = {"body": "cheap", "size": "much", "lang": "en"}
        assert "'size'" in refused(lambda: model.predict([row]))
    for X in kinds:  # those of shards are rounded to float32
        assert model.decision_function(X) == pytest.approx(scores.decisions, abs=1e-6)
    assert "no column 'body'" in refused(lambda: model.predict([{"size": 1, "lang": "en"}]))


def test_the_order_of_names_in_a_record_changes_no_bit():
    rng = np.random.default_rng(3)
    model = make_model(rng.normal(size=8), hash_bits=3, layout="map of names")
    bags = [{f"w{k}": rng.random() / 3 for k in range(20)} for _ in range(50)]
    turned = [dict(reversed(bag.items())) for bag in bags]
    assert model.decision_function(turned).tolist() == model.decision_function(bags).tolist()


@pytest.mark.parametrize(
    ("reading", "X", "sentence"),
    [
        (TABLE, ["age"], "X: text, and the model was not fitted on text"),
        (WORDS, ["a text"], "Give lists of tokens"),
        (WORDS, [["age"], {"age": 1}], "X: rows of records and tokens"),
        (WORDS, [["age", 3]], "X: the name 3, expected text"),
        (WORDS, [{"age": "x"}], "X: 'age' is 'x', expected a finite number"),
        (WORDS, [{"age": 10**400}], "expected a finite number of at most 1e+140"),
        (
            TABLE,
            pa.table(FRAME).set_column(0, "age", pa.array([1, 2, 3], pa.time64("ns"))),
            "X: column 'age' (Value 1 has non-zero nanoseconds), expected numbers",
        ),
        (WORDS, [[], [1.0, 2.0, 3.0]], "X: rows of unequal lengths"),
        (HASHED, pa.table(FRAME), "where names are hashed records or lists of tokens"),
        ({}, [["age"]], "the model's features have none"),
        ({}, [{"age": 1.0}], "the model's features have none"),
        ({}, [[1.0, 2.0]], "expected numbers of shape (rows, 3)"),
        ({}, [[1.0, 2.0, 3.0, 4.0]], "expected numbers of shape (rows, 3)"),
        ({}, [1.0, 2.0, 3.0], "of shape (3,)"),
        ({}, [[]], "of shape (1, 0)"),
        ({}, [], "of shape (0,)"),
        ({}, np.array([["1", "2", "3"]]), "<U1 of shape (1, 3), expected numbers"),
        ({}, np.array([[0, np.nan, 0]]), "holds nan or inf"),
        ({}, np.ma.masked_equal([[0, 3, 0]], 3), "values that are masked"),
        ({}, sparse.csr_array([[0, np.inf, 0]]), "holds nan or inf"),
        ({}, np.array([[1e200, -1e200, 0]]), "or a value beyond 1e+140"),  # decided by inf - inf
    ],
)
def test_rows_of_another_kind_are_refused_in_a_sentence(reading, X, sentence):
    model = make_model(**reading)
    for decide in (model.decision_function, model.predict):
        assert sentence in refused(lambda decide=decide: decide(X))
