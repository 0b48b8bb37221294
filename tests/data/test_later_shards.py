"""Shards behind the first: what the first one has no place for is refused, never dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamtron.core.config import Settings
from streamtron.core.errors import DataError
from streamtron.data import open_shards
from streamtron.data.reader_config import ReaderConfig
from streamtron.model.linear_model import LinearModel
from streamtron.runs.convert import convert
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import fit
from streamtron.runs.predict import predict, write_predictions
from tests.helpers.layouts import write_table
from tests.helpers.models import refused
from tests.helpers.shard_rows import chunks_in

Table = dict[str, Any]

LABELS = [1, -1, 1, -1]
LISTS: Table = {"indices": [[0], [1], [0, 2], [1, 2]], "label": LABELS}
VALUES = [[2.0], [3.0], [4.0, 5.0], [6.0, 7.0]]
COLUMNS: Table = {"f0": [1.0, 0.0, 2.0, 0.0], "f1": [0.0, 1.0, 0.0, 3.0], "label": LABELS}


def pairs(**values: Any) -> pa.Array:
    """A pair of these fields, in their order, in each of four rows."""
    fields = {name: pa.array(column).type for name, column in values.items()}
    rows = [[dict(zip(values, row, strict=True))] for row in zip(*values.values(), strict=True)]
    return pa.array(rows, pa.list_(pa.struct(fields)))


@pytest.fixture(params=["parquet", "arrow"])
def suffix(request):
    return str(request.param)


def refusal(directory: Path, suffix: str, first: Table, second: Table, **reading: Any) -> str:
    """The sentence on the second of two shards; the first one alone is read."""
    tables = enumerate((first, second))
    paths = [write_table(directory / f"{k}.{suffix}", table) for k, table in tables]
    config = ReaderConfig(**reading)
    assert sum(map(len, chunks_in(paths[0], reading=config))) == 4
    sentence = refused(lambda: chunks_in(*paths, reading=config))
    assert sentence.startswith(f"1.{suffix}: ")
    assert f"0.{suffix}" in sentence
    return sentence


@pytest.mark.parametrize(
    ("first", "more", "words"),
    [
        (LISTS, {"values": VALUES}, "'values' may hold the values of the features, and there is no "
         "such column in 0."),
        (LISTS, {"values": VALUES}, "all values are 1. Add the values there, remove the column"),
        (LISTS, {"weights_of_words": VALUES}, "'weights_of_words' may hold"),
        (LISTS, {"tokens": LISTS["indices"]}, "'tokens' would be features too"),
        (COLUMNS, {f"f{k}": [9.0] * 4 for k in range(2, 30)}, "'f5', 'f6', … 23 more would be"),
    ],
)  # fmt: skip
def test_a_column_that_the_first_shard_has_not_is_not_dropped(first, more, words, tmp_path, suffix):
    assert words in refusal(tmp_path, suffix, first, first | more)


def test_values_are_all_1_in_every_shard_where_that_was_said(tmp_path):
    plain = write_table(tmp_path / "0.parquet", LISTS)
    valued = write_table(tmp_path / "1.parquet", LISTS | {"values": VALUES})
    chunks = chunks_in(plain, valued, reading=ReaderConfig(values_column=""))
    assert [set(chunk.rows.values.tolist()) for chunk in chunks] == [{1.0}, {1.0}]


def test_a_model_of_ones_does_not_score_shards_with_values(tmp_path):
    fit(write_table(tmp_path / "ones.parquet", LISTS), model=tmp_path / "model")
    fit(write_table(tmp_path / "ones.parquet", LISTS), model=tmp_path / "said", values="")
    new = write_table(tmp_path / "new.parquet", LISTS | {"values": VALUES})
    model = LinearModel.load(tmp_path / "model")
    for score in (lambda: list(predict(model, new)), lambda: evaluate(model, new)):
        with pytest.raises(DataError, match=r"^new\.parquet: 'values' may hold .* the model, wher"):
            score()
    assert sum(len(s.decisions) for s in predict(LinearModel.load(tmp_path / "said"), new)) == 4


@pytest.mark.parametrize(
    ("features", "more"),
    [(None, ["f2"]), (("f*",), ["f2"]), (("*",), ["age"]), (("f0", "f[1-9]"), ["f2", "f7"])],
)
def test_more_columns_of_numbers_in_a_later_shard_are_not_dropped(features, more, tmp_path, suffix):
    second = COLUMNS | {name: [9.0] * 4 for name in more}
    sentence = refusal(tmp_path, suffix, COLUMNS, second, features=features)
    assert f"{', '.join(map(repr, more))} would be features too" in sentence
    assert "name those to read with --features NAME,NAME,…" in sentence


def test_columns_that_were_not_asked_for_are_no_features_in_any_shard(tmp_path):
    first = write_table(tmp_path / "0.parquet", COLUMNS)
    extra = {"f2": [9.0] * 4, "g0": [1.0] * 4, "f3": list("abcd")}
    second = write_table(tmp_path / "1.parquet", COLUMNS | extra)
    for features in (("f0", "f1"), ("f[01]",)):
        reading = ReaderConfig(features=features)
        chunks = chunks_in(first, second, reading=reading, allow_duplicate=True)
        assert [(len(chunk), chunk.width) for chunk in chunks] == [(4, 2)] * 2


def test_a_weight_and_a_label_are_no_features_of_a_later_shard(tmp_path):
    table = COLUMNS | {"w": [1.0, 2.0, 1.0, 2.0]}
    paths = [
        write_table(tmp_path / f"{k}.parquet", table | {"f0": [float(k), 0, 1, 2]})
        for k in range(2)
    ]
    chunks = chunks_in(*paths, reading=ReaderConfig(features=("*",), weight_column="w"))
    assert [(chunk.width, chunk.weights is None) for chunk in chunks] == [(2, False)] * 2


def test_columns_that_the_model_does_not_know_are_counted_and_weigh_0_in_prediction(tmp_path):
    known = COLUMNS | {"w": [1.0, 1.0, 2.0, 2.0]}
    more = {"age": [0.0, 7.0, None, 9.0], "huge": [2**24 + 1, 0, 0, 0], "new": [True] * 4}
    unlabelled = {name: known[name] for name in ("f0", "f1")} | {"w": [None] * 3 + [-1.0]}
    old = write_table(tmp_path / "old.parquet", known)
    new = write_table(tmp_path / "new.parquet", unlabelled | more)
    for features, unknown in (("*", 2 + 1 + 4), ("f0,f1", 0)):
        model = fit(old, features=features, weight="w")
        [before], [after] = predict(model, old), predict(model, new)
        assert after.decisions.tolist() == before.decisions.tolist()
        assert (before.out_of_range, after.out_of_range) == (0, unknown)
        assert write_predictions(model, new, tmp_path / "out").out_of_range == unknown
    assert evaluate(model, write_table(tmp_path / "b.parquet", known | more)).rows == 4


PAIRS: Table = {"features": pairs(word=[0, 1, 0, 1], often=[2, 3, 4, 5]), "label": LABELS}


def test_pairs_told_by_their_order_are_not_read_the_other_way_round(tmp_path, suffix):
    second = PAIRS | {"features": pairs(often=[2, 3, 4, 5], word=[0, 1, 0, 1])}
    sentence = refusal(tmp_path, suffix, PAIRS, second)
    assert "the pairs in 'features' are of 'often', 'word', in 0." in sentence
    assert "they are 'word', 'often'. All shards need the same names in one order" in sentence
    usual = PAIRS | {"features": pairs(value=[2, 3, 4, 5], index=[0, 1, 0, 1])}
    assert "told by their names" in refusal(tmp_path, suffix, usual, PAIRS)


def test_pairs_told_by_their_names_may_come_in_any_order(tmp_path):
    tables = (PAIRS, PAIRS | {"features": pairs(v=[3] * 4, i=[1] * 4)},
              PAIRS | {"features": pairs(i=[1] * 4, v=[4] * 4)})  # fmt: skip
    paths = [str(write_table(tmp_path / f"{k}.parquet", table)) for k, table in enumerate(tables)]
    with open_shards(paths, cache_dir=None) as source:
        chunks = list(source.chunks())
        reading = ReaderConfig.from_contract(source.reading.contract())
    assert reading.settled.pair == ("word", "often")
    assert [chunk.rows.indices.tolist() for chunk in chunks] == [[0, 1, 0, 1], [1] * 4, [1] * 4]
    values = [chunk.rows.values.tolist() for chunk in chunks]
    assert values == [[2.0, 3.0, 4.0, 5.0], [3.0] * 4, [4.0] * 4]


LATER = [
    (LISTS, LISTS | {"values": VALUES}, "'values' may hold"),
    (COLUMNS, COLUMNS | {"f2": [9.0] * 4}, "'f2' would be features too"),
    (PAIRS, PAIRS | {"features": pairs(often=[2] * 4, word=[0] * 4)}, "the pairs in"),
]


@pytest.mark.parametrize(("first", "second", "words"), LATER)
def test_a_conversion_and_an_update_lose_no_column_either(first, second, words, tmp_path):
    from streamtron.runs.update import update

    here, there = tmp_path / "data" / "0.parquet", tmp_path / "data" / "1.parquet"
    fit(write_table(here, first), model=tmp_path / "m")
    model = (tmp_path / "m").read_bytes()
    write_table(there, second)
    with pytest.raises(DataError, match=words):
        convert(tmp_path / "data", tmp_path / "out", to="libsvm", settings=Settings())
    assert list((tmp_path / "out").glob("part-*")) == []
    with pytest.raises(DataError, match=words):
        update(tmp_path / "m", there)
    assert (tmp_path / "m").read_bytes() == model


def test_a_cached_shard_is_no_way_around_the_check(tmp_path):
    cache = str(tmp_path / "cache")
    first = write_table(tmp_path / "0.parquet", COLUMNS)
    second = write_table(tmp_path / "1.parquet", COLUMNS | {"f2": [9.0] * 4})
    chunks_in(second, reading=ReaderConfig(features=("f0", "f1")), cache_dir=cache)
    message = refused(lambda: chunks_in(first, second, cache_dir=cache))
    assert "'f2' would be features too" in message
