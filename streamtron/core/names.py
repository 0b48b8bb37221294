"""Settings as keywords of the public functions: their types, and an error for an unknown name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from streamtron.core.errors import SettingsError


class Prices(TypedDict, total=False):
    """The settings of which a sweep takes several values."""

    C: float | None
    delta: float | None
    rho: float


class ProblemNames(Prices, total=False):
    """The settings that are the problem to solve."""

    class_weight: Mapping[Any, float] | Literal["balanced"] | None


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
    hash_bits: int | None
    hash_seed: int
    vocabulary: str | None
    allow_duplicate: bool
    on_bad_shard: Literal["error", "skip"]


class SharedNames(ReadingNames, total=False):
    """The settings that all candidates of a sweep share."""

    class_weight: Mapping[Any, float] | Literal["balanced"] | None
    stage: str | float
    variant: Literal["length", "steps"]
    b: float | Sequence[float] | None
    tol: float
    max_epochs: int
    mini_epochs: int
    active_set: int | str
    parts: int | None
    seed: int
    order: Literal["random", "sequential"]
    faithful: bool


class SettingNames(SharedNames, Prices, total=False):
    """All settings; ``streamtron.Settings`` says what they mean."""


def check_names(given: Iterable[str], known: Iterable[str], beside: Iterable[str] = ()) -> None:
    """Raise a SettingsError if a name is not known; it lists similar ones.

    ``known`` : names of settings. ``beside`` : other keywords, one of which may have been meant.

    >>> check_names(["max_epoch"], ["max_epochs", "tol"])
    Traceback (most recent call last):
    ...
    streamtron.core.errors.SettingsError: unknown setting max_epoch: did you mean max_epochs?
    """
    settings = sorted(known)
    for name in given:
        if name in settings:
            continue
        near = get_close_matches(name, [*settings, *beside])
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(settings)}."
        raise SettingsError(f"unknown setting {name}: {hint}")


def names_of(kind: Any) -> frozenset[str]:
    """Return the names of one of the groups above."""
    return frozenset(kind.__optional_keys__)
