"""Report a run as one page of HTML: the data that the template ``page.html`` shows.

An equal report of equal rows is an equal page.
"""

from __future__ import annotations

import math
import os
import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from typing import Any, NamedTuple

import jinja2
import numpy as np

from streamtron.core import text
from streamtron.core.config import Settings, meets, prices
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import Executor, serial
from streamtron.core.files import shared, write_atomically
from streamtron.core.losses import loss_of
from streamtron.data import ShardFile, find_shards
from streamtron.data.reader_config import ALL
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Floats
from streamtron.model.mistakes import confusion_matrix, margins_by_code
from streamtron.runs import finished_run
from streamtron.runs.evaluate import Evaluator, score_shards, trained_on
from streamtron.runs.explain import MOST, heaviest
from streamtron.runs.inputs import Paths, as_paths, check_outputs, reading_from_model

EDGES = np.linspace(-2.0, 4.0, 61)
"""Bounds of the bars of a histogram of margins."""

_ODD_VALUES = LookupError, TypeError, ValueError, AttributeError, ArithmeticError
"""What helpers of the template raise where a report has values that no fit writes."""

Values = Mapping[str, Any]


def report(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    valid: Paths = (),
    run_dir: str | os.PathLike[str] | None = None,
    executor: Executor = serial,
) -> None:
    """Write a page about a finished run: one HTML file without scripts that needs no network.

    It says how good the model is on held-out rows and how far from the best training objective it
    is at most. Then come mistakes, margins, curves or residuals, the heaviest features, the proof,
    the training, settings and data; of the best model of a sweep also its candidates.

    Parameters
    ----------
    run : the model, or its run directory. Nothing is written there.
    output : path of the page, written completely or not at all.
    valid : labelled shards that were held out, or ``20%``, the share that the fit held out: adds
        metrics, the confusion matrix, margins and curves. Rows that were trained on are told.
    run_dir : the run directory, if it is not ``MODEL.run``.
    executor : where shards are read and scored: ``serial``, or Dask's workers.

    Raises
    ------
    DataError : no finished run, or one of an earlier version; unreadable rows.
    SettingsError : the page would replace an input; the fit held out no such share.
    MachineError

    Examples
    --------
    >>> import tempfile, streamtron
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = streamtron.generate(f"{place}/rows", rows=50, columns=80, seed=0)
    ...     _ = streamtron.fit(f"{place}/rows", model=f"{place}/model")
    ...     streamtron.report(f"{place}/model", f"{place}/page.html")
    """
    place, held_out = finished_run.locate(run, run_dir), as_paths(valid)
    directory, size = place.directory, text.share_of_rows(held_out) or 0.0
    check_outputs({"page": output}, [place.model, *held_out], runs=[directory])
    with shared(directory):
        store = finished_run.ended(directory)
        content, (manifest, shards) = dict(store.report or {}), finished_run.read_shards(store)
        model = LinearModel.load(place.model)
        twice = trained_on(directory, held_out) if held_out and not size else []
        known = sum(shard.rows for shard in twice)
        kind, notes, measured = "given" if known else "held-out", list[str](), dict[str, Values]()
        if size > (largest := model.settings.get("held_out") or 0.0):
            raise SettingsError(
                f"--valid {held_out[0]}: the fit held out {100 * largest:g}% of its rows. Give at "
                "most that, or shards that were held out."
            )
        if size:
            finished_run.check_as_read(shards, str(directory))
        if held_out:
            rows, share = (shards, (0.0, size)) if size else (find_shards(held_out), ALL)
            measured[kind] = _measure(Evaluator(model), rows, executor, share)
        if isinstance(model.bias, float):
            try:
                finished_run.check_as_read(shards, str(directory))
                unranked = Evaluator(model, ranking=model.regression)
                share = reading_from_model(model).share
                measured["training"] = _measure(unranked, shards, executor, share)
            except DataError as error:
                notes.append(f"The margins of the training rows are not shown: {error}")
    name, directions = os.path.basename(place.model), model.directions()
    try:
        changed = max(shard.mtime_ns for shard in manifest.shards) // 10**9
        page = _template().render(
            name=name,
            model=model,
            report=content,
            manifest=manifest,
            changed=datetime.fromtimestamp(changed, UTC).date(),
            kind=kind,
            measured=measured,
            edges=EDGES.tolist(),
            known_rows=known,
            notes=notes,
            features=[heaviest(model, side, 5 * MOST) for side in directions],
            command=_command(name, content["settings"]),
            version=version("streamtron"),
            most=MOST,
        )
    except (jinja2.TemplateError, *_ODD_VALUES) as error:
        reason = f"{directory}: not the report of this model ({error!r})"
        raise DataError(f"{reason}. Fit again.") from error
    write_atomically(output, [page.encode(errors="backslashreplace")])


def _measure(
    evaluator: Evaluator,
    shards: Sequence[ShardFile],
    executor: Executor,
    share: tuple[float, float],
) -> Values:
    """Read labelled rows once; return their metrics; of classes the rows by margin, between
    ``EDGES``, where rows have one class each, and by class the points of ``Scores.curve``; of
    numbers the residuals."""
    model, margins = evaluator.model, np.zeros(len(EDGES) - 1, dtype=np.int64)
    one_class = model.kind not in ("multilabel", "regression")
    for rows in score_shards([model], shards, executor, share=share):
        evaluator.add(rows)
        if one_class:
            two = rows.truth.shape[1] == 1
            counts = (rows.weights > 0) & ~rows.strange & (two or rows.truth.any(axis=1))
            truth = rows.truth[counts]
            codes = truth[:, 0].astype(np.intp) if two else truth.argmax(axis=1)
            row_margins = margins_by_code(rows.decisions[0][counts], codes)
            margins += np.histogram(np.clip(row_margins, EDGES[0], EDGES[-1]), EDGES)[0]
    metrics = evaluator.evaluation().to_dict()
    labels = map(text.label_text, model.classes[model.kind == "two classes" :])
    problems = enumerate(zip(labels, metrics.get("classes", [metrics]), strict=False))
    curve_of = evaluator.scores.curve
    curves = {name: curve_of(k=k) for k, (name, row) in problems if row["roc_auc"] is not None}
    measured = {"metrics": metrics, "curves": curves, "residuals": evaluator.residuals}
    return measured | {"margins": margins.tolist() if one_class else None}


Points = Sequence[tuple[float, float]]
Rows = Sequence[Mapping[str, Any]]
Form = Callable[[float], str]


def brief(value: float) -> str:
    """Format a number in few characters: 12k, 0.25, 8.75e-4."""
    if 0.0 < abs(value) < 1e-3:
        digits, _, power = f"{value:e}".partition("e")
        return f"{float(digits):.4g}e{int(power)}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % size == 0):
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


class Line(NamedTuple):
    """A line of a chart, in the legend if it has a name. ``key`` : the number of its colour.
    ``marked`` : whether points are drawn, ``hollow`` : those whose inside is empty. ``form`` :
    formats the height of a point."""

    name: str
    points: Points
    key: int = 1
    marked: bool = False
    hollow: Points = ()
    form: Form = brief


def drawable(line: Line, log: str) -> Line:
    """Leave out points that are not finite, or not positive on the axis ``log``, x or y."""
    points = [
        (x, y)
        for x, y in line.points
        if math.isfinite(x + y) and (x > 0 or log != "x") and (y > 0 or log != "y")
    ]
    return line._replace(points=points)


def pairs(rows: Rows, x: str, y: str) -> Points:
    """Return the points that rows have in two of their fields."""
    return [(row[x], row[y]) for row in rows]


class Axis(NamedTuple):
    """Values from ``low`` to ``high``, which differ, drawn from ``start`` to ``end`` in units of
    the chart; ``integral`` : whether values and ticks are whole numbers."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    integral: bool = False

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, log: bool = False) -> Axis:
        """Return an axis of all values; values too close for a picture get room on both sides."""
        low, high = min(values), max(values)
        if high - low <= 1e-6 * max(abs(low), abs(high)):
            room = 0.001 * abs(low) or 0.5
            low, high = (low / 2, high * 2) if log else (low - room, high + room)
        return cls(low, high, start, end, log, all(float(v).is_integer() for v in values))

    def place(self, value: float) -> float:
        """Return where a value lies, in units of the chart."""
        scale = math.log if self.log else float
        value, low, high = scale(value), scale(self.low), scale(self.high)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return where some round values lie, and their labels."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            every = max(1, math.ceil((high - low) / 5))
            powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1, every)
            values = [10.0**power for power in powers] if len(powers) > 1 else [self.low, self.high]
            return [(self.place(value), brief(value)) for value in values]
        rough = (self.high - self.low) / 4
        power = math.floor(math.log10(rough))
        factor = next(k for k in (1.0, 2.0, 2.5, 5.0, 10.0) if k * 10.0**power >= 0.999 * rough)
        if self.integral and power < 0:
            factor, power = 1.0, 0
        step = factor * 10.0**power
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [step * k for k in range(first, last + 1)]
        digits = max(0, (factor == 2.5) - power - (factor == 10.0))
        form = f"{{:.{digits}f}}".format if 1e-3 <= max(map(abs, values)) < 1e3 else brief
        return [(self.place(value), form(value + 0.0)) for value in values]


def by_reading(history: Rows, y: str, name: str = "", key: int = 1, form: Form = brief) -> Line:
    """Return a line of a value after each reading, hollow where it is not proven."""
    known = [row for row in history if row.get("reading") is not None and row.get(y) is not None]
    unproven = [row for row in known if not row.get("proven", True)]
    return Line(name, pairs(known, "reading", y), key, True, pairs(unproven, "reading", y), form)


def ranking(curves: Mapping[str, Floats]) -> tuple[list[Line], list[Line]]:
    """Return ROC curves and curves of precision by recall, both of each class where these are at
    most four; of several also the mean ROC curve. ``curves`` : see ``Scores.curve``."""
    roc, ranked, rates, grid = [], [], [], np.linspace(0.0, 1.0, 201)
    for key, (label, curve) in enumerate(curves.items(), 1):
        tp, fp = curve.T
        fpr, recall, precision = fp / fp[-1], tp / tp[-1], tp[1:] / (tp + fp)[1:]
        rates.append(np.interp(grid, fpr, recall))
        roc.append(Line(f"for {label}", np.column_stack([fpr, recall]).tolist(), key))
        ranked.append(Line(f"for {label}", np.column_stack([recall[1:], precision]).tolist(), key))
    if len(rates) > 4:
        roc, ranked = [], []
    if len(rates) > 1:
        mean = np.column_stack([grid, np.mean(rates, axis=0)]).tolist()
        roc.append(Line("mean of all classes", mean, len(roc) + 1))
    return roc, ranked


def by_price(rows: Rows, price: str, y: str) -> list[Line]:
    """Return lines over candidates of a sweep, which rise by price, one for each loss, ρ and r;
    hollow where they were dropped or are not certified."""
    kinds = [(row["loss"], row["rho"], row.get("l1_ratio", 0.0)) for row in rows]
    several, gap, drawn = len({loss for loss, *_ in kinds}) > 1, "relative_duality_gap", []
    for key, (loss, rho, ratio) in enumerate(sorted(set(kinds))):
        line = [row for row, kind in zip(rows, kinds, strict=True) if kind == (loss, rho, ratio)]
        hollow = [r for r in line if r["dropped"] or not meets(r, r[gap], r["stop_reason"])]
        words = [loss] * several + [f"ρ = {rho:g}"] + [f"l1_ratio = {ratio:g}"] * bool(ratio)
        points = pairs(line, price, y)
        drawn.append(Line(", ".join(words), points, key % 5 + 1, True, pairs(hollow, price, y)))
    return drawn


@cache
def _template() -> jinja2.Template:
    """Return the template: whatever is text is escaped in it, and what cannot be seen is shown."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else text.visible(str(value)),
    )
    helpers = vars(text) | globals() | {"b64encode": b64encode, "sha256": sha256}
    helpers |= {helper.__name__: helper for helper in (confusion_matrix, loss_of, meets, prices)}
    environment.globals |= helpers
    environment.filters |= helpers
    source = files("streamtron.runs").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source)


def _command(name: str, settings: Values) -> str:
    """Return the command that fits with these settings, without the defaults."""
    defaults = Settings(loss=settings["loss"], rho=settings["rho"]).to_dict()
    defaults |= {"loss": Settings().loss, "rho": Settings().rho}
    words = ["streamtron", "fit", "SHARDS", "--model", name]
    given = {k: v for k, v in settings.items() if v is not None and v != defaults.get(k)}
    if held_out := given.pop("held_out", None):
        words += ["--valid", f"{100 * held_out:g}%"]
    for key, value in given.items():
        if isinstance(value, Mapping):
            value = [f"{label}={weight}" for label, weight in value.items()]
        if isinstance(value, list):
            value = [",".join(map(str, value))]
        for word in value if isinstance(value, list) else [value]:
            words += [f"--{key.replace('_', '-')}"] + [str(word)] * (word is not True)
    return shlex.join(words)
