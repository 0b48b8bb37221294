"""Metrics of any number of rows.

A model is a list of one-vs-rest problems, of two classes a list of one. Precision, recall and F1
come from four sums each. ROC AUC and average precision need the weights of the positive and of the
negative rows at each distinct decision, 24 bytes. Where these fit in memory they are exact;
otherwise neighbouring decisions are joined, and the order of their rows is between best and worst:
a bracket that contains the exact value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import Label

LIMIT_ROWS = 1 << 20
"""Distinct decisions held by default: 25 MB, and 215 MB while they are ranked. Of 8 million normal
decisions the joined ones are a relative 2⁻¹⁶ apart, and the bracket of ROC AUC is 2 · 10⁻⁶ wide."""

FEWEST_HELD = 1 << 14
"""Distinct decisions of each of many classes that are held at least."""

UNIT_ROUNDOFF = 2.0**-53

_MAGNITUDE = np.int64(2**63 - 1)
"""The bits of a float64 but its sign."""

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
    Where more decisions differ than memory holds, ``roc_auc_bracket`` and
    ``average_precision_bracket`` are there too, proven bounds (lower, upper); ``roc_auc`` and
    ``average_precision`` then lie between them: the rows of neighbouring decisions alternate.

    * **Always:** ``rows`` (those of weight 0 included), ``weight`` (the sum of the row weights),
      ``accuracy``, the share of the weight on rows whose predicted classes are exactly theirs.
    * **Where there are some:** ``out_of_range``, nonzeros in columns beyond the model's width,
      which weigh 0; ``unseen``, the columns of a table with categories that were not counted.
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

    * **Where a row has one class:** ``confusions``, and ``worst`` if it is asked for, see
      ``Mistakes.metrics``.
    * **Where the model has probabilities:** ``log_loss`` and ``brier_score`` of scikit-learn, of a
      multilabel model the means over the classes; a class that is none of the model's has the
      probability 0. ``reliability``: of the (row, class) pairs whose probabilities are in the same
      tenth the ``weight``, the mean ``probability``, and the ``share`` that has the class.
    * **Numbers** (regression): in place of all these ``rows``, ``weight``, ``r2``, ``rmse``,
      ``mae``, ``target_mean``, ``target_deviation`` (square root of the mean squared distance from
      the mean), and ``calibration``: of tenths of the weight, by rising prediction, the ``weight``
      and the mean ``prediction`` and ``target``. R² is 1 − Σ w (t − z)² / Σ w (t − mean)²; where
      all targets are equal 1 if all are met, else 0; None of a single row. ``worst`` has rows of
      the largest |t − z|, their ``residual`` is t − z.

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


class Ranking:
    """The weights of the positive and of the negative rows at each distinct decision.

    A float64's bits are a whole number, its key, that rises with it. Where more than ``limit``
    keys differ, their last bits are dropped, one after the other, which joins neighbours: which
    ones depends on the decisions alone, not on their order.
    """

    def __init__(self, limit: int, columns: int = 2) -> None:
        self._limit = limit
        self.dropped_bits = 0
        self._keys = np.empty(0, np.int64)
        self._sums = np.empty((0, columns))

    def add(self, truth: NDArray[np.bool_], decisions: Floats, weights: Floats) -> None:
        """Add rows; ``truth`` : whether each is positive."""
        self.add_sums(decisions, np.column_stack([weights * truth, weights * ~truth]))

    def add_sums(self, decisions: Floats, sums: Floats) -> None:
        """Add what is summed at each decision, shape (rows, columns)."""
        bits = (decisions + 0.0).view(np.int64)  # −0 + 0 is 0
        keys = np.where(bits < 0, bits ^ _MAGNITUDE, bits) >> self.dropped_bits
        self._join(np.append(self._keys, keys), np.concatenate([self._sums, sums]))
        while len(self._keys) > self._limit and self.dropped_bits < 62:
            self.dropped_bits += 1
            self._join(self._keys >> 1, self._sums)

    def _join(self, keys: NDArray[np.int64], sums: Floats) -> None:
        self._keys, places = np.unique(keys, return_inverse=True)
        self._sums = np.column_stack([np.bincount(places, column) for column in sums.T])

    def records(self) -> Floats:
        """Return rising decisions, for joined ones the middle, with their sums: the weights of
        their positive and of their negative rows, shape (decisions, 3)."""
        keys = (self._keys << self.dropped_bits) + (1 << self.dropped_bits >> 1)
        largest = np.array(np.finfo(np.float64).max).view(np.int64)
        keys = np.clip(keys, ~largest, largest)
        decisions = np.where(keys < 0, keys ^ _MAGNITUDE, keys).view(np.float64)
        return np.column_stack([decisions, self._sums])

    def metrics(self, rows: int) -> Metrics:
        """Return ROC AUC and average precision, with brackets unless they are exact.

        With p, n the weights at one decision, tp, fp those down to and including it, P, N all:
        AUC = Σ n (tp − p/2) / (P N) and average precision = Σ p tp/(tp + fp) / P. In a bracket the
        rows of joined decisions are in the worst and in the best order, else they alternate.
        ``rows`` : how many there are, which bounds the rounding of the sums.
        """
        p, n = self._sums[::-1].T
        tp, fp = np.cumsum(p), np.cumsum(n)
        above, beside = np.append(0.0, tp[:-1]), np.append(0.0, fp[:-1])
        positives, negatives = (float(all_[-1]) if len(all_) else 0.0 for all_ in (tp, fp))
        if not positives or not negatives:
            return {"roc_auc": None, "average_precision": 1.0 if positives else None}

        def auc(better: Floats) -> float:
            return float((n * better).sum()) / (positives * negatives)

        def precision(tp: Floats, fp: Floats) -> float:
            share = np.divide(tp, tp + fp, out=np.ones_like(tp), where=fp > 0.0)
            return float((p * share).sum()) / positives

        metrics: Metrics = {
            "roc_auc": min(auc(tp - p / 2), 1.0),
            "average_precision": min(precision(tp, fp), 1.0),
        }
        if self.dropped_bits:
            metrics["average_precision"] = min(precision(tp - p / 2, fp - n / 2), 1.0)
            rounding = 10 * (rows + len(p)) * UNIT_ROUNDOFF
            for name, low, high in (
                ("roc_auc_bracket", auc(above), auc(tp)),
                ("average_precision_bracket", precision(above, fp), precision(tp, beside)),
            ):
                metrics[name] = [low * (1 - rounding), min(high * (1 + rounding), 1.0)]
        return metrics


def check_finite(decisions: Floats, rows: int) -> None:
    """Raise a DataError unless the decisions are finite; ``rows`` : how many came before them."""
    if not (finite := np.isfinite(decisions)).all():
        raise DataError(
            f"row {rows + np.argwhere(~finite)[0, 0]}: decision {decisions[~finite][0]}. "
            "It must be finite; check the model and the values of that row."
        )


class Scores:
    """Collect labels, decisions and weights of any number of rows for an ``evaluation()``.

    Parameters
    ----------
    classes : the K labels, in the order of the decisions; none for two classes, one problem.
    limit_rows : distinct decisions held in memory, ≥ 1, of all classes together, but FEWEST_HELD of
        each; of more, ROC AUC and average precision are brackets.
    ranking : whether to compute ROC AUC and average precision; else no decision is kept.

    Examples
    --------
    >>> scores = Scores()
    >>> for positive, decision in [(True, 0.9), (True, -0.2), (False, -0.2), (False, -0.8)]:
    ...     scores.add(np.array([positive]), np.array([decision]))
    >>> scores.evaluation().roc_auc
    0.875
    """

    def __init__(
        self, classes: Sequence[Label] = (), *, limit_rows: int = LIMIT_ROWS, ranking: bool = True
    ) -> None:
        if limit_rows < 1:
            raise SettingsError(f"limit_rows: {limit_rows}. Give at least 1.")
        self._classes = tuple(classes)
        problems = max(len(self._classes), 1)
        self._limit = max(limit_rows // problems, min(limit_rows, FEWEST_HELD))
        self._rankings = [Ranking(self._limit) for _ in range(problems)] if ranking else []
        self._rows = self._others = 0
        self._right = 0.0
        self._cases = np.zeros((problems, 2, 2))  # [.., is positive, is predicted], summed weights
        self._held: list[tuple[NDArray[np.bool_], Floats, Floats]] = []
        self._held_rows = 0

    def add(
        self, truth: NDArray[np.bool_], decisions: Floats, weights: Floats | None = None, *,
        chosen: NDArray[np.bool_] | None = None, others: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
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
        check_finite(decisions, self._rows)
        right = (truth == chosen).all(axis=1)
        if others is not None:
            right &= ~others
            self._others += int(np.count_nonzero(others))
        self._rows += len(truth)
        self._right += float(weights[right].sum())
        for k, cases in enumerate(self._cases):
            case = 2 * truth[:, k] + chosen[:, k]
            cases += np.bincount(case, weights, minlength=4).reshape(2, 2)
        if self._rankings:
            positive = weights > 0
            self._held.append((truth[positive], decisions[positive], weights[positive]))
            self._held_rows += int(np.count_nonzero(positive))
            if self._held_rows > self._limit:
                self._rank()

    def evaluation(self) -> Evaluation:
        """Return the metrics of all rows so far; more may be added."""
        self._rank()
        problems = [self._metrics(k) for k in range(len(self._cases))]
        (tn, fp), (fn, tp) = self._cases[0].tolist()
        weight = tn + fp + fn + tp
        head: Metrics = {"rows": self._rows, "weight": weight}
        if not self._classes:
            return Evaluation(head | problems[0])
        wrong = sum(metrics["false_positives"] + metrics["false_negatives"] for metrics in problems)
        support = [metrics["true_positives"] + metrics["false_negatives"] for metrics in problems]
        classes = [
            {"label": label, "support": weight, **metrics}
            for label, weight, metrics in zip(self._classes, support, problems, strict=True)
        ]
        head |= {
            "rows_of_other_classes": self._others, "accuracy": _ratio(self._right, weight),
            "hamming_loss": _ratio(wrong, weight * len(problems)),
        }  # fmt: skip
        return Evaluation(head | _means(problems) | {"classes": classes})

    def curve(self, points: int = 400, k: int = 0) -> Floats:
        """Return, of problem k, the weight of the true and the false positives above falling
        thresholds, shape (about ``points`` at most, 2), from (0, 0) to all rows: the points of the
        ROC curve, and of the precision-recall curve."""
        sums = np.cumsum(self.records(k)[::-1, 1:], axis=0)
        steps = np.floor(sums.sum(axis=1) / sums[-1].sum() * points)
        return np.concatenate([np.zeros((1, 2)), sums[np.append(np.diff(steps) > 0, True)]])

    def records(self, k: int = 0) -> Floats:
        """Return the ``Ranking.records`` of problem k; rows of weight 0 are left out."""
        self._rank()
        return self._rankings[k].records()

    def _rank(self) -> None:
        """Let the rankings take the rows held."""
        if self._held:
            truth, decisions, weights = map(np.concatenate, zip(*self._held, strict=True))
            for k, ranking in enumerate(self._rankings):
                ranking.add(truth[:, k], decisions[:, k], weights)
        self._held, self._held_rows = [], 0

    def _metrics(self, k: int) -> Metrics:
        (tn, fp), (fn, tp) = self._cases[k].tolist()
        return {
            "true_positives": tp, "false_positives": fp, "false_negatives": fn,
            "true_negatives": tn, "accuracy": _ratio(tp + tn, tn + fp + fn + tp),
            **_precision_recall_f1(tp, fp, fn),
            **(self._rankings[k].metrics(self._rows) if self._rankings else _NO_RANKING),
        }  # fmt: skip


_NO_RANKING: Metrics = {"roc_auc": None, "average_precision": None}


def _ratio(part: float, whole: float) -> float | None:
    """Return a share; both are sums of the same weights, in an order that may round them apart."""
    return min(part / whole, 1.0) if whole else None


def _precision_recall_f1(tp: float, fp: float, fn: float) -> dict[str, float | None]:
    return {
        "precision": _ratio(tp, tp + fp), "recall": _ratio(tp, tp + fn),
        "f1": _ratio(2 * tp, 2 * tp + fp + fn),
    }  # fmt: skip


def _means(classes: Sequence[Metrics]) -> Metrics:
    cases = ("true_positives", "false_positives", "false_negatives")
    sums = (sum(metrics[name] for metrics in classes) for name in cases)
    micro = _precision_recall_f1(*sums)
    macro: Metrics = {
        name: _mean([metrics[name] or 0.0 for metrics in classes])
        for name in ("precision", "recall", "f1")
    }
    for name in _NO_RANKING:
        defined = [metrics for metrics in classes if metrics[name] is not None]
        macro[name] = _mean([metrics[name] for metrics in defined])
        bracket = f"{name}_bracket"
        if any(bracket in metrics for metrics in defined):
            ends = [metrics.get(bracket, [metrics[name]] * 2) for metrics in defined]
            macro[bracket] = [_mean(column) for column in zip(*ends, strict=True)]
    named = {f"micro_{name}": value for name, value in micro.items()}
    return named | {f"macro_{name}": value for name, value in macro.items()}


def _mean(values: Sequence[float]) -> float | None:
    return _ratio(sum(values), len(values))
