"""Measure a model's decisions and probabilities against the labels of any number of rows.

A model is a list of one-vs-rest problems, of two classes a list of one. Counts are summed as rows
come. ROC AUC and average precision are scikit-learn's, of decisions held in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.rows import Label

HELD = 50_000_000
"""Decisions held in memory, at up to 17 bytes each; beyond them decisions are binned."""

FEWEST_HELD = 1 << 14
"""Decisions held for each of many classes, at least."""

UNIT_ROUNDOFF = 2.0**-53

Floats = NDArray[np.float64]
Metrics = dict[str, Any]
Ranked = tuple[NDArray[np.bool_], Floats, Floats]
"""Rows of one problem: whether each is positive, its decision, its weight."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The metrics of one set of rows; each is an attribute: ``evaluation.accuracy``.

    Counts are sums of row weights (1 where none is given). A row counts as predicted positive if
    its decision is > 0; of a calibrated model the predicted class is the most probable one. With
    tp, fp, fn, tn the weights of the four cases: precision tp/(tp + fp), recall tp/(tp + fn), F1 2
    tp/(2 tp + fp + fn). ROC AUC is the chance that a positive row's decision exceeds a negative
    row's, ties counting half; average precision is Σ (recall_i − recall_{i−1}) precision_i over the
    distinct decisions from the highest down. All lie in [0, 1]; what is not defined (0/0; AUC with
    one class only; average precision without positives) is None. Both are scikit-learn's on all
    rows. Of more than 50 million decisions, those of all classes counted, decisions that differ by
    a relative 2⁻¹⁰ or less are taken as equal (2⁻⁷ of more than 762 classes), and ``binned`` is
    there and True.

    * **Always:** ``rows`` (those of weight 0 included), ``weight`` (the sum of the row weights),
      ``accuracy``, the share of the weight on rows whose predicted classes are exactly theirs.
    * **Where there are some:** ``out_of_range``, nonzeros in columns beyond the model's width,
      which weigh 0.
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
      and the mean ``prediction`` and ``target``. Of more than 50 million rows every second, fourth
      … is measured, and ``every`` is 2, 4 … R² is 1 − Σ w (t − z)² / Σ w (t − mean)²; where all
      targets are equal 1 if all are met, else 0; None of a single row. ``worst`` has rows
      of the largest |t − z|, their ``residual`` is t − z. Of a model of counts z is the mean e^z,
      and ``d2`` and ``deviance`` are scikit-learn's ``d2_tweedie_score`` and
      ``mean_poisson_deviance``; D² of labels that are all 0 is None.

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


def binned(truth: NDArray[np.bool_], decisions: Floats, weights: Floats, bits: int = 10) -> Ranked:
    """Join rows of equal truth whose decisions share sign, exponent and ``bits`` of the mantissa.

    The joined rows have the middle of these decisions and the sum of the weights.
    """
    largest = np.finfo(np.float32).max
    dropped = 23 - bits
    codes = np.clip(decisions + 0.0, -largest, largest).astype(np.float32).view(np.uint32)
    keys, places = np.unique(2 * (codes >> dropped) + truth, return_inverse=True)
    middles = ((keys >> 1 << dropped) + (1 << dropped >> 1)).view(np.float32).astype(np.float64)
    return keys % 2 == 1, middles, np.bincount(places, weights).astype(np.float64)


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
    classes : of many classes their labels; () of two.
    held : decisions in memory at most, of all classes together, but 16,384 rows.
    ranking : whether to keep decisions, for ROC AUC and average precision.
    """

    def __init__(
        self, classes: Sequence[Label] = (), *, held: int = HELD, ranking: bool = True
    ) -> None:
        self._classes = tuple(classes)
        problems = max(len(self._classes), 1)
        self._most_rows = max(held // problems, min(held, FEWEST_HELD))
        self._bits = 10 if self._most_rows >= 1 << 16 else 7  # 30,000 bins of a class, or 4,000
        self._ranking = ranking
        self._rows = self._others = self._held_rows = 0
        self._right = 0.0
        self._cases = np.zeros((problems, 2, 2))  # [.., is positive, is predicted], summed weights
        self._held: list[Ranked] = []
        self._bins: list[Ranked] = []

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
        chosen : like ``truth``: which classes are predicted, where the sign of the decision does
            not say so (of many classes, or of a calibrated model).
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
        counted = weights > 0
        if self._ranking:
            if not counted.all():
                truth, decisions, weights = truth[counted], decisions[counted], weights[counted]
            self._held.append((truth, decisions, weights))
            self._held_rows += int(np.count_nonzero(counted))
            if self._held_rows > self._most_rows:
                self._bins = [binned(*self.ranked(k), self._bits) for k in range(len(self._cases))]
                self._held, self._held_rows = [], 0

    def ranked(self, k: int = 0) -> Ranked:
        """Return the rows of problem k, those of weight 0 left out, or its bins as rows."""
        columns = [(truth[:, k], decisions[:, k], w) for truth, decisions, w in self._held]
        columns += self._bins[k : k + 1] or [(np.empty(0, bool), np.empty(0), np.empty(0))]
        truth, decisions, weights = map(np.concatenate, zip(*columns, strict=True))
        rows = truth, decisions, weights
        return binned(*rows, self._bits) if self._bins else rows

    def evaluation(self) -> Evaluation:
        """Return the metrics of all rows so far; more may be added."""
        problems = [self._metrics(k) for k in range(len(self._cases))]
        (tn, fp), (fn, tp) = self._cases[0].tolist()
        weight = tn + fp + fn + tp
        head: Metrics = {"rows": self._rows, "weight": weight}
        head |= {"binned": True} if self._bins else {}
        if not self._classes:
            return Evaluation(head | problems[0])
        wrong = sum(metrics["false_positives"] + metrics["false_negatives"] for metrics in problems)
        support = [metrics["true_positives"] + metrics["false_negatives"] for metrics in problems]
        classes = [
            {"label": label, "support": weight, **metrics}
            for label, weight, metrics in zip(self._classes, support, problems, strict=True)
        ]
        head |= {
            "rows_of_other_classes": self._others,
            "accuracy": _ratio(self._right, weight),
            "hamming_loss": _ratio(wrong, weight * len(problems)),
        }
        return Evaluation(head | _means(problems) | {"classes": classes})

    def curve(self, points: int = 400, k: int = 0) -> Floats:
        """Return points of the ROC curve of problem k.

        They are the weights of the true and of the false positives above falling thresholds, shape
        (about ``points`` at most, 2), from (0, 0) to all rows.
        """
        from sklearn.metrics import roc_curve

        truth, decisions, weights = self.ranked(k)
        how = {"sample_weight": weights, "drop_intermediate": False}
        with np.errstate(over="ignore"):  # in the differences of decisions
            fpr, tpr, _ = roc_curve(truth, decisions, **how)
        totals = weights[truth].sum(), weights[~truth].sum()
        sums = np.column_stack([tpr, fpr]) * totals
        steps = np.floor(sums.sum(axis=1) / sum(totals) * points)
        return np.asarray(sums[np.concatenate([[True], np.diff(steps[1:]) > 0, [True]])])

    def _metrics(self, k: int) -> Metrics:
        (tn, fp), (fn, tp) = self._cases[k].tolist()
        return {
            "true_positives": tp,
            "false_positives": fp,
            "false_negatives": fn,
            "true_negatives": tn,
            "accuracy": _ratio(tp + tn, tn + fp + fn + tp),
            **_precision_recall_f1(tp, fp, fn),
            **self._ranking_metrics(k),
        }

    def _ranking_metrics(self, k: int) -> Metrics:
        truth, decisions, weights = self.ranked(k)
        if not truth.any():
            return dict.fromkeys(_OF_RANKING)
        from sklearn.metrics import average_precision_score, roc_auc_score

        metrics: Metrics = {"roc_auc": None}
        with np.errstate(over="ignore"):  # in the differences of decisions
            if not truth.all():
                metrics["roc_auc"] = roc_auc_score(truth, decisions, sample_weight=weights)
            metrics["average_precision"] = average_precision_score(
                truth, decisions, sample_weight=weights
            )
        return {name: value and min(float(value), 1.0) for name, value in metrics.items()}


_OF_RANKING = ("roc_auc", "average_precision")


def _ratio(part: float, whole: float) -> float | None:
    """Return a share; both are sums of the same weights, in an order that may round them apart."""
    return min(part / whole, 1.0) if whole else None


def _precision_recall_f1(tp: float, fp: float, fn: float) -> dict[str, float | None]:
    return {
        "precision": _ratio(tp, tp + fp),
        "recall": _ratio(tp, tp + fn),
        "f1": _ratio(2 * tp, 2 * tp + fp + fn),
    }


def _means(classes: Sequence[Metrics]) -> Metrics:
    cases = ("true_positives", "false_positives", "false_negatives")
    micro = _precision_recall_f1(*(sum(row[name] for row in classes) for name in cases))
    means: Metrics = {f"micro_{name}": value for name, value in micro.items()}
    for name in micro:
        means[f"macro_{name}"] = _mean([row[name] or 0.0 for row in classes])
    for name in _OF_RANKING:
        means[f"macro_{name}"] = _mean([row[name] for row in classes if row[name] is not None])
    return means


def _mean(values: Sequence[float]) -> float | None:
    return _ratio(sum(values), len(values))


class ProbabilityScores:
    """Collect what probabilities are worth: log loss, Brier score, reliability.

    ``sum_to_one`` : whether each row has one class; else each class is a problem of its own.

    >>> scores = ProbabilityScores(sum_to_one=False)
    >>> scores.add(np.array([[True], [False]]), np.array([0.75, 0.5]), np.ones(2), np.zeros(2))
    >>> scores.metrics()["brier_score"]
    0.15625
    """

    def __init__(self, *, sum_to_one: bool) -> None:
        self._sum_to_one = sum_to_one
        self._sums = np.zeros(3)  # weights, times log loss, times Brier score
        self._tenths = np.zeros((3, 10))  # weights, times probability, times truth

    def add(
        self, truth: NDArray[np.bool_], p: Floats, weights: Floats, others: NDArray[Any]
    ) -> None:
        """Add rows: their classes, shape (rows, K), the probabilities of these, the rows' weights,
        and which rows have another class."""
        p = p.reshape(len(p), -1)
        squares = (p - truth) ** 2
        if self._sum_to_one:
            log_loss, brier = _log_loss((p * truth).sum(axis=1)), squares.sum(axis=1) + others
        else:
            log_loss = _log_loss(np.where(truth, p, 1.0 - p)).mean(axis=1)
            brier = squares.mean(axis=1)
        self._sums += [float(sums.sum()) for sums in (weights, weights * log_loss, weights * brier)]
        tenths = np.searchsorted(np.linspace(0.0, 1.0, 11)[1:-1], p.ravel())
        weight = np.repeat(weights, p.shape[1])
        for row, values in enumerate((weight, weight * p.ravel(), weight * truth.ravel())):
            self._tenths[row] += np.bincount(tenths, values, 10)

    def metrics(self) -> Metrics:
        """Return the metrics by name, see ``Evaluation``."""
        weight, log_loss, brier = self._sums.tolist()
        return {
            "log_loss": log_loss / weight if weight else None,
            "brier_score": brier / weight if weight else None,
            "reliability": [
                {"weight": w, "probability": p / w, "share": share / w}
                for w, p, share in self._tenths.T.tolist()
                if w
            ],
        }


def _log_loss(p: Floats) -> Floats:
    """Return −ln p, with p at least 2⁻⁵² and at most 1 − 2⁻⁵², as scikit-learn does."""
    eps = np.finfo(np.float64).eps
    return np.asarray(-np.log(np.clip(p, eps, 1.0 - eps)))
