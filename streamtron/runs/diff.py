"""Compare two models: settings, certificates and weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.kinds import whole
from streamtron.core.names import checks_keywords, settled
from streamtron.core.rows import Label
from streamtron.core.text import some
from streamtron.model.linear_model import Direction, LinearModel
from streamtron.runs.explain import MOST
from streamtron.runs.inputs import as_model

Model = LinearModel | str | os.PathLike[str]
Places = NDArray[np.int64]


@checks_keywords()
def diff(first: Model, second: Model, *, most: int = MOST) -> dict[str, Any]:
    """Compare two models of the same classes, or of numbers.

    Features are the same if their names are, in whatever order; of one name they count together.
    Hashed columns of tables are the same by name and hash; features without names by number.

    Parameters
    ----------
    first, second : models or their files.
    most : features listed of each class, those whose weights differ most first.

    Returns
    -------
    ``settings``, those that differ, as [first, second]; ``only_in_first`` and ``only_in_second``,
    classes; ``directions``, a list with one entry for two classes, else one a common class: its
    ``positive`` class, ``cosine`` of the two w, ``distance`` ‖w₁ − w₂‖/‖w₁‖ (each None where a
    weight vector is 0), ``bias`` and ``relative_duality_gap`` (None where nothing is proven), both
    as [first, second], and ``features`` with ``column`` or ``name`` and ``weights``, [first,
    second].

    Raises
    ------
    SettingsError : no class is in both models, or one of two classes with one of many; features
        that only one of them can name, or that were hashed otherwise.

    Examples
    --------
    >>> a, b = (
    ...     LinearModel(np.array(w), 0.0, (-1.0, 1.0), {}, None, {"index_base": 1})
    ...     for w in ([3.0, 4.0], [4.0, 3.0])
    ... )
    >>> [direction] = diff(a, b)["directions"]
    >>> round(direction["cosine"], 9)
    0.96
    """
    first, second, most = as_model(first), as_model(second), whole(most, "most")
    common = _positives(first) & _positives(second)
    if not common or (first.kind == "two classes") != (second.kind == "two classes"):
        kinds = (some(model.classes, form=str) or "numbers" for model in (first, second))
        pair = ", and ".join(kinds)
        raise SettingsError(f"models of other classes: {pair}. Compare models of the same classes.")
    names, places = _places(first, second)
    settings, later_settings = settled(first.settings), settled(second.settings)
    return {
        "settings": {
            name: [settings.get(name), later_settings.get(name)]
            for name in dict.fromkeys((*settings, *later_settings))
            if settings.get(name) != later_settings.get(name)
        },
        "only_in_first": [label for label in first.classes if label not in second.classes],
        "only_in_second": [label for label in second.classes if label not in first.classes],
        "directions": [
            _compare(*pair, names, places, most)
            for pair in zip(_of(first, common), _of(second, common), strict=True)
        ],
    }


def _positives(model: LinearModel) -> set[Label | None]:
    return {direction.positive for direction in model.directions()}


def _of(model: LinearModel, positives: set[Label | None]) -> Iterator[Direction]:
    """Yield the directions of some classes, by rising class."""
    return (direction for direction in model.directions() if direction.positive in positives)


def _places(first: LinearModel, second: LinearModel) -> tuple[list[str], list[Places]]:
    """Return the names of the features of both models, [] if they are numbered, and where among
    all features each model's columns lie; of names, those of the columns that do not weigh 0."""
    models = first, second
    several = any(model.recipe and len(model.recipe.columns) > 1 for model in models)
    names = [_names(model, several) for model in models]
    named = [known for known in names if known is not None]
    if not named:
        if first.namer and second.namer and first.namer != second.namer:
            raise SettingsError(
                f"names hashed by {first.namer}, and by {second.namer}, so one column is not one "
                "feature. Compare models of the same --hash-bits and --hash-seed."
            )
        return [], [model.index_base + np.arange(model.columns) for model in models]
    if len(named) == 1:
        which = "first" if names[1] is None else "second"
        raise SettingsError(
            f"only the {which} model has names for its features; the other numbers them, so it is "
            "not known which are the same. Compare models fitted on one kind of columns."
        )
    place = {name: at for at, name in enumerate(dict.fromkeys(chain(*map(dict.values, named))))}
    places = [np.zeros(model.columns, np.int64) for model in models]
    for columns, known in zip(places, named, strict=True):
        columns[list(known)] = [place[name] for name in known.values()]
    return list(place), places


def _names(model: LinearModel, several: bool) -> dict[int, str] | None:
    """Return the name of each column that does not weigh 0, of a word with that of the table's
    column where there are ``several``; None where features are numbers."""
    used, recipe = np.unique(model.sparse_weights.indices).tolist(), model.recipe
    if model.feature_names:
        return {j: model.feature_names[j] for j in used}
    if recipe is None:
        return None
    return {j: str(recipe.name_of(j, several=several, hashes=True)) for j in used}


def _compare(
    first: Direction, second: Direction, names: list[str], places: list[Places], most: int
) -> dict[str, Any]:
    width = 1 + max(int(columns.max(initial=-1)) for columns in places)
    a, b = np.zeros(width), np.zeros(width)
    for weights, direction, columns in zip((a, b), (first, second), places, strict=True):
        np.add.at(weights, columns[direction.nonzero.indices], direction.nonzero.data)
    lengths = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    differing = np.flatnonzero(a != b)
    by_size = np.argsort(-np.abs(a - b)[differing], kind="stable")
    changed = differing[by_size[:most]].tolist()
    gaps = [(columns.certificate or {}).get("relative_duality_gap") for columns in (first, second)]
    return {
        "positive": first.positive,
        "cosine": float(a @ b) / (lengths[0] * lengths[1]) if all(lengths) else None,
        "distance": float(np.linalg.norm(a - b)) / lengths[0] if lengths[0] else None,
        "bias": [first.bias, second.bias],
        "relative_duality_gap": gaps,
        "features": [
            {
                **({"name": names[j]} if names else {"column": j}),
                "weights": [a[j].item(), b[j].item()],
            }
            for j in changed
        ],
    }
