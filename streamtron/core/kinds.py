"""The kinds of settings: what makes a value of what a user gives, and its range."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial
from typing import Any, NamedTuple

from streamtron.core.errors import SettingsError
from streamtron.core.files import absolute, as_path
from streamtron.core.text import digits, label_meant, parse_duration, parse_size, short


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``, and perhaps 0; ``words`` : in place of these numbers."""

    low: float = -math.inf
    high: float = math.inf
    or_zero: bool = False
    words: str = ""

    def check(self, value: float, name: str) -> None:
        """Raise a SettingsError that names the value unless it is in the range."""
        if not (self.low <= value <= self.high or (self.or_zero and value == 0)):
            end = "or more" if self.high == math.inf else f"to {_shown(self.high)}"
            words = self.words or f"{'0, or ' * self.or_zero}{_shown(self.low)} {end}"
            raise SettingsError(f"{name} is {short(value)}: expected {words}.")


def _shown(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


POSITIVE = Range(1e-30, 1e30)
"""Of weights and ρ: their products and squares neither overflow nor vanish."""

BELOW_1 = Range(0.0, 1.0 - 2.0**-53, words="0 to below 1")


class Kind(NamedTuple):
    """What is expected, in words; what makes a value of what Python or TOML gives, and of the
    command line's text; and what help calls it."""

    words: str
    make: Callable[[Any], Any]
    parse: Callable[[str], Any] = str
    shown: str = "TEXT"


def _as(types: tuple[Any, ...], given: Any) -> Any:
    """Return a value of these types, or a scalar of NumPy, as the first; TypeError for others."""
    given = given.tolist() if hasattr(given, "tolist") else given
    if type(given) not in types:
        raise TypeError
    if type(given) is int and not -(2**63) <= given < 2**63:
        raise OverflowError  # whose digits may be too many to be shown
    return types[0](given)


_number, _whole, _text = (partial(_as, types) for types in ((float, int), (int,), (str,)))


def _parse_numbers(text: str) -> tuple[float, ...]:
    return tuple(float(digits(word)) for word in text.split(","))


def _weights(given: Any) -> Any:
    """Name labels by text, as JSON does; a SettingsError if two names may mean one label."""
    if isinstance(given, str) and given == "balanced":
        return given
    weights = {str(label): _number(weight) for label, weight in given.items()}
    if len({label_meant(name) for name in weights}) < len(given):
        raise SettingsError(f"class-weight {short(given)}: a label has two weights. Give one.")
    for name, weight in weights.items():
        POSITIVE.check(weight, f"class-weight of {name}")
    return weights


def _parse_weights(text: str) -> Any:
    pairs = [word.rsplit("=", 1) for word in text.split(",")]
    weights = {label.strip(): float(digits(weight)) for label, weight in pairs}
    if len(weights) < len(pairs):
        raise ValueError
    return weights


def _names(given: Any) -> tuple[str, ...]:
    names = tuple(map(str.strip, given.split(",") if isinstance(given, str) else given))
    if not names or not all(names):
        raise ValueError
    return names


def _specs(given: Any) -> tuple[str, ...]:
    """Return columns as words: of text, a list of words, or a table of names and kinds."""
    if isinstance(given, Mapping):
        given = [f"{name}:{_text(kind)}" for name, kind in given.items()]
    return _names(given if isinstance(given, str) else map(_text, given))


def _transformer(given: Any) -> Any:
    """Return a path, or what has ``fit`` and ``transform`` as scikit-learn's objects do."""
    if hasattr(given, "fit") and hasattr(given, "transform") and not isinstance(given, type):
        return given
    return as_path(given) if isinstance(given, os.PathLike) else _not_empty(_text, given)


def _rows(given: Any) -> Any:
    if given == "all":
        return given
    if (rows := _whole(int(digits(given)) if isinstance(given, str) else given)) < 1:
        raise ValueError
    return rows


def _words(given: Any) -> tuple[str, ...]:
    return tuple(given.split(",") if isinstance(given, str) else map(_text, given))


def _not_empty(make: Callable[[Any], str], given: Any) -> str:
    """Return text; a ValueError if it is empty, as that of an unset variable of a shell."""
    if not (text := make(given)):
        raise ValueError
    return text


KINDS = {
    "number": Kind("a number", _number, lambda text: float(digits(text)), "NUMBER"),
    "whole": Kind("a whole number below 2⁶³", _whole, lambda text: _whole(int(digits(text))), "N"),
    "size": Kind(
        "a whole number of bytes, or text such as 1GB",
        lambda size: parse_size(size) if isinstance(size, str) else _whole(size),
        parse_size,
        "SIZE",
    ),
    "duration": Kind(
        "a number of seconds, or text such as 5m",
        lambda time: parse_duration(time) if isinstance(time, str) else _number(time),
        parse_duration,
        "TIME",
    ),
    "flag": Kind("true or false", partial(_as, (bool,))),
    "text": Kind("text", _text),
    "name": Kind("text that is not empty", partial(_not_empty, _text)),
    "stage": Kind("text or a number", partial(_as, (str, int, float)), str, "STAGES"),
    "numbers": Kind(
        "numbers between commas, one a stage",
        lambda b: (*map(_number, b if hasattr(b, "__iter__") else [b]),),
        _parse_numbers,
        "NUMBERS",
    ),
    "weights": Kind(
        "balanced, or a number above 0 for each label, as in 1=2,-1=0.5",
        _weights,
        lambda text: text if text == "balanced" else _parse_weights(text),
        "WEIGHTS",
    ),
    "names": Kind("names of columns", _names, str, "NAMES"),
    "columns": Kind("NAME:KIND,NAME:KIND,…, auto, or FILE.toml", _specs),
    "transformer": Kind(
        "a file of skops, or a transformer of scikit-learn", _transformer, str, "FILE"
    ),
    "rows": Kind("a whole number from 1 on, or all", _rows, _rows, "N"),
    "words": Kind("words between commas", _words, _words, "WORDS"),
    "output": Kind("a path", absolute, str, "PATH"),
}


def one_of(choices: tuple[str | int, ...]) -> Kind:
    """Return the kind of a setting that is one of these."""

    def make(given: Any) -> Any:
        if (value := given if isinstance(given, str) else _whole(given)) not in choices:
            raise ValueError
        return value

    return Kind(f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}", make)


def setting(default: Any, kind: str | tuple[str | int, ...], range: Range = Range()) -> Any:  # noqa: B008
    """Return a field of ``Settings`` or ``Machine``: of a kind of ``KINDS``, or one of choices."""
    return field(default=default, metadata={"kind": kind, "range": range})


def checked(
    given: Any,
    name: str,
    kind: str | tuple[str | int, ...],
    range: Range = Range(),  # noqa: B008
) -> Any:
    """Return a value of a kind and range; for others raise a SettingsError with the name."""
    words, make, *_ = KINDS[kind] if isinstance(kind, str) else one_of(kind)
    try:
        value = make(given)
    except SettingsError:
        raise
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        shown = "beyond 2⁶³" if isinstance(error, OverflowError) else short(given)
        raise SettingsError(f"{name} is {shown}: expected {words}.") from error
    if kind in ("number", "whole", "size", "duration"):
        range.check(value, name)
    return value


def whole(given: Any, name: str, least: int = 0) -> int:
    """Return a whole number from ``least`` on; for others raise a SettingsError with the name."""
    return int(checked(given, name, "whole", Range(least)))


def make_fields(settings: Any) -> None:
    """Bring every field of ``Settings`` or ``Machine`` that is given into its kind."""
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        if value is not entry.default:
            value = checked(value, entry.name.replace("_", "-"), **entry.metadata)
            object.__setattr__(settings, entry.name, value)


def stage_of(word: str) -> float:
    """Return the ε of a stage; a SettingsError if it is none."""
    try:
        epsilon = float(digits(word))
    except ValueError:
        epsilon = math.nan
    if not 1e-9 <= epsilon < 2:  # smaller ones divide by 0
        raise SettingsError(
            f"stage {word!r}: expected auto, or the paper's stages, 0 < ε < 2, as in 1,0.1."
        )
    return epsilon
