"""Search for upper bounds of problems whose weights are given: the data's best margins.

Any counts prove an upper bound. The first are made of the slacks of the weights, and mini-epochs on
the rows that have one lower the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace

from streamtron.core.certificate import Certificate, length_of
from streamtron.core.rows import Chunk
from streamtron.runs.scan import Scans, add_blocks, scan_request, scan_weights
from streamtron.solver import order
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner
from streamtron.solver.reading import (
    begin_reading,
    begin_search,
    finish_reading,
    start_from_slacks,
    take_and_solve,
)
from streamtron.solver.scan import scan_blocks
from streamtron.solver.subproblem import run_mini_epochs
from streamtron.solver.working_set import room

SEARCH_TOLERANCE = 1e-4
"""Gap at which the search ends early."""

SCALED = 0.25
"""A scan at scale s finds the best scale well if it lies in [SCALED · s, s / SCALED]."""


def find_upper_bounds(
    scans: Scans, learners: Sequence[Learner], scales: Sequence[float], readings: int
) -> list[Certificate]:
    """Certify the learners' weights by a first reading, then search for upper bounds in at most
    ``readings`` more: counts from the slacks in the first of them, then mini-epochs and scans."""
    certificates = scan_weights(scans, learners, scales, first=True)
    for learner in learners:
        begin_search(learner)
    # what finds the scale is taken from the readings, of which the search needs two
    most = readings - 2 if readings > 1 else readings
    certificates, spent = _rescan_if_scaled(scans, learners, scales, certificates, most)
    readings -= spent
    bounds: dict[Learner, list[tuple[float, float]]] = {learner: [] for learner in learners}
    if readings >= 2 and not learners[0].settings.hard:
        _counts_from_slacks(scans, learners, certificates)
        for reading in range(2, readings + 1):
            searching = [learner for learner in learners if not learner.progress.finished]
            if searching:
                _read(scans, searching, reading)
            for learner in searching:
                done, mode = learner.progress.mini_epochs, learner.mode
                run_mini_epochs(finish_reading(learner))
                certificate = learner.certificate
                if certificate is not None and certificate.dual:
                    bounds[learner].append((certificate.dual, certificate.rounding_bound))
                known = _bounded(certificates[learners.index(learner)], bounds[learner])
                scans.done(learner, known, mode, learner.progress.mini_epochs - done)
    return [
        _bounded(certificate, bounds[learner])
        for certificate, learner in zip(certificates, learners, strict=True)
    ]


def _bounded(lower: Certificate, bounds: Sequence[tuple[float, float]]) -> Certificate:
    """Return a certificate with the largest D, given with its rounding, or with none."""
    dual, rounding = max(bounds, default=(0.0, 0.0))
    return replace(lower, dual=dual, rounding_bound=rounding)


def _rescan_if_scaled(
    scans: Scans,
    learners: Sequence[Learner],
    scales: Sequence[float],
    certificates: Sequence[Certificate],
    most: int,
) -> tuple[list[Certificate], int]:
    """Scan again around the best scale found, until it is close to the scanned one: P(s) is known
    best there. Return the certificates, and how many times all rows were read, at most ``most``.

    Rows with margins far above 1 were left out, so that the scale may be far below the one found:
    then the second scan is at 1 / (‖w‖ R), at which no margin is above 1."""
    best, around, spent = list(certificates), list(scales), 0
    while spent < most and not learners[0].settings.hard:
        ratios = [
            certificate.scale / scale for certificate, scale in zip(best, around, strict=True)
        ]
        far = [k for k, ratio in enumerate(ratios) if not SCALED <= ratio <= 1.0 / SCALED]
        if not far:
            break
        for k in far:
            around[k] = best[k].scale
            if ratios[k] < SCALED and spent == 0:
                around[k] = min(around[k], _least_scale(learners[k]))
        spent += 1
        again = scan_weights(scans, [learners[k] for k in far], [around[k] for k in far])
        for k, certificate in zip(far, again, strict=True):
            best[k] = certificate
    return best, spent


def _least_scale(learner: Learner) -> float:
    """1 / (‖w‖ R): no margin of the scanned weights is above 1 at this scale."""
    assert learner.frozen is not None
    w, bias = learner.frozen.w, learner.frozen.bias
    length = math.hypot(length_of(w, bias), bias) * math.sqrt(learner.extent.sq_radius)
    return 1.0 / length if length else 1.0


def _counts_from_slacks(
    scans: Scans, learners: Sequence[Learner], certificates: Sequence[Certificate]
) -> None:
    """Turn the slacks of each learner's weights into counts by one reading; hold those rows."""
    for learner, certificate in zip(learners, certificates, strict=True):
        begin_reading(learner, 1, certificate.scale)
    asked = [(scan_request(learner), learner.progress.b) for learner in learners]
    requests = [request._replace(threshold=-math.inf, b=b) for request, b in asked]
    add_blocks(scans.read(requests, [Counts() for _ in learners], _rooms(learners)), learners)
    scans.end()
    for learner, certificate in zip(learners, certificates, strict=True):
        start_from_slacks(learner)
        scans.done(learner, _bounded(certificate, ()), mini_epochs=learner.progress.mini_epochs)


def _read(scans: Scans, learners: Sequence[Learner], reading: int) -> None:
    """Read once: scan and hold violators, or train, as each learner does in this reading.

    Learners that train visit the chunks in the order of the data, so this process reads."""
    for learner in learners:
        begin_reading(learner, reading)
    scanning = [learner for learner in learners if learner.mode == "scan"]
    training = [learner for learner in learners if learner.mode == "train"]
    requests, counts = list(map(scan_request, scanning)), [learner.counts for learner in scanning]
    if training:
        scans.begin("train", len(learners))
        chunks = scans.told(_trained(scans.source.chunks(), training))
        add_blocks(scan_blocks(chunks, requests, counts, _rooms(scanning)()), scanning)
    else:
        add_blocks(scans.read(requests, counts, _rooms(scanning)), scanning)
    scans.end()


def _trained(
    chunks: Generator[Chunk, None, None], learners: Sequence[Learner]
) -> Generator[Chunk, None, None]:
    """Train learners on each chunk before it is passed on."""
    with closing(chunks):
        for chunk in chunks:
            for learner in learners:
                take_and_solve(learner, chunk, order.file_order(len(chunk)))
            yield chunk


def _rooms(learners: Sequence[Learner]) -> Callable[[], list[int]]:
    return lambda: [room(learner) for learner in learners]
