"""Read tables that are text, CSV and JSON lines: cut into whole rows, parsed by pyarrow.

The columns and their types are those of a file's first megabyte. A column of whole numbers there
may hold other numbers later. Lines in messages count from 1.
"""

from __future__ import annotations

import csv as python_csv
import io
import re
from abc import abstractmethod
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.json as json

from streamtron.core.errors import DataError
from streamtron.core.limits import available_memory
from streamtron.data import storage
from streamtron.data.formats import is_few, text_kernels
from streamtron.data.formats.layouts import Spot, is_string
from streamtron.data.formats.tables import Part, TableReader
from streamtron.data.formats.text_labels import NUMBER
from streamtron.data.formats.text_stream import READ_BYTES, BadLine, TextStream, whole_rows
from streamtron.data.prefetch import in_order

MOST_NESTED = 64
"""Depth of lists and objects in JSON: pyarrow's time grows with its square, and its stack ends."""

MOST_COLUMNS = 100_000
"""Columns of a CSV file, at most."""

MISSING = ("na", "n/a", "nan", "null", "none", "-", "?")
"""Words, in small letters, that often stand for what is missing."""

_COLUMN_BYTES = 1 << 15  # pyarrow's buffers of a column, twice what was measured
_ITEMS = {"list": pa.string(), "vector": pa.float64()}  # of lists that are all empty, or null
_ROUNDED = 2.0**53  # from here on floats skip whole numbers
_MARK = b"\xef\xbb\xbf"
_QUOTE = b'"'


class Cut(NamedTuple):
    """Whole rows of a text, the number of their first line, the stored bytes up to their end."""

    text: bytearray
    line: int
    bytes_read: int

    def line_of(self, at: int) -> int:
        """Return the line of a byte."""
        return self.line + self.text.count(b"\n", 0, at)


class TextTableReader(TableReader):
    """One shard of text that holds a table, plain or .gz, .bz2, .xz, .zst; it is read as a stream,
    also from a store, and parsed in ``threads``."""

    BATCH_BYTES = 1 << 20
    """Text that is parsed at a time, at least."""

    SHARE = 96
    """A row may take this part of the memory: its document takes 24 times its length."""

    QUOTED = False
    """Whether a line may end within quotes."""

    @contextmanager
    def _open(self, whole: bool) -> Iterator[tuple[Any, int]]:
        stream = TextStream(self.path, self.name)
        yield stream, storage.stamp(self.path, self.name).size
        if whole:
            self._fingerprint = stream.fingerprint()

    def _schema(self, file: Any) -> pa.Schema:
        return self._first_schema

    @cached_property
    def _first_schema(self) -> pa.Schema:
        schema = self._first_rows(None).schema
        return pa.schema([self._settled(field) for field in schema])

    def _first_rows(self, schema: pa.Schema | None) -> pa.Table:
        """Parse the rows by which the types of columns are told."""
        with closing(self._cuts(TextStream(self.path, self.name))) as cuts:
            first = next(cuts, None)
        if first is None:
            return pa.table({})
        with self._place(first):
            table = self._table(first, schema)
            if pa.binary() in table.schema.types:
                self._check_utf8(first)
        return table

    def _settled(self, field: pa.Field) -> pa.Field:
        """Return a column of the type that it is read as: what looks like a date, or is empty, is a
        string, unless the recipe or the first shard says otherwise."""
        kind, of_csv, recipe = self._kind_of(field.name), self.QUOTED, self.reading.recipe
        dated, empty = pa.types.is_temporal(field.type), pa.types.is_null(field.type)
        outright = recipe is None or field.name in recipe.names  # and not by a pattern
        if kind == "number" and (empty or (of_csv and is_string(field.type) and outright)):
            return field.with_type(pa.float64())
        if kind == "date" and dated:
            return field
        if kind in _ITEMS and (empty or field.type == pa.list_(pa.null())):
            return field.with_type(pa.list_(_ITEMS[kind]))
        of_text = of_csv and kind in ("text", "category")
        return field.with_type(pa.string()) if of_text or dated or empty else field

    def _kind_of(self, name: str) -> str | None:
        """Return what a recipe makes of a column, named outright or by a pattern; numbers of the
        first shard are numbers."""
        recipe, settled = self.reading.recipe, self.reading.settled
        if recipe is not None:
            columns = [column for column in recipe.columns if column.name == name]
            columns += [column for column in recipe.columns if fnmatchcase(name, column.name)]
            return columns[0].KIND if columns else None
        is_number = settled is not None and settled.layout == "columns"
        return "number" if is_number and name in (self.reading.features or ()) else None

    def _parts(self, file: Any, columns: list[str]) -> Iterator[Part]:
        size = max(storage.stamp(self.path, self.name).size, 1)
        parse = partial(self._rows, schema=self._schema(file), columns=columns)
        with closing(in_order(parse, self._cuts(file), self._threads)) as parsed:
            for cut, rows in parsed:
                end = cut.bytes_read / size
                if len(rows):
                    yield Part(rows, self._spot(cut, len(rows)), end)

    def _spot(self, cut: Cut, rows: int) -> Spot:
        named = cut.line == 1 and self.QUOTED  # by the first line
        if cut.text.count(b"\n") - named == rows:
            return Spot(self.name, "line", cut.line + named)
        # some are blank, or rows of several lines
        return Spot(self.name, f"from line {cut.line} on", 0)

    def _rows(self, cut: Cut, schema: pa.Schema, columns: list[str]) -> tuple[Cut, pa.RecordBatch]:
        """Parse whole rows; whole numbers are read as floats, and are integers where all are."""
        fields = [schema.field(column) for column in columns]
        keys = set(self.reading.features or ())
        keys |= {name for name in columns if self._kind_of(name) == "list"}
        wide = [_wide(field, field.name in keys) for field in fields]
        with self._place(cut):
            table = self._table(cut, pa.schema(wide))
            arrays = [self._narrow(cut, table, field) for field in fields]
        return cut, pa.RecordBatch.from_arrays(arrays, columns)

    def _narrow(self, cut: Cut, table: pa.Table, field: pa.Field) -> pa.Array:
        """Return a column as integers where all are whole; read again where floats round them."""
        is_whole = pa.types.is_integer(field.type)
        if is_whole and (pc.max(pc.abs(table[field.name])).as_py() or 0) >= _ROUNDED:
            with suppress(pa.ArrowInvalid):
                table = self._table(cut, pa.schema([field]))
        array = table[field.name].combine_chunks()
        try:
            return array.cast(field.type)
        except pa.ArrowInvalid:
            return array

    @abstractmethod
    def _table(self, cut: Cut, schema: pa.Schema | None) -> pa.Table:
        """Parse rows: these columns as these types, or all columns as what they look like."""

    def _cuts(self, stream: TextStream) -> Generator[Cut]:
        """Cut a text into whole rows, BATCH_BYTES of them or little more at a time."""
        line, blocks = 1, stream.blocks(min(READ_BYTES, self.BATCH_BYTES))
        rows = whole_rows(blocks, self.BATCH_BYTES, self.KIND, self.SHARE, quoted=self.QUOTED)
        try:
            for text, bytes_read in rows:
                if line == 1 and text.startswith(_MARK):
                    del text[: len(_MARK)]
                if not text.endswith(b"\n"):
                    if not text.rstrip().endswith(b"}"):  # which ends a row of JSON
                        self.note_end("the last line ends without a newline")
                    text += b"\n"
                if line == 1 or not text.isspace():
                    yield Cut(text, line, bytes_read)
                line += text.count(b"\n")
        except BadLine as bad:
            raise bad.kind(f"{self.name}, line {line + bad.line}: {bad.sentence}") from None

    def _check_utf8(self, cut: Cut) -> None:
        try:
            cut.text.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.name}, line {cut.line_of(error.start)}: not UTF-8. Convert the file, as "
                "iconv -f latin1 -t utf-8 does."
            ) from None

    @contextmanager
    def _place(self, cut: Cut) -> Iterator[None]:
        """Say from which line on the text is not what it should be."""
        try:
            yield
        except (pa.ArrowException, UnicodeDecodeError) as error:
            self._check_utf8(cut)
            reason = " ".join(str(error).split()).rstrip(".")
            line = self._line_of(cut, reason)
            place = f"from line {cut.line} on" if line is None else f"line {line}"
            word = re.search(r"invalid value '(.*)'", reason)
            is_null = word is not None and word[1].strip().lower() in MISSING
            remedy = "Leave a field empty that is a null" if is_null else "Correct the rows"
            raise DataError(
                f"{self.name}, {place}: not {self.KIND} with the columns of its "
                f"first rows ({reason}). {remedy}, or remove the rows."
            ) from error

    def _line_of(self, cut: Cut, reason: str) -> int | None:
        """Return the line that pyarrow's reason is about; None where it does not tell."""
        return None


class CsvReader(TextTableReader):
    """Values between commas, or between tabs in a .tsv, as RFC 4180 has it: the first line names
    the columns, a field that holds a quote, a comma or an end of line is quoted, and quotes in it
    are doubled."""

    KIND = "a CSV table"
    QUOTED = True

    def as_written(self, names: list[str]) -> pa.Table:
        """Return columns of the first rows as text."""
        return self._first_rows(pa.schema([(name, pa.string()) for name in names]))

    def _table(self, cut: Cut, schema: pa.Schema | None) -> pa.Table:
        separator = self._separator
        self._check_quotes(cut, separator.encode())
        if cut.line == 1:
            self._check_header(cut)
        names = None if cut.line == 1 else self._first_schema.names
        table = csv.read_csv(
            pa.BufferReader(cut.text),
            csv.ReadOptions(use_threads=False, block_size=len(cut.text) + 1, column_names=names),
            csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            csv.ConvertOptions(
                column_types=schema, include_columns=None if schema is None else schema.names,
                null_values=[""], strings_can_be_null=True,
            ),
        )  # fmt: skip
        if schema is None:
            self._check_names(table.schema.names)
            return table
        for at, name in enumerate(schema.names):
            if self._kind_of(name) == "text":  # which may be empty, and is not null then
                table = table.set_column(at, name, pc.fill_null(table[name], ""))
        return table

    @property
    def _separator(self) -> str:
        return "\t" if ".tsv" in storage.file_name(self.path).lower() else ","

    def _check_header(self, cut: Cut) -> None:
        """Refuse more columns than fit in memory, and a header that comes again."""
        header, sign = cut.text[: cut.text.index(b"\n") + 1], self._separator.encode()
        most = min(MOST_COLUMNS, available_memory() // _COLUMN_BYTES)
        if (columns := header.count(sign) + 1) > most:
            raise DataError(
                f"{self.name}, line 1: {columns:,} columns; CSV may have {most:,} in the memory "
                "there is. Write the rows as libsvm text, or as lists in Parquet or JSON lines."
            )
        if columns == 1 and (odd := re.search(b"[;,\t]", header)) and _QUOTE not in header:
            raise DataError(
                f"{self.name}, line 1: {odd[0].decode()!r} between the names of the columns. "
                "Write commas, or tabs in a file whose name ends in .tsv."
            )
        if columns > 1 and (again := cut.text.find(b"\n" + header)) >= 0:
            self._refuse_header(cut.line_of(again + 1))

    def _refuse_header(self, line: int) -> NoReturn:
        raise DataError(f"{self.name}, line {line}: repeats the header. Remove the line.")

    def _line_of(self, cut: Cut, reason: str) -> int | None:
        match = re.search(r"CSV column #(\d+): .*invalid value '(.*)'", reason)
        rows = python_csv.reader(io.StringIO(cut.text.decode()), delimiter=self._separator)
        with suppress(python_csv.Error):  # long fields, and rows that end in a carriage return
            for row in rows if match else ():
                if match and row and row[int(match[1])].strip() == match[2].strip():
                    if cut.line > 1 and row == self._first_schema.names:
                        self._refuse_header(cut.line + rows.line_num - 1)
                    return cut.line + rows.line_num - 1
        return None

    def _check_names(self, names: list[str]) -> None:
        if names and all(NUMBER.fullmatch(name.strip().encode()) for name in names):
            raise DataError(
                f"{self.name}, line 1: numbers ({', '.join(names[:5])}) where the names of the "
                "columns are wanted. Add a line with their names."
            )

    def _check_quotes(self, cut: Cut, separator: bytes) -> None:
        """Refuse a quote within a field that is not doubled: rows could be cut in the middle."""
        places = np.flatnonzero(np.frombuffer(cut.text, np.uint8) == _QUOTE[0])
        if not len(places):
            return
        padded = np.frombuffer(b"\n" + cut.text + b"\n\n", np.uint8)
        outside = [*separator, *b"\r\n"]
        opening, closing_ = places[::2], places[1::2]
        opens = np.isin(padded[opening], outside)
        opens[1:] |= opening[1:] == closing_[: len(opening) - 1] + 1
        closes = np.isin(padded[closing_ + 2], outside)
        closes[: len(opening) - 1] |= closing_[: len(opening) - 1] + 1 == opening[1:]
        wrong = [*opening[~opens], *closing_[~closes]]
        if len(places) % 2:
            wrong.append(places[-1])
        if wrong:
            line = cut.line_of(int(min(wrong)))
            raise DataError(
                f"{self.name}, line {line}: a quote within a field, or one that is not closed. "
                'Quote a field that holds quotes, and double them: "12"" pipe".'
            )


class JsonLinesReader(TextTableReader):
    """An object a line; a field that is missing is null."""

    KIND = "a file of JSON lines"

    @cached_property
    def _first_schema(self) -> pa.Schema:
        """The first rows' fields, and those that are asked for by name and come later."""
        schema, recipe = super()._first_schema, self.reading.recipe
        named = {self.reading.label_column, self.reading.weight_column, self.reading.values_column}
        named |= {*(self.reading.features or ()), *(recipe.names if recipe else ())}
        missing = {name for name in named if name and not re.search(r"[*?[]", name)}
        missing -= {*schema.names}
        with closing(self._cuts(TextStream(self.path, self.name))) as cuts:
            for cut in cuts if missing else ():
                with self._place(cut):
                    fields = self._table(cut, None).schema
                for name in missing.intersection(fields.names):
                    schema = schema.append(self._settled(fields.field(name)))
                    missing.remove(name)
                if not missing:
                    break
        return schema

    def _table(self, cut: Cut, schema: pa.Schema | None) -> pa.Table:
        if cut.line == 1 and cut.text.lstrip().startswith(b"["):
            raise DataError(
                f"{self.name}: a JSON array, and an object a line is wanted. Write each item on a "
                "line of its own, as jq -c '.[]' does."
            )
        deep = len(cut.text)
        if not (is_few(deep) and is_shallow(cut.text)):
            deep = text_kernels.too_deep(np.frombuffer(cut.text, np.uint8), MOST_NESTED)
        if deep < len(cut.text):
            raise DataError(
                f"{self.name}, line {cut.line_of(deep)}: lists and objects nested "
                f"deeper than {MOST_NESTED}, or not closed. Flatten or correct the row."
            )
        return json.read_json(
            pa.BufferReader(cut.text),
            json.ReadOptions(use_threads=False, block_size=len(cut.text) + 1),
            json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="infer" if schema is None else "ignore",
            ),
        )

    def _line_of(self, cut: Cut, reason: str) -> int | None:
        row = re.search(r"in row (\d+)$", reason)
        lines = [number for number, text in enumerate(cut.text.split(b"\n")) if text.strip()]
        return cut.line + lines[int(row[1])] if row and int(row[1]) < len(lines) else None


def is_shallow(text: bytearray) -> bool:
    """Tell whether at most ``MOST_NESTED`` brackets are open anywhere in JSON."""
    brackets = np.frombuffer(re.sub(rb'"(?:[^"\\]|\\.)*+"', b"", text, flags=re.DOTALL), np.uint8)
    depths = np.isin(brackets, [*b"[{"]).cumsum() - np.isin(brackets, [*b"]}"]).cumsum()
    return bool(depths.max(initial=0) <= MOST_NESTED)


def _wide(field: pa.Field, are_keys: bool) -> pa.Field:
    """Return a field of whole numbers, or of lists of them that are no keys, as one of floats."""
    if pa.types.is_integer(field.type):
        return field.with_type(pa.float64())
    if pa.types.is_list(field.type) and pa.types.is_integer(field.type.value_type) and not are_keys:
        return field.with_type(pa.list_(pa.float64()))
    return field
