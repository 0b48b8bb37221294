"""Proofs for a model that exists already: ours or anybody's, with a witness or without."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamtron import theory
from streamtron import witness as witness_file
from streamtron.certificate import Certificate
from streamtron.config import Machine, Settings
from streamtron.errors import DataError, SettingsError
from streamtron.fitting import (
    as_paths,
    cache_directory,
    class_weights,
    reading_of_model,
)
from streamtron.model import LinearModel
from streamtron.shards import ShardSource, open_shards
from streamtron.training import order
from streamtron.training.learner import Learner

SEARCH_TOLERANCE = 1e-4
"""The search for an upper bound ends early once its own gap is this small."""

SCALED = 0.25
"""Best scales from this to its inverse are known well after one scan."""

RESCANS = 8
"""Scans more, at most, to find the best scale of weights of another length."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proven of a model's weights on these rows.

    Parameters
    ----------
    certificate : primal margin and scale of the model's direction, upper bound of the data.
    weights_scale : the s at which s · weights is certified (1 for a model that we trained).
    readings : of the data, as a whole.
    decision_radius : at that scale every decision value of a row x is within
        decision_radius · ‖(x, ρ)‖ of the optimum's.
    """

    certificate: Certificate
    weights_scale: float
    readings: float
    decision_radius: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return {
            "certificate": self.certificate.to_dict(),
            "weights_scale": self.weights_scale,
            "readings": self.readings,
            "decision_radius": self.decision_radius,
        }


def certify(
    model: LinearModel,
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    witness: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    readings: int = 4,
    machine: Machine | None = None,
) -> Proof:
    """How far from the best possible a model is at most, on these rows.

    With a witness: one reading. Without: one reading for the primal margin and the best scale,
    one that turns slacks into counts, then mini-epochs and frozen scans, at most ``readings`` more
    in all, for the upper bound. Weights whose best scale is far from 1 (a perceptron's, say) take
    further scans, at most RESCANS, before the search begins.

    Parameters
    ----------
    model : any linear model; its reader's contract says how the shards are read.
    settings : the problem (C or delta, rho, class_weight) for a foreign model; None = the model's.
    readings : at most, after the first, without a witness.

    Raises
    ------
    DataError : labels that are not the model's, a witness of other rows, damaged files.
    """
    machine = machine or Machine()
    problem = settings or Settings.from_dict(dict(model.settings))
    with (
        cache_directory(None, machine) as cache,
        open_shards(
            as_paths(shards),
            reading_of_model(model),
            cache_dir=cache if witness is None else machine.cache_dir,
            classes=model.classes,
            allow_duplicate=problem.allow_duplicate,
            threads=machine.threads,
        ) as source,
    ):
        learner = _learner(problem, source, model, keep=witness is None)
        trained_scale = float((model.certificate or {}).get("scale") or 1.0)
        counts = None
        if witness is not None:
            counts = witness_file.load(witness, source.fingerprints())
        w = np.concatenate((np.zeros(model.index_base), model.weights)) / trained_scale
        witnessed = None if counts is None else len(counts)
        learner.adopt(w, _bias_weight(model, problem) / trained_scale, counts)
        found = _scan(source, learner, trained_scale, counted=counts is not None)
        if witnessed is not None and source.rows != witnessed:
            raise DataError(f"the shards hold {source.rows} rows, the witness {witnessed}.")
        if counts is None:
            found = _rescan_if_scaled(source, learner, trained_scale, found)
        if counts is None:
            upper, rounding = _search_upper_bound(source, learner, found.scale, readings)
            found = replace(found, upper_bound=upper, rounding_bound=rounding)
        return Proof(found, found.scale / trained_scale, source.readings, _decision_radius(found))


def _learner(problem: Settings, source: ShardSource, model: LinearModel, *, keep: bool) -> Learner:
    """A learner of the model's problem; ``keep``: whether it may hold rows for mini-epochs."""
    exact = problem.but(
        stage="unlearn", b=None, tol=SEARCH_TOLERANCE, faithful=False,
        active_set=problem.active_set if keep else 0,
    )  # fmt: skip
    weights = class_weights(source, problem)
    return Learner(exact, source.labels, weights, positive=model.classes[1])


def _bias_weight(model: LinearModel, problem: Settings) -> float:
    if problem.rho > 0.0:
        return model.bias / problem.rho
    if model.bias != 0.0:
        raise SettingsError(
            f"the model has the bias {model.bias:g}, but rho is 0. Give --rho as it was trained "
            "with (LIBLINEAR's -B)."
        )
    return 0.0


def _scan(source: ShardSource, learner: Learner, scale: float, *, counted: bool) -> Certificate:
    """One reading at the model's own weights."""
    learner.begin_reading(0, scale)
    for chunk in source.chunks():
        learner.take(chunk, order.file_order(len(chunk)))
    assert learner.frozen is not None
    return learner.frozen.certificate(hard=learner.settings.hard, counted=counted)[0]


def _rescan_if_scaled(
    source: ShardSource, learner: Learner, scale: float, found: Certificate
) -> Certificate:
    """P(s) is known best around the scale that a scan is given: weights of another length (a
    perceptron's, say) are scanned again, around the best scale that was seen."""
    for _ in range(RESCANS):
        if SCALED <= found.scale / scale <= 1.0 / SCALED or learner.settings.hard:
            break
        scale = found.scale
        found = _scan(source, learner, scale, counted=False)
    return found


def _search_upper_bound(
    source: ShardSource, learner: Learner, scale: float, readings: int
) -> tuple[float | None, float]:
    """The upper bound that at most ``readings`` more readings find: counts from the slacks in the
    first of them, then mini-epochs and frozen scans."""
    if learner.settings.hard or readings < 2:
        return None, 0.0
    w, bias = learner.dual.w.copy(), learner.dual.bias
    learner.begin_seeding()
    for chunk in source.chunks():
        learner.seed(chunk, w, bias, scale)
    learner.end_seeding()
    bounds: list[tuple[float, float]] = []
    for reading in range(2, readings + 1):
        learner.begin_reading(reading)
        for chunk in source.chunks():
            learner.take(chunk, order.file_order(len(chunk)))
        learner.finish_reading()
        now = learner.certificate
        if now is not None and now.upper_bound is not None:
            bounds.append((now.upper_bound, now.rounding_bound))
        if learner.finished:
            break
    return min(bounds) if bounds else (None, 0.0)


def _decision_radius(certificate: Certificate) -> float:
    if certificate.upper_bound is None or certificate.primal_margin <= 0.0:
        return math.inf
    primal = theory.primal_from_margin(certificate.primal_margin)
    dual = theory.primal_from_margin(certificate.upper_bound)
    return theory.weights_radius(primal, min(dual, primal))
