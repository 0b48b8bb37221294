"""The parameters of estimators as settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor

from streamtron.core.config import SKLEARN_NAMES, Machine, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.limits import available_processors

if TYPE_CHECKING:
    from streamtron.estimator.base import StreamtronEstimator


@contextmanager
def _named_as_in_sklearn() -> Iterator[None]:
    """Let a SettingsError name a parameter as scikit-learn does."""
    try:
        yield
    except SettingsError as error:
        names = {name.replace("_", "-"): sklearn for sklearn, name in SKLEARN_NAMES.items()}
        name, space, words = str(error).partition(" ")
        name = {**names, "threads": "n_jobs"}.get(name, name)
        raise type(error)(f"{name}{space}{words}") from error


def settings_of(model: StreamtronEstimator, names: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings that the parameters are, with others by ``names``."""
    with _named_as_in_sklearn():
        given = model.get_params()
        parameters = {SKLEARN_NAMES[name]: given[name] for name in given if name in SKLEARN_NAMES}
        if (seed := parameters.pop("seed")) is not None:  # of a wrong kind it is refused below
            is_state = isinstance(seed, np.random.RandomState)
            parameters["seed"] = int(seed.randint(2**31 - 1)) if is_state else seed
        if not model.fit_intercept:
            free = model.intercept == "free"
            parameters |= {"rho": 0.0, "intercept": "none" if free else model.intercept}
        settings = Settings.from_dict({**parameters, **(names or {})})
    if settings.regression != is_regressor(model):
        raise SettingsError(f"{type(model).__name__} has no loss {model.loss!r}.")
    if model.fit_intercept and not settings.rho > 0:
        raise SettingsError(
            f"intercept_scaling is {model.intercept_scaling}: expected a number above 0, or "
            "fit_intercept=False."
        )
    return settings


def of_classes(model: StreamtronEstimator, classes: NDArray[Any]) -> dict[str, Any]:
    """Return the settings that classes decide: two have no softmax, but ``log_loss``."""
    return {"loss": "log_loss"} if model.loss == "softmax" and len(classes) == 2 else {}


def machine_of(n_jobs: Any) -> Machine:
    """Return a machine of as many threads; None is one, −1 all processors, −2 all but one."""
    if isinstance(n_jobs, int) and n_jobs < 0:
        n_jobs = max(1, available_processors() + 1 + n_jobs)
    with _named_as_in_sklearn():
        return Machine(threads=1 if n_jobs is None else n_jobs)
