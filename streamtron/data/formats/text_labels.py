"""Read labels in text: numbers or names, one a row or several between commas."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core.rows import Label
from streamtron.data.row_batch import Offsets, cut_codes, offsets_of, repeated, row_of

NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""A decimal number as text writes it."""
NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)

_INTEGER = re.compile(rb"[+-]?0*(\d+)")
_REFUSED = -1


class TextLabels(NamedTuple):
    """What the rows that begin with a label say.

    ``rows`` are their numbers, which rise; ``codes`` point into ``classes``, in order of
    appearance; ``offsets`` are those of each row's codes, None where each has one.
    """

    tokens: pa.Array
    rows: NDArray[np.int64]
    codes: NDArray[np.int32]
    offsets: Offsets | None
    classes: list[Label]

    def among(self, rows: int) -> tuple[NDArray[np.int32], Offsets | None]:
        """Return codes and offsets of all of so many rows, -1 or none for those without a label."""
        if self.offsets is None:
            codes = np.full(rows, -1, np.int32)
            codes[self.rows] = self.codes
            return codes, None
        lengths = np.zeros(rows, np.int64)
        lengths[self.rows] = np.diff(self.offsets)
        return self.codes, offsets_of(lengths)

    def trouble(self) -> tuple[int, str] | None:
        """Return the first row that is refused and the sentence that says why; None if none is."""
        refused = np.flatnonzero(self.codes == _REFUSED)[:1]
        before = row_of(self.offsets, refused[0]) if len(refused) else len(self.rows)
        twice = repeated(*cut_codes(self.codes, self.offsets, 0, before))
        if twice:
            at, code = twice
            return int(self.rows[at]), (
                f"label {self.classes[code]!r} more than once in a row. Write each label once."
            )
        if len(refused):
            token = self.tokens[before].as_py()
            return int(self.rows[before]), _complaint(token, self.offsets is not None)
        return None


def text_labels(text: NDArray[np.uint8], tokens: NDArray[np.int64], several: bool) -> TextLabels:
    """Return the labels in tokens of text, given as (row, first byte, byte after it) each.

    A label is a number if it is written as one, else a name. Refused are what is empty, not
    finite, an integer that float64 does not hold, not printable UTF-8 and, unless a row may have
    ``several``, a comma.

    Examples
    --------
    >>> text = np.frombuffer(b"GCAT,C11 3:1\\n2:1\\nC11", np.uint8)
    >>> labels = text_labels(text, np.array([[0, 0, 8], [2, 17, 20]]), several=True)
    >>> labels.codes.tolist(), labels.classes, labels.among(3)[1].tolist()
    ([0, 1, 1], ['GCAT', 'C11'], [0, 2, 2, 3])
    """
    rows, begins, ends = tokens.T
    items = written = _gathered(text, begins, ends)
    offsets = None
    if several:
        import pyarrow.compute as pc  # it takes longer to load than small shards to be read

        lists = pc.split_pattern(written, ",")
        items, offsets = lists.flatten(), lists.offsets.to_numpy().astype(np.int64)
    encoded = items.dictionary_encode()
    classes: dict[Label, int] = {}
    labels = map(_label, encoded.dictionary.to_pylist())
    table = [_REFUSED if x is None else classes.setdefault(x, len(classes)) for x in labels]
    codes = np.array(table, np.int32)[encoded.indices.to_numpy()]
    return TextLabels(written, rows, codes, offsets, list(classes))


def is_text_name(name: str) -> bool:
    """Tell whether a name, written as a label in text, is read as that name.

    Examples
    --------
    >>> [is_text_name(name) for name in ("GCAT", "two words", "a,b", "17", "x:1", "#1", "größe")]
    [True, False, False, False, False, False, True]
    """
    return not re.search(r"[\s,:#]", name) and _label(name.encode()) == name


def is_rounded(token: bytes, number: float) -> bool:
    """Whether a token is an integer, and not the one that a float stands for: another would do.

    Examples
    --------
    >>> [is_rounded(token, 2.0**53) for token in (b"9007199254740992", b"9007199254740993")]
    [False, True]
    """
    found = _INTEGER.fullmatch(token)
    return found is not None and np.isfinite(number) and int(found[1]) != abs(number)


def merging(token: bytes, number: float) -> str:
    """Why a number as a label would become the same float as another one; "" if it would not."""
    if not is_rounded(token, number):
        return ""
    return (
        f"label {shown(token)} is an integer beyond 2⁵³ that float64 cannot hold: another label "
        "would be the same. Number the classes anew, or write names and use --multiclass."
    )


def shown(token: bytes) -> str:
    """Return a token as a message prints it: ASCII, and not longer than a line."""
    text = ascii(token.decode("latin-1"))[1:-1]
    return text if len(text) <= 40 else f"{text[:40]}…"


def _gathered(
    text: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> pa.Array:
    lengths = ends - begins
    offsets = offsets_of(lengths)
    places = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text[places])]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def _label(token: bytes) -> Label | None:
    """What a token says; None if it is refused."""
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


def _complaint(token: bytes, several: bool) -> str:
    """Say what is wrong with the labels of a row."""
    if not several and b"," in token:
        return (
            f"the row has several labels ({shown(token)}). One is wanted, unless with --multilabel."
        )
    label = next(item for item in token.split(b",") if _label(item) is None)
    if not label:
        return f"a label is missing beside a comma in {shown(token)}. Write labels like 1,5,7."
    if _decoded(label) is None:
        return f"label {shown(label)} is not printable UTF-8. Check that the file is text."
    if NUMBER.fullmatch(label) and (sentence := merging(label, float(label))):
        return sentence
    return f"label {shown(label)} is no finite number. Write labels like 1, 2.5 or news."
