"""The command ``inspect``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files
from streamtron.cli.summary import bounds, certificate_lines
from streamtron.cli.terminal import class_table, print_values, table
from streamtron.core.config import READING
from streamtron.core.errors import SettingsError
from streamtron.core.files import write_atomically
from streamtron.core.text import (
    BOUNDS,
    MANY,
    Lines,
    aligned,
    and_more,
    format_size,
    label_text,
    left_out,
    number,
    quoted,
    up,
    within,
)


@options.command()
@click.argument("paths", nargs=-1, required=True, type=options.Read())
@options.flag("--plan", help="Show only the memory that a fit of shards would need.")
@options.written(
    "--write-columns",
    help="Write what the columns of a table would become, for fit --columns FILE.toml.",
)
@options.setting_options("active_set", "loss", *READING)
@options.machine_options
@options.json_option
def inspect(
    paths: tuple[str, ...], plan: bool, write_columns: str | None, as_json: bool, **given: Any
) -> None:
    """Show what is in a model, a witness, a run directory, or shards, which are read once."""
    from streamtron.runs.inspect import inspect as look

    settings, machine = options.split(given)
    facts = look(paths, options.settings_of(settings), machine)
    if plan and facts["kind"] != "shards":
        raise SettingsError(f"--plan is for shards, and {paths[0]} is a {facts['kind']}.")
    if write_columns is not None:
        if "table" not in facts:
            raise SettingsError(f"--write-columns is for tables, and {paths[0]} is none.")
        check_files({"columns": write_columns}, paths)
        lines = "".join(f"{line}\n" for line in _columns_file(facts))
        write_atomically(write_columns, [lines.encode()])
    if plan and as_json:
        facts = facts["plan"]
    print_values(facts, _plan if plan else _LINES[facts["kind"]], as_json)


_PROBABILITIES = "none, it is not calibrated", "those of the logistic loss"
_BOUNDS = (*BOUNDS, "rows_scanned")
_BY_DECISION = {"by": "decision", "least": "0"}
_DECIDES = {
    "two classes": "{1} where its {by} is above {least}, else {0}",
    "multiclass": "{n:,}, of which the one whose {by} is highest is chosen",
    "multilabel": "{n:,}, each chosen where its {by} is above {least}",
    "regression": "none: w·x + bias is the number predicted",
}


def _model(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "format_version", "columns", "nonzero_weights", "bias")
    names = facts["classes"]
    chosen = {"by": "probability", "least": "½"} if facts["calibration"] else _BY_DECISION
    decides = _DECIDES[facts["classification"]].format(
        *map(label_text, names), n=len(names), **chosen
    )
    yield from aligned([("classes", decides)])
    if names:
        shown = facts["calibration"] or _PROBABILITIES[facts["probabilities"]]
        yield from aligned([("probabilities", shown)])
    yield ""
    learners, certificate = facts.get("learners"), facts["certificate"]
    if _complete(certificate, *(_BOUNDS[2:] if learners else _BOUNDS)):
        yield from certificate_lines(certificate, many=learners is not None)
        yield from aligned([("rows", certificate["rows_scanned"])])
        if not learners and (gap := certificate["relative_duality_gap"]) < 1.0:
            yield f"{within(gap)}, proven on these rows"
    else:
        yield "no certificate: use streamtron certify"
    if learners:
        proven = [learner["certificate"] for learner in learners]
        yield ""
        yield from class_table(
            [learner["label"] for learner in learners],
            bounds([bound if _complete(bound, *_BOUNDS) else None for bound in proven])
            | {"largest weights": [", ".join(_largest(learner)) for learner in learners]},
            ["largest weights"],
        )
    for title in ("settings", "reading"):
        yield from ("", title)
        yield from _indented(facts[title])
    if "largest_weights" in facts:
        yield from ("", "largest weights")
        entries = facts["largest_weights"]
        columns = {
            "column": [str(entry["column"]) for entry in entries],
            "weight": [f"{entry['weight']:+.6g}" for entry in entries],
        }
        if any("name" in entry for entry in entries):
            columns["name"] = [entry.get("name", "") for entry in entries]
        yield from table(columns, ["name"])


def _complete(certificate: Any, *names: str) -> bool:
    """Return whether the numbers are there, in any model's certificate; unknown bounds are None."""
    return isinstance(certificate, Mapping) and all(
        isinstance(certificate.get(name), int | float)
        or (name in BOUNDS[:2] and certificate.get(name, "missing") is None)
        for name in names
    )


def _largest(learner: Mapping[str, Any], most: int = 3) -> Lines:
    for entry in learner["largest_weights"][:most]:
        yield f"{entry.get('name', entry['column'])} {entry['weight']:+.3g}"


def _indented(values: Mapping[str, Any]) -> Lines:
    """Yield all values, and in a line the names of those where a default or the data decides."""
    for name, value in values.items():
        if value is not None:
            yield f"  {name:<16} {_brief(value)}"
    if absent := [name for name, value in values.items() if value is None]:
        yield f"  {'not set':<16} {', '.join(absent)}"


def _brief(value: Any) -> str:
    """Format a value on one line; of a long list the beginning and the length."""
    if isinstance(value, list):
        dots = f", … ({len(value):,} in all)" if len(value) > MANY else ""
        return ", ".join(map(str, value[: 3 if dots else MANY])) + dots
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_brief(x)}" for k, x in value.items() if x not in (None, []))
    return str(value)


def _witness(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "rows", "support_rows")
    yield from aligned([("size", format_size(facts["bytes"]))])
    yield from _shard_table(facts["shards"])


def _run(facts: Mapping[str, Any]) -> Lines:
    by = f", by {facts['process']}" if facts["process"] else ""
    yield from aligned([("state", facts["state"] + by)])
    if progress := facts["progress"]:
        yield from _some(progress, "reading", "stage", "full_epochs", "nonzeros_read")
        if (gap := progress.get("relative_duality_gap")) is not None:
            yield f"{'gap':<18} {up(gap):>13}"
        yield from aligned([("seconds", round(progress["seconds"], 1))])
    yield from _some(facts, "rows", "nonzeros")
    forgotten = [(kind, facts.get(f"forgotten_{kind}")) for kind in ("rows", "shards")]
    yield from aligned(
        [
            *((f"{kind} forgotten", number) for kind, number in forgotten if number),
            ("size", format_size(facts["bytes"])),
            ("cache", format_size(facts["cache_bytes"])),
            ("next", facts["next"]),
        ]
    )
    if facts["settings"]:
        yield from ("", "settings")
        yield from _indented(facts["settings"])
    yield from _shard_table(facts["shards"])


def _shards(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "rows", "columns", "nonzeros", "index_base")
    yield from aligned([("format", facts["format"]), ("size", format_size(facts["bytes"]))])
    if facts["features"] is not None:
        yield from aligned([("features", f"{_brief(facts['features'])} ({facts['layout']})")])
    labels = sorted(facts["labels"].items(), key=lambda item: -item[1])
    yield from aligned([(f"label {quoted(label)}", rows) for label, rows in labels[:MANY]])
    yield from and_more(labels)
    yield from aligned([(f"label {name}", x) for name, x in (facts["targets"] or {}).items()])
    if facts["remark"]:
        yield f"the labels are {facts['remark']}"
    if facts["unlabelled_rows"]:
        yield from aligned([("without a label", facts["unlabelled_rows"])])
    yield from _shard_table(facts["shards"])
    yield from left_out(facts["skipped"])
    if "table" in facts:
        yield ""
        yield from _table(facts)


def _shard_table(shards: Sequence[Mapping[str, Any]]) -> Lines:
    known = [name for name in ("rows", "nonzeros", "bytes") if shards and name in shards[0]]
    columns = {name: [number(shard[name]) for shard in shards[:MANY]] for name in known}
    if "bytes" in columns:
        columns["bytes"] = [format_size(shard["bytes"]) for shard in shards[:MANY]]
    columns["shard"] = [shard.get("name", shard.get("fingerprint")) for shard in shards[:MANY]]
    yield ""
    yield from table(columns, ["shard"])
    yield from and_more(shards)


def _plan(facts: Mapping[str, Any]) -> Lines:
    plan = facts["plan"]
    sizes = {**plan["items"], "memory needed": plan["total"], "limit": plan["limit"]}
    if plan["learners"] > 1:
        yield f"{plan['learners']:,} learners, {plan['learners_at_once']:,} at a time"
    yield from (f"{what:<34} {format_size(size):>10}" for what, size in sizes.items())
    fits = plan["total"] <= plan["limit"]
    smaller = " or a smaller --active-set" if plan["active_set"] else ""
    yield "it fits" if fits else f"it does NOT fit: give a larger --memory{smaller}"


def _some(facts: Mapping[str, Any], *names: str) -> Lines:
    known = [name for name in names if facts.get(name) is not None]
    return aligned([(name.replace("_", " "), facts[name]) for name in known])


def _table(facts: Mapping[str, Any]) -> Lines:
    """Yield the columns of a table, and the file of columns that they would be."""
    columns = facts["table"]
    specs = [column["becomes"] or "left out" for column in columns]
    reasons = [f" ({column['reason']})" if column["reason"] else "" for column in columns]
    yield from aligned([("rows", facts["rows"]), ("format", facts["format"])])
    cells = {
        "column": [_cut(column["name"], 24) for column in columns],
        "type": [_cut(column["type"], 14) for column in columns],
        "nulls": [number(column["nulls"]) for column in columns],
        "distinct": [number(column["distinct"] or "many") for column in columns],
        "examples": [_cut(", ".join(column["examples"]), 30) for column in columns],
        "becomes": [f"{spec}{why}" for spec, why in zip(specs, reasons, strict=True)],
    }
    yield ""
    yield from table(cells, ("column", "type", "examples", "becomes"))
    yield from ("", "To train on it so, save these lines as columns.toml and edit them:")
    file = shlex.quote(facts["file"])
    yield from (f"  streamtron fit {file} --columns columns.toml --model MODEL", "")
    yield from _columns_file(facts)


def _columns_file(facts: Mapping[str, Any]) -> Lines:
    """Yield the lines of a file of columns."""
    columns = facts["table"]
    labels = [column for column in columns if column["becomes"] == "label"]
    name = _toml(labels[0]["name"]) if labels else ""
    comment = '# label = "NAME": the column of the labels, whose line below is to go'
    yield f"label = {name}" if labels else comment
    if labels and labels[0]["reason"]:
        yield 'loss = "squared_error"'
    yield from ("", "[columns]")
    for column in columns:
        if column["becomes"] not in (None, "label", "weight"):
            yield f"{_key(column['name'])} = {_toml(column['becomes'])}"
        elif column["becomes"] is None:
            yield f"# {_key(column['name'])} is left out: {column['reason']}"


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _toml(name)


def _cut(text: str, most: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


_LINES = {"model": _model, "witness": _witness, "run": _run, "shards": _shards, "table": _table}
