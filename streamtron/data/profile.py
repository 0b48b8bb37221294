"""Look at the columns of any table, and guess what each is good for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from streamtron.core.config import Settings
from streamtron.core.errors import DataError
from streamtron.core.text import cells_of, some
from streamtron.data.discover import ShardFile, find_shards
from streamtron.data.formats.columns import ROLES
from streamtron.data.formats.layouts import decoded, is_number, is_string, plain
from streamtron.data.formats.recipe import Recipe
from streamtron.data.formats.recipe_words import IDENTIFIER, likely_kind
from streamtron.data.formats.tables import TableReader
from streamtron.data.formats.text_tables import CsvReader
from streamtron.data.labels import QUANTITY, are_quantity
from streamtron.data.prefetch import prefetch
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.readers import open_reader

_log = logging.getLogger(__name__)

MOST_DISTINCT = 10_000
"""Distinct values of a column that are counted."""

MOST_COLUMNS = 1_000
"""Columns that are looked at, the first ones."""

MISSING = ("na", "n/a", "nan", "null", "none", "-", "?")
"""Words, in small letters, that often stand for what is missing."""

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
        few = len(self._distinct) <= MOST_DISTINCT and not pa.types.is_nested(self.type)
        return len(self._distinct) if few else None

    @property
    def is_quantity(self) -> bool:
        """Whether it holds too many numbers for classes, or some that are not whole."""
        if not (is_number(self.type) or pa.types.is_decimal(self.type)):
            return False
        return self.distinct is None or are_quantity(self._distinct)

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

    def _remark(self) -> str:
        """Say it where all strings but words for a missing value are numbers, or dates."""
        missing = {text for text in self._distinct if str(text).strip().lower() in MISSING}
        if not (is_string(self.type) and missing and self._distinct - missing):
            return ""
        for kind, type_ in (("number", pa.float64()), ("date", pa.timestamp("us"))):
            with suppress(pa.ArrowInvalid):
                pa.array([*self._distinct - missing]).cast(type_)
                words = some(sorted(missing))
                return f"a {kind} but for {words}: make that null, in CSV an empty field"
        return ""

    def guess(self) -> tuple[str | None, str]:
        """Return the kind and options of the column, None where it is left out, and why."""
        type_, remark = self.type, self._remark()
        null = ",null=column" if self.nulls else ""
        is_name = self.has_leading_zeros or (is_string(type_) and self.words < MANY_WORDS)
        if types.is_nested(type_):
            kind = likely_kind(type_)
            return (f"{kind}{null}", "") if kind else (None, NO_KIND)
        if self.nulls == self.rows or (self.distinct == 1 and not self.nulls):
            return None, "empty" if self.nulls else "constant"
        is_code = is_name or types.is_integer(type_)
        many = self.rows >= 20 or IDENTIFIER.fullmatch(self.name)
        if is_code and self.are_distinct and many and not remark:
            return None, "looks like an identifier: no value comes twice"
        if self.has_leading_zeros:
            remark = "codes: some begin with 0"
        if types.is_date(type_) or types.is_timestamp(type_):
            hour = ",hour" * types.is_timestamp(type_)
            return f"date,parts=age,weekday,month{hour},scale=standard{null}", ""
        if (is_number(type_) or types.is_decimal(type_)) and not is_name:
            return f"number,scale=standard{',null=mean' * bool(self.nulls)}", ""
        if types.is_boolean(type_) or (is_name and self.distinct):
            return f"category{null}", remark
        if is_name:
            return f"category,hash_bits=18{null}", remark or f"more than {MOST_DISTINCT:,} values"
        if is_string(type_):
            return f"text,tfidf{',null=empty' * bool(self.nulls)}", ""
        return None, NO_KIND


class Guess(NamedTuple):
    """A column, what it becomes (``"label"``, ``"weight"``, recipe words; None: left out), why."""

    profile: ColumnProfile
    spec: str | None
    reason: str

    def described(self) -> dict[str, Any]:
        """Return it as JSON values."""
        known = self.profile
        return {
            "name": known.name,
            "type": str(known.type),
            "nulls": known.nulls,
            "distinct": known.distinct,
            "examples": known.examples,
            "becomes": self.spec,
            "reason": self.reason,
        }


def look_at(shards: Sequence[ShardFile], threads: int = 1) -> list[ColumnProfile]:
    """Read the columns of tables once, those of the first shard."""
    dates = ReaderConfig(recipe=Recipe.of("*:date"))  # what looks like one in text
    profiles: dict[str, ColumnProfile] = {}
    for shard in shards:
        reader = open_reader(shard, dates, threads)
        assert isinstance(reader, TableReader)  # libsvm text has no columns
        schema = reader.schema()
        if not profiles:
            names = [name for name in schema.names if schema.names.count(name) == 1][:MOST_COLUMNS]
            profiles = {name: ColumnProfile(name, schema.field(name).type) for name in names}
        names = [name for name in profiles if schema.names.count(name) == 1]
        written = reader.as_written(names) if isinstance(reader, CsvReader) else None
        if written is not None:
            for name in names:
                profiles[name].show(written[name].combine_chunks())
        with closing(prefetch(partial(reader.rows, names))) as parts:
            for rows in parts:
                for name in names:
                    profiles[name].add(rows.column(name))
                    if written is None:
                        profiles[name].show(rows.column(name))
    return [*profiles.values()]


def guesses(profiles: list[ColumnProfile], label: str | None, weight: str | None) -> list[Guess]:
    """Guess what each column would become; the label is the one named, or of a usual name."""
    named = {profile.name for profile in profiles}
    label = label or next((name for name in ROLES["label"].names if name in named), None)
    made = []
    for profile in profiles:
        spec, reason = profile.guess()
        if profile.name in (label, weight):
            spec, reason = "label" if profile.name == label else "weight", ""
            if spec == "label" and profile.is_quantity:
                reason = QUANTITY
        made.append(Guess(profile, spec, reason))
    return made


def with_guesses(settings: Settings, paths: Sequence[str], threads: int | None = None) -> Settings:
    """Return settings with ``auto`` in place of columns as what they are guessed to be; say it."""
    if settings.columns != ("auto",):
        return settings
    guessed = guesses(look_at(find_shards(paths), threads or 1), settings.label, settings.weight)
    named = (settings.text or "").partition(",")[0]
    specs = [
        f"{guess.profile.name}:{guess.spec}"
        for guess in guessed
        if guess.spec not in (None, "label", "weight") and guess.profile.name != named
    ]
    _log.warning("columns auto: %s", "  ".join(specs) or "none")
    for guess in guessed:
        if guess.spec is None:
            _log.warning("columns auto leaves %s out: %s.", guess.profile.name, guess.reason)
        elif guess.reason and guess.spec != "label":
            _log.warning("columns auto, %s: %s.", guess.profile.name, guess.reason)
    if not specs and not named:
        raise DataError(f"{paths[0]}: no column that --columns auto would make a feature of.")
    return settings.but(columns=tuple(specs) or None)
