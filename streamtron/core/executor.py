"""Map a function over parts of the data, such as shards, in this process or on workers.

Results come in the order of the items, so nothing that is computed depends on the executor.
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
    """Run the items in this process, one after the other.

    Examples
    --------
    >>> list(serial(lambda item, factor: [item, factor * item], [1, 2], 10))
    [1, 10, 2, 20]
    """
    return chain.from_iterable(function(item, *shared) for item in items)
