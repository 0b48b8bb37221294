"""Out-of-core training of linear classifiers whose answer comes with a proof of how good it is.

Nothing heavy is loaded until a name is used.

Examples
--------
>>> import streamtron
>>> streamtron.Settings(C=0.5).tol
0.01
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamtron.core import errors
    from streamtron.core.certificate import Certificate
    from streamtron.core.config import Machine, Settings
    from streamtron.data.writers.corpus import generate
    from streamtron.estimator import StreamtronClassifier
    from streamtron.model.import_model import load_any as load
    from streamtron.model.linear_model import LinearModel
    from streamtron.runs.certify import certify
    from streamtron.runs.convert import convert
    from streamtron.runs.evaluate import evaluate
    from streamtron.runs.fit import fit, run
    from streamtron.runs.forget import forget
    from streamtron.runs.predict import predict
    from streamtron.runs.update import update
    from streamtron.sweeps.sweep import sweep

    __version__: str

_HOME = {
    "Certificate": ("core.certificate", "Certificate"),
    "LinearModel": ("model.linear_model", "LinearModel"),
    "Machine": ("core.config", "Machine"),
    "Settings": ("core.config", "Settings"),
    "StreamtronClassifier": ("estimator", "StreamtronClassifier"),
    "certify": ("runs.certify", "certify"),
    "convert": ("runs.convert", "convert"),
    "evaluate": ("runs.evaluate", "evaluate"),
    "fit": ("runs.fit", "fit"),
    "forget": ("runs.forget", "forget"),
    "generate": ("data.writers.corpus", "generate"),
    "load": ("model.import_model", "load_any"),
    "predict": ("runs.predict", "predict"),
    "run": ("runs.fit", "run"),
    "sweep": ("sweeps.sweep", "sweep"),
    "update": ("runs.update", "update"),
}
"""Public name → (module, its name there)."""

__all__ = [
    "Certificate",
    "LinearModel",
    "Machine",
    "Settings",
    "StreamtronClassifier",
    "__version__",
    "certify",
    "convert",
    "errors",
    "evaluate",
    "fit",
    "forget",
    "generate",
    "load",
    "predict",
    "run",
    "sweep",
    "update",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("streamtron")
    if name == "errors":
        return import_module("streamtron.core.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'streamtron' has no attribute {name!r}")
    module, there = _HOME[name]
    value = getattr(import_module(f"streamtron.{module}"), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
