"""The command ``predict``."""

from __future__ import annotations

import sys
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files, executor_of
from streamtron.core.text import with_types


@click.command(short_help="Write label and decision of every row.")
@click.argument("model", type=click.Path())
@options.shards_argument
@click.option("-o", "--output", required=True, type=click.Path(),
              help="File for one line a row, label and decisions separated by tabs; Parquet if it "
              "ends with .parquet, CSV with a header if with .csv; - is stdout.")  # fmt: skip
@click.option("--proba", is_flag=True,
              help="Add probabilities: of two classes that of the larger one, else of each class. "
              "For a model fitted with --loss log_loss or --calibrate.")  # fmt: skip
@click.option("--certain", is_flag=True,
              help="Add 1 where the best possible model of the same rows and settings is proven to "
              "label the row so, else 0. For a model with a certificate.")  # fmt: skip
@options.distributed_options
@options.verbose_option
def predict(
    model: str, shards: tuple[str, ...], output: str, proba: bool, certain: bool, **where: Any
) -> None:
    """Write the label and decision of every row of SHARDS, in their order.

    Labels in SHARDS are optional and ignored. MODEL is a streamtron or LIBLINEAR model.

    Of many classes: the label (with --multilabel all labels, separated by commas), then one
    decision a class in the order of the classes; in Parquet the columns label or labels, and the
    list decisions.
    """
    from streamtron.model.import_model import load_any
    from streamtron.runs.evaluate import columns_not_used
    from streamtron.runs.predict import write_predictions

    if output != "-":
        check_files({"output": output}, [*shards, where["scheduler"]], runs=[model])
    loaded = load_any(model)
    others = columns_not_used(loaded, shards).get("columns_not_used")
    with executor_of(**where) as executor:
        to = sys.stdout.buffer if output == "-" else output
        written = write_predictions(
            loaded, shards, to, proba=proba, certain=certain, executor=executor
        )
    if output == "-":
        sys.stdout.buffer.flush()  # raises, where the text stream would not
    beyond = ""
    if written.out_of_range:
        beyond = f"; {written.out_of_range:,} values in columns beyond the model's width weigh 0"
    sure = "" if written.certain is None else f", {written.certain:,} certain"
    aside = f"; not used: {with_types(others)}" if others else ""
    click.echo(f"{written.rows:,} rows{sure}{beyond}{aside}", err=True)
