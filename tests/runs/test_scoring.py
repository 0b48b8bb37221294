"""Predictions and metrics as they stream over shards."""

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.datasets import load_svmlight_files

import streamtron
from streamtron import LinearModel, convert, evaluate, generate, predict
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import serial
from streamtron.core.rows import Label
from streamtron.runs.predict import write_predictions
from tests.helpers.runs import pickled
from tests.helpers.svm_text import svm_lines, write_shards

COLUMNS = 200
ROWS = 9000  # three blocks


def _model(**changes: object) -> LinearModel:
    weights = np.random.default_rng(0).normal(size=COLUMNS)
    return LinearModel(weights, 0.25, (-1.0, 1.0), {}, None, {"index_base": 1}).but(**changes)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    generate(str(directory), rows=ROWS, columns=COLUMNS, seed=3, shards=3)
    return directory


def _read(corpus: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels and a dense matrix from libsvm text, read by nothing of ours."""
    shards = [str(path) for path in sorted(corpus.glob("*.svm"))]
    parts = load_svmlight_files(shards, n_features=COLUMNS, dtype=np.float32, zero_based=False)
    return np.concatenate(parts[1::2]), sparse.vstack(parts[::2]).toarray()


def _out(model: LinearModel, shards: Path, out: Path, **how: Any) -> list[list[str]]:
    """The fields of the lines that are written of shards."""
    write_predictions(model, shards, out, **how)
    return [line.split("\t") for line in out.read_text().splitlines()]


ODD = ("", " a", '"', "a\tb", "a\rb", 'say "x, y"\n', "x,y", "ä\u2028ö")
"""Labels of which each would break a line, or a list, in its own way."""


@pytest.mark.parametrize("suffix", ["txt", "csv", "tsv"])
@pytest.mark.parametrize("multilabel", [False, True])
def test_the_csv_module_reads_back_labels_of_quotes_and_ends_of_lines(multilabel, suffix, tmp_path):
    classes, reading = tuple(sorted(ODD)), {"index_base": 1, "multilabel": multilabel}
    model = LinearModel(np.eye(8), np.full(8, -0.5), classes, {}, None, reading)
    rows = [[k] for k in range(8)]
    if multilabel:
        rows += [[], [0, 3], [*range(8)]]
    lines = ("0 " + " ".join(f"{j + 1}:1" for j in row) + "\n" for row in rows)
    (tmp_path / "rows.svm").write_text("".join(lines))
    write_predictions(model, tmp_path / "rows.svm", tmp_path / f"out.{suffix}")
    with open(tmp_path / f"out.{suffix}", newline="") as file:
        found = [*csv.reader(file, delimiter="," if suffix == "csv" else "\t")]
    if suffix != "txt":
        names = ["labels" if multilabel else "label", *(f"decision {name}" for name in classes)]
        assert found.pop(0) == names
    fields = [line[0] for line in found]
    if multilabel:
        labels = [next(csv.reader(io.StringIO(field, newline="")), []) for field in fields]
        assert labels == [[classes[j] for j in row] for row in rows]
    else:
        assert fields == [classes[j] for [j] in rows]


def _many(classes: tuple[Label, ...], **reading: object) -> LinearModel:
    rng = np.random.default_rng(1)
    weights, bias = rng.normal(size=(len(classes), COLUMNS)), rng.normal(size=len(classes))
    return LinearModel(weights, bias, classes, {}, None, {"index_base": 1, **reading})


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize(
    "classes", [("ham", "spam"), (False, True), (0.5, 2.0), ("ant", "bee", "cow"), (0.5, 2.0, 9.0)]
)
def test_a_line_is_the_label_or_all_above_0_and_every_decision(
    classes, multilabel, corpus, tmp_path
):
    """Of two classes that is the sign of w·x and the bias, and their sum."""
    two = len(classes) == 2 and not multilabel
    model = _model(classes=classes) if two else _many(classes, multilabel=multilabel)
    rows, matrix = shutil.copytree(corpus, tmp_path / "rows"), _read(corpus)[1]
    if multilabel:  # no label in a first block: the type of the column must not depend on it
        model = model.but(bias=np.full(len(classes), -0.5))
        (rows / "0.svm").write_text("0\n" * 5000)
        matrix = np.vstack([np.zeros((5000, COLUMNS)), matrix])
    lines = _out(model, rows, tmp_path / "out.txt")
    write_predictions(model, rows, tmp_path / "out.parquet")
    decisions = np.array([[float(word) for word in line[1:]] for line in lines]).squeeze()
    wanted = matrix @ model.weights.T + model.bias
    np.testing.assert_allclose(decisions, wanted, rtol=1e-9, atol=1e-9)
    names = [str(label).removesuffix(".0") for label in classes]
    if multilabel:
        places = [np.flatnonzero(row > 0).tolist() for row in decisions]
        labels: list[Any] = [[classes[place] for place in row] for row in places]
        assert [line[0] for line in lines] == [",".join(names[j] for j in row) for row in places]
    else:
        places = ((decisions > 0).astype(int) if two else decisions.argmax(axis=1)).tolist()
        labels = [classes[place] for place in places]
        assert set(labels) == {*classes}
        assert [line[0] for line in lines] == [names[place] for place in places]
    table = pq.read_table(tmp_path / "out.parquet", page_checksum_verification=True).to_pydict()
    label = "labels" if multilabel else "label"
    columns = ["decision"] if two else [f"decision {name}" for name in names]
    values = decisions.reshape(len(decisions), -1).T.tolist()
    assert table == {label: labels, **dict(zip(columns, values, strict=True))}
    assert len([*predict(model, corpus)]) > 1, "a few blocks at a time"


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_highest_decisions_are_those_of_all_blocks(multilabel, corpus, tmp_path, monkeypatch):
    model = _many((1.0, 2.5, 7.0, 8.0), multilabel=multilabel)
    every = np.concatenate([scores.decisions for scores in predict(model, corpus)])
    order = np.argsort(-every, axis=1, kind="stable")[:, :2]
    labels, decisions = np.array(model.classes)[order], np.take_along_axis(every, order, axis=1)
    _, matrix = _read(corpus)
    monkeypatch.setattr("streamtron.model.scoring.AT_ONCE", 4 * 1000 + 1)
    few = model.predict_top(matrix, 2)
    assert (few[0] == labels).all()
    assert few[1].tobytes() == decisions.tobytes()
    header, *lines = _out(model, corpus, tmp_path / "out.tsv", top=2)
    assert header == ["label 1", "label 2", "decision 1", "decision 2"]
    assert _out(model, corpus, tmp_path / "out.txt", top=2) == lines
    assert [[*map(float, line)] for line in lines] == np.hstack([labels, decisions]).tolist()
    write_predictions(model, corpus, tmp_path / "out.parquet", top=2)
    table = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert [*table] == header
    assert [*zip(*table.values(), strict=True)] == [*map(tuple, np.hstack([labels, decisions]))]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        *(({"top": odd}, "give 1 to 3") for odd in (0, True, 1.5, "2")),
        ({"top": 4}, "top is 4, and the model has 3 classes"),
        ({"top": 1, "proba": True}, "leave proba and certain out"),
    ],
)
def test_of_two_classes_or_more_than_exist_there_are_no_highest_decisions(how, sentence, corpus):
    with pytest.raises(SettingsError, match=sentence):
        next(predict(_many(("a", "b", "c")), corpus, **how))
    with pytest.raises(SettingsError, match=r"two classes|leave proba"):
        next(predict(_model(), corpus, **how | {"top": 1}))


def test_values_beyond_the_models_width_weigh_nothing_and_are_counted(tmp_path):
    (tmp_path / "wide").write_text(f"1 1:1 {COLUMNS + 1}:5 {COLUMNS + 9}:5\n1 1:1\n")
    assert write_predictions(_model(), tmp_path / "wide", tmp_path / "out") == (2, 2, None)
    wide, narrow = (tmp_path / "out").read_text().splitlines()
    assert wide == narrow
    assert evaluate(_model(), tmp_path / "wide").out_of_range == 2


def test_a_row_weight_that_the_model_was_fitted_with_is_not_read_in_prediction(tmp_path, corpus):
    convert(corpus, tmp_path / "parquet", to="parquet")
    model = _model(reading={"index_base": 0, "weight": "importance"})
    assert sum(len(scores.decisions) for scores in predict(model, tmp_path / "parquet")) == ROWS
    with pytest.raises(DataError, match="importance"):
        evaluate(model, tmp_path / "parquet")


def test_the_larger_class_is_the_positive_one_whatever_comes_first_and_rows_have_weights(tmp_path):
    reading = {"index_base": 1, "weights_in_label": True}
    model = _model(reading=reading, weights=np.ones(1), bias=0.0)
    for text in ("1:3 1:1\n-1:2 1:-1\n", "-1:2 1:-1\n1:3 1:1\n"):
        (tmp_path / "rows").write_text(text + "-1:1 1:1\n")
        result = evaluate(model, tmp_path / "rows")
        assert (result.true_positives, result.true_negatives) == (3.0, 2.0)
        assert (result.weight, result.accuracy) == (6.0, 5.0 / 6.0)


@pytest.mark.parametrize("base", [0, 1])
def test_a_model_of_text_scores_tables_which_count_from_0_as_it_scores_that_text(base, tmp_path):
    rng = np.random.default_rng(base)
    dense = rng.normal(size=(60, 5)).astype(np.float32)
    labels = np.where(dense @ rng.normal(size=5) > 0, 1.0, -1.0)
    (tmp_path / "rows.svm").write_text("".join(svm_lines(dense, labels, base)))
    model = streamtron.fit(tmp_path / "rows.svm")
    assert model.index_base == base
    convert(tmp_path / "rows.svm", tmp_path / "lists", to="parquet")
    columns = {"label": labels, **{f"f{j}": dense[:, j] for j in range(5)}}
    pq.write_table(pa.table(columns), tmp_path / "columns.parquet")
    table = pa.table({"label": labels, "features": dense.tolist()})
    pq.write_table(table, tmp_path / "vectors.parquet")
    expected = _out(model, tmp_path / "rows.svm", tmp_path / "out")
    for shards in ("lists", "columns.parquet", "vectors.parquet"):
        assert _out(model, tmp_path / shards, tmp_path / "out") == expected
    proofs = [streamtron.certify(model, tmp_path / shards) for shards in ("rows.svm", "lists")]
    assert proofs[0] == proofs[1]


def test_a_model_of_tables_does_not_guess_where_text_counts_from(tmp_path):
    (tmp_path / "rows.svm").write_text("1 1:1 2:1\n-1 1:-1 3:1\n")
    convert(tmp_path / "rows.svm", tmp_path / "tables", to="parquet")
    model = streamtron.fit(tmp_path / "tables")
    for use in (evaluate, streamtron.certify):
        with pytest.raises(DataError, match=r"rows\.svm: libsvm text, and the model has the col"):
            use(model, tmp_path / "rows.svm")


def test_how_rows_are_cut_into_tasks_and_shards_changes_nothing_but_rounding(corpus, tmp_path):
    weights = np.random.default_rng(1).random(ROWS)
    text = "".join(path.read_text() for path in sorted(corpus.iterdir()))
    rows = [
        line.replace(" ", f":{weight!r} ", 1)
        for line, weight in zip(text.splitlines(True), weights.tolist(), strict=True)
    ]
    model = _model(reading={"index_base": 1, "weights_in_label": True})
    classes = _many(("a", "b", "c"), weights_in_label=True)
    found, written = [], []
    for name, borders in (("whole", []), ("cut", [100, 5000, 8999])):
        write_shards(tmp_path / name, rows, borders)
        evaluation = evaluate(model, tmp_path / name)
        assert evaluate(model, tmp_path / name, executor=pickled) == evaluation
        assert evaluation.accuracy_at_optimum is None
        metrics = evaluation.to_dict()
        del metrics["confusions"]  # the same numbers again
        found.append(metrics)
        for scored, executor in ((model, serial), (model, pickled), (classes, serial)):
            written.append(_out(scored, tmp_path / name, tmp_path / "out", executor=executor))
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    assert written[0] == written[1] == written[3] == written[4] != written[2] == written[5]
    assert len(written[0]) == ROWS


def test_a_table_of_predictions_has_all_the_digits_that_they_have(tmp_path):
    (tmp_path / "rows").write_text("0 1:2 3:1\n0 2:1\n")
    model = LinearModel(np.array([0.1]), 0.0, (-1.0, 1.0), {}, None, {"index_base": 1})
    write_predictions(model, tmp_path / "rows", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "label,decision\n1,0.2\n-1,0.0\n"
