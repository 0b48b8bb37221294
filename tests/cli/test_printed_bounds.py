"""What is proven is printed rounded outwards, wherever it is printed."""

import ast
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamtron
from streamtron.core.text import BOUNDS, down, up
from tests.helpers.svm_text import svm_lines

PACKAGE = Path(streamtron.__file__).parent

PROVEN = re.compile(r"gap|bound|margin|upper|lower|primal|dual|radius|objective|certain", re.I)
"""Names of what certificates hold, and of what is computed from it."""

NUMBER = re.compile(r"%$|[.0-9}][efg]$|^[efg]$", re.I)
"""Formats that round to nearest."""

NO_CLAIMS = {
    "self.estimated_gap",  # marked by ~
    "b / b_scale(epsilon, settings, radius ** 2)",  # a setting
    "100 * abs(self.share)",
    "slack",
}


def _formats(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What is formatted as a rounded number, as source, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            if NUMBER.search(ast.unparse(node.format_spec)[2:-1]):
                yield ast.unparse(node.value), node.lineno
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in ("format", "number", "_digits", "short", "round") and node.args:
                yield ast.unparse(node.args[0]), node.lineno
            elif name == "aligned":  # formats floats by ``number``
                for pair in ast.walk(node):
                    if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
                        value = ast.unparse(pair.elts[1])
                        if not value.startswith(("' → '.join(map(up", "_pair")):
                            yield value, pair.lineno
        elif isinstance(node, ast.BinOp) and isinstance(getattr(node.left, "value", None), str):
            yield ast.unparse(node.right), node.lineno


def test_no_format_but_down_and_up_is_applied_to_what_is_proven():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {value}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for value, line in _formats(ast.parse(path.read_text()))
        if PROVEN.search(value)
        and value not in NO_CLAIMS
        and not value.startswith(("up(", "down("))
    ]
    assert wrong == []


@given(st.floats(-1e290, 1e290).filter(lambda x: not 0 < abs(x) < 1e-290), st.integers(1, 9))
def test_a_printed_bound_is_on_its_side_and_the_nearest_of_so_many_digits(value, digits):
    low, high = Decimal(down(value, digits)), Decimal(up(value, digits))
    assert low <= Decimal(value) <= high
    if value:
        assert high - low <= Decimal(10) ** (Decimal(value).adjusted() - digits + 1)
    assert (down(None), up(None)) == ("-", "-")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Rows of five classes, and a model of them with its report."""
    directory = tmp_path_factory.mktemp("printed")
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((150, 3)), rng.integers(0, 5, 150)
    (directory / "rows.svm").write_text("".join(svm_lines(X.round(4), y)))
    return directory


@pytest.fixture
def printed(run):
    """Run a command, and give what it prints."""
    return lambda *words: "".join(run(*words)[1:])


def _named(text: str, pattern: str) -> Decimal:
    found = re.search(pattern, text)
    assert found is not None, text
    return Decimal(found[1])


def test_certify_prints_what_is_true_of_weights_that_are_too_long(place, printed):
    (place / "two.svm").write_text("1 1:1\n-1 1:-1\n")
    (place / "long.txt").write_text("10\n")  # P is 50, the least 0.4
    words = ("--C", 1, "--rho", 0, "--index-base", 1)
    said = printed("certify", "long.txt", "two.svm", *words)
    assert "problem            loss squared_hinge, penalty l2, C 1" in said
    assert _named(said, r"primal objective +(\S+)") in (50, Decimal("50.00001"))
    assert _named(said, r"gap +(\S+)") >= Decimal("0.992")
    assert _named(said, r"within (\S+) %") >= 12_400


def test_fit_certify_inspect_and_the_page_print_bounds_that_hold(place, printed):
    words = ("--multiclass", "--model", "m", "--report", "r.json", "--tol", 1e-4, "--stage", 1)
    said = {"fit": printed("fit", "rows.svm", *words, "-v")}
    said |= {command: printed(command, "m") for command in ("inspect", "certify")}
    told = json.loads((place / "r.json").read_text())
    again = json.loads(printed("certify", "m", "--json"))
    widest = Decimal(told["certificate"]["relative_duality_gap"])
    for command, text in said.items():
        learners = (again if command == "certify" else told)["learners"]
        lines = [line.split() for line in text.splitlines() if re.match(r"[0-4] ", line)]
        for words, each in zip(lines, learners, strict=True):
            lower, upper, gap = map(Decimal, words[1:4])
            exact = [Decimal(each["certificate"][name]) for name in BOUNDS]
            assert lower <= exact[0] < lower * Decimal("1.00001")
            assert upper >= exact[1] > upper * Decimal("0.99999")
            assert gap >= exact[2] > gap * Decimal("0.99999")
    for command in ("fit", "inspect"):
        assert _named(said[command], r"largest gap +(\S+)") >= widest
    assert _named(said["fit"], r"the largest relative duality gap is ([-0-9.e]+),") >= widest
    printed("report", "m.run", "-o", "page.html")
    page = (place / "page.html").read_text()
    gaps = re.findall(r"<tr><td>[0-4]</td><td class=\"n\">([^<]+)<", page)
    for gap, each in zip(gaps, told["learners"], strict=True):
        assert Decimal(gap) >= Decimal(each["certificate"][BOUNDS[2]])
