"""The command ``update``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import change_run


@click.command(short_help="Add shards to the run of a model.")
@click.argument("run", type=click.Path())
@options.shards_argument
@options.report_option
@options.log_option
@options.setting_options("tol", "max_epochs", "allow_duplicate")
@options.run_dir_option
@options.machine_options
@options.cluster_options
@options.verbose_option
def update(
    run: str, shards: tuple[str, ...], report: str | None, log: str | None, **given: Any
) -> int:  # fmt: skip
    """Add SHARDS to the run of a model, RUN, and train to a certificate over all its rows.

    The run stays as it was until the new model is complete. SHARDS are read as the run's own were.
    Those that the run has already, under any name, are skipped, so a second call changes nothing.
    """
    from streamtron.runs.update import update as update_run

    return change_run(update_run, run, shards, report, log, given)
