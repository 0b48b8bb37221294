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
from streamtron.data.formats.recipe import Recipe, recipe_in
from streamtron.data.formats.recipe_words import likely_spec
from streamtron.data.reader_config import Layout, ReaderConfig, Settled

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
    unused = unused_in(schema, columns, reading)
    settled = Settled(columns.layout, reading.features is not None, name, unused)
    if columns.recipe is not None:
        return replace(reading, settled=settled, recipe=columns.recipe)
    none = reading.values_column if columns.layout.startswith("lists") else ""
    return replace(
        reading,
        label_column=reading.label_column or columns.label,
        features=columns.features,
        values_column=none if columns.values is None else columns.values,
        settled=settled,
        recipe=recipe_in(schema, name),
    )


def unused_in(
    schema: pa.Schema, columns: Columns, reading: ReaderConfig
) -> tuple[tuple[str, str], ...]:
    """Return name and type of the columns of a table that are not read."""
    weight = columns.recipe.weight if columns.recipe else None
    used = {*columns.all, reading.weight_column, weight}
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
    return _Table(schema, reading, name).columns()


class _Table(NamedTuple):
    """The columns of one shard, and how they are to be read."""

    schema: pa.Schema
    reading: ReaderConfig
    name: str

    def columns(self) -> Columns:
        """Find and check all columns to read."""
        reading, recipe = self.reading, self.reading.recipe
        if recipe is not None:  # whose columns the table holds, or else rows that it made
            may_be_rows = reading.layout not in (None, "recipe")
            absent = {*recipe.names}.isdisjoint(self.schema.names)
            if not may_be_rows or not (absent or recipe_in(self.schema, self.name)):
                return self._by_recipe(recipe)
        self._check_recipe()
        label = self._find("label", reading.label_column, needed=reading.labels == "required")
        weight = None if reading.weights == "ignored" else reading.weight_column
        if weight is not None:
            self._find("weight", weight)
        features = self._features({label, reading.weight_column})
        self._check_apart(features, label, weight)
        layout = self._layout(features)
        columns = Columns(label, layout, features, None, weight, lengths=[])
        if layout.startswith("lists"):
            columns = columns._replace(values=self._values(columns))
        self._check_settings(columns)
        return columns

    def _by_recipe(self, recipe: Recipe) -> Columns:
        reading = self.reading
        label = self._find("label", recipe.label, needed=reading.labels == "required")
        weight = None
        if reading.weight_column is not None and reading.weights == "read":
            weight = self._find("weight", recipe.weight or reading.weight_column)
        if reading.settled is None:
            recipe = recipe.settled(self.schema, self.name, (label, reading.weight_column))
            self._check_apart(recipe.names, label, weight)
        for column in recipe.columns:
            if (times := self.schema.names.count(column.name)) != 1:
                known = "the model reads" if reading.settled else "--columns or --text names"
                raise DataError(
                    f"{self.name}: {times} columns {column.name!r}, which {known}. Expected is "
                    f"one, called exactly so ({self._there()})."
                )
            if not column.takes(type_ := self.schema.field(column.name).type):
                raise DataError(
                    f"{self.name}: column {column.name!r} of type {type_} cannot be a "
                    f"{column.KIND}: expected {column.TYPES}. Write the column alike in all "
                    "shards, or name another kind when you fit."
                )
        counts = reading.unknown_features == "out_of_range"
        names, new = tuple(recipe.names), None if counts else Counter[str]()
        return Columns(label, "recipe", names, None, weight, recipe, new)

    def _check_apart(self, features: Sequence[str], label: str | None, weight: str | None) -> None:
        """Refuse a label, or a row weight, that is a feature as well, unless a model has it so."""
        for role, column in (("label", label), ("weight", weight)):
            if column in features and self.reading.settled is None:
                raise SettingsError(
                    f"{self.name}: {column!r} is both the {role} and a feature. Leave it out of "
                    f"the features, or name another column by --{role}."
                )

    def _check_recipe(self) -> None:
        """Refuse what is neither columns of a recipe nor rows, and rows that another one made."""
        recipe, features = self.reading.recipe, self.reading.features or ()
        if recipe is not None and not {*recipe.names, *features} & set(self.schema.names):
            raise DataError(
                f"{self.name}: neither the columns of the recipe, {some(recipe.names)}, nor rows "
                f"made of them. Name the columns so ({self._there()})."
            )
        stored = recipe_in(self.schema, self.name)
        if recipe is not None and stored != recipe:
            another = "made of columns by another recipe than"
            origin = another if stored else "without a recipe of columns, unlike"
            raise DataError(
                f"{self.name}: {origin} "
                f"{self.reading.settled.by if self.reading.settled else 'the first shard'}. Give "
                "the columns, which are turned into rows by the recipe wanted."
            )

    def _fits(self, role: Role, type_: pa.DataType, several: bool | None = None) -> bool:
        """Tell whether a role's column may have this type; ``several``: labels may be lists."""
        if role == "features":
            return layout_of(type_) is not None
        if role == "values":
            return is_list(type_) and is_number(plain(type_.value_type))
        several = self.reading.multilabel if several is None else several
        if role == "label" and several and is_list(type_):
            type_ = type_.value_type
        type_, types = plain(type_), pa.types
        if role == "weight" or is_number(type_):
            return is_number(type_)
        is_label = types.is_decimal(type_) or types.is_boolean(type_) or is_string(type_)
        return bool(is_label or types.is_null(type_))  # pyarrow's type where all are empty

    def _find(self, role: Role, named: str | None, needed: bool = True) -> str | None:
        """Return the column of a role; None where there is none, and none is needed."""
        usual = ROLES[role].names if named is None else (named,)
        named_so = [field for field in self.schema if field.name in usual]
        # A usual name counts only on a column of the right type: pandas' own "index" is no list.
        fitting = [field for field in named_so if self._fits(role, field.type)]
        columns = [field.name for field in (fitting if named is None else named_so)]
        if len(columns) > 1:
            self._refuse_several(role, columns)
        for field in () if fitting else named_so:
            several_labels = role == "label" and self._fits(role, field.type, several=True)
            if named is not None or (needed and several_labels):
                self._refuse_type(role, field, several_labels)
        if not columns and needed:
            raise DataError(
                f"{self.name}: no column for the {ROLES[role].words}, looked for "
                f"{', '.join(map(repr, usual))}. Name it with --{role} NAME ({self._there()})."
            )
        return columns[0] if columns else None

    def _features(self, taken: set[str | None]) -> tuple[str, ...]:
        """Return the column of the features or, in the layout ``columns``, one a feature."""
        settled, features = self.reading.settled, self.reading.features
        unnamed = () if settled is not None and settled.asked else self._usual(taken, features)
        if features is None:
            features = unnamed
        elif self.reading.unknown_features == "refused" and {*unnamed} - {*features}:
            new = some([column for column in unnamed if column not in features])
            raise DataError(
                f"{self.name}: {new} would be features too, and "
                f"{settled.by if settled else ''} has none of that name. All shards need the same "
                "columns: add them there, remove them here, or name those to read with --features "
                "NAME,NAME,…"
            )
        for column, times in Counter(features).items():
            if self.schema.names.count(column) != 1:
                self._find("features", column)  # which refuses it
            if times > 1:
                reason = f"{column!r} is named twice among the features. Name it once."
                raise SettingsError(f"{self.name}: {reason}")
        return features

    def _usual(self, taken: set[str | None], features: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return what would be features if none were named; in a later shard, of their layout."""
        settled = self.reading.settled
        if features is not None and settled is None:
            return ()
        free = [field for field in self.schema if field.name not in taken]
        usual = [
            field.name
            for field in free
            if field.name in ROLES["features"].names
            and layout_of(field.type) not in (None, "columns")
        ]
        numbers = [field.name for field in free if layout_of(field.type) == "columns"]
        if settled is not None:
            return tuple(numbers if settled.layout == "columns" else usual)
        if len(usual) > 1:
            self._refuse_several("features", usual)
        if not usual and (len(numbers) < len(free) or not free):
            raise DataError(
                f"{self.name}: no column for the features, looked for a list or a map called "
                f"{', '.join(map(repr, ROLES['features'].names))}, and not all columns are "
                "numbers. Name it with --features NAME, or columns of numbers with --features "
                f"NAME,NAME,… ({self._there()}).{self._advice(free)}"
            )
        return tuple(usual or numbers)

    def _advice(self, fields: Sequence[pa.Field]) -> str:
        """Say how columns of any kinds become features, by those that are there."""
        specs = [spec for field in fields if (spec := likely_spec(field.name, field.type))][:3]
        if not specs:
            return ""
        options = " ".join(f"--columns '{spec}'" for spec in specs)
        return (
            f" Columns of any kinds become features by {options}, documents by --text NAME; "
            f"streamtron inspect {self.name} says what each is good for."
        )

    def _layout(self, features: Sequence[str]) -> Layout:
        settled, layouts = self.reading.settled, set[Layout]()
        for column in features:
            field = self.schema.field(column)
            layout = layout_of(field.type)
            if layout is None:
                self._refuse_type("features", field)
            if settled is not None and layout != settled.layout:
                raise DataError(
                    f"{self.name}: {column!r} of type {field.type} holds "
                    f"{LAYOUTS[layout].words}, and the features are "
                    f"{LAYOUTS[settled.layout].words} in {settled.by}. All shards need one layout: "
                    "use streamtron convert for those that differ."
                )
            if len(features) > 1 and layout != "columns":
                raise DataError(
                    f"{self.name}: of {len(features)} columns of features {column!r} is of type "
                    f"{field.type}. Name one list or map, or columns of numbers."
                )
            layouts.add(layout)
        return layouts.pop()

    def _values(self, columns: Columns) -> str | None:
        """Return the column of the values that belong to a list; None where all are 1."""
        named, layout = self.reading.values_column, self.reading.settled
        if named == "":
            return None
        without = layout is not None and named is None
        column = None if without else self._find("values", named, needed=named is not None)
        may_be = [
            field.name
            for field in self.schema
            if field.name != columns.label
            and (
                field.name in ROLES["values"].names
                or (is_list(field.type) and pa.types.is_floating(field.type.value_type))
            )
        ]
        if layout is not None and without and may_be:
            raise DataError(
                f"{self.name}: {some(may_be)} may hold the values of the features, and there is "
                f"no such column in {layout.by}, where all values are 1. Add the values there, "
                'remove the column here, or say --values "" in the fit if all are 1.'
            )
        if column is None and may_be:
            # To take all values as 1 while they stand in a column not understood would be silent.
            raise DataError(
                f"{self.name}: features in the lists {columns.features[0]!r}, and no list of "
                "numbers of a usual name for their values. Name it with --values NAME, or say "
                f'--values "" if all are 1 ({self._there()}).'
            )
        return column

    def _check_settings(self, columns: Columns) -> None:
        reading, layout = self.reading, columns.layout
        where = f"{self.name}: the features in {columns.features[0]!r} are {LAYOUTS[layout].words}"
        if columns.have_names and reading.names is None:
            needed = "Names need columns: give --hash-bits N or --vocabulary FILE."
            raise SettingsError(f"{where}. {needed}")
        if reading.names is not None and not columns.have_names:
            raise SettingsError(
                f"{where}, which need neither --hash-bits nor --vocabulary. Leave them out, or "
                "name other features with --features NAME."
            )
        if reading.values_column and not layout.startswith("lists"):
            raise SettingsError(f"{where}, which hold their values. Leave --values out.")
        if reading.table_base == 1 and layout not in ("lists", "pairs", "map"):
            raise SettingsError(f"{where}, whose first column is 0. Give --index-base 0.")

    def _refuse_several(self, role: Role, columns: Sequence[str]) -> NoReturn:
        listed = " and ".join(map(repr, columns))
        if len({*columns}) == 1:
            listed = f"{len(columns)} columns {columns[0]!r}"
        raise DataError(
            f"{self.name}: {listed} could all be the {ROLES[role].words}. Say which "
            f"with --{role} NAME, a name that occurs once ({self._there()})."
        )

    def _refuse_type(self, role: Role, field: pa.Field, several_labels: bool = False) -> NoReturn:
        which = f"{self.name}: column {field.name!r} of type {field.type}"
        if several_labels:
            raise DataError(
                f"{which} holds several labels a row. Use --multilabel, or name a column of single "
                f"ones with --label NAME ({self._there()})."
            )
        advice = self._advice([field]) if role == "features" else ""
        raise DataError(
            f"{which} cannot be the {', which are '.join(ROLES[role][:2])}. Name another one "
            f"with --{role} NAME ({self._there()}).{advice}"
        )

    def _there(self) -> str:
        shown = [f"{field.name} {field.type}" for field in list(self.schema)[:MANY]]
        remainder = f", … {len(self.schema) - MANY} more" if len(self.schema) > MANY else ""
        return f"columns there: {', '.join(shown)}{remainder}"
