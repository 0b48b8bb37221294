"""How much a certificate is widened for rounding, by rows.

    python benchmarks/rounding.py [--rows 100000 1000000 10000000]

Rows of 5 dense normal columns, two overlapping classes, C = 1, in memory. All figures are parts of
the bound. What is added, with u = 2⁻⁵³, n rows and g_k what α_k earn:

    dual          (20 + 4 n² u) u Σ α_k ‖(x_k, ρ)‖ ‖v‖ + (16 + 4 n² u²) u Σ |g_k|, about
    primal        (16 + 4 n² u²) u of the losses, after every margin m_k was lowered by
                  (1.01 nonzeros + 24) u (‖x_k‖ ‖w‖ + ρ |w_bias|)

n² u is 1 at 10⁸ rows. ``at 10⁹`` puts 10⁹ rows into the first formula.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron import StreamtronClassifier

COLUMNS = 5
MANY = 1e9
UNIT_ROUNDOFF = 2.0**-53


def roundings(n: float) -> float:
    """What u Σ α_k ‖(x_k, ρ)‖ ‖v‖ is multiplied by."""
    return 20.0 + 4.0 * n * n * UNIT_ROUNDOFF


def rows_of(n: int) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """n rows and their classes."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=COLUMNS)
    X = rng.standard_normal((n, COLUMNS), np.float32)
    y = np.where(X @ truth + rng.standard_normal(n) > 0.0, 1, -1)
    return X, y.astype(np.int8)


def precise_objective(
    X: NDArray[np.float32], y: NDArray[np.int8], w: NDArray[np.float64], bias: float
) -> np.longdouble:
    """P at C = 1, ρ = 1, in long doubles (64 bits of mantissa)."""
    v, b = w.astype(np.longdouble), np.longdouble(bias)
    loss = np.longdouble(0)
    for first in range(0, len(X), 1 << 16):
        some = slice(first, first + (1 << 16))
        slack = np.maximum(0, 1 - y[some] * (X[some].astype(np.longdouble) @ v + b))
        loss += (slack * slack).sum()
    return (v @ v + b * b) / 2 + loss


def measured(n: int) -> dict[str, Any]:
    """What the certificate of a fit of n rows allows for."""
    X, y = rows_of(n)
    model = StreamtronClassifier(tol=1e-3).fit(X, y)
    found = model.certificate_
    exact = precise_objective(X, y, model.coef_[0], model.intercept_[0])
    allowed = found["rounding_bound"] / found["dual_objective"]
    return {
        "rows": n,
        "gap": found["relative_duality_gap"],
        "primal": float(np.longdouble(found["primal_objective"]) / exact - 1),
        "dual": allowed,
        "at 10⁹": allowed * roundings(MANY) / roundings(n),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    given = parser.parse_args()
    names = ("rows", "gap", "primal", "dual", "at 10⁹")
    print(*(f"{name:>12}" for name in names))
    for n in given.rows:
        found = measured(n)
        print(f"{n:>12,}", *(f"{found[name]:>12.2g}" for name in names[1:]), flush=True)


if __name__ == "__main__":
    main()
