"""Settings by name: as keywords of the public functions, and the price among them, C or Δ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from streamtron.core.errors import SettingsError

P = ParamSpec("P")
T = TypeVar("T")


class Prices(TypedDict, total=False):
    """The settings of which a sweep takes several values."""

    C: float | None
    loss: str
    delta: float | None
    rho: float
    l1_ratio: float | None
    intercept: Literal["penalised", "free", "none"]


class ProblemNames(Prices, total=False):
    """The settings that are the problem to solve."""

    epsilon: float | None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None
    penalty: Literal["l2", "elasticnet", "l1"]


class ReadingNames(TypedDict, total=False):
    """The settings that say how shards are read."""

    index_base: Literal["auto", 0, 1]
    weights_in_label: bool
    multiclass: bool
    multilabel: bool
    label: str | None
    weight: str | None
    features: str | Sequence[str] | None
    values: str | None
    columns: Any
    text: str | None
    hash_bits: int | None
    hash_seed: int
    vocabulary: str | None
    allow_duplicate: bool
    on_bad_shard: Literal["error", "skip"]


class SharedNames(ReadingNames, total=False):
    """The settings that all candidates of a sweep share."""

    epsilon: float | None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None
    penalty: Literal["l2", "elasticnet", "l1"]
    stage: str | float
    variant: Literal["length", "steps"]
    b: float | Sequence[float] | None
    tol: float
    max_epochs: int
    mini_epochs: int | None
    active_set: int | str | None
    held_out: float
    parts: int | None
    seed: int
    order: Literal["random", "sequential"]
    faithful: bool


class SettingNames(SharedNames, Prices, total=False):
    """All settings; ``streamtron.Settings`` says what they mean."""


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a SettingsError if a name is not that of a setting; it lists similar ones.

    >>> check_names(["max_epoch"], ["max_epochs", "tol"])
    Traceback (most recent call last):
    ...
    streamtron.core.errors.SettingsError: unknown setting max_epoch: did you mean max_epochs?
    """
    settings = sorted(known)
    for name in given:
        if name not in settings:
            raise SettingsError(f"unknown setting {name}: {_similar(str(name), settings)}")


def checks_keywords(group: Any = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a public function: an unknown keyword is a TypeError that lists similar ones.

    Python 3.13 and later list them themselves, but not those of ``**names``.
    ``group`` : the settings above that the function takes as ``**names``.

    >>> checks_keywords()(sorted)([1], revers=True)
    Traceback (most recent call last):
    ...
    TypeError: unexpected keyword argument 'revers': did you mean reverse?
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = signature(function).parameters.values()
        named = {entry.name for entry in parameters if entry.kind is not entry.VAR_KEYWORD}
        known = sorted((named | names_of(group)) - {"self"})

        @wraps(function)
        def called(*values: P.args, **given: P.kwargs) -> T:
            for name in given:
                if name not in known:
                    raise unexpected(name, known)
            return function(*values, **given)

        return called

    return decorate


def unexpected(name: str, known: Collection[str]) -> TypeError:
    """Return the TypeError for an unknown keyword; it lists similar ones."""
    return TypeError(f"unexpected keyword argument {name!r}: {_similar(name, known)}")


def names_of(group: Any) -> frozenset[str]:
    """Return the names of one of the groups above; of None, none."""
    return frozenset(getattr(group, "__optional_keys__", ()))


def _similar(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}."


def prices(C: float | None, delta: float | None) -> dict[str, float | None]:
    """Return C and Δ, given one of them or none, where C is 1: C = 1/(2 Δ²), None if Δ is 0."""
    if delta is None:
        C = 1.0 if C is None else C
        return {"C": C, "delta": (1.0 / (2.0 * C)) ** 0.5}
    return {"C": 0.5 / delta**2 if delta else None, "delta": delta}


def settled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return kept settings with the C that holds where neither C nor delta was given."""
    default = "C" in settings and settings["C"] is settings.get("delta") is None
    return {**settings, "C": 1.0} if default else dict(settings)


def problem_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return loss, penalty and price of kept settings."""
    names = ("loss", "epsilon", "penalty", "l1_ratio", "C", "delta")
    known = {"penalty": "l2", **settled(settings)}
    return {name: known[name] for name in names if known.get(name) is not None}


def one_price(given: Mapping[str, Any]) -> dict[str, Any]:
    """Let a given C replace a delta from elsewhere, and the other way round."""
    rivals = {"C": "delta", "delta": "C"}
    return {**{rivals[name]: None for name in given if name in rivals}, **given}
