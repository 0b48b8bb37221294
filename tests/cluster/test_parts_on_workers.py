"""One model on several workers, real ones: processes that talk over TCP, and are killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamtron.cluster.client import Workers
from streamtron.cluster.connect import connect
from streamtron.cluster.parts import WorkerParts, parts_on
from streamtron.core import kernels
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, MachineError
from streamtron.core.events import Event, ReadingDone
from streamtron.core.executor import Parts
from streamtron.data.writers.corpus import generate
from streamtron.runs.fit import run as fit
from streamtron.runs.parts import OpenParts, PartPlan
from streamtron.runs.results import Outcome
from tests.helpers.optimum import holds_optimum
from tests.helpers.processes import Run

ALL, BLOCKS = 10**9, 300_000
SHARDS, COLUMNS = 7, 400


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with shards (train)."""
    directory = tmp_path_factory.mktemp("trainer")
    generate(str(directory / "train"), rows=2100, columns=COLUMNS, seed=1, shards=SHARDS)
    return directory


def trained(
    place: Path, model: Path, open_parts: OpenParts | None, active_set: int = ALL, **how: Any
) -> Outcome:
    settings = Settings(C=2.0, tol=0.02, parts=SHARDS, active_set=active_set)
    return fit(
        [place / "train"], settings, model=model, machine=Machine(), open_parts=open_parts, **how
    )


@pytest.fixture(scope="module", params=[ALL, BLOCKS])
def active_set(request: pytest.FixtureRequest) -> int:
    """Bytes that hold all rows, and bytes that hold some of those that matter."""
    return int(request.param)


@pytest.fixture(scope="module")
def alone(place: Path, active_set: int) -> bytes:
    """The model of one process."""
    trained(place, place / f"alone-{active_set}", None, active_set)
    return (place / f"alone-{active_set}").read_bytes()


def test_workers_find_the_bits_of_one_process(
    place: Path, workers: Workers, alone: bytes, active_set: int, tmp_path: Path
) -> None:
    found = trained(place, tmp_path / "m", parts_on(workers), active_set)
    assert (tmp_path / "m").read_bytes() == alone
    assert holds_optimum(found.report, sorted((place / "train").glob("*.svm")))


@pytest.mark.slow
def test_one_three_and_four_workers_find_the_same_bits(
    place: Path, alone: bytes, active_set: int, tmp_path: Path
) -> None:
    for number in (1, 3, 4):
        with connect(number) as found:
            trained(place, tmp_path / f"{number}", parts_on(found), active_set)
        assert (tmp_path / f"{number}").read_bytes() == alone


def test_a_round_sends_a_vector_of_the_columns_to_each_worker_and_back(
    workers: Workers, tmp_path: Path
) -> None:
    generate(str(tmp_path / "wide"), rows=400, columns=40_000, seed=1, shards=4)
    found = fit([tmp_path / "wide"], Settings(), machine=Machine(), open_parts=parts_on(workers))
    report, d = found.report, 40_000
    of_a_scan = 2 * 8 * kernels.BINS * kernels.BIN_SUMS
    scans = report["steps"]["scan"]["rounds"]
    assert report["parts"] == 4
    assert report["bytes_sent"] - scans * of_a_scan <= report["rounds"] * 2 * 2.2 * 8 * d
    assert report["bytes_sent"] > report["rounds"] * 8 * d


class Killing(WorkerParts):
    """Parts of which a worker is killed before round ``at``, or within it."""

    def __init__(self, at: int, within: bool, mark: Path, *how: Any) -> None:
        super().__init__(*how)
        self.left, self.within, self.mark = at, within, mark
        self.pick = random.Random(at)

    def _map(self, step: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        self.left -= 1
        if self.left == 0 and not self.within:
            os.kill(self.pick.choice([*self._workers.client.run(os.getpid).values()]), 9)
        if self.left == 0 and self.within:
            step = partial(_dying, step, str(self.mark))
            step.__name__ = "dying"  # type: ignore[attr-defined]
        return super()._map(step, arguments)


def _dying(step: Callable[..., Any], mark: str, part: Any, *arguments: Any) -> Any:
    """Make a step in a process that dies behind it, the first one that comes here."""
    found = step(part, *arguments)
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return found
    os.kill(os.getpid(), signal.SIGKILL)
    return None


@contextmanager
def _killing(
    workers: Workers, at: int, within: bool, mark: Path,
    plans: Sequence[PartPlan], scans: int | None,
) -> Iterator[Parts]:  # fmt: skip
    parts = Killing(at, within, mark, workers, plans, scans)
    parts.open(range(len(plans)))
    yield parts
    parts.close()


def killed_at(
    rounds: Sequence[tuple[int, bool]], place: Path, workers: Workers, tmp_path: Path,
    active_set: int, wanted: bytes,
) -> None:  # fmt: skip
    for at, within in rounds:
        model, mark = tmp_path / f"{at}-{within}", tmp_path / f"dead-{at}"
        found = trained(place, model, partial(_killing, workers, at, within, mark), active_set)
        assert model.read_bytes() == wanted, at
        assert not within or mark.exists()
        assert found.report["steps"]["start"]["rounds"] == 1 + (at <= 2), at


def test_a_worker_killed_between_or_within_rounds_changes_no_bit(
    place: Path, workers: Workers, alone: bytes, active_set: int, tmp_path: Path
) -> None:
    rounds = [(1, True), (5, False)] if active_set == ALL else [(9, True)]
    killed_at(rounds, place, workers, tmp_path, active_set, alone)


@pytest.mark.slow
def test_twenty_workers_killed_change_no_bit(
    place: Path, workers: Workers, alone: bytes, active_set: int, tmp_path: Path
) -> None:
    pick = random.Random(3)
    rounds = [(at, pick.random() < 0.5) for at in range(2, 12)]
    killed_at(rounds, place, workers, tmp_path, active_set, alone)


def test_a_run_begun_in_one_process_is_resumed_on_workers(
    place: Path, workers: Workers, alone: bytes, active_set: int, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, ReadingDone) and event.reading == 2:
            raise InterruptedError

    if active_set == ALL:
        return  # it ends with its first scan
    with pytest.raises(InterruptedError):
        trained(place, tmp_path / "m", None, active_set, listen=stop)
    trained(place, tmp_path / "m", parts_on(workers), active_set, resume=True)
    assert (tmp_path / "m").read_bytes() == alone


def test_an_error_of_a_part_is_its_own_sentence(
    place: Path, guest: Workers, tmp_path: Path
) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    (tmp_path / "b.svm").write_text("1 1:1\n-1 x\n")
    with pytest.raises(DataError, match=r"b\.svm.*line 2"):
        fit(
            [tmp_path], Settings(parts=2), model=tmp_path / "m", machine=Machine(),
            open_parts=parts_on(guest),
        )  # fmt: skip


def test_a_worker_that_does_not_see_a_shard_is_named(
    place: Path, guest: Workers, tmp_path: Path
) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    (tmp_path / "b.svm").write_text("1 1:1\n-1 3:1\n")

    @contextmanager
    def unseen(plans: Sequence[PartPlan], scans: int | None) -> Iterator[Parts]:
        (tmp_path / "b.svm").rename(tmp_path / "away")
        with parts_on(guest)(plans, scans) as parts:
            yield parts

    with pytest.raises(MachineError, match=r"b\.svm: worker \w+ does not see it"):
        fit(
            [tmp_path], Settings(parts=2), model=tmp_path / "m", machine=Machine(),
            open_parts=unseen,
        )  # fmt: skip


@pytest.mark.slow
def test_the_command_fits_on_workers(place: Path, run: Run, alone: bytes, active_set: int) -> None:
    model, size = f"m-{active_set}", f"{active_set}B"
    done = run(
        "fit", "train", "--model", model, "--workers", "2", "--C", "2", "--tol", "0.02",
        "--active-set", size,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (place / model).read_bytes() == alone
