"""Threads that take items of work from one queue."""

import threading

import pytest

from streamtron.core.threads import open_threads
from tests.helpers.processes import until


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_an_error_or_a_signal_nothing_is_begun(error, threads):
    begun = []

    def task(item: int) -> None:
        begun.append(item)
        raise error

    with open_threads(threads) as opened, pytest.raises(error):
        opened.work(task, range(9))
    assert 1 <= len(begun) <= threads


@pytest.mark.parametrize("failing", [[0], [1], [0, 1]], ids=str)
def test_the_error_of_the_first_item_comes_out_whichever_failed_first(failing):
    begun, last_failed = threading.Barrier(2), threading.Event()

    def task(item: int) -> None:
        begun.wait(60.0)
        if item == 0 and failing == [0, 1]:
            assert last_failed.wait(60.0)
        try:
            if item in failing:
                raise RuntimeError(f"of item {item}")
        finally:
            if item == 1:
                last_failed.set()

    with open_threads(2) as opened, pytest.raises(RuntimeError, match=f"of item {failing[0]}"):
        opened.work(task, [0, 1])
    until(lambda: not any("learner" in t.name for t in threading.enumerate()))


def test_a_signal_in_the_calling_thread_waits_for_no_task_of_another():
    caller = threading.current_thread()
    begun, ended, returned = (threading.Event() for _ in range(3))

    def task(item: int) -> None:
        if threading.current_thread() is caller:
            assert begun.wait(60.0)
            raise KeyboardInterrupt
        begun.set()
        ended.wait(20.0)
        returned.set()

    try:
        with pytest.raises(KeyboardInterrupt), open_threads(2) as opened:
            opened.work(task, [1, 2])
        assert not returned.is_set()
    finally:
        ended.set()
