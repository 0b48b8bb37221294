"""What the fast tests try, and what is left to the slow ones."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

ALL = "STREAMTRON_ALL_EXAMPLES" in os.environ
"""As in ``make test-slow``."""


def examples(number: int) -> int:
    """Of so many examples, those that the fast tests try: one in five."""
    return number if ALL else max(1, number // 5)


def slow_but(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Parameters of a test, all but the ``fast`` ones marked as slow."""
    return [
        value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
