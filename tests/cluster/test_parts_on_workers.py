"""One model on several workers, real ones: processes that talk over TCP, and are killed."""

import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed.actor import ActorFuture

from streamtron import StreamtronClassifier
from streamtron.cluster import parts as cluster_parts
from streamtron.cluster.connect import connect
from streamtron.cluster.parts import WorkerParts, parts_on
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, MachineError
from streamtron.core.events import ReadingDone
from streamtron.core.executor import Parts, Scans
from streamtron.data.writers.corpus import generate
from streamtron.model.linear_model import LinearModel
from streamtron.runs.certify import certify
from streamtron.runs.change import forget, update
from streamtron.runs.fit import run as fit
from streamtron.runs.parts import OpenParts, PartPlan
from streamtron.runs.report import Outcome
from tests.helpers.dask_processes import dask_worker
from tests.helpers.examples import slow_but
from tests.helpers.optimum import holds_optimum
from tests.helpers.processes import COMMAND, Process, until
from tests.helpers.runs import stopping, write_corpus

ALL, BLOCKS = 10**9, 150_000
SHARDS, COLUMNS = 7, 400


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with shards of two classes (train) and of three (many)."""
    directory = tmp_path_factory.mktemp("trainer")
    generate(str(directory / "train"), rows=1050, columns=COLUMNS, seed=1, shards=SHARDS)
    write_corpus(directory / "many", rows=700, columns=60, classes=3)
    return directory


def trained(
    place: Path, model: Path, open_parts: OpenParts | None, active_set: int = ALL, **how: Any
) -> Outcome:
    settings = Settings(C=2.0, tol=0.02, parts=SHARDS, active_set=active_set)
    return fit(
        [place / "train"], settings, model=model, machine=Machine(), open_parts=open_parts, **how
    )


@pytest.fixture(scope="module", params=[ALL, BLOCKS])
def active_set(request):
    """Bytes that hold all rows, and bytes that hold some of those that matter."""
    return int(request.param)


@pytest.fixture(scope="module")
def alone(place, active_set):
    """The model of one process."""
    trained(place, place / f"alone-{active_set}", None, active_set, overwrite=True)
    return (place / f"alone-{active_set}").read_bytes()


@pytest.mark.parametrize(
    ("kind", "rows", "d", "square"), [("text", 400, 40_000, 0), ("dense", 8000, 60, 61 * 62 // 2)]
)
def test_a_round_sends_a_vector_each_way_or_half_a_square(workers, tmp_path, kind, rows, d, square):
    generate(str(tmp_path / "d"), rows=rows, columns=d, seed=1, shards=4, kind=kind)
    found = fit([tmp_path / "d"], Settings(), machine=Machine(), open_parts=parts_on(workers))
    report = found.report
    assert report["parts"] == 4
    vectors = report["rounds"] * 2 * 2.2 * 8 * d
    squares = report["steps"]["look"]["rounds"] * 2 * 8 * (square and square + 2 * d)  # which ones
    assert report["bytes_sent"] <= vectors + squares
    assert report["bytes_sent"] > 0.9 * report["rounds"] * 8 * d
    each = report["workers"].values()
    assert [*report["workers"]] == sorted(workers.client.nthreads())
    assert sum(own["bytes_to"] + own["bytes_from"] for own in each) == report["bytes_sent"]
    assert min(own["bytes_to"] for own in each) >= 8 * d
    assert ("product" in report["steps"]) == (d > 1000)


class Killing(WorkerParts):
    """Parts of which a worker gets a signal before a round, or, with a ``mark``, within it."""

    left, mark, number = 0, None, signal.SIGKILL

    def _map(self, step: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        Killing.left -= 1
        if Killing.left == 0 and self.mark is None:
            pick = random.Random(7)
            os.kill(pick.choice([*self._workers.client.run(os.getpid).values()]), self.number)
        elif Killing.left == 0:
            step = partial(_signalled, step, str(self.mark), self.number)
        return super()._map(step, arguments)


def _signalled(step: Callable[..., Any], mark: str, number: int, part: Any, *arguments: Any) -> Any:
    """Make a step in a process that gets a signal behind it, the first one that comes here."""
    found = step(part, *arguments)
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return found
    os.kill(os.getpid(), number)
    return found


@pytest.fixture
def killing(monkeypatch, tmp_path):
    """A function that has a worker killed in a round, maybe within it; it returns the mark."""

    def at(left: int, *, within: bool = False, number: int = signal.SIGKILL) -> Path:
        mark = tmp_path / f"dead-{left}"
        monkeypatch.setattr(cluster_parts, "WorkerParts", Killing)
        for name, value in {"left": left, "mark": mark if within else None}.items():
            monkeypatch.setattr(Killing, name, value)
        monkeypatch.setattr(Killing, "number", number)
        return mark

    return at


def test_kills_between_or_within_rounds_change_no_bit(
    place, workers, alone, active_set, tmp_path, monkeypatch, killing
):
    told: list[str] = []
    monkeypatch.setattr(cluster_parts._log, "warning", told.append)
    for at, within in [(1, True), (5, False)] if active_set == ALL else [(5, True)]:
        model, mark = tmp_path / f"{at}", killing(at, within=within)
        found = trained(place, model, parts_on(workers), active_set)
        assert model.read_bytes() == alone, at
        assert mark.exists() == within
        assert told.pop() == "Lost a worker; the reading begins again, on those that are there."
        assert found.report["steps"]["describe"]["rounds"] == 2, at


@pytest.mark.parametrize("active_set", [ALL], indirect=True)
def test_a_connection_that_breaks_while_the_scheduler_knows_its_worker_is_a_worker_lost(
    place, workers, alone, tmp_path, monkeypatch
):
    result, calls = ActorFuture.result, itertools.count()

    def broken(answer: ActorFuture[Any], timeout: float) -> Any:
        if next(calls) == 5:
            raise OSError("Unable to contact Actor's worker")  # as distributed says it
        return result(answer, timeout)

    monkeypatch.setattr(ActorFuture, "result", broken)
    trained(place, tmp_path / "m", parts_on(workers))
    assert (tmp_path / "m").read_bytes() == alone


@pytest.mark.parametrize(
    "how", [{"penalty": "l1"}, {"penalty": "elasticnet"}, {"multiclass": True}], ids=str
)
def test_sparse_models_and_many_classes_survive_a_kill_to_the_bit(
    place, workers, tmp_path, killing, how
):
    wanted = {"C": 2.0, "tol": 1e-3, "parts": 3, "class_weight": "balanced"}
    one = {
        "shards": [place / ("many" if "multiclass" in how else "train")],
        "settings": Settings.from_dict(wanted | how),
        "machine": Machine(),
    }
    alone = fit(**one, model=tmp_path / "alone").report
    killing(alone["rounds"] // 2)
    found = fit(**one, model=tmp_path / "m", open_parts=parts_on(workers)).report
    assert (tmp_path / "m").read_bytes() == (tmp_path / "alone").read_bytes()
    assert found["rounds"] > alone["rounds"]
    assert found["certificate"]["relative_duality_gap"] <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("active_set", [ALL], indirect=True)
def test_a_worker_that_is_stopped_in_a_round_is_given_up_after_the_timeout(
    place, alone, tmp_path, killing
):
    mark = killing(3, within=True, number=signal.SIGSTOP)
    soon = {"distributed.scheduler.worker-ttl": "12 s"}
    with dask.config.set(soon), connect(2) as workers:
        found = trained(place, tmp_path / "m", parts_on(workers))
    assert mark.exists()
    assert (tmp_path / "m").read_bytes() == alone
    assert found.report["seconds"] > 10.0


def left_on(scheduler: str) -> tuple[list[str], list[int]]:
    """The tasks that a scheduler knows, and how many runs have parts in each worker."""
    with connect(scheduler=scheduler) as found:
        tasks = found.client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
        return tasks, [
            *found.client.run(
                lambda: sum(bool(holder.parts) for holder in cluster_parts._holders)
            ).values()
        ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_clients_interrupted_or_killed_leave_nothing_behind(place, scheduler, tmp_path, number):
    words = ("fit", "train", "--scheduler", scheduler, "--C", 2, "--tol", 0.02)
    with dask_worker(scheduler):
        for turn in range(2):
            log, model = tmp_path / f"{turn}.log", tmp_path / f"{turn}"
            how = ("--active-set", f"{BLOCKS}B", "--log", log, "--model", model)
            client = Process(COMMAND, *words, *how, cwd=place)
            until(
                lambda log=log, client=client: (
                    client.poll() is not None
                    or (log.exists() and '"reading_done"' in log.read_text())
                )
            )
            client.send_signal(number)
            assert client.end().returncode == (130 if number == signal.SIGINT else -number)
            assert number == signal.SIGKILL or left_on(scheduler) == ([], [0])
        until(lambda: left_on(scheduler) == ([], [0]))


@pytest.mark.parametrize("active_set", slow_but([ALL, BLOCKS], ALL), indirect=True)
def test_an_update_on_workers_is_that_of_one_process_and_proven(place, guest, active_set, tmp_path):
    shards = sorted((place / "train").glob("*.svm"))
    settings = Settings(C=2.0, parts=5, active_set=active_set)
    fit(shards[:5], settings, model=tmp_path / "m", machine=Machine())
    for name in ("here", "there"):
        shutil.copytree(tmp_path / "m.run", tmp_path / f"{name}.run")
        shutil.copy(tmp_path / "m", tmp_path / name)
    here = update(tmp_path / "here", shards[5:])
    there = update(tmp_path / "there", shards[5:], open_parts=parts_on(guest))
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert (there.report["parts"], there.report["readings"]) == (7, here.report["readings"])
    assert holds_optimum(there.report, shards)
    proof = certify(tmp_path / "there", executor=guest)
    assert proof.readings == (1.0 if active_set == ALL else 2.0)  # preparing is one of them
    ours = there.report["certificate"]["upper_bound"]
    assert proof.certificate.upper_bound == pytest.approx(ours, rel=1e-13)
    gone = forget(tmp_path / "there", shards[0], open_parts=parts_on(guest))
    assert gone.report["rows"] == 900
    assert holds_optimum(gone.report, shards[1:])


@pytest.mark.parametrize("active_set", [ALL], indirect=True)
def test_a_client_that_is_open_gives_its_workers_and_stays_open(place, workers, alone, tmp_path):
    trained(place, tmp_path / "m", parts_on(workers.client))
    assert (tmp_path / "m").read_bytes() == alone
    fitted = StreamtronClassifier(C=2.0, tol=0.02)
    fitted.fit_shards(place / "train", workers=workers.client)
    assert np.array_equal(fitted.coef_[0], LinearModel.load(tmp_path / "m").weights)
    assert workers.client.status == "running"


def test_tables_are_transformed_on_workers_to_the_same_bits(workers, tmp_path):
    for k in range(2):
        lines = [
            f"{row % 9},{'abcd'[row % 4]},word{row % 7} x y,{row % 2}" for row in range(k, 300)
        ]
        (tmp_path / f"{k}.csv").write_text("\n".join(["n,c,t,label", *lines]) + "\n")
    settings = Settings(columns="n:number,c:category", text="t", label="label", parts=2)
    there, here = (
        fit([tmp_path], settings, machine=Machine(), open_parts=parts).model
        for parts in (parts_on(workers), None)
    )
    assert there == here
    assert there.transformer.columns == ("t", "n", "c")


@pytest.mark.parametrize("active_set", [BLOCKS], indirect=True)  # else it ends with its first scan
def test_a_run_of_one_process_is_resumed_on_workers(place, workers, alone, active_set, tmp_path):
    listen = stopping(ReadingDone, 3)
    with pytest.raises(InterruptedError):
        trained(place, tmp_path / "m", None, active_set, listen=listen)
    trained(place, tmp_path / "m", parts_on(workers), active_set, resume=True)
    assert (tmp_path / "m").read_bytes() == alone


def two_parts(place: Path, last: str, open_parts: OpenParts) -> None:
    """Fit two shards, the last of which ends with a row that is given."""
    (place / "a.svm").write_text("1 1:1\n-1 2:1\n")
    (place / "b.svm").write_text(f"1 1:1\n{last}\n")
    settings, machine = Settings(parts=2), Machine()
    fit([place], settings, model=place / "m", machine=machine, open_parts=open_parts)


def test_an_error_of_a_part_is_its_own_sentence(guest, tmp_path):
    with pytest.raises(DataError, match=r"b\.svm.*line 2"):
        two_parts(tmp_path, "-1 x", parts_on(guest))


def test_a_worker_that_does_not_see_a_shard_is_named(guest, tmp_path):
    @contextmanager
    def unseen(plans: Sequence[PartPlan], scans: Scans) -> Iterator[Parts]:
        (tmp_path / "b.svm").rename(tmp_path / "away")
        with parts_on(guest)(plans, scans) as parts:
            yield parts

    with pytest.raises(MachineError, match=r"b\.svm: worker \w+ does not see it"):
        two_parts(tmp_path, "-1 3:1", unseen)
