"""Documents to rows: equal to scikit-learn's vectorizers, from every format, and read by models."""

import ast
import json
import random
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import OneHotEncoder

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.data import ReaderConfig, find_shards, open_reader, resolve_reading
from streamtron.data.formats.recipe import Recipe
from streamtron.data.formats.text_column import TextColumn
from streamtron.runs.convert import convert
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import fit
from streamtron.runs.predict import predict
from tests.helpers.examples import examples
from tests.helpers.layouts import write_table
from tests.helpers.models import refused
from tests.helpers.processes import here, one_sentence


def hashing(**options: Any) -> TextColumn:
    """A column of text with scikit-learn's defaults of HashingVectorizer."""
    return TextColumn("text", **{"hash_bits": 20, "alternate_sign": True, **options})


EVERY_LETTER = [
    " ".join(f"{chr(code)}a" for code in range(first, first + 2048))
    for first in range(0, 0x110000, 2048)
    if first != 0xD800  # surrogates
]

ODD = [
    "",
    "a b c",
    "Straße ΣΊΣΥΦΟΣ İstanbul",
    "naïve x̄y 日本語 テキスト 😀 Ⱥb_1",
    "\0nul\0 x\ny",
    "αΣ ΑΣ",
]


@cache
def documents() -> tuple[str, ...]:
    """2,000 docstrings and pieces of source of the standard library, and some odd ones."""
    found = list(ODD)
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        found += [source[at : at + 1500] for at in range(0, len(source), 15_000)]
        nodes = ast.walk(ast.parse(source))
        named = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef))
        found += [text for node in named if (text := ast.get_docstring(node))]
        if len(found) >= 2000:
            break
    return tuple(found[:2000])


def as_stored(matrix: Any) -> sparse.csr_array:
    """A matrix as rows hold it: float32, sorted, without zeros."""
    rows = sparse.csr_array(matrix, dtype=np.float32)
    rows.sort_indices()
    rows.eliminate_zeros()
    return rows


def equal(a: sparse.csr_array, b: sparse.csr_array) -> bool:
    return a.shape == b.shape and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("indptr", "indices", "data")
    )


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.lists(st.text(), max_size=4), st.booleans())
@example(ODD, True)
@example(["İ", "ſtreet K"], True)
@example(EVERY_LETTER, True)
@example(EVERY_LETTER, False)
def test_any_text_becomes_what_hashing_vectorizer_makes_of_it(texts, lowercase):
    common = {"lowercase": lowercase, "ngram_range": (1, 2)}
    vectorizer = HashingVectorizer(norm=None, **common)
    wanted = vectorizer.transform(texts) if texts else sparse.csr_array((0, 2**20))
    assert equal(hashing(norm="none", **common).rows(texts), as_stored(wanted))


def write_texts(path: Path, texts: Iterable[str]) -> None:
    write_table(path, [{"text": text, "y": len(text) % 2} for text in texts])


def read(path: Path, reading: ReaderConfig | None = None, threads: int = 1) -> sparse.csr_array:
    """All rows of shards as a matrix of 2**20 columns; a batch has at most a megabyte of text."""
    shards, parts = find_shards([str(path)]), []
    reading = resolve_reading(shards[0], reading or ReaderConfig())
    for shard in shards:
        batches = list(open_reader(shard, reading, threads).batches())
        assert len(batches) >= shard.size // (1 << 20)
        for batch in batches:
            values = np.ones(batch.nonzeros, np.float32) if batch.values is None else batch.values
            arrays = (values, batch.indices, batch.indptr)
            parts.append(sparse.csr_array(arrays, shape=(batch.rows, 2**20)))
    return sparse.vstack(parts, format="csr")


MAIL = [
    {"text": text, "spam": ("ham", "spam")[k % 2], "length": len(text) / 8, "lang": lang}
    for k, (text, lang) in enumerate(
        (f'He said "{words}",\n{words[:3]} Grüße; {k}', ("de", "en", "fr")[k % 3])
        for k, words in enumerate(("cheap pills", "meeting notes", "lunch, 12:30?") * 20)
    )
]


HASHED = "text,hash_bits=20,alternate_sign"
BESIDE = ("text:text,hash_bits=12,alternate_sign", "length:number", "lang:category")
SPAM = Settings(columns=BESIDE, label="spam")


def test_threads_and_the_size_of_shards_change_no_row(tmp_path):
    texts = list(documents() * 3)
    random.Random(0).shuffle(texts)
    write_texts(tmp_path / "a.jsonl", texts)
    assert (tmp_path / "a.jsonl").stat().st_size > 2 << 20
    recipe = ReaderConfig(recipe=Recipe((hashing(),), label="y"))
    rows = read(tmp_path / "a.jsonl", recipe)
    assert equal(rows, read(tmp_path / "a.jsonl", recipe, threads=3))
    convert(tmp_path / "a.jsonl", tmp_path / "rows", text=HASHED, label="y", rows_per_shard=1499)
    assert len(list((tmp_path / "rows").iterdir())) == 5
    assert equal(rows, read(tmp_path / "rows"))


def test_a_table_without_the_column_of_the_text_is_refused_and_one_without_rows_is_empty(tmp_path):
    write_table(tmp_path / "mail.jsonl", MAIL)
    convert(tmp_path / "mail.jsonl", tmp_path / "rows", text=HASHED, label="spam")
    model = fit(tmp_path / "rows")
    (tmp_path / "a.csv").write_text("subject\nhello\n")
    with pytest.raises(
        DataError, match=r"a\.csv: neither the columns of the recipe of the model, 'text', nor"
    ):
        list(predict(model, tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_text("text,spam\n")
    (tmp_path / "c.csv").write_text("text,spam\nhello,\n")
    [scores] = predict(model, [tmp_path / "b.csv", tmp_path / "c.csv"])
    assert len(scores.labels) == 1


@pytest.mark.parametrize(
    ("name", "second", "message"),
    [
        ("{}.csv", ["A12", "B7"], r"b\.csv, row \d: .*double"),
        ("{}.csv", [3, ""], r"b\.csv, .*: null in"),
        ("{}.jsonl", ["A12", "B7"], r"b\.jsonl: column 'length' .* cannot be a number"),
        ("{}.jsonl", [3, ""], r"b\.jsonl, .* from number to string"),
        ("{}.parquet", ["3", "4"], r"b\.parquet: column 'length' .*string cannot be a number"),
    ],
)
def test_a_number_that_is_something_else_later_is_refused(name, second, message, tmp_path):
    write_table(tmp_path / name.format("a"), MAIL)
    rows = [row | {"length": value} for row, value in zip(MAIL, second, strict=False)]
    write_table(tmp_path / name.format("b"), rows)
    with pytest.raises(DataError, match=message):
        convert(tmp_path, tmp_path / "rows", settings=SPAM)


def test_what_has_no_meaning_with_a_text_is_refused(tmp_path):
    write_table(tmp_path / "mail.jsonl", MAIL)
    mail, out = tmp_path / "mail.jsonl", tmp_path / "out"
    with pytest.raises(SettingsError, match="no place for the recipe"):
        convert(mail, out, to="libsvm", settings=SPAM)
    for name, value in (("features", ("length",)), ("hash_bits", 12)):
        with pytest.raises(SettingsError, match=f"text make the features, without {name}: leave"):
            convert(mail, out, text="text", **{name: value})
    with pytest.raises(DataError, match="0 columns 'size'"):
        convert(mail, out, text="text", columns="size:number", label="spam")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"hash_bits": 31}, "expected 1 to 30"),
        ({"norm": 3}, "3"),
        ({"name": ["abc"]}, "'abc'"),
        ({"tfidf": True, "frequencies": "AAAA"}, ""),
        ({"ngram_range": [1, "2"]}, "'2'"),
        ({"lowercase": 1}, "1"),
        ({"more": 1}, "'more'"),
        ({"name": ""}, "without a name"),
        ({"documents": -5}, "documents is below 0"),
        ({"documents": 10**400}, "or beyond 2⁶³"),
        ({"hash_bits": 30, "tfidf": True, "frequencies": ""}, "expected 1 to 26 for tf-idf"),
        ({"hash_bits": "8"}, "'8'"),
        ({"kind": "table"}, "'table'"),
        ({"tfidf": True}, "not counted"),
    ],
)
def test_a_damaged_recipe_is_refused(damage, sentence):
    recipe = Recipe((hashing(),))
    whole = json.loads(json.dumps(recipe.to_dict()))
    assert Recipe.from_dict(whole) == recipe
    whole["columns"][0] |= damage
    message = refused(lambda: Recipe.from_dict(whole), DataError)
    assert message.startswith("the recipe of the columns is damaged (")
    assert sentence in message


def test_strings_like_numbers_or_dates_in_a_later_csv_shard_stay_strings(tmp_path):
    """A column of strings in the first shard is one in all, and a text or a shard may be empty."""
    shards = {
        "a.csv": [("a b", "x7"), ("cd ef", "x8")],
        "b.csv": [("12", "7"), ("13", "08")],
        "c.csv": [("", "2020-01-01"), ("2021", "")],
    }
    for name, rows in shards.items():
        cells = [{"text": text, "y": k, "kind": kind} for k, (text, kind) in enumerate(rows)]
        write_table(tmp_path / name, cells)
    (tmp_path / "d.csv").write_text("text,y,kind\n")
    columns = ("text:text,hash_bits=10,alternate_sign", "kind:category,null=column")
    convert(tmp_path, tmp_path / "rows", columns=columns, label="y")
    texts, kinds = zip(*(row for rows in shards.values() for row in rows), strict=True)
    hashed = HashingVectorizer(n_features=2**10).transform(texts)
    beside = OneHotEncoder().fit_transform([[kind or None] for kind in kinds])
    wanted = as_stored(sparse.hstack([hashed, beside]))
    assert equal(read(tmp_path / "rows")[:, : 2**10 + 6], wanted)


def test_a_pattern_of_words_that_would_take_years_is_ended_and_refused(monkeypatch):
    monkeypatch.setattr("streamtron.data.formats.words.PATIENCE", 1)
    message = refused(lambda: hashing(token_pattern=r"(?:a+)+\b!").rows(["a" * 40]), DataError)
    assert "token-pattern '(?:a+)+\\\\b!' took over 1 seconds for 1 documents" in message


def test_an_empty_name_as_of_an_unset_variable_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "cheap pills", "y": 1}\n{"body": "a", "y": 0}\n')
    for name in ("--text", "--label", "--columns", "--features", "--weight", "--vocabulary"):
        beside = ("--text", "body") if name in ("--label", "--columns") else ()
        words = ("convert", "a.jsonl", "-o", "rows", *beside, name, "")
        one_sentence(here(tmp_path, *words), 2, name[2:])
    assert not (tmp_path / "rows").exists()


def test_a_model_of_documents_refuses_rows_of_another_recipe_or_of_none(tmp_path):
    write_table(tmp_path / "mail.jsonl", MAIL)
    for name, bits in (("rows", 12), ("others", 13)):
        convert(
            tmp_path / "mail.jsonl", tmp_path / name, text=f"text,hash_bits={bits}", label="spam"
        )
    model = fit(tmp_path / "rows")
    stripped = tmp_path / "stripped.parquet"
    table = pq.read_table(next((tmp_path / "rows").glob("part*")))
    pq.write_table(table.replace_schema_metadata(), stripped)
    for path, words in (
        (tmp_path / "others", "neither the columns of the recipe of the model, 'text', nor rows"),
        (stripped, "neither the columns of the recipe of the model, 'text', nor rows that it made"),
    ):
        assert words in refused(lambda path=path: list(predict(model, path)), DataError)
        assert words in refused(lambda path=path: evaluate(model, path), DataError)
    stripped.rename(tmp_path / "rows" / "part-00001.parquet")
    assert "part-00000.parquet" in refused(lambda: fit(tmp_path / "rows"), DataError)
