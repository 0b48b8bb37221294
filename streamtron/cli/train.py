"""Commands that train: ``fit``, ``sweep``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import STOPPED, check_writable, is_verbose, say, workers_of
from streamtron.cli.options import (
    candidate_options,
    cluster_options,
    machine_options,
    setting_options,
    settings_of,
    shards_argument,
    split,
    verbose_option,
)
from streamtron.core.config import METRICS, METRICS_OF_MANY
from streamtron.sweeps.grid import candidates_of

if TYPE_CHECKING:
    from streamtron.core.config import Machine
    from streamtron.sweeps.sweep import Trainer
    from streamtron.sweeps.trial import Trial


@click.command(short_help="Train on shards and write a certified model.")
@shards_argument
@click.option("--model", required=True, type=click.Path(dir_okay=False), help="Write it there.")
@click.option("--report", type=click.Path(dir_okay=False), help="Write a JSON report there.")
@click.option("--witness", type=click.Path(dir_okay=False), help="Write the row counts there.")
@click.option("--config", type=click.Path(), help="Settings from TOML; options given here win.")
@options.run_options
@setting_options()
@machine_options
@verbose_option
def fit(
    shards: tuple[str, ...], model: str, report: str | None, witness: str | None,
    config: str | None, resume: bool, overwrite: bool, **given: Any,
) -> int:  # fmt: skip
    """Train on SHARDS (files, directories, globs) and write a certified model.

    Minimises ½‖w‖² + C Σ max(0, 1 − margin)², LIBLINEAR's default problem, until the relative
    duality gap is proven to be within --tol.
    """
    wanted, machine = split(given)
    settings = settings_of(wanted, config)
    for path in filter(None, (model, report, witness)):
        check_writable(path)
    from streamtron.core.compiling import compiling_ahead

    with compiling_ahead():
        from streamtron.cli.progress import progress
        from streamtron.cli.summary.fit import fit_summary, not_certified
        from streamtron.runs.fit import run, run_directory
        from streamtron.runs.inspect import directory_bytes
        from streamtron.runs.outputs import check_outputs

        written = {"model": model, "report": report, "witness": witness}
        check_outputs(written, filter(None, [config]))
        with progress(verbose=is_verbose()) as listen:
            outcome = run(
                shards, settings, model=model, report=report, witness=witness, machine=machine,
                resume=resume, overwrite=overwrite, listen=listen,
            )  # fmt: skip
    cache = machine.cache_dir or os.path.join(machine.run_dir or run_directory(model), "cache")
    say(fit_summary(outcome.report, model, cache, directory_bytes(cache)))
    if outcome.exit_code == STOPPED:
        click.echo(not_certified(outcome.report, model), err=True)
    return outcome.exit_code


@click.command(short_help="Fit many settings, keep what does best on other rows.")
@shards_argument
@click.option(
    "--valid", multiple=True, type=click.Path(),
    help="Shards to measure on; can be given again. Without it: folds of SHARDS.",
)  # fmt: skip
@click.option(
    "--folds", type=options.whole_number(),
    help="Without --valid: fit so many times, each time without other shards [5].",
)  # fmt: skip
@click.option(
    "--random", type=options.whole_number(), help="Draw so many candidates [all combinations]."
)
@click.option(
    "--halving", is_flag=True,
    help="All candidates to a loose tolerance, the better half to a tighter one, and so on.",
)  # fmt: skip
@click.option(
    "--two-stage", is_flag=True,
    help="All candidates through the first of --stage, those that are worth it through the next.",
)  # fmt: skip
@click.option(
    "--metric", default="accuracy", show_default=True, metavar="NAME",
    type=click.Choice(tuple(dict.fromkeys((*METRICS, *METRICS_OF_MANY)))),
    help="What the best is best in, of equals the smaller C: accuracy, precision, recall, f1, "
    "roc_auc, average_precision; of many classes accuracy (all labels of a row are right), "
    "micro_precision, micro_recall, micro_f1, or macro_ and one of the six but accuracy.",
)  # fmt: skip
@click.option("--table", type=click.Path(dir_okay=False), help="Write it as .csv or .parquet.")
@click.option("--plot", type=click.Path(dir_okay=False),
              help="Draw the metric against C as .png or .svg.")  # fmt: skip
@click.option("--model", type=click.Path(dir_okay=False), help="Write the best there, as fit does.")
@click.option("--report", type=click.Path(dir_okay=False), help="The best one's JSON report.")
@click.option("--witness", type=click.Path(dir_okay=False), help="The best one's row counts.")
@click.option("--overwrite", is_flag=True, help="Replace the run that --model has already.")
@click.option("--config", type=click.Path(), help="Settings from TOML; options given here win.")
@candidate_options
@machine_options
@cluster_options
@verbose_option
def sweep(
    shards: tuple[str, ...], valid: tuple[str, ...], folds: int | None, random: int | None,
    halving: bool, two_stage: bool, metric: str, table: str | None, plot: str | None,
    model: str | None, report: str | None, witness: str | None, overwrite: bool,
    config: str | None, **given: Any,
) -> int:  # fmt: skip
    """Fit all combinations of --C (or --delta) and --rho on SHARDS, measure them on --valid, and
    write the best as --model.

    The model is the one that fit writes with the same settings. The exit code is 0 if the best is
    certified, whatever became of the others, and 4 if it is not; the table says how each ended.
    """
    wanted, machine = split(given)
    values = {name: wanted.pop(name) for name in options.LISTS if name in wanted}
    candidates = candidates_of(settings_of(wanted, config), values, random)
    for path in filter(None, (table, plot, model, report, witness)):
        check_writable(path)
    from streamtron.cli.progress import progress
    from streamtron.cli.summary.fit import not_certified, place_lines
    from streamtron.cli.summary.sweep import best_not_certified, sweep_summary
    from streamtron.runs.fit import run_directory
    from streamtron.runs.inspect import directory_bytes
    from streamtron.runs.outputs import check_outputs
    from streamtron.sweeps.plot import check_plot, plot_sweep
    from streamtron.sweeps.sweep import run_sweep
    from streamtron.sweeps.trial import check_table, write_table

    if table:
        check_table(table)
    if plot:
        check_plot(plot)
    written = {"table": table, "plot": plot, "model": model, "report": report, "witness": witness}
    kept = {"run directory": model and (machine.run_dir or run_directory(model))}
    check_outputs(written, filter(None, [*shards, *valid, config]), directories=kept)
    with progress(verbose=is_verbose()) as listen, _attempts(machine, **given) as attempts:
        found = run_sweep(
            shards, candidates, valid=valid or None, folds=folds, halving=halving,
            two_stage=two_stage, metric=metric, model=model, report=report, witness=witness,
            machine=machine, overwrite=overwrite, listen=listen, attempts=attempts,
        )  # fmt: skip
    rows, proven = found.rows(), found.report
    if table:
        write_table(table, rows)
    if plot:
        plot_sweep(plot, rows, metric)
    say(sweep_summary(rows, metric, proven))
    if model:
        cache = machine.cache_dir or os.path.join(run_directory(model), "cache")
        say(place_lines(model, cache, directory_bytes(cache)))
    if found.exit_code == STOPPED:
        stopped = not_certified(proven, model) if proven and model else best_not_certified(rows)
        click.echo(stopped, err=True)
    return found.exit_code


@contextmanager
def _attempts(machine: Machine, **where: Any) -> Iterator[Trainer | None]:
    """Who fits a sweep's candidates: the same workers, each told of as it finishes; or None."""
    with workers_of(**where) as found:
        if found is None:
            yield None
            return
        from streamtron.cli.summary.sweep import trial_line
        from streamtron.cluster.sweep import on_workers

        def tell(trial: Trial, fold: str) -> None:
            if is_verbose() or sys.stderr.isatty():
                accuracy, gap = trial.metrics["accuracy"], trial.gap
                line = trial_line(trial.settings, fold, accuracy, gap, trial.worker)
                click.echo(line, err=True)

        yield on_workers(found, machine=machine, tell=tell)
