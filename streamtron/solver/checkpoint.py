"""The state of a run after a reading, as JSON and arrays.

Only the classes named in ``_KNOWN`` are ever built, from their fields alone: nothing in a file is
executed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.certificate import Certificate
from streamtron.core.errors import FileDamaged
from streamtron.core.losses import Loss
from streamtron.core.rows import Label
from streamtron.core.scan_sums import ScanSums
from streamtron.core.sealed import Streamed
from streamtron.solver.alphas import Alphas
from streamtron.solver.hessian import Expansion
from streamtron.solver.learner import Learner, take_center
from streamtron.solver.memory import Memory
from streamtron.solver.progress import Average, BestWeights, Progress, ReadingBounds, StageReport
from streamtron.solver.scan import Frozen
from streamtron.solver.weights import WeightState, finite

_KNOWN = (
    Average,
    BestWeights,
    Certificate,
    Expansion,
    Frozen,
    Loss,
    Progress,
    ReadingBounds,
    ScanSums,
    StageReport,
    WeightState,
)
_CLASSES: dict[str, type] = {known.__name__: known for known in _KNOWN}

_NOT_STATE = ("settings", "facts", "targets", "active", "keepers", "outside")
"""What a learner is made from, and what it holds within a reading."""

Arrays = dict[str, Any]

_PLAIN, _LISTS = (bool, str, int), (list, tuple)


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
        arrays are not copied: it holds until they continue. ``group`` : the first learner and the
        one behind the last of those that train now; None = all train together."""
        encoder = Encoder()
        content = {"learners": [_encoded(learner, encoder) for learner in learners], "group": group}
        return cls(reading, content, encoder.arrays)

    @property
    def group(self) -> tuple[int, int] | None:
        """The first learner of the group in training, and the one behind its last; None = all."""
        span = self.content["group"]
        return None if span is None else (int(span[0]), int(span[1]))

    @property
    def all_finished(self) -> bool:
        """Whether all learners have finished; True if it is no state, as ``learners`` reports."""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            numbers = range(len(self.content["learners"]))
            return all(self.fields(number)["progress.finished"] is not None for number in numbers)
        return True

    @property
    def columns(self) -> int:
        """How many columns the learners have."""
        return len(self.arrays[self.fields(0)["running.w"]["array"]])

    def fields(self, number: int) -> dict[str, Any]:
        """The encoded fields of a learner by name, those of its objects as ``object.field``."""
        values = dict(self.content["learners"][number]["fields"]["dict"])
        for name, value in list(values.items()):
            if isinstance(value, dict) and "fields" in value:
                values |= {f"{name}.{field}": inner for field, inner in value["fields"]["dict"]}
        return values

    def learners(self, make: Callable[[Label | None], Learner]) -> list[Learner]:
        """Restore the learners, which hold no rows; ``make`` gives a new one, of as many columns,
        for a positive label. FileDamaged: the content is no state."""
        try:
            return [self._restored(encoded, make) for encoded in self.content["learners"]]
        except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise FileDamaged(
                f"a checkpoint that is whole, but no state of a run ({error!r}). "
                "Begin anew with --overwrite."
            ) from error

    def _restored(self, encoded: Any, make: Callable[[Label | None], Learner]) -> Learner:
        learner = make(encoded["positive"])
        fields = decode(encoded["fields"], self.arrays)
        _validate(learner, fields)
        vars(learner).update(fields, memory=Memory(fields["memory"]))
        take_center(learner, float(encoded["center"]))
        learner.progress.restart_clock(learner.progress.seconds)
        for report in learner.progress.reports:
            report.restart_clock()
        return learner


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run is resumed, see ``State``; and the learners that had finished, but by other
    settings than now."""

    reading: int
    reopened: Sequence[Learner] = ()


def _encoded(learner: Learner, encoder: Encoder) -> dict[str, Any]:
    if learner.finished is None:
        learner.progress.read_clock()
    fields = {name: value for name, value in vars(learner).items() if name not in _NOT_STATE}
    targets = learner.targets
    return {
        "positive": targets.positive,
        "center": targets.center,
        "fields": encoder.encode(fields),
    }


def _validate(learner: Learner, fields: dict[str, Any]) -> None:
    """Raise ValueError where fields are missing, or arrays are not what kernels take unchecked."""
    if fields.keys() != vars(learner).keys() - set(_NOT_STATE):
        raise ValueError("other fields than a learner has")
    running, frozen, best = fields["running"], fields["frozen"], fields["best"]
    columns = learner.columns
    new, fresh = WeightState(columns), ScanSums(columns)
    alike = [(getattr(running, name), getattr(new, name)) for name in ("w", "scalars")]
    alike.append((best.w, new.w))
    long = new.augmented
    averaged = best.average.total if best.average.number else None
    alike += [(vector, long) for vector in (best.candidate, averaged) if vector is not None]
    if frozen is not None:
        sums = frozen.scan_sums
        alike += [(getattr(sums, n), getattr(fresh, n)) for n in ("sums", "totals")]
        alike += [(vector, new.w) for vector in (frozen.w, sums.fresh)]
        alike += [] if sums.sq_columns is None else [(sums.sq_columns, new.w)]
    if best.marks is not None:
        alike.append((best.marks, np.zeros(columns, dtype=np.uint8)))
    if fields["expansion"] is not None:
        alike.append((fields["expansion"].v, long))
    if any(left.dtype != right.dtype or left.shape != right.shape for left, right in alike):
        raise ValueError("arrays of another kind or length")
    if not (finite(running) and best.finite):
        raise ValueError("weights that are no numbers")


class Encoder:
    """Encodes values; ``arrays`` collects their arrays, each once however often it occurs."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self._names: dict[int, str] = {}

    def encode(self, value: Any) -> Any:
        """The value as JSON, its arrays by name; TypeError: it is of no known class."""
        if value is None or isinstance(value, _PLAIN):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._name(value)}
        if isinstance(value, _LISTS):
            return [self.encode(item) for item in value]
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, Alphas):
            return {"alphas": [self._name(tensor) for tensor in value.streamed()]}
        name = type(value).__name__
        if _CLASSES.get(name) is not type(value):
            raise TypeError(f"{name}: no part of a checkpoint")
        names = getattr(type(value), "__slots__", None) or vars(value)
        fields = {field: getattr(value, field) for field in names}
        return {"class": name, "fields": self.encode(fields)}

    def _name(self, array: NDArray[Any] | Streamed) -> str:
        name = self._names.setdefault(id(array), f"{len(self._names):06d}")
        self.arrays[name] = array  # and keeps it alive, so that no other gets its id
        return name


def decode(encoded: Any, arrays: Arrays) -> Any:
    """Decode what ``Encoder`` encoded; KeyError, TypeError or ValueError if it is not that."""
    if isinstance(encoded, list):
        return [decode(item, arrays) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if "float" in encoded:
        return float(encoded["float"])
    if "array" in encoded:
        return arrays[encoded["array"]]
    if "alphas" in encoded:
        return Alphas.of_gaps(*(arrays[name] for name in encoded["alphas"]))
    if "dict" in encoded:
        return {decode(key, arrays): decode(item, arrays) for key, item in encoded["dict"]}
    known = _CLASSES[encoded["class"]]
    fields = decode(encoded["fields"], arrays)
    if fields.keys() != set(getattr(known, "__slots__", fields)):
        raise ValueError(f"other fields than {known.__name__} has")
    record: Any = object.__new__(known)
    for name, value in fields.items():
        object.__setattr__(record, name, value)
    return record
