"""The command ``evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of
from streamtron.cli.terminal import class_table, print_values
from streamtron.core.text import (
    Lines,
    aligned,
    column_lines,
    down,
    metric_words,
    metrics_shown,
    number,
    up,
)

_OF_A_CLASS = ("support", "precision", "recall", "f1", "roc_auc")


@click.command(short_help="Measure a model on labelled shards.")
@click.argument("model", type=click.Path())
@options.shards_argument
@click.option("--ranking/--no-ranking", default=True, show_default=True,
              help="Compute ROC AUC and average precision: exact up to a million distinct "
              "decisions, of more a bracket that contains them.")  # fmt: skip
@options.json_option
@options.distributed_options
@options.verbose_option
def evaluate(
    model: str, shards: tuple[str, ...], ranking: bool, as_json: bool, **where: Any
) -> None:
    """Compare a model's decisions with the labels of SHARDS: accuracy, precision, recall, F1, ROC
    AUC, average precision; log loss and Brier score of a model that has probabilities. MODEL is a
    streamtron or LIBLINEAR model.

    Of many classes: these metrics for each class, and their micro and macro averages; accuracy is
    the share of rows all of whose labels are right.
    """
    from streamtron.model.import_model import load_any
    from streamtron.runs.evaluate import columns_not_used
    from streamtron.runs.evaluate import evaluate as evaluate_shards

    loaded = load_any(model)
    with executor_of(**where) as executor:
        metrics = evaluate_shards(loaded, shards, ranking=ranking, executor=executor).to_dict()
    metrics |= columns_not_used(loaded, shards)
    print_values(metrics, _lines, as_json)


def _lines(metrics: Mapping[str, Any]) -> Lines:
    """Yield the metrics; of many classes also a table."""
    strange = metrics.get("rows_of_other_classes")
    yield from aligned([
        ("rows", metrics["rows"]),
        *((metric_words(name), _shown(metrics, name)) for name in metrics_shown(metrics)),
        *([("of other classes", strange)] if strange else []),
    ])  # fmt: skip
    yield from column_lines(metrics)
    if "classes" in metrics:
        classes = metrics["classes"]
        columns = {
            metric_words(name): [_short(row, name) for row in classes] for name in _OF_A_CLASS
        }
        yield ""
        yield from class_table([row["label"] for row in classes], columns)


def _shown(metrics: Mapping[str, Any], name: str) -> object:
    """Return a metric, or the bracket within which it is known."""
    low, high = metrics.get(f"{name}_bracket", (None, None))
    return metrics[name] if low is None else f"between {down(low)} and {up(high)}"


def _short(metrics: Mapping[str, Any], name: str) -> str:
    """Format a number in a table, with ~ where it is known within a bracket."""
    value = metrics[name]
    about = "~" if f"{name}_bracket" in metrics else ""
    if isinstance(value, float) and not value.is_integer():
        return f"{about}{value:.4f}"
    return about + number(value)
