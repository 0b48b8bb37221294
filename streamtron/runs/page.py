"""The page that reports a run: sections of HTML around charts, in the frame of ``page.html``."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import meets, prices
from streamtron.core.text import (
    BOUNDS,
    MANY,
    METRICS,
    METRICS_OF_MANY,
    down,
    feature_text,
    format_size,
    label_text,
    metric_words,
    number,
    up,
)
from streamtron.data import Manifest
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Evaluation, Floats
from streamtron.runs.charts import Series, heat_map, histogram, line_chart
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
    sections = (
        _head, _certificate, _training, _margins, _held_out, _sweep, _model, _settings, _data,
    )  # fmt: skip
    body = "\n".join(part for section in sections for part in section(facts))
    frame = files("streamtron.runs").joinpath("page.html").read_text(encoding="utf-8")
    title = escape(f"{facts.name}: report")
    script, style = (_hash_of(name, frame) for name in ("script", "style"))
    return Template(frame).substitute(title=title, body=body, script=script, style=style)


def _hash_of(element: str, frame: str) -> str:
    """Return what the page's policy calls the only script or style that a browser may take."""
    content = frame.partition(f"<{element}>")[2].partition(f"</{element}>")[0]
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


# --- sections ------------------------------------------------------------------------------------


def _head(facts: Facts) -> Iterator[str]:
    told, gap = facts.report, facts.report["certificate"]["relative_duality_gap"]
    good = meets(told["settings"], gap, told["stop_reason"])
    what = "largest gap" if "learners" in told else "gap"
    verdict = f"{told['stop_reason'].capitalize()}: the {what} is {up(gap, 3)}, the tolerance "
    verdict += number(told["settings"]["tol"])
    yield f"<header><h1>{escape(facts.name)}</h1>"
    yield f'<p class="verdict {"good" if good else "bad"}">{escape(verdict)}</p>'
    yield from (f'<p class="soft">{escape(note)}</p>' for note in facts.notes)
    tiles = {
        **{name: _shown(told[name]) for name in ("rows", "columns", "nonzeros")},
        "classes": number(len(facts.model.classes)),
        "readings of the data": f"{told['readings']:.4g}",
        "seconds": f"{told['seconds']:.3g}",
        "read from disk": format_size(told["bytes_read"]),
        "peak memory": format_size(told["peak_rss_bytes"]),
    }
    if facts.validation is not None:
        tiles["accuracy on held-out rows"] = _digits(facts.validation.evaluation.accuracy)
    yield f"{_tiles(tiles)}</header>"


def _certificate(facts: Facts) -> Iterator[str]:
    told, tol = facts.report, facts.report["settings"]["tol"]
    learners = told.get("learners", [told])
    histories = [each["history"] for each in learners]
    yield "<h2>The certificate</h2>"
    yield (
        "<p>No linear classifier has a soft margin above the upper bound on these rows; this model "
        "has at least the lower bound. The gap is 1 − (lower / upper)².</p>"
    )
    yield _grid(_closing(histories, tol))
    if "learners" not in told:
        yield _certificate_table(told["certificate"])


def _closing(histories: Sequence[Sequence[Values]], tol: float) -> Iterator[str]:
    """Yield charts of bounds and gap after each reading, of every learner."""
    hollow = "an estimate, not proven"
    for x in ("reading", "seconds"):
        if len(histories) == 1:
            bounds = [_series(f"{name} bound", key, histories[0], x, name)
                      for key, name in ((2, "upper"), (1, "lower"))]  # fmt: skip
            title = f"Bounds on the margin by {x}"
            yield line_chart(title, bounds, x, "margin", from_zero="x", hollow=hollow)
    for x in ("reading", "seconds"):
        if len(histories) == 1:
            gaps = [_series("gap", 1, histories[0], x, "gap")]
        else:
            lines = (_points(own, x, "gap") for own in histories)
            gaps = [Series("" if k else "gap of a class", own, 0) for k, own in enumerate(lines)]
        places = [place for one in gaps for place, _ in one.points]
        if tol > 0 and places:
            gaps.append(Series("tolerance", [(0.0, tol), (max(places), tol)], 3))
        yield line_chart(f"Gap by {x}", gaps, x, "gap", log_y=True, from_zero="x", hollow=hollow)


def _series(name: str, key: int, history: Sequence[Values], x: str, y: str) -> Series:
    """Return a line of what is known after each reading, hollow where it is not proven."""
    known = [each for each in history if each.get(x) is not None and each.get(y) is not None]
    hollow = frozenset(at for at, each in enumerate(known) if not each.get("proven", True))
    return Series(name, _points(known, x, y), key, True, hollow, down if y == "lower" else up)


def _points(history: Sequence[Values], x: str, y: str) -> list[tuple[float, float]]:
    pairs = ((each.get(x), each.get(y)) for each in history)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _certificate_table(proven: Values) -> str:
    upper = proven["upper_bound"]
    rows = [
        ("primal objective", proven.get("primal_objective"), up),
        ("dual objective", proven.get("dual_objective"), down),
        ("lower bound of the margin", proven["primal_margin"], down),
        ("upper bound of the margin", upper, up),
        ("relative duality gap", proven["relative_duality_gap"], up),
    ]
    cells = [[name, _proven(value, form)] for name, value, form in rows if value is not None]
    cells.append(["rows that it covers", _number(proven["rows_scanned"])])
    return table(["certificate", "value"], cells)


def _training(facts: Facts) -> Iterator[str]:
    told = facts.report
    stages = told.get("stages")
    history = told.get("history", [])
    charts = []
    for name, key in (("Rows in memory", "active_rows"), ("Newton steps", "newton_steps")):
        points = _points(history, "reading", key)
        if any(y for _, y in points):
            lines = [Series("", points, marked=True)]
            charts.append(line_chart(f"{name} by reading", lines, "reading", "", from_zero="xy"))
    if not stages and not charts:
        return
    yield "<h2>Training</h2>"
    yield _grid(charts)
    names = ("full_epochs", "mini_epochs", "newton_steps", "updates")
    heads = ["stage", "full epochs", "mini epochs", "Newton steps", "updates", "seconds",
             "ended because"]  # fmt: skip
    yield table(heads, [
        [str(one["epsilon"]), *(_number(one[name]) for name in names),
         _number(one["seconds"], f"{one['seconds']:.3g}"), one["stop_reason"]]
        for one in stages or ()
    ])  # fmt: skip


def _margins(facts: Facts) -> Iterator[str]:
    legend = [("k2", "wrong side"), ("k5", "right, within the margin"), ("k1", "beyond the margin")]
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    colours = ["k2" if m < 0 else "k5" if m < 1 else "k1" for m in middles.tolist()]
    note = "Label times decision. The first and the last bar hold all rows beyond them."
    charts = [
        histogram(f"Margins of the {name} rows", EDGES.tolist(), found.margins.tolist(), colours,
                  "margin", legend, note)
        for name, found in (("training", facts.training), ("held-out", facts.validation))
        if found is not None and found.margins is not None
    ]  # fmt: skip
    if charts:
        yield "<h2>Margins</h2>"
        yield _grid(charts)


def _held_out(facts: Facts) -> Iterator[str]:
    if facts.validation is None:
        return
    found = facts.validation.evaluation.to_dict()
    yield "<h2>Held-out rows</h2>"
    charts = []
    if (curve := facts.validation.curve) is not None:
        tp, fp = curve.T
        recall, fall_out = tp / tp[-1], fp / fp[-1]
        roc = [*zip(fall_out.tolist(), recall.tolist(), strict=True)]
        precision = (tp[1:] / (tp + fp)[1:]).tolist()
        pr = [*zip(recall[1:].tolist(), precision, strict=True)]
        titles = (
            f"ROC curve, area {_digits(found['roc_auc'])}",
            (f"Precision and recall, average precision {_digits(found['average_precision'])}"),
        )
        charts = [
            line_chart(titles[0], [Series("", roc), Series("", [(0, 0), (1, 1)], 0)],
                       "false positive rate", "true positive rate", unit=True),
            line_chart(titles[1], [Series("", pr)], "recall", "precision", unit=True),
        ]  # fmt: skip
    names = ("hamming_loss", *METRICS_OF_MANY) if "classes" in found else METRICS
    values = {metric_words(name): _digits(found[name]) for name in names}
    yield _tiles({"rows": number(found["rows"]), **values})
    yield _grid(charts)


def _model(facts: Facts) -> Iterator[str]:
    model = facts.model
    if model.kind != "two classes":
        yield "<h2>Classes</h2>"
        yield '<p class="soft">A click on a heading sorts the table.</p>'
        yield _class_table(facts)
        return
    [direction] = model.directions()
    features = heaviest(model, direction, MOST, facts.names)
    most = max((abs(one["weight"]) for one in features), default=1.0)
    yield "<h2>Heaviest features</h2>"
    larger = escape(label_text(model.classes[1]))
    opposite = " “opposite:” is before a name that counts the other way." if facts.names else ""
    yield f'<p class="soft">A positive weight counts towards {larger}.{opposite}</p>'
    yield table(["feature", "weight", ""], [
        [feature_text(one), _number(one["weight"], f"{one['weight']:+.4g}"),
         _bar(one["weight"] / most)]
        for one in features
    ])  # fmt: skip


def _class_table(facts: Facts) -> str:
    measured = facts.validation and facts.validation.evaluation.to_dict()["classes"]
    of_metrics = ("support", "precision", "recall", "f1", "roc_auc") if measured else ()
    heads = ["class", "gap", *map(metric_words, of_metrics), "full epochs", "Newton steps",
             "ended because", "heaviest features"]  # fmt: skip
    rows = []
    for at, direction in enumerate(facts.model.directions()):
        told = facts.report["learners"][at]
        names = [f"{feature_text(one)} {one['weight']:+.2g}"
                 for one in heaviest(facts.model, direction, 3, facts.names)]  # fmt: skip
        rows.append([
            label_text(direction.positive),
            _proven(told["certificate"]["relative_duality_gap"], up),
            *(_number((measured or [])[at][name]) for name in of_metrics),
            _number(told["full_epochs"]), _number(told["newton_steps"]), told["stop_reason"],
            _wide(", ".join(names)),
        ])  # fmt: skip
    return table(heads, rows, sorts=True)


def _sweep(facts: Facts) -> Iterator[str]:
    if (swept := facts.report.get("sweep")) is None:
        return
    metric, rows = swept["metric"], swept["candidates"]
    words = metric_words(metric)
    title = f"{words[0].upper()}{words[1:]} by"
    price = "delta" if any(row["C"] is None for row in rows) else "C"
    known = [row for row in rows if row[metric] is not None]
    prices, rhos = (sorted({row[name] for row in known}) for name in (price, "rho"))
    best = next(row for row in rows if row["best"])
    yield "<h2>The sweep</h2>"
    charts = []
    if len(prices) > 1:
        lines = [
            _candidates([row for row in known if row["rho"] == rho], rho, at % 5 + 1, price, metric)
            for at, rho in enumerate(rhos)
        ]
        hollow = "dropped, or not certified"
        charts.append(
            line_chart(f"{title} {price}", lines, price, words, log_x=price == "C", hollow=hollow)
        )
    if len(prices) > 1 and len(rhos) > 1:
        cells = {(row[price], row["rho"]): row[metric] for row in known}
        place = best[price], best["rho"]
        charts.append(heat_map(f"{title} {price} and ρ", prices, rhos, cells, place, price, "ρ"))
    yield _grid(charts)
    shown = [price, "rho", metric, "relative_duality_gap", "readings", "seconds"]
    heads = [metric_words(name) for name in shown]
    yield table([*heads, "ended because", "best"], [
        [*(_proven(row[name], up) if name == BOUNDS[2] else _number(row[name]) for name in shown),
         row["dropped"] or row["stop_reason"],
         "best" if row["best"] else ""]
        for row in rows
    ], sorts=True)  # fmt: skip


def _candidates(rows: Iterable[Values], rho: float, key: int, price: str, metric: str) -> Series:
    line = sorted(rows, key=lambda row: row[price])
    hollow = frozenset(
        at
        for at, row in enumerate(line)
        if row["dropped"] or not meets(row, row[BOUNDS[2]], row["stop_reason"])
    )
    return Series(f"ρ = {rho:g}", [(row[price], row[metric]) for row in line], key, True, hollow)


def _settings(facts: Facts) -> Iterator[str]:
    yield "<h2>Settings</h2>"
    given = facts.report["settings"]
    given = given | prices(given["C"], given["delta"])
    yield table(
        ["setting", "value"],
        [[name, _wide(str(value))] for name, value in given.items() if value is not None],
    )


def _data(facts: Facts) -> Iterator[str]:
    shards, told = facts.manifest.shards, facts.report
    yield "<h2>Data</h2>"
    layout = facts.model.reading.get("layout")
    what = f"{len(shards):,} {'shard' if len(shards) == 1 else 'shards'}"
    what += f", {format_size(facts.manifest.bytes)}{f', {layout}' if layout else ''}."
    yield f"<p>{escape(what)}</p>"
    if told.get("forgotten_rows"):
        yield f"<p>{told['forgotten_rows']:,} rows were forgotten.</p>"
    for shard in told["skipped"][:MANY]:
        yield f'<p class="bad">Left out: {escape(str(shard["reason"]))}</p>'
    yield table(["shard", "rows", "nonzeros", "bytes"], [
        [_wide(one.name), _number(one.rows), _number(one.nonzeros), _number(one.bytes)]
        for one in shards[:MANY]
    ])  # fmt: skip
    if shards[MANY:]:
        yield f'<p class="soft">… and {len(shards) - MANY:,} more</p>'


# --- tables --------------------------------------------------------------------------------------


class _Cell(str):
    """A cell of a table, as HTML; any other text in a table is escaped."""


def _number(value: float | None, text: str | None = None) -> _Cell:
    """Return a cell that holds a number, and sorts by it; ``text`` : how it is shown."""
    shown = _shown(value)
    key = "" if value is None else f' data-key="{value!r}"'
    return _Cell(f"{_NUMBER}{key}>{escape(shown if text is None else text)}</td>")


_NUMBER = '<td class="n"'


def _shown(value: float | None) -> str:
    if not isinstance(value, int | float | None):
        raise TypeError(f"{value!r} is not a number")
    return f"{value:.4g}" if isinstance(value, float) else number(value)


def _proven(value: float, form: Callable[[float], str]) -> _Cell:
    return _number(value, form(value))


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
    kinds = [' class="n"' if _cell(cell).startswith(_NUMBER) else "" for cell in rows[0]]
    head = "".join(
        f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, heads, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    opened = '<table class="sorts">' if sorts else "<table>"
    made = f"{opened}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="card{" narrow" if len(heads) == 2 else ""}">{made}</div>'


def _cell(cell: Any) -> str:
    return cell if isinstance(cell, _Cell) else f"<td>{escape(str(cell))}</td>"


def _tiles(values: Mapping[str, str]) -> str:
    shown = (
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>"
        for name, value in values.items()
    )
    return f'<div class="tiles">{"".join(shown)}</div>'


def _grid(parts: Iterable[str]) -> str:
    shown = "".join(parts)
    return f'<div class="grid">{shown}</div>' if shown else ""


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
