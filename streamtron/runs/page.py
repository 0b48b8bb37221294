"""The page that reports a run: sections of HTML around charts, in the frame of ``page.html``."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import meets, prices
from streamtron.core.losses import loss_of
from streamtron.core.text import (
    BOUNDS,
    MANY,
    and_more,
    down,
    feature_text,
    format_size,
    label_text,
    metric_words,
    metrics_shown,
    number,
    up,
)
from streamtron.data import Manifest
from streamtron.model.charts import Series, heat_map, histogram, line_chart
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Evaluation, Floats
from streamtron.runs.explain import MOST, heaviest

if TYPE_CHECKING:
    from streamtron.data.column_names import ColumnNames

EDGES = np.linspace(-2.0, 4.0, 61)
"""Bounds of the bars of a histogram of margins; the first and last hold what is beyond, too."""

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one reading of labelled rows finds.

    ``margins`` : of two classes, rows by their margin l f(x), between ``EDGES``. ``curve`` : see
    ``Scores.curve``; None for many classes, or if one of the two does not occur.
    """

    evaluation: Evaluation
    margins: NDArray[np.int64] | None
    curve: Floats | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Content of a page. ``report`` : of the run, as its JSON file has it. ``training``,
    ``validation`` : None if not measured. ``notes`` : why something is not shown. ``names`` : of
    columns, where ``convert`` kept them."""

    name: str
    model: LinearModel
    report: Values
    manifest: Manifest
    training: Measured | None
    validation: Measured | None
    notes: Sequence[str] = ()
    names: ColumnNames | None = None


def render(facts: Facts) -> str:
    """Return the page."""
    two = facts.model.kind == "two classes"
    sections = {
        "The certificate": _certificate,
        "Training": _training,
        "Margins": _margins,
        "Held-out rows": _held_out,
        "The sweep": _sweep,
        "Heaviest features" if two else "Classes": _features if two else _classes,
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
    report, gap = facts.report, facts.report["certificate"]["relative_duality_gap"]
    good = meets(report["settings"], gap, report["stop_reason"])
    what = "largest gap" if "learners" in report else "gap"
    verdict = f"{report['stop_reason'].capitalize()}: the {what} is {up(gap, 3)}, the tolerance "
    verdict += number(report["settings"]["tol"])
    tiles = {
        **{name: _shown(report[name]) for name in ("rows", "columns", "nonzeros")},
        "classes": number(len(facts.model.classes)),
        "loss": loss_of(facts.model.settings).name,
        "readings of the data": f"{report['readings']:.4g}",
        "seconds": f"{report['seconds']:.3g}",
        "read from disk": format_size(report["bytes_read"]),
        "peak memory": format_size(report["peak_rss_bytes"]),
    }
    if facts.validation is not None:
        tiles["accuracy on held-out rows"] = _shown(facts.validation.evaluation.accuracy)
    yield f"<header><h1>{escape(facts.name)}</h1>"
    yield _paragraph(verdict, f"verdict {'good' if good else 'bad'}")
    yield from (_paragraph(note, "soft") for note in facts.notes)
    yield f"{_tiles(tiles)}</header>"


def _certificate(facts: Facts) -> Iterator[str]:
    report, tol = facts.report, facts.report["settings"]["tol"]
    histories = [learner["history"] for learner in report.get("learners", [report])]
    yield _paragraph(
        "No linear classifier has a soft margin above the upper bound on these rows; this model "
        "has at least the lower bound. The gap is 1 − (lower / upper)²."
        if loss_of(facts.model.settings).quadratic
        else "No linear classifier has an objective below the dual objective on these rows; that "
        "of this model is at most the primal objective. The gap is 1 − dual / primal."
    )
    bounds = [_bounds(histories[0], x) for x in ("reading", "seconds") if len(histories) == 1]
    yield _grid([*bounds, *(_gaps(histories, x, tol) for x in ("reading", "seconds"))])
    if "learners" in report:
        return
    proven = report["certificate"]
    rows = [
        [words, _number(proven[key], form(proven[key]))]
        for words, key, form in (
            ("primal objective", "primal_objective", up),
            ("dual objective", "dual_objective", down),
            ("lower bound of the margin", "primal_margin", down),
            ("upper bound of the margin", "upper_bound", up),
            ("relative duality gap", "relative_duality_gap", up),
        )
        if proven.get(key) is not None
    ]
    rows.append(["rows that it covers", _number(proven["rows_scanned"])])
    yield table(["certificate", "value"], rows)


def _bounds(history: Sequence[Values], x: str) -> str:
    """Draw the bounds after each reading."""
    lines = [_series("upper", 2, history, x), _series("lower", 1, history, x)]
    title = f"Bounds on the margin by {x}"
    return line_chart(title, lines, x, "margin", from_zero="x")


def _gaps(histories: Sequence[Sequence[Values]], x: str, tol: float) -> str:
    """Draw the gap after each reading, of every learner."""
    if len(histories) == 1:
        lines = [_series("gap", 1, histories[0], x)]
    else:
        paths = [_points(history, x, "gap") for history in histories]
        lines = [Series("" if k else "gap of a class", path, 0) for k, path in enumerate(paths)]
    places = [place for line in lines for place, _ in line.points]
    if tol > 0 and places:
        lines.append(Series("tolerance", [(0.0, tol), (max(places), tol)], 3))
    return line_chart(f"Gap by {x}", lines, x, "gap", log_y=True, from_zero="x")


def _series(y: str, key: int, history: Sequence[Values], x: str) -> Series:
    """Return a line of what is known after each reading, hollow where it is not proven."""
    known = [row for row in history if row.get(x) is not None and row.get(y) is not None]
    hollow = frozenset(k for k, row in enumerate(known) if not row.get("proven", True))
    name = y if y == "gap" else f"{y} bound"
    return Series(name, _points(known, x, y), key, True, hollow, down if y == "lower" else up)


def _points(history: Sequence[Values], x: str, y: str) -> list[tuple[float, float]]:
    pairs = ((row.get(x), row.get(y)) for row in history)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _training(facts: Facts) -> Iterator[str]:
    history, stages = facts.report.get("history", []), facts.report.get("stages") or ()
    charts = []
    for name, key in (("Rows in memory", "active_rows"), ("Newton steps", "newton_steps")):
        points = _points(history, "reading", key)
        if any(y for _, y in points):
            line = Series("", points, marked=True)
            charts.append(line_chart(f"{name} by reading", [line], "reading", "", from_zero="xy"))
    yield _grid(charts)
    names = ("full_epochs", "mini_epochs", "newton_steps", "updates")
    heads = ["stage", *map(metric_words, names), "seconds", "ended because"]
    yield table(heads, [
        [str(stage["epsilon"]), *(_number(stage[name]) for name in names),
         _number(stage["seconds"], f"{stage['seconds']:.3g}"), stage["stop_reason"]]
        for stage in stages
    ])  # fmt: skip


def _margins(facts: Facts) -> Iterator[str]:
    legend = [("k2", "wrong side"), ("k5", "right, within the margin"), ("k1", "beyond the margin")]
    if not (bend := loss_of(facts.model.settings).bend):
        legend[1:] = [("k1", "right side")]
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    colours = ["k2" if m < 0 else "k5" if m < bend else "k1" for m in middles.tolist()]
    note = "Label times decision. The first and the last bar hold all rows beyond them."
    yield _grid(
        histogram(f"Margins of the {name} rows", EDGES.tolist(), measured.margins.tolist(), colours,
                  "margin", legend, note)
        for name, measured in (("training", facts.training), ("held-out", facts.validation))
        if measured is not None and measured.margins is not None
    )  # fmt: skip


def _held_out(facts: Facts) -> Iterator[str]:
    if facts.validation is None:
        return
    metrics = facts.validation.evaluation.to_dict()
    values = {metric_words(name): _shown(metrics[name]) for name in metrics_shown(metrics)}
    yield _tiles({"rows": number(metrics["rows"]), **values})
    chance = Series("", [(0, 0), (1, 1)], 0)
    if tenths := metrics.get("reliability"):
        points = [(tenth["probability"], tenth["share"]) for tenth in tenths]
        yield _grid([line_chart("Reliability", [Series("", points, marked=True), chance],
                                "probability", "share that has the class", unit=True)])  # fmt: skip
    if (curve := facts.validation.curve) is None:
        return
    tp, fp = curve.T
    recall, precision = tp / tp[-1], tp[1:] / (tp + fp)[1:]
    roc = [*zip((fp / fp[-1]).tolist(), recall.tolist(), strict=True)]
    pr = [*zip(recall[1:].tolist(), precision.tolist(), strict=True)]
    yield _grid([
        line_chart(f"ROC curve, area {_shown(metrics['roc_auc'])}", [Series("", roc), chance],
                   "false positive rate", "true positive rate", unit=True),
        line_chart("Precision and recall, average precision "
                   f"{_shown(metrics['average_precision'])}", [Series("", pr)],
                   "recall", "precision", unit=True),
    ])  # fmt: skip


def _features(facts: Facts) -> Iterator[str]:
    [direction] = facts.model.directions()
    features = heaviest(facts.model, direction, MOST, facts.names)
    most = max((abs(feature["weight"]) for feature in features), default=1.0)
    opposite = " “opposite:” is before a name that counts the other way." if facts.names else ""
    larger = label_text(facts.model.classes[1])
    yield _paragraph(f"A positive weight counts towards {larger}.{opposite}", "soft")
    yield table(["feature", "weight", ""], [
        [feature_text(feature), _number(feature["weight"], f"{feature['weight']:+.4g}"),
         _bar(feature["weight"] / most)]
        for feature in features
    ])  # fmt: skip


def _classes(facts: Facts) -> Iterator[str]:
    yield _paragraph("A click on a heading sorts the table.", "soft")
    measured = facts.validation and facts.validation.evaluation.to_dict()["classes"]
    metrics = ("support", "precision", "recall", "f1", "roc_auc") if measured else ()
    heads = ["class", "gap", *map(metric_words, metrics), "full epochs", "Newton steps",
             "ended because", "heaviest features"]  # fmt: skip
    rows = []
    for k, direction in enumerate(facts.model.directions()):
        report = facts.report["learners"][k]
        features = heaviest(facts.model, direction, 3, facts.names)
        names = [f"{feature_text(feature)} {feature['weight']:+.2g}" for feature in features]
        rows.append([
            label_text(direction.positive),
            _gap(report["certificate"]["relative_duality_gap"]),
            *(_number((measured or [])[k][name]) for name in metrics),
            _number(report["full_epochs"]), _number(report["newton_steps"]),
            report["stop_reason"], _wide(", ".join(names)),
        ])  # fmt: skip
    yield table(heads, rows, sorts=True)


def _sweep(facts: Facts) -> Iterator[str]:
    if (sweep := facts.report.get("sweep")) is None:
        return
    metric, rows = sweep["metric"], sweep["candidates"]
    words = metric_words(metric)
    title = f"{words[0].upper()}{words[1:]} by"
    price = "delta" if any(row["C"] is None for row in rows) else "C"
    known = [row for row in rows if row[metric] is not None]
    xs, rhos = (sorted({row[name] for row in known}) for name in (price, "rho"))
    charts = []
    if len(xs) > 1:
        lines = [
            _candidates([row for row in known if row["rho"] == rho], rho, k % 5 + 1, price, metric)
            for k, rho in enumerate(rhos)
        ]
        charts.append(
            line_chart(f"{title} {price}", lines, price, words, log_x=price == "C",
                       hollow="dropped, or not certified")
        )  # fmt: skip
    if len(xs) > 1 and len(rhos) > 1:
        cells = {(row[price], row["rho"]): row[metric] for row in known}
        best = next((row[price], row["rho"]) for row in rows if row["best"])
        charts.append(heat_map(f"{title} {price} and ρ", xs, rhos, cells, best, price, "ρ"))
    yield _grid(charts)
    names = [price, "rho", metric, "relative_duality_gap", "readings", "seconds"]
    yield table([*map(metric_words, names), "ended because", "best"], [
        [*(_gap(row[name]) if name == BOUNDS[2] else _number(row[name]) for name in names),
         row["dropped"] or row["stop_reason"],
         "best" if row["best"] else ""]
        for row in rows
    ], sorts=True)  # fmt: skip


def _candidates(rows: Iterable[Values], rho: float, key: int, price: str, metric: str) -> Series:
    line = sorted(rows, key=lambda row: row[price])
    hollow = frozenset(
        k
        for k, row in enumerate(line)
        if row["dropped"] or not meets(row, row[BOUNDS[2]], row["stop_reason"])
    )
    return Series(f"ρ = {rho:g}", [(row[price], row[metric]) for row in line], key, True, hollow)


def _settings(facts: Facts) -> Iterator[str]:
    settings = facts.report["settings"]
    settings = settings | prices(settings["C"], settings["delta"])
    rows = [[name, _wide(str(value))] for name, value in settings.items() if value is not None]
    yield table(["setting", "value"], rows)


def _data(facts: Facts) -> Iterator[str]:
    shards, report = facts.manifest.shards, facts.report
    layout = facts.model.reading.get("layout")
    words = [f"{len(shards):,} shard{'s' * (len(shards) != 1)}", format_size(facts.manifest.bytes)]
    yield _paragraph(f"{', '.join([*words, *([layout] if layout else [])])}.")
    if report.get("forgotten_rows"):
        yield _paragraph(f"{report['forgotten_rows']:,} rows were forgotten.")
    for shard in report["skipped"][:MANY]:
        yield _paragraph(f"Left out: {shard['reason']}", "bad")
    yield table(["shard", "rows", "nonzeros", "bytes"], [
        [_wide(shard.name), _number(shard.rows), _number(shard.nonzeros), _number(shard.bytes)]
        for shard in shards[:MANY]
    ])  # fmt: skip
    yield from (_paragraph(line, "soft") for line in and_more(shards))


def _paragraph(text: str, kind: str = "") -> str:
    opening = f'<p class="{kind}">' if kind else "<p>"
    return f"{opening}{escape(text)}</p>"


class _Cell(str):
    """A cell of a table, as HTML; any other text in a table is escaped."""


def _number(value: float | None, text: str | None = None) -> _Cell:
    """Return a cell that holds a number, and sorts by it; ``text`` : how it is shown."""
    shown = _shown(value)
    key = "" if value is None else f' data-key="{value!r}"'
    return _Cell(f"{_NUMBER}{key}>{escape(shown if text is None else text)}</td>")


def _gap(value: float) -> _Cell:
    return _number(value, up(value))


_NUMBER = '<td class="n"'


def _shown(value: float | None) -> str:
    if not isinstance(value, int | float | None):
        raise TypeError(f"{value!r} is not a number")
    return f"{value:.4g}" if isinstance(value, float) else number(value)


def _wide(text: str) -> _Cell:
    """Return a cell that may hold much text."""
    return _Cell(f'<td class="wide">{escape(text)}</td>')


def _bar(share: float) -> _Cell:
    """Return a cell with a bar, ``share`` from −1 to 1 of its width."""
    side = ' class="minus"' if share < 0 else ""
    bar = f'<rect{side} width="{100 * abs(share):.1f}%" height="12" rx="2"/>'
    return _Cell(f'<td class="bar"><svg aria-hidden="true">{bar}</svg></td>')


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], *, sorts: bool = False) -> str:
    """Return a table in a card; cells that are text are escaped. Nothing without rows."""
    if not rows:
        return ""
    cells = [[c if isinstance(c, _Cell) else f"<td>{escape(str(c))}</td>" for c in r] for r in rows]
    kinds = [' class="n"' if cell.startswith(_NUMBER) else "" for cell in cells[0]]
    titles = (f"<th{k}>{escape(name)}</th>" for k, name in zip(kinds, heads, strict=True))
    head = f"<thead><tr>{''.join(titles)}</tr></thead>"
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    card, kind = " narrow" if len(heads) == 2 else "", ' class="sorts"' if sorts else ""
    return f'<div class="card{card}"><table{kind}>{head}<tbody>{body}</tbody></table></div>'


def _tiles(values: Mapping[str, str]) -> str:
    tiles = (f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in values.items())
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _grid(charts: Iterable[str]) -> str:
    drawings = "".join(charts)
    return f'<div class="grid">{drawings}</div>' if drawings else ""
