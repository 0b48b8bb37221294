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
"""Of each problem, the reading after which parts are as they are; None = they have not begun."""


class Each:
    """The step that makes, in each part, the steps that several problems want on their rows in
    memory; a round of them has their name if they are alike, else ``mixed``."""

    short = True
    """it takes milliseconds, where steps of parts read files"""

    def __init__(self, steps: Iterable[tuple[int, Wanted]]) -> None:
        names = {step.__name__ for _, (step, _) in steps}
        self.__name__ = names.pop() if len(names) == 1 else "mixed"

    def __call__(self, part: Any, steps: Sequence[tuple[int, Wanted]]) -> tuple[Any, ...]:
        """Make the steps of a part, each for one of its problems."""
        return tuple(step(part.problems[k], *arguments) for k, (step, arguments) in steps)


Wanted = tuple[Callable[..., Any], tuple[Any, ...]]
"""A step on a problem's rows in a part, and its arguments."""

Step = TypeVar("Step", bound=Callable[..., Any])


def changes_part(step: Step) -> Step:
    """Mark a step that changes the state of a part."""
    step.leaves = "state"  # type: ignore[attr-defined]
    return step


def looks_at_part(step: Step) -> Step:
    """Mark a step that leaves something in a part until its problem makes the next ``look``."""
    step.leaves = "look"  # type: ignore[attr-defined]
    return step


class StepLog:
    """The steps since the parts were saved that have left something in them: a part that is opened
    anew makes them again."""

    def __init__(self) -> None:
        self.steps: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def add(self, step: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Add a step that all parts have made, if it leaves something in them."""
        if isinstance(step, Each):
            [steps] = arguments
            looking = {k for k, (problem_step, _) in steps if problem_step.__name__ == "look"}
            self.steps = [entry for old in self.steps if (entry := _without_looks(old, looking))]
            left = [(k, entry) for k, entry in steps if hasattr(entry[0], "leaves")]
            if left:
                self.steps.append((Each(left), (left,)))
        elif hasattr(step, "leaves"):
            self.steps.append((step, arguments))


def _without_looks(
    entry: tuple[Callable[..., Any], tuple[Any, ...]], problems: set[int]
) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Leave out what the looks of problems have left, which is replaced; None if nothing stays."""
    step, arguments = entry
    if not problems or not isinstance(step, Each):
        return entry
    [steps] = arguments
    left = [(k, done) for k, done in steps if k not in problems or done[0].leaves == "state"]
    return (step, (left,)) if left else None


class Parts(ABC):
    """The parts of one problem: map a step over them and sum what it returns.

    A step is a module-level function ``step(part, *arguments)``; it returns a tuple, and ``plus``
    adds two of them. The sum is over the binary tree of the parts' numbers, wherever they
    are: ``LocalParts`` are in this process, ``cluster.parts.WorkerParts`` on Dask's workers. Parts
    that are lost are opened anew and make the steps of ``log`` again.

    ``scans`` : of each problem, the reading after which the parts were saved; None = they have not
    been.
    ``rounds``, ``seconds`` : of each kind of step so far. ``bytes_to``, ``bytes_from`` : bytes of
    arrays sent to each worker, and back. ``tell`` : called after every round with the step's name
    and the number of rounds so far. ``gap_estimate`` : see ``events.WorkDone``.
    """

    def __init__(self) -> None:
        self.scans: Scans = None
        self.log = StepLog()
        self.rounds, self.seconds = Counter[str](), defaultdict[str, float](float)
        self.bytes_to, self.bytes_from = Counter[str](), Counter[str]()
        self.tell: Callable[[str, int], object] = lambda *_: None
        self.gap_estimate: float | None = None

    def __call__(self, step: Callable[..., Result], *arguments: Any) -> Result:
        """Return the sum of ``step(part, *arguments)`` over all parts."""
        began, name = time.perf_counter(), step.__name__
        try:
            total = self._map(step, arguments)
        finally:
            self.rounds[name] += 1
            self.seconds[name] += time.perf_counter() - began
            self.tell(name, self.rounds.total())
        self.log.add(step, arguments)
        return total

    def saved(self, scans: Sequence[int]) -> None:
        """Take note that the parts have saved their states after these readings."""
        self.scans, self.log = list(scans), StepLog()

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
    """Give ``step(part, *arguments)`` of each part in turn, computed by so many threads."""
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
    first. ``heights`` : what is given as a part is the sum of 2^h, from a multiple of 2^h on: these
    were added among themselves first, so the sum is the same to the last bit.

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
