"""Read libsvm text: cut it into lines, parse these by a kernel, check what was parsed.

A line is ``label column:value column:value …``, with ``label,label`` or no label at all where rows
may have several. ``#`` begins a comment; ``qid:3`` after the label and blank lines are skipped; a
line with only a label is an empty row. What cannot be read right is refused, with file and line.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import Codes, Label
from streamtron.data.blocks import all_ones
from streamtron.data.deletions import Deletions
from streamtron.data.formats import text_kernels
from streamtron.data.formats.libsvm_messages import complaint, unfit
from streamtron.data.formats.text_labels import TextLabels, is_name_at, shown, text_labels
from streamtron.data.formats.text_stream import Cut, TextStream
from streamtron.data.prefetch import in_order
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import FileReader, RowBatch, sort_columns

MOST_PARSERS = 8
"""Threads that parse one file, at most: more are faster than training."""

LINE_SHARE = 16
"""A line may take this part of the memory: reading one takes up to six times its length."""


class LibsvmReader(FileReader):
    """One shard of libsvm text, plain or .gz, .bz2, .xz, .zst.

    Columns are delivered as numbered, whatever the base. ``:weight`` that is not written is 1.
    Each of the ``threads`` parses a batch made of ``batch_bytes`` of text, rounded to whole lines;
    neither changes the rows.
    """

    def __init__(
        self,
        path: str,
        name: str,
        reading: ReaderConfig,
        scratch: str | None = None,
        threads: int = 1,
        without: Deletions | None = None,
        batch_bytes: int = 1 << 20,
    ) -> None:
        super().__init__(path, name, reading, scratch, min(threads, MOST_PARSERS), without)
        self._batch_bytes = batch_bytes

    def _batches_of_all(self) -> Iterator[RowBatch]:
        """Yield the rows in file order, some at a time; none if the file has no row."""
        self.bytes_read = 0
        stream = TextStream(self.path, self.name)
        cuts = self._ended(stream.cuts(self._batch_bytes, "libsvm text", LINE_SHARE))
        parse = _Parser(self.reading, self.name).parse
        with closing(in_order(parse, cuts, self._threads)) as parsed:
            for batch, self.bytes_read in parsed:
                if batch.rows:
                    yield batch
        self.bytes_read = stream.bytes_read
        self._fingerprint = stream.fingerprint()

    def resolve(self) -> ReaderConfig:
        """Return the config: text has column numbers, and its base is told by its rows."""
        if self.reading.settled is not None:
            raise DataError(
                f"{self.name}: libsvm text, and {self.reading.settled.by} has the columns of "
                "tables. Text may count its own from 0 or from 1: convert it with streamtron "
                "convert --format parquet --index-base 0 (or 1)."
            )
        reading = self.reading
        columns = reading.label_column, reading.weight_column, reading.values_column
        named = *columns, reading.features, reading.names, reading.transformer
        if any(name is not None for name in named):
            raise SettingsError(
                f"{self.name}: libsvm text has column numbers and no names. Leave --label, "
                "--weight, --features, --values, --columns, --text, --transformer, --hash-bits and "
                "--vocabulary out."
            )
        return self.reading

    def unused(self) -> dict[str, str]:
        """Return nothing: all columns are read."""
        return {}

    def column(self, name: str) -> Iterator[Any]:
        """Refuse to look in a column: text has no names of columns."""
        raise SettingsError(
            f"{self.name}: libsvm text has no column {name!r} to look in. Name the rows with "
            "--rows FILE."
        )

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


class _Buffers(NamedTuple):
    """The kernel's output arrays, named as its parameters."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    lines: NDArray[np.int64]
    deferred: NDArray[np.int64]
    counts: NDArray[np.int64]

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

    def __init__(self, reading: ReaderConfig, name: str) -> None:
        self._name = name
        self._first_column = 1 if reading.index_base == 1 else 0
        self._weighted = reading.weights_in_label
        self._several, self._targets = reading.multilabel, reading.numbers
        self._named = (reading.multiclass or reading.multilabel) and not reading.weights_in_label
        optional = reading.labels == "optional" or reading.multilabel
        self._optional = optional and not reading.weights_in_label
        self._size = 0
        self._buffers = _Buffers.for_text(0)

    def parse(self, cut: Cut) -> tuple[RowBatch, int]:
        """Parse whole lines; return the rows, and the stored bytes that were read for them."""
        text = cut.text
        if len(text) > self._size:
            self._size = len(text) * 5 // 4  # the next one is a little longer or shorter
            self._buffers = _Buffers.for_text(self._size)
        names = self._named
        self._call_kernel(text, names)
        if not names and self._stopped_at_name(text):
            names = True
            self._call_kernel(text, names)
        rows = int(self._buffers.counts[text_kernels.PARSED_ROWS])
        lines = self._buffers.lines[:rows].copy()
        refused = [*self._read_deferred(text), *self._sort_columns(rows), *self._stopped(text)]
        named = None
        if names:
            tokens = self._deferred(names=True)[:, 1:]
            named = text_labels(text, tokens, rows, several=self._several)
            if named.refused:
                row, sentence = named.refused
                refused.insert(0, (int(self._buffers.lines[row]), sentence))
        if refused:
            line, sentence = min(refused, key=itemgetter(0))
            raise DataError(f"{self._name}, line {cut.line + line}: {sentence}")
        place = partial(_place, self._name, cut.line, lines)
        return self._row_batch(self._buffers, rows, named, place), cut.bytes_read

    def _call_kernel(self, text: bytearray, names: bool) -> None:
        array, options = np.frombuffer(text, np.uint8), (self._optional, self._weighted, names)
        text_kernels.parse_libsvm(array, self._first_column, *options, *self._buffers)

    def _stopped_at_name(self, text: bytearray) -> bool:
        """Tell whether the kernel stopped at a label that is the name of a class."""
        trouble, at = self._buffers.counts[[text_kernels.TROUBLE, text_kernels.PLACE]].tolist()
        numbers = self._weighted or self._targets
        return trouble == text_kernels.BAD_LABEL and not numbers and is_name_at(text, at)

    def _row_batch(
        self, buffers: _Buffers, rows: int, named: TextLabels | None, place: Callable[[int], str]
    ) -> RowBatch:
        nonzeros = int(buffers.indptr[rows])
        values = buffers.values[:nonzeros]
        codes: Codes
        if named is not None:
            codes, code_offsets, classes, _ = named
        else:
            codes, code_offsets, classes = buffers.labels[:rows] + 0.0, None, []  # -0 is 0
            if not self._targets:
                codes, classes = _classes(codes)
        return RowBatch(
            buffers.indptr[: rows + 1].copy(),
            buffers.indices[:nonzeros].copy(),
            None if all_ones(values) else values.copy(),
            codes,
            classes,
            buffers.weights[:rows].copy() if self._weighted else None,
            place,
            code_offsets,
        )

    def _deferred(self, *, names: bool) -> NDArray[np.int64]:
        """Return what the kernel left: the labels where they may be names, or the numbers."""
        deferred = self._buffers.deferred[: self._buffers.counts[text_kernels.DEFERRED]]
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
            if sentence := unfit(what, token, number, self._targets):
                yield text.count(b"\n", 0, at), sentence
            else:
                target[what][which] = number

    def _sort_columns(self, rows: int) -> Iterator[Refusal]:
        """Sort the columns within every row, in place, if some row needs it."""
        buffers = self._buffers
        if not buffers.counts[text_kernels.UNSORTED]:
            return
        nonzeros = int(buffers.indptr[rows])
        order, keys = sort_columns(buffers.indptr[: rows + 1], buffers.indices[:nonzeros])
        buffers.indices[:nonzeros] = buffers.indices[order]
        buffers.values[:nonzeros] = buffers.values[order]
        for repeated in np.flatnonzero(keys[1:] == keys[:-1])[:1]:
            row, column = int(keys[repeated]) >> 32, int(buffers.indices[repeated])
            advice = "Each column may stand once; add its values up or drop all but one."
            yield int(buffers.lines[row]), f"column {column} more than once in a row. {advice}"

    def _stopped(self, text: bytearray) -> Iterator[Refusal]:
        counts = self._buffers.counts
        kind, at = int(counts[text_kernels.TROUBLE]), int(counts[text_kernels.PLACE])
        if kind != text_kernels.NOTHING:
            sentence = complaint(kind, text, at, self._first_column, self._weighted, self._targets)
            yield int(counts[text_kernels.PARSED_LINES]), sentence


def _classes(labels: NDArray[np.float64]) -> tuple[NDArray[np.int32], list[Label]]:
    """Return codes and classes in order of appearance; NaN is no label."""
    if len(labels) > 1:  # most texts have two: an encoder takes five times as long
        first, second = labels[0], labels[np.argmax(labels != labels[0])]
        is_second = labels == second
        if first != second and (is_second | (labels == first)).all():
            return is_second.astype(np.int32), [float(first), float(second)]
    encoded = pa.array(labels, from_pandas=True).dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()


_CUT = re.compile(rb"\d+(:([+-]|[+-]?\d*\.|[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?)?)?")
"""A pair that is not whole."""
