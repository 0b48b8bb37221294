"""The command ``predict``."""

from __future__ import annotations

import sys
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files, executor_of
from streamtron.cli.terminal import complain, standard_output
from streamtron.core.text import unknown_text, with_types


@options.command()
@click.argument("model", type=click.Path())
@click.argument("shards", nargs=-1, required=True, type=click.Path())
@options.written(
    "-o",
    "--output",
    help="File for one line a row, label and decisions separated by tabs; Parquet if it ends with "
    ".parquet, with a line of names if with .tsv or .csv; - is stdout.",
    required=True,
)
@options.flag(
    "--proba",
    help="Add probabilities: of two classes that of the larger one, else of each class. For a "
    "model of --loss log_loss or softmax, or one that calibrate has given them.",
)
@options.flag(
    "--certain",
    help="Add 1 where the best possible model of the same rows and settings is proven to label "
    "the row so, else 0. For a model with a certificate, not calibrated.",
)
@options.number("--top", help="Of many classes write the N highest, and their decisions.")
@options.distributed_options
def predict(model: str, shards: tuple[str, ...], output: str, **given: Any) -> None:
    """Write the label and decision of every row of SHARDS, in their order.

    Labels in SHARDS are optional and ignored. MODEL is a streamtron or LIBLINEAR model.

    Of many classes: the label (with --multilabel all labels, separated by commas), then one
    decision a class in the order of the classes, called "decision NAME" in .csv, .tsv and .parquet.
    """
    from streamtron.model.import_model import load_any
    from streamtron.runs.evaluate import columns_not_used
    from streamtron.runs.predict import write_predictions

    if output != "-":
        check_files({"output": output}, [*shards, given["scheduler"]], runs=[model])
    loaded = load_any(model)
    how: Any = {name: given[name] for name in ("proba", "certain", "top")}
    unused = columns_not_used(loaded, shards).get("columns_not_used", {})
    with executor_of(**given) as executor:
        to = standard_output() if output == "-" else output
        written = write_predictions(loaded, shards, to, executor=executor, **how)
    if output == "-":
        sys.stdout.buffer.flush()  # raises, where the text stream would not
    beyond = ""
    if written.out_of_range:
        beyond = f"; {unknown_text(written.out_of_range)}"
    sure = "" if written.certain is None else f", {written.certain:,} certain"
    aside = f"; not used: {with_types(unused)}" if unused else ""
    complain(f"{written.rows:,} rows{sure}{beyond}{aside}")
