"""Many settings on the same shards: which of them does best on rows that it has not seen.

All candidates are learners of one scan, and are measured on one reading of the validation shards.
What is decided, which candidates go on and which is best, is decided when all are measured, never
by which of them was faster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.core.scratch import scratch_directory
from streamtron.core.text import label_text
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Evaluation
from streamtron.runs.directory import refuse_existing
from streamtron.runs.evaluate import Paths, evaluate_many
from streamtron.runs.fit import (
    Outcome,
    as_paths,
    cache_directory,
    run,
    run_directory,
    run_many,
    write_outcome,
)
from streamtron.runs.learners import several
from streamtron.runs.outputs import check_outputs
from streamtron.sweeps.folds import Split, splits_of
from streamtron.sweeps.grid import Range, candidates_of, values_of
from streamtron.sweeps.halving import Rungs, rungs_of, without_idle_outcomes
from streamtron.sweeps.trial import (
    Trial,
    certificate_of,
    check_measured,
    check_metric,
    metrics_of,
    ranked,
)

HELD_ROWS = 1 << 17
"""Validation rows whose decisions a candidate holds in memory, 2 MB, before they go to disk; the
same in any company, for the last digits of ROC AUC depend on it."""

Given = str | float | Iterable[float] | Range

KeepOutcomes = Callable[[Sequence[Trial]], list[Trial]]
"""Takes from trials of candidates that were fitted together the outcomes nobody will ask for."""

Trainer = Callable[[Sequence[Split], Sequence[Settings], str, KeepOutcomes], list[list[Trial]]]
"""Who fits and measures: every candidate on every split, one list of trials a split. The third
argument is where the flat copy of the shards is kept, the last one may be used or not."""


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """What a sweep came to.

    Parameters
    ----------
    trials : one a candidate, in their order.
    best : the trial with the highest metric, of equals the one with the smallest C, then the
        first; among those that were not dropped.
    metric : by which it is the best.
    outcome : of the best candidate's fit on all shards, equal to that of ``run`` with its
        settings; None where folds have decided and no model was asked for.
    """

    trials: tuple[Trial, ...]
    best: Trial
    metric: str
    outcome: Outcome | None

    @property
    def exit_code(self) -> int:
        """0 if the best is certified or converged, else 4, whatever became of the others."""
        return (self.outcome or self.best).exit_code

    @property
    def report(self) -> dict[str, Any] | None:
        """What the report file of the best one's fit holds; None without an outcome."""
        return None if self.outcome is None else self.outcome.report

    def rows(self) -> list[dict[str, Any]]:
        """The table: a row a candidate, columns as ``sweep.trial.COLUMNS`` has them."""
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
    attempts: Trainer | None = None,
) -> Sweep:
    """Fit all combinations of C (or delta) and rho, and find which does best on other rows.

    Parameters
    ----------
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    valid : shards to measure on; without them, folds of ``shards``.
    C, delta, rho : a number, numbers, text as in ``"0.1,1"``; C or delta also a range to draw
        from, ``"0.01..100"``.
    random : draw so many candidates; None = all combinations.
    folds : fit so many times, each time without every so-manieth shard, and measure on these;
        None = 5, or one a shard where there are fewer.
    halving : first all candidates to a loose tolerance, then the better half to a tighter one,
        and so on to ``tol``.
    two_stage : first all candidates through the first stage of ``settings.stage``, then through the
        next those not certified yet whose optimum may still be as accurate as any other's.
    metric : ``accuracy``, ``precision``, ``recall``, ``f1``, ``roc_auc``, ``average_precision``; of
        many classes (``multiclass``, ``multilabel``) ``accuracy``, the share of rows all whose
        labels are right, or one of the others as ``micro_…`` or ``macro_…``, see
        ``Evaluation``; of ROC AUC and average precision there are macro means alone.
    model : write the best there, as ``fit`` does; with folds it is fitted on all shards.
    settings : what all candidates share.
    machine, listen : as in ``fit``.
    attempts : who fits and measures, ``attempts.on_workers(…)`` say; None = this process.

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
    >>> result.best.settings.C
    0.1
    """
    given = {"C": C, "delta": delta, "rho": rho}
    values = {name: values_of(name, one) for name, one in given.items() if one is not None}
    return run_sweep(
        shards, candidates_of(settings or Settings(), values, random), valid=valid, folds=folds,
        halving=halving, two_stage=two_stage, metric=metric, model=model,
        machine=machine or Machine(), listen=listen, attempts=attempts,
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
    attempts: Trainer | None = None,
) -> Sweep:
    """A sweep over candidates that are settings already, and all that it leaves behind.

    Parameters as in ``sweep``; ``report`` and ``witness`` are the best one's, as in ``run``.
    ``attempts`` calls ``attempt`` for every split, for all candidates at once or in groups: the
    trials are the same; None = here, one split after the other.
    """
    _check_candidates(candidates)
    check_metric(metric, candidates[0])
    rungs = rungs_of(candidates, metric, halving=halving, two_stage=two_stage)
    kept = None if model is None else machine.run_dir or run_directory(model)
    check_outputs(
        {"model": model, "report": report, "witness": witness},
        [
            *as_paths(shards),
            *as_paths(valid or ()),
            *filter(None, {one.vocabulary for one in candidates}),
        ],
        directories={"run directory": kept},
        cache=machine.cache_dir,
    )
    splits = splits_of(shards, valid, folds, candidates[0])
    if kept is not None and not overwrite:
        refuse_existing(kept)
    with cache_directory(kept, machine) as cache:
        if attempts is None:
            attempts = partial(_here, machine=machine, listen=listen)
        trials = _all_rungs(splits, candidates, rungs, metric, attempts, cache)
    best = ranked((trial for trial in trials if trial.dropped is None), metric)[0]
    outcome, best = best.outcome, replace(best, outcome=None)
    trials = [replace(trial, outcome=None) for trial in trials]  # the others' models are let go
    if outcome is not None:
        write_outcome(outcome, model=model, run=kept, report=report, witness=witness)
    elif model or report or witness:
        outcome = run(
            shards, best.settings, model=model, report=report, witness=witness, machine=machine,
            overwrite=True, listen=listen,
        )  # fmt: skip
    return Sweep(tuple(trials), best, metric, outcome)


def _check_candidates(candidates: Sequence[Settings]) -> None:
    if not candidates:
        raise SettingsError("no candidates: give at least one.")


# --- trials --------------------------------------------------------------------------------------


def _all_rungs(
    splits: Sequence[Split],
    candidates: Sequence[Settings],
    rungs: Rungs,
    metric: str,
    attempts: Trainer,
    cache: str,
) -> list[Trial]:
    """A trial for every candidate; only those that may be the best keep their outcomes."""
    trials: dict[int, Trial] = {}
    running, rung = list(range(len(candidates))), 0
    while running:
        own = [rungs.settings(rung, candidates[number], trials.get(number)) for number in running]
        lean = partial(without_idle_outcomes, rungs=rungs, rung=rung, metric=metric)
        folds = zip(*attempts(splits, own, cache, lean), strict=True)
        found = [_mean(one, parts) for one, parts in zip(own, folds, strict=True)]
        for number, trial in zip(running, found, strict=True):
            trials[number] = _behind(trials.get(number), trial, number, rung)
        check_measured(found, metric)
        there = [trial for _, trial in sorted(trials.items()) if trial.dropped is None]
        running, dropped = rungs.after(rung, there)
        for number in (*running, *dropped):
            trials[number] = replace(trials[number], outcome=None, dropped=dropped.get(number))
        rung += 1
    return [trials[number] for number in range(len(candidates))]


def _behind(before: Trial | None, trial: Trial, number: int, rung: int) -> Trial:
    """A trial with what its candidate has cost on earlier rungs."""
    trial = replace(trial, candidate=number, rung=rung)
    return trial if before is None else _added([before, trial], trial)


def _here(
    splits: Sequence[Split],
    candidates: Sequence[Settings],
    cache_dir: str,
    lean: KeepOutcomes,
    **how: Any,
) -> list[list[Trial]]:
    return [lean(attempt(split, candidates, cache_dir=cache_dir, **how)) for split in splits]


def attempt(
    split: Split,
    candidates: Sequence[Settings],
    *,
    machine: Machine,
    listen: Listener = ignore,
    cache_dir: str,
    run_dir: str | None = None,
    worker: str = "local",
) -> list[Trial]:
    """Fit candidates on one scan of a split's shards, and measure them on one reading of the rest.

    Parameters
    ----------
    candidates, run_dir : as ``run_many`` takes them.
    worker : who does it, for the table.

    Returns
    -------
    list of Trial, one a candidate in their order, with their outcomes if the split has all shards;
    each but for ``seconds``, ``started`` and ``finished`` the same in any company.
    """
    if split.fold is None:
        return _measured(split, candidates, machine, listen, cache_dir, run_dir, worker)
    # columns as they are numbered: column 0 may occur in the fold's own shards alone
    numbered = [one.but(index_base=0) if one.index_base == "auto" else one for one in candidates]
    try:
        with _fold_cache(cache_dir) as own:
            trials = _measured(split, numbered, machine, listen, own, run_dir, worker)
    except (DataError, SettingsError) as error:
        raise type(error)(f"{split.fold}: {error}") from error
    return [replace(trial, outcome=None) for trial in trials]


@contextmanager
def _fold_cache(cache: str) -> Iterator[str]:
    """A directory for the flat copy of a fold: blocks end elsewhere than in the whole, so nobody
    else can use it."""
    os.makedirs(cache, exist_ok=True)
    with scratch_directory("fold-", cache) as directory:
        yield directory


def _measured(
    split: Split, candidates: Sequence[Settings], machine: Machine, listen: Listener, cache: str,
    run_dir: str | None, worker: str,
) -> list[Trial]:  # fmt: skip
    started = _now()
    outcomes = run_many(
        split.shards, candidates, machine=machine, listen=listen, cache_dir=cache, run_dir=run_dir
    )
    models = [outcome.model for outcome in outcomes]
    _check_classes(models[0], candidates[0])
    measured = evaluate_many(models, split.valid, limit_rows=HELD_ROWS, at_optimum=True)
    finished = _now()
    return [
        _trial(number, settings, outcome, evaluation, worker, started, finished)
        for number, (settings, outcome, evaluation) in enumerate(
            zip(candidates, outcomes, measured, strict=True)
        )
    ]


def _check_classes(model: LinearModel, settings: Settings) -> None:
    """Refuse many classes of which there are but two: they are one problem, with metrics of its
    own."""
    if several(settings) and model.kind == "two classes":
        first, second = map(label_text, model.classes)
        raise DataError(
            f"the rows to fit on have two labels, {first} and {second}, which are one problem and "
            "not one a class. Leave --multiclass out, or add shards that hold others."
        )


def _trial(
    number: int, settings: Settings, outcome: Outcome, evaluation: Evaluation,
    worker: str,
    started: str, finished: str,
) -> Trial:  # fmt: skip
    report, found = outcome.report, evaluation.to_dict()
    return Trial(
        candidate=number, settings=settings,
        metrics={name: found[name] for name in metrics_of(settings)},
        certificate=certificate_of(report), readings=report["readings"],
        full_epochs=report["full_epochs"], stop_reason=outcome.stop_reason, rung=0,
        radius=report.get("radius"),
        at_optimum=evaluation.accuracy_at_optimum or (None, None),
        seconds=report["seconds"], worker=worker, started=started, finished=finished,
        outcome=outcome,
    )  # fmt: skip


def _mean(settings: Settings, parts: Sequence[Trial]) -> Trial:
    """The trial that a candidate's trials on all folds make; of a single one, itself."""
    worst = max(parts, key=lambda part: (part.exit_code, part.gap))
    metrics = {name: _average([part.metrics[name] for part in parts]) for name in worst.metrics}
    least, most = (_average([part.at_optimum[end] for part in parts]) for end in (0, 1))
    found = replace(worst, settings=settings, metrics=metrics, at_optimum=(least, most))
    return _added(parts, found)


def _average(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _added(parts: Sequence[Trial], trial: Trial) -> Trial:
    """The trial with what all the parts have cost together."""
    return replace(
        trial,
        readings=sum(part.readings for part in parts),
        full_epochs=sum(part.full_epochs for part in parts),
        seconds=sum(part.seconds for part in parts),
        started=min(part.started for part in parts),
        finished=max(part.finished for part in parts),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
