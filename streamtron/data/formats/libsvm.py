"""Read libsvm text: unpack it, cut it into lines, parse these by a kernel, check what was parsed.

A line is ``label column:value column:value …``, with ``label,label`` or no label at all where rows
may have several. ``#`` begins a comment; ``qid:3`` after the label and blank lines are skipped; a
line with only a label is an empty row. What cannot be read right is refused, with file and line.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.errors import DataError
from streamtron.core.rows import LARGEST_WEIGHT, Label
from streamtron.data import storage
from streamtron.data.blocks import all_ones
from streamtron.data.formats.text_labels import (
    NOT_FINITE,
    TextLabels,
    is_rounded,
    merging,
    shown,
    text_labels,
)
from streamtron.data.formats.text_stream import PACKED, LongLine, TextStream, too_long, whole_lines
from streamtron.data.prefetch import in_order
from streamtron.data.row_batch import Reading, RowBatch

MOST_PARSERS = 8
"""Threads that parse one file, at most: more are faster than training."""

FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
"""The smallest number that rounds to infinity in float32."""

_OTHER_FORMATS = re.compile(
    r"\.(parquet|pq|arrows?|feather|ipc|orc|avro|[ct]sv|jsonl?|ndjson|np[yz]|h5|hdf5|safetensors"
    r"|pkl|pickle|db|sqlite|toml|ya?ml|md|zip|tar|tgz|7z)"
)


def is_libsvm_name(name: str) -> bool:
    """Tell whether a file of this name is taken for libsvm text: any that no other format claims.

    Text has no suffix of its own (``a9a``, ``a9a.t``, ``rcv1.ccat``, ``x.svm``, ``x.txt``), each
    also with .gz, .bz2, .xz, .zst.

    Examples
    --------
    >>> [is_libsvm_name(name) for name in ("a9a.t", "train-0007.svm.zst", "heart_scale", "x.pq")]
    [True, True, True, False]
    """
    path = PurePath(name.lower())
    if path.suffix in PACKED:
        path = path.with_suffix("")
    return not _OTHER_FORMATS.fullmatch(path.suffix)


class LibsvmReader:
    """One shard of libsvm text, plain or .gz, .bz2, .xz, .zst; a ``ShardReader``.

    Parameters
    ----------
    path : the file, a local path or a URI.
    name : what messages call it.
    reading : ``index_base`` 1 refuses column 0; columns are delivered as numbered, whatever the
        base. With ``labels="optional"`` a row may begin with its first pair and then has code -1.
        ``weights_in_label`` reads ``label:weight`` (no ``:weight`` is 1) and needs labels that are
        numbers. With ``multiclass`` or ``multilabel`` what is not written as a number is a name,
        and with the latter a row has the labels between its commas, or none.
    batch_bytes : text a batch is made of, in bytes, rounded to whole lines; it changes the cutting
        and nothing else.
    threads : that parse, one batch each; they change nothing.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.svm")
    >>> with open(path, "w") as file:
    ...     _ = file.write("+1 3:0.5 1:2  # columns are sorted\\n-1\\n")
    >>> [batch] = LibsvmReader(path, "tiny.svm", Reading()).batches()
    >>> batch.indptr.tolist(), batch.indices.tolist(), batch.values.tolist()
    ([0, 2, 2], [1, 3], [2.0, 0.5])
    >>> batch.codes.tolist(), batch.classes, batch.place(1)
    ([0, 1], [1.0, -1.0], 'tiny.svm, line 2')
    """

    def __init__(
        self,
        path: str,
        name: str,
        reading: Reading,
        batch_bytes: int = 1 << 20,
        threads: int = 1,
    ) -> None:
        self._path = path
        self._name = name
        self._reading = reading
        self._piece_bytes = batch_bytes
        self._threads = min(threads, MOST_PARSERS)
        self._fingerprint: str | None = None
        self.bytes_read = 0
        """Bytes of the file, as stored, that the rows delivered last were made of, and all before
        them: 0 before ``batches()``, the file's size after it."""

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows in file order, some at a time; none if the file has no row.

        Raises
        ------
        DataError : the first line that is refused, or damaged compressed data.
        MachineError : the file cannot be read, or a line is too long for the memory there is.
        """
        self.bytes_read = 0
        stream = TextStream(self._path, self._name)
        parser = _Parser(self._name, self._reading)
        first_line = 1
        with closing(in_order(parser.parse, self._texts(stream), self._threads)) as parsed:
            try:
                for text in parsed:
                    if isinstance(text, _Trouble):
                        line = first_line + text.line
                        raise DataError(f"{self._name}, line {line}: {text.sentence}")
                    self.bytes_read = text.bytes_read
                    if text.batch.rows:
                        place = partial(_place, self._name, first_line, text.lines_of_rows)
                        yield text.batch._replace(place=place)
                    first_line += text.lines
            except LongLine as error:
                raise too_long(f"{self._name}, line {first_line + error.line}") from None
        self.bytes_read = stream.bytes_read
        self._fingerprint = stream.fingerprint()

    def _texts(self, stream: TextStream) -> Iterator[_Text]:
        texts = whole_lines(stream.text_into, self._piece_bytes, self._threads)
        for number, lines in enumerate(texts):
            yield _Text(lines, number == 0, stream.bytes_read)

    def fingerprint(self) -> str:
        """xxh3-128 of the file's bytes as stored, 32 hex digits; free after ``batches()``."""
        if self._fingerprint is None:
            self._fingerprint = storage.fingerprint(self._path, self._name)
        return self._fingerprint


class _Text(NamedTuple):
    """Whole lines, and the stored bytes read for them and before."""

    lines: memoryview
    first: bool
    bytes_read: int


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


class _Parsed(NamedTuple):
    """The rows of a text, the lines (from 0) they are on, the number of lines, and the stored bytes
    read for them and before."""

    batch: RowBatch
    lines_of_rows: NDArray[np.int64]
    lines: int
    bytes_read: int


class _Trouble(NamedTuple):
    """What is wrong with a line of a text, the first being 0."""

    line: int
    sentence: str


def _place(name: str, first_line: int, lines: NDArray[np.int64], row: int) -> str:
    return f"{name}, line {first_line + int(lines[row])}"


class _Parser(threading.local):
    """Parse the texts of one file, in any number of threads, each with its own buffers."""

    def __init__(self, name: str, reading: Reading) -> None:
        self._name = name
        self._first_column = 1 if reading.index_base == 1 else 0
        self._weighted = reading.weights_in_label
        self._several = reading.multilabel
        self._named = (reading.multiclass or reading.multilabel) and not reading.weights_in_label
        optional = reading.labels == "optional" or reading.multilabel
        self._optional = optional and not reading.weights_in_label
        self._size = 0
        self._buffers = _Buffers.for_text(0)

    def parse(self, given: _Text) -> _Parsed | _Trouble:
        """Parse whole lines: return their rows, or the first line that is refused."""
        text, is_first, bytes_read = given
        if is_first:
            text = _without_mark(text, self._name)
        if len(text) > self._size:
            self._size = len(text) * 5 // 4  # the next one is a little longer or shorter
            self._buffers = _Buffers.for_text(self._size)
        kernels.parse_libsvm(
            np.frombuffer(text, np.uint8),
            self._first_column,
            self._optional,
            self._weighted,
            self._named,
            *self._buffers,
        )
        found = self._buffers.found
        named = self._named_labels(text)
        troubles = [
            *self._unfit_labels(named),
            *self._read_deferred(text),
            *self._sort_columns(),
            *self._stumbled(text),
        ]
        if troubles:
            return min(troubles, key=lambda trouble: trouble.line)
        rows = int(found[kernels.PARSED_ROWS])
        lines_of_rows = self._buffers.lines[:rows].copy()
        lines = int(found[kernels.PARSED_LINES])
        return _Parsed(self._row_batch(rows, named), lines_of_rows, lines, bytes_read)

    def _row_batch(self, rows: int, named: TextLabels | None) -> RowBatch:
        buffers = self._buffers
        nonzeros = int(buffers.indptr[rows])
        values = buffers.values[:nonzeros]
        if named is None:
            (codes, classes), code_offsets = _classes(buffers.labels[:rows]), None
        else:
            (codes, code_offsets), classes = named.among(rows), named.classes
        return RowBatch(
            indptr=buffers.indptr[: rows + 1].copy(),
            indices=buffers.indices[:nonzeros].copy(),
            values=None if all_ones(values) else values.copy(),
            codes=codes,
            classes=classes,
            weights=buffers.weights[:rows].copy() if self._weighted else None,
            place=str,
            code_offsets=code_offsets,
        )

    def _deferred(self, *, names: bool) -> NDArray[np.int64]:
        """What the kernel left: the labels where they may be names, or the numbers."""
        deferred = self._buffers.deferred[: self._buffers.found[kernels.DEFERRED]]
        chosen: NDArray[np.int64] = deferred[(deferred[:, 0] == kernels.NAMES) == names]
        return chosen

    def _named_labels(self, text: memoryview) -> TextLabels | None:
        if not self._named:
            return None
        tokens = self._deferred(names=True)[:, 1:]
        return text_labels(np.frombuffer(text, np.uint8), tokens, self._several)

    def _unfit_labels(self, named: TextLabels | None) -> Iterator[_Trouble]:
        trouble = None if named is None else named.trouble()
        if trouble is not None:
            row, sentence = trouble
            yield _Trouble(int(self._buffers.lines[row]), sentence)

    def _read_deferred(self, text: memoryview) -> Iterator[_Trouble]:
        """Numbers the kernel left: Python's float reads them."""
        buffers = self._buffers
        for what, which, at, after in self._deferred(names=False).tolist():
            token = bytes(text[at:after])
            number = float(token)
            sentence = _unfit(what, token, number)
            if sentence:
                yield _Trouble(bytes(text[:at]).count(b"\n"), sentence)
            elif what == kernels.VALUE:
                buffers.values[which] = number
            elif what == kernels.LABEL:
                buffers.labels[which] = number
            else:
                buffers.weights[which] = number

    def _sort_columns(self) -> Iterator[_Trouble]:
        """Sort the columns within every row, in place, if some row needs it."""
        buffers = self._buffers
        if not buffers.found[kernels.UNSORTED]:
            return
        rows = int(buffers.found[kernels.PARSED_ROWS])
        nonzeros = int(buffers.indptr[rows])
        row_of = np.repeat(np.arange(rows, dtype=np.uint64), np.diff(buffers.indptr[: rows + 1]))
        keys = row_of << np.uint64(32) | buffers.indices[:nonzeros]
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        buffers.indices[:nonzeros] = buffers.indices[order]
        buffers.values[:nonzeros] = buffers.values[order]
        for repeated in np.flatnonzero(keys[1:] == keys[:-1])[:1]:
            row, column = int(keys[repeated]) >> 32, int(buffers.indices[repeated])
            yield _Trouble(
                int(buffers.lines[row]),
                f"column {column} more than once in a row. Each column may stand once; add its"
                " values up or drop all but one.",
            )

    def _stumbled(self, text: memoryview) -> Iterator[_Trouble]:
        """Yield the line at which the kernel stopped, if it did."""
        found = self._buffers.found
        kind, at = int(found[kernels.TROUBLE]), int(found[kernels.PLACE])
        if kind != kernels.NOTHING:
            sentence = _complaint(kind, text, at, self._first_column, self._weighted)
            yield _Trouble(int(found[kernels.PARSED_LINES]), sentence)


def _classes(labels: NDArray[np.float64]) -> tuple[NDArray[np.int32], list[Label]]:
    """Return codes and classes in order of appearance; NaN is no label, -0 is 0.

    Buffer by buffer: ``pa.array`` and ``fill_null`` would import pandas, a seventh of the time of a
    small fit.
    """
    if len(labels) > 1:  # most have two, and asking an encoder costs more than looking
        first, second = labels[0], labels[np.argmax(labels != labels[0])]
        is_second = labels == second
        if first != second and (is_second | (labels == first)).all():
            return is_second.astype(np.int32), [float(first) + 0.0, float(second) + 0.0]
    absent = np.isnan(labels)
    buffers = [pa.py_buffer(np.packbits(~absent, bitorder="little")), pa.py_buffer(labels + 0.0)]
    encoded = pa.Array.from_buffers(pa.float64(), len(labels), buffers).dictionary_encode()
    codes = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(labels))
    return np.where(absent, np.int32(-1), codes), encoded.dictionary.to_pylist()


# --- what is refused, in words ---

_TOKEN = re.compile(rb"[^ \t\r\n#]*")
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


def _without_mark(text: memoryview, name: str) -> memoryview:
    """Remove a UTF-8 byte order mark from a file's first text; refuse other formats."""
    start = bytes(text[:8])
    for signature, sentence in _SIGNATURES.items():
        if start.startswith(signature):
            raise DataError(f"{name}, line 1: libsvm text is wanted, and this is {sentence}.")
    return text[3:] if start.startswith(b"\xef\xbb\xbf") else text


def _token(text: memoryview, at: int) -> bytes:
    return _TOKEN.match(text, at)[0]  # type: ignore[index]


def _complaint(kind: int, text: memoryview, at: int, first_column: int, weighted: bool) -> str:
    """Say what is wrong with the token at ``at``, what was wanted, what to do."""
    token = _token(text, at)
    junk = _JUNK.search(bytes(text[at : at + 1]) if kind == kernels.BAD_END else token)
    if junk and junk[0] == b"\r":
        return "a carriage return inside the line. End lines with a newline (\\n or \\r\\n)."
    elif junk:
        return (
            f"byte 0x{junk[0].hex()}, which is not in libsvm text. Check that the file is text and"
            " not binary or UTF-16."
        )
    elif kind == kernels.BAD_LABEL:
        return _not_a_number(token.partition(b":")[0]) if weighted else _bad_label(token)
    elif kind == kernels.BAD_WEIGHT:
        return _bad_weight(token)
    elif token.startswith(b"qid:"):
        return f"{shown(token)} is no query id. One is written qid:3, right after the label."
    return _bad_pair(token, first_column)


def _bad_label(token: bytes) -> str:
    word = shown(token)
    if b"," in token:
        return f"the row has several labels ({word}). One is wanted, unless with --multilabel."
    elif b":" in token:
        return (
            f"the row has no label but begins with {word}. Put a label before it; if it is"
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
    if what == kernels.LABEL:
        return _not_a_number(token) if infinite else merging(token, number)
    elif what == kernels.WEIGHT:
        return _bad_weight(token) if not 0.0 <= number <= LARGEST_WEIGHT else ""
    elif abs(number) >= FLOAT32_OVERFLOW:
        return f"value {shown(token)} is beyond float32 (3.4e38). Rescale its column."
    elif is_rounded(token, float(np.float32(number))):
        return (
            f"value {shown(token)} is an integer beyond 2²⁴ that float32 cannot hold. Rescale its"
            " column, or make identifiers columns of their own."
        )
    return ""
