"""Map a function over parts of the data, such as shards, and sum over a fixed tree.

Results come in the order of the parts, and the tree depends on their number alone: nothing that is
computed depends on the executor. There are two: ``serial``, and that of Dask's workers,
``cluster.client.Workers``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class Executor(Protocol):
    """Yield all results of ``function(item, *shared)`` for every item, in the order of the items.

    ``function`` is a module-level function without state, ``items`` and ``shared`` can be pickled.
    An item is taken from the iterable when its turn comes.
    """

    def __call__(
        self, function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
    ) -> Iterator[Result]:
        """Run the function."""
        ...


Scans = Sequence[int] | None
"""Of each problem, the last reading whose state the parts have saved; None = before the first."""


Wanted = tuple[Callable[..., Any], tuple[Any, ...]]
"""A step on a problem's rows in a part, and its arguments."""


def each(part: Any, steps: Sequence[tuple[int, Wanted]]) -> tuple[Any, ...]:
    """Make the steps that several problems want, by their numbers, on their rows in a part."""
    return tuple(step(part.problems[k], *arguments) for k, (step, arguments) in steps)


class PartsLost(Exception):
    """Some of the parts are gone: all of them are to be opened again."""


class Work:
    """``rounds``, ``seconds`` : of each kind of step so far. ``bytes_to``, ``bytes_from`` : bytes
    of arrays sent to each worker, and back."""

    def __init__(self) -> None:
        self.rounds, self.seconds = Counter[str](), defaultdict[str, float](float)
        self.bytes_to, self.bytes_from = Counter[str](), Counter[str]()

    def report(self) -> dict[str, Any]:
        """Return what the report has of it."""
        to, back = self.bytes_to, self.bytes_from
        return {
            "rounds": self.rounds.total(),
            "bytes_sent": to.total() + back.total(),
            "steps": {k: {"rounds": n, "seconds": self.seconds[k]} for k, n in self.rounds.items()},
            "workers": {k: {"bytes_to": to[k], "bytes_from": back[k]} for k in sorted(to)},
        }


class Parts(ABC):
    """The parts of one problem: map a step over them and sum what it returns.

    A step is a module-level function ``step(part, *arguments)``; it returns a tuple, and ``plus``
    adds two of them. The sum is over the binary tree of the parts' numbers, wherever they
    are: ``LocalParts`` are in this process, ``cluster.parts.WorkerParts`` on Dask's workers.

    ``may_be_lost`` : whether a round may end with PartsLost.
    ``tell`` : called after every round with the step's name and the number of rounds so far.
    ``gap_estimate`` : see ``events.WorkDone``.
    """

    may_be_lost = False

    def __init__(self) -> None:
        self.work = Work()
        self.tell: Callable[[str, int], object] = lambda *_: None
        self.gap_estimate: float | None = None

    def __call__(self, step: Callable[..., Result], *arguments: Any) -> Result:
        """Return the sum of ``step(part, *arguments)`` over all parts; PartsLost: some are gone."""
        return self._round(step.__name__, step, arguments)

    def each(self, steps: Sequence[tuple[int, Wanted]]) -> tuple[Any, ...]:
        """Return the sums of the steps that problems want, by their numbers. Such a round has the
        name of the steps if they are alike, else ``mixed``."""
        names = {step.__name__ for _, (step, _) in steps}
        return self._round(names.pop() if len(names) == 1 else "mixed", each, (steps,))

    def _round(self, name: str, step: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        began, work = time.perf_counter(), self.work
        try:
            return self._map(step, arguments)
        finally:
            work.rounds[name] += 1
            work.seconds[name] += time.perf_counter() - began
            self.tell(name, work.rounds.total())

    @abstractmethod
    def _map(self, step: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        """Map and sum."""


class LocalParts(Parts):
    """Parts in this process, mapped over by ``threads`` threads: no effect on any result."""

    def __init__(self, parts: Sequence[Any], threads: int = 1) -> None:
        super().__init__()
        self._parts, self._threads = list(parts), threads

    def _map(self, step: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        with mapped(step, self._parts, arguments, self._threads) as totals:
            return sum_over_tree(plus, totals)


@contextmanager
def mapped(
    step: Callable[..., Result], parts: Sequence[Any], arguments: Sequence[Any], threads: int
) -> Iterator[Iterator[Result]]:
    """Give ``step(part, *arguments)`` of each part in turn, computed by ``threads`` threads."""
    columns = parts, *map(repeat, arguments)
    if threads < 2 or len(parts) < 2:
        yield map(step, *columns)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(min(threads, len(parts)), thread_name_prefix="streamtron-part")
    try:
        yield pool.map(step, *columns)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a signal does not wait for a solver


def plus(first: Any, second: Any) -> Any:
    """Add two tuples of one kind, named or not, field by field: numbers and arrays are added, lists
    joined, tuples added likewise.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class Found(NamedTuple):
    ...     rows: int
    ...     names: list[str]
    >>> plus(Found(2, ["a"]), Found(3, ["b"]))
    Found(rows=5, names=['a', 'b'])
    >>> plus((1, (2.0, [3])), (1, (2.0, [4])))
    (2, (4.0, [3, 4]))
    """
    if not isinstance(first, tuple):
        return first + second
    fields = map(plus, first, second)
    return tuple(fields) if type(first) is tuple else type(first)(*fields)


def serial(
    function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
) -> Iterator[Result]:
    """Run the items in this thread, one after the other.

    Examples
    --------
    >>> list(serial(lambda item, factor: [item, factor * item], [1, 2], 10))
    [1, 10, 2, 20]
    """
    return chain.from_iterable(function(item, *shared) for item in items)


def sum_over_tree(
    plus: Callable[[Result, Result], Result],
    parts: Iterable[Result],
    heights: Iterable[int] = repeat(0),
) -> Result:
    """Sum at least one part over the binary tree of their numbers; ``plus`` takes the earlier one
    first. ``heights`` : each element of ``parts`` is the sum of 2^h parts, from a multiple of 2^h
    on: these were added among themselves first, so the sum is the same to the last bit.

    Examples
    --------
    >>> sum_over_tree("({}+{})".format, "abcde")
    '(((a+b)+(c+d))+e)'
    >>> sum_over_tree("({}+{})".format, ["(a+b)", "c", "d", "e"], heights=[1, 0, 0, 0])
    '(((a+b)+(c+d))+e)'
    """
    sums: list[tuple[int, Result]] = []  # (height, sum) of complete trees, ever lower
    for height, total in zip(heights, parts, strict=False):  # the heights may have no end
        while sums and sums[-1][0] == height:
            total = plus(sums.pop()[1], total)
            height += 1
        sums.append((height, total))
    _, total = sums.pop()
    for _, earlier in reversed(sums):
        total = plus(earlier, total)
    return total


def trees_of(first: int, stop: int) -> list[tuple[int, int]]:
    """Return (number, h) of the fewest trees of 2^h parts from a multiple of 2^h on, that have the
    parts from ``first`` up to ``stop``.

    Examples
    --------
    >>> trees_of(3, 9)
    [(3, 0), (4, 2), (8, 0)]
    """
    trees = []
    while first < stop:
        height = (stop - first).bit_length() - 1
        if first:
            height = min(height, (first & -first).bit_length() - 1)
        trees.append((first, height))
        first += 1 << height
    return trees
