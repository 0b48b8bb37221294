"""Classification metrics of any number of rows.

A model is a list of one-vs-rest problems, of two classes a list of one. Precision, recall and F1
come from four sums each. ROC AUC and average precision need sorted decisions: scikit-learn computes
them where these fit in memory; otherwise sorted runs are written to disk and merged, with ties
handled as in scikit-learn.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.rows import Label

LIMIT_ROWS = 1 << 20
"""Decisions held in memory by default: at most 17 MB, and about 140 MB while they are sorted."""

FEWEST_HELD = 1 << 14
"""Rows whose decisions each of many classes holds in memory at least."""

_RECORD_BYTES = 24  # one record of a run: −decision, weight of the positives, of the negatives

Floats = NDArray[np.float64]
Metrics = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The metrics of one set of rows; each is an attribute: ``model.metrics.accuracy``.

    Counts are sums of row weights (1 where none is given). A row counts as predicted positive if
    its decision is > 0. With tp, fp, fn, tn the weights of the four cases: precision tp/(tp + fp),
    recall tp/(tp + fn), F1 2 tp/(2 tp + fp + fn). ROC AUC is the chance that a positive row's
    decision exceeds a negative row's, ties counting half; average precision is Σ (recall_i −
    recall_{i−1}) precision_i over the distinct decisions from the highest down. All lie in [0, 1];
    what is not defined (0/0; AUC with one class only; average precision without positives) is None.

    * **Always:** ``rows`` (those of weight 0 included), ``weight`` (the sum of the row weights),
      ``accuracy``, the share of the weight on rows whose predicted classes are exactly theirs.
    * **Two classes:** ``true_positives``, ``false_positives``, ``false_negatives``,
      ``true_negatives``, ``precision``, ``recall``, ``f1``, ``roc_auc``, ``average_precision`` of
      the larger class.
    * **Many:** ``classes``, a list with ``label``, ``support`` (the weight of the rows that have
      the class) and these metrics for each class against the rest; ``hamming_loss``, the share of
      wrong (row, class) pairs; ``rows_of_other_classes``, rows with a label that is none of the
      model's: negatives of every class, and never right; and means over the classes. Those called
      ``micro_`` are of the sums of tp, fp and fn, those called ``macro_`` are plain means, in which
      a precision, recall or F1 of 0/0 counts as 0 (as in scikit-learn) and an undefined
      ``macro_roc_auc`` or ``macro_average_precision`` of a class is left out.

    Parameters
    ----------
    metrics : name → value, of the names above.
    accuracy_at_optimum : bounds of the optimum's accuracy, see
        ``model.accuracy_bounds.AccuracyBounds``; None if not computed.
    """

    metrics: Mapping[str, Any]
    accuracy_at_optimum: tuple[float, float] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.metrics:
            raise AttributeError(f"no metric {name!r}: there are {', '.join(self.metrics)}.")
        return self.metrics[name]

    def to_dict(self) -> Metrics:
        """Return the metrics by name, as plain values."""
        return dict(self.metrics)


class ScoreSpool:
    """Collect labels, decisions and weights of any number of rows for an ``evaluation()``.

    Parameters
    ----------
    classes : the K labels, in the order of the decisions; none for two classes, one problem.
    limit_rows : decisions held in memory, ≥ 1, of all classes together, but FEWEST_HELD of each;
        more are written to disk as sorted runs (24 bytes a distinct decision). Changes at most the
        last digits of the results.
    directory : of the runs, in one unnamed temporary file; None = the system's.
    ranking : whether to compute ROC AUC and average precision; else no decision is kept.

    Raises
    ------
    SettingsError
        ``limit_rows`` below 1.

    Examples
    --------
    >>> with ScoreSpool(limit_rows=2) as spool:
    ...     for positive, decision in [(True, 0.9), (True, -0.2), (False, -0.2), (False, -0.8)]:
    ...         spool.add(np.array([positive]), np.array([decision]))
    ...     spool.evaluation().roc_auc
    0.875
    >>> with ScoreSpool(["ant", "bee", "cow"]) as spool:
    ...     chosen = np.eye(3, dtype=bool)
    ...     spool.add(chosen[[0, 1, 1]], np.where(chosen, 0.5, -0.5), chosen=chosen)
    ...     found = spool.evaluation()
    >>> found.accuracy == 2 / 3, found.micro_f1 == 2 / 3, found.classes[0]["f1"]
    (True, True, 1.0)
    """

    def __init__(
        self,
        classes: Sequence[Label] = (),
        *,
        limit_rows: int = LIMIT_ROWS,
        directory: str | os.PathLike[str] | None = None,
        ranking: bool = True,
    ) -> None:
        if limit_rows < 1:
            raise SettingsError(f"limit_rows: {limit_rows}. Give at least 1.")
        self._classes = tuple(classes)
        problems = max(len(self._classes), 1)
        self._limit = max(limit_rows // problems, min(limit_rows, FEWEST_HELD))
        self._ranked = ranking
        self._rows = self._others = 0
        self._right = 0.0
        self._cases = np.zeros((problems, 2, 2))  # [.., is positive, is predicted], summed weights
        self._held: list[tuple[NDArray[np.bool_], Floats, Floats]] = []
        self._held_rows = 0
        self._runs = _RunFile(directory)
        self._spans: list[list[tuple[int, int]]] = [[] for _ in range(problems)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runs.close()

    def add(
        self,
        truth: NDArray[np.bool_],
        decisions: Floats,
        weights: Floats | None = None,
        *,
        chosen: NDArray[np.bool_] | None = None,
        others: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add the rows of a chunk.

        Parameters
        ----------
        truth : shape (rows,) or (rows, K): which classes a row has; of two whether the larger.
        decisions : of the same shape, finite.
        weights : shape (rows,), finite and ≥ 0; a row of weight 0 leaves every metric as it is.
        chosen : like ``truth``: which classes are predicted, where that is not decided by the sign
            of the decision (of many classes, the highest decision wins).
        others : shape (rows,): which rows have a label that is none of the classes.

        Raises
        ------
        DataError
            A decision that is not finite, a weight that is negative or not finite.
        MachineError
            The disk is full.
        """
        shape = (len(truth), len(self._cases))
        weights = np.ones(len(truth)) if weights is None else weights
        chosen = decisions > 0.0 if chosen is None else chosen
        truth, chosen = truth.reshape(shape), chosen.reshape(shape)
        decisions = decisions.reshape(shape)
        self._check(decisions, weights)
        right = (truth == chosen).all(axis=1)
        if others is not None:
            right &= ~others
            self._others += int(np.count_nonzero(others))
        self._rows += len(truth)
        self._right += float(weights[right].sum())
        for k, cases in enumerate(self._cases):
            case = 2 * truth[:, k] + chosen[:, k]
            cases += np.bincount(case, weights, minlength=4).reshape(2, 2)
        if self._ranked:
            self._hold(truth, decisions, weights)

    def evaluation(self) -> Evaluation:
        """Return the metrics of all rows so far; more may be added."""
        found = [self._metrics(k) for k in range(len(self._cases))]
        (tn, fp), (fn, tp) = self._cases[0].tolist()
        weight = tn + fp + fn + tp
        head = {"rows": self._rows, "weight": weight}
        if not self._classes:
            return Evaluation(head | found[0])
        right = ratio(self._right, weight)
        means = _means(found)
        pairs = weight * len(found)
        wrong = sum(each["false_positives"] + each["false_negatives"] for each in found)
        classes = [
            {"label": label, "support": each["true_positives"] + each["false_negatives"], **each}
            for label, each in zip(self._classes, found, strict=True)
        ]
        return Evaluation(
            head
            | {"rows_of_other_classes": self._others, "accuracy": right}
            | {"hamming_loss": ratio(wrong, pairs), **means, "classes": classes}
        )

    def _check(self, decisions: Floats, weights: Floats) -> None:
        finite = np.isfinite(decisions).all(axis=1)
        if not finite.all():
            row = int(np.argmin(finite))
            bad = decisions[row][~np.isfinite(decisions[row])][0]
            self._refuse(row, f"decision {bad}. It must be finite")
        possible = (weights >= 0) & (weights < np.inf)
        if not possible.all():
            row = int(np.argmin(possible))
            self._refuse(row, f"weight {weights[row]}. It must be finite and ≥ 0")

    def _refuse(self, row: int, what: str) -> None:
        raise DataError(
            f"row {self._rows + row}: {what}; check the model and the values of that row."
        )

    def _metrics(self, k: int) -> Metrics:
        """Return the metrics of one problem."""
        (tn, fp), (fn, tp) = self._cases[k].tolist()
        auc, average_precision = self._ranking(k, positives=fn + tp, negatives=tn + fp)
        return {
            "true_positives": tp,
            "false_positives": fp,
            "false_negatives": fn,
            "true_negatives": tn,
            "accuracy": ratio(tp + tn, tn + fp + fn + tp),
            **prf(tp, fp, fn),
            "roc_auc": auc,
            "average_precision": average_precision,
        }

    # --- rows in the order of their decisions ---

    def _hold(self, truth: NDArray[np.bool_], decisions: Floats, weights: Floats) -> None:
        kept = weights > 0
        self._held.append((truth[kept], decisions[kept], weights[kept]))
        self._held_rows += int(np.count_nonzero(kept))
        if self._held_rows > self._limit:
            self._spool()

    def _spool(self) -> None:
        for k, spans in enumerate(self._spans):
            spans.append(self._runs.append(_tied(_records(*self._all_held(k)))))
        self._held, self._held_rows = [], 0

    def _all_held(self, k: int) -> tuple[NDArray[np.bool_], Floats, Floats]:
        truth, decisions, weights = zip(*self._held, strict=True)
        return (
            np.concatenate([each[:, k] for each in truth]),
            np.concatenate([each[:, k] for each in decisions]),
            np.concatenate(weights),
        )

    def _ranking(
        self, k: int, positives: float, negatives: float
    ) -> tuple[float | None, float | None]:
        if not positives or not self._ranked:
            return None, None
        if not negatives:
            return None, 1.0
        if not self._spans[k]:
            return _ranking_in_memory(*self._all_held(k))
        if self._held_rows:
            self._spool()
        return _ranking_of_groups(_merged(self._runs, self._spans[k], self._limit))


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole; None if the whole is 0."""
    return part / whole if whole else None


def prf(
    true_positives: float, false_positives: float, false_negatives: float
) -> dict[str, float | None]:
    """Return precision, recall and F1 from the weights of the cases; None for 0/0.

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


def _means(classes: Sequence[Metrics]) -> Metrics:
    """Return the micro and macro means."""
    cases = ("true_positives", "false_positives", "false_negatives")
    micro = prf(*(sum(each[name] for each in classes) for name in cases))
    defined = {name: [each[name] or 0.0 for each in classes] for name in micro}
    for name in ("roc_auc", "average_precision"):
        defined[name] = [each[name] for each in classes if each[name] is not None]
    macro = {name: ratio(sum(values), len(values)) for name, values in defined.items()}
    return {
        **{f"micro_{name}": value for name, value in micro.items()},
        **{f"macro_{name}": value for name, value in macro.items()},
    }


def _ranking_in_memory(
    truth: NDArray[np.bool_], decisions: Floats, weights: Floats
) -> tuple[float, float]:
    from sklearn.metrics import average_precision_score, roc_auc_score

    return (
        float(roc_auc_score(truth, decisions, sample_weight=weights)),
        float(average_precision_score(truth, decisions, sample_weight=weights)),
    )


# --- from disk -----------------------------------------------------------------------------------


def _records(truth: NDArray[np.bool_], decisions: Floats, weights: Floats) -> Floats:
    """Shape (rows, 3): −decision, so that ascending order has the highest decision first; the
    weight of the positives; the weight of the negatives."""
    return np.column_stack([-decisions, weights * truth, weights * ~truth])


def _tied(records: Floats) -> Floats:
    """Sort records, and sum those of equal decisions."""
    if not len(records):
        return records
    records = records[np.argsort(records[:, 0], kind="stable")]
    keys = records[:, 0]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    sums = np.add.reduceat(records[:, 1:], starts, axis=0)
    return np.column_stack([keys[starts], sums])


def _ranking_of_groups(groups: Iterable[Floats]) -> tuple[float, float]:
    """Compute ROC AUC and average precision from blocks of tied records, highest decisions first.

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


class _RunFile:
    """An unnamed temporary file of all sorted runs, made when first written to.

    Not mapped: mapped pages count as this process's memory.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._records = 0

    def append(self, records: Floats) -> tuple[int, int]:
        """Append records and return where they begin and end.

        Raises
        ------
        MachineError
            The disk is full.
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
        """Read records ``start`` … ``stop - 1``."""
        assert self._file is not None
        with self._disk():
            self._file.seek(start * _RECORD_BYTES)
            data = self._file.read((stop - start) * _RECORD_BYTES)
        return np.frombuffer(data, np.float64).reshape(-1, 3)

    def close(self) -> None:
        """Release the disk space."""
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


def _merged(file: _RunFile, spans: Sequence[tuple[int, int]], limit_rows: int) -> Iterator[Floats]:
    """Yield all records in order, in blocks of about ``limit_rows`` that never split a tie.

    Keys up to the least of the cursors' last ones are complete: no run has a decision twice.
    """
    block = max(limit_rows // len(spans), 1)
    cursors = [_Cursor(file, *span, block) for span in spans]
    while True:
        ceiling = min(cursor.known_up_to() for cursor in cursors)
        records = _tied(np.concatenate([cursor.take(ceiling) for cursor in cursors]))
        if not len(records):
            return
        yield records


class _Cursor:
    """A position in a run, with up to ``block`` of the next records in memory."""

    def __init__(self, file: _RunFile, start: int, stop: int, block: int) -> None:
        self._file, self._next, self._stop, self._block = file, start, stop, block
        self._held: Floats = np.empty((0, 3))

    def known_up_to(self) -> float:
        """Return the last key in memory, after reading on if few records are left; ∞ at the end."""
        if len(self._held) <= self._block // 2 and self._next < self._stop:
            stop = min(self._next + self._block - len(self._held), self._stop)
            self._held = np.concatenate([self._held, self._file.read(self._next, stop)])
            self._next = stop
        return math.inf if self._next == self._stop else float(self._held[-1, 0])

    def take(self, ceiling: float) -> Floats:
        cut = int(np.searchsorted(self._held[:, 0], ceiling, side="right"))
        taken, self._held = self._held[:cut], self._held[cut:]
        return taken
