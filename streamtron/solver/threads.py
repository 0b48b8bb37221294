"""Threads that take items from one queue. Kernels run without Python's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """So many threads, the calling one among them; see ``open_threads``."""

    def __init__(self, number: int, pool: ThreadPoolExecutor | None) -> None:
        self.number, self._pool = number, pool

    def work(self, task: Callable[[T], object], items: Sequence[T]) -> None:
        """Run a task for every item. Each thread takes the next item as long as there is one: a
        future for each would cost more than many a task. What a task raises is raised here, that
        of the first item if several do; a signal at once."""
        queue = enumerate(items)
        failed: dict[int, BaseException] = {}

        def take_items() -> None:
            while not failed and (taken := next(queue, None)):
                try:
                    task(taken[1])
                except Exception as error:
                    failed[taken[0]] = error

        others = []
        if self._pool is not None:
            helpers = range(min(self.number, len(items)) - 1)
            others = [self._pool.submit(take_items) for _ in helpers]
        try:
            take_items()
            for other in others:
                other.result()
        except BaseException as error:
            failed[0] = error
            raise
        if failed:
            raise failed[min(failed)]


@contextmanager
def open_threads(number: int) -> Iterator[Threads]:
    """Threads to work with, which end with the context."""
    if number < 2:
        yield Threads(1, None)
        return
    pool = ThreadPoolExecutor(number - 1, thread_name_prefix="streamtron-learner")
    try:
        yield Threads(number, pool)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)  # a signal does not wait for a solver
        raise
    pool.shutdown()
