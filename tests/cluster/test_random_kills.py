"""Workers and clients of one model, killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from streamtron.cli.main import main
from streamtron.cluster import parts as cluster_parts
from streamtron.cluster.client import Workers
from streamtron.core.config import Machine, Settings
from streamtron.data.writers.corpus import generate
from streamtron.runs.fit import run as fit
from tests.helpers.processes import Process, until

SHARDS, C, TOL = 7, 20.0, 0.02
HOLDS = {"all": 10**9, "some": 2_000_000}
"""Bytes that hold all rows, in 2 readings; and bytes that hold some of those that matter, in 7."""

WANTED = {"all": {"worker": 10, "client": 2}, "some": {"worker": 10, "client": 3}}
"""Kills that are to hit something."""

SECONDS, ENTRIES = (0.3, 3.0), {"all": 200, "some": 600}
"""Between two kills, at most: few seconds, which end while parts are opened or in their start,
more seconds, or entries of the diary, which end in the short steps."""

MOST = 4
"""Kills in one fit, at most: more in a row, without a step between, would end it."""

ROUNDS = {"look", "product", "line", "sum_held"}


class Diary(cluster_parts.WorkerParts):
    """Parts that write down what they are doing, from when on, and when some are lost."""

    def __init__(self, file: int, *how: Any) -> None:
        super().__init__(*how)
        self.file, self.doing = file, ["between"]

    def say(self, what: str) -> None:
        os.write(self.file, f"{time.monotonic()} {what}\n".encode())

    @contextmanager
    def does(self, what: str) -> Iterator[None]:
        self.doing.append(what)
        self.say(what)
        try:
            yield
        finally:
            self.doing.pop()
            self.say(self.doing[-1])

    def open(self) -> None:
        if all(self._homes):
            return
        if len(self.doing) > 1:
            self.say("lost")
        with self.does("open" if len(self.doing) == 1 else "open again"):
            super().open()

    def close(self) -> None:
        self.say("outside")
        super().close()

    def _map(self, step: Any, arguments: Any) -> Any:
        with self.does(step.__name__):
            return super()._map(step, arguments)


def keep_a_diary(path: str) -> None:
    """Run the command of this process, which writes down what its parts do."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    cluster_parts.WorkerParts = lambda *how: Diary(file, *how)
    main()


class Fit:
    """A fit by a command that is begun again when it was killed; and what was killed, and when."""

    def __init__(self, place: Path, model: Path, workers: Workers, active_set: int) -> None:
        self.workers, self.diary = workers, model.with_suffix(".diary")
        self.diary.touch()
        code = f"from {__name__} import keep_a_diary; keep_a_diary({str(self.diary)!r})"
        words = [
            "fit", "train", "--model", model, "--C", C, "--tol", TOL, "--resume",
            "--active-set", f"{active_set}B", "--scheduler", workers.client.scheduler.address,
        ]  # fmt: skip
        self._process = lambda: Process(code, *words, cwd=place)
        self.kills: list[tuple[float, str]] = []
        self.begin()

    def begin(self) -> None:
        """Begin, and wait for its parts."""
        self.process = self._process()
        self.wait_for(1)

    def wait_for(self, entries: int) -> None:
        """Wait for so many entries more, or the end."""
        wanted = self.diary.read_bytes().count(b"\n") + entries

        def there() -> bool:
            ended = self.process.poll() is not None
            return ended or self.diary.read_bytes().count(b"\n") >= wanted

        until(there)

    def lines(self) -> list[tuple[float, str]]:
        """What the parts did, and when that began."""
        words = [line.split(" ", 1) for line in self.diary.read_text().splitlines()]
        return [(float(at), what) for at, what in words]

    def end(self) -> None:
        """Wait for its end."""
        ended = self.process.end()
        assert ended.returncode == 0, ended.stderr

    def kill(self, kind: str, pick: random.Random) -> None:
        """Kill one of the workers, or the client."""
        pids = [*self.workers.client.run(os.getpid, on_error="ignore").values()]
        self.kills.append((time.monotonic(), kind))
        if kind == "client":
            self.process.kill()
            self.process.end()
            self.begin()
        elif pids:
            with suppress(ProcessLookupError):  # it died of the kill before
                os.kill(pick.choice(pids), signal.SIGKILL)

    def hits(self) -> list[tuple[str, str]]:
        """Of each kill that hit something: what was killed, and what was being done. Of two workers
        killed before the first one is missed, the second alone counts."""
        lines, found = self.lines(), []
        times = [at for at, _ in lines]
        for (at, kind), (end, _) in pairwise([*self.kills, (float("inf"), "")]):
            first, last = bisect(times, at), bisect(times, end)
            doing = lines[first - 1][1]
            lost = any(what == "lost" for _, what in lines[first:last])
            if lost if kind == "worker" else doing != "outside":
                found.append((kind, doing))
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with shards (train)."""
    directory = tmp_path_factory.mktemp("kills")
    generate(str(directory / "train"), rows=10_000, columns=5000, seed=1, shards=SHARDS)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("held", ["all", "some"])
def test_workers_and_clients_killed_at_random_moments_change_no_bit(
    place: Path, held: str, workers: Workers, tmp_path: Path
) -> None:
    settings = Settings(C=C, tol=TOL, parts=SHARDS, active_set=HOLDS[held])
    fit([place / "train"], settings, model=place / held, machine=Machine())
    pick, pause, hits = random.Random(7), threading.Event(), list[tuple[str, str]]()
    left, number = Counter(WANTED[held]), count()
    while +left:
        model = tmp_path / f"{next(number)}"
        one = Fit(place, model, workers, HOLDS[held])
        for _ in range(MOST):  # at random moments
            if seconds := pick.choice([*SECONDS, None]):
                pause.wait(pick.uniform(0.0, seconds))
            else:
                one.wait_for(pick.randint(1, ENTRIES[held]))
            if one.process.poll() is not None:
                break
            one.kill(pick.choice([*(+left)]), pick)
        one.end()
        assert model.read_bytes() == (place / held).read_bytes()
        hits += one.hits()
        left = Counter(WANTED[held])
        left.subtract(kind for kind, _ in hits)
    killed_in = {doing for kind, doing in hits if kind == "worker"}
    assert killed_in & ROUNDS
    assert killed_in - ROUNDS
