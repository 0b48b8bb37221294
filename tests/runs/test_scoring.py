"""Predictions and metrics as they stream over shards."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamtron
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import serial
from streamtron.core.rows import Label
from streamtron.data.writers.corpus import generate
from streamtron.model.linear_model import LinearModel
from streamtron.runs.convert import convert
from streamtron.runs.evaluate import evaluate
from streamtron.runs.predict import predict, write_predictions
from tests.helpers.models import evaluate as evaluate_rows
from tests.helpers.processes import here
from tests.helpers.runs import pickled

COMMAND = sys.executable, "-m", "streamtron"
COLUMNS = 200
ROWS = 9000  # three blocks


def _model(**changes: object) -> LinearModel:
    weights = np.random.default_rng(0).normal(size=COLUMNS)
    model = LinearModel(weights, 0.25, (-1.0, 1.0), {}, None, {"index_base": 1})
    return model.but(**changes)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    generate(str(directory), rows=ROWS, columns=COLUMNS, seed=3, shards=3)
    return directory


def _read(shards: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Labels and a dense matrix from libsvm text, read by nothing of ours."""
    lines = [line.split() for shard in shards for line in shard.read_text().splitlines()]
    matrix = np.zeros((len(lines), COLUMNS), dtype=np.float32)
    for row, words in enumerate(lines):
        for word in words[1:]:
            column, value = word.split(":")
            matrix[row, int(column) - 1] = value
    return np.array([float(words[0]) for words in lines]), matrix


def test_predictions_are_w_x_plus_bias_of_every_row_in_the_order_of_the_shards(
    corpus: Path,
) -> None:
    model = _model()
    _, matrix = _read(sorted(corpus.iterdir()))
    scores = list(predict(model, corpus))
    decisions = np.concatenate([score.decisions for score in scores])
    labels = np.concatenate([score.labels for score in scores])
    np.testing.assert_allclose(decisions, matrix @ model.weights + 0.25, rtol=1e-9, atol=1e-9)
    assert len(scores) > 1
    assert (labels == np.where(decisions > 0, 1.0, -1.0)).all()


def test_labels_in_the_input_change_no_prediction_whatever_they_are(tmp_path: Path) -> None:
    features = ["1:1 3:2", "2:0.5", ""]
    for name, labels in {"ours": "1 -1 1", "others": "7 8 9"}.items():
        rows = zip(labels.split(), features, strict=True)
        (tmp_path / name).write_text("".join(f"{label} {row}\n" for label, row in rows))
    [ours] = predict(_model(), tmp_path / "ours")
    [others] = predict(_model(), tmp_path / "others")
    assert ours.decisions.tolist() == others.decisions.tolist()
    assert ours.labels.tolist() == others.labels.tolist()


ODD = ("", " a", '"', "a\tb", "a\rb", 'say "x, y"\n', "x,y", "ä\u2028ö")
"""Labels of which each would break a line, or a list, in its own way."""


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_csv_module_reads_back_labels_that_hold_delimiters_quotes_and_ends_of_lines(
    multilabel: bool, tmp_path: Path
) -> None:
    classes = tuple(sorted(ODD))
    model = LinearModel(
        np.eye(len(classes)), np.full(len(classes), -0.5), classes, {}, None,
        {"index_base": 1, "multilabel": multilabel},
    )  # fmt: skip
    rows = [[k] for k in range(len(classes))]
    if multilabel:
        rows += [[], [0, 3], [*range(len(classes))]]
    lines = ("0 " + " ".join(f"{j + 1}:1" for j in row) + "\n" for row in rows)
    (tmp_path / "rows.svm").write_text("".join(lines))
    write_predictions(model, tmp_path / "rows.svm", tmp_path / "out.txt")
    with open(tmp_path / "out.txt", newline="") as file:
        found = [line[0] for line in csv.reader(file, delimiter="\t")]
    if multilabel:
        labels = [next(csv.reader(io.StringIO(field, newline="")), []) for field in found]
        assert labels == [[classes[j] for j in row] for row in rows]
    else:
        assert found == [classes[j] for [j] in rows]


@pytest.mark.parametrize("classes", [("ham", "spam"), (False, True), (0.5, 2.0)])
def test_predicted_labels_are_the_models_classes_in_text_and_in_parquet(
    classes: tuple[str, str], tmp_path: Path
) -> None:
    model = _model(classes=classes)
    (tmp_path / "rows").write_text("0 1:1e3\n0 1:-1e3\n")
    write_predictions(model, tmp_path / "rows", tmp_path / "out.parquet")
    write_predictions(model, tmp_path / "rows", tmp_path / "out.txt")
    [scores] = predict(model, tmp_path / "rows")
    expected = [classes[1] if decision > 0 else classes[0] for decision in scores.decisions]
    assert len(set(expected)) == 2
    assert pq.read_table(tmp_path / "out.parquet")["label"].to_pylist() == expected
    shown = [line.split("\t")[0] for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert shown == [str(label).removesuffix(".0") for label in expected]


def _many(classes: tuple[Label, ...], **reading: object) -> LinearModel:
    rng = np.random.default_rng(1)
    weights, bias = rng.normal(size=(len(classes), COLUMNS)), rng.normal(size=len(classes))
    return LinearModel(weights, bias, classes, {}, None, {"index_base": 1, **reading})


@pytest.mark.parametrize("classes", [("ant", "bee", "cow"), (0.5, 2.0, 9.0)])
def test_of_many_classes_a_line_is_the_label_and_every_decision_in_their_order(
    classes: tuple[Label, ...], corpus: Path, tmp_path: Path
) -> None:
    model = _many(classes)
    _, matrix = _read(sorted(corpus.iterdir()))
    write_predictions(model, corpus, tmp_path / "out.txt")
    write_predictions(model, corpus, tmp_path / "out.parquet")
    lines = [line.split("\t") for line in (tmp_path / "out.txt").read_text().splitlines()]
    table = pq.read_table(tmp_path / "out.parquet", page_checksum_verification=True).to_pydict()
    decisions = model.decision_function(matrix)
    labels = [classes[k] for k in decisions.argmax(axis=1)]
    assert len(set(labels)) == 3
    assert [[float(word) for word in line[1:]] for line in lines] == decisions.tolist()
    assert [line[0] for line in lines] == [str(label).removesuffix(".0") for label in labels]
    assert table == {"label": labels, "decisions": decisions.tolist()}


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_highest_decisions_are_those_of_all_whatever_is_in_memory_at_a_time(
    multilabel: bool, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _many((1.0, 2.5, 7.0, 8.0), multilabel=multilabel)
    every = np.concatenate([scores.decisions for scores in predict(model, corpus)])
    order = np.argsort(-every, axis=1, kind="stable")[:, :2]
    labels, decisions = np.array(model.classes)[order], np.take_along_axis(every, order, axis=1)
    _, matrix = _read(sorted(corpus.glob("*.svm")))
    monkeypatch.setattr("streamtron.model.scoring.AT_ONCE", 4 * 1000 + 1)
    few = model.predict_top(matrix, 2)
    assert (few[0] == labels).all()
    assert few[1].tobytes() == decisions.tobytes()
    for name in ("out.txt", "out.tsv", "out.parquet"):
        write_predictions(model, corpus, tmp_path / name, top=2)
    lines = [line.split("\t") for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert [[*map(float, line)] for line in lines] == np.hstack([labels, decisions]).tolist()
    header = (tmp_path / "out.tsv").read_text().partition("\n")[0]
    assert header.split("\t") == ["label 1", "label 2", "decision 1", "decision 2"]
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["labels"].to_pylist() == labels.tolist()
    assert table["decisions"].to_pylist() == decisions.tolist()


def test_of_two_classes_or_more_than_there_are_there_are_no_highest_decisions(corpus: Path) -> None:
    with pytest.raises(SettingsError, match="two classes"):
        next(predict(_model(), corpus, top=1))
    with pytest.raises(SettingsError, match="top is 4, and the model has 3 classes"):
        next(predict(_many(("a", "b", "c")), corpus, top=4))
    for odd in (0, True, 1.5, "2"):
        with pytest.raises(SettingsError, match="give 1 to 3"):
            next(predict(_many(("a", "b", "c")), corpus, top=odd))
    with pytest.raises(SettingsError, match="leave proba and certain out"):
        next(predict(_many(("a", "b", "c")), corpus, top=1, proba=True))


@pytest.mark.parametrize("classes", [("ant", "bee", "cow"), (1.0, 2.0, 9.0), (False, True)])
def test_of_a_multilabel_model_a_line_begins_with_all_labels_that_have_a_decision_above_0(
    classes: tuple[Label, ...], tmp_path: Path
) -> None:
    model = _many(classes, multilabel=True)
    sign = np.eye(len(classes), COLUMNS)
    model = model.but(weights=sign, bias=np.full(len(classes), -0.5))
    # the first block has no label at all: the type of the column must not depend on it
    (tmp_path / "rows").write_text("0 9:1\n" * 5000 + "0 1:1\n0 1:1 2:1\n")
    write_predictions(model, tmp_path / "rows", tmp_path / "out.txt")
    write_predictions(model, tmp_path / "rows", tmp_path / "out.parquet")
    *_, none, one, two = (tmp_path / "out.txt").read_text().splitlines()
    shown = [str(label).removesuffix(".0") for label in classes[:2]]
    rest = [[-0.5, -0.5, -0.5], [0.5, -0.5, -0.5], [0.5, 0.5, -0.5]]
    labels = ["", shown[0], ",".join(shown)]
    for line, label, values in zip((none, one, two), labels, rest, strict=True):
        assert line == "\t".join([label, *map(str, values[: len(classes)])])
    table = pq.read_table(tmp_path / "out.parquet", page_checksum_verification=True)
    assert table["labels"].to_pylist()[-3:] == [[], [classes[0]], list(classes[:2])]
    assert table["decisions"].to_pylist()[-1] == rest[2][: len(classes)]


def test_values_beyond_the_models_width_weigh_nothing_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "wide").write_text(f"1 1:1 {COLUMNS + 1}:5 {COLUMNS + 9}:5\n1 1:1\n")
    written = write_predictions(_model(), tmp_path / "wide", tmp_path / "out")
    assert written == (2, 2, None)
    wide, narrow = (tmp_path / "out").read_text().splitlines()
    assert wide == narrow
    assert evaluate(_model(), tmp_path / "wide").out_of_range == 2


def test_a_prediction_that_fails_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1 1:1\n" * 20_000 + "1 1:nonsense\n")
    for name in ("out", "out.parquet"):
        (tmp_path / name).write_text("precious")
        with pytest.raises(DataError, match="line 20001"):
            write_predictions(_model(), tmp_path / "rows", tmp_path / name)
        assert (tmp_path / name).read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.parquet", "rows"]


def test_a_row_weight_that_the_model_was_fitted_with_is_not_asked_for_in_prediction(
    tmp_path: Path, corpus: Path
) -> None:
    convert(corpus, tmp_path / "parquet", to="parquet")
    model = _model(reading={"index_base": 0, "weight": "importance"})
    assert sum(len(scores.decisions) for scores in predict(model, tmp_path / "parquet")) == ROWS
    with pytest.raises(DataError, match="importance"):
        evaluate(model, tmp_path / "parquet")


def test_metrics_of_shards_are_those_of_the_same_rows_in_memory(corpus: Path) -> None:
    model = _model()
    labels, matrix = _read(sorted(corpus.iterdir()))
    expected = evaluate_rows(labels, model.decision_function(matrix)).to_dict()
    metrics = evaluate(model, corpus).to_dict()
    confused = {(x["label"], x["predicted"]): x["weight"] for x in metrics.pop("confusions")}
    assert metrics == pytest.approx(expected, rel=1e-12)
    wrong = {(1.0, -1.0): metrics["false_negatives"], (-1.0, 1.0): metrics["false_positives"]}
    assert confused == pytest.approx(wrong, rel=1e-12)


def test_row_weights_enter_the_metrics(tmp_path: Path) -> None:
    model = _model(reading={"index_base": 1, "weights_in_label": True}, weights=np.ones(1))
    (tmp_path / "rows").write_text("1:3 1:1\n-1:1 1:1\n")
    result = evaluate(model, tmp_path / "rows")
    assert (result.weight, result.accuracy) == (4.0, 0.75)


def test_the_larger_class_is_the_positive_one_whatever_comes_first(tmp_path: Path) -> None:
    model = _model(reading={"index_base": 1}, weights=np.ones(1), bias=0.0)
    for text in ("1 1:1\n-1 1:-1\n", "-1 1:-1\n1 1:1\n"):
        (tmp_path / "rows").write_text(text)
        result = evaluate(model, tmp_path / "rows")
        assert (result.true_positives, result.true_negatives) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("use", "text", "sentence"),
    [
        (evaluate, "1 1:1\n-1 1:1\n3 1:1\n", r"line 3: label 3\.0.*-1\.0 and 1\.0"),
        (evaluate, "1 1:1\n1:1 2:1\n", "line 2"),
        (lambda model, path: list(predict(model, path)), "1 0:1\n", "column 0"),
    ],
    ids=["an unknown label", "no label", "a column below the base"],
)
def test_rows_that_are_not_the_models_are_refused(
    use: Callable[..., object], text: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "rows").write_text(text)
    with pytest.raises(DataError, match=sentence):
        use(_model(), tmp_path / "rows")


@pytest.mark.parametrize("base", [0, 1])
def test_a_model_of_text_scores_tables_which_count_from_0_as_it_scores_that_text(
    base: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(base)
    dense = rng.normal(size=(60, 5)).astype(np.float32)
    labels = np.where(dense @ rng.normal(size=5) > 0, 1.0, -1.0)
    lines = [
        f"{label:+.0f} " + " ".join(f"{j + base}:{x!r}" for j, x in enumerate(row))
        for label, row in zip(labels, dense.tolist(), strict=True)
    ]
    (tmp_path / "rows.svm").write_text("\n".join(lines) + "\n")
    model = streamtron.fit(tmp_path / "rows.svm")
    assert model.index_base == base
    convert(tmp_path / "rows.svm", tmp_path / "lists", to="parquet")
    columns = {"label": labels, **{f"f{j}": dense[:, j] for j in range(5)}}
    pq.write_table(pa.table(columns), tmp_path / "columns.parquet")
    vectors = [{"type": 1, "size": None, "indices": None, "values": row} for row in dense.tolist()]
    spark = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    table = pa.table({"label": labels, "features": pa.array(vectors, spark)})
    pq.write_table(table, tmp_path / "vectors.parquet")

    def written(shards: str) -> bytes:
        out = io.BytesIO()
        write_predictions(model, tmp_path / shards, out)
        return out.getvalue()

    expected = written("rows.svm")
    assert [written(shards) for shards in ("lists", "columns.parquet", "vectors.parquet")] == [
        expected
    ] * 3
    proofs = [streamtron.certify(model, tmp_path / shards) for shards in ("rows.svm", "lists")]
    assert proofs[0] == proofs[1]


def test_a_model_of_tables_does_not_guess_where_text_counts_from(tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 1:1 2:1\n-1 1:-1 3:1\n")
    convert(tmp_path / "rows.svm", tmp_path / "tables", to="parquet")
    model = streamtron.fit(tmp_path / "tables")
    for use in (evaluate, streamtron.certify):
        with pytest.raises(DataError, match=r"rows\.svm: libsvm text, and the model has the col"):
            use(model, tmp_path / "rows.svm")


def test_how_rows_are_cut_into_tasks_changes_nothing_and_into_shards_metrics_by_rounding_alone(
    corpus: Path, tmp_path: Path
) -> None:
    weights = np.random.default_rng(1).random(ROWS)
    lines = [line for path in sorted(corpus.iterdir()) for line in path.read_text().splitlines()]
    rows = [
        line.replace(" ", f":{weight!r} ", 1)
        for line, weight in zip(lines, weights.tolist(), strict=True)
    ]
    model = _model(reading={"index_base": 1, "weights_in_label": True})
    classes = _many(("a", "b", "c"), weights_in_label=True)
    found, written = [], []
    for name, borders in (("whole", [0, ROWS]), ("cut", [0, 100, 5000, 8999, ROWS])):
        (tmp_path / name).mkdir()
        for number, (start, stop) in enumerate(pairwise(borders)):
            text = "\n".join(rows[start:stop]) + "\n"
            (tmp_path / name / f"{number}.svm").write_text(text)
        evaluation = evaluate(model, tmp_path / name)
        assert evaluate(model, tmp_path / name, executor=pickled) == evaluation
        assert evaluation.accuracy_at_optimum is None
        metrics = evaluation.to_dict()
        del metrics["confusions"]  # the same numbers again
        found.append(metrics)
        for many, executor in ((False, serial), (False, pickled), (True, serial)):
            scored, text = (classes if many else model), io.BytesIO()
            write_predictions(scored, tmp_path / name, text, executor=executor)
            written.append(text.getvalue())
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    assert written[0] == written[1] == written[3] == written[4] != written[2] == written[5]
    assert written[0].count(b"\n") == ROWS


@pytest.mark.parametrize("multilabel", [False, True])
def test_a_csv_table_of_predictions_names_its_columns(multilabel: bool, tmp_path: Path) -> None:
    classes = ("a,b", "bee", 'c "x"')
    model = LinearModel(
        np.eye(3), np.full(3, -0.5), classes, {}, None, {"index_base": 1, "multilabel": multilabel}
    )
    (tmp_path / "rows").write_text("0 1:2 3:1\n0 2:1\n")
    write_predictions(model, tmp_path / "rows", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        names, first, second = csv.reader(file)
    assert names == ["labels" if multilabel else "label", *(f"decision {one}" for one in classes)]
    assert first == ['"a,b","c ""x"""' if multilabel else "a,b", "1.5", "-0.5", "0.5"]
    assert second == ["bee", "-0.5", "0.5", "-0.5"]


def test_of_two_classes_a_csv_table_has_a_label_and_a_decision(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("0 1:1\n")
    write_predictions(_model(), tmp_path / "rows", tmp_path / "out.csv")
    [scores] = predict(_model(), tmp_path / "rows")
    line = f"{int(scores.labels[0])},{float(scores.decisions[0])!r}"
    assert (tmp_path / "out.csv").read_text() == f"label,decision\n{line}\n"


def test_more_digits_than_a_number_has_are_all_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 1:1\n")
    model = LinearModel(np.array([0.1]), 0.0, (-1.0, 1.0), {}, None, {"index_base": 1})
    write_predictions(model, tmp_path / "rows.svm", tmp_path / "out", digits=2**62)
    assert (tmp_path / "out").read_text() == f"1\t{Decimal.from_float(0.1)}\n"


@pytest.mark.parametrize("delimiter", ["\t", ","])
def test_tables_of_predictions_name_their_columns_and_carry_others_along(
    delimiter: str, tmp_path: Path
) -> None:
    cells = ["a,b", 'quoted "c"', None, "tab\tend\nline"]
    ids = pa.array([cells[k % 4] for k in range(9000)])  # of several blocks
    table = pa.table({"id": ids, "f0": np.arange(9000.0) / 7, "day": pa.array(range(9000))})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=1111)
    reading = {"index_base": 0, "layout": "columns", "features": ["f0"]}
    model = LinearModel(np.ones((3, 1)), np.zeros(3), ("x", "y", "z"), {}, None, reading)
    name = tmp_path / ("out.csv" if delimiter == "," else "out.tsv")
    write_predictions(model, tmp_path / "rows.parquet", name, keep=["id", "day"], digits=3)
    with name.open(newline="") as file:
        header, *lines = csv.reader(file, delimiter=delimiter)
    assert header == ["id", "day", "label", "decision x", "decision y", "decision z"]
    assert [line[:2] for line in lines] == [
        [cell or "", str(day)] for cell, day in zip(ids.to_pylist(), range(9000), strict=True)
    ]
    assert [float(line[3]) for line in lines] == [float(f"{k / 7:.3g}") for k in range(9000)]
    write_predictions(model, tmp_path / "rows.parquet", tmp_path / "out.parquet", keep=["id"])
    assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == ids.to_pylist()
    pq.write_table(pa.table({"id": [7], "f0": [1.0]}), tmp_path / "z.parquet")
    both = [tmp_path / "rows.parquet", tmp_path / "z.parquet"]
    with pytest.raises(DataError, match="In Parquet each has one type in all shards"):
        write_predictions(model, both, tmp_path / "out.parquet", keep=["id"])
    for keep, message in ((["label"], "has that name already"), (["nope"], "of the name 'nope'")):
        with pytest.raises((SettingsError, DataError), match=message):
            write_predictions(model, tmp_path / "rows.parquet", name, keep=keep)


def test_predict_reads_standard_input_by_the_models_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs.csv").write_text("text,kind\n" + "buy pills,spam\nhello friend,ham\n" * 9)
    (tmp_path / "rows.svm").write_text("1 1:1\n2 2:1\n" * 9)
    streamtron.fit(tmp_path / "docs.csv", text="text", label="kind", model=tmp_path / "text.model")
    streamtron.fit(tmp_path / "rows.svm", model=tmp_path / "svm.model")

    def lines(model: str, stdin: str, *words: str) -> list[str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode("latin-1"))))
        done = here(tmp_path, "predict", f"{model}.model", "-", "-o", "-", *words)
        return (done.stdout or done.stderr).splitlines()

    json_line = '{"text": "hello friend", "id": 7}\n'
    assert lines("text", json_line, "--keep", "id")[0].startswith("7\tham\t")
    assert lines("text", "pills\nfriend\n", "--format", "lines")[0].startswith("spam\t")
    assert lines("svm", "2:1\n1 1:1\n")[0].startswith("2\t")
    assert "standard input: no rows" in lines("svm", "")[0]
    assert "line 1: not a file of JSON lines" in lines("text", "pills\n")[0]
    assert "line 2: not UTF-8" in lines("text", "a\n\xe9\n", "--format", "lines")[0]
    assert "the model is not of text alone" in lines("svm", "a\n", "--format", "lines")[0]


def test_evaluate_tells_which_classes_are_confused_and_the_worst_rows_and_no_number_twice(
    tmp_path: Path,
) -> None:
    run = partial(here, tmp_path)
    reading = {"index_base": 1}
    model = LinearModel(np.eye(3), np.zeros(3), ("ant", "bee", "cow"), {}, None, reading)
    model.but(reading={**reading, "multiclass": True}).save(tmp_path / "m")
    (tmp_path / "a.svm").write_text("ant 1:1\nbee 1:3 2:1\ncow 3:1\nbee 2:1\n" * 2)
    (tmp_path / "b.svm").write_text("bee 1:4\ncow 2:0.5\nelk 1:9\nbee 2:1\n")
    words = ("evaluate", tmp_path / "m", tmp_path / "a.svm", tmp_path / "b.svm")
    done = run(*words, "--worst", "2")
    assert [line.split() for line in done.stdout.splitlines()[-6:]] == [
        ["class", "as", "ant", "as", "bee", "as", "cow"],
        ["ant", "2", "0", "0"],
        ["bee", "3", "3", "0"],
        ["cow", "0", "1", "2"],
        ["b.svm,", "row", "0:", "label", "'bee',", "predicted", "'ant',", "decision", "0"],
        ["a.svm,", "row", "1:", "label", "'bee',", "predicted", "'ant',", "decision", "1"],
    ]
    assert "accuracy                       0.5833\n" in done.stdout
    (tmp_path / "b.svm").unlink()
    shown = run(*words[:3]).stdout
    assert "micro" not in shown
    assert "Hamming" not in shown
    metrics = json.loads(run(*words[:3], "--json").stdout)
    assert metrics["micro_f1"] == metrics["accuracy"] == 0.75
    assert metrics["confusions"] == [{"label": "bee", "predicted": "ant", "weight": 2.0}]
    two = LinearModel([1.0, -1.0], 0.0, (0.0, 1.0), {}, None, reading)
    two.save(tmp_path / "two")
    (tmp_path / "c.svm").write_text("1 1:1\n0 1:2\n0 2:1\n1 1:3\n")
    done = run("evaluate", tmp_path / "two", tmp_path / "c.svm", "--worst", "1")
    assert [line.split() for line in done.stdout.splitlines()[-4:]] == [
        ["class", "as", "0", "as", "1"], ["0", "1", "1"], ["1", "0", "2"],
        ["c.svm,", "row", "1:", "label", "0,", "predicted", "1,", "decision", "-2"],
    ]  # fmt: skip
