"""Exported pipelines: raw rows in, the decisions of the model out."""

from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import skops.io

import streamtron
from streamtron.core.errors import SettingsError
from streamtron.model.linear_model import LinearModel
from tests.helpers.processes import here

ROWS, CITIES = 1500, [0.4, 0.3, 0.28, 0.01, 0.01]


@pytest.fixture(scope="module")
def table():
    """Typed rows, with nulls."""
    rng = np.random.default_rng(0)
    seconds = rng.integers(-(10**9), 10**9, ROWS)
    words = ["cheap pills now", "meeting notes lunch", "lunch pills café", "free=true"]
    rows = pd.DataFrame(
        {
            "age": rng.normal(40, 10, ROWS).round(1),
            "income": rng.lognormal(10, 1, ROWS),
            "clicks": rng.integers(0, 50, ROWS),
            "premium": rng.random(ROWS) < 0.3,
            "city": rng.choice(["Paris", "Rome", "Oslo", "true", "True"], ROWS, p=CITIES),
            "code": rng.integers(1, 5, ROWS),
            "note": rng.choice(words, ROWS),
            "tags": [["x", "xy", "y", "x", "7"][: k % 6] for k in range(ROWS)],
            "places": [[k % 3, k % 70, 12] for k in range(ROWS)],
            "point": [*rng.normal(size=(ROWS, 3))],
            "odd": [["nan", "", None][k % 3] for k in range(ROWS)],
            "end": ["a", "a\0"] * (ROWS // 2),
            "day": pd.Timestamp("1999-12-31") + pd.to_timedelta(seconds, "s"),
        }
    )
    label = (rows.clicks > 25) ^ (rows.city == "Rome") ^ (rng.random(ROWS) < 0.1)
    rows.loc[rng.random(ROWS) < 0.05, "age"] = np.nan
    rows.loc[rng.random(ROWS) < 0.05, "city"] = None
    rows.loc[rng.random(ROWS) < 0.05, "day"] = pd.NaT
    return rows.assign(label=np.where(label, "yes", "no"))


def of_onnx(model: LinearModel, path: Path, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """What onnxruntime makes of raw rows: numbers, text, and seconds since 1970."""
    streamtron.export(model, path, "onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {}
    for entry in session.get_inputs():
        column = rows[entry.name]
        if entry.type == "tensor(string)":
            given[entry.name] = column.fillna("").astype(str).to_numpy(object)
        elif column.dtype.kind == "M":
            given[entry.name] = (column - pd.Timestamp(0)).dt.total_seconds().to_numpy(float)
        else:
            given[entry.name] = column.to_numpy(float)
    names = [entry.name for entry in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


# of a truth value there is one bin
NUMBERS = ["clicks:number,scale=max_abs", "income:number,bins=5", "premium:number,bins=2"]

RECIPES = {
    "both": [
        ["age:number,null=column,scale=standard", *NUMBERS],
        ["age:number,null=mean,scale=standard", "city:category,null=column,min_count=30"],
        ["age:number,null=0", "city:category,null=0", "premium:category", "code:category"],
        ["age:number,null=0", "premium:category", "note:text,ngrams=1-2,tfidf,sublinear_tf"],
        ["day:date,null=column,parts=age,weekday,hour,month,scale=standard", "clicks:number"],
        ["day:date,null=0,parts=month", "note:text,binary,norm=l1,lowercase=false"],
    ],
    "sklearn": [
        ["day:date,null=0", "note:category,hash_bits=3", "premium:category,hash_bits=2"],
        ["tags:list,min_count=700", "places:list,null=0", "point:vector"],
        ["code:category,hash_bits=5", "clicks:number"],
    ],
    "onnx": [["age:number,null=column,bins=4", "city:category,null=0", "code:category"]],
}
"""Formats → recipes that they hold."""


def test_a_pipeline_refuses_a_date_that_is_missing_where_a_null_is_refused(table):
    model = streamtron.fit(table.dropna(), columns=["day:date"], label="label")
    pipeline, written = model.to_sklearn(), table.assign(day=table.day.astype(object))
    assert len(pipeline.predict(written.dropna())) == len(table.dropna())
    with pytest.raises(ValueError, match="nan"):
        pipeline.predict(table)


@pytest.mark.parametrize(
    "text",
    [
        "note",
        "note,hash_bits=12,tfidf=true",
        "note,hash_bits=10,alternate_sign=true",
        "note,sublinear_tf=true,analyzer=char_wb,ngrams=2-3,norm=l1,binary=true",
        "note,stop_words=english,strip_accents=unicode,lowercase=false,tfidf=true",
    ],
)
def test_a_pipeline_of_documents_takes_them_as_they_are(table, text, tmp_path):
    model = streamtron.fit(table[["note", "label"]], text=text, label="label", loss="log_loss")
    documents = [*table.note[:20], "Free café", ""]
    ours = model.predict_proba(documents)
    assert model.to_sklearn().predict_proba(documents) == pytest.approx(ours, abs=1e-6)
    if text == "note":
        made = of_onnx(model, tmp_path / "m.onnx", pd.DataFrame({"note": documents}))
        assert made["probabilities"] == pytest.approx(ours, rel=1e-6)


@pytest.mark.parametrize(
    ("where", "columns"),
    [(where, c) for where in RECIPES for c in RECIPES[where]],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
@pytest.mark.parametrize("problem", [{}, {"label": "kind", "loss": "log_loss"}], ids=["", "many"])
def test_scikit_learn_and_onnxruntime_decide_raw_rows_as_we_do(
    table, where, columns, problem, tmp_path
):
    given = table.assign(kind=np.array(["a", "b", "c"])[table.code.to_numpy() % 3])
    model = streamtron.fit(given, columns=columns, **({"label": "label"} | problem))
    rows = table.drop(columns="label")
    rows.loc[:5, "city"], rows.loc[:5, "note"] = "Atlantis", "Free CAFÉ, x 12 lunch_"
    rows.at[7, "tags"] = ["7.0", "x", "never"]
    decisions, labels = model.decision_function(rows), model.predict(rows)
    if where != "onnx":
        streamtron.export(model, tmp_path / "m.skops", "sklearn")
        trusted = skops.io.get_untrusted_types(file=tmp_path / "m.skops")
        pipeline = skops.io.load(tmp_path / "m.skops", trusted=trusted)
        assert pipeline.decision_function(rows) == pytest.approx(decisions, abs=1e-6)
        assert (pipeline.predict(rows) == labels).all()
        floats = rows.assign(code=rows.code.astype(float))  # as pandas reads them beside a null
        assert "code:category" not in columns or (pipeline.predict(floats) == labels).all()
    if where != "sklearn":
        made = of_onnx(model, tmp_path / "m.onnx", rows)
        assert made["scores"] == pytest.approx(decisions, rel=1e-6, abs=1e-12)
        assert (made["label"] == labels).all()
        if problem:
            assert made["probabilities"] == pytest.approx(model.predict_proba(rows), rel=1e-6)


def test_in_onnx_a_null_that_is_refused_has_no_decision(table, tmp_path):
    columns = ["age:number", "city:category", "day:date"]
    given = table.dropna(subset=["age", "city", "day"])
    model = streamtron.fit(given, columns=columns, label="label")
    scores = of_onnx(model, tmp_path / "m.onnx", table)["scores"]
    assert np.array_equal(np.isnan(scores), ~table.index.isin(given.index))


@pytest.mark.parametrize(
    ("where", "column", "part"),
    [
        ("sklearn", "city:category,hash_bits=4,null=0", "'city' has categories that are hashed"),
        ("sklearn", "tags:list,hash_bits=4", "'tags' has lists that are hashed"),
        ("sklearn", "point:vector,null=0", "'point' has lists of numbers that may be missing"),
        ("sklearn", "none:category,null=0", "'none' has no category"),
        ("sklearn", "odd:category,null=0", "'odd' has the category 'nan' and a null"),
        ("sklearn", "end:category", r"'end' has the category 'a\\x00' and .* another"),
        ("sklearn", "age:number,bins=3,null=column", "'age' has bins and a feature of its own"),
        ("onnx", "note:text,hash_bits=8", "'note' has hash_bits"),
        ("onnx", "note:text,analyzer=char", "'note' has analyzer"),
        ("onnx", "note:text,strip_accents=unicode", "'note' has strip_accents"),
        ("onnx", "note:text,token_pattern=[a-z]+", "'note' has token_pattern"),
        ("onnx", "note:text,ngrams=1-2,stop_words=english", "'note' has stop_words"),
        ("onnx", "city:category,hash_bits=4,null=0", "'city' has hash_bits"),
        ("onnx", "odd:category,null=0", "'odd' has the category '' and a null"),
        ("onnx", "scores:number", "'scores' is called as an output is"),
    ],
)
def test_a_column_a_format_cannot_make_is_refused_by_name(table, where, column, part, tmp_path):
    table = table.assign(scores=table.clicks, none=None)
    model = streamtron.fit(table, columns=[column], label="label")
    match = f"^format onnx: column {part}.*(again|json|sklearn).$" if where == "onnx" else part
    with pytest.raises(SettingsError, match=match):
        streamtron.export(model, tmp_path / "m", where)


def test_an_export_without_the_recipe_says_so(table, tmp_path):
    numbered = table.assign(label=table.clicks % 2)
    streamtron.fit(numbered, columns=["clicks:number"], label="label").save(tmp_path / "m")
    done = here(tmp_path, "export", "m", "--format", "liblinear", "-o", "m.txt")
    assert done.stderr == (
        "m.txt: without the recipe of clicks; its rows are the 1 features. "
        "--format onnx and sklearn take raw rows.\n"
    )
