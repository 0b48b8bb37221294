"""How many examples a property is tried on."""

from __future__ import annotations

import os

ALL = "STREAMTRON_ALL_EXAMPLES" in os.environ
"""As in ``make test-slow``."""


def examples(number: int) -> int:
    """Of so many examples, those that the fast tests try: two in five."""
    return number if ALL else max(1, 2 * number // 5)
