"""Workers of Dask, real ones: processes that talk over TCP on loopback, and are killed."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import dask
import distributed  # noqa: F401 (else the end of a dask.config.set takes its defaults away)
import numpy as np
import pytest

from streamtron.cluster.client import usable_memory
from streamtron.cluster.connect import connect
from streamtron.cluster.parts import parts_on
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, MachineError
from streamtron.core.executor import serial
from streamtron.data.writers.corpus import generate
from streamtron.model.linear_model import LinearModel
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import run as fit
from streamtron.runs.memory import check_worker, worker_memory_needed
from streamtron.runs.predict import write_predictions
from tests.helpers.dask_processes import dask_scheduler, dask_worker
from tests.helpers.processes import here, until

COLUMNS = 200


@pytest.fixture(scope="module")
def model():
    weights = np.random.default_rng(0).normal(size=COLUMNS)
    return LinearModel(weights, 0.25, (-1.0, 1.0), {}, None, {"index_base": 1})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Five shards of text, one of them without a row."""
    directory = tmp_path_factory.mktemp("corpus") / "shards"
    generate(str(directory), rows=9000, columns=COLUMNS, seed=3, shards=4)
    (directory / "part-00001b.svm").write_text("# nothing\n")
    return directory


def test_workers_of_a_command_import_nothing_from_its_directory(model, corpus, tmp_path):
    for name in ("multiprocessing", "socket", "numpy", "distributed"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\n")
    model.save(tmp_path / "model")
    words = ["evaluate", "model", corpus, "--workers", "1"]
    done = subprocess.run(
        [Path(sys.executable).parent / "streamtron", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "imported").exists()


def test_our_workers_keep_memory_that_is_going_to_be_asked_for_again():
    """Dask's own would give it back with every array, which makes a fit half as slow again; and
    would take no task while they hold four fifths of their limit, as parts do."""
    spawned = {"distributed.worker.multiprocessing-method": "spawn"}
    with dask.config.set(spawned), connect(1, machine=Machine(memory=10**9)) as workers:
        found = workers.client.run(os.environ.get, "MALLOC_TRIM_THRESHOLD_")
        usable = workers.client.submit(usable_memory).result()
    assert set(found.values()) == {None}
    assert usable == 950_000_000


def test_an_error_in_a_shard_is_that_of_one_process(guest, model, tmp_path):
    for number, text in enumerate(["1 1:1\n"] * 4 + ["1 1:1\n1 2:x\n", "1 1:1\n"]):
        (tmp_path / f"{number}.svm").write_text(text)
    sentences = set[str]()
    for executor in (serial, guest):
        with pytest.raises(DataError, match=r"4\.svm, line 2") as caught:
            write_predictions(model, tmp_path, tmp_path / "out", executor=executor)
        sentences.add(str(caught.value))
    assert len(sentences) == 1
    assert not (tmp_path / "out").exists()


def test_of_several_errors_that_of_the_first_item_is_told_whichever_came_first(guest, tmp_path):
    def states(dask_scheduler: Any) -> list[str]:
        return [task.state for task in dask_scheduler.tasks.values()]

    def let_the_first_go_on() -> None:
        until(lambda: "erred" in guest.client.run_on_scheduler(states))
        (tmp_path / "go").touch()

    guest.client.wait_for_workers(2)
    watching = threading.Thread(target=let_the_first_go_on)
    watching.start()
    with pytest.raises(DataError, match=r"^first failed$"):
        list(guest(_fails_in_turn, ["first", "second", "third"], str(tmp_path)))
    watching.join()


def _fails_in_turn(item: str, directory: str) -> list[str]:
    """The first item's task goes on only when it is allowed to; the third does not fail."""
    if item == "first":
        until(Path(directory, "go").exists)
    if item != "third":
        raise DataError(f"{item} failed")
    return [item]


def _dies_once(item: int, directory: str) -> Iterator[int]:
    """The first two items' tasks kill their process once."""
    mark = Path(directory, f"died-{item}")
    if item < 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield 10 * item


def test_a_task_whose_result_is_here_does_not_run_again_when_its_worker_dies(workers, tmp_path):
    """It would, and still write files when all the results are here."""
    client = workers.client
    client.wait_for_workers(2)
    address_of = {pid: address for address, pid in client.run(os.getpid).items()}
    results = workers(_waits_if_second, [0, 1], str(tmp_path))
    pid = next(results)
    assert client.submit(int, "7", pure=False).result() == 7  # all said before is heard
    os.kill(pid, signal.SIGKILL)
    until(lambda: address_of[pid] not in client.nthreads())
    tasks = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    known = [str(key).split("-") for key in tasks]
    assert [key[2] for key in known if key[0] == "_waits_if_second"] == ["1"]
    (tmp_path / "go").touch()
    assert len(list(results)) == 1
    assert len(list(tmp_path.glob("began-0-*"))) == 1


def _waits_if_second(item: int, directory: str) -> Iterator[int]:
    Path(directory, f"began-{item}-{os.getpid()}").touch()
    if item:
        until(Path(directory, "go").exists)
    yield os.getpid()


def test_a_task_whose_worker_is_killed_runs_again_though_it_takes_long_to_come_back(tmp_path):
    """Dask would close the cluster's only worker before it is there again."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1 ms"}), connect(1) as workers:
        assert list(workers(_dies_once, [0, 2, 1, 3], str(tmp_path))) == [0, 20, 10, 30]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["died-0", "died-1"]


@pytest.mark.slow
def test_a_task_that_kills_every_worker_is_a_sentence(guest):
    with pytest.raises(MachineError, match=r"_dies-.*workers died one after the other"):
        list(guest(_dies, ["a"]))


def _dies(_: str) -> Iterator[int]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield 0


def test_a_failure_ends_our_workers(model, tmp_path):
    (tmp_path / "bad.svm").write_text("1 1:x\n")
    with connect(1) as workers:
        with pytest.raises(DataError):
            evaluate(model, tmp_path / "bad.svm", executor=workers)
        with pytest.raises(MachineError, match="gone since an error before"):
            list(workers(_waits_once, ["a"], str(tmp_path)))


COMMANDS = (
    "predict many corpus -o {out}.parquet",
    "evaluate model corpus --json",
    "certify model corpus --C 1 --readings 2",
)


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_do_with_a_scheduler_what_they_do_without(workers, corpus, model, tmp_path, words):
    """The scheduler's workers were started in another directory than the command."""
    model.save(tmp_path / "model")
    many = np.stack([model.weights, -model.weights, model.weights[::-1]])
    reading = {"index_base": 1, "multiclass": True}
    LinearModel(many, np.zeros(3), (-1.0, 1.0, 2.0), {}, None, reading).save(tmp_path / "many")
    os.symlink(corpus, tmp_path / "corpus")
    ended, out = [], tmp_path / "out"
    for where in ([], ["--scheduler", workers.client.scheduler.address]):
        out.mkdir()
        done = here(tmp_path, *words.format(out="out/it").split(), *where)
        ended.append((done, {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()}))
        shutil.rmtree(out)
    assert ended[0] == ended[1]
    assert done.returncode == 0
    assert ended[0][1] or done.stdout


PART = Settings(active_set=10**8)


def needed(parts: int, at_once: int, settings: Settings = PART, columns: int = 0) -> int:
    needs = worker_memory_needed(settings, parts=parts, at_once=at_once, columns=columns)
    return sum(needs.values())


@pytest.mark.parametrize(("short", "more"), [(1, 0), (0, 1)], ids=["a byte", "a column"])
def test_a_worker_is_refused_by_a_byte_or_a_column_with_the_sum_and_what_to_do(short, more):
    enough = needed(4, 2, columns=500)
    check_worker(PART, "w", enough, parts=4, at_once=2, columns=500)
    sentence = "worker w needs .*weights.*active sets of 4 parts 400.0 MB.*fewer --workers"
    with pytest.raises(MachineError, match=sentence):
        check_worker(PART, "w", enough - short, parts=4, at_once=2, columns=500 + more)
    check_worker(PART, "w", None, parts=4, at_once=2, columns=10**9)


@pytest.mark.parametrize(("memory", "enough"), [(290_000_000, False), (450_000_000, True)])
def test_workers_refuse_parts_for_which_they_have_no_memory(tmp_path, memory, enough):
    """The default active set is more than either has, but the rows cannot fill it."""
    generate(str(tmp_path / "train"), rows=40, columns=80, seed=1, shards=2)
    machine, sentence = Machine(memory=memory), r"worker \d needs .*active sets of 2 parts"
    refused = nullcontext() if enough else pytest.raises(MachineError, match=sentence)
    with connect(1, machine=machine) as workers, refused:
        where = parts_on(workers)
        model = fit([tmp_path / "train"], Settings(), machine=machine, open_parts=where).model
        assert model.settings["active_set"] == 10**9


@pytest.mark.slow
def test_a_task_that_takes_more_than_its_workers_memory_is_a_sentence(tmp_path):
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        connect(1, machine=Machine(memory=400_000_000)) as workers,
        pytest.raises(MachineError, match="larger --memory"),
    ):
        list(workers(_hungry, [10**9]))


def _hungry(size: int) -> Iterator[int]:
    held = bytearray(b"1") * size
    threading.Event().wait()  # its nanny ends it
    yield len(held)


def _waits_once(item: str, directory: str) -> Iterator[str]:
    mark = Path(directory, item)
    if item == "a" and not mark.exists():
        mark.write_text(str(os.getpid()))
        threading.Event().wait()
    yield item


def _kill_once_begun(mark: Path, pid: int) -> None:
    until(mark.exists)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_scheduler_without_workers_or_with_one_that_hangs_is_a_sentence(scheduler, stopped):
    with ExitStack() as stack:
        if stopped:
            os.kill(stack.enter_context(dask_worker(scheduler)).pid, signal.SIGSTOP)
            stack.enter_context(dask_worker(scheduler))
        with pytest.raises(MachineError, match="no worker has answered for 2 s"):
            stack.enter_context(connect(scheduler=scheduler, timeout=2.0))


@pytest.mark.slow
def test_a_worker_with_another_version_is_a_sentence(scheduler, tmp_path):
    other = tmp_path / "streamtron-99.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: streamtron\nVersion: 99.0\n")
    with (
        dask_worker(scheduler, f"import sys; sys.path.insert(0, {str(tmp_path)!r})"),
        pytest.raises(MachineError, match=r"has streamtron 99\.0, this is"),
        connect(scheduler=scheduler),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gone", "sentence"),
    [("scheduler", "the scheduler is gone"), ("worker", "no workers are left")],
)
def test_a_scheduler_that_goes_away_or_its_last_worker_is_a_sentence(tmp_path, gone, sentence):
    file = tmp_path / "scheduler.json"
    with (
        dask_scheduler("--scheduler-file", file) as address,
        dask_worker(address) as worker,
        connect(scheduler=str(file)) as workers,
    ):
        pids = {"scheduler": workers.client.run_on_scheduler(os.getpid), "worker": worker.pid}
        results = workers(_waits_once, ["a"], str(tmp_path))
        threading.Thread(target=_kill_once_begun, args=(tmp_path / "a", pids[gone])).start()
        with pytest.raises(MachineError, match=sentence):
            list(results)
