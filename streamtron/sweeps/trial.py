"""What a sweep has found: a trial for each candidate, their ranking, their table."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamtron.core.config import METRICS, METRICS_OF_MANY, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.sealed import write_atomically
from streamtron.core.text import label_text
from streamtron.runs.learners import several
from streamtron.runs.results import EXIT_CODES, Outcome

BOUNDS = ("directional_margin", "primal_margin", "upper_bound", "relative_duality_gap")
"""What the table has of a certificate."""

AT_OPTIMUM = ("accuracy_at_least", "accuracy_at_most")
"""What the optimum's accuracy on the validation rows can be; see
``accuracy_bounds.AccuracyBounds``."""

COLUMNS: dict[str, type] = {
    "candidate": int,
    "C": float,
    "delta": float,
    "rho": float,
    "tol": float,
    "stage": str,
    "b": str,
    "rung": int,
    **dict.fromkeys((*METRICS, *METRICS_OF_MANY), float),
    "class": str,
    **dict.fromkeys(BOUNDS, float),
    **dict.fromkeys(AT_OPTIMUM, float),
    "readings": float,
    "full_epochs": int,
    "stop_reason": str,
    "dropped": str,
    "best": bool,
    "seconds": float,
    "worker": str,
    "started": str,
    "finished": str,
}
"""Columns of a table and their types; some of the metrics, and the class, are of many classes only,
some of two. All but the last four depend on data and settings alone."""

ENDINGS = (".csv", ".parquet")


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What became of a candidate.

    Parameters
    ----------
    candidate : its number, from 0.
    settings : its own, of the last rung it reached: with successive halving that rung's ``tol``,
        in the two-stage procedure its ``stage``, ``b`` and ``max_epochs``.
    metrics : name, of ``metrics_of(settings)`` → value on the validation rows, None where it is not
        defined; with folds the mean over them.
    certificate : of its model, see ``certificate_of``; with folds the one with the widest gap.
    readings, full_epochs : all that it took, over rungs and folds.
    ending : see ``Outcome``; with folds, of the fold whose certificate it is.
    rung : the last one it reached, from 0.
    radius : R of the rows that it was fitted on; with folds, of those whose certificate it is.
    at_optimum : the least and the most that the accuracy of its optimum can be on the validation
        rows; with folds the means over them; None where it is not known.
    seconds : of its fits.
    worker : who fitted it.
    started, finished : ISO 8601, UTC: between these it was fitted and measured.
    outcome : of its fit on all shards, while it may still be the best.
    dropped : why it goes no further after its last rung, see ``rungs``; None = it does, or it was
        the last.
    """

    candidate: int
    settings: Settings
    metrics: Mapping[str, float | None]
    certificate: Mapping[str, Any]
    readings: float
    full_epochs: int
    stop_reason: str
    rung: int
    radius: float | None
    at_optimum: tuple[float | None, float | None]
    seconds: float
    worker: str
    started: str
    finished: str
    outcome: Outcome | None = field(default=None, repr=False)
    dropped: str | None = None

    @property
    def gap(self) -> float:
        """The relative duality gap that is proven."""
        return float(self.certificate["relative_duality_gap"])

    @property
    def exit_code(self) -> int:
        """0 certified or converged, 4 stopped before the tolerance was certified."""
        return EXIT_CODES[self.stop_reason]

    def row(self, best: Trial) -> dict[str, Any]:
        """The trial's row of the table: values for those of ``COLUMNS`` that it has."""
        values = {
            **{name: getattr(self, name) for name in _OWN},
            **price(self.settings),
            "rho": self.settings.rho,
            "tol": self.settings.tolerance,
            "stage": self.settings.stage,
            "b": None if self.settings.b is None else ",".join(map(repr, self.settings.b)),
            **self.metrics,
            **self.certificate,
            **dict(zip(AT_OPTIMUM, self.at_optimum, strict=True)),
            "best": self.candidate == best.candidate,
        }
        return {name: values[name] for name in COLUMNS if name in values}


_OWN = (
    "candidate", "rung", "readings", "full_epochs", "stop_reason", "dropped", "seconds", "worker",
    "started", "finished",
)  # fmt: skip
"""Columns that a trial has by their names."""


def price(settings: Settings) -> dict[str, float | None]:
    """C and Δ, of which one was given: C = 1/(2 Δ²), None for the hard margin.

    Examples
    --------
    >>> price(Settings(C=0.5)), price(Settings(delta=0))
    ({'C': 0.5, 'delta': 1.0}, {'C': None, 'delta': 0.0})
    """
    if settings.delta is None:
        return {"C": 1.0 if settings.C is None else settings.C, "delta": settings.delta2**0.5}
    return {"C": None if settings.hard else 0.5 / settings.delta2, "delta": settings.delta}


def metrics_of(settings: Settings) -> tuple[str, ...]:
    """What a candidate is measured by.

    Examples
    --------
    >>> "f1" in metrics_of(Settings()), "f1" in metrics_of(Settings(multilabel=True))
    (True, False)
    """
    return METRICS_OF_MANY if several(settings) else METRICS


def check_metric(metric: str, settings: Settings) -> None:
    """Refuse to choose by what candidates with these settings are not measured by.

    Raises
    ------
    SettingsError
    """
    wanted = metrics_of(settings)
    if metric not in wanted:
        classes = "many classes" if several(settings) else "two classes"
        raise SettingsError(f"metric {metric!r}: of {classes}, wanted one of {', '.join(wanted)}.")


def certificate_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is proven of a fit; of many classes, of the one with the widest gap, which is named.

    Parameters
    ----------
    report : see ``Outcome``.

    Examples
    --------
    >>> gaps = {"ant": 0.25, "bee": 0.5}
    >>> proven = [(name, {"relative_duality_gap": gap}) for name, gap in gaps.items()]
    >>> certificate_of({"learners": [{"label": a, "certificate": b} for a, b in proven]})
    {'relative_duality_gap': 0.5, 'class': 'bee'}
    """
    if "learners" not in report:
        own: Mapping[str, Any] = report["certificate"]
        return own
    widest = max(
        report["learners"], key=lambda each: float(each["certificate"]["relative_duality_gap"])
    )
    return {**widest["certificate"], "class": label_text(widest["label"])}


def ranked(trials: Iterable[Trial], metric: str) -> list[Trial]:
    """The trials, the best first: by the metric, of equals the smaller C, then the order they
    were given in. A trial without the metric comes behind all that have it."""

    def key(trial: Trial) -> tuple[float, float, int]:
        found = trial.metrics[metric]
        return (math.inf if found is None else -found, -trial.settings.delta2, trial.candidate)

    return sorted(trials, key=key)


def check_measured(trials: Sequence[Trial], metric: str) -> None:
    """Refuse to choose where there is nothing to choose by.

    Raises
    ------
    DataError : no trial has the metric.
    """
    if all(trial.metrics[metric] is None for trial in trials):
        raise DataError(
            f"no candidate has a {metric} on the validation rows: they lack a class, or nothing "
            "is called positive. Choose another metric, or rows of both classes."
        )


# --- the table -----------------------------------------------------------------------------------


def check_table(path: str | os.PathLike[str]) -> None:
    """Refuse a table whose name does not say what it is.

    Raises
    ------
    SettingsError : neither ``.csv`` nor ``.parquet``.
    """
    if not os.fspath(path).endswith(ENDINGS):
        raise SettingsError(f"{path}: a table is CSV or Parquet. Name it .csv or .parquet.")


def write_table(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of a sweep as CSV or Parquet, as the name says.

    In CSV, numbers are the shortest decimals that read back as the same float64, and what is not
    defined is empty.

    Raises
    ------
    SettingsError : neither ``.csv`` nor ``.parquet``.
    MachineError : the file cannot be written.
    """
    check_table(path)
    write_atomically(path, [_parquet(rows) if os.fspath(path).endswith(".parquet") else _csv(rows)])


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    from streamtron.data.writers.tables import parquet_table

    return parquet_table({name: COLUMNS[name] for name in rows[0]}, rows)


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
