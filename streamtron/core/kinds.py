"""What a setting is: its kind, its range, the words that describe it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial
from typing import Any, Literal

from streamtron.core.errors import SettingsError
from streamtron.core.files import absolute, as_path
from streamtron.core.text import digits, label_meant, parse_size, short

SMALLEST, LARGEST = 1e-30, 1e30
"""Range of C, weights and ρ: their products and squares neither overflow nor vanish."""

Range = tuple[Callable[[Any], bool], str]
"""Whether a value is within it, and the range in words."""

ANY: Range = (lambda _: True, "")
POSITIVE: Range = (lambda number: SMALLEST <= number <= LARGEST, "1e-30 to 1e30")
NOT_EMPTY: Range = (lambda name: name != "", "a name that is not empty")
DELTA: Range = (lambda Δ: not Δ or 1e-15 <= Δ <= 1e15, "0 (the hard margin), or 1e-15 to 1e15")
RHO: Range = (lambda rho: not rho or POSITIVE[0](rho), "0 (no bias), or 1e-30 to 1e30")
EPSILON: Range = (lambda epsilon: 0 <= epsilon <= 1e30, "0 to 1e30")
GAP: Range = (lambda tol: 0 <= tol < 1, "a relative duality gap, 0 ≤ tol < 1")
BYTES: Range = (lambda size: size >= 0, "a size of 0 bytes or more")
BITS: Range = (lambda bits: 1 <= bits <= 31, "1 to 31")
BITS32: Range = (lambda seed: 0 <= seed < 2**32, "0 to 2³²-1")
RATIO: Range = (lambda ratio: 0 <= ratio <= 1, "0 to 1")
SHARE: Range = (lambda share: 0 <= share < 1, "a share of the rows, from 0 to below 1")
NAMES: Range = (lambda names: names and all(names), "names of columns")


def at_least(least: int) -> Range:
    """Return the range of numbers from ``least`` on."""
    return lambda number: number >= least, f"at least {least}" if least else "0 or more"


def check_range(value: Any, name: str, range: Range) -> None:
    """Raise a SettingsError that names the value unless it is within the range."""
    is_within, wanted = range
    if not is_within(value):
        raise SettingsError(f"{name} is {short(value)}: wanted {wanted}.")


def _as(types: tuple[Any, ...], given: Any) -> Any:
    """Return a value of these types, or a scalar of NumPy, as the first; TypeError for others."""
    given = given.tolist() if hasattr(given, "tolist") else given
    if type(given) not in types:
        raise TypeError
    if type(given) is int and not -(2**63) <= given < 2**63:
        raise OverflowError
    return types[0](given)


_number, _whole, _text = (partial(_as, types) for types in ((float, int), (int,), (str,)))


def _weights(given: Any) -> Any:
    """Name labels by text, as JSON does; a SettingsError if two names may mean one label."""
    if isinstance(given, str) and given == "balanced":
        return given
    weights = {str(label): _number(weight) for label, weight in given.items()}
    if len({label_meant(name) for name in weights}) < len(given):
        raise SettingsError(f"class-weight {short(given)}: a label has two weights. Give one.")
    for name, weight in weights.items():
        check_range(weight, f"class-weight of {name}", POSITIVE)
    return weights


def _specs(given: Any) -> tuple[str, ...]:
    """Return columns as words: of text, of a table of names and kinds, of a ``Recipe``."""
    if isinstance(given, Mapping):
        return tuple(f"{name}:{_text(kind)}" for name, kind in given.items())
    given = getattr(given, "specs", given)
    return tuple(map(_text, [given] if isinstance(given, str) else given))


def _choice(given: Any) -> Any:
    return given if isinstance(given, str) else _whole(given)


_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "number": (_number, "a number"),
    "whole": (_whole, "a whole number below 2⁶³"),
    "size": (lambda size: parse_size(size) if isinstance(size, str) else _whole(size),
             "a whole number of bytes, or text such as 1GB"),
    "flag": (partial(_as, (bool,)), "true or false"),
    "text": (_text, "text"),
    "stage": (partial(_as, (str, int, float)), "text or a number"),
    "numbers": (lambda b: (*map(_number, b if hasattr(b, "__iter__") else [b]),),
                "one number a stage"),
    "weights": (_weights, "balanced, or a number above 0 for a label"),
    "names": (lambda names: tuple(map(
        str.strip, names.split(",") if isinstance(names, str) else names)), "names"),
    "columns": (_specs, "NAME:KIND,OPTION=VALUE,… of each column"),
    "input": (as_path, "a path"),
    "output": (absolute, "a path"),
}  # fmt: skip
"""Kind of a setting → what makes it of its forms in Python and TOML; these in words."""


def setting(
    default: Any, kind: str | tuple[str | int, ...], range: Range, words: str = "",
    sklearn: str | None = None,
) -> Any:  # fmt: skip
    """Return a field of ``Settings`` or ``Machine``.

    Parameters
    ----------
    kind : one of ``_KINDS``, or the values to choose from, which are then its range.
    words : for help and documentation; [in brackets] what holds if it is not given.
    sklearn : scikit-learn's name.
    """
    make, wanted = _KINDS[kind] if isinstance(kind, str) else (_choice, "")
    if not isinstance(kind, str):
        wanted = f"{', '.join(map(str, kind[:-1]))} or {kind[-1]}"
        range = kind.__contains__, wanted

    made = partial(_made, make=make, wanted=wanted, range=range)
    return field(
        default=default, metadata={"kind": kind, "made": made, "words": words, "sklearn": sklearn}
    )


def _made(
    given: Any, name: str, make: Callable[[Any], Any], wanted: str, range: Range = ANY
) -> Any:
    try:
        value = make(given)
    except SettingsError:
        raise
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        shown = "a number beyond 2⁶³" if isinstance(error, OverflowError) else short(given)
        raise SettingsError(f"{name} is {shown}: wanted {wanted}.") from error
    check_range(value, name, range)
    return value


def whole(given: Any, name: str, least: int = 0) -> int:
    """Return a whole number from ``least`` on; for others raise a SettingsError with the name."""
    return int(_made(given, name, *_KINDS["whole"], at_least(least)))


def make_fields(settings: Any) -> None:
    """Bring every field of ``Settings`` or ``Machine`` that is given into its kind, in which
    defaults are; None stays where it is allowed."""
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        if value is not entry.default and not (value is None and str(entry.type).endswith("None")):
            make = partial(entry.metadata["made"], name=entry.name.replace("_", "-"))
            object.__setattr__(settings, entry.name, make(value))


def stage_of(word: str) -> float | Literal["ascent"]:
    """Return a stage, ε or ascent; a SettingsError if it is none."""
    if word == "ascent":
        return "ascent"
    try:
        epsilon = float(digits(word))
    except ValueError:
        epsilon = math.nan
    if not 0 < epsilon < 2:
        raise SettingsError(
            f"stage {word!r}: wanted auto, or numbers with 0 < ε < 2 or `ascent`, as in 1,0.1."
        )
    return epsilon
