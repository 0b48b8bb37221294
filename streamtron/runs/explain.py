"""Explain a model by its heaviest weights, and a row's decisions by what each feature adds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.kinds import whole
from streamtron.core.moments import Moments
from streamtron.core.rows import Rows
from streamtron.data import ShardRows, find_shards, no_rows
from streamtron.data.sample import first_rows_of
from streamtron.model.linear_model import Direction, LinearModel
from streamtron.model.scoring import labels_of, matrix_of
from streamtron.runs.finished_run import recorded_shards, run_directory
from streamtron.runs.inputs import Paths, as_model, as_paths, reading_from_model, reading_to_score

MOST = 20
"""Features shown by default."""


def explain(
    model: LinearModel | str | os.PathLike[str],
    shards: Paths = (),
    *,
    row: int | None = None,
    most: int = MOST,
) -> dict[str, Any]:
    """List the heaviest features of a model, or why a row has its decisions.

    Parameters
    ----------
    model : a model or its file.
    shards : files, directories or globs.
    row : the number of a row among all of them, from 0, as in the output of ``predict``. The rows
        before it are read too. None = explain the model; one with a transformer over the rows of
        the shards, if they are given.
    most : features listed of each class, those of the largest |weight| or |contribution| first.

    Returns
    -------
    ``directions``, a list with one entry, of many classes one a class, with ``positive`` (the
    class; None of regression), ``bias`` and ``features``: ``column`` as the shards number it,
    ``name`` if it has one, and ``weight``.

    * **With a transformer** also ``columns``, an entry for each column of the table: ``column``,
      ``features`` made of it, and ``largest`` |weight|.
    * **With shards** ``spread``, the standard deviation over the rows of what a column adds to the
      decision, and of each feature the ``rows`` in which it is not 0.
    * **Of a row** its ``shard`` and predicted ``label`` (a list of a multilabel model, None of
      regression), and of each direction the ``decision`` = Σ contribution + bias, of each feature
      ``value`` and ``contribution`` = value · weight, and as ``other_features`` and
      ``other_contributions`` the number and the sum of all others.

    Raises
    ------
    SettingsError : a row without shards; shards without a row, of a model without a transformer.
    DataError : no row of this number.
    MachineError

    Examples
    --------
    >>> model = LinearModel(np.array([1.0, -2.0]), 0.5, (-1.0, 1.0), {}, None, {"index_base": 1})
    >>> [direction] = explain(model, most=1)["directions"]
    >>> direction["features"]
    [{'column': 2, 'weight': -2.0}]
    """
    model, most, paths = as_model(model), whole(most, "most"), as_paths(shards)
    if bool(paths) != (row is not None) and (model.transformer is None or not paths):
        raise SettingsError("a row is explained by its shards and its number. Give both, or none.")
    if row is not None:
        return _explain_row(model, paths, row, most)
    columns, rows = _by_column(model, paths)
    directions: list[dict[str, Any]] = [
        {
            "positive": direction.positive,
            "bias": direction.bias,
            **({"columns": columns[k]} if columns else {}),
            "features": heaviest(model, direction, most),
        }
        for k, direction in enumerate(model.directions())
    ]
    for feature in (feature for entry in directions for feature in entry["features"]):
        if rows is not None:
            feature["rows"] = int(rows[feature["column"] - model.index_base])
    return {"directions": directions}


def heaviest(model: LinearModel, direction: Direction, most: int) -> list[dict[str, Any]]:
    """Return column, name and weight of the features of the largest |weight|, 0 left out."""
    columns, weights = direction.nonzero.indices, direction.nonzero.data
    pairs = ((int(columns[k]), float(weights[k])) for k in _largest(weights, most))
    return [_feature(model, j, weight=weight) for j, weight in pairs]


def _by_column(
    model: LinearModel, paths: list[str]
) -> tuple[list[list[dict[str, Any]]], NDArray[np.int64] | None]:
    """Return, for each direction, the facts of each column of a table, the one that adds most
    first; and in how many rows each feature is not 0, None without rows."""
    if model.transformer is None:
        return [], None
    names, group = np.unique(model.transformer.sources, return_inverse=True)
    features = np.bincount(group, minlength=len(names))
    weights = [direction.weights for direction in model.directions()]
    sums = [
        sparse.csr_array((w, (np.arange(len(w)), group)), shape=(len(w), len(names)))
        for w in weights
    ]
    added, rows = [Moments() for _ in sums], np.zeros(model.columns, np.int64)
    for _, chunk in _chunks(model, paths) if paths else ():
        matrix, _ = matrix_of(model, chunk)
        rows += np.bincount(matrix.indices, minlength=model.columns)
        for moments, by_group in zip(added, sums, strict=True):
            moments.add((matrix @ by_group).toarray())
    columns = []
    for w, moments in zip(weights, added, strict=True):
        largest = np.zeros(len(names))
        np.maximum.at(largest, group, np.abs(w))
        known = {"column": names, "features": features, "largest": largest}
        known |= {"spread": moments.deviation} if moments.rows else {}
        order = np.argsort(-known["spread" if moments.rows else "largest"], kind="stable")
        columns.append([{name: known[name][g].item() for name in known} for g in order])
    return columns, rows if paths else None


def first_rows(
    model: LinearModel, path: str | os.PathLike[str], given: Sequence[str] = (), most: int = 1_000
) -> Any:
    """Return the columns that a model's transformer takes in the first rows of shards, by default
    of those of its run, as a table; None where there are none."""
    if model.transformer is None:
        return None
    paths = [*given] or [shard.path for shard in recorded_shards(run_directory(path))]
    if not paths or not (given or all(map(os.path.exists, paths))):
        return None
    return first_rows_of(find_shards(paths), reading_from_model(model), most)


def _feature(model: LinearModel, j: int, **numbers: float) -> dict[str, Any]:
    """Return ``column`` of the weight j, as the shards number it, ``name`` if it has one, and
    numbers of it."""
    name = model.name_of(j)
    named = {} if name is None else {"name": name}
    return {"column": j + model.index_base, **named, **numbers}


def _largest(values: NDArray[np.float64], most: int) -> list[int]:
    """Return the positions of the largest |values|, the first of equals first."""
    return list(np.argsort(-np.abs(values), kind="stable")[:most].tolist())


def _explain_row(model: LinearModel, paths: list[str], number: int, most: int) -> dict[str, Any]:
    shard, rows = _find_row(model, paths, number)
    decisions, out_of_range = model.decision_rows(rows)
    label = None if model.regression else labels_of(model, decisions)[0]
    start, stop = rows.indptr.tolist()
    columns = rows.indices[start:stop].astype(np.int64) - model.index_base
    inside = columns < model.columns
    columns, values = columns[inside], rows.spread()[inside].astype(np.float64)
    directions = []
    for direction, decision in zip(model.directions(), decisions.reshape(-1).tolist(), strict=True):
        weights = direction.weights[columns]
        added = weights * values
        shown = _largest(added, most)
        features = [
            _feature(model, int(columns[k]), value=float(values[k]), weight=float(weights[k]))
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
    first_row = 0
    for name, rows in _chunks(model, paths):
        number_of_rows = len(rows.indptr) - 1
        if 0 <= (at := number - first_row) < number_of_rows:
            return name, rows.part(at, at + 1)
        first_row += number_of_rows
    raise DataError(f"row {number}: the shards have {first_row:,} rows, numbered from 0.")


def _chunks(model: LinearModel, paths: list[str]) -> Iterator[tuple[str, Rows]]:
    """Yield the rows of shards, each with the name of its shard. DataError: there are none."""
    files, rows = find_shards(paths), 0
    reading = reading_to_score(model, files[0], labelled=False)
    for shard in files:
        with ShardRows(shard, reading) as source:
            for chunk in source.chunks():
                rows += len(chunk)
                yield shard.name, chunk.rows
    if not rows:
        raise no_rows(files)
