"""The command ``export``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel


@options.command()
@click.argument("model", type=options.Read())
@click.option(
    "--format",
    "format_",
    required=True,
    type=click.Choice(["liblinear", "onnx", "sklearn", "json", "streamtron"]),
    help="liblinear: for LIBLINEAR's predict; onnx: for onnxruntime and others; "
    "sklearn: a fitted LinearSVC or LogisticRegression that skops reads; json: weights "
    "by column and name; streamtron: its own file.",
)
@click.option(
    "-o", "--output", required=True, type=options.Written(dir_okay=False), help="File to write."
)
@click.option(
    "--drop-below",
    type=options.REAL,
    metavar="SIZE",
    help="Leave out weights smaller than this, and say what it changes.",
)
def export(model: str, format_: Any, output: str, drop_below: float | None) -> None:
    """Write MODEL for another program. Its decisions there are the same up to rounding.

    onnx and sklearn need libraries that streamtron[export] installs.
    """
    check_files({"output": output}, [], runs=[model])
    from streamtron.model.export import export as write
    from streamtron.model.import_model import load_any

    loaded = load_any(model)
    if drop_below is not None:
        loaded = _without_small_weights(loaded, drop_below)
    write(loaded, output, format_)
    if loaded.recipe is not None and format_ == "liblinear":
        click.echo(
            f"{output}: without the recipe of {', '.join(loaded.recipe.names)}; its rows are the "
            f"{loaded.columns:,} features. --format onnx and sklearn take raw rows.",
            err=True,
        )


def _without_small_weights(model: LinearModel, below: float) -> LinearModel:
    from streamtron.core.text import up
    from streamtron.model.pruning import prune

    number = model.sparse_weights.nnz
    model, dropped, changes = prune(model, below)
    most = int(changes.argmax())
    of_class = f", that of {model.classes[most]} the most" if len(changes) > 1 else ""
    click.echo(
        f"{dropped:,} of {number:,} weights are below {below:g} and left out. No decision changes "
        f"by more than {up(changes[most], 3)} times the length of its row{of_class}."
    )
    return model
