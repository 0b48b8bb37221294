"""Fit a model on shards: from settings to a certified model on disk."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import ArrayLike

from streamtron.core import signals
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, ManyClasses, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.core.files import scratch_directory
from streamtron.core.rows import Label
from streamtron.data import ShardSource, clear_cache, deletions
from streamtron.data.labels import MOST_NUMBERS
from streamtron.data.profile import with_guesses
from streamtron.data.recipes import recipe_digest
from streamtron.model.linear_model import LinearModel
from streamtron.runs.directory import (
    PARTS,
    Checkpoint,
    CheckpointWriter,
    Record,
    Run,
    is_run,
    manifest_of,
    open_run,
    read_record,
    stamps_of,
)
from streamtron.runs.inputs import (
    InMemory,
    Paths,
    as_paths,
    as_shards,
    cache_directory,
    check_outputs_of_fit,
    open_training_shards,
    reading_from_model,
    settings_from,
)
from streamtron.runs.inspect import with_active_set
from streamtron.runs.learners import Training, read_to_end, train_candidates
from streamtron.runs.parts import OpenParts, PartsTraining, plan_new, train_on, with_parts
from streamtron.runs.report import Outcome, build_outcome, write_outcome
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner

if TYPE_CHECKING:
    from streamtron.data.formats.recipe import Recipe

_log = logging.getLogger(__name__)


def fit(
    shards: Paths | InMemory,
    y: ArrayLike | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    machine: Machine | None = None,
    resume: bool = False,
    overwrite: bool = False,
    listen: Listener = ignore,
    open_parts: OpenParts | None = None,
    **names: Any,
) -> LinearModel:
    """Train on shards, or rows in memory, and return the certified model.

    Minimises ½(‖w‖² + w_bias²) + Σ C_k max(0, 1 − l_k(w·x_k + ρ w_bias))² until the relative
    duality gap is proven to be at most ``tol``, or ``max_epochs`` is reached.

    Parameters
    ----------
    shards : files, directories or globs of libsvm text, Parquet or Arrow; or a pandas, polars or
        Dask data frame, a polars LazyFrame, a Hugging Face data set, a DuckDB relation, an Arrow
        table or stream, an iterator of record batches, or a matrix, dense or scipy.sparse.
    y : the labels of a matrix, shape (rows,).
    model : also write the model there, the witness and the cache beside it in ``MODEL.run``; not
        for rows in memory.
    settings : all settings at once, or give them by name (``C=0.5, rho=0, tol=1e-3, …``).
    machine : memory, cache directory: what does not change the model.
    resume, overwrite : continue the run that is at ``model``, or replace it; without either it is
        refused.
    listen : called with every event of ``streamtron.events``, in the thread that trains.
    open_parts : where the parts of the data are trained on, if there are several, as
        ``cluster.parts.parts_on(workers)``; None = in this process, on ``machine.threads`` threads.

    Returns
    -------
    LinearModel; its ``certificate`` bounds its distance from the optimum.

    Raises
    ------
    SettingsError, DataError, MachineError

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     shard = pathlib.Path(directory, "part-0.svm")
    ...     _ = shard.write_text("1 1:1\\n-1 1:-1\\n1 1:2\\n-1 2:1\\n")
    ...     model = fit(shard, C=0.5, rho=0)
    >>> model.certificate["relative_duality_gap"] <= 0.01
    True
    """
    chosen = settings_from(settings, names)
    with as_shards(shards, y, model) as paths:
        return run(
            paths,
            chosen,
            model=model,
            machine=machine,
            resume=resume,
            overwrite=overwrite,
            listen=listen,
            open_parts=open_parts,
        ).model


def run(
    shards: Paths,
    settings: Settings,
    *,
    model: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    witness: str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
    resume: bool = False,
    overwrite: bool = False,
    listen: Listener = ignore,
    open_parts: OpenParts | None = None,
) -> Outcome:
    """Fit, and write model, report and witness where they are named, and beside a model its run
    directory. Where a third class is met, the fit starts over with ``multiclass``.

    Parameters
    ----------
    report : file for the report as JSON.
    witness : file for the counts, with which ``certify`` needs one reading.
    All others are as in ``fit``.

    Returns
    -------
    Outcome; its ``model`` and its ``report``.

    Raises
    ------
    SettingsError, DataError, MachineError
    """
    if resume and (overwrite or model is None):
        clash = "overwrite begins it anew" if overwrite else "no model is named"
        raise SettingsError(f"resume goes on with the run of a model, and {clash}: leave one out.")
    machine = machine or Machine()
    settings = with_guesses(settings, as_paths(shards), machine.threads)
    named = {"model": model, "report": report, "witness": witness}
    inputs = [*as_paths(shards), settings.vocabulary]
    files, directory = check_outputs_of_fit(named, inputs, machine)
    with _left_as_it_was(directory), cache_directory(directory, machine) as cache:
        job = Job(
            as_paths(shards),
            [settings],
            machine,
            listen,
            cache,
            directory,
            files["model"],
            resume,
            overwrite,
            open_parts=open_parts,
        )
        fitting = None
        while True:
            try:
                with opened(job) as fitting:
                    learners, of_parts = fitting.train()
                    outcome = fitting.outcome(learners, fitting.training.settings, of_parts)
                    write_outcome(outcome, run=job.directory, **files)
                return outcome
            except ManyClasses:
                if job.many is not None:
                    raise
                if machine.cache_dir is None:
                    clear_cache(cache)  # of another reading
                spent = (0, 0, 0.0) if fitting is None else fitting.spent
                job = job._replace(resume=False, overwrite=True, many=spent)


@contextmanager
def _left_as_it_was(directory: str | os.PathLike[str] | None) -> Iterator[None]:
    """Remove the directory of a run that was refused before its first checkpoint, if it is new."""
    new = directory is not None and not os.path.lexists(directory)
    try:
        yield
    except (DataError, SettingsError):
        if new and directory is not None and not is_run(directory):
            shutil.rmtree(directory, ignore_errors=True)
        raise


def fit_many(
    shards: Paths,
    candidates: Sequence[Settings],
    *,
    machine: Machine,
    listen: Listener = ignore,
    cache_dir: str,
    run_dir: str | None = None,
) -> list[Outcome]:
    """Fit candidates of a sweep, which read alike, on the same readings. Only the cache and
    checkpoints are written.

    ``cache_dir`` : of the flat copy of the shards. ``run_dir`` : of the checkpoints of these
    candidates; training resumes from the last one. Each outcome equals that of ``run``, except that
    ``bytes_read`` and ``seconds`` of the report are those of all.
    """
    if (parts := candidates[0].parts) is not None:
        raise SettingsError(f"parts is {parts}: only fit trains on parts. Leave it out.")
    job = Job(as_paths(shards), candidates, machine, listen, cache_dir, run_dir, resume=True)
    with opened(job) as fitting:
        groups = train_candidates(fitting.training, fitting.candidates, fitting.state)
        return [
            fitting.outcome(learners, settings, {})
            for learners, settings in zip(groups, fitting.candidates, strict=True)
        ]


class Job(NamedTuple):
    """What is fitted on what. The ``directory`` of its run (None = no checkpoints) and its
    ``model`` (None = the candidates of a sweep, which is never resumed by hand), whether it is
    resumed or replaced; and ``many`` classes, though the settings do not say so: what was spent on
    two of them. ``classes`` : the only ones, None = those of the shards."""

    shards: list[str]
    candidates: Sequence[Settings]
    machine: Machine
    listen: Listener
    cache: str
    directory: str | os.PathLike[str] | None
    model: str | None = None
    resume: bool = False
    overwrite: bool = False
    many: tuple[int, int, float] | None = None
    classes: Sequence[Label] | None = None
    open_parts: OpenParts | None = None


class Fitting(NamedTuple):
    """A fit that has begun at ``began``, on the clock of ``time.perf_counter``.

    ``state`` : of the checkpoint to go on from. ``states`` : where parts save theirs. ``counted`` :
    whether the data were read to find the size of the active set.
    """

    job: Job
    training: Training[ShardSource]
    candidates: list[Settings]
    began: float
    counted: bool
    state: State | None = None
    states: str | None = None

    @property
    def spent(self) -> tuple[int, int, float]:
        """Nonzeros, bytes and seconds so far."""
        source, seconds = self.training.source, time.perf_counter() - self.began
        return source.nonzeros_read, source.bytes_read, seconds

    def train(self) -> tuple[list[Learner], dict[str, Any] | None]:
        """Train the only candidate; return its finished learners, and what the report has of parts,
        None if there is one."""
        if self.training.settings.parts is None:
            [learners] = train_candidates(self.training, self.candidates, self.state)
            return learners, None
        with nullcontext(self.states) if self.states else scratch_directory("streamtron-") as where:
            parts = PartsTraining(self.training, self.job.cache, where, self.job.open_parts)
            learners, report = train_on(parts, plan_new(parts, self.state))
            if self.states is None:
                for learner in learners:
                    learner.counts.total()  # reads them all
        return learners, report

    def outcome(
        self, learners: Sequence[Learner], settings: Settings, report: dict[str, Any] | None = None
    ) -> Outcome:
        """Return the outcome of a candidate's learners. ``report`` : of learners that share their
        readings with others, or are on parts: what it has beside the readings that they took."""
        source, readings = self.training.source, None
        if source.rows is None:  # the restored learners had finished: nothing was read
            read_to_end(source)
        if report is not None:
            first = self.counted + bool(source.counted) + settings.faithful
            first += settings.class_weight == "balanced"
            readings = float(first + max(learner.progress.readings for learner in learners))
        seconds = time.perf_counter() - self.began
        outcome = build_outcome(source, learners, settings, seconds, readings=readings)
        outcome.report.update(report or {})
        return outcome


@contextmanager
def opened(job: Job) -> Iterator[Fitting]:
    """Open the shards, and the run in its directory, which is locked meanwhile."""
    nonzeros, size, seconds = job.many or (0, 0, 0.0)
    began, directory, machine = time.perf_counter() - seconds, job.directory, job.machine
    kept: dict[str, Any] = {} if job.many is None else {"multiclass": True}
    recipe = None
    if job.resume and directory and is_run(directory):  # it keeps what was decided when it began
        record = read_record(Path(directory))
        kept = {name: record.settings.get(name) for name in ("parts", "multiclass", "active_set")}
        recipe = _recipe_of(job, record)
    most_labels = None if job.candidates[0].one_vs_rest else MOST_NUMBERS
    candidates = [
        settings.but(**{name: kept[name] for name in kept if not getattr(settings, name)})
        for settings in job.candidates
    ]
    candidates, read = with_active_set(job.shards, candidates, machine, job.cache, job.listen)
    with open_training_shards(
        job.shards,
        candidates[0],
        machine,
        job.cache,
        classes=job.classes,
        recipe=recipe,
        most_labels=most_labels,
    ) as source:
        source.nonzeros_read = read[0] + nonzeros
        source.bytes_read = read[1] + size + source.counted
        if job.classes is not None:
            candidates = [k.but(multiclass=len(job.classes) > 2) for k in candidates]
        workers = job.open_parts is not None
        candidates = [with_parts(k, source.shards, workers=workers) for k in candidates]
        training = Training(source, candidates[0], machine, job.listen)
        fitting = Fitting(job, training, candidates, began, bool(read[0]))
        if directory is None:
            yield fitting
            return
        if job.overwrite and os.path.exists(os.path.join(directory, deletions.NAME)):
            _log.warning(
                "%s: rows that were forgotten are read again where their shards still hold them.",
                directory,
            )
        with open_run(
            directory,
            candidates[0],
            stamps_of(source.shards),
            job.model,
            recipe=recipe_digest(candidates[0], source.reading),
            resume=job.resume,
            overwrite=job.overwrite,
        ) as run:
            fitting = _begun(fitting, run)
            with nullcontext() if job.model is None else signals.defer_to_checkpoint():
                yield fitting


def _recipe_of(job: Job, record: Record) -> Recipe | None:
    """Return the recipe of a run that has ended: its model's, which was counted in the rows that it
    had first; None where the shards have to tell."""
    if record.recipe is None or job.model is None or not os.path.exists(job.model):
        return None
    reading = reading_from_model(LinearModel.load(job.model))
    is_its_own = recipe_digest(job.candidates[0], reading) == record.recipe
    return reading.recipe if is_its_own else None


def _begun(fitting: Fitting, run: Run) -> Fitting:
    """Return the fit as it goes on from the last checkpoint of its run, and writes others."""
    job, training, began, state = fitting.job, fitting.training, fitting.began, None
    source, every = training.source, training.machine.checkpoint_every
    source.exclude(deletions.load(run.path).values())  # forgotten rows stay out
    if (manifest := manifest_of(run.path)) is not None:
        source.expect(manifest.fingerprints)
    if (checkpoint := run.load()) is not None:
        source.restore(checkpoint.labels, checkpoint.nonzeros_read, checkpoint.bytes_read)
        source.expect(checkpoint.seen)
        began, state = began - checkpoint.seconds, checkpoint.state
    elif job.resume and job.model is not None:
        _log.warning("%s: no checkpoint there; the run starts over.", run.path)
    states = None
    if training.settings.parts is not None:
        states, every = os.fspath(run.path / PARTS), 0.0  # of the last two readings
        os.makedirs(states, exist_ok=True)

    def make(state: State) -> Checkpoint:
        return Checkpoint.of(state, source, time.perf_counter() - began)

    writer = CheckpointWriter(run, every, make, at_end=job.model is not None)
    training = replace(training, checkpointer=writer)
    return fitting._replace(training=training, began=began, state=state, states=states)
