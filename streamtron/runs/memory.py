"""Sum the memory that a command needs, before it runs. The limit never changes a result."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from streamtron.core.config import Machine, Settings, format_size
from streamtron.core.errors import MachineError
from streamtron.core.kernels import BATCH_WIDTH, COLUMN_MAX
from streamtron.core.rows import BLOCK_NONZEROS, BLOCK_ROWS
from streamtron.solver.order import GROUP
from streamtron.solver.preconditioner import HEAD
from streamtron.solver.working_set import NONZERO_BYTES
from streamtron.solver.working_set import ROW_BYTES as ACTIVE_ROW_BYTES

LEARNER_BYTES = 8 * 5
"""A column, for every learner while it scans: the running weights, those that are scanned, those
summed afresh with their rounding errors, and the best (``benchmarks/wide.py``)."""

IDLE_BYTES = 8 * 3
"""A column, for every learner while some are solved: the running weights, the best, the average."""

SOLVER_BYTES = 8 * 12
"""A column that occurs in the rows in memory, for every learner that is being solved: the solver's
vectors."""

HEAD_BYTES = 16
"""An entry of the head block, for every learner that is being solved: see ``Preconditioner``."""

OUTSIDE_BYTES = 8
"""An entry of the matrix of rows outside memory, for every learner: see ``Outside``."""

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
    occurring: int | None = None,
    nonzeros: int | None = None,
    learners: int = 1,
    threads: int = 1,
    shared: bool = True,
    batch_width: int = 1,
) -> list[Need]:
    """Return what a fit keeps in memory, in bytes, if ``learners`` train together; ``shared``: on
    the same rows. ``occurring`` : columns that occur (None = all). ``nonzeros`` : of all rows; None
    = more than fit. ``batch_width`` : learners that each thread solves at a time; if several, it
    has a copy of BATCH_WIDTH weight vectors.

    Examples
    --------
    >>> [need.size for need in memory_needed(Settings(), rows=10**6, columns=10**6)][1:3]
    [120000000, 4000000]
    >>> [need.size for need in memory_needed(Settings(), rows=1, columns=10**6, occurring=9)][1:2]
    [40000000]
    """
    solving = min(learners, threads * batch_width)
    weights = max(
        LEARNER_BYTES * learners * columns,
        IDLE_BYTES * learners * columns
        + SOLVER_BYTES * solving * (columns if occurring is None else occurring),
    )
    if batch_width > 1:
        weights += 8 * BATCH_WIDTH * threads * columns
    rows_held, block = settings.active_set_bytes, BLOCK_NONZEROS
    if nonzeros is not None:
        rows_held = min(rows_held, NONZERO_BYTES * nonzeros + ACTIVE_ROW_BYTES * rows)
        block = min(block, math.ceil(BLOCK_ROWS * nonzeros / max(rows, 1)))
    active = rows_held * (1 if shared else learners)
    if shared:
        held = min(rows, settings.active_set_bytes // ACTIVE_ROW_BYTES)
        active += SHARED_ROW_BYTES * held * (learners - 1)
    return [
        Need("interpreter and libraries", 130_000_000),
        Need(f"weights ({weights // max(columns, 1)} bytes a column)", weights),
        Need(f"counts ({ROW_BYTES * learners} bytes a row)", ROW_BYTES * learners * rows),
        Need("active set", active),
        Need("solver's margins and slacks", int(SOLVER_SHARE * rows_held) * solving),
        Need("Newton's head block", HEAD_BYTES * min(columns + 1, HEAD) ** 2 * solving),
        Need("rows outside memory", OUTSIDE_BYTES * min(columns + 1, HEAD) ** 2 * learners),
        Need("chunks in flight", 4 * GROUP * block * 8),
    ]


def columns_allowed(settings: Settings, machine: Machine) -> int:
    """Return the largest number of columns whose weights fit in memory, if few of them occur: how
    many do is known when all rows have been read."""

    def needed(columns: int) -> int:
        needs = memory_needed(settings, rows=0, columns=columns, occurring=0)
        return sum(need.size for need in needs)

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
