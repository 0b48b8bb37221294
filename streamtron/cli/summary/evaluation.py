"""Summary of ``evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamtron.core.text import Lines, aligned, class_table, metric_words, number


def evaluation_lines(metrics: Mapping[str, Any]) -> Lines:
    """Yield the metrics, the main ones first; of many classes also a table."""
    names = ["accuracy", "precision", "recall", "f1", "roc_auc", "average_precision"]
    if "classes" in metrics:
        names = ["accuracy", "hamming_loss"]
        names += [f"micro_{name}" for name in ("precision", "recall", "f1")]
        names += [f"macro_{name}" for name in ("precision", "recall", "f1", "roc_auc")]
    yield from aligned([(metric_words(name), metrics[name]) for name in ("rows", *names)])
    if others := metrics.get("rows_of_other_classes"):
        yield from aligned([("of other classes", others)])
    if "classes" in metrics:
        yield ""
        columns = ("support", "precision", "recall", "f1", "roc_auc")
        yield from class_table(
            [each["label"] for each in metrics["classes"]],
            {
                metric_words(name): [_short(each[name]) for each in metrics["classes"]]
                for name in columns
            },
        )


def _short(value: object) -> str:
    """Format a number in a table."""
    return f"{value:.4f}" if isinstance(value, float) and not value.is_integer() else number(value)
