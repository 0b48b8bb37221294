"""Threads that share the work on rows. They change no bit of any result: each number is computed
by one thread, as it would be by one alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """So many threads, the calling one among them; see ``open_threads``."""

    def __init__(self, number: int, pool: ThreadPoolExecutor | None) -> None:
        self.number, self._pool = number, pool

    def slices(self, number: int, least: int) -> list[slice]:
        """Cut so many items into a slice a thread, as long as each has at least ``least``.

        >>> Threads(2, None).slices(7, 3), Threads(2, None).slices(7, 4)
        ([slice(0, 3, None), slice(3, 7, None)], [slice(0, 7, None)])
        """
        cuts = max(1, min(self.number, number // least))
        borders = [number * k // cuts for k in range(cuts + 1)]
        return [slice(start, stop) for start, stop in pairwise(borders)]

    def work(self, task: Callable[[T], object], items: Sequence[T]) -> None:
        """Run a task for every item. Each thread takes the next item as long as there is one: a
        future for each would cost more than many a task. What a task raises is raised here, that
        of the first item if several do; a signal at once."""
        if self._pool is None or len(items) < 2:
            for item in items:
                task(item)
            return
        # what has been taken is held no more, also where a helper that was not begun still waits
        queue = deque(enumerate([partial(task, item) for item in items]))
        failed: dict[int, BaseException] = {}

        def take_items() -> None:
            while not failed:
                try:
                    number, piece = queue.popleft()
                except IndexError:
                    return
                try:
                    piece()
                except Exception as error:
                    failed[number] = error

        started = [self._pool.submit(take_items) for _ in items[1 : self.number]]
        try:
            take_items()
            for helper in started:
                if not helper.cancel():  # busy with other work, it would find nothing left
                    helper.result()
        except BaseException as error:
            failed[0] = error
            raise
        if failed:
            raise failed[min(failed)]


ONE_THREAD = Threads(1, None)

_opened: ContextVar[Threads] = ContextVar("opened", default=ONE_THREAD)


def opened_threads() -> Threads:
    """Return the threads that this thread has opened. Those that work for it open none: where they
    share out whole problems, each of them works alone."""
    return _opened.get()


@contextmanager
def open_threads(number: int) -> Iterator[Threads]:
    """Threads to work with, which end with the context."""
    if number < 2:
        yield ONE_THREAD
        return
    pool = ThreadPoolExecutor(number - 1, thread_name_prefix="streamtron-learner")
    token = _opened.set(threads := Threads(number, pool))
    try:
        yield threads
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)  # a signal does not wait for a solver
        raise
    finally:
        _opened.reset(token)
    pool.shutdown()
