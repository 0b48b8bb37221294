"""Sweep: fit many settings on the same shards and find which does best on other rows.

Which candidates go on and which is best is decided when all are measured, so the results depend
neither on the tasks nor on which was faster.
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, TrialDone, WorkDone, ignore
from streamtron.core.executor import Executor, serial
from streamtron.core.files import scratch_directory
from streamtron.core.text import label_text, metric_words, share_of_rows
from streamtron.data import SCRATCH, remove_abandoned
from streamtron.data.profile import with_guesses
from streamtron.runs.evaluate import evaluate_many
from streamtron.runs.fit import fit_many, refuse_existing, run
from streamtron.runs.inputs import (
    Paths,
    as_paths,
    cache_directory,
    check_outputs_of_fit,
    holding_out,
    settings_from,
)
from streamtron.runs.report import Outcome
from streamtron.sweeps.folds import Fold, folds_of, with_classes
from streamtron.sweeps.grid import NAMES, candidates_of, describe_candidate, first_loss
from streamtron.sweeps.trial import (
    Costs,
    Trial,
    certificate_of,
    check_measured,
    check_metric,
    mean_trial,
    metrics_of,
    ranked,
    table_of,
)
from streamtron.sweeps.two_stage import number_of_stages, pruned, stage_settings

TOLERANCE = 1e-4
"""The largest ``tol`` of candidates: at a looser one their ranks depend on where they stop."""

Trials = dict[int, list[Trial]]
"""A candidate's number → its trials on all folds."""


class Task(NamedTuple):
    """Candidates (number → settings) to fit on the same readings of a fold, in one process.

    ``cache_dir`` has the flat copy of the shards; a fold makes its own in it. ``run_dir`` is for
    checkpoints, if the process that fits shares this disk.
    """

    fold: Fold
    candidates: Mapping[int, Settings]
    cache_dir: str
    run_dir: str

    @property
    def name(self) -> str:
        """Its name as a task, such as ``sweep fold 1 of 2: C 1, rho 1; C 2, rho 1``."""
        where = "" if self.fold.name is None else f" {self.fold.name}"
        return f"sweep{where}: {'; '.join(map(describe_candidate, self.candidates.values()))}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sweep:
    """Result of a sweep.

    Parameters
    ----------
    trials : one a candidate, in their order.
    best : of those not dropped the one with the best ``metric``; of equals the smallest C.
    outcome : of the best candidate's fit on all rows, equal to that of ``run`` with its settings.
        Without files to write it is that of its trial; None for a sweep over folds.
    """

    trials: tuple[Trial, ...]
    best: Trial
    metric: str
    outcome: Outcome | None

    def __repr__(self) -> str:
        best = f"{describe_candidate(self.best.settings)} with {metric_words(self.metric)}"
        return f"Sweep(best of {len(self.trials):,}: {best} {self.best.metrics[self.metric]:.4g})"

    @property
    def exit_code(self) -> int:
        """0 if the best is certified or converged, else 4."""
        return (self.outcome or self.best).exit_code

    @property
    def report(self) -> dict[str, Any] | None:
        """The report of the best candidate's fit; None without an outcome."""
        return None if self.outcome is None else self.outcome.report

    def rows(self) -> list[dict[str, Any]]:
        """Return the table: one row per candidate, columns as in ``sweeps.trial.COLUMNS``."""
        return table_of(self.trials, self.best)


def sweep(
    shards: Paths,
    *,
    valid: Paths | None = None,
    folds: int | None = None,
    random: int | None = None,
    two_stage: bool = False,
    metric: str | None = None,
    refit: bool = True,
    model: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    witness: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    machine: Machine | None = None,
    overwrite: bool = False,
    executor: Executor = serial,
    listen: Listener = ignore,
    **names: Any,
) -> Sweep:
    """Fit all combinations of loss, C (or delta), rho and l1_ratio; find which does best on other
    rows.

    Parameters
    ----------
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    valid : shards to measure on, or the share of the rows that is held out, as ``"20%"``; without
        them, ``folds`` of whole shards (None = up to 5).
    random : number of candidates to draw; None = all combinations.
    two_stage : fit all candidates through the first stage, and only the better ones further.
    metric : ``"accuracy"``, ``"f1"``, ``"roc_auc"``, …: the best has the largest; None =
        accuracy, for numbers ``"r2"``, of ``poisson`` ``"d2"``. The best has the smallest
        ``"rmse"``, ``"mae"``, ``"deviance"``, ``"log_loss"`` or ``"brier_score"``.
    refit : False = with a share of the rows held out, the files are of the fit that was measured,
        on the other rows.
    model, report, witness : files of the best candidate, which is fitted on all rows.
    settings : what all candidates share, at once or by name (``tol=1e-5, multiclass=True, …``).
        ``tol`` is at most 10⁻⁴ in a sweep: a rank is not to depend on where candidates stop.
    machine, overwrite, listen : as in ``fit``.
    executor : where the candidates of a fold are fitted: here, or by ``cluster.sweep`` on workers,
        which report finished trials alone.
    **names : settings, of which five take several values. ``loss`` : a name, names, or text as in
        ``"squared_hinge,log_loss"``. ``C``, ``delta``, ``rho``, ``l1_ratio`` : numbers, or text as
        in ``"0.1,1"``; C or delta also a range to draw from, ``"0.01..100"``.

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
    machine = machine or Machine()
    lists = {name: names.pop(name) for name in NAMES if name in names}
    share = None if valid is None else share_of_rows(as_paths(valid))
    settings = _shared(
        settings, names, first_loss(lists.get("loss")), as_paths(shards), share, machine.threads
    )
    if not refit and share is None:
        raise SettingsError(
            "no-refit is for a share of the rows that is held out, as in --valid 20%: leave it out."
        )
    candidates = candidates_of(settings, lists, random)
    metric = metric or metrics_of(candidates[0])[0]
    check_metric(metric, candidates)
    stages = number_of_stages(settings, candidates, metric) if two_stage else None
    paths = _from_the_root(shards)
    held_out = None if valid is None else _from_the_root(shards if share else valid)
    places: Any = {"model": model, "report": report, "witness": witness}
    inputs = [*paths, *(held_out or ()), *settings.files]
    files, run_dir = check_outputs_of_fit(places, inputs, machine)
    if run_dir is not None and not overwrite:
        refuse_existing(run_dir)
    splits = folds_of(paths, held_out, folds, candidates[0], share)
    measured_on_a_part = valid is None or share is not None
    refits = int(files["model"] is not None or (measured_on_a_part and any(files.values())))
    function: Any = partial(fit_task, listen=listen) if executor is serial else fit_task
    with cache_directory(run_dir, machine) as cache, ExitStack() as stack:
        os.makedirs(cache := os.path.abspath(cache), exist_ok=True)
        stack.callback(remove_abandoned, cache)  # unfinished files that killed workers left
        scratch = stack.enter_context(scratch_directory(SCRATCH, cache))

        def fit(running: Mapping[int, Settings], stage: int, later: int | None) -> Trials:
            count = getattr(executor, "tasks", 1)
            todo = _tasks(splits, running, count=count, cache=cache, scratch=scratch)
            trials = len(running) * len(splits)
            total = 0 if later is None else trials + later
            return _by_candidate(todo, executor(function, todo, machine, metric), listen, total)

        if stages is None:
            numbered = dict(enumerate(candidates))
            of_folds = fit(numbered, 0, refits)
            trials = [mean_trial(numbered[number], of_folds[number]) for number in numbered]
            check_measured(trials, metric)
        else:
            trials = _through_stages(candidates, stages, metric, refits, fit)
    best = ranked((trial for trial in trials if trial.dropped is None), metric)[0]
    chosen = best.settings.but(held_out=0.0) if share and refit else best.settings
    fit_best = partial(run, paths, chosen, machine=machine, overwrite=True, listen=listen)
    outcome = _write_best(best, trials, metric, files, fit_best if refits else None)
    light = tuple(replace(trial, outcome=None) for trial in trials)
    return Sweep(light, light[best.candidate], metric, outcome)


def _shared(
    settings: Settings | None,
    names: Mapping[str, Any],
    first: Mapping[str, Any],
    shards: list[str],
    share: float | None,
    threads: int | None,
) -> Settings:
    """Return what all candidates share, with the defaults of the ``first`` loss, ``TOLERANCE``, and
    a share of the rows held out if one is to be measured on."""
    if settings and settings.regression != settings.but(**first).regression:
        raise SettingsError(
            f"the settings have the loss {settings.loss}, whose default of the intercept is not "
            f"that of {first['loss']}: give settings with a loss of the same kind."
        )
    settings = settings_from(settings, names if settings else {**first, **names})
    settings = settings.but(tol=min(settings.tol, TOLERANCE))
    if share is not None:
        settings = holding_out(settings, share)
    return with_classes(with_guesses(settings, shards, threads), shards)


def _from_the_root(shards: Paths) -> list[str]:
    """Return absolute paths: a listener may change the directory, and workers have others."""
    return [path if "://" in path else os.path.abspath(path) for path in as_paths(shards)]


def _write_best(
    best: Trial,
    trials: Sequence[Trial],
    metric: str,
    files: dict[str, Any],
    fit: Callable[..., Outcome] | None,
) -> Outcome | None:
    """Write the files of the best candidate, with the table in its report: ``fit`` fits it on all
    shards; None = its trial did, or it has no files."""
    table = {"metric": metric, "candidates": table_of(trials, best)}
    if fit is not None:
        return fit(**files, facts={"sweep": table})
    if best.outcome is not None:
        best.outcome.report["sweep"] = table
        best.outcome.write(files["report"], files["witness"])
    return best.outcome


def _through_stages(
    candidates: Sequence[Settings],
    stages: int,
    metric: str,
    refit: int,
    fit: Callable[[Mapping[int, Settings], int, int | None], Trials],
) -> list[Trial]:
    """Return each candidate's last trial, with the costs of all its stages; see ``two_stage``.

    ``fit`` : function of candidates (number → settings), the stage, and the number of fits after
    it, that returns the trials of all folds by number.
    """
    trials: dict[int, Trial] = {}
    running: list[int] = [*range(len(candidates))]
    for stage in range(stages):
        settings = {
            number: stage_settings(stage, candidates[number], trials.get(number))
            for number in running
        }
        of_folds = fit(settings, stage, None if stage < stages - 1 else refit)
        for number in running:
            trial = mean_trial(settings[number], of_folds[number])
            costs = [trials[number].costs] if number in trials else []
            total = Costs.total([*costs, trial.costs])
            trials[number] = replace(trial, iteration=stage, costs=total)
        check_measured([trials[number] for number in running], metric)
        if stage < stages - 1:
            trials = {trial.candidate: trial for trial in pruned([*trials.values()])}
            running = [n for n in running if trials[n].dropped is None and not trials[n].met]
            for number, trial in trials.items():
                if number in running or trial.dropped:
                    trials[number] = replace(trial, outcome=None)
        if not running:
            break
    return [trials[number] for number in range(len(candidates))]


def _by_candidate(
    tasks: Sequence[Task], trials: Iterable[Trial], listen: Listener, total: int
) -> Trials:
    """Return the trials of every candidate, in the order of the folds; ``total`` : fits with those
    that follow, 0 where their number is not known."""
    folds = [task.fold.name or "" for task in tasks for _ in task.candidates]
    by_candidate: dict[int, list[Trial]] = defaultdict(list)
    listen(WorkDone("fits", total=total))
    for done, (fold, trial) in enumerate(zip(folds, trials, strict=True), 1):
        listen(
            TrialDone(
                describe_candidate(trial.settings),
                fold,
                trial.metrics,
                trial.gap,
                trial.stop_reason,
                trial.costs.worker,
            )
        )
        listen(WorkDone("fits", None, done, total))
        by_candidate[trial.candidate].append(trial)
    return by_candidate


def _tasks(
    folds: Sequence[Fold],
    candidates: Mapping[int, Settings],
    *,
    count: int,
    cache: str,
    scratch: str,
) -> list[Task]:
    """Distribute the candidates of every fold over its share of ``count`` tasks.

    Neighbours, which cost about the same, go to different tasks.

    >>> both = [Fold([], [], "1"), Fold([], [], "2")]
    >>> tasks = _tasks(both, dict.fromkeys(range(5), Settings()), count=4, cache="", scratch="")
    >>> [(task.fold.name, list(task.candidates)) for task in tasks]
    [('1', [0, 2, 4]), ('1', [1, 3]), ('2', [0, 2, 4]), ('2', [1, 3])]
    """
    numbers = list(candidates)
    groups = min(len(numbers), -(-count // len(folds)))
    return [
        Task(
            fold,
            {number: candidates[number] for number in numbers[first::groups]},
            cache if fold.name is None else scratch,
            os.path.join(scratch, f"task-{secrets.token_hex(4)}"),
        )
        for fold in folds
        for first in range(groups)
    ]


def fit_task(
    task: Task,
    machine: Machine,
    metric: str,
    *,
    listen: Listener = ignore,
    run_dir: str | None = None,
    worker: str = "local",
) -> list[Trial]:
    """Fit candidates on the same readings of a fold, and measure them on one reading of its
    validation shards.

    Trials are in the order of the candidates, and do not depend on the others but for their costs.
    The best by the metric has its outcome: 4 bytes a row, which need not travel
    from a worker for the others. ``run_dir`` is as in ``fit_many``.
    """
    measure = partial(_measured, machine=machine, listen=listen, run_dir=run_dir, worker=worker)
    if task.fold.name is None:
        trials = measure(task)
        best = ranked(trials, metric)[0]
        return [trial if trial is best else replace(trial, outcome=None) for trial in trials]
    # columns as they are numbered: column 0 may occur in the fold's own shards alone
    numbered = {
        number: candidate.but(index_base=0) if candidate.index_base == "auto" else candidate
        for number, candidate in task.candidates.items()
    }
    os.makedirs(task.cache_dir, exist_ok=True)
    try:
        # blocks end elsewhere than in all shards, so a fold needs a flat copy of its own
        with scratch_directory("fold-", task.cache_dir) as cache:
            trials = measure(task._replace(candidates=numbered, cache_dir=cache))
    except (DataError, SettingsError) as error:
        raise type(error)(f"{task.fold.name}: {error}") from error
    return [replace(trial, outcome=None) for trial in trials]


def _measured(
    task: Task, machine: Machine, listen: Listener, run_dir: str | None, worker: str
) -> list[Trial]:
    candidates = list(task.candidates.values())
    outcomes = fit_many(
        task.fold.shards,
        candidates,
        machine=machine,
        listen=listen,
        cache_dir=task.cache_dir,
        run_dir=run_dir,
    )
    models = [outcome.model for outcome in outcomes]
    if candidates[0].many_labels and models[0].kind == "two classes":
        first, second = map(label_text, models[0].classes)
        raise DataError(
            f"the rows to fit on have two labels, {first} and {second}, which are one problem and "
            "not one a class. Leave --multiclass out, or add shards that hold others."
        )
    measured = evaluate_many(models, task.fold.valid, share=task.fold.share)
    trials = []
    for (number, settings), outcome, evaluation in zip(
        task.candidates.items(), outcomes, measured, strict=True
    ):
        report, metrics = outcome.report, evaluation.to_dict()
        costs = Costs(report["readings"], report["full_epochs"], report["seconds"], worker)
        trials.append(
            Trial(
                candidate=number,
                settings=settings,
                metrics={name: metrics[name] for name in metrics_of(settings)},
                certificate=certificate_of(report),
                costs=costs,
                stop_reason=outcome.stop_reason,
                radius=report.get("radius"),
                at_optimum=evaluation.accuracy_at_optimum or (None, None),
                outcome=outcome,
            )
        )
    return trials
