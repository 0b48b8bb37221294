"""The page about a run: what it shows, that it needs nothing else, and what it does not touch."""

import json
import math
import re
import shlex
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn import metrics

import streamtron
from streamtron import generate
from streamtron.core.errors import DataError
from streamtron.runs.report_page import Axis, Line, brief, drawable
from tests.cli.test_snapshots import HISTORY
from tests.helpers.processes import Run, one_sentence, succeeded
from tests.helpers.runs import put_fact, report_of
from tests.helpers.user_rows import list_rows
from tests.runs.test_moved_runs import everything


class _Checker(HTMLParser):
    """Reads a page, whose elements must be closed in order, load nothing and run nothing; and
    collects its texts and tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.texts: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.handle_startendtag(tag, attrs)
        if tag != "meta":
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        assert tag not in ("script", "img", "link", "iframe", "object")
        assert not [name for name, _ in attrs if name in ("src", "href") or name[:2] == "on"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def table(self, head: str) -> list[list[str]]:
        """The rows of the table whose first heading is this one."""
        [found] = [rows[1:] for rows in self.tables if rows[0][0] == head]
        return found


def _page(path: Path) -> tuple[str, _Checker]:
    text = path.read_text(encoding="utf-8")
    return text, _Checker(text)


def _reported(run: Run, place: Path, model: Any = "model", *words: str) -> tuple[str, _Checker]:
    """The page of a model, written."""
    succeeded(run("report", model, "-o", place / "page.html", *words))
    return _page(place / "page.html")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with shards, and a model of them with its run and its report."""
    directory = tmp_path_factory.mktemp("place")
    for name, rows, first in (("train", 1200, 0), ("held-out", 400, 1200)):
        generate(str(directory / name), rows=rows, columns=200, seed=1, shards=2, first_row=first)
    streamtron.fit(directory / "train", model=directory / "model", tol=1e-4)
    return directory


@pytest.fixture
def model(place: Path) -> Path:
    """The model."""
    return place / "model"


def _decisions(model: Path, shards: Path) -> tuple[np.ndarray, np.ndarray]:
    """Truth ±1 and decisions of the rows of libsvm text, read by nothing of ours."""
    decisions = [scores.decisions for scores in streamtron.predict(model, shards)]
    text = "".join(path.read_text() for path in sorted(shards.iterdir()))
    truth = np.array([float(line.split()[0]) for line in text.splitlines()])
    return truth, np.concatenate(decisions)


def _bars(page: str, title: str) -> list[int]:
    drawing = page.split(f'aria-label="{title}"')[1].split("</svg>")[0]
    return [int(count.replace(",", "")) for count in re.findall(r": ([\d,]+)</title>", drawing)]


def test_the_page_shows_what_the_report_says_needs_nothing_else_and_writes_nothing_else(
    run, place, model
):
    before = everything(place)
    text, page = _reported(run, place)
    again = everything(place)
    assert again.pop("page.html")[1] == _reported(run, place, "model.run")[0].encode()
    assert again == before
    told = report_of(place / "model.run")
    assert f"<b>{told['nonzeros']:,}</b>" in text
    proven = dict(page.table("certificate"))
    gap = told["certificate"]["relative_duality_gap"]
    assert gap <= float(proven["relative duality gap"]) <= gap * 1.000001
    newest = max(path.stat().st_mtime for path in (place / "train").iterdir())
    assert f"last changed on {datetime.fromtimestamp(newest, UTC).date()} (UTC)" in text
    # it needs no network, runs nothing, and follows the colours of the reader
    assert not re.search(r"https?:|url\(|@import|unsafe|script", text)
    style = text.partition("<style>")[2].partition("</style>")[0]
    allowed = b64encode(sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{allowed}'" in text
    assert "prefers-color-scheme: dark" in text


@contextmanager
def _with_report(model: Path, **changes: Any) -> Iterator[None]:
    """The report of a run with changes."""
    run = f"{model}.run"
    before = report_of(run)
    put_fact(run, "report", {**before, **changes})
    yield
    put_fact(run, "report", before)


@pytest.mark.parametrize("readings", [3, 4])
def test_the_history_is_drawn_reading_by_reading_from_four_points_on(run, place, model, readings):
    last = {**HISTORY[readings - 1], "reading": readings, "lower": 0.4, "gap": 1e-9}
    with _with_report(model, history=[*HISTORY[:readings], last]):
        text, _ = _reported(run, place, "model")
    for title, points in (
        ("Bounds on the margin by reading", [readings + 1, readings]),
        ("Gap by reading", [] if readings < 4 else [readings, 2]),
        ("Rows in memory by reading", [readings + 1]),
        ("Newton steps by reading", [readings + 1]),
    ):
        drawing = text.partition(f'aria-label="{title}"')[2].partition("</svg>")[0]
        assert [len(line.split()) for line in re.findall(r'points="([^"]*)"', drawing)] == points
        assert drawing.count("hollow") == (1 if title.startswith("Bounds") else 0)


def test_held_out_rows_have_the_metrics_of_evaluate_and_all_are_in_a_histogram(run, place, model):
    text, page = _reported(run, place, "model", "--valid", "held-out")
    edges = np.linspace(-2.0, 4.0, 61)
    for name, shards in (("training", "train"), ("held-out", "held-out")):
        truth, decisions = _decisions(model, place / shards)
        expected, _ = np.histogram(np.clip(truth * decisions, -2.0, 4.0), edges)
        assert _bars(text, f"Margins of the {name} rows") == expected.tolist()
        assert expected.sum() == len(truth)
    found = streamtron.evaluate(model, place / "held-out")
    for name, value in (("accuracy", found.accuracy), ("F1", found.f1), ("ROC AUC", found.roc_auc)):
        assert f"<b>{value:.3g}</b><span>{name}</span>" in text
    assert f"ROC curve, area {found.roc_auc:.3g}" in text
    expected = metrics.confusion_matrix(truth, np.where(decisions > 0, 1, -1))
    assert [[int(n) for n in row[1:3]] for row in page.table("true class")] == expected.tolist()
    share = max(np.mean(truth > 0), np.mean(truth < 0))
    largest = "1" if np.mean(truth > 0) == share else "-1"
    assert (
        f"Of 400 held-out rows it gets {100 * found.accuracy:.3g} % right; the largest class, "
        f"{largest}, is {100 * share:.3g} % of them." in text
    )


def test_the_distance_from_the_optimum_is_rounded_up_and_a_missed_tolerance_is_said(run, place):
    for tol, active_set, good in (("0.5", "1GB", True), ("1e-12", "0", False)):
        how = ["--tol", tol, "--active-set", active_set, "--max-epochs", "2", "--overwrite"]
        run("fit", "train", "--model", "far", *how)
        text, _ = _reported(run, place, "far")
        told = re.search(r"Within (\S+) % of the best possible training objective, proven", text)
        assert told
        certificate = report_of(place / "far.run")["certificate"]
        above = certificate["primal_objective"] / certificate["dual_objective"] - 1
        assert above <= float(told[1]) / 100 <= 1.11 * above
        assert (f"a gap of {tol}, was not reached" not in text) == good
        assert f'<p class="{"good" if good else "bad"}">Within' in text


def test_the_command_on_the_page_makes_the_same_model(run, place):
    table = pa.table({"label": [0.0, 1.0, 3.0], "a": [1.0, None, 0.5], "b": [1.0, 2.0, 2.5]})
    pq.write_table(table, place / "numbers.parquet")
    columns, names = ["a:number", "b:number"], {"intercept": "penalised", "tol": 1e-4}
    settings = {"loss": "squared_error", "columns": columns, **names}
    streamtron.fit(place / "numbers.parquet", model=place / "numbers", **settings)
    command = dict(_reported(run, place, "numbers")[1].table("made by"))["command"]
    before = (place / "numbers").read_bytes()
    again = command.replace("SHARDS", "numbers.parquet").split()[1:]
    assert run(*again, "--overwrite").returncode == 0
    assert (place / "numbers").read_bytes() == before


def test_names_of_people_are_text_and_never_markup_and_nothing_of_them_is_unseen(run, place):
    name = "<script>alert('$title {{ 7 * 7 }}')</script>"
    shown = {"a&b": "a&b", "\x1b[2J\u202eab": r"\x1b[2J\u202eab"}
    table = {"label": [*shown] * 20, name: [0.0, 1.0] * 20, "z": [1.0, 0.5] * 20}
    pq.write_table(pa.table(table), place / "<b>.parquet")
    streamtron.fit(place / "<b>.parquet", model=place / "<odd>", features=f"{name},z")
    text, page = _reported(run, place, "<odd>")
    assert not re.search("[\x1b\u202e]|<script>", text)
    assert name in [row[0] for row in page.table("feature")]
    assert page.table("shard")[0][0] == "<b>.parquet"
    assert {"<odd>"} <= {*page.texts}
    assert all(one in "".join(page.texts) for one in shown.values())


def test_the_command_on_the_page_quotes_the_keys_of_a_strangers_settings(run, place, model):
    told = report_of(place / "model.run")
    odd = {"x; touch owned": "a b", "y$(z)": True}
    with _with_report(model, settings={**told["settings"], **odd}):
        page = _reported(run, place, "model")[1]
    command = dict(page.table("made by"))["command"]
    assert shlex.split(command)[-3:] == ["--x; touch owned", "a b", "--y$(z)"]


def test_rows_left_out_are_in_no_histogram_and_shards_that_are_gone_cost_it_alone(run, tmp_path):
    generate(str(tmp_path / "rows"), rows=300, columns=90, seed=1, shards=2)
    model = tmp_path / "m"
    streamtron.fit(tmp_path / "rows", model=model, held_out=0.25)
    shard = min((tmp_path / "rows").iterdir())
    rows = list_rows(tmp_path / "gone.csv", {shard.name: range(7)})
    left = streamtron.forget(model, rows=rows).report
    text, _ = _reported(run, tmp_path, model)
    assert sum(_bars(text, "Margins of the training rows")) == left["rows"] < 260
    assert f"{left['forgotten_rows']} rows were forgotten" in text
    assert "streamtron fit SHARDS --model m --valid 25%" in text
    shard.unlink()
    text, page = _reported(run, tmp_path, model)
    assert "The margins of the training rows are not shown" in text
    assert f"{shard.name}: gone" in text
    assert page.table("feature")


def test_what_is_no_run_is_told_so(run, place, model, tmp_path):
    one_sentence(run("report", "nowhere", "-o", "x.html"), 3, "nowhere")
    copy = Path(shutil.copy(model, tmp_path / "model"))
    shutil.copytree(place / "model.run", tmp_path / "model.run")
    for bad, told in (({}, "not the report"), ([], "its report: []"), (None, "has not ended")):
        put_fact(tmp_path / "model.run", "report", bad)
        one_sentence(run("report", copy, "-o", "x.html"), 3, told)
    shutil.rmtree(tmp_path / "model.run")
    one_sentence(run("report", copy, "-o", "x.html"), 3, "there is no run")
    assert not (place / "x.html").exists()
    (tmp_path / "empty.svm").write_text("")
    with pytest.raises(DataError, match="no rows"):
        streamtron.report(model, tmp_path / "p", valid=tmp_path / "empty.svm")


@pytest.mark.parametrize(
    ("values", "log", "labels"),
    [
        ((0.0, 0.98), False, ["0.00", "0.25", "0.50", "0.75"]),
        ((0.0, 32561.0), False, ["0", "10k", "20k", "30k"]),
        ((0.9011, 0.9021), False, ["0.90125", "0.90150", "0.90175", "0.90200"]),
        ((1, 3), False, ["1", "2", "3"]),
        ((0.3, 0.3), False, ["0.2998", "0.3000", "0.3002"]),
        ((0.06000755, 0.06000756), False, None),
        ((1e-6, 0.2), True, ["1e-6", "1e-4", "0.01"]),
        ((0.002, 0.003), True, ["0.002", "0.003"]),
    ],
)
def test_the_labels_of_an_axis_are_round_and_differ(values, log, labels):
    places, found = zip(*Axis.over(values, 0, 100, log=log).ticks(), strict=True)
    assert list(found) == (labels or list(found))
    assert len(set(found)) == len(found) > 1
    assert all(-0.1 <= place <= 100.1 for place in places)


def test_a_gap_of_zero_is_not_on_a_logarithmic_axis_and_numbers_are_brief():
    line = Line("gap", [(0, 0.5), (1, math.inf), (2, 0.0)])
    assert drawable(line, "y").points == [(0, 0.5)]
    assert drawable(line, "").points == [(0, 0.5), (2, 0.0)]
    numbers = (0, 1500, 12_000, 2_000_000, 8.75e-4, -1 / 3)
    assert " ".join(map(brief, numbers)) == "0 1500 12k 2M 8.75e-4 -0.3333"


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

ASKS = """
const texts = [...document.querySelectorAll("svg text")];
const cut = texts.filter(text => {
  const box = text.getBBox();
  return box.x < 0 || box.x + box.width > text.ownerSVGElement.viewBox.baseVal.width;
}).map(text => text.textContent);
const width = [document.documentElement.scrollWidth, innerWidth];
parent.document.body.textContent = JSON.stringify({width, cut, words: texts.length});
"""
"""Stands at the end of a page in a frame: measures, and answers in the place of the frame."""


def _ask(page: Path, width: int) -> dict[str, Any]:
    """Open a page so wide in a browser, and return what the script finds."""
    text = page.read_text(encoding="utf-8").replace("</body>", f"<script>{ASKS}</script></body>")
    allowed = b64encode(sha256(ASKS.encode()).digest()).decode()
    asking = escape(text.replace("style-src ", f"script-src 'sha256-{allowed}'; style-src "))
    frame = page.with_name("frame.html")
    frame.write_text(f'<iframe width="{width}" height="900" frameborder="0" srcdoc="{asking}">')
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"]
    command = [BROWSER, *options, f"--user-data-dir={page.parent / 'profile'}", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert found, done.stderr
    answer: dict[str, Any] = json.loads(unescape(found[1]))
    return answer


@pytest.mark.skipif(BROWSER is None, reason=f"none of these is there: {', '.join(BROWSERS)}")
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_fits_the_window_and_cuts_off_no_label(tmp_path, width):
    generate(str(tmp_path / "rows"), rows=400, columns=90, seed=1, shards=1)
    model = tmp_path / f"a_name_{'too_long_' * 9}for_a_phone"
    streamtron.sweep(
        tmp_path / "rows", valid=tmp_path / "rows", C=[1e-5, 1e-3, 0.1, 1], rho=[0, 1], model=model
    )
    told = report_of(f"{model}.run")
    told["history"][-1] |= {"lower": 0.01480485, "upper": 0.0148051}  # ticks of seven digits
    put_fact(f"{model}.run", "report", {**told, "history": told["history"][-1:]})
    streamtron.report(model, tmp_path / "m.html", valid=tmp_path / "rows")
    told = _ask(tmp_path / "m.html", width)
    assert told["width"] == [width, width]
    assert told["words"] > 50
    assert told["cut"] == []


PAYLOADS = (
    "<script>window.ran = 1</script>",
    "'\"><img src=x onerror='window.ran = 1'>",
    "' onmouseover='window.ran = 1' x='",
)


def _places(told: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a report that is no table or list, or to an empty one; in a list
    to those of its first entry."""
    if isinstance(told, dict | list) and told:
        items = told.items() if isinstance(told, dict) else enumerate(told[:1])
        for key, value in items:
            yield from _places(value, (*path, key))
    else:
        yield path


@pytest.mark.parametrize("many", [False, True], ids=["two classes", "many classes"])
def test_a_page_of_any_hostile_report_is_refused_or_holds_its_words_as_text(tmp_path, many):
    (tmp_path / "a.svm").write_text("1 1:1 3:1\n2 2:1\n" * 9 + "3 3:1\n" * (9 * many))
    model = tmp_path / "m"
    streamtron.fit(tmp_path / "a.svm", model=model, multiclass=many)
    before = json.dumps(report_of(tmp_path / "m.run"))
    made = 0
    for place in _places(json.loads(before)):
        for payload in ("".join(PAYLOADS), [PAYLOADS[0]]):
            told = json.loads(before)
            table = told
            for key in place[:-1]:
                table = table[key]
            table[place[-1]] = payload
            put_fact(tmp_path / "m.run", "report", told)
            with suppress(DataError):
                streamtron.report(model, tmp_path / "m.html")
                made += 1
                _page(tmp_path / "m.html")
    assert made > 10
