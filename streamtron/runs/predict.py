"""Predict: write a model's classes and decisions for every row of shards.

Rows are read once, in the order of the shards, and need no cache. Memory is a few blocks; with
workers, the decisions of a few shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.executor import Executor, serial
from streamtron.core.files import write_atomically
from streamtron.data import find_shards
from streamtron.data.writers.tables import (
    Predictions,
    TextForm,
    parquet_predictions,
    text_predictions,
)
from streamtron.model.calibration import probabilities_of
from streamtron.model.certainty import certain as certain_rows
from streamtron.model.certainty import mean_bounds, probability_bounds
from streamtron.model.linear_model import LinearModel
from streamtron.model.scoring import labels_of
from streamtron.runs.evaluate import ScoredRows, score_shards
from streamtron.runs.inputs import Paths, as_model, as_paths, check_outputs


class Scores(NamedTuple):
    """Predictions for some consecutive rows.

    ``labels`` : shape (rows,), float64, bool, or object where classes are strings; of a multilabel
    model a tuple of classes each; of regression the decisions. ``decisions`` : w·x + bias, shape
    (rows,), or (rows, K) of many classes. ``out_of_range`` : nonzeros in columns beyond the model's
    width, which weigh 0. ``probabilities`` : of the shape of ``decisions``, of two classes of the
    larger one; and ``certain`` : shape (rows,), labels that the best possible model gives too (None
    of regression), and ``bounds`` on its decisions, or its probabilities; None if not asked.
    """

    labels: NDArray[Any]
    decisions: NDArray[np.float64]
    out_of_range: int
    probabilities: NDArray[np.float64] | None = None
    certain: NDArray[np.bool_] | None = None
    bounds: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def columns(self, kind: str) -> dict[str, NDArray[Any]]:
        """Return the columns to write for a kind of model; lists have names in the plural."""
        columns, many = dict[str, NDArray[Any]](), self.decisions.ndim == 2
        if kind != "regression":
            are_lists = kind == "multilabel" or self.labels.ndim == 2
            columns["labels" if are_lists else "label"] = self.labels
        decision = "prediction" if kind == "regression" else "decision"
        decided = self.labels if kind == "regression" else self.decisions
        columns["decisions" if many else decision] = decided
        if self.probabilities is not None:
            columns["probabilities" if many else "probability"] = self.probabilities
        if self.certain is not None:
            columns["certain"] = self.certain
        if self.bounds is not None:
            columns |= zip(("at_least", "at_most"), self.bounds, strict=True)
        return columns


class Predicted(NamedTuple):
    """Rows written, their nonzeros in columns beyond the model's width, and how many labels are
    certain (None if not asked for)."""

    rows: int
    out_of_range: int
    certain: int | None = None


def predict(
    model: LinearModel | str | os.PathLike[str],
    shards: Paths,
    *,
    proba: bool = False,
    certain: bool = False,
    top: int | None = None,
    executor: Executor = serial,
) -> Iterator[Scores]:
    """Yield the classes and decisions of all rows, in the order of the shards, whose labels may be
    missing and are ignored.

    Parameters
    ----------
    model : a model or its file; its reader's contract says how the shards are read.
    shards : files, directories or globs, of documents too if the model was fitted on their rows.
    proba : whether to compute probabilities, for which the model must be calibrated, or its loss
        log_loss.
    certain : whether to tell which labels the best possible model of the same rows and settings is
        proven to give, and between which bounds its decisions are, for which the model must have a
        certificate and no calibration; with ``proba`` bounds on its probabilities. See
        ``model.certainty``.
    top : with more than two classes only this many, the highest; see ``LinearModel.predict_top``.
    executor : where the shards are read and scored: ``serial``, or Dask's workers.

    Raises
    ------
    DataError, MachineError
    SettingsError : a model without probabilities or a certificate where it needs them; ``top`` of
        a model of two classes or numbers, or beside ``proba`` or ``certain``.

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
    model = as_model(model)
    if top is not None and (proba or certain):
        raise SettingsError("top gives labels and decisions alone: leave proba and certain out.")
    files = find_shards(as_paths(shards))
    how: Any = {"labelled": False, "bounded": [certain], "top": top}
    for rows in score_shards([model], files, executor, **how):
        yield _scores(model, rows, proba)


def _scores(model: LinearModel, rows: ScoredRows, proba: bool) -> Scores:
    [decisions], [bounds], sure = rows.decisions, rows.bounds, None
    if isinstance(decisions, tuple):
        labels, highest = decisions
        return Scores(labels, highest, rows.out_of_range)
    shares = probabilities_of(model, decisions) if proba else None
    if bounds is not None:
        sure = None if model.regression else certain_rows(model, *bounds)
        if model.regression:
            bounds = mean_bounds(model, *bounds)
        if proba:
            bounds = probability_bounds(model, *bounds)
    labels = labels_of(model, decisions)
    return Scores(labels, decisions, rows.out_of_range, shares, sure, bounds)


def write_predictions(
    model: LinearModel, shards: Paths, output: str | os.PathLike[str] | BinaryIO, **how: Any
) -> Predicted:
    """Write a line for every row, fields between tabs; a table whose first line has their names if
    the name ends with ``.tsv``, or with ``.csv``, between commas; Parquet with columns of these
    names if it ends with ``.parquet``.

    * **Two classes:** ``label`` and ``decision``.
    * **Multiclass:** ``label``, then ``decision NAME`` of each class, in their order.
    * **Multilabel:** ``labels``, joined by commas (nothing where there is none), in Parquet a list;
      then ``decision NAME`` of each class.
    * **With top:** ``label 1`` to ``label k``, then ``decision 1`` to ``decision k``.
    * **Regression:** ``prediction``, the number predicted.

    With ``proba`` the decisions are followed by ``probability``, of two classes of the larger one,
    else ``probability NAME`` of each class; with ``certain`` by ``certain``, in text 1 or 0, and by
    ``at_least`` and ``at_most``, or these of each class.

    In text, labels that hold a delimiter, a quote or an end of line are quoted as the csv module
    does: with tabs as delimiters it reads the fields back, with commas the labels of one row.

    ``output`` : a path, written completely or not at all, and none of the shards (a SettingsError);
    or an open binary file, which gets text. ``how`` : the other arguments of ``predict``.
    """
    rows = out_of_range = sure = 0

    def counted() -> Iterator[Predictions]:
        nonlocal rows, out_of_range, sure
        for score in predict(model, shards, **how):
            rows += len(score.decisions)
            out_of_range += score.out_of_range
            sure += 0 if score.certain is None else int(np.count_nonzero(score.certain))
            yield score.columns(model.kind)

    name = os.fspath(output) if isinstance(output, str | os.PathLike) else ""
    delimiter, header = ("," if name.endswith(".csv") else "\t"), name.endswith((".csv", ".tsv"))
    if name.endswith(".parquet"):
        written = parquet_predictions(counted(), model.classes)
    else:
        written = text_predictions(counted(), model.classes, TextForm(delimiter, header))
    if isinstance(output, str | os.PathLike):
        check_outputs({"output": output}, as_paths(shards))
        write_atomically(output, written)
    else:
        output.writelines(written)
    has_certain = how.get("certain") and not model.regression
    return Predicted(rows, out_of_range, sure if has_certain else None)
