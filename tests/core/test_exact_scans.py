"""The bounds of a scan against exact arithmetic, for weights, counts and scales of any kind."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron.core import certificate as module
from streamtron.core.errors import InternalError
from streamtron.core.executor import sum_over_tree
from streamtron.core.kernels import UNIT_ROUNDOFF
from streamtron.core.rows import Rows, make_rows
from streamtron.core.scan_sums import ScanSums
from streamtron.solver.duals import Counts
from streamtron.solver.scan import Numbered, ScanRequest, scan_blocks
from streamtron.solver.targets import Targets

SCANS = 2_000

COUNTS = ([0, 1], [0, 3, 2**31 - 1], [1, 2, 5, 1000], [2**31 - 1])


class Drawn(NamedTuple):
    """Rows, fixed weights and counts; ``price``: Δ² of each row."""

    X: NDArray[np.float32]
    signs: NDArray[np.int8]
    price: NDArray[np.float64]
    counts: NDArray[np.int32]
    rho: float
    w: NDArray[np.float64]
    bias: float
    scale: float


def draw(seed: int) -> Drawn:
    """Small sets made to cancel: near copies, opposite labels, weights near a separating one."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-6, 6)
    if rng.random() < 0.4:  # near copies
        X[1:] = X[0] * (1 + rng.choice([0.0, 6e-8, 1e-6], (n - 1, d)))
    if rng.random() < 0.3:
        X *= 10.0 ** rng.uniform(-8, 8, (n, 1) if rng.random() < 0.5 else d)
    signs = rng.choice(np.array([-1, 1], np.int8), n)
    price = np.full(n, 10.0 ** rng.uniform(-8, 8))
    if rng.random() < 0.5:
        price /= 10.0 ** rng.uniform(-8, 8, n)
    counts = rng.choice(COUNTS[int(rng.integers(4))], n).astype(np.int32)
    rho = float(rng.choice([0.0, 1.0, 10.0 ** rng.uniform(-4, 4)]))
    X = X.astype(np.float32)
    w = rng.normal(size=d) * 10.0 ** rng.uniform(-10, 10)
    bias = float(rng.normal()) if rho else 0.0
    if rng.random() < 0.6:  # the weights of the counts
        w = (counts * signs.astype(float)) @ X.astype(float)
        bias = float(counts @ signs.astype(float)) * rho
    margin = np.abs(signs * (X.astype(float) @ w + rho * bias)).max(initial=0.0)
    near = 1.0 / margin if margin > 0 else 1.0
    scale = near * 10.0 ** rng.uniform(-3, 3) if rng.random() < 0.7 else 10.0 ** rng.uniform(-9, 9)
    return Drawn(X, signs, price, counts, rho, w, bias, float(scale))


class Piece(NamedTuple):
    """Rows as a scan takes a chunk."""

    rows: Rows
    squares: NDArray[np.float64]
    numbers: NDArray[np.int64]
    width: int

    def __len__(self) -> int:
        return len(self.squares)

    @property
    def nonzeros(self) -> int:
        return len(self.rows.values)


def sums_of(drawn: Drawn, seed: int) -> ScanSums:
    """The sums of a scan in blocks, whose sums are added one by one or in a tree."""
    rng, n = np.random.default_rng(seed), len(drawn.signs)
    cuts = sorted({0, n, *rng.integers(0, n + 1, 3).tolist()})
    pieces = []
    for first, stop in pairwise(cuts):
        own = drawn.X[first:stop]
        at = np.nonzero(own)
        ends = np.cumsum([0, *np.count_nonzero(own, axis=1)])
        rows = make_rows(ends, at[1].astype(np.uint32), own[at])
        squares = (own.astype(float) ** 2).sum(axis=1)
        pieces.append(Piece(rows, squares, np.arange(first, stop), own.shape[1]))

    def targets(piece: Piece) -> Targets:
        numbers = piece.numbers
        return Targets(numbers, drawn.signs[numbers], drawn.price[numbers], piece.squares)

    counts = Counts()
    support = np.flatnonzero(drawn.counts)
    counts.put(*Numbered(support, drawn.counts[support]))
    request = ScanRequest(targets, drawn.w, drawn.bias, drawn.rho, drawn.scale)  # type: ignore[arg-type]
    blocks = [b.seen[0].sums for b in scan_blocks((p for p in pieces), [request], [counts])]  # type: ignore[arg-type]
    if rng.random() < 0.5:
        total = ScanSums(drawn.scale, len(drawn.w))
        for part in blocks:
            total.add(part)
        return total
    leaves = []
    for part in blocks:
        leaves.append(ScanSums(drawn.scale, len(drawn.w)))
        leaves[-1].add(part)
    return sum_over_tree(operator.add, leaves)


def false_claims(drawn: Drawn, seed: int) -> list[str]:
    """The bounds of the scan of a drawn set that do not hold in exact arithmetic."""
    sums = sums_of(drawn, seed)
    try:
        found = sums.certificate(drawn.w, drawn.bias, hard=False)
        primal = found.primal
    except InternalError:
        return ["a lower bound above the upper one"]
    rows = [[Fraction(v) for v in row] for row in drawn.X.tolist()]
    signs, price = drawn.signs.tolist(), [Fraction(p) for p in drawn.price.tolist()]
    counts, rho, bias = drawn.counts.tolist(), Fraction(drawn.rho), Fraction(drawn.bias)
    w = [Fraction(x) for x in drawn.w.tolist()]
    margins = [
        l * (sum(map(Fraction.__mul__, row, w)) + rho * bias)
        for l, row in zip(signs, rows, strict=True)
    ]
    false, s = [], Fraction(found.scale)
    if primal < math.inf:
        length = sum(x * x for x in w) + bias * bias
        slacks = (max(Fraction(0), 1 - s * m) for m in margins)
        exact = s * s * length / 2 + sum(
            z * z / (2 * p) for z, p in zip(slacks, price, strict=True)
        )
        if exact > Fraction(primal):
            false.append("P is below that of the weights")
        if 2 * exact * Fraction(found.primal_margin) ** 2 > 1:
            false.append("the primal margin is above that of the weights")
    steps = sum(counts)
    if found.upper_bound is not None:
        signed = [c * l for c, l in zip(counts, signs, strict=True)]
        a = [
            sum(map(Fraction.__mul__, map(Fraction, signed), column))
            for column in zip(*rows, strict=True)
        ]
        square = sum(x * x for x in a) + (rho * sum(signed)) ** 2
        square += sum(p * c * c for p, c in zip(price, counts, strict=True))
        if Fraction(found.upper_bound) ** 2 * steps * steps < square:
            false.append("the upper bound is below ‖a‖/t")
    return false


def test_no_bound_of_thousands_of_scans_made_to_cancel_is_false_in_exact_arithmetic() -> None:
    wrong = {seed: claims for seed in range(SCANS) if (claims := false_claims(draw(seed), seed))}
    assert wrong == {}


def test_that_test_notices_if_rounding_is_not_allowed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", UNIT_ROUNDOFF)
    assert any(false_claims(draw(seed), seed) for seed in range(SCANS // 10))
