"""Scan rows at fixed weights: nothing else can be certified.

``Frozen`` is the only caller of the kernel. Where shards are scanned by tasks, each block is summed
by itself, and the blocks are added in their order: the sums are the same to the last bit, whichever
process reads a shard. With its sums a block brings the α that were made from slacks, and the rows
that matter.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels, losses
from streamtron.core.certificate import Certificate, certificate_of
from streamtron.core.errors import DataError
from streamtron.core.losses import SQUARED_HINGE, Loss
from streamtron.core.rows import Chunk, Rows
from streamtron.core.scan_sums import BlockSums, ScanSums
from streamtron.core.threads import ONE_THREAD, opened_threads
from streamtron.solver import passes
from streamtron.solver.alphas import Alphas
from streamtron.solver.row_store import copied, fitting
from streamtron.solver.targets import TargetRule, Targets, to_alphas

COLUMN_PARTS = 3
"""Columns are cut into so many parts at most, of which threads sum Σ α_k l_k x_k while another
one scans: it takes as long as a third of that sum, where all rows have an α."""

SHARED = passes.SHARED // 4
"""Nonzeros from which threads share a chunk: a scan costs several times what a pass does."""

AT_MARGIN = 1.0
"""Rows with y_k·w up to here matter next: α_k > 0 there where w is optimal."""

LONGEST = 1e100
"""Largest ‖w‖, and inverse of the smallest: products with float32 values, and their squares times
any allowed C_k, are finite and not 0."""


class Frozen:
    """Weights fixed for one reading, and the sums over its rows; see ``ScanRequest``."""

    def __init__(
        self,
        w: NDArray[np.float64],
        bias: float,
        loss: Loss = SQUARED_HINGE,
        free: float = 0.0,
        ratio: float = 0.0,
        threshold: float = AT_MARGIN,
    ) -> None:
        self.w, self.bias, self.threshold = w, bias, threshold
        self.length = length_of(w, bias)
        self.beside_training = False  # whether the same reading updates the running weights
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


class ScanRequest(NamedTuple):
    """A scan at one learner's fixed weights."""

    targets: TargetRule
    w: NDArray[np.float64]
    bias: float
    rho: float
    threshold: float = -math.inf
    """rows with y_k·w ≤ threshold, or an α, are violators"""
    from_slacks: bool = False
    """whether α are made from the slacks, and not given"""
    loss: Loss = SQUARED_HINGE
    free: float = 0.0
    """ρ of a bias that is not penalised"""
    ratio: float = 0.0
    """r of the penalty"""


class Numbered(NamedTuple):
    """Rows with α ≠ 0, by rising numbers, and their α."""

    numbers: NDArray[np.int64]
    alphas: NDArray[np.float32]


class Violators(NamedTuple):
    """The number of a block's violators; positions and targets of those for which there is room,
    the first ones."""

    rows: int
    positions: NDArray[np.int64]
    targets: Targets


class PartialSums(NamedTuple):
    """What a request finds in a block: its sums; α made from slacks, by position in the block;
    violators, if any are wanted."""

    sums: BlockSums
    made: Numbered | None
    violators: Violators | None


class BlockScan(NamedTuple):
    """What each request finds in a block of ``rows`` rows; and the rows ``held`` that some request
    wants, each once, by rising position."""

    rows: int
    nonzeros: int
    seen: tuple[PartialSums, ...]
    positions: NDArray[np.int64]
    held: Rows


def scan_blocks(
    chunks: Generator[Chunk, None, None],
    requests: Sequence[ScanRequest],
    alphas: Sequence[Alphas],
    rooms: Sequence[int] | None = None,
) -> Generator[BlockScan, None, None]:
    """Scan blocks, one after the other: ``chunks``, closed at the end. For each request:
    ``alphas`` of every row as the chunks number it, and ``rooms``, bytes of the first violators
    that are wanted, up to one that finds no room (None = none are)."""
    room_of: Sequence[int | None] = [None] * len(requests) if rooms is None else rooms
    scanners = list(map(_Scanner, requests, alphas, room_of))
    with closing(chunks):
        for chunk in chunks:
            sums = [scanner.scan(chunk) for scanner in scanners]
            violators = [part.violators.positions for part in sums if part.violators is not None]
            positions = np.unique(np.concatenate([np.zeros(0, np.int64), *violators]))
            held = copied(chunk.rows, positions)
            yield BlockScan(len(chunk), chunk.nonzeros, tuple(sums), positions, held)


class _Scanner:
    """Scan block after block for one request; ``room`` is for the violators of all blocks."""

    def __init__(self, request: ScanRequest, alphas: Alphas, room: int | None) -> None:
        self._request, self._alphas, self._room = request, alphas, room
        self._frozen = Frozen(
            request.w,
            request.bias,
            request.loss,
            request.free,
            request.ratio,
            request.threshold,
        )

    def scan(self, chunk: Chunk) -> PartialSums:
        request, rows, frozen = self._request, chunk.rows, self._frozen
        targets = request.targets(chunk)
        alphas = self._alphas_of(rows, targets)
        marks = frozen.scan(rows, targets, alphas, request.rho)
        support = np.flatnonzero(alphas)
        numbered = Numbered(support, alphas[support]) if request.from_slacks else None
        sums = frozen.scan_sums.take_block(rows, alphas)
        return PartialSums(sums, numbered, self._violators(rows, targets, marks))

    def _alphas_of(self, rows: Rows, targets: Targets) -> NDArray[np.float32]:
        if not self._request.from_slacks:
            return self._alphas.take(targets.numbers)
        margins = passes.margins(rows, targets.signs, self._request.rho, self._frozen.augmented)
        return alphas_of_slacks(self._request.loss, margins, targets)

    def _violators(
        self, rows: Rows, targets: Targets, marks: NDArray[np.uint8]
    ) -> Violators | None:
        """The marked rows, as far as there is room for them; None if none are wanted."""
        if self._room is None:
            return None
        positions = np.flatnonzero(marks)
        sizes = rows.sizes(np.diff(rows.indptr)[positions])
        fits, number = fitting(sizes, self._room), len(positions)
        self._room = self._room - int(sizes[:fits].sum()) if fits == number else 0
        positions = positions[:fits]
        return Violators(number, positions, targets.take(positions))


def alphas_of_slacks(
    loss: Loss, margins: NDArray[np.float64], targets: Targets
) -> NDArray[np.float32]:
    """α_k = −C_k φ'(z_k), rounded, see ``to_alphas``; 0 for rows left out. At the optimum of P that
    is the dual solution. ``margins`` : z_k, finite.

    >>> signs, costs = np.array([1, -1, 0], np.int8), np.array([1.0, 1.0, 0.0])
    >>> rows = Targets(np.arange(3), signs, costs, np.zeros(3))
    >>> alphas_of_slacks(SQUARED_HINGE, np.array([0.75, 2.0, -6.0]), rows).tolist()
    [0.5, 0.0, 0.0]
    """
    return alphas_of_slopes(loss, losses.slopes(loss, margins, targets.t), targets)


def alphas_of_slopes(
    loss: Loss, slopes: NDArray[np.float64], targets: Targets
) -> NDArray[np.float32]:
    """Return ``alphas_of_slacks`` of any slopes −φ' in the domain of φ*."""
    return to_alphas(targets.costs * slopes, loss.most * targets.costs)
