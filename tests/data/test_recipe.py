"""Columns of tables to features: equal to scikit-learn's transformers, from every format."""

from __future__ import annotations

import datetime
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, MaxAbsScaler, OneHotEncoder, StandardScaler

import streamtron
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.recipe import Recipe
from tests.data.test_text import as_stored, documents, equal

rng = np.random.default_rng(0)
ROWS = 3000
AGES = np.where(rng.random(ROWS) < 0.03, np.nan, rng.normal(45, 15, ROWS).round(1))
CITIES = rng.choice(["Paris", "Rome", "Oslo", "Łódź", "Bonn, am Rhein"], ROWS)
NULL_CITIES = np.where(rng.random(ROWS) < 0.05, None, CITIES)
TIMES = np.datetime64("2024-01-01T00:00:00", "s") + rng.integers(0, 86_400 * 700, ROWS)
TABLE = pa.table({
    "user_id": np.arange(ROWS),
    "age": pa.array(AGES, from_pandas=True),
    "income": rng.lognormal(10, 1, ROWS).round(2),
    "clicks": rng.poisson(2, ROWS).astype(np.int32),
    "city": pa.array(NULL_CITIES.tolist()).dictionary_encode(),
    "premium": rng.random(ROWS) < 0.3,
    "signup": TIMES.astype("datetime64[D]"),
    "ts": TIMES,
    "note": [documents()[k % 2000][:300] for k in range(ROWS)],
    "label": np.where(np.nan_to_num(AGES) + 20 * (CITIES == "Oslo") > 50, "yes", "no"),
})  # fmt: skip
SPECS = (
    "age:number,null=mean,scale=standard", "income:number,scale=max_abs", "clicks:number",
    "city:category,null=column", "premium:category", "signup:date,scale=standard",
    "ts:date,parts=hour", "note:text,tfidf",
)  # fmt: skip


def fitted(*specs: str, table: pa.Table = TABLE) -> Recipe:
    """A recipe that was counted in the batches of a table."""
    recipe, total = Recipe.of(*specs), None
    for k, batch in enumerate(table.to_batches(max_chunksize=700)):
        total = Recipe.plus(total, recipe.tallies(batch, Spot("t", f"batch {k}", 0)))
    return recipe.fitted(total or [None] * len(specs))


def rows(*specs: str, table: pa.Table = TABLE) -> sparse.csr_array:
    return fitted(*specs, table=table).rows({name: table[name] for name in table.column_names})


def column(name: str) -> Any:
    return np.array(TABLE[name].to_pylist())[:, None]


AGE, CITY = AGES[:, None], NULL_CITIES[:, None]
SCALED: list[tuple[str, Any, Any]] = [
    ("income:number", None, column("income")),
    ("premium:number", None, column("premium").astype(float)),
    ("income:number,scale=max_abs", MaxAbsScaler(), column("income")),
    ("income:number,scale=standard", StandardScaler(), column("income")),
    ("age:number,null=mean", SimpleImputer(), AGE),
    ("age:number,null=0", SimpleImputer(strategy="constant", fill_value=0.0), AGE),
    ("age:number,null=mean,scale=standard", make_pipeline(SimpleImputer(), StandardScaler()), AGE),
    ("age:number,null=0,scale=standard",
     make_pipeline(SimpleImputer(strategy="constant", fill_value=0.0), StandardScaler()), AGE),
    ("age:number,null=column,scale=standard",
     make_pipeline(StandardScaler(), SimpleImputer(strategy="constant", fill_value=0.0,
                                                   add_indicator=True)), AGE),
    ("income:number,bins=7",
     KBinsDiscretizer(7, encode="onehot", quantile_method="linear"), column("income")),
    ("clicks:number,bins=20",
     KBinsDiscretizer(20, encode="onehot", quantile_method="linear"), column("clicks")),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Bins whose width are too small")
@pytest.mark.parametrize(("spec", "transformer", "X"), SCALED, ids=[case[0] for case in SCALED])
def test_numbers_become_what_scikit_learn_makes_of_them(
    spec: str, transformer: Any, X: Any
) -> None:
    wanted = as_stored(X if transformer is None else transformer.fit_transform(X))
    made = rows(spec)
    assert made.shape == wanted.shape
    np.testing.assert_allclose(made.toarray(), wanted.toarray(), rtol=3e-7, atol=1e-9)
    if "standard" not in spec and "mean" not in spec:
        assert equal(made, wanted)


ENCODED: list[tuple[str, Any, Any]] = [
    ("city:category,null=column", OneHotEncoder(), CITY),
    ("premium:category", OneHotEncoder(), column("premium")),
    ("clicks:category", OneHotEncoder(), column("clicks")),
    ("clicks:category,min_count=100",
     OneHotEncoder(min_frequency=100, handle_unknown="infrequent_if_exist"), column("clicks")),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "encoder", "X"), ENCODED, ids=[case[0] for case in ENCODED])
def test_categories_become_what_one_hot_encoder_makes_of_them(
    spec: str, encoder: Any, X: Any
) -> None:
    assert equal(rows(spec), as_stored(encoder.fit_transform(X)))


def test_hashed_categories_become_what_feature_hasher_makes_of_them() -> None:
    hasher = FeatureHasher(2**8, input_type="string", alternate_sign=False)
    wanted = hasher.transform([[f"clicks={n}"] for n in column("clicks")[:, 0]])
    assert equal(rows("clicks:category,hash_bits=8"), as_stored(wanted))


def test_dates_become_their_age_and_the_weekday_hour_and_month_of_python() -> None:
    recipe = fitted("ts:date,parts=age,weekday,hour,month")
    made = recipe.rows({"ts": TABLE["ts"]})
    times = TABLE["ts"].to_pylist()
    last = datetime.datetime.combine(max(times).date(), datetime.time())
    one_hot = OneHotEncoder(categories=[range(7), range(24), range(1, 13)])
    parts = one_hot.fit_transform([[t.weekday(), t.hour, t.month] for t in times])
    ages = [[(last - t) / datetime.timedelta(days=1)] for t in times]
    assert equal(made, as_stored(sparse.hstack([ages, parts])))
    assert [recipe.name_of(k) for k in (0, 1, 8, 32)] == [
        "ts.age", "ts.weekday=Mon", "ts.hour=0", "ts.month=Jan",
    ]  # fmt: skip


WORDS: list[tuple[str, Any]] = [
    ("norm=none", CountVectorizer()),
    ("norm=none,ngrams=1-2,most_features=500",
     CountVectorizer(ngram_range=(1, 2), max_features=500)),
    ("norm=none,binary,min_df=3,max_df=0.5", CountVectorizer(binary=True, min_df=3, max_df=0.5)),
    ("tfidf", TfidfVectorizer()),
    ("tfidf,sublinear_tf,norm=l1,min_df=0.01,max_df=900",
     TfidfVectorizer(sublinear_tf=True, norm="l1", min_df=0.01, max_df=900)),
    ("tfidf,stop_words=english,ngrams=1-2",
     TfidfVectorizer(stop_words="english", ngram_range=(1, 2))),
    ("norm=none,stop_words=the,of,self", CountVectorizer(stop_words=["the", "of", "self"])),
    ("tfidf,analyzer=char,ngrams=2-3", TfidfVectorizer(analyzer="char", ngram_range=(2, 3))),
    ("tfidf,analyzer=char_wb,ngrams=4-6", TfidfVectorizer(analyzer="char_wb", ngram_range=(4, 6))),
    ("norm=none,strip_accents=unicode", CountVectorizer(strip_accents="unicode")),
    ("hash_bits=12", HashingVectorizer(n_features=2**12, alternate_sign=False)),
    ("hash_bits=12,alternate_sign,analyzer=char_wb,ngrams=5-5",
     HashingVectorizer(n_features=2**12, analyzer="char_wb", ngram_range=(5, 5))),
]  # fmt: skip
TEXTS = pa.table({"t": [text[:400] for text in documents()[:700]]})


@pytest.mark.filterwarnings("ignore:Your stop_words may be inconsistent")
@pytest.mark.parametrize(("options", "vectorizer"), WORDS, ids=[case[0] for case in WORDS])
def test_documents_become_what_scikit_learns_vectorizers_make_of_them(
    options: str, vectorizer: Any
) -> None:
    texts = TEXTS["t"].to_pylist()
    wanted = as_stored(vectorizer.fit_transform(texts))
    recipe = fitted(f"t:text,{options}", table=TEXTS)
    made = recipe.rows({"t": texts})
    if "most_features" in options:  # of words that occur as often, scikit-learn takes any
        assert made.sum() == wanted.sum()
        return
    np.testing.assert_allclose(made.toarray(), wanted.toarray(), rtol=3e-7)
    if hasattr(vectorizer, "vocabulary_"):
        names = [recipe.name_of(k) for k in range(recipe.width)]
        assert names == vectorizer.get_feature_names_out().tolist()


# --- files ---------------------------------------------------------------------------------------


def write_csv(table: pa.Table, path: Path) -> None:
    pyarrow.csv.write_csv(table.set_column(4, "city", table["city"].cast(pa.string())), path)


def write_json(table: pa.Table, path: Path) -> None:
    text = partial(json.dumps, default=str, ensure_ascii=False)
    records = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    path.write_text("".join(text(row) + "\n" for row in records), encoding="utf-8")


WRITERS = {"a.parquet": pq.write_table, "a.csv": write_csv, "a.jsonl": write_json}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table in every format, and a model of it."""
    directory = tmp_path_factory.mktemp("recipe")
    for name, write in WRITERS.items():
        write(TABLE, directory / name)  # type: ignore[operator]
    streamtron.fit(directory / "a.parquet", columns=SPECS, model=directory / "m")
    return directory


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows_and_the_same_decisions(name: str, place: Path) -> None:
    model = streamtron.fit(place / name, columns=SPECS)
    assert model.weights.tolist() == streamtron.load(place / "m").weights.tolist()
    decided = streamtron.load(place / "m").decision_function(TABLE)
    [scores] = streamtron.predict(place / "m", place / name)
    assert scores.decisions.tolist() == decided.tolist()
