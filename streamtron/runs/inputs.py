"""Shards as a command reads them: paths, reader's contract, cache directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from streamtron.core.config import Machine, Settings
from streamtron.core.files import scratch_directory
from streamtron.core.rows import Label
from streamtron.data import Reading, ShardFile, ShardSource, open_shards
from streamtron.data.formats.feature_names import Hashing, Vocabulary, load_vocabulary
from streamtron.model.linear_model import LinearModel
from streamtron.runs.learners import is_one_vs_rest
from streamtron.runs.memory import check_memory, columns_allowed, memory_needed

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Files, directories or globs."""


def as_paths(shards: Paths) -> list[str]:
    """Return one path or several as a list of strings."""
    if isinstance(shards, str | os.PathLike):
        return [os.fspath(shards)]
    return [os.fspath(path) for path in shards]


def reading_from_settings(settings: Settings, *, labels_required: bool = True) -> Reading:
    """Return how these settings read shards. The vocabulary's file is read here."""
    names: Hashing | Vocabulary | None = None
    if settings.vocabulary is not None:
        names = load_vocabulary(settings.vocabulary)
    elif settings.hash_bits is not None:
        names = Hashing(settings.hash_bits, settings.hash_seed)
    return Reading(
        index_base=settings.index_base,
        labels="required" if labels_required else "optional",
        weights_in_label=settings.weights_in_label,
        multiclass=settings.multiclass,
        multilabel=settings.multilabel,
        label_column=settings.label,
        weight_column=settings.weight,
        features=settings.features,
        values_column=settings.values,
        names=names,
    )


def reading_from_model(model: LinearModel) -> Reading:
    """Return how a model's shards are read: by its reader's contract, never by detection."""
    text = model.reading.get("layout", "tables") is None
    return replace(Reading.from_contract(model.reading), of_text=text)


def open_training_shards(
    paths: list[str],
    settings: Settings,
    machine: Machine,
    cache: str,
    *,
    classes: Sequence[Label] | None = None,
) -> ShardSource:
    """Open the shards as a fit with these settings reads them; a MachineError if the memory that
    every fit needs is not there. Rows in the files' order need no flat copy; they get one only in
    a directory that ``machine`` names, else in ``cache``. ``classes`` : see ``open_shards``."""
    check_memory(memory_needed(settings, rows=0, columns=0), machine)
    no_cache = settings.order == "sequential" and machine.cache_dir is None
    return open_shards(
        paths,
        reading_from_settings(settings),
        cache_dir=None if no_cache else cache,
        classes=classes,
        most_labels=2 if classes is None and not is_one_vs_rest(settings) else None,
        least_labels=0 if classes is not None else 1 if settings.multilabel else 2,
        most_columns=columns_allowed(settings, machine),
        allow_duplicate=settings.allow_duplicate,
        threads=machine.threads,
        on_bad_shard=settings.on_bad_shard,
    )


def open_one(
    shard: ShardFile,
    reading: Reading,
    classes: Sequence[Label] | None = None,
    cache_dir: str | None = None,
    threads: int | None = None,
) -> ShardSource:
    """Open one shard by itself, which may be empty or a duplicate."""
    return ShardSource(
        [shard], reading, cache_dir=cache_here(cache_dir), classes=classes, most_labels=None,
        allow_duplicate=True, allow_empty=True, threads=threads,
    )  # fmt: skip


def cache_here(directory: str | None) -> str | None:
    """Return the directory of the flat copies if this machine sees it, else None."""
    return directory if directory is not None and os.path.isdir(directory) else None


@contextmanager
def cache_directory(run: str | os.PathLike[str] | None, machine: Machine) -> Iterator[str]:
    """Give the cache's directory: the machine's, the run's, or a temporary one."""
    if machine.cache_dir is not None:
        yield machine.cache_dir
    elif run is not None:
        directory = os.path.join(run, "cache")
        try:
            yield directory
        finally:
            with suppress(OSError):  # only empty directories are removed
                os.rmdir(directory)
                os.rmdir(run)
    else:
        with scratch_directory("streamtron-") as directory:
            yield directory
