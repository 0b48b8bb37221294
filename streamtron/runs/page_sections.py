"""The page that reports a run: sections of HTML around charts, in the frame of ``page.html``.

What it says comes from the run's report, its manifest, and what is measured: an equal report of
equal rows is an equal page.
"""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Settings, meets
from streamtron.core.losses import loss_of
from streamtron.core.names import prices
from streamtron.core.text import (
    BOUNDS,
    MANY,
    PROVEN,
    and_more,
    down,
    feature_text,
    format_size,
    label_text,
    metric_words,
    metrics_shown,
    number,
    some,
    up,
    with_types,
    within,
)
from streamtron.data import Manifest
from streamtron.model.candidates_page import candidates_section
from streamtron.model.charts import FEWEST, Series, histogram, line_chart
from streamtron.model.html import bar, gap_cell, grid, numeric, paragraph, shown, table, tiles, wide
from streamtron.model.linear_model import LinearModel
from streamtron.model.measured_page import CHANCE, ranking_charts, residuals_section, worth_of
from streamtron.model.metrics import Evaluation, Floats
from streamtron.model.mistakes import confusion_matrix
from streamtron.model.residuals import Residuals
from streamtron.runs.explain import MOST, heaviest

if TYPE_CHECKING:
    from streamtron.data.column_names import ColumnNames

EDGES = np.linspace(-2.0, 4.0, 61)
"""Bounds of the bars of a histogram of margins; the first and last hold what is beyond, too."""

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one reading of labelled rows finds.

    ``margins`` : rows by their margin, l f(x) of two classes and of more the decision of the row's
    class minus the highest other one, between ``EDGES``; None of a multilabel model.
    ``curves`` : by class, of two the larger, see ``Scores.curve``; of those that some rows have and
    some have not.
    ``residuals`` : of regression, which has neither.
    """

    evaluation: Evaluation
    margins: NDArray[np.int64] | None
    curves: Mapping[str, Floats]
    residuals: Residuals | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Content of a page. ``report`` : of the run, as its JSON file has it. ``training``,
    ``validation`` : None if not measured. ``notes`` : why something is not shown. ``names`` : of
    columns, where ``convert`` kept them. ``known_rows`` : how many rows of the shards given for
    validation were trained on."""

    name: str
    model: LinearModel
    report: Values
    manifest: Manifest
    training: Measured | None
    validation: Measured | None
    notes: Sequence[str] = ()
    names: ColumnNames | None = None
    known_rows: int = 0

    @property
    def measured(self) -> str:
        """What the rows of the validation are called."""
        return "given" if self.known_rows else "held-out"


def render(facts: Facts) -> str:
    """Return the page."""
    single = isinstance(facts.model.bias, float)
    sections = {
        f"{facts.measured.capitalize()} rows": _held_out,
        "Margins": _margins,
        "Residuals": _residuals,
        "Ranking and probabilities": _curves,
        "What it has learned": _features if single else _classes,
        "The proof": _certificate,
        "Training": _training,
        "The sweep": _sweep,
        "Settings": _settings,
        "Data": _data,
    }
    body = [*_head(facts)]
    for title, section in sections.items():
        if parts := [part for part in section(facts) if part]:
            body += [f"<h2>{title}</h2>", *parts]
    frame = files("streamtron.runs").joinpath("page.html").read_text(encoding="utf-8")
    script, style = (_hash_of(name, frame) for name in ("script", "style"))
    return Template(frame).substitute(
        title=escape(f"{facts.name}: report"), body="\n".join(body), script=script, style=style
    )


def _hash_of(element: str, frame: str) -> str:
    """Return what the page's policy calls the only script or style that a browser may take."""
    content = frame.partition(f"<{element}>")[2].partition(f"</{element}>")[0]
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def _head(facts: Facts) -> Iterator[str]:
    report, names = facts.report, [*map(label_text, facts.model.classes)]
    yield f"<header><h1>{escape(facts.name)}</h1>"
    of_what = (
        f"of {len(names):,} classes ({some(names, form=str)})" if names else "to predict a number"
    )
    trained = f"Trained on {number(report['rows'])} rows {of_what}."
    worth = "How good it is on other rows is not known: give held-out ones with --valid."
    if facts.validation is not None:
        worth = worth_of(facts.model, facts.validation.evaluation.to_dict(), facts.measured)
        if facts.known_rows:
            known = number(facts.known_rows)
            worth += f" It was trained on {known} of them, and looks better there."
    yield paragraph(f"{trained} {worth}", "verdict")
    gap, tol = report["certificate"]["relative_duality_gap"], report["settings"]["tol"]
    good = meets(report["settings"], gap, report["stop_reason"])
    verdict = "Nothing is proven of the distance from the best possible training objective"
    if gap < 1.0:
        verdict = f"{within(gap).capitalize()}, proven"
    missed = "" if good else f"; the tolerance, a gap of {number(tol)}, was not reached"
    yield paragraph(f"{verdict}{missed}.", "good" if good else "bad")
    yield from (paragraph(note, "soft") for note in facts.notes)
    yield "</header>"


def _held_out(facts: Facts) -> Iterator[str]:
    if facts.validation is None:
        return
    metrics = facts.validation.evaluation.to_dict()
    values = {
        metric_words(name): shown(metrics[name])
        for name in metrics_shown(metrics)
    }
    yield tiles({"rows": number(metrics["rows"]), **values})
    classes = facts.model.classes
    if "confusions" not in metrics or len(classes) > MANY:
        return
    labels, confusion = [*map(label_text, classes)], confusion_matrix(metrics, classes)
    yield paragraph("Rows by true class (down) and by the class that the model gives (across).")
    yield table(["true class", *labels, "right"], [
        [label, *(numeric(value, f"{value:,.6g}") for value in row),
         numeric(row[k] / sum(row) if sum(row) else None)]
        for k, (label, row) in enumerate(zip(labels, confusion, strict=True))
    ])  # fmt: skip


def _margins(facts: Facts) -> Iterator[str]:
    legend = [("k2", "wrong side"), ("k5", "right, within the margin"), ("k1", "beyond the margin")]
    two = facts.model.kind == "two classes"
    if not (bend := loss_of(facts.model.settings).bend if two else 0.0):
        legend[1:] = [("k1", "right side")]
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    colours = ["k2" if m < 0 else "k5" if m < bend else "k1" for m in middles.tolist()]
    note = "Label times decision" if two else "Decision of the row's class minus the next one"
    note += ". The first and the last bar hold all rows beyond them."
    yield grid(
        histogram(f"Margins of the {name} rows", EDGES.tolist(), measured.margins.tolist(), colours,
                  "margin", legend, note)
        for name, measured in ((facts.measured, facts.validation), ("training", facts.training))
        if measured is not None and measured.margins is not None
    )  # fmt: skip


def _residuals(facts: Facts) -> Iterator[str]:
    known = {facts.measured: facts.validation, "training": facts.training}
    of_rows = {name: m.residuals for name, m in known.items() if m and m.residuals}
    yield from residuals_section(of_rows, facts.measured)


def _curves(facts: Facts) -> Iterator[str]:
    if facts.validation is None:
        return
    metrics = facts.validation.evaluation.to_dict()
    charts = ranking_charts(metrics, facts.validation.curves)
    if len(tenths := metrics.get("reliability") or ()) >= FEWEST:
        points = [(tenth["probability"], tenth["share"]) for tenth in tenths]
        lines = [Series("this model", points, marked=True), CHANCE._replace(name="reliable")]
        charts.append(line_chart("Reliability", lines, "probability",
                                 "share that has the class", unit=True))  # fmt: skip
    yield grid(charts)


def _features(facts: Facts) -> Iterator[str]:
    [direction] = facts.model.directions()
    features = heaviest(facts.model, direction, MOST, facts.names)
    most = max((abs(feature["weight"]) for feature in features), default=1.0)
    opposite = " “opposite:” is before a name that counts the other way." if facts.names else ""
    sides = "raise the number that is predicted, the others lower it"
    if not facts.model.regression:
        smaller, larger = map(label_text, facts.model.classes)
        sides = f"speak for {larger}, the others for {smaller}"
    yield paragraph(f"The heaviest weights. Positive ones, blue, {sides}.{opposite}", "soft")
    yield table(["feature", "weight", ""], [
        [feature_text(feature), numeric(feature["weight"], f"{feature['weight']:+.3g}"),
         bar(feature["weight"] / most)]
        for feature in features
    ])  # fmt: skip


def _classes(facts: Facts) -> Iterator[str]:
    yield paragraph("A click on a heading sorts the table.", "soft")
    measured = (facts.validation and facts.validation.evaluation.to_dict()["classes"]) or []
    metrics = ("support", "precision", "recall", "f1", "roc_auc") if measured else ()
    heads = ["class", *map(metric_words, metrics), "speak for it", "gap", "full epochs",
             "Newton steps", "ended because"]  # fmt: skip
    rows = []
    for k, direction in enumerate(facts.model.directions()):
        report = facts.report["learners"][k]
        features = heaviest(facts.model, direction, 5 * MOST, facts.names)
        names = [f"{feature_text(f)} {f['weight']:+.2g}" for f in features if f["weight"] > 0.0]
        rows.append([
            label_text(direction.positive),
            *(numeric(measured[k][name])
              for name in metrics),
            wide(", ".join(names[:8])),
            gap_cell(report["certificate"]["relative_duality_gap"]),
            numeric(report["full_epochs"]), numeric(report["newton_steps"]), report["stop_reason"],
        ])  # fmt: skip
    yield table(heads, rows, sorts=True)


def _certificate(facts: Facts) -> Iterator[str]:
    report, proven = facts.report, facts.report["certificate"]
    gap = f"{'largest ' if 'learners' in report else ''}gap is {up(proven[BOUNDS[2]], 3)}"
    yield paragraph(
        f"{report['stop_reason'].capitalize()}: the {gap}, the tolerance "
        f"{number(report['settings']['tol'])}. No linear model has an objective "
        "below the dual objective on these rows; that of this model is at most the primal "
        "objective, and the gap is 1 − dual / primal. It says nothing of other rows."
    )
    histories = [learner["history"] for learner in report.get("learners", [report])]
    if "learners" in report:
        yield grid([_gaps(facts, histories)])
        return
    bounds = [_series("upper", 2, histories[0]), _series("lower", 1, histories[0])]
    drawn = _by_reading("Bounds on the margin", bounds, "margin", from_zero="x")
    yield grid([drawn, _gaps(facts, histories)])
    rows = [
        [words.replace("bound", "bound of the margin"), numeric(proven[key], form(proven[key]))]
        for words, key, form in (
            *PROVEN, ("relative duality gap", "relative_duality_gap", up),
            ("columns that weigh 0 at the optimum", "zero_columns", number),
        )
        if proven.get(key) is not None
    ]  # fmt: skip
    rows.append(["rows that it covers", numeric(proven["rows_scanned"])])
    yield table(["certificate", "value"], rows)


def _gaps(facts: Facts, histories: Sequence[Sequence[Values]]) -> str:
    lines, tol = [_series("gap", 1, histories[0])], facts.report["settings"]["tol"]
    if len(histories) > 1:
        few = len(histories) <= 5  # colours
        names = [*map(label_text, facts.model.classes)] if few else ["each class"]
        names += [""] * (len(histories) - len(names))
        lines = [
            Series(name, _points(history, "gap"), k + 1 if few else 0, few)
            for k, (name, history) in enumerate(zip(names, histories, strict=True))
        ]
    if tol > 0:
        last = max((x for line in lines for x, _ in line.points), default=0.0)
        lines.append(Series("tolerance", [(0.0, tol), (last, tol)], 6))
    return _by_reading("Gap", lines, "gap", log="y", from_zero="x")


def _by_reading(title: str, lines: Sequence[Series], y: str, **how: Any) -> str:
    """Draw lines by reading, if one has enough points to be one."""
    drawn = max(len(line.points) for line in lines) >= FEWEST
    return line_chart(f"{title} by reading", lines, "reading", y, **how) if drawn else ""


def _series(y: str, key: int, history: Sequence[Values]) -> Series:
    """Return a line of what is known after each reading, hollow where it is not proven."""
    known = [row for row in history if row.get("reading") is not None and row.get(y) is not None]
    hollow = frozenset(k for k, row in enumerate(known) if not row.get("proven", True))
    name = y if y == "gap" else f"{y} bound"
    return Series(name, _points(known, y), key, True, hollow, down if y == "lower" else up)


def _points(history: Sequence[Values], y: str) -> list[tuple[float, float]]:
    pairs = ((row.get("reading"), row.get(y)) for row in history)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _training(facts: Facts) -> Iterator[str]:
    report = facts.report
    counted = ("rows", "columns", "nonzeros", "readings", "seconds")
    values = {name: shown(report[name]) for name in counted}
    values["loss"] = loss_of(facts.model.settings).name
    read, peak = (format_size(report[name]) for name in ("bytes_read", "peak_rss_bytes"))
    yield tiles({**values, "read from disk": read, "peak memory": peak})
    history, stages = report.get("history", []), report.get("stages") or ()
    lines = {
        name: Series("", _points(history, key), marked=True)
        for name, key in (("Rows in memory", "active_rows"), ("Newton steps", "newton_steps"))
    }
    yield grid(
        _by_reading(name, [line], "", from_zero="xy")
        for name, line in lines.items() if any(y for _, y in line.points)
    )  # fmt: skip
    names = ("full_epochs", "mini_epochs", "newton_steps", "updates")
    heads = ["stage", *map(metric_words, names), "seconds", "ended because"]
    yield table(heads, [
        [str(stage["epsilon"]), *(numeric(stage[name]) for name in names),
         numeric(stage["seconds"]), stage["stop_reason"]]
        for stage in stages
    ])  # fmt: skip


def _sweep(facts: Facts) -> Iterator[str]:
    if (sweep := facts.report.get("sweep")) is not None:
        yield from candidates_section(sweep["metric"], sweep["candidates"])


def _settings(facts: Facts) -> Iterator[str]:
    settings = dict(facts.report["settings"])
    default = Settings()
    defaults = Settings(loss=settings["loss"], rho=settings["rho"]).to_dict()
    defaults |= {"loss": default.loss, "rho": default.rho}
    changed = {k: v for k, v in settings.items() if v not in (None, defaults.get(k))}
    words = [_options(name, value) for name, value in changed.items()]
    command = ["streamtron fit SHARDS --model", shlex.quote(facts.name), *words]
    yield table(["made by", "value"], [
        ["command", wide(" ".join(command))],
        ["streamtron", version("streamtron")],
    ])  # fmt: skip
    settings["C"] = prices(settings["C"], settings["delta"])["C"]
    rows = [[name, wide(str(value))] for name, value in settings.items() if value is not None]
    yield table(["setting", "value"], rows)


def _options(name: str, value: Any) -> str:
    """Return a setting as the command line takes it: columns are an option each."""
    if isinstance(value, Mapping):
        value = [f"{label}={weight}" for label, weight in value.items()]
    if isinstance(value, list) and name != "columns":
        value = ",".join(map(str, value))
    option = f"--{name.replace('_', '-')}"
    values = value if isinstance(value, list) else [value]
    words = ("" if text is True else f" {shlex.quote(str(text))}" for text in values)
    return " ".join(option + word for word in words)


def _data(facts: Facts) -> Iterator[str]:
    shards, report = facts.manifest.shards, facts.report
    layout = facts.model.reading.get("layout")
    words = [f"{len(shards):,} shard{'s' * (len(shards) != 1)}", format_size(facts.manifest.bytes)]
    words += [layout] if layout else []
    changed = datetime.fromtimestamp(max(s.mtime_ns for s in shards) // 10**9, UTC).date()
    yield paragraph(f"{', '.join(words)}, last changed on {changed.isoformat()} (UTC).")
    if unused := report.get("columns_not_used"):
        yield paragraph(f"Columns that are no features: {with_types(unused)}.")
    if report.get("forgotten_rows"):
        yield paragraph(f"{report['forgotten_rows']:,} rows were forgotten.")
    for shard in report["skipped"][:MANY]:
        yield paragraph(f"Left out: {shard['reason']}", "bad")
    yield table(["shard", "rows", "nonzeros", "bytes"], [
        [wide(shard.name), numeric(shard.rows), numeric(shard.nonzeros), numeric(shard.bytes)]
        for shard in shards[:MANY]
    ])  # fmt: skip
    yield from (paragraph(line, "soft") for line in and_more(shards))
