"""The paper's theorems as properties of the plain oracle, and the traps in them."""

from __future__ import annotations

import ast
import doctest
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamtron.core import theory
from tests.helpers import paper
from tests.helpers.certificates import of_margins
from tests.helpers.examples import examples
from tests.helpers.oracle import LARGEST_COUNT, Oracle, Row, explicit, file_order, gamma_d

SLACK = 1e-9
"""Relative room for rounding in sums of at most a few thousand terms; no bound is that tight."""

prove = settings(max_examples=examples(150), deadline=None, derandomize=True)

# --- small sets of positive margin by construction ---


@dataclass(frozen=True)
class Problem:
    """Rows with values in quarters, so that sums of updates are exact in floating point."""

    rows: tuple[tuple[tuple[int, float], ...], ...]
    labels: tuple[int, ...]
    delta2: tuple[float, ...]
    rho: float

    @property
    def R(self) -> float:
        return math.sqrt(max(Oracle(*self.data).sq_length(k) for k in range(len(self.rows))))

    @property
    def data(self) -> tuple[list[Row], list[int], list[float], float]:
        return list(self.rows), list(self.labels), list(self.delta2), self.rho

    @property
    def gamma(self) -> tuple[float, float]:
        return gamma_d(*self.data)

    def oracle(self, b: float, epsilon: float, variant: str) -> Oracle:
        return Oracle(*self.data, b=b, epsilon=epsilon, variant=variant)


quarters = st.integers(-8, 8).map(lambda n: n / 4)


@st.composite
def problems(draw: st.DrawFn, soft: bool | None = None) -> Problem:
    """Extended rows (Δ > 0, any labels) or rows that column 0 separates with margin ≥ ½."""
    extended = draw(st.booleans()) if soft is None else soft
    width, many = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    labels = tuple(draw(st.sampled_from([-1, 1])) for _ in range(many))
    rows = []
    for label in labels:
        values = [draw(quarters) for _ in range(width)]
        if not extended:
            values[0] = label * draw(st.sampled_from([0.5, 1.0, 2.0]))
        rows.append(tuple((j, v) for j, v in enumerate(values) if v))
    delta = st.sampled_from([0.25, 0.5, 1.0, 2.0]) if extended else st.just(0.0)
    delta2 = tuple(draw(delta) ** 2 for _ in range(many))
    return Problem(tuple(rows), labels, delta2, draw(st.sampled_from([0.0, 0.5, 1.0])))


epsilons = st.one_of(st.sampled_from([0.05, 0.1, 0.5, 1.0, 1.8]), st.floats(0.05, 1.8))
epsilons_to_one = st.one_of(st.sampled_from([0.05, 0.1, 0.5, 1.0]), st.floats(0.05, 1.0))
deltas = st.sampled_from([0.1, 0.3, 1.0, 5.0])
variants = st.sampled_from(["steps", "length"])


def affordable_b(problem: Problem, epsilon: float, variant: str, delta: float) -> float:
    """A b of the size the paper would take, so that a run in plain lists is short."""
    R, gamma = problem.R, problem.gamma[1]
    if variant == "length" and epsilon <= 1.0:
        return theory.b_length(R, epsilon, delta, gamma)
    exponent = 2.0 if variant == "steps" else 1.0 + epsilon
    return R**exponent * (gamma / R) ** (2 * max(0.0, 1.0 - epsilon)) * delta**-epsilon


def in_order(seed: int, visits: int) -> Callable[[int, list[int]], list[int]]:
    """File order for seed 0, else a new permutation each epoch; every row ``visits`` times."""

    def order(epoch: int, rows: list[int]) -> list[int]:
        shuffled = list(rows)
        if seed:
            random.Random(1000 * seed + epoch).shuffle(shuffled)
        return [k for k in shuffled for _ in range(visits)]

    return order


orders = st.builds(in_order, st.integers(0, 3), st.sampled_from([1, 3]))


@dataclass(frozen=True)
class Finished:
    """A converged run with what the tests compare."""

    problem: Problem
    oracle: Oracle
    b: float
    epsilon: float
    margin: float
    length: float

    @property
    def t(self) -> int:
        return self.oracle.t

    @property
    def gamma(self) -> tuple[float, float]:
        return self.problem.gamma

    @property
    def fraction(self) -> float:
        return self.margin / self.gamma[0] * (1 + SLACK)

    @property
    def settings(self) -> tuple[float, float, float]:
        return self.problem.R, self.b, self.epsilon


@st.composite
def finished(
    draw: st.DrawFn, variant: str, epsilon: st.SearchStrategy[float] = epsilons
) -> Finished:
    problem, eps = draw(problems()), draw(epsilon)
    b = affordable_b(problem, eps, variant, draw(deltas))
    oracle = problem.oracle(b, eps, variant)
    assert oracle.run(draw(orders), n_ep=draw(st.sampled_from([1, 50]))).converged
    certificate = oracle.certificate()
    return Finished(problem, oracle, b, eps, certificate.directional_margin, certificate.length)


# --- Theorems 1 and 5, Remark 1: steps ---


@prove
@given(finished("steps"))
def test_steps_converge_within_the_updates_of_theorems_1_and_5(run: Finished) -> None:
    assert run.t <= paper.updates_bound_steps(*run.settings, run.gamma[0]) * (1 + SLACK)


@prove
@given(finished("steps"))
def test_steps_reach_the_fraction_promised_before_the_run(run: Finished) -> None:
    assert run.fraction >= paper.fraction_bound_steps(*run.settings, run.gamma[0])


@prove
@given(finished("steps"))
def test_steps_fraction_is_above_margin_over_U_above_direct_above_f_est(run: Finished) -> None:
    U = run.length / run.t
    direct = theory.direct_fraction_steps(run.b, run.epsilon, run.t, run.length)
    f_est = theory.f_est_steps(*run.settings, run.t)
    assert run.fraction >= run.margin / U
    assert run.margin / U * (1 + SLACK) >= direct
    assert direct * (1 + SLACK) >= f_est


@prove
@given(finished("steps"))
def test_steps_U_and_gamma_d_lie_below_the_bound_of_remark_1(run: Finished) -> None:
    gamma_up = theory.upper_bound_after_run(*run.settings, run.t) * (1 + SLACK)
    assert run.gamma[0] <= run.length / run.t * (1 + SLACK)
    assert run.length / run.t <= gamma_up


@prove
@given(finished("steps", epsilons_to_one))
def test_steps_reach_remark_2s_fraction_where_its_condition_holds(run: Finished) -> None:
    assume(run.b >= paper.least_b_steps(run.problem.R, run.epsilon, run.gamma[1]))
    strong = paper.strong_fraction_bound_steps(*run.settings, run.gamma[1])
    assert run.fraction >= strong
    assert strong >= paper.fraction_bound_steps(*run.settings) * (1 - SLACK)


@settings(prove, max_examples=examples(60))
@given(problems(), st.sampled_from([0.3, 0.45, 0.5, 0.8, 1.0]), deltas, orders)
def test_b_steps_keeps_the_promise_of_remark_2(problem, epsilon, delta, order) -> None:  # type: ignore[no-untyped-def]
    b = paper.b_steps(problem.R, epsilon, delta, problem.gamma[1])
    # where (bt) must be lifted to keep the promise, b is generous and a run may be long
    assume(paper.updates_bound_steps(problem.R, b, epsilon, problem.gamma[0]) < 3e4)
    oracle = problem.oracle(b, epsilon, "steps")
    oracle.run(order)
    reached = oracle.certificate().directional_margin / problem.gamma[0] * (1 + SLACK)
    assert reached >= paper.promised_fraction_steps(epsilon, delta)


# --- Theorems 2, 3 and 5, Remark 4: length ---


@prove
@given(finished("length"))
def test_length_converges_within_the_updates_of_theorems_2_and_5(run: Finished) -> None:
    assert run.t <= paper.updates_bound_length(*run.settings, run.gamma[0]) * (1 + SLACK)


@prove
@given(finished("length"))
def test_length_reaches_the_fractions_promised_before_the_run(run: Finished) -> None:
    weak = paper.fraction_bound_length(*run.settings, run.gamma[0])
    assert run.fraction >= weak
    if run.epsilon <= 1.0:
        strong = paper.strong_fraction_bound_length(*run.settings, run.gamma[1])
        assert run.fraction >= strong
        assert strong >= weak * (1 - SLACK)


@prove
@given(finished("length"))
def test_length_fraction_is_above_margin_over_U_above_direct(run: Finished) -> None:
    U = run.length / run.t
    direct = theory.direct_fraction_length(run.b, run.epsilon, run.t, run.length)
    assert run.fraction >= run.margin / U
    assert run.margin / U * (1 + SLACK) >= direct


@prove
@given(finished("length", epsilons_to_one))
def test_direct_is_above_f_est_for_every_N_constrained_or_not(run: Finished) -> None:
    direct = theory.direct_fraction_length(run.b, run.epsilon, run.t, run.length) * (1 + SLACK)
    for N in range(1, run.t + 1):
        assert direct >= theory.f_est_length(*run.settings, run.t, run.margin, N)
        assert run.length <= theory.length_bound_length(*run.settings, run.gamma[0], run.t, N) * (
            1 + SLACK
        )


@prove
@given(finished("length", epsilons_to_one))
def test_length_U_lies_below_the_bound_after_the_run_below_the_papers(run: Finished) -> None:
    gamma_up = theory.upper_bound_after_run_length(*run.settings, run.t, run.margin)
    papers = run.margin / theory.f_est_length(*run.settings, run.t, run.margin)
    assert run.length / run.t <= gamma_up * (1 + SLACK)
    assert gamma_up <= papers * (1 + SLACK)


@settings(prove, max_examples=examples(60))
@given(problems(), epsilons_to_one, deltas, orders, st.booleans())
def test_b_length_and_remark_4_keep_the_promise_of_theorem_3(  # type: ignore[no-untyped-def]
    problem, epsilon, delta, order, remark_4
) -> None:
    R, gamma = problem.R, problem.gamma[1]
    if remark_4:
        assume(epsilon < 0.3 and delta <= 0.7 * (R / gamma) ** 2)
        b = paper.b_length_small_epsilon(R, epsilon, delta, gamma)
    else:
        b = theory.b_length(R, epsilon, delta, gamma)
    assume(2.0 * b / gamma ** (1 + epsilon) < 1e4**epsilon)
    oracle = problem.oracle(b, epsilon, "length")
    oracle.run(order)
    reached = oracle.certificate().directional_margin / problem.gamma[0] * (1 + SLACK)
    assert reached >= theory.promised_fraction_length(epsilon, delta)


@prove
@given(st.floats(0.05, 0.999), st.floats(1.0, 300.0), st.floats(0.01, 100.0))
def test_at_theorem_2s_bound_a_would_be_longer_than_it_can_be(
    epsilon: float, R: float, b: float
) -> None:
    # Lemma 4 as displayed: g(t₀) > 0, though a parenthesis in its proof is misplaced
    t = paper.updates_bound_length(R, b, epsilon, 1.0)
    assume(t < 1e12)
    assert theory.length_bound_length(R, b, epsilon, 1.0, math.ceil(t)) < math.ceil(t)


@prove
@given(st.floats(1.0, 1e4), st.floats(1e-3, 1e3), st.floats(0.1, 1.9))
def test_the_root_of_lemma_1_lies_between_its_bounds(
    alpha: float, beta: float, epsilon: float
) -> None:
    low, high = paper.root_bounds(alpha, beta, epsilon)
    g_low, g_high = (t**epsilon - alpha * t ** (epsilon - 1) - beta for t in (low, high))
    room = SLACK * (beta + alpha)
    assert g_low <= room
    assert g_high >= -room


# --- what holds at every moment ---


@settings(prove, max_examples=examples(60))
@given(problems(soft=True), epsilons, variants, deltas, orders)
def test_directional_primal_gamma_d_U_are_in_order_after_every_update(  # type: ignore[no-untyped-def]
    problem, epsilon, variant, delta, order
) -> None:
    low, high = problem.gamma
    oracle = problem.oracle(affordable_b(problem, epsilon, variant, delta), epsilon, variant)
    for epoch in range(6):
        for k in order(epoch, list(range(len(problem.rows)))):
            if oracle.visit(k):
                proven = oracle.certificate()
                assert proven.directional_margin <= proven.primal_margin * (1 + SLACK)
                assert proven.primal_margin <= high * (1 + SLACK)
                assert low <= proven.upper_bound * (1 + SLACK)


@prove
@given(finished("length"), st.lists(st.floats(0.1, 10.0), min_size=5, max_size=5))
def test_no_other_scale_beats_the_best_scale(run: Finished, factors: list[float]) -> None:
    oracle, best = run.oracle, run.oracle.certificate()
    assume(min(oracle.delta2) > 0.0)
    w, bias = oracle.rebuilt()
    for s in (best.scale * factor for factor in factors):
        scaled = [s * x for x in w]
        slacks = [max(0.0, 1.0 - m) for m in oracle.margins(scaled, s * bias)]
        P = 0.5 * (sum(x * x for x in scaled) + (s * bias) ** 2)
        P += sum(x * x / (2 * d2) for x, d2 in zip(slacks, oracle.delta2, strict=True))
        assert paper.margin_from_primal(P) <= best.primal_margin * (1 + SLACK)


@settings(prove, max_examples=examples(60))
@given(problems(soft=False), deltas)
def test_without_an_extension_the_primal_margin_is_the_directional_margin(
    problem: Problem, delta: float
) -> None:
    oracle = problem.oracle(problem.R**2 / delta, 1.0, "steps")
    oracle.run()
    proven = oracle.certificate()
    assert proven.primal_margin == pytest.approx(proven.directional_margin, rel=SLACK)


@prove
@given(problems(), epsilons, variants, orders)
def test_the_counts_sum_to_t_and_carry_the_weights(problem, epsilon, variant, order) -> None:  # type: ignore[no-untyped-def]
    oracle = problem.oracle(affordable_b(problem, epsilon, variant, 1.0), epsilon, variant)
    run = oracle.run(order)
    assert sum(oracle.counts) == oracle.t == run.updates > 0
    assert oracle.rebuilt() == (oracle.w, oracle.bias)
    assert oracle.sq_norm == oracle.certificate().length ** 2 or math.isclose(
        oracle.sq_norm, oracle.certificate().length ** 2, rel_tol=1e-12
    )


@settings(prove, max_examples=examples(60))
@given(problems(soft=True), epsilons, variants, orders, st.booleans())
def test_the_implicit_extension_is_the_explicit_one(  # type: ignore[no-untyped-def]
    problem, epsilon, variant, order, faithful
) -> None:
    b = affordable_b(problem, epsilon, variant, 1.0)
    implicit = problem.oracle(b, epsilon, variant)
    patterns = explicit(*problem.data)
    written = Oracle(
        [[(j, v) for j, v in enumerate(y) if v] for y in patterns],
        [1] * len(patterns),
        [0.0] * len(patterns),
        b=b,
        epsilon=epsilon,
        variant=variant,
    )
    assert implicit.run(order, faithful=faithful) == written.run(order, faithful=faithful)
    assert implicit.counts == written.counts
    assert implicit.sq_norm == written.sq_norm


@settings(prove, max_examples=examples(60))
@given(problems(), variants)
def test_at_epsilon_1_both_variants_are_one_algorithm_with_one_theory(
    problem: Problem, variant: str
) -> None:
    oracles = [problem.oracle(2.0 * problem.R**2, 1.0, v) for v in ("steps", "length")]
    assert oracles[0].run() == oracles[1].run()
    R, b, t = problem.R, oracles[0].b, oracles[0].t
    pairs = [
        (theory.f_est_steps(R, b, 1.0, t), theory.f_est_length(R, b, 1.0, t, 0.1)),
        (
            theory.upper_bound_after_run(R, b, 1.0, t),
            theory.upper_bound_after_run_length(R, b, 1.0, t, 0.1),
        ),
        (paper.updates_bound_steps(R, b, 1.0, 0.1), paper.updates_bound_length(R, b, 1.0, 0.1)),
        (paper.fraction_bound_steps(R, b, 1.0), paper.fraction_bound_length(R, b, 1.0)),
        (paper.limit_fraction_steps(1.0), paper.limit_fraction_length(1.0)),
    ]
    for steps, length in pairs:
        assert steps == pytest.approx(length, rel=1e-12)


# --- warm starts ---


def longest_after(excess: float, R: float, b: float, epsilon: float, t: int) -> float:
    """The bound on ‖a‖ of a run that did not begin at a = 0."""
    return math.sqrt(excess + theory.length_bound_steps(R, b, epsilon, t) ** 2)


@prove
@given(problems(), st.sampled_from([0.3, 1.0, 1.5]), st.lists(st.integers(0, 9), min_size=7))
def test_after_a_warm_start_f_est_with_the_excess_holds(
    problem: Problem, epsilon: float, counts: list[int]
) -> None:
    b = affordable_b(problem, epsilon, "steps", 1.0)
    oracle = problem.oracle(b, epsilon, "steps")
    for k in range(len(problem.rows)):
        oracle._add(k, counts[k], oracle.extended_margin(k), oracle.sq_length(k))
    assume(oracle.t > 0 and oracle.sq_norm > 0)
    excess = paper.warm_start_excess(problem.R, b, epsilon, oracle.t, oracle.certificate().length)
    assert oracle.run().converged
    proven = oracle.certificate()
    fraction = proven.directional_margin / problem.gamma[0] * (1 + SLACK)
    bound = longest_after(excess, problem.R, b, epsilon, oracle.t)
    assert fraction >= theory.direct_fraction_steps(b, epsilon, oracle.t, bound)
    assert proven.length <= bound * (1 + SLACK)


def test_a_warm_start_can_break_f_est_without_the_excess() -> None:
    # 40 counts on row 0 alone make a longer than 40 mistakes could have made it
    oracle = Oracle([[(0, 2.0)], [(0, 0.5), (1, 2.0)]], [1, 1], [0.0, 0.0], b=0.5)
    R = math.sqrt(4.25)
    oracle._add(0, 40, 0.0, 4.0)
    excess = paper.warm_start_excess(R, 0.5, 1.0, 40, oracle.certificate().length)
    oracle.run()
    direct = theory.direct_fraction_steps(0.5, 1.0, oracle.t, oracle.certificate().length)
    assert direct < theory.f_est_steps(R, 0.5, 1.0, oracle.t)
    longest = longest_after(excess, R, 0.5, 1.0, oracle.t)
    assert direct >= theory.direct_fraction_steps(0.5, 1.0, oracle.t, longest)


# --- unlearning ---


def ascent(oracle: Oracle, order: Callable[[int, list[int]], list[int]]) -> Iterator[int]:
    """Visit until an epoch moves nothing; yields each m that is not 0."""
    for epoch in itertools.count():
        moved = False
        for k in order(epoch, list(range(len(oracle.rows)))):
            if m := oracle.visit_ascent(k):
                moved = True
                yield m
        if not moved:
            return


@prove
@given(problems(), st.sampled_from([0.75, 1.5, 5.0, 40.0]), orders)
def test_unlearning_raises_F_or_keeps_F_and_raises_t_and_so_ends(  # type: ignore[no-untyped-def]
    problem, beta, order
) -> None:
    b = math.ceil(beta * problem.R**2)
    oracle = problem.oracle(b, 1.0, "steps")
    before = (0.0, 0)
    for _ in ascent(oracle, order):
        now = (b * oracle.t - 0.5 * oracle.sq_norm, oracle.t)  # exact: all in binary fractions
        assert now > before
        assert now[1] <= paper.unlearning_updates_bound(b, problem.gamma[0]) * (1 + SLACK)
        assert min(oracle.counts) >= 0
        before = now
    assert sum(oracle.counts) == oracle.t


@prove
@given(problems(), st.sampled_from([0.75, 1.5, 5.0, 40.0]), orders)
def test_unlearning_stalls_at_the_fraction_promised(problem, beta, order) -> None:  # type: ignore[no-untyped-def]
    R, b = problem.R, beta * problem.R**2
    oracle = problem.oracle(b, 1.0, "steps")
    list(ascent(oracle, order))
    proven, promised = oracle.certificate(), paper.unlearning_fraction(R, b)
    assert proven.directional_margin / proven.upper_bound * (1 + SLACK) >= promised
    stop = b - R * R / 2
    direct = theory.direct_fraction_steps(stop, 1.0, oracle.t, proven.length)
    assert proven.directional_margin / proven.upper_bound * (1 + SLACK) >= direct


@prove
@given(problems(soft=True), st.sampled_from([0.75, 1.5, 5.0, 40.0]), orders)
def test_the_gap_where_unlearning_stalls_is_within_its_bound(problem, beta, order) -> None:  # type: ignore[no-untyped-def]
    b = beta * problem.R**2
    oracle = problem.oracle(b, 1.0, "steps")
    list(ascent(oracle, order))
    proven = oracle.certificate()
    margins = oracle.margins(*oracle.rebuilt())
    support = [k for k, m in enumerate(margins) if oracle.counts[k] > 0 or m / b < 1.0]
    stall_sum = sum(oracle.sq_length(k) ** 2 / oracle.delta2[k] for k in support)
    gap = proven.relative_duality_gap
    primal = theory.primal_from_margin(proven.primal_margin)
    assert gap * primal <= paper.unlearning_gap(b, stall_sum) * (1 + SLACK)


@settings(prove, max_examples=examples(60))
@given(problems(soft=True), st.sampled_from([0.1, 0.01]), orders)
def test_b_unlearning_guarantees_the_gap_wanted(problem, wanted, order) -> None:  # type: ignore[no-untyped-def]
    sizes = [problem.oracle(1.0, 1.0, "steps").sq_length(k) for k in range(len(problem.rows))]
    stall_sum = sum(q * q / d2 for q, d2 in zip(sizes, problem.delta2, strict=True))
    b = paper.b_unlearning(stall_sum, wanted, theory.primal_from_margin(problem.gamma[1]))
    assume(b > problem.R**2 / 2)
    oracle = problem.oracle(b, 1.0, "steps")
    list(ascent(oracle, order))
    proven = oracle.certificate()
    assert proven.relative_duality_gap <= wanted


def test_rounding_half_away_from_zero_never_ends_where_floor_does() -> None:
    def away(k: int, oracle: Oracle) -> int:
        x = (oracle.b - oracle.extended_margin(k)) / oracle.sq_length(k)
        return int(math.copysign(math.floor(abs(x) + 0.5), x))

    oracle = Oracle([[]], [1], [2.0], b=5.0)
    assert list(ascent(oracle, file_order)) == [3]
    moves = []
    for _ in range(20):
        m = away(0, oracle)
        oracle._add(0, m, oracle.extended_margin(0), 2.0)
        moves.append(m)
    assert moves == [-1, 1] * 10


def test_unlearning_never_takes_a_count_beyond_int32() -> None:
    oracle = Oracle([[(0, 2.0**-20)]], [1], [0.0], b=1.0)
    assert oracle.visit_ascent(0) == LARGEST_COUNT
    assert oracle.visit_ascent(0) == 0
    assert oracle.counts == [LARGEST_COUNT]


def test_a_row_of_length_0_is_left_alone() -> None:
    oracle = Oracle([[]], [1], [0.0], b=1.0)
    assert oracle.visit_ascent(0) == 0
    assert oracle.t == 0


# --- the strongly convex primal ---


@settings(prove, max_examples=examples(60))
@given(problems(soft=True), st.sampled_from([1.0, 5.0]), orders)
def test_the_optimum_lies_within_the_radius_of_the_scaled_weights(problem, beta, order) -> None:  # type: ignore[no-untyped-def]
    coarse, fine = (problem.oracle(x * problem.R**2, 1.0, "steps") for x in (beta, 1e5))
    coarse.run(order)
    list(ascent(fine, order))
    far = fine.certificate()
    gap = far.relative_duality_gap
    assume(gap < 1e-8)
    near = coarse.certificate()
    radius = theory.decision_radius(near.primal_margin, near.upper_bound)
    w, bias = coarse.rebuilt()
    best, best_bias = fine.rebuilt()
    ours = [near.scale * x for x in (*w, bias)]
    optimum = [far.scale * x for x in (*best, best_bias)]
    doubt = math.sqrt(2.0 * gap * theory.primal_from_margin(far.primal_margin))
    assert math.dist(ours, optimum) <= radius + doubt + SLACK


# --- identities of the formulas, each against the step of the proof it comes from ---


def bisected_root(alpha: float, beta: float, epsilon: float) -> float:
    """The root of t^ε − α t^(ε−1) − β, from a bracket that is none of the package's."""
    low, high = alpha, alpha + beta
    while high**epsilon - alpha * high ** (epsilon - 1) < beta:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle**epsilon - alpha * middle ** (epsilon - 1) < beta:
            low = middle
        else:
            high = middle
    return low


@prove
@given(st.floats(0.1, 1.0), st.floats(0.05, 1.0), st.floats(0.01, 10.0))
def test_the_strong_fractions_are_just_below_those_at_the_root_itself(
    epsilon: float, gamma: float, delta: float
) -> None:
    whole, kappa = int(epsilon == 1), 2 / (2 - epsilon)
    b = theory.b_length(1.0, epsilon, delta, gamma)
    alpha = (1 + epsilon) ** (2 - whole) / (2 * epsilon) / gamma**2
    t = bisected_root(alpha, (1 + epsilon) * b / gamma ** (1 + epsilon), epsilon)
    exact = b / (gamma ** (1 + epsilon) * t**epsilon)
    strong = paper.strong_fraction_bound_length(1.0, b, epsilon, gamma)
    assert theory.promised_fraction_length(epsilon, delta) * (1 - SLACK) <= strong
    assert 0.6 * exact <= strong <= exact * (1 + SLACK)

    b = paper.b_steps(1.0, epsilon, delta, gamma)
    t = bisected_root(gamma**-2, kappa * b / gamma**2, epsilon)
    exact = 1 / (t ** (epsilon - 1) / b + kappa)
    strong = paper.strong_fraction_bound_steps(1.0, b, epsilon, gamma)
    assert paper.promised_fraction_steps(epsilon, delta) * (1 - SLACK) <= strong
    assert 0.6 * exact <= strong <= exact * (1 + SLACK)


@prove
@given(st.floats(0.5, 1.0), st.floats(0.05, 1.0), st.floats(0.01, 10.0))
def test_bt_and_bl_give_their_promise_at_the_lower_bounds_of_their_proofs(
    epsilon: float, gamma: float, delta: float
) -> None:
    whole, kappa = int(epsilon == 1), 2 / (2 - epsilon)
    b = paper.b_steps(1.0, epsilon, delta, gamma)
    t = (kappa * b / gamma**2) ** (1 / epsilon)
    promised = paper.promised_fraction_steps(epsilon, delta)
    assert promised == pytest.approx(1 / (t ** (epsilon - 1) / b + kappa))

    b = theory.b_length(1.0, epsilon, delta, gamma)
    t = ((1 + epsilon) * b / gamma ** (1 + epsilon)) ** (1 / epsilon)
    tail = (1 + epsilon) ** (2 - whole) / (2 * epsilon) * gamma ** (epsilon - 1) / b
    promised = theory.promised_fraction_length(epsilon, delta)
    assert promised == pytest.approx(1 / (tail * t ** (epsilon - 1) + 1 + epsilon))


@prove
@given(st.floats(0.01, 0.25), st.floats(0.01, 1.0), st.floats(1e-3, 1.0))
def test_remark_4s_b_keeps_the_last_term_of_its_proof_below_delta(
    epsilon: float, gamma: float, part: float
) -> None:
    delta = part * (1 + 1 / math.e) * (2 + epsilon) / math.e / gamma**2 * (1 - SLACK)
    b = paper.b_length_small_epsilon(1.0, epsilon, delta, gamma)
    t = ((1 + epsilon) * b / gamma ** (1 + epsilon)) ** (1 / epsilon)
    last = (2 + epsilon) / (b * gamma ** (1 - epsilon)) * (math.log(t) / t) ** (1 - epsilon)
    assert 0.5 * delta < last <= delta
    assert t > math.e


@prove
@given(epsilons, st.floats(0.05, 0.9), st.sampled_from([0.01, 3.0, 1000.0]), deltas)
def test_every_bound_is_blind_to_the_unit_of_length(
    epsilon: float, gamma: float, unit: float, delta: float
) -> None:
    small = epsilon <= 1.0
    for power, updates, fraction in (
        (2.0, paper.updates_bound_steps, paper.fraction_bound_steps),
        (1 + epsilon, paper.updates_bound_length, paper.fraction_bound_length),
    ):
        scaled = (unit, 0.1 * unit**power, epsilon, gamma * unit)
        assert updates(*scaled) == pytest.approx(updates(1.0, 0.1, epsilon, gamma))
        assert fraction(*scaled) == pytest.approx(fraction(1.0, 0.1, epsilon, gamma))
    if small:
        chosen = paper.b_steps(unit, epsilon, delta, gamma * unit) / unit**2
        assert chosen == pytest.approx(paper.b_steps(1.0, epsilon, delta, gamma))
        chosen = theory.b_length(unit, epsilon, delta, gamma * unit) / unit ** (1 + epsilon)
        assert chosen == pytest.approx(theory.b_length(1.0, epsilon, delta, gamma))


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 1.5, 1.9])
def test_promises_approach_their_limits_as_b_grows(epsilon: float) -> None:
    steps, length = paper.limit_fraction_steps(epsilon), paper.limit_fraction_length(epsilon)
    assert paper.fraction_bound_steps(2.0, 1e25, epsilon, 0.5) == pytest.approx(steps)
    assert paper.fraction_bound_length(2.0, 1e25, epsilon, 0.5) == pytest.approx(length)
    if epsilon <= 1.0:
        strong = paper.strong_fraction_bound_length(2.0, 1e25, epsilon, 0.5)
        assert strong == pytest.approx(length)
        strong = paper.strong_fraction_bound_steps(2.0, 1e25, epsilon, 0.5)
        assert strong == pytest.approx(steps)


# --- the procedure ---


def seen_orders(oracle: Oracle, **how: bool) -> list[tuple[int, list[int]]]:
    """(full epoch, rows) for every full and mini-epoch of a run in file order."""
    seen: list[tuple[int, list[int]]] = []

    def order(epoch: int, rows: list[int]) -> list[int]:
        seen.append((epoch, list(rows)))
        return rows

    assert oracle.run(order, n_ep=3, **how).converged
    return seen


def test_mini_epochs_visit_what_erred_until_one_is_calm_or_n_ep_are_over() -> None:
    # row 1 needs 3 updates in all: one in the full epoch, two in mini-epochs, one calm mini-epoch
    short = Oracle([[(0, 9.0)], [(1, 1.0)]], [1, 1], [0.0, 0.0], b=2.0)
    assert seen_orders(short) == [(0, [0, 1]), *[(0, [0, 1])] * 3, (1, [0, 1])]
    assert short.counts == [1, 3]
    # with 6 to go, 3 mini-epochs are not enough
    long = Oracle([[(0, 9.0)], [(1, 1.0)]], [1, 1], [0.0, 0.0], b=5.0)
    assert seen_orders(long) == [
        (0, [0, 1]),
        *[(0, [0, 1])] * 3,
        (1, [0, 1]),
        *[(1, [1])] * 2,
        (2, [0, 1]),
    ]
    assert long.counts == [1, 6]


def test_only_the_unfaithful_active_set_keeps_rows_that_have_counts() -> None:
    def data() -> Oracle:
        return Oracle([[(0, 9.0)], [(1, 1.0)]], [1, 1], [0.0, 0.0], b=5.0)

    assert (1, [1]) in seen_orders(data(), faithful=True)
    assert (1, [1, 0]) in seen_orders(data(), faithful=False)
    assert (1, [1]) not in seen_orders(data(), faithful=False)


# --- the traps ---


def test_b_length_at_epsilon_1_is_R2_over_delta_not_twice_that() -> None:
    assert theory.b_length(3.0, 1.0, 1.0, 0.01) == 9.0
    without = 3.0**2 * (1 + 1) ** (3 - 1) / 2.0
    assert without == 18.0
    assert theory.b_length(3.0, math.nextafter(1.0, 0.0), 1.0, 0.01) == pytest.approx(without)


def test_f_est_at_epsilon_1_needs_the_integer_part_the_paper_drops() -> None:
    assert theory.f_est_length(1.0, 5.0, 1.0, 1000, 0.1) == pytest.approx(1 / (1 / 5 + 2))
    dropped = 1 / ((1 / 5) * (1 + 1000 - 0) / 1000 + 2)
    assert theory.f_est_length(1.0, 5.0, 1.0, 1000, 0.1) > dropped


def test_an_N_outside_the_constraints_exists_and_N_opt_is_clamped() -> None:
    assert not paper.N_is_constrained(1.0, 0.1, 0.01, 10, 5)
    assert paper.N_is_constrained(1.0, 0.1, 0.01, 10, 1)
    assert paper.N_is_constrained(1.0, 0.1, 0.01, 40, 40)
    assert not paper.N_is_constrained(1.0, 0.1, 0.01, 40, 41)
    assert theory.best_N(1.0, 0.1, 0.001, 10**6) == 251
    assert theory.best_N(1.0, 0.1, 0.001, 100) == 100


def test_best_N_is_near_optimal() -> None:
    common = (1.0, 0.005, 0.1, 100_000, 0.01)
    best = max(theory.f_est_length(*common, N) for N in range(1, 2000))
    assert theory.f_est_length(*common) >= 0.999 * best
    assert theory.f_est_length(*common) > theory.f_est_length(*common, 1)


def test_remark_2_is_false_below_its_condition_and_refused_there() -> None:
    oracle = Oracle(
        [[(0, 1.0)], [(0, 0.01), (1, 1.0)]],
        [1, 1],
        [0.0, 0.0],
        b=0.0099,
        epsilon=0.05,
        variant="steps",
    )
    oracle.run()
    R, (low, high) = math.sqrt(1.0001), gamma_d(oracle.rows, oracle.labels, oracle.delta2)
    t_b, _ = paper.root_bounds((R / high) ** 2, 2 / 1.95 * 0.0099 / high**2, 0.05)
    claimed = 1 / (R * R / 0.0099 * t_b ** (0.05 - 1) + 2 / 1.95)
    assert oracle.certificate().directional_margin / low < 0.8 * claimed
    assert paper.threshold_peak(R, 0.0099, 0.05) > oracle.t
    with pytest.raises(ValueError, match="least_b_steps"):
        paper.strong_fraction_bound_steps(R, 0.0099, 0.05, high)


def test_b_steps_is_lifted_exactly_where_the_papers_delta_is_too_large() -> None:
    epsilon, g = 0.4, 0.2
    kappa = 2 / (2 - epsilon)
    limit = (
        (1 - epsilon / 2) ** ((1 - epsilon) / epsilon)
        * g ** (1 / epsilon - 2)
        * (1 + kappa * g) ** (-1 / epsilon)
    )
    least = paper.least_b_steps(1.0, epsilon, g)
    assert paper.b_steps(1.0, epsilon, 0.99 * limit, g) > least
    assert paper.b_steps(1.0, epsilon, limit, g) == pytest.approx(least)
    assert paper.b_steps(1.0, epsilon, 1.01 * limit, g) == least


@prove
@given(st.floats(0.02, 1.0), st.floats(1e-4, 10.0))
def test_the_bound_on_the_threshold_peaks_at_t_star_and_only_falls_without_one(
    epsilon: float, b: float
) -> None:
    kappa = 2 / (2 - epsilon)

    def bound(t: float) -> float:
        return 1 / math.sqrt(t ** (2 * epsilon - 1) + kappa * b * t**epsilon)

    peak = paper.threshold_peak(1.0, b, epsilon)
    if peak >= 1.0:
        assert bound(peak) >= max(bound(peak * 1.1), bound(peak / 1.1))
    else:
        assert bound(1.0) >= bound(1.1) >= bound(2.0)


def test_remark_4_is_the_smaller_b_only_for_epsilon_near_0() -> None:
    for epsilon in (0.001, 0.005):
        remark_4 = paper.b_length_small_epsilon(1.0, epsilon, epsilon, 0.01)
        assert paper.smaller_b_length(1.0, epsilon, epsilon, 0.01) == remark_4
        assert remark_4 < theory.b_length(1.0, epsilon, epsilon, 0.01)
    for epsilon in (0.05, 0.1, 0.5, 1.0):
        smaller = paper.smaller_b_length(1.0, epsilon, epsilon, 0.01)
        assert smaller == theory.b_length(1.0, epsilon, epsilon, 0.01)


@prove
@given(st.floats(0.05, 1.0), st.floats(0.01, 0.5), st.floats(1.01, 2.0), deltas)
def test_each_gamma_errs_on_the_side_its_docstring_asks_for(
    epsilon: float, gamma: float, more: float, delta: float
) -> None:
    up, b = gamma * more, theory.b_length(1.0, epsilon, delta, gamma)
    for updates in (paper.updates_bound_steps, paper.updates_bound_length):
        assert updates(1.0, b, epsilon, gamma) >= updates(1.0, b, epsilon, up)
    for choice in (paper.b_steps, theory.b_length, paper.smaller_b_length):
        assert choice(1.0, epsilon, delta, gamma) <= choice(1.0, epsilon, delta, up)
    strong = paper.strong_fraction_bound_length
    assert strong(1.0, b, epsilon, gamma) >= strong(1.0, b, epsilon, up) * (1 - SLACK)
    enough = max(b, paper.least_b_steps(1.0, epsilon, up))
    steps = paper.strong_fraction_bound_steps
    assert steps(1.0, enough, epsilon, gamma) >= steps(1.0, enough, epsilon, up) * (1 - SLACK)
    f_est = theory.f_est_length
    assert f_est(1.0, b, epsilon, 50, gamma, 1) <= f_est(1.0, b, epsilon, 50, up, 1) * (1 + SLACK)


def test_a_bound_too_large_for_a_float_is_infinite() -> None:
    assert paper.updates_bound_length(1.0, 1.0, 0.005, 1e-3) == math.inf
    assert paper.updates_bound_steps(1.0, 1.0, 0.005, 1e-3) == math.inf


def test_the_papers_second_stage_promises_less_the_better_its_upper_bound_is() -> None:
    epsilon, gamma = 0.1, 0.0085295
    loose, tight = (paper.delta_of_second_stage(epsilon, gamma, gamma * f) for f in (1.33, 1.001))
    promised = theory.promised_fraction_length
    assert promised(epsilon, loose) > 0.84
    assert promised(epsilon, tight) < 0.48
    assert promised(epsilon, 1.0) == pytest.approx(1 / (2 + epsilon))
    R = math.sqrt(15)
    papers = paper.b_second_stage(R, epsilon, 1.33 * gamma)
    assert papers == pytest.approx(theory.b_length(R, epsilon, loose, gamma))
    chosen = paper.b_second_stage(R, epsilon, 1.001 * gamma, delta=0.05)
    strong = paper.strong_fraction_bound_length(R, chosen, epsilon, 1.001 * gamma)
    assert strong >= promised(epsilon, 0.05) > 0.86


def test_a_row_at_the_threshold_is_a_mistake() -> None:
    oracle = Oracle([[(0, 1.0)], [(1, 1.0)]], [1, 1], [0.0, 0.0], b=1.0)
    assert oracle.visit(0)
    assert oracle.extended_margin(0) == oracle.threshold() == 1.0
    assert oracle.visit(0)
    assert not oracle.visit(0)


@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_the_length_threshold_is_0_where_a_has_returned_to_0(epsilon: float) -> None:
    oracle = Oracle([[(0, 1.0)], [(0, 1.0)]], [1, -1], [0.0, 0.0], b=1.0, epsilon=epsilon)
    assert oracle.visit(0)
    assert oracle.visit(1)
    assert (oracle.t, oracle.sq_norm, oracle.threshold()) == (2, 0.0, 0.0)


# --- figures ---


def test_adult_gets_the_papers_b_from_its_upper_bound() -> None:
    R = math.sqrt(15)
    b = paper.b_second_stage(R, 0.1, 0.0113517)
    assert round(1e5 * b / R**1.1, 1) == 577.1


@pytest.mark.parametrize(
    ("R2", "gamma_up", "b_relative"),
    [(15.0, 11.352, 577), (115.0, 29.840, 551), (1.02, 2.5607, 506), (1.02, 1.2701, 270)],
)
def test_table_4_follows_from_the_two_stage_rule(
    R2: float, gamma_up: float, b_relative: float
) -> None:
    R = math.sqrt(R2)
    b = paper.b_second_stage(R, 0.1, gamma_up / 1000)
    assert 1e5 * b / R**1.1 == pytest.approx(b_relative, rel=0.003)


def test_adults_first_stage_upper_bound_is_remark_1_at_b_5_R2() -> None:
    R2, gamma_up = 15.0, 0.0113517
    t_c = round(11 * R2 / gamma_up**2)
    up = theory.upper_bound_after_run(math.sqrt(R2), 5 * R2, 1.0, t_c)
    assert up == pytest.approx(gamma_up, rel=1e-6)
    assert paper.fraction_bound_steps(math.sqrt(R2), 5 * R2, 1.0) <= 6.8839 / 11.3517


def test_adults_optimum_and_its_margin_belong_together() -> None:
    assert paper.margin_from_primal(6872.597884) == pytest.approx(0.0085295189, rel=1e-8)
    assert theory.primal_from_margin(0.0085295189) == pytest.approx(6872.597884, rel=1e-8)


@prove
@given(st.floats(0.1, 10.0), st.floats(0.1, 1.0))
def test_the_relative_gap_is_primal_less_dual_over_primal(upper: float, part: float) -> None:
    P, D = theory.primal_from_margin(part * upper), theory.primal_from_margin(upper)
    gap = of_margins(0.0, part * upper, upper).relative_duality_gap
    assert gap == pytest.approx((P - D) / P, abs=1e-12)


# --- the module ---


@pytest.mark.parametrize("module", [theory, paper])
def test_every_public_function_has_an_example_and_all_examples_hold(module: ModuleType) -> None:
    public = [n for n, f in vars(module).items() if callable(f) and not n.startswith("_")]
    assert len(public) > 12
    assert [n for n in public if ">>>" not in (getattr(module, n).__doc__ or "")] == []
    assert doctest.testmod(module).failed == 0


def test_the_oracle_imports_nothing_of_the_package() -> None:
    text = (Path(__file__).parents[1] / "helpers" / "oracle.py").read_text(encoding="utf-8")
    imports = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert imports
    assert all("streamtron" not in ast.unparse(n) for n in imports)
