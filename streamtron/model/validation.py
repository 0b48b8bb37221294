"""Validate the parts of a model, and bring each into the form that its file has."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import Label
from streamtron.core.sealed import canonical

Kind = Literal["two classes", "multiclass", "multilabel"]


def checked_weights(weights: ArrayLike) -> NDArray[np.float64]:
    """Return a read-only copy, without −0, whose transpose is contiguous.

    Raises
    ------
    SettingsError : neither (columns,) nor (K, columns), or not finite.
    """
    given = np.asarray(weights, dtype=np.float64)
    if given.ndim not in (1, 2) or (given.ndim == 2 and not len(given)):
        raise SettingsError(
            f"weights: shape {given.shape}. Give one number a column, or a row of them a class."
        )
    if not np.isfinite(given).all():
        bad = tuple(int(at) for at in np.argwhere(~np.isfinite(given))[0])
        raise SettingsError(
            f"weights: {given[bad]} at position {', '.join(map(str, bad))}. Weights must be finite."
        )
    checked: NDArray[np.float64] = np.asfortranarray(given) + 0.0
    checked.setflags(write=False)
    return checked


def checked_bias(bias: ArrayLike, weights: NDArray[np.float64]) -> float | NDArray[np.float64]:
    """Return one number, or a read-only array of one for each row of weights; no −0.

    Raises
    ------
    SettingsError : another shape, or not finite.
    """
    given = np.asarray(bias, dtype=np.float64)
    if given.shape != weights.shape[:-1]:
        raise SettingsError(
            f"bias: shape {given.shape}, but weights of shape {weights.shape}. Give one number "
            "for each row of weights."
        )
    if given.ndim == 0:
        return _finite("bias", float(given))
    checked = np.array([_finite("bias", number) for number in given.tolist()])
    checked.setflags(write=False)
    return checked


def checked_classes(
    classes: Iterable[Label], kind: Kind, weights: NDArray[np.float64]
) -> tuple[Label, ...]:
    """Return the labels as Python values, numbers as floats.

    Raises
    ------
    SettingsError : another number than the weights', of several kinds, or not rising.
    """
    labels = tuple(_checked_label(label) for label in classes)
    wanted = 2 if kind == "two classes" else len(weights)
    if kind == "multiclass" and wanted < 3:
        raise SettingsError(
            f"weights: shape {weights.shape}. Give one row a class, for three classes or more; of "
            "two classes, one number a column."
        )
    alike = len(labels) == wanted and len({type(label) for label in labels}) == 1
    if not alike or any(a >= b for a, b in pairwise(labels)):  # type: ignore[operator]
        which = "two of one kind, the smaller first: a positive decision means the second"
        if kind != "two classes":
            which = f"{wanted} of one kind, in rising order, one for each row of weights"
        raise SettingsError(f"classes: {labels}. Give {which}.")
    return labels


def checked_reading(reading: Mapping[str, Any], weights: NDArray[np.float64]) -> dict[str, Any]:
    """Return the reader's contract, with ``columns`` filled in.

    Raises
    ------
    SettingsError : not JSON, no index base, another number of columns than there are weights, or
        several labels a row for weights of two classes.
    """
    columns = weights.shape[-1]
    checked = plain("reading", {"columns": columns, **reading})
    if checked["columns"] != columns:
        raise SettingsError(f"reading: columns = {checked['columns']}, but {columns} weights.")
    if checked.get("index_base") not in (0, 1):
        raise SettingsError(f"reading: index_base = {checked.get('index_base')!r}. Give 0 or 1.")
    if checked.get("multilabel") and weights.ndim == 1:
        raise SettingsError("reading: multilabel, but one row of weights. Give one row a class.")
    return checked


def feature_names(reading: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the columns in the order of their numbers; () if they have none.

    Examples
    --------
    >>> feature_names({"layout": "columns", "features": ["age", "height"]})
    ('age', 'height')
    >>> feature_names({"layout": "lists", "features": ["indices"]})
    ()
    """
    key = "features" if reading.get("layout") == "columns" else "vocabulary"
    return tuple(reading.get(key) or ())


def check_feature_names(names: tuple[str, ...], X: Any) -> None:
    """Raise a DataError if a data frame has columns of other names, or in another order.

    By scikit-learn's rule, which also warns of a data frame whose columns have no names."""
    from sklearn.utils.validation import _check_feature_names

    # its warnings name the class
    fitted = type("LinearModel", (), {"feature_names_in_": np.array(names, dtype=object)})()
    try:
        _check_feature_names(fitted, X, reset=False)
    except (TypeError, ValueError) as error:
        sentence = " ".join(str(error).split())
        raise DataError(f"X: {sentence} Give X[list(model.feature_names)].") from error


def checked_certificate(
    certificate: Mapping[str, Any], weights: NDArray[np.float64]
) -> dict[str, Any]:
    """Return the certificate; of many classes one that has ``learners``.

    Raises
    ------
    SettingsError : not JSON, or not one certificate a class.
    """
    checked = plain("certificate", certificate)
    learners = checked.get("learners")
    if weights.ndim == 2 and not (isinstance(learners, list) and len(learners) == len(weights)):
        raise SettingsError(
            f"certificate: no learners for {len(weights)} classes. Give the certificate of each, "
            "as joint_certificate does."
        )
    return checked


def plain(name: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping as JSON reads it back, so that a model equals its file.

    Raises
    ------
    SettingsError : something that JSON cannot hold.
    """
    try:
        given: dict[str, Any] = json.loads(canonical(dict(mapping)))
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{name}: {error}. A model holds finite numbers, text, booleans, None, lists, mappings."
        ) from error
    return given


def is_int32(label: Label) -> bool:
    """Return whether LIBLINEAR's C code can hold the label.

    Examples
    --------
    >>> is_int32(-3.0), is_int32(0.5), is_int32("3"), is_int32(2.0**31)
    (True, False, False, False)
    """
    return not isinstance(label, str) and float(label).is_integer() and abs(label) < 2**31


def _checked_label(label: Label) -> Label:
    if isinstance(label, bool | np.bool_):
        return bool(label)
    if isinstance(label, str):
        return str(label)
    return _finite("classes", label)


def _finite(name: str, number: float) -> float:
    if not math.isfinite(number):
        raise SettingsError(f"{name}: {number}. It must be finite.")
    return float(number) + 0.0  # no −0: equal models are equal files
