"""Summary of a fit, an update or a forget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from streamtron.cli.summary.proof import bounds, certificate_lines, covered
from streamtron.core.config import format_size
from streamtron.core.text import MANY, Lines, aligned, and_more, class_table, label_text, up


def fit_summary(report: Mapping[str, Any], model: str, cache: str, cache_bytes: int) -> Lines:
    """Yield the summary of a fit; the last line names the cache and its size."""
    yield from aligned(
        [
            ("rows", report["rows"]),
            *([("rows forgotten", report["forgotten_rows"])] if "forgotten_rows" in report else []),
            ("columns", report["columns"]),
            ("nonzeros", report["nonzeros"]),
            ("readings", round(report["readings"], 3)),
            ("full epochs", report["full_epochs"]),
            ("seconds", round(report["seconds"], 2)),
        ]
    )
    yield ""
    yield from learned_lines(report)
    yield from place_lines(model, cache, cache_bytes)


def learned_lines(report: Mapping[str, Any]) -> Lines:
    """Yield the stages or classes, the certificate, and whether it meets the tolerance."""
    learners = report.get("learners", [report])
    yield from _classes(learners) if "learners" in report else _stages(report["stages"])
    if clipped := sum(each["clipped_updates"] for each in learners):
        yield f"counts reached 2³¹ − 1: {clipped:,} steps were cut there"
    if drift := max(each["drift_repaired"] for each in learners):
        yield (
            f"the running weights had drifted by {drift:.1g} of their length from those of the "
            "counts, and were computed anew"
        )
    yield ""
    yield from proven_lines(report)


def proven_lines(report: Mapping[str, Any]) -> Lines:
    """Yield the certificate of a fit, and whether it meets the tolerance."""
    if "learners" not in report:
        yield from certificate_lines(report["certificate"])
        yield _verdict(report)
        return
    yield from aligned([("largest gap", _gap(report))])
    yield from covered({**report["certificate"], "skipped": report["skipped"]})
    yield _verdict_of_many(report)


def nothing_done(report: Mapping[str, Any]) -> Lines:
    """Yield the shards that an update or a forget skipped."""
    for names, reason in (
        (report.get("already_in_run", ()), "in the run already; it is skipped"),
        (report.get("not_in_run", ()), "not in the run; there is nothing to forget"),
    ):
        yield from (f"{name}: {reason}" for name in names[:MANY])
        yield from and_more(names)


def place_lines(model: str, cache: str, cache_bytes: int) -> Lines:
    """Yield where the model and the cache are, and the size of the cache."""
    yield ""
    yield f"{'model':<18} {model}"
    where = f"{cache}  ({format_size(cache_bytes)})" if cache_bytes else "none"
    yield f"{'cache':<18} {where}"


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
            f"{stage['mini_epochs']:>11} {stage['updates']:>13,}  {stage['stop_reason']}"
        )


def _classes(learners: Sequence[Mapping[str, Any]]) -> Lines:
    """Yield the classes with the widest gaps, in their order, and the others together."""
    worst = sorted(range(len(learners)), key=lambda k: _rank(learners[k]))[-MANY:]
    shown = [learners[k] for k in sorted(worst)]
    epochs = {"full epochs": [str(each["full_epochs"]) for each in shown]}
    yield from class_table(
        [each["label"] for each in shown],
        bounds([each["certificate"] for each in shown]) | epochs,
        ("ended because", [each["stages"][-1]["stop_reason"] for each in shown]),
    )
    if others := [each for k, each in enumerate(learners) if k not in worst]:
        ways = [each["stop_reason"] for each in others]
        ended = ", ".join(f"{ways.count(way):,} {way}" for way in dict.fromkeys(ways))
        yield f"… and {len(others):,} more, {ended}, gaps up to {max(map(_gap, others)):.3g}"


def _rank(learner: Mapping[str, Any]) -> tuple[bool, float]:
    return _stopped(learner), _gap(learner)


def _gap(report: Mapping[str, Any]) -> float:
    return float(report["certificate"]["relative_duality_gap"])


def _stopped(learner: Mapping[str, Any]) -> bool:
    """Return whether it stopped before it was certified or converged."""
    return learner["stop_reason"] not in ("certified", "converged")


def _verdict_of_many(report: Mapping[str, Any]) -> str:
    learners, gap, tol = report["learners"], _gap(report), report["settings"]["tol"]
    if stopped := sum(map(_stopped, learners)):
        return (
            f"NOT certified: {stopped:,} of {len(learners):,} classes; the largest gap is "
            f"{gap:.3g}, the tolerance {tol:g}"
        )
    if gap <= tol:
        return f"certified: the gaps of all {len(learners):,} classes are within {tol:g}"
    return f"converged: nothing is left to update in any class; the largest gap is {gap:.3g}"


def _verdict(report: Mapping[str, Any]) -> str:
    gap, tol = report["certificate"]["relative_duality_gap"], report["settings"]["tol"]
    words = {
        "certified": f"certified: the gap {up(gap, 3)} is within the tolerance {tol:g}",
        "converged": f"converged: nothing is left to update; the gap is {up(gap, 3)}",
        "no margin": f"NOT certified: no margin above {up(_upper(report))} exists",
        "epoch limit": f"NOT certified: the gap is {up(gap, 3)}, the tolerance {tol:g}",
    }
    return words[report["stop_reason"]]


def not_certified(report: Mapping[str, Any], model: str) -> str:
    """Return the message of a fit that stopped before its tolerance was certified."""
    settings = report["settings"]
    if report["stop_reason"] == "no margin":
        return no_margin(report, model)
    stage = settings["stage"]
    help_ = [f"more --max-epochs than {settings['max_epochs']}"]
    if stage != "auto" and not stage.endswith("ascent"):
        help_.append("--stage auto, which ends with ascent")
    help_.append(f"an --active-set above {format_size(settings['active_set'])}")
    help_.append(f"a --tol looser than {settings['tol']:g}")
    return (
        f"{_stopped_classes(report)} before the tolerance was certified: the "
        f"{'largest ' if 'learners' in report else ''}relative duality gap is {_gap(report):.3g}, "
        f"wanted {settings['tol']:g}. {model} holds the model so far. What would help: "
        f"{', '.join(help_[:-1])}, or {help_[-1]}."
    )


def _stopped_classes(report: Mapping[str, Any], most: int = 5) -> str:
    """Return ``stopped``, after the names of the classes if there are many, the worst first."""
    if "learners" not in report:
        return "stopped"
    stopped = sorted(filter(_stopped, report["learners"]), key=_gap, reverse=True)
    names = ", ".join(label_text(each["label"]) for each in stopped[:most])
    more = ", …" if stopped[most:] else ""
    return f"{len(stopped):,} of {len(report['learners']):,} classes ({names}{more}) stopped"


def _upper(report: Mapping[str, Any]) -> float:
    return float(report["certificate"]["upper_bound"] or math.inf)


def no_margin(report: Mapping[str, Any], model: str) -> str:
    """Return the message of a hard-margin fit on rows that have almost no margin."""
    learners = report.get("learners", [report])
    worst = next(each for each in learners if each["stop_reason"] == "no margin")
    which = f", class {label_text(worst['label'])} from the rest," if "label" in worst else ""
    upper = _upper(worst)
    return (
        f"no classifier separates the rows{which} by a margin above {up(upper)}, which is "
        f"{up(upper / worst['radius'], 1)} of R, the longest row, and none was found that "
        f"separates them at all. {model} holds the model so far. Give a soft margin, --C 1 "
        "say, instead of --delta 0."
    )
