"""Processes killed while they update a run: it is as it was or as it is to be, and the next call
again comes to the same end."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from streamtron.data.writers.corpus import generate
from tests.helpers.runs import end_of_kill, fit, killed_at_call, state

CALLED_LAST = 30
"""System calls that stage a change and put it in place, which is what moments are about."""


@pytest.fixture
def changed(tmp_path: Path) -> tuple[Path, dict[str, object]]:
    """A place with a run, and what to add to it."""
    place = tmp_path / "place"
    generate(str(place), rows=1200, columns=100, seed=3, shards=4)
    shards = sorted(place.glob("*.svm"))
    fit(shards[:3], place / "m")
    return place, {"shards": str(shards[3])}


@pytest.mark.parametrize(
    "step", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some calls", "every call"]
)
def test_an_update_that_is_killed_leaves_the_run_as_before_or_as_after_and_can_be_called_again(
    step: int, changed: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    (place, words), saved = changed, tmp_path / "saved"
    shutil.copytree(place, saved, copy_function=shutil.copy2)
    old = state(place)
    code, calls = killed_at_call(10**6, "update", place / "m", words)
    assert code == 0
    new = state(place)
    assert {name for name in new if old.get(name) != new[name]} >= {"m", "witness", "run.json"}
    ends: Counter[str] = Counter()
    first = 0 if step == 1 else int(calls) - CALLED_LAST
    for moment in range(int(calls) - 1, max(first, 0), -step):
        shutil.rmtree(place)
        shutil.copytree(saved, place, copy_function=shutil.copy2)
        ends[end_of_kill(moment, "update", place, words, old, new)] += 1
    assert min(ends["old"], ends["new"]) > 0, ends
    assert ends.total() >= 4
