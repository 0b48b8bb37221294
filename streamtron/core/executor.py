"""Map a function over parts of the data, such as shards, and sum over a fixed tree.

Results come in the order of the parts, and the tree depends on their number alone: nothing that is
computed depends on the executor. There are two: ``serial``, and that of Dask's workers,
``cluster.client.Workers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
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


def sum_over_tree(plus: Callable[[Result, Result], Result], parts: Iterable[Result]) -> Result:
    """Sum at least one part over the binary tree of their numbers; ``plus`` takes the earlier one
    first.

    2^h parts from a multiple of 2^h on are added among themselves first. So where each process sums
    such a group of its own, the sum of these sums is the same to the last bit.

    Examples
    --------
    >>> sum_over_tree("({}+{})".format, "abcde")
    '(((a+b)+(c+d))+e)'
    >>> sum_over_tree("({}+{})".format, ["(a+b)", "(c+d)", "e"])
    '(((a+b)+(c+d))+e)'
    """
    sums: list[tuple[int, Result]] = []  # (height, sum) of complete trees, ever lower
    for total in parts:
        height = 0
        while sums and sums[-1][0] == height:
            total = plus(sums.pop()[1], total)
            height += 1
        sums.append((height, total))
    _, total = sums.pop()
    for _, earlier in reversed(sums):
        total = plus(earlier, total)
    return total
