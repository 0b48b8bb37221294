"""What a stage did and what it proved, as the report writes it."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from streamtron.core import theory
from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.solver.stages import Stage


@dataclass(slots=True)
class StageReport:
    """One stage's figures; ``None`` where a figure does not apply.

    ``paper_upper_bound`` is the paper's worst-case bound on γ_d after the run (Remark 1 for
    steps and ε = 1, (sq1) else), ``f_est`` its estimate of γ'_d/γ_d, ``direct_fraction``
    the sharper b t/‖a‖^(1+ε) or b t^(2−ε)/‖a‖²: all three for a stage that began at a = 0 and
    converged.
    """

    epsilon: float | str
    variant: str
    b: float
    b_relative: float | None = None
    full_epochs: int = 0
    mini_epochs: int = 0
    updates: int = 0
    directional_margin: float | None = None
    upper_bound: float | None = None
    paper_upper_bound: float | None = None
    f_est: float | None = None
    direct_fraction: float | None = None
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
        updates: int,
        certificate: Certificate | None,
        *,
        radius: float,
        steps: int | None,
        length: float,
        converged: bool,
    ) -> None:
        """Close the report. ``steps``: t of a stage that began at a = 0, else None."""
        self.stop_reason, self.updates = stop_reason, updates - self._updates_before
        self.seconds = time.perf_counter() - self._began
        epsilon = self.epsilon if isinstance(self.epsilon, float) else 1.0
        by_length = self.variant == "length"
        self.b_relative = self.b / (radius ** (1.0 + epsilon) if by_length else radius**2)
        if certificate is not None:
            self.directional_margin = certificate.directional_margin
            self.upper_bound = certificate.upper_bound
        margin = self.directional_margin
        if not converged or not steps or margin is None or margin <= 0 or self.epsilon == "ascent":
            return
        if by_length:
            self.direct_fraction = theory.direct_fraction_length(self.b, epsilon, steps, length)
            if epsilon <= 1.0:
                self.f_est = theory.f_est_length(radius, self.b, epsilon, steps, margin)
        else:
            self.direct_fraction = theory.direct_fraction_steps(self.b, epsilon, steps, length)
            self.f_est = theory.f_est_steps(radius, self.b, epsilon, steps)
        if epsilon == 1.0 or not by_length:
            self.paper_upper_bound = theory.upper_bound_after_run(radius, self.b, epsilon, steps)
        elif epsilon < 1.0:
            self.paper_upper_bound = theory.upper_bound_after_run_length(
                radius, self.b, epsilon, steps, margin
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the report file has them."""
        plain = {name: value for name, value in asdict(self).items() if not name.startswith("_")}
        return {name: _finite(value) for name, value in plain.items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
