"""Vowpal Wabbit's text: the reader and its kernels against plain Python."""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

from streamtron.core.feature_names import Hashing, Vocabulary
from streamtron.data.formats.vowpal_wabbit import VowpalWabbitReader
from streamtron.data.reader_config import ReaderConfig
from tests.helpers.examples import examples
from tests.helpers.shard_rows import rows_of

DECIMALS = "1 2 0.5 -1 +2 1e3 2E-3 -.5e+1 007 1. 0.1 0.2 16777217 1234567.25 12345678.5"
SHORT = [*DECIMALS.split(), "0.30000000000000004", "1e-40", "1e-23", "0.1234567890123456789"]
LONG = ["9007199254740993", "1234567890123456789"]
"""Integers that float64 does not hold: no labels."""

PLAIN_NAMES = "a b cheap a^b b^c ^ größer 中文字 𝒳 'q 1"
NAMES = [*PLAIN_NAMES.split(), "\u2010", "q" * 41, "\x01", "a\u00a0b", "\u2003", "\x0b\x1c"]

blanks = st.sampled_from([" "] * 6 + ["  ", "\t", " \t"])
values = st.just("") | st.sampled_from(SHORT + LONG).map(":{}".format)
names = st.sampled_from(NAMES) | st.sampled_from(["a", "b", "cheap"])


@st.composite
def lines(draw) -> str:
    """A line as it may be, without its newline."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(["", " ", " \t", "\r"]))
    heads = draw(st.tuples(st.sampled_from(SHORT), st.sampled_from(SHORT + LONG)))
    line = "".join(head + draw(blanks) for head in heads[: draw(st.integers(0, 2))])
    line += draw(st.sampled_from(["", "", "'", "'tag", "tag", "'é ", "'tag "]))
    for _ in range(draw(st.integers(1, 3))):
        line += "|" + draw(st.just("") | names) + draw(values)
        line += "".join(draw(blanks) + draw(names) + draw(values) for _ in range(draw(LENGTHS)))
    return draw(st.sampled_from(["", "", " "])) + line + draw(st.sampled_from(["", "", " ", "\r"]))


LENGTHS = st.integers(0, 12)
texts = st.lists(lines(), min_size=1, max_size=6).map("\n".join)


class Line(NamedTuple):
    """A row; its names in the order of their first occurrences, each with the sum of its values."""

    label: float | None
    importance: float
    tag: str | None
    features: dict[str, float]


def oracle(text: str) -> list[Line]:
    """Well-formed text read with str.split and float."""
    rows = []
    for line in filter(None, (line.strip(" \t\r") for line in text.split("\n"))):
        head, _, features = line.replace("\t", " ").partition("|")
        heads, tag = [*filter(None, head.split(" "))], None
        if heads and (heads[-1].startswith("'") or head[-1] != " "):
            tag = heads.pop().removeprefix("'")
        sums: dict[str, float] = {}
        for word in filter(None, ("|" + features.replace("|", " |")).split(" ")):
            name, _, value = word.partition(":")
            number = float(value or 1)
            if word.startswith("|"):
                prefix, scale = name[1:] and name[1:] + "^", number
            else:
                sums[prefix + name] = sums.get(prefix + name, 0.0) + number * scale
        label, importance = [*map(float, heads), None, None][:2]
        rows.append(Line(label, 1.0 if importance is None else importance, tag, sums))
    return rows


def hashed(features: dict[str, float], bits: int) -> dict[int, float]:
    """The columns of a row: values of names that share one are added up, from the least on."""
    shared: dict[int, list[np.float32]] = {}
    for name, value in features.items():
        column = murmurhash3_32(name.encode(), positive=True) % 2**bits
        shared.setdefault(column, []).append(np.float32(value))
    return {j: float(np.float32(sum(map(float, sorted(shared[j]))))) for j in sorted(shared)}


def reader(root: str, text: str, **reading: Any) -> VowpalWabbitReader:
    """A reader of a file with this text."""
    Path(root, "a.vw").write_text(text, encoding="utf-8", newline="")
    return VowpalWabbitReader(str(Path(root, "a.vw")), "a.vw", ReaderConfig(**reading))


@settings(max_examples=examples(200), deadline=None)
@given(texts, st.integers(1, 31), st.booleans())
@example("|a " + " ".join(f"x{k}:{k} x{k % 7}" for k in range(400)), 20, True)  # a long row
def test_rows_whose_names_are_hashed_equal_the_plain_oracle(text, bits, newline):
    how: dict[str, Any] = {"labels": "optional", "weights": "ignored"}
    with tempfile.TemporaryDirectory() as root:
        names = Hashing(bits)
        rows = rows_of(reader(root, text + "\n" * newline, names=names, **how).batches())
    expected = oracle(text)
    found = [dict(zip(columns, values, strict=True)) for _, columns, values, _ in rows]
    assert found == [hashed(line.features, bits) for line in expected]
    assert [list(row) for row in found] == [sorted(row) for row in found]
    assert [label for label, *_ in rows] == [line.label for line in expected]


@settings(max_examples=examples(200), deadline=None)
@given(texts)
def test_cells_equal_the_plain_oracle_names_in_the_order_of_their_first_occurrences(text):
    with tempfile.TemporaryDirectory() as root:
        parts = reader(root, text).rows(["label", "importance", "tag", "features"])
        rows = [Line(*row.values()) for part in parts for row in part.to_pylist()]
    features = [{pair["name"]: pair["value"] for pair in row.features} for row in rows]  # type: ignore[attr-defined]
    expected = oracle(text)
    assert [row[:3] for row in rows] == [line[:3] for line in expected]
    assert [[*row.items()] for row in features] == [[*line.features.items()] for line in expected]


@pytest.mark.parametrize("names", [Vocabulary(("t^b", "a", "t^a")), Hashing(18)])
def test_names_of_a_vocabulary_have_its_columns_and_the_importance_is_the_weight(names):
    with tempfile.TemporaryDirectory() as root:
        how: Any = {"names": names, "weight_column": "importance"}
        [row] = rows_of(reader(root, "1 2.5 |t a:2 b | a\n", **how).batches())
    columns = dict(zip(names.columns(["t^b", "a", "t^a"]).tolist(), (1.0, 1.0, 2.0), strict=True))
    assert (dict(zip(*row[1:3], strict=True)), row[3]) == (columns, 2.5)
