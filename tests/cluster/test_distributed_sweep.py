"""Sweeps over workers, real ones: processes that talk over TCP on loopback, and are killed."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streamtron import sweep
from streamtron.cluster import sweep as distributed_sweep
from streamtron.cluster.connect import connect
from streamtron.cluster.sweep import SweepExecutor, checkpoints_of, fit_on_worker
from streamtron.core import files
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError
from streamtron.core.events import Event, TrialDone
from streamtron.data.writers.corpus import generate
from streamtron.runs.fit import run as fit_alone
from streamtron.runs.store import SavedState, Store
from streamtron.sweeps.folds import Fold
from streamtron.sweeps.grid import candidates_of, describe_candidate
from streamtron.sweeps.sweep import Sweep, Task
from tests.helpers.processes import here, succeeded
from tests.helpers.sweep_rows import NAMES, by, lasting, write_shard


class Dying:
    """``fit_on_worker`` on a worker that kills itself once, right behind the checkpoint before a
    reading, and notes from which reading a task goes on."""

    def __init__(self, marks: str, at: int, shared: bool = True) -> None:
        self.marks, self.at, self.shared = Path(marks), at, shared
        self.__name__ = "dying"

    def __call__(self, task: Task, *shared: Any) -> Any:
        real_save, real_load = Store.save, Store.state

        def save(run: Store, saved: SavedState) -> None:
            if (self.marks / "died").exists():
                return  # later ones take long and are not needed
            real_save(run, saved)
            if saved.state.reading == self.at:
                with suppress(FileExistsError):  # of two that come here at once, one dies
                    (self.marks / "died").touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)

        def load(run: Store) -> SavedState | None:
            found = real_load(run)
            if found is not None:
                (self.marks / f"resumed-{run.path.name}").write_text(f"{found.state.reading}")
            return found

        if not self.shared and (self.marks / "died").exists():
            task = task._replace(run_dir=f"{task.run_dir}-elsewhere/run")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "save", save)
            patch.setattr(Store, "state", load)
            return fit_on_worker(task, *shared)


GRID: dict[str, Any] = {"C": (0.01, 0.1, 1.0, 100.0), "rho": (0.0, 1.0)}
CANDIDATES = candidates_of(Settings(), GRID)

LONG: dict[str, dict[str, Any]] = {
    "two": {"C": (1.0, 10.0, 100.0), "tol": 1e-5, "active_set": 60_000, "max_epochs": 12},
    "many": {
        "C": (0.01, 0.1),
        "rho": (0.0, 1.0),
        "tol": 1e-5,
        "active_set": 120_000,
        "max_epochs": 3,
        "multiclass": True,
        "metric": "macro_f1",
    },
}
"""Corpus → candidates that take many readings, for their rows do not fit in memory."""

ROWS, LATE = 4600, 4200
"""Two blocks of rows of many classes; the first cow comes in the second one."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with shards to fit (train, four of them) and to measure on (held-out), of two
    classes and of many."""
    directory = tmp_path_factory.mktemp("trainer")
    for name, rows, first, shards in (("train", 1200, 0, 4), ("held-out", 400, 1200, 2)):
        where = str(directory / "two" / name)
        generate(where, rows=rows, columns=400, seed=1, shards=shards, first_row=first)
    chance = random.Random(2)
    for name, rows, late in (("train", ROWS, LATE), ("held-out", 300, 0)):
        labels = ([chance.choice(NAMES[: 2 if row < late else 3])] for row in range(rows))
        write_shard(directory / "many" / name / "0.svm", labels, chance)
    return directory


def swept(place: Path, kind: str = "two", *, valid: bool = True, **how: Any) -> Sweep:
    """A sweep over the candidates, unless there are others."""
    how = {**GRID, "folds": None if valid else 2, **how}
    return sweep(place / kind / "train", valid=place / kind / "held-out" if valid else None, **how)


SLOW = pytest.mark.slow
THREE_LOSSES = {"C": (0.01, 1.0), "loss": ("squared_hinge", "log_loss", "hinge")}


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("two", {}),
        ("two", {"valid": False, **THREE_LOSSES}),
        pytest.param("two", {"two_stage": True, "stage": "1,0.1"}, marks=SLOW),
        pytest.param("many", LONG["many"], marks=SLOW),
    ],
)
@pytest.mark.parametrize("count", [2, pytest.param(1, marks=SLOW), pytest.param(4, marks=SLOW)])
def test_workers_find_the_table_and_the_model_of_one_process(place, tmp_path, kind, how, count):
    told: list[Event] = []
    came: list[int] = []

    def counted(*given: Any) -> Iterator[Any]:
        trials = list(SweepExecutor(workers)(*given))
        came.append(sum(trial.outcome is not None for trial in trials))
        return iter(trials)

    with connect(count) as workers:
        workers.client.wait_for_workers(count)
        counted.tasks = count
        found = swept(
            place, kind, model=tmp_path / "best", listen=told.append, executor=counted, **how
        )
    assert max(came) <= count, "of every task one outcome comes over at most"
    assert lasting(found) == lasting(swept(place, kind, **how))
    assert {trial.costs.worker for trial in found.trials} <= set(map(str, range(count)))
    trials = [event.candidate for event in told if isinstance(event, TrialDone)]
    if not how:
        assert sorted(trials) == sorted(map(describe_candidate, CANDIDATES))
    if "two_stage" in how:
        ends = [name.endswith("0.1") for name in trials]
        assert ends == sorted(ends)
    settings, machine = found.best.settings, Machine()
    fit_alone(place / kind / "train", settings, model=tmp_path / "fit", machine=machine)
    assert (tmp_path / "best").read_bytes() == (tmp_path / "fit").read_bytes()


def test_tasks_of_a_sweep_have_names_that_say_what_they_fit(place, workers, monkeypatch):
    names, real = [], workers.client.submit

    def submit(*given: Any, key: str) -> Any:
        names.extend(key.split("-", 3)[3:])  # function, token, place, name
        return real(*given, key=key)

    monkeypatch.setattr(workers.client, "submit", submit)
    swept(place, C=1.0, rho=1.0, two_stage=True, stage="1,0.1", **by(workers))
    assert names == ["sweep: C 1, rho 1, stage 1", "sweep: C 1, rho 1, stage 0.1"]


def test_a_worker_refuses_candidates_that_its_memory_cannot_hold(place, guest):
    large: Any = {"valid": place / "two" / "held-out", "machine": Machine(memory=1 << 60)}
    guest.client.run(setattr, distributed_sweep, "SHARE", 1e-3)
    try:
        with pytest.raises(MachineError, match="memory"):
            sweep(place / "two" / "train", **large, **by(guest))
    finally:
        guest.client.run(setattr, distributed_sweep, "SHARE", distributed_sweep.SHARE)


@pytest.mark.parametrize(
    ("kind", "reading", "shared"),
    [
        ("two", 2, True),
        pytest.param("two", 2, False, marks=pytest.mark.slow),
        pytest.param("many", 2, True, marks=pytest.mark.slow),
    ],
)
def test_a_dead_workers_candidates_go_on_from_their_checkpoint_where_the_disk_is_shared(
    place, workers, tmp_path, kind, reading, shared, monkeypatch
):
    dying = Dying(str(tmp_path), reading, shared)
    monkeypatch.setattr(distributed_sweep, "fit_on_worker", dying)
    workers.client.wait_for_workers(2)
    cache = tmp_path / "cache"
    machine = Machine(cache_dir=str(cache))
    found = swept(place, kind, machine=machine, **LONG[kind], **by(workers))
    assert lasting(found) == lasting(swept(place, kind, **LONG[kind]))
    assert (tmp_path / "died").exists()
    resumed = [path.read_text() for path in tmp_path.glob("resumed-*")]
    assert resumed == ([f"{reading}"] if shared else [])
    assert not [path for path in cache.iterdir() if path.is_dir()]  # no checkpoint is left


def test_a_task_begins_anew_where_another_process_is_still_at_it(place):
    task = Task(Fold([], [], None), {0: CANDIDATES[0]}, "", str(place / "scratch" / "task"))
    assert checkpoints_of(task) is None, "the disk is another one"
    Path(task.run_dir).parent.mkdir()
    assert checkpoints_of(task) == task.run_dir
    with files.locked(Path(task.run_dir)):
        assert checkpoints_of(task) is None
    assert checkpoints_of(task) == task.run_dir


def test_the_command_sweeps_over_workers_and_tells_of_every_candidate(place, workers):
    words = ["two/train", "--valid", "two/held-out", "--C", "0.01,0.1", "--rho", "0,1", "-v"]
    done = succeeded(here(place, "sweep", *words, "--scheduler", workers.client.scheduler.address))
    assert done.stderr.count("(worker ") == 4
    assert "C 0.01, rho 0: accuracy 0." in done.stderr
