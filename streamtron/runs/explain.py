"""Explain a model by its heaviest weights, and a row's decisions by what each feature adds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.kinds import whole
from streamtron.core.rows import Rows
from streamtron.data import Manifest, find_shards, no_rows
from streamtron.data.discover import NAMES
from streamtron.model.linear_model import Direction, LinearModel
from streamtron.model.scoring import labels_of
from streamtron.runs.finished_run import run_directory
from streamtron.runs.inputs import (
    Paths,
    as_model,
    as_paths,
    open_one,
    reading_from_model,
    reading_to_score,
)
from streamtron.runs.store import manifest_of

if TYPE_CHECKING:
    from streamtron.data.column_names import ColumnNames

MOST = 20
"""Features shown by default."""


def explain(
    model: LinearModel | str | os.PathLike[str],
    shards: Paths = (),
    *,
    row: int | None = None,
    most: int = MOST,
    names: Paths = (),
) -> dict[str, Any]:
    """List the heaviest features of a model, or why a row has its decisions.

    Parameters
    ----------
    model : a model or its file.
    shards, row : files, directories or globs, and the number of a row among all of them, from 0,
        as in the output of ``predict``. The rows before it are read too.
    most : features listed of each class, those of the largest |weight| or |contribution| first.
    names : directories in which ``convert`` kept the names of columns.

    Returns
    -------
    ``directions``, a list with one entry, of many classes one a class, with ``positive`` (the
    class; None of regression), ``bias`` and ``features``: ``column`` as the shards number it,
    ``name`` if it has one, and ``weight``, what the first of its names counts: minus the column's
    where its values are stored negated. Names that share a column are joined by " | ", and
    ``opposite:`` is before one that counts the other way. Of a row also its ``shard`` and predicted
    ``label`` (a list of a multilabel model, None of regression), and of each direction the
    ``decision`` = Σ contribution + bias, of each feature ``value`` and ``contribution`` = value ·
    weight, and as ``other_features`` and ``other_contributions`` the number and the sum of those
    that are not listed.

    Raises
    ------
    SettingsError : shards without a row, or a row without shards.
    DataError : no row of this number; names of columns of another recipe.
    MachineError

    Examples
    --------
    >>> model = LinearModel(np.array([1.0, -2.0]), 0.5, (-1.0, 1.0), {}, None, {"index_base": 1})
    >>> [direction] = explain(model, most=1)["directions"]
    >>> direction["features"]
    [{'column': 2, 'weight': -2.0}]
    """
    model, most, paths = as_model(model), whole(most, "most"), as_paths(shards)
    if bool(paths) != (row is not None):
        raise SettingsError("a row is explained by its shards and its number. Give both, or none.")
    column_names = load_names(model, as_paths(names))
    if row is not None:
        return _explain_row(model, paths, row, most, column_names)
    directions = [
        {
            "positive": direction.positive,
            "bias": direction.bias,
            "features": heaviest(model, direction, most, column_names),
        }
        for direction in model.directions()
    ]
    return {"directions": directions}


def heaviest(
    model: LinearModel, direction: Direction, most: int, names: ColumnNames | None = None
) -> list[dict[str, Any]]:
    """Return column, name and weight of the features of the largest |weight|, 0 left out."""
    columns, weights = direction.nonzero.indices, direction.nonzero.data
    pairs = ((int(columns[k]), float(weights[k])) for k in _largest(weights, most))
    return [_feature(model, j, names, weight=weight) for j, weight in pairs]


def load_names(model: LinearModel, paths: Sequence[str]) -> ColumnNames | None:
    """Load the names of a model's columns from directories that ``convert`` wrote."""
    if not paths:
        return None
    from streamtron.data.column_names import ColumnNames

    names = ColumnNames(paths)
    if difference := names.difference(reading_from_model(model)):
        raise DataError(
            f"{paths[0]}: names of columns that are not the model's, made by another recipe: "
            f"{difference}. Name the directory that the model was trained on."
        )
    return names


def names_beside(model: LinearModel, manifest: Manifest) -> list[str]:
    """Return the directories of shards in which ``convert`` kept the names of this model's
    columns."""
    places = dict.fromkeys(os.path.dirname(shard.path) for shard in manifest.shards)
    directories = [place for place in places if os.path.isfile(os.path.join(place, NAMES))]
    if not directories:
        return []
    from streamtron.data.column_names import ColumnNames

    reading = reading_from_model(model)
    return [place for place in directories if not ColumnNames([place]).difference(reading)]


def names_of_run(model: LinearModel, path: str | os.PathLike[str]) -> list[str]:
    """Return the directories with names beside the shards of the run of the model at ``path``."""
    manifest = manifest_of(run_directory(path))
    return names_beside(model, manifest) if manifest else []


def _feature(
    model: LinearModel, j: int, column_names: ColumnNames | None, **signed: float
) -> dict[str, Any]:
    """Return ``column`` of the weight j, as the shards number it, ``name`` if it has one, and
    ``weight`` and ``value`` with the signs that they have for that name."""
    column, names = j + model.index_base, model.feature_names
    name, sign = names[j] if j < len(names) else model.recipe and model.recipe.name_of(j), 1
    if (
        name is None
        and column_names
        and (pair := column_names.get(column, signed.get("value", 0.0)))
    ):
        name, sign = pair
    signed = {key: sign * number for key, number in signed.items()}
    return {"column": column, **({} if name is None else {"name": name}), **signed}


def _largest(values: NDArray[np.float64], most: int) -> list[int]:
    """Return the positions of the largest |values|, the first of equals first."""
    return list(np.argsort(-np.abs(values), kind="stable")[:most].tolist())


def _explain_row(
    model: LinearModel, paths: list[str], number: int, most: int, names: ColumnNames | None
) -> dict[str, Any]:
    shard, rows = _find_row(model, paths, number)
    decisions, out_of_range = model.decision_rows(rows)
    label = None if model.regression else labels_of(model, decisions)[0]
    start, stop = rows.indptr.tolist()
    columns = rows.indices[start:stop].astype(np.int64) - model.index_base
    inside = columns < model.columns
    columns, values = columns[inside], rows.values[start:stop][inside].astype(np.float64)
    directions = []
    for direction, decision in zip(model.directions(), decisions.reshape(-1).tolist(), strict=True):
        weights = direction.weights[columns]
        added = weights * values
        shown = _largest(added, most)
        features = [
            _feature(
                model, int(columns[k]), names, value=float(values[k]), weight=float(weights[k])
            )
            | {"contribution": float(added[k])}
            for k in shown
        ]
        directions.append(
            {
                "positive": direction.positive,
                "decision": decision,
                "bias": direction.bias,
                "features": features,
                "other_features": len(columns) - len(shown),
                "other_contributions": float(np.delete(added, shown).sum()),
            }
        )
    return {
        "shard": shard,
        "row": number,
        "label": list(label) if isinstance(label, tuple) else label,
        "out_of_range": out_of_range,
        "directions": directions,
    }


def _find_row(model: LinearModel, paths: list[str], number: int) -> tuple[str, Rows]:
    files, first_row = find_shards(paths), 0
    reading = reading_to_score(model, files[0], labelled=False)
    for shard in files:
        with open_one(shard, reading) as source:
            for chunk in source.chunks():
                if 0 <= (at := number - first_row) < len(chunk):
                    indptr, indices, values = chunk.rows
                    return shard.name, Rows(indptr[at : at + 2], indices, values)
                first_row += len(chunk)
    if not first_row:
        raise no_rows(files)
    raise DataError(f"row {number}: the shards have {first_row:,} rows, numbered from 0.")
