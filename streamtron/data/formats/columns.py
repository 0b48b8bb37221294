"""Find the columns of labels, features and weights in a table, by names and types.

The schema of the first shard decides for all shards. ``REFUSALS`` has every reason why a
table is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, NoReturn

import pyarrow as pa

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.text import some
from streamtron.data.formats.layouts import (
    LAYOUTS,
    Columns,
    is_list,
    is_number,
    is_string,
    layout_of,
    plain,
)
from streamtron.data.reader_config import Layout, ReaderConfig, Settled
from streamtron.data.transform import Transformer

MANY = 40
"""Columns of a table that a message names."""

Role = Literal["label", "features", "values", "weight"]


class RoleKind(NamedTuple):
    """What messages call the columns of a role, what they hold, and their usual names."""

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
        "lists of column numbers or of names, lists of structs of an index and a value, maps, "
        "lists of a number for every column, or columns of numbers",
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
"""A weight has to be named."""

REFUSALS = {
    "absent": "no column for the {words}, looked for {usual}. Name it with --{role} NAME "
    "({there}).{advice}",
    "ambiguous": "{column} could all be the {words}. Say which with --{role} NAME, a name that "
    "occurs once ({there}).",
    "type": "column {column!r} of type {type} cannot be the {words}, which are {types}. Name "
    "another one with --{role} NAME ({there}).{advice}",
    "several labels": "column {column!r} of type {type} holds several labels a row. Use "
    "--multilabel, or name a column of single ones with --label NAME ({there}).",
    "new": "{column} would be features too, and {by} has none of that name. All shards need the "
    "same columns: add them there, remove them here, or name those to read with --features "
    "NAME,NAME,…",
    "layout": "{column!r} of type {type} holds {layout}, and the features are {expected} in {by}. "
    "All shards need one layout: use streamtron convert for those that differ.",
    "new values": "{column} may hold the values of the features, and there is no such column in "
    "{by}, where all values are 1. Add the values there, remove the column here, or say --values "
    '"" in the fit if all are 1.',
    "no values": "features in the lists {column!r}, and no list of numbers of a usual name for "
    'their values. Name it with --values NAME, or say --values "" if all are 1 ({there}).',
    "transformer": "{count} columns {column!r}, which {by}: expected one, called exactly so "
    "({there}).",
    "both": "{column!r} is both the {role} and a feature. Leave it out of the features, or name "
    "another column by --{role}.",
    "twice": "{column!r} is named twice among the features. Name it once.",
    "names": "the features in {column!r} are {layout}. Names need columns: give --hash-bits N or "
    "--vocabulary FILE.",
    "unsuited": "the features in {column!r} are {layout}, which have no place for {setting}. Leave "
    "it out, or name other features with --features NAME.",
}
"""Why a table is refused: what stands behind the file's name."""

OF_SETTINGS = {"both", "twice", "names", "unsuited"}
"""The reasons that are the settings' fault."""


def resolve_layout(schema: pa.Schema, reading: ReaderConfig, name: str) -> ReaderConfig:
    """Return the reading with the layout and column names of this schema."""
    columns = find_columns(schema, reading, name)
    unused = unused_in(schema, columns, reading)
    settled = Settled(columns.layout, reading.features is not None, name, unused)
    if columns.transformer is not None:
        return replace(reading, settled=settled)
    none = reading.values_column if columns.layout.startswith("lists") else ""
    return replace(
        reading,
        label_column=reading.label_column or columns.label,
        features=columns.features,
        values_column=none if columns.values is None else columns.values,
        settled=settled,
    )


def unused_in(
    schema: pa.Schema, columns: Columns, reading: ReaderConfig
) -> tuple[tuple[str, str], ...]:
    """Return name and type of the columns of a table that are not read."""
    used = {*columns.all, reading.weight_column}
    unused = (field for field in schema if field.name not in used)
    return tuple((field.name, str(plain(field.type)).removeprefix("large_")) for field in unused)


def find_columns(schema: pa.Schema, reading: ReaderConfig, name: str) -> Columns:
    """Return the columns to read, as settled or named by ``reading`` or found by their usual names.

    Features that are not named are one column of a usual name that is a list or a map; or else all
    columns but label and weight, if all of these are numbers, in the order of the file. Refused are
    columns that are absent, ambiguous, twice in the file, or of a wrong type, another layout than
    the settled one, and columns that would be lost, since the shard that settled the columns has
    none like them.
    """
    table = _Table(schema, reading, name)
    label = table.label()
    weight = None
    if reading.weights == "read" and reading.weight_column is not None:
        weight = table.find("weight", reading.weight_column)
    if reading.transformer is not None:
        return table.transformed(reading.transformer, label, weight)
    features = table.features({label, reading.weight_column})
    table.check_apart(features, label, weight)
    columns = Columns(label, table.layout(features), features, None, weight, lengths=[])
    if columns.layout.startswith("lists") and reading.values_column != "":
        columns = columns._replace(values=table.values(columns))
    table.check_settings(columns)
    return columns


def find_label(schema: pa.Schema, reading: ReaderConfig, name: str) -> str | None:
    """Return the column of the labels, as ``find_columns`` does."""
    return _Table(schema, reading, name).label()


class _Table(NamedTuple):
    """The columns of one shard, and how they are to be read."""

    schema: pa.Schema
    reading: ReaderConfig
    name: str

    def refuse(self, why: str, column: Any = "", role: Role = "features", **facts: Any) -> NoReturn:
        """Raise what ``REFUSALS`` says about a column, a field or several names."""
        shown = [f"{field.name} {field.type}" for field in list(self.schema)[:MANY]]
        hidden = len(self.schema) - MANY
        shown += [f"… {hidden} more"] if hidden > 0 else []
        settled = self.reading.settled
        known: dict[str, Any] = {
            "column": column.name if isinstance(column, pa.Field) else column,
            "type": column.type if isinstance(column, pa.Field) else "",
            "role": role,
            "words": ROLES[role].words,
            "types": ROLES[role].types,
            "there": f"columns there: {', '.join(shown)}",
            "by": settled.by if settled else "the first shard",
            "advice": "",
        }
        error = SettingsError if why in OF_SETTINGS else DataError
        raise error(f"{self.name}: {REFUSALS[why].format_map(known | facts)}")

    def label(self) -> str | None:
        """Return the column of the labels; None where there is none, and none is needed."""
        needed = self.reading.labels == "required"
        return self.find("label", self.reading.label_column, needed=needed)

    def fits(self, role: Role, type_: pa.DataType, several: bool) -> bool:
        """Tell whether a role's column may have this type; ``several`` : labels may be lists."""
        if role == "features":
            return layout_of(type_) is not None
        elif role == "values":
            return is_list(type_) and is_number(plain(type_.value_type))
        elif role == "label" and several and is_list(type_):
            type_ = type_.value_type
        type_, types = plain(type_), pa.types
        if role == "weight" or is_number(type_):
            return is_number(type_)
        is_label = types.is_decimal(type_) or types.is_boolean(type_) or is_string(type_)
        return bool(is_label or types.is_null(type_))  # pyarrow's type where all are empty

    def find(self, role: Role, named: str | None, needed: bool = True) -> str | None:
        """Return the column of a role; None where there is none, and none is needed.

        A usual name counts only on a column of the right type: pandas' own "index" is no list.
        """
        several, usual = self.reading.multilabel, ROLES[role].names if named is None else (named,)
        named_so = [field for field in self.schema if field.name in usual]
        fitting = [field for field in named_so if self.fits(role, field.type, several)]
        candidates = fitting if named is None else named_so
        if len(candidates) > 1:
            self.refuse_several(role, [field.name for field in candidates])
        for field in () if fitting else named_so:
            if role == "label" and self.fits(role, field.type, several=True):
                if named is not None or needed:
                    self.refuse("several labels", field)
            elif named is not None:
                advice = self.advice([field]) if role == "features" else ""
                self.refuse("type", field, role, advice=advice)
        if not candidates and needed:
            self.refuse("absent", role=role, usual=", ".join(map(repr, usual)))
        return candidates[0].name if candidates else None

    def refuse_several(self, role: Role, columns: Sequence[str]) -> NoReturn:
        """Refuse several columns that could be the one of a role."""
        listed = " and ".join(map(repr, columns))
        repeated = f"{len(columns)} columns {columns[0]!r}"
        self.refuse("ambiguous", repeated if len({*columns}) == 1 else listed, role)

    def features(self, taken: set[str | None]) -> tuple[str, ...]:
        """Return the column of the features or, in the layout ``columns``, one a feature."""
        settled, features = self.reading.settled, self.reading.features
        is_new = settled is not None and not settled.asked
        usual = self.usual_features(taken) if features is None or is_new else ()
        if features is None:
            features = usual
        elif self.reading.unknown_features == "refused" and {*usual} - {*features}:
            self.refuse("new", some([column for column in usual if column not in features]))
        there = Counter(self.schema.names)
        for column, times in Counter(features).items():
            if there[column] != 1:
                self.find("features", column)  # which refuses it
            if times > 1:
                self.refuse("twice", column)
        return features

    def usual_features(self, taken: set[str | None]) -> tuple[str, ...]:
        """Return what would be features if none were named; in a later shard, of their layout."""
        settled = self.reading.settled
        free = [field for field in self.schema if field.name not in taken]
        numbers = tuple(field.name for field in free if layout_of(field.type) == "columns")
        lists = tuple(
            field.name
            for field in free
            if field.name in ROLES["features"].names
            and layout_of(field.type) not in (None, "columns")
        )
        if settled is not None:
            return numbers if settled.layout == "columns" else lists
        if len(lists) > 1:
            self.refuse_several("features", lists)
        if not lists and (len(numbers) < len(free) or not free):
            usual = ", ".join(map(repr, ROLES["features"].names))
            usual = f"a list or a map called {usual}, or columns that are all numbers"
            self.refuse("absent", usual=usual, advice=self.advice(free))
        return lists or numbers

    def advice(self, fields: Sequence[pa.Field]) -> str:
        """Say how columns of any kinds become features, by those that are there."""
        if not fields:
            return ""
        return (
            " Columns of any kinds become features by --columns auto, documents by --text NAME; "
            f"streamtron inspect {self.name} says what each is good for."
        )

    def layout(self, features: Sequence[str]) -> Layout:
        """Return the one layout of all columns of features."""
        settled = self.reading.settled
        expected = settled.layout if settled else None if len(features) == 1 else "columns"
        for field in map(self.schema.field, features):
            layout = layout_of(field.type)
            if layout is None:
                self.refuse("type", field, advice=self.advice([field]))
            expected = expected or layout
            if layout != expected:
                words = LAYOUTS[layout].words
                self.refuse("layout", field, layout=words, expected=LAYOUTS[expected].words)
        assert expected is not None
        return expected

    def values(self, columns: Columns) -> str | None:
        """Return the column of the values that belong to a list; None where all are 1.

        To take all values as 1 while they stand in a column not understood would be silent.
        """
        named, settled = self.reading.values_column, self.reading.settled
        without = settled is not None and named is None
        column = None if without else self.find("values", named, needed=named is not None)
        may_be = [
            field.name
            for field in self.schema
            if field.name != columns.label
            and (
                field.name in ROLES["values"].names
                or (is_list(field.type) and pa.types.is_floating(field.type.value_type))
            )
        ]
        if column is None and may_be and without:
            self.refuse("new values", some(may_be))
        elif column is None and may_be:
            self.refuse("no values", columns.features[0])
        return column

    def check_settings(self, columns: Columns) -> None:
        """Refuse settings that do not suit the layout."""
        reading, layout = self.reading, columns.layout
        column, words = columns.features[0], LAYOUTS[layout].words
        if columns.have_names and reading.names is None:
            self.refuse("names", column, layout=words)
        for is_given, fits, setting in (
            (reading.names, columns.have_names, "--hash-bits or --vocabulary"),
            (reading.values_column, layout.startswith("lists"), "--values"),
            (reading.table_base, layout in ("lists", "pairs", "map"), "--index-base 1"),
        ):
            if is_given and not fits:
                self.refuse("unsuited", column, layout=words, setting=setting)

    def check_apart(self, features: Sequence[str], label: str | None, weight: str | None) -> None:
        """Refuse a label, or a row weight, that is a feature as well, unless a model has it so."""
        roles: tuple[tuple[Role, str | None], ...] = (("label", label), ("weight", weight))
        for role, column in roles:
            if column in features and self.reading.settled is None:
                self.refuse("both", column, role)

    def transformed(
        self, transformer: Transformer, label: str | None, weight: str | None
    ) -> Columns:
        """Return the columns that a transformer takes."""
        names, settled = transformer.columns, self.reading.settled
        if settled is None:
            self.check_apart(names, label, weight)
        times = Counter(self.schema.names)
        for name in names:
            if times[name] != 1:
                by = "the model reads" if settled else "--columns, --text or the transformer names"
                self.refuse("transformer", name, count=times[name] or "no", by=by)
        made, share = transformer.made, self.reading.share
        unknown = None if share[1] < 1.0 else Counter[str]()  # rows held out are not spoken of
        features = Columns(label, "transformed", names, None, weight, transformer, made)
        return features._replace(unknown=unknown, share=share)
