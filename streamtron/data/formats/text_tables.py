"""Read tables that are text, CSV and JSON lines: a megabyte of whole rows at a time, by pyarrow.

The columns and their types are those of a file's first megabyte. A column of whole numbers there
may hold other numbers later. Rows in messages count from 1, without the header.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.json as json

from streamtron.core.errors import DataError
from streamtron.core.limits import available_memory
from streamtron.core.text import reason_of
from streamtron.data import storage
from streamtron.data.formats import text_kernels
from streamtron.data.formats.layouts import Spot, is_string
from streamtron.data.formats.tables import Part, TableReader
from streamtron.data.formats.text_labels import NUMBER
from streamtron.data.formats.text_stream import Cut, TextStream
from streamtron.data.prefetch import in_order

MOST_NESTED = 64
"""Depth of lists and objects in JSON: pyarrow's time grows with its square, and its stack ends."""

MOST_COLUMNS = 100_000
"""Columns of a CSV file, at most."""

WIDE = 1_000
"""Columns from which on one thread parses: each thread has buffers for all columns."""

_COLUMN_BYTES = 1 << 15  # pyarrow's buffers of a column, twice what was measured
_NULL_VALUES = [*csv.ConvertOptions().null_values, "?"]
_ROUNDED = 2.0**53  # from here on floats skip whole numbers


class StreamedReader(TableReader):
    """One shard of text that holds a table, plain or .gz, .bz2, .xz, .zst; it is read as a stream,
    also from a store."""

    @contextmanager
    def _open(self, whole: bool) -> Iterator[Any]:
        stream = TextStream(self.path, self.name)
        yield stream
        if whole:
            self._fingerprint = stream.fingerprint()


class TextTableReader(StreamedReader):
    """One shard of text that pyarrow parses."""

    BLOCK_BYTES = 1 << 20
    """Text that is parsed at a time, which takes some 40 times as much memory; no row is longer."""

    IS_TYPED: ClassVar[bool]
    """Whether a cell tells text from a number."""

    keeps_dates = False
    """Whether what looks like a date is one, and not text."""

    def _schema(self, file: Any) -> pa.Schema:
        return self._first_schema

    @cached_property
    def _first_schema(self) -> pa.Schema:
        return pa.schema([self._settled(field) for field in self._first_rows(None).schema])

    def _first_rows(self, schema: pa.Schema | None) -> pa.Table:
        table = pa.table({})
        with closing(self._tables(TextStream(self.path, self.name), schema)) as tables:
            for table, _ in tables:
                if len(table):
                    break
        return table

    def _tables(
        self, stream: TextStream, schema: pa.Schema | None, threads: int = 1
    ) -> Generator[tuple[pa.Table, Cut]]:
        """Parse some rows at a time: the columns of a schema, or all as what they look like. After
        the text with the names of the columns, threads parse texts side by side."""
        known = [] if schema is None else self._first_schema.names
        names, size, rows = None, self.BLOCK_BYTES, 0

        def parsed(cut: Cut) -> tuple[Cut, pa.Table | pa.ArrowInvalid]:
            try:
                return cut, self._parsed(cut.text, names, schema)
            except pa.ArrowInvalid as error:  # which names a row of this text
                return cut, error

        cuts = stream.cuts(size, self.KIND, longest=size, end_of=self._end_of_rows)
        with ExitStack() as stack:
            tables: Iterator[tuple[Cut, pa.Table | pa.ArrowInvalid]] = map(parsed, cuts)
            while (item := next(tables, None)) is not None:
                cut, table = item
                if isinstance(table, pa.ArrowInvalid):
                    if re.match("(CSV parse error: )?Empty (CSV|JSON) file", str(table)):
                        continue
                    has_header = names is None and not self.IS_TYPED
                    raise self._refusal(table, rows - has_header, known, cut) from table
                if names is None:
                    names = known or table.schema.names
                    tables = stack.enter_context(closing(in_order(parsed, cuts, threads)))
                rows += len(table)
                yield table, cut

    @abstractmethod
    def _end_of_rows(self, cut: Cut, last: bool) -> int:
        """Return where the last whole row ends; refuse what pyarrow would take for something
        else."""

    @abstractmethod
    def _parsed(self, text: bytearray, names: list[str] | None, schema: pa.Schema | None) -> Any:
        """Return a table of whole rows; ``names`` : of all columns, where they are not the first
        row."""

    def _refusal(self, error: Exception, before: int, names: list[str], cut: Cut) -> DataError:
        """Return an error with the row that pyarrow names, or the line where the text begins;
        ``before`` : the rows before the text, less a header in it."""
        reason, place = reason_of(error), f"from line {cut.line} on"
        if row := re.search(r"Row #(\d+): | in row (\d+)$", reason):
            place = f"row {before + int(row[1] or int(row[2]) + 1)}"
            reason = reason.replace(row[0], "")
        if column := names and re.search(r"In CSV column #(\d+): ", reason):
            reason = reason.replace(column[0], f"In column {names[int(column[1])]!r}: ")
        remedy = "Correct the row; a field that is a null is left empty"
        if "UTF8" in reason:
            remedy = "Convert the file to UTF-8, as iconv -f latin1 -t utf-8 does"
        return DataError(
            f"{self.name}, {place}: not {self.KIND} with the columns of its first rows ({reason}). "
            f"{remedy}."
        )

    def _settled(self, field: pa.Field) -> pa.Field:
        """Return a column of the type that it is read as: what looks like a date, or is empty, is a
        string, unless the transformer or the first shard says otherwise."""
        reading, kind, of_csv = self.reading, None, not self.IS_TYPED
        if reading.transformer is not None:
            kind = dict(reading.transformer.inputs).get(field.name)
        elif reading.layout == "columns" and field.name in (reading.features or ()):
            kind = "number"  # as in the first shard
        dated, empty = pa.types.is_temporal(field.type), pa.types.is_null(field.type)
        if kind == "number" and (empty or (of_csv and is_string(field.type))):
            return field.with_type(pa.float64())
        if dated and (kind == "date" or self.keeps_dates):
            return field
        if kind == "date" and of_csv:
            return field.with_type(pa.timestamp("us"))
        if kind == "list" and not of_csv and (empty or field.type == pa.list_(pa.null())):
            return field.with_type(pa.list_(pa.string()))
        of_text = of_csv and kind in ("text", "category", "documents", "list")
        return field.with_type(pa.string()) if of_text or dated or empty else field

    def _parts(
        self, file: Any, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        size = max(file.size(), 1)
        fields = [self._schema(file).field(column) for column in columns]
        wide = [_wide(field) if field.name in numbers else field for field in fields]
        row = 1
        threads = self._threads if len(self._first_schema) < WIDE else 1
        tables = self._tables(file, pa.schema(wide), threads)
        for table, cut in tables:
            for batch in table.to_batches():
                spot, end = Spot(self.name, "", row), cut.bytes_read / size
                arrays = [self._whole(batch.column(f.name), f, row) for f in fields]
                rows = pa.RecordBatch.from_arrays(arrays, columns) if columns else batch
                yield Part(rows, spot, end)
                row += len(batch)

    def _whole(self, array: pa.Array, field: pa.Field, row: int) -> pa.Array:
        """Return a column as integers where all are whole, so that none is rounded unseen."""
        if array.type == field.type:
            return array
        items = array.flatten() if pa.types.is_list(array.type) else array
        if (pc.max(pc.abs(items)).as_py() or 0.0) >= _ROUNDED:
            raise DataError(
                f"{self.name}, from row {row} on: a number of 2⁵³ or more in column "
                f"{field.name!r}, which holds whole numbers in the first rows. Float64 may round "
                "it: rescale the column, or make identifiers categories."
            )
        try:
            return array.cast(field.type)
        except pa.ArrowInvalid:
            return array


class CsvReader(TextTableReader):
    """Values between commas, or between tabs in a .tsv, as RFC 4180 has it: the first line names
    the columns, a field that holds a quote, a comma or an end of line is quoted, and quotes in it
    are doubled."""

    KIND, IS_TYPED = "a CSV table", False

    def as_written(self, names: list[str]) -> pa.Table:
        """Return columns of the first rows as text."""
        return self._first_rows(pa.schema([(name, pa.string()) for name in names]))

    @property
    def _separator(self) -> str:
        return "\t" if ".tsv" in storage.file_name(self.path).lower() else ","

    def _parsed(self, text: bytearray, names: list[str] | None, schema: pa.Schema | None) -> Any:
        given, line = self.reading.null_values, text.partition(b"\n")[0]
        is_bare = self._separator.encode() not in line and bool(line.strip())
        is_single = len(names) == 1 if names else is_bare
        table = csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(use_threads=False, block_size=len(text), column_names=names),
            csv.ParseOptions(
                delimiter=self._separator,
                newlines_in_values=True,
                ignore_empty_lines=not is_single,  # of one column it is a row whose field is empty
            ),
            csv.ConvertOptions(
                column_types=schema,
                include_columns=None if schema is None else schema.names,
                null_values=_NULL_VALUES if given is None else ["", *given],
                strings_can_be_null=True,
            ),
        )
        if schema is None and names is None:
            header = [name.strip().encode() for name in table.schema.names]
            if all(map(NUMBER.fullmatch, header)):
                raise DataError(
                    f"{self.name}, line 1: numbers ({', '.join(table.schema.names[:5])}) where the "
                    "names of the columns are expected. Add a line with their names."
                )
        if schema is None and pa.binary() in table.schema.types:
            raise pa.ArrowInvalid("invalid UTF8 data")
        return table

    def _end_of_rows(self, cut: Cut, last: bool) -> int:
        """Refuse more columns than fit in memory, and quotes by which rows would be lost."""
        text = cut.text
        if cut.line == 1:
            columns = text.partition(b"\n")[0].count(self._separator.encode()) + 1
            most = min(MOST_COLUMNS, available_memory() // _COLUMN_BYTES)
            if columns > most:
                raise DataError(
                    f"{self.name}, line 1: {columns:,} columns; CSV may have {most:,} in the "
                    "memory there is. Write the rows as libsvm text, or as lists in Parquet."
                )
        end, quote = text_kernels.csv_rows(np.frombuffer(text, np.uint8), ord(self._separator))
        if quote >= 0 and (end < 0 or last or len(text) - end > self.BLOCK_BYTES):
            raise DataError(
                f"{self.name}, line {cut.line_of(quote)}: a quote within a field, or one that is "
                'not closed. Quote a field that holds quotes, and double them: "12"" pipe".'
            )
        if last and text and not text.endswith((b"\n", b"\r")):
            self.note_end("the last line ends without a newline")
        return len(text) if last else int(end)


class JsonLinesReader(TextTableReader):
    """An object a line; a field that is missing is null."""

    KIND, IS_TYPED = "a file of JSON lines", True

    def _parsed(self, text: bytearray, names: list[str] | None, schema: pa.Schema | None) -> Any:
        return json.read_json(
            pa.BufferReader(text),
            json.ReadOptions(use_threads=False, block_size=len(text)),
            json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="infer" if schema is None else "ignore",
            ),
        )

    def _end_of_rows(self, cut: Cut, last: bool) -> int:
        """Refuse nesting that pyarrow's stack has no room for."""
        text = cut.text
        deep = text_kernels.too_deep(np.frombuffer(text, np.uint8), MOST_NESTED)
        if deep < len(text):
            raise DataError(
                f"{self.name}, line {cut.line_of(deep)}: lists and objects nested deeper than "
                f"{MOST_NESTED}, or not closed. Flatten or correct the row."
            )
        return len(text) if last else text.rfind(b"\n") + 1


def _wide(field: pa.Field) -> pa.Field:
    """Return a field of whole numbers, or of lists of them, as one of floats."""
    if pa.types.is_integer(field.type):
        return field.with_type(pa.float64())
    if pa.types.is_list(field.type) and pa.types.is_integer(field.type.value_type):
        return field.with_type(pa.list_(pa.float64()))
    return field
