"""Documents to rows: equal to scikit-learn's vectorizers, from every format, and read by models."""

from __future__ import annotations

import ast
import csv
import json
import random
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import OneHotEncoder

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.data import ReaderConfig, RowBatch, find_shards, open_reader, resolve_reading
from streamtron.data.formats.recipe import Recipe
from streamtron.data.formats.text_column import TextColumn
from streamtron.data.formats.words import TOKEN_PATTERN
from streamtron.runs.convert import convert
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import fit
from streamtron.runs.predict import predict
from tests.helpers.examples import examples
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
def test_any_text_becomes_what_hashing_vectorizer_makes_of_it(
    texts: list[str], lowercase: bool
) -> None:
    common: dict[str, Any] = {"lowercase": lowercase, "ngram_range": (1, 2)}
    wanted = (
        HashingVectorizer(norm=None, **common).transform(texts)
        if texts
        else sparse.csr_array((0, 2**20))
    )
    assert equal(hashing(norm="none", **common).rows(texts), as_stored(wanted))


def write_jsonl(path: Path, texts: Any = None, rows: Any = None) -> None:
    rows = rows or [{"text": text, "y": len(text) % 2} for text in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def batches_of(
    path: Path, reading: ReaderConfig | None = None, threads: int = 1
) -> Iterator[RowBatch]:
    shards = find_shards([str(path)])
    reading = resolve_reading(shards[0], reading or ReaderConfig())
    for shard in shards:
        yield from open_reader(shard, reading, threads).batches()


def read(
    path: Path, reading: ReaderConfig | None = None, width: int | None = None, threads: int = 1
) -> sparse.csr_array:
    """All rows of shards as a matrix."""
    parts = []
    for batch in batches_of(path, reading, threads):
        values = np.ones(batch.nonzeros, np.float32) if batch.values is None else batch.values
        shape = (batch.rows, width or batch.width)
        parts.append(sparse.csr_array((values, batch.indices, batch.indptr), shape=shape))
    return sparse.vstack(parts, format="csr")


MAIL = [
    {"text": text, "spam": ("ham", "spam")[k % 2], "length": len(text) / 8, "lang": lang}
    for k, (text, lang) in enumerate(
        (f'He said "{words}",\n{words[:3]} Grüße; {k}', ("de", "en", "fr")[k % 3])
        for k, words in enumerate(("cheap pills", "meeting notes", "lunch, 12:30?") * 20)
    )
]


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


def arrow(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    texts = table["text"].cast(pa.large_string()), table["lang"].dictionary_encode()
    table = table.set_column(0, "text", texts[0]).set_column(3, "lang", texts[1])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


FORMATS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "mail.jsonl": lambda path, rows: write_jsonl(path, rows=rows),
    "mail.csv": write_csv,
    "mail.parquet": parquet,
    "mail.arrow": arrow,
}
HASHED = "text,hash_bits=20,alternate_sign"
BESIDE = ("text:text,hash_bits=12,alternate_sign", "length:number", "lang:category")
TFIDF = ("text:text,tfidf,hash_bits=12,alternate_sign", *BESIDE[1:])
SPAM = Settings(columns=BESIDE, label="spam")


def test_threads_and_the_size_of_shards_change_no_row(tmp_path: Path) -> None:
    texts = documents() * 2  # several megabytes
    write_jsonl(tmp_path / "a.jsonl", texts)
    recipe = ReaderConfig(recipe=Recipe((hashing(),), label="y"))
    one = read(tmp_path / "a.jsonl", recipe, 2**20)
    assert equal(one, read(tmp_path / "a.jsonl", recipe, 2**20, threads=3))
    convert(tmp_path / "a.jsonl", tmp_path / "rows", text=HASHED, label="y", rows_per_shard=999)
    assert len(list((tmp_path / "rows").iterdir())) == 5
    assert equal(one, read(tmp_path / "rows", width=2**20))


def test_a_model_of_documents_reads_documents_and_their_rows_alike(tmp_path: Path) -> None:
    for name, write in FORMATS.items():
        write(tmp_path / name, MAIL)
    convert(tmp_path / "mail.jsonl", tmp_path / "rows", columns=TFIDF, label="spam")
    model = fit(tmp_path / "rows")
    [rows] = predict(model, tmp_path / "rows")
    for name in FORMATS:
        [scores] = predict(model, tmp_path / name)
        assert scores.decisions.tolist() == rows.decisions.tolist()
        assert evaluate(model, tmp_path / name) == evaluate(model, tmp_path / "rows")
    write_csv(tmp_path / "new.csv", [{"text": r["text"], "length": 1, "lang": "de"} for r in MAIL])
    assert sum(len(scores.decisions) for scores in predict(model, tmp_path / "new.csv")) == 60


def test_a_table_without_the_column_of_the_text_is_refused_and_one_without_rows_is_empty(
    tmp_path: Path,
) -> None:
    write_jsonl(tmp_path / "mail.jsonl", rows=MAIL)
    convert(tmp_path / "mail.jsonl", tmp_path / "rows", text=HASHED, label="spam")
    model = fit(tmp_path / "rows")
    (tmp_path / "a.csv").write_text("subject\nhello\n")
    with pytest.raises(DataError, match=r"a\.csv: neither the columns of the recipe, 'text', nor"):
        list(predict(model, tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_text("text,spam\n")
    (tmp_path / "c.csv").write_text("text,spam\nhello,\n")
    [scores] = predict(model, [tmp_path / "b.csv", tmp_path / "c.csv"])
    assert len(scores.labels) == 1


def test_a_column_of_another_kind_in_a_later_shard_is_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", MAIL)
    parquet(tmp_path / "b.parquet", [row | {"length": "3"} for row in MAIL])
    with pytest.raises(DataError, match=r"b\.parquet: column 'length' .*string cannot be a number"):
        convert(tmp_path, tmp_path / "rows", settings=SPAM)


@pytest.mark.parametrize("name", ["{}.csv", "{}.jsonl"])
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            [1, 2],
            ["A12", "B7"],
            r"b\.csv, line \d: .*double|b\.jsonl: column 'length' .* cannot be a number",
        ),
        ([1, 2], [3, ""], r"b\.csv, .*: null in|b\.jsonl, .* from number to string"),
    ],
)
def test_a_number_that_is_something_else_later_is_never_given_another_meaning(
    first: list[Any], second: list[Any], message: str, name: str, tmp_path: Path
) -> None:
    write = FORMATS[name.format("mail")]
    for shard, values in (("a", first), ("b", second)):
        rows = [row | {"length": value} for row, value in zip(MAIL, values, strict=False)]
        write(tmp_path / name.format(shard), rows)
    with pytest.raises(DataError, match=message):
        convert(tmp_path, tmp_path / "rows", settings=SPAM)


def test_a_later_csv_shard_may_have_no_rows(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", MAIL)
    (tmp_path / "b.csv").write_text("text,spam,length,lang\n")
    assert convert(tmp_path, tmp_path / "rows", settings=SPAM).rows == len(MAIL)
    (tmp_path / "c.csv").write_text("y,f0\n0,2\n1,3\n")
    (tmp_path / "d.csv").write_text("y,f0\n")
    assert convert([tmp_path / "c.csv", tmp_path / "d.csv"], tmp_path / "more").rows == 2


def test_documents_are_read_once_and_for_a_vocabulary_twice(tmp_path: Path) -> None:
    counters = Path("/proc/self/io")
    if not counters.exists():
        pytest.skip("this system does not count what a process reads")
    write_jsonl(tmp_path / "a.jsonl", documents() * 16)
    size = (tmp_path / "a.jsonl").stat().st_size

    def readings(name: str, **given_: Any) -> int:
        before = int(counters.read_text().split()[1])
        convert(tmp_path / "a.jsonl", tmp_path / name, label="y", **given_)
        return (int(counters.read_text().split()[1]) - before) // size

    readings("first", text=HASHED)  # loads what is needed
    assert [readings(str(k), text=text) for k, text in enumerate((HASHED, "text"))] == [1, 2]


def test_what_has_no_meaning_with_a_text_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "mail.jsonl", rows=MAIL)
    mail, out = tmp_path / "mail.jsonl", tmp_path / "out"
    with pytest.raises(SettingsError, match="no place for the recipe"):
        convert(mail, out, to="libsvm", settings=SPAM)
    for given_ in ({"features": ("length",)}, {"hash_bits": 12}):
        with pytest.raises(SettingsError, match="says where features are, and columns and text"):
            convert(mail, out, text="text", **given_)
    with pytest.raises(DataError, match="0 columns 'size'"):
        convert(mail, out, text="text", columns="size:number", label="spam")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"hash_bits": 31}, "wanted 1 to 30"), ({"norm": 3}, "3"), ({"name": ["abc"]}, "'abc'"),
        ({"tfidf": True, "frequencies": "AAAA"}, ""), ({"ngram_range": [1, "2"]}, "'2'"),
        ({"lowercase": 1}, "1"), ({"more": 1}, "'more'"), ({"name": ""}, "without a name"),
        ({"documents": -5}, "documents is below 0"), ({"documents": 10**400}, "or beyond 2⁶³"),
        ({"hash_bits": 30, "tfidf": True, "frequencies": ""}, "wanted 1 to 26 for tf-idf"),
        ({"hash_bits": "8"}, "'8'"), ({"kind": "table"}, "'table'"),
        ({"tfidf": True}, "not counted"),
    ],
)  # fmt: skip
def test_a_damaged_recipe_is_refused(damage: dict[str, Any], sentence: str) -> None:
    recipe = Recipe((hashing(),))
    whole = json.loads(json.dumps(recipe.to_dict()))
    assert Recipe.from_dict(whole) == recipe
    whole["columns"][0] |= damage
    message = refused(lambda: Recipe.from_dict(whole), DataError)
    assert message.startswith("the recipe of the columns is damaged (")
    assert sentence in message


def test_the_default_pattern_is_scikit_learns() -> None:
    assert HashingVectorizer().token_pattern == TOKEN_PATTERN


def test_a_batch_is_a_megabyte_of_text_however_long_the_file(tmp_path: Path) -> None:
    shuffled = list(documents())
    random.Random(0).shuffle(shuffled)
    write_jsonl(tmp_path / "a.jsonl", shuffled * 5)
    reading = ReaderConfig(recipe=Recipe((hashing(),), label="y"))
    batches = list(batches_of(tmp_path / "a.jsonl", reading))
    size = (tmp_path / "a.jsonl").stat().st_size
    assert len(batches) >= size // (1 << 20) >= 3


def test_strings_that_look_like_numbers_or_dates_in_a_later_csv_shard_stay_strings(
    tmp_path: Path,
) -> None:
    """A column of strings in the first shard is one in all, and a text may be empty."""
    kinds = {"a.csv": ("x7", "x8"), "b.csv": ("7", "08"), "c.csv": ("2020-01-01", "")}
    rows = {
        name: [
            {"text": t, "y": k, "kind": kind}
            for k, (t, kind) in enumerate(zip(texts, two, strict=True))
        ]
        for (name, two), texts in zip(
            kinds.items(), [("a b", "cd ef"), ("12", "13"), ("", "2021")], strict=True
        )
    }
    for name, own in rows.items():
        write_csv(tmp_path / name, own)
    columns = ("text:text,hash_bits=10,alternate_sign", "kind:category,null=column")
    convert(tmp_path, tmp_path / "rows", columns=columns, label="y")
    every = [row for own in rows.values() for row in own]
    text = HashingVectorizer(n_features=2**10).transform([row["text"] for row in every])
    beside = OneHotEncoder().fit_transform([[row["kind"] or None] for row in every])
    wanted = as_stored(sparse.hstack([text, beside]))
    assert equal(read(tmp_path / "rows", width=2**10 + 6), wanted)


# Recipes of a stranger -------------------------------------------------------------------------


def test_a_pattern_of_words_that_would_take_years_is_ended_and_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamtron.data.formats.words.PATIENCE", 1)
    recipe = hashing(token_pattern=r"(?:a+)+\b!")
    message = refused(lambda: recipe.rows(["a" * 40]), DataError)
    assert "token-pattern '(?:a+)+\\\\b!' took over 1 seconds for 1 documents" in message


@pytest.mark.parametrize(
    "options",
    [("--text", ""), ("--text", "body", "--label", ""), ("--text", "body", "--columns", ""),
     ("--features", ""), ("--weight", ""), ("--vocabulary", "")],
)  # fmt: skip
def test_an_empty_name_as_of_an_unset_variable_is_refused(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "cheap pills", "y": 1}\n{"body": "a", "y": 0}\n')
    one_sentence(here(tmp_path, "convert", "a.jsonl", "rows", *options), 2, options[-2][2:])
    assert not (tmp_path / "rows").exists()


def test_a_model_of_documents_refuses_rows_of_another_recipe_or_of_none(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "mail.jsonl", rows=MAIL)
    for name, bits in (("rows", 12), ("others", 13)):
        convert(tmp_path / "mail.jsonl", tmp_path / name, text=f"text,hash_bits={bits}",
                label="spam")  # fmt: skip
    model = fit(tmp_path / "rows")
    stripped = tmp_path / "stripped.parquet"
    table = pq.read_table(next((tmp_path / "rows").glob("part*")))
    pq.write_table(table.replace_schema_metadata(), stripped)
    for path, words in (
        (tmp_path / "others", "made of columns by another recipe than the model"),
        (stripped, "without a recipe of columns, unlike the model"),
    ):
        assert words in refused(lambda path=path: list(predict(model, path)), DataError)
        assert words in refused(lambda path=path: evaluate(model, path), DataError)
    stripped.rename(tmp_path / "rows" / "part-00001.parquet")
    assert "part-00000.parquet" in refused(lambda: fit(tmp_path / "rows"), DataError)
