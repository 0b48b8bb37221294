"""Tell which columns of a table may hold labels, features, their values or weights."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pyarrow as pa

from streamtron.data.formats.layouts import is_list, is_number, is_string, layout_of, plain

Role = Literal["label", "features", "values", "weight"]


class RoleKind(NamedTuple):
    """What messages call the columns of a role, what they hold, and their usual names, by which
    one that is not named is looked for; a weight has to be named."""

    words: str
    types: str
    names: tuple[str, ...] = ()


ROLES: dict[Role, RoleKind] = {
    "label": RoleKind(
        "labels",
        "numbers, booleans or strings, with --multilabel also lists of them",
        ("label", "labels", "y", "target", "class"),
    ),
    "features": RoleKind(
        "features",
        "lists of column numbers or of names, lists of pairs of one of them and a value, maps, "
        "lists of a number for every column, Spark vectors, or columns of numbers",
        (
            *("features", "indices", "index", "columns", "feature_indices", "features_indices"),
            *("tokens", "words", "terms", "embedding", "embeddings"),
        ),
    ),
    "values": RoleKind(
        "values",
        "lists of numbers",
        ("values", "value", "data", "feature_values", "features_values"),
    ),
    "weight": RoleKind("row weights", "numbers"),
}


def fits(role: Role, type_: pa.DataType, several: bool = False) -> bool:
    """Tell whether a role's column may have this type; ``several``: labels may come in lists."""
    if role == "features":
        return layout_of(type_) is not None
    if role == "values":
        return is_list(type_) and is_number(plain(type_.value_type))
    type_ = plain(type_.value_type if role == "label" and several and is_list(type_) else type_)
    if role == "label":
        nothing = pa.types.is_null(type_)  # what pyarrow writes where all are empty
        number = is_number(type_) or pa.types.is_decimal(type_)
        return bool(number or pa.types.is_boolean(type_) or is_string(type_) or nothing)
    return is_number(type_)


def may_be_values(field: pa.Field) -> bool:
    """Tell whether a column could hold the values of features that are lists."""
    of_floats = is_list(field.type) and pa.types.is_floating(field.type.value_type)
    return bool(of_floats or field.name in ROLES["values"].names)
