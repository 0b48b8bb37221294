"""Converters to ONNX of two steps of scikit-learn as ``--columns`` has them, which skl2onnx has in
part: imputers with an indicator, and one-hot encoders of text that know infrequent categories."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from skl2onnx import update_registered_converter
from skl2onnx.common.data_types import FloatTensorType
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from streamtron.data.packed import estimators_in

_FLOAT, _INT64 = 1, 7
"""ONNX's numbers of types."""


class _Imputer(SimpleImputer):  # type: ignore[misc]
    """An imputer that skl2onnx takes for another type."""


class _Encoder(OneHotEncoder):  # type: ignore[misc]
    """An encoder that skl2onnx takes for another type."""


def convertible(estimator: Any) -> Any:
    """Return a copy whose steps are converted by this module where it can."""
    made = copy.deepcopy(estimator)
    for step in estimators_in(made):
        if type(step) is SimpleImputer and getattr(step, "indicator_", None) is not None:
            if np.isfinite(np.asarray(step.statistics_, float)).all():
                step.__class__ = _Imputer
        elif type(step) is OneHotEncoder and step.drop is None and hasattr(step, "categories_"):
            keys = [_keys(categories) for categories in step.categories_]
            texts = all(isinstance(key, str) for names in keys for key in names)
            if texts and all(len({*names}) == len(names) for names in keys):
                step.__class__ = _Encoder
    return made


def _keys(categories: Any) -> list[Any]:
    """Return categories as the graph has them: what is missing is empty text."""
    return ["" if x is None or x != x else x for x in categories.tolist()]


class _Nodes:
    """Adds nodes to a graph; a name stands for what a node makes."""

    def __init__(self, scope: Any, container: Any) -> None:
        self._scope, self._container = scope, container

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node and return the name of what it makes."""
        domain, version = attributes.pop("domain", ""), attributes.pop("version", 17)
        made = output or self._scope.get_unique_variable_name(kind)
        how = {"op_domain": domain, "op_version": version, "name": f"/{made}"}
        self._container.add_node(kind, [*inputs], made, **how, **attributes)
        return str(made)

    def rows(self, operator: Any) -> str:
        """Return the name of a step's input, whose columns may come one by one."""
        inputs = [value.full_name for value in operator.inputs]
        return inputs[0] if len(inputs) == 1 else self.add("Concat", *inputs, axis=1)

    def constant(self, type_: int, values: Any) -> str:
        """Add a constant and return its name."""
        array, name = np.asarray(values), self._scope.get_unique_variable_name("constant")
        self._container.add_initializer(name, type_, [*array.shape], array.ravel().tolist())
        return str(name)


def _impute(scope: Any, operator: Any, container: Any) -> None:
    imputer, nodes = operator.raw_operator, _Nodes(scope, container)
    rows = nodes.rows(operator)
    missing = nodes.add("IsNaN", rows)
    statistics = nodes.constant(_FLOAT, np.asarray(imputer.statistics_, float)[None, :])
    filled = nodes.add("Where", missing, statistics, rows)
    columns = nodes.constant(_INT64, imputer.indicator_.features_)
    marks = nodes.add("Gather", nodes.add("Cast", missing, to=_FLOAT), columns, axis=1)
    nodes.add("Concat", filled, marks, axis=1, output=operator.outputs[0].full_name)


def _encode(scope: Any, operator: Any, container: Any) -> None:
    encoder, nodes = operator.raw_operator, _Nodes(scope, container)
    rows = nodes.rows(operator)
    values, blocks = nodes.constant(_FLOAT, [0.0, 1.0]), []
    for j, categories in enumerate(encoder.categories_):
        places, infrequent = np.arange(len(categories)), None
        if encoder._infrequent_enabled and encoder._default_to_infrequent_mappings[j] is not None:
            places = encoder._default_to_infrequent_mappings[j]
            infrequent = int(places.max())
        depth = int(places.max()) + 1
        knows = infrequent is not None and encoder.handle_unknown == "infrequent_if_exist"
        at = nodes.constant(_INT64, [j])
        column = nodes.add("ArrayFeatureExtractor", rows, at, domain="ai.onnx.ml", version=1)
        code = nodes.add(
            "LabelEncoder",
            column,
            domain="ai.onnx.ml",
            version=2,
            keys_strings=_keys(categories),
            values_int64s=places.tolist(),
            default_int64=infrequent if knows else depth,
        )
        # what is not known stands in a last column, which is not taken
        one_hot = nodes.add("OneHot", code, nodes.constant(_INT64, depth + 1), values, axis=-1)
        flat = nodes.add("Reshape", one_hot, nodes.constant(_INT64, [-1, depth + 1]))
        blocks.append(nodes.add("Gather", flat, nodes.constant(_INT64, np.arange(depth)), axis=1))
    nodes.add("Concat", *blocks, axis=1, output=operator.outputs[0].full_name)


def _width(operator: Any) -> None:
    step = operator.raw_operator
    if isinstance(step, _Imputer):
        width = len(step.statistics_) + len(step.indicator_.features_)
    else:
        width = len(step.get_feature_names_out())
    operator.outputs[0].type = FloatTensorType([None, width])


update_registered_converter(_Imputer, "StreamtronImputer", _width, _impute)
update_registered_converter(_Encoder, "StreamtronEncoder", _width, _encode)
