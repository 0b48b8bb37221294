"""Read tables that are text, CSV and JSON lines, by pyarrow's streaming readers.

The columns and their types are those of a file's first megabyte. A column of whole numbers there
may hold other numbers later. Rows in messages count from 1, without the header.
"""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.json as json

from streamtron.core.errors import DataError
from streamtron.core.limits import available_memory
from streamtron.data import storage
from streamtron.data.formats import text_kernels
from streamtron.data.formats.layouts import Spot, is_string
from streamtron.data.formats.tables import Part, TableReader
from streamtron.data.formats.text_labels import NUMBER
from streamtron.data.formats.text_stream import TextStream

MOST_NESTED = 64
"""Depth of lists and objects in JSON: pyarrow's time grows with its square, and its stack ends."""

MOST_COLUMNS = 100_000
"""Columns of a CSV file, at most."""

_COLUMN_BYTES = 1 << 15  # pyarrow's buffers of a column, twice what was measured
_ITEMS = {"list": pa.string(), "vector": pa.float64()}  # of lists that are all empty, or null
_LONG = "Check that each quote is closed, or write the rows as Parquet"
MARK = b"\xef\xbb\xbf"
_ROUNDED = 2.0**53  # from here on floats skip whole numbers


class StreamedReader(TableReader):
    """One shard of text that holds a table, plain or .gz, .bz2, .xz, .zst; it is read as a stream,
    also from a store."""

    @contextmanager
    def _open(self, whole: bool) -> Iterator[tuple[Any, int]]:
        stream = TextStream(self.path, self.name)
        yield stream, storage.stamp(self.path, self.name).size
        if whole:
            self._fingerprint = stream.fingerprint()


class TextTableReader(StreamedReader):
    """One shard of text that pyarrow parses."""

    BLOCK_BYTES = 1 << 20
    """Text that is parsed at a time, which takes some 40 times as much memory; no row is longer."""

    def _schema(self, file: Any) -> pa.Schema:
        return self._first_schema

    @cached_property
    def _first_schema(self) -> pa.Schema:
        with self._parsed(TextStream(self.path, self.name), None) as (schema, _):
            return pa.schema([self._settled(field) for field in schema])

    @contextmanager
    def _parsed(
        self, stream: TextStream, schema: pa.Schema | None
    ) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Parse these columns as these types, or all columns as what they look like."""
        with closing(_Text(self, stream)) as text:
            text.begin()
            try:
                reader = self._reader(text, schema)
            except pa.ArrowInvalid as error:
                if str(error).startswith("Empty"):
                    yield pa.schema([]), iter(())
                    return
                raise self._refusal(error, 0) from error
            if pa.binary() in reader.schema.types:
                raise self._refusal(pa.ArrowInvalid("invalid UTF8 data"), 0)
            yield reader.schema, self._batches(reader)

    def _batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            for batch in reader:
                yield batch
                rows += len(batch)
        except pa.ArrowInvalid as error:
            raise self._refusal(error, rows) from error

    @abstractmethod
    def _reader(self, text: _Text, schema: pa.Schema | None) -> Any:
        """Return pyarrow's reader of the text."""

    def check(self, text: bytes, file: _Text) -> None:
        """Refuse what pyarrow would take for something else in the next piece of the file."""

    def _check_length(self, text: bytes, line: int, ends: int) -> None:
        """Refuse a row, begun on this line, that has no end in a block."""
        if not ends and len(text) >= self.BLOCK_BYTES:
            raise DataError(
                f"{self.name}, line {line}: a row longer than {self.BLOCK_BYTES:,} bytes. {_LONG}."
            )

    def _refusal(self, error: Exception, rows: int) -> DataError:
        """Return an error with the row that pyarrow names, or how many there are before it."""
        reason = " ".join(str(error).split()).rstrip(".")
        place = f"behind row {rows}" if rows else "in the first rows"
        if row := re.search(r" in row (\d+)$|Row #(\d+): ", reason):  # the second with the header
            place = f"row {rows + int(row[1]) + 1 if row[1] else int(row[2]) - 1}"
            reason = reason.replace(row[0], "")
        if column := re.search(r"In CSV column #(\d+): ", reason):
            named = f"In column {self._first_schema.names[int(column[1])]!r}: "
            reason = reason.replace(column[0], named)
        if "UTF8" in reason:
            remedy = "Convert the file to UTF-8, as iconv -f latin1 -t utf-8 does"
        else:
            remedy = "Correct the row; a field that is a null is left empty"
        return DataError(
            f"{self.name}, {place}: not {self.KIND} with the columns of its first rows ({reason}). "
            f"{remedy}."
        )

    def _settled(self, field: pa.Field) -> pa.Field:
        """Return a column of the type that it is read as: what looks like a date, or is empty, is a
        string, unless the recipe or the first shard says otherwise."""
        kind, of_csv = self._kind_of(field.name), isinstance(self, CsvReader)
        recipe = self.reading.recipe
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
        """Return what a recipe makes of a column; numbers of the first shard are numbers."""
        recipe, settled = self.reading.recipe, self.reading.settled
        if recipe is not None:
            columns = [column for column in recipe.columns if column.name == name]
            columns += [column for column in recipe.columns if fnmatchcase(name, column.name)]
            return columns[0].KIND if columns else None
        is_number = settled is not None and settled.layout == "columns"
        return "number" if is_number and name in (self.reading.features or ()) else None

    def _parts(
        self, file: Any, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        size = max(storage.stamp(self.path, self.name).size, 1)
        fields = [self._schema(file).field(column) for column in columns]
        wide = [_wide(field) if field.name in numbers else field for field in fields]
        row = 1
        with self._parsed(file, pa.schema(wide)) as (_, batches):
            for batch in batches:
                arrays = [self._array(batch, field, row) for field in fields]
                rows = pa.RecordBatch.from_arrays(arrays, columns) if columns else batch
                yield Part(rows, Spot(self.name, "", row), file.bytes_read / size)
                row += len(batch)

    def _array(self, batch: pa.RecordBatch, field: pa.Field, row: int) -> pa.Array:
        """Return a column, as integers where all are whole, so that none is rounded unseen."""
        array = batch.column(field.name)
        if isinstance(self, CsvReader) and self._kind_of(field.name) == "text":
            array = pc.fill_null(array, "")
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


class _Text:
    """The text of a shard, as a file that pyarrow reads, ahead of what is asked for and on a thread
    of its own."""

    closed = False

    def __init__(self, reader: TextTableReader, stream: TextStream) -> None:
        self._reader, self._blocks = reader, stream.blocks(reader.BLOCK_BYTES)
        self._held, self._ahead = bytearray(), deque[bytes]()
        self.lines, self.state = 0, np.zeros(4, np.int64)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Read and check two blocks, in which the first row ends, before pyarrow does: where its
        own thread meets an error while the text is opened, it may wait for itself without end."""
        self._ahead.extend(self._next(self._reader.BLOCK_BYTES) for _ in range(2))

    def read(self, size: int) -> bytes:
        """Return the next bytes, as many as are asked for unless the text ends."""
        with self._lock:
            text = self._ahead.popleft() if self._ahead else self._next(size)
            if len(text) > size:
                self._ahead.appendleft(text[size:])
            return text[:size]

    def _next(self, size: int) -> bytes:
        while len(self._held) < size and (block := next(self._blocks, None)):
            self._held += block[0]
        text = bytes(self._held[:size])
        del self._held[:size]
        self._reader.check(text, self)
        self.lines += text.count(b"\n")
        return text

    def line_of(self, text: bytes, at: int) -> int:
        """Return the line of a byte of the piece that is being read."""
        return self.lines + text.count(b"\n", 0, at) + 1

    def close(self) -> None:
        """End the reading."""
        self.closed = True
        with self._lock:
            self._blocks.close()


class CsvReader(TextTableReader):
    """Values between commas, or between tabs in a .tsv, as RFC 4180 has it: the first line names
    the columns, a field that holds a quote, a comma or an end of line is quoted, and quotes in it
    are doubled."""

    KIND = "a CSV table"

    def as_written(self, names: list[str]) -> pa.Table:
        """Return columns of the first rows as text."""
        schema = pa.schema([(name, pa.string()) for name in names])
        with self._parsed(TextStream(self.path, self.name), schema) as (schema, batches):
            return pa.Table.from_batches([*islice(batches, 1)], schema)

    @property
    def _separator(self) -> str:
        return "\t" if ".tsv" in storage.file_name(self.path).lower() else ","

    def _reader(self, text: _Text, schema: pa.Schema | None) -> Any:
        reader = csv.open_csv(
            text,
            csv.ReadOptions(use_threads=False, block_size=self.BLOCK_BYTES),
            csv.ParseOptions(delimiter=self._separator, newlines_in_values=True),
            csv.ConvertOptions(
                column_types=schema,
                include_columns=None if schema is None else schema.names,
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        names = reader.schema.names
        if schema is None and all(NUMBER.fullmatch(name.strip().encode()) for name in names):
            raise DataError(
                f"{self.name}, line 1: numbers ({', '.join(names[:5])}) where the names of the "
                "columns are expected. Add a line with their names."
            )
        return reader

    def check(self, text: bytes, file: _Text) -> None:
        """Refuse more columns than fit in memory, and quotes by which rows would be lost."""
        separator, state = self._separator.encode(), file.state
        text = text.removeprefix(MARK) if file.lines == 0 else text
        if not text:
            if state[0] == text_kernels.QUOTED:
                self._refuse_quote(int(state[1]))
            elif state[2] != ord("\n"):
                self.note_end("the last line ends without a newline")
            return
        if file.lines == 0:
            columns = text.partition(b"\n")[0].count(separator) + 1
            most = min(MOST_COLUMNS, available_memory() // _COLUMN_BYTES)
            if columns > most:
                raise DataError(
                    f"{self.name}, line 1: {columns:,} columns; CSV may have {most:,} in the "
                    "memory there is. Write the rows as libsvm text, or as lists in Parquet."
                )
        array = np.frombuffer(text, np.uint8)
        opened, state[3] = int(state[1]), 0
        line = opened if state[0] == text_kernels.QUOTED else file.lines + 1
        at = text_kernels.odd_quote(array, ord(separator), file.lines + 1, state)
        if at < len(text):
            self._refuse_quote(file.line_of(text, at))
        self._check_length(text, line, int(state[3]))

    def _refuse_quote(self, line: int) -> None:
        raise DataError(
            f"{self.name}, line {line}: a quote within a field, or one that is not closed. Quote a "
            'field that holds quotes, and double them: "12"" pipe".'
        )


class JsonLinesReader(TextTableReader):
    """An object a line; a field that is missing is null."""

    KIND = "a file of JSON lines"

    def _reader(self, text: _Text, schema: pa.Schema | None) -> Any:
        return json.open_json(
            text,
            json.ReadOptions(use_threads=False, block_size=self.BLOCK_BYTES),
            json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="infer" if schema is None else "ignore",
            ),
        )

    def check(self, text: bytes, file: _Text) -> None:
        """Refuse an array, and nesting that pyarrow's stack has no room for."""
        if file.lines == 0 and text.lstrip().startswith(b"["):
            raise DataError(
                f"{self.name}: a JSON array, where an object a line is expected. Write each item "
                "on a line of its own, as jq -c '.[]' does."
            )
        deep = text_kernels.too_deep(np.frombuffer(text, np.uint8), MOST_NESTED, file.state)
        if deep < len(text):
            raise DataError(
                f"{self.name}, line {file.line_of(text, deep)}: lists and objects nested deeper "
                f"than {MOST_NESTED}, or not closed. Flatten or correct the row."
            )
        self._check_length(text, file.lines + 1, text.count(b"\n") + text.count(b"\r"))


def _wide(field: pa.Field) -> pa.Field:
    """Return a field of whole numbers, or of lists of them, as one of floats."""
    if pa.types.is_integer(field.type):
        return field.with_type(pa.float64())
    if pa.types.is_list(field.type) and pa.types.is_integer(field.type.value_type):
        return field.with_type(pa.list_(pa.float64()))
    return field
