"""The command ``export``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files


@options.command()
@click.argument("model", type=options.Read())
@click.option(
    "--format",
    "format_",
    required=True,
    type=click.Choice(["liblinear", "onnx", "sklearn", "json"]),
    help="liblinear: for LIBLINEAR's predict; onnx: for onnxruntime and others; "
    "sklearn: a fitted LinearSVC or LogisticRegression that skops reads; json: weights "
    "by column and name.",
)
@click.option(
    "-o", "--output", required=True, type=options.Written(dir_okay=False), help="File to write."
)
def export(model: str, format_: Any, output: str) -> None:
    """Write MODEL for another program. Its decisions there are the same up to rounding.

    onnx and sklearn need libraries that streamtron[export] installs.
    """
    check_files({"output": output}, [], runs=[model])
    from streamtron.model.export import export as write
    from streamtron.model.import_model import load_any

    loaded = load_any(model)
    write(loaded, output, format_)
    if loaded.recipe is not None and format_ == "liblinear":
        click.echo(
            f"{output}: without the recipe of {', '.join(loaded.recipe.names)}; its rows are the "
            f"{loaded.columns:,} features. --format onnx and sklearn take raw rows.",
            err=True,
        )
