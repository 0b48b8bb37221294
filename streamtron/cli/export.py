"""The command ``export``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files
from streamtron.cli.terminal import complain


@options.command()
@click.argument("model", type=click.Path())
@click.option(
    "--format",
    "format_",
    required=True,
    type=click.Choice(["liblinear", "onnx", "sklearn", "json"]),
    help="liblinear: for LIBLINEAR's predict; onnx: for onnxruntime and others; "
    "sklearn: a fitted LinearSVC or LogisticRegression that skops reads; json: weights "
    "by column and name.",
)
@options.written("-o", "--output", help="File to write.", required=True)
@options.several(
    "--check",
    help="Shards on whose first rows an ONNX graph of raw columns is run at once [those of the "
    "model's run].",
)
def export(model: str, format_: Any, output: str, check: tuple[str, ...]) -> None:
    """Write MODEL for another program. Its decisions there are the same up to rounding.

    onnx and sklearn need libraries that streamtron[export] installs.
    """
    check_files({"output": output}, check, runs=[model])
    from streamtron.model.export import export as write
    from streamtron.model.import_model import load_any
    from streamtron.runs.explain import first_rows

    loaded = load_any(model)
    rows = first_rows(loaded, model, check) if format_ == "onnx" else None
    write(loaded, output, format_, rows=rows)
    if format_ == "liblinear" and loaded.calibration is not None:
        complain(f"{output}: without the probabilities; labels there are those of the decisions.")
    if loaded.transformer is None:
        return
    if format_ == "liblinear":
        columns = ", ".join(loaded.transformer.columns)
        complain(
            f"{output}: without the transformer of {columns}; its rows are the {loaded.columns:,} "
            "features. --format onnx and sklearn take raw rows."
        )
    elif format_ == "onnx" and rows is None:
        complain(
            f"{output}: not compared with the model, for there are no rows to run it on. Name some "
            "with --check."
        )
