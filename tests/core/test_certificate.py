"""What a frozen scan proves, held against exact arithmetic and against γ_d of small sets."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from streamtron.core import kernels
from streamtron.core.certificate import (
    Certificate,
    certificate_of,
    dual_of,
    primal_of,
    upper_bound_of,
)
from streamtron.core.config import Settings
from streamtron.core.errors import InternalError
from streamtron.core.executor import sum_over_tree
from streamtron.core.rows import freeze
from streamtron.core.scan_sums import ScanSums
from streamtron.solver import train as training
from streamtron.solver.learner import Learner
from streamtron.solver.reading import Solve, begin_reading, finish_reading
from streamtron.solver.scan import Frozen
from streamtron.solver.stages import Regime
from streamtron.solver.targets import Targets
from tests.helpers.examples import examples, slow_but
from tests.helpers.optimum import of_margins
from tests.helpers.oracle import Oracle, Row, best_scale, gamma_d, primal_value
from tests.helpers.sources import ListSource, csr, dense, random_rows, train

prove = settings(max_examples=examples(100), deadline=None, derandomize=True)

ROUNDING = 1e-9
"""Relative room for the rounding of the reference solver and of sums of a few terms."""

COLUMNS = 5


@dataclass(frozen=True)
class Trained:
    """A small set and the state that some updates have left."""

    rows: list[Row]
    signs: list[int]
    delta2: list[float]
    rho: float
    w: list[float]
    bias: float
    counts: list[int]

    def scan_sums(
        self, scale: float, threshold: float = 0.0, part: slice = slice(None)
    ) -> ScanSums:
        """A scan of the rows, or of a part of them."""
        signs = np.array(self.signs[part], dtype=np.int8)
        delta2, counts = np.array(self.delta2[part]), np.array(self.counts[part], dtype=np.int32)
        w, rows = np.array(self.w), csr(self.rows[part])
        squares = np.empty(len(signs))
        kernels.squared_norms(rows, squares)
        freeze(signs, delta2, squares, counts, w)
        frozen = Frozen(w, self.bias, scale, threshold)
        frozen.scan(rows, Targets(np.arange(len(signs)), signs, delta2, squares), counts, self.rho)
        return frozen.scan_sums

    def certificate(self, scale: float | None = None) -> Certificate:
        hard = all(d2 == 0.0 for d2 in self.delta2)
        around = self.best_scale or 1.0 if scale is None else scale
        return certificate_of(self.scan_sums(around), np.array(self.w), self.bias, hard=hard)

    @property
    def sq_weights(self) -> float:
        return math.fsum([*(x * x for x in self.w), self.bias * self.bias])

    @property
    def margins(self) -> list[float]:
        oracle = Oracle(self.rows, self.signs, self.delta2, self.rho, width=COLUMNS)
        return oracle.margins(self.w, self.bias)

    @property
    def best_scale(self) -> float:
        return best_scale(self.sq_weights, self.margins, self.delta2)

    def primal(self, s: float) -> float:
        return primal_value(s, self.sq_weights, self.margins, self.delta2)

    @property
    def exact_sq_length(self) -> Fraction:
        """‖Σ c_k y_k‖² without rounding."""
        sums, bias, extension = [Fraction(0)] * COLUMNS, Fraction(0), Fraction(0)
        for row, sign, d2, c in zip(self.rows, self.signs, self.delta2, self.counts, strict=True):
            for column, value in row:
                sums[column] += c * sign * Fraction(float(np.float32(value)))
            bias += c * sign * Fraction(self.rho)
            extension += Fraction(d2) * c * c
        return sum((x * x for x in sums), Fraction(0)) + bias * bias + extension


quarters = st.integers(-8, 8).filter(bool).map(lambda n: n / 4)


@st.composite
def trained_sets(draw: st.DrawFn, hard: bool = False) -> Trained:
    """Rows after some visits in any order; where ``hard``, column 0 separates them."""
    n = draw(st.integers(2, 7))
    columns = st.integers(1 if hard else 0, COLUMNS - 1)
    rows: list[Row] = []
    signs = [draw(st.sampled_from([-1, 1])) for _ in range(n)]
    for sign in signs:
        row = draw(st.dictionaries(columns, quarters, max_size=4))
        if hard:
            row[0] = sign * draw(st.sampled_from([0.5, 1.0, 2.0]))
        rows.append(sorted(row.items()))
    delta2 = [0.0 if hard else draw(st.sampled_from([0.25, 1.0, 1.0, 4.0])) for _ in range(n)]
    rho = draw(st.sampled_from([0.0, 0.5, 1.0]))
    oracle = Oracle(
        rows, signs, delta2, rho, width=COLUMNS,
        b=draw(st.floats(0.1, 200.0)), epsilon=draw(st.sampled_from([0.1, 0.5, 1.0, 1.5])),
        variant=draw(st.sampled_from(["steps", "length"])),
    )  # fmt: skip
    for k in draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=60)):
        if draw(st.booleans()):
            oracle.visit(k)
        else:
            oracle.visit_ascent(k)
    assume(oracle.t > 0)
    return Trained(rows, signs, delta2, rho, oracle.w, oracle.bias, oracle.counts)


# --- the bracket ---


@prove
@given(trained_sets(hard=True))
def test_hard_margin_bounds_bracket_the_best_margin_and_the_primal_is_the_directional(
    case: Trained,
) -> None:
    low, high = gamma_d(case.rows, case.signs, case.delta2, case.rho)
    found = case.certificate(scale=1.0)
    assert found.upper_bound is not None
    assert found.primal_margin <= found.directional_margin <= high * (1 + ROUNDING)
    assert found.primal_margin == pytest.approx(found.directional_margin, rel=1e-14)
    assert found.upper_bound >= low * (1 - ROUNDING)
    if found.directional_margin > 0:
        least = min(m for m in case.margins)
        assert found.scale * least == pytest.approx(1.0)


@prove
@given(trained_sets())
def test_the_gap_is_primal_less_dual_over_primal(case: Trained) -> None:
    found = case.certificate()
    assert found.upper_bound is not None
    P, D = 0.5 / found.primal_margin**2, 0.5 / found.upper_bound**2
    assert found.relative_duality_gap == pytest.approx(max(0.0, (P - D) / P), abs=1e-12)
    assert found.relative_duality_gap >= (P - D) / P
    assert found.primal == pytest.approx(P)
    assert found.dual == pytest.approx(D)


@pytest.mark.parametrize("margins", [(0.5, 1.0 + 1e-15), (1.1, 0.9), (0.5, math.nan)])
def test_a_lower_bound_above_the_upper_one_is_an_error_and_never_a_gap(
    margins: tuple[float, float],
) -> None:
    with pytest.raises(InternalError, match="above the upper bound"):
        of_margins(*margins, 1.0)
    assert InternalError.exit_code == 1


def test_no_gap_is_0_for_rounding_may_hide_one() -> None:
    assert 0.0 < of_margins(0.5, 1.0, 1.0).relative_duality_gap < 1e-14


@pytest.mark.parametrize(
    "found", [Certificate(0.5, 2.0, 0.0, 10, 1.0), Certificate(-1.0, math.inf, 0.5, 10, 1.0)]
)
def test_without_an_upper_bound_or_a_positive_margin_nothing_is_proven(found: Certificate) -> None:
    assert found.relative_duality_gap == 1.0


@prove
@given(trained_sets())
def test_a_scan_without_counts_gives_no_upper_bound(case: Trained) -> None:
    assert replace(case, counts=[0] * len(case.rows)).certificate(1.0).upper_bound is None


@prove
@given(trained_sets())
def test_drift_is_the_distance_of_the_running_weights_from_the_counts(case: Trained) -> None:
    drifted = replace(case, w=[case.w[0] + 3.0, *case.w[1:]])
    fresh = math.sqrt(math.fsum(x * x for x in case.w))
    assume(fresh > 0)
    assert drifted.certificate(1.0).drift == pytest.approx(3.0 / fresh)


@prove
@given(trained_sets(), st.integers(0, COLUMNS))
def test_weights_narrower_than_the_rows_weigh_nothing_in_the_columns_that_they_lack(
    case: Trained, width: int
) -> None:
    scan_sums = case.scan_sums(1.0)
    assume(scan_sums.fresh.any())
    narrow = np.array(case.w[:width]) + 0.5
    off = scan_sums.fresh - np.append(narrow, np.zeros(COLUMNS - width))
    wanted = math.sqrt(math.fsum(off**2) / math.fsum(scan_sums.fresh**2))
    assert scan_sums.distance(narrow) == pytest.approx(wanted, rel=1e-12)


# --- min over s of P(s) ---


@prove
@given(trained_sets())
def test_least_primal_is_exact_at_the_best_scale(case: Trained) -> None:
    assume(case.best_scale > 0)
    scale = case.best_scale
    primal, _ = primal_of(case.scan_sums(scale), case.sq_weights)
    assert primal == pytest.approx(case.primal(scale), rel=1e-12)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factor", [0.5, 0.8, 1.3, 2.0])
def test_least_primal_is_within_1e_5_of_the_least_where_the_scale_is_within_a_factor_2(
    seed: int, factor: float
) -> None:
    rows, signs = random_rows(seed, 400, COLUMNS)
    w = np.random.default_rng(seed).normal(size=COLUMNS).tolist()
    case = Trained(rows, signs, [1.0] * 400, 1.0, w, 0.1, [0] * 400)
    least, scale = case.primal(case.best_scale), factor * case.best_scale
    primal, _ = primal_of(case.scan_sums(scale), case.sq_weights)
    assert least * (1 - 1e-12) <= primal <= least * (1 + 1e-5)


# --- rounding ---

counts = st.one_of(st.integers(0, 5), st.integers(2**30, 2**31 - 1))
wild = st.floats(-1000.0, 1000.0, width=32, allow_subnormal=False).filter(bool)
rhos = st.just(0.0) | st.floats(1e-30, 2.0)
"""As `Settings` allow it; squares of smaller ones vanish."""


@st.composite
def counted_sets(draw: st.DrawFn) -> Trained:
    n = draw(st.integers(1, 12))
    nonzeros = st.dictionaries(st.integers(0, COLUMNS - 1), wild, max_size=COLUMNS)
    rows = [sorted(draw(nonzeros).items()) for _ in range(n)]
    signs = [draw(st.sampled_from([-1, 1])) for _ in range(n)]
    delta2 = [draw(st.sampled_from([0.0, 1e-8, 1.0])) for _ in range(n)]
    c = draw(st.lists(counts, min_size=n, max_size=n).filter(any))
    return Trained(rows, signs, delta2, draw(rhos), [0.0] * COLUMNS, 0.0, c)


def of_numbers(norm: float, lengths: float, rows: int) -> ScanSums:
    """Sums over rows of one column with a count of 1, whose Σ c_k l_k x_k is ``norm``."""
    scan_sums = ScanSums(1.0, 1)
    scan_sums.fresh[:], scan_sums.sums[kernels.LENGTHS] = norm, lengths
    scan_sums.totals[[kernels.STEPS_SCANNED, kernels.SUPPORT]] = rows
    return scan_sums


@prove
@given(st.floats(1e-3, 1e3))
def test_the_dual_is_never_above_what_the_upper_bound_says(norm: float) -> None:
    scan_sums = of_numbers(norm, norm, 1)
    upper, _ = upper_bound_of(scan_sums)
    assert upper is not None
    dual, _ = dual_of(scan_sums)
    assert 2 * Fraction(dual) * Fraction(upper) ** 2 <= 1


def test_the_allowance_for_rounding_counts_the_rows_of_long_sums() -> None:
    rows, u = 2**31, kernels.UNIT_ROUNDOFF
    _, rounding = upper_bound_of(of_numbers(1.0, float(rows), rows))
    assert rounding >= (4.0 + 4.0 * rows**2 * u) * u


@prove
@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), st.floats(1e-3, 1e3), st.booleans())
def test_the_directional_margin_is_rounded_down(
    w: list[float], least: float, negative: bool
) -> None:
    assume(any(abs(value) > 1e-3 for value in w))
    scan_sums = ScanSums(1.0, 3)
    scan_sums.sums[kernels.LEAST] = -least if negative else least
    bound = certificate_of(scan_sums, np.array(w), 0.0, hard=True).directional_margin
    square = Fraction(bound) ** 2 * sum(Fraction(value) ** 2 for value in w)
    assert square >= Fraction(least) ** 2 if negative else square <= Fraction(least) ** 2


@prove
@given(counted_sets())
def test_the_squared_norm_is_that_of_the_counts(case: Trained) -> None:
    scan_sums = case.scan_sums(1.0)
    size = sum(
        c * math.sqrt(sum(v * v for _, v in row) + case.rho**2 + d2)
        for row, d2, c in zip(case.rows, case.delta2, case.counts, strict=True)
    )
    assert scan_sums.sq_norm == pytest.approx(float(case.exact_sq_length), abs=1e-13 * size**2)
    assert scan_sums.steps == sum(case.counts)


# --- only complete frozen scans ---


@prove
@given(trained_sets())
def test_a_scan_of_a_part_of_the_rows_says_how_few_it_saw(case: Trained) -> None:
    half = len(case.rows) // 2
    sums = case.scan_sums(1.0, part=slice(half))
    assert certificate_of(sums, np.array(case.w), case.bias, hard=False).rows_scanned == half


class Watched(Learner):
    """A learner whose counts and scanned weights are kept at the begin of a reading."""

    X: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    proven = refused = 0
    w_before = b""


def begin_watched(self: Watched, reading: int, scale: float | None = None) -> None:
    begin_reading(self, reading, scale)
    self.counts_before = self.counts.dense(len(self.X)).astype(np.float64)
    self.w_before = self.frozen.w.tobytes() if self.frozen is not None else b""


def finish_watched(self: Watched) -> Solve:
    """Finish a reading, and compare what was certified with what there was at its begin."""
    before, frozen = self.certificate, self.frozen
    if self.regime == Regime.FEW_COLUMNS:  # the scan has made the counts that it has summed
        self.counts_before = self.counts.dense(len(self.X)).astype(np.float64)
    at_rest = frozen is not None and frozen.w.tobytes() == self.w_before
    seen = None if frozen is None else frozen.scan_sums.fresh.copy()  # training takes it over
    yield from finish_reading(self)
    if self.certificate is before or frozen is None or self.certificate is None:
        self.refused += 1
        return
    assert at_rest, "the weights moved while they were scanned"
    assert self.certificate.rows_scanned == len(self.X)
    assert frozen.scan_sums.steps == self.counts_before.sum()
    fresh = self.X.T @ self.counts_before
    size = abs(self.X).T @ self.counts_before
    assert seen is not None
    assert np.abs(seen[: len(fresh)] - fresh).max() <= 1e-12 * size.max()
    self.proven += 1


def watched(seed: int, n: int, chosen: Settings, block_rows: int) -> Watched:
    """A run under watch; what is certified is held against the truth at its end."""
    rows, labels = random_rows(seed, n, 6)
    source = ListSource(csr(rows), labels, block_rows=block_rows)
    learner = Watched(chosen, source.labels, positive=1)
    learner.X = dense(rows, 6) * np.array(labels)[:, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "begin_reading", begin_watched)
        patch.setattr(training, "finish_reading", finish_watched)
        train(source, [learner], chosen)
    found = learner.certificate
    assert found is not None
    assert found.upper_bound is not None
    low, high = gamma_d(rows, labels, [chosen.delta2] * n, chosen.rho)
    assert found.primal_margin <= high * (1 + ROUNDING)
    assert found.upper_bound >= low * (1 - ROUNDING)
    return learner


AT_REST = [
    *((120, 8, {"stage": stage, "active_set": active_set, "max_epochs": 12, "mini_epochs": 5})
      for stage in ("auto", "1,0.1", "ascent") for active_set in (0, 500, 2_000, 10**9)),
    *((60, 1, {"b": (5.0, 1e-3), "active_set": active_set, "max_epochs": 4})
      for active_set in (40, 100, 300, 1_000)),
]  # fmt: skip
"""Rows, rows a block, settings: blocks of one row and tiny active sets too."""


@pytest.mark.parametrize(("rows", "block_rows", "chosen"), AT_REST)
@pytest.mark.parametrize("seed", slow_but(range(3), 0))
def test_only_weights_that_rest_for_a_whole_reading_are_certified_with_its_counts(
    seed: int, rows: int, block_rows: int, chosen: dict[str, Any]
) -> None:
    learner = watched(seed, rows, Settings(tol=1e-4, **chosen), block_rows)
    assert learner.refused > 0  # the first reading, at least
    assert learner.proven > 0 or rows == 60


@prove
@given(
    st.lists(st.lists(st.tuples(st.integers(-60, 60), st.integers(-3, 3)), max_size=6), min_size=1)
)
@example([[(60, -1)], [(60, 1), (0, 1)]])
@example([[(60, 1), (0, 1)], [(60, -1)]])
def test_sums_of_parts_added_over_a_tree_lose_no_more_than_their_bound(
    parts: list[list[tuple[int, int]]],
) -> None:
    """Terms of very different sizes that cancel, in Σ c l x, in Σ Δ² c² and in the bins."""
    sums, exact, magnitude, terms = [], Fraction(0), Fraction(0), 0
    for part in parts:
        own = ScanSums(1.0, 1)
        for exponent, factor in part:
            value = factor * 2.0**exponent
            own += _of_one_term(value)
            exact += Fraction(value)
            magnitude += abs(Fraction(value))
            terms += 1
        sums.append(own)
    total = sum_over_tree(operator.add, sums)
    u = Fraction(1, 2**53)
    allowed = u * abs(exact) + 4 * terms**2 * u**2 * magnitude
    for found in (
        Fraction(float(total.fresh[0])) + Fraction(float(total.low[0])),
        Fraction(float(total.sums[kernels.SQ_EXTENSION]))
        + Fraction(float(total.sums[kernels.SQ_EXTENSION + 1])),
        Fraction(float(total.bins[0])) + Fraction(float(total.bins[1])),
    ):
        assert abs(found - exact) <= allowed


def _of_one_term(value: float) -> ScanSums:
    made = ScanSums(1.0, 1)
    made.fresh[0] = made.bins[0] = made.sums[kernels.SQ_EXTENSION] = value
    return made


def plus(one: Any, other: Any) -> Any:
    return f"({one}{other})"


@given(st.integers(1, 70), st.integers(0, 6))
def test_a_sum_over_the_tree_does_not_depend_on_who_adds_aligned_parts(
    parts: int, height: int
) -> None:
    letters = [chr(0x100 + number) for number in range(parts)]
    groups = [letters[start : start + 2**height] for start in range(0, parts, 2**height)]
    of_groups = sum_over_tree(plus, [sum_over_tree(plus, group) for group in groups])
    assert of_groups == sum_over_tree(plus, letters)


@given(st.lists(st.integers(), min_size=1))
def test_a_sum_over_the_tree_is_the_sum(parts: list[int]) -> None:
    assert sum_over_tree(int.__add__, parts) == sum(parts)


def test_sums_of_parts_count_all_rows_and_keep_the_least_margin() -> None:
    first, second = ScanSums(1.0, 2), ScanSums(1.0, 2)
    first.totals[:], second.totals[:] = [1, 2, 3, 4], [10, 20, 30, 40]
    first.sums[kernels.LEAST], second.sums[kernels.LEAST] = 0.5, -1.0
    first.sums[kernels.LENGTHS], second.sums[kernels.LENGTHS] = 2.0, 3.0
    both = first + second
    assert both.totals.tolist() == [11, 22, 33, 44]
    assert (both.sums[kernels.LEAST], both.sums[kernels.LENGTHS]) == (-1.0, 5.0)
    assert first.totals.tolist() == [1, 2, 3, 4]


@given(st.floats(1e-6, 1e6), st.floats(0.0, 1.0))
def test_the_gap_is_not_below_that_of_the_objectives_printed_beside_it(
    upper: float, share: float
) -> None:
    found = of_margins(0.0, share * upper, upper).to_dict()
    if (primal := found["primal_objective"]) is not None and np.isfinite(primal):
        assert found["dual_objective"] is not None
        ratio = Fraction(found["dual_objective"]) / Fraction(primal)
        assert Fraction(found["relative_duality_gap"] or 0) >= 1 - ratio


def test_weights_of_0_have_no_directional_margin_where_the_best_may_be_negative() -> None:
    rows = csr([[(0, 1.0)], [(0, 1.0)]])  # rows 1 and −1 of opposite labels: γ = −1
    targets = Targets(np.arange(2), np.array([1, -1], np.int8), np.zeros(2), np.ones(2))
    scan = Frozen(np.zeros(1), 0.0, 1.0, 0.0)
    scan.scan(rows, targets, np.zeros(2, np.int32), 0.0)
    found = scan.certificate(hard=True)
    assert found.directional_margin == found.primal_margin == -np.inf
    plain = found.to_dict()
    assert plain["directional_margin"] is plain["primal_margin"] is None
    assert plain["relative_duality_gap"] == 1.0
