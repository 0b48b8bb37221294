"""Columns of tables to features: equal to scikit-learn's transformers, from every format."""

import datetime
import json
from decimal import Decimal
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.feature_extraction import DictVectorizer, FeatureHasher
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    OneHotEncoder,
    StandardScaler,
)

import streamtron
from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.data import find_shards
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.recipe import Recipe
from streamtron.data.formats.text_column import TextColumn
from streamtron.data.recipes import counted_reading, plus
from streamtron.runs.inputs import reading_from_settings
from tests.data.test_text import as_stored, documents, equal
from tests.helpers.layouts import write_table
from tests.helpers.models import refused
from tests.helpers.processes import here, succeeded

rng = np.random.default_rng(0)
ROWS = 3000
BOOLEANS = "false", "true"
AGES = np.where(rng.random(ROWS) < 0.03, np.nan, rng.normal(45, 15, ROWS).round(1))
CITIES = rng.choice(["Paris", "Rome", "Oslo", "Łódź", "Bonn, am Rhein"], ROWS)
NULL_CITIES = np.where(rng.random(ROWS) < 0.05, None, CITIES)
TIMES = np.datetime64("2024-01-01T00:00:00", "s") + rng.integers(0, 86_400 * 700, ROWS)
TABLE = pa.table(
    {
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
    }
)
SPECS = (
    "age:number,null=mean,scale=standard",
    "income:number,scale=max_abs",
    "clicks:number",
    "city:category,null=column",
    "premium:category",
    "signup:date,scale=standard",
    "ts:date,parts=hour",
    "note:text,tfidf",
)


def fitted(*specs: str, table: pa.Table = TABLE) -> Recipe:
    """A recipe that was counted in the batches of a table."""
    recipe, total = Recipe.of(*specs), None
    for k, batch in enumerate(table.to_batches(max_chunksize=70)):
        total = plus(total, recipe.tallies(batch, Spot("t", f"batch {k}", 0)))
    return recipe.fitted(total or [None] * len(specs))


def rows(*specs: str, table: pa.Table = TABLE) -> sparse.csr_array:
    return fitted(*specs, table=table).rows({name: table[name] for name in table.column_names})


def column(name: str) -> Any:
    return np.array(TABLE[name].to_pylist())[:, None]


AGE, CITY = AGES[:, None], NULL_CITIES[:, None]


def constant(**options: Any) -> SimpleImputer:
    return SimpleImputer(strategy="constant", fill_value=0.0, **options)


def bins(number: int) -> KBinsDiscretizer:
    return KBinsDiscretizer(number, encode="onehot", quantile_method="linear")


MADE: list[tuple[str, Any, Any]] = [
    ("income:number", FunctionTransformer(), column("income")),
    ("premium:number", FunctionTransformer(), column("premium").astype(float)),
    ("income:number,scale=max_abs", MaxAbsScaler(), column("income")),
    ("income:number,scale=standard", StandardScaler(), column("income")),
    ("age:number,null=mean", SimpleImputer(), AGE),
    ("age:number,null=0", constant(), AGE),
    ("age:number,null=mean,scale=standard", make_pipeline(SimpleImputer(), StandardScaler()), AGE),
    ("age:number,null=0,scale=standard", make_pipeline(constant(), StandardScaler()), AGE),
    (
        "age:number,null=column,scale=standard",
        make_pipeline(StandardScaler(), constant(add_indicator=True)),
        AGE,
    ),
    ("income:number,bins=7", bins(7), column("income")),
    ("clicks:number,bins=20", bins(20), column("clicks")),
    ("city:category,null=column", OneHotEncoder(), CITY),
    ("premium:category", OneHotEncoder(), column("premium")),
    ("clicks:category", OneHotEncoder(), column("clicks")),
    (
        "clicks:category,min_count=100",
        OneHotEncoder(min_frequency=100, handle_unknown="infrequent_if_exist"),
        column("clicks"),
    ),
    (
        "clicks:category,hash_bits=8",
        FeatureHasher(2**8, input_type="string", alternate_sign=False),
        [[f"clicks={n}"] for n in column("clicks")[:, 0]],
    ),
]


def test_bins_of_nulls_alone_are_refused_and_names_of_any_digits_are_categories():
    nulls = pa.table({"x": pa.nulls(9, pa.float64())})
    refusal = refused(lambda: fitted("x:number,bins=4,null=mean", table=nulls))
    assert "column 'x' has nothing but nulls" in refusal
    long = pa.table({"c": ["2", "1" * 5000, "10"]})
    assert fitted("c:category", table=long).columns[0].categories == ("10", "1" * 5000, "2")


@pytest.mark.filterwarnings("ignore:Bins whose width are too small")
@pytest.mark.parametrize(("spec", "transformer", "X"), MADE, ids=[case[0] for case in MADE])
def test_numbers_and_categories_become_what_scikit_learn_makes_of_them(spec, transformer, X):
    wanted = as_stored(transformer.fit_transform(X))
    made = rows(spec)
    assert made.shape == wanted.shape
    np.testing.assert_allclose(made.toarray(), wanted.toarray(), rtol=3e-7, atol=1e-9)
    if "standard" not in spec and "mean" not in spec:
        assert equal(made, wanted)


@cache
def bags() -> dict[str, list[Any]]:
    """A column of each kind of list, with an empty one and a null."""
    tags = rng.choice(["new", "old", "Łódź", "a,b"], (200, 3)).tolist()
    numbers = [row[: k % 3] for k, row in enumerate(rng.integers(-9, 99, (200, 3)).tolist())]
    prices = [dict(zip(row, rng.normal(0, 5, 3).tolist(), strict=True)) for row in tags]
    places = rng.normal(0, 1, (200, 8)).round(1).tolist()
    given = {"tags": tags, "numbers": numbers, "prices": prices, "places": places}
    return {name: [*column[:70], None, *column[70:]] for name, column in given.items()}


def as_dict(row: Any) -> dict[str, float]:
    """A list as DictVectorizer wants it."""
    if row is None or isinstance(row, dict):
        return row or {}
    if row and isinstance(row[0], float):
        return {str(k): x for k, x in enumerate(row)}
    return {str(name): float(row.count(name)) for name in row}


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
@pytest.mark.parametrize("name", ["tags", "numbers", "prices", "places"])
def test_lists_and_maps_become_what_dict_vectorizer_makes_of_them(name, kind):
    given = bags()[name]
    maps = [row and [*row.items()] for row in given] if name == "prices" else given
    type_ = {
        "tags": kind(pa.string()),
        "numbers": kind(pa.int64()),
        "places": kind(pa.float32()),
        "prices": pa.map_(pa.string(), pa.float64()),
    }[name]
    spec = f"{name}:{'vector' if name == 'places' else 'list'},null=0"
    recipe = fitted(spec, table=pa.table({name: pa.array(maps, type_)}))
    vectors = DictVectorizer()
    made = vectors.fit_transform([as_dict(row) for row in given])
    names = [recipe.name_of(k) for k in range(recipe.width)]
    assert sorted(map(str, names)) == [f"{name}={x}" for x in vectors.feature_names_]
    order = [names.index(f"{name}={x}") for x in vectors.feature_names_]
    rows = recipe.rows({name: given})[:, order]
    rows.sort_indices()
    assert equal(rows, as_stored(made))


def test_lists_train_as_the_columns_that_they_stand_for(tmp_path):
    given = {name: pa.array(column) for name, column in bags().items() if name != "prices"}
    label = ["yes" if row and "new" in row else "no" for row in bags()["tags"]]
    pq.write_table(pa.table(given | {"label": label}), tmp_path / "t.parquet")
    columns = ["tags:list,null=column", "numbers:list,min_count=9,null=0", "places:vector,null=0"]
    words = (f"--columns={spec}" for spec in columns)
    done = here(tmp_path, "fit", "t.parquet", *words, "--model", "m")
    assert "tags (5 features)" in done.stdout, done.stderr
    model = streamtron.load(tmp_path / "m")
    assert model.predict(pa.table(given)).tolist() == label
    assert Recipe.from_dict(json.loads(json.dumps(model.recipe.to_dict()))) == model.recipe
    flat = streamtron.StreamtronClassifier(tol=1e-8).fit(model.recipe.rows(given), label)
    again = streamtron.fit(tmp_path / "t.parquet", columns=columns, tol=1e-8)
    np.testing.assert_allclose(again.weights, flat.coef_[0], atol=1e-6)
    strange = {name: column[:1] for name, column in given.items()} | {"tags": [["new", "never"]]}
    pq.write_table(pa.table(strange), tmp_path / "u.parquet")
    [scores] = streamtron.predict(model, tmp_path / "u.parquet")
    assert scores.out_of_range == 1
    (tmp_path / "u.jsonl").write_text('{"tags": null, "numbers": [], "places": null}\n')
    [scores] = streamtron.predict(model, tmp_path / "u.jsonl")
    feature = [*map(model.recipe.name_of, range(model.columns))].index("tags=null")
    assert scores.decisions.tolist() == [pytest.approx(model.bias + model.weights[feature])]
    done = here(tmp_path, "export", "m", "--format", "onnx", "-o", "out")
    assert "column 'tags' has lists, for which" in done.stderr


@pytest.mark.parametrize(
    ("strange", "sentence"),
    [
        (None, "row 7: null in column 'x'. Say what a null is: null=0 or null=column"),
        ([1.0, None], "row 7: a null in the list of column 'x'. Remove it or fill it in."),
        ([1.0], "row 7: 1 numbers in column 'x', and in other rows 2."),
        ([1.0, 1e300], "row 7: value 1e+300 in column 'x' overflows float32"),
    ],
)
def test_a_list_that_is_no_row_is_refused_by_place(strange, sentence):
    column = [[0.5, 2.0]] * 7 + [strange, [1.0, 2.0]]
    assert sentence in refused(lambda: fitted("x:vector", table=pa.table({"x": column})))
    known = fitted("x:vector", table=pa.table({"x": column[:7]}))
    assert f"X, {sentence}" in refused(lambda: known.rows({"x": column}))


def test_dates_become_their_age_and_the_weekday_hour_and_month_of_python():
    recipe = fitted("ts:date,parts=age,weekday,hour,month")
    made = recipe.rows({"ts": TABLE["ts"]})
    times = TABLE["ts"].to_pylist()
    last = datetime.datetime.combine(max(times).date(), datetime.time())
    one_hot = OneHotEncoder(categories=[range(7), range(24), range(1, 13)])
    parts = one_hot.fit_transform([[t.weekday(), t.hour, t.month] for t in times])
    ages = [[(last - t) / datetime.timedelta(days=1)] for t in times]
    assert equal(made, as_stored(sparse.hstack([ages, parts])))
    assert [recipe.name_of(k) for k in (0, 1, 8, 32)] == [
        "ts.age",
        "ts.weekday=Mon",
        "ts.hour=0",
        "ts.month=Jan",
    ]
    zone = pa.timestamp("us", "Asia/Kolkata")  # without summer time
    zoned = recipe.rows({"ts": pc.assume_timezone(TABLE["ts"].cast(pa.timestamp("us")), zone.tz)})
    assert equal(zoned, made)  # on its own clock
    endless = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    assert "out of bounds" in refused(lambda: recipe.rows({"ts": endless}), DataError)


WORDS: list[tuple[str, Any]] = [
    ("norm=none", CountVectorizer()),
    (
        "norm=none,ngrams=1-2,most_features=500",
        CountVectorizer(ngram_range=(1, 2), max_features=500),
    ),
    ("norm=none,binary,min_df=3,max_df=0.5", CountVectorizer(binary=True, min_df=3, max_df=0.5)),
    ("tfidf", TfidfVectorizer()),
    (
        "tfidf,sublinear_tf,norm=l1,min_df=0.02,max_df=290",
        TfidfVectorizer(sublinear_tf=True, norm="l1", min_df=0.02, max_df=290),
    ),
    (
        "tfidf,stop_words=english,ngrams=1-2",
        TfidfVectorizer(stop_words="english", ngram_range=(1, 2)),
    ),
    ("norm=none,stop_words=the,of,self", CountVectorizer(stop_words=["the", "of", "self"])),
    ("tfidf,analyzer=char,ngrams=2-3", TfidfVectorizer(analyzer="char", ngram_range=(2, 3))),
    ("tfidf,analyzer=char_wb,ngrams=4-6", TfidfVectorizer(analyzer="char_wb", ngram_range=(4, 6))),
    ("norm=none,strip_accents=unicode", CountVectorizer(strip_accents="unicode")),
    ("hash_bits=12", HashingVectorizer(n_features=2**12, alternate_sign=False)),
    ("hash_bits=8,alternate_sign,norm=l1", HashingVectorizer(n_features=2**8, norm="l1")),
    ("hash_bits=8,alternate_sign,binary", HashingVectorizer(n_features=2**8, binary=True)),
    (
        r"hash_bits=12,alternate_sign,ngrams=1-2,token_pattern=def (\w+)",
        HashingVectorizer(n_features=2**12, token_pattern=r"def (\w+)", ngram_range=(1, 2)),
    ),
    # few columns: signs meet, and cancel in some documents
    (
        "tfidf,hash_bits=9,alternate_sign",
        make_pipeline(HashingVectorizer(n_features=2**9, norm=None), TfidfTransformer()),
    ),
    (
        "hash_bits=12,alternate_sign,analyzer=char_wb,ngrams=5-5",
        HashingVectorizer(n_features=2**12, analyzer="char_wb", ngram_range=(5, 5)),
    ),
]
TEXTS = pa.table({"t": [text[:300] for text in documents()[:300]]})


@pytest.mark.filterwarnings("ignore:Your stop_words may be inconsistent")
@pytest.mark.parametrize(("options", "vectorizer"), WORDS, ids=[case[0] for case in WORDS])
def test_documents_become_what_scikit_learns_vectorizers_make_of_them(options, vectorizer):
    texts = TEXTS["t"].to_pylist()
    wanted = as_stored(vectorizer.fit_transform(texts))
    recipe = fitted(f"t:text,{options}", table=TEXTS)
    made = recipe.rows({"t": texts})
    if "most_features" in options:  # of words that occur as often, scikit-learn takes any
        assert made.sum() == wanted.sum()
        assert recipe.summary == ["t (500 features, rarer words left out)"]
        assert fitted("t:text,most_features=1", table=TEXTS).summary == ["t (rarer words left out)"]
        return
    np.testing.assert_allclose(made.toarray(), wanted.toarray(), rtol=3e-7)
    if hasattr(vectorizer, "vocabulary_"):
        names = [recipe.name_of(k) for k in range(recipe.width)]
        assert names == vectorizer.get_feature_names_out().tolist()


def with_strings(kind: pa.DataType) -> pa.Table:
    """The table with strings of another type, such as polars writes."""
    notes, cities = TABLE["note"].cast(kind), TABLE["city"].cast(pa.dictionary(pa.int32(), kind))
    return TABLE.set_column(4, "city", cities).set_column(8, "note", notes)


FILES = ("a.parquet", "a.csv", "a.jsonl", "a.arrow", "views.arrow")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The table in every format, and a model of it."""
    directory = tmp_path_factory.mktemp("recipe")
    for name in FILES:
        kind = pa.string_view() if "views" in name else pa.large_string()
        write_table(directory / name, with_strings(kind) if "arrow" in name else TABLE, 700)
    streamtron.fit(directory / "a.parquet", columns=SPECS, model=directory / "m")
    return directory


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_rows_and_the_same_decisions(name, place):
    model = streamtron.fit(place / name, columns=SPECS)
    assert model.weights.tolist() == streamtron.load(place / "m").weights.tolist()
    decided = streamtron.load(place / "m").decision_function(TABLE)
    [scores] = streamtron.predict(place / "m", place / name)
    assert scores.decisions.tolist() == decided.tolist()


def test_lists_of_strings_as_polars_writes_them_are_lists_of_strings(tmp_path):
    models, pairs = [], [[("a", 2.0), ("b", 2.0)], [("b", 2.0)], [], None]
    for text in (pa.string(), pa.string_view()):
        pair = pa.struct([("name", text), ("value", pa.float64())])
        lists = {
            "list": pa.array([["a", "b"], ["b"], [], None], pa.large_list(text)),
            "pairs": pa.array(pairs, pa.list_(pair)),
            "map": pa.array(pairs, pa.map_(text, pa.float64())),
        }
        write_table(tmp_path / "a.arrow", {"y": [1, -1, 1, -1]} | lists)
        columns = [f"{name}:list,null=0" for name in lists]
        models.append(streamtron.fit(tmp_path / "a.arrow", columns=columns))
    assert models[0].weights.tolist() == models[1].weights.tolist()
    assert models[0].recipe == models[1].recipe


def test_categories_that_were_not_counted_weigh_nothing_and_are_counted(place, tmp_path, caplog):
    model = streamtron.load(place / "m")
    strange = TABLE.set_column(4, "city", pa.array(["Nowhere"] * ROWS)).slice(0, 70)
    path = write_table(tmp_path / "strange.parquet", strange)
    [scores] = streamtron.predict(model, path)
    assert (scores.out_of_range, scores.unseen) == (70, ("city",))
    assert streamtron.evaluate(model, path).unseen == ["city"]
    told = "70 unknown values, in 'city', weigh 0"
    assert told in here(place, "evaluate", "m", path).stdout
    assert told in here(place, "predict", "m", path, "-o", tmp_path / "out").stderr
    rows = model.recipe.rows({name: strange[name] for name in strange.column_names})
    assert scores.decisions.tolist() == (rows @ model.weights + model.bias).tolist()
    model.predict(TABLE.slice(0, 70))
    assert caplog.messages == [
        "X: 'city' holds none of the categories that the model knows ('Bonn, am Rhein', 'Oslo', … "
        "3 more), and weighs 0."
    ]


@pytest.mark.parametrize("words", ["False,True", "FALSE,TRUE", "false,true", "0.0,1.0"])
def test_a_category_of_booleans_or_whole_numbers_is_the_same_however_it_is_written(words, tmp_path):
    truths, written = rng.random(60) < 0.5, words.split(",")
    flags = truths.astype(int) if words[0] == "0" else truths
    table = pa.table({"vip": flags, "x": rng.normal(size=60), "label": truths.astype(int)})
    pyarrow.csv.write_csv(
        table.set_column(0, "vip", pa.array(np.array(written)[truths.astype(int)])),
        tmp_path / "a.csv",
        pyarrow.csv.WriteOptions(quoting_style="none"),
    )
    pq.write_table(table, tmp_path / "a.parquet")
    columns = ["vip:category", "x:number"]
    model = streamtron.fit(tmp_path / "a.parquet", columns=columns)
    assert model.recipe.columns[0].categories == (("0", "1") if "0" in words else BOOLEANS)
    wanted = model.decision_function(table).tolist()
    [scores] = streamtron.predict(model, tmp_path / "a.csv")
    assert (scores.decisions.tolist(), scores.unseen) == (wanted, ())
    if "0" in words:
        vip = model.recipe.columns[0]
        codes = vip.codes(map(vip.as_counted, ["01", "01.0", "1.5", "1.0"]))
        assert codes.tolist() == [-1, -1, -1, 1]
        return
    assert streamtron.fit(tmp_path / "a.csv", columns=columns).recipe == model.recipe
    (tmp_path / "b.csv").write_text("vip,x,label\nTrue,1,0\nNA,1,1\n")
    mixed = streamtron.fit([tmp_path / "a.csv", tmp_path / "b.csv"], columns=columns)
    assert mixed.recipe.columns[0].categories == (*sorted({*written, "NA", "True"}),)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("age:number", "column 'age'. Say what a null is: null=0 or null=column or null=mean"),
        ("city:category", "--columns 'city:category,null=column'"),
        ("note:number", "column 'note' of type string cannot be a number: expected numbers"),
        ("income:category", "type double cannot be a category: expected strings, booleans"),
        ("note:list", "of type string cannot be a list: expected lists of names, of whole numbers"),
        ("city:date,null=0", "row 0: column 'city' holds 'Łódź' (Failed to parse"),
        ("nothing:number", "0 columns 'nothing', which --columns or --text names"),
        ("x*:number", "no column of numbers or booleans is called 'x*'"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_with_what_to_give(spec, sentence, place):
    assert sentence in refused(lambda: streamtron.fit(place / "a.parquet", columns=spec), DataError)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("age", "Wanted is NAME:KIND,OPTION=VALUE,…"),
        ("age:number,nul=0", "no option 'nul=0' of a number. Wanted are null, scale, bins"),
        ("age:number,null=none", "null=none: expected refuse, 0, column, mean"),
        ("age:number,bins=x", "bins=x, expected a whole number"),
        ("age:number,bins=3,scale=standard", "and no scale beside them"),
        ("city:category,min_count=0", "min_count=0: expected 1 or more"),
        ("d:date,parts=age,year", "parts=year: expected age, weekday, hour, month"),
        *(
            (f"d:date,at={word}", f"at={word}: expected a date such as 2026-01-31")
            for word in ("soon", "today", "now", "NaT", "2026", "2026-02", "2026-02-30")
        ),
        ("t:text,alternate_sign", "alternate_sign without hash_bits"),
        ("t:text,min_df=2,hash_bits=4", "choose words: no hash_bits then"),
        ("t:text,ngrams=2-1", "ngrams=2-1"),
        ("t:text,hash_bits=31", "expected 1 to 30"),
        ("t:text,norm=max", "expected l2, l1, none"),
        ("t:text,null=0", "null=0: expected refuse, empty"),
        ("t:text,token_pattern=(", "token_pattern='(': no regular expression"),
        ("t:text,token_pattern=(a)(b)", "2 groups"),
        *(
            (f"t:text,token_pattern={pattern}", "token_pattern=")
            for pattern in ("a" * 1001, "(" * 490 + ")" * 490, "a{99999999999999}")
        ),
    ],
)
def test_words_that_are_no_column_are_refused_with_what_is_expected(spec, sentence):
    message = refused(lambda: Recipe.of(spec), SettingsError)
    assert sentence in message
    assert len(message) < 300


def test_a_recipe_is_the_same_from_its_words_and_from_its_json():
    recipe = fitted(*SPECS, "user_id:category,min_count=2,null=0", "label:category")
    assert Recipe.of(*recipe.specs).specs == recipe.specs
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    for pattern in (r"\w{2,}[,;]", r"\w,"):
        column = TextColumn(
            "t", ngram_range=(1, 2), stop_words=("a", "b"), min_df=1e-5, token_pattern=pattern
        )
        assert Recipe.of(*Recipe((column,)).specs) == Recipe((column,))
    for words in (("the", "binary"), ("the,of",), ("a=b", "norm=l1")):
        recipe = Recipe((TextColumn("t", stop_words=words),))
        assert "no words say this" in refused(lambda recipe=recipe: recipe.specs, SettingsError)
    pattern = Recipe.of("*:number,null=mean", "clicks:category")
    names = pattern.settled(TABLE.schema, "t", ("label",)).names
    assert names == ["user_id", "age", "income", "premium", "clicks"]


def test_inspect_shows_any_table_and_fit_takes_the_columns_that_it_prints(place, tmp_path, caplog):
    for name in FILES:
        shown = here(place, "inspect", name).stdout
        lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
        assert "left out (looks like an identifier" in lines["user_id"], shown
        assert "number,scale=standard,null=mean" in shown
        for line in (
            'city = "category,null=column"',
            'premium = "category"',
            'label = "label"',
            'clicks = "number,scale=standard"',
        ):
            assert f"\n{line}\n" in shown, shown
        assert 'note = "text,tfidf' in shown
        toml = shown[shown.index("\nlabel = ") :]
        (tmp_path / "columns.toml").write_text(toml)
        words = ("--columns", tmp_path / "columns.toml", "--model", tmp_path / name)
        assert here(place, "fit", name, *words).returncode == 0
        (tmp_path / "columns.toml").write_text(f'{toml}label = "category"\n')
        words = (*words[:3], tmp_path / "other")
        assert "'label' is both the label and" in here(place, "fit", name, *words).stderr
    assert here(place, "fit", "a.csv", "--columns", "auto", "--model", tmp_path / "auto")
    assert "columns auto leaves user_id out: looks like an identifier" in caplog.text
    weights = [streamtron.load(tmp_path / name).weights.tolist() for name in ("a.csv", "auto")]
    assert weights[0] == weights[1]
    (tmp_path / "my table.csv").write_bytes((place / "a.csv").read_bytes())
    assert "fit 'my table.csv' --col" in here(tmp_path, "inspect", "my table.csv").stdout
    assert "city=Oslo" in here(place, "explain", tmp_path / "auto").stdout
    assert "city:category,null=column" in here(place, "inspect", tmp_path / "auto").stdout


ODD_COLUMNS = {
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16] * 2, pa.binary(16))),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.eye(2)[None].repeat(2, 0)),
    "decimal of 32 bits": pa.array([Decimal(1), Decimal(2)], pa.decimal32(9, 2)),
    "dates far off": pa.array([[2**31 - 1], None], pa.list_(pa.date32())),
    "no zone": pa.array([1, None], pa.timestamp("us", "Mars/Phobos")),
}


def test_inspect_shows_a_column_of_any_type(tmp_path):
    write_table(tmp_path / "t.arrow", {"y": [1, -1], **ODD_COLUMNS})
    known = json.loads(succeeded(here(tmp_path, "inspect", "t.arrow", "--json")).stdout)["table"]
    for told, column in zip(known[1:], ODD_COLUMNS.values(), strict=True):
        assert (told["type"], told["nulls"]) == (str(column.type), column.null_count)
        assert told["examples"]


def test_inspect_tells_what_is_empty_constant_or_of_lists(tmp_path):
    days = pa.array([2**31 - 1, 0] * 15, pa.int32()).cast(pa.date32())
    columns = {
        "nothing": (pa.array([None] * 30, pa.string()), None, "empty"),
        "always": (["x"] * 30, None, "constant"),
        "tags": ([[1]] * 30, "list", ""),
        "deep": ([[[1]]] * 30, None, "of a type that no kind of column has"),
        "code": (
            [f"c{k}" for k in range(30)],
            None,
            "looks like an identifier: no value comes twice",
        ),
        "few": (["a", "b", None] * 10, "category,null=column", ""),
        "ever": (days, "date,parts=age,weekday,month,scale=standard", ""),
    }
    write_table(tmp_path / "t.parquet", {name: cells for name, (cells, *_) in columns.items()})
    facts = json.loads(here(tmp_path, "inspect", "t.parquet", "--json").stdout)
    told = {column["name"]: (column["becomes"], column["reason"]) for column in facts["table"]}
    assert told == {name: (becomes, reason) for name, (_, becomes, reason) in columns.items()}


def test_inspect_shows_csv_as_written_and_remarks_on_codes_and_words_for_nulls(tmp_path, caplog):
    rows = [
        f"{k % 2 * k:03},{k}.5,2026-01-{k + 10},{k % 3},{'TRUE' if k % 2 else 'no'},{k % 2}"
        for k in range(19)
    ]
    text = ["zip,paid,day,mixed,vip,y", *rows, "012,NA,?,NA,TRUE,0", "012,nan,N/A,x,no,1", ""]
    (tmp_path / "t.csv").write_text("\n".join(text))
    facts = json.loads(here(tmp_path, "inspect", "t.csv", "--label", "y", "--json").stdout)
    told = {column["name"]: column for column in facts["table"]}
    assert told["zip"]["examples"] == ["000", "001", "003"]
    assert told["vip"]["examples"] == ["no", "TRUE"]
    assert {name: column["reason"] for name, column in told.items()} == {
        "zip": "codes: some begin with 0",
        "mixed": "",
        "vip": "",
        "y": "",
        "paid": "a number but for 'NA', 'nan': make that null, in CSV an empty field",
        "day": "a date but for '?', 'N/A': make that null, in CSV an empty field",
    }
    streamtron.fit(tmp_path / "t.csv", columns="auto", label="y")
    assert "columns auto, paid: a number but for 'NA', 'nan'" in caplog.text


def test_what_a_recipe_needs_is_counted_by_one_reading_and_nothing_else_is(place):
    def bytes_read(*columns):
        settings = Settings(columns=columns, tol=0.5)
        files = find_shards([str(place / "a.parquet")])
        return counted_reading(files, reading_from_settings(settings), settings, 1)[1]

    assert bytes_read("clicks:number", "city:category,hash_bits=4,null=0") == 0
    size = (place / "a.parquet").stat().st_size
    assert bytes_read("clicks:number", "city:category,null=0") == size


def test_an_update_names_columns_with_categories_that_were_not_counted(tmp_path, caplog):
    for name, cities in {"a": ["Rome", "Paris"], "b": ["Rome", "Oslo"]}.items():
        table = {"city": cities * 20, "day": ["x", "y"] * 20, "label": [0, 1] * 20}
        write_table(tmp_path / f"{name}.parquet", table)
    columns = ["city:category", "day:category"]
    streamtron.fit(tmp_path / "a.parquet", columns=columns, model=tmp_path / "m")
    assert "none of the categories" not in caplog.text
    streamtron.update(tmp_path / "m", tmp_path / "b.parquet")
    assert "Some values in 'city' are none of the categories that were counted" in caplog.text


def test_an_update_keeps_what_was_counted_and_forgets_rows_as_ever(place, tmp_path):
    pq.write_table(TABLE.slice(0, 2000), tmp_path / "a.parquet")
    pq.write_table(TABLE.slice(2000), tmp_path / "b.parquet")
    streamtron.fit(tmp_path / "a.parquet", columns=SPECS, model=tmp_path / "m")
    recipe = streamtron.load(tmp_path / "m").recipe
    assert streamtron.update(tmp_path / "m", tmp_path / "b.parquet").report["rows"] == ROWS
    streamtron.forget(tmp_path / "m", key="user_id", values=["7"])
    assert streamtron.load(tmp_path / "m").recipe == recipe
    assert here(tmp_path, "certify", "m", "a.parquet", "b.parquet").returncode == 0
    shards = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    resume = partial(
        streamtron.run, shards, Settings(columns=SPECS, tol=1e-4), model=tmp_path / "m", resume=True
    )
    certified = resume().report["certificate"]["primal_objective"]
    assert streamtron.load(tmp_path / "m").recipe == recipe
    assert streamtron.certify(tmp_path / "m").certificate.primal == pytest.approx(certified)
    streamtron.fit(shards[1], columns=SPECS, tol=0.9).save(tmp_path / "m")  # another recipe
    assert "were counted in other rows" in refused(resume, DataError)
    result = streamtron.sweep(
        place / "a.parquet", columns=SPECS, C=[0.1, 1], tol=0.2, valid=place / "a.csv"
    )
    assert len(result.trials) == 2
