"""Look at the columns of any table, and guess what each is good for."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.text import MANY, cells_of
from streamtron.data.discover import ShardFile, find_shards
from streamtron.data.formats.columns import ROLES
from streamtron.data.formats.layouts import decoded, is_list, is_number, is_string, plain
from streamtron.data.formats.text_tables import CsvReader, TextTableReader
from streamtron.data.labels import QUANTITY, are_quantity
from streamtron.data.prefetch import prefetch
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.readers import first_rows, table_reader

_log = logging.getLogger(__name__)

MOST_DISTINCT = 10_000
"""Distinct values of a column that are counted."""

MOST_COLUMNS = 1_000
"""Columns that are looked at, the first ones."""

IDENTIFIER = re.compile(r"(.*_)?(id|uuid|guid|key)|", re.IGNORECASE)
"""How columns of identifiers are called."""

NO_KIND = "of a type that no kind of column has"

EXAMPLES = 3
MANY_WORDS = 3.0
"""Words in a string, on average, from which on it is a text."""


class ColumnProfile:
    """What is known of a column: rows, nulls, distinct values, examples, words in a string."""

    def __init__(self, name: str, type_: pa.DataType) -> None:
        self.name, self.type = name, plain(type_)
        self.rows = self.nulls = 0
        self.are_distinct, self.examples, self.words = True, list[str](), 0.0
        self.has_leading_zeros = False
        self._distinct = set[Any]()

    @property
    def distinct(self) -> int | None:
        """The number of distinct values; None beyond MOST_DISTINCT, and of lists and the like."""
        few = len(self._distinct) <= MOST_DISTINCT and not types.is_nested(self.type)
        return len(self._distinct) if few else None

    @property
    def is_quantity(self) -> bool:
        """Whether it holds too many numbers for classes, or some that are not whole."""
        are_numbers = is_number(self.type) or types.is_decimal(self.type)
        return are_numbers and (self.distinct is None or are_quantity(self._distinct))

    def add(self, array: pa.Array) -> None:
        """Look at some rows more."""
        array = decoded(array)
        values = array.drop_null()
        self.nulls += len(array) - len(values)
        if is_string(array.type) and not self.rows and len(values):
            blanks = pc.count_substring_regex(values, r"\s+")
            self.words = 1.0 + (pc.mean(blanks).as_py() or 0.0)
        self.rows += len(array)
        if self.distinct is not None:
            try:
                self._distinct.update(cells_of(pc.unique(values)))
            except pa.ArrowNotImplementedError:  # of small decimals and of extensions
                self._distinct.update(map(str, cells_of(values)))
            self.are_distinct = len(self._distinct) == self.rows - self.nulls

    def show(self, array: pa.Array) -> None:
        """Take examples, of CSV as they are written; there, whole numbers such as 007 are codes."""
        values = decoded(array).drop_null()
        if len(self.examples) < EXAMPLES:
            shown = [*self.examples, *map(str, cells_of(values[:100]))]
            self.examples = list(dict.fromkeys(shown))[:EXAMPLES]
        if types.is_integer(self.type) and is_string(values.type):
            begin = pc.match_substring_regex(values, r"^0\d")
            self.has_leading_zeros |= bool(pc.any(begin).as_py())

    def guess(self) -> tuple[str | None, str]:
        """Return the kind of the column, None where it is left out, and why."""
        type_, words, named = self.type, f"{self.words:.3g} words on average", self.distinct
        is_name = self.has_leading_zeros or (is_string(type_) and self.words < MANY_WORDS)
        if types.is_nested(type_):
            is_tags = is_list(type_) and not types.is_nested(type_.value_type)
            return ("list", "lists") if is_tags else (None, NO_KIND)
        if self.nulls == self.rows or (named == 1 and not self.nulls):
            return None, "empty" if self.nulls else "constant"
        is_code = is_name or types.is_integer(type_)
        many = self.rows >= 20 or IDENTIFIER.fullmatch(self.name)
        if is_code and self.are_distinct and many:
            return None, "looks like an identifier: no value comes twice"
        if types.is_date(type_) or types.is_timestamp(type_):
            return "date", "dates"
        if (is_number(type_) or types.is_decimal(type_)) and not is_name:
            return "number", "numbers"
        if types.is_boolean(type_) or (is_name and named):
            codes = "codes: some begin with 0" if self.has_leading_zeros else f"{named:,} values"
            return "category", codes
        if is_name:
            return "category:hash", f"more than {MOST_DISTINCT:,} values"
        return ("text", words) if is_string(type_) else (None, NO_KIND)


def look_at(
    shards: Sequence[ShardFile],
    reading: ReaderConfig,
    threads: int = 1,
    most: int | Literal["all"] = "all",
) -> list[ColumnProfile]:
    """Read the columns of tables once, those of the first shard, in so many rows at most."""
    profiles: dict[str, ColumnProfile] = {}
    left = math.inf if most == "all" else most
    for shard in shards:
        if left <= 0:
            break
        reader = table_reader(shard, replace(reading, transformer=None), threads)
        if isinstance(reader, TextTableReader):
            reader.keeps_dates = True
        schema = reader.schema()
        times = Counter(schema.names)
        if not profiles:
            once = [name for name in times if times[name] == 1]
            profiles = {name: ColumnProfile(name, schema.field(name).type) for name in once}
        names = [name for name in profiles if times[name] == 1]
        integers = [name for name in names if types.is_integer(schema.field(name).type)]
        written = reader.as_written(names) if isinstance(reader, CsvReader) else None
        if written is not None:
            for name in names:
                profiles[name].show(written[name].combine_chunks())
        with closing(prefetch(partial(reader.rows, names, integers))) as parts:
            for rows in first_rows(parts, left):
                left -= len(rows)
                for name in names:
                    profiles[name].add(rows.column(name))
                    if written is None:
                        profiles[name].show(rows.column(name))
    return [*profiles.values()]


def guesses(
    profiles: list[ColumnProfile], label: str | None, weight: str | None
) -> list[dict[str, Any]]:
    """Describe columns as JSON values, with a guess what each ``becomes``: label, weight, a kind;
    None where it is left out; and why. The label is the one named, or of a usual name."""
    named = {profile.name for profile in profiles}
    label = label or next((name for name in ROLES["label"].names if name in named), None)
    made = []
    for profile in profiles:
        spec, reason = profile.guess()
        if profile.name in (label, weight):
            spec, reason = "label" if profile.name == label else "weight", ""
            if spec == "label" and profile.is_quantity:
                reason = QUANTITY
        described = {name: getattr(profile, name) for name in ("name", "type", "nulls", "distinct")}
        described |= {"type": str(profile.type), "examples": profile.examples}
        made.append(described | {"becomes": spec, "reason": reason})
    return made


def with_guesses(settings: Settings, paths: Sequence[str], threads: int | None = None) -> Settings:
    """Return settings with ``auto`` in place of columns as what they are guessed to be in the first
    rows, without those named after a minus; say it."""
    if not settings.columns or settings.columns[0] != "auto":
        return settings
    if plus := [name for name in settings.columns[1:] if not name.startswith("-")]:
        raise SettingsError(f"columns auto, and {plus[0]!r:.60}: expected -NAME, to leave it out.")
    away = {name[1:] for name in settings.columns[1:]}
    reading = ReaderConfig(null_values=settings.null_values)
    profiles = look_at(find_shards(paths), reading, threads or 1, settings.sample_rows)
    if strange := away - {profile.name for profile in profiles}:
        raise SettingsError(f"columns auto without {min(strange)!r:.60}: no such column.")
    away.add((settings.text or "").removesuffix(":hash"))
    guessed = guesses(profiles, settings.label, settings.weight)
    guessed = [guess for guess in guessed if guess["name"] not in away]
    made = [guess for guess in guessed if guess["becomes"] not in (None, "label", "weight")]
    specs = [f"{guess['name']}:{guess['becomes']}" for guess in made]
    further = f",… {len(specs) - MANY:,} more" if len(specs) > MANY else ""
    _log.warning("columns auto: %s%s", ",".join(specs[:MANY]) or "none", further)
    left_out = [guess for guess in guessed if guess["becomes"] is None]
    for guess in left_out[:MANY]:
        _log.warning("columns auto leaves %s out: %s.", guess["name"], guess["reason"])
    if len(left_out) > MANY:
        _log.warning("columns auto leaves %d more out: see inspect.", len(left_out) - MANY)
    if not specs and settings.text is None:
        raise DataError(f"{paths[0]}: no column that --columns auto would make a feature of.")
    return settings.but(columns=tuple(specs) or None)
