"""Workers and clients of one model, killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from streamtron.cluster import parts as cluster_parts
from streamtron.cluster.client import Workers
from streamtron.core.config import Machine, Settings
from streamtron.data.writers.corpus import generate
from streamtron.runs.fit import run as fit
from tests.helpers.processes import COMMAND, Process, succeeded, until

SHARDS, C, TOL = 7, 20.0, 0.02
HOLDS = {"all": (10**9, 2), "some": (2_000_000, 3)}
"""Bytes that hold all rows, in 2 readings, and bytes that hold some of those that matter, in 7; and
the kills of clients that are to hit parts in use."""

WORKERS = 10
"""Kills of workers that are to hit parts in use."""

SECONDS = (0.1, 0.3, 3.0)
"""Between two kills, at most: few seconds end while parts are opened or in their start."""

MOST = 4
"""Kills in one fit, at most: more in a row, without a step between, would end it."""


def held() -> tuple[int, int]:
    """A worker's process, and how many runs have parts in it."""
    return os.getpid(), len(cluster_parts._held)


class Fit:
    """A fit by a command that is begun again when it was killed."""

    def __init__(self, place: Path, model: Path, workers: Workers, active_set: int) -> None:
        self.workers = workers
        words = [
            "fit", "train", "--model", model, "--C", C, "--tol", TOL, "--resume",
            "--active-set", f"{active_set}B", "--scheduler", workers.client.scheduler.address,
        ]  # fmt: skip
        self._begin = lambda: Process(COMMAND, *words, cwd=place)
        self.process = self._begin()

    def parts(self) -> list[int]:
        """The processes of the workers that have parts."""
        told = self.workers.client.run(held, on_error="ignore").values()
        return [pid for pid, runs in told if runs]

    def kill(self, kind: str, pick: random.Random) -> bool:
        """Kill one of the workers that have parts, or the client; tell whether that hit one."""
        until(lambda: self.parts() or self.process.poll() is not None)
        if self.process.poll() is not None or not (pids := self.parts()):
            return False
        if kind == "worker":
            with suppress(ProcessLookupError):  # it died of the kill before
                os.kill(pick.choice(pids), signal.SIGKILL)
            return self.process.poll() is None
        self.process.kill()
        hit = self.process.end().returncode == -signal.SIGKILL
        self.process = self._begin()
        return hit


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with shards (train)."""
    directory = tmp_path_factory.mktemp("kills")
    generate(str(directory / "train"), rows=10_000, columns=5000, seed=1, shards=SHARDS)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("holds", HOLDS)
def test_workers_and_clients_killed_at_random_moments_change_no_bit(
    place, holds, workers, tmp_path
):
    active_set, clients = HOLDS[holds]
    settings = Settings(C=C, tol=TOL, parts=SHARDS, active_set=active_set)
    fit([place / "train"], settings, model=place / holds, machine=Machine())
    pick, pause, left = random.Random(7), threading.Event(), Counter(worker=WORKERS, client=clients)
    for number in count():
        if not +left:
            break
        model = tmp_path / f"{number}"
        killed = Fit(place, model, workers, active_set)
        for _ in range(MOST):
            pause.wait(pick.uniform(0.0, pick.choice(SECONDS)))
            kind = pick.choice([*(+left)] or ["worker"])
            left[kind] -= killed.kill(kind, pick)
        succeeded(killed.process.end())
        assert model.read_bytes() == (place / holds).read_bytes()
