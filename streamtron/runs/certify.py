"""Certify: bound how far an existing model is from the optimum, with a witness or without."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from streamtron.core import theory
from streamtron.core.certificate import Certificate
from streamtron.core.config import PROBLEM, Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.core.executor import Executor, serial
from streamtron.core.files import scratch_directory
from streamtron.core.names import check_names, problem_of
from streamtron.core.rows import Label
from streamtron.core.text import number
from streamtron.core.threads import open_threads
from streamtron.data import (
    Dataset,
    Expected,
    deletions,
    excluding,
    find_shards,
)
from streamtron.model.display import certificate_facts, facts_text, joint_certificate
from streamtron.model.linear_model import Direction, LinearModel
from streamtron.runs import witness as witness_file
from streamtron.runs.finished_run import check_shards_exist, run_of
from streamtron.runs.inputs import (
    Paths,
    as_model,
    as_paths,
    cache_directory,
    open_dataset,
    problem_settings,
    reading_from_model,
    with_labels_of,
)
from streamtron.runs.learners import against_rest, class_weights
from streamtron.runs.memory import (
    certificate_memory_needed,
    fits_in_memory,
    most_that_fit,
    plan_memory,
    size_of,
)
from streamtron.runs.report import deletions_of
from streamtron.runs.scan import SEARCH_TOLERANCE, Scans
from streamtron.runs.witness import Witness, export
from streamtron.solver.alphas import Alphas
from streamtron.solver.learner import Learner, set_weights


@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """The bounds proven for weights on these rows; of many classes, of that with the widest gap.

    Parameters
    ----------
    certificate : primal objective of the weights, dual objective of the data.
    decision_radius : every decision value of a row x is within decision_radius · ‖(x, ρ)‖ of the
        optimum's.
    distance : ‖w − v‖ / ‖v‖ of the weights from v = Σ α_k l_k x_k, made of the witness's dual
        variables; both are the optimum where the gap is 0. None without a witness.
    rows_excluded : rows of the shards that the witness leaves out; nothing is proven of them.
    problem : loss, penalty and price for which that is proven.
    classes : of many classes (label, proof) of each against the rest, in order.
    """

    certificate: Certificate
    readings: float
    decision_radius: float
    distance: float | None = None
    rows_excluded: int = 0
    problem: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[tuple[Label, Proof], ...] = ()

    def __repr__(self) -> str:
        proof = self.to_dict()
        facts = certificate_facts(proof["certificate"])
        if self.classes:
            facts.append(("classes", number(len(self.classes))))
        return facts_text("Proof", [*facts, ("readings", f"{self.readings:.3g}")])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; of many classes the joint certificate and ``learners``, a list of
        the proofs with their ``label``."""
        if self.classes:
            learners = [{"label": label, **proof.to_dict()} for label, proof in self.classes]
            joint = joint_certificate([learner["certificate"] for learner in learners])
            del joint["learners"]
            joint["rows_excluded"] = self.rows_excluded
            return {
                "certificate": joint,
                "problem": dict(self.problem),
                "readings": self.readings,
                "learners": learners,
            }
        return {
            "certificate": {**self.certificate.to_dict(), "rows_excluded": self.rows_excluded},
            "problem": dict(self.problem),
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

    The shards are prepared as by ``fit``, anew: what a run has prepared is not trusted. One scan
    follows, with the dual variables of a witness, or those that belong to the slacks of the
    weights. Without a witness at most ``readings`` more follow, which bring the dual objective
    nearer to the optimum unless the gap is below 1e-4 already; the rows with a slack are trained on
    for it. Where all rows fit in memory, in the active set, none of that reads them again. What is
    certified are the weights as they are, at their scale. Many classes share the active set, and
    the readings where their vectors fit in memory together; else they are certified in groups.

    Parameters
    ----------
    model : a linear model or its file; its reader's contract says how the shards are read.
    shards : None = those of the model's run, with its witness.
    witness : the dual variables of these rows.
    run : directory of the model's run, if shards are not given; None = ``MODEL.run``.
    accept_exclusions : accept a witness that leaves out rows of the shards.
    settings : the problem, or C or delta, loss, rho and class_weight by name; else as in the model.
    readings : at most, after the first, without a witness.
    executor : where shards are scanned whose rows are not in memory, and prepared, if a cache
        directory is named; this process makes the readings that train.
    listen : called with events, as by ``fit``.

    Raises
    ------
    DataError : other labels than the model's; a witness of other rows; damaged files.
    SettingsError : a bias where rho is 0; no C, or no rho, for a model that does not say it.
    """
    check_names(names, PROBLEM)
    if shards is None:
        model, store = run_of(model, run)
        check_shards_exist(records := store.manifest.shards)
        names |= {"settings": settings, "readings": readings, "machine": machine}
        names |= {"executor": executor, "listen": listen}
        paths = [shard.path for shard in records]
        with scratch_directory("streamtron-") as scratch:
            if witness is None:
                accept_exclusions, witness = True, os.path.join(scratch, "witness")
                export(store, witness)
            names |= {"witness": witness, "accept_exclusions": accept_exclusions}
            return certify(model, paths, **names)
    model = with_labels_of(as_model(model), shards)
    machine, problem = machine or Machine(), settings or problem_settings(model, names)
    if problem.regression != model.regression:
        raise SettingsError(f"a {model.kind} model has no loss {problem.loss}: leave it out.")
    known = None if witness is None else _load(witness, accept_exclusions, model)
    if known is None and problem.hard:
        raise SettingsError(
            "a hard margin (delta 0) is proven by its dual variables: give its run, or --witness."
        )
    files, reading = find_shards(as_paths(shards)), reading_from_model(model)
    if known is not None and known.deletions:
        files = excluding(files, known.deletions, reading)
    expected = Expected(2, model.classes or None, allow_duplicate=problem.allow_duplicate)
    exact = problem.but(
        stage="1" if problem.hard else "ascent",
        b=None,
        tol=SEARCH_TOLERANCE,
        faithful=False,
        parts=None,
        on_bad_shard="error",
    )
    named = machine.cache_dir is not None and executor is not serial
    with (
        cache_directory(None, machine) as cache,
        open_threads(machine.thread_count),
        open_dataset(
            files,
            reading,
            exact,
            machine,
            cache,
            expected=expected,
            listen=listen,
            executor=executor if named else None,
        ) as data,
    ):
        order = None if known is None else known.order_in(data.manifest)
        exact, at_once = _planned(exact, machine, data, model, known)
        certificates, distances = list[Certificate](), list[float | None]()
        directions = enumerate(model.directions())
        while group := [*islice(directions, at_once)]:
            learners = []
            for number, direction in group:
                alphas = None if known is None or order is None else known.alphas(number, order)
                learners.append(_learner(data, model, exact, direction, alphas))
            scans = Scans(data, executor, listen)
            if known is None:
                certificates += scans.search(learners, exact, readings)
                distances += [None] * len(learners)
            else:
                certificates += scans.certify(learners)
                distances += map(_distance, learners)
            learners.clear()  # before the next ones are made
        return _proof(model, problem, data, certificates, distances)


def _planned(
    exact: Settings, machine: Machine, data: Dataset, model: LinearModel, known: Witness | None
) -> tuple[Settings, int]:
    """Return the settings of each learner, with its active set, and how many fit in memory
    together; read all rows into memory if they fit there, too."""
    size, directions = size_of(data), np.size(model.bias)
    weights, limit = model.sparse_weights.nnz, machine.memory_limit
    if known is not None:
        scanned = size._replace(columns=size.columns + weights // directions)
        needed = partial(certificate_memory_needed, scanned, weights=weights)
        at_once = most_that_fit(limit, directions, lambda number: needed(learners=number))
        at_once = max(1, at_once)
        fits = sum(needed(learners=directions).values()) + size.row_bytes <= limit
    else:
        if not fits_in_memory(exact, size):
            exact = exact.but(active_set=exact.active_set_bytes // directions)
        plan = plan_memory(exact, machine, size, directions, weights)
        if plan.total > plan.limit:  # it was fitted with more memory than there is
            plan = plan_memory(exact.but(active_set=None), machine, size, directions, weights)
            plan.check(exact.but(active_set=None))
        exact, at_once, fits = exact.but(active_set=plan.active_set), plan.at_once, True
    if fits and fits_in_memory(exact, size):
        data.load()
    return exact, at_once


def _learner(
    data: Dataset,
    model: LinearModel,
    exact: Settings,
    direction: Direction,
    alphas: Alphas | None,
) -> Learner:
    """Return a learner with the weights of a direction, those of columns that do not occur behind
    the others, and with its α."""
    weights = direction.nonzero
    ranks = data.places_of(weights.indices.astype(np.int64) + model.index_base)
    behind = np.flatnonzero(ranks < 0)
    ranks[behind] = data.columns + np.arange(len(behind))
    w = np.zeros(data.columns + len(behind))
    w[ranks] = weights.data
    rho, label = exact.augmentation, direction.positive
    if rho == 0.0 and direction.bias != 0.0:
        raise SettingsError(
            f"the model has the bias {direction.bias:g}, but rho is 0. Give --rho as it was "
            "trained with (LIBLINEAR's -B)."
        )
    of_class = against_rest(
        class_weights(exact, data), None if model.kind == "two classes" else label
    )
    learner = Learner(exact, len(w), data.facts, data.labels, of_class, label)
    bias = (direction.bias - learner.targets.center) / rho if rho > 0.0 else 0.0
    set_weights(learner, w, bias, alphas)
    return learner


def _proof(
    model: LinearModel,
    problem: Settings,
    data: Dataset,
    certificates: Sequence[Certificate],
    distances: Sequence[float | None],
) -> Proof:
    excluded = deletions.total(deletions_of(data.shards))
    solved = problem_of(problem.to_dict())
    proofs = []
    for certificate, distance in zip(certificates, distances, strict=True):
        radius = theory.decision_radius(certificate.primal, certificate.dual, problem.ratio)
        radius = math.inf if problem.free else radius  # nothing bounds the bias
        proof = Proof(certificate, data.readings, radius, distance)
        proofs.append(replace(proof, rows_excluded=excluded, problem=solved))
    if isinstance(model.bias, float):
        return proofs[0]
    widest = max(proofs, key=lambda certificate: certificate.certificate.relative_duality_gap)
    return replace(widest, classes=tuple(zip(model.classes, proofs, strict=True)))


def _load(path: str | os.PathLike[str], accepted: bool, model: LinearModel) -> Witness:
    """Load a witness of the model's learners; a DataError if it leaves out rows, unless that is
    accepted."""
    known, number = witness_file.load(path), np.size(model.bias)
    if len(known.stored) != number:
        raise DataError(
            f"{known.path}: the witness of {len(known.stored)} learners, and the model has "
            f"{number}. Give the witness of this model's own run."
        )
    if known.deletions and not accepted:
        raise DataError(
            f"{path}: this witness leaves {deletions.total(known.deletions):,} rows of the shards "
            "out, and nothing would be proven of them. If they are known to have been forgotten, "
            "accept that by --accept-exclusions; or certify the run itself."
        )
    return known


def _distance(learner: Learner) -> float:
    assert learner.frozen is not None
    return learner.frozen.scan_sums.distance(learner.frozen.w)
