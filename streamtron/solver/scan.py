"""Weights that do not move while a reading passes: the only thing that can be certified."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Certificate, ScanSums, length_of
from streamtron.core.rows import Rows
from streamtron.solver.targets import Targets


class Frozen:
    """Weights at rest for one reading, and what the rows say of them.

    Parameters
    ----------
    w, bias : the weights; nobody else may change them until the reading is over.
    scale : s₀, around which the least primal is looked for.
    threshold : rows with y·a ≤ threshold are called.
    carried : Σ c_k l_k x_k as training carried it, where that is not w.
    """

    def __init__(
        self,
        w: NDArray[np.float64],
        bias: float,
        scale: float,
        threshold: float,
        carried: NDArray[np.float64] | None = None,
    ) -> None:
        self.w, self.bias, self.threshold, self.carried = w, bias, threshold, carried
        self.length = length_of(w, bias)
        self.scan_sums = ScanSums(scale, len(w))

    @property
    def anybody_called(self) -> bool:
        """Whether some row so far would move a."""
        return self.scan_sums.rows_called > 0

    def widen(self, columns: int) -> None:
        """Make room for columns met while reading."""
        self.w = np.concatenate((self.w, np.zeros(columns - len(self.w))))
        self.scan_sums.widen(columns)

    def scan(
        self,
        rows: Rows,
        targets: Targets,
        counts: NDArray[np.int32],
        rho: float,
        dots: NDArray[np.float64] = kernels.NOT_SUMMED,
    ) -> NDArray[np.uint8]:
        """Look at rows; 1 for those with y·a ≤ threshold or a count.

        ``counts``: c_k of these rows, as they were when the reading began. ``dots``: x_k·w of each,
        where they have been summed already.
        """
        called = np.zeros(len(counts), dtype=np.uint8)
        scan_sums = self.scan_sums
        scan_sums.unfold()
        kernels.scan(
            rows, targets.signs, targets.delta2, targets.squares, counts, rho, self.bias,
            self.threshold, self.w, self.length, scan_sums.scale, scan_sums.bins, scan_sums.fresh,
            scan_sums.low, scan_sums.sums, scan_sums.totals, called, dots,
        )  # fmt: skip
        return called

    def certificate(self, *, hard: bool, counted: bool = True) -> tuple[Certificate, float]:
        """What the complete reading proves, and P at the certificate's scale."""
        return self.scan_sums.certificate(
            self.w, self.bias, hard=hard, counted=counted, carried=self.carried
        )
