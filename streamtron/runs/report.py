"""Results of a run: model, report and witness, made from learners and written to files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import dual_of, dual_weights_off
from streamtron.core.config import Settings, meets
from streamtron.core.files import remove_half_written, write_atomically
from streamtron.core.limits import peak_memory
from streamtron.core.rows import Label
from streamtron.data import Dataset, Manifest, ReaderConfig, ShardFile, deletions
from streamtron.data.deletions import Deletions
from streamtron.model.certainty import ball_of
from streamtron.model.display import joint_certificate
from streamtron.model.linear_model import LinearModel
from streamtron.model.validation import stored_weights
from streamtron.runs import witness as witness_file
from streamtron.runs.learners import TIME_LIMIT, in_order, weights_of
from streamtron.solver.alphas import Alphas
from streamtron.solver.learner import Learner
from streamtron.solver.progress import ENDS, PHASES

STOP_REASONS = (*ENDS, "time limit")
"""Of a learner; of several learners the last one here is the run's."""

NOT_CERTIFIED = 4
"""The exit code of a fit that did not meet its tolerance, for whatever reason."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Outcome:
    """Results of a run: its model; the report file's content as plain values; the witness, which
    is the dual variables of every learner; the manifest of the shards, and their forgotten rows."""

    model: LinearModel
    report: dict[str, Any]
    alphas: tuple[Alphas, ...]
    manifest: Manifest
    deletions: tuple[Deletions, ...] = ()

    def __repr__(self) -> str:
        return f"Outcome({self.stop_reason}; {self.model!r})"

    @property
    def stop_reason(self) -> str:
        """``"certified"``, ``"converged"``, ``"epoch limit"`` or ``"time limit"``."""
        return str(self.report["stop_reason"])

    @property
    def exit_code(self) -> int:
        """0 where the tolerance is certified, or was 0 and the run converged; else 4."""
        gap = self.report["certificate"]["relative_duality_gap"]
        return 0 if meets(self.report["settings"], gap, self.stop_reason) else NOT_CERTIFIED

    def write(
        self, report: str | os.PathLike[str] | None, witness: str | os.PathLike[str] | None = None
    ) -> None:
        """Write the report and the witness where they are named."""
        for path in (witness, report):
            if path is not None:
                remove_half_written(path)  # by a process that has died
        if witness is not None:
            witness_file.save(witness, self.alphas, self.manifest, self.deletions)
        if report is not None:
            text = json.dumps(self.report, indent=2, allow_nan=False) + "\n"
            write_atomically(report, [text.encode()])


def build_outcome(
    data: Dataset,
    learners: Sequence[Learner],
    settings: Settings,
    read: Mapping[str, Any],
    *,
    preparing: float,
) -> Outcome:
    """Build the outcome of finished learners. ``read`` : their readings, seconds and bytes.
    ``preparing`` : seconds of it."""
    learners = in_order(learners, list(data.labels), settings)
    model, manifest = _model(data, learners, settings), data.manifest
    deleted = deletions_of(data.shards)
    excluded = {"rows_excluded": deletions.total(deleted)}  # the model has none: it is of the rest
    reports = [_report_of(learner, excluded) for learner in learners]
    stop_reason = max((entry["stop_reason"] for entry in reports), key=STOP_REASONS.index)
    phases = {
        name: sum((learner.progress.phases[name] for learner in learners), 0.0) for name in PHASES
    }
    report: dict[str, Any] = {
        "rows": manifest.rows,
        "nonzeros": manifest.nonzeros,
        **read,
        **_columns_of_table(data.reading),
        "columns": model.columns,
        "full_epochs": max(entry["full_epochs"] for entry in reports),
        "visits": sum(k.progress.visited for k in learners) / max(manifest.nonzeros, 1),
        "phases": {"preparing": preparing, **phases},
        "peak_rss_bytes": peak_memory(),
        "settings": settings.to_dict(),
        "stop_reason": stop_reason,
    }
    if settings.penalty != "l2":
        report["nonzero_weights"] = model.sparse_weights.nnz
    if deleted:
        report["forgotten_rows"] = excluded["rows_excluded"]
    if "learners" not in model.certificate:
        report |= reports[0]
    else:
        report["certificate"] = {**(model.certificate or {}), **excluded}
        del report["certificate"]["learners"]
        report["learners"] = [
            {"label": label, **entry} for label, entry in zip(model.classes, reports, strict=True)
        ]
    alphas = witness_file.alphas_of(learners, data.labels)
    return Outcome(model, report, tuple(alphas), manifest, deleted)


def deletions_of(shards: Iterable[ShardFile]) -> tuple[Deletions, ...]:
    """Return the deletions of every shard that has some."""
    return tuple(shard.without for shard in shards if shard.without)


def _columns_of_table(reading: ReaderConfig) -> dict[str, Any]:
    """Return the columns of a table that are features, and the others; nothing of other shards."""
    if reading.unused is None:
        return {}
    features = reading.transformer.columns if reading.transformer else reading.features or ()
    return {"features": [*features], "columns_not_used": dict(reading.unused)}


def sign_of_learner(labels: Sequence[Label], classes: Sequence[Label], settings: Settings) -> float:
    """Return ±1, the factor of a learner's weights in the model.

    The model's positive class is the larger of two, the learner's is the first one met."""
    two = not (settings.one_vs_rest or settings.softmax)
    return -1.0 if two and labels and labels[0] == classes[0] else 1.0


def _model(data: Dataset, learners: Sequence[Learner], settings: Settings) -> LinearModel:
    """Make the model of learners, in the columns' own numbers, the base taken off."""
    classes = tuple(sorted(data.labels))
    single = len(learners) == 1 and not settings.multilabel
    directions = weights_of(learners, data.labels)
    sign = sign_of_learner(data.labels, classes, settings)
    base = data.index_base
    numbers = data.numbers - np.uint32(base)
    kept = [_nonzero(w, numbers) for _, w, _ in directions]
    certificates = [certificate_of(learner) for learner in learners]
    values = np.concatenate(
        [sign * w[ranks] for (_, w, _), ranks in zip(directions, kept, strict=True)]
    )
    of_learners, offsets = list(map(_ball, learners, certificates, kept)), None
    balls = [ball for ball in of_learners if ball is not None]
    if len(balls) == len(learners):
        offsets = np.float16(sign) * np.concatenate([of_columns for of_columns, _ in balls])
        for learner, proven, (_, ball) in zip(learners, certificates, balls, strict=True):
            proven["ball"] = {**ball, "bias": sign * learner.augmentation * ball["bias"]}
    starts = np.cumsum([0, *map(len, kept)])
    bias = np.array([sign * learner.augmentation * of_rho for learner, _, of_rho in directions])
    bias += [learner.targets.center for learner, *_ in directions]
    transformer = data.reading.transformer
    width = transformer.width if transformer else max(data.width - base, 0)
    return LinearModel(
        weights=stored_weights(
            values, np.concatenate([numbers[ranks] for ranks in kept]), starts, width
        ),
        bias=float(bias[0]) if single and len(bias) == 1 else bias,
        classes=classes,
        settings=settings.to_dict(),
        certificate=certificates[0] if single else joint_certificate(certificates),
        reading={
            **replace(data.reading, multiclass=settings.multiclass).contract(),
            "index_base": base,
        },
        offsets=offsets,
        transformer=transformer,
    )


def _nonzero(w: NDArray[np.float64], numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the ranks of the columns that have a weight, by rising column numbers."""
    ranks = np.flatnonzero(w[: len(numbers)]).astype(np.uint32)
    return ranks[np.argsort(numbers[ranks], kind="stable")]


def _ball(
    learner: Learner, proven: Mapping[str, Any], ranks: NDArray[np.uint32]
) -> tuple[NDArray[np.float16], dict[str, float]] | None:
    """Return offsets and ball around the optimum, see ``model.certainty``, of a learner that has
    weights in the columns of ``ranks``; None if its last scan has not summed the weights of its
    dual point."""
    if learner.frozen is None or not proven["primal_objective"] or learner.outputs > 1:
        return None
    sums = learner.frozen.scan_sums
    dual, rounding = dual_of(sums)[0], dual_weights_off(sums)
    if rounding == math.inf or dual != proven["dual_objective"]:
        return None
    beyond = sums.fresh.copy()
    v = beyond[ranks]
    beyond[ranks] = 0.0
    length = math.sqrt(kernels.square_sum(beyond))
    duals = v, sums.dual_bias
    return ball_of((learner.best.w[ranks], learner.best.bias), duals, length, rounding, proven)


def certificate_of(learner: Learner) -> dict[str, Any]:
    """Return what a model keeps of a learner's certificate: with the bounds of every reading, but
    not the time."""
    history = [row.to_dict(timed=False) for row in learner.progress.history]
    assert learner.certificate is not None
    return {**learner.certificate.to_dict(), "history": history}


def _report_of(learner: Learner, excluded: Mapping[str, int]) -> dict[str, Any]:
    assert learner.certificate is not None
    in_time = learner.progress.reports[-1].stop_reason != TIME_LIMIT
    return {
        "full_epochs": learner.progress.full_epochs,
        "newton_steps": sum(stage.newton_steps for stage in learner.progress.reports),
        "stop_reason": learner.progress.finished if in_time else "time limit",
        "radius": learner.radius,
        "history": [row.to_dict() for row in learner.progress.history],
        "stages": [stage.to_dict() for stage in learner.progress.reports],
        "certificate": {**learner.certificate.to_dict(), **excluded},
    }
