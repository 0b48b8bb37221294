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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamtron.core import theory
from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.rows import Label
from streamtron.model.linear_model import LinearModel

LIMIT_ROWS = 1 << 20
"""Decisions held in memory by default: at most 17 MB, and about 140 MB while they are sorted."""

FEWEST_HELD = 1 << 14
"""Rows whose decisions each of many classes holds in memory at least."""

RECORD = 24
"""Bytes of a decision on disk, with its two weights."""

BLOCK = RECORD << 16
"""Bytes of records that are read at once where their order does not matter."""

UNIT_ROUNDOFF = 2.0**-53

Floats = NDArray[np.float64]
Metrics = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The metrics of one set of rows; each is an attribute: ``evaluation.accuracy``.

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
        ``AccuracyBounds``; None if not computed.
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


class ScoreSpool(AbstractContextManager["ScoreSpool"]):
    """Collect labels, decisions and weights of any number of rows for an ``evaluation()``.

    Parameters
    ----------
    classes : the K labels, in the order of the decisions; none for two classes, one problem.
    limit_rows : decisions held in memory, ≥ 1, of all classes together, but FEWEST_HELD of each;
        more are written to disk as sorted runs (24 bytes a distinct decision). Changes at most the
        last digits of the results.
    directory : of the runs, in one unnamed temporary file; None = the system's.
    ranking : whether to compute ROC AUC and average precision; else no decision is kept.

    Examples
    --------
    >>> with ScoreSpool(limit_rows=2) as spool:
    ...     for positive, decision in [(True, 0.9), (True, -0.2), (False, -0.2), (False, -0.8)]:
    ...         spool.add(np.array([positive]), np.array([decision]))
    ...     spool.evaluation().roc_auc
    0.875
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
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._runs: list[list[tuple[int, int]]] = [[] for _ in range(problems)]

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

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
        weights : shape (rows,), ≥ 0, checked by the reader; 0 leaves every metric as it is.
        chosen : like ``truth``: which classes are predicted, where that is not decided by the sign
            of the decision (of many classes, the highest decision wins).
        others : shape (rows,): which rows have a label that is none of the classes.
        """
        shape = (len(truth), len(self._cases))
        weights = np.ones(len(truth)) if weights is None else weights
        chosen = decisions > 0.0 if chosen is None else chosen
        truth, chosen = truth.reshape(shape), chosen.reshape(shape)
        decisions = decisions.reshape(shape)
        if not (finite := np.isfinite(decisions)).all():
            raise DataError(
                f"row {self._rows + np.argwhere(~finite)[0, 0]}: decision {decisions[~finite][0]}. "
                "It must be finite; check the model and the values of that row."
            )
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
            kept = weights > 0
            self._held.append((truth[kept], decisions[kept], weights[kept]))
            self._held_rows += int(np.count_nonzero(kept))
            if self._held_rows > self._limit:
                self._spool()

    def evaluation(self) -> Evaluation:
        """Return the metrics of all rows so far; more may be added."""
        found = [self._metrics(k) for k in range(len(self._cases))]
        (tn, fp), (fn, tp) = self._cases[0].tolist()
        weight = tn + fp + fn + tp
        head: Metrics = {"rows": self._rows, "weight": weight}
        if not self._classes:
            return Evaluation(head | found[0])
        wrong = sum(each["false_positives"] + each["false_negatives"] for each in found)
        classes = [
            {"label": label, "support": each["true_positives"] + each["false_negatives"], **each}
            for label, each in zip(self._classes, found, strict=True)
        ]
        head |= {
            "rows_of_other_classes": self._others,
            "accuracy": _ratio(self._right, weight),
            "hamming_loss": _ratio(wrong, weight * len(found)),
        }
        return Evaluation(head | _means(found) | {"classes": classes})

    def curve(self, points: int = 400) -> Floats:
        """Return, of two classes, the weight of the true and the false positives above falling
        thresholds, shape (about ``points`` at most, 2), from (0, 0) to all rows: the points of the
        ROC curve, and of the precision-recall curve."""
        (tn, fp), (fn, tp) = self._cases[0].tolist()
        total, above = tn + fp + fn + tp, np.zeros(2)
        found = [above[None]]
        for block in self.ranked():
            sums = above + np.cumsum(block[:, 1:], axis=0)
            steps = np.floor(sums.sum(axis=1) / total * points)
            kept = np.append(np.diff(steps) > 0, True)
            found.append(sums[kept])
            above = sums[-1]
        return np.concatenate(found)

    def records(self, k: int = 0) -> Iterator[Floats]:
        """Yield blocks of records (−decision, weight as a positive, as a negative row) of problem
        k, in no order; rows of weight 0 are left out."""
        for start, stop in self._runs[k]:
            for at in range(start, stop, BLOCK):
                with self._disk() as file:
                    block = _read(file, at, min(at + BLOCK, stop))
                yield block
        if self._held_rows:
            yield self._records(k)

    def ranked(self, k: int = 0) -> Iterator[Floats]:
        """Yield blocks of ``records``, the highest decision first, those of one decision summed."""
        if self._runs[k] and self._held_rows:
            self._spool()
        if not self._runs[k]:
            yield _tied(self._records(k))
        runs = self._runs[k]
        block = max(self._limit // max(len(runs), 1), 1) * RECORD
        while runs:
            with self._disk() as file:
                heads = [_read(file, start, min(start + block, stop)) for start, stop in runs]
            # up to the least of the last keys every run has been read: none has a key twice
            ends = zip(heads, runs, strict=True)
            last = [head[-1, 0] for head, (start, stop) in ends if start + block < stop]
            ceiling = min(last, default=np.inf)
            taken = [head[: np.searchsorted(head[:, 0], ceiling, side="right")] for head in heads]
            yield _tied(np.concatenate(taken))
            left = zip(runs, taken, strict=True)
            runs = [(a + own.nbytes, stop) for (a, stop), own in left if a + own.nbytes < stop]

    def _metrics(self, k: int) -> Metrics:
        """Return the metrics of one problem."""
        (tn, fp), (fn, tp) = self._cases[k].tolist()
        auc, average_precision = self._ranking(k, positives=fn + tp, negatives=tn + fp)
        return {
            "true_positives": tp,
            "false_positives": fp,
            "false_negatives": fn,
            "true_negatives": tn,
            "accuracy": _ratio(tp + tn, tn + fp + fn + tp),
            **_precision_recall_f1(tp, fp, fn),
            "roc_auc": auc,
            "average_precision": average_precision,
        }

    def _spool(self) -> None:
        """Write the rows in memory to disk, as one more sorted run of each problem."""
        with self._disk() as file:
            for k, runs in enumerate(self._runs):
                start = file.seek(0, os.SEEK_END)
                file.write(_tied(self._records(k)).tobytes())
                runs.append((start, file.tell()))
            file.flush()
        self._held, self._held_rows = [], 0

    def _all_held(self, k: int) -> tuple[NDArray[np.bool_], Floats, Floats]:
        truth, decisions, weights = zip(*self._held, strict=True)
        return (
            np.concatenate([each[:, k] for each in truth]),
            np.concatenate([each[:, k] for each in decisions]),
            np.concatenate(weights),
        )

    def _records(self, k: int) -> Floats:
        """Return (−decision, weight of a positive, of a negative) of the rows in memory: sorted by
        it, the highest decision is the first."""
        truth, decisions, weights = self._all_held(k)
        return np.column_stack([-decisions, weights * truth, weights * ~truth])

    def _ranking(
        self, k: int, positives: float, negatives: float
    ) -> tuple[float | None, float | None]:
        """Return ROC AUC and average precision of one problem."""
        if not positives or not self._ranked:
            return None, None
        if not negatives:
            return None, 1.0
        if not self._runs[k]:
            from sklearn.metrics import average_precision_score, roc_auc_score

            truth, decisions, weights = self._all_held(k)
            scores = (roc_auc_score, average_precision_score)
            auc, precision = (s(truth, decisions, sample_weight=weights) for s in scores)
            return float(auc), float(precision)
        return _ranking_of_groups(self.ranked(k))

    @contextmanager
    def _disk(self) -> Iterator[IO[bytes]]:
        """Give the unnamed temporary file of all runs, created when it is first needed."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
            yield self._file
        except OSError as error:
            where = self._directory or tempfile.gettempdir()
            raise MachineError(
                f"{where}: sorted decisions cannot be kept there ({error.strerror or error}). "
                "Give a directory with room, or more memory."
            ) from error


def _read(file: IO[bytes], start: int, stop: int) -> Floats:
    """Read records; a mapping's pages would count as this process's memory."""
    file.seek(start)
    return np.frombuffer(file.read(stop - start)).reshape(-1, 3)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _precision_recall_f1(tp: float, fp: float, fn: float) -> dict[str, float | None]:
    return {
        "precision": _ratio(tp, tp + fp),
        "recall": _ratio(tp, tp + fn),
        "f1": _ratio(2 * tp, 2 * tp + fp + fn),
    }


def _means(classes: Sequence[Metrics]) -> Metrics:
    """Return the micro and macro means."""
    cases = ("true_positives", "false_positives", "false_negatives")
    micro = _precision_recall_f1(*(sum(each[name] for each in classes) for name in cases))
    defined = {name: [each[name] or 0.0 for each in classes] for name in micro}
    for name in ("roc_auc", "average_precision"):
        defined[name] = [each[name] for each in classes if each[name] is not None]
    macro = {f"macro_{name}": _ratio(sum(all_), len(all_)) for name, all_ in defined.items()}
    return {f"micro_{name}": value for name, value in micro.items()} | macro


def _tied(records: Floats) -> Floats:
    """Sort records (−decision, weight of the positives, of the negatives), and sum ties."""
    keys, ties = np.unique(records[:, 0], return_inverse=True)
    return np.column_stack([keys, *(np.bincount(ties, records[:, at]) for at in (1, 2))])


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


class AccuracyBounds:
    """Bounds of the optimum's accuracy on rows of two classes.

    With f(x) = w·x + ρ w_bias and ‖w − w*‖ ≤ √(2(P − D)) = radius, |f(x) − f*(x)| ≤ ‖(x, ρ)‖ ·
    radius. Where |f(x)| exceeds that, the optimum and the model decide alike; on any other row the
    optimum may be right or wrong.

    The radius is infinite where nothing is proven; see ``theory.decision_radius``.

    >>> bounds = AccuracyBounds(radius=0.5, rho=0.0)
    >>> bounds.add([1, 1, -1, -1], [0.9, 0.2, 0.7, -0.4], np.ones(4), np.ones(4))
    >>> bounds.accuracy  # right, unknown, wrong, unknown
    (0.25, 0.75)
    """

    def __init__(self, radius: float, rho: float) -> None:
        self._radius = min(radius, 1e150)  # above any decision, and finite times any length
        self._rho = rho
        self._least = self._most = self._weight = 0.0
        self._rows, self._exact = 0, True

    @classmethod
    def of(cls, model: LinearModel) -> Self:
        """Return the bounds for a model of two classes that has a certificate."""
        return cls(float(decision_radii(model)[0]), model.settings["rho"])

    def add(
        self, signs: ArrayLike, decisions: ArrayLike, weights: ArrayLike, lengths: ArrayLike
    ) -> None:
        """Add rows: the truth ±1, the model's f(x), the weight ≥ 0 and ‖x‖ of each."""
        sign, decision, weight = (np.asarray(one) for one in (signs, decisions, weights))
        self._rows += len(weight)
        self._exact = self._exact and bool((weight == np.floor(weight)).all())
        slack = sign * self._radius * np.hypot(np.asarray(lengths), self._rho)
        self._least += float(weight[(decision - slack > 0) == (sign > 0)].sum())
        self._most += float(weight[(decision + slack > 0) == (sign > 0)].sum())
        self._weight += float(weight.sum())

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Bounds in [0, 1] on all rows so far; None if their weight is 0."""
        if not self._weight:
            return None
        # sums of whole numbers below 2⁵³ are exact, those of other weights are off by u a row
        exact = self._exact and self._weight < 2.0**53
        rounding = 0 if exact else Fraction(1.01 * (2 * self._rows + 2) * UNIT_ROUNDOFF)
        least, most, all_ = map(Fraction, (self._least, self._most, self._weight))
        return at_least(least / all_ * (1 - rounding)), min(
            at_most(most / all_ * (1 + rounding)), 1.0
        )


def at_least(value: Fraction) -> float:
    """Return the largest float64 that is at most the value."""
    nearest = float(value)
    return nearest if nearest <= value else math.nextafter(nearest, -math.inf)


def at_most(value: Fraction) -> float:
    """Return the smallest float64 that is at least the value."""
    return -at_least(-value)


def decision_radii(model: LinearModel) -> Floats:
    """Return the radius √(2(P − D)) of each direction of a model that has a certificate.

    It contains the rounding of decisions: each is off by at most (columns + 8) u ‖(x, ρ)‖
    ‖(w, w_bias)‖, u = 2⁻⁵³ (Higham, 2002, eq. 3.5).
    """
    found, rho = [], model.settings["rho"]
    rounding = 1.01 * (model.columns + 8) * UNIT_ROUNDOFF
    for each in model.directions():
        proven = each.certificate or {}
        radius = theory.decision_radius(proven["primal_margin"], proven["upper_bound"])
        length = math.hypot(
            float(np.linalg.norm(each.nonzero.data)), each.bias / rho if rho else 0.0
        )
        found.append(radius * (1.0 + rounding) + rounding * length)
    return np.array(found)


def certain(model: LinearModel, decisions: Floats, lengths: Floats) -> NDArray[np.bool_]:
    """Return which rows, shape (rows,), the optimum labels as the model does.

    |f(x) − f*(x)| ≤ ‖(x, ρ)‖ · radius for each direction, f* of the best possible model of the same
    rows and settings. Of a multilabel model that holds for every class of the row.

    Parameters
    ----------
    model : one with a certificate; without, a SettingsError.
    decisions : shape (rows,) or (rows, K).
    lengths : ‖x‖, shape (rows,).
    """
    of_all = model.certificate.get("learners", [model.certificate])
    if "rho" not in model.settings or not all(each.get("primal_margin") for each in of_all):
        raise SettingsError(
            "the model has no certificate, so no label is certain. Give a model that streamtron "
            "fitted."
        )
    radii = np.minimum(decision_radii(model), 1e150)  # above any decision, finite times any length
    slack = np.hypot(lengths, model.settings["rho"])[:, None] * radii
    decisions = decisions.reshape(slack.shape)
    if model.kind != "multiclass":
        return np.asarray((np.abs(decisions) > slack).all(axis=1))
    chosen = model.chosen(decisions)
    least = np.where(chosen, decisions - slack, -np.inf).max(axis=1)
    return np.asarray(least > np.where(chosen, -np.inf, decisions + slack).max(axis=1))
