"""Describe a model, a witness, a run directory or shards as plain values."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.files import LOCK, lock_holder, reading_from
from streamtron.core.moments import Moments
from streamtron.core.rows import without_label
from streamtron.core.sealed import read_sealed
from streamtron.core.text import label_text
from streamtron.data import (
    Manifest,
    ShardRecord,
    ShardRows,
    cache_files,
    deletions,
    find_shards,
)
from streamtron.data.blocks import has_one_value_a_row
from streamtron.data.labels import QUANTITY, LabelTable, are_quantity
from streamtron.data.manifest import no_rows
from streamtron.data.profile import guesses, look_at, with_guesses
from streamtron.data.readers import resolve_reading
from streamtron.data.sample import with_transformer
from streamtron.model.calibration import probability_map
from streamtron.model.import_model import load_any
from streamtron.model.linear_model import LinearModel
from streamtron.runs import witness
from streamtron.runs.explain import heaviest
from streamtron.runs.finished_run import RUN_SUFFIX
from streamtron.runs.forecast import forecast
from streamtron.runs.inputs import reading_from_settings
from streamtron.runs.learners import restored
from streamtron.runs.memory import DataSize, plan_memory
from streamtron.runs.store import CACHE, Store, is_run
from streamtron.runs.store import reading as open_to_read

_log = logging.getLogger("streamtron")

Kind = Literal["model", "witness", "run", "shards"]

LARGEST = 10
"""Weights shown of a model."""


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """Return what a path holds, by the first bytes of a file and not by its name."""
    if is_run(path):
        return "run"
    if not os.path.isfile(path):
        return "shards"
    with reading_from(path), open(path, "rb") as file:
        start = file.read(16)
    if start[8:9] == b"{":  # our sealed files: 8 bytes of length, then JSON
        content, _ = read_sealed(path, "model or witness")
        return "witness" if "witness_version" in content else "model"
    return "model" if start.startswith((b"solver_type", b"\x93NUMPY")) else "shards"


def inspect(paths: Sequence[str], settings: Settings, machine: Machine) -> dict[str, Any]:
    """Describe a model, a witness, a run directory, or shards, which are read once."""
    paths = [_run_of(path) for path in paths]
    for path in paths:
        _refuse_unbegun(path)
    kinds = {kind_of(path) for path in paths}
    if kinds == {"shards"}:
        return _describe_files(paths, settings, machine)
    if len(paths) > 1:
        raise SettingsError("inspect takes one model, one witness, one run directory, or shards.")
    [kind], [path] = kinds, paths
    if kind == "model":
        facts = describe_model(load_any(path))
        if "source" not in facts["settings"]:
            facts["format_version"] = read_sealed(path)[0]["format_version"]
        return facts
    return describe_witness(path) if kind == "witness" else describe_run(path)


def _describe_files(paths: list[str], settings: Settings, machine: Machine) -> dict[str, Any]:
    """Describe shards, and of tables each column and its kind as a feature; of tables that are no
    training set as they are only that, and why."""
    files, facts = find_shards(paths), dict[str, Any]()
    is_table = files[0].format not in ("libsvm", "vw")
    try:
        facts = describe_shards(paths, settings, machine)
    except StreamtronError as error:
        if not is_table:
            raise
        facts = {"kind": "table", "format": files[0].format, "refusal": str(error)}
    if is_table and facts.get("layout", "columns") in ("columns", "transformed"):
        reading = reading_from_settings(settings)
        profiles = look_at(files, reading, machine.thread_count)
        facts |= {"table": guesses(profiles, settings.label, settings.weight)}
        facts |= {"file": paths[0], "rows": max((profile.rows for profile in profiles), default=0)}
    return facts


def describe_model(model: LinearModel) -> dict[str, Any]:
    """Describe a model, and of many classes each of its ``learners``."""
    weights, single = model.sparse_weights, isinstance(model.bias, float)
    learners = [
        {
            "label": direction.positive,
            "nonzero_weights": int(direction.nonzero.nnz),
            "bias": direction.bias,
            "certificate": direction.certificate,
            "largest_weights": heaviest(model, direction, LARGEST),
        }
        for direction in model.directions()
    ]
    facts = {
        "kind": "model",
        "classification": model.kind,
        "columns": model.columns,
        "nonzero_weights": int(weights.nnz),
        "classes": list(model.classes),
        "settings": model.settings,
        "certificate": dict(model.certificate) or None,
        "calibration": model.calibration and model.calibration["method"],
        "probabilities": probability_map(model) is not None,
        "reading": {
            **model.reading,
            **({"transformer": dict(model.transformer.inputs)} if model.transformer else {}),
        },
    }
    if single:
        return facts | {name: learners[0][name] for name in ("bias", "largest_weights")}
    return facts | {"learners": learners}


def describe_witness(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe a witness: its shards, and the rows with a dual variable."""
    loaded = witness.load(path)
    rows = sum(values.length for _, values in loaded.stored)
    return {
        "kind": "witness",
        "bytes": os.path.getsize(path),
        "rows": sum(loaded.shard_rows),
        "learners": len(loaded.stored),
        "support_rows": rows,
        "shards": [shard._asdict() for shard in loaded.shards],
    }


def _run_of(path: str) -> str:
    """Return the run directory of a model that is not written yet."""
    run = path.rstrip("/") + RUN_SUFFIX
    return run if not os.path.exists(path) and os.path.isdir(run) else path


def _refuse_unbegun(path: str) -> None:
    """Raise a DataError for the directory of a run whose shards were still being prepared: what is
    there are no shards."""
    names = {*os.listdir(path)} if os.path.isdir(path) and not is_run(path) else {""}
    if names <= {LOCK, CACHE} and (LOCK in names or cache_files(os.path.join(path, CACHE))):
        holder = lock_holder(Path(path))
        what = f"{holder} prepares its shards" if holder else "what was to begin it was stopped"
        raise DataError(
            f"{path}: a run that has not begun: {what}. Call the same command again: shards that "
            "are prepared stay so."
        )


def describe_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe a run, writing nothing; damaged or incomplete files are described, not refused."""
    store = open_to_read(path)
    progress, ended = _progress(store), store.report is not None
    state, process = _state(store, progress)
    facts: dict[str, Any] = {
        "kind": "run",
        "state": state,
        "process": process,
        "next": _NEXT[state].format(run=os.fspath(path)),
        "settings": store.settings,
        "progress": progress,
        "cache_bytes": directory_bytes(store.path / CACHE),
    }
    if not ended:
        given = store.given
        shards = [{"name": name, "bytes": size} for name, size in given]
        return facts | {"bytes": sum(size for _, size in given), "shards": shards}
    manifest = store.manifest
    return facts | {
        "rows": manifest.rows,
        "nonzeros": manifest.nonzeros,
        "forgotten_rows": deletions.total(store.forgotten),
        "forgotten_shards": sum(shard.rows is None for shard in store.absent),
        "bytes": manifest.bytes,
        "shards": manifest.to_dict()["shards"],
    }


_NEXT = {
    "running": "wait for it; its progress is shown as of its last state",
    "ended": "certify {run} proves it again; update and forget change it; fit --resume with a "
    "smaller --tol trains on",
    "stopped": "streamtron fit with the same shards and settings and --resume goes on from the "
    "last state, --overwrite starts over",
    "begun": "streamtron fit with the same shards and settings and --resume starts it: no "
    "state was saved yet",
    "change interrupted": "call the update or forget that was interrupted again to complete it",
}
"""State of a run → the next step."""


def _state(store: Store, progress: Mapping[str, Any] | None) -> tuple[str, str | None]:
    """Return the state of a run, see ``_NEXT``, and the process that works on it."""
    if (process := lock_holder(store.path)) is not None:
        return "running", process
    if store.pending:
        return "change interrupted", None
    if store.report is not None and (progress is None or progress["finished"] is not False):
        return "ended", None
    return ("begun" if progress is None else "stopped"), None


def _progress(store: Store) -> dict[str, Any] | None:
    """Return how far the last state has come, None if there is none; of a state that cannot be read
    only that it is not known whether it has ``finished``."""
    try:
        if (saved := store.state()) is None:
            return None
        learners = restored(saved, Settings.from_dict(store.settings))
    except StreamtronError as error:  # damaged, of another version, or replaced meanwhile
        _log.warning("%s", error)
        return {"finished": None}
    gaps = [learner.certificate.relative_duality_gap for learner in learners if learner.certificate]
    return {
        "reading": saved.state.reading + 1,
        "seconds": saved.seconds,
        "nonzeros_read": saved.nonzeros_read,
        "bytes_read": saved.bytes_read,
        "labels": len(saved.labels),
        "finished": bool(learners) and all(learner.finished is not None for learner in learners),
        "full_epochs": max((learner.progress.full_epochs for learner in learners), default=0),
        "stage": max((learner.progress.reports[-1].name for learner in learners), default=None),
        "relative_duality_gap": max(gaps) if len(gaps) == len(learners) > 0 else None,
    }


def distinct(numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return rising numbers, each once: ``np.unique`` hashes them, in many times as long."""
    rising = np.sort(numbers)
    return np.asarray(rising[np.diff(rising, prepend=rising[:1] + np.uint32(1)) != 0])


def describe_shards(paths: Sequence[str], settings: Settings, machine: Machine) -> dict[str, Any]:
    """Read shards once and describe them, and the memory that a fit needs."""
    reading, files = reading_from_settings(settings, labels_required=False), find_shards(paths)
    settings = with_guesses(settings, paths, machine.threads)
    reading, _ = with_transformer(files, reading, settings)
    reading = resolve_reading(files[0], reading)
    table, records = LabelTable(), list[ShardRecord]()
    counts, unlabelled, targets = np.zeros(0, np.int64), 0, Moments()
    least, largest = np.inf, -np.inf
    seen: list[NDArray[np.uint32]] = [np.zeros(0, np.uint32)]  # columns, first those of all before
    by_row, first_row = True, 0
    for file in files:
        rows = nonzeros = 0
        with ShardRows(file, reading, table, threads=machine.threads) as shard:
            for chunk in shard.chunks():
                rows, nonzeros = rows + len(chunk), nonzeros + chunk.nonzeros
                seen.append(distinct(chunk.rows.indices[slice(*chunk.rows.indptr[[0, -1]])]))
                if sum(map(len, seen)) > 2 * len(seen[0]) + chunk.nonzeros:  # they have doubled
                    seen = [distinct(np.concatenate(seen))]
                by_row = by_row and has_one_value_a_row(chunk.rows)
                missing, offsets = without_label(chunk.codes), chunk.code_offsets
                unlabelled += int(np.sum(missing if offsets is None else np.diff(offsets) == 0))
                if reading.numbers:
                    targets.add(known := chunk.codes[~missing])
                    least = min(least, float(known.min(initial=np.inf)))
                    largest = max(largest, float(known.max(initial=-np.inf)))
                else:
                    chunk_counts = np.bincount(chunk.codes[~missing], minlength=len(table.labels))
                    chunk_counts[: len(counts)] += counts
                    counts = chunk_counts
        records.append(ShardRecord.of(file, shard.fingerprint(), rows, nonzeros, first_row))
        first_row += rows
    if not first_row:
        raise no_rows(files, reading.share)
    occurring = distinct(np.concatenate(seen))
    manifest = Manifest(tuple(records))
    several, classes = settings.many_labels or len(table.labels) > 2, len(table.labels)
    joint = settings.softmax and several
    learners = classes if several and not (settings.regression or joint) else 1
    classes = classes if joint else 1
    size = DataSize(manifest.rows, len(occurring), manifest.nonzeros, by_row, classes)
    plan = plan_memory(settings, machine, size, learners)
    from_one = int(files[0].format == "libsvm" and not (occurring == 0).any())
    base = from_one if reading.index_base == "auto" else int(reading.index_base)
    labels = zip(map(label_text, table.labels), counts.tolist(), strict=True)
    described = None
    if targets.rows:
        described = {"mean": float(targets.mean), "deviation": float(targets.deviation)}
        described |= {"least": least, "largest": largest}
    return {
        "kind": "shards",
        "format": files[0].format,
        "layout": reading.layout,
        "features": None if reading.features is None else list(reading.features),
        "rows": manifest.rows,
        "columns": max(int(occurring[-1]) + 1 - base, 0) if len(occurring) else 0,
        "nonzeros": manifest.nonzeros,
        "bytes": manifest.bytes,
        "bytes_read": sum(file.bytes_to_read for file in files),
        "index_base": base,
        "labels": dict(labels),
        "remark": QUANTITY if are_quantity(table.labels) else None,
        "targets": described,
        "unlabelled_rows": unlabelled,
        "shards": manifest.to_dict()["shards"],
        "plan": plan.to_dict() | forecast(settings, size, files[0].format)._asdict(),
    }


def directory_bytes(directory: str | os.PathLike[str]) -> int:
    """Return the bytes of the files below a directory; 0 if it does not exist."""
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
