"""Threads that share out what is to be done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from streamtron.solver.threads import open_threads


def eventually(happens: Callable[[], bool]) -> bool:
    """Whether it does within a minute."""
    deadline = time.monotonic() + 60.0
    while not happens() and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    return happens()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_task_may_tell_of_more_to_do(threads: int) -> None:
    done = []

    def halves(number: int) -> list[int]:
        done.append(number)
        return [number // 2] * 2 if number > 1 else []

    with open_threads(threads) as opened:
        opened.work(halves, [4, 2])
        opened.work(halves, [])
    assert sorted(done) == [1, 1, 1, 1, 1, 1, 2, 2, 2, 4]


def test_a_thread_that_has_nothing_to_do_takes_what_another_one_hands_over() -> None:
    both_at_work = threading.Barrier(2)
    done = set()

    def task(item: str) -> list[str]:
        if item == "long":
            assert eventually(lambda: opened.idle)
            return ["one half", "other half"]
        if "half" in item:
            both_at_work.wait(60.0)
        done.add((item, threading.get_ident()))
        return []

    with open_threads(2) as opened:
        opened.work(task, ["long", "short"])
        assert not opened.idle
    halves = {(item, thread) for item, thread in done if "half" in item}
    assert {item for item, _ in halves} == {"one half", "other half"}
    assert len({thread for _, thread in halves}) == 2


@pytest.mark.parametrize(("threads", "items"), [(1, 2), (3, 1)])
def test_nobody_waits_where_there_is_nobody_else_or_one_thing_to_do(
    threads: int, items: int
) -> None:
    idle = []
    with open_threads(threads) as opened:
        opened.work(lambda _: idle.append(opened.idle), range(items))
    assert idle == [False] * items


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
            assert eventually(lambda: opened.idle)
            raise RuntimeError("as it should")

    with open_threads(2) as opened, pytest.raises(RuntimeError, match="as it should"):
        opened.work(task, ["fails", "short"])
    assert eventually(lambda: not any("learner" in one.name for one in threading.enumerate()))
