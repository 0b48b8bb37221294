"""The state of a run after a reading, as JSON and arrays: some fields of every learner.

Restored are new learners, whose fields are set: nothing in a file is executed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import FileDamaged, InternalError
from streamtron.core.rows import Label
from streamtron.core.sealed import Streamed
from streamtron.solver.alphas import Alphas
from streamtron.solver.hessian import Expansion
from streamtron.solver.learner import Learner, Memory, freeze
from streamtron.solver.progress import ENDS, PHASES, BestWeights, Progress

OWN = {
    "augmentation": float,
    "memory": str,
    "visits": bool,
    "shuffles": int,
    "elsewhere": int,
}
"""Fields of a learner that are plain values, and their types."""

NO_STATE = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    StopIteration,
    InternalError,
)
"""What content that is no state raises; the last one, bounds that exclude each other."""

BEYOND = {int: 2**62, float: 1e300}
"""Bounds on the size of every finite number of a run."""

MOST, MOST_LOG = float(np.finfo(np.float32).max), 104.0
"""Above the size of every label, and of the logarithm of each that is not 0."""

Arrays = dict[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """The state of a run: all learners before reading ``reading``, as JSON and arrays."""

    reading: int
    content: dict[str, Any]
    arrays: Arrays

    @classmethod
    def of(
        cls, reading: int, learners: Sequence[Learner], *, group: tuple[int, int] | None = None
    ) -> State:
        """Take the state of learners, those of one class in the order of the candidates. Their
        arrays are not copied: it holds until they continue. ``group`` : the first learner that
        trains now, and the one after the last; None = all train together."""
        encoder = _Encoder()
        encoded = [encoder.encode(_fields_of(learner)) for learner in learners]
        return cls(reading, {"learners": encoded, "group": group}, encoder.arrays)

    @property
    def group(self) -> tuple[int, int] | None:
        """The first learner of the group in training, and the one after its last; None = all."""
        span = self.content["group"]
        return None if span is None else (int(span[0]), int(span[1]))

    @property
    def all_finished(self) -> bool:
        """Whether all learners have finished; True if it is no state, as ``learners`` reports."""
        with contextlib.suppress(LookupError, TypeError):
            learners = self.content["learners"]
            return all(learner["progress"]["finished"] is not None for learner in learners)
        return True

    @property
    def columns(self) -> int:
        """How many columns the learners have."""
        return len(self.arrays[self.content["learners"][0]["running"]["w"]["array"]])

    def learners(self, make: Callable[[Label | None], Learner]) -> list[Learner]:
        """Restore the learners, which hold no rows; ``make`` gives a new one, of as many columns,
        for a positive label. FileDamaged: the content is no state."""
        try:
            return [
                _restore(make(encoded["positive"]), _decoded(encoded, self.arrays))
                for encoded in self.content["learners"]
            ]
        except NO_STATE as error:
            raise FileDamaged(
                f"a checkpoint that is whole, but no state of a run ({error!r}). "
                "Begin anew with --overwrite."
            ) from error


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run is resumed, see ``State``; and the learners that had finished, but by other
    settings than now."""

    reading: int
    reopened: Sequence[Learner] = ()


def _fields_of(learner: Learner) -> dict[str, Any]:
    if learner.finished is None:
        learner.progress.read_clock()
    running, frozen = learner.running, learner.frozen
    scan = None
    if frozen is not None:
        sums = frozen.scan_sums
        scan = {name: getattr(sums, name) for name in ("fresh", "sums", "totals", "sq_columns")}
        scan |= {"w": frozen.w, "bias": frozen.bias}
    return {
        "positive": learner.targets.positive,
        "center": learner.targets.center,
        "own": {name: getattr(learner, name) for name in OWN},
        "running": {name: getattr(running, name) for name in ("w", "scalars", "updates")},
        "alphas": list(learner.alphas.streamed()),
        "best": learner.best,
        "progress": learner.progress,
        "scan": scan,
        "expansion": learner.expansion,
    }


def _restore(learner: Learner, saved: Mapping[str, Any]) -> Learner:
    """Set the fields of a new learner; ValueError where one is missing, or an array is not what
    kernels take unchecked."""
    scan, columns = saved["scan"], learner.columns
    plain = {name: _made(kind, saved["own"][name]) for name, kind in OWN.items()}
    vars(learner).update(plain, memory=Memory(plain["memory"]))
    targets, running = learner.targets, learner.running
    targets.center = _made(float, saved["center"])
    if not abs(targets.center) <= (MOST_LOG if targets.rates else MOST):
        raise ValueError("a center that labels cannot have")
    w, scalars, running.updates = (saved["running"][name] for name in ("w", "scalars", "updates"))
    running.w, running.scalars = _like(running.w, w), _like(running.scalars, scalars)
    best, progress = _made(BestWeights, saved["best"]), _made(Progress, saved["progress"])
    _like(running.w, best.w)
    long = running.augmented
    for vector in (best.candidate, best.total if best.averaged else None):
        _like(long, long if vector is None else vector)
    if best.marks is not None:
        _like(np.zeros(columns, dtype=np.uint8), best.marks)
    counts = len(progress.gained), len(progress.told)
    if counts != (2, 3) or progress.phases.keys() != {*PHASES}:
        raise ValueError("other counts")
    if progress.finished not in (None, *ENDS) or (progress.finished and not best.certificate):
        raise ValueError("an end of another name, or without a proof")
    if not progress.reports or not all(report.name for report in progress.reports):
        raise ValueError("no stage")
    if not all(np.isfinite(some).all() for some in (w, scalars, best.w, best.bias)):
        raise ValueError("weights that are no numbers")
    frozen, expansion = None, _made(Expansion | None, saved["expansion"])
    if scan is not None:
        frozen = freeze(learner, _like(running.w, scan["w"]), float(scan["bias"]))
        sums = frozen.scan_sums
        sums.fresh, sums.low = _like(sums.fresh, scan["fresh"]), np.zeros(0)
        sums.sums, sums.totals = _like(sums.sums, scan["sums"]), _like(sums.totals, scan["totals"])
        if sums.sq_columns is not None:
            sums.sq_columns = _like(sums.sq_columns, scan["sq_columns"])
        if progress.finished:
            frozen.certificate()  # raises where its bounds exclude each other
    _like(long, long if expansion is None else expansion.v)
    alphas = Alphas.of_gaps(*saved["alphas"])
    alphas.width = learner.outputs
    vars(learner).update(
        alphas=alphas, best=best, progress=progress, frozen=frozen, expansion=expansion
    )
    return learner


def _like(expected: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that has the type and shape of another one."""
    if array.dtype != expected.dtype or array.shape != expected.shape:
        raise ValueError("arrays of another kind or length")
    return array


def _made(kind: Any, value: Any) -> Any:
    """Return a value as one of a type: plain, an array, a record of exactly its fields, a list or a
    dict of such values, or None where the type allows it."""
    kinds, origin = get_args(kind), get_origin(kind)
    if NoneType in kinds:
        return None if value is None else _made(kinds[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        if value.keys() != {*_names(kind)}:
            raise ValueError(f"other fields than {kind} has")
        return kind(**{name: _made(hints[name], value[name]) for name in value})
    if origin is list:
        return [_made(kinds[0], item) for item in value]
    if origin is dict:
        return {name: _made(kinds[1], item) for name, item in value.items()}
    if kind is not Any and type(value) is not (origin or kind):
        raise ValueError(f"{value} is not {kind}")
    if kind in BEYOND and BEYOND[kind] < abs(value) < np.inf:
        raise ValueError(f"{value} is beyond any run")
    return value


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind) if field.name[0] != "_"]


class _Encoder:
    """Encodes values as JSON; ``arrays`` collects their arrays, each once however often it
    occurs."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self._numbers: dict[int, str] = {}

    def encode(self, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if isinstance(value, np.ndarray | Streamed):
            name = self._numbers.setdefault(id(value), f"{len(self._numbers):06d}")
            self.arrays[name] = value  # and keeps it alive, so that no other gets its id
            return {"array": name}
        if isinstance(value, list | tuple):
            return [self.encode(item) for item in value]
        if hasattr(value, "__dataclass_fields__"):
            value = {name: getattr(value, name) for name in _names(value)}
        if isinstance(value, dict):
            return {name: self.encode(item) for name, item in value.items()}
        return value


def _decoded(encoded: Any, arrays: Arrays) -> Any:
    """Return what was encoded, records as their fields."""
    if isinstance(encoded, list):
        return [_decoded(item, arrays) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if encoded.keys() == {"float"}:
        return float(encoded["float"])
    if encoded.keys() == {"array"}:
        return arrays[encoded["array"]]
    return {name: _decoded(item, arrays) for name, item in encoded.items()}
