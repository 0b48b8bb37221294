"""One two-class problem in training: its state, and every change of it.

Only ``part`` too assigns a field of a ``Learner``, ``Progress`` or ``BestWeights``."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.core.errors import DataError
from streamtron.core.losses import Loss, center_of, loss_of, solved
from streamtron.core.rows import Facts, Label, Rows, Vector
from streamtron.solver import order
from streamtron.solver.alphas import Alphas
from streamtron.solver.hessian import Expansion, Outside
from streamtron.solver.progress import KEPT_BY_NEWTON, KEPT_BY_VISITS, BestWeights, Progress
from streamtron.solver.row_store import ActiveSet
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import TargetRule, Targets
from streamtron.solver.weights import DualPoint, WeightState

IN_BUFFERS = 4.0
"""ρ of a bias that is not penalised, of rows solved in buffers, beside that of one that is."""


class Memory(StrEnum):
    """What a learner's memory holds."""

    ALL_ROWS = "all rows"
    """Every row of the data: they are solved, then scanned."""
    WORKING_SET = "working set"
    """The rows with α ≠ 0 and the rows up to the margin, which all fit."""
    BUFFERS = "buffers"
    """A part of the working set at a time: each buffer is solved when memory is full."""
    FEW_COLUMNS = "few columns"
    """The rows nearest the margin; all others are one quadratic (see ``few_columns``)."""


class Learner:
    """The state of one two-class problem, of one of numbers, or of softmax.

    ``columns`` : of the weights; of softmax K (columns + 1) − 1, see ``solver.softmax``.
    ``facts`` : of all rows. ``labels``, ``class_weights``, ``positive`` : see ``TargetRule``.
    """

    def __init__(
        self,
        settings: Settings,
        columns: int,
        facts: Facts,
        labels: Sequence[Label] = (),
        class_weights: Mapping[Label, float] | None = None,
        positive: Label | None = None,
    ) -> None:
        self.settings, self.facts = settings, facts
        self.outputs = len(labels) if settings.softmax else 1  # dual variables of a row
        self.augmentation = settings.augmentation  # the constant feature of the bias
        loss = loss_of(settings)
        center = center_of(loss, facts.mean) if settings.free else 0.0
        self.targets = TargetRule(
            settings.price,
            labels,
            class_weights,
            positive,
            center,
            self.augmentation,
            by_class=settings.softmax,
            rates=loss.log_link,
        )
        all_0 = facts.rows > 0 and facts.least == facts.largest == 0.0
        if loss.log_link and settings.free and all_0:
            raise DataError(
                "all labels are 0, and no bias makes the mean of the loss poisson 0. Give "
                "--intercept penalised, or none, or rows with other labels."
            )
        self.active = ActiveSet(settings.active_set_bytes)
        self.running = WeightState(columns)  # v = Σ α_k l_k (x_k, ρ)
        self.alphas = Alphas(self.outputs)
        self.best = BestWeights(np.zeros(columns))
        self.progress = Progress()
        self.memory = Memory.WORKING_SET
        self.frozen: Frozen | None = None  # the scan that the current reading makes
        self.outside: Outside | None = None  # rows of the current reading, where columns are few
        self.expansion: Expansion | None = None  # of the quadratic that the candidate solves
        self.visits = True  # whether the current reading, or the next one, visits rows
        self.shuffles = 0  # orders drawn so far
        self.unsummed = False  # whether v may differ from the sum that the α make
        self.elsewhere = 0  # rows that many parts hold

    @property
    def columns(self) -> int:
        """How many columns the weights have."""
        return len(self.running.w)

    @property
    def radius(self) -> float:
        """R, or more: the largest ‖y_k‖."""
        return math.sqrt(self.targets.sq_radius(self.facts))

    @property
    def finished(self) -> str | None:
        """Why training has ended; None while it goes on."""
        return self.progress.finished

    @property
    def certificate(self) -> Certificate | None:
        """What is proven of the best weights; None before the first scan."""
        return self.best.certificate

    @property
    def proven(self) -> Certificate | None:
        """What the scan of the current reading has proven; None where it makes none."""
        return None if self.frozen is None else self.certificate

    @property
    def gap(self) -> float:
        """The relative duality gap that is proven; 1 before the first scan."""
        return 1.0 if self.certificate is None else self.certificate.relative_duality_gap

    @property
    def loss(self) -> Loss:
        """The loss; in place of the hinge one that is smooth."""
        return solved(loss_of(self.settings))

    @property
    def has_margins(self) -> bool:
        """Whether bounds on P* are bounds on a margin: the loss is the squared hinge."""
        return self.loss.quadratic and not self.settings.ratio

    @property
    def upper_bound(self) -> float | None:
        """1/√(2 D) of the running weights, an estimate; None where there are no margins."""
        dual = self.running.objective
        return 1.0 / math.sqrt(2.0 * dual) if self.has_margins and dual > 0.0 else None

    @property
    def in_buffers(self) -> bool:
        """Whether memory holds a buffer of the rows that matter, for they do not fit."""
        return self.memory == Memory.BUFFERS

    @property
    def complete(self) -> bool:
        """Whether memory holds every row of the data."""
        return self.memory == Memory.ALL_ROWS

    @property
    def loose_bias(self) -> bool:
        """Whether the feature of the bias is so large that visits hardly move v."""
        return self.augmentation > IN_BUFFERS * self.settings.rho

    @property
    def rows_held(self) -> int:
        """How many rows are in memory, here or in the parts."""
        return len(self.active) + self.elsewhere

    def next_turn(self) -> order.Turn:
        """The turn of the next mini-epoch."""
        self.shuffles += 1
        return order.Turn(self.settings.seed, self.progress.reading, self.shuffles)


def end_stage(learner: Learner, finished: str | None, stop_reason: str) -> None:
    """Close the report of the current stage; ``finished`` : why the run ends with it."""
    learner.progress.end_stage(stop_reason, learner.running.updates, learner.certificate)
    learner.progress.finished = finished
    if finished:
        learner.outside = learner.best.marks = None


def freeze(learner: Learner, w: Vector, bias: float) -> Frozen:
    """Return a scan at these weights; beside training, if the reading visits rows."""
    settings = learner.settings
    free = learner.augmentation if settings.free else 0.0
    frozen = Frozen(w, bias, loss_of(settings), free, settings.ratio)
    frozen.beside_training = learner.visits
    return frozen


def only_scanning(learner: Learner, alphas: Alphas) -> Learner:
    """Return a learner that scans some of another's rows, which have these α, and holds none."""
    scanning = copy.copy(learner)
    scanning.alphas, scanning.active = alphas, ActiveSet(0)
    scanning.running, scanning.best = WeightState(0), BestWeights(np.zeros(0))
    scanning.frozen, scanning.progress = None, Progress()
    return scanning


def start_reading(learner: Learner, reading: int, frozen: Frozen | None) -> None:
    """Begin a reading, which scans the weights that are fixed for it, if there are any."""
    learner.progress.begin_reading(reading, visits=learner.visits)
    learner.frozen = frozen
    if learner.in_buffers:
        learner.memory = Memory.WORKING_SET
    if not learner.complete:
        learner.active.clear()


def leave_scan(learner: Learner) -> None:
    """Give a scan up: the weights are about to change, so that it proves nothing."""
    learner.frozen = None


def certify(learner: Learner, frozen: Frozen) -> None:
    """Certify a complete scan, keep the weights of the least primal, and set the running weights to
    what the scan has summed from the α, unless these have changed since."""
    learner.best.take(frozen)
    learner.unsummed = False
    if not frozen.beside_training:
        learner.running.settle_scanned(frozen.scan_sums)


def take_solution(
    learner: Learner, candidate: Vector | None, *, newton_steps: int, primal: float = math.inf
) -> None:
    """Take what a solve has found: the augmented weights that the next scan certifies; of buffers,
    their average. ``primal`` : of the weights, over the rows in memory."""
    progress, best = learner.progress, learner.best
    progress.count_work(newton_steps=newton_steps)
    progress.primal = primal if learner.complete and learner.has_margins else math.inf
    if not learner.in_buffers:
        best.candidate = candidate
    elif candidate is not None:
        best.average(candidate)


def take_visits(learner: Learner, passes: int, visited: int, *, crawls: bool) -> None:
    """Take what passes over a buffer have found: the running weights join the average that the next
    scan certifies, unless they ``crawl`` and Newton's method goes on."""
    progress, best = learner.progress, learner.best
    progress.count_work(mini_epochs=passes, visited=visited)
    progress.crawls = crawls
    progress.kept = KEPT_BY_NEWTON if crawls else KEPT_BY_VISITS if passes > 1 else 0.0
    if not crawls and best.candidate is not None:
        best.average(learner.running.augmented)


def hold_quadratic(learner: Learner, outside: Outside | None) -> None:
    """Hold the quadratic of rows outside memory, or give it up."""
    learner.outside = outside


def expand_at(learner: Learner, v: Vector | None) -> None:
    """Note where the quadratic was expanded whose solution the next scan certifies; None: it is
    none that a scan may tell from slacks."""
    learner.expansion = None if v is None else Expansion(v, learner.active.numbers.copy())


def hold_elsewhere(learner: Learner, rows: int) -> None:
    """Note how many rows many parts hold in memory for the learner."""
    learner.elsewhere = rows


def hold_rows(learner: Learner, rows: Rows, targets: Targets) -> None:
    """Hold all rows of the data, which are in memory."""
    learner.active = ActiveSet.of(rows, targets)
    learner.memory = Memory.ALL_ROWS


def hold_last_buffer(
    learner: Learner, rows: Rows, targets: Targets, others: DualPoint, rho: float
) -> None:
    """Hold rows as a buffer that Newton's method is to solve, beside the dual point of all others;
    ρ is the feature of the bias in both."""
    learner.active, learner.memory = ActiveSet.of(rows, targets), Memory.BUFFERS
    learner.augmentation, learner.progress.crawls = rho, True
    learner.running.take(others)


def release_rows(learner: Learner) -> None:
    """Hold no rows any more. If training continues, the next reading keeps the rows that matter."""
    learner.active = ActiveSet(learner.settings.active_set_bytes)
    if learner.complete:
        learner.memory = Memory.WORKING_SET


def choose_visits(learner: Learner, visits: bool) -> None:
    """Choose whether the next reading visits rows, or scans them only."""
    learner.visits = visits


def enter(learner: Learner, memory: Memory) -> None:
    """Note what memory holds from now on."""
    learner.memory = memory
    known = learner.progress.reading or learner.frozen or learner.outside
    all_matter = memory == Memory.WORKING_SET and not learner.loss.sparse
    if (learner.in_buffers or all_matter) and not known:
        loosen_bias(learner)


def loosen_bias(learner: Learner) -> None:
    """Give a bias that is not penalised another feature, for buffers: a large one ties Σ α_k l_k of
    each buffer and visit to 0, and hardly any moves. Not amid a scan."""
    if learner.settings.free:
        augment(learner, learner.settings.rho * IN_BUFFERS)


def augment(learner: Learner, rho: float) -> None:
    """Change the constant feature that carries the bias; the bias of the best weights stays."""
    if rho != learner.augmentation:
        running, best, ratio = learner.running, learner.best, rho / learner.augmentation
        learner.augmentation = rho
        running.settle(running.w, running.bias * ratio, running.gains)
        best.bias /= ratio
        if best.candidate is not None:
            best.candidate[-1] /= ratio


def begin_again(learner: Learner, *, keep_scan: bool) -> None:
    """Forget the proof, the reports and the rows in memory of a finished learner, whose rows change
    or whose weights are not those of its α; the next reading scans. ``keep_scan`` : the last scan
    is continued."""
    learner.best.forget_proof()
    learner.best.take_candidate()
    learner.progress = Progress(reading=learner.progress.reading)
    learner.running.updates = 0
    learner.expansion = None
    learner.unsummed |= learner.settings.class_weight == "balanced"  # which may cut α
    learner.frozen = learner.frozen if keep_scan else None
    release_rows(learner)
    learner.visits = False
    learner.elsewhere = 0  # until here: α of several parts are never all in memory


def renumber(learner: Learner, places: NDArray[np.int64], columns: int) -> None:
    """Number the columns of a finished learner anew. ``places`` : of each column its new number;
    −1: no row has it any more. ``columns`` : how many there are now."""
    if (number := learner.outputs) > 1:  # a column has the weights of all classes side by side
        classes = np.arange(number)
        by_class = np.where(places < 0, -number, places * number)[:, None] + classes
        places = np.append(by_class.ravel(), columns * number + classes)[:-1]
        columns = number * (columns + 1) - 1
    kept = np.flatnonzero(places >= 0)

    def numbered(w: Vector) -> Vector:
        new = np.zeros(columns)
        new[places[kept]] = w[kept]
        return new

    def with_bias(v: Vector) -> Vector:
        return np.append(numbered(v[:-1]), v[-1])

    running, best, frozen = learner.running, learner.best, learner.frozen
    w = numbered(best.w)
    if frozen is not None:
        sums = frozen.scan_sums
        sums.fold()
        frozen.w = w if frozen.w is best.w else numbered(frozen.w)
        sums.fresh = numbered(sums.fresh)
        sums.sq_columns = None if sums.sq_columns is None else numbered(sums.sq_columns)
    running.settle(numbered(running.w), running.bias, running.gains)
    candidate = best.take_candidate()
    learner.best = BestWeights(
        w,
        best.bias,
        best.certificate,
        None if candidate is None else with_bias(candidate),
        gap_before=best.gap_before,
    )
    if learner.expansion is not None:
        learner.expansion.v = with_bias(learner.expansion.v)


def scan_anew(learner: Learner) -> None:
    """Have the next reading scan the best weights of a learner that goes on and holds no rows."""
    learner.best.propose(learner.best.augmented)
    learner.best.forget_proof()
    learner.visits, learner.frozen = False, None


def replace_alphas(learner: Learner, alphas: Alphas) -> None:
    """Replace the α; the next reading sums v afresh from them."""
    learner.alphas, learner.unsummed = alphas, True
    learner.running.restart()


def leave_alphas(learner: Learner, alphas: Alphas) -> None:
    """Leave the α to parts, or to their files."""
    learner.alphas = alphas


def set_weights(learner: Learner, w: Vector, bias: float, alphas: Alphas | None) -> None:
    """Set the running weights and the bias weight, and α if there are any, which need not make
    these weights; the next reading scans them."""
    learner.running.settle(w, bias, learner.running.gains)
    learner.visits, learner.unsummed = False, True
    learner.alphas = learner.alphas if alphas is None else alphas
