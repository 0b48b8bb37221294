"""Every kernel equals its plain oracle bit for bit."""

import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray
from scipy.special import entr

from streamtron.core import kernels
from streamtron.core.losses import LOSSES
from streamtron.core.rows import Rows
from streamtron.core.scan_sums import no_sums
from streamtron.data.blocks import squares_of
from tests.helpers.kernel_cases import COLUMNS, Case, cases, frozen, prove
from tests.helpers.losses import EPSILON, REGRESSION, plain, plain_gain, plain_step, plain_terms
from tests.helpers.oracle import LARGEST_COUNT, Oracle, shuffled
from tests.helpers.processes import python
from tests.helpers.sources import csr

PHI = kernels.Phi(kernels.SQUARED_HINGE)

NONE: NDArray[np.float64] = frozen([], np.float64)
"""t of rows whose labels are classes."""


class State:
    """What a kernel changes, as arrays, in the same state as the oracle's."""

    def __init__(self, oracle: Oracle) -> None:
        self.w = np.array(oracle.w)
        self.scalars = np.zeros(5)
        self.scalars[kernels.BIAS], self.scalars[kernels.SQ_NORM] = oracle.bias, oracle.sq_norm
        self.tallies = np.array([oracle.t, 0, 0], dtype=np.int64)
        self.counts = np.array(oracle.counts, dtype=np.int32)
        self.erred = np.zeros(len(oracle.rows), dtype=np.uint8)

    @property
    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        return self.counts, self.w, self.scalars, self.tallies, self.erred


def cost(delta2: float) -> float:
    return 0.5 / delta2 if delta2 > 0.0 else 0.0


def equals_plain_visits(
    case: Case,
    oracle: Oracle,
    state: State,
    *,
    ascent: bool = True,
    loss: str = "squared_hinge",
    numbers: Sequence[float] = (),
) -> None:
    """A state is what the oracle's visits of the case's rows in its order lead to."""
    lost, extension, moved, total = 0.0, 0.0, [], oracle.t
    for k in case.order:
        if case.signs[k] == 0:
            continue
        z, before, price = oracle.margin(k), oracle.counts[k], cost(case.delta2[k])
        scaled = case.scale * z - numbers[k] if numbers else case.scale * z
        lost += ascent * price * plain(loss, scaled)[0]
        if numbers:
            q = sum_in_order(value * value for _, value in case.rows[k]) + case.rho * case.rho
            pull = before / case.b * q - (z / case.b - numbers[k])
            if m := plain_step(loss, before, pull, q, case.b, price):
                oracle._add(k, m, z, q)
        elif m := oracle.visit_ascent(k) if ascent else int(oracle.visit(k)):
            extension += case.delta2[k] * (m * (2.0 * before + m))
        total += abs(before + m) - abs(before)
        moved += [k] if m else []
    assert state.counts.tolist() == oracle.counts
    assert state.w.tolist() == oracle.w
    names = [kernels.BIAS, kernels.SQ_NORM, kernels.LOSS, kernels.EXTENSION]
    assert state.scalars[names].tolist() == [oracle.bias, oracle.sq_norm, lost, extension]
    assert state.tallies.tolist() == [total, len(moved), oracle.clipped]
    assert set(np.flatnonzero(state.erred)) == set(moved)


def run_visit(case: Case, state: State, *, phi: kernels.Phi = PHI, t: Any = NONE) -> None:
    rows, signs = csr(case.rows), frozen(case.signs, np.int8)
    kernels.visit(
        rows,
        frozen(case.order, np.int64),
        signs,
        frozen(case.delta2, np.float64),
        case.rho,
        case.b,
        phi,
        case.scale,
        t,
        squares_of(*rows),
        *state.arrays,
    )


def run_add_mistakes(case: Case, state: State) -> None:
    rows = csr(case.rows)
    kernels.add_mistakes(
        rows,
        frozen(case.order, np.int64),
        frozen(case.signs, np.int8),
        frozen(case.delta2, np.float64),
        case.rho,
        case.b,
        case.epsilon,
        case.by_length,
        squares_of(*rows),
        *state.arrays,
    )


PLAIN = Case([[(0, 1.0)]], [1], [0.0], 0.0, [0], 1.0, 1.0, True, 1.0)

TWO_ROWS = replace(PLAIN, signs=[1, 1], delta2=[0.0, 0.0])

EDGES = {
    "the first row; then y·a is 2 and not √2": replace(
        TWO_ROWS, rows=[[(0, 1.0)], [(0, 2.0)]], order=[1, 0], epsilon=0.5
    ),
    "y·a is 0, 1, and 2, the threshold itself": replace(PLAIN, order=[0] * 4, b=2.0),
    "a count that becomes full and stays so": replace(
        PLAIN, order=[0, 0], b=1e300, rho=1.0, by_length=False, counts=[LARGEST_COUNT - 1]
    ),
    **{
        f"a step beyond the largest count from {count}, x = 2^{power}": replace(
            PLAIN, rows=[[(0, 2.0**power)]], b=1e9, counts=[count]
        )
        for power in (-10, -30, -60)
        for count in (0, 5)
    },
    **{
        f"one count more than there are is asked back, and {value} in place of 1": replace(
            TWO_ROWS, rows=[[(0, 1.0)], [(0, value)]], counts=[7, 2]
        )
        for value in (1.0, 1e12)
    },
}


def visit_alone(case: Case, *, ascent: bool) -> None:
    """Hold visits to those of the oracle."""
    oracle = case.oracle()
    state = State(oracle)
    (run_visit if ascent else run_add_mistakes)(case, state)
    equals_plain_visits(case, oracle, state, ascent=ascent)
    assert state.counts.sum(dtype=np.int64) == state.tallies[kernels.STEPS]


@pytest.mark.parametrize("ascent", [False, True])
@prove
@given(case=cases())
def test_visit_equals_the_oracle_bit_for_bit(ascent, case):
    visit_alone(case, ascent=ascent)


@pytest.mark.parametrize("ascent", [False, True])
@pytest.mark.parametrize("case", EDGES.values(), ids=EDGES)
def test_visits_at_the_edges_equal_the_oracle_too(case, ascent):
    visit_alone(case, ascent=ascent)


@pytest.mark.parametrize("loss", REGRESSION)
@prove
@given(case=cases(), numbers=st.lists(st.floats(-1e3, 1e3), min_size=7, max_size=7))
def test_visits_of_numbers_equal_their_plain_oracle_bit_for_bit(loss, case, numbers):
    """A count may be negative: t of the learner is Σ |c_k|."""
    case, numbers = of_numbers(case, [*range(-3, 4)]), numbers[: len(case.rows)]
    oracle = case.oracle()
    oracle.t = sum(map(abs, oracle.counts))
    state = State(oracle)
    run_visit(case, state, phi=of_epsilon(loss), t=frozen(numbers, np.float64))
    equals_plain_visits(case, oracle, state, loss=loss, numbers=numbers)


@pytest.mark.parametrize(
    ("loss", "alpha"),
    [("hinge", 0.999), ("log_loss", 0.5), ("epsilon_insensitive", -0.999), ("huber", -EPSILON)],
)
def test_a_row_of_nothing_gets_the_dual_variable_that_its_loss_alone_wants(loss, alpha):
    """Of C = 1, on the grid of thousandths; a number of −3."""
    case = Case([[]], [1], [0.5], 0.0, [0, 0], 1000.0, 1.0, False, 1.0)
    state, numbers = State(case.oracle()), frozen([-3.0], np.float64)
    t = numbers if LOSSES[loss].numbers else NONE
    run_visit(case, state, phi=of_epsilon(loss), t=t)
    assert state.counts[0] == pytest.approx(1000 * alpha, abs=1)


@pytest.mark.parametrize("margin", [-3000.0, -30.0, -3.23435, 0.0, 30.0])
@pytest.mark.parametrize("price", [0.01, 5.0, 19.742, 1e3, 1e5])
@pytest.mark.parametrize("share", [0.0, 1e-3, 0.5, 1.0])
def test_a_visit_of_log_loss_raises_the_dual_as_far_as_any_step(margin, price, share):
    """``share`` : α/C before. From −3.23435, at C = 19.742, Newton's method alone would creep."""
    b = 2.0**30 / price
    count = min(round(b * share * price), int(2.0**30 * (1.0 - 1e-14)))
    case = Case([[(0, 1.0)]], [1], [0.5 / price], 0.0, [0], b, 1.0, False, 1.0, [count])
    state, alphas = State(case.oracle()), np.linspace(0.0, price, 100_001)
    state.w[0] = b * margin
    run_visit(case, state, phi=LOSSES["log_loss"].phi)

    def dual(alpha: Any) -> Any:
        entropy = entr(alpha / price) + entr(1.0 - alpha / price)
        return price * entropy - (alpha - count / b) * margin - 0.5 * (alpha - count / b) ** 2

    allowed = 4.0 * (abs(margin) + price + 20.0) / b  # two counts' worth
    assert dual(state.counts[0] / b) >= dual(alphas).max() - allowed


def of_epsilon(loss: str) -> kernels.Phi:
    return replace(LOSSES[loss], epsilon=EPSILON).phi


def of_numbers(case: Case, counts: list[int]) -> Case:
    """The case with a price of every row, all positive, and these counts, in turn."""
    turn = itertools.cycle(counts)
    return replace(
        case,
        signs=[abs(sign) for sign in case.signs],
        delta2=[d2 or 0.5 for d2 in case.delta2],
        counts=[next(turn) if sign else 0 for sign in case.signs],
    )


@dataclass
class PartialSums:
    """A scan's sums, in plain Python."""

    bins: list[float]
    fresh: list[float]
    low: list[float]
    sums: list[float]
    totals: list[int]
    called: list[int]

    def told(self) -> list[Any]:
        """Everything; −∞ earned leaves no number behind it."""
        sums = [None if math.isnan(value) else value for value in self.sums]
        return [self.bins, self.fresh, self.low, sums, self.totals, self.called]


def add_to(sums: list[float], place: int, value: float) -> None:
    """Add a value, and what that rounds off to the next place."""
    before = sums[place]
    sums[place] = after = before + value
    grown = after - before
    sums[place + 1] += (before - (after - grown)) + (value - grown)


ORIGIN, CENTER = 2.5, -0.75
"""What has been taken off numbers, and what a scan takes off them in D."""


class Scan(NamedTuple):
    """Rows that are scanned at the weights of their oracle, ``length`` long."""

    case: Case
    oracle: Oracle
    threshold: float
    length: float
    loss: str = "squared_hinge"
    t: Sequence[float] = ()
    penalised: float = 0.0


def plain_scan(scan: Scan) -> PartialSums:
    case, oracle, threshold, length, loss, t, penalised = scan
    n, u, quadratic = len(case.rows), 2.0**-53, loss == "squared_hinge"
    seen = PartialSums(
        [0.0] * (kernels.BINS * kernels.BIN_SUMS),
        [0.0] * COLUMNS,
        [0.0] * COLUMNS,
        no_sums().tolist(),
        [0, 0, 0, 0],
        [0] * n,
    )
    for k, row in enumerate(case.rows):
        if case.signs[k] == 0:
            continue
        seen.totals[kernels.ROWS] += 1
        m, d2, c, l = oracle.margin(k), case.delta2[k], oracle.counts[k], case.signs[k]
        square = sum_in_order(value * value for _, value in row)
        most = math.sqrt(square) * length + case.rho * abs(oracle.bias)
        sure = m - (1.01 * len(row) + 24.0) * u * most
        add_to(seen.sums, kernels.COSTS, cost(d2))
        place = case.scale * sure / kernels.BIN_WIDTH
        centered = t[k] - CENTER if t else 0.0
        if t:
            add_to(seen.sums, kernels.NORMS, cost(d2) * math.sqrt(square))
            z, off = case.scale * m, case.scale * (1.01 * len(row) + 24.0) * u * most
            off += 4.0 * u * (abs(z) + abs(t[k]) + ORIGIN + off)
            at = abs(z - t[k]) + off
            add_to(seen.sums, kernels.LOSSES, cost(d2) * (plain(loss, at)[0] + 2.0**-1000))
        elif not quadratic:
            at = case.scale * sure - 2.0 * u * abs(case.scale * sure)
            add_to(seen.sums, kernels.LOSSES, cost(d2) * (plain(loss, at)[0] + 2.0**-1000))
        elif place < kernels.BINS:
            bin = kernels.BIN_SUMS * max(0, math.floor(place))
            z = 1.0 - case.scale * sure
            z += 4.0 * u * (1.0 + abs(z))
            add_to(seen.bins, bin + kernels.SQ_SLACKS, cost(d2) * z * z)
            add_to(seen.bins, bin + kernels.SLACK_MARGINS, cost(d2) * z * sure)
            add_to(seen.bins, bin + kernels.SQ_MARGINS, cost(d2) * sure * sure)
        price = d2 if quadratic else 0.0
        extension = price * c
        least = sure + extension - 8.0 * u * (abs(sure) + extension)
        seen.sums[kernels.LEAST] = min(seen.sums[kernels.LEAST], least)
        extended = m + extension
        if extended <= threshold:
            seen.totals[kernels.VIOLATORS] += 1
        seen.called[k] = int(extended <= threshold or c > 0 or loss == "log_loss" or len(t) > 0)
        if c > 0 or (t and c):
            for column, value in row:
                pair = [seen.fresh[column], seen.low[column]]
                add_to(pair, 0, float(c) * l * value)
                seen.fresh[column], seen.low[column] = pair
            seen.totals[kernels.STEPS_SCANNED] += abs(c)
            seen.totals[kernels.SUPPORT] += 1
            add_to(seen.sums, kernels.SQ_EXTENSION, price * (float(c) * c))
            add_to(seen.sums, kernels.FRESH_BIAS, c * l * case.rho)
            seen.sums[kernels.LENGTHS] += abs(c) * math.sqrt(square + penalised * penalised + price)
            if not quadratic:
                p = c / case.b / cost(d2)
                add_to(seen.sums, kernels.GAINS, cost(d2) * plain_gain(loss, p, centered))
                if t:
                    linear, conjugate = plain_terms(loss, p, centered)
                    add_to(seen.sums, kernels.MAGNITUDES, cost(d2) * (abs(linear) + conjugate))
    return seen


@pytest.mark.parametrize("loss", LOSSES)
@prove
@given(
    case=cases(),
    threshold=st.floats(-1e3, 1e6),
    free=st.booleans(),
    numbers=st.lists(st.floats(-1e3, 1e3), min_size=7, max_size=7),
    cut=st.integers(0, 7),
    cuts=st.lists(st.integers(0, COLUMNS), max_size=3).map(sorted),
)
@example(replace(PLAIN, counts=[-5]), 0.0, False, [1.0], 0, [])  # from a file: no dual variable
def test_scan_equals_its_oracle_wherever_it_is_cut(loss, case, threshold, free, numbers, cut, cuts):
    if loss != "squared_hinge":  # which has no hard margin
        case = replace(case, delta2=[d2 or 0.5 for d2 in case.delta2])
    if loss in REGRESSION:
        case = of_numbers(case, [-3, 0, 4])
    oracle, t = case.oracle(), numbers[: len(case.rows)] if loss in REGRESSION else []
    length = math.sqrt(math.fsum(x * x for x in oracle.w))
    scan = Scan(case, oracle, threshold, length, loss, t, 0.0 if free else case.rho)
    borders = [0, min(cut, len(case.rows)), len(case.rows)]
    assert scanned(scan, borders, cuts).told() == plain_scan(scan).told()


def scanned(scan: Scan, borders: list[int], cuts: Sequence[int] = ()) -> PartialSums:
    """What the kernels sum of the rows, cut into calls, in columns that are cut, too."""
    case, oracle, threshold, length, loss, t, penalised = scan
    bins, (fresh, low) = np.zeros(kernels.BINS * kernels.BIN_SUMS), np.zeros((2, COLUMNS))
    sums, totals = no_sums(), np.zeros(4, dtype=np.int64)
    called = np.ones(len(case.rows), dtype=np.uint8)
    squares = np.empty(len(case.rows))
    kernels.squared_norms(csr(case.rows), squares)
    for first, last in itertools.pairwise(borders):
        part = slice(first, last)
        rows, signs = csr(case.rows[part]), frozen(case.signs[part], np.int8)
        counts = frozen(oracle.counts[part], np.int32)
        kernels.scan(
            rows,
            signs,
            frozen(case.delta2[part], np.float64),
            frozen(squares[part], np.float64),
            frozen([*t[part]], np.float64),
            counts,
            case.rho,
            oracle.bias,
            threshold,
            of_epsilon(loss),
            case.b,
            frozen(oracle.w, np.float64),
            length,
            case.scale,
            CENTER,
            ORIGIN,
            penalised,
            bins,
            sums,
            totals,
            called[part],
        )
        counted = np.flatnonzero(called[part] & (counts != 0 if t else counts > 0))
        for columns in itertools.pairwise([0, *cuts, 1 << 32]):
            kernels.add_counts(rows, counted, signs, counts, fresh, low, *columns)
    return PartialSums(
        bins.tolist(), fresh.tolist(), low.tolist(), sums.tolist(), totals.tolist(), called.tolist()
    )


def sum_in_order(terms: Iterable[float]) -> float:
    total = 0.0
    for term in terms:
        total += term
    return total


@prove
@given(cases(started=False))
def test_squared_norms_are_summed_in_row_order(case):
    squares = np.full(len(case.rows), np.nan)
    kernels.squared_norms(csr(case.rows), squares)
    assert squares.tolist() == [sum_in_order(v * v for _, v in row) for row in case.rows]
    first = squares_of(*csr(case.rows))[1:]
    tail = Rows(csr(case.rows).indptr[1:], *csr(case.rows)[1:])  # begins past the first nonzero
    assert squares_of(*tail).tolist() == first.tolist()


numbers = st.floats(-1e100, 1e100)


@prove
@given(st.lists(st.tuples(numbers, numbers), max_size=30))
@example([(1e16, 1.0), (1.0, 1e-8), (3.0, 3.0), (-1.0, 1e-8)])
@example([(1e8, 1e8), (1.0, 1.0), (-1e8, 1e8)])
def test_products_squares_and_multiples_are_added_from_the_first_to_the_last(pairs):
    u, v = (frozen([pair[k] for pair in pairs], np.float64) for k in (0, 1))
    assert kernels.dot(u, v) == sum_in_order(a * b for a, b in pairs)
    assert kernels.square_sum(u) == sum_in_order(a * a for a, _ in pairs)
    assert kernels.square_distance(u, v) == sum_in_order((a - b) * (a - b) for a, b in pairs)
    total = np.append(v, 7.0)
    kernels.add_scaled(u, 0.1, total)
    assert total.tolist() == [*(b + a * 0.1 for a, b in pairs), 7.0]


@prove
@given(st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_shuffle_equals_the_oracle(start, rows):
    order = np.full(rows, -7, dtype=np.int64)
    kernels.shuffle(start, order)
    assert order.tolist() == shuffled(start, rows)


def test_rows_are_fetched_ahead_without_counting_references():
    compiled = njit(**kernels._OPTIONS | {"cache": False})(kernels.visit.__wrapped__)
    compiled.compile(kernels.visit._signature)
    [assembly] = compiled.inspect_asm().values()
    assert "prefetch" in assembly
    assert not re.search(r"_fetch\w*_ahead\S*,@function", assembly), "it is not inlined"


def test_a_wrong_dtype_is_an_error_and_not_a_second_compilation():
    with pytest.raises(TypeError):
        kernels.square_sum(frozen([1.0], np.float32))


def test_a_kernel_is_compiled_at_its_first_call_and_no_other_with_it(tmp_path):
    code = "import numpy as n; from streamtron.core.kernels import dot; dot(n.ones(3), n.ones(3))"
    python(tmp_path, "-c", code)
    assert {path.name.split("-")[0] for path in tmp_path.rglob("*.nbi")} == {"kernels.dot"}


@pytest.mark.slow
def test_kernels_work_where_compiled_ones_cannot_be_kept(tmp_path):
    package, nowhere = tmp_path / "streamtron", tmp_path / "a file, no directory"
    source = Path(kernels.__file__).parents[1]
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "core" / "__pycache__").touch()
    nowhere.touch()
    places = {"NUMBA_CACHE_DIR": nowhere / "n", "XDG_CACHE_HOME": nowhere, "PYTHONPATH": tmp_path}
    code = "from streamtron.core.kernels import dot, np; print(dot(np.ones(2), np.ones(2)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **{name: str(place) for name, place in places.items()}},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1
    assert done.stdout == "2.0\n"
