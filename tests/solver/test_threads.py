"""Threads that share out what is to be done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from streamtron.solver.batched import open_threads


def eventually(happens: Callable[[], bool]) -> bool:
    """Whether it does within a minute."""
    deadline = time.monotonic() + 60.0
    while not happens() and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    return happens()


@pytest.mark.parametrize("threads", [1, 3])
def test_every_item_is_done_once(threads: int) -> None:
    done: list[int] = []
    with open_threads(threads) as opened:
        opened.work(done.append, range(100))
        opened.work(done.append, [])
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_an_error_or_a_signal_nothing_is_begun(error: type[BaseException]) -> None:
    begun = []

    def task(item: int) -> None:
        begun.append(item)
        raise error

    with open_threads(1) as opened, pytest.raises(error):
        opened.work(task, [1, 2])
    assert begun == [1]


def test_after_an_error_no_thread_is_left_waiting() -> None:
    def task(item: str) -> None:
        if item == "fails":
            raise RuntimeError("as it should")

    with open_threads(2) as opened, pytest.raises(RuntimeError, match="as it should"):
        opened.work(task, ["fails", "short"])
    assert eventually(lambda: not any("learner" in one.name for one in threading.enumerate()))
