"""Checkpoints that are kept in memory."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.solver.checkpoint import State


class KeepsAll:
    """Keeps the state at every border between chunks, as copies."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def checkpoint(self, state: Callable[[], State]) -> None:
        self.states.append(deepcopy(state()))

    before_solves = end = checkpoint

    def checkpoint_due(self) -> bool:
        return False


def through_a_file(state: State, path: Path) -> State:
    """The state as a checkpoint file gives it back."""
    write_sealed(path, state.content, state.arrays)
    content, arrays = read_sealed(path, "checkpoint")
    return State(state.reading, state.chunks, content, arrays)


def learner_fields(state: State, number: int) -> dict[str, Any]:
    """The encoded fields of a learner in a checkpoint, those of its objects as ``object.field``."""
    found = dict(state.content["learners"][number]["fields"]["dict"])
    for name, value in list(found.items()):
        if isinstance(value, dict) and "fields" in value:
            found |= {f"{name}.{field}": inner for field, inner in value["fields"]["dict"]}
    return found
