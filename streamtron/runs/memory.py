"""Sum the memory that a command needs, before it runs. The limit never changes a result."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError
from streamtron.core.rows import BLOCK_NONZEROS, BLOCK_ROWS, row_bytes
from streamtron.core.text import format_size
from streamtron.data import Dataset
from streamtron.data.arrays import MemoryData
from streamtron.solver.alphas import IN_MEMORY
from streamtron.solver.few_columns import SPARSE
from streamtron.solver.hessian import HEAD
from streamtron.solver.order import GROUP
from streamtron.solver.passes import GATHERED

LEARNER_BYTES = 8 * 5
"""A column, for every learner while it scans: the running weights, those that are scanned, those
summed afresh with their rounding errors, and the best (``benchmarks/wide.py``)."""

EXPANDED_BYTES = 8 * 3
"""A column, for every learner in training whose penalty has a 1-norm: where rows outside memory are
and were expanded (see ``few_columns``), and the sums that tell which columns weigh 0."""

IDLE_BYTES = 8 * 3
"""A column, for every learner while some are solved: the running weights, the best, the average."""

SOLVER_BYTES = 8 * 12
"""A column, for every learner that is being solved: the solver's vectors."""

HEAD_BYTES = 16
"""An entry of the head block, for every learner that is being solved: see ``Preconditioner``."""

OUTSIDE_BYTES = 8
"""An entry of the matrix of rows outside memory, for every learner: see ``Outside``."""

CERTIFIED_BYTES = 8 * 7
"""A column, for every class that is certified: its weights, the sums of its scan with their
rounding errors, those of a block, and what its distances are computed from."""

WEIGHT_BYTES = 12
"""A weight that is not 0, of a model in memory: its column and its value."""

FINISHED_BYTES = 8
"""A column, for every learner that is finished: its best weights."""

MODEL_BYTES = FINISHED_BYTES + 2 * WEIGHT_BYTES + 4 + 2
"""A column, for every learner when the model is made of all: the weights and the model twice, for
it is copied, ranks and offsets."""

SHARED_ROW_BYTES = 9
"""A shared row, for every learner but the first: its sign and Δ_k²."""

SOLVER_SHARE = 1 / 6
"""Margins, slacks, costs and α of the rows held, as a part of the active set."""

ALPHA_BYTES = 4
"""A row, for every learner: its dual variable, a float32; of more than IN_MEMORY rows in a file."""

INTERPRETER_BYTES = 226_000_000
"""The interpreter, its libraries and the compiled kernels: what a fit of two rows takes."""

WORKER_BYTES = 200_000_000
"""A worker's interpreter and libraries, Dask's among them: 172 MB before it reads anything."""

CHUNKS_OF_A_PART = 80_000_000
"""The chunks in flight of a part that is read, and what text is parsed into."""


class Need(NamedTuple):
    """One item of the sum, in bytes."""

    what: str
    size: int


class DataSize(NamedTuple):
    """Rows, columns that occur, and nonzeros of data; ``by_row`` : see ``core.rows.Rows``."""

    rows: int
    columns: int
    nonzeros: int
    by_row: bool = False

    @property
    def row_bytes(self) -> int:
        """What all rows take in memory, as they count against the active set."""
        return int(row_bytes(self.nonzeros, self.rows, by_row=self.by_row))


def size_of(data: Dataset | MemoryData) -> DataSize:
    """Return the size of a data set."""
    return DataSize(data.rows, data.columns, data.nonzeros, data.facts.by_row)


def fits_in_memory(settings: Settings, size: DataSize) -> bool:
    """Return whether the active set takes all rows, and training holds them."""
    return not settings.paper and size.row_bytes <= settings.active_set_bytes


def memory_needed(
    settings: Settings, size: DataSize, *, learners: int = 1, threads: int = 1, of: int = 1
) -> list[Need]:
    """Return what a fit keeps in memory, in bytes, if ``learners`` train together, ``of`` so many.

    Examples
    --------
    >>> needs = memory_needed(Settings(), DataSize(10**6, 10**6, 10**7))
    >>> [need.size // 10**6 for need in needs]
    [226, 120, 4, 104, 17, 26, 16, 8, 0]
    """
    rows, columns, nonzeros, _ = size
    holds_all = fits_in_memory(settings, size)
    solving = min(learners, threads)
    training = max(
        (LEARNER_BYTES + (EXPANDED_BYTES if settings.ratio else 0)) * learners,
        IDLE_BYTES * learners + SOLVER_BYTES * solving,
    )
    weights = columns * max(training + FINISHED_BYTES * (of - learners), MODEL_BYTES * of)
    rows_held = min(settings.active_set_bytes, size.row_bytes)
    chunk = min(
        GROUP * BLOCK_NONZEROS, nonzeros, GROUP * math.ceil(BLOCK_ROWS * nonzeros / max(rows, 1))
    )
    active = rows_held * (1 if holds_all else learners)
    if holds_all:
        active += SHARED_ROW_BYTES * rows * (learners - 1)
    alphas = ALPHA_BYTES * learners * (rows if rows <= IN_MEMORY else 0)
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
        Need(f"dual variables ({ALPHA_BYTES * learners} bytes a row)", alphas),
        Need("active set", active),
        Need("solver's margins and slacks", int(SOLVER_SHARE * rows_held) * solving),
        newton,
        Need("Newton's head block", head * solving),
        Need("rows outside memory", OUTSIDE_BYTES * outside**2 * learners),
        Need("chunks in flight", 0 if holds_all else 8 * min(4 * chunk, 2 * nonzeros)),
    ]


class Plan(NamedTuple):
    """The memory that a fit has: bytes for rows, how many learners train at a time of how many, and
    what that takes."""

    active_set: int
    learners: int
    at_once: int
    needs: list[Need]
    limit: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "active_set": self.active_set,
            "learners": self.learners,
            "learners_at_once": self.at_once,
            "items": dict(self.needs),
            "total": _total(self.needs),
            "limit": self.limit,
        }


def plan_memory(
    settings: Settings,
    machine: Machine,
    size: DataSize,
    learners: int,
    beside: Sequence[Need] = (),
    *,
    or_say: bool = False,
) -> Plan:
    """Plan the memory of a fit: the active set as given or as memory allows, 1 GB at most, and as
    many learners at a time as have room. ``beside`` : what else is in memory. MachineError: one
    learner does not fit, unless that is only to be said."""
    limit = machine.memory_limit

    def needed(number: int, active_set: int) -> list[Need]:
        chosen = settings.but(active_set=active_set)
        threads = machine.thread_count
        needs = memory_needed(chosen, size, learners=number, threads=threads, of=learners)
        return [*needs, *beside]

    active_set = settings.active_set_bytes
    if settings.active_set is None and not most_that_fit(limit, 1, lambda n: needed(n, active_set)):
        megabytes = most_that_fit(limit, active_set // 10**6, lambda n: needed(1, n * 10**6))
        active_set = 900_000 * megabytes  # a tenth is left, so that updates fit too
    at_once = most_that_fit(limit, learners, lambda n: needed(n, active_set))
    if not (at_once or or_say):
        smaller = " or a smaller --active-set" if settings.active_set else ""
        check_memory(needed(1, active_set), machine, smaller)
    at_once = max(1, at_once)
    return Plan(active_set, learners, at_once, needed(at_once, active_set), limit)


def certificate_memory_needed(size: DataSize, *, learners: int, weights: int = 0) -> list[Need]:
    """Return what the certificates of so many classes keep in memory, in bytes, if rows are on
    disk. ``weights`` : of the model that are not 0.

    Examples
    --------
    >>> needs = certificate_memory_needed(DataSize(10**6, 10**6, 10**7), learners=3)
    >>> [need.size // 10**6 for need in needs]
    [226, 0, 168, 12, 33]
    """
    rows, columns, nonzeros, _ = size
    chunk = min(BLOCK_NONZEROS, nonzeros)
    return [
        Need("interpreter and libraries", INTERPRETER_BYTES),
        Need("model", WEIGHT_BYTES * weights),
        Need("weights and sums", CERTIFIED_BYTES * columns * learners),
        Need("dual variables", ALPHA_BYTES * learners * (rows if rows <= IN_MEMORY else 0)),
        Need("chunks in flight", 4 * chunk * 8),
    ]


def most_that_fit(limit: int, most: int, needed: Callable[[int], Iterable[Need]]) -> int:
    """Return how many of ``most`` learners, or of what ``needed`` counts, fit in so many bytes
    together, perhaps none; ``needed`` : what so many keep in memory."""
    return bisect_right(range(1, most + 1), limit, key=lambda number: _total(needed(number)))


def worker_memory_needed(
    settings: Settings, *, parts: int, at_once: int, columns: int = 0
) -> list[Need]:
    """Return what a worker keeps in memory, in bytes, that holds so many parts and works on some of
    them ``at_once``; ``settings`` are those of one part.

    Examples
    --------
    >>> needs = worker_memory_needed(Settings(active_set=10**8), parts=4, at_once=1)
    >>> [need.size // 10**6 for need in needs]
    [200, 0, 400, 66, 80]
    """
    at_once = min(at_once, parts)
    weights = (LEARNER_BYTES * parts + SOLVER_BYTES * at_once) * columns
    rows_held = settings.active_set_bytes
    solver = SOLVER_SHARE * parts * rows_held
    return [
        Need("interpreter and libraries", WORKER_BYTES),
        Need("weights", weights),
        Need(f"active sets of {parts} parts", parts * rows_held),
        Need("solver's margins and slacks", int(solver)),
        Need("chunks in flight", CHUNKS_OF_A_PART * at_once),
    ]


def check_worker(
    settings: Settings, worker: str, limit: int | None, *, parts: int, at_once: int, columns: int
) -> None:
    """Raise a MachineError, with the sum item by item, unless the parts of a worker, of so many
    ``columns``, fit in its ``limit`` of bytes (None = it has none)."""
    needs = worker_memory_needed(settings, parts=parts, at_once=at_once, columns=columns)
    if limit is not None and _total(needs) > limit:
        raise MachineError(
            f"worker {worker} needs {format_size(_total(needs))} of memory ({_listed(needs)}), "
            f"and it can use {format_size(limit)}. Give each worker more (fewer --workers, a "
            "larger --memory; those of a running scheduler a larger --memory-limit), start more "
            "of them, or give a smaller --active-set."
        )


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
