"""Libraries that only some features need: what to install where one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from streamtron.core.errors import SettingsError


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
            f"{what} needs {package}, which is not installed. Install streamtron[{extra}]"
            f"{otherwise}."
        ) from error
