"""The command ``explain``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.terminal import print_values
from streamtron.core.text import Lines, aligned, feature_text, label_text

_CLASSES = 3
"""Classes of many that are shown of a row, those of the highest decisions."""


@options.command()
@click.argument("model", type=options.Read())
@click.argument("shards", nargs=-1, type=options.Read())
@click.option(
    "--row",
    type=options.whole_number(0),
    help="Number of a row of SHARDS, from 0, to be explained.",
)
@click.option(
    "--most",
    type=options.whole_number(1),
    default=20,
    show_default=True,
    help="Number of features shown of each class.",
)
@options.names_option
@options.json_option
def explain(
    model: str,
    shards: tuple[str, ...],
    row: int | None,
    most: int,
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the features with the heaviest weights of MODEL, by name where they have names.

    With SHARDS and --row: what each feature of that row adds to its decision. MODEL is a streamtron
    or LIBLINEAR model. Names of hashed columns are those that convert --keep-names wrote; a weight
    is that of the column's first name, and opposite: is before one that counts the other way.
    """
    from streamtron.model.import_model import load_any
    from streamtron.runs.explain import explain as explain_model
    from streamtron.runs.explain import names_of_run

    loaded = load_any(model)
    names = names or tuple(names_of_run(loaded, model))
    facts = explain_model(loaded, shards, row=row, most=most, names=names)
    print_values(facts, _model if row is None else _row, as_json)


def _model(facts: Mapping[str, Any]) -> Lines:
    for direction in facts["directions"]:
        yield from aligned([*class_facts(direction), ("bias", direction["bias"])])
        yield f"{'weight':>14}  feature"
        for feature in direction["features"]:
            yield f"{feature['weight']:>+14.6g}  {feature_text(feature)}"
        yield ""


def class_facts(direction: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the class of a direction as a line; none of regression."""
    positive = direction["positive"]
    return [] if positive is None else [("class", label_text(positive))]


def _row(facts: Mapping[str, Any]) -> Lines:
    labels = facts["label"] if isinstance(facts["label"], list) else [facts["label"]]
    yield from aligned(
        [
            ("shard", facts["shard"]),
            ("row", facts["row"]),
            *([] if facts["label"] is None else [("label", ", ".join(map(label_text, labels)))]),
            *([("unknown to model", facts["out_of_range"])] if facts["out_of_range"] else []),
        ]
    )
    ranked = sorted(facts["directions"], key=lambda direction: -direction["decision"])
    for direction in ranked[:_CLASSES]:
        yield ""
        decision = f"{direction['decision']:+.6g}"
        yield from aligned([*class_facts(direction), ("decision", decision)])
        yield f"{'adds':>14} {'value':>12} {'weight':>12}  feature"
        for feature in direction["features"]:
            numbers = f"{feature['contribution']:>+14.6g} {feature['value']:>12.6g}"
            yield f"{numbers} {feature['weight']:>+12.6g}  {feature_text(feature)}"
        if count := direction["other_features"]:
            yield f"{direction['other_contributions']:>+14.6g} {'':>25}  {count:,} other features"
        yield f"{direction['bias']:>+14.6g} {'':>25}  bias"
    if ranked[_CLASSES:]:
        yield f"\n… and {len(ranked) - _CLASSES:,} more; --json has all classes"
