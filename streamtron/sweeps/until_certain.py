"""Fit until enough labels of rows held out are certain."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.model.linear_model import LinearModel
from streamtron.runs.fit import run
from streamtron.runs.inputs import Paths
from streamtron.runs.predict import predict
from streamtron.runs.report import Outcome

LEAST_TOL = 1e-12
"""Tolerance below which none is tried: rounding hides smaller gaps."""


class Certain(NamedTuple):
    """How many of the held-out rows have a certain label."""

    certain: int
    rows: int

    @property
    def share(self) -> float:
        """The share of the rows."""
        return self.certain / self.rows


def fit_until_certain(
    shards: Paths,
    settings: Settings,
    share: float,
    valid: Paths,
    *,
    resume: bool = False,
    overwrite: bool = False,
    **files: Any,
) -> tuple[Outcome, Certain]:
    """Fit to ``tol``, then to a tenth of it and so on, until enough labels are certain.

    Each fit goes on where the one before ended. It ends, too, when a tolerance was not certified or
    would be below LEAST_TOL.

    Parameters
    ----------
    share : of the rows of ``valid`` that the best possible model must label so, 0 < share ≤ 1.
    valid : shards held out; labels are not needed. Read once after each fit.
    files : as of ``run``; ``model`` must be there, whose run directory is resumed.

    Raises
    ------
    SettingsError : a share out of its range, or a faithful run, whose tolerance is 0.
    """
    if not 0.0 < share <= 1.0:
        raise SettingsError(f"certain={share:g}: wanted a share above 0, at most 1.")
    if settings.regression:
        raise SettingsError(
            f"certain={share:g}: certain are labels, and the loss {settings.loss} predicts "
            "numbers. Leave --until out; predict --certain gives bounds on them."
        )
    if settings.faithful or settings.tolerance == 0.0:
        raise SettingsError(
            "certain labels are waited for by tightening tol, and this fit has tol 0 already. "
            "Leave out --until."
        )
    while True:
        outcome = run(shards, settings, resume=resume, overwrite=overwrite, **files)
        certain = count_certain(outcome.model, valid)
        tighter = settings.tolerance / 10
        if certain.share >= share or outcome.stop_reason != "certified" or tighter < LEAST_TOL:
            return outcome, certain
        settings, resume, overwrite = settings.but(tol=tighter), True, False


def count_certain(model: LinearModel, shards: Paths) -> Certain:
    """Count the rows whose label is certain."""
    certain = rows = 0
    for scores in predict(model, shards, certain=True):
        assert scores.certain is not None
        certain, rows = certain + int(np.count_nonzero(scores.certain)), rows + len(scores.labels)
    return Certain(certain, rows)
