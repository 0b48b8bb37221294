"""What a learner has done so far: its stages, its readings, the best weights and their proof."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.certificate import Certificate, zero_columns
from streamtron.core.rows import Vector
from streamtron.core.text import BOUNDS
from streamtron.solver.scan import Frozen

PHASES = ("waiting", "scanning", "solving")
"""What the seconds of training are spent on: rows that are not there yet; scans; visits and
Newton's method."""

KEPT_BY_NEWTON, KEPT_BY_VISITS = 0.8, 0.5
"""The part of the memory budget that rows keep after their buffer was solved by Newton's method,
and at most after it was visited more than once more. Else all rows make room for others."""


@dataclass(slots=True)
class StageReport:
    """What dual ascent has done, or a stage of the paper's procedure.

    ``paper`` : figures of such a stage, see ``paper``; empty for dual ascent.
    """

    paper: dict[str, Any] = field(default_factory=dict)
    full_epochs: int = 0
    mini_epochs: int = 0
    newton_steps: int = 0
    updates: int = 0
    upper_bound: float | None = None
    stop_reason: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """``"ascent"``, or ε of a stage: ``"1"``, ``"0.1"``."""
        return f"{self.paper['epsilon']:g}" if self.paper else "ascent"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as the report file has them."""
        plain = asdict(self)
        return {**plain.pop("paper"), **plain}


@dataclass(frozen=True, slots=True)
class ReadingBounds:
    """Bounds on γ_d after a reading, and the solution of the rows in memory that follows it.

    Where not ``proven``, ``upper`` is 1/√(2 D) of the running weights, an estimate, and ``lower``
    is 1/√(2 P) of the rows in memory, if these are all. ``seconds`` are those since training began;
    ``active_rows`` are in memory, and ``newton_steps`` were made since the reading before.
    """

    reading: int
    lower: float | None
    upper: float | None
    gap: float | None
    proven: bool
    seconds: float
    active_rows: int = 0
    newton_steps: int = 0

    def to_dict(self, *, timed: bool = True) -> dict[str, Any]:
        """Plain values; without the seconds they depend on the data and the settings alone."""
        plain = asdict(self)
        return plain if timed else {name: plain[name] for name in plain if name != "seconds"}


ENDS = ("certified", "converged", "epoch limit")
"""Why a run has ended."""


@dataclass(slots=True)
class Progress:
    """What a learner has done so far."""

    reports: list[StageReport] = field(default_factory=lambda: [StageReport()])
    """of its stages; dual ascent is one"""
    finished: str | None = None
    """why the run has ended, one of ENDS; None while it goes on"""
    reading: int = 0
    """the number of the current reading"""
    readings: int = 0
    """readings completed"""
    primal: float = math.inf
    """P over all rows, as the last solve in memory left it; ∞ where not all are in memory"""
    history: list[ReadingBounds] = field(default_factory=list)
    """of every reading, in order"""
    seconds: float = 0.0
    """since training began, when the clock was last read"""
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """seconds spent in each of PHASES"""
    visited: int = 0
    """nonzeros of the rows visited"""
    gained: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """the dual that the first visits of rows in this reading have gained, and the nonzeros that
    were visited and read for it"""
    kept: float = KEPT_BY_NEWTON
    """the part of the memory budget that rows keep after the last buffer"""
    crawls: bool = False
    """whether a buffer of this reading was left to Newton's method"""
    visits: bool = True
    """whether the current reading visits rows, or scans them only"""
    told: list[int] = field(default_factory=lambda: [0, 0, 0])
    """stages that have ended, updates and mini-epochs, when ``done_since`` was last asked"""
    _read: float = field(default_factory=time.perf_counter)

    @property
    def full_epochs(self) -> int:
        """Full epochs of all stages."""
        return sum(report.full_epochs for report in self.reports)

    @property
    def mini_epochs(self) -> int:
        """Mini-epochs of all stages."""
        return sum(report.mini_epochs for report in self.reports)

    def read_clock(self) -> float:
        """Update ``seconds`` and return them."""
        clock = time.perf_counter()
        self.seconds, self._read = self.seconds + clock - self._read, clock
        return self.seconds

    def record(
        self, certificate: Certificate | None, upper: float | None, active_rows: int
    ) -> None:
        """Add the reading to the history, with the bounds of a certificate, or estimates."""
        lower = 1.0 / math.sqrt(2.0 * self.primal) if 0.0 < self.primal < math.inf else None
        gap = None if lower is None or not upper else max(0.0, 1.0 - (lower / upper) ** 2)
        if certificate is not None:
            plain = certificate.to_dict()
            lower, upper, gap = (plain[name] for name in BOUNDS)
        steps = sum(report.newton_steps for report in self.reports)
        steps -= sum(reading.newton_steps for reading in self.history)
        bounds, proven = (lower, upper, gap), certificate is not None
        self.history.append(
            ReadingBounds(self.readings, *bounds, proven, self.read_clock(), active_rows, steps)
        )

    def finish(self, reason: str | None) -> None:
        """End the run for a reason; None = it goes on."""
        self.finished = reason

    def end_stage(self, stop_reason: str, updates: int, certificate: Certificate | None) -> None:
        """Close the report of the current stage; ``updates`` : of all stages."""
        *earlier, report = self.reports
        report.stop_reason = stop_reason
        report.updates = updates - sum(stage.updates for stage in earlier)
        report.seconds = self.read_clock() - sum(stage.seconds for stage in earlier)
        if certificate is not None:
            report.upper_bound = certificate.upper_bound

    def begin_reading(self, number: int, *, visits: bool) -> None:
        """Begin a reading."""
        self.reading, self.visits = number, visits
        self.gained, self.kept, self.crawls = [0.0, 0.0], KEPT_BY_NEWTON, False

    def done_since(self, updates: int) -> tuple[list[StageReport], int, int]:
        """Return the stages, the updates and the mini-epochs since this was last asked, ``updates``
        being those of all readings."""
        ended, updates_before, mini_epochs_before = self.told
        stages = self.reports[ended:]
        ended += sum(bool(stage.stop_reason) for stage in stages)
        self.told = [ended, updates, self.mini_epochs]
        return stages, updates - updates_before, self.mini_epochs - mini_epochs_before

    def end_reading(self, *, full_epoch: bool) -> None:
        """Count a reading whose rows have all been taken; ``full_epoch`` : it has trained."""
        self.readings += 1
        if full_epoch:
            self.count_full_epoch()

    def count_full_epoch(self) -> None:
        """Count a full epoch."""
        self.reports[-1].full_epochs += 1

    def count_first_visits(self, gain: float, nonzeros: int) -> None:
        """Count the dual that rows have gained as they were read."""
        self.visited += nonzeros
        self.gained[0] += gain
        self.gained[1] += 2.0 * nonzeros

    @property
    def fresh_gain(self) -> float:
        """The dual that first visits have gained, for a nonzero visited or read; 0 without any."""
        gain, cost = self.gained
        return gain / cost if cost else 0.0

    def count_work(self, *, mini_epochs: int = 0, newton_steps: int = 0, visited: int = 0) -> None:
        """Count mini-epochs, steps of Newton's method, and nonzeros visited."""
        self.visited += visited
        self.reports[-1].mini_epochs += mini_epochs
        self.reports[-1].newton_steps += newton_steps

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds spent inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] += time.perf_counter() - began


@dataclass(slots=True)
class BestWeights:
    """The weights of the least primal so far, and their proof."""

    w: Vector
    """as they were scanned: the scan's own array"""
    bias: float = 0.0
    certificate: Certificate | None = None
    """the best lower bound so far with the last upper bound; None before a scan"""
    candidate: Vector | None = None
    """augmented weights that the next scan certifies; None = the running ones"""
    total: Vector = field(default_factory=lambda: np.zeros(0))
    """the sum of the weights that buffers have left since the last scan, the k-th times k"""
    averaged: int = 0
    """how many they are"""
    gap_before: float = math.inf
    """the relative duality gap of the scan before the last; ∞ before the second"""
    marks: NDArray[np.uint8] | None = None
    """of the columns that are proven to weigh 0 at the optimum; None before a scan, and once the
    run has ended: its rows may change then"""

    def take(self, frozen: Frozen) -> None:
        """Keep the weights of a complete scan if their P is the least so far; keep its proof, and
        the columns that it proves to weigh 0 at the optimum."""
        known, proof = self.certificate, frozen.certificate()
        self.gap_before = math.inf if known is None else known.relative_duality_gap
        if known is None or proof.primal <= known.primal:
            self.w, self.bias = frozen.w, frozen.bias
        else:
            proof = replace(proof, primal=known.primal)
        if frozen.scan_sums.ratio:
            marks = zero_columns(frozen.scan_sums, proof.primal, proof.dual).view(np.uint8)
            self.marks = marks if self.marks is None else marks | self.marks
            proof = replace(proof, zero_columns=len(self.zeros))
        self.certificate = proof

    @property
    def zeros(self) -> NDArray[np.int64]:
        """Columns that are proven to weigh 0 at the optimum, rising: no solve moves them."""
        return np.flatnonzero(() if self.marks is None else self.marks)

    def propose(self, v: Vector) -> None:
        """Have the next scan certify augmented weights."""
        self.candidate = v

    def average(self, v: Vector) -> None:
        """Have the next scan certify the mean of what buffers have left, the k-th weighted by k:
        later ones are nearer the optimum, as in averaged gradient descent (Shamir and Zhang, ICML
        2013)."""
        self.averaged += 1
        self.total = self.averaged * v + (self.total if self.averaged > 1 else 0.0)
        self.candidate = self.total / (self.averaged * (self.averaged + 1) // 2)

    def take_candidate(self) -> Vector | None:
        """Take out the candidate, and begin a new average."""
        candidate, self.candidate = self.candidate, None
        self.total, self.averaged = np.zeros(0), 0
        return candidate

    def discard(self) -> None:
        """Set the weights to 0, and forget the proof."""
        self.w, self.bias = np.zeros(len(self.w)), 0.0
        self.forget_proof()

    def forget_proof(self) -> None:
        """Forget the proof: it is of other rows, or of other weights."""
        self.certificate, self.gap_before = None, math.inf

    @property
    def augmented(self) -> Vector:
        """(w, w_bias), shape (columns + 1,)."""
        return np.append(self.w, self.bias)
