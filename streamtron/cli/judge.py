"""Commands that use, judge and show what is there: ``predict``, ``evaluate``, ``certify``,
``inspect``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_writable, executor_of, print_values, workers_of
from streamtron.cli.options import (
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
from streamtron.core.errors import DataError, SettingsError

if TYPE_CHECKING:
    from streamtron.core.config import Settings
    from streamtron.model.linear_model import LinearModel


@click.command(short_help="Label and decision of every row.")
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
    from streamtron.model.import_model import load_any
    from streamtron.runs.evaluate import write_predictions
    from streamtron.runs.outputs import check_outputs

    if output != "-":
        check_writable(output)
        check_outputs({"output": output}, [model])
    loaded = load_any(model)
    with executor_of(**where) as executor:
        to = sys.stdout.buffer if output == "-" else output
        written = write_predictions(loaded, shards, to, executor=executor)
    if output == "-":
        sys.stdout.buffer.flush()  # fails where the words after it would not
    beyond = ""
    if written.beyond:
        beyond = f"; {written.beyond:,} values in columns beyond the model's width weigh 0"
    click.echo(f"{written.rows:,} rows{beyond}", err=True)


@click.command(short_help="Accuracy, ROC AUC, … on labelled shards.")
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
    from streamtron.cli.summary.evaluation import evaluation_lines
    from streamtron.model.import_model import load_any
    from streamtron.runs.evaluate import evaluate as evaluate_shards

    loaded = load_any(model)
    with executor_of(**where) as executor:
        metrics = evaluate_shards(loaded, shards, ranking=ranking, executor=executor).to_dict()
    print_values(metrics, evaluation_lines, as_json)


@click.command(short_help="Prove how far a model is from the best one.")
@click.argument("model", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@click.option(
    "--witness", type=click.Path(), help="Row counts that fit --witness wrote: one reading then."
)
@click.option(
    "--accept-exclusions", is_flag=True, help="Take a --witness that leaves rows out as forgotten."
)
@click.option("--readings", type=options.whole_number(1), default=4, show_default=True,
              help="Without a witness: readings at most after the first; from 2 on they look for "
              "an upper bound.")  # fmt: skip
@click.option("--bias-last", is_flag=True, help="Coefficient file: the last number is the bias.")
@setting_options(*options.PROBLEM, "index_base")
@reading_options
@cluster_options
@json_option
@verbose_option
def certify(
    model: str, shards: tuple[str, ...], witness: str | None, accept_exclusions: bool,
    readings: int, bias_last: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Prove how far MODEL is from the best possible one on SHARDS, at most.

    MODEL is ours, a LIBLINEAR model or a file of coefficients; the latter two need --C (and --rho).
    Without SHARDS, MODEL is a run: its own shards and witness are taken, which costs one reading
    and tells as well how far the weights that it carried have drifted from its counts.

    --workers make the readings. Without a witness the rows that matter come here to be solved.
    """
    from streamtron.cli.summary.proof import proof_lines
    from streamtron.runs.certify import certify as prove

    wanted, machine = split(given)
    base, run = wanted.pop("index_base", None), None
    by_hand = witness is not None
    if not shards:
        run, model, shards, witness = _of_run(model, witness)
    loaded = _load_model(model, base, bias_last)
    problem = _problem(loaded, wanted, model)
    with workers_of(**given) as executor:
        proof = prove(
            loaded, shards, witness=witness, run=run, settings=problem, readings=readings,
            accept_exclusions=accept_exclusions or not by_hand, machine=machine, executor=executor,
        )  # fmt: skip
    print_values(proof.to_dict(), proof_lines, as_json)


@click.command(short_help="What is in a model, a witness, or shards.")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@click.option("--plan", is_flag=True, help="Shards: only the memory that a fit would need.")
@setting_options("active_set", *options.READING)
@machine_options
@json_option
@verbose_option
def inspect(paths: tuple[str, ...], plan: bool, as_json: bool, **given: Any) -> None:
    """What is in a model, a witness, a MODEL.run directory, or in shards (read once, whole)."""
    from streamtron.cli.summary.inspection import inspection_lines
    from streamtron.runs.inspect import inspect as look

    wanted, machine = split(given)
    facts = look(paths, settings_of(wanted), machine)
    if plan and facts["kind"] != "shards":
        raise SettingsError(f"--plan is for shards, and {paths[0]} is a {facts['kind']}.")
    if plan and as_json:
        facts = facts["plan"]
    print_values(facts, lambda shown: inspection_lines(shown, plan=plan), as_json)


def _of_run(path: str, witness: str | None) -> tuple[str, str, tuple[str, ...], str]:
    """Directory, model, shards and witness of a run, named by its directory or its model."""
    from streamtron.data import Manifest
    from streamtron.runs.ended import check_settled
    from streamtron.runs.fit import run_directory
    from streamtron.runs.update import check_there

    directory = path.rstrip("/") if os.path.isdir(path) else run_directory(path)
    check_settled(directory)
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
    from streamtron.model.import_model import load_any

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
