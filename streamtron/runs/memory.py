"""Sum the memory that a command needs, before it runs. The limit never changes a result."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from streamtron.core.config import Machine, Settings, format_size
from streamtron.core.errors import MachineError
from streamtron.core.kernels import BATCH_WIDTH, COLUMN_MAX
from streamtron.core.rows import BLOCK_NONZEROS
from streamtron.solver.order import GROUP
from streamtron.solver.preconditioner import HEAD
from streamtron.solver.working_set import ROW_BYTES as ACTIVE_ROW_BYTES

LEARNER_BYTES = 8 * 10
"""A column, for every learner: the running weights, those summed afresh, the best, the average,
those that are scanned; and a copy of each for a checkpoint."""

SOLVER_BYTES = 8 * 8
"""A column, for every learner that is being solved in memory: the solver's vectors."""

COLUMN_BYTES = LEARNER_BYTES + SOLVER_BYTES
"""A column, for one learner."""

HEAD_BYTES = 16
"""An entry of the head block, for every learner that is being solved: see ``Preconditioner``."""

SHARED_ROW_BYTES = 9
"""A shared row, for every learner but the first: its sign and Δ_k²."""

SOLVER_SHARE = 1 / 6
"""Margins, slacks, costs and counts of the rows held, as a part of the active set."""

ROW_BYTES = 4
"""One int32 count."""


class Need(NamedTuple):
    """One item of the sum, in bytes."""

    what: str
    size: int


def memory_needed(
    settings: Settings,
    *,
    rows: int,
    columns: int,
    learners: int = 1,
    threads: int = 1,
    shared: bool = True,
    batch_width: int = 1,
) -> list[Need]:
    """Return what a fit keeps in memory, in bytes, if ``learners`` train together; ``shared``: on
    the same rows. ``batch_width`` : learners that each thread solves at a time; if several, it has
    a copy of BATCH_WIDTH weight vectors.

    Examples
    --------
    >>> [need.size for need in memory_needed(Settings(), rows=10**6, columns=10**6)][1:3]
    [144000000, 4000000]
    """
    solving = min(learners, threads * batch_width)
    a_column = LEARNER_BYTES * learners + SOLVER_BYTES * solving
    if batch_width > 1:
        a_column += 8 * BATCH_WIDTH * threads
    active = settings.active_set * (1 if shared else learners)
    if shared:
        held = min(rows, settings.active_set // ACTIVE_ROW_BYTES)
        active += SHARED_ROW_BYTES * held * (learners - 1)
    return [
        Need("interpreter and libraries", 130_000_000),
        Need(f"weights ({a_column} bytes a column)", a_column * columns),
        Need(f"counts ({ROW_BYTES * learners} bytes a row)", ROW_BYTES * learners * rows),
        Need("active set", active),
        Need("solver's margins and slacks", int(SOLVER_SHARE * settings.active_set) * solving),
        Need("Newton's head block", HEAD_BYTES * min(columns + 1, HEAD) ** 2 * solving),
        Need("chunks in flight", 4 * GROUP * BLOCK_NONZEROS * 8),
    ]


def columns_allowed(settings: Settings, machine: Machine) -> int:
    """Return the largest number of columns whose weights fit in memory."""

    def needed(columns: int) -> int:
        return sum(need.size for need in memory_needed(settings, rows=0, columns=columns))

    return max(0, bisect_right(range(COLUMN_MAX + 2), machine.memory_limit, key=needed) - 1)


def check_memory(needs: Iterable[Need], machine: Machine) -> None:
    """Raise a MachineError, with the sum item by item, if a run does not fit."""
    needs = list(needs)
    total = sum(need.size for need in needs)
    if total > machine.memory_limit:
        items = ", ".join(f"{need.what} {format_size(need.size)}" for need in needs)
        raise MachineError(
            f"this run needs {format_size(total)} of memory ({items}), the limit is "
            f"{format_size(machine.memory_limit)}. Give a larger --memory or a smaller "
            "--active-set."
        )
