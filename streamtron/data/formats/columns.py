"""Find the columns of labels, features and weights in a table, by names and types.

The schema of the first shard decides for all shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, NoReturn

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
from streamtron.data.reader_config import Layout, ReaderConfig
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


def resolve_layout(schema: pa.Schema, reading: ReaderConfig, name: str) -> ReaderConfig:
    """Return the reading with the layout and column names of this schema."""
    columns = find_columns(schema, reading, name)
    settled = replace(
        reading,
        layout=columns.layout,
        asked=reading.features is not None,
        settled_by=name,
        unused=unused_in(schema, columns, reading),
    )
    if columns.transformer is not None:
        return settled
    none = reading.values_column if columns.layout.startswith("lists") else ""
    return replace(
        settled,
        label_column=reading.label_column or columns.label,
        features=columns.features,
        values_column=none if columns.values is None else columns.values,
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
    label, weight = table.label(), None
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

    def refuse(self, what: str, error: type[DataError | SettingsError] = DataError) -> NoReturn:
        raise error(f"{self.name}: {what}")

    @property
    def there(self) -> str:
        """The columns of the file, for messages."""
        shown = [f"{field.name} {field.type}" for field in list(self.schema)[:MANY]]
        hidden = len(self.schema) - MANY
        shown += [f"… {hidden} more"] if hidden > 0 else []
        return f"(columns there: {', '.join(shown)})"

    def label(self) -> str | None:
        """Return the column of the labels; None where there is none, and none is needed."""
        needed = self.reading.labels == "required"
        return self.find("label", self.reading.label_column, needed=needed)

    def fits(self, role: Role, type_: pa.DataType) -> bool:
        """Tell whether a role's column may have this type."""
        if role == "features":
            return layout_of(type_) is not None
        if role == "values":
            return is_list(type_) and is_number(plain(type_.value_type))
        if role == "label" and self.reading.multilabel and is_list(type_):
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
        usual = ROLES[role].names if named is None else (named,)
        candidates = [field for field in self.schema if field.name in usual]
        fitting = [field for field in candidates if self.fits(role, field.type)]
        if len(chosen := fitting if named is None else candidates) > 1:
            self.refuse_several(role, [field.name for field in chosen])
        if fitting:
            return str(fitting[0].name)
        if candidates and (needed or named is not None):
            self.refuse_type(role, candidates[0])
        if needed:
            self.refuse_absent(role, ", ".join(map(repr, usual)))
        return None

    def refuse_role(self, role: Role, what: str) -> NoReturn:
        """Refuse a table in which the column of a role has to be named; say how columns of any
        kinds become features."""
        ways = (
            " Columns of any kinds become features by --columns auto, documents by --text NAME; "
            f"streamtron inspect {self.name} says what each is good for."
        )
        advice = ways if role == "features" else ""
        self.refuse(f"{what} with --{role} NAME {self.there}.{advice}")

    def refuse_absent(self, role: Role, usual: str) -> NoReturn:
        words = ROLES[role].words
        self.refuse_role(role, f"no column for the {words}, looked for {usual}. Name it")

    def refuse_several(self, role: Role, columns: Sequence[str]) -> NoReturn:
        repeated = f"{len(columns)} columns {columns[0]!r}"
        listed = repeated if len({*columns}) == 1 else " and ".join(map(repr, columns))
        self.refuse(
            f"{listed} could all be the {ROLES[role].words}. Say which with --{role} NAME, a name "
            f"that occurs once {self.there}."
        )

    def refuse_type(self, role: Role, field: pa.Field) -> NoReturn:
        what = f"column {field.name!r} of type {field.type} cannot be the {ROLES[role].words}"
        self.refuse_role(role, f"{what}, which are {ROLES[role].types}. Name another one")

    def features(self, taken: set[str | None]) -> tuple[str, ...]:
        """Return the column of the features or, in the layout ``columns``, one a feature."""
        reading, features = self.reading, self.reading.features
        is_new = reading.layout is not None and not reading.asked
        usual = self.usual_features(taken) if features is None or is_new else ()
        features = usual if features is None else features
        new = [column for column in usual if column not in features]
        if new and reading.unknown_features == "refused":
            self.refuse(
                f"{some(new)} would be features too, and {reading.settled_by} has none of that "
                "name. All shards need the same columns: add them there, remove them here, or name "
                "those to read with --features NAME,NAME,…"
            )
        there = Counter(self.schema.names)
        for column, times in Counter(features).items():
            if there[column] != 1:
                self.find("features", column)  # which refuses it
            if times > 1:
                what = f"{column!r} is named twice among the features. Name it once."
                self.refuse(what, SettingsError)
        return features

    def usual_features(self, taken: set[str | None]) -> tuple[str, ...]:
        """Return the features where none are named; in a later shard, those of its layout."""
        settled, usual = self.reading.layout, ROLES["features"].names
        free = [(f.name, layout_of(f.type)) for f in self.schema if f.name not in taken]
        numbers = tuple(name for name, layout in free if layout == "columns")
        lists = tuple(
            name for name, layout in free if name in usual and layout not in (None, "columns")
        )
        if settled is not None:
            return numbers if settled == "columns" else lists
        if len(lists) > 1:
            self.refuse_several("features", lists)
        if not lists and (len(numbers) < len(free) or not free):
            named = ", ".join(map(repr, usual))
            named = f"a list or a map called {named}, or columns that are all numbers"
            self.refuse_absent("features", named)
        return lists or numbers

    def layout(self, features: Sequence[str]) -> Layout:
        """Return the one layout of all columns of features."""
        expected = self.reading.layout or (None if len(features) == 1 else "columns")
        for field in map(self.schema.field, features):
            layout = layout_of(field.type)
            if layout is None:
                self.refuse_type("features", field)
            expected = expected or layout
            if layout != expected:
                self.refuse(
                    f"{field.name!r} of type {field.type} holds {LAYOUTS[layout].words}, and the "
                    f"features are {LAYOUTS[expected].words} in {self.reading.settled_by}. All "
                    "shards need one layout: use streamtron convert for those that differ."
                )
        assert expected is not None
        return expected

    def values(self, columns: Columns) -> str | None:
        """Return the column of the values that belong to a list; None where all are 1.

        To take all values as 1 while they stand in a column not understood would be silent.
        """
        named, usual = self.reading.values_column, ROLES["values"].names
        without = self.reading.layout is not None and named is None
        if not without and (column := self.find("values", named, needed=named is not None)):
            return column
        may_be = [
            field.name
            for field in self.schema
            if field.name in usual
            or (is_list(field.type) and pa.types.is_floating(field.type.value_type))
        ]
        if may_be := [name for name in may_be if name != columns.label]:
            self.refuse(
                f"{some(may_be)} may hold the values of the features in {columns.features[0]!r}. "
                f'Name the list of them with --values NAME, or say --values "" if all are 1, as '
                f"they are without one in {self.reading.settled_by} {self.there}."
            )
        return None

    def check_settings(self, columns: Columns) -> None:
        """Refuse settings that do not suit the layout."""
        reading, layout = self.reading, columns.layout
        what = f"the features in {columns.features[0]!r} are {LAYOUTS[layout].words}"
        if columns.have_names and reading.names is None:
            names = "Names need columns: give --hash-bits N."
            self.refuse(f"{what}. {names}", SettingsError)
        for is_given, fits, setting in (
            (reading.names, columns.have_names, "--hash-bits"),
            (reading.values_column, layout.startswith("lists"), "--values"),
            (reading.table_base, layout in ("lists", "pairs", "map"), "--index-base 1"),
        ):
            if is_given and not fits:
                place = f"which have no place for {setting}. Leave it out, or name other features"
                self.refuse(f"{what}, {place} with --features NAME.", SettingsError)

    def check_apart(self, features: Sequence[str], label: str | None, weight: str | None) -> None:
        """Refuse a label, or a row weight, that is a feature as well, unless a model has it so."""
        for role, column in (("label", label), ("weight", weight)):
            if column in features and self.reading.layout is None:
                apart = f"Leave it out of the features, or name another column by --{role}."
                self.refuse(f"{column!r} is both the {role} and a feature. {apart}", SettingsError)

    def transformed(
        self, transformer: Transformer, label: str | None, weight: str | None
    ) -> Columns:
        """Return the columns that a transformer takes."""
        names, settled = transformer.columns, self.reading.layout
        self.check_apart(names, label, weight)
        times = Counter(self.schema.names)
        for name in names:
            if times[name] != 1:
                by = "the model reads" if settled else "--columns, --text or the transformer names"
                self.refuse(
                    f"{times[name] or 'no'} columns {name!r}, which {by}: expected one, called "
                    f"exactly so {self.there}."
                )
        return Columns(label, "transformed", names, None, weight, transformer)
