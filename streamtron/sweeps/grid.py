"""What a sweep tries: lists and ranges of C, delta, rho become candidates, which are settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import product
from random import Random
from typing import NamedTuple

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError

NAMES = ("C", "delta", "rho")
"""The settings in which candidates differ, the slowest to change first."""

DIGITS = 6
"""Significant digits of a drawn number: few enough to be typed into ``fit``."""

MOST = 100_000
"""Candidates drawn, at most: each of them is a fit."""


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``, to be drawn uniformly on a logarithmic scale."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


Values = tuple[float, ...] | Range


def values_of(name: str, given: str | float | Iterable[float] | Range) -> Values:
    """The values of a setting: as people write them, ``0.1,1`` or ``0.01..100``, or as numbers.

    Parameters
    ----------
    name : ``"C"``, ``"delta"`` or ``"rho"``, for the message.

    Raises
    ------
    SettingsError : no number, a value twice, a range that is not 0 < low < high, a range of rho.

    Examples
    --------
    >>> values_of("C", "0.1,1,10"), values_of("rho", 1), values_of("C", "0.01..100")
    ((0.1, 1.0, 10.0), (1.0,), Range(low=0.01, high=100.0))
    """
    if isinstance(given, str):
        given = _parsed(name, given)
    if isinstance(given, Range):
        return _checked_range(name, given)
    values = (float(given),) if isinstance(given, int | float) else tuple(map(float, given))
    if not values:
        raise SettingsError(f"{name} is an empty list: wanted {_WANTED}.")
    twice = next((value for at, value in enumerate(values) if value in values[:at]), None)
    if twice is not None:
        raise SettingsError(f"{name} has the value {twice:g} twice: give every value once.")
    return values


_WANTED = "numbers between commas, as in 0.1,1,10, or a range to draw from, as in 0.01..100"


def _parsed(name: str, text: str) -> Values:
    low, dots, high = text.partition("..")
    try:
        if dots:
            return Range(float(low), float(high))
        return tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise SettingsError(f"{name} is {text!r}: wanted {_WANTED}.") from error


def _checked_range(name: str, given: Range) -> Range:
    if name == "rho":
        raise SettingsError(
            f"rho is the range {given}: it is drawn from a list. Give one, as in 0,1."
        )
    if not 0 < given.low < given.high < math.inf:
        raise SettingsError(f"{name} is the range {given}: wanted LOW..HIGH, 0 < LOW < HIGH.")
    return given


def candidates_of(
    settings: Settings, values: Mapping[str, Values], random: int | None = None
) -> list[Settings]:
    """The candidates: all combinations of the lists, or so many drawn at random.

    Combinations come in the order of ``NAMES``, the last name changing fastest. What is drawn
    depends on ``settings.seed`` alone, and the first of many are the same as few: numbers of a
    range log-uniformly, to ``DIGITS`` significant digits, of a list uniformly.

    Parameters
    ----------
    settings : what all candidates share.
    values : of the names among ``NAMES`` in which they differ.
    random : how many to draw, ≥ 1; None = all combinations.

    Raises
    ------
    SettingsError : a range without ``random`` or ``random`` without a range, C beside delta, a
        value that ``Settings`` refuses.

    Examples
    --------
    >>> grid = candidates_of(Settings(), {"rho": (0.0, 1.0), "C": (0.1, 1.0)})
    >>> [(one.C, one.rho) for one in grid]
    [(0.1, 0.0), (0.1, 1.0), (1.0, 0.0), (1.0, 1.0)]
    >>> [one.C for one in candidates_of(Settings(), {"C": Range(0.01, 100.0)}, random=2)]
    [23.8609, 10.7601]
    """
    if "C" in values and "delta" in values:
        raise SettingsError("C and delta are two names of one thing (C = 1/(2 Δ²)): give one.")
    names = [name for name in NAMES if name in values]
    ranges = {name: given for name, given in values.items() if isinstance(given, Range)}
    if random is None:
        _refuse_ranges(ranges)
        combinations: Iterable[tuple[float, ...]] = product(*(values[name] for name in names))
    else:
        combinations = _drawn([values[name] for name in names], random, settings.seed)
        if not ranges:
            raise SettingsError(
                "random draws from a range, and there is none: give --C LOW..HIGH, or leave "
                "--random out to try all combinations of the lists."
            )
    return [_candidate(settings, dict(zip(names, one, strict=True))) for one in combinations]


def _refuse_ranges(ranges: Mapping[str, Range]) -> None:
    for name, given in ranges.items():
        raise SettingsError(
            f"{name} is the range {given}: a grid wants a list, as in 0.1,1,10. Give one, or "
            "--random N to draw N candidates."
        )


def _drawn(values: list[Values], count: int, seed: int) -> list[tuple[float, ...]]:
    if not 1 <= count <= MOST:
        raise SettingsError(f"random is {count}: wanted a number of candidates, 1 to {MOST:,}.")
    # the one generator whose numbers Python promises never to change
    chance = Random(seed)
    return [tuple(_draw(given, chance.random()) for given in values) for _ in range(count)]


def _draw(values: Values, chance: float) -> float:
    """The value at ``chance``, 0 ≤ chance < 1, of the way through the list or the range."""
    if not isinstance(values, Range):
        return values[int(chance * len(values))]
    drawn = math.exp(math.log(values.low) + chance * math.log(values.high / values.low))
    return min(max(float(f"{drawn:.{DIGITS}g}"), values.low), values.high)


def _candidate(settings: Settings, own: Mapping[str, float]) -> Settings:
    price = {"C": None, "delta": None} if "C" in own or "delta" in own else {}
    return settings.but(**{**price, **own})


def candidate_words(settings: Settings) -> str:
    """A candidate of a sweep in a few words.

    Examples
    --------
    >>> candidate_words(Settings(delta=0.5, rho=0))
    'delta 0.5, rho 0'
    """
    hand = settings.delta
    price = f"C {0.5 / settings.delta2:g}" if hand is None else f"delta {hand:g}"
    stage = "" if settings.stage == "auto" else f", stage {settings.stage}"
    return f"{price}, rho {settings.rho:g}{stage}"
