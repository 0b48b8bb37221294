"""Say what is wrong with a token of libsvm text, what is expected, and what to do."""

from __future__ import annotations

import re

import numpy as np

from streamtron.core.rows import COLUMN_MAX, LARGEST_WEIGHT
from streamtron.data.formats import text_kernels, text_labels
from streamtron.data.formats.text_labels import merging, shown

FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
"""The smallest number that rounds to infinity in float32."""

_TOKEN = re.compile(rb"[^ \t\r\n#]*")
_JUNK = re.compile(rb"[^!-~]")
_OTHER_TEXT = {b"|": ("Vowpal Wabbit's text", ".vw"), b"{": ("JSON lines", ".jsonl")}
"""First byte of a token of another format of text → the format, and how its files are named."""


def complaint(
    kind: int, text: bytearray, at: int, first_column: int, weighted: bool, targets: bool
) -> str:
    """Say what is wrong with the token at ``at``."""
    token = bytes(_TOKEN.match(text, at)[0])  # type: ignore[index]
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
        return text_labels.several_labels(token)
    elif b":" in token and not weighted:
        return (
            f"the row has no label but begins with {shown(token)}. Put a label before it; if it is"
            " label:weight, use --weights-in-label."
        )
    expected = text_labels.REGRESSION_TAKES if targets else "Write labels like -1, 1 or 2.5."
    label = token.partition(b":")[0] if weighted else token
    return f"label {shown(label) or 'missing'} is no finite decimal number. {expected}"


def _bad_weight(token: bytes) -> str:
    word = shown(token) or "missing"
    return f"weight {word}. Weights are decimal numbers of at least 0 and at most 1e30."


def unfit(what: int, token: bytes, number: float, targets: bool) -> str:
    """Say why a well-written number is refused; "" if it is not."""
    if what == text_kernels.LABEL:
        infinite = abs(number) == float("inf")
        return _bad_label(token, True, targets) if infinite else merging(token, number, targets)
    elif what == text_kernels.WEIGHT:
        return _bad_weight(token) if not 0.0 <= number <= LARGEST_WEIGHT else ""
    elif abs(number) >= FLOAT32_OVERFLOW:
        return f"value {shown(token)} is beyond float32 (3.4e38). Rescale its column."
    elif text_labels.is_rounded(token, float(np.float32(number))):
        return (
            f"value {shown(token)} is an integer beyond 2²⁴ that float32 cannot hold. Rescale its"
            " column, or make identifiers columns of their own."
        )
    return ""
