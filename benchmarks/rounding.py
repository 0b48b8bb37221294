"""How much a certificate is widened for rounding, by rows.

    python benchmarks/rounding.py [--rows 100000 1000000 10000000]

Rows of 5 dense normal columns, two overlapping classes, C = 1, in memory. All figures are parts of
the bound. What is added, with u = 2⁻⁵³, n rows, t = Σ c_k and z_k the slacks at the scan's scale:

    upper bound   (20 + 4 n² u) u Σ c_k ‖y_k‖ / t
    objective     (16 + 4 n² u) u (√Σ C_k z_k² + |δ| √Σ C_k m_k²)², after every margin m_k was
                  lowered by (1.01 nonzeros + 24) u (‖x_k‖ ‖w‖ + ρ |w_bias|)

Σ c_k ‖y_k‖ / ‖a‖ is at most R / γ_d, which grows like √n; n² u is 1 at 10⁸ rows. ``at 10⁹`` puts
10⁹ rows into the first formula, R / γ_d grown as √n.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron import StreamtronClassifier

COLUMNS = 5
MANY = 1e9
UNIT_ROUNDOFF = 2.0**-53


def roundings(n: float) -> float:
    """What u Σ c_k ‖y_k‖ / t is multiplied by."""
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
    allowed = found["rounding_bound"] / found["upper_bound"]
    at_most = allowed * math.sqrt(MANY / n) * roundings(MANY) / roundings(n)
    return {
        "rows": n,
        "gap": found["relative_duality_gap"],
        "objective": float(np.longdouble(found["primal_objective"]) / exact - 1),
        "upper bound": allowed,
        "at 10⁹": at_most,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    given = parser.parse_args()
    names = ("rows", "gap", "objective", "upper bound", "at 10⁹")
    print(*(f"{name:>12}" for name in names))
    for n in given.rows:
        found = measured(n)
        print(f"{n:>12,}", *(f"{found[name]:>12.2g}" for name in names[1:]), flush=True)


if __name__ == "__main__":
    main()
