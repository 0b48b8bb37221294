"""Schedules of a sweep: which candidates are fitted how far in each iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.solver.stages import Stage, b_scale, choose_b, plan
from streamtron.sweeps.trial import Trial, check_metric, ranked

FACTOR = 4.0
"""Ratio of the tolerances of two iterations of successive halving."""
LOOSEST = 0.5
"""Relative duality gap of the first iteration of successive halving, at most."""
TIGHTEST = 1e-3
"""Relative duality gap of its last iteration but one, at least."""
BRIEF = 2
"""Full epochs of a stage that auto leaves early, at most: one, and one whose scan finds the
bracket."""
DIGITS = 6
"""Significant digits of a chosen b: few enough to be typed into ``fit``."""

PRUNED_BY_RANK = "pruned by rank"
"""Halving dropped the candidate: others have the higher metric at the same tolerance."""
PRUNED_BY_BOUND = "pruned by bound"
"""The two-stage procedure dropped the candidate: another's optimum is more accurate than its own
on the validation rows. Its model may still be better than those that the fits end with."""

Decision = tuple[list[int], Mapping[int, str]]
"""Candidates that go on after an iteration, and those that are dropped → why."""


@dataclass(frozen=True, slots=True)
class Halving:
    """Successive halving (Karnin et al., 2013), with the tolerance as the resource.

    After each iteration but the ``last``, whose tolerances are ever tighter, the better half by
    ``metric`` goes on; the last one has the candidates' own tolerance.
    """

    last: int
    metric: str

    def settings(self, iteration: int, candidate: Settings, earlier: Trial | None) -> Settings:
        """Return a candidate's settings in an iteration, given its trial in the one before."""
        if (steps := self.last - iteration) == 0:
            return candidate
        return candidate.but(tol=max(candidate.tol, TIGHTEST) * FACTOR**steps)

    def may_end(self, iteration: int) -> bool:
        """Return whether a trial of the iteration can be the best of all."""
        return iteration == self.last

    def decide(self, iteration: int, trials: Sequence[Trial]) -> Decision:
        """Decide which candidates go on after an iteration that is not the last, given the latest
        trials of all that are not dropped."""
        ranking = [trial.candidate for trial in ranked(trials, self.metric)]
        half = -(-len(ranking) // 2)
        return sorted(ranking[:half]), dict.fromkeys(ranking[half:], PRUNED_BY_RANK)


def halving_steps(settings: Settings, candidates: int) -> int:
    """Return the number of iterations of successive halving before the last: enough to leave one
    candidate, or as many as fit between ``tol`` and ``LOOSEST``.

    >>> halving_steps(Settings(tol=0.01), 16), halving_steps(Settings(tol=0.001), 3)
    (2, 2)
    """
    tolerance = max(TIGHTEST, settings.tolerance)
    steps = 0
    while 2**steps < candidates and tolerance * FACTOR ** (steps + 1) <= LOOSEST:
        steps += 1
    return steps


@dataclass(frozen=True, slots=True)
class TwoStage:
    """One iteration a stage: the first for all candidates, the next for those worth it.

    Each stage begins anew at a = 0, with b from the bracket that the stage before has proven. A
    candidate whose certificate meets the tolerance stops and may be the best. One whose optimum is
    at most less accurate than another's is at least is dropped.
    """

    last: int

    def settings(self, iteration: int, candidate: Settings, earlier: Trial | None) -> Settings:
        """See ``Halving``.

        >>> stages = [TwoStage(1).settings(0, Settings(stage=x), None) for x in ("1,0.1", "auto")]
        >>> [(settings.stage, settings.max_epochs) for settings in stages]
        [('1', 100), ('1', 2)]
        """
        stage, most = plan(candidate)[iteration], candidate.max_epochs
        b = stage.b_relative
        if b is None and stage.epsilon < 1.0 and earlier and earlier.radius:
            upper_bound = earlier.certificate["upper_bound"]
            b = bracketed_b(stage, candidate, earlier.radius, upper_bound)
        name = "ascent" if stage.ascent else repr(stage.epsilon).removesuffix(".0")
        most = min(most, BRIEF) if stage.brief else most
        return candidate.but(stage=name, b=None if b is None else (b,), max_epochs=most)

    def may_end(self, iteration: int) -> bool:
        """See ``Halving``."""
        return True

    def decide(self, iteration: int, trials: Sequence[Trial]) -> Decision:
        """See ``Halving``."""
        bar = max((trial.at_optimum[0] or 0.0 for trial in trials), default=0.0)
        running = [trial for trial in trials if trial.iteration == iteration and not trial.met]
        dropped = {
            trial.candidate: PRUNED_BY_BOUND
            for trial in running
            if trial.at_optimum[1] is not None and trial.at_optimum[1] < bar
        }
        return [trial.candidate for trial in running if trial.candidate not in dropped], dropped


def bracketed_b(
    stage: Stage, settings: Settings, radius: float, upper_bound: float | None
) -> float:
    """Return b/R^(1+ε) (b/R² for steps) of a stage at ε < 1 from R and a proven upper bound, to
    ``DIGITS`` digits; see ``choose_b``.

    >>> bracketed_b(Stage(0.1), Settings(), 1.0, 0.01)
    0.0234977
    """
    b = choose_b(stage, settings, radius**2, upper_bound)
    return float(f"{b / b_scale(stage.epsilon, settings, radius**2):.{DIGITS}g}")


Schedule = Halving | TwoStage
"""The procedure of a sweep, which ends after its ``last`` iteration, or when no candidate goes on;
without halving and two-stage it has one iteration."""


def schedule_of(
    settings: Settings,
    candidates: Sequence[Settings],
    metric: str,
    *,
    halving: bool,
    two_stage: bool,
) -> Schedule:
    """Return the schedule for candidates that share these settings.

    Refuse settings, or a metric, that the procedure cannot handle, by a SettingsError.
    """
    check_metric(metric, candidates)
    stages = min(len(plan(candidate)) for candidate in candidates)
    losses = [candidate.loss for candidate in candidates if candidate.loss != Settings().loss]
    penalties = [candidate.penalty for candidate in candidates if candidate.ratio]
    of_paper = "two-stage goes through the paper's stages, which are for the"
    refusals = (
        (halving and two_stage, "halving and two-stage each say which candidates go on: give one."),
        (
            halving and settings.faithful,
            "halving stops early at loose tolerances, faithful stops at none: give one.",
        ),
        (
            two_stage and losses,
            f"{of_paper} squared hinge, and the loss is {', '.join(losses[:1])}: leave one out.",
        ),
        (
            two_stage and penalties,
            f"{of_paper} penalty l2, and it is {', '.join(penalties[:1])}: leave one out.",
        ),
        (
            two_stage and stages < 2,
            f"two-stage goes from stage to stage, and there is one, {settings.stage}: give --stage "
            "1,0.1, or leave it to auto.",
        ),
        (
            two_stage and settings.faithful,
            "two-stage stops candidates that are certified, faithful goes on: give one.",
        ),
        (
            two_stage and metric != "accuracy",
            f"two-stage goes by what the accuracy can be, and metric is {metric}: leave one out.",
        ),
        (
            two_stage and settings.one_vs_rest,
            "two-stage is for two classes, and multiclass or multilabel is given: leave one out.",
        ),
    )
    for is_refused, sentence in refusals:
        if is_refused:
            raise SettingsError(sentence)
    if two_stage:
        return TwoStage(stages - 1)
    return Halving(halving_steps(settings, len(candidates)) if halving else 0, metric)
