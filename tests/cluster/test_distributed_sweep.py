"""Sweeps over workers, real ones: processes that talk over TCP on loopback, and are killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamtron.cluster import sweep as distributed_sweep
from streamtron.cluster.client import Workers
from streamtron.cluster.connect import connect
from streamtron.cluster.sweep import checkpoints_of, sweep_executor
from streamtron.core import files
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, MachineError
from streamtron.core.events import Event, ReadingStarted, TrialDone
from streamtron.data.writers.corpus import generate
from streamtron.runs.fit import fit, fit_many
from streamtron.runs.fit import run as fit_alone
from streamtron.sweeps.folds import Fold
from streamtron.sweeps.grid import candidates_of, describe_candidate
from streamtron.sweeps.sweep import Sweep, Task, _tasks, run_sweep
from tests.helpers.killed_workers import Cut, Dying, killed_once
from tests.helpers.processes import here, until
from tests.helpers.sweep_rows import Rows, by, lasting

ROWS, HELD = 1200, 400
CANDIDATES = candidates_of(Settings(), {"C": (0.01, 0.1, 1.0, 100.0), "rho": (0.0, 1.0)})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with shards to fit (train, four of them) and to measure on (held-out)."""
    directory = tmp_path_factory.mktemp("trainer")
    for name, rows, first, shards in (("train", ROWS, 0, 4), ("held-out", HELD, ROWS, 2)):
        where = str(directory / name)
        generate(where, rows=rows, columns=400, seed=1, shards=shards, first_row=first)
    return directory


def swept(place: Path, *, valid: bool = True, **how: Any) -> Sweep:
    return run_sweep(
        place / "train", CANDIDATES, valid=place / "held-out" if valid else None,
        folds=None if valid else 2, machine=how.pop("machine", Machine()), **how,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(place: Path) -> Rows:
    """The table of one scan in one process."""
    return lasting(swept(place))


# --- the same as one process ---------------------------------------------------------------------


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "count", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_workers_find_the_table_and_the_model_of_one_process(
    place: Path, alone: Rows, tmp_path: Path, count: int
) -> None:
    told: list[Event] = []
    with connect(count) as workers:
        workers.client.wait_for_workers(count)
        found = swept(place, model=tmp_path / "best", listen=told.append, **by(workers))
    assert lasting(found) == alone
    assert {trial.costs.worker for trial in found.trials} <= {
        str(number) for number in range(count)
    }
    trials = [event.candidate for event in told if isinstance(event, TrialDone)]
    assert sorted(trials) == sorted(map(describe_candidate, CANDIDATES))
    fit_alone(place / "train", found.best.settings, model=tmp_path / "fit", machine=Machine())
    assert (tmp_path / "best").read_bytes() == (tmp_path / "fit").read_bytes()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        pytest.param({}, [2], marks=pytest.mark.slow),
        ({"halving": True}, [0, 0, 2]),
        pytest.param({"two_stage": True}, [2, 2], marks=pytest.mark.slow),
    ],
    ids=["one iteration", "halving", "two-stage"],
)
def test_of_every_task_one_outcome_comes_over_at_most_and_the_best_is_among_them(
    place: Path, workers: Workers, how: dict[str, Any], expected: list[int]
) -> None:
    came: list[int] = []

    def counted(*given: Any) -> Iterator[Any]:
        trials = list(sweep_executor(workers)(*given))
        came.append(sum(trial.outcome is not None for trial in trials))
        return iter(trials)

    found = swept(place, executor=counted, tasks=2, **how)
    assert found.outcome is not None, "and nothing was fitted once more for it"
    assert found.outcome.model == fit(place / "train", settings=found.best.settings)
    assert came == expected


@pytest.mark.parametrize("halving", [False, True])
@pytest.mark.parametrize("valid", [False, True])
def test_folds_and_rungs_on_workers_give_the_table_of_one_process(
    place: Path, workers: Workers, valid: bool, halving: bool
) -> None:
    many = swept(place, valid=valid, halving=halving, **by(workers))
    assert lasting(many) == lasting(swept(place, valid=valid, halving=halving))


@pytest.mark.parametrize("folds", [1, 3])
def test_candidates_are_distributed_once_each_whatever_the_number_of_tasks(folds: int) -> None:
    names = [Fold([], [], str(number)) for number in range(folds)]
    for count in range(1, 9):
        for most in range(1, 9):
            some = dict(enumerate(CANDIDATES[:count]))
            tasks = _tasks(names, some, count=most, cache="", scratch="")
            for fold in names:
                own = [task.candidates for task in tasks if task.fold is fold]
                assert sorted(number for each in own for number in each) == list(range(count))
                assert len(own) == min(count, -(-most // folds))
                assert max(map(len, own)) - min(map(len, own)) <= 1
            assert len({task.run_dir for task in tasks}) == len(tasks)


def test_tasks_of_a_sweep_have_names_that_say_what_they_fit(
    place: Path, workers: Workers, task_names: list[str]
) -> None:
    swept(place, **by(workers))
    assert task_names[0].startswith("sweep: C 0.01, rho 0; ")
    assert len(task_names) == 2


def test_an_error_of_a_fold_is_the_sentence_of_one_process(
    tmp_path: Path, workers: Workers
) -> None:
    for number, text in enumerate(("1 1:1\n-1 2:1\n", "1 1:1\n-1 1:x\n")):
        (tmp_path / f"{number}.svm").write_text(text)
    sentences = []
    with connect(scheduler=workers.client.scheduler.address) as guest:
        for where in ({}, by(guest)):
            with pytest.raises(DataError) as caught:
                run_sweep(tmp_path, CANDIDATES[:2], folds=2, machine=Machine(), **where)
            sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]


def test_a_worker_refuses_candidates_that_its_memory_cannot_hold(
    place: Path, workers: Workers, tmp_path: Path
) -> None:
    (tmp_path / "wide.svm").write_text("1 2000000000:1\n-1 1:1\n")
    large = [Settings()]
    with (
        connect(scheduler=workers.client.scheduler.address) as guest,
        pytest.raises(MachineError, match="memory"),
    ):
        run_sweep(
            tmp_path / "wide.svm", large, valid=place / "held-out", machine=Machine(memory=1 << 60),
            **by(guest),
        )  # fmt: skip


# --- what is killed ------------------------------------------------------------------------------


LASTING_LONG = candidates_of(
    Settings(tol=1e-5, active_set=60_000, max_epochs=12), {"C": (1.0, 10.0, 100.0)}
)
"""Candidates that take many readings, for their rows do not fit in memory."""


def swept_long(place: Path, machine: Machine, **where: Any) -> Sweep:
    """A sweep that lasts long enough to be disturbed."""
    return run_sweep(
        place / "train", LASTING_LONG, valid=place / "held-out", machine=machine, **where
    )


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> Rows:
    """Its table, from one process."""
    return lasting(swept_long(place, Machine()))


@pytest.fixture(scope="module")
def seconds(place: Path, workers: Workers) -> float:
    """Seconds that it takes warm workers without a disturbance."""
    for _ in range(2):
        began = time.perf_counter()
        swept_long(place, Machine(), **by(workers))
    return time.perf_counter() - began


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_worker_killed_at_a_random_moment_of_a_sweep_never_costs_a_result(
    place: Path, undisturbed: Rows, workers: Workers, seconds: float, seed: int
) -> None:
    pick = random.Random(seed)
    workers.client.wait_for_workers(2)
    found = killed_once(
        workers, pick.uniform(0.0, seconds), pick,
        lambda machine: swept_long(place, machine, **by(workers)),
    )  # fmt: skip
    assert lasting(found) == undisturbed


@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_dead_workers_candidates_go_on_from_their_checkpoint_where_the_disk_is_shared(
    place: Path, undisturbed: Rows, workers: Workers, tmp_path: Path, shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(distributed_sweep, "fit_on_worker", Dying(str(tmp_path), (2, 0), shared))
    workers.client.wait_for_workers(2)
    cache = tmp_path / "cache"
    machine = Machine(checkpoint_every=0.0, cache_dir=str(cache))
    found = swept_long(place, machine, **by(workers))
    assert lasting(found) == undisturbed
    assert (tmp_path / "died").exists()
    resumed = [path.read_text() for path in tmp_path.glob("resumed-*")]
    assert resumed == (["2 0"] if shared else [])
    assert not [path for path in cache.iterdir() if path.is_dir()]  # no checkpoint is left


def test_a_task_begins_anew_where_another_process_is_still_at_it(place: Path) -> None:
    fold = Fold([str(place / "train")], [str(place / "held-out")], None)
    task = Task(fold, {0: CANDIDATES[0]}, str(place), str(place / "scratch" / "task"))
    assert checkpoints_of(task) is None, "the disk is another one"
    Path(task.run_dir).parent.mkdir()
    assert checkpoints_of(task) == task.run_dir
    with files.locked(Path(task.run_dir)):
        assert checkpoints_of(task) is None
    assert checkpoints_of(task) == task.run_dir


@pytest.mark.slow
@pytest.mark.parametrize("reading", [1, 3])
def test_candidates_that_were_cut_off_go_on_to_the_same_models_without_reading_all_again(
    place: Path, tmp_path: Path, reading: int
) -> None:
    where: dict[str, Any] = {"machine": Machine(checkpoint_every=0.0), "cache_dir": str(tmp_path)}
    begun: list[int] = []

    def cut(event: Event) -> None:
        if isinstance(event, ReadingStarted) and event.reading > reading:
            raise Cut

    def note(event: Event) -> None:
        if isinstance(event, ReadingStarted):
            begun.append(event.reading)

    whole = fit_many(place / "train", LASTING_LONG, **where)
    with pytest.raises(Cut):
        fit_many(place / "train", LASTING_LONG, run_dir=str(tmp_path / "run"), listen=cut, **where)
    again = fit_many(
        place / "train", LASTING_LONG, run_dir=str(tmp_path / "run"), listen=note, **where
    )
    for one, other in zip(whole, again, strict=True):
        assert one.model.weights.tobytes() == other.model.weights.tobytes()
        assert one.report["certificate"] == other.report["certificate"]
        assert one.report["readings"] == other.report["readings"]
        assert one.counts[0].entries()[1].tolist() == other.counts[0].entries()[1].tolist()
    assert begun[0] == reading


@pytest.mark.slow
def test_a_sweep_that_is_interrupted_leaves_no_process_and_no_scratch(place: Path) -> None:
    cache = place / "stopped.run" / "cache"
    words = ["sweep", "train", "--folds", "2", "--C", "1,10,100", "--tol", "0", "--workers", "2",
             "--model", "stopped", "--max-epochs", "1000000"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "streamtron", *words], cwd=place, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    until(lambda: any(cache.glob("sweep-*/fold-*/*")) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()  # ends when the last process that could write has ended
    assert process.returncode == 130, said
    assert "SIGINT" in said
    assert not cache.exists()


def test_the_command_sweeps_over_workers_and_tells_of_every_candidate(
    place: Path, alone: Rows, workers: Workers
) -> None:
    words = ["train", "--valid", "held-out", "--C", "0.01,0.1,1,100", "--rho", "0,1", "-v"]
    done = here(place, "sweep", *words, "--scheduler", workers.client.scheduler.address)
    said = done.stderr
    assert done.returncode == 0, said
    assert said.count("(worker ") == len(alone)
    assert "C 0.01, rho 0: accuracy 0." in said
