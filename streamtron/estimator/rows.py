"""Rows in memory as estimators take them, and the checks of labels and row weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import is_regressor
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d, validate_data

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import LARGEST_WEIGHT, Label
from streamtron.core.text import label_text
from streamtron.data import MemoryData, canonical

if TYPE_CHECKING:
    from streamtron.estimator.base import StreamtronEstimator


class MatrixRows(NamedTuple):
    """Checked rows in memory; ``codes`` are places in ``classes``, or, without classes, numbers."""

    X: Any
    codes: NDArray[Any]
    classes: NDArray[Any]
    weights: NDArray[np.float64] | None

    @property
    def numbers(self) -> list[Label]:
        """What learners take for labels: the numbers of the classes."""
        return [float(number) for number in range(len(self.classes))]

    def data(self) -> MemoryData:
        """Return the rows as learners read them."""
        return MemoryData(self.X, self.codes, self.numbers, self.weights)

    def check_classes(self) -> None:
        """Refuse rows that have fewer than two classes."""
        counting = self.codes if self.weights is None else self.codes[self.weights > 0.0]
        labels = self.classes[np.unique(counting)].tolist()
        if len(labels) < 2:
            only = f"only one class, {label_text(labels[0], quote=True)}" if labels else ""
            raise DataError(
                f"y: {only or 'no row of a class'}, among the rows of a weight above 0: expected "
                "two classes at least."
            )

    def class_weights(self, given: Mapping[Any, float] | str | None) -> dict[Label, float] | None:
        """Return the weight of every class by its number."""
        if not given:
            return None
        if given == "balanced":
            sums = np.bincount(self.codes, self.weights, minlength=len(self.classes)).astype(float)
            weights = sums.sum() / (len(sums) * np.where(sums > 0.0, sums, 1.0))
        else:
            weights = compute_class_weight(given, classes=self.classes, y=self.classes)
        return dict(zip(self.numbers, weights.tolist(), strict=True))


def checked_matrix(
    model: StreamtronEstimator, X: Any, y: Any, *, reset: bool
) -> tuple[Any, NDArray[Any]]:
    """Return X in float32, by rows if it is sparse, and y, of a regressor as float64; ``reset`` :
    whether names and number of the columns are learned."""
    if np.ma.is_masked(X) or np.ma.is_masked(y):
        raise DataError("X and y: values that are masked. Remove or fill them.")
    numeric = is_regressor(model)
    with np.errstate(over="ignore"):  # then refused as infinite
        X, y = validate_data(
            model,
            X,
            y,
            accept_sparse="csr",
            dtype=np.float32,
            order="C",
            reset=reset,
            y_numeric=numeric,
            multi_output=numeric,
        )
    if not numeric:
        with np.errstate(invalid="ignore"):
            are_whole = y.dtype.kind == "f" and np.array_equal(y, y.astype(np.int32))
        if y.dtype.kind not in "iub" and not are_whole:  # which all are classes
            check_classification_targets(y)
    elif y.ndim == 2 and y.shape[1] > 1:
        raise DataError(f"y: shape {y.shape}: expected one number a row.")
    else:
        is_integer, y = y.dtype.kind in "iu", column_or_1d(y, warn=True, dtype=np.float64)
        # scikit-learn lets None pass, and integers that are rounded
        wrong = ~np.isfinite(y) | (is_integer & (np.abs(y) >= 2.0**53))
        if wrong.any():
            row = int(wrong.argmax())
            wanted = "expected finite numbers, integers below 2**53."
            raise DataError(f"y: row {row} has {y[row]}: {wanted}")
    return canonical(X) if sparse.issparse(X) else X, y


def check_labels(y: NDArray[Any], known: NDArray[Any], given: ArrayLike | None) -> None:
    """Refuse labels of ``partial_fit`` that are not the classes of its first call."""
    if given is not None and not np.array_equal(known, np.unique(given)):
        raise SettingsError(f"classes: {given}, at the first call they were {known}.")
    if len(known) < 2:
        raise DataError(f"classes: {known}: expected at least two.")
    if unknown := sorted(set(np.unique(y).tolist()) - set(known.tolist()), key=repr):
        raise DataError(f"y: label {unknown[0]!r} is not one of the classes {known}.")


def row_weights(sample_weight: ArrayLike | None, X: Any) -> NDArray[np.float64] | None:
    """Return the weights of the rows; refuse those that are negative or too large."""
    if sample_weight is None:
        return None
    weights: NDArray[np.float64] = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    if not (weights <= LARGEST_WEIGHT).all():
        raise DataError(f"sample_weight: a weight above {LARGEST_WEIGHT:g}. Rescale them.")
    return weights


def sorted_labels(labels: Sequence[Label]) -> list[Label]:
    """Sort labels; numbers become floats, as in shards."""
    array = np.unique(np.asarray(labels))
    return list((array.astype(float) if array.dtype.kind in "iu" else array).tolist())
