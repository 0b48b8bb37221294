"""Solve the problems of several learners on the same parts, with one round for all at a time.

A solve is a generator: it yields the step that it wants made on its learner's rows in all parts,
and is sent the sum. Steps of different learners go in one round, so that what a round costs beside
its work, some milliseconds on workers, is paid once. What a learner finds does not depend on the
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from streamtron.core.executor import Each, Parts, Wanted
from streamtron.solver.newton import GapEstimate, Rounds


def in_lockstep(parts: Parts, solves: Mapping[int, Rounds[None]], at_once: int) -> None:
    """Run solves to their ends, so many at once. They are named by the number of their learner in
    the parts."""
    waiting, gaps = iter(solves), dict[int, float]()
    wanted: dict[int, Wanted] = {}
    sums: dict[int, Any] = dict.fromkeys(islice(waiting, at_once))
    while sums:
        for number, total in sums.items():
            wanted.pop(number, None)
            try:
                step = solves[number].send(total)
                while isinstance(step, GapEstimate):
                    gaps[number] = step.gap
                    parts.gap_estimate = max(gaps.values())
                    step = next(solves[number])
                wanted[number] = step
            except StopIteration:
                pass
        if begun := list(islice(waiting, at_once - len(wanted))):
            sums = dict.fromkeys(begun)
        elif wanted:
            totals = parts(Each(wanted.items()), list(wanted.items()))
            sums = dict(zip(wanted, totals, strict=True))
        else:
            sums = {}
