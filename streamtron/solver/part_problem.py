"""One learner's problem on the rows of a part, and the steps that change its dual variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.executor import changes_part
from streamtron.core.rows import Chunk, Label
from streamtron.core.scan_sums import ScanSums
from streamtron.solver.duals import Counts, SavedArrays, read_state, write_state
from streamtron.solver.held_loss import PartLoss, Vector
from streamtron.solver.hessian import NO_QUADRATIC, Outside, QuadraticSums
from streamtron.solver.learner import Learner, augment, end_quadratic, enter, freeze, loosen_bias
from streamtron.solver.progress import BestWeights
from streamtron.solver.row_store import ColumnSubset, NarrowRows, mark_columns
from streamtron.solver.stages import ASCENT, Regime
from streamtron.solver.targets import Extent, largest_counts, relax_counts, round_counts
from streamtron.solver.vectors import resized
from streamtron.solver.weights import NO_COUNTS, DualPoint, WeightState, restart


class LocalStart(NamedTuple):
    """The best weights of each part, augmented, summed; the dual point of the parts' own counts:
    Σ α y (augmented), Σ Δ² α² and Σ α; the rows in memory; and each part's b, largest count, extent
    and regime."""

    weights: Vector
    dual: Vector
    extension: float
    steps: float
    held: int
    units: list[float]
    largest: list[int]
    extents: list[Extent]
    regimes: list[Regime]


class ReadingPlan(NamedTuple):
    """What a reading does for a problem, by its number: it certifies the weights ``w``, ``bias``
    around a ``scale``; b is the unit of the counts, ρ the feature of the bias. ``few`` : rows far
    from the margin become one quadratic. ``start`` : the dual point of all parts from which rows
    are visited; None = none are visited: the weights solve the rows held, if these are all that
    matter, and their counts are made of the slacks first."""

    problem: int
    w: Vector
    bias: float
    scale: float
    b: float
    rho: float
    few: bool
    start: DualPoint | None


class ReadingSums(NamedTuple):
    """The sums of a scan at fixed weights, as wide as its rows; the rows in memory after it; each
    part's regime, and what is known of all its rows; and where columns are few, the quadratic of
    the rows outside memory."""

    sums: ScanSums
    held: int
    regimes: list[Regime]
    extents: list[Extent]
    quadratic: QuadraticSums


class PartProblem(PartLoss):
    """One learner's problem on the rows of a part. ``learner`` : numbers rows from 0 in the part.

    ``few`` : whether this reading makes the rows far from the margin one quadratic.
    """

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.loss, learner.active, learner.augmentation)
        self.learner = learner
        self.few = self._new = False  # whether the reading observes the rows
        self._certified: SavedArrays | None = None  # the counts before a reading that visits rows
        self._base = NO_COUNTS  # the dual point of all parts from which rows are visited
        self._before = np.zeros(0, dtype=np.int32)  # the counts of the rows held before a solve
        self._columns = 0  # of the weights that are scanned

    def agree(self, positive: Label | None, columns: int) -> LocalStart:
        """Take the positive label of all parts; return the dual point of the problem's own counts,
        and its best weights, which are not needed any more, with so many columns."""
        learner, targets, running = self.learner, self.learner.targets, self.learner.running
        label = targets.positive
        if label is None:
            label = next(iter(targets.labels), None)
        targets.positive = positive
        unit = 1.0 / learner.progress.b if learner.progress.b else 0.0
        augment(learner, learner.settings.augmentation)  # until all parts have one: take_unit
        dual = running.augmented(unit)
        best = dual if learner.best.candidate is None else learner.best.candidate
        if label not in (None, positive):
            signs = learner.active.targets.signs
            np.negative(signs, out=signs)
            running.w *= -1.0
            running.scalars[kernels.BIAS] *= -1.0
            dual, best = -dual, -best
            if learner.outside is not None:
                learner.outside.linear *= -1.0
        learner.best = BestWeights()
        learner.progress.plan, learner.progress.stage_number = (ASCENT,), 0
        self.renew()
        return LocalStart(
            resized(best, columns),
            resized(dual, columns),
            running.extension * unit**2,
            running.steps * unit,
            len(learner.active),
            [learner.progress.b],
            [learner.counts.largest()],
            [learner.extent],
            [learner.regime],
        )

    def take_unit(self, b: float, theta: float, columns: int) -> DualPoint:
        """Multiply the counts of the local start by a whole number, so that in units of b they are
        about θ of what they were, or set them to 0; return the dual point that they make."""
        learner, running, unit = self.learner, self.learner.running, self.learner.progress.b
        if theta:
            factor = round(theta * b / unit) if unit else 1
            learner.counts.scale(running.rescale(learner.counts.largest(), factor))
        else:
            learner.counts.clear()
            restart(running)
        loosen_bias(learner)
        learner.progress.b, learner.running = b, WeightState()
        point = running.dual_point
        return point._replace(a=resized(point.a, columns))

    def begin_reading(self, number: int, plan: ReadingPlan) -> None:
        """Prepare a reading; see ``ReadingPlan``."""
        learner, visits = self.learner, plan.start is not None
        learner.progress.reading, learner.progress.b = number, plan.b
        augment(learner, plan.rho)
        self.rho, self.few, self._new = plan.rho, plan.few, not learner.extent.rows
        self._columns = len(plan.w)
        scanned = plan.few and not learner.complete  # counts are made as rows are scanned
        if not (visits or scanned or learner.regime == Regime.BLOCKS):
            alpha = self.alpha(self.margins_of(plan.scale * np.append(plan.w, plan.bias)))
            counts = round_counts(alpha, plan.b, self.most, balanced=self.loss.numbers)
            learner.counts.put(learner.active.numbers, counts)
        learner.frozen = freeze(learner, plan.w, plan.bias, plan.scale, plan.b)
        learner.frozen.beside_training = visits
        learner.mode, learner.running = "scan", WeightState()
        self._certified = learner.counts.gaps() if visits else None
        learner.keepers = np.sort(learner.active.numbers)
        if learner.regime == Regime.BLOCKS:
            learner.keepers = learner.keepers[:0]
        if plan.start is not None:
            learner.mode = "train"
            self.start_visits(plan.start)
        if not learner.complete:
            learner.regime = Regime.FEW_COLUMNS if plan.few else Regime.WORKING_SET
            learner.active.clear()

    def observe(self, chunk: Chunk) -> None:
        """Observe the rows of a chunk in a run that was changed, and make room for new columns."""
        learner, frozen = self.learner, self.learner.frozen
        assert frozen is not None
        if self._new:
            learner.extent.add(learner.targets(chunk), learner.settings, chunk.width)
        if chunk.width > len(frozen.w):
            frozen.widen(chunk.width)
            if learner.regime == Regime.FEW_COLUMNS:  # of which all parts know the same
                end_quadratic(learner)
                enter(learner, Regime.BLOCKS)

    def end_reading(self) -> ReadingSums:
        """Return the sums of a reading, and what is held now."""
        learner, frozen = self.learner, self.learner.frozen
        assert frozen is not None
        learner.frozen, learner.running, self._base = None, WeightState(), NO_COUNTS
        self.renew()
        quadratic = self.sum_rest(self._columns) if self.few else NO_QUADRATIC
        held = len(learner.active)
        return ReadingSums(frozen.scan_sums, held, [learner.regime], [learner.extent], quadratic)

    def save(self, path: str, rows: int, seen: Mapping[str, str]) -> None:
        """Save the state after a reading; ``rows`` : of the part, read of what was ``seen``."""
        learner, held = self.learner, self.learner.active.numbers
        if learner.regime == Regime.ALL_ROWS:
            held = held[:0]
        weights = learner.targets.class_weights
        write_state(
            path,
            learner.counts,
            self._certified,
            held,
            b=learner.progress.b,
            rho=learner.augmentation,
            positive=learner.targets.positive,
            center=learner.targets.center,
            shuffles=learner.shuffles,
            regime=learner.regime,
            rows=rows,
            seen={**seen},
            class_weights=None if weights is None else [*weights.items()],
        )

    def restore(self, path: str, reading: int) -> tuple[NDArray[np.int64], dict[str, str]]:
        """Restore the state after a reading; return the rows held, which are to be read, and what
        the rows were read of."""
        learner = self.learner
        content, arrays = read_state(path)
        learner.counts = Counts.of_gaps(arrays["gaps"], arrays["counts"])
        weights = content["class_weights"]
        learner.targets.class_weights = None if weights is None else dict(weights)
        learner.targets.positive = content["positive"]
        learner.fix_center(content["center"])
        augment(learner, content.get("rho", learner.augmentation))  # older runs tell none
        learner.regime = Regime(content["regime"])
        if "certified.gaps" in arrays:
            self._certified = arrays["certified.gaps"], arrays["certified.counts"]
        learner.shuffles = content["shuffles"]
        learner.progress.reading, learner.progress.b = max(reading, 1), content["b"]
        learner.progress.plan, learner.progress.stage_number = (ASCENT,), 0
        every_row = learner.regime == Regime.ALL_ROWS
        rows = np.arange(content["rows"]) if every_row else arrays["held"]
        return rows, content.get("seen", {})

    def take_back(self) -> None:
        """Take back what the visits of the last reading have changed in the counts: the learner has
        finished, with a certificate of the counts before. A run that is resumed may ask again."""
        if self._certified is not None:
            self.learner.counts, self._certified = Counts.of_gaps(*self._certified), None

    def renew(self) -> None:
        """Take the rows, signs and counts that are held now."""
        learner = self.learner
        self.held, self.loss, self.rho = learner.active, learner.loss, learner.augmentation
        super().renew()
        self.take_shares(learner.counts.take(learner.active.numbers), learner.progress.b)

    @changes_part
    def sum_rest(self, columns: int) -> QuadraticSums:
        """Take out the quadratic of the rows outside memory."""
        outside = self.learner.outside or Outside(np.zeros(columns + 1), 0.0)
        self.learner.outside = None
        return outside.sums(columns)

    @changes_part
    def sum_held(self, columns: int) -> tuple[DualPoint, NDArray[np.bool_], list[int]]:
        """Sum the dual point of the rows in memory, which are to be solved; of so many columns tell
        which occur; and each part's nonzeros."""
        self.renew()
        learner, marks = self.learner, np.zeros(columns, dtype=bool)
        self._before = learner.counts.take(learner.active.numbers)
        mark_columns(self.held.rows, marks)
        dual = self.dual_point(self._before, columns, learner.progress.b)
        return dual, marks, [self.held.nonzeros]

    @changes_part
    def narrow(self, columns: NDArray[np.int64], width: int) -> tuple[()]:
        """Number the columns of the rows in memory anew: those that occur in any part."""
        self.held = NarrowRows.of(self.held, ColumnSubset(columns, width))
        return ()

    @changes_part
    def move(self, v: Vector, b: float, relaxation: float) -> DualPoint:
        """Move the counts of the rows in memory from where they were before the solve to b times
        the α of v, ``relaxation`` times as far; return what that changes."""
        learner, numbers, counts = self.learner, self.learner.active.numbers, self._before
        alpha, signed = self.alpha(self.margins_of(v)), self.loss.numbers
        solution = round_counts(alpha, b, self.most, balanced=signed)
        largest = largest_counts(b, self.most)
        moved = relax_counts(counts, solution, relaxation, largest, signed=signed)
        learner.counts.put(numbers, moved)
        columns = len(v) - 1
        return self.dual_point(moved, columns, b).plus(self.dual_point(counts, columns, b), -1)

    @changes_part
    def start_visits(self, base: DualPoint) -> tuple[()]:
        """Take the dual point of all parts, from which rows are visited."""
        self.held = self.learner.active  # with all columns
        self._base, self.learner.running = base, WeightState()
        self.learner.running.take(base)
        return ()

    def moved(self) -> DualPoint:
        """Return what visits have changed of the dual point."""
        return self.learner.running.dual_point.plus(self._base, -1)
