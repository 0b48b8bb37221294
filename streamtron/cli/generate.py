"""The command ``generate``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of, say_written


@options.command()
@click.argument("directory", type=options.Written(file_okay=False))
@click.option(
    "--rows", type=options.whole_number(), required=True, help="Rows to write, at least 1."
)
@click.option(
    "--kind",
    type=click.Choice(["text", "dense"]),
    default="text",
    show_default=True,
    help="text: sparse rows. dense: a value in every column.",
)
@click.option(
    "--target",
    type=click.Choice(["class", "number"]),
    default="class",
    show_default=True,
    help="To be predicted: a class, ±1, or a number.",
)
@click.option(
    "--columns",
    type=options.whole_number(),
    default=None,
    help="Columns: of text at least 80 (default 30000), of dense rows at most 1000 (default 50).",
)
@click.option(
    "--seed",
    type=options.whole_number(),
    default=0,
    show_default=True,
    help="Seed of all that is drawn, at least 0; each is another problem.",
)
@click.option(
    "--skip",
    type=options.whole_number(),
    default=0,
    show_default=True,
    help="Rows to leave out first, so that later ones can be held out.",
)
@click.option(
    "--shards",
    type=options.whole_number(),
    default=8,
    show_default=True,
    help="Files to write, at least 1.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["libsvm", "parquet"]),
    default="libsvm",
    show_default=True,
    help="Format of the files.",
)
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier corpus.")
@options.distributed_options
def generate(
    directory: str,
    rows: int,
    kind: str,
    target: str,
    columns: int | None,
    seed: int,
    skip: int,
    shards: int,
    format_: str,
    overwrite: bool,
    **where: Any,
) -> None:
    """Write shards of a corpus to DIRECTORY, with 3 % of labels flipped: text-like (Zipf columns,
    tf-idf), or dense rows of correlated columns with a few outliers.

    A prefix of a larger corpus of the same seed and columns equals the smaller one.
    """
    from streamtron.data.writers.corpus import generate as generate_corpus

    with executor_of(**where) as executor:
        written = generate_corpus(
            directory,
            rows=rows,
            columns=columns,
            seed=seed,
            kind=kind,
            target=target,
            shards=shards,
            first_row=skip,
            format=format_,
            overwrite=overwrite,  # type: ignore[arg-type]
            executor=executor,
        )
    say_written(written, directory)
