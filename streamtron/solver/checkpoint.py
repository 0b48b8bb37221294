"""The state of a run between two chunks, as JSON and arrays, and the run resumed from it; and
learners out of training, which hold vectors by their nonzeros.

Only the classes named in ``_KNOWN`` are ever built, from their fields alone: nothing in a file is
executed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.losses import Loss
from streamtron.core.rows import Chunk, ChunkSource, Label
from streamtron.core.scan_sums import ScanSums
from streamtron.core.sealed import Streamed
from streamtron.solver import order
from streamtron.solver.duals import Counts
from streamtron.solver.hessian import Expansion, Outside
from streamtron.solver.learner import Learner, enter
from streamtron.solver.progress import Average, BestWeights, Progress, ReadingBounds, StageReport
from streamtron.solver.scan import Frozen
from streamtron.solver.stages import Regime, Stage
from streamtron.solver.targets import Extent
from streamtron.solver.vectors import SparseVector, Vector, dense, is_vector, smaller
from streamtron.solver.weights import WeightState

_KNOWN = (
    Average,
    BestWeights,
    Certificate,
    Expansion,
    Extent,
    Frozen,
    Loss,
    Outside,
    Progress,
    ReadingBounds,
    ScanSums,
    Stage,
    StageReport,
    WeightState,
)
_CLASSES: dict[str, type] = {known.__name__: known for known in _KNOWN}

_NOT_STATE = ("settings", "targets", "pool", "active", "keepers")
"""What a learner is made from, and rows, which are read again."""

_PLACES = (
    ("running", "w"),
    ("best", "w"),
    ("best", "candidate"),
    ("best.average", "total"),
    ("frozen", "w"),
    ("frozen.scan_sums", "fresh"),
    ("frozen.scan_sums", "low"),
    ("frozen.scan_sums", "sq_columns"),
    ("outside", "v"),
    ("expansion", "v"),
)
"""Where a learner holds vectors of one number a column; the last four may be None."""

IN_FIELDS = frozenset(name for _, name in _PLACES)
"""The names of these fields, in a checkpoint."""

NOT_BEGUN = -1
"""The number of chunks taken of a reading that has not begun."""

Arrays = dict[str, Any]

_PLAIN, _ARRAYS, _LISTS = (bool, str, int), (np.ndarray, SparseVector), (list, tuple)


@dataclass(frozen=True, slots=True)
class State:
    """The state of a run: all learners, as JSON and arrays, have taken ``chunks`` chunks of reading
    ``reading``; ``NOT_BEGUN`` chunks between two readings."""

    reading: int
    chunks: int
    content: dict[str, Any]
    arrays: Arrays

    @classmethod
    def of(
        cls,
        reading: int,
        chunks: int,
        learners: Sequence[Learner],
        placeholders: Sequence[Learner] = (),
        *,
        group: tuple[int, int] | None = None,
    ) -> State:
        """Take the state of learners, those of one class in the order of the candidates. Their
        arrays are not copied: it holds until they continue. ``group`` : the first learner and the
        one behind the last of those that train now; None = all train together."""
        encoder = Encoder()
        content = {
            "learners": [_encoded(learner, encoder) for learner in learners],
            "placeholders": [_encoded(learner, encoder) for learner in placeholders],
            "group": group,
        }
        return cls(reading, chunks, content, encoder.arrays)

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

    def fields(self, number: int) -> dict[str, Any]:
        """The encoded fields of a learner by name, those of its objects as ``object.field``."""
        values = dict(self.content["learners"][number]["fields"]["dict"])
        for name, value in list(values.items()):
            if isinstance(value, dict) and "fields" in value:
                values |= {f"{name}.{field}": inner for field, inner in value["fields"]["dict"]}
        return values

    def learners(
        self, make: Callable[[Label | None], Learner], group: str
    ) -> list[RestoredLearner]:
        """Restore the ``"learners"`` or the ``"placeholders"``, their vectors as they are in the
        file, see ``densify``; ``make`` gives a new one for a positive label. FileDamaged: the
        content is no state."""
        try:
            return [self._restored(encoded, make) for encoded in self.content[group]]
        except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise FileDamaged(
                f"a checkpoint that is whole, but no state of a run ({error!r}). "
                "Begin anew with --overwrite."
            ) from error

    def _restored(self, encoded: Any, make: Callable[[Label | None], Learner]) -> RestoredLearner:
        learner = make(encoded["positive"])
        fields = decode(encoded["fields"], self.arrays)
        held = encoded["held"]
        numbers = np.arange(held) if isinstance(held, int) else decode(held, self.arrays)
        _validate(learner, fields)
        vars(learner).update(fields)
        enter(learner, Regime(learner.regime))
        learner.progress.restart_clock(learner.progress.seconds)
        for report in learner.progress.reports:
            report.restart_clock()
        return RestoredLearner(learner, numbers.astype(np.int64))


def _encoded(learner: Learner, encoder: Encoder) -> dict[str, Any]:
    if learner.finished is None:
        learner.progress.read_clock()
    fields = {name: value for name, value in vars(learner).items() if name not in _NOT_STATE}
    positive, active = learner.targets.positive, learner.active
    every_row = learner.regime == Regime.ALL_ROWS
    return {
        "positive": positive if isinstance(positive, float | str | bool) else None,
        "held": len(active) if every_row else encoder.encode(active.numbers),
        "fields": encoder.encode(fields),
    }


def _validate(learner: Learner, fields: dict[str, Any]) -> None:
    """Raise ValueError where fields are missing, or arrays are not what kernels take unchecked."""
    if fields.keys() != vars(learner).keys() - set(_NOT_STATE):
        raise ValueError("other fields than a learner has")
    running, frozen, outside = fields["running"], fields["frozen"], fields["outside"]
    new, fresh = WeightState(), ScanSums(1.0, 0)
    alike = [(running.scalars, new.scalars), (running.tallies, new.tallies)]
    wide = [running.w]
    if frozen is not None:
        scan_sums = frozen.scan_sums
        alike += [(getattr(scan_sums, n), getattr(fresh, n)) for n in ("bins", "sums", "totals")]
        wide += [frozen.w, scan_sums.fresh]
        wide += [] if scan_sums.sq_columns is None else [scan_sums.sq_columns]
    lengths = [(vector, len(running.w)) for vector in wide]
    if outside is not None:
        size, columns = len(outside.linear), outside.columns
        lengths += [(outside.v, len(running.w) + 1), (outside.linear, size)]
        alike += [(outside.gram, np.zeros((size, size))), (columns, np.arange(size - 1))]
        if (np.diff(columns, prepend=-1) <= 0).any() or columns.max(initial=-1) >= len(running.w):
            raise ValueError("columns that are not there")
    if (marks := fields["best"].marks) is not None:
        alike.append((marks[:0], np.zeros(0, dtype=np.uint8)))
    if fields["expansion"] is not None:
        lengths.append((fields["expansion"].v, len(running.w) + 1))
    if any(left.dtype != right.dtype or left.shape != right.shape for left, right in alike):
        raise ValueError("arrays of another kind or length")
    if not all(is_vector(vector, length) for vector, length in lengths):
        raise ValueError("vectors of another kind or length")
    unfinished = fields["progress"].finished is None
    if unfinished and not math.isfinite(kernels.square_sum(dense(running.w))):
        raise ValueError("weights that are no numbers")


class RestoredLearner:
    """A learner whose rows are still to be read again, in the order in which it held them.
    ``knows_columns`` : whether its weights tell which columns there may be."""

    def __init__(
        self, learner: Learner, numbers: NDArray[np.int64], *, knows_columns: bool = True
    ) -> None:
        self.learner = learner
        self._missing, self._knows_columns = numbers, knows_columns

    @property
    def complete(self) -> bool:
        """Whether every row is there."""
        return not len(self._missing)

    def take(self, chunk: Chunk) -> None:
        """Hold the rows of a chunk that are next."""
        learner = self.learner
        columns = len(learner.running.w)
        if self._knows_columns and chunk.width > columns:
            raise DataError(
                f"the checkpoint knows {columns} columns, the shards have column "
                f"{chunk.width - 1}. Begin anew with --overwrite."
            )
        next_numbers, by_number = self._missing[: len(chunk)], np.argsort(chunk.numbers)
        at = np.searchsorted(chunk.numbers, next_numbers, sorter=by_number)
        places = by_number[np.minimum(at, len(chunk) - 1)]
        matches = np.append(chunk.numbers[places] == next_numbers, False)
        chosen = places[: int(matches.argmin())]
        if not len(chosen):
            return
        targets = learner.targets_of(chunk)
        if learner.regime == Regime.ALL_ROWS:
            learner.active.share(learner.pool, chunk.rows, targets)
        else:
            learner.active.add(chunk.rows, chosen, targets.take(chosen))
        self._missing = self._missing[len(chosen) :]


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run is resumed (see ``State``), and what its learners are to hold again."""

    reading: int
    chunks: int
    held: Sequence[RestoredLearner]
    reopened: Sequence[Learner] = ()
    """learners that had finished, but by other settings than now"""

    @property
    def first(self) -> bool:
        """Whether it is resumed within the first reading, which then begins anew: the chunks that
        have been taken are only held again."""
        return self.reading == 0 and self.chunks != NOT_BEGUN

    def restore(self, chunk: Chunk) -> None:
        """Hold the rows of a chunk of the first reading that had been taken."""
        for held in self.held:
            held.take(chunk)

    def restore_rows(self, source: ChunkSource, settings: Settings) -> None:
        """Read the rows that were held: all in the data's order, some in that of their reading."""
        for chunk in source.chunks():
            self.restore(chunk)
        missing: dict[int, list[RestoredLearner]] = {}
        for held in self.held:
            learner = held.learner
            if not held.complete and (learner.finished is None or learner in self.reopened):
                missing.setdefault(learner.progress.reading, []).append(held)
        for reading, waiting in missing.items():
            groups = order.reading_order(settings, reading, source) or []
            if reading == self.reading:
                groups = groups[: self.chunks]
            for chunk in source.chunks(groups):
                for held in waiting:
                    held.take(chunk)


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
        if isinstance(value, _ARRAYS):
            return {"array": self._name(value)}
        if isinstance(value, _LISTS):
            return [self.encode(item) for item in value]
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, Counts):
            return {"counts": [self._name(tensor) for tensor in value.streamed()]}
        name = type(value).__name__
        if _CLASSES.get(name) is not type(value):
            raise TypeError(f"{name}: no part of a checkpoint")
        names = getattr(type(value), "__slots__", None) or vars(value)
        fields = {field: getattr(value, field) for field in names}
        return {"class": name, "fields": self.encode(fields)}

    def _name(self, array: NDArray[Any] | SparseVector | Streamed) -> str:
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
        return dense(arrays[encoded["array"]])
    if "counts" in encoded:
        return Counts.of_gaps(*(arrays[name] for name in encoded["counts"]))
    if "dict" in encoded:
        return {decode(key, arrays): _field(key, item, arrays) for key, item in encoded["dict"]}
    known = _CLASSES[encoded["class"]]
    fields = decode(encoded["fields"], arrays)
    if fields.keys() != set(getattr(known, "__slots__", fields)):
        raise ValueError(f"other fields than {known.__name__} has")
    record: Any = object.__new__(known)
    for name, value in fields.items():
        object.__setattr__(record, name, value)
    return record


def _field(name: Any, encoded: Any, arrays: Arrays) -> Any:
    """Decode a field; a vector of one number a column stays as it is in the file."""
    if isinstance(encoded, dict) and "array" in encoded and name in IN_FIELDS:
        return arrays[encoded["array"]]
    return decode(encoded, arrays)


def sparsify(learner: Learner) -> None:
    """Hold the vectors of a learner that is not in training by their nonzeros, where that takes
    fewer bytes. Vectors of the same columns share these."""
    columns: NDArray[np.uint32] | None = None
    done: dict[int, Vector | SparseVector] = {}  # one vector stays one
    for holder, name in _vectors(learner):
        vector = getattr(holder, name)
        if isinstance(vector, np.ndarray):
            smaller_vector = done[id(vector)] if id(vector) in done else smaller(vector, columns)
            done[id(vector)] = smaller_vector
            setattr(holder, name, smaller_vector)
            if isinstance(smaller_vector, SparseVector):
                columns = smaller_vector.columns


def densify(learner: Learner) -> None:
    """Hold the vectors of a learner whole, as training needs them."""
    done: dict[int, Vector] = {}
    for holder, name in _vectors(learner):
        vector = getattr(holder, name)
        if isinstance(vector, SparseVector):
            if id(vector) not in done:
                done[id(vector)] = vector.dense()
            setattr(holder, name, done[id(vector)])


def bytes_held(learner: Learner) -> int:
    """Return how many bytes of vectors and counts a learner holds."""
    arrays: dict[int, NDArray[Any]] = {}
    for holder, name in _vectors(learner):
        vector = getattr(holder, name)
        if isinstance(vector, SparseVector):
            arrays |= {id(array): array for array in (vector.columns, vector.values)}
        elif vector is not None:
            arrays[id(vector)] = vector
    if learner.frozen is not None:
        arrays[-1] = learner.frozen.scan_sums.bins
    return sum(array.nbytes for array in arrays.values()) + learner.counts.nbytes


def _vectors(learner: Learner) -> Iterator[tuple[Any, str]]:
    """Yield where a learner holds vectors of one number a column: the object and the field."""
    for path, name in _PLACES:
        first, *_ = path.split(".")
        if getattr(learner, first) is not None:
            yield attrgetter(path)(learner), name
