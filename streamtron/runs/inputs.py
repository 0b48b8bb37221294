"""What commands read, and what they are to write, checked before anything is read."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, cast

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError, SettingsError
from streamtron.core.events import Listener, WorkDone, ignore
from streamtron.core.executor import Executor
from streamtron.core.feature_names import Hashing
from streamtron.core.files import absolute, as_path, is_stream, nothing_empty, scratch_directory
from streamtron.core.rows import Label
from streamtron.core.sealed import is_sealed
from streamtron.data import (
    Dataset,
    Expected,
    Preparing,
    Progress,
    ReaderConfig,
    ShardFile,
    find_shards,
    open_reader,
    resolve_reading,
)
from streamtron.data.reader_config import ALL
from streamtron.data.storage import is_uri, local_path
from streamtron.model.import_model import CLASSES_UNKNOWN, load_any
from streamtron.model.linear_model import LinearModel
from streamtron.runs.finished_run import RUN_SUFFIX, recorded_shards, run_directory
from streamtron.runs.store import CACHE, is_run

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Files, directories or globs."""

InMemory = Any
"""Rows that are not in shards: with their labels in a column, or beside a matrix; see ``fit``."""


@contextmanager
def as_shards(
    rows: Paths | InMemory, y: Any, model: str | os.PathLike[str] | None
) -> Iterator[Paths]:
    """Give the paths of shards, or of a file that stands for rows in memory while this lasts."""
    listed = rows if isinstance(rows, Sequence) and not isinstance(rows, str) else [rows]
    if y is None and all(isinstance(path, str | os.PathLike) for path in listed):
        yield cast(Paths, rows)
        return
    if model is not None:
        raise SettingsError("rows in memory have no run: write the model with fit(…).save(path).")
    from streamtron.data.formats.given import standing

    with standing(rows, y) as path:
        yield path


def as_paths(shards: Paths) -> list[str]:
    """Return one path or several as a list of strings."""
    if isinstance(shards, str | os.PathLike):
        return [as_path(shards)]
    if hasattr(shards, "shape"):
        raise TypeError("rows in memory: expected paths of shards; fit alone takes both.")
    return [as_path(path) for path in shards]


def holding_out(settings: Settings, share: float) -> Settings:
    """Return settings that hold out a share of the rows, unless they hold out another one."""
    if settings.held_out not in (0.0, share):
        raise SettingsError(f"held_out is {settings.held_out:g} and also {share:g}: give one.")
    return settings.but(held_out=share)


def as_model(model: LinearModel | str | os.PathLike[str]) -> LinearModel:
    """Return a model, read from its file if a path is given."""
    return model if isinstance(model, LinearModel) else load_any(model)


def problem_settings(model: LinearModel, given: Mapping[str, Any]) -> Settings:
    """Return the problem for which a model is certified: its own where it says it, else as given,
    with the squared hinge for coefficients; a SettingsError where a model of another program does
    not say C or rho, or is of a problem that has no certificate."""
    if "source" not in model.settings:
        return Settings.from_dict(model.settings).but(**given)
    _check_problem(model, given)
    names = ("rho", "loss", "penalty", "intercept")
    known = {name: model.settings[name] for name in names if name in model.settings}
    known |= given
    if "C" not in known and "delta" not in known:
        raise SettingsError("another program's model does not say its C. Give --C.")
    if "rho" not in known and not Settings.from_dict(known).free:  # of a free bias all are one
        raise SettingsError(
            "coefficients do not say the feature of their bias. Give --rho; 0 = no bias."
        )
    return Settings.from_dict(known)


def _check_problem(model: LinearModel, given: Mapping[str, Any]) -> None:
    """Raise a SettingsError for a problem of LIBLINEAR that is none of ours, unless another is
    given."""
    if model.settings.get("solver_type") == "MCSVM_CS" and "loss" not in given:
        raise SettingsError(
            "a LIBLINEAR model of -s 4 (Crammer and Singer) is not certified. Give --loss to "
            "certify its weights for another problem."
        )
    named = given.keys() & {"penalty", "rho", "intercept"}
    if model.settings.get("penalty") == "l1" and model.settings["rho"] and not named:
        raise SettingsError(
            "a LIBLINEAR model of -s 5 or 6 with a bias (-B) is not certified. Give --intercept "
            "free if it was trained with -R, or --penalty l1 for a bias that costs ½ w_bias²."
        )


def with_labels_of(model: LinearModel, shards: Paths) -> LinearModel:
    """Return coefficients that do not say their classes with the two labels of the shards, which
    are read until both have been met; any other model as it is."""
    if not model.settings.get(CLASSES_UNKNOWN):
        return model
    files, labels = find_shards(as_paths(shards)), set[Label]()
    reading = resolve_reading(files[0], reading_from_model(model))
    for batch in chain.from_iterable(open_reader(file, reading).batches() for file in files):
        labels |= set(batch.classes)
        if len(labels) >= 2:
            break
    return model.but(classes=tuple(sorted(labels))) if len(labels) == 2 else model


def settings_from(settings: Settings | None, names: Mapping[str, Any]) -> Settings:
    """Return the settings that a public function was given, as a whole or by name."""
    if settings is not None and names:
        raise TypeError("give settings, or settings by name, not both.")
    return settings or Settings.from_dict(names)


def reading_from_settings(settings: Settings, *, labels_required: bool = True) -> ReaderConfig:
    """Return how these settings read shards."""
    names = None if settings.hash_bits is None else Hashing(settings.hash_bits)
    return ReaderConfig(
        index_base=settings.index_base,
        labels="required" if labels_required else "optional",
        weights_in_label=settings.weights_in_label,
        multiclass=settings.multiclass,
        multilabel=settings.multilabel,
        numbers=settings.regression,
        label_column=settings.label,
        weight_column=settings.weight,
        features=settings.features,
        values_column=settings.values,
        null_values=settings.null_values,
        null_labels="left_out" if settings.on_null_label == "skip" else "refused",
        names=names,
        share=(settings.held_out, 1.0),
    )


def reading_from_model(model: LinearModel) -> ReaderConfig:
    """Return how a model's shards are read: by its reader's contract, never by detection."""
    text = model.reading.get("layout", "tables") is None
    reading = ReaderConfig.from_contract({**model.reading, "numbers": model.regression})
    return replace(reading, of_text=text, transformer=model.transformer)


def reading_to_score(
    model: LinearModel, first: ShardFile, *, labelled: bool = True, share: tuple[float, float] = ALL
) -> ReaderConfig:
    """Return how shards, of which ``first`` is the first, are read to be scored: features that the
    model does not have are out of range; not ``labelled`` : without labels and row weights."""
    known = reading_from_model(model)
    reading = replace(known, unknown_features="out_of_range", share=share)
    if not labelled:
        reading = replace(reading, labels="optional", weights="ignored")
    return resolve_reading(first, reading)


def with_places(model: LinearModel, settings: Settings) -> LinearModel:
    """Return a model of another program that reads label, features, names and row weights where
    these settings say; a SettingsError for our own, which knows."""
    if "source" not in model.settings:
        raise SettingsError(
            "the model knows its columns: leave --label, --features and the like out."
        )
    contract = reading_from_settings(settings).contract()
    del contract["layout"]  # it is that of the shards
    reading = {**contract, "index_base": model.index_base}
    return model.but(reading=reading)


def open_dataset(
    shards: Sequence[ShardFile],
    reading: ReaderConfig,
    machine: Machine,
    cache: str,
    *,
    expected: Expected,
    listen: Listener = ignore,
    executor: Executor | None = None,
) -> Dataset:
    """Prepare shards in the directory ``cache``, as far as they are not there, and open them.
    ``executor`` : whose workers prepare them; None = threads of this process."""
    total = sum(shard.size for shard in shards)

    def tell(done: Progress) -> None:
        listen(WorkDone("preparing", None, min(done.bytes, total), total, done.rows))

    how = Preparing(cache, machine.thread_count, executor, tell)
    return Dataset.prepare(shards, reading, how, expected)


@contextmanager
def cache_directory(run: str | os.PathLike[str] | None, machine: Machine) -> Iterator[str]:
    """Give the cache's directory: the machine's, the run's, or a temporary one."""
    if machine.cache_dir is not None or run is not None:
        directory = machine.cache_dir or os.path.join(run or "", CACHE)
        with nothing_empty(run, directory):
            yield directory
    else:
        with scratch_directory("streamtron-") as directory:
            yield directory


StrPath = str | os.PathLike[str]


def check_outputs(
    files: Mapping[str, StrPath | None],
    inputs: Iterable[StrPath | None],
    *,
    runs: Iterable[StrPath] = (),
    directories: Mapping[str, StrPath | None] | None = None,
    cache: StrPath | None = None,
) -> dict[str, str | None]:
    """Return outputs as absolute paths, for a listener may change the working directory. Raise a
    SettingsError where one would replace what is read or another output, or lies in a run.

    Real paths are compared; streams may be given twice, but not for the model. ``runs`` : models
    or run directories that are read. ``directories`` : those of the command's own, in which no
    input and no other output may be.
    """
    paths = {name: absolute(path) for name, path in files.items() if path is not None}
    places = (directories or {}).items()
    owned = {os.path.realpath(absolute(path)): name for name, path in places if path is not None}
    written = owned | ({} if cache is None else {os.path.realpath(cache): "cache"})
    for place in owned:
        if os.path.exists(place) and not os.path.isdir(place):
            where = f"{place}: a file, where the {owned[place]} would be"
            raise MachineError(f"{where}. Move it away, or name another place.")
    for name, path in paths.items():
        if is_stream(path):
            if name == "model":
                what = f"model {path}: a pipe or a device, and a model has its run beside it"
                raise SettingsError(f"{what}. Name a file.")
            continue
        real = os.path.realpath(path)
        if (writer := written.setdefault(real, name)) != name:
            what = f"{name} {path}: the {writer} is written there too"
            raise SettingsError(f"{what}. Name another file.")
        for above in (parent := os.path.dirname(real), os.path.dirname(parent)):
            if owner := owned.get(above, "run directory" if is_run(above) else None):
                what = f"{name} {path}: lies in the {owner}, which has files of its own"
                raise SettingsError(f"{what}. Name another place.")
    there = {place: name for place, name in written.items() if os.path.lexists(place)}
    for path in _read_with(inputs, runs) if there else ():
        real = os.path.realpath(path)
        for place, name in there.items():
            is_read = _is_in(place, real) and not re.search("/[_.]", place[len(real) :])
            if is_read or (place in owned and _is_in(real, place)):
                what = f"{name} {place}: {path}, which is read, could be replaced"
                raise SettingsError(f"{what}. Name another place.")
    return {name: paths.get(name) for name in files}


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _read_with(inputs: Iterable[StrPath | None], runs: Iterable[StrPath]) -> Iterator[str]:
    """Yield the local paths among inputs, and the models and shards of runs."""
    for given in inputs:
        if given is not None and not is_uri(named := as_path(given)):
            path = local_path(named).rstrip("/") or "/"
            yield from [path] if os.path.lexists(path) else glob.glob(path, recursive=True)
    for run in runs:
        path = as_path(run).rstrip("/")
        directory = path if os.path.isdir(path) else run_directory(path)
        if not os.path.isdir(model := directory.removesuffix(RUN_SUFFIX)):
            yield model
        # where it cannot be read, the command that reads it says why
        yield from (shard.path for shard in recorded_shards(directory))


def check_outputs_of_fit(
    files: Mapping[str, StrPath | None], inputs: Iterable[StrPath | None], machine: Machine
) -> tuple[dict[str, str | None], str | None]:
    """Check model, report and witness; return their absolute paths, and the model's run directory,
    if there is one. SettingsError: the model would replace a file of another kind."""
    model = files["model"]
    directory = None if model is None else machine.run_dir or run_directory(model)
    places = {"run directory": directory}
    paths = check_outputs(files, inputs, directories=places, cache=machine.cache_dir)
    old = paths.get("model")
    if old and os.path.isfile(old) and os.path.getsize(old) and not is_sealed(old):
        what = f"{model}: a file that is not a model"
        raise SettingsError(f"{what}. Name another --model, or move it away.")
    return paths, None if directory is None else absolute(directory)
