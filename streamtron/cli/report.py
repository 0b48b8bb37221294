"""The command ``report``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files, executor_of


@options.command()
@click.argument("run", type=options.Read())
@click.option(
    "-o",
    "--output",
    required=True,
    type=options.Written(dir_okay=False),
    help="File for the page, .html.",
)
@click.option(
    "--valid",
    multiple=True,
    type=options.Read(),
    metavar="SHARDS|20%",
    help="Labelled shards held out, or the share that the fit held out: adds metrics, "
    "the confusion matrix, margins and curves; shards can be repeated.",
)
@click.option(
    "--no-margins", is_flag=True, help="Do not read the run's shards for the margins of their rows."
)
@options.names_option
@options.run_dir_option
@options.distributed_options
def report(
    run: str,
    output: str,
    valid: tuple[str, ...],
    no_margins: bool,
    names: tuple[str, ...],
    run_dir: str | None,
    **where: Any,
) -> None:
    """Write a page about RUN, a MODEL or its MODEL.run: one HTML file that needs no network.

    It begins with how good the model is on held-out rows, and how near to the best training
    objective. Then come margins, curves, what speaks for each class, the proof, settings and data;
    of a model that sweep wrote also the candidates.
    """
    check_files({"page": output}, [*valid, *names, where["scheduler"]], runs=[run])
    from streamtron.runs.report_page import report as write

    with executor_of(**where) as executor:
        write(
            run,
            output,
            valid=valid,
            margins=not no_margins,
            names=names,
            run_dir=run_dir,
            executor=executor,
        )
