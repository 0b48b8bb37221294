"""The command ``evaluate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of
from streamtron.cli.terminal import class_table, complain, print_values, table
from streamtron.core.text import (
    MANY,
    Lines,
    aligned,
    column_lines,
    label_text,
    metric_words,
    metrics_shown,
    number,
    some,
    unknown_text,
)

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel

MATRIX = 8
"""Classes of a confusion matrix, at most; of more the largest confusions are listed."""

_PAIR = ("label", "predicted")
_OF_A_CLASS = ("support", "precision", "recall", "f1", "roc_auc")


@options.command()
@click.argument("model", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@options.number(
    "--worst", least=0, default=0, help="List the N rows that are most wrong, and where they are."
)
@options.json_option
@options.distributed_options
def evaluate(model: str, shards: tuple[str, ...], worst: int, as_json: bool, **where: Any) -> None:
    """Compare a model's decisions with the labels of SHARDS: accuracy, precision, recall, F1, ROC
    AUC, average precision; log loss and Brier score of a model that has probabilities; of numbers
    R², RMSE, MAE and their standard deviation. MODEL is a streamtron or LIBLINEAR model. Without
    SHARDS, the rows that its fit held out are measured.

    Of many classes: these metrics for each class, and their micro and macro averages; accuracy is
    the share of rows all of whose labels are right.
    """
    from streamtron.model.import_model import load_any
    from streamtron.runs.evaluate import columns_not_used
    from streamtron.runs.evaluate import evaluate as evaluate_shards

    loaded = load_any(model)
    with executor_of(**where) as executor:
        of, rows = (loaded, shards) if shards else (model, None)
        metrics = evaluate_shards(of, rows, worst=worst, executor=executor).to_dict()
    if shards:
        metrics |= columns_not_used(loaded, shards)
        warn_known(loaded, model, shards)
    print_values(metrics, partial(metric_lines, classes=loaded.classes), as_json)


def warn_known(model: LinearModel, path: str, shards: Sequence[str]) -> None:
    """Warn of rows on which the model at ``path`` was trained or calibrated: it, or probabilities,
    look better on them."""
    from streamtron.runs.calibrate import calibrated_on
    from streamtron.runs.evaluate import trained_on
    from streamtron.runs.finished_run import run_directory

    if known := trained_on(run_directory(path), shards):
        rows, names = sum(shard.rows for shard in known), [shard.name for shard in known]
        share = model.settings.get("held_out")
        held_out = f", or report it with --valid {100 * share:g}%, those held out" if share else ""
        complain(
            f"Warning: the model was trained on {rows:,} of the rows, in {some(names, form=str)}; "
            f"it looks better there than on other rows. Measure it on others{held_out}."
        )
    if names := calibrated_on(model, shards):
        complain(
            f"Warning: the model was calibrated on rows of {some(names, form=str)}; probabilities "
            "look better there than on other rows. Measure it on others."
        )


def metric_lines(metrics: Mapping[str, Any], classes: Sequence[Any]) -> Lines:
    """Yield the metrics; of classes a table, and the confusions; the worst rows, if asked for."""
    strange, beyond = metrics.get("rows_of_other_classes"), metrics.get("out_of_range")
    yield from aligned(
        [
            ("rows", metrics["rows"]),
            *((metric_words(name), _shown(metrics, name)) for name in metrics_shown(metrics)),
            *([("of other classes", strange)] if strange else []),
        ]
    )
    if "every" in metrics:
        yield f"too many rows to hold: measured is every {metrics['every']}th"
    if "binned" in metrics:
        yield "too many decisions to sort: ROC AUC and average precision are those of bins"
    if beyond:
        yield unknown_text(beyond)
    yield from column_lines(metrics)
    if "classes" in metrics:
        rows = metrics["classes"]
        columns = {metric_words(name): [_short(row, name) for row in rows] for name in _OF_A_CLASS}
        yield ""
        yield from class_table([row["label"] for row in rows], columns)
    if metrics.get("confusions"):
        yield from ("", *_confusions(metrics, classes))
    for row in metrics.get("worst", ()):
        label, predicted = (label_text(row[name], quote=True) for name in _PAIR)
        by = "decision" if "decision" in row else "residual"
        where = f"{row['shard']}, row {row['row']}"
        yield f"{where}: label {label}, predicted {predicted}, {by} {row[by]:.4g}"


def _confusions(metrics: Mapping[str, Any], classes: Sequence[Any]) -> Lines:
    """Yield the confusion matrix, a line a label; of many or long names the largest confusions."""
    confusions, names = metrics["confusions"], [*map(label_text, classes)]
    if len(classes) > MATRIX or max(map(len, names)) > 8:
        shown = {name: [label_text(x[name]) for x in confusions[:MANY]] for name in _PAIR}
        weights = [number(x["weight"]) for x in confusions[:MANY]]
        yield from table({**shown, "rows": weights}, _PAIR)
        return
    from streamtron.model.mistakes import confusion_matrix

    columns = zip(*confusion_matrix(metrics, classes), strict=True)
    yield from class_table(
        classes,
        {
            f"as {name}": [*map(number, weights)]
            for name, weights in zip(names, columns, strict=True)
        },
    )


def _shown(metrics: Mapping[str, Any], name: str) -> object:
    """Return a metric, to four digits that do not make it 1."""
    value = metrics[name]
    return value if value is None or 0.9999 < value < 1.0 else f"{value:>13.4g}"


def _short(metrics: Mapping[str, Any], name: str) -> str:
    """Format a number in a table."""
    value = metrics[name]
    return f"{value:.4f}" if isinstance(value, float) and not value.is_integer() else number(value)
