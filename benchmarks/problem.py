"""The rows as every contender gets them, and the objective by which all are judged.

Nothing of streamtron is imported here: rivals are measured in processes without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize_scalar

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Data:
    """All rows of a data set in memory.

    Parameters
    ----------
    rows : shape (rows, columns), float64 that were rounded to float32.
    labels : ±1.0, the larger label is +1.
    """

    rows: sparse.csr_matrix
    labels: Vector

    @property
    def nonzeros(self) -> int:
        """Stored values."""
        return int(self.rows.nnz)

    def first(self, rows: int) -> Data:
        """The first rows."""
        return Data(self.rows[:rows], self.labels[:rows])


@dataclass(frozen=True, eq=False)
class Problem:
    """min over v of P(v) = ½‖v‖² + C Σ φ(l_k v·x_k), a sum.

    Parameters
    ----------
    rows : the rows, with the constant ρ as their last column if ρ > 0 (so v has the bias weight).
    labels : ±1.0.
    C : price of the loss.
    loss : φ, by scikit-learn's name.
    """

    rows: sparse.csr_matrix
    labels: Vector
    C: float
    loss: str = "squared_hinge"

    @classmethod
    def of(cls, data: Data, C: float, rho: float, loss: str = "squared_hinge") -> Problem:
        """The problem of a data set."""
        if rho == 0:
            return cls(data.rows, data.labels, C, loss)
        constant = sparse.csr_matrix(np.full((len(data.labels), 1), rho))
        rows = sparse.csr_matrix(sparse.hstack((data.rows, constant)))
        return cls(rows, data.labels, C, loss)

    @classmethod
    def load(cls, path: str, C: float) -> Problem:
        """A problem as ``save`` wrote it."""
        rows = sparse.load_npz(f"{path}.npz")
        return cls(sparse.csr_matrix(rows), np.load(f"{path}.npy"), C)

    def save(self, path: str) -> None:
        """Rows and labels to ``path``.npz and .npy, which load faster than text."""
        sparse.save_npz(f"{path}.npz", self.rows, compressed=False)
        np.save(f"{path}.npy", self.labels)

    def primal(self, v: Vector) -> float:
        """P(v).

        Examples
        --------
        >>> problem = Problem(sparse.csr_matrix([[1.0], [-1.0]]), np.array([1.0, -1.0]), C=2.0)
        >>> problem.primal(np.zeros(1))
        4.0
        """
        return self._at(1.0, float(v @ v), self.labels * (self.rows @ v))

    def least_primal(self, v: Vector) -> float:
        """min over s > 0 of P(s v): for weights that were fitted to another loss."""
        square, margins = float(v @ v), self.labels * (self.rows @ v)
        largest = float(np.abs(margins).max(initial=0.0))
        if largest == 0.0:
            return self.primal(np.zeros_like(v))
        found = minimize_scalar(
            lambda log_s: self._at(np.exp(log_s) / largest, square, margins),
            bounds=(-10.0, 20.0),
            method="bounded",
        )
        return min(float(found.fun), self.primal(np.zeros_like(v)))

    def _at(self, s: float, square: float, margins: Vector) -> float:
        if self.loss == "log_loss":
            loss = float(np.logaddexp(0.0, -s * margins).sum())
        else:
            slacks = np.maximum(0.0, 1.0 - s * margins)
            loss = float(slacks @ slacks) if self.loss == "squared_hinge" else float(slacks.sum())
        return 0.5 * s * s * square + self.C * loss
