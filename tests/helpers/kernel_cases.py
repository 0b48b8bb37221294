"""Cases for kernels: rows, what to solve on them, and a state that training might have left."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamtron.core.rows import freeze
from tests.helpers.examples import examples
from tests.helpers.losses import REGRESSION, ends, within
from tests.helpers.oracle import DualOracle, Oracle, Row

COLUMNS = 6


@dataclass
class Case:
    """Some rows, what to solve on them, and a state that training might have left."""

    rows: list[Row]
    signs: list[int]
    delta2: list[float]
    rho: float
    order: list[int]
    b: float
    epsilon: float
    by_length: bool
    counts: list[int] = field(default_factory=list)

    def oracle(self) -> Oracle:
        """The oracle of the paper's procedure, in the state that the counts say."""
        variant = "length" if self.by_length else "steps"
        oracle = Oracle(
            self.rows,
            self.labels,
            self.delta2,
            self.rho,
            b=self.b,
            epsilon=self.epsilon,
            variant=variant,
            width=COLUMNS,
        )
        for k, count in enumerate(self.counts):
            if count and self.signs[k]:
                oracle.add(k, count)
        return oracle

    @property
    def labels(self) -> list[int]:
        """l_k, 1 of rows that are left out."""
        return [sign or 1 for sign in self.signs]

    def dual_oracle(self, loss: str, numbers: Sequence[float] = ()) -> DualOracle:
        """The oracle of dual ascent. α_k is the part c_k/1000 of the most that it may be, if there
        is one, and of both signs where labels are numbers. Rows have prices above 0."""
        costs, alphas = [0.5 / (d2 or 0.5) for d2 in self.delta2], []
        t = [*numbers[: len(costs)]] if loss in REGRESSION else []
        if loss == "poisson":
            t = [max(number, 0.0) for number in t]
        for k, (count, sign, cost) in enumerate(zip(self.counts, self.signs, costs, strict=True)):
            most = min(ends(loss, t[k] if t else 0.0)[1], 1000.0 if loss == "poisson" else 1.0)
            alpha = within(count / 1000 * most * cost, -most * cost, most * cost) if sign else 0.0
            alphas.append(-alpha if loss in REGRESSION and count % 2 else alpha)
        labels = [1] * len(alphas) if loss in REGRESSION else self.labels
        return DualOracle(loss, self.rows, labels, costs, self.rho, alphas, t, COLUMNS)


singles = st.floats(-(2.0**20), 2.0**20, width=32, allow_subnormal=False)

values = st.one_of(st.integers(-8, 8).map(lambda n: n / 4), singles).filter(bool)

nonzeros = st.dictionaries(st.integers(0, COLUMNS - 1), values, max_size=COLUMNS)

numbers = st.floats(-1e9, 1e9)

prove = settings(max_examples=examples(120), deadline=None, derandomize=True)

counts = st.one_of(st.sampled_from([0, 1000]), st.integers(0, 1000))

extensions = st.one_of(st.sampled_from([0.0, 0.25, 1.0]), st.floats(1e-6, 1e6))


@st.composite
def cases(draw: st.DrawFn, started: bool = True) -> Case:
    rows = [sorted(row.items()) for row in draw(st.lists(nonzeros, min_size=1, max_size=7))]
    n = len(rows)

    def each(element: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(element, min_size=n, max_size=n))

    counted = started and draw(st.booleans())
    return Case(
        rows=rows,
        signs=[int(sign) for sign in each(st.sampled_from([-1, -1, 0, 1, 1]))],
        delta2=each(extensions),
        rho=draw(st.one_of(st.sampled_from([0.0, 0.1, 1.0]), st.floats(0.01, 100.0))),
        order=draw(st.lists(st.integers(0, n - 1), max_size=60)),
        b=draw(st.floats(1e-3, 1e6)),
        epsilon=draw(st.one_of(st.just(1.0), st.floats(0.05, 1.9))),
        by_length=draw(st.booleans()),
        counts=[int(c) for c in each(counts)] if counted else [0] * n,
    )


def frozen(values: list[int] | list[float], dtype: type) -> NDArray[np.generic]:
    array = np.array(values, dtype=dtype)
    freeze(array)
    return array


def factors_of(case: Case) -> list[float]:
    """Row-wise factors, 0 where the row is left out."""
    return [sign * d2 for sign, d2 in zip(case.signs, case.delta2, strict=True)]
