"""Sum the memory that a command needs, before it runs. The limit never changes a result."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError
from streamtron.core.rows import BLOCK_NONZEROS, BLOCK_ROWS, COLUMN_MAX
from streamtron.core.text import format_size
from streamtron.solver import stages
from streamtron.solver.duals import IN_MEMORY, PAGE
from streamtron.solver.few_columns import SPARSE
from streamtron.solver.hessian import HEAD
from streamtron.solver.order import GROUP
from streamtron.solver.passes import GATHERED
from streamtron.solver.row_store import NONZERO_BYTES
from streamtron.solver.row_store import ROW_BYTES as ACTIVE_ROW_BYTES

LEARNER_BYTES = 8 * 5
"""A column, for every learner while it scans: the running weights, those that are scanned, those
summed afresh with their rounding errors, and the best (``benchmarks/wide.py``)."""

EXPANDED_BYTES = 8 * 3
"""A column, for every learner in training whose penalty has a 1-norm: where rows outside memory are
and were expanded (see ``few_columns``), and the sums that tell which columns weigh 0."""

IDLE_BYTES = 8 * 3
"""A column, for every learner while some are solved: the running weights, the best, the average."""

SOLVER_BYTES = 8 * 12
"""A column that occurs in the rows in memory, for every learner that is being solved: the solver's
vectors."""

HEAD_BYTES = 16
"""An entry of the head block, for every learner that is being solved: see ``Preconditioner``."""

OUTSIDE_BYTES = 8
"""An entry of the matrix of rows outside memory, for every learner: see ``Outside``."""

CERTIFIED_BYTES = 8 * 7
"""A column, for every class that is certified: its weights, the sums of its scan with their
rounding errors, those of a block, and what its distances are computed from."""

WEIGHT_BYTES = 12
"""A weight that is not 0, of a model in memory: its column and its value."""

SHARED_ROW_BYTES = 9
"""A shared row, for every learner but the first: its sign and Δ_k²."""

SOLVER_SHARE = 1 / 6
"""Margins, slacks, costs and counts of the rows held, as a part of the active set."""

ROW_BYTES = 4  # one int32 count

COUNTED = IN_MEMORY * PAGE
"""Rows at most whose counts a learner keeps in memory; those of others are in a file."""

INTERPRETER_BYTES = 215_000_000
"""The interpreter, its libraries and the compiled kernels: what a fit of two rows takes."""

USUAL_BITS = 24
"""The active set must have room beside 2^24 columns, or the data are read to find its size."""

WORKER_BYTES = 200_000_000
"""A worker's interpreter and libraries, Dask's among them: 172 MB before it reads anything."""

NUMBERED_ANEW = 0.5
"""The column numbers of the rows that are solved, where columns are many (see ``Narrowed``), as a
part of the active set."""

CHUNKS_OF_A_PART = 80_000_000
"""The chunks in flight of a part that is read, and what text is parsed into."""


class Need(NamedTuple):
    """One item of the sum, in bytes."""

    what: str
    size: int


class DataSize(NamedTuple):
    """Rows, columns and nonzeros (None = more than fit) of data, and how many columns occur (None =
    all)."""

    rows: int
    columns: int
    nonzeros: int | None = None
    occurring: int | None = None


def memory_needed(
    settings: Settings,
    size: DataSize,
    *,
    learners: int = 1,
    threads: int = 1,
    shared: bool = True,
) -> list[Need]:
    """Return what a fit keeps in memory, in bytes, if ``learners`` train together; ``shared``: on
    the same rows.

    Examples
    --------
    >>> [need.size for need in memory_needed(Settings(), DataSize(10**6, 10**6))][1:3]
    [120000000, 4000000]
    >>> [need.size for need in memory_needed(Settings(), DataSize(1, 10**6, occurring=9))][1:2]
    [40000000]
    """
    rows, columns, nonzeros, occurring = size
    solving = min(learners, threads)
    weights = max(
        (LEARNER_BYTES + (EXPANDED_BYTES if settings.ratio else 0)) * learners * columns,
        IDLE_BYTES * learners * columns
        + SOLVER_BYTES * solving * (columns if occurring is None else occurring),
    )
    most = settings.active_set_bytes
    rows_held, chunk = most, GROUP * BLOCK_NONZEROS
    if nonzeros is not None:
        rows_held = min(rows_held, NONZERO_BYTES * nonzeros + ACTIVE_ROW_BYTES * rows)
        chunk = min(chunk, nonzeros, GROUP * math.ceil(BLOCK_ROWS * nonzeros / max(rows, 1)))
    active = rows_held * (1 if shared else learners)
    if shared:
        held = min(rows, most // ACTIVE_ROW_BYTES)
        active += SHARED_ROW_BYTES * held * (learners - 1)
    counts = ROW_BYTES * learners * min(rows, COUNTED)
    copies = solving + (threads > 1)  # threads that share a sum have one each
    head, outside = HEAD_BYTES * min(columns + 1, HEAD) ** 2, min(columns + 1, HEAD)
    newton = Need("Newton's rows inside the margin", int(GATHERED * rows_held) * copies)
    if settings.ratio:
        newton = Need("the rows by columns", rows_held * solving)
        outside = min(columns, SPARSE) + 1
        head = OUTSIDE_BYTES * outside**2
    return [
        Need("interpreter and libraries", INTERPRETER_BYTES),
        Need(f"weights ({weights // max(columns, 1)} bytes a column)", weights),
        Need(f"counts ({ROW_BYTES * learners} bytes a row)", counts),
        Need("active set", active),
        Need("solver's margins and slacks", int(SOLVER_SHARE * rows_held) * solving),
        newton,
        Need("Newton's head block", head * solving),
        Need("rows outside memory", OUTSIDE_BYTES * outside**2 * learners),
        Need("chunks in flight", 4 * chunk * 8),
    ]


def certificate_memory_needed(
    settings: Settings, *, rows: int, columns: int, learners: int, held: bool, nonzeros: int = 0
) -> list[Need]:
    """Return what the certificates of so many classes keep in memory, in bytes; ``held`` : they
    hold rows, a search for upper bounds does, each in the active set of ``settings``.
    ``nonzeros`` : weights of the model.

    Examples
    --------
    >>> needs = certificate_memory_needed(
    ...     Settings(), rows=10**6, columns=10**6, learners=3, held=False
    ... )
    >>> [need.size // 10**6 for need in needs]
    [215, 0, 168, 12, 0, 268]
    """
    active = settings.active_set_bytes * held
    return [
        Need("interpreter and libraries", INTERPRETER_BYTES),
        Need("model", WEIGHT_BYTES * nonzeros),
        Need("weights and sums", CERTIFIED_BYTES * columns * learners),
        Need("counts", ROW_BYTES * learners * min(rows, COUNTED)),
        Need("active sets", int((1 + SOLVER_SHARE) * active) * learners),
        Need("chunks in flight", 4 * GROUP * BLOCK_NONZEROS * 8),
    ]


def most_that_fit(limit: int, most: int, needed: Callable[[int], Iterable[Need]]) -> int:
    """Return how many of ``most`` learners, or of what ``needed`` counts, fit in so many bytes
    together, perhaps none; ``needed`` : what so many keep in memory."""
    return bisect_right(range(1, most + 1), limit, key=lambda number: _total(needed(number)))


def rows_are_shared(settings: Settings, rows: int, nonzeros: int) -> bool:
    """Return whether learners hold the same rows: all of them, which the active set takes."""
    ascent = stages.plan(settings)[-1].ascent
    return (
        ascent and NONZERO_BYTES * nonzeros + ACTIVE_ROW_BYTES * rows <= settings.active_set_bytes
    )


def worker_memory_needed(
    settings: Settings, *, parts: int, at_once: int, columns: int = 0
) -> list[Need]:
    """Return what a worker keeps in memory, in bytes, that holds so many parts and works on some of
    them ``at_once``; ``settings`` are those of one part.

    Examples
    --------
    >>> needs = worker_memory_needed(Settings(active_set=10**8), parts=4, at_once=1)
    >>> [need.size // 10**6 for need in needs]
    [200, 0, 400, 116, 80]
    """
    at_once = min(at_once, parts)
    weights = (LEARNER_BYTES * parts + SOLVER_BYTES * at_once) * columns
    rows_held = settings.active_set_bytes
    solver = (SOLVER_SHARE * parts + NUMBERED_ANEW * at_once) * rows_held
    return [
        Need("interpreter and libraries", WORKER_BYTES),
        Need("weights", weights),
        Need(f"active sets of {parts} parts", parts * rows_held),
        Need("solver's margins and slacks", int(solver)),
        Need("chunks in flight", CHUNKS_OF_A_PART * at_once),
    ]


def check_worker(
    settings: Settings,
    worker: str,
    limit: int | None,
    *,
    parts: int,
    at_once: int,
    nonzeros: int = 1 << 62,
) -> int:
    """Return how many columns the parts of a worker may have, of so many ``nonzeros`` each at most,
    whose ``limit`` is so many bytes (None = it has none); raise a MachineError, with the sum item
    by item, if they do not fit."""
    filled = 2 * ACTIVE_ROW_BYTES * nonzeros  # text of rows without nonzeros: 2 for each
    settings = settings.but(active_set=min(settings.active_set_bytes, filled))

    def needed(columns: int) -> list[Need]:
        return worker_memory_needed(settings, parts=parts, at_once=at_once, columns=columns)

    if limit is None:
        return COLUMN_MAX + 1
    needs = needed(0 if settings.hash_bits is None else 1 << settings.hash_bits)
    if _total(needs) > limit:
        raise MachineError(
            f"worker {worker} needs {format_size(_total(needs))} of memory ({_listed(needs)}), "
            f"and it can use {format_size(limit)}. Give each worker more (fewer --workers, a "
            "larger --memory; those of a running scheduler a larger --memory-limit), start more "
            "of them, or give a smaller --active-set."
        )
    return most_that_fit(limit, COLUMN_MAX + 1, needed)


def has_room(settings: Settings, machine: Machine, nonzeros: int = 1 << 62) -> bool:
    """Return whether a fit has room for what the data fill, which have ``nonzeros`` at most."""
    nonzeros += 10_000  # of columns with few digits; from there on a new one takes 8 bytes of text
    columns = min(nonzeros, 1 << (settings.hash_bits or USUAL_BITS))
    needs = memory_needed(settings, DataSize(0, columns, nonzeros, occurring=0))
    return _total(needs) <= machine.memory_limit


def columns_allowed(settings: Settings, machine: Machine) -> int:
    """Return the largest number of columns whose weights fit in memory, if few of them occur: how
    many do is known when all rows have been read."""
    nonzeros = None if has_room(settings, machine) else 0

    def needed(columns: int) -> list[Need]:
        return memory_needed(settings, DataSize(0, columns, nonzeros, occurring=0))

    return most_that_fit(machine.memory_limit, COLUMN_MAX + 1, needed)


def _total(needs: Iterable[Need]) -> int:
    return sum(need.size for need in needs)


def check_memory(needs: Iterable[Need], machine: Machine, or_else: str = "") -> None:
    """Raise a MachineError, with the sum item by item, and ``or_else`` as advice, if a run does not
    fit."""
    needs = list(needs)
    total = _total(needs)
    if total > machine.memory_limit:
        raise MachineError(
            f"this run needs {format_size(total)} of memory ({_listed(needs)}), the limit is "
            f"{format_size(machine.memory_limit)}. Give a larger --memory{or_else}."
        )


def _listed(needs: Iterable[Need]) -> str:
    return ", ".join(f"{need.what} {format_size(need.size)}" for need in needs)
