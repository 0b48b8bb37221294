"""The command ``certify``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import print_values, workers_of
from streamtron.core.errors import DataError, SettingsError

if TYPE_CHECKING:
    from streamtron.core.config import Settings
    from streamtron.model.linear_model import LinearModel


@click.command(short_help="Prove how far a model is from the best one.")
@click.argument("model", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@click.option("--witness", type=click.Path(),
              help="Witness that fit --witness wrote; one reading is enough then.")  # fmt: skip
@click.option("--accept-exclusions", is_flag=True,
              help="Accept a --witness that leaves out forgotten rows.")  # fmt: skip
@click.option("--readings", type=options.whole_number(1), default=4, show_default=True,
              help="Without a witness: readings after the first, at most; an upper bound needs "
              "at least 2.")  # fmt: skip
@click.option("--bias-last", is_flag=True,
              help="The last number of a coefficient file is the bias.")  # fmt: skip
@options.setting_options(*options.PROBLEM, "index_base")
@options.reading_options
@options.cluster_options
@options.json_option
@options.verbose_option
def certify(
    model: str, shards: tuple[str, ...], witness: str | None, accept_exclusions: bool,
    readings: int, bias_last: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Prove how far MODEL is, at most, from the best possible model on SHARDS.

    MODEL is a streamtron model, a LIBLINEAR model or a file of coefficients; the latter two need
    --C (and --rho). Without SHARDS, MODEL is a run, which is certified in one reading with its own
    shards and witness, and the drift of its running weights from its counts is printed too.

    Workers make the readings. Without a witness, this process solves the rows with a slack.
    """
    from streamtron.cli.summary.proof import proof_lines
    from streamtron.runs.certify import certify as prove

    wanted, machine = options.split(given)
    base, run = wanted.pop("index_base", None), None
    witness_given = witness is not None
    if not shards:
        run, model, shards, witness = run_inputs(model, witness)
    loaded = _load_model(model, base, bias_last)
    problem = _problem(loaded, wanted, model)
    with workers_of(**given) as executor:
        proof = prove(
            loaded, shards, witness=witness, run=run, settings=problem, readings=readings,
            accept_exclusions=accept_exclusions or not witness_given, machine=machine,
            executor=executor,
        )  # fmt: skip
    print_values(proof.to_dict(), proof_lines, as_json)


def run_inputs(path: str, witness: str | None = None) -> tuple[str, str, tuple[str, ...], str]:
    """Return directory, model, shards and witness of a run, given its directory or its model.

    Raises
    ------
    DataError : there is no such run, or a change of it was interrupted.
    """
    from streamtron.data import Manifest
    from streamtron.runs.directory import run_directory
    from streamtron.runs.finished import check_recovered, check_shards_exist

    directory = path.rstrip("/") if os.path.isdir(path) else run_directory(path)
    check_recovered(directory)
    model = path if not os.path.isdir(path) else directory.removesuffix(".run")
    manifest = os.path.join(directory, "manifest.json")
    found = witness or os.path.join(directory, "witness")
    if os.path.isfile(manifest):
        check_shards_exist(Manifest.load(manifest).shards)
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
    """Return the problem that an imported model is certified for; None = the model's own."""
    imported = "source" in model.settings
    if not wanted and not imported:
        return None
    if not imported:
        own = options.settings_of(dict(model.settings))
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
    return options.settings_of(wanted)
