"""The command ``cache``."""

from __future__ import annotations

import os

import click

from streamtron.cli import options


@options.command()
@click.argument("path", metavar="DIRECTORY_OR_MODEL", type=click.Path())
@click.option("--clear", is_flag=True, help="Remove the cache's files, and nothing else.")
def cache(path: str, clear: bool) -> None:
    """Show the size of the cache of a model, a run or a cache directory.

    Its files can always be made again from the shards.
    """
    from streamtron.core.errors import MachineError
    from streamtron.core.text import format_size
    from streamtron.data import cache_files, clear_cache
    from streamtron.runs.finished_run import run_directory

    if not os.path.exists(path) and not os.path.isdir(run_directory(path)):
        raise MachineError(f"{path}: there is none. Name a model, its run, or a cache's directory.")
    inside = os.path.join(path if os.path.isdir(path) else run_directory(path), "cache")
    directory = path if os.path.isdir(path) and not os.path.isdir(inside) else inside
    if not os.path.isdir(directory):
        where = "If it is elsewhere, name the directory that --cache-dir or --run-dir named."
        click.echo(f"{directory}: there is no cache. {where}")
        return
    if clear:
        click.echo(f"{directory}: {format_size(clear_cache(directory))} made free")
        return
    files = cache_files(directory)
    size = format_size(sum(os.path.getsize(file) for file in files))
    click.echo(f"{directory}: {size} in {len(files):,} files")
