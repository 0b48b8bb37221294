"""Our transformers beside scikit-learn's checks, and a transformer's bytes."""

import io
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest, chi2
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from skops.io import dumps

from streamtron.core.errors import DataError, SettingsError
from streamtron.data.formats.layouts import Spot
from streamtron.data.packed import loaded, pack
from streamtron.data.transform import Transformer, frame_of, matrix_of
from streamtron.data.transformers import (
    DateFeatures,
    TagFeatures,
    column_transformer,
    parse_spec,
    specs_of,
)

HERE = Spot("a.parquet", "", 0)

CHECKS = [
    pytest.param(estimator, check, id=f"{type(estimator).__name__}-{number}")
    for made in (DateFeatures(), TagFeatures())
    for number, (estimator, check) in enumerate(estimator_checks_generator(made, legacy=True))
    if "array_api" not in str(check)
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_our_transformers_pass_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_dates_become_one_hot_parts_and_scaled_days_and_a_missing_one_has_its_own_feature():
    dates = pd.DataFrame({"when": pd.to_datetime(["2026-01-30 23:00", None, "1969-12-29 01:00"])})
    features = DateFeatures().fit(dates)
    rows = pd.DataFrame(
        features.transform(dates).toarray(), columns=features.get_feature_names_out()
    )
    first = rows.iloc[0]
    names = ["when_year_2026", "when_month_1", "when_weekday_4", "when_hour_23"]
    assert first[names].tolist() == [1.0] * 4
    assert first.drop([*names, "when_days"]).eq(0.0).all()
    assert rows.iloc[1].drop("when_missing").eq(0.0).all()
    assert rows["when_missing"].tolist() == [0.0, 1.0, 0.0]
    assert rows.iloc[2][["when_year_1969", "when_month_12", "when_weekday_0"]].tolist() == [1.0] * 3
    days = rows["when_days"].iloc[[0, 2]]
    assert days.mean() == pytest.approx(0.0, abs=1e-12)
    assert days.std(ddof=0) == pytest.approx(1.0)


def test_tags_are_counted_once_a_row_and_text_is_split_into_tags():
    cells = np.empty((4, 1), object)
    cells[:, 0] = [["red", "red", None], "new; red", None, ["old"]]
    features = TagFeatures(min_frequency=2).fit(cells)
    assert features.get_feature_names_out(["tags"]).tolist() == ["tags_red"]
    assert features.transform(cells).toarray().ravel().tolist() == [1.0, 1.0, 0.0, 0.0]


def test_columns_and_their_kinds_build_the_column_transformer_that_one_would_write():
    rows = pd.DataFrame(
        {
            "age": [20.0, np.nan, 40.0, 60.0],
            "city": np.array(["Rome", "Oslo", "Rome", np.nan], object),
            "note": ["cheap pills", "", "the cheap cat", "cat"],
        }
    )
    written = ColumnTransformer(
        [
            (
                "number",
                make_pipeline(
                    SimpleImputer(add_indicator=True, keep_empty_features=True), StandardScaler()
                ),
                ["age"],
            ),
            (
                "category",
                OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=2),
                ["city"],
            ),
            ("note", TfidfVectorizer(), "note"),
        ]
    )
    built = column_transformer(specs_of(["age:number", "city:category"], "note"))
    expected = matrix_of(written.fit_transform(rows)).toarray()
    made = matrix_of(built.fit_transform(rows)).toarray()
    # the text comes first where it is named by --text
    assert np.array_equal(np.sort(made, axis=1), np.sort(expected, axis=1))
    assert "category__city_infrequent_sklearn" in built.get_feature_names_out()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("age", "columns: 'age': expected NAME:KIND, where KIND is number, category, date, list"),
        ("age:number:hash", "expected NAME:KIND"),
        (":number", "expected NAME:KIND"),
        ("age:numbers", "category:hash or text:hash"),
    ],
)
def test_a_column_without_a_kind_is_refused_with_the_kinds(words, message):
    with pytest.raises(SettingsError, match=message):
        parse_spec(words)


def test_a_name_may_hold_a_colon_and_no_name_stands_for_others():
    assert parse_spec("a:b:category").name == "a:b"
    assert parse_spec("*:text").name == "*"
    with pytest.raises(SettingsError, match=r"'b' twice\. Name each column once."):
        specs_of(["b:number"], "b")


def _rows(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_frame_has_the_same_types_from_every_file():
    inputs = (("x", "number"), ("c", "category"), ("t", "text"), ("d", "date"), ("l", "list"))
    frames = [
        frame_of(_rows(x=x, c=c, t=t, d=d, l=l), inputs, HERE)
        for x, c, t, d, l in (
            ([1, None], ["a", None], ["u", None], pa.array([0, None], pa.date32()), [["r"], None]),
            (
                pa.array([True, None]).cast(pa.float32()),
                pa.array(["a", None]).dictionary_encode(),
                pa.array(["u", ""], pa.large_string()),
                pa.array(["1970-01-01", None]),
                pa.array([["r"], []], pa.large_list(pa.string())),
            ),
        )
    ]
    assert frames[0].equals(frames[1])
    assert frames[0].dtypes["d"] == "datetime64[us]"
    assert frames[0]["t"].tolist() == ["u", ""]
    of_booleans = frame_of(_rows(c=[True, None]), (("c", "category"),), HERE)
    assert of_booleans["c"].tolist()[0] == "true", "as CSV has it"


def test_a_time_with_a_zone_is_read_on_that_zones_clock():
    times = pa.array([0], pa.timestamp("s", tz="Asia/Tokyo"))
    frame = frame_of(_rows(d=times), (("d", "date"),), HERE)
    assert frame["d"].tolist() == [pd.Timestamp("1970-01-01 09:00")]


def test_a_file_without_a_column_that_the_transformer_takes_is_refused():
    with pytest.raises(DataError, match="no column 'x', which the transformer takes"):
        frame_of(_rows(y=[1.0]), (("x", "number"),), HERE)


def _text() -> list[str]:
    return ["cheap pills", "the cat", 'a "__id__": 7 quote', "pills"]


def _fitted() -> list[object]:
    frame = pd.DataFrame({"a": np.arange(4.0), "c": np.array(["x", "y", np.nan, "x"], object)})
    parts = [("n", StandardScaler(), ["a"]), ("c", OneHotEncoder(min_frequency=2), ["c"])]
    return [
        TfidfVectorizer(max_features=4).fit(_text()),
        CountVectorizer(ngram_range=(1, 2), analyzer="char").fit(_text()),
        HashingVectorizer(),
        Pipeline([("v", CountVectorizer()), ("k", SelectKBest(chi2, k=2))]).fit(
            _text(), [0, 1, 0, 1]
        ),
        ColumnTransformer(parts).fit(frame),
        FunctionTransformer(np.log1p).fit([[1.0]]),
    ]


@pytest.mark.parametrize("estimator", _fitted(), ids=lambda x: type(x).__name__)
def test_a_transformer_comes_back_from_its_bytes(estimator):
    back = loaded(pack(estimator))
    assert pack(back) == pack(estimator)
    if hasattr(estimator, "vocabulary_"):
        assert back.vocabulary_ == estimator.vocabulary_
        assert (back.transform(_text()) != estimator.transform(_text())).nnz == 0
    if hasattr(estimator, "transformers_"):
        frame = pd.DataFrame({"a": [1.0], "c": np.array([np.nan], object)})
        assert np.array_equal(back.transform(frame), estimator.transform(frame))


def test_equal_transformers_have_equal_bytes_in_every_process():
    script = (
        "from tests.data.test_transformers import _fitted\n"
        "from streamtron.data.packed import pack\n"
        "import xxhash\n"
        "print([xxhash.xxh3_64_hexdigest(pack(x)) for x in _fitted()])"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1


def _shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def test_a_type_of_another_package_is_refused_by_name_when_it_is_written():
    with pytest.raises(SettingsError, match=r"this one has '[\w.]*test_transformers\._shout'"):
        pack(FunctionTransformer(_shout).fit(_text()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"numpy"', b'"os"'),
        # defined elsewhere, and reached by way of a module of scikit-learn
        (b'"numpy"', b'"sklearn.utils._testing"'),
        (b'"numpy"', b'"sklearn.datasets"'),
        (b'"numpy"', b'"streamtron.data.packed"'),
    ],
)
def test_a_strangers_type_is_refused_by_name_and_nothing_of_it_is_called(old, new):
    packed = dumps(FunctionTransformer(np.log1p).fit([[1.0]]))
    out = io.BytesIO()
    names = {b'"os"': b"system", b'"sklearn.utils._testing"': b"check_output"}
    called = names.get(new, b"fetch_openml" if b"datasets" in new else b"load_transformer")
    with zipfile.ZipFile(io.BytesIO(packed)) as old_file, zipfile.ZipFile(out, "w") as new_file:
        for name in old_file.namelist():
            content = old_file.read(name).replace(b'"log1p"', b'"' + called + b'"')
            new_file.writestr(name, content.replace(old, new))
    with pytest.raises(DataError, match=f"not of scikit-learn: '[\\w.]*{called.decode()}'"):
        loaded(out.getvalue())


def test_bytes_that_are_no_transformer_and_bombs_are_refused(monkeypatch):
    with pytest.raises(DataError, match="the transformer is damaged"):
        loaded(b"PK nothing")
    with pytest.raises(DataError, match=r"damaged .a list, which has no transform"):
        loaded(dumps([1, 2]))
    monkeypatch.setattr("streamtron.data.packed.available_memory", lambda: 1000)
    packed = pack(TfidfVectorizer().fit([" ".join(f"word{k}" for k in range(20_000))]))
    with pytest.raises(DataError, match="bytes, more than memory allows"):
        loaded(packed)


def test_names_and_source_columns_of_features_are_told_where_there_are_some():
    rows = pd.DataFrame(
        {
            "age": [1.0, np.nan],
            "age_now": [1.0, 2.0],
            "city": np.array(["New_York", "Oslo"], object),
            "note": ["a word", "word"],
            "memo": ["x", "y"],
        }
    )
    specs = [*map(parse_spec, ("age:number", "age_now:number", "city:category:hash", "note:text"))]
    estimator = column_transformer([*specs, parse_spec("memo:text:hash")])
    width = matrix_of(estimator.fit_transform(rows)).shape[1]
    inputs = (*((spec.name, spec.kind) for spec in specs), ("memo", "text"))
    made = Transformer(pack(estimator), inputs, width)
    assert made.names[:3] == ("number__age", "number__age_now", "number__missingindicator_age")
    assert made.sources[:3] == ("age", "age_now", "age")
    assert made.names[-1] is None
    assert made.sources[-1] == "memo"
    at = made.names.index("text:note__word")
    assert made.sources[at] == "note"
    assert made.sources[at - 1] == "city"
