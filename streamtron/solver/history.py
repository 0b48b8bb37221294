"""What a stage did and what a reading proved, as the report writes it."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from streamtron.core import theory
from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.solver.stages import Stage
from streamtron.solver.weights import WeightState

CONVERGED = "a full reading found no row to update"
"""Why a stage ends that converges."""

PAPER = ("paper_upper_bound", "f_est", "direct_fraction")


@dataclass(slots=True)
class StageReport:
    """One stage's figures; ``None`` where a figure does not apply.

    ``bounds`` are those of the paper, for a stage that began at a = 0 and converged:
    ``paper_upper_bound`` is its worst-case bound on γ_d after the run (Remark 1 for steps and
    ε = 1, Theorem 2 else), ``f_est`` its estimate of γ'_d/γ_d, ``direct_fraction`` the sharper
    b t/‖a‖^(1+ε) or b t^(2−ε)/‖a‖².
    """

    epsilon: float | str
    variant: str
    b: float
    b_relative: float | None = None
    full_epochs: int = 0
    mini_epochs: int = 0
    newton_steps: int = 0
    updates: int = 0
    directional_margin: float | None = None
    upper_bound: float | None = None
    bounds: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(PAPER))
    stop_reason: str = ""
    seconds: float = 0.0
    _began: float = field(default_factory=time.perf_counter)
    _updates_before: int = 0

    @classmethod
    def begin(cls, stage: Stage, settings: Settings, b: float, updates: int) -> StageReport:
        """The report of a stage that begins now."""
        name = "ascent" if stage.ascent else stage.epsilon
        return cls(name, settings.variant, b, _updates_before=updates)

    def restart_clock(self) -> None:
        """Count seconds from now on: the report comes from another process."""
        self._began = time.perf_counter() - self.seconds

    def end(
        self,
        stop_reason: str,
        running: WeightState,
        certificate: Certificate | None,
        radius: float,
        *,
        from_zero: bool,
    ) -> None:
        """Close the report; ``from_zero`` : whether the stage began at a = 0."""
        self.stop_reason, self.updates = stop_reason, running.updates - self._updates_before
        self.seconds = time.perf_counter() - self._began
        epsilon = self.epsilon if isinstance(self.epsilon, float) else 1.0
        self.b_relative = self.b / radius ** (1.0 + epsilon if self.variant == "length" else 2)
        if certificate is not None:
            self.directional_margin = certificate.directional_margin
            self.upper_bound = certificate.upper_bound
        bounded = stop_reason == CONVERGED and from_zero and self.epsilon != "ascent"
        if bounded and running.steps and (self.directional_margin or 0.0) > 0.0:
            self._bound(radius, epsilon, running.steps, math.sqrt(running.sq_norm))

    def _bound(self, R: float, epsilon: float, t_c: int, length: float) -> None:
        """Set the bounds of the paper, of t_c updates after which ‖a‖ is ``length``."""
        b, margin, bounds = self.b, self.directional_margin or 0.0, self.bounds
        if self.variant == "steps":
            bounds["direct_fraction"] = theory.direct_fraction_steps(b, epsilon, t_c, length)
            bounds["f_est"] = theory.f_est_steps(R, b, epsilon, t_c)
        else:
            bounds["direct_fraction"] = theory.direct_fraction_length(b, epsilon, t_c, length)
        if self.variant == "length" and epsilon <= 1.0:
            after = R, b, epsilon, t_c, margin
            bounds["f_est"] = theory.f_est_length(*after)
            bounds["paper_upper_bound"] = theory.upper_bound_after_run_length(*after)
        if self.variant == "steps" or epsilon == 1.0:
            bounds["paper_upper_bound"] = theory.upper_bound_after_run(R, b, epsilon, t_c)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the report file has them."""
        plain = asdict(self)
        last = {name: plain.pop(name) for name in ("bounds", "stop_reason", "seconds")}
        plain |= last.pop("bounds") | last
        infinite = [k for k, v in plain.items() if isinstance(v, float) and not math.isfinite(v)]
        plain |= dict.fromkeys(infinite)
        return {name: value for name, value in plain.items() if name[0] != "_"}


@dataclass(frozen=True, slots=True)
class ReadingBounds:
    """Bounds on γ_d after a reading, and the solution of the rows in memory that follows it.

    Where not ``proven``, ``upper`` is the running weights' ‖a‖/t, which drifts, and ``lower`` is
    1/√(2 P) of the rows in memory, if these are all. ``seconds`` are those since training began;
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

    @classmethod
    def estimated(
        cls, reading: int, primal: float, upper: float | None, seconds: float
    ) -> ReadingBounds:
        """Bounds of a reading that proves none; ``primal`` is ∞ where P is not known."""
        lower = 1.0 / math.sqrt(2.0 * primal) if 0.0 < primal < math.inf else None
        gap = None if lower is None or not upper else max(0.0, 1.0 - (lower / upper) ** 2)
        return cls(reading, lower, upper, gap, False, seconds)

    def to_dict(self, *, timed: bool = True) -> dict[str, Any]:
        """Plain values; without the seconds they depend on the data and the settings alone."""
        plain = asdict(self)
        seconds = plain.pop("seconds")
        return {**plain, "seconds": seconds} if timed else plain
