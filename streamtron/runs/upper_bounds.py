"""Search for a large dual objective of problems whose weights are given.

Any counts prove one. The first are made of the slopes of the loss at the weights, in the reading
that scans these: of a smooth loss they prove optimal weights, of the hinge little. To train from
there raises the dual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.core.events import SolveStarted
from streamtron.core.threads import opened_threads
from streamtron.runs.scan import Scans
from streamtron.solver.learner import Learner
from streamtron.solver.reading import begin_reading, finish_reading, start_from_slacks
from streamtron.solver.stages import resolution_of_c
from streamtron.solver.train import OnePart
from streamtron.solver.working_set import hold_all

SEARCH_TOLERANCE = 1e-4
"""Gap at which the search ends early."""

COUNT_OF_ONE = float(1 << 20)
"""The count of a slack of 1 in a row of weight 1, where counts are made of the slacks: a slack may
be 2,000 times as large."""

SCALED = 0.25
"""A scan at scale s finds the best scale well if it lies in [SCALED · s, s / SCALED]."""


def find_upper_bounds(
    scans: Scans,
    learners: Sequence[Learner],
    scales: Sequence[float],
    settings: Settings,
    readings: int,
) -> list[Certificate]:
    """Certify the learners' weights by a first reading, and where that leaves a gap train from
    there, with the order and the seed of ``settings``, in at most ``readings`` more."""
    certificates = _certify(scans, learners, scales, readings)
    gaps = [proof.relative_duality_gap for proof in certificates]
    searching = [k for k, gap in enumerate(gaps) if gap > SEARCH_TOLERANCE]
    if not searching or scans.reading > readings:
        return certificates
    scans.listen(SolveStarted(scans.reading - 1, scans.data.rows))
    hold_all([learners[k] for k in searching], scans.data)
    for k in searching:
        start_from_slacks(learners[k])
    trained = [learners[k] for k in searching]
    trainer = OnePart(scans.data, trained, settings, scans.listen, opened_threads())
    while trainer.unfinished and scans.reading <= readings:
        training, number = trainer.unfinished, scans.reading
        trainer.tell_begin(number, training)
        for learner in training:
            begin_reading(learner, number)
        scans.listen(SolveStarted(number, trainer.read(number, training)))
        trainer.solve(training, finish_reading)
        for k in searching:
            learner = learners[k]
            if learner not in training:
                continue
            if (bound := learner.certificate) is not None and bound.dual:
                certificates[k] = _with_bound(certificates[k], bound)
            _, _, mini_epochs = learner.progress.done_since(learner.running.updates)
            scans.tell(learner, certificates[k], mini_epochs)
        scans.reading += 1
    return certificates


def _with_bound(proof: Certificate, bound: Certificate) -> Certificate:
    """Return a certificate with the larger D of the two and its rounding, and with as many columns
    as either has proven to weigh 0."""
    proof = replace(proof, zero_columns=max(proof.zero_columns, bound.zero_columns))
    if bound.dual <= proof.dual:
        return proof
    return replace(proof, dual=bound.dual, rounding_bound=bound.rounding_bound)


def _certify(
    scans: Scans, learners: Sequence[Learner], scales: Sequence[float], readings: int
) -> list[Certificate]:
    """Certify the learners' weights by a reading, and again around the best scale found, until it
    is close to the scanned one: P(s) is known best there. Two of ``readings`` are left for the
    search, if there are as many.

    Rows with margins far above 1 are left out, so that the scale may be far below the one found:
    then the second scan is at 1 / (‖w‖ R), at which no margin is above 1. Of a loss that is not
    quadratic P is known at the scanned scale alone, which stays."""
    around = list(scales)
    best = scans.certify(learners, around, from_slacks=True)
    while scans.reading <= max(readings - 2, min(readings, 1)):
        ratios = [proof.scale / scale for proof, scale in zip(best, around, strict=True)]
        far = [k for k, ratio in enumerate(ratios) if not SCALED <= ratio <= 1.0 / SCALED]
        if not far:
            break
        for k in far:
            around[k] = best[k].scale
            if ratios[k] < SCALED and scans.reading == 1:
                around[k] = min(around[k], _least_scale(learners[k]))
            learners[k].counts.clear()
        again, at = [learners[k] for k in far], [around[k] for k in far]
        for k, proof in zip(far, scans.certify(again, at, from_slacks=True), strict=True):
            best[k] = replace(proof, as_scanned=best[k].as_scanned)
    return best


def resolution(learner: Learner) -> float:
    """Return the b of counts that are made of slacks."""
    if learner.loss.quadratic:
        return COUNT_OF_ONE * learner.settings.delta2
    return resolution_of_c(learner.bounds.least_delta2)


def _least_scale(learner: Learner) -> float:
    """1 / (‖w‖ R): no margin of the scanned weights is above 1 at this scale."""
    assert learner.frozen is not None
    length = math.hypot(learner.frozen.length, learner.frozen.bias)
    length *= math.sqrt(learner.bounds.sq_radius)
    return 1.0 / length if length else 1.0
