"""A change of a run counts all at once: from one rename on, which is on the disk before anything
that it replaces is touched, and processes killed while it is put in place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron.data.writers.corpus import generate
from streamtron.runs import transaction
from streamtron.runs.finished_run import FinishedRun, locate
from tests.helpers.processes import Process
from tests.helpers.runs import WAS_KILLED, fit, killed_at_call, state


@pytest.fixture
def cut_off(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A place with a run ``m``, a change of which counts and none of which is in place yet; and
    what the run is when all is."""
    place, saved = tmp_path / "place", tmp_path / "saved"
    generate(str(place), rows=800, columns=100, seed=3, shards=4)
    shards = sorted(place.glob("*.svm"))
    fit(shards[:3], place / "m")
    (tmp_path / "gone.csv").write_text(f"shard,row\n{shards[0].name},3\n")
    streamtron.forget(place / "m", rows=tmp_path / "gone.csv")
    shutil.copy2(place / "m.run" / "checkpoint", place / "m.run" / "checkpoint.before")
    killed = (
        "import os, signal, sys, streamtron; from streamtron.runs import transaction\n"
        "real = os.replace\n"
        "def replace(a, b):\n"
        "    real(a, b)\n"
        "    if str(b).endswith('changed'): os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.replace = replace\n"
        "streamtron.forget(sys.argv[1], sys.argv[2])\n"  # of all deletions, too
    )
    done = Process(killed, place / "m", shards[0].name, cwd=place).end()
    assert done.returncode == WAS_KILLED, done.stderr
    shutil.copytree(place, saved, copy_function=shutil.copy2)
    before = state(place)
    with FinishedRun.to_change(locate(place / "m")):
        pass
    found = state(place)
    assert found["m"] == before["model"] != before["m"]
    assert "deletions" in before.keys() - found.keys()
    shutil.rmtree(place)
    saved.rename(place)
    return place, found


def test_a_process_killed_at_any_call_of_a_transaction_leaves_it_for_the_next_one_to_complete(
    cut_off: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    place, wanted = cut_off
    shutil.copytree(place, tmp_path / "saved", copy_function=shutil.copy2)
    code, calls = killed_at_call(10**6, "recover", place / "m")
    assert code == 0
    assert int(calls) >= 10
    for number in range(int(calls)):
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "saved", place, copy_function=shutil.copy2)
        assert killed_at_call(number, "recover", place / "m")[0] == WAS_KILLED, number
        with FinishedRun.to_change(locate(place / "m")):
            pass
        assert state(place) == wanted, number
        assert not (place / "m.run" / transaction.COMMITTED).exists()
        assert not (place / "m.run" / "checkpoint.before").exists()


def test_the_rename_that_counts_is_on_the_disk_before_anything_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(str(tmp_path / "data"), rows=400, columns=100, seed=3, shards=2)
    shards = sorted((tmp_path / "data").glob("*.svm"))
    fit(shards[:1], tmp_path / "m")
    shutil.copy2(tmp_path / "m.run" / "checkpoint", tmp_path / "m.run" / "checkpoint.before")
    run = (tmp_path / "m.run").stat().st_ino
    told: list[str] = []

    def telling(name: str, told_of: Callable[..., str]) -> None:
        real = getattr(os, name)

        def call(*given: Any, **more: Any) -> Any:
            told.append(told_of(*given))
            return real(*given, **more)

        monkeypatch.setattr(os, name, call)

    telling("fsync", lambda file: "synced" if os.fstat(file).st_ino == run else "")
    telling(
        "replace", lambda _, to: "counts" if Path(to).name == transaction.COMMITTED else f"-> {to}"
    )
    telling("unlink", lambda path, **_: f"-> {path}")
    streamtron.update(tmp_path / "m", shards[1])
    behind = [one for one in told[told.index("counts") + 1 :] if one]
    assert behind[0] == "synced"
    assert behind[1:].count("synced") == 1
    last = behind.index("synced", 1)
    there = [path.name for path in map(Path, behind[1:last])]
    assert {"m", "witness", "run.json", "checkpoint"} <= set(there)
    left = {transaction.MODEL, transaction.PLAN}
    assert left <= {Path(one).name for one in behind[last:]}, "what is in place stays until then"


def test_a_cache_elsewhere_is_cleaned_by_who_names_it_and_told_of_to_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    generate(str(tmp_path / "data"), rows=400, columns=100, seed=3, shards=2)
    shards = sorted((tmp_path / "data").glob("*.svm"))
    machine = streamtron.Machine(cache_dir=str(tmp_path / "cache"))
    settings = streamtron.Settings(index_base=0)
    streamtron.run(shards, settings, model=tmp_path / "m", machine=machine)
    manifest = json.loads((tmp_path / "m.run" / "manifest.json").read_text())
    gone, kept = [shard["fingerprint"] for shard in manifest["shards"]]
    staged = transaction.begin(tmp_path / "m.run")
    plan = {"remove": [], "fingerprints": [gone], "used": [], "elsewhere": machine.cache_dir}
    (staged / transaction.PLAN).write_text(json.dumps(plan))
    staged.rename(tmp_path / "m.run" / transaction.COMMITTED)
    shutil.copytree(tmp_path / "m.run", tmp_path / "other.run")
    shutil.copy(tmp_path / "m", tmp_path / "other")

    def cached() -> set[str]:
        return {path.name.split("-")[0] for path in (tmp_path / "cache").glob("*-*")}

    with FinishedRun.to_change(locate(tmp_path / "other")):
        assert cached() == {gone, kept}
    assert f"streamtron cache --clear {tmp_path / 'cache'}" in caplog.text
    with FinishedRun.to_change(locate(tmp_path / "m"), machine.cache_dir):
        assert cached() == {kept}
