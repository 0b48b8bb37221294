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

from streamtron.core import kernels
from streamtron.core.losses import LOSSES, gains
from streamtron.core.rows import Rows
from streamtron.core.scan_sums import ScanSums
from streamtron.data.blocks import squares_of
from tests.helpers.kernel_cases import COLUMNS, Case, cases, frozen, prove
from tests.helpers.losses import EPSILON, ends, exp, log_of, plain, plain_gain
from tests.helpers.oracle import LARGEST_COUNT, DualOracle, Oracle, shuffled
from tests.helpers.processes import python
from tests.helpers.sources import csr


def phi_of(loss: str) -> kernels.Phi:
    return replace(LOSSES[loss], epsilon=EPSILON).phi


class State:
    """What a kernel changes, as arrays, in the same state as an oracle's."""

    def __init__(self, oracle: Oracle, values: Sequence[float]) -> None:
        self.w, self.scalars = np.array(oracle.w), np.zeros(4)
        self.scalars[[kernels.BIAS, kernels.SQ_NORM]] = oracle.bias, oracle.sq_norm
        self.values = np.array(values, dtype=np.float32)
        self.moved = np.zeros(len(oracle.rows), dtype=np.uint8)

    def told(self) -> list[Any]:
        arrays = self.values, self.w, self.scalars, np.flatnonzero(self.moved)
        return [array.tolist() for array in arrays]


def signs_of(case: Case, oracle: Oracle) -> NDArray[Any]:
    """l_k; 0 of rows that are left out."""
    pairs = zip(case.signs, oracle.labels, strict=True)
    return frozen([l if sign else 0 for sign, l in pairs], np.int8)


def run(kernel: Any, case: Case, oracle: Oracle, state: State, *how: Any) -> int:
    rows, order = csr(case.rows), frozen(case.order, np.int64)
    prices = oracle.costs if isinstance(oracle, DualOracle) else oracle.delta2
    of_rows = rows, order, signs_of(case, oracle), frozen([*prices], np.float64), case.rho
    changed = state.values, state.w, state.scalars, state.moved
    return int(kernel(*of_rows, *how, squares_of(*rows), *changed))


def run_visit(case: Case, oracle: DualOracle) -> tuple[int, State]:
    t, state = frozen([*oracle.numbers], np.float64), State(oracle, oracle.alphas)
    return run(kernels.visit, case, oracle, state, phi_of(oracle.loss), t), state


def visits(case: Case, oracle: Oracle) -> list[int]:
    """The rows that the oracle's visits, in the order of the case, have changed."""
    return [k for k in case.order if case.signs[k] and oracle.visit(k)]


@pytest.mark.parametrize("loss", LOSSES)
@prove
@given(case=cases(), numbers=st.lists(st.floats(-1e3, 1e3), min_size=7, max_size=7))
def test_visits_equal_their_oracle_bit_for_bit(loss, case, numbers):
    oracle = case.dual_oracle(loss, numbers)
    updates, state = run_visit(case, oracle)
    changed = visits(case, oracle)
    scalars = [oracle.bias, oracle.sq_norm, oracle.lost, oracle.gains]
    assert state.told() == [oracle.alphas, oracle.w, scalars, sorted(set(changed))]
    assert updates == len(changed)


PLAIN = Case([[(0, 1.0)]], [1], [0.0], 0.0, [0], 1.0, 1.0, True)

FIRST_ROW = replace(  # then y·a is 2 and not √2
    PLAIN, rows=[[(0, 1.0)], [(0, 2.0)]], signs=[1, 1], delta2=[0.0] * 2, order=[1, 0], epsilon=0.5
)
AT_THE_THRESHOLD = replace(PLAIN, order=[0] * 4, b=2.0)  # y·a is 0, 1, and 2, the threshold itself
FULL = replace(  # a count that becomes full and stays so
    PLAIN, order=[0, 0], b=1e300, rho=1.0, by_length=False, counts=[LARGEST_COUNT - 1]
)


@prove
@given(cases())
@example(FIRST_ROW)
@example(AT_THE_THRESHOLD)
@example(FULL)
def test_mistakes_are_found_and_added_as_by_the_oracle_bit_for_bit(case):
    """Mistakes are found, and added, where the oracle finds and adds them."""
    oracle = case.oracle()
    state = State(oracle, oracle.counts)
    state.scalars[kernels.STEPS] = oracle.t
    marks = np.full(len(case.rows), 7, np.uint8)
    counts, w = frozen(oracle.counts, np.float32), frozen(oracle.w, np.float64)
    at = csr(case.rows), signs_of(case, oracle), frozen(case.delta2, np.float64), case.rho
    threshold = oracle.threshold()
    found, least = kernels.find_mistakes(*at, counts, threshold, oracle.bias, w, marks)
    ours = [k for k, sign in enumerate(case.signs) if sign]
    mistakes = [k for k in ours if oracle.extended_margin(k) <= threshold]
    assert found == len(mistakes)
    assert least == min(map(oracle.extended_margin, ours), default=math.inf)
    marked = {*mistakes, *(k for k in ours if oracle.counts[k])}
    assert marks.tolist() == [int(k in marked) for k in range(len(marks))]

    how = case.b, case.epsilon, case.by_length
    updates = run(kernels.add_mistakes, case, oracle, state, *how)
    changed = visits(case, oracle)
    scalars = [oracle.bias, oracle.sq_norm, 0.0, oracle.t]
    assert state.told() == [oracle.counts, oracle.w, scalars, sorted(set(changed))]
    assert updates == len(changed)


MARGINS = (-3000.0, -30.0, -3.23435, 0.0, 0.5, 30.0)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_visit_raises_the_dual_as_far_as_any_step(loss):
    """From −3.23435, at C = 19.742, Newton's method alone would creep."""
    for margin, price, share in itertools.product(
        MARGINS, [0.01, 5.0, 19.742, 1e3, 1e5], [0.0, 1e-3, 0.5, 1.0]
    ):
        is_the_best_step(loss, margin, price, share)


def is_the_best_step(loss: str, margin: float, price: float, share: float) -> None:
    """``share`` : α/C before."""
    case, t = replace(PLAIN, delta2=[0.5 / price], counts=[2 * round(500 * share)]), [0.25]
    oracle = case.dual_oracle(loss, t)
    oracle.w, before = [margin], oracle.alphas[0]
    least, most = (min(max(end, -100.0), 100.0) * price for end in ends(loss, t[0]))
    _, state = run_visit(case, oracle)
    alphas = np.linspace(least, most, 20_001)

    def dual(alpha: Any) -> Any:
        known = replace(LOSSES[loss], epsilon=EPSILON)
        earned = price * gains(known, alpha / price, np.full(len(alpha), t[0])[: len(alpha)])
        return earned - (alpha - before) * margin - 0.5 * (alpha - before) ** 2

    [found] = dual(state.values.astype(np.float64))
    rounded = 2.0**-23 * abs(float(state.values[0])) * (abs(margin) + most + 20.0)
    assert found >= dual(alphas).max() - rounded - 1e-9 * (1.0 + abs(found))


@dataclass
class PartialSums:
    """A scan's sums, in plain Python."""

    fresh: list[float]
    low: list[float]
    sums: list[float]
    totals: list[int]
    marks: list[int]

    def told(self) -> list[Any]:
        """Everything; −∞ earned leaves no number behind it."""
        sums = [None if math.isnan(value) else value for value in self.sums]
        return [self.fresh, self.low, sums, self.totals, self.marks]


def add_to(sums: list[float], place: int, value: float) -> None:
    """Add a value, and what that rounds off to the next place."""
    before = sums[place]
    sums[place] = after = before + value
    grown = after - before
    sums[place + 1] += (before - (after - grown)) + (value - grown)


ORIGIN, CENTER = 2.5, -0.75
"""What has been taken off numbers, and what a scan takes off them in D."""


class Scan(NamedTuple):
    """Rows that are scanned at the weights of their oracle."""

    case: Case
    oracle: DualOracle
    threshold: float

    @property
    def length(self) -> float:
        return math.sqrt(math.fsum(x * x for x in self.oracle.w))


def plain_scan(scan: Scan) -> PartialSums:
    (case, oracle, threshold), loss, u = scan, scan.oracle.loss, 2.0**-53
    seen = PartialSums(
        [0.0] * COLUMNS, [0.0] * COLUMNS, ScanSums(0).sums.tolist(), [0, 0], [0] * len(case.rows)
    )
    sums = seen.sums
    for k, row in enumerate(case.rows):
        if case.signs[k] == 0:
            continue
        seen.totals[kernels.ROWS] += 1
        m, cost, alpha, l = oracle.margin(k), oracle.costs[k], oracle.alphas[k], oracle.labels[k]
        norm = math.sqrt(sum_in_order(value * value for _, value in row))
        off = (1.01 * len(row) + 24.0) * u * (norm * scan.length + case.rho * abs(oracle.bias))
        sums[kernels.COSTS] += cost
        sums[kernels.NORMS] += cost * norm
        t = oracle.numbers[k] if oracle.numbers else 0.0
        if loss == "poisson":
            low, high, size = m - off, m + off, abs(m) + off + abs(log_of(t)) + 1.0
            lost = max(plain(loss, low, t=t)[0], plain(loss, high, t=t)[0])
            lost += 32.0 * u * (exp(high) + t * size)
            lost = lost if high < 300.0 else math.inf
        elif oracle.numbers:
            room = off + 4.0 * u * (abs(m) + abs(t) + ORIGIN + off)
            lost = plain(loss, abs(m - t) + room)[0]
            t = (t - CENTER) - math.copysign(2.0 * u * abs(t), alpha)
        else:
            lost = plain(loss, m - off)[0]
        if cost < math.inf:
            add_to(sums, kernels.LOSSES, cost * (lost + 2.0**-1000))
        sums[kernels.LEAST] = min(sums[kernels.LEAST], m - off)
        always = bool(oracle.numbers) or loss == "log_loss"
        seen.marks[k] = int(always or m <= threshold or alpha != 0.0)
        if alpha != 0.0:
            for column, value in row:
                pair = [seen.fresh[column], seen.low[column]]
                add_to(pair, 0, alpha * l * value)
                seen.fresh[column], seen.low[column] = pair
            seen.totals[kernels.SUPPORT] += 1
            add_to(sums, kernels.DUAL_BIAS, alpha * l * case.rho)
            sums[kernels.SIZES] += abs(alpha) * case.rho
            sums[kernels.LENGTHS] += abs(alpha) * norm
            earned = alpha if alpha > 0.0 else -math.inf
            if cost < math.inf:
                earned = cost * plain_gain(loss, alpha / cost, t)
            sums[kernels.MAGNITUDES] += abs(earned)
            add_to(sums, kernels.EARNED, earned)
    return seen


@pytest.mark.parametrize("loss", LOSSES)
@prove
@given(
    case=cases(),
    threshold=st.floats(-1e3, 1e6),
    hard=st.booleans(),
    numbers=st.lists(st.floats(-1e3, 1e3), min_size=7, max_size=7),
    cut=st.integers(0, 7),
    cuts=st.lists(st.integers(0, COLUMNS), max_size=3).map(sorted),
)
@example(
    replace(PLAIN, counts=[-500]), 0.0, True, [1.0] * 7, 0, []
)  # from a file: not in the domain
@example(replace(PLAIN, counts=[-500]), 0.0, False, [1.0] * 7, 0, [])
@example(replace(PLAIN, counts=[1500]), 0.0, False, [1.0] * 7, 0, [])
def test_scan_equals_its_oracle_wherever_it_is_cut(loss, case, threshold, hard, numbers, cut, cuts):
    oracle = case.dual_oracle(loss, numbers)
    if hard and loss == "squared_hinge":
        oracle.costs = [0.5 / d2 if d2 else math.inf for d2 in case.delta2]
    scan = Scan(case, oracle, threshold)
    borders = [0, min(cut, len(case.rows)), len(case.rows)]
    assert scanned(scan, borders, cuts).told() == plain_scan(scan).told()


def scanned(scan: Scan, borders: list[int], cuts: Sequence[int]) -> PartialSums:
    """What the kernels sum of the rows, cut into calls, in columns that are cut, too."""
    (case, oracle, threshold), (fresh, low) = scan, np.zeros((2, COLUMNS))
    sums, totals = ScanSums(0).sums, np.zeros(kernels.TOTALS, dtype=np.int64)
    marks = np.ones(len(case.rows), dtype=np.uint8)
    for first, last in itertools.pairwise(borders):
        part = slice(first, last)
        rows, alphas = csr(case.rows[part]), frozen(oracle.alphas[part], np.float32)
        signs = frozen(signs_of(case, oracle)[part], np.int8)
        kernels.scan(
            rows,
            signs,
            frozen([*oracle.costs[part]], np.float64),
            squares_of(*rows),
            frozen([*oracle.numbers[part]], np.float64),
            alphas,
            case.rho,
            oracle.bias,
            threshold,
            phi_of(oracle.loss),
            frozen(oracle.w, np.float64),
            scan.length,
            CENTER,
            ORIGIN,
            sums,
            totals,
            marks[part],
        )
        places = np.flatnonzero((alphas != 0.0) & (signs != 0))
        for columns in itertools.pairwise([0, *cuts, 1 << 32]):
            kernels.add_duals(rows, places, signs, alphas, fresh, low, *columns)
    lists = [array.tolist() for array in (fresh, low, sums, totals, marks)]
    return PartialSums(*lists)


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
