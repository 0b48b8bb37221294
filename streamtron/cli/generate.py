"""The command ``generate``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of, say_written


def _number(name: str, default: int, help: str) -> Callable[[options.Command], options.Command]:
    return click.option(
        name, type=options.whole_number(), default=default, show_default=True, help=help
    )


@click.command(short_help="Generate a text-like corpus of any size.")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--rows", type=options.whole_number(), required=True, help="Rows to write, at least 1."
)
@_number("--columns", 30_000, "Columns to draw from, at least 80.")
@_number("--seed", 0, "Seed of all that is drawn, at least 0.")
@_number("--skip", 0, "Rows to leave out first, so that later ones can be held out.")
@_number("--shards", 8, "Files to write, at least 1.")
@click.option("--format", "format_", type=click.Choice(["libsvm", "parquet"]), default="libsvm",
              show_default=True, help="Format of the files.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier corpus.")
@options.distributed_options
@options.verbose_option
def generate(
    directory: str, rows: int, columns: int, seed: int, skip: int, shards: int, format_: str,
    overwrite: bool, **where: Any,
) -> None:  # fmt: skip
    """Write shards of a text-like corpus to DIRECTORY: Zipf columns, tf-idf, 3 % of labels flipped.

    A prefix of a larger corpus of the same seed and columns equals the smaller one.
    """
    from streamtron.data.writers.corpus import generate as generate_corpus

    with executor_of(**where) as executor:
        written = generate_corpus(
            directory, rows=rows, columns=columns, seed=seed, shards=shards, executor=executor,
            format=format_, first_row=skip, overwrite=overwrite,  # type: ignore[arg-type]
        )  # fmt: skip
    say_written(written, directory)
