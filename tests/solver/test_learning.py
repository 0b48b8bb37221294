"""Learners that do not fit in memory side by side run in groups, and find the same."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtron.core.config import Machine, Settings
from streamtron.data.writers.corpus import generate
from streamtron.runs.fit import run
from streamtron.runs.memory import DataSize, memory_needed
from streamtron.runs.report import Outcome
from tests.helpers.runs import begins, kept, stopping

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
    settings, events = Settings(multiclass=True, tol=0.1), []
    pairs = [line.split()[1:] for line in (place / "many.svm").read_text().splitlines()]
    occurring = {pair.split(":")[0] for row in pairs for pair in row}
    size = DataSize(len(pairs), len(occurring), sum(map(len, pairs)))
    two, three = (
        sum(memory_needed(settings, size, learners=n, threads=2).values()) for n in (2, 3)
    )  # so many learners at a time

    def fit(model: str, tol: float = 0.1, **options: Any) -> Outcome:
        machine = Machine(memory=(two + three) // 2, threads=2)
        options |= {"model": tmp_path / model, "machine": machine}
        return run(place / "many.svm", settings.but(tol=tol), **options)

    expected = fit("expected", listen=events.append)
    begun = [event.reading for event in events if begins(event)]
    assert begun.count(0) == 2, "two groups of two"
    for _ in range(len(begun)):  # each time one reading more
        with suppress(InterruptedError):
            fit("model", listen=stopping(begins, 2), resume=True)
    events.clear()
    fit("model", resume=True, listen=events.append)
    assert not any(begins(event) for event in events), "it had ended"
    assert kept(tmp_path, "model") == kept(tmp_path, "expected")
    finer = fit("model", resume=True, tol=1e-3)
    assert finer.exit_code == 0
    for learner in finer.report["learners"]:
        assert learner["certificate"]["relative_duality_gap"] <= 1e-3
        assert learner["certificate"]["rows_scanned"] == expected.report["rows"]
