"""Tables and texts by transformers of scikit-learn, from the file to the exported model."""

import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import polars as pl
import pytest
import skops.io
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

import streamtron
from streamtron.core.config import Settings
from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.data.formats import tables
from streamtron.data.profile import with_guesses
from streamtron.model.onnx_graph import onnx_inputs
from tests.helpers.processes import Ended, here, succeeded

ROWS = 3_000
COLUMNS = "age:number,income:number,city:category,code:category,day:date,tags:list"
PLAIN = "age:number,income:number,city:category"


def people(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    """Typed rows with nulls, of six kinds of columns."""
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, rows), "s")
    words = np.array(
        ["cheap", "pills", "now", "meeting", "notes", "lunch", "café", "project", "offer"]
    )
    frame = pd.DataFrame(
        {
            "age": rng.normal(40, 10, rows).round(1),
            "income": rng.lognormal(10, 1, rows).round(),
            "city": rng.choice(["Paris", "Rome", "Oslo", "Bern"], rows, p=[0.4, 0.3, 0.28, 0.02]),
            "code": rng.integers(1, 5, rows).astype(str),
            "day": days,
            "tags": [list("xyz"[: k % 4]) for k in range(rows)],
            "note": [" ".join(rng.choice(words, 6)) for _ in range(rows)],
        }
    )
    score = (frame.age - 40) / 10 + (frame.city == "Oslo") + frame.note.str.count("cheap")
    score += 0.5 * (frame.day.dt.month > 6) + 0.3 * (frame.tags.str.len() > 1)
    frame["paid"] = (100 + 20 * score + rng.normal(0, 5, rows)).round(2)
    frame["label"] = np.where(score + rng.normal(0, 0.5, rows) > 1.5, "yes", "no")
    frame.loc[rng.random(rows) < 0.05, "age"] = np.nan
    frame.loc[rng.random(rows) < 0.05, "city"] = None
    frame.loc[rng.random(rows) < 0.05, "day"] = pd.NaT
    return frame


FRAME, NEW = people(), people(1_000, seed=1)


def _commands(lines: list[str], place: Path) -> list[Ended]:
    return [succeeded(here(place, *line.split())) for line in lines]


def _transformer(imputer: SimpleImputer | None = None) -> ColumnTransformer:
    imputer = imputer or SimpleImputer(add_indicator=True)
    numbers = make_pipeline(imputer, StandardScaler())
    return ColumnTransformer(
        [
            ("num", numbers, ["age", "income"]),
            ("cat", OneHotEncoder(handle_unknown="ignore"), ["city", "code"]),
            ("text", TfidfVectorizer(), "note"),
        ]
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tables")
    FRAME.to_parquet(directory / "people.parquet")
    FRAME.assign(tags=FRAME.tags.map(" ".join)).to_csv(directory / "people.csv", index=False)
    FRAME.to_json(directory / "people.jsonl", orient="records", lines=True, date_format="iso")
    return directory


@pytest.fixture(scope="module")
def model(table: Path) -> streamtron.LinearModel:
    """A model of all kinds of columns."""
    return fitted(table / "people.parquet")


def fitted(path: Path, **how: Any) -> streamtron.LinearModel:
    return streamtron.fit(path, columns=COLUMNS, text="note", label="label", **how)


def test_a_users_column_transformer_decides_as_scikit_learns_pipeline_in_memory():
    model = streamtron.fit(FRAME.drop(columns="label"), FRAME.label, transformer=_transformer())
    pipeline = make_pipeline(_transformer(), LinearSVC()).fit(FRAME, FRAME.label)
    ours, theirs = ((m.predict(NEW) == NEW.label).mean() for m in (model, pipeline))
    assert abs(ours - theirs) <= 0.002
    assert model.feature_names == tuple(_transformer().fit(FRAME).get_feature_names_out())
    assert model.transformer.columns == ("age", "income", "city", "code", "note")


def test_numbers_are_predicted_as_by_scikit_learns_pipeline_in_memory(table):
    how = {"label": "paid", "loss": "squared_error"}
    model = streamtron.fit(table / "people.parquet", transformer=_transformer(), tol=1e-8, **how)
    pipeline = make_pipeline(_transformer(), Ridge()).fit(FRAME, FRAME.paid)
    assert np.allclose(model.predict(NEW), pipeline.predict(NEW), atol=0.01)


def test_documents_are_decided_as_by_a_vectorizer_in_memory():
    notes = FRAME.note.tolist()
    model = streamtron.fit(notes, FRAME.label, transformer=TfidfVectorizer(), tol=1e-8)
    pipeline = make_pipeline(TfidfVectorizer(), LinearSVC(tol=1e-8, dual=False))
    pipeline.fit(notes, FRAME.label)
    new = [*NEW.note, ""]
    assert np.allclose(model.decision_function(new), pipeline.decision_function(new), atol=1e-3)
    hashed = streamtron.fit(notes, FRAME.label, transformer=HashingVectorizer(n_features=2**12))
    assert hashed.predict(new).tolist() == hashed.predict(pd.DataFrame({"text": new})).tolist()


def test_a_transformer_that_is_fitted_is_used_as_it_is(table):
    known = _transformer().fit(NEW)
    model = streamtron.fit(table / "people.parquet", transformer=known, label="label")
    assert model.feature_names == tuple(known.get_feature_names_out())
    again, before = (x.transform(FRAME) for x in (model.transformer.estimator, known))
    assert np.array_equal(again, before)


def test_a_transformer_that_was_changed_is_not_taken_for_what_it_was(table):
    how, vectorizer = {"text": "note", "label": "label"}, TfidfVectorizer()
    before = streamtron.fit(table / "people.parquet", transformer=vectorizer, **how)
    vectorizer.set_params(ngram_range=(1, 2))
    after = streamtron.fit(table / "people.parquet", transformer=vectorizer, **how)
    assert after.columns > before.columns
    assert not hasattr(vectorizer, "vocabulary_"), "a copy is fitted"


def test_a_transformer_in_a_file_of_skops_is_fitted_or_used(table, tmp_path):
    skops.io.dump(_transformer(), tmp_path / "t.skops")
    [ended] = _commands(
        [f"fit {table}/people.parquet --transformer t.skops --label label --model m.model"],
        tmp_path,
    )
    assert "age, income, city, code, note" in ended.stdout
    over = here(tmp_path, *f"fit {table} --transformer t.skops --model t.skops".split())
    assert "t.skops, which is read, could be replaced" in over.stderr
    ours = streamtron.fit(table / "people.parquet", transformer=_transformer(), label="label")
    assert streamtron.load(tmp_path / "m.model").weights.tolist() == ours.weights.tolist()


def test_the_same_columns_in_three_formats_and_in_memory_give_the_same_decisions(table, model):
    [scores] = streamtron.predict(model, table / "people.csv")
    for other in (model, *(fitted(table / name) for name in ("people.csv", "people.jsonl"))):
        [again] = streamtron.predict(other, table / "people.parquet")
        assert np.allclose(again.decisions, scores.decisions, atol=1e-6)
    records = FRAME.astype(object).where(FRAME.notna(), None).to_dict("records")
    for rows in (FRAME, pl.from_pandas(FRAME), records):
        assert np.allclose(model.decision_function(rows), scores.decisions, atol=1e-5)
    accuracy = np.mean(model.predict(NEW) == NEW.label)
    assert accuracy > 0.85, accuracy


@pytest.mark.parametrize("name", ["people.parquet", "people.csv"])
def test_processes_change_no_bit(table, monkeypatch, name):
    alone = fitted(table / name, machine=streamtron.Machine(threads=1))
    monkeypatch.setattr(tables, "PROCESSES_FROM", 0)
    assert fitted(table / name, machine=streamtron.Machine(threads=2)) == alone


def test_what_is_wrong_in_a_process_is_told_as_in_this_one(table, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "PROCESSES_FROM", 0)
    rows = FRAME.assign(income=FRAME.income.where(FRAME.index < 2_000, 1e300))
    rows.to_parquet(tmp_path / "a.parquet")
    machine = streamtron.Machine(threads=2)
    with pytest.raises(DataError, match=r"row group 0, row 2000: value 1e\+300 in column 'income'"):
        streamtron.fit(
            tmp_path / "a.parquet", columns=PLAIN, sample_rows=1_000, label="label", machine=machine
        )
    monkeypatch.setattr("streamtron.data.transform.Transformer.made", staticmethod(_killed))
    with pytest.raises(MachineError, match=r"people\.parquet: a process .* was killed"):
        streamtron.fit(table / "people.parquet", columns=PLAIN, label="label", machine=machine)


def _killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_model_file_holds_the_transformer_and_equal_models_are_equal_files(
    table, model, tmp_path
):
    again = fitted(table / "people.parquet", model=tmp_path / "a.model")
    assert (tmp_path / "a.model").read_bytes() == model.to_bytes()
    back = streamtron.load(tmp_path / "a.model")
    assert back == again == model
    assert np.array_equal(back.decision_function(NEW), model.decision_function(NEW))


def test_a_run_goes_on_with_its_transformer_and_refuses_another(table, tmp_path):
    fit = f"fit {table}/people.parquet --label label --model m.model --columns"
    _commands([f"{fit} {PLAIN}", f"{fit} {PLAIN} --resume"], tmp_path)
    other = here(tmp_path, *f"{fit} age:number --resume".split())
    assert other.returncode == 2
    assert "columns" in other.stderr


def test_an_update_keeps_the_transformer_and_forget_trains_on_the_rows_that_stay(table, tmp_path):
    NEW.to_parquet(tmp_path / "new.parquet")
    how = {"columns": PLAIN, "label": "label"}
    streamtron.fit(table / "people.parquet", model=tmp_path / "m.model", **how)
    before = streamtron.load(tmp_path / "m.model").transformer
    updated = streamtron.update(tmp_path / "m.model", tmp_path / "new.parquet").model
    assert updated.transformer == before
    forgotten = streamtron.forget(tmp_path / "m.model", tmp_path / "new.parquet").model
    assert forgotten.transformer == before


def test_the_sample_is_the_first_rows_that_are_trained_on(table):
    how = {"columns": ["age:number"], "label": "label"}
    scaler = StandardScaler().fit(FRAME.age.iloc[:500].to_frame())
    model = streamtron.fit(table / "people.parquet", sample_rows=500, **how)
    step = model.transformer.estimator.named_transformers_["number"]["scale"]
    assert step.mean_[0] == pytest.approx(scaler.mean_[0])
    whole = streamtron.fit(table / "people.parquet", sample_rows="all", **how)
    step = whole.transformer.estimator.named_transformers_["number"]["scale"]
    assert step.mean_[0] == pytest.approx(FRAME.age.mean())
    held_out = streamtron.fit(table / "people.parquet", held_out=0.5, **how)
    assert held_out.transformer != whole.transformer


def test_a_null_an_unseen_category_and_an_empty_document_are_decided(table, tmp_path, caplog):
    model = streamtron.fit(
        table / "people.parquet", columns="income:number,code:category", text="note", label="label"
    )
    new = pd.DataFrame({"income": [1.0, None], "code": ["77", None], "note": ["", None]})
    assert FRAME[["income", "code", "note"]].notna().all().all()
    new.to_parquet(tmp_path / "new.parquet")
    with caplog.at_level(logging.WARNING):
        [scores] = streamtron.predict(model, tmp_path / "new.parquet")
    assert np.isfinite(scores.decisions).all()
    assert "new.parquet: 1 values in 'code' are categories that the transformer was" in caplog.text


def test_rows_that_a_fit_holds_out_are_not_warned_of(tmp_path, caplog):
    rows = pd.DataFrame({"c": [f"v{k}" for k in range(400)], "y": [0, 1] * 200})
    rows.to_parquet(tmp_path / "a.parquet")
    with caplog.at_level(logging.WARNING):
        model = streamtron.fit(
            tmp_path / "a.parquet", columns="c:category", label="y", held_out=0.2
        )
        streamtron.evaluate(model, tmp_path / "a.parquet", share=(0.0, 0.2))
    assert "categories" not in caplog.text


def test_a_column_that_is_missing_or_of_another_type_is_refused_by_name(table, tmp_path):
    model = streamtron.fit(table / "people.parquet", columns=PLAIN, label="label")
    FRAME.drop(columns="income").to_parquet(tmp_path / "less.parquet")
    with pytest.raises(DataError, match="no columns 'income', which the model reads"):
        [*streamtron.predict(model, tmp_path / "less.parquet")]
    FRAME.assign(income="much").to_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"column 'income' is [a-z_]+, and is read as a number"):
        [*streamtron.predict(model, tmp_path / "other.parquet")]
    with pytest.raises(DataError, match="X: no column 'income'"):
        model.predict(FRAME.drop(columns="income"))


@pytest.mark.parametrize(
    ("transformer", "message"),
    [
        (
            OneHotEncoder(),
            "row 0 and after: the transformer refuses the rows .Found unknown categories",
        ),
        (FunctionTransformer(np.log1p), "value -?inf. Values must be finite"),
    ],
)
def test_what_a_transformer_refuses_or_makes_is_refused_with_its_place(
    tmp_path, transformer, message
):
    rows = pd.DataFrame({"x": [1.0, 2.0] * 20 + [-1.0], "y": [0, 1] * 20 + [0]})
    rows.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=message):
        streamtron.fit(tmp_path / "a.parquet", transformer=transformer, sample_rows=40, label="y")


def test_words_for_a_null_are_nulls_in_csv(tmp_path):
    lines = ["age,city,y", *["20,Rome,a", "NA,?,b", "30,-,a", "n/a,Oslo,b"] * 10]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    model = streamtron.fit(tmp_path / "a.csv", columns="auto", label="y")
    assert dict(model.transformer.inputs) == {"age": "number", "city": "category"}
    names = {name.rpartition("__")[2] for name in model.feature_names}
    assert names == {"age", "missingindicator_age", "city_-", "city_Oslo", "city_Rome", "city_nan"}
    other = streamtron.fit(
        tmp_path / "a.csv", columns="city:category", label="y", null_values=["-"]
    )
    assert "category__city_?" in other.feature_names
    assert "category__city_-" not in other.feature_names


def test_auto_leaves_columns_out_that_are_named_after_a_minus(table, caplog):
    with caplog.at_level(logging.WARNING):
        model = streamtron.fit(table / "people.csv", columns="auto,-paid,-tags", label="label")
    expected = {"age": "number", "income": "number", "city": "category", "code": "number"}
    assert dict(model.transformer.inputs) == expected | {"day": "date", "note": "text"}
    assert "columns auto: age:number,income:number,city:category" in caplog.text
    with pytest.raises(SettingsError, match="columns auto without 'pay': no such column"):
        streamtron.fit(table / "people.csv", columns="auto,-pay", label="label")


def test_auto_takes_every_column_of_a_wide_table_and_names_twenty(tmp_path, caplog):
    table = np.random.default_rng(0).normal(size=(30, 1_200))
    frame = pd.DataFrame(table, columns=[f"x{k}" for k in range(1_200)])
    frame.assign(label=table[:, 0] > 0).to_parquet(tmp_path / "wide.parquet")
    with caplog.at_level(logging.WARNING):
        settings = with_guesses(Settings(columns="auto"), [str(tmp_path / "wide.parquet")])
    assert len(settings.columns) == 1_200
    assert "x19:number,… 1,180 more" in caplog.text
    assert "x20" not in caplog.text


def test_the_columns_that_inspect_writes_are_those_of_auto(table, tmp_path):
    [inspected, _] = _commands(
        [
            f"inspect {table}/people.csv --label label --write-columns c.toml",
            f"fit {table}/people.csv --columns c.toml --model m.model",
        ],
        tmp_path,
    )
    assert "category (4 values)" in inspected.stdout
    of_file = streamtron.load(tmp_path / "m.model")
    of_auto = streamtron.fit(table / "people.csv", columns="auto", label="label")
    assert {*of_file.transformer.inputs} == {*of_auto.transformer.inputs}


def test_rows_without_a_target_are_left_out_and_counted(tmp_path, caplog):
    rows = FRAME.assign(label=FRAME.label.where(FRAME.index % 10 > 0, None))
    rows.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"null in column 'label'.*--on-null-label skip"):
        streamtron.fit(tmp_path / "a.parquet", columns=PLAIN)
    with caplog.at_level(logging.WARNING):
        model = streamtron.fit(tmp_path / "a.parquet", columns=PLAIN, on_null_label="skip")
    assert "a.parquet: 300 rows without a label left out." in caplog.text
    assert model.certificate["rows_scanned"] == ROWS - 300
    assert streamtron.evaluate(model, tmp_path / "a.parquet").rows == ROWS - 300


def test_an_empty_line_of_a_file_with_one_column_is_an_empty_document(tmp_path):
    (tmp_path / "a.csv").write_text("text\ncheap pills\n\nthe cat\n")
    model = streamtron.fit(FRAME.note.tolist(), FRAME.label, transformer=TfidfVectorizer())
    [scores] = streamtron.predict(model, tmp_path / "a.csv")
    assert len(scores.decisions) == 3


def test_a_number_too_large_for_float32_is_refused_and_no_name_of_a_column_is_a_pattern(tmp_path):
    (tmp_path / "a.csv").write_text("*,b,y\n" + "1,2,a\n2,3,b\n" * 10)
    model = streamtron.fit(tmp_path / "a.csv", columns=["*:number"], label="y")
    assert model.transformer.columns == ("*",)
    (tmp_path / "a.csv").write_text("x,y\n" + "1,a\n2,b\n" * 10 + "1e308,a\n")
    with pytest.raises(DataError, match=r"row 20: value 1e\+308 in column 'x' is beyond float32"):
        streamtron.fit(tmp_path / "a.csv", columns="x:number", label="y")


def test_scikit_learns_export_is_the_transformer_and_the_model(model, tmp_path):
    streamtron.export(model, tmp_path / "m.skops", "sklearn")
    trusted = skops.io.get_untrusted_types(file=tmp_path / "m.skops")
    assert all(name.startswith(("streamtron.data.transformers", "numpy")) for name in trusted)
    pipeline = skops.io.load(tmp_path / "m.skops", trusted=trusted)
    assert isinstance(pipeline, Pipeline)
    assert np.allclose(
        pipeline.decision_function(NEW), model.decision_function(NEW), rtol=0, atol=1e-12
    )


def test_onnxs_export_decides_raw_rows_as_the_model_does(table, tmp_path):
    transformer = _transformer(SimpleImputer())
    model = streamtron.fit(table / "people.parquet", transformer=transformer, label="label")
    streamtron.export(model, tmp_path / "m.onnx", "onnx", rows=FRAME[:500])
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    new = NEW.assign(city=NEW.city.where(NEW.index % 5 > 0, "Rio"))
    label, scores = session.run(["label", "scores"], onnx_inputs(model.transformer, new))
    assert np.allclose(scores, model.decision_function(new), atol=1e-4)
    assert np.mean(label == model.predict(new)) > 0.999


def test_onnx_of_a_step_without_a_converter_is_refused_by_a_sentence(table, tmp_path):
    how = {"label": "label"}
    dated = streamtron.fit(table / "people.parquet", columns="day:date,age:number", **how)
    with pytest.raises(SettingsError, match="column 'day' holds dates or lists, for which ONNX"):
        streamtron.export(dated, tmp_path / "m.onnx", "onnx")
    for settings in ({"text": "note:hash"}, {"columns": "age:number"}):
        model = streamtron.fit(table / "people.parquet", **settings, **how)
        with pytest.raises(SettingsError, match="skl2onnx cannot convert the transformer"):
            streamtron.export(model, tmp_path / "m.onnx", "onnx")


def test_onnx_that_decides_otherwise_is_refused_by_a_sentence(tmp_path):
    notes = ["l'été arrive", "un hiver", "été ou hiver"] * 20
    transformer = TfidfVectorizer(strip_accents="unicode", token_pattern=r"(?u)\b\w+\b")
    model = streamtron.fit(notes, ["a", "b", "a"] * 20, transformer=transformer)
    with pytest.raises(SettingsError, match="format onnx: "):
        streamtron.export(model, tmp_path / "m.onnx", "onnx", rows=notes)


def test_json_has_the_names_of_features_and_onnx_is_compared_on_the_rows_of_the_run(
    table, tmp_path
):
    *_, exported = _commands(
        [
            f"fit {table}/people.parquet --columns {PLAIN} --label label --model m.model",
            "export m.model --format json -o m.json",
            f"fit {table}/people.parquet --text note --label label --model n.model",
            "export n.model --format onnx -o n.onnx",
        ],
        tmp_path,
    )
    assert '"number__age"' in (tmp_path / "m.json").read_text()
    told = json.loads((tmp_path / "m.json").read_text())
    assert told["reading"]["transformer"]["inputs"][0] == ["age", "number"]
    assert "not compared" not in exported.stderr


def test_an_estimator_is_fitted_on_shards_by_a_transformer(table):
    fitted = streamtron.StreamtronClassifier().fit_shards(
        table / "people.parquet", transformer=_transformer(), label="label"
    )
    rows = fitted.transformer_.transform(NEW)
    assert np.mean(fitted.predict(rows) == NEW.label) > 0.85


def test_settings_that_clash_with_a_transformer_are_refused(table):
    for settings, message in (
        ({"columns": "a:number", "transformer": _transformer()}, "columns and transformer: give"),
        ({"text": "a", "features": "b"}, "text makes the features, without features: leave one"),
        ({"transformer": 7}, "transformer is 7: expected a file of skops, or a transformer"),
        ({"sample_rows": 0}, "sample-rows is 0: expected a whole number from 1 on, or all"),
    ):
        with pytest.raises(SettingsError, match=message):
            streamtron.fit(table / "people.parquet", label="label", **settings)
