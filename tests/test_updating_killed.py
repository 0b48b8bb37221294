"""Processes killed while they update a run: it is as it was or as it is to be, and whoever calls
again comes to the same end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import streamtron
from streamtron import runs
from streamtron.shards.corpus import generate
from tests.runs import WAS_KILLED, killed_at_call
from tests.test_updating import content, fit

CALLED_LAST = 30
"""System calls that stage a change and put it in place, which is what moments are about."""


def state(place: Path) -> dict[str, bytes]:
    """Every file of the run, but for what tells how long it took and what it read."""
    return {k: v for k, v in content(place / "m.run", place / "m").items() if "checkpoint" not in k}


@pytest.fixture(params=["all rows", "only the new ones"])
def changed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, object]]:
    """A place with a run, and what to add to it; the old shards are gone where only the new ones
    are to be read."""
    place = tmp_path / "place"
    generate(str(place), rows=1200, columns=100, seed=3, shards=4)
    shards = sorted(place.glob("*.svm"))
    fit(shards[:3], place / "m")
    words: dict[str, object] = {"shards": str(shards[3])}
    if request.param == "only the new ones":
        words |= {"only_new": True}
        for shard in shards[:3]:
            shard.unlink()
    return place, words


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
    ends = {"old": 0, "new": 0}
    first = 0 if step == 1 else int(calls) - CALLED_LAST
    for moment in range(int(calls) - 1, max(first, 0), -step):
        shutil.rmtree(place)
        shutil.copytree(saved, place, copy_function=shutil.copy2)
        code, _ = killed_at_call(moment, "update", place / "m", words)
        assert code == WAS_KILLED, moment
        with runs.open_ended(place / "m.run"):
            pass  # who opens it next puts a whole change in place
        found = state(place)
        assert found in (old, new), moment
        ends["old" if found == old else "new"] += 1
        if found == old:
            streamtron.update(place / "m", **words)  # type: ignore[arg-type]
            assert state(place) == new, moment
    assert min(ends.values()) > 0, ends
    assert sum(ends.values()) >= 4
