"""Scan rows at fixed weights: nothing else can be certified. ``Frozen`` is the only caller of the
kernel."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Certificate, certificate_of
from streamtron.core.errors import DataError
from streamtron.core.losses import SQUARED_HINGE, Loss
from streamtron.core.rows import Rows
from streamtron.core.scan_sums import ScanSums
from streamtron.core.threads import ONE_THREAD, opened_threads
from streamtron.solver import passes
from streamtron.solver.softmax import scan_classes
from streamtron.solver.targets import Targets

COLUMN_PARTS = 3
"""Columns are cut into this many parts at most. Threads sum Σ α_k l_k x_k of them while another
one scans: a scan takes as long as a third of that sum, where all rows have an α."""

SHARED = passes.SHARED // 4
"""Nonzeros from which threads share a chunk: a scan costs several times what a pass does."""

AT_MARGIN = 1.0
"""Rows with y_k·w up to here matter next: α_k > 0 there where w is optimal."""

LONGEST = 1e100
"""Largest ‖w‖, and inverse of the smallest: products with float32 values, and their squares times
any allowed C_k, are finite and not 0."""


class Frozen:
    """Weights fixed for one reading, and the sums over its rows.

    ``free`` : ρ of a bias that is not penalised. ``ratio`` : r of the penalty.
    """

    def __init__(
        self,
        w: NDArray[np.float64],
        bias: float,
        loss: Loss = SQUARED_HINGE,
        free: float = 0.0,
        ratio: float = 0.0,
    ) -> None:
        self.w, self.bias, self.threshold = w, bias, AT_MARGIN
        self.length = length_of(w, bias)
        self.beside_training = False  # whether the same reading updates the running weights
        self.from_slacks = False  # whether the α are made of the slacks
        self.scan_sums = ScanSums(len(w), loss, free, ratio)

    @property
    def augmented(self) -> NDArray[np.float64]:
        """(w, w_bias), shape (columns + 1,)."""
        return np.append(self.w, self.bias)

    def scan(
        self,
        rows: Rows,
        targets: Targets,
        alphas: NDArray[np.float32],
        rho: float,
    ) -> NDArray[np.uint8]:
        """Scan rows; 1 for those at most at the threshold or with α ≠ 0. ``alphas``: as they were
        when the reading began."""
        marked = np.zeros(len(alphas), dtype=np.uint8)
        scan_sums = self.scan_sums
        scan_sums.unfold()
        if scan_sums.loss.softmax:
            return scan_classes(scan_sums, self.augmented, rows, targets, alphas, rho)
        scan = partial(
            kernels.scan,
            rows,
            targets.signs,
            targets.costs,
            targets.squares,
            targets.t,
            alphas,
            rho,
            self.bias,
            self.threshold,
            scan_sums.loss.sharp,
            self.w,
            self.length,
            scan_sums.center(self.bias),
            targets.center,
            scan_sums.sums,
            scan_sums.totals,
            marked,
        )
        counted = (alphas != 0.0) & (targets.signs != 0)
        arguments = targets.signs, alphas, scan_sums.fresh, scan_sums.low
        add = partial(kernels.add_duals, rows, np.flatnonzero(counted), *arguments)
        few = rows.indptr[-1] - rows.indptr[0] < SHARED
        threads = ONE_THREAD if few else opened_threads()
        parts = passes.columns(rows, min(threads.number - 1, COLUMN_PARTS))
        threads.work(lambda task: task(), [scan, *(partial(add, *part) for part in parts)])
        if (squares := scan_sums.sq_columns) is not None and len(squares):
            kernels.gram_diagonal(rows, targets.costs, 0.0, squares)
        return marked

    def certificate(self) -> Certificate:
        """The certificate of a complete reading, see ``certificate_of``."""
        return certificate_of(self.scan_sums, self.w, self.bias)


def length_of(w: NDArray[np.float64], bias: float) -> float:
    """Return ‖w‖; DataError if ‖(w, w_bias)‖ is neither 0 nor from 1 / LONGEST to LONGEST."""
    length = math.sqrt(kernels.square_sum(w))
    size = math.hypot(length, bias)
    if 1.0 / LONGEST <= size <= LONGEST or not (size or w.any()):
        return length
    raise DataError(
        f"the weights have the length {size:.3g}: expected {1.0 / LONGEST:g} to {LONGEST:g}, so "
        "that no margin over- or underflows. Multiply weights and bias that are to be certified by "
        "a power of ten: the certificate is of their direction. In a fit the values spread over "
        "too many powers of ten: scale the columns, or the rows, to like sizes."
    )
