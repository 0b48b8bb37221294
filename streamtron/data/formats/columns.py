"""Find the columns of labels, features and weights in a table, by names and types.

The schema of the first shard decides for all shards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, cast

import pyarrow as pa

from streamtron.core.errors import DataError, SettingsError
from streamtron.data.formats.column_types import (
    KEY_NAMES,
    VALUE_NAMES,
    is_list,
    is_number,
    is_string,
    layout_of,
    plain,
)
from streamtron.data.row_batch import Layout, Reading

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
    unknown: tuple[str, ...] = ()
    """columns of numbers that are counted and weigh 0; see ``Reading.unknown_features``"""

    @property
    def all(self) -> list[str]:
        """Every column to read, once."""
        names = (self.label, *self.features, self.values, self.weight, *self.unknown)
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def have_names(self) -> bool:
        """Whether features are named rather than numbered."""
        return self.layout.endswith("names")


def resolve_layout(schema: pa.Schema, reading: Reading, name: str) -> Reading:
    """Return the reading with the layout and column names of this schema.

    Examples
    --------
    >>> schema = pa.schema({"f2": pa.int8(), "y": pa.bool_(), "f10": pa.float64()})
    >>> settled = resolve_layout(schema, Reading(), "a.parquet")
    >>> settled.layout, settled.features, settled.label_column
    ('columns', ('f2', 'f10'), 'y')
    """
    columns = find_columns(schema, reading, name)
    none = reading.values_column if columns.layout.startswith("lists") else ""
    return replace(
        reading,
        label_column=reading.label_column or columns.label,
        layout=columns.layout,
        features=columns.features,
        values_column=none if columns.values is None else columns.values,
        asked=reading.features,
        pair=_ordered_pair(schema, columns),
        settled_by=name,
    )


def find_columns(schema: pa.Schema, reading: Reading, name: str) -> Columns:
    """Return the columns to read, as settled or named by ``reading`` or found by their usual names.

    Features that are found alone: one column of a usual name that is a list, a map or a vector; or
    else all columns of numbers called f0, f1, … (also x, feat, feature, col, column), in the order
    of their numbers.

    Raises
    ------
    DataError : a column is absent, ambiguous, twice in the file, or of a type that is refused; the
        layout is not the settled one; a column that would be lost, since the shard that settled
        the columns has none like it.
    SettingsError : names without a hash or a vocabulary, and other settings that do not suit.

    Examples
    --------
    >>> schema = pa.schema({"index": pa.list_(pa.int64()), "target": pa.string()})
    >>> find_columns(schema, Reading(), "a.parquet")[:3]
    ('target', 'lists', ('index',))
    """
    several, needed = reading.multilabel, reading.labels == "required"
    if not several:
        _refuse_label_lists(schema, reading, name)
    label = _find(schema, "label", reading.label_column, needed, name, several)
    named, weighted = reading.weight_column, reading.weights == "read"
    weight = _find(schema, "weight", named, weighted and named is not None, name)
    features = _features(schema, reading, {label, weight}, name)
    layout = _common_layout(schema, features, reading, name)
    unknown = _unknown_columns(schema, reading, {label, weight}, name)
    columns = Columns(label, layout, features, None, weight if weighted else None, unknown)
    _check_pair(schema, columns, reading, name)
    if layout.startswith("lists"):
        columns = columns._replace(values=_values(schema, reading, columns, name))
    roles: tuple[tuple[Role, str | None], ...] = (
        ("label", label), ("values", columns.values), ("weight", columns.weight),
    )  # fmt: skip
    for role, column in roles:
        if column is not None and not _fits(role, schema.field(column).type, several):
            _refuse_type(schema, role, column, name)
    _check_settings(columns, reading, name)
    return columns


def _find(
    schema: pa.Schema,
    role: Role,
    named: str | None,
    needed: bool,
    name: str,
    several: bool = False,
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
    """Refuse a label column of lists where a row has one label."""
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
        features = _expanded(schema, reading.features, taken)
    for column, times in Counter(features).items():
        if there[column] != 1:
            _find(schema, "features", column, True, name)  # which refuses it
        if times > 1:
            raise SettingsError(
                f"{name}: {column!r} is named twice among the features. Name it once."
            )
    return features


def _usual(schema: pa.Schema, taken: set[str | None], name: str) -> tuple[str, ...]:
    """Return a list, map or vector of a usual name, or else columns of numbers of usual names."""
    found = _lists_of_usual_names(schema)
    if len(found) > 1:
        _refuse_several(schema, "features", found, name)
    return tuple(found) or _numbered(schema, taken, name)


def _expanded(schema: pa.Schema, asked: Iterable[str], taken: set[str | None]) -> tuple[str, ...]:
    """Expand patterns to columns of numbers, in the file's order; names stay as they are."""
    names, numbers = set(schema.names), _columns_of_numbers(schema, taken)
    found: list[str] = []
    for given in asked:
        matching = [] if given in names else [name for name in numbers if fnmatchcase(name, given)]
        found += matching or [given]
    return tuple(found)


def _columns_of_numbers(schema: pa.Schema, taken: set[str | None]) -> list[str]:
    return [f.name for f in schema if f.name not in taken and layout_of(f.type) == "columns"]


def _unknown_columns(
    schema: pa.Schema, reading: Reading, taken: set[str | None], name: str
) -> tuple[str, ...]:
    """Find columns that match what was asked for and are no features; refuse or count them."""
    if reading.layout is None or reading.features is None:
        return ()
    if reading.asked is not None:
        found: Iterable[str] = _expanded(schema, reading.asked, taken)
    elif reading.layout == "columns":
        word = _word(reading.features[0])
        found = [column for column in _columns_of_numbers(schema, taken) if _word(column) == word]
    else:
        found = _lists_of_usual_names(schema)
    known = {*reading.features, *taken}
    others = tuple(c for c in dict.fromkeys(found) if c not in known and c in schema.names)
    if reading.unknown_features == "out_of_range":
        return others if reading.layout == "columns" else ()
    if others:
        raise DataError(
            f"{name}: {_some(others)} would be features too, and {reading.settled_by} has none of "
            "that name. All shards need the same columns: add them there, remove them here, or "
            "name those to read with --features NAME,NAME,…"
        )
    return ()


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _lists_of_usual_names(schema: pa.Schema) -> list[str]:
    """Lists, maps and vectors that are called as features usually are."""
    return [
        field.name
        for field in schema
        if field.name in USUAL_NAMES["features"] and layout_of(field.type) not in (None, "columns")
    ]


def _numbered(schema: pa.Schema, taken: set[str | None], name: str) -> tuple[str, ...]:
    """All columns of numbers that share a usual word and differ in a number, ordered by it."""
    found: dict[str, list[tuple[int, str]]] = {}
    for column in _columns_of_numbers(schema, taken):
        if match := _NUMBERED.fullmatch(column):
            found.setdefault(match[1], []).append((int(match[2]), column))
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


def _word(column: str) -> str | None:
    """Return the part of a numbered column's name before its number, or None."""
    match = _NUMBERED.fullmatch(column)
    return match[1] if match else None


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


def _ordered_pair(schema: pa.Schema, columns: Columns) -> tuple[str, ...] | None:
    """Return the names of a pair's fields where nothing but their order tells which is which."""
    if not columns.layout.startswith("pairs"):
        return None
    names = [field.name for field in schema.field(columns.features[0]).type.value_type]
    lower = [name.lower() for name in names]
    told = [sum(name in usual for name in lower) == 1 for usual in (KEY_NAMES, VALUE_NAMES)]
    return None if all(told) else tuple(names)


def _check_pair(schema: pa.Schema, columns: Columns, reading: Reading, name: str) -> None:
    """Refuse pairs that only their order tells apart, in another one than in the first shard."""
    found = _ordered_pair(schema, columns)
    if reading.layout is not None and found not in (None, reading.pair):
        other = "told by their names" if reading.pair is None else _some(reading.pair)
        raise DataError(
            f"{name}: the pairs in {columns.features[0]!r} are of {_some(found)}, in "
            f"{reading.settled_by} they are {other}. All shards need the same names in one order: "
            "call the fields index and value, or use streamtron convert."
        )


def _values(schema: pa.Schema, reading: Reading, columns: Columns, name: str) -> str | None:
    named = reading.values_column
    if named == "":
        return None
    settled_without = named is None and reading.layout is not None
    found = None if settled_without else _find(schema, "values", named, named is not None, name)
    may_be = [f.name for f in schema if f.name != columns.label and _may_be_values(f)]
    if settled_without and may_be:
        raise DataError(
            f"{name}: {_some(may_be)} may hold the values of the features, and there is no such "
            f"column in {reading.settled_by}, where all values are 1. Add the values there, remove "
            'the column here, or say --values "" in the fit if all are 1.'
        )
    if found is None and may_be:
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
    """Tell whether a role's column may have this type; ``several``: labels may come in lists."""
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
