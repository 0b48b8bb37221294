"""Iterate ahead in threads; the order of the items never depends on timing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

THREAD_NAME = "streamtron-ahead"

PATIENCE = 1.5
"""Seconds that a closed reading may take to notice; a store's own retries can take minutes."""


_here = threading.local()


class _Cancelled(BaseException):
    """The consumer has closed the channel while an item was produced."""


def raise_if_cancelled() -> None:
    """End this thread's work if the consumer of its ``prefetch`` has closed it; nothing elsewhere.

    Whatever takes long within one item calls it.
    """
    channel = getattr(_here, "channel", None)
    if channel is not None and channel.closed:
        raise _Cancelled


def prefetch(
    iterator_factory: Callable[[], Iterator[T]], depth: int = 2
) -> Generator[T, None, None]:
    """Iterate in another thread, up to ``depth`` items ahead.

    The thread starts with the first item asked for and ends with the generator. What the iterator
    raises is raised here, after the items before it.
    """
    channel: _Channel[T] = _Channel(depth)
    thread = threading.Thread(
        target=_produce, args=(iterator_factory, channel), name=THREAD_NAME, daemon=True
    )
    thread.start()
    try:
        while channel.wait():
            yield channel.pop()  # no name for the item here: it would keep a buffer alive
    finally:
        channel.close()
        if thread is not threading.current_thread():  # the garbage collector runs anywhere
            thread.join(PATIENCE)  # a store that hangs is not waited for


def run_in_thread(function: Callable[[], T]) -> T:
    """Call ``function`` in another thread, so that a signal can interrupt the main thread."""
    with closing(prefetch(lambda: iter([function()]))) as results:
        return next(results)


def _produce(iterator_factory: Callable[[], Iterator[T]], channel: _Channel[T]) -> None:
    _here.channel = channel
    try:
        iterator = iterator_factory()
        try:
            for item in iterator:
                channel.put(item)
                del item
                if channel.closed:
                    break
        finally:
            if isinstance(iterator, Generator):
                iterator.close()
    except _Cancelled:
        channel.end(None)
    except BaseException as error:  # for the consumer
        channel.end(error)
    else:
        channel.end(None)


def in_order(
    function: Callable[[T], R], items: Iterable[T], threads: int
) -> Generator[R, None, None]:
    """Yield ``function(item)`` for every item, in their order, computed by several threads.

    At most ``threads + 1`` items are asked for ahead of their results. Errors are raised after the
    results before them. One thread means the caller's.
    """
    if threads == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads, "streamtron-worker") as pool:
        coming: deque[Future[R]] = deque()
        try:
            for future in _submitted(pool, function, items):
                coming.append(future)
                if len(coming) > threads:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()


def _submitted(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T]
) -> Iterator[Future[R]]:
    try:
        for item in items:
            yield pool.submit(function, item)
    except Exception as error:  # its turn comes after the results that are on their way
        failed: Future[R] = Future()
        failed.set_exception(error)
        yield failed


class _Channel(Generic[T]):
    """A bounded queue that either side can end."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None
        self.closed = False

    def put(self, item: T) -> None:
        """Add an item as soon as there is room; drop it if the channel is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or len(self._items) < self._depth)
            if not self.closed:
                self._items.append(item)
                self._changed.notify_all()

    def end(self, error: BaseException | None) -> None:
        """End the items, perhaps with an error."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait for an item; False at the end, where the producer's error is raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended)
            if not self._items and self._error is not None:
                raise self._error
            return bool(self._items)

    def pop(self) -> T:
        """Take the next item; there must be one."""
        with self._changed:
            self._changed.notify_all()
            return self._items.popleft()

    def close(self) -> None:
        """Drop the waiting items and stop the producer at its next one."""
        with self._changed:
            self.closed = True
            self._items.clear()
            self._changed.notify_all()
