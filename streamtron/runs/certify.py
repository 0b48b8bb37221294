"""Certify: bound how far an existing model is from the optimum, with a witness or without."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import theory
from streamtron.core.certificate import Certificate
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.executor import Executor
from streamtron.core.rows import Chunk, Label
from streamtron.data import ShardSource, deletions, open_shards
from streamtron.model.linear_model import Direction, LinearModel, joint_certificate
from streamtron.runs import witness as witness_file
from streamtron.runs.finished import FinishedRun, read_finished
from streamtron.runs.inputs import Paths, as_paths, cache_directory, reading_from_model
from streamtron.runs.learners import class_weights_of, is_one_vs_rest
from streamtron.runs.results import in_order, sign_of_learner
from streamtron.runs.scan import Scans, add_blocks, scan_request
from streamtron.solver import order
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner
from streamtron.solver.proving import LARGE_DRIFT
from streamtron.solver.subproblem import run_mini_epochs
from streamtron.solver.train import begin_reading, finish_reading, take_chunk
from streamtron.solver.warm_start import begin_search, room, set_weights, start_from_slacks

_log = logging.getLogger(__name__)

Weights = Sequence[NDArray[np.float64]]

SEARCH_TOLERANCE = 1e-4
"""Gap at which the search for an upper bound ends early."""

SCALED = 0.25
"""A scan at scale s finds the best scale well if it lies in [SCALED · s, s / SCALED]."""

RESCANS = 8
"""Largest number of further scans to find the best scale."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What is proven of a model's weights on these rows; of many classes, of the widest gap.

    Parameters
    ----------
    certificate : primal margin and scale of the model's direction, upper bound of the data; with
        a run also the drift of its running weights.
    weights_scale : the s at which s · weights is certified (1 for a model that we trained).
    readings : of the data, as a whole.
    decision_radius : at that scale every decision value of a row x is within
        decision_radius · ‖(x, ρ)‖ of the optimum's.
    distance : ‖v − u‖ / ‖u‖ of the weights v at that scale from u = t/‖a‖² Σ c_k l_k x_k, made of
        the witness's counts at the largest dual; both are the optimum where the gap is 0. None
        without a witness.
    rows_excluded : rows of the shards that the witness leaves out; nothing is proven of them.
    classes : of many classes (label, proof) of each against the rest, in order.
    """

    certificate: Certificate
    weights_scale: float
    readings: float
    decision_radius: float
    distance: float | None = None
    rows_excluded: int = 0
    classes: tuple[tuple[Label, Proof], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; of many classes the joint certificate and ``learners``, a list of
        the proofs with their ``label``."""
        if self.classes:
            learners = [{"label": label, **proof.to_dict()} for label, proof in self.classes]
            joint = joint_certificate([each["certificate"] for each in learners])
            del joint["learners"]
            joint["rows_excluded"] = self.rows_excluded
            return {"certificate": joint, "readings": self.readings, "learners": learners}
        return {
            "certificate": {**self.certificate.to_dict(), "rows_excluded": self.rows_excluded},
            "weights_scale": self.weights_scale,
            "readings": self.readings,
            "decision_radius": self.decision_radius,
            "distance": self.distance,
        }


def certify(
    model: LinearModel,
    shards: Paths,
    *,
    witness: str | os.PathLike[str] | None = None,
    run: str | os.PathLike[str] | None = None,
    accept_exclusions: bool = False,
    settings: Settings | None = None,
    readings: int = 4,
    machine: Machine | None = None,
    executor: Executor | None = None,
) -> Proof:
    """Bound how far a model is from the optimum on these rows.

    With a witness: one reading. Without: one reading for the primal margin and the best scale, one
    that turns slacks into counts, then mini-epochs and scans at fixed weights, at most ``readings``
    more in all, for the upper bound. If the working set does not fit in the active set, the last of
    these train as rows pass. Weights whose best scale is far from 1 (a perceptron's, say) take up
    to RESCANS further scans before the search.

    Of many classes each is certified against the rest, all on the same readings; in the search for
    upper bounds they share the active set.

    Parameters
    ----------
    model : any linear model; its reader's contract says how the shards are read.
    witness : the counts of these rows.
    run : directory of the model's run: the certificate's ``drift`` compares the running weights of
        its last checkpoint with those that the counts make, and a warning is logged where it is
        more than rounding. None = no drift.
    accept_exclusions : accept a witness that leaves out rows of the shards, which were forgotten if
        it is honest; nothing is proven of them, and ``rows_excluded`` is their number.
    settings : the problem (C or delta, rho, class_weight) of an imported model; None = the model's.
    readings : at most, after the first, without a witness.
    executor : workers that scan the shards; None = this process. The result is the same to the last
        bit. Without a witness, workers read the shards once more to count the rows (not among the
        readings told), and this process holds the working set and makes the readings that train
        and the first one of ``class_weight="balanced"``.

    Raises
    ------
    DataError : labels that are not the model's; a witness of other rows, or one that leaves rows
        out without ``accept_exclusions``; damaged files.
    SettingsError : a bias where rho is 0.
    """
    machine = machine or Machine()
    problem = settings or Settings.from_dict(dict(model.settings))
    with (
        cache_directory(None, machine) as cache,
        open_shards(
            as_paths(shards),
            reading_from_model(model),
            cache_dir=cache if witness is None else machine.cache_dir,
            classes=model.classes,
            allow_duplicate=problem.allow_duplicate,
            threads=machine.threads,
        ) as source,
    ):
        distances: list[float | None] = [None for _ in model.directions()]
        scans = Scans(source, executor, cache_dir=cache, allow_duplicate=problem.allow_duplicate)
        if witness is None:
            found = _search(scans, model, _learners(problem, source, model, None), readings)
        else:
            source.exclude(_exclusions(witness, accept_exclusions))
            known = _load_witness(witness, scans.fingerprints(), len(distances))
            running = None if run is None else running_weights(run, model, witness)
            learners = _learners(problem, source, model, known.counts)
            scans = Scans(source, executor, rows=known.shard_rows)
            found = _scan(scans, learners, _trained_scales(model), counted=True)
            if source.rows not in (None, known.rows):
                raise DataError(f"the shards hold {source.rows} rows, the witness {known.rows}.")
            distances = [*map(_distance, learners, found)]
            found = _with_drift(found, learners, running)
        excluded = deletions.total(shard.without for shard in source.shards if shard.without)
        return _proof(model, found, scans.readings, distances, excluded)


def _proof(
    model: LinearModel,
    found: Sequence[Certificate],
    readings: float,
    distances: Sequence[float | None],
    excluded: int,
) -> Proof:
    proofs = [
        Proof(
            each,
            each.scale / scale,
            readings,
            theory.decision_radius(each.primal_margin, each.upper_bound),
            distance,
            excluded,
        )
        for each, scale, distance in zip(found, _trained_scales(model), distances, strict=True)
    ]
    if model.kind == "two classes":
        return proofs[0]
    widest = max(proofs, key=lambda each: each.certificate.relative_duality_gap)
    return replace(widest, classes=tuple(zip(model.classes, proofs, strict=True)))


def _learners(
    problem: Settings, source: ShardSource, model: LinearModel, counts: Sequence[Counts] | None
) -> list[Learner]:
    """Return a learner for every direction of the model, with its weights and counts."""
    directions = list(model.directions())
    exact = problem.but(
        stage="ascent", b=None, tol=SEARCH_TOLERANCE, faithful=False,
        active_set=problem.active_set // len(directions),
    )  # fmt: skip
    [weights] = class_weights_of(source, [problem])
    learners = []
    for k, direction in enumerate(directions):
        own, positive = weights, direction.positive
        if weights is not None and model.kind != "two classes":
            own = {positive: weights.get(positive, 1.0)}  # the rest weighs 1
        learner = Learner(exact, source.labels, own, positive=positive)
        _set_weights(learner, direction, model.index_base, None if counts is None else counts[k])
        learners.append(learner)
    return learners


def _set_weights(learner: Learner, direction: Direction, base: int, counts: Counts | None) -> None:
    """Give a learner the weights as training left them, numbered as the shards number columns."""
    scale, rho = _trained_scale(direction), learner.settings.rho
    w = np.concatenate((np.zeros(base), direction.weights)) / scale
    if rho == 0.0 and direction.bias != 0.0:
        raise SettingsError(
            f"the model has the bias {direction.bias:g}, but rho is 0. Give --rho as it was "
            "trained with (LIBLINEAR's -B)."
        )
    set_weights(learner, w, direction.bias / rho / scale if rho > 0.0 else 0.0, counts)


def _trained_scale(direction: Direction) -> float:
    return float((direction.certificate or {}).get("scale") or 1.0)


def _trained_scales(model: LinearModel) -> list[float]:
    return [_trained_scale(direction) for direction in model.directions()]


# --- with a witness ------------------------------------------------------------------------------


def _exclusions(path: str | os.PathLike[str], accepted: bool) -> list[deletions.Deletions]:
    """Return the rows that a witness leaves out; raise a DataError unless that is accepted."""
    found = witness_file.contents(path).deletions
    if found and not accepted:
        raise DataError(
            f"{path}: this witness leaves {deletions.total(found):,} rows of the shards out, and "
            "nothing would be proven of them. If they are known to have been forgotten, accept "
            "that by --accept-exclusions; or certify the run itself."
        )
    return found


def _load_witness(
    path: str | os.PathLike[str], fingerprints: Sequence[tuple[str, str]], learners: int
) -> witness_file.Witness:
    found = witness_file.load(path, fingerprints)
    if len(found.counts) != learners:
        raise DataError(
            f"{path}: the witness of {len(found.counts)} learners, and the model has {learners}. "
            "Give the witness of this model's own run."
        )
    return found


def running_weights(
    run: str | os.PathLike[str], model: LinearModel, witness: str | os.PathLike[str]
) -> Weights | None:
    """Read w = Σ c_k l_k x_k as training updated it, from the last checkpoint of a run.

    These are not the model's weights, which are scaled and those of the least primal.

    Parameters
    ----------
    run : its directory.
    model : the run's.
    witness : its counts must be those of the checkpoint.

    Returns
    -------
    float64 vectors, one a direction, by the columns' numbers in the shards. None, after a warning,
    if the last checkpoint does not belong to the witness.
    """
    try:
        with read_finished(run) as ended:
            found = _learners_of_run(ended, model, witness)
    except StreamtronError as error:
        _log.warning("%s The drift of the running weights is not told.", error)
        return None
    sign = sign_of_learner(ended.checkpoint.labels, model.classes, ended.settings)
    return [sign * learner.running.w for learner in found]


def _learners_of_run(
    ended: FinishedRun, model: LinearModel, witness: str | os.PathLike[str]
) -> Sequence[Learner]:
    """Restore the run's learners, in the order of the model's directions."""
    labels, settings = ended.checkpoint.labels, ended.settings
    learners = ended.learners()
    counts = witness_file.contents(witness)
    wanted = len(labels) if is_one_vs_rest(settings) else 1
    complete = len(learners) == wanted and all(learner.progress.finished for learner in learners)
    if complete and len(labels) == len(model.classes) and set(labels) == set(model.classes):
        found = in_order(learners, labels, settings)
        if len(found) == counts.learners and all(
            _has_counts(learner, *counts.gaps(number)) for number, learner in enumerate(found)
        ):
            return found
    raise DataError(f"{ended.path}: its last checkpoint has other counts than {witness}.")


def _has_counts(learner: Learner, gaps: NDArray[np.uint32], counts: NDArray[np.int32]) -> bool:
    own = learner.counts.gaps()
    return np.array_equal(own[0], gaps) and np.array_equal(own[1], counts)


def _with_drift(
    found: Sequence[Certificate], learners: Sequence[Learner], running: Weights | None
) -> list[Certificate]:
    """Return the certificates with the drift of the running weights."""
    if running is None:
        return [replace(each, drift=None) for each in found]
    drifts = []
    for learner, w in zip(learners, running, strict=True):
        assert learner.frozen is not None
        drifts.append(learner.frozen.scan_sums.distance(w))
    if not all(drift <= LARGE_DRIFT for drift in drifts):  # also where one is nan
        _log.warning(
            "the running weights have drifted by %.1g of their length from those that the counts "
            "make. The certificate rests on the counts; streamtron update sums the weights afresh "
            "from them, as do forget and fit --resume where they train on.",
            max(drifts),
        )
    return [replace(each, drift=drift) for each, drift in zip(found, drifts, strict=True)]


def _distance(learner: Learner, certificate: Certificate) -> float:
    """Return ``Proof.distance``."""
    assert learner.frozen is not None
    scan_sums = learner.frozen.scan_sums
    if not scan_sums.steps:
        return 0.0
    scale = certificate.scale * scan_sums.sq_norm / scan_sums.steps
    return scan_sums.distance(scale * learner.frozen.w)


# --- scans ---------------------------------------------------------------------------------------


def _scan(
    scans: Scans,
    learners: Sequence[Learner],
    scales: Sequence[float],
    *,
    counted: bool = False,
    first: bool = False,
) -> list[Certificate]:
    """Certify the models' own weights by one reading.

    Parameters
    ----------
    counted : whether the learners have counts, for the upper bound.
    first : whether R is still unknown.
    """
    for learner, scale in zip(learners, scales, strict=True):
        begin_reading(learner, 0, scale)
    requests = [scan_request(one)._replace(threshold=-math.inf, first=first) for one in learners]
    add_blocks(scans.read(requests, [learner.counts for learner in learners]), learners)
    found = []
    for learner in learners:
        assert learner.frozen is not None
        found.append(learner.frozen.certificate(hard=learner.settings.hard, counted=counted)[0])
    return found


# --- without a witness ---------------------------------------------------------------------------


def _search(
    scans: Scans, model: LinearModel, learners: Sequence[Learner], readings: int
) -> list[Certificate]:
    """Certify the models' own weights, then search for upper bounds."""
    scales = _trained_scales(model)
    found = _scan(scans, learners, scales, first=True)
    for learner in learners:
        begin_search(learner)
    found = _rescan_if_scaled(scans, learners, scales, found)
    return _search_upper_bounds(scans, learners, found, readings)


def _rescan_if_scaled(
    scans: Scans,
    learners: Sequence[Learner],
    scales: Sequence[float],
    found: Sequence[Certificate],
) -> list[Certificate]:
    """Scan again around the best scale found, until it is close to the scanned one.

    P(s) is known best around the scale of a scan."""
    best, around = list(found), list(scales)
    for _ in range(RESCANS):
        far = [
            k for k, learner in enumerate(learners)
            if not (SCALED <= best[k].scale / around[k] <= 1.0 / SCALED or learner.settings.hard)
        ]  # fmt: skip
        if not far:
            break
        for k in far:
            around[k] = best[k].scale
        again = _scan(scans, [learners[k] for k in far], [around[k] for k in far])
        for k, certificate in zip(far, again, strict=True):
            best[k] = certificate
    return best


def _search_upper_bounds(
    scans: Scans, learners: Sequence[Learner], found: Sequence[Certificate], readings: int
) -> list[Certificate]:
    """Return the certificates with the least upper bounds found in at most ``readings`` readings:
    counts from the slacks in the first of them, then mini-epochs and scans at fixed weights."""
    bounds: dict[Learner, list[tuple[float, float]]] = {learner: [] for learner in learners}
    if readings >= 2 and not learners[0].settings.hard:
        _counts_from_slacks(scans, learners, [each.scale for each in found])
        for reading in range(2, readings + 1):
            searching = [learner for learner in learners if not learner.progress.finished]
            if not searching:
                break
            for learner in searching:
                begin_reading(learner, reading)
            _read(scans, searching)
            for learner in searching:
                run_mini_epochs(finish_reading(learner))
                now = learner.certificate
                if now is not None and now.upper_bound is not None:
                    bounds[learner].append((now.upper_bound, now.rounding_bound))
    least = [min(bounds[learner], default=(None, 0.0)) for learner in learners]
    return [
        replace(each, upper_bound=upper, rounding_bound=rounding)
        for each, (upper, rounding) in zip(found, least, strict=True)
    ]


def _counts_from_slacks(scans: Scans, learners: Sequence[Learner], scales: Sequence[float]) -> None:
    """Turn the slacks of each learner's weights into counts by one reading; hold those rows."""
    for learner, scale in zip(learners, scales, strict=True):
        begin_reading(learner, 1, scale)
    requests = [
        scan_request(one)._replace(threshold=-math.inf, b=one.progress.b) for one in learners
    ]
    add_blocks(scans.read(requests, [Counts() for _ in learners], _rooms(learners)), learners)
    for learner in learners:
        start_from_slacks(learner)


def _read(scans: Scans, learners: Sequence[Learner]) -> None:
    """Read once: scan and hold violators, or train, as each learner does in this reading.

    Learners that train visit the chunks in the order of the data, so this process reads."""
    scanning = [learner for learner in learners if learner.mode == "scan"]
    training = [learner for learner in learners if learner.mode == "train"]

    def train(chunk: Chunk) -> None:
        for learner in training:
            take_chunk(learner, chunk, order.file_order(len(chunk)))

    requests, counts = list(map(scan_request, scanning)), [learner.counts for learner in scanning]
    blocks = scans.read(requests, counts, _rooms(scanning), train if training else None)
    add_blocks(blocks, scanning)


def _rooms(learners: Sequence[Learner]) -> Callable[[], list[int]]:
    return lambda: [room(learner) for learner in learners]
