"""Candidates of a sweep: settings made from lists and ranges of loss, C, delta, rho, l1_ratio."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, NamedTuple

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.core.kinds import whole
from streamtron.core.text import digits, short

NAMES = ("loss", "C", "delta", "rho", "l1_ratio")
"""The settings in which candidates differ."""
DIGITS = 6
"""Significant digits of a drawn number: few enough to be typed into ``fit``."""
MOST = 100_000
"""Candidates drawn, at most: each of them is a fit."""


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``, to be drawn log-uniformly."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


Given = str | float | Iterable[float] | Iterable[str] | Range
Values = tuple[float | str, ...] | Range


def values_of(name: str, given: Given) -> Values:
    """Return the values of a setting, each once, given as text, ``0.1,1`` or ``0.01..100``, or as
    numbers; of the loss names.

    >>> values_of("C", "0.1,1,10,1.0"), values_of("rho", 1), values_of("C", "0.01..100")
    ((0.1, 1.0, 10.0), (1.0,), Range(low=0.01, high=100.0))
    >>> values_of("loss", "hinge,log_loss")
    ('hinge', 'log_loss')
    """
    try:
        values = _parsed(name, given)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name} is {short(given)}: expected {_expected(name)}.") from error
    if not values:
        raise SettingsError(f"{name} is an empty list: expected {_expected(name)}.")
    if not isinstance(values, Range):
        return tuple(dict.fromkeys(values))
    if name in ("rho", "l1_ratio"):
        raise SettingsError(
            f"{name} is the range {values}: it is drawn from a list. Give one, as in 0,1."
        )
    if not 0 < values.low < values.high < math.inf:
        raise SettingsError(f"{name} is the range {values}: expected LOW..HIGH, 0 < LOW < HIGH.")
    return values


def _parsed(name: str, given: Any) -> Values:
    if name == "loss":
        return tuple(map(str.strip, given.split(",") if isinstance(given, str) else given))
    if isinstance(given, Range):
        return given
    if not isinstance(given, str):
        return tuple(map(float, [given] if isinstance(given, Real) else given))
    dots = ".." in given
    numbers = [float(digits(word)) for word in given.split(".." if dots else ",")]
    return Range(*numbers) if dots else tuple(numbers)


def _expected(name: str) -> str:
    numbers = "numbers between commas, as in 0.1,1,10, or a range to draw from, as in 0.01..100"
    return "names between commas" if name == "loss" else numbers


def candidates_of(
    settings: Settings, lists: Mapping[str, Given | None], random: int | None = None
) -> list[Settings]:
    """Return all combinations of the lists, or ``random`` drawn ones, with the other settings.

    Combinations come in the order of scikit-learn's ``ParameterGrid``. Of a range, numbers are
    drawn log-uniformly to ``DIGITS`` significant digits, of a list uniformly. What is drawn depends
    on ``settings.seed`` alone, and a smaller ``random`` gives the first of a larger one.

    >>> grid = candidates_of(Settings(), {"rho": (0.0, 1.0), "C": (0.1, 1.0)})
    >>> [(candidate.C, candidate.rho) for candidate in grid]
    [(0.1, 0.0), (0.1, 1.0), (1.0, 0.0), (1.0, 1.0)]
    >>> [drawn.C for drawn in candidates_of(Settings(), {"C": Range(0.01, 100.0)}, random=2)]
    [0.826594, 0.139954]
    """
    from sklearn.model_selection import ParameterGrid

    values = {name: values_of(name, given) for name, given in lists.items() if given is not None}
    if "C" in values and "delta" in values:
        raise SettingsError("C and delta are two names of one thing (C = 1/(2 Δ²)): give one.")
    ranges = [name for name in values if isinstance(values[name], Range)]
    if random is not None:
        combinations = _drawn(values, ranges, random, settings.seed)
    elif ranges:
        raise SettingsError(
            f"{ranges[0]} is the range {values[ranges[0]]}: a grid needs a list, as in 0.1,1,10. "
            "Give one, or --random N to draw N candidates."
        )
    else:
        combinations = ParameterGrid(values)
    price = {"C": None, "delta": None} if "C" in values or "delta" in values else {}
    return [settings.but(**{**price, **combination}) for combination in combinations]


def _drawn(
    values: Mapping[str, Values], ranges: list[str], number: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Draw combinations, at least one of whose values is from a range."""
    import numpy as np
    from scipy.stats import loguniform
    from sklearn.model_selection import ParameterSampler

    if not 1 <= whole(number, "random") <= MOST:
        raise SettingsError(f"random is {number}: expected 1 to {MOST:,} candidates.")
    if not ranges:
        raise SettingsError(
            "random draws from a range, and there is none: give --C LOW..HIGH, or leave --random "
            "out to try all combinations of the lists."
        )
    choices = {name: loguniform(*of) if name in ranges else of for name, of in values.items()}
    random = np.random.RandomState(np.random.MT19937(seed))  # of which every seed ≥ 0 is one
    for drawn in ParameterSampler(choices, number, random_state=random):
        for name in ranges:
            low, high = values[name]
            drawn[name] = min(max(float(f"{drawn[name]:.{DIGITS}g}"), low), high)
        yield drawn


def first_loss(given: Given | None) -> dict[str, str | float]:
    """Return the first of some losses as a setting, by which others get their defaults."""
    return {} if given is None else {"loss": values_of("loss", given)[0]}


def describe_candidate(settings: Settings) -> str:
    """Return a candidate in a few words, such as ``delta 0.5, rho 0``."""
    given = settings.delta
    price = f"C {settings.price:g}" if given is None else f"delta {given:g}"
    stage = "" if settings.stage == "auto" else f", stage {settings.stage}"
    loss = "" if settings.loss == Settings().loss else f", {settings.loss}"
    penalty = f", l1_ratio {settings.ratio:g}" if settings.ratio else ""
    return f"{price}, rho {settings.rho:g}{penalty}{loss}{stage}"
