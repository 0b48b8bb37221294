"""The command ``sweep``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from streamtron.cli import options, terminal
from streamtron.cli.common import STOPPED, check_files, workers_of
from streamtron.cli.summary import learned_lines, not_certified, place_lines
from streamtron.core.text import ALL_METRICS, METRICS_OF_NUMBERS, Lines, metric_words, up
from streamtron.sweeps.grid import NAMES

Rows = Sequence[Mapping[str, Any]]


@options.command(options.Grouped)
@options.shards_argument
@options.several("--valid", metavar="SHARDS|20%", help="Rows to measure on [folds].")
@options.number("--folds", help="Folds of SHARDS if there is no --valid [5].", least=0)
@options.number("--random", help="Candidates to draw at random [all combinations].", least=0)
@options.flag(
    "--two-stage",
    help="Fit all through the first of --stage, and only possible winners through the next.",
)
@click.option(
    "--metric",
    metavar="NAME",
    type=click.Choice(ALL_METRICS),
    help="What chooses the best: accuracy, precision, recall, f1, roc_auc, average_precision; of "
    "many classes accuracy, micro_, macro_ and these; log_loss, brier_score; of numbers r2, rmse, "
    "mae, of poisson d2, deviance [accuracy; r2; d2]. Of equals the smaller C wins.",
)
@options.flag("--no-refit", help="Keep the model that was measured, of --valid 20%.")
@options.written("--table", help="File for the table of candidates, .csv or .parquet.")
@options.written("--model", help="File for the best model.")
@options.report_option
@options.written("--witness", help="File for its witness.")
@options.flag("--overwrite", help="Replace an existing run of --model.")
@options.log_option
@options.candidate_options
@options.machine_options
@options.cluster_options
def sweep(shards: tuple[str, ...], valid: tuple[str, ...], **given: Any) -> int:
    """Fit all combinations of --loss, --C (or --delta), --rho and --l1-ratio on SHARDS, measure
    them on --valid, and write the best as --model.

    The best is fitted again on all of SHARDS, as fit does with the same settings. Candidates are
    fitted to a --tol of at most 0.0001, lest their ranks depend on where they stop.
    """
    names, machine = options.split(given)
    values, settings = options.candidates_of(names)
    table, model, log = given["table"], given["model"], given["log"]
    how: Any = {k: given[k] for k in ("metric", "folds", "random", "two_stage", "overwrite")}
    how["refit"] = not given["no_refit"]
    files: Any = {"model": model, "report": given["report"], "witness": given["witness"]}
    from streamtron.cli.progress import progress
    from streamtron.sweeps.sweep import sweep as run_sweep
    from streamtron.sweeps.trial import check_table, write_table

    if table:
        check_table(table)
    read = [*shards, *valid, *settings.files, given["scheduler"]]
    check_files({"table": table, **files, "log": log}, read, machine)
    with progress(log) as listen, workers_of(**given) as workers:
        if workers is not None:
            from streamtron.cluster.sweep import SweepExecutor

            how["executor"] = SweepExecutor(workers)
        result = run_sweep(
            shards,
            **values,
            valid=valid or None,
            settings=settings,
            machine=machine,
            listen=listen,
            **files,
            **how,
        )
    rows, proven = result.rows(), result.report
    if table:
        write_table(table, rows)
    places = place_lines(model, machine) if model else ()
    terminal.say([*_summary(rows, result.metric, proven), *places])
    if result.exit_code == STOPPED:
        best = next(row for row in rows if row["best"])
        terminal.complain(
            not_certified(proven, model)
            if proven and model
            else "the best candidate stopped before its tolerance was certified: a gap of "
            f"{up(best['relative_duality_gap'], 3)}, expected {best['tol']:g}. What would help: "
            "more --max-epochs, or a looser --tol."
        )
    return result.exit_code


def _summary(rows: Rows, metric: str, report: Mapping[str, Any] | None) -> Lines:
    """Yield the table, one line a candidate, and the proof of the best if it has a report."""
    names = _columns(rows, metric)
    columns = {head: [_digits(row[name]) for row in rows] for head, name in names.items()}
    columns |= {
        "gap": [up(row["relative_duality_gap"], 3) for row in rows],
        "readings": [f"{row['readings']:.4g}" for row in rows],
    }
    if "nonzero_weights" in rows[0]:
        columns |= {"not 0": [f"{row['nonzero_weights']:,}" for row in rows]}
    stars = ["*" if row["best"] else "" for row in rows]
    reasons = [
        f"{row['dropped']} after stage {row['stage']}" if row["dropped"] else row["stop_reason"]
        for row in rows
    ]
    columns = {"best": stars, **columns, "ended because": reasons}
    yield from terminal.table(columns, ("best", "ended because"))
    best = next(row for row in rows if row["best"])
    if "class" in best:
        yield "A gap is that of the class with the widest one."
    yield ""
    settings = ", ".join(f"{k} = {_digits(best[k])}" for k in names.values() if k in NAMES)
    yield f"{'best (*)':<18} {settings}: {metric} {_digits(best[metric])}"
    if report is not None:
        yield ""
        yield from learned_lines(report, verbose=terminal.is_verbose())


def _columns(rows: Rows, metric: str) -> dict[str, str]:
    price = "delta" if any(row["C"] is None for row in rows) else "C"
    of_two = ("accuracy", "f1", "roc_auc", "average_precision")
    of_many = ("micro_f1", "macro_f1", "macro_roc_auc", "macro_average_precision")
    known = dict.fromkeys((metric, *of_two, *of_many, *METRICS_OF_NUMBERS))
    metrics = [name for name in known if name in rows[0]]
    heads = [metric_words(name).replace("average precision", "avg. prec.") for name in metrics]
    columns = {"loss": "loss"} if len({row["loss"] for row in rows}) > 1 else {}
    columns |= {price: price, "rho": "rho"}
    columns |= {"l1 ratio": "l1_ratio"} if "l1_ratio" in rows[0] else {}
    return columns | dict(zip(heads, metrics, strict=True))


def _digits(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.5g}"
