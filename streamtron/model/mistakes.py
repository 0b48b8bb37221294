"""Which rows a model gets wrong: the pairs of classes that it confuses, and the worst rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.rows import Label

Floats = NDArray[np.float64]


def margins_by_code(decisions: Floats, codes: NDArray[np.intp]) -> Floats:
    """Return the margins of rows, shape (rows,); ``codes`` : the positions of their classes."""
    if decisions.ndim == 1:
        return np.where(codes == 1, decisions, -decisions)
    rows, runners_up = np.arange(len(codes)), decisions.copy()
    runners_up[rows, codes] = -np.inf
    return np.asarray(decisions[rows, codes] - runners_up.max(axis=1))


def confusion_matrix(metrics: Mapping[str, Any], classes: Sequence[Label]) -> list[list[float]]:
    """Return weights of rows by class (down) and predicted class (across); from ``confusions``."""
    right = [row["true_positives"] for row in metrics.get("classes", ())]
    right = right or [metrics["true_negatives"], metrics["true_positives"]]
    weight_of = {(x["label"], x["predicted"]): x["weight"] for x in metrics["confusions"]}
    weight_of |= {(label, label): weight for label, weight in zip(classes, right, strict=True)}
    return [[weight_of.get((label, chosen), 0.0) for chosen in classes] for label in classes]


class Mistakes:
    """Collect mistakes on rows of one of ``classes`` each; ``worst`` : how many rows are listed."""

    def __init__(self, classes: Sequence[Label], worst: int = 0) -> None:
        self._classes, self._most = classes, worst
        self._confused: Any = sparse.csr_array((len(classes), len(classes)))
        self._worst: list[dict[str, Any]] = []

    def add(
        self,
        truth: NDArray[np.bool_],
        chosen: NDArray[np.bool_],
        decisions: Floats,
        weights: Floats,
        shard: str,
        first: int,
    ) -> None:
        """Add rows of a shard from its row ``first`` on: their classes, those predicted, and
        decisions, shape (rows, K); of two classes (rows, 1), (rows,) and (rows,)."""
        if truth.shape[1] == 1:
            truth, decisions = np.hstack([~truth, truth]), np.column_stack([-decisions, decisions])
            chosen = np.column_stack([~chosen, chosen])
        rows = np.flatnonzero(truth.any(axis=1))
        label, predicted = truth[rows].argmax(axis=1), chosen[rows].argmax(axis=1)
        pairs, shape = (label, predicted), self._confused.shape
        self._confused += sparse.coo_array((weights[rows], pairs), shape=shape).tocsr()
        if not self._most:
            return
        decisions = decisions[rows]
        margins = margins_by_code(decisions, label)
        for k in np.argsort(margins, kind="stable")[: self._most].tolist():
            row = {"shard": shard, "row": first + int(rows[k]), "label": self._classes[label[k]]}
            row |= {"predicted": self._classes[predicted[k]]}
            row |= {"decision": float(decisions[k, label[k]]), "margin": float(margins[k])}
            self._worst.append(row)
        self._worst = sorted(self._worst, key=lambda row: row["margin"])[: self._most]

    def metrics(self) -> dict[str, Any]:
        """Return ``confusions``, the largest first: the ``weight`` of the rows of a ``label`` that
        are ``predicted`` as another; and, if they are asked for, the ``worst`` rows, those whose
        decision for their label is farthest below the best of the others (of two classes, below its
        opposite)."""
        cells = self._confused.tocoo()
        pairs = zip(cells.data.tolist(), *(axis.tolist() for axis in cells.coords), strict=True)
        confusions = [
            {"label": self._classes[k], "predicted": self._classes[chosen], "weight": weight}
            for weight, k, chosen in sorted(pairs, key=lambda cell: (-cell[0], *cell[1:]))
            if k != chosen
        ]
        return {"confusions": confusions} | ({"worst": self._worst} if self._most else {})
