"""The command ``inspect``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import print_values
from streamtron.core.errors import SettingsError


@click.command(short_help="Show what is in a model, a witness, a run or shards.")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@click.option("--plan", is_flag=True, help="Show only the memory that a fit of shards would need.")
@options.setting_options("active_set", *options.READING)
@options.machine_options
@options.json_option
@options.verbose_option
def inspect(paths: tuple[str, ...], plan: bool, as_json: bool, **given: Any) -> None:
    """Show what is in a model, a witness, a run directory, or shards, which are read once."""
    from streamtron.cli.summary.inspection import inspection_lines
    from streamtron.runs.inspect import inspect as look

    wanted, machine = options.split(given)
    facts = look(paths, options.settings_of(wanted), machine)
    if plan and facts["kind"] != "shards":
        raise SettingsError(f"--plan is for shards, and {paths[0]} is a {facts['kind']}.")
    if plan and as_json:
        facts = facts["plan"]
    print_values(facts, lambda shown: inspection_lines(shown, plan=plan), as_json)
