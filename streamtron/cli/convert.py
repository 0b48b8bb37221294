"""The command ``convert``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of, say_written


@click.command(short_help="Convert shards to another format.")
@options.shards_argument
@click.argument("destination", type=click.Path(file_okay=False))
@click.option("--format", "format_", required=True, type=click.Choice(["libsvm", "parquet"]),
              help="Format of the new shards.")  # fmt: skip
@click.option("--rows-per-shard", type=options.whole_number(1), default=1 << 17, show_default=True,
              help="Rows of each new shard but the last.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier conversion.")
@options.setting_options(*options.READING[:-2])
@options.distributed_options
@options.verbose_option
def convert(
    shards: tuple[str, ...], destination: str, format_: str, rows_per_shard: int, overwrite: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Write SHARDS to the directory DESTINATION in another format or with other shard sizes.

    SHARDS are read twice: all rows are counted before any is written.
    """
    from streamtron.runs.convert import convert as convert_shards

    settings = options.settings_of(options.split(given)[0])
    with executor_of(**given) as executor:
        written = convert_shards(
            shards, destination, to=format_, settings=settings,  # type: ignore[arg-type]
            rows_per_shard=rows_per_shard, overwrite=overwrite, executor=executor,
        )  # fmt: skip
    say_written(written, destination)
