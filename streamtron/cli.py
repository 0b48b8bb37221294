"""The commands. Whatever goes wrong becomes one sentence on stderr and an exit code.

0 done; 2 settings; 3 data; 4 stopped before the tolerance was certified; 5 machine; 130 SIGINT,
143 SIGTERM; 141 where nobody reads the output any more.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from streamtron import options
from streamtron.candidates import candidates_of
from streamtron.config import METRICS, METRICS_OF_MANY
from streamtron.errors import DataError, MachineError, SettingsError, StreamtronError
from streamtron.interruption import Signalled, signals
from streamtron.options import (
    candidate_options,
    cluster_options,
    json_option,
    machine_options,
    reading_options,
    setting_options,
    settings_of,
    shards_argument,
    split,
    verbose_option,
    workers_memory_option,
)

if TYPE_CHECKING:
    from streamtron.cluster import Workers
    from streamtron.config import Machine, Settings
    from streamtron.model import LinearModel
    from streamtron.outcome import Outcome
    from streamtron.spread import Spread
    from streamtron.sweeping import Attempts
    from streamtron.trials import Trial

STOPPED = 4
BROKEN_PIPE = 128 + signal.SIGPIPE


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="streamtron", message="%(prog)s %(version)s")
def streamtron() -> None:
    """Linear classifiers from shards that do not fit in memory, with a proof of how good they are.

    Exit codes: 0 done, 2 settings, 3 data, 4 stopped before the tolerance was certified, 5 machine
    (disk, memory), 130 and 143 interrupted.
    """


@streamtron.command(short_help="Train on shards and write a certified model.")
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
        _check_writable(path)
    from streamtron.fitting import run, run_directory
    from streamtron.inspection import directory_bytes
    from streamtron.progress import progress
    from streamtron.summary import fit_summary, not_certified

    with progress(verbose=_verbose()) as listen:
        outcome = run(
            shards, settings, model=model, report=report, witness=witness, machine=machine,
            resume=resume, overwrite=overwrite, listen=listen,
        )  # fmt: skip
    cache = machine.cache_dir or os.path.join(machine.run_dir or run_directory(model), "cache")
    _say(fit_summary(outcome.report, model, cache, directory_bytes(cache)))
    if outcome.exit_code == STOPPED:
        click.echo(not_certified(outcome.report, model), err=True)
    return outcome.exit_code


@streamtron.command(short_help="Add shards to a run.")
@click.argument("run", type=click.Path())
@shards_argument
@click.option("--report", type=click.Path(dir_okay=False), help="Write a JSON report there.")
@click.option("--only-new", is_flag=True,
              help="The run's own shards are gone: read SHARDS alone, and prove of their rows what "
              "can be proven.")  # fmt: skip
@options.once_option
@setting_options("tol", "max_epochs", "allow_duplicate")
@machine_options
@verbose_option
def update(
    run: str, shards: tuple[str, ...], report: str | None, only_new: bool, **given: Any
) -> int:
    """Add SHARDS to the run of a model, RUN, and go on from there to a certificate over all rows.

    The run is as it was until the new model is in place. SHARDS are read as the run's own were.

    With --only-new there is a lower bound over the new rows and no tolerance to meet: exit code 0.
    """
    from streamtron.updating import update as update_run

    return _change(partial(update_run, only_new=only_new), run, shards, report, given)


@streamtron.command(short_help="Take shards, or rows of them, out of a run.")
@click.argument("run", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@click.option("--key", metavar="COLUMN",
              help="Only rows whose COLUMN is a --value, in Parquet and Arrow.")  # fmt: skip
@click.option("--value", multiple=True, help="What to look for in --key; can be given again.")
@click.option("--rows", type=click.Path(dir_okay=False),
              help="Only the rows in this CSV file, shard,row, numbered from 0.")  # fmt: skip
@click.option("--replaced-by", type=click.Path(),
              help="One shard was written anew, without some rows: forget those.")  # fmt: skip
@click.option("--report", type=click.Path(dir_okay=False), help="Write a JSON report there.")
@options.once_option
@setting_options("tol", "max_epochs")
@machine_options
@verbose_option
def forget(
    run: str, shards: tuple[str, ...], key: str | None, value: tuple[str, ...], rows: str | None,
    replaced_by: str | None, report: str | None, **given: Any,
) -> int:  # fmt: skip
    """Take SHARDS (names or paths, as inspect RUN lists them) out of the run of a model, or only
    some of their rows, and go on from there to a certificate over the rows that are left.

    Nothing of them is left in the model and in the run's directory. Whole shards may be gone
    already; where a shard still holds rows that are forgotten, the run leaves them out from now on.
    """
    from streamtron.forgetting import forget as forget_rows

    change = partial(forget_rows, key=key, values=value, rows=rows, replaced_by=replaced_by)
    return _change(change, run, shards, report, given)


@streamtron.command(short_help="Fit many settings, keep what does best on other rows.")
@shards_argument
@click.option(
    "--valid", multiple=True, type=click.Path(),
    help="Shards to measure on; can be given again. Without it: folds of SHARDS.",
)  # fmt: skip
@click.option(
    "--folds", type=int,
    help="Without --valid: fit so many times, each time without other shards [5].",
)  # fmt: skip
@click.option("--random", type=int, help="Draw so many candidates [all combinations].")
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
        _check_writable(path)
    from streamtron.fitting import run_directory
    from streamtron.inspection import directory_bytes
    from streamtron.plot import check_plot, plot_sweep
    from streamtron.progress import progress
    from streamtron.summary import best_not_certified, not_certified, place_lines, sweep_summary
    from streamtron.sweeping import run_sweep
    from streamtron.trials import check_table, write_table

    if table:
        check_table(table)
    if plot:
        check_plot(plot)
    with progress(verbose=_verbose()) as listen, _attempts(machine, **given) as attempts:
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
    _say(sweep_summary(rows, metric, proven))
    if model:
        cache = machine.cache_dir or os.path.join(run_directory(model), "cache")
        _say(place_lines(model, cache, directory_bytes(cache)))
    if found.exit_code == STOPPED:
        stopped = not_certified(proven, model) if proven and model else best_not_certified(rows)
        click.echo(stopped, err=True)
    return found.exit_code


@streamtron.command(short_help="Label and decision of every row.")
@click.argument("model", type=click.Path())
@shards_argument
@click.option(
    "-o", "--output", required=True, type=click.Path(),
    help="Lines of label and decisions with tabs; Parquet if it ends with .parquet; - for stdout.",
)  # fmt: skip
@workers_memory_option
@cluster_options
@verbose_option
def predict(model: str, shards: tuple[str, ...], output: str, **where: Any) -> None:
    """One row out per row of SHARDS, in the same order: label and decision. Labels in SHARDS are
    optional, and not looked at. MODEL is ours or a LIBLINEAR model.

    Of many classes: the label (with --multilabel all labels, commas in between), then one decision
    a class in the order of the classes; in Parquet label or labels, and the list decisions.
    """
    from streamtron.foreign import load_any
    from streamtron.scoring import write_predictions

    loaded = load_any(model)
    if output != "-":
        _check_writable(output)
    with _spread(**where) as spread:
        to = sys.stdout.buffer if output == "-" else output
        written = write_predictions(loaded, shards, to, spread=spread)
    sys.stdout.flush()
    beyond = ""
    if written.beyond:
        beyond = f"; {written.beyond:,} values in columns beyond the model's width weigh 0"
    click.echo(f"{written.rows:,} rows{beyond}", err=True)


@streamtron.command(short_help="Accuracy, ROC AUC, … on labelled shards.")
@click.argument("model", type=click.Path())
@shards_argument
@click.option(
    "--ranking/--no-ranking", default=True, show_default=True,
    help="ROC AUC and average precision, for which every decision is sorted.",
)  # fmt: skip
@json_option
@workers_memory_option
@cluster_options
@verbose_option
def evaluate(
    model: str, shards: tuple[str, ...], ranking: bool, as_json: bool, **where: Any
) -> None:
    """How well a model's decisions meet the labels of SHARDS: accuracy, precision, recall, F1, ROC
    AUC, average precision. MODEL is ours or a LIBLINEAR model.

    Of many classes: these for each class, and their micro and macro means; accuracy is the share of
    rows all whose labels are right.
    """
    from streamtron.foreign import load_any
    from streamtron.scoring import evaluate as evaluate_shards
    from streamtron.summary import evaluation_lines

    loaded = load_any(model)
    with _spread(**where) as spread:
        metrics = evaluate_shards(loaded, shards, ranking=ranking, spread=spread).to_dict()
    _print(metrics, evaluation_lines, as_json)


@streamtron.command(short_help="Prove how far a model is from the best one.")
@click.argument("model", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@click.option(
    "--witness", type=click.Path(), help="Row counts that fit --witness wrote: one reading then."
)
@click.option("--readings", type=click.IntRange(min=1), default=4, show_default=True,
              help="Without a witness: readings at most after the first; from 2 on they look for "
              "an upper bound.")  # fmt: skip
@click.option("--bias-last", is_flag=True, help="Coefficient file: the last number is the bias.")
@setting_options(*options.PROBLEM, "index_base")
@reading_options
@cluster_options
@json_option
@verbose_option
def certify(
    model: str, shards: tuple[str, ...], witness: str | None, readings: int, bias_last: bool,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Prove how far MODEL is from the best possible one on SHARDS, at most.

    MODEL is ours, a LIBLINEAR model or a file of coefficients; the latter two need --C (and --rho).
    Without SHARDS, MODEL is a run: its own shards and witness are taken, which costs one reading
    and tells as well how far the weights that it carried have drifted from its counts.

    --workers make the readings. Without a witness the rows that matter come here to be solved.
    """
    from streamtron.proof import certify as prove
    from streamtron.summary import proof_lines

    wanted, machine = split(given)
    base, run = wanted.pop("index_base", None), None
    if not shards:
        run, model, shards, witness = _of_run(model, witness)
    loaded = _load_model(model, base, bias_last)
    problem = _problem(loaded, wanted, model)
    with _workers(**given) as spread:
        proof = prove(
            loaded, shards, witness=witness, run=run, settings=problem, readings=readings,
            machine=machine, spread=spread,
        )  # fmt: skip
    _print(proof.to_dict(), proof_lines, as_json)


@streamtron.command(short_help="What is in a model, a witness, or shards.")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@click.option("--plan", is_flag=True, help="Shards: only the memory that a fit would need.")
@setting_options("active_set", *options.READING)
@machine_options
@json_option
@verbose_option
def inspect(paths: tuple[str, ...], plan: bool, as_json: bool, **given: Any) -> None:
    """What is in a model, a witness, a MODEL.run directory, or in shards (read once, whole)."""
    from streamtron.inspection import inspect as look
    from streamtron.inspection_text import inspection_lines

    wanted, machine = split(given)
    facts = look(paths, settings_of(wanted), machine)
    if plan and facts["kind"] != "shards":
        raise SettingsError(f"--plan is for shards, and {paths[0]} is a {facts['kind']}.")
    if plan and as_json:
        facts = facts["plan"]
    _print(facts, lambda shown: inspection_lines(shown, plan=plan), as_json)


@streamtron.command(short_help="Shards of one format into the other.")
@shards_argument
@click.argument("destination", type=click.Path(file_okay=False))
@click.option("--format", "format_", required=True, type=click.Choice(["libsvm", "parquet"]),
              help="Of the new shards.")  # fmt: skip
@click.option("--rows-per-shard", type=click.IntRange(min=1), default=1 << 17, show_default=True,
              help="Of each new shard but the last.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier conversion.")
@setting_options(*options.READING[:-2])
@workers_memory_option
@cluster_options
@verbose_option
def convert(
    shards: tuple[str, ...], destination: str, format_: str, rows_per_shard: int, overwrite: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Write SHARDS anew into the directory DESTINATION, in the other format or cut otherwise.

    --workers read SHARDS twice: they count the rows before any of them writes.
    """
    from streamtron.conversion import convert as convert_shards

    settings = settings_of(split(given)[0])
    with _workers(**given) as spread:
        written = convert_shards(
            shards, destination, to=format_, settings=settings,  # type: ignore[arg-type]
            rows_per_shard=rows_per_shard, overwrite=overwrite, spread=spread,
        )  # fmt: skip
    _say_written(written, destination)


@streamtron.command(short_help="Write a text-like corpus of any size.")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--rows", type=int, required=True, help="Rows to write, from 1 on.")
@click.option("--columns", type=int, default=30_000, show_default=True,
              help="To draw from, from 80 on.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True,
              help="Of everything that is drawn, from 0 on.")  # fmt: skip
@click.option("--skip", type=int, default=0, show_default=True,
              help="Leave out so many rows first: what comes behind can be held out.")  # fmt: skip
@click.option("--shards", type=int, default=8, show_default=True,
              help="Files to write, from 1 on.")  # fmt: skip
@click.option("--format", "format_", type=click.Choice(["libsvm", "parquet"]), default="libsvm",
              show_default=True, help="Of the files.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier corpus.")
@workers_memory_option
@cluster_options
@verbose_option
def generate(
    directory: str, rows: int, columns: int, seed: int, skip: int, shards: int, format_: str,
    overwrite: bool, **where: Any,
) -> None:  # fmt: skip
    """Write shards of a text-like corpus to DIRECTORY: Zipf columns, tf-idf, 3 % of labels flipped.

    A prefix of a larger corpus of the same seed and columns equals the smaller one.
    """
    from streamtron.shards.corpus import generate as generate_corpus

    with _spread(**where) as spread:
        written = generate_corpus(
            directory, rows=rows, columns=columns, seed=seed, shards=shards, spread=spread,
            format=format_, first_row=skip, overwrite=overwrite,  # type: ignore[arg-type]
        )  # fmt: skip
    _say_written(written, directory)


@streamtron.command(short_help="The size of a cache; --clear removes it.")
@click.argument("path", metavar="DIRECTORY_OR_MODEL", type=click.Path())
@click.option("--clear", is_flag=True, help="Remove the cache's files, and nothing else.")
@verbose_option
def cache(path: str, clear: bool) -> None:
    """The size of a cache; its files can always be made again from the shards."""
    from streamtron.config import format_size
    from streamtron.shards import cache_files, clear_cache

    directory = _cache_of(path)
    if clear:
        click.echo(f"{directory}: {format_size(clear_cache(directory))} made free")
        return
    files = cache_files(directory)
    size = format_size(sum(os.path.getsize(file) for file in files))
    click.echo(f"{directory}: {size} in {len(files):,} files")


@streamtron.command(short_help="Run the jobs of a TOML file, each after those it needs.")
@click.argument("file", metavar="JOBS.TOML", type=click.Path())
@click.option("--again", is_flag=True, help="Run every job, also those that are done.")
@workers_memory_option
@cluster_options
@verbose_option
def batch(file: str, again: bool, **where: Any) -> int:
    """Run fits, predictions, conversions, … that wait for each other, as JOBS.toml lists them.

    JOBS.status.json says what became of each, JOBS.logs holds what they printed. Called again, it
    runs only what is not done. The exit code is 0, or that of the first job that failed.
    """
    from streamtron.batch import load_batch
    from streamtron.jobs import exit_code, on_workers, one_by_one, run_batch
    from streamtron.summary import batch_verdict, fate_line

    jobs = load_batch(file, _command_line)
    with _workers(**where) as workers:
        if workers is None:
            runner = one_by_one
        else:
            runner = on_workers(workers, workers.memory_each, _with("memory"))
        fates = run_batch(
            jobs, runner, again=again, listen=lambda fate: click.echo(fate_line(asdict(fate)))
        )
    code = exit_code(fates)
    click.echo(batch_verdict(file, [asdict(fate) for fate in fates]), err=code != 0)
    return code


def _command_line(name: str, given: Mapping[str, Any]) -> list[str]:
    if name not in streamtron.commands:
        raise SettingsError(f"there is no command {name}.")
    return options.command_line(streamtron.commands[name], given)


def _with(option: str) -> list[str]:
    """The commands that have an option."""
    return [
        name
        for name, command in streamtron.commands.items()
        if any(parameter.name == option for parameter in command.params)
    ]


# --- what the commands share ---------------------------------------------------------------------


@contextmanager
def _workers(
    *, workers: int | None, scheduler: str | None, dashboard: str | None, memory: int | None,
    **_: Any,
) -> Iterator[Workers | None]:  # fmt: skip
    """The workers that ``cluster_options`` ask for; None if they ask for none."""
    if workers is None and scheduler is None:
        yield None
        return
    from streamtron.cluster import connect
    from streamtron.config import Machine

    with connect(
        workers, scheduler, machine=Machine(memory), dashboard=dashboard, loud=_verbose()
    ) as found:
        yield found


@contextmanager
def _spread(**where: Any) -> Iterator[Spread]:
    """The same, or this process."""
    from streamtron.spread import in_turn

    with _workers(**where) as found:
        yield found or in_turn


@contextmanager
def _attempts(machine: Machine, **where: Any) -> Iterator[Attempts | None]:
    """Who fits a sweep's candidates: the same workers, each told of as it finishes; or None."""
    with _workers(**where) as found:
        if found is None:
            yield None
            return
        from streamtron.attempts import on_workers
        from streamtron.summary import trial_line

        def tell(trial: Trial, fold: str) -> None:
            if _verbose() or sys.stderr.isatty():
                accuracy, gap = trial.metrics["accuracy"], trial.gap
                line = trial_line(trial.settings, fold, accuracy, gap, trial.worker)
                click.echo(line, err=True)

        yield on_workers(found, machine=machine, tell=tell)


def _change(
    change: Callable[..., Outcome],
    run: str,
    shards: tuple[str, ...],
    report: str | None,
    given: Mapping[str, Any],
) -> int:
    """Change a run that has ended, and say what came of it."""
    wanted, machine = split(given)
    if report is not None:
        _check_writable(report)
    from streamtron import once
    from streamtron.inspection import directory_bytes
    from streamtron.progress import progress
    from streamtron.summary import fit_summary, not_certified
    from streamtron.updating import directory_of

    name = given["once"]
    if name is not None and (code := once.begin(directory_of(run), name)) is not None:
        click.echo(f"{run}: has had the change {name} before.")
        return code
    with progress(verbose=_verbose()) as listen:
        outcome = change(run, shards, report=report, machine=machine, listen=listen, **wanted)
    if name is not None:
        once.end(directory_of(run), name, outcome.exit_code)
    cache = machine.cache_dir or os.path.join(directory_of(run), "cache")
    _say(fit_summary(outcome.report, run, cache, directory_bytes(cache)))
    if outcome.exit_code == STOPPED:
        click.echo(not_certified(outcome.report, run), err=True)
    return outcome.exit_code


def _verbose() -> bool:
    return bool(click.get_current_context().meta.get("verbose"))


def _say(lines: Iterable[str]) -> None:
    click.echo("\n".join(lines))


def _say_written(written: Any, where: str) -> None:
    from streamtron.config import format_size

    click.echo(
        f"{where}: {written.rows:,} rows, {written.nonzeros:,} nonzeros, "
        f"{format_size(written.bytes)}"
    )


def _print(values: dict[str, Any], lines: Any, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_finite(values), indent=2, allow_nan=False))
    else:
        _say(lines(values))


def _finite(value: Any) -> Any:
    """JSON has no infinity: None in its place."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_writable(path: str) -> None:
    """Refuse now what would fail after hours."""
    if "://" in path:
        raise SettingsError(f"{path}: outputs are local files. Write here, and copy it there.")
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise MachineError(f"{path}: there is no directory {directory}. Make it first.")
    if not os.access(directory, os.W_OK) or os.path.isdir(path):
        why = "it is a directory" if os.path.isdir(path) else "its directory is read-only"
        raise MachineError(f"{path}: cannot be written, {why}. Name another place.")


def _of_run(path: str, witness: str | None) -> tuple[str, str, tuple[str, ...], str]:
    """Directory, model, shards and witness of a run, named by its directory or its model."""
    from streamtron.fitting import run_directory
    from streamtron.runs import settle
    from streamtron.shards import Manifest
    from streamtron.updating import check_there

    directory = path.rstrip("/") if os.path.isdir(path) else run_directory(path)
    settle(directory)
    model = path if not os.path.isdir(path) else directory.removesuffix(".run")
    manifest = os.path.join(directory, "manifest.json")
    found = witness or os.path.join(directory, "witness")
    if os.path.isfile(manifest):
        check_there(Manifest.load(manifest).shards)
    for needed in (manifest, found):
        if not os.path.isfile(needed):
            raise DataError(
                f"{path}: no shards are given, and there is no {needed} of a run. Name the shards: "
                "certify MODEL SHARDS."
            )
    shards = tuple(shard.path for shard in Manifest.load(manifest).shards)
    return directory, model, shards, found


def _load_model(path: str, base: Any, bias_last: bool) -> LinearModel:
    from streamtron.foreign import load_any

    return load_any(path, index_base=None if base == "auto" else base, bias_last=bias_last)


def _problem(model: LinearModel, wanted: dict[str, Any], path: str) -> Settings | None:
    """The problem that a foreign model is judged by; None = what the model says itself."""
    foreign = "source" in model.settings
    if not wanted and not foreign:
        return None
    if not foreign:
        own = settings_of(dict(model.settings))
        return own.but(**options.one_price(wanted))
    if "C" not in wanted and "delta" not in wanted:
        raise SettingsError(
            f"{path}: another program's model does not say the price of a slack. Give --C as it "
            "was trained with (LIBLINEAR's -c)."
        )
    if "rho" in model.settings:
        wanted.setdefault("rho", model.settings["rho"])
    if "rho" not in wanted:
        raise SettingsError(f"{path}: coefficients do not say --rho. Give it; 0 = no bias.")
    return settings_of(wanted)


def _cache_of(path: str) -> str:
    """The cache that a model, a run directory or a cache directory stands for."""
    from streamtron.fitting import run_directory

    inside = os.path.join(path, "cache")
    if os.path.isdir(path):
        return inside if os.path.isdir(inside) else path
    return os.path.join(run_directory(path), "cache")


# --- the process ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        cast(Any, stream).reconfigure(errors="replace")  # a terminal without ρ shows ?
    code = _run(list(sys.argv[1:] if arguments is None else arguments))
    if any(thread.name.startswith("streamtron-") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a store hangs, a learner is at work: leaving in order would wait for them
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    verbose: dict[str, Any] = {}
    try:
        with signals():
            context = streamtron.make_context("streamtron", arguments)
            verbose = context.meta  # shared with the command's own context
            with context:
                code = streamtron.invoke(context)
            sys.stdout.flush()
            return code or 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        return _complain(_usage(error), error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return BROKEN_PIPE
    except BaseException as error:
        if verbose.get("verbose") and not isinstance(error, Signalled):
            traceback.print_exc()
        return _complain(*_sentence(error))


def _usage(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "streamtron"
    words = error.format_message()
    return f"{words.rstrip('.')}. See {command} --help."


def _sentence(error: BaseException) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if isinstance(error, StreamtronError):
        return str(error), error.exit_code
    if isinstance(error, Signalled):
        name = signal.Signals(error.number).name
        more = f" Go on from {error.run} with --resume." if error.run else ""
        return f"stopped by {name}; nothing half-written is left.{more}", 128 + error.number
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}.", MachineError.exit_code
    if isinstance(error, MemoryError):
        return "out of memory. Give a smaller --active-set.", MachineError.exit_code
    return (
        f"an error that should not happen ({type(error).__name__}: {error}). "
        "Run again with -v and report the traceback.",
        1,
    )


def _complain(sentence: str, code: int) -> int:
    click.echo(sentence, err=True)
    return code


if __name__ == "__main__":
    main()
