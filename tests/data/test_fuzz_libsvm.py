"""Mutated real lines through the text reader and through scikit-learn's: the same rows, or an
error that names the line."""

from __future__ import annotations

import io
import lzma
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.datasets import load_svmlight_file

from streamtron.core.errors import DataError
from streamtron.data.formats.libsvm import LibsvmReader
from streamtron.data.reader_config import ReaderConfig
from tests.helpers.libsvm_rows import oracle
from tests.helpers.libsvm_rows import read as read_rows

BATCH = 32
"""Lines in one file: few enough that finding the refused ones one after another is quick."""

ALPHABET = b"0123456789.:-+eE# \t,_nafixqd\r\x0b\x0c\x00\x1f\x7f\xc3"
NUMBERS = (
    b"1e39 -1e39 3.4028236e38 3.4028235e38 1e-50 16777217 16777216 -16777219 nan inf -inf 1_0 0x10"
    b" 1e 1.e5 .5 5. . - + 1e+ 1e5.5 --1 +-1 1d5 1e400 000 -0 4294967294 4294967295 4294967296"
    b" 2147483647 2147483648 99999999999999999999 0.30000000000000004441 1e22 9007199254740993"
    b" 123456789012345678901234567890e-20 qid:3 qid:x 1:2 :1 1: 1:1:1 3,5"
).split()

ACCEPTED_BY_SKLEARN: list[tuple[str, bytes]] = [
    (r"value .* Values are finite", rb":[+-]?(?i:nan|inf)"),
    (r"beyond float32", rb":"),
    (r"integer beyond 2²⁴", rb":[+-]?\d{8,}"),
    (r"label .* is an integer beyond 2⁵³", rb"^\s*[+-]?\d{16,}"),
    (r"no decimal number|no finite decimal number|whole numbers", rb"_"),
    (r"label .* is no finite decimal number", rb"^\s*[+-]?(?i:nan|inf|\d+e\d\d\d|\d)"),
    (r"whole numbers", rb"\+\d*:"),
    (r"no query id", rb"qid:"),
    (r"carriage return", rb"\r"),
    (r"byte 0x(0b|0c)", rb"[\x0b\x0c]"),
    (r"byte 0x", rb"#.*[^ -~\t]"),
]
"""Sentences of ours for lines that scikit-learn takes, and what such a line holds: the known
differences, as in test_libsvm's table."""


class Rows(NamedTuple):
    """Rows of some lines; values as float32 bits."""

    labels: NDArray[np.float64]
    lengths: NDArray[np.int64]
    columns: NDArray[np.int64]
    bits: NDArray[np.uint32]

    def equals(self, other: Rows) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(self, other, strict=True))


NONE = Rows(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint32))


def joined(parts: list[Rows]) -> Rows:
    return Rows(*(np.concatenate(arrays) for arrays in zip(NONE, *parts, strict=True)))


def ours(lines: list[bytes], path: Path) -> Rows:
    """What our reader makes of a file of these lines."""
    path.write_bytes(b"\n".join(lines) + b"\n")
    parts = []
    for batch in LibsvmReader(str(path), "x", ReaderConfig(), batch_bytes=1 << 14).batches():
        values = np.ones(len(batch.indices), np.float32) if batch.values is None else batch.values
        labels = np.array(batch.classes)[batch.codes]
        columns = batch.indices.astype(np.int64)
        parts.append(Rows(labels, np.diff(batch.indptr), columns, values.view(np.uint32)))
    return joined(parts)


def theirs(lines: list[bytes]) -> Rows:
    """What scikit-learn makes of them; ValueError or OverflowError if it refuses."""
    data = b"\n".join(lines) + b"\n"
    if not any(line.partition(b"#")[0].split() for line in lines):
        return NONE  # it refuses a file without a row
    matrix, labels = load_svmlight_file(
        io.BytesIO(data), zero_based=True, dtype=np.float32, n_features=2**32
    )
    return Rows(
        labels,
        np.diff(matrix.indptr).astype(np.int64),
        matrix.indices.astype(np.int64),
        matrix.data.view(np.uint32),
    )


def real_lines(request: pytest.FixtureRequest) -> list[bytes]:
    """Lines of the real data, else of a generated corpus; of moderate length."""
    try:
        directory: Path = request.getfixturevalue("shared_data")
    except pytest.skip.Exception:
        from streamtron.data.writers.corpus import generate

        place = request.getfixturevalue("tmp_path") / "corpus"
        generate(str(place), rows=3000, columns=5000, seed=0, shards=1)
        [shard] = place.glob("*.svm")
        return [line[:400].rpartition(b" ")[0] for line in shard.read_bytes().splitlines()]
    heart = (directory / "heart_scale").read_bytes().splitlines()
    lines = list(heart)
    for name in ("a9a.xz", "rcv1_27613.ccat.xz"):
        with lzma.open(directory / name) as file:
            lines += [file.readline().rstrip(b"\n") for _ in range(5000)]
    return [line if len(line) < 400 else line[:400].rpartition(b" ")[0] for line in lines]


def mutated(line: bytes, other: bytes, rng: random.Random) -> bytes:
    """The line with something done to it, once or twice; never with a newline in it."""
    for _ in range(rng.choice((1, 1, 1, 2))):
        at = rng.randrange(len(line) + 1)
        match rng.randrange(16):
            case 0:
                line = line[:at] + bytes([rng.choice(ALPHABET)]) + line[at + 1 :]
            case 1:
                line = line[:at] + bytes([rng.choice(ALPHABET)]) + line[at:]
            case 2:
                line = line[:at] + line[at + 1 :]
            case 3:
                line = line[:at]
            case 4:
                line = line[:at] + other[at:]
            case 5 | 11 | 12:
                line = line[:at] + b"%d" % rng.randrange(10) + line[at + 1 :]
            case 6:
                line = re.sub(rb":[^ ]*", b":" + rng.choice(NUMBERS), line, count=1)
            case 7:
                line = rng.choice(NUMBERS) + line[line.find(b" ") :]
            case 8:
                line = line + b" " + rng.choice(NUMBERS) + b":" + rng.choice(NUMBERS)
            case 9 | 14:
                words = line.split(b" ")
                here, there = (rng.randrange(len(words)) for _ in range(2))
                words[here], words[there] = words[there], words[here]
                line = b" ".join(words)
            case 10 | 13:
                line = line + rng.choice((b"\r", b" #", b" # a: b", b"\t", b"  ", b"#\xc3\xa4"))
    return line


def in_order(line: bytes) -> bytes | None:
    """The line with its pairs sorted, as scikit-learn wants them; None if it holds a column that
    it does not: those are judged by plain Python."""
    tokens = line.partition(b"#")[0].split()
    pairs = [token for token in tokens[1:] if not token.startswith(b"qid:")]
    columns = [int(pair.partition(b":")[0]) for pair in pairs]
    if max(columns, default=0) >= 2**31 - 1:
        return None
    if columns == sorted(columns):
        return line
    return b" ".join([tokens[0], *(pair for _, pair in sorted(zip(columns, pairs, strict=True)))])


class Judge:
    """Judges lines, and counts what it found."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.same = self.refused = self.beyond = self.differing = 0

    def judge(self, lines: list[bytes]) -> None:
        """AssertionError for the first line of which we and scikit-learn disagree."""
        start = 0
        while start < len(lines):
            number = self._first_refused(lines[start:])
            self._compare(lines[start : start + number])
            start += number + 1

    def _first_refused(self, lines: list[bytes]) -> int:
        """How many lines stand before the first that we refuse; that one is judged."""
        try:
            self._rows = ours(lines, self._path)
        except DataError as error:
            where, _, sentence = str(error).partition(": ")
            number = int(where.removeprefix("x, line ")) - 1
            self._refusal(lines[number], sentence)
            self._rows = ours(lines[:number], self._path) if number else NONE
            return number
        return len(lines)

    def _refusal(self, line: bytes, sentence: str) -> None:
        """It is this very line that is wrong, and scikit-learn says so too, or it is known that it
        does not."""
        self.refused += 1
        if any(re.search(s, sentence) and re.search(h, line) for s, h in ACCEPTED_BY_SKLEARN):
            with pytest.raises(DataError) as caught:
                ours([line], self._path)
            assert str(caught.value) == f"x, line 1: {sentence}"
            self.differing += 1
            return
        with pytest.raises((ValueError, OverflowError)):
            pytest.fail(f"{sentence} And scikit-learn reads {theirs([line])} of {line!r}.")

    def _compare(self, lines: list[bytes]) -> None:
        """The rows of lines that we take are scikit-learn's."""
        sorted_lines = [in_order(line) for line in lines]
        known = [line for line in sorted_lines if line is not None]
        if len(known) == len(lines):
            assert self._rows.equals(theirs(known)), lines
        else:
            for line, ordered in zip(lines, sorted_lines, strict=True):
                if ordered is None:
                    self.beyond += 1
                    assert read_rows(line) == oracle(line), line
            taken = [line for line in lines if in_order(line) is not None]
            assert ours(taken, self._path).equals(theirs(known)), lines
        self.same += len(lines)


def batches(lines: list[bytes], count: int, seed: int) -> Iterator[list[bytes]]:
    rng = random.Random(seed)
    for _ in range(-(-count // BATCH)):
        yield [mutated(rng.choice(lines), rng.choice(lines), rng) for _ in range(BATCH)]


def fuzz(request: pytest.FixtureRequest, path: Path, count: int, seed: int) -> None:
    judge = Judge(path)
    with config_context(skip_parameter_validation=True):  # a third of its time
        for batch in batches(real_lines(request), count, seed):
            judge.judge(batch)
    assert judge.same + judge.refused >= count
    assert judge.same > count // 4, "mutations leave enough lines whole"
    assert judge.refused > count // 4, "and spoil enough of them"
    assert judge.beyond
    assert judge.differing


def test_thousands_of_mutated_real_lines_give_scikit_learns_rows_or_an_error_that_names_the_line(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    fuzz(request, tmp_path / "x", 2_000, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_million_mutated_real_lines_give_scikit_learns_rows_or_an_error_that_names_the_line(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    fuzz(request, tmp_path / "x", 500_000, seed)
