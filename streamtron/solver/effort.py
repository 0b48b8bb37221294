"""What visits and Newton's method would cost, counted before either is begun.

The unit is a mini-epoch: a visit of every nonzero held. Counts alone enter, and what a nonzero of
each kernel costs beside that of a visit: no clock, so that a model is the same on every machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streamtron.solver import held_loss
from streamtron.solver.preconditioner import head_size, multiplications

PASS, SUM, MULTIPLICATION = 0.25, 1.0, 0.25
"""What beside a visit's nonzero costs one of a pass over all rows in their order, of a sum over the
rows inside the margin, and a multiplication of the head's matrices
(``benchmarks/second_order.py`` prints all three, which differ by a factor of two between data sets.
On seven sets 0.5 in place of the last one changes one fit of 28, for the worse)."""

STEPS, DIRECT_STEPS = 24, 4
"""Steps that are counted on, each with a pass over all rows and a sum over those inside the margin:
of a descent, or as many as all products of Newton's method cost; with H of all columns, which is
exact, each with three sums (``benchmarks/certified.py``)."""

AFTER = 8.0
"""Mini-epochs that visits make after Newton's method, which is exact in P first, until D is too: 5
to 19 on RCV1 and text at C = 50. A descent lowers P − D as far by itself."""


def of_visits(before: float, gap: float, target: float, spent: float) -> float:
    """The mini-epochs that visits would still cost, at the rate of the last round, of ``spent``
    mini-epochs, which took the gap from ``before``.

    >>> round(of_visits(0.4, 0.2, 0.05, 5.0), 6)
    10.0
    """
    rate = math.log(before / gap)
    return spent * math.log(gap / target) / rate if rate > 0.0 else math.inf


def solved_directly(lengths: NDArray[np.int64], occurring: int) -> bool:
    """Whether a Newton step can afford H of all columns that occur, for rows of so many nonzeros.

    >>> solved_directly(np.full(10_000, 15), 124), solved_directly(np.full(10_000, 15), 1000)
    (True, False)
    """
    return head_size(lengths, occurring) == occurring


def of_newton(lengths: NDArray[np.int64], occurring: int, inside: NDArray[np.bool_]) -> float:
    """The mini-epochs that Newton's method would cost.

    ``lengths`` : nonzeros of each row held, its bias counted. ``occurring`` : columns. ``inside`` :
    the rows inside the margin.

    >>> lengths, inside = np.full(10_000, 70), np.arange(10_000) < 500
    >>> [round(of_newton(lengths, columns, inside)) for columns in (30, 30_000)]
    [2, 16]
    """
    within = lengths[inside]
    nonzeros, size = float(lengths.sum()), head_size(within, occurring)
    share = float(within.sum()) / nonzeros
    head = MULTIPLICATION * multiplications(within, size) / nonzeros
    if size == occurring:
        return head + DIRECT_STEPS * (PASS + 3.0 * SUM * share)
    descent = len(within) >= held_loss.INSIDE * len(lengths)
    return head + STEPS * (PASS + SUM * share) + (0.0 if descent else AFTER)
