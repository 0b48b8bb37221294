"""Fits in little memory: the plan and the fit agree, and the default active set is what fits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron import Machine, Settings, generate, run
from streamtron.core.config import DEFAULT_ACTIVE_SET
from streamtron.core.errors import MachineError, SettingsError
from streamtron.core.events import ChunkDone, Event, ReadingStarted
from streamtron.runs.fit import fit_many
from streamtron.runs.inspect import describe_shards
from streamtron.runs.memory import INTERPRETER_BYTES

TWO_ROWS = "1 1:1\n-1 1:-1\n"
WIDE_ROW = "1 " + " ".join(f"{column}:1" for column in range(1, 40_000))

FIT = """
import json, resource, sys
from streamtron.core.config import Machine, Settings
from streamtron.runs.fit import run
resource.setrlimit(resource.RLIMIT_AS, (3_400_000_000,) * 2)
memory = None if sys.argv[2] == "none" else sys.argv[2]
report = run(sys.argv[1], Settings(), machine=Machine(memory=memory, threads=2)).report
print(json.dumps([report["peak_rss_bytes"], report["settings"]["active_set"]]))
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 MB of rows in memory."""
    path = tmp_path_factory.mktemp("small") / "train"
    generate(str(path), rows=15_000, columns=3000, seed=0)
    return path


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.svm"
    path.write_text(TWO_ROWS)
    return path


def plan_of(path: Path, memory: int, **settings: Any) -> dict[str, Any]:
    facts = describe_shards([str(path)], Settings(**settings), Machine(memory=memory, threads=2))
    plan: dict[str, Any] = facts["plan"]
    return plan


def least_memory(path: Path) -> int:
    """What a fit needs with the default active set."""
    return int(plan_of(path, 10**12)["total"])


@pytest.mark.parametrize(
    ("rows", "memory"),
    [(0, "300MB"), (20_000, "600MB"), pytest.param(0, "none", marks=pytest.mark.slow)],
)
def test_two_rows_or_a_demo_are_fitted_in_little_memory_as_planned(two, tmp_path, rows, memory):
    """In a process of its own, with 3.4 GB of addresses."""
    if rows:
        generate(str(tmp_path / "demo"), rows=rows, shards=4, seed=0)
        two = tmp_path / "demo"
    command = [sys.executable, "-c", FIT, str(two), memory]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, active_set = json.loads(done.stdout)
    assert active_set == DEFAULT_ACTIVE_SET, "no rows could fill more than a smaller one has"
    if rows:
        plan = plan_of(two, 600 * 10**6)
        assert peak <= plan["total"] <= plan["limit"]
        assert plan["active_set"] == DEFAULT_ACTIVE_SET
    else:
        assert peak < 300e6


def test_a_run_of_two_rows_is_updated_where_it_was_fitted(two, tmp_path):
    machine = Machine(memory="300MB", threads=1)
    run(two, Settings(), model=tmp_path / "m", machine=machine)
    (tmp_path / "more.svm").write_text("1 2:1\n-1 2:-1\n")
    updated = streamtron.update(tmp_path / "m", tmp_path / "more.svm", machine=machine)
    assert updated.report["rows"] == 4
    found = streamtron.StreamtronClassifier().fit_shards(two, machine=machine)
    assert found.n_features_in_ == 1


@pytest.mark.parametrize("given", [None, 5_000_000])
@pytest.mark.parametrize("rows", [TWO_ROWS, WIDE_ROW + "\n-1 1:1\n"], ids=["two rows", "wide"])
def test_what_the_plan_says_fits_is_fitted_and_nothing_else(tmp_path, rows, given):
    path = tmp_path / "rows.svm"
    path.write_text(rows)
    needed = least_memory(path)
    for memory in (needed - 10**7, needed - 1, needed, needed + 10**8):
        plan = plan_of(path, memory, active_set=given)
        fits = plan["total"] <= plan["limit"]
        machine, settings = Machine(memory=memory, threads=2), Settings(active_set=given)
        if fits:
            found = run(path, settings, machine=machine).report
            assert found["settings"]["active_set"] == plan["active_set"]
        else:
            with pytest.raises(MachineError, match="the limit is"):
                run(path, settings, machine=machine)
    assert fits


def test_the_default_active_set_is_what_memory_leaves_and_the_model_keeps_it(shards, tmp_path):
    memory = least_memory(shards) - 2 * 10**6
    small = Machine(memory=memory, threads=2)
    outcome = run(shards, Settings(), model=tmp_path / "m", machine=small)
    kept = outcome.report["settings"]["active_set"]
    assert 0 < kept < 9 * 10**6
    assert kept == plan_of(shards, memory)["active_set"]
    assert outcome.model.settings["active_set"] == kept
    run(shards, Settings(active_set=kept), model=tmp_path / "given")
    assert (tmp_path / "m").read_bytes() == (tmp_path / "given").read_bytes()
    finer = run(shards, Settings(tol=1e-3), model=tmp_path / "m", resume=True)
    assert finer.model.settings["active_set"] == kept, "on any machine"
    (tmp_path / "more.svm").write_text(TWO_ROWS)
    updated = streamtron.update(tmp_path / "m", tmp_path / "more.svm", machine=small)
    assert updated.model.settings["active_set"] == kept
    with pytest.raises(SettingsError, match="active_set is 1000000000, the run has"):
        run(shards, Settings(active_set="1GB"), model=tmp_path / "m", resume=True)
    with pytest.raises(MachineError, match=r"larger --memory or a smaller --active-set\.$"):
        run(shards, Settings(active_set="1GB"), machine=small)


def test_rows_that_fill_less_give_the_same_bits_on_a_small_machine(shards, tmp_path):
    for name, memory in (("small", least_memory(shards)), ("large", 8 * 10**9)):
        run(shards, Settings(), model=tmp_path / name, machine=Machine(memory=memory, threads=2))
    assert (tmp_path / "small").read_bytes() == (tmp_path / "large").read_bytes()


def counted(path: Path, memory: int, **settings: Any) -> tuple[list[Event], dict[str, Any]]:
    """Return the events of the reading that finds the active set, and the report."""
    told: list[Event] = []
    machine = Machine(memory=memory, threads=2)
    report = run(path, Settings(**settings), machine=machine, listen=told.append).report
    started = [n for n, event in enumerate(told) if isinstance(event, ReadingStarted)]
    counts = isinstance(first := told[0], ReadingStarted) and first.purpose == "count"
    return told[: started[1]] if counts else [], report


def test_text_that_cannot_fill_the_active_set_is_not_read_to_find_its_size(two, tmp_path):
    generate(str(tmp_path / "demo"), rows=6_000, shards=4, seed=0)
    for path, memory in ((two, 3 * 10**8), (tmp_path / "demo", 10**9)):
        assert counted(path, memory, tol=0.9)[0] == []


def test_the_reading_that_finds_the_active_set_is_counted_and_tells_how_far_it_is(shards, tmp_path):
    memory, same = least_memory(shards), {"max_epochs": 1, "tol": 0.1}
    events, report = counted(shards, memory, **same)
    _, roomy = counted(shards, 8 * 10**9, **same)
    chunks = [event for event in events if isinstance(event, ChunkDone)]
    assert (chunks[-1].rows, chunks[-1].nonzeros) == (report["rows"], report["nonzeros"])
    assert report["readings"] == roomy["readings"] + 1
    assert report["bytes_read"] > roomy["bytes_read"]
    machine = Machine(memory=memory, threads=2)
    [swept] = fit_many(shards, [Settings(**same)], machine=machine, cache_dir=str(tmp_path))
    assert swept.report["readings"] == report["readings"]


def test_a_given_active_set_is_refused_as_soon_as_the_rows_read_do_not_fit(shards):
    told: list[Event] = []
    machine = Machine(memory=INTERPRETER_BYTES + 5 * 10**6, threads=2)
    with pytest.raises(MachineError, match="smaller --active-set"):
        run(shards, Settings(active_set="1GB"), machine=machine, listen=told.append)
    assert 0 < max(event.rows for event in told if isinstance(event, ChunkDone)) < 15_000
