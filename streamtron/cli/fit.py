"""The command ``fit``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_writable, is_verbose, report_fit


@click.command(short_help="Train on shards and write a certified model.")
@options.shards_argument
@click.option("--model", required=True, type=click.Path(dir_okay=False),
              help="File for the model.")  # fmt: skip
@click.option("--report", type=click.Path(dir_okay=False), help="File for a JSON report.")
@click.option("--witness", type=click.Path(dir_okay=False),
              help="File for the witness, with which certify needs one reading.")  # fmt: skip
@options.config_option
@options.run_options
@options.setting_options()
@options.machine_options
@options.verbose_option
def fit(
    shards: tuple[str, ...], model: str, report: str | None, witness: str | None,
    config: str | None, resume: bool, overwrite: bool, **given: Any,
) -> int:  # fmt: skip
    """Train on SHARDS (files, directories, globs) and write a certified model.

    Minimises ½‖w‖² + C Σ max(0, 1 − margin)², LIBLINEAR's default problem, until the relative
    duality gap is proven to be within --tol.
    """
    wanted, machine = options.split(given)
    settings = options.settings_of(wanted, config)
    check_writable(model, report, witness)
    from streamtron.cli.progress import progress
    from streamtron.runs.fit import run
    from streamtron.runs.outputs import check_outputs

    written = {"model": model, "report": report, "witness": witness}
    check_outputs(written, filter(None, [config]))
    with progress(verbose=is_verbose()) as listen:
        outcome = run(
            shards, settings, model=model, report=report, witness=witness, machine=machine,
            resume=resume, overwrite=overwrite, listen=listen,
        )  # fmt: skip
    return report_fit(outcome, model, machine)
