"""Settings in, model on disk out: one fit from shards to a certified model."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

from streamtron.core import signals
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.core.rows import Label
from streamtron.core.scratch import scratch_directory
from streamtron.data import Reading, ShardSource, deletions, open_shards
from streamtron.data.formats.feature_names import load_vocabulary
from streamtron.model.linear_model import LinearModel
from streamtron.runs.directory import Checkpoint, Run, Saver, open_run
from streamtron.runs.learners import learn, several
from streamtron.runs.memory import check_memory, columns_allowed, memory_needed
from streamtron.runs.outputs import check_outputs
from streamtron.runs.results import Outcome, conclude, write_outcome
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner

_log = logging.getLogger(__name__)


def fit(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    model: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    machine: Machine | None = None,
    listen: Listener = ignore,
    **names: Any,
) -> LinearModel:
    """Train on shards and return the certified model.

    Minimises ½(‖w‖² + w_bias²) + Σ C_k max(0, 1 − l_k(w·x_k + ρ w_bias))² until the relative
    duality gap is proven to be at most ``tol``, or ``max_epochs`` is reached.

    Parameters
    ----------
    shards : files, directories or globs of libsvm text, Parquet or Arrow.
    model : also write the model there, the witness and the cache beside it in ``MODEL.run``.
    settings : all settings at once, or give them by name (``C=0.5, rho=0, tol=1e-3, …``).
    machine : memory, cache directory: what does not change the model.

    Returns
    -------
    LinearModel; its ``certificate`` says how far from the best possible it is at most.

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
    if settings is not None and names:
        raise SettingsError("give settings, or settings by name, not both.")
    chosen = settings or Settings.from_dict(names)
    return run(shards, chosen, model=model, machine=machine or Machine(), listen=listen).model


def run(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    settings: Settings,
    *,
    model: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    witness: str | os.PathLike[str] | None = None,
    machine: Machine,
    resume: bool = False,
    overwrite: bool = False,
    listen: Listener = ignore,
) -> Outcome:
    """A fit with everything it leaves behind: model, report, witness, run directory.

    Parameters
    ----------
    report, witness : files to write as well.
    resume, overwrite : go on with the run that is in the run directory, or begin anew; if neither
        is said, a run that is there is refused. See ``runs.open_run``.

    Raises
    ------
    SettingsError : what is written would replace what is read, see ``check_outputs``; and as
        ``fit``.
    """
    began = time.perf_counter()
    kept = None if model is None else machine.run_dir or run_directory(model)
    check_outputs(
        {"model": model, "report": report, "witness": witness},
        [*as_paths(shards), *filter(None, [settings.vocabulary])],
        directories={"run directory": kept},
        cache=machine.cache_dir,
    )
    with (
        cache_directory(kept, machine) as cache,
        opened(as_paths(shards), settings, machine, cache) as source,
        ExitStack() as stack,
    ):
        if model is None or kept is None:
            [learners] = learn(source, [settings], machine, listen)
        else:
            stamps = [(shard.name, shard.size, shard.mtime_ns) for shard in source.shards]
            if overwrite and os.path.exists(os.path.join(kept, deletions.NAME)):
                _log.warning(
                    "%s: rows that were forgotten are read again where their shards still hold "
                    "them.",
                    kept,
                )
            run = stack.enter_context(
                open_run(
                    kept, settings, stamps, model, machine.cache_dir,
                    resume=resume, overwrite=overwrite,
                )
            )  # fmt: skip
            source.exclude(deletions.load(kept).values())  # what was forgotten stays so
            before = _taken_up(run, source, resume)
            began -= before.seconds if before else 0.0
            saver = _saver(run, source, machine, began)
            stack.enter_context(signals.waiting_for_a_border())
            [learners] = learn(
                source,
                [settings],
                machine,
                listen,
                checkpointer=saver,
                state=before and before.state,
            )
        if source.rows is None:  # the run that is taken up had ended: nothing was left to read
            for _ in source.chunks():
                pass
        outcome = conclude(source, learners, settings, time.perf_counter() - began)
        write_outcome(outcome, model=model, run=kept, report=report, witness=witness)
    return outcome


def run_many(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    candidates: Sequence[Settings],
    *,
    machine: Machine,
    listen: Listener = ignore,
    cache_dir: str | None,
    run_dir: str | None = None,
) -> list[Outcome]:
    """A fit of every candidate, all on the same readings; nothing is written but the cache, and
    checkpoints if there is a place for them.

    Parameters
    ----------
    candidates : at least one; they may differ in C, delta, rho, tol, b, class_weight, max_epochs
        and mini_epochs, and share what decides reading, order and seed.
    cache_dir : where the flat copy of the shards is kept; None = as ``machine`` says.
    run_dir : a directory of these candidates' own, from whose last checkpoint they go on if one is
        there.

    Returns
    -------
    list of Outcome, one a candidate, each equal to what ``run`` finds for it alone, but that
    ``bytes_read`` and ``seconds`` of the report are those of all.

    Raises
    ------
    SettingsError : candidates that cannot learn from the same readings.
    """
    began = time.perf_counter()
    _check_alike(candidates)
    with (
        nullcontext(cache_dir) if cache_dir else cache_directory(None, machine) as cache,
        opened(as_paths(shards), candidates[0], machine, cache) as source,
        ExitStack() as stack,
    ):
        checkpointer = before = None
        if run_dir is not None:
            stamps = [(shard.name, shard.size, shard.mtime_ns) for shard in source.shards]
            run = stack.enter_context(open_run(run_dir, candidates[0], stamps, resume=True))
            before = _taken_up(run, source, resume=False)
            began -= before.seconds if before else 0.0
            checkpointer = _saver(run, source, machine, began, at_end=False)
        found = learn(
            source,
            candidates,
            machine,
            listen,
            checkpointer=checkpointer,
            state=before and before.state,
        )
        if source.rows is None:  # they had ended: nothing was left to read
            for _ in source.chunks():
                pass
        seconds = time.perf_counter() - began
        return [
            conclude(source, learners, settings, seconds, readings=_readings(learners, settings))
            for learners, settings in zip(found, candidates, strict=True)
        ]


def _readings(learners: Sequence[Learner], settings: Settings) -> float:
    """What these learners' own run would have read."""
    first = settings.faithful + (settings.class_weight == "balanced")
    return float(first + max(learner.readings for learner in learners))


OWN = ("C", "delta", "rho", "tol", "b", "class_weight", "max_epochs", "mini_epochs")
"""Settings that candidates may have each for itself."""


def _check_alike(candidates: Sequence[Settings]) -> None:
    first = candidates[0].to_dict()
    for other in candidates[1:]:
        now = other.to_dict()
        for name in first:
            if name not in OWN and now[name] != first[name]:
                raise SettingsError(
                    f"{name} is {first[name]} in one candidate and {now[name]} in another. "
                    f"Candidates that share readings may differ in {', '.join(OWN)}."
                )


def opened(
    paths: list[str],
    settings: Settings,
    machine: Machine,
    cache: str,
    *,
    classes: Sequence[Label] | None = None,
) -> ShardSource:
    """The shards as a fit with these settings reads them.

    Parameters
    ----------
    cache : where the flat copy goes, if one is wanted.
    classes : see ``open_shards``.

    Raises
    ------
    MachineError : what every fit keeps in memory does not fit.
    DataError, SettingsError : see ``open_shards`` and ``reading_of``.
    """
    check_memory(memory_needed(settings, rows=0, columns=0), machine)
    return open_shards(
        paths,
        reading_of(settings),
        cache_dir=cache_wanted(settings, machine, cache),
        classes=classes,
        most_labels=2 if classes is None and not several(settings) else None,
        least_labels=0 if classes is not None else 1 if settings.multilabel else 2,
        most_columns=columns_allowed(settings, machine),
        allow_duplicate=settings.allow_duplicate,
        threads=machine.threads,
        on_bad_shard=settings.on_bad_shard,
    )


def _taken_up(run: Run, source: ShardSource, resume: bool) -> Checkpoint | None:
    """Where the run is taken up, of which the source is told; None = it begins."""
    before = run.load()
    if before is not None:
        source.restore(before.labels, before.nonzeros_read, before.bytes_read)
    elif resume:
        _log.warning("%s: no checkpoint there; the run starts over.", run.path)
    return before


def _saver(
    run: Run, source: ShardSource, machine: Machine, began: float, *, at_end: bool = True
) -> Saver:
    def checkpoint(state: State) -> Checkpoint:
        seconds = time.perf_counter() - began
        labels = list(source.labels)
        return Checkpoint(state, labels, source.nonzeros_read, source.bytes_read, seconds)

    return Saver(run, machine.checkpoint_every, checkpoint, at_end=at_end)


# --- what the faces share ---


def as_paths(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> list[str]:
    """The paths as strings, one or several."""
    if isinstance(shards, str | os.PathLike):
        return [os.fspath(shards)]
    return [os.fspath(path) for path in shards]


def reading_of(settings: Settings, *, labels: str = "required") -> Reading:
    """How the shards are to be read, by these settings; this reads the vocabulary's file.

    Raises
    ------
    DataError, MachineError : what ``load_vocabulary`` refuses.
    """
    path = settings.vocabulary
    return Reading(
        index_base=settings.index_base,
        labels="optional" if labels == "optional" else "required",
        weights_in_label=settings.weights_in_label,
        multiclass=settings.multiclass,
        multilabel=settings.multilabel,
        label_column=settings.label,
        weight_column=settings.weight,
        features=settings.features,
        values_column=settings.values,
        hash_bits=settings.hash_bits,
        hash_seed=settings.hash_seed,
        vocabulary=None if path is None else load_vocabulary(path),
    )


def reading_of_model(
    model: LinearModel, *, labels: str = "required", strangers: str = "refused"
) -> Reading:
    """How a model's shards are to be read: by its own contract, never by detection. That of text
    has no layout.

    ``strangers``, names that the model's vocabulary does not have, are ``"refused"``, or put
    ``"beyond"`` the model's width, where they weigh 0.
    """
    return replace(
        Reading.from_contract(model.reading),
        of_text=model.reading.get("layout", "tables") is None,
        labels="optional" if labels == "optional" else "required",
        strangers="beyond" if strangers == "beyond" else "refused",
    )


def run_directory(model: str | os.PathLike[str]) -> str:
    """Where a run keeps its witness, manifest and cache: ``MODEL.run``."""
    return os.fspath(model) + ".run"


@contextmanager
def cache_directory(run: str | os.PathLike[str] | None, machine: Machine) -> Iterator[str]:
    """The cache's directory: as given, or in the run directory, or temporary and removed."""
    if machine.cache_dir is not None:
        yield machine.cache_dir
    elif run is not None:
        directory = os.path.join(run, "cache")
        try:
            yield directory
        finally:
            with suppress(OSError):  # what holds something stays
                os.rmdir(directory)
                os.rmdir(run)
    else:
        with scratch_directory("streamtron-") as directory:
            yield directory


def cache_wanted(settings: Settings, machine: Machine, directory: str) -> str | None:
    """The cache's directory, or None: rows in the files' order need no cache, and get one only in a
    directory that the machine names."""
    return None if settings.order == "sequential" and machine.cache_dir is None else directory


__all__ = ["Outcome", "fit", "run", "run_many", "write_outcome"]
