"""Proofs for a model that exists already: ours or anybody's, with a witness or without."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import theory
from streamtron.core.certificate import Certificate
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import Executor
from streamtron.core.rows import Chunk, Label
from streamtron.data import ShardSource, deletions, open_shards
from streamtron.model.linear_model import Direction, LinearModel, joint_certificate
from streamtron.runs import witness as witness_file
from streamtron.runs.drift import carried_by
from streamtron.runs.fit import as_paths, cache_directory, reading_of_model
from streamtron.runs.learners import class_weights
from streamtron.runs.scan import Scans
from streamtron.solver import order
from streamtron.solver.block_scan import BlockScan, Called, PartialSums, ScanRequest
from streamtron.solver.duals import Counts
from streamtron.solver.learner import LARGE_DRIFT, Learner
from streamtron.solver.subproblem import run_alone
from streamtron.solver.targets import Targets

_log = logging.getLogger(__name__)

SEARCH_TOLERANCE = 1e-4
"""The search for an upper bound ends early once its own gap is this small."""

SCALED = 0.25
"""Best scales from this to its inverse are known well after one scan."""

RESCANS = 8
"""Scans more, at most, to find the best scale of weights of another length."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proven of a model's weights on these rows; of many classes, of that with the widest
    gap.

    Parameters
    ----------
    certificate : primal margin and scale of the model's direction, upper bound of the data; with
        a run also the drift of what training carried.
    weights_scale : the s at which s · weights is certified (1 for a model that we trained).
    readings : of the data, as a whole.
    decision_radius : at that scale every decision value of a row x is within
        decision_radius · ‖(x, ρ)‖ of the optimum's.
    distance : ‖v − u‖ / ‖u‖, of the weights v at that scale from u = t/‖a‖² Σ c_k l_k x_k, those
        that the witness's counts make where the dual is largest: both are the optimum's where the
        gap is 0. No drift, for v are the weights of the least primal. None without a witness.
    rows_excluded : rows of the shards that the witness leaves out, of which nothing is proven.
    classes : of many classes (label, proof) of each against the rest, in their order, all on the
        same readings.
    """

    certificate: Certificate
    weights_scale: float
    readings: float
    decision_radius: float
    distance: float | None = None
    rows_excluded: int = 0
    classes: tuple[tuple[Label, Proof], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for ``--json``; of many classes the joint certificate, and ``learners``, a
        list of the proofs with their ``label``."""
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
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    witness: str | os.PathLike[str] | None = None,
    run: str | os.PathLike[str] | None = None,
    accept_exclusions: bool = False,
    settings: Settings | None = None,
    readings: int = 4,
    machine: Machine | None = None,
    executor: Executor | None = None,
) -> Proof:
    """How far from the best possible a model is at most, on these rows.

    With a witness: one reading. Without: one reading for the primal margin and the best scale,
    one that turns slacks into counts, then mini-epochs and frozen scans, at most ``readings`` more
    in all, for the upper bound. Where the rows that matter do not fit in the active set, the last
    of these train as rows pass. Weights whose best scale is far from 1 (a perceptron's, say) take
    further scans, at most RESCANS, before the search begins.

    Of many classes each is certified against the rest, all on the same readings; in the search for
    upper bounds they share the active set.

    Parameters
    ----------
    model : any linear model; its reader's contract says how the shards are read.
    witness : the counts of these rows.
    run : directory of the run that the model, the shards and the witness are of: the weights that
        it carried are held against those that the counts make, which is the certificate's
        ``drift``. Where it is more than rounding, a warning says so; the run repairs it when it
        goes on. None = no drift is told.
    accept_exclusions : take a witness that leaves rows of the shards out, which were forgotten if
        it is honest: nothing is proven of them, and how many they are is ``rows_excluded``.
    settings : the problem (C or delta, rho, class_weight) for a foreign model; None = the model's.
    readings : at most, after the first, without a witness.
    executor : workers that scan the shards side by side; None = this process. What is proven is the
        same to the last bit. Without a witness they read the shards once more, to count the rows,
        which is not told among the readings; the rows that matter come to this process, which also
        makes the readings that train, and the first one of ``class_weight="balanced"``.

    Raises
    ------
    DataError : labels that are not the model's, a witness of other rows or, unless that is
        accepted, one that leaves rows out; damaged files.
    SettingsError : a bias where rho is 0.
    """
    machine = machine or Machine()
    problem = settings or Settings.from_dict(dict(model.settings))
    directions = list(model.directions())
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
        scans = Scans(source, executor, cache_dir=cache, allow_duplicate=problem.allow_duplicate)
        known = carried = None
        if witness is not None:
            source.exclude(_excluded(witness, accept_exclusions))
            known = _witness(witness, scans.fingerprints(), len(directions))
            carried = None if run is None else carried_by(run, model, witness)
            scans = Scans(source, executor, rows=known.shard_rows)
        learners = _learners(problem, source, model, directions)
        counts = [None] * len(directions) if known is None else known.counts
        for learner, direction, own in zip(learners, directions, counts, strict=True):
            _adopt(learner, direction, model.index_base, own)
        trained = [_trained_scale(direction) for direction in directions]
        if known is not None:
            found = _scan(scans, learners, trained, counted=True)
            if source.rows not in (None, known.rows):
                raise DataError(f"the shards hold {source.rows} rows, the witness {known.rows}.")
            found = _with_drift(found, learners, carried)
        else:
            found = _scan(scans, learners, trained, first=True)
            for learner in learners:
                learner.begin_search()
            found = _rescan_if_scaled(scans, learners, trained, found)
            found = _search_upper_bounds(scans, learners, found, readings)
        proofs = [
            Proof(
                each,
                each.scale / scale,
                scans.readings,
                theory.decision_radius(each.primal_margin, each.upper_bound),
                None if known is None else _distance(learner, each),
                deletions.total(shard.without for shard in source.shards if shard.without),
            )
            for learner, each, scale in zip(learners, found, trained, strict=True)
        ]
        if model.kind == "two classes":
            return proofs[0]
        widest = max(proofs, key=lambda each: each.certificate.relative_duality_gap)
        return replace(widest, classes=tuple(zip(model.classes, proofs, strict=True)))


def _learners(
    problem: Settings, source: ShardSource, model: LinearModel, directions: Sequence[Direction]
) -> list[Learner]:
    """Learners of the model's problem, one a direction."""
    exact = problem.but(
        stage="ascent", b=None, tol=SEARCH_TOLERANCE, faithful=False,
        active_set=problem.active_set // len(directions),
    )  # fmt: skip
    weights = class_weights(source, problem)
    learners = []
    for positive, *_ in directions:
        own = weights
        if weights is not None and model.kind != "two classes":
            own = {positive: weights.get(positive, 1.0)}  # the rest weighs 1
        learners.append(Learner(exact, source.labels, own, positive=positive))
    return learners


def _excluded(path: str | os.PathLike[str], accepted: bool) -> list[deletions.Deletions]:
    """The rows that a witness leaves out."""
    found = witness_file.contents(path).deletions
    if found and not accepted:
        raise DataError(
            f"{path}: this witness leaves {deletions.total(found):,} rows of the shards out, and "
            "nothing would be proven of them. If they are known to have been forgotten, accept "
            "that by --accept-exclusions; or certify the run itself."
        )
    return found


def _witness(
    path: str | os.PathLike[str], fingerprints: Sequence[tuple[str, str]], learners: int
) -> witness_file.Witness:
    found = witness_file.load(path, fingerprints)
    if len(found.counts) != learners:
        raise DataError(
            f"{path}: the witness of {len(found.counts)} learners, and the model has {learners}. "
            "Give the witness of this model's own run."
        )
    return found


def _trained_scale(direction: Direction) -> float:
    return float((direction.certificate or {}).get("scale") or 1.0)


def _adopt(learner: Learner, direction: Direction, base: int, counts: Counts | None) -> None:
    """The direction's weights as training left them, numbered as the shards number columns."""
    scale, rho = _trained_scale(direction), learner.settings.rho
    w = np.concatenate((np.zeros(base), direction.weights)) / scale
    if rho == 0.0 and direction.bias != 0.0:
        raise SettingsError(
            f"the model has the bias {direction.bias:g}, but rho is 0. Give --rho as it was "
            "trained with (LIBLINEAR's -B)."
        )
    learner.set_weights(w, direction.bias / rho / scale if rho > 0.0 else 0.0, counts)


def _scan(
    scans: Scans,
    learners: Sequence[Learner],
    scales: Sequence[float],
    *,
    counted: bool = False,
    first: bool = False,
) -> list[Certificate]:
    """What one reading at the models' own weights proves; ``counted``: by the counts that they
    have. The ``first`` tells R too."""
    for learner, scale in zip(learners, scales, strict=True):
        learner.begin_reading(0, scale)
    views = [_view(learner)._replace(threshold=-math.inf, first=first) for learner in learners]
    _add(scans.read(views, [learner.counts for learner in learners]), learners)
    found = []
    for learner in learners:
        assert learner.frozen is not None
        found.append(learner.frozen.certificate(hard=learner.settings.hard, counted=counted)[0])
    return found


def _view(learner: Learner) -> ScanRequest:
    frozen = learner.frozen
    assert frozen is not None
    rho, scale = learner.settings.rho, frozen.scan_sums.scale
    return ScanRequest(learner.targets, frozen.w, frozen.bias, rho, scale, frozen.threshold)


def _add(blocks: Generator[BlockScan, None, None], learners: Sequence[Learner]) -> None:
    """Give the learners what was seen of the blocks, in their order."""
    with closing(blocks):
        for block in blocks:
            for learner, seen in zip(learners, block.seen, strict=True):
                _add_seen(learner, block, seen)


def _add_seen(learner: Learner, block: BlockScan, seen: PartialSums) -> None:
    frozen = learner.frozen
    assert frozen is not None
    if block.width > len(frozen.w):
        frozen.widen(block.width)
    frozen.scan_sums.add(seen.part)
    learner.observe(seen.sq_radius, seen.least_delta2)
    if seen.made is not None:
        learner.counts.put(*seen.made)
    if seen.called is not None:
        _hold(learner, block, seen.called)


def _hold(learner: Learner, block: BlockScan, called: Called) -> None:
    """Have the learner hold the rows that it called, as long as there is room."""
    at = np.searchsorted(block.numbers, called.numbers)
    signs, delta2 = np.zeros(len(block.numbers), np.int8), np.zeros(len(block.numbers))
    signs[at], delta2[at] = called.signs, called.delta2
    targets = Targets(block.numbers, signs, delta2, block.squares)
    learner.hold(block.held, at, targets, called.rows)


def _with_drift(
    found: Sequence[Certificate],
    learners: Sequence[Learner],
    carried: Sequence[NDArray[np.float64]] | None,
) -> list[Certificate]:
    """The certificates with the drift of what a run carried, the scanned weights being others."""
    if carried is None:
        return [replace(each, drift=None) for each in found]
    drifts = []
    for learner, w in zip(learners, carried, strict=True):
        assert learner.frozen is not None
        drifts.append(learner.frozen.scan_sums.distance(w))
    if not all(drift <= LARGE_DRIFT for drift in drifts):  # also where one is no number
        _log.warning(
            "the weights that the run carried have drifted by %.1g of their length from those that "
            "its counts make. The certificate rests on the counts; streamtron update makes the "
            "weights afresh from them, as do forget and fit --resume where they go on.",
            max(drifts),
        )
    return [replace(each, drift=drift) for each, drift in zip(found, drifts, strict=True)]


def _distance(learner: Learner, certificate: Certificate) -> float:
    """How far the certified weights are from the counts', each at its best scale."""
    assert learner.frozen is not None
    scan_sums = learner.frozen.scan_sums
    if not scan_sums.steps:
        return 0.0
    scale = certificate.scale * scan_sums.sq_norm / scan_sums.steps
    return scan_sums.distance(scale * learner.frozen.w)


def _rescan_if_scaled(
    scans: Scans,
    learners: Sequence[Learner],
    scales: Sequence[float],
    found: Sequence[Certificate],
) -> list[Certificate]:
    """P(s) is known best around the scale that a scan is given: weights of another length (a
    perceptron's, say) are scanned again, around the best scale that was seen."""
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
    """The certificates with the upper bounds that at most ``readings`` more readings find: counts
    from the slacks in the first of them, then mini-epochs and frozen scans."""
    bounds: list[list[tuple[float, float]]] = [[] for _ in learners]
    if readings >= 2 and not learners[0].settings.hard:
        _seed(scans, learners, [each.scale for each in found])
        for reading in range(2, readings + 1):
            searching = [learner for learner in learners if not learner.finished]
            if not searching:
                break
            for learner in searching:
                learner.begin_reading(reading)
            _read(scans, searching)
            for learner, own in zip(learners, bounds, strict=True):
                if learner in searching:
                    run_alone(learner.finish_reading())
                    now = learner.certificate
                    if now is not None and now.upper_bound is not None:
                        own.append((now.upper_bound, now.rounding_bound))
    least = [min(own, default=(None, 0.0)) for own in bounds]
    return [
        replace(each, upper_bound=upper, rounding_bound=rounding)
        for each, (upper, rounding) in zip(found, least, strict=True)
    ]


def _seed(scans: Scans, learners: Sequence[Learner], scales: Sequence[float]) -> None:
    """One reading that turns the slacks of each learner's weights into counts, and holds the rows
    that have one."""
    for learner, scale in zip(learners, scales, strict=True):
        learner.begin_reading(1, scale)
    views = [_view(one)._replace(threshold=-math.inf, b=one.b) for one in learners]
    _add(scans.read(views, [Counts() for _ in learners], _rooms(learners)), learners)
    for learner in learners:
        learner.seed()


def _read(scans: Scans, learners: Sequence[Learner]) -> None:
    """One reading that certifies and holds the rows that matter. Some learners may train in it:
    they see the chunks in the order of the data, and so this process reads."""
    scanning = [learner for learner in learners if learner.mode == "scan"]
    training = [learner for learner in learners if learner.mode == "train"]

    def train(chunk: Chunk) -> None:
        for learner in training:
            learner.take(chunk, order.file_order(len(chunk)))

    views, counts = map(_view, scanning), [learner.counts for learner in scanning]
    blocks = scans.read(list(views), counts, _rooms(scanning), train if training else None)
    _add(blocks, scanning)


def _rooms(learners: Sequence[Learner]) -> Callable[[], list[int]]:
    return lambda: [learner.room for learner in learners]
