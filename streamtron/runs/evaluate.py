"""Scores of shards by a model that exists: decisions as they stream past, metrics of all of them.

Rows come in the order of the shards, are read once and need no cache. Memory is a few blocks; where
workers score the shards, the decisions of a few shards.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import Executor, serial
from streamtron.core.rows import Chunk, ChunkSource, Label
from streamtron.core.sealed import write_atomically
from streamtron.core.text import label_text
from streamtron.data import Reading, ShardFile, ShardSource, find_shards, no_rows, settled
from streamtron.data.writers.predictions import parquet_parts
from streamtron.model.accuracy_bounds import AccuracyBounds
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import LIMIT_ROWS, Evaluation, ScoreSpool
from streamtron.runs.fit import as_paths, reading_of_model
from streamtron.runs.outputs import check_outputs

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Scores(NamedTuple):
    """What a model says of some consecutive rows."""

    labels: NDArray[Any]
    """shape (rows,), the predicted class: float64, bool, or object where classes are strings; of a
    multilabel model object, a tuple of classes each"""
    decisions: NDArray[np.float64]
    """shape (rows,), or (rows, K) of many classes: w·x + bias; see ``LinearModel.labels``"""
    beyond: int
    """nonzeros in columns beyond the model's width, which weigh 0"""


class Predicted(NamedTuple):
    """What ``write_predictions`` has written: rows, and nonzeros beyond the model's width."""

    rows: int
    beyond: int


def predict(model: LinearModel, shards: Paths, *, executor: Executor = serial) -> Iterator[Scores]:
    """The model's classes and decisions, one per row, in the order of the shards.

    Labels in the shards may be missing, and are not looked at.

    Parameters
    ----------
    model : its reader's contract says how the shards are read.
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    executor : where the shards are read and scored: here, or on workers.

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
    reading = replace(reading, weights="ignored")
    files = find_shards(as_paths(shards))
    rows = 0
    for scores in executor(predict_shard, files, model, settled(files[0], reading)):
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
    *, executor: Executor = serial,
) -> Predicted:  # fmt: skip
    """Write a line a row, or Parquet if the name says so.

    * **Two classes:** ``label<TAB>decision``; in Parquet columns ``label`` and ``decision``.
    * **Multiclass:** the label, then K decisions in the order of the classes, tabs in between; in
      Parquet ``label`` and the list ``decisions``.
    * **Multilabel:** the labels joined by commas (nothing where there is none), then K decisions;
      in Parquet the lists ``labels`` and ``decisions``.

    In text, labels that hold a delimiter, a quote or an end of line are quoted as the csv module
    does: with tabs as delimiters it reads the fields back, with commas the labels of one row.

    Parameters
    ----------
    output : a path, written whole or not at all, Parquet if it ends with ``.parquet``; or an open
        binary file, which gets text.
    executor : where the shards are read and scored: here, or on workers.

    Raises
    ------
    SettingsError : the output is one of the shards.
    DataError, MachineError
    """
    if isinstance(output, str | os.PathLike):
        check_outputs({"output": output}, as_paths(shards))
    tally = _Tally()
    scores = tally.counted(predict(model, shards, executor=executor))
    if not isinstance(output, str | os.PathLike):
        output.writelines(map(_text, scores))
    elif os.fspath(output).endswith(".parquet"):
        pairs = ((score.labels, score.decisions) for score in scores)
        many = model.kind == "multilabel"
        write_atomically(output, parquet_parts(pairs, model.classes, multilabel=many))
    else:
        write_atomically(output, map(_text, scores))
    return Predicted(tally.rows, tally.beyond)


def evaluate(
    model: LinearModel,
    shards: Paths,
    *,
    limit_rows: int = LIMIT_ROWS,
    ranking: bool = True,
    executor: Executor = serial,
) -> Evaluation:
    """How well the model's decisions meet the labels of the shards.

    Parameters
    ----------
    model : its reader's contract says how the shards are read, row weights included.
    shards : files, directories or globs of libsvm text, Parquet or Arrow, every row labelled.
    limit_rows : decisions that are sorted in memory; beyond that, on disk.
    ranking : whether ROC AUC and average precision are wanted, which need every decision sorted.
    executor : where the shards are read and scored: here, or on workers.

    Raises
    ------
    DataError : a label that a model of two classes does not know, not one label that a model of
        many knows, and what reading refuses.
    MachineError
    """
    return evaluate_many(
        [model], shards, limit_rows=limit_rows, ranking=ranking, executor=executor
    )[0]


def evaluate_many(
    models: Sequence[LinearModel],
    shards: Paths,
    *,
    limit_rows: int = LIMIT_ROWS,
    ranking: bool = True,
    at_optimum: bool = False,
    executor: Executor = serial,
) -> list[Evaluation]:
    """The same of several models on one reading of the shards.

    Parameters
    ----------
    models : at least one, of the same classes and the same reader's contract, as models of one
        sweep are.
    limit_rows, ranking : of every model; see ``evaluate``.
    at_optimum : whether it is wanted what the accuracy of the optimum can be: of models of two
        classes with certificates.
    executor : as in ``evaluate``.

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
    files = find_shards(as_paths(shards))
    reading = settled(files[0], reading_of_model(first, strangers="beyond"))
    judged = executor(judge_shard, files, tuple(models), reading, at_optimum)
    found = _evaluations(models, judged, limit_rows, ranking)
    if not found[0].rows:
        raise no_rows(files)
    return found


def evaluate_source(
    models: Sequence[LinearModel],
    source: ChunkSource,
    *,
    limit_rows: int = LIMIT_ROWS,
    ranking: bool = True,
) -> list[Evaluation]:
    """``evaluate_many`` on any source of chunks whose columns are numbered as the models'
    shards."""
    return _evaluations(models, _judged(models, source), limit_rows, ranking)


def judge_shard(
    shard: ShardFile, models: Sequence[LinearModel], reading: Reading, lengths: bool
) -> Iterator[Judged]:
    """What the models of one sweep say of one shard, which may have no row."""
    known = models[0].classes if models[0].kind == "two classes" else None
    with ShardSource([shard], reading, cache_dir=None, classes=known, most_labels=None,
                     allow_duplicate=True, allow_empty=True) as source:  # fmt: skip
        yield from _judged(models, source, lengths=lengths)


class Judged(NamedTuple):
    """The truth of some consecutive rows, and every model's decisions on them."""

    rows: tuple[NDArray[Any], ...]
    """the decisions of each model; weights; the truth, bool of shape (rows, K), of two classes
    whether a row has the larger; which rows have a label beside these, bool; the lengths ‖x‖ if
    they are wanted"""
    labels: tuple[Label, ...]
    """all that the source has met"""


def _judged(
    models: Sequence[LinearModel], source: ChunkSource, *, lengths: bool = False
) -> Iterator[Judged]:
    """Block by block; the models have the same classes."""
    first = models[0]
    for chunk in source.chunks():
        decisions = (model.decision_rows(chunk.rows).values for model in models)
        weights = np.ones(len(chunk)) if chunk.weights is None else chunk.weights
        truth, others = _truth(chunk, _codes_of_classes(first, source), len(first.classes))
        if first.kind == "two classes":
            truth = truth[:, 1:]  # one problem: the larger class against the other
        own = (np.sqrt(chunk.squares),) if lengths else ()
        yield Judged((*decisions, weights, truth, others, *own), tuple(source.labels))


def _evaluations(
    models: Sequence[LinearModel], judged: Iterator[Judged], limit_rows: int, ranking: bool
) -> list[Evaluation]:
    labels: dict[Label, None] = {}
    with ExitStack() as stack:
        judges = [_Judge(model, stack, limit_rows, ranking) for model in models]
        for rows, met in judged:
            labels.update(dict.fromkeys(met))
            decisions, rest = rows[: len(models)], rows[len(models) :]
            for judge, values in zip(judges, decisions, strict=True):
                judge.take(values, *rest)
        return [judge.evaluation(tuple(labels)) for judge in judges]


class _Judge:
    """What a model is worth, block by block."""

    def __init__(
        self, model: LinearModel, stack: ExitStack, limit_rows: int, ranking: bool
    ) -> None:
        self.model, self.two = model, model.kind == "two classes"
        spool = ScoreSpool(
            () if self.two else model.classes, limit_rows=limit_rows, ranking=ranking
        )
        self.spool = stack.enter_context(spool)
        self.reach: AccuracyBounds | None = None
        self.known = self.two  # labels that a model of two classes does not know are refused before

    def take(
        self,
        decisions: NDArray[Any],
        weights: NDArray[Any],
        truth: NDArray[np.bool_],
        others: NDArray[np.bool_],
        lengths: NDArray[Any] | None = None,
    ) -> None:
        chosen = None if self.two else self.model.chosen(decisions)
        self.spool.add(truth, decisions, weights, chosen=chosen, others=others)
        self.known = self.known or bool(truth.any())
        if self.two and lengths is not None and self.model.certificate:
            self.reach = self.reach or AccuracyBounds.of(self.model)
            self.reach.add(np.where(truth[:, 0], 1, -1), decisions, weights, lengths)

    def evaluation(self, labels: Sequence[Label]) -> Evaluation:
        if not self.known and labels:
            raise DataError(
                f"not one row has a class of the model: the labels are {_some(labels)}, the "
                f"classes {_some(self.model.classes)}. Give shards labelled as those it was "
                "fitted on."
            )
        reached = self.reach.accuracy if self.reach else None
        return replace(self.spool.evaluation(), accuracy_at_optimum=reached)


def _codes_of_classes(model: LinearModel, source: ChunkSource) -> NDArray[np.int64]:
    """Of each label of the source, its place among the model's classes; -1 = it is none."""
    places = {(type(label), label): place for place, label in enumerate(model.classes)}
    return np.array([places.get((type(label), label), -1) for label in source.labels], np.int64)


def _truth(
    chunk: Chunk, places: NDArray[np.int64], classes: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which classes each row has, shape (rows, classes); which rows have a label beside them."""
    truth, others = np.zeros((len(chunk), classes), bool), np.zeros(len(chunk), bool)
    rows, codes = np.arange(len(chunk)), chunk.codes
    if (offsets := chunk.code_offsets) is not None:
        rows, codes = np.repeat(rows, np.diff(offsets)), codes[offsets[0] : offsets[-1]]
    of_row = places[codes]
    known = of_row >= 0
    truth[rows[known], of_row[known]] = True
    others[rows[~known]] = True
    return truth, others


def _some(labels: Sequence[Label], most: int = 5) -> str:
    return ", ".join(map(repr, labels[:most])) + (", …" if len(labels) > most else "")


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
    labels = scores.labels.tolist()
    shown = {label: _label(label) for label in set(labels)}
    if scores.decisions.ndim == 1:
        pairs = zip(labels, scores.decisions.tolist(), strict=True)
        return "".join(f"{shown[label]}\t{decision!r}\n" for label, decision in pairs).encode()
    rows = zip(labels, scores.decisions.tolist(), strict=True)
    lines = ("\t".join([shown[label], *map(repr, row)]) + "\n" for label, row in rows)
    return "".join(lines).encode()


def _label(label: Label | tuple[Label, ...]) -> str:
    """A label, or the labels of a row, as a field between tabs."""
    text = _line(map(label_text, label), ",") if isinstance(label, tuple) else label_text(label)
    return _line((text, ""), "\t").removesuffix("\t")


def _line(fields: Iterable[str], delimiter: str) -> str:
    """A line without its end in which the csv module finds these fields, whatever they hold."""
    text = io.StringIO()
    end = "\r\n"  # either of them has a field quoted
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerow(fields)
    return text.getvalue().removesuffix(end)
