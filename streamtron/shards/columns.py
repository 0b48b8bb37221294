"""Which columns of a table hold labels, features and weights, and how the features lie in them.

Told by names and types alone, from the schema of the first shard; then it holds for all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, cast

import pyarrow as pa

from streamtron.errors import DataError, SettingsError
from streamtron.shards.piece import Layout, Reading

Role = Literal["label", "features", "values", "weight"]

USUAL_NAMES: dict[Role, tuple[str, ...]] = {
    "label": ("label", "labels", "y", "target", "class"),
    "features": (
        "features", "indices", "index", "columns", "feature_indices", "features_indices",
        "tokens", "words", "terms",
    ),
    "values": ("values", "value", "data", "feature_values", "features_values"),
    "weight": (),
}  # fmt: skip
"""Where a role's column is looked for when it is not named. A weight has to be named."""

KEY_NAMES = ("index", "indices", "column", "key", "name", "feature", "term", "token", "i", "k")
VALUE_NAMES = ("value", "values", "val", "weight", "count", "v", "x")
"""A pair's two fields; where they have other names, its first one and its second one."""

MANY = 40
"""Columns of a table that a message names."""

_NUMBERED = re.compile(r"((?:f|x|feat|feature|col|column)[_.]?)(\d+)", re.IGNORECASE)


class Columns(NamedTuple):
    """The names of the columns to read; None where the table has none and needs none."""

    label: str | None
    layout: Layout
    features: tuple[str, ...]
    values: str | None = None
    weight: str | None = None

    @property
    def all(self) -> list[str]:
        """Every column to read, once."""
        names = (self.label, *self.features, self.values, self.weight)
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def have_names(self) -> bool:
        """Whether features are named rather than numbered."""
        return self.layout.endswith("names")


def settle(schema: pa.Schema, reading: Reading, name: str) -> Reading:
    """The reading with the layout and the names of this schema, which all shards must then have.

    Raises
    ------
    DataError, SettingsError : see ``find_columns``.

    Examples
    --------
    >>> schema = pa.schema({"f2": pa.int8(), "y": pa.bool_(), "f10": pa.float64()})
    >>> settled = settle(schema, Reading(), "a.parquet")
    >>> settled.layout, settled.features, settled.label_column
    ('columns', ('f2', 'f10'), 'y')
    """
    columns = find_columns(schema, reading, name)
    return replace(
        reading,
        label_column=reading.label_column or columns.label,
        layout=columns.layout,
        features=columns.features,
        values_column=columns.values or "",
        settled_by=name,
    )


def find_columns(schema: pa.Schema, reading: Reading, name: str) -> Columns:
    """The columns to read, as settled or named by ``reading`` or found by their usual names.

    Features that are found alone: one column of a usual name that is a list, a map or a vector; or
    else all columns of numbers called f0, f1, … (also x, feat, feature, col, column), in the order
    of their numbers.

    Raises
    ------
    DataError : a column is absent, ambiguous, twice in the file, or of a type that is refused; the
        layout is not the settled one.
    SettingsError : names without a hash or a vocabulary, and other settings that do not suit.

    Examples
    --------
    >>> schema = pa.schema({"index": pa.list_(pa.int64()), "target": pa.string()})
    >>> find_columns(schema, Reading(), "a.parquet")
    Columns(label='target', layout='lists', features=('index',), values=None, weight=None)
    """
    several, needed = reading.multilabel, reading.labels == "required"
    if not several:
        _refuse_label_lists(schema, reading, name)
    label = _find(schema, "label", reading.label_column, needed, name, several)
    named = reading.weight_column
    weight = _find(schema, "weight", named, named is not None, name)
    features = _features(schema, reading, {label, weight}, name)
    layout = _common_layout(schema, features, reading, name)
    columns = Columns(label, layout, features, weight=weight)
    if layout.startswith("lists"):
        columns = columns._replace(values=_values(schema, reading, columns, name))
    roles: tuple[tuple[Role, str | None], ...] = (
        ("label", label), ("values", columns.values), ("weight", weight),
    )  # fmt: skip
    for role, column in roles:
        if column is not None and not _fits(role, schema.field(column).type, several):
            _refuse_type(schema, role, column, name)
    _check_settings(columns, reading, name)
    return columns


def _find(
    schema: pa.Schema, role: Role, named: str | None, needed: bool, name: str, several: bool = False
) -> str | None:
    usual = (named,) if named is not None else USUAL_NAMES[role]
    # A usual name counts only on a column of the right shape: pandas' own "index" is no list.
    found = [
        field.name
        for field in schema
        if field.name in usual and (named is not None or _fits(role, field.type, several))
    ]
    if len(found) > 1:
        _refuse_several(schema, role, found, name)
    if not found and needed:
        raise DataError(
            f"{name}: no column for the {role_words(role)}, looked for "
            f"{', '.join(map(repr, usual))}. Name it with --{role} NAME ({_there(schema)})."
        )
    return found[0] if found else None


def _refuse_label_lists(schema: pa.Schema, reading: Reading, name: str) -> None:
    """Where a row has one label, and the labels can only be a column of lists."""
    named = reading.label_column
    usual = (named,) if named is not None else USUAL_NAMES["label"]
    there = [field for field in schema if field.name in usual]
    needed = named is not None or reading.labels == "required"
    if not needed or any(_fits("label", field.type) for field in there):
        return
    for field in there:
        if _fits("label", field.type, several=True):
            raise DataError(
                f"{name}: column {field.name!r} of type {field.type} holds several labels a row. "
                "Use --multilabel, or name a column of single ones with --label NAME "
                f"({_there(schema)})."
            )


def _refuse_several(schema: pa.Schema, role: Role, found: Iterable[str], name: str) -> None:
    raise DataError(
        f"{name}: {' and '.join(map(repr, found))} could all be the {role_words(role)}. "
        f"Say which with --{role} NAME, a name that occurs once ({_there(schema)})."
    )


def _refuse_type(schema: pa.Schema, role: Role, column: str, name: str) -> None:
    raise DataError(
        f"{name}: column {column!r} of type {schema.field(column).type} cannot be the "
        f"{role_words(role)}, which {_WANTED[role]}. Name another one with --{role} NAME "
        f"({_there(schema)})."
    )


# Features --------------------------------------------------------------------------------------


def _features(
    schema: pa.Schema, reading: Reading, taken: set[str | None], name: str
) -> tuple[str, ...]:
    """The columns that hold the features: one, or in the layout ``columns`` one a feature."""
    there = Counter(schema.names)
    if reading.features is None:
        features = _usual(schema, taken, name)
    elif reading.layout is not None:
        features = reading.features
    else:
        features = tuple(
            column
            for given in reading.features
            for column in ([given] if given in there else _expanded(schema, given, taken))
        )
    for column, times in Counter(features).items():
        if there[column] != 1:
            _find(schema, "features", column, True, name)  # which refuses it
        if times > 1:
            raise SettingsError(
                f"{name}: {column!r} is named twice among the features. Name it once."
            )
    return features


def _usual(schema: pa.Schema, taken: set[str | None], name: str) -> tuple[str, ...]:
    """A list, map or vector of a usual name, or else columns of numbers of usual names."""
    found = [
        field.name
        for field in schema
        if field.name in USUAL_NAMES["features"] and layout_of(field.type) not in (None, "columns")
    ]
    if len(found) > 1:
        _refuse_several(schema, "features", found, name)
    return tuple(found) or _numbered(schema, taken, name)


def _expanded(schema: pa.Schema, pattern: str, taken: set[str | None]) -> list[str]:
    """The columns of numbers that a pattern stands for, in the file's order."""
    found = [
        field.name
        for field in schema
        if layout_of(field.type) == "columns"
        and field.name not in taken
        and fnmatchcase(field.name, pattern)
    ]
    return found or [pattern]


def _numbered(schema: pa.Schema, taken: set[str | None], name: str) -> tuple[str, ...]:
    """All columns of numbers that share a usual word and differ in a number, ordered by it."""
    found: dict[str, list[tuple[int, str]]] = {}
    for field in schema:
        match = _NUMBERED.fullmatch(field.name)
        if match and field.name not in taken and layout_of(field.type) == "columns":
            found.setdefault(match[1], []).append((int(match[2]), field.name))
    if len(found) > 1:
        _refuse_several(schema, "features", [own[0][1] for own in found.values()], name)
    if not found:
        raise DataError(
            f"{name}: no column for the features, looked for lists, maps or vectors called "
            f"{', '.join(map(repr, USUAL_NAMES['features']))} and for numbers called 'f0', 'f1', … "
            "Name it with --features NAME, or columns of numbers with --features NAME,NAME,… or "
            f'--features "*" ({_there(schema)}).'
        )
    [columns] = found.values()
    return tuple(column for _, column in sorted(columns))


def _common_layout(
    schema: pa.Schema, features: tuple[str, ...], reading: Reading, name: str
) -> Layout:
    first = layout_of(schema.field(features[0]).type)
    for column in features:
        type_ = schema.field(column).type
        layout = layout_of(type_)
        if layout is None:
            _refuse_type(schema, "features", column, name)
        elif reading.layout not in (None, layout):
            raise DataError(
                f"{name}: {column!r} of type {type_} holds {_LAYOUTS[layout]}, and the features "
                f"are {_LAYOUTS[reading.layout or layout]} in {reading.settled_by}. All shards "
                "need one layout: use streamtron convert for those that differ."
            )
        elif len(features) > 1 and layout != "columns":
            raise DataError(
                f"{name}: of {len(features)} columns of features {column!r} is of type {type_}. "
                "Name one list, map or vector, or columns of numbers."
            )
    return cast(Layout, first)


def layout_of(type_: pa.DataType) -> Layout | None:
    """How the features lie in a column of this type; None where there is no way.

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
    """Whether it is what Spark writes for a VectorUDT."""
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


def _values(schema: pa.Schema, reading: Reading, columns: Columns, name: str) -> str | None:
    named = reading.values_column
    if named == "":
        return None
    found = _find(schema, "values", named, named is not None, name)
    if found is None and any(_may_be_values(f) for f in schema if f.name != columns.label):
        # To take all values as 1 while they stand in a column not understood would be silent.
        raise DataError(
            f"{name}: features in the lists {columns.features[0]!r}, and no list of numbers of a "
            'usual name for their values. Name it with --values NAME, or say --values "" if all '
            f"are 1 ({_there(schema)})."
        )
    return found


def _check_settings(columns: Columns, reading: Reading, name: str) -> None:
    where = f"{name}: the features in {columns.features[0]!r} are {_LAYOUTS[columns.layout]}"
    numbering = reading.hash_bits is not None or reading.vocabulary is not None
    if columns.have_names and not numbering:
        raise SettingsError(
            f"{where}. Names need columns: give --hash-bits N or --vocabulary FILE."
        )
    if numbering and not columns.have_names:
        raise SettingsError(
            f"{where}, which need neither --hash-bits nor --vocabulary. Leave them out, or name "
            "other features with --features NAME."
        )
    if reading.values_column and not columns.layout.startswith("lists"):
        raise SettingsError(f"{where}, which hold their values. Leave --values out.")
    if reading.table_base == 1 and columns.layout not in ("lists", "pairs", "map"):
        raise SettingsError(f"{where}, whose first column is 0. Give --index-base 0.")


# Words and types -------------------------------------------------------------------------------


def _there(schema: pa.Schema) -> str:
    shown = [
        f"{schema.field(k).name} {schema.field(k).type}" for k in range(min(len(schema), MANY))
    ]
    more = f", … {len(schema) - MANY} more" if len(schema) > MANY else ""
    return f"columns there: {', '.join(shown)}{more}"


def role_words(role: Role) -> str:
    """What messages call a role."""
    return {"label": "labels", "weight": "row weights"}.get(role, role)


_WANTED: dict[Role, str] = {
    "label": "are numbers, booleans or strings, with --multilabel also lists of them",
    "features": "are lists of column numbers or of names, lists of pairs of one of them and a "
    "value, maps, Spark vectors, or columns of numbers",
    "values": "are lists of numbers",
    "weight": "are numbers",
}

_LAYOUTS: dict[Layout, str] = {
    "lists": "lists of column numbers",
    "lists of names": "lists of names",
    "pairs": "lists of pairs of column number and value",
    "pairs of names": "lists of pairs of name and value",
    "map": "maps from column numbers to values",
    "map of names": "maps from names to values",
    "vector": "Spark vectors",
    "columns": "columns of numbers",
}


def _fits(role: Role, type_: pa.DataType, several: bool = False) -> bool:
    """Whether a role's column may have this type; ``several``: labels may also come in lists."""
    if role == "features":
        return layout_of(type_) is not None
    if role == "values":
        return is_list(type_) and is_number(plain(type_.value_type))
    type_ = plain(type_.value_type if role == "label" and several and is_list(type_) else type_)
    if role == "label":
        nothing = several and pa.types.is_null(type_)  # what pyarrow writes where all are empty
        return bool(is_number(type_) or pa.types.is_boolean(type_) or is_string(type_) or nothing)
    return is_number(type_)


def _may_be_values(field: pa.Field) -> bool:
    of_floats = is_list(field.type) and pa.types.is_floating(field.type.value_type)
    return bool(of_floats or field.name in USUAL_NAMES["values"])


def plain(type_: pa.DataType) -> pa.DataType:
    """The type of what is encoded, where it is a dictionary."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def is_list(type_: pa.DataType) -> bool:
    """Whether a type is one of the lists that are read."""
    types = pa.types
    return bool(
        types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    )


def is_number(type_: pa.DataType) -> bool:
    """Whether a type is an integer or a float of any size."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def is_string(type_: pa.DataType) -> bool:
    """Whether a type is text."""
    types = pa.types
    return bool(
        types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    )
