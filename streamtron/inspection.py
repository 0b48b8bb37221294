"""What is in a file of ours or in a set of shards, told as plain values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamtron import witness
from streamtron.chunk import Chunk, Label
from streamtron.config import Machine, Settings
from streamtron.errors import MachineError, SettingsError
from streamtron.fitting import reading_of
from streamtron.foreign import load_any
from streamtron.memory import memory_needed
from streamtron.model import Direction, LinearModel
from streamtron.sealed import read_sealed
from streamtron.shards import Manifest, Reading, open_shards, tombstones
from streamtron.summary import label_text

Kind = Literal["model", "witness", "run", "shards"]

LARGEST = 10
"""Weights shown of a model."""


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """What a path holds: told by the first bytes, not by the name."""
    if os.path.isfile(os.path.join(path, "manifest.json")) and os.fspath(path).endswith(".run"):
        return "run"
    if not os.path.isfile(path):
        return "shards"
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError as error:
        raise MachineError(f"{path}: cannot be read ({error.strerror or error}).") from error
    if start[8:9] == b"{":  # our sealed files: 8 bytes of length, then JSON
        return (
            "witness" if "witness_version" in read_sealed(path, "model or witness")[0] else "model"
        )
    return "model" if start.startswith((b"solver_type", b"\x93NUMPY")) else "shards"


def inspect(paths: Sequence[str], settings: Settings, machine: Machine) -> dict[str, Any]:
    """What a model, a witness, a run directory or shards hold.

    Shards are read once, whole.

    Raises
    ------
    SettingsError : several paths of which one is not shards.
    DataError, MachineError
    """
    kinds = {kind_of(path) for path in paths}
    if kinds == {"shards"}:
        return describe_shards(paths, settings, machine)
    if len(paths) > 1:
        raise SettingsError("inspect takes one model, one witness, one run directory, or shards.")
    [kind], [path] = kinds, paths
    if kind == "model":
        return describe_model(load_any(path))
    return describe_witness(path) if kind == "witness" else describe_run(path)


def describe_model(model: LinearModel) -> dict[str, Any]:
    """Width, classes, settings, certificate, reader's contract and the largest weights; of many
    classes ``learners``, a list with the weights and the certificate of each."""
    facts = {
        "kind": "model",
        "classification": model.kind,
        "columns": model.columns,
        "nonzero_weights": int(np.count_nonzero(model.weights)),
        "classes": list(model.classes),
        "settings": dict(model.settings),
        "certificate": None if model.certificate is None else dict(model.certificate),
        "reading": dict(model.reading),
    }
    if model.kind == "two classes":
        [learner] = model.directions()
        return {
            **facts, "bias": learner.bias, "largest_weights": _largest(learner.weights, model),
        }  # fmt: skip
    return {**facts, "learners": [_learner(each, model) for each in model.directions()]}


def _learner(learner: Direction, model: LinearModel) -> dict[str, Any]:
    return {
        "label": learner.positive,
        "nonzero_weights": int(np.count_nonzero(learner.weights)),
        "bias": learner.bias,
        "certificate": learner.certificate,
        "largest_weights": _largest(learner.weights, model),
    }


def _largest(weights: NDArray[np.float64], model: LinearModel) -> list[dict[str, Any]]:
    """Column, name and weight of the heaviest columns."""
    names = model.feature_names
    heaviest = np.argsort(-np.abs(weights), kind="stable")[:LARGEST]
    return [
        {
            "column": int(j) + model.index_base,
            **({"name": names[j]} if j < len(names) else {}),
            "weight": float(weights[j]),
        }
        for j in heaviest
        if weights[j]
    ]


def describe_witness(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The shards a witness speaks of, rows that have a count, and t, the sum of all counts."""
    found = witness.contents(path)
    return {
        "kind": "witness",
        "bytes": os.path.getsize(path),
        "rows": sum(shard.rows for shard in found.shards),
        "learners": len(found.counts),
        "support_rows": sum(len(own) for own in found.counts),
        "steps": sum(int(own.sum(dtype=np.int64)) for own in found.counts),
        "largest_count": max((int(own.max(initial=0)) for own in found.counts), default=0),
        "shards": [shard._asdict() for shard in found.shards],
    }


def describe_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The shards a run was fitted on, its witness, the rows it has forgotten of them since, and the
    size of its cache."""
    directory = Path(path)
    manifest = Manifest.load(str(directory / "manifest.json"))
    counts = directory / "witness"
    return {
        "kind": "run",
        "rows": manifest.rows,
        "nonzeros": manifest.nonzeros,
        "forgotten_rows": tombstones.total(tombstones.load(directory).values()),
        "bytes": manifest.bytes,
        "witness": str(counts) if counts.is_file() else None,
        "cache_bytes": directory_bytes(directory / "cache"),
        "shards": manifest.to_dict()["shards"],
    }


def describe_shards(paths: Sequence[str], settings: Settings, machine: Machine) -> dict[str, Any]:
    """Files, rows, columns, nonzeros, the rows of each label, and the memory a fit would need."""
    with open_shards(list(paths), reading_of(settings, labels="optional"), cache_dir=None,
                     most_labels=None, allow_duplicate=True,
                     threads=machine.threads,
                     on_bad_shard=settings.on_bad_shard) as source:  # fmt: skip
        counts, unlabelled = np.zeros(0, dtype=np.int64), 0
        for chunk in source.chunks():
            found = np.bincount(chunk.codes[chunk.codes >= 0], minlength=len(source.labels))
            found[: len(counts)] += counts
            counts = found
            unlabelled += _unlabelled(chunk)
        assert source.manifest is not None
        columns = max(source.width - (source.index_base or 0), 0)
        return {
            "kind": "shards",
            "format": source.shards[0].format,
            "layout": source.reading.layout,
            "features": _features(source.reading),
            "rows": source.manifest.rows,
            "columns": columns,
            "nonzeros": source.manifest.nonzeros,
            "bytes": source.manifest.bytes,
            "index_base": source.index_base,
            "labels": _labels(source.labels, counts),
            "unlabelled_rows": unlabelled,
            "shards": source.manifest.to_dict()["shards"],
            "skipped": [shard._asdict() for shard in source.skipped],
            "plan": _plan(settings, machine, source.manifest.rows, columns),
        }


def _features(reading: Reading) -> list[str] | None:
    """The columns that the features were found in."""
    return None if reading.features is None else list(reading.features)


def _unlabelled(chunk: Chunk) -> int:
    """Rows of a chunk without a label."""
    if chunk.code_offsets is None:
        return int(np.count_nonzero(chunk.codes < 0))
    return int(np.count_nonzero(np.diff(chunk.code_offsets) == 0))


def _labels(labels: Sequence[Label], counts: np.ndarray[Any, Any]) -> dict[str, int]:
    return {label_text(label): int(n) for label, n in zip(labels, counts, strict=True)}


def _plan(settings: Settings, machine: Machine, rows: int, columns: int) -> dict[str, Any]:
    needs = memory_needed(settings, rows=rows, columns=columns)
    return {
        "items": {need.what: need.size for need in needs},
        "total": sum(need.size for need in needs),
        "limit": machine.memory_limit,
    }


def directory_bytes(directory: str | os.PathLike[str]) -> int:
    """Bytes of the files below a directory; 0 if it is not there."""
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
