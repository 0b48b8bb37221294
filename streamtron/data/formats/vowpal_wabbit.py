"""Read Vowpal Wabbit's text: ``label importance 'tag|namespace:scale name:value name …``.

A line is a row of the columns ``label``, ``importance``, ``tag`` and ``features``, pairs of a name
and a value. A namespace is the prefix of its names, as in ``title^cheap``; without one a name
stands alone. As in Vowpal Wabbit a value that is not written is 1, a namespace's scale multiplies
its values, and values of a name that occurs again in its row are added up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.data import storage
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.tables import Part
from streamtron.data.formats.text_labels import NUMBER, merging
from streamtron.data.formats.text_stream import READ_BYTES, BadLine, TextStream, whole_rows
from streamtron.data.formats.text_tables import StreamedReader
from streamtron.data.prefetch import in_order
from streamtron.data.row_batch import offsets_of

SCHEMA = pa.schema(
    {
        "label": pa.float64(),
        "importance": pa.float64(),
        "tag": pa.string(),
        "features": pa.list_(pa.struct({"name": pa.large_string(), "value": pa.float64()})),
    }
)
"""The columns of every file."""

LINE_SHARE = 384
"""A line may take this part of the memory: words of one letter take 80 times their length."""


class VowpalWabbitReader(StreamedReader):
    """One shard of Vowpal Wabbit's text whose labels are numbers, or not there."""

    KIND = "Vowpal Wabbit's text"

    def _schema(self, file: Any) -> pa.Schema:
        return SCHEMA

    def _parts(
        self, file: Any, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        size = max(storage.stamp(self.path, self.name).size, 1)

        def parsed(cut: tuple[str, int, int]) -> Part:
            text, line, bytes_read = cut
            [rows] = self._table(text, line, columns).select(columns).combine_chunks().to_batches()
            spot = Spot(self.name, f"from line {line} on", 0)
            if len(rows) == text.count("\n"):  # no line is blank
                spot = Spot(self.name, "line", line)
            return Part(rows, spot, bytes_read / size)

        with closing(in_order(parsed, self._cuts(file), self._threads)) as parts:
            yield from parts

    def _cuts(self, stream: TextStream) -> Iterator[tuple[str, int, int]]:
        """Yield whole lines, the number of the first, and the stored bytes up to their end."""
        line, blocks = 1, stream.blocks(READ_BYTES)
        try:
            for text, bytes_read in whole_rows(blocks, READ_BYTES, self.KIND, LINE_SHARE):
                if not text.endswith(b"\n"):
                    self.note_end("the last line ends without a newline")
                    text += b"\n"
                if not text.isspace():
                    yield text.decode(), line, bytes_read
                line += text.count(b"\n")
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            self._refuse(line, "not UTF-8. Convert the file, as iconv -f latin1 -t utf-8 does")
        except BadLine as bad:
            raise bad.kind(f"{self.name}, line {line + bad.line}: {bad.sentence}") from None

    def _table(self, text: str, line: int, columns: list[str]) -> pa.Table:
        lines = pc.split_pattern(pa.array([text], pa.large_string()), "\n").flatten()
        lines = pc.utf8_trim_whitespace(lines)
        lines_of_rows = line + np.flatnonzero(pc.not_equal(lines, ""))
        lines = lines.filter(pc.not_equal(lines, ""))
        broken = pc.match_substring(lines, "\r").to_numpy(zero_copy_only=False)
        if broken.any():
            sentence = "a carriage return inside the line. End lines with a newline (\\n or \\r\\n)"
            self._refuse(lines_of_rows[np.argmax(broken)], sentence)
        halves = pc.split_pattern(lines, "|", max_splits=1)
        complete = pc.equal(pc.list_value_length(halves), 2).to_numpy(zero_copy_only=False)
        if not complete.all():
            sentence = "no |. Write label |namespace name name"
            self._refuse(lines_of_rows[np.argmin(complete)], sentence)
        table = pa.table(
            [
                *self._heads(pc.list_element(halves, 0), lines_of_rows),
                self._features(pc.list_element(halves, 1), lines_of_rows),
            ],
            schema=SCHEMA,
        )
        if {"features", "importance"} & {*columns} == {"features"}:
            self._check_importance(table["importance"], lines_of_rows)
        return table

    def _refuse(self, line: int, what: str) -> NoReturn:
        raise DataError(f"{self.name}, line {line}: {what}.")

    def _heads(self, heads: pa.Array, lines: NDArray[np.int64]) -> list[pa.Array]:
        """Read label, importance and tag of every row."""
        cells: list[list[Any]] = [[], [], []]
        for line, head in zip(lines.tolist(), heads.to_pylist(), strict=True):
            words = head.split()
            # as Vowpal Wabbit tells a tag from a label
            is_tag = words and (words[-1].startswith("'") or not head[-1].isspace())
            tag = words.pop().removeprefix("'") if is_tag else None
            if len(words) > 2 or not all(NUMBER.fullmatch(word.encode()) for word in words):
                self._refuse(
                    line,
                    f"{head.strip()[:40]!r} before the |. Read are a number as the label, then a "
                    "number as the importance, then a tag; other kinds of labels, and base "
                    "predictions, are not",
                )
            label = float(words[0]) if words else None
            if label is not None and (sentence := merging(words[0].encode(), label, True)):
                self._refuse(line, sentence.removesuffix("."))
            importance = float(words[1]) if len(words) > 1 else 1.0
            for column, value in zip(cells, (label, importance, tag), strict=True):
                column.append(value)
        return [pa.array(column, field.type) for column, field in zip(cells, SCHEMA, strict=False)]

    def _features(self, texts: pa.Array, lines: NDArray[np.int64]) -> pa.Array:
        """Read the features of every row, from the first namespace on."""
        spread = _joined("|", pc.replace_substring(texts, "|", " |"))
        words = pc.utf8_split_whitespace(pc.utf8_rtrim_whitespace(spread))
        rows = np.repeat(np.arange(len(words)), pc.list_value_length(words).to_numpy())
        words = words.flatten()
        pairs = pc.split_pattern(words, ":")
        names, values = pc.list_element(pairs, 0), self._values(words, pairs, lines[rows])
        is_space = pc.starts_with(words, "|").to_numpy(zero_copy_only=False)
        space_of = np.maximum.accumulate(np.where(is_space, np.arange(len(words)), 0))[~is_space]
        spaces = pc.utf8_slice_codeunits(names.take(pa.array(space_of)), 1)
        prefixes = pc.if_else(pc.equal(spaces, ""), spaces, _joined(spaces, "^"))
        names = names.filter(pa.array(~is_space))
        if (nameless := pc.equal(names, "").to_numpy(zero_copy_only=False)).any():
            self._refuse(lines[rows[~is_space][np.argmax(nameless)]], "a feature without a name")
        with np.errstate(over="ignore", invalid="ignore"):  # refused here, or with all values
            products = values[~is_space] * values[space_of]
        if (beyond := np.isinf(products) & np.isfinite(values[~is_space])).any():
            what = "a value times that of its namespace overflows float32. Rescale one of them"
            self._refuse(lines[rows[~is_space][np.argmax(beyond)]], what)
        return _added_up(_joined(prefixes, names), products, rows[~is_space], len(texts))

    def _values(
        self, words: pa.Array, pairs: pa.Array, lines: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Read the number behind each word's colon, 1 where there is none."""
        lengths = pc.list_value_length(pairs).to_numpy()
        padded = pc.if_else(pa.array(lengths == 1), _joined(words, ":1"), words)
        texts = pc.list_element(pc.split_pattern(padded, ":"), 1)
        is_number = pc.match_substring_regex(texts, f"^(?:{NUMBER.pattern.decode()})$")
        bad = ~is_number.to_numpy(zero_copy_only=False) | (lengths > 2)
        if bad.any():
            at = int(np.argmax(bad))
            word = f"{words[at].as_py()[:40]!r}"
            self._refuse(int(lines[at]), f"{word}. Write a feature as name or name:2.5")
        values: NDArray[np.float64] = texts.cast(pa.float64()).to_numpy()
        return values

    def _check_importance(self, importance: pa.ChunkedArray, lines: NDArray[np.int64]) -> None:
        """Refuse importances that are not read, and would be lost."""
        weighs = pc.not_equal(importance, 1.0).to_numpy()
        if self.reading.weights == "read" and weighs.any():
            row, advice = int(np.argmax(weighs)), "Read it with --weight importance, or remove it"
            what = f"importance {importance[row]}, which would be lost. {advice}"
            self._refuse(int(lines[row]), what)


def _joined(*parts: pa.Array | str) -> pa.Array:
    large = [pa.scalar(x, pa.large_string()) if isinstance(x, str) else x for x in (*parts, "")]
    return pc.binary_join_element_wise(*large)


def _added_up(
    names: pa.Array, values: NDArray[np.float64], rows: NDArray[np.int64], count: int
) -> pa.Array:
    """Return lists of pairs, values of a name that occurs again in its row added up."""
    encoded = names.dictionary_encode()
    keys = rows * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) < len(keys):
        values = np.bincount(which, values).astype(np.float64)
        order = np.argsort(first)
        names, values, rows = names.take(pa.array(first[order])), values[order], rows[first[order]]
    offsets = offsets_of(np.bincount(rows, minlength=count))
    pairs = pa.StructArray.from_arrays([names, pa.array(values)], ["name", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs)
