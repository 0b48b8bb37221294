"""Read libsvm text: cut it into lines, parse these by a kernel, check what was parsed.

A line is ``label column:value column:value …``, with ``label,label`` or no label at all where rows
may have several. ``#`` begins a comment; ``qid:3`` after the label and blank lines are skipped; a
line with only a label is an empty row. What cannot be read right is refused, with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import COLUMN_MAX, LARGEST_WEIGHT, Codes, Label
from streamtron.data.blocks import all_ones
from streamtron.data.formats import text_kernels
from streamtron.data.formats.text_labels import (
    REGRESSION_TAKES,
    is_name_at,
    is_rounded,
    merging,
    several_labels,
    shown,
    text_labels,
)
from streamtron.data.formats.text_stream import Cut, Scratch, TextStream
from streamtron.data.prefetch import in_order
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import FileReader, Offsets, RowBatch, sort_columns

MOST_PARSERS = 8
"""Threads that parse one file, at most: more are faster than training."""

LINE_SHARE = 16
"""A line may take this part of the memory: reading one takes up to six times its length."""


_FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
"""The smallest number that rounds to infinity in float32."""

_TOKEN = re.compile(rb"[^ \t\r\n#]*")
_JUNK = re.compile(rb"[^!-~]")
_OTHER_TEXT = {b"|": ("Vowpal Wabbit's text", ".vw"), b"{": ("JSON lines", ".jsonl")}
"""First byte of a token of another format of text → the format, and how its files are named."""

_CUT = re.compile(rb"\d+(:([+-]|[+-]?\d*\.|[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?)?)?")
"""A pair that is not whole."""


class LibsvmReader(FileReader):
    """One shard of libsvm text, plain or .gz, .bz2, .xz, .zst.

    Columns are delivered as numbered, whatever the base. ``:weight`` that is not written is 1.
    Each of the ``threads`` parses a batch made of ``BATCH_BYTES`` of text, rounded to whole lines;
    neither changes the rows.
    """

    BATCH_BYTES = 1 << 20

    def _batches_of_all(self) -> Iterator[RowBatch]:
        """Yield the rows in file order, some at a time; none if the file has no row."""
        self.bytes_read = 0
        stream = TextStream(self.path, self.name)
        cuts = self._ended(stream.cuts(self.BATCH_BYTES, "libsvm text", LINE_SHARE))
        parse = partial(self._parse, scratch=Scratch(_arrays_for))
        with closing(in_order(parse, cuts, min(self._threads, MOST_PARSERS))) as parsed:
            for batch, self.bytes_read in parsed:
                if batch.rows:
                    yield batch
        self.bytes_read = stream.bytes_read
        self._fingerprint = stream.fingerprint()

    def resolve(self) -> ReaderConfig:
        """Return the config: text has column numbers, and its base is told by its rows."""
        if self.reading.layout is not None:
            raise DataError(
                f"{self.name}: libsvm text, and {self.reading.settled_by} has the columns of "
                "tables. Text may count its own from 0 or from 1: convert it with streamtron "
                "convert --format parquet --index-base 0 (or 1)."
            )
        reading = self.reading
        columns = reading.label_column, reading.weight_column, reading.values_column
        named = *columns, reading.features, reading.names, reading.transformer
        if any(name is not None for name in named):
            raise SettingsError(
                f"{self.name}: libsvm text has column numbers and no names. Leave --label, "
                "--weight, --features, --values, --columns, --text, --transformer and "
                "--hash-bits out."
            )
        return self.reading

    def _ended(self, cuts: Iterable[Cut]) -> Iterator[Cut]:
        """End the last line; refuse one that was cut off within a pair, behind the rows before."""
        for cut in cuts:
            text, end = cut.text, cut.text.rfind(b"\n") + 1
            *words, word = bytes(text[end:]).rsplit(None, 1) or [b""]
            if words and text.endswith(word) and _CUT.fullmatch(word) and b"#" not in words[0]:
                yield cut._replace(text=text[:end])
                raise DataError(
                    f"{self.name}, line {cut.line_of(end)}: the file ends with {shown(word)} and "
                    "no newline: it was cut off. Copy or write it again."
                )
            if end < len(text):
                text += b"\n"
                self.note_end("the last line ends without a newline")
            yield cut

    def _parse(self, cut: Cut, scratch: Scratch[text_kernels.Libsvm]) -> tuple[RowBatch, int]:
        """Parse whole lines; return the rows, and the stored bytes that were read for them."""
        reading, text, parsed = self.reading, cut.text, scratch.of(len(cut.text))
        weighted, several, targets = reading.weights_in_label, reading.multilabel, reading.numbers
        optional = (reading.labels == "optional" or several) and not weighted
        first_column = 1 if reading.index_base == 1 else 0
        named = (reading.multiclass or several) and not weighted
        numbers_alone = weighted or targets
        for are_names in (True,) if named else (False, True):
            options = first_column, optional, weighted, are_names
            text_kernels.parse_libsvm(np.frombuffer(text, np.uint8), *options, parsed)
            trouble, at = parsed.counts[[text_kernels.TROUBLE, text_kernels.PLACE]].tolist()
            if numbers_alone or trouble != text_kernels.BAD_LABEL or not is_name_at(text, at):
                break  # else names of classes, as one must be taken for
        rows = int(parsed.counts[text_kernels.PARSED_ROWS])
        lines, nonzeros = parsed.lines[:rows].copy(), int(parsed.indptr[rows])
        deferred = parsed.deferred[: parsed.counts[text_kernels.DEFERRED]]
        of_labels = deferred[:, 0] == text_kernels.NAMES
        refused = [*_numbers_by_float(parsed, text, deferred[~of_labels], targets)]
        refused += _columns_sorted(parsed, rows)
        if trouble != text_kernels.NOTHING:
            sentence = _complaint(trouble, text, at, first_column, weighted, targets)
            refused.append((int(parsed.counts[text_kernels.PARSED_LINES]), sentence))
        codes: Codes
        offsets: Offsets | None = None
        classes = list[Label]()
        if are_names:
            labels = text_labels(text, deferred[of_labels, 1:], rows, several=several)
            codes, offsets, classes, unread = labels
            if unread:
                refused.insert(0, (int(parsed.lines[unread[0]]), unread[1]))
        else:
            codes = parsed.labels[:rows] + 0.0  # -0 is 0
            if not targets:
                codes, classes = _classes(codes)
        if refused:
            line, sentence = min(refused, key=itemgetter(0))
            raise DataError(f"{self.name}, line {cut.line + line}: {sentence}")
        values = parsed.values[:nonzeros]
        batch = RowBatch(
            parsed.indptr[: rows + 1].copy(),
            parsed.indices[:nonzeros].copy(),
            None if all_ones(values) else values.copy(),
            codes,
            classes,
            parsed.weights[:rows].copy() if weighted else None,
            lambda i: f"{self.name}, line {cut.line + int(lines[i])}",
            offsets,
        )
        return batch, cut.bytes_read


def _arrays_for(size: int) -> text_kernels.Libsvm:
    """Return what the kernel fills in for a text of some bytes."""
    rows, nonzeros = size // 2 + 1, size // 4 + 1
    return text_kernels.Libsvm(
        indptr=np.empty(rows + 1, np.int64),
        indices=np.empty(nonzeros, np.uint32),
        values=np.empty(nonzeros, np.float32),
        labels=np.empty(rows),
        weights=np.empty(rows),
        lines=np.empty(rows, np.int64),
        deferred=np.empty((rows, 4), np.int64),
        counts=np.empty(6, np.int64),
    )


Refusal = tuple[int, str]
"""A line of a text, from 0, and what is wrong with it."""


def _numbers_by_float(
    found: text_kernels.Libsvm, text: bytearray, deferred: NDArray[np.int64], targets: bool
) -> Iterator[Refusal]:
    """Read the numbers that the kernel left by Python's float."""
    target: dict[Any, NDArray[Any]] = {
        text_kernels.VALUE: found.values,
        text_kernels.LABEL: found.labels,
        text_kernels.WEIGHT: found.weights,
    }
    for what, which, at, after in deferred.tolist():
        token = bytes(text[at:after])
        number = float(token)
        if sentence := _unfit(what, token, number, targets):
            yield text.count(b"\n", 0, at), sentence
        else:
            target[what][which] = number


def _columns_sorted(found: text_kernels.Libsvm, rows: int) -> Iterator[Refusal]:
    """Sort the columns within every row, in place, if some row needs it."""
    if not found.counts[text_kernels.UNSORTED]:
        return
    nonzeros = int(found.indptr[rows])
    order, keys = sort_columns(found.indptr[: rows + 1], found.indices[:nonzeros])
    found.indices[:nonzeros] = found.indices[order]
    found.values[:nonzeros] = found.values[order]
    for repeated in np.flatnonzero(keys[1:] == keys[:-1])[:1]:
        row, column = int(keys[repeated]) >> 32, int(found.indices[repeated])
        advice = "Each column may stand once; add its values up or drop all but one."
        yield int(found.lines[row]), f"column {column} more than once in a row. {advice}"


def _classes(labels: NDArray[np.float64]) -> tuple[NDArray[np.int32], list[Label]]:
    """Return codes and classes in order of appearance; NaN is no label."""
    if len(labels) > 1:  # most texts have two: an encoder takes five times as long
        first, second = labels[0], labels[np.argmax(labels != labels[0])]
        is_second = labels == second
        if first != second and (is_second | (labels == first)).all():
            return is_second.astype(np.int32), [float(first), float(second)]
    encoded = pa.array(labels, from_pandas=True).dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()


def _complaint(
    kind: int, text: bytearray, at: int, first_column: int, weighted: bool, targets: bool
) -> str:
    """Say what is wrong with the token at ``at``."""
    token = bytes(next(_TOKEN.finditer(text, at))[0])
    junk = _JUNK.search(token) if kind != text_kernels.BAD_END else re.match(b"(?s).", text[at:])
    word = shown(token) or "missing"
    if format_ := _OTHER_TEXT.get(token[:1]):
        what = f"{word} is not in libsvm text. If this is {format_[0]}"
        return f"{what}, give the file a name that ends in {format_[1]}."
    elif junk and junk[0] == b"\r":
        return "a carriage return inside the line. End lines with a newline (\\n or \\r\\n)."
    elif junk:
        return (
            f"byte 0x{junk[0].hex()}, which is not in libsvm text. Check that the file is text, "
            "and not UTF-16, compressed or a table: its name tells its format."
        )
    elif kind == text_kernels.BAD_LABEL:
        return _bad_label(token, weighted, targets)
    elif kind == text_kernels.BAD_WEIGHT:
        return _bad_weight(token)
    column, colon, value = token.partition(b":")
    number = int(column) if column.isdigit() and len(column) <= 18 else -1
    if column == b"qid":
        return f"{word} is no query id. One is written qid:3, right after the label."
    elif not colon:
        return f"{word} has no value. A feature is written column:value, like {word}:1."
    elif number == 0 < first_column:
        return "column 0 in a file declared 1-based. Use --index-base 0."
    elif not first_column <= number <= COLUMN_MAX:
        expected = f"Column numbers are whole numbers from {first_column} to {COLUMN_MAX}"
        return f"column {shown(column) or 'missing'}. {expected}."
    what = f"value {shown(value) or 'missing'} in column {number}"
    return f"{what}. Values are finite decimal numbers, like -0.25 or 1e-3."


def _bad_label(token: bytes, weighted: bool, targets: bool) -> str:
    if b"," in token and not weighted:
        return several_labels(token)
    elif b":" in token and not weighted:
        return (
            f"the row has no label but begins with {shown(token)}. Put a label before it; if it is"
            " label:weight, use --weights-in-label."
        )
    expected = REGRESSION_TAKES if targets else "Write labels like -1, 1 or 2.5."
    label = token.partition(b":")[0] if weighted else token
    return f"label {shown(label) or 'missing'} is no finite decimal number. {expected}"


def _bad_weight(token: bytes) -> str:
    word = shown(token) or "missing"
    return f"weight {word}. Weights are decimal numbers of at least 0 and at most 1e30."


def _unfit(what: int, token: bytes, number: float, targets: bool) -> str:
    """Say why a well-written number is refused; "" if it is not."""
    if what == text_kernels.LABEL:
        infinite = abs(number) == float("inf")
        return _bad_label(token, True, targets) if infinite else merging(token, number, targets)
    elif what == text_kernels.WEIGHT:
        return _bad_weight(token) if not 0.0 <= number <= LARGEST_WEIGHT else ""
    elif abs(number) >= _FLOAT32_OVERFLOW:
        return f"value {shown(token)} is beyond float32 (3.4e38). Rescale its column."
    elif is_rounded(token, float(np.float32(number))):
        return (
            f"value {shown(token)} is an integer beyond 2²⁴ that float32 cannot hold. Rescale its"
            " column, or make identifiers columns of their own."
        )
    return ""
