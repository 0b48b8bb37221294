"""Many classes on several workers, real ones."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamtron.cluster.client import Workers
from streamtron.cluster.connect import connect
from streamtron.cluster.parts import WorkerParts, parts_on
from streamtron.core.executor import Parts, Scans
from streamtron.runs.parts import PartPlan
from tests.runs.test_parts_many import CLASSES, SHARDS, rows_of, trained, written

BALANCED: dict[str, Any] = {"class_weight": "balanced", "parts": SHARDS, "tol": 0.02}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of four classes (one), and the model of one process (alone)."""
    directory = tmp_path_factory.mktemp("classes")
    X, scores = rows_of(CLASSES)
    (directory / "one").mkdir()
    written(directory / "one", X, [f"{CLASSES[k]:g}" for k in scores.argmax(axis=1)])
    trained(directory, model=directory / "alone", **BALANCED)
    return directory


class Killing(WorkerParts):
    """Parts of which a worker is killed before round ``at``."""

    def __init__(self, at: int, *how: Any) -> None:
        super().__init__(*how)
        self.left = at

    def _map(self, step: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        self.left -= 1
        if self.left == 0:
            pick = random.Random(5)
            os.kill(pick.choice([*self._workers.client.run(os.getpid).values()]), 9)
        return super()._map(step, arguments)


@contextmanager
def killing(workers: Workers, at: int, plans: Sequence[PartPlan], scans: Scans) -> Iterator[Parts]:
    parts = Killing(at, workers, plans, scans)
    parts.open()
    yield parts
    parts.close()


def test_workers_find_the_bits_of_one_process_for_all_classes_also_when_one_dies(
    place: Path, workers: Workers, tmp_path: Path
) -> None:
    found = trained(place, model=tmp_path / "m", open_parts=parts_on(workers), **BALANCED)
    assert (tmp_path / "m").read_bytes() == (place / "alone").read_bytes()
    at = found.report["rounds"] // 2
    killed = trained(
        place, model=tmp_path / "k", open_parts=partial(killing, workers, at), **BALANCED
    )
    assert (tmp_path / "k").read_bytes() == (place / "alone").read_bytes()
    assert killed.report["rounds"] == found.report["rounds"]


@pytest.mark.slow
def test_one_and_four_workers_find_the_same_bits(place: Path, tmp_path: Path) -> None:
    for number in (1, 4):
        with connect(number) as found:
            trained(place, model=tmp_path / "m", overwrite=True, open_parts=parts_on(found),
                    **BALANCED)  # fmt: skip
        assert (tmp_path / "m").read_bytes() == (place / "alone").read_bytes()
