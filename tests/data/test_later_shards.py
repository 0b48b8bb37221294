"""Shards behind the first: what the first one has no place for is refused, never dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from streamtron.core.config import Settings
from streamtron.core.errors import DataError
from streamtron.data import open_shards
from streamtron.data.reader_config import ReaderConfig
from streamtron.model.linear_model import LinearModel
from streamtron.runs.convert import convert
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import fit
from streamtron.runs.predict import predict, write_predictions

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


def write(path: Path, table: Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table(table), path)
    else:
        feather.write_feather(pa.table(table), str(path), compression="uncompressed")
    return path


@pytest.fixture(params=["parquet", "arrow"])
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def refusal(directory: Path, suffix: str, first: Table, second: Table, **reading: Any) -> str:
    """The sentence on the second of two shards; the first one alone is read."""
    paths = [
        str(write(directory / f"{k}.{suffix}", table)) for k, table in enumerate((first, second))
    ]
    with open_shards(paths[:1], ReaderConfig(**reading), cache_dir=None) as source:
        assert sum(map(len, source.chunks())) == 4
    with (
        open_shards(paths, ReaderConfig(**reading), cache_dir=None) as source,
        pytest.raises(DataError) as caught,
    ):
        list(source.chunks())
    sentence = str(caught.value)
    assert sentence.startswith(f"1.{suffix}: ")
    assert f"0.{suffix}" in sentence
    return sentence


# Values ------------------------------------------------------------------------------------------


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
def test_a_column_that_the_first_shard_has_no_place_for_is_not_dropped(
    first: Table, more: Table, words: str, tmp_path: Path, suffix: str
) -> None:
    assert words in refusal(tmp_path, suffix, first, first | more)


def test_values_are_all_1_in_every_shard_where_that_was_said(tmp_path: Path) -> None:
    plain = write(tmp_path / "0.parquet", LISTS)
    valued = write(tmp_path / "1.parquet", LISTS | {"values": VALUES})
    reading = ReaderConfig(values_column="")
    with open_shards([str(plain), str(valued)], reading, cache_dir=None) as source:
        chunks = list(source.chunks())
        assert source.reading.values_column == ""
    assert [set(chunk.rows.values.tolist()) for chunk in chunks] == [{1.0}, {1.0}]


def test_a_model_of_ones_does_not_score_shards_with_values(tmp_path: Path) -> None:
    fit(write(tmp_path / "ones.parquet", LISTS), model=tmp_path / "model")
    fit(write(tmp_path / "ones.parquet", LISTS), model=tmp_path / "said", values="")
    new = write(tmp_path / "new.parquet", LISTS | {"values": VALUES})
    model = LinearModel.load(tmp_path / "model")
    for score in (lambda: list(predict(model, new)), lambda: evaluate(model, new)):
        with pytest.raises(DataError, match=r"^new\.parquet: 'values' may hold .* the model, wher"):
            score()
    assert sum(len(s.decisions) for s in predict(LinearModel.load(tmp_path / "said"), new)) == 4


# Columns of numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "more"),
    [(None, ["f2"]), (("f*",), ["f2"]), (("*",), ["age"]), (("f0", "f[1-9]"), ["f2", "f7"])],
)
def test_more_columns_of_numbers_in_a_later_shard_are_not_dropped(
    features: tuple[str, ...] | None, more: list[str], tmp_path: Path, suffix: str
) -> None:
    second = COLUMNS | {name: [9.0] * 4 for name in more}
    sentence = refusal(tmp_path, suffix, COLUMNS, second, features=features)
    assert f"{', '.join(map(repr, more))} would be features too" in sentence
    assert "name those to read with --features NAME,NAME,…" in sentence


def test_columns_that_were_not_asked_for_are_no_features_in_any_shard(tmp_path: Path) -> None:
    first = write(tmp_path / "0.parquet", COLUMNS)
    extra = {"f2": [9.0] * 4, "g0": [1.0] * 4, "f3": list("abcd")}
    second = write(tmp_path / "1.parquet", COLUMNS | extra)
    for features in (("f0", "f1"), ("f[01]",)):
        reading = ReaderConfig(features=features)
        with open_shards(
            [str(first), str(second)], reading, cache_dir=None, allow_duplicate=True
        ) as source:
            assert sum(map(len, source.chunks())) == 8
            assert source.reading.features == ("f0", "f1")


def test_a_weight_and_a_label_are_no_features_of_a_later_shard(tmp_path: Path) -> None:
    table = COLUMNS | {"w": [1.0, 2.0, 1.0, 2.0]}
    paths = [
        str(write(tmp_path / f"{k}.parquet", table | {"f0": [float(k), 0, 1, 2]})) for k in range(2)
    ]
    reading = ReaderConfig(features=("*",), weight_column="w")
    with open_shards(paths, reading, cache_dir=None) as source:
        first, second = source.chunks()
        assert source.width == 2
    assert first.weights is not None
    assert second.weights is not None


def test_columns_that_the_model_does_not_know_are_counted_and_weigh_0_in_prediction(
    tmp_path: Path,
) -> None:
    known = COLUMNS | {"w": [1.0, 1.0, 2.0, 2.0]}
    fit(write(tmp_path / "a.parquet", known), model=tmp_path / "m", features="*", weight="w")
    model = LinearModel.load(tmp_path / "m")
    [before] = predict(model, tmp_path / "a.parquet")
    more = {"age": [0.0, 7.0, None, 9.0], "huge": [2**24 + 1, 0, 0, 0], "new": [True] * 4}
    unlabelled = {name: known[name] for name in ("f0", "f1")} | {"w": [None] * 3 + [-1.0]}
    new = write(tmp_path / "new.parquet", unlabelled | more)
    [after] = predict(model, new)
    assert after.decisions.tolist() == before.decisions.tolist()
    assert (before.out_of_range, after.out_of_range) == (0, 2 + 1 + 4)
    assert write_predictions(model, new, tmp_path / "out").out_of_range == 7
    assert evaluate(model, write(tmp_path / "b.parquet", known | more)).rows == 4


def test_a_model_of_named_columns_reads_those_and_counts_no_others(tmp_path: Path) -> None:
    fit(write(tmp_path / "a.parquet", COLUMNS), model=tmp_path / "m", features="f0,f1")
    model = LinearModel.load(tmp_path / "m")
    [scores] = predict(model, write(tmp_path / "b.parquet", COLUMNS | {"f2": [9.0] * 4}))
    assert scores.out_of_range == 0


# Pairs -------------------------------------------------------------------------------------------

PAIRS: Table = {"features": pairs(word=[0, 1, 0, 1], often=[2, 3, 4, 5]), "label": LABELS}


def test_pairs_whose_order_alone_tells_column_and_value_are_not_read_the_other_way_round(
    tmp_path: Path, suffix: str
) -> None:
    second = PAIRS | {"features": pairs(often=[2, 3, 4, 5], word=[0, 1, 0, 1])}
    sentence = refusal(tmp_path, suffix, PAIRS, second)
    assert "the pairs in 'features' are of 'often', 'word', in 0." in sentence
    assert "they are 'word', 'often'. All shards need the same names in one order" in sentence
    usual = PAIRS | {"features": pairs(value=[2, 3, 4, 5], index=[0, 1, 0, 1])}
    assert "told by their names" in refusal(tmp_path, suffix, usual, PAIRS)


def test_pairs_told_by_their_names_may_come_in_any_order(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "0.parquet", PAIRS),
        write(tmp_path / "1.parquet", PAIRS | {"features": pairs(v=[3] * 4, i=[1] * 4)}),
        write(tmp_path / "2.parquet", PAIRS | {"features": pairs(i=[1] * 4, v=[4] * 4)}),
    ]
    with open_shards([str(path) for path in paths], cache_dir=None) as source:
        chunks = list(source.chunks())
        assert ReaderConfig.from_contract(source.reading.contract()).settled.pair == (
            "word",
            "often",
        )
    indices = [chunk.rows.indices.tolist() for chunk in chunks]
    values = [chunk.rows.values.tolist() for chunk in chunks]
    assert indices == [[0, 1, 0, 1], [1] * 4, [1] * 4]
    assert values == [[2.0, 3.0, 4.0, 5.0], [3.0] * 4, [4.0] * 4]


# All of it, by other ways to the shards ----------------------------------------------------------

LATER = [
    (LISTS, LISTS | {"values": VALUES}, "'values' may hold"),
    (COLUMNS, COLUMNS | {"f2": [9.0] * 4}, "'f2' would be features too"),
    (PAIRS, PAIRS | {"features": pairs(often=[2] * 4, word=[0] * 4)}, "the pairs in"),
]


@pytest.mark.parametrize(("first", "second", "words"), LATER)
def test_a_conversion_and_an_update_lose_no_column_either(
    first: Table, second: Table, words: str, tmp_path: Path
) -> None:
    from streamtron.runs.update import update

    here, there = tmp_path / "data" / "0.parquet", tmp_path / "data" / "1.parquet"
    fit(write(here, first), model=tmp_path / "m")
    model = (tmp_path / "m").read_bytes()
    write(there, second)
    with pytest.raises(DataError, match=words):
        convert(tmp_path / "data", tmp_path / "out", to="libsvm", settings=Settings())
    assert list((tmp_path / "out").glob("part-*")) == []
    with pytest.raises(DataError, match=words):
        update(tmp_path / "m", there)
    assert (tmp_path / "m").read_bytes() == model


def test_a_cached_shard_is_no_way_around_the_check(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    first = write(tmp_path / "0.parquet", COLUMNS)
    second = write(tmp_path / "1.parquet", COLUMNS | {"f2": [9.0] * 4})
    with open_shards([str(second)], ReaderConfig(features=("f0", "f1")), cache_dir=cache) as source:
        list(source.chunks())
    with (
        open_shards([str(first), str(second)], cache_dir=cache) as source,
        pytest.raises(DataError, match="'f2' would be features too"),
    ):
        list(source.chunks())
