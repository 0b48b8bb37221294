"""Summary of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamtron.cli.summary.fit import learned_lines, proven_lines
from streamtron.core.config import Settings
from streamtron.core.text import Lines, metric_words
from streamtron.sweeps.grid import describe_candidate

Rows = Sequence[Mapping[str, Any]]


def sweep_summary(rows: Rows, metric: str, report: Mapping[str, Any] | None) -> Lines:
    """Yield the table of a sweep, one line a candidate, and the certificate of the best.

    Parameters
    ----------
    report : of the best candidate's fit on all shards, None if there was none.
    """
    columns = _columns(rows, metric)
    widths = {head: max(10, len(head)) for head in columns}
    heads = (f"{head:>{width}}" for head, width in widths.items())
    yield f"  {' '.join(heads)} {'gap':>9} {'readings':>9}  ended because"
    for row in rows:
        cells = (f"{_digits(row[name]):>{widths[head]}}" for head, name in columns.items())
        gap, star = f"{row['relative_duality_gap']:.3g}", "*" if row["best"] else " "
        yield f"{star} {' '.join(cells)} {gap:>9} {row['readings']:>9.4g}  {_stop_reason(row)}"
    best = next(row for row in rows if row["best"])
    if "class" in best:
        yield "A gap is that of the class with the widest one."
    yield ""
    price = "delta = 0" if best["C"] is None else f"C = {best['C']:g}"
    yield f"{'best (*)':<18} {price}, rho = {best['rho']:g}: {metric} {_digits(best[metric])}"
    if report is not None and "learners" in report:
        yield ""
        yield from learned_lines(report)
    elif report is not None:
        yield from proven_lines(report)


def _columns(rows: Rows, metric: str) -> dict[str, str]:
    """Return heading → name of the columns that are shown."""
    price = "delta" if any(row["C"] is None for row in rows) else "C"
    own = ("accuracy", "f1", "roc_auc", "average_precision")
    of_many = ("micro_f1", "macro_f1", "macro_roc_auc", "macro_average_precision")
    shown = dict.fromkeys((metric, *own, *of_many))
    heads = {metric_words(name).replace("average precision", "avg. prec."): name for name in shown}
    there = {head: name for head, name in heads.items() if name in rows[0]}
    return {price: price, "rho": "rho", **there}


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _stop_reason(row: Mapping[str, Any]) -> str:
    """Return why a candidate stopped, or by which procedure and where it was dropped."""
    if not row["dropped"]:
        return str(row["stop_reason"])
    if row["dropped"] == "pruned by rank":
        return f"pruned by rank at tolerance {row['tol']:g}"
    return f"{row['dropped']} after stage {row['stage']}"


def best_not_certified(rows: Rows) -> str:
    """Return the message of a sweep without a model whose best candidate is not certified."""
    best = next(row for row in rows if row["best"])
    return (
        "the best candidate stopped before its tolerance was certified: the "
        f"{'largest ' if 'class' in best else ''}relative duality gap is "
        f"{best['relative_duality_gap']:.3g}, wanted {best['tol']:g}. What would help: "
        f"more --max-epochs, or a --tol looser than {best['tol']:g}."
    )


def trial_line(
    settings: Settings, fold: str, accuracy: float | None, gap: float, worker: str
) -> str:
    """Return the line of a candidate that has just been measured.

    Examples
    --------
    >>> trial_line(Settings(C=2), "fold 1 of 5", 0.9375, 0.0042, "0")
    'C 2, rho 1, fold 1 of 5: accuracy 0.9375, gap 0.0042 (worker 0)'
    """
    where = f", {fold}" if fold else ""
    shown = "-" if accuracy is None else f"{accuracy:.4g}"
    return (
        f"{describe_candidate(settings)}{where}: accuracy {shown}, gap {gap:.3g} (worker {worker})"
    )
