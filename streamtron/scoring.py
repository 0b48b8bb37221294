"""Scores of shards by a model that exists: decisions as they stream past, metrics of all of them.

Rows come in the order of the shards, are read once and need no cache. Memory is a few blocks; where
workers score the shards, the decisions of a few shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.evaluation import LIMIT_ROWS, Evaluation, ScoreSpool
from streamtron.fitting import as_paths, reading_of_model
from streamtron.model import LinearModel
from streamtron.sealed import write_atomically
from streamtron.shards import Reading, ShardFile, ShardSource, find_shards, no_rows, settled
from streamtron.shards.predictions import parquet_parts
from streamtron.spread import Arrays, Spread, in_turn, regrouped
from streamtron.summary import label_text

GROUP_ROWS = 4096
"""Sums of row weights are made by so many rows, wherever shards and blocks end."""

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


def predict(model: LinearModel, shards: Paths, *, spread: Spread = in_turn) -> Iterator[Scores]:
    """The model's classes and decisions, one per row, in the order of the shards.

    Labels in the shards may be missing, and are not looked at.

    Parameters
    ----------
    model : its reader's contract says how the shards are read.
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    spread : where the shards are read and scored: here, or on workers.

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
    files = find_shards(as_paths(shards))
    rows = 0
    for scores in spread(predict_shard, files, model, settled(files[0], reading)):
        rows += len(scores.decisions)
        yield scores
    if not rows:
        raise no_rows(files)


def predict_shard(shard: ShardFile, model: LinearModel, reading: Reading) -> Iterator[Scores]:
    """The scores of one shard, which may have no row."""
    with ShardSource([shard], reading, cache_dir=None, most_labels=None,
                     allow_duplicate=True, allow_empty=True) as source:  # fmt: skip
        for chunk in source.chunks():
            decisions, beyond = model.decision_rows(chunk.rows)
            yield Scores(model.labels(decisions), decisions, beyond)


def write_predictions(
    model: LinearModel, shards: Paths, output: str | os.PathLike[str] | BinaryIO,
    *, spread: Spread = in_turn,
) -> Predicted:  # fmt: skip
    """Write ``label<TAB>decision`` lines, or Parquet with these columns if the name says so.

    Parameters
    ----------
    output : a path, written whole or not at all, Parquet if it ends with ``.parquet``; or an open
        binary file, which gets text.
    spread : where the shards are read and scored: here, or on workers.

    Raises
    ------
    DataError, MachineError
    """
    tally = _Tally()
    scores = tally.counted(predict(model, shards, spread=spread))
    if not isinstance(output, str | os.PathLike):
        output.writelines(map(_text, scores))
    elif os.fspath(output).endswith(".parquet"):
        pairs = ((score.labels, score.decisions) for score in scores)
        write_atomically(output, parquet_parts(pairs))
    else:
        write_atomically(output, map(_text, scores))
    return Predicted(tally.rows, tally.beyond)


def evaluate(
    model: LinearModel, shards: Paths, *, limit_rows: int = LIMIT_ROWS, spread: Spread = in_turn
) -> Evaluation:
    """How well the model's decisions meet the labels of the shards.

    Parameters
    ----------
    model : its reader's contract says how the shards are read, row weights included.
    shards : files, directories or globs of libsvm text, Parquet or Arrow, every row labelled.
    limit_rows : rows whose decisions are sorted in memory; beyond that, on disk.
    spread : where the shards are read and scored: here, or on workers.

    Raises
    ------
    DataError : a label that the model does not know, and what reading refuses.
    MachineError
    """
    files = find_shards(as_paths(shards))
    reading = settled(files[0], reading_of_model(model, strangers="beyond"))
    with ScoreSpool(limit_rows) as spool:
        for rows in regrouped(spread(judge_shard, files, model, reading), GROUP_ROWS):
            spool.add(*rows)
        found = spool.evaluation()
    if not found.rows:
        raise no_rows(files)
    return found


def judge_shard(shard: ShardFile, model: LinearModel, reading: Reading) -> Iterator[Arrays]:
    """The (signs, decisions, weights) of one shard, which may have no row."""
    with ShardSource([shard], reading, cache_dir=None, classes=model.classes,
                     allow_duplicate=True, allow_empty=True) as source:  # fmt: skip
        for chunk in source.chunks():
            signs = 2 * chunk.codes - 1  # code 1 is the larger class
            weights = np.ones(len(chunk)) if chunk.weights is None else chunk.weights
            yield signs, model.decision_rows(chunk.rows).values, weights


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
