"""The two-stage sweep: the paper's first stage for all candidates, the next for those worth it.

Each stage begins anew at a = 0, with b from the bracket that the stage before has proven. A
candidate whose certificate meets the tolerance stops and may be the best. A candidate is dropped if
its optimum has at most a lower accuracy on the validation rows than another's has at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.solver.paper import b_scale, choose_b
from streamtron.sweeps.trial import Trial

BRIEF = 2
"""Full epochs of the first stage of auto, at most: one, and one whose scan finds the bracket."""

STAGES = "1", "ascent"
"""The stages of auto: ε = 1, which brackets γ_d, and dual ascent."""

DIGITS = 6
"""Significant digits of a chosen b: few enough to be typed into ``fit``."""

PRUNED_BY_BOUND = "pruned by bound"
"""Why a candidate was dropped. Its model may still be better than those that the fits end with."""


def number_of_stages(settings: Settings, candidates: Sequence[Settings], metric: str) -> int:
    """Return the number of stages that all candidates have; refuse candidates without two, or whose
    bounds say nothing of the metric, by a SettingsError."""
    losses = [candidate.loss for candidate in candidates if candidate.loss != Settings().loss]
    penalties = [candidate.penalty for candidate in candidates if candidate.ratio]
    stages = min(len(_stages(candidate)) for candidate in candidates)
    reason = None
    if losses:
        reason = f"is for the squared hinge, and the loss is {losses[0]}"
    elif penalties:
        reason = f"is for the penalty l2, and it is {penalties[0]}"
    elif settings.faithful:
        reason = "stops candidates that are certified, and faithful goes on"
    elif stages < 2:
        reason = f"needs two stages, as in --stage 1,0.1, and there is one, {settings.stage}"
    elif metric != "accuracy":
        reason = f"compares bounds of the accuracy, and metric is {metric}"
    elif settings.many_labels:
        reason = "is for two classes, and multiclass or multilabel is given"
    if reason is not None:
        raise SettingsError(f"two-stage {reason}: leave one of them out.")
    return stages


def stage_settings(number: int, candidate: Settings, earlier: Trial | None) -> Settings:
    """Return a candidate's settings in a stage, given its trial in the stage before.

    >>> stages = [stage_settings(0, Settings(stage=stage), None) for stage in ("1,0.1", "auto")]
    >>> [(settings.stage, settings.max_epochs) for settings in stages]
    [('1', 100), ('1', 2)]
    """
    stage, most = _stages(candidate)[number], candidate.max_epochs
    brief = number == 0 and not candidate.paper
    b = None if candidate.b is None else candidate.b[number]
    if candidate.paper and b is None and float(stage) < 1.0 and earlier and earlier.radius:
        upper_bound = earlier.certificate["upper_bound"]
        b = bracketed_b(float(stage), candidate, earlier.radius, upper_bound)
    return candidate.but(
        stage=stage,
        b=None if b is None else (b,),
        max_epochs=min(most, BRIEF) if brief else most,
    )


def _stages(candidate: Settings) -> tuple[str, ...]:
    """Return the stages of a candidate, in order."""
    if candidate.paper:
        return tuple(repr(epsilon).removesuffix(".0") for epsilon in candidate.paper)
    squared_hinge = candidate.loss == Settings().loss and not candidate.ratio
    return STAGES if candidate.stage == "auto" and squared_hinge else STAGES[1:]


def bracketed_b(
    epsilon: float, settings: Settings, radius: float, upper_bound: float | None
) -> float:
    """Return b/R^(1+ε) (b/R² for steps) of a stage at ε < 1 from R and a proven upper bound, to
    ``DIGITS`` digits; see ``choose_b``.

    >>> bracketed_b(0.1, Settings(), 1.0, 0.01)
    0.0234977
    """
    b = choose_b(epsilon, settings, radius**2, upper_bound)
    return float(f"{b / b_scale(epsilon, settings, radius**2):.{DIGITS}g}")


def pruned(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials, with the reason in those that cannot win.

    ``trials`` : the latest of every candidate. Dropped are candidates that would go on.
    """
    left = [trial for trial in trials if trial.dropped is None]
    bar = max((trial.at_optimum[0] or 0.0 for trial in left), default=0.0)

    def loses(trial: Trial) -> bool:
        most = trial.at_optimum[1]
        return trial.dropped is None and not trial.met and most is not None and most < bar

    return [replace(trial, dropped=PRUNED_BY_BOUND) if loses(trial) else trial for trial in trials]
