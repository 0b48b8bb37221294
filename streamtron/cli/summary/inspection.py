"""Summary of ``inspect``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamtron.cli.summary.proof import bounds, certificate_lines
from streamtron.core.config import format_size
from streamtron.core.text import MANY, Lines, aligned, and_more, class_table, label_text, left_out


def inspection_lines(facts: Mapping[str, Any], *, plan: bool = False) -> Lines:
    """Yield the lines for a model, a witness, a run or shards."""
    if plan:
        return _plan(facts)
    lines = {"model": _model, "witness": _witness, "run": _run, "shards": _shards}
    return lines[facts["kind"]](facts)


def _model(facts: Mapping[str, Any]) -> Lines:
    yield from _two_classes(facts) if "bias" in facts else _many_classes(facts)
    for title in ("settings", "reading"):
        yield from ("", title)
        yield from _indented(facts[title])
    if "largest_weights" in facts:
        yield from ("", "largest weights")
        for entry in facts["largest_weights"]:
            name = f"  {entry['name']}" if "name" in entry else ""
            yield f"  column {entry['column']:>10}  {entry['weight']:>+13.6g}{name}"


def _two_classes(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "columns", "nonzero_weights", "bias")
    smaller, larger = map(label_text, facts["classes"])
    yield from aligned([("classes", f"{larger} where the decision is above 0, else {smaller}")])
    yield ""
    certificate = facts["certificate"]
    if _complete(certificate, *_BOUNDS):
        yield from certificate_lines(certificate)
        yield from aligned([("rows", certificate["rows_scanned"])])
    else:
        yield _UNCERTIFIED


_BOUNDS = ("primal_margin", "upper_bound", "relative_duality_gap", "rows_scanned")
_UNCERTIFIED = "no certificate: use streamtron certify"
_DECIDES = {
    "multiclass": "{} of which the one whose decision is highest is chosen",
    "multilabel": "{} each chosen where its decision is above 0",
}


def _many_classes(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "columns", "nonzero_weights")
    chosen = _DECIDES[facts["classification"]].format(f"{len(facts['classes']):,},")
    yield from aligned([("classes", chosen)])
    certificate = facts["certificate"]
    if not _complete(certificate, "relative_duality_gap", "rows_scanned"):
        yield from ("", _UNCERTIFIED)
    else:
        gap, rows = float(certificate["relative_duality_gap"]), certificate["rows_scanned"]
        yield from aligned([("largest gap", gap), ("rows", rows)])
    yield ""
    learners = facts["learners"]
    yield from class_table(
        [each["label"] for each in learners],
        bounds([_if_complete(each["certificate"]) for each in learners]),
        ("largest weights", [_largest(each) for each in learners]),
    )


def _complete(certificate: Any, *names: str) -> bool:
    """Return whether the numbers are there: a model file may hold any certificate or none. An upper
    bound that was not found is None."""
    if not isinstance(certificate, Mapping):
        return False
    found = [certificate.get(name, "missing") for name in names]
    return all(
        isinstance(value, int | float) or (value is None and name == "upper_bound")
        for name, value in zip(names, found, strict=True)
    )


def _if_complete(certificate: Any) -> Mapping[str, Any] | None:
    return certificate if _complete(certificate, *_BOUNDS) else None


def _largest(learner: Mapping[str, Any], most: int = 3) -> str:
    """Return the largest weights of a class, on one line."""
    return "  ".join(
        f"{entry.get('name', entry['column'])} {entry['weight']:+.3g}"
        for entry in learner["largest_weights"][:most]
    )


def _indented(values: Mapping[str, Any]) -> Lines:
    for name, value in values.items():
        yield f"  {name:<16} {_brief(value)}"


def _brief(value: Any) -> str:
    """Format a value on one line; of a long list the beginning and the length."""
    if isinstance(value, list):
        more = f", … ({len(value):,} in all)" if len(value) > MANY else ""
        return ", ".join(map(str, value[: 3 if more else MANY])) + more
    return "-" if value is None else str(value)


def _witness(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "rows", "support_rows", "steps", "largest_count")
    yield from aligned([("size", format_size(facts["bytes"])), ("shards", len(facts["shards"]))])
    for shard in facts["shards"][:MANY]:
        yield f"  {shard['fingerprint']}  {shard['rows']:>13,} rows"
    yield from and_more(facts["shards"])


def _run(facts: Mapping[str, Any]) -> Lines:
    by = f", by {facts['process']}" if facts["process"] else ""
    yield from aligned([("state", facts["state"] + by)])
    yield from _progress(facts["progress"])
    if "rows" in facts:
        yield from _some(facts, "rows", "nonzeros")
        if facts["forgotten_rows"]:
            yield from aligned([("rows forgotten", facts["forgotten_rows"])])
    yield from aligned(
        [
            ("shards", f"{len(facts['shards'])}, {format_size(facts['bytes'])}"),
            ("witness", facts["witness"] or "none"),
            ("cache", format_size(facts["cache_bytes"])),
            ("next", facts["next"]),
        ]
    )
    if facts["settings"]:
        yield from ("", "settings")
        yield from _indented(facts["settings"])
    if "rows" in facts:
        yield from _shard_table(facts["shards"])
        return
    yield ""
    for shard in facts["shards"][:MANY]:
        yield f"{format_size(shard['bytes']):>10}  {shard['name']}"
    yield from and_more(facts["shards"])


def _progress(progress: Mapping[str, Any] | None) -> Lines:
    """Yield the progress of a run."""
    if progress is None:
        return
    known = ("stage", "full_epochs", "relative_duality_gap")
    yield from aligned(
        [
            ("reading", progress["reading"]),
            *((name.replace("_", " "), progress[name]) for name in known if progress.get(name)),
            ("nonzeros read", progress["nonzeros_read"]),
            ("seconds", round(progress["seconds"], 1)),
        ]
    )


def _shards(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "rows", "columns", "nonzeros", "index_base")
    yield from aligned([("format", facts["format"]), ("size", format_size(facts["bytes"]))])
    if facts["layout"] is not None:
        yield from aligned([("features", f"{_brief(facts['features'])} ({facts['layout']})")])
    labels = sorted(facts["labels"].items(), key=lambda item: -item[1])
    for label, rows in labels[:MANY]:
        yield from aligned([(f"label {label}", rows)])
    yield from and_more(labels)
    if facts["unlabelled_rows"]:
        yield from aligned([("without a label", facts["unlabelled_rows"])])
    yield from _shard_table(facts["shards"])
    yield from left_out(facts["skipped"])


def _shard_table(shards: Sequence[Mapping[str, Any]]) -> Lines:
    yield ""
    yield f"{'rows':>13} {'nonzeros':>15} {'size':>10}  shard"
    for shard in shards[:MANY]:
        yield (
            f"{shard['rows']:>13,} {shard['nonzeros']:>15,} {format_size(shard['bytes']):>10}"
            f"  {shard['name']}"
        )
    yield from and_more(shards)


def _plan(facts: Mapping[str, Any]) -> Lines:
    plan = facts["plan"]
    for what, size in plan["items"].items():
        yield f"{what:<34} {format_size(size):>10}"
    yield f"{'memory needed':<34} {format_size(plan['total']):>10}"
    yield f"{'limit':<34} {format_size(plan['limit']):>10}"
    fits = plan["total"] <= plan["limit"]
    yield "it fits" if fits else "it does NOT fit: give a larger --memory or a smaller --active-set"


def _some(facts: Mapping[str, Any], *names: str) -> Lines:
    return aligned([(name.replace("_", " "), facts[name]) for name in names])
