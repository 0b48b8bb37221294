"""Sparse models: readings and seconds to a certified gap, beside solvers that certify nothing.

    python benchmarks/penalties.py a9a.xz rcv1.xz --generate 200000 --C 0.05 0.5 5 --l1-ratio 1

Rows are in memory, and there is no intercept, so that all minimise the same. A rival's seconds are
those of the coarsest of its tolerances at which its weights reach our P. Readings are those to
10⁻² and to 10⁻³, 0 where none proves that. ``--active-set 10%`` holds a part of the rows, and
leaves the rivals out.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import ours
from certified import active_set
from data import add_data_arguments, data_sets, load, need_data
from peers import tolerances
from problem import Data
from regression import Fit, Vector, seconds_of

from streamtron.core.config import Settings

READINGS = 20
"""Ours at most, where rows are not in memory."""


def objective(data: Data, w: Vector, loss: str, C: float, ratio: float) -> float:
    """r ‖w‖₁ + ½ (1 − r) ‖w‖² + C Σ φ(m_k)."""
    margins = data.labels * (data.rows @ w)
    terms = np.logaddexp(0.0, -margins)
    if loss == "squared_hinge":
        terms = np.maximum(1.0 - margins, 0.0) ** 2
    lasso = ratio * float(np.abs(w).sum())
    return lasso + 0.5 * (1.0 - ratio) * float(w @ w) + C * float(terms.sum())


def of(make: Callable[..., Any], **names: Any) -> Callable[[float], Fit]:
    """Return what makes a fit of a tolerance, by an estimator of scikit-learn's kind."""
    return lambda tol: lambda X, t: np.ravel(make(**names, tol=tol).fit(X, t).coef_)


def rivals(data: Data, loss: str, C: float, ratio: float) -> Iterator[tuple[str, Any]]:
    """Yield names, and what makes a fit of a tolerance; those that are not installed are left
    out."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    plain = {"C": C, "fit_intercept": False, "max_iter": 10_000}
    rows = len(data.labels)
    if ratio == 1.0 and loss == "squared_hinge":
        yield "LIBLINEAR -s 5", of(LinearSVC, penalty="l1", dual=False, **plain)
    if ratio == 1.0 and loss == "log_loss":
        yield "LIBLINEAR -s 6", of(LogisticRegression, l1_ratio=1.0, solver="liblinear", **plain)
    if loss == "log_loss":
        yield "saga", of(LogisticRegression, l1_ratio=ratio, solver="saga", **plain)
    if importlib.util.find_spec("skglm") and ratio == 1.0 and loss == "log_loss":
        from skglm import SparseLogisticRegression

        price = 1.0 / (C * rows)
        yield "skglm", of(SparseLogisticRegression, alpha=price, fit_intercept=False)
    if importlib.util.find_spec("celer") and ratio == 1.0 and loss == "log_loss":
        from celer import LogisticRegression as Celer

        yield "celer", of(Celer, C=C)
    if importlib.util.find_spec("cyanure"):
        yield "Cyanure", partial(_cyanure, loss, C * rows, ratio)


def _cyanure(loss: str, total: float, ratio: float, tol: float) -> Fit:
    """Its squared hinge is half of ours."""

    def fit(X: Any, t: Vector) -> Vector:
        from cyanure.estimators import Classifier

        price = (0.5 if loss == "squared_hinge" else 1.0) / total
        model = Classifier(
            loss={"log_loss": "logistic", "squared_hinge": "sqhinge"}[loss],
            penalty="l1" if ratio == 1.0 else "elastic-net",
            lambda_1=price * ratio,
            lambda_2=price * (1.0 - ratio),
            tol=tol,
            max_iter=1000,
            duality_gap_interval=5,
            fit_intercept=False,
            n_threads=1,
            verbose=False,
            random_state=0,
        )
        return np.ravel(model.fit(X, t).get_weights()).astype(np.float64)

    return fit


def coarsest(
    make: Callable[[float], Fit], value: Callable[[Vector], float], data: Data, given: Any
) -> Fit | None:
    """Return a rival's fit of the coarsest tolerance at which its objective is at most 0."""
    spent = 0.0
    for tol in tolerances():
        seconds, w = seconds_of(make(tol), data.rows, data.labels)
        spent += seconds
        if min(value(w), value(-w)) <= 0.0:  # signs are Cyanure's own
            return make(tol)
        if spent > given.time_limit:
            break
    return None


def compare(path: str, data: Data, loss: str, C: float, given: Any) -> str:
    """Return a line: our readings, gap and seconds, and the seconds of all."""
    ratio = given.l1_ratio
    penalty = {"penalty": "l1"} if ratio == 1.0 else {"penalty": "elasticnet", "l1_ratio": ratio}
    settings = Settings(
        C=C, loss=loss, tol=given.tol, intercept="none", max_epochs=READINGS, **penalty
    )
    if given.active_set is not None:
        settings = settings.but(active_set=active_set(given.active_set, data))
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as cache:
        ours.fill_cache([path], cache)
        model = ours.fit([path], cache, settings)

        def value(w: Vector) -> float:
            return objective(data, w, loss, C, ratio) - model.primal * (1.0 + 1e-9)

        running = {"streamtron": lambda: ours.fit([path], cache, settings).seconds}
        unreached = ""
        for name, make in () if given.active_set else rivals(data, loss, C, ratio):
            if (fit := coarsest(make, value, data, given)) is None:
                unreached += f", {name} –"
            else:
                running[name] = lambda fit=fit: seconds_of(fit, data.rows, data.labels)[0]
        seconds = measure.alternate(running, given.repeats)
    readings = [
        next(
            (proof.readings for proof in model.proofs if proof.dual >= (1.0 - gap) * proof.primal),
            0,
        )
        for gap in (1e-2, 1e-3)
    ]
    times = ", ".join(f"{name} {measure.median(s):.3g}" for name, s in seconds.items())
    return (
        f"{Path(path).name} {loss} C={C:g}: readings {readings[0]} and {readings[1]}, "
        f"gap {model.gap:.1e}; seconds: {times}{unreached}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print a line a data set, loss and C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_arguments(parser)
    parser.add_argument("--C", nargs="+", type=float, default=[0.05, 0.5, 5.0])
    parser.add_argument("--l1-ratio", type=float, default=1.0)
    parser.add_argument("--losses", nargs="+", default=["log_loss", "squared_hinge"])
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--active-set", help="bytes, or a part of the rows such as 10%%")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=60.0, help="of a rival's tolerances")
    given = parser.parse_args(arguments)
    need_data(parser, given)
    warnings.simplefilter("ignore")
    with ExitStack() as stack:
        for path in data_sets(given, stack):
            data = load([path])
            for loss in given.losses:
                for C in given.C:
                    print(compare(path, data, loss, C, given), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
