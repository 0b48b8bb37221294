"""The rivals, each behind the same three lines: its name, its settings, one timed run."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from problem import Data, Problem
from scipy import sparse

Vector = NDArray[np.float64]


class Run(NamedTuple):
    """One training run: its seconds (loading excluded), its weights, its passes over the rows
    (those still active, where a solver shrinks)."""

    seconds: float
    v: Vector
    passes: float


class Peer(Protocol):
    """A solver of ``Problem``. ``settings`` go from the coarsest to the finest."""

    name: str
    library: str

    def settings(self) -> Sequence[float]:
        """Settings to try."""
        ...

    def run(self, setting: float) -> Run:
        """Train from nothing."""
        ...

    def primal(self, v: Vector) -> float:
        """P of its weights; at their best scale where it minimises another loss."""
        ...


SOLVERS = {"squared_hinge": (1, 2), "log_loss": (7, 0), "hinge": (3,)}
"""LIBLINEAR's -s of each loss, the dual one first."""

RATES, MOST_PASSES = (0.1, 0.25, 0.5, 1.0, 2.0), 64
"""Of Vowpal Wabbit: the learning rates that are tried, and passes at most."""

MOST_FOR_CHOLESKY = 2000
"""Columns at most: newton-cholesky has their square in memory."""


def available(library: str) -> bool:
    """Whether a library is installed."""
    return importlib.util.find_spec(library) is not None


def tolerances() -> list[float]:
    """1, .3, .1, .03, … 1e-9.

    Examples
    --------
    >>> tolerances()[:4]
    [1.0, 0.3, 0.1, 0.03]
    """
    steps = [float(f"{digit}e-{k}") for k in range(10) for digit in (1, 3)]
    return sorted((e for e in steps if e <= 1.0), reverse=True)


def doublings(most: int) -> list[float]:
    """1, 2, 4, … ``most``."""
    return [float(2**k) for k in range(most.bit_length()) if 2**k <= most]


class Liblinear:
    """LIBLINEAR by its -e: dual coordinate descent (1; 7 logistic, 3 hinge) or trust-region Newton
    (2; 0 logistic)."""

    library = "liblinear"

    def __init__(self, problem: Problem, solver: int) -> None:
        from liblinear import liblinear

        self.name = f"LIBLINEAR -s {solver}"
        self.problem, self.solver = problem, solver
        self.loaded = liblinear.problem(problem.labels, problem.rows)

    def settings(self) -> Sequence[float]:
        return tolerances()

    def run(self, setting: float) -> Run:
        from liblinear import liblinear, liblinearutil

        parameter = liblinear.parameter(f"-s {self.solver} -c {self.problem.C!r} -e {setting!r} -q")
        said: list[str] = []
        parameter.print_func = liblinear.PRINT_STRING_FUN(lambda text: said.append(text.decode()))
        ctypes.CDLL(None).srand(1)  # as in a fresh process; else every run is another one
        start = time.perf_counter()
        model = liblinearutil.train(self.loaded, parameter)
        seconds = time.perf_counter() - start
        # +1 is the first class, whichever label came first: LIBLINEAR swaps -1 and +1
        v = np.ctypeslib.as_array(model.w, (self.problem.rows.shape[1],)).copy()
        return Run(seconds, v, _passes("".join(said)))

    def primal(self, v: Vector) -> float:
        return self.problem.primal(v)


def _passes(said: str) -> float:
    """Passes over the rows from what LIBLINEAR prints: epochs, or Newton and CG iterations.

    Examples
    --------
    >>> _passes("optimization finished, #iter = 12")
    12.0
    >>> _passes("iter  1 f 6.9e+02 |g| 1.2e+03 CG   3 step_size 1.0e+00")
    4.0
    """
    epochs = sum(int(number) for number in re.findall(r"#iter = (\d+)", said))
    newton = [int(number) for number in re.findall(r"CG\s+(\d+)", said)]
    return float(epochs + len(newton) + sum(newton))


def liblinear_alone(path: str, C: float, solver: int, e: float) -> float:
    """LIBLINEAR on a saved problem, in a process of its own; returns its seconds."""
    return Liblinear(Problem.load(path, C), solver).run(e).seconds


def _seconds_to_fit(solver: Any, problem: Problem) -> float:
    """Fit an estimator, and return the seconds that it took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged: its weights are judged as they are
        start = time.perf_counter()
        solver.fit(problem.rows, problem.labels)
        return time.perf_counter() - start


class SklearnLinear:
    """scikit-learn's LinearSVC, by its tol."""

    library = "sklearn"
    name = "sklearn LinearSVC"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def settings(self) -> Sequence[float]:
        return tolerances()

    def run(self, setting: float) -> Run:
        from sklearn.svm import LinearSVC

        solver = LinearSVC(
            loss=self.problem.loss,
            dual="auto",
            C=self.problem.C,
            tol=setting,
            max_iter=10_000,
            fit_intercept=False,
            random_state=0,
        )
        seconds = _seconds_to_fit(solver, self.problem)
        return Run(seconds, solver.coef_.ravel().astype(np.float64), float(np.max(solver.n_iter_)))

    def primal(self, v: Vector) -> float:
        return self.problem.primal(v)


class SklearnLogistic:
    """scikit-learn's LogisticRegression, by its tol."""

    library = "sklearn"

    def __init__(self, problem: Problem, solver: str) -> None:
        self.name = f"sklearn {solver}"
        self.problem, self.solver = problem, solver

    def settings(self) -> Sequence[float]:
        return tolerances()

    def run(self, setting: float) -> Run:
        from sklearn.linear_model import LogisticRegression

        solver = LogisticRegression(
            solver=self.solver,
            C=self.problem.C,
            tol=setting,
            max_iter=1000,
            fit_intercept=False,
            random_state=0,
        )
        seconds = _seconds_to_fit(solver, self.problem)
        return Run(seconds, solver.coef_.ravel(), float(np.max(solver.n_iter_)))

    def primal(self, v: Vector) -> float:
        return self.problem.primal(v)


class Cyanure:
    """Cyanure (Mairal, 2019) on one thread, by the relative duality gap that is its tol."""

    library, name = "cyanure", "Cyanure"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def settings(self) -> Sequence[float]:
        return tolerances()

    def run(self, setting: float) -> Run:
        from cyanure.estimators import Classifier

        names = {"log_loss": "logistic", "squared_hinge": "sqhinge"}
        price = 1.0 / (self.problem.C * len(self.problem.labels))
        # its squared hinge is half of ours
        price *= 0.5 if self.problem.loss == "squared_hinge" else 1.0
        solver = Classifier(
            loss=names[self.problem.loss],
            penalty="l2",
            lambda_1=price,
            tol=setting,
            max_iter=1000,
            duality_gap_interval=5,
            fit_intercept=False,
            n_threads=1,
            verbose=False,
            random_state=0,
        )
        seconds = _seconds_to_fit(solver, self.problem)
        v = np.asarray(solver.get_weights()).ravel().astype(np.float64)
        return Run(seconds, v, 0.0)

    def primal(self, v: Vector) -> float:
        return min(self.problem.primal(v), self.problem.primal(-v))


class SklearnSgd:
    """scikit-learn's SGDClassifier, squared hinge loss, by its passes.

    Its default schedule diverges at every price of slacks that we tried, so it gets a better one:
    steps that begin at 1 / mean ‖x‖² and fall with the fourth root of the time (``invscaling``).
    """

    library = "sklearn"
    name = "sklearn SGD"

    def __init__(self, problem: Problem, passes: int) -> None:
        self.problem, self.passes = problem, passes

    def settings(self) -> Sequence[float]:
        return doublings(self.passes)

    def run(self, setting: float) -> Run:
        from sklearn.linear_model import SGDClassifier

        rows, labels = self.problem.rows, self.problem.labels
        # P / (C n) is its objective: a mean of losses and ½ alpha ‖v‖²
        alpha = 1.0 / (self.problem.C * len(labels))
        first_step = len(labels) / float(rows.data @ rows.data)
        solver = SGDClassifier(
            loss="squared_hinge",
            alpha=alpha,
            fit_intercept=False,
            random_state=0,
            learning_rate="invscaling",
            eta0=first_step,
            power_t=0.25,
        )
        start = time.perf_counter()
        try:
            for _ in range(int(setting)):
                solver.partial_fit(rows, labels, classes=[-1.0, 1.0])
            v = solver.coef_.ravel()
        except ValueError:  # it diverged beyond float64
            v = np.full(rows.shape[1], np.inf)
        return Run(time.perf_counter() - start, v, setting)

    def primal(self, v: Vector) -> float:
        return self.problem.primal(v)


class HeldOutRun(NamedTuple):
    """Vowpal Wabbit by its learning rate and passes: seconds, P, and the log loss held out."""

    rate: float
    passes: int
    seconds: float
    primal: float
    held_out: float


class VowpalCache:
    """Rows in Vowpal Wabbit's own cache, in a directory that goes when this does."""

    def __init__(self, data: Data) -> None:
        self.bits = max(data.rows.shape[1] - 1, 1).bit_length()
        self.directory = tempfile.TemporaryDirectory(prefix="streamtron-bench-")
        self.text = Path(self.directory.name) / "rows.vw"
        self.path = Path(self.directory.name) / "rows.cache"
        write_vowpal(data, self.text)
        vowpal(f"-d {self.text} --cache_file {self.path} --noconstant -b {self.bits}").finish()


class VowpalWabbit:
    """Vowpal Wabbit from its cache, by its passes; ``rate`` is its --learning_rate.

    It has no squared hinge loss: it minimises another, and its weights are judged at their best
    scale. Its logistic loss is ours, and then they are judged as they are.
    """

    library = "vowpalwabbit"

    def __init__(
        self, problem: Problem, passes: int, loss: str, cache: VowpalCache, rate: float = 0.5
    ) -> None:
        self.name = f"VW {loss}"
        self.problem, self.passes, self.loss, self.cache = problem, passes, loss, cache
        self.rate = rate

    def settings(self) -> Sequence[float]:
        return doublings(self.passes)

    def run(self, setting: float) -> Run:
        l2 = 1.0 / (self.problem.C * len(self.problem.labels))
        options = (
            f"--cache_file {self.cache.path} --loss_function {self.loss} --l2 {l2!r} "
            f"--passes {int(setting)} -b {self.cache.bits} --noconstant --holdout_off "
            f"--learning_rate {self.rate!r}"
        )
        start = time.perf_counter()
        trained = vowpal(options)
        seconds = time.perf_counter() - start
        # with --l2 weights lack a common factor until they are saved
        saved = f"{self.cache.path}.model"
        trained.save(saved)
        trained.finish()
        loaded = vowpal(f"-i {saved} -t")
        columns = self.problem.rows.shape[1]
        v = np.array([loaded.get_weight(column) for column in range(columns)])
        loaded.finish()
        return Run(seconds, v, setting)

    def primal(self, v: Vector) -> float:
        if (self.loss, self.problem.loss) == ("logistic", "log_loss"):
            return self.problem.primal(v)
        return self.problem.least_primal(v)


def vowpal(options: str) -> Any:
    """Vowpal Wabbit in this process, run to the end of its data; to be finished.

    It runs by itself only if ``options`` name data (-d) or --passes.
    """
    from vowpalwabbit import Workspace

    return Workspace(f"{options} --quiet")


def write_vowpal(data: Data, path: Path) -> None:
    """The rows in Vowpal Wabbit's text format; nine digits hold a float32."""
    rows = data.rows
    with open(path, "w") as file:
        for k, label in enumerate(data.labels):
            span = slice(rows.indptr[k], rows.indptr[k + 1])
            pairs = zip(rows.indices[span].tolist(), rows.data[span].tolist(), strict=True)
            file.write(f"{label:.0f} | " + " ".join(f"{j}:{x:.9g}" for j, x in pairs) + "\n")


def rivals(problem: Problem, passes: int) -> list[Peer]:
    """All rivals whose library is installed."""
    found: list[Peer] = []
    if available("liblinear"):
        found += [Liblinear(problem, solver) for solver in SOLVERS[problem.loss]]
    if available("cyanure") and problem.loss != "hinge":
        found.append(Cyanure(problem))
    if available("sklearn") and problem.loss == "log_loss":
        solvers = ("lbfgs", "newton-cholesky", "saga")
        few = problem.rows.shape[1] <= MOST_FOR_CHOLESKY
        return found + [
            SklearnLogistic(problem, solver)
            for solver in solvers
            if few or solver != "newton-cholesky"
        ]
    if available("sklearn"):
        found.append(SklearnLinear(problem))
    if problem.loss != "squared_hinge":
        return found
    if available("sklearn"):
        found.append(SklearnSgd(problem, passes))
    if available("vowpalwabbit"):
        cache = VowpalCache(Data(problem.rows, problem.labels))
        found += [VowpalWabbit(problem, passes, loss, cache) for loss in ("hinge", "squared")]
    return found


def vowpal_to_loss(problem: Problem, test: Data, wanted: float, repeats: int) -> list[HeldOutRun]:
    """Vowpal Wabbit's logistic loss: one pass at the best of ``RATES``, then 2, 4, … passes at
    that rate until the mean log loss of ``test`` is no more than ``wanted``.

    The problem has a constant as its last column, and the rows of ``test`` have not.
    """
    width, rows = problem.rows.shape[1] - 1, test.rows.copy()
    constant = float(problem.rows[0, width])
    cache = VowpalCache(Data(problem.rows, problem.labels))

    def tried(rate: float, passes: int) -> HeldOutRun:
        peer = VowpalWabbit(problem, passes, "logistic", cache, rate)
        runs = [peer.run(passes) for _ in range(repeats)]
        v = runs[-1].v
        w = np.zeros(max(width, rows.shape[1]))  # columns of the test alone have no weight
        w[:width] = v[:width]
        margins = test.labels * (rows @ w[: rows.shape[1]] + constant * v[width])
        loss = float(np.logaddexp(0.0, -margins).mean())
        seconds = float(np.median([run.seconds for run in runs]))
        return HeldOutRun(rate, passes, seconds, peer.primal(v), loss)

    found = [min((tried(rate, 1) for rate in RATES), key=lambda run: run.held_out)]
    while found[-1].held_out > wanted and found[-1].passes < MOST_PASSES:
        found.append(tried(found[0].rate, 2 * found[-1].passes))
    return found


class Decomposition(NamedTuple):
    """What a decomposition SVM found on extended rows."""

    seconds: float
    geometric_margin: float
    iterations: int


def decomposition(data: Data, delta: float, tol: float) -> Decomposition:
    """LIBSVM (scikit-learn's SVC) on rows extended explicitly, [x_k, Δ e_k], C = 10⁵: the hard
    margin there, with a bias of its own that has no price, as the paper ran SVM^light.

    The geometric margin is min_k l_k (w·[x_k, Δ e_k] + bias) / ‖w‖.
    """
    from sklearn.svm import SVC

    rows = len(data.labels)
    extended = sparse.csr_matrix(sparse.hstack((data.rows, delta * sparse.identity(rows))))
    solver = SVC(kernel="linear", C=1e5, tol=tol, cache_size=400)
    start = time.perf_counter()
    solver.fit(extended, data.labels)
    seconds = time.perf_counter() - start
    w = np.asarray(solver.coef_.todense()).ravel()
    margins = data.labels * (extended @ w + float(solver.intercept_[0]))
    least = float(margins.min()) / float(np.sqrt(w @ w))
    return Decomposition(seconds, least, int(np.max(solver.n_iter_)))
