"""Commands that change a run which has ended: ``update``, ``forget``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli.common import STOPPED, check_writable, is_verbose, say
from streamtron.cli.options import (
    machine_options,
    run_dir_option,
    setting_options,
    shards_argument,
    split,
    verbose_option,
)

if TYPE_CHECKING:
    from streamtron.runs.results import Outcome


@click.command(short_help="Add shards to a run.")
@click.argument("run", type=click.Path())
@shards_argument
@click.option("--report", type=click.Path(dir_okay=False), help="Write a JSON report there.")
@setting_options("tol", "max_epochs", "allow_duplicate")
@run_dir_option
@machine_options
@verbose_option
def update(run: str, shards: tuple[str, ...], report: str | None, **given: Any) -> int:
    """Add SHARDS to the run of a model, RUN, and go on from there to a certificate over all rows.

    The run is as it was until the new model is in place. SHARDS are read as the run's own were;
    those that the run has already, whatever they are called now, are skipped: calling this twice is
    calling it once.
    """
    from streamtron.runs.update import update as update_run

    return _change(update_run, run, shards, report, given)


@click.command(short_help="Take shards, or rows of them, out of a run.")
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
@setting_options("tol", "max_epochs")
@run_dir_option
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
    What is not in the run is named, and is no error: calling this twice is calling it once.
    """
    from streamtron.runs.forget import forget as forget_rows

    change = partial(forget_rows, key=key, values=value, rows=rows, replaced_by=replaced_by)
    return _change(change, run, shards, report, given)


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
        check_writable(report)
    from streamtron.cli.progress import progress
    from streamtron.cli.summary.fit import fit_summary, not_certified, nothing_done
    from streamtron.runs.ended import locate
    from streamtron.runs.inspect import directory_bytes

    with progress(verbose=is_verbose()) as listen:
        outcome = change(run, shards, report=report, machine=machine, listen=listen, **wanted)
    cache = machine.cache_dir or str(locate(run, machine.run_dir).directory / "cache")
    done = fit_summary(outcome.report, run, cache, directory_bytes(cache))
    say([*nothing_done(outcome.report), *done])
    if outcome.exit_code == STOPPED:
        click.echo(not_certified(outcome.report, run), err=True)
    return outcome.exit_code
