"""The command ``explain``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.terminal import fact_lines, print_values, table
from streamtron.core.text import MANY, Lines, aligned, and_more, feature_text, label_text, number

_CLASSES = 3
"""Classes of many that are shown of a row, those of the highest decisions."""


@options.command()
@click.argument("model", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@options.number("--row", help="Number of a row of SHARDS, from 0, to be explained.", least=0)
@options.number("--most", help="Number of features shown of each class [20].", default=20)
@options.json_option
def explain(model: str, shards: tuple[str, ...], row: int | None, most: int, as_json: bool) -> None:
    """Show what MODEL has learned: of tables one line a column, then the features with the heaviest
    weights, by name where they have names.

    With SHARDS: also how much what a column adds varies over their rows, and in how many rows
    a feature is. With --row: what each feature of that row adds to its decision. MODEL is a
    streamtron or LIBLINEAR model.
    """
    from streamtron.model.import_model import load_any
    from streamtron.runs.explain import explain as explain_model

    facts = explain_model(load_any(model), shards, row=row, most=most)
    print_values(facts, _model if row is None else _row, as_json)


def _model(facts: Mapping[str, Any]) -> Lines:
    for direction in facts["directions"]:
        yield from aligned([*class_facts(direction), ("bias", direction["bias"])])
        if made := direction.get("columns"):
            how = "spread" if "spread" in made[0] else "largest"
            by_column = {
                how: [f"{column[how]:.6g}" for column in made[:MANY]],
                "features": [number(column["features"]) for column in made[:MANY]],
                "column": [column["column"] for column in made[:MANY]],
            }
            yield from table(by_column, ["column"])
            yield from and_more(made)
            yield ""
        features = direction["features"]
        columns = {"weight": [f"{feature['weight']:+.6g}" for feature in features]}
        if features and "rows" in features[0]:
            columns["rows"] = [number(feature["rows"]) for feature in features]
        columns["feature"] = [*map(feature_text, features)]
        yield from table(columns, ["feature"])
        yield ""


def class_facts(direction: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the class of a direction as a line; none of regression."""
    positive = direction["positive"]
    return [] if positive is None else [("class", label_text(positive))]


def _row(facts: Mapping[str, Any]) -> Lines:
    labels = facts["label"] if isinstance(facts["label"], list) else [facts["label"]]
    yield from fact_lines(facts, "shard", "row")
    if facts["label"] is not None:
        yield from aligned([("label", ", ".join(map(label_text, labels)))])
    if facts["out_of_range"]:
        yield from aligned([("unknown to model", facts["out_of_range"])])
    ranked = sorted(facts["directions"], key=lambda direction: -direction["decision"])
    for direction in ranked[:_CLASSES]:
        yield ""
        decision = f"{direction['decision']:+.6g}"
        yield from aligned([*class_facts(direction), ("decision", decision)])
        shown = direction["features"]
        remaining = {"bias": direction["bias"]}
        if count := direction["other_features"]:
            remaining = {f"{count:,} other features": direction["other_contributions"], **remaining}
        empty = [""] * len(remaining)
        adds = [*(feature["contribution"] for feature in shown), *remaining.values()]
        columns = {
            "adds": [f"{value:+.6g}" for value in adds],
            "value": [f"{feature['value']:.6g}" for feature in shown] + empty,
            "weight": [f"{feature['weight']:+.6g}" for feature in shown] + empty,
            "feature": [*map(feature_text, shown), *remaining],
        }
        yield from table(columns, ["feature"])
    if ranked[_CLASSES:]:
        yield f"\n… and {len(ranked) - _CLASSES:,} more; --json has all classes"
