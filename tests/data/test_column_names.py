"""The names of hashed columns: convert keeps them, explain and report find them."""

import json
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer

import streamtron
from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.data import column_names
from streamtron.runs.convert import convert
from streamtron.runs.report_page import report
from tests.helpers.layouts import write_table
from tests.helpers.models import refused
from tests.helpers.processes import here

WORDS = ("cheap pills now", "meeting notes café", "Cheap cheap offer", "", "ab a b")
ROWS = [
    {
        "text": WORDS[k % 5],
        "y": int(k % 5 < 2),
        "links": k % 3,
        "lang": ("de", "en")[k % 2],
        "text2": WORDS[k % 3],
    }
    for k in range(60)
]
RECIPE = (
    "text:text,hash_bits=7,alternate_sign,ngrams=1-2",
    "links:number",
    "lang:category,hash_bits=7",
)


def kept(directory: Path) -> set[tuple[int, str, int, int]]:
    """Column, name, sign and count of every name kept."""
    rows = pq.read_table(directory / "_names.parquet").to_pylist()
    assert rows == sorted(rows, key=lambda row: (row["column"], -row["count"], row["name"]))
    return {(row["column"], row["name"], row["sign"], row["count"]) for row in rows}


def test_the_names_of_documents_are_those_of_the_columns_that_scikit_learn_puts_them_in(tmp_path):
    write_table(tmp_path / "a.jsonl", ROWS[:33])
    write_table(tmp_path / "b.jsonl", ROWS[33:])
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    convert(files, tmp_path / "rows", columns=RECIPE, label="y", keep_names=True)
    analyze = HashingVectorizer(ngram_range=(1, 2)).build_analyzer()
    words = Counter(word for row in ROWS for word in analyze(row["text"]))
    beside = Counter({"lang=de": 30, "lang=en": 30})
    wanted = set()
    for names, first in ((words, 0), (beside, 2**7 + 1)):
        for name, count in names.items():
            hasher = FeatureHasher(2**7, input_type="string", alternate_sign=first == 0)
            hashed = hasher.transform([[name]])
            wanted.add((first + hashed.indices[0], name, int(hashed.data[0]), count))
    assert len(wanted) == 16
    assert kept(tmp_path / "rows") == wanted


def test_of_too_many_names_those_that_occur_most_often_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(column_names, "MOST", 3)
    rows = [{"text": f"every {('often', 'twice')[k % 7 == 0]} w{k}", "y": k % 2} for k in range(40)]
    shards = [write_table(tmp_path / f"{k}.jsonl", rows[k : k + 10]) for k in range(0, 40, 10)]
    convert(shards, tmp_path / "rows", text="text,hash_bits=20", label="y", keep_names=True)
    found = {name: count for _, name, _, count in kept(tmp_path / "rows")}
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
    assert {n: count for _, n, _, count in kept(rows)} == wanted
    model = streamtron.fit(rows)
    [plain] = streamtron.explain(model)["directions"]
    [named] = streamtron.explain(model, names=rows)["directions"]
    columns = {n: column for column, n, _, _ in kept(rows)}
    assert [feature["column"] for feature in plain["features"]] == [
        columns[feature["name"]] for feature in named["features"]
    ]


def test_explain_and_report_name_the_words_of_a_model(tmp_path):
    write_table(tmp_path / "mail.jsonl", ROWS)
    run = partial(here, tmp_path)
    words = "convert mail.jsonl -o rows --text text,hash_bits=3,alternate_sign --label y"
    run(*words.split(), "--keep-names")
    run("fit", "rows", "--model", "m")
    names = {}
    for column, name, *_ in sorted(kept(tmp_path / "rows"), key=lambda row: -row[3]):
        names.setdefault(column, []).append(name)
    told = json.loads(run("explain", "m", "--json").stdout)["directions"][0]["features"]
    assert told
    for one in told:
        shown = one["name"].replace("opposite: ", "").split(" | ")
        assert sorted(shown) == sorted(names[one["column"]][:3])
    assert "pills" in run("explain", "m", "mail.jsonl", "--row", "0").stdout
    report(tmp_path / "m", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert told[0]["name"] in page
    assert "is before a name that counts the other way" in page
    (tmp_path / "rows" / "_names.parquet").rename(tmp_path / "elsewhere.parquet")
    assert "column" in run("explain", "m").stdout
    again = run("explain", "m", "--json", "--names", "elsewhere.parquet").stdout
    assert json.loads(again)["directions"][0]["features"] == told


def test_the_weight_shown_is_what_a_word_counts_whatever_its_sign_in_the_rows(tmp_path):
    """Each word alone in a document is decided as its weight says."""
    mail = write_table(tmp_path / "mail.jsonl", ROWS)
    recipe = "text,hash_bits=3,alternate_sign,norm=none"
    convert(mail, tmp_path / "rows", text=recipe, label="y", keep_names=True)
    model = streamtron.fit(tmp_path / "rows")
    [direction] = streamtron.explain(model, names=tmp_path / "rows")["directions"]
    signs, opposites = {name: sign for _, name, sign, _ in kept(tmp_path / "rows")}, 0
    for feature in direction["features"]:
        for name in feature["name"].split(" | "):
            word, sign = name.removeprefix("opposite: "), -1 if name[:9] == "opposite:" else 1
            [decision] = model.decision_function([word])
            assert sign * feature["weight"] == pytest.approx(decision - direction["bias"])
            opposites += sign < 0
    assert opposites
    assert set(signs.values()) == {1, -1}
    weights = [abs(feature["weight"]) for feature in direction["features"]]
    assert weights == sorted(weights, reverse=True)
    for word in ("cheap", "pills", "offer", "notes", "ab"):  # of a row, the name that it has
        document = write_table(tmp_path / f"{word}.jsonl", [{"text": word}])
        found = streamtron.explain(model, document, row=0, names=tmp_path / "rows")
        [feature] = found["directions"][0]["features"]
        assert word in feature["name"].split(" | ")
        assert feature["value"] == 1.0
        assert feature["contribution"] == feature["value"] * feature["weight"]


def test_names_of_another_recipe_and_other_files_are_refused_with_what_differs(tmp_path):
    mail = write_table(tmp_path / "mail.jsonl", ROWS)

    def kept_in(place, *columns):
        convert(mail, tmp_path / place, columns=columns, label="y", keep_names=True)
        return tmp_path / place

    own = kept_in("own", "text:text,hash_bits=5")
    model = streamtron.fit(own)
    for place, *columns in (
        ("bits", "text:text,hash_bits=6"),
        ("beside", "text:text,hash_bits=5", "links:number"),
    ):
        message = refused(partial(streamtron.explain, model, names=kept_in(place, *columns)))
        assert f"another recipe: recipe is {columns}, the m"[:70] in message
    same = kept_in("norm", "text:text,hash_bits=5,norm=none,binary")
    assert streamtron.explain(model, names=same) == streamtron.explain(model, names=own)
    for path in (mail, next(own.glob("part*"))):
        message = refused(partial(streamtron.explain, model, names=path))
        assert "not the names that convert keeps" in message


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
    columns = {"column": ones.astype("u4"), "name": equal, "sign": ones.astype("i1")}
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
