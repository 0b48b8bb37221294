"""The command ``fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import STOPPED, check_files, parts_of, report_fit, workers_of
from streamtron.cli.terminal import complain, is_verbose
from streamtron.core.errors import SettingsError
from streamtron.core.text import digits, down

if TYPE_CHECKING:
    from streamtron.runs.fit import Certain


def _share(text: str) -> float:
    """Read ``certain=0.999``."""
    name, _, share = text.partition("=")
    if name != "certain":
        raise ValueError
    return float(digits(share))


@click.command(short_help="Train on shards and write a certified model.")
@options.shards_argument
@click.option("--model", required=True, type=click.Path(dir_okay=False),
              help="File for the model.")  # fmt: skip
@click.option("--report", type=click.Path(dir_okay=False), help="File for a JSON report.")
@click.option("--witness", type=click.Path(dir_okay=False),
              help="File for the witness, with which certify needs one reading.")  # fmt: skip
@click.option("--until",
              type=options.Parsed("certain=SHARE", _share, "certain=SHARE, as in certain=0.999"),
              help="Tighten --tol until this share of the labels of --valid is certain, as in "
              "certain=0.999: the best possible model labels them so.")  # fmt: skip
@click.option("--valid", multiple=True, type=click.Path(),
              help="Shards held out, for --until; can be repeated.")  # fmt: skip
@click.option("--calibrate", multiple=True, type=click.Path(),
              help="Shards held out, on which the model's decisions become probabilities; can be "
              "repeated [no probabilities].")  # fmt: skip
@click.option("--calibration", default="sigmoid", show_default=True,
              type=click.Choice(["sigmoid", "isotonic"]),
              help="Platt's sigmoid, or isotonic regression, which wants thousands of "
              "rows.")  # fmt: skip
@options.log_option
@options.config_option
@options.run_options
@options.setting_options()
@options.machine_options
@options.cluster_options
@options.verbose_option
def fit(
    shards: tuple[str, ...], model: str, report: str | None, witness: str | None,
    until: float | None, valid: tuple[str, ...], calibrate: tuple[str, ...], calibration: Any,
    log: str | None, config: str | None, resume: bool, overwrite: bool, **given: Any,
) -> int:  # fmt: skip
    """Train on SHARDS (files, directories, globs) and write a certified model.

    Minimises ½‖w‖² + C Σ max(0, 1 − margin)², LIBLINEAR's default problem, or that of another
    --loss, until the relative duality gap is proven to be within --tol.
    """
    names, machine = options.split(given)
    settings = options.settings_of(names, config)
    if (until is None) != (not valid):
        raise SettingsError("--until and --valid go together. Give both, or none.")
    from streamtron.cli.progress import progress
    from streamtron.data import find_shards
    from streamtron.runs.directory import run_directory
    from streamtron.runs.fit import fit_until_certain, run

    files = {"model": model, "report": report, "witness": witness}
    directories = {"run directory": machine.run_dir or run_directory(model)}
    read = [*shards, *calibrate, *valid, config, settings.vocabulary, given["scheduler"]]
    check_files({**files, "log": log}, read, directories=directories, cache=machine.cache_dir)
    for held_out in filter(None, (calibrate, valid)):
        find_shards(held_out)  # before hours of work
    certain = None
    with workers_of(**given) as workers, progress(verbose=is_verbose(), log=log) as listen:
        how: Any = {
            **files, "machine": machine, "resume": resume, "overwrite": overwrite,
            "open_parts": parts_of(workers), "listen": listen,
        }  # fmt: skip
        if until is None:
            outcome = run(shards, settings, **how)
        else:
            outcome, certain = fit_until_certain(shards, settings, until, valid, **how)
    code = report_fit(outcome, model, machine)
    if calibrate:
        from streamtron.runs.calibrate import calibrate as calibrate_model

        calibrate_model(outcome.model, calibrate, method=calibration).save(model)
    return code if certain is None else _report_certain(certain, until or 0.0, code)


def _report_certain(certain: Certain, until: float, code: int) -> int:
    """Print how many labels are certain, and return the exit code."""
    click.echo(f"{'certain labels':<18} {certain.certain:,} of {certain.rows:,}")
    if certain.share >= until or code:
        return code
    complain(
        f"{down(certain.share, 4)} of the labels are certain, wanted {until:g}: rounding hides a "
        "smaller gap. The model is written."
    )
    return STOPPED
