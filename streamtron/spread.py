"""Work that falls apart into items, a shard each: one after the other here, or on many workers.

Whoever has such work takes a ``Spread`` and does not know which one it got: results come in the
order of the items either way, so nothing that is computed can depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")
Arrays = tuple[NDArray[Any], ...]


class Spread(Protocol):
    """Everything that ``function(item, *shared)`` yields for every item, in the items' order.

    ``function`` is a module's own function of no state, ``items`` and ``shared`` are plain data:
    they may have to travel to another process. An item is asked for when its turn comes.
    """

    def __call__(
        self, function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
    ) -> Iterator[Result]:
        """Run it."""
        ...


def in_turn(
    function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
) -> Iterator[Result]:
    """The Spread of this process: one item after the other, nothing held back.

    Examples
    --------
    >>> list(in_turn(lambda item, factor: [item, factor * item], [1, 2], 10))
    [1, 10, 2, 20]
    """
    return chain.from_iterable(function(item, *shared) for item in items)


def regrouped(parts: Iterable[Arrays], rows: int) -> Iterator[Arrays]:
    """Parallel arrays cut anew every ``rows`` rows, so that how they came cannot be seen.

    Parameters
    ----------
    parts : tuples of arrays of equal length, the same number of arrays in each tuple.

    Examples
    --------
    >>> [part[0].tolist() for part in regrouped([(np.arange(2),), (np.arange(2, 5),)], 3)]
    [[0, 1, 2], [3, 4]]
    """
    held: list[Arrays] = []
    count = 0
    for part in parts:
        held.append(part)
        count += len(part[0])
        if count >= rows:
            whole = _joined(held)
            full = count - count % rows
            for start in range(0, full, rows):
                yield tuple(array[start : start + rows] for array in whole)
            held, count = [tuple(array[full:] for array in whole)], count - full
    if count:
        yield _joined(held)


def _joined(parts: Sequence[Arrays]) -> Arrays:
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
