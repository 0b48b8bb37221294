"""Scan rows at fixed weights: nothing else can be certified."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Certificate, ScanSums, length_of
from streamtron.core.rows import Rows
from streamtron.solver.targets import Targets


class Frozen:
    """Weights fixed for one reading, and the sums over its rows; see ``block_scan.ScanRequest``.

    ``running`` : the running weights at the begin of the reading, where they are not w.
    """

    def __init__(
        self,
        w: NDArray[np.float64],
        bias: float,
        scale: float,
        threshold: float,
        running: NDArray[np.float64] | None = None,
    ) -> None:
        self.w, self.bias, self.threshold, self.running = w, bias, threshold, running
        self.length = length_of(w, bias)
        self.beside_training = False  # whether the same reading updates the running weights
        self.scan_sums = ScanSums(scale, len(w))

    @property
    def has_violators(self) -> bool:
        """Whether some row so far is at most at the threshold."""
        return self.scan_sums.violators > 0

    def widen(self, columns: int) -> None:
        """Make room for more columns."""
        narrow, self.w = self.w, np.zeros(columns)
        self.w[: len(narrow)] = narrow
        self.scan_sums.widen(columns)

    def scan(
        self,
        rows: Rows,
        targets: Targets,
        counts: NDArray[np.int32],
        rho: float,
        dots: NDArray[np.float64] = kernels.NO_DOTS,
    ) -> NDArray[np.uint8]:
        """Scan rows; 1 for those with y·a ≤ threshold or a count. ``counts``: as they were when the
        reading began. ``dots``: x_k·w of each row, where they are known already."""
        marked = np.zeros(len(counts), dtype=np.uint8)
        scan_sums = self.scan_sums
        scan_sums.unfold()
        kernels.scan(
            rows, targets.signs, targets.delta2, targets.squares, counts, rho, self.bias,
            self.threshold, self.w, self.length, scan_sums.scale, scan_sums.bins, scan_sums.fresh,
            scan_sums.low, scan_sums.sums, scan_sums.totals, marked, dots,
        )  # fmt: skip
        return marked

    def certificate(self, *, hard: bool, counted: bool = True) -> Certificate:
        """The certificate of a complete reading."""
        return self.scan_sums.certificate(
            self.w, self.bias, hard=hard, counted=counted, running=self.running
        )
