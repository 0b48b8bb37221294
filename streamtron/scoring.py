"""Scores of shards by a model that exists: decisions as they stream past, metrics of all of them.

Rows come in the order of the shards, are read once and need no cache; memory is a few blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.errors import SettingsError
from streamtron.evaluation import LIMIT_ROWS, Evaluation, ScoreSpool
from streamtron.fitting import as_paths, reading_of_model
from streamtron.model import LinearModel
from streamtron.sealed import write_atomically
from streamtron.shards import open_shards
from streamtron.shards.predictions import parquet_parts
from streamtron.summary import label_text

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Scores(NamedTuple):
    """What a model says of some consecutive rows."""

    labels: NDArray[Any]
    """shape (rows,), the predicted class: float64, bool, or object where classes are strings"""
    decisions: NDArray[np.float64]
    """shape (rows,), w·x + bias; the class is the larger one where it is above 0"""
    beyond: int
    """nonzeros in columns beyond the model's width, which weigh 0"""


class Predicted(NamedTuple):
    """What ``write_predictions`` has written: rows, and nonzeros beyond the model's width."""

    rows: int
    beyond: int


def predict(model: LinearModel, shards: Paths) -> Iterator[Scores]:
    """The model's classes and decisions, one per row, in the order of the shards.

    Labels in the shards may be missing, and are not looked at.

    Parameters
    ----------
    model : its reader's contract says how the shards are read.
    shards : files, directories or globs of libsvm text, Parquet or Arrow.

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
    # an unlabelled row need not have a weight either
    reading = reading_of_model(model, labels="optional", strangers="beyond")
    reading = replace(reading, weight_column=None)
    with open_shards(as_paths(shards), reading, cache_dir=None, most_labels=None,
                     allow_duplicate=True) as source:  # fmt: skip
        for chunk in source.chunks():
            decisions, beyond = model.decision_rows(chunk.rows)
            yield Scores(model.labels(decisions), decisions, beyond)


def write_predictions(
    model: LinearModel, shards: Paths, output: str | os.PathLike[str] | BinaryIO
) -> Predicted:
    """Write ``label<TAB>decision`` lines, or Parquet with these columns if the name says so.

    Parameters
    ----------
    output : a path, written whole or not at all, Parquet if it ends with ``.parquet``; or an open
        binary file, which gets text.

    Raises
    ------
    DataError, MachineError
    """
    tally = _Tally()
    scores = tally.counted(predict(model, shards))
    if not isinstance(output, str | os.PathLike):
        output.writelines(map(_text, scores))
    elif os.fspath(output).endswith(".parquet"):
        pairs = ((score.labels, score.decisions) for score in scores)
        write_atomically(output, parquet_parts(pairs))
    else:
        write_atomically(output, map(_text, scores))
    return Predicted(tally.rows, tally.beyond)


def evaluate(model: LinearModel, shards: Paths, *, limit_rows: int = LIMIT_ROWS) -> Evaluation:
    """How well the model's decisions meet the labels of the shards.

    Parameters
    ----------
    model : its reader's contract says how the shards are read, row weights included.
    shards : files, directories or globs of libsvm text, Parquet or Arrow, every row labelled.
    limit_rows : rows whose decisions are sorted in memory; beyond that, on disk.

    Raises
    ------
    DataError : a label that the model does not know, and what reading refuses.
    MachineError
    """
    return evaluate_many([model], shards, limit_rows=limit_rows)[0]


def evaluate_many(
    models: Sequence[LinearModel], shards: Paths, *, limit_rows: int = LIMIT_ROWS
) -> list[Evaluation]:
    """The same of several models on one reading of the shards.

    Parameters
    ----------
    models : at least one, of the same classes and the same reader's contract, as models of one
        sweep are.
    limit_rows : of every model; see ``evaluate``.

    Raises
    ------
    SettingsError : models that would not read the shards alike.
    """
    first = models[0]
    if any((one.classes, one.reading) != (first.classes, first.reading) for one in models):
        raise SettingsError(
            "models with different classes or reader's contracts: one reading cannot serve them "
            "all. Evaluate them one by one."
        )
    with (
        ExitStack() as stack,
        open_shards(as_paths(shards), reading_of_model(first, strangers="beyond"), cache_dir=None,
                    classes=first.classes, allow_duplicate=True) as source,
    ):  # fmt: skip
        spools = [stack.enter_context(ScoreSpool(limit_rows)) for _ in models]
        for chunk in source.chunks():
            signs = 2 * chunk.codes - 1  # code 1 is the larger class
            for model, spool in zip(models, spools, strict=True):
                spool.add(signs, model.decision_rows(chunk.rows).values, chunk.weights)
        return [spool.evaluation() for spool in spools]


class _Tally:
    """Rows and nonzeros beyond, counted as they pass."""

    def __init__(self) -> None:
        self.rows = self.beyond = 0

    def counted(self, scores: Iterator[Scores]) -> Iterator[Scores]:
        for score in scores:
            self.rows += len(score.decisions)
            self.beyond += score.beyond
            yield score


def _text(scores: Scores) -> bytes:
    """One line a row; decisions in the shortest decimals that read back as the same float64."""
    shown = {label: label_text(label) for label in set(scores.labels.tolist())}
    pairs = zip(scores.labels.tolist(), scores.decisions.tolist(), strict=True)
    return "".join(f"{shown[label]}\t{decision!r}\n" for label, decision in pairs).encode()
