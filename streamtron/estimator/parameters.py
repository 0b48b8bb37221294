"""The parameters of estimators as settings, and scikit-learn's keywords that are not among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import is_regressor

from streamtron.core.config import REGRESSION, SKLEARN_NAMES, Machine, Settings, label_weights
from streamtron.core.errors import SettingsError
from streamtron.core.limits import available_processors
from streamtron.core.names import prices, unexpected
from streamtron.core.text import short
from streamtron.model.linear_model import LinearModel

if TYPE_CHECKING:
    from streamtron.estimator.base import StreamtronEstimator

_STEPS = "there is no step size and no order of steps to choose. Leave it out"
_STOP = "training ends when the gap is proven. Give tol in its place"

KEYWORDS: dict[str, tuple[str, str]] = {
    "dual": ("auto True False", "the primal and the dual are solved together. Leave it out"),
    "solver": ("liblinear", "the others leave the intercept free. Give intercept='free' instead"),
    "multi_class": ("ovr", "classes are trained one against the rest. Leave it out, or keep "
                    "LogisticRegression for the multinomial problem"),
    "alpha": ("", "the loss is a sum and not a mean. Give C=1/(alpha * rows) in its place"),
    "early_stopping": ("False", _STOP),
    "shuffle": ("True", _STEPS),
    **dict.fromkeys(("learning_rate", "eta0", "power_t", "average", "epsilon"), ("", _STEPS)),
    **dict.fromkeys(("n_iter_no_change", "validation_fraction"), ("", _STOP)),
}  # fmt: skip
"""Keyword of LinearSVC, LogisticRegression or SGDClassifier → values that say what is done anyway,
and what to do instead of any other one."""

REGRESSOR_KEYWORDS: dict[str, tuple[str, str]] = {
    **{name: KEYWORDS[name] for name in KEYWORDS if name != "multi_class"},
    "alpha": ("", "give C=1/alpha for the alpha of Ridge and HuberRegressor, C=1/(alpha * rows) "
              "for that of SGDRegressor, whose loss is a mean"),
    "solver": ("auto svd cholesky lsqr sparse_cg sag saga lbfgs",
               "all solvers of Ridge have the same optimum. Leave it out"),
    "positive": ("False", "weights may be negative. Leave it out, or keep scikit-learn's Ridge"),
    "copy_X": ("True False", "X is never changed. Leave it out"),
}  # fmt: skip
"""The same of Ridge, LinearSVR, SGDRegressor and HuberRegressor."""


def accepts_keywords(
    keywords: Mapping[str, tuple[str, str]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate ``__init__``: keep its parameters as attributes, accept scikit-learn's keywords that
    change nothing. Raise a SettingsError for another problem, a TypeError for a name that
    scikit-learn has not either."""

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        defaults = {name: entry.default for name, entry in signature(init).parameters.items()}
        del defaults["self"]

        @wraps(init)  # so that scikit-learn sees the parameters alone
        def called(model: Any, **given: Any) -> None:
            for name in [name for name in given if name not in defaults]:
                if name not in keywords:
                    raise unexpected(name, [*defaults, *keywords])
                values, advice = keywords[name]
                if str(given[name]) not in values.split():
                    raise SettingsError(f"{name}={short(given[name])}: {advice}.")
                del given[name]
            for name, value in (defaults | given).items():
                setattr(model, name, value)

        return called

    return decorate


@contextmanager
def _named_as_in_sklearn() -> Iterator[None]:
    """Let a SettingsError name a parameter as scikit-learn does."""
    try:
        yield
    except SettingsError as error:
        raise SettingsError(_with_sklearn_names(str(error))) from error


def _with_sklearn_names(message: str) -> str:
    for sklearn_name, name in (*SKLEARN_NAMES.items(), ("n_jobs", "threads")):
        for start in (f"{name} ".replace("_", "-"), f"{name}-of "):
            if message.startswith(start):
                return sklearn_name + message[len(start) - 1 :]
    return message


def settings_of(model: StreamtronEstimator, names: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings that the parameters are, with others by ``names``."""
    with _named_as_in_sklearn():
        present = [key for key in SKLEARN_NAMES if hasattr(model, key)]
        parameters = {SKLEARN_NAMES[key]: getattr(model, key) for key in present}
        if (seed := parameters.pop("seed")) is not None:  # of a wrong kind it is refused below
            is_state = isinstance(seed, np.random.RandomState)
            parameters["seed"] = int(seed.randint(2**31 - 1)) if is_state else seed
        if not model.fit_intercept:
            free = model.intercept == "free"
            parameters |= {"rho": 0.0, "intercept": "none" if free else model.intercept}
        if model.penalty in ("l2", "deprecated") and not model.l1_ratio:  # scikit-learn's defaults
            parameters |= {"penalty": "l2", "l1_ratio": None}
        settings = Settings.from_dict({**parameters, **(names or {})})
    if settings.regression != is_regressor(model):
        raise SettingsError(
            f"loss is {model.loss!r}: StreamtronRegressor has the losses of numbers, "
            f"{', '.join(REGRESSION)}, and StreamtronClassifier the others."
        )
    if model.fit_intercept and not settings.rho > 0:
        raise SettingsError(
            f"intercept_scaling is {model.intercept_scaling}: wanted a number above 0. For no "
            "bias give fit_intercept=False."
        )
    return settings


def machine_of(n_jobs: Any) -> Machine:
    """Return a machine of as many threads; None and −1 are all processors, −2 all but one."""
    if isinstance(n_jobs, int) and n_jobs < 0:
        n_jobs = max(1, available_processors() + 1 + n_jobs)
    with _named_as_in_sklearn():
        return Machine(threads=n_jobs)


def parameters_of(model: LinearModel) -> dict[str, Any]:
    """Return the parameters with which a model was fitted, as far as it says them."""
    known = {name: value for name, value in model.settings.items() if value is not None}
    if "delta" in known:
        known["C"] = prices(None, known["delta"])["C"]
    if isinstance(weights := known.get("class_weight"), Mapping):
        by_label = label_weights(Settings(class_weight=weights))
        known["class_weight"] = {c: by_label[c] for c in model.classes if c in by_label}
    parameters = {key: known[name] for key, name in SKLEARN_NAMES.items() if name in known}
    if known.get("rho") == 0.0 or known.get("intercept") == "none":
        parameters |= {"fit_intercept": False, "intercept_scaling": 1.0}
    if parameters.get("C", 1.0) is None:
        reason = "the hard margin, which has no C. Use its own predict, or fit with a C."
        raise SettingsError(f"a model of {reason}")
    return parameters
