"""Reading ahead: an iterator runs in a thread of its own, a bounded number of items in front.

The order of the items is the iterator's, so what arrives never depends on timing.
"""

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


class _Left(BaseException):
    """The consumer has left, and the producer is in the midst of an item."""


def raise_if_cancelled() -> None:
    """End a reading ahead whose consumer has left; to be called by whatever takes long within one
    item. Nothing happens in a thread that does not read ahead."""
    channel = getattr(_here, "channel", None)
    if channel is not None and channel.closed:
        raise _Left


def ahead(iterator_factory: Callable[[], Iterator[T]], depth: int = 2) -> Generator[T, None, None]:
    """The items of ``iterator_factory()``, made in another thread up to ``depth`` items ahead.

    The thread starts with the first item asked for and is gone when the generator ends, fails or
    is closed; the iterator is then closed too, in its own thread. What it raises is raised here,
    after the items that came before.

    Parameters
    ----------
    iterator_factory : called once, in the thread.
    depth : items that may wait, ≥ 1.

    Examples
    --------
    >>> list(ahead(lambda: iter("abc")))
    ['a', 'b', 'c']
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


def apart(function: Callable[[], T]) -> T:
    """What ``function`` returns or raises, run in another thread: the main thread can then be
    interrupted by a signal, and leave a store that hangs alone.

    Examples
    --------
    >>> apart(lambda: threading.current_thread().name)
    'streamtron-ahead'
    """
    with closing(ahead(lambda: iter([function()]))) as results:
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
    except _Left:
        channel.end(None)
    except BaseException as error:  # whatever it is belongs to the consumer
        channel.end(error)
    else:
        channel.end(None)


def in_order(
    function: Callable[[T], R], items: Iterable[T], threads: int
) -> Generator[R, None, None]:
    """``function(item)`` for every item, in their order, several made at once.

    ``items`` are asked for here, at most ``threads + 1`` before the first of their results has been
    delivered. What ``items`` or ``function`` raise is raised after the results that came before.

    Parameters
    ----------
    threads : that make results, ≥ 1; with 1 there is no thread but this.

    Examples
    --------
    >>> list(in_order(len, ["a", "bcd", "ef"], threads=2))
    [1, 3, 2]
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
        """Add an item as soon as there is room; drop it if the consumer has left."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or len(self._items) < self._depth)
            if not self.closed:
                self._items.append(item)
                self._changed.notify_all()

    def end(self, error: BaseException | None) -> None:
        """Nothing comes after the items put so far but, perhaps, this error."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def wait(self) -> bool:
        """Whether there is another item; raises the producer's error once there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended)
            if not self._items and self._error is not None:
                raise self._error
            return bool(self._items)

    def pop(self) -> T:
        """The next item; there must be one."""
        with self._changed:
            self._changed.notify_all()
            return self._items.popleft()

    def close(self) -> None:
        """The consumer leaves: waiting items are dropped, the producer stops at its next one."""
        with self._changed:
            self.closed = True
            self._items.clear()
            self._changed.notify_all()
