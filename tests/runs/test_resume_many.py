"""Candidates of many classes, taken up together at any border, end with the bits of the run that
nothing interrupted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import FileDamaged
from streamtron.runs.learners import Training
from streamtron.solver.checkpoint import Resumed, State
from streamtron.solver.learner import Learner
from streamtron.solver.one_part import train_here as train
from streamtron.solver.one_vs_rest import CandidateClasses, Classes
from streamtron.solver.row_store import Pool
from tests.helpers.checkpoints import KeepsAll, through_a_file
from tests.helpers.learners import PLANS, GrowingSource, bits, classes_that_come_late, source_of
from tests.helpers.sources import ListSource

LABELS = classes_that_come_late()
PRICES = (0.1, 1.0)
OWN_PLANS = {
    "all held": PLANS["all held"],
    "some held": {"active_set": 12_000},  # one ends before the others
    "few held": {"active_set": 6000, "max_epochs": 2},
    "margitron": PLANS["margitron"],
    "sequential": PLANS["sequential"],
}


def candidates_of(plan: dict[str, object], prices: tuple[float, ...] = PRICES) -> list[Settings]:
    return [Settings.from_dict({"max_epochs": 3, **plan, "C": price}) for price in prices]


def classes_of(candidates: list[Settings]) -> tuple[GrowingSource, CandidateClasses]:
    """Classes without a row so far."""
    source, pool = GrowingSource(source_of(LABELS).rows, LABELS, block_rows=16), Pool()
    return source, CandidateClasses([Classes(one, source.labels, None, pool) for one in candidates])


def found(classes: CandidateClasses) -> list[list[tuple[object, ...]]]:
    return [[bits(learner) for learner in each.learners] for each in classes.candidates]


def trained(candidates: list[Settings], checkpointer: KeepsAll) -> list[list[tuple[object, ...]]]:
    source, classes = classes_of(candidates)
    train(source, [], candidates[0], new_classes=classes, checkpointer=checkpointer)
    return found(classes)


def taken_up(state: State, candidates: list[Settings]) -> list[list[tuple[object, ...]]]:
    source, classes = classes_of(candidates)
    held = classes.restore(state)
    there = [learner for each in classes.candidates for learner in each.learners]
    resumed = Resumed(state.reading, state.chunks, held)
    train(source, there, candidates[0], new_classes=classes, resumed=resumed)
    return found(classes)


@pytest.mark.parametrize(
    ("plan", "prices"),
    [
        ("all held", PRICES[:1]), ("all held", PRICES), ("some held", PRICES),
        pytest.param("some held", PRICES[:1], marks=pytest.mark.slow),
        ("margitron", PRICES), pytest.param("sequential", PRICES, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_classes_that_come_late_are_taken_up_at_every_border(
    plan: str, prices: tuple[float, ...], tmp_path: Path
) -> None:
    candidates, checkpointer = candidates_of(OWN_PLANS[plan], prices), KeepsAll()
    whole = trained(candidates, checkpointer)
    assert len(whole) == len(prices)
    born = {len(state.content["learners"]) // len(prices) for state in checkpointer.states}
    assert {0, 1, 3, 4} <= born, "there are borders between the classes' new_classes"
    for state in [
        *checkpointer.states[:15:3],
        *checkpointer.states[15::5],
        *checkpointer.states[-2:],
    ]:
        again = taken_up(through_a_file(state, tmp_path / "c"), candidates)
        assert again == whole, (state.reading, state.chunks)


class KeepsSome(KeepsAll):
    """Wants a border between any two solves, and keeps every so-maniest state; and the first where
    some have finished a reading and others have not."""

    def __init__(self, first: int, step: int) -> None:
        super().__init__()
        self.first, self.step, self.met = first, step, 0
        self.parted = 0

    def checkpoint(self, state: Callable[[], State]) -> None:
        parted = is_parted(state())
        if (parted and not self.parted) or self.met % self.step == self.first:
            super().checkpoint(state)
        self.parted += parted
        self.met += 1

    before_solves = end = checkpoint

    def checkpoint_due(self) -> bool:
        return True


def is_parted(state: State) -> bool:
    """Whether some learners have finished the reading and others have not."""
    fields = [state.fields(number) for number in range(len(state.content["learners"]))]
    unfinished = [one for one in fields if one["progress.finished"] is None]
    return len({one["progress.concluded"] for one in unfinished}) > 1


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("plan", ["all held", pytest.param("few held", marks=pytest.mark.slow)])
def test_candidates_of_many_classes_are_taken_up_between_two_solves(
    plan: str, seed: int, tmp_path: Path
) -> None:
    candidates = candidates_of(OWN_PLANS[plan], (0.1, 1.0, 5.0))  # more than lie side by side
    counted = KeepsSome(0, 10**9)
    whole = trained(candidates, counted)
    assert counted.parted
    step = counted.met // 6
    checkpointer = KeepsSome(random.Random(seed).randrange(step), step)
    assert trained(candidates, checkpointer) == whole
    for state in checkpointer.states:
        again = taken_up(through_a_file(state, tmp_path / "c"), candidates)
        assert again == whole, (state.reading, state.chunks)


# --- in groups -----------------------------------------------------------------------------------


def every(candidates: list[Settings], source: ListSource) -> list[Learner]:
    return [
        Learner(one, source.labels, positive=label) for one in candidates for label in source.labels
    ]


@pytest.mark.parametrize("plan", ["all held", pytest.param("few held", marks=pytest.mark.slow)])
def test_groups_of_candidates_and_classes_are_taken_up(plan: str, tmp_path: Path) -> None:
    candidates, checkpointer = candidates_of(OWN_PLANS[plan]), KeepsAll()
    source = source_of(LABELS)
    learners = every(candidates, source)
    Training(source, candidates[0], Machine(), checkpointer=checkpointer).in_groups(learners, 3)
    whole = [bits(learner) for learner in learners]
    for state in checkpointer.states[2::9]:
        source = source_of(LABELS)
        learners = every(candidates, source)
        kept = through_a_file(state, tmp_path / "c")
        Training(source, candidates[0], Machine()).in_groups(learners, 3, kept)
        assert [bits(learner) for learner in learners] == whole, (state.reading, state.chunks)


def test_a_state_of_more_candidates_is_refused() -> None:
    checkpointer = KeepsAll()
    trained(candidates_of({}), checkpointer)
    with pytest.raises(FileDamaged, match="no state of a run"):
        taken_up(checkpointer.states[5], candidates_of({}, (1.0,)))
