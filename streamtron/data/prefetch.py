"""Iterate ahead in threads; the order of the items never depends on timing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from queue import Empty, Queue
from typing import Generic, Protocol, TypeVar

from streamtron.core.errors import MachineError

T = TypeVar("T")
R = TypeVar("R")

THREAD_NAME = "streamtron-ahead"
PATIENCE = 1.5
"""Seconds that a closed reading may take to notice; a store's own retries can take minutes."""

_here = threading.local()


class _Cancelled(BaseException):
    """The consumer has closed the channel while an item was produced."""


class _Channel(Generic[T]):
    """What producer and consumer share: a queue of lists of one item, at the end an empty one."""

    def __init__(self, depth: int) -> None:
        self.items: Queue[list[T]] = Queue(depth)
        self.error: BaseException | None = None
        self.closed = False

    def close(self) -> None:
        """Drop the waiting items and stop the producer at its next one."""
        self.closed = True
        with suppress(Empty):
            while True:
                self.items.get_nowait()


class Consumer(Protocol):
    """Who waits for what a thread does, until it is closed."""

    closed: bool


def work_for(consumer: Consumer) -> None:
    """Let ``raise_if_cancelled`` end what this thread does once the consumer is closed."""
    _here.channel = consumer


def raise_if_cancelled() -> None:
    """End this thread's work if its ``prefetch`` is closed: for what takes long within an item."""
    channel = getattr(_here, "channel", None)
    if channel is not None and channel.closed:
        raise _Cancelled


def prefetch(iterate: Callable[[], Iterator[T]], depth: int = 2) -> Generator[T, None, None]:
    """Iterate in another thread, up to ``depth`` items ahead.

    The thread starts with the first item asked for and ends with the generator. What the iterator
    raises is raised here, after the items before it.
    """
    channel: _Channel[T] = _Channel(depth)
    thread = threading.Thread(
        target=_produce, args=(iterate, channel), name=THREAD_NAME, daemon=True
    )
    start(thread)
    try:
        while held := channel.items.get():
            yield held.pop()  # no name for the item here: it would keep a buffer alive
        if channel.error is not None:
            raise channel.error
    finally:
        channel.close()
        if thread is not threading.current_thread():  # the garbage collector runs anywhere
            thread.join(PATIENCE)  # a store that hangs is not waited for


def start(thread: threading.Thread) -> None:
    """Start a thread that reads."""
    try:
        thread.start()
    except RuntimeError as error:
        raise MachineError(
            f"a thread for reading ahead cannot be started ({error}). Free memory, or raise the "
            "limits of this process."
        ) from error


def run_in_thread(function: Callable[[], T]) -> T:
    """Call ``function`` in another thread, so that a signal can interrupt the main thread."""
    with closing(prefetch(lambda: iter([function()]))) as results:
        return next(results)


def _produce(iterate: Callable[[], Iterator[T]], channel: _Channel[T]) -> None:
    work_for(channel)
    try:
        iterator = iterate()
        try:
            for item in iterator:
                channel.items.put([item])
                del item
                if channel.closed:
                    break
        finally:
            if isinstance(iterator, Generator):
                iterator.close()
    except BaseException as error:
        channel.error = error
    if not channel.closed:
        channel.items.put([])


def in_order(function: Callable[[T], R], items: Iterable[T], threads: int) -> Generator[R]:
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
