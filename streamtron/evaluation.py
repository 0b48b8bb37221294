"""How well decisions meet labels: metrics that stream, and the two that need every decision sorted.

Accuracy, precision, recall and F1 come from four sums. ROC AUC and average precision need the rows
in order of their decisions: scikit-learn computes them where these fit in memory; where they do
not, sorted runs are spooled to disk and merged. Either way ties are handled as scikit-learn does.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import IO, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamtron.errors import DataError, MachineError, SettingsError

LIMIT_ROWS = 1 << 20
"""Rows held in memory by default: 16 MB, and about 140 MB while scikit-learn sorts them."""

_RECORD_BYTES = 24  # one record of a run: −decision, weight of the positives, of the negatives

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The metrics of one set of rows; every count is a sum of row weights (1 where none is given).

    A row counts as predicted positive if its decision is > 0. With tp, fp, fn, tn the weights of
    the four cases: accuracy (tp + tn)/all, precision tp/(tp + fp), recall tp/(tp + fn),
    F1 2 tp/(2 tp + fp + fn). ROC AUC is the chance that a positive row's decision exceeds a
    negative row's, ties counting half; average precision is Σ (recall_i − recall_{i−1})
    precision_i over the distinct decisions from the highest down. All lie in [0, 1]; what is not
    defined (0/0; AUC with one class only; average precision without positives) is None.

    Parameters
    ----------
    rows : rows seen, those of weight 0 included.
    weight : sum of the row weights.
    accuracy_at_optimum : the least and the most that the accuracy of the optimum can be, see
        ``reach.Reach``; None where that was not asked for.
    """

    rows: int
    weight: float
    true_positives: float
    false_positives: float
    false_negatives: float
    true_negatives: float
    accuracy: float | None
    precision: float | None
    recall: float | None
    f1: float | None
    roc_auc: float | None
    average_precision: float | None
    accuracy_at_optimum: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, float | None]:
        """Names and values, all but the last, ready for JSON."""
        plain = asdict(self)
        del plain["accuracy_at_optimum"]
        return plain


def evaluate(
    signs: ArrayLike, decisions: ArrayLike, weights: ArrayLike | None = None
) -> Evaluation:
    """The metrics of rows in memory; the arguments and errors are those of ``ScoreSpool.add``.

    Examples
    --------
    >>> result = evaluate([1, 1, -1, -1], [0.9, -0.2, -0.2, -0.8])
    >>> result.accuracy, result.precision, result.recall, result.roc_auc
    (0.75, 1.0, 0.5, 0.875)
    >>> evaluate([1, 1], [0.9, -0.2]).roc_auc is None
    True
    """
    signs = np.asarray(signs)
    with ScoreSpool(limit_rows=max(signs.size, 1)) as spool:
        spool.add(signs, decisions, weights)
        return spool.evaluation()


class ScoreSpool:
    """Collects (sign, decision, weight) of any number of rows; then ``evaluation()``.

    Parameters
    ----------
    limit_rows : rows held in memory, ≥ 1; beyond that, sorted runs go to disk (24 bytes a distinct
        decision). It decides memory and speed, and of the results only the last digits.
    directory : where the runs go, in one nameless file that vanishes with this object or the
        process; the system's temporary directory if None.
    ranking : whether ROC AUC and average precision are wanted; without them nothing is kept.
    file : a file of runs that several spools share, in place of one of its own.

    Raises
    ------
    SettingsError
        ``limit_rows`` below 1.

    Examples
    --------
    >>> with ScoreSpool(limit_rows=2) as spool:
    ...     for sign, decision in [(1, 0.9), (1, -0.2), (-1, -0.2), (-1, -0.8)]:
    ...         spool.add([sign], [decision])
    ...     spool.evaluation().roc_auc
    0.875
    """

    def __init__(
        self,
        limit_rows: int = LIMIT_ROWS,
        directory: str | os.PathLike[str] | None = None,
        *,
        ranking: bool = True,
        file: RunFile | None = None,
    ) -> None:
        if limit_rows < 1:
            raise SettingsError(f"limit_rows: {limit_rows}. Give at least 1.")
        self._limit = limit_rows
        self._rows = 0
        self._cases = np.zeros((2, 2))  # [is positive, is predicted positive], summed weights
        self._held: list[tuple[Floats, Floats]] = []  # (decisions, signed weights)
        self._held_rows = 0
        self._runs = _Runs(file or RunFile(directory))
        self._ranked = ranking

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the disk space back."""
        self._runs.file.close()

    def add(
        self,
        signs: ArrayLike,
        decisions: ArrayLike,
        weights: ArrayLike | None = None,
        chosen: NDArray[np.bool_] | None = None,
    ) -> None:
        """Take in the rows of a chunk.

        Parameters
        ----------
        signs : shape (rows,), +1 for the larger class, −1 for the other.
        decisions : shape (rows,), finite.
        weights : shape (rows,), finite and ≥ 0; a row of weight 0 leaves every metric as it is.
        chosen : shape (rows,), whether a row is predicted positive, where that is not decided by
            the sign of its decision (of many classes, the highest decision wins).

        Raises
        ------
        SettingsError
            Arrays of different lengths, or a sign other than ±1.
        DataError
            A decision that is not finite, a weight that is negative or not finite.
        MachineError
            The disk takes no more runs.
        """
        sign, decision, weight = _checked_rows(self._rows, signs, decisions, weights)
        self._rows += len(sign)
        case = 2 * (sign > 0) + (decision > 0 if chosen is None else chosen)
        self._cases += np.bincount(case, weight, minlength=4).reshape(2, 2)
        if not self._ranked:
            return
        kept = weight > 0
        self._held.append((decision[kept], (sign * weight)[kept]))
        self._held_rows += int(np.count_nonzero(kept))
        if self._held_rows > self._limit:
            self._spool()

    def evaluation(self) -> Evaluation:
        """The metrics of all rows so far; more may be added afterwards."""
        (tn, fp), (fn, tp) = self._cases.tolist()
        total = tn + fp + fn + tp
        auc, average_precision = self._ranking(positives=fn + tp, negatives=tn + fp)
        return Evaluation(
            rows=self._rows,
            weight=total,
            true_positives=tp,
            false_positives=fp,
            false_negatives=fn,
            true_negatives=tn,
            accuracy=ratio(tp + tn, total),
            **prf(tp, fp, fn),
            roc_auc=auc,
            average_precision=average_precision,
            accuracy_at_optimum=None,
        )

    def _ranking(self, positives: float, negatives: float) -> tuple[float | None, float | None]:
        if not positives or not self._ranked:
            return None, None
        if not negatives:
            return None, 1.0
        if not self._runs:
            return _ranking_in_memory(*self._all_held())
        if self._held_rows:
            self._spool()
        return _ranking_of_groups(self._runs.merged(self._limit))

    def _spool(self) -> None:
        self._runs.append(_tied(_records(*self._all_held())))
        self._held, self._held_rows = [], 0

    def _all_held(self) -> tuple[Floats, Floats]:
        decisions, weights = zip(*self._held, strict=True)
        return np.concatenate(decisions), np.concatenate(weights)


def ratio(part: float, whole: float) -> float | None:
    """A share; None if there is nothing to share."""
    return part / whole if whole else None


def prf(
    true_positives: float, false_positives: float, false_negatives: float
) -> dict[str, float | None]:
    """Precision, recall and F1 from the weights of the cases; None where 0/0.

    Examples
    --------
    >>> prf(3, 1, 2)
    {'precision': 0.75, 'recall': 0.6, 'f1': 0.6666666666666666}
    """
    tp, fp, fn = true_positives, false_positives, false_negatives
    return {
        "precision": ratio(tp, tp + fp),
        "recall": ratio(tp, tp + fn),
        "f1": ratio(2 * tp, 2 * tp + fp + fn),
    }


class _CheckedRows(NamedTuple):
    sign: Floats
    decision: Floats
    weight: Floats


def _checked_rows(
    first: int, signs: ArrayLike, decisions: ArrayLike, weights: ArrayLike | None
) -> _CheckedRows:
    sign, decision = np.asarray(signs, np.float64), np.asarray(decisions, np.float64)
    weight = np.ones(sign.shape) if weights is None else np.asarray(weights, np.float64)
    if sign.ndim != 1 or not sign.shape == decision.shape == weight.shape:
        raise SettingsError(
            f"signs, decisions, weights: shapes {sign.shape}, {decision.shape}, {weight.shape}. "
            "Give one of each a row."
        )
    if (np.abs(sign) != 1).any():
        raise SettingsError("signs: a value other than 1 and -1. Map the labels to signs first.")
    _refuse_where(~np.isfinite(decision), decision, first, "decision", "finite")
    _refuse_where(~((weight >= 0) & (weight < np.inf)), weight, first, "weight", "finite and ≥ 0")
    return _CheckedRows(sign, decision, weight)


def _refuse_where(bad: NDArray[np.bool_], values: Floats, first: int, what: str, want: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"row {first + row}: {what} {values[row]}. It must be {want}; check the model and the "
            "values of that row."
        )


# --- in memory -----------------------------------------------------------------------------------


def _ranking_in_memory(decisions: Floats, signed_weights: Floats) -> tuple[float, float]:
    from sklearn.metrics import average_precision_score, roc_auc_score

    rows = (signed_weights > 0, decisions)
    weights = np.abs(signed_weights)
    return (
        float(roc_auc_score(*rows, sample_weight=weights)),
        float(average_precision_score(*rows, sample_weight=weights)),
    )


# --- from disk -----------------------------------------------------------------------------------


def _records(decisions: Floats, signed_weights: Floats) -> Floats:
    """Shape (rows, 3): −decision, so that ascending order has the highest decision first; the
    weight of the positives; the weight of the negatives."""
    return np.column_stack(
        [-decisions, np.maximum(signed_weights, 0.0), np.maximum(-signed_weights, 0.0)]
    )


def _tied(records: Floats) -> Floats:
    """The records in order, those of equal decisions summed into one."""
    if not len(records):
        return records
    records = records[np.argsort(records[:, 0], kind="stable")]
    keys = records[:, 0]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    sums = np.add.reduceat(records[:, 1:], starts, axis=0)
    return np.column_stack([keys[starts], sums])


def _ranking_of_groups(groups: Iterable[Floats]) -> tuple[float, float]:
    """ROC AUC and average precision from blocks of tied records, the highest decisions first.

    With p, n the weights tied at one decision, tp, fp those down to and including it, P, N all:
    AUC = Σ n (tp − p/2) / (P N) and average precision = Σ p tp/(tp + fp) / P.
    """
    positives = negatives = area = precisions = 0.0
    for block in groups:
        p, n = block[:, 1], block[:, 2]
        tp, fp = positives + np.cumsum(p), negatives + np.cumsum(n)
        area += float((n * (tp - p / 2)).sum())
        precisions += float((p * (tp / (tp + fp))).sum())
        positives, negatives = float(tp[-1]), float(fp[-1])
    return min(area / (positives * negatives), 1.0), min(precisions / positives, 1.0)


class RunFile:
    """One nameless temporary file for the sorted runs of a spool, or of several.

    It is read by explicit calls, not mapped: mapped pages count as this process's memory.

    Parameters
    ----------
    directory : where it is; the system's temporary directory if None. Made when first written to.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._records = 0

    def append(self, records: Floats) -> tuple[int, int]:
        """Write records behind all others; where they begin and end.

        Raises
        ------
        MachineError
            The disk takes no more.
        """
        with self._disk():
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
            self._file.seek(self._records * _RECORD_BYTES)
            self._file.write(records.tobytes())
            self._file.flush()
        start = self._records
        self._records += len(records)
        return start, self._records

    def read(self, start: int, stop: int) -> Floats:
        """Records ``start`` … ``stop - 1``."""
        assert self._file is not None
        with self._disk():
            self._file.seek(start * _RECORD_BYTES)
            data = self._file.read((stop - start) * _RECORD_BYTES)
        return np.frombuffer(data, np.float64).reshape(-1, 3)

    def close(self) -> None:
        """Give the disk space back."""
        if self._file is not None:
            self._file.close()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self._directory or tempfile.gettempdir()
            raise MachineError(
                f"{where}: sorted decisions cannot be kept there ({error.strerror or error}). "
                "Give a directory with room, or more memory."
            ) from error


class _Runs:
    """Sorted runs of tied records in a file."""

    def __init__(self, file: RunFile) -> None:
        self.file = file
        self._spans: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._spans)

    def append(self, records: Floats) -> None:
        self._spans.append(self.file.append(records))

    def merged(self, limit_rows: int) -> Iterator[Floats]:
        """All records in order, in blocks of about ``limit_rows``; a tie is never cut in two.

        What lies up to the lowest end of what is in memory is complete: no run has a decision
        twice, so nothing unread can tie with it.
        """
        block = max(limit_rows // len(self), 1)
        cursors = [_Cursor(self.file, *span, block) for span in self._spans]
        while True:
            ceiling = min(cursor.known_up_to() for cursor in cursors)
            records = _tied(np.concatenate([cursor.take(ceiling) for cursor in cursors]))
            if not len(records):
                return
            yield records


class _Cursor:
    """A place in one run, with up to ``block`` records after it in memory."""

    def __init__(self, file: RunFile, start: int, stop: int, block: int) -> None:
        self._file, self._next, self._stop, self._block = file, start, stop, block
        self._held: Floats = np.empty((0, 3))

    def known_up_to(self) -> float:
        """Read on if little is left; the last key in memory, infinity if nothing comes after it."""
        if len(self._held) <= self._block // 2 and self._next < self._stop:
            stop = min(self._next + self._block - len(self._held), self._stop)
            self._held = np.concatenate([self._held, self._file.read(self._next, stop)])
            self._next = stop
        return math.inf if self._next == self._stop else float(self._held[-1, 0])

    def take(self, ceiling: float) -> Floats:
        cut = int(np.searchsorted(self._held[:, 0], ceiling, side="right"))
        taken, self._held = self._held[:cut], self._held[cut:]
        return taken
