"""A run that is taken up at any of its checkpoints ends with the bytes of the run that nothing
interrupted."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamtron
from streamtron import Machine, Settings
from streamtron.core.errors import DataError
from streamtron.core.events import Event, ReadingDone
from tests.helpers.examples import slow_but
from tests.helpers.runs import kept
from tests.helpers.svm_text import svm_lines, write_shards

SHARDS, ROWS = 8, 60

PLANS: dict[str, dict[str, Any]] = {
    "all rows held": {"C": 50.0, "tol": 1e-3},
    "to rounding": {"tol": 0.0, "max_epochs": 3},
    "some rows held": {"C": 20.0, "active_set": 20_000, "tol": 1e-3},
    "few rows held": {"C": 20.0, "active_set": 6_000, "max_epochs": 5},
    "no row held": {"C": 20.0, "active_set": 0, "max_epochs": 2},
    "wide": {"C": 50.0, "active_set": 8_000, "max_epochs": 3},
    "sequential": {"C": 20.0, "order": "sequential", "active_set": 6_000, "max_epochs": 4},
    "margitron": {"stage": "1,0.1", "tol": 0.0, "max_epochs": 4, "mini_epochs": 5},
    "hard margin": {"delta": 0.0, "tol": 1e-2, "max_epochs": 9},
    "hard margin, few rows held": {"delta": 0.0, "active_set": 6_000, "max_epochs": 4},
    "many classes": {"multiclass": True, "C": 0.3, "active_set": 25_000, "tol": 0.05},
    "many classes, few rows held": {"multiclass": True, "active_set": 6_000, "max_epochs": 3},
    "several labels": {"multilabel": True, "active_set": 10_000, "max_epochs": 3},
    "logistic": {"C": 5.0, "loss": "log_loss", "active_set": 20_000, "tol": 1e-3},
    "hinge": {"loss": "hinge", "active_set": 20_000, "tol": 1e-2},
    "moments": {"loss": "squared_error", "C": 5.0, "tol": 1e-3},
    "elastic net": {"penalty": "elasticnet", "l1_ratio": 0.3, "tol": 1e-3},
    "lasso, few rows held": {"penalty": "l1", "C": 0.2, "active_set": 8_000, "tol": 1e-3},
    "wide lasso": {"penalty": "l1", "active_set": 9_000, "max_epochs": 2},
    "parts": {"C": 5.0, "parts": 3, "active_set": 20_000, "max_epochs": 6},
    "parts, logistic": {"loss": "log_loss", "parts": 3, "active_set": 8_000, "max_epochs": 6},
    "parts, hinge": {"loss": "hinge", "parts": 3, "active_set": 20_000, "max_epochs": 3},
}


def write(directory: Path, settings: dict[str, Any], columns: int) -> list[Path]:
    """Shards of noisy rows, separable ones for the hard margin; nine columns come late, and of four
    classes the last."""
    rng = np.random.default_rng(0)
    rows = np.round(rng.normal(size=(SHARDS * ROWS, columns)), 3)
    rows[rng.random(rows.shape) > 10 / columns] = 0.0
    rows[:ROWS, -9:] = 0.0
    scores = rows @ rng.normal(size=(columns, 4))
    labels = np.sign(scores[:, 0] + (0.0 if "delta" in settings else rng.normal(size=len(rows))))
    if settings.keys() & {"multiclass", "multilabel"}:
        since = np.array([0, ROWS // 2, 3 * ROWS, 7 * ROWS])
        scores[np.arange(len(rows))[:, None] < since] = -np.inf
        labels = scores.argmax(axis=1)
    return write_shards(directory, svm_lines(rows, labels), SHARDS)


@pytest.mark.parametrize("number", slow_but([3, 13], 3))
@pytest.mark.parametrize("plan", PLANS)
def test_from_every_checkpoint_a_run_is_taken_up_to_the_same_bytes(plan, number, tmp_path):
    """From the second one, the last, and some between, each at another place of its reading."""
    settings = Settings.from_dict(PLANS[plan])
    shards, run = write(tmp_path, PLANS[plan], 600 if "wide" in plan else 50), tmp_path / "m.run"
    checkpoints: dict[bytes, dict[Path, bytes]] = {}  # with the states of the parts

    def listen(event: Event) -> None:
        for name in ("checkpoint.before", "checkpoint"):
            if (run / name).exists():
                parts = {path: path.read_bytes() for path in (run / "parts").glob("*")}
                checkpoints.setdefault((run / name).read_bytes(), parts)

    def take_up(state: bytes, settings: Settings) -> streamtron.Outcome:
        for name in ("checkpoint.before", "witness", "manifest.json"):
            (run / name).unlink(missing_ok=True)
        for path, content in checkpoints[state].items():
            path.write_bytes(content)
        (run / "checkpoint").write_bytes(state)
        (tmp_path / "m").unlink()
        return streamtron.run(
            shards, settings, model=tmp_path / "m", machine=Machine(), resume=True
        )

    often = Machine(checkpoint_every=0.0)
    streamtron.run(shards, settings, model=tmp_path / "m", machine=often, listen=listen)
    whole = kept(tmp_path, "m")
    streamtron.run(shards, settings, model=tmp_path / "rare", machine=Machine())
    assert kept(tmp_path, "rare") == whole, "checkpoints change nothing"
    states = [*checkpoints]
    assert len(states) > (2 if settings.parts else 8)
    for state in [*states[1 : -1 : max(1, len(states) // (number - 1))], states[-1]]:
        take_up(state, settings)
        assert kept(tmp_path, "m") == whole, states.index(state)
    if settings.hard or plan in ("margitron", "wide lasso"):
        return
    finer = settings.but(tol=settings.tol / 10, max_epochs=200)
    for state in states[len(states) // 2 :: len(states)]:
        report = take_up(state, finer).report
        for learner in report.get("learners", [report]):
            assert learner["certificate"]["rows_scanned"] == SHARDS * ROWS
            assert learner["certificate"]["relative_duality_gap"] <= finer.tol or not settings.tol


@pytest.mark.parametrize("how", [{"resume": True}, {"overwrite": True}])
def test_files_that_a_killed_process_left_half_written_go_with_the_next_run(how, tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    streamtron.fit(tmp_path / "a.svm", model=tmp_path / "m")
    cache = tmp_path / "m.run" / "cache"
    complete = set(cache.iterdir())
    for name in (".0123abcd.streamtron-cache", ".streamtron-1234-abc"):
        (cache / name).write_text("half")
    streamtron.fit(tmp_path / "a.svm", model=tmp_path / "m", **how)
    assert set(cache.iterdir()) == complete


def test_a_vocabulary_whose_names_moved_is_refused_by_a_run_that_has_ended(tmp_path):
    """Old weights, read as those of other names, had kept their certificate."""
    words, settings = tmp_path / "words", Settings(vocabulary=str(tmp_path / "words"))
    rows = [{"features": ["a"], "label": 1}, {"features": ["b", "c"], "label": 0}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for names, resume in (("a\nb\nc\n", False), ("a\nb\nc\n", True), ("b\na\nc\n", True)):
        words.write_text(names)
        with nullcontext() if names[0] == "a" else pytest.raises(DataError, match="of other names"):
            streamtron.run(tmp_path / "a.parquet", settings, model=tmp_path / "m", resume=resume)


def tampered(shard: Path) -> None:
    """Other bytes under the same size and time."""
    status, content = shard.stat(), shard.read_text()
    shard.write_text(content.replace("1 1:1 2", "0 1:1 2"))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_run_whose_shard_was_replaced_at_the_same_time_does_not_go_on(parts, ended, tmp_path):
    """Nor does a part that is opened again on another machine, which sees other bytes. Of a hinge
    an old sum of its losses would have made the dual bound a false one."""
    rows = "".join(f"{k % 3 > 0:d} 1:1 {2 + (k * k) % 7}:1\n" for k in range(300))
    for name in "ab":
        (tmp_path / f"{name}.svm").write_text(f"1 9:{ord(name)}\n" + rows)
    how: dict[str, Any] = {"loss": "hinge", "parts": parts, "tol": 0.0, "active_set": 9000}
    how |= {"model": tmp_path / "m", "machine": Machine(checkpoint_every=0.0)}

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone) and event.reading == 2 and not ended:
            raise KeyboardInterrupt

    with nullcontext() if ended else pytest.raises(KeyboardInterrupt):
        streamtron.fit(tmp_path / "*.svm", **how, max_epochs=3, listen=listen)
    shutil.rmtree(tmp_path / "m.run" / "cache")
    tampered(tmp_path / "b.svm")
    with pytest.raises(DataError, match=r"^b\.svm: .* its bytes are others"):
        streamtron.fit(tmp_path / "*.svm", **how, max_epochs=9, resume=True)
    if ended and parts == 1:
        (tmp_path / "new").write_text("1 1:1\n0 2:1\n" * 200)
        with pytest.raises(DataError, match="its bytes are others"):
            streamtron.update(tmp_path / "m", tmp_path / "new")


def test_a_shard_that_was_replaced_by_a_wider_one_is_refused_by_what_the_checkpoint_knows(tmp_path):
    shard, settings = tmp_path / "a.svm", {"loss": "hinge", "model": tmp_path / "m"}
    for last in (6, 9):
        shard.write_text("".join(f"{k % 2} 1:1 {last - k % 5}:1\n" for k in range(300)))
        os.utime(shard, ns=(0, 0))
        if last == 6:
            streamtron.fit(shard, **settings, max_epochs=1)
            shutil.rmtree(tmp_path / "m.run" / "cache")
    with pytest.raises(DataError, match="checkpoint knows 7 columns"):
        streamtron.fit(shard, **settings, max_epochs=9, resume=True)
