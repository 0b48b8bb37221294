"""Sweeps of many classes over workers that are killed: their candidates go on, all classes."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from streamtron.cluster import sweep as distributed_sweep
from streamtron.cluster.client import Workers
from streamtron.core.config import Machine, Settings
from streamtron.core.events import ChunkDone, Event
from streamtron.runs.fit import fit_many
from streamtron.runs.memory import memory_needed
from streamtron.runs.outcome import Outcome
from streamtron.sweeps.grid import candidates_of
from streamtron.sweeps.sweep import Sweep, run_sweep
from tests.helpers.killed_workers import Cut, Dying, killed_once
from tests.helpers.sweep_rows import Rows, by, lasting

NAMES = ("ant", "bee", "cow")
ROWS, LATE, WIDTH = 4600, 4200, 30
"""Two blocks of rows; the first cow comes in the second one."""

CANDIDATES = candidates_of(
    Settings(multiclass=True, tol=1e-5, active_set=120_000, max_epochs=3),
    {"C": (0.01, 0.1), "rho": (0.0, 1.0)},
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard to fit (train.svm) and one to measure on (held-out.svm)."""
    directory = tmp_path_factory.mktemp("trainer-many")
    chance = random.Random(2)
    for name, rows in (("train", ROWS), ("held-out", 300)):
        lines = []
        for row in range(rows):
            label = chance.choice(NAMES[:2] if row < LATE and name == "train" else NAMES)
            own = {1 + NAMES.index(label)} if chance.random() < 0.8 else set()
            columns = sorted(own | set(chance.sample(range(1, WIDTH + 1), 3)))
            lines.append(" ".join([label, *(f"{column}:1" for column in columns)]) + "\n")
        (directory / f"{name}.svm").write_text("".join(lines))
    return directory


def swept(place: Path, machine: Machine | None = None, **where: Any) -> Sweep:
    return run_sweep(
        place / "train.svm", CANDIDATES, valid=place / "held-out.svm", metric="macro_f1",
        machine=machine or Machine(), **where,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> Rows:
    """The table of one process."""
    return lasting(swept(place))


# --- cut off, within one process -----------------------------------------------------------------


def tight() -> Machine:
    """A machine on which three learners fit and four do not."""
    needs = memory_needed(
        CANDIDATES[0], rows=ROWS, columns=WIDTH + 1, learners=3, threads=1, shared=False
    )
    return Machine(memory=sum(need.size for need in needs), threads=1, checkpoint_every=0.0)


def bits(outcome: Outcome) -> tuple[Any, ...]:
    counts = [[part.tolist() for part in own.entries()] for own in outcome.counts]
    proven = [own["certificate"] for own in outcome.report["learners"]]
    return outcome.model, counts, proven, outcome.report["readings"]


@pytest.mark.parametrize(
    ("machine", "cut"),
    [
        (Machine(checkpoint_every=0.0), 1),
        (Machine(checkpoint_every=0.0), 5),
        (tight(), 10),
    ],
    ids=["before a class is born", "in a later reading", "in a later group"],
)
def test_candidates_of_many_classes_that_were_cut_off_go_on_without_reading_all_again(
    place: Path, tmp_path: Path, machine: Machine, cut: int
) -> None:
    candidates = CANDIDATES[:2]
    told: list[Event] = []

    def fit(last: float, **more: Any) -> list[tuple[Any, ...]]:
        def listen(event: Event) -> None:
            told.append(event)
            if isinstance(event, ChunkDone) and digested() > last:
                raise Cut

        how = {"machine": machine, "cache_dir": str(tmp_path / "cache"), **more}
        return [
            bits(one) for one in fit_many(place / "train.svm", candidates, listen=listen, **how)
        ]

    def digested() -> int:
        return sum(isinstance(event, ChunkDone) for event in told)

    whole = fit(math.inf)
    chunks, told[:] = digested(), []
    run_dir = str(tmp_path / "run")
    with pytest.raises(Cut):
        fit(cut, run_dir=run_dir)
    assert fit(math.inf, run_dir=run_dir) == whole
    assert digested() == chunks + 1, "that whose border was not reached, once more"


# --- killed, on workers --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("reading", "chunks"), [(0, 1), (2, 1)])
def test_a_dead_workers_candidates_of_many_classes_go_on_from_their_checkpoint(
    place: Path, undisturbed: Rows, workers: Workers, tmp_path: Path, reading: int, chunks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(distributed_sweep, "fit_on_worker", Dying(str(tmp_path), (reading, chunks)))
    workers.client.wait_for_workers(2)
    machine = Machine(checkpoint_every=0.0, cache_dir=str(tmp_path / "cache"))
    found = swept(place, machine, **by(workers))
    assert lasting(found) == undisturbed
    assert (tmp_path / "died").exists()
    [resumed] = [path.read_text() for path in tmp_path.glob("resumed-*")]
    assert resumed == f"{reading} {chunks}"
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(6)])
def test_a_worker_killed_at_a_random_moment_never_costs_a_result_of_many_classes(
    place: Path, undisturbed: Rows, workers: Workers, seed: int
) -> None:
    pick = random.Random(seed)
    workers.client.wait_for_workers(2)
    found = killed_once(
        workers, pick.uniform(0.0, 2.0), pick,
        lambda machine: swept(place, machine, **by(workers)),
    )  # fmt: skip
    assert lasting(found) == undisturbed
