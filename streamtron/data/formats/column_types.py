"""What the columns of a table can hold, told by their types."""

from __future__ import annotations

from typing import cast

import pyarrow as pa

from streamtron.data.row_batch import Layout

KEY_NAMES = ("index", "indices", "column", "key", "name", "feature", "term", "token", "i", "k")
VALUE_NAMES = ("value", "values", "val", "weight", "count", "v", "x")
"""A pair's two fields; where they have other names, its first one and its second one."""


def layout_of(type_: pa.DataType) -> Layout | None:
    """Say how the features lie in a column of this type; None where there is no way.

    Examples
    --------
    >>> layout_of(pa.map_(pa.string(), pa.float32())), layout_of(pa.date32())
    ('map of names', None)
    """
    types = pa.types
    if types.is_map(type_):
        kind = _key_kind(type_.key_type) if is_number(plain(type_.item_type)) else None
        return None if kind is None else cast(Layout, "map" + kind)
    if is_list(type_):
        item = type_.value_type
        if types.is_struct(item):
            pair = pair_fields(item)
            kind = _key_kind(item.field(pair[0]).type) if pair else None
            return None if kind is None else cast(Layout, "pairs" + kind)
        kind = _key_kind(item)
        return None if kind is None else cast(Layout, "lists" + kind)
    if types.is_struct(type_):
        return "vector" if _is_vector(type_) else None
    return "columns" if is_number(plain(type_)) or types.is_boolean(plain(type_)) else None


def _key_kind(type_: pa.DataType) -> str | None:
    if pa.types.is_integer(plain(type_)):
        return ""
    return " of names" if is_string(plain(type_)) else None


def pair_fields(struct: pa.DataType) -> tuple[int, int] | None:
    """Positions of a pair's column and of its value; None if the struct is no pair.

    Examples
    --------
    >>> pair_fields(pa.struct({"value": pa.float32(), "index": pa.int32()}))
    (1, 0)
    """
    names = [field.name.lower() for field in struct]
    keys = [k for k, name in enumerate(names) if name in KEY_NAMES]
    values = [k for k, name in enumerate(names) if name in VALUE_NAMES]
    if len(keys) != 1 or len(values) != 1:
        keys, values = ([0], [1]) if len(names) == 2 else ([], [])
    fits = keys and _key_kind(struct.field(keys[0]).type) is not None
    fits = fits and is_number(plain(struct.field(values[0]).type))
    return (keys[0], values[0]) if fits else None


def _is_vector(struct: pa.DataType) -> bool:
    """Tell whether it is what Spark writes for a VectorUDT."""
    fields = {field.name: field.type for field in struct}
    return bool(
        {"type", "size", "indices", "values"} <= set(fields)
        and pa.types.is_integer(fields["type"])
        and pa.types.is_integer(fields["size"])
        and is_list(fields["indices"])
        and pa.types.is_integer(fields["indices"].value_type)
        and is_list(fields["values"])
        and is_number(fields["values"].value_type)
    )


def plain(type_: pa.DataType) -> pa.DataType:
    """Return the type of what is encoded, where it is a dictionary."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def is_list(type_: pa.DataType) -> bool:
    """Tell whether a type is one of the lists that are read."""
    types = pa.types
    return bool(
        types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    )


def is_number(type_: pa.DataType) -> bool:
    """Tell whether a type is an integer or a float of any size."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def is_string(type_: pa.DataType) -> bool:
    """Tell whether a type is text."""
    types = pa.types
    return bool(
        types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    )
