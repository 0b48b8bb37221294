"""Search for a large dual objective of problems whose weights are given.

Any counts prove one. The first are made of the slopes of the loss at the weights, in the reading
that scans these: of a smooth loss they prove optimal weights, of the hinge little. A solve of the
rows that have a loss then raises the dual.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from streamtron.core import kernels
from streamtron.core.certificate import Certificate
from streamtron.core.rows import Chunk
from streamtron.runs.scan import Scans, add_blocks, scan_request, scan_weights
from streamtron.solver import order
from streamtron.solver.held_loss import drive
from streamtron.solver.learner import Learner, set_resolution
from streamtron.solver.reading import (
    begin_reading,
    begin_search,
    finish_reading,
    solve_blocks,
    start_from_slacks,
    take_chunk,
)
from streamtron.solver.scan import ScanRequest, scan_blocks
from streamtron.solver.stages import COUNT_OF_C, resolution_of_c
from streamtron.solver.working_set import NEAR, room

SEARCH_TOLERANCE = 1e-4
"""Gap at which the search ends early."""

COUNT_OF_ONE = float(1 << 20)
"""The count of a slack of 1 in a row of weight 1, where counts are made of the slacks before the
rows are known: a slack may be 2,000 times as large."""

SCALED = 0.25
"""A scan at scale s finds the best scale well if it lies in [SCALED · s, s / SCALED]."""


def find_upper_bounds(
    scans: Scans, learners: Sequence[Learner], scales: Sequence[float], readings: int
) -> list[Certificate]:
    """Certify the learners' weights by a first reading, and where that leaves a gap search for
    counts of a larger dual in at most ``readings`` more."""
    certificates, spent = _certify(scans, learners, scales, readings)
    gaps = [proof.relative_duality_gap for proof in certificates]
    searching = [k for k, gap in enumerate(gaps) if gap > SEARCH_TOLERANCE]
    if spent >= readings:
        searching = []
    if searching:
        scans.end()
    for k in searching:
        start_from_slacks(learners[k])
    for reading in range(1, readings - spent + 1):
        searching = [k for k in searching if not learners[k].progress.finished]
        if searching:
            _read(scans, [learners[k] for k in searching], reading)
        for k in searching:
            learner = learners[k]
            drive(finish_reading(learner))
            if (bound := learner.certificate) is not None and bound.dual:
                certificates[k] = _with_bound(certificates[k], bound)
            _, _, mini_epochs = learner.progress.done_since(learner.running.updates)
            scans.done(learner, certificates[k], learner.progress.mode, mini_epochs)
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
) -> tuple[list[Certificate], int]:
    """Certify the learners' weights by a reading, and again around the best scale found, until it
    is close to the scanned one: P(s) is known best there. Return the certificates, and how many of
    ``readings`` that took after the first; two are left for the search, if there are as many.

    Rows with margins far above 1 are left out, so that the scale may be far below the one found:
    then the second scan is at 1 / (‖w‖ R), at which no margin is above 1. Of a loss that is not
    quadratic P is known at the scanned scale alone, which stays; but rows may weigh so much that
    their counts were cut."""
    around = list(scales)
    best = scan_weights(scans, learners, around, from_slacks=True, first=True)
    for learner in learners:
        begin_search(learner)
    most = max(readings - 2, min(readings, 1))
    for spent in range(most):
        ratios = [proof.scale / scale for proof, scale in zip(best, around, strict=True)]
        far = [
            k
            for k, ratio in enumerate(ratios)
            if not SCALED <= ratio <= 1.0 / SCALED or _were_cut(learners[k])
        ]
        if not far:
            return best, spent
        for k in far:
            around[k] = best[k].scale
            if ratios[k] < SCALED and spent == 0:
                around[k] = min(around[k], _least_scale(learners[k]))
            learners[k].counts.clear()
            set_resolution(learners[k], resolution(learners[k]))
        again, scales = [learners[k] for k in far], [around[k] for k in far]
        for k, proof in zip(far, scan_weights(scans, again, scales, from_slacks=True), strict=True):
            best[k] = replace(proof, as_scanned=best[k].as_scanned)
    return best, most


def resolution(learner: Learner) -> float:
    """Return the b of counts that are made of slacks, or of a fit; the weights of rows are known
    after a scan."""
    if learner.loss.quadratic:
        return COUNT_OF_ONE * learner.settings.delta2
    least = learner.extent.least_delta2
    if not learner.loss.numbers or least == math.inf:
        least = min(least, learner.targets.least_delta2)
    return resolution_of_c(least)


def _were_cut(learner: Learner) -> bool:
    """Tell whether counts b C would be above the largest."""
    cut = learner.progress.b * COUNT_OF_C > kernels.COUNT_MAX * resolution(learner)
    return cut and not learner.loss.quadratic


def _least_scale(learner: Learner) -> float:
    """1 / (‖w‖ R): no margin of the scanned weights is above 1 at this scale."""
    assert learner.frozen is not None
    length = math.hypot(learner.frozen.length, learner.frozen.bias)
    length *= math.sqrt(learner.extent.sq_radius)
    return 1.0 / length if length else 1.0


def _read(scans: Scans, learners: Sequence[Learner], reading: int) -> None:
    """Read once: scan and hold violators, or train, as each learner does in this reading.

    Learners that train visit the chunks in the order of the data, so this process reads."""
    for learner in learners:
        begin_reading(learner, reading)
    scanning = [learner for learner in learners if learner.mode == "scan"]
    training = [learner for learner in learners if learner.mode == "train"]
    requests = list(map(_request, scanning))
    if training:
        scans.begin("train", len(learners))
        counts, rooms = [learner.counts for learner in scanning], list(map(room, scanning))
        blocks = scan_blocks(_trained(scans, training), requests, counts, rooms)
    else:
        blocks = scans.read(requests, scanning, hold=True)
    add_blocks(blocks, scanning)
    scans.end()


def _request(learner: Learner) -> ScanRequest:
    """Return what scans a learner's weights; rows near the hinge's kink are held too."""
    request = scan_request(learner)
    near = 1.0 if learner.loss.quadratic else NEAR
    return request._replace(threshold=near * request.threshold)


def _trained(scans: Scans, learners: Sequence[Learner]) -> Generator[Chunk, None, None]:
    """Read here, and train learners on each chunk before it is passed on."""
    with closing(scans.source.chunks()) as chunks:
        for chunk in chunks:
            positions = order.file_order(len(chunk))
            for learner in learners:
                solve_blocks((learner, partial(take_chunk, learner, chunk, positions)))
            yield chunk
            scans.passed(len(chunk), chunk.nonzeros)
