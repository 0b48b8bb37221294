"""Export a model to what other programs read: LIBLINEAR, ONNX, scikit-learn, JSON."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from streamtron.core.errors import SettingsError
from streamtron.core.extras import library
from streamtron.core.files import write_atomically
from streamtron.core.losses import loss_of
from streamtron.model.linear_model import LinearModel

Format = Literal["liblinear", "onnx", "sklearn", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)


def export(
    model: LinearModel, path: str | os.PathLike[str], format: Format, *, rows: Any = None
) -> None:
    """Write a model for another program; ``path`` is written completely or not at all.

    Decisions there are w·x + bias in float64, as here, but summed in another order: they differ by
    rounding, at most (columns + 8) · 2⁻⁵³ · (Σ |w_j x_j| + |bias|).

    * ``liblinear``: LIBLINEAR's text model, which ``streamtron.load`` reads too. Feature j + 1 is
      ``weights[…, j]``. Classes must be integers. It has no softmax, no ``poisson``, and no place
      for a calibration: its labels are those of the decisions. Of the logistic loss ``predict -b
      1`` gives the probabilities. Of ``squared_error`` and ``huber``, which LIBLINEAR does not
      solve, it is an ``L2R_L2LOSS_SVR`` with the same predictions.
    * ``onnx``: operators of ONNX 17. Input ``X``, float32 of shape (rows, columns), dense; outputs
      ``scores``, float64 of shape (rows,) for two classes, else (rows, K), and ``label``, of the
      classes' own type, int64 for whole numbers; of a multilabel model ``labels``, bool (rows, K).
      Of a model with a transformer the graph is that which skl2onnx makes of it and the model:
      the inputs are its columns, by name and of shape (rows, 1): numbers as float32, categories and
      texts as strings. It is refused where a step has no converter.
      Of a calibrated model, of the logistic loss and of softmax also ``probabilities``, float64
      (rows, classes), as ``predict_proba``; the label of a calibrated model is the most probable
      one. Of regression the one output is ``prediction``, float64
      of shape (rows,).
    * ``sklearn``: a fitted ``LinearSVC`` in the skops format, which holds no pickle; read it with
      ``skops.io.load``. Of the logistic loss and softmax it is a ``LogisticRegression``; of more
      than two classes, but for softmax, a ``OneVsRestClassifier`` of these, which does not know the
      class weights. A
      calibrated model becomes a ``CalibratedClassifierCV`` of it, with the same ``predict_proba``
      and ``predict``. Of many classes of which few
      weights are not 0, ``coef_`` is sparse. skops asks that the classes of the last two are named:
      ``trusted=skops.io.get_untrusted_types(file=path)``. Of regression it is a ``Ridge`` or
      ``HuberRegressor`` with alpha = 1/C, a ``LinearSVR``, or a ``PoissonRegressor`` with alpha =
      1/(C · rows). Of a model with a transformer it is a ``Pipeline`` of this one and the
      estimator.
    * ``json``: every model; the weights that are not 0 by column and, where there are names, by
      name, in full precision; all settings; how rows are read or made of documents (``reading``);
      and whether ``decisions`` or ``probabilities`` choose the label (``label_by``).

    Parameters
    ----------
    model : its column j is the matrix column j of the other program; there is no base to remove.
    format : one of these names; ``"onnx"`` and ``"sklearn"`` need ``streamtron[export]``.
    rows : raw rows, a data frame or documents, for ``"onnx"`` of a model with a transformer: the
        graph is run on them, and refused where a decision differs by more than 1e-4.

    Raises
    ------
    SettingsError : an unknown format, a model that the format cannot hold, or a library that is not
        installed.
    MachineError : the file cannot be written.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> model = LinearModel(np.array([1.0, -2.0]), 0.5, (-1.0, 1.0), {}, None, {"index_base": 1})
    >>> with tempfile.TemporaryDirectory() as root:
    ...     path = pathlib.Path(root, "model.txt")
    ...     export(model, path, "liblinear")
    ...     path.read_text().split("w\\n")[1].split()
    ['1', '-2', '0.5']
    """
    if format not in FORMATS:
        raise SettingsError(f"format {format!r}: expected one of {', '.join(FORMATS)}.")
    if format == "onnx":
        from streamtron.model.onnx_graph import onnx_bytes

        return write_atomically(path, [onnx_bytes(model, rows)])
    return write_atomically(path, _WRITERS[format](model))


_ELSE = ", or export as liblinear or json"

LINES = 4096
"""Columns at a time whose weights are written as text."""


def _liblinear(model: LinearModel) -> Iterator[bytes]:
    """Yield LIBLINEAR's text model; its bias is the weight of a feature of value 1."""
    if model.kind == "multilabel":
        raise SettingsError(
            "a multilabel model, and LIBLINEAR gives a row one label. Fit with --multiclass, or "
            "keep the streamtron model."
        )
    if not loss_of(model.settings).liblinear:
        raise SettingsError(
            f"the loss {model.settings['loss']}, which LIBLINEAR does not have. Export as onnx, "
            "sklearn or json."
        )
    # LIBLINEAR's labels are int in C
    if odd := [a for a in model.classes if isinstance(a, str) or a % 1 or abs(a) >= 2**31]:
        raise SettingsError(
            f"the class {odd[-1]!r}; a LIBLINEAR model holds integers only. Fit on integer labels, "
            "or keep the streamtron model."
        )
    # LIBLINEAR's weights of two classes point to the label that it names first
    named = model.classes[::-1] if model.kind == "two classes" else model.classes
    labels = f"label {' '.join(str(int(label)) for label in named)}\n" if named else ""
    solver = loss_of(model.settings).liblinear[0]
    if model.settings.get("penalty") == "l1" and not model.regression:  # which has no L1R there
        solver = solver.replace("L2R", "L1R")
    yield (
        f"solver_type {solver}\nnr_class {len(named) or 2}\n{labels}"
        f"nr_feature {model.columns}\nbias 1\nw\n"
    ).encode()
    by_column = model.sparse_weights.T.tocsr()
    for start in range(0, model.columns, LINES):
        for weights in by_column[start : start + LINES].toarray():
            yield _numbers(weights)
    yield _numbers(model.bias)


def _numbers(weights: ArrayLike) -> bytes:
    return ("".join(f"{weight:.17g} " for weight in np.ravel(weights)) + "\n").encode()


def _sklearn(model: LinearModel) -> Iterable[bytes]:
    """Return the estimator in the skops format; a vocabulary is a thirtieth of it if packed."""
    dumps = library("skops.io", "export", "format sklearn", _ELSE).dumps
    return [dumps(model.to_sklearn(), compression=zipfile.ZIP_DEFLATED)]


def _json(model: LinearModel) -> Iterator[bytes]:
    """Yield an object with one entry of ``directions``, of many classes one a class."""
    head: dict[str, Any] = {
        "kind": model.kind,
        "classes": list(model.classes),
        "columns": model.columns,
        "index_base": model.index_base,
        "settings": model.settings,
        "reading": dict(model.reading),
        "certificate": model.certificate,
        "calibration": model.calibration,
        "label_by": "decisions" if model.calibration is None else "probabilities",
    }
    head["directions"] = []
    for direction in model.directions():
        at = direction.nonzero.indices
        names = [*map(model.name_of, at.tolist())]
        plain: dict[str, Any] = {"positive": direction.positive, "bias": direction.bias}
        plain |= {"column": (at + model.index_base).tolist()}
        plain |= {"name": names} if model.has_names else {}
        head["directions"].append(plain | {"weight": direction.nonzero.data.tolist()})
    yield json.dumps(head, ensure_ascii=False).encode()


_WRITERS: dict[str, Callable[[LinearModel], Iterable[bytes]]] = {
    "liblinear": _liblinear,
    "sklearn": _sklearn,
    "json": _json,
}
