"""Solve the problems of several learners on the same parts, with one round for all at a time.

A solve is a generator: it yields the step that it wants made on its learner's rows in all parts,
and is sent the sum. Steps of different learners go in one round, so that what a round costs beside
its work, some milliseconds on workers, is paid once. What a learner finds does not depend on the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from itertools import islice, zip_longest
from typing import Any, TypeVar

from streamtron.core.executor import Parts, PartsLost
from streamtron.solver import local
from streamtron.solver.local import Each

Found = TypeVar("Found")

Wanted = tuple[Callable[..., Any], tuple[Any, ...]]
"""A step, and its arguments beside the learner's rows in a part."""

Rounds = Generator[Wanted, Any, Found]
"""What makes rounds and returns what it has found."""


def in_lockstep(
    parts: Parts, solves: Mapping[int, Rounds[Found]], at_once: int
) -> dict[int, Found]:
    """Run solves to their ends, so many at once; return what each has found. They are named by the
    number of their learner in the parts.

    Parts that are lost have forgotten each learner's last ``look`` and the steps that followed it.
    Those that leave something in a part are made again there, which changes no bit.
    """
    waiting, found = iter(solves), dict[int, Found]()
    wanted: dict[int, Wanted] = {}
    since: dict[int, list[Wanted]] = {}
    sums: dict[int, Any] = dict.fromkeys(islice(waiting, at_once))
    while sums:
        for number, total in sums.items():
            try:
                wanted[number] = solves[number].send(total)
            except StopIteration as ended:
                found[number] = ended.value
                wanted.pop(number, None)
                since.pop(number, None)
        if begun := list(islice(waiting, at_once - len(wanted))):
            sums = dict.fromkeys(begun)
            continue
        sums = _sums(parts, wanted, since) if wanted else {}
        for number, one in wanted.items():
            if one[0] not in (local.product, local.precondition):
                before = [] if one[0] is local.look else since.get(number, [])
                since[number] = [*before, one]
    return found


def _sums(
    parts: Parts, wanted: Mapping[int, Wanted], since: Mapping[int, list[Wanted]]
) -> dict[int, Any]:
    """Make a round, if need be after what was lost."""
    lost = False
    while True:
        try:
            for again in zip_longest(*since.values()) if lost else ():
                _round(parts, {k: one for k, one in zip(since, again, strict=True) if one})
            return _round(parts, wanted)
        except PartsLost:
            lost = True


def _round(parts: Parts, wanted: Mapping[int, Wanted]) -> dict[int, Any]:
    """Return the sum over all parts of each learner's step."""
    sums = parts(Each(wanted.values()), list(wanted.items()))
    return dict(zip(wanted, sums, strict=True))
