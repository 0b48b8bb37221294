"""Exported pipelines: raw rows in, the decisions of the model out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import skops.io

import streamtron
from streamtron.core.errors import SettingsError
from tests.helpers.processes import here

ROWS, CITIES = 1500, [0.4, 0.3, 0.28, 0.01, 0.01]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Typed rows, with nulls."""
    rng = np.random.default_rng(0)
    words = ["cheap pills now", "meeting notes lunch", "lunch pills café", "free offer"]
    rows = pd.DataFrame({
        "age": rng.normal(40, 10, ROWS).round(1), "income": rng.lognormal(10, 1, ROWS),
        "clicks": rng.integers(0, 50, ROWS), "premium": rng.random(ROWS) < 0.3,
        "city": rng.choice(["Paris", "Rome", "Oslo", "X1", "X2"], ROWS, p=CITIES),
        "code": rng.integers(1, 5, ROWS), "note": rng.choice(words, ROWS),
        "day": pd.Timestamp("2026-01-01"),
    })  # fmt: skip
    label = (rows.clicks > 25) ^ (rows.city == "Rome") ^ (rng.random(ROWS) < 0.1)
    rows.loc[rng.random(ROWS) < 0.05, "age"] = np.nan
    rows.loc[rng.random(ROWS) < 0.05, "city"] = None
    return rows.assign(label=np.where(label, "yes", "no"))


NUMBERS = ["clicks:number,scale=max_abs", "income:number,bins=5", "premium:number"]


@pytest.mark.parametrize(
    "columns",
    [
        ["age:number,null=column,scale=standard", *NUMBERS],
        ["age:number,null=mean,scale=standard", "city:category,null=column,min_count=30"],
        ["age:number,null=0", "city:category,null=0", "premium:category", "code:category"],
        [*NUMBERS, "note:text,ngrams=1-2,tfidf=true"],
    ],
    ids=lambda columns: columns[0],
)
def test_a_pipeline_gives_the_decisions_of_raw_rows_and_meets_unknown_categories(
    table: pd.DataFrame, columns: list[str], tmp_path: Path
) -> None:
    model = streamtron.fit(table, columns=columns, label="label")
    streamtron.export(model, tmp_path / "m.skops", "sklearn")
    trusted = skops.io.get_untrusted_types(file=tmp_path / "m.skops")
    pipeline = skops.io.load(tmp_path / "m.skops", trusted=trusted)
    rows = table.drop(columns="label").copy()
    rows.loc[:5, "city"] = "Atlantis"
    assert pipeline.decision_function(rows) == pytest.approx(
        model.decision_function(rows), abs=1e-6
    )
    assert (pipeline.predict(rows) == model.predict(rows)).all()
    if "code:category" in columns:  # as pandas reads whole numbers beside a null
        floats = rows.assign(code=rows.code.astype(float))
        assert np.array_equal(pipeline.predict(floats), pipeline.predict(rows))


@pytest.mark.parametrize(
    "text",
    [
        "note", "note,hash_bits=12,tfidf=true", "note,hash_bits=10,alternate_sign=true",
        "note,sublinear_tf=true,analyzer=char_wb,ngrams=2-3,norm=l1,binary=true",
        "note,stop_words=english,strip_accents=unicode,lowercase=false,tfidf=true",
    ],
)  # fmt: skip
def test_a_pipeline_of_documents_takes_them_as_they_are(table: pd.DataFrame, text: str) -> None:
    model = streamtron.fit(table[["note", "label"]], text=text, label="label", loss="log_loss")
    documents = [*table.note[:20], "Free café", ""]
    ours = model.predict_proba(documents)
    assert model.to_sklearn().predict_proba(documents) == pytest.approx(ours, abs=1e-6)


@pytest.mark.parametrize(
    ("column", "part"),
    [
        ("day:date,parts=month", "'day' is a date"),
        ("city:category,hash_bits=4,null=0", "'city' has categories that are hashed"),
        ("age:number,bins=3,null=column", "'age' has bins and a feature of its own for nulls"),
    ],
)
def test_a_column_that_scikit_learn_cannot_make_is_refused_by_name(
    table: pd.DataFrame, column: str, part: str
) -> None:
    model = streamtron.fit(table, columns=[column], label="label")
    with pytest.raises(SettingsError, match=part):
        model.to_sklearn()


def test_an_export_without_the_recipe_says_so(table: pd.DataFrame, tmp_path: Path) -> None:
    streamtron.fit(table, columns=["clicks:number"], label="label").save(tmp_path / "m")
    done = here(tmp_path, "export", "m", "--format", "onnx", "-o", "m.onnx")
    assert done.stderr == (
        "m.onnx: without the recipe of clicks; its rows are the 1 features. "
        "--format sklearn takes raw rows.\n"
    )
