"""The paper's theorems as properties of the plain oracle, and the traps in them."""

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamtron.core import theory
from streamtron.core.config import Machine, Settings
from streamtron.runs.fit import run as fit
from tests.helpers.examples import examples
from tests.helpers.oracle import Oracle, Row, gamma_d

SLACK = 1e-9
"""Relative room for rounding in sums of at most a few thousand terms; no bound is that tight."""

prove = settings(max_examples=examples(150), deadline=None, derandomize=True)


quarters = st.integers(-8, 8).map(lambda n: n / 4)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Row], list[int], list[float], float]:
    """Rows, labels, Δ² and ρ: extended rows (Δ > 0, any labels) or rows that column 0 separates
    with margin ≥ ½. Values are quarters, so that sums of updates are exact in floating point."""
    extended, width, many = draw(st.booleans()), draw(st.integers(1, 4)), draw(st.integers(1, 7))
    labels = [draw(st.sampled_from([-1, 1])) for _ in range(many)]
    rows: list[Row] = []
    for label in labels:
        values = [draw(quarters) for _ in range(width)]
        if not extended:
            values[0] = label * draw(st.sampled_from([0.5, 1.0, 2.0]))
        rows.append([(j, v) for j, v in enumerate(values) if v])
    delta = st.sampled_from([0.25, 0.5, 1.0, 2.0]) if extended else st.just(0.0)
    delta2 = [draw(delta) ** 2 for _ in range(many)]
    return rows, labels, delta2, draw(st.sampled_from([0.0, 0.5, 1.0]))


epsilons = st.one_of(st.sampled_from([0.05, 0.1, 0.5, 1.0, 1.8]), st.floats(0.05, 1.8))
deltas = st.sampled_from([0.1, 0.3, 1.0, 5.0])


def in_order(seed: int, visits: int) -> Callable[[int, list[int]], list[int]]:
    """File order for seed 0, else a new permutation each epoch; every row ``visits`` times."""

    def order(epoch: int, rows: list[int]) -> list[int]:
        shuffled = list(rows)
        if seed:
            random.Random(1000 * seed + epoch).shuffle(shuffled)
        return [k for k in shuffled for _ in range(visits)]

    return order


orders = st.builds(in_order, st.integers(0, 3), st.sampled_from([1, 3]))


class Finished(NamedTuple):
    """A converged run with what the tests compare; ``settings``: R, b, ε."""

    settings: tuple[float, float, float]
    t: int
    gamma: float
    margin: float
    length: float


@st.composite
def finished(draw: st.DrawFn, variant: str) -> Finished:
    problem, eps = draw(problems()), draw(epsilons)
    oracle = Oracle(*problem, epsilon=eps, variant=variant)
    lengths = [oracle.sq_length(k) + d2 for k, d2 in enumerate(oracle.delta2)]
    R = math.sqrt(max(lengths))
    low, high = gamma_d(*problem)
    delta, exponent = draw(deltas), 2.0 if variant == "steps" else 1.0 + eps
    # of the size that the paper would take, so that a run in plain lists is short
    oracle.b = R**exponent * (high / R) ** (2 * max(0.0, 1.0 - eps)) * delta**-eps
    if variant == "length" and eps <= 1.0:
        oracle.b = theory.b_length(R, eps, delta, high)
    oracle.run(draw(orders), n_ep=draw(st.sampled_from([1, 50])))
    margin, _, length = oracle.certificate()
    return Finished((R, oracle.b, eps), oracle.t, low, margin, length)


DIRECT = {"steps": theory.direct_fraction_steps, "length": theory.direct_fraction_length}


@pytest.mark.parametrize("variant", DIRECT)
@prove
@given(st.data())
def test_the_fraction_is_above_its_bounds_and_a_no_longer_than_the_theorems_say(variant, data):
    run = data.draw(finished(variant))
    (_, b, epsilon), U = run.settings, run.length / run.t
    assert run.gamma <= U * (1 + SLACK)
    assert run.margin / run.gamma * (1 + SLACK) >= run.margin / U
    assert run.margin / U * (1 + SLACK) >= DIRECT[variant](b, epsilon, run.t, run.length)
    if variant == "steps":
        longest = theory.length_bound_steps(*run.settings, run.t)
        assert run.length <= longest * (1 + SLACK)
        if run.t > 1:  # and after one update fewer it could have been no longer than this
            assert theory.length_bound_steps(*run.settings, run.t - 1) < longest
    elif epsilon <= 1.0:
        for gamma in (run.gamma, run.margin):
            longest = theory.length_bound_length(*run.settings, gamma, run.t)
            assert run.length <= longest * (1 + SLACK)


@prove
@given(st.floats(0.5, 1.0), st.floats(0.05, 1.0), st.floats(0.01, 10.0))
@example(1.0, 0.5, 0.5)
def test_b_length_gives_its_promise_at_the_lower_bound_of_its_proof(epsilon, gamma, delta):
    whole = int(epsilon == 1)
    b = theory.b_length(1.0, epsilon, delta, gamma)
    t = ((1 + epsilon) * b / gamma ** (1 + epsilon)) ** (1 / epsilon)
    tail = (1 + epsilon) ** (2 - whole) / (2 * epsilon) * gamma ** (epsilon - 1) / b
    promised = 1 / (delta + 1 + epsilon)
    assert promised == pytest.approx(1 / (tail * t ** (epsilon - 1) + 1 + epsilon))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("variant", ["steps", "length"])
def test_a_fit_reports_the_bounds_of_its_variant_in_their_order(variant, epsilon, tmp_path):
    shard = tmp_path / "rows.svm"
    shard.write_text("1 1:1 2:0.5\n-1 1:-1 2:1\n1 1:2 3:-1\n-1 2:1 3:0.5\n")
    how = {"C": 2.0, "rho": 1.0, "b": (0.5,), "faithful": True, "index_base": 1}
    chosen = Settings(stage=f"{epsilon}", variant=variant, **how)
    [stage] = fit(shard, chosen, machine=Machine()).report["stages"]
    after = stage["b"], epsilon, stage["updates"]
    R = (stage["b"] / stage["b_relative"]) ** (0.5 if variant == "steps" else 1 / (1 + epsilon))
    margin, U = stage["directional_margin"], stage["upper_bound"]
    direct = DIRECT[variant](*after, U * stage["updates"])
    assert stage["direct_fraction"] == pytest.approx(direct, rel=1e-7), "α are float32"
    assert margin / U >= stage["direct_fraction"] > 0.0
    if variant == "length" and epsilon > 1.0:
        assert stage["f_est"] is stage["paper_upper_bound"] is None
        return
    longest = theory.length_bound_steps(R, *after)
    if variant == "length":
        longest = theory.length_bound_length(R, *after[:2], margin, after[2])
    assert stage["f_est"] == pytest.approx(DIRECT[variant](*after, longest), rel=1e-9)
    assert stage["paper_upper_bound"] == pytest.approx(longest / stage["updates"], rel=1e-9)
    assert stage["direct_fraction"] >= stage["f_est"] * (1 - SLACK)
    assert stage["paper_upper_bound"] >= U * (1 - SLACK)


@pytest.mark.parametrize(("t", "least"), [(3, 12.62988), (100_000, 631.50535)])
def test_the_chosen_N_is_near_optimal_and_at_most_t(t, least):
    assert least <= theory.length_bound_length(1.0, 0.005, 0.1, 0.01, t) <= 1.001 * least
