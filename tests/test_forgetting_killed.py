"""Processes killed while they forget: the run is as it was or as it is to be, and whoever calls
again comes to the same end."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import streamtron
from streamtron import runs
from streamtron.errors import DataError
from tests.processes import Process
from tests.test_forgetting_rows import Corpus, corpus, list_rows
from tests.test_updating import content, fit

__all__ = ["corpus"]

KILLED = """
import json, os, signal, sys, streamtron
left = int(sys.argv[1])
def one(call):
    def counted(*a, **k):
        global left
        left -= 1
        if left < 0: os.kill(os.getpid(), signal.SIGKILL)
        return call(*a, **k)
    return counted
for name in ("replace", "fsync", "mkdir", "unlink", "rmdir"):
    setattr(os, name, one(getattr(os, name)))
streamtron.forget(sys.argv[2], **json.loads(sys.argv[3]))
os.write(1, str(int(sys.argv[1]) - left).encode())
"""
"""Ends itself before a system call that changes the disk; else it tells how many there were."""


def forget_killed(moment: int, model: Path, words: dict[str, object]) -> tuple[int, str]:
    ended = Process(KILLED, moment, model, json.dumps(words), cwd=model.parent).end()
    return ended.returncode, ended.stdout


def state(place: Path) -> dict[str, bytes]:
    """Every file of the run, but for what tells how long it took and what it read."""
    return {k: v for k, v in content(place / "m.run", place / "m").items() if "checkpoint" not in k}


@pytest.mark.parametrize("way", ["rows", "replaced in its place", "a shard only the cache has"])
def test_a_run_that_is_killed_while_it_forgets_is_as_before_or_as_after_and_can_be_called_again(
    way: str, corpus: Corpus, tmp_path: Path
) -> None:
    place, saved = tmp_path / "place", tmp_path / "saved"
    place.mkdir()
    shards = corpus.shards("svm", place)
    fit(shards, place / "m")
    secret = (corpus.rows[200:201].data).tobytes()  # of row 0 of the second shard
    words: dict[str, object] = {"shards": "1.svm"}
    if way == "rows":
        words = {"rows": str(list_rows(place / "l", {"1.svm": [0, 5]}))}
    elif way.startswith("replaced"):
        words |= {"replaced_by": str(corpus.write(shards[1], np.arange(201, 400)))}
    else:
        shards[1].unlink()
    shutil.copytree(place, saved, copy_function=shutil.copy2)

    def back() -> None:
        shutil.rmtree(place)
        shutil.copytree(saved, place, copy_function=shutil.copy2)

    old = state(place)
    code, calls = forget_killed(10**6, place / "m", words)
    new = state(place)
    assert code == 0
    assert new["m"] != old["m"]
    ends = {"old": 0, "new": 0}
    # all of the last calls, which put the change in place, and some of those before
    moments = [*range(0, int(calls) - 24, 12), *range(int(calls) - 24, int(calls), 3)]
    for moment in moments:
        back()
        code, _ = forget_killed(moment, place / "m", words)
        assert code == -signal.SIGKILL, moment
        with runs.open_ended(place / "m.run"):
            pass  # who opens it next puts a whole change in place
        found = state(place)
        assert found in (old, new), moment
        ends["old" if found == old else "new"] += 1
        if found == old:
            streamtron.forget(place / "m", **words)  # type: ignore[arg-type]
            assert state(place) == new, moment
        for path in (p for p in (place / "m.run").rglob("*") if p.is_file()):
            assert secret not in path.read_bytes(), (moment, path)
    assert min(ends.values()) > 2


@pytest.mark.parametrize(
    "plan",
    [
        "[]",
        "[" * 100_000,
        '{"model": 7, "remove": [], "stale": null}',
        '{"model": "m", "remove": ["../other"], "stale": null}',
        '{"model": "m", "remove": ["/etc/passwd"], "stale": null}',
        '{"model": "m", "remove": [], "stale": ["cache", "00", 7]}',
        '{"model": "m", "remove": [], "stale": [7, ["00"], []]}',
        '{"model": "m", "remove": [], "stale": {"directory": "cache"}}',
    ],
)
def test_what_is_no_plan_of_a_change_is_refused(plan: str, tmp_path: Path) -> None:
    changed = tmp_path / "m.run" / "changed"
    changed.mkdir(parents=True)
    (changed / "change.json").write_text(plan)
    with pytest.raises(DataError, match=r"change.json: not the plan of a change"):
        runs.settle(tmp_path / "m.run")
    assert [path.name for path in changed.iterdir()] == ["change.json"]
