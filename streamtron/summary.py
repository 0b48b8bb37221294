"""What the commands say at the end, as aligned text: from plain values to lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from streamtron.config import Settings, format_size

Lines = Iterator[str]
Item = tuple[str, object]

MANY = 20
"""Shards, or labels, listed one by one at most."""


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


def down(value: float, digits: int = 7) -> str:
    """A lower bound as people read it: rounded, and still one.

    Examples
    --------
    >>> down(0.123456789), up(0.123456711), up(2.0)
    ('0.1234567', '0.1234568', '2')
    """
    return _rounded(value, digits, ROUND_FLOOR)


def up(value: float, digits: int = 7) -> str:
    """An upper bound, or a gap, likewise."""
    return _rounded(value, digits, ROUND_CEILING)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    shown = Context(prec=digits, rounding=rounding).create_decimal(Decimal(value))
    return f"{float(shown):.{digits}g}"


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
            *([("rows forgotten", report["forgotten_rows"])] if "forgotten_rows" in report else []),
            ("columns", report["columns"]),
            ("nonzeros", report["nonzeros"]),
            ("readings", round(report["readings"], 3)),
            ("full epochs", report["full_epochs"]),
            ("seconds", round(report["seconds"], 2)),
        ]
    )
    yield ""
    yield from _of_many(report) if "learners" in report else _of_two(report)
    yield from place_lines(model, cache, cache_bytes)


def _of_two(report: Mapping[str, Any]) -> Lines:
    yield from _stages(report["stages"])
    yield from _clipped(report["clipped"])
    yield from _repaired(report["drift_repaired"])
    yield ""
    yield from certificate_lines(report["certificate"])
    yield _verdict(report)


def nothing_done(report: Mapping[str, Any]) -> Lines:
    """What an update or a forget was asked for and had not to do."""
    for names, why in (
        (report.get("already_in_run", ()), "in the run already; it is left as it is"),
        (report.get("not_in_run", ()), "not in the run; nothing is to be forgotten"),
    ):
        yield from (f"{name}: {why}" for name in names[:MANY])
        yield from and_more(names)


def _clipped(steps: int) -> Lines:
    if steps:
        yield f"counts reached 2³¹ − 1: {steps:,} steps were cut there"


def _repaired(drift: float) -> Lines:
    if drift:
        yield (
            f"carried weights had drifted by {drift:.1g} of their length from the counts': made "
            "afresh from these"
        )


def place_lines(model: str, cache: str, cache_bytes: int) -> Lines:
    """Where the model is, and the cache with its size."""
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
            f"{stage['mini_epochs']:>11} {stage['updates']:>13,}  {stage['why']}"
        )


def _of_many(report: Mapping[str, Any]) -> Lines:
    """The classes that are proven worst, in their order, and the others together."""
    learners = report["learners"]
    worst = sorted(range(len(learners)), key=lambda k: _badness(learners[k]))[-MANY:]
    yield from _classes([learners[k] for k in sorted(worst)])
    if others := [each for k, each in enumerate(learners) if k not in worst]:
        ways = [each["ending"] for each in others]
        ended = ", ".join(f"{ways.count(way):,} {way}" for way in dict.fromkeys(ways))
        yield f"… and {len(others):,} more, {ended}, gaps up to {max(map(_gap, others)):.3g}"
    yield from _clipped(sum(each["clipped"] for each in learners))
    yield from _repaired(max(each["drift_repaired"] for each in learners))
    yield ""
    yield from aligned([("largest gap", _gap(report))])
    if report["skipped"]:
        yield from _covered({**report["certificate"], "skipped": report["skipped"]})
    yield _verdict_of_many(report)


def _classes(learners: Sequence[Mapping[str, Any]]) -> Lines:
    """One row a class."""
    width = _width(each["label"] for each in learners)
    heads = f"{'lower bound':>12} {'upper bound':>12} {'gap':>10} {'full epochs':>11}"
    yield f"{'class':<{width}} {heads}  ended because"
    for each in learners:
        lower, upper, gap = _bounds(each["certificate"])
        yield (
            f"{label_text(each['label']):<{width}} {lower:>12} {upper:>12} {gap:>10} "
            f"{each['full_epochs']:>11}  {each['stages'][-1]['why']}"
        )


def _badness(learner: Mapping[str, Any]) -> tuple[bool, float]:
    return _stopped(learner), _gap(learner)


def _gap(report: Mapping[str, Any]) -> float:
    return float(report["certificate"]["relative_duality_gap"])


def _stopped(learner: Mapping[str, Any]) -> bool:
    """Whether it came to no end of its own."""
    return learner["ending"] not in ("certified", "converged")


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
    return words[report["ending"]]


def not_certified(report: Mapping[str, Any], model: str) -> str:
    """The sentence of a fit that stopped before its tolerance was certified."""
    settings = report["settings"]
    if report["ending"] == "no margin":
        return no_margin(report, model)
    stage = settings["stage"]
    help_ = [f"more --max-epochs than {settings['max_epochs']}"]
    if stage != "auto" and not stage.endswith("unlearn"):
        help_.append("--stage auto, which ends with unlearn")
    help_.append(f"an --active-set above {format_size(settings['active_set'])}")
    help_.append(f"a --tol looser than {settings['tol']:g}")
    return (
        f"{_who_stopped(report)} before the tolerance was certified: the "
        f"{'largest ' if 'learners' in report else ''}relative duality gap is {_gap(report):.3g}, "
        f"asked for was {settings['tol']:g}. {model} is written as far as it "
        f"came. What would help: {', '.join(help_[:-1])}, or {help_[-1]}."
    )


def _who_stopped(report: Mapping[str, Any], most: int = 5) -> str:
    """``stopped``, and of many classes which ones, the worst first."""
    if "learners" not in report:
        return "stopped"
    stopped = sorted(filter(_stopped, report["learners"]), key=_gap, reverse=True)
    names = ", ".join(label_text(each["label"]) for each in stopped[:most])
    more = ", …" if stopped[most:] else ""
    return f"{len(stopped):,} of {len(report['learners']):,} classes ({names}{more}) stopped"


def _upper(report: Mapping[str, Any]) -> float:
    return float(report["certificate"]["upper_bound"] or math.inf)


def no_margin(report: Mapping[str, Any], model: str) -> str:
    """The sentence of a hard-margin fit on rows whose best margin is next to nothing."""
    learners = report.get("learners", [report])
    worst = next(each for each in learners if each["ending"] == "no margin")
    which = f", class {label_text(worst['label'])} from the rest," if "label" in worst else ""
    upper = _upper(worst)
    return (
        f"no classifier separates the rows{which} by a margin above {up(upper)}, which is "
        f"{up(upper / worst['radius'], 1)} of R, the longest row, and none was found that "
        f"separates them at all. {model} is written as far as it came. Give a soft margin, --C 1 "
        "say, instead of --delta 0."
    )


# --- sweep ---

Rows = Sequence[Mapping[str, Any]]


def sweep_summary(rows: Rows, metric: str, report: Mapping[str, Any] | None) -> Lines:
    """The table of a sweep, one line a candidate, and what is proven of the best.

    ``report``: of the best one's fit on all shards, None if there was none.
    """
    columns = _columns(rows, metric)
    widths = {head: max(10, len(head)) for head in columns}
    heads = (f"{head:>{width}}" for head, width in widths.items())
    yield f"  {' '.join(heads)} {'gap':>9} {'readings':>9}  ended because"
    for row in rows:
        cells = (f"{_digits(row[name]):>{widths[head]}}" for head, name in columns.items())
        gap, star = f"{row['relative_duality_gap']:.3g}", "*" if row["best"] else " "
        yield f"{star} {' '.join(cells)} {gap:>9} {row['readings']:>9.4g}  {_why(row)}"
    best = next(row for row in rows if row["best"])
    if "class" in best:
        yield "A gap is that of the class with the widest one."
    yield ""
    price = "delta = 0" if best["C"] is None else f"C = {best['C']:g}"
    yield f"{'best (*)':<18} {price}, rho = {best['rho']:g}: {metric} {_digits(best[metric])}"
    if report is None:
        return
    if "learners" in report:
        yield ""
        yield from _of_many(report)
    else:
        yield from certificate_lines(report["certificate"])
        yield _verdict(report)


def _columns(rows: Rows, metric: str) -> dict[str, str]:
    """Head → name of the columns that are shown."""
    price = "delta" if any(row["C"] is None for row in rows) else "C"
    own = ("accuracy", "f1", "roc_auc", "average_precision")
    of_many = ("micro_f1", "macro_f1", "macro_roc_auc", "macro_average_precision")
    shown = dict.fromkeys((metric, *own, *of_many))
    heads = {metric_words(name).replace("average precision", "avg. prec."): name for name in shown}
    there = {head: name for head, name in heads.items() if name in rows[0]}
    return {price: price, "rho": "rho", **there}


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _why(row: Mapping[str, Any]) -> str:
    """Why a candidate ended, or where it was dropped: by successive halving at which tolerance, by
    the two-stage procedure after which stage."""
    if not row["dropped"]:
        return str(row["ending"])
    if row["dropped"] == "pruned by rank":
        return f"pruned by rank at tolerance {row['tol']:g}"
    return f"{row['dropped']} after stage {row['stage']}"


def best_not_certified(rows: Rows) -> str:
    """The sentence of a sweep whose best candidate stopped too early, and which wrote no model."""
    best = next(row for row in rows if row["best"])
    return (
        "the best candidate stopped before its tolerance was certified: the "
        f"{'largest ' if 'class' in best else ''}relative duality gap is "
        f"{best['relative_duality_gap']:.3g}, asked for was {best['tol']:g}. What would help: "
        f"more --max-epochs, or a --tol looser than {best['tol']:g}."
    )


# --- certificates ---


def certificate_lines(certificate: Mapping[str, Any]) -> Lines:
    """Lower bound, upper bound, gap."""
    upper, gap = certificate["upper_bound"], certificate["relative_duality_gap"]
    yield f"{'lower bound':<18} {down(certificate['primal_margin']):>13}"
    yield f"{'upper bound':<18} {'none found' if upper is None else up(upper):>13}"
    yield f"{'gap':<18} {up(gap):>13}"
    yield from _covered(certificate)


def _covered(certificate: Mapping[str, Any]) -> Lines:
    """Which rows the bounds are of, where shards were left out."""
    if certificate.get("skipped"):
        yield f"They cover the {certificate['rows_scanned']:,} rows that were read."
        yield from left_out(certificate["skipped"])


def left_out(skipped: Sequence[Mapping[str, str]]) -> Lines:
    """The shards that could not be read, with the reasons."""
    if skipped:
        yield f"{len(skipped):,} shard(s) could not be read and were left out:"
    for shard in skipped[:MANY]:
        yield f"  {shard['reason']}"
    yield from and_more(skipped)


def proof_lines(proof: Mapping[str, Any]) -> Lines:
    """What ``certify`` has proven."""
    certificate = proof["certificate"]
    yield from aligned(
        [("rows", certificate["rows_scanned"]), ("readings", round(proof["readings"], 3))]
    )
    yield from _proofs_of_many(proof) if "learners" in proof else _proof_of_two(proof)
    if excluded := certificate["rows_excluded"]:
        yield (
            f"{excluded:,} rows of the shards were left out, as the witness says that they were "
            "forgotten: nothing is proven of them."
        )


def _proof_of_two(proof: Mapping[str, Any]) -> Lines:
    certificate = proof["certificate"]
    yield from certificate_lines(certificate)
    radius = up(proof["decision_radius"])
    yield from aligned([("scale of weights", proof["weights_scale"])])
    yield f"{'decision radius':<18} {radius:>13}"
    yield from _apart([proof])
    yield (
        "No linear classifier on these rows has a soft margin above the upper bound; this one's is "
        "at least the lower bound. The soft margin is 1/√(2 P), P the objective."
        if certificate["primal_margin"] != certificate["directional_margin"]
        else "No linear classifier on these rows has a margin above the upper bound; this one's is "
        "at least the lower bound."
    )


def _apart(proofs: Sequence[Mapping[str, Any]]) -> Lines:
    """How far weights are from those that the counts make, where that is known; of many classes the
    largest."""
    distances = [each["distance"] for each in proofs]
    drifts = [each["certificate"]["drift"] for each in proofs]
    for name, found, whose in (
        ("distance", distances, "the model's"),
        ("drift", drifts, "the carried"),
    ):
        if None not in found:
            shown = f"{name:<18} {number(max(found)):>13}"
            yield f"{shown}  of {whose} weights from those that the counts make"


def _proofs_of_many(proof: Mapping[str, Any]) -> Lines:
    yield from aligned([("largest gap", float(proof["certificate"]["relative_duality_gap"]))])
    yield from _apart(proof["learners"])
    yield ""
    yield from learners_table(
        [
            (each["label"], each["certificate"], f"{each['weights_scale']:.4g}")
            for each in proof["learners"]
        ],
        "scale of weights",
    )


# --- evaluate ---


def evaluation_lines(metrics: Mapping[str, Any]) -> Lines:
    """The metrics, the main ones first; of many classes also a table of them."""
    names = ["accuracy", "precision", "recall", "f1", "roc_auc", "average_precision"]
    if "classes" in metrics:
        names = ["accuracy", "hamming_loss"]
        names += [f"micro_{name}" for name in ("precision", "recall", "f1")]
        names += [f"macro_{name}" for name in ("precision", "recall", "f1", "roc_auc")]
    yield from aligned([(metric_words(name), metrics[name]) for name in ("rows", *names)])
    if others := metrics.get("rows_of_other_classes"):
        yield from aligned([("of other classes", others)])
    if "classes" in metrics:
        yield ""
        yield from _metrics_table(metrics["classes"])


def metric_words(name: str) -> str:
    """The name of a metric in words.

    Examples
    --------
    >>> metric_words("macro_f1"), metric_words("roc_auc")
    ('macro F1', 'ROC AUC')
    """
    words = name.replace("_", " ").replace("roc auc", "ROC AUC")
    return words.replace("f1", "F1").replace("hamming", "Hamming")


def _metrics_table(classes: Sequence[Mapping[str, Any]]) -> Lines:
    """One row a class."""
    columns = ("support", "precision", "recall", "f1", "roc_auc")
    width = _width(each["label"] for each in classes)
    heads = "".join(f" {metric_words(name):>11}" for name in columns)
    yield f"{'class':<{width}}{heads}"
    for each in classes:
        cells = "".join(f" {_short(each[name]):>11}" for name in columns)
        yield f"{label_text(each['label']):<{width}}{cells}"


def _width(labels: Iterable[object]) -> int:
    return max(8, *(len(label_text(label)) for label in labels))


def _short(value: object) -> str:
    """A number in a table."""
    return f"{value:.4f}" if isinstance(value, float) and not value.is_integer() else number(value)


# --- what several have ---


def learners_table(
    learners: Sequence[tuple[object, Mapping[str, Any] | None, str]], last: str
) -> Lines:
    """One row a class: bounds, gap, and a last column of text."""
    width = _width(label for label, _, _ in learners)
    yield f"{'class':<{width}} {'lower bound':>12} {'upper bound':>12} {'gap':>10}  {last}".rstrip()
    for label, certificate, text in learners:
        lower, upper, gap = _bounds(certificate)
        yield f"{label_text(label):<{width}} {lower:>12} {upper:>12} {gap:>10}  {text}".rstrip()


def _bounds(certificate: Mapping[str, Any] | None) -> Iterator[str]:
    """Lower bound, upper bound and gap, in a table; ``-`` for what is not known."""
    for name in ("primal_margin", "upper_bound", "relative_duality_gap"):
        value = None if certificate is None else certificate[name]
        yield "-" if value is None else f"{value:.6g}"


def and_more(shards: Sequence[Any]) -> Lines:
    """How many there are beyond those listed one by one."""
    if len(shards) > MANY:
        yield f"… and {len(shards) - MANY:,} more"


# --- batch ---


def candidate_words(settings: Settings) -> str:
    """A candidate of a sweep in a few words.

    Examples
    --------
    >>> candidate_words(Settings(delta=0.5, rho=0))
    'delta 0.5, rho 0'
    """
    hand = settings.delta
    price = f"C {0.5 / settings.delta2:g}" if hand is None else f"delta {hand:g}"
    stage = "" if settings.stage == "auto" else f", stage {settings.stage}"
    return f"{price}, rho {settings.rho:g}{stage}"


def trial_line(
    settings: Settings, fold: str, accuracy: float | None, gap: float, worker: str
) -> str:
    """What a candidate has just come to.

    Examples
    --------
    >>> trial_line(Settings(C=2), "fold 1 of 5", 0.9375, 0.0042, "0")
    'C 2, rho 1, fold 1 of 5: accuracy 0.9375, gap 0.0042 (worker 0)'
    """
    where = f", {fold}" if fold else ""
    shown = "-" if accuracy is None else f"{accuracy:.4g}"
    return f"{candidate_words(settings)}{where}: accuracy {shown}, gap {gap:.3g} (worker {worker})"


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
