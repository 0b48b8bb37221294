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
    from streamtron import errors
    from streamtron.certificate import Certificate
    from streamtron.config import Machine, Settings
    from streamtron.conversion import convert
    from streamtron.estimator import StreamtronClassifier
    from streamtron.fitting import fit, run
    from streamtron.foreign import load_any as load
    from streamtron.forgetting import forget
    from streamtron.model import LinearModel
    from streamtron.proof import certify
    from streamtron.scoring import evaluate, predict
    from streamtron.shards.corpus import generate
    from streamtron.sweeping import sweep
    from streamtron.updating import update

    __version__: str

_HOME = {
    "Certificate": ("certificate", "Certificate"),
    "LinearModel": ("model", "LinearModel"),
    "Machine": ("config", "Machine"),
    "Settings": ("config", "Settings"),
    "StreamtronClassifier": ("estimator", "StreamtronClassifier"),
    "certify": ("proof", "certify"),
    "convert": ("conversion", "convert"),
    "evaluate": ("scoring", "evaluate"),
    "fit": ("fitting", "fit"),
    "forget": ("forgetting", "forget"),
    "generate": ("shards.corpus", "generate"),
    "load": ("foreign", "load_any"),
    "predict": ("scoring", "predict"),
    "run": ("fitting", "run"),
    "sweep": ("sweeping", "sweep"),
    "update": ("updating", "update"),
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
        return import_module("streamtron.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'streamtron' has no attribute {name!r}")
    module, there = _HOME[name]
    value = getattr(import_module(f"streamtron.{module}"), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
