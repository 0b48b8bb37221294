"""Calibrate a model: probabilities from its decisions on labelled rows."""

from __future__ import annotations

import os

import numpy as np

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import Executor, serial
from streamtron.data import find_shards
from streamtron.data.reader_config import ALL
from streamtron.data.storage import fingerprint
from streamtron.model.calibration import METHODS, Method, fit_direction
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Scores
from streamtron.runs.evaluate import score_shards
from streamtron.runs.inputs import Paths, as_model, as_paths

MOST = 5_000_000
"""Decisions held at most; of more they are binned."""


def calibrate(
    model: LinearModel | str | os.PathLike[str],
    shards: Paths,
    *,
    method: Method = "sigmoid",
    share: tuple[float, float] = ALL,
    executor: Executor = serial,
) -> LinearModel:
    """Return the model with probabilities, fitted to its decisions on other rows.

    Decisions of rows that the model was trained on are too large on the side of their label: give
    rows held out. scikit-learn's ``CalibratedClassifierCV`` on a ``FrozenEstimator`` makes the same
    probabilities. Of more than 5 million decisions, those of all classes counted, decisions are
    binned as in ``evaluate``.

    Parameters
    ----------
    model : a model or its file, which stays as it is.
    shards : files, directories or globs, every row labelled; read once. Row weights count.
    method : ``sigmoid`` fits p = 1/(1 + exp(a f + b)) (Platt, 1999), ``isotonic`` the rising
        function of least squares (Zadrozny and Elkan, 2002), which wants thousands of rows. Each
        class of many is calibrated against the rest.
    share : of the rows, see ``evaluate``.
    executor : where the shards are read and scored: ``serial``, or Dask's workers.

    Raises
    ------
    SettingsError : an unknown method.
    DataError : of two classes one is missing among the rows, of many all are; unreadable rows.
    MachineError

    Examples
    --------
    >>> import pathlib, tempfile
    >>> model = LinearModel(np.array([1.0]), 0.0, (-1.0, 1.0), {}, None, {"index_base": 1})
    >>> with tempfile.TemporaryDirectory() as root:
    ...     shard = pathlib.Path(root, "a.svm")
    ...     _ = shard.write_text("1 1:1\\n1 1:2\\n1 1:-1\\n-1 1:-2\\n-1 1:-1\\n")
    ...     calibrated = calibrate(model, shard)
    >>> calibrated.predict_proba([[-1.0], [1.0]]).round(2)
    array([[0.52, 0.48],
           [0.24, 0.76]])
    """
    model = as_model(model)
    if model.regression:
        raise SettingsError("the model predicts numbers, which have no probabilities to calibrate.")
    if method not in METHODS:
        raise SettingsError(f"calibration {method!r}: expected one of {', '.join(METHODS)}.")
    files = find_shards(as_paths(shards))
    two = model.kind == "two classes"
    scores = Scores(() if two else model.classes, held=MOST)
    used = 0
    for rows in score_shards([model], files, executor, share=share):
        used += int(np.count_nonzero(rows.weights))
        scores.add(rows.truth, rows.decisions[0], rows.weights)
    problems = [scores.ranked(k) for k in range(rows.truth.shape[1])]
    truth = problems[0][0]
    if not used or (two and truth.all() == truth.any()):
        missing = "of both classes, and one has" if used else "of a weight above 0, and there are"
        raise DataError(
            f"{files[0].name}: probabilities need rows {missing} none. Give more shards."
        )
    directions = [fit_direction(method, *problem) for problem in problems]
    known = sorted({fingerprint(file.path, file.name) for file in files})
    content = {"method": method, "rows": used, "directions": directions, "shards": known}
    return model.but(calibration=content)


def calibrated_on(model: LinearModel, shards: Paths) -> list[str]:
    """Return the names of the shards that hold rows on which a model was calibrated."""
    known = (model.calibration or {}).get("shards", ())
    files = find_shards(as_paths(shards)) if known else []
    return [file.name for file in files if fingerprint(file.path, file.name) in known]
