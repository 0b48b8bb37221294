"""The commands ``update`` and ``forget``, which change the run of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files, report_fit, training
from streamtron.core.text import MANY, Lines, and_more

if TYPE_CHECKING:
    from streamtron.runs.report import Outcome


@options.command()
@click.argument("run", type=click.Path())
@options.shards_argument
@options.flag(
    "--mirror",
    help="Make SHARDS the shards of the run: its others go out, in the same training.",
)
@options.number("--window", help="Make the last N of SHARDS, in their order, those of the run.")
@options.flag("--again", help="Take in SHARDS that were forgotten, too, and all their rows.")
@options.time_limit_option
@options.setting_options("tol", "max_epochs", "allow_duplicate")
@options.change_options
def update(run: str, shards: tuple[str, ...], **given: Any) -> int:
    """Add SHARDS to the run of a model, RUN, and train to a certificate over all its rows.

    The run stays as it was until the new model is complete. SHARDS are read as the run's own were.
    Shards that the run has already, under any name, are skipped, so a second call changes nothing.
    Forgotten shards stay forgotten.
    """
    from streamtron.runs.change import update as update_run

    how = {name: given[name] for name in ("mirror", "window", "again", "time_limit")}
    return _change_run(partial(update_run, **how), run, shards, given)


@options.command()
@click.argument("run", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@click.option(
    "--key", metavar="COLUMN", help="Only rows whose COLUMN holds a --value (not in libsvm text)."
)
@click.option("--value", multiple=True, help="Value to look for in --key; can be repeated.")
@click.option(
    "--rows",
    type=click.Path(dir_okay=False),
    help="Only the rows in this CSV file with columns shard,row; rows count from 0.",
)
@options.setting_options("tol", "max_epochs")
@options.change_options
def forget(run: str, shards: tuple[str, ...], **given: Any) -> int:
    """Remove SHARDS, or some of their rows, from the run of a model, RUN, and train to a
    certificate over the remaining rows.

    SHARDS are names or paths, as inspect RUN lists them, or directories of them. No byte of
    forgotten rows stays in the model or in the run's directory, except for facts that the
    transformer took from all rows, as names of categories, words and counts: a fit without these
    rows makes them anew. The files of whole shards may be deleted already; where a shard still
    holds forgotten rows, the run leaves them out from now on. Names that are not in the run are
    listed and are no error, so a second call changes nothing.
    """
    from streamtron.runs.change import forget as forget_rows

    how = {"key": given["key"], "values": given["value"], "rows": given["rows"]}
    return _change_run(partial(forget_rows, **how), run, shards, given)


def _change_run(
    change: Callable[..., Outcome], run: str, shards: tuple[str, ...], given: Mapping[str, Any]
) -> int:
    settings, machine = options.split(given)
    from streamtron.runs.finished_run import locate, model_of

    place = locate(run, machine.run_dir)
    check_files(
        {"report": given["report"], "log": given["log"]},
        [place.model, *shards, given.get("rows"), given["scheduler"]],
        runs=[place.directory],
        directories={"run directory": place.directory},
        cache=machine.cache_dir,
    )
    with training(given, machine) as how:
        outcome = change(run, shards, report=given["report"], **how, **settings)
    machine = replace(machine, run_dir=str(place.directory))
    return report_fit(outcome, model_of(run), machine, _changes(outcome.report))


def _changes(report: Mapping[str, Any]) -> Lines:
    forgotten = report.get("forgotten", {})
    if forgotten or report.get("not_in_run"):
        count = sum(forgotten.values())
        yield f"{count:,} row{'s' * (count != 1)} forgotten by this call"
    if staying := report.get("stays_forgotten"):
        yield f"forgotten before, and skipped: {len(staying):,} of the shards (see --again)"
    words = {
        "added": "comes in",
        "already_in_run": "in the run already; it is skipped",
        "not_in_run": "not in the run; there is nothing to forget",
    }
    lists = [[f"{name}: {n:,} row{'s' * (n != 1)} forgotten" for name, n in forgotten.items()]]
    lists += [[f"{shard}: {what}" for shard in report.get(key, ())] for key, what in words.items()]
    for sentences in lists:
        yield from (*sentences[:MANY], *and_more(sentences))
