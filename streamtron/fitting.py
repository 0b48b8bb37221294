"""Settings in, model on disk out: one fit from shards to a certified model."""

from __future__ import annotations

import json
import math
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron import witness as witness_file
from streamtron.certificate import Certificate
from streamtron.chunk import Label
from streamtron.config import Machine, Settings
from streamtron.errors import DataError, SettingsError
from streamtron.events import Listener, ignore
from streamtron.memory import check_memory, columns_allowed, memory_needed
from streamtron.model import LinearModel
from streamtron.sealed import write_atomically
from streamtron.shards import Manifest, Reading, ShardSource, open_shards
from streamtron.shards.names import load_vocabulary
from streamtron.training.learner import Learner
from streamtron.training.loop import train

EXIT_CODES = {"certified": 0, "converged": 0, "epoch limit": 4, "inseparable": 4}


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a run came to.

    Parameters
    ----------
    model : with its certificate.
    report : plain values, the report file's content.
    ending : ``"certified"``, ``"converged"``, ``"epoch limit"``, or ``"inseparable"`` (Δ = 0, and
        no classifier has a margin above the upper bound, which is next to nothing).
    counts : int32, shape (rows,): the witness.
    manifest : what the shards contain.
    """

    model: LinearModel
    report: dict[str, Any]
    ending: str
    counts: NDArray[np.int32]
    manifest: Manifest

    @property
    def exit_code(self) -> int:
        """0 certified or converged, 4 stopped before the tolerance was certified."""
        return EXIT_CODES[self.ending]


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
    listen: Listener = ignore,
) -> Outcome:
    """A fit with everything it leaves behind: model, report, witness, run directory.

    Parameters as in ``fit``; ``report`` and ``witness`` name files to write as well.
    """
    began = time.perf_counter()
    paths = as_paths(shards)
    check_memory(memory_needed(settings, rows=0, columns=0), machine)
    with (
        cache_directory(model, machine) as cache,
        open_shards(
            paths,
            reading_of(settings),
            cache_dir=cache,
            most_columns=columns_allowed(settings, machine),
            allow_duplicate=settings.allow_duplicate,
            on_bad_shard=settings.on_bad_shard,
        ) as source,
    ):
        learner = Learner(settings, source.labels, class_weights(source, settings))
        train(source, [learner], settings, listen)
        outcome = _conclude(source, learner, settings, time.perf_counter() - began)
    if model is not None:
        directory = Path(run_directory(model))
        directory.mkdir(parents=True, exist_ok=True)
        witness_file.save(directory / "witness", outcome.counts, outcome.manifest)
        outcome.manifest.save(str(directory / "manifest.json"))
        outcome.model.save(model)
    if witness is not None:
        witness_file.save(witness, outcome.counts, outcome.manifest)
    if report is not None:
        text = json.dumps(outcome.report, indent=2, allow_nan=False) + "\n"
        write_atomically(report, [text.encode()])
    return outcome


def _conclude(source: ShardSource, learner: Learner, settings: Settings, seconds: float) -> Outcome:
    labels = list(source.labels)
    if len(labels) < 2:
        raise DataError(
            f"all {source.rows} rows have the label {labels[0]}: wanted two labels. "
            "Check --label, or add shards that hold the other one."
        )
    if unknown := [label for label in learner.targets.class_weights or () if label not in labels]:
        raise SettingsError(
            f"class-weight names the label {unknown[0]}, the data has {labels[0]} and {labels[1]}."
        )
    assert learner.certificate is not None
    assert learner.finished is not None
    assert source.manifest is not None
    assert source.index_base is not None
    turn = 1.0 if _key(labels[0]) > _key(labels[1]) else -1.0
    base = source.index_base
    weights = np.zeros(max(source.width - base, 0))
    found = learner.weights[base : source.width]
    weights[: len(found)] = turn * found
    certificate = covering(learner.certificate, source)
    model = LinearModel(
        weights=weights,
        bias=turn * settings.rho * learner.bias,
        classes=(min(labels, key=_key), max(labels, key=_key)),
        # the names of the vocabulary are in the contract; the path of its file is not the model's
        settings=settings.but(vocabulary=None).to_dict(),
        certificate=certificate,
        reading={**source.reading.contract(), "index_base": base},
    )
    report = {
        "rows": source.rows,
        "columns": model.columns,
        "nonzeros": source.nonzeros,
        "readings": source.readings,
        "full_epochs": learner.full_epochs,
        "seconds": seconds,
        "bytes_read": source.bytes_read,
        "peak_rss_bytes": peak_memory(),
        "settings": settings.to_dict(),
        "ending": learner.finished,
        "radius": math.sqrt(learner.sq_radius),
        "clipped": learner.dual.clipped,
        "skipped": [shard._asdict() for shard in source.skipped],
        "stages": [stage.to_dict() for stage in learner.reports],
        "certificate": certificate,
    }
    counts = learner.counts[: source.rows]
    return Outcome(model, report, learner.finished, counts, source.manifest)


def _key(label: Label) -> Any:
    return label


# --- what the faces share ---


def covering(certificate: Certificate, source: ShardSource) -> dict[str, Any]:
    """The certificate as plain values. It covers the rows that were read: ``skipped`` lists the
    shards, with the reasons, that it says nothing of, where there are any."""
    plain: dict[str, Any] = certificate.to_dict()
    if source.skipped:
        plain["skipped"] = [shard._asdict() for shard in source.skipped]
    return plain


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
    """How a model's shards are to be read: by its own contract, never by detection.

    ``strangers``, names that the model's vocabulary does not have, are ``"refused"``, or put
    ``"beyond"`` the model's width, where they weigh 0.
    """
    return replace(
        Reading.from_contract(model.reading),
        labels="optional" if labels == "optional" else "required",
        strangers="beyond" if strangers == "beyond" else "refused",
    )


def run_directory(model: str | os.PathLike[str]) -> str:
    """Where a run keeps its witness, manifest and cache: ``MODEL.run``."""
    return os.fspath(model) + ".run"


@contextmanager
def cache_directory(model: str | os.PathLike[str] | None, machine: Machine) -> Iterator[str]:
    """The cache's directory: as given, or in the run directory, or temporary and removed."""
    if machine.cache_dir is not None:
        yield machine.cache_dir
    elif model is not None:
        directory = os.path.join(run_directory(model), "cache")
        try:
            yield directory
        finally:
            with suppress(OSError):  # what holds something stays
                os.rmdir(directory)
                os.rmdir(run_directory(model))
    else:
        with tempfile.TemporaryDirectory(prefix="streamtron-") as directory:
            yield directory


def class_weights(source: ShardSource, settings: Settings) -> Mapping[Label, float] | None:
    """Weight of every label: as given, or n / (classes · n_label), counted by row
    weights, which needs a first reading."""
    given = settings.class_weight
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {_as_label(text): weight for text, weight in given.items()}
    total = np.zeros(0)
    for chunk in source.chunks():
        weights = np.ones(len(chunk)) if chunk.weights is None else chunk.weights
        found = np.zeros(len(source.labels))
        found[: len(total)] = total
        np.add.at(found, chunk.codes, weights)
        total = found
    return {
        label: float(total.sum() / (len(total) * weight)) if weight > 0.0 else 1.0
        for label, weight in zip(source.labels, total, strict=True)
    }


def _as_label(text: Label) -> Label:
    if isinstance(text, str):
        try:
            return float(text)
        except ValueError:
            return text
    return text


def peak_memory() -> int:
    """Peak resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


__all__ = ["Outcome", "fit", "run"]
