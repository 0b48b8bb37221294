"""Report a run as one page of HTML: its certificate, its training, its model, its data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import Executor, serial
from streamtron.core.files import parse_json, reading_from, shared, write_atomically
from streamtron.core.text import label_text, share_of_rows
from streamtron.data import ShardFile, find_shards
from streamtron.data.reader_config import ALL
from streamtron.model.linear_model import LinearModel
from streamtron.model.mistakes import margins_by_code
from streamtron.runs.evaluate import Evaluator, score_shards, trained_on
from streamtron.runs.explain import load_names, names_beside
from streamtron.runs.finished_run import (
    RunLocation,
    check_as_read,
    check_recovered,
    locate,
    read_manifest,
    shards_of,
)
from streamtron.runs.inputs import Paths, as_paths, check_outputs, reading_from_model
from streamtron.runs.page_sections import EDGES, Facts, Measured, render
from streamtron.runs.report import REPORT


def report(
    run: str | os.PathLike[str], output: str | os.PathLike[str], *, valid: Paths = (),
    margins: bool = True, names: Paths = (), run_dir: str | os.PathLike[str] | None = None,
    executor: Executor = serial,
) -> None:  # fmt: skip
    """Write a page about a finished run: one HTML file that needs no network.

    It begins with how good the model is on held-out rows, beside the share of the largest class, or
    the standard deviation of the numbers, and how far it is at most from the best training
    objective. Then come the confusion matrix, margins, curves or residuals, the heaviest features,
    the proof, the training, settings and data; of the best model of a sweep also its candidates.

    Parameters
    ----------
    run : the model, or its run directory. Nothing is written there.
    output : path of the page, written completely or not at all.
    valid : labelled shards that were held out, or ``20%``, the share that the fit held out: adds
        metrics, the confusion matrix, their margins, and the ROC and precision-recall curves, of
        many classes of each against the rest. Rows that were trained on are told.
    margins : read the run's shards once, for margins of two classes, or residuals; if they changed,
        it is said.
    names : directories where ``convert`` kept names of columns, if not beside the run's shards.
    run_dir : the run directory, if it is not ``MODEL.run``.
    executor : where shards are read and scored: ``serial``, or Dask's workers.

    Raises
    ------
    DataError : no finished run, or one of an earlier version; unreadable rows.
    SettingsError : the page would replace an input; the fit held out no such share.
    MachineError

    Examples
    --------
    >>> import tempfile
    >>> import streamtron
    >>> with tempfile.TemporaryDirectory() as root:
    ...     shard, model = Path(root, "a.svm"), Path(root, "m")
    ...     _ = shard.write_text("1 1:1\\n-1 1:-1\\n")
    ...     _ = streamtron.fit(shard, model=model)
    ...     streamtron.report(model, Path(root, "report.html"))
    ...     Path(root, "report.html").read_text()[:15]
    '<!DOCTYPE html>'
    """
    place, held_out = locate(run, run_dir), as_paths(valid)
    check_outputs(
        {"page": output}, [place.model, *held_out, *as_paths(names)], runs=[place.directory]
    )
    facts = _facts_of(place, margins, as_paths(names), executor)
    if held_out:
        facts = _with_measured(facts, place.directory, held_out, executor)
    try:
        page = render(facts)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DataError(
            f"{place.directory / REPORT}: not the report of this model ({error!r}). Fit again."
        ) from error
    write_atomically(output, [page.encode(errors="backslashreplace")])


def _facts_of(place: RunLocation, margins: bool, names: Sequence[str], executor: Executor) -> Facts:
    """Return what a run directory tells, with the margins of its rows if wanted and possible."""
    with shared(place.directory):
        check_recovered(place.directory)
        content = _read_report(place.directory / REPORT)
        manifest = read_manifest(place.directory)
        model = LinearModel.load(place.model)
        notes: list[str] = []
        training = None
        if margins and isinstance(model.bias, float):
            shards = shards_of(manifest, place.directory)
            try:
                check_as_read(shards, str(place.directory))
                share = reading_from_model(model).share
                training = _measure(model, shards, executor, ranked=False, share=share)
            except DataError as error:
                notes.append(f"The margins of the training rows are not shown: {error}")
    column_names = load_names(model, names or names_beside(model, manifest))
    title = os.path.basename(place.model)
    return Facts(title, model, content, manifest, training, None, notes, column_names)


def _with_measured(
    facts: Facts, directory: Path, valid: Sequence[str], executor: Executor
) -> Facts:
    """Return the facts with what is measured on ``valid``: shards, or the share held out."""
    size = share_of_rows(valid)
    if size is None:
        measured = _measure(facts.model, find_shards(valid), executor, ranked=True)
        known = trained_on(directory, valid)
        return replace(facts, validation=measured, known_rows=sum(shard.rows for shard in known))
    if size > (held_out := facts.model.settings.get("held_out") or 0.0):
        raise SettingsError(
            f"--valid {valid[0]}: the fit held out {100 * held_out:g}% of its rows. Give at most "
            "that, or shards that were held out."
        )
    shards = shards_of(facts.manifest, directory)
    check_as_read(shards, str(directory))
    measured = _measure(facts.model, shards, executor, ranked=True, share=(0.0, size))
    return replace(facts, validation=measured)


def _read_report(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise DataError(
            f"{path}: not there. Give a model that streamtron fit wrote with its run beside it; "
            "one of an earlier version has no report, and fit --resume writes it."
        )
    try:
        with reading_from(path):
            return dict(parse_json(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not the report of a run ({error}). Fit again.") from error


def _measure(
    model: LinearModel, shards: Sequence[ShardFile], executor: Executor, *, ranked: bool,
    share: tuple[float, float] = ALL,
) -> Measured:  # fmt: skip
    """Read labelled rows once; ``ranked`` : whether decisions are sorted."""
    no_margin = model.kind in ("multilabel", "regression")
    margins = np.zeros(len(EDGES) - 1, dtype=np.int64)
    evaluator = Evaluator(model, ranking=ranked or model.regression)
    for rows in score_shards([model], shards, executor, share=share):
        evaluator.add(rows)
        if no_margin:
            continue
        [decisions] = rows.decisions
        two = rows.truth.shape[1] == 1
        counts = (rows.weights > 0) & ~rows.strange & (two or rows.truth.any(axis=1))
        truth, decisions = rows.truth[counts], decisions[counts]
        codes = truth[:, 0].astype(np.intp) if two else truth.argmax(axis=1)
        row_margins = margins_by_code(decisions, codes)
        margins += np.histogram(np.clip(row_margins, EDGES[0], EDGES[-1]), EDGES)[0]
    evaluation = evaluator.evaluation()
    positive = model.classes[1:] if model.kind == "two classes" else model.classes
    problems = evaluation.to_dict().get("classes", [evaluation.to_dict()])
    curves = {
        label_text(label): evaluator.scores.curve(k=k)
        for k, (label, problem) in enumerate(zip(positive, problems, strict=False))
        if problem["roc_auc"] is not None
    }
    return Measured(evaluation, None if no_margin else margins, curves, evaluator.residuals)
