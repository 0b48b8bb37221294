"""Sums over a tree of parts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamtron.core.executor import sum_over_tree


def plus(one: Any, other: Any) -> Any:
    return f"({one}{other})"


@given(st.integers(1, 70), st.integers(0, 6))
def test_a_sum_over_the_tree_does_not_depend_on_who_adds_aligned_parts(
    parts: int, height: int
) -> None:
    letters = [chr(0x100 + number) for number in range(parts)]
    groups = [letters[start : start + 2**height] for start in range(0, parts, 2**height)]
    of_groups = sum_over_tree(plus, [sum_over_tree(plus, group) for group in groups])
    assert of_groups == sum_over_tree(plus, letters)


@given(st.lists(st.integers(), min_size=1))
def test_a_sum_over_the_tree_is_the_sum(parts: list[int]) -> None:
    assert sum_over_tree(int.__add__, parts) == sum(parts)
