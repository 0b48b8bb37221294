"""Work that falls apart into items, a shard each: one after the other here, or on many workers.

Whoever has such work takes a ``Executor`` and does not know which one it got: results come in the
order of the items either way, so nothing that is computed can depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class Executor(Protocol):
    """Everything that ``function(item, *shared)`` yields for every item, in the items' order.

    ``function`` is a module's own function of no state, ``items`` and ``shared`` are plain data:
    they may have to travel to another process. An item is asked for when its turn comes.
    """

    def __call__(
        self, function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
    ) -> Iterator[Result]:
        """Run it."""
        ...


def serial(
    function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
) -> Iterator[Result]:
    """The Spread of this process: one item after the other, nothing held back.

    Examples
    --------
    >>> list(serial(lambda item, factor: [item, factor * item], [1, 2], 10))
    [1, 10, 2, 20]
    """
    return chain.from_iterable(function(item, *shared) for item in items)
