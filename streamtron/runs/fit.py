"""Fit a model on shards: from settings to a certified model on disk."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import ArrayLike

from streamtron.core import signals
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.events import Listener, ignore
from streamtron.core.files import LOCK, reading_from, scratch_directory
from streamtron.core.rows import Label
from streamtron.core.threads import open_threads
from streamtron.data import Dataset, ShardFile, excluding, find_shards
from streamtron.data.profile import with_guesses
from streamtron.data.sample import transformer_digest
from streamtron.model.linear_model import LinearModel
from streamtron.runs.inputs import (
    InMemory,
    Paths,
    as_paths,
    as_shards,
    cache_directory,
    check_outputs_of_fit,
    expected_of,
    open_dataset,
    reading_from_model,
    reading_from_settings,
    settings_from,
    training_reading,
)
from streamtron.runs.learners import Training, check_class_weights, train_candidates
from streamtron.runs.memory import Plan, fits_in_memory, plan_memory, size_of
from streamtron.runs.parts import (
    OpenParts,
    PartsTraining,
    executor_of,
    plan_new,
    train_on,
    with_parts,
)
from streamtron.runs.report import Outcome, build_outcome, write_outcome
from streamtron.runs.store import (
    Ended,
    SavedState,
    Stamps,
    Store,
    changing,
    is_run,
    stamps_of,
)
from streamtron.solver.alphas import Alphas
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner, leave_alphas

if TYPE_CHECKING:
    from streamtron.data.transform import Transformer

_log = logging.getLogger(__name__)

MAY_CHANGE = ("tol", "max_epochs")
"""Settings that may differ when a run is resumed."""


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
        table or stream, an iterator of record batches, or a matrix, dense or scipy.sparse; or, with
        a transformer, a list of documents.
    y : the labels of a matrix or of documents, shape (rows,), or those of a data frame.
    model : also write the model there, its run and the cache beside it in ``MODEL.run``; not
        for rows in memory.
    settings : all settings at once, or give them by name (``C=0.5, rho=0, tol=1e-3, …``), as
        ``transformer``, any of scikit-learn from a data frame or documents to a matrix.
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
    >>> model.certificate["relative_duality_gap"] <= 0.001
    True
    """
    chosen = settings_from(settings, names)
    if y is not None and chosen.transformer is not None:
        chosen = chosen.but(label="label")
    with as_shards(shards, y, model) as paths:
        how: Any = {"machine": machine, "resume": resume, "overwrite": overwrite}
        how |= {"listen": listen, "open_parts": open_parts}
        return run(paths, chosen, model=model, **how).model


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
    facts: Mapping[str, Any] | None = None,
) -> Outcome:
    """Fit, and write model, report and witness where they are named, and beside a model its run
    directory. Where a third class is met, the fit starts over with ``multiclass``.

    Parameters
    ----------
    report : file for the report as JSON.
    witness : file for the counts, with which ``certify`` needs one reading.
    facts : what the report has beside.
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
    inputs = [*as_paths(shards), *settings.files]
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
        with opened(job) as fitting:
            learners, of_parts = fitting.train()
            outcome = fitting.outcome(learners, fitting.settings, of_parts)
            outcome.report.update(facts or {})
            fitting.end(outcome)
            write_outcome(outcome, report=files["report"], witness=files["witness"])
        return outcome


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
    """What is fitted on what. The ``directory`` of its run (None = no states) and its ``model``
    (None = the candidates of a sweep, which is never resumed by hand), whether it is resumed or
    replaced. ``classes`` : the only ones, None = those of the shards. ``files`` : those of the
    shards."""

    shards: list[str]
    candidates: Sequence[Settings]
    machine: Machine
    listen: Listener
    cache: str
    directory: str | os.PathLike[str] | None
    model: str | None = None
    resume: bool = False
    overwrite: bool = False
    classes: Sequence[Label] | None = None
    open_parts: OpenParts | None = None
    files: Sequence[ShardFile] = ()


class Fitting(NamedTuple):
    """A fit whose data are prepared, begun at ``began``, on the clock of ``time.perf_counter``.

    ``counted`` : bytes that were read before, to tell the features. ``state`` : of the last reading
    of a run that is resumed. ``store`` : of its run, if it has one.
    """

    job: Job
    data: Dataset
    training: Training
    candidates: list[Settings]
    began: float
    preparing: float
    counted: int
    store: Store | None = None
    state: State | None = None

    @property
    def settings(self) -> Settings:
        """The settings of the only candidate."""
        return self.candidates[0]

    def train(self) -> tuple[list[Learner], dict[str, Any] | None]:
        """Train the only candidate; return its finished learners, and what the report has of parts,
        None if there is one."""
        if self.settings.parts is None:
            [learners] = train_candidates(self.training, self.candidates, self.state)
            return learners, None
        store = self.store
        kept: Any = scratch_directory("streamtron-") if store is None else nullcontext(store.parts)
        with kept as where:
            os.makedirs(where, exist_ok=True)
            parts = PartsTraining(self.training, self.data, os.fspath(where), self.job.open_parts)
            learners, report = train_on(parts, plan_new(parts, self.state))
            if store is None:
                for learner in learners:
                    leave_alphas(learner, Alphas.of(learner.alphas.nonzero()))
        return learners, report

    def outcome(
        self, learners: Sequence[Learner], settings: Settings, report: dict[str, Any] | None = None
    ) -> Outcome:
        """Return the outcome of a candidate's learners. ``report`` : what it has beside, if these
        share their readings with others or are on parts."""
        readings = self.data.readings + bool(self.counted)
        if report is not None and settings.parts is None and self.data.held is None:
            readings = bool(self.counted) + 1.0 + max(k.progress.readings for k in learners)
        seconds = time.perf_counter() - self.began
        outcome = build_outcome(
            self.data,
            learners,
            settings,
            seconds,
            readings=float(readings),
            preparing=self.preparing,
            more_bytes=self.counted,
        )
        outcome.report.update(report or {})
        return outcome

    def end(self, outcome: Outcome) -> None:
        """Write the model, and what its run is from now on."""
        model, data = self.job.model, self.data
        if self.store is None or model is None:
            write_outcome(outcome, model=model)
            return
        transformer = transformer_digest(self.settings, data.reading)
        shards, left_out = self.job.files, outcome.deletions
        ended = Ended(
            self.settings, transformer, shards, outcome.manifest, left_out, outcome.report
        )
        self.store.end(ended, model, outcome.model.to_bytes())


@contextmanager
def opened(job: Job) -> Iterator[Fitting]:
    """Prepare the shards and plan the fit, in the directory of its run, which is locked."""
    began, directory, machine = time.perf_counter(), job.directory, job.machine
    shards, first = find_shards(job.shards), job.candidates[0]
    job = job._replace(files=shards)
    with ExitStack() as stack:
        store, transformer, saved = None, None, None
        if directory is not None:
            store = stack.enter_context(_opened_store(job, shards))
            if store.exists and job.resume:
                saved, transformer = store.state(), _transformer_of(job, store)
        goes_on = store is not None and store.exists and job.resume
        if store is not None and goes_on:
            shards = excluding(shards, store.forgotten, reading_from_settings(first))
        reading, counted = training_reading(shards, first, transformer)
        classes = (saved and saved.labels) or job.classes
        expected = expected_of(first, classes)
        if store is not None and goes_on:
            expected.fingerprints.update(_seen(store, saved))
        how: Any = {"expected": expected, "listen": job.listen}
        how["executor"] = executor_of(job.open_parts)
        data = stack.enter_context(open_dataset(shards, reading, first, machine, job.cache, **how))
        candidates, plan = _decided(job, data, store.settings if store and goes_on else None)
        preparing = time.perf_counter() - began
        training = Training(data, candidates[0], machine, job.listen, at_once=plan.at_once)
        fitting = Fitting(job, data, training, candidates, began, preparing, counted, store)
        if store is not None:
            fitting = _begun(fitting, store, saved)
        if candidates[0].parts is None and fits_in_memory(candidates[0], size_of(data)):
            with open_threads(machine.thread_count):
                data.load()
        deferred = nullcontext() if job.model is None else signals.defer_to_checkpoint()
        with deferred:
            yield fitting


@contextmanager
def _opened_store(job: Job, shards: Sequence[ShardFile]) -> Iterator[Store]:
    """Open the store of a run to begin or resume it; a SettingsError or DataError for a run that is
    there already, or is one of other shards. A run that fails before its first state leaves none.
    """
    directory, there = Path(job.directory or ""), is_run(job.directory or "")
    if not (job.resume or job.overwrite):
        refuse_existing(directory)
    with reading_from(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with changing(directory, job.model, anew=job.overwrite) as store:
        goes_on = store.exists and job.resume
        if goes_on:
            _check_same_shards(store, stamps_of(shards))
        elif store.exists and store.forgotten:
            _log.warning(
                "%s: rows that were forgotten are read again where their shards still hold them.",
                directory,
            )
        try:
            yield store
        except (StreamtronError, signals.Signalled) as error:
            if isinstance(error, signals.Signalled) and store.has_state:
                error.run = os.fspath(directory)
            elif store.exists and not goes_on and not store.has_state:
                store.remove()  # nothing to resume
            if not store.exists and not there:
                (directory / LOCK).unlink(missing_ok=True)
            raise


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Raise a SettingsError if there is a run at ``path``."""
    if is_run(path):
        raise SettingsError(
            f"{path}: a run is there already. Continue it with --resume, start over with "
            "--overwrite, or give another --model or --run-dir."
        )


def _check_same_shards(store: Store, stamps: Stamps) -> None:
    """Refuse shards other than the run's."""
    recorded = store.stamps
    ours, theirs = ([name for name, *_ in some] for some in (recorded, stamps))
    if ours != theirs:
        gone, new = sorted({*ours} - {*theirs}), sorted({*theirs} - {*ours})
        what = f"{gone[0]} is missing" if gone else f"{new[0] if new else 'the order'} is new"
        raise DataError(
            f"{store.path}: the run has other shards ({what}). Give the same ones, start over with "
            "--overwrite, or add shards with streamtron update."
        )
    for old, stamp in zip(recorded, stamps, strict=True):
        if old != stamp:
            raise DataError(
                f"{old[0]}: changed since the run began ({old[1]} bytes then, {stamp[1]} now, or "
                "touched). Put it back as it was, or start over with --overwrite."
            )


def _check_same(store: Store, settings: Settings, transformer: str | None) -> None:
    """Refuse settings or a transformer other than the run's."""
    recorded, current = store.settings, json.loads(json.dumps(settings.to_dict()))
    names = {*recorded, *current} - set(MAY_CHANGE)
    if changed := [name for name in names if recorded.get(name) != current.get(name)]:
        name, *further_names = sorted(changed, key=lambda name: (current.get(name) is None, name))
        further = f" (and {', '.join(further_names)})" if further_names else ""
        raise SettingsError(
            f"{store.path}: {name} is {current.get(name)}, the run has {recorded.get(name)}"
            f"{further}. A resumed run keeps its settings, except for {' and '.join(MAY_CHANGE)}; "
            "start over with --overwrite."
        )
    if store.transformer != transformer:
        what = f"{store.path}: the columns of the run are of other names, or were counted in other"
        raise DataError(
            f"{what} rows. Put its vocabulary or model back, or start over with --overwrite."
        )


def _seen(store: Store, saved: SavedState | None) -> dict[str, str]:
    """Return names and fingerprints of the shards of a run, as far as it read them."""
    known = {} if store.report is None else store.manifest.fingerprints
    return known | ({} if saved is None else dict(saved.seen))


def _decided(
    job: Job, data: Dataset, recorded: Mapping[str, Any] | None
) -> tuple[list[Settings], Plan]:
    """Return the candidates with what the data, or the recorded settings of a run that is resumed,
    decide: many classes, parts, and the active set."""
    kept: dict[str, Any] = {}
    if recorded is not None:
        kept = {name: recorded.get(name) for name in ("parts", "multiclass", "active_set")}
    elif len(data.labels) > 2 and not job.candidates[0].multilabel:
        kept = {"multiclass": True}
    if job.classes is not None:
        kept["multiclass"] = len(job.classes) > 2
    for settings in job.candidates:
        check_class_weights(settings, data.labels)
    workers = job.open_parts is not None
    candidates = [
        with_parts(
            settings.but(**{name: kept[name] for name in kept if not getattr(settings, name)}),
            data.shards,
            workers=workers,
        )
        for settings in job.candidates
    ]
    classes = len(data.labels) if candidates[0].one_vs_rest else 1
    plan = plan_memory(candidates[0], job.machine, size_of(data), classes * len(candidates))
    return [settings.but(active_set=plan.active_set) for settings in candidates], plan


def _transformer_of(job: Job, store: Store) -> Transformer | None:
    """Return the transformer of a run that has ended: its model's, which was fitted on the rows
    that it had first; None where the shards have to tell."""
    if store.transformer is None or job.model is None or not os.path.exists(job.model):
        return None
    reading = reading_from_model(LinearModel.load(job.model))
    is_its_own = transformer_digest(job.candidates[0], reading) == store.transformer
    return reading.transformer if is_its_own else None


def _begun(fitting: Fitting, store: Store, saved: SavedState | None) -> Fitting:
    """Return the fit as it goes on from the last state of its run, and saves others."""
    training, began, state, data = fitting.training, fitting.began, None, fitting.data
    settings, job = fitting.settings, fitting.job
    transformer = transformer_digest(settings, data.reading)
    if store.exists and job.resume:
        _check_same(store, settings, transformer)
        store.go_on(settings)
    else:
        store.begin(settings, transformer, job.files)
    if saved is not None:
        data.nonzeros_read += saved.nonzeros_read
        data.bytes_read += saved.bytes_read
        began, state = began - saved.seconds, saved.state
    elif job.resume and job.model is not None:
        _log.warning("%s: no state of a reading there; the run starts over.", store.path)

    def make(state: State) -> SavedState:
        return SavedState.of(state, data, time.perf_counter() - began)

    saver = StateSaver(store, make)
    return fitting._replace(
        training=replace(training, checkpointer=saver), began=began, state=state
    )


class StateSaver:
    """A ``solver.train.Checkpointer`` that saves the state after every reading, and at the end;
    ``make`` adds what has been read."""

    def __init__(self, store: Store, make: Callable[[State], SavedState]) -> None:
        self._store, self._make = store, make

    def save(self, state: Callable[[], State]) -> None:
        """Save the state after a reading."""
        self._store.save(self._make(state()))

    def end(self, state: Callable[[], State]) -> None:
        """Save the final state, from which the run can be continued or updated."""
        self.save(state)
