"""The memory a command needs, summed before it runs; the limit never changes what is computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamtron.chunk import BLOCK_NONZEROS
from streamtron.config import Machine, Settings, format_size
from streamtron.errors import MachineError
from streamtron.training.order import GROUP

COLUMN_BYTES = 8 * 13
"""Vectors of float64: the weights, those summed afresh from the counts, the best so far, the
average, and nine of the solver in memory."""

SOLVER_SHARE = 1 / 6
"""What the solver keeps a row held (margins, slacks, costs, counts), beside the active set."""

ROW_BYTES = 4
"""One int32 count."""


@dataclass(frozen=True, slots=True)
class Need:
    """One item of the sum."""

    what: str
    size: int


def memory_needed(settings: Settings, *, rows: int, columns: int) -> list[Need]:
    """What a fit keeps in memory, item by item, in bytes.

    Examples
    --------
    >>> [need.size for need in memory_needed(Settings(), rows=10**6, columns=10**6)][1:3]
    [104000000, 4000000]
    """
    return [
        Need("interpreter and libraries", 130_000_000),
        Need(f"weights ({COLUMN_BYTES} bytes a column)", COLUMN_BYTES * columns),
        Need(f"counts ({ROW_BYTES} bytes a row)", ROW_BYTES * rows),
        Need("active set", settings.active_set),
        Need("solver's margins and slacks", int(SOLVER_SHARE * settings.active_set)),
        Need("chunks in flight", 4 * GROUP * BLOCK_NONZEROS * 8),
    ]


def columns_allowed(settings: Settings, machine: Machine) -> int:
    """The widest data whose weights fit in memory beside everything else."""
    rest = sum(need.size for need in memory_needed(settings, rows=0, columns=0))
    return max(0, (machine.memory_limit - rest) // COLUMN_BYTES)


def check_memory(needs: Iterable[Need], machine: Machine) -> None:
    """Refuse a run that does not fit.

    Raises
    ------
    MachineError : with the sum, item by item.
    """
    needs = list(needs)
    total = sum(need.size for need in needs)
    if total > machine.memory_limit:
        items = ", ".join(f"{need.what} {format_size(need.size)}" for need in needs)
        raise MachineError(
            f"this run needs {format_size(total)} of memory ({items}), the limit is "
            f"{format_size(machine.memory_limit)}. Give a larger --memory or a smaller "
            "--active-set."
        )
