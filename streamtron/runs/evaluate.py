"""Evaluate models on labelled shards, which are read as by ``predict``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import Executor, serial
from streamtron.core.kinds import whole
from streamtron.core.rows import Chunk, Label
from streamtron.core.text import some
from streamtron.data import ReaderConfig, ShardFile, ShardRows, find_shards, no_rows, open_reader
from streamtron.data.labels import LabelTable
from streamtron.data.manifest import ShardRecord
from streamtron.data.reader_config import ALL
from streamtron.data.storage import fingerprint
from streamtron.model.calibration import probabilities_of, probability_map
from streamtron.model.certainty import AccuracyBounds, OptimumBounds, why_unbounded
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import HELD, Evaluation, ProbabilityScores, Scores
from streamtron.model.mistakes import Mistakes
from streamtron.model.residuals import Residuals
from streamtron.model.scoring import chosen_classes, labels_of, matrix_of
from streamtron.runs.finished_run import check_as_read, read_shards, recorded_shards, run_of
from streamtron.runs.inputs import Paths, as_model, as_paths, reading_to_score, with_labels_of


def evaluate(
    model: LinearModel | str | os.PathLike[str],
    shards: Paths | None = None,
    *,
    ranking: bool = True,
    share: tuple[float, float] = ALL,
    worst: int = 0,
    executor: Executor = serial,
) -> Evaluation:
    """Measure a model's predictions against the labels of shards; see ``Evaluation``.

    Parameters
    ----------
    model : a model or its file; its reader's contract says how the shards are read, row weights
        included.
    shards : files, directories or globs of libsvm text, Parquet or Arrow, every row labelled; None
        = the rows that the fit held out, of a model with its run beside it.
    ranking : whether to compute ROC AUC and average precision, or ``calibration``; for these up to
        50 million decisions are held in memory, and more are binned.
    share : of the rows: (0, 0.2) is the share that a fit with ``held_out=0.2`` has not seen.
    worst : how many rows to list as ``worst``: where they are, and by how much they are wrong.
    executor : where the shards are read and scored: ``serial``, or Dask's workers.

    Raises
    ------
    DataError : a label that a model of two classes does not have; no label that a model of many
        classes has; unreadable rows.
    MachineError
    """
    if shards is None:
        path, store = run_of(model)
        loaded, (_, files) = as_model(path), read_shards(store)
        check_as_read(files, str(store.path))
        share = 0.0, loaded.settings.get("held_out") or 0.0
        if not share[1]:
            raise SettingsError(
                "no shards are given, and the fit held no rows out. Name shards to measure on, or "
                "fit with --valid 20%."
            )
    else:
        loaded, files = with_labels_of(as_model(model), shards), find_shards(as_paths(shards))
    evaluator = Evaluator(loaded, ranking, whole(worst, "worst"))
    for rows in score_shards([loaded], files, executor, share=share):
        evaluator.add(rows)
    return evaluator.evaluation()


def evaluate_many(
    models: Sequence[LinearModel], shards: Paths, *, share: tuple[float, float] = ALL
) -> list[Evaluation]:
    """Evaluate several models, of the same classes and reader's contract, on one reading of the
    shards; see ``evaluate``. The accuracy of the optimum is bounded, too, for models of two classes
    that have certificates."""
    bounded = [
        bool(model.certificate) and model.kind == "two classes" and why_unbounded(model) is None
        for model in models
    ]
    evaluators = [Evaluator(model, held=HELD // (10 * len(models))) for model in models]
    files = find_shards(as_paths(shards))
    for rows in score_shards(models, files, serial, bounded=bounded, share=share):
        for number, evaluator in enumerate(evaluators):
            evaluator.add(rows, number)
    return [evaluator.evaluation() for evaluator in evaluators]


def columns_not_used(model: LinearModel | str, shards: Paths) -> dict[str, Any]:
    """Return, as ``columns_not_used``, the columns of a table that a model leaves aside, and their
    types, if there are any; the first shard tells."""
    first = find_shards(as_paths(shards))[0]
    reading = reading_to_score(as_model(model), first, labelled=False)
    unused = open_reader(first, reading).unused()
    return {"columns_not_used": unused} if unused else {}


def trained_on(directory: str | os.PathLike[str], shards: Paths) -> list[ShardRecord]:
    """Return the shards of a run that are among others, byte for byte; [] where there is no run."""
    if not (records := recorded_shards(directory)):
        return []
    sizes = {record.bytes for record in records}
    alike = [file for file in find_shards(as_paths(shards)) if file.size in sizes]
    prints = {fingerprint(file.path, file.name) for file in alike}
    return [record for record in records if record.fingerprint in prints]


def score_shards(
    models: Sequence[LinearModel],
    files: Sequence[ShardFile],
    executor: Executor,
    *,
    labelled: bool = True,
    bounded: Sequence[bool] = (),
    top: int | None = None,
    share: tuple[float, float] = ALL,
) -> Iterator[ScoredRows]:
    """Score rows by models of the same classes, in the order of the shards. A DataError at the end
    if there was no row, or of labelled rows none that has a class of the models.

    ``labelled`` : whether labels and row weights are read. ``bounded`` : for which of the models
    the decisions of the best possible one are bounded. ``top`` : see ``ScoredRows``.
    """
    reading, read = reading_to_score(models[0], files[0], labelled=labelled, share=share), 0
    known = isinstance(models[0].bias, float)  # the reader refuses labels unknown to a model of two
    labels, bounded = dict[Label, None](), bounded or [False] * len(models)
    wanted = tuple(models), reading, bounded, top
    for rows in executor(_score_shard, files, *wanted):
        read += len(rows.weights)
        known = known or bool(rows.truth.any())
        labels.update(dict.fromkeys(rows.labels))
        yield rows
    if labelled and labels and not known:
        raise DataError(
            f"no row has a class of the model: the labels are {some(labels)}, the "
            f"classes {some(models[0].classes)}. Give shards labelled as those it was fitted on."
        )
    if not read:
        raise no_rows(list(files), share)


class ScoredRows(NamedTuple):
    """Consecutive rows of a ``shard``, from ``first_row`` on, scored by models.

    ``decisions`` : of each model; with ``top`` that many labels a row and their decisions, the
    highest first. ``truth`` : which classes a row has, shape (rows, K), of two classes (rows, 1)
    for the larger one, of regression its target, shape (rows,); without labels (rows, 0).
    ``strange`` : which rows have another label. ``bounds`` : of each model, on the decisions of the
    best possible one, None = not wanted. ``labels`` : all of the shard so far. ``out_of_range`` :
    nonzeros in columns beyond the models' width, which weigh 0.
    """

    decisions: tuple[Any, ...]
    truth: NDArray[Any]
    weights: NDArray[Any]
    strange: NDArray[np.bool_]
    bounds: tuple[tuple[NDArray[Any], NDArray[Any]] | None, ...]
    labels: tuple[Label, ...]
    first_row: int
    out_of_range: int
    shard: str


def _score_shard(
    shard: ShardFile,
    models: Sequence[LinearModel],
    reading: ReaderConfig,
    bounded: Sequence[bool],
    top: int | None,
) -> Iterator[ScoredRows]:
    """Score one shard, which may be empty."""
    first, labelled = models[0], reading.labels == "required"
    classes = first.classes if labelled and first.kind == "two classes" else None
    optima = [OptimumBounds(m) if known else None for m, known in zip(models, bounded, strict=True)]
    places = {(type(label), label): place for place, label in enumerate(first.classes)}
    table = LabelTable(classes=classes)
    with ShardRows(shard, reading, table) as source:
        for chunk in source.chunks():
            decisions, beyond = zip(*(_decided(m, chunk, top) for m in models), strict=True)
            weights = np.ones(len(chunk)) if chunk.weights is None else chunk.weights
            of_codes = [places.get((type(label), label), -1) for label in source.labels]
            truth, strange = np.zeros((len(chunk), 0), bool), np.zeros(len(chunk), bool)
            if labelled:
                truth, strange = _truth(chunk, np.array(of_codes, np.int64), len(first.classes))
            if classes is not None:
                truth = truth[:, 1:]  # one problem: the larger class against the other
            rows, squares = chunk.rows, chunk.squares
            bounds = tuple(None if k is None else k.decisions(rows, squares) for k in optima)
            yield ScoredRows(
                decisions,
                truth,
                weights,
                strange,
                bounds,
                tuple(source.labels),
                chunk.ranges[0][0],
                max(beyond),
                shard.name,
            )


def _decided(model: LinearModel, chunk: Chunk, top: int | None) -> tuple[Any, int]:
    """Return a model's decisions on rows, see ``ScoredRows``, and the nonzeros out of range."""
    if top is None:
        return model.decision_rows(chunk.rows)
    matrix, out_of_range = matrix_of(model, chunk.rows)
    return model.predict_top(matrix, top), out_of_range


class Evaluator:
    """Evaluate one model on scored rows; ``held`` : how many decisions are kept at most."""

    def __init__(
        self, model: LinearModel, ranking: bool = True, worst: int = 0, held: int = HELD
    ) -> None:
        self.model, self.two = model, model.kind == "two classes"
        classes = () if self.two else model.classes
        self.scores = Scores(classes, held=held, ranking=ranking)
        self.bounds: AccuracyBounds | None = None
        self.worth: ProbabilityScores | None = None
        self.out_of_range = 0
        self.mistakes = Mistakes(model.classes, worst) if model.kind != "multilabel" else None
        self.residuals = None
        if model.regression:
            how = {"ranking": ranking, "deviance": model.log_link}
            self.residuals = Residuals(worst, held=held, **how)
        if probability_map(model) is not None:
            self.worth = ProbabilityScores(sum_to_one=model.kind == "multiclass")

    def add(self, rows: ScoredRows, number: int = 0) -> None:
        """Add rows; ``number`` : of the model among all that have scored them."""
        truth, weights, decisions = rows.truth, rows.weights, rows.decisions[number]
        self.out_of_range += rows.out_of_range
        if self.residuals is not None:
            predicted = labels_of(self.model, decisions)
            self.residuals.add(truth, predicted, weights, rows.shard, rows.first_row)
            return
        chosen = chosen_classes(self.model, decisions)
        self.scores.add(truth, decisions, weights, chosen=chosen, others=rows.strange)
        if self.mistakes is not None:
            self.mistakes.add(truth, chosen, decisions, weights, rows.shard, rows.first_row)
        if self.worth is not None:
            self.worth.add(truth, probabilities_of(self.model, decisions), weights, rows.strange)
        if (bounds := rows.bounds[number]) is not None:
            self.bounds = self.bounds or AccuracyBounds()
            self.bounds.add(np.where(truth[:, 0], 1, -1), *bounds, weights)

    def evaluation(self) -> Evaluation:
        """Return the metrics of all rows so far."""
        beyond: dict[str, Any] = {"out_of_range": self.out_of_range} if self.out_of_range else {}
        if self.residuals is not None:
            return Evaluation({**self.residuals.metrics(), **beyond})
        metrics = self.scores.evaluation().to_dict() | beyond
        metrics |= self.worth.metrics() if self.worth else {}
        metrics |= self.mistakes.metrics() if self.mistakes else {}
        return Evaluation(metrics, self.bounds.accuracy if self.bounds else None)


def _truth(
    chunk: Chunk, places: NDArray[np.int64], classes: int
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the classes of each row, shape (rows, classes), and which rows have another label; of
    numbers these, shape (rows,)."""
    truth, strange = np.zeros((len(chunk), classes), bool), np.zeros(len(chunk), bool)
    rows, codes = np.arange(len(chunk)), chunk.codes
    if codes.dtype.kind == "f":
        return codes, strange
    if (offsets := chunk.code_offsets) is not None:
        rows, codes = np.repeat(rows, np.diff(offsets)), codes[offsets[0] : offsets[-1]]
    of_row = places[codes]
    known = of_row >= 0
    truth[rows[known], of_row[known]] = True
    strange[rows[~known]] = True
    return truth, strange
