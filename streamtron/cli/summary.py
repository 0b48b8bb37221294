"""Lines of certificates and fits, which several commands print."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from streamtron.cli.terminal import class_table, table
from streamtron.core.config import DEFAULT_ACTIVE_SET, Machine, meets
from streamtron.core.text import (
    BOUNDS,
    MANY,
    PROVEN,
    Lines,
    aligned,
    column_lines,
    format_size,
    label_text,
    up,
    within,
)

Report = Mapping[str, Any]

MOST = 5
"""Classes that did not meet the tolerance, at most, that a message names."""


def certificate_lines(certificate: Report, *, many: bool = False) -> Lines:
    """Yield the objectives, the bounds on the margin of the squared hinge, and the gap; of many
    classes the largest gap. Say which rows the bounds cover, if shards were left out."""
    gap = up(certificate["relative_duality_gap"])
    if many:
        figures = {"largest gap": gap}
    else:
        figures = {
            words: rounded(certificate[name])
            for words, name, rounded in PROVEN
            if certificate.get(name) is not None
        }
        if "dual objective" not in figures:
            figures["dual objective"] = "none found"
        figures["gap"] = gap
    yield from (f"{name:<18} {figure:>13}" for name, figure in figures.items())


def bounds(certificates: Sequence[Report | None]) -> dict[str, list[str]]:
    """Return lower bound, upper bound and gap as columns of a table, without margins the objectives
    and the gap; ``-`` for unknown values."""
    known = [certificate or {} for certificate in certificates]
    heads = [*PROVEN[2:], ("gap", BOUNDS[2], up)]
    if not any(certificate.get("primal_margin") for certificate in known):
        heads[:2] = [("primal", *PROVEN[0][1:]), ("dual", *PROVEN[1][1:])]
    return {
        head: [rounded(certificate.get(name), 6) for certificate in known]
        for head, name, rounded in heads
    }


def fit_lines(report: Report, *, verbose: bool) -> Lines:
    """Yield the summary of a fit; with ``verbose`` how it was found, too."""
    settings = report["settings"]
    yield from aligned([("rows", report["rows"]), ("columns", report["columns"])])
    yield from column_lines(report)
    facts: list[tuple[str, object]] = []
    if "forgotten_rows" in report:
        facts.append(("rows left out", report["forgotten_rows"]))
    if (size := settings["active_set"]) != DEFAULT_ACTIVE_SET:
        facts.append(("active set", format_size(size)))
    if "nonzero_weights" in report:
        facts.append(("weights not 0", f"{report['nonzero_weights']:,}"))
    if verbose:
        facts += [(name.replace("_", " "), report[name]) for name in ("nonzeros", "full_epochs")]
        facts.append(("readings", round(report["readings"], 3)))
        facts.append(("visits a row", round(report["visits"], 1)))
        facts.append(next((n, settings[n]) for n in ("C", "delta") if settings[n] is not None))
    facts.append(("seconds", round(report["seconds"], 2)))
    if verbose:
        facts += [(f"  {name}", round(spent, 2)) for name, spent in report["phases"].items()]
    yield from aligned(facts)
    yield ""
    yield from learned_lines(report, verbose=verbose)


def learned_lines(report: Report, *, verbose: bool) -> Lines:
    """Yield classes, and the proof; if ``verbose`` stages and bounds."""
    learners, many = _learners(report), "learners" in report
    if many:
        yield from (*_classes(learners), "")
    elif verbose:
        yield from (*_stages(report["stages"]), "")
    if verbose:
        yield from certificate_lines(report["certificate"], many=many)
    yield from zero_lines(learners, f" of {report['columns'] * len(learners):,}")
    yield _verdict(report)


def zero_lines(learners: Sequence[Report], of_all: str = "") -> Lines:
    """Yield how many weights are proven to be 0, if any are."""
    if zeros := sum(learner["certificate"].get("zero_columns", 0) for learner in learners):
        yield f"{zeros:,}{of_all} weights are proven to be 0 at the optimum"


def place_lines(model: str, machine: Machine) -> Lines:
    """Yield where model and cache are, the size of the cache, and the next command."""
    from streamtron.runs.finished_run import run_directory
    from streamtron.runs.inspect import directory_bytes

    cache = machine.cache_dir or os.path.join(machine.run_dir or run_directory(model), "cache")
    size = directory_bytes(cache)
    yield ""
    yield f"{'model':<18} {model}"
    yield f"{'cache':<18} {f'{cache}  ({format_size(size)})' if size else 'none'}"
    yield f"{'next':<18} streamtron evaluate {shlex.quote(model)} HELD-OUT-SHARDS"


def _stages(stages: Sequence[Report]) -> Lines:
    columns = {"stage": [f"{stage.get('epsilon', 'ascent')}" for stage in stages]}
    if stages and "epsilon" in stages[0]:  # of the paper's procedure
        relative = "b/R²" if stages[0]["variant"] == "steps" else "b/R^(1+ε)"
        columns["stage"] = [format(stage["epsilon"], "g") for stage in stages]
        columns[relative] = [_digits(stage["b_relative"]) for stage in stages]
    for name in ("full_epochs", "mini_epochs", "newton_steps", "updates"):
        words = name.replace("_", " ").replace("newton", "Newton").replace("mini ", "mini-")
        form = "," if name == "updates" else ""
        columns[words] = [format(stage[name], form) for stage in stages]
    columns["ended because"] = [stage["stop_reason"] for stage in stages]
    yield from table(columns, ("stage", "ended because"))


def _digits(b: float | None) -> str:
    return "-" if b is None else format(b, ".4g")


def _classes(learners: Sequence[Report]) -> Lines:
    """Yield the classes with the widest gaps, in their order, and the others together."""
    order = sorted(range(len(learners)), key=lambda k: _gap(learners[k]))
    shown = [learners[k] for k in sorted(order[-MANY:])]
    yield from class_table(
        [learner["label"] for learner in shown],
        bounds([learner["certificate"] for learner in shown])
        | {
            "full epochs": [str(learner["full_epochs"]) for learner in shown],
            "ended because": [learner["stop_reason"] for learner in shown],
        },
        ["ended because"],
    )
    if hidden := [learners[k] for k in order[:-MANY]]:
        ways = [learner["stop_reason"] for learner in hidden]
        ended = ", ".join(f"{ways.count(way):,} {way}" for way in dict.fromkeys(ways))
        yield f"… and {len(hidden):,} more, {ended}, gaps up to {up(max(map(_gap, hidden)), 3)}"


def _learners(report: Report) -> Sequence[Report]:
    learners: Sequence[Report] = report.get("learners", [report])
    return learners


def _gap(report: Report) -> float:
    return float(report["certificate"]["relative_duality_gap"])


def _failed(report: Report) -> list[Report]:
    """Return the learners that did not do what the tolerance asks, the worst first."""
    failed = (
        learner
        for learner in _learners(report)
        if not meets(report["settings"], _gap(learner), learner["stop_reason"])
    )
    return sorted(failed, key=_gap, reverse=True)


def _verdict(report: Report) -> str:
    learners, tol = report.get("learners", ()), report["settings"]["tol"]
    gap = f"the {'largest ' if learners else ''}gap is {up(_gap(report), 3)}"
    if failed := _failed(report):
        if learners:
            gap = f"{len(failed):,} of {len(learners):,} classes; {gap}"
        return f"NOT certified: {gap}, the tolerance {tol:g}"
    which = f"each of the {len(learners):,} classes is " if learners else ""
    converged = "nothing is left to update; " if _gap(report) > tol else ""
    return f"{converged}{which}{within(_gap(report))}, proven"


def not_certified(report: Report, model: str) -> str:
    """Return the message of a fit that did not meet its tolerance."""
    settings, reason = report["settings"], report["stop_reason"]
    in_readings, in_time = reason != "epoch limit", reason != "time limit"
    no_ascent = settings["stage"] not in ("auto", "ascent")
    ended = "converged" if in_readings and in_time else "stopped"
    helps = (
        "more --time-limit, fit --resume, " * (not in_time)
        + f"more --max-epochs than {settings['max_epochs']}, " * (not in_readings)
        + "--stage auto, " * no_ascent
        + f"an --active-set above {format_size(settings['active_set'])}, " * (not in_readings)
    )
    which = largest = ""
    if (learners := report.get("learners")) is not None:
        failed, largest = [learner["label"] for learner in _failed(report)], "largest "
        dots = ", …" if failed[MOST:] else ""
        names = f"{', '.join(map(label_text, failed[:MOST]))}{dots}"
        which = f"{len(failed):,} of {len(learners):,} classes ({names}) "
    return (
        f"{which}{ended} before the tolerance was certified: the {largest}relative "
        f"duality gap is {up(_gap(report), 3)}, not {settings['tol']:g}. {model} holds the model "
        f"so far. What would help: {helps}{'or ' * bool(helps)}a --tol looser than "
        f"{settings['tol']:g}."
    )
