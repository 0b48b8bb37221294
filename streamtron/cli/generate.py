"""The command ``generate``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import say_written

KINDS = click.Choice(["text", "dense", "clicks"])


@options.command()
@click.argument("directory", type=click.Path(file_okay=False))
@options.number("--rows", help="Rows.", required=True)
@click.option("--kind", help="Kind of the rows.", type=KINDS, default="text", show_default=True)
@options.number("--columns", help="Columns [text 30000, dense 50, clicks 1000000].")
@options.number("--seed", help="Seed of all that is drawn [0].", least=0, default=0)
@options.number("--skip", "first_row", help="Rows to leave out [0].", least=0, default=0)
@options.number("--shards", help="Files to write [8].", default=8)
@options.flag("--overwrite", help="Replace the shards of an earlier corpus.")
def generate(directory: str, **how: Any) -> None:
    """Write a corpus to DIRECTORY, as shards of libsvm text.

    text: Zipf columns, tf-idf, 3 % of labels flipped. dense: correlated columns, a few outliers, 3
    % of labels flipped. clicks: 39 nonzeros a row, hashed, as in click logs. A prefix of a larger
    corpus of the same seed and columns equals the smaller one, and rows held out for a test are
    those behind the others: --skip them.
    """
    from streamtron.data.writers.corpus import generate as generate_corpus

    say_written(generate_corpus(directory, **how), directory)
