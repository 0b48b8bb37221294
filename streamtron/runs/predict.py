"""Predict: write a model's classes and decisions for every row of shards.

Rows are read once, in the order of the shards, and need no cache. Memory is a few blocks; with
workers, the decisions of a few shards.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.executor import Executor, serial
from streamtron.core.files import write_atomically
from streamtron.core.rows import Label
from streamtron.core.text import label_text
from streamtron.data import Reading, ShardFile, find_shards, no_rows, resolve_reading
from streamtron.data.writers.tables import parquet_predictions
from streamtron.model.linear_model import LinearModel
from streamtron.runs.inputs import Paths, as_paths, open_one, reading_from_model
from streamtron.runs.outputs import check_outputs


class Scores(NamedTuple):
    """Predictions for some consecutive rows.

    ``labels`` : shape (rows,), float64, bool, or object where classes are strings; of a multilabel
    model a tuple of classes each. ``decisions`` : w·x + bias, shape (rows,), or (rows, K) of many
    classes. ``out_of_range`` : nonzeros in columns beyond the model's width, which weigh 0.
    """

    labels: NDArray[Any]
    decisions: NDArray[np.float64]
    out_of_range: int


class Predicted(NamedTuple):
    """Rows written, and their nonzeros in columns beyond the model's width."""

    rows: int
    out_of_range: int


def predict(model: LinearModel, shards: Paths, *, executor: Executor = serial) -> Iterator[Scores]:
    """Yield the classes and decisions of all rows, in the order of the shards, whose labels may be
    missing and are ignored.

    Parameters
    ----------
    model : its reader's contract says how the shards are read.
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    executor : where the shards are read and scored: ``serial``, or Dask's workers.

    Raises
    ------
    DataError, MachineError

    Examples
    --------
    >>> import pathlib, tempfile
    >>> model = LinearModel(np.array([1.0, -2.0]), 0.5, (-1.0, 1.0), {}, None, {"index_base": 1})
    >>> with tempfile.TemporaryDirectory() as root:
    ...     shard = pathlib.Path(root, "a.svm")
    ...     _ = shard.write_text("0 1:1\\n0 2:1\\n")
    ...     [scores] = predict(model, shard)
    >>> scores.labels, scores.decisions
    (array([ 1., -1.]), array([ 1.5, -1.5]))
    """
    known = reading_from_model(model)
    reading = replace(known, labels="optional", unknown_features="out_of_range", weights="ignored")
    files = find_shards(as_paths(shards))
    rows = 0
    for scores in executor(predict_shard, files, model, resolve_reading(files[0], reading)):
        rows += len(scores.decisions)
        yield scores
    if not rows:
        raise no_rows(files)


def predict_shard(shard: ShardFile, model: LinearModel, reading: Reading) -> Iterator[Scores]:
    """Score one shard, which may be empty."""
    with open_one(shard, reading) as source:
        for chunk in source.chunks():
            decisions, out_of_range = model.decision_rows(chunk.rows)
            yield Scores(model.labels(decisions), decisions, out_of_range)


def write_predictions(
    model: LinearModel, shards: Paths, output: str | os.PathLike[str] | BinaryIO,
    *, executor: Executor = serial,
) -> Predicted:  # fmt: skip
    """Write a line for every row, or Parquet if the name ends with ``.parquet``.

    * **Two classes:** ``label<TAB>decision``; in Parquet columns ``label`` and ``decision``.
    * **Multiclass:** the label, then K decisions in the order of the classes, tabs in between; in
      Parquet ``label`` and the list ``decisions``.
    * **Multilabel:** the labels joined by commas (nothing where there is none), then K decisions;
      in Parquet the lists ``labels`` and ``decisions``.

    In text, labels that hold a delimiter, a quote or an end of line are quoted as the csv module
    does: with tabs as delimiters it reads the fields back, with commas the labels of one row.

    ``output`` : a path, written completely or not at all, and none of the shards (a SettingsError);
    or an open binary file, which gets text. ``executor`` : see ``predict``.
    """
    rows = out_of_range = 0

    def counted() -> Iterator[Scores]:
        nonlocal rows, out_of_range
        for score in predict(model, shards, executor=executor):
            rows += len(score.decisions)
            out_of_range += score.out_of_range
            yield score

    if not isinstance(output, str | os.PathLike):
        output.writelines(map(_text, counted()))
        return Predicted(rows, out_of_range)
    check_outputs({"output": output}, as_paths(shards))
    if os.fspath(output).endswith(".parquet"):
        pairs = ((score.labels, score.decisions) for score in counted())
        many = model.kind == "multilabel"
        write_atomically(output, parquet_predictions(pairs, model.classes, multilabel=many))
    else:
        write_atomically(output, map(_text, counted()))
    return Predicted(rows, out_of_range)


def _text(scores: Scores) -> bytes:
    """Format a line for every row; decisions read back as the same float64."""
    labels, rows = scores.labels.tolist(), scores.decisions.reshape(len(scores.labels), -1)
    shown = {label: _label(label) for label in set(labels)}
    lines = (
        "\t".join([shown[label], *map(repr, row)]) + "\n"
        for label, row in zip(labels, rows.tolist(), strict=True)
    )
    return "".join(lines).encode()


def _label(label: Label | tuple[Label, ...]) -> str:
    """Format a label, or the labels of a row, as a field between tabs."""
    text = _line(map(label_text, label), ",") if isinstance(label, tuple) else label_text(label)
    return _line((text, ""), "\t").removesuffix("\t")


def _line(fields: Iterable[str], delimiter: str) -> str:
    """Format fields as a line, without its end, that the csv module reads back."""
    text = io.StringIO()
    end = "\r\n"  # fields that hold either are quoted
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerow(fields)
    return text.getvalue().removesuffix(end)
