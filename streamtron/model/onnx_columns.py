"""Say in operators of ONNX what the columns of a recipe add to the scores.

Nodes are in ONNX's text syntax; ``@`` stands for what tells the columns apart. They lead from a
column's input ``x``, shape (N,), to its ``part`` of the scores, float64 of shape (N, K). Types are
numbers there: 1 is float32, 7 is int64, 11 is float64.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.data.formats.category_column import CategoryColumn
from streamtron.data.formats.date_column import PARTS, DateColumn
from streamtron.data.formats.number_column import NumberColumn
from streamtron.data.formats.recipe_column import REFUSED, Column
from streamtron.data.formats.text_column import TextColumn
from streamtron.model.column_transformers import written
from streamtron.model.linear_model import LinearModel
from streamtron.model.pipelines import recipe_weights

Values = dict[str, Any]
Weights = NDArray[np.float64]
"""Of the features of a column, shape (features, K)."""

OUTPUTS = {"label", "labels", "scores", "probabilities", "prediction"}

LOCALE = "C.UTF-8"
"""Whose lower case is Python's, but for two letters; ONNX's own, en_US, is not in containers."""

WORD = r"[\p{L}\p{N}_][\p{L}\p{N}_]+"
"""The usual token_pattern in the syntax of RE2."""

_CYCLES = {
    "weekday": (86_400, (3 + np.arange(7)) % 7),
    "hour": (3_600, np.arange(24)),
    "month": (86_400, np.arange(146_097).astype("M8[D]").astype("M8[M]").astype(int) % 12),
}
"""Part of a date → for how many seconds it stays the same, and its places from 1970 on, until all
begins anew."""

_KNOWN = "missing@ = IsNaN(x@) known@ = Where(missing@, fill@, x@) "
_VALUE = "short@ = Cast<to=1>({0}@) value@ = Cast<to=11>(short@) "  # as rows have it
_SCALED = (
    "moved@ = Sub({0}@, center@) scaled@ = Div(moved@, divisor@) tall@ = Unsqueeze(scaled@, axis) "
    + _VALUE.format("tall")
)
_IN_CYCLE = (
    "past_{0}@ = Div(known@, unit_{0}@) whole_{0}@ = Floor(past_{0}@) "
    "time_{0}@ = Cast<to=7>(whole_{0}@) turn_{0}@ = Mod(time_{0}@, cycle_{0}@) "
    "place_{0}@ = Gather(places_{0}@, turn_{0}@) code_{0}@ = Cast<to=7>(place_{0}@) "
    "{0}@ = Gather(w_{0}@, code_{0}@) "
)
_UNLESS_NULL = "gap@ = Unsqueeze(missing@, axis) part@ = Where(gap@, null@, score@) "


class Nodes(NamedTuple):
    """A piece of a graph: its inputs, or the type of a column's; nodes; their constants, by name;
    and those attributes of nodes that are long, by their output."""

    input: str
    text: str
    constants: Values
    attributes: dict[str, Values]


def graph_of(model: LinearModel) -> Nodes:
    """Return the input ``X``, or of a recipe ``x_0``, ``x_1``, … for its columns, and nodes from
    there to ``scores``. SettingsError: a column for which ONNX has no operators, or no name."""
    if (recipe := model.recipe) is None:
        text = "rows = Cast<to=11>(X) products = MatMul(rows, weights) scores = Add(products, bias)"
        weights = {"weights": model.weights.T, "bias": model.bias}
        return Nodes(f"float[N, {model.columns}] X", text, weights, {})
    if clash := OUTPUTS.intersection(recipe.names):
        raise SettingsError(
            f"format onnx: column {min(clash)!r} is called as an output is. Rename it, fit again."
        )
    dense, inputs, text = recipe_weights(model, recipe).toarray().T, list[str](), ""
    constants: Values = {"bias": np.atleast_1d(model.bias), "axis": np.array([1])}
    attributes: dict[str, Values] = {}
    for k, (column, start) in enumerate(zip(recipe.columns, recipe.starts, strict=False)):
        if type(column) not in _MAKERS:
            raise _unknown(column, "lists")
        nodes = _MAKERS[type(column)](column, dense[start : start + column.width])
        inputs.append(f"{nodes.input}[N] x_{k}")
        text += nodes.text.replace("@", f"_{k}")
        constants |= {f"{name}_{k}": value for name, value in nodes.constants.items()}
        attributes |= {f"{name}_{k}": values for name, values in nodes.attributes.items()}
    scores = "Squeeze(wide, axis)" if model.weights.ndim == 1 else "Identity(wide)"
    parts = ", ".join(f"part_{k}" for k in range(len(inputs)))
    text += f"wide = Sum({parts}, bias) scores = {scores}"
    return Nodes(", ".join(inputs), text, constants, attributes)


def _check(column: Column, *plain: str) -> None:
    """Refuse options that are not what they are by default."""
    usual = type(column)("usual")
    if odd := [name for name in plain if getattr(column, name) != getattr(usual, name)]:
        raise _unknown(column, odd[0])


def _unknown(column: Column, what: str) -> SettingsError:
    return SettingsError(
        f"format onnx: column {column.name!r} has {what}, for which ONNX has no operators. "
        f"Export as json{', or as sklearn' * isinstance(column, TextColumn)}."
    )


def _null(column: Column, weights: Weights) -> Weights:
    """Return what a null adds, shape (1, K): where it is refused, NaN."""
    if column.null == "column":
        return weights[-1:]
    return np.full((1, weights.shape[1]), np.nan if column.null == REFUSED else 0.0)


def _number(column: NumberColumn, weights: Weights) -> Nodes:
    constants = {
        "fill": float(column.mean or 0.0),
        "null": _null(column, weights),
        "center": float(column.center),
        "divisor": float(column.divisor or 1.0),
        "weights": weights,
        "row": weights[:1],
        "edges": np.array((column.edges or ())[1:-1]),
    }
    if column.edges is None:
        text = f"{_KNOWN}{_SCALED.format('known')}score@ = MatMul(value@, row@) "
    else:
        text = (
            f"{_KNOWN}tall@ = Unsqueeze(known@, axis) over@ = LessOrEqual(edges@, tall@) "
            "ones@ = Cast<to=7>(over@) code@ = ReduceSum<keepdims=0>(ones@, axis) "
            "score@ = Gather(weights@, code@) "
        )
    last = "part@ = Identity(score@) " if column.null in ("0", "mean") else _UNLESS_NULL
    return Nodes("double", text + last, constants, {})


def _category(column: CategoryColumn, weights: Weights) -> Nodes:
    _check(column, "hash_bits")
    unseen, null = len(weights), len(weights) + 1
    rows = np.concatenate([weights, np.zeros((1, weights.shape[1])), _null(column, weights)])
    places = {"": null} | written(column, [""], _unknown)
    encoder = {"keys_strings": [*places], "values_int64s": [*places.values()]}
    text = "code@ = ai.onnx.ml.LabelEncoder(x@) part@ = Gather(rows@, code@) "
    return Nodes("string", text, {"rows": rows}, {"code": encoder | {"default_int64": unseen}})


def _date(column: DateColumn, weights: Weights) -> Nodes:
    """Make nodes from seconds since 1970."""
    today = np.datetime64(column.at or column.last or "1970-01-01", "D").astype(np.float64)
    constants = {
        "fill": 0.0,
        "null": _null(column, weights),
        "today": today,
        "day": 86_400.0,
        "center": float(column.center),
        "divisor": float(column.divisor or 1.0),
    }
    text, start = _KNOWN, 0
    for part in column.parts:
        stop = start + max(len(PARTS[part]), 1)
        constants[f"w_{part}"], start = weights[start:stop], stop
        if part == "age":
            text += "days@ = Div(known@, day@) old@ = Sub(today@, days@) "
            text += f"{_SCALED.format('old')}age@ = MatMul(value@, w_age@) "
            continue
        text += _IN_CYCLE.format(part)
        seconds, places = _CYCLES[part]
        constants |= {f"unit_{part}": float(seconds), f"cycle_{part}": len(places)}
        constants[f"places_{part}"] = places.astype(np.uint8)
    parts = ", ".join(f"{part}@" for part in column.parts)
    return Nodes("double", f"{text}score@ = Sum({parts}) {_UNLESS_NULL}", constants, {})


def _text(column: TextColumn, weights: Weights) -> Nodes:
    low, high = column.ngram_range
    _check(
        column,
        "hash_bits",
        "analyzer",
        "strip_accents",
        "token_pattern",
        *(["stop_words"] if high > 1 else []),
    )
    grams = [word.split(" ") for word in column.vocabulary or ()]
    order = sorted(range(len(grams)), key=lambda k: len(grams[k]))
    pool = [grams[k] for k in order]
    starts = [sum(len(gram) for gram in pool if len(gram) < n) for n in range(1, high + 1)]
    attributes = {
        "low": {"case_change_action": "LOWER", "is_case_sensitive": 1, "locale": LOCALE},
        "words": {"mark": 0, "mincharnum": 1, "pad_value": "#", "tokenexp": WORD},
        "counts": {
            "mode": "TF",
            "min_gram_length": low,
            "max_gram_length": high,
            "max_skip_count": 0,
            "pool_strings": list(chain(*pool)),
            "ngram_counts": starts,
            "ngram_indexes": order,
        },
    }
    text, last = "low@ = StringNormalizer(x@) words@ = com.microsoft.Tokenizer(low@) ", "times"
    if not column.lowercase:
        text = "words@ = com.microsoft.Tokenizer(x@) "
    text += "counts@ = TfIdfVectorizer(words@) times@ = Cast<to=11>(counts@) "
    for is_asked, name, nodes in (
        (column.binary, "ones", "ones@ = Sign({0}@) "),
        (
            column.sublinear_tf,
            "logs",
            "there@ = Sign({0}@) some@ = Max({0}@, one@) "
            "log@ = Log(some@) logs@ = Add(log@, there@) ",
        ),
        (column.tfidf, "weighted", "weighted@ = Mul({0}@, idf@) "),
        (
            column.norm != "none",
            "normed",  # what is not 0 is 1 at least
            f"norm@ = Reduce{column.norm.upper()}<axes=[1]>({{0}}@) length@ = Max(norm@, one@) "
            "normed@ = Div({0}@, length@) ",
        ),
    ):
        if is_asked:
            text, last = text + nodes.format(last), name
    text += f"{_VALUE.format(last)} part@ = MatMul(value@, weights@) "
    constants = {"weights": weights, "one": 1.0, "idf": column.idf if column.tfidf else 0.0}
    return Nodes("string", text, constants, attributes)


_MAKERS: dict[type[Column], Callable[[Any, Weights], Nodes]] = {
    NumberColumn: _number,
    CategoryColumn: _category,
    DateColumn: _date,
    TextColumn: _text,
}
