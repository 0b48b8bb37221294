"""Scan rows at fixed weights: nothing else can be certified.

``Frozen`` is the only caller of the kernel. Where shards are scanned by tasks, each block is summed
by itself, and the blocks are added in their order: the sums are the same to the last bit, whichever
process reads a shard. With its sums a block brings counts that were made from slacks, and the rows
that matter.
"""

from __future__ import annotations

import math
import sys
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
from streamtron.solver.duals import Counts
from streamtron.solver.row_store import RowStore, fitting
from streamtron.solver.targets import TargetRule, Targets, costs, less_t, round_counts

COLUMN_PARTS = 3
"""Columns are cut into so many parts at most, of which threads sum Σ c_k y_k while another one
scans: it takes as long as a third of that sum, where all rows have a count."""

LONGEST = 1e100
"""Largest ‖w‖, and inverse of the smallest: products with float32 values, and their squares times
any allowed C_k, are finite and not 0."""


class Frozen:
    """Weights fixed for one reading, and the sums over its rows; see ``ScanRequest``."""

    def __init__(
        self,
        w: NDArray[np.float64],
        bias: float,
        scale: float,
        threshold: float,
        loss: Loss = SQUARED_HINGE,
        b: float = 1.0,
        free: float = 0.0,
        ratio: float = 0.0,
    ) -> None:
        self.w, self.bias, self.threshold = w, bias, threshold
        self.length = length_of(w, bias)
        self.beside_training = False  # whether the same reading updates the running weights
        self.scan_sums = ScanSums(scale, len(w), loss, b, free, ratio)

    def scan(
        self,
        rows: Rows,
        targets: Targets,
        counts: NDArray[np.int32],
        rho: float,
    ) -> NDArray[np.uint8]:
        """Scan rows; 1 for those with y·a ≤ threshold or a count. ``counts``: as they were when the
        reading began."""
        marked = np.zeros(len(counts), dtype=np.uint8)
        scan_sums = self.scan_sums
        scan_sums.unfold()
        scan = partial(
            kernels.scan,
            rows,
            targets.signs,
            targets.delta2,
            targets.squares,
            targets.t,
            counts,
            rho,
            self.bias,
            self.threshold,
            scan_sums.loss.sharp,
            scan_sums.b,
            self.w,
            self.length,
            scan_sums.scale,
            scan_sums.center(self.bias),
            targets.center,
            0.0 if scan_sums.free else rho,
            scan_sums.bins,
            scan_sums.sums,
            scan_sums.totals,
            marked,
        )
        counted = counts != 0 if len(targets.t) else counts > 0
        counted &= targets.signs != 0
        arguments = targets.signs, counts, scan_sums.fresh, scan_sums.low
        add = partial(kernels.add_counts, rows, np.flatnonzero(counted), *arguments)
        few = rows.indptr[-1] - rows.indptr[0] < passes.SHARED
        threads = ONE_THREAD if few else opened_threads()
        parts = passes.columns(rows, min(threads.number - 1, COLUMN_PARTS))
        threads.work(lambda task: task(), [scan, *(partial(add, *part) for part in parts)])
        if (squares := scan_sums.sq_columns) is not None and len(squares):
            kernels.gram_diagonal(rows, costs(targets.signs, targets.delta2), 0.0, squares)
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
    scale: float
    """s₀, around which the least primal is looked for"""
    threshold: float = -math.inf
    """rows with y·a ≤ threshold or a count are violators"""
    b: float = 1.0
    """counts to a unit of dual"""
    from_slacks: bool = False
    """whether counts are made from the slacks, and not given"""
    loss: Loss = SQUARED_HINGE
    free: float = 0.0
    """ρ of a bias that is not penalised"""
    ratio: float = 0.0
    """r of the penalty"""


class Numbered(NamedTuple):
    """Rows that have a count, by rising numbers, and their counts."""

    numbers: NDArray[np.int64]
    counts: NDArray[np.int32]


class Violators(NamedTuple):
    """The number of a block's violators; positions and targets of those for which there is room,
    the first ones."""

    rows: int
    positions: NDArray[np.int64]
    targets: Targets


class PartialSums(NamedTuple):
    """What a request finds in a block: its sums; counts made from slacks, by position in the block;
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
    counts: Sequence[Counts],
    rooms: Sequence[int] | None = None,
) -> Generator[BlockScan, None, None]:
    """Scan blocks, one after the other: ``chunks``, closed at the end. For each request:
    ``counts`` of every row as the chunks number it, and ``rooms``, bytes of the first violators
    that are wanted, up to one that finds no room (None = none are)."""
    room_of: Sequence[int | None] = [None] * len(requests) if rooms is None else rooms
    scanners = list(map(_Scanner, requests, counts, room_of))
    with closing(chunks):
        for chunk in chunks:
            sums = [scanner.scan(chunk) for scanner in scanners]
            violators = [part.violators.positions for part in sums if part.violators is not None]
            positions = np.unique(np.concatenate([np.zeros(0, np.int64), *violators]))
            held = RowStore()
            if len(positions):
                held.add(chunk.rows, positions, positions, chunk.squares[positions], sys.maxsize)
            yield BlockScan(
                len(chunk),
                chunk.nonzeros,
                tuple(sums),
                positions,
                held.first(len(held)),
            )


class _Scanner:
    """Scan block after block for one request; ``room`` is for the violators of all blocks."""

    def __init__(self, request: ScanRequest, counts: Counts, room: int | None) -> None:
        self._request, self._counts, self._room = request, counts, room
        self._frozen = Frozen(
            request.w,
            request.bias,
            request.scale,
            request.threshold,
            request.loss,
            request.b,
            request.free,
            request.ratio,
        )

    def scan(self, chunk: Chunk) -> PartialSums:
        request, rows, frozen = self._request, chunk.rows, self._frozen
        targets = request.targets(chunk)
        counts = self._counts_of(rows, targets)
        marks = frozen.scan(rows, targets, counts, request.rho)
        support = np.flatnonzero(counts)
        numbered = Numbered(support, counts[support]) if request.from_slacks else None
        sums = frozen.scan_sums.take_block(rows, counts)
        return PartialSums(sums, numbered, self._violators(rows, targets, marks))

    def _counts_of(self, rows: Rows, targets: Targets) -> NDArray[np.int32]:
        request = self._request
        if not request.from_slacks:
            return self._counts.take(targets.numbers)
        v = np.append(self._frozen.w, request.bias)
        margins = margins_at(rows, targets, request.rho, v, request.scale)
        return counts_of_slacks(request.loss, margins, targets, request.b)

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


def margins_at(
    rows: Rows, targets: Targets, rho: float, v: NDArray[np.float64], scale: float = 1.0
) -> NDArray[np.float64]:
    """Return m_k of every row at weights ``scale`` · v, augmented, shape (rows,)."""
    return less_t(scale * passes.margins(rows, targets.signs, rho, v), targets.t)


def counts_of_slacks(
    loss: Loss, margins: NDArray[np.float64], targets: Targets, b: float
) -> NDArray[np.int32]:
    """c_k = ⌊b α_k + ½⌋ with α_k = −C_k φ'(m_k), see ``round_counts``; 0 for rows left out.

    At the optimum of P, with b → ∞, these are b times the dual solution. ``margins`` : m_k, finite.

    >>> signs, delta2 = np.array([1, -1, 0], np.int8), np.array([0.5, 0.5, 1.0])
    >>> rows = Targets(np.arange(3), signs, delta2, np.zeros(3))
    >>> counts_of_slacks(SQUARED_HINGE, np.array([0.7, 2.0, -6.0]), rows, 10.0)
    array([6, 0, 0], dtype=int32)
    """
    return counts_of_slopes(loss, losses.slopes(loss, margins), targets, b)


def counts_of_slopes(
    loss: Loss, slopes: NDArray[np.float64], targets: Targets, b: float
) -> NDArray[np.int32]:
    """Return ``counts_of_slacks`` of any slopes −φ' in the domain of φ*."""
    with np.errstate(over="ignore"):
        cost = costs(targets.signs, targets.delta2)
        return round_counts(cost * slopes, b, loss.most * cost, balanced=loss.numbers)
