"""Certify: bound how far an existing model is from the optimum, with a witness or without."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from typing import Any

import numpy as np

from streamtron.core import theory
from streamtron.core.certificate import Certificate
from streamtron.core.config import PROBLEM, Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.core.executor import Executor, serial
from streamtron.core.names import check_names, problem_of
from streamtron.core.rows import Label
from streamtron.core.text import number
from streamtron.core.threads import open_threads
from streamtron.data import ShardSource, deletions, open_shards
from streamtron.model.display import certificate_facts, facts_text, joint_certificate
from streamtron.model.linear_model import Direction, LinearModel
from streamtron.runs import witness as witness_file
from streamtron.runs.finished_run import inputs_of_run
from streamtron.runs.inputs import (
    Paths,
    as_model,
    as_paths,
    cache_directory,
    problem_settings,
    reading_from_model,
    with_labels_of,
)
from streamtron.runs.learners import ClassWeights, against_rest, class_weights_of
from streamtron.runs.memory import Need, certificate_memory_needed, most_that_fit
from streamtron.runs.report import deletions_of
from streamtron.runs.scan import Scans, scan_weights
from streamtron.runs.upper_bounds import SEARCH_TOLERANCE, find_upper_bounds, resolution
from streamtron.runs.witness import Witness
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner, set_resolution, set_weights

_OF_WEIGHTS = ("primal_objective", "primal_margin", "relative_duality_gap")


@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """What is proven of a model's weights on these rows; of many classes, of the widest gap.

    Parameters
    ----------
    certificate : primal objective and scale of the model's direction, dual objective of the data.
        What is proven of the weights as they are is ``as_given``.
    weights_scale : the s at which s · weights is certified (1 for a model that we trained).
    decision_radius : at that scale every decision value of a row x is within
        decision_radius · ‖(x, ρ)‖ of the optimum's.
    distance : ‖v − u‖ / ‖u‖ of the weights v at that scale from u = t/‖a‖² Σ c_k l_k x_k, made of
        the witness's counts at the largest dual (1/b Σ c_k l_k x_k for other losses than the
        squared hinge); both are the optimum where the gap is 0. None without a witness.
    rows_excluded : rows of the shards that the witness leaves out; nothing is proven of them.
    problem : loss, penalty and price for which that is proven.
    classes : of many classes (label, proof) of each against the rest, in order.
    """

    certificate: Certificate
    weights_scale: float
    readings: float
    decision_radius: float
    distance: float | None = None
    rows_excluded: int = 0
    problem: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[tuple[Label, Proof], ...] = ()

    @property
    def as_given(self) -> Certificate:
        """Return what is proven of the weights as they are, with which the model decides; of hard
        margins, where the length does not count, ``certificate``."""
        return replace(self.certificate, primal=self.certificate.as_scanned)

    def __repr__(self) -> str:
        proof = self.to_dict()
        facts = certificate_facts(proof["certificate"] | proof["as_given"])
        if self.classes:
            facts.append(("classes", number(len(self.classes))))
        return facts_text("Proof", [*facts, ("readings", f"{self.readings:.3g}")])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; of many classes the joint certificate and ``learners``, a list of
        the proofs with their ``label``. ``as_given`` has what differs for the weights as they are
        from the certificate of their direction."""
        if self.classes:
            learners = [{"label": label, **proof.to_dict()} for label, proof in self.classes]
            joint = joint_certificate([learner["certificate"] for learner in learners])
            del joint["learners"]
            joint["rows_excluded"] = self.rows_excluded
            gap = max(learner["as_given"]["relative_duality_gap"] for learner in learners)
            given = {"relative_duality_gap": gap}
            return {
                "certificate": joint,
                "as_given": given,
                "problem": dict(self.problem),
                "readings": self.readings,
                "learners": learners,
            }
        given = self.as_given.to_dict()
        return {
            "certificate": {**self.certificate.to_dict(), "rows_excluded": self.rows_excluded},
            "as_given": {name: given[name] for name in _OF_WEIGHTS},
            "problem": dict(self.problem),
            "weights_scale": self.weights_scale,
            "readings": self.readings,
            "decision_radius": self.decision_radius,
            "distance": self.distance,
        }


def certify(
    model: LinearModel | str | os.PathLike[str],
    shards: Paths | None = None,
    *,
    witness: str | os.PathLike[str] | None = None,
    run: str | os.PathLike[str] | None = None,
    accept_exclusions: bool = False,
    settings: Settings | None = None,
    readings: int = 4,
    machine: Machine | None = None,
    executor: Executor = serial,
    listen: Listener = ignore,
    **names: Any,
) -> Proof:
    """Bound how far a model is from the optimum on these rows.

    One reading, with the dual variables of a witness, or those that belong to the slacks of the
    weights. Without a witness at most ``readings`` more follow, which bring the dual objective
    nearer to the optimum unless the gap is below 1e-4 already; if the working set does not fit in
    the active set, the last of these train. With the squared hinge the certificate is of the
    direction of the weights, at its best scale, and ``as_given`` of the weights as they are: those
    whose best scale is far from 1 (a perceptron's, say) spend some readings to find it. With other
    losses both are of the weights as they are. Many classes share the active set, and the readings
    where their vectors fit in memory together; else they are certified in groups.

    Parameters
    ----------
    model : a linear model or its file; its reader's contract says how the shards are read.
    shards : None = those of the model's run, with its witness.
    witness : the counts of these rows.
    run : directory of the model's run, if shards are not given; None = ``MODEL.run``.
    accept_exclusions : accept a witness that leaves out rows of the shards.
    settings : the problem, or C or delta, loss, rho and class_weight by name; else as in the model.
    readings : at most, after the first, without a witness.
    executor : where the shards are scanned; this process makes the readings that train.
    listen : called with events, as by ``fit``.

    Raises
    ------
    DataError : other labels than the model's; a witness of other rows; damaged files.
    SettingsError : a bias where rho is 0; no C, or no rho, for a model that does not say it.
    """
    check_names(names, PROBLEM)
    if shards is None:
        accept_exclusions = accept_exclusions or witness is None
        model, shards, witness = inputs_of_run(model, run, witness)
    model = with_labels_of(as_model(model), shards)
    machine, problem = machine or Machine(), settings or problem_settings(model, names)
    if problem.regression != model.regression:
        raise SettingsError(f"a {model.kind} model has no loss {problem.loss}: leave it out.")
    known = None if witness is None else _load(witness, accept_exclusions)
    with cache_directory(None, machine) as scratch, open_threads(machine.thread_count):
        cache = scratch if known is None else machine.cache_dir
        with open_shards(
            as_paths(shards),
            reading_from_model(model),
            cache_dir=cache,
            classes=model.classes or None,
            allow_duplicate=problem.allow_duplicate,
            threads=machine.threads,
        ) as source:
            if known is not None:
                source.exclude(known.deletions)
            scans = Scans(source, executor, cache, machine.threads, problem.allow_duplicate, listen)
            if known is not None:
                return _prove(model, problem, machine, scans, known)
            if problem.hard:
                raise SettingsError(
                    "the counts prove a hard margin (delta 0): give its run, or --witness."
                )
            certificates, scales = list[Certificate](), _trained_scales(model)
            for group, learners in _groups(problem, machine, source, model):
                certificates += find_upper_bounds(scans, learners, scales[group], readings)
            return _proof(model, problem, certificates, scans)


def _prove(
    model: LinearModel, problem: Settings, machine: Machine, scans: Scans, known: Witness
) -> Proof:
    """Certify with the counts of a witness, by one reading of each group."""
    scales = _trained_scales(model)
    if len(known.counts) != len(scales):
        raise DataError(
            f"{known.path}: the witness of {len(known.counts)} learners, and the model has "
            f"{len(scales)}. Give the witness of this model's own run."
        )
    known = known.ordered_as(scans.fingerprints())
    scans.rows = known.shard_rows
    certificates, distances = list[Certificate](), list[float]()
    for group, learners in _groups(problem, machine, scans.source, model, known):
        certificates += scan_weights(scans, learners, scales[group])
        distances += map(_distance, learners, certificates[group])
    return _proof(model, problem, certificates, scans, distances)


def _proof(
    model: LinearModel,
    problem: Settings,
    certificates: Sequence[Certificate],
    scans: Scans,
    distances: Iterable[float | None] = repeat(None),
) -> Proof:
    excluded = deletions.total(deletions_of(scans.source.shards))
    solved = problem_of(problem.to_dict())
    proofs = []
    for certificate, scale, distance in zip(
        certificates, _trained_scales(model), distances, strict=False
    ):
        radius = theory.decision_radius(certificate.primal, certificate.dual, problem.ratio)
        radius = math.inf if problem.free else radius  # nothing bounds the bias
        proof = Proof(certificate, certificate.scale / scale, scans.readings, radius, distance)
        proofs.append(replace(proof, rows_excluded=excluded, problem=solved))
    if isinstance(model.bias, float):
        return proofs[0]
    widest = max(proofs, key=lambda certificate: certificate.certificate.relative_duality_gap)
    return replace(widest, classes=tuple(zip(model.classes, proofs, strict=True)))


def _groups(
    problem: Settings,
    machine: Machine,
    source: ShardSource,
    model: LinearModel,
    known: Witness | None = None,
) -> Iterator[tuple[slice, list[Learner]]]:
    """Yield the places of as many directions of the model as fit in memory together, and a learner
    for each, with the counts of a witness."""
    directions, scales = model.directions(), _trained_scales(model)
    exact = problem.but(
        stage="1" if problem.hard else "ascent",
        b=None,
        tol=SEARCH_TOLERANCE,
        faithful=False,
        active_set=problem.active_set_bytes // len(scales),
    )

    def needed(number: int) -> list[Need]:
        rows = 0 if known is None else sum(known.shard_rows)
        return certificate_memory_needed(
            exact,
            rows=rows,
            columns=model.columns,
            learners=number,
            held=known is None,
            nonzeros=model.sparse_weights.nnz,
        )

    at_once = max(1, most_that_fit(machine.memory_limit, len(scales), needed))
    [weights] = class_weights_of(source, [problem])
    counts = None if known is None else known.counts
    for start in range(0, len(scales), at_once):
        group = slice(start, start + at_once)
        scaled = zip(islice(directions, at_once), scales[group], strict=True)
        learners = _learners(exact, source, model, weights, scaled, counts and counts[group])
        yield group, learners
        learners.clear()  # before the next ones are made


def _learners(
    problem: Settings,
    source: ShardSource,
    model: LinearModel,
    weights: ClassWeights | None,
    directions: Iterable[tuple[Direction, float]],
    counts: Sequence[Counts] | None,
) -> list[Learner]:
    """Return a learner for each direction, with its weights as training left them at its scale,
    numbered as the shards number columns, and its counts."""
    learners = []
    for k, (direction, scale) in enumerate(directions):
        positive = direction.positive
        class_weights = against_rest(weights, None if model.kind == "two classes" else positive)
        if problem.augmentation == 0.0 and direction.bias != 0.0:
            raise SettingsError(
                f"the model has the bias {direction.bias:g}, but rho is 0. Give --rho as it was "
                "trained with (LIBLINEAR's -B)."
            )
        learner = Learner(problem, source.labels, class_weights, positive=positive)
        w = np.concatenate((np.zeros(model.index_base), direction.weights)) / scale
        rho = problem.augmentation
        learner.fix_center(direction.bias if problem.regression and problem.free else 0.0)
        bias = (direction.bias - learner.targets.center) / rho / scale if rho > 0.0 else 0.0
        set_weights(learner, w, bias, None if counts is None else counts[k])
        trained = counts is not None and direction.certificate
        set_resolution(learner, 1.0 / scale if trained else resolution(learner))
        learners.append(learner)
    return learners


def _trained_scales(model: LinearModel) -> list[float]:
    certificates = (direction.certificate or {} for direction in model.directions())
    return [float(certificate.get("scale") or 1.0) for certificate in certificates]


def _load(path: str | os.PathLike[str], accepted: bool) -> Witness:
    """Load a witness; a DataError if it leaves out rows, unless that is accepted."""
    known = witness_file.load(path)
    if known.deletions and not accepted:
        raise DataError(
            f"{path}: this witness leaves {deletions.total(known.deletions):,} rows of the shards "
            "out, and nothing would be proven of them. If they are known to have been forgotten, "
            "accept that by --accept-exclusions; or certify the run itself."
        )
    return known


def _distance(learner: Learner, certificate: Certificate) -> float:
    assert learner.frozen is not None
    scan_sums = learner.frozen.scan_sums
    if not scan_sums.steps:
        return 0.0
    b = scan_sums.sq_norm / scan_sums.steps if learner.loss.quadratic else scan_sums.b
    return scan_sums.distance(certificate.scale * b * learner.frozen.w)
