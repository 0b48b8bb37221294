"""Settings by name, and the price among them, C or Δ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streamtron.core.errors import SettingsError


class UnknownSetting(SettingsError, TypeError):
    """A name that is not one of a setting."""


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise an UnknownSetting if a name is not that of a setting; it lists similar ones.

    >>> check_names(["max_epoch"], ["max_epochs", "tol"])
    Traceback (most recent call last):
    ...
    streamtron.core.names.UnknownSetting: unknown setting max_epoch: did you mean max_epochs?
    """
    known = [*known]
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(str(name), known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}."
            raise UnknownSetting(f"unknown setting {name}: {hint}")


def prices(C: float | None, delta: float | None) -> dict[str, float | None]:
    """Return C and Δ, given one of them or none, where C is 1: C = 1/(2 Δ²), None if Δ is 0."""
    if delta is None:
        C = 1.0 if C is None else C
        return {"C": C, "delta": (1.0 / (2.0 * C)) ** 0.5}
    return {"C": 0.5 / delta**2 if delta else None, "delta": delta}


def problem_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return loss, penalty and price of kept settings."""
    names = ("loss", "epsilon", "penalty", "l1_ratio", "C", "delta")
    known = {"penalty": "l2", **settings}
    return {name: known[name] for name in names if known.get(name) is not None}
