"""The names of hashed columns: convert keeps them, explain and report find them."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamtron
from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.data import column_names
from streamtron.runs.convert import convert
from streamtron.runs.report_page import report
from tests.helpers.layouts import write_table
from tests.helpers.models import refused
from tests.helpers.processes import here


def kept(directory: Path) -> set[tuple[int, str, int]]:
    """Column, name and count of every name kept."""
    rows = pq.read_table(directory / "_names.parquet").to_pylist()
    assert rows == sorted(rows, key=lambda row: (row["column"], -row["count"], row["name"]))
    return {(row["column"], row["name"], row["count"]) for row in rows}


def test_of_too_many_names_those_that_occur_most_often_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(column_names, "MOST", 3)
    words = [["every", ("often", "twice")[k % 7 == 0], f"w{k}"] for k in range(40)]
    rows = [{"words": row, "y": k % 2} for k, row in enumerate(words)]
    shards = [write_table(tmp_path / f"{k}.jsonl", rows[k : k + 10]) for k in range(0, 40, 10)]
    settings = Settings(hash_bits=20, label="y")
    convert(shards, tmp_path / "rows", settings=settings, keep_names=True)
    found = {name: count for _, name, count in kept(tmp_path / "rows")}
    assert len(found) == 3
    assert found["every"] == 40
    assert found["often"] == 34


@pytest.mark.parametrize(
    ("text", "name", "given", "wanted"),
    [
        ("1 |t cheap:2 now\n-1 |t cheap\n", "a.vw", {"hash_bits": 6}, {"t^cheap": 2, "t^now": 1}),
        (
            "y,price,age\n1,2,3\n0,4,5\n",
            "a.csv",
            {"features": ("price", "age")},
            {"price": 2, "age": 2},
        ),
    ],
)
@pytest.mark.parametrize("to", ["parquet", "libsvm"])
def test_names_of_features_are_kept_with_their_columns(text, name, given, wanted, to, tmp_path):
    (tmp_path / name).write_text(text)
    rows = tmp_path / "rows"
    convert(tmp_path / name, rows, to=to, settings=Settings(**given), keep_names=True)
    assert {n: count for _, n, count in kept(rows)} == wanted
    model = streamtron.fit(rows)
    [plain] = streamtron.explain(model)["directions"]
    [named] = streamtron.explain(model, names=rows)["directions"]
    columns = {n: column for column, n, _ in kept(rows)}
    assert [feature["column"] for feature in plain["features"]] == [
        columns[feature["name"]] for feature in named["features"]
    ]


def test_explain_and_report_name_hashed_features(tmp_path):
    bags = ["|t cheap pills now", "|t meeting notes café", "|t cheap cheap:2 offer"]
    lines = [f"{1 if k % 3 != 1 else -1} {bags[k % 3]}\n" for k in range(60)]
    (tmp_path / "mail.vw").write_text("".join(lines))
    run = partial(here, tmp_path)
    run("convert", "mail.vw", "-o", "rows", "--hash-bits", "3", "--keep-names")
    run("fit", "rows", "--model", "m")
    names = {}
    for column, name, _ in sorted(kept(tmp_path / "rows"), key=lambda row: (-row[2], row[1])):
        names.setdefault(column, []).append(name)
    told = json.loads(run("explain", "m", "--json").stdout)["directions"][0]["features"]
    assert told
    for one in told:
        assert one["name"].split(" | ") == names[one["column"]][:3]
    assert any(len(shared) > 1 for shared in names.values())
    report(tmp_path / "m", tmp_path / "page.html")
    assert told[0]["name"] in (tmp_path / "page.html").read_text()
    (tmp_path / "rows" / "_names.parquet").rename(tmp_path / "elsewhere.parquet")
    assert "column" in run("explain", "m").stdout
    again = run("explain", "m", "--json", "--names", "elsewhere.parquet").stdout
    assert json.loads(again)["directions"][0]["features"] == told


def test_names_of_another_hash_vocabulary_or_first_column_are_refused(tmp_path):
    shard = tmp_path / "a.vw"
    shard.write_text("1 |t cheap:2 now\n-1 |t cheap\n")
    for name, words in (("words", "t^cheap\nt^now\n"), ("more", "t^now\nt^cheap\n")):
        (tmp_path / name).write_text(words)
    ways = {
        "8": {"hash_bits": 8},
        "seed": {"hash_bits": 8, "hash_seed": 7},
        "v": {"vocabulary": str(tmp_path / "words")},
        "w": {"vocabulary": str(tmp_path / "more")},
    }
    for name, way in ways.items():
        convert(shard, tmp_path / f"{name}-rows", settings=Settings(**way), keep_names=True)
    convert(shard, tmp_path / "from-1", to="libsvm", settings=Settings(hash_bits=8))
    hashed, named = streamtron.fit(shard, **ways["8"]), streamtron.fit(shard, **ways["v"])
    assert streamtron.explain(hashed, names=tmp_path / "8-rows")
    assert streamtron.explain(named, names=tmp_path / "v-rows")
    for path in (shard, next((tmp_path / "8-rows").glob("part*"))):
        message = refused(partial(streamtron.explain, hashed, names=path))
        assert "not the names that convert keeps" in message
    for model, name, wanted in (
        (hashed, "seed", "hash_seed is 7"),
        (hashed, "v", "hash_bits is None, the model has 8"),
        (named, "w", "vocabulary is "),
        (streamtron.fit(tmp_path / "from-1"), "8", "index_base is 0, the model has 1"),
    ):
        place = tmp_path / f"{name}-rows"
        assert wanted in refused(partial(streamtron.explain, model, names=place))


@pytest.mark.parametrize(
    ("rows", "letters", "refusal"),
    [(1 << 21, 1, "2,097,152 rows, and at most 1,048,576"), (1 << 20, 10**6, "longer than memory")],
)
def test_a_small_file_of_names_that_takes_much_memory_is_refused(tmp_path, rows, letters, refusal):
    ones = np.ones(rows)
    equal = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array(["a" * letters]))
    columns = {"column": ones.astype("u4"), "name": equal}
    table = pa.table({**columns, "count": ones.astype("i8")})
    pq.write_table(table, tmp_path / "names.parquet", compression="zstd")
    assert refusal in refused(lambda: column_names.ColumnNames([str(tmp_path / "names.parquet")]))


def test_features_without_names_are_refused(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    with pytest.raises(SettingsError, match="column numbers and no names"):
        convert(tmp_path / "a.svm", tmp_path / "rows", keep_names=True)
    convert(tmp_path / "a.svm", tmp_path / "rows", settings=Settings(index_base=1))
    with pytest.raises(DataError, match=r"part-00000\.parquet: features that are numbered"):
        convert(tmp_path / "rows", tmp_path / "more", keep_names=True)
    assert not (tmp_path / "more").exists()
