"""The command ``convert``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of, say_written


@options.command()
@options.shards_argument
@click.argument("destination", type=options.Written(file_okay=False))
@click.option(
    "--format",
    "format_",
    type=click.Choice(["libsvm", "parquet"]),
    default="parquet",
    show_default=True,
    help="Format of the new shards.",
)
@click.option(
    "--rows-per-shard",
    type=options.whole_number(1),
    default=1 << 17,
    show_default=True,
    help="Rows of each new shard but the last.",
)
@click.option(
    "--keep-names",
    is_flag=True,
    help="Keep the names of columns (words, hashed names) beside the shards, for explain "
    "and report; reads once more.",
)
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier conversion.")
@options.setting_options(*options.READING[:-2])
@options.distributed_options
def convert(
    shards: tuple[str, ...],
    destination: str,
    format_: str,
    rows_per_shard: int,
    keep_names: bool,
    overwrite: bool,
    **given: Any,
) -> None:
    """Write SHARDS to the directory DESTINATION in another format or with other shard sizes.

    With --columns or --text, columns of any kinds become rows, as by scikit-learn's
    ColumnTransformer. A model of these rows reads the columns itself.
    """
    from streamtron.runs.convert import convert as convert_shards

    settings = options.settings_of(options.split(given)[0])
    with executor_of(**given) as executor:
        written = convert_shards(
            shards,
            destination,
            to=format_,
            settings=settings,  # type: ignore[arg-type]
            rows_per_shard=rows_per_shard,
            overwrite=overwrite,
            keep_names=keep_names,
            executor=executor,
        )
    say_written(written, destination)
