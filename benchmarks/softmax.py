"""Softmax beside scikit-learn's LogisticRegression (lbfgs) and one classifier for each class.

    python benchmarks/softmax.py

Made documents of 20 topics, and made cells of 50 types. Objectives are of the 20,000 training rows,
accuracies of rows held out; seconds are of fits of matrices in memory.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from streamtron import StreamtronClassifier

ROWS = 20_000


def documents(rows: int, columns: int = 50_000, topics: int = 20, words: int = 60) -> Any:
    """Make documents whose words follow Zipf's law, a quarter of them moved to a word of the topic;
    a tenth of the labels is drawn anew."""
    rng = np.random.default_rng(0)
    part = 1 / np.arange(1, columns + 1) ** 1.05
    topic, row = rng.integers(topics, size=rows), np.repeat(np.arange(rows), words)
    word = rng.choice(columns, rows * words, p=part / part.sum())
    moved = (rng.random(rows * words) < 0.25) & (word >= 2 * topics)
    word = np.where(moved, np.minimum(word // topics * topics + topic[row], columns - 1), word)
    X = sparse.csr_array((np.ones(len(row)), (row, word)), shape=(rows, columns))
    X.sum_duplicates()
    X.data = 1 + np.log(X.data)
    lengths = np.sqrt(np.add.reduceat(X.data**2, X.indptr[:-1]))
    X.data /= np.repeat(lengths, np.diff(X.indptr))
    return X, np.where(rng.random(rows) < 0.1, rng.integers(topics, size=rows), topic)


def cells(rows: int, genes: int = 2_000, types: int = 50) -> Any:
    """Make counts of genes, scaled to 10,000 a cell, log(1 + count); 3 % of labels are drawn
    anew."""
    rng = np.random.default_rng(0)
    means = rng.lognormal(0, 1.2, genes) * rng.lognormal(0, 0.8, (types, genes))
    means *= rng.random((types, genes)) < 0.6
    means /= means.sum(axis=1, keepdims=True)
    type_, depth = rng.integers(types, size=rows), rng.lognormal(7.5, 0.3, rows)
    blocks = []
    for first in range(0, rows, 2_000):
        span = slice(first, first + 2_000)
        counts = rng.poisson(means[type_[span]] * depth[span, None])
        scaled = 1e4 * counts / counts.sum(axis=1, keepdims=True)
        blocks.append(sparse.csr_array(np.log1p(scaled).astype(np.float32)))
    drawn = np.where(rng.random(rows) < 0.03, rng.integers(types, size=rows), type_)
    return sparse.csr_array(sparse.vstack(blocks)), drawn


def objective(model: Any, X: Any, y: Any) -> float:
    """Return ½ ‖W‖² + the sum of the losses, the bias penalised."""
    z = X @ model.coef_.T + model.intercept_
    top = z.max(axis=1, keepdims=True)
    sums = top[:, 0] + np.log(np.exp(z - top).sum(axis=1))
    weights = (model.coef_**2).sum() + (np.asarray(model.intercept_) ** 2).sum()
    return float(0.5 * weights + (sums - z[np.arange(len(y)), y]).sum())


def with_ones(X: Any) -> Any:
    """Return rows with a column of ones, so that the bias is penalised as ours is."""
    return sparse.csr_matrix(sparse.hstack([X, np.ones((X.shape[0], 1))]))


def main() -> None:
    """Fit all, and print a line for each."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    kinds: list[tuple[str, Any]] = [("documents", documents(25_000)), ("cells", cells(22_000))]
    for name, (X, y) in kinds:
        A, b, rest, rest_b = X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:]
        print(f"{name}: {A.shape}, {A.nnz / ROWS:.0f} nonzeros a row")
        contenders: list[tuple[str, Any, Callable[[Any], Any]]] = [
            ("softmax", StreamtronClassifier(loss="softmax"), sparse.csr_matrix),
            (
                "log_loss, one for each class",
                StreamtronClassifier(loss="log_loss"),
                sparse.csr_matrix,
            ),
            ("lbfgs", LogisticRegression(fit_intercept=False, max_iter=1000), with_ones),
        ]
        for words, model, rows_of in contenders:
            rows = rows_of(A)
            model.fit(rows[:1000], b[:1000])  # what is compiled is compiled
            wall, seconds = time.perf_counter(), time.process_time()
            model.fit(rows, b)
            seconds, wall = time.process_time() - seconds, time.perf_counter() - wall
            known = getattr(model, "certificate_", {}).get("relative_duality_gap")
            right = model.score(rows_of(rest), rest_b)
            print(
                f"  {words:30} {wall:6.2f} s, {seconds:6.2f} s of processor time, objective "
                f"{objective(model, rows, b):10.2f}, accuracy {right:.4f}"
                + ("" if known is None else f", gap {known:.1e}"),
                flush=True,
            )


if __name__ == "__main__":
    main()
