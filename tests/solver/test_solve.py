"""The rows in memory, solved: what is returned follows from α, what is claimed is true; buffers are
visited again while that pays."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.losses import SQUARED_HINGE
from streamtron.core.rows import Rows
from streamtron.data.blocks import squares_of
from streamtron.solver import ascent, few_columns, working_set
from streamtron.solver.learner import Learner, take_visits
from streamtron.solver.order import Turn
from streamtron.solver.progress import KEPT_BY_NEWTON, KEPT_BY_VISITS, PHASES, BestWeights
from streamtron.solver.row_store import ActiveSet
from streamtron.solver.stopping import promises_tolerance
from streamtron.solver.subproblem import Solution, Subproblem
from streamtron.solver.targets import Targets
from streamtron.solver.weights import WeightState
from streamtron.solver.working_set import keep
from tests.helpers.learners import data_of, drawn_data
from tests.helpers.optimum import holds, least_primal
from tests.helpers.sources import (
    ListData,
    csr,
    dense,
    learner_of,
    random_rows,
    read_libsvm,
    trained,
)

COLUMNS = 6
ROWS = 150
RHO = 1.0

Vector = NDArray[np.float64]


@dataclass
class Scene:
    """Rows of which the first ``held`` are in memory; all may have an α."""

    patterns: Vector
    delta2: Vector
    alphas: NDArray[np.float32]
    held: int
    running: WeightState
    problem: Subproblem

    def solve(self, target: float, mini_epochs: int = 50) -> Solution:
        found = ascent.solve(self.problem, target, mini_epochs)
        self.alphas[: self.held] = self.problem.alphas
        return found

    def v(self) -> Vector:
        """Σ α_k l_k (x_k, ρ)."""
        return self.patterns.T @ self.alphas.astype(np.float64)

    def objective(self) -> float:
        """D over all rows."""
        alpha, v = self.alphas.astype(np.float64), self.v()
        return float(alpha.sum() - 0.5 * (v @ v + self.delta2 @ alpha**2))

    def primal(self, v: Vector) -> float:
        """½‖v − v₀‖² + Σ C max(0, 1 − m)² over the rows held, and the others' own D: no dual that
        differs in the α of the rows held alone is above it."""
        alpha = np.where(np.arange(ROWS) < self.held, 0.0, self.alphas.astype(np.float64))
        center = self.patterns.T @ alpha
        slacks = np.maximum(0.0, 1.0 - self.patterns @ v)[: self.held]
        lost = 0.5 * ((v - center) ** 2).sum() + 0.5 / self.delta2[: self.held] @ slacks**2
        return float(lost + alpha.sum() - 0.5 * (center @ center + self.delta2 @ alpha**2))


def scene(
    seed: int,
    held: int = ROWS,
    *,
    C: float = 1.0,
    alphas: Sequence[float] | None = None,
    weighted: bool = False,
) -> Scene:
    """Random rows, some of them in memory; α that ten readings might have left outside."""
    rows, labels = random_rows(seed, ROWS, COLUMNS)
    signs = np.array(labels, dtype=np.int8)
    patterns = signs[:, None] * np.hstack([dense(rows, COLUMNS), np.full((ROWS, 1), RHO)])
    delta2 = np.full(ROWS, 0.5 / C)
    if weighted:
        delta2 /= np.random.default_rng(seed).choice([0.1, 1.0, 5.0], size=ROWS)
    start = np.zeros(ROWS, dtype=np.float32)
    if alphas is not None:
        start[:] = alphas
    elif held < ROWS:
        v = np.random.default_rng(seed).normal(size=COLUMNS + 1)
        alpha = np.where(np.arange(ROWS) < held, 0.0, np.maximum(0.0, 1.0 - patterns @ v) / delta2)
        u = patterns.T @ alpha
        start[:] = alpha * alpha.sum() / (u @ u + (delta2 * alpha**2).sum())  # D > 0 there
    dual, alpha = WeightState(COLUMNS), start.astype(np.float64)
    v = patterns.T @ alpha
    dual.settle(v[:-1].copy(), float(v[-1]), float(alpha.sum() - 0.5 * delta2 @ alpha**2))
    active, held_rows, calls = ActiveSet(10**6), csr(rows), itertools.count()
    targets = Targets(np.arange(ROWS), signs, 0.5 / delta2, squares_of(*held_rows))
    active.add(held_rows, np.arange(held), targets.take(slice(held)))
    how = SQUARED_HINGE, RHO, lambda: Turn(0, 0, next(calls))
    problem = Subproblem(active, start[:held].copy(), dual, *how, whole=held == ROWS)
    return Scene(patterns, delta2, start, held, dual, problem)


@pytest.fixture
def visits_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where columns are many: Newton's method only where visits crawl."""
    monkeypatch.setattr(ascent, "solved_directly", lambda *_: False)
    monkeypatch.setattr(ascent, "of_newton", lambda *_: 20.0)


@pytest.fixture(params=["as it is", "visits first"])
def either_way(request: pytest.FixtureRequest) -> None:
    """Newton's method before any visit, for columns are few here; and visits before it."""
    if request.param == "visits first":
        request.getfixturevalue("visits_first")


either = pytest.mark.usefixtures("either_way")
visits = pytest.mark.usefixtures("visits_first")

WHOLE: list[dict[str, Any]] = [{}, {"C": 100.0}, {"C": 1e-3}, {"weighted": True}]
PARTS = [{"held": 60}, {"held": 60, "C": 50.0}, {"held": 15, "weighted": True}]


@either
@pytest.mark.parametrize("options", [*WHOLE, *PARTS], ids=str)
@pytest.mark.parametrize("mini_epochs", [1, 6, 50])
@pytest.mark.parametrize("seed", range(3))
def test_sums_and_primal_are_those_of_the_duals_and_the_dual_never_falls(
    options, mini_epochs, seed
):
    place = scene(seed, **options)
    before = place.objective()
    found = place.solve(1e-2, mini_epochs)
    dual, v, middle = place.running, place.v(), place.objective()
    assert place.alphas.min() >= 0.0
    assert dual.augmented == pytest.approx(v, rel=1e-11, abs=1e-9 * float(np.abs(v).max()))
    assert dual.sq_norm == pytest.approx(float(v @ v), rel=1e-9)
    assert dual.objective == pytest.approx(middle, rel=1e-9)
    assert found.mini_epochs <= mini_epochs
    assert found.primal == pytest.approx(place.primal(found.v), rel=1e-11)
    assert middle >= before - 1e-12 * abs(before)
    warm = scene(seed, **options, alphas=place.alphas.tolist())
    warm.solve(1e-5, mini_epochs)
    assert warm.objective() >= middle * (1 - 1e-9)


def test_rows_solved_in_part_are_moved_by_the_relaxation_beyond_their_solution(monkeypatch):
    beyond, exact = scene(0, 60), scene(0, 60)
    before = beyond.alphas[:60].astype(np.float64)
    beyond.solve(1e-6)
    monkeypatch.setattr(ascent, "RELAXATION", 1.0)
    exact.solve(1e-6)
    expected = np.maximum(before + 1.25 * (exact.alphas[:60] - before), 0.0)
    assert beyond.alphas[:60] == pytest.approx(expected, rel=1e-6)
    assert exact.alphas[60:].tolist() == beyond.alphas[60:].tolist()


@pytest.mark.parametrize("options", WHOLE, ids=str)
def test_few_nonzeros_are_finished_to_rounding_whatever_the_target(options, monkeypatch):
    small, exact = scene(1, **options), scene(1, **options)
    found, optimum = small.solve(0.5).v, exact.solve(1e-12).v
    assert np.abs(found - optimum).max() <= 1e-11 * np.abs(optimum).max()
    monkeypatch.setattr(ascent, "SMALL", small.problem.active.nonzeros - 1)
    assert np.abs(scene(1, **options).solve(0.5).v - optimum).max() > 1e-4 * np.abs(optimum).max()


@pytest.mark.parametrize(
    ("newton", "mini_epochs", "few", "many"), [(8.0, 50, 7.9, 8.1), (1e9, 400, 200.0, 401.0)]
)
def test_newtons_method_comes_when_visits_cost_more(newton, mini_epochs, few, many, monkeypatch):
    """More than it does, or than is left."""
    monkeypatch.setattr(ascent, "solved_directly", lambda *_: False)
    monkeypatch.setattr(ascent, "LIVE_VISITS", (4,))
    monkeypatch.setattr(ascent, "of_newton", lambda *_: newton)
    spent = {}
    for wanted in (few, many):
        monkeypatch.setattr(ascent, "of_visits", lambda *_, wanted=wanted: wanted)
        spent[wanted] = scene(0).solve(1e-12, mini_epochs).mini_epochs
    assert spent[many] < 0.7 * spent[few]


@pytest.mark.parametrize(("part", "most"), [(1.0, 2), (0.5, 9), (0.1, 20), (0.02, 100)])
@pytest.mark.parametrize("sort", [False, True], ids=["mixed", "sorted by label"])
@pytest.mark.parametrize("C", [0.1, 5.0])
def test_bounds_bracket_the_optimum_whatever_part_of_the_rows_fits_in_memory(part, most, sort, C):
    rows, labels = random_rows(11, 1200, COLUMNS)
    if sort:
        by_label = sorted(range(len(rows)), key=lambda k: labels[k])
        rows, labels = [rows[k] for k in by_label], [labels[k] for k in by_label]
    source = ListData(csr(rows), labels, block_rows=128)
    budget = int(part * source.nbytes)
    learner = trained(source, Settings(C=C, tol=1e-3, active_set=budget))
    assert learner.finished == "certified"
    assert learner.certificate.relative_duality_gap <= 1e-3
    primal = least_primal(dense(rows, COLUMNS), np.array(labels), C)
    assert holds({"certificate": learner.certificate.to_dict()}, primal)
    assert learner.active.nbytes <= budget
    assert source.nonzeros_read <= most * len(source.rows.indices)


Solved = tuple[dict[int, float], dict[int, float]]
"""The rows of a block that were solved and those that stayed, with their α to the byte."""


def blocks_of(source: ListData, settings: Settings) -> tuple[Learner, list[Solved]]:
    """Train a learner; also its blocks."""
    solves, keep_some = list[Solved](), working_set._keep_some

    def weights(learner: Learner) -> dict[int, float]:
        numbers = learner.active.numbers
        return dict(zip(numbers, learner.alphas.take(numbers) / learner.active.sizes, strict=True))

    def noted(learner: Learner) -> None:
        solved = weights(learner)
        keep_some(learner)
        solves.append((solved, weights(learner)))
        assert learner.active.nbytes <= KEPT_BY_NEWTON * settings.active_set

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(working_set, "_keep_some", noted)
        patch.setattr(few_columns, "worthwhile", lambda *_: False)  # as if there were many
        return trained(source, settings), solves


def test_rows_of_large_duals_to_the_byte_stay_in_a_part_of_the_budget():
    """Blocks of a fifth of 600 rows: the heavier ones are drawn more often."""
    source = drawn_data(13, 600, block_rows=128)
    settings = Settings(C=5.0, tol=1e-3, active_set=source.nbytes // 5)
    learner, solves = blocks_of(source, settings)
    assert learner.finished == "certified"
    assert len(solves) > 3
    heavier = lighter = 0  # rows that leave
    for solved, kept in solves:
        assert set(kept) < set(solved)
        assert min(kept.values(), default=1.0) > 0.0
        live = sorted((number for number in solved if solved[number]), key=solved.__getitem__)
        lighter += sum(number not in kept for number in live[: len(live) // 2])
        heavier += sum(number not in kept for number in live[-(len(live) // 2) :])
    assert lighter > 1.5 * heavier


def test_a_row_that_finds_no_room_beside_those_that_stay_is_held_all_the_same():
    rows, labels = random_rows(14, 200, COLUMNS)
    rows[100] = [(column, 0.001) for column in range(200)]
    settings = Settings(C=5.0, active_set=8 * 200 + 24, max_epochs=3)
    _, solves = blocks_of(ListData(csr(rows), labels), settings)
    assert any(set(solved) == {100} for solved, _ in solves)
    assert all(len(kept) < len(solved) for solved, kept in solves)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ccat_in_tenths_is_certified_in_nine_readings_whatever_the_seed(seed, shared_data):
    rows, labels = read_libsvm(shared_data / "rcv1_27613.ccat.xz")
    source = ListData(rows, labels)
    learner = trained(source, Settings(C=50.0, active_set=source.nbytes // 10, seed=seed))
    assert learner.finished == "certified"
    assert source.nonzeros_read <= 9 * len(rows.indices)


@pytest.mark.slow
@pytest.mark.parametrize(("C", "seeds", "most"), [(0.5, 8, 5.0), (50.0, 8, 24.0)])
def test_ccat_in_memory_takes_two_readings_and_few_visits(C, seeds, most, shared_data, monkeypatch):
    rows, labels = read_libsvm(shared_data / "rcv1_27613.ccat.xz")
    visited = 0  # at C = 50 one seed needs 12 visits and another 27, sixteen of them 21.7
    visit = kernels.visit

    def counted(rows: Rows, order: NDArray[np.int64], *others: Any) -> int:
        nonlocal visited
        visited += int((rows.indptr[order + 1] - rows.indptr[order]).sum())
        return visit(rows, order, *others)

    monkeypatch.setattr(kernels, "visit", counted)
    for seed in range(seeds):
        source = ListData(rows, labels)
        assert trained(source, Settings(C=C, seed=seed)).finished == "certified"
        assert source.nonzeros_read == 2 * len(rows.indices)
    assert visited <= most * seeds * len(rows.indices)


@pytest.mark.parametrize("C", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_tolerance_of_0_ends_converged_with_a_gap_of_rounding_size(seed, C):
    learner = trained(drawn_data(seed, 300, block_rows=64), Settings(C=C, tol=0))
    assert learner.finished == "converged"
    assert learner.certificate.relative_duality_gap <= 1e-6


NONZEROS = 10


class Buffer:
    """A buffer of which each pass over the rows gains so much dual for a nonzero."""

    def __init__(self, gains: list[float]) -> None:
        self.gains, self.objective = gains, 0.0
        self.active = SimpleNamespace(nonzeros=NONZEROS)
        self.lengths, self.alphas = (np.array([1 + NONZEROS]), 4), np.ones(1, np.float32)

    def mini_epoch(self) -> None:
        self.objective += NONZEROS * self.gains.pop(0)


@pytest.mark.parametrize(
    ("fresh", "gains", "passes"),
    [
        (1.0, [0.29, 9.0], 1),
        (1.0, [2.0, 0.5, 0.31, 0.29, 9.0], 4),
        (10.0, [2.0, 9.0], 1),
        (0.0, [1.0, 0.2, 0.1, 9.0], 3),  # half of the first gain stands for that of fresh rows
    ],
)
def test_a_buffer_is_visited_until_a_pass_gains_less_than_a_part_of_what_fresh_rows_do(
    fresh, gains, passes
):
    assert ascent.PAYS == 0.3
    assert ascent.visit_while_it_pays(Buffer(gains), fresh) == (passes, False)


def test_a_buffer_is_left_to_newtons_method_where_visits_would_cost_more(monkeypatch):
    monkeypatch.setattr(ascent, "of_newton", lambda *_: 7.9)
    assert ascent.visit_while_it_pays(Buffer([1.0] * 20), 1.0) == (7, True)


def test_visits_and_seconds_of_each_phase_are_counted_wherever_rows_are_held():
    source = drawn_data(13, 600, 2000, 0.004, block_rows=32)
    for part in (2.0, 0.2):
        settings = Settings(loss="log_loss", tol=1e-3, active_set=int(part * source.nbytes))
        progress = trained(source, settings).progress
        assert progress.finished == "certified"
        assert progress.visited >= len(source.rows.indices)
        assert tuple(progress.phases) == PHASES
        assert progress.phases["solving"] > 0.0
        assert progress.phases["scanning"] > 0.0


def test_of_some_rows_visited_their_own_nonzeros_are_counted():
    problem, some = scene(0).problem, np.array([3, 140])
    lengths = np.diff(problem.active.rows.indptr)
    assert problem.mini_epoch(some) == 2
    assert problem.visited == lengths[some].sum()
    problem.mini_epoch()
    assert problem.visited == lengths[some].sum() + lengths.sum()


@visits
@pytest.mark.parametrize("seed", [0, 2, 3, 4])  # visits alone are enough for these
def test_the_last_weights_are_no_better_than_those_returned(seed):
    found = (here := scene(seed, C=0.2)).solve(1e-4)
    assert found.newton == 0
    assert found.primal <= here.primal(here.v()) * (1 + 1e-12)


def test_the_average_of_blocks_weighs_later_ones_more():
    best = BestWeights(np.zeros(2))
    for weights, mean in (([3.0, 0.0, 6.0], [3.0, 0.0, 6.0]), ([6.0, 9.0, 3.0], [5.0, 6.0, 4.0])):
        best.average(np.array(weights))
        assert best.candidate.tolist() == mean
    best.take_candidate()
    best.average(np.array([1.0, 2.0, 3.0]))
    assert best.candidate.tolist() == [1.0, 2.0, 3.0], "the next average is of blocks after a scan"


@visits
def test_a_mean_of_later_weights_is_looked_at_and_has_the_mean_of_their_biases(monkeypatch):
    left, seen, visit, look = [], [], Subproblem.mini_epoch, Subproblem.primal

    def mini_epoch(problem: Subproblem, *live: Any) -> int:
        visited = visit(problem, *live)
        left.append(problem.running.augmented)
        return visited

    def primal(problem: Subproblem, v: Vector, margins: Vector) -> float:
        seen.append(v.copy())
        return look(problem, v, margins)

    monkeypatch.setattr(Subproblem, "mini_epoch", mini_epoch)
    monkeypatch.setattr(Subproblem, "primal", primal)
    scene(0, C=50.0).solve(1e-3, 40)
    means = [np.mean(left[a:z], axis=0) for z in range(len(left) + 1) for a in range(z - 1)]
    assert any(np.allclose(v, mean, rtol=1e-9) for v in seen for mean in means)


@visits
def test_weights_known_before_are_returned_where_visits_find_no_better_ones(monkeypatch):
    optimum = scene(0, C=50.0).solve(1e-12).v
    monkeypatch.setattr(ascent, "SMALL", 0)  # no finish to rounding
    here = scene(0, C=50.0)
    found = ascent.solve(here.problem, 0.3, 50, best=optimum)
    assert found.primal <= here.primal(optimum) * (1 + 1e-12)


def test_a_step_beyond_the_solution_is_taken_back_where_the_dual_would_fall(monkeypatch):
    here = scene(1, held=60)
    before = here.objective()
    monkeypatch.setattr(ascent, "RELAXATION", 50.0)
    here.solve(1e-3)
    assert here.objective() > before


def test_a_gap_that_does_not_fall_wants_visits_without_end():
    assert ascent.of_visits(0.2, 0.2, 0.05, 5.0) == math.inf


@visits
def test_newtons_method_comes_when_one_mini_epoch_is_left_and_the_gap_is_not_met():
    assert scene(0).solve(1e-9, 2).newton == 1
    assert scene(0).solve(0.9, 2).newton == 0


@visits
def test_the_rate_of_the_first_round_says_not_what_visits_of_all_rows_cost(monkeypatch):
    """It is slower than those that follow."""
    monkeypatch.setattr(ascent, "LIVE_VISITS", (4,))
    known = list[float]()
    monkeypatch.setattr(ascent, "of_visits", lambda before, *_: known.append(before) or math.inf)
    found = scene(0).solve(1e-9)
    assert found.newton == 1
    assert known[0] < 0.1  # the gap of the second round; that of the first is 0.14


@visits
def test_a_round_cut_short_tells_of_no_rate(monkeypatch):
    monkeypatch.setattr(ascent, "of_visits", lambda *rate: math.inf)
    monkeypatch.setattr(ascent, "LIVE_VISITS", (4,))
    for seed in (0, 2, 3):
        monkeypatch.setattr(ascent, "PASSING", 1e9)  # all rounds but the first are cut short
        assert scene(seed).solve(1e-3).newton == 0
        monkeypatch.setattr(ascent, "PASSING", 0.0)  # none is
        assert scene(seed).solve(1e-3).newton == 1


@visits
def test_one_round_tells_of_no_rate(monkeypatch):
    before = []
    monkeypatch.setattr(ascent, "of_visits", lambda gap, *_: before.append(gap) or 0.0)
    scene(0, 60).solve(1e-9)
    assert 0.0 < max(before) < 1.0, "what a solve begins with was measured by no round"


@pytest.mark.parametrize(
    ("passes", "crawls", "kept"),
    [(1, False, 0.0), (2, False, KEPT_BY_VISITS), (9, True, KEPT_BY_NEWTON)],
)
def test_rows_stay_for_the_next_buffer_where_a_second_pass_paid_or_visits_crawl(
    passes, crawls, kept
):
    learner = learner_of(data_of(), Settings(loss="log_loss"))
    take_visits(learner, passes, 40, crawls=crawls)
    assert learner.progress.kept == kept
    assert learner.progress.visited == 40


@pytest.mark.parametrize(
    ("alphas", "crawls", "buffers"),
    [
        (np.ones(80), False, 1),  # nothing stays, and the other half fits
        (np.arange(80) % 8 == 0, False, 2),
        (np.ones(80), True, 5),  # four fifths stay each time
    ],
)
def test_rows_that_matter_alike_make_room_for_others_unless_visits_crawl(alphas, crawls, buffers):
    source = drawn_data(13, 80, 40, 1.0)
    learner = learner_of(source, Settings(active_set=source.nbytes // 2))
    (chunk,) = source.chunks()
    learner.alphas.put_ranges(chunk.ranges, alphas.astype(np.float32))
    take_visits(learner, 2, 40, crawls=crawls)
    kept = keep(learner, chunk.rows, np.arange(80), learner.targets(chunk))
    assert len(list(kept)) == buffers


@pytest.mark.parametrize(
    ("before", "gap", "promised"),
    [(None, 1e-3, False), (0.1, 7e-3, True), (0.1, 8e-3, False), (1e-2, 9e-3, False)],
)
def test_a_gap_is_promised_if_one_more_fall_as_the_last_one_meets_half_of_the_tolerance(
    before, gap, promised
):
    learner = learner_of(data_of(), Settings(tol=1e-3))
    learner.best.certificate = SimpleNamespace(relative_duality_gap=gap)
    learner.best.gap_before = np.inf if before is None else before
    assert promises_tolerance(learner) == promised
