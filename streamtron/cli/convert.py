"""The command ``convert``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import say_written
from streamtron.core.config import PLACES, Settings


@options.command()
@options.shards_argument
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False),
    help="Directory of the new shards, new or empty.",
)
@click.option(
    "--format",
    "to",
    type=click.Choice(["parquet", "libsvm"]),
    default="parquet",
    show_default=True,
    help="Format of the new shards.",
)
@options.number(
    "--rows-per-shard", help="Rows of each new shard but the last [131072].", default=1 << 17
)
@options.flag("--overwrite", help="Replace the shards of an earlier conversion.")
@options.setting_options("index_base", "multiclass", "multilabel", *PLACES)
def convert(shards: tuple[str, ...], output: str, **given: Any) -> None:
    """Write SHARDS in another format or with other shard sizes."""
    from streamtron.runs.convert import convert as convert_shards

    settings = Settings.from_dict(options.split(given)[0])
    how = {name: given[name] for name in ("to", "rows_per_shard", "overwrite")}
    say_written(convert_shards(shards, output, settings=settings, **how), output)
