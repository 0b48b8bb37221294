"""Out-of-core training of linear models whose answer comes with a proof of how good it is.

Nothing heavy is loaded until a name is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamtron.core import errors, events

sys.modules.update({"streamtron.errors": errors, "streamtron.events": events})

if TYPE_CHECKING:
    from streamtron.core.certificate import Certificate as Certificate
    from streamtron.core.config import Machine as Machine
    from streamtron.core.config import Settings as Settings
    from streamtron.core.events import log_events as log_events
    from streamtron.data.writers.corpus import generate as generate
    from streamtron.estimator.classifier import StreamtronClassifier as StreamtronClassifier
    from streamtron.estimator.regressor import StreamtronRegressor as StreamtronRegressor
    from streamtron.model.display import ModelCertificate as ModelCertificate
    from streamtron.model.export import export as export
    from streamtron.model.import_model import load_any
    from streamtron.model.linear_model import LinearModel as LinearModel
    from streamtron.runs.calibrate import calibrate as calibrate
    from streamtron.runs.certify import certify as certify
    from streamtron.runs.change import forget as forget
    from streamtron.runs.change import update as update
    from streamtron.runs.convert import convert as convert
    from streamtron.runs.evaluate import evaluate as evaluate
    from streamtron.runs.explain import explain as explain
    from streamtron.runs.fit import fit as fit
    from streamtron.runs.fit import run as run
    from streamtron.runs.predict import predict as predict
    from streamtron.runs.report_page import report as report
    from streamtron.sweeps.sweep import sweep as sweep

    load = load_any
    __version__: str

_HOME = {
    "Certificate": "core.certificate",
    "LinearModel": "model.linear_model",
    "Machine": "core.config",
    "ModelCertificate": "model.display",
    "Settings": "core.config",
    "StreamtronClassifier": "estimator.classifier",
    "StreamtronRegressor": "estimator.regressor",
    "calibrate": "runs.calibrate",
    "certify": "runs.certify",
    "convert": "runs.convert",
    "evaluate": "runs.evaluate",
    "explain": "runs.explain",
    "export": "model.export",
    "fit": "runs.fit",
    "forget": "runs.change",
    "generate": "data.writers.corpus",
    "load": "model.import_model",
    "log_events": "core.events",
    "predict": "runs.predict",
    "report": "runs.report_page",
    "run": "runs.fit",
    "sweep": "sweeps.sweep",
    "update": "runs.change",
}
"""Public name → its module."""

__all__ = [*_HOME, "__version__", "errors", "events"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("streamtron")
    if name not in _HOME:
        raise AttributeError(f"module 'streamtron' has no attribute {name!r}")
    there = "load_any" if name == "load" else name
    value = getattr(import_module(f"streamtron.{_HOME[name]}"), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
