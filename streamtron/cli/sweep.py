"""The command ``sweep``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import STOPPED, check_files, is_verbose, say, workers_of
from streamtron.cli.summary import learned_lines, not_certified, place_lines
from streamtron.cli.terminal import complain, fitting
from streamtron.core.text import METRICS, METRICS_OF_MANY, Lines, metric_words, up
from streamtron.sweeps.grid import candidates_of

if TYPE_CHECKING:
    from streamtron.cluster.client import Workers
    from streamtron.core.config import Machine
    from streamtron.sweeps.sweep import Sweep

Rows = Sequence[Mapping[str, Any]]


@click.command(short_help="Fit many settings and keep the best on other rows.")
@options.shards_argument
@click.option("--valid", multiple=True, type=click.Path(),
              help="Shards to measure on; can be repeated [folds of SHARDS].")  # fmt: skip
@click.option("--folds", type=options.whole_number(),
              help="Number of cross-validation folds if there is no --valid [5].")  # fmt: skip
@click.option("--random", type=options.whole_number(),
              help="Number of candidates to draw at random [all combinations].")  # fmt: skip
@click.option("--halving", is_flag=True,
              help="Successive halving: fit all candidates to a loose tolerance, the better half "
              "to a tighter one, and so on.")  # fmt: skip
@click.option("--two-stage", is_flag=True,
              help="Fit all candidates through the first of --stage, and through the next only "
              "those that may still be the most accurate.")  # fmt: skip
@click.option("--metric", default="accuracy", show_default=True, metavar="NAME",
              type=click.Choice(tuple(dict.fromkeys((*METRICS, *METRICS_OF_MANY)))),
              help="Metric to choose the best by; of equals the smaller C wins. accuracy, "
              "precision, recall, f1, roc_auc, average_precision; of many classes accuracy (all "
              "labels of a row are right), micro_precision, micro_recall, micro_f1, or macro_ and "
              "one of the six but accuracy.")  # fmt: skip
@click.option("--table", type=click.Path(dir_okay=False),
              help="File for the table of candidates, .csv or .parquet.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False),
              help="File for a plot of the metric against C, .png or .svg.")  # fmt: skip
@click.option("--model", type=click.Path(dir_okay=False), help="File for the best model.")
@click.option("--report", type=click.Path(dir_okay=False), help="File for its JSON report.")
@click.option("--witness", type=click.Path(dir_okay=False), help="File for its witness.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run of --model.")
@options.log_option
@options.config_option
@options.candidate_options
@options.machine_options
@options.cluster_options
@options.verbose_option
def sweep(
    shards: tuple[str, ...], valid: tuple[str, ...], folds: int | None, random: int | None,
    halving: bool, two_stage: bool, metric: str, table: str | None, plot: str | None,
    model: str | None, report: str | None, witness: str | None, overwrite: bool,
    log: str | None, config: str | None, **given: Any,
) -> int:  # fmt: skip
    """Fit all combinations of --C (or --delta) and --rho on SHARDS, measure them on --valid, and
    write the best as --model.

    The model is the one that fit writes with the same settings. The exit code is 0 if the best is
    certified and 4 if it is not; the table says for every candidate why its fit stopped.
    """
    wanted, machine = options.split(given)
    values = {name: wanted.pop(name) for name in options.LISTS if name in wanted}
    candidates = candidates_of(options.settings_of(wanted, config), values, random)
    written = {
        "table": table, "plot": plot, "model": model, "report": report, "witness": witness,
        "log": log,
    }  # fmt: skip
    from streamtron.cli.progress import progress
    from streamtron.model.plot import check_plot, plot_sweep
    from streamtron.runs.directory import run_directory
    from streamtron.sweeps.sweep import run_sweep
    from streamtron.sweeps.trial import check_table, write_table

    if table:
        check_table(table)
    if plot:
        check_plot(plot)
    kept = {"run directory": model and (machine.run_dir or run_directory(model))}
    read = [*shards, *valid, config, candidates[0].vocabulary, given["scheduler"]]
    check_files(written, read, directories=kept, cache=machine.cache_dir)
    with progress(verbose=is_verbose(), log=log) as listen, workers_of(**given) as workers:
        on_workers = {} if workers is None else _where(workers)
        found = run_sweep(
            shards, candidates, valid=valid or None, folds=folds, halving=halving,
            two_stage=two_stage, metric=metric, model=model, report=report, witness=witness,
            machine=machine, overwrite=overwrite, listen=listen, **on_workers,
        )  # fmt: skip
    rows = found.rows()
    if table:
        write_table(table, rows)
    if plot:
        plot_sweep(plot, rows, metric)
    return _report_sweep(found, rows, model, machine)


def _report_sweep(
    found: Sweep, rows: list[dict[str, Any]], model: str | None, machine: Machine
) -> int:
    """Print the summary of a sweep and return the exit code."""
    proven = found.report
    say([*_summary(rows, found.metric, proven), *(place_lines(model, machine) if model else ())])
    if found.exit_code == STOPPED:
        stopped = not_certified(proven, model) if proven and model else _best_not_certified(rows)
        complain(stopped)
    return found.exit_code


def _where(workers: Workers) -> dict[str, Any]:
    """Return the arguments of ``run_sweep`` that fit the candidates on workers."""
    from streamtron.cluster.sweep import sweep_executor

    return {"executor": sweep_executor(workers), "tasks": workers.threads}


def _summary(rows: Rows, metric: str, report: Mapping[str, Any] | None) -> Lines:
    """Yield the table, one line a candidate, and what is proven of the best if it has a report."""
    names = _columns(rows, metric)
    columns = {head: [_digits(row[name]) for row in rows] for head, name in names.items()}
    columns |= {
        "gap": [up(row["relative_duality_gap"], 3) for row in rows],
        "readings": [f"{row['readings']:.4g}" for row in rows],
    }
    widths = {head: 9 if head in ("gap", "readings") else max(10, len(head)) for head in columns}
    reasons = ["ended because", *map(_stop_reason, rows)]
    stars = ["*" if row["best"] else " " for row in rows]
    cells = zip(*([head, *own] for head, own in columns.items()), strict=True)
    table = (
        f"{star} {' '.join(f'{x:>{w}}' for x, w in zip(row, widths.values(), strict=True))}  {why}"
        for star, row, why in zip([" ", *stars], cells, reasons, strict=True)
    )
    yield from fitting(table, {"best": stars, **columns, reasons[0]: reasons[1:]})
    best = next(row for row in rows if row["best"])
    if "class" in best:
        yield "A gap is that of the class with the widest one."
    yield ""
    price = "delta = 0" if best["C"] is None else f"C = {best['C']:g}"
    yield f"{'best (*)':<18} {price}, rho = {best['rho']:g}: {metric} {_digits(best[metric])}"
    if report is not None:
        yield ""
        yield from learned_lines(report, verbose=is_verbose())


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


def _best_not_certified(rows: Rows) -> str:
    """Return the message of a sweep without a model whose best candidate is not certified."""
    best = next(row for row in rows if row["best"])
    return (
        "the best candidate stopped before its tolerance was certified: the "
        f"{'largest ' if 'class' in best else ''}relative duality gap is "
        f"{up(best['relative_duality_gap'], 3)}, wanted {best['tol']:g}. What would help: "
        f"more --max-epochs, or a --tol looser than {best['tol']:g}."
    )
