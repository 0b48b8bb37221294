"""Read Vowpal Wabbit's text: ``label importance 'tag|namespace:scale name:value name …``.

A line is a row of the columns ``label``, ``importance``, ``tag`` and ``features``, pairs of a name
and a value. A namespace is the prefix of its names, as in ``title^cheap``; without one a name
stands alone. As in Vowpal Wabbit a value that is not written is 1, a namespace's scale multiplies
its values, values of a name that occurs again in its row are added up, and words end at blanks,
tabs, bars and lines alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.feature_names import Hashing
from streamtron.data.formats import text_kernels
from streamtron.data.formats.columns import find_columns
from streamtron.data.formats.layouts import Spot, first
from streamtron.data.formats.table_rows import make_batch
from streamtron.data.formats.tables import Part, table_errors
from streamtron.data.formats.text_labels import merging
from streamtron.data.formats.text_stream import Cut, Scratch, TextStream
from streamtron.data.formats.text_tables import StreamedReader
from streamtron.data.prefetch import in_order
from streamtron.data.row_batch import RowBatch

SCHEMA = pa.schema(
    {
        "label": pa.float64(),
        "importance": pa.float64(),
        "tag": pa.string(),
        "features": pa.list_(pa.struct({"name": pa.large_string(), "value": pa.float64()})),
    }
)
"""The columns of every file."""

_WORD = re.compile(r"\|?[^ \t\r|]*")
_WHITE = b" \t\r\n"

BATCH_BYTES = 1 << 19
"""Text that is parsed at a time, at least."""

LINE_SHARE = 384
"""A line may take this part of the memory: names that are kept take 80 times their length."""


class VowpalWabbitReader(StreamedReader):
    """One shard of Vowpal Wabbit's text whose labels are numbers, or not there."""

    KIND = "Vowpal Wabbit's text"

    def _schema(self, file: Any) -> pa.Schema:
        return SCHEMA

    def _batches_of_all(self) -> Iterator[RowBatch]:
        """Yield the rows in file order; names that are hashed are hashed as they are read."""
        names = self.reading.names
        if self.reading.transformer is not None or not isinstance(names, Hashing):
            yield from super()._batches_of_all()
            return
        with table_errors(self.name, self.KIND), self._open(whole=True) as stream:
            columns, scratch = find_columns(SCHEMA, self.reading, self.name), Scratch(_arrays_for)

            def parsed(cut: Cut) -> tuple[RowBatch, int]:
                rows = self._rows(cut, columns.all, scratch, names)
                spot = self._spot(cut, len(rows))
                return make_batch(rows, columns, spot, self.reading), cut.bytes_read

            with closing(in_order(parsed, self._cuts(stream), self._threads)) as batches:
                for batch, self.bytes_read in batches:
                    yield batch

    def _parts(
        self, file: Any, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        size, scratch = max(file.size(), 1), Scratch(_arrays_for)
        for cut in self._cuts(file):
            rows = self._rows(cut, columns, scratch)
            yield Part(rows, self._spot(cut, len(rows)), cut.bytes_read / size)

    def _spot(self, cut: Cut, rows: int) -> Spot:
        if cut.text.count(b"\n") == rows:
            return Spot(self.name, "line", cut.line)
        return Spot(self.name, f"from line {cut.line} on", 0)  # some are blank

    def _cuts(self, stream: TextStream) -> Iterator[Cut]:
        """Cut a text into whole lines."""
        for cut in stream.cuts(BATCH_BYTES, self.KIND, LINE_SHARE):
            if not cut.text.endswith(b"\n"):
                self.note_end("the last line ends without a newline")
                cut.text.extend(b"\n")
            if cut.text.strip(_WHITE):
                yield cut

    def _rows(
        self,
        cut: Cut,
        columns: list[str],
        scratch: Scratch[text_kernels.VowpalWabbit],
        hashing: Hashing | None = None,
    ) -> pa.RecordBatch:
        """Parse lines; the names of features are those of columns where they are hashed."""
        try:
            cut.text.decode()
        except UnicodeDecodeError as error:
            what = "not UTF-8. Convert the file, as iconv -f latin1 -t utf-8 does"
            self._refuse(cut, error.start, what)
        parsed = scratch.of(len(cut.text))
        counts = parsed.counts
        bits = 31 if hashing is None else hashing.bits
        text = np.frombuffer(cut.text, np.uint8)
        text_kernels.parse_vowpal_wabbit(text, bits, parsed)
        self._read_deferred(cut, parsed)
        if trouble := int(counts[text_kernels.TROUBLE]):
            self._complain(cut, trouble, int(counts[text_kernels.PLACE]))
        rows, spaces = counts[[text_kernels.PARSED_ROWS, text_kernels.PARSED_SPACES]].tolist()
        label, importance = parsed.heads[:rows].T.copy()
        arrays: dict[str, Any] = {"label": pa.array(label, from_pandas=True)}
        arrays["importance"] = importance
        if "features" in columns:
            if "importance" not in columns and self.reading.weights == "read":
                self._check_importance(cut, importance)
            self._scale(cut, parsed, rows, spaces)
            if hashing is None:
                arrays["features"] = _features_by_name(cut.text, parsed, rows, spaces)
            else:
                arrays["features"] = _features_by_column(parsed, rows, hashing.bits)
        if "tag" in columns:
            spans = parsed.tags[:rows].tolist()
            tags = [cut.text[a:b].decode() if a <= b else None for a, b in spans]
            arrays["tag"] = pa.array(tags, pa.string())
        return pa.RecordBatch.from_pydict({name: pa.array(arrays[name]) for name in columns})

    def _read_deferred(self, cut: Cut, parsed: text_kernels.VowpalWabbit) -> None:
        """Read the numbers that the kernel left by Python's float."""
        targets: dict[Any, NDArray[np.float64]] = {
            text_kernels.LABEL: parsed.heads[:, 0],
            text_kernels.WEIGHT: parsed.heads[:, 1],
            text_kernels.VALUE: parsed.values,
            text_kernels.SCALE: parsed.scales,
        }
        deferred = parsed.deferred[: parsed.counts[text_kernels.DEFERRED]]
        for what, which, at, after in deferred.tolist():
            token = bytes(cut.text[at:after])
            number = targets[what][which] = float(token)
            if what == text_kernels.LABEL and (sentence := merging(token, number, True)):
                self._refuse(cut, at, sentence.removesuffix("."))

    def _scale(self, cut: Cut, parsed: text_kernels.VowpalWabbit, rows: int, spaces: int) -> None:
        """Multiply values by the scales of their namespaces, in place."""
        if (parsed.scales[:spaces] == 1.0).all():
            return
        count = parsed.indptr[rows]
        values = parsed.values[:count]
        with np.errstate(over="ignore", invalid="ignore"):  # refused here, or with all values
            products = values * parsed.scales[parsed.names[:count, 2]]
        if (beyond := np.isinf(products) & np.isfinite(values)).any():
            what = "a value times that of its namespace overflows float32. Rescale one of them"
            self._refuse(cut, parsed.names[first(beyond), 0], what)
        values[:] = products

    def _check_importance(self, cut: Cut, importance: NDArray[np.float64]) -> None:
        """Refuse importances that are not read, and would be lost."""
        if (weighs := importance != 1.0).any():
            row = first(weighs)
            what = f"importance {importance[row]}, which would be lost. "
            what += "Read it with --weight importance, or remove it"
            lines = [at for at, line in enumerate(cut.text.split(b"\n")) if line.strip(_WHITE)]
            raise DataError(f"{self.name}, line {cut.line + lines[row]}: {what}.")

    def _complain(self, cut: Cut, trouble: int, at: int) -> NoReturn:
        """Say what is wrong at a place."""
        line = cut.text[at : cut.text.index(b"\n", at)].decode()
        if trouble == text_kernels.NO_BAR:
            what = "no |. Write label |namespace name name"
        elif trouble == text_kernels.BAD_END:
            what = "a carriage return inside the line. End lines with a newline (\\n or \\r\\n)"
        elif trouble == text_kernels.NAMELESS:
            what = "a feature without a name"
        elif trouble == text_kernels.BAD_PAIR:
            word = next(_WORD.finditer(line))[0]
            what = f"{word[:40]!r}. Write a feature as name or name:2.5"
        else:
            what = (
                f"{line.partition('|')[0].strip()[:40]!r} before the |. Read are a number as the "
                "label, then a number as the importance, then a tag; other kinds of labels, and "
                "base predictions, are not"
            )
        self._refuse(cut, at, what)

    def _refuse(self, cut: Cut, at: int, what: str) -> NoReturn:
        raise DataError(f"{self.name}, line {cut.line_of(at)}: {what}.")


def _arrays_for(size: int) -> text_kernels.VowpalWabbit:
    """Return what the kernel fills in for a text of some bytes."""
    most = size // 2 + 1
    return text_kernels.VowpalWabbit(
        heads=np.empty((most, 2)),
        tags=np.empty((most, 2), np.uint32),
        indptr=np.empty(most + 1, np.int64),
        keys=np.empty(most, np.uint64),
        values=np.empty(most),
        names=np.empty((most, 3), np.uint32),
        spaces=np.empty((size, 2), np.uint32),
        scales=np.empty(size),
        deferred=np.empty((size // 4 + 1, 4), np.int64),
        counts=np.empty(6, np.int64),
    )


def _features_by_column(parsed: text_kernels.VowpalWabbit, rows: int, bits: int) -> pa.Array:
    """Return lists of pairs of the column that is a name's hash, and a value."""
    most = int(parsed.indptr[rows])
    columns, sums = np.empty(most, np.uint32), np.empty(most)
    text_kernels.add_names(rows, bits, parsed, columns, sums)
    count = int(parsed.indptr[rows])
    return _pairs(parsed.indptr[: rows + 1], pa.array(columns[:count]), sums[:count])


def _features_by_name(
    text: bytearray, parsed: text_kernels.VowpalWabbit, rows: int, spaces: int
) -> pa.Array:
    """Return lists of pairs of a name, as they first occur in the row, and a value."""
    prefixes = [(text[a:b] + b"^").decode() if a < b else "" for a, b in parsed.spaces[:spaces]]
    indptr = parsed.indptr[: rows + 1]
    numbers, spans = parsed.values[: indptr[-1]].tolist(), parsed.names[: indptr[-1]].tolist()
    names, values, offsets = list[str](), list[float](), [0]
    for start, stop in pairwise(indptr.tolist()):
        sums: dict[str, float] = {}
        for (a, b, space), number in zip(spans[start:stop], numbers[start:stop], strict=True):
            name = prefixes[space] + text[a:b].decode()
            sums[name] = sums.get(name, 0.0) + number
        names += sums
        values += sums.values()
        offsets.append(len(names))
    return _pairs(np.array(offsets), pa.array(names, pa.large_string()), np.array(values))


def _pairs(offsets: NDArray[np.int64], names: pa.Array, values: NDArray[np.float64]) -> pa.Array:
    pairs = pa.StructArray.from_arrays([names, pa.array(values)], ["name", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs)
