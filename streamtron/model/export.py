"""Export a model to what other programs read: LIBLINEAR, ONNX, scikit-learn, JSON."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from streamtron.core.errors import SettingsError
from streamtron.core.extras import library
from streamtron.core.files import write_atomically
from streamtron.core.losses import loss_of
from streamtron.model.calibration import probability_map
from streamtron.model.linear_model import LinearModel

Format = Literal["liblinear", "onnx", "sklearn", "json"]
Values = Mapping[str, Any]
FORMATS: tuple[Format, ...] = get_args(Format)

LARGEST_ONNX = 2**31 - 2**20
"""Bytes of weights at most: an ONNX file with its weights inside is below 2 GiB."""


def export(model: LinearModel, path: str | os.PathLike[str], format: Format) -> None:
    """Write a model for another program; ``path`` is written completely or not at all.

    Decisions there are w·x + bias in float64, as here, but summed in another order: they differ by
    rounding, at most (columns + 8) · 2⁻⁵³ · (Σ |w_j x_j| + |bias|).

    * ``liblinear``: LIBLINEAR's text model, which ``streamtron.load`` reads too. Feature j + 1 is
      ``weights[…, j]``. Classes must be integers. It has no place for a calibration; of the
      logistic loss ``predict -b 1`` gives the probabilities. Of ``squared_error`` and ``huber``,
      which LIBLINEAR does not solve, it is an ``L2R_L2LOSS_SVR`` with the same predictions.
    * ``onnx``: operators of ONNX 17. Input ``X``, float32 of shape (rows, columns), dense; outputs
      ``scores``, float64 of shape (rows,) for two classes, else (rows, K), and ``label``, of the
      classes' own type, int64 for whole numbers; of a multilabel model ``labels``, bool (rows, K).
      Of a model with a recipe the inputs are its columns, by name and of shape (rows,): numbers as
      float64, dates as float64 seconds since 1970, categories and texts as strings.
      Of a calibrated model, and of the logistic loss, also ``probabilities``, float64
      (rows, classes), as ``predict_proba``. Of regression the one output is ``prediction``, float64
      of shape (rows,).
    * ``sklearn``: a fitted ``LinearSVC`` in the skops format, which holds no pickle; read it with
      ``skops.io.load``. Of the logistic loss it is a ``LogisticRegression``; of more than two
      classes a ``OneVsRestClassifier`` of these, which does not know the class weights. A
      calibrated model becomes a ``CalibratedClassifierCV`` of it, of which ``predict_proba`` is
      that of the model and ``predict`` takes the most probable class. Of many classes of which few
      weights are not 0, ``coef_`` is sparse. skops asks that the classes of the last two are named:
      ``trusted=skops.io.get_untrusted_types(file=path)``. Of regression it is a ``Ridge`` or
      ``HuberRegressor`` with alpha = 1/C, or a ``LinearSVR``.
    * ``json``: every model; the weights that are not 0 by column and, where there are names, by
      name, in full precision; all settings; how rows are read or made of documents (``reading``).

    Parameters
    ----------
    model : its column j is the matrix column j of the other program; there is no base to remove.
    format : one of these names; ``"onnx"`` and ``"sklearn"`` need ``streamtron[export]``.

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


_GRAPHS = {
    "two classes": (
        "{classes}[N] label, double[N] scores",
        "positive = Greater(scores, zero) code = Cast<to=7>(positive) "
        "label = Gather(classes, code)",
    ),
    "multiclass": (
        "{classes}[N] label, double[N, {K}] scores",
        "code = ArgMax<axis=1, keepdims=0>(scores) label = Gather(classes, code)",
    ),
    "multilabel": ("bool[N, {K}] labels, double[N, {K}] scores", "labels = Greater(scores, zero)"),
    "regression": ("double[N] prediction", "prediction = Identity(scores)"),
}
"""Kind of model → outputs, and how the prediction follows from the scores, in ONNX's text syntax;
the numbers of its types: 7 is int64, 11 is double."""

_SUMS = {
    "two classes": "other = Sub(one, each) probabilities = Concat<axis=1>(other, each)",
    "multiclass": "total = ReduceSum(each, one_axis) some = Greater(total, zero) "
    "share = Div(each, total) probabilities = Where(some, share, even)",
    "multilabel": "probabilities = Identity(each)",
}
"""Kind of model → how the probabilities follow from that of each direction, shape (rows, K)."""

_ONNX_TYPES = {"i": "int64", "f": "double", "b": "bool", "O": "string"}


def _onnx(model: LinearModel) -> Iterable[bytes]:
    """Return an ONNX model of standard operators on float64; ``LinearClassifier`` has float32."""
    onnx = library("onnx", "export", "format onnx", _ELSE)
    if (size := 8 * math.prod(model.sparse_weights.shape)) > LARGEST_ONNX:
        raise SettingsError(
            f"format onnx: {size:,} bytes of weights, and an ONNX file has less than 2 GiB. Export "
            "as json."
        )
    from onnx import numpy_helper, parser

    from streamtron.model.onnx_columns import graph_of  # loads pyarrow

    classes = class_array(model)
    outputs, nodes = _GRAPHS[model.kind]
    outputs = outputs.format(classes=_ONNX_TYPES[classes.dtype.kind], K=len(classes))
    inputs, head, constants, attributes = graph_of(model)
    constants = {**constants, "classes": classes, "zero": 0.0}
    domains = {"ai.onnx.ml": 3, "com.microsoft": 1}
    opsets = "".join(f', "{name}": {domains[name]}' for name in domains if name in head)
    if (calibration := probability_map(model)) is not None:
        directions = calibration["directions"]
        make = _sigmoid if calibration["method"] == "sigmoid" else _isotonic
        extra_nodes, extra_constants = make(directions)
        nodes += f" column = Reshape(scores, shape) {extra_nodes} {_SUMS[model.kind]}"
        constants |= {
            "shape": np.array([-1, len(directions)]),
            **extra_constants,
            "one": 1.0,
            "one_axis": np.array([1]),
            "even": 1.0 / len(classes),
        }
        outputs += f", double[N, {len(classes)}] probabilities"
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17{opsets}], producer_name: "streamtron"> '
        f"streamtron ({inputs}) => ({outputs}) {{ {head} {nodes} }}"
    )
    for node in proto.graph.node:
        for name, value in attributes.get(node.output[0], {}).items():
            node.attribute.append(onnx.helper.make_attribute(name, value))
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(constants[name]), name)
        for name in constants
        if name in used
    )
    if model.recipe is not None:
        _name_inputs(proto.graph, model.recipe.names)
    onnx.helper.set_model_props(proto, {"classes": json.dumps(model.classes)})
    onnx.checker.check_model(proto)
    return [proto.SerializeToString(deterministic=True)]


def _name_inputs(graph: Any, names: Sequence[str]) -> None:
    """Call the inputs as the columns, and what lies within so that no column is called like it."""
    public = {value.name: value.name for value in graph.output}
    public |= {value.name: name for value, name in zip(graph.input, names, strict=True)}
    for entry in (*graph.input, *graph.initializer):
        entry.name = public.get(entry.name, f"/{entry.name}")
    for node in graph.node:
        for edges in (node.input, node.output):
            edges[:] = [public.get(edge, f"/{edge}") for edge in edges]


def _sigmoid(directions: Sequence[Values]) -> tuple[str, dict[str, Any]]:
    """Return nodes that make of scores, ``column``, the probabilities ``each``, and constants."""
    a, b = (np.array([-float(direction[name]) for direction in directions]) for name in "ab")
    nodes = "scaled = Mul(column, a) logits = Add(scaled, b) each = Sigmoid(logits)"
    return nodes, {"a": a, "b": b}


def _isotonic(directions: Sequence[Values]) -> tuple[str, dict[str, Any]]:
    """Return the same of tables, between whose decisions a binary search finds the score."""
    size = 1 << (max(len(direction["decisions"]) for direction in directions) - 1).bit_length()
    x, y, slope = (np.full((len(directions), size), fill) for fill in (np.inf, 0.0, 0.0))
    for k, direction in enumerate(directions):
        n = len(direction["decisions"])
        x[k, :n], y[k, :n] = direction["decisions"], direction["probabilities"]
        slope[k, : n - 1] = np.diff(y[k, :n]) / np.diff(x[k, :n])
    constants: dict[str, Any] = {"x": x.ravel(), "y": y.ravel(), "slope": slope.ravel()}
    at, nodes, step = "start", "", size // 2
    constants[at] = size * np.arange(len(directions))
    while step:  # the last decision not above the score is at ``at``, or up to 2 step − 1 on
        constants[f"step{step}"] = np.array(step)
        nodes += (
            f"next{step} = Add({at}, step{step}) edge{step} = Gather(x, next{step}) "
            f"left{step} = LessOrEqual(edge{step}, column) "
            f"at{step} = Where(left{step}, next{step}, {at}) "
        )
        at, step = f"at{step}", step // 2
    nodes += (
        f"x_at = Gather(x, {at}) y_at = Gather(y, {at}) slope_at = Gather(slope, {at}) "
        "beyond = Sub(column, x_at) over = Relu(beyond) rise = Mul(slope_at, over) "
        "each = Add(y_at, rise)"
    )
    return nodes, constants


def class_array(model: LinearModel) -> np.ndarray[Any, Any]:
    """Return the classes as an array: int64 if they are whole numbers."""
    is_text = isinstance(next(iter(model.classes), None), str)
    classes = np.array(model.classes, dtype=object if is_text else None)
    if classes.dtype.kind == "f" and not (classes % 1).any() and (np.abs(classes) < 2**53).all():
        return classes.astype(np.int64)
    return classes


def _sklearn(model: LinearModel) -> Iterable[bytes]:
    """Return the estimator in the skops format; a vocabulary is a thirtieth of it if packed."""
    dumps = library("skops.io", "export", "format sklearn", _ELSE).dumps
    return [dumps(model.to_sklearn(), compression=zipfile.ZIP_DEFLATED)]


def _json(model: LinearModel) -> Iterator[bytes]:
    """Yield an object with one entry of ``directions``, of many classes one a class."""
    head = {
        "kind": model.kind,
        "classes": list(model.classes),
        "columns": model.columns,
        "index_base": model.index_base,
        "settings": model.settings,
        "reading": dict(model.reading),
        "certificate": model.certificate,
        "calibration": model.calibration,
    }
    yield json.dumps(head, ensure_ascii=False, indent=1).removesuffix("\n}").encode()
    start, names = ',\n "directions": [', model.feature_names
    for direction in model.directions():
        at = direction.nonzero.indices
        plain: dict[str, Any] = {"positive": direction.positive, "bias": direction.bias}
        plain["column"] = (at + model.index_base).tolist()
        if names:
            plain["name"] = [names[j] for j in at]
        plain["weight"] = direction.nonzero.data.tolist()
        yield f"{start}\n  {json.dumps(plain, ensure_ascii=False)}".encode()
        start = ","
    yield b"\n ]\n}\n"


_WRITERS: dict[str, Callable[[LinearModel], Iterable[bytes]]] = {
    "liblinear": _liblinear,
    "onnx": _onnx,
    "sklearn": _sklearn,
    "json": _json,
}
