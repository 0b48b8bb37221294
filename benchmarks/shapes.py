"""Three sets of rows in shapes on which LIBLINEAR is at its best: small ones, with a rare class;
and rows most of whose columns occur once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from problem import Data
from scipy import sparse

from streamtron.data.row_batch import RowBatch

GROUP_ROWS = 4096
SHARED, OWN = 1000, 10
"""Columns that the wide rows share, and those that each has for itself."""


def attributes(rng: np.random.Generator) -> sparse.csr_array:
    """50,000 rows of 12 attributes, each one-hot among 25 values by Zipf's law."""
    rows, groups, values = 50_000, 12, 25
    chosen = np.floor(values ** rng.random((rows, groups))).astype(np.int64) - 1
    indices = (chosen + values * np.arange(groups)).reshape(-1)
    indptr = np.arange(0, rows * groups + 1, groups)
    return sparse.csr_array((np.ones(rows * groups), indices, indptr), (rows, groups * values))


def measurements(rng: np.random.Generator) -> sparse.csr_array:
    """50,000 rows of 22 normal values each."""
    return sparse.csr_array(rng.normal(size=(50_000, 22)))


def short_documents(rng: np.random.Generator) -> sparse.csr_array:
    """8,000 rows of about 12 of 8,000 words by Zipf's law, of length 1."""
    rows, words = 8_000, 8_000
    indptr = np.append(0, np.cumsum(rng.integers(4, 21, rows)))
    ranks = np.floor(words ** rng.random(indptr[-1])).astype(np.int64) - 1
    X = sparse.csr_array((rng.random(indptr[-1]) + 0.5, ranks, indptr), (rows, words))
    X.sum_duplicates()
    return X.multiply(1.0 / np.sqrt(X.power(2).sum(axis=1))[:, None]).tocsr()


SHAPES: dict[str, tuple[Callable[[np.random.Generator], sparse.csr_array], float]] = {
    "attributes": (attributes, 0.03),
    "measurements": (measurements, 0.10),
    "short-documents": (short_documents, 0.03),
}
"""Each shape's rows, and the share of positive ones."""


def shaped(name: str) -> Data:
    """The rows of a shape; +1 where w·x + noise is among the largest, w and noise normal."""
    make, share = SHAPES[name]
    rng = np.random.default_rng(0)
    X = make(rng)
    decisions: NDArray[np.float64] = X @ rng.normal(size=X.shape[1])
    decisions = decisions / decisions.std() + rng.normal(scale=0.5, size=len(decisions))
    return Data(X, np.where(decisions > np.quantile(decisions, 1.0 - share), 1.0, -1.0))


def wide_rows(rows: int) -> Iterator[RowBatch]:
    """11 nonzeros a row: one in a column that tells the label, ten in columns that occur once."""
    random = np.random.default_rng(0)
    places = random.permutation(SHARED + OWN * rows).astype(np.uint32)
    effects, nonzeros = random.normal(size=SHARED), OWN + 1
    for first in range(0, rows, GROUP_ROWS):
        size = min(GROUP_ROWS, rows - first)
        shared = random.integers(0, SHARED, size)
        own = SHARED + OWN * (first + np.arange(size)[:, None]) + np.arange(OWN)
        columns = np.sort(places[np.column_stack((shared, own))], axis=1).ravel()
        codes = (effects[shared] + 0.5 * random.normal(size=size) > 0.0).astype(np.int32)
        indptr = np.arange(0, nonzeros * size + 1, nonzeros)
        values = np.full(nonzeros * size, nonzeros**-0.5, dtype=np.float32)
        yield RowBatch(indptr, columns, values, codes, [-1.0, 1.0], None, str)
