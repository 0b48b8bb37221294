"""How well decisions of many classes meet labels: a row of metrics for each class, and their means.

Every class is judged as two classes are, itself against the rest, by a ``ScoreSpool`` of its own;
memory is that of one such spool, shared among them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamtron.chunk import Label
from streamtron.evaluation import LIMIT_ROWS, Evaluation, RunFile, ScoreSpool, prf, ratio

FEWEST_HELD = 1 << 14
"""Rows that each class holds in memory at least: 256 kB."""


@dataclass(frozen=True, slots=True)
class ManyEvaluation:
    """The metrics of one set of rows under many classes; counts are sums of row weights.

    Of each class, with TP, FP, FN as in ``Evaluation``: *micro* figures are those of the sums of
    TP, FP and FN over the classes, *macro* figures the plain means over the classes, in which a
    precision, recall or F1 of 0/0 counts as 0 (as in scikit-learn) and an undefined ROC AUC or
    average precision is left out.

    Parameters
    ----------
    rows : rows seen, those of weight 0 included.
    weight : sum of the row weights.
    rows_of_other_classes : rows with a label that is none of the model's classes; they are
        negatives of every class, and never right.
    accuracy : share of the weight on rows whose predicted classes are exactly theirs (where a row
        may have several: subset accuracy).
    hamming_loss : share of wrong (row, class) pairs.
    classes : (label, metrics) of every class, in the order of the classes.
    """

    rows: int
    weight: float
    rows_of_other_classes: int
    accuracy: float | None
    hamming_loss: float | None
    micro_precision: float | None
    micro_recall: float | None
    micro_f1: float | None
    macro_precision: float
    macro_recall: float
    macro_f1: float
    macro_roc_auc: float | None
    macro_average_precision: float | None
    classes: tuple[tuple[Label, Evaluation], ...]

    def to_dict(self) -> dict[str, Any]:
        """Names and values, ready for JSON; ``classes`` is a list with ``label``, ``support`` (the
        weight of the rows that have the class) and the metrics of each."""
        plain = {name: value for name, value in asdict(self).items() if name != "classes"}
        return {**plain, "classes": [_class_dict(*each) for each in self.classes]}


def _class_dict(label: Label, found: Evaluation) -> dict[str, Any]:
    metrics: dict[str, Any] = found.to_dict()
    del metrics["rows"], metrics["weight"]
    return {
        "label": label,
        "support": found.true_positives + found.false_negatives,
        **metrics,
    }


class ManySpool:
    """Collects decisions of many classes on any number of rows; then ``evaluation()``.

    Parameters
    ----------
    classes : the K labels, in the order of the decisions.
    limit_rows : decisions held in memory, of all classes together (but FEWEST_HELD of each);
        beyond that, sorted runs go to disk, 24 bytes a row and class.
    directory : where the runs go, in one nameless file; the system's temporary directory if None.
    ranking : whether ROC AUC and average precision are wanted; without them nothing is kept.

    Examples
    --------
    >>> with ManySpool(["ant", "bee", "cow"]) as spool:
    ...     chosen = np.eye(3, dtype=bool)
    ...     spool.add(chosen[[0, 1, 1]], np.where(chosen, 0.5, -0.5), chosen)
    ...     found = spool.evaluation()
    >>> found.accuracy == 2 / 3, found.micro_f1 == 2 / 3, found.classes[0][1].f1
    (True, True, 1.0)
    """

    def __init__(
        self,
        classes: Sequence[Label],
        *,
        limit_rows: int = LIMIT_ROWS,
        directory: str | os.PathLike[str] | None = None,
        ranking: bool = True,
    ) -> None:
        self._classes = tuple(classes)
        self._file = RunFile(directory)
        share = max(limit_rows // len(self._classes), min(limit_rows, FEWEST_HELD))
        self._spools = [ScoreSpool(share, ranking=ranking, file=self._file) for _ in self._classes]
        self._others = 0
        self._right = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(
        self,
        truth: NDArray[np.bool_],
        decisions: NDArray[np.float64],
        chosen: NDArray[np.bool_],
        weights: ArrayLike | None = None,
        others: NDArray[np.bool_] | None = None,
    ) -> None:
        """Take in the rows of a chunk.

        Parameters
        ----------
        truth : bool, shape (rows, K): which classes a row has.
        decisions : shape (rows, K), finite.
        chosen : bool, shape (rows, K): which classes are predicted.
        weights : shape (rows,), finite and ≥ 0.
        others : bool, shape (rows,): which rows have a label that is none of the classes.

        Raises
        ------
        DataError, MachineError : as ``ScoreSpool.add``.
        """
        right = (truth == chosen).all(axis=1)
        if others is not None:
            right &= ~others
            self._others += int(np.count_nonzero(others))
        weight = np.ones(len(truth)) if weights is None else np.asarray(weights, np.float64)
        for k, spool in enumerate(self._spools):
            spool.add(np.where(truth[:, k], 1, -1), decisions[:, k], weight, chosen[:, k])
        self._right += float(weight[right].sum())

    def evaluation(self) -> ManyEvaluation:
        """The metrics of all rows so far; more may be added afterwards."""
        found = [spool.evaluation() for spool in self._spools]
        tp, fp, fn = (
            sum(getattr(each, name) for each in found)
            for name in ("true_positives", "false_positives", "false_negatives")
        )
        weight, micro = found[0].weight, prf(tp, fp, fn)
        return ManyEvaluation(
            rows=found[0].rows,
            weight=weight,
            rows_of_other_classes=self._others,
            accuracy=ratio(self._right, weight),
            hamming_loss=ratio(fp + fn, weight * len(found)),
            micro_precision=micro["precision"],
            micro_recall=micro["recall"],
            micro_f1=micro["f1"],
            macro_precision=_mean([each.precision or 0.0 for each in found]) or 0.0,
            macro_recall=_mean([each.recall or 0.0 for each in found]) or 0.0,
            macro_f1=_mean([each.f1 or 0.0 for each in found]) or 0.0,
            macro_roc_auc=_mean([each.roc_auc for each in found]),
            macro_average_precision=_mean([each.average_precision for each in found]),
            classes=tuple(zip(self._classes, found, strict=True)),
        )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that are defined."""
    defined = [value for value in values if value is not None]
    return ratio(sum(defined), len(defined))
