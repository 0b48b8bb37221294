"""Read libsvm text: cut it into lines, parse these by a kernel, check what was parsed.

A line is ``label column:value column:value …``, with ``label,label`` or no label at all where rows
may have several. ``#`` begins a comment; ``qid:3`` after the label and blank lines are skipped; a
line with only a label is an empty row. What cannot be read right is refused, with file and line.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import LARGEST_WEIGHT, Label
from streamtron.data.blocks import all_ones
from streamtron.data.formats import text_kernels
from streamtron.data.formats.text_labels import (
    NOT_FINITE,
    TextLabels,
    is_rounded,
    merging,
    several_labels,
    shown,
    text_labels,
)
from streamtron.data.formats.text_stream import READ_BYTES, BadLine, TextStream, whole_rows
from streamtron.data.prefetch import in_order
from streamtron.data.row_batch import FileReader, ReaderConfig, RowBatch, sort_columns

MOST_PARSERS = 8
"""Threads that parse one file, at most: more are faster than training."""

LINE_SHARE = 16
"""A line may take this part of the memory: reading one takes up to six times its length."""

FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
"""The smallest number that rounds to infinity in float32."""


class LibsvmReader(FileReader):
    """One shard of libsvm text, plain or .gz, .bz2, .xz, .zst; a ``ShardReader``.

    Columns are delivered as numbered, whatever the base. ``:weight`` that is not written is 1.
    Each of the ``threads`` parses a batch made of ``batch_bytes`` of text, rounded to whole lines;
    neither changes the rows.
    """

    def __init__(
        self,
        path: str,
        name: str,
        reading: ReaderConfig,
        batch_bytes: int = 1 << 20,
        threads: int = 1,
    ) -> None:
        super().__init__(path, name, reading, threads=min(threads, MOST_PARSERS))
        self._batch_bytes = batch_bytes
        self.note = ""
        """What is odd about the file, once it has been read."""

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows in file order, some at a time; none if the file has no row."""
        self.bytes_read = 0
        stream = TextStream(self.path, self.name)
        blocks = stream.blocks(min(READ_BYTES, self._batch_bytes))
        texts = self._checked(whole_rows(blocks, self._batch_bytes, "libsvm text", LINE_SHARE))
        parse = _Parser(self.reading).parse
        first_line = 1
        with closing(in_order(parse, texts, self._threads)) as parsed:
            try:
                for batch, lines_of_rows, lines, self.bytes_read in parsed:
                    if batch.rows:
                        place = partial(_place, self.name, first_line, lines_of_rows)
                        yield batch._replace(place=place)
                    first_line += lines
            except BadLine as bad:
                place_ = f"{self.name}, line {first_line + bad.line}"
                raise bad.kind(f"{place_}: {bad.sentence}") from None
        self.bytes_read = stream.bytes_read
        self._fingerprint = stream.fingerprint()

    def _checked(self, texts: Iterable[tuple[bytearray, int]]) -> Iterator[tuple[bytearray, int]]:
        """Remove a UTF-8 byte order mark from a file's first text, and end its last one; refuse
        other formats, and a last row that was cut off."""
        for number, (text, taken) in enumerate(texts):
            for signature, sentence in _SIGNATURES.items() if number == 0 else ():
                if text.startswith(signature):
                    raise BadLine(0, f"libsvm text is wanted, and this is {sentence}.")
            if number == 0:
                text = text.removeprefix(b"\xef\xbb\xbf")
            end = text.rfind(b"\n") + 1
            *before, word = bytes(text[end:]).rsplit(None, 1) or [b""]
            if before and text.endswith(word) and _CUT.fullmatch(word) and b"#" not in before[0]:
                yield text[:end], taken
                raise BadLine(
                    0,
                    f"the file ends with {shown(word)} and no newline: it was cut off. Copy or "
                    "write it again.",
                )
            if end < len(text):
                text += b"\n"
                self.note = (
                    f"{self.name}: the last line ends without a newline, and was read as it is. "
                    "If the file was cut off, copy or write it again."
                )
            yield text, taken


class _Buffers(NamedTuple):
    """The kernel's output arrays, named as its parameters."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    lines: NDArray[np.int64]
    deferred: NDArray[np.int64]
    found: NDArray[np.int64]

    @classmethod
    def for_text(cls, size: int) -> _Buffers:
        rows, nonzeros = size // 2 + 1, size // 4 + 1
        return cls(
            np.empty(rows + 1, np.int64),
            np.empty(nonzeros, np.uint32),
            np.empty(nonzeros, np.float32),
            np.empty(rows, np.float64),
            np.empty(rows, np.float64),
            np.empty(rows, np.int64),
            np.empty((rows, 4), np.int64),
            np.empty(6, np.int64),
        )


Refusal = tuple[int, str]
"""A line of a text, from 0, and what is wrong with it."""


def _place(name: str, first_line: int, lines: NDArray[np.int64], row: int) -> str:
    return f"{name}, line {first_line + int(lines[row])}"


class _Parser(threading.local):
    """Parse the texts of one file, in any number of threads, each with its own buffers."""

    def __init__(self, reading: ReaderConfig) -> None:
        self._first_column = 1 if reading.index_base == 1 else 0
        self._weighted = reading.weights_in_label
        self._several = reading.multilabel
        self._named = (reading.multiclass or reading.multilabel) and not reading.weights_in_label
        optional = reading.labels == "optional" or reading.multilabel
        self._optional = optional and not reading.weights_in_label
        self._size = 0
        self._buffers = _Buffers.for_text(0)

    def parse(self, given: tuple[bytearray, int]) -> tuple[RowBatch, NDArray[np.int64], int, int]:
        """Parse whole lines; raise BadLine for the first that is refused.

        Returns the rows, the lines (from 0) they are on, the number of lines, and the stored bytes
        read so far, which come with the text.
        """
        text, bytes_read = given
        if len(text) > self._size:
            self._size = len(text) * 5 // 4  # the next one is a little longer or shorter
            self._buffers = _Buffers.for_text(self._size)
        text_kernels.parse_libsvm(
            np.frombuffer(text, np.uint8),
            self._first_column,
            self._optional,
            self._weighted,
            self._named,
            *self._buffers,
        )
        rows, lines = int(self._buffers.found[text_kernels.PARSED_ROWS]), self._buffers.lines
        refused = [*self._read_deferred(text), *self._sort_columns(rows), *self._stopped(text)]
        named = None
        if self._named:
            tokens = self._deferred(names=True)[:, 1:]
            named = text_labels(text, tokens, rows, several=self._several)
            if named.refused:
                row, sentence = named.refused
                refused.insert(0, (int(lines[row]), sentence))
        if refused:
            raise BadLine(*min(refused, key=itemgetter(0)))
        count = int(self._buffers.found[text_kernels.PARSED_LINES])
        return self._row_batch(rows, named), lines[:rows].copy(), count, bytes_read

    def _row_batch(self, rows: int, named: TextLabels | None) -> RowBatch:
        buffers = self._buffers
        nonzeros = int(buffers.indptr[rows])
        values = buffers.values[:nonzeros]
        if named is None:
            (codes, classes), code_offsets = _classes(buffers.labels[:rows]), None
        else:
            codes, code_offsets, classes, _ = named
        return RowBatch(
            buffers.indptr[: rows + 1].copy(),
            buffers.indices[:nonzeros].copy(),
            None if all_ones(values) else values.copy(),
            codes,
            classes,
            buffers.weights[:rows].copy() if self._weighted else None,
            str,
            code_offsets,
        )

    def _deferred(self, *, names: bool) -> NDArray[np.int64]:
        """Return what the kernel left: the labels where they may be names, or the numbers."""
        deferred = self._buffers.deferred[: self._buffers.found[text_kernels.DEFERRED]]
        chosen: NDArray[np.int64] = deferred[(deferred[:, 0] == text_kernels.NAMES) == names]
        return chosen

    def _read_deferred(self, text: bytearray) -> Iterator[Refusal]:
        """Read the numbers that the kernel left by Python's float."""
        _, _, values, labels, weights, *_ = self._buffers
        target: dict[Any, NDArray[Any]] = {
            text_kernels.VALUE: values,
            text_kernels.LABEL: labels,
            text_kernels.WEIGHT: weights,
        }
        for what, which, at, after in self._deferred(names=False).tolist():
            token = bytes(text[at:after])
            number = float(token)
            if sentence := _unfit(what, token, number):
                yield text.count(b"\n", 0, at), sentence
            else:
                target[what][which] = number

    def _sort_columns(self, rows: int) -> Iterator[Refusal]:
        """Sort the columns within every row, in place, if some row needs it."""
        buffers = self._buffers
        if not buffers.found[text_kernels.UNSORTED]:
            return
        nonzeros = int(buffers.indptr[rows])
        order, keys = sort_columns(buffers.indptr[: rows + 1], buffers.indices[:nonzeros])
        buffers.indices[:nonzeros] = buffers.indices[order]
        buffers.values[:nonzeros] = buffers.values[order]
        for repeated in np.flatnonzero(keys[1:] == keys[:-1])[:1]:
            row, column = int(keys[repeated]) >> 32, int(buffers.indices[repeated])
            yield (
                int(buffers.lines[row]),
                f"column {column} more than once in a row. Each column may stand once; add its"
                " values up or drop all but one.",
            )

    def _stopped(self, text: bytearray) -> Iterator[Refusal]:
        """Yield the line at which the kernel stopped, if it did."""
        found = self._buffers.found
        kind, at = int(found[text_kernels.TROUBLE]), int(found[text_kernels.PLACE])
        if kind != text_kernels.NOTHING:
            sentence = _complaint(kind, text, at, self._first_column, self._weighted)
            yield int(found[text_kernels.PARSED_LINES]), sentence


def _classes(labels: NDArray[np.float64]) -> tuple[NDArray[np.int32], list[Label]]:
    """Return codes and classes in order of appearance; NaN is no label, -0 is 0."""
    if len(labels) > 1:  # most texts have two: an encoder takes five times as long
        first, second = labels[0], labels[np.argmax(labels != labels[0])]
        is_second = labels == second
        if first != second and (is_second | (labels == first)).all():
            return is_second.astype(np.int32), [float(first) + 0.0, float(second) + 0.0]
    encoded = pa.array(labels + 0.0, from_pandas=True).dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()


_TOKEN = re.compile(rb"[^ \t\r\n#]*")
_CUT = re.compile(rb"\d+(:([+-]|[+-]?\d*\.|[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?)?)?")
"""A pair that is not whole."""

_JUNK = re.compile(rb"[^!-~]")

_SIGNATURES = {
    b"\x1f\x8b": "gzip data. Give the file a name that ends in .gz",
    b"BZh": "bzip2 data. Give the file a name that ends in .bz2",
    b"\xfd7zXZ": "xz data. Give the file a name that ends in .xz",
    b"\x28\xb5\x2f\xfd": "Zstandard data. Give the file a name that ends in .zst",
    b"PAR1": "a Parquet file. Give it a name that ends in .parquet",
    b"ARROW1": "an Arrow file. Give it a name that ends in .arrow",
    b"PK\x03\x04": "a zip archive. Unpack it",
    b"\xff\xfe": "UTF-16 text. Convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text. Convert it to UTF-8",
}


_TABLES = {
    b"|": "If this is Vowpal Wabbit's text, give the file a name that ends in .vw.",
    b"{": "If these are JSON lines, give the file a name that ends in .jsonl.",
}
"""First byte of a token of another format of text → what to do."""


def _complaint(kind: int, text: bytearray, at: int, first_column: int, weighted: bool) -> str:
    """Say what is wrong with the token at ``at``, what was wanted, what to do."""
    token = bytes(_TOKEN.match(text, at)[0])  # type: ignore[index]
    for sign, what in _TABLES.items():
        if token.startswith(sign):
            return f"{shown(token)} is not in libsvm text. {what}"
    junk = _JUNK.search(bytes(text[at : at + 1]) if kind == text_kernels.BAD_END else token)
    if junk and junk[0] == b"\r":
        return "a carriage return inside the line. End lines with a newline (\\n or \\r\\n)."
    elif junk:
        return (
            f"byte 0x{junk[0].hex()}, which is not in libsvm text. Check that the file is text and"
            " not binary or UTF-16."
        )
    elif kind == text_kernels.BAD_LABEL:
        return _bad_label(token, weighted)
    elif kind == text_kernels.BAD_WEIGHT:
        return _bad_weight(token)
    elif token.startswith(b"qid:"):
        return f"{shown(token)} is no query id. One is written qid:3, right after the label."
    return _bad_pair(token, first_column)


def _bad_label(token: bytes, weighted: bool) -> str:
    if weighted:
        return _not_a_number(token.partition(b":")[0])
    elif b"," in token:
        return several_labels(token)
    elif b":" in token:
        return (
            f"the row has no label but begins with {shown(token)}. Put a label before it; if it is"
            " label:weight, use --weights-in-label."
        )
    return f"{_not_a_number(token)[:-1]}; with --multiclass they may be names."


def _not_a_number(token: bytes) -> str:
    word = shown(token) or "missing"
    return f"label {word} is no finite decimal number. Write labels like -1, 1 or 2.5."


def _bad_weight(token: bytes) -> str:
    word = shown(token) or "missing"
    return f"weight {word}. Weights are decimal numbers of at least 0 and at most 1e30."


def _bad_pair(token: bytes, first_column: int) -> str:
    column, colon, value = token.partition(b":")
    word = shown(column)
    if not colon:
        return f"{word} has no value. A feature is written column:value, like {word}:1."
    elif not column:
        return f"{shown(token)} has no column number. A feature is written column:value."
    elif not column.isdigit():
        wanted = f"whole numbers from {first_column} up, in decimal digits"
        return f"column {word}. Column numbers are {wanted}."
    elif len(column) > 18 or int(column) > kernels.COLUMN_MAX:
        return f"column {word} is beyond {kernels.COLUMN_MAX}, the largest. Renumber the columns."
    elif int(column) < first_column:
        return "column 0 in a file declared 1-based. Use --index-base 0."
    elif not value:
        return f"column {word} has no value. Write {word}:1 or remove it."
    elif NOT_FINITE.fullmatch(value):
        return f"value {shown(value)} in column {word}. Values are finite; remove it or the row."
    return (
        f"value {shown(value)} in column {word} is no decimal number. Write it like -0.25 or 1e-3."
    )


def _unfit(what: int, token: bytes, number: float) -> str:
    """Say why a well-written number is refused; "" if it is not."""
    infinite = abs(number) == float("inf")
    if what == text_kernels.LABEL:
        return _not_a_number(token) if infinite else merging(token, number)
    elif what == text_kernels.WEIGHT:
        return _bad_weight(token) if not 0.0 <= number <= LARGEST_WEIGHT else ""
    elif abs(number) >= FLOAT32_OVERFLOW:
        return f"value {shown(token)} is beyond float32 (3.4e38). Rescale its column."
    elif is_rounded(token, float(np.float32(number))):
        return (
            f"value {shown(token)} is an integer beyond 2²⁴ that float32 cannot hold. Rescale its"
            " column, or make identifiers columns of their own."
        )
    return ""
