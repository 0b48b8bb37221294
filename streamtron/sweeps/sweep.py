"""Sweep: fit many settings on the same shards and find which does best on other rows.

All candidates learn from the same readings and are measured on one reading of the validation
shards. Which candidates go on and which is best is decided when all are measured, so it does not
depend on which was faster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.core.files import scratch_directory
from streamtron.core.text import label_text
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Evaluation
from streamtron.runs.directory import refuse_existing, run_directory
from streamtron.runs.evaluate import evaluate_many
from streamtron.runs.fit import fit_many, run
from streamtron.runs.inputs import Paths, as_paths, cache_directory
from streamtron.runs.learners import is_one_vs_rest
from streamtron.runs.outputs import check_outputs
from streamtron.runs.results import Outcome, write_outcome
from streamtron.sweeps.folds import Fold, folds_of
from streamtron.sweeps.grid import Range, candidates_of, values_of
from streamtron.sweeps.halving import Schedule, keep_best_outcome, schedule_of
from streamtron.sweeps.trial import (
    Trial,
    certificate_of,
    check_measured,
    check_metric,
    metrics_of,
    ranked,
)

HELD_ROWS = 1 << 17
"""Validation rows whose decisions a candidate keeps in memory, 2 MB, before they go to disk; the
last digits of ROC AUC depend on it."""

Given = str | float | Iterable[float] | Range

KeepOutcomes = Callable[[Sequence[Trial]], list[Trial]]
"""Function that removes the outcomes that are not needed from trials that were fitted together."""

Trainer = Callable[[Sequence[Fold], Sequence[Settings], str, KeepOutcomes], list[list[Trial]]]
"""Function that fits and measures every candidate on every fold and returns one list of trials a
fold. Its third argument is the directory of the flat copy of the shards; it may call the last one
on any trials."""


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """Result of a sweep.

    Parameters
    ----------
    trials : one a candidate, in their order.
    best : of those that were not dropped the trial with the highest metric, of equals that with
        the smallest C, then the first.
    metric : the name of that metric.
    outcome : of the best candidate's fit on all shards, equal to that of ``run`` with its
        settings; None for a sweep over folds without a model.
    """

    trials: tuple[Trial, ...]
    best: Trial
    metric: str
    outcome: Outcome | None

    @property
    def exit_code(self) -> int:
        """0 if the best is certified or converged, else 4."""
        return (self.outcome or self.best).exit_code

    @property
    def report(self) -> dict[str, Any] | None:
        """The report of the best candidate's fit; None without an outcome."""
        return None if self.outcome is None else self.outcome.report

    def rows(self) -> list[dict[str, Any]]:
        """Return the table: a row a candidate, columns as in ``sweeps.trial.COLUMNS``."""
        return [trial.row(self.best) for trial in self.trials]


def sweep(
    shards: Paths,
    *,
    valid: Paths | None = None,
    C: Given | None = None,
    delta: Given | None = None,
    rho: Given | None = None,
    random: int | None = None,
    folds: int | None = None,
    halving: bool = False,
    two_stage: bool = False,
    metric: str = "accuracy",
    model: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    machine: Machine | None = None,
    listen: Listener = ignore,
    trainer: Trainer | None = None,
) -> Sweep:
    """Fit all combinations of C (or delta) and rho, and find which does best on other rows.

    Parameters
    ----------
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    valid : shards to measure on; without them, folds of ``shards``.
    C, delta, rho : a number, numbers, or text as in ``"0.1,1"``; C or delta also a range to draw
        from, ``"0.01..100"``.
    random : number of candidates to draw; None = all combinations.
    folds : number of cross-validation folds of whole shards; None = 5, or the number of shards.
    halving : successive halving, from a loose tolerance to ``tol``.
    two_stage : fit all candidates through the first stage of ``settings.stage``, and through the
        next those not certified yet whose optimum may still be the most accurate.
    metric : ``accuracy``, ``precision``, ``recall``, ``f1``, ``roc_auc``, ``average_precision``; of
        many classes ``accuracy``, the share of rows all of whose labels are right, or one of the
        others as ``micro_…`` or ``macro_…``, the last two only as ``macro_…``.
    model : file for the best model, as ``fit`` writes it; with folds it is fitted on all shards.
    settings : what all candidates share.
    machine, listen : as in ``fit``.
    trainer : fits and measures, ``distributed_trainer(…)`` for example; None = this process.

    Raises
    ------
    SettingsError, DataError, MachineError

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     shard = pathlib.Path(directory, "part-0.svm")
    ...     _ = shard.write_text("1 1:1\\n-1 1:-1\\n1 1:2\\n-1 2:1\\n")
    ...     result = sweep(shard, valid=shard, C=[0.1, 1], rho=0)
    >>> [(trial.settings.C, trial.metrics["accuracy"]) for trial in result.trials]
    [(0.1, 1.0), (1.0, 1.0)]
    """
    given = {"C": C, "delta": delta, "rho": rho}
    values = {name: values_of(name, one) for name, one in given.items() if one is not None}
    return run_sweep(
        shards, candidates_of(settings or Settings(), values, random), valid=valid, folds=folds,
        halving=halving, two_stage=two_stage, metric=metric, model=model,
        machine=machine or Machine(), listen=listen, trainer=trainer,
    )  # fmt: skip


def run_sweep(
    shards: Paths,
    candidates: Sequence[Settings],
    *,
    valid: Paths | None = None,
    folds: int | None = None,
    halving: bool = False,
    two_stage: bool = False,
    metric: str = "accuracy",
    model: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    witness: str | os.PathLike[str] | None = None,
    machine: Machine,
    overwrite: bool = False,
    listen: Listener = ignore,
    trainer: Trainer | None = None,
) -> Sweep:
    """Sweep over candidates that are settings, and write the best one's files.

    Parameters as in ``sweep``; ``report`` and ``witness`` are the best one's, as in ``run``.
    """
    if not candidates:
        raise SettingsError("no candidates: give at least one.")
    check_metric(metric, candidates[0])
    schedule = schedule_of(candidates, metric, halving=halving, two_stage=two_stage)
    kept = None if model is None else machine.run_dir or run_directory(model)
    vocabularies = {one.vocabulary for one in candidates}
    check_outputs(
        {"model": model, "report": report, "witness": witness},
        [*as_paths(shards), *as_paths(valid or ()), *filter(None, vocabularies)],
        directories={"run directory": kept},
        cache=machine.cache_dir,
    )
    if trainer is None:
        trainer = partial(_train_here, machine=machine, listen=listen)
    parts = folds_of(shards, valid, folds, candidates[0])
    if kept is not None and not overwrite:
        refuse_existing(kept)
    with cache_directory(kept, machine) as cache:
        trials = _all_iterations(parts, candidates, schedule, metric, trainer, cache)
    best = ranked((trial for trial in trials if trial.dropped is None), metric)[0]
    outcome, best = best.outcome, replace(best, outcome=None)
    trials = [replace(trial, outcome=None) for trial in trials]
    if outcome is not None:
        write_outcome(outcome, model=model, run=kept, report=report, witness=witness)
    elif model or report or witness:
        outcome = run(
            shards, best.settings, model=model, report=report, witness=witness, machine=machine,
            overwrite=True, listen=listen,
        )  # fmt: skip
    return Sweep(tuple(trials), best, metric, outcome)


# --- trials --------------------------------------------------------------------------------------


def _all_iterations(
    parts: Sequence[Fold],
    candidates: Sequence[Settings],
    schedule: Schedule,
    metric: str,
    trainer: Trainer,
    cache: str,
) -> list[Trial]:
    """Return the last trial of every candidate; only those that can be the best keep outcomes."""
    trials: dict[int, Trial] = {}
    running, iteration = list(range(len(candidates))), 0
    while running:
        own = [
            schedule.settings(iteration, candidates[number], trials.get(number))
            for number in running
        ]
        keep = partial(keep_best_outcome, schedule=schedule, iteration=iteration, metric=metric)
        by_fold = zip(*trainer(parts, own, cache, keep), strict=True)
        found = [_mean(one, trials_of) for one, trials_of in zip(own, by_fold, strict=True)]
        for number, trial in zip(running, found, strict=True):
            trial = replace(trial, candidate=number, iteration=iteration)
            before = trials.get(number)
            trials[number] = trial if before is None else _with_costs_of([before, trial], trial)
        check_measured(found, metric)
        left = [trial for _, trial in sorted(trials.items()) if trial.dropped is None]
        running, dropped = schedule.after(iteration, left)
        for number in (*running, *dropped):
            trials[number] = replace(trials[number], outcome=None, dropped=dropped.get(number))
        iteration += 1
    return [trials[number] for number in range(len(candidates))]


def _train_here(
    folds: Sequence[Fold],
    candidates: Sequence[Settings],
    cache_dir: str,
    keep: KeepOutcomes,
    **how: Any,
) -> list[list[Trial]]:
    return [keep(fit_and_measure(fold, candidates, cache_dir=cache_dir, **how)) for fold in folds]


def fit_and_measure(
    fold: Fold,
    candidates: Sequence[Settings],
    *,
    machine: Machine,
    listen: Listener = ignore,
    cache_dir: str,
    run_dir: str | None = None,
    worker: str = "local",
) -> list[Trial]:
    """Fit candidates on the same readings of a fold, and measure them on one reading of the rest.

    Parameters
    ----------
    candidates, run_dir : as in ``run_many``.
    worker : name for the table.

    Returns
    -------
    list of Trial, one a candidate, with its outcome if the fold has all shards. A trial does not
    depend on the other candidates, but for ``seconds``, ``started`` and ``finished``.
    """
    if fold.name is None:
        return _measured(fold, candidates, machine, listen, cache_dir, run_dir, worker)
    # columns as they are numbered: column 0 may occur in the fold's own shards alone
    numbered = [one.but(index_base=0) if one.index_base == "auto" else one for one in candidates]
    try:
        os.makedirs(cache_dir, exist_ok=True)
        # blocks end elsewhere than in all shards, so a fold needs a flat copy of its own
        with scratch_directory("fold-", cache_dir) as own:
            trials = _measured(fold, numbered, machine, listen, own, run_dir, worker)
    except (DataError, SettingsError) as error:
        raise type(error)(f"{fold.name}: {error}") from error
    return [replace(trial, outcome=None) for trial in trials]


def _measured(
    fold: Fold, candidates: Sequence[Settings], machine: Machine, listen: Listener, cache: str,
    run_dir: str | None, worker: str,
) -> list[Trial]:  # fmt: skip
    started = _now()
    outcomes = fit_many(
        fold.shards, candidates, machine=machine, listen=listen, cache_dir=cache, run_dir=run_dir
    )
    models = [outcome.model for outcome in outcomes]
    _check_classes(models[0], candidates[0])
    measured = evaluate_many(models, fold.valid, limit_rows=HELD_ROWS, at_optimum=True)
    times = {"worker": worker, "started": started, "finished": _now()}
    return [
        _trial(number, settings, outcome, evaluation, **times)
        for number, (settings, outcome, evaluation) in enumerate(
            zip(candidates, outcomes, measured, strict=True)
        )
    ]


def _check_classes(model: LinearModel, settings: Settings) -> None:
    """Refuse ``multiclass`` for two classes, which are one problem with other metrics."""
    if is_one_vs_rest(settings) and model.kind == "two classes":
        first, second = map(label_text, model.classes)
        raise DataError(
            f"the rows to fit on have two labels, {first} and {second}, which are one problem and "
            "not one a class. Leave --multiclass out, or add shards that hold others."
        )


def _trial(
    number: int, settings: Settings, outcome: Outcome, evaluation: Evaluation, **times: str
) -> Trial:
    report, metrics = outcome.report, evaluation.to_dict()
    return Trial(
        candidate=number, settings=settings,
        metrics={name: metrics[name] for name in metrics_of(settings)},
        certificate=certificate_of(report), readings=report["readings"],
        full_epochs=report["full_epochs"], stop_reason=outcome.stop_reason, iteration=0,
        radius=report.get("radius"), at_optimum=evaluation.accuracy_at_optimum or (None, None),
        seconds=report["seconds"], outcome=outcome, **times,
    )  # fmt: skip


def _mean(settings: Settings, trials: Sequence[Trial]) -> Trial:
    """Combine a candidate's trials on all folds: mean metrics, and the widest gap."""
    worst = max(trials, key=lambda trial: (trial.exit_code, trial.gap))
    metrics = {name: _average([trial.metrics[name] for trial in trials]) for name in worst.metrics}
    least, most = (_average([trial.at_optimum[end] for trial in trials]) for end in (0, 1))
    mean = replace(worst, settings=settings, metrics=metrics, at_optimum=(least, most))
    return _with_costs_of(trials, mean)


def _average(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _with_costs_of(trials: Sequence[Trial], trial: Trial) -> Trial:
    """Return a trial with the total costs of others."""
    return replace(
        trial,
        readings=sum(one.readings for one in trials),
        full_epochs=sum(one.full_epochs for one in trials),
        seconds=sum(one.seconds for one in trials),
        started=min(one.started for one in trials),
        finished=max(one.finished for one in trials),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
