"""Rungs of a sweep: what all candidates are fitted to first, and which of them go on from there.

What is decided, is decided when all trials of a rung are there: which of them came first, and from
which worker, cannot matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.solver.stages import Stage, b_scale, choose_b, plan
from streamtron.sweeps.trial import Trial, ranked

LOOSER = 4.0
"""Between two rungs of successive halving the tolerance becomes so many times tighter …"""

LOOSEST = 0.5
"""… from this gap at most on …"""

TIGHTEST = 1e-3
"""… but a rung before the last asks for no more than this, however tight the last one is."""

BRIEF = 2
"""Full epochs at most of a stage that auto leaves early: one and its mini-epochs, and one more
whose scan finds the bracket."""

DIGITS = 6
"""Significant digits of a chosen b: few enough to be typed into ``fit``."""

PRUNED_BY_RANK = "pruned by rank"
"""Why halving drops a candidate: others have the higher metric at the same tolerance."""

PRUNED_BY_BOUND = "pruned by bound"
"""Why the two-stage procedure does: another's optimum is more accurate than its own on the rows
that they are measured on. Of the models that the fits end with, this one may still be better."""


class Decision(NamedTuple):
    """What comes after a rung."""

    on: list[int]
    """candidates that are fitted on the next one"""
    dropped: Mapping[int, str]
    """candidates that are not → why"""


class Rungs(Protocol):
    """How a sweep goes from rung to rung."""

    def settings(self, rung: int, candidate: Settings, before: Trial | None) -> Settings:
        """What a candidate is fitted with on a rung; ``before`` is its trial on the one before."""
        ...

    def ends(self, rung: int, trial: Trial) -> bool:
        """Whether a candidate goes no further than this rung and is not dropped there, whatever
        the others come to: only then may it be the best with this trial."""
        ...

    def after(self, rung: int, trials: Sequence[Trial]) -> Decision:
        """Who goes on and who is dropped, ``trials`` being those of all that are not dropped yet;
        where nobody goes on, the sweep ends."""
        ...


def rungs_of(
    candidates: Sequence[Settings], metric: str, *, halving: bool, two_stage: bool
) -> Rungs:
    """One rung, or those of the procedure that is asked for.

    Raises
    ------
    SettingsError : halving and two-stage at once, or either with candidates, or a metric, that it
        is not for.
    """
    if halving and two_stage:
        raise SettingsError(
            "halving and two-stage both say which candidates go on, and not the same: give one."
        )
    if two_stage:
        _check_two_stage(candidates, metric)
        return TwoStage(len(plan(candidates[0])))
    if halving and any(one.faithful for one in candidates):
        raise SettingsError(
            "halving stops early at loose tolerances, and faithful is the paper's procedure, which "
            "stops at none: give one."
        )
    return Halving(looser_rungs(candidates) if halving else 0, metric)


def without_idle_outcomes(
    trials: Sequence[Trial], rungs: Rungs, rung: int, metric: str
) -> list[Trial]:
    """Trials of some of a rung's candidates, without the outcomes that nobody is going to ask for:
    the best of all is the best of those beside it, so only that one of those which end here keeps
    its outcome. An outcome has 4 bytes a row, which need not travel from a worker."""
    best = ranked((trial for trial in trials if rungs.ends(rung, trial)), metric)[:1]
    return [trial if trial in best else replace(trial, outcome=None) for trial in trials]


# --- successive halving --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Halving:
    """So many rungs at ever tighter tolerances, each but the last left by the better half, then
    the last; with 0 of them, just one rung."""

    steps: int
    metric: str

    def settings(self, rung: int, candidate: Settings, before: Trial | None) -> Settings:
        """See ``Rungs``."""
        return at_rung(candidate, self.steps - rung)

    def ends(self, rung: int, trial: Trial) -> bool:
        """See ``Rungs``."""
        return rung == self.steps

    def after(self, rung: int, trials: Sequence[Trial]) -> Decision:
        """See ``Rungs``."""
        if rung == self.steps:
            return Decision([], {})
        ranking = [trial.candidate for trial in ranked(trials, self.metric)]
        half = -(-len(ranking) // 2)
        return Decision(sorted(ranking[:half]), dict.fromkeys(ranking[half:], PRUNED_BY_RANK))


def looser_rungs(candidates: Sequence[Settings]) -> int:
    """Rungs of successive halving before the last one.

    So many that one candidate is left, or as there is room for between the loosest ``tol`` and
    ``LOOSEST``.

    Examples
    --------
    >>> looser_rungs([Settings(tol=0.01)] * 16), looser_rungs([Settings(tol=0.001)] * 3)
    (2, 2)
    """
    tolerance = max(TIGHTEST, *(one.tolerance for one in candidates))
    rungs = 0
    while 2**rungs < len(candidates) and tolerance * LOOSER ** (rungs + 1) <= LOOSEST:
        rungs += 1
    return rungs


def at_rung(settings: Settings, before_last: int) -> Settings:
    """A candidate's settings so many rungs before the last: with a looser ``tol``.

    Examples
    --------
    >>> [at_rung(Settings(tol=0.01), rung).tol for rung in (2, 1, 0)]
    [0.16, 0.04, 0.01]
    """
    if before_last == 0:
        return settings
    return settings.but(tol=max(settings.tol, TIGHTEST) * LOOSER**before_last)


# --- the two-stage procedure ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TwoStage:
    """A rung a stage: all candidates through the first one, those that are worth it through the
    next, begun anew at a = 0 with b from the bracket that the one before has proven.

    A candidate whose certificate meets the tolerance stops where it is, and may be the best. One
    whose optimum is surely less accurate than another's is dropped, see ``pruned_by_bound``.
    """

    stages: int

    def settings(self, rung: int, candidate: Settings, before: Trial | None) -> Settings:
        """See ``Rungs``."""
        return at_stage(candidate, rung, before)

    def ends(self, rung: int, trial: Trial) -> bool:
        """See ``Rungs``."""
        return rung + 1 == self.stages or met(trial)

    def after(self, rung: int, trials: Sequence[Trial]) -> Decision:
        """See ``Rungs``."""
        if rung + 1 == self.stages:
            return Decision([], {})
        running = [one.candidate for one in trials if one.rung == rung and not met(one)]
        worse = pruned_by_bound(trials).intersection(running)
        on = [number for number in running if number not in worse]
        return Decision(on, dict.fromkeys(sorted(worse), PRUNED_BY_BOUND))


def at_stage(settings: Settings, number: int, before: Trial | None) -> Settings:
    """A candidate's settings for one of its stages alone, ``before`` being its trial in the one
    before.

    Examples
    --------
    >>> first = at_stage(Settings(stage="1,0.1"), 0, None)
    >>> first.stage, first.b, first.max_epochs
    ('1', None, 100)
    >>> brief = at_stage(Settings(), 0, None)  # auto leaves it early
    >>> brief.stage, brief.max_epochs
    ('1', 2)
    """
    stage = plan(settings)[number]
    b = stage.b_relative
    if b is None and stage.epsilon < 1.0 and before and before.radius:
        b = bracketed_b(stage, settings, before.radius, before.certificate["upper_bound"])
    epochs = min(settings.max_epochs, BRIEF) if stage.brief else settings.max_epochs
    name = "ascent" if stage.ascent else repr(stage.epsilon).removesuffix(".0")
    return settings.but(stage=name, b=None if b is None else (b,), max_epochs=epochs)


def bracketed_b(
    stage: Stage, settings: Settings, radius: float, upper_bound: float | None
) -> float:
    """b/R^(1+ε) (b/R² for steps) of a stage at ε < 1 from what has been proven, to ``DIGITS``
    digits; see ``choose_b``.

    Examples
    --------
    >>> bracketed_b(Stage(0.1), Settings(), 1.0, 0.01)
    0.0234977
    """
    b = choose_b(stage, settings, radius**2, upper_bound)
    return float(f"{b / b_scale(stage.epsilon, settings, radius**2):.{DIGITS}g}")


def met(trial: Trial) -> bool:
    """Whether its certificate meets the tolerance."""
    return 0.0 < trial.settings.tolerance >= trial.gap


def pruned_by_bound(trials: Sequence[Trial]) -> set[int]:
    """The candidates whose optimum is at most less accurate than another's is at least."""
    bar = max((least for one in trials if (least := one.at_optimum[0]) is not None), default=0.0)
    return {
        one.candidate for one in trials if (most := one.at_optimum[1]) is not None and most < bar
    }


def _check_two_stage(candidates: Sequence[Settings], metric: str) -> None:
    settings = candidates[0]
    if len({len(plan(one)) for one in candidates}) > 1:
        raise SettingsError(
            "two-stage goes from stage to stage, and at the tolerances of some candidates auto has "
            "other stages than at those of others: give --stage."
        )
    if len(plan(settings)) < 2:
        raise SettingsError(
            f"two-stage goes from stage to stage, and there is one, {settings.stage}: give --stage "
            "1,0.1, or leave it to auto."
        )
    if any(one.faithful for one in candidates):
        raise SettingsError(
            "two-stage stops candidates whose certificate is met, and faithful is the paper's "
            "procedure, which goes on to convergence: give one."
        )
    if metric != "accuracy":
        raise SettingsError(
            f"two-stage drops candidates by what their accuracy can be, and metric is {metric}: "
            "leave one of them out."
        )
    if settings.multiclass or settings.multilabel:
        raise SettingsError(
            "two-stage knows what the accuracy of two classes can be, and multiclass or multilabel "
            "is given: leave one of them out."
        )
