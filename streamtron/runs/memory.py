"""Sum the memory that a command needs, before it runs. The limit never changes a result."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any, NamedTuple

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError
from streamtron.core.rows import BLOCK_NONZEROS, BLOCK_ROWS, row_bytes
from streamtron.core.text import format_size
from streamtron.data import Dataset
from streamtron.data.arrays import MemoryData
from streamtron.data.sample import has_transformer
from streamtron.solver.alphas import IN_MEMORY
from streamtron.solver.few_columns import SPARSE
from streamtron.solver.hessian import head_of
from streamtron.solver.order import GROUP
from streamtron.solver.passes import BLOCKS, GATHERED

LEARNER_BYTES = 8 * 5
"""A column, for every learner while it scans: the running weights, the scanned ones, the sums made
afresh with their rounding errors, and the best weights (``benchmarks/wide.py``)."""

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

WEIGHT_BYTES = 12
"""A weight that is not 0, of a model in memory: its column and its value."""

FINISHED_BYTES = 8
"""A column, for every learner that is finished: its best weights."""

MODEL_BYTES = FINISHED_BYTES + 2 * WEIGHT_BYTES - 4 + 2
"""A column, for every learner when the model is made of all: the weights, ranks, the model's
weights twice, for they are joined, and offsets."""

SCANNED_BYTES = 8 * 2
"""A column, for every learner that was trained last, when the model is made: the sums of its last
scan, of which the model's ball is made."""

SHARED_ROW_BYTES = 9
"""A shared row, for every learner but the first: its sign and Δ_k²."""

SOLVER_SHARE = 1 / 6
"""Margins, slacks, costs and α of the rows held, as a part of the active set."""

CLASS_BYTES = 8 * 8
"""A row held and a class of softmax: margins, shares, what a product makes of them, and α."""

ALPHA_BYTES = 4
"""A row, for every learner: its dual variable, a float32; of more than IN_MEMORY rows in a file."""

INTERPRETER_BYTES = 236_000_000
"""The interpreter, its libraries and the compiled kernels: what a fit of two rows takes."""

TRANSFORMER_BYTES = 170_000_000
"""scikit-learn, pandas and skops, where columns are transformed, and what the sample leaves."""

WORKER_BYTES = 200_000_000
"""A worker's interpreter and libraries, Dask's among them: 172 MB before it reads anything."""

CHUNKS_OF_A_PART = 80_000_000
"""The chunks in flight of a part that is read, and what text is parsed into."""


NEWTON = "Newton's rows inside the margin", "Newton's head block"
"""Items that a fit needs only if Newton's method solves some of its rows."""

Needs = dict[str, int]
"""Item in memory → its bytes."""


class DataSize(NamedTuple):
    """Rows, columns that occur, and nonzeros of data; ``by_row`` : see ``core.rows.Rows``;
    ``classes`` : of softmax, else 1."""

    rows: int
    columns: int
    nonzeros: int
    by_row: bool = False
    classes: int = 1

    @property
    def row_bytes(self) -> int:
        """What all rows take in memory, as they count against the active set."""
        return int(row_bytes(self.nonzeros, self.rows, by_row=self.by_row))


def size_of(data: Dataset | MemoryData, settings: Settings) -> DataSize:
    """Return the size of a data set, and of its problem."""
    classes = len(data.labels) if settings.softmax else 1
    return DataSize(data.rows, data.columns, data.nonzeros, data.facts.by_row, classes)


def fits_in_memory(settings: Settings, size: DataSize) -> bool:
    """Return whether the active set takes all rows, and training holds them."""
    return not settings.paper and size.row_bytes <= settings.active_set_bytes


def memory_needed(
    settings: Settings, size: DataSize, *, learners: int = 1, threads: int = 1, of: int = 1
) -> Needs:
    """Return the bytes that a fit keeps in memory if ``learners`` train together, ``of`` all.

    Examples
    --------
    >>> needs = memory_needed(Settings(), DataSize(10**6, 10**6, 10**7))
    >>> [size // 10**6 for size in needs.values()]
    [236, 120, 4, 104, 17, 26, 16, 0, 0]
    """
    rows, columns, nonzeros, _, classes = size
    columns *= classes
    holds_all = fits_in_memory(settings, size)
    solving = min(learners, threads)
    training = max(
        (LEARNER_BYTES + (EXPANDED_BYTES if settings.ratio else 0)) * learners,
        IDLE_BYTES * learners + SOLVER_BYTES * solving,
    )
    training += FINISHED_BYTES * (of - learners)
    weights = columns * max(training, MODEL_BYTES * of + SCANNED_BYTES * learners)
    rows_held = min(settings.active_set_bytes, size.row_bytes)
    chunk = min(
        GROUP * BLOCK_NONZEROS, nonzeros, GROUP * math.ceil(BLOCK_ROWS * nonzeros / max(rows, 1))
    )
    active = rows_held * (1 if holds_all else learners)
    if holds_all:
        active += SHARED_ROW_BYTES * rows * (learners - 1)
    alphas = ALPHA_BYTES * learners * classes * (rows if rows * classes <= IN_MEMORY else 0)
    outside, sums = min(size.columns + 1, head_of(classes)), 0
    margins = int(SOLVER_SHARE * rows_held)
    head = HEAD_BYTES * outside**2 * classes
    if threads > learners == 1:  # threads that share a sum have one each, see BlockSums
        largest = BLOCKS * max(columns + 1, outside**2)
        sums = 8 * min(largest, int(GATHERED * nonzeros * rows_held / max(size.row_bytes, 1)))
    if classes > 1:
        margins += CLASS_BYTES * classes * (rows * rows_held // max(size.row_bytes, 1))
        outside = 0
    newton, held = NEWTON[0], int(GATHERED * rows_held) * solving + sums
    if settings.ratio:
        newton, held = "the rows by columns", rows_held * solving
        outside = min(columns, SPARSE) + 1
        head = OUTSIDE_BYTES * outside**2
    return {
        "interpreter and libraries": INTERPRETER_BYTES
        + TRANSFORMER_BYTES * has_transformer(settings),
        f"weights ({weights // max(size.columns, 1)} bytes a column)": weights,
        f"dual variables ({ALPHA_BYTES * learners * classes} bytes a row)": alphas,
        "active set": active,
        "solver's margins and slacks": margins * solving,
        newton: held,
        NEWTON[1]: head * solving,
        "rows outside memory": 0 if holds_all else OUTSIDE_BYTES * outside**2 * learners,
        "chunks in flight": 0 if holds_all else 8 * min(3 * chunk, 2 * nonzeros),
    }


class Plan(NamedTuple):
    """The memory of a fit: bytes for rows, the number of learners, how many train at a time, and
    the bytes that they need."""

    active_set: int
    learners: int
    at_once: int
    needs: Needs
    limit: int

    @property
    def total(self) -> int:
        """Bytes of all that it needs."""
        return sum(self.needs.values())

    @property
    def total_of_visits(self) -> int:
        """The same if visits alone solve all rows."""
        return self.total - sum(self.needs.get(item, 0) for item in NEWTON)

    def check(self, settings: Settings) -> None:
        """Raise a MachineError, with the sum item by item and advice, if that does not fit."""
        if self.total > self.limit:
            or_else = " or a smaller --active-set" if settings.active_set else ""
            raise MachineError(
                f"this run needs {format_size(self.total)} of memory ({_listed(self.needs)}), the "
                f"limit is {format_size(self.limit)}. Give a larger --memory{or_else}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "active_set": self.active_set,
            "learners": self.learners,
            "learners_at_once": self.at_once,
            "items": self.needs,
            "total": self.total,
            "total_of_visits": self.total_of_visits,
            "limit": self.limit,
        }


def plan_memory(
    settings: Settings, machine: Machine, size: DataSize, learners: int, model: int = 0
) -> Plan:
    """Plan the memory of a fit: the active set as given or as memory allows, 1 GB at most, and as
    many learners at a time as have room, one at least; see ``Plan.check``. ``model`` : weights of a
    model that is in memory, too."""
    limit, beside = machine.memory_limit, {"model": WEIGHT_BYTES * model} if model else {}

    def needed(number: int, active_set: int) -> Needs:
        chosen = settings.but(active_set=active_set)
        threads = machine.thread_count
        needs = memory_needed(chosen, size, learners=number, threads=threads, of=learners)
        return needs | beside

    def total(number: int, active_set: int) -> int:
        return sum(needed(number, active_set).values())

    active_set = settings.active_set_bytes
    if settings.active_set is None and total(1, active_set) > limit:
        choices = range(1, active_set // 10**6 + 1)
        megabytes = bisect_right(choices, limit, key=lambda n: total(1, n * 10**6))
        active_set = 900_000 * megabytes  # a tenth is left, so that updates fit too
    at_once = bisect_right(range(1, learners + 1), limit, key=lambda n: total(n, active_set))
    at_once = max(1, at_once)
    return Plan(active_set, learners, at_once, needed(at_once, active_set), limit)


def worker_memory_needed(
    settings: Settings, *, parts: int, at_once: int, columns: int = 0
) -> Needs:
    """Return the bytes that a worker keeps in memory if it holds ``parts`` parts and works on some
    of them ``at_once``; ``settings`` are those of one part.

    Examples
    --------
    >>> needs = worker_memory_needed(Settings(active_set=10**8), parts=4, at_once=1)
    >>> [size // 10**6 for size in needs.values()]
    [200, 0, 400, 66, 80]
    """
    at_once, rows_held = min(at_once, parts), settings.active_set_bytes
    return {
        "interpreter and libraries": WORKER_BYTES,
        "weights": (LEARNER_BYTES * parts + SOLVER_BYTES * at_once) * columns,
        f"active sets of {parts} parts": parts * rows_held,
        "solver's margins and slacks": int(SOLVER_SHARE * parts * rows_held),
        "chunks in flight": CHUNKS_OF_A_PART * at_once,
    }


def check_worker(
    settings: Settings, worker: str, limit: int | None, *, parts: int, at_once: int, columns: int
) -> None:
    """Raise a MachineError, with the sum item by item, unless the parts of a worker, of ``columns``
    columns, fit in its ``limit`` of bytes (None = it has none)."""
    needs = worker_memory_needed(settings, parts=parts, at_once=at_once, columns=columns)
    if limit is not None and (total := sum(needs.values())) > limit:
        raise MachineError(
            f"worker {worker} needs {format_size(total)} of memory ({_listed(needs)}), and it can "
            f"use {format_size(limit)}. Give each worker more (fewer --workers, a larger --memory; "
            "those of a running scheduler a larger --memory-limit), start more of them, or give a "
            "smaller --active-set."
        )


def _listed(needs: Needs) -> str:
    return ", ".join(f"{what} {format_size(size)}" for what, size in needs.items())
