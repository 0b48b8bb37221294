"""Learners that do not fit in memory side by side run in groups, and find the same."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtron.core.config import Machine, Settings
from streamtron.core.events import ChunkDone
from streamtron.data import open_shards
from streamtron.data.writers.corpus import generate
from streamtron.runs.fit import run
from streamtron.runs.learners import MemoryGuard
from streamtron.runs.memory import DataSize, memory_needed
from streamtron.runs.report import Outcome
from streamtron.solver.row_store import Pool
from tests.helpers.runs import stopping

COLUMNS = 3000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of two classes, and some of them with one of four topics in place of their label."""
    path = tmp_path_factory.mktemp("learning")
    generate(str(path / "two"), rows=9000, columns=COLUMNS, seed=3)
    shards = sorted((path / "two").iterdir())
    rows = [line.split(" ", 1)[1] for shard in shards for line in shard.read_text().splitlines()]
    topics = np.random.default_rng(0).integers(4, size=6000)
    lines = [f"c{topic} {row}\n" for topic, row in zip(topics, rows, strict=False)]
    (path / "many.svm").write_text("".join(lines))
    return path


def test_a_run_in_groups_is_taken_up_and_groups_that_are_done_are_not_fitted_again(place, tmp_path):
    settings = Settings(multiclass=True, tol=0.1)
    size = DataSize(9000, COLUMNS + 1)
    two, three = (
        sum(need.size for need in memory_needed(settings, size, learners=n, threads=2, shared=True))
        for n in (2, 3)
    )  # so many learners at a time

    def fit(model: str, tol: float = 0.1, **options: Any) -> Outcome:
        machine = Machine(memory=(two + three) // 2, threads=2, checkpoint_every=0.0)
        options |= {"model": tmp_path / model, "machine": machine}
        return run(place / "many.svm", settings.but(tol=tol), **options)

    expected = fit("expected")
    assert expected.report["readings"] > 4.0
    for chunks in (3, 5, 6, 7, 9, 11):
        with suppress(InterruptedError):
            fit("model", listen=stopping(ChunkDone, chunks + 1), resume=True)
    fit("model", resume=True)
    for name in ("", ".run/witness"):
        content = (tmp_path / f"model{name}").read_bytes()
        assert content == (tmp_path / f"expected{name}").read_bytes()
    finer = fit("model", resume=True, tol=1e-3)
    assert finer.exit_code == 0
    for learner in finer.report["learners"]:
        assert learner["certificate"]["relative_duality_gap"] <= 1e-3
        assert learner["certificate"]["rows_scanned"] == expected.report["rows"]


def test_a_single_learner_is_never_crowded(place):
    with open_shards([str(place / "two")], cache_dir=None) as source:
        room = MemoryGuard(Settings(), Machine(memory=1), Pool())
        for chunk in source.chunks():
            assert room(1, chunk)
    assert room.columns > 1
