"""What the preconditioner of Newton's method costs and saves, by data set, C and size of the head.

    python benchmarks/second_order.py a9a.xz rcv1.xz --generate 50000 --C 0.5 50

All rows in memory, from the weights 0 to P − D ≤ tol P. ``products`` counts products Hv with the
data, and gradients, of which the descent before Newton's method needs one a step.
``nonzero`` is what a nonzero of a product takes in multiplications of the head's matrices: it
chooses NONZERO in ``streamtron/solver/preconditioner.py``, as ``products`` without a head chooses
PRODUCTS there.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
from data import add_data_arguments, data_sets, load, need_data

from streamtron.core import kernels
from streamtron.core.rows import make_rows
from streamtron.solver import newton, passes, preconditioner

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
    cost = np.full(len(signs), C)
    with (
        patch.object(preconditioner, "HEAD", head),
        patch.object(hessian, "product", counted(hessian.product)),
        patch.object(newton, "_primal_and_gradient", counted(newton._primal_and_gradient)),
    ):
        started = time.perf_counter()
        newton.minimise(rows, signs, cost, 1.0, zero, zero, tol, proven=True)
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
    held = np.bincount(np.repeat(np.arange(len(factors)), np.diff(rows.indptr)),
                       weights=places[rows.indices] >= 0)  # fmt: skip
    pairs = float((held * (held + 1)).sum()) / 2
    gram = np.zeros((size, size))
    product, head = [], []
    for _ in range(5):
        started = time.perf_counter()
        passes.add(kernels.gram_product, rows, factors, 1.0, v, np.zeros(columns + 1))
        product.append(time.perf_counter() - started)
        started = time.perf_counter()
        passes.gram_block(rows, factors, 1.0, places, gram)
        head.append(time.perf_counter() - started)
    matrix = gram + np.eye(size) * gram.max() * size
    started = time.perf_counter()
    kernels.factorise(matrix, np.empty(size))
    factor = time.perf_counter() - started
    a_multiplication = (np.median(head) + factor) / (pairs + size**3 / 6)
    return float(np.median(product) / len(rows.indices) / a_multiplication)


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
            for C in options.C:
                for head in HEADS:
                    found = minimised(rows, signs, C, options.tol, head)
                    print(f"  C {C:<6g} head ≤ {head:<5}", end="")
                    print(f"{found['products']:>6} products {found['seconds']:9.3f} s", flush=True)


if __name__ == "__main__":
    main()
