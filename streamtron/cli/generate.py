"""The command ``generate``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of, say_written
from streamtron.cli.options import Command


def _number(name: str, default: int | None, words: str) -> Callable[[Command], Command]:
    """Return the option of a whole number."""
    shown = default is not None
    return click.option(
        name, type=options.whole_number(), default=default, show_default=shown, help=words
    )


def _choice(name: str, *values: str, words: str) -> Callable[[Command], Command]:
    """Return the option that takes one of the values, by default the first."""
    return click.option(
        name, type=click.Choice(values), default=values[0], show_default=True, help=words
    )


@options.command()
@click.argument("directory", type=options.Written(file_okay=False))
@click.option("--rows", type=options.whole_number(), required=True, help="Rows, at least 1.")
@_choice("--kind", "text", "dense", "clicks", words="Kind of the rows.")
@_choice("--target", "class", "number", words="To be predicted: a class, ±1, or a number.")
@_number("--columns", None, "Columns [text 30000, dense 50, clicks 1000000].")
@_number("--seed", 0, "Seed of all that is drawn, at least 0; each is another problem.")
@_number("--skip", 0, "Rows to leave out first, so that later ones can be held out.")
@_number("--shards", 8, "Files to write, at least 1.")
@_choice("--format", "libsvm", "parquet", words="Format of the files.")
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier corpus.")
@options.distributed_options
def generate(directory: str, skip: int, **given: Any) -> None:
    """Write shards of a corpus to DIRECTORY.

    text: Zipf columns, tf-idf, 3 % of labels flipped. dense: correlated columns, a few outliers, 3
    % of labels flipped. clicks: 39 nonzeros a row, hashed, as in click logs. A prefix of a larger
    corpus of the same seed and columns equals the smaller one.
    """
    from streamtron.data.writers.corpus import generate as generate_corpus

    names = ("rows", "kind", "target", "columns", "seed", "shards", "format", "overwrite")
    how: dict[str, Any] = {name: given[name] for name in names}
    with executor_of(**given) as executor:
        written = generate_corpus(directory, first_row=skip, executor=executor, **how)
    say_written(written, directory)
