"""Train one linear classifier on many parts of the data, with a certificate: the algorithm.

The problem is that of ``train``. The rows lie in parts, and every step below is a function mapped
over the parts and a sum over a fixed binary tree of them: the result depends on the parts, and not
on the threads, processes or machines that hold them.

1. Each part trains on its own rows alone, by ``train``. Any sum of counts ≥ 0 is a dual point.
2. Newton's method on the rows in memory of all parts together: a round for P and ∇P, one for every
   product with the Hessian, one for the line search. A vector of a number a column goes to each
   part and comes back.
3. Counts from the slacks, and one scan of all rows from disk at fixed weights. It certifies, and
   finds the rows that matter next. Repeat from 2 until the gap is at most ``tol``.

Sums of local solutions alone (CoCoA+, Ma et al., ICML 2015) need far more rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from streamtron.core import kernels
from streamtron.core.errors import DataError
from streamtron.core.events import Listener, ReadingDone, ReadingStarted, ignore
from streamtron.core.executor import Parts, PartsLost
from streamtron.core.rows import Label
from streamtron.solver import joint_newton, part, stages
from streamtron.solver.in_memory import worthwhile_gap
from streamtron.solver.learner import Learner
from streamtron.solver.part import Started
from streamtron.solver.proving import certify
from streamtron.solver.report import StageReport
from streamtron.solver.scan import Frozen
from streamtron.solver.stages import Stage
from streamtron.solver.state import Regime
from streamtron.solver.stopping import conclude, stop_at_limit
from streamtron.solver.subproblem import finer_resolution


def train_parts(
    learner: Learner,
    parts: Parts,
    listen: Listener = ignore,
    checkpoint: Callable[[], None] = lambda: None,
) -> None:
    """Train on all parts until the certificate meets the tolerance, or another limit ends the run.

    Parameters
    ----------
    learner : holds no rows: its weights, certificate and progress are those of all parts, at the
        end also its counts. One that has made scans before continues after the last.
    checkpoint : called after every scan; ``learner`` and what the parts have saved is all that is
        needed to continue.
    """
    theta = begin(learner, parts, listen) if learner.progress.reading == 0 else None
    while not learner.finished:
        if theta is None:
            solve(learner, parts)
        scan(learner, parts, theta, listen)
        theta = None
        checkpoint()
    take_counts(learner, parts)


def begin(learner: Learner, parts: Parts, listen: Listener) -> float | None:
    """Have each part train on its rows alone, and take the sum of their weights.

    Returns its best scale if the sum of the parts' counts is the dual point to begin with: where
    memory does not hold all rows that have one. DataError: there are not two labels.
    """
    listen(ReadingStarted(0, "train", None, None))
    while True:
        with suppress(PartsLost):
            begun = parts(part.start)
            labels = _two_labels(begun)
            joined = parts(part.join, labels, max(begun.widths))
            parts.scans = 0
            break
    for extent in begun.extents:
        learner.extent.observe(extent.sq_radius, extent.least_delta2)
        learner.extent.rows += extent.rows
    learner.targets.labels, learner.targets.positive = labels, labels[0]
    learner.regime = _worst(begun.regimes)
    _begin_ascent(learner)
    theta = None
    if learner.regime == Regime.BLOCKS:
        theta = joined.steps / (kernels.square_sum(joined.weights) + joined.extension)
    learner.best.candidate = (theta or 1.0) * joined.weights
    learner.progress.record(None, None, 0)
    return theta


def solve(learner: Learner, parts: Parts) -> None:
    """Solve the rows in memory of all parts by Newton's method, the dual variables of all other
    rows fixed; and choose the resolution b of the counts that the next scan makes of the slacks."""
    v, progress = learner.best.candidate, learner.progress
    assert v is not None
    precision, blocks = worthwhile_gap(learner), learner.regime == Regime.BLOCKS
    if progress.reading == 0:
        v = joint_newton.best_scale(parts, v) * v
    center = np.zeros(len(v))
    if blocks:
        held = parts.until_found(part.sum_held, progress.b).image
        center = learner.running.augmented(1.0 / progress.b) - held
    found = joint_newton.minimise(parts, v, center, precision)
    learner.best.candidate = found.v
    progress.reports[-1].newton_steps += found.steps
    if not blocks:
        error, rounding = precision * found.primal, found.seen.lengths / 24.0
        b = finer_resolution(progress.b, rounding, error, max(found.seen.largest))
        progress.b = progress.reports[-1].b = b


def scan(learner: Learner, parts: Parts, theta: float | None, listen: Listener) -> None:
    """Certify the weights by one reading of all rows, and end the run if that suffices.
    ``theta`` : see ``part.scan``."""
    progress, v, b = learner.progress, learner.best.candidate, learner.progress.b
    assert v is not None
    progress.reading += 1
    listen(ReadingStarted(progress.reading, "scan", None, None))
    scanned = parts.until_found(part.scan, progress.reading, v, b, theta)
    parts.scans = progress.reading
    scanned.sums.fold()
    frozen = Frozen(b * v[:-1], b * float(v[-1]), 1.0 / b, b, running=scanned.sums.fresh)
    frozen.scan_sums = scanned.sums
    learner.regime = _worst(scanned.regimes)
    progress.readings += 1
    certify(learner, frozen)
    conclude(learner, frozen)
    progress.record(learner.certificate, None, sum(scanned.held))
    if not learner.finished and progress.full_epochs >= learner.settings.epoch_limit:
        stop_at_limit(learner, frozen)
    if not learner.finished:
        progress.count_full_epoch()
    listen(
        ReadingDone(
            progress.reading, progress.stage.name, "scan", 0, 0, sum(scanned.held),
            learner.certificate, learner.running.upper_bound,
        )
    )  # fmt: skip


def take_counts(learner: Learner, parts: Parts) -> None:
    """Take the counts of all rows, numbered as in the whole data."""
    learner.counts.clear()
    first, counted = 0, parts.until_found(part.take_counts)
    for (numbers, counts), rows in zip(counted.counts, counted.rows, strict=True):
        learner.counts.put(first + numbers, counts)
        first += rows


def _begin_ascent(learner: Learner) -> None:
    """Fix a first b, and open the report of the one stage."""
    progress, extent = learner.progress, learner.extent
    progress.plan, progress.stage_number = (Stage(1.0, ascent=True),), 0
    progress.b = stages.choose_b(
        progress.stage, learner.settings, extent.sq_radius, None, extent.least_delta2
    )
    progress.reports.append(StageReport.begin(progress.stage, learner.settings, progress.b, 0))
    progress.count_full_epoch()
    progress.readings = 1


def _two_labels(begun: Started) -> list[Label]:
    """The two labels of all parts, in the order of the parts and of their appearance."""
    labels = list(dict.fromkeys(label for own in begun.labels for label in own))
    if len(labels) != 2:
        found = f"{len(labels)} labels, {', '.join(map(str, labels[:10]))}" if labels else "no rows"
        raise DataError(
            f"the shards have {found}: wanted rows of two labels. Check --label, or give "
            "--multiclass, without --parts, for more of them."
        )
    return labels


def _worst(regimes: list[Regime]) -> Regime:
    """The regime of the part whose memory holds least."""
    return max(regimes, key=list(Regime).index)
