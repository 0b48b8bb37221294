"""What the preconditioner of Newton's method costs and saves, by data set, C and size of the head.

    python benchmarks/second_order.py a9a.xz rcv1.xz --generate 50000 --C 0.5 50

All rows in memory, from the weights 0 to P − D ≤ tol P. ``products`` counts products Hv with the
data, and gradients, of which the descent before Newton's method needs one a step.
``nonzero`` is what a nonzero of a product takes in multiplications of the head's matrices: it
chooses NONZERO in ``streamtron/solver/hessian.py``, as ``products`` without a head chooses
PRODUCTS there. The second line of a data set is in nanoseconds a nonzero, of processor time: it
chooses PASS, SUM and MULTIPLICATION in ``streamtron/solver/ascent.py``, and shows what
``passes.gathered`` saves. A tenth of the rows, drawn by chance, are inside the margin there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
from data import add_data_arguments, data_sets, load, need_data

from streamtron.core import kernels
from streamtron.core.losses import SQUARED_HINGE
from streamtron.core.rows import make_rows
from streamtron.solver import hessian as preconditioner
from streamtron.solver import passes
from streamtron.solver.held_loss import HeldLoss
from streamtron.solver.newton import HeldObjective
from streamtron.solver.row_store import NarrowRows
from streamtron.solver.targets import Targets
from streamtron.solver.weights import WeightState, visit

HEADS = (0, 100, 300, 1000)


def minimised(rows: Any, signs: Any, C: float, tol: float, head: int) -> dict[str, Any]:
    """Newton's method with a head of at most so many columns."""
    columns = int(rows.indices.max()) + 1
    count, hessian = [0], preconditioner.Preconditioner

    def counted(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            count[0] += 1
            return original(*arguments)

        return call

    zero = np.zeros(columns + 1)
    number = len(signs)
    targets = Targets(np.arange(number), signs, np.full(number, C), np.zeros(number))
    held = NarrowRows(rows, targets)
    with (
        patch.object(preconditioner, "HEAD", head),
        patch.object(hessian, "product", counted(hessian.product)),
        patch.object(HeldObjective, "_look", counted(HeldObjective._look)),
    ):
        started = time.perf_counter()
        HeldObjective(HeldLoss(SQUARED_HINGE, held, 1.0), zero).minimise(zero, tol)
        seconds = time.perf_counter() - started
    return {"products": count[0], "seconds": seconds}


def multiplications_of_a_nonzero(rows: Any) -> float:
    """Seconds of a product's nonzero over those of a multiplication in a head's matrices."""
    columns = int(rows.indices.max()) + 1
    factors, v = np.ones(len(rows.indptr) - 1), np.ones(columns + 1)
    size = min(columns + 1, 300)
    places = np.full(columns + 1, -1)
    places[np.argsort(-np.bincount(rows.indices, minlength=columns))[:size]] = 0
    places[places == 0] = np.arange(np.count_nonzero(places == 0))
    held = np.bincount(
        np.repeat(np.arange(len(factors)), np.diff(rows.indptr)), weights=places[rows.indices] >= 0
    )
    pairs = float((held * (held + 1)).sum()) / 2
    gram = np.zeros((size, size))
    product, head = [], []
    for _ in range(5):
        started = time.perf_counter()
        passes.add(kernels.gram_product, rows, factors, 1.0, v, np.zeros(columns + 1))
        product.append(time.perf_counter() - started)
        started = time.perf_counter()
        passes.add_gram(rows, factors, 1.0, places, gram)
        head.append(time.perf_counter() - started)
    matrix = gram + np.eye(size) * gram.max() * size
    started = time.perf_counter()
    kernels.factorise(matrix, np.empty(size))
    factor = time.perf_counter() - started
    a_multiplication = (np.median(head) + factor) / (pairs + size**3 / 6)
    return float(np.median(product) / len(rows.indices) / a_multiplication)


def nanoseconds(rows: Any, signs: Any) -> dict[str, float]:
    """What a nonzero of a visit, of a pass over all rows, of a sum over the rows inside the margin
    and of a product over these, as they lie or side by side, takes; and a multiplication of H."""
    number, columns = len(signs), int(rows.indices.max()) + 1
    random = np.random.default_rng(0)
    inside = (random.random(number) < 0.1).astype(np.float64)
    v = random.normal(size=columns + 1)
    side_by_side = passes.gathered(rows, inside)
    held = float(np.diff(rows.indptr)[inside > 0.0].sum())
    heaviest = np.argsort(-np.bincount(rows.indices, minlength=columns + 1), kind="stable")[:300]
    places = np.full(columns + 1, -1)
    places[heaviest] = np.arange(len(heaviest))
    of_row = np.repeat(np.arange(number), np.diff(rows.indptr))
    pairs = np.bincount(of_row, weights=places[rows.indices] >= 0, minlength=number)
    running, total = WeightState(columns), np.zeros(columns + 1)
    squares, alphas = np.empty(number), np.zeros(number, np.float32)
    kernels.squared_norms(rows, squares)
    targets = Targets(np.arange(number), signs, np.full(number, 0.5), squares)
    moved = np.zeros(number, np.uint8)

    def visits() -> None:
        order = random.permutation(number)
        visit(running, SQUARED_HINGE, 1.0, rows, order, targets, alphas, moved)

    works: dict[str, tuple[Callable[[], object], float]] = {
        "visit": (visits, len(rows.indices)),
        "pass": (lambda: passes.margins(rows, signs, 1.0, v), len(rows.indices)),
        "sum": (lambda: passes.add(kernels.combine, rows, inside, 1.0, total), held),
        "product": (lambda: passes.add(kernels.gram_product, rows, inside, 1.0, v, total), held),
        "side by side": (
            lambda: passes.add(kernels.gram_product, *side_by_side, 1.0, v, total),
            held,
        ),
        "multiplication": (
            lambda: passes.add_gram(rows, inside, 1.0, places, np.zeros((300, 300))),
            float(pairs[inside > 0.0] @ (pairs[inside > 0.0] + 1.0)) / 2.0,
        ),
    }
    return {name: 1e9 * _seconds(work) / size for name, (work, size) in works.items()}


def _seconds(work: Callable[[], object]) -> float:
    """Processor seconds, the median of nine runs."""
    found = []
    for _ in range(9):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return float(np.median(found))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_arguments(parser)
    parser.add_argument("--C", type=float, nargs="+", default=[0.5, 50.0])
    parser.add_argument("--tol", type=float, default=1e-3)
    options = parser.parse_args()
    need_data(parser, options)
    with ExitStack() as stack:
        for path in data_sets(options, stack):
            data = load([path])
            X = data.rows
            rows = make_rows(X.indptr, X.indices, X.data)
            signs = data.labels.astype(np.int8)
            ratio = multiplications_of_a_nonzero(rows)
            print(f"{path}: {X.shape[0]:,} rows, {X.shape[1]:,} columns; nonzero {ratio:.1f}")
            units = nanoseconds(rows, signs)
            print("  " + ", ".join(f"{name} {value:.2f}" for name, value in units.items()))
            for C in options.C:
                for head in HEADS:
                    found = minimised(rows, signs, C, options.tol, head)
                    print(f"  C {C:<6g} head ≤ {head:<5}", end="")
                    print(f"{found['products']:>6} products {found['seconds']:9.3f} s", flush=True)


if __name__ == "__main__":
    main()
