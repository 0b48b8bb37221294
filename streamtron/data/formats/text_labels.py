"""Read labels in text: numbers or names, one a row or several between commas."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.rows import Label
from streamtron.data.row_batch import Offsets, offsets_of

NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""A decimal number as text writes it."""
NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)

REGRESSION_TAKES = (
    "A loss of regression takes finite numbers: correct or remove the row, or use a loss of "
    "classification, as --loss squared_hinge."
)

_TOKEN = re.compile(rb"[^\s#:]+(?=[\s#])")
_INTEGER = re.compile(rb"[+-]?0*(\d+)")


class TextLabels(NamedTuple):
    """The labels of all rows of a text, up to the first row that is refused.

    ``codes`` point into ``classes``, in order of appearance; ``offsets`` are those of each row's
    codes, None where each row has one, -1 if it has no label.
    """

    codes: NDArray[np.int32]
    offsets: Offsets | None
    classes: list[Label]
    refused: tuple[int, str] | None
    """the row, and what is wrong with its labels"""


def text_labels(
    text: bytearray, tokens: NDArray[np.int64], rows: int, *, several: bool
) -> TextLabels:
    """Return the labels in tokens of text, given as (row, first byte, byte after it), rows rising.

    A label is a number if it is written as one, else a name. Refused are what is empty, not
    finite, an integer that float64 does not hold, not printable UTF-8 and, unless a row may have
    ``several``, a comma.
    """
    classes: dict[Label, int] = {}
    known: dict[bytes, list[int] | str] = {}  # the codes in a token, or why it is refused
    codes_of: list[list[int]] = [[]] * (rows + 1)  # the last may have been begun and not be whole
    refused = None
    for row, begin, end in tokens.tolist():
        token = bytes(text[begin:end])
        codes = known.get(token)
        if codes is None:
            codes = known[token] = _codes(token, classes, several)
        if isinstance(codes, str):
            refused = row, codes
            break
        codes_of[row] = codes
    del codes_of[rows:]
    if several:
        lengths = np.fromiter(map(len, codes_of), np.int64, rows)
        flat = np.array([code for codes in codes_of for code in codes], np.int32)
        return TextLabels(flat, offsets_of(lengths), list(classes), refused)
    flat = np.array([codes[0] if codes else -1 for codes in codes_of], np.int32)
    return TextLabels(flat, None, list(classes), refused)


def _codes(token: bytes, classes: dict[Label, int], several: bool) -> list[int] | str:
    """Return the codes of the labels in a token, or what is wrong with them."""
    codes: list[int] = []
    for item in token.split(b",") if several else [token]:
        label = _label(item)
        if label is None:
            return _complaint(token, item)
        code = classes.setdefault(label, len(classes))
        if code in codes:
            return f"label {label!r} more than once in a row. Write each label once."
        codes.append(code)
    return codes


def is_text_name(name: str) -> bool:
    """Tell whether a name, written as a label in text, is read as that name."""
    return not re.search(r"[\s,:#]", name) and _label(name.encode()) == name


def is_name_at(text: bytearray, at: int) -> bool:
    """Tell whether a token is the name of a class: it begins with a letter, as no number does."""
    token = _TOKEN.match(text, at)
    name = token and _label(token[0])
    return isinstance(name, str) and name[0].isalpha()


def is_rounded(token: bytes, number: float) -> bool:
    """Tell whether a token is an integer, and not the one that a float stands for."""
    digits = _INTEGER.fullmatch(token)
    return digits is not None and np.isfinite(number) and int(digits[1]) != abs(number)


def merging(token: bytes, number: float, targets: bool = False) -> str:
    """Say why a number as a label would become the float of another one; "" if it would not."""
    if not is_rounded(token, number):
        return ""
    what = f"label {shown(token)} is an integer beyond 2⁵³ that float64 cannot hold"
    if targets:
        return f"{what}. Rescale the labels."
    return (
        f"{what}: another label would be the same. Number the classes anew, or write names and use "
        "--multiclass."
    )


def several_labels(token: bytes) -> str:
    """Say that a row has several labels where one is expected."""
    return (
        f"the row has several labels ({shown(token)}). One is expected, unless with --multilabel. "
        "If this is CSV, give the file a name that ends in .csv."
    )


def shown(token: bytes) -> str:
    """Return a token as a message prints it: ASCII, and not longer than a line."""
    text = ascii(token.decode("latin-1"))[1:-1]
    return text if len(text) <= 40 else f"{text[:40]}…"


def _label(token: bytes) -> Label | None:
    """Return what a token says; None if it is refused."""
    if NUMBER.fullmatch(token):
        number = float(token) + 0.0  # -0 is 0
        return number if np.isfinite(number) and not is_rounded(token, number) else None
    name = _decoded(token)
    return name if name and "," not in name and not NOT_FINITE.fullmatch(token) else None


def _decoded(token: bytes) -> str | None:
    """Return the token as text; None if it is not printable UTF-8."""
    try:
        name = token.decode()
    except UnicodeDecodeError:
        return None
    return name if name.isprintable() else None


def _complaint(token: bytes, label: bytes) -> str:
    """Say what is wrong with a label among those of a row."""
    if b"," in label:
        return several_labels(token)
    if not label:
        return f"a label is missing beside a comma in {shown(token)}. Write labels like 1,5,7."
    if _decoded(label) is None:
        return f"label {shown(label)} is not printable UTF-8. Check that the file is text."
    if NUMBER.fullmatch(label) and (sentence := merging(label, float(label))):
        return sentence
    return f"label {shown(label)} is no finite number. Write labels like 1, 2.5 or news."
