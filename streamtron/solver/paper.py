"""The paper's procedure: the t- and ℓ-Margitron (Panagiotakopoulos and Tsampouka, 2011), in stages.

A row whose y_k·a is at most the threshold b t^(1−ε) (``steps``) or b ‖a‖^(1−ε) (``length``) is
added to a; its count c_k grows by 1. A stage, one ε, begins at a = 0. Each full epoch renews the
active set, over which up to N_ep mini-epochs follow; a full epoch that finds no row to add ends the
stage. With ``faithful`` every full epoch adds rows and holds the ones that it has added, rows come
in the order of the files, and b is the paper's. Else a full epoch after the first only collects the
rows to add, at fixed weights, so that each is certified; where memory does not take all rows to
add, every second one adds rows.

The weights a t/‖a‖² are certified by a scan like any others, with α_k = c_k t/‖a‖². Only
``runs.learners`` and ``sweeps.two_stage`` call this module.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels, theory
from streamtron.core.config import Settings, epoch_limit, mini_epoch_limit
from streamtron.core.errors import SettingsError
from streamtron.core.rows import Chunk, Rows
from streamtron.core.text import format_size
from streamtron.solver import order, passes
from streamtron.solver.alphas import Alphas
from streamtron.solver.learner import (
    Learner,
    Memory,
    certify,
    choose_visits,
    end_stage,
    enter,
    freeze,
    leave_alphas,
    leave_scan,
    start_reading,
)
from streamtron.solver.progress import StageReport
from streamtron.solver.scan import Frozen
from streamtron.solver.stopping import stop_at_limit
from streamtron.solver.subproblem import Solve
from streamtron.solver.targets import Targets
from streamtron.solver.train import OnePart
from streamtron.solver.weights import WeightState

FIRST_B = 5.0
"""b/R² of a stage at ε = 1, and b/R^(1+ε) where ε is larger, for which the paper has no rule."""

ACCURACY = 0.05
"""δ of ``theory.b_length`` where the upper bound is ‖a‖/t, which is tight; the paper's is 1."""

CONVERGED = "a full reading found no row to update"
"""Why a stage ends that converges."""

ABOVE = 1e-10
"""By so much the least margin of a hard margin is above 1: more than what its rounding allows for,
however short it is beside the longest row."""

BOUNDS = ("directional_margin", "paper_upper_bound", "f_est", "direct_fraction")
"""What a report has of a stage beside its ε, variant and b: γ'_d, and the paper's bounds."""


class Margitron(OnePart):
    """Trains learners by the paper's procedure on rows that this process reads. While it does,
    their α are the counts c_k, and their running weights a; at the end of the run α_k = c_k t/‖a‖².
    """

    _least: dict[int, float]
    """of each learner, the least y_k·a in this reading: at most the threshold where a row is to be
    added"""

    def begin(self, learners: Sequence[Learner]) -> None:
        """Begin the first stage of new learners."""
        self._least = {}
        for learner in learners:
            if not learner.progress.readings:
                learner.progress.reports.clear()
                _begin_stage(learner)
            elif learner.finished:  # and reopened
                learner.alphas.change(partial(_counts_of, learner.running))

    def begin_reading(self, learner: Learner, reading: int) -> None:
        """Fix the weights of a reading that scans, wholly or until it meets a row to add."""
        frozen, running = None, learner.running
        if reading > 0 and (learner.settings.faithful or not learner.visits):
            scale = scale_of(running)
            frozen = freeze(learner, scale * running.w, scale * running.bias)
            frozen.beside_training = True  # a stays as it is
        self._least[id(learner)] = math.inf
        start_reading(learner, reading, frozen)

    def _chunks(self, reading: int, learners: Sequence[Learner]) -> Generator[Chunk, None, None]:
        yield from self._data.chunks()

    def _take(self, chunk: Chunk, learners: Sequence[Learner]) -> None:
        self._threads.work(lambda learner: self._take_rows(learner, chunk), learners)

    def _take_rows(self, learner: Learner, chunk: Chunk) -> None:
        """Add rows at most at the threshold, or collect them; hold them in memory."""
        targets, counts = learner.targets(chunk), learner.alphas.take_ranges(chunk.ranges)
        faithful, frozen, progress = learner.settings.faithful, learner.frozen, learner.progress
        marks = np.zeros(len(chunk), dtype=np.uint8)
        if frozen is not None:
            with progress.phase("scanning"):
                of_rows = targets.signs, _extension(targets), learner.augmentation, counts
                weights = threshold_of(learner), learner.running.bias, learner.running.w
                _, least = kernels.find_mistakes(chunk.rows, *of_rows, *weights, marks)
                self._least[id(learner)] = min(self._least[id(learner)], least)
                alphas = alphas_of(learner.running, counts)
                frozen.scan(chunk.rows, targets, alphas, learner.augmentation)
            if faithful and self._least[id(learner)] > weights[0]:
                return
        if learner.visits:
            leave_scan(learner)
            positions, marks = np.arange(len(chunk)), np.zeros(len(chunk), dtype=np.uint8)
            if not faithful:
                positions = order.visiting_order(learner.settings, progress.reading, chunk)
            with progress.phase("solving"):
                visit(learner, chunk.rows, positions, targets, counts, marks)
            learner.alphas.put_ranges(chunk.ranges, counts)
            if not faithful:
                marks |= counts != 0
        chosen, active = np.flatnonzero(marks), learner.active
        if active.add(chunk.rows, chosen, targets.take(chosen)) < len(chosen):
            if faithful:
                raise SettingsError(
                    f"the active set is over its budget of {format_size(active.budget)}, and "
                    "--faithful keeps every misclassified row. Give a larger --active-set."
                )
            enter(learner, Memory.BUFFERS)

    def finish_reading(self, learner: Learner) -> Solve:
        """Certify what was scanned, and end the stage or the run if that allows it; else make
        mini-epochs over the active set."""
        progress, frozen = learner.progress, learner.frozen
        progress.end_reading(full_epoch=learner.visits)
        if frozen is not None:
            if learner.settings.hard:
                _scale_to_margin(frozen)
            certify(learner, frozen)
            least, length = self._least[id(learner)], math.sqrt(learner.running.sq_norm)
            _stage(learner)["directional_margin"] = least / length if length else None
            _conclude(learner, converged=least > threshold_of(learner))
        if not learner.finished:
            with progress.phase("solving"):
                _continue(learner)
        progress.record(learner.proven, upper_bound(learner.running), learner.rows_held)
        if learner.finished:
            learner.alphas.change(partial(alphas_of, learner.running))
        yield from ()


def _scale_to_margin(frozen: Frozen) -> None:
    """Multiply weights just scanned so that no margin is below 1, if all are above 0: that of a
    hard margin is what counts."""
    sums = frozen.scan_sums.sums
    if (least := float(sums[kernels.LEAST])) > 0.0:
        factor = (1.0 + ABOVE) / least
        frozen.w *= factor
        frozen.bias *= factor
        sums[kernels.LEAST] = max(sums[kernels.LEAST] * factor, 1.0)


def _continue(learner: Learner) -> None:
    """Choose whether the next reading adds rows, and visit the active set."""
    progress, settings, active = learner.progress, learner.settings, learner.active
    if progress.full_epochs >= epoch_limit(settings):
        stop_at_limit(learner)
        return
    scanned = not learner.visits
    if scanned:
        progress.count_full_epoch()
    choose_visits(learner, settings.faithful or (scanned and learner.in_buffers))
    if not len(active):
        return
    counts, moved = learner.alphas.take(active.numbers), np.zeros(len(active), dtype=np.uint8)
    spent, updates = 0, -1
    while spent < mini_epoch_limit(settings) and learner.running.updates != updates:
        updates = learner.running.updates
        positions = np.arange(len(active))
        if not settings.faithful:
            positions = learner.next_turn().all(len(active))
        visit(learner, active.rows, positions, active.targets, counts, moved)
        spent += 1
    learner.alphas.put(active.numbers, counts)
    progress.count_work(mini_epochs=spent, visited=spent * active.nonzeros)


def visit(
    learner: Learner,
    rows: Rows,
    positions: NDArray[np.int64],
    targets: Targets,
    counts: NDArray[np.float32],
    moved: NDArray[np.uint8],
) -> None:
    """Visit rows in the order of ``positions``: the running weights and ``counts`` (of ``rows``)
    change in place, and ``moved`` becomes 1 where they do."""
    stage, running, extension = _stage(learner), learner.running, _extension(targets)
    how = learner.augmentation, stage["b"], stage["epsilon"], stage["variant"] == "length"
    for some in passes.visits(rows, positions):
        state = targets.squares, counts, running.w, running.scalars, moved
        running.updates += kernels.add_mistakes(rows, some, targets.signs, extension, *how, *state)


def _extension(targets: Targets) -> NDArray[np.float64]:
    """Return Δ_k² = 1/(2 C_k), shape (rows,); 0 where a row is left out."""
    costs = targets.costs
    return np.divide(0.5, costs, out=np.zeros(len(costs)), where=costs > 0.0)


def _stage(learner: Learner) -> dict[str, Any]:
    """Return what the report has of the current stage: ``epsilon``, ``variant``, ``b``, BOUNDS."""
    return learner.progress.reports[-1].paper


def steps_of(running: WeightState) -> float:
    """Return t = Σ c_k."""
    return float(running.scalars[kernels.STEPS])


def scale_of(running: WeightState) -> float:
    """Return t/‖a‖², at which a is certified: D is largest there."""
    return steps_of(running) / running.sq_norm if running.sq_norm > 0.0 else 1.0


def alphas_of(running: WeightState, counts: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return α_k = c_k t/‖a‖²."""
    return (scale_of(running) * counts.astype(np.float64)).astype(np.float32)


def _counts_of(running: WeightState, alphas: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the c_k that have made α_k."""
    return np.rint(alphas.astype(np.float64) / scale_of(running))


def upper_bound(running: WeightState) -> float | None:
    """Return ‖a‖/t, an estimate of its bound on γ_d, for updates round; None if either is 0."""
    steps = steps_of(running)
    return math.sqrt(running.sq_norm) / steps if steps and running.sq_norm > 0.0 else None


def threshold_of(learner: Learner) -> float:
    """Return the threshold on y_k·a; 0 before the first update."""
    stage, steps = _stage(learner), steps_of(learner.running)
    size = math.sqrt(learner.running.sq_norm) if stage["variant"] == "length" else steps
    return float(stage["b"] * size ** (1.0 - stage["epsilon"])) if steps else 0.0


def b_scale(epsilon: float, settings: Settings, sq_radius: float) -> float:
    """Return what b is relative to: R^(1+ε) for the length variant, R² for steps. R² itself where
    that is meant: the square of √R² may be less, and a row at the threshold b no mistake."""
    if epsilon == 1.0 or settings.variant == "steps":
        return sq_radius
    return float(math.sqrt(sq_radius) ** (1.0 + epsilon))


def choose_b(
    epsilon: float, settings: Settings, sq_radius: float, upper_bound: float | None
) -> float:
    """Return b of a stage, in absolute terms, where it is not given: 5 R² at ε = 1; for smaller ε
    from (bl) or (bt) at the tightest upper bound known on γ_d (R if there is none), with the
    paper's δ where ``faithful``; 5 R^(1+ε) or 5 R² for larger ones."""
    radius = math.sqrt(sq_radius)
    if epsilon >= 1.0:
        return FIRST_B * b_scale(epsilon, settings, sq_radius)
    gamma_up = min(upper_bound, radius) if upper_bound is not None else radius
    if settings.variant == "steps":
        # (bt) with its guard at ε < ½ asks for hundreds of readings, so the guard is left out
        relative = ((1.0 - epsilon / 2.0) * (gamma_up / radius) ** 2) ** (1.0 - epsilon)
        return float(sq_radius * relative * ACCURACY**-epsilon)
    return theory.b_length(radius, epsilon, 1.0 if settings.faithful else ACCURACY, gamma_up)


def _begin_stage(learner: Learner) -> None:
    """Begin the next stage at a = 0, and choose its b."""
    settings, reports, radius = learner.settings, learner.progress.reports, learner.radius
    number, sq_radius = len(reports), learner.targets.sq_radius(learner.facts)
    epsilon, upper = settings.paper[number], upper_bound(learner.running)
    if settings.faithful and reports:
        upper = _stage(learner)["paper_upper_bound"]
    if settings.b is None:
        b = choose_b(epsilon, settings, sq_radius, upper)
    else:
        b = settings.b[number] * b_scale(epsilon, settings, sq_radius)
    learner.running.restart()
    leave_alphas(learner, Alphas())
    exponent = 1.0 + epsilon if settings.variant == "length" else 2.0
    relative = b / radius**exponent if radius else None
    of_b = {"epsilon": epsilon, "variant": settings.variant, "b": b, "b_relative": relative}
    reports.append(StageReport({**of_b, **dict.fromkeys(BOUNDS)}))


def _conclude(learner: Learner, *, converged: bool) -> None:
    """End the run or the stage if the certificate just made allows it; ``converged`` : the scan has
    found no row to add."""
    progress, settings = learner.progress, learner.settings
    if settings.tolerance > 0.0 and learner.gap <= settings.tolerance:
        end_stage(learner, "certified", "the certificate meets the tolerance")
        return
    last = len(progress.reports) == len(settings.paper)
    # a stage that begins at the epoch limit would end the run with counts of 0
    if converged and (last or progress.full_epochs < epoch_limit(settings)):
        end_stage(learner, "converged" if last else None, CONVERGED)
        if (_stage(learner)["directional_margin"] or 0.0) > 0.0:
            _report_bounds(learner)
        if not last:
            _begin_stage(learner)


def _report_bounds(learner: Learner) -> None:
    """Report the paper's bounds on a stage that has converged: its worst-case bound on γ_d after
    the run (Remark 1 for steps and ε = 1, Theorem 2 else), its estimate of γ'_d/γ_d, and the
    sharper b t/‖a‖^(1+ε) or b t^(2−ε)/‖a‖²."""
    stage, radius, t_c = _stage(learner), learner.radius, int(steps_of(learner.running))
    by_length, after = stage["variant"] == "length", (stage["b"], stage["epsilon"], t_c)
    fraction = theory.direct_fraction_length if by_length else theory.direct_fraction_steps
    stage["direct_fraction"] = fraction(*after, math.sqrt(learner.running.sq_norm))
    if by_length and stage["epsilon"] > 1.0:
        return
    longest = theory.length_bound_steps(radius, *after)
    stage["paper_upper_bound"] = longest / t_c
    if by_length:
        margin = stage["directional_margin"]
        longest = theory.length_bound_length(radius, *after[:2], margin, t_c)
        if stage["epsilon"] < 1.0:
            stage["paper_upper_bound"] = longest / t_c
    stage["f_est"] = fraction(*after, longest)
