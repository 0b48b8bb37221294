"""Write a model as a graph of ONNX, behind what skl2onnx makes of its transformer."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.extras import library
from streamtron.core.text import reason_of
from streamtron.data.transform import Transformer
from streamtron.model.calibration import probability_map
from streamtron.model.linear_model import LinearModel
from streamtron.model.pipelines import class_array, on_features

Values = Mapping[str, Any]

LARGEST_ONNX = 2**31 - 2**20
"""Bytes of weights at most: an ONNX file with its weights inside is below 2 GiB."""

CHECKED, APART = 1_000, 1e-4
"""Rows on which the decisions of a graph of raw columns are compared, and how far they may be
apart."""

ELSE = ", or export as liblinear or json"

LOCALE = b"C.UTF-8"
"""Whose lower case is Python's; that of skl2onnx, en_US, is not on every machine."""

WORDS, WORD = b"[a-zA-Z0-9_]+", rb"[\p{L}\p{N}_][\p{L}\p{N}_]+"
"""What skl2onnx takes for the usual token_pattern, of English alone, and that pattern for RE2."""

_OPSETS = {"": 17, "ai.onnx.ml": 3}

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

_PROBABLE = "code = ArgMax<axis=1, keepdims=0>(probabilities) label = Gather(classes, code)"
_PROBABLE_LABELS = "labels = Greater(probabilities, half)"
"""How the prediction of a calibrated model follows from the probabilities."""

_SUMS = {
    "two classes": "other = Sub(one, each) probabilities = Concat<axis=1>(other, each)",
    "multiclass": "total = ReduceSum(each, one_axis) some = Greater(total, zero) "
    "share = Div(each, total) probabilities = Where(some, share, even)",
    "multilabel": "probabilities = Identity(each)",
}
"""Kind of model → how the probabilities follow from that of each direction, shape (rows, K)."""

_TYPES = {"i": "int64", "f": "double", "b": "bool", "O": "string"}


def onnx_bytes(model: LinearModel, rows: Any = None) -> bytes:
    """Return an ONNX model; ``rows`` : raw ones, a data frame or documents, on which it is run
    at once and its decisions are compared."""
    if model.transformer is None:
        graph = _graph(model)
    else:
        graph = _behind(model.transformer, _graph(on_features(model)))
        if rows is not None and len(rows):
            _check(model, model.transformer, graph, rows)
    return bytes(graph.SerializeToString(deterministic=True))


def _graph(model: LinearModel) -> Any:
    """Return the graph of a model of features, of standard operators on float64."""
    onnx = library("onnx", "export", "format onnx", ELSE)
    if (size := 8 * math.prod(model.sparse_weights.shape)) > LARGEST_ONNX:
        raise SettingsError(
            f"format onnx: {size:,} bytes of weights, and an ONNX file has less than 2 GiB. Export "
            "as json."
        )
    from onnx import numpy_helper, parser

    classes = class_array(model)
    outputs, nodes = _GRAPHS[model.kind]
    nodes = nodes.replace("Identity", "Exp") if model.log_link else nodes
    outputs = outputs.format(classes=_TYPES[classes.dtype.kind], K=len(classes))
    head = "rows = Cast<to=11>(X) products = MatMul(rows, weights) scores = Add(products, bias)"
    constants = {"weights": model.weights.T, "bias": model.bias, "classes": classes, "zero": 0.0}
    if (calibration := probability_map(model)) is not None:
        directions = calibration["directions"]
        make = {"sigmoid": _sigmoid, "isotonic": _isotonic, "softmax": _softmax}
        extra_nodes, extra_constants = make[calibration["method"]](directions)
        shares = f"column = Reshape(scores, shape) {extra_nodes} {_SUMS[model.kind]}"
        if model.calibration is not None:
            nodes = _PROBABLE_LABELS if model.kind == "multilabel" else _PROBABLE
        nodes = f"{shares} {nodes}"
        constants |= {
            "shape": np.array([-1, len(directions)]),
            **extra_constants,
            "one": 1.0,
            "one_axis": np.array([1]),
            "even": 1.0 / len(classes),
            "half": 0.5,
        }
        outputs += f", double[N, {len(classes)}] probabilities"
    opsets = ", ".join(f'"{name}": {number}' for name, number in _OPSETS.items() if not name)
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: [{opsets}], producer_name: "streamtron"> '
        f"streamtron (float[N, {model.columns}] X) => ({outputs}) {{ {head} {nodes} }}"
    )
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(constants[name]), name)
        for name in constants
        if name in used
    )
    onnx.helper.set_model_props(proto, {"classes": json.dumps(model.classes)})
    onnx.checker.check_model(proto)
    return proto


def _softmax(directions: Sequence[Values]) -> tuple[str, dict[str, Any]]:
    """Return the same of all classes together."""
    return "each = Softmax<axis=1>(column)", {}


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


# -- the transformer -----------------------------------------------------------------------------


def _behind(transformer: Transformer, graph: Any) -> Any:
    """Return a graph behind that of a transformer: inputs of shape (rows, 1), a column each."""
    skl2onnx = library("skl2onnx", "export", "format onnx of a transformer", ELSE)
    from onnx.compose import add_prefix, merge_models
    from onnx.helper import make_opsetid
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    of_kind = {"number": FloatTensorType, "category": StringTensorType}
    of_kind |= dict.fromkeys(("text", "documents"), StringTensorType)
    if odd := [name for name, kind in transformer.inputs if kind not in of_kind]:
        raise SettingsError(
            f"format onnx: column {odd[0]!r} holds dates or lists, for which ONNX has no operators."
            " Export as sklearn or json."
        )
    inputs = [(name, of_kind[kind]([None, 1])) for name, kind in transformer.inputs]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator = transformer.estimator
            head = skl2onnx.to_onnx(estimator, initial_types=inputs, target_opset=_OPSETS)
            for node in head.graph.node:
                if node.op_type == "StringNormalizer":
                    _set(node, "locale", LOCALE)
                if node.op_type == "Tokenizer" and WORDS in [x.s for x in node.attribute]:
                    _set(node, "tokenexp", WORD)
            opsets = {entry.domain: entry.version for entry in head.opset_import} | _OPSETS
            for proto in (head, graph):
                del proto.opset_import[:]
                proto.opset_import.extend(itertools.starmap(make_opsetid, opsets.items()))
            head.ir_version, [features] = graph.ir_version, head.graph.output
            head = add_prefix(head, "/", rename_inputs=False)
            graph = add_prefix(graph, "//", rename_outputs=False)
            merged = merge_models(head, graph, io_map=[(f"/{features.name}", "//X")])
    except Exception as error:  # of steps without a converter, of which there are many kinds
        reason = reason_of(error)
        raise SettingsError(
            f"format onnx: skl2onnx cannot convert the transformer ({reason:.200}). Export as "
            "sklearn or json."
        ) from error
    return merged


def _set(node: Any, name: str, value: bytes) -> None:
    """Give a node of a graph an attribute."""
    from onnx.helper import make_attribute

    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, make_attribute(name, value)])


def _check(model: LinearModel, transformer: Transformer, graph: Any, rows: Any) -> None:
    """Refuse a graph whose decisions differ from the model's on some rows."""
    onnxruntime = library("onnxruntime", "export", "format onnx of a transformer", ELSE)
    expected = model.predict(rows) if model.regression else model.decision_function(rows)
    try:
        session = onnxruntime.InferenceSession(
            graph.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        output = "prediction" if model.regression else "scores"
        [decided] = session.run([output], onnx_inputs(transformer, rows))
    except Exception as error:  # of onnxruntime, which has no base of its own
        reason = reason_of(error)
        raise SettingsError(
            f"format onnx: onnxruntime refuses the graph ({reason:.200}). Export as sklearn or "
            "json."
        ) from error
    apart = float(np.abs(decided - expected).max(initial=0.0))
    if not apart <= APART:
        raise SettingsError(
            f"format onnx: a decision differs by {apart:.2g} from the model's on the first "
            f"{len(expected):,} rows, as where words or missing values are told otherwise. Export "
            "as sklearn or json."
        )


def onnx_inputs(transformer: Transformer, rows: Any) -> dict[str, NDArray[Any]]:
    """Return raw rows as the inputs of the graph, shape (rows, 1): numbers as float32, with NaN for
    missing ones, categories as text, with "nan" for these, and documents, with ""."""
    from streamtron.model.scoring import raw_columns

    columns, missing = raw_columns(transformer, rows), defaultdict(str, category="nan")
    return {
        name: (
            np.asarray(columns[name], np.float32)
            if kind == "number"
            else np.array(
                [missing[kind] if x is None or x != x else x for x in columns[name]], object
            )
        ).reshape(-1, 1)
        for name, kind in transformer.inputs
    }
