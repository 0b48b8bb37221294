"""Fit a model on shards: from settings to a certified model on disk."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import ArrayLike

from streamtron.core import signals
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.events import Listener, ignore
from streamtron.core.files import LOCK, reading_from
from streamtron.core.rows import Label
from streamtron.data import Dataset, excluding, find_shards
from streamtron.data.profile import with_guesses
from streamtron.data.sample import transformer_digest, with_transformer
from streamtron.model.linear_model import LinearModel
from streamtron.runs.inputs import (
    InMemory,
    Paths,
    as_paths,
    as_shards,
    cache_directory,
    check_outputs_of_fit,
    reading_from_model,
    reading_from_settings,
    settings_from,
)
from streamtron.runs.job import Call, Fitting, prepared
from streamtron.runs.learners import check_class_weights
from streamtron.runs.parts import OpenParts, with_parts
from streamtron.runs.report import Outcome
from streamtron.runs.store import Store, changing, is_run

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
    time_limit: str | float | None = None,
    **names: Any,
) -> LinearModel:
    """Train on shards, or rows in memory, and return the certified model.

    Minimises ½(‖w‖² + w_bias²) + Σ C_k max(0, 1 − l_k(w·x_k + ρ w_bias))² until the relative
    duality gap is proven to be at most ``tol``, or ``max_epochs`` or ``time_limit`` is reached.

    Parameters
    ----------
    shards : files, directories or globs of libsvm text, Parquet or Arrow; or a pandas, polars or
        Dask data frame, a polars LazyFrame, a Hugging Face data set, a DuckDB relation, an Arrow
        table or stream, an iterator of record batches, or a matrix, dense or scipy.sparse; or, with
        a transformer, a list of documents.
    y : the labels of a matrix or of documents, shape (rows,), or those of a data frame.
    model : also write the model there, and its run with the cache to ``MODEL.run``; not for rows
        in memory.
    settings : all settings at once, or give them by name (``C=0.5, rho=0, tol=1e-3, …``), as
        ``transformer``, any of scikit-learn from a data frame or documents to a matrix.
    machine : memory, cache directory: what does not change the model.
    resume, overwrite : continue the run that is at ``model``, or replace it; without either it is
        refused.
    listen : called with every event of ``streamtron.events``, in the thread that trains.
    open_parts : where the parts of the data are trained on, if there are several, as
        ``cluster.parts.parts_on(workers)``; None = in this process, on ``machine.threads`` threads.
    time_limit : seconds, or text such as 40m: end after the reading in which they have passed, with
        the best model by then and its proven gap.

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
        how |= {"listen": listen, "open_parts": open_parts, "time_limit": time_limit}
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
    time_limit: str | float | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Outcome:
    """Fit, and write the files that are named: model with its run, report, witness.

    Parameters
    ----------
    report : file for the report as JSON.
    witness : file for the dual variables, with which ``certify`` needs one reading.
    facts : further entries of the report.
    shards, settings and all others : as in ``fit``.

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
    call, paths = Call.begin(machine, listen, open_parts, time_limit), as_paths(shards)
    settings = with_guesses(settings, paths, call.machine.threads)
    named = {"model": model, "report": report, "witness": witness}
    files, directory = check_outputs_of_fit(named, [*paths, *settings.files], call.machine)
    place = None if directory is None else Place(directory, files["model"], resume, overwrite)
    with (
        cache_directory(directory, call.machine) as cache,
        opened(paths, [settings], call, cache, place) as fitting,
    ):
        [learners] = fitting.train()
        outcome = fitting.outcome(learners)
        outcome.report.update(facts or {})
        if (store := fitting.store) is not None and files["model"] is not None:
            fitting.commit(store, files["model"], outcome, store.absent)
        outcome.write(files["report"], files["witness"])
    return outcome


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
    place = None if run_dir is None else Place(run_dir, None, resume=True)
    call = Call.begin(machine, listen)
    with opened(as_paths(shards), candidates, call, cache_dir, place) as fitting:
        groups, outcomes = fitting.train(), []
        for learners, settings in zip(groups, fitting.candidates, strict=True):
            outcome = fitting.outcome(learners, settings)
            if fitting.data.held is None:  # as many as alone
                readings = 1.0 + max(learner.progress.readings for learner in learners)
                outcome.report["readings"] = fitting.readings + readings
            outcomes.append(outcome)
        return outcomes


class Place(NamedTuple):
    """The ``directory`` of a run, its ``model`` (None = that of the candidates of a sweep), and
    whether the run is resumed or replaced."""

    directory: str
    model: str | None
    resume: bool = False
    overwrite: bool = False


@contextmanager
def opened(
    paths: Sequence[str],
    candidates: Sequence[Settings],
    call: Call,
    cache: str,
    place: Place | None = None,
    classes: Sequence[Label] | None = None,
) -> Iterator[Fitting]:
    """Prepare the shards of a fit, in the directory of its run, which is locked, if it has one.
    ``classes`` : the only ones, None = those of the shards."""
    shards, first = find_shards(paths), candidates[0]
    with ExitStack() as stack:
        store, old, saved = None, None, None
        reading, seen, recorded = reading_from_settings(first), dict[str, str](), dict[str, Any]()
        if place is not None:
            store = stack.enter_context(_opened_store(place, [shard.name for shard in shards]))
            old = store if store.exists and place.resume else None
        wanted = shards
        if old is not None and place is not None:
            saved, recorded = old.state(), old.settings
            wanted = excluding(shards, old.forgotten, reading)
            reading = replace(reading, transformer=_transformer_of(old, place.model, first))
            seen = {} if old.report is None else old.manifest.fingerprints
            seen |= {} if saved is None else saved.seen
        reading, counted = with_transformer(wanted, reading, first)  # bytes, to tell the features
        workers = call.open_parts is not None
        decide = partial(_decided, recorded=recorded, classes=classes, workers=workers)
        how = candidates, cache, decide, (saved and saved.labels) or classes, seen
        fitting = stack.enter_context(prepared(call, store, wanted, reading, *how))
        fitting.readings, fitting.bytes_read = float(counted > 0), counted
        if store is not None:
            settings = fitting.settings
            digest = transformer_digest(settings, fitting.data.reading)
            if old is not None:
                _check_same(old, settings, digest)
                old.go_on(settings)
            else:
                store.begin(settings, digest, shards)
            fitting.store = store
        if saved is not None:
            fitting.data.nonzeros_read += saved.nonzeros_read
            fitting.data.bytes_read += saved.bytes_read
            fitting.state, fitting.earlier = saved.state, saved.seconds
        named = place is not None and place.model is not None
        if place is not None and place.resume and named and saved is None:
            _log.warning("%s: no state of a reading there; the run starts over.", place.directory)
        with signals.defer_to_checkpoint() if named else nullcontext():
            yield fitting


def _transformer_of(store: Store, model: str | None, settings: Settings) -> Transformer | None:
    """Return the transformer in the model of a run that has ended, which was fitted on the rows
    that it had first; None where there is none, or other settings make another one."""
    if store.transformer is not None and model is not None and os.path.exists(model):
        reading = reading_from_model(LinearModel.load(model))
        if transformer_digest(settings, reading) == store.transformer:
            return reading.transformer
    return None


@contextmanager
def _opened_store(place: Place, names: Sequence[str]) -> Iterator[Store]:
    """Open the store of a run to begin or resume it; a SettingsError or DataError for a run that is
    there already, or is one of other shards. A run that fails before its first state leaves none.
    """
    directory, there = Path(place.directory), is_run(place.directory)
    new = not os.path.lexists(directory)
    if not (place.resume or place.overwrite):
        refuse_existing(directory)
    with reading_from(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with changing(directory, place.model, anew=place.overwrite) as store:
        goes_on = store.exists and place.resume
        if goes_on:
            _check_same_shards(store, names)
        elif store.exists and (store.forgotten or store.absent):
            _log.warning(
                "%s: rows that were forgotten are read again where the shards hold them.", directory
            )
        try:
            yield store
        except (StreamtronError, signals.Signalled) as error:
            if isinstance(error, signals.Signalled) and store.state_file:
                error.run = os.fspath(directory)
            elif store.exists and not goes_on and not store.state_file:
                store.remove()  # nothing to resume
            if not store.exists and not there:
                (directory / LOCK).unlink(missing_ok=True)
            if new and not store.exists and isinstance(error, DataError | SettingsError):
                shutil.rmtree(directory, ignore_errors=True)  # with what was prepared
            raise


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Raise a SettingsError if there is a run at ``path``."""
    if is_run(path):
        raise SettingsError(
            f"{path}: a run is there already. Continue it with --resume, start over with "
            "--overwrite, or give another --model or --run-dir."
        )


def _check_same_shards(store: Store, names: Sequence[str]) -> None:
    """Refuse shards of other names than the run's; that they are as they were is seen when they are
    prepared."""
    ours = [name for name, _ in store.given]
    if ours != [*names]:
        gone, new = sorted({*ours} - {*names}), sorted({*names} - {*ours})
        what = f"{gone[0]} is missing" if gone else f"{new[0] if new else 'the order'} is new"
        raise DataError(
            f"{store.path}: the run has other shards ({what}). Give the same ones, start over with "
            "--overwrite, or add shards with streamtron update."
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
        raise DataError(
            f"{store.path}: the columns of the run were counted in other rows. Put its model back, "
            "or start over with --overwrite."
        )


def _decided(
    settings: Settings,
    data: Dataset,
    *,
    recorded: Mapping[str, Any],
    classes: Sequence[Label] | None,
    workers: bool,
) -> Settings:
    """Return a candidate with what the data, or the recorded settings of a run that is resumed,
    decide: many classes, parts, and the active set."""
    check_class_weights(settings, data.labels)
    many = len(data.labels) > 2 and not settings.multilabel
    kept = {name: recorded.get(name) for name in ("parts", "active_set")}
    kept["multiclass"] = recorded.get("multiclass", many) if classes is None else len(classes) > 2
    new = {name: x for name, x in kept.items() if x is not None and not getattr(settings, name)}
    if settings.softmax and not (many or kept["multiclass"]):
        new["loss"] = "log_loss"
    return with_parts(settings.but(**new), data.shards, workers=workers)
