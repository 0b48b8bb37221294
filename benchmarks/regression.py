"""Numbers as labels: seconds to a certified gap of 10⁻³, beside solvers that certify nothing.

    python benchmarks/regression.py [--sets text dense films] [--C 0.5 5 50] [--repeats 3]
    python benchmarks/regression.py --sets policies --losses poisson --rows 600000 --C 1

Rows are in memory, and there is no intercept, so that all minimise the same. A rival's seconds are
those of the coarsest of its tolerances at which its weights reach our P. See README.md here.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import measure
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import xlogy
from sklearn.linear_model import PoissonRegressor, Ridge, SGDRegressor
from sklearn.svm import LinearSVR

from streamtron import StreamtronRegressor

Vector = NDArray[np.float64]
Fit = Callable[[Any, Vector], Vector]

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
EPSILON, TOL = 0.1, 1e-3
"""ε of the insensitive losses; our gap."""


def text(rows: int, columns: int = 100_000) -> sparse.csr_array:
    """Rows of 76 nonzeros on average, columns by Zipf's law, of length 1."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(4.1, 0.65, rows)), 5, 600).astype(np.int64)
    indptr = np.append(0, np.cumsum(lengths))
    ranks = np.floor(columns ** rng.random(indptr[-1])).astype(np.int64) - 1
    words = np.random.default_rng(1).permutation(columns)[ranks]
    X = sparse.csr_array((rng.random(indptr[-1]) + 0.5, words, indptr), shape=(rows, columns))
    X.sum_duplicates()
    squares = sparse.csr_array((X.data**2, X.indices, X.indptr), shape=X.shape).sum(axis=1)
    return X.multiply(1.0 / np.sqrt(squares)[:, None]).tocsr()


def dense(rows: int, columns: int = 50) -> NDArray[np.float64]:
    """Normal values, of which each column has a tenth of the last one's."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, columns)) @ np.diag(0.9 ** np.arange(columns))


def films(ratings: int) -> sparse.csr_array:
    """MovieLens' shape: a user and a film a row, one-hot, by Zipf's law among 10⁴ columns."""
    rng = np.random.default_rng(0)
    users = np.floor(6000.0 ** rng.random(ratings)).astype(np.int64) - 1
    others = 6000 + np.floor(4000.0 ** rng.random(ratings)).astype(np.int64) - 1
    indices = np.stack((users, others), axis=1).reshape(-1)
    ones, indptr = np.ones(2 * ratings), np.arange(0, 2 * ratings + 1, 2)
    return sparse.csr_array((ones, indices, indptr), shape=(ratings, 10_000))


def policies(rows: int) -> sparse.csr_array:
    """Ten categories a row, one-hot in 53 columns."""
    rng, first, places = np.random.default_rng(0), 0, []
    for levels in (2, 2, 3, 4, 4, 5, 6, 8, 9, 10):
        places.append(first + rng.choice(levels, rows, p=rng.dirichlet(np.full(levels, 2.0))))
        first += levels
    indices = np.stack(places, axis=1).reshape(-1)
    indptr = np.arange(0, 10 * rows + 1, 10)
    return sparse.csr_array((np.ones(10 * rows), indices, indptr), shape=(rows, first))


SETS: dict[str, Callable[[int], Any]] = {
    "text": text,
    "dense": dense,
    "films": lambda rows: films(5 * rows),
    "policies": policies,
}


def numbers(X: Any, loss: str) -> Vector:
    """w·x + noise, each of deviation 1 or so; for Poisson's loss counts, a tenth or so a row."""
    rng = np.random.default_rng(2)
    products = X @ rng.normal(size=X.shape[1])
    if loss == "poisson":
        return rng.poisson(0.1 * np.exp(products / products.std())).astype(float)
    return np.asarray(products / products.std() + rng.standard_t(4, size=X.shape[0]))


def objective(X: Any, t: Vector, w: Vector, loss: str, C: float) -> float:
    """½‖w‖² + C Σ φ(t_k, w·x_k)."""
    z = X @ w
    size = np.abs(z - t)
    slack = np.maximum(size - EPSILON, 0.0)
    terms = {
        "squared_error": 0.5 * size**2,
        "epsilon_insensitive": slack,
        "squared_epsilon_insensitive": slack**2,
        "poisson": np.exp(np.minimum(z, 300.0)) - t * z + xlogy(t, t) - t,
    }
    return float(0.5 * w @ w + C * terms[loss].sum())


def rivals(loss: str, C: float, X: Any) -> Iterator[tuple[str, Callable[[float], Fit]]]:
    """Yield names, and what makes a fit of a tolerance."""

    def of(make: Callable[..., Any], **names: Any) -> Callable[[float], Fit]:
        def at(tol: float) -> Fit:
            return lambda X, t: np.ravel(make(**names, tol=tol).fit(X, t).coef_)

        return at

    if loss == "squared_error":
        ridge = {"alpha": 1.0 / C, "fit_intercept": False, "max_iter": 10_000}
        if X.shape[1] <= 10_000:
            yield "Ridge cholesky", of(Ridge, **ridge, solver="cholesky")
        yield "Ridge lsqr", of(Ridge, **ridge, solver="lsqr")
        yield "Ridge sag", of(Ridge, **ridge, solver="sag")
        yield "Cyanure", _cyanure(C)
    elif loss == "poisson":
        shrunk = {"alpha": 1.0 / (C * X.shape[0]), "fit_intercept": False, "max_iter": 1000}
        for solver in ("lbfgs", "newton-cholesky"):
            yield f"PoissonRegressor {solver}", of(PoissonRegressor, **shrunk, solver=solver)
        yield "glum", _glum(shrunk)
        return
    else:
        dual = [False, True] if loss == "squared_epsilon_insensitive" else [True]
        svr = {"C": C, "epsilon": EPSILON, "fit_intercept": False, "max_iter": 10_000}
        for way in dual:
            solver = 13 if loss == "epsilon_insensitive" else 12 if way else 11
            name = f"LIBLINEAR -s {solver} (LinearSVR)"
            yield name, of(LinearSVR, loss=loss, dual=way, **svr)
    sgd = {"loss": loss, "alpha": 1.0 / (C * X.shape[0]), "epsilon": EPSILON}
    yield "SGDRegressor", of(SGDRegressor, **sgd, fit_intercept=False, max_iter=200)


def _glum(shrunk: dict[str, Any]) -> Callable[[float], Fit]:
    def at(tol: float) -> Fit:
        def fit(X: Any, t: Vector) -> Vector:
            from glum import GeneralizedLinearRegressor

            how = {**shrunk, "family": "poisson", "l1_ratio": 0.0, "gradient_tol": tol}
            return np.ravel(GeneralizedLinearRegressor(**how).fit(X, t).coef_)

        return fit

    return at


def _cyanure(C: float) -> Callable[[float], Fit]:
    def at(tol: float) -> Fit:
        def fit(X: Any, t: Vector) -> Vector:
            from cyanure.estimators import Regression

            model = Regression(
                penalty="l2",
                lambda_1=1.0 / (C * len(t)),
                fit_intercept=False,
                tol=tol,
                max_iter=1000,
                duality_gap_interval=5,
                n_threads=1,
                verbose=False,
            )
            return np.ravel(model.fit(X, t).get_weights())

        return fit

    return at


def seconds_of(fit: Fit, X: Any, t: Vector) -> tuple[float, Vector]:
    """Return the seconds of a fit, and its weights."""
    begin = time.perf_counter()
    w = fit(X, t)
    return time.perf_counter() - begin, w


def compare(X: Any, t: Vector, loss: str, C: float, given: argparse.Namespace) -> dict[str, Any]:
    """Return our readings, gap and seconds, and each rival's."""
    epsilon = EPSILON if loss.endswith("epsilon_insensitive") else None
    model = StreamtronRegressor(C=C, loss=loss, epsilon=epsilon, tol=TOL, fit_intercept=False)
    w = model.fit(X, t).coef_
    target = objective(X, t, w, loss, C)
    contenders: dict[str, Fit] = {"streamtron": lambda X, t: model.fit(X, t).coef_}
    for name, make in rivals(loss, C, X):
        spent = 0.0
        for tol in TOLERANCES:
            seconds, other = seconds_of(make(tol), X, t)
            spent += seconds
            if objective(X, t, other, loss, C) <= target * (1.0 + 1e-9):
                contenders[name] = make(tol)
                break
            if spent > given.time_limit:
                break
        contenders.setdefault(name, _never)
    running = {
        name: lambda fit=fit: seconds_of(fit, X, t)[0]
        for name, fit in contenders.items()
        if fit is not _never
    }
    medians = {k: measure.median(s) for k, s in measure.alternate(running, given.repeats).items()}
    history = model.certificate_["history"]
    found = {name: medians.get(name) for name in contenders}
    best = min((s for name, s in medians.items() if name != "streamtron"), default=None)
    return {
        "loss": loss,
        "C": C,
        "readings": len(history),
        "primal": target,
        "gap": model.certificate_["relative_duality_gap"],
        "seconds": found,
        "ratio": None if best is None else best / medians["streamtron"],
    }


def _never(X: Any, t: Vector) -> Vector:
    raise AssertionError("this rival has not reached the objective")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print a line a loss and C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["text", "dense", "films"])
    parser.add_argument("--C", nargs="+", type=float, default=[0.5, 5.0, 50.0])
    parser.add_argument(
        "--losses",
        nargs="+",
        default=["squared_error", "squared_epsilon_insensitive", "epsilon_insensitive"],
    )
    parser.add_argument("--rows", type=int, default=200_000, help="films have 5 times as many")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=60.0, help="of a rival's tolerances")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    ratios = []
    for name in given.sets:
        X = SETS[name](given.rows)
        X = X.astype(np.float32).astype(np.float64)  # what is trained on, for all
        if sparse.issparse(X):  # scikit-learn's sag takes 32 bits
            places = X.indices.astype(np.int32), X.indptr.astype(np.int32)
            X = sparse.csr_matrix((X.data, *places), shape=X.shape)
        for loss in given.losses:
            t = numbers(X, loss)
            for C in given.C:
                case = compare(X, t, loss, C, given)
                ratios.append(case["ratio"])
                times = ", ".join(
                    f"{rival} {'–' if s is None else f'{s:.3g}'}"
                    for rival, s in case["seconds"].items()
                )
                ratio = "–" if case["ratio"] is None else f"{case['ratio']:.2f}"
                print(
                    f"{name} {loss} C={C:g}: {case['readings']} readings, gap {case['gap']:.1e}, "
                    f"ratio {ratio}; seconds: {times}",
                    flush=True,
                )
    reached = [ratio for ratio in ratios if ratio is not None]
    if reached:
        print(f"median ratio {np.median(reached):.2f}, least {min(reached):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
