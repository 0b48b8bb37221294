"""Load a model of any kind: of streamtron, LIBLINEAR's text, or plain coefficients."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import REGRESSION
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.files import absolute, reading_from, regular
from streamtron.core.rows import Label
from streamtron.core.text import reason_of
from streamtron.model.linear_model import LinearModel
from streamtron.model.validation import HUGE

_LIBLINEAR_CLASSIFIERS = {
    *("L2R_LR", "L2R_LR_DUAL", "L1R_LR", "L2R_L1LOSS_SVC_DUAL"),
    *("L2R_L2LOSS_SVC", "L2R_L2LOSS_SVC_DUAL", "L1R_L2LOSS_SVC", "MCSVM_CS"),
}

_LIBLINEAR_REGRESSORS = {"L2R_L2LOSS_SVR", "L2R_L2LOSS_SVR_DUAL", "L2R_L1LOSS_SVR_DUAL"}

CLASSES_UNKNOWN = "classes_unknown"
"""Setting of coefficients of two classes that were not named: (−1, 1) stand for any two labels."""

_NO_NPY = (ValueError, EOFError, FloatingPointError, SyntaxError, TokenError, RecursionError)
"""Errors that numpy raises on a malformed header."""


def load_any(
    path: str | os.PathLike[str],
    *,
    index_base: Literal[0, 1] | None = None,
    bias_last: bool = False,
    classes: Sequence[Label] | None = None,
    loss: str | None = None,
) -> LinearModel:
    """Load a streamtron model, a LIBLINEAR model or coefficients; the first bytes say which.

    * **LIBLINEAR:** a classifier (``-s`` 0 to 7) of two classes or more, or a model of numbers
      (``-s`` 11 to 13), as ``train`` or ``save_model`` writes it. Its labels, its bias and the
      base 1 of its features are taken from it.
    * **Coefficients:** one vector, positive towards the larger class; a ``.npy`` array of shape
      (n,), (1, n) or (n, 1), or text with one number a line or all on one line, between blanks or
      commas, ``#`` begins a comment. Of K ≥ 3 classes, one against the rest: a ``.npy`` array of
      shape (K, n), as scikit-learn's ``coef_``.

    Parameters
    ----------
    index_base : the number that the shards give the column of the first coefficient; must be given
        for coefficients. For LIBLINEAR only where the shards differ from what it was trained on.
    bias_last : coefficients only: the last number (of each row) is the intercept, as it is added
        to w·x.
    classes : coefficients only: (smaller, larger). If not given, (−1, 1), in whose place
        ``certify`` and ``evaluate`` take the two labels of the shards. Of K classes all, in the
        order of their coefficients, which rises; must be given.
    loss : a loss of regression: the coefficients predict numbers, and have no classes. Of
        LIBLINEAR only its own.

    Returns
    -------
    Of LIBLINEAR and coefficients a model without a certificate; ``settings`` names the source and,
    for LIBLINEAR, ``solver_type``, ``rho`` (its ``-B``; 0 where it had no bias), ``loss`` (but of
    ``-s`` 4, which has none of ours) and, of ``-s`` 5 and 6, ``penalty``.

    Raises
    ------
    DataError : one class, numbers missing or not finite; a damaged streamtron model.
    SettingsError : a keyword that the file contradicts, or one that is missing.
    MachineError : the file cannot be read.
    """
    path = Path(absolute(path, "models"))
    with reading_from(path), open(path, "rb", opener=regular) as file:
        start = file.read(4096)
    is_npy = start.startswith(b"\x93NUMPY")
    if start.startswith(b"solver_type"):
        model = _from_liblinear(path, 1 if index_base is None else index_base)
        if bias_last or classes is not None or loss not in (None, model.settings.get("loss")):
            _refuse(path, "a LIBLINEAR model", "--bias-last, classes and another loss")
        return model
    # streamtron's files have zeros in their first 8 bytes; text has none
    if not is_npy and (not start.isascii() or start == b"" or 0 in start):
        if bias_last or (index_base, classes, loss) != (None, None, None):
            _refuse(path, "a model, or no text", "--index-base, --bias-last, classes and loss")
        return LinearModel.load(path)
    numbers = _from_npy(path) if is_npy else _from_text(path)
    if loss is not None and (loss not in REGRESSION or classes is not None or numbers.ndim == 2):
        raise SettingsError(
            f"{path}: loss {loss!r} of coefficients: expected one of {', '.join(REGRESSION)}, one "
            "vector and no classes."
        )
    if not numbers.size:
        raise DataError(f"{path}: holds no number. Wanted one coefficient a column.")
    if index_base is None:
        raise SettingsError(
            f"{path}: coefficients do not say which column is the first. Give --index-base 0 or 1."
        )
    if numbers.ndim == 2 and classes is None:
        raise SettingsError(
            f"{path}: coefficients of {len(numbers)} classes do not say which. Read them in Python "
            "with streamtron.load(…, classes=…)."
        )
    weights, bias = numbers, np.zeros(numbers.shape[:-1])
    if bias_last:
        weights, bias = numbers[..., :-1], numbers[..., -1]
    settings: dict[str, Any] = {"source": "coefficients"}
    if loss is not None:
        classes, settings["loss"] = (), loss
    elif classes is None:
        classes, settings[CLASSES_UNKNOWN] = (-1.0, 1.0), True
    labels, reading = tuple(classes), {"index_base": index_base}
    return LinearModel(weights, bias, labels, settings, {}, reading)


def _refuse(path: Path, what: str, names: str) -> None:
    raise SettingsError(
        f"{path}: {what}. {names} are for coefficients, in ASCII text or .npy; leave them out."
    )


def _from_npy(path: Path) -> NDArray[np.float64]:
    try:
        with reading_from(path), np.errstate(over="raise"):  # a shape whose product wraps
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _NO_NPY as error:
        reason = f"not a readable .npy array of numbers ({error!s:.200})."
        raise DataError(f"{path}: {reason}") from error
    is_vector = max(array.shape, default=0) == array.size
    if array.dtype.kind not in "iuf" or not (is_vector or (array.ndim == 2 and len(array) > 2)):
        raise DataError(
            f"{path}: an array of {array.dtype}, shape {array.shape}. "
            "Wanted one vector of numbers, or one row a class for three classes or more."
        )
    numbers = _checked(path, np.asarray(array, dtype=np.float64))
    return numbers.ravel() if is_vector else numbers


def _from_text(path: Path) -> NDArray[np.float64]:
    """Return numbers, one a line or all on one line."""
    with reading_from(path), open(path, encoding="ascii", errors="replace") as file:
        numbers = _table(path, (line.replace(",", " ") for line in file))
    if min(numbers.shape) > 1:
        raise DataError(f"{path}: a table, expected one vector. Save many classes with numpy.save.")
    return numbers.ravel()


def _table(path: Path, lines: Iterable[str]) -> NDArray[np.float64]:
    """Return the numbers of text, shape (lines, numbers of each line)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of no data
            numbers = np.loadtxt(lines, ndmin=2)
    except ValueError as error:
        raise DataError(
            f"{path}: {reason_of(error):.200}. Expected a LIBLINEAR model or coefficients, not "
            "data."
        ) from error
    return _checked(path, numbers)


def _checked(path: Path, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    if not (np.abs(numbers) <= HUGE).all():
        raise DataError(f"{path}: holds nan or inf, or a coefficient beyond {HUGE:g}. Rescale it.")
    return numbers


def _from_liblinear(path: Path, index_base: Literal[0, 1]) -> LinearModel:
    with reading_from(path), open(path, encoding="ascii", errors="replace") as file:
        solver, labels, columns, augmentation = _liblinear_head(path, file)
        table = _table(path, file)
    # Crammer and Singer's have one weight a column and class even for two classes
    width = 1 if len(labels) in (0, 2) and solver != "MCSVM_CS" else len(labels)
    shape = columns + (augmentation >= 0), width
    with open(path, "rb") as file_end:
        file_end.seek(-1, os.SEEK_END)
        is_whole = file_end.read() == b"\n"  # as LIBLINEAR ends all lines
    if not is_whole or (table.shape != shape and shape[0]):
        fault = "a last line without its end" if not is_whole else f"weights of shape {table.shape}"
        raise DataError(
            f"{path}: {fault}, expected {shape[0]} lines of {width} by nr_feature {columns} and "
            f"bias {augmentation:g}. The file is cut short or edited; write it again."
        )
    by_class = _in_order_of_classes(table.reshape(shape), labels)
    settings = {"source": "LIBLINEAR", "solver_type": solver, "rho": max(augmentation, 0.0)}
    from streamtron.core.losses import LOSSES  # loads numba

    alike = solver.replace("L1R", "L2R")
    settings |= [("loss", loss.name) for loss in LOSSES.values() if alike in loss.liblinear]
    if alike != solver:
        settings["penalty"] = "l1"
    if not labels:
        settings["intercept"] = "penalised"  # which is no default of regression
    return LinearModel(
        weights=by_class[:columns].T,
        bias=augmentation * by_class[-1] if augmentation >= 0 else np.zeros(by_class.shape[1:]),
        classes=tuple(sorted(labels)),
        settings=settings,
        certificate={},
        reading={"index_base": index_base},
    )


def _liblinear_head(path: Path, lines: Iterable[str]) -> tuple[str, list[float], int, float]:
    """Read solver, labels, columns and -B (below 0: no bias), up to the line ``w``."""
    head: dict[str, str] = {}
    for line in lines:
        key, _, value = line.strip().partition(" ")
        head[key] = value.strip()
        if key == "w":
            break
    solver, classes = head.get("solver_type", ""), head.get("nr_class", "")
    numeric = solver in _LIBLINEAR_REGRESSORS
    if not (numeric or solver in _LIBLINEAR_CLASSIFIERS) or classes in ("0", "1"):
        raise DataError(
            f"{path}: a LIBLINEAR model with solver_type {solver} and nr_class {classes}. Only a "
            "classifier of two classes or more (-s 0 to 7) or of numbers (-s 11 to 13) can be read."
        )
    try:
        labels = [float(int(label)) for label in ([] if numeric else head["label"].split())]
        columns, augmentation = int(head["nr_feature"]), float(head["bias"])
        alike = numeric or len(set(labels)) == len(labels) == int(classes) > 0
        alike &= all(abs(label) < 2.0**53 for label in labels)  # beyond, it would be another one
        likely = -math.inf < augmentation <= 0.0 or 1e-30 <= augmentation <= 1e30
        if not alike or columns < 0 or not likely or "w" not in head:
            raise ValueError
    except (KeyError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: the head of a LIBLINEAR model is incomplete or wrong. Wanted nr_class, as "
            "many labels, nr_feature, bias and w; write the model again."
        ) from error
    return solver, labels, columns, augmentation


def _in_order_of_classes(table: NDArray[np.float64], labels: list[float]) -> NDArray[np.float64]:
    """Return weights of shape (lines,), of two labels towards the larger, or (lines, labels)."""
    if not labels:
        return table[:, 0]
    if table.shape[1] == 1:  # positive towards the label that LIBLINEAR names first
        return table[:, 0] if labels[0] > labels[1] else -table[:, 0]
    rising = table[:, np.argsort(labels)]
    return rising[:, 1] - rising[:, 0] if len(labels) == 2 else rising
