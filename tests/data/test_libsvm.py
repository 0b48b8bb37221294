"""The libsvm text reader against scikit-learn's, a plain-Python oracle, and bad files."""

import bz2
import gzip
import itertools
import lzma
import math
import random
import re
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from decimal import Context, Decimal
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.core.errors import DataError
from streamtron.data.discover import format_of
from streamtron.data.formats import text_stream
from streamtron.data.formats.libsvm import LibsvmReader
from streamtron.data.formats.text_stream import zstd
from streamtron.data.reader_config import ReaderConfig
from tests.helpers.examples import examples
from tests.helpers.libsvm_rows import (
    PLAIN,
    Row,
    batches,
    bits_of,
    oracle,
    read,
    rows_of,
    sklearn_rows,
)
from tests.helpers.models import refused

OPTIONAL = ReaderConfig(labels="optional")
WEIGHTED = ReaderConfig(weights_in_label=True)
ONE_BASED = ReaderConfig(index_base=1)
SEVERAL = ReaderConfig(multilabel=True)
NAMED = ReaderConfig(multiclass=True)

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1}),
}


def refusal(data: str | bytes, reading: ReaderConfig = PLAIN, batch_bytes: int = 1 << 20) -> str:
    """The sentence with which a file with these contents is refused."""
    return refused(lambda: read(data, reading, batch_bytes))


def with_labels_sorted(rows: list[Row]) -> list[Row]:
    """Rows as scikit-learn has them, which sorts the labels of each."""
    return [row._replace(label=sorted(row.label)) for row in rows]


decimals = st.one_of(
    st.integers(-(2**24), 2**24).map(str),
    st.floats(-1e30, 1e30, allow_nan=False).map(repr).filter(lambda text: abs(float(text)) < 1e30),
    st.decimals(-1000, 1000, allow_nan=False, places=4).map(str),
    st.sampled_from(["1", "1", "1.", ".5", "+2", "-0", "0", "0.0", "1e3", "2E-3", "-.5e+1", "007"]),
)
labels = st.one_of(st.sampled_from(["1", "-1", "+1", "0", "2.5", "-0"]), decimals)
blanks = st.sampled_from([" ", " ", " ", "  ", "\t", " \t "])


@st.composite
def lines(draw, several):
    """A line that our reader and, if it has several labels, scikit-learn's accept; without its
    newline."""
    tails = ["", "", "", " ", "\t ", "#", " # a comment: 1:2", " # größer", "\r"]
    tail = draw(st.sampled_from(tails))
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(["", "  ", "# only a comment", "\t# indented"])) + tail
    largest = 2**31 - 2 if several else 2**32 - 2  # scikit-learn's, ours
    columns = draw(st.lists(st.integers(0, 40) | st.integers(0, largest), unique=True, max_size=8))
    tokens = [draw(labels)]
    if several:
        own = draw(st.lists(labels, unique_by=float, min_size=not columns, max_size=4))
        tokens = [",".join(own)] if own else draw(st.sampled_from([[], [""]]))
    if draw(st.integers(0, 4)) == 0:
        tokens.append(f"qid:{draw(st.integers(0, 99))}")
    columns = sorted(columns) if several else columns
    tokens += [f"{column}:{draw(decimals)}" for column in columns]
    row = "".join(token + draw(blanks) for token in tokens[:-1]) + tokens[-1]
    return draw(st.sampled_from(["", "", " "])) + row + tail


@st.composite
def files(draw, several=False):
    """A file of such lines, with or without a last newline, unless it ends with a dot: we refuse
    that as a number that was cut off."""
    text = "\n".join(draw(st.lists(lines(several), min_size=1, max_size=12)))
    end = draw(st.sampled_from(["", "\n", "\r\n"]))
    return (text + (end or "\n" * text.endswith("."))).encode()


@settings(max_examples=examples(300), deadline=None)
@given(data=files(several=True).map(lambda data: data + b"\n1 1:1"), size=st.integers(1, 200))
def test_rows_of_several_labels_equal_those_of_scikit_learn(data, size):
    assert with_labels_sorted(read(data, SEVERAL, size)) == sklearn_rows(data)


@settings(max_examples=examples(150), deadline=None)
@given(data=files(), batch_bytes=st.integers(1, 200), mark=st.booleans())
def test_rows_equal_the_plain_python_oracle_with_columns_sorted(data, batch_bytes, mark):
    data = b"\xef\xbb\xbf" * mark + data
    assert read(data, batch_bytes=batch_bytes) == oracle(data)


def test_batches_have_a_place_for_every_row_exact_weights_and_no_values_where_all_are_one():
    data = b"# head\n\n3 1:2\n\n1\n3 7:1 9:1\n"
    for size in (1, 3, 9, 99):
        places = [b.place(i) for b in batches(data, batch_bytes=size) for i in range(b.rows)]
        assert places == [f"x.svm, line {n}" for n in (3, 5, 6)]
    assert batches(data, WEIGHTED)[0].weights.dtype == np.float64
    assert batches(b"1 1:1 5:1.0\n0 3:+1\n")[0].values is None
    assert batches(b"1 1:1 5:1\n0 3:0\n")[0].values.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("reading", [SEVERAL, NAMED])
def test_a_label_is_a_number_where_it_is_written_as_one_and_else_a_name(reading):
    [batch] = batches("GCAT 3:1\n-1 # a number\nqid 2:1\ngrößer\n")
    assert batch.classes == ["GCAT", -1.0, "qid", "größer"]  # refused where labels are counted
    text = "GCAT 3:1\nqux 1:1\nqid 2:1\ngrößer # C11\n1.2.3\n0x1 1:1\n1_0\n"
    [batch] = batches(text, reading)
    assert batch.classes == ["GCAT", "qux", "qid", "größer", "1.2.3", "0x1", "1_0"]
    assert batch.codes.tolist() == list(range(7))
    [batch] = batches(b"1 1:1\n+1\n1.0\n1e0\n-0\n0\n", reading)
    assert repr(batch.classes) == "[1.0, 0.0]"  # -0 is 0
    assert batch.codes.tolist() == [0, 0, 0, 0, 1, 1]


OPTIONAL_NAMED = ReaderConfig(multiclass=True, labels="optional")
WEIGHTED_NAMED = ReaderConfig(multiclass=True, weights_in_label=True)
BOTH = ReaderConfig(labels="optional", weights_in_label=True)


@pytest.mark.parametrize(
    ("reading", "data", "rows"),
    [
        (OPTIONAL_NAMED, "C11 1:1\n 2:1\nE12\n", [("C11", [1], 1), (None, [2], 1), ("E12", [], 1)]),
        (
            OPTIONAL,
            "1:2 3:1\n-1 2:1\nqid:3 4:1\n 7:1.5e0\n5\n",
            [(None, [1, 3], 1), (-1.0, [2], 1), (None, [4], 1), (None, [7], 1), (5.0, [], 1)],
        ),
        (WEIGHTED_NAMED, "3:0.5 1:1\n4 1:1\n", [(3.0, [1], 0.5), (4.0, [1], 1)]),
        (BOTH, "3:2 5:1\n", [(3.0, [5], 2.0)]),
        (
            WEIGHTED,
            "1:0.1 3:1\n-1:0 2:1\n-1 2:1\n1:12345678901234567890.5\n1:-0\n1:-1e-400\n",
            [
                (1.0, [3], 0.1),
                (-1.0, [2], 0.0),
                (-1.0, [2], 1),
                (1.0, [], 12345678901234567890.5),
                (1.0, [], 0.0),
                (1.0, [], 0.0),
            ],
        ),
    ],
    ids=["many classes", "no label", "weights of many classes", "weights, no label", "weights"],
)
def test_labels_and_weights_may_be_missing_where_they_are_optional(reading, data, rows):
    assert [(row.label, row.columns, row.weight) for row in read(data, reading)] == rows
    assert all(batch.code_offsets is None for batch in batches(data, reading))
    assert batches("1 1:1\n")[0].weights is None


ONE_ROW = re.compile(rb"1([ \t]+\d+:[+-]?(\d+\.?\d*|\.\d+))*[ \t]*(#[ -~\t]*)?\r?")


@pytest.mark.parametrize("at", range(2, 15))
def test_any_byte_among_digits_is_read_as_one_or_ends_the_number_or_is_refused(at):
    line = b"1 12345:0.67891"
    for byte in set(range(256)) - set(b"\neE"):
        data = line[:at] + bytes([byte]) + line[at + 1 :]
        if ONE_ROW.fullmatch(data):
            assert read(data + b"\n") == oracle(data)
        else:
            assert "line 1" in refusal(data + b"\n")


def test_numbers_of_any_length_are_read_to_the_very_end_of_a_text():
    for column, places in itertools.product(range(1, 10), range(1, 20)):
        data = b"1 " + b"123456789"[:column] + b":0." + b"9876543210123456789"[:places]
        for end in (b"\n", b"\n-1\n"):
            assert read(data + end) == oracle(data + end)


def hard_tokens(count: int, seed: int) -> list[str]:
    """Tokens of many digits and exponents, halfway cases of float32 and float64, tiny ones."""
    rng = random.Random(seed)

    def digits(least: int, most: int) -> str:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(least, most)))

    def halfway() -> str:
        low = struct.unpack("f", struct.pack("I", rng.randrange(1, 0x7F000000)))[0]
        middle = (low + float(np.nextafter(np.float32(low), np.float32(np.inf)))) / 2
        nudge = rng.choice([0.0, math.ulp(middle), -math.ulp(middle)])
        return rng.choice([repr(middle + nudge), f"{middle + nudge:.60e}", f"{middle:.25e}"])

    def near_tie() -> str:
        number = rng.randint(2**52, 2**53) * 0.5 ** rng.randint(1, 40)
        middle = Decimal(number) + Decimal(math.ulp(number)) / 2
        return format(Context(rng.choice([17, 18, 60])).plus(middle), "f")

    kinds = (
        lambda: f"{digits(1, 3)}.{digits(0, 40)}",
        lambda: f"{digits(0, 7)}.{digits(1, 25)}e{rng.randint(-60, 20)}",
        lambda: f"0.{'0' * rng.randint(0, 30)}{digits(1, 20)}",
        lambda: f"{digits(1, 20)}.E{rng.choice(['-', '+', ''])}{rng.randint(0, 15)}",
        lambda: f"{rng.random() * 10.0 ** rng.randint(-50, 37)!r}",
        lambda: f"{digits(3, 3)}e-{rng.choice(['0' * 30 + '5', '400', '320', '9' * 25])}",
        lambda: f"0.{'0' * rng.randint(0, 9)}{rng.randint(1, 10**18)}",
        near_tie,
        halfway,
    )
    return [rng.choice(["", "", "-", "+"]) + rng.choice(kinds)() for _ in range(count)]


def test_values_labels_and_weights_equal_pythons_float_bit_for_bit():
    tokens = [token for token in hard_tokens(20_000, 1) if abs(float(token)) < 3.4e38]
    # a weight beyond 1e30 is refused, see the tests of what overflows
    weights = [token.lstrip("-") if abs(float(token)) <= 1e30 else "1" for token in tokens]
    pairs = zip(tokens, weights, strict=True)
    rows = read("".join(f"{token}:{weight} 7:{token}\n" for token, weight in pairs), WEIGHTED)
    assert len(tokens) > 16_000
    assert [row.bits for row in rows] == [[bits_of(token)] for token in tokens]
    assert [row.label for row in rows] == [float(token) for token in tokens]
    assert [row.weight for row in rows] == [float(weight) for weight in weights]


ROUNDED = ["16777217.0", "1.6777217e7", "9007199254740993.0", "9.007199254740993e15"]
"""Written as measurements, and rounded as such."""
BEYOND_FLOAT64 = ["9007199254740993", "-9007199254740993", "18446744073709551617"]
BEYOND_FLOAT32 = ["16777217", "-16777217", "33554433", *BEYOND_FLOAT64]
LARGEST, OVERFLOWING = "3.4028235677973362e38", "3.4028235677973366e38"


@pytest.mark.parametrize("reading", [PLAIN, WEIGHTED, NAMED])
def test_integers_that_floats_hold_and_the_largest_of_float32_are_read(reading):
    held = ["16777216", "16777218", "36893488147419103232", "0" * 5000 + "3", LARGEST, *ROUNDED]
    for token in held:
        assert read(f"1 1:1\n1 3:{token}\n", reading)[1].bits == [bits_of(token)]
    for token in ("9007199254740992", "36893488147419103232", "0" * 5000 + "1", *ROUNDED):
        assert [row.label for row in read(f"0 1:1\n{token} 3:1\n", reading)] == [0.0, float(token)]
    assert len(refusal(b"1 " + b"x" * 10_000 + b":1", reading)) < 200, "long tokens are cut"


FINITE = "Values are finite decimal numbers, like -0.25 or 1e-3."
WHOLE = "Column numbers are whole numbers from 0 to 4294967294."
ONE_LABEL = "One is expected, unless with --multilabel."
NO_NUMBERS = ["nan", "-NaN", "inf", "+Infinity", "0x10", "1_0", "1e", "1e+", ".", "-", "--1"]
NO_NUMBERS += ["1.2.3", "1,5", "1:2"]
REFUSED: list[tuple[ReaderConfig, str | bytes, str]] = [
    *((PLAIN, f"1 3:{value}", f"value {value} in column 3. {FINITE}") for value in NO_NUMBERS),
    (PLAIN, "1 3:", f"value missing in column 3. {FINITE}"),
    *((PLAIN, f"1 3:{x}", f"value {x} is an integer beyond 2²⁴") for x in BEYOND_FLOAT32),
    *(
        (reading, f"{label} 3:1", f"label {label} is an integer beyond 2⁵³ that float64 cannot")
        for reading in (PLAIN, WEIGHTED, NAMED)
        for label in BEYOND_FLOAT64
    ),
    *(
        (PLAIN, f"1 1:{value}", f"value {value} is beyond float32 (3.4e38)")
        for value in (OVERFLOWING, f"-{OVERFLOWING}", "1e39", "1e400", "1e" + "9" * 30)
    ),
    *(
        (WEIGHTED, f"1:{weight} 3:1", f"weight {weight or 'missing'}. Weights are")
        for weight in (
            "-1",
            "-12345678901234567890.5",
            "nan",
            "inf",
            "1e999",
            "",
            "x",
            "0x1",
            "1:1",
        )
    ),
    *(
        (PLAIN, f"{label} 3:1", f"label {label} is no finite decimal number")
        for label in ("nan", "inf", "1e999", "0x1", "1_0")
    ),
    *((PLAIN, f"1 {qid} 3:1", f"{qid} is no query id") for qid in ("qid:", "qid:x", "qid:-1")),
    *(
        (PLAIN, f"1 {column}:1", f"column {column}. {WHOLE}")
        for column in ("-3", "+3", "1.5", "foo", "qix", 2**32 - 1, 2**64 + 1)
    ),
    (PLAIN, "1 :5", f"column missing. {WHOLE}"),
    *(
        (PLAIN, b"1 1:1 " + bytes([byte]), f"byte {byte:#04x}, which is not in libsvm text")
        for byte in (0, 0x0B, 0x0C, 0x1A, 0xC2, 0xEF)
    ),
    (PLAIN, b"\0\0", "byte 0x00"),
    (PLAIN, b"1 # \0", "byte 0x00"),
    (PLAIN, b"\xe4 1:1", "byte 0xe4"),
    (PLAIN, "1 5", "5 has no value. A feature is written column:value, like 5:1."),
    (PLAIN, "1 3:1 2:1 3:2", "column 3 more than once in a row"),
    (PLAIN, "1 3:1 3:1", "column 3 more than once in a row"),
    (PLAIN, ":5", "the row has no label"),
    (PLAIN, "1:0.5 3:1", "the row has no label but begins with 1:0.5. Put a label before it; if"),
    (PLAIN, "1,5,7 3:1", f"the row has several labels (1,5,7). {ONE_LABEL}"),
    (PLAIN, "0.1234567890123456789,5 3:1", "the row has several labels"),
    (PLAIN, "price,age", f"the row has several labels (price,age). {ONE_LABEL} If this is CSV, g"),
    (PLAIN, '{"y": 1}', '{"y": is not in libsvm text. If this is JSON lines, give the file a na'),
    (PLAIN, "1 |t cheap", "|t is not in libsvm text. If this is Vowpal Wabbit's text, give the fi"),
    (PLAIN, "1 3:1 qid:2", "qid:2 is no query id. One is written qid:3, right after the label."),
    (PLAIN, "1 1:1\r2:1", "a carriage return inside the line"),
    (PLAIN, "1 1:1 # x\r2 2:1", "a carriage return inside the line"),
    (SEVERAL, "1,5,1 3:1", "label 1.0 more than once in a row. Write each label once."),
    (SEVERAL, "2,2.0", "label 2.0 more than once in a row"),
    (SEVERAL, "a,b,a", "label 'a' more than once in a row"),
    *(
        (SEVERAL, f"{labels} 3:1", f"a label is missing beside a comma in {labels}.")
        for labels in ("1,,5", ",", "1,")
    ),
    (SEVERAL, "1,nan 3:1", "label nan is no finite number"),
    (SEVERAL, "-Infinity", "label -Infinity is no finite number"),
    (SEVERAL, "a,1e999", "label 1e999 is no finite number"),
    (SEVERAL, b"a,\xff 3:1", "label \\xff is not printable UTF-8"),
    (SEVERAL, "a\0b", "label a\\x00b is not printable UTF-8"),
    (SEVERAL, "1 x", "x has no value"),
    (SEVERAL, "1, 5 3:1", "a label is missing beside a comma in 1,."),
    (SEVERAL, "foo:1", f"column foo. {WHOLE}"),
    (SEVERAL, "1,2:3", f"column 1,2. {WHOLE}"),
    (NAMED, "1,5,7 3:1", f"the row has several labels (1,5,7). {ONE_LABEL}"),
    (NAMED, "a,b", f"the row has several labels (a,b). {ONE_LABEL}"),
    (NAMED, "nan 3:1", "label nan is no finite number"),
    (NAMED, "3:1", "the row has no label but begins with 3:1"),
    (WEIGHTED_NAMED, "C11:2 1:1", "label C11 is no finite decimal number"),
    *(
        (ONE_BASED, f"1 {row}", "column 0 in a file declared 1-based. Use --index-base 0.")
        for row in ("0:1 2:1", "5:1 0:1")
    ),
    (OPTIONAL, "-1:2", "column -1"),
    (OPTIONAL, "1.5:2", "column 1.5"),
    (OPTIONAL, ":5", "column missing."),
    (OPTIONAL, "3:", "value missing in column 3."),
    (OPTIONAL, "foo:1", "the row has no label"),
    (OPTIONAL, "qid:x 1:1", "qid:x is no query id"),
]


@pytest.mark.parametrize(("reading", "line", "sentence"), REFUSED)
def test_a_bad_line_is_refused_with_file_and_line(reading, line, sentence):
    bad = line if isinstance(line, bytes) else line.encode()
    for end, size in ((b" ", 1), (b"\n", 1), (b"\r\n", 1 << 20), (b" # end\n2 x\n", 1 << 20)):
        data = b"# head\n1 1:1\n" + bad + end
        assert refusal(data, reading, size).startswith(f"x.svm, line 3: {sentence}")


@pytest.mark.parametrize("reading", [PLAIN, SEVERAL])
def test_the_first_of_several_bad_lines_is_the_one_reported(reading):
    bad = [b"1,1 1:1", b"nan 1:1", b"1, 1:1", b"1 3:1e99", b"1 3:1 3:1", b"1 3:16777217", b"1e999"]
    for early, late in itertools.permutations([*bad, b"1 x"], 2):
        sentence = refusal(b"1 1:1\n" + early + b"\n\n" + late + b"\n", reading)
        assert sentence.startswith("x.svm, line 2: ")


def test_a_file_of_another_format_is_refused_by_its_first_bytes():
    texts = ("1 1:1\n".encode("utf-16"), b"PAR1\x15\x04", b"PK\x03\x04")
    for data in (*texts, *(pack(b"1 1:1\n") for pack in PACK.values())):
        assert re.match(r"x\.svm, line 1: byte 0x.*not UTF-16, compressed or a", refusal(data))


@pytest.mark.parametrize("reading", [PLAIN, SEVERAL])
@settings(max_examples=examples(500), deadline=None)
@given(data=st.text("012.,:-+eEa# \n\tqidx\r\xe4\0", max_size=40).map(str.encode))
def test_what_is_read_of_near_miss_text_is_what_scikit_learn_or_the_oracle_reads(reading, data):
    found = []
    with suppress(DataError):
        found = read(data, reading)
    if reading is PLAIN:
        named = any(isinstance(row.label, str) for row in found)
        assert named or found in ([], oracle(data) if found else [])
    elif found and not any(isinstance(label, str) for row in found for label in row.label):
        assert with_labels_sorted(found) == sklearn_rows(data)


@pytest.mark.parametrize("before", [0, 1, 5000])
def test_a_line_without_end_is_refused_before_memory_is(before, monkeypatch):
    monkeypatch.setattr(text_stream, "LINE_LIMIT", 1 << 20)
    sentence = refusal("1 1:1\n" * before + "1 " + "1:1 " * (1 << 19), batch_bytes=1 << 10)
    assert f"x.svm, line {before + 1}: a row longer than 1,048,576 bytes" in sentence


@pytest.mark.parametrize("end", ["0.", "", "-", "1e", "-.5e+", "."])
@pytest.mark.parametrize("before", [0, 500])
def test_a_file_that_ends_within_a_number_was_cut_off(end, before):
    data = "1 1:1\n" * before + f"2 1:1 5376:{end}"
    place = f"x.svm, line {before + 1}: the file ends with 5376:{end} and no newline"
    assert place in refusal(data, batch_bytes=1 << 10)
    assert "the file ends with 5376 " in refusal(data.rpartition(":")[0])
    if end == "0.":  # as scikit-learn and LIBLINEAR read it
        assert read(data + "\n")[-1] == Row(2, [1, 5376], [bits_of(1), bits_of(0)])


@pytest.mark.parametrize("tail", [b"2 1:1", b"2", b"2.", b"2 # 1:0.", b"2 1:0. "])
def test_a_file_that_ends_within_no_number_is_whole_without_a_last_newline(tail):
    assert read(b"1 1:1\n" + tail) == read(b"1 1:1\n" + tail + b"\n")


TEXT = b"".join(b"%d %d:0.%d 90000:1\n" % (i % 2, i, i) for i in range(4_000))
ROWS = oracle(TEXT)


@pytest.mark.parametrize("suffix", PACK)
def test_compressed_streams_alone_or_one_after_another_are_one_file(suffix):
    assert read(PACK[suffix](TEXT), batch_bytes=1 << 12, name="x.svm" + suffix) == ROWS
    half = len(TEXT) // 2
    packed = PACK[suffix](TEXT[:half]) + b"\0" * 512 + PACK[suffix](TEXT[half:]) + b"\0" * 8
    assert read(packed, name="x" + suffix) == ROWS


def flipped(packed: bytes) -> bytes:
    half = len(packed) // 2
    return packed[:half] + bytes([packed[half] ^ 0x10]) + packed[half + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda packed: packed[:-5],
    "cut in the second": lambda packed: packed + packed[: len(packed) // 3],
    "empty": lambda packed: b"",
    "flip": flipped,
    "junk after": lambda packed: packed + b"junk, not a stream, and long enough to tell",
    "plain": lambda packed: TEXT,
}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_compressed_file_is_refused_by_name(suffix, damage):
    sentence = rf"^part-1\.svm\{suffix}.* Copy or compress the file again"
    with pytest.raises(DataError, match=sentence):
        read(DAMAGES[damage](PACK[suffix](TEXT)), name=f"part-1.svm{suffix}")


def told(data: bytes, threads: int, name: str = "x.svm") -> list[object]:
    """All that a reader gives and, at last, what it says: rows, where they stand, bytes read."""
    facts: list[object] = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, name)
        path.write_bytes(data)
        reader = LibsvmReader(str(path), name, PLAIN, threads=threads)
        reader.BATCH_BYTES = 200
        try:
            for batch in reader.batches():
                places = [batch.place(row) for row in range(batch.rows)]
                facts += [(rows_of(batch), places, batch.classes, reader.bytes_read)]
        except DataError as error:
            return [*facts, str(error)]
        return [*facts, reader.bytes_read, reader.fingerprint()]


@pytest.fixture
def small_steps(monkeypatch):
    """Compressed data are unpacked, and handed on, in small steps."""
    monkeypatch.setattr(text_stream, "_SIP", 64)
    monkeypatch.setattr(text_stream, "_UNPACKED_BYTES", 100)


MANY_LINES = [f"{k % 3} {k + 1}:{k / 7} {k + 9}:1e-{k % 40}".encode() for k in range(2_000)]


@pytest.mark.parametrize("threads", [2, 3, 20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_several_threads_parse_what_one_does_to_the_last_bit(threads, suffix, small_steps):
    lines = [*MANY_LINES[:700], b"# " + 900 * b"x", b"", *MANY_LINES[700:]]
    data = PACK.get(suffix, bytes)(b"\n".join(lines))
    one = told(data, 1, f"x.svm{suffix}")
    assert len(one) > 100
    assert one[-2:] == [len(data), xxhash.xxh3_128_hexdigest(data)], "of the bytes as stored"
    assert told(data, threads, f"x.svm{suffix}") == one


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_damage_in_a_compressed_file_is_told_after_a_bad_line_before_it(threads, small_steps):
    lines = [*MANY_LINES[:1_480], b"1 2:x", *MANY_LINES[1_480:1_510]]
    data = gzip.compress(b"\n".join(lines)) + b"junk"
    assert "line 1481: value x in column 2" in str(told(data, threads, "x.svm.gz")[-1])
    assert "damaged" in str(told(gzip.compress(lines[0]) + b"junk", threads, "x.svm.gz")[-1])


NAMED_SO: dict[str, str] = {
    "libsvm": "a9a a9a.t rcv1_27613.ccat x.svm X.LIBSVM a.txt x.dat a9a.xz x.svm.gz x.t.bz2 x.zst "
    "dir.parquet/a9a s3://bucket/part-0007 x.parquet.gz",
    "parquet": "x.parquet x.PQ",
    "arrow": "x.arrow a.arrows c.feather d.IPC",
    "csv": "x.csv x.tsv.gz",
    "jsonl": "x.json",
}


def test_a_name_is_libsvm_text_unless_another_format_claims_it():
    for format_, names in NAMED_SO.items():
        assert {format_of(name) for name in names.split()} == {format_}
