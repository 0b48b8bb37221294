"""The rows in memory, solved: what is returned follows from α, and what is claimed is true. What
that costs is held in ``runs/test_cost.py``."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.losses import SQUARED_HINGE
from streamtron.core.rows import Rows
from streamtron.data.blocks import squares_of
from streamtron.solver import ascent
from streamtron.solver.order import Turn
from streamtron.solver.row_store import ActiveSet
from streamtron.solver.subproblem import Solution, Subproblem
from streamtron.solver.targets import Targets
from streamtron.solver.weights import WeightState
from tests.helpers.learners import drawn_data
from tests.helpers.optimum import holds, least_primal
from tests.helpers.sources import (
    ListData,
    csr,
    dense,
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


def test_a_gap_that_does_not_fall_wants_visits_without_end():
    assert ascent.of_visits(0.2, 0.2, 0.05, 5.0) == math.inf


@pytest.mark.parametrize(("loss", "most"), [("squared_hinge", 6.0), ("log_loss", 4.0)])
def test_full_rows_of_many_columns_are_newtons_as_soon_as_visits_leave_no_fewer_inside(loss, most):
    """Visits crawl there from the start: after two of them the gap is .9 still."""
    rows, labels = random_rows(0, 4000, 300, 1.0)
    data = ListData(csr(rows), np.where(np.arange(4000) % 3, labels, 1).tolist())
    learner = trained(data, Settings(loss=loss))
    assert learner.progress.history[0].newton_steps
    assert learner.progress.visited <= most * data.nonzeros


def test_visits_go_on_while_they_leave_fewer_rows_inside_the_margin(monkeypatch):
    """For that makes Newton's method cost less, however slow the first rounds are."""
    monkeypatch.setattr(ascent, "of_visits", lambda *_: math.inf)
    data = drawn_data(0, 500, 300, 0.05)
    assert trained(data, Settings(C=10.0)).progress.visited > 20 * data.nonzeros
