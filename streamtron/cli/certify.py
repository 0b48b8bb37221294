"""The command ``certify``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files, executor_of
from streamtron.cli.summary import bounds, certificate_lines, zero_lines
from streamtron.cli.terminal import class_table, is_verbose, print_values
from streamtron.core.config import PLACES, PROBLEM, REGRESSION, Settings
from streamtron.core.text import Lines, aligned, column_lines, number, up, within

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel


@options.command()
@click.argument("model", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@click.option("--witness", type=click.Path(), help="Witness of the fit; one reading is enough.")
@options.flag("--accept-exclusions", help="Accept a --witness that leaves out forgotten rows.")
@options.number(
    "--readings", least=0, default=4, help="Readings after the first without a witness [4]."
)
@options.flag("--bias-last", help="The last number of a coefficient file is the bias.")
@options.setting_options(*PROBLEM, default="the model's")
@options.setting_options("index_base", *PLACES)
@options.run_dir_option
@options.reading_options
@options.cluster_options
@options.log_option
@options.json_option
def certify(model: str, shards: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Prove how far MODEL is, at most, from the best possible model on SHARDS.

    MODEL is a streamtron model, a LIBLINEAR model or a file of coefficients; the latter two need
    --C (and --rho), and take --label, --features and the like, as fit does. Without SHARDS, MODEL
    is a run, which is certified in one reading with its own shards and witness; --run-dir says
    where it is, if not beside MODEL.

    The figures are of the weights as they are, at their scale.

    The shards are prepared first, in --cache-dir or for a while, unless the run has a cache of
    them. Workers scan rows that do not fit in memory. Without a witness, this process trains on
    those with a slack.
    """
    bias_last, log = given["bias_last"], given["log"]
    read = [*shards, given["witness"], given["scheduler"]]
    check_files({"log": log}, read, runs=filter(None, [model, given["run_dir"]]))
    from streamtron.cli.progress import progress
    from streamtron.model.import_model import load_any
    from streamtron.runs.certify import certify as prove
    from streamtron.runs.evaluate import columns_not_used
    from streamtron.runs.inputs import with_places

    settings, machine = options.split(given)
    base = settings.pop("index_base", "auto")
    places = {name: settings.pop(name) for name in PLACES if name in settings}
    loaded: LinearModel | str = model
    if shards or bias_last or base != "auto" or places:
        numbers = settings.get("loss") in REGRESSION and (bias_last or base != "auto")
        loaded = load_any(
            model,
            index_base=None if base == "auto" else base,
            bias_last=bias_last,
            loss=settings["loss"] if numbers else None,
        )
        if places:
            loaded = with_places(loaded, Settings.from_dict(places))
    with progress(log) as listen, executor_of(**given) as executor:
        proof = prove(
            loaded,
            shards or None,
            run=machine.run_dir,
            machine=machine,
            executor=executor,
            listen=listen,
            **{name: given[name] for name in ("witness", "readings", "accept_exclusions")},
            **settings,
        )
    values = proof.to_dict() | (columns_not_used(loaded, shards) if shards else {})
    print_values(values, _lines, as_json)


def _lines(proof: Mapping[str, Any]) -> Lines:
    """Yield the proof of the weights."""
    certificate, learners = proof["certificate"], proof.get("learners")
    readings = round(proof["readings"], 3)
    yield from aligned([("rows", certificate["rows_scanned"]), ("readings", readings)])
    problem = proof["problem"].items()
    yield f"{'problem':<18} {', '.join(f'{name} {number(value)}' for name, value in problem)}"
    yield from column_lines(proof)
    yield from certificate_lines(certificate, many=bool(learners))
    yield from zero_lines(learners or [proof])
    if is_verbose():
        yield from _of_weights(learners or [proof])
    if learners:
        yield ""
        columns = bounds([learner["certificate"] for learner in learners])
        yield from class_table([learner["label"] for learner in learners], columns)
    elif (gap := certificate["relative_duality_gap"]) < 1.0:
        yield f"{within(gap)}, proven on these rows"
    if excluded := certificate["rows_excluded"]:
        yield (
            f"{excluded:,} row{'s' * (excluded != 1)} of the shards left out, because the witness "
            "excludes them as forgotten: nothing is proven of them."
        )


def _of_weights(proofs: Sequence[Mapping[str, Any]]) -> Lines:
    """Yield the decision radius of one learner; and, where known, the largest distance of the
    weights from the weights that the dual variables make."""
    if len(proofs) == 1:
        radius = proofs[0]["decision_radius"]
        shown = "none proven" if radius == math.inf else up(radius)
        yield f"{'decision radius':<18} {shown:>13}"
    distances = [proof["distance"] for proof in proofs]
    if None not in distances:
        what = "of the model's weights from the weights that the dual variables make"
        yield f"{'distance':<18} {number(max(distances)):>13}  {what}"
