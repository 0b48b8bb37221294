"""Say what is wrong with libsvm text, what is wanted, and what to do."""

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

_TABLES = {
    b"|": "If this is Vowpal Wabbit's text, give the file a name that ends in .vw.",
    b"{": "If these are JSON lines, give the file a name that ends in .jsonl.",
}
"""First byte of a token of another format of text → what to do."""


def complaint(
    kind: int, text: bytearray, at: int, first_column: int, weighted: bool, targets: bool
) -> str:
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
        return _bad_label(token, weighted, targets)
    elif kind == text_kernels.BAD_WEIGHT:
        return _bad_weight(token)
    elif token.startswith(b"qid:"):
        return f"{shown(token)} is no query id. One is written qid:3, right after the label."
    return _bad_pair(token, first_column)


def _bad_label(token: bytes, weighted: bool, targets: bool) -> str:
    if weighted:
        return _not_a_number(token.partition(b":")[0], targets)
    elif b"," in token:
        return text_labels.several_labels(token)
    elif b":" in token:
        return (
            f"the row has no label but begins with {shown(token)}. Put a label before it; if it is"
            " label:weight, use --weights-in-label."
        )
    return _not_a_number(token, targets)


def _not_a_number(token: bytes, targets: bool) -> str:
    word = shown(token) or "missing"
    if targets:
        return f"label {word} is no finite decimal number. {text_labels.REGRESSION_TAKES}"
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
        kind = f"whole numbers from {first_column} up, in decimal digits"
        return f"column {word}. Column numbers are {kind}."
    elif len(column) > 18 or int(column) > COLUMN_MAX:
        return f"column {word} is beyond {COLUMN_MAX}, the largest. Renumber the columns."
    elif int(column) < first_column:
        return "column 0 in a file declared 1-based. Use --index-base 0."
    elif not value:
        return f"column {word} has no value. Write {word}:1 or remove it."
    elif text_labels.NOT_FINITE.fullmatch(value):
        return f"value {shown(value)} in column {word}. Values are finite; remove it or the row."
    wrong = f"value {shown(value)} in column {word} is no decimal number"
    return f"{wrong}. Write it like -0.25 or 1e-3."


def unfit(what: int, token: bytes, number: float, targets: bool) -> str:
    """Say why a well-written number is refused; "" if it is not."""
    infinite = abs(number) == float("inf")
    if what == text_kernels.LABEL:
        return _not_a_number(token, targets) if infinite else merging(token, number, targets)
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
