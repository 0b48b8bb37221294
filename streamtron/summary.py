"""What the commands say at the end, as aligned text: from plain values to lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamtron.config import format_size

Lines = Iterator[str]
Item = tuple[str, object]

MANY = 20
"""Shards listed one by one at most."""


def aligned(items: Sequence[Item]) -> Lines:
    """``name   value`` lines, numbers to the right in a column of their own.

    Examples
    --------
    >>> print(*aligned([("rows", 12), ("gap", 0.25), ("where", "here")]), sep="\\n")
    rows                          12
    gap                         0.25
    where              here
    """
    for name, value in items:
        if isinstance(value, bool | str):
            yield f"{name:<18} {value}"
        else:
            yield f"{name:<18} {number(value):>13}"


def label_text(label: object) -> str:
    """A label as text shows it: a whole number without its point.

    Examples
    --------
    >>> label_text(-1.0), label_text(0.5), label_text("spam"), label_text(True)
    ('-1', '0.5', 'spam', 'True')
    """
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def number(value: object) -> str:
    """A number as people read it; ``-`` for None.

    Examples
    --------
    >>> number(1234567), number(0.012345678), number(2.5e-9), number(None)
    ('1,234,567', '0.01234568', '2.5e-09', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


# --- fit ---


def fit_summary(report: Mapping[str, Any], model: str, cache: str, cache_bytes: int) -> Lines:
    """What a fit did and proved; the last line names the cache and its size."""
    yield from aligned(
        [
            ("rows", report["rows"]),
            ("columns", report["columns"]),
            ("nonzeros", report["nonzeros"]),
            ("readings", round(report["readings"], 3)),
            ("full epochs", report["full_epochs"]),
            ("seconds", round(report["seconds"], 2)),
        ]
    )
    yield ""
    yield from _stages(report["stages"])
    if report["clipped"]:
        yield f"counts reached 2³¹ − 1: {report['clipped']:,} steps were cut there"
    yield ""
    yield from certificate_lines(report["certificate"])
    yield _verdict(report)
    yield ""
    yield f"{'model':<18} {model}"
    yield f"{'cache':<18} {cache}  ({format_size(cache_bytes)})"


def _stages(stages: Sequence[Mapping[str, Any]]) -> Lines:
    relative = "b/R²" if stages and stages[0]["variant"] == "steps" else "b/R^(1+ε)"
    yield (
        f"{'stage':<8} {relative:>10} {'full epochs':>11} {'mini-epochs':>11} {'updates':>13}"
        "  ended because"
    )
    for stage in stages:
        name = stage["epsilon"]
        shown = name if isinstance(name, str) else f"{name:g}"
        b = stage["b_relative"]
        yield (
            f"{shown:<8} {'-' if b is None else format(b, '.4g'):>10} {stage['full_epochs']:>11} "
            f"{stage['mini_epochs']:>11} {stage['updates']:>13,}  {stage['why']}"
        )


def _verdict(report: Mapping[str, Any]) -> str:
    gap, tol = report["certificate"]["relative_duality_gap"], report["settings"]["tol"]
    words = {
        "certified": f"certified: the gap {gap:.3g} is within the tolerance {tol:g}",
        "converged": f"converged: nothing is left to update; the gap is {gap:.3g}",
        "inseparable": "NOT certified: no classifier separates the rows by any real margin",
        "epoch limit": f"NOT certified: the gap is {gap:.3g}, the tolerance {tol:g}",
    }
    return words[report["ending"]]


def not_certified(report: Mapping[str, Any], model: str) -> str:
    """The sentence of a fit that stopped before its tolerance was certified."""
    settings = report["settings"]
    if report["ending"] == "inseparable":
        return inseparable(report, model)
    gap = report["certificate"]["relative_duality_gap"]
    stage = settings["stage"]
    help_ = [f"more --max-epochs than {settings['max_epochs']}"]
    if stage != "auto" and not stage.endswith("unlearn"):
        help_.append("--stage auto, which ends with unlearn")
    help_.append(f"an --active-set above {format_size(settings['active_set'])}")
    help_.append(f"a --tol looser than {settings['tol']:g}")
    return (
        f"stopped before the tolerance was certified: the relative duality gap is {gap:.3g}, "
        f"asked for was {settings['tol']:g}. {model} is written as far as it came. What would "
        f"help: {', '.join(help_[:-1])}, or {help_[-1]}."
    )


def inseparable(report: Mapping[str, Any], model: str) -> str:
    """The sentence of a hard-margin fit on rows that no classifier separates."""
    upper = report["certificate"]["upper_bound"]
    return (
        f"the rows look inseparable: no classifier can have a margin above {upper:.3g}, which is "
        f"{upper / report['radius']:.1g} of R, the longest row. {model} is written as far as it "
        "came. Give a soft margin, --C 1 say, instead of --delta 0."
    )


# --- certificates ---


def certificate_lines(certificate: Mapping[str, Any]) -> Lines:
    """Lower bound, upper bound, gap."""
    upper, gap = certificate["upper_bound"], certificate["relative_duality_gap"]
    yield from aligned([("lower bound", certificate["primal_margin"])])
    yield from aligned([("upper bound", "none found" if upper is None else upper)])
    yield from aligned([("gap", float(gap))])


def proof_lines(proof: Mapping[str, Any]) -> Lines:
    """What ``certify`` has proven."""
    certificate = proof["certificate"]
    yield from aligned(
        [("rows", certificate["rows_scanned"]), ("readings", round(proof["readings"], 3))]
    )
    yield from certificate_lines(certificate)
    scale, radius = proof["weights_scale"], proof["decision_radius"]
    yield from aligned([("scale of weights", scale), ("decision radius", radius)])
    if certificate["drift"]:
        yield from aligned([("drift", certificate["drift"])])
    yield (
        "No linear classifier on these rows has a directional margin above the upper bound; "
        "this one's is at least the lower bound."
    )


# --- evaluate ---


def evaluation_lines(metrics: Mapping[str, Any]) -> Lines:
    """The metrics, the main ones first."""
    names = ("rows", "accuracy", "precision", "recall", "f1", "roc_auc", "average_precision")
    words = {"f1": "F1", "roc_auc": "ROC AUC", "average_precision": "average precision"}
    yield from aligned([(words.get(name, name), metrics[name]) for name in names])


# --- inspect ---


def inspection_lines(facts: Mapping[str, Any], *, plan: bool = False) -> Lines:
    """What ``inspect`` found, by kind."""
    if plan:
        return _plan(facts)
    lines = {"model": _model, "witness": _witness, "run": _run, "shards": _shards}
    return lines[facts["kind"]](facts)


def _model(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "columns", "nonzero_weights", "bias")
    smaller, larger = map(label_text, facts["classes"])
    yield from aligned([("classes", f"{larger} where the decision is above 0, else {smaller}")])
    yield ""
    if facts["certificate"] is None:
        yield "no certificate: use streamtron certify"
    else:
        yield from certificate_lines(facts["certificate"])
        yield from aligned([("rows", facts["certificate"]["rows_scanned"])])
    for title in ("settings", "reading"):
        yield from ("", title)
        yield from _indented(facts[title])
    yield from ("", "largest weights")
    for entry in facts["largest_weights"]:
        name = f"  {entry['name']}" if "name" in entry else ""
        yield f"  column {entry['column']:>10}  {entry['weight']:>+13.6g}{name}"


def _indented(values: Mapping[str, Any]) -> Lines:
    for name, value in values.items():
        yield f"  {name:<16} {_brief(value)}"


def _brief(value: Any) -> str:
    """A value on one line: of a long list, how long it is."""
    if isinstance(value, list):
        more = f", … ({len(value):,} in all)" if len(value) > MANY else ""
        return ", ".join(map(str, value[: 3 if more else MANY])) + more
    return "-" if value is None else str(value)


def _witness(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "rows", "support_rows", "steps", "largest_count")
    yield from aligned([("size", format_size(facts["bytes"])), ("shards", len(facts["shards"]))])
    for shard in facts["shards"][:MANY]:
        yield f"  {shard['fingerprint']}  {shard['rows']:>13,} rows"
    yield from _more(facts["shards"])


def _run(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "rows", "nonzeros")
    yield from aligned(
        [
            ("shards", f"{len(facts['shards'])}, {format_size(facts['bytes'])}"),
            ("witness", facts["witness"] or "none"),
            ("cache", format_size(facts["cache_bytes"])),
        ]
    )
    yield from _shard_table(facts["shards"])


def _shards(facts: Mapping[str, Any]) -> Lines:
    yield from _some(facts, "rows", "columns", "nonzeros", "index_base")
    yield from aligned([("format", facts["format"]), ("size", format_size(facts["bytes"]))])
    if facts["layout"] is not None:
        yield from aligned([("features", f"{_brief(facts['features'])} ({facts['layout']})")])
    for label, rows in facts["labels"].items():
        yield from aligned([(f"label {label}", rows)])
    if facts["unlabelled_rows"]:
        yield from aligned([("without a label", facts["unlabelled_rows"])])
    yield from _shard_table(facts["shards"])


def _shard_table(shards: Sequence[Mapping[str, Any]]) -> Lines:
    yield ""
    yield f"{'rows':>13} {'nonzeros':>15} {'size':>10}  shard"
    for shard in shards[:MANY]:
        yield (
            f"{shard['rows']:>13,} {shard['nonzeros']:>15,} {format_size(shard['bytes']):>10}"
            f"  {shard['name']}"
        )
    yield from _more(shards)


def _more(shards: Sequence[Any]) -> Lines:
    if len(shards) > MANY:
        yield f"… and {len(shards) - MANY:,} more"


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


# --- batch ---


def fate_line(fate: Mapping[str, Any]) -> str:
    """What has just become of a job.

    Examples
    --------
    >>> fate_line({"name": "score", "command": "predict", "state": "done", "sentence": ""})
    'score (predict): done'
    """
    said = f": {fate['sentence']}" if fate["sentence"] else ""
    return f"{fate['name']} ({fate['command']}): {fate['state']}{said}"


def batch_verdict(path: str, fates: Sequence[Mapping[str, Any]]) -> str:
    """How many jobs are done, and which are not.

    Examples
    --------
    >>> batch_verdict("b.toml", [{"name": "a", "state": "done"}, {"name": "c", "state": "failed"}])
    'b.toml: 1 of 2 jobs done; failed: c. Correct what they say, and call it again.'
    """
    done = sum(fate["state"] == "done" for fate in fates)
    parts = [f"{path}: {done} of {len(fates)} jobs done"]
    for state in ("failed", "skipped"):
        names = [fate["name"] for fate in fates if fate["state"] == state]
        parts += [f"{state}: {', '.join(names)}"] if names else []
    end = ". Correct what they say, and call it again." if len(parts) > 1 else ""
    return "; ".join(parts) + end
