"""The command ``inspect``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files
from streamtron.cli.summary import bounds, certificate_lines
from streamtron.cli.terminal import class_table, fact_lines, print_values, table
from streamtron.core import text
from streamtron.core.config import READING, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.files import write_atomically


@options.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path())
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
    """Describe a model, a witness, a run directory, or shards, which are read once."""
    from streamtron.runs.inspect import inspect as look

    settings, machine = options.split(given)
    facts = look(paths, Settings.from_dict(settings), machine)
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
_PROVEN = ("relative_duality_gap", "rows_scanned")


def _model(facts: Mapping[str, Any]) -> text.Lines:
    yield from fact_lines(facts, "format_version", "columns", "nonzero_weights", "bias")
    names = [*map(text.label_text, facts["classes"])]
    yield from text.aligned([("kind", facts["classification"])])
    if names:
        shown = facts["calibration"] or _PROBABILITIES[facts["probabilities"]]
        yield from text.aligned([("classes", _brief(names)), ("probabilities", shown)])
    yield ""
    learners, certificate = facts.get("learners"), facts["certificate"]
    if _is_proven(certificate):
        yield from certificate_lines(certificate, many=learners is not None)
        yield from text.aligned([("rows", certificate["rows_scanned"])])
        if not learners and (gap := certificate["relative_duality_gap"]) < 1.0:
            yield f"{text.within(gap)}, proven on these rows"
    else:
        yield "no certificate: use streamtron certify"
    if learners:
        proven = [learner["certificate"] for learner in learners]
        yield ""
        yield from class_table(
            [learner["label"] for learner in learners],
            bounds([bound if _is_proven(bound) else None for bound in proven])
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


def _is_proven(certificate: Any) -> bool:
    """Return whether a certificate, which may be any model's, has numbers where some are needed."""
    known = certificate if isinstance(certificate, Mapping) else {}
    return all(isinstance(known.get(name), int | float) for name in _PROVEN)


def _largest(learner: Mapping[str, Any], most: int = 3) -> text.Lines:
    for entry in learner["largest_weights"][:most]:
        yield f"{entry.get('name', entry['column'])} {entry['weight']:+.3g}"


def _indented(values: Mapping[str, Any]) -> text.Lines:
    """Yield all values, and in a line the names of those where a default or the data decides."""
    for name, value in values.items():
        if value is not None:
            yield f"  {name:<16} {_brief(value)}"
    if absent := [name for name, value in values.items() if value is None]:
        yield f"  {'not set':<16} {', '.join(absent)}"


def _brief(value: Any) -> str:
    """Format a value on one line; of a long list the beginning and the length."""
    if isinstance(value, list):
        dots = f", … ({len(value):,} in all)" if len(value) > text.MANY else ""
        return ", ".join(map(str, value[: 3 if dots else text.MANY])) + dots
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_brief(x)}" for k, x in value.items() if x not in (None, []))
    return str(value)


def _witness(facts: Mapping[str, Any]) -> text.Lines:
    yield from fact_lines(facts, "rows", "support_rows", "bytes")
    yield from _shard_table(facts["shards"])


def _run(facts: Mapping[str, Any]) -> text.Lines:
    yield from fact_lines(facts, "state", "process")
    if progress := facts["progress"]:
        yield from fact_lines(progress, "reading", "stage", "full_epochs", "nonzeros_read")
        if (gap := progress.get("relative_duality_gap")) is not None:
            yield f"{'gap':<18} {text.up(gap):>13}"
        seconds = progress.get("seconds")
        yield from fact_lines({"seconds": seconds and round(seconds, 1)}, "seconds")
    forgotten = {f"{kind} forgotten": facts.get(f"forgotten_{kind}") for kind in ("rows", "shards")}
    yield from fact_lines(facts, "rows", "nonzeros")
    yield from text.aligned([(name, rows) for name, rows in forgotten.items() if rows])
    yield from fact_lines(facts, "bytes", "cache_bytes", "next")
    if facts["settings"]:
        yield from ("", "settings")
        yield from _indented(facts["settings"])
    yield from _shard_table(facts["shards"])


def _shards(facts: Mapping[str, Any]) -> text.Lines:
    yield from fact_lines(facts, "rows", "columns", "nonzeros", "index_base", "format", "bytes")
    if facts["features"] is not None:
        yield from text.aligned([("features", f"{_brief(facts['features'])} ({facts['layout']})")])
    labels = sorted(facts["labels"].items(), key=lambda item: -item[1])
    counted = [(f"label {text.quoted(label)}", rows) for label, rows in labels[: text.MANY]]
    yield from (*text.aligned(counted), *text.and_more(labels))
    targets = (facts["targets"] or {}).items()
    yield from text.aligned([(f"label {name}", value) for name, value in targets])
    if facts["remark"]:
        yield f"the labels are {facts['remark']}"
    if facts["unlabelled_rows"]:
        yield from text.aligned([("without a label", facts["unlabelled_rows"])])
    yield from _shard_table(facts["shards"])
    if "table" in facts:
        yield ""
        yield from _table(facts)


def _shard_table(shards: Sequence[Mapping[str, Any]]) -> text.Lines:
    forms = {"rows": text.number, "nonzeros": text.number, "bytes": text.format_size}
    columns = {
        name: [form(shard[name]) for shard in shards[: text.MANY]]
        for name, form in forms.items()
        if shards and name in shards[0]
    }
    names = [shard.get("name", shard.get("fingerprint")) for shard in shards[: text.MANY]]
    yield ""
    yield from table({**columns, "shard": names}, ["shard"])
    yield from text.and_more(shards)


def _plan(facts: Mapping[str, Any]) -> text.Lines:
    plan = facts["plan"]
    sizes = {**plan["items"], "memory needed": plan["total"], "limit": plan["limit"]}
    sizes["memory if visits alone solve it"] = plan["total_of_visits"]
    sizes["disk for the prepared data"] = plan["disk"]
    if plan["learners"] > 1:
        yield f"{plan['learners']:,} learners, {plan['learners_at_once']:,} at a time"
    yield from (f"{what:<34} {text.format_size(size):>10}" for what, size in sizes.items())
    fits = plan["total"] <= plan["limit"]
    smaller = " or a smaller --active-set" if plan["active_set"] else ""
    yield "it fits" if fits else f"it does NOT fit: give a larger --memory{smaller}"
    seconds = {phase: plan[phase] for phase in ("preparing", "scanning", "solving")}
    phases = ", ".join(f"{phase} {text.format_duration(spent)}" for phase, spent in seconds.items())
    yield f"about {text.format_duration(sum(seconds.values()))} at C = 1: {phases}"


def _table(facts: Mapping[str, Any]) -> text.Lines:
    """Yield the columns of a table."""
    columns = facts["table"]
    specs = [column["becomes"] or "left out" for column in columns]
    reasons = [f" ({column['reason']})" if column["reason"] else "" for column in columns]
    yield from fact_lines(facts, "rows", "format")
    cells = {
        "column": [_cut(column["name"], 24) for column in columns],
        "type": [_cut(column["type"], 14) for column in columns],
        "nulls": [text.number(column["nulls"]) for column in columns],
        "distinct": [text.number(column["distinct"] or "many") for column in columns],
        "examples": [_cut(", ".join(column["examples"]), 30) for column in columns],
        "becomes": [f"{spec}{why}" for spec, why in zip(specs, reasons, strict=True)],
    }
    yield ""
    yield from table(cells, ("column", "type", "examples", "becomes"))
    yield "--columns auto trains on it so; --write-columns writes these columns to be edited."


def _columns_file(facts: Mapping[str, Any]) -> text.Lines:
    """Yield the lines of a file of columns."""
    columns = facts["table"]
    label = next((column for column in columns if column["becomes"] == "label"), None)
    if label is None:
        yield '# label = "NAME": the column of the labels, whose line below is to go'
    else:
        yield f"label = {_toml(label['name'])}"
        if label["reason"]:
            yield 'loss = "squared_error"'
    yield from ("", "[columns]")
    for column in columns:
        if column["becomes"] is None:
            yield f"# {_toml(column['name'])} is left out: {column['reason']}"
        elif column["becomes"] not in ("label", "weight"):
            yield f"{_toml(column['name'])} = {_toml(column['becomes'])}"


def _toml(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)


def _cut(words: str, most: int) -> str:
    plain = " ".join(words.split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


_LINES = {"model": _model, "witness": _witness, "run": _run, "shards": _shards, "table": _table}
