"""The command ``generate``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import say_written

_whole = partial(click.option, type=options.whole_number(), show_default=True)


def _choice(name: str, *values: str, help: str) -> Callable[[Any], Any]:
    kind = click.Choice(values)
    return click.option(name, type=kind, default=values[0], show_default=True, help=help)


@options.command()
@click.argument("directory", type=click.Path(file_okay=False))
@_whole("--rows", required=True, help="Rows, at least 1.")
@_choice("--kind", "text", "dense", "clicks", help="Kind of the rows.")
@_whole("--columns", help="Columns [text 30000, dense 50, clicks 1000000].")
@_whole("--seed", default=0, help="Seed of all that is drawn; each is another problem.")
@_whole(
    "--skip", "first_row", default=0, help="Rows to leave out, so that later ones can be held out."
)
@_whole("--shards", default=8, help="Files to write, at least 1.")
@_choice("--format", "libsvm", "parquet", help="Format of the files.")
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier corpus.")
def generate(directory: str, **how: Any) -> None:
    """Write shards of a corpus to DIRECTORY.

    text: Zipf columns, tf-idf, 3 % of labels flipped. dense: correlated columns, a few outliers, 3
    % of labels flipped. clicks: 39 nonzeros a row, hashed, as in click logs. A prefix of a larger
    corpus of the same seed and columns equals the smaller one.
    """
    from streamtron.data.writers.corpus import generate as generate_corpus

    say_written(generate_corpus(directory, **how), directory)
