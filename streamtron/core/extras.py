"""Libraries that only some features need: what to install where one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from streamtron.core.errors import SettingsError

_NAMES = {"sklearn": "scikit-learn"}
"""Module → what it is called where it is installed, if that is another name."""


class ExtraMissing(SettingsError, ImportError):
    """A feature needs a library that is not installed."""


def library(name: str, extra: str, what: str, otherwise: str = "") -> Any:
    """Return a module of ``streamtron[extra]``, which ``what`` needs; a sentence if it is missing,
    with what to do ``otherwise``."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ExtraMissing(
            f"{what} needs {_NAMES.get(package, package)}, which is not installed. Install "
            f"streamtron[{extra}]{otherwise}."
        ) from error
