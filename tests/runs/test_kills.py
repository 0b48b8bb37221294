"""Processes killed at any moment: taken up, they end with the model of the run that lived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.processes import command
from tests.helpers.runs import (
    PLANS,
    WAS_KILLED,
    Moment,
    after,
    at_checkpoint,
    kept,
    killed,
    make_corpora,
    while_writing,
    while_writing_the_model,
    words_of,
)

ENDS = (0, 4)
FAST = ("small active set",)
KILLS = 200


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpora."""
    directory = tmp_path_factory.mktemp("kills")
    make_corpora(directory)
    return directory


def wanted(place: Path, plan: str) -> tuple[bytes, bytes]:
    """Model and witness of a plan's run that was not killed."""
    model = f"wanted {plan}"
    if not (place / model).exists():
        done = command(place, *words_of(plan, model))
        assert done.returncode in ENDS, done.stderr
    return kept(place, model)


def killed_at(place: Path, plan: str, model: str, moments: Iterator[Moment]) -> int:
    """Kill a run at these moments, taking it up each time, then let it end; how many kills hit."""
    words, hits = words_of(plan, model), 0
    for moment in moments:
        ended = killed(place, [*words, "--resume"], model, moment)
        assert "Traceback" not in ended.stderr
        assert ended.returncode in (WAS_KILLED, *ENDS), ended.stderr
        hits += ended.returncode == WAS_KILLED
    done = command(place, *words, "--resume")
    assert done.returncode in ENDS, done.stderr
    assert kept(place, model) == wanted(place, plan)
    return hits


@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, marks=[pytest.mark.slow] * (plan not in FAST)) for plan in PLANS],
)
def test_runs_killed_at_a_checkpoint_and_while_one_is_written_end_with_the_same_bytes(
    place: Path, plan: str
) -> None:
    moments = [at_checkpoint(2), while_writing(2)]
    assert killed_at(place, plan, f"places {plan}", iter(moments)) == 2


def test_a_run_killed_while_its_model_is_written_ends_with_the_same_bytes_and_leaves_no_more(
    place: Path,
) -> None:
    model, plan = "at its end", "all rows held"
    hits = 0
    for _ in range(20):
        ended = killed(place, [*words_of(plan, model), "--resume"], model, while_writing_the_model)
        hits += ended.returncode == WAS_KILLED
        if hits == 2:
            break
    assert hits == 2
    assert killed_at(place, plan, model, iter(())) == 0
    assert list(place.glob(".streamtron-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_runs_killed_at_random_moments_end_with_the_same_bytes(place: Path, plan: str) -> None:
    rng = np.random.default_rng([20261121, list(PLANS).index(plan)])
    hits = round_ = 0
    while hits < KILLS / len(PLANS):
        moments = (after(seconds) for seconds in rng.exponential(0.4, size=6))
        hits += killed_at(place, plan, f"random {plan} {round_}", moments)
        round_ += 1
