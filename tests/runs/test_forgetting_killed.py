"""Processes killed while they forget: the run is as it was or as it is to be, and the next call
again comes to the same end."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.runs import end_of_kill, fit, killed_at_call, state
from tests.helpers.user_rows import Corpus, list_rows


@pytest.mark.parametrize("way", ["rows", "a shard only the cache has"])
@pytest.mark.parametrize(
    "step", [7, pytest.param(2, marks=pytest.mark.slow)], ids=["some calls", "many calls"]
)
def test_a_run_that_is_killed_while_it_forgets_is_as_before_or_as_after_and_can_be_called_again(
    step: int, way: str, user_rows: Corpus, tmp_path: Path
) -> None:
    place, saved = tmp_path / "place", tmp_path / "saved"
    place.mkdir()
    shards = user_rows.shards("svm", place)
    fit(shards, place / "m")
    secret = (user_rows.rows[200:201].data).tobytes()  # of row 0 of the second shard
    words: dict[str, object] = {"shards": "1.svm"}
    if way == "rows":
        words = {"rows": str(list_rows(place / "l", {"1.svm": [0, 5]}))}
    else:
        shards[1].unlink()
    shutil.copytree(place, saved, copy_function=shutil.copy2)

    def back() -> None:
        shutil.rmtree(place)
        shutil.copytree(saved, place, copy_function=shutil.copy2)

    old = state(place)
    code, calls = killed_at_call(10**6, "forget", place / "m", words)
    new = state(place)
    assert code == 0
    assert new["m"] != old["m"]
    ends: Counter[str] = Counter()
    # the last calls put the change in place
    moments = [*range(0, int(calls) - 24, 6 * step), *range(int(calls) - 24, int(calls), step)]
    for moment in moments:
        back()
        ends[end_of_kill(moment, "forget", place, words, old, new)] += 1
        for path in (p for p in (place / "m.run").rglob("*") if p.is_file()):
            assert secret not in path.read_bytes(), (moment, path)
    assert min(ends["old"], ends["new"]) > 1
