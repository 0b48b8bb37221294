"""Report a run as one page of HTML: the plain data that the template ``page.html`` shows.

An equal report of equal rows is an equal page.
"""

from __future__ import annotations

import os
import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from markupsafe import Markup

from streamtron.core.config import Settings, meets
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.executor import Executor, serial
from streamtron.core.files import parse_json, reading_from, shared, write_atomically
from streamtron.core.losses import loss_of
from streamtron.core.names import prices
from streamtron.core.text import (
    MANY,
    PROVEN,
    down,
    feature_text,
    format_size,
    label_text,
    metric_words,
    metrics_shown,
    number,
    share_of_rows,
    shown,
    some,
    up,
    visible,
    with_types,
    within,
)
from streamtron.data import ShardFile, find_shards
from streamtron.data.reader_config import ALL
from streamtron.model.charts import short
from streamtron.model.linear_model import LinearModel
from streamtron.model.mistakes import confusion_matrix, margins_by_code
from streamtron.runs.evaluate import Evaluator, score_shards, trained_on
from streamtron.runs.explain import MOST, heaviest, load_names, names_beside
from streamtron.runs.finished_run import (
    check_as_read,
    check_recovered,
    locate,
    read_manifest,
    shards_of,
)
from streamtron.runs.inputs import Paths, as_paths, check_outputs, reading_from_model
from streamtron.runs.page_charts import EDGES, Measured, page_charts
from streamtron.runs.report import REPORT

if TYPE_CHECKING:
    pass

Values = Mapping[str, Any]


def report(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    valid: Paths = (),
    margins: bool = True,
    names: Paths = (),
    run_dir: str | os.PathLike[str] | None = None,
    executor: Executor = serial,
) -> None:
    """Write a page about a finished run: one HTML file without scripts that needs no network.

    It begins with how good the model is on held-out rows, beside the share of the largest class, or
    the standard deviation of the numbers, and how far it is at most from the best training
    objective. Then come the confusion matrix, margins, curves or residuals, the heaviest features,
    the proof, the training, settings and data; of the best model of a sweep also its candidates.

    Parameters
    ----------
    run : the model, or its run directory. Nothing is written there.
    output : path of the page, written completely or not at all.
    valid : labelled shards that were held out, or ``20%``, the share that the fit held out: adds
        metrics, the confusion matrix, their margins, and the ROC and precision-recall curves, of
        many classes of each against the rest. Rows that were trained on are told.
    margins : read the run's shards once, for margins of two classes, or residuals; if they changed,
        it is said.
    names : directories where ``convert`` kept names of columns, if not beside the run's shards.
    run_dir : the run directory, if it is not ``MODEL.run``.
    executor : where shards are read and scored: ``serial``, or Dask's workers.

    Raises
    ------
    DataError : no finished run, or one of an earlier version; unreadable rows.
    SettingsError : the page would replace an input; the fit held out no such share.
    MachineError

    Examples
    --------
    >>> import tempfile
    >>> import streamtron
    >>> with tempfile.TemporaryDirectory() as root:
    ...     shard, model = Path(root, "a.svm"), Path(root, "m")
    ...     _ = shard.write_text("1 1:1\\n-1 1:-1\\n")
    ...     _ = streamtron.fit(shard, model=model)
    ...     streamtron.report(model, Path(root, "report.html"))
    ...     Path(root, "report.html").read_text()[:15]
    '<!DOCTYPE html>'
    """
    place, held_out, named = locate(run, run_dir), as_paths(valid), as_paths(names)
    directory = place.directory
    check_outputs({"page": output}, [place.model, *held_out, *named], runs=[directory])
    with shared(directory):
        check_recovered(directory)
        content = _read_report(directory / REPORT)
        manifest = read_manifest(directory)
        model = LinearModel.load(place.model)
        column_names = load_names(model, named or names_beside(model, manifest))
        shards = shards_of(manifest, directory)
        given = [] if share_of_rows(held_out) else held_out
        known = sum(shard.rows for shard in trained_on(directory, given)) if given else 0
        kind, notes = "given" if known else "held-out", list[str]()
        measured: dict[str, Measured] = {}
        if held_out:
            measured[kind] = _measure_held_out(model, shards, held_out, directory, executor)
        if margins and isinstance(model.bias, float):
            try:
                check_as_read(shards, str(directory))
                share = reading_from_model(model).share
                measured["training"] = _measure(model, shards, executor, ranked=False, share=share)
            except DataError as error:
                notes.append(f"The margins of the training rows are not shown: {error}")
    name = os.path.basename(place.model)
    try:
        page = _template().render(
            name=name,
            model=model,
            report=content,
            manifest=manifest,
            kind=kind,
            metrics=measured[kind].metrics if held_out else {},
            known_rows=known,
            notes=notes,
            charts=page_charts(model, content, measured, kind),
            features=[
                heaviest(model, direction, 5 * MOST, column_names)
                for direction in model.directions()
            ],
            named=column_names is not None,
            command=_command(name, content["settings"]),
            version=version("streamtron"),
            bounds=PROVEN,
            most=MOST,
            many=MANY,
        )
    except (
        jinja2.TemplateError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise DataError(
            f"{directory / REPORT}: not the report of this model ({error!r}). Fit again."
        ) from error
    write_atomically(output, [page.encode(errors="backslashreplace")])


def _read_report(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise DataError(
            f"{path}: not there. Give a model that streamtron fit wrote with its run beside it."
        )
    try:
        with reading_from(path):
            return dict(parse_json(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not the report of a run ({error}). Fit again.") from error


def _measure_held_out(
    model: LinearModel,
    shards: Sequence[ShardFile],
    valid: Sequence[str],
    directory: Path,
    executor: Executor,
) -> Measured:
    """Read the rows of ``valid``: of shards, or of the share of the run's that was held out."""
    size = share_of_rows(valid)
    if size is None:
        return _measure(model, find_shards(valid), executor, ranked=True, share=ALL)
    if size > (held_out := model.settings.get("held_out") or 0.0):
        raise SettingsError(
            f"--valid {valid[0]}: the fit held out {100 * held_out:g}% of its rows. Give at most "
            "that, or shards that were held out."
        )
    check_as_read(shards, str(directory))
    return _measure(model, shards, executor, ranked=True, share=(0.0, size))


def _measure(
    model: LinearModel,
    shards: Sequence[ShardFile],
    executor: Executor,
    *,
    ranked: bool,
    share: tuple[float, float],
) -> Measured:
    """Read labelled rows once; ``ranked`` : whether decisions are sorted."""
    one_class = model.kind not in ("multilabel", "regression")
    margins = np.zeros(len(EDGES) - 1, dtype=np.int64)
    evaluator = Evaluator(model, ranking=ranked or model.regression)
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
    positive = model.classes[1:] if model.kind == "two classes" else model.classes
    curves = {
        label_text(label): evaluator.scores.curve(k=k)
        for k, (label, problem) in enumerate(
            zip(positive, metrics.get("classes", [metrics]), strict=False)
        )
        if problem["roc_auc"] is not None
    }
    return Measured(metrics, margins if one_class else None, curves, evaluator.residuals)


def _template() -> jinja2.Template:
    """Return the template: whatever is text is escaped in it, and what cannot be seen is shown."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
    )
    functions: list[Callable[..., Any]] = [
        *(confusion_matrix, down, feature_text, format_size, label_text, loss_of, meets),
        *(metric_words, metrics_shown, number, prices, short, shown, some, up, with_types, within),
        *(_date, _digest, _percent),
    ]
    for function in functions:
        name = function.__name__.lstrip("_")
        environment.filters[name] = environment.globals[name] = function
    text = files("streamtron.runs").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(text)


def _date(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // 10**9, UTC).date().isoformat()


def _digest(text: str) -> str:
    """Return how a policy names the one style sheet that a browser may take."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100.0 * float(shown(share)):.6g} %"


def _command(name: str, settings: Values) -> str:
    """Return the command that fits with these settings, without those that are the defaults."""
    default = Settings()
    defaults = Settings(loss=settings["loss"], rho=settings["rho"]).to_dict()
    defaults |= {"loss": default.loss, "rho": default.rho}
    words = ["streamtron", "fit", "SHARDS", "--model", name]
    for key, value in settings.items():
        if value is None or value == defaults.get(key):
            continue
        if isinstance(value, Mapping):
            value = [f"{label}={weight}" for label, weight in value.items()]
        if isinstance(value, list) and key != "columns":
            value = [",".join(map(str, value))]
        for word in value if isinstance(value, list) else [value]:
            words += [f"--{key.replace('_', '-')}"] + [str(word)] * (word is not True)
    return shlex.join(words)
