"""Commands for shards: ``convert``, ``generate``, ``cache``."""

from __future__ import annotations

import os
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of, say_written, workers_of
from streamtron.cli.options import (
    cluster_options,
    setting_options,
    settings_of,
    shards_argument,
    split,
    verbose_option,
    workers_memory_option,
)


@click.command(short_help="Shards of one format into the other.")
@shards_argument
@click.argument("destination", type=click.Path(file_okay=False))
@click.option("--format", "format_", required=True, type=click.Choice(["libsvm", "parquet"]),
              help="Of the new shards.")  # fmt: skip
@click.option("--rows-per-shard", type=options.whole_number(1), default=1 << 17, show_default=True,
              help="Of each new shard but the last.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier conversion.")
@setting_options(*options.READING[:-2])
@workers_memory_option
@cluster_options
@verbose_option
def convert(
    shards: tuple[str, ...], destination: str, format_: str, rows_per_shard: int, overwrite: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Write SHARDS anew into the directory DESTINATION, in the other format or cut otherwise.

    --workers read SHARDS twice: they count the rows before any of them writes.
    """
    from streamtron.runs.convert import convert as convert_shards

    settings = settings_of(split(given)[0])
    with workers_of(**given) as executor:
        written = convert_shards(
            shards, destination, to=format_, settings=settings,  # type: ignore[arg-type]
            rows_per_shard=rows_per_shard, overwrite=overwrite, executor=executor,
        )  # fmt: skip
    say_written(written, destination)


@click.command(short_help="Write a text-like corpus of any size.")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--rows", type=options.whole_number(), required=True, help="Rows to write, from 1 on."
)
@click.option("--columns", type=options.whole_number(), default=30_000, show_default=True,
              help="To draw from, from 80 on.")  # fmt: skip
@click.option("--seed", type=options.whole_number(), default=0, show_default=True,
              help="Of everything that is drawn, from 0 on.")  # fmt: skip
@click.option("--skip", type=options.whole_number(), default=0, show_default=True,
              help="Leave out so many rows first: what comes behind can be held out.")  # fmt: skip
@click.option("--shards", type=options.whole_number(), default=8, show_default=True,
              help="Files to write, from 1 on.")  # fmt: skip
@click.option("--format", "format_", type=click.Choice(["libsvm", "parquet"]), default="libsvm",
              show_default=True, help="Of the files.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier corpus.")
@workers_memory_option
@cluster_options
@verbose_option
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


@click.command(short_help="The size of a cache; --clear removes it.")
@click.argument("path", metavar="DIRECTORY_OR_MODEL", type=click.Path())
@click.option("--clear", is_flag=True, help="Remove the cache's files, and nothing else.")
@verbose_option
def cache(path: str, clear: bool) -> None:
    """The size of a cache; its files can always be made again from the shards."""
    from streamtron.core.config import format_size
    from streamtron.data import cache_files, clear_cache

    directory = _cache_of(path)
    if clear:
        click.echo(f"{directory}: {format_size(clear_cache(directory))} made free")
        return
    files = cache_files(directory)
    size = format_size(sum(os.path.getsize(file) for file in files))
    click.echo(f"{directory}: {size} in {len(files):,} files")


def _cache_of(path: str) -> str:
    """The cache that a model, a run directory or a cache directory stands for."""
    from streamtron.runs.fit import run_directory

    inside = os.path.join(path, "cache")
    if os.path.isdir(path):
        return inside if os.path.isdir(inside) else path
    return os.path.join(run_directory(path), "cache")
