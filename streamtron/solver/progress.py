"""What a learner has done so far: its stages, its readings, the best weights and their proof."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Certificate, zero_columns
from streamtron.core.config import Settings
from streamtron.core.scan_sums import ScanSums
from streamtron.core.text import BOUNDS

Vector = NDArray[np.float64]

PHASES = ("waiting", "scanning", "solving")
"""What the seconds of training are spent on: rows that are not there yet; scans; visits and
Newton's method."""

KEPT_BY_NEWTON, KEPT_BY_VISITS = 0.8, 0.5
"""The part of the memory budget that rows keep after their buffer was solved by Newton's method,
and at most after it was visited more than once more. Else all rows make room for others."""

PAPER = ("directional_margin", "paper_upper_bound", "f_est", "direct_fraction")


@dataclass(slots=True)
class StageReport:
    """One stage's figures; ``None`` where a figure does not apply.

    ``bounds`` are those of the paper, where its procedure has trained: γ'_d as
    ``directional_margin``, ``paper_upper_bound``, ``f_est`` and ``direct_fraction``.
    """

    epsilon: float | str
    variant: str
    b: float | None = None
    b_relative: float | None = None
    full_epochs: int = 0
    mini_epochs: int = 0
    newton_steps: int = 0
    updates: int = 0
    upper_bound: float | None = None
    bounds: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(PAPER))
    stop_reason: str = ""
    seconds: float = 0.0
    _began: float = field(default_factory=time.perf_counter)
    _updates_before: int = 0

    @property
    def name(self) -> str:
        """``"1"``, ``"0.1"`` … or ``"ascent"``."""
        return self.epsilon if isinstance(self.epsilon, str) else f"{self.epsilon:g}"

    def restart_clock(self) -> None:
        """Count seconds from now on: the report comes from another process."""
        self._began = time.perf_counter() - self.seconds

    def end(
        self, stop_reason: str, updates: int, certificate: Certificate | None, radius: float
    ) -> None:
        """Close the report after so many updates in all; ``radius`` : R."""
        self.stop_reason, self.updates = stop_reason, updates - self._updates_before
        self.seconds = time.perf_counter() - self._began
        if self.b is not None and isinstance(self.epsilon, float):
            exponent = 1.0 + self.epsilon if self.variant == "length" else 2.0
            self.b_relative = self.b / radius**exponent
        if certificate is not None:
            self.upper_bound = certificate.upper_bound

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the report file has them."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        last = {name: plain.pop(name) for name in ("bounds", "stop_reason", "seconds")}
        plain |= last.pop("bounds") | last
        infinite = [k for k, v in plain.items() if isinstance(v, float) and not math.isfinite(v)]
        plain |= dict.fromkeys(infinite)
        return {name: value for name, value in plain.items() if name[0] != "_"}


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
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "seconds"}
        return {**plain, "seconds": self.seconds} if timed else plain


@dataclass(slots=True)
class Progress:
    """What a learner has done so far."""

    reports: list[StageReport] = field(default_factory=list)
    finished: str | None = None
    """why the run has ended; None while it goes on"""
    reading: int = 0
    """the number of the current reading"""
    readings: int = 0
    """readings completed"""
    full_epochs: int = 0
    mini_epochs: int = 0
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
    _began: float = field(default_factory=time.perf_counter)

    def read_clock(self) -> float:
        """Update ``seconds`` and return them."""
        self.seconds = time.perf_counter() - self._began
        return self.seconds

    def restart_clock(self, seconds: float) -> None:
        """Count on from so many seconds: the state comes from another process or run."""
        self._began = time.perf_counter() - seconds

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
        proven, seconds = certificate is not None, self.read_clock()
        self.history.append(
            ReadingBounds(
                self.readings, lower, upper, gap, proven, seconds, active_rows, max(0, steps)
            )
        )

    def finish(self, reason: str | None) -> None:
        """End the run for a reason; None = it goes on."""
        self.finished = reason

    def begin_stage(
        self, name: float | str, settings: Settings, updates: int, b: float | None = None
    ) -> None:
        """Begin a stage after so many updates; ``name`` : ascent, or the paper's ε, with its b."""
        self.gained = [0.0, 0.0]
        self.reports.append(StageReport(name, settings.variant, b, _updates_before=updates))

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
        self.full_epochs += 1
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
        self.mini_epochs += mini_epochs
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

    def begin_again(self, settings: Settings, updates: int) -> None:
        """Forget what was done before the rows changed, and why the run had ended."""
        self.finished, self.primal = None, math.inf
        self.full_epochs = self.readings = self.mini_epochs = self.visited = 0
        self.phases = dict.fromkeys(PHASES, 0.0)
        self.reports, self.history, self.told = [], [], [0, updates, 0]
        self.begin_stage("ascent", settings, updates)
        self.restart_clock(0.0)


class Average:
    """The mean of vectors, the k-th weighted by k: later ones are nearer the optimum, as in
    averaged gradient descent (Shamir and Zhang, ICML 2013)."""

    def __init__(self) -> None:
        self.total = np.zeros(0)
        self.number = 0

    def add(self, v: Vector) -> Vector:
        """Add a vector; returns the mean so far."""
        self.number += 1
        self.total = self.number * v + (self.total if self.number > 1 else 0.0)
        return self.total / (self.number * (self.number + 1) // 2)


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
    average: Average = field(default_factory=Average)
    """of what blocks of rows left since the last scan"""
    gap_before: float = math.inf
    """the relative duality gap of the scan before the last; ∞ before the second"""
    marks: NDArray[np.uint8] | None = None
    """of the columns that are proven to weigh 0 at the optimum; None before a scan, and once the
    run has ended: its rows may change then"""

    def take(self, w: Vector, bias: float, proof: Certificate) -> None:
        """Keep scanned weights if their P is the least so far, and what is proven of the best."""
        known, self.certificate = self.certificate, proof
        self.gap_before = math.inf if known is None else known.relative_duality_gap
        if known is None or proof.primal <= known.primal:
            self.w, self.bias = w, bias
        else:
            self.certificate = replace(proof, primal=known.primal)

    def take_zeros(self, scan_sums: ScanSums) -> None:
        """Add the columns of which the scan just taken proves that they weigh 0 at the optimum."""
        proof, known = self.certificate, self.marks
        assert proof is not None
        self.marks = zero_columns(scan_sums, proof.primal, proof.dual).view(np.uint8)
        if known is not None:
            self.marks |= known
        self.certificate = replace(proof, zero_columns=len(self.zeros))

    @property
    def zeros(self) -> NDArray[np.int64]:
        """Columns that are proven to weigh 0 at the optimum, rising: no solve moves them."""
        return np.flatnonzero(() if self.marks is None else self.marks)

    def propose(self, v: Vector) -> None:
        """Have the next scan certify augmented weights."""
        self.candidate = v

    def take_candidate(self) -> Vector | None:
        """Take out the candidate, and begin a new average."""
        candidate, self.candidate, self.average = self.candidate, None, Average()
        return candidate

    def discard(self) -> None:
        """Set the weights to 0, of which nothing is proven."""
        self.w, self.bias = np.zeros(len(self.w)), 0.0
        self.forget_proof()

    def forget_proof(self) -> None:
        """Forget what is proven: the rows, or the weights, are no longer those."""
        self.certificate, self.gap_before = None, math.inf

    @property
    def augmented(self) -> Vector:
        """(w, w_bias), shape (columns + 1,)."""
        return np.append(self.w, self.bias)

    @property
    def finite(self) -> bool:
        """Whether all weights are finite."""
        return math.isfinite(kernels.square_sum(self.w) + self.bias * self.bias)
