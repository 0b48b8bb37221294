"""Whether what a checkpoint says of training in memory is what kernels can take unchecked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.training.newton import Direction, Newton
from streamtron.training.order import Turn
from streamtron.training.solution import Others, Solution
from streamtron.training.solve import PHASES, Solver
from streamtron.training.tasks import HardSolver, MiniEpochs, Task

VECTOR, REALS, COUNTS, MARKS, PLACES = (
    "a number a column",
    "a number a row",
    "counts",
    "0 or 1",
    "i",
)

_DTYPES = {
    VECTOR: np.float64, REALS: np.float64, COUNTS: np.int32, MARKS: np.uint8, PLACES: np.int64,
}  # fmt: skip

_ARRAYS: dict[type, dict[str, str]] = {
    MiniEpochs: {"counts": COUNTS, "waiting": PLACES},
    HardSolver: {"counts": COUNTS, "best": VECTOR},
    Solver: {
        "counts": COUNTS, "counts_before": COUNTS, "total": VECTOR, "erred": MARKS,
        "live": PLACES, "waiting": PLACES,
    },
    Solution: {"a": VECTOR, "v": VECTOR},
    Others: {"a": VECTOR},
    Newton: {"v": VECTOR, "center": VECTOR, "margins": REALS},
    Direction: dict.fromkeys(("diagonal", "found", "residual", "search", "image"), VECTOR),
}  # fmt: skip
"""Every array that may be there; those of ``PLACES`` may be a list of them."""


def check_task(task: Any, rows: int, columns: int) -> None:
    """Raise ValueError unless it is a task, with no arrays but those that so many rows held and
    columns ask for."""
    if not isinstance(task, Task):
        raise ValueError(f"{type(task).__name__}: no task")
    _check_arrays(task, rows, columns)


def _check_arrays(task: Any, rows: int, columns: int) -> None:
    kinds = _ARRAYS[type(task)]
    if isinstance(task, Solver) and task.phase not in PHASES:
        raise ValueError(f"a solver knows no {task.phase!r}")
    if isinstance(task, Solver) and task.phase == "_visit" and not _is_turn(task.turn):
        raise ValueError(f"a mini-epoch in the order of {task.turn!r}")
    for name in getattr(type(task), "__slots__", None) or vars(task):
        value = getattr(task, name)
        if type(value) in _ARRAYS:
            _check_arrays(value, rows, columns)
        for array in value if isinstance(value, list) else [value]:
            if isinstance(array, np.ndarray) and not _fits(array, kinds[name], rows, columns):
                raise ValueError(f"{name}: an array of another kind or length")


def _is_turn(turn: Any) -> bool:
    if not isinstance(turn, Turn):
        return False
    numbers = turn.seed, turn.reading, turn.mini_epoch
    return type(turn.random) is bool and all(type(number) is int for number in numbers)


def _fits(array: NDArray[Any], kind: str, rows: int, columns: int) -> bool:
    if array.dtype != _DTYPES[kind] or array.ndim != 1:
        return False
    if kind == PLACES:
        return not len(array) or (int(array.min()) >= 0 and int(array.max()) < rows)
    return len(array) == (columns + 1 if kind == VECTOR else rows)
