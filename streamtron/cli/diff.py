"""The command ``diff``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.explain import class_facts
from streamtron.cli.terminal import print_values
from streamtron.core.text import Lines, aligned, feature_text, label_text, number, up


@options.command()
@click.argument("first", type=options.Read())
@click.argument("second", type=options.Read())
@click.option("--most", type=options.whole_number(1), default=20, show_default=True,
              help="Number of features shown of each class.")  # fmt: skip
@options.json_option
def diff(first: str, second: str, most: int, as_json: bool) -> None:
    """Show in which settings, and in which weights most, the models FIRST and SECOND differ."""
    from streamtron.model.import_model import load_any
    from streamtron.runs.diff import diff as compare

    print_values(compare(load_any(first), load_any(second), most=most), _lines, as_json)


def _lines(facts: Mapping[str, Any]) -> Lines:
    for which in ("first", "second"):
        if labels := facts[f"only_in_{which}"]:
            yield from aligned([(f"only in {which}", ", ".join(map(label_text, labels)))])
    yield from aligned([(name, _pair(values)) for name, values in facts["settings"].items()])
    for direction in facts["directions"]:
        yield ""
        yield from aligned([
            *class_facts(direction), ("cosine", direction["cosine"]),
            ("distance", direction["distance"]),
            ("gap", " → ".join(map(up, direction["relative_duality_gap"]))),
            ("bias", _pair(direction["bias"])),
        ])  # fmt: skip
        yield f"{'first':>14} {'second':>14}  weight of"
        for feature in direction["features"]:
            first, second = feature["weights"]
            yield f"{first:>+14.6g} {second:>+14.6g}  {feature_text(feature)}"


def _pair(values: list[object]) -> str:
    return " → ".join(map(number, values))
