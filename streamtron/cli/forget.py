"""The command ``forget``."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import change_run


@click.command(short_help="Remove shards or rows from the run of a model.")
@click.argument("run", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@click.option("--key", metavar="COLUMN",
              help="Only rows whose COLUMN holds a --value (Parquet, Arrow).")  # fmt: skip
@click.option("--value", multiple=True, help="Value to look for in --key; can be repeated.")
@click.option("--rows", type=click.Path(dir_okay=False),
              help="Only the rows in this CSV file with columns shard,row; rows count from "
              "0.")  # fmt: skip
@options.report_option
@options.log_option
@options.setting_options("tol", "max_epochs")
@options.run_dir_option
@options.machine_options
@options.cluster_options
@options.verbose_option
def forget(
    run: str, shards: tuple[str, ...], key: str | None, value: tuple[str, ...], rows: str | None,
    report: str | None, log: str | None, **given: Any,
) -> int:  # fmt: skip
    """Remove SHARDS, or some of their rows, from the run of a model, RUN, and train to a
    certificate over the remaining rows.

    SHARDS are names or paths, as inspect RUN lists them, or directories of them. No byte of what is
    forgotten stays in the model or in the run's directory. The files of whole shards may be deleted
    already; where a shard still holds forgotten rows, the run leaves them out from now on. What is
    not in the run is listed and is no error, so a second call changes nothing.
    """
    from streamtron.runs.forget import forget as forget_rows

    change = partial(forget_rows, key=key, values=value, rows=rows)
    return change_run(change, run, shards, report, log, {**given, "rows": rows})
