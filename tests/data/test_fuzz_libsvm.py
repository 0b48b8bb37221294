"""Mutated real lines through the text reader and through scikit-learn's: the same rows, or an
error that names the line."""

from __future__ import annotations

import lzma
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from sklearn import config_context

from streamtron.core.errors import DataError
from tests.helpers.libsvm_rows import oracle, read, sklearn_rows

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


def judge(line: bytes) -> str:
    """Compare what we make of a line with what scikit-learn does; return what became of it."""
    message = ""
    try:
        rows = read(line + b"\n", name="x")
    except DataError as error:
        message = str(error)
    if message:
        assert message.startswith("x, line 1: "), line
        sentence = message.removeprefix("x, line 1: ")
        if any(re.search(s, sentence) and re.search(h, line) for s, h in ACCEPTED_BY_SKLEARN):
            return "differs"
        with pytest.raises((ValueError, OverflowError)):
            pytest.fail(f"{sentence} And scikit-learn reads {sklearn_rows(line)} of {line!r}.")
        return "refused"
    if rows and isinstance(rows[0].label, str):
        assert line.lstrip()[:1].isalpha(), line
        return "differs"
    assert rows == oracle(line), line
    ordered = in_order(line)
    if ordered is None:
        return "beyond"
    if rows:  # scikit-learn refuses a file without a row
        assert rows == sklearn_rows(ordered), line
    return "same"


def fuzz(lines: list[bytes], count: int, seed: int) -> None:
    rng = random.Random(seed)
    with config_context(skip_parameter_validation=True):  # a third of its time
        outcomes = Counter(
            judge(mutated(rng.choice(lines), rng.choice(lines), rng)) for _ in range(count)
        )
    assert outcomes["same"] > count // 4, "mutations leave enough lines whole"
    assert outcomes["refused"] + outcomes["differs"] > count // 4, "and spoil enough of them"
    assert outcomes["beyond"]
    assert outcomes["differs"]


def test_a_thousand_mutated_real_lines_give_scikit_learns_rows_or_an_error_that_names_the_line(
    request: pytest.FixtureRequest,
) -> None:
    fuzz(real_lines(request), 1_000, seed=0)


@pytest.mark.slow
def test_many_mutated_real_lines_give_scikit_learns_rows_or_an_error_that_names_the_line(
    request: pytest.FixtureRequest,
) -> None:
    fuzz(real_lines(request), 100_000, seed=1)
