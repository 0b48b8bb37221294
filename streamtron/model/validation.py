"""Check what a model is made of, and bring it into the one form in which equal models are equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from streamtron.core.config import REGRESSION
from streamtron.core.errors import SettingsError
from streamtron.core.files import parse_json
from streamtron.core.rows import Label
from streamtron.core.sealed import canonical
from streamtron.model.display import ModelCertificate

Kind = Literal["two classes", "multiclass", "multilabel", "regression"]

WIDEST = 1 << 32
"""Columns at most: their numbers have 32 bits."""

HUGE = 1e140
"""Weights of other programs, and values of rows in memory, are no larger: no decision overflows."""

_ANY = (-1.7e308, 1.7e308)
_CERTIFICATE = {
    **dict.fromkeys(("primal_objective", "dual_objective", "relative_duality_gap"), _ANY),
    "primal_margin": (-1e150, 1e150),
    "upper_bound": (1e-150, 1e150),
    "rows_scanned": (0, 2**63),
}
_BALL = {"radius": (0, 1e150), "unit": (0, 1e100), "bias": (-1e150, 1e150)}
_SETTINGS = {"C": (1e-30, 1e30), "delta": (1e-15, 1e15), "rho": (1e-30, 1e30), "tol": (0, 1)}
"""Ranges of numbers, if they are there, in which what is computed neither overflows nor vanishes.
Delta and rho may be 0."""

Shape = tuple[int, ...]
"""Of weights: (columns,) for two classes, else (K, columns)."""


def checked_weights(
    weights: ArrayLike | sparse.sparray, ndim_of_bias: int
) -> tuple[sparse.csr_array, Shape]:
    """Return a read-only copy of the weights that are not 0, by class, and the weights' shape.
    ``stored_weights`` are not copied."""
    _refuse_unreal("weights", weights)
    given: Any = weights if sparse.issparse(weights) else np.asarray(weights, dtype=np.float64)
    shape: Shape = given.shape
    if len(shape) not in (1, 2) or (len(shape) == 2 and not shape[0]) or shape[-1] > WIDEST:
        raise SettingsError(f"weights: shape {shape}, expected (columns,) or (classes, columns).")
    if not sparse.issparse(given):
        _check_finite("weights", given)
    rows = given.reshape(1, -1) if len(shape) == 1 else given
    stored = _are_stored(given)
    kept = (
        given if stored else sparse.csr_array(rows, dtype=np.float64, copy=sparse.issparse(given))
    )
    if sparse.issparse(given):
        _check_finite("weights", kept.data)
        if not stored:
            kept.sum_duplicates()
            kept.eliminate_zeros()
        shape = shape[1:] if len(shape) == 2 and shape[0] == 1 and not ndim_of_bias else shape
    return _read_only(kept), shape


def stored_weights(
    values: NDArray[np.float64], columns: NDArray[Any], starts: NDArray[np.int64], width: int
) -> sparse.csr_array:
    """Return weights that are not 0, by class with rising columns, whose arrays nobody can change
    any more: a model of them has these."""
    kind = np.int32 if max(width, len(values)) < 1 << 31 else np.int64
    parts = read_only(values), read_only(columns.astype(kind)), starts.astype(kind)
    return _read_only(sparse.csr_array(parts, shape=(len(starts) - 1, width)))


def _read_only(weights: sparse.csr_array) -> sparse.csr_array:
    for array in (weights.indptr, weights.indices, weights.data):
        read_only(array)
    return weights


def _are_stored(weights: Any) -> bool:
    """Tell whether weights are ``stored_weights``: nobody can change their arrays."""
    if not isinstance(weights, sparse.csr_array):
        return False
    owners = weights.indices.base, weights.data.base
    return all(isinstance(owner, np.ndarray) and not owner.flags.writeable for owner in owners)


def kept_weights(tensors: Mapping[str, NDArray[Any]], columns: int) -> sparse.csr_array:
    """Return the weights of a file, shape (K, columns); ValueError: they are none."""
    numbers, values = tensors["columns"], tensors["values"]
    starts = tensors.get("starts", np.array([0, len(values)]))
    alike = numbers.dtype == np.uint32 and values.dtype == np.float64 and starts.dtype == np.int64
    if not (alike and numbers.shape == values.shape == (len(values),) and len(starts) > 1):
        raise ValueError("weights of another kind or length")
    ends_well = starts.ndim == 1 and starts[0] == 0 and starts[-1] == len(values)
    rising = np.diff(numbers.astype(np.int64), prepend=-1) > 0
    rising[starts[:-1][starts[:-1] < len(values)]] = True
    if not (ends_well and (np.diff(starts) >= 0).all() and rising.all() and values.all()):
        raise ValueError("weights that are 0, or out of order")
    if not int(numbers.max(initial=0)) < max(columns, 1) <= WIDEST:
        raise ValueError("weights beyond the width")
    return stored_weights(values, numbers, starts, columns)


def checked_bias(bias: ArrayLike, shape: Shape) -> float | NDArray[np.float64]:
    """Return one number, or a read-only array of one for each row of weights."""
    checked = _checked_numbers("bias", bias)
    if checked.shape != shape[:-1]:
        raise SettingsError(f"bias: shape {checked.shape}, but weights of shape {shape}.")
    return checked if checked.ndim else float(checked)


def _checked_numbers(name: str, numbers: ArrayLike) -> NDArray[np.float64]:
    """Return a finite, read-only copy without −0: equal models are equal files."""
    _refuse_unreal(name, numbers)
    checked = np.asarray(np.asarray(numbers, dtype=np.float64) + 0.0)  # a number + 0 is no array
    _check_finite(name, checked)
    return read_only(checked)


def _refuse_unreal(name: str, numbers: Any) -> None:
    if np.iscomplexobj(numbers) or np.ma.is_masked(numbers):
        raise SettingsError(f"{name}: complex or masked numbers. Give real ones, and all of them.")


def _check_finite(name: str, numbers: NDArray[Any]) -> None:
    if not np.isfinite(numbers).all():
        bad = np.argwhere(~np.isfinite(numbers))[0].tolist()
        where = f" at position {', '.join(map(str, bad))}" if bad else ""
        raise SettingsError(f"{name}: {numbers[tuple(bad)]}{where}. It must be finite.")


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, which can no longer be changed."""
    array.setflags(write=False)
    return array


def kind_of(settings: Mapping[str, Any], reading: Mapping[str, Any], bias: object) -> Kind:
    """Return the kind of a model, whose bias is a number where there is one row of weights."""
    if settings.get("loss") in REGRESSION:
        return "regression"
    if isinstance(bias, float):
        return "two classes"
    return "multilabel" if reading.get("multilabel") else "multiclass"


def checked_classes(classes: Iterable[Label], kind: Kind, shape: Shape) -> tuple[Label, ...]:
    """Return the labels, rising and all of one kind, as Python values, numbers as floats."""
    labels = tuple(_checked_label(label) for label in classes)
    if kind == "regression":
        if labels or len(shape) > 1:
            raise SettingsError(
                f"classes: {labels}, weights of shape {shape}: a regression has no classes and one "
                "row of weights."
            )
        return labels
    size = 2 if kind == "two classes" else shape[0]
    if kind == "multiclass" and size < 3:
        raise SettingsError(f"weights: shape {shape}. Two classes have one number per column.")
    alike = len(labels) == size and len({type(label) for label in labels}) == 1
    if not alike or any(a >= b for a, b in pairwise(labels)):  # type: ignore[operator]
        raise SettingsError(f"classes: {labels}. Give {size} of one kind, in rising order.")
    return labels


def checked_reading(reading: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """Return the reader's contract, with ``columns`` filled in."""
    columns = shape[-1]
    checked = plain("reading", {"columns": columns, **reading})
    if checked["columns"] != columns:
        raise SettingsError(f"reading: columns = {checked['columns']}, but {columns} weights.")
    if checked.get("index_base") not in (0, 1):
        raise SettingsError(f"reading: index_base = {checked.get('index_base')!r}. Give 0 or 1.")
    words = checked.get("vocabulary") if checked.get("vocabulary") is not None else [""]
    if not (words and isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise SettingsError("reading: a vocabulary that is no list of names. Fit again.")
    if checked.get("multilabel") and len(shape) == 1:
        raise SettingsError("reading: multilabel, but one row of weights. Give one row a class.")
    return checked


def checked_certificate(certificate: Mapping[str, Any] | None, shape: Shape) -> ModelCertificate:
    """Return the certificate, empty for None; of many classes one that has ``learners``."""
    if not certificate:
        return ModelCertificate()
    checked = ModelCertificate(plain("certificate", certificate))
    learners = checked.get("learners")
    if len(shape) == 2 and not (isinstance(learners, list) and len(learners) == shape[0]):
        raise SettingsError(f"certificate: no learners for {shape[0]} classes.")
    for learner in learners if isinstance(learners, list) else [checked]:
        if not isinstance(learner, dict):
            raise SettingsError(f"certificate: {learner!r:.60} is not that of a class.")
        _check_ranges("certificate", learner, _CERTIFICATE)
    return checked


def checked_offsets(
    offsets: NDArray[np.float16] | None, kept: sparse.csr_array, certificate: Mapping[str, Any]
) -> NDArray[np.float16] | None:
    """Return a read-only copy of the offsets of a ball, which every certificate has."""
    if offsets is None:
        return None
    checked = np.array(offsets)
    if checked.dtype != np.float16 or checked.shape != kept.data.shape:
        raise SettingsError("offsets: another number than of weights, or no float16. Fit again.")
    _check_finite("offsets", checked)
    for learner in certificate.get("learners", [certificate]):
        ball = learner.get("ball")
        if not isinstance(ball, dict) or None in map(ball.get, _BALL):
            raise SettingsError("certificate: no ball, to which the offsets belong. Fit again.")
        _check_ranges("certificate", ball, _BALL)
    return read_only(checked)


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings; those that a model is used by are numbers."""
    checked = plain("settings", settings)
    _check_ranges("settings", checked, _SETTINGS)
    return checked


def _check_ranges(
    where: str, given: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]]
) -> None:
    for name, (low, high) in ranges.items():
        value = given.get(name)
        if value is None or (value == 0 and name in ("delta", "rho")):
            continue
        if not (isinstance(value, float | int) and low <= value <= high):
            expected = f"expected a number from {low:g} to {high:g}"
            raise SettingsError(f"{where}: {name} = {value!r:.40}, {expected}. Train again.")


def plain(name: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping as JSON reads it back, so that a model equals its file."""
    try:
        return dict(parse_json(canonical(dict(mapping))))
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name}: {error}. A model holds JSON alone.") from error


def _checked_label(label: Label) -> Label:
    if isinstance(label, str):
        return str(label)
    if isinstance(label, bool | np.bool_):
        return bool(label)
    return float(_checked_numbers("classes", label))
