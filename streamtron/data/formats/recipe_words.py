"""Write a column of a recipe in words, ``NAME:KIND,OPTION=VALUE,…``, and as JSON, and read both."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import pyarrow as pa

from streamtron.core.errors import SettingsError
from streamtron.core.text import digits
from streamtron.data.formats.category_column import CategoryColumn
from streamtron.data.formats.date_column import DateColumn
from streamtron.data.formats.list_column import ListColumn, VectorColumn
from streamtron.data.formats.number_column import NumberColumn
from streamtron.data.formats.recipe_column import Column
from streamtron.data.formats.text_column import TextColumn

KINDS: dict[str, type[Column]] = {
    kind.KIND: kind
    for kind in (NumberColumn, CategoryColumn, DateColumn, ListColumn, VectorColumn, TextColumn)
}
"""The kinds of columns."""

ALIASES = {"ngrams": "ngram_range", "max_features": "most_features"}
"""Option → the field that it is, where that has another name."""

IDENTIFIER = re.compile(r"(.*_)?(id|uuid|guid|key)|", re.IGNORECASE)
"""How columns of identifiers are called."""

_SPEC = re.compile(rf"(.+):({'|'.join(KINDS)})(?:,(.*))?", re.DOTALL)


def column_of(spec: str) -> Column:
    """Make a column of its words; a SettingsError: they are none."""
    if (match := _SPEC.fullmatch(spec)) is None:
        raise SettingsError(
            f"columns: {spec!r:.80}. Wanted is NAME:KIND,OPTION=VALUE,…, with KIND one of "
            f"{', '.join(KINDS)}, as in 'age:number,null=mean'; or auto, alone."
        )
    name, kind, options = match[1], KINDS[match[2]], match[3] or ""
    known = {entry.name: str(entry.type) for entry in _options(kind)}
    given: dict[str, str] = {}
    last = None
    while options:
        word, _, later = options.partition(",")
        option, equals, value = word.partition("=")
        option = ALIASES.get(option.strip(), option.strip())
        if option == "token_pattern":  # which may have commas, and is the last one
            value, later = options.partition("=")[2], ""
        options = later
        if option in known and (equals or known[option] == "bool"):
            given[option], last = value if equals else "true", option
        elif last is not None and not equals:
            given[last] += f",{word}"  # a list goes on
        else:
            raise SettingsError(
                f"columns: {spec!r:.80}: no option {word!r:.40} of a {kind.KIND}. Wanted are "
                f"{', '.join(known)}."
            )
    values = {}
    for option, text in given.items():
        try:
            values[option] = _VALUES[known[option]].read(text)
        except (ValueError, KeyError) as error:
            wrong = f"{option}={text:.40}, expected {_VALUES[known[option]].words}"
            raise SettingsError(f"columns: {spec!r:.80}: {wrong}.") from error
    return kind(name, **values)


def likely_kind(type_: pa.DataType) -> str | None:
    """Return the first kind that a column of a type can be of; None where there is none."""
    return next((name for name, kind in KINDS.items() if kind("-").fits(type_)), None)


def likely_spec(name: str, type_: pa.DataType) -> str | None:
    """Return what a column most likely becomes, in words; None of an identifier, or of no kind."""
    kind = likely_kind(type_)
    return None if kind is None or IDENTIFIER.fullmatch(name) else f"{name}:{kind}"


def spec_of(column: Column) -> str:
    """Return a column in words, as ``column_of`` reads them. SettingsError: there are none."""
    given, options = given_fields(column), [f"{column.name}:{column.KIND}"]
    names = [entry.name for entry in _options(type(column)) if entry.name in given]
    for name in sorted(names, key="token_pattern".__eq__):
        value = given[name]
        if name == "ngram_range":
            name, value = "ngrams", "-".join(map(str, value))
        elif isinstance(value, list):
            value = ",".join(value)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        options.append(name if value is True else f"{name}={text}")
    spec = ",".join(options)
    if given_fields(column_of(spec)) != {name: given[name] for name in ("name", *names)}:
        column.refuse(
            f"no words say this. {spec!r:.80} is read as another column: no stop word may have a "
            "comma, or be called as an option"
        )
    return spec


def _options(kind: type[Column]) -> list[Any]:
    return [x for x in fields(kind) if x.name != "name" and not x.metadata.get("counted")]


def given_fields(column: Column) -> dict[str, Any]:
    """Return the fields of a column that are not their defaults, as JSON values."""
    values = {entry.name: (getattr(column, entry.name), entry.default) for entry in fields(column)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, (value, default) in values.items()
        if name == "name" or value != default
    }


def column_from(values: dict[str, Any]) -> Column:
    """Make a column of JSON values; a ValueError, KeyError or TypeError: they are none."""
    kind = KINDS[values.pop("kind")]
    types = {entry.name: str(entry.type) for entry in fields(kind)}
    return kind(**{name: _VALUES[types[name]].checked(value) for name, value in values.items()})


class _Values(NamedTuple):
    """A type of options: of which types its JSON values are, those of its items where it is a
    list, how it is read from text, and what is then wanted."""

    types: tuple[type, ...]
    items: tuple[type, ...]
    read: Callable[[str], Any]
    words: str

    def checked(self, value: Any) -> Any:
        """Return a JSON value; a TypeError: it is of another type."""
        items = value if isinstance(value, list) and self.items else ()
        if type(value) not in self.types or not {type(item) for item in items} <= {*self.items}:
            raise TypeError(f"{value!r:.40}")
        return tuple(value) if isinstance(value, list) else value


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.replace(",", "-").partition("-")
    return int(digits(low)), int(digits(high or low))


_NUMBER = _Values((int,), (), lambda text: int(digits(text)), "a whole number")
_NAME = _Values((str,), (), str, "text")
_NAMES = _Values((list,), (str,), lambda text: tuple(text.split(",")), "names between commas")
_VALUES: dict[str, _Values] = {
    "bool": _Values((bool,), (), {"true": True, "false": False}.__getitem__, "true or false"),
    "float": _Values((float,), (), float, "a number"),
    "int": _NUMBER,
    "int | None": _NUMBER,
    "int | float": _Values(
        (int, float),
        (),
        lambda text: (float if {*".e"} & {*text} else int)(digits(text)),
        "a number of documents, or a share such as 0.5",
    ),
    "float | None": _Values((float,), (), float, "a number"),
    "str": _NAME,
    "str | None": _NAME,
    "tuple[str, ...]": _NAMES,
    "tuple[str, ...] | None": _NAMES,
    "tuple[float, ...] | None": _Values((list,), (float,), float, "numbers"),
    "tuple[int, int]": _Values((list,), (int,), _range, "LOW-HIGH, as in 1-2"),
}
"""Type of a field → its values."""
