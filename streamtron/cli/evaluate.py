"""The command ``evaluate``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of, print_values


@click.command(short_help="Measure a model on labelled shards.")
@click.argument("model", type=click.Path())
@options.shards_argument
@click.option("--ranking/--no-ranking", default=True, show_default=True,
              help="Compute ROC AUC and average precision, which sort all decisions.")  # fmt: skip
@options.json_option
@options.distributed_options
@options.verbose_option
def evaluate(
    model: str, shards: tuple[str, ...], ranking: bool, as_json: bool, **where: Any
) -> None:
    """Compare a model's decisions with the labels of SHARDS: accuracy, precision, recall, F1, ROC
    AUC, average precision. MODEL is a streamtron or LIBLINEAR model.

    Of many classes: these metrics for each class, and their micro and macro averages; accuracy is
    the share of rows all of whose labels are right.
    """
    from streamtron.cli.summary.evaluation import evaluation_lines
    from streamtron.model.import_model import load_any
    from streamtron.runs.evaluate import evaluate as evaluate_shards

    loaded = load_any(model)
    with executor_of(**where) as executor:
        metrics = evaluate_shards(loaded, shards, ranking=ranking, executor=executor).to_dict()
    print_values(metrics, evaluation_lines, as_json)
