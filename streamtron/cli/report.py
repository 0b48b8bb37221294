"""The command ``report``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files, executor_of


@options.command()
@click.argument("run", type=click.Path())
@options.written("-o", "--output", help="File for the page, .html.", required=True)
@options.several(
    "--valid",
    metavar="SHARDS|20%",
    help="Labelled shards held out, or the share that the fit held out: adds metrics, the "
    "confusion matrix, margins and curves.",
)
@options.run_dir_option
@options.distributed_options
def report(run: str, output: str, **given: Any) -> None:
    """Write a page about RUN, a MODEL or its MODEL.run: one HTML file that needs no network.

    It begins with how good the model is on held-out rows, and how near to the best training
    objective. Then come margins, curves, what speaks for each class, the proof, settings and data;
    of a model that sweep wrote also the candidates.
    """
    how = {name: given[name] for name in ("valid", "run_dir")}
    check_files({"page": output}, [*given["valid"], given["scheduler"]], runs=[run])
    from streamtron.runs.report_page import report as write

    with executor_of(**given) as executor:
        write(run, output, executor=executor, **how)
