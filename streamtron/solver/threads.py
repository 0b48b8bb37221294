"""Threads that take tasks from one queue; a task may add others, which idle threads take."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Task = Callable[[T], Iterable[T] | None]
"""What is done with an item; it may return more items, which are next."""


class Threads:
    """So many threads, the calling one among them; see ``open_threads``. The kernels run without
    Python's lock."""

    def __init__(self, number: int, pool: ThreadPoolExecutor | None) -> None:
        self.number = number
        self._pool = pool
        self._round = _Round[Any](())

    @property
    def idle(self) -> bool:
        """Whether one of them waits, having nothing to do; asked by a task."""
        return self._round.idle

    def work(self, task: Task[T], items: Iterable[T]) -> None:
        """A task for every item. A thread takes the next as long as there is one: a future for each
        would cost more than many a task, and so would waking a thread that could have been this
        one. What a task raises is raised here, that of the first item if several do; a signal at
        once."""
        self._round = found = _Round(items)
        others = []
        if self._pool is not None and found.many:
            others = [self._pool.submit(found.take_turns, task) for _ in range(self.number - 1)]
        try:
            found.take_turns(task)
            for other in others:
                other.result()
        except BaseException as error:
            found.fail(error)
            raise
        found.raise_first()


class _Round(Generic[T]):
    """A queue of items, from which each thread takes the next."""

    def __init__(self, items: Iterable[T]) -> None:
        self._turns = deque(enumerate(items))
        self._last = len(self._turns)
        self._failed: dict[int, BaseException] = {}
        self._at_work = 0
        self._waiting = 0
        self._changed = threading.Condition()

    @property
    def many(self) -> bool:
        """Whether there are several."""
        return self._last > 1

    @property
    def idle(self) -> bool:
        """Whether a thread waits for an item."""
        return self._waiting > 0 and not self._turns

    def take_turns(self, task: Task[T]) -> None:
        """Do items until there are none, and no running task can add others."""
        while turn := self._next():
            number, item = turn
            further: list[T] = []
            try:
                further = list(task(item) or ())
            except Exception as error:
                self._failed[number] = error
            finally:
                with self._changed:
                    self._at_work -= 1
                    self._turns.extendleft((number, one) for one in reversed(further))
                    self._changed.notify_all()

    def _next(self) -> tuple[int, T] | None:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._turns or self._failed or not self._at_work)
            finally:
                self._waiting -= 1
            if self._failed or not self._turns:
                return None
            self._at_work += 1
            return self._turns.popleft()

    def fail(self, error: BaseException) -> None:
        """Stop all threads before their next item: a signal may have come at any line."""
        with self._changed:
            self._failed[self._last] = error
            self._changed.notify_all()

    def raise_first(self) -> None:
        """Raise what the first item that failed raised."""
        if self._failed:
            raise self._failed[min(self._failed)]


@contextmanager
def open_threads(number: int) -> Iterator[Threads]:
    """Threads to work with, which end with the context.

    Examples
    --------
    >>> done = []
    >>> with open_threads(2) as threads:
    ...     threads.work(done.append, ["a", "b", "c"])
    >>> sorted(done)
    ['a', 'b', 'c']
    """
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
