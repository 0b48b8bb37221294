"""Results of a run: model, report and witness, made from learners and written to files."""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.core.files import remove_half_written, write_atomically
from streamtron.core.rows import Label
from streamtron.data import Manifest, ShardSource, Skipped, deletions
from streamtron.data.deletions import Deletions
from streamtron.model.linear_model import LinearModel, joint_certificate
from streamtron.runs import witness as witness_file
from streamtron.runs.learners import given_class_weights, is_one_vs_rest
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner

EXIT_CODES = {"certified": 0, "converged": 0, "no margin": 4, "epoch limit": 4}
"""Stop reason of a learner → exit code. Of several learners the last reason here is the run's."""

STOP_REASONS = tuple(EXIT_CODES)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Results of a run.

    Parameters
    ----------
    model : with its certificate.
    report : plain values, the report file's content.
    stop_reason : ``"certified"``, ``"converged"``, ``"epoch limit"``, or ``"no margin"``: Δ = 0,
        and the upper bound of the margin is at most 10⁻⁴ of the rows' length.
    counts : the witness: the counts of every learner.
    manifest : of the shards.
    deletions : rows of the shards that were forgotten.
    """

    model: LinearModel
    report: dict[str, Any]
    stop_reason: str
    counts: tuple[Counts, ...]
    manifest: Manifest
    deletions: tuple[Deletions, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 certified or converged, 4 stopped before the tolerance was certified."""
        return EXIT_CODES[self.stop_reason]


def build_outcome(
    source: ShardSource,
    learners: Sequence[Learner],
    settings: Settings,
    seconds: float,
    *,
    readings: float | None = None,
    before: LinearModel | None = None,
) -> Outcome:
    """Build the outcome of finished learners.

    Parameters
    ----------
    readings : of these learners alone; None = all readings of the source.
    before : model of other rows, at least as wide as which the new model is.

    Raises
    ------
    SettingsError : class weights for a label that the data does not have.
    """
    labels = list(source.labels)
    _check_class_weights(settings, labels)
    assert source.manifest is not None
    learners = in_order(learners, labels, settings)
    model = _model(source, learners, settings, before)
    deleted = tuple(shard.without for shard in source.shards if shard.without)
    data = {
        "rows": source.rows,
        "nonzeros": source.nonzeros,
        "readings": source.readings if readings is None else readings,
        "seconds": seconds,
        "bytes_read": source.bytes_read,
    }
    return _outcome(data, model, learners, settings, source.manifest, source.skipped, deleted)


def unchanged_outcome(
    model: LinearModel,
    learners: Sequence[Learner],
    settings: Settings,
    labels: Sequence[Label],
    manifest: Manifest,
    skipped: Sequence[Skipped],
    deleted: tuple[Deletions, ...],
) -> Outcome:
    """Build the outcome of a finished run that stays as it is; nothing is read."""
    learners = in_order(learners, list(labels), settings)
    data = {
        "rows": manifest.rows, "nonzeros": manifest.nonzeros, "readings": 0.0, "seconds": 0.0,
        "bytes_read": 0,
    }  # fmt: skip
    return _outcome(data, model, learners, settings, manifest, skipped, deleted)


def _outcome(
    data: Mapping[str, Any],
    model: LinearModel,
    learners: Sequence[Learner],
    settings: Settings,
    manifest: Manifest,
    skipped: Sequence[Skipped],
    deleted: tuple[Deletions, ...],
) -> Outcome:
    """Build the outcome; ``data`` are the report's entries about readings."""
    own = [_report_of(learner, skipped) for learner in learners]
    stop_reason = max((each["stop_reason"] for each in own), key=STOP_REASONS.index)
    report: dict[str, Any] = {
        **data,
        "columns": model.columns,
        "full_epochs": max(each["full_epochs"] for each in own),
        "peak_rss_bytes": peak_memory(),
        "settings": settings.to_dict(),
        "stop_reason": stop_reason,
        "skipped": [shard._asdict() for shard in skipped],
    }
    if deleted:
        report["forgotten_rows"] = deletions.total(deleted)
    if model.kind == "two classes":
        report |= own[0]
    else:
        report["certificate"] = dict(model.certificate or {})
        del report["certificate"]["learners"]
        report["learners"] = [
            {"label": label, **each} for label, each in zip(model.classes, own, strict=True)
        ]
    counts = tuple(learner.counts for learner in learners)
    return Outcome(model, _excluding(report, deleted), stop_reason, counts, manifest, deleted)


def _excluding(report: Mapping[str, Any], deleted: Sequence[Deletions]) -> dict[str, Any]:
    """Add ``rows_excluded`` to the report's certificates. The model's have none: it is the model of
    the remaining rows."""
    excluded = {"rows_excluded": deletions.total(deleted)}
    found = {**report, "certificate": {**report["certificate"], **excluded}}
    if "learners" in report:
        found["learners"] = [
            {**each, "certificate": {**each["certificate"], **excluded}}
            for each in report["learners"]
        ]
    return found


def append_outcome(outcome: Outcome, before: Manifest, deleted: tuple[Deletions, ...]) -> Outcome:
    """Extend the outcome of added rows, so that manifest, witness and deletions cover all rows.

    Parameters
    ----------
    before : the shards that were not read.
    deleted : rows of these that were forgotten.
    """
    added = tuple(
        replace(shard, first_row=shard.first_row + before.rows) for shard in outcome.manifest.shards
    )
    deleted = (*deleted, *outcome.deletions)
    return replace(
        outcome,
        report=_excluding(outcome.report, deleted),
        manifest=Manifest((*before.shards, *added)),
        deletions=deleted,
    )


def write_outcome(
    outcome: Outcome,
    *,
    model: str | os.PathLike[str] | None = None,
    run: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    witness: str | os.PathLike[str] | None = None,
    home: str | os.PathLike[str] | None = None,
) -> None:
    """Write the model, the run's witness and manifest, the report, and a copy of the witness.

    What is None is not written. The run's old witness and manifest are removed first, so that a
    full disk never leaves a model beside another model's witness.

    Parameters
    ----------
    home : the run directory, if ``run`` is a staged copy of it.

    Raises
    ------
    MachineError : a file cannot be written.
    """
    for path in (model, report, witness) if run is not None else ():
        if path is not None:
            remove_half_written(path)  # by a killed process: the run is locked
    if run is not None:
        for name in ("witness", "manifest.json"):
            Path(run, name).unlink(missing_ok=True)
    if model is not None:
        outcome.model.save(model)
    if run is not None:
        directory = Path(run)
        directory.mkdir(parents=True, exist_ok=True)
        _save_witness(directory / "witness", outcome)
        outcome.manifest.save(str(directory / "manifest.json"), os.fspath(home or directory))
        if outcome.deletions:
            deletions.save(directory / deletions.NAME, outcome.deletions)
    if witness is not None:
        _save_witness(witness, outcome)
    if report is not None:
        text = json.dumps(outcome.report, indent=2, allow_nan=False) + "\n"
        write_atomically(report, [text.encode()])


def _save_witness(path: str | os.PathLike[str], outcome: Outcome) -> None:
    witness_file.save(path, outcome.counts, outcome.manifest, outcome.deletions)


def peak_memory() -> int:
    """Return the peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_order(learners: Sequence[Learner], labels: list[Label], settings: Settings) -> list[Learner]:
    """Return the learners in the order of the model's classes; ``labels`` in the order of codes."""
    if not is_one_vs_rest(settings):
        return list(learners)
    by_label = dict(zip(labels, learners, strict=True))
    classes = sorted(labels, key=_sort_key)
    if len(classes) == 2 and not settings.multilabel:
        classes = classes[1:]  # the two learners differ in their sign only
    return [by_label[label] for label in classes]


def sign_of_learner(labels: Sequence[Label], classes: Sequence[Label], settings: Settings) -> float:
    """Return ±1, the factor of a learner's weights in the model.

    The model's positive class is the larger of two, the learner's is the first one met."""
    return -1.0 if not is_one_vs_rest(settings) and labels[0] == classes[0] else 1.0


def _model(
    source: ShardSource,
    learners: Sequence[Learner],
    settings: Settings,
    before: LinearModel | None,
) -> LinearModel:
    classes = tuple(sorted(source.labels, key=_sort_key))
    two = len(learners) == 1 and not settings.multilabel
    sign = sign_of_learner(source.labels, classes, settings)
    base = source.index_base if before is None else before.index_base
    width = max(source.width - (base or 0), 0 if before is None else before.columns)
    weights = np.array([sign * _weights(learner, base or 0, width) for learner in learners])
    bias = np.array([sign * settings.rho * learner.bias for learner in learners])
    certificates = [_certificate(learner, source.skipped) for learner in learners]
    return LinearModel(
        weights=weights[0] if two else weights,
        bias=float(bias[0]) if two else bias,
        classes=classes,
        # the vocabulary is in the reader's contract; the path of its file is not stored
        settings=settings.but(vocabulary=None).to_dict(),
        certificate=certificates[0] if two else joint_certificate(certificates),
        reading={**source.reading.contract(), "index_base": base},
    )


def _weights(learner: Learner, base: int, columns: int) -> NDArray[np.float64]:
    weights = np.zeros(columns)
    found = learner.weights[base : base + columns]
    weights[: len(found)] = found
    return weights


def _report_of(learner: Learner, skipped: Sequence[Skipped]) -> dict[str, Any]:
    return {
        "full_epochs": learner.progress.full_epochs,
        "stop_reason": learner.progress.finished,
        "radius": math.sqrt(learner.extent.sq_radius),
        "clipped_updates": learner.running.clipped_updates,
        "drift_repaired": learner.best.drift_repaired,
        "stages": [stage.to_dict() for stage in learner.progress.reports],
        "certificate": _certificate(learner, skipped),
    }


def _certificate(learner: Learner, skipped: Sequence[Skipped]) -> dict[str, Any]:
    """Return the certificate as plain values, with the skipped shards, which it does not cover."""
    assert learner.certificate is not None
    plain: dict[str, Any] = learner.certificate.to_dict()
    if skipped:
        plain["skipped"] = [shard._asdict() for shard in skipped]
    return plain


def _check_class_weights(settings: Settings, labels: list[Label]) -> None:
    unknown = [label for label in given_class_weights(settings) if label not in labels]
    if unknown:
        has = " and ".join(str(label) for label in labels[:10])
        raise SettingsError(f"class-weight names the label {unknown[0]}, the data has {has}.")


def _sort_key(label: Label) -> Any:
    return label
