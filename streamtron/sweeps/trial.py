"""Trials of a sweep: one for each candidate, their ranking and their table."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

from streamtron.core import text
from streamtron.core.config import LOG_LINK, PROBABILITIES, Settings, meets, prices
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.files import write_atomically
from streamtron.model.certainty import at_least, at_most
from streamtron.runs.report import NOT_CERTIFIED, Outcome

BOUNDS = (
    "primal_margin",
    "upper_bound",
    "primal_objective",
    "dual_objective",
    "relative_duality_gap",
)
"""Columns from a certificate."""

AT_OPTIMUM = ("accuracy_at_least", "accuracy_at_most")
"""Bounds of the optimum's accuracy on the validation rows; see ``metrics.AccuracyBounds``."""

COLUMNS: dict[str, type] = {
    "candidate": int,
    "loss": str,
    **dict.fromkeys(("C", "delta", "rho", "l1_ratio", "tol"), float),
    "stage": str,
    "b": str,
    "iteration": int,
    **dict.fromkeys(text.ALL_METRICS, float),
    "class": str,
    **dict.fromkeys((*BOUNDS, *AT_OPTIMUM, "readings"), float),
    "nonzero_weights": int,
    "full_epochs": int,
    "stop_reason": str,
    "dropped": str,
    "best": bool,
    "seconds": float,
    "worker": str,
}
"""Column of a table → its type. Some metrics and the class are for many classes only, for two, or
for numbers. All but the last two depend on data and settings alone."""


class Costs(NamedTuple):
    """Costs of a trial, and the worker that made it."""

    readings: float
    full_epochs: int
    seconds: float
    worker: str

    @classmethod
    def total(cls, costs: Sequence[Costs]) -> Costs:
        """Return the total over iterations or folds; at least one."""
        readings, full_epochs, seconds, workers = zip(*costs, strict=True)
        return cls(sum(readings), sum(full_epochs), sum(seconds), workers[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One fit of a candidate, measured on the validation rows.

    With folds, metrics and ``at_optimum`` are means, and certificate, stop reason and radius those
    of the fold with the widest gap.

    Parameters
    ----------
    settings : of its last iteration: of two stages with the ``stage``, ``b`` and ``max_epochs``.
    metrics : of ``metrics_of(settings)``, None where undefined.
    costs : total over iterations and folds.
    radius : R of the rows that it was fitted on.
    at_optimum : bounds of its optimum's accuracy on the validation rows, None where unknown.
    outcome : of its fit on all shards, while it can still be the best.
    dropped : why it does not go on, see ``two_stage``; None = it does, or this was its end.
    """

    candidate: int
    settings: Settings
    metrics: Mapping[str, float | None]
    certificate: Mapping[str, Any]
    costs: Costs
    stop_reason: str
    radius: float | None
    at_optimum: tuple[float | None, float | None]
    iteration: int = 0
    outcome: Outcome | None = field(default=None, repr=False)
    dropped: str | None = None

    @property
    def gap(self) -> float:
        """The proven relative duality gap."""
        return float(self.certificate["relative_duality_gap"])

    @property
    def met(self) -> bool:
        """Whether its certificate meets its tolerance."""
        return 0.0 < self.settings.tolerance >= self.gap

    @property
    def exit_code(self) -> int:
        """See ``Outcome.exit_code``."""
        met = meets({"tol": self.settings.tolerance}, self.gap, self.stop_reason)
        return 0 if met else NOT_CERTIFIED

    def row(self, best: Trial) -> dict[str, Any]:
        """Return its row of the table: values for those of ``COLUMNS`` that it has."""
        settings = self.settings
        values = {
            "candidate": self.candidate,
            "iteration": self.iteration,
            "stop_reason": self.stop_reason,
            "dropped": self.dropped,
            **self.costs._asdict(),
            "loss": settings.loss,
            **prices(settings.C, settings.delta),
            "rho": settings.rho,
            "tol": settings.tolerance,
            "stage": settings.stage,
            **({} if settings.penalty == "l2" else {"l1_ratio": settings.ratio}),
            "b": None if settings.b is None else ",".join(map(repr, settings.b)),
            **self.metrics,
            **self.certificate,
            **dict(zip(AT_OPTIMUM, self.at_optimum, strict=True)),
            "best": self.candidate == best.candidate,
        }
        return {name: values[name] for name in COLUMNS if name in values}


def table_of(trials: Sequence[Trial], best: Trial) -> list[dict[str, Any]]:
    """Return the table: a row a candidate, with the columns of ``COLUMNS`` that all have."""
    rows = [trial.row(best) for trial in trials]
    common = set(rows[0]).intersection(*rows)
    return [{name: row[name] for name in row if name in common} for row in rows]


def metrics_of(settings: Settings) -> tuple[str, ...]:
    """Return the names of the metrics of a candidate, first the one that a sweep goes by."""
    if settings.regression:
        counts = settings.loss in LOG_LINK
        return text.METRICS_OF_COUNTS if counts else text.METRICS_OF_NUMBERS
    names = text.METRICS_OF_MANY if settings.many_labels else text.METRICS
    probable = settings.loss in PROBABILITIES
    return (*names, *text.METRICS_OF_PROBABILITIES) if probable else names


def check_metric(metric: str, candidates: Sequence[Settings]) -> None:
    """Refuse a metric that candidates do not have, or that they do not share, by a
    SettingsError."""
    first = candidates[0]
    common = set(metrics_of(first)).intersection(*map(metrics_of, candidates))
    if any(candidate.regression != first.regression for candidate in candidates):
        raise SettingsError(
            "losses of numbers beside losses of classes: they have no metric in common. Sweep "
            "them one by one."
        )
    if metric not in common:
        kind = "many classes" if first.many_labels else "two classes"
        kind = "numbers" if first.regression else kind
        names = ", ".join(name for name in metrics_of(first) if name in common)
        raise SettingsError(
            f"metric {metric!r}: of {kind}, expected one of {names}; and log_loss and brier_score "
            "where log_loss is the only --loss, for it alone gives probabilities."
        )


def certificate_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the certificate of a fit; of many classes that with the widest gap, and its class.
    With them the number of weights that are not 0, if the penalty has a 1-norm."""
    size = {name: report[name] for name in ("nonzero_weights",) if name in report}
    if "learners" not in report:
        return {**report["certificate"], **size}
    widest = max(report["learners"], key=lambda each: each["certificate"]["relative_duality_gap"])
    return {**widest["certificate"], "class": text.label_text(widest["label"]), **size}


def ranked(trials: Iterable[Trial], metric: str) -> list[Trial]:
    """Return the trials, the best first: by the metric, of which an error is to be small, of equals
    the smaller C, then their order.

    A trial without the metric comes after all that have it.
    """
    sign = 1.0 if metric in text.ERRORS else -1.0

    def key(trial: Trial) -> tuple[float, float, int]:
        value = trial.metrics[metric]
        rank = math.inf if value is None else sign * value
        return rank, trial.settings.price, trial.candidate

    return sorted(trials, key=key)


def check_measured(trials: Sequence[Trial], metric: str) -> None:
    """Refuse to choose if no trial has the metric, by a DataError."""
    if all(trial.metrics[metric] is None for trial in trials):
        raise DataError(
            f"no candidate has a {metric} on the validation rows: they lack a class or a row, or "
            "nothing is called positive. Choose another metric, or other rows."
        )


def mean_trial(settings: Settings, trials: Sequence[Trial]) -> Trial:
    """Combine a candidate's trials on all folds: mean metrics, the widest gap, total costs."""
    worst = max(trials, key=lambda trial: (trial.exit_code, trial.gap))
    metrics = {name: _average([trial.metrics[name] for trial in trials]) for name in worst.metrics}
    least, most = (
        _average([trial.at_optimum[end] for trial in trials], Fraction) for end in (0, 1)
    )
    bounds = (None, None) if least is None else (at_least(least), at_most(most))
    costs = Costs.total([trial.costs for trial in trials])
    return replace(worst, settings=settings, metrics=metrics, at_optimum=bounds, costs=costs)


def _average(values: list[float | None], kind: Callable[[float], Any] = float) -> Any:
    known = [kind(value) for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def check_table(path: str | os.PathLike[str]) -> None:
    """Refuse a table that is neither CSV nor Parquet, by a SettingsError."""
    if not os.fspath(path).endswith((".csv", ".parquet")):
        raise SettingsError(f"{path}: a table is CSV or Parquet. Name it .csv or .parquet.")


def write_table(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of a sweep as CSV or Parquet, by the ending of the name. In CSV, numbers are
    the shortest decimals that read back as the same float64, and undefined values are empty."""
    check_table(path)
    if os.fspath(path).endswith(".parquet"):
        from streamtron.data.writers.tables import parquet_table

        content = parquet_table({name: COLUMNS[name] for name in rows[0]}, rows)
    else:
        lines = io.StringIO()
        writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        content = lines.getvalue().encode()
    write_atomically(path, [content])
