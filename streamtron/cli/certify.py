"""The command ``certify``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of, is_verbose, print_values, wrapped
from streamtron.cli.summary import bounds, certificate_lines
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.text import Lines, aligned, class_table, number, up

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
    shards and witness; -v prints the drift of its running weights from its counts too.

    Workers make the readings. Without a witness, this process solves the rows with a slack.
    """
    from streamtron.model.import_model import load_any
    from streamtron.runs.certify import certify as prove

    wanted, machine = options.split(given)
    base, run = wanted.pop("index_base", "auto"), None
    witness_given = witness is not None
    if not shards:
        run, model, shards, witness = run_inputs(model, witness)
    loaded = load_any(model, index_base=None if base == "auto" else base, bias_last=bias_last)
    problem = _problem(loaded, wanted, model)
    with executor_of(**given) as executor:
        proof = prove(
            loaded, shards, witness=witness, run=run, settings=problem, readings=readings,
            accept_exclusions=accept_exclusions or not witness_given, machine=machine,
            executor=executor,
        )  # fmt: skip
    print_values(proof.to_dict(), _lines, as_json)


def run_inputs(path: str, witness: str | None = None) -> tuple[str, str, tuple[str, ...], str]:
    """Return directory, model, shards and witness of a run, given its directory or its model, or
    refuse by a DataError if there is no such run, or a change of it was interrupted."""
    from streamtron.data import Manifest
    from streamtron.runs.directory import run_directory
    from streamtron.runs.finished import check_recovered, check_shards_exist

    is_run = os.path.isdir(path)
    directory = path.rstrip("/") if is_run else run_directory(path)
    check_recovered(directory)
    manifest = os.path.join(directory, "manifest.json")
    witness = witness or os.path.join(directory, "witness")
    for needed in (manifest, witness):
        if not os.path.isfile(needed):
            raise DataError(
                f"{path}: no shards are given, and there is no {needed} of a run. Name the shards: "
                "certify MODEL SHARDS."
            )
    records = Manifest.load(manifest).shards
    check_shards_exist(records)
    model = directory.removesuffix(".run") if is_run else path
    return directory, model, tuple(shard.path for shard in records), witness


def _problem(model: LinearModel, wanted: dict[str, Any], path: str) -> Settings | None:
    """Return the problem that an imported model is certified for; None = the model's own."""
    if "source" not in model.settings:
        own = options.settings_of(dict(model.settings)) if wanted else None
        return own and own.but(**options.one_price(wanted))
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


def _lines(proof: Mapping[str, Any]) -> Lines:
    """Yield the certificate, and with ``-v`` what holds for the weights."""
    certificate, learners = proof["certificate"], proof.get("learners")
    yield from aligned(
        [("rows", certificate["rows_scanned"]), ("readings", round(proof["readings"], 3))]
    )
    if learners:
        yield from aligned([("largest gap", float(certificate["relative_duality_gap"]))])
    else:
        yield from certificate_lines(certificate)
    if is_verbose():
        yield from _of_weights(learners or [proof])
    if learners:
        scales = [f"{each['weights_scale']:.4g}" for each in learners]
        yield ""
        yield from class_table(
            [each["label"] for each in learners],
            bounds([each["certificate"] for each in learners]),
            ("scale of weights", scales) if is_verbose() else ("", ()),
        )
    else:
        soft = certificate["primal_margin"] != certificate["directional_margin"]
        yield wrapped(
            f"No linear classifier on these rows has a {'soft ' if soft else ''}margin above the "
            "upper bound; this one's is at least the lower bound."
            + (" The soft margin is 1/√(2 P), P the objective." if soft else "")
        )
    if excluded := certificate["rows_excluded"]:
        yield wrapped(
            f"{excluded:,} rows of the shards were left out, because the witness excludes them as "
            "forgotten: nothing is proven of them."
        )


def _of_weights(proofs: Sequence[Mapping[str, Any]]) -> Lines:
    """Yield scale and decision radius of one learner; the largest distances of the weights from
    those that the counts give, where known."""
    if len(proofs) == 1:
        yield from aligned([("scale of weights", proofs[0]["weights_scale"])])
        yield f"{'decision radius':<18} {up(proofs[0]['decision_radius']):>13}"
    for name, whose, values in (
        ("distance", "the model's", [each["distance"] for each in proofs]),
        ("drift", "the running", [each["certificate"]["drift"] for each in proofs]),
    ):
        if None not in values:
            what = f"of {whose} weights from those that the counts give"
            yield f"{name:<18} {number(max(values)):>13}  {what}"
