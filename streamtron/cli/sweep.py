"""The command ``sweep``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import STOPPED, check_writable, is_verbose, say, workers_of
from streamtron.core.config import METRICS, METRICS_OF_MANY
from streamtron.sweeps.grid import candidates_of

if TYPE_CHECKING:
    from streamtron.core.config import Machine
    from streamtron.sweeps.sweep import Sweep, Trainer
    from streamtron.sweeps.trial import Trial


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
@options.config_option
@options.candidate_options
@options.machine_options
@options.cluster_options
@options.verbose_option
def sweep(
    shards: tuple[str, ...], valid: tuple[str, ...], folds: int | None, random: int | None,
    halving: bool, two_stage: bool, metric: str, table: str | None, plot: str | None,
    model: str | None, report: str | None, witness: str | None, overwrite: bool,
    config: str | None, **given: Any,
) -> int:  # fmt: skip
    """Fit all combinations of --C (or --delta) and --rho on SHARDS, measure them on --valid, and
    write the best as --model.

    The model is the one that fit writes with the same settings. The exit code is 0 if the best is
    certified and 4 if it is not; the table says for every candidate why its fit stopped.
    """
    wanted, machine = options.split(given)
    values = {name: wanted.pop(name) for name in options.LISTS if name in wanted}
    candidates = candidates_of(options.settings_of(wanted, config), values, random)
    written = {"table": table, "plot": plot, "model": model, "report": report, "witness": witness}
    for path in filter(None, written.values()):
        check_writable(path)
    from streamtron.cli.progress import progress
    from streamtron.runs.directory import run_directory
    from streamtron.runs.outputs import check_outputs
    from streamtron.sweeps.plot import check_plot, plot_sweep
    from streamtron.sweeps.sweep import run_sweep
    from streamtron.sweeps.trial import check_table, write_table

    if table:
        check_table(table)
    if plot:
        check_plot(plot)
    kept = {"run directory": model and (machine.run_dir or run_directory(model))}
    check_outputs(written, filter(None, [*shards, *valid, config]), directories=kept)
    with progress(verbose=is_verbose()) as listen, _trainer(machine, **given) as trainer:
        found = run_sweep(
            shards, candidates, valid=valid or None, folds=folds, halving=halving,
            two_stage=two_stage, metric=metric, model=model, report=report, witness=witness,
            machine=machine, overwrite=overwrite, listen=listen, trainer=trainer,
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
    from streamtron.cli.summary.fit import not_certified, place_lines
    from streamtron.cli.summary.sweep import best_not_certified, sweep_summary
    from streamtron.runs.directory import run_directory
    from streamtron.runs.inspect import directory_bytes

    proven = found.report
    say(sweep_summary(rows, found.metric, proven))
    if model:
        cache = machine.cache_dir or os.path.join(run_directory(model), "cache")
        say(place_lines(model, cache, directory_bytes(cache)))
    if found.exit_code == STOPPED:
        stopped = not_certified(proven, model) if proven and model else best_not_certified(rows)
        click.echo(stopped, err=True)
    return found.exit_code


@contextmanager
def _trainer(machine: Machine, **where: Any) -> Iterator[Trainer | None]:
    """Connect to the workers that fit the candidates and print each trial; None without workers."""
    with workers_of(**where) as found:
        if found is None:
            yield None
            return
        from streamtron.cli.summary.sweep import trial_line
        from streamtron.cluster.sweep import distributed_trainer

        def tell(trial: Trial, fold: str) -> None:
            if is_verbose() or sys.stderr.isatty():
                accuracy, gap = trial.metrics["accuracy"], trial.gap
                line = trial_line(trial.settings, fold, accuracy, gap, trial.worker)
                click.echo(line, err=True)

        yield distributed_trainer(found, machine=machine, tell=tell)
