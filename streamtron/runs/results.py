"""What a run came to: model, report, witness; from the learners to the files."""

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
from streamtron.core.rows import Label
from streamtron.core.sealed import remove_half_written, write_atomically
from streamtron.data import Manifest, ShardSource, Skipped, deletions
from streamtron.data.deletions import Deletions
from streamtron.model.linear_model import LinearModel, joint_certificate
from streamtron.runs import witness as witness_file
from streamtron.runs.learners import given_class_weights, several
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner

ENDINGS = ("certified", "converged", "no margin", "epoch limit")
"""How a learner may end; of several learners the last one named here speaks for all."""

EXIT_CODES = {"certified": 0, "converged": 0, "epoch limit": 4, "no margin": 4}
"""Whether what was asked for was had."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a run came to.

    Parameters
    ----------
    model : with its certificate.
    report : plain values, the report file's content.
    ending : ``"certified"``, ``"converged"``, ``"epoch limit"``, or ``"no margin"`` (Δ = 0, and no
        classifier has a margin above the upper bound, which is a ten-thousandth of the rows' length
        or less).
    counts : the witness: of every learner, those of two classes or one a class.
    manifest : what the shards contain.
    deletions : the rows of them that were forgotten and left out.
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


def conclude(
    source: ShardSource,
    learners: Sequence[Learner],
    settings: Settings,
    seconds: float,
    *,
    readings: float | None = None,
    before: LinearModel | None = None,
) -> Outcome:
    """The outcome of one candidate's learners, which are finished.

    Parameters
    ----------
    readings : those that it took, alone; None = all that the source delivered.
    before : the model of rows that the source does not have, whose columns stay.

    Raises
    ------
    SettingsError : class weights for a label that is not there.
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


def as_it_stands(
    model: LinearModel,
    learners: Sequence[Learner],
    settings: Settings,
    labels: Sequence[Label],
    manifest: Manifest,
    skipped: Sequence[Skipped],
    deleted: tuple[Deletions, ...],
) -> Outcome:
    """The outcome of a run that has ended and is left as it is; nothing is read.

    Parameters
    ----------
    model : the run's.
    learners : finished; ``labels`` as they met them.
    """
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
    """The outcome with its report; ``data``: what was read."""
    own = [_own_report(learner, skipped) for learner in learners]
    stop_reason = max((each["stop_reason"] for each in own), key=ENDINGS.index)
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
    """The report whose certificates have the number of ``rows_excluded``. The model's do not: it is
    the model of the rows that are left, whatever else their files hold."""
    excluded = {"rows_excluded": deletions.total(deleted)}
    found = {**report, "certificate": {**report["certificate"], **excluded}}
    if "learners" in report:
        found["learners"] = [
            {**each, "certificate": {**each["certificate"], **excluded}}
            for each in report["learners"]
        ]
    return found


def behind(outcome: Outcome, before: Manifest, deleted: tuple[Deletions, ...]) -> Outcome:
    """The outcome of rows that were added behind others which were not read: manifest, witness and
    the rows that were forgotten are of all of them.

    Parameters
    ----------
    before : the shards before.
    deleted : the rows of them that were forgotten.
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
    """Write what a run leaves behind: the model; witness and manifest in its run directory; the
    report; the witness once more. What is None is not written.

    The run's old witness and manifest go first: wherever the disk is full, no model is left beside
    another's witness. ``home`` is the run directory where ``run`` is one that takes its place.

    Raises
    ------
    MachineError : a file cannot be written.
    """
    for path in (model, report, witness) if run is not None else ():
        if path is not None:
            remove_half_written(path)  # by a process that was killed: the run is locked
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
    """Peak resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_order(learners: Sequence[Learner], labels: list[Label], settings: Settings) -> list[Learner]:
    """The learners that the model has, in the order of its classes; ``labels`` as they were met."""
    if not several(settings):
        return list(learners)
    by_label = dict(zip(labels, learners, strict=True))
    classes = sorted(labels, key=_key)
    if len(classes) == 2 and not settings.multilabel:
        classes = classes[1:]  # two learners that differ in nothing but the sign
    return [by_label[label] for label in classes]


def turn(labels: Sequence[Label], classes: Sequence[Label], settings: Settings) -> float:
    """±1, by which a learner's weights are multiplied to be the model's: of two classes the larger
    is +1 there, and without a positive label the learner's is the first one met."""
    return -1.0 if not several(settings) and labels[0] == classes[0] else 1.0


def _model(
    source: ShardSource,
    learners: Sequence[Learner],
    settings: Settings,
    before: LinearModel | None,
) -> LinearModel:
    classes = tuple(sorted(source.labels, key=_key))
    two = len(learners) == 1 and not settings.multilabel
    sign = turn(source.labels, classes, settings)
    base = source.index_base if before is None else before.index_base
    width = max(source.width - (base or 0), 0 if before is None else before.columns)
    weights = np.array([sign * _weights(learner, base or 0, width) for learner in learners])
    bias = np.array([sign * settings.rho * learner.bias for learner in learners])
    certificates = [_certificate(learner, source.skipped) for learner in learners]
    return LinearModel(
        weights=weights[0] if two else weights,
        bias=float(bias[0]) if two else bias,
        classes=classes,
        # the names of the vocabulary are in the contract; the path of its file is not the model's
        settings=settings.but(vocabulary=None).to_dict(),
        certificate=certificates[0] if two else joint_certificate(certificates),
        reading={**source.reading.contract(), "index_base": base},
    )


def _weights(learner: Learner, base: int, columns: int) -> NDArray[np.float64]:
    weights = np.zeros(columns)
    found = learner.weights[base : base + columns]
    weights[: len(found)] = found
    return weights


def _own_report(learner: Learner, skipped: Sequence[Skipped]) -> dict[str, Any]:
    return {
        "full_epochs": learner.full_epochs,
        "stop_reason": _ending(learner),
        "radius": math.sqrt(learner.sq_radius),
        "clipped": learner.dual.clipped,
        "drift_repaired": learner.drift_repaired,
        "stages": [stage.to_dict() for stage in learner.reports],
        "certificate": _certificate(learner, skipped),
    }


def _certificate(learner: Learner, skipped: Sequence[Skipped]) -> dict[str, Any]:
    """The certificate as plain values. It covers the rows that were read: ``skipped`` lists the
    shards, with the reasons, that it says nothing of, where there are any."""
    assert learner.certificate is not None
    plain: dict[str, Any] = learner.certificate.to_dict()
    if skipped:
        plain["skipped"] = [shard._asdict() for shard in skipped]
    return plain


def _ending(learner: Learner) -> str:
    assert learner.finished is not None
    return learner.finished


def _check_class_weights(settings: Settings, labels: list[Label]) -> None:
    unknown = [label for label in given_class_weights(settings) if label not in labels]
    if unknown:
        has = " and ".join(str(label) for label in labels[:10])
        raise SettingsError(f"class-weight names the label {unknown[0]}, the data has {has}.")


def _key(label: Label) -> Any:
    return label
