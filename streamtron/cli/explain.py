"""The command ``explain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import print_values
from streamtron.core.text import Lines, aligned, feature_text, label_text

_CLASSES = 3
"""Classes of many that are shown of a row, those of the highest decisions."""


@click.command(short_help="Show a model's heaviest features, or why a row got its label.")
@click.argument("model", type=click.Path())
@click.argument("shards", nargs=-1, type=click.Path())
@click.option("--row", type=options.whole_number(0),
              help="Number of a row of SHARDS, from 0, to be explained.")  # fmt: skip
@click.option("--most", type=options.whole_number(1), default=20, show_default=True,
              help="Number of features shown of each class.")  # fmt: skip
@options.names_option
@options.json_option
@options.verbose_option
def explain(
    model: str, shards: tuple[str, ...], row: int | None, most: int, names: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
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
    found = explain_model(loaded, shards, row=row, most=most, names=names)
    print_values(found, _model if row is None else _row, as_json)


def _model(found: Mapping[str, Any]) -> Lines:
    for each in found["directions"]:
        yield from aligned([("class", label_text(each["positive"])), ("bias", each["bias"])])
        yield f"{'weight':>14}  feature"
        yield from (f"{one['weight']:>+14.6g}  {feature_text(one)}" for one in each["features"])
        yield ""


def _row(found: Mapping[str, Any]) -> Lines:
    label = found["label"]
    shown = ", ".join(map(label_text, label if isinstance(label, list) else [label]))
    yield from aligned([("shard", found["shard"]), ("row", found["row"]), ("label", shown)])
    if found["out_of_range"]:
        yield from aligned([("unknown to model", found["out_of_range"])])
    ranked: Sequence[Any] = sorted(found["directions"], key=lambda each: -each["decision"])
    for each in ranked[:_CLASSES]:
        yield ""
        yield from aligned([
            ("class", label_text(each["positive"])), ("decision", f"{each['decision']:+.6g}")
        ])  # fmt: skip
        yield f"{'adds':>14} {'value':>12} {'weight':>12}  feature"
        for one in each["features"]:
            numbers = f"{one['contribution']:>+14.6g} {one['value']:>12.6g} {one['weight']:>+12.6g}"
            yield f"{numbers}  {feature_text(one)}"
        if others := each["other_features"]:
            yield f"{each['other_contributions']:>+14.6g} {'':>25}  {others:,} other features"
        yield f"{each['bias']:>+14.6g} {'':>25}  bias"
    if ranked[_CLASSES:]:
        yield f"\n… and {len(ranked) - _CLASSES:,} more classes; --json has all"
